# shellcheck disable=SC2016,SC2030,SC2031,SC2119,SC2120,SC2154 # words for sed; tests are subshells; bats sets status, output and stderr
load helper
load formal
load smoke

setup() { formal_setup; }
teardown() { formal_teardown; }

# S54 S55 S57 X1 case 61: bound to commit and scripts, with a fresh artifact, and nothing left among results or in scratch.
@test "smoke: passes on the box and on the laptop, and leaves one record each" {
  smoke
  [[ $status -eq 0 && $output == *'smoke on the box'*passed* ]]
  [[ $(member "$D/smoke.json" where) == box && $(member "$D/smoke.json" result) == passed && $(member "$D/smoke.json" exit) == 0 ]]
  [[ $(member "$D/smoke.json" commit) == "$(git -C "$CODE_DIR" rev-parse HEAD)" ]]
  [[ $(member "$D/smoke.json" box_digest) == "$(cd "$BOX" && LC_ALL=C sha256sum -- * | sha256sum | cut -c 1-64)" ]]
  [[ $(member "$D/smoke.json" artifact_sha256) == "$(printf '1\n' | sha256sum | cut -c 1-64)" && $(member "$D/smoke.json" ckpt_bytes) == 2 ]]
  [[ $(member "$D/smoke.json" save_s) -ge 1 && -n $(member "$D/smoke.json" seconds_s) ]]
  [[ $(ls -A "$D") == smoke.json && ! -e $B && -z $(ls -A "$SCRATCH/gpu-runbook") ]]
  laptop
  [[ $status -eq 0 && $(member "$HOME/gpu-runs/local.r/smoke.json" where) == laptop ]]
  [[ $(member "$HOME/gpu-runs/local.r/smoke.json" box_digest) == "$(member "$D/smoke.json" box_digest)" ]]
  [[ -z $(ls -A "$TMPDIR") && -z $(git -C "$CODE_DIR" status --porcelain) ]]
}

# F3 S54: the code is parsed on the laptop too, before anything is rented, with git and without it.
@test "smoke: on the laptop what does not parse is found before the trial" {
  printf 'if true; then\n' >"$CODE_DIR/other.sh"
  mkdir -p "$CODE_DIR/pkg"
  printf 'def f(:\n' >"$CODE_DIR/pkg/mod.py"
  PY=$PYTHON laptop
  [[ $status -eq 0 && $stderr == *other.sh*'does not parse'* && $stderr == *pkg/mod.py*'does not parse'* && $stderr == *'others that do not: 2'* ]] || fail_with named
  printf 's1\t"$PY" -m pkg.mod --steps 1\n' >"$BOX/queue.tsv"
  rm "$HOME/gpu-runs/local.r/smoke.json"
  for git in with without; do
    [[ $git == with ]] || rm -rf "$CODE_DIR/.git"
    PY=$PYTHON laptop
    refused 77 'syntax of' pkg/mod.py 'mend it'
    [[ ! -e $HOME/gpu-runs/local.r/smoke.json && $stderr != *'smoke: in '* ]]
  done
  rm "$BOX/queue.tsv"
  command_is 'bash ./other.sh' best.bin
  laptop
  refused 77 'syntax of' other.sh
  laptop --waive 'ada=known'
  [[ $status -eq 0 ]]
  rm "$CODE_DIR/other.sh"
  printf 'main() {\n' >>"$BOX/run_one.sh"
  laptop
  refused 77 'bash -n' run_one.sh 'the whole folder box/'
}

# F3: the code directory may lie below the top of its repository.
@test "smoke: what the commands name is looked for in the code directory" {
  mkdir "$CODE_DIR/sub"
  printf 'if true; then\n' >"$CODE_DIR/sub/train.sh"
  printf 's1\tbash train.sh 1\n' >"$BOX/queue.tsv"
  CODE_DIR=$CODE_DIR/sub laptop
  refused 77 'syntax of' sub/train.sh
  laptop
  [[ $status -eq 0 && $stderr == *sub/train.sh*'does not parse'* ]]
}

@test "smoke: on the laptop CODE_DIR is the work tree that one stands in" {
  unset CODE_DIR
  cd "$BATS_TEST_TMPDIR/code/data"
  laptop
  [[ $status -eq 0 && $(member "$HOME/gpu-runs/local.r/smoke.json" commit) == "$(git rev-parse HEAD)" ]]
}

# Case 61 S57: what checks nothing does not pass.
@test "smoke: a command that leaves no fresh artifact, fails, hangs or hides a traceback has not passed" {
  command_is true best.bin
  smoke
  failed_because 'left no best.bin'
  command_is ': >"$CELL_DIR/best.bin"' best.bin
  smoke
  failed_because 'empty'
  command_is 'echo x >"$CELL_DIR/best.bin"; touch -d "+1 hour" "$CELL_DIR/best.bin"' best.bin
  smoke
  failed_because 'not written by this trial'
  command_is 'echo x >"$CELL_DIR/best.bin"; touch -d "-1 hour" "$CELL_DIR/best.bin"' best.bin
  smoke
  failed_because 'not written by this trial'
  command_is 'echo x >"$CELL_DIR/best.bin"; exit 7' best.bin
  smoke
  failed_because 'status 7'
  command_is 'echo x >"$CELL_DIR/best.bin"; printf "Traceback (most recent call last):\n  boom\n"' best.bin
  smoke
  failed_because 'traceback'
  command_is 'ln -s /etc/hostname "$CELL_DIR/best.bin"' best.bin
  smoke
  failed_because 'left no best.bin'
  command_is ' ' best.bin
  smoke
  refused 78 'empty'
}

# S55: within its limit, and nothing of it is left behind, not even what ignores TERM.
@test "smoke: a hanging command is ended with all its children" {
  command_is 'bash -c "trap : TERM; echo \$\$ >\"$SCRATCH/../../../child\"; while :; do sleep 0.1; done" & trap "" TERM; while :; do sleep 0.1; done' best.bin 1
  sed -i 's/^    sleep 10$/    sleep 1/' "$BOX/smoke.sh"
  smoke
  failed_because 'not done in 1 s'
  [[ -z $(pgrep -f "$BATS_TEST_TMPDIR.*while" || :) ]]
}

@test "smoke: a stopped smoke leaves neither processes nor scratch" {
  : >"$HOLD"
  bash "$BOX/smoke.sh" 3>&- &
  pid=$!
  wait_for 30 trainer_runs
  kill -TERM "$pid"
  rc=0
  wait "$pid" || rc=$?
  [[ $rc -eq 143 && -z $(ls -A "$SCRATCH/gpu-runbook") ]]
  wait_for 30 no_trainer
}

# S55: one that stands still, as at a terminal that it may not read, ends with its limit, and may save before.
@test "smoke: a command that stands still is ended within its limit, and hears it" {
  command_is 'trap "echo x >\"\$DATA_DIR/heard\"; exit 0" TERM; : >"$DATA_DIR/listens"; kill -STOP $$; while :; do sleep 0.1; done' best.bin 1
  # However slow the machine: nobody is told before they listen.
  sed -i 's/^    sleep 10$/    sleep 600/; s/^    watch_attempt .*/&\n    until [[ -e $DATA_DIR\/listens ]]; do sleep 0.1; done/' "$BOX/smoke.sh"
  run --separate-stderr timeout 60 bash "$BOX/smoke.sh"
  failed_because 'not done in 1 s'
  [[ -s $DATA_DIR/heard && -z $(ls -A "$SCRATCH/gpu-runbook") ]]
}

# Trackers are off; the interpreter and the cell's own folder are there (S55 F21).
@test "smoke: the command sees a cell's environment with trackers off" {
  command_is 'echo "$CELL_NAME $CELL_ATTEMPT ${CELL_RESUME:-0} $WANDB_MODE $PYTHONUNBUFFERED $PY" >"$CELL_DIR/best.bin"; cp "$CELL_DIR/best.bin" "$DATA_DIR/seen"' best.bin
  smoke
  [[ $status -eq 0 && $(<"$DATA_DIR/seen") == 'smoke 1 0 disabled 1 bash' ]]
  laptop
  [[ $status -eq 0 && $(<"$DATA_DIR/seen") == 'smoke 1 0 disabled 1 bash' ]]
}

# A smoke over uncommitted files speaks of no commit, and the formal gate knows.
@test "smoke: over uncommitted work it passes, but speaks of no commit" {
  echo '# x' >>"$CODE_DIR/train.sh"
  smoke
  [[ $status -eq 0 && $stderr == *'speaks of no commit'* && $(member "$D/smoke.json" commit) == none ]]
  git -C "$CODE_DIR" checkout -q train.sh
  formal plan
  refused 77 'of commit none'
}

# F23: the only other way past names who and why.
@test "smoke: a waiver is written with who, why and when, or refused" {
  smoke --waive 'ada=the dataset is on another box'
  [[ $status -eq 0 && $(member "$D/smoke.json" result) == waived && $(member "$D/smoke.json" who) == ada && -n $(member "$D/smoke.json" ended) ]]
  formal plan
  [[ $status -eq 0 && $output == *'WAIVED by ada'*'the dataset is on another box'* ]]
  for words in ada ada= =why; do
    smoke --waive "$words"
    refused 64 'WHO=WHY'
  done
  smoke --waive
  [[ $status -eq 64 ]]
}

# F22 F23 case 61: no record, another commit, other scripts, a failure, a bare claim, the laptop's: each shuts the gate.
@test "formal gate: only the box's own smoke of this commit and these scripts opens it" {
  formal plan
  refused 77 'there is no' smoke.json
  smoked
  cp "$D/smoke.json" "$BATS_TEST_TMPDIR/keep"
  again() { cp "$BATS_TEST_TMPDIR/keep" "$D/smoke.json" && set_member "$D/smoke.json" "$@" && formal plan; }
  again commit 0123456789012345678901234567890123456789
  refused 77 'of commit 0123456789'
  again box_digest abc
  refused 77 'other scripts'
  again where laptop
  refused 77 "of 'laptop'"
  again result failed
  refused 77 "'failed'"
  again artifact_sha256 ''
  refused 77 'without an artifact'
  again result waived
  refused 77 'without who and why'
  printf '{\n' >"$D/smoke.json"
  formal plan
  refused 77 'not a whole record'
  cp "$BATS_TEST_TMPDIR/keep" "$D/smoke.json"
  formal plan
  [[ $status -eq 0 ]]
  echo '# another line' >>"$BOX/run_one.sh"
  formal plan
  refused 77 'other scripts'
}

# F16 F18 F19: counted, shown with their size, and never all empty.
@test "formal gate: data that is missing, short, or empty shuts it" {
  smoked
  mv "$CODE_DIR/data/raw" "$BATS_TEST_TMPDIR/raw"
  git -C "$CODE_DIR" rm -rq --cached data && echo data >>"$CODE_DIR/.gitignore"
  git -C "$CODE_DIR" add -A && git -C "$CODE_DIR" commit -qm data && git -C "$CODE_DIR" push -q origin main
  smoked
  formal plan
  refused 77 'data/raw' 'not there'
  ln -s "$BATS_TEST_TMPDIR/raw" "$CODE_DIR/data" || { mkdir -p "$CODE_DIR/data" && ln -s "$BATS_TEST_TMPDIR/raw" "$CODE_DIR/data/raw"; }
  [[ -e $CODE_DIR/data/raw ]] || { rm "$CODE_DIR/data" && mkdir "$CODE_DIR/data" && ln -s "$BATS_TEST_TMPDIR/raw" "$CODE_DIR/data/raw"; }
  formal plan
  [[ $status -eq 0 && $output == *'3 files as expected'*'on disk, 0 empty'* ]]
  rm "$BATS_TEST_TMPDIR/raw/3.csv"
  formal plan
  refused 77 '2 files, 0 of them empty; the job expects 3'
  echo x >"$BATS_TEST_TMPDIR/raw/3"$'\n'".csv"
  formal plan
  [[ $status -eq 0 ]]
  for i in "$BATS_TEST_TMPDIR"/raw/*; do : >"$i"; done
  formal plan
  refused 77 '3 of them empty'
}

# S33 S34 case 85: bytes and inodes, for the cells that are left, against what is free and against the tier's cap.
@test "formal gate: no room in bytes, in inodes, or under the tier's cap is 73" {
  smoked
  set_const() { sed -i "s/^readonly $1=.*/readonly $1=$2/" "$BOX/formal_run.sh"; }
  set_const NEED_DISK_BYTES 99000000000000
  smoked
  formal plan
  refused 73 'bytes are free'
  set_const NEED_DISK_BYTES 1000
  set_const NEED_FILES 99000000000
  smoked
  formal plan
  refused 73 'inodes are free'
  set_const NEED_FILES 10
  set_const DATA_CAP_BYTES 1500
  smoked
  formal plan
  refused 73 "cap is 1500 bytes"
}
