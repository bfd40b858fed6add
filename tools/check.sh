#!/usr/bin/env bash
# Every check that reads and runs nothing of ours on a cell: validation, lint, then out/ against what would be compiled now.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
readonly PY=.venv/bin/python
failed=()

step() { # <name> <command>… : a command that cannot run has failed
  local name=$1
  shift
  echo "== $name" >&2
  "$@" || failed+=("$name")
}

validate() { # every profile with every job; errors are shown, warnings counted
  local job said rc=0
  for job in jobs/*.yaml; do
    if ! said=$("$PY" -m generator check --job "$job" 2>&1); then
      printf '%s\n' "$said"
      rc=1
    else
      printf '%s: no errors, %s warnings (python -m generator check --job %s shows them)\n' "$job" "$(grep -c ': warning\[' <<<"$said")" "$job"
    fi
  done
  return "$rc"
}

byte_compile() { # every Python file, also the compiled one that a laptop gets
  find generator tools tests examples out templates/lib -name '*.py' -not -path '*/__pycache__/*' -print0 |
    xargs -0 "$PY" -c 'import sys
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        compile(file.read(), name, "exec", dont_inherit=True)'
}

drift() { # out/ as committed, against a compile in memory; the difference and the command are printed
  "$PY" -m generator diff 2> >(grep -v -e warning -e '^ ' >&2)
}

main() {
  step 'profiles and jobs' validate
  step 'templates' "$PY" -m pytest -q --no-header tests/unit/test_templates.py tests/unit/test_schema.py
  step 'scripts: bash -n, shellcheck -S style, shfmt' "$PY" tools/lint_scripts.py
  step 'python' byte_compile
  step 'out/ is what compiling gives (else: make all)' drift
  if ((${#failed[@]})); then
    printf 'make check: FAILED: %s\n' "${failed[@]}" >&2
    return 1
  fi
  echo 'make check: all clean'
}

main "$@"
