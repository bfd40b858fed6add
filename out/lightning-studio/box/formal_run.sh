#!/usr/bin/env bash
# formal_run.sh: the one way to start evidence: gates, a detached queue, and success only with proof.
# Generated; do not edit. Source: templates/box/formal_run.sh.j2
# To change it, edit the source or profiles/lightning-studio.yaml, then: make profile=lightning-studio
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=formal_run.sh

# --- bound values: profiles/lightning-studio.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=lightning-studio
# the job's name
readonly JOB=demo
# the branch that a formal run is at
readonly BRANCH=main
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier studio-home: survives ssh drop, restart, stop, not destroy
DATA_DIR=${DATA_DIR-/teamspace/studios/this_studio/gpu-runs}
# tier studio-home: survives ssh drop, restart, stop, not destroy
DURABLE_DIR=${DURABLE_DIR-/teamspace/studios/this_studio/gpu-runs}
# may be lost at any time
SCRATCH=${SCRATCH-/tmp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/teamspace/studios/this_studio/hf}
# what a detached run is started with
DETACH=${DETACH-tmux}
# the interpreter
PY=${PY-python}
# where it is mounted
readonly DURABLE_TIER_PATH=/teamspace/studios/this_studio
# what shows that the tier is there
readonly DURABLE_PROOF=none
# its size in bytes; empty: not known
readonly DATA_CAP_BYTES=''
# its limit of files; empty: not known
readonly DATA_CAP_INODES=''
# its size in bytes; empty: not known
readonly DURABLE_CAP_BYTES=''
# its limit of files; empty: not known
readonly DURABLE_CAP_INODES=''
# seconds between our signal and the kill: save_s + 10
readonly GRACE_S=12
# seconds that one checkpoint takes
readonly SAVE_S=2
# the short trial
readonly SMOKE_COMMAND="\"\$PY\" train.py --epochs 1 --batches 2 --batch-size 8 --no-log --out \"\$CELL_DIR\""
# GPUs for one cell
readonly NEED_GPUS=0
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# files of one cell
readonly NEED_FILES=20
# host memory for one cell
readonly NEED_RAM_BYTES=1000000000
# expected seconds for one cell
readonly NEED_S=6
# what a finished cell has, relative to CELL_DIR
readonly -a REQUIRED=(
  best.pth
  best_metrics.json
)
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
# and how many files each must hold
readonly -a DATA_FILES=()
# and how many bytes; empty: not said
readonly -a DATA_SIZES=()
# and its digest, where it is one file
readonly -a DATA_SUMS=()
# and the list of its digests, relative to the code
readonly -a DATA_LISTS=()
# hf_home: below HF_HOME, not below the code
readonly -a DATA_UNDER=()
# switches the box off from inside; empty: the profile does not say that this stops the meter
readonly -a POWER_OFF_COMMAND=()
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

# The first $NAME in a path that has no value here, which expand_path would refuse, into REPLY.
unset_name() { # <path>    returns: 0, or 1 where each has one
  local rest=$1/
  case $rest in \~/*) rest=\$HOME${rest#\~} ;; esac
  while [[ $rest =~ (^|/)\$([A-Za-z_][A-Za-z0-9_]*)(/.*) ]]; do
    REPLY=${BASH_REMATCH[2]} rest=${BASH_REMATCH[3]}
    [[ -n ${!REPLY-} ]] || return 0
  done
  return 1
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

# What lies at PATH and is no file that we may read, in words, into REPLY. None of it is ever opened: a FIFO would wait for ever.
no_file() { # <path>    returns: 0, or 1 where it is a file, or nothing lies there
  REPLY=''
  if [[ -f $1 ]]; then
    [[ -r $1 ]] || REPLY='a file that we may not read'
  elif [[ -d $1 ]]; then
    REPLY='a folder'
  elif [[ -p $1 ]]; then
    REPLY='a FIFO'
  elif [[ -S $1 ]]; then
    REPLY='a socket'
  elif [[ -b $1 || -c $1 ]]; then
    REPLY='a device'
  elif [[ -L $1 ]]; then
    REPLY='a link that leads nowhere'
  fi
  [[ -n $REPLY ]]
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
  local REPLY file=$1 schema=$2 run_id=${3-} name names=" ${!R_*}"
  # Ours are in small letters: R_HOME and R_LIBS are the cell's affair.
  if [[ $names != *' R_'[!a-z]* ]]; then
    # shellcheck disable=SC2086 # names
    unset $names
  else
    for name in "${!R_@}"; do [[ $name != R_[a-z]* ]] || unset "$name"; done
  fi
  [[ -e $file || -L $file ]] || return 1
  read_text "$file" || return 2
  parse_record || return 2
  [[ ${R_schema-} == "$schema" ]] || return 2
  [[ -z $run_id || ${R_run_id-} == "$run_id" ]] || return 2
}

# Why FILE is no record, into REPLY.
record_fault() { # <file that read_record found unknown>
  if no_file "$1"; then
    REPLY="it is $REPLY, not a record"
  elif [[ ! -s $1 ]]; then
    REPLY='it is empty, not a whole record'
  else
    REPLY='it is not a whole record'
  fi
}

# The members of the text in REPLY into R_<member>. By patterns, not by regular expressions: bash compiles those anew each time.
parse_record() { # returns: 0, or 2 where it is not a whole record
  local IFS=$'\n' line member value in_list=0
  local -a lines=()
  [[ $REPLY == '{'$'\n'*$'\n''}'$'\n' && $REPLY != *$'\n\n'* ]] || return 2
  REPLY=${REPLY#'{'$'\n'}
  set -f
  # shellcheck disable=SC2206 # split at line ends
  lines=(${REPLY%$'\n''}'$'\n'})
  set +f
  for line in ${lines[@]+"${lines[@]}"}; do
    case $line in
      '  "'[a-z]*'": "'*'"' | '  "'[a-z]*'": "'*'",')
        member=${line:3} value=${line#*'": "'}
        member=${member%%\"*} value=${value%\"*}
        [[ $in_list == 0 && $member != *[!a-z0-9_]* ]] || return 2
        printf -v "R_$member" '%s' "$value"
        ;;
      '  "'[a-z]*'": '*)
        member=${line:3} value=${line#*'": '}
        member=${member%%\"*} value=${value%,}
        [[ $in_list == 0 && $member != *[!a-z0-9_]* ]] || return 2
        case $value in
          null) value='' ;;
          true | false) ;;
          '[') in_list=1 && continue ;;
          '[]') continue ;;
          *) [[ $value == [0-9-]* && ${value#-} != *[!0-9]* && $value != - ]] || return 2 ;;
        esac
        printf -v "R_$member" '%s' "$value"
        ;;
      '    '*) ((in_list)) || return 2 ;;
      '  ]' | '  ],') in_list=0 ;;
      *) return 2 ;;
    esac
  done
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

# lib/room.bash: bytes and inodes that are free, and whether a tier is really there.
# needs: exit log path proc

# The nearest folder above PATH (or PATH itself) that exists, into REPLY.
existing_parent() { # <path>
  REPLY=$1
  while [[ -n $REPLY && ! -e $REPLY ]]; do REPLY=${REPLY%/*}; done
  REPLY=${REPLY:-/}
}

# One df, bounded: a dead network mount must not hang us. Prints the last line.
df_line() { # <-k or -i> <path>
  local text
  text=$(within 20 df -P "$1" -- "$2" 2>/dev/null) || return "$EX_MISSING"
  printf '%s\n' "${text##*$'\n'}"
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

# Why nothing can be written in FOLDER, or where it would be made, in words, into REPLY. To be asked where writing has failed: on
# some mounts the rights say no, and writing works.
write_fault() { # <folder>    returns: 0, or 1 where nothing speaks against it
  local dir line fields best=''
  existing_parent "$1"
  dir=$REPLY REPLY=''
  [[ ! -w $dir ]] || return 1
  REPLY="we have no right to write in $dir"
  dir=$(cd -P -- "$dir" 2>/dev/null && pwd) || return 0
  while read -ra fields; do
    line=${fields[4]-} line=${line//\\040/ }
    [[ ${dir%/}/ == "${line%/}"/* && ${#line} -ge ${#best} ]] || continue
    best=$line
    # The options of the mount, and in the last field those of its file system.
    if [[ ,${fields[5]-}, == *,ro,* || ,${fields[${#fields[@]} - 1]}, == *,ro,* ]]; then REPLY="$best is mounted read-only"; else REPLY="we have no right to write in $dir"; fi
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  return 0
}
# The words for a refusal: FAULT_WHY and FAULT_DO.
write_words() { # <folder> <what could not be done there> <tier>
  if write_fault "$1"; then
    FAULT_WHY="$2: $REPLY" FAULT_DO="mount the $3 tier for writing again (dmesg says why it is not), or mend its rights; then the same call"
  else
    FAULT_WHY=$2 FAULT_DO="look at the $3 tier: room, rights"
  fi
}

# The type of the file system that is mounted at PATH itself, into REPLY; 1 where PATH is no mount point. By the kernel's list,
# which costs no look at a dead mount; the last of several mounts at one place hides the others.
mount_type() { # <path>
  local line fields
  REPLY=''
  while IFS= read -r line; do
    read -ra fields <<<"$line"
    # The kernel writes a blank as \040.
    [[ ${fields[4]-} == "${1// /\\040}" && $line == *' - '* ]] || continue
    line=${line#* - }
    REPLY=${line%% *}
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  [[ -n $REPLY ]]
}
# What a type of file system is made of, into REPLY: network, local, or unknown (virtiofs, 9p: what the host has).
mount_kind() { # <type>
  case $1 in
    fuseblk | fuse.fuse-overlayfs | ext[234] | xfs | btrfs | bcachefs | zfs | f2fs | overlay | tmpfs | ramfs | vfat | ntfs3) REPLY=local ;;
    nfs | nfs4 | cifs | smb3 | ceph | lustre | gpfs | beegfs | glusterfs | moosefs | wekafs | panfs | afs | fuse | fuse.*) REPLY=network ;;
    *) REPLY=unknown ;;
  esac
}

# Is the tier at PATH there, by its profile's proof? Says why not into REPLY.
prove_tier() { # <path of the tier> <the profile's proof>    returns: 0 or 74
  local type
  REPLY=
  case $2 in
    mount | mount-network | mount-local)
      if ! mount_type "$1"; then
        REPLY="$1 is not a mount point: the storage is not attached, and files there would go to another disk"
      else
        type=$REPLY
        mount_kind "$type"
        case $2,$REPLY in
          mount-network,local) REPLY="$1 is a local disk ($type), not the storage of the network that is meant: it does not survive as that does" ;;
          mount-local,network) REPLY="$1 is storage of the network ($type), not the box's own disk that is meant" ;;
          *) REPLY= ;;
        esac
      fi
      ;;
    mount-parent) # a folder that a mount one above it brings along
      if ! mount_type "${1%/*}"; then
        REPLY="${1%/*} is not a mount point: the storage is not attached, and files in $1 would go to another disk"
      elif [[ ! -d $1 ]]; then
        REPLY="${1%/*} is mounted, and $1 is not in it"
      else REPLY=; fi
      ;;
    marker) [[ -s $1/.gpu-runbook-tier ]] || REPLY="$1/.gpu-runbook-tier is missing: the storage is not attached, or nobody has marked it yet" ;;
    none) [[ -d $1 ]] || mkdir -p -- "$1" 2>/dev/null || REPLY="$1 is not there and cannot be made" ;;
    *) REPLY="the proof '$2' is not known" ;;
  esac
  [[ -z $REPLY ]] || return "$EX_COPY"
}

# Is the durable tier there? If not, what is wrong, why and what to do are in TIER_SAID, three entries.
# shellcheck disable=SC2154 # bound in each script that calls it; others take this library for its other functions
durable_there() { # reads: DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF    returns: 0 or 74
  local REPLY tier=$DURABLE_TIER_PATH
  TIER_SAID=()
  [[ -n $DURABLE_DIR ]] || return 0
  # Then the tier is nowhere, and a folder that a person has named cannot lie in it.
  if unset_name "$tier"; then tier="its \$$REPLY is not set"; else expand_path tier; fi
  if [[ $DURABLE_DIR/ == "${tier%/}"/* ]]; then
    prove_tier "${tier%/}" "$DURABLE_PROOF" ||
      TIER_SAID=("the durable tier" "$REPLY" "attach the storage, or set DURABLE_DIR= (empty) to run pull-only")
  elif [[ ! -d $DURABLE_DIR ]]; then
    # Not the profile's place: then nothing proves it but that a person made the folder.
    TIER_SAID=("DURABLE_DIR=$DURABLE_DIR" "it is not the profile's tier ($tier) and is no folder" "make the folder on storage that survives, or unset DURABLE_DIR")
  fi
  ((${#TIER_SAID[@]} == 0)) || return "$EX_COPY"
}

# The durable tier, proven before the first byte goes to it. Refuses 74.
prove_durable() {
  durable_there || refuse "$EX_COPY" "${TIER_SAID[@]}"
}

# lib/run.bash: the run: its folders, its record, its events (docs/contracts.md, sections 1 and 3).
# needs: exit log path file record proc hash room

# One line for people and watchers; nothing decides by it, so a full disk here stops nothing.
event() { # <event> <cell or -> <attempt or -> <text>
  local REPLY
  utc_now
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $D/events.tsv || ! -e $D/events.tsv ]] || return 0
  printf '%s\t%s\t%s\t%s\t%s\n' "$REPLY" "$1" "$2" "$3" "${4//[[:cntrl:]]/ }" 2>/dev/null >>"$D/events.tsv" || :
}

refuse_write() { # <exit code> <path> <what could not be done> <tier>
  local REPLY
  write_words "$2" "$3" "$4"
  refuse "$1" "$2" "$FAULT_WHY" "$FAULT_DO"
}

# The run's folders from the bound values and the environment: D, B, S. Makes nothing.
run_places() { # [asked: refuse where one of them does not answer]
  check_name "$RUN" RUN
  require_path DATA_DIR
  [[ -z $DURABLE_DIR ]] || require_path DURABLE_DIR
  require_path SCRATCH
  D=$DATA_DIR/$RUN
  # shellcheck disable=SC2034 # not every script has to do with the bundle and with scratch
  B=${DURABLE_DIR:-$DATA_DIR}/$RUN S=$SCRATCH/gpu-runbook/$RUN
  CODE_DIR=${CODE_DIR:-$D/code}
  expand_path CODE_DIR
  [[ ${1-} != asked ]] || places_answer
  scratch_apart
}
# A look at a folder on a dead mount never returns: a process of its own looks, and is ended (case 84).
places_answer() {
  local name rc
  for name in DATA_DIR DURABLE_DIR SCRATCH CODE_DIR; do
    [[ -n ${!name} ]] || continue
    rc=0
    within 20 test -e "${!name}" || rc=$?
    ((rc != 124)) || refuse "$EX_MISSING" "$name=${!name}" "its disk or mount did not answer in 20 s" "find it in /proc/mounts and attach it again, or set $name to another folder"
  done
}

# S is emptied when the disk is full: nothing of the run may lie in it, by name or by a link.
scratch_apart() {
  local place
  for place in "$D" "$B"; do
    [[ $place/ != "$S"/* && ! $place -ef $S ]] ||
      refuse "$EX_CONFIG" "SCRATCH=$SCRATCH" "$place lies in $S, which is emptied when room is short" "set SCRATCH to another folder"
  done
}

# The real path of a folder, into REPLY, without a process: there and back again.
resolve_folder() { # <folder>    returns: 0, or 1 where it cannot be entered
  local before=$PWD
  REPLY=''
  cd -P -- "$1" 2>/dev/null || return 1
  REPLY=$PWD
  # The folder that we stood in may be gone by now; nothing that follows needs it.
  cd -- "$before" 2>/dev/null || :
}

# The real folder of this script, into SELF_DIR: its siblings lie there, and a moved link changes nothing.
self_dir() {
  local REPLY dir=${BASH_SOURCE[0]-}
  [[ $dir == */* ]] || dir=./$dir
  # shellcheck disable=SC2034 # not every script that comes here asks for it
  resolve_folder "${dir%/*}" && SELF_DIR=$REPLY
}

# Digest of the folder that this script lies in, into REPLY: which scripts these are.
box_digest() { # <folder box/>
  local HASH_TOOL=${HASH_TOOL-} file said='' text=''
  local -a files=()
  for file in "$1"/*; do
    [[ ! -f $file ]] || files+=("$file")
  done
  hash_tool_small
  ((${#files[@]} == 0)) || said=$(exec_hash_tool "${files[@]}" 2>/dev/null) || return "$EX_INTEGRITY"
  while IFS= read -r file; do
    [[ -z $file ]] || text+="${file:0:64}  ${file##*/}"$'\n'
  done <<<"$said"
  hash_text "$text"
}

# Is there anything at FOLDER or above it that git would take for a repository? Where there is not, it need not be asked.
may_be_repository() { # <folder>
  local REPLY dir
  [[ -z ${GIT_DIR-} ]] || return 0
  resolve_folder "$1" || return 0
  dir=$REPLY
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
  local REPLY rc=0
  read_record "$D/run.json" run/1 || rc=$?
  ((rc != 2)) || { record_fault "$D/run.json" && refuse "$EX_INTEGRITY" "$D/run.json" "$REPLY" "compare it with $B/run.json and copy the whole one over it"; }
  ((rc == 1)) || return 0
  [[ $B != "$D" && (-e $B/run.json || -L $B/run.json) ]] || return 1
  read_record "$B/run.json" run/1 || {
    record_fault "$B/run.json"
    refuse "$EX_INTEGRITY" "$B/run.json" "$REPLY" "look at it; begin anew with RUN=$JOB.2 if it is lost"
  }
  read_text "$B/run.json"
  create_once "$D/run.json" "$REPLY" || [[ $? -eq 1 ]] || return "$EX_COPY"
  read_record "$D/run.json" run/1
}

# The durable copy: made where it is missing, refused where it is another run's.
mirror_run() {
  [[ $B != "$D" ]] || return 0
  local REPLY id=$R_run_id text rc=0
  read_text "$D/run.json" || refuse "$EX_INTEGRITY" "$D/run.json" "it cannot be read" "look at the data tier"
  text=$REPLY
  # The very same text is the very same run.
  ! read_text "$B/run.json" || [[ $REPLY != "$text" ]] || return 0
  [[ -d $B ]] || mkdir -p -- "$B" 2>/dev/null || refuse_write "$EX_COPY" "$B" "the folder cannot be made" durable
  create_once "$B/run.json" "$text" || [[ $? -eq 1 ]] ||
    refuse_write "$EX_COPY" "$B/run.json" "it cannot be written" durable
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
  local formal=$1 shard=$2 adopt=$3 pid='' rest
  # It tells which processes live; that of another PID namespace shows other processes under our numbers.
  { read -r pid rest </proc/self/stat; } 2>/dev/null && [[ $pid == "$BASHPID" ]] ||
    refuse "$EX_MISSING" "/proc" "it does not show this process: not mounted, or of another PID namespace" "mount it: mount -t proc proc /proc, or unshare with --mount-proc"
  self_dir
  run_places
  prove_durable
  [[ -d $D ]] || mkdir -p -- "$D" 2>/dev/null || refuse_write "$EX_NOROOM" "$D" "the folder cannot be made" data
  code_commit
  [[ $formal != true || $CODE_COMMIT != none ]] ||
    refuse "$EX_GATE" "a formal run" "the code at $CODE_DIR has no commit" "put a git work tree there, or set CODE_DIR"
  if ! find_run; then
    new_run "$formal" "${shard:-1/1}" || refuse_write "$EX_COPY" "$D/run.json" "it cannot be written" data
    find_run || refuse "$EX_COPY" "$D/run.json" "it does not read back" "look at the data tier"
  fi
  mirror_run
  check_run "$formal" "$shard" "$adopt" || refuse "$EX_COPY" "run $RUN" "its record cannot be rewritten" "look at the tiers: room, rights"
  # shellcheck disable=SC2034 # a script uses the ones that it needs
  RUN_ID=$R_run_id RUN_COMMIT=${R_commit-} RUN_FORMAL=${R_formal-} RUN_SHARD=${R_shard-} RUN_HOST=${R_host-} RUN_BOX_DIGEST=${R_box_digest-}
  log_overrides
}

# lib/queue.bash: the one reader of queue files. Whoever counts cells counts them with this.
# needs: exit log path file

# What an environment may have put there is none of ours.
QUEUE_TEXT=''

# Read FILE into QUEUE_NAMES and QUEUE_COMMANDS. A line is name<TAB>command; blank lines and # do not count.
# What was read last is not taken apart again: the same text, whichever file it stands in, has the same cells.
read_queue() { # <file>    returns: 0, or refuses 69 (not there) or 78 (not a queue), naming file and line
  # Set once: to switch the locale for each line costs more than all the rest.
  local LC_ALL=C file=$1 line n=0 name command text
  local -a lines
  local -A seen=()
  [[ -r $file && -f $file ]] || refuse "$EX_MISSING" "queue $file" "it cannot be read$(no_file "$file" && printf ': it is %s' "$REPLY")" "give --queue FILE, or put queue.tsv there"
  ! IFS= read -r -d '' text <"$file" || refuse "$EX_CONFIG" "queue $file" "it holds a NUL: it is no text" "write it anew"
  [[ -z ${QUEUE_TEXT-} || $text != "$QUEUE_TEXT" ]] || return 0
  QUEUE_NAMES=() QUEUE_COMMANDS=() QUEUE_TEXT=''
  ! take_plain "$text" || { QUEUE_TEXT=$text && return 0; }
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
      refuse_line "$file:$n" "$line" "$name" "$command" "${name:+${seen[${name,,}]-}}"
    fi
    seen[${name,,}]=$n
    QUEUE_NAMES+=("$name")
    QUEUE_COMMANDS+=("$command")
  done
  ((${#QUEUE_NAMES[@]} > 0)) || refuse "$EX_CONFIG" "queue $file" "it holds no cell" "write a line name<TAB>command for each cell"
  QUEUE_TEXT=$text
}

# A text in which each line is a cell, looked at as a whole: line by line costs ten times as much. Whatever is unusual in it is for
# the slow way, which names it.
take_plain() { # <text>    returns: 0, or 1 with nothing set
  local IFS=$'\n' all name
  local -a lines names commands odd
  local -A seen=()
  [[ $1 == *[!$'\n']$'\n' && $1 != $'\n'* && $1 != *$'\n\n'* && $1 != *[$'\001'-$'\010'$'\013'-$'\037'$'\177']* ]] || return 1
  set -f
  # shellcheck disable=SC2206 # split at line ends
  lines=(${1%$'\n'})
  set +f
  # Whatever has a tab and a word behind it falls away, and nothing must be left.
  odd=("${lines[@]/#*$'\t'*[![:space:]]*/}")
  all=${odd[*]}
  [[ -z ${all//$'\n'/} ]] || return 1
  names=("${lines[@]%%$'\t'*}") commands=("${lines[@]#*$'\t'}")
  all=$'\n'${names[*]}$'\n'
  [[ ${all//$'\n'/} != *[!A-Za-z0-9._=,+@-]* && $all != *$'\n'[!A-Za-z0-9]* ]] || return 1
  # A name that is too long would leave nothing here.
  printf -v all '%129s' ''
  odd=("${names[@]##${all// /?}*}")
  all=$'\n'${odd[*]}$'\n'
  [[ $all != *$'\n\n'* ]] || return 1
  for name in "${names[@]}"; do seen[${name,,}]=1; done
  ((${#seen[@]} == ${#lines[@]})) || return 1
  QUEUE_NAMES=("${names[@]}") QUEUE_COMMANDS=("${commands[@]}")
}

# What is wrong with one line.
refuse_line() { # <where> <line> <name> <command> <line that has the name too, or empty>
  [[ $2 == *$'\t'* ]] || refuse "$EX_CONFIG" "$1" "no tab between name and command" "write name<TAB>command"
  [[ ${4//$'\t'/} != *[[:cntrl:]]* ]] || refuse "$EX_CONFIG" "$1" "a control character in the command" "take it out"
  [[ $4 == *[![:space:]]* ]] || refuse "$EX_CONFIG" "$1" "cell '${3//[[:cntrl:]]/?}' has no command" "write name<TAB>command"
  check_name "$3" "$1: cell"
  refuse "$EX_CONFIG" "$1" "cell '$3' stands in line $5 too (upper and lower case count as one)" "give each cell a name of its own"
}

# lib/claim.bash: who may run a cell: one numbered file for each attempt, created once, never removed once the cell has begun.
# needs: exit log file proc run
# reads: D B

# The highest claim on a cell. Sets CLAIM_N (0: none), CLAIM_STATE (live, foreign, dead, none, unread), CLAIM_HOST, CLAIM_PID.
# Unread: what lies there is no file that can be read (CLAIM_SAID tells what), so nobody knows whether its runner lives.
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
  if no_file "$path"; then
    # shellcheck disable=SC2034 # who only asks for the state needs no words
    CLAIM_STATE=unread CLAIM_SAID="$path is $REPLY"
    return 0
  fi
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

# lib/states.bash: the state of every cell at once: a few processes for all of them, none for a cell.
# needs: exit log file proc claim
# reads: D B RUN_ID

# Every cell that has a record on either tier, into RECORD_OF[cell]: in the bundle (1 yes, 0 no, 2 damaged there), then state class
# attempt started ended exit why of its record, US (31) between. In the bundle is a cell whose record there says done over the very
# list beside it; of such a one the record on the data tier is not even opened. What is not a whole record of this run is unknown.
read_states() {
  begin_states
  end_states
}
# The two halves of it: awk reads beside us, while something else is done.
begin_states() { # [the records to read: all]    sets STATES_FD
  local REPLY file
  local -a odd=()
  (($# > 0)) || set -- "$B/records"/*.json "$D/state"/*.json
  # Texts may hold any bytes, and some awks warn of them elsewhere than in the C locale.
  exec {STATES_FD}< <({
    for file; do [[ -f $file && -r $file ]] || odd+=("$file"); done
    # What is no file is named here and opened by nobody: a FIFO would wait for ever.
    for file in ${odd[@]+"${odd[@]}"}; do
      if no_file "$file"; then printf '\037%s\037%s\n' "$REPLY" "$file"; fi
    done
    if ((${#odd[@]} == 0)); then printf '%s\n' "$@"; else
      for file; do [[ ! -f $file || ! -r $file ]] || printf '%s\n' "$file"; done
    fi
  } 2>/dev/null | LC_ALL=C awk -v run="$RUN_ID" -v b="$B/records/" -v d="$D/state/" '
    # A record is read whole, for no text holds a 1.
    function read_whole(file,   got) {
      RS = "\001"; text = ""
      got = (getline text < file)
      close(file)
      RS = "\n"
      return got
    }
    function member(key,   at, rest) {
      at = index(text, "\n  \"" key "\": ")
      if (!at) return ""
      rest = substr(text, at + length(key) + 7)
      rest = substr(rest, 1, index(rest, "\n") - 1)
      sub(/,$/, "", rest)
      if (substr(rest, 1, 1) == "\"") return substr(rest, 2, length(rest) - 2)
      return rest == "null" ? "" : rest
    }
    function unknown(why) { return s "unknown" s s s s s s why }
    function fields(name, file) {
      if (substr(text, 1, 4) != "{\n  " || substr(text, length(text) - 2) != "\n}\n" || member("schema") != "cell/1" || member("run_id") != run || member("cell") != name || member("state") == "")
        return unknown(file (text == "" ? " is empty, or cannot be read" : " is not a whole record of this run"))
      return s member("state") s member("class") s member("attempt") s member("started") s member("ended") s member("exit") s member("why")
    }
    function name_of(path, folder) { return substr(path, length(folder) + 1, length(path) - length(folder) - 5) }
    BEGIN { s = "\037" }
    index($0, s) == 1 {
      split($0, part, s)
      why = unknown(part[3] " is " part[2] ", not a record")
      if (index(part[3], b) == 1) { n = name_of(part[3], b); in_b[++nb] = n; of_b[n] = why }
      else { n = name_of(part[3], d); in_d[++nd] = n; odd[n] = why }
      next
    }
    index($0, b) == 1 {
      n = name_of($0, b)
      read_whole($0)
      in_b[++nb] = n
      of_b[n] = fields(n, $0)
      list[n] = member("files_sha256")
      next
    }
    index($0, d) == 1 { in_d[++nd] = name_of($0, d); next }
    { n = $0; sub(/.*\//, "", n); sub(/\.sha256$/, "", n); digest[n] = substr($0, 1, 64) }
    END {
      for (i = 1; i <= nb; i++) {
        n = in_b[i]
        has[n] = (index(of_b[n], s "done" s) == 1 && list[n] != "" && digest[n] == list[n]) ? 1 : 2
        if (has[n] == 1) print n s 1 of_b[n]
      }
      for (i = 1; i <= nd; i++) {
        n = in_d[i]
        if ((n in has) && has[n] == 1) continue
        if (n in odd) line = odd[n]
        else { read_whole(d n ".json"); line = fields(n, d n ".json") }
        # Damaged there, and what is here may well be whole: both are to be told.
        why = ""
        if (n in has && index(of_b[n], s "unknown" s) == 1) { why = of_b[n]; sub(/.*\037/, "", why) }
        if (why != "" && substr(line, length(line)) != s) why = "; " why
        print n s ((n in has) ? has[n] : 0) line why
        delete of_b[n]
      }
      for (n in of_b) if (has[n] == 2) print n s 2 of_b[n]
      print "."
    }' - <([[ ! -d $B/records ]] || find "$B/records" -maxdepth 1 -type f -name '*.sha256' ! -name '.*' -exec sha256sum {} + 2>/dev/null) 2>/dev/null)
}
end_states() {
  declare -gA RECORD_OF=()
  take_states || read_sound || log "the records in $D/state and $B/records cannot all be read: some states are not known; look at those disks, then ask again"
}
take_states() { # returns: 1 where awk has not come to its end
  local line text IFS=$'\n'
  # By the thousand characters: from a pipe bash takes lines one character at a time.
  read -r -N 1000000000 -u "$STATES_FD" text || :
  exec {STATES_FD}<&-
  [[ $text == .$'\n' || $text == *$'\n.\n' ]] || return 1
  text=${text%.$'\n'}
  set -f
  for line in $text; do RECORD_OF[${line%%$'\037'*}]=${line#*$'\037'}; done
  set +f
}
# Some awks give up at a record that cannot be read (a folder in its place, a fault of the disk): the others once more without it.
read_sound() { # returns: 1 where that fails too
  local file name
  local -a sound=() unread=()
  for file in "$B/records"/*.json "$D/state"/*.json; do
    if [[ ! -f $file ]] || { read -r -n 1 name <"$file"; } 2>/dev/null; then sound+=("$file"); elif [[ -e $file || -L $file ]]; then unread+=("$file"); fi
  done
  RECORD_OF=()
  begin_states "${sound[@]-$D/state/*.json}"
  take_states || return
  for file in ${unread[@]+"${unread[@]}"}; do
    log "$file cannot be read: unknown; look at its rights and its disk"
    name=${file##*/} && name=${name%.json}
    if [[ ${file%/*} == "$B/records" ]]; then
      [[ -z ${RECORD_OF[$name]-} ]] || RECORD_OF[$name]=2${RECORD_OF[$name]:1}
      RECORD_OF[$name]=${RECORD_OF[$name]-2$'\037unknown\037\037\037\037\037\037'}
    else
      RECORD_OF[$name]=${RECORD_OF[$name]-0$'\037unknown\037\037\037\037\037\037'}
    fi
  done
}

# One cell's record as it was read, into C_BUNDLE C_STATE C_CLASS C_ATTEMPT C_STARTED C_ENDED C_EXIT C_WHY.
# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs
cell_record_of() { # <cell>
  C_BUNDLE=0 C_STATE='' C_CLASS='' C_ATTEMPT='' C_STARTED='' C_ENDED='' C_EXIT='' C_WHY=''
  [[ -n ${RECORD_OF[$1]-} ]] || return 0
  local IFS=$'\037' fields
  set -f
  # shellcheck disable=SC2206 # split at US, which no field holds
  fields=(${RECORD_OF[$1]})
  set +f
  C_BUNDLE=${fields[0]-} C_STATE=${fields[1]-} C_CLASS=${fields[2]-} C_ATTEMPT=${fields[3]-} C_STARTED=${fields[4]-}
  C_ENDED=${fields[5]-} C_EXIT=${fields[6]-} C_WHY=${fields[7]-}
}

# What a cell is in now, from what was read: pending running done unsynced failed preempted unknown. Into REPLY, and C_WHY.
# shellcheck disable=SC2034 # a script reads C_WHY or not
state_now() { # <cell>
  local line=${RECORD_OF[$1]-} next
  C_WHY=''
  case $line in
    1*) REPLY='done' && return 0 ;;
    '')
      REPLY=pending
      [[ ! -d $D/claims/$1 ]] || claim_says "$1"
      return 0
      ;;
  esac
  cell_record_of "$1"
  REPLY=$C_STATE
  case $REPLY in
    'done') REPLY=unsynced ;;
    failed | preempted | unsynced)
      # A claim newer than the record is an attempt that has just begun, or died before its record.
      printf -v next '%s/claims/%s/%03d' "$D" "$1" $((${C_ATTEMPT:-0} + 1))
      [[ ! -e $next ]] || claim_says "$1"
      ;;
    running | unknown) claim_says "$1" ;;
    *) REPLY=unknown ;;
  esac
}
# shellcheck disable=SC2034 # as above
claim_says() { # <cell>    running where somebody lives behind the last claim, else unknown
  last_claim "$1"
  case $CLAIM_STATE in
    live | foreign) REPLY=running ;;
    # A folder alone is no claim: the cell was refused before it.
    none) [[ -z ${RECORD_OF[$1]-} ]] && REPLY=pending || REPLY=unknown ;;
    unread) REPLY=unknown C_WHY=$CLAIM_SAID ;;
    *) REPLY=unknown ;;
  esac
}

# What the cells took that are done, by their own records: DONE_S seconds, all DONE_N of them together.
cells_took() { # reads: RECORD_OF
  read -r DONE_S DONE_N < <(printf '%s\n' ${RECORD_OF[@]+"${RECORD_OF[@]}"} | awk -F$'\037' '
    # Days since 1970 of a civil date: no date tool for each line.
    function at(t,   y, m, d, era, yoe, doy) {
      y = substr(t, 1, 4) + 0; m = substr(t, 6, 2) + 0; d = substr(t, 9, 2) + 0
      if (m <= 2) y--
      era = int(y / 400); yoe = y - era * 400; doy = int((153 * (m + (m > 2 ? -3 : 9)) + 2) / 5) + d - 1
      return (era * 146097 + yoe * 365 + int(yoe / 4) - int(yoe / 100) + doy - 719468) * 86400 + substr(t, 12, 2) * 3600 + substr(t, 15, 2) * 60 + substr(t, 18, 2)
    }
    $2 == "done" && $5 ~ /^[0-9]/ && $6 ~ /^[0-9]/ { sum += at($6) - at($5); n++ }
    END { print sum + 0, n + 0 }') || :
  DONE_S=${DONE_S:-0} DONE_N=${DONE_N:-0}
}

# lib/idle.bash: waiting that costs no process and leaves none behind.
# needs:

# Wait without a process: a read that nobody answers. Opens its descriptor at first use.
idle() { # <seconds, also a fraction>
  [[ -n ${IDLE_FD-} ]] || exec {IDLE_FD}<> <(:)
  # Its status is always that of a time-out.
  read -r -t "$1" -u "$IDLE_FD" || :
}

# lib/roster.bash: the run's own queue: what its source has new is appended, nothing leaves, no command changes.
# needs: exit log path file proc queue run idle
# reads: D SELF_DIR QUEUE_FILE JOB RUN_SHARD

# A shard goes by places in the source: with a line gone, or one put in before the end, it would get cells of other shards,
# which run on other boxes.
check_places() { # reads merge_queue's own: source names known mine of n
  local i at=-1 moved=''
  for ((i = 0; i < ${#names[@]}; i++)); do
    if ((i % of != mine)); then
      [[ -z ${known[${names[i]}]-} ]] || moved=${names[i]}
      continue
    fi
    # From the first cell that we have, ours follow one another there as here.
    if ((at < 0)) && [[ -n ${known[${names[i]}]-} ]]; then
      for ((at = 0; at < n; at++)); do [[ ${QUEUE_NAMES[at]} != "${names[i]}" ]] || break; done
    fi
    ((at >= 0 && at < n)) || continue
    [[ ${QUEUE_NAMES[at]} == "${names[i]}" ]] || moved=${names[i]}
    at=$((at + 1))
  done
  [[ -z $moved ]] ||
    refuse "$EX_GATE" "queue $source" "its lines have moved (cell $moved), and shard $RUN_SHARD goes by their places: it would run cells of other shards" "put the lines back as they were; new ones belong at the end"
}

# One merges at a time: a roster written by another in between would lose its names to ours, or ours to its. A dead one's lock is
# nobody's, and nobody waits for ever.
lock_roster() { # returns: 1 where it could not be had
  local REPLY here host boot pid ticks n
  this_host
  here=$REPLY
  this_boot_id
  here+=" $REPLY"
  start_ticks $$ || return 1
  if [[ -e $D/.queue.lock && ! -f $D/.queue.lock ]]; then
    log "$D/.queue.lock is no file, so no lock: going on without it; move it away"
    return 1
  fi
  for ((n = 0; n < 200; n++)); do
    set -C
    if { printf '%s %s %s\n' "$here" $$ "$REPLY" >"$D/.queue.lock"; } 2>/dev/null; then set +C && return 0; fi
    set +C
    [[ -e $D/.queue.lock ]] || continue
    if { read -r host boot pid ticks <"$D/.queue.lock"; } 2>/dev/null && { [[ "$host $boot" != "$here" || $pid == "$$" ]] || ! same_process "$pid" "$ticks"; }; then
      unlock_roster
    else
      idle 0.1
    fi
  done
  [[ ! -e $D/.queue.lock ]] ||
    log "$D/.queue.lock could not be had in 20 s: going on without it; if no other run_queue is at work on this run, remove it"
  return 1
}
unlock_roster() {
  rm -f -- "$D/.queue.lock"
}

# Merge the source into D/queue.tsv and leave the roster in QUEUE_NAMES QUEUE_COMMANDS. Refuses 69, 73, 77, 78.
merge_queue() { # returns: 0; ADDED says how many cells are new
  local REPLY source=${QUEUE_FILE:-$SELF_DIR/queue.tsv} i n mine=$((${RUN_SHARD%/*} - 1)) of=${RUN_SHARD#*/} text
  local -a names commands lines=()
  local -A known=() folded=()
  ADDED=0 MERGED_TEXT=''
  read_queue "$source"
  text=$QUEUE_TEXT
  # The usual case: the run has all of it, and nothing else.
  if [[ $of == 1 && -f $D/queue.tsv ]] && read_text "$D/queue.tsv" && [[ $REPLY == "$text" ]]; then
    MERGED_TEXT=$text
    return 0
  fi
  names=("${QUEUE_NAMES[@]}") commands=("${QUEUE_COMMANDS[@]}")
  if [[ -e $D/queue.tsv ]]; then
    read_queue "$D/queue.tsv"
  else
    QUEUE_NAMES=() QUEUE_COMMANDS=()
  fi
  n=${#QUEUE_NAMES[@]}
  for ((i = 0; i < n; i++)); do
    known[${QUEUE_NAMES[i]}]=${QUEUE_COMMANDS[i]}
  done
  ((of == 1 || n == 0)) || check_places
  for ((i = mine; i < ${#names[@]}; i += of)); do
    if [[ ${known[${names[i]}]-} == "${commands[i]}" ]]; then continue; fi
    [[ -z ${known[${names[i]}]-} ]] ||
      refuse "$EX_GATE" "cell ${names[i]}" "its command in $source differs from the run's own in $D/queue.tsv" "undo the change and continue, or begin anew with RUN=$JOB.2"
    QUEUE_NAMES+=("${names[i]}") QUEUE_COMMANDS+=("${commands[i]}")
    ADDED=$((ADDED + 1))
  done
  ((${#QUEUE_NAMES[@]} > 0)) || refuse "$EX_CONFIG" "shard $RUN_SHARD" "it owns no cell of $source" "give fewer shards"
  ((ADDED == 0)) || QUEUE_TEXT=''
  # shellcheck disable=SC2034 # for source_changed, which only run_queue asks
  MERGED_TEXT=$text
  [[ -z ${DRY_QUEUE-} ]] && ((ADDED > 0)) || return 0
  if [[ -z ${ROSTER_LOCKED-} ]]; then
    local ROSTER_LOCKED=1
    if lock_roster; then
      merge_queue
      unlock_roster
    else
      merge_queue
    fi
    return
  fi
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    if [[ -n ${folded[${QUEUE_NAMES[i],,}]-} ]]; then
      refuse "$EX_CONFIG" "cell ${QUEUE_NAMES[i]}" "the run has a cell whose name differs in upper and lower case only" "give it a name of its own"
    fi
    folded[${QUEUE_NAMES[i],,}]=1
    lines+=("${QUEUE_NAMES[i]}"$'\t'"${QUEUE_COMMANDS[i]}")
  done
  printf -v text '%s\n' "${lines[@]}"
  replace_file "$D/queue.tsv" "$text" || refuse_write "$EX_NOROOM" "$D/queue.tsv" "it cannot be written" data
  QUEUE_TEXT=$text
}

# Has the source, or the run's own queue, another text than at the last merge?
source_changed() {
  local REPLY LC_ALL=C
  ! read_text "${QUEUE_FILE:-$SELF_DIR/queue.tsv}" || [[ $REPLY != "$MERGED_TEXT" ]] || ! read_text "$D/queue.tsv" || [[ $REPLY != "$QUEUE_TEXT" ]]
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

# A git that was killed leaves its lock behind, at which every later one stops.
git_lock_remedy() { # <what git said> <what else to do>    prints
  local REPLY
  if [[ $1 =~ \'([^\']+\.lock)\':\ File\ exists ]]; then REPLY=${BASH_REMATCH[1]}; else
    # git stash does not name the lock.
    git_ask rev-parse --git-path index.lock || REPLY=''
    [[ $REPLY == /* ]] || REPLY=$GIT_TOP/$REPLY
  fi
  if [[ -f $REPLY ]]; then printf 'if no git is at work there: rm %q' "$REPLY"; else printf '%s' "$2"; fi
}

# Put uncommitted work aside under a dated name. Nothing is dropped; data is never taken.
git_stash() { # <protected folder...>
  local REPLY name said entry links rc=0
  # What git would leave where it is, and say yes: a repository inside this one.
  git_ask ls-files -s || git_refuse "git ls-files in $GIT_TOP" "git failed" "run it by hand and see"
  links=$(grep '^160000 ' <<<"$REPLY") || links=''
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"} ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]/#/?? }"}; do
    [[ $entry == '?? '*/ || $links$'\n' == *$'\t'"${entry:3}"$'\n'* ]] || continue
    git_refuse "git stash in $GIT_TOP" "it does not take what is in ${entry:3}, a repository of its own" "commit and push it there, and its new commit here"
  done
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"}; do
    case $entry in
      hidden*) git_refuse "git stash in $GIT_TOP" "it does not take ${entry#hidden }" "git update-index --no-assume-unchanged --no-skip-worktree FILE, then commit it" ;;
      UU* | AA* | DD* | AU* | UA* | DU* | UD*) git_refuse "git stash in $GIT_TOP" "a merge is unfinished: $entry" "finish or abort the merge" ;;
    esac
  done
  if git_stash_takes "$@"; then
    git_refuse "git stash in $GIT_TOP" "it would take data or output away: $REPLY" "add it to .gitignore, or commit the other files by hand"
  fi
  utc_now
  name="before formal run $REPLY"
  said=$(git_with "$GIT_LOOK_S" stash push --include-untracked -m "$name" 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_LOOK_S" stash push ||
    git_refuse "git stash in $GIT_TOP" "git could not stash${said:+: ${said//[[:cntrl:]]/ }}" "$(git_lock_remedy "$said" "commit the files by hand")"
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
  [[ $stash != true ]] || remedy="commit them by hand: the stash did not take them"
  if git_stash_takes "$@"; then remedy="commit them, or name them in .gitignore; a stash would take $REPLY"; fi
  git_refuse "git status in $GIT_TOP" "$((${#GIT_DIRTY[@]})) changed and ${#GIT_UNTRACKED[@]} untracked files (listed above) are in no commit" "$remedy"
}

# Each repository inside the commit is there and at the commit that the parent names (status has said so); its commit is kept
# for the plan. One that .gitmodules does not name comes along with no clone.
git_submodules() { # sets GIT_SUBMODULES
  local REPLY line said rc=0
  GIT_SUBMODULES=()
  git_ask ls-files -s || git_refuse "git ls-files in $GIT_TOP" "git failed" "run it by hand and see"
  [[ $'\n'$REPLY == *$'\n160000 '* ]] || return 0
  said=$(git_with "$GIT_LOOK_S" submodule status --recursive 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_LOOK_S" submodule status ||
    git_refuse "git submodule status in $GIT_TOP" "${said##*$'\n'}" "name it in .gitmodules (git submodule add), or take it out: git rm --cached"
  while IFS= read -r line; do
    case $line in
      -*) git_refuse "git submodule in $GIT_TOP" "not initialised: ${line#-}" "git -C $GIT_TOP submodule update --init --recursive" ;;
      +* | U*) git_refuse "git submodule in $GIT_TOP" "not at the recorded commit: ${line#?}" "git -C $GIT_TOP submodule update, or commit the new one" ;;
      '') ;;
      *) GIT_SUBMODULES+=("${line# }") && log "submodule ${line# }" ;;
    esac
  done <<<"$said"
}

# The branch is the job's, and its head is what the origin has. A run goes on at its own commit without a new look:
# it was pushed when the run began, and the network may be gone now.
git_pushed() { # <branch> <commit of the run, or empty> <pull: true or false>
  local REPLY branch=$1 there before=$GIT_HEAD
  if [[ -n $2 && $2 == "$GIT_HEAD" ]]; then return 0; fi
  [[ $GIT_BRANCH == "$branch" ]] ||
    git_refuse "the branch of $GIT_TOP" "it is '${GIT_BRANCH:-no branch}', the job says '$branch'" "git -C $GIT_TOP switch $branch"
  git_ask config --get remote.origin.url && [[ -n $REPLY ]] ||
    git_refuse "git push" "$GIT_TOP has no remote 'origin', so the commit is nowhere else" "git -C $GIT_TOP remote add origin URL, then push"
  ! git_is_itself "${REPLY#file://}" ||
    git_refuse "git push" "the remote 'origin' of $GIT_TOP is this very repository, so the commit is nowhere else" "git -C $GIT_TOP remote set-url origin URL, then push"
  if git_origin "$branch"; then there=$REPLY; else
    [[ $3 == true ]] || git_refuse "git -C $GIT_TOP ls-remote origin" "origin cannot be reached" "look at the network and at the rights on this machine"
    there=''
  fi
  if [[ $3 == true && $there != "$GIT_HEAD" ]]; then
    # Only where origin is elsewhere: of two starts at one moment git would fail both pulls.
    git_pull "$branch"
    there=$REPLY
  fi
  git_ask rev-parse --verify -q HEAD || REPLY=none
  GIT_HEAD=$REPLY
  [[ $before == "$GIT_HEAD" ]] || log "the pull moved $GIT_TOP from $before to $GIT_HEAD"
  [[ $there == "$GIT_HEAD" ]] ||
    git_refuse "HEAD of $GIT_TOP" "$GIT_HEAD is not what origin has on $branch (${there:-nothing})" "git -C $GIT_TOP push origin $branch"
}
git_is_itself() { # <url>    returns: 0 where it is a folder, and that of this repository
  local REPLY url=$1
  [[ $url == /* ]] || url=$GIT_TOP/$url
  git_ask rev-parse --git-common-dir || return
  [[ $REPLY == /* ]] || REPLY=$GIT_TOP/$REPLY
  [[ $url -ef $REPLY || $url/.git -ef $REPLY ]]
}
# What origin has on the branch, into REPLY.
git_origin() { # <branch>    returns: 1 it cannot be reached
  local rc=0
  REPLY=$(git_with "$GIT_NET_S" ls-remote origin "refs/heads/$1" 2>/dev/null) || rc=$?
  git_in_time "$rc" "$GIT_NET_S" ls-remote origin || return 1
  REPLY=${REPLY%%[[:space:]]*}
}
git_pull() { # <branch>    sets REPLY: what origin has
  local said rc=0
  # By its full name: a tag of the same name would come first.
  said=$(git_with "$GIT_NET_S" pull -q --ff-only origin "refs/heads/$1" 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_NET_S" pull --ff-only origin "$1" ||
    git_refuse "git -C $GIT_TOP pull --ff-only origin $1" "it failed: ${said//[[:cntrl:]]/ }" "$(git_lock_remedy "$said" "bring $1 in line with origin by hand"); nothing was changed"
  git_ask rev-parse -q --verify FETCH_HEAD || REPLY=''
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
    # A pull moves no submodule. That has a remedy of its own, so it comes before "uncommitted".
    git_submodules
    git_clean false "$@"
  fi
}

# lib/detach.bash: sessions that outlive the shell that starts them, each with a socket folder of its own.
# needs: exit log proc
# One session a folder: no name can hit another run's session, and no server lends us its environment.

# A private folder under /tmp, for sockets fail on network mounts and on long paths. Sets DETACH_DIR.
detach_dir() { # <start id>    returns: 0, or 74 where it cannot be made
  local dir=/tmp/gr-${EUID:-$(id -u)}-$1
  # mkdir fails where the name exists, also as somebody's link: nobody else's folder is ever used or changed.
  mkdir -m 700 -- "$dir" 2>/dev/null || return "$EX_COPY"
  DETACH_DIR=$dir
}

# The multiplexer with its own server and no start-up file; never inside the one that we may be typed in. Its client waits for
# a server that is stopped or sick as long as that is: not for ever. Status 124: no answer.
detach_tmux() { # <socket> <words...>
  local socket=$1
  shift
  within 15 env -u TMUX -u TMUX_PANE SHELL=/bin/sh TERM="${TERM:-dumb}" tmux -S "$socket" -f /dev/null "$@"
}
detach_screen() { # <socket folder> <words...>
  local socket=$1
  shift
  within 15 env -u STY SCREENDIR="$socket" SHELL=/bin/sh TERM="${TERM:-dumb}" screen -c /dev/null "$@"
}

# Start WORDS detached. A status of 0 says that the tool took them, not that they run: await a heartbeat. nohup: DETACH_PID.
detach_start() { # <primitive> <socket> <session name> <log> <words...>
  local primitive=$1 socket=$2 name=$3 log=$4 line='' word end="'\\''"
  shift 4
  case $primitive in
    tmux)
      # The server joins the words and hands them to sh: quote them once for it. Not by %q, whose $'…' is bash's alone.
      for word in "$@"; do
        word=${word//\'/$end}
        line+="'$word' "
      done
      detach_tmux "$socket" new-session -d -s "$name" "exec $line" </dev/null >>"$log" 2>&1
      ;;
    screen)
      [[ -d $socket ]] || mkdir -m 700 -- "$socket" || return
      detach_screen "$socket" -dmS "$name" "$@" </dev/null >>"$log" 2>&1
      ;;
    nohup)
      (
        trap '' HUP
        exec setsid "$@"
      ) </dev/null >>"$log" 2>&1 &
      # Neither the subshell nor setsid forks again: this number is the session's own.
      # shellcheck disable=SC2034 # for who starts a run; a trial session does not ask
      DETACH_PID=$!
      ;;
    *) return "$EX_MISSING" ;;
  esac
}

# Is exactly this session there?
detach_alive() { # <primitive> <socket> <session name>    returns: 0 alive, 1 gone, 2 cannot be told
  local list='' line rc=0 said=$2.$$.said
  case $1 in
    tmux) [[ -S $2 ]] || return 1 ;;
    screen) [[ -d $2 ]] || return 1 ;;
    *) return 2 ;;
  esac
  command -v "$1" >/dev/null 2>&1 && { : >"$said"; } 2>/dev/null || return 2
  # Into a file: a client hands what it writes to over to its server, and a pipe would not end before a server that is stopped.
  case $1 in
    tmux) detach_tmux "$2" list-sessions -F '#{session_name}' ;;
    screen) detach_screen "$2" -ls ;;
  esac </dev/null 2>/dev/null >"$said" || rc=$?
  list=$(<"$said") || rc=124
  rm -f -- "$said"
  ((rc != 124)) || return 2
  while read -r line; do
    # Screen's status says nothing here; a line of it is PID.NAME, tab, state.
    if [[ $1 == screen ]]; then
      [[ $line =~ ^[0-9]+\.([^[:space:]]+)[[:space:]] && ${BASH_REMATCH[1]} == "$3" && $line != *'(Dead'* ]] && return 0
    else
      [[ $line != "$3" ]] || return 0
    fi
  done <<<"$list"
  return 1
}

# Are we inside the session that was started with these values? A second lock beside the environment file.
detach_inside() { # <primitive> <socket> <session name>
  local stat fields
  case $1 in
    tmux) [[ ${TMUX-} == "$2",* ]] ;;
    screen) [[ ${STY-} =~ ^[0-9]+\.(.*)$ && ${BASH_REMATCH[1]} == "$3" ]] ;;
    nohup)
      # Leader of its own kernel session: field 6 of stat.
      IFS= read -r stat <"/proc/$$/stat" || return 1
      read -ra fields <<<"${stat##*) }"
      [[ ${fields[3]-} == "$$" ]]
      ;;
    *) return 1 ;;
  esac
}

# The environment of now into FILE, NUL-separated: no server's, and no argument list shows it.
detach_save_env() { # <file>
  (
    set -C
    env -0 >"$1"
  ) 2>/dev/null || return "$EX_COPY"
  [[ -s $1 ]]
}

# Replace our environment by the one in FILE, and remove FILE. Names that no shell variable can have are left out.
detach_load_env() { # <file>
  local name entry
  local -a entries=()
  while IFS= read -r -d '' entry; do entries+=("$entry"); done <"$1" || return
  rm -f -- "$1"
  ((${#entries[@]} > 0)) || return "$EX_MISSING"
  for name in $(compgen -e); do unset -v "$name" 2>/dev/null || :; done
  for entry in "${entries[@]}"; do
    [[ ${entry%%=*} =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
    export "${entry?}" 2>/dev/null || :
  done
}

# lib/probe.bash: what this machine lets us use. Never one number alone: the smallest of all that can be read.
# needs: room proc

# Up to so many MiB in use a GPU counts as free: driver and display take some (X8).
# shellcheck disable=SC2034 # a script reads what it needs
readonly GPU_FREE_MIB=500

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

# lib/formal.bash: the records of a formal run, and what is judged from them (docs/contracts.md, section 7).
# needs: exit log file record proc hash
# reads: D B RUN_ID, and F_START F_SESSION F_NAME F_SOCKET F_PID F_TICKS F_DIGEST F_POWER of this start

write_formal() { # <state> <why>
  local REPLY host boot
  this_host
  host=$REPLY
  this_boot_id
  boot=$REPLY
  record_open formal/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text state "$1"
  record_text why "$2"
  utc_now
  record_text since "$REPLY"
  record_text session "$F_SESSION"
  record_text session_name "$F_NAME"
  record_text socket "$F_SOCKET"
  record_text host "$host"
  record_text boot_id "$boot"
  record_int pid "$F_PID" || return
  record_int start_ticks "$F_TICKS" || return
  record_text box_digest "$F_DIGEST"
  record_bool power_off "$F_POWER" || return
  record_close
  replace_file "$D/formal.json" "$RECORD"
}

# The record's members into F_*, so that a rewrite keeps them.
take_formal() {
  F_START=${R_start_id-} F_SESSION=${R_session-} F_NAME=${R_session_name-} F_SOCKET=${R_socket-}
  F_PID=${R_pid-} F_TICKS=${R_start_ticks-} F_DIGEST=${R_box_digest-} F_POWER=${R_power_off-} F_SINCE=${R_since-} F_STATE=${R_state-}
}

# Is FORMAL_SUCCESS there for this run and start, over the manifest that lies in B now? A proof of a part says so.
success_holds() { # <start id>    returns: 0 with PART_SAID, or 1 with the reason in REPLY
  local start=$1 rc=0 said
  PART_SAID=''
  read_record "$B/FORMAL_SUCCESS" formal_success/1 "$RUN_ID" || rc=$?
  case $rc in
    1) REPLY="there is no $B/FORMAL_SUCCESS" && return 1 ;;
    2) REPLY="$B/FORMAL_SUCCESS is not a whole record of this run" && return 1 ;;
  esac
  [[ ${R_start_id-} == "$start" ]] || { REPLY="$B/FORMAL_SUCCESS is of another start (${R_start_id-})" && return 1; }
  said=${R_manifest_sha256-}
  hash_file "$B/PULL_MANIFEST.json" && [[ $REPLY == "$said" ]] || { REPLY="$B/FORMAL_SUCCESS was said over another PULL_MANIFEST.json" && return 1; }
  [[ -z ${R_part_cells-} ]] || PART_SAID="a part only: $R_part_cells cells, named in plans/$start.tsv; ${R_cells_done-} of the ${R_cells_expected-} cells of the run are done"
  REPLY=''
}

# What the formal run is in now, into FORMAL_STATE and FORMAL_WHY; leaves the record in R_* and F_*.
judge_formal() {
  local rc=0 REPLY host boot
  FORMAL_STATE=unknown FORMAL_WHY=''
  # shellcheck disable=SC2034 # not every script that judges prints all of them
  F_START='' F_SESSION='' F_NAME='' F_SOCKET='' F_PID='' F_TICKS='' F_DIGEST='' F_POWER=false F_SINCE='' F_STATE=''
  read_record "$D/formal.json" formal/1 "$RUN_ID" || rc=$?
  case $rc in
    1) FORMAL_STATE=none FORMAL_WHY="no formal run was started here" && return 0 ;;
    2) FORMAL_WHY="$D/formal.json is not a whole record of this run" && return 0 ;;
  esac
  take_formal
  FORMAL_WHY=${R_why-}
  this_host
  host=$REPLY
  this_boot_id
  boot=$REPLY
  case ${R_state-} in
    success)
      FORMAL_STATE=success
      if success_holds "$F_START"; then
        [[ -z $PART_SAID ]] || FORMAL_WHY="$PART_SAID${FORMAL_WHY:+; $FORMAL_WHY}"
      else
        FORMAL_STATE=unknown FORMAL_WHY="the record says success, but ${REPLY-}"
      fi
      ;;
    failed | stopped) FORMAL_STATE=$R_state ;;
    starting | running | aggregating)
      if [[ ${R_host-} != "$host" ]]; then
        FORMAL_WHY="it was $R_state on $R_host, and this is $host: look there"
      elif [[ ${R_boot_id-} != "$boot" ]]; then
        FORMAL_STATE=lost FORMAL_WHY="boot id changed while it was $R_state, no exit record: the box was restarted under it"
      elif same_process "$F_PID" "$F_TICKS"; then
        FORMAL_STATE=$R_state
      else
        # The last act may have been written while we looked.
        FORMAL_STATE=lost FORMAL_WHY="its process is gone while it was $R_state, no exit record: killed, or ended at logout"
        lost_after_all
      fi
      ;;
    *) FORMAL_WHY="$D/formal.json says state '${R_state-}', which nobody writes" ;;
  esac
}

# A run that died between its success record and its last state is a success: the proof is complete.
lost_after_all() {
  local REPLY rc=0
  read_record "$D/formal.json" formal/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return 0
  case ${R_state-} in
    failed | stopped | success) FORMAL_STATE=$R_state FORMAL_WHY=${R_why-} ;;
  esac
  if [[ $FORMAL_STATE != failed && $FORMAL_STATE != stopped ]] && success_holds "$F_START"; then
    FORMAL_STATE=success FORMAL_WHY="${PART_SAID:+$PART_SAID; }its process ended right after it had written FORMAL_SUCCESS"
  fi
}

# A process of this run's detached part that is at work, whatever the records say: it stands in D and runs our own words.
# Where the part itself was killed, what it had started goes on.
live_detached() { # returns: 0 with its number in REPLY, 1 there is none
  local dir word found='' oldest=''
  local -a words
  for dir in /proc/[0-9]*; do
    [[ $dir/cwd -ef $D ]] || continue
    words=()
    { while IFS= read -r -d '' word; do words+=("$word"); done <"$dir/cmdline"; } 2>/dev/null || continue
    case ${words[1]-},${words[2]-} in
      */"$PROG",_run | */"$PROG",_enter) ;;
      */run_queue.sh,--dry-run | */aggregate_to_fs.sh,--help) continue ;;
      */run_queue.sh,* | */aggregate_to_fs.sh,*) ;;
      # A cell outlives a queue that was killed.
      */run_one.sh,--queue) [[ ${words[3]-} == "$D/queue.tsv" ]] || continue ;;
      *) continue ;;
    esac
    start_ticks "${dir#/proc/}" || continue
    # Of several the oldest: it began the others, and ends them when it is told to.
    if [[ -z $found ]] || ((REPLY < oldest)); then found=${dir#/proc/} oldest=$REPLY; fi
  done
  REPLY=$found
  [[ -n $found ]]
}

# Of a start and its detached part one takes the mark in the private folder, in one step: whoever has it decides whether the
# part begins. Where the folder is gone it cannot begin either.
bar_detached() { # <start id>    returns: 0 it will never begin, 1 it has begun
  local dir=/tmp/gr-$EUID-$1
  mkdir -- "$dir/taken" 2>/dev/null || [[ ! -d $dir ]]
}
# It has begun: wait until its own record says so.    sets R_pid
await_begun() { # returns: 0, or 1 it died before
  local n
  for ((n = 0; n < 50; n++)); do
    if read_record "$D/formal.json" formal/1 "$RUN_ID" && [[ ${R_start_id-} == "$F_START" && ${R_state-} != starting ]]; then return 0; fi
    sleep 0.1 2>/dev/null || sleep 1
  done
  return 1
}

# Take the next start number, which only one start can have; refuses while an earlier start is still at work. Its last word is
# the id, and so the private folder, of a start that may be killed before its record names it.
take_start() {
  local REPLY uuid dir=$D/starts n=0 file host boot pid ticks id mine
  mkdir -p -- "$dir" || refuse "$EX_NOROOM" "$dir" "the folder cannot be made" "look at the data tier: room, rights"
  IFS= read -r uuid </proc/sys/kernel/random/uuid || refuse "$EX_MISSING" "/proc" "it cannot be read" "mount /proc"
  NEW_START=${uuid:0:8} EARLIER_START=''
  for file in "$dir"/[0-9][0-9][0-9]*; do
    [[ -e $file ]] || continue
    ((10#${file##*/} <= n)) || n=$((10#${file##*/}))
  done
  this_host
  mine=$REPLY
  this_boot_id
  mine+=" $REPLY"
  if ((n > 0)); then
    printf -v file '%s/%03d' "$dir" "$n"
    [[ ! -f $file ]] || read -r host boot pid ticks id <"$file" || :
    if [[ "${host-} ${boot-}" == "$mine" ]] && same_process "${pid:-0}" "${ticks:-0}"; then
      refuse "$EX_BUSY" "start" "another start is at work (process $pid)" "wait for it, then: bash $SELF_DIR/$PROG status"
    fi
    EARLIER_START=${id-}
  fi
  start_ticks $$
  printf -v file '%s/%03d' "$dir" $((n + 1))
  create_once "$file" "$mine $$ $REPLY $NEW_START"$'\n' ||
    refuse "$EX_BUSY" "start" "another start was quicker, or $file cannot be written" "bash $SELF_DIR/$PROG status"
}

# What stands there from an earlier start, aside under its own id: nobody can take it for this start's.
move_old_aside() {
  local file to id
  for file in "$B/FORMAL_SUCCESS" "$D/FORMAL_FAILURE.json" "$D/READY_TO_STOP"; do
    [[ -e $file ]] || continue
    id=''
    if read_record "$file" formal_success/1 || read_record "$file" formal_failure/1 || read_record "$file" ready_to_stop/1; then id=${R_start_id-}; fi
    to=$file.${id:-unreadable-before-$F_START}
    if ! mv -f -- "$file" "$to" || [[ -e $file ]]; then
      refuse "$EX_COPY" "mv $file $to" "the old record cannot be moved aside" "look at the tier: rights, room"
    fi
    log "moved aside: $to"
    [[ $file == */FORMAL_FAILURE.json ]] || continue
    for to in "" .sha256; do
      [[ ! -e $D/formal.failed.tar.gz$to ]] || mv -f -- "$D/formal.failed.tar.gz$to" "$D/formal.failed.${id:-before-$F_START}.tar.gz$to"
    done
  done
}

# The bundle's manifest says that every cell of the roster is done, or where --only named a part, every cell of the plan.
# Sets M_EXPECTED M_DONE M_DIGEST, and M_PART: how many cells the part has, empty where the whole roster is proven.
check_manifest() { # <cells in the roster> <plan>    returns: 0 or 65 with the reason in REPLY
  local file=$B/PULL_MANIFEST.json body said
  read_record "$file" pull_manifest/1 "$RUN_ID" || { REPLY="$file is not a whole manifest of this run" && return "$EX_INTEGRITY"; }
  M_EXPECTED=${R_cells_expected-} M_DONE=${R_cells_done-} M_PART='' said=${R_self_sha256-}
  body=$(sed -n '/^  "self_sha256": /q;p' "$file")
  hash_text "$body"$'\n'
  [[ $REPLY == "$said" ]] || { REPLY="$file does not match its own digest" && return "$EX_INTEGRITY"; }
  [[ ${R_commit-} == "$RUN_COMMIT" ]] || { REPLY="$file is of commit ${R_commit-}, the run of $RUN_COMMIT" && return "$EX_INTEGRITY"; }
  [[ $M_EXPECTED == "$1" ]] || { REPLY="$file knows ${M_EXPECTED:-?} cells, the roster has $1" && return "$EX_INTEGRITY"; }
  if [[ -n $ONLY && $M_DONE != "$1" ]]; then
    part_is_done "$file" "$2" || return
  elif [[ $M_DONE != "$1" ]]; then
    REPLY="$file has ${M_DONE:-?} of ${M_EXPECTED:-?} cells done, the roster has $1" && return "$EX_INTEGRITY"
  fi
  hash_file "$file" || { REPLY="$file cannot be read" && return "$EX_INTEGRITY"; }
  M_DIGEST=$REPLY
}
# Each cell of the plan, which are those that --only named, is done by the manifest. Sets M_PART.
part_is_done() { # <manifest> <plan>    returns: 0 or 65 with the reason in REPLY
  local name rest n=0
  local -A well=()
  while IFS= read -r name; do well[$name]=1; done < <(awk -F'"' '/^    \{"cell": / && $8 == "done" {print $4}' "$1")
  while IFS=$'\t' read -r name rest; do
    [[ $name != '#'* ]] || continue
    [[ -n ${well[$name]-} ]] || { REPLY="cell $name of the part is not done by $1" && return "$EX_INTEGRITY"; }
    n=$((n + 1))
  done <"$2"
  ((n > 0)) || { REPLY="the plan $2 names no cell" && return "$EX_INTEGRITY"; }
  M_PART=$n
}

write_success() { # returns: 0 written and read back
  local REPLY
  record_open formal_success/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text commit "$RUN_COMMIT"
  record_int cells_expected "$M_EXPECTED" || return
  record_int cells_done "$M_DONE" || return
  record_int part_cells "$M_PART" || return
  record_text manifest_sha256 "$M_DIGEST"
  record_bool power_off "$F_POWER" || return
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$B/FORMAL_SUCCESS" "$RECORD" || return
  success_holds "$F_START" || { log "$REPLY" && return "$EX_INTEGRITY"; }
}

write_failure() { # <stage> <command> <exit> <remedy>
  local REPLY
  record_open formal_failure/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text stage "$1"
  record_text command "$2"
  record_int exit "$3" || return
  record_text log "$D/formal.log"
  record_text remedy "$4"
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$D/FORMAL_FAILURE.json" "$RECORD"
}

# The last word of a start: its proof, or the evidence of its failure, is written, and nothing of it is at work (X11).
# It says nothing about results being at home: a teardown has its own gate.
write_ready() { # <success or failed>
  local REPLY
  record_open ready_to_stop/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text outcome "$1"
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$D/READY_TO_STOP" "$RECORD"
}

# What is needed to say why a run failed, in one file of bounded size with its digest: records, plan, the run's log, and of
# every cell that is not done its record and its logs.
pack_failure() { # writes: D/formal.failed.tar.gz and .sha256    returns: 0 packed, 1 not
  local REPLY stage=$D/.evidence.$$ file cell rc=0
  LEFT_TO_PACK=$((64 * 1024 * 1024))
  rm -rf -- "$D"/.evidence.* "$D"/.formal.failed.*.tmp
  mkdir -p -- "$stage" || return
  for file in run.json formal.json FORMAL_FAILURE.json queue.tsv events.tsv smoke.json NEGATIVE_RESULTS.tsv environment.txt formal.log; do
    pack_end "$D/$file" "$stage/$file"
  done
  pack_end "$D/plans/$F_START.tsv" "$stage/$F_START.tsv"
  while IFS= read -r cell; do
    cell=${cell##*/} cell=${cell%.json}
    ((LEFT_TO_PACK > 0)) || break
    pack_end "$D/state/$cell.json" "$stage/state/$cell.json"
    for file in "$D/logs/$cell"/attempt-*.log; do pack_end "$file" "$stage/logs/$cell/${file##*/}"; done
  done < <(find "$D/state" -maxdepth 1 -name '*.json' ! -name '.*' -exec grep -L '^  "state": "done"' {} + 2>/dev/null | LC_ALL=C sort)
  if tar -czf "$D/.formal.failed.$$.tmp" -C "$stage" . && flush "$D/.formal.failed.$$.tmp" && mv -f -- "$D/.formal.failed.$$.tmp" "$D/formal.failed.tar.gz" &&
    tar -tzf "$D/formal.failed.tar.gz" >/dev/null && hash_file "$D/formal.failed.tar.gz"; then
    replace_file "$D/formal.failed.tar.gz.sha256" "$REPLY  formal.failed.tar.gz"$'\n' && log "evidence of the failure: $D/formal.failed.tar.gz ($REPLY)" || rc=1
  else
    log "the evidence could not be packed; it lies in $D as it is"
    rc=1
  fi
  rm -rf -- "${stage:?}" "$D/.formal.failed.$$.tmp"
  return "$rc"
}
# The last megabyte of a file, as long as there is room for it. Reads and lowers LEFT_TO_PACK.
pack_end() { # <file> <copy>
  local size
  [[ -f $1 ]] && ((LEFT_TO_PACK > 0)) || return 0
  mkdir -p -- "${2%/*}" && tail -c $((1024 * 1024)) -- "$1" >"$2" || return 0
  size=$(wc -c <"$2") || size=$((1024 * 1024))
  LEFT_TO_PACK=$((LEFT_TO_PACK - size))
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

# lib/hashes.bash: many files at once: their digests by all cores, their sizes and times in one look.
# needs: exit log hash

# What `stat` says of each path, links followed, into STAT_OF[path]: "size|inode|mtime|ctime". Not there: no entry.
stat_many() { # <path...>
  begin_stat "$@"
  end_stat
}
# The two halves of it: stat runs beside us, while something else is done.
begin_stat() { # <path...>    sets STAT_FD for end_stat
  exec {STAT_FD}< <(
    while (($# > 500)); do
      TZ=UTC0 stat -L -c '%s|%i|%y|%z|%n' -- "${@:1:500}" 2>/dev/null
      shift 500
    done
    (($# == 0)) || TZ=UTC0 exec stat -L -c '%s|%i|%y|%z|%n' -- "$@" 2>/dev/null
  )
}
end_stat() {
  local line rest
  declare -gA STAT_OF
  STAT_OF=()
  while IFS= read -r line; do
    rest=${line#*|*|*|*|}
    STAT_OF[$rest]=${line%"|$rest"}
  done <&"$STAT_FD"
  exec {STAT_FD}<&-
}

# One worker: the tool over its share, some hundred names a call; the last call becomes the tool.
hash_share() { # <path...>    prints lines of the tool
  while (($# > 200)); do
    (exec_hash_tool "${@:1:200}") 2>/dev/null || :
    shift 200
  done
  (($# == 0)) || exec_hash_tool "$@" 2>/dev/null
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
  begin_hash "$@"
  end_hash
}
# The two halves of it: little is read beside us, while something else is done. No other digests are taken in between.
begin_hash() { # <path...>    sets HASH_FD and HASH_N for end_hash
  local REPLY path line all=0
  declare -gA SUM_OF
  SUM_OF=() HASH_FD='' HASH_N=$#
  (($# > 0)) || return 0
  for path in "$@"; do
    line=${STAT_OF[$path]-4194304}
    all=$((all + ${line%%|*}))
  done
  local HASH_TOOL=${HASH_TOOL-}
  if ((all < 4194304)); then
    # Little work is done sooner by one than shared out.
    hash_tool_small
    exec {HASH_FD}< <(hash_share "$@")
  else
    hash_tool
    hash_workers $#
    share_out "$REPLY" "$@"
  fi
}
end_hash() { # returns: 0, or 1 where a file could not be read
  if [[ -n $HASH_FD ]]; then
    read_sums <&"$HASH_FD"
    exec {HASH_FD}<&-
    HASH_FD=''
  fi
  ((${#SUM_OF[@]} >= HASH_N))
}
read_sums() { # the tool's lines from standard input into SUM_OF
  local line
  while IFS= read -r line; do
    [[ ! ${line:0:64} =~ ^[0-9a-f]{64}$ ]] || SUM_OF[${line:66}]=${line:0:64}
  done
}
share_out() { # <workers> <path...>
  local path line n=$1 best i share fd
  local -a load=() fds=()
  local -A burden=()
  shift
  for ((i = 0; i < n; i++)); do load[i]=0; done
  for path in "$@"; do
    best=0
    for ((i = 1; i < n; i++)); do ((load[i] >= load[best])) || best=$i; done
    line=${STAT_OF[$path]-1}
    load[best]=$((load[best] + ${line%%|*} + 4096))
    burden[$best]+=$path$'\n'
  done
  for ((i = 0; i < n; i++)); do
    IFS=$'\n' read -r -d '' -a share <<<"${burden[$i]-}" || :
    exec {fd}< <(hash_share ${share[@]+"${share[@]}"})
    fds+=("$fd")
  done
  for fd in "${fds[@]}"; do
    read_sums <&"$fd"
    exec {fd}<&-
  done
}

# lib/envspec.bash: which environment a cell ran in, as eight digits that differ when it differs (X9).
# needs: exit log file hash hashes run
# reads: PY D

# A sorted description: the interpreter, its version, each installed package with its version, and the GPU driver. Into REPLY;
# into ENV_FOLDERS where the interpreter looks for packages. What cannot be asked is said so; a hanging interpreter is left
# after 60 s.
describe_environment() {
  local said=''
  [[ -n ${DESCRIBE_FD-} ]] || begin_describing
  IFS= read -r -d '' said <&"$DESCRIBE_FD" || :
  exec {DESCRIBE_FD}<&-
  DESCRIBE_FD=''
  [[ $said == *$'\n' ]] || said="no answer from PY=$PY"
  said=${said%$'\n'}
  ENV_FOLDERS=''
  # shellcheck disable=SC2034 # preflight has no use for them
  [[ $said != *$'\n'* ]] || ENV_FOLDERS=${said#*$'\n'}
  gpu_driver
  REPLY="${said%%$'\n'*}"$'\n'"driver $REPLY"$'\n'
}
# The interpreter is asked beside us, while something else is done.
begin_describing() { # sets DESCRIBE_FD
  local run=()
  if command -v timeout >/dev/null 2>&1; then run=(timeout 60); fi
  # By the names of the folders that installers write: to read every package's metadata takes seconds on a network disk.
  exec {DESCRIBE_FD}< <(said=$(${run[@]+"${run[@]}"} "$PY" -c 'import json, os, sys
paths = [p for p in sys.path if p.startswith("/")]
found = {e.rpartition(".")[0] for p in paths if os.path.isdir(p) for e in os.listdir(p) if e.endswith((".dist-info", ".egg-info"))}
version = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps({"packages": sorted(found), "python": version, "where": sys.prefix}, sort_keys=True))
print("\n".join(paths))' </dev/null 2>/dev/null) && printf '%s\n' "$said")
}
gpu_driver() { # into REPLY
  REPLY=none
  { IFS= read -r REPLY </proc/driver/nvidia/version; } 2>/dev/null || :
}

# lib/smoked.bash: what a formal run believes of the smoke and of the drill, and the measures that it takes from them.
# needs: exit log file record proc hash hashes run envspec states
# reads: D SELF_DIR CODE_DIR PY GIT_HEAD BOX_DIGEST

# What was measured, empty where it was not: of the trial M_SECONDS M_STEPS M_STEP_MS; of one checkpoint M_CKPT (bytes) and
# M_SAVE (seconds); of a cell M_BYTES M_FILES M_PEAK, and M_CELL_S with where that comes from in M_CELL_FROM.
forget_measures() {
  M_SECONDS='' M_STEPS='' M_STEP_MS='' M_CKPT='' M_SAVE='' M_BYTES='' M_FILES='' M_PEAK='' M_CELL_S='' M_CELL_FROM=''
}

# A figure that is none, or that no machine has, counts as not measured.
check_measures() {
  local name
  for name in M_SECONDS M_STEPS M_STEP_MS M_CKPT M_SAVE M_BYTES M_FILES M_PEAK; do
    [[ ${!name} =~ ^(0|[1-9][0-9]{0,14})$ ]] || printf -v "$name" ''
  done
}

# Was it made here: on this machine, with this code directory, this interpreter and its packages?
smoke_here() { # reads: R_* of the smoke's record    refuses 77
  local REPLY py
  this_host
  [[ ${R_host-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file was made on ${R_host:-another machine}, this is $REPLY" "$again"
  record_fit "$CODE_DIR"
  [[ ${R_code_dir-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file is of the code in ${R_code_dir:-another folder}, CODE_DIR is $CODE_DIR" "$again"
  py=$(type -P "$PY") || py=''
  record_fit "$py"
  [[ ${R_py-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file was made with ${R_py:-another interpreter}, PY is $py" "$again"
  describe_environment
  hash_text "$REPLY" || return
  [[ ${R_env_spec-} == "${REPLY:0:8}" ]] || refuse "$EX_GATE" "smoke" "packages, interpreter or driver of $py changed after it ($file: ${R_env_spec:-none}, now ${REPLY:0:8})" "$again"
}

# Is the text still the one over which its last line has the digest?
whole_record() { # <file>
  local REPLY text sum=${R_self_sha256-}
  read_text "$1" || return 1
  text=${REPLY%,$'\n''  "self_sha256": "'*}
  [[ $REPLY == "$text,"$'\n''  "self_sha256": "'"$sum"'"'$'\n''}'$'\n' ]] && hash_text "$text" && [[ $REPLY == "$sum" ]]
}

# The smoke of this box, of this commit and these scripts: passed with proof, or waived by somebody for a reason.
gate_smoke() {
  local rc=0 file=$D/smoke.json again="bash $SELF_DIR/smoke.sh"
  forget_measures
  read_record "$file" smoke/1 || rc=$?
  ((rc != 1)) || refuse "$EX_GATE" "smoke" "there is no $file" "$again; or a waiver in writing: smoke.sh --waive WHO=WHY"
  ((rc == 0)) || refuse "$EX_GATE" "smoke" "$file is not a whole record" "$again"
  [[ ${R_where-} == box ]] || refuse "$EX_GATE" "smoke" "$file is of '${R_where-}', not of this box" "$again"
  [[ ${R_commit-} == "$GIT_HEAD" ]] || refuse "$EX_GATE" "smoke" "$file is of commit ${R_commit:-none}, the code is at $GIT_HEAD" "$again"
  [[ ${R_box_digest-} == "$BOX_DIGEST" ]] || refuse "$EX_GATE" "smoke" "$file is of other scripts (queue.tsv is one) than those in $SELF_DIR" "$again"
  case ${R_result-} in
    passed)
      [[ ${R_exit-} == 0 && ${R_artifact_sha256-} =~ ^[0-9a-f]{64}$ ]] ||
        refuse "$EX_GATE" "smoke" "$file says passed without an artifact" "$again"
      smoke_here
      SMOKE_SAID="passed at ${R_ended-}"
      M_SECONDS=${R_seconds_s-} M_STEPS=${R_steps-} M_STEP_MS=${R_step_ms-} M_SAVE=${R_save_s-} M_PEAK=${R_peak_memory_bytes-}
      M_CKPT=${R_ckpt_bytes-} M_BYTES=${R_cell_bytes:-${R_ckpt_bytes-}} M_FILES=${R_cell_files-}
      check_measures
      ;;
    waived)
      [[ ${R_who-} == *[![:space:]]* && ${R_why-} == *[![:space:]]* && -n ${R_ended-} ]] || refuse "$EX_GATE" "smoke" "$file is a waiver without who and why, or when" "smoke.sh --waive WHO=WHY"
      SMOKE_SAID="WAIVED by $R_who at ${R_ended-}: $R_why"
      ;;
    *) refuse "$EX_GATE" "smoke" "$file says '${R_result-}': ${R_why-}" "mend it, then $again" ;;
  esac
  whole_record "$file" || refuse "$EX_GATE" "smoke" "$file was changed after it was written" "$again; or a waiver in writing: smoke.sh --waive WHO=WHY"
}

# The resume drill opens and shuts nothing: one that failed has left a smoke that failed. Its word is shown, and where it was
# made with a cell, that cell's steps tell how long one takes. Sets DRILL_SAID.
read_drill() {
  local rc=0
  read_record "$D/drill.json" drill/1 || rc=$?
  if ((rc != 0)); then
    DRILL_SAID="none was made here: smoke.sh --resume shows that a killed cell goes on"
    return 0
  fi
  DRILL_SAID="${R_result-} at ${R_ended-} with ${R_cell-}: killed at ${R_killed-}, went on at ${R_resumed-}"
  if [[ ${R_commit-} != "$GIT_HEAD" || ${R_box_digest-} != "$BOX_DIGEST" || ${R_where-} != box ]]; then
    DRILL_SAID="of another commit or other scripts ($DRILL_SAID)"
  elif [[ ${R_cell-} != smoke && ${R_step_ms-} =~ ^[1-9][0-9]{0,8}$ && ${R_steps_total-} =~ ^[1-9][0-9]{0,8}$ ]]; then
    M_CELL_S=$((R_step_ms * R_steps_total / 1000 + 1)) M_CELL_FROM="$R_steps_total steps of $R_step_ms ms, as the drill saw cell $R_cell"
  fi
}

# What cells of this run took that are done says more than any trial.
read_done() {
  local peak
  cells_took
  ((DONE_N > 0)) || return 0
  M_CELL_S=$(((DONE_S + DONE_N - 1) / DONE_N)) M_CELL_FROM="the mean of $DONE_N cells of this run that are done"
  peak=$(find "$D/state" -maxdepth 1 -name '*.json' ! -name '.*' -exec sed -n 's/^  "peak_memory_bytes": \([0-9]*\),$/\1/p' {} + 2>/dev/null | sort -n | tail -n 1) || peak=''
  [[ -z $peak || (-n $M_PEAK && $M_PEAK -ge $peak) ]] || M_PEAK=$peak
}

# lib/data.bash: declared data: counted, weighed, compared with declared digests (X7); and whether two paths share a disk.
# needs: exit log room proc hash hashes
# reads: D CODE_DIR HF_HOME DATA_PATHS DATA_FILES DATA_SIZES DATA_SUMS DATA_LISTS DATA_UNDER MIRRORS

# Where declared data lie, into REPLY.
data_place() { # <index>
  local base=$CODE_DIR path=${DATA_PATHS[$1]%/}
  if [[ ${DATA_UNDER[$1]-} == hf_home ]]; then
    [[ -n ${HF_HOME-} ]] || refuse "$EX_CONFIG" "data $path" "it is declared under HF_HOME, which is empty here" "set HF_HOME to the folder that the hub's library uses"
    base=$HF_HOME
  fi
  REPLY=$base/$path
  [[ $path != /* ]] || REPLY=$path
}

# How to get them again, into REPLY. What came through a mirror may be another revision.
data_remedy() { # <index>
  if [[ ${DATA_UNDER[$1]-} != hf_home ]]; then
    REPLY='send it again (P1.5 in the runbook; push.sh --data where there is ssh), or correct the job'
  elif [[ -n ${MIRRORS[*]-} ]]; then
    REPLY="remove it and fetch the revision again, without the mirror (${MIRRORS[*]}) where that goes on, or correct the job"
  else
    REPLY='remove it and fetch the revision again, or correct the job'
  fi
}

# Compare declared data with its declared size and digests. The digests are read once: a receipt with size, inode and times of
# each file stands for them until one of these changes, then for the others; and another box reads all. HOW is now; look,
# which leaves no receipt; or known: then files that no receipt stands for are not read. Sets PROOF_SAID; where it does not hold
# PROOF_WHAT and PROOF_WHY.
prove_data() { # <index> <now|look|known>    returns: 0, 1 it does not hold, 2 not compared yet (known only)
  local REPLY place head list=''
  PROOF_SAID='' PROOF_WHAT='' PROOF_WHY=''
  data_place "$1"
  place=$REPLY
  PROOF_WHAT="data $place" PROOF_PATHS=() PROOF_SUMS=() PROOF_AT=() PROOF_TODO=()
  if [[ -n ${DATA_LISTS[$1]} ]]; then
    list=$CODE_DIR/${DATA_LISTS[$1]}
    [[ ${DATA_UNDER[$1]-} != hf_home || -e $list ]] || list=$HF_HOME/${DATA_LISTS[$1]}
  elif [[ -z ${DATA_SUMS[$1]} ]]; then
    prove_size "$1" "$place"
    return
  fi
  this_host
  head="data/2|$REPLY|${DATA_FILES[$1]}|${DATA_SIZES[$1]}|${DATA_SUMS[$1]}|$list|$place"
  read_receipt "$D/data/$1.proof" "$head"
  if ((${#KNOWN_PATHS[@]} > 0)) && still_known; then
    PROOF_SAID="digests as compared before"
    return 0
  fi
  prove_slowly "$1" "$place" "$list" "$2" || return
  PROOF_SAID="${#PROOF_TODO[@]} of ${#PROOF_PATHS[@]} digests compared, the others as before"
  [[ $2 == now ]] || return 0
  # Without it the next one reads them again.
  write_receipt "$D/data/$1.proof" "$head" "$list" || log "could not write $D/data/$1.proof"
}

# File by file: what is wrong is to be named, and only what no receipt stands for is read.
prove_slowly() { # <index> <place> <list or empty> <how>    returns: as prove_data
  local i known
  local -A before=()
  if [[ -n $3 ]]; then
    read_data_list "$1" "$2" "$3" || return 1
  else
    [[ -f $2 ]] || { PROOF_WHY='it is not there, or no file' && return 1; }
    PROOF_PATHS=("$2") PROOF_SUMS=("${DATA_SUMS[$1]}") PROOF_AT=("the job's sha256")
  fi
  stat_data "$1" "$2" "$3" || return 1
  for ((i = 0; i < ${#KNOWN_PATHS[@]}; i++)); do before[${KNOWN_PATHS[i]}]="${KNOWN_SUMS[i]} ${KNOWN_STATS[i]}"; done
  for ((i = 0; i < ${#PROOF_PATHS[@]}; i++)); do
    known=${before[${PROOF_PATHS[i]}]-}
    [[ $known == "${PROOF_SUMS[i]} ${STAT_OF[${PROOF_PATHS[i]}]}" ]] || PROOF_TODO+=("$i")
  done
  ((${#PROOF_TODO[@]} > 0)) || return 0
  [[ $4 != known ]] || return 2
  hash_data
}

# A receipt: the head, how many files, their names, what stat said of each, their digests, "end". The list is one of the files.
# One that is not whole, of other words or of another box, is none.
read_receipt() { # <file> <head>    sets KNOWN_PATHS KNOWN_STATS KNOWN_SUMS
  local -a lines=()
  local n
  KNOWN_PATHS=() KNOWN_STATS=() KNOWN_SUMS=()
  [[ -f $1 ]] && { mapfile -t lines <"$1"; } 2>/dev/null || return 0
  n=${lines[1]-}
  [[ ${lines[0]-} == "$2" && $n =~ ^[0-9]+$ ]] && ((${#lines[@]} == 3 * n + 3)) && [[ ${lines[3 * n + 2]} == end ]] || return 0
  KNOWN_PATHS=("${lines[@]:2:n}") KNOWN_STATS=("${lines[@]:2+n:n}") KNOWN_SUMS=("${lines[@]:2+2*n:n}")
}
write_receipt() { # <file> <head> <list or empty>    reads: PROOF_… STAT_OF
  local i
  local -a stats=()
  [[ -z $3 ]] || PROOF_PATHS+=("$3") PROOF_SUMS+=('-')
  for ((i = 0; i < ${#PROOF_PATHS[@]}; i++)); do stats+=("${STAT_OF[${PROOF_PATHS[i]}]-}"); done
  [[ -f $1 || ! -e $1 ]] && { mkdir -p -- "${1%/*}" && printf '%s\n' "$2" "${#PROOF_PATHS[@]}" "${PROOF_PATHS[@]}" "${stats[@]}" "${PROOF_SUMS[@]}" end >"$1"; } 2>/dev/null
}

# Does stat say of all of them what it said then? One text against another, for there may be a hundred thousand.
still_known() {
  local i now='' once
  printf -v once '%s\n' "${KNOWN_STATS[@]}"
  for ((i = 0; i < ${#KNOWN_PATHS[@]}; i += 500)); do
    now+=$(TZ=UTC0 exec stat -L -c '%s|%i|%y|%z' -- "${KNOWN_PATHS[@]:i:500}" 2>/dev/null)$'\n' || return 1
  done
  [[ $now == "$once" ]]
}

# The manifest's lines. A line that is none, a name twice, or one that leads outside makes the whole list worth nothing.
read_data_list() { # <index> <place> <list>
  local list=$3 line name n=0
  local -A seen=()
  PROOF_WHAT="manifest $list"
  [[ -f $list && -r $list ]] || { PROOF_WHY='it is not there, or cannot be read' && return 1; }
  while IFS= read -r line || [[ -n $line ]]; do
    n=$((n + 1)) line=${line%$'\r'}
    [[ -n $line && $line != '#'* ]] || continue
    PROOF_WHY="line $n is not 64 hex digits, two characters and a name below ${DATA_PATHS[$1]}"
    [[ $line =~ ^[0-9a-f]{64}\ [\ *](.+)$ ]] || return 1
    name=${BASH_REMATCH[1]#./}
    case /$name/ in *[[:cntrl:]\\]* | */../* | */./* | *//*) return 1 ;; esac
    [[ -z ${seen[$name]-} ]] || { PROOF_WHY="line $n names $name, as line ${seen[$name]} does" && return 1; }
    seen[$name]=$n
    PROOF_PATHS+=("$2/$name") PROOF_SUMS+=("${line:0:64}") PROOF_AT+=("$list:$n")
  done <"$list"
  PROOF_WHY="it lists ${#PROOF_PATHS[@]} files, the job says ${DATA_FILES[$1]}"
  [[ ${#PROOF_PATHS[@]} == "${DATA_FILES[$1]}" ]] || return 1
  PROOF_WHY=''
}

# Are all there, and as heavy as the job says? Sets STAT_OF, of the list too.
stat_data() { # <index> <place> <list or empty>
  local path i bytes=0
  stat_many ${3:+"$3"} "${PROOF_PATHS[@]}"
  for ((i = 0; i < ${#PROOF_PATHS[@]}; i++)); do
    path=${PROOF_PATHS[i]}
    [[ -n ${STAT_OF[$path]-} ]] || { PROOF_WHAT="data $path" PROOF_WHY="it is not there, and ${PROOF_AT[i]} names it" && return 1; }
    bytes=$((bytes + ${STAT_OF[$path]%%|*}))
  done
  # shellcheck disable=SC2034 # only preflight asks how much it is
  PROOF_BYTES=$bytes
  PROOF_WHAT="data $2"
  PROOF_WHY="it has $bytes bytes, the job expects ${DATA_SIZES[$1]}"
  [[ -z ${DATA_SIZES[$1]} || ${DATA_SIZES[$1]} == "$bytes" ]] || return 1
  PROOF_WHY=''
}

# Read those of PROOF_TODO and compare.
hash_data() {
  local i found bad=0
  local -a paths=()
  for i in "${PROOF_TODO[@]}"; do paths+=("${PROOF_PATHS[i]}"); done
  hash_many "${paths[@]}" || :
  for i in "${PROOF_TODO[@]}"; do
    found=${SUM_OF[${PROOF_PATHS[i]}]-}
    [[ $found != "${PROOF_SUMS[i]}" ]] || continue
    bad=$((bad + 1))
    ((bad == 1)) || continue
    PROOF_WHAT="data ${PROOF_PATHS[i]}"
    PROOF_WHY="${PROOF_AT[i]} expects ${PROOF_SUMS[i]}, found ${found:-nothing: it cannot be read}"
  done
  ((bad == 0)) || PROOF_WHY+=" ($bad of ${#PROOF_PATHS[@]} files differ)"
  ((bad == 0))
}

# Size alone: of all files below, links followed.
prove_size() { # <index> <place>
  local sum
  [[ -n ${DATA_SIZES[$1]} ]] || return 0
  sum=$(find -L "$2" -type f -exec stat -L -c %s {} + 2>/dev/null | awk '{s += $1} END {printf "%.0f", s}') || sum='an unknown number of'
  PROOF_WHY="it has $sum bytes, the job expects ${DATA_SIZES[$1]}"
  [[ $sum == "${DATA_SIZES[$1]}" ]] || return 1
  # shellcheck disable=SC2034 # run_one does not say what holds
  PROOF_WHY='' PROOF_SAID="$sum bytes"
}

gate_proof() { # <index>    refuses 77
  local REPLY
  prove_data "$1" now && return 0
  data_remedy "$1"
  refuse "$EX_GATE" "$PROOF_WHAT" "$PROOF_WHY" "$REPLY"
}

# Do two paths lie on one file system? Where that cannot be told, yes: the careful answer for room.
same_disk() { # <path> <path>
  local one two
  existing_parent "$1"
  one=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  existing_parent "$2"
  two=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  [[ $one == "$two" ]]
}

# lib/gates.bash: what must hold before evidence is started; the first gate that does not hold ends it.
# needs: exit log path record hash room run queue roster states git data syntax smoked probe

# Setup, preflight, code, syntax, smoke, data, room: in this order, for a later gate means nothing on a broken base.
all_gates() { # <start: true or false>
  gate_setup
  gate_preflight
  gate_code "$1"
  gate_queue
  gate_syntax "$SELF_DIR"
  gate_smoke
  read_drill
  read_done
  gate_data
  gate_room
}

gate_setup() {
  local name
  for name in preflight.sh run_queue.sh aggregate_to_fs.sh; do
    [[ -f $SELF_DIR/$name ]] || refuse "$EX_MISSING" "$SELF_DIR/$name" "it is not beside $PROG" "copy the whole folder box/ again"
  done
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  box_digest "$SELF_DIR" || refuse "$EX_MISSING" "$SELF_DIR" "its files cannot be read" "copy the whole folder box/ again"
  BOX_DIGEST=$REPLY
}

# All that preflight.sh looks at, by itself: its first FAIL shuts the gate with its own code, command and remedy, its warnings
# are passed on, and its figures are the plan's. Sets CPUS RAM_FREE GPU_COUNT DETACH_WORKS and SAID_OF[check].
gate_preflight() {
  local said line rc=0 again="bash $SELF_DIR/preflight.sh"
  local row='^    \{"verdict": "([A-Za-z]+)", "check": "([^"]*)", "value": "([^"]*)"(, "command": "([^"]*)", "remedy": "([^"]*)")?\},?$'
  declare -gA SAID_OF=()
  CPUS=1 RAM_FREE='' GPU_COUNT='' DETACH_WORKS=''
  said=$(bash "$SELF_DIR/preflight.sh" --json) || rc=$?
  [[ $said == '{'$'\n''  "schema": "preflight/1"'*$'\n''}' ]] ||
    refuse "$((rc > 0 ? rc : EX_GATE))" "$again --json" "it ended with $rc and without its table" "$again, and see what it says"
  while IFS= read -r line; do
    if [[ $line =~ $row ]]; then
      SAID_OF[${BASH_REMATCH[2]}]+=${SAID_OF[${BASH_REMATCH[2]}]:+$'\n'}${BASH_REMATCH[3]}
      case ${BASH_REMATCH[1]} in
        FAIL) refuse "$((rc > 0 ? rc : EX_GATE))" "preflight, ${BASH_REMATCH[2]}${BASH_REMATCH[5]:+: ${BASH_REMATCH[5]}}" "${BASH_REMATCH[3]}" "${BASH_REMATCH[6]:-mend that, then: $again}" ;;
        warn | unknown) log "preflight: ${BASH_REMATCH[1]}: ${BASH_REMATCH[2]}: ${BASH_REMATCH[3]}" ;;
      esac
    elif [[ $line =~ ^\ \ \"(cpus|ram_free_bytes|gpus|detach)\":\ \"?([a-z0-9]*)\"?,$ ]]; then
      line=${BASH_REMATCH[2]#null}
      case ${BASH_REMATCH[1]} in
        cpus) CPUS=$line ;;
        ram_free_bytes) RAM_FREE=$line ;;
        gpus) GPU_COUNT=$line ;;
        detach) DETACH_WORKS=$line ;;
      esac
    fi
  done <<<"$said"
  ((rc == 0)) || refuse "$rc" "$again --json" "it ended with $rc" "$again, and see what it says"
}

gate_code() { # <start: true or false>
  local commit='' path protected=("$D" "$B" "$S")
  for path in ${DATA_PATHS[@]+"${DATA_PATHS[@]}"}; do protected+=("$CODE_DIR/$path"); done
  if find_run; then
    commit=$R_commit
    if [[ $R_formal != true ]]; then
      refuse "$EX_GATE" "run $R_run_id" "it was not begun by formal_run, so it is never evidence" "begin anew with RUN=$JOB.2"
    fi
  fi
  git_gate "$BRANCH" "$commit" "$1" "$([[ $1 == true ]] && printf '%s' "$STASH" || printf false)" "${protected[@]}"
  if [[ -n $commit && $commit != "$GIT_HEAD" ]]; then
    refuse "$EX_GATE" "run $R_run_id" "it is of commit $commit, and $GIT_TOP is at $GIT_HEAD" "check out $commit there, or begin anew with RUN=$JOB.2"
  fi
  CODE_COMMIT=$GIT_HEAD
}

# How many files there are preflight has counted; digests are compared once, against a receipt that stands until a file changes.
gate_data() { # reads: SAID_OF    sets DATA_SAID
  local i
  local -a rows=()
  DATA_SAID=()
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  [[ -z ${SAID_OF[data]-} ]] || mapfile -t rows <<<"${SAID_OF[data]}"
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    gate_proof "$i"
    DATA_SAID+=("${rows[i]-}${PROOF_SAID:+; $PROOF_SAID}")
  done
}

# The cells of this start, and how many of them are still to be done.
# As run_queue will see them: the run's roster and what the source has new, of this run's shard; --only names a part.
gate_queue() { # sets ROSTER_N CELL_NAMES CELL_STATES CELLS_DONE CELLS_LEFT, and QUEUE_NAMES QUEUE_COMMANDS
  local REPLY name DRY_QUEUE=1
  RUN_SHARD=${SHARD:-1/1} RUN_ID='' CELL_NAMES=() CELL_STATES=() CELLS_DONE=0
  declare -gA RECORD_OF=()
  if find_run; then
    RUN_ID=$R_run_id RUN_SHARD=$R_shard
    [[ -z $SHARD || $SHARD == "$RUN_SHARD" ]] ||
      refuse "$EX_GATE" "run $RUN_ID" "it is of shard $RUN_SHARD, not $SHARD" "give --shard $RUN_SHARD, or a RUN of its own to each box"
    read_states
  fi
  merge_queue
  ROSTER_N=${#QUEUE_NAMES[@]}
  for name in "${QUEUE_NAMES[@]}"; do
    in_part "$name" || continue
    state_now "$name"
    CELL_NAMES+=("$name") CELL_STATES+=("$REPLY")
    [[ $REPLY != 'done' ]] || CELLS_DONE=$((CELLS_DONE + 1))
  done
  CELLS_LEFT=$((${#CELL_NAMES[@]} - CELLS_DONE))
  for name in ${ONLY//,/ }; do
    [[ " ${CELL_NAMES[*]-} " == *" $name "* ]] ||
      refuse "$EX_CONFIG" "--only $name" "no cell of the queue has this name" "names: ${QUEUE_NAMES[*]:0:5} …"
  done
}
in_part() { # <cell>    returns: 0 where this start is about it
  [[ -z $ONLY || ,$ONLY, == *",$1,"* ]]
}

# Room for the cells that are left, with a tenth more, on each tier; once for both where they share a disk. A checkpoint
# that the smoke found larger than what the job says for a whole cell counts instead.
gate_room() {
  local REPLY bytes=$NEED_DISK_BYTES files both=1
  [[ -z $M_BYTES || $M_BYTES -le $bytes ]] || bytes=$M_BYTES
  bytes=$((bytes * CELLS_LEFT * 11 / 10)) files=$NEED_FILES
  [[ -z $M_FILES || $M_FILES -le $files ]] || files=$M_FILES
  files=$((files * CELLS_LEFT))
  ROOM_SAID=()
  if [[ $B != "$D" ]]; then
    if same_disk "$D" "$B"; then both=2; else gate_tier "$B" "$bytes" "$files" "$DURABLE_CAP_BYTES" "$DURABLE_CAP_INODES"; fi
  fi
  gate_tier "$D" $((bytes * both)) $((files * both)) "$DATA_CAP_BYTES" "$DATA_CAP_INODES"
}
gate_tier() { # <path> <bytes> <files> <cap bytes> <cap inodes>
  local have inodes need REPLY
  human "$2"
  need=$REPLY
  [[ -z $4 || $2 -le $4 ]] || refuse "$EX_NOROOM" "$1" "the cells need $need, and the tier's cap is $4 bytes" "take a larger tier, or fewer cells"
  [[ -z $5 || $3 -le $5 ]] || refuse "$EX_NOROOM" "$1" "the cells need $3 files, and the tier's cap is $5" "pack the output into fewer files"
  free_bytes "$1" || :
  have=$REPLY
  free_inodes "$1" || :
  inodes=$REPLY
  [[ -z $have || $have -ge $2 ]] || refuse "$EX_NOROOM" "df $1" "$have bytes are free, the cells that are left need $2" "free room there, or set needs.disk_gb in the job to what the smoke measured"
  [[ -z $inodes || $inodes -ge $3 ]] || refuse "$EX_NOROOM" "df -i $1" "$inodes inodes are free, the cells that are left need $3" "remove small files there, or set needs.files in the job"
  human "$have"
  ROOM_SAID+=("$1: needs $need in $3 files, free $REPLY and ${inodes:-an unknown number of} inodes")
}

# lib/plan.bash: the plan that a formal run prints before it starts, from what the gates have read.
# needs: exit log file hash probe git

print_plan() { # reads what gates.bash has set
  local REPLY slots=${SLOTS:-1} line name n=0 ids
  if [[ -n ${GPUS-} ]]; then
    IFS=, read -ra ids <<<"$GPUS"
    # As run_queue counts: a cell takes as many entries as it needs GPUs.
    slots=$((${#ids[@]} / (NEED_GPUS > 0 ? NEED_GPUS : 1)))
    ((slots > 0)) || slots=1
  fi
  printf 'plan for run %s (%s x %s)\n' "$RUN" "$PROFILE" "$JOB"
  printf '  code      %s at %s, branch %s\n' "$GIT_TOP" "$GIT_HEAD" "${GIT_BRANCH:-none}"
  ! git_ask log -1 --format='  commit    %h %ci %s' || printf '%s\n' "$REPLY"
  printf '  syntax    %s\n' "$SYNTAX_SAID"
  printf '  smoke     %s\n' "$SMOKE_SAID"
  printf '  drill     %s\n' "$DRILL_SAID"
  plan_measured
  printf '  cells     %s, of which done %s, to do %s\n' "${#CELL_NAMES[@]}" "$CELLS_DONE" "$CELLS_LEFT"
  [[ -z $ONLY ]] || printf '            a part only: %s of the %s cells of the roster; the proof will be of these and will say so\n' "${#CELL_NAMES[@]}" "$ROSTER_N"
  for name in "${CELL_NAMES[@]}"; do
    ((n++ < 10)) || break
    printf '              %s\n' "$name"
  done
  ((${#CELL_NAMES[@]} <= 10)) || printf '              … and %s more\n' $((${#CELL_NAMES[@]} - 10))
  printf '  outputs   %s/cells/<cell>, results in %s/final_ckpts/<cell>\n' "$D" "$B"
  [[ -n $DURABLE_DIR ]] || printf '            pull-only: nothing here outlives the box; results must be pulled first\n'
  for line in "${ROOM_SAID[@]}"; do printf '  disk      %s\n' "$line"; done
  for line in ${DATA_SAID[@]+"${DATA_SAID[@]}"}; do printf '  data      %s\n' "$line"; done
  ((${#DATA_PATHS[@]} > 0)) || printf '  data      the job declares none\n'
  plan_resources "$slots"
  plan_time "$slots"
  [[ ${F_POWER-} != true ]] || printf '  power     off after success: %s\n' "${POWER_OFF_COMMAND[*]}"
}

# The time of what is left and its cost, from what a cell was measured to take; without that from the job's own word.
plan_time() { # <slots>    reads: M_CELL_S NEED_S CELLS_LEFT
  local REPLY rounds=$(((CELLS_LEFT + $1 - 1) / $1)) said=measured
  [[ -n $M_CELL_S ]] || said='declared, not measured'
  span_of $((rounds * ${M_CELL_S:-$NEED_S}))
  printf '  time      about %s for what is left, %s at a time (%s)\n' "$REPLY" "$1" "$said"
  [[ ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]] || return 0
  awk -v s="$((rounds * ${M_CELL_S:-$NEED_S}))" -v p="$PRICE_PER_HOUR" -v said="$said" \
    'BEGIN {printf "  cost      about %.2f at %s per hour (%s)\n", s / 3600 * p, p, said}'
}
span_of() { # <seconds>    into REPLY
  if (($1 >= 7200)); then REPLY="$(($1 / 3600)) h $(($1 % 3600 / 60)) min"; elif (($1 >= 120)); then REPLY="$((($1 + 30) / 60)) min"; else REPLY="$1 s"; fi
}
bytes_of() { # <bytes>    into REPLY
  human "$1"
}

# One figure of a cell: what was measured, with what the job says beside it; a warning where they are more than twice apart.
plan_figure() { # <what> <measured or empty> <declared> <function that names it> <name in the job> <how it was measured>
  local REPLY declared apart=''
  "$4" "$3"
  declared=$REPLY
  if [[ -z $2 ]]; then
    printf '    %-8s %s, declared, not measured%s\n' "$1" "$declared" "${6:+ ($6)}"
    return 0
  fi
  "$4" "$2"
  if (($2 > 2 * $3)); then apart='more than twice what'; elif (($3 > 2 * $2)); then apart='less than half of what'; fi
  printf '    %-8s %s, measured (%s); the job: %s\n' "$1" "$REPLY" "$6" "$declared"
  [[ -z $apart ]] || log "warning: $1 of a cell: $REPLY was measured, $apart $5 in the job says ($declared); correct it there, or leave it if other cells need it"
}

# What was measured beside what the job says.
plan_measured() {
  local trial=''
  [[ -z $M_SECONDS ]] || trial="the smoke: $M_SECONDS s${M_STEPS:+ for $M_STEPS step(s)}${M_STEP_MS:+, $M_STEP_MS ms a step}"
  printf '  one cell\n'
  plan_figure time "$M_CELL_S" "$NEED_S" span_of needs.minutes "${M_CELL_FROM:-$trial}"
  plan_figure disk "$M_BYTES" "$NEED_DISK_BYTES" bytes_of needs.disk_gb "${M_CKPT:+the smoke, with a checkpoint of $M_CKPT bytes}"
  plan_figure memory "$M_PEAK" "$NEED_RAM_BYTES" bytes_of needs.ram_gb "${M_PEAK:+the most that the smoke or a cell held}"
  plan_figure saving "$M_SAVE" "$SAVE_S" span_of save_s "${M_SAVE:+one checkpoint to the data tier}"
  [[ -z $M_SAVE || $M_SAVE -le $SAVE_S ]] || log "warning: saving took $M_SAVE s, save_s says $SAVE_S: a stopped cell may be killed while it saves"
}

# What this start will produce, written down before it runs: a line a cell, with its output and what must lie there. The
# proof at the end is held to it (F5 F6).
write_plan() { # reads what gates.bash has set, F_START    writes: D/plans/<start id>.tsv
  local REPLY file=$D/plans/$F_START.tsv text name state i n=0
  text="# run $RUN_ID start $F_START commit $RUN_COMMIT cells ${#CELL_NAMES[@]} done $CELLS_DONE to do $CELLS_LEFT"
  [[ -z $ONLY ]] || text+=", a part: the roster has $ROSTER_N"
  text+=$'\n'
  for name in ${GIT_SUBMODULES[@]+"${GIT_SUBMODULES[@]}"}; do text+="# submodule $name"$'\n'; done
  text+="# smoke ${SMOKE_SAID//[[:cntrl:]]/ }"$'\n'
  for ((i = 0; i < ${#CELL_NAMES[@]}; i++)); do
    name=${CELL_NAMES[i]} state='to do'
    [[ ${CELL_STATES[i]} != 'done' ]] || state='done'
    text+="$name"$'\t'"$state"$'\t'"$B/final_ckpts/$name"$'\t'"${REQUIRED[*]-}"$'\n'
  done
  if ! mkdir -p -- "$D/plans" || ! replace_file "$file" "$text"; then
    refuse "$EX_NOROOM" "$file" "the plan cannot be written" "look at the data tier: room, rights"
  fi
  while IFS= read -r name; do
    [[ $name == '#'* ]] || n=$((n + 1))
  done <"$file"
  ((n == ${#CELL_NAMES[@]})) || refuse "$EX_COPY" "$file" "it holds $n cells, the queue ${#CELL_NAMES[@]}" "look at the data tier"
  hash_file "$file" || refuse "$EX_COPY" "$file" "it cannot be read back" "look at the data tier"
  [[ $SMOKE_SAID != WAIVED* ]] || event waiver - - "smoke $SMOKE_SAID"
  event plan - - "$n cells, $CELLS_DONE done, $CELLS_LEFT to do, sha256 $REPLY"
  log "plan of $n cells: $file ($REPLY)"
}

# Is each cell of the plan in the roster that the manifest was held to?    reads: QUEUE_NAMES
plan_in_roster() { # <plan>    returns: 0, or 65 with the reason in REPLY
  local name rest n=0
  local -A have=()
  for name in "${QUEUE_NAMES[@]}"; do have[$name]=1; done
  [[ -s $1 ]] || { REPLY="the plan $1 is gone" && return "$EX_INTEGRITY"; }
  while IFS=$'\t' read -r name rest; do
    [[ $name != '#'* ]] || continue
    [[ -n ${have[$name]-} ]] || { REPLY="cell $name of the plan $1 is not in the roster" && return "$EX_INTEGRITY"; }
    n=$((n + 1))
  done <"$1"
  ((n > 0)) || { REPLY="the plan $1 names no cell" && return "$EX_INTEGRITY"; }
}

# What preflight has read, and what so many cells side by side want of it.
plan_resources() { # <slots>    reads: CPUS RAM_FREE GPU_COUNT SAID_OF
  local REPLY need=$NEED_RAM_BYTES
  [[ -z $M_PEAK || $M_PEAK -le $need ]] || need=$M_PEAK
  recommend "$1" "$need"
  printf '  cpu       %s\n' "${SAID_OF[cpu]-}"
  human $((need * $1))
  printf '  ram       %s; %s at a time: %s\n' "${SAID_OF[ram]-}" "$1" "$REPLY"
  [[ -z $RAM_FREE || $RAM_FREE -ge $((need * $1)) ]] || log "warning: $RAM_FREE bytes of memory are free, $1 cell(s) at a time need $REPLY"
  printf '  gpu       %s\n' "${SAID_OF[gpus]-}"
  [[ -n ${GPUS-} || -z $GPU_COUNT || $GPU_COUNT -ge $((NEED_GPUS * $1)) ]] || log "warning: $GPU_COUNT GPUs here, $1 cell(s) at a time need $((NEED_GPUS * $1))"
  printf '  threads   recommended for each cell: %s loader worker(s), %s thread(s)\n' "$WORKERS" "$THREADS"
}

# lib/tree.bash: a process and all that came from it, by identity: number and start time.
# needs: proc

# TREE_IDS ("pid ticks", parents first) and TREE_LINES for people, from ROOT down. Empty where ROOT is gone.
process_tree() { # <root pid>
  local dir pid stat fields next=("$1") more
  local -A kids=() ticks=() comm=()
  TREE_IDS=() TREE_LINES=()
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/}
    { IFS= read -r stat <"$dir/stat"; } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[0]-} != [ZX] ]] || continue
    kids[${fields[1]}]+=" $pid"
    ticks[$pid]=${fields[19]-0}
    stat=${stat#*(}
    comm[$pid]="parent ${fields[1]}, ${stat%)*}"
  done
  while ((${#next[@]} > 0)); do
    more=()
    for pid in "${next[@]}"; do
      [[ -n ${ticks[$pid]-} ]] || continue
      TREE_IDS+=("$pid ${ticks[$pid]}")
      TREE_LINES+=("process $pid, ${comm[$pid]}")
      # shellcheck disable=SC2206 # numbers with blanks between
      more+=(${kids[$pid]-})
    done
    next=(${more[@]+"${more[@]}"})
  done
}

# Those of the tree that stand still (SIGSTOP, Ctrl-Z), into TREE_STILL: they act on no signal until they are told to go on.
find_still() {
  local id stat
  TREE_STILL=()
  for id in ${TREE_IDS[@]+"${TREE_IDS[@]}"}; do
    { IFS= read -r stat <"/proc/${id% *}/stat"; } 2>/dev/null || continue
    if [[ ${stat##*) } == T\ * ]] && same_process "${id% *}" "${id#* }"; then TREE_STILL+=("${id% *}"); fi
  done
}
wake_tree() {
  find_still
  ((${#TREE_STILL[@]} == 0)) || kill -CONT "${TREE_STILL[@]}" 2>/dev/null || :
}

# Is any process of the tree still there? TREE_LEFT holds those that are.
tree_alive() {
  local id
  TREE_LEFT=()
  for id in ${TREE_IDS[@]+"${TREE_IDS[@]}"}; do
    ! same_process "${id% *}" "${id#* }" || TREE_LEFT+=("$id")
  done
  ((${#TREE_LEFT[@]} > 0))
}

# lib/carry.bash: small files of the run that have to come home beside the bundle.
# needs: exit log file
# reads: D B

# What RUN_FACTS.md tells besides the records (S92): the events with their overrides, the roster, what failed (X4). Only what
# lies in B comes home, so they are copied there, once more each time. Lines that another box left there stay.
carry_logs() {
  local REPLY name text
  [[ $B != "$D" ]] || return 0
  for name in events.tsv queue.tsv NEGATIVE_RESULTS.tsv; do
    if no_file "$D/$name"; then
      log "$D/$name is $REPLY: it does not come home with the results"
      continue
    fi
    [[ -s $D/$name ]] || continue
    text=$(cat -- "$D/$name") || return
    if [[ -s $B/$name ]]; then text=$(awk '!seen[$0]++' "$B/$name" "$D/$name") || return; fi
    [[ -s $B/$name && $(<"$B/$name") == "$text" ]] || replace_file "$B/$name" "$text"$'\n' || return
  done
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

# lib/detached.bash: the part of a formal run that goes on without the shell that started it.
# needs: exit log file record proc run queue git detach formal plan carry negative

# First half: the session's environment goes, the person's comes, and the log is ours from the first line.
do_enter() { # <private folder> <start id>
  local dir=$1 start=$2 d session socket name
  { [[ -f $dir/env && -O $dir/env && ! -L $dir ]] && {
    IFS= read -r d && IFS= read -r session && IFS= read -r socket && IFS= read -r name
  } <"$dir/where"; } 2>/dev/null ||
    refuse "$EX_GATE" "the detached part" "no start has made this session" "use: $PROG start"
  detach_inside "$session" "$socket" "$name" ||
    refuse "$EX_GATE" "the detached part" "this is not the session $name that start made" "use: $PROG start"
  # A multiplexer that is killed must not take the run with it; the run has its own record of who it is.
  trap '' HUP
  # Standard input stays the session's terminal: a multiplexer ends a session that nobody holds open.
  exec >>"$d/formal.log" 2>&1
  cd -- "$d" || return
  detach_load_env "$dir/env" || refuse "$EX_GATE" "the detached part" "its environment cannot be read" "use: $PROG start"
  exec "$BASH" "${BASH_SOURCE[0]}" _run "$dir" "$start"
}

do_run() { # <private folder> <start id>
  local REPLY dir=$1 start=$2 taken=$1/taken word
  local -a words=()
  # Consumed by mkdir: the second half runs once, and only behind the first.
  if [[ ! -d $dir || ! -O $dir || -e $dir/env ]] || ! mkdir -- "$taken" 2>/dev/null; then
    refuse "$EX_GATE" "the detached part" "no start has made this session" "use: $PROG start"
  fi
  while IFS= read -r -d '' word; do words+=("$word"); done <"$dir/flags" || :
  if [[ ${words[*]: -1} != end ]] || ! parse_flags "${words[@]:0:${#words[@]}-1}"; then
    refuse "$EX_GATE" "the detached part" "the words of its start cannot be read" "use: $PROG start"
  fi
  self_dir
  run_places
  find_run || refuse "$EX_INTEGRITY" "$D/run.json" "it is gone" "use: $PROG start"
  RUN_ID=$R_run_id RUN_COMMIT=$R_commit
  judge_formal
  [[ $F_START == "$start" && $F_STATE == starting ]] ||
    refuse "$EX_GATE" "the detached part" "start ${F_START:-none} has taken over from $start" "use: $PROG status"
  start_ticks $$
  F_PID=$$ F_TICKS=$REPLY
  STAGE=heartbeat STEP="$PROG start" SUCCEEDED=0 STOP_SIGNAL='' SIGNALS=0 CHILD=''
  trap 'at_exit $?' EXIT
  trap 'on_signal TERM' TERM
  trap 'on_signal INT' INT
  trap 'on_signal USR1' USR1
  write_formal running '' || return
  event running - - "formal start $F_START commit $RUN_COMMIT"
  utc_now
  log "START $REPLY run $RUN_ID start $F_START commit $RUN_COMMIT in $F_SESSION"
  formal_body
}

# The frame that no edit can reorder: the queue, the code as it was, the aggregation, the proof, the record.
formal_body() {
  local REPLY cells
  run_step queue bash "$SELF_DIR/run_queue.sh" ${QUEUE_FLAGS[@]+"${QUEUE_FLAGS[@]}"} || return
  STAGE=code STEP="git status in $CODE_DIR"
  code_unchanged || return
  write_formal aggregating '' || return
  event aggregating - - ''
  run_step aggregate bash "$SELF_DIR/aggregate_to_fs.sh" ${ONLY:+--only "$ONLY"} || return
  STAGE=proof STEP="PULL_MANIFEST.json"
  cells=$(
    read_queue "$D/queue.tsv"
    plan_in_roster "$D/plans/$F_START.tsv" || { log "$REPLY" && exit "$EX_INTEGRITY"; }
    printf '%s' "${#QUEUE_NAMES[@]}"
  ) || return
  check_manifest "$cells" "$D/plans/$F_START.tsv" || { log "$REPLY" && return "$EX_INTEGRITY"; }
  write_success || return
  SUCCEEDED=1
  utc_now
  printf 'FORMAL_SUCCESS%s %s run %s start %s cells %s/%s manifest %s\n' "${M_PART:+ of a part ($M_PART cells)}" "$REPLY" "$RUN_ID" "$F_START" "$M_DONE" "$M_EXPECTED" "$M_DIGEST"
  write_formal success '' || return
  event success - - "$M_DONE of $M_EXPECTED cells${M_PART:+, the proof is of a part: $M_PART cells}"
  write_ready success || log "READY_TO_STOP cannot be written"
  [[ $F_POWER != true ]] || power_off
}

# A step as a child that we wait for: a trap in bash runs during wait, not during a foreground command.
run_step() { # <stage> <words...>
  local rc=0 seen
  STAGE=$1
  shift
  STEP=$*
  log "step $STAGE: $STEP"
  [[ -z $STOP_SIGNAL ]] || return 143
  "$@" </dev/null &
  CHILD=$!
  # A signal that came between the fork and this line has not reached it.
  [[ -z $STOP_SIGNAL ]] || kill -TERM "$CHILD" 2>/dev/null || :
  while :; do
    seen=$SIGNALS rc=0
    wait "$CHILD" || rc=$?
    # A signal ends the wait, also the second of its name: the cells may still be saving.
    [[ $seen == "$SIGNALS" ]] || continue
    break
  done
  CHILD=''
  log "step $STAGE ended with $rc"
  [[ -z $STOP_SIGNAL ]] || ((rc != 0)) || rc=143
  return "$rc"
}

on_signal() { # <signal>
  STOP_SIGNAL=$1 SIGNALS=$((SIGNALS + 1))
  log "signal $1: the cells may save, then the run ends"
  [[ -z $CHILD ]] || kill -TERM "$CHILD" 2>/dev/null || :
}

# The commit is still what it was and no tracked file was edited meanwhile.
code_unchanged() {
  local REPLY
  git_open
  git_exempt "$D" "$B" "$S"
  git_look || { log "git status failed in $GIT_TOP" && return "$EX_MISSING"; }
  if [[ $GIT_HEAD != "$RUN_COMMIT" || ${#GIT_DIRTY[@]} -gt 0 ]]; then
    git_list
    log "the code in $GIT_TOP was changed while the run was on (commit $GIT_HEAD, the run's is $RUN_COMMIT)"
    return "$EX_GATE"
  fi
  ((${#GIT_UNTRACKED[@]} == 0)) || { log "files appeared in $GIT_TOP during the run:" && git_list; }
}

# Whatever ends the detached part, its record says how. The machine stays on.
at_exit() { # <status>
  local rc=$1 why remedy
  trap - EXIT TERM INT USR1
  set +e
  rm -rf -- "/tmp/gr-${EUID}-$F_START"
  ((SUCCEEDED == 0)) || exit "$rc"
  ((rc != 0)) || rc=$EX_FAIL
  why="stage $STAGE ended with $rc"
  [[ -z $STOP_SIGNAL ]] || why="stopped by signal $STOP_SIGNAL in stage $STAGE"
  case $STAGE,$rc in
    "queue,$EX_BUSY") remedy="wait until the cells that other processes run are done (bash $SELF_DIR/status.sh), then: bash $SELF_DIR/$PROG start" ;;
    queue,*) remedy="bash $SELF_DIR/status.sh names the cells; mend them, then: bash $SELF_DIR/$PROG start" ;;
    "code,$EX_MISSING") remedy="whether the code is still the same could not be seen: make git work in $CODE_DIR; then: bash $SELF_DIR/$PROG start" ;;
    code,*) remedy="commit or undo the edit; results of this run are of mixed code: begin anew with RUN=$JOB.2" ;;
    aggregate,* | proof,*) remedy="bash $SELF_DIR/aggregate_to_fs.sh says what is missing; then: bash $SELF_DIR/$PROG start" ;;
    *) remedy="see $D/formal.log; then: bash $SELF_DIR/$PROG start" ;;
  esac
  [[ -z $STOP_SIGNAL ]] || remedy="bash $SELF_DIR/$PROG start continues it"
  # A proof that could be written and not be read back is none: start has moved every older one aside.
  [[ ! -e $B/FORMAL_SUCCESS ]] || mv -f -- "$B/FORMAL_SUCCESS" "$B/FORMAL_SUCCESS.$F_START.failed"
  log "FORMAL_FAILURE: $why; this machine is kept on; $remedy"
  write_failure "$STAGE" "$STEP" "$rc" "$remedy"
  write_formal failed "$why"
  event failed - - "$why"
  # Somebody's stop is no result, nor is a cell that another process has.
  [[ -n $STOP_SIGNAL || $rc == "$EX_BUSY" ]] || negative_line "$D/NEGATIVE_RESULTS.tsv" formal "$RUN_COMMIT" "$rc" "$SECONDS" "$why, start $F_START" "$STEP"
  carry_logs || log "the events could not be copied to $B"
  ! pack_failure || write_ready failed || :
  exit "$rc"
}

# Only behind FORMAL_SUCCESS. Being alive a minute later is a failure of its own, and is recorded: the meter runs.
power_off() {
  local REPLY rc=0 n=0
  success_holds "$F_START" || { log "no power-off: $REPLY" && return 0; }
  event power_off - - "${POWER_OFF_COMMAND[*]}"
  log "power-off: ${POWER_OFF_COMMAND[*]}"
  flush "$D/formal.log" "$B/FORMAL_SUCCESS"
  "${POWER_OFF_COMMAND[@]}" || rc=$?
  log "power-off: the command ended with $rc"
  ((rc != 0)) || while ((n++ < ${POWER_OFF_WAIT_S:-60})); do
    sleep 1 || :
    # A machine that goes down tells its processes first; how long that takes is its own affair.
    [[ -z $STOP_SIGNAL ]] || { log "power-off: the machine is going down" && return 0; }
  done
  write_failure power-off "${POWER_OFF_COMMAND[*]}" "$rc" "the machine is still alive and its meter runs: use teardown.sh from the laptop" || :
  write_formal success "power-off failed: the command ended with $rc and the machine is still alive" || :
}

readonly HEARTBEAT_S=60 # a detached run that has said nothing by then has failed

usage() {
  cat <<'USAGE'
usage: formal_run.sh plan   [--stash] [run_queue's flags]
       formal_run.sh start  [--power-off] [--stash] [run_queue's flags]
       formal_run.sh status | attach | stop

plan    looks at everything that start insists on, prints cells, outputs, resources, disk, data; starts nothing.
start   the same gates, then starts the queue detached from this shell (tmux, screen, or setsid), waits for its first
        heartbeat and returns. Gates: code clean, committed, on its branch and pushed; smoke passed here for this very
        commit and these scripts; data present; room on disk.
status  says running, aggregating, success, failed, stopped, lost or unknown, and why.
attach  shows the log of the run and follows it; leaving it with Ctrl-C stops nothing.
stop    shows the run's processes, ends them (checkpoints first), and records that it was stopped.

--power-off  after FORMAL_SUCCESS, and only then, switch this machine off; only where the profile knows a command
             that stops the meter. A failed run always keeps the machine.
--stash      put uncommitted work into a dated git stash first; refused where that would take data.
run_queue's flags: --queue FILE, --slots N, --gpus LIST, --shard I/N, --only CELL,…, --skip-failed, --adopt
With --only the proof is of these cells alone: it says that it is of a part, and so does status.

exit codes: 0 done (start: it runs, detached), 1 the run failed or was stopped, 64 usage, 65 a record does not match,
69 something is missing or not known, 73 no room, 74 the durable tier, 75 busy, 77 a gate refused, 78 configuration
USAGE
}

# --- the command line ---

# Flags into QUEUE_FLAGS and the few that matter here too.
parse_flags() {
  QUEUE_FLAGS=() F_POWER=false STASH=false SHARD='' ONLY='' ADOPT=false QUEUE_FILE='' SLOTS='' GPUS=''
  while (($#)); do
    case $1 in
      --power-off) F_POWER=true ;;
      --stash) STASH=true ;;
      --skip-failed) QUEUE_FLAGS+=("$1") ;;
      --adopt) ADOPT=true QUEUE_FLAGS+=("$1") ;;
      --queue | --slots | --gpus | --shard | --only)
        (($# > 1)) && [[ -n $2 ]] || return "$EX_USAGE"
        case $1 in
          --queue) QUEUE_FILE=$2 ;;
          --slots) SLOTS=$2 ;;
          --gpus) GPUS=$2 ;;
          --shard) SHARD=$2 ;;
          --only) ONLY=$2 ;;
        esac
        QUEUE_FLAGS+=("$1" "$2")
        shift
        ;;
      *) return "$EX_USAGE" ;;
    esac
    shift
  done
  [[ -z $SHARD ]] || { [[ $SHARD =~ ^([1-9][0-9]{0,5})/([1-9][0-9]{0,5})$ ]] && ((BASH_REMATCH[1] <= BASH_REMATCH[2])); } || return "$EX_USAGE"
  [[ -z $SLOTS || (-z $GPUS && $SLOTS =~ ^[1-9][0-9]{0,3}$) ]] || return "$EX_USAGE"
  [[ -z $GPUS || $GPUS =~ ^[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*$ ]] || return "$EX_USAGE"
}

# The queue will run from another folder than the one this was typed in.
absolute_queue() {
  local i
  [[ -n $QUEUE_FILE && $QUEUE_FILE != /* ]] || return 0
  QUEUE_FILE=$PWD/$QUEUE_FILE
  for ((i = 0; i < ${#QUEUE_FLAGS[@]}; i++)); do
    [[ ${QUEUE_FLAGS[i]} != --queue ]] || QUEUE_FLAGS[i + 1]=$QUEUE_FILE
  done
}

main() {
  local verb=${1-}
  (($# == 0)) || shift
  case $verb in
    -h | --help) usage && return 0 ;;
    plan | start)
      parse_flags "$@" || { usage >&2 && return "$EX_USAGE"; }
      absolute_queue
      ;;
    status | attach | stop) (($# == 0)) || { usage >&2 && return "$EX_USAGE"; } ;;
    _enter | _run) (($# == 2)) || { usage >&2 && return "$EX_USAGE"; } ;;
    *) usage >&2 && return "$EX_USAGE" ;;
  esac
  [[ -z ${FAKE_ROOT-} ]] || refuse "$EX_CONFIG" "FAKE_ROOT=$FAKE_ROOT" "a formal run looks at the real machine" "unset FAKE_ROOT"
  case $verb in
    plan) do_plan ;;
    start) do_start ;;
    status) do_status ;;
    attach) do_attach ;;
    stop) do_stop ;;
    _enter) do_enter "$@" ;;
    _run) do_run "$@" ;;
  esac
}

# --- plan and start ---

do_plan() {
  self_dir
  run_places asked
  all_gates false
  print_plan
  dry_run_queue
  printf 'plan: every gate is open; nothing was started\n'
}

do_start() {
  local REPLY
  self_dir
  detach_wanted
  [[ $F_POWER != true || ${#POWER_OFF_COMMAND[@]} -gt 0 ]] ||
    refuse "$EX_GATE" "--power-off" "the profile knows no command on this machine that stops the meter" "leave --power-off out, and use teardown.sh from the laptop afterwards"
  run_places asked
  prove_durable
  [[ -d $D ]] || mkdir -p -- "$D" 2>/dev/null || refuse_write "$EX_NOROOM" "$D" "the folder cannot be made" data
  ! no_file "$D/formal.log" || refuse "$EX_INTEGRITY" "$D/formal.log" "it is $REPLY, and a file of ours is to be there" "look at what made it, and move it away"
  { : >>"$D/formal.log"; } 2>/dev/null || refuse_write "$EX_NOROOM" "$D/formal.log" "it cannot be written" data
  all_gates true
  F_SESSION=$DETACH_WORKS
  [[ $F_SESSION == "$DETACH" ]] || log "falling back from $DETACH to $F_SESSION"
  open_run true "$SHARD" "$ADOPT"
  take_start
  refuse_live
  print_plan
  dry_run_queue
  launch
}

# Nothing of this run may be at work: not as recorded, not as a session that has no heartbeat yet.
refuse_live() {
  local session=$F_SESSION power=$F_POWER n=0 id REPLY # judging takes the earlier start's values
  judge_formal
  case $FORMAL_STATE in
    running | aggregating) refuse "$EX_BUSY" "start" "the formal run is $FORMAL_STATE (process $F_PID)" "bash $SELF_DIR/$PROG status, or stop" ;;
    unknown)
      [[ $ADOPT == true || ! -e $D/formal.json || $FORMAL_WHY != *'look there' ]] ||
        refuse "$EX_BUSY" "start" "$FORMAL_WHY" "if that box is gone for good, say --adopt"
      log "the earlier start is unknown: $FORMAL_WHY"
      ;;
  esac
  if [[ -n $F_SOCKET && $FORMAL_STATE != success ]] && detach_alive "$F_SESSION" "$F_SOCKET" "$F_NAME"; then
    refuse "$EX_BUSY" "start" "session $F_NAME ($F_SESSION) of the earlier start is still there" "bash $SELF_DIR/$PROG status looks, stop ends it"
  fi
  # A record may be unreadable, or say that all is over while its writer still packs the evidence.
  while live_detached; do
    ((n++ < 50)) || refuse "$EX_BUSY" "start" "something of this run is still at work (process $REPLY), and the record says $FORMAL_STATE" "wait for it, or look at it (ps -fp $REPLY) and end it: kill -TERM $REPLY"
    sleep 0.2 2>/dev/null || sleep 1
  done
  # What a killed start left behind goes, so that its detached part, should it come late, finds no environment.
  for id in "$F_START" "$EARLIER_START"; do
    if [[ $id =~ ^[0-9a-f]{8}$ && -O /tmp/gr-$EUID-$id ]]; then rm -rf -- "/tmp/gr-$EUID-$id"; fi
  done
  F_SESSION=$session F_POWER=$power
}

# What formal_run can start a run under, before anything is looked at; preflight then says what of it works here.
detach_wanted() {
  case $DETACH in
    tmux | screen | nohup) ;;
    *) refuse "$EX_MISSING" "DETACH=$DETACH" "formal_run does not start runs under $DETACH yet" "submit this line through it yourself: bash $SELF_DIR/run_queue.sh; or set DETACH=tmux, screen or nohup where this machine allows it" ;;
  esac
}

dry_run_queue() {
  local said
  said=$(bash "$SELF_DIR/run_queue.sh" --dry-run ${QUEUE_FLAGS[@]+"${QUEUE_FLAGS[@]}"} 2>&1) ||
    refuse "$EX_GATE" "run_queue.sh --dry-run" "it failed: ${said##*$'\n'}" "bash $SELF_DIR/run_queue.sh --dry-run ${QUEUE_FLAGS[*]-}"
  printf '%s\n' "$said"
}

# Start the detached part and wait until it has spoken.
launch() {
  local word REPLY
  F_START=$NEW_START F_NAME=gr_$NEW_START F_DIGEST=$BOX_DIGEST
  start_ticks $$
  F_PID=$$ F_TICKS=$REPLY
  detach_dir "$F_START" || refuse "$EX_COPY" "a private folder under /tmp" "it cannot be made" "look at /tmp: room, rights"
  F_SOCKET=''
  [[ $F_SESSION == nohup ]] || F_SOCKET=$DETACH_DIR/s
  move_old_aside
  write_plan
  write_formal starting '' || refuse "$EX_COPY" "$D/formal.json" "it cannot be written" "look at the data tier: room, rights"
  detach_save_env "$DETACH_DIR/env" || fail_launch "the environment file cannot be written" "look at /tmp: room, rights"
  # By file, for a multiplexer takes no long command line.
  { printf '%s\n' "$D" "$F_SESSION" "$F_SOCKET" "$F_NAME" >"$DETACH_DIR/where" &&
    for word in ${QUEUE_FLAGS[@]+"${QUEUE_FLAGS[@]}"} end; do printf '%s\0' "$word"; done >"$DETACH_DIR/flags"; } ||
    fail_launch "its words cannot be written" "look at /tmp: room, rights"
  detach_start "$F_SESSION" "$F_SOCKET" "$F_NAME" "$D/formal.log" \
    "$BASH" "$SELF_DIR/$PROG" _enter "$DETACH_DIR" "$F_START" ||
    fail_launch "$F_SESSION refused the session" "look at the end of $D/formal.log"
  await_heartbeat
  log "formal start $F_START asked for: job $JOB, ${#CELL_NAMES[@]} cells, commit $RUN_COMMIT, output in $D, results in $B"
  printf 'started: run %s, start %s, job %s at commit %s, %s cells\noutput: %s, results: %s\n%s session %s, process %s\nlog: %s\nlook: bash %s status\n' \
    "$RUN_ID" "$F_START" "$JOB" "$RUN_COMMIT" "${#CELL_NAMES[@]}" "$D" "$B" "$F_SESSION" "$F_NAME" "$F_PID" "$D/formal.log" "$SELF_DIR/$PROG"
}

# The detached part writes its own process into formal.json first thing. Silence, or a session that is gone, is a failure.
await_heartbeat() {
  local until=$((SECONDS + HEARTBEAT_S)) gone=0
  while ((SECONDS < until)); do
    if read_record "$D/formal.json" formal/1 "$RUN_ID" && [[ $R_start_id == "$F_START" && $R_state != starting ]]; then
      case $R_state in
        failed | stopped)
          tail -n 20 -- "$D/formal.log" >&2
          refuse "$EX_FAIL" "the detached run" "it $R_state at once: $R_why" "see $D/formal.log and $D/FORMAL_FAILURE.json"
          ;;
      esac
      F_PID=$R_pid
      return 0
    fi
    if [[ $F_SESSION == nohup ]]; then
      kill -0 "$DETACH_PID" 2>/dev/null || gone=$((gone + 1))
    else
      detach_alive "$F_SESSION" "$F_SOCKET" "$F_NAME" || [[ $? -eq 2 ]] || gone=$((gone + 1))
    fi
    ((gone < 20)) || { fail_launch "no heartbeat: the session is gone, and nothing had run in it" "look at the end of $D/formal.log, shown above" && return; }
    sleep 0.1 2>/dev/null || sleep 1
  done
  fail_launch "no heartbeat in $HEARTBEAT_S s: the session started and nothing ran in it" "look at the end of $D/formal.log, shown above"
}

fail_launch() { # <why> <what to do>
  # At the last moment it may have begun after all: then there is nothing to be sorry for.
  if ! bar_detached "$F_START" && await_begun; then
    log "it was late, and has begun now"
    F_PID=$R_pid
    return 0
  fi
  tail -n 20 -- "$D/formal.log" >&2
  rm -rf -- "${DETACH_DIR:?}"
  write_formal failed "$1" || :
  write_failure start "$F_SESSION" "$EX_FAIL" "$2" || :
  refuse "$EX_FAIL" "start by $F_SESSION" "$1" "$2"
}

# --- status, attach, stop ---

open_records() {
  self_dir
  run_places asked
  find_run || refuse "$EX_MISSING" "run $RUN" "there is no $D/run.json: nothing was started here" "bash $SELF_DIR/$PROG start"
  RUN_ID=$R_run_id RUN_COMMIT=$R_commit
  judge_formal
}

do_status() {
  local session="no session" file evidence=''
  open_records
  if [[ -n $F_SESSION ]]; then
    session="$F_SESSION session $F_NAME"
    if detach_alive "$F_SESSION" "$F_SOCKET" "$F_NAME"; then session+=" alive"; elif [[ $? -eq 1 ]]; then session+=" gone"; fi
  fi
  printf '%s: %s; run %s start %s; %s; process %s; since %s\n' "$FORMAL_STATE" "${FORMAL_WHY:-as recorded}" \
    "$RUN_ID" "${F_START:-none}" "$session" "${F_PID:-none}" "${F_SINCE:-not known}"
  case $FORMAL_STATE in
    starting | running | aggregating)
      process_tree "$F_PID"
      find_still
      ((${#TREE_STILL[@]} == 0)) || printf 'it stands still (SIGSTOP or Ctrl-Z): processes %s; to go on: kill -CONT %s\n' "${TREE_STILL[*]}" "${TREE_STILL[*]}"
      return 0
      ;;
    success) claim success "formal run $RUN_ID" "$B/FORMAL_SUCCESS" ;;
    failed | stopped | lost)
      tail -n 20 -- "$D/formal.log" 2>/dev/null || :
      for file in FORMAL_FAILURE.json formal.failed.tar.gz formal.log; do [[ ! -s $D/$file ]] || evidence+=" $D/$file"; done
      printf 'this machine is kept; evidence:%s\n' "${evidence:- none was written}"
      return "$EX_FAIL"
      ;;
    *) return "$EX_MISSING" ;;
  esac
}

do_attach() {
  local follow=''
  open_records
  [[ -f $D/formal.log ]] || refuse "$EX_MISSING" "$D/formal.log" "there is no log: nothing was started here" "bash $SELF_DIR/$PROG start"
  # Without a terminal nobody could leave an endless look.
  case $FORMAL_STATE in
    starting | running | aggregating) [[ ! -t 1 ]] || follow=-f ;;
  esac
  printf '%s: %s (%s)%s\n' "$FORMAL_STATE" "$D/formal.log" "${F_NAME:-no session}" "${follow:+; Ctrl-C leaves, the run goes on}"
  exec tail -n 80 ${follow:+"$follow"} -- "$D/formal.log"
}

do_stop() {
  local REPLY n=0 limit=$((GRACE_S * 2 + 30)) id
  open_records
  case $FORMAL_STATE in
    starting | running | aggregating) ;;
    unknown) refuse "$EX_MISSING" "stop" "the state is not known: $FORMAL_WHY" "look at $D/formal.json by hand; nothing was ended" ;;
    *)
      printf 'nothing to stop: %s; %s\n' "$FORMAL_STATE" "${FORMAL_WHY:-as recorded}"
      if live_detached; then
        printf 'process %s is still at work on this run and is not the recorded one: look with ps -fp %s, end it with kill -TERM %s\n' "$REPLY" "$REPLY" "$REPLY"
        return "$EX_FAIL"
      fi
      return 0
      ;;
  esac
  process_tree "$F_PID"
  ((${#TREE_IDS[@]} > 0)) || { printf 'nothing to stop: process %s has just ended\n' "$F_PID" && return 0; }
  printf 'ending process %s, which ends its children after they have saved:\n' "$F_PID"
  printf '  %s\n' "${TREE_LINES[@]}"
  if ! same_process "$F_PID" "$F_TICKS" || ! kill -TERM "$F_PID"; then
    refuse "$EX_MISSING" "kill -TERM $F_PID" "the process is not the recorded one any more" "bash $SELF_DIR/$PROG status"
  fi
  while ((n++ < limit * 5)); do
    tree_alive || break
    wake_tree
    sleep 0.2 2>/dev/null || sleep 1
  done
  if tree_alive; then
    printf 'still there after %s s, and left alone:\n' "$limit"
    for id in "${TREE_LEFT[@]}"; do printf '  process %s\n' "${id% *}"; done
    return "$EX_FAIL"
  fi
  read_record "$D/formal.json" formal/1 "$RUN_ID" || :
  # What we ended may have been the start alone: its detached part comes no more, or has just begun and is ended too.
  if [[ ${R_start_id-} == "$F_START" && ${R_state-} == starting ]] && ! bar_detached "$F_START"; then await_begun || :; fi
  if [[ ${R_start_id-} == "$F_START" && ${R_pid-} != "$F_PID" ]]; then
    do_stop
    return
  fi
  [[ ${R_state-} != success ]] || { printf 'it ended with success before the signal came\n' && return 0; }
  write_formal stopped "by $PROG stop" || refuse "$EX_COPY" "$D/formal.json" "it cannot be written" "the processes are gone; look at the data tier"
  event stopped - - "$F_START"
  printf 'stopped: the same start continues it\n'
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
