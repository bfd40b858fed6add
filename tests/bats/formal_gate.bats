# shellcheck disable=SC2016,SC2030,SC2031,SC2154 # words for shims; tests are subshells; bats sets status, output and stderr
load helper
load formal

setup() { formal_setup; }
teardown() { formal_teardown; }

pushed() { # <words of the commit>
  git -C "$CODE_DIR" add -A && git -C "$CODE_DIR" commit -qm "$*" && git -C "$CODE_DIR" push -q origin main
}
shim() { # <tool> <script>
  mkdir -p "$BATS_TEST_TMPDIR/bin"
  printf '#!%s\n%s\n' "$(type -P bash)" "$2" >"$BATS_TEST_TMPDIR/bin/$1"
  chmod +x "$BATS_TEST_TMPDIR/bin/$1"
  PATH=$BATS_TEST_TMPDIR/bin:${PATH//"$BATS_TEST_TMPDIR/bin:"/}
  hash -r
}

# F3: our scripts and what the queue names must parse, before smoke, data and room are asked; the rest is only named.
@test "formal gate: a script that does not parse is found before anything runs" {
  echo 'if true; then' >"$CODE_DIR/other.sh"
  printf '#!/usr/bin/env zsh\nfor x (1 2) { echo $x }\n' >"$CODE_DIR/zsh.sh"
  printf 'def f(:\n' >"$CODE_DIR/example.py"
  printf '# -*- coding: latin-1 -*-\nprint("\xe4")\n' >"$CODE_DIR/latin.py"
  pushed others
  PY=$PYTHON smoked
  PY=$PYTHON formal plan
  [[ $status -eq 0 && $stderr == *other.sh*'does not parse'* && $stderr == *example.py*'does not parse'* ]] || fail_with "others"
  [[ $stderr != *zsh.sh* && $stderr != *latin.py* && $output == *'others that do not: 2'* ]] || fail_with "a stranger's shell"
  [[ -z $(git -C "$CODE_DIR" status --porcelain --ignored) ]]
  printf 's1\tpython -u ./example.py --steps 1\n' >"$BOX/queue.tsv"
  PY=$PYTHON formal plan
  refused 77 'syntax of' example.py
  printf 's1\t"$PY" -m example --steps 1\n' >"$BOX/queue.tsv"
  PY=$PYTHON formal start
  refused 77 'syntax of' example.py
  [[ ! -e $D/run.json ]]
  printf 's1\tbash other.sh\n' >"$BOX/queue.tsv"
  formal plan
  refused 77 'syntax of' other.sh
  printf 'main() {\n' >>"$BOX/run_one.sh"
  formal plan
  refused 77 'bash -n' run_one.sh
}

# F4 F5 F6 F15 F24 F26: what will be made is written down before it runs, counted, and the proof is held to it.
@test "formal_run: the plan is written before the run, with commit, count and output, and the proof is held to it" {
  local id commit
  smoked
  : >"$HOLD"
  formal start
  [[ $status -eq 0 ]] || fail_with start
  id=$(member "$D/formal.json" start_id) commit=$(git -C "$CODE_DIR" rev-parse HEAD)
  # F15: the exact commit, in the run's record, in the plan, on the screen, in the log and among the events.
  [[ $(member "$D/run.json" commit) == "$commit" && $output == *"at commit $commit"* ]]
  grep -q "commit $commit" "$D/formal.log"
  grep -q "running.*commit $commit" "$D/events.tsv"
  [[ $(head -n 1 "$D/plans/$id.tsv") == "# run $(member "$D/run.json" run_id) start $id commit $commit cells 2 done 0 to do 2" ]]
  [[ $(sed -n 2p "$D/plans/$id.tsv") == '# smoke passed at '* && $(sed 1,2d "$D/plans/$id.tsv") == "s2	to do	$B/final_ckpts/s2	best.bin"$'\n'"s3	to do	$B/final_ckpts/s3	best.bin" ]]
  grep -q "plan.*2 cells, 0 done, 2 to do, sha256 $(sha256sum <"$D/plans/$id.tsv" | cut -c 1-64)" "$D/events.tsv"
  [[ $output == *'2 cells planned: 2 to run'* ]] # the dry run's own count
  # A cell of the plan that the roster has lost: no proof.
  echo $'s4\tto do\tx\tbest.bin' >>"$D/plans/$id.tsv"
  rm "$HOLD"
  wait_for 30 ended
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == proof && ! -e $B/FORMAL_SUCCESS ]]
  grep -q 'cell s4 of the plan' "$D/formal.log"
  formal_ok
  [[ $(grep -c $'\tdone\t' "$D/plans/$(member "$D/formal.json" start_id).tsv") -eq 2 ]]
}

# F4 F22: plan runs the queue dry as well, and a dry run that fails shuts the gate.
@test "formal gate: a queue whose dry run fails is not started" {
  fake_siblings
  smoked
  printf 'echo "no such column" >&2\nexit 78\n' >"$BOX/run_queue.sh"
  smoked
  formal plan
  refused 77 'run_queue.sh --dry-run' 'no such column'
  formal start
  refused 77 'run_queue.sh --dry-run' 'no such column'
  [[ ! -e $D/formal.json ]]
}

# X2: formal work is asked for by name, says which job and where to, and what began otherwise never becomes evidence.
@test "formal_run: nothing is formal unless start is typed, which names job and output" {
  formal
  [[ $status -eq 64 && ! -e $D ]]
  bash "$BOX/run_queue.sh" >/dev/null 2>&1
  [[ $(member "$D/run.json" formal) == false ]]
  smoked
  for verb in plan start; do
    formal "$verb"
    refused 77 'not begun by formal_run' 'RUN=' || fail "$verb"
  done
  RUN=r2 D=$DATA_DIR/r2 B=$DURABLE_DIR/r2
  export RUN
  smoked
  formal_ok
  [[ $output == *", job job at commit "*"output: $D, results: $B"* ]] || fail_with "no job, no output"
  [[ $stderr == *"asked for: job job, 2 cells"*"output in $D, results in $B"* ]]
  [[ $(member "$D/run.json" formal) == true ]]
}

# X11: a marker that says that nothing of this start is at work any more; never before, and never an older start's.
@test "formal_run: READY_TO_STOP comes last, names its start and its outcome, and goes aside" {
  smoked
  : >"$HOLD"
  : >"$FAIL"
  formal start
  [[ $status -eq 0 && ! -e $D/READY_TO_STOP ]]
  rm "$HOLD"
  wait_for 30 test -s "$D/READY_TO_STOP"
  first=$(member "$D/formal.json" start_id)
  [[ $(member "$D/READY_TO_STOP" outcome) == failed && $(member "$D/READY_TO_STOP" start_id) == "$first" && -s $D/formal.failed.tar.gz.sha256 ]]
  tar -tzf "$D/formal.failed.tar.gz" | grep -q "$first.tsv"
  rm "$FAIL"
  : >"$HOLD"
  formal start
  [[ ! -e $D/READY_TO_STOP && -s $D/READY_TO_STOP.$first ]]
  rm "$HOLD"
  wait_for 30 test -s "$D/READY_TO_STOP"
  [[ $(member "$D/READY_TO_STOP" outcome) == success && $(member "$D/READY_TO_STOP" start_id) == "$(member "$B/FORMAL_SUCCESS" start_id)" ]]
}

# X4: a trial that failed leaves a line, and the same one at the same commit is not paid for twice unawares.
@test "smoke: a failed pilot is written down, and the next one is told" {
  : >"$FAIL"
  smoke
  [[ $status -eq 1 && $stderr != *'failed at this commit before'* ]]
  [[ $(grep -vc '^#' "$D/NEGATIVE_RESULTS.tsv") -eq 1 ]]
  grep -q $'\tbox\t'"$(git -C "$CODE_DIR" rev-parse HEAD)"$'\t3\t.*status 3\tbash train.sh' "$D/NEGATIVE_RESULTS.tsv"
  rm "$FAIL"
  smoke
  [[ $status -eq 0 && $stderr == *'failed at this commit before'*'status 3'* ]]
  [[ $(grep -vc '^#' "$D/NEGATIVE_RESULTS.tsv") -eq 1 ]] # what passed is no negative result, and nothing is taken out
  echo '# new' >>"$CODE_DIR/train.sh"
  pushed new
  smoke
  [[ $status -eq 0 && $stderr != *'failed at this commit before'* ]]
}

# Case 49: a launch by setsid that dies at once is noticed at once, not after a minute of silence.
@test "formal_run: a detached part that is dead at birth under setsid is seen to be gone" {
  smoked
  # The trial session passes; the real one ends without having run anything.
  shim setsid "for w; do [[ \$w != _enter ]] || exit 0; done; exec $(type -P setsid) \"\$@\""
  formal start
  refused 1 'no heartbeat: the session is gone'
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == start && ! -e $B/FORMAL_SUCCESS ]]
}

# T41 case 64: a record that is gone, empty or torn does not let a second run in beside the first.
@test "formal_run: start sees a run at work whose record is unreadable, and goes on when it has ended" {
  sed -i 's/((n++ < 50))/((n++ < 2))/' "$BOX/formal_run.sh"
  smoked
  : >"$HOLD"
  formal start
  [[ $status -eq 0 ]]
  cp "$D/formal.json" "$BATS_TEST_TMPDIR/keep"
  pid=$(member "$D/formal.json" pid)
  for kind in empty torn gone stopped; do
    case $kind in
      empty) : >"$D/formal.json" ;;
      torn) head -n 5 "$BATS_TEST_TMPDIR/keep" >"$D/formal.json" ;;
      gone) rm "$D/formal.json" ;;
      stopped) cp "$BATS_TEST_TMPDIR/keep" "$D/formal.json" && set_member "$D/formal.json" state stopped ;;
    esac
    formal start
    refused 75 "still at work (process $pid)" || fail "$kind"
  done
  cp "$BATS_TEST_TMPDIR/keep" "$D/formal.json"
  formal stop
  [[ $status -eq 0 ]]
  : >"$D/formal.json"
  rm "$HOLD"
  formal_ok
}

# F55 F56 case 64: the words of another run, of another start, or of nobody are never this one's state.
@test "formal_run: status of a record of another run, and of a proof of another run, is unknown" {
  smoked
  formal_ok
  cp "$D/formal.json" "$BATS_TEST_TMPDIR/keep"
  set_member "$D/formal.json" run_id 20200101T000000Z-00000000
  formal status
  [[ $status -eq 69 && $output == unknown:*'not a whole record of this run'* ]] || fail_with run_id
  cp "$BATS_TEST_TMPDIR/keep" "$D/formal.json"
  set_member "$D/formal.json" state finished
  formal status
  [[ $status -eq 69 && $output == unknown:*'which nobody writes'* ]] || fail_with state
  cp "$BATS_TEST_TMPDIR/keep" "$D/formal.json"
  cp "$B/FORMAL_SUCCESS" "$BATS_TEST_TMPDIR/proof"
  set_member "$B/FORMAL_SUCCESS" run_id 20200101T000000Z-00000000
  formal status
  [[ $status -eq 69 && $output == unknown:*'FORMAL_SUCCESS is not a whole record'* ]] || fail_with proof
  : >"$B/FORMAL_SUCCESS"
  formal status
  [[ $status -eq 69 && $output == unknown:* ]] || fail_with empty
  rm "$B/FORMAL_SUCCESS"
  formal status
  [[ $status -eq 69 && $output == unknown:*'there is no'* ]] || fail_with none
  touch -d '-1 day' "$BATS_TEST_TMPDIR/proof" # the clock decides nothing
  cp -p "$BATS_TEST_TMPDIR/proof" "$B/FORMAL_SUCCESS"
  formal status
  [[ $status -eq 0 && $output == success:* ]]
}

# F62: stop meets a start whose detached part has just begun: it ends that too, and says stopped only then.
@test "formal_run: stop between start and first heartbeat ends both or neither" {
  local starter
  smoked
  : >"$HOLD"
  formal start
  [[ $status -eq 0 ]]
  cp "$D/formal.json" "$BATS_TEST_TMPDIR/running"
  pid=$(member "$D/formal.json" pid)
  # What stop read: the record of the start, whose process ends by itself; what it finds behind it: the detached part's.
  bash -c 'trap "cp \"$1\" \"$2\"; exit" TERM; while :; do sleep 0.05; done' x "$BATS_TEST_TMPDIR/running" "$D/formal.json" 3>&- &
  starter=$!
  ticks=$(sed 's/.*) //' "/proc/$starter/stat" | cut -d' ' -f20)
  set_member "$D/formal.json" state starting
  sed -i "s/\"pid\": [0-9]*/\"pid\": $starter/; s/\"start_ticks\": [0-9]*/\"start_ticks\": $ticks/" "$D/formal.json"
  formal stop
  [[ $status -eq 0 && $output == *'stopped: the same start continues it'* ]] || fail_with stop
  dead() { ! kill -0 "$pid" 2>/dev/null; }
  wait_for 30 dead
  in_state stopped
}
