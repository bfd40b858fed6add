# helper.bash: what the bats files share. `load helper` at the top of a file; `common_setup` runs by itself in setup()
# unless the file defines its own, which then calls it first.
# shellcheck disable=SC2154 # bats and run set BATS_…, status, output and stderr
# gives: load_libs, ROOT, HOME and TMPDIR of the test's own, compile_job, refused, fail_nth, box_path_only, busybox_path, wait_for

bats_require_minimum_version 1.5.0

ROOT=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
REAL_PATH=${REAL_PATH:-$PATH}
export ROOT REAL_PATH
PYTHON=$ROOT/.venv/bin/python

# shellcheck source=/dev/null # installed by npm
source "$ROOT/node_modules/bats-support/load.bash"
# shellcheck source=/dev/null # installed by npm
source "$ROOT/node_modules/bats-assert/load.bash"

# shellcheck source=/dev/null # beside this file
source "$ROOT/tests/bats/libs.bash"

# What a box must have, and no more (README): bash, coreutils, grep sed awk find tar, git; these are used where they are there.
readonly BOX_TOOLS='bash [ awk base64 basename cat chmod chown cksum cmp comm cp cut date dd df dirname du echo env expr false find fold git
  grep head hostname id install join ln ls md5sum mkdir mkfifo mktemp mv nice nohup nproc od paste printf pwd readlink realpath rm
  rmdir sed seq sh sha256sum shuf sleep sort split stat stty sync tac tail tar tee test timeout touch tr true truncate tty uname
  uniq wc whoami xargs yes gzip diff'
readonly BOX_OPTIONAL='openssl flock ps setsid tmux screen kill'

common_setup() { # each test has its own home, temporary folder and clean set of our variables
  export HOME=$BATS_TEST_TMPDIR/home TMPDIR=$BATS_TEST_TMPDIR/tmp
  mkdir -p "$HOME" "$TMPDIR"
  unset DATA_DIR DURABLE_DIR SCRATCH HF_HOME PROXY_HOOK CRED_FILE DETACH PY RUN CODE_DIR HOST INSTANCE PRICE_PER_HOUR LOCAL_DIR \
    BASH_ENV ENV TMUX STY http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
  export GIT_CONFIG_GLOBAL=$HOME/.gitconfig GIT_CONFIG_SYSTEM=/dev/null
  printf '[user]\n\tname = Test\n\temail = test@example.invalid\n[init]\n\tdefaultBranch = main\n' >"$GIT_CONFIG_GLOBAL"
}

setup() {
  common_setup
}

compile_job() { # <profile: name or file> <job: name or file> [compile's other flags…] sets OUT; once for each file and set of words
  local profile=$1 job=$2 key log
  shift 2
  key=$(printf '%s\n' "$profile" "$job" "$@" | cksum)
  OUT=${BATS_FILE_TMPDIR:?}/compiled.${key%% *}
  export OUT
  [[ -e $OUT/.complete ]] && return 0
  log=$OUT.log
  # From the project's folder, so that names and relative paths mean the same in every test.
  if ! (cd "$ROOT" && PATH=$REAL_PATH "$PYTHON" -m generator compile "$profile" --job "$job" "$@" --out "$OUT") >"$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
  : >"$OUT/.complete"
}

# After `run --separate-stderr`: the exit code, and one line `script: refused: what; why; what to do` on stderr with these words.
refused() { # <code> <words>…
  local code=$1 line word
  shift
  [[ $status -eq $code ]] || {
    fail_with "exit code $status, not $code"
    return 1
  }
  line=$(grep -E '^[A-Za-z0-9_.]+: refused: .+; .+; .+' <<<"$stderr" | tail -n 1) || {
    fail_with 'no line of refusal on stderr'
    return 1
  }
  for word in "$@"; do
    [[ $line == *"$word"* ]] || {
      fail_with "the refusal lacks: $word"
      return 1
    }
  done
}

fail_with() { # <message> : prints it with what the command said, and fails
  printf '%s\nstatus: %s\nstdout:\n%s\nstderr:\n%s\n' "$1" "${status-}" "${output-}" "${stderr-}" >&2
  return 1
}

# Puts a shim first on PATH: its N-th call (0 = every) fails with CODE and MESSAGE, the others pass on to the real tool.
# Each call's arguments are one line of $SHIMS/TOOL.calls, quoted for bash.
fail_nth() { # <tool> <n> <code> <message>
  local tool=$1 n=$2 code=$3 message=$4 real
  SHIMS=${SHIMS:-$BATS_TEST_TMPDIR/shims}
  export SHIMS
  mkdir -p "$SHIMS"
  real=$(PATH=${PATH//"$SHIMS:"/} type -P "$tool") || {
    echo "fail_nth: there is no $tool" >&2
    return 1
  }
  {
    printf '#!%s\n' "$(type -P bash)"
    printf 'tool=%q n=%q code=%q message=%q real=%q shims=%q\n' "$tool" "$n" "$code" "$message" "$real" "$SHIMS"
    cat <<'SHIM'
# A call takes the first free number: mkdir is atomic, so that calls at the same time count apart.
call=1
until /bin/mkdir "$shims/$tool.$call.d" 2>/dev/null; do call=$((call + 1)); done
printf '%q ' "$@" >>"$shims/$tool.calls"
printf '\n' >>"$shims/$tool.calls"
if ((n == 0 || call == n)); then
  printf '%s: %s\n' "$tool" "$message" >&2
  exit "$code"
fi
exec "$real" "$@"
SHIM
  } >"$SHIMS/$tool"
  chmod +x "$SHIMS/$tool"
  [[ $PATH == "$SHIMS:"* ]] || PATH=$SHIMS:$PATH
  hash -r
}

# A PATH of what a box must have and nothing else: no python, perl or jq. More names can be given.
box_path_only() { # [more tools…]
  local folder=$BATS_TEST_TMPDIR/box-bin tool found
  mkdir -p "$folder"
  for tool in $BOX_TOOLS $BOX_OPTIONAL "$@"; do
    if found=$(PATH=$REAL_PATH type -P "$tool"); then ln -sfn "$found" "$folder/$tool"; fi
  done
  PATH=$folder
  hash -r
}

busybox_path() { # busybox's applets first on PATH, its sh not in place of bash
  local folder=$BATS_TEST_TMPDIR/busybox-bin applet box
  box=$(PATH=$REAL_PATH type -P busybox) || missing_tool busybox
  mkdir -p "$folder"
  for applet in $("$box" --list); do
    case $applet in sh | ash | bash | busybox) ;; *) ln -sfn "$box" "$folder/$applet" ;; esac
  done
  PATH=$folder:$PATH
  hash -r
}

# A test that needs what is not there: skipped and named, a failure where CI is set.
missing_tool() { # <tool>
  if [[ -n ${CI-} ]]; then
    echo "needs $1, which is missing, and CI is set" >&2
    return 1
  fi
  skip "missing tool: $1"
}

need_tool() { # <tools>…
  local tool
  for tool in "$@"; do
    PATH=$REAL_PATH type -P "$tool" >/dev/null || missing_tool "$tool"
  done
}

# `! command` in the midst of a test fails nothing: bash makes an exception for it. This does.
not() { # <command>…
  ! "$@"
}

wait_for() { # <seconds> <command>… : polls until the command succeeds; fails when the time is over
  local until=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS > until)); then
      echo "waited in vain for: $*" >&2
      return 1
    fi
    sleep 0.05
  done
}

# A work tree $CODE_DIR with a bare origin, branch main, one commit; the files are copied from a folder.
make_repository() { # <folder with files> [where]
  local from=$1 where=${2:-$BATS_TEST_TMPDIR/code}
  git init -q --bare -b main "$where.origin.git" &&
    git init -q -b main "$where" &&
    cp -R "$from/." "$where/" &&
    git -C "$where" add -A &&
    git -C "$where" commit -q -m start &&
    git -C "$where" remote add origin "$where.origin.git" &&
    git -C "$where" push -q -u origin main || return
  CODE_DIR=$where
  export CODE_DIR
}
