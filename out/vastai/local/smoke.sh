#!/usr/bin/env bash
# smoke.sh: a short trial on your own machine, before anything is rented: the smoke command and its checkpoint.
# Generated; do not edit. Source: templates/local/smoke.sh.j2
# To change it, edit the source or profiles/vastai.yaml, then: make profile=vastai
set -euo pipefail
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=smoke.sh

# --- bound values: profiles/vastai.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=vastai
# the run's name; a new one begins anew
RUN=${RUN-demo}
# seconds that one checkpoint takes
readonly SAVE_S=2
# disk for one cell
readonly NEED_DISK_BYTES=10000000
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
  printf '%s %s: %s\n' "$REPLY" "$PROG" "$*" >&2
}

# The only way out of a precondition that is not met: one line, then the code.
refuse() { # <exit code> <what> <why> <what to do>
  printf '%s: refused: %s; %s; %s\n' "$PROG" "$2" "$3" "$4" >&2
  exit "$1"
}

# The only place where a success word is printed. Without a receipt that can be read it is not.
claim() { # <word> <what> <receipt file>
  if [[ ! -f $3 || ! -s $3 ]]; then
    printf '%s: refused: saying %s of %s; no receipt at %s; look there, then run this again\n' \
      "$PROG" "$1" "$2" "$3" >&2
    return "$EX_INTEGRITY"
  fi
  printf '%s: %s (receipt %s)\n' "$2" "$1" "$3"
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
  [[ -n $value ]] || return 0
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
  local path folders=()
  ! sync -- "$@" 2>/dev/null || return 0
  if sync -- "$BASH" 2>/dev/null; then
    for path in "$@"; do [[ ! -d $path ]] || folders+=("$path"); done
    ((${#folders[@]} == $#)) || { ((${#folders[@]} > 0)) && ! sync -- "${folders[@]}" 2>/dev/null; } || return 74
  fi
  sync
}

# Put TEXT into FILE: temporary name beside it, flushed, renamed, read back.
# With "soon" nothing is flushed: for what may be lost in a power cut, because its loss is seen and costs little.
# With "behind" the paths that follow are flushed with the text in one call, before the rename: the name speaks of them.
# The rename itself may be lost; the old text is then still true.
replace_file() { # <file> <text> [soon | behind <paths...>]    returns: 0, or 74 with nothing changed under the name
  local file=$1 text=$2 dir=${1%/*} tmp how=${3-}
  shift $(($# < 3 ? $# : 3))
  [[ $dir != "$file" ]] || dir=.
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || { [[ $how != soon ]] && ! flush "$tmp" "$@"; } || ! mv -f -- "$tmp" "$file"; then
    rm -f -- "$tmp"
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  [[ -n $how ]] || flush "$dir"
  [[ $(<"$file") == "${text%$'\n'}" ]] || {
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
  local REPLY
  record_fit "$2"
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

# The digest of standard input, printed by the tool as its first word.
hash_stream() {
  case $HASH_TOOL in
    openssl) openssl dgst -sha256 -r ;;
    sha256sum) sha256sum ;;
    shasum) shasum -a 256 ;;
  esac
}

hash_file() { # <file>    sets REPLY to 64 hex digits; returns 1 where it cannot be read
  hash_tool
  REPLY=$({ hash_stream <"$1"; } 2>/dev/null) || { REPLY= && return 1; }
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
  REPLY=$(printf '%s' "$1" | hash_stream) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
}

# lib/git.bash: is the code one recorded, pushed, clean commit? The gate of a formal run.
# needs: exit log path

git_here() { # <git's words...>    in the work tree GIT_TOP, with no prompt, no hook and no pager
  GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 GIT_SSH_COMMAND="${GIT_SSH_COMMAND:-ssh -oBatchMode=yes -oConnectTimeout=20}" \
    git -C "$GIT_TOP" -c core.hooksPath=/dev/null -c core.fsmonitor=false --no-pager "$@"
}
git_refuse() { # <what> <why> <what to do>
  refuse "$EX_GATE" "$1" "$2" "$3"
}

# Git and a work tree with a commit. The reasons are told apart: each has another remedy. Sets GIT_TOP GIT_HEAD GIT_BRANCH.
git_open() { # reads: CODE_DIR
  local said
  unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR
  command -v git >/dev/null 2>&1 || refuse "$EX_MISSING" "the code" "git is not on PATH" "install git on this machine"
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  GIT_TOP=$CODE_DIR
  if ! said=$(git_here rev-parse --show-toplevel 2>&1); then
    case $said in
      *'dubious ownership'*) git_refuse "git -C $CODE_DIR" "another user owns the folder (dubious ownership)" "git config --global --add safe.directory $CODE_DIR" ;;
      *'not a git repository'*) git_refuse "git -C $CODE_DIR" "it is not a git repository" "clone the code there, or set CODE_DIR to its work tree" ;;
      *) git_refuse "git -C $CODE_DIR rev-parse" "${said//[[:cntrl:]]/ }" "make git work there first" ;;
    esac
  fi
  GIT_TOP=$said
  GIT_HEAD=$(git_here rev-parse --verify -q HEAD 2>/dev/null) || GIT_HEAD=''
  [[ $GIT_HEAD =~ ^[0-9a-f]{40,64}$ ]] || git_refuse "$GIT_TOP" "it has no commit yet" "commit the code and push it"
  # shellcheck disable=SC2034 # for the gate of a formal run
  GIT_BRANCH=$(git_here symbolic-ref -q --short HEAD 2>/dev/null) || GIT_BRANCH=''
  # A folder that some repository around it ignores is clean there, and recorded nowhere.
  said=$(git -C "$CODE_DIR" ls-files -- . 2>/dev/null | head -n 1) || :
  [[ -n $said ]] || git_refuse "$CODE_DIR" "the repository $GIT_TOP around it tracks no file in it" "set CODE_DIR to the work tree of the code"
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
  local probe
  probe=$(mktemp "$(git_here rev-parse --absolute-git-dir)/mode.XXXXXX" 2>/dev/null) || { echo true && return 0; }
  chmod 600 "$probe"
  if [[ -x $probe ]]; then echo false; else
    chmod 700 "$probe"
    if [[ -x $probe ]]; then echo true; else echo false; fi
  fi
  rm -f -- "$probe"
}

# All that differs from the commit: GIT_DIRTY (state and path) and GIT_UNTRACKED (paths). Names may hold anything.
git_look() { # returns: 0 looked, 1 git failed
  local entry='' ended=0 modes
  GIT_DIRTY=() GIT_UNTRACKED=()
  modes=$(git_modes)
  while IFS= read -r -d '' entry; do
    case $entry in
      '== end') ended=1 ;;
      '?? '*) git_is_exempt "${entry:3}" || GIT_UNTRACKED+=("${entry:3}") ;;
      [RC]*)
        GIT_DIRTY+=("$entry")
        IFS= read -r -d '' entry || break
        ;;
      *) GIT_DIRTY+=("$entry") ;;
    esac
  done < <(git_here -c core.fileMode="$modes" -c core.untrackedCache=false -c status.renames=false status --porcelain=v1 -z \
    --untracked-files=all --ignore-submodules=none 2>/dev/null && printf '== end\0')
  # Files that a person told git not to look at are hidden edits waiting to happen.
  while IFS= read -r -d '' entry; do
    [[ $entry != [a-z]\ * ]] || GIT_DIRTY+=("hidden (assume-unchanged) ${entry:2}")
  done < <(git_here ls-files -v -z 2>/dev/null)
  ((ended))
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

# lib/smoke.bash: one short trial of the job's smoke command, on the box and on the laptop (bash 3.2, BSD userland too).
# needs: exit log path file record hash git
# reads: SMOKE_WHERE (box or laptop) SMOKE_RECORD (its file) SMOKE_ROOT (where scratch folders go) SMOKE_BOX_DIGEST
#        CODE_DIR PY SMOKE_COMMAND SMOKE_ARTIFACT SMOKE_TIMEOUT_S SAVE_S NEED_DISK_BYTES, and the function
#        smoke_env: exports a cell's environment for CELL_DIR CELL_ATTEMPT CELL_RESUME

# The commit that this trial speaks of: none where the tree holds anything else than a commit. Sets SMOKE_COMMIT.
smoke_commit() { # <folders of our own output...>
  SMOKE_COMMIT=none SMOKE_DIRT='there is no git work tree, or no git'
  command -v git >/dev/null 2>&1 && git -C "$CODE_DIR" rev-parse --verify -q HEAD >/dev/null 2>&1 || return 0
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

# A scratch folder of our own: what a smoke makes never lies among results.
smoke_scratch() { # sets SMOKE_WORK
  if ! mkdir -p -- "$SMOKE_ROOT" || ! SMOKE_WORK=$(mktemp -d "$SMOKE_ROOT/smoke.XXXXXX"); then
    refuse "$EX_NOROOM" "a scratch folder in $SMOKE_ROOT" "it cannot be made" "look at its room and rights, or set SCRATCH"
  fi
  SMOKE_PIDS=''
  trap 'smoke_clean $?' EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  mkdir -p -- "$SMOKE_WORK/cell" "$SMOKE_WORK/tmp" "$SMOKE_WORK/t/0" "$SMOKE_WORK/cache"
}
smoke_clean() { # <status>
  local pid
  trap - EXIT
  for pid in $SMOKE_PIDS; do kill -KILL -- "-$pid" 2>/dev/null || :; done
  rm -rf -- "${SMOKE_WORK:?}"
  exit "$1"
}

# Start one attempt in a process group of its own. Sets SMOKE_PID.
smoke_launch() { # <attempt> <resume 0 or 1> <log>
  CELL_DIR=$SMOKE_WORK/cell CELL_ATTEMPT=$1 CELL_RESUME=$2
  set -m
  (
    cd -- "$CODE_DIR" || exit
    smoke_env || exit
    # A trial reports nothing to a tracker.
    export WANDB_MODE=disabled WANDB_SILENT=true COMET_MODE=disabled CLEARML_OFFLINE_MODE=1 NEPTUNE_MODE=offline SWANLAB_MODE=disabled
    export MLFLOW_TRACKING_URI=$SMOKE_WORK/tmp/mlruns
    exec bash -c "$SMOKE_COMMAND"
  ) </dev/null >"$3" 2>&1 &
  SMOKE_PID=$!
  set +m
  SMOKE_PIDS="$SMOKE_PIDS $SMOKE_PID"
}

# Until the limit, and the memory of the attempt's group looked at meanwhile: the largest sum of what its processes held,
# in kB, into the file peak. Where ps cannot say it, the file stays away.
smoke_watch() {
  local until=$((SECONDS + SMOKE_TIMEOUT_S)) peak=0 now pause=0.1
  while ((SECONDS < until)); do
    now=$({ ps -A -o pgid= -o rss= || ps -o pgid,rss; } 2>/dev/null | awk -v g="$SMOKE_PID" '$1 == g && $2 ~ /^[0-9]+$/ {n += $2} END {printf "%d", n}') || now=0
    if ((now > peak)); then
      peak=$now
      printf '%s\n' "$peak" >"$SMOKE_WORK/peak"
    fi
    sleep "$pause" 2>/dev/null || sleep 1
    pause=1
  done
}

# Wait for the attempt within the limit; the whole group ends with it. Sets SMOKE_EXIT and SMOKE_LATE.
smoke_wait() {
  local dog rc=0
  SMOKE_LATE=0
  set -m
  (
    smoke_watch
    : >"$SMOKE_WORK/late"
    kill -TERM -- "-$SMOKE_PID"
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
  [[ ! -e $SMOKE_WORK/late ]] || SMOKE_LATE=1
  SMOKE_PEAK=''
  if { IFS= read -r SMOKE_PEAK <"$SMOKE_WORK/peak"; } 2>/dev/null && [[ $SMOKE_PEAK =~ ^[0-9]+$ ]]; then SMOKE_PEAK=$((SMOKE_PEAK * 1024)); else SMOKE_PEAK=''; fi
  SMOKE_EXIT=$rc
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

# Was it a real trial? Exit 0 in time, no traceback, and a fresh artifact. Sets SMOKE_RESULT and SMOKE_WHY.
smoke_judge() { # <log>
  local artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  SMOKE_RESULT=failed SMOKE_SHA='' SMOKE_BYTES=''
  : >"$SMOKE_WORK/end"
  if ((SMOKE_LATE)); then
    SMOKE_WHY="it was not done in $SMOKE_TIMEOUT_S s"
  elif ((SMOKE_EXIT != 0)); then
    SMOKE_WHY="it ended with status $SMOKE_EXIT"
  elif grep -q '^Traceback (most recent call last)' "$1"; then
    SMOKE_WHY="it ended with 0, but its log holds a traceback"
  elif [[ -L $artifact || ! -e $artifact ]]; then
    SMOKE_WHY="it left no $SMOKE_ARTIFACT in CELL_DIR"
  elif [[ $artifact -ot $SMOKE_WORK/start || $artifact -nt $SMOKE_WORK/end ]]; then
    SMOKE_WHY="$SMOKE_ARTIFACT was not written by this trial: its time lies outside of it"
  elif ! smoke_digest "$artifact" || ((SMOKE_BYTES == 0)); then
    SMOKE_WHY="$SMOKE_ARTIFACT is empty or cannot be read"
    SMOKE_SHA='' SMOKE_BYTES=''
  else
    SMOKE_RESULT=passed SMOKE_WHY=$SMOKE_DIRT
  fi
}

# How long one checkpoint of this size takes on the disk where cells write theirs, rounded up. Sets SMOKE_SAVE_S.
smoke_time_save() {
  local begin=$SECONDS to=${SMOKE_RECORD%/*}/.smoke.$$.tmp
  SMOKE_SAVE_S=''
  if cp -R -- "$SMOKE_WORK/cell/$SMOKE_ARTIFACT" "$to" 2>/dev/null && flush "$to"; then SMOKE_SAVE_S=$((SECONDS - begin + 1)); fi
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
  record_int exit "$2" || return
  record_int seconds_s "$3" || return
  record_text artifact_sha256 "$4"
  record_int save_s "$5" || return
  record_int ckpt_bytes "$6" || return
  record_int steps "${SMOKE_STEPS_SEEN-}" || return
  record_int peak_memory_bytes "${SMOKE_PEAK-}" || return
  record_text who "$7"
  record_text why "$8"
  utc_now
  record_text ended "$REPLY"
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

smoke_trial() { # returns: 0 passed, 1 failed
  local log=$SMOKE_WORK/log begin=$SECONDS
  : >"$SMOKE_WORK/start"
  log "smoke: in $CODE_DIR, at most $SMOKE_TIMEOUT_S s: $SMOKE_COMMAND"
  smoke_launch 1 0 "$log"
  smoke_wait
  SMOKE_SECONDS=$((SECONDS - begin)) SMOKE_SAVE_S=''
  smoke_judge "$log"
  [[ $SMOKE_RESULT != passed ]] || smoke_time_save
  smoke_report "$log"
}

# A trial that failed is a result too: a line that stays, so that nobody pays for the same one twice without knowing (X4).
negative_file() { # sets NEGATIVE
  NEGATIVE=${SMOKE_RECORD%/*}/NEGATIVE_RESULTS.tsv
}
negative_add() {
  local REPLY NEGATIVE
  negative_file
  utc_now
  [[ -s $NEGATIVE ]] || printf '# time\twhere\tcommit\texit\tseconds\twhy\tcommand\n' >"$NEGATIVE" || return 0
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$REPLY" "$SMOKE_WHERE" "$SMOKE_COMMIT" "$SMOKE_EXIT" "$SMOKE_SECONDS" \
    "${SMOKE_WHY//[[:cntrl:]]/ }" "${SMOKE_COMMAND//[[:cntrl:]]/ }" >>"$NEGATIVE" || :
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

# Numbers that a log gives to its steps ("epoch 3", "step: 120", "iter=7"), one a line. Where lines have both, steps may
# begin anew in each epoch: then only those lines count, as (epoch + 1) times 10^9 and the step.
smoke_steps() { # <log>    prints
  awk '
    function number(word) {
      if (!match($0, "(^|[^A-Za-z0-9_])" word "[] :=#[]*[0-9]+")) return ""
      word = substr($0, RSTART, RLENGTH)
      gsub(/[^0-9]/, "", word)
      return substr(word, 1, 9)
    }
    {
      epoch = number("[Ee]poch")
      step = number("([Ss]tep|[Ii]ter|[Ii]teration)")
      if (epoch != "" && step != "") both[++n] = (epoch + 1) * 1000000000 + step
      else if (epoch step != "") one[++k] = epoch step
    }
    END {
      for (i = 1; i <= n; i++) printf "%.0f\n", both[i]
      for (i = 1; n == 0 && i <= k; i++) printf "%d\n", one[i]
    }' "$1"
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
  smoke_commit "$@"
  if [[ -n $SMOKE_WAIVER ]]; then
    smoke_waive "$SMOKE_WAIVER"
    return
  fi
  [[ $SMOKE_COMMAND == *[![:space:]]* ]] || refuse "$EX_CONFIG" "smoke" "the job's smoke command is empty" "write one in the job and compile again"
  negative_known
  smoke_scratch
  if ((SMOKE_RESUME)); then smoke_drill; else smoke_trial; fi
}

# lib/drill.bash: the resume drill: start, SIGKILL behind the first checkpoint, the identical command again (bash 3.2 too).
# needs: exit log smoke

# A step for people, into REPLY.
drill_name() { # <number of smoke_steps>
  REPLY="step $1"
  [[ -z $1 ]] || (($1 < 1000000000)) || REPLY="epoch $(($1 / 1000000000 - 1)), step $(($1 % 1000000000))"
}

# Until the first checkpoint is there and whole, while the attempt lives.
drill_await() { # returns: 0 it is there and the attempt still runs, 1 not
  local until=$((SECONDS + SMOKE_TIMEOUT_S)) artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  while ((SECONDS < until)); do
    kill -0 "$SMOKE_PID" 2>/dev/null || return 1
    if [[ -e $artifact ]] && [[ -s $artifact || -d $artifact ]]; then
      kill -STOP -- "-$SMOKE_PID" 2>/dev/null || return 1
      [[ -n $(smoke_steps "$1") ]] && return 0
      kill -CONT -- "-$SMOKE_PID" 2>/dev/null || return 1
    fi
    sleep 0.05 2>/dev/null || sleep 1
  done
  return 1
}

smoke_drill() { # returns: 0 the second attempt went on, 1 it did not, or it could not be seen
  local REPLY first second killed begin=$SECONDS
  : >"$SMOKE_WORK/start"
  log "resume drill: $SMOKE_COMMAND"
  smoke_launch 1 0 "$SMOKE_WORK/log1"
  if ! drill_await "$SMOKE_WORK/log1"; then
    kill -CONT -- "-$SMOKE_PID" 2>/dev/null || :
    smoke_wait
    tail -n 20 -- "$SMOKE_WORK/log1" >&2
    refuse "$EX_GATE" "the resume drill" "the command ended, or was not seen to write $SMOKE_ARTIFACT and a line like 'epoch 1' before it, so it could not be killed in its midst" \
      "give the smoke command a few more steps, and let it print them"
  fi
  first=$(smoke_steps "$SMOKE_WORK/log1" | head -n 1)
  killed=$(smoke_steps "$SMOKE_WORK/log1" | tail -n 1)
  kill -KILL -- "-$SMOKE_PID"
  { wait "$SMOKE_PID" || :; } 2>/dev/null
  drill_name "$killed"
  killed=$REPLY
  log "killed at $killed, behind its first checkpoint; the identical command again"
  smoke_launch 2 1 "$SMOKE_WORK/log2"
  smoke_wait
  SMOKE_SECONDS=$((SECONDS - begin)) SMOKE_SAVE_S=''
  smoke_judge "$SMOKE_WORK/log2"
  second=$(smoke_steps "$SMOKE_WORK/log2" | head -n 1)
  drill_name "$second"
  if [[ $SMOKE_RESULT == passed && -z $second ]]; then
    SMOKE_RESULT=failed SMOKE_WHY="the second attempt printed no step, so nobody knows where it began"
  elif [[ $SMOKE_RESULT == passed ]] && ((second <= first)); then
    SMOKE_RESULT=failed SMOKE_WHY="the second attempt began at $REPLY again (killed at $killed): it does not resume"
  fi
  [[ $SMOKE_RESULT == passed ]] || SMOKE_SHA='' SMOKE_BYTES=''
  [[ $SMOKE_RESULT != passed ]] || { log "resumed: killed at $killed, went on at $REPLY" && smoke_time_save; }
  smoke_report "$SMOKE_WORK/log2"
}

usage() {
  cat <<'USAGE'
usage: smoke.sh [--resume] [--waive WHO=WHY]

Runs the job's smoke command once on this machine, in CODE_DIR (default: the git work tree that you stand in), with the
interpreter PY (default: python3), trackers off, and CELL_DIR in a scratch folder that is removed afterwards. It passes
only with status 0, no traceback and a fresh, non-empty checkpoint of the declared name, and writes
LOCAL_DIR/<profile>.<run>/smoke.json (LOCAL_DIR: ~/gpu-runs). It is never evidence; the box has a smoke of its own.

--resume         kill the command with SIGKILL behind its first checkpoint, give it again unchanged, and look that the
                 step went on
--waive WHO=WHY  do not run it; write down who says so and why

exit codes: 0 passed or waived, 1 failed, 64 usage, 69 missing, 73 no room, 74 not written, 77 refused, 78 configuration
USAGE
}

# Digest of the compiled box/ beside us, where it lies there: which scripts would be shipped. Into REPLY.
shipped_digest() {
  local file dir text=''
  dir=${BASH_SOURCE[0]-}
  [[ $dir == */* ]] || dir=./$dir
  dir=${dir%/*}/../box
  REPLY=''
  [[ -d $dir ]] || return 0
  for file in "$dir"/*; do
    hash_file "$file" || { REPLY='' && return 0; }
    text+="$REPLY  ${file##*/}"$'\n'
  done
  hash_text "$text"
}

# What a cell finds on the box, as far as it makes sense here; caches stay where this machine has them.
smoke_env() {
  export CELL_NAME=smoke CELL_INDEX=0 CELL_DIR CELL_ATTEMPT CELL_RESUME RUN_ID=smoke PY PYTHONUNBUFFERED=1
  export SCRATCH=$SMOKE_WORK/tmp TMPDIR=$SMOKE_WORK/tmp PYTHONPYCACHEPREFIX=$SMOKE_WORK/cache
}

# The work tree that we stand in; not the repository that these scripts were compiled in. Sets CODE_DIR.
default_code() {
  local self=${BASH_SOURCE[0]-}
  [[ $self == */* ]] || self=./$self
  self=$(cd -P -- "${self%/*}" && pwd -P) || return
  CODE_DIR=$(git rev-parse --show-toplevel 2>/dev/null) || CODE_DIR=$(pwd -P)
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
  mkdir -p -- "$laptop" || refuse "$EX_NOROOM" "$laptop" "the folder cannot be made" "set LOCAL_DIR to a folder with room"
  shipped_digest || REPLY=''
  SMOKE_WHERE=laptop SMOKE_RECORD=$laptop/smoke.json SMOKE_ROOT=${TMPDIR:-/tmp} SMOKE_BOX_DIGEST=$REPLY
  smoke_go "$laptop" "$SMOKE_ROOT"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
