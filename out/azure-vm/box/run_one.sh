#!/usr/bin/env bash
# run_one.sh: run one cell to a checked result; resume it if an earlier attempt left a checkpoint.
# Generated; do not edit. Source: templates/box/run_one.sh.j2
# To change it, edit the source or profiles/azure-vm.yaml, then: make profile=azure-vm
set -euo pipefail
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=run_one.sh

# --- bound values: profiles/azure-vm.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=azure-vm
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier data-disk: survives ssh drop, restart, stop, destroy
DATA_DIR=${DATA_DIR-/data/runs}
# tier data-disk: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-/data/runs}
# may be lost at any time
SCRATCH=${SCRATCH-/tmp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-"\$HOME/.cache/huggingface"}
# a file to source or an http address; empty: none
PROXY_HOOK=${PROXY_HOOK-}
# NAME=value lines, mode 600; empty: none
CRED_FILE=${CRED_FILE-/home/azureuser/.gpu-runbook.env}
# the interpreter
PY=${PY-python3}
# where it is mounted
readonly DURABLE_TIER_PATH=/data
# what shows that the tier is there
readonly DURABLE_PROOF=mount
# seconds between our signal and the kill: save_s + 10
readonly GRACE_S=12
# seconds for one attempt; 0: no limit
readonly WALL_S=600
# seconds without a sign of life; 0: no limit
readonly STALL_S=120
# GPUs for one cell
readonly NEED_GPUS=0
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# files of one cell
readonly NEED_FILES=20
# what a finished cell has, relative to CELL_DIR
readonly -a REQUIRED=(
  best.pth
  best_metrics.json
)
# what may go once a cell is synced
readonly -a PRUNE=(
  latest.pth
)
# names of variables, never values
readonly -a SECRETS=()
# mirrors, exported to every cell
readonly -a MIRRORS=()
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
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

# Put TEXT into FILE only if no FILE is there yet, in one step that cannot be raced.
create_once() { # <file> <text>    returns: 0 made, 1 it was there already, 74
  local file=$1 text=$2 dir=${1%/*} tmp rc=0
  [[ $dir != "$file" ]] || dir=.
  [[ ! -e $file ]] || return 1
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || ! flush "$tmp"; then
    rm -f -- "$tmp"
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  if ! ln -- "$tmp" "$file" 2>/dev/null; then
    rc=1
    # No hard links here (some FUSE mounts): noclobber is as atomic, for a whole text is one write.
    if [[ ! -e $file ]] && (
      set -C
      printf '%s' "$text" >"$file"
    ) 2>/dev/null; then rc=0; fi
    [[ -e $file ]] || rc=$EX_COPY
  fi
  rm -f -- "$tmp"
  flush "$dir"
  return "$rc"
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
record_bool() { # <name> <true or false>
  case $2 in
    true | false) record_raw "$1" "$2" ;;
    *)
      log "a bug here: member $1 of a record is to be true or false and is '$2'"
      return "$EX_INTEGRITY"
      ;;
  esac
}
record_close() {
  RECORD+=$'\n''}'$'\n'
}

# Read FILE into R_<member>. Lists are skipped. Only a whole record of the expected schema (and run) counts.
read_record() { # <file> <schema> [run id]    returns: 0 read, 1 not there, 2 unknown
  local file=$1 schema=$2 run_id=${3-} line text='' member value first=1 closed=0 in_list=0
  if [[ -n ${!R_@} ]]; then unset "${!R_@}"; fi
  [[ -e $file ]] || return 1
  # Up to a NUL or the end, without a fork: where read succeeds there was a NUL, and that is no text.
  ! { IFS= read -r -d '' text <"$file"; } 2>/dev/null || return 2
  [[ $text == '{'$'\n'*$'\n''}'$'\n' ]] || return 2
  while IFS= read -r line; do
    if ((first)); then
      first=0
      continue
    fi
    ((closed == 0)) || return 2
    case $line in
      '}') closed=1 ;;
      '  ]' | '  ],') in_list=0 ;;
      '    '*) ((in_list)) || return 2 ;;
      '  "'*'": '*)
        ((in_list == 0)) || return 2
        member=${line#'  "'}
        member=${member%%\"*}
        [[ $member =~ ^[a-z][a-z0-9_]*$ ]] || return 2
        value=${line#*'": '}
        value=${value%,}
        case $value in
          '[') in_list=1 ;;
          '[]') ;;
          '"'*'"')
            value=${value#\"}
            printf -v "R_$member" '%s' "${value%\"}"
            ;;
          null) printf -v "R_$member" '%s' '' ;;
          true | false) printf -v "R_$member" '%s' "$value" ;;
          *)
            [[ $value =~ ^-?[0-9]+$ ]] || return 2
            printf -v "R_$member" '%s' "$value"
            ;;
        esac
        ;;
      *) return 2 ;;
    esac
  done <"$file"
  [[ ${R_schema-} == "$schema" ]] || return 2
  [[ -z $run_id || ${R_run_id-} == "$run_id" ]] || return 2
}

# lib/proc.bash: who a process is. A number alone is recycled; with its start and this boot it is one process.
# needs:

this_host() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/hostname"; } 2>/dev/null || REPLY=${HOSTNAME-unknown}
}
this_boot_id() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/random/boot_id"; } 2>/dev/null || REPLY=unknown
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

# lib/room.bash: bytes and inodes that are free, and whether a tier is really there.
# needs: exit log path

# The nearest folder above PATH (or PATH itself) that exists, into REPLY.
existing_parent() { # <path>
  REPLY=$1
  while [[ -n $REPLY && ! -e $REPLY ]]; do REPLY=${REPLY%/*}; done
  REPLY=${REPLY:-/}
}

# One df, bounded: a dead network mount must not hang us. Prints the last line.
df_line() { # <-k or -i> <path>
  local text run=()
  if command -v timeout >/dev/null 2>&1 && timeout 5 true 2>/dev/null; then run=(timeout 20); fi
  text=$(${run[@]+"${run[@]}"} df -P "$1" -- "$2" 2>/dev/null) || return "$EX_MISSING"
  printf '%s\n' "${text##*$'\n'}"
}

# Bytes and inodes that are free at each of the folders, in one look: ROOM_BYTES and ROOM_INODES, parallel to the words. An entry is
# empty where it is not known: no such call, or a file system that does not count inodes.
look_room() { # <folders that exist...>
  local blocks size left all i text
  ROOM_BYTES=() ROOM_INODES=()
  text=$(stat -f -c '%a %S %d %c' -- "$@" 2>/dev/null) || text=''
  while read -r blocks size left all; do
    [[ $blocks$size$left$all =~ ^[0-9]+$ ]] || break
    ROOM_BYTES+=($((blocks * size)))
    if ((all > 0)); then ROOM_INODES+=("$left"); else ROOM_INODES+=(''); fi
  done <<<"$text"
  # No such stat: two calls of df for each.
  for ((i = ${#ROOM_BYTES[@]} + 1; i <= $#; i++)); do
    free_bytes "${!i}" || :
    ROOM_BYTES+=("$REPLY")
    free_inodes "${!i}" || :
    ROOM_INODES+=("$REPLY")
  done
}

# Free bytes of the file system that holds PATH, into REPLY; empty and 69 where it cannot be told.
free_bytes() { # <path>
  local line
  existing_parent "$1"
  line=$(df_line -k "$REPLY") || { REPLY= && return "$EX_MISSING"; }
  REPLY=
  [[ $line =~ \ ([0-9]+)\ +([0-9]+)\ +(-?[0-9]+)\ +([0-9]+|-)%?\ + ]] || return "$EX_MISSING"
  REPLY=$((BASH_REMATCH[3] * 1024))
}

# Free inodes, into REPLY; empty where the file system does not count them (btrfs, some FUSE): 0 of 0 is not full.
free_inodes() { # <path>    returns: 0, also where REPLY is empty; 69 where df failed
  local line
  existing_parent "$1"
  line=$(df_line -i "$REPLY") || { REPLY= && return "$EX_MISSING"; }
  REPLY=
  [[ $line =~ \ ([0-9]+)\ +([0-9]+)\ +([0-9]+)\ +([0-9]+|-)%?\ + ]] || return 0
  ((BASH_REMATCH[1] > 0)) || return 0
  REPLY=${BASH_REMATCH[3]}
}

# Is PATH a mount point of its own? By the kernel's list, which costs no look at a dead mount.
is_mount_point() { # <path>
  local line fields
  while IFS= read -r line; do
    read -ra fields <<<"$line"
    # The kernel writes a blank as \040.
    [[ ${fields[4]-} != "${1// /\\040}" ]] || return 0
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  return 1
}

# Is the tier at PATH there, by its profile's proof? Says why not into REPLY.
prove_tier() { # <path of the tier> <mount, marker or none>    returns: 0 or 74
  REPLY=
  case $2 in
    mount) is_mount_point "$1" || REPLY="$1 is not a mount point: the storage is not attached, and files there would go to another disk" ;;
    marker) [[ -s $1/.gpu-runbook-tier ]] || REPLY="$1/.gpu-runbook-tier is missing: the storage is not attached, or nobody has marked it yet" ;;
    none) [[ -d $1 ]] || mkdir -p -- "$1" 2>/dev/null || REPLY="$1 is not there and cannot be made" ;;
    *) REPLY="the proof '$2' is not known" ;;
  esac
  [[ -z $REPLY ]] || return "$EX_COPY"
}

# The durable tier, proven before the first byte goes to it. Refuses 74.
# shellcheck disable=SC2154 # bound in each script that calls it; others take this library for its other functions
prove_durable() { # reads: DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF
  [[ -n $DURABLE_DIR ]] || return 0
  local REPLY tier=$DURABLE_TIER_PATH
  expand_path tier
  if [[ $DURABLE_DIR/ == "${tier%/}"/* ]]; then
    prove_tier "${tier%/}" "$DURABLE_PROOF" ||
      refuse "$EX_COPY" "the durable tier" "$REPLY" "attach the storage, or set DURABLE_DIR= (empty) to run pull-only"
  elif [[ ! -d $DURABLE_DIR ]]; then
    # Not the profile's place: then nothing proves it but that a person made the folder.
    refuse "$EX_COPY" "DURABLE_DIR=$DURABLE_DIR" "it is not the profile's tier ($tier) and is no folder" "make the folder on storage that survives, or unset DURABLE_DIR"
  fi
}

# lib/run.bash: the run: its folders, its record, its events (docs/contracts.md, sections 1 and 3).
# needs: exit log path file record proc hash room

# One line for people and watchers; nothing decides by it, so a full disk here stops nothing.
event() { # <event> <cell or -> <attempt or -> <text>
  local REPLY
  utc_now
  printf '%s\t%s\t%s\t%s\t%s\n' "$REPLY" "$1" "$2" "$3" "${4//[[:cntrl:]]/ }" >>"$D/events.tsv" || :
}

# The run's folders from the bound values and the environment: D, B, S. Makes nothing.
run_places() {
  check_name "$RUN" RUN
  require_path DATA_DIR
  [[ -z $DURABLE_DIR ]] || require_path DURABLE_DIR
  require_path SCRATCH
  D=$DATA_DIR/$RUN
  # shellcheck disable=SC2034 # not every script has to do with the bundle and with scratch
  B=${DURABLE_DIR:-$DATA_DIR}/$RUN S=$SCRATCH/gpu-runbook/$RUN
  scratch_apart
  CODE_DIR=${CODE_DIR:-$D/code}
  expand_path CODE_DIR
}

# S is emptied when the disk is full: nothing of the run may lie in it, by name or by a link.
scratch_apart() {
  local place
  for place in "$D" "$B"; do
    [[ $place/ != "$S"/* && ! $place -ef $S ]] ||
      refuse "$EX_CONFIG" "SCRATCH=$SCRATCH" "$place lies in $S, which is emptied when room is short" "set SCRATCH to another folder"
  done
}

# The real folder of this script, into SELF_DIR: its siblings lie there, and a moved link changes nothing.
self_dir() {
  local dir=${BASH_SOURCE[0]-}
  [[ $dir == */* ]] || dir=./$dir
  # shellcheck disable=SC2034 # not every script that comes here asks for it
  SELF_DIR=$(cd -P -- "${dir%/*}" && pwd -P)
}

# Digest of the folder that this script lies in, into REPLY: which scripts these are.
box_digest() { # <folder box/>
  local file text=''
  for file in "$1"/*; do
    [[ -f $file ]] || continue
    hash_file "$file" || return "$EX_INTEGRITY"
    text+="$REPLY  ${file##*/}"$'\n'
  done
  hash_text "$text"
}

# Is there anything at FOLDER or above it that git would take for a repository? Where there is not, it need not be asked.
may_be_repository() { # <folder>
  local dir
  [[ -z ${GIT_DIR-} ]] || return 0
  dir=$(cd -P -- "$1" 2>/dev/null && pwd -P) || return 0
  while :; do
    [[ ! -e $dir/.git && ! -e $dir/HEAD ]] || return 0
    [[ -n $dir ]] || return 1
    dir=${dir%/*}
  done
}

# The commit of the code, into CODE_COMMIT (40 digits or none).
code_commit() {
  CODE_COMMIT=none
  command -v git >/dev/null 2>&1 && [[ -d $CODE_DIR ]] && may_be_repository "$CODE_DIR" || return 0
  CODE_COMMIT=$(git -C "$CODE_DIR" rev-parse --verify -q HEAD 2>/dev/null) || CODE_COMMIT=none
  [[ $CODE_COMMIT =~ ^[0-9a-f]{40}$ ]] || CODE_COMMIT=none
}

# The text of this run's record with HOST and BOOT_ID of now, into RECORD.
run_record() { # <run id> <formal> <commit> <branch> <shard> <box digest>
  local REPLY
  record_open run/1
  record_text run_id "$1"
  record_text job "$JOB"
  record_text profile "$PROFILE"
  record_bool formal "$2" || return
  record_text commit "$3"
  record_text branch "$4"
  record_text shard "$5"
  this_host
  record_text host "$REPLY"
  this_boot_id
  record_text boot_id "$REPLY"
  record_text box_digest "$6"
  record_close
}

new_run() { # <formal> <shard>: create the record, or find that another start was quicker
  local REPLY id uuid digest branch=''
  IFS= read -r uuid </proc/sys/kernel/random/uuid || return "$EX_MISSING"
  utc_now
  id=${REPLY//[-:]/}-${uuid:0:8}
  box_digest "$SELF_DIR" || return
  digest=$REPLY
  [[ $CODE_COMMIT == none ]] || branch=$(git -C "$CODE_DIR" symbolic-ref -q --short HEAD 2>/dev/null) || branch=''
  run_record "$id" "$1" "$CODE_COMMIT" "$branch" "$2" "$digest" || return
  create_once "$D/run.json" "$RECORD" || [[ $? -eq 1 ]]
}

# Read D's record into R_*, taking B's where D has none yet (a new box on the same durable tier).
find_run() { # returns: 0 found, 1 there is none; refuses 65 where one is unreadable
  local rc=0 text
  read_record "$D/run.json" run/1 || rc=$?
  ((rc != 2)) || refuse "$EX_INTEGRITY" "$D/run.json" "it is not a whole record" "compare it with $B/run.json and copy the whole one over it"
  ((rc == 1)) || return 0
  [[ $B != "$D" && -e $B/run.json ]] || return 1
  read_record "$B/run.json" run/1 ||
    refuse "$EX_INTEGRITY" "$B/run.json" "it is not a whole record" "look at it; begin anew with RUN=$JOB.2 if it is lost"
  text=$(<"$B/run.json")
  create_once "$D/run.json" "$text"$'\n' || [[ $? -eq 1 ]] || return "$EX_COPY"
  read_record "$D/run.json" run/1
}

# The durable copy: made where it is missing, refused where it is another run's.
mirror_run() {
  [[ $B != "$D" ]] || return 0
  local id=$R_run_id text rc=0
  text=$(<"$D/run.json")
  [[ -d $B ]] || mkdir -p -- "$B" || refuse "$EX_COPY" "$B" "the folder cannot be made" "look at the durable tier: room, rights"
  create_once "$B/run.json" "$text"$'\n' || [[ $? -eq 1 ]] ||
    refuse "$EX_COPY" "$B/run.json" "it cannot be written" "look at the durable tier: room, rights"
  read_record "$B/run.json" run/1 "$id" || rc=$?
  ((rc == 0)) || refuse "$EX_INTEGRITY" "$B/run.json" "it is another run's record, or not whole; ours is $id" "begin anew with RUN=$JOB.2, or put the right storage in place"
  read_record "$D/run.json" run/1
}

# Take the run over: write our host into both copies.
adopt_run() { # <host that had it>
  event adopt - - "from $1"
  run_record "$R_run_id" "${R_formal-}" "${R_commit-}" "${R_branch-}" "${R_shard-}" "${R_box_digest-}" || return
  replace_file "$D/run.json" "$RECORD" || return
  [[ $B == "$D" ]] || replace_file "$B/run.json" "$RECORD" || return
  read_record "$D/run.json" run/1
}

# What an existing run insists on: its commit, its shard, its formality, its host.
check_run() { # <formal wanted> <shard or empty> <adopt>
  local REPLY anew="begin anew with RUN=$JOB.2"
  [[ ${R_commit-} == "$CODE_COMMIT" ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it is of commit ${R_commit-}, and the code at $CODE_DIR is at $CODE_COMMIT" "check out ${R_commit-} there, or $anew"
  [[ -z $2 || ${R_shard-} == "$2" ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it is of shard ${R_shard-}, not $2" "give --shard ${R_shard-}, or a RUN of its own to each box"
  [[ $1 != true || ${R_formal-} == true ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it was not begun by formal_run, so it is never evidence" "$anew"
  this_host
  if [[ ${R_host-} != "$REPLY" ]]; then
    [[ $3 == true ]] ||
      refuse "$EX_BUSY" "run $R_run_id" "box ${R_host-} has it, and this is $REPLY" "if that box is gone for good, say --adopt; else give this box its own RUN"
    adopt_run "${R_host-}" || return
  fi
}

# What a person set in place of the bound values, by this process's own environment: printed and logged.
log_overrides() {
  local pair name value
  # Run_queue has said it for all its cells.
  [[ -z ${OVERRIDES_SAID-} && -r /proc/$$/environ ]] || return 0
  while IFS= read -r -d '' pair; do
    name=${pair%%=*} value=${pair#*=}
    case $name in
      DATA_DIR | DURABLE_DIR | SCRATCH | HF_HOME | PROXY_HOOK | CRED_FILE | DETACH | PY) ;;
      *) continue ;;
    esac
    # A proxy's address may carry a password.
    [[ $value != *://*@* ]] || value="${value%%://*}://...@${value##*@}"
    log "override: $name=$value"
    event override - - "$name=$value"
  done <"/proc/$$/environ"
}

# Begin or continue the run. Sets D B S CODE_DIR RUN_ID RUN_COMMIT RUN_FORMAL RUN_SHARD RUN_HOST RUN_BOX_DIGEST.
open_run() { # <formal wanted: true or false> <shard I/N or empty> <adopt: true or false>
  local formal=$1 shard=$2 adopt=$3
  self_dir
  run_places
  prove_durable
  [[ -d $D ]] || mkdir -p -- "$D" || refuse "$EX_NOROOM" "$D" "the folder cannot be made" "look at the data tier: room, rights"
  code_commit
  [[ $formal != true || $CODE_COMMIT != none ]] ||
    refuse "$EX_GATE" "a formal run" "the code at $CODE_DIR has no commit" "put a git work tree there, or set CODE_DIR"
  if ! find_run; then
    new_run "$formal" "${shard:-1/1}" || refuse "$EX_COPY" "$D/run.json" "it cannot be written" "look at the data tier: room, rights"
    find_run || refuse "$EX_COPY" "$D/run.json" "it does not read back" "look at the data tier"
  fi
  mirror_run
  check_run "$formal" "$shard" "$adopt" || refuse "$EX_COPY" "run $RUN" "its record cannot be rewritten" "look at the tiers: room, rights"
  # shellcheck disable=SC2034 # a script uses the ones that it needs
  RUN_ID=$R_run_id RUN_COMMIT=${R_commit-} RUN_FORMAL=${R_formal-} RUN_SHARD=${R_shard-} RUN_HOST=${R_host-} RUN_BOX_DIGEST=${R_box_digest-}
  log_overrides
}

# lib/queue.bash: the one reader of queue files. Whoever counts cells counts them with this.
# needs: exit log path

# Read FILE into QUEUE_NAMES and QUEUE_COMMANDS. A line is name<TAB>command; blank lines and # do not count.
read_queue() { # <file>    returns: 0, or refuses 69 (not there) or 78 (not a queue), naming file and line
  # Set once: to switch the locale for each line costs more than all the rest.
  local LC_ALL=C file=$1 line n=0 name command
  local -a lines
  local -A seen=()
  QUEUE_NAMES=()
  QUEUE_COMMANDS=()
  [[ -r $file && -f $file ]] || refuse "$EX_MISSING" "queue $file" "it cannot be read" "give --queue FILE, or put queue.tsv there"
  ! IFS= read -r -d '' line <"$file" || refuse "$EX_CONFIG" "queue $file" "it holds a NUL: it is no text" "write it anew"
  # The last line counts also without its newline.
  mapfile -t lines <"$file" || refuse "$EX_MISSING" "queue $file" "it cannot be read" "look at its rights and its disk"
  for line in ${lines[@]+"${lines[@]}"}; do
    n=$((n + 1))
    ((n > 1)) || line=${line#$'\xef\xbb\xbf'}
    line=${line%$'\r'}
    case $line in
      '#'*) continue ;;
      *[![:space:]]*) ;;
      *) continue ;;
    esac
    name=${line%%$'\t'*}
    command=${line#*$'\t'}
    # By patterns, not by a regular expression: bash would compile it anew for each line.
    if [[ $name == *[!A-Za-z0-9._=,+@-]* || $name != [A-Za-z0-9]* || ${#name} -gt 128 || $command == "$line" || ${command//$'\t'/} == *[[:cntrl:]]* || $command != *[![:space:]]* ||
      -n ${seen[${name,,}]-} ]]; then
      refuse_line "$file:$n" "$line" "$name" "$command" "${seen[${name,,}]-}"
    fi
    seen[${name,,}]=$n
    QUEUE_NAMES+=("$name")
    QUEUE_COMMANDS+=("$command")
  done
  ((${#QUEUE_NAMES[@]} > 0)) || refuse "$EX_CONFIG" "queue $file" "it holds no cell" "write a line name<TAB>command for each cell"
}

# What is wrong with one line.
refuse_line() { # <where> <line> <name> <command> <line that has the name too, or empty>
  [[ $2 == *$'\t'* ]] || refuse "$EX_CONFIG" "$1" "no tab between name and command" "write name<TAB>command"
  [[ ${4//$'\t'/} != *[[:cntrl:]]* ]] || refuse "$EX_CONFIG" "$1" "a control character in the command" "take it out"
  [[ $4 == *[![:space:]]* ]] || refuse "$EX_CONFIG" "$1" "cell '${3//[[:cntrl:]]/?}' has no command" "write name<TAB>command"
  check_name "$3" "$1: cell"
  refuse "$EX_CONFIG" "$1" "cell '$3' stands in line $5 too (upper and lower case count as one)" "give each cell a name of its own"
}

# The place of a cell in QUEUE_NAMES, into REPLY.
queue_index() { # <cell>    returns: 1 where it is not there
  for ((REPLY = 0; REPLY < ${#QUEUE_NAMES[@]}; REPLY++)); do
    [[ ${QUEUE_NAMES[REPLY]} != "$1" ]] || return 0
  done
  REPLY=''
  return 1
}

# lib/envspec.bash: which environment a cell ran in, as eight digits that differ when it differs (X9).
# needs: exit log hash run
# reads: PY D

# A sorted description: the interpreter, its version, each installed package with its version, and the GPU driver. Into REPLY.
# What cannot be asked is said so; a hanging interpreter is left after 60 s.
describe_environment() {
  local said run=() driver=none
  if command -v timeout >/dev/null 2>&1; then run=(timeout 60); fi
  said=$(${run[@]+"${run[@]}"} "$PY" -c 'import json, platform, sys
from importlib import metadata
names = sorted({"%s==%s" % (d.metadata["Name"], d.version) for d in metadata.distributions()})
print(json.dumps({"packages": names, "python": platform.python_version(), "where": sys.prefix}, sort_keys=True))' </dev/null 2>/dev/null) || said="no answer from PY=$PY"
  { IFS= read -r driver </proc/driver/nvidia/version; } 2>/dev/null || :
  REPLY="$said"$'\n'"driver $driver"$'\n'
}

# The digest into ENV_SPEC, the description into D/environment.txt. A run that goes on in another environment says so.
env_spec() {
  local REPLY text before=''
  [[ ! ${ENV_SPEC-} =~ ^[0-9a-f]{8}$ ]] || return 0
  describe_environment
  text=$REPLY
  ENV_SPEC=unknown
  hash_text "$text" && ENV_SPEC=${REPLY:0:8}
  before=''
  { IFS= read -r -d '' before <"$D/environment.txt"; } 2>/dev/null || :
  [[ $before != "$text" ]] || return 0
  [[ -z $before ]] || log "the environment is another one than this run began in: now $ENV_SPEC, see $D/environment.txt and events.tsv"
  event environment - - "$ENV_SPEC"
  { printf '%s' "$text" >"$D/environment.txt"; } 2>/dev/null || log "could not write $D/environment.txt"
}

# lib/hashes.bash: many files at once: their digests by all cores, their sizes and times in one look.
# needs: exit log hash

# What `stat` says of each path, links followed, into STAT_OF[path]: "size|inode|mtime|ctime". Not there: no entry.
stat_many() { # <path...>
  local line rest
  declare -gA STAT_OF
  STAT_OF=()
  while (($# > 0)); do
    while IFS= read -r line; do
      rest=${line#*|*|*|*|}
      STAT_OF[$rest]=${line%"|$rest"}
    done < <(TZ=UTC0 stat -L -c '%s|%i|%y|%z|%n' -- "${@:1:500}" 2>/dev/null)
    shift $(($# < 500 ? $# : 500))
  done
}

# Let the kernel forget what it keeps of these files, so that reading them asks the storage. Best effort, GNU dd only.
forget_cached() { # <path...>
  local path
  # Where one call fails dd does not know the flag, or the file is not there, which its digest will tell.
  for path in "$@"; do dd if="$path" of=/dev/null iflag=nocache count=0 2>/dev/null || return 0; done
}

# One worker: the tool over its share, some hundred names a call.
hash_share() { # <path...>    prints lines of the tool
  while (($# > 0)); do
    case $HASH_TOOL in
      openssl) openssl dgst -sha256 -r "${@:1:200}" ;;
      sha256sum) sha256sum -- "${@:1:200}" ;;
      shasum) shasum -a 256 -- "${@:1:200}" ;;
    esac 2>/dev/null || :
    shift $(($# < 200 ? $# : 200))
  done
}

# How many workers: the cores that we may use, and not more than there are files.
hash_workers() { # <files>    into REPLY
  REPLY=$(nproc 2>/dev/null) || REPLY=1
  [[ $REPLY =~ ^[1-9][0-9]*$ ]] || REPLY=1
  ((REPLY <= 16)) || REPLY=16
  ((REPLY <= $1)) || REPLY=$1
}

# Digests of absolute paths, into SUM_OF[path]. The names hold no control character and no backslash.
# Work is shared out by the sizes in STAT_OF, biggest burden never on the worker that has most already.
hash_many() { # <path...>    returns: 0, or 1 where a file could not be read (it has no entry)
  local REPLY path line n best i share fd all=0
  local -a load=() fds=()
  local -A of=()
  declare -gA SUM_OF
  SUM_OF=()
  (($# > 0)) || return 0
  # Little work is done sooner by one than shared out.
  for path in "$@"; do
    line=${STAT_OF[$path]-4194304}
    all=$((all + ${line%%|*}))
  done
  REPLY=1
  local HASH_TOOL=${HASH_TOOL-}
  if ((all < 4194304)); then
    hash_tool_small
  else
    hash_tool
    hash_workers $#
  fi
  n=$REPLY
  for ((i = 0; i < n; i++)); do load[i]=0; done
  for path in "$@"; do
    best=0
    for ((i = 1; i < n; i++)); do ((load[i] >= load[best])) || best=$i; done
    line=${STAT_OF[$path]-1}
    load[best]=$((load[best] + ${line%%|*} + 4096))
    of[$best]+=$path$'\n'
  done
  for ((i = 0; i < n; i++)); do
    IFS=$'\n' read -r -d '' -a share <<<"${of[$i]-}" || :
    exec {fd}< <(hash_share ${share[@]+"${share[@]}"})
    fds+=("$fd")
  done
  for fd in "${fds[@]}"; do
    while IFS= read -r line; do
      [[ ! ${line:0:64} =~ ^[0-9a-f]{64}$ ]] || SUM_OF[${line:66}]=${line:0:64}
    done <&"$fd"
    exec {fd}<&-
  done
  ((${#SUM_OF[@]} >= $#))
}

# lib/bundle.bash: a cell's results on their way into the bundle: listed, copied, read back, committed.
# needs: exit log path file record proc hash hashes room run
# reads: D B RUN_ID DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF REQUIRED
#
# Who runs a cell writes D/state/<cell>.json with state "unsynced" (exit 0, evidence there), then calls sync_cell:
# on 0 both that record and B/records/<cell>.json say done; on 73, 74 or 65 nothing in B was replaced by worse,
# and the record is as it was. A crash in between leaves "unsynced", which aggregate repeats.

# Is this the name of a file that some transfer or writer left half done?
is_leftover() { # <path below the cell>
  local base=${1##*/} tail
  case $1 in
    .~tmp~/* | */.~tmp~/* | .rsync-partial/* | */.rsync-partial/* | .partial/* | */.partial/*) return 0 ;;
  esac
  case $base in
    *.tmp | *.temp | *.part | *.partial | *.crdownload | .nfs* | .fuse_hidden* | *.sw[op]) return 0 ;;
    .?*.??????)
      # rsync's temporary name: six random characters, of which one at least is no small letter.
      tail=${base##*.}
      [[ $tail =~ ^[A-Za-z0-9]{6}$ && $tail =~ [A-Z0-9] ]] && return 0
      ;;
  esac
  return 1
}

# Files below a required folder, links followed, into LIST_PATHS; what is not a result is named and left out.
list_folder() { # <cell folder> <item>
  local dir=$1 item=$2 path ended=0 found=0
  while IFS= read -r -d '' path; do
    path=${path#"$dir"/}
    path=${path#./}
    if [[ $path == '== end' ]]; then
      ended=1
    elif [[ -L $dir/$path && ! -e $dir/$path ]]; then
      log "$dir/$path is a link that leads nowhere"
      return "$EX_COPY"
    elif is_leftover "$path"; then
      log "left out: $path (its name says that it is unfinished)"
    elif [[ ! -f $dir/$path ]]; then
      # Never opened: reading a fifo would wait for ever.
      log "left out: $path (a socket, fifo or device)"
    else
      LIST_PATHS+=("$path")
      found=1
    fi
  done < <(find -L "$dir/$item" ! -type d -print0 2>/dev/null && printf '== end\0')
  ((ended)) || { log "$dir/$item cannot be read whole: a folder without rights, or a link that leads into itself" && return "$EX_COPY"; }
  ((found)) || { log "$dir/$item holds no file" && return "$EX_COPY"; }
}

# All result files of a cell, as paths below its folder, in C order without repeats: LIST_PATHS.
list_paths() { # <cell folder>    returns: 0, 65 a name that no list can hold, 74 not there or not readable
  local dir=$1 item path text
  LIST_PATHS=()
  for item in ${REQUIRED[@]+"${REQUIRED[@]}"}; do
    item=${item%/}
    if [[ -L $dir/$item && ! -e $dir/$item ]]; then
      log "$dir/$item is a link that leads nowhere"
      return "$EX_COPY"
    elif [[ -f $dir/$item ]]; then
      LIST_PATHS+=("$item")
    elif [[ -d $dir/$item ]]; then
      list_folder "$dir" "$item" || return
    elif [[ -e $dir/$item ]]; then
      log "$dir/$item is a socket, fifo or device, not a result"
      return "$EX_COPY"
    else
      log "$dir/$item is not there"
      return "$EX_COPY"
    fi
  done
  for path in ${LIST_PATHS[@]+"${LIST_PATHS[@]}"}; do
    [[ $path != *[[:cntrl:]\"\\]* ]] && continue
    log "$dir/${path//[[:cntrl:]]/?} has a quote, a backslash or a control character in its name: rename it"
    return "$EX_INTEGRITY"
  done
  ((${#LIST_PATHS[@]} > 0)) || { log "$dir has no result file" && return "$EX_COPY"; }
  ((${#LIST_PATHS[@]} > 1)) || return 0
  if ((${#LIST_PATHS[@]} <= 16)); then
    sort_paths
    return
  fi
  text=$(printf '%s\n' "${LIST_PATHS[@]}" | LC_ALL=C sort -u) || return "$EX_COPY"
  LIST_PATHS=()
  while IFS= read -r path; do LIST_PATHS+=("$path"); done <<<"$text"
}

# LIST_PATHS in C order without repeats, without a process: for few.
sort_paths() {
  local LC_ALL=C path i
  local -a sorted=()
  for path in "${LIST_PATHS[@]}"; do
    for ((i = ${#sorted[@]}; i > 0; i--)); do
      [[ $path < ${sorted[i - 1]} ]] || break
      sorted[i]=${sorted[i - 1]}
    done
    sorted[i]=$path
  done
  LIST_PATHS=()
  for path in "${sorted[@]}"; do
    [[ ${#LIST_PATHS[@]} -gt 0 && ${LIST_PATHS[${#LIST_PATHS[@]} - 1]} == "$path" ]] || LIST_PATHS+=("$path")
  done
}

# Digests of a cell's results, taken at the source, into D/state/<cell>.sha256 and LIST_TEXT LIST_DIGEST LIST_PATHS
# LIST_SUMS LIST_SIZES LIST_BYTES.
list_cell() { # <cell>    returns: 0, 65, or 74 (missing, unreadable, or still being written)
  local REPLY cell=$1 dir=$D/cells/$1 path line i
  local -a full=()
  local -A before=()
  list_paths "$dir" || return
  LIST_SUMS=() LIST_SIZES=() LIST_BYTES=0 LIST_TEXT=''
  for path in "${LIST_PATHS[@]}"; do full+=("$dir/$path"); done
  stat_many "${full[@]}"
  for path in "${full[@]}"; do before[$path]=${STAT_OF[$path]-}; done
  hash_many "${full[@]}" || { log "a result of cell $cell cannot be read" && return "$EX_COPY"; }
  stat_many "${full[@]}"
  for ((i = 0; i < ${#full[@]}; i++)); do
    path=${full[i]}
    line=${STAT_OF[$path]-}
    [[ -n $line && $line == "${before[$path]}" ]] || { log "$path is still being written" && return "$EX_COPY"; }
    LIST_SUMS+=("${SUM_OF[$path]}")
    LIST_SIZES+=("${line%%|*}")
    LIST_BYTES=$((LIST_BYTES + ${line%%|*}))
    LIST_TEXT+="${SUM_OF[$path]}  ${LIST_PATHS[i]}"$'\n'
  done
  hash_text "$LIST_TEXT" || return "$EX_COPY"
  LIST_DIGEST=$REPLY
  # Nothing is ever read from it: the commit takes the list from here, a repeated sync takes new digests.
  { printf '%s' "$LIST_TEXT" >"$D/state/$cell.sha256"; } 2>/dev/null || { log "could not write $D/state/$cell.sha256" && return "$EX_COPY"; }
}

# Is a cell committed: does B's record say done in this run, over the digest list that lies beside it?
check_bundled() { # <cell>    returns: 0 yes, 1 no record, 2 a record or list that does not hold; leaves R_*
  local REPLY rc=0
  read_record "$B/records/$1.json" cell/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return "$rc"
  [[ ${R_cell-} == "$1" && ${R_state-} == "done" && -n ${R_files_sha256-} ]] || return 2
  hash_file "$B/records/$1.sha256" || return 2
  [[ $REPLY == "$R_files_sha256" ]] || return 2
}

# The record in R_* once more, with STATE, WHY and the digest list, into RECORD.
cell_record() { # <state> <why> <files digest>
  record_open cell/1
  record_text run_id "$RUN_ID"
  record_text cell "$R_cell"
  record_text state "$1"
  record_text class ''
  record_text why "$2"
  record_int attempt "${R_attempt-}" || return
  record_int exit "${R_exit-}" || return
  record_raw signal "${R_signal:-null}"
  record_text started "${R_started-}"
  record_text ended "${R_ended-}"
  record_int peak_memory_bytes "${R_peak_memory_bytes-}" || return
  record_text gpu "${R_gpu-}"
  record_text command_sha256 "${R_command_sha256-}"
  record_text files_sha256 "$3"
  record_text tracker_url "${R_tracker_url-}"
  record_close
}

# Remove what an earlier sync of this cell, killed half-way, left in the bundle: our own names and nothing else.
drop_own_leftovers() { # <target folder>
  local path pid
  [[ -d $1 ]] || return 0
  while IFS= read -r -d '' path; do
    pid=${path##*/.gr-}
    pid=${pid%%-*}
    if [[ ! $pid =~ ^[0-9]+$ ]] || start_ticks "$pid"; then continue; fi
    rm -f -- "$path" || return "$EX_COPY"
  done < <(find "$1" -type f -name '.gr-*-*.tmp' -print0 2>/dev/null)
}

# Which files of the list are not in TARGET as they should be: indices into TODO, their bytes into TODO_BYTES.
sync_todo() { # <target folder>
  local i path
  local -a same=()
  TODO=() TODO_BYTES=0
  for path in "${LIST_PATHS[@]}"; do
    path=$1/$path
    [[ ! -f $path || -L $path ]] || same+=("$path")
  done
  stat_many ${same[@]+"${same[@]}"}
  hash_many ${same[@]+"${same[@]}"} || :
  for ((i = 0; i < ${#LIST_PATHS[@]}; i++)); do
    path=$1/${LIST_PATHS[i]}
    [[ ${SUM_OF[$path]-} != "${LIST_SUMS[i]}" ]] || continue
    TODO+=("$i")
    TODO_BYTES=$((TODO_BYTES + LIST_SIZES[i]))
  done
}

# Room for the whole copy, before its first byte: the old files stay until the new ones are proven. For little a look is not
# worth its price: cp says the same, and as early.
sync_room() { # <target folder>    returns: 0 or 73
  ((TODO_BYTES >= 1048576 || ${#TODO[@]} > 64)) || return 0
  look_room "$1"
  if [[ -n ${ROOM_BYTES[0]} ]] && ((TODO_BYTES + 65536 > ROOM_BYTES[0])); then
    log "no room for the copy: it needs $TODO_BYTES bytes, $1 has ${ROOM_BYTES[0]}"
    return "$EX_NOROOM"
  fi
  if [[ -n ${ROOM_INODES[0]} ]] && ((${#TODO[@]} + 6 > ROOM_INODES[0])); then
    log "no room for the copy: it needs ${#TODO[@]} files, $1 has inodes for ${ROOM_INODES[0]}"
    return "$EX_NOROOM"
  fi
}

# One file under a temporary name in its own target folder. Says 73 where the disk is full.
copy_one() { # <source> <folder> <temporary path>
  local said
  [[ -d $2 ]] || mkdir -p -- "$2" || return "$EX_COPY"
  [[ ! -L $2 ]] || { log "$2 is a link, not a folder of the bundle" && return "$EX_COPY"; }
  # In English: what it says decides.
  said=$(LC_ALL=C cp -L -- "$1" "$3" 2>&1) && return 0
  said=${said//[[:cntrl:]]/ }
  case $said in
    *'No space left'* | *'quota exceeded'*) log "no room for the copy of $1: $said" && return "$EX_NOROOM" ;;
  esac
  log "copying $1 failed: $said"
  return "$EX_COPY"
}

# Copy what TODO names, flush, read back, and only then rename. The last good copy stays until the new one is proven.
sync_files() { # <source folder> <target folder>
  local source=$1 target=$2 i to tmp rc=0
  local -a tmps=()
  declare -gA STAT_OF
  for i in "${TODO[@]}"; do
    to=$target/${LIST_PATHS[i]}
    tmp=${to%/*}/.gr-$$-$i.tmp
    tmps+=("$tmp")
    copy_one "$source/${LIST_PATHS[i]}" "${to%/*}" "$tmp" || { rc=$? && break; }
    # For sharing out the reading.
    # shellcheck disable=SC2004 # STAT_OF is associative; its declaration is in lib hashes too
    STAT_OF[$tmp]=${LIST_SIZES[i]}
  done
  if ((rc == 0)); then
    flush "${tmps[@]}" || { log "the copy to $target cannot be flushed: no room, a quota, or its disk is failing" && rc=$EX_COPY; }
  fi
  if ((rc == 0)); then
    forget_cached "${tmps[@]}"
    hash_many "${tmps[@]}" || rc=$EX_COPY
  fi
  for i in "${TODO[@]}"; do
    ((rc == 0)) || break
    to=$target/${LIST_PATHS[i]}
    tmp=${to%/*}/.gr-$$-$i.tmp
    if [[ ${SUM_OF[$tmp]-} != "${LIST_SUMS[i]}" ]]; then
      log "the copy of ${LIST_PATHS[i]} on $target reads back as ${SUM_OF[$tmp]-nothing}, its source was ${LIST_SUMS[i]}"
      rc=$EX_COPY
    fi
  done
  for i in "${TODO[@]}"; do
    ((rc == 0)) || break
    to=$target/${LIST_PATHS[i]}
    [[ ! -d $to ]] || { log "$to is a folder where a file is to be" && rc=$EX_COPY && break; }
    mv -f -- "${to%/*}/.gr-$$-$i.tmp" "$to" || rc=$EX_COPY
  done
  ((rc == 0)) || rm -f -- "${tmps[@]}"
  return "$rc"
}

# A cell's results into the bundle, then its list, last its record: whoever sees the record may count on the rest.
sync_cell() { # <cell>    returns: 0 committed, 65, 73 or 74 with the reason said; see the top of this file
  local REPLY cell=$1 target=$B/final_ckpts/$1 rc=0
  # The tier is proven before any byte; the refusal is this function's status, not the end of the script.
  (prove_durable) || return
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || { log "cell $cell has no whole record of this run" && return "$EX_INTEGRITY"; }
  [[ ${R_state-} == unsynced || ${R_state-} == "done" ]] || { log "cell $cell is ${R_state-}: nothing to sync" && return "$EX_INTEGRITY"; }
  list_cell "$cell" || return
  check_bundled "$cell" || rc=$?
  if ((rc == 0)) && [[ $R_files_sha256 != "$LIST_DIGEST" ]]; then
    log "cell $cell is in the bundle, and its files in $D/cells/$cell were changed since: the bundle keeps the first ones"
    return "$EX_INTEGRITY"
  fi
  [[ ! -L $target ]] || { log "$target is a link, not a folder of the bundle" && return "$EX_COPY"; }
  drop_own_leftovers "$target" || return
  mkdir -p -- "$target" "$B/records" 2>/dev/null || { log "$target cannot be made" && return "$EX_COPY"; }
  sync_todo "$target"
  sync_room "$target" || return
  if ((${#TODO[@]} > 0)); then sync_files "$D/cells/$cell" "$target" || return; fi
  commit_cell "$cell"
}

# The list and the record into B, and read back; then our own record. One flush stands before the record's name: the results
# under theirs, the text of the list, the text of the record. A record without its list does not hold, so those two need no
# flush in between. Our own record may be lost in a power cut: the one in B is asked first.
commit_cell() { # <cell>
  local cell=$1 text back=$B/records/$1
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || return "$EX_INTEGRITY"
  cell_record 'done' '' "$LIST_DIGEST" || return
  text=$RECORD
  replace_file "$back.sha256" "$LIST_TEXT" soon || return
  target_folders "$cell"
  replace_file "$back.json" "$text" behind "$back.sha256" "${TARGET_FOLDERS[@]}" || return
  flush "$B/records" || return "$EX_COPY"
  # The list was read back when it was written; what its digest is, we know.
  read_record "$back.json" cell/1 "$RUN_ID" && [[ $R_files_sha256 == "$LIST_DIGEST" && $(<"$back.sha256") == "${LIST_TEXT%$'\n'}" ]] ||
    { log "the record of cell $cell does not read back from $B" && return "$EX_COPY"; }
  replace_file "$D/state/$cell.json" "$text" soon || return
  say_bundled "$cell"
}

# The folders in the bundle whose names a commit speaks of, into TARGET_FOLDERS.
target_folders() { # <cell>
  local path folder=$B/final_ckpts/$1
  local -A seen=([$folder]=1)
  TARGET_FOLDERS=("$B/final_ckpts" "$folder")
  for path in "${LIST_PATHS[@]}"; do
    path=$folder/$path
    while [[ ${path%/*} != "$folder" && -z ${seen[${path%/*}]-} ]]; do
      path=${path%/*}
      seen[$path]=1
      TARGET_FOLDERS+=("$path")
    done
  done
}

# The words for a committed cell. Without a durable tier it is exported, and nothing more is said.
say_bundled() { # <cell>
  if [[ -n $DURABLE_DIR ]]; then
    claim synced "cell $1" "$B/records/$1.json"
  else
    claim 'exported, on this box only' "cell $1" "$B/records/$1.json"
  fi
}

# lib/probe.bash: what this machine lets us use. Never one number alone: the smallest of all that can be read.
# needs: room

# CPUs in a list like 0-3,8 (affinity), into REPLY.
count_list() { # <list>
  local part parts n=0
  IFS=, read -ra parts <<<"$1"
  for part in ${parts[@]+"${parts[@]}"}; do
    if [[ $part =~ ^([0-9]+)-([0-9]+)$ ]]; then
      n=$((n + BASH_REMATCH[2] - BASH_REMATCH[1] + 1))
    elif [[ $part =~ ^[0-9]+$ ]]; then
      n=$((n + 1))
    fi
  done
  REPLY=$n
}

# Our cgroup's folder for a controller (v1), or the unified one for an empty name, into REPLY; 1 where there is none.
cgroup_path() { # <controller or empty>
  local n list path
  REPLY=
  while IFS=: read -r n list path; do
    if [[ -z $1 && $n == 0 && -z $list ]] || [[ -n $1 && ,$list, == *",$1,"* ]]; then
      REPLY=$path
      return 0
    fi
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/cgroup"
  return 1
}

# The smallest of a limit file from our cgroup up to the root: a parent's limit binds as well.
# In a container the path may be the host's and lead nowhere; then the mount's own root is ours.
cgroup_walk() { # <mount> <path> <reader function>    calls the reader with each folder that exists
  local dir=$2
  dir=${dir%/}
  while :; do
    [[ ! -d $1$dir ]] || "$3" "$1$dir"
    [[ -n $dir ]] || return 0
    dir=${dir%/*}
  done
}

first_line() { # <file>    into REPLY; 1 where it cannot be read
  REPLY=
  { IFS= read -r REPLY <"$1" || [[ -n $REPLY ]]; } 2>/dev/null
}

read_cpu_v2() { # <folder>
  local quota period
  first_line "$1/cpu.max" || return 0
  read -r quota period <<<"$REPLY"
  [[ $quota =~ ^[0-9]+$ && ${period:-0} -gt 0 ]] || return 0
  keep_quota "$quota" "$period"
}
read_cpu_v1() { # <folder>
  local quota
  first_line "$1/cpu.cfs_quota_us" || return 0
  quota=$REPLY
  first_line "$1/cpu.cfs_period_us" || return 0
  [[ $quota =~ ^[1-9][0-9]*$ && $REPLY =~ ^[1-9][0-9]*$ ]] || return 0
  keep_quota "$quota" "$REPLY"
}
keep_quota() { # <quota> <period>    the smallest, in hundredths of a CPU
  local hundredths=$(($1 * 100 / $2))
  [[ -n $CPU_QUOTA && $CPU_QUOTA -le $hundredths ]] || CPU_QUOTA=$hundredths
}
# CPU_NPROC CPU_AFFINITY CPU_QUOTA (hundredths) and the smallest of them, CPUS; empty = cannot be read.
probe_cpus() {
  local line path root=${FAKE_ROOT-}/sys/fs/cgroup
  CPU_NPROC='' CPU_AFFINITY='' CPU_QUOTA='' CPUS=''
  # nproc believes OMP_NUM_THREADS; this is about the machine.
  CPU_NPROC=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null) || CPU_NPROC=''
  [[ $CPU_NPROC =~ ^[0-9]+$ ]] || CPU_NPROC=''
  while IFS= read -r line; do
    [[ $line == Cpus_allowed_list:* ]] || continue
    count_list "${line##*[[:space:]]}"
    CPU_AFFINITY=$REPLY
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/status"
  if cgroup_path ''; then cgroup_walk "$root" "$REPLY" read_cpu_v2; fi
  if cgroup_path cpu; then
    path=$REPLY
    for line in cpu cpu,cpuacct; do cgroup_walk "$root/$line" "$path" read_cpu_v1; done
  fi
  for line in "$CPU_NPROC" "$CPU_AFFINITY" "${CPU_QUOTA:+$((CPU_QUOTA / 100))}"; do
    [[ -z $line || (-n $CPUS && $CPUS -le $line) ]] || CPUS=$line
  done
  CPUS=${CPUS:-1}
  ((CPUS > 0)) || CPUS=1
}

# The GPUs by the driver's own word: GPU_STATE ok, none, unknown; GPU_COUNT; GPU_LINES; GPU_WHY. Bounded: a sick driver hangs.
# shellcheck disable=SC2034 # a script reads what it needs
probe_gpus() {
  local said rc=0 line run=()
  GPU_STATE=unknown GPU_COUNT='' GPU_LINES=() GPU_WHY=''
  command -v nvidia-smi >/dev/null 2>&1 || { GPU_STATE=none GPU_COUNT=0 GPU_WHY="no nvidia-smi on PATH" && return 0; }
  if command -v timeout >/dev/null 2>&1; then run=(timeout 20); fi
  said=$(${run[@]+"${run[@]}"} nvidia-smi --query-gpu=index,name,driver_version,memory.total,memory.used --format=csv,noheader,nounits 2>&1 </dev/null) || rc=$?
  ((rc != 124)) || { GPU_WHY="nvidia-smi did not answer in 20 s" && return 0; }
  # "No devices were found" comes with status 0, and so may a driver mismatch.
  while IFS= read -r line; do
    [[ $line =~ ^[0-9]+,\ [^,]+,\ [0-9.]+, ]] && GPU_LINES+=("$line")
  done <<<"$said"
  GPU_COUNT=${#GPU_LINES[@]}
  if ((GPU_COUNT > 0 && rc == 0)); then
    GPU_STATE=ok
  elif [[ $said == *'No devices'* ]]; then
    GPU_STATE=none GPU_WHY="nvidia-smi: No devices were found"
  else
    GPU_COUNT='' GPU_WHY="nvidia-smi (status $rc): ${said%%$'\n'*}"
    GPU_WHY=${GPU_WHY//[[:cntrl:]]/ }
  fi
}

# lib/claim.bash: who may run a cell: one numbered file for each attempt, created once, never removed.
# needs: exit log file proc
# reads: D

# The highest claim on a cell. Sets CLAIM_N (0: none), CLAIM_STATE (live, foreign, dead, none), CLAIM_HOST, CLAIM_PID.
last_claim() { # <cell>
  local path n boot='' ticks='' REPLY
  CLAIM_N=0 CLAIM_STATE=none CLAIM_HOST='' CLAIM_PID=''
  for path in "$D/claims/$1"/[0-9]*; do
    n=${path##*/}
    [[ $n =~ ^[0-9]+$ ]] || continue
    ((10#$n <= CLAIM_N)) || CLAIM_N=$((10#$n))
  done
  ((CLAIM_N > 0)) || return 0
  printf -v path '%s/claims/%s/%03d' "$D" "$1" "$CLAIM_N"
  { read -r CLAIM_HOST boot CLAIM_PID ticks <"$path"; } 2>/dev/null || :
  CLAIM_STATE=dead
  this_host
  if [[ -z $ticks ]]; then
    # Somebody is writing it right now, or died at it: a minute tells.
    [[ -z $(find "$path" -mmin -1 2>/dev/null) ]] || CLAIM_STATE=live
  elif [[ $CLAIM_HOST != "$REPLY" ]]; then
    [[ -e $D/claims/.gone/${CLAIM_HOST//\//_} ]] || CLAIM_STATE=foreign
  else
    this_boot_id
    if [[ $boot == "$REPLY" ]] && same_process "$CLAIM_PID" "$ticks"; then CLAIM_STATE=live; fi
  fi
}

# A person says that HOST is gone: its claims are dead from now on, also for calls without --adopt.
bury_host() { # <host>
  mkdir -p -- "$D/claims/.gone" && : >"$D/claims/.gone/${1//\//_}" || return "$EX_COPY"
  event adopt - - "claims of $1 are dead"
}

# Take the next attempt after CLAIM_N. Sets ATTEMPT and MY_TICKS.
take_claim() { # <cell>    returns: 0, 75 somebody was quicker, 73 it cannot be written
  local REPLY dir=$D/claims/$1 file line back=''
  [[ -d $dir ]] || mkdir -p -- "$dir" 2>/dev/null || return "$EX_NOROOM"
  ATTEMPT=$((CLAIM_N + 1))
  printf -v file '%s/%03d' "$dir" "$ATTEMPT"
  start_ticks $$ || return "$EX_MISSING"
  MY_TICKS=$REPLY
  this_host
  line=$REPLY
  this_boot_id
  line+=" $REPLY $$ $MY_TICKS"
  set -C
  { printf '%s\n' "$line" >"$file"; } 2>/dev/null || :
  set +C
  { IFS= read -r back <"$file"; } 2>/dev/null || :
  if [[ $back != "$line" ]]; then
    # Not there: no room or no right. There and empty: somebody is just writing it, or our own write found no room.
    [[ -s $file ]] || { [[ -e $file ]] && can_write "$dir"; } || return "$EX_NOROOM"
    return "$EX_BUSY"
  fi
  flush "$file" "$dir" || return "$EX_NOROOM"
}

# Can a line be written there at all?
can_write() { # <folder>
  local rc=0
  { printf 'probe\n' >"$1/.probe.$$"; } 2>/dev/null || rc=1
  rm -f -- "$1/.probe.$$"
  return "$rc"
}

# lib/cellenv.bash: what a cell finds in its environment, and what it must not find there.
# needs: exit log room probe
# reads: S HF_HOME PY MIRRORS SECRETS CRED_FILE PROXY_HOOK RUN_ID CELL CELL_INDEX ATTEMPT CELL_RESUME

# Secrets into SECRET_NAMES and SECRET_VALUES: from the file's NAME=value lines, for the job's names only.
# The file is read, never sourced; a value is printed nowhere.
read_secrets() { # returns: 0, or refuses 77, 78
  local line name mode file=$CRED_FILE
  SECRET_NAMES=() SECRET_VALUES=()
  ((${#SECRETS[@]} > 0)) || return 0
  expand_path file
  if [[ -n $file && -e $file ]]; then
    [[ -f $file && -r $file ]] || refuse "$EX_GATE" "CRED_FILE=$file" "it cannot be read" "make it a file of yours with mode 600"
    mode=$(stat -L -c %a -- "$file" 2>/dev/null) || mode=unknown
    [[ $mode =~ 00$ ]] || refuse "$EX_GATE" "CRED_FILE=$file" "others may read it (mode $mode)" "chmod 600 $file"
    while IFS= read -r line || [[ -n $line ]]; do
      line=${line%$'\r'}
      [[ $line =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$ ]] || continue
      take_secret "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}"
    done <"$file"
  fi
  for name in "${SECRETS[@]}"; do
    [[ " ${SECRET_NAMES[*]-} " != *" $name "* ]] || continue
    if [[ -n ${!name-} ]]; then
      SECRET_NAMES+=("$name") SECRET_VALUES+=("${!name}")
    elif [[ -n $file ]]; then
      refuse "$EX_GATE" "secret $name" "it stands neither in CRED_FILE=$file nor in the environment" "push.sh --secrets, or set CRED_FILE= (empty) to go without"
    else
      log "warning: secret $name is not set, and CRED_FILE is empty"
    fi
  done
}
take_secret() { # <name> <value>
  local name value=$2
  for name in "${SECRETS[@]}"; do
    [[ $name == "$1" ]] || continue
    case $value in
      \"*\" | \'*\') value=${value:1:${#value}-2} ;;
    esac
    SECRET_NAMES+=("$name") SECRET_VALUES+=("$value")
  done
}

# Does a log hold the value of a secret? Names it, never the value; the value is on no command line either.
find_leaks() { # <file>    into LEAKS
  local i
  LEAKS=''
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do
    # A very short value would be found everywhere.
    ((${#SECRET_VALUES[i]} >= 6)) || continue
    if printf '%s\n' "${SECRET_VALUES[i]}" | grep -qFf - -- "$1" 2>/dev/null; then LEAKS+=" ${SECRET_NAMES[i]}"; fi
  done
  LEAKS=${LEAKS# }
}

# The proxy: an address is exported, a file is sourced. Strict mode is lifted around the file only, for it is not ours;
# then its effect is looked at. To be called in the shell that becomes the cell.
load_proxy() { # returns: 0, or 77 with the reason in REPLY
  REPLY=''
  case $PROXY_HOOK in
    '') return 0 ;;
    http://* | https://*)
      export http_proxy=$PROXY_HOOK https_proxy=$PROXY_HOOK HTTP_PROXY=$PROXY_HOOK HTTPS_PROXY=$PROXY_HOOK
      export no_proxy=${no_proxy:-localhost,127.0.0.1} NO_PROXY=${NO_PROXY:-localhost,127.0.0.1}
      return 0
      ;;
  esac
  local file=$PROXY_HOOK flags=$- rc=0
  expand_path file
  [[ -f $file && -r $file ]] || { REPLY="$file is not there" && return "$EX_GATE"; }
  set +euo pipefail
  # shellcheck source=/dev/null # the platform's own file
  source "$file" >/dev/null 2>&1 </dev/null
  rc=$?
  set -uo pipefail
  [[ $flags != *e* ]] || set -e
  IFS=$' \t\n'
  if [[ -z ${http_proxy-}${https_proxy-}${HTTP_PROXY-}${HTTPS_PROXY-}${all_proxy-}${ALL_PROXY-} ]]; then
    REPLY="$file ended with $rc and set no proxy variable"
    return "$EX_GATE"
  fi
  # Set is not exported: what the file only assigned is to reach the cell too.
  for REPLY in http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY; do
    [[ -z ${!REPLY-} ]] || export "${REPLY?}"
  done
  REPLY=''
}

# The hook is tried before anything is claimed: what it does to a shell, it does to one that is thrown away.
prove_proxy() { # refuses 77
  local why rc=0
  [[ -n $PROXY_HOOK && $PROXY_HOOK != http://* && $PROXY_HOOK != https://* ]] || return 0
  why=$(
    set +e
    trap 'printf "%s" "${REPLY:-the file ended the shell that sourced it}"' EXIT
    load_proxy
    rc=$?
    ((rc != 0)) || { trap - EXIT && printf ok; }
    exit "$rc"
  ) || rc=$?
  [[ $why == ok ]] || refuse "$EX_GATE" "PROXY_HOOK=$PROXY_HOOK" "${why:-status $rc}" "mend it, or set PROXY_HOOK= (empty) to go without"
}

# Caches and temporary files on this run's scratch, so that nothing fills the small system disk. What a person set stays.
cache_env() {
  local c=$S/cache
  export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$c} TORCH_HOME=${TORCH_HOME:-$c/torch} TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$c/torch_extensions}
  export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$c/inductor} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$c/triton}
  export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$c/cuda} NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$c/numba} MPLCONFIGDIR=${MPLCONFIGDIR:-$c/matplotlib}
  export WANDB_DIR=${WANDB_DIR:-$CELL_DIR} WANDB_CACHE_DIR=${WANDB_CACHE_DIR:-$c/wandb} WANDB_DATA_DIR=${WANDB_DATA_DIR:-$c/wandb-data}
  export WANDB_ARTIFACT_DIR=${WANDB_ARTIFACT_DIR:-$c/wandb-artifacts} WANDB_CONFIG_DIR=${WANDB_CONFIG_DIR:-$c/wandb-config}
  export PIP_CACHE_DIR=${PIP_CACHE_DIR:-$c/pip} KERAS_HOME=${KERAS_HOME:-$c/keras} TFHUB_CACHE_DIR=${TFHUB_CACHE_DIR:-$c/tfhub}
  # Byte code beside the sources would be an output that cells share.
  export PYTHONPYCACHEPREFIX=${PYTHONPYCACHEPREFIX:-$c/pycache}
  if [[ -n $HF_HOME ]]; then
    export HF_HOME
    export HF_HUB_CACHE=${HF_HUB_CACHE:-$HF_HOME/hub} HF_DATASETS_CACHE=${HF_DATASETS_CACHE:-$HF_HOME/datasets}
  else
    # None: the library's own default, which is below XDG_CACHE_HOME and so on scratch, not in the home folder.
    unset HF_HOME
  fi
  # Short on purpose: sockets of worker processes lie in it, and their whole path has about 100 characters.
  export TMPDIR=$S/t/$CELL_INDEX
  export TMP=$TMPDIR TEMP=$TMPDIR
  export SCRATCH=$S
}

# By this mark we know scratch as this run's own, and only then is it ever emptied.
mark_scratch() {
  [[ -s $S/.gpu-runbook-scratch ]] || { printf '%s\n' "$RUN_ID" >"$S/.gpu-runbook-scratch"; } 2>/dev/null
}

# How many threads numeric libraries may start, where nobody has said it: what this box lets us use, never all it has.
thread_env() {
  if [[ -z ${OMP_NUM_THREADS-} ]]; then
    probe_cpus
    export OMP_NUM_THREADS=$CPUS
  fi
  export OMP_NUM_THREADS MKL_NUM_THREADS=${MKL_NUM_THREADS:-$OMP_NUM_THREADS} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-$OMP_NUM_THREADS}
  export NUMEXPR_NUM_THREADS=${NUMEXPR_NUM_THREADS:-$OMP_NUM_THREADS} NUMEXPR_MAX_THREADS=${NUMEXPR_MAX_THREADS:-$OMP_NUM_THREADS}
}

# All of it. To be called in the shell that becomes the cell.
cell_env() { # returns: 0, or 77 with the reason in REPLY
  local one i
  unset OVERRIDES_SAID HASH_TOOL ENV_SPEC
  export CELL_NAME=$CELL CELL_INDEX CELL_DIR CELL_ATTEMPT=$ATTEMPT CELL_RESUME RUN_ID PY
  export PYTHONUNBUFFERED=${PYTHONUNBUFFERED-1}
  # By this mark the cell's processes are found again, wherever they went.
  export GPU_RUNBOOK_CELL=$RUN_ID/$CELL/$ATTEMPT
  for one in ${MIRRORS[@]+"${MIRRORS[@]}"}; do
    # Where a person set the variable, theirs counts.
    i=${one%%=*}
    [[ -n ${!i-} ]] || export "${one?}"
  done
  cache_env
  thread_env
  # The monitor's numbering for CUDA too. A value that a scheduler or a person gave stays, with its own order.
  [[ -n ${CUDA_VISIBLE_DEVICES-} ]] || export CUDA_DEVICE_ORDER=PCI_BUS_ID
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do export "${SECRET_NAMES[i]}=${SECRET_VALUES[i]}"; done
  load_proxy
}

# No descriptor of ours goes to the cell: not a lock, not a pipe.
close_descriptors() {
  local fd path
  for path in "/proc/$BASHPID/fd"/*; do
    fd=${path##*/}
    [[ $fd =~ ^[0-9]+$ ]] || continue
    ((fd <= 2)) || { exec {fd}>&-; } 2>/dev/null || :
  done
}

# lib/limits.bash: what a box refuses a cell: memory kills, room, GPUs.
# needs: exit log room probe

# How often the kernel has killed in our cgroup for want of memory, into REPLY; empty = cannot be told.
oom_count() {
  local root=${FAKE_ROOT-}/sys/fs/cgroup path='' file name value rest
  REPLY=''
  if cgroup_path memory; then
    # Version 1. In a container the path may be the host's: then the mount's own root is ours.
    for path in "$REPLY" ''; do
      file=$root/memory${path%/}/memory.oom_control
      [[ ! -r $file ]] || break
    done
  elif cgroup_path ''; then
    for path in "$REPLY" ''; do
      file=$root${path%/}/memory.events
      [[ ! -r $file ]] || break
    done
  fi
  REPLY=''
  [[ -n ${file-} && -r $file ]] || return 0
  while read -r name value rest; do
    [[ $name != oom_kill || ! $value =~ ^[0-9]+$ ]] || REPLY=$value
  done <"$file"
}

# The room that one cell needs must be there before it starts, and a tier that cannot be written and flushed is no room either:
# df says nothing of quotas and dead mounts. What is written is room kept for the cell's records (keep_room). Refuses 73.
gate_cell_room() { # reads: D B NEED_DISK_BYTES NEED_FILES
  local i
  local -a tiers=("$D")
  [[ $B == "$D" ]] || tiers+=("$B")
  look_room "${tiers[@]}"
  for ((i = 0; i < ${#tiers[@]}; i++)); do
    [[ -z ${ROOM_BYTES[i]} || ${ROOM_BYTES[i]} -ge $NEED_DISK_BYTES ]] ||
      refuse "$EX_NOROOM" "${tiers[i]}" "${ROOM_BYTES[i]} bytes are free, one cell needs $NEED_DISK_BYTES" "free room there or expand the disk; nothing is shrunk or removed for it"
    [[ -z ${ROOM_INODES[i]} || ${ROOM_INODES[i]} -ge $NEED_FILES ]] ||
      refuse "$EX_NOROOM" "${tiers[i]}" "${ROOM_INODES[i]} inodes are free, one cell needs $NEED_FILES" "remove small files there, or take a disk with more inodes"
  done
  probe_tiers
}

# The probe of both tiers: written, flushed in one call, read back. Each lies where the cell's record will be written next.
probe_tiers() {
  local file back text
  local -a probes=("$D/state/.$CELL.json.$$.tmp")
  [[ $B == "$D" ]] || probes+=("$B/records/.$CELL.json.$$.tmp")
  printf -v text '%032768d' 0
  for file in "${probes[@]}"; do
    { printf '%s\n' "$text" >"$file"; } 2>/dev/null || refuse_probe "$file"
  done
  flush "${probes[@]}" || refuse_probe "${probes[0]}"
  for file in "${probes[@]}"; do
    back=''
    { IFS= read -r back <"$file"; } 2>/dev/null || :
    [[ $back == "$text" ]] || refuse_probe "$file"
  done
}
refuse_probe() { # <probe>
  drop_room
  refuse "$EX_NOROOM" "${1%/*}" "a probe file cannot be written, flushed and read back" "look at the disk: full, read-only, or gone"
}

drop_room() {
  rm -f -- "$D/state/.$CELL.json.$$.tmp" "$B/records/.$CELL.json.$$.tmp"
}

# Room for the next record, under the very name that it will be written by: a disk that the cell fills has none left else.
keep_room() { # reads: D CELL
  printf '%032768d' 0 2>/dev/null >"$D/state/.$CELL.json.$$.tmp" || :
}

# Declared data is there. How many files it holds is counted once by the formal gates, not for every cell.
gate_inputs() { # reads: CODE_DIR DATA_PATHS
  local path
  for path in ${DATA_PATHS[@]+"${DATA_PATHS[@]}"}; do
    [[ $path == /* ]] || path=$CODE_DIR/$path
    [[ -e $path ]] || refuse "$EX_GATE" "data $path" "it is not there" "push.sh --data, or link it there"
    [[ ! -d $path || -n $(find -L "$path" -mindepth 1 -print 2>/dev/null | head -n 1) ]] || refuse "$EX_GATE" "data $path" "the folder is empty" "push.sh --data again"
  done
}

# The GPUs that the job needs are there. Sets GPU_SAID ("name, driver") for the record.
gate_gpus() { # reads: NEED_GPUS
  local line fields visible
  GPU_SAID=''
  ((NEED_GPUS > 0)) || return 0
  probe_gpus
  if [[ $GPU_STATE != ok ]]; then
    [[ -e /dev/kfd || -e /dev/accel ]] && return 0 # another maker's: no nvidia-smi to ask
    refuse "$EX_GATE" "GPUs" "a cell needs $NEED_GPUS and none is seen here: $GPU_WHY" "look with nvidia-smi; restart the box, or rent one with GPUs"
  fi
  ((GPU_COUNT >= NEED_GPUS)) || refuse "$EX_GATE" "GPUs" "a cell needs $NEED_GPUS, here are $GPU_COUNT" "rent a box with enough of them"
  if [[ -n ${CUDA_VISIBLE_DEVICES-} ]]; then
    IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
    ((${#visible[@]} >= NEED_GPUS)) || refuse "$EX_GATE" "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" "a cell needs $NEED_GPUS GPUs" "name as many, or unset it"
  fi
  line=${GPU_LINES[0]}
  if [[ ${visible[0]-} =~ ^[0-9]+$ && -n ${GPU_LINES[${visible[0]}]-} ]]; then line=${GPU_LINES[${visible[0]}]}; fi
  IFS=, read -ra fields <<<"$line"
  GPU_SAID="${fields[1]# },${fields[2]}"
}

# lib/idle.bash: waiting that costs no process and leaves none behind.
# needs:

# Wait without a process: a read that nobody answers. Opens its descriptor at first use.
idle() { # <seconds, also a fraction>
  [[ -n ${IDLE_FD-} ]] || exec {IDLE_FD}<> <(:)
  # Its status is always that of a time-out.
  read -r -t "$1" -u "$IDLE_FD" || :
}

# lib/group.bash: a cell's processes as one thing: started in a group of their own, told once, killed after the grace, none left.
# needs: exit log proc idle
# reads: GRACE_S WALL_S STALL_S D CELL CELL_DIR CELL_LOG RUN_ID MY_TICKS

# Run the words as a new process group (a session of its own where setsid is there). Sets CELL_PID. FUNCTION prepares
# the child's environment; its status other than 0 is the child's.
start_group() { # <log> <function> <words...>
  local log=$1 prepare=$2 own=1
  shift 2
  command -v setsid >/dev/null 2>&1 || own=0
  ((own)) || set -m
  (
    # Without job control bash has a background child ignore INT, and the cell would inherit that.
    trap - INT QUIT TERM HUP USR1 USR2 EXIT
    "$prepare" || exit
    close_descriptors
    if ((own)); then exec setsid "$@"; else exec "$@"; fi
  ) </dev/null >>"$log" 2>&1 &
  CELL_PID=$!
  ((own)) || set +m
}

signal_group() { # <signal>
  kill "-$1" -- "-$CELL_PID" 2>/dev/null || kill "-$1" "$CELL_PID" 2>/dev/null || :
}

# Tell the cell once, and see to it that it is gone after the grace. Sets KILLER_PID.
end_group() { # <signal>
  [[ -z ${KILLER_PID-} ]] || return 0
  signal_group "$1"
  (
    trap - TERM INT HUP USR1 USR2 EXIT
    idle "$GRACE_S"
    signal_group KILL
  ) </dev/null >/dev/null 2>&1 &
  KILLER_PID=$!
}

# Wait for the cell whatever signals come in between. Each trap counts WAKES up. Sets CELL_RC.
wait_group() {
  local seen
  while :; do
    seen=$WAKES CELL_RC=0
    { wait "$CELL_PID"; } 2>/dev/null || CELL_RC=$?
    [[ $WAKES != "$seen" ]] || break
  done
}

# The cell, watched from beside: its limits, of which it tells run_one, which decides; its memory; and run_one itself, whose
# death ends the cell. Ends with the cell, or when run_one is gone.
watch_cell() { # <run_one's pid>
  local main=$1 tick=$((STALL_S / 8)) start=$SECONDS life=$SECONDS stamp=$D/logs/$CELL/.alive pause=1 PEAK=0
  trap - TERM INT HUP USR1 USR2 EXIT
  ((tick > 0 && tick <= 20)) || tick=20
  if ((STALL_S > 0 && STALL_S < 8)); then tick=1; fi
  if ((WALL_S > 0 && WALL_S < tick)); then tick=1; fi
  ((STALL_S == 0)) || printf x >"$stamp" 2>/dev/null || :
  while :; do
    # Short at first, so that short cells have a figure for their memory too.
    idle "$pause"
    pause=$((pause * 2 < tick ? pause * 2 : tick))
    if ! same_process "$main" "$MY_TICKS"; then
      # Run_one was killed. Nobody would record how the cell ends, and a second attempt may come at any time.
      end_group TERM
      wait "$KILLER_PID" || :
      return 0
    fi
    look_memory
    if ((STALL_S > 0)) && shows_life "$stamp"; then
      life=$SECONDS
      printf x >"$stamp" 2>/dev/null || :
    fi
    if ((WALL_S > 0 && SECONDS - start >= WALL_S)) || ((STALL_S > 0 && SECONDS - life >= STALL_S)); then
      kill -USR2 "$main" 2>/dev/null || :
      return 0
    fi
  done
}

# The memory of the cell's group and session, by the kernel's own figures: the largest sum of what its processes held when we
# looked, or the highest mark of one of them. Kept in PEAK and beside the log.
look_memory() {
  local file stat fields name value rest sum=0 high=0
  for file in /proc/[0-9]*/stat; do
    { IFS= read -r stat <"$file"; } 2>/dev/null && [[ $stat == *" $CELL_PID "* ]] || continue
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[2]-} == "$CELL_PID" || ${fields[3]-} == "$CELL_PID" ]] || continue
    while read -r name value rest; do
      case $name in
        VmHWM:) ((value * 1024 <= high)) || high=$((value * 1024)) ;;
        VmRSS:) sum=$((sum + value * 1024)) ;;
      esac
    done 2>/dev/null <"${file%stat}status" || :
  done
  ((sum >= high)) || sum=$high
  ((sum > PEAK)) || return 0
  PEAK=$sum
  { printf '%s\n' "$PEAK" >"$D/logs/$CELL/.peak"; } 2>/dev/null || :
}

# A sign of life: the log grew, or anything in the cell's folder was written. Both, for many trainers print nothing.
shows_life() { # <stamp>
  [[ ! $CELL_LOG -nt $1 ]] || return 0
  [[ -n $(find "$CELL_DIR" -newer "$1" -print 2>/dev/null | head -n 1) ]]
}

# Living processes of this cell, of any attempt or of ours alone, into LEFT ("pid ticks"): by the mark in their
# environment, and by the session or group that we gave them. Never ourselves.
find_cell_processes() { # <mark> <group or empty>
  local REPLY file pid stat fields
  local -A found=()
  LEFT=()
  while IFS= read -r file; do
    pid=${file#/proc/}
    found[${pid%/environ}]=1
  done < <(grep -lsF -- "GPU_RUNBOOK_CELL=$1" /proc/[0-9]*/environ)
  for file in /proc/[0-9]*/stat; do
    pid=${file#/proc/} && pid=${pid%/stat}
    { IFS= read -r stat <"$file"; } 2>/dev/null || continue
    # Most are none of ours: seen without taking the line apart.
    [[ -n ${found[$pid]-} || -n $2 && $stat == *" $2 "* ]] || continue
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[0]-} != [ZX] && $pid != "$$" && $pid != "$PPID" && $pid != "${BASHPID-}" ]] || continue
    [[ -n ${found[$pid]-} ]] || { [[ -n $2 ]] && [[ ${fields[2]} == "$2" || ${fields[3]} == "$2" ]]; } || continue
    LEFT+=("$pid ${fields[19]}")
  done
}

# End what is left of the cell: told, a few seconds, killed; only processes that are still the ones that we saw.
sweep_cell() { # <mark> <group or empty> <seconds>
  local one round=0 last
  find_cell_processes "$1" "$2"
  ((${#LEFT[@]} > 0)) || return 0
  for one in "${LEFT[@]}"; do
    log "cell $CELL left process ${one% *} behind ($(tr '\0' ' ' <"/proc/${one% *}/cmdline" 2>/dev/null | cut -c 1-120)): ending it"
    ! same_process "${one% *}" "${one#* }" || kill -TERM "${one% *}" 2>/dev/null || :
  done
  last=$((SECONDS + $3))
  while ((SECONDS <= last)); do
    idle 0.05
    round=$((round + 1))
    find_cell_processes "$1" "$2"
    ((${#LEFT[@]} > 0)) || return 0
  done
  for round in 1 2 3 4 5 6 7 8 9 10; do
    for one in "${LEFT[@]}"; do
      ! same_process "${one% *}" "${one#* }" || kill -KILL "${one% *}" 2>/dev/null || :
    done
    idle 0.05
    find_cell_processes "$1" "$2"
    ((${#LEFT[@]} > 0)) || return 0
  done
  log "cell $CELL: process ${LEFT[0]% *} cannot be killed (it hangs in the kernel); the box may need a restart"
}

# Watchers go when the cell has ended; their numbers are our own children's.
stop_watchers() {
  local pid
  for pid in ${WATCH_PID-} ${KILLER_PID-}; do
    kill -KILL "$pid" 2>/dev/null || :
    { wait "$pid"; } 2>/dev/null || :
  done
  WATCH_PID=''
}

# lib/evidence.bash: has a cell really left what it was to leave? Exit 0 alone proves nothing.
# needs: exit log
# reads: CELL_DIR REQUIRED

# Is everything required there, non-empty, inside the cell's own folder, and does no result say {"ok": false}?
# The folder began empty with this run, so what lies in it was written by this attempt or by the one that it resumed.
has_evidence() { # returns: 0, or 1 with the reason in REPLY
  local item path real home
  local -a results=()
  REPLY=''
  for item in "${REQUIRED[@]}"; do
    path=$CELL_DIR/${item%/}
    if [[ -L $path ]]; then
      # A link may lead inside the folder (best -> epoch 7), not to somebody else's file.
      home=$(readlink -f -- "$CELL_DIR") && real=$(readlink -f -- "$path") || real=''
      [[ -n $real && $real == "$home"/* ]] || { REPLY="$item is a link that leads out of the cell's folder" && return 1; }
    fi
    if [[ -d $path ]]; then
      [[ -n $(find -L "$path" -type f -size +0 -print 2>/dev/null | head -n 1) ]] || { REPLY="$item holds no file that is not empty" && return 1; }
    elif [[ ! -e $path ]]; then
      REPLY="$item is not there" && return 1
    elif [[ ! -f $path ]]; then
      REPLY="$item is not a file" && return 1
    elif [[ ! -s $path ]]; then
      REPLY="$item is empty" && return 1
    fi
    [[ $path != *.json || ! -f $path ]] || results+=("$path")
  done
  for path in ${results[@]+"${results[@]}"}; do
    # Small files without a process; a result is rarely large.
    real=''
    IFS= read -r -d '' -n 200000 real <"$path" || :
    if [[ ${#real} -lt 200000 ]]; then
      [[ $real =~ \"ok\"[[:space:]]*:[[:space:]]*false ]] || continue
    else
      grep -qE '"ok"[[:space:]]*:[[:space:]]*false' -- "$path" || continue
    fi
    REPLY="${path##*/} says 'ok': false"
    return 1
  done
}

# What is there of the evidence, without a word: a cell that has it all and does not end is stuck, not slow.
looks_complete() {
  local REPLY
  ((${#REQUIRED[@]} > 0)) && has_evidence
}

# lib/classify.bash: why did a cell end? A class with its evidence, for what to do next hangs on it.
# needs: exit log room evidence
# Never a guess: without evidence a death by signal is "killed", and an error is a "bug".
# reads: STOP_SIGNAL LIMIT_HIT CELL_RC CELL_LOG CELL_DIR D OOM_BEFORE OOM_AFTER

# A signal's name, into REPLY.
signal_name() { # <number>
  REPLY=$(kill -l "$1" 2>/dev/null) || REPLY=$1
  REPLY=SIG${REPLY#SIG}
}

# What a line says, in awk: the class, or nothing.
readonly CLASS_OF_LINE='
function class_of(l) {
  if (l ~ /No usable temporary directory found/) return "disk_full"
  if (l ~ /^AssertionError.*([Nn]a[Nn]|[Nn]on-?finite|not finite)([^a-z]|$)/) return "non_finite"
  # These name a mistake in the code, whatever words they quote.
  if (l ~ /^([A-Za-z_]+\.)*(TypeError|KeyError|IndexError|AttributeError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NotImplementedError|ZeroDivisionError|FileNotFoundError|AssertionError)(:|$)/) return ""
  if (l ~ /No space left on device|Disk quota exceeded|[Ee]rrno 28[^0-9]|ENOSPC|[Ee]rrno 122[^0-9]|EDQUOT|iostream error|PytorchStreamWriter failed|inline_container.*(unexpected pos|write)|unexpected pos [0-9]+ vs|database or disk is full/) return "disk_full"
  if (l ~ /CUDA out of memory|(CUDA|HIP) error: out of memory|torch\.(cuda\.)?OutOfMemoryError|OutOfMemoryError: (CUDA|HIP)|HIP out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED.*([Oo]ut of memory|OOM|allocat)|ResourceExhaustedError.*OOM|XPU out of memory|CUDA driver error: out of memory|[Cc]uda failure [0-9]* .out of memory|OOM when allocating tensor|Error \[(CUDA|HIP)\]: out of memory/) return "oom_gpu"
  if (l ~ /^([A-Za-z_.]*\.)?(_ArrayMemoryError|MemoryError)|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator: (can.t|not enough)|[Uu]nable to allocate [0-9.]+ [KMGT]iB|memory allocation of [0-9]+ bytes failed|insufficient shared memory|out of shared memory/) return "oom_host"
  if (l ~ /(worker|[Pp]rocess) .*killed by signal: Killed|: line [0-9]+: +[0-9]+ Killed/) return "killed"
  if (l ~ /(Temporary failure|failure) in name resolution|Name or service not known|getaddrinfo failed|Could not resolve host|Connection (reset|refused|aborted|timed out|broken)|ConnectionResetError|ConnectionRefusedError|RemoteDisconnected|Connection closed (by peer|unexpectedly)|Network is unreachable|No route to host|Max retries exceeded|Read timed out|ReadTimeout|ConnectTimeout|ConnectionError|ChunkedEncodingError|IncompleteRead|ProtocolError|ServerDisconnected|(HTTP|status|code|Error|error)[^0-9a-z]{1,8}(429|500|502|503|504)([^0-9]|$)|(429|500|502|503|504) (Client|Server) Error|Too Many Requests|Bad Gateway|Service Unavailable|Gateway Time-?out|TLS handshake|SSLEOFError|SSL: UNEXPECTED_EOF|wandb.*(CommError|run initialization has timed out|init.*timed out|ServiceStartTimeout)|CommError|[Ee]rrno (104|110|111|101|113)[^0-9]|Address already in use|EADDRINUSE|DistStoreError|socket has timed out|NCCL.*(unhandled system error|remote process exited|Timeout at)|collective operation timeout|LocalEntryNotFoundError|[Cc]heck your internet connection|[Cc]ouldn.t connect to (.http|server)|Failed to connect to .* port|SlowDown|reduce your request rate|stale (NFS )?file handle|Stale file handle/) return "transient"
  if (l ~ /[Ll]oss returned .* is (nan|NaN|inf)|[Ll]oss (is|was|became|has become|=+|:) *([Nn]a[Nn]|-?[Ii]nf)([^a-z]|$)|([Nn]a[Nn]|[Ii]nf|[Nn]on-?finite)( or [A-Za-z]+)? (loss|gradient|grad|values? (in|for)|encountered|found|detected|weights|metric)|[Nn]on-finite|not finite|contains? (NaN|nan|Inf|infinity)|FloatingPointError|returned nan values|contains either .inf., .nan.|Expected parameter .* but found invalid values|(gradient|grad)s? (norm )?(is|contains?|are) (nan|NaN|inf|non)|diverged/) return "non_finite"
  return ""
}
'

# The class that the end of a log speaks for, and the line: "class<TAB>line", or nothing. Walks back from the end through
# the last traceback: the line nearest the end that says something counts, and an exception that says nothing
# ends the walk (a bug), unless another one caused it. Warnings long before the end do not count.
classify_log() { # <log>    prints
  tail -c 65536 -- "$1" 2>/dev/null | tr -d '\000\r' | LC_ALL=C awk "$CLASS_OF_LINE"'
    # The last line of a traceback, or what a shell, a C++ library or a launcher prints in its place.
    function ends_it(l) {
      return l ~ /^([A-Za-z_][A-Za-z0-9_]*\.)*[A-Z][A-Za-z0-9_]*(Error|Exception|Timeout|Interrupt|Exit|Exhausted|Disconnected|Incomplete|Failure|Expired|Refused)(:|$)/ || l ~ /^ *what\(\):|^(Segmentation fault|Aborted|terminate called|Fatal Python error|AssertionError|Error executing job|Usage:|usage: )/
    }
    { sub(/^\[?rank ?[0-9]+\]?:? ?/, ""); sub(/[ \t]+$/, "") }
    /^gpu-runbook: / || /^$/ { next }
    { line[++n] = $0 }
    END {
      chained = 0; weak = ""
      for (i = n; i > 0 && i > n - 120; i--) {
        l = line[i]
        # A launcher only reports that a child has failed.
        if (l ~ /^([a-z_]+\.)*(ChildFailedError|ProcessRaisedException|ProcessExitedException)(:|$)|DataLoader worker .*exited unexpectedly|^Aborted/) continue
        if (l ~ /^(During handling of the above exception|The above exception was the direct cause)/) { chained = 1; continue }
        # Lines of code in a traceback are quotations, not events.
        if (l ~ /^ +(File "|raise |return |[\^~]+$)/) continue
        c = (l ~ /^    / && !(l ~ /[Ee]rror/)) ? "" : class_of(l)
        # A milder sign counts only where it stands at the very end or is the error itself.
        if ((c == "transient" || c == "non_finite") && !ends_it(l) && !(l ~ /(Error|error|ERROR|fatal|FATAL|Fatal|failed|Failed|abort|Abort|stopping|Stopping|diverged|giving up)/) && i < n - 2) c = ""
        # The other ranks and the helping threads of a process that dies complain too: what it died of stands before.
        if (c == "transient" && weak == "" && (l ~ /NCCL|collective operation/ || (ends_it(l) && in_thread(i)))) weak = c "\t" l
        if (c != "" && !(weak != "" && c == "transient")) { print c "\t" l; exit }
        if (c == "" && ends_it(l) && !in_thread(i) && !(weak != "" && l ~ /^terminate called/)) { if (!chained && !followed_up(i)) exit; chained = 0 }
      }
      if (weak != "") print weak
    }
    # Is the exception at i one of a thread beside the main one?
    function in_thread(i,   j) {
      for (j = i - 1; j > 0 && j > i - 40; j--) if (line[j] ~ /^Traceback /) return j > 1 && line[j - 1] ~ /^Exception (in thread|ignored in)/
      return 0
    }
    # Is the exception at i itself the follower of an earlier one? Then the walk goes on to that.
    function followed_up(i,   j) {
      for (j = i - 1; j > 0 && j > i - 60; j--) {
        if (line[j] ~ /^(During handling of the above exception|The above exception was the direct cause)/) return 1
        if (ends_it(line[j])) return 0
      }
      return 0
    }'
}

# Class and why of an attempt that is not a success, into CLASS and WHY. Order: what we know, what the kernel says,
# what the exit status says, what the log says.
classify_end() { # <evidence missing: text or empty>
  local REPLY said class=''
  CLASS=bug WHY=''
  if [[ -n $STOP_SIGNAL ]]; then
    CLASS=preempted WHY="stopped from outside by SIG$STOP_SIGNAL"
    return 0
  elif [[ -n $LIMIT_HIT ]]; then
    classify_limit
    return 0
  elif ((CELL_RC > 128 && CELL_RC < 193)); then
    classify_signal $((CELL_RC - 128))
    [[ $CLASS == bug ]] || return 0
  elif ((CELL_RC == 0)); then
    CLASS=no_evidence WHY="it ended with 0, but $1"
    return 0
  fi
  said=$(classify_log "$CELL_LOG") || said=''
  if [[ -n $said ]]; then
    class=${said%%$'\t'*} said=${said#*$'\t'}
    CLASS=$class
    WHY="exit $CELL_RC; log: ${said:0:300}"
  fi
  [[ -n $WHY ]] || WHY="exit $CELL_RC; nothing in the log speaks for another cause; see its end"
  classify_disk
  if [[ $CLASS == bug || $CLASS == killed ]]; then oom_was_here && CLASS=oom_host WHY="exit $CELL_RC; the kernel killed $((OOM_AFTER - OOM_BEFORE)) process(es) of this cgroup for want of memory"; fi
  return 0
}

oom_was_here() { [[ -n $OOM_BEFORE && -n $OOM_AFTER ]] && ((OOM_AFTER > OOM_BEFORE)); }

classify_limit() {
  if looks_complete; then
    CLASS=stuck WHY="everything required is there, but it does not end: $LIMIT_HIT"
  elif [[ $LIMIT_HIT == stall* && $CELL_RESUME == 0 ]] && [[ -z $(find "$CELL_DIR" -type f -print 2>/dev/null | head -n 1) ]]; then
    # It never began: a start-up blip, worth the identical command once more.
    CLASS=transient WHY="$LIMIT_HIT, before it wrote its first file"
  else
    CLASS=timeout WHY=$LIMIT_HIT
  fi
}

classify_signal() { # <number>
  local REPLY name
  signal_name "$1"
  name=$REPLY
  case $name in
    SIGTERM | SIGINT | SIGHUP | SIGUSR1) CLASS=preempted WHY="$name from outside reached it, and not through us" ;;
    SIGKILL)
      if oom_was_here; then
        CLASS=oom_host WHY="SIGKILL, and the kernel's oom_kill counter of this cgroup rose from $OOM_BEFORE to $OOM_AFTER"
      elif [[ -n $OOM_BEFORE ]]; then
        CLASS=killed WHY="SIGKILL, cause unknown: the oom_kill counter of this cgroup did not move"
      else
        CLASS=killed WHY="SIGKILL, cause unknown: this box shows no oom_kill counter"
      fi
      ;;
    SIGSEGV | SIGABRT | SIGBUS | SIGFPE | SIGILL | SIGSYS | SIGTRAP) WHY="$name: it crashed" ;;
    *) CLASS=killed WHY="$name, cause unknown" ;;
  esac
}

# A full disk names its mount, free bytes and inodes. A log that blames a disk with room keeps the class and says so.
classify_disk() {
  local REPLY bytes
  [[ $CLASS == disk_full ]] || return 0
  free_bytes "$D" || :
  bytes=$REPLY
  free_inodes "$D" || :
  WHY="$D has ${bytes:-an unknown number of} bytes and ${REPLY:-an unknown number of} inodes free; $WHY"
}

# lib/cell.bash: one attempt of one cell, from its line in the queue to its record.
# needs: exit log path file record proc hash room run queue bundle claim cellenv limits group evidence classify
# reads: CELL QUEUE_FILE ADOPT SELF_DIR and what open_run sets

# The cell's command and index, from the one reader of queues. Sets COMMAND COMMAND_SHA CELL_INDEX.
find_cell() {
  local REPLY file=${QUEUE_FILE:-$D/queue.tsv} i known=''
  [[ -n $QUEUE_FILE || -e $file ]] || file=$SELF_DIR/queue.tsv
  if [[ $file != "$D/queue.tsv" && -e $D/queue.tsv ]]; then
    read_queue "$D/queue.tsv"
    queue_index "$CELL" && known=${QUEUE_COMMANDS[REPLY]}
  fi
  read_queue "$file"
  queue_index "$CELL" || refuse "$EX_CONFIG" "cell $CELL" "it is not in $file" "names there: ${QUEUE_NAMES[*]:0:5} …"
  i=$REPLY
  COMMAND=${QUEUE_COMMANDS[i]} CELL_INDEX=$i
  # The run's own queue holds one shard: its k-th cell is the source's k*N + I-1.
  [[ $file != "$D/queue.tsv" ]] || CELL_INDEX=$((i * ${RUN_SHARD#*/} + ${RUN_SHARD%/*} - 1))
  [[ -z $known || $known == "$COMMAND" ]] || refuse_command "the run's own queue $D/queue.tsv has another"
  hash_text "$COMMAND" || refuse "$EX_MISSING" "hashing" "the command's digest cannot be made" "look at openssl and sha256sum"
  COMMAND_SHA=$REPLY
}
refuse_command() { # <why>
  refuse "$EX_GATE" "cell $CELL" "its command was changed: $1" "undo the change and continue, or begin anew with RUN=$JOB.2"
}

# What this call is to do, into CELL_NEXT: nothing, sync or run. Refuses 75, 77.
judge_cell() {
  local REPLY rc=0
  CELL_NEXT=run
  check_bundled "$CELL" || rc=$?
  if ((rc == 0)); then
    [[ $R_command_sha256 == "$COMMAND_SHA" ]] || refuse_command "$B/records/$CELL.json is of another"
    CELL_NEXT=nothing
    return 0
  fi
  rc=0
  read_record "$D/state/$CELL.json" cell/1 "$RUN_ID" || rc=$?
  ((rc != 2)) || log "cell $CELL: $D/state/$CELL.json is not a whole record of this run: unknown, so it is run again"
  if ((rc == 0)); then
    [[ $R_command_sha256 == "$COMMAND_SHA" ]] || refuse_command "$D/state/$CELL.json is of another"
    case $R_state in
      unsynced | done) judge_finished ;;
    esac
  fi
  judge_claim
}
# Its record says finished: then only the copy is left to do, if what it left is still there. A hard stop may have cut it.
judge_finished() {
  local REPLY
  if has_evidence; then
    CELL_NEXT=sync
  else
    log "cell $CELL: its record says $R_state, but $REPLY: unknown, so it is run again"
  fi
}
judge_claim() {
  last_claim "$CELL"
  case $CLAIM_STATE in
    live) refuse "$EX_BUSY" "cell $CELL" "process ${CLAIM_PID:-not known yet} runs it (claim $CLAIM_N)" "wait for it, or stop it: kill -TERM ${CLAIM_PID:-PID}" ;;
    foreign)
      [[ $ADOPT == true ]] || refuse "$EX_BUSY" "cell $CELL" "box $CLAIM_HOST has claim $CLAIM_N" "if that box is gone for good, say --adopt"
      bury_host "$CLAIM_HOST" || refuse "$EX_COPY" "$D/claims" "it cannot be written" "look at the data tier: room, rights"
      ;;
    dead) log "cell $CELL: attempt $CLAIM_N is over (claim $CLAIM_N is stale); this is attempt $((CLAIM_N + 1))" ;;
  esac
}

# Everything that can refuse comes before the claim, and leaves the record as it was.
gate_cell() {
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  case $COMMAND in
    *"\$PY"* | *"\${PY"*)
      command -v "$PY" >/dev/null 2>&1 || refuse "$EX_MISSING" "PY=$PY" "the interpreter is not there" "set PY to the python of the environment, by its path"
      ;;
  esac
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  gate_inputs
  env_spec
  gate_gpus
  read_secrets
  prove_proxy
  make_folders
  gate_cell_room
}

# All folders of the cell in one call. What already has the name of its own folder is looked at under the claim.
make_folders() {
  local own=("$CELL_DIR")
  [[ ! -e $CELL_DIR && ! -L $CELL_DIR ]] || own=()
  mkdir -p -- "$D/claims/$CELL" "$D/logs/$CELL" "$D/state" "$B/records" "$S/cache" "$S/t/$CELL_INDEX" ${own[@]+"${own[@]}"} ||
    refuse "$EX_NOROOM" "mkdir" "the cell's folders cannot be made" "look at DATA_DIR, DURABLE_DIR and SCRATCH=$SCRATCH: room, rights"
  mark_scratch || refuse "$EX_NOROOM" "$S" "it cannot be written" "look at SCRATCH=$SCRATCH: room, rights"
  drop_dead_room
}

# Room that killed attempts have kept; a living runner's stays.
drop_dead_room() {
  local file pid
  for file in "$D/state/.$CELL.json."*.tmp "$B/records/.$CELL.json."*.tmp; do
    pid=${file%.tmp}
    pid=${pid##*.}
    [[ ! -e $file || -d /proc/$pid ]] || rm -f -- "$file"
  done
}

# The claim, then a clean folder, then the record that says running.
take_cell() {
  local rc=0
  CELL_RESUME=$((CLAIM_N > 0)) CELL_PID='' CELL_ALIVE=0 STOP_SIGNAL='' LIMIT_HIT='' WAKES=0 KILLER_PID='' WATCH_PID=''
  CELL_EXIT='' CELL_SIGNAL='' ENDED='' CELL_RC=0 PEAK_MEMORY='' OOM_BEFORE='' OOM_AFTER='' LOG_LOST=0
  trap 'on_stop TERM' TERM
  trap 'on_stop INT' INT
  trap 'on_stop HUP' HUP
  trap 'on_stop USR1' USR1
  trap 'on_limit' USR2
  take_claim "$CELL" || rc=$?
  ((rc == 0)) || drop_room
  case $rc in
    0) ;;
    "$EX_BUSY") refuse "$EX_BUSY" "cell $CELL" "another runner was quicker" "leave it to that one" ;;
    *) refuse "$EX_NOROOM" "$D/claims/$CELL" "the claim cannot be written" "look at the data tier: room, rights" ;;
  esac
  printf -v CELL_LOG '%s/logs/%s/attempt-%03d.log' "$D" "$CELL" "$ATTEMPT"
  # Whoever ran it before may have died and left the trainer alive.
  ((CLAIM_N == 0)) || { sweep_cell "$RUN_ID/$CELL/" '' "$GRACE_S" && name_cut_files; }
  clean_folder
  [[ -d $CELL_DIR ]] || mkdir -p -- "$CELL_DIR" || refuse "$EX_NOROOM" "$CELL_DIR" "the folder cannot be made" "look at the data tier: room, rights"
  utc_now
  STARTED=$REPLY
  # Lost in a power cut, it is unknown, as it would be with it: the claim is flushed already.
  write_cell running '' '' begun || refuse "$EX_NOROOM" "$D/state/$CELL.json" "it cannot be written" "look at the data tier: room, rights"
  keep_room
  event running "$CELL" "$ATTEMPT" "process $$"
}

# What lies in the cell's folder is this run's only if an attempt of this run got as far as its record or its log.
clean_folder() {
  local n=1 to
  [[ -e $CELL_DIR || -L $CELL_DIR ]] || return 0
  if ((CLAIM_N > 0)); then
    if [[ -e $D/state/$CELL.json ]] || compgen -G "$D/logs/$CELL/attempt-*.log" >/dev/null; then return 0; fi
  fi
  if [[ -d $CELL_DIR && ! -L $CELL_DIR ]] && is_empty_folder "$CELL_DIR"; then return 0; fi
  mkdir -p -- "$D/quarantine" || refuse "$EX_NOROOM" "$D/quarantine" "the folder cannot be made" "look at the data tier: room, rights"
  while :; do
    printf -v to '%s/quarantine/%s--%03d' "$D" "$CELL" "$n"
    [[ -e $to || -L $to ]] || break
    n=$((n + 1))
  done
  mv -- "$CELL_DIR" "$to" || refuse "$EX_COPY" "$CELL_DIR" "no attempt of this run made it, and it cannot be moved to $to" "move it away by hand"
  log "cell $CELL: its folder held files of no attempt of this run: moved to $to"
}

is_empty_folder() { # <folder>
  local path
  [[ -r $1 ]] || return 1
  for path in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [[ ! -e $path && ! -L $path ]] || return 1
  done
}

# Empty files in the folder of a cell that is resumed: a hard stop may have left them for checkpoints. Named and left alone;
# which checkpoint is whole, only its trainer can tell.
name_cut_files() {
  local path n=0
  while IFS= read -r path; do
    n=$((n + 1))
    ((n <= 5)) || break
    log "cell $CELL: empty, perhaps cut by a hard stop: ${path//[[:cntrl:]]/?}; resume from an older one"
  done < <(find "$CELL_DIR" -type f -size 0 ! -name '.*' -print 2>/dev/null)
}

write_cell() { # <state> <class> <why> [how, as replace_file takes it; begun: no rename where there was no record]
  local url=''
  [[ ! -s $CELL_DIR/tracker_url ]] || { IFS= read -r url <"$CELL_DIR/tracker_url"; } 2>/dev/null || :
  record_open cell/1
  record_text run_id "$RUN_ID"
  record_text cell "$CELL"
  record_text state "$1"
  record_text class "$2"
  record_text why "$3"
  record_int attempt "$ATTEMPT" || return
  record_int exit "$CELL_EXIT" || return
  record_int signal "$CELL_SIGNAL" || return
  record_text started "$STARTED"
  record_text ended "$ENDED"
  record_int peak_memory_bytes "$PEAK_MEMORY" || return
  record_text gpu "$GPU_SAID"
  record_text command_sha256 "$COMMAND_SHA"
  record_text files_sha256 ''
  record_text tracker_url "$url"
  record_close
  if [[ ${4-} == begun ]]; then
    # Torn it is unknown, as it is without it; nothing older is lost.
    if [[ ! -e $D/state/$CELL.json ]]; then
      { printf '%s' "$RECORD" >"$D/state/$CELL.json"; } 2>/dev/null && [[ $(<"$D/state/$CELL.json") == "${RECORD%$'\n'}" ]]
      return
    fi
    set -- "${@:1:3}" soon
  fi
  replace_file "$D/state/$CELL.json" "$RECORD" "${@:4}"
}

# What a finished cell has left, for the flush that stands before its record: a record that survives a power cut speaks of
# bytes that have survived it too. Into BEHIND.
find_behind() {
  BEHIND=()
  list_paths "$CELL_DIR" 2>/dev/null || return 0
  if ((${#LIST_PATHS[@]} > 500)); then
    sync
  else
    BEHIND=("${LIST_PATHS[@]/#/$CELL_DIR/}")
  fi
}

# --- signals: the trap does the work, for a wait that has just begun would not look at a flag ---

on_stop() { # <signal>
  WAKES=$((WAKES + 1))
  [[ -z $STOP_SIGNAL ]] || return 0
  STOP_SIGNAL=$1
  log "signal $1: cell $CELL is told, and has $GRACE_S s to save"
  ((CELL_ALIVE == 0)) || forward_stop
}
forward_stop() {
  # A terminal that is closed means stop; trainers save on TERM, few know HUP.
  if [[ $STOP_SIGNAL == HUP ]]; then end_group TERM; else end_group "$STOP_SIGNAL"; fi
}
on_limit() {
  WAKES=$((WAKES + 1))
  [[ -z $STOP_SIGNAL$LIMIT_HIT ]] || return 0
  if ((WALL_S > 0 && SECONDS - BEGAN >= WALL_S)); then
    LIMIT_HIT="wall limit of $WALL_S s"
  else
    LIMIT_HIT="stall limit: neither its log nor its folder changed for $STALL_S s"
  fi
  log "cell $CELL: $LIMIT_HIT; it has $GRACE_S s to save"
  ((CELL_ALIVE == 0)) || end_group TERM
}

# --- the attempt ---

# In the child, before it becomes the command.
prepare_child() {
  local REPLY names
  cell_env || { printf 'gpu-runbook: the proxy hook failed: %s\n' "$REPLY" && return "$EX_GATE"; }
  cd -- "$CODE_DIR" || return
  names=$(compgen -e) || names=''
  printf 'gpu-runbook: environment names: %s\n' "${names//$'\n'/ }"
}

run_cell() {
  local REPLY
  oom_count
  OOM_BEFORE=$REPLY BEGAN=$SECONDS
  printf 'gpu-runbook: cell %s attempt %s run %s started %s resume %s command %s environment %s gpu %s\n' "$CELL" "$ATTEMPT" "$RUN_ID" "$STARTED" \
    "$CELL_RESUME" "$COMMAND_SHA" "$ENV_SPEC" "${GPU_SAID:-none asked for}" 2>/dev/null >>"$CELL_LOG" || LOG_LOST=1
  ((LOG_LOST == 0)) || return 0
  if [[ -z $STOP_SIGNAL ]]; then
    { : >"$D/logs/$CELL/.peak"; } 2>/dev/null || :
    start_group "$CELL_LOG" prepare_child "$BASH" -c "$COMMAND"
    CELL_ALIVE=1
    [[ -z $STOP_SIGNAL ]] || forward_stop
    watch_cell $$ </dev/null >/dev/null 2>&1 &
    WATCH_PID=$!
    wait_group
    CELL_ALIVE=0
    stop_watchers
    { IFS= read -r PEAK_MEMORY <"$D/logs/$CELL/.peak"; } 2>/dev/null || :
    [[ $PEAK_MEMORY =~ ^[0-9]+$ ]] || PEAK_MEMORY=''
    sweep_cell "$RUN_ID/$CELL/$ATTEMPT" "$CELL_PID" 5
  fi
  utc_now
  ENDED=$REPLY
  oom_count
  OOM_AFTER=$REPLY
  printf 'gpu-runbook: ended %s status %s\n' "$ENDED" "$CELL_RC" 2>/dev/null >>"$CELL_LOG" || LOG_LOST=1
  CELL_EXIT=$CELL_RC
  ((CELL_RC <= 128 || CELL_RC >= 193)) || CELL_SIGNAL=$((CELL_RC - 128))
}

# From the facts of the attempt to its record. Returns run_one's exit code.
judge_end() {
  local REPLY='' missing='' LEAKS=''
  find_leaks "$CELL_LOG"
  if [[ -n $LEAKS ]]; then
    log "warning: the log of cell $CELL holds the value of: $LEAKS; do not publish $CELL_LOG, and renew it"
    printf 'gpu-runbook: this log holds the value of: %s\n' "$LEAKS" 2>/dev/null >>"$CELL_LOG" || :
  fi
  if ((LOG_LOST)); then
    CLASS=disk_full WHY="its log $CELL_LOG could not be written to the end"
    classify_disk
  else
    has_evidence || missing=$REPLY
    if [[ $CELL_RC -eq 0 && -z $STOP_SIGNAL && -z $LIMIT_HIT && -z $missing ]]; then
      find_behind
      write_cell unsynced '' '' behind ${BEHIND[@]+"${BEHIND[@]}"} || refuse "$EX_NOROOM" "$D/state/$CELL.json" "it cannot be written" "look at the data tier: room, rights; then run this again"
      finish_sync
      return
    fi
    classify_end "$missing"
  fi
  write_failed
}

write_failed() {
  local state=failed number
  drop_room
  [[ $CLASS != preempted ]] || state=preempted
  write_cell "$state" "$CLASS" "$WHY" || log "the record of cell $CELL could not be written: it stays running under a claim that is dead, so unknown"
  event "$state" "$CELL" "$ATTEMPT" "$CLASS: $WHY"
  log "cell $CELL: $state, $CLASS: $WHY; log: $CELL_LOG"
  if [[ -n $STOP_SIGNAL ]]; then
    number=$(kill -l "$STOP_SIGNAL") || number=15
    return $((128 + number))
  fi
  ((LOG_LOST == 0)) || return "$EX_NOROOM"
  [[ -z $LIMIT_HIT ]] && ((CELL_RC != 0)) || return "$EX_FAIL"
  return "$CELL_RC"
}

# The results into the bundle; the record says done only behind that. Returns 0, 65, 73 or 74.
finish_sync() {
  local rc=0 attempt
  sync_cell "$CELL" || rc=$?
  read_record "$D/state/$CELL.json" cell/1 "$RUN_ID" || return "$EX_INTEGRITY"
  attempt=$R_attempt
  if ((rc == 0)); then
    event 'done' "$CELL" "$attempt" ''
    prune_cell
    return 0
  fi
  case $rc in "$EX_INTEGRITY" | "$EX_NOROOM") ;; *) rc=$EX_COPY ;; esac
  drop_room
  cell_record unsynced "not in the bundle yet (code $rc)" "${R_files_sha256-}" && replace_file "$D/state/$CELL.json" "$RECORD" || :
  event unsynced "$CELL" "$attempt" "code $rc"
  log "cell $CELL: unsynced: it has finished, and its results lie in $CELL_DIR only; the next call copies again"
  return "$rc"
}

# What the job says may go once its results are committed. Nothing required, nothing outside, no folder's link followed.
prune_cell() {
  local pattern path item keep IFS=
  [[ -s $B/records/$CELL.json ]] || return 0
  for pattern in ${PRUNE[@]+"${PRUNE[@]}"}; do
    case /$pattern/ in */../* | *//*) continue ;; esac
    # shellcheck disable=SC2231 # the pattern is to expand; IFS is empty, so a blank in it does not split
    for path in "$CELL_DIR"/$pattern; do
      [[ -e $path || -L $path ]] || continue
      keep=0
      for item in "${REQUIRED[@]}"; do
        item=$CELL_DIR/${item%/}
        if [[ $item == "$path" || $item == "$path"/* || $path == "$item"/* || $path -ef $item ]]; then keep=1; fi
      done
      ((keep)) || rm -rf -- "${path:?}" || log "could not remove $path"
    done
  done
}

usage() {
  cat <<'USAGE'
usage: run_one.sh [--queue FILE] [--adopt] CELL

Runs the command that the queue gives CELL, once: in the code directory, in a process group of its own, its output in a log
of its own. It counts as done only when the command ends with 0, every required artifact is there and not empty, and
the copy in the bundle reads back as its source. A later call resumes: same folder, identical command, CELL_RESUME=1. A cell that
is done is not run again. TERM, INT, HUP and USR1 reach the whole group once; after the grace it is killed.

--queue FILE  take the command from FILE (default: the run's own queue, else queue.tsv beside this script)
--adopt       the box that had this run, or its claims, is gone for good: take over

exit codes: 0 done and checked; the command's own code where it failed; 1 no evidence, a limit; 64 usage, 65 integrity,
69 missing, 73 no room, 74 not copied, 75 somebody runs it, 77 refused, 78 configuration, 128+n stopped by signal n
USAGE
}

parse_words() { # <words...>    sets CELL QUEUE_FILE ADOPT; returns 64
  CELL='' QUEUE_FILE='' ADOPT=false
  while (($#)); do
    case $1 in
      --queue)
        [[ -n ${2-} ]] || return "$EX_USAGE"
        QUEUE_FILE=$2
        shift
        ;;
      --adopt) ADOPT=true ;;
      -*) return "$EX_USAGE" ;;
      *)
        [[ -z $CELL && -n $1 ]] || return "$EX_USAGE"
        CELL=$1
        ;;
    esac
    shift
  done
  [[ -n $CELL ]]
}

main() {
  case ${1-} in -h | --help) usage && return 0 ;; esac
  parse_words "$@" || { usage >&2 && return "$EX_USAGE"; }
  check_name "$CELL" cell
  open_run false '' "$ADOPT"
  find_cell
  CELL_DIR=$D/cells/$CELL
  judge_cell
  case $CELL_NEXT in
    nothing) claim 'done already' "cell $CELL" "$B/records/$CELL.json" ;;
    sync) finish_sync ;;
    run) run_attempt ;;
  esac
}

run_attempt() {
  gate_cell
  take_cell
  run_cell
  judge_end
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
