# shellcheck disable=SC2030,SC2031,SC2153,SC2154 # tests are subshells; formal sets BOX and ROOT; bats sets status, output and stderr
# A smoke that is killed: SWEEP=all tries every command of it (make sweep), else some, others each time; SWEEP_POINTS=n: so many.
load helper
load formal
load smoke

setup() { formal_setup; }
teardown() { formal_teardown; }

# Case 61: killed anywhere, a record says passed only where a trial passed; the next smoke clears up and passes.
@test "smoke: killed anywhere it never says more than it knows, and the next one clears up" {
  CRASH_COUNT=$BATS_TEST_TMPDIR/count BASH_ENV=$ROOT/tests/faults/crash_at.bash bash "$BOX/smoke.sh" >/dev/null 2>&1
  local total n step tried=0
  total=$(<"$BATS_TEST_TMPDIR/count")
  ((total > 200))
  step=$((total / ${SWEEP_POINTS:-9}))
  ((step > 0)) || step=1
  RANDOM=${GR_SEED:=$$}
  n=$((1 + RANDOM % step))
  if [[ ${SWEEP-} == all ]]; then n=1 step=1; fi
  for (( ; n <= total; n += step)); do
    tried=$((tried + 1))
    CRASH_AT=$n BASH_ENV=$ROOT/tests/faults/crash_at.bash bash "$BOX/smoke.sh" >/dev/null 2>&1 3>&- || :
    [[ $(tail -n 1 "$D/smoke.json") == '}' ]] || fail_with "GR_SEED=$GR_SEED, torn at $n"
    case $(member "$D/smoke.json" result) in
      passed) [[ $(member "$D/smoke.json" exit) == 0 && $(member "$D/smoke.json" artifact_sha256) =~ ^[0-9a-f]{64}$ ]] ;;
      failed) [[ $(member "$D/smoke.json" why) == *'has not ended' ]] ;;
      *) fail_with "GR_SEED=$GR_SEED, another result at $n" ;;
    esac || fail_with "GR_SEED=$GR_SEED, untrue at $n"
  done
  smoke
  [[ $status -eq 0 && -z $(ls -A "$SCRATCH/gpu-runbook") ]] || fail_with "GR_SEED=$GR_SEED, not cleared up"
  [[ $(cd "$D" && find . -type f) == ./smoke.json ]] || fail_with "GR_SEED=$GR_SEED, not cleared up in D"
  echo "# smoke: $tried of $total points, GR_SEED=$GR_SEED" >&3
}
