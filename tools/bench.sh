#!/usr/bin/env bash
# Runs each benchmark of tests/bench; every figure is a ratio against a named peer, measured in turn on this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
main() {
  local file
  for file in tests/bench/bench_*; do
    echo "== ${file##*/}"
    case $file in
      *.py) .venv/bin/python "$file" ;;
      *.sh) bash "$file" ;;
    esac
  done
}
main "$@"
