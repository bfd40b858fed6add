#!/usr/bin/env bash
# The crash tests at every point: killed before each command, each external command failing at each call, 300 random moments.
# The everyday run of the same files tries some points, and prints how many. Takes hours; words are passed on to bats.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
main() {
  local file rc=0
  export SWEEP=all GR_CRASH_STEP=1 SWEEP_RANDOM=${SWEEP_RANDOM:-300} GR_CRASH_MOMENTS=${GR_CRASH_MOMENTS:-300}
  for file in tests/bats/sweep*.bats tests/bats/*_crash.bats; do
    echo "== ${file##*/}"
    node_modules/bats/bin/bats "$@" "$file" || rc=1
  done
  return "$rc"
}
main "$@"
