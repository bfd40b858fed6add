#!/usr/bin/env bash
# verify_phase.sh: the verify block of one phase of the runbook: run it, show what it said, and say pass or fail.
# Generated; do not edit. Source: templates/local/verify_phase.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=verify_phase.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=kaggle
# the job's name
readonly JOB=demo
# what kind of platform it is
readonly KIND=notebook
# --- end of bound values ---

# lib/exit.bash: exit codes by name, the same in every script.
# needs:
# shellcheck disable=SC2034 # the whole table is here; a script uses the codes that it needs
{
  readonly EX_FAIL=1       # the work itself failed: a cell, a verification
  readonly EX_USAGE=64     # wrong call
  readonly EX_INTEGRITY=65 # a digest, manifest or record does not match
  readonly EX_MISSING=69   # something needed is missing or cannot be reached
  readonly EX_NOROOM=73    # no room: bytes or inodes
  readonly EX_COPY=74      # a copy is incomplete or could not be read back
  readonly EX_BUSY=75      # another runner holds it
  readonly EX_GATE=77      # refused: a precondition is not met
  readonly EX_CONFIG=78    # configuration is wrong
  readonly EX_AGAIN=79     # of run_one to run_queue alone: nothing was said nor begun, begin another
}

# lib/log.bash: one line per event on stderr, so that stdout stays data.
# needs: exit    reads: PROG

# The current UTC time into REPLY, without a fork where bash can format it.
utc_now() {
  if ! TZ=UTC0 printf -v REPLY '%(%Y-%m-%dT%H:%M:%SZ)T' -1 2>/dev/null; then
    REPLY=$(date -u +%Y-%m-%dT%H:%M:%SZ) || REPLY=
  fi
}

log() { # <words...>
  local REPLY
  utc_now
  # shellcheck disable=SC2034 # run_one asks whether anything was said
  LOGGED=1
  # Talk stops nothing: whoever listened may be gone, and the disk with the log full.
  printf '%s %s: %s\n' "$REPLY" "$PROG" "$*" >&2 || :
}

# The only way out of a precondition that is not met: one line, then the code.
refuse() { # <exit code> <what> <why> <what to do>
  printf '%s: refused: %s; %s; %s\n' "$PROG" "$2" "$3" "$4" >&2 || :
  exit "$1"
}

# lib/hash.bash: SHA-256 by the quickest tool of the box.
# needs: exit log

# openssl uses the processor's SHA instructions; older sha256sum does not. Chosen once.
hash_tool() {
  case ${HASH_TOOL-} in openssl | sha256sum | shasum) return 0 ;; esac
  if command -v openssl >/dev/null 2>&1 && openssl dgst -sha256 -r </dev/null >/dev/null 2>&1; then
    HASH_TOOL=openssl
  elif command -v sha256sum >/dev/null 2>&1; then
    HASH_TOOL=sha256sum
  elif command -v shasum >/dev/null 2>&1; then
    HASH_TOOL=shasum
  else
    refuse "$EX_MISSING" "hashing" "no openssl, sha256sum or shasum on PATH" "install one of them"
  fi
}

# Become the tool: over the files named, or over standard input. To be called in a subshell only. It prints 64 digits, two
# characters, the name.
# shellcheck disable=SC2120 # without a word it reads standard input
exec_hash_tool() { # [files...]
  case $HASH_TOOL in
    openssl) exec openssl dgst -sha256 -r "$@" ;;
    sha256sum) exec sha256sum "$@" ;;
    shasum) exec shasum -a 256 "$@" ;;
  esac
}

hash_file() { # <file>    sets REPLY to 64 hex digits; returns 1 where it cannot be read
  REPLY=''
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $1 ]] || return 1
  hash_tool
  REPLY=$({ exec_hash_tool <"$1"; } 2>/dev/null) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
}

# lib/host.bash: HOST, as a person gives it.
# needs: exit log    reads: KIND HOST

# HOST becomes an argument of ssh: one that is no host is refused before ssh sees it.
check_host() { # sets HOST_NAME
  local name own
  [[ $KIND != owned ]] || { HOST_NAME=here && return 0; }
  [[ -n $HOST ]] || refuse "$EX_CONFIG" "HOST" "it is not set, so there is no box to talk to" "give the ssh alias or user@host as argument, or set HOST"
  if [[ ! $HOST =~ ^[A-Za-z0-9_][A-Za-z0-9._@-]*$ ]]; then
    refuse "$EX_CONFIG" "HOST '${HOST//[[:cntrl:]]/?}'" "it is no ssh alias and no user@host" "put port and key under an alias into ~/.ssh/config and give that"
  fi
  name=${HOST#*@}
  HOST_NAME=$HOST
  own=$(hostname 2>/dev/null) || own=${HOSTNAME-}
  case $name in
    localhost | localhost.* | "$own" | "${own%%.*}")
      refuse "$EX_CONFIG" "HOST '$HOST'" "that is this machine itself" "give the box's address; for a tunnel, an alias in ~/.ssh/config"
      ;;
  esac
}

usage() {
  cat <<'USAGE'
usage: verify_phase.sh N [HOST]

Runs the verify block of phase N (-1, 0, 1, 2, 3, 4 or 5) of the RUNBOOK.md that lies beside the folder local/, in the
runbook's folder, with HOST and the other values of your shell. It shows the block, what it printed, what the runbook
expects, and ends in one line: PASS, FAIL or NOT KNOWN. PASS wants exit code 0 and, where the runbook expects one word, that
word as a line of its own; any other text under "expected" is for you to compare. A runbook that is not the compiled one
is said (ticked boxes are enough for that): look at the block that is shown.
Where nothing leads from here to the box, only blocks that are typed here are run.

exit codes: 0 pass, 1 fail, 64 usage, 65 the runbook has no such block, 69 not known: no runbook, no answer, or a block for
the box itself, 78 configuration
USAGE
}

# The folder of the runbook: beside local/, where this file lies. Sets HOME_DIR RUNBOOK.
find_runbook() {
  local self=${BASH_SOURCE[0]-}
  [[ $self == */* ]] || self=./$self
  HOME_DIR=$(cd -P -- "${self%/*}/.." && pwd -P) || HOME_DIR=''
  RUNBOOK=$HOME_DIR/RUNBOOK.md
  [[ -n $HOME_DIR && -f $RUNBOOK && -r $RUNBOOK ]] ||
    refuse "$EX_MISSING" "phase $N" "there is no readable RUNBOOK.md beside local/" "run this from the compiled folder $PROFILE/local/, or compile it again"
}

# A word on a runbook whose bytes are not those that were compiled. Never a refusal: people tick boxes.
compare_digest() {
  local list=$HOME_DIR/SOURCES.json was
  was=$(awk '/"path": "RUNBOOK.md"/ { here = 1 } here && /"sha256"/ { gsub(/[^0-9a-f]/, "", $2); print $2; exit }' "$list" 2>/dev/null) || was=''
  if [[ ${#was} -ne 64 ]] || ! hash_file "$RUNBOOK"; then
    printf 'note: SOURCES.json does not tell whether this RUNBOOK.md is the compiled one\n'
  elif [[ $REPLY != "$was" ]]; then
    printf 'note: RUNBOOK.md was edited since it was compiled; this is its block as it stands\n'
  fi
}

# The fenced block with this info string in the section of phase N, without the indent of a list. Prints.
block() { # <info string>
  awk -v section="## Phase $N:" -v info="\`\`\`$1" '
    { sub(/\r$/, "") }
    !inside && index($0, "## ") == 1 { here = index($0, section) == 1 }
    here && !inside { line = $0; sub(/^ +/, "", line); if (line == info) { inside = 1; indent = length($0) - length(line); next } }
    inside { line = substr($0, indent + 1); if (line == "```") exit; print line }' "$RUNBOOK"
}

# What the block needs: a way to the box, or that it is typed here.
check_reach() {
  case $KIND in
    notebook)
      # shellcheck disable=SC2016 # as it stands in the runbook: the platform's own tool is asked, here
      [[ $BLOCK == local/* || $BLOCK == 'python3 local/'* || $BLOCK == 'python3 notebook/'* || $BLOCK == 'said=$('* ]] ||
        refuse "$EX_MISSING" "phase $N" "its block is for the box, and nothing leads there from here" "type it on the box: ${BLOCK//$'\n'/ }"
      ;;
    kubernetes | owned) ;;
    *)
      # shellcheck disable=SC2016 # the name of a variable, as it stands in the runbook
      [[ $BLOCK != *'${HOST:?}'* ]] || check_host
      ;;
  esac
}

# Text that may be of a box: indented, without control characters.
shown() { # <text>
  printf '%s\n' "$1" | LC_ALL=C tr -d '\000-\010\013-\037\177' | sed 's/^/  /'
}

# One word is expected: it is a line of the output. Other texts are for people.
as_expected() {
  [[ $EXPECTED =~ ^[A-Za-z0-9_.:-]+$ ]] || return 0
  grep -qxF -e "$EXPECTED" <<<"${SAID//$'\r'/}"
}

# One line for the verdict, its code as status.
judge() { # <exit code of the block>
  local next="do the steps P$N.x in RUNBOOK.md that are still open, then look again"
  case $1 in
    0)
      if as_expected; then
        printf 'phase %s of %s on %s (%s): PASS (exit code 0)\n' "$N" "$JOB" "$PROFILE" "$HOST_NAME"
        return 0
      fi
      printf "phase %s of %s on %s (%s): FAIL (exit code 0, but no line '%s'); %s\n" "$N" "$JOB" "$PROFILE" "$HOST_NAME" "$EXPECTED" "$next"
      ;;
    # 255 is ssh's own, 69 our scripts', 126 and 127 mean that a tool is missing: nothing was seen.
    69 | 126 | 127 | 255)
      printf 'phase %s of %s on %s (%s): NOT KNOWN (exit code %s: nothing was seen); is a step P%s.x still open, does the box answer, is the tool there?\n' "$N" "$JOB" "$PROFILE" "$HOST_NAME" "$1" "$N"
      return "$EX_MISSING"
      ;;
    *) printf 'phase %s of %s on %s (%s): FAIL (exit code %s); %s\n' "$N" "$JOB" "$PROFILE" "$HOST_NAME" "$1" "$next" ;;
  esac
  return "$EX_FAIL"
}

main() {
  local rc=0 REPLY
  case ${1-} in -h | --help) usage && return 0 ;; esac
  N=${1-}
  if [[ ! $N =~ ^(-1|[0-5])$ ]] || (($# > 2)) || [[ ${2-} == -* ]]; then
    usage >&2
    return "$EX_USAGE"
  fi
  HOST=${2-${HOST-}} HOST_NAME=here
  find_runbook
  BLOCK=$(block 'bash verify') && EXPECTED=$(block 'text expected') || BLOCK=''
  [[ -n $BLOCK && -n $EXPECTED ]] ||
    refuse "$EX_INTEGRITY" "phase $N" "RUNBOOK.md has no verify block for it, or nothing that it expects" "compile the runbook again"
  check_reach
  compare_digest
  printf 'block:\n'
  shown "$BLOCK"
  SAID=$(export HOST && cd -- "$HOME_DIR" && bash -o pipefail -c "$BLOCK" </dev/null 2>&1) || rc=$?
  printf 'printed:\n'
  shown "$SAID"
  printf 'expected:\n'
  shown "$EXPECTED"
  judge "$rc"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
