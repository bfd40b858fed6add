#!/usr/bin/env bash
# Installs the platforms' own tools, at the versions of tools/platform_tools.py, into throw-away environments under build/, and
# holds the profiles' commands against their --help. Needs a package index, a gigabyte and some minutes; not part of make test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly PROG=check_platform_tools.sh PY=.venv/bin/python
TOOLS=''
keep=false

usage() {
  cat <<'USAGE'
usage: tools/check_platform_tools.sh [--keep]

Prints one row for each command: ok, or what the tool does not know. Tools that no package index has (gcloud, kubectl, Slurm's)
are asked where this machine has them. --keep leaves build/platform-tools/ for the next time (1 GB: azure-cli is large).
exit codes: 0 all known, 1 a command is not, 64 usage, 69 a tool cannot be installed
USAGE
}

clean() {
  local rc=$?
  if [[ $keep == false && -n $TOOLS ]]; then rm -rf -- "$TOOLS"; fi
  exit "$rc"
}

install() { # <tool> <packages…>    each has an environment of its own: their demands contradict one another
  local tool=$1 python=$TOOLS/$1/bin/python
  shift
  [[ ! -x $TOOLS/$tool/bin/$tool ]] || return 0
  if ! "$PY" -m venv "$TOOLS/$tool" || ! "$python" -m pip install -q --disable-pip-version-check "$@" >&2; then
    printf '%s: refused: %s; pip cannot install %s; look at the network and the index\n' "$PROG" "$tool" "$*" >&2
    exit 69
  fi
}

main() {
  local line
  case ${1-} in
    -h | --help) usage && return 0 ;;
    --keep) keep=true ;;
    '') ;;
    *) usage >&2 && return 64 ;;
  esac
  [[ -x $PY ]] || {
    printf '%s: refused: %s; it is not there; run make check once\n' "$PROG" "$PY" >&2
    return 69
  }
  TOOLS=build/platform-tools
  trap clean EXIT
  mkdir -p "$TOOLS"
  while IFS= read -r line; do
    # shellcheck disable=SC2086 # a tool and its packages: words
    install $line
  done < <("$PY" tools/platform_tools.py --pins)
  "$PY" tools/platform_tools.py --check "$TOOLS"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
