#!/usr/bin/env bash
# Sets up what a make target needs: the virtual environment (light or with torch and the test tools) or the npm packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly PROG=setup.sh

stop() { # <what> <what to do>
  printf '%s: %s; %s\n' "$PROG" "$1" "$2" >&2
  exit 69
}

environment() { # makes .venv where there is none
  [[ -x .venv/bin/python ]] && return 0
  local python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    stop "$python is missing or older than 3.11" 'install Python 3.11 or newer, or say PYTHON=/path/of/it'
  echo "$PROG: making .venv with $("$python" --version)" >&2
  "$python" -m venv .venv || stop 'the venv module failed' 'install it (Debian: apt-get install python3-venv)'
}

install() { # <requirement>…
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" ||
    stop "pip could not install $*" 'look at the lines above; a proxy or an index is set as for any pip'
}

announce_torch() { # says what comes before a long download
  .venv/bin/python -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null && return 0
  if [[ -n ${TORCH_INDEX-} ]]; then
    echo "$PROG: torch comes next, about 200 MB, from the index that TORCH_INDEX names" >&2
  else
    echo "$PROG: torch comes next (demo and tests only): about 200 MB where pip finds a CPU build, up to 3 GB where its index has" >&2
    echo "$PROG: CUDA builds only (PyPI on Linux). To get the small one there: make TORCH_INDEX=<index with CPU builds of torch> …" >&2
  fi
}

main() {
  case ${1-} in
    compiler)
      environment
      install -e .
      touch .venv/.compiler
      ;;
    everything)
      announce_torch
      install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -e '.[test,demo]'
      touch .venv/.everything
      ;;
    npm)
      command -v npm >/dev/null || stop 'npm is missing' 'install Node.js with npm: the shell tests run under bats'
      npm ci --no-audit --no-fund --loglevel=error >&2 || stop 'npm could not install the packages' 'look at the lines above'
      touch node_modules/.package-lock.json
      ;;
    *)
      echo "usage: $PROG compiler|everything|npm" >&2
      exit 64
      ;;
  esac
}

main "$@"
