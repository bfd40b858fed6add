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
  wait_for 10 test -s "$D/READY_TO_STOP"
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
    wait_for 10 test -s "$D/FORMAL_FAILURE.json"
    [[ $(member "$D/FORMAL_FAILURE.json" stage) == power-off && $(member "$D/FORMAL_FAILURE.json" exit) == "$code" && $(member "$D/FORMAL_FAILURE.json" command) == "$words" ]] || fail "$words"
    [[ $(member "$D/FORMAL_FAILURE.json" remedy) == *'still alive and its meter runs'*teardown.sh* ]]
    grep -q "power-off: the command ended with $code" "$D/formal.log"
    alive() { [[ $(member "$D/formal.json" why) == *"power-off failed: the command ended with $code"* ]]; }
    wait_for 10 alive
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
