# shellcheck disable=SC2016,SC2030,SC2031,SC2153,SC2154 # words for other shells; tests are subshells; bats sets status, output and stderr
load helper
load formal
load smoke

setup() { formal_setup; }
teardown() {
  umount "$BATS_TEST_TMPDIR/small" 2>/dev/null || :
  [[ ! -s $DATA_DIR/attempt ]] || kill -KILL "$(<"$DATA_DIR/attempt")" 2>/dev/null || :
  formal_teardown
  # A trial's sleepers have our folder in their environment.
  local file
  # shellcheck disable=SC2013 # paths of /proc, one word each
  for file in $(grep -lsF "$BATS_TEST_TMPDIR/" /proc/[0-9]*/environ); do
    file=${file#/proc/} && file=${file%/environ}
    if [[ $(tr '\0' ' ' <"/proc/$file/cmdline" 2>/dev/null) == 'sleep 3'?* ]]; then kill -KILL "$file" 2>/dev/null || :; fi
  done
}

small() { # <mount's options> : a tiny disk
  mkdir -p "$BATS_TEST_TMPDIR/small"
  mount -t tmpfs -o "$1" tmpfs "$BATS_TEST_TMPDIR/small" 2>/dev/null || missing_tool 'mount (root)'
}

# A killed smoke's trial does not run on, and its scratch goes with the next one.
@test "smoke: what a killed one leaves behind ends, and its folder goes" {
  : >"$HOLD"
  bash "$BOX/smoke.sh" >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 trainer_runs
  kill -KILL "$pid"
  wait_for 30 no_trainer
  [[ -n $(ls -A "$SCRATCH/gpu-runbook") ]]
  # A folder that is not ours, one of a smoke that lives, one of another machine, one without a mark that holds something: they
  # stay. One that was made and not marked, one half removed, and the copy of a checkpoint that was being timed: they go.
  local of=$SCRATCH/gpu-runbook/smoke
  mkdir "$of.mine" "$of.$$.live" "$of.1.far" "$of.$pid.full" "$of.$pid.empty" "$of.$pid.torn" "$of.gone.2.x" "$of.$$.begins"
  : >"$of.$pid.full/x"
  : >"$of.$pid.torn/.smoke-of"
  : >"$of.gone.2.x/x"
  : >"$D/.smoke.$pid.tmp"
  : >"$D/.smoke.json.$pid.tmp"
  : >"$D/.drill.json.$pid.tmp"
  printf '%s %s %s\n' "$$" "$(sed 's/.*) //' "/proc/$$/stat" | cut -d ' ' -f 20)" "$(</proc/sys/kernel/hostname)" >"$of.$$.live/.smoke-of"
  echo '1 1 elsewhere' >"$of.1.far/.smoke-of"
  rm "$HOLD"
  smoke
  [[ $status -eq 0 && $stderr == *'of a smoke that was killed'* ]] || fail_with leftovers
  # shellcheck disable=SC2012 # names of our own
  [[ $(ls -A "$SCRATCH/gpu-runbook" | LC_ALL=C sort) == "$(printf '%s\n' smoke.1.far "smoke.$$.begins" "smoke.$$.live" "smoke.$pid.full" smoke.mine | LC_ALL=C sort)" ]] || fail_with 'folders'
  [[ ! -e $D/.smoke.$pid.tmp && ! -e $D/.smoke.json.$pid.tmp && ! -e $D/.drill.json.$pid.tmp ]]
}

# Issue 5 item 3: the drill's attempts do not outlive it either, the first and the second one.
@test "smoke --resume: killed in either attempt it leaves nothing running" {
  local n
  for n in 1 2; do
    rm -f "$DATA_DIR/attempt"
    export HANG=$n
    command_is "$(trainer "$FROM" 'echo "step $n"' 'if [ "$CELL_ATTEMPT" = "$HANG" ]; then echo $$ >"$DATA_DIR/attempt"; while :; do sleep 0.1; done; fi; echo "$n" >"$CELL_DIR/.t"' 4000)" best.bin 300
    bash "$BOX/smoke.sh" --resume >/dev/null 2>&1 3>&- &
    pid=$!
    wait_for 30 test -s "$DATA_DIR/attempt"
    kill -KILL "$pid"
    gone() { ! kill -0 "$(<"$DATA_DIR/attempt")" 2>/dev/null; }
    wait_for 30 gone
  done
}

# S55 F41: a dropped line ends a smoke as Ctrl-C does.
@test "smoke: a hangup leaves neither processes nor scratch" {
  : >"$HOLD"
  # Under nohup the whole test run ignores it, and a shell cannot take that back.
  env --default-signal=HUP bash "$BOX/smoke.sh" >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 trainer_runs
  kill -HUP "$pid"
  rc=0
  wait "$pid" || rc=$?
  [[ $rc -eq 129 && -z $(ls -A "$SCRATCH/gpu-runbook") ]]
  wait_for 30 no_trainer
}

# S55: a process that left the trial's group does not live on, in a smoke and in the drill.
@test "smoke: what leaves the trial's group is ended too" {
  need_tool setsid
  command_is 'setsid sleep 3153 >/dev/null 2>&1 & echo 1 >"$CELL_DIR/best.bin"; sleep 0.3' best.bin
  smoke
  [[ $status -eq 0 && $stderr == *'1 process(es) of the trial outlived it and were ended'* ]] || fail_with outlived
  [[ -z $(pgrep -f 'sleep 3153' || :) ]]
  # A trainer that goes on in the background behind the kill has resumed nothing.
  command_is "$(trainer "$ANEW" 'echo "step $n" | tee -a "$DATA_DIR/ran"')" best.bin
  sed -i "s/^readonly SMOKE_COMMAND='/&setsid bash -c \"sleep 3154\" \& /" "$BOX/smoke.sh"
  smoke --resume
  failed_because 'began at step 1 again'
  [[ -z $(pgrep -f 'sleep 3154' || :) ]]
}

# S33 case 85: no room in scratch, none for the record; and a full disk lifts no limit.
@test "smoke: a full disk is said, and passes nothing" {
  smoked
  small size=16k,nr_inodes=4
  SCRATCH=$BATS_TEST_TMPDIR/small smoke
  refused 73 'gpu-runbook' 'SCRATCH'
  umount "$BATS_TEST_TMPDIR/small"
  small size=256k
  command_is 'head -c 1000000 /dev/zero >"$CELL_DIR/best.bin"' best.bin
  SCRATCH=$BATS_TEST_TMPDIR/small smoke
  failed_because 'status 1'
  command_is 'head -c 1000000 /dev/zero >"$CELL_DIR/fill"; while :; do echo line; sleep 0.1; done' best.bin 1
  SCRATCH=$BATS_TEST_TMPDIR/small smoke
  failed_because 'not done in 1 s'
  # The data tier: what stood there stands, and nothing is claimed.
  mkdir -p "$BATS_TEST_TMPDIR/small/r"
  cp "$D/smoke.json" "$BATS_TEST_TMPDIR/small/r/"
  head -c 1000000 /dev/zero >"$BATS_TEST_TMPDIR/small/fill" 2>/dev/null || :
  command_is 'echo 1 >"$CELL_DIR/best.bin"' best.bin
  DATA_DIR=$BATS_TEST_TMPDIR/small smoke
  refused 74 'smoke.json' 'cannot be written'
  [[ $output != *passed* ]] && cmp "$D/smoke.json" "$BATS_TEST_TMPDIR/small/r/smoke.json"
}

# Without git, without the interpreter, without a command of the trial: each has its own reason.
@test "smoke: what is missing on the box is named" {
  command_is 'trainer-that-is-not-there' best.bin
  smoke
  failed_because 'status 127: a command of it cannot be run, or is not on PATH'
  PY=$BATS_TEST_TMPDIR/no-python smoke
  refused 69 'the interpreter is not there'
  PY=$BATS_TEST_TMPDIR/no-python smoke --waive 'ada=the env comes later'
  [[ $status -eq 0 && $(member "$D/smoke.json" result) == waived ]]
  command_is 'echo 1 >"$CELL_DIR/best.bin"' best.bin
  box_path_only
  rm "$PATH/git"
  smoke
  [[ $status -eq 0 && $(member "$D/smoke.json" commit) == none && $stderr == *'speaks of no commit: there is no git on PATH'* ]] || fail_with 'no git'
}

# X1: what a trial writes among results is found, and is no pass.
@test "smoke: a trial that writes among results has not passed" {
  mkdir -p "$B"
  for place in "$D/cells/s2" "$B/final_ckpts/s2"; do
    command_is "mkdir -p $place; echo 1 >$place/best.bin; echo 1 >\"\$CELL_DIR/best.bin\"" best.bin
    smoke
    failed_because "it wrote among results, outside of CELL_DIR: $place/best.bin"
    rm -r "$place"
  done
  # Beside a run it may have been the run.
  printf '{\n}\n' >"$D/run.json"
  smoke
  [[ $status -eq 0 && $stderr == *'by the run or by the trial'* ]] || fail_with 'beside a run'
}
