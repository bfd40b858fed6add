#!/usr/bin/env bats
# What run_one and run_queue do ahead of time, beside something else: it may save a moment, never change what comes of it.

load helper
load cells

setup() { cells_setup; }
teardown() { cells_teardown; }

# A cell that ends when the file "go" is there.
held() { printf '%s\tuntil [[ -e $CELL_DIR/../../go ]]; do read -r -t 0.05 <> <(:) || :; done; bash trainer.sh ok\n' "$1" >>"$Q"; }
# What a run_one leaves that was told of cell b, looked at everything and waits.
told_of_b() { compgen -G "$D/state/.b.json.*.tmp" >/dev/null && compgen -G "$B/.syncing/b.*" >/dev/null; }
left_of_b() { compgen -G "$D/state/.b.json.*" || compgen -G "$B/records/.b.json.*" || compgen -G "$B/.syncing/b.*"; }
# A saver in the background that is told after the cell's command has ended, and writes until it ends. <what it does when told>
saver() { printf 's\tbash trainer.sh ok; mkdir -p "$CELL_DIR/ckpts"; echo 1 >"$CELL_DIR/ckpts/one"; head -c 1500000 /dev/zero >"$CELL_DIR/best.pth"; (trap '\''%s; exit 0'\'' TERM; : >"$CELL_DIR/ready"; while :; do read -r -t 0.05 <> <(:) || :; done) & until [[ -e $CELL_DIR/ready ]]; do read -r -t 0.02 <> <(:) || :; done\n' "$1" >>"$Q"; }

@test "a command whose last byte begins a character reaches the run_one that waits whole, in a UTF-8 locale too (S48, T2)" {
  cell a ok
  printf 'b\tbash trainer.sh ok \303\nc\tbash trainer.sh ok \342\202\n' >>"$Q"
  LC_ALL=C.UTF-8 queue
  [[ $status -eq 0 && $output == *'3 ended well'* ]]
  for c in a b c; do bundled $c && [[ $(starts $c) -eq 1 ]]; done
}

@test "a run_one that ends with 0 without a claim and without a record in the bundle has not run its cell (S48, T2)" {
  cell a ok
  mkdir "$HOME/box" && cp "$BOX"/* "$HOME/box/"
  printf '#!/usr/bin/env bash\nexit 0\n' >"$HOME/box/run_one.sh"
  run --separate-stderr bash "$HOME/box/run_queue.sh" --queue "$Q"
  [[ $status -ne 0 && $output == *'0 ended well'* ]]
}

@test "told of a cell that another runner then runs: nothing of the one that waited stays (S48)" {
  held a
  cell b ok
  bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/said" 2>&1 3>&- &
  local first=$!
  wait_for 30 told_of_b
  queue --only b
  [[ $status -eq 0 ]]
  bundled b
  # What was looked at long ago is looked at again.
  long_ago() { (($(date +%s) - $(stat -c %Y "$D"/state/.b.json.*.tmp) >= 3)); }
  wait_for 30 long_ago
  : >"$D/go"
  wait "$first"
  [[ $(starts b) -eq 1 && $(<"$HOME/said") == *'cell b: done already'* ]]
  # Another has done it before we came to it.
  [[ $(<"$HOME/said") == *'planned 2 = started 1 + skipped 1 + failed 0 + pending 0;'* ]]
  ! left_of_b
}

@test "told of a cell that another runner has done a moment later: done already, and the queue ends with 0 (S48)" {
  held a
  cell b ok
  bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/said" 2>&1 3>&- &
  local first=$!
  wait_for 30 told_of_b
  # As if another had just done it: all that it would have left.
  RUN=other DATA_DIR=$HOME/other DURABLE_DIR=$HOME/durable
  mkdir -p "$DATA_DIR/other" "$DURABLE_DIR/other" && cp "$D/run.json" "$DATA_DIR/other/" && cp "$D/run.json" "$DURABLE_DIR/other/"
  one b
  [[ $status -eq 0 ]]
  cp -r "$DURABLE_DIR/other/final_ckpts/b" "$B/final_ckpts/" && cp "$DURABLE_DIR/other/records/b.sha256" "$B/records/"
  cp "$DATA_DIR/other/state/b.json" "$D/state/" && cp "$DURABLE_DIR/other/records/b.json" "$B/records/" && cp "$DATA_DIR/other/claims/b/001" "$D/claims/b/"
  : >"$D/go"
  wait "$first"
  [[ $(starts b) -eq 0 && $(<"$HOME/said") == *'cell b: done already'* && $(<"$HOME/said") != *refused* ]]
}

@test "told of a cell and stopped by a signal of its own: nothing stays (S48, T17)" {
  held a
  cell b ok
  bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/said" 2>&1 3>&- &
  local first=$! file
  wait_for 30 told_of_b
  for file in "$B"/.syncing/b.*; do kill -TERM "${file##*.}"; done
  nothing_left() { ! left_of_b; }
  wait_for 30 nothing_left
  : >"$D/go"
  wait "$first"
  [[ $(starts b) -eq 1 ]]
  bundled b
}

@test "what a saver writes until the sweep has ended it is in the bundle: the results are not looked at before (S81, T9)" {
  saver 'head -c 2000000 /dev/zero >"$CELL_DIR/best.pth"'
  queue
  [[ $status -eq 0 && $stderr == *'left process'* ]]
  bundled s
  [[ $(stat -c %s "$B/final_ckpts/s/best.pth") -eq 2000000 ]]
}

@test "a required folder is listed when the last process of the cell is gone (S81, T9)" {
  sed 's/required: .*\], prune/required: [ckpts], prune/' "$ROOT/tests/fixtures/trainers/job.yaml" >"$HOME/job.yaml"
  compile_job local "$HOME/job.yaml"
  BOX=$OUT/box
  saver 'echo last >"$CELL_DIR/ckpts/last"'
  queue
  [[ $status -eq 0 ]]
  bundled s
  [[ $(<"$B/final_ckpts/s/ckpts/last") == last ]]
}

@test "a line without a name is refused in one line, without a word of bash's own (T12)" {
  printf 'a\tx\n\ty\n' >"$Q"
  queue
  [[ $status -eq 78 && $stderr != *subscript* ]]
}

@test "the code goes away behind the look of the run_one that waits: refused, and no cell has failed (S81)" {
  printf 'a\tbash trainer.sh ok; for n in {1..200}; do compgen -G "%s/records/.b.json.*" >/dev/null && break; read -r -t 0.05 <> <(:); done; mv %s %s.away\n' "$B" "$CODE_DIR" "$CODE_DIR" >>"$Q"
  cell b ok
  cell c ok
  queue
  [[ $status -eq 69 && $stderr == *"refused: cd $CODE_DIR; the folder is not there"* && $output == *'failed 0 + pending 2;'* ]]
  ! left_of_b
  mv "$CODE_DIR.away" "$CODE_DIR"
  queue
  [[ $status -eq 0 ]]
  bundled b
  bundled c
}

@test "job control handed on by SHELLOPTS: the cell is waited for to its end (S47, T2)" {
  cell a 'slow 3 0.1'
  cell b 'slow 3 0.1'
  run --separate-stderr bash -c 'set -m; export SHELLOPTS; exec bash "$@"' - "$BOX/run_queue.sh" --queue "$Q"
  [[ $status -eq 0 && $stderr != *'left process'* ]]
  bundled a
  bundled b
}

@test "the run_one that waits hangs at a dead mount: a queue that is told to stop ends with its cell all the same (case 42, T17)" {
  mkdir "$HOME/bin"
  # The first run_one that asks is the one of cell a; the next one hangs.
  printf '#!/bin/bash\nif [[ $1 == -f ]]; then\n  [[ -e %s ]] || echo $PPID >%s\n  [[ $(<%s) == $PPID ]] || { echo $$ >%s && exec sleep 60; }\nfi\nexec %s "$@"\n' \
    "$HOME/first" "$HOME/first" "$HOME/first" "$HOME/hung" "$(type -P stat)" >"$HOME/bin/stat" && chmod +x "$HOME/bin/stat"
  cell a saves
  cell b ok
  PATH=$HOME/bin:$PATH bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/said" 2>&1 3>&- &
  local queue=$! rc=0
  wait_for 30 test -s "$HOME/hung"
  wait_for 30 test -e "$D/cells/a/ready"
  kill -TERM "$queue"
  over() { ! kill -0 "$queue" 2>/dev/null; }
  wait_for 30 over || rc=1
  kill "$(<"$HOME/hung")"
  ((rc == 0))
  wait "$queue" || rc=$?
  [[ $rc -eq 143 && $(<"$HOME/said") == *'1 interrupted'* ]]
}

@test "room that a dead run_one kept goes, also where nobody collects the dead (S47, S48)" {
  cell a ok
  # A child that has ended under a parent that never asks: a zombie.
  # It waits for that parent to have become another program: bash would collect it.
  # shellcheck disable=SC2016 # for the shells that it is handed to
  bash -c 'bash -c "until read -r name </proc/\$PPID/comm && [[ \$name == sleep ]]; do read -r -t 0.02 <> <(:); done" & echo $! >"$1"; exec sleep 60' - "$HOME/zombie" 3>&- &
  local parent=$! dead
  wait_for 30 test -s "$HOME/zombie"
  dead=$(<"$HOME/zombie")
  is_zombie() { grep -q '^State:.Z' "/proc/$dead/status"; }
  wait_for 30 is_zombie
  mkdir -p "$D/state" "$B/records"
  echo 0 >"$D/state/.a.json.$dead.tmp"
  echo 0 >"$B/records/.a.json.$dead.tmp"
  queue
  kill "$parent"
  [[ $status -eq 0 ]]
  bundled a
  [[ ! -e $D/state/.a.json.$dead.tmp && ! -e $B/records/.a.json.$dead.tmp ]]
}

@test "a signal in the very moment in which run_one ends: the queue ends too, and does not wait for who waits for it (case 42, T17)" {
  local n rc pid
  cell a ok
  cell b ok
  mkdir "$HOME/box" && cp "$BOX"/* "$HOME/box/"
  # Told to go, it waits for the next one to wait, tells the queue to stop, and is gone. bash loses such an end now and then.
  cat >"$HOME/box/run_one.sh" <<'STUB'
#!/usr/bin/env bash
while read -r line; do
  case $line in
    '=b') : >"$HOME/waits" ;;
    'go '*)
      until [[ -e $HOME/waits ]]; do read -r -t 0.02 <> <(:); done
      kill -TERM "$PPID"
      exit 1
      ;;
  esac
done
exit 79
STUB
  over() { ! kill -0 "$pid" 2>/dev/null; }
  for n in 1 2 3 4 5 6 7 8; do
    rm -f "$HOME/waits"
    bash "$HOME/box/run_queue.sh" --queue "$Q" >"$HOME/said" 2>&1 3>&- &
    pid=$! rc=0
    wait_for 30 over
    wait "$pid" || rc=$?
    [[ $rc -eq 143 && $(<"$HOME/said") == *'planned 2 = started 1 + skipped 0 + failed 0 + pending 1;'* ]]
  done
}

@test "killed, and never ended well since: nothing of the killed one stays in the bundle (S47, S48)" {
  printf 'a\t((CELL_RESUME == 0)) || exit 3; : >"$CELL_DIR/ready"; while :; do read -r -t 0.1 <> <(:) || :; done\n' >"$Q"
  bash "$BOX/run_one.sh" --queue "$Q" a >/dev/null 2>&1 3>&- &
  local one=$!
  wait_for 30 test -e "$D/cells/a/ready"
  kill -KILL "$one"
  wait "$one" || :
  compgen -G "$B/.syncing/a.*"
  one a
  [[ $status -eq 3 ]]
  not compgen -G "$B/.syncing/a.*"
}
