#!/usr/bin/env bash
# run_queue.sh: run all cells of the queue that are not done yet; the same call continues where it was stopped.
# Generated; do not edit. Source: templates/box/run_queue.sh.j2
# To change it, edit the source or profiles/generic-ssh.yaml, then: make profile=generic-ssh
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=run_queue.sh

# --- bound values: profiles/generic-ssh.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=generic-ssh
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier home: survives ssh drop, restart, not stop, destroy
DATA_DIR=${DATA_DIR-"\$HOME/gpu-runs"}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/tmp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-"\$HOME/.cache/huggingface"}
# the interpreter
PY=${PY-python3}
# where it is mounted
readonly DURABLE_TIER_PATH=''
# what shows that the tier is there
readonly DURABLE_PROOF=none
# retries of a transient failure
readonly RETRY_MAX=2
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

# lib/schedule.bash: cells into slots, judged by their records, counted so that the sum is always true.
# needs: exit log file record room run claim states roster idle
# reads: SLOTS SLOT_GPUS RETRY_MAX NEED_S ONLY SKIP_FAILED ADOPT SELF_DIR

# The plan: cells of the roster that this call is to see to. P_NAME, P_AT (their places in the roster), and P_PHASE:
# todo running | ok unsynced interrupted failed skipped busy. Only the first two are not final.
plan_cells() { # of the cells that have come since the last time
  local i name start=${#P_NAME[@]} first=''
  local -a new=()
  for ((i = ROSTER_N; i < ${#QUEUE_NAMES[@]}; i++)); do
    [[ -n $ONLY ]] || { new=("${QUEUE_NAMES[@]:ROSTER_N}") && break; }
    name=${QUEUE_NAMES[i]}
    [[ ,$ONLY, != *",$name,"* ]] || { new+=("$name") && P_AT+=("$i"); }
  done
  ROSTER_N=${#QUEUE_NAMES[@]}
  P_NAME+=(${new[@]+"${new[@]}"})
  [[ -n $ONLY ]] || P_AT=("${!P_NAME[@]}")
  # In the bundle: the usual case, of which there may be very many, and nothing to say of it.
  P_PHASE+=(${new[@]+"${new[@]/*/skipped}"})
  i=$((start - 1))
  for name in ${new[@]+"${new[@]}"}; do
    i=$((i + 1))
    [[ ${RECORD_OF[$name]-} != 1* ]] || continue
    first=${first:-$i}
    P_PHASE[i]=todo
    first_phase "$i"
  done
  ((start > 0)) || NEXT=${first:-${#P_NAME[@]}}
}

# What is done is recognised from the records read in one go; everything else says why it is run again.
first_phase() { # <index>
  local REPLY name=${P_NAME[$1]}
  state_now "$name"
  case $REPLY in
    'done') P_PHASE[$1]=skipped ;;
    pending) ;;
    failed)
      if [[ $SKIP_FAILED == true ]]; then
        P_PHASE[$1]=skipped
        LEFT_FAILED=$((LEFT_FAILED + 1))
        log "cell $name: failed before ($C_CLASS), left alone by --skip-failed"
      else
        log "cell $name: failed before ($C_CLASS): to run again"
      fi
      ;;
    unsynced)
      P_COPY[$1]=1
      log "cell $name: finished, but not in the bundle: to copy again"
      ;;
    unknown) log "cell $name: unknown${C_WHY:+ ($C_WHY)}: to resume" ;;
    *) log "cell $name: ${REPLY}: to resume" ;;
  esac
}

# Counts of phases: C_TODO C_RUNNING C_OK C_UNSYNCED C_INTERRUPTED C_FAILED C_SKIPPED C_BUSY.
count_phases() {
  local REPLY
  count_phase todo && C_TODO=$REPLY
  count_phase running && C_RUNNING=$REPLY
  count_phase ok && C_OK=$REPLY
  count_phase unsynced && C_UNSYNCED=$REPLY
  count_phase interrupted && C_INTERRUPTED=$REPLY
  count_phase failed && C_FAILED=$REPLY
  count_phase skipped && C_SKIPPED=$REPLY
  count_phase busy && C_BUSY=$REPLY
}
# Cells in a phase, into REPLY. No loop over all cells is run for it: the phases differ in their first letter.
count_phase() { # <phase>
  local -a those=()
  # shellcheck disable=SC2206 # the others become nothing and fall away; a phase is one plain word
  ((${#P_PHASE[@]} == 0)) || those=(${P_PHASE[@]/#[!${1:0:1}]*/})
  REPLY=${#those[@]}
}

# --- slots ---

readonly -a TICKS=(0.01 0.02 0.03 0.05 0.1 0.2 0.25)

# Begin cells in free slots, in order, while nothing speaks against it.
fill_slots() {
  local slot
  for ((slot = 0; slot < SLOTS; slot++)); do
    [[ -z $STOPPING && -z $STOP_CODE && -z $PRUNE_WAITS ]] || return 0
    [[ -z ${SLOT_PID[slot]-} ]] || continue
    next_todo || return 0
    begin_cell "$slot" "$REPLY"
  done
}
next_todo() { # index of the next cell to run, into REPLY; 1: there is none
  while ((NEXT < ${#P_NAME[@]})); do
    REPLY=$NEXT
    [[ ${P_PHASE[NEXT]} != todo ]] || return 0
    NEXT=$((NEXT + 1))
  done
  return 1
}

# The next run_one is begun while this cell runs: it reads its own script meanwhile and, told which cell will probably be its,
# looks at what must hold before that. Then it waits for the word, by a pipe that nobody but us can write to: so it ends with us.
warm_up() { # [index of the cell]    sets WARM_PID WARM_INDEX GO_FD
  [[ -z $WARM_PID && -z $STOPPING$STOP_CODE ]] || return 0
  exec {GO_FD}<> <(:)
  QUEUE_PID=$$ OVERRIDES_SAID=1 bash "${RUN_ONE[@]}" --wait <"/proc/self/fd/$GO_FD" {GO_FD}>&- &
  WARM_PID=$! WARM_INDEX=''
  # Of several slots the one that will be free has its own GPUs.
  if (($# > 0 && SLOTS == 1)); then
    have_digest "$1"
    tell_warm "$1" "${P_AT[$1]}" "${SLOT_GPUS[0]-}" || :
  fi
}
# What run_one would else read, hash and find out again.
tell_warm() { # <index> <its place in the roster> <GPUs>    returns: 0, or 1 where this command would not fit into a pipe
  local command=${QUEUE_COMMANDS[$2]}
  [[ -n $WARM_PID ]] && ((${#command} <= 15000)) || return 1
  printf '=%s\n' "${QUEUE_NAMES[$2]}" "$2" "${P_SHA[$1]-}" "$OMP_NUM_THREADS" "$3" "$command" >&"$GO_FD"
  WARM_INDEX=$1
}
# The first cell to run, told before all records are read: it will be the first that has none on the data tier, where a look is
# cheap. Should it be another, that one is begun cold.
tell_first() {
  local i
  [[ $SLOTS == 1 && -z $ONLY ]] || return 0
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    [[ ! -e $D/state/${QUEUE_NAMES[i]}.json ]] || continue
    tell_warm "$i" "$i" "${SLOT_GPUS[0]-}" || :
    return 0
  done
}
begin_warm() { # <slot> <index>    returns: 0, or 1: it has to be begun cold
  [[ -n $WARM_PID && -z ${P_COLD[$2]-} && (-z $WARM_INDEX || $WARM_INDEX == "$2") ]] && kill -0 "$WARM_PID" 2>/dev/null || return 1
  if [[ -z $WARM_INDEX ]]; then
    have_digest "$2"
    tell_warm "$2" "${P_AT[$2]}" "${SLOT_GPUS[$1]-}" || return 1
  fi
  printf 'go %s\n' "$ENV_SPEC" >&"$GO_FD"
  exec {GO_FD}>&-
  SLOT_PID[$1]=$WARM_PID WARM_PID=''
}
drop_warm() {
  [[ -n $WARM_PID ]] || return 0
  exec {GO_FD}>&-
  # It may hang at a mount that is dead; who stops us is not to wait for that.
  [[ -z $STOPPING ]] || kill -TERM "$WARM_PID" 2>/dev/null || :
  { wait "$WARM_PID"; } 2>/dev/null || :
  WARM_PID=''
}

begin_cell() { # <slot> <index>
  local REPLY
  P_RETRIES[$2]=${P_RETRIES[$2]-0} P_BLOWS[$2]=${P_BLOWS[$2]-0} P_PRUNED[$2]=${P_PRUNED[$2]-0}
  P_PHASE[$2]=running SLOT_INDEX[$1]=$2 SLOT_BEGAN[$1]=$SECONDS
  last_claim "${P_NAME[$2]}"
  SLOT_CLAIM[$1]=$CLAIM_N
  begin_warm "$1" "$2" || begin_cold "$1" "$2"
  # A signal that came between the fork and this line has not reached it.
  [[ -z $STOPPING ]] || kill -TERM "${SLOT_PID[$1]}" 2>/dev/null || :
}
begin_cold() { # <slot> <index>
  drop_warm
  have_digest "$2"
  # A very long command is no matter for an environment.
  export QUEUE_CELL=${P_NAME[$2]} QUEUE_AT=${P_AT[$2]} QUEUE_COMMAND=${QUEUE_COMMANDS[P_AT[$2]]} QUEUE_SHA=${P_SHA[$2]-}
  ((${#QUEUE_COMMAND} <= 15000)) || QUEUE_CELL='' QUEUE_COMMAND=''
  if [[ -n ${SLOT_GPUS[$1]-} ]]; then
    CUDA_VISIBLE_DEVICES=${SLOT_GPUS[$1]} CUDA_DEVICE_ORDER=PCI_BUS_ID bash "${RUN_ONE[@]}" "${P_NAME[$2]}" </dev/null &
  else
    bash "${RUN_ONE[@]}" "${P_NAME[$2]}" </dev/null &
  fi
  SLOT_PID[$1]=$!
}

# The digests of this cell's command and of those behind it, by one process instead of one for each cell, into P_SHA. Where
# that cannot be done, run_one makes its own.
have_digest() { # <index>
  local i fd
  local -a at=() fds=() paths=()
  [[ -z ${P_SHA[$1]-} && -z ${FEW_FDS-} ]] && command -v sha256sum >/dev/null 2>&1 || return 0
  for ((i = $1; i < ${#P_NAME[@]} && ${#at[@]} < 32; i++)); do
    [[ $i == "$1" || (${P_PHASE[i]} == todo && -z ${P_SHA[i]-}) ]] || continue
    { exec {fd}< <(printf '%s' "${QUEUE_COMMANDS[P_AT[i]]}"); } 2>/dev/null || { FEW_FDS=1 && break; }
    at+=("$i") fds+=("$fd") paths+=("/dev/fd/$fd")
  done
  [[ -n ${FEW_FDS-} ]] || take_digests || FEW_FDS=1
  for fd in ${fds[@]+"${fds[@]}"}; do exec {fd}<&-; done
}
take_digests() { # reads have_digest's own: at paths    returns: 1 where the shell may not open so much
  local i=0 line
  while IFS= read -r line; do
    [[ ${line:0:64} =~ ^[0-9a-f]{64}$ && ${line:66} == "${paths[i]-}" ]] || break
    P_SHA[at[i]]=${line:0:64}
    i=$((i + 1))
  done < <(exec sha256sum "${paths[@]}" 2>/dev/null)
}

# Wait until at least one slot may have ended. With one cell running this sleeps in wait, which a trap interrupts.
await_slot() {
  local REPLY slot pid='' n=0
  ! next_todo || warm_up "$REPLY"
  for ((slot = 0; slot < SLOTS; slot++)); do
    [[ -z ${SLOT_PID[slot]-} ]] || { pid=${SLOT_PID[slot]} && n=$((n + 1)); }
  done
  if ((n == 1)); then
    { wait "$pid"; } 2>/dev/null || :
    say_late
  else
    # Short at first, for cells may be short; longer while nothing ends.
    idle "${TICKS[TICK]}"
    TICK=$((TICK < ${#TICKS[@]} - 1 ? TICK + 1 : TICK))
  fi
}

# Judge every slot whose run_one is gone. A child that bash has collected cannot be signalled any more.
reap_slots() {
  local slot rc of
  for ((slot = 0; slot < SLOTS; slot++)); do
    [[ -n ${SLOT_PID[slot]-} ]] || continue
    ! kill -0 "${SLOT_PID[slot]}" 2>/dev/null || continue
    # A signal that comes in the very moment in which run_one ends may cost bash that end: it would wait for who waits for us.
    [[ -z $STOPPING ]] || drop_warm
    rc=0
    { wait "${SLOT_PID[slot]}"; } 2>/dev/null || rc=$?
    of=("${SLOT_INDEX[slot]}" "$rc" "${SLOT_CLAIM[slot]}" "${SLOT_PID[slot]}" "${SLOT_BEGAN[slot]}")
    SLOT_PID[slot]=''
    TICK=0
    # Behind a good end nothing can speak against the next cell, which need not wait for our words about this one.
    ((rc != 0)) || fill_slots
    judge_slot "${of[@]}"
  done
}

# --- judging, by record and attempt number ---

judge_slot() { # <index> <run_one's exit code> <claims before it> <its pid> <when it began>
  local REPLY i=$1 rc=$2 name=${P_NAME[$1]} took=$((SECONDS - $5)) state=none
  R_class=''
  if read_record "$D/state/$name.json" cell/1 "$RUN_ID"; then state=${R_state-}; elif [[ -e $D/state/$name.json ]]; then state=unknown; fi
  if ! claimed_by "$name" "$3" "$4"; then
    if ((rc == EX_AGAIN)); then
      # Told ahead of time, it has found something that it left for another to say.
      P_PHASE[i]=todo P_COLD[i]=1
      ((NEXT <= i)) || NEXT=$i
      return 0
    fi
    # No attempt of ours: refused, busy, found done, or only the copy was made up for.
    if [[ $state == unsynced && $rc != 0 && $rc != "$EX_BUSY" ]]; then judge_unsynced "$i" "$rc"; else judge_refusal "$i" "$rc"; fi
  elif ((rc != 0)) && never_began "$name" "$state"; then
    judge_refusal "$i" "$rc"
  else
    case $state in
      'done') P_PHASE[i]=ok TOOK=$((TOOK + took)) TOOK_N=$((TOOK_N + 1)) ;;
      unsynced) judge_unsynced "$i" "$rc" ;;
      failed) judge_failed "$i" ;;
      *)
        ((rc != EX_NOROOM)) || stop_unwritten "$name"
        judge_interrupted "$i"
        ;;
    esac
  fi
  say_progress "$i" "$took"
}

stop_unwritten() { # <cell>
  local REPLY
  write_words "$D/state" "cell $1 has run, and its record could not be written" data
  stop_queue "$EX_NOROOM" "$FAULT_WHY; those of the next ones could not either; $FAULT_DO"
}

# Has this run_one taken a claim on the cell behind the N-th, CLAIM_OURS? Its exit code could be the trainer's own.
claimed_by() { # <cell> <claims before it> <pid>
  local n file pid rest
  last_claim "$1"
  for ((n = $2 + 1; n <= CLAIM_N; n++)); do
    printf -v file '%s/claims/%s/%03d' "$D" "$1" "$n"
    [[ -f $file ]] || continue
    { read -r rest rest pid rest <"$file"; } 2>/dev/null || continue
    [[ $pid != "$3" ]] || { CLAIM_OURS=$n && return 0; }
  done
  return 1
}

# Did our attempt end behind its claim and before the cell? Then the record is an older one's or none, the exit code run_one's.
never_began() { # <cell> <state>
  local log
  case $2 in
    none | unknown)
      printf -v log '%s/logs/%s/attempt-%03d.log' "$D" "$1" "$CLAIM_OURS"
      [[ ! -e $log ]]
      ;;
    *) [[ ${R_attempt-} =~ ^[0-9]+$ ]] && ((R_attempt < CLAIM_OURS)) ;;
  esac
}

# Run_one left without beginning an attempt: the record is as it was.
judge_refusal() { # <index> <exit code>
  local name=${P_NAME[$1]}
  case $2 in
    0) # it found the cell committed, by another runner or because it made up for the copy; or its word is worth nothing
      if [[ ! -s $B/records/$name.json ]]; then judge_interrupted "$1"; elif [[ -n ${P_COPY[$1]-} ]]; then P_PHASE[$1]=ok; else P_PHASE[$1]=skipped; fi
      ;;
    "$EX_BUSY") P_PHASE[$1]=busy ;;
    "$EX_INTEGRITY") P_PHASE[$1]=failed ;;
    "$EX_USAGE" | "$EX_MISSING" | "$EX_NOROOM" | "$EX_COPY" | "$EX_GATE" | "$EX_CONFIG")
      # What failed in this call and may not even be retried has failed.
      P_PHASE[$1]=todo
      ((P_RETRIES[$1] + P_PRUNED[$1] == 0)) || P_PHASE[$1]=failed
      stop_queue "$2" "cell $name was refused with $2; what refuses it refuses the others too"
      ;;
    *) judge_interrupted "$1" ;; # killed before its claim, or before its record
  esac
}

judge_unsynced() { # <index> <exit code>
  P_PHASE[$1]=unsynced
  case $2 in
    "$EX_NOROOM" | "$EX_COPY" | "$EX_MISSING") stop_queue "$2" "cell ${P_NAME[$1]} could not be copied (code $2); the next ones could not either" ;;
  esac
}

judge_failed() { # <index>    reads: R_class
  P_PHASE[$1]=failed
  case $R_class in
    transient)
      ((P_RETRIES[$1] < RETRY_MAX)) || return 0
      P_RETRIES[$1]=$((P_RETRIES[$1] + 1))
      again "$1" "transient, retry ${P_RETRIES[$1]} of $RETRY_MAX"
      ((P_RETRIES[$1] < 2)) || RETRY_PAUSE=10
      ;;
    disk_full)
      if ((P_PRUNED[$1] == 0)); then
        P_PRUNED[$1]=1 PRUNE_WAITS=1
        again "$1" "disk_full, once more after scratch is pruned"
      else
        stop_queue "$EX_NOROOM" "the disk is full also after pruning $S: expand it; nothing else is removed, and no cell is made smaller"
      fi
      ;;
  esac
}

# Stopped from outside, or run_one itself was killed: at once again, but not for ever.
judge_interrupted() { # <index>
  P_PHASE[$1]=interrupted
  [[ -z $STOPPING && -z $STOP_CODE ]] || return 0
  P_BLOWS[$1]=$((P_BLOWS[$1] + 1))
  ((P_BLOWS[$1] <= 5)) || { log "cell ${P_NAME[$1]}: interrupted ${P_BLOWS[$1]} times in this call: left" && return 0; }
  again "$1" "interrupted, resumed at once"
}

again() { # <index> <why>
  P_PHASE[$1]=todo
  ((NEXT <= $1)) || NEXT=$1
  event retry "${P_NAME[$1]}" - "$2"
  log "cell ${P_NAME[$1]}: $2"
}

stop_queue() { # <code> <why>
  [[ -z $STOP_CODE ]] || return 0
  STOP_CODE=$1
  log "no further cell is begun: $2"
}

# --- scratch, and only ours ---

# Empty S, when no cell runs: what we made below $SCRATCH/gpu-runbook/<run>, by the mark that we left there.
prune_scratch() {
  local REPLY mark=''
  PRUNE_WAITS=''
  # Who waits has made its folders there.
  drop_warm
  ! read_text "$S/.gpu-runbook-scratch" || mark=${REPLY%%$'\n'*}
  if [[ $mark != "$RUN_ID" || -L $S || $S != */gpu-runbook/"$RUN" ]]; then
    log "scratch $S has no mark of this run: nothing is removed"
    return 0
  fi
  log "pruning scratch: $S"
  find "${S:?}" -xdev -mindepth 1 -depth ! -name .gpu-runbook-scratch -delete 2>/dev/null || log "not all of $S could be removed"
}

# --- words ---

say_progress() { # <index> <seconds>
  local REPLY left bar='' eta='not known' per
  count_phases
  left=$((C_TODO + C_RUNNING))
  if ((TOOK_N > 0)); then per=$((TOOK / TOOK_N)); else per=$NEED_S; fi
  span $(((left * per + SLOTS - 1) / SLOTS))
  eta=$REPLY
  [[ ! -t 2 ]] || { draw_bar $((${#P_NAME[@]} - left)) ${#P_NAME[@]} && bar="$REPLY "; }
  log "${bar}[$((${#P_NAME[@]} - left))/${#P_NAME[@]}] ${P_NAME[$1]}: ${P_PHASE[$1]} after $2 s; running $C_RUNNING, failed $C_FAILED, left $left, about $eta to go"
}
span() { # <seconds>    into REPLY
  if (($1 >= 7200)); then REPLY="$(($1 / 3600)) h $(($1 % 3600 / 60)) min"; elif (($1 >= 120)); then REPLY="$(($1 / 60)) min"; else REPLY="$1 s"; fi
}
draw_bar() { # <done> <all>    into REPLY
  local full='####################' none='....................' n=$((20 * $1 / $2))
  REPLY="[${full:0:n}${none:0:20-n}]"
}

# The sum, always printed: every planned cell is in exactly one of the four.
say_sum() {
  count_phases
  local started=$((C_OK + C_UNSYNCED + C_INTERRUPTED + C_RUNNING)) pending=$((C_TODO + C_BUSY)) text
  text="planned ${#P_NAME[@]} = started $started + skipped $C_SKIPPED + failed $C_FAILED + pending $pending"
  text+="; of the started: $C_OK ended well, $C_UNSYNCED not copied, $((C_INTERRUPTED + C_RUNNING)) interrupted; of the skipped: $((C_SKIPPED - LEFT_FAILED)) were done before, $LEFT_FAILED had failed"
  printf '%s\n' "$text" || :
  event queue_end - - "$text"
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

# Before cells start side by side: the digests are read once, not by each of them. What does not hold, run_one refuses.
prove_ahead() {
  local i
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    [[ -n ${DATA_SUMS[i]}${DATA_LISTS[i]} ]] || continue
    prove_data "$i" now || log "$PROOF_WHAT: $PROOF_WHY"
  done
}

usage() {
  cat <<'USAGE'
usage: run_queue.sh [--queue FILE] [--slots N | --gpus LIST] [--shard I/N] [--only CELL,...] [--skip-failed] [--adopt] [--dry-run]

Runs each cell of the queue that is not done, by the run_one.sh beside it, and goes by the cells' records. Done cells are
skipped; failed, interrupted and unknown ones are run again with the identical command, resumed where they were. In the
same call only what was preempted, or failed for a passing reason, is retried; a full disk once, after our scratch was
emptied. A full disk or a lost tier stops the queue and leaves the rest pending. Lines appended to the queue are seen.

--queue FILE    take cells from FILE (default: queue.tsv beside this script); new ones are added to the run's own queue
--slots N       N cells at a time (default 1)
--gpus LIST     one cell per entry, pinned to it: 0,1 or UUIDs; an entry twice = two cells on that GPU
--shard I/N     of the source's cells, those whose index modulo N is I-1; a run keeps its shard
--only CELL,... these cells only
--skip-failed   leave failed cells alone
--adopt         the box that had this run is gone for good: take over
--dry-run       say what would be done; change nothing

exit codes: 0 every planned cell is done; 1 some failed; 64 usage, 65 integrity, 69 missing, 73 no room, 74 not copied,
75 the rest is run by somebody else, 77 refused, 78 configuration, 128+n stopped by signal n (cells: interrupted)
USAGE
}

parse_words() { # <words...>    returns 64
  QUEUE_FILE='' SLOTS=1 GPUS='' SHARD='' ONLY='' SKIP_FAILED=false ADOPT=false DRY=false
  local slots=''
  while (($#)); do
    case $1 in
      --skip-failed) SKIP_FAILED=true ;;
      --adopt) ADOPT=true ;;
      --dry-run) DRY=true ;;
      --queue | --slots | --gpus | --shard | --only)
        [[ -n ${2-} ]] || return "$EX_USAGE"
        case $1 in
          --queue) QUEUE_FILE=$2 ;;
          --slots) slots=$2 ;;
          --gpus) GPUS=$2 ;;
          --shard) SHARD=$2 ;;
          --only) ONLY=$2 ;;
        esac
        shift
        ;;
      *) return "$EX_USAGE" ;;
    esac
    shift
  done
  [[ -z $slots || (-z $GPUS && $slots =~ ^[1-9][0-9]{0,3}$) ]] || return "$EX_USAGE"
  SLOTS=${slots:-1}
  [[ -z $ONLY || $ONLY == *[!,]* ]] || return "$EX_USAGE"
  [[ -z $SHARD ]] || { [[ $SHARD =~ ^([1-9][0-9]{0,5})/([1-9][0-9]{0,5})$ ]] && ((BASH_REMATCH[1] <= BASH_REMATCH[2])); } || return "$EX_USAGE"
  [[ -z $GPUS || $GPUS =~ ^[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*$ ]] || return "$EX_USAGE"
}

# GPUs into slots: NEED_GPUS entries each. A scheduler's assignment is narrowed, never left.
assign_gpus() {
  local -a ids
  local i per=$((NEED_GPUS > 0 ? NEED_GPUS : 1)) id
  SLOT_GPUS=()
  if [[ -z $GPUS ]]; then
    ((NEED_GPUS == 0 || SLOTS == 1)) || refuse "$EX_USAGE" "--slots $SLOTS" "a cell needs $NEED_GPUS GPU(s), and nothing says which" "use --gpus, with an entry twice where two cells may share one"
    return 0
  fi
  IFS=, read -ra ids <<<"$GPUS"
  ((${#ids[@]} % per == 0)) || refuse "$EX_USAGE" "--gpus $GPUS" "a cell needs $per GPUs, and ${#ids[@]} is no multiple of it" "name as many"
  for id in "${ids[@]}"; do
    [[ -z ${CUDA_VISIBLE_DEVICES-} || ,$CUDA_VISIBLE_DEVICES, == *",$id,"* ]] ||
      refuse "$EX_GATE" "--gpus $GPUS" "GPU $id is not among those assigned here (CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES)" "name assigned ones, or leave --gpus out"
  done
  SLOTS=$((${#ids[@]} / per))
  for ((i = 0; i < SLOTS; i++)); do
    SLOT_GPUS[i]=$(IFS=, && printf '%s' "${ids[*]:i*per:per}")
  done
}

main() {
  local REPLY
  case ${1-} in -h | --help) usage && return 0 ;; esac
  parse_words "$@" || { usage >&2 && return "$EX_USAGE"; }
  open_outputs
  self_dir
  [[ -f $SELF_DIR/run_one.sh ]] || refuse "$EX_MISSING" "$SELF_DIR/run_one.sh" "it is not beside $PROG" "copy the whole folder box/ again"
  [[ -z $QUEUE_FILE || $QUEUE_FILE == /* ]] || QUEUE_FILE=$PWD/$QUEUE_FILE
  assign_gpus
  P_NAME=() P_AT=() P_SHA=() P_PHASE=() P_RETRIES=() P_BLOWS=() P_PRUNED=() P_COLD=() P_COPY=() SLOT_PID=() SLOT_INDEX=() SLOT_BEGAN=() SLOT_CLAIM=()
  NEXT=0 STOPPING='' STOP_CODE='' PRUNE_WAITS='' RETRY_PAUSE=0 TOOK=0 TOOK_N=0 TICK=0 LEFT_FAILED=0 WARM_PID='' ROSTER_N=0
  if [[ $DRY == true ]]; then
    dry_run
    return
  fi
  # Which environment this is takes longest to find out, the more so for a new run, which has to ask the interpreter.
  run_places
  if [[ -z ${ENV_SPEC-} ]]; then
    if [[ -e $D/.environment.key ]]; then begin_known || :; else begin_describing; fi
  fi
  open_run false "$SHARD" "$ADOPT"
  RUN_ONE=("$SELF_DIR/run_one.sh" --queue "$D/queue.tsv")
  [[ $ADOPT != true ]] || RUN_ONE+=(--adopt)
  warm_up
  begin_states
  merge_queue
  share_threads
  tell_first
  end_states
  plan_cells
  check_only
  know_environment
  ! next_todo || gate_write
  run_plan
  finish
}

check_only() {
  local name
  for name in ${ONLY//,/ }; do
    [[ " ${P_NAME[*]-} " == *" $name "* ]] || refuse "$EX_CONFIG" "--only $name" "no cell of the queue has this name" "names: ${QUEUE_NAMES[*]:0:5} …"
  done
}

# Threads for a cell: what this box lets us use, shared by the slots; where a person has said it, theirs.
share_threads() {
  [[ -z ${OMP_NUM_THREADS-} ]] || return 0
  probe_cpus
  OMP_NUM_THREADS=$((CPUS / SLOTS > 0 ? CPUS / SLOTS : 1))
}
# What every cell would find out again.
know_environment() {
  local REPLY
  ENV_SPEC=${ENV_SPEC-}
  ! next_todo || env_spec
  ((SLOTS == 1)) || ! next_todo || prove_ahead
  export OMP_NUM_THREADS ENV_SPEC OVERRIDES_SAID=1 QUEUE_PID=$$
}

run_plan() {
  trap 'on_stop TERM' TERM
  trap 'on_stop INT' INT
  trap 'on_stop HUP' HUP
  trap 'on_stop USR1' USR1
  count_phases
  log "run $RUN_ID: ${#P_NAME[@]} cells planned, $C_SKIPPED to skip, $SLOTS at a time"
  while :; do
    fill_slots
    if still_running; then
      await_slot
      reap_slots
    elif [[ -n $STOPPING$STOP_CODE ]]; then
      break
    elif [[ -n $PRUNE_WAITS ]]; then
      prune_scratch
    elif next_todo; then
      pause_retry
    else
      # Dry: somebody may have appended lines meanwhile, or spoilt the source: then the sum is said all the same.
      source_changed || break
      (merge_queue) || { STOP_CODE=$? && continue; }
      merge_queue
      ((${#QUEUE_NAMES[@]} == ROSTER_N)) || plan_cells
      next_todo || break
    fi
  done
}
still_running() {
  [[ -n ${SLOT_PID[*]-} && ${SLOT_PID[*]} == *[0-9]* ]]
}
pause_retry() {
  # By rounds, for a clock may be set meanwhile.
  local rounds=$((RETRY_PAUSE * 2))
  RETRY_PAUSE=0
  while ((rounds-- > 0)) && [[ -z $STOPPING ]]; do idle 0.5; done
}

# Told to stop: the cells are told once and save; they are interrupted, not failed.
on_stop() { # <signal>
  local pid
  [[ -z $STOPPING ]] || return 0
  STOPPING=$1
  LATE="signal $1: no further cell is begun; those that run are told and may save"
  for pid in ${SLOT_PID[@]+"${SLOT_PID[@]}"}; do
    [[ -z $pid ]] || kill -TERM "$pid" 2>/dev/null || :
  done
}

# The sum, and the exit code: 0 only where every planned cell is done.
finish() {
  local number
  drop_warm
  say_late
  say_sum
  if [[ -n $STOPPING ]]; then
    number=$(kill -l "$STOPPING") || number=15
    return $((128 + number))
  fi
  [[ -z $STOP_CODE ]] || return "$STOP_CODE"
  ((C_FAILED + C_UNSYNCED + C_INTERRUPTED + LEFT_FAILED == 0)) || return "$EX_FAIL"
  ((C_BUSY == 0)) || return "$EX_BUSY"
  ((C_TODO == 0)) || return "$EX_FAIL"
}

# What would be done: cells, outputs, resources, time. Reads only.
dry_run() {
  local REPLY i n=0 rounds
  run_places
  if read_record "$D/run.json" run/1 || { [[ $B != "$D" ]] && read_record "$B/run.json" run/1; }; then
    RUN_ID=$R_run_id RUN_SHARD=$R_shard
  else
    RUN_ID='(none yet)' RUN_SHARD=${SHARD:-1/1}
  fi
  [[ -z $SHARD || $SHARD == "$RUN_SHARD" ]] || refuse "$EX_GATE" "run $RUN_ID" "it is of shard $RUN_SHARD, not $SHARD" "give --shard $RUN_SHARD, or a RUN of its own to each box"
  DRY_QUEUE=1 merge_queue
  read_states
  plan_cells
  check_only
  count_phases
  printf 'run %s (%s), shard %s, %s cells planned: %s to run, %s to skip\n' "$RUN" "$RUN_ID" "$RUN_SHARD" "${#P_NAME[@]}" "$C_TODO" "$C_SKIPPED"
  for ((i = 0; i < ${#P_NAME[@]}; i++)); do
    [[ ${P_PHASE[i]} == todo ]] || continue
    n=$((n + 1))
    ((n <= 20)) || continue
    state_now "${P_NAME[i]}"
    printf '  %s (%s) -> %s\n' "${P_NAME[i]}" "$REPLY" "$B/final_ckpts/${P_NAME[i]}"
  done
  ((n <= 20)) || printf '  and %s more\n' $((n - 20))
  rounds=$(((C_TODO + SLOTS - 1) / SLOTS))
  span $((rounds * NEED_S))
  printf 'needs %s bytes and %s files on %s, %s bytes of memory and %s GPU(s) at a time, about %s with %s at a time\n' \
    $((C_TODO * NEED_DISK_BYTES)) $((C_TODO * NEED_FILES)) "$D" $((SLOTS * NEED_RAM_BYTES)) $((SLOTS * NEED_GPUS)) "$REPLY" "$SLOTS"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
