#!/usr/bin/env bash
# Runs every bats file (two or more at once) and then pytest, prints both counts, and fails where either did or CI allows no skip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly LOGS=build/test
readonly BATS=node_modules/bats/bin/bats

cores() {
  nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2
}

run_bats() { # one process a file, the longest files first; each leaves FILE.tap and FILE.rc
  rm -rf "$LOGS"
  mkdir -p "$LOGS"
  # shellcheck disable=SC2016 # the inner shell's own variables
  find tests -name '*.bats' -not -path '*/fixtures/*' -exec wc -c {} + | awk '$2 != "total" { print $1, $2 }' | sort -rn | cut -d ' ' -f 2- |
    tr '\n' '\0' | xargs -0 -n 1 -P "$(cores)" bash -c '
      name=${3#tests/}; log=$2/${name//\//.}
      rc=0; SECONDS=0; "$1" --tap --timing "$3" >"$log.tap" 2>&1 || rc=$?
      echo "$rc" >"$log.rc"
      if ((rc)); then echo "FAILED $3, $SECONDS s"; else echo "passed $3, $SECONDS s"; fi' _ "$BATS" "$LOGS"
}

report_bats() { # prints failures, skips and the counts; returns 1 where something failed
  local rc failed=0 passed bad skipped
  grep -h -A 40 '^not ok ' "$LOGS"/*.tap | grep -v '^ok ' || :
  for rc in "$LOGS"/*.rc; do
    [[ $(<"$rc") == 0 ]] && continue
    failed=1
    grep -q '^not ok ' "${rc%.rc}.tap" || sed "s|^|${rc##*/}: |" "${rc%.rc}.tap" | tail -n 30
  done
  grep -h '^ok .* # skip' "$LOGS"/*.tap | sed 's/^ok [0-9]* /skipped: /' || :
  skipped=$(cat "$LOGS"/*.tap | grep -c '^ok .* # skip' || :)
  passed=$(($(cat "$LOGS"/*.tap | grep -c '^ok ' || :) - skipped))
  bad=$(cat "$LOGS"/*.tap | grep -c '^not ok ' || :)
  echo 'the slowest of them:'
  # The title may end in words of the same form: the last one is the time.
  grep -h '^\(not \)\{0,1\}ok .* in [0-9]*ms' "$LOGS"/*.tap | sed 's/^\(.*\) in \([0-9]*\)ms.*$/\2 \1/' | sort -rn | head -n 5 | cut -c 1-160 | sed 's/ / ms  /' || :
  echo "bats: $passed passed, $bad failed, $skipped skipped, in $(find "$LOGS" -name '*.rc' | wc -l | tr -d ' ') files"
  if ((skipped)) && [[ -n ${CI-} ]]; then
    echo 'bats: CI is set, and a skipped test is a failure there'
    failed=1
  fi
  return "$failed"
}

main() {
  local bats_rc=0 pytest_rc=0
  run_bats || bats_rc=1
  report_bats || bats_rc=1
  .venv/bin/python -m pytest -q --junitxml="$LOGS/pytest.xml" || pytest_rc=$?
  if [[ -n ${CI-} ]] && grep -q '<skipped' "$LOGS/pytest.xml" && ((pytest_rc == 0)); then
    echo 'pytest: CI is set, and a skipped test is a failure there' >&2
    pytest_rc=1
  fi
  if ((bats_rc)); then
    # Once more at the end: of a long record mostly the end is kept.
    report_bats || :
    echo "FAILED: see the bats failures above ($LOGS)" >&2
    return 1
  fi
  return "$pytest_rc"
}

main "$@"
