# shellcheck disable=SC2016,SC2030,SC2031,SC2154 # tests are subshells; bats sets status, output and stderr
load helper
load formal
load sshd

setup() { formal_setup; }
teardown() {
  formal_teardown
  sshd_stop
}

# F31 F32 F45 F46 F47 F48 F50 F59 S58 S66: detached by each primitive, its log its own, the proof bound to the manifest.
@test "formal_run: start, success and proof under tmux, screen and setsid" {
  local one n=0
  need_tool tmux screen setsid
  for one in tmux screen nohup; do
    RUN=r$((++n)) D=$DATA_DIR/r$n B=$DURABLE_DIR/r$n
    export RUN DETACH=$one SAID=$'two\nlines'
    smoked
    formal_ok
    [[ $output == *"$one session gr_"* ]]
    [[ $(member "$D/formal.json" session) == "$one" ]]
    grep -q '^FORMAL_SUCCESS 20..-' "$D/formal.log"
    grep -q 'START 20..-' "$D/formal.log"
    [[ $(member "$B/FORMAL_SUCCESS" manifest_sha256) == "$(sha256sum <"$B/PULL_MANIFEST.json" | cut -c 1-64)" ]]
    [[ $(member "$B/FORMAL_SUCCESS" start_id) == "$(member "$D/formal.json" start_id)" && $(member "$B/FORMAL_SUCCESS" cells_done) == 2 ]]
    [[ $(<"$D/cells/s2/said") == "$SAID" ]] # the environment came along whole
    formal status
    [[ $status -eq 0 && $output == success:* ]]
    [[ ! -e /tmp/gr-$EUID-$(member "$D/formal.json" start_id) ]]
  done
}

# Issue 5: the gate does not cry wolf. Case 64: the old proof is moved aside, and readers compare.
@test "formal_run: a second run right after the first passes without a waiver, and the old proof is aside" {
  smoked
  formal_ok
  first=$(member "$B/FORMAL_SUCCESS" start_id)
  formal_ok
  [[ -s $B/FORMAL_SUCCESS.$first && $(member "$B/FORMAL_SUCCESS" start_id) != "$first" ]]
  cp "$B/FORMAL_SUCCESS.$first" "$B/FORMAL_SUCCESS" # the stale one in the new one's place
  formal status
  [[ $status -eq 69 && $output == 'unknown:'*'another start'* ]]
}

# F58 F59: the detached part runs in the session that start made, once, and nowhere else.
@test "formal_run: the detached part refuses a shell that no start has made" {
  smoked
  formal _enter /tmp/gr-0-nothing abcd1234
  refused 77 'no start has made this session'
  mkdir -m 700 "/tmp/gr-$EUID-x$$"
  env -0 >"/tmp/gr-$EUID-x$$/env"
  printf '%s\n' "$D" tmux "/tmp/gr-$EUID-x$$/s" gr_x >"/tmp/gr-$EUID-x$$/where"
  formal _enter "/tmp/gr-$EUID-x$$" "x$$"
  rm -rf "/tmp/gr-$EUID-x$$"
  refused 77 'not the session'
  formal _run "$BATS_TEST_TMPDIR" abcd1234
  [[ $status -ne 0 && ! -e $D/formal.json ]]
}

# F34 F40 F56 F60 F64 X3 X11: a failed run keeps the machine, says where and what to do, and packs its evidence.
@test "formal_run: a failed cell leaves a failure record and evidence, no proof, no power-off" {
  sed -i 's|^readonly -a POWER_OFF_COMMAND=()|readonly -a POWER_OFF_COMMAND=(touch "$DATA_DIR/off")|' "$BOX/formal_run.sh"
  smoked
  : >"$FAIL"
  formal start --power-off
  [[ $status -eq 0 ]]
  wait_for 30 ended
  in_state failed
  wait_for 30 test -s "$D/formal.failed.tar.gz.sha256"
  (cd "$D" && sha256sum -c formal.failed.tar.gz.sha256)
  tar -tzf "$D/formal.failed.tar.gz" | grep -q 'logs/s2/attempt-001.log'
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == queue && $(member "$D/FORMAL_FAILURE.json" exit) == 1 && -n $(member "$D/FORMAL_FAILURE.json" remedy) ]]
  [[ ! -e $B/FORMAL_SUCCESS && ! -e $DATA_DIR/off ]]
  formal status
  [[ $status -eq 1 && $output == failed:* ]]
  rm "$FAIL"
  formal_ok # the same start continues it, and the record of the failure is kept aside
  ls "$D"/FORMAL_FAILURE.json.*
}

# F33 F35 F60: off only when asked, only where the profile knows how, only behind the proof; being alive is a failure.
@test "formal_run: power-off only behind FORMAL_SUCCESS, and still alive is recorded" {
  formal start --power-off
  refused 77 'no command on this machine that stops the meter'
  sed -i 's|^readonly -a POWER_OFF_COMMAND=()|readonly -a POWER_OFF_COMMAND=(bash "$DATA_DIR/off.sh")|' "$BOX/formal_run.sh"
  printf 'echo >>"$DATA_DIR/asked"\ncp "$DURABLE_DIR/r/FORMAL_SUCCESS" "$DATA_DIR/off"\n' >"$DATA_DIR/off.sh"
  export POWER_OFF_WAIT_S=0
  smoked
  formal_ok
  [[ ! -e $DATA_DIR/off ]]
  formal_ok --power-off
  wait_for 30 test -s "$D/FORMAL_FAILURE.json"
  cmp "$DATA_DIR/off" "$B/FORMAL_SUCCESS"
  [[ $(wc -l <"$DATA_DIR/asked") -eq 1 ]] # not once before the proof
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == power-off && $(member "$B/FORMAL_SUCCESS" power_off) == true ]]
  # Nor where the proof has gone meanwhile, or is of another start.
  rm "$DATA_DIR/off" "$D/FORMAL_FAILURE.json"
  bash -c 'source "$1" && self_dir && run_places && find_run && RUN_ID=$R_run_id F_START=0badc0de && power_off' x "$BOX/formal_run.sh" 2>"$BATS_TEST_TMPDIR/said"
  grep -q 'no power-off: .* is of another start' "$BATS_TEST_TMPDIR/said"
  [[ ! -e $DATA_DIR/off && ! -e $D/FORMAL_FAILURE.json ]]
}

# F54 F55 F56 F57 case 55 case 65: told apart by record and process, never by a word in a log.
@test "formal_run: status tells alive, lost, unknown, foreign and rebooted apart" {
  smoked
  : >"$HOLD"
  formal start
  formal status
  [[ $status -eq 0 && $output == running:* ]]
  formal start
  refused 75 'running'
  cp "$D/formal.json" "$BATS_TEST_TMPDIR/keep"
  set_member "$D/formal.json" boot_id 00000000-0000-0000-0000-000000000000
  formal status
  [[ $status -eq 1 && $output == 'lost: boot id changed'* ]]
  cp "$BATS_TEST_TMPDIR/keep" "$D/formal.json"
  set_member "$D/formal.json" host elsewhere
  formal status
  [[ $status -eq 69 && $output == unknown:*elsewhere* ]]
  : >"$D/formal.json"
  formal status
  [[ $status -eq 69 && $output == unknown:* ]]
  formal stop
  refused 69 'not known'
  cp "$BATS_TEST_TMPDIR/keep" "$D/formal.json"
  pid=$(member "$D/formal.json" pid)
  kill -KILL "$pid"
  dead() { ! kill -0 "$pid" 2>/dev/null; }
  wait_for 30 dead
  echo 'FORMAL_SUCCESS of some other day' >>"$D/formal.log" # T39
  formal status
  [[ $status -eq 1 && $output == 'lost: its process is gone'* ]]
  formal stop
  [[ $status -eq 1 && $output == 'nothing to stop: lost'*'still at work'* ]]
}

# F62 case 42: whoever says it twice does not end the run's record before the cells have saved.
@test "formal_run: a second signal of the same name waits for what is being saved too" {
  fake_siblings
  # A queue that is told to stop and takes its time.
  cat >>"$BOX/run_queue.sh" <<'SH'
trap 'echo told >>"$DATA_DIR/$RUN/told"' TERM
: >"$DATA_DIR/$RUN/ready"
until [[ -e $DATA_DIR/saved ]]; do sleep 0.1; done
exit 143
SH
  smoked
  formal start
  [[ $status -eq 0 ]]
  pid=$(member "$D/formal.json" pid)
  told() { [[ $(grep -c told "$D/told" 2>/dev/null) -ge $1 ]]; }
  wait_for 30 test -e "$D/ready"
  kill -TERM "$pid"
  wait_for 30 told 1
  kill -TERM "$pid"
  wait_for 30 told 2
  formal status
  [[ $status -eq 0 && $output == running:* && ! -e $D/FORMAL_FAILURE.json ]] || fail_with 'ended before'
  : >"$DATA_DIR/saved"
  wait_for 30 ended
  in_state stopped || in_state failed
}

# F62 case 50: parent and children are shown, and only the recorded process is signalled; then the same start goes on.
@test "formal_run: stop ends what is recorded, and start continues it" {
  smoked
  : >"$HOLD"
  formal start
  wait_for 30 test -s "$D/cells/s2/best.bin"
  cp "$D/formal.json" "$BATS_TEST_TMPDIR/keep"
  sed -i 's/"start_ticks": [0-9]*/"start_ticks": 1/' "$D/formal.json" # a recycled number
  formal stop
  [[ $status -eq 1 && $output == 'nothing to stop: lost'*'still at work'* ]]
  cp "$BATS_TEST_TMPDIR/keep" "$D/formal.json"
  formal stop
  [[ $status -eq 0 && $output == *'process '*'parent '* && $output == *'stopped: the same start continues it'* ]]
  in_state stopped
  not pgrep -f "$D/cells" >/dev/null
  rm "$HOLD"
  formal_ok
  [[ -z $(grep -h epoch "$D"/logs/s2/attempt-*.log | sort | uniq -d) ]] # no step twice: it resumed
}

# S59, issue 5: the multiplexer is killed, the run is not.
@test "formal_run: a SIGKILL of the multiplexer leaves the run and its success" {
  local one server n=0
  need_tool tmux screen
  for one in tmux screen; do
    RUN=m$((++n)) D=$DATA_DIR/m$n B=$DURABLE_DIR/m$n
    export RUN DETACH=$one
    smoked
    : >"$HOLD"
    formal start
    [[ $status -eq 0 ]]
    pid=$(member "$D/formal.json" pid)
    server=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$pid/status")
    kill -KILL "$server"
    rm "$HOLD"
    wait_for 30 ended
    in_state success
    formal status
    [[ $status -eq 0 && $output == success:* ]]
  done
}

# S59 S64 S65: typed over a real ssh connection that is cut; start has returned before, and the run goes on.
@test "formal_run: a dropped ssh connection does not touch the run" {
  local client
  need_tool ssh
  sshd_start
  smoked
  : >"$HOLD"
  declare -px DATA_DIR DURABLE_DIR SCRATCH RUN CRED_FILE HF_HOME PY DETACH HOLD FAIL CODE_DIR GIT_CONFIG_GLOBAL >"$BOX_HOME/.bashrc"
  # The shell stays on the line behind start, until the connection is cut under it.
  ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null demo-pod "DETACH=tmux bash $BOX/formal_run.sh start && echo returned && sleep 60" >"$BATS_TEST_TMPDIR/said" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  client=$!
  wait_for 30 grep -q returned "$BATS_TEST_TMPDIR/said" || { cat "$BATS_TEST_TMPDIR/said" "$BATS_TEST_TMPDIR/err" && false; }
  kill -KILL "$client"
  sshd_stop
  formal status
  [[ $status -eq 0 && $output == running:* ]]
  rm "$HOLD"
  wait_for 30 ended
  in_state success
}

# Case 49 T38: a session that is accepted and runs nothing; a log that cannot be written.
@test "formal_run: no heartbeat is a failure that is said, with a record" {
  smoked
  mkdir "$BATS_TEST_TMPDIR/bin"
  # The trial passes, the real session is accepted and dropped.
  printf '#!/bin/sh\ncase "$*" in *gr_try*) exec %s "$@" ;; esac\nexit 0\n' "$(type -P tmux)" >"$BATS_TEST_TMPDIR/bin/tmux"
  chmod +x "$BATS_TEST_TMPDIR/bin/tmux"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH DETACH=tmux
  formal start
  refused 1 'no heartbeat'
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == start && ! -e $B/FORMAL_SUCCESS ]]
  rm "$D/formal.log"
  mkdir "$D/formal.log"
  formal start
  refused 65 'formal.log' 'it is a folder'
}

# Case 53: the first choice is missing or broken: the next one, and it is said which.
@test "formal_run: falls back and says so; sbatch and its like are refused with the line to submit" {
  smoked
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\necho "Directory must have mode 777" >&2\nexit 1\n' >"$BATS_TEST_TMPDIR/bin/screen"
  chmod +x "$BATS_TEST_TMPDIR/bin/screen"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
  DETACH=screen formal start
  [[ $status -eq 0 && $stderr == *'Directory must have mode 777'* && $stderr == *'falling back from screen to nohup'* ]]
  wait_for 30 ended
  DETACH=sbatch formal start
  refused 69 'DETACH=sbatch' 'run_queue.sh'
}

# Two starts at once: one run.
@test "formal_run: of two starts at the same moment one is refused" {
  local a b ra=0 rb=0
  smoked
  : >"$HOLD"
  bash "$BOX/formal_run.sh" start >"$BATS_TEST_TMPDIR/a" 2>&1 3>&- &
  a=$!
  bash "$BOX/formal_run.sh" start >"$BATS_TEST_TMPDIR/b" 2>&1 3>&- &
  b=$!
  wait "$a" || ra=$?
  wait "$b" || rb=$?
  [[ $ra/$rb == 0/75 || $ra/$rb == 75/0 ]] || { cat "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b" && false; }
  [[ $(pgrep -fc "formal_run.sh _run .*$(member "$D/formal.json" start_id)") -eq 1 ]]
}

# F33 F44 F61: what aggregate leaves must say that every cell of the roster is done, and be what it says.
@test "formal_run: no proof over a manifest that lacks a cell or was changed" {
  fake_siblings
  smoked
  export CELLS_DONE_SAID=1
  formal start
  wait_for 30 ended
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == proof && ! -e $B/FORMAL_SUCCESS ]]
  unset CELLS_DONE_SAID
  formal_ok
  echo >>"$B/PULL_MANIFEST.json"
  formal status
  [[ $status -eq 69 && $output == *'another PULL_MANIFEST.json'* ]]
}

# F8: the code is at the end what it was at the start.
@test "formal_run: an edit under the running cells ends without a proof" {
  smoked
  : >"$HOLD"
  formal start
  echo '# edited' >>"$CODE_DIR/train.sh"
  rm "$HOLD"
  wait_for 30 ended
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == code && ! -e $B/FORMAL_SUCCESS ]]
}

# F22 F24 F25 F26 F27 F28: the plan, from more than one number; it starts nothing.
@test "formal_run: plan says cells, outputs, room, data and resources, and starts nothing" {
  smoked
  formal plan --slots 2
  [[ $status -eq 0 ]]
  for word in 'to do 2' "$D/cells" "$B/final_ckpts" 'data/raw: 3 files' 'cpu       ' 'nproc' 'affinity' 'cgroup' 'ram       ' 'free for us' '2 at a time: 200 MB' 'gpu       none needed' 'threads   ' 'inodes' 'loader worker' 'of which done 0'; do
    [[ $output == *"$word"* ]] || fail_with "no $word"
  done
  # F13 F14
  [[ $output == *"at $(git -C "$CODE_DIR" rev-parse HEAD), branch main"*"commit    $(git -C "$CODE_DIR" log -1 --format='%h %ci start')"* ]] || fail_with commit
  [[ ! -e $D/formal.json && ! -e $D/run.json ]]
}

@test "formal_run: bad words, a faked root, a missing sibling" {
  formal start --frobnicate
  [[ $status -eq 64 ]]
  formal
  [[ $status -eq 64 ]]
  FAKE_ROOT=/x formal plan
  refused 78 FAKE_ROOT
  rm "$BOX/aggregate_to_fs.sh"
  formal start
  refused 69 aggregate_to_fs.sh
}

# DESIGN 1.5: bash, coreutils and git are enough; so is busybox.
@test "formal_run: runs to its proof on what a box must have, and on busybox" {
  box_path_only
  DETACH=tmux
  smoked
  formal_ok
  RUN=r2 D=$DATA_DIR/r2 B=$DURABLE_DIR/r2
  export RUN
  busybox_path
  smoked
  formal_ok
}

# Case 56: no terminal, no standard input, any TERM; and no escape code in the log.
@test "formal_run: a bare environment, a closed input and an odd TERM change nothing" {
  need_tool tmux
  DETACH=tmux
  smoked
  TERM=xterm-ghostty formal start <&-
  [[ $status -eq 0 ]]
  wait_for 30 ended
  in_state success
  not grep -q $'\x1b' "$D/formal.log"
  run --separate-stderr env -i HOME="$HOME" PATH="$PATH" RUN=r DATA_DIR="$DATA_DIR" DURABLE_DIR="$DURABLE_DIR" SCRATCH="$SCRATCH" CODE_DIR="$CODE_DIR" \
    PY=bash CRED_FILE='' HF_HOME='' DETACH=screen GIT_CONFIG_GLOBAL="$GIT_CONFIG_GLOBAL" setsid bash "$BOX/formal_run.sh" start
  [[ $status -eq 0 ]] || fail_with bare
  wait_for 30 ended
  in_state success
}

# Case 49, F54: the session's server is stopped: status and stop answer all the same, by the process itself.
@test "formal_run: a session that does not answer holds up neither status nor stop" {
  local pid
  need_tool tmux timeout
  export DETACH=tmux
  sed -i 's/within 15 /within 2 /' "$BOX/formal_run.sh"
  smoked
  : >"$HOLD"
  formal start
  [[ $status -eq 0 ]] || fail_with start
  pid=$(member "$D/formal.json" pid)
  server=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$pid/status")
  kill -STOP "$server"
  formal status
  [[ $status -eq 0 && $output == "running: "*"tmux session gr_$(member "$D/formal.json" start_id);"* ]] || fail_with status
  formal stop
  kill -CONT "$server"
  [[ $status -eq 0 && $output == *'stopped: the same start continues it'* ]] || fail_with stop
}
