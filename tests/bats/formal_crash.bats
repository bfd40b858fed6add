# shellcheck disable=SC2030,SC2031,SC2154 # tests are subshells; bats sets status, output and stderr
load helper
load formal

setup() { formal_setup; }
teardown() {
  formal_teardown
  rm -rf "/tmp/gr-$EUID-crash$$"
}

# One detached part, in this shell: what start leaves for it, then its second half. $1 = command to be killed at, or none.
detached_part() { # [crash at]
  rm -rf "$B/FORMAL_SUCCESS" "$B/PULL_MANIFEST.json" "$D/READY_TO_STOP" "$D"/formal.failed.* "$D/formal.json" "$D/queue.tsv" "$D/FORMAL_FAILURE.json" "/tmp/gr-$EUID-crash$$"
  mkdir -m 700 "/tmp/gr-$EUID-crash$$"
  printf "end\0" >"/tmp/gr-$EUID-crash$$/flags"
  cp "$BATS_TEST_TMPDIR/starting" "$D/formal.json"
  cp "$BATS_TEST_TMPDIR/plan" "$D/plans/crash$$.tsv"
  CRASH_AT=${1-0} BASH_ENV=$ROOT/tests/faults/crash_at.bash setsid bash "$BOX/formal_run.sh" _run "/tmp/gr-$EUID-crash$$" "crash$$" >"$BATS_TEST_TMPDIR/log" 2>&1 3>&- || :
}
prepared() { # a run, its smoke, and a record `starting`
  fake_siblings
  smoked
  formal_ok
  cp "$D/formal.json" "$BATS_TEST_TMPDIR/starting"
  cp "$D/plans/$(member "$D/formal.json" start_id).tsv" "$BATS_TEST_TMPDIR/plan"
  set_member "$BATS_TEST_TMPDIR/starting" state starting
  set_member "$BATS_TEST_TMPDIR/starting" start_id "crash$$"
}
# The one thing that must hold after every kill: a proof is whole, of this start, over the manifest that is there, with all cells.
proof_is_true() {
  [[ -e $B/FORMAL_SUCCESS ]] || return 0
  [[ $(member "$B/FORMAL_SUCCESS" start_id) == "crash$$" && $(tail -n 1 "$B/FORMAL_SUCCESS") == '}' ]] &&
    [[ $(member "$B/FORMAL_SUCCESS" manifest_sha256) == "$(sha256sum <"$B/PULL_MANIFEST.json" | cut -c 1-64)" ]]
}

# The points of this run: all with SWEEP=all, else some (SWEEP_POINTS), others each time; GR_SEED repeats.
points() { # <total> <how many>    sets POINTS
  local step=$(($1 / $2)) n
  ((step > 0)) || step=1
  RANDOM=${GR_SEED:=$((RANDOM + 1))}
  n=$((1 + RANDOM % step)) POINTS=()
  if [[ ${SWEEP-} == all ]]; then n=1 step=1; fi
  for (( ; n <= $1 + 1; n += step)); do POINTS+=("$n"); done
}
# How many commands a whole run has, into TOTAL.
count_points() { # <command of the test>…
  export CRASH_COUNT=$BATS_TEST_TMPDIR/count
  "$@"
  unset CRASH_COUNT
  TOTAL=$(<"$BATS_TEST_TMPDIR/count")
}

# Issue 5: SIGKILL between any two commands leaves FORMAL_SUCCESS only where all is well, and status never says more.
@test "formal_run: killed anywhere, its proof is there only in the all-good case" {
  local n
  prepared
  count_points detached_part
  in_state success || { cat "$BATS_TEST_TMPDIR/log" "$D/formal.log" && false; }
  ((TOTAL > 500))
  points "$TOTAL" "${SWEEP_POINTS:-24}"
  for n in "${POINTS[@]}"; do
    detached_part "$n"
    proof_is_true || fail "GR_SEED=$GR_SEED, killed at $n: a proof that is not true"
    formal status
    case $output in
      success:*) [[ -s $B/FORMAL_SUCCESS ]] || fail "GR_SEED=$GR_SEED, killed at $n: success without a proof" ;;
      lost:* | failed:* | unknown:*) [[ ! -e $B/FORMAL_SUCCESS ]] || fail "GR_SEED=$GR_SEED, killed at $n: the proof is there and status says $output" ;;
      *) fail "GR_SEED=$GR_SEED, killed at $n: status says $output" ;;
    esac
    # X11: nobody is told to stop the machine before the last word is written.
    [[ ! -e $D/READY_TO_STOP || $output == success:* ]] || fail "GR_SEED=$GR_SEED, killed at $n: READY_TO_STOP and $output"
    ((n <= TOTAL)) || in_state success || fail "not killed, and no success"
  done
  echo "# formal_run: ${#POINTS[@]} of $TOTAL points, GR_SEED=$GR_SEED" >&3
}

# The same where the queue fails: no kill makes a proof of it.
@test "formal_run: killed anywhere in a failing run, there is no proof" {
  local n
  prepared
  export QUEUE_FAILS=1
  count_points detached_part
  in_state failed
  points "$TOTAL" "${SWEEP_POINTS:-12}"
  for n in "${POINTS[@]}"; do
    detached_part "$n"
    [[ ! -e $B/FORMAL_SUCCESS ]] || fail "GR_SEED=$GR_SEED, killed at $n"
    formal status
    [[ $status -eq 1 || $status -eq 69 ]] || fail "GR_SEED=$GR_SEED, killed at $n: $output"
    [[ ! -e $D/READY_TO_STOP || -s $D/formal.failed.tar.gz.sha256 ]] || fail "GR_SEED=$GR_SEED, killed at $n: READY_TO_STOP without the evidence"
  done
  echo "# a failing formal_run: ${#POINTS[@]} of $TOTAL points, GR_SEED=$GR_SEED" >&3
}

# The start itself: what it leaves when it is killed never reads as a success of it, and the next start goes through.
killed_start() { # [crash at]
  CRASH_AT=${1-0} BASH_ENV=$ROOT/tests/faults/crash_at.bash bash "$BOX/formal_run.sh" start >"$BATS_TEST_TMPDIR/log" 2>&1 3>&- || :
}
# An instant preflight: it is a child of its own, and not what is killed here.
fake_preflight() {
  cat >"$BOX/preflight.sh" <<'SH'
printf '{\n  "schema": "preflight/1",\n  "cpus": 1,\n  "ram_free_bytes": null,\n  "gpus": 0,\n  "detach": "nohup",\n  "checks": [\n'
printf '    {"verdict": "ok", "check": "data", "value": "3 files"}\n  ]\n}\n'
SH
}
quiet() { ! pgrep -f "$BOX/formal_run.sh _" >/dev/null; }
@test "formal_run: a start that is killed anywhere never reads as success, and the next one goes through" {
  local n first
  fake_siblings
  fake_preflight
  smoked
  count_points killed_start
  wait_for 30 quiet
  in_state success || { cat "$BATS_TEST_TMPDIR/log" "$D/formal.log" && false; }
  points "$TOTAL" "${SWEEP_POINTS:-12}"
  for n in "${POINTS[@]}"; do
    first=$(member "$D/formal.json" start_id)
    killed_start "$n"
    wait_for 30 quiet
    formal status
    # A success is the earlier start's, whole as it was, or the new one's, whose detached part had begun.
    case $output in
      success:*) [[ $(member "$B/FORMAL_SUCCESS" start_id) == "$(member "$D/formal.json" start_id)" ]] || fail "GR_SEED=$GR_SEED, killed at $n: $output" ;;
      lost:* | unknown:*) [[ ! -e $B/FORMAL_SUCCESS ]] || fail "GR_SEED=$GR_SEED, killed at $n: the proof of $first is there and status says $output" ;;
      *) fail "GR_SEED=$GR_SEED, killed at $n: status says $output" ;;
    esac
    formal_ok || fail "GR_SEED=$GR_SEED, killed at $n: the next start does not go through"
    wait_for 30 quiet
  done
  echo "# formal_run start: ${#POINTS[@]} of $TOTAL points, GR_SEED=$GR_SEED" >&3
}
