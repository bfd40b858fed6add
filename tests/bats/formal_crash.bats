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
  rm -rf "$B/FORMAL_SUCCESS" "$B/PULL_MANIFEST.json" "$D/formal.json" "$D/queue.tsv" "$D/FORMAL_FAILURE.json" "/tmp/gr-$EUID-crash$$"
  mkdir -m 700 "/tmp/gr-$EUID-crash$$"
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

# Issue 5: SIGKILL between any two commands leaves FORMAL_SUCCESS only where all is well, and status never says more.
@test "formal_run: killed anywhere, its proof is there only in the all-good case" {
  local n total step
  prepared
  detached_part
  in_state success || { cat "$BATS_TEST_TMPDIR/log" "$D/formal.log" && false; }
  # How many commands there are: the first kill that comes too late.
  for ((total = 250; total < 8000; total *= 2)); do
    detached_part "$total"
    ! in_state success || break
  done
  step=$((total / 24))
  [[ ${SWEEP-} != all ]] || step=1
  for ((n = 1; n < total; n += step)); do
    detached_part "$n"
    proof_is_true || fail "killed at $n: a proof that is not true"
    formal status
    case $output in
      success:*) [[ -s $B/FORMAL_SUCCESS ]] || fail "killed at $n: success without a proof" ;;
      lost:* | failed:* | unknown:*) [[ ! -e $B/FORMAL_SUCCESS ]] || fail "killed at $n: the proof is there and status says $output" ;;
      *) fail "killed at $n: status says $output" ;;
    esac
  done
  echo "# formal_run: a point in $step of $total tried" >&3
}

# The same where the queue fails: no kill makes a proof of it.
@test "formal_run: killed anywhere in a failing run, there is no proof" {
  local n step=90
  [[ ${SWEEP-} != all ]] || step=1
  prepared
  export QUEUE_FAILS=1
  detached_part
  in_state failed
  for ((n = 40; n < 900; n += step)); do
    detached_part "$n"
    [[ ! -e $B/FORMAL_SUCCESS ]] || fail "killed at $n"
    formal status
    [[ $status -eq 1 || $status -eq 69 ]] || fail "killed at $n: $output"
  done
}
