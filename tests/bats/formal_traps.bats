# shellcheck disable=SC2016,SC2030,SC2031,SC2154 # words for shims; tests are subshells; bats sets status, output and stderr
# What a hand-written detached start does wrong (TRAPS T38 to T45, CASES section D), tried on formal_run.
load helper
load formal

setup() { formal_setup; }
teardown() {
  formal_teardown
  rm -rf "/tmp/gr-$EUID-trap$$"
}

private() { # <output folder of the run> : what start leaves for its detached part
  mkdir -m 700 "/tmp/gr-$EUID-trap$$"
  printf 'end\0' >"/tmp/gr-$EUID-trap$$/flags"
  printf '%s\n' "$1" nohup '' gr_trap >"/tmp/gr-$EUID-trap$$/where"
  env -0 >"/tmp/gr-$EUID-trap$$/env"
}

# T38 case 49: where no log can be kept nothing runs, neither in front nor detached.
@test "formal_run: a log folder that is missing or cannot be written ends the detached part before any work" {
  fake_siblings
  smoked
  formal_ok
  # All is there for a start that would go through, but for the folder of its log.
  cp "$D/plans/$(member "$D/formal.json" start_id).tsv" "$D/plans/trap$$.tsv"
  set_member "$D/formal.json" state starting
  set_member "$D/formal.json" start_id "trap$$"
  private "$BATS_TEST_TMPDIR/nowhere"
  run --separate-stderr setsid bash "$BOX/formal_run.sh" _enter "/tmp/gr-$EUID-trap$$" "trap$$"
  [[ $status -ne 0 && ! -e $BATS_TEST_TMPDIR/nowhere ]] && in_state starting || fail_with "it ran without a log"
  rm -rf "/tmp/gr-$EUID-trap$$"
  mkdir -p "$BATS_TEST_TMPDIR/place/formal.log"
  private "$BATS_TEST_TMPDIR/place"
  run --separate-stderr setsid bash "$BOX/formal_run.sh" _enter "/tmp/gr-$EUID-trap$$" "trap$$"
  [[ $status -ne 0 ]] && in_state starting || fail_with "it ran without a log"
  rm -rf "/tmp/gr-$EUID-trap$$"
  private "$D" # and with it, it does
  setsid bash "$BOX/formal_run.sh" _enter "/tmp/gr-$EUID-trap$$" "trap$$" 3>&-
  in_state success
  # From the front: the same start with the log's place taken, and the folder taken.
  rm -rf "$D"
  : >"$D"
  formal start
  refused 73 "$D"
}

# T39 case 64: the log of an earlier success is still there, and so is its word; the failed run is failed.
@test "formal_run: a rerun that failed is failed, whatever the log says of the run before" {
  fake_siblings
  smoked
  formal_ok
  first=$(member "$B/FORMAL_SUCCESS" start_id)
  export QUEUE_FAILS=1
  formal start
  wait_for 30 ended
  grep -q '^FORMAL_SUCCESS 20' "$D/formal.log"
  formal status
  [[ $status -eq 1 && $output == failed:* && ! -e $B/FORMAL_SUCCESS && -s $B/FORMAL_SUCCESS.$first ]] || fail_with status
  run bash "$BOX/status.sh" --json
  [[ $output == *'"state": "failed"'* ]] || fail_with "status.sh"
}

# T41 case 50: the second start of a live run is refused in each primitive, and no second process works in its folder.
@test "formal_run: a second start beside a live one is refused, by tmux, screen and setsid alike" {
  local one
  need_tool tmux screen
  for one in tmux screen nohup; do
    export DETACH=$one RUN=two.$one
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    smoked
    : >"$HOLD"
    formal start
    [[ $status -eq 0 ]]
    wait_for 30 test -s "$D/cells/s2/best.bin"
    formal start
    refused 75 running
    [[ $(ls "$D/starts") == 001 || $(ls "$D/starts") == $'001\n002' ]]
    [[ $(ls "$D/claims/s2") == 001 ]]
    rm "$HOLD"
    wait_for 30 ended
    in_state success
  done
}

# T43 F11: a pull that fails ends the start with the commit as it was, and nothing of the old commit runs.
@test "formal_run: a failed pull starts nothing" {
  smoked
  git clone -q "$CODE_DIR.origin.git" "$BATS_TEST_TMPDIR/mate"
  echo y >"$BATS_TEST_TMPDIR/mate/mate.py"
  git -C "$BATS_TEST_TMPDIR/mate" add -A && git -C "$BATS_TEST_TMPDIR/mate" commit -qm mate && git -C "$BATS_TEST_TMPDIR/mate" push -q origin main
  echo "# z" >>"$CODE_DIR/train.sh"
  git -C "$CODE_DIR" commit -qam mine
  smoked
  formal start
  refused 77 'pull --ff-only origin main' 'nothing was changed'
  [[ ! -e $D/run.json && ! -e $D/formal.json && ! -e $D/starts ]]
}

# Case 53: what other users or the system have made of the shared socket folders is nothing to us.
@test "formal_run: foreign and unusable socket folders in the environment change nothing" {
  local one
  need_tool tmux screen
  mkdir -m 777 "$BATS_TEST_TMPDIR/sockets"
  for one in tmux screen; do
    export DETACH=$one RUN=s.$one
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    smoked
    SCREENDIR=$BATS_TEST_TMPDIR/sockets TMUX_TMPDIR=/nowhere TMUX=/nowhere/s,1,0 STY=1.other formal_ok
    [[ $(member "$D/formal.json" session) == "$one" && -z $(ls "$BATS_TEST_TMPDIR/sockets") ]]
  done
}

# Case 55: all of it ended at once, as at a logout: lost with a word of it, no crash; and it goes on where it was.
@test "formal_run: a run that was ended with its whole session is lost, says so, and is continued" {
  local pid id
  smoked
  : >"$HOLD"
  formal start
  wait_for 30 test -s "$D/cells/s2/best.bin"
  pid=$(member "$D/formal.json" pid)
  local -a all=()
  # shellcheck disable=SC2013 # numbers, one word each
  for id in $(grep -lsF "$BATS_TEST_TMPDIR/" /proc/[0-9]*/environ | sed 's/[^0-9]//g'); do
    case $({ tr '\0' ' ' <"/proc/$id/cmdline"; } 2>/dev/null) in *formal_run.sh\ _run* | *run_queue* | *run_one* | *train.sh*) all+=("$id") ;; esac
  done
  # None of them sees another one's end.
  kill -STOP "${all[@]}"
  kill -KILL "${all[@]}"
  dead() { ! kill -0 "$pid" 2>/dev/null; }
  wait_for 30 dead
  formal status
  [[ $status -eq 1 && $output == 'lost: '*'no exit record: killed, or ended at logout'* ]] || fail_with status
  rm "$HOLD"
  formal_ok
  [[ -z $(grep -h epoch "$D"/logs/s2/attempt-*.log | sort | uniq -d) ]]
}

# F33 F60: a proof that does not read back true is no proof, and does not stay under its name.
@test "formal_run: a proof over a manifest that changes under it is taken back" {
  fake_siblings
  smoked
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!%s\ncase "$*" in *.FORMAL_SUCCESS*) echo >>"%s" ;; esac\nexec %s "$@"\n' "$(type -P bash)" "$B/PULL_MANIFEST.json" "$(type -P sync)" >"$BATS_TEST_TMPDIR/bin/sync"
  chmod +x "$BATS_TEST_TMPDIR/bin/sync"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
  formal start
  wait_for 30 ended
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == proof && ! -e $B/FORMAL_SUCCESS && -s $B/FORMAL_SUCCESS.$(member "$D/formal.json" start_id).failed ]]
}

# F35 T45: a machine that goes down slowly is no failed power-off.
@test "formal_run: a signal behind the power-off command means that the machine goes down" {
  sed -i 's|^readonly -a POWER_OFF_COMMAND=()|readonly -a POWER_OFF_COMMAND=(bash -c '"'"'kill -TERM $PPID'"'"')|' "$BOX/formal_run.sh"
  smoked
  formal_ok --power-off
  wait_for 30 grep -q 'the machine is going down' "$D/formal.log"
  wait_for 30 not pgrep -f "$BOX/formal_run.sh _run"
  [[ ! -e $D/FORMAL_FAILURE.json && -z $(member "$D/formal.json" why) ]]
}

# F27 F28: slots as run_queue counts them: a cell takes as many entries of --gpus as it needs.
@test "formal_run: plan counts slots by GPUs of a cell, and an entry twice is no missing GPU" {
  sed -i 's|^readonly NEED_GPUS=.*|readonly NEED_GPUS=2|' "$BOX"/*.sh
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\necho "0, NVIDIA L4, 550.54.15, 23034, 1"\necho "1, NVIDIA L4, 550.54.15, 23034, 1"\n' >"$BATS_TEST_TMPDIR/bin/nvidia-smi"
  chmod +x "$BATS_TEST_TMPDIR/bin/nvidia-smi"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
  smoked
  formal plan --gpus 0,1
  [[ $status -eq 0 && $output == *', 1 at a time'* ]] || fail_with one
  formal plan --gpus 0,1,0,1
  [[ $status -eq 0 && $output == *', 2 at a time'* && $stderr != *'GPUs here'* ]] || fail_with two
}

@test "formal_run: a cell that outlives its killed queue is seen by start and stop; status names the evidence that is there" {
  local id
  local -a all=()
  smoked
  : >"$HOLD"
  formal start
  wait_for 30 test -s "$D/cells/s2/best.bin"
  # shellcheck disable=SC2013 # numbers, one word each
  for id in $(grep -lsF "$BATS_TEST_TMPDIR/" /proc/[0-9]*/environ | sed 's/[^0-9]//g'); do
    case $({ tr '\0' ' ' <"/proc/$id/cmdline"; } 2>/dev/null) in *formal_run.sh\ _run* | *run_queue.sh*) all+=("$id") ;; esac
  done
  kill -STOP "${all[@]}"
  kill -KILL "${all[@]}"
  dead() { ! kill -0 "${all[@]}" 2>/dev/null; }
  wait_for 30 dead
  formal status
  [[ $status -eq 1 && $output == 'lost: '*"evidence: $D/formal.log" ]] || fail_with status
  formal stop
  [[ $status -eq 1 && $output == *'is still at work on this run'* ]] || fail_with stop
  formal start
  refused 75 'still at work' 'kill -TERM'
  rm "$HOLD"
  wait_for 30 grep -q '"state": "done"' "$D/state/s2.json"
  formal_ok
}

# F62 T17: what stands still (Ctrl-Z in an attached session, SIGSTOP) is said to, and is ended by stop all the same.
@test "formal_run: a run that stands still is said to, and stop ends it" {
  local id
  local -a all=()
  smoked
  : >"$HOLD"
  formal start
  wait_for 30 test -s "$D/cells/s2/best.bin"
  formal status
  [[ $status -eq 0 && $output != *'stands still'* ]] || fail_with status
  # shellcheck disable=SC2013 # numbers, one word each
  for id in $(grep -lsF "$BATS_TEST_TMPDIR/" /proc/[0-9]*/environ | sed 's/[^0-9]//g'); do
    case $({ tr '\0' ' ' <"/proc/$id/cmdline"; } 2>/dev/null) in *formal_run.sh\ _run* | *run_queue* | *run_one* | *train.sh*) all+=("$id") ;; esac
  done
  kill -STOP "${all[@]}"
  formal status
  [[ $status -eq 0 && $output == *'it stands still'*"kill -CONT $(member "$D/formal.json" pid) "* ]] || fail_with 'status, standing'
  run --separate-stderr timeout 50 bash "$BOX/formal_run.sh" stop
  [[ $status -eq 0 && $output == *'stopped: the same start continues it'* ]] || fail_with stop
  in_state stopped
  # Who began it may not collect it: a corpse is no process.
  for id in "${all[@]}"; do not grep -qs '^State:.[^ZX]' "/proc/$id/status"; done
  # It was somebody's word: there is nothing to mend.
  [[ $(member "$D/FORMAL_FAILURE.json" remedy) == "bash $BOX/formal_run.sh start continues it" ]]
}

# X8 case 45: what lies in the log's place and is no file is not opened.
@test "formal_run: a FIFO in place of its log is refused by name, and nobody waits for it" {
  smoked
  mkdir -p "$D"
  rm -f "$D/formal.log"
  mkfifo "$D/formal.log"
  run --separate-stderr timeout 60 bash "$BOX/formal_run.sh" start
  refused 65 "$D/formal.log" 'it is a FIFO' 'move it away'
}
