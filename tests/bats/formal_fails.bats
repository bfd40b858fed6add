# shellcheck disable=SC2016,SC2030,SC2031,SC2154 # words for sed; tests are subshells; bats sets status, output and stderr
# What a formal run that failed leaves behind, and what is said of it.
load helper
load formal

setup() { formal_setup; }
teardown() { formal_teardown; }

# X4: a failed formal run is a result: a line that stays, in the bundle too; somebody's stop is none.
@test "formal_run: each failure is a line of NEGATIVE_RESULTS.tsv on both tiers, a stop is none" {
  local id
  smoked
  : >"$FAIL"
  formal start
  wait_for 30 ended
  wait_for 30 test -s "$D/READY_TO_STOP"
  id=$(member "$D/formal.json" start_id)
  [[ $(grep -vc '^#' "$D/NEGATIVE_RESULTS.tsv") -eq 1 ]]
  grep -q $'\tformal\t'"$(git -C "$CODE_DIR" rev-parse HEAD)"$'\t1\t[0-9]*\tstage queue ended with 1, start '"$id"$'\tbash .*run_queue.sh' "$D/NEGATIVE_RESULTS.tsv"
  cmp "$D/NEGATIVE_RESULTS.tsv" "$B/NEGATIVE_RESULTS.tsv"
  tar -xzOf "$D/formal.failed.tar.gz" ./NEGATIVE_RESULTS.tsv | cmp - "$D/NEGATIVE_RESULTS.tsv"
  rm "$FAIL"
  : >"$HOLD"
  formal start
  formal stop
  [[ $status -eq 0 ]] || fail_with stop
  in_state stopped
  [[ $(grep -vc '^#' "$D/NEGATIVE_RESULTS.tsv") -eq 1 ]]
  rm "$HOLD"
  formal_ok
  [[ $(grep -vc '^#' "$B/NEGATIVE_RESULTS.tsv") -eq 1 ]]
}

# X11: the evidence has all that says why: status record, failure record, plan, queue, logs; bounded, with a digest that fits.
@test "formal_run: the packed evidence holds records, plan and logs, and its digest fits" {
  local name
  smoked
  export SAID=x
  : >"$FAIL"
  formal start
  wait_for 30 test -s "$D/READY_TO_STOP"
  (cd "$D" && sha256sum -c --quiet formal.failed.tar.gz.sha256)
  mkdir "$BATS_TEST_TMPDIR/x"
  tar -xzf "$D/formal.failed.tar.gz" -C "$BATS_TEST_TMPDIR/x"
  for name in run.json formal.json FORMAL_FAILURE.json queue.tsv events.tsv smoke.json "$(member "$D/formal.json" start_id).tsv" formal.log logs/s2/attempt-001.log state/s2.json; do
    [[ -s $BATS_TEST_TMPDIR/x/$name ]] || fail "no $name"
  done
  [[ $(member "$BATS_TEST_TMPDIR/x/formal.json" state) == failed && -z $(find "$D" -name '.evidence*' -o -name '.formal.failed*') ]]
}

# T45: no such command, a command that says no, one that says yes while the machine lives: each code is kept, none is success of it.
@test "formal_run: a power-off that is not there or fails is recorded with its code, and the proof stays" {
  local words code
  export POWER_OFF_WAIT_S=0
  smoked
  for words in '/nowhere/shutdown -h now:127' 'false:1' 'true:0'; do
    code=${words##*:} words=${words%:*}
    sed -i "s|^readonly -a POWER_OFF_COMMAND=.*|readonly -a POWER_OFF_COMMAND=($words)|" "$BOX/formal_run.sh"
    smoked
    formal_ok --power-off
    wait_for 30 test -s "$D/FORMAL_FAILURE.json"
    [[ $(member "$D/FORMAL_FAILURE.json" stage) == power-off && $(member "$D/FORMAL_FAILURE.json" exit) == "$code" && $(member "$D/FORMAL_FAILURE.json" command) == "$words" ]] || fail "$words"
    [[ $(member "$D/FORMAL_FAILURE.json" remedy) == *'still alive and its meter runs'*teardown.sh* ]]
    grep -q "power-off: the command ended with $code" "$D/formal.log"
    alive() { [[ $(member "$D/formal.json" why) == *"power-off failed: the command ended with $code"* ]]; }
    wait_for 30 alive
    formal status
    [[ $status -eq 0 && $output == 'success: '*'the machine is still alive'* ]] || fail_with status
  done
}

# T45: an agent that attaches gets the end of the log and its shell back, also while the run is on.
@test "formal_run: attach without a terminal shows the end of the log and returns" {
  smoked
  : >"$HOLD"
  formal start
  run --separate-stderr timeout 20 bash "$BOX/formal_run.sh" attach </dev/null
  [[ $status -eq 0 && $output == 'running: '*'START 20'* && $(wc -l <<<"$output") -le 82 ]] || fail_with attach
}

# X11: among many cells the ones that are not done are packed, and nothing above the bound.
@test "formal_run: of many cells the evidence holds those that are not done" {
  local i
  smoked
  : >"$FAIL"
  mkdir -p "$D/state" "$D/logs"
  for i in $(seq 100 160); do
    mkdir -p "$D/logs/a$i" && head -c 1200000 /dev/zero >"$D/logs/a$i/attempt-001.log"
    printf '{\n  "schema": "cell/1",\n  "state": "done"\n}\n' >"$D/state/a$i.json"
  done
  formal start
  wait_for 30 test -s "$D/READY_TO_STOP"
  tar -tzf "$D/formal.failed.tar.gz" >"$BATS_TEST_TMPDIR/list"
  grep -q '^./logs/s2/attempt-001.log$' "$BATS_TEST_TMPDIR/list"
  not grep -q '/a1' "$BATS_TEST_TMPDIR/list"
}

# F62 case 50: what was killed left its children behind: no second run beside them, and stop does not say that all is over.
@test "formal_run: a queue whose formal part was killed is seen by status, start and stop" {
  local pid queue
  sed -i 's/((n++ < 50))/((n++ < 2))/' "$BOX/formal_run.sh"
  smoked
  : >"$HOLD"
  formal start
  wait_for 30 test -s "$D/cells/s2/best.bin"
  pid=$(member "$D/formal.json" pid)
  queue=$(pgrep -P "$pid")
  kill -KILL "$pid"
  dead() { ! kill -0 "$pid" 2>/dev/null; }
  wait_for 30 dead
  formal start
  refused 75 "still at work (process $queue)"
  formal stop
  [[ $status -eq 1 && $output == *'nothing to stop: lost'*"process $queue is still at work"*"kill -TERM $queue"* ]] || fail_with stop
  kill -TERM "$queue"
  ended_queue() { ! kill -0 "$queue" 2>/dev/null; }
  wait_for 30 ended_queue
  rm "$HOLD"
  # Case 65: also where the machine was restarted meanwhile.
  set_member "$D/formal.json" boot_id 00000000-0000-0000-0000-000000000000
  formal_ok
  [[ -z $(grep -h epoch "$D"/logs/s2/attempt-*.log | sort | uniq -d) ]]
}

# Case 50: another run's name is never hit by its beginning.
@test "formal_run: status, attach and stop of exp1 do not touch exp10" {
  local one pid
  need_tool tmux screen
  for one in tmux screen; do
    export DETACH=$one RUN=exp10.$one
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    smoked
    : >"$HOLD"
    formal start
    pid=$(member "$D/formal.json" pid)
    for RUN in exp1 exp exp1.old; do
      for verb in status attach stop; do
        formal "$verb"
        refused 69 "run $RUN" 'nothing was started here'
      done
    done
    kill -0 "$pid"
    RUN=exp10.$one
    formal stop
    [[ $status -eq 0 ]]
    rm "$HOLD"
  done
}

# F62: a stop that meets a start: either the detached part never begins, or it is ended too.
@test "formal_run: a detached part that comes after its start was stopped does not run" {
  local start
  smoked
  formal_ok
  start=beef0001
  mkdir -m 700 "/tmp/gr-$EUID-$start"
  printf 'end\0' >"/tmp/gr-$EUID-$start/flags"
  printf '%s\n' "$D" >"/tmp/gr-$EUID-$start/where" # so that the teardown finds it
  sleep 60 3>&- &
  ticks=$(sed 's/.*) //' "/proc/$!/stat" | cut -d' ' -f20)
  sed -i "s/\"pid\": [0-9]*/\"pid\": $!/; s/\"start_ticks\": [0-9]*/\"start_ticks\": $ticks/" "$D/formal.json"
  set_member "$D/formal.json" start_id "$start"
  set_member "$D/formal.json" state starting
  formal stop
  [[ $status -eq 0 && $output == *'stopped: '* ]] || fail_with stop
  in_state stopped
  run --separate-stderr setsid bash "$BOX/formal_run.sh" _run "/tmp/gr-$EUID-$start" "$start"
  refused 77 'no start has made this session'
  in_state stopped
}

# A multiplexer takes no long command line: the words of a start reach its detached part all the same, or it does not run.
@test "formal_run: a very long --only goes through tmux whole; lost words are refused" {
  local names i
  need_tool tmux
  export DETACH=tmux
  for i in $(seq 1000 1600); do printf 'a-cell-with-a-rather-long-name-%s\tbash train.sh 1\n' "$i"; done >>"$BOX/queue.tsv"
  names=$(sed -n 's/^\(a-cell[^\t]*\)\t.*/\1/p' "$BOX/queue.tsv" | paste -sd, -)
  ((${#names} > 20000))
  fake_siblings
  # It stays at work until start has looked at it: how the run ends is no matter here.
  sed -i 's/(($# == 0)) || exit 64/printf "%s" "${2-}" >"$DATA_DIR\/said"; while [[ -e $DATA_DIR\/hold ]]; do sleep 0.1; done/' "$BOX/run_queue.sh"
  : >"$DATA_DIR/hold"
  smoked
  formal start --only "$names"
  [[ $status -eq 0 ]] || fail_with start
  rm "$DATA_DIR/hold"
  wait_for 30 ended
  [[ $(<"$DATA_DIR/said") == "$names" ]]
  mkdir -m 700 "/tmp/gr-$EUID-cut"
  printf '%s\n' "$D" >"/tmp/gr-$EUID-cut/where"
  printf -- '--only\0' >"/tmp/gr-$EUID-cut/flags"
  run --separate-stderr setsid bash "$BOX/formal_run.sh" _run "/tmp/gr-$EUID-cut" cut
  refused 77 'words of its start'
}

# Case 49: a start that is killed as soon as it has its private folder leaves none behind the next one.
@test "formal_run: the folder of a start that was killed before its first record goes with the next start" {
  local dir
  fake_siblings
  smoked
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\n%s "$@" || exit\nfor dir; do :; done\ncase $dir in /tmp/gr-*-try*) ;; /tmp/gr-*) echo "$dir" >%q; kill -KILL "$PPID" ;; esac\n' "$(type -P mkdir)" "$BATS_TEST_TMPDIR/dir" >"$BATS_TEST_TMPDIR/bin/mkdir"
  chmod +x "$BATS_TEST_TMPDIR/bin/mkdir"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH formal start
  [[ $status -eq 137 && ! -e $D/formal.json ]] || fail_with 'not killed'
  dir=$(<"$BATS_TEST_TMPDIR/dir")
  [[ -d $dir ]]
  formal_ok
  [[ ! -e $dir ]]
}

# F33 F34 F61: a proof that was written and does not read back as one is no proof, and does not stay where one lies.
@test "formal_run: a proof over a manifest that changed under it goes aside, and the run has failed" {
  fake_siblings
  smoked
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\n%s "$@" || exit\ncase "$*" in */FORMAL_SUCCESS) echo >>%q ;; esac\n' "$(type -P mv)" "$B/PULL_MANIFEST.json" >"$BATS_TEST_TMPDIR/bin/mv"
  chmod +x "$BATS_TEST_TMPDIR/bin/mv"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH formal start
  [[ $status -eq 0 ]] || fail_with start
  wait_for 30 ended
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" stage) == proof && ! -e $B/FORMAL_SUCCESS && -s $B/FORMAL_SUCCESS.$(member "$D/formal.json" start_id).failed ]]
  grep -q 'was said over another PULL_MANIFEST.json' "$D/formal.log"
  formal_ok
}

# F8 X3: a git that fails at the end has shown no edit: nobody is sent to begin anew for it.
@test "formal_run: code that cannot be looked at when the cells have ended is not called changed" {
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\n[ ! -e "%s" ] || case "$*" in *"status --porcelain"*) exit 1 ;; esac\nexec %s "$@"\n' "$BATS_TEST_TMPDIR/sick" "$(type -P git)" >"$BATS_TEST_TMPDIR/bin/git"
  chmod +x "$BATS_TEST_TMPDIR/bin/git"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
  smoked
  : >"$HOLD"
  formal start
  [[ $status -eq 0 ]] || fail_with start
  : >"$BATS_TEST_TMPDIR/sick"
  rm "$HOLD"
  wait_for 30 ended
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" exit) == 69 && $(member "$D/FORMAL_FAILURE.json" remedy) == *"make git work in $CODE_DIR; then: bash $BOX/formal_run.sh start" && ! -e $B/FORMAL_SUCCESS ]]
  rm "$BATS_TEST_TMPDIR/sick"
  formal_ok # the cells are done: only the look and the proof are left
}
