#!/usr/bin/env bash
# How long after the last step of a formal run its FORMAL_SUCCESS can be read: bash tests/bench/bench_formal.sh [--check]
# The real formal_run, a queue that is done at once, an aggregation that notes the time as its last act. Median of five;
# --check exits 1 above 0.2 s.
# shellcheck disable=SC2154 # the helpers set BOX, B and DATA_DIR
set -euo pipefail
ROOT=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)

prepare() { # a repository, the compiled scripts, stand-ins for the two siblings
  TOP=$(mktemp -d)
  trap 'rm -rf -- "${TOP:?}"' EXIT
  BATS_TEST_TMPDIR=$TOP BATS_FILE_TMPDIR=$TOP HOME=$TOP/home
  export BATS_TEST_TMPDIR BATS_FILE_TMPDIR HOME
  bats_require_minimum_version() { :; }
  # shellcheck source=/dev/null # the tests' own helpers
  source "$ROOT/tests/bats/helper.bash"
  # shellcheck source=/dev/null # the tests' own helpers
  source "$ROOT/tests/bats/formal.bash"
  formal_setup
  fake_siblings
  # shellcheck disable=SC2016 # for the stand-in
  printf 'date +%%s%%N >"$DATA_DIR/last-step"\n' >>"$BOX/aggregate_to_fs.sh"
  smoked
}

main() {
  local i all=() success
  prepare
  for i in 1 2 3 4 5; do
    rm -f -- "$B/FORMAL_SUCCESS"
    bash "$BOX/formal_run.sh" start >/dev/null 2>&1
    until [[ -s $B/FORMAL_SUCCESS ]]; do sleep 0.002; done
    success=$(date +%s%N)
    all+=($(((success - $(<"$DATA_DIR/last-step")) / 1000000)))
    until ended; do sleep 0.01; done
  done
  i=$(printf '%s\n' "${all[@]}" | sort -n | sed -n 3p)
  printf 'FORMAL_SUCCESS can be read %s ms after the last step (aim: 200; of %s)\n' "$i" "${all[*]}"
  [[ ${1-} != --check ]] || ((i <= 200))
}

main "$@"
