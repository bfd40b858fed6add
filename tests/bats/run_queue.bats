#!/usr/bin/env bats
# run_queue.sh: all cells that are not done, by record, with a sum that is always true.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

@test "all cells run, twice leaves an equal tree (S48, T11, case 37, case 38)" {
  printf '# a comment\n\n' >"$Q"
  cell a ok
  cell b eats
  cell c ok
  printf 'd\tbash trainer.sh ok' >>"$Q"
  queue
  [[ $status -eq 0 ]]
  sum_is 4 4 0 0 0
  for c in a b c d; do bundled $c; done
  before=$(cd "$BATS_TEST_TMPDIR" && find data durable -type f ! -name events.tsv -exec sha256sum {} + | sort)
  queue
  [[ $status -eq 0 ]]
  sum_is 4 0 4 0 0
  [[ $before == "$(cd "$BATS_TEST_TMPDIR" && find data durable -type f ! -name events.tsv -exec sha256sum {} + | sort)" ]]
}

@test "CRLF, BOM and a trailing blank make no other cell; a queue without a cell is 78 (T12, T14, T15, case 39)" {
  printf '\xef\xbb\xbfa\tbash trainer.sh ok\r\nb\tbash trainer.sh ok\r\n' >"$Q"
  queue
  [[ $status -eq 0 ]]
  sum_is 2 2 0 0 0
  [[ $(ls "$D/cells" | tr '\n' ' ') == 'a b ' ]]
  printf '# nothing\n\n' >"$Q"
  RUN=empty queue
  refused 78 'it holds no cell'
  : >"$Q"
  RUN=empty queue
  refused 78 'it holds no cell'
  printf 'a\tx\nA\ty\n' >"$Q"
  RUN=empty queue
  refused 78 'stands in line 1 too'
  printf 'a\tx\033[31m\n' >"$Q"
  RUN=empty queue
  refused 78 'control character'
  [[ ! -e $DATA_DIR/empty/cells ]]
}

@test "resume runs again exactly what is not done, and says why (case 40, T13)" {
  cell ok ok
  cell fail 'once "ValueError: x"'
  cell kill 'once "" 1'
  cell cut ok
  cell empty ok
  cell log ok
  queue
  [[ $status -eq 1 ]]
  sum_is 6 4 0 2 0
  for c in cut empty log; do rm "$B/records/$c.json"; done
  head -c 90 "$D/state/cut.json" >"$HOME/x" && cp "$HOME/x" "$D/state/cut.json"
  : >"$D/state/empty.json"
  rm -r "$D/state/log.json" "$D/claims/log"
  queue
  [[ $status -eq 0 ]]
  sum_is 6 5 1 0 0
  [[ $(starts ok) -eq 1 && $(starts fail) -eq 2 && $(starts cut) -eq 2 && $(starts empty) -eq 2 ]]
  [[ $stderr == *'cell fail: failed before (bug)'* && $stderr == *'cell cut: unknown ('*'): to resume'* ]]
}

@test "only preempted and transient are retried in the call, by the identical command (S81, S103, S104, S105, S109)" {
  cell bug fail
  cell blip 'once "wandb.errors.CommError: run initialization has timed out after 90.0 sec"'
  cell gone 'once "" 143'
  cell oom 'says "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB"'
  cell nan 'says "ValueError: loss is nan"'
  queue
  [[ $status -eq 1 ]]
  sum_is 5 2 0 3 0
  is blip 'done' && is gone 'done' && is bug failed bug && is oom failed oom_gpu && is nan failed non_finite
  [[ $(starts bug) -eq 1 && $(starts oom) -eq 1 && $(starts nan) -eq 1 && $(starts blip) -eq 2 ]]
  [[ $(grep -h 'command ' "$D"/logs/blip/*.log | sed 's/.* command \([0-9a-f]*\).*/\1/' | sort -u | wc -l) -eq 1 ]]
  queue --skip-failed
  [[ $status -eq 1 && $(starts bug) -eq 1 ]]
  sum_is 5 0 5 0 0
}

@test "a full disk: scratch alone is pruned, one retry, then the queue stops and asks for room; the rest is pending (S106, S107, S108)" {
  small_disk size=900k
  export DATA_DIR=$BATS_TEST_TMPDIR/small SCRATCH=$BATS_TEST_TMPDIR/small/scratch
  D=$DATA_DIR/r
  mkdir -p "$SCRATCH/other"
  echo keep >"$SCRATCH/other/file"
  printf 'a\tbash trainer.sh ok; head -c 400000 /dev/zero >"$SCRATCH/big" || { echo "OSError: [Errno 28] No space left on device"; exit 1; }\n' >"$Q"
  cell b full 1200000
  cell c ok
  queue
  [[ $status -eq 73 ]]
  is a 'done'
  is b failed disk_full
  sum_is 3 1 0 1 1
  [[ $stderr == *'pruning scratch'* && -s $SCRATCH/other/file && $(starts b) -eq 2 && $(starts c) -eq 0 && -s $D/cells/b/best.pth ]]
}

@test "pruning frees what the retry needs (S106)" {
  small_disk size=900k
  export DATA_DIR=$BATS_TEST_TMPDIR/small SCRATCH=$BATS_TEST_TMPDIR/small/scratch
  D=$DATA_DIR/r
  printf 'a\tbash trainer.sh ok; head -c 500000 /dev/zero >"$SCRATCH/big"\n' >"$Q"
  cell b full 400000
  queue
  [[ $status -eq 0 && $(starts b) -eq 2 ]]
  sum_is 2 2 0 0 0
}

@test "a durable tier that is gone stops the queue and leaves the rest pending (case 40, T3)" {
  cell a ok
  # Not while the run_one that waits makes its folders there.
  printf 'b\tbash trainer.sh ok; for n in {1..200}; do compgen -G "%s/records/.c.json.*" >/dev/null && break; read -r -t 0.05 <> <(:); done; rm -rf %s\n' "$B" "$DURABLE_DIR" >>"$Q"
  cell c ok
  queue
  [[ $status -eq 74 ]]
  sum_is 3 2 0 0 1
  is b unsynced
  [[ $(starts c) -eq 0 ]]
  # Copied by this call it has ended well in this call, though it is not begun again.
  mkdir "$DURABLE_DIR"
  queue
  [[ $status -eq 0 && $(starts b) -eq 1 ]]
  sum_is 3 3 0 0 0
}

@test "TERM: the cell is interrupted, none further begins, 143; the same call continues (case 42, T17)" {
  cell a ok
  cell b 'slow 40 0.1'
  cell c ok
  cell d ok
  bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/out" 2>"$HOME/err" 3>&- &
  pid=$!
  wait_for 30 test -s "$D/cells/b/latest.pth"
  kill -TERM $pid
  rc=0
  wait $pid || rc=$?
  grep -q 'signal TERM: no further cell is begun' "$HOME/err"
  grep -q 'signal TERM: cell b is told' "$HOME/err"
  output=$(cat "$HOME/out") status=$rc stderr=''
  [[ $rc -eq 143 ]]
  sum_is 4 2 0 0 2
  is b preempted preempted
  nothing_alive
  sed -i 's/slow 40 0.1/slow 40 0.1/' "$Q"
  timeout 60 bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/out" 2>/dev/null 3>&-
  output=$(cat "$HOME/out")
  sum_is 4 3 1 0 0
  [[ $(starts a) -eq 1 && $(starts b) -eq 2 ]]
  grep -q 'from step [1-9]' "$D/logs/b/attempt-002.log"
}

@test "a queue killed with SIGKILL and a wiped TMPDIR: the same plan, no cell twice at once (case 43, case 48, T17)" {
  # a has begun, and ends when it is let.
  printf 'a\techo 0 >"$CELL_DIR/latest.pth"; until [[ -e $HOME/go ]]; do sleep 0.1; done; bash trainer.sh slow 1 0.1\n' >"$Q"
  cell b ok
  bash "$BOX/run_queue.sh" --queue "$Q" >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 test -s "$D/cells/a/latest.pth"
  kill -KILL $pid
  wait $pid 2>/dev/null || :
  rm -rf "${TMPDIR:?}"/*
  # Its run_one still lives, and holds the cell: the new queue leaves that one alone and does the other.
  queue
  [[ $status -eq 75 ]]
  sum_is 2 1 0 0 1
  : >"$HOME/go"
  wait_for 30 test -e "$B/records/a.json"
  queue
  [[ $status -eq 0 && ! -e $D/DOUBLED && $(starts a) -eq 1 ]]
}

@test "slots run side by side, each GPU entry pins its cell, a scheduler's assignment is not left (case 33, S52, X8)" {
  local c
  for c in a b c d; do cell $c 'env'; done
  queue --gpus 0,GPU-7f,1,1
  [[ $status -eq 0 ]]
  sum_is 4 4 0 0 0
  cat "$D"/cells/*/env | grep ^CUDA_VISIBLE_DEVICES= | sort | uniq -c | awk '{print $1 $2}' >"$HOME/seen"
  [[ $(wc -l <"$HOME/seen") -ge 1 ]]
  ! grep -vE 'CUDA_VISIBLE_DEVICES=(0|1|GPU-7f)$' "$HOME/seen"
  grep -qx CUDA_DEVICE_ORDER=PCI_BUS_ID "$D/cells/a/env"
  RUN=s CUDA_VISIBLE_DEVICES=2,3 queue --gpus 0
  refused 77 'not among those assigned'
  queue --slots 2 --gpus 0
  [[ $status -eq 64 ]]
}

@test "three slots: three at a time and never more (X8)" {
  local c
  for c in 1 2 3 4 5 6; do
    printf 'c%s\tmkdir %s/on.$CELL_INDEX; ls %s | grep -c ^on >>%s/seen; bash trainer.sh slow 2 0.2; rmdir %s/on.$CELL_INDEX\n' $c "$HOME" "$HOME" "$HOME" "$HOME" >>"$Q"
  done
  queue --slots 3
  [[ $status -eq 0 ]]
  [[ $(sort -n "$HOME/seen" | tail -n 1) -eq 3 ]]
}

@test "shards split by the source's index, and a run keeps its shard" {
  local c
  for c in a b c d e; do cell $c env; done
  RUN=one queue --shard 1/2
  [[ $status -eq 0 && $(ls "$DATA_DIR/one/cells" | tr '\n' ' ') == 'a c e ' ]]
  RUN=two queue --shard 2/2
  [[ $(ls "$DATA_DIR/two/cells" | tr '\n' ' ') == 'b d ' ]]
  grep -qx CELL_INDEX=3 "$DATA_DIR/two/cells/d/env"
  RUN=one queue --shard 2/2
  refused 77 'shard 1/2'
  queue --shard 3/2
  [[ $status -eq 64 ]]
}

@test "lines appended while it runs are run; a changed command is refused, no name leaves (S51)" {
  cell a 'slow 20 0.1'
  bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/out" 2>/dev/null 3>&- &
  pid=$!
  wait_for 30 test -s "$D/cells/a/latest.pth"
  cell b ok
  wait $pid
  output=$(cat "$HOME/out") status=0 stderr=''
  sum_is 2 2 0 0 0
  printf 'b\tbash trainer.sh ok\n' >"$Q"
  queue
  [[ $status -eq 0 ]]
  sum_is 2 0 2 0 0
  printf 'b\tbash trainer.sh ok --more\n' >"$Q"
  queue
  refused 77 'differs from'
}

@test "killed behind its claim: an older attempt's record is not taken for this one's end (T2, T17, case 43)" {
  local old
  mkdir -p "$HOME/bin"
  # Once: run_one dies at the flush of its second claim.
  printf '#!/bin/bash\nif [[ " $*" == */claims/a/002* && ! -e %q ]]; then : >%q; kill -KILL "$PPID"; fi\nexec /bin/sync "$@"\n' "$HOME/hit" "$HOME/hit" >"$HOME/bin/sync"
  chmod +x "$HOME/bin/sync"
  for old in done failed; do
    rm -f "$HOME/hit"
    export RUN=$old
    D=$DATA_DIR/$old B=$DURABLE_DIR/$old Q=$HOME/$old.tsv
    if [[ $old == done ]]; then cell a ok; else cell a 'once "ValueError: x"'; fi
    queue
    rm -rf "$B/records" "$B/final_ckpts" "$D/cells/a/best.pth"
    PATH=$HOME/bin:$PATH queue
    [[ $status -eq 0 && -e $HOME/hit && $(starts a) -eq 2 ]] || fail_with "$old: $(starts a) starts"
    bundled a
  done
}

@test "a record that cannot be written behind the claim stops the queue with 73, the rest is pending (S81, S108)" {
  cell a ok
  cell b ok
  mkdir -p "$D/state" && cp "$Q" "$D/queue.tsv" && : >"$D/state/a.json"
  fail_nth mv 0 1 'no room'
  queue
  PATH=$REAL_PATH
  [[ $status -eq 73 && $(starts a)$(starts b) == 00 && -e $D/claims/a/001 && ! -e $D/claims/a/002 ]]
  sum_is 2 0 0 0 2
  queue --only ,
  [[ $status -eq 64 ]]
}

@test "a source that is spoilt while the queue runs: refused at its end, and the sum is said all the same (S48, S51)" {
  local spoil n=0
  for spoil in ': >"$Q"' 'rm "$Q"' 'printf "a\tother\n" >"$Q"' 'printf "b" >>"$Q"'; do
    n=$((n + 1))
    printf 'a\tbash trainer.sh ok; Q=%q; %s\n' "$Q" "$spoil" >"$Q"
    RUN=s$n queue
    [[ $status -ge 69 && $stderr == *refused* ]]
    sum_is 1 1 0 0 0
  done
}

@test "a shard's source grows at its end only: moved lines would give it cells of other shards (X8)" {
  local c edit
  for c in a b c d; do cell $c ok; done
  cp "$Q" "$HOME/whole"
  queue --shard 1/2
  sum_is 2 2 0 0 0
  for edit in 1d 2d 3d '1i0\tbash trainer.sh ok'; do
    sed "$edit" "$HOME/whole" >"$Q"
    queue
    refused 77 'its lines have moved'
  done
  [[ $(ls "$D/cells" | tr '\n' ' ') == 'a c ' ]]
  cp "$HOME/whole" "$Q"
  cell e ok
  queue
  sum_is 3 1 2 0 0
  printf 'x\tbash trainer.sh ok\n' >"$Q"
  queue
  sum_is 4 1 3 0 0
}

@test "cells that another runner has put into the run are seen too (S51)" {
  cell a 'ok; until [[ -e $HOME/go ]]; do read -r -t 0.05 <> <(:) || :; done'
  bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/out" 2>/dev/null 3>&- &
  pid=$!
  wait_for 30 test -s "$D/cells/a/metrics.json"
  printf 'b\tbash trainer.sh ok\n' >"$HOME/second"
  bash "$BOX/run_queue.sh" --queue "$HOME/second" --only b >/dev/null 2>&1 3>&-
  : >"$HOME/go"
  wait $pid
  output=$(cat "$HOME/out") status=0 stderr=''
  sum_is 2 1 1 0 0
  [[ $(starts b) -eq 1 ]]
}

@test "--only and --dry-run; a dry run changes nothing (X8)" {
  cell a ok
  cell b ok
  queue --dry-run
  [[ $status -eq 0 && $output == *'2 cells planned: 2 to run'* && $output == *'a (pending)'* && ! -e $D ]]
  queue --only b
  sum_is 1 1 0 0 0
  [[ ! -e $D/cells/a && $(wc -l <"$D/queue.tsv") -eq 2 ]]
  queue --only nope
  refused 78 'no cell of the queue'
}

@test "another box's run is refused until --adopt, and then its claims are dead (S47)" {
  cell a ok
  cell b fail
  queue
  sed -i 's/^  "host": .*/  "host": "otherbox",/' "$D/run.json" "$B/run.json"
  sed -i 's/^[^ ]*/otherbox/' "$D/claims/b/001"
  queue
  refused 75 'otherbox' '--adopt'
  queue --adopt
  [[ $status -eq 1 && $(starts b) -eq 2 ]]
  sum_is 2 0 1 1 0
}

@test "a new box on the same durable tier continues: what is in the bundle is done (S48)" {
  cell a ok
  cell b ok
  queue --only a
  rm -rf "$D"
  queue
  [[ $status -eq 0 ]]
  sum_is 2 1 1 0 0
}

@test "a refusal that would hit every cell stops the queue: the rest is pending (S81)" {
  cell a ok
  cell b ok
  PROXY_HOOK=/nowhere queue
  [[ $status -eq 77 ]]
  sum_is 2 0 0 0 2
  [[ $(grep -c 'refused: PROXY_HOOK' <<<"$stderr") -eq 1 ]]
}

@test "run_one is called from beside it, and its absence is 69" {
  cell a ok
  cp "$BOX/run_queue.sh" "$HOME/"
  run --separate-stderr bash "$HOME/run_queue.sh" --queue "$Q"
  refused 69 'run_one.sh'
}

@test "PATH without python, perl, jq, flock; busybox, a comma locale and a full TMPDIR; no terminal (S48, case 27, F29)" {
  cell a ok
  cell b 'slow 2 0.1'
  box_path_only
  rm -f "$BATS_TEST_TMPDIR/box-bin/flock"
  queue --slots 2
  [[ $status -eq 0 ]]
  PATH=$REAL_PATH
  busybox_path
  small_disk size=4k
  head -c 8000 /dev/zero >"$BATS_TEST_TMPDIR/small/fill" 2>/dev/null || :
  comma_locale
  export TMPDIR=$BATS_TEST_TMPDIR/small
  RUN=bb queue --slots 2
  [[ $status -eq 0 ]]
  sum_is 2 2 0 0 0
  RUN=bb run --separate-stderr bash "$BOX/status.sh"
  [[ $output == *'done 2'* ]]
}

@test "two configurations of one name are refused with both lines, and nothing is run (T7, S53)" {
  cell baseline ok
  cell Baseline ok
  queue
  refused 78 "$Q:2" 'line 1'
  [[ ! -e $D/cells ]]
}

@test "the run_one that waits is killed, or its queue is: each cell runs once, and nobody waits on (S48, case 48, T17)" {
  # Whoever has begun a cell has a claim, or its parent has.
  waiting() {
    local file pid parent
    for file in $(grep -lsF -- --wait /proc/[0-9]*/cmdline); do
      grep -qsF "$D/queue.tsv" "$file" || continue
      pid=${file#/proc/} && pid=${pid%/cmdline}
      parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null) || continue
      cat "$D"/claims/*/* | grep -qE " ($pid|${parent:-none}) " || echo "$pid"
    done
  }
  is_waiting() { [[ -n $(waiting) ]]; }
  nobody_waits() { [[ -z $(waiting) ]]; }
  cell a 'slow 20 0.1'
  cell b ok
  cell c ok
  bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/said" 2>&1 3>&- &
  local queue=$!
  wait_for 30 test -e "$D/starts.a"
  wait_for 30 is_waiting
  # shellcheck disable=SC2046 # a number
  kill -9 $(waiting)
  wait "$queue"
  for c in a b c; do bundled $c && [[ $(starts $c) -eq 1 ]]; done
  nobody_waits
  cell d 'slow 100 0.1'
  cell e ok
  bash "$BOX/run_queue.sh" --queue "$Q" >"$HOME/said" 2>&1 3>&- &
  queue=$!
  wait_for 30 test -e "$D/starts.d"
  wait_for 30 is_waiting
  kill -9 "$queue"
  wait_for 30 nobody_waits
  [[ $(starts e) -eq 0 ]]
}

@test "cells of all slots get their own GPU and command, whether their run_one waited or not (S48)" {
  for c in a b c d e f; do printf '%s\techo "$CELL_NAME $CUDA_VISIBLE_DEVICES %s" >"$CELL_DIR/best.pth"; echo {} >"$CELL_DIR/metrics.json"\n' $c "said by $c" >>"$Q"; done
  queue --gpus 4,5
  [[ $status -eq 0 ]]
  for c in a b c d e f; do
    [[ $(<"$D/cells/$c/best.pth") == "$c "[45]" said by $c" ]]
  done
  [[ $(cat "$D"/cells/*/best.pth | cut -d ' ' -f 2 | sort -u | tr '\n' ' ') == '4 5 ' ]]
}
