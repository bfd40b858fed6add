#!/usr/bin/env bash
# preflight.sh: look at this box before anything is started: room, tiers, memory, GPUs, tools, sessions.
# Generated; do not edit. Source: templates/box/preflight.sh.j2
# To change it, edit the source or profiles/lanrui.yaml, then: make profile=lanrui
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=preflight.sh

# --- bound values: profiles/lanrui.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=lanrui
# the job's name
readonly JOB=demo
# the platform's name
readonly TITLE="LanRui workspace (揽睿星舟)"
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier data-disk: survives ssh drop, restart, stop, not destroy
DATA_DIR=${DATA_DIR-/home/user/datadisk}
# tier net-disk: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-/home/user/netdisk/data}
# may be lost at any time
SCRATCH=${SCRATCH-/tmp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/home/user/datadisk/.cache/huggingface}
# a file to source or an http address; empty: none
PROXY_HOOK=${PROXY_HOOK-}
# what a detached run is started with
DETACH=${DETACH-tmux}
# the interpreter
PY=${PY-python}
# used where that is missing
readonly DETACH_FALLBACK=nohup
# where it is mounted
readonly DURABLE_TIER_PATH=/home/user/netdisk/data
# what shows that the tier is there
readonly DURABLE_PROOF=mount
# cells in the compiled queue
readonly CELLS=4
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
# modules that PY must import
readonly -a ENV_IMPORTS=()
# what shows that the environment works: a kernel that runs, documentation that holds
readonly -a ENV_TIERS=()
# the commands
readonly -a ENV_COMMANDS=()
# and what a line of their answers matches
readonly -a ENV_EXPECTS=()
# mirrors, exported to every cell
readonly -a MIRRORS=(
  "HF_ENDPOINT=https://hf-mirror.com"
)
# tiers that only boxes of one region, zone or host can reach
readonly -a REGION_LOCKED=(
  net-disk
)
# what this box has to show: name, proof, role, path
readonly -a TIERS_IN=(
  "data-disk mount every /home/user/datadisk"
  "net-disk mount every /home/user/netdisk/data"
)
# what was left out, and may not show: name, proof, role, path
readonly -a TIERS_OUT=()
# what strikes by itself
readonly -a CLOCKS=(
  "A stop time can be set at creation, and it stops a long run: look at it first."
  "Zones and domains were closed before, with loss of data: bring results home at once."
  "A full system disk makes the workspace restart."
  "What an empty balance does was not found."
  "Stopped is not free: the data disk has its own hourly meter."
)
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

detach_have() { # <primitive>    returns: 0 where its tool is on PATH
  case $1 in
    tmux | screen) command -v "$1" >/dev/null 2>&1 ;;
    nohup) command -v setsid >/dev/null 2>&1 ;;
    *) return 1 ;;
  esac
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

# Does the primitive really work here? A trial session that leaves a file. Says why not into REPLY.
detach_trial() { # <primitive>    returns: 0 or 1
  local dir=${DETACH_DIR-} tries=0 rc=0 took=0
  REPLY=''
  detach_have "$1" || {
    REPLY="not installed"
    return 1
  }
  detach_dir "try$$$RANDOM" || {
    REPLY="no private folder can be made under /tmp"
    return 1
  }
  # shellcheck disable=SC2016 # for the bash that is started
  detach_start "$1" "$DETACH_DIR/s" gr_try "$DETACH_DIR/log" "$BASH" -c 'printf ok >"$1"' try "$DETACH_DIR/ok" || took=$?
  if ((took == 0)); then
    while [[ ! -s $DETACH_DIR/ok ]] && ((tries++ < 100)); do sleep 0.05 2>/dev/null || sleep 1; done
    [[ -s $DETACH_DIR/ok ]] || { REPLY="a trial session was accepted, but did not run" && rc=1; }
  elif ((took == 124)); then
    REPLY="a trial session was asked for, and $1 did not answer in 15 s" rc=1
  else
    rc=1
    IFS= read -r REPLY <"$DETACH_DIR/log" || :
    REPLY=${REPLY:-"a trial session was not accepted"}
  fi
  # Our own folder: mkdir made it a moment ago.
  rm -rf -- "${DETACH_DIR:?}"
  DETACH_DIR=$dir
  return "$rc"
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

# Files, bytes and empty files of a data path, following links. DATA_N DATA_BYTES DATA_EMPTY.
count_data() { # <path>
  local said
  DATA_N='' DATA_BYTES='' DATA_EMPTY=''
  # One line a file, whatever its name holds.
  said=$(find -L "$1" -type f -exec sh -c 'for f; do [ -s "$f" ] && echo 1 || echo 0; done' sh {} + 2>/dev/null |
    awk '{n++; if ($1 == 0) e++} END {printf "%d %d", n, e}') || return 1
  DATA_N=${said% *} DATA_EMPTY=${said#* }
  said=$(du -skL -- "$1" 2>/dev/null) || return 1
  DATA_BYTES=$((${said%%[[:space:]]*} * 1024))
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

# Do two paths lie on one file system? Where that cannot be told, yes: the careful answer for room.
same_disk() { # <path> <path>
  local one two
  existing_parent "$1"
  one=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  existing_parent "$2"
  two=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  [[ $one == "$two" ]]
}

# lib/checks.bash: what preflight looks at. Each check adds lines to the table; none of them changes anything.
# needs: exit log path room run probe detach data

# One line of the table. A verdict is ok, note, warn, unknown or FAIL; a FAIL carries the exit code of its kind, and where
# the value does not say it, the command that failed and the smallest remedy (X3).
row() { # <verdict> <check> <value> [exit code for FAIL] [command] [what to do]
  ROWS_VERDICT+=("$1") ROWS_CHECK+=("$2") ROWS_VALUE+=("${3//[[:cntrl:]]/ }")
  ROWS_COMMAND+=("${5-}") ROWS_REMEDY+=("${6-}")
  [[ $1 != FAIL || $VERDICT_CODE -ne 0 ]] || VERDICT_CODE=${4:-$EX_GATE}
}

check_tools() {
  local tool missing='' said
  for tool in awk cat cp date df dirname du env find grep head ln mkdir mktemp mv rm sed sleep sort stat sync tail tar tr wc; do
    command -v "$tool" >/dev/null 2>&1 || missing+=" $tool"
  done
  if [[ -n $missing ]]; then row FAIL tools "missing:$missing" "$EX_MISSING" "command -v$missing" "install them, or put their folder on PATH"; else row ok tools "bash $BASH_VERSION and all that is needed"; fi
  if said=$(git --version 2>/dev/null); then row ok git "$said"; else row FAIL git "not on PATH: a formal run needs it" "$EX_MISSING" "git --version" "install git on this machine"; fi
  hash_tool
  row ok sha256 "$HASH_TOOL"
  for tool in rsync timeout setsid; do
    command -v "$tool" >/dev/null 2>&1 || row warn "$tool" "not on PATH: slower or less sure without it"
  done
  if ! command -v "$PY" >/dev/null 2>&1; then
    row FAIL python "PY=$PY is not there" "$EX_MISSING" "command -v $PY" "set PY to the python of the environment, by its path"
  else
    said=$(within 60 "$PY" --version 2>&1 </dev/null | head -n 1) || said='it does not say its version'
    row ok python "$(command -v "$PY"), $said"
  fi
}

check_cpu_ram() {
  local quota=none limit=none free said
  probe_cpus
  probe_ram
  [[ -z $CPU_QUOTA ]] || printf -v quota '%d.%02d' $((CPU_QUOTA / 100)) $((CPU_QUOTA % 100))
  row ok cpu "$CPUS usable (nproc ${CPU_NPROC:-not known}, affinity ${CPU_AFFINITY:-not known}, cgroup quota $quota)"
  if [[ -n $RAM_LIMIT ]]; then human "$RAM_LIMIT" && limit=$REPLY; fi
  human "$RAM_FREE" && free=$REPLY
  human "$RAM_TOTAL"
  said="$free free for us (machine $REPLY, cgroup limit $limit)"
  human "$NEED_RAM_BYTES"
  if [[ -z $RAM_FREE ]]; then
    row unknown ram "$said"
  elif ((${RAM_LIMIT:-$RAM_TOTAL} < NEED_RAM_BYTES)); then
    row FAIL ram "$said; one cell needs $REPLY" "$EX_GATE" "cat /proc/meminfo /sys/fs/cgroup/memory.max" "take a larger machine, or correct needs.ram_gb in the job"
  elif ((RAM_FREE < NEED_RAM_BYTES)); then
    row warn ram "$said; one cell needs $REPLY: something else is using it now"
  else row ok ram "$said; one cell needs $REPLY"; fi
  recommend 1 "$NEED_RAM_BYTES"
  row note workers "one cell at a time: $WORKERS loader worker(s), $THREADS thread(s); fewer is the safe side"
}

check_gpus() {
  local line index name driver total used
  probe_gpus
  for line in ${GPU_LINES[@]+"${GPU_LINES[@]}"}; do
    IFS=, read -r index name driver total used <<<"$line"
    if [[ ${used# } =~ ^[0-9]+$ ]] && ((${used# } <= GPU_FREE_MIB)); then
      row ok "gpu $index" "${name# }, driver${driver}, $total MiB, in use$used MiB"
    elif [[ ${used# } =~ ^[0-9]+$ ]]; then
      row warn "gpu $index" "${name# }, driver${driver}, $total MiB, in use$used MiB: somebody is on it"
    else row unknown "gpu $index" "${name# }, driver${driver}, in use:${used:- not said}"; fi
  done
  if ((NEED_GPUS == 0)); then
    row ok gpus "none needed; here ${GPU_COUNT:-not known}${GPU_WHY:+ ($GPU_WHY)}"
  elif [[ $GPU_WHY == 'no nvidia-smi'* && (-e /dev/kfd || -e /dev/accel) ]]; then
    row unknown gpus "a cell needs $NEED_GPUS; here is another maker's device, which nothing of ours can count"
  elif [[ $GPU_STATE == unknown ]]; then
    row FAIL gpus "a cell needs $NEED_GPUS, and it cannot be told what is here: $GPU_WHY" "$EX_MISSING" nvidia-smi "make nvidia-smi answer: restart the box, or take another one"
  elif ((GPU_COUNT < NEED_GPUS)); then
    row FAIL gpus "a cell needs $NEED_GPUS, here are $GPU_COUNT${GPU_WHY:+ ($GPU_WHY)}" "$EX_GATE" nvidia-smi "take a machine with enough of them, or correct needs.gpus in the job"
  else row ok gpus "$GPU_COUNT here, a cell needs $NEED_GPUS"; fi
}

# Bytes and inodes of one folder's disk. What cannot be asked is unknown, and only that.
check_disk() { # <name> <path> <bytes for one cell or 0> <files for one cell>
  local said verdict=ok code=$EX_NOROOM free inodes
  free_bytes "$2" || :
  free=$REPLY
  free_inodes "$2" || :
  inodes=$REPLY
  human "$free"
  said="$2: $REPLY free, ${inodes:-n/a} inodes free"
  if [[ -z $free ]]; then
    row unknown "$1" "$2: df gave no answer in 20 s"
    return 0
  fi
  if (($3 > 0)); then
    if ((free < $3)) || [[ -n $inodes && $inodes -lt $4 ]]; then
      verdict=FAIL said+="; one cell needs $3 bytes and $4 files"
    elif ((free / CELLS_LEFT < $3)) || [[ -n $inodes && $((inodes / CELLS_LEFT)) -lt $4 ]]; then
      verdict=warn said+="; not enough for all $CELLS_LEFT cells with $3 bytes and $4 files each"
    fi
  fi
  if [[ $verdict == ok ]] && { ((free < 2000000000)) || [[ -n $inodes && $inodes -lt 20000 ]]; }; then
    verdict=warn said+=": less than 2 GB or 20000 inodes"
  fi
  row "$verdict" "$1" "$said" "$code" "df $2" "free room there, or take a larger one"
}

check_disks() {
  local REPLY bytes
  cells_left
  # A run that is done needs no room for another cell.
  bytes=$((CELLS_LEFT > 0 ? NEED_DISK_BYTES : 0))
  check_disk "data tier" "$DATA_DIR" "$bytes" "$NEED_FILES"
  check_disk scratch "$SCRATCH" 0 0
  [[ -z $HF_HOME ]] || check_disk HF_HOME "$HF_HOME" 0 0
  [[ -z ${HOME-} ]] || check_disk home "$HOME" 0 0
  if [[ -n $HF_HOME ]] && same_disk "$HF_HOME" / && ! same_disk "$DATA_DIR" /; then
    row warn caches "HF_HOME=$HF_HOME lies on the system disk, and the data tier does not: hub downloads may fill it"
  fi
  if [[ -z $DURABLE_DIR ]]; then
    row note "durable tier" "none: nothing here outlives the box; pull results before it ends"
  else
    check_durable "$bytes"
  fi
}
# How many cells of the queue have no record in the bundle yet, into CELLS_LEFT: an estimate, for room and time alone.
cells_left() {
  local file
  CELLS_LEFT=$CELLS
  for file in "$B"/records/*.json; do
    [[ ! -s $file ]] || CELLS_LEFT=$((CELLS_LEFT - 1))
  done
  ((CELLS_LEFT >= 0)) || CELLS_LEFT=0
}

# Is the storage that is to survive really there, and not just a folder of its name?
check_durable() { # <bytes for one cell or 0>
  local REPLY tier=$DURABLE_TIER_PATH
  expand_path tier
  tier=${tier%/}
  if [[ $DURABLE_DIR/ != "$tier"/* ]]; then
    if [[ -d $DURABLE_DIR ]]; then
      row warn "durable proof" "$DURABLE_DIR is not the profile's tier ($tier): that it survives is your word"
    else
      row FAIL "durable proof" "$DURABLE_DIR is not the profile's tier ($tier), and no folder" "$EX_COPY" "cd $DURABLE_DIR" "make the folder on storage that survives, or unset DURABLE_DIR"
      return 0
    fi
  elif prove_tier "$tier" "$DURABLE_PROOF"; then
    if same_disk "$DURABLE_DIR" /; then
      row "$([[ $DURABLE_PROOF == none ]] && echo ok || echo warn)" "durable proof" "$tier ($DURABLE_PROOF); on the same disk as /"
    else row ok "durable proof" "$tier ($DURABLE_PROOF), a disk of its own"; fi
  else
    row FAIL "durable proof" "$REPLY" "$EX_COPY" "df $tier" "attach the storage, or set DURABLE_DIR= (empty) to run pull-only"
    return 0
  fi
  check_disk "durable tier" "$DURABLE_DIR" "$1" "$NEED_FILES"
}

# Where the box lies cannot be asked here, but which storage would be out of reach from another place is known.
check_region() {
  ((${#REGION_LOCKED[@]} == 0)) || row note region "only from where it lies: ${REGION_LOCKED[*]}; a box elsewhere does not see it, so take the next one in the same place"
}

check_detach() {
  local REPLY one
  DETACH_WORKS=''
  case $DETACH in
    tmux | screen | nohup) ;;
    *) row note detach "$DETACH: submitted through the platform, not started by formal_run" && return 0 ;;
  esac
  # The profile says what may take the place of the first: where a platform kills it, nohup may not.
  for one in "$DETACH" "$DETACH_FALLBACK"; do
    case $one in tmux | screen | nohup) ;; *) continue ;; esac
    if detach_trial "$one"; then
      DETACH_WORKS=$one
      break
    fi
    row warn detach "$one: $REPLY"
  done
  if [[ -z $DETACH_WORKS ]]; then
    row FAIL detach "nothing works here to start a run that outlives this shell" "$EX_MISSING" "a trial session by $DETACH" "install tmux or screen"
  else row ok detach "$DETACH_WORKS: a trial session ran$([[ $DETACH_WORKS == "$DETACH" ]] || echo " (falling back from $DETACH)")"; fi
}

# Where systemd ends a user's processes at logout, a detached run dies with the last session.
check_linger() {
  local said linger kill_setting
  [[ -d ${FAKE_ROOT-}/run/systemd/system ]] && command -v loginctl >/dev/null 2>&1 || return 0
  linger=$(within 60 loginctl show-user "$(id -un)" -p Linger 2>/dev/null) || linger=''
  said=$(within 60 systemd-analyze cat-config systemd/logind.conf 2>/dev/null) || said=''
  kill_setting=$(sed -n 's/^[[:space:]]*KillUserProcesses[[:space:]]*=[[:space:]]*//p' <<<"$said" | tail -n 1)
  case ${linger#Linger=},${kill_setting:-not set} in
    yes,*) row ok linger "lingering is on: sessions outlive a logout" ;;
    *,yes | *,true | *,1 | *,on) row warn linger "KillUserProcesses=$kill_setting and no lingering: a logout ends the run; loginctl enable-linger, or start under systemd-run --scope --user" ;;
    *) row note linger "lingering is off, KillUserProcesses is ${kill_setting:-not set}: usually fine; loginctl enable-linger makes sure" ;;
  esac
}

check_data() {
  local REPLY i path
  if [[ ! -d $CODE_DIR ]]; then
    row warn code "$CODE_DIR is not there yet"
    return 0
  fi
  code_commit
  row "$([[ $CODE_COMMIT == none ]] && echo warn || echo ok)" code "$CODE_DIR at commit $CODE_COMMIT"
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    data_place "$i"
    path=$REPLY
    data_remedy "$i"
    if ! count_data "$path"; then
      row FAIL data "$path: not there, or not readable" "$EX_GATE" "find -L $path -type f" "$REPLY, or link it there"
    elif [[ $DATA_N != "${DATA_FILES[i]}" || $DATA_EMPTY == "$DATA_N" ]]; then
      row FAIL data "$path: $DATA_N files, $DATA_EMPTY of them empty; the job expects ${DATA_FILES[i]}" "$EX_GATE" "find -L $path -type f" "$REPLY"
    else
      human "$DATA_BYTES"
      check_digests "$i" "$path: $DATA_N files as expected, $REPLY on disk, $DATA_EMPTY empty"
    fi
  done
}

# Digests of little data are compared at once; of more, with --deep, for it takes its time.
check_digests() { # <index> <what is known of it>    reads: DEEP
  local REPLY rc=0
  prove_data "$1" known || rc=$?
  if ((rc == 2)) && ((DEEP == 1 || PROOF_BYTES < 2000000000)); then
    rc=0
    prove_data "$1" look || rc=$?
  fi
  case $rc in
    0) row ok data "$2${PROOF_SAID:+; $PROOF_SAID}" ;;
    2) row unknown data "$2; digests not compared yet: preflight.sh --deep, or the start does" ;;
    *)
      data_remedy "$1"
      row FAIL data "$PROOF_WHAT: $PROOF_WHY" "$EX_GATE" "sha256sum" "$REPLY"
      ;;
  esac
}

check_budget() {
  local minutes=$(((CELLS_LEFT * NEED_S + 59) / 60)) cost=''
  if [[ ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]]; then
    cost=$(awk -v m="$minutes" -v p="$PRICE_PER_HOUR" 'BEGIN {printf ", about %.2f at %s per hour", m / 60 * p, p}')
  fi
  row note budget "$CELLS_LEFT cells to do, about $minutes minutes one at a time$cost"
}

# The largest folders, through the links that caches often are. Bounded, for it may take long.
check_hogs() {
  local root child said
  for root in "$DATA_DIR" "$HF_HOME" "${HOME-}" "${HOME:+$HOME/.cache}" "$SCRATCH"; do
    [[ -n $root && -d $root && $root != / ]] || continue
    while IFS= read -r child; do
      [[ -n $child ]] && row note "du $root" "$child"
    done < <(for said in "$root"/* "$root"/.[!.]*; do
      [[ ! -d $said ]] || within 60 du -sk -- "$said/" 2>/dev/null || :
    done | sort -rn | head -n 3 | awk '{kb = $1; sub(/^[0-9]+[ \t]*/, ""); printf "%.2f GB  %s\n", kb / 1e6, $0}')
  done
}

# lib/variant.bash: is this box the one that was compiled for? What was left out may not be here, what was not must be.
# needs: exit path room checks
# reads: PROFILE JOB TIERS_IN TIERS_OUT DATA_DIR DURABLE_DIR SCRATCH HF_HOME

# Does one of our folders lie on this path?
path_is_used() { # <path>
  local one
  for one in "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH" "$HF_HOME"; do
    [[ -z $one || $one/ != "${1%/}"/* ]] || return 0
  done
  return 1
}

# The command that compiles for the box as it is, into REPLY.
compile_words() { # <tier to leave out or empty> <tier to take in or empty>
  local entry name left=$1
  for entry in ${TIERS_OUT[@]+"${TIERS_OUT[@]}"}; do
    name=${entry%% *}
    [[ $name == "$2" ]] || left+=${left:+,}$name
  done
  REPLY="make profile=$PROFILE job=$JOB${left:+ without=$left}"
}

# A tier of this variant: there, or a refusal where a folder of ours lies on it.
check_tier_in() { # <name> <proof> <role> <path>
  local REPLY why path=$4
  # The name of a storage that the person may not have: no refusal of ours, only a line.
  if ! (expand_path path) 2>/dev/null; then
    row FAIL "tier $1" "$4: a name in this path is not set" "$EX_CONFIG" "echo $4" "export it, then look again"
    return 0
  fi
  expand_path path
  path=${path%/}
  if prove_tier "$path" "$2"; then
    row ok "tier $1" "$path is there, by its proof ($2)"
  elif ! path_is_used "$path"; then
    row note "tier $1" "$REPLY; nothing of this run lies there"
  else
    why=$REPLY
    if [[ $3 == optional ]]; then
      compile_words "$1" ''
      row FAIL "tier $1" "$why; this box has not what it was compiled for" "$EX_COPY" "grep $path /proc/self/mountinfo" "attach it, or compile for a box without it: $REPLY"
    else row FAIL "tier $1" "$why; every box of this platform has it" "$EX_COPY" "grep $path /proc/self/mountinfo" "look at the console, and do not begin"; fi
  fi
}

# Where a tier shows that was left out, into REPLY; 1 where it does not, 2 where it cannot be told.
find_tier_out() { # <proof> <path>
  local line fields folder path=$2
  if [[ $path =~ ^(/.+)/\$[A-Za-z_][A-Za-z0-9_]*$ ]]; then
    folder=${BASH_REMATCH[1]}
    # Under a name that only a person with such a storage knows: any mount in that folder.
    while IFS= read -r line; do
      read -ra fields <<<"$line"
      [[ ${fields[4]-} == "$folder"/* && ${fields[4]#"$folder"/} != */* ]] || continue
      REPLY=${fields[4]}
      return 0
    done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
    return 1
  fi
  (expand_path path) 2>/dev/null || return 1
  expand_path path
  path=${path%/}
  [[ $1 != mount-parent ]] || path=${path%/*}
  if mount_type "$path"; then
    mount_kind "$REPLY"
    case $1,$REPLY in
      mount-network,local | mount-local,network) return 1 ;;
      mount-network,unknown | mount-local,unknown) REPLY=$path && return 2 ;;
    esac
  elif [[ $1 != marker || ! -s $path/.gpu-runbook-tier ]]; then
    return 1
  fi
  REPLY=$path
}

# A tier that was left out: the survival proof was done for a box without it, and the runbook says nothing of it.
check_tier_out() { # <name> <proof> <role> <path>
  local REPLY='' rc=0 found
  find_tier_out "$2" "$4" || rc=$?
  found=$REPLY
  case $rc,$3 in
    0,kept)
      compile_words '' "$1"
      row FAIL "tier $1" "$found is mounted, but this was compiled for a box without it: what it keeps and costs is not in this runbook" "$EX_GATE" "grep $found /proc/self/mountinfo" "compile with it: $REPLY; or take it off the box"
      ;;
    0,*) row note "tier $1" "$found is mounted; it was left out, and nothing of this run lies there" ;;
    2,*) row unknown "tier $1" "$found is mounted, and its file system does not tell whether it is the storage that was left out: look at the console" ;;
    *) row ok "tier $1" "left out, and not here" ;;
  esac
}

check_variant() {
  local entry name proof role path
  for entry in ${TIERS_IN[@]+"${TIERS_IN[@]}"}; do
    read -r name proof role path <<<"$entry"
    check_tier_in "$name" "$proof" "$role" "$path"
  done
  for entry in ${TIERS_OUT[@]+"${TIERS_OUT[@]}"}; do
    read -r name proof role path <<<"$entry"
    check_tier_out "$name" "$proof" "$role" "$path"
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

# lib/envcheck.bash: is the environment the one that the job means? (X9) For preflight: once for each start, not for each cell.
# needs: exit log envspec cellenv probe
# Three tiers: it imports; its kernels run and say what is expected; what the documentation says to type works.
# reads: CODE_DIR PY S ENV_IMPORTS ENV_TIERS ENV_COMMANDS ENV_EXPECTS ENV_TIMEOUT_S, and the function row of lib checks

readonly ENV_TIMEOUT_S=300 # the first import from a network disk may take minutes

check_environment() {
  local REPLY i
  ((${#ENV_IMPORTS[@]} + ${#ENV_COMMANDS[@]} > 0)) || return 0
  if [[ ! -d $CODE_DIR ]]; then
    row unknown environment "not looked at: $CODE_DIR is not there yet"
    return 0
  fi
  # Preflight's end takes it along, however that comes.
  ENV_WORK=$(mktemp -d /tmp/gpu-runbook.XXXXXX) || ENV_WORK=''
  if [[ -z $ENV_WORK ]] || ! mkdir -p "$ENV_WORK/t/0"; then
    row FAIL environment "no folder for trials can be made in /tmp" "$EX_NOROOM" "mktemp -d /tmp/gpu-runbook.XXXXXX" "look at its room and rights"
    return 0
  fi
  check_imports "$ENV_WORK"
  for ((i = 0; i < ${#ENV_COMMANDS[@]}; i++)); do
    check_witness "$ENV_WORK" "$i"
  done
  rm -rf -- "${ENV_WORK:?}"
  # Eight digits in each cell's log name what was looked at here.
  describe_environment
  hash_text "$REPLY" && row note environment "spec ${REPLY:0:8}, as the cells' logs will name it"
}

# The words as a cell would run them: code directory, proxy, mirrors, interpreter; caches and temporary files in a folder that
# goes. All they print is the answer.
as_a_cell() { # <folder> <words...>    prints; returns: their status, 124 over time
  local CELL=preflight CELL_INDEX=0 ATTEMPT=1 CELL_RESUME=0 RUN_ID=none CELL_DIR=$1 S=$1 run=()
  local CKPT_PATTERN='' CKPT_MARKER='' CKPT_BYTES=0
  local -a SECRET_NAMES=() SECRET_VALUES=() CKPT_FILES=()
  shift
  if command -v timeout >/dev/null 2>&1; then run=(timeout "$ENV_TIMEOUT_S"); fi
  (
    cell_env || { printf '%s\n' "$REPLY" && exit "$EX_GATE"; }
    unset GPU_RUNBOOK_CELL
    cd -- "$CODE_DIR" || exit
    exec ${run[@]+"${run[@]}"} "$@"
  ) </dev/null 2>&1
}

# Tier 1: each package that the job names is imported, by the job's interpreter, all in one process.
check_imports() { # <folder>
  local said rc=0
  ((${#ENV_IMPORTS[@]} > 0)) || return 0
  said=$(as_a_cell "$1" "$PY" -c 'import importlib, sys
bad = []
said = []
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        said.append((name + " " + str(getattr(module, "__version__", ""))).strip())
    except BaseException as why:
        bad.append("%s: %s: %s" % (name, type(why).__name__, str(why).split("\n")[0]))
print("\n" + ("missing " + "; ".join(bad) if bad else "imports " + ", ".join(said)))' "${ENV_IMPORTS[@]}") || rc=$?
  said=${said##*$'\n'}
  if ((rc == 0)) && [[ $said == 'imports '* ]]; then
    row ok 'env imports' "${said#imports }"
  else
    row FAIL 'env imports' "${said#missing } (status $rc)" "$EX_GATE" "$PY -c 'import …'" "install it into the environment of PY=$PY, or set PY to the right one"
  fi
}

# Tiers 2 and 3: the command ends with 0, and a line of what it prints matches. A check that cannot be made has failed.
check_witness() { # <folder> <index>
  local said rc=0 match='' last=nothing what=${ENV_TIERS[$2]} command=${ENV_COMMANDS[$2]} expect=${ENV_EXPECTS[$2]} line
  said=$(as_a_cell "$1" "$BASH" -c "$command" | tail -c 65536 | tr -d '\000') || rc=$?
  while IFS= read -r line; do
    line=${line%$'\r'}
    [[ -z $line ]] || last=$line
    if [[ -z $match && $line =~ $expect ]] 2>/dev/null; then match="said: $line"; fi
  done <<<"$said"
  if ((rc == 0)) && [[ -n $match ]]; then
    row ok "env $what" "$match"
    return 0
  fi
  case $rc in
    0) said="no line of its answer matches $expect; the last one: $last" ;;
    124) said="no end after $ENV_TIMEOUT_S s" ;;
    *) said="status $rc; its last line: $last" ;;
  esac
  line='mend the environment, or the documentation where it is wrong'
  [[ $what != kernel ]] || line='device, driver and packages do not fit: compare their versions, or take an image that fits'
  row FAIL "env $what" "$said" "$EX_GATE" "$command" "$line"
}

usage() {
  cat <<'USAGE'
usage: preflight.sh [--deep] [--json]

Looks at this box and prints one table and one verdict. It changes nothing but for small trial files in /tmp. Looked at:
tools and their versions, the interpreter, CPUs (nproc, affinity, cgroup quota), memory (machine and cgroup), GPUs,
bytes and inodes of each tier, whether the durable tier is really attached and the box has the storage that it was
compiled for (and none that was left out), declared data, and whether a detached session really runs here. What cannot be looked at is 'unknown', never 'ok'.

--deep  also the largest folders, through symbolic links (du), and digests of declared data above 2 GB: may take minutes
--json  the same table as JSON

What the job declares under environment (imports, a kernel that runs, documentation that holds) is run as a cell would be, with
caches in a folder in /tmp that goes again.

PRICE_PER_HOUR=… adds the cost to the budget line.
exit codes: 0 nothing failed (warnings may stand there), else of the first FAIL: 69 missing, 73 no room, 74 the durable
tier, 77 not met; 64 usage, 78 configuration
USAGE
}

print_table() {
  local i
  printf 'preflight: %s, job %s\n' "$TITLE" "$JOB"
  for ((i = 0; i < ${#ROWS_CHECK[@]}; i++)); do
    printf '  %-8s %-14s %s\n' "${ROWS_VERDICT[i]}" "${ROWS_CHECK[i]}" "${ROWS_VALUE[i]}"
    [[ ${ROWS_VERDICT[i]} != FAIL || -z ${ROWS_REMEDY[i]} ]] || printf '  %-8s %-14s %s\n' '' 'what to do' "${ROWS_REMEDY[i]} (looked by: ${ROWS_COMMAND[i]})"
  done
  for ((i = 0; i < ${#CLOCKS[@]}; i++)); do
    printf '  %-8s %-14s %s\n' clock "$((i + 1))" "${CLOCKS[i]}"
  done
}

print_json() { # <verdict> <failed> <warned> <unknown>
  local REPLY i comma=,
  record_open preflight/1
  record_text profile "$PROFILE"
  record_text job "$JOB"
  record_text verdict "$1"
  record_int failed "$2"
  record_int warned "$3"
  record_int unknown "$4"
  record_int cpus "$CPUS"
  record_int ram_free_bytes "$RAM_FREE"
  record_int gpus "$GPU_COUNT"
  record_int workers "$WORKERS"
  record_int threads "$THREADS"
  record_text detach "$DETACH_WORKS"
  RECORD+=$',\n  "checks": [\n'
  for ((i = 0; i < ${#ROWS_CHECK[@]}; i++)); do
    ((i + 1 < ${#ROWS_CHECK[@]})) || comma=''
    RECORD+='    {"verdict": "'${ROWS_VERDICT[i]}'", "check": "'
    record_fit "${ROWS_CHECK[i]}"
    RECORD+=$REPLY'", "value": "'
    record_fit "${ROWS_VALUE[i]}"
    RECORD+=$REPLY'"'
    if [[ ${ROWS_VERDICT[i]} == FAIL ]]; then
      record_fit "${ROWS_COMMAND[i]}"
      RECORD+=', "command": "'$REPLY
      record_fit "${ROWS_REMEDY[i]}"
      RECORD+='", "remedy": "'$REPLY'"'
    fi
    RECORD+='}'$comma$'\n'
  done
  RECORD+='  ]'
  record_close
  printf '%s' "$RECORD"
}

# The trials' folders in /tmp, where we are ended in the midst of one.
clean_trials() { # <status>
  local dir
  for dir in "$DETACH_DIR" "$ENV_WORK"; do [[ -z $dir ]] || rm -rf -- "$dir"; done
  exit "$1"
}

main() {
  local json=0 i failed=0 warned=0 unknown=0 verdict=ok
  DEEP=0
  while (($#)); do
    case $1 in
      -h | --help) usage && return 0 ;;
      --deep) DEEP=1 ;;
      --json) json=1 ;;
      *) usage >&2 && return "$EX_USAGE" ;;
    esac
    shift
  done
  ROWS_VERDICT=() ROWS_CHECK=() ROWS_VALUE=() ROWS_COMMAND=() ROWS_REMEDY=() VERDICT_CODE=0 DETACH_DIR='' ENV_WORK=''
  trap 'clean_trials $?' EXIT
  run_places asked
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  check_tools
  check_cpu_ram
  check_gpus
  check_disks
  check_variant
  check_region
  check_data
  check_environment
  check_detach
  check_linger
  check_budget
  ((DEEP == 0)) || check_hogs
  for ((i = 0; i < ${#ROWS_VERDICT[@]}; i++)); do
    case ${ROWS_VERDICT[i]} in
      FAIL) failed=$((failed + 1)) ;;
      warn) warned=$((warned + 1)) ;;
      unknown) unknown=$((unknown + 1)) ;;
    esac
  done
  ((failed == 0)) || verdict=FAIL
  if ((json)); then print_json "$verdict" "$failed" "$warned" "$unknown"; else
    print_table
    printf 'verdict: %s (%s failed, %s warnings, %s unknown)\n' "$verdict" "$failed" "$warned" "$unknown"
  fi
  return "$VERDICT_CODE"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
