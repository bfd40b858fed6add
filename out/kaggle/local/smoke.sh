#!/usr/bin/env bash
# smoke.sh: a short trial on your own machine, before anything is rented: the smoke command and its checkpoint.
# Generated; do not edit. Source: templates/local/smoke.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=smoke.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=kaggle
# the run's name; a new one begins anew
RUN=${RUN-demo}
# seconds that one checkpoint takes
readonly SAVE_S=2
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# expected seconds for one cell
readonly NEED_S=6
# the short trial
readonly SMOKE_COMMAND="\"\$PY\" train.py --epochs 1 --batches 2 --batch-size 8 --no-log --out \"\$CELL_DIR\""
# the checkpoint that it must leave in CELL_DIR
readonly SMOKE_ARTIFACT=latest.pth
# seconds until it is stopped
readonly SMOKE_TIMEOUT_S=120
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

# The only place where a success word is printed. Without a receipt that can be read it is not.
claim() { # <word> <what> <receipt file>
  if [[ ! -f $3 || ! -s $3 ]]; then
    printf '%s: refused: saying %s of %s; no receipt at %s; look there, then run this again\n' \
      "$PROG" "$1" "$2" "$3" >&2 || :
    return "$EX_INTEGRITY"
  fi
  printf '%s: %s (receipt %s)\n' "$2" "$1" "$3" || :
}

# lib/path.bash: names and paths that are safe to build upon.
# needs: exit log

# A run, profile, job or cell name: it becomes a folder and an argument.
check_name() { # <value> <what it is>    returns: 0, or refuses 78
  local LC_ALL=C
  if [[ ! $1 =~ ^[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}$ ]]; then
    refuse "$EX_CONFIG" "$2 '${1//[[:cntrl:]]/?}'" "a name is 1 to 128 of A-Z a-z 0-9 . _ = , + @ - and begins with a letter or digit" "rename it"
  fi
}

# Expand a leading ~ or $NAME, and $NAME as a whole later component, in the variable NAME itself.
# Not by eval: a path is data. An unset or empty $NAME is a refusal, for "$X/" would be the root.
expand_path() { # <variable name>
  local var=$1 value=${!1} head rest part out='' name
  [[ $value == *[\~\$]* ]] || return 0
  case $value in
    \~ | \~/*) value=\$HOME${value#\~} ;;
  esac
  rest=$value
  while [[ -n $rest ]]; do
    part=${rest%%/*}
    head=''
    if [[ $part =~ ^\$([A-Za-z_][A-Za-z0-9_]*)$ ]]; then
      name=${BASH_REMATCH[1]}
      head=${!name-}
      [[ -n $head ]] || refuse "$EX_CONFIG" "$var=$value" "\$$name is not set or empty here" "set $name, or set $var to a full path"
      part=${head%/}
      # At the front the name gives the whole beginning of a path, later one component of it.
      [[ -z $out || $part != /* ]] || part=${part#/}
    fi
    out+=$part
    [[ $rest == */* ]] || break
    rest=${rest#*/}
    out+=/
  done
  printf -v "$var" '%s' "$out"
}

# Expand, then insist: absolute, not /, not $HOME alone, no .. and no control character.
require_path() { # <variable name>
  expand_path "$1"
  local var=$1 value=${!1} why=''
  while [[ $value == *//* ]]; do value=${value//\/\//\/}; done
  [[ $value == / ]] || value=${value%/}
  case $value in
    '') why="it is empty" ;;
    *[[:cntrl:]]*) why="it holds a control character" ;;
    *[\"\\]*) why="it holds a quote or a backslash" ;;
    /) why="it is the root folder" ;;
    */../* | */.. | */./* | */.) why="it holds a . or .. component" ;;
    /*) ;;
    *) why="it is not absolute" ;;
  esac
  [[ -n $why || $value != "${HOME-}" ]] || why="it is the home folder itself"
  [[ -z $why ]] || refuse "$EX_CONFIG" "$var='${value//[[:cntrl:]]/?}'" "$why" "set $var to an absolute folder of its own"
  printf -v "$var" '%s' "$value"
}

# lib/file.bash: small files that are whole or not there, also after a power cut.
# needs: exit log

# Flush files and folders to their disks. An old sync takes no names and flushes everything: slower, as safe. But where it
# takes names, a file that it cannot flush is not on the disk (a quota on NFS says so here first, and says it once only),
# and a sync of everything would hide that. Some mounts cannot flush a folder; that alone is no failure.
flush() { # <path...>    returns: 0 or 74
  local path said folders=()
  # A command line has room for so many.
  while (($# > 500)); do
    flush "${@:1:500}" || return
    shift 500
  done
  said=$(LC_ALL=C exec sync -- "$@" 2>&1) && return 0
  if sync -- "$BASH" 2>/dev/null; then
    for path in "$@"; do
      if [[ -d $path ]]; then
        folders+=("$path")
      # Beside a folder that fails too it is told apart by its name: nobody names it a second time.
      elif [[ $said == *"$path"[\'\":]* ]]; then
        return 74
      fi
    done
    ((${#folders[@]} == $#)) || { ((${#folders[@]} > 0)) && ! sync -- "${folders[@]}" 2>/dev/null; } || return 74
  fi
  sync
}

# A whole small file into REPLY, without a process. A file that holds a NUL is no text.
read_text() { # <file>    returns: 0, or 1 where it cannot be read or is no text
  REPLY=''
  [[ -f $1 ]] || return 1
  ! { IFS= read -r -d '' REPLY <"$1"; } 2>/dev/null || return 1
  # Where it could not be opened nothing was read either.
  [[ -n $REPLY || -r $1 ]]
}

# Put TEXT into FILE: temporary name beside it, flushed, renamed, read back.
# With "soon" nothing is flushed: for what may be lost in a power cut, because its loss is seen and costs little.
# With "behind" the paths that follow are flushed with the text in one call, before the rename: the name speaks of them.
# The rename itself may be lost; the old text is then still true.
replace_file() { # <file> <text> [soon | behind <paths...>]    returns: 0, or 74 with nothing changed under the name
  local REPLY file=$1 text=$2 dir=${1%/*} tmp how=${3-}
  shift $(($# < 3 ? $# : 3))
  [[ $dir != "$file" ]] || dir=.
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || { [[ $how != soon ]] && ! flush "$tmp" "$@"; } || ! mv -f -- "$tmp" "$file"; then
    rm -f -- "$tmp" 2>/dev/null || :
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  [[ -n $how ]] || flush "$dir"
  read_text "$file" && [[ $REPLY == "$text" ]] || {
    log "$file does not read back as it was written"
    return "$EX_COPY"
  }
}

# lib/record.bash: line JSON that bash writes and reads without help (docs/contracts.md, section 2).
# needs: exit log file

# Free text made fit for a record: no quote, no backslash, no control character. Into REPLY.
record_fit() { # <text>
  REPLY=${1//\"/\'}
  REPLY=${REPLY//\\//}
  REPLY=${REPLY//[[:cntrl:]]/ }
}

record_open() { # <schema>
  RECORD='{'$'\n''  "schema": "'$1'"'
}
record_text() { # <name> <text>
  local REPLY=$2
  [[ $2 != *[\"\\[:cntrl:]]* ]] || record_fit "$2"
  RECORD+=,$'\n''  "'$1'": "'$REPLY'"'
}
record_raw() { # <name> <integer, true, false or null>
  RECORD+=,$'\n''  "'$1'": '$2
}
# An integer, or null where the value is empty (not known).
record_int() { # <name> <digits or empty>
  if [[ -z $2 ]]; then
    record_raw "$1" null
  elif [[ $2 =~ ^-?[0-9]+$ ]]; then
    record_raw "$1" "$2"
  else
    log "a bug here: member $1 of a record is to be an integer and is '$2'"
    return "$EX_INTEGRITY"
  fi
}
record_close() {
  RECORD+=$'\n''}'$'\n'
}

# lib/proc.bash: who a process is. A number alone is recycled; with its start and this boot it is one process.
# needs:

this_host() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/hostname"; } 2>/dev/null || REPLY=${HOSTNAME-unknown}
}
# Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), into REPLY.
start_ticks() { # <pid>    returns: 1 where there is no such process, or only its zombie
  local stat fields
  REPLY=
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  # The name in parentheses may hold blanks and parentheses itself: cut behind the last one.
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]-} != [ZX] ]] || return 1
  REPLY=${fields[19]-}
  [[ -n $REPLY ]]
}
same_process() { # <pid> <start ticks>
  local REPLY
  start_ticks "$1" && [[ $REPLY == "$2" ]]
}

# No dead mount, driver or server makes us wait for ever: WORDS, ended after SECONDS where a `timeout` works here, killed where they
# do not heed that.
within() { # <seconds> <words...>    returns: theirs, or 124
  local limit=$1 rc=0 begin=$SECONDS
  shift
  if ! command -v timeout >/dev/null 2>&1; then
    "$@"
  elif timeout -k 5 5 true 2>/dev/null; then
    timeout -k 5 "$limit" "$@" || rc=$?
  elif timeout 5 true 2>/dev/null; then
    timeout "$limit" "$@" || rc=$?
  else
    "$@"
  fi || return
  # Ended at the limit: by TERM under busybox (143), by KILL where TERM was not heeded (137). Before it, that is the words' own status.
  case $rc in 137 | 143) ((SECONDS - begin < limit)) || rc=124 ;; esac
  return "$rc"
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

# For little: openssl hashes quicker, but starts three times as slowly.
hash_tool_small() {
  if command -v sha256sum >/dev/null 2>&1; then HASH_TOOL=sha256sum; else hash_tool; fi
}

hash_text() { # <text>    sets REPLY
  local HASH_TOOL=${HASH_TOOL-}
  hash_tool_small
  REPLY=$(exec_hash_tool < <(printf '%s' "$1")) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
}

# lib/git.bash: is the code one recorded, pushed, clean commit? The gate of a formal run.
# needs: exit log path proc

# No call of git waits for ever for a dead mount, a filter, a helper or a server: a question, a look at all files, the network.
readonly GIT_ASK_S=60 GIT_LOOK_S=300 GIT_NET_S=180

# In the work tree GIT_TOP, with no prompt, no hook and no pager, in English; by the commit itself, not by what "git replace" put in
# its place here.
git_with() { # <seconds> <git's words...>    returns: git's, or 124
  local limit=$1 asked=(env GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 GIT_NO_REPLACE_OBJECTS=1 LANGUAGE=en)
  shift
  # A repository's own way to its origin (a key of its own) wins over ours.
  [[ -n ${GIT_OWN_SSH-} ]] || asked+=(GIT_SSH_COMMAND="ssh -oBatchMode=yes -oConnectTimeout=20")
  within "$limit" "${asked[@]}" git -C "$GIT_TOP" -c core.hooksPath=/dev/null -c core.fsmonitor=false --no-pager "$@" </dev/null
}
# A short question; its answer into REPLY.
git_ask() { # <git's words...>    returns: git's
  local rc=0
  REPLY=$(git_with "$GIT_ASK_S" "$@" 2>/dev/null) || rc=$?
  git_in_time "$rc" "$GIT_ASK_S" "$@"
}
# Refuses where git was ended by its limit: an empty answer would be taken for a "no".
git_in_time() { # <status> <seconds> <git's words...>    returns: the status
  local rc=$1 limit=$2 do="find what it waits for: a disk or mount that does not answer, a filter or a helper in 'git config --list'"
  shift 2
  ((rc == 124)) || return "$rc"
  [[ $limit != "$GIT_NET_S" ]] || do="look at the network, at a credential helper and at ssh: run it by hand there"
  refuse "$EX_MISSING" "git -C $GIT_TOP $*" "it did not end in $limit s, so nothing is known" "$do"
}
git_refuse() { # <what> <why> <what to do>
  refuse "$EX_GATE" "$1" "$2" "$3"
}

# Git and a work tree with a commit. The reasons are told apart: each has another remedy. Sets GIT_TOP GIT_HEAD GIT_BRANCH.
git_open() { # reads: CODE_DIR
  local REPLY said rc=0
  git_alone
  command -v git >/dev/null 2>&1 || refuse "$EX_MISSING" "the code" "git is not on PATH" "install git on this machine"
  within "$GIT_ASK_S" test -d "$CODE_DIR" || rc=$?
  ((rc != 124)) || refuse "$EX_MISSING" "cd $CODE_DIR" "its disk or mount did not answer in $GIT_ASK_S s" "find it in /proc/mounts and attach it again"
  ((rc == 0)) || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  GIT_TOP=$CODE_DIR GIT_OWN_SSH=${GIT_SSH_COMMAND-}${GIT_SSH-}
  [[ -n $GIT_OWN_SSH ]] || if git_ask config --get core.sshCommand; then GIT_OWN_SSH=$REPLY; fi
  if ! git_ask rev-parse --show-toplevel; then
    said=$(git_with "$GIT_ASK_S" rev-parse --show-toplevel 2>&1) || :
    case $said in
      *'dubious ownership'*)
        # The folder that git wants to be named is the top of the work tree.
        REPLY=$CODE_DIR
        [[ ! $said =~ \ repository\ at\ \'([^\']+)\' ]] || REPLY=${BASH_REMATCH[1]}
        git_refuse "git -C $CODE_DIR" "another user owns $REPLY (dubious ownership)" "git config --global --add safe.directory $REPLY"
        ;;
      *'not a git repository'*) git_refuse "git -C $CODE_DIR" "it is not a git repository" "clone the code there, or set CODE_DIR to its work tree" ;;
      *) git_refuse "git -C $CODE_DIR rev-parse" "${said//[[:cntrl:]]/ }" "make git work there first" ;;
    esac
  fi
  GIT_TOP=$REPLY
  git_ask rev-parse --verify -q HEAD || REPLY=''
  GIT_HEAD=$REPLY
  [[ $GIT_HEAD =~ ^[0-9a-f]{40,64}$ ]] || git_refuse "$GIT_TOP" "it has no commit yet" "commit the code and push it"
  git_ask symbolic-ref -q --short HEAD || REPLY=''
  # shellcheck disable=SC2034 # for the gate of a formal run
  GIT_BRANCH=$REPLY
  # A folder that some repository around it ignores is clean there, and recorded nowhere.
  said=$GIT_TOP GIT_TOP=$CODE_DIR
  git_ask ls-files -- . || :
  GIT_TOP=$said
  [[ -n $REPLY ]] || git_refuse "$CODE_DIR" "the repository $GIT_TOP around it tracks no file in it" "set CODE_DIR to the work tree of the code"
}
# What a caller's git has in its environment leads elsewhere, and is not this tree's.
git_alone() {
  unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR GIT_NAMESPACE
}

# Prefixes under GIT_TOP that hold the run's own output: what the run itself makes is no dirt. Sets GIT_EXEMPT.
git_exempt() { # <folder...>
  local dir top real code
  GIT_EXEMPT=()
  top=$(cd -P -- "$GIT_TOP" && pwd -P) || return
  code=$(cd -P -- "$CODE_DIR" && pwd -P) || return
  for dir in "$@"; do
    real=$(cd -P -- "$dir" 2>/dev/null && pwd -P) || continue
    # A run folder that holds the code exempts nothing: the code is what we look at.
    [[ $real/ == "$top"/?* && $code/ != "$real"/* ]] || continue
    GIT_EXEMPT+=("${real#"$top"/}/")
  done
}
git_is_exempt() { # <path of an untracked file>
  local prefix
  # Python loads nothing from __pycache__ that its source does not vouch for.
  [[ /$1 != */__pycache__/* ]] || return 0
  for prefix in ${GIT_EXEMPT[@]+"${GIT_EXEMPT[@]}"}; do
    [[ $1 != "$prefix"* ]] || return 0
  done
  return 1
}

# Modes count, whatever the repository's setting says, where the file system can hold them.
git_modes() { # prints true or false
  local REPLY probe
  { git_ask rev-parse --absolute-git-dir && probe=$(mktemp "$REPLY/mode.XXXXXX" 2>/dev/null); } || { echo true && return 0; }
  chmod 600 "$probe"
  if [[ -x $probe ]]; then echo false; else
    chmod 700 "$probe"
    if [[ -x $probe ]]; then echo true; else echo false; fi
  fi
  rm -f -- "$probe"
}

# All that differs from the commit: GIT_DIRTY (state and path) and GIT_UNTRACKED (paths). Names may hold anything.
git_look() { # returns: 0 looked, 1 git failed; refuses where it does not end
  local entry='' ended=1 modes hidden_words=(ls-files -v -z)
  GIT_DIRTY=() GIT_UNTRACKED=()
  modes=$(git_modes) || exit
  while IFS= read -r -d '' entry; do
    case $entry in
      '== end '*) ended=${entry##* } ;;
      '?? '*) git_is_exempt "${entry:3}" || GIT_UNTRACKED+=("${entry:3}") ;;
      [RC]*)
        GIT_DIRTY+=("$entry")
        IFS= read -r -d '' entry || break
        ;;
      *) GIT_DIRTY+=("$entry") ;;
    esac
  done < <(git_list_all -c core.fileMode="$modes" -c core.untrackedCache=false -c core.trustctime=true -c core.checkStat=default -c status.renames=false status --porcelain=v1 -z \
    --untracked-files=all --ignore-submodules=none)
  git_in_time "$ended" "$GIT_LOOK_S" status || return 1
  # Files that a person told git not to look at are hidden edits waiting to happen, in a repository inside this one too.
  [[ ! -f $GIT_TOP/.gitmodules ]] || hidden_words+=(--recurse-submodules)
  ended=1
  while IFS= read -r -d '' entry; do
    case $entry in
      '== end '*) ended=${entry##* } ;;
      [a-z]\ *) GIT_DIRTY+=("hidden (assume-unchanged) ${entry:2}") ;;
      # A sparse checkout leaves such files out; one that is there is not compared.
      S\ *) [[ ! -e $GIT_TOP/${entry:2} && ! -L $GIT_TOP/${entry:2} ]] || GIT_DIRTY+=("hidden (skip-worktree) ${entry:2}") ;;
    esac
  done < <(git_list_all "${hidden_words[@]}")
  git_in_time "$ended" "$GIT_LOOK_S" ls-files -v
}
# What git lists with -z, and behind it how git ended: a list that breaks off is none.
git_list_all() { # <git's words...>    prints
  local rc=0
  git_with "$GIT_LOOK_S" "$@" 2>/dev/null || rc=$?
  printf '== end %s\0' "$rc"
}

# Lines for people: the first 20, control characters made visible.
git_list() { # prints
  local entry n=0 total=$((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]}))
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"} ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]/#/?? }"}; do
    ((n++ < 20)) || break
    printf '  %s\n' "${entry//[[:cntrl:]]/?}"
  done
  ((total <= 20)) || printf '  … and %d more\n' $((total - 20))
}

# lib/syntax.bash: does what is going to run parse at all? Asked before anything is paid for (F3), on the laptop too (bash 3.2).
# needs: exit log git
# reads: CODE_DIR PY SMOKE_COMMAND QUEUE_COMMANDS

# Does a command of the queue name this file, by its path or as a Python module?
named_in_queue() { # <path in the code directory>
  local all="${SMOKE_COMMAND-} ${QUEUE_COMMANDS[*]-}" module=${1%.py}
  [[ $all =~ (^|[^A-Za-z0-9_.-])"$1"([^A-Za-z0-9_.-]|$) ]] && return 0
  [[ $1 == *.py && $all =~ -m\ +"${module//\//.}"([^A-Za-z0-9_.-]|$) ]]
}

# Files of the code directory by their ending, each with NUL behind it: those that git has or would take, all without git.
code_files() { # <ending>    prints
  local file
  (
    cd -- "$CODE_DIR" || exit
    git_alone
    within "$GIT_LOOK_S" git -c core.fsmonitor=false ls-files -z --cached --others --exclude-standard -- "*.$1" 2>/dev/null && exit
    while IFS= read -r -d '' file; do printf '%s\0' "${file#./}"; done < <(find . -name '.?*' -prune -o -type f -name "*.$1" -print0)
  )
}

# Python files that PY cannot compile: "path<TAB>why", NUL behind each. Compiles in memory, leaves no file.
python_faults() { # prints
  [[ $("$PY" --version 2>&1 </dev/null) == 'Python 3'* ]] || return 0
  code_files py | (cd -- "$CODE_DIR" && "$PY" -I -W ignore -c '
import os, sys
for name in sys.stdin.buffer.read().split(b"\0"):
    try:
        if name and os.path.isfile(name):
            compile(open(name, "rb").read(), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as why:
        sys.stdout.buffer.write(name + b"\t" + str(why).encode("utf-8", "replace") + b"\0")
    except OSError:
        pass
') 2>/dev/null
}

# Shell files that do not parse, in the same form. Files of another shell are none of bash's business.
shell_faults() { # prints
  local file first said
  while IFS= read -r -d '' file; do
    [[ -f $CODE_DIR/$file ]] || continue
    { IFS= read -r first <"$CODE_DIR/$file" || :; } 2>/dev/null
    [[ $first != '#!'* || $first =~ [/\ ](ba)?sh([[:space:]]|$) ]] || continue
    said=$("$BASH" -n -- "$CODE_DIR/$file" 2>&1) || printf '%s\t%s\0' "$file" "${said%%$'\n'*}"
  done < <(code_files sh)
}

# Our own scripts must parse, and each file of the code that a command of the queue names. Another one that does not is
# only named: a repository may hold templates and examples that are no programs. Sets SYNTAX_SAID.
gate_syntax() { # <folders of ours...>
  local dir file why said others=0
  for dir in "$@"; do
    for file in "$dir"/*.sh; do
      [[ -f $file ]] || continue
      said=$("$BASH" -n -- "$file" 2>&1) || refuse "$EX_GATE" "bash -n $file" "${said%%$'\n'*}" "copy the whole folder ${dir##*/}/ again"
    done
  done
  while IFS=$'\t' read -r -d '' file why; do
    why=${why//[[:cntrl:]]/ }
    ! named_in_queue "$file" || refuse "$EX_GATE" "the syntax of $CODE_DIR/$file" "$why" "mend it, commit and push it, and run the smoke again"
    others=$((others + 1))
    ((others > 5)) || log "warning: $CODE_DIR/${file//[[:cntrl:]]/?} does not parse: $why"
  done < <(shell_faults && python_faults)
  SYNTAX_SAID="our scripts and the files that the queue names parse; others that do not: $others"
}

# lib/compat.bash: the laptop's userland, be it GNU, busybox or BSD. Bash 3.2 is enough.
# needs: exit log

# Which dialect of stat is here: chosen once.
stat_dialect() {
  [[ -z ${STAT_DIALECT-} ]] || return 0
  if stat -c %s / >/dev/null 2>&1; then STAT_DIALECT=gnu; else STAT_DIALECT=bsd; fi
}

# Run WORDS, and end them after SECONDS. No `timeout` on a Mac. Standard input passes through.
bounded() { # <seconds> <words...>    returns: theirs, or 124
  local limit=$1 pid watch fired=0 rc=0
  shift
  "$@" <&0 &
  pid=$!
  # The watcher holds none of our pipes, so that nobody waits for its sleep.
  (
    fired=0
    # $! and not nap: a TERM may come before nap has its number. Before the sleep it is still the words' own.
    trap '[[ $! == "$pid" ]] || kill "$!" 2>/dev/null || :' EXIT
    trap 'exit "$fired"' TERM
    # A second at a time: a TERM in the midst of its start may leave one behind, with all that we have open.
    while ((limit-- > 0)); do
      sleep 1 &
      nap=$!
      wait "$nap" || exit 0
      # bash may lose the end of a child; its wait then lasts as long as there is another one: us.
      kill -0 "$pid" 2>/dev/null || exit 0
    done
    # Before the kill: we may be told to go as soon as the words have ended.
    fired=9
    kill -TERM "$pid" 2>/dev/null || exit 0
    sleep 2 &
    nap=$!
    wait "$nap"
    kill -KILL "$pid" 2>/dev/null
    exit 9
  ) </dev/null >/dev/null 2>&1 &
  watch=$!
  wait "$pid" || rc=$?
  kill -TERM "$watch" 2>/dev/null || :
  # What a program says that was ended is its own matter (ssh: 255); the watcher knows.
  wait "$watch" 2>/dev/null || fired=$?
  ((fired != 9)) || rc=124
  return "$rc"
}

# lib/steps.bash: which steps a log names, and which step a checkpoint says that it is of (bash 3.2, BSD userland too).
# needs: exit log compat
# reads: PY SMOKE_WORK

# Numbers that a log gives to its steps ("epoch 3", "step: 120", "iter=7"), one a line. Steps may begin anew in each epoch. So
# lines that have both count as (epoch + 1) times 10^9 and the step; else the epochs count where there is more than one of them;
# else the steps. KIND asks for one of the three (both, epoch, step); the word "kind" instead prints which one it would be. With
# "lines" each number stands behind that of its line and before how many there are ("epoch 2/40"; 0: it is not said).
smoke_steps() { # <log> [kind] [lines]    prints
  awk -v want="${2-}" -v lines="${3-}" -v q="'" '
    function number(word) {
      if (!match($0, "(^|[^A-Za-z0-9_])[\"" q "]?" word "[] :=#[\"" q "]*[0-9]+")) return ""
      word = substr($0, RSTART, RLENGTH)
      rest = substr($0, RSTART + RLENGTH)
      of = 0
      if (match(rest, /^ *(\/|of) *[0-9]+/)) {
        of = substr(rest, RSTART, RLENGTH)
        gsub(/[^0-9]/, "", of)
        of = substr(of, 1, 9) + 0
      }
      gsub(/[^0-9]/, "", word)
      return substr(word, 1, 9)
    }
    function put(value, line, total) {
      if (lines != "") printf "%d %.0f %d\n", line, value, total
      else printf "%.0f\n", value
    }
    {
      epoch = number("[Ee]poch")
      if (epoch != "") { epochs[++e] = epoch + 0; epoch_at[e] = NR; epoch_of[e] = of; if (epochs[e] != epochs[1]) several = 1 }
      step = number("([Gg]lobal_step|[Ss]tep|[Ii]ter|[Ii]teration)")
      if (step != "") { steps[++s] = step + 0; step_at[s] = NR; step_of[s] = of }
      if (epoch != "" && step != "") { both[++n] = (epoch + 1) * 1000000000 + step; both_at[n] = NR }
    }
    END {
      kind = n ? "both" : several || !s ? "epoch" : "step"
      if (want == "kind") { print kind; exit }
      if (want != "") kind = want
      if (kind == "both") for (i = 1; i <= n; i++) put(both[i], both_at[i], 0)
      if (kind == "epoch") for (i = 1; i <= e; i++) put(epochs[i], epoch_at[i], epoch_of[i])
      if (kind == "step") for (i = 1; i <= s; i++) put(steps[i], step_at[i], step_of[i])
    }' "$1"
}

# A step for people, into REPLY.
step_name() { # <number of smoke_steps> <kind>
  REPLY="${2/both/step} $1"
  [[ -z $1 ]] || (($1 < 1000000000)) || REPLY="epoch $(($1 / 1000000000 - 1)), step $(($1 % 1000000000))"
}

# What tells one state of a checkpoint (a file or a folder of files) from the next, into REPLY; empty where it is not there yet.
checkpoint_stamp() { # <path>
  stat_dialect
  REPLY=''
  [[ -e $1 && ! -L $1 ]] || return 0
  case $STAT_DIALECT in
    gnu) REPLY=$(find "$1" -type f -size +0 -exec stat -c '%n %s %i %Y %Z' {} + 2>/dev/null) || : ;;
    *) REPLY=$(find "$1" -type f -size +0 -exec stat -f '%N %z %i %m %c' {} + 2>/dev/null) || : ;;
  esac
}

# The epoch and the step that a checkpoint itself names: by the job's own Python, from JSON, a bare number, or what torch loads
# without running anything that lies in it. Sets CKPT_EPOCH and CKPT_STEP, each empty where it is not known.
checkpoint_says() { # <path>
  local name value
  CKPT_EPOCH='' CKPT_STEP=''
  [[ $("$PY" --version 2>&1 </dev/null) == 'Python 3'* ]] || return 0
  while read -r name value; do
    case $name in
      epoch) CKPT_EPOCH=$value ;;
      step) CKPT_STEP=$value ;;
    esac
  done < <(CUDA_VISIBLE_DEVICES='' bounded 60 "$PY" -I -W ignore -c '
import json, os, sys
NAMES = {"epoch": ("epoch", "epochs", "epochs_done", "current_epoch"),
         "step": ("global_step", "step", "steps", "iteration", "iter", "it", "n")}
def values(path):
    try:
        yield json.loads(open(path, encoding="utf-8").read(1 << 20))
    except (OSError, ValueError, RecursionError):
        pass
    if os.path.isfile(path) and open(path, "rb").read(2) in (b"PK", b"\x80\x02"):
        import torch
        yield torch.load(path, map_location="cpu", weights_only=True)
def look(value, depth=0):
    if isinstance(value, dict) and depth < 2:
        for kind, names in NAMES.items():
            for name in names:
                number = value.get(name)
                number = number.item() if getattr(number, "ndim", 1) == 0 else number
                if kind not in found and isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number < 1e9:
                    found[kind] = int(number)
        for inner in list(value.values())[:100]:
            look(inner, depth + 1)
    elif depth == 0 and isinstance(value, int) and 0 <= value < 1e9:
        found["step"] = value
found, top = {}, sys.argv[1]
paths = [top] if os.path.isfile(top) else sorted(os.path.join(at, name) for at, _, names in os.walk(top) for name in names)[:50]
for path in paths:
    try:
        for value in values(path):
            look(value)
    except Exception:
        pass
for kind, number in found.items():
    print(kind, number)
' "$1" 2>/dev/null </dev/null)
}

# lib/measure.bash: what a trial takes: time of a step, memory, size (bash 3.2, BSD userland too).
# needs: exit log steps
# reads: SMOKE_WORK SMOKE_LOG SMOKE_PID

# Milliseconds of a clock that nobody sets, where there is one, into REPLY.
now_ms() {
  local up
  if { read -r up _ </proc/uptime; } 2>/dev/null && [[ $up =~ ^([0-9]+)[.]([0-9][0-9])$ ]]; then
    REPLY=$((BASH_REMATCH[1] * 1000 + 10#${BASH_REMATCH[2]} * 10))
  else
    REPLY=$((SECONDS * 1000))
  fi
}

in_time() { # <limit in those milliseconds>    returns: 1 where it is past
  now_ms
  ((REPLY < $1))
}

# How many lines the log had, and when: a line in the file times whenever it grew. The log is open as 3.
note_lines() { # reads and sets: LINES_SEEN
  local line before=$LINES_SEEN REPLY
  while IFS= read -r line <&3; do LINES_SEEN=$((LINES_SEEN + 1)); done
  ((LINES_SEEN > before)) || return 0
  now_ms
  printf '%s %s\n' "$REPLY" "$LINES_SEEN" >>"$SMOKE_WORK/times"
}

# The memory of the attempt's group: the largest sum of what its processes held, in kB, into the file peak. Where ps cannot say
# it, the file stays away.
note_memory() { # reads and sets: PEAK
  local now
  now=$({ ps -A -o pgid= -o rss= || ps -o pgid,rss; } 2>/dev/null | awk -v g="$SMOKE_PID" '$1 == g && $2 ~ /^[0-9]+$/ {n += $2} END {printf "%d", n}') || now=0
  ((now > PEAK)) || return 0
  PEAK=$now
  printf '%s\n' "$PEAK" >"$SMOKE_WORK/peak"
}

# Beside an attempt, for so long: lines ten times a second, memory at first and then each second.
watch_attempt() { # <seconds>
  local REPLY until n=0 LINES_SEEN=0 PEAK=0
  now_ms
  until=$((REPLY + $1 * 1000))
  exec 3<"$SMOKE_LOG"
  while in_time "$until"; do
    # Whoever waits for the attempt was killed: nobody would record how it ends.
    kill -0 $$ 2>/dev/null || break
    note_lines
    ((n > 3 && n % 10 > 0)) || note_memory
    n=$((n + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
}

# What was measured of the attempt that has ended: MEASURED_STEP_MS, the time of one step (empty where its log named fewer than
# two, or they came too fast to be told apart), and MEASURED_TOTAL, how many steps it said that there are ("epoch 2/40").
measure_steps() {
  local REPLY kind end
  MEASURED_STEP_MS='' MEASURED_TOTAL=''
  # What came between the last look and the end.
  now_ms
  end="$REPLY 1000000000"
  kind=$(smoke_steps "$SMOKE_LOG" kind)
  read -r MEASURED_STEP_MS MEASURED_TOTAL < <(smoke_steps "$SMOKE_LOG" "$kind" lines | awk '
    FNR == NR { ms[++n] = $1; upto[n] = $2; next }
    {
      while (i < n && upto[i + 1] < $1) i++
      at = ms[i + 1]
      if ($3 + 0 > total) total = $3 + 0
      # Steps that begin anew: only those of the first epoch.
      if (!got) { got = 1; first = $2; start = at; whole = int($2 / 1000000000) }
      else if ($2 > first && int($2 / 1000000000) == whole && at > start) each = (at - start) / ($2 - first)
    }
    END { printf "%s %s\n", (each ? int(each + 0.5) : "-"), (total ? total : "-") }' <(
    cat -- "$SMOKE_WORK/times" 2>/dev/null
    printf '%s\n' "$end"
  ) -) || :
  MEASURED_STEP_MS=${MEASURED_STEP_MS#-} MEASURED_TOTAL=${MEASURED_TOTAL#-}
}

# What the attempt left in CELL_DIR. Sets MEASURED_BYTES and MEASURED_FILES.
measure_room() {
  read -r MEASURED_BYTES MEASURED_FILES < <(find "$SMOKE_WORK/cell" -type f -exec wc -c {} + 2>/dev/null |
    awk '{ if ($2 == "total" && NF == 2) next; b += $1; n++ } END { printf "%.0f %d\n", b, n }') || MEASURED_BYTES='' MEASURED_FILES=''
}

# lib/negative.bash: what failed is a result too: a line that stays, so that nobody pays for it twice without knowing (X4).
# needs: log

# One more line; it decides nothing, so a full disk here stops nothing.
negative_line() { # <file> <where> <commit> <exit> <seconds> <why> <command>
  local REPLY
  utc_now
  [[ -s $1 ]] || printf '# time\twhere\tcommit\texit\tseconds\twhy\tcommand\n' 2>/dev/null >"$1" || return 0
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$REPLY" "$2" "$3" "$4" "$5" "${6//[[:cntrl:]]/ }" "${7//[[:cntrl:]]/ }" 2>/dev/null >>"$1" || :
}

# lib/smoke.bash: one short trial of the job's smoke command, on the box and on the laptop (bash 3.2, BSD userland too).
# needs: exit log path file record hash git proc compat measure negative
# reads: SMOKE_WHERE (box or laptop) SMOKE_RECORD (its file) SMOKE_ROOT (where scratch folders go) SMOKE_BOX_DIGEST
#        CODE_DIR PY SMOKE_COMMAND SMOKE_ARTIFACT SMOKE_TIMEOUT_S SAVE_S NEED_DISK_BYTES, and the function
#        smoke_env: exports a cell's environment for CELL_DIR CELL_ATTEMPT CELL_RESUME

# The commit that this trial speaks of: none where the tree holds anything else than a commit. Sets SMOKE_COMMIT.
smoke_commit() { # <folders of our own output...>
  local REPLY said
  SMOKE_COMMIT=none SMOKE_DIRT='there is no git on PATH'
  command -v git >/dev/null 2>&1 || return 0
  git_alone
  GIT_TOP=$CODE_DIR
  git_ask rev-parse --verify HEAD || {
    said=$(git_with "$GIT_ASK_S" rev-parse --verify HEAD 2>&1) || :
    SMOKE_DIRT="git names no commit in $CODE_DIR: ${said%%$'\n'*}"
    return 0
  }
  git_open
  git_exempt "$@"
  git_look || { SMOKE_DIRT="git status failed" && return 0; }
  if ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)); then
    SMOKE_DIRT="files in $GIT_TOP are in no commit"
    git_list >&2
    return 0
  fi
  SMOKE_COMMIT=$GIT_HEAD SMOKE_DIRT=''
}

# Is the code still what the trial began with? Where it is not, the trial speaks of no commit.
smoke_same_code() { # reads: SMOKE_OURS
  local before=$SMOKE_COMMIT
  [[ $before != none ]] || return 0
  smoke_commit "${SMOKE_OURS[@]}"
  [[ $SMOKE_COMMIT == "$before" ]] || SMOKE_DIRT="the code changed while the trial ran, or the trial left files in it: ${SMOKE_DIRT:-it went from $before to $SMOKE_COMMIT}"
  [[ $SMOKE_COMMIT == "$before" ]] || SMOKE_COMMIT=none
}

# A scratch folder of our own: what a smoke makes never lies among results.
smoke_scratch() { # sets SMOKE_WORK
  local REPLY this
  if ! mkdir -p -- "$SMOKE_ROOT" || ! SMOKE_WORK=$(mktemp -d "$SMOKE_ROOT/smoke.$$.XXXXXX"); then
    refuse "$EX_NOROOM" "a scratch folder in $SMOKE_ROOT" "it cannot be made" "look at its room and rights, or set SCRATCH"
  fi
  SMOKE_PIDS=''
  trap 'smoke_clean $?' EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  start_ticks $$ || :
  this="$$ ${REPLY:--} "
  this_host
  # The mark first: what holds anything is marked, however this ends.
  if ! printf '%s\n' "$this$REPLY" >"$SMOKE_WORK/.smoke-of" || ! mkdir -p -- "$SMOKE_WORK/cell" "$SMOKE_WORK/tmp" "$SMOKE_WORK/t/0" "$SMOKE_WORK/cache"; then
    refuse "$EX_NOROOM" "$SMOKE_WORK" "it cannot be filled" "look at its room, its inodes and rights, or set SCRATCH"
  fi
}

# Scratch folders of smokes that were killed, with what still runs of them. Only our own, marked as that, of this machine; without
# a mark, where the process of its name has gone and it is empty: that one was killed before its first line.
smoke_leftovers() {
  local REPLY dir pid ticks host
  for dir in "$SMOKE_ROOT"/smoke.gone.*; do
    [[ ! -O $dir || -L $dir ]] || rm -rf -- "$dir"
  done
  for dir in "$SMOKE_ROOT"/smoke.[0-9]*; do
    [[ -O $dir && ! -L $dir && -d $dir ]] || continue
    pid='' ticks='' host=''
    [[ ! -s $dir/.smoke-of ]] || read -r pid ticks host <"$dir/.smoke-of" || continue
    this_host
    if [[ -z $pid ]]; then
      pid=${dir##*/smoke.} pid=${pid%%.*} ticks=- host=$REPLY
      [[ -z $(ls -A -- "$dir") || $(ls -A -- "$dir") == .smoke-of ]] || continue
    fi
    [[ $host == "$REPLY" && $pid =~ ^[1-9][0-9]*$ ]] || continue
    if [[ $ticks == - ]]; then ! kill -0 "$pid" 2>/dev/null || continue; else ! same_process "$pid" "$ticks" || continue; fi
    smoke_stragglers "$dir"
    # Its timed copy of a checkpoint is as large as one; a record that it was writing is none.
    rm -rf -- "${SMOKE_RECORD%/*}"/.{smoke,smoke.json,drill.json}."$pid.tmp"
    smoke_remove "$dir" && log "removed $dir of a smoke that was killed"
  done
}

# Under another name first: half removed it has perhaps no mark any more, and that name says that it may go.
smoke_remove() { # <scratch folder>
  local gone=$SMOKE_ROOT/smoke.gone.${1##*/smoke.}
  mv -- "$1" "$gone" 2>/dev/null || gone=$1
  rm -rf -- "${gone:?}"
}

# End what an attempt started and what left its group: known by CELL_DIR in its environment, where /proc shows it.
smoke_stragglers() { # <scratch folder>    sets SMOKE_STRAGGLERS: how many there were
  local file round found
  SMOKE_STRAGGLERS=0
  for round in 1 2 3 4 5; do
    found=$(grep -lsF -- "CELL_DIR=$1/cell" /proc/[0-9]*/environ 2>/dev/null) || :
    [[ -n $found ]] || return 0
    while IFS= read -r file; do
      file=${file#/proc/}
      kill -KILL "${file%/environ}" 2>/dev/null || continue
      ((round > 1)) || SMOKE_STRAGGLERS=$((SMOKE_STRAGGLERS + 1))
    done <<<"$found"
    sleep 0.1 2>/dev/null || sleep 1
  done
}
smoke_clean() { # <status>
  local pid
  trap - EXIT
  for pid in $SMOKE_PIDS; do kill -KILL -- "-$pid" 2>/dev/null || :; done
  smoke_stragglers "$SMOKE_WORK"
  smoke_remove "${SMOKE_WORK:?}"
  exit "$1"
}

# Start one attempt in a process group of its own. Sets SMOKE_PID.
smoke_launch() { # <attempt> <resume 0 or 1> <log>
  CELL_DIR=$SMOKE_WORK/cell CELL_ATTEMPT=$1 CELL_RESUME=$2 SMOKE_LOG=$3
  rm -f -- "$SMOKE_WORK/times" "$SMOKE_WORK/peak"
  : >"$SMOKE_LOG"
  set -m
  (
    cd -- "$CODE_DIR" || exit
    smoke_env || exit
    # A trial reports nothing to a tracker.
    export WANDB_MODE=disabled WANDB_SILENT=true COMET_MODE=disabled CLEARML_OFFLINE_MODE=1 NEPTUNE_MODE=offline SWANLAB_MODE=disabled
    export MLFLOW_TRACKING_URI=$SMOKE_WORK/tmp/mlruns
    # What an attempt is started with, as it is started.
    printf '%s\0' "$CODE_DIR" bash -c "$SMOKE_RUN" >"$SMOKE_WORK/words$1" || exit
    exec bash -c "$SMOKE_RUN"
  ) </dev/null >"$3" 2>&1 &
  SMOKE_PID=$!
  smoke_guard &
  set +m
  SMOKE_PIDS="$SMOKE_PIDS $SMOKE_PID"
}
# An attempt does not outlive whoever waits for it, also where that is killed. Ends by itself with the attempt's group.
smoke_guard() {
  while kill -0 -- "-$SMOKE_PID"; do
    kill -0 $$ || {
      kill -KILL -- "-$SMOKE_PID" || :
      break
    }
    sleep 0.2 || sleep 1
  done
} </dev/null >/dev/null 2>&1

# Wait for the attempt within the limit; the whole group ends with it. Sets SMOKE_EXIT and SMOKE_LATE.
smoke_wait() {
  local REPLY dog rc=0 until
  now_ms
  until=$((REPLY + SMOKE_TIMEOUT_S * 1000))
  set -m
  (
    # Whatever cannot be noted (a full disk): the limit holds.
    watch_attempt "$SMOKE_TIMEOUT_S" || :
    kill -TERM -- "-$SMOKE_PID" && kill -CONT -- "-$SMOKE_PID" || :
    sleep 10
    kill -KILL -- "-$SMOKE_PID"
  ) </dev/null >/dev/null 2>&1 &
  dog=$!
  set +m
  SMOKE_PIDS="$SMOKE_PIDS $dog"
  { wait "$SMOKE_PID" || rc=$?; } 2>/dev/null
  { kill -KILL -- "-$dog" && wait "$dog"; } >/dev/null 2>&1 || :
  kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
  SMOKE_PIDS=''
  SMOKE_LATE=0
  in_time "$until" || SMOKE_LATE=1
  smoke_stragglers "$SMOKE_WORK"
  ((SMOKE_STRAGGLERS == 0)) || log "warning: $SMOKE_STRAGGLERS process(es) of the trial outlived it and were ended"
  SMOKE_PEAK=''
  if { IFS= read -r SMOKE_PEAK <"$SMOKE_WORK/peak"; } 2>/dev/null && [[ $SMOKE_PEAK =~ ^[0-9]+$ ]]; then SMOKE_PEAK=$((SMOKE_PEAK * 1024)); else SMOKE_PEAK=''; fi
  SMOKE_EXIT=$rc
  measure_steps
  measure_room
}

# Digest and size of the artifact, a file or a folder of files. Sets SMOKE_SHA and SMOKE_BYTES.
smoke_digest() { # <path>
  local file list='' size REPLY
  SMOKE_SHA='' SMOKE_BYTES=0
  if [[ -f $1 ]]; then
    hash_file "$1" || return
    SMOKE_SHA=$REPLY
    SMOKE_BYTES=$(($(wc -c <"$1")))
    return 0
  fi
  while IFS= read -r file; do
    hash_file "$file" || return
    list+="$REPLY  ${file#"$1"/}"$'\n'
    size=$(wc -c <"$file") || return
    SMOKE_BYTES=$((SMOKE_BYTES + size))
  done < <(find "$1" -type f | LC_ALL=C sort)
  [[ -n $list ]] || return 1
  hash_text "$list" && SMOKE_SHA=$REPLY
}

# Is the artifact of this trial? Not a link out of CELL_DIR, and made between its start and its end; of a folder, that holds for
# one file at least (what a trainer copies along may be older) and nothing is newer. Sets SMOKE_WHY.
smoke_fresh() { # <artifact>
  local dir=${1%/*} cell=$SMOKE_WORK/cell
  SMOKE_WHY="it left no $SMOKE_ARTIFACT in CELL_DIR"
  [[ ! -L $1 && -e $1 ]] || return 1
  dir=$(cd -P -- "$dir" && pwd -P) && cell=$(cd -P -- "$cell" && pwd -P) || return 1
  SMOKE_WHY="$SMOKE_ARTIFACT lies outside of CELL_DIR, in $dir"
  [[ $dir/ == "$cell"/* ]] || return 1
  SMOKE_WHY="$SMOKE_ARTIFACT was not written by this trial: its time lies outside of it (or the clock was set meanwhile)"
  [[ ! $1 -ot $SMOKE_WORK/start && ! $1 -nt $SMOKE_WORK/end ]] || return 1
  [[ -d $1 ]] || return 0
  [[ -n $(find "$1" -type f ! -newer "$SMOKE_WORK/end" -newer "$SMOKE_WORK/start" | head -n 1) && -z $(find "$1" -type f -newer "$SMOKE_WORK/end" | head -n 1) ]]
}

# Did the trial write among results (X1)? While no run has begun there, nobody else does. Sets SMOKE_WHY.
smoke_spilled() { # reads: SMOKE_RESULTS (folders, may be none) HF_HOME    returns: 0 it did
  local found dir skip=() look=()
  for dir in ${SMOKE_RESULTS[@]+"${SMOKE_RESULTS[@]}"}; do [[ ! -d $dir ]] || look+=("$dir"); done
  ((${#look[@]} > 0)) || return 1
  for dir in "$CODE_DIR" "$SMOKE_ROOT" "${SMOKE_RECORD%/*}/drill.json" ${HF_HOME:+"$HF_HOME"}; do skip+=(-path "$dir" -prune -o); done
  found=$(bounded 60 find "${look[@]}" "${skip[@]}" -type f -newer "$SMOKE_WORK/start" -print 2>/dev/null </dev/null | head -n 1) || :
  [[ -n $found ]] || return 1
  found=${found//[[:cntrl:]]/?}
  if [[ -e ${SMOKE_RESULTS[0]}/run.json ]]; then
    log "warning: $found was written meanwhile, by the run or by the trial; a trial writes into CELL_DIR alone"
    return 1
  fi
  SMOKE_WHY="it wrote among results, outside of CELL_DIR: $found"
}

# Was it a real trial? Exit 0 in time, no traceback, and a fresh artifact. Sets SMOKE_RESULT and SMOKE_WHY.
smoke_judge() { # <log>
  local REPLY artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  SMOKE_RESULT=failed SMOKE_SHA='' SMOKE_BYTES=''
  now_ms
  SMOKE_SECONDS=$(((REPLY - SMOKE_BEGIN) / 1000))
  smoke_same_code
  : >"$SMOKE_WORK/end" || refuse "$EX_NOROOM" "$SMOKE_WORK" "there is no room for an empty file" "look at its inodes, or set SCRATCH"
  if ((SMOKE_LATE)); then
    SMOKE_WHY="it was not done in $SMOKE_TIMEOUT_S s"
  elif ((SMOKE_EXIT != 0)); then
    SMOKE_WHY="it ended with status $SMOKE_EXIT"
    case $SMOKE_EXIT in 126 | 127) SMOKE_WHY+=": a command of it cannot be run, or is not on PATH" ;; esac
  elif grep -q 'Traceback (most recent call last)' "$1"; then
    SMOKE_WHY="it ended with 0, but its log holds a traceback"
  elif ! smoke_fresh "$artifact" || smoke_spilled; then
    :
  elif ! smoke_digest "$artifact" || ((SMOKE_BYTES == 0)); then
    SMOKE_WHY="$SMOKE_ARTIFACT is empty or cannot be read"
    SMOKE_SHA='' SMOKE_BYTES=''
  else
    SMOKE_RESULT=passed SMOKE_WHY=$SMOKE_DIRT
  fi
}

# How long one checkpoint of this size takes on the disk where cells write theirs, rounded up. Sets SMOKE_SAVE_S.
smoke_time_save() {
  local REPLY begin to=${SMOKE_RECORD%/*}/.smoke.$$.tmp
  now_ms
  begin=$REPLY SMOKE_SAVE_S=''
  if cp -R -- "$SMOKE_WORK/cell/$SMOKE_ARTIFACT" "$to" 2>/dev/null && flush "$to"; then
    now_ms
    SMOKE_SAVE_S=$(((REPLY - begin) / 1000 + 1))
  fi
  rm -rf -- "$to"
  [[ -z $SMOKE_SAVE_S || $SMOKE_SAVE_S -le $SAVE_S ]] ||
    log "warning: one checkpoint took $SMOKE_SAVE_S s to save, the job says save_s: $SAVE_S"
  ((SMOKE_BYTES <= NEED_DISK_BYTES)) ||
    log "warning: one checkpoint has $SMOKE_BYTES bytes, the job's needs.disk_gb is $NEED_DISK_BYTES bytes for a whole cell"
}

smoke_write() { # <result> <exit> <seconds> <artifact digest> <save_s> <bytes> <who> <why>
  local REPLY
  record_open smoke/1
  record_text where "$SMOKE_WHERE"
  record_text result "$1"
  record_text commit "$SMOKE_COMMIT"
  record_text box_digest "$SMOKE_BOX_DIGEST"
  this_host
  record_text host "$REPLY"
  record_text code_dir "$CODE_DIR"
  record_text py "${SMOKE_PY-}"
  record_text env_spec "${SMOKE_ENV-}"
  record_int exit "$2" || return
  record_int seconds_s "$3" || return
  record_text artifact_sha256 "$4"
  record_int save_s "$5" || return
  record_int ckpt_bytes "$6" || return
  record_int steps "${SMOKE_STEPS_SEEN-}" || return
  record_int step_ms "${MEASURED_STEP_MS-}" || return
  record_int peak_memory_bytes "${SMOKE_PEAK-}" || return
  record_int cell_bytes "${MEASURED_BYTES-}" || return
  record_int cell_files "${MEASURED_FILES-}" || return
  record_text who "$7"
  record_text why "$8"
  utc_now
  record_text ended "$REPLY"
  # Over all lines above: a record that was edited by hand is found out.
  hash_text "$RECORD" || return
  record_text self_sha256 "$REPLY"
  record_close
  replace_file "$SMOKE_RECORD" "$RECORD"
}

smoke_waive() { # <WHO=WHY>
  local who=${1%%=*} why=${1#*=}
  [[ $1 == *=* && $who == *[![:space:]]* && $why == *[![:space:]]* ]] ||
    refuse "$EX_USAGE" "--waive $1" "a waiver names who waives and why" "--waive 'WHO=WHY'"
  smoke_write waived '' '' '' '' '' "$who" "$why" || return
  log "smoke WAIVED by $who: $why"
}

# From here on counts what the trial takes, and what it writes is fresh.
smoke_begin() {
  local REPLY
  now_ms
  SMOKE_BEGIN=$REPLY SMOKE_SAVE_S=''
  : >"$SMOKE_WORK/start"
}

smoke_trial() { # returns: 0 passed, 1 failed
  local log=$SMOKE_WORK/log
  SMOKE_CELL=smoke SMOKE_RUN=$SMOKE_COMMAND
  smoke_begin
  log "smoke: in $CODE_DIR, at most $SMOKE_TIMEOUT_S s: $SMOKE_COMMAND"
  smoke_launch 1 0 "$log"
  smoke_wait
  smoke_judge "$log"
  [[ $SMOKE_RESULT != passed ]] || smoke_time_save
  smoke_report "$log"
}

# A trial that failed is a result too: a line that stays, so that nobody pays for the same one twice without knowing (X4).
negative_file() { # sets NEGATIVE
  NEGATIVE=${SMOKE_RECORD%/*}/NEGATIVE_RESULTS.tsv
  # The box's own comes home under its name: the laptop's has another.
  [[ $SMOKE_WHERE == box ]] || NEGATIVE=${NEGATIVE%.tsv}.laptop.tsv
}
negative_add() {
  local NEGATIVE
  negative_file
  negative_line "$NEGATIVE" "$SMOKE_WHERE" "$SMOKE_COMMIT" "$SMOKE_EXIT" "$SMOKE_SECONDS" "$SMOKE_WHY" "$SMOKE_COMMAND"
}
negative_known() { # says so where this very trial has failed before
  local NEGATIVE line when='' where commit status seconds why command
  negative_file
  [[ -s $NEGATIVE && $SMOKE_COMMIT != none ]] || return 0
  while IFS=$'\t' read -r line where commit status seconds why command; do
    if [[ $commit == "$SMOKE_COMMIT" && $command == "${SMOKE_COMMAND//[[:cntrl:]]/ }" ]]; then when="$line: $why (exit $status, $seconds s, on the $where)"; fi
  done <"$NEGATIVE"
  [[ -z $when ]] || log "warning: this command failed at this commit before, $when; see $NEGATIVE"
}

smoke_report() { # <log>
  tail -n 20 -- "$1" >&2
  SMOKE_STEPS_SEEN=$(smoke_steps "$1" | sort -u | wc -l) SMOKE_STEPS_SEEN=$((SMOKE_STEPS_SEEN))
  ((SMOKE_STEPS_SEEN > 0)) || SMOKE_STEPS_SEEN=''
  [[ $SMOKE_RESULT == passed ]] || negative_add
  smoke_write "$SMOKE_RESULT" "$SMOKE_EXIT" "$SMOKE_SECONDS" "$SMOKE_SHA" "$SMOKE_SAVE_S" "$SMOKE_BYTES" '' "$SMOKE_WHY" ||
    refuse "$EX_COPY" "$SMOKE_RECORD" "it cannot be written" "look at its disk: room, rights"
  if [[ $SMOKE_RESULT != passed ]]; then
    printf '%s: smoke failed: %s; the end of its log stands above; mend it and run this again (%s)\n' "$PROG" "$SMOKE_WHY" "$SMOKE_RECORD" >&2
    return "$EX_FAIL"
  fi
  [[ -z $SMOKE_WHY ]] || log "warning: this smoke speaks of no commit: $SMOKE_WHY; a formal run will ask for another one"
  claim passed "smoke on the $SMOKE_WHERE, $SMOKE_SECONDS s, checkpoint of $SMOKE_BYTES bytes" "$SMOKE_RECORD"
}

# The command line of both scripts. Sets SMOKE_RESUME and SMOKE_WAIVER.
smoke_flags() { # <arguments...>
  SMOKE_RESUME=0 SMOKE_WAIVER=''
  while (($#)); do
    case $1 in
      --resume) SMOKE_RESUME=1 ;;
      --waive)
        (($# > 1)) && [[ -n $2 ]] || return "$EX_USAGE"
        SMOKE_WAIVER=$2
        shift
        ;;
      *) return "$EX_USAGE" ;;
    esac
    shift
  done
}

# Everything behind the places: waiver, trial or resume drill.
smoke_go() { # <folders of our own output...>
  SMOKE_OURS=("$@")
  smoke_commit "$@"
  if [[ -n $SMOKE_WAIVER ]]; then
    smoke_waive "$SMOKE_WAIVER"
    return
  fi
  [[ $SMOKE_COMMAND == *[![:space:]]* ]] || refuse "$EX_CONFIG" "smoke" "the job's smoke command is empty" "write one in the job and compile again"
  negative_known
  smoke_leftovers
  smoke_scratch
  # Until this one has ended, no earlier record opens a gate.
  smoke_write failed '' '' '' '' '' '' 'it was started and has not ended' ||
    refuse "$EX_COPY" "$SMOKE_RECORD" "it cannot be written" "look at its disk: room, rights"
  if ((SMOKE_RESUME)); then smoke_drill; else smoke_trial; fi
}

# lib/drill.bash: the resume drill: start, SIGKILL behind a checkpoint, the identical command again (bash 3.2 too).
# needs: exit log hash record file smoke steps compat
# reads: SELF_QUEUE (the compiled queue.tsv) NEED_S
#
# It holds where the relaunched command begins at or behind the newest checkpoint that the killed attempt left, never before it,
# and makes a newer one. What the log says is believed of neither: the checkpoint is looked at too.

# The first cell of the queue: SMOKE_CELL and SMOKE_RUN. Not by read_queue, which needs bash 4: the laptop's may be 3.2.
drill_cell() { # returns: 0, or 1 where there is none
  local line LC_ALL=C
  [[ -f $SELF_QUEUE ]] || return 1
  while IFS= read -r line || [[ -n $line ]]; do
    line=${line#$'\xef\xbb\xbf'}
    line=${line%$'\r'}
    case $line in
      '#'*) continue ;;
      [A-Za-z0-9]*$'\t'*[![:space:]]*) ;;
      *[![:space:]]*) return 1 ;;
      *) continue ;;
    esac
    SMOKE_CELL=${line%%$'\t'*} SMOKE_RUN=${line#*$'\t'}
    check_name "$SMOKE_CELL" "$SELF_QUEUE: cell"
    return 0
  done <"$SELF_QUEUE"
  return 1
}

# The largest step so far, of the kind that this log has; empty where there is none.
drill_last() { # <log>    into REPLY
  REPLY=$(smoke_steps "$1" | sort -n | tail -n 1) || REPLY=''
}

# Until a checkpoint is there that was made behind a step later than the first one: a relaunch that goes on from it can be told
# from one that begins anew. Then SIGKILL. DRILL_FLOOR is a step that the newest checkpoint is certainly not older than: it was
# in the log before that checkpoint was there.
drill_kill() { # <log> <limit>    returns: 0 killed in its midst, 1 not (WHY says it)
  local REPLY until artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT first last='' stamp='' rc=0 LINES_SEEN=0
  DRILL_FLOOR='' DRILL_STAMP=''
  exec 3<"$1"
  now_ms
  until=$((REPLY + $2 * 1000))
  while in_time "$until"; do
    kill -0 "$SMOKE_PID" 2>/dev/null || break
    note_lines
    # The log first: what it says now was said before a checkpoint that is found later.
    stamp=$last
    drill_last "$1"
    last=$REPLY
    checkpoint_stamp "$artifact"
    if [[ $REPLY != "$DRILL_STAMP" ]]; then
      DRILL_STAMP=$REPLY DRILL_FLOOR=$stamp
      first=$(smoke_steps "$1" | head -n 1)
      if [[ -n $DRILL_STAMP && -n $DRILL_FLOOR && -n $first ]] && ((DRILL_FLOOR > first)); then
        kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
        { wait "$SMOKE_PID" || rc=$?; } 2>/dev/null
        SMOKE_PIDS=''
        smoke_stragglers "$SMOKE_WORK"
        ((rc == 137)) || { WHY='it ended by itself just then' && return 1; }
        checkpoint_stamp "$artifact"
        [[ $REPLY == "$DRILL_STAMP" ]] || DRILL_STAMP=$REPLY DRILL_FLOOR=$last
        return 0
      fi
    fi
    sleep 0.05 2>/dev/null || sleep 1
  done
  WHY="it ended, or ran $2 s, before it was seen to print two steps (like 'epoch 1') and to write $SMOKE_ARTIFACT behind the second"
  kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
  { wait "$SMOKE_PID" || :; } 2>/dev/null
  SMOKE_PIDS=''
  smoke_stragglers "$SMOKE_WORK"
  return 1
}

# The first attempt, killed in its midst. Sets DRILL_KIND DRILL_KILLED DRILL_FLOOR and what the checkpoint says of itself.
drill_first() { # <limit>    returns: 0, or 1 with the reason in WHY
  rm -rf -- "${SMOKE_WORK:?}/cell"
  mkdir -p -- "$SMOKE_WORK/cell"
  log "resume drill: $SMOKE_CELL, at most $1 s: $SMOKE_RUN"
  smoke_launch 1 0 "$SMOKE_WORK/log1"
  drill_kill "$SMOKE_WORK/log1" "$1" || { exec 3<&- && return 1; }
  exec 3<&-
  DRILL_KIND=$(smoke_steps "$SMOKE_WORK/log1" kind)
  DRILL_KILLED=$(smoke_steps "$SMOKE_WORK/log1" | sort -n | tail -n 1)
  measure_steps
  DRILL_STEP_MS=$MEASURED_STEP_MS DRILL_TOTAL=$MEASURED_TOTAL
  checkpoint_says "$SMOKE_WORK/cell/$SMOKE_ARTIFACT"
  DRILL_EPOCH=$CKPT_EPOCH DRILL_STEP=$CKPT_STEP DRILL_SAID=''
  case $DRILL_KIND in
    step) DRILL_SAID=$DRILL_STEP ;;
    epoch) DRILL_SAID=$DRILL_EPOCH ;;
  esac
  # A program may write its checkpoint beside the training: then the checkpoint's own word counts.
  if [[ -n $DRILL_SAID ]] && ((DRILL_SAID < DRILL_FLOOR)); then DRILL_FLOOR=$DRILL_SAID; fi
}

# The second attempt until it has made a checkpoint of its own, which is asked for its step while all stands still; a later one
# would no longer tell where it began. A smoke then goes on to its end; a cell takes long and is ended once it printed a step.
drill_second() { # <limit>    sets CKPT_EPOCH CKPT_STEP DRILL_NEWER
  local REPLY until artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  now_ms
  until=$((REPLY + $1 * 1000))
  CKPT_EPOCH='' CKPT_STEP='' DRILL_NEWER=0 SMOKE_EXIT=0 SMOKE_LATE=0
  while in_time "$until" && kill -0 "$SMOKE_PID" 2>/dev/null; do
    checkpoint_stamp "$artifact"
    if [[ $DRILL_NEWER == 0 && -n $REPLY && $REPLY != "$DRILL_STAMP" ]]; then
      DRILL_NEWER=1
      if [[ -n $DRILL_EPOCH$DRILL_STEP ]]; then
        kill -STOP -- "-$SMOKE_PID" 2>/dev/null || :
        checkpoint_says "$artifact"
        kill -CONT -- "-$SMOKE_PID" 2>/dev/null || :
      fi
    fi
    if ((DRILL_NEWER)) && [[ $SMOKE_CELL == smoke || -n $(smoke_steps "$SMOKE_WORK/log2" "$DRILL_KIND" | head -n 1) ]]; then break; fi
    sleep 0.05 2>/dev/null || sleep 1
  done
  if [[ $SMOKE_CELL == smoke ]]; then
    smoke_wait
  else
    kill -0 "$SMOKE_PID" 2>/dev/null || { wait "$SMOKE_PID" || SMOKE_EXIT=$?; } 2>/dev/null
    kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
    { wait "$SMOKE_PID" || :; } 2>/dev/null
    SMOKE_PIDS=''
    smoke_stragglers "$SMOKE_WORK"
  fi
  # It may have ended between two looks.
  checkpoint_stamp "$artifact"
  if [[ $DRILL_NEWER == 0 && -n $REPLY && $REPLY != "$DRILL_STAMP" ]]; then
    DRILL_NEWER=1
    [[ -z $DRILL_EPOCH$DRILL_STEP ]] || checkpoint_says "$artifact"
  fi
}

# Did the second attempt go on? The reason why not into WHY; empty where it did.
drill_judge() { # reads: what both attempts left
  local REPLY again=$SMOKE_WORK/log2 floor
  WHY=''
  step_name "$DRILL_FLOOR" "$DRILL_KIND"
  floor=$REPLY
  # The smallest of all that it printed: "resuming at step 9" and then step 1 is no resume.
  DRILL_RESUMED=$(smoke_steps "$again" "$DRILL_KIND" | sort -n | head -n 1)
  step_name "$DRILL_RESUMED" "$DRILL_KIND"
  if ((SMOKE_EXIT != 0)); then
    WHY="the second attempt ended with status $SMOKE_EXIT"
  elif [[ -z $DRILL_RESUMED ]]; then
    WHY="the second attempt printed no step, so nobody knows where it began"
  elif ((DRILL_RESUMED < DRILL_FLOOR)); then
    WHY="the second attempt began at $REPLY again, before $floor of the newest checkpoint (killed at $DRILL_KILLED_NAME): it does not resume"
  fi
  [[ -z $WHY ]] || return 0
  if ((DRILL_NEWER == 0)); then
    WHY="the second attempt wrote no newer $SMOKE_ARTIFACT: only its log says that it went on"
    return 0
  fi
  drill_went_back epoch "$DRILL_EPOCH" "$CKPT_EPOCH" || return 0
  # Steps may begin anew in each epoch.
  [[ -n $DRILL_EPOCH && $DRILL_EPOCH != "$CKPT_EPOCH" ]] || drill_went_back step "$DRILL_STEP" "$CKPT_STEP" || return 0
  [[ -z $DRILL_SAID ]] || ((DRILL_RESUMED >= DRILL_SAID - 1)) ||
    WHY="the newest checkpoint of the killed attempt says $DRILL_KIND $DRILL_SAID, and the second attempt began at $DRILL_RESUMED: it does not resume"
}
drill_went_back() { # <word> <before> <after>    returns: 1, with WHY, where the checkpoint is of an earlier one than before
  [[ -n $2 && -n $3 ]] && (($3 < $2)) || return 0
  WHY="$SMOKE_ARTIFACT says $1 $2 when the first attempt is killed, and $1 $3 as soon as the second has written it: it does not resume"
  return 1
}

drill_write() { # <result> <why>
  local REPLY
  record_open drill/1
  record_text where "$SMOKE_WHERE"
  record_text result "$1"
  record_text commit "$SMOKE_COMMIT"
  record_text box_digest "$SMOKE_BOX_DIGEST"
  record_text cell "$SMOKE_CELL"
  record_text command_sha256 "$DRILL_DIGEST"
  record_text command_sha256_again "$DRILL_AGAIN"
  record_text killed "$DRILL_KILLED_NAME"
  step_name "$DRILL_FLOOR" "$DRILL_KIND"
  record_text checkpoint "$REPLY"
  record_text checkpoint_says "${DRILL_EPOCH:+epoch $DRILL_EPOCH }${DRILL_STEP:+step $DRILL_STEP}"
  step_name "$DRILL_RESUMED" "$DRILL_KIND"
  record_text resumed "${DRILL_RESUMED:+$REPLY}"
  record_int step_ms "$DRILL_STEP_MS"
  record_int steps_total "$DRILL_TOTAL"
  record_text why "$2"
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "${SMOKE_RECORD%/*}/drill.json" "$RECORD" ||
    refuse "$EX_COPY" "${SMOKE_RECORD%/*}/drill.json" "it cannot be written" "look at its disk: room, rights"
}

# The second attempt of the same command, and what both come to. Sets WHY, empty where the drill holds.
drill_again() { # <limit>
  local REPLY
  step_name "$DRILL_KILLED" "$DRILL_KIND"
  DRILL_KILLED_NAME=$REPLY
  log "killed at $DRILL_KILLED_NAME; the identical command again"
  # Read anew from where it came: what is started again is what a relaunch would start.
  [[ $SMOKE_CELL == smoke ]] || drill_cell || SMOKE_RUN=''
  hash_file "$SMOKE_WORK/words1" || REPLY='' # what was started, and where
  DRILL_DIGEST=$REPLY DRILL_RESUMED=''
  smoke_begin
  smoke_launch 2 1 "$SMOKE_WORK/log2"
  drill_second "$1"
  hash_file "$SMOKE_WORK/words2" || REPLY=''
  DRILL_AGAIN=$REPLY
  WHY='the command of the two attempts is not the same'
  [[ -n $DRILL_DIGEST && $DRILL_DIGEST == "$DRILL_AGAIN" ]] || return 0
  drill_judge
}

smoke_drill() { # returns: 0 the second attempt went on, 1 it did not; refuses 77 where it cannot be seen
  local WHY='' limit=$SMOKE_TIMEOUT_S
  SMOKE_CELL=smoke SMOKE_RUN=$SMOKE_COMMAND
  if ! drill_first "$limit"; then
    tail -n 20 -- "$SMOKE_WORK/log1" >&2
    log "the smoke command cannot be killed in its midst: $WHY; the smoke first, then the drill with a cell of the queue"
    rm -rf -- "${SMOKE_WORK:?}/cell"
    mkdir -p -- "$SMOKE_WORK/cell"
    smoke_trial || return
    ((limit >= NEED_S)) || limit=$NEED_S
    drill_cell || refuse "$EX_GATE" "the resume drill" "the smoke command is too short for it, and $SELF_QUEUE has no cell to take instead" "give the smoke command a few more steps, and let it print them"
    if ! drill_first "$limit"; then
      tail -n 20 -- "$SMOKE_WORK/log1" >&2
      refuse "$EX_GATE" "the resume drill with cell $SMOKE_CELL" "$WHY" "let the command print its steps and write $SMOKE_ARTIFACT more often, or give the smoke command a few more steps"
    fi
  fi
  drill_again "$limit"
  drill_end
}

drill_end() { # reads: WHY    returns: as smoke_drill
  local REPLY result=passed
  [[ -z $WHY ]] || result=failed
  [[ $SMOKE_CELL == smoke ]] || WHY=${WHY:+"the drill with cell $SMOKE_CELL: $WHY"}
  drill_write "$result" "$WHY"
  step_name "$DRILL_RESUMED" "$DRILL_KIND"
  [[ $result != passed ]] || log "resumed: $SMOKE_CELL was killed at $DRILL_KILLED_NAME, went on at $REPLY"
  if [[ $SMOKE_CELL != smoke && $result == passed ]]; then
    claim passed "resume drill with cell $SMOKE_CELL on the $SMOKE_WHERE" "${SMOKE_RECORD%/*}/drill.json"
    return
  fi
  if [[ $SMOKE_CELL == smoke ]]; then smoke_judge "$SMOKE_WORK/log2"; else SMOKE_RESULT=failed; fi
  # Where it failed as a smoke too, its end says more than the drill.
  if [[ $result != passed ]] && [[ $SMOKE_CELL != smoke || $SMOKE_EXIT$SMOKE_LATE == 00 ]]; then
    SMOKE_RESULT=failed SMOKE_WHY=$WHY SMOKE_SHA='' SMOKE_BYTES=''
  fi
  [[ $SMOKE_RESULT != passed ]] || smoke_time_save
  smoke_report "$SMOKE_WORK/log2"
}

usage() {
  cat <<'USAGE'
usage: smoke.sh [--resume] [--waive WHO=WHY]

Looks first whether our scripts and the code that the queue names parse (another file that does not is a warning). Then it
runs the job's smoke command once on this machine, in CODE_DIR (default: the git work tree that you stand in), with the
interpreter PY (default: python3), trackers off, and CELL_DIR in a scratch folder that is removed afterwards. It passes
only with status 0, no traceback and a fresh, non-empty checkpoint of the declared name, and writes
LOCAL_DIR/<profile>.<run>/smoke.json (LOCAL_DIR: ~/gpu-runs). It is never evidence; the box has a smoke of its own.

--resume         kill the command with SIGKILL behind a checkpoint, give it again unchanged, and compare the step that it
                 begins at with that of the newest checkpoint. A smoke command that is too short for this is run as a
                 smoke, and then the first cell of the queue is taken. See drill.json beside smoke.json.
--waive WHO=WHY  do not run it; write down who says so and why

exit codes: 0 passed or waived, 1 failed, 64 usage, 69 missing, 73 no room, 74 not written, 77 refused, 78 configuration
USAGE
}

# Digest of the compiled box/ beside us, where it lies there: which scripts would be shipped. Into REPLY; and SELF_QUEUE.
shipped_digest() {
  local file dir text=''
  dir=${BASH_SOURCE[0]-}
  [[ $dir == */* ]] || dir=./$dir
  dir=${dir%/*}/../box
  SELF_QUEUE=$dir/queue.tsv
  REPLY=''
  [[ -d $dir ]] || return 0
  for file in "$dir"/*; do
    hash_file "$file" || { REPLY='' && return 0; }
    text+="$REPLY  ${file##*/}"$'\n'
  done
  hash_text "$text"
}

# Before a trial, and long before anything is rented: does it parse? What is for the box is not for an old bash to judge.
local_syntax() { # reads: SELF_QUEUE
  local dir=${SELF_QUEUE%/*} self=${SELF_QUEUE%/*}/../local
  QUEUE_COMMANDS=()
  if [[ -f $SELF_QUEUE ]]; then QUEUE_COMMANDS=("$(<"$SELF_QUEUE")"); fi
  ((BASH_VERSINFO[0] > 3)) || dir=$self
  gate_syntax "$self" "$dir"
  log "syntax: $SYNTAX_SAID"
}

# What a cell finds on the box, as far as it makes sense here; caches stay where this machine has them.
smoke_env() {
  export CELL_NAME=$SMOKE_CELL CELL_INDEX=0 CELL_DIR CELL_ATTEMPT CELL_RESUME RUN_ID=smoke PY PYTHONUNBUFFERED=1
  export SCRATCH=$SMOKE_WORK/tmp TMPDIR=$SMOKE_WORK/tmp PYTHONPYCACHEPREFIX=$SMOKE_WORK/cache
}

# The work tree that we stand in; not the repository that these scripts were compiled in. Sets CODE_DIR.
default_code() {
  local self=${BASH_SOURCE[0]-}
  [[ $self == */* ]] || self=./$self
  self=$(cd -P -- "${self%/*}" && pwd -P) || return
  CODE_DIR=$(within 60 git rev-parse --show-toplevel 2>/dev/null </dev/null) || CODE_DIR=$(pwd -P)
  [[ $self/ != "$(cd -P -- "$CODE_DIR" && pwd -P)"/* ]] ||
    refuse "$EX_CONFIG" "CODE_DIR" "it is not set, and $CODE_DIR is where these scripts lie, not the code to run" "set CODE_DIR to the work tree of the code"
}

main() {
  local REPLY laptop
  case ${1-} in -h | --help) usage && return 0 ;; esac
  smoke_flags "$@" || { usage >&2 && return "$EX_USAGE"; }
  check_name "$RUN" RUN
  LOCAL_DIR=${LOCAL_DIR:-\~/gpu-runs}
  require_path LOCAL_DIR
  laptop=$LOCAL_DIR/$PROFILE.$RUN
  [[ -n ${CODE_DIR-} ]] || default_code
  require_path CODE_DIR
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "set CODE_DIR to the work tree of the code"
  PY=${PY:-python3}
  command -v "$PY" >/dev/null 2>&1 || refuse "$EX_MISSING" "PY=$PY" "the interpreter is not there" "set PY to the python of the environment, by its path"
  export PY
  SMOKE_PY=$(type -P "$PY") || SMOKE_PY=$PY
  mkdir -p -- "$laptop" || refuse "$EX_NOROOM" "$laptop" "the folder cannot be made" "set LOCAL_DIR to a folder with room"
  shipped_digest || REPLY=''
  # No run has results here.
  SMOKE_RESULTS=()
  SMOKE_WHERE=laptop SMOKE_RECORD=$laptop/smoke.json SMOKE_ROOT=${TMPDIR:-/tmp} SMOKE_BOX_DIGEST=$REPLY
  # A waiver is a word, not a look.
  [[ -n $SMOKE_WAIVER ]] || local_syntax
  smoke_go "$laptop" "$SMOKE_ROOT"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
