#!/usr/bin/env bash
# run_one.sh: run one cell to a checked result; resume it if an earlier attempt left a checkpoint.
# Generated; do not edit. Source: templates/box/run_one.sh.j2
# To change it, edit the source or profiles/gcp-gce.yaml, then: make profile=gcp-gce
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=run_one.sh

# --- bound values: profiles/gcp-gce.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=gcp-gce
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier kept-disk: survives ssh drop, restart, stop, destroy
DATA_DIR=${DATA_DIR-/mnt/disks/data/runs}
# tier kept-disk: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-/mnt/disks/data/runs}
# may be lost at any time
SCRATCH=${SCRATCH-/tmp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-"\$HOME/.cache/huggingface"}
# a file to source or an http address; empty: none
PROXY_HOOK=${PROXY_HOOK-}
# NAME=value lines, mode 600; empty: none
CRED_FILE=${CRED_FILE-"\$HOME/.gpu-runbook.env"}
# the interpreter
PY=${PY-python3}
# where it is mounted
readonly DURABLE_TIER_PATH=/mnt/disks/data
# what shows that the tier is there
readonly DURABLE_PROOF=marker
# seconds between our signal and the kill: save_s + 10
readonly GRACE_S=12
# the platform's warning signal
readonly SIGNAL=TERM
# the same behind the platform's own signal: save_s + 10
readonly SIGNAL_GRACE_S=12
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
# checkpoints, relative to CELL_DIR; empty: not said
readonly CKPT_PATTERN=''
# what a complete one holds
readonly -a CKPT_FILES=()
# what is written last, in it or behind its name
readonly CKPT_MARKER=''
# the least that it holds
readonly CKPT_BYTES=0
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

# An output that is closed is none, and a reader that went away ends nobody. What is started has the usual PIPE.
open_outputs() {
  : 9>&2 || exec 2>/dev/null
  : 2>/dev/null 9>&1 || exec >/dev/null
  trap : PIPE
}

# What a trap has to say: the wait that it came into has its stderr turned away, so it is said behind that.
say_late() { # reads: LATE
  [[ -z ${LATE-} ]] || log "$LATE"
  LATE=''
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

# TEXT into a small file that we can do without: it is silent where that fails, and leaves alone what is no file, for to open a
# FIFO for writing waits too.
put_text() { # <file> <text>    returns: 0, or 1
  [[ ! -e $1 || -f $1 ]] && { printf '%s' "$2" >"$1"; } 2>/dev/null
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

# Put TEXT over the shorter one that FILE holds, in place and without a process: for records whose loss is seen and costs little.
# Bash writes line by line, so until all is there the first character says that it is no record.
overwrite_file() { # <file> <text>    returns: 0, or 1: it has to be written in another way
  local REPLY LC_ALL=C
  [[ -f $1 && ! -L $1 ]] && read_text "$1" && ((${#REPLY} > 0 && ${#REPLY} <= ${#2})) || return 1
  { printf '#' 1<>"$1" && printf '#%s' "${2:1}" 1<>"$1" && printf '%s' "${2:0:1}" 1<>"$1"; } 2>/dev/null || return 1
  read_text "$1" && [[ $REPLY == "$2" ]]
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

# Bytes and inodes that are free at each of the folders, in one look: ROOM_BYTES and ROOM_INODES, parallel to the words. An entry is
# empty where it is not known: no such call, or a file system that does not count inodes.
look_room() { # <folders that exist...>
  begin_look_room "$@"
  end_look_room "$@"
}
# The two halves of it: the look runs beside us, while something else is done.
begin_look_room() { # <folders...>    sets ROOM_FD for end_look_room
  exec {ROOM_FD}< <(exec stat -f -c '%a %S %d %c' -- "$@" 2>/dev/null)
}
end_look_room() { # <the same folders...>
  local blocks size left all i
  ROOM_BYTES=() ROOM_INODES=()
  while read -r blocks size left all; do
    [[ $blocks$size$left$all =~ ^[0-9]+$ ]] || break
    ROOM_BYTES+=($((blocks * size)))
    if ((all > 0)); then ROOM_INODES+=("$left"); else ROOM_INODES+=(''); fi
  done <&"$ROOM_FD"
  exec {ROOM_FD}<&-
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

# The place of a cell in QUEUE_NAMES, into REPLY.
queue_index() { # <cell>    returns: 1 where it is not there
  for ((REPLY = 0; REPLY < ${#QUEUE_NAMES[@]}; REPLY++)); do
    [[ ${QUEUE_NAMES[REPLY]} != "$1" ]] || return 0
  done
  REPLY=''
  return 1
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

# Let the kernel forget what it keeps of these files, so that reading them asks the storage. Best effort, GNU dd only.
forget_cached() { # <path...>
  local path
  # Where one call fails dd does not know the flag, or the file is not there, which its digest will tell.
  for path in "$@"; do dd if="$path" of=/dev/null iflag=nocache count=0 2>/dev/null || return 0; done
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

# By what an environment that was described before is known again, without its interpreter: the driver, what decides where
# packages are looked for, and how the interpreter and those folders lie there (a package that comes or goes changes its
# folder). Into REPLY; empty where it cannot be told: a script in the interpreter's place may start another one each time.
environment_key() { # <folders, a line each>
  begin_key "$1"
  end_key
}
# The two halves of it: the look runs beside us, while something else is done.
begin_key() { # <folders>    sets KEY_FD KEY_HEAD KEY_PATHS for end_key
  local REPLY path head=''
  KEY_FD=''
  path=$(type -P "$PY") && [[ -n $1 ]] || return 0
  { IFS= read -r -n 2 head <"$path"; } 2>/dev/null || :
  [[ $head != '#!' ]] || return 0
  gpu_driver
  KEY_HEAD="$REPLY|$PY|${PYTHONPATH-}|${PYTHONHOME-}|${PYTHONUSERBASE-}|${PYTHONNOUSERSITE-}"
  KEY_PATHS=("$path" "${path%/*}/../pyvenv.cfg")
  while IFS= read -r path; do KEY_PATHS+=("$path"); done <<<"$1"
  begin_stat "${KEY_PATHS[@]}"
  KEY_FD=$STAT_FD
}
end_key() { # into REPLY
  local path
  REPLY=''
  [[ -n $KEY_FD ]] || return 0
  STAT_FD=$KEY_FD KEY_FD=''
  end_stat
  REPLY=$KEY_HEAD
  for path in "${KEY_PATHS[@]}"; do REPLY+=$'\n'"$path"$'\t'"${STAT_OF[$path]-}"; done
}

# The digest of the description that the run has, if that is still true of this environment. Into REPLY.
known_environment() { # returns: 0, or 1: ask the interpreter
  [[ -n ${KNOWN_SPEC-} ]] || begin_known || return 1
  end_key
  [[ -n $REPLY && $REPLY == "$KNOWN_KEY" ]] && REPLY=$KNOWN_SPEC
}
begin_known() { # sets KNOWN_SPEC KNOWN_KEY    returns: 1 where the run has none
  local REPLY path where=''
  read_text "$D/.environment.key" && [[ $REPLY =~ ^[0-9a-f]{8}$'\n' && -s $D/environment.txt ]] || return 1
  KNOWN_SPEC=${REPLY%%$'\n'*} KNOWN_KEY=${REPLY#*$'\n'}
  # The folders are its lines behind the first three: the settings, the interpreter, its pyvenv.cfg.
  while IFS= read -r path; do where+=${path%$'\t'*}$'\n'; done <<<"$KNOWN_KEY"
  where=${where#*$'\n'*$'\n'*$'\n'}
  begin_key "${where%$'\n'}"
}

# The digest into ENV_SPEC, the description into D/environment.txt. A run that goes on in another environment says so.
env_spec() {
  local REPLY text key='' before=''
  [[ ! ${ENV_SPEC-} =~ ^[0-9a-f]{8}$ ]] || return 0
  if known_environment; then
    ENV_SPEC=$REPLY
    return 0
  fi
  # Wherever this is cut off, no key stands beside a text that is not its own: none first, the new one last.
  put_text "$D/.environment.key" '' || :
  describe_environment
  text=$REPLY
  environment_key "$ENV_FOLDERS"
  key=$REPLY
  ENV_SPEC=unknown
  hash_text "$text" && ENV_SPEC=${REPLY:0:8}
  ! read_text "$D/environment.txt" || before=$REPLY
  if [[ $before != "$text" ]]; then
    [[ -z $before ]] || log "the environment is another one than this run began in: now $ENV_SPEC, see $D/environment.txt and events.tsv"
    event environment - - "$ENV_SPEC"
    put_text "$D/environment.txt" "$text" || { log "could not write $D/environment.txt" && return 0; }
  fi
  [[ -z $key || $ENV_SPEC == unknown ]] || put_text "$D/.environment.key" "$ENV_SPEC"$'\n'"$key" || :
}

# lib/results.bash: a cell's result files: which they are, what they weigh, their digests.
# needs: exit log file hash hashes
# reads: D REQUIRED

# Results below this in all are small: hashed and copied in a moment. Looks that cost a process and would see what happens in
# that moment (free room, a second stat, having the kernel forget what it keeps) are for more; the digests are for all.
readonly SMALL_BYTES=1048576

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

# A cell's results and their sizes in one look, into LIST_PATHS LIST_FULL LIST_SEEN LIST_SIZES LIST_BYTES; LOOKED_AT names the cell.
look_cell() { # <cell>    returns: 0, 65, or 74 (missing, unreadable)
  begin_look "$1" && end_look "$1"
}
begin_look() { # <cell>
  local path
  LOOKED_AT='' LIST_FULL=()
  list_paths "$D/cells/$1" || return
  for path in "${LIST_PATHS[@]}"; do LIST_FULL+=("$D/cells/$1/$path"); done
  begin_stat "${LIST_FULL[@]}"
}
end_look() { # <cell>
  local path line
  LIST_SEEN=() LIST_SIZES=() LIST_BYTES=0
  end_stat
  for path in "${LIST_FULL[@]}"; do
    line=${STAT_OF[$path]-}
    [[ -n $line ]] || { log "$path went away" && return "$EX_COPY"; }
    LIST_SEEN+=("$line")
    LIST_SIZES+=("${line%%|*}")
    LIST_BYTES=$((LIST_BYTES + ${line%%|*}))
  done
  LOOKED_AT=$1
}

# Digests of a cell's results, taken at the source, into D/state/<cell>.sha256 and LIST_TEXT LIST_SUMS, beside what look_cell sets.
# LIST_DIGEST is the list's own, empty until somebody needs it (list_digest) or it comes with the read-back.
# In two halves: the tool runs beside us, while something else is done.
begin_list() { # <cell>    returns: 0, 65, or 74 (missing, unreadable)
  [[ ${LOOKED_AT-} == "$1" ]] || look_cell "$1" || return
  # A look serves once: the next one is to see what has come since.
  LOOKED_AT=''
  begin_hash "${LIST_FULL[@]}"
}
end_list() { # <cell>    returns: 0, or 74 (unreadable, or still being written)
  local cell=$1 path i
  LIST_SUMS=() LIST_TEXT='' LIST_DIGEST=''
  # What is wrong from here on lies in what this cell has left; no other cell's copy has to do with it.
  OWN_FAULT=1
  end_hash || { log "a result of cell $cell cannot be read" && return "$EX_COPY"; }
  ((LIST_BYTES < SMALL_BYTES)) || stat_many "${LIST_FULL[@]}"
  for ((i = 0; i < ${#LIST_FULL[@]}; i++)); do
    path=${LIST_FULL[i]}
    [[ ${STAT_OF[$path]-} == "${LIST_SEEN[i]}" ]] || { log "$path is still being written" && return "$EX_COPY"; }
    LIST_SUMS+=("${SUM_OF[$path]}")
    LIST_TEXT+="${SUM_OF[$path]}  ${LIST_PATHS[i]}"$'\n'
  done
  # shellcheck disable=SC2034 # of sync_cell
  OWN_FAULT=''
  # The commit takes the list from here and a repeated sync takes new digests: from the file only its own digest is taken.
  put_text "$D/state/$cell.sha256" "$LIST_TEXT" || { log "could not write $D/state/$cell.sha256" && return "$EX_COPY"; }
}
list_digest() { # into LIST_DIGEST
  local REPLY
  [[ -z $LIST_DIGEST ]] || return 0
  hash_text "$LIST_TEXT" || return "$EX_COPY"
  LIST_DIGEST=$REPLY
}

# lib/bundle.bash: a cell's results on their way into the bundle: copied, read back, committed.
# needs: exit log path file record proc hash hashes room run results
# reads: D B RUN_ID DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF
#
# Who runs a cell writes D/state/<cell>.json with state "unsynced" (exit 0, evidence there), then calls sync_cell:
# on 0 both that record and B/records/<cell>.json say done; on 73, 74 or 65 nothing in B was replaced by worse,
# and the record is as it was; OWN_FAULT is not empty where the cell's own files are at fault, not the way into the bundle.
# A crash in between leaves "unsynced", which aggregate repeats.

# Is a cell committed: does B's record say done in this run, over the digest list that lies beside it?
check_bundled() { # <cell>    returns: 0 yes, 1 no record, 2 a record or list that does not hold; leaves R_*
  local REPLY rc=0 HASH_TOOL=${HASH_TOOL-}
  read_record "$B/records/$1.json" cell/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return "$rc"
  [[ ${R_cell-} == "$1" && ${R_state-} == "done" && -n ${R_files_sha256-} ]] || return 2
  hash_tool_small
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
drop_own_leftovers() { # <cell>
  local path
  for path in "$B/.syncing/$1".[0-9]*; do
    if [[ ! -d $path || ! ${path##*.} =~ ^[0-9]+$ || $path != "$B/.syncing/$1.${path##*.}" ]]; then continue; fi
    [[ $path != "${STAGE-}" ]] || continue
    # One of our own number is a dead one's too: numbers come again, in a container soon.
    [[ ${path##*.} == "$$" ]] || ! start_ticks "${path##*.}" || continue
    rm -rf -- "${path:?}" || return "$EX_COPY"
  done
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
  SUM_OF=()
  if ((${#same[@]} > 0)); then
    stat_many "${same[@]}"
    hash_many "${same[@]}" || :
  fi
  for ((i = 0; i < ${#LIST_PATHS[@]}; i++)); do
    path=$1/${LIST_PATHS[i]}
    [[ ${SUM_OF[$path]-} != "${LIST_SUMS[i]}" ]] || continue
    TODO+=("$i")
    TODO_BYTES=$((TODO_BYTES + LIST_SIZES[i]))
  done
}

# Room for the whole copy, before its first byte: the old files stay until the new ones are proven. Where it is
# little cp says the same, and as early.
sync_room() { # <target folder>    returns: 0 or 73
  ((TODO_BYTES >= SMALL_BYTES || ${#TODO[@]} > 64)) || return 0
  look_room "$1"
  if [[ -n ${ROOM_BYTES[0]} ]] && ((TODO_BYTES + 65536 > ROOM_BYTES[0])); then
    log "no room for the copy: it needs $TODO_BYTES bytes, $1 has ${ROOM_BYTES[0]}"
    return "$EX_NOROOM"
  fi
  if [[ -n ${ROOM_INODES[0]} ]] && ((${#TODO[@]} + 8 > ROOM_INODES[0])); then
    log "no room for the copy: it needs ${#TODO[@]} files, $1 has inodes for ${ROOM_INODES[0]}"
    return "$EX_NOROOM"
  fi
}

# TODO in runs of files that lie in one folder: RUN_FOLDER (below the cell's, empty for itself) and RUN_FIRST, where in TODO it
# begins. A call of cp or mv takes a run whole.
split_runs() {
  local i folder last='' n=0
  RUN_FOLDER=() RUN_FIRST=()
  for ((i = 0; i < ${#TODO[@]}; i++)); do
    folder=${LIST_PATHS[TODO[i]]}
    if [[ $folder == */* ]]; then folder=${folder%/*}; else folder=''; fi
    n=$((n + 1))
    if ((i == 0 || n > 200)) || [[ $folder != "$last" ]]; then
      RUN_FOLDER+=("$folder") RUN_FIRST+=("$i")
      last=$folder n=1
    fi
  done
  RUN_FIRST+=("${#TODO[@]}")
}

# The files of run N below FOLDER, into RUN_FILES.
run_files() { # <n> <folder>
  local i
  RUN_FILES=()
  for ((i = RUN_FIRST[$1]; i < RUN_FIRST[$1 + 1]; i++)); do RUN_FILES+=("$2/${LIST_PATHS[TODO[i]]}"); done
}

# The folders of the copy below ROOT, all in one call; none of them may be a link.
make_folders_below() { # <root> [further folders...]
  local n folder root=$1
  local -a folders=("$@")
  for folder in ${RUN_FOLDER[@]+"${RUN_FOLDER[@]}"}; do
    [[ -z $folder ]] || folders+=("$root/$folder")
  done
  for ((n = 0; n < ${#folders[@]}; n += 500)); do
    mkdir -p -- "${folders[@]:n:500}" 2>/dev/null || { log "$root cannot be made" && return "$EX_COPY"; }
  done
  for folder in "${folders[@]}"; do
    [[ ! -L $folder ]] || { log "$folder is a link, not a folder of the bundle" && return "$EX_COPY"; }
  done
}

# Files into a folder, under their names. Says 73 where the disk is full.
copy_files() { # <folder> <files...>
  local said to=$1
  shift
  # In English: what it says decides.
  said=$(LC_ALL=C exec cp -L -- "$@" "$to/" 2>&1) && return 0
  said=${said//[[:cntrl:]]/ }
  case $said in
    *'No space left'* | *'quota exceeded'*) log "no room for the copy of ${1%/*}: $said" && return "$EX_NOROOM" ;;
  esac
  log "copying from ${1%/*} failed: $said"
  return "$EX_COPY"
}

# The copies in TMP, flushed and read back, the list with them: each digest must be its source's.
prove_copies() { # <temporary folder> <target folder> <the list's file>
  local i tmp rc=0 read_back=0
  local -a tmps=()
  for i in "${TODO[@]}"; do tmps+=("$1/${LIST_PATHS[i]}"); done
  declare -gA STAT_OF=()
  # For sharing out the reading.
  # shellcheck disable=SC2004 # STAT_OF is associative; its declaration is in lib hashes too
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    STAT_OF[$tmp]=${LIST_SIZES[i]}
  done
  STAT_OF[$3]=${#LIST_TEXT}
  # Little comes from memory anyway: it is read while it is flushed.
  ((TODO_BYTES >= SMALL_BYTES)) || begin_hash "${tmps[@]}" "$3"
  flush "${tmps[@]}" || rc=$?
  if ((TODO_BYTES >= SMALL_BYTES && rc == 0)); then
    forget_cached "${tmps[@]}"
    begin_hash "${tmps[@]}" "$3"
  fi
  end_hash || read_back=1
  ((rc == 0)) || { log "the copy to $2 cannot be flushed: no room, a quota, or its disk is failing" && return "$EX_COPY"; }
  ((read_back == 0)) || { log "the copy to $2 cannot be read back" && return "$EX_COPY"; }
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    if [[ ${SUM_OF[$tmp]-} != "${LIST_SUMS[i]}" ]]; then
      log "the copy of ${LIST_PATHS[i]} on $2 reads back as ${SUM_OF[$tmp]-nothing}, its source was ${LIST_SUMS[i]}: a bad disk, or the source is still being written"
      return "$EX_COPY"
    fi
  done
  LIST_DIGEST=${SUM_OF[$3]}
}

# What TODO names is copied, flushed and read back, and only then renamed: the whole folder where the bundle has none of the cell
# yet, else file by file. The last good copy stays until the new one is proven. First into a temporary folder:
stage_files() { # <cell> <temporary folder>
  local n
  split_runs
  [[ $2 == "${STAGE-}" && -d $2 && ${RUN_FOLDER[*]} == '' && ! -L $2 && ! -L $B/.syncing && ! -L $B/final_ckpts && ! -L $B/records ]] ||
    make_folders_below "$2" "$B/.syncing" "$B/final_ckpts" "$B/records" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]}; n++)); do
    run_files "$n" "$D/cells/$1"
    copy_files "$2/${RUN_FOLDER[n]}" "${RUN_FILES[@]}" || return
  done
}
# Then proven, and under their names.
readonly OTHERS=3
place_files() { # <temporary folder> <target folder> <the list's file>    returns: 0, 74, or OTHERS: another has just put its copy there
  local tmp=$1 target=$2
  prove_copies "$tmp" "$target" "$3" || return
  # Some mounts cannot rename a folder.
  if [[ ! -e $target ]] && mv -- "$tmp" "$target" 2>/dev/null; then
    # Had another made the target in that moment, ours would lie inside it: then we compare with what lies there.
    [[ ! -e $target/${tmp##*/} ]] || { rm -rf -- "${target:?}/${tmp##*/}" && return "$OTHERS"; }
    [[ -e $target/${LIST_PATHS[TODO[0]]} ]] || { log "$target is not what was moved there: look at the durable tier" && return "$EX_COPY"; }
    return 0
  fi
  move_files "$tmp" "$target"
}
move_files() { # <temporary folder> <target folder>
  local n file
  make_folders_below "$2" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]}; n++)); do
    run_files "$n" "$2"
    for file in "${RUN_FILES[@]}"; do
      [[ ! -d $file ]] || { log "$file is a folder where a file is to be" && return "$EX_COPY"; }
    done
    run_files "$n" "$1"
    mv -f -- "${RUN_FILES[@]}" "$2/${RUN_FOLDER[n]}" || return "$EX_COPY"
  done
}

# A cell's results into the bundle, then its list, last its record: whoever sees the record may count on the rest.
sync_cell() { # <cell>    returns: 0 committed, 65, 73 or 74 with the reason said; see the top of this file
  local cell=$1 target=$B/final_ckpts/$1 tmp=$B/.syncing/$1.$$ rc=0 bundled=''
  OWN_FAULT=''
  # The tier is proven before any byte.
  # The refusal is this function's status, not the end of the script.
  durable_there || { (refuse "$EX_COPY" "${TIER_SAID[@]}") || return; }
  ! check_bundled "$cell" || bundled=$R_files_sha256
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || { log "cell $cell has no whole record of this run" && return "$EX_INTEGRITY"; }
  [[ ${R_state-} == unsynced || ${R_state-} == "done" ]] || { log "cell $cell is ${R_state-}: nothing to sync" && return "$EX_INTEGRITY"; }
  still_flushed "${R_why-}" || { log "cell $cell finished in an earlier boot, before its files were flushed: unknown, so it is to run again" && return "$EX_INTEGRITY"; }
  [[ ! -L $target ]] || { log "$target is a link, not a folder of the bundle" && return "$EX_COPY"; }
  drop_own_leftovers "$cell" || return
  # shellcheck disable=SC2034 # lib/cell asks for it; aggregate has no use for it
  begin_list "$cell" || { rc=$? OWN_FAULT=1 && return "$rc"; }
  if [[ -z $bundled && ! -e $target ]] && ((LIST_BYTES < SMALL_BYTES && ${#LIST_PATHS[@]} <= 64)); then
    sync_new "$cell" "$tmp" || rc=$?
  else
    sync_known "$cell" "$tmp" "$bundled" || rc=$?
  fi
  if ((rc == OTHERS)); then
    rc=0
    begin_list "$cell" && sync_known "$cell" "$tmp" "$bundled" || rc=$?
  fi
  [[ ! -e $tmp ]] || rm -rf -- "${tmp:?}" || rc=$EX_COPY
  ((rc == 0)) || return "$rc"
  commit_cell "$cell"
}
# The usual case, little and all of it new, is copied while its digests are taken.
sync_new() { # <cell> <temporary folder>
  local rc=0
  TODO=("${!LIST_PATHS[@]}") TODO_BYTES=$LIST_BYTES
  stage_files "$1" "$2" || rc=$?
  end_list "$1" || return
  ((rc == 0)) || return "$rc"
  place_files "$2" "$B/final_ckpts/$1" "$D/state/$1.sha256"
}
sync_known() { # <cell> <temporary folder> <digest of the list in the bundle, or empty>
  local target=$B/final_ckpts/$1
  end_list "$1" || return
  if [[ -n $3 ]]; then
    list_digest || return
    if [[ $3 != "$LIST_DIGEST" ]]; then
      log "cell $1 is in the bundle, and its files in $D/cells/$1 were changed since: the bundle keeps the first ones"
      return "$EX_INTEGRITY"
    fi
  fi
  sync_todo "$target"
  sync_room "$B" || return
  ((${#TODO[@]} > 0)) || return 0
  stage_files "$1" "$2" && place_files "$2" "$target" "$D/state/$1.sha256"
}

# What a record of a finished cell says whose few files are not flushed yet, for they are copied at once: true in the boot that it
# names. After a power cut nobody knows what the files hold.
readonly UNFLUSHED='not flushed, boot '
still_flushed() { # <the record's why>    returns: 1 where that boot is over
  local REPLY
  [[ $1 == "$UNFLUSHED"* ]] || return 0
  this_boot_id
  # One that cannot be told could be any.
  [[ $1 == "$UNFLUSHED$REPLY" && $REPLY != unknown ]]
}

# The list and the record into B, then our own record. All is flushed in one call behind the renames, the folders first: what
# a power cut tears is seen, for the list must have the digest that the record says, and our own record still says unsynced.
commit_cell() { # <cell>    reads: R_*, of the cell's record on the data tier
  local cell=$1 back=$B/records/$1
  list_digest || return
  cell_record 'done' '' "$LIST_DIGEST" || return
  write_list "$back.sha256" || return
  replace_file "$back.json" "$RECORD" soon || return
  target_folders "$cell"
  flush "${TARGET_FOLDERS[@]}" "$back.sha256" "$back.json" "$B/records" || { log "the record of cell $cell cannot be flushed to $B" && return "$EX_COPY"; }
  overwrite_file "$D/state/$cell.json" "$RECORD" || replace_file "$D/state/$cell.json" "$RECORD" soon || return
  say_bundled "$cell"
}

# The list under its name at once: nobody looks at one that has no record of its digest beside it.
write_list() { # <file>
  local REPLY
  ! read_text "$1" || [[ $REPLY != "$LIST_TEXT" ]] || return 0
  put_text "$1" "$LIST_TEXT" && read_text "$1" && [[ $REPLY == "$LIST_TEXT" ]] || {
    log "could not write $1: no room, no right, or its disk is gone"
    return "$EX_COPY"
  }
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
# needs: room proc

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
  CPU_NPROC=$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT && exec nproc 2>/dev/null) || CPU_NPROC=''
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

# Up to so many MiB in use a GPU counts as free: driver and display take some (X8).
# shellcheck disable=SC2034 # a script reads what it needs
readonly GPU_FREE_MIB=500

# The GPUs by the driver's own word: GPU_STATE ok, none, unknown; GPU_COUNT; GPU_LINES; GPU_WHY. Bounded: a sick driver hangs.
# shellcheck disable=SC2034 # a script reads what it needs
probe_gpus() {
  local said='' rc=0 line fd
  GPU_STATE=unknown GPU_COUNT='' GPU_LINES=() GPU_WHY=''
  command -v nvidia-smi >/dev/null 2>&1 || { GPU_STATE=none GPU_COUNT=0 GPU_WHY="no nvidia-smi on PATH" && return 0; }
  # Through a pipe, which we can leave: no signal ends a query that hangs in the kernel, and whoever waits for it hangs too (case 80).
  exec {fd}< <(
    exec 2>&1 </dev/null
    within 20 nvidia-smi --query-gpu=index,name,driver_version,memory.total,memory.used --format=csv,noheader,nounits || rc=$?
    printf '\nrc %s' "$rc"
  )
  # At the end of the pipe read has 1, for no NUL comes; above 128 its time is over.
  IFS= read -r -d '' -t 30 -u "$fd" said || { (($? <= 128)) || rc=124; }
  exec {fd}<&-
  ((rc == 124)) || rc=${said##*$'\nrc '}
  # Killed before it could print its status.
  [[ $rc =~ ^[0-9]+$ ]] || rc=1
  said=${said%$'\nrc '*}
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

# A person says that HOST is gone: its claims are dead from now on, also for calls without --adopt.
bury_host() { # <host>
  mkdir -p -- "$D/claims/.gone" && : >"$D/claims/.gone/${1//\//_}" || return "$EX_COPY"
  event adopt - - "claims of $1 are dead"
}

# Take the next attempt after CLAIM_N; what else must be on its disk before the cell begins is flushed with it. Sets ATTEMPT,
# CLAIM_FILE and MY_TICKS.
take_claim() { # <cell> [paths...]    returns: 0, 75 somebody was quicker, 73 it cannot be written, 74 it cannot be flushed
  local REPLY dir=$D/claims/$1 file line back=''
  shift
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
  CLAIM_FILE=$file
  flush "$@" "$file" "$dir" || { withdraw_claim && return "$EX_COPY"; }
}

# A claim under which nothing was begun yet is as if it had never been.
withdraw_claim() {
  rm -f -- "$CLAIM_FILE"
}

# A tier that was mounted read-only, or became it, is no cell's affair: refused by its name, before anything is begun.
gate_write() { # reads: D B    refuses 73, 74
  [[ -w $D ]] || can_write "$D" || refuse_write "$EX_NOROOM" "$D" "nothing can be written there" data
  [[ $B == "$D" || -w $B ]] || can_write "$B" || refuse_write "$EX_COPY" "$B" "nothing can be written there" durable
}

# Can a line be written there at all?
can_write() { # <folder>
  local rc=0
  { printf 'probe\n' >"$1/.probe.$$"; } 2>/dev/null || rc=1
  rm -f -- "$1/.probe.$$" 2>/dev/null
  return "$rc"
}

# lib/checkpoint.bash: the newest complete checkpoint of a cell that is resumed (case 35), where the job says what complete means.
# needs:
# reads: CELL_DIR CKPT_PATTERN CKPT_FILES CKPT_MARKER CKPT_BYTES

# Its path into CELL_CHECKPOINT, empty where none is complete. What is not complete is named and left alone: nothing is moved
# or removed, for a trainer may know better. Newest is by the numbers in the name, 10 behind 9; without any, by time.
choose_checkpoint() { # prints
  local REPLY path key best='' IFS=
  CELL_CHECKPOINT=''
  # shellcheck disable=SC2231 # the pattern is to expand; IFS is empty, so a blank in it does not split
  for path in "$CELL_DIR"/$CKPT_PATTERN; do
    [[ -e $path && ! -L $path ]] || continue
    case $path in *.tmp | *.part | *.partial) continue ;; esac
    [[ -z $CKPT_MARKER || $path != *"$CKPT_MARKER" ]] || continue
    if ! is_complete "$path"; then
      printf 'gpu-runbook: checkpoint %s is not complete: %s; left alone\n' "${path#"$CELL_DIR"/}" "$REPLY"
      continue
    fi
    number_key "${path#"$CELL_DIR"/}"
    key=$REPLY
    if [[ -z $CELL_CHECKPOINT || $key > $best ]] || [[ $key == "$best" && $path -nt $CELL_CHECKPOINT ]]; then
      CELL_CHECKPOINT=$path best=$key
    fi
  done
  [[ -z $CELL_CHECKPOINT ]] || printf 'gpu-runbook: newest complete checkpoint: %s\n' "${CELL_CHECKPOINT#"$CELL_DIR"/}"
}

# All that the job says of a complete one holds; else the reason is in REPLY.
is_complete() { # <path>
  local name
  REPLY=''
  if [[ ! -d $1 ]]; then
    [[ -s $1 ]] || { REPLY='it is empty' && return 1; }
  fi
  [[ -z $CKPT_MARKER || -e $1$CKPT_MARKER || -d $1 && -e $1/$CKPT_MARKER ]] || { REPLY="there is no $CKPT_MARKER" && return 1; }
  for name in ${CKPT_FILES[@]+"${CKPT_FILES[@]}"}; do
    [[ -s $1/$name ]] || { REPLY="$name is missing or empty" && return 1; }
  done
  if ((CKPT_BYTES > 0)); then
    REPLY=$(find "$1" -type f -exec stat -c %s {} + 2>/dev/null | awk '{s += $1} END {printf "%.0f", s}') || REPLY=0
    ((REPLY >= CKPT_BYTES)) || { REPLY="$REPLY bytes, less than $CKPT_BYTES" && return 1; }
  fi
}

# The numbers in a name, each with leading zeros, so that text compares as numbers do. Into REPLY.
number_key() { # <name>
  local rest=$1 digits
  REPLY=''
  while [[ $rest =~ [0-9]+ ]]; do
    rest=${rest#*"${BASH_REMATCH[0]}"} digits=${BASH_REMATCH[0]}
    while [[ $digits == 0?* ]]; do digits=${digits#0}; done
    ((${#digits} >= 20)) || printf -v digits '%*s' 20 "$digits"
    REPLY+=${digits// /0}.
  done
}

# lib/cellenv.bash: what a cell finds in its environment, and what it must not find there.
# needs: exit log file room probe checkpoint
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
      refuse "$EX_GATE" "secret $name" "it stands neither in CRED_FILE=$file nor in the environment" "bring it (P1.6 in the runbook; push.sh --secrets where there is ssh), or set CRED_FILE= (empty) to go without"
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
  [[ -s $S/.gpu-runbook-scratch ]] || put_text "$S/.gpu-runbook-scratch" "$RUN_ID"$'\n'
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
  unset OVERRIDES_SAID HASH_TOOL ENV_SPEC QUEUE_AT QUEUE_CELL QUEUE_COMMAND QUEUE_SHA QUEUE_PID
  export CELL_NAME=$CELL CELL_INDEX CELL_DIR CELL_ATTEMPT=$ATTEMPT CELL_RESUME RUN_ID PY
  export PYTHONUNBUFFERED=${PYTHONUNBUFFERED-1}
  unset CELL_CHECKPOINT
  # Only where the job says what a complete one is; else the trainer loads the latest that it can read.
  if [[ -n ${CKPT_PATTERN-} && $CELL_RESUME == 1 ]]; then
    choose_checkpoint
    export CELL_CHECKPOINT
  fi
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

# Declared data is there, before each cell: how many files it holds the formal gates count once. What has no digest costs no
# process where it is a file.
gate_inputs() {
  local REPLY i place
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    data_place "$i"
    place=$REPLY
    data_remedy "$i"
    [[ -e $place ]] || refuse "$EX_GATE" "data $place" "it is not there" "$REPLY, or link it there"
    [[ ! -d $place || -n $(find -L "$place" -mindepth 1 -print 2>/dev/null | head -n 1) ]] || refuse "$EX_GATE" "data $place" "the folder is empty" "$REPLY"
    gate_proof "$i"
  done
}
gate_proof() { # <index>    refuses 77
  local REPLY
  prove_data "$1" now && return 0
  data_remedy "$1"
  refuse "$EX_GATE" "$PROOF_WHAT" "$PROOF_WHY" "$REPLY"
}

# lib/limits.bash: what a box refuses a cell: memory kills, room, GPUs.
# needs: exit log file room probe

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

# The look at the room of both tiers, which gate_cell_room takes up.
begin_room() { # reads: D B    sets ROOM_TIERS
  ROOM_TIERS=("$D")
  [[ $B == "$D" ]] || ROOM_TIERS+=("$B")
  begin_look_room "${ROOM_TIERS[@]}"
}

# The room that one cell needs must be there before it starts, and a tier that cannot be written and flushed is no room either:
# df says nothing of quotas and dead mounts. What is written is room kept for the cell's records (keep_room). The flush is the
# claim's own. Refuses 73; sets PROBES.
gate_cell_room() { # reads: D B NEED_DISK_BYTES NEED_FILES
  local i
  end_look_room "${ROOM_TIERS[@]}"
  for ((i = 0; i < ${#ROOM_TIERS[@]}; i++)); do
    [[ -z ${ROOM_BYTES[i]} || ${ROOM_BYTES[i]} -ge $NEED_DISK_BYTES ]] ||
      refuse "$EX_NOROOM" "${ROOM_TIERS[i]}" "${ROOM_BYTES[i]} bytes are free, one cell needs $NEED_DISK_BYTES" "free room there or expand the disk; nothing is shrunk or removed for it"
    [[ -z ${ROOM_INODES[i]} || ${ROOM_INODES[i]} -ge $NEED_FILES ]] ||
      refuse "$EX_NOROOM" "${ROOM_TIERS[i]}" "${ROOM_INODES[i]} inodes are free, one cell needs $NEED_FILES" "remove small files there, or take a disk with more inodes"
  done
  write_probes
}

PROBES=() PROBED=0
# A probe for each tier. Each lies where the cell's record will be written next.
write_probes() {
  local file
  PROBED=0 PROBES=("$D/state/.$CELL.json.$$.tmp")
  [[ $B == "$D" ]] || PROBES+=("$B/records/.$CELL.json.$$.tmp")
  printf -v PROBE_TEXT '%0*d' "$PROBE_BYTES" 0
  for file in "${PROBES[@]}"; do
    { printf '%s' "$PROBE_TEXT" >"$file"; } 2>/dev/null || refuse_probe "$file"
  done
}
# More than a record has, and two blocks of most disks.
readonly PROBE_BYTES=8192

# Behind the flush: do they read back?
read_probes() { # returns: 0, or 1 with the probe's name in REPLY
  local file
  for file in "${PROBES[@]}"; do
    read_text "$file" && [[ $REPLY == "$PROBE_TEXT" ]] || { REPLY=$file && return 1; }
  done
}
refuse_probe() { # <probe>
  drop_room
  refuse "$EX_NOROOM" "${1%/*}" "a probe file cannot be written, flushed and read back" "look at the disk: full, read-only, or gone"
}

# What was made for a cell that does not begin, or that needs it no more.
drop_room() {
  ((${#PROBES[@]} == 0)) || rm -f -- "${PROBES[@]}" 2>/dev/null || :
  [[ ! -d ${STAGE:-/dev/null} ]] || rmdir -- "$STAGE" 2>/dev/null || :
}

# Room for the next record, under the very name that it will be written by: a disk that the cell fills has none left else.
keep_room() { # reads: D CELL
  [[ ! -s $D/state/.$CELL.json.$$.tmp ]] || return 0
  printf '%0*d' "$PROBE_BYTES" 0 2>/dev/null >"$D/state/.$CELL.json.$$.tmp" || :
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
  note_busy_gpus ${visible[@]+"${visible[@]}"}
}

# A GPU that is not free has another cell on it, or somebody else. It is said, not refused: two cells may share one.
note_busy_gpus() { # <numbers or UUIDs of the cell's GPUs; none: all are its own>
  local line fields
  for line in "${GPU_LINES[@]}"; do
    IFS=, read -ra fields <<<"${line// /}"
    (($# == 0)) || [[ " $* " == *" ${fields[0]} "* ]] || continue
    [[ ! ${fields[4]-} =~ ^[0-9]+$ || ${fields[4]} -le $GPU_FREE_MIB ]] || log "GPU ${fields[0]} is not free: ${fields[4]} MiB are in use before cell $CELL begins"
  done
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
# needs: exit log file proc idle
# reads: GRACE_S SIGNAL SIGNAL_GRACE_S WALL_S STALL_S D CELL CELL_DIR CELL_LOG RUN_ID MY_TICKS BEGAN

# Run the words as a new process group (a session of its own where setsid is there). Sets CELL_PID. FUNCTION prepares
# the child's environment; its status other than 0 is the child's.
start_group() { # <log> <function> <words...>
  local log=$1 prepare=$2 own=1
  shift 2
  command -v setsid >/dev/null 2>&1 || own=0
  # Begun under job control too, for SHELLOPTS hands it on: then setsid would fork, and what we wait for would end at once.
  if ((own)); then set +m; else set -m; fi
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

# How long the cell may save, into STOP_GRACE. Only the platform's warning has its short limit, and that signal reaches us
# itself. What comes by way of run_queue is the queue's stop; nobody kills sooner than we do then.
choose_grace() { # <signal>
  STOP_GRACE=$GRACE_S
  [[ $1 != "$SIGNAL" || ${QUEUE_PID-} == "$PPID" ]] || STOP_GRACE=$SIGNAL_GRACE_S
}

# A second signal is no platform's, which tells once and kills: the time to save becomes ours. The cell is not told again.
lengthen_grace() {
  [[ -n ${KILLER_PID-} && ${STOP_GRACE:-$GRACE_S} -lt $GRACE_S ]] || return 0
  kill -KILL "$KILLER_PID" 2>/dev/null || :
  STOP_GRACE=$GRACE_S
  LATE="a second signal: cell $CELL has $GRACE_S s from now to save"
  start_killer
}

# Tell the cell once, and see to it that it is gone after the grace.
end_group() { # <signal>
  [[ -z ${KILLER_PID-} ]] || return 0
  signal_group "$1"
  # A stopped process (SIGSTOP) acts on no signal until it is continued.
  signal_group CONT
  start_killer
}
start_killer() { # sets KILLER_PID
  (
    trap - TERM INT HUP USR1 USR2 EXIT
    idle "${STOP_GRACE:-$GRACE_S}"
    signal_group KILL
  ) </dev/null >/dev/null 2>&1 &
  KILLER_PID=$!
}

# Wait for the cell whatever signals come in between. Each trap counts WAKES up. Sets CELL_RC, below 0 where bash has lost it.
wait_group() {
  local seen
  while :; do
    seen=$WAKES CELL_RC=0
    { wait "$CELL_PID"; } 2>/dev/null || CELL_RC=$?
    say_late
    [[ $WAKES != "$seen" ]] || break
    # A signal that comes in the very moment in which the cell ends may cost bash that end, and then its wait lasts as long as
    # there is another child: for the whole grace.
    [[ -d /proc/$CELL_PID ]] || stop_watchers
  done
}

# The cell, watched from beside: its limits, of which it tells run_one, which decides; its memory; and run_one itself, whose
# death ends the cell. Ends with the cell, or when run_one is gone.
watch_cell() { # <run_one's pid>
  local main=$1 tick=$((STALL_S / 8)) ran=0 life=0 last=$SECONDS step stamp=$D/logs/$CELL/.alive pause=1 PEAK=0
  trap - TERM INT HUP USR1 USR2 EXIT
  ((tick > 0 && tick <= 20)) || tick=20
  if ((STALL_S > 0 && STALL_S < 8)); then tick=1; fi
  if ((WALL_S > 0 && WALL_S < tick)); then tick=1; fi
  ((STALL_S == 0)) || put_text "$stamp" x || :
  while :; do
    # Short at first, so that short cells have a figure for their memory too.
    idle "$pause"
    step=$((SECONDS - last)) last=$SECONDS
    if ((step < 0 || step > pause + 60)); then
      # The clock was set, or the box slept: no time that the cell had, and no stamp to compare with.
      step=$pause life=$((ran + pause))
      ((STALL_S == 0)) || put_text "$stamp" x || :
    fi
    ran=$((ran + step))
    pause=$((pause * 2 < tick ? pause * 2 : tick))
    if ! same_process "$main" "$MY_TICKS"; then
      # Run_one was killed. Nobody would record how the cell ends, and a second attempt may come at any time.
      end_group TERM
      wait "$KILLER_PID" || :
      return 0
    fi
    # Its end is run_one's affair. Should a trap have come in just then, bash may have missed it, and waits while we live.
    [[ -d /proc/$CELL_PID ]] || return 0
    look_memory
    if ((STALL_S > 0)) && shows_life "$stamp"; then
      life=$ran
      put_text "$stamp" x || :
    fi
    if ((WALL_S > 0 && ran >= WALL_S)) || ((STALL_S > 0 && ran - life >= STALL_S)); then
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
  put_text "$D/logs/$CELL/.peak" "$PEAK"$'\n' || :
}

# A sign of life: the log grew, or anything in the cell's folder was written. Both, for many trainers print nothing.
shows_life() { # <stamp>
  [[ ! $CELL_LOG -nt $1 ]] || return 0
  [[ -n $(find "$CELL_DIR" -newer "$1" -print 2>/dev/null | head -n 1) ]]
}

# Where to look for processes of the cell, into PROCESS_FILES: of this attempt (TICKS is not 0) or of any. Numbers are given in
# order: in the cell's first seconds those above its own are the only ones, where the newest is not far above and so has not come
# round.
process_files() { # <ticks>
  local pid newest=''
  if (($1 > 0 && SECONDS - BEGAN <= 5)); then
    { read -r pid pid pid pid newest pid <"/proc/loadavg"; } 2>/dev/null || newest=''
  fi
  if [[ $newest =~ ^[0-9]+$ && -n ${CELL_PID-} ]] && ((newest >= CELL_PID && newest - CELL_PID <= 500)); then
    PROCESS_FILES=()
    for ((pid = CELL_PID; pid <= newest; pid++)); do
      [[ ! -d /proc/$pid ]] || PROCESS_FILES+=("/proc/$pid/stat")
    done
  else
    PROCESS_FILES=(/proc/[0-9]*/stat)
  fi
}

# A line of /proc/PID/stat the slow way: cut behind the last parenthesis. Into find_cell_processes' own variables.
read_stat() { # <file>
  local line
  { IFS= read -r line <"$1"; } 2>/dev/null || return 1
  # shellcheck disable=SC2034 # of the caller
  read -r state parent group session rest rest rest rest rest rest rest rest rest rest rest rest rest rest rest begun rest <<<"${line##*) }"
}

# Living processes of this cell, of any attempt or of ours alone, into LEFT ("pid ticks"): by the mark in their
# environment, and by the session or group that we gave them. Never ourselves. What is older than TICKS is none of them, and is
# not asked: on a quiet box nothing is left to ask.
find_cell_processes() { # <mark> <group or empty> <ticks>
  local file pid name state parent group session begun rest
  local -a ask=() ticks=() PROCESS_FILES=()
  LEFT=()
  process_files "$3"
  for file in ${PROCESS_FILES[@]+"${PROCESS_FILES[@]}"}; do
    # Fields 3 5 6 22; the twelve between mean nothing here.
    { read -r pid name state parent group session rest rest rest rest rest rest rest rest rest rest rest rest rest rest rest begun rest <"$file"; } 2>/dev/null || continue
    # A name with a blank in it moves all that follows, so that no number stands where the parent's is to be.
    [[ $name == *\) && $parent != *[!0-9]* ]] || { read_stat "$file" || continue; }
    ((begun >= $3)) || continue
    [[ $state != [ZX] && $pid != "$$" && $pid != "$PPID" && $pid != "${BASHPID-}" ]] || continue
    if [[ -n $2 ]] && [[ $group == "$2" || $session == "$2" ]]; then
      LEFT+=("$pid $begun")
    else
      ask+=("/proc/$pid/environ")
      ticks[pid]=$begun
    fi
  done
  if ((${#ask[@]} <= 3)); then
    for file in ${ask[@]+"${ask[@]}"}; do
      pid=${file//[!0-9]/}
      ! holds_mark "$file" "$1" || LEFT+=("$pid ${ticks[pid]}")
    done
    return 0
  fi
  while IFS= read -r file; do
    pid=${file//[!0-9]/}
    LEFT+=("$pid ${ticks[pid]}")
  done < <(exec grep -lsF -- "GPU_RUNBOOK_CELL=$1" "${ask[@]}" /dev/null)
}
# Does an environment carry the mark? Without a process: for few.
holds_mark() { # <file> <mark>
  local entry
  while IFS= read -r -d '' entry || [[ -n $entry ]]; do
    [[ $entry != "GPU_RUNBOOK_CELL=$2"* ]] || return 0
  done 2>/dev/null <"$1"
  return 1
}

# End what is left of the cell: told, a few seconds, killed; only processes that are still the ones that we saw.
sweep_cell() { # <mark> <group or empty> <seconds> <ticks: older ones are none of it>
  local one round=0
  find_cell_processes "$1" "$2" "$4"
  ((${#LEFT[@]} > 0)) || return 0
  # What it writes until it is gone belongs to what the cell has left.
  # shellcheck disable=SC2034 # of run_one
  LOOKING=0
  for one in "${LEFT[@]}"; do
    log "cell $CELL left process ${one% *} behind ($(tr '\0' ' ' <"/proc/${one% *}/cmdline" 2>/dev/null | cut -c 1-120)): ending it"
    ! same_process "${one% *}" "${one#* }" || { kill -TERM "${one% *}" && kill -CONT "${one% *}"; } 2>/dev/null || :
  done
  # By rounds, for a clock may be set meanwhile.
  while ((round < $3 * 20)); do
    idle 0.05
    round=$((round + 1))
    find_cell_processes "$1" "$2" "$4"
    ((${#LEFT[@]} > 0)) || return 0
  done
  for round in 1 2 3 4 5 6 7 8 9 10; do
    for one in "${LEFT[@]}"; do
      ! same_process "${one% *}" "${one#* }" || kill -KILL "${one% *}" 2>/dev/null || :
    done
    idle 0.05
    find_cell_processes "$1" "$2" "$4"
    ((${#LEFT[@]} > 0)) || return 0
  done
  log "cell $CELL: process ${LEFT[0]% *} cannot be killed (it hangs in the kernel); the box may need a restart"
}

# Watchers go when the cell has ended; their numbers are our own children's.
stop_watchers() {
  local pid
  # All are told before one is waited for: of a child that ends while a trap comes in, bash may miss the end, and then its wait
  # lasts as long as there is another child.
  for pid in ${WATCH_PID-} ${KILLER_PID-}; do kill -KILL "$pid" 2>/dev/null || :; done
  for pid in ${WATCH_PID-} ${KILLER_PID-}; do { wait "$pid"; } 2>/dev/null || :; done
  WATCH_PID='' KILLER_PID=''
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

# Is no required item a folder?
names_files() {
  local item
  for item in "${REQUIRED[@]}"; do [[ ! -d $CELL_DIR/$item ]] || return 1; done
}

# lib/classify.bash: why did a cell end? A class with its evidence, for what to do next hangs on it.
# needs: exit log room evidence
# Never a guess: without evidence a death by signal is "killed", and an error is a "bug".
# reads: SECRET_NAMES SECRET_VALUES STOP_SIGNAL LIMIT_HIT CELL_RC CELL_LOG CELL_DIR D OOM_BEFORE OOM_AFTER

# A signal's name, into REPLY.
signal_name() { # <number>
  REPLY=$(kill -l "$1" 2>/dev/null) || REPLY=$1
  REPLY=SIG${REPLY#SIG}
}

# What a line says, in awk: the class, or nothing. By what a message is about (a word for the memory and one for the device, a
# word for the connection and one for its end), for each library says it in its own way. No {n,m}: not every awk knows it.
readonly CLASS_OF_LINE='
function class_of(l) {
  if (l ~ /No usable temporary directory found/) return "disk_full"
  if (l ~ /^AssertionError.*([Nn]a[Nn]|[Nn]on-?finite|not finite)([^a-z]|$)/) return "non_finite"
  # These name a mistake in the code, whatever words they quote.
  if (l ~ /^([A-Za-z_]+\.)*(TypeError|KeyError|IndexError|AttributeError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NotImplementedError|ZeroDivisionError|FileNotFoundError|AssertionError)(:|$)/) return ""
  if (is_oom_shared(l)) return "oom_host"
  if (is_disk_full(l)) return "disk_full"
  if (is_oom_gpu(l)) return "oom_gpu"
  if (is_oom_host(l)) return "oom_host"
  if (is_killed(l)) return "killed"
  if (is_transient(l)) return "transient"
  if (is_non_finite(l)) return "non_finite"
  return ""
}
# Files of shared memory by their names: a disk that is full is another thing.
function is_oom_shared(l) {
  return l ~ /insufficient shared memory|out of shared memory|unable to (mmap|write to file|open shared memory).*\/(torch_|dev\/shm)/
}
function is_disk_full(l) {
  return l ~ /[Nn]o space left on (the )?d|[Dd]isk quota exceeded|[Ee]rrno ?=? ?28[^0-9]|ENOSPC|[Ee]rrno ?=? ?122[^0-9]|EDQUOT|StorageFull|DiskFull/ || l ~ /iostream error|PytorchStreamWriter failed|inline_container.*(unexpected pos|write)|unexpected pos [0-9]+ vs|[Ww]rite incomplete|fwrite.*(== size|[Ff]ailed)/ || l ~ /(disk|file ?system|volume|device) (or disk )?(is )?full|[Nn]ot enough (free )?(disk )?space|[Ii]nsufficient disk space/
}
function is_oom_gpu(l) {
  if (l ~ /CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|_ALLOC_FAILED|OOM when allocating tensor/) return 1
  if (l ~ /(RESOURCE_EXHAUSTED|[Rr]esource exhausted).*([Oo]ut of memory|OOM|allocat)|ResourceExhaustedError|gpu_memory_utilization|GPU memory utilization|memory for the cache blocks/) return 1
  if (l ~ /([Oo]ut of (the )?memory|[Ff]ailed to allocate|[Cc]annot allocate|memory allocation)/ && l ~ /CUDA|[Cc]uda|HIP|hip[A-Z]|GPU|MPS|XPU|NPU|device|BFC|bfc_|torch\.OutOf|cupy|cuMem/) return 1
  return l ~ /(^|[^a-z])OutOfMemoryError/ && !(l ~ /java\.|ray\./)
}
function is_oom_host(l) {
  if (l ~ /^([A-Za-z_.]*\.)?(_ArrayMemoryError|ArrowMemoryError|MemoryError)|std::bad_alloc|[Cc](annot|ould not|an.t) allocate (memory|vector|[0-9])|DefaultCPUAllocator: (can.t|not enough)|[Uu]nable to allocate [0-9.]+ [KMGT]iB/) return 1
  if (l ~ /memory allocation of [0-9]+ bytes failed|malloc of size [0-9]+ failed|[Oo]ut of memory allocating|(java|ray)\.[a-z.]*OutOfMemoryError|[Hh]eap out of memory|(runtime|fatal error): out of memory/) return 1
  return l ~ /[Oo][Oo][Mm][-_ ]?[Kk]ill|[Oo]ut of memory: Kill|[Ee]xceeded (job |step |its )?memory limit|low on memory|: Out Of Memory$|memory cgroup out of memory/
}
function is_killed(l) {
  return l ~ /(worker|[Pp]rocess) .*killed by signal: Killed|: line [0-9]+: +[0-9]+ Killed|task [0-9-]+: Killed/ || l ~ /(exit ?code|return ?code|returncode|status|code)[ :=]*-9([^0-9]|$)|(Signals\.|\()SIGKILL|(on|by|with) signal 9/
}
function is_transient(l) {
  # An answer that a repetition does not change.
  if (l ~ /40[1346] (Client Error|Unauthorized|Forbidden|Not Found)|[Ee]rror 40[134]|[Pp]ermission|Unauthorized|Forbidden|Access ?Denied|[Ii]nvalid (API|api|usage|credentials)|ncclInvalid/) return 0
  if (l ~ /(Temporary failure|failure) in name resolution|Name or service not known|getaddrinfo failed|([Cc]ould not|[Uu]nable to|[Cc]annot|[Ff]ailed to) (resolve|look ?up) |nodename nor servname|no such host/) return 1
  if (l ~ /[Cc]onnection (was |has been |is )?([a-z]+ )?(reset|refused|aborted|timed out|broken|closed|lost|terminated|dropped)|(ConnectionReset|ConnectionRefused|ConnectionAborted|Connection|Network|DistNetwork|DistStore|Protocol|Disconnected?)Error|ConnectionLost|RemoteDisconnected|[Ss]erver ?[Dd]isconnected|ConnectTimeout|ClientConnector|(Network|Host) is unreachable|No route to host|hung up unexpectedly|unexpected disconnect|early EOF|(send|sending|write|socket|connection|disconnect)[^a-z].*[Bb]roken pipe|got 0 bytes|network (error|issue|failure)|remote process exited/) return 1
  if (l ~ /([Rr]ead|[Rr]eceive|recv|[Cc]onnect|[Ss]ocket|[Hh]andshake|[Rr]equest|[Rr]esponse|[Oo]peration|initialization|[Dd]ownload|urlopen error|[Ww]aiting .*) ?(has |was )?[Tt]imed? ?out|(i\/o|I\/O|gateway|socket\.) ?timeout|(Read|Connect|Write|Pool|Request|Socket|Gateway|Net)[a-z]*Timeout(Error|Exception)?|^([a-z]+\.)*(timeout|TimeoutError): timed out|urlopen error .*timed out|Timed out (after|waiting)|[Tt]imed out after [0-9]+ ?(m?s|milli|seconds).*(wait|connect|receiv|download)/) return 1
  if (l ~ /Max retries exceeded|retries exhausted|ChunkedEncodingError|IncompleteRead|TLS handshake|SSLEOFError|SSLZeroReturn|SSL_ERROR_SYSCALL|(SSL|TLS)[^a-z].*([Ee][Oo][Ff]|closed|reset)/) return 1
  if (l ~ /(HTTP|status|code|Error|error)[^0-9a-z][^0-9a-z]?[^0-9a-z]?[^0-9a-z]?(429|500|502|503|504)([^0-9]|$)|(^|[^0-9])(429|500|502|503|504) (Client|Server|Too|Bad|Service|Gateway|Internal|GET|PUT|POST|HEAD)|Too Many Requests|Bad Gateway|Service ?Unavailable|Gateway Time-?out|too many (429|50[0-9])|StatusCode\.(UNAVAILABLE|DEADLINE)|SlowDown|reduce your request rate|Throttling|RequestTimeout|\(InternalError\)|[Rr]ate limit(ed)? exceeded/) return 1
  if (l ~ /^curl: \((5|6|7|16|18|28|35|52|55|56|92)\)|^wget: unable to|^Giving up\.|rsync error: (error in socket|timeout|.*\(code (10|12|30|35)\))|^ssh: connect to host|kex_exchange_identification/) return 1
  if (l ~ /wandb.*(CommError|run initialization has timed out|init.*timed out|ServiceStartTimeout)|CommError|[Ee]rrno (104|110|111|101|113)[^0-9]|Address already in use|EADDRINUSE/) return 1
  return l ~ /NCCL.*(unhandled system error|Timeout at)|nccl(Remote|System)Error|collective operation timeout|LocalEntryNotFoundError|[Cc]heck your internet connection|[Cc]ouldn.t (connect to (.http|server)|reach )|[Cc]ould not connect to|Failed to (connect to .* port|establish a new connection)|RendezvousConnectionError|[Ss]tale (NFS )?file handle|file should be of size/
}
function is_non_finite(l) {
  if (l ~ /[Ll]oss returned .* is (nan|NaN|inf)|[Ll]oss (is|was|became|has become|=+|:) *([Nn]a[Nn]|-?[Ii]nf)([^a-z]|$)|([Nn]a[Nn]|[Ii]nf|[Nn]on-?finite)( (or|and) [A-Za-z]+)? (loss|gradient|grad|values? (in|for)|encountered|found|detected|weights|metric)|[Nn]on-finite|not finite|contains? (NaN|nan|Inf|infinity|.inf|.nan)/) return 1
  if (l ~ /FloatingPointError|returned nan values|contains either .inf., .nan.|Expected parameter .* but found invalid values|(gradient|grad)s? (norm )?(is|contains?|are) (bad: )?(nan|NaN|inf|non)|diverged/) return 1
  return l ~ /(found|had|has|have|got|value|not contain) (any )?([Nn]a[Nn]s?|[Ii]nfs?|infinite)([^a-z]|$)|[Ll]oss scale.*(minimum|cannot decrease)|[Ii]nvalid loss|CheckNumerics/
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
    # What launchers and loggers put before a line: colours, the rank or actor, the time, words in brackets.
    {
      gsub(/\033\[[0-9;]*m/, "")
      while (sub(/^\[?rank ?[0-9]+\]?:? ?/, "") || sub(/^\([A-Za-z0-9_.]+ (\([^)]*\) )?pid=[0-9]+[^)]*\) ?/, "") || sub(/^[0-9][0-9][0-9][0-9][-\/][0-9][0-9][-\/][0-9][0-9][T ][0-9:.,]+Z? ?/, "") || sub(/^\[[^]]*\]:? ?/, "")) continue
      sub(/[ \t]+$/, "")
    }
    /^gpu-runbook: / || /^$/ { next }
    { line[++n] = $0 }
    END {
      chained = 0; weak = ""; broken = ""
      for (i = n; i > 0 && i > n - 120; i--) {
        l = line[i]
        # A launcher only reports that a child has failed.
        if (l ~ /^([a-z_]+\.)*(ChildFailedError|ProcessRaisedException|ProcessExitedException)(:|$)|DataLoader worker .*exited unexpectedly|^Aborted/) continue
        if (l ~ /^(During handling of the above exception|The above exception was the direct cause)/) { chained = 1; continue }
        # Lines of code in a traceback are quotations, not events.
        if (l ~ /^ +(File "|raise |return |[\^~]+$)/) continue
        if (broken == "" && is_broken(l)) broken = "bug\tthe machine, not the code: " l
        c = (l ~ /^    / && !(l ~ /[Ee]rror|WARNING|FATAL/)) ? "" : class_of(l)
        # A milder sign counts only where it stands at the very end or is the error itself.
        if ((c == "transient" || c == "non_finite") && !ends_it(l) && !(l ~ /(Error|error|ERROR|fatal|FATAL|Fatal|failed|Failed|abort|Abort|stopping|Stopping|diverged|giving up|[Ee]nding|[Tt]erminat|killed)/) && i < n - 2) c = ""
        # The other ranks, the workers and the helping threads of a process that dies complain too, and trackers still talk: what it
        # died of stands before. Only where nothing stands there it is this.
        if (c == "transient" && weak == "" && (is_complaint(l) || (ends_it(l) && in_thread(i)))) weak = c "\t" l
        if (c != "" && !(weak != "" && c == "transient")) { print c "\t" l; exit }
        if (c == "" && ends_it(l) && !in_thread(i) && !(weak != "" && l ~ /^terminate called/)) {
          if (!chained && !followed_up(i)) { weak = ""; break }
          chained = 0
        }
      }
      # Still a bug, for nothing is gained by running it again here; but another one has to look for it.
      if (broken != "") print broken; else if (weak != "") print weak
    }
    function is_broken(l) {
      return l ~ /ECC_UNCORRECTABLE|[Uu]ncorrectable ECC|fallen off the bus|GPU is lost|NVRM: Xid|Unable to determine the device handle|[Dd]river version is insufficient|[Dd]river\/library version mismatch|Found no NVIDIA driver|SYSTEM_DRIVER_MISMATCH|SystemNotReady|system not yet initialized|no kernel image is available|[Ee]rrno 5[^0-9]|Input\/output error|[Ee]rrno 30[^0-9]|Read-only file system/
    }
    function is_complaint(l) {
      return l ~ /NCCL|nccl|collective operation|gloo|TCPStore|c10d|Dist(Network|Store|Backend)Error|(reset|closed) by peer|[Bb]roken pipe|remote process|got 0 bytes|^wandb: |retry loop|[Rr]etry(ing)? /
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

# The last line of a log that is the program's own and says something, into REPLY; empty where there is none.
last_words() { # <log>
  REPLY=$(tail -c 65536 -- "$1" 2>/dev/null | LC_ALL=C tr -d '\000-\010\013-\037\177' | grep -a '[[:alnum:]]' | grep -av '^gpu-runbook: ' | tail -n 1) || :
  mask_secrets "$REPLY"
  REPLY=${REPLY:0:200}
}
# What a record quotes from a log travels home and is read by others: the value of a secret does not. Before any cut.
mask_secrets() { # <text>    into REPLY
  local i
  REPLY=$1
  [[ -n ${SECRET_NAMES[0]+x} ]] || return 0
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do
    ((${#SECRET_VALUES[i]} < 6)) || REPLY=${REPLY//"${SECRET_VALUES[i]}"/[${SECRET_NAMES[i]}]}
  done
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
    mask_secrets "$said"
    WHY="exit $CELL_RC; log: ${REPLY:0:300}"
  fi
  if [[ -z $WHY ]]; then
    last_words "$CELL_LOG"
    WHY="exit $CELL_RC; ${REPLY:+its last words: $REPLY; }nothing in the log speaks for another cause"
  fi
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
    SIGXFSZ) CLASS=killed WHY="$name: a file met the limit of a file's size (ulimit -f)" ;;
    SIGXCPU) CLASS=killed WHY="$name: the limit of CPU time was met (ulimit -t)" ;;
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
# needs: exit log path file record proc hash room run queue results bundle claim cellenv limits group evidence classify
# reads: CELL QUEUE_FILE ADOPT SELF_DIR and what open_run sets

# The cell's command and index, from the one reader of queues. Sets COMMAND COMMAND_SHA CELL_INDEX.
find_cell() {
  local REPLY file=${QUEUE_FILE:-$D/queue.tsv} i known=''
  [[ -n $QUEUE_FILE || -e $file ]] || file=$SELF_DIR/queue.tsv
  COMMAND_SHA=''
  # Run_queue, and only the one that is our parent, hands over what it has read of the run's own queue.
  if [[ $file == "$D/queue.tsv" && ${QUEUE_PID-} == "$PPID" && ${QUEUE_CELL-} == "$CELL" && ${QUEUE_AT-} =~ ^[0-9]{1,8}$ && ${QUEUE_SHA-} =~ ^([0-9a-f]{64})?$ ]]; then
    # shellcheck disable=SC2153,SC2154 # from run_queue's environment
    COMMAND=$QUEUE_COMMAND COMMAND_SHA=$QUEUE_SHA CELL_INDEX=$QUEUE_AT
    index_and_digest
    return
  fi
  if [[ $file != "$D/queue.tsv" && -e $D/queue.tsv ]]; then
    read_queue "$D/queue.tsv"
    queue_index "$CELL" && known=${QUEUE_COMMANDS[REPLY]}
  fi
  read_queue "$file"
  queue_index "$CELL" || refuse "$EX_CONFIG" "cell $CELL" "it is not in $file" "names there: ${QUEUE_NAMES[*]:0:5} …"
  i=$REPLY
  COMMAND=${QUEUE_COMMANDS[i]} CELL_INDEX=$i
  [[ -z $known || $known == "$COMMAND" ]] || refuse_command "the run's own queue $D/queue.tsv has another"
  index_and_digest "$file"
}
# The run's own queue holds one shard: its k-th cell is the source's k*N + I-1.
index_and_digest() { # [source of the command, where it is not the run's own queue]
  local REPLY
  [[ -n ${1-} && $1 != "$D/queue.tsv" ]] || CELL_INDEX=$((CELL_INDEX * ${RUN_SHARD#*/} + ${RUN_SHARD%/*} - 1))
  [[ -z $COMMAND_SHA ]] || return 0
  hash_text "$COMMAND" || refuse "$EX_MISSING" "hashing" "the command's digest cannot be made" "look at openssl and sha256sum"
  COMMAND_SHA=$REPLY
}
refuse_command() { # <why>
  refuse "$EX_GATE" "cell $CELL" "its command was changed: $1" "undo the change and continue, or begin anew with RUN=$JOB.2"
}

# What this call is to do, into CELL_NEXT: nothing, sync or run. Refuses 75, 77.
judge_cell() {
  local REPLY rc=0 path
  CELL_NEXT=run
  # A folder there would swallow what is renamed onto it.
  for path in "$D/state/$CELL.json" "$D/state/$CELL.sha256" "$B/records/$CELL.json" "$B/records/$CELL.sha256"; do
    [[ ! -d $path ]] || refuse "$EX_INTEGRITY" "$path" "it is a folder, and a file of ours is to be there" "look at what made it, and move it away"
  done
  check_bundled "$CELL" || rc=$?
  if ((rc == 0)); then
    [[ $R_command_sha256 == "$COMMAND_SHA" ]] || refuse_command "$B/records/$CELL.json is of another"
    CELL_NEXT=nothing
    return 0
  fi
  rc=0
  read_record "$D/state/$CELL.json" cell/1 "$RUN_ID" || rc=$?
  ((rc != 2)) || { record_fault "$D/state/$CELL.json" && log "cell $CELL: $D/state/$CELL.json: $REPLY of this run: unknown, so it is run again"; }
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
  if ! still_flushed "${R_why-}"; then
    log "cell $CELL: it finished in an earlier boot, before its files were flushed: unknown, so it is run again"
  elif has_evidence; then
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
    unread) refuse "$EX_INTEGRITY" "cell $CELL" "$CLAIM_SAID, not a claim: nobody knows whether it is being run" "where no run_one.sh of it is at work, move that away" ;;
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
make_folders() { # sets STAGE, the folder in which the copy will be made
  local dir
  local -a dirs=()
  gate_write
  STAGE=$B/.syncing/$CELL.$$
  # From our own look ahead of time it is empty; a dead one's under our number the sync removes.
  [[ ! -e $STAGE && ! -L $STAGE ]] || is_empty_folder "$STAGE" || STAGE=''
  for dir in "$D/claims/$CELL" "$D/logs/$CELL" "$D/state" "$B/records" "$B/final_ckpts" "$S/cache" "$S/t/$CELL_INDEX" ${STAGE:+"$STAGE"}; do
    [[ -d $dir ]] || dirs+=("$dir")
  done
  [[ -e $CELL_DIR || -L $CELL_DIR ]] || dirs+=("$CELL_DIR")
  ((${#dirs[@]} == 0)) || mkdir -p -- "${dirs[@]}" 2>/dev/null || refuse_folders
  mark_scratch || refuse "$EX_NOROOM" "$S" "it cannot be written" "look at SCRATCH=$SCRATCH: room, rights"
  drop_dead_room
}

refuse_folders() { # reads make_folders' own: dirs
  local dir tier=data
  for dir in "${dirs[@]}"; do
    [[ -d $dir ]] || mkdir -p -- "$dir" 2>/dev/null || break
  done
  case $dir in "$D"/*) ;; "$B"/*) tier=durable ;; *) tier=scratch ;; esac
  refuse_write "$EX_NOROOM" "$dir" "the folder cannot be made" "$tier"
}

# Room that killed attempts have kept; a living runner's stays. In a container nobody may collect the dead: they stay as zombies.
drop_dead_room() {
  local REPLY file pid
  for file in "$D/state/.$CELL.json."*.tmp "$B/records/.$CELL.json."*.tmp; do
    pid=${file%.tmp}
    pid=${pid##*.}
    [[ ! -e $file ]] || start_ticks "$pid" || rm -f -- "$file"
  done
  # Where theirs was to be copied: a cell that never ends well is never synced, which would see to it.
  drop_own_leftovers "$CELL" || log "an earlier attempt's folder in $B/.syncing cannot be removed"
}

# The claim, then a clean folder, then the record that says running.
take_cell() {
  local REPLY rc=0
  CELL_RESUME=$((CLAIM_N > 0)) CELL_PID='' CELL_ALIVE=0 STOP_SIGNAL='' STOP_GRACE='' LIMIT_HIT='' WAKES=0 KILLER_PID='' WATCH_PID=''
  CELL_EXIT='' CELL_SIGNAL='' ENDED='' CELL_RC=0 PEAK_MEMORY='' OOM_BEFORE='' OOM_AFTER='' LOG_LOST=0 LOOKING=0
  trap 'on_stop TERM' TERM
  trap 'on_stop INT' INT
  trap 'on_stop HUP' HUP
  trap 'on_stop USR1' USR1
  trap 'on_limit' USR2
  if ((PROBED)); then take_claim "$CELL" || rc=$?; else take_claim "$CELL" "${PROBES[@]}" || rc=$?; fi
  if ((rc == 0 && PROBED == 0)) && ! read_probes; then
    withdraw_claim
    refuse_probe "$REPLY"
  fi
  ((rc == 0)) || drop_room
  case $rc in
    0) ;;
    "$EX_COPY") refuse_probe "${PROBES[0]}" ;;
    "$EX_BUSY") refuse "$EX_BUSY" "cell $CELL" "another runner was quicker" "leave it to that one" ;;
    *) refuse "$EX_NOROOM" "$D/claims/$CELL" "the claim cannot be written" "look at the data tier: room, rights" ;;
  esac
  printf -v CELL_LOG '%s/logs/%s/attempt-%03d.log' "$D" "$CELL" "$ATTEMPT"
  # Whoever ran it before may have died and left the trainer alive.
  ((CLAIM_N == 0)) || { sweep_cell "$RUN_ID/$CELL/" '' "$GRACE_S" 0 && name_cut_files; }
  clean_folder
  [[ -d $CELL_DIR ]] || mkdir -p -- "$CELL_DIR" || refuse "$EX_NOROOM" "$CELL_DIR" "the folder cannot be made" "look at the data tier: room, rights"
  utc_now
  STARTED=$REPLY
  # Lost in a power cut, it is unknown, as it would be with it: the claim is flushed already.
  write_cell running '' '' begun || refuse "$EX_NOROOM" "$D/state/$CELL.json" "it cannot be written" "look at the data tier: room, rights"
  trap - EXIT
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
  local REPLY url=''
  [[ ! -f $CELL_DIR/tracker_url ]] || { IFS= read -r -n 2000 url <"$CELL_DIR/tracker_url"; } 2>/dev/null || :
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
    if [[ ! -e $D/state/$CELL.json && ! -L $D/state/$CELL.json ]]; then
      { printf '%s' "$RECORD" >"$D/state/$CELL.json"; } 2>/dev/null && read_text "$D/state/$CELL.json" && [[ $REPLY == "$RECORD" ]]
      return
    fi
    set -- "${@:1:3}" soon
  fi
  replace_file "$D/state/$CELL.json" "$RECORD" "${@:4}"
}

# The record that says finished, at first for this boot alone: its bytes are not flushed yet. Few are by the copy, which takes a
# moment; before the copy of more they are flushed here, and the record then says no more of a boot.
write_finished() { # returns: 0, or 74
  local REPLY looked=0
  [[ $LOOKING == 1 ]] || ! begin_look "$CELL" 2>/dev/null || LOOKING=1
  this_boot_id
  write_cell unsynced '' "$UNFLUSHED$REPLY" soon || return
  # What cannot be listed the sync will name.
  ((LOOKING == 0)) || ! end_look "$CELL" 2>/dev/null || looked=1
  if ((looked == 0)) || { ((LIST_BYTES < SMALL_BYTES)) && [[ $REPLY != unknown ]]; }; then return 0; fi
  find_behind
  keep_room
  write_cell unsynced '' '' behind ${BEHIND[@]+"${BEHIND[@]}"}
}

# What a finished cell has left, for the flush that stands before its record: a record that survives a power cut speaks of
# bytes that have survived it too. Into BEHIND.
find_behind() {
  local path
  BEHIND=()
  list_paths "$CELL_DIR" 2>/dev/null || return 0
  if ((${#LIST_PATHS[@]} > 500)); then
    sync
  else
    for path in "${LIST_PATHS[@]}"; do BEHIND+=("$CELL_DIR/$path"); done
  fi
}

# --- signals: the trap does the work, for a wait that has just begun would not look at a flag ---

on_stop() { # <signal>
  WAKES=$((WAKES + 1))
  [[ -z $STOP_SIGNAL ]] || { lengthen_grace && return 0; }
  STOP_SIGNAL=$1
  choose_grace "$1"
  LATE="signal $1: cell $CELL is told, and has $STOP_GRACE s to save"
  ((CELL_ALIVE == 0)) || forward_stop
}
forward_stop() {
  # A terminal that is closed means stop; trainers save on TERM, few know HUP.
  if [[ $STOP_SIGNAL == HUP ]]; then end_group TERM; else end_group "$STOP_SIGNAL"; fi
}
on_limit() {
  WAKES=$((WAKES + 1))
  [[ -z $STOP_SIGNAL$LIMIT_HIT ]] || return 0
  if ((WALL_S > 0 && (STALL_S == 0 || SECONDS - BEGAN >= WALL_S))); then
    LIMIT_HIT="wall limit of $WALL_S s"
  else
    LIMIT_HIT="stall limit: neither its log nor its folder changed for $STALL_S s"
  fi
  LATE="cell $CELL: $LIMIT_HIT; it has $GRACE_S s to save"
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
  log_is_file || LOG_LOST=1
  ((LOG_LOST == 0)) || return 0
  printf 'gpu-runbook: cell %s attempt %s run %s started %s resume %s command %s environment %s gpu %s\n' "$CELL" "$ATTEMPT" "$RUN_ID" "$STARTED" \
    "$CELL_RESUME" "$COMMAND_SHA" "$ENV_SPEC" "${GPU_SAID:-none asked for}" 2>/dev/null >>"$CELL_LOG" || LOG_LOST=1
  ((LOG_LOST == 0)) || return 0
  if [[ -z $STOP_SIGNAL ]]; then
    put_text "$D/logs/$CELL/.peak" '' || :
    start_group "$CELL_LOG" prepare_child "$BASH" -c "$COMMAND"
    CELL_ALIVE=1
    [[ -z $STOP_SIGNAL ]] || forward_stop
    watch_cell $$ </dev/null >/dev/null 2>&1 &
    WATCH_PID=$!
    wait_group
    CELL_ALIVE=0
    # Looked at beside what follows, where what is required has a name of its own: a folder may get a file until the last process
    # of the cell is gone, and one that is found alive has all be looked at again.
    if ((CELL_RC == 0)) && names_files && begin_look "$CELL" 2>/dev/null; then LOOKING=1; fi
    stop_watchers
    ! read_text "$D/logs/$CELL/.peak" || PEAK_MEMORY=${REPLY%$'\n'}
    [[ $PEAK_MEMORY =~ ^[0-9]+$ ]] || PEAK_MEMORY=''
    sweep_cell "$RUN_ID/$CELL/$ATTEMPT" "$CELL_PID" 5 "$MY_TICKS"
  fi
  utc_now
  ENDED=$REPLY
  oom_count
  OOM_AFTER=$REPLY
  if ! log_is_file || ! printf 'gpu-runbook: ended %s status %s\n' "$ENDED" "$CELL_RC" 2>/dev/null >>"$CELL_LOG"; then LOG_LOST=1; fi
  ((CELL_RC < 0)) || CELL_EXIT=$CELL_RC
  ((CELL_RC <= 128 || CELL_RC >= 193)) || CELL_SIGNAL=$((CELL_RC - 128))
}

# What lies in the log's place and is no file is never opened: a FIFO would wait for ever.
log_is_file() {
  [[ -f $CELL_LOG || (! -e $CELL_LOG && ! -L $CELL_LOG) ]]
}

# From the facts of the attempt to its record. Returns run_one's exit code.
judge_end() {
  local REPLY='' missing='' LEAKS=''
  [[ ! -f $CELL_LOG ]] || find_leaks "$CELL_LOG"
  if [[ -n $LEAKS ]]; then
    log "warning: the log of cell $CELL holds the value of: $LEAKS; do not publish $CELL_LOG, and renew it"
    printf 'gpu-runbook: this log holds the value of: %s\n' "$LEAKS" 2>/dev/null >>"$CELL_LOG" || :
  fi
  if ((LOG_LOST)); then
    judge_lost_log
  else
    has_evidence || missing=$REPLY
    if [[ $CELL_RC -eq 0 && -z $STOP_SIGNAL && -z $LIMIT_HIT && -z $missing ]]; then
      write_finished || refuse "$EX_NOROOM" "$D/state/$CELL.json" "it cannot be written" "look at the data tier: room, rights; then run this again"
      finish_sync
      return
    fi
    classify_end "$missing"
  fi
  write_failed
}

judge_lost_log() {
  local REPLY
  CLASS=disk_full WHY="its log $CELL_LOG could not be written to the end"
  if write_fault "${CELL_LOG%/*}"; then
    WHY="$REPLY; $WHY"
  elif [[ ! -d ${CELL_LOG%/*} || (-e $CELL_LOG && ! -w $CELL_LOG) ]] || ! log_is_file; then
    # No disk did that, and room would not help.
    CLASS=bug WHY="its log $CELL_LOG, or the folder of it, was removed, replaced or closed to us, so nobody knows what it has said"
  fi
  classify_disk
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
  [[ $CLASS != disk_full || $LOG_LOST == 0 ]] || return "$EX_NOROOM"
  [[ -z $LIMIT_HIT ]] && ((CELL_RC != 0)) || return "$EX_FAIL"
  return "$CELL_RC"
}

# The results into the bundle; the record says done only behind that. Returns 0, 65, 73 or 74.
finish_sync() {
  local rc=0 attempt
  sync_cell "$CELL" || rc=$?
  if ((rc == 0)); then
    event 'done' "$CELL" "$R_attempt" ''
    prune_cell
    return 0
  fi
  read_record "$D/state/$CELL.json" cell/1 "$RUN_ID" || return "$EX_INTEGRITY"
  attempt=$R_attempt
  case $rc in "$EX_INTEGRITY" | "$EX_NOROOM") ;; *) rc=$EX_COPY ;; esac
  # A link that leads nowhere, a file that nobody may read: the copies of other cells do not fail by it.
  [[ -z $OWN_FAULT ]] || rc=$EX_INTEGRITY
  drop_room
  find_behind
  cell_record unsynced "not in the bundle yet (code $rc)" "${R_files_sha256-}" && replace_file "$D/state/$CELL.json" "$RECORD" behind ${BEHIND[@]+"${BEHIND[@]}"} || :
  event unsynced "$CELL" "$attempt" "code $rc"
  ! write_fault "$B" || log "$REPLY, so nothing can be copied there: mount the durable tier for writing again; then the same call"
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

# lib/ahead.bash: a run_one that run_queue has begun ahead of time: told of its cell, it looks, and waits for the word to go.
# needs: exit file limits cell
# reads: PROXY_HOOK NEED_GPUS DATA_PATHS

# Which cell, and what run_queue knows of it already. Where nothing comes, run_queue is gone or has none left.
hear_cell() { # sets CELL and what else is handed over    returns: 1 where nothing comes
  # By bytes: in another locale a command's last byte, should it begin a character, takes the end of the line with it.
  local line n LC_ALL=C
  local -a said=()
  # No command of ours is to read what is meant for us.
  exec {TOLD_FD}<&0 </dev/null
  for n in 1 2 3 4 5 6; do
    IFS= read -r -u "$TOLD_FD" line && [[ $line == =* ]] || return 1
    said+=("${line#=}")
  done
  CELL=${said[0]} QUEUE_CELL=${said[0]} QUEUE_AT=${said[1]} QUEUE_SHA=${said[2]} QUEUE_COMMAND=${said[5]}
  # Which environment this is comes with the word to go; nobody is to ask for it before.
  export OMP_NUM_THREADS=${said[3]} ENV_SPEC=00000000
  [[ -z ${said[4]} ]] || export CUDA_VISIBLE_DEVICES=${said[4]} CUDA_DEVICE_ORDER=PCI_BUS_ID
}

# While another cell runs, without a word. Should there be one to say, it is found again and said when it is our turn: by us, or,
# where it refuses the cell, by a run_one that is begun then. GPUs, data and a proxy are not looked at while others use them.
prepare_ahead() { # sets PREPARED_AT
  PREPARED_AT=-1 STAGE=''
  [[ -z $PROXY_HOOK ]] && ((NEED_GPUS == 0 && ${#DATA_PATHS[@]} == 0)) || return 0
  exec {SAID_FD}>&2 2>/dev/null
  trap 'drop_room; exit "$EX_AGAIN"' EXIT
  LOGGED=0
  prepare
  # The probes too: what is behind the word to go has less to flush.
  if [[ $CELL_NEXT == run ]] && flush "${PROBES[@]}" && read_probes; then PROBED=1; fi
  trap drop_room EXIT
  exec 2>&"$SAID_FD" {SAID_FD}>&-
  ((LOGGED != 0)) || PREPARED_AT=$SECONDS
}

await_go() { # returns: 1 where the word does not come
  local line
  IFS= read -r -u "$TOLD_FD" line && [[ $line == 'go '* ]] || return 1
  ENV_SPEC=${line#go }
  # Run_queue had no cell when it would have asked.
  [[ -n $ENV_SPEC ]] || PREPARED_AT=-1
  exec {TOLD_FD}<&-
}

usage() {
  cat <<'USAGE'
usage: run_one.sh [--queue FILE] [--adopt] CELL | --wait

Runs the command that the queue gives CELL, once: in the code directory, in a process group of its own, its output in a log
of its own. It counts as done only when the command ends with 0, every required artifact is there and not empty, and
the copy in the bundle reads back as its source. A later call resumes: same folder, identical command, CELL_RESUME=1. A cell that
is done is not run again. TERM, INT, HUP and USR1 reach the whole group once; after the grace it is killed.

--queue FILE  take the command from FILE (default: the run's own queue, else queue.tsv beside this script)
--adopt       the box that had this run, or its claims, is gone for good: take over
--wait        for run_queue: wait to be told of a cell on standard input, and end where nothing comes

exit codes: 0 done and checked; the command's own code where it failed; 1 no evidence, a limit; 64 usage, 65 integrity,
69 missing, 73 no room, 74 not copied, 75 somebody runs it, 77 refused, 78 configuration, 128+n stopped by signal n
USAGE
}

parse_words() { # <words...>    sets CELL QUEUE_FILE ADOPT; returns 64
  CELL='' QUEUE_FILE='' ADOPT=false WAIT=false
  while (($#)); do
    case $1 in
      --queue)
        [[ -n ${2-} ]] || return "$EX_USAGE"
        QUEUE_FILE=$2
        shift
        ;;
      --adopt) ADOPT=true ;;
      --wait) WAIT=true ;;
      -*) return "$EX_USAGE" ;;
      *)
        [[ -z $CELL && -n $1 ]] || return "$EX_USAGE"
        CELL=$1
        ;;
    esac
    shift
  done
  if [[ $WAIT == true ]]; then [[ -z $CELL ]]; else [[ -n $CELL ]]; fi
}

main() {
  case ${1-} in -h | --help) usage && return 0 ;; esac
  parse_words "$@" || { usage >&2 && return "$EX_USAGE"; }
  open_outputs
  # The caller's environment may have a STAGE.
  STAGE=''
  # Until the cell begins nothing of ours stays, whatever ends us: whoever looks again may find that another has run it.
  trap drop_room EXIT
  if [[ $WAIT == true ]]; then
    # Nothing was done: 0 would say that the cell is.
    hear_cell || return "$EX_AGAIN"
    prepare_ahead
    await_go || return "$EX_AGAIN"
    still_prepared || prepare
  else
    prepare
  fi
  case $CELL_NEXT in
    nothing) claim 'done already' "cell $CELL" "$B/records/$CELL.json" ;;
    sync)
      drop_dead_room
      finish_sync
      ;;
    run) run_attempt ;;
  esac
}

# All that is to be known, and to hold, before the cell is claimed. May be done twice.
prepare() {
  check_name "$CELL" cell
  open_run false '' "$ADOPT"
  begin_room
  find_cell
  CELL_DIR=$D/cells/$CELL
  judge_cell
  [[ $CELL_NEXT != run ]] || gate_cell
}

# Does what was looked at ahead of time hold? Not for long, and what costs nothing is looked at once more: the cell before may have
# taken a folder away, another runner may have begun this one.
still_prepared() {
  local claim
  ((PREPARED_AT >= 0 && SECONDS >= PREPARED_AT && SECONDS - PREPARED_AT <= 1)) && [[ -d $CODE_DIR && -d $D/state && -d $B/records ]] || return 1
  [[ $CELL_NEXT != run || (-d $D/logs/$CELL && -d $D/claims/$CELL) ]] || return 1
  printf -v claim '%s/claims/%s/%03d' "$D" "$CELL" $((${CLAIM_N:-0} + 1))
  [[ ! -e $claim ]]
}

run_attempt() {
  take_cell
  run_cell
  judge_end
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
