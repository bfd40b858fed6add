#!/usr/bin/env bash
# session.sh: one session of a notebook: bring back the run, run the queue under a clock, save, aggregate.
# Generated; do not edit. Source: templates/box/session.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=session.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=kaggle
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# the branch that a formal run is at
readonly BRANCH=main
# a session's queue stops after so many seconds, an hour before its cap; 0: no cap is known
readonly SESSION_S=28800
# what outlives a session: name, proof, path
readonly -a AWAY=(
  "input none /kaggle/input"
)
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
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

# The only way out of a precondition that is not met: one line, then the code.
refuse() { # <exit code> <what> <why> <what to do>
  printf '%s: refused: %s; %s; %s\n' "$PROG" "$2" "$3" "$4" >&2 || :
  exit "$1"
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

# lib/record.bash: line JSON that bash writes and reads without help (docs/contracts.md, section 2).
# needs: exit log file

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

# lib/room.bash: bytes and inodes that are free, and whether a tier is really there.
# needs: exit log path proc

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

# lib/hash.bash: SHA-256 by the quickest tool of the box.
# needs: exit log

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

# lib/idle.bash: waiting that costs no process and leaves none behind.
# needs:

# Wait without a process: a read that nobody answers. Opens its descriptor at first use.
idle() { # <seconds, also a fraction>
  [[ -n ${IDLE_FD-} ]] || exec {IDLE_FD}<> <(:)
  # Its status is always that of a time-out.
  read -r -t "$1" -u "$IDLE_FD" || :
}

SAVE_EVERY_S=${SAVE_EVERY_S-900} # between two copies to the storage that outlives the session

usage() {
  cat <<'USAGE'
usage: session.sh [--prepare] [--from DIR] [--save-to DIR] [--seconds N] [-- WORDS FOR run_queue.sh...]

What a fresh session of a notebook needs, in one call; the same call in the next session goes on.
  1. no code here yet: a file code.bundle (git bundle) is looked for on the storage that outlives a session and in
     DATA_DIR, and cloned; declared data that is not below the code is looked for there by its whole path, and linked;
     no run here yet: the earlier session's run folder is looked for there, copied and compared
     (not its box/ and code/, which each session gets anew)
  2. the queue (run_queue.sh --adopt), stopped in time for what follows; while it runs, what is new is copied to that
     storage, where it can be written
  3. the rest is copied, and the bundle is aggregated
Its last line says how the queue ended and where the run is to be found.

--prepare       1. alone: before preflight and smoke
--from DIR      the run's folder of an earlier session, or a folder that holds it
--save-to DIR   copy to DIR/<run>; default: gpu-runbook/<run> on that storage
--seconds N     stop the queue N seconds from now; default: an hour before the platform ends the session, 0: never

exit codes: 0 every cell is done and aggregated; 1 some cell is not: the next session goes on; 64 usage, 65 integrity,
69 missing, 73 no room, 74 a copy failed, 75 somebody else runs it, 77 refused, 78 configuration
USAGE
}

bad_usage() { # <why>
  printf '%s: %s\n' "$PROG" "$1" >&2
  usage >&2
  exit "$EX_USAGE"
}
parse_words() { # <words...>    sets PREPARE FROM SAVE_TO SECONDS_LEFT QUEUE_WORDS
  PREPARE=false FROM='' SAVE_TO='' SECONDS_LEFT='' QUEUE_WORDS=()
  while (($# > 0)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --prepare) PREPARE=true ;;
      --from | --save-to | --seconds)
        [[ -n ${2-} ]] || bad_usage "$1 wants a value"
        case $1 in
          --from) FROM=$2 ;;
          --save-to) SAVE_TO=$2 ;;
          *)
            [[ $2 =~ ^[0-9]{1,8}$ ]] || bad_usage "--seconds wants a number"
            SECONDS_LEFT=$((10#$2))
            ;;
        esac
        shift
        ;;
      --) shift && QUEUE_WORDS=("$@") && break ;;
      *) bad_usage "'${1//[[:cntrl:]]/?}' is not known" ;;
    esac
    shift
  done
  [[ -z $FROM ]] || require_path FROM
  [[ -z $SAVE_TO ]] || require_path SAVE_TO
}

# How long this machine, or this container, has been up, into REPLY; empty where it cannot be told.
session_age() {
  local up
  start_ticks 1 && { read -r up _ <"${FAKE_ROOT-}/proc/uptime"; } 2>/dev/null && [[ $up =~ ^[0-9]+ ]] || { REPLY='' && return 0; }
  REPLY=$((${up%%.*} - REPLY / $(getconf CLK_TCK 2>/dev/null || echo 100)))
}

# The seconds that the queue has, into SECONDS_LEFT. The platform's clock began with the session, not with us.
set_clock() {
  local REPLY
  [[ -z $SECONDS_LEFT ]] || return 0
  SECONDS_LEFT=$SESSION_S
  ((SESSION_S > 0)) || return 0
  session_age
  if [[ -z $REPLY ]] || ((REPLY < 0 || REPLY > SESSION_S + 3600)); then
    log "how long this session has run already is not known: the queue gets $SESSION_S s from now; if it began long ago, give --seconds"
  else
    SECONDS_LEFT=$((SESSION_S - REPLY))
    ((SECONDS_LEFT >= 300)) ||
      refuse "$EX_GATE" "the session" "it began $REPLY s ago, and its queue would stop after $SESSION_S s" "begin a new session, or give --seconds if you know better"
    log "the session began $REPLY s ago: the queue stops in $SECONDS_LEFT s"
  fi
}

# The tiers that outlive a session and are here, into PLACES; of them the first that can be written, into SAVE_ROOT.
look_away() { # reads: AWAY, entries "name proof path"
  local REPLY one name proof path
  PLACES=() SAVE_ROOT=''
  for one in ${AWAY[@]+"${AWAY[@]}"}; do
    read -r name proof path <<<"$one"
    expand_path path
    REPLY=''
    if [[ ! -d $path ]] || { [[ $proof != none ]] && ! prove_tier "$path" "$proof"; }; then
      log "$name: $path is not there${REPLY:+ ($REPLY)}"
      continue
    fi
    PLACES+=("$path")
    [[ -n $SAVE_ROOT || ! -w $path ]] || SAVE_ROOT=$path/gpu-runbook
  done
  [[ -z $SAVE_TO ]] || SAVE_ROOT=$SAVE_TO
}

# The code, where there is none: from the one code.bundle that lies about. Its branch is the job's.
bring_code() { # reads: CODE_DIR BRANCH PLACES
  local file found='' new=$D/.code.new
  [[ ! -e $CODE_DIR ]] || return 0
  while IFS= read -r file; do
    [[ -z $found ]] || cmp -s -- "$found" "$file" ||
      refuse "$EX_GATE" "code.bundle" "there are two that differ: $found and $file" "leave one, or clone the right one to $CODE_DIR yourself"
    found=${found:-$file}
  done < <(look_for code.bundle '*')
  [[ -n $found ]] || refuse "$EX_MISSING" "$CODE_DIR" "the code is not there, and no code.bundle in ${PLACES[*]-} $DATA_DIR" "bring one: git bundle create code.bundle $BRANCH"
  rm -rf -- "${new:?}"
  git -c core.hooksPath=/dev/null clone -q -b "$BRANCH" -- "$found" "$new" || refuse "$EX_COPY" "$new" "git cannot clone $found" "is branch $BRANCH in it? git bundle verify $found"
  mv -- "$new" "$CODE_DIR" || refuse "$EX_COPY" "$CODE_DIR" "it cannot be put in place" "look at the data tier"
  log "code: $CODE_DIR at $(git -C "$CODE_DIR" rev-parse HEAD), from $found"
}
# Declared data that is not below the code: a link to where it is mounted. What is found twice or not at all is only said; the
# queue counts the data and refuses.
bring_data() { # reads: CODE_DIR PLACES DATA_PATHS DATA_UNDER
  local i place path hit
  local found=()
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    path=${DATA_PATHS[i]} found=()
    [[ ${DATA_UNDER[i]-} != hf_home && ! -e $CODE_DIR/$path ]] || continue
    for place in ${PLACES[@]+"${PLACES[@]}"}; do
      while IFS= read -r hit; do found+=("$hit"); done < <(timeout 300 find -L "$place" -maxdepth 6 -path "*/$path" -prune 2>/dev/null)
    done
    if ((${#found[@]} != 1)); then
      log "data $path: found ${#found[@]} times in ${PLACES[*]-nowhere}: link the right one to $CODE_DIR/$path yourself"
      continue
    fi
    if [[ $path == */* ]]; then mkdir -p -- "$CODE_DIR/${path%/*}"; fi
    ln -s -- "${found[0]}" "$CODE_DIR/$path" || refuse "$EX_COPY" "$CODE_DIR/$path" "the link cannot be made" "look at the data tier: can it hold links?"
    log "data $path: linked to ${found[0]}"
  done
}
# Files of this name some folders deep on the tiers that outlive a session, and in DATA_DIR itself. Prints.
look_for() { # <name> <pattern of the folder>
  local place
  for place in ${PLACES[@]+"${PLACES[@]}"}; do timeout 300 find -L "$place" -maxdepth 6 -name "$1" -path "*/$2" -type f 2>/dev/null || :; done
  if [[ -f $DATA_DIR/$1 ]]; then printf '%s\n' "$DATA_DIR/$1"; fi
}

# A run folder of this job at FILE's place? Then it is compared with the best so far.
consider() { # <.../run.json>    sets FOUND FOUND_ID FOUND_AT
  local dir=${1%/run.json} at
  [[ $dir != "$D" && ! $dir -ef $D ]] || return 0
  if ! read_record "$1" run/1 || [[ ${R_job-} != "$JOB" || ${R_profile-} != "$PROFILE" ]]; then
    log "$dir is no run of $JOB on $PROFILE: left alone"
    return 0
  fi
  at=$(tail -n 1 -- "$dir/events.tsv" 2>/dev/null) || at=''
  at=${at%%$'\t'*}
  [[ -z $FOUND || $FOUND_ID == "$R_run_id" ]] ||
    refuse "$EX_GATE" "run $RUN" "two runs of this name are here: $FOUND and $dir" "say which one with --from"
  [[ -n $FOUND && ! $at > $FOUND_AT ]] || FOUND=$dir FOUND_ID=$R_run_id FOUND_AT=$at
}
find_earlier() { # into FOUND, empty where there is none
  local place file
  FOUND='' FOUND_ID='' FOUND_AT=''
  if [[ -n $FROM ]]; then
    for file in "$FROM/run.json" "$FROM/$RUN/run.json"; do
      [[ ! -e $file ]] || consider "$file"
    done
    [[ -n $FOUND ]] || refuse "$EX_MISSING" "--from $FROM" "no run of $JOB on $PROFILE lies there" "give the folder that holds its run.json"
    return
  fi
  for place in ${SAVE_TO:+"$SAVE_TO"} ${PLACES[@]+"${PLACES[@]}"}; do
    if [[ -w $place ]]; then
      for file in "$place/$RUN/run.json" "$place/gpu-runbook/$RUN/run.json"; do
        [[ ! -e $file ]] || consider "$file"
      done
    else
      # Datasets and the output of an earlier version lie some folders deep.
      while IFS= read -r file; do consider "$file"; done < <(timeout 300 find -L "$place" -maxdepth 6 -name run.json -path "*/$RUN/run.json" 2>/dev/null)
    fi
  done
}

# Name and checksum of each file in a folder but box/, code/ and what a killed copy left, sorted.
sums_of() { # <folder>
  (cd -- "$1" && find . \( -path ./box -o -path ./code -o -path ./.restore -o -name '.*.tmp' \) -prune -o -type f -exec cksum {} + | LC_ALL=C sort)
}

# The earlier session's files to D: copied beside, compared, moved in; run.json last, for it says that a run is here.
restore() {
  local REPLY member name new=$D/.restore
  [[ ! -e $D/run.json ]] || { log "the run is here already: $D" && return 0; }
  find_earlier
  [[ -n $FOUND ]] || { log "no earlier session of this run is here (looked in: ${FROM:-${SAVE_TO:+$SAVE_TO }${PLACES[*]-nowhere}}): it begins anew" && return 0; }
  log "bringing back $FOUND"
  rm -rf -- "${new:?}"
  mkdir -p -- "$new" || refuse "$EX_NOROOM" "$new" "the folder cannot be made" "look at the data tier: room, rights"
  for member in "$FOUND"/* "$FOUND"/.[!.]*; do
    name=${member##*/}
    case $name in box | code | .restore | '*' | '.[!.]*') continue ;; esac
    [[ -e $member ]] || continue
    cp -R -- "$member" "$new/$name" || refuse "$EX_NOROOM" "$new/$name" "the copy failed" "make room on the data tier, and run this again"
  done
  chmod -R u+rwX -- "$new"
  find "$new" -name '.*.tmp' -type f -exec rm -f -- {} +
  [[ $(sums_of "$new") == "$(sums_of "$FOUND")" ]] || refuse "$EX_COPY" "$new" "it is not what $FOUND has" "run this again"
  for member in "$new"/* "$new"/.[!.]*; do
    name=${member##*/}
    if [[ $name != run.json && -e $member && ! -e $D/$name ]]; then
      mv -- "$member" "$D/$name" || refuse "$EX_COPY" "$D/$name" "it cannot be put in place" "look at the data tier"
    fi
  done
  flush "$D"
  mv -- "$new/run.json" "$D/run.json" || refuse "$EX_COPY" "$D/run.json" "it cannot be put in place" "look at the data tier"
  rm -rf -- "${new:?}"
  log "brought back: run $FOUND_ID, as it was at ${FOUND_AT:-a time that is not known}"
}

# The copy that lies where ours is to go must be of this run: another's is never overwritten.
check_save_place() {
  local there=$SAVE_ROOT/$RUN/run.json id=''
  [[ -n $SAVE_ROOT && -e $there ]] || return 0
  if read_record "$there" run/1; then id=$R_run_id; fi
  if [[ ! -e $D/run.json ]] || ! read_record "$D/run.json" run/1 || [[ -z $id || $R_run_id != "$id" ]]; then
    refuse "$EX_GATE" "${there%/run.json}" "it is the copy of another run (${id:-its record cannot be read})" "give this run another name (RUN), or another place (--save-to), or move that copy aside"
  fi
}

# What is new in D since the last call goes to SAVE_ROOT/<run>, each file whole or not at all. Records are taken as they are
# before the first byte is copied and put there behind the last one, so none of them speaks of files that are not there.
save() { # returns: 0, or 74 where something did not arrive
  local file rc=0 snap=$STAMPS/records
  local newer=()
  [[ -n $SAVE_ROOT && -e $D/run.json ]] || return 0
  [[ ! -e $STAMPS/last ]] || newer=(-newer "$STAMPS/last")
  : >"$STAMPS/next" && rm -rf -- "${snap:?}" && mkdir -p -- "$snap" "$SAVE_ROOT/$RUN" || return "$EX_COPY"
  for file in records state; do
    [[ ! -d $D/$file ]] || cp -Rp -- "$D/$file" "$snap/" || return "$EX_COPY"
  done
  while IFS= read -r -d '' file; do
    [[ $file == ./run.json ]] || save_file "$D" "$file" || rc=$EX_COPY
  done < <(cd -- "$D" && find . \( -path ./box -o -path ./code -o -path ./.restore -o -path ./records -o -path ./state -o -name '.*.tmp' \) -prune \
    -o -type f ${newer[@]+"${newer[@]}"} -print0)
  ((rc == 0)) || return "$rc"
  while IFS= read -r -d '' file; do
    save_file "$snap" "$file" || rc=$EX_COPY
  done < <(cd -- "$snap" && find . -name '.*.tmp' -prune -o -type f ${newer[@]+"${newer[@]}"} -print0)
  ((rc != 0)) || save_file "$D" ./run.json || rc=$EX_COPY
  # Where something did not arrive the old stamp stays, and all that is newer is tried again.
  ((rc != 0)) || mv -f -- "$STAMPS/next" "$STAMPS/last"
  return "$rc"
}
save_file() { # <folder> <path in it, with ./ in front>
  local to=$SAVE_ROOT/$RUN/${2#./} part size
  size=$(wc -c 2>/dev/null <"$1/$2") || size=0
  part=${to%/*}/.${to##*/}.tmp
  mkdir -p -- "${to%/*}" || return "$EX_COPY"
  if cp -- "$1/$2" "$part" 2>/dev/null; then
    if reads_back "$1/$2" "$part" "$size"; then
      mv -f -- "$part" "$to" && return 0
    elif [[ $1/$2 -nt $STAMPS/next ]]; then
      # It was written meanwhile: newer than the stamp, it is taken by the next call, and by the last one when nothing writes.
      rm -f -- "$part"
      return 0
    fi
  fi
  rm -f -- "$part"
  # A checkpoint that was pruned meanwhile is no failure.
  [[ ! -e $1/$2 ]] || { log "$2 did not arrive at $to" && return "$EX_COPY"; }
}

# Is the copy what its source is? Of a log, which goes on growing while it is copied, at least what there was before.
reads_back() { # <source> <copy> <bytes of the source before>
  local said
  said=$(LC_ALL=C cmp -- "$1" "$2" 2>&1) && return 0
  [[ $said == *"EOF on $2"* ]] && (($(wc -c <"$2") >= $3))
}

stop_queue() { # <why>
  STOPPED=${STOPPED:-$1}
  kill -TERM "$QUEUE" 2>/dev/null || :
}
# The queue, until it ends, the clock runs out, or somebody stops us. Sets QUEUE_RC STOPPED.
run_under_clock() {
  local until=$((SECONDS + SECONDS_LEFT)) next=$((SECONDS + SAVE_EVERY_S))
  STOPPED='' QUEUE_RC=0
  bash "$SELF_DIR/run_queue.sh" --adopt ${QUEUE_WORDS[@]+"${QUEUE_WORDS[@]}"} &
  QUEUE=$!
  trap 'stop_queue "a signal"' TERM INT HUP
  while kill -0 "$QUEUE" 2>/dev/null; do
    idle 1
    if ((SECONDS_LEFT > 0 && SECONDS >= until)) && [[ -z $STOPPED ]]; then stop_queue 'the clock'; fi
    if ((SECONDS >= next)); then
      save || log "not everything arrived at $SAVE_ROOT: tried again in $SAVE_EVERY_S s"
      next=$((SECONDS + SAVE_EVERY_S))
    fi
  done
  wait "$QUEUE" || QUEUE_RC=$?
}

verdict() { # <aggregate's code> <save's code>
  local where="at $D, and nowhere else: bring it home before this session's disk goes"
  [[ -z $SAVE_ROOT ]] || where="at $D and, for the next session, at $SAVE_ROOT/$RUN"
  (($2 == 0)) || where="at $D; NOT all of it arrived at $SAVE_ROOT"
  printf 'session of run %s: the queue ended with %s%s, aggregate with %s; the run is %s\n' "$RUN" "$QUEUE_RC" "${STOPPED:+ (stopped by $STOPPED)}" "$1" "$where"
}

main() {
  local aggregated=0 saved=0
  parse_words "$@"
  self_dir
  run_places
  [[ $PREPARE == true ]] || set_clock
  mkdir -p -- "$D" || refuse "$EX_NOROOM" "$D" "the folder cannot be made" "look at the data tier: room, rights"
  look_away
  bring_code
  bring_data
  restore
  [[ $PREPARE == false ]] || { log "prepared: $D" && return 0; }
  check_save_place
  STAMPS=$(mktemp -d) || refuse "$EX_NOROOM" "a temporary folder" "it cannot be made" "look at TMPDIR: room, rights"
  run_under_clock
  save || saved=$?
  if [[ -e $D/run.json ]]; then bash "$SELF_DIR/aggregate_to_fs.sh" || aggregated=$?; else aggregated=$EX_MISSING; fi
  save || saved=$?
  rm -rf -- "${STAMPS:?}"
  verdict "$aggregated" "$saved"
  case $QUEUE_RC in 0) ;; 1 | 129 | 130 | 143) QUEUE_RC=$EX_FAIL ;; esac
  ((QUEUE_RC == 0)) || return "$QUEUE_RC"
  ((aggregated == 0)) || return "$aggregated"
  return "$saved"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
