#!/usr/bin/env bash
# smoke.sh: a short trial on the box: the smoke command, its limit, its checkpoint, one record.
# Generated; do not edit. Source: templates/box/smoke.sh.j2
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
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier container-disk: survives ssh drop, restart, stop, not destroy
DATA_DIR=${DATA_DIR-/workspace}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/tmp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/workspace/.cache/huggingface}
# the interpreter
PY=${PY-python}
# a file to source or an http address; empty: none
PROXY_HOOK=${PROXY_HOOK-}
# NAME=value lines, mode 600; empty: none
CRED_FILE=${CRED_FILE-/root/.gpu-runbook.env}
# mirrors, exported to every cell
readonly -a MIRRORS=()
# names of variables, never values
readonly -a SECRETS=()
# where it is mounted
readonly DURABLE_TIER_PATH=''
# what shows that the tier is there
readonly DURABLE_PROOF=none
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

# Flush a file or folder to its disk. An old sync takes no names and flushes everything: slower, as safe.
flush() { # <path...>
  sync -- "$@" 2>/dev/null || sync
}

# Put TEXT into FILE: temporary name beside it, flushed, renamed, read back.
# With "soon" nothing is flushed: for what may be lost in a power cut, because its loss is seen and costs little.
replace_file() { # <file> <text> [soon]    returns: 0, or 74 with nothing changed under the name
  local file=$1 text=$2 dir=${1%/*} tmp soon=${3-}
  [[ $dir != "$file" ]] || dir=.
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || { [[ -z $soon ]] && ! flush "$tmp"; } || ! mv -f -- "$tmp" "$file"; then
    rm -f -- "$tmp"
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  [[ -n $soon ]] || flush "$dir"
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
  local file=$1 schema=$2 run_id=${3-} line text member value first=1 closed=0 in_list=0
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

hash_text() { # <text>    sets REPLY
  hash_tool
  REPLY=$(printf '%s' "$1" | hash_stream) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
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
  B=${DURABLE_DIR:-$DATA_DIR}/$RUN
  # shellcheck disable=SC2034 # not every script has to do with scratch
  S=$SCRATCH/gpu-runbook/$RUN
  CODE_DIR=${CODE_DIR:-$D/code}
  expand_path CODE_DIR
}

# The real folder of this script, into SELF_DIR: its siblings lie there, and a moved link changes nothing.
self_dir() {
  local dir=${BASH_SOURCE[0]-}
  [[ $dir == */* ]] || dir=./$dir
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

# The commit of the code, into CODE_COMMIT (40 digits or none).
code_commit() {
  CODE_COMMIT=none
  command -v git >/dev/null 2>&1 && [[ -d $CODE_DIR ]] || return 0
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

# Would a stash take declared data or a run's folder? Says what into REPLY.
git_stash_takes() { # <protected folder...>    returns: 0 it would
  local path dir real top
  REPLY=''
  top=$(cd -P -- "$GIT_TOP" && pwd -P) || return 0
  for path in ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]}"}; do
    for dir in "$@"; do
      real=$(cd -P -- "$dir" 2>/dev/null && pwd -P) || real=$dir
      [[ $top/$path != "$real"/* && $top/$path != "$real" ]] || { REPLY=$path && return 0; }
    done
  done
  # The exempt files (this run's own output) would be swept along.
  ((${#GIT_EXEMPT[@]} == 0)) || REPLY="${GIT_EXEMPT[0]} (this run's own output)"
  [[ -n $REPLY ]]
}

# Put uncommitted work aside under a dated name. Nothing is dropped; data is never taken.
git_stash() { # <protected folder...>
  local REPLY name entry
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"}; do
    case $entry in
      hidden*) git_refuse "git stash in $GIT_TOP" "it does not take ${entry#hidden }" "git update-index --no-assume-unchanged FILE, then commit it" ;;
      UU* | AA* | DD* | AU* | UA* | DU* | UD*) git_refuse "git stash in $GIT_TOP" "a merge is unfinished: $entry" "finish or abort the merge" ;;
    esac
  done
  if git_stash_takes "$@"; then
    git_refuse "git stash in $GIT_TOP" "it would take data or output away: $REPLY" "add it to .gitignore, or commit the other files by hand"
  fi
  utc_now
  name="before formal run $REPLY"
  git_here stash push --include-untracked -q -m "$name" ||
    git_refuse "git stash in $GIT_TOP" "git could not stash" "commit the files by hand"
  log "uncommitted work is in the stash '$name'; bring it back with: git -C $GIT_TOP stash pop"
}

git_clean() { # <stash: true or false> <protected folder...>
  local REPLY stash=$1 remedy
  shift
  git_look || git_refuse "git status in $GIT_TOP" "git failed" "run it by hand and see"
  ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)) || return 0
  if [[ $stash == true ]]; then
    git_stash "$@"
    git_look || git_refuse "git status in $GIT_TOP" "git failed" "run it by hand and see"
    ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)) || return 0
  fi
  git_list >&2
  remedy="commit and push them, or put them aside with: start --stash"
  if git_stash_takes "$@"; then remedy="commit them, or name them in .gitignore; a stash would take $REPLY"; fi
  git_refuse "git status in $GIT_TOP" "$((${#GIT_DIRTY[@]})) changed and ${#GIT_UNTRACKED[@]} untracked files (listed above) are in no commit" "$remedy"
}

# Each submodule is there and at the commit that the parent names (status has said so); its commit goes into the log.
git_submodules() {
  local line
  [[ -f $GIT_TOP/.gitmodules ]] || return 0
  while IFS= read -r line; do
    case $line in
      -*) git_refuse "git submodule in $GIT_TOP" "not initialised: ${line#-}" "git -C $GIT_TOP submodule update --init --recursive" ;;
      +* | U*) git_refuse "git submodule in $GIT_TOP" "not at the recorded commit: ${line#?}" "git -C $GIT_TOP submodule update, or commit the new one" ;;
      '') ;;
      *) log "submodule ${line# }" ;;
    esac
  done < <(git_here submodule status --recursive 2>&1)
}

# The branch is the job's, and its head is what the origin has. A run goes on at its own commit without a new look:
# it was pushed when the run began, and the network may be gone now.
git_pushed() { # <branch> <commit of the run, or empty> <pull: true or false>
  local branch=$1 there said
  if [[ -n $2 && $2 == "$GIT_HEAD" ]]; then return 0; fi
  [[ $GIT_BRANCH == "$branch" ]] ||
    git_refuse "the branch of $GIT_TOP" "it is '${GIT_BRANCH:-no branch}', the job says '$branch'" "git -C $GIT_TOP switch $branch"
  [[ -n $(git_here config --get remote.origin.url) ]] ||
    git_refuse "git push" "$GIT_TOP has no remote 'origin', so the commit is nowhere else" "git -C $GIT_TOP remote add origin URL, then push"
  if [[ $3 == true ]]; then
    # Only where origin is elsewhere: of two starts at one moment git would fail both pulls.
    there=$(git_bounded ls-remote origin "refs/heads/$branch" 2>/dev/null) || there=''
    there=${there%%[[:space:]]*}
    if [[ $there != "$GIT_HEAD" ]]; then
      said=$(git_bounded pull -q --ff-only origin "$branch" 2>&1) ||
        git_refuse "git -C $GIT_TOP pull --ff-only origin $branch" "it failed: ${said//[[:cntrl:]]/ }" "bring $branch in line with origin by hand; nothing was changed"
      there=$(git_here rev-parse -q --verify FETCH_HEAD) || there=''
    fi
  else
    there=$(git_bounded ls-remote origin "refs/heads/$branch" 2>/dev/null) ||
      git_refuse "git -C $GIT_TOP ls-remote origin" "origin cannot be reached" "look at the network and at the rights on this machine"
    there=${there%%[[:space:]]*}
  fi
  said=$GIT_HEAD
  GIT_HEAD=$(git_here rev-parse --verify -q HEAD) || GIT_HEAD=none
  [[ $said == "$GIT_HEAD" ]] || log "the pull moved $GIT_TOP from $said to $GIT_HEAD"
  [[ $there == "$GIT_HEAD" ]] ||
    git_refuse "HEAD of $GIT_TOP" "$GIT_HEAD is not what origin has on $branch (${there:-nothing})" "git -C $GIT_TOP push origin $branch"
}

git_bounded() { # <git's words...>    a dead network must not hang the gate
  if command -v timeout >/dev/null 2>&1; then
    GIT_TERMINAL_PROMPT=0 GIT_SSH_COMMAND="${GIT_SSH_COMMAND:-ssh -oBatchMode=yes -oConnectTimeout=20}" \
      timeout 180 git -C "$GIT_TOP" -c core.hooksPath=/dev/null --no-pager "$@" </dev/null
  else
    git_here "$@" </dev/null
  fi
}

# The whole gate, in order. Sets GIT_TOP GIT_HEAD GIT_BRANCH.
# shellcheck disable=SC2154 # D B S are those of the one script that calls it; others take this library for its other functions
git_gate() { # <branch> <run's commit or empty> <pull> <stash> <protected folder...>
  local branch=$1 commit=$2 pull=$3 stash=$4 before
  shift 4
  git_open
  git_exempt "$D" "$B" "$S"
  git_clean "$stash" "$@"
  git_submodules
  before=$GIT_HEAD
  git_pushed "$branch" "$commit" "$pull"
  if [[ $before != "$GIT_HEAD" ]]; then
    git_clean false "$@"
    git_submodules
  fi
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

# Wait for the attempt within the limit; the whole group ends with it. Sets SMOKE_EXIT and SMOKE_LATE.
smoke_wait() {
  local dog rc=0
  SMOKE_LATE=0
  set -m
  (
    sleep "$SMOKE_TIMEOUT_S"
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

smoke_report() { # <log>
  tail -n 20 -- "$1" >&2
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
  smoke_commit "$@"
  if [[ -n $SMOKE_WAIVER ]]; then
    smoke_waive "$SMOKE_WAIVER"
    return
  fi
  [[ $SMOKE_COMMAND == *[![:space:]]* ]] || refuse "$EX_CONFIG" "smoke" "the job's smoke command is empty" "write one in the job and compile again"
  smoke_scratch
  if ((SMOKE_RESUME)); then smoke_drill; else smoke_trial; fi
}

# lib/drill.bash: the resume drill: start, SIGKILL behind the first checkpoint, the identical command again (bash 3.2 too).
# needs: exit log smoke

# Numbers that a log gives to its steps ("epoch 3", "step: 120", "iter=7"), one a line.
drill_steps() { # <log>    prints
  sed -nE 's/.*(^|[^[:alnum:]_])([Ee]poch|[Ss]tep|[Ii]ter(ation)?)[] :=#[]*([0-9]+).*/\4/p' "$1"
}

# Until the first checkpoint is there and whole, while the attempt lives.
drill_await() { # returns: 0 it is there and the attempt still runs, 1 not
  local until=$((SECONDS + SMOKE_TIMEOUT_S)) artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  while ((SECONDS < until)); do
    kill -0 "$SMOKE_PID" 2>/dev/null || return 1
    if [[ -e $artifact ]] && [[ -s $artifact || -d $artifact ]]; then
      kill -STOP -- "-$SMOKE_PID" 2>/dev/null || return 1
      [[ -n $(drill_steps "$1") ]] && return 0
      kill -CONT -- "-$SMOKE_PID" 2>/dev/null || return 1
    fi
    sleep 0.05 2>/dev/null || sleep 1
  done
  return 1
}

smoke_drill() { # returns: 0 the second attempt went on, 1 it did not, or it could not be seen
  local first second killed begin=$SECONDS
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
  first=$(drill_steps "$SMOKE_WORK/log1" | head -n 1)
  killed=$(drill_steps "$SMOKE_WORK/log1" | tail -n 1)
  kill -KILL -- "-$SMOKE_PID"
  { wait "$SMOKE_PID" || :; } 2>/dev/null
  log "killed at step $killed, behind its first checkpoint; the identical command again"
  smoke_launch 2 1 "$SMOKE_WORK/log2"
  smoke_wait
  SMOKE_SECONDS=$((SECONDS - begin)) SMOKE_SAVE_S=''
  smoke_judge "$SMOKE_WORK/log2"
  second=$(drill_steps "$SMOKE_WORK/log2" | head -n 1)
  if [[ $SMOKE_RESULT == passed && -z $second ]]; then
    SMOKE_RESULT=failed SMOKE_WHY="the second attempt printed no step, so nobody knows where it began"
  elif [[ $SMOKE_RESULT == passed ]] && ((10#$second <= 10#$first)); then
    SMOKE_RESULT=failed SMOKE_WHY="the second attempt began at step $second again (killed at $killed): it does not resume"
  fi
  [[ $SMOKE_RESULT == passed ]] || SMOKE_SHA='' SMOKE_BYTES=''
  [[ $SMOKE_RESULT != passed ]] || { log "resumed: killed at step $killed, went on at step $second" && smoke_time_save; }
  smoke_report "$SMOKE_WORK/log2"
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
read_mem() { # <folder>
  local file limit used
  for file in memory.max memory.high memory.limit_in_bytes; do
    first_line "$1/$file" || continue
    limit=$REPLY
    # Version 1 writes "no limit" as a number near 2^63.
    if [[ ! $limit =~ ^[0-9]{1,18}$ ]] || ((limit >= 1 << 60)); then continue; fi
    [[ -z $RAM_LIMIT || $limit -lt $RAM_LIMIT ]] || continue
    RAM_LIMIT=$limit RAM_USED=''
    for used in memory.current memory.usage_in_bytes; do
      if first_line "$1/$used" && [[ $REPLY =~ ^[0-9]{1,18}$ ]]; then RAM_USED=$REPLY; fi
    done
  done
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

# RAM_TOTAL RAM_AVAILABLE RAM_LIMIT RAM_USED (the limit's own use) and what is free for us, RAM_FREE, in bytes.
probe_ram() {
  local name value rest root=${FAKE_ROOT-}/sys/fs/cgroup
  RAM_TOTAL='' RAM_AVAILABLE='' RAM_LIMIT='' RAM_USED='' RAM_FREE=''
  while read -r name value rest; do
    case $name in
      MemTotal:) RAM_TOTAL=$((value * 1024)) ;;
      MemAvailable:) RAM_AVAILABLE=$((value * 1024)) ;;
    esac
  done 2>/dev/null <"${FAKE_ROOT-}/proc/meminfo"
  if cgroup_path ''; then cgroup_walk "$root" "$REPLY" read_mem; fi
  if cgroup_path memory; then cgroup_walk "$root/memory" "$REPLY" read_mem; fi
  RAM_FREE=${RAM_AVAILABLE:-$RAM_TOTAL}
  if [[ -n $RAM_LIMIT ]]; then
    value=$((RAM_LIMIT - ${RAM_USED:-0}))
    ((value >= 0)) || value=0
    [[ -n $RAM_FREE && $RAM_FREE -le $value ]] || RAM_FREE=$value
  fi
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

# Workers and threads for one cell of SLOTS side by side: THREADS and WORKERS. Fewer is the safe side.
recommend() { # <slots> <bytes that a cell needs>
  local share spare
  share=$((CPUS / $1))
  ((share > 0)) || share=1
  # One CPU for the training loop itself; a loader worker costs memory of its own: count half a GB for each.
  WORKERS=$((share - 1))
  ((WORKERS <= 8)) || WORKERS=8
  if [[ -n $RAM_FREE ]]; then
    spare=$(((RAM_FREE / $1 - $2) / 500000000))
    ((spare >= 0)) || spare=0
    ((WORKERS <= spare)) || WORKERS=$spare
  fi
  THREADS=$((share - WORKERS))
  ((THREADS > 0)) || THREADS=1
}

# Bytes for people, into REPLY.
human() { # <bytes or empty>
  if [[ -z $1 ]]; then REPLY="not known"; elif (($1 >= 10000000000)); then REPLY="$(($1 / 1000000000)) GB"; elif (($1 >= 10000000)); then
    REPLY="$(($1 / 1000000)) MB"
  else REPLY="$1 bytes"; fi
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
  unset OVERRIDES_SAID HASH_TOOL
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

usage() {
  cat <<'USAGE'
usage: smoke.sh [--resume] [--waive WHO=WHY]

Runs the job's smoke command once in the code directory, within its limit, with trackers off and CELL_DIR in a scratch
folder that is removed afterwards. It passes only with status 0, no traceback and a fresh, non-empty checkpoint of the
declared name. The record D/smoke.json names commit and scripts; a formal run insists on it. It is never evidence.

--resume         kill the command with SIGKILL behind its first checkpoint, give it again unchanged, and look that the
                 step went on
--waive WHO=WHY  do not run it; write down who says so and why

exit codes: 0 passed or waived, 1 failed, 64 usage, 69 missing, 73 no room, 74 not written, 77 refused, 78 configuration
USAGE
}

# The environment that a cell gets, with this trial's scratch folder for everything that is cached or temporary.
smoke_env() { # returns: 0, or 77
  CELL=smoke CELL_INDEX=0 ATTEMPT=$CELL_ATTEMPT RUN_ID=smoke S=$SMOKE_WORK
  cell_env || { log "$REPLY" && return "$EX_GATE"; }
}

main() {
  local REPLY
  case ${1-} in -h | --help) usage && return 0 ;; esac
  smoke_flags "$@" || { usage >&2 && return "$EX_USAGE"; }
  self_dir
  run_places
  read_secrets
  prove_proxy
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  mkdir -p -- "$D" || refuse "$EX_NOROOM" "$D" "the folder cannot be made" "look at the data tier: room, rights"
  box_digest "$SELF_DIR" || refuse "$EX_MISSING" "$SELF_DIR" "its files cannot be read" "copy the whole folder box/ again"
  SMOKE_WHERE=box SMOKE_RECORD=$D/smoke.json SMOKE_ROOT=$SCRATCH/gpu-runbook SMOKE_BOX_DIGEST=$REPLY
  smoke_go "$D" "$B" "$SMOKE_ROOT"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
