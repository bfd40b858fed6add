#!/usr/bin/env bash
# preflight.sh: look at this box before anything is started: room, tiers, memory, GPUs, tools, sessions.
# Generated; do not edit. Source: templates/box/preflight.sh.j2
# To change it, edit the source or profiles/matpool.yaml, then: make profile=matpool
set -euo pipefail
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=preflight.sh

# --- bound values: profiles/matpool.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=matpool
# the job's name
readonly JOB=demo
# the platform's name
readonly TITLE="Matpool container instance (矩池云)"
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier system-disk: survives ssh drop, restart, not stop, destroy
DATA_DIR=${DATA_DIR-/root/run}
# tier net-disk: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-/mnt}
# may be lost at any time
SCRATCH=${SCRATCH-/root/scratch}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/root/.cache/huggingface}
# what a detached run is started with
DETACH=${DETACH-tmux}
# the interpreter
PY=${PY-python}
# used where that is missing
readonly DETACH_FALLBACK=nohup
# where it is mounted
readonly DURABLE_TIER_PATH=/mnt
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
# expected minutes for one cell
readonly NEED_MINUTES=1
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
# and how many files each must hold
readonly -a DATA_FILES=()
# tiers that only boxes of one region, zone or host can reach
readonly -a REGION_LOCKED=(
  system-disk
  net-disk
)
# what strikes by itself
readonly -a CLOCKS=(
  "There is no pause that keeps the local disk: stop and release belong together."
  "What an empty balance does was not found: keep it positive."
  "Services of this family have an idle stop that can be switched on: leave it off for quiet phases."
  "Old .snap files fill the 5 GB and then cost money."
  "Prices are by the hour; whether a begun hour counts whole was not found."
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

# lib/proc.bash: who a process is. A number alone is recycled; with its start and this boot it is one process.
# needs:

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

# lib/detach.bash: sessions that outlive the shell that starts them, each with a socket folder of its own.
# needs: exit log
# One session a folder: no name can hit another run's session, and no server lends us its environment.

# A private folder under /tmp, for sockets fail on network mounts and on long paths. Sets DETACH_DIR.
detach_dir() { # <start id>    returns: 0, or 74 where it cannot be made
  DETACH_DIR=/tmp/gr-${EUID:-$(id -u)}-$1
  # mkdir fails where the name exists, also as somebody's link: nobody else's folder is ever used or changed.
  mkdir -m 700 -- "$DETACH_DIR" 2>/dev/null || return "$EX_COPY"
}

detach_have() { # <primitive>    returns: 0 where its tool is on PATH
  case $1 in
    tmux | screen) command -v "$1" >/dev/null 2>&1 ;;
    nohup) command -v setsid >/dev/null 2>&1 ;;
    *) return 1 ;;
  esac
}

# The multiplexer with its own server and no start-up file; never inside the one that we may be typed in.
detach_tmux() { # <socket> <words...>
  local socket=$1
  shift
  env -u TMUX -u TMUX_PANE SHELL=/bin/sh TERM="${TERM:-dumb}" tmux -S "$socket" -f /dev/null "$@"
}
detach_screen() { # <socket folder> <words...>
  local socket=$1
  shift
  env -u STY SCREENDIR="$socket" SHELL=/bin/sh TERM="${TERM:-dumb}" screen -c /dev/null "$@"
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
  local dir=${DETACH_DIR-} tries=0 rc=0
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
  if detach_start "$1" "$DETACH_DIR/s" gr_try "$DETACH_DIR/log" "$BASH" -c 'printf ok >"$1"' try "$DETACH_DIR/ok"; then
    while [[ ! -s $DETACH_DIR/ok ]] && ((tries++ < 100)); do sleep 0.05 2>/dev/null || sleep 1; done
    [[ -s $DETACH_DIR/ok ]] || { REPLY="a trial session was accepted, but did not run" && rc=1; }
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

# lib/data.bash: declared data counted, and whether two paths share a disk.
# needs: room

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

# One line of the table. A verdict is ok, note, warn, unknown or FAIL; a FAIL carries the exit code of its kind.
row() { # <verdict> <check> <value> [exit code for FAIL]
  ROWS_VERDICT+=("$1") ROWS_CHECK+=("$2") ROWS_VALUE+=("${3//[[:cntrl:]]/ }")
  [[ $1 != FAIL || $VERDICT_CODE -ne 0 ]] || VERDICT_CODE=${4:-$EX_GATE}
}

check_tools() {
  local tool missing='' said
  for tool in awk cat cp date df dirname du env find grep head ln mkdir mktemp mv rm sed sleep sort stat sync tail tar tr wc; do
    command -v "$tool" >/dev/null 2>&1 || missing+=" $tool"
  done
  if [[ -n $missing ]]; then row FAIL tools "missing:$missing" "$EX_MISSING"; else row ok tools "bash $BASH_VERSION and all that is needed"; fi
  if said=$(git --version 2>/dev/null); then row ok git "$said"; else row FAIL git "not on PATH: a formal run needs it" "$EX_MISSING"; fi
  hash_tool
  row ok sha256 "$HASH_TOOL"
  for tool in rsync timeout setsid; do
    command -v "$tool" >/dev/null 2>&1 || row warn "$tool" "not on PATH: slower or less sure without it"
  done
  if ! command -v "$PY" >/dev/null 2>&1; then
    row FAIL python "PY=$PY is not there: set it to the python of the environment" "$EX_MISSING"
  else
    said=$(bounded "$PY" --version 2>&1 </dev/null | head -n 1) || said='it does not say its version'
    row ok python "$(command -v "$PY"), $said"
  fi
}

bounded() { # <words...>
  if command -v timeout >/dev/null 2>&1 && timeout 5 true 2>/dev/null; then timeout 60 "$@"; else "$@"; fi
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
    row FAIL ram "$said; one cell needs $REPLY"
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
    if [[ ${used# } =~ ^[0-9]+$ ]] && ((${used# } <= 1024)); then
      row ok "gpu $index" "${name# }, driver${driver}, $total MiB, in use$used MiB"
    elif [[ ${used# } =~ ^[0-9]+$ ]]; then
      row warn "gpu $index" "${name# }, driver${driver}, $total MiB, in use$used MiB: somebody is on it"
    else row unknown "gpu $index" "${name# }, driver${driver}, in use:${used:- not said}"; fi
  done
  if ((NEED_GPUS == 0)); then
    row ok gpus "none needed; here ${GPU_COUNT:-not known}${GPU_WHY:+ ($GPU_WHY)}"
  elif [[ $GPU_STATE == unknown ]]; then
    row FAIL gpus "a cell needs $NEED_GPUS, and it cannot be told what is here: $GPU_WHY" "$EX_MISSING"
  elif ((GPU_COUNT < NEED_GPUS)); then
    row FAIL gpus "a cell needs $NEED_GPUS, here are $GPU_COUNT${GPU_WHY:+ ($GPU_WHY)}"
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
    elif ((free / CELLS < $3)) || [[ -n $inodes && $((inodes / CELLS)) -lt $4 ]]; then
      verdict=warn said+="; not enough for all $CELLS cells with $3 bytes and $4 files each"
    fi
  fi
  if [[ $verdict == ok ]] && { ((free < 2000000000)) || [[ -n $inodes && $inodes -lt 20000 ]]; }; then
    verdict=warn said+=": less than 2 GB or 20000 inodes"
  fi
  row "$verdict" "$1" "$said" "$code"
}

check_disks() {
  local REPLY
  check_disk "data tier" "$DATA_DIR" "$NEED_DISK_BYTES" "$NEED_FILES"
  check_disk scratch "$SCRATCH" 0 0
  [[ -z $HF_HOME ]] || check_disk HF_HOME "$HF_HOME" 0 0
  [[ -z ${HOME-} ]] || check_disk home "$HOME" 0 0
  if [[ -n $HF_HOME ]] && same_disk "$HF_HOME" / && ! same_disk "$DATA_DIR" /; then
    row warn caches "HF_HOME=$HF_HOME lies on the system disk, and the data tier does not: hub downloads may fill it"
  fi
  if [[ -z $DURABLE_DIR ]]; then
    row note "durable tier" "none: nothing here outlives the box; pull results before it ends"
  else
    check_durable
  fi
}

# Is the storage that is to survive really there, and not just a folder of its name?
check_durable() {
  local REPLY tier=$DURABLE_TIER_PATH
  expand_path tier
  tier=${tier%/}
  if [[ $DURABLE_DIR/ != "$tier"/* ]]; then
    if [[ -d $DURABLE_DIR ]]; then
      row warn "durable proof" "$DURABLE_DIR is not the profile's tier ($tier): that it survives is your word"
    else
      row FAIL "durable proof" "$DURABLE_DIR is not the profile's tier ($tier), and no folder" "$EX_COPY"
      return 0
    fi
  elif prove_tier "$tier" "$DURABLE_PROOF"; then
    if same_disk "$DURABLE_DIR" /; then
      row "$([[ $DURABLE_PROOF == none ]] && echo ok || echo warn)" "durable proof" "$tier ($DURABLE_PROOF); on the same disk as /"
    else row ok "durable proof" "$tier ($DURABLE_PROOF), a disk of its own"; fi
  else
    row FAIL "durable proof" "$REPLY" "$EX_COPY"
    return 0
  fi
  check_disk "durable tier" "$DURABLE_DIR" "$NEED_DISK_BYTES" "$NEED_FILES"
}

# Where the box lies cannot be asked here, but which storage would be out of reach from another place is known.
check_region() {
  ((${#REGION_LOCKED[@]} == 0)) || row note region "only from where it lies: ${REGION_LOCKED[*]}; a box elsewhere does not see it, so take the next one in the same place"
}

check_detach() {
  local REPLY one works=''
  case $DETACH in
    tmux | screen | nohup) ;;
    *) row note detach "$DETACH: submitted through the platform, not started by formal_run" && return 0 ;;
  esac
  for one in "$DETACH" "$DETACH_FALLBACK" nohup; do
    case $one in tmux | screen | nohup) ;; *) continue ;; esac
    if detach_trial "$one"; then
      works=$one
      break
    fi
    row warn detach "$one: $REPLY"
  done
  if [[ -z $works ]]; then
    row FAIL detach "nothing works here to start a run that outlives this shell" "$EX_MISSING"
  else row ok detach "$works: a trial session ran$([[ $works == "$DETACH" ]] || echo " (falling back from $DETACH)")"; fi
}

# Where systemd ends a user's processes at logout, a detached run dies with the last session.
check_linger() {
  local said linger kill_setting
  [[ -d ${FAKE_ROOT-}/run/systemd/system ]] && command -v loginctl >/dev/null 2>&1 || return 0
  linger=$(bounded loginctl show-user "$(id -un)" -p Linger 2>/dev/null) || linger=''
  said=$(bounded systemd-analyze cat-config systemd/logind.conf 2>/dev/null) || said=''
  kill_setting=$(sed -n 's/^[[:space:]]*KillUserProcesses[[:space:]]*=[[:space:]]*//p' <<<"$said" | tail -n 1)
  case ${linger#Linger=},${kill_setting:-not set} in
    yes,*) row ok linger "lingering is on: sessions outlive a logout" ;;
    *,yes | *,true | *,1 | *,on) row warn linger "KillUserProcesses=$kill_setting and no lingering: a logout ends the run; loginctl enable-linger, or start under systemd-run --scope --user" ;;
    *) row note linger "lingering is off, KillUserProcesses is ${kill_setting:-not set}: usually fine; loginctl enable-linger makes sure" ;;
  esac
}

check_data() {
  local i path
  if [[ ! -d $CODE_DIR ]]; then
    row warn code "$CODE_DIR is not there yet"
    return 0
  fi
  code_commit
  row "$([[ $CODE_COMMIT == none ]] && echo warn || echo ok)" code "$CODE_DIR at commit $CODE_COMMIT"
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    path=$CODE_DIR/${DATA_PATHS[i]}
    [[ ${DATA_PATHS[i]} != /* ]] || path=${DATA_PATHS[i]}
    if ! count_data "$path"; then
      row FAIL data "$path: not there, or not readable"
    elif [[ $DATA_N != "${DATA_FILES[i]}" || $DATA_EMPTY == "$DATA_N" ]]; then
      row FAIL data "$path: $DATA_N files, $DATA_EMPTY of them empty; the job expects ${DATA_FILES[i]}"
    else row ok data "$path: $DATA_N files as expected, $DATA_BYTES bytes on disk"; fi
  done
}

check_budget() {
  local minutes=$((CELLS * NEED_MINUTES)) cost=''
  if [[ ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]]; then
    cost=$(awk -v m="$minutes" -v p="$PRICE_PER_HOUR" 'BEGIN {printf ", about %.2f at %s per hour", m / 60 * p, p}')
  fi
  row note budget "$CELLS cells, about $minutes minutes one at a time$cost"
}

# The largest folders, through the links that caches often are. Bounded, for it may take long.
check_hogs() {
  local root child said
  for root in "$DATA_DIR" "$HF_HOME" "${HOME-}" "${HOME:+$HOME/.cache}" "$SCRATCH"; do
    [[ -n $root && -d $root && $root != / ]] || continue
    while IFS= read -r child; do
      [[ -n $child ]] && row note "du $root" "$child"
    done < <(for said in "$root"/* "$root"/.[!.]*; do
      [[ ! -d $said ]] || bounded du -sk -- "$said/" 2>/dev/null || :
    done | sort -rn | head -n 3 | awk '{kb = $1; sub(/^[0-9]+[ \t]*/, ""); printf "%.2f GB  %s\n", kb / 1e6, $0}')
  done
}

usage() {
  cat <<'USAGE'
usage: preflight.sh [--deep] [--json]

Looks at this box and prints one table and one verdict. It changes nothing but for small trial files in /tmp. Looked at:
tools and their versions, the interpreter, CPUs (nproc, affinity, cgroup quota), memory (machine and cgroup), GPUs,
bytes and inodes of each tier, whether the durable tier is really attached, declared data, and whether a detached
session really runs here. What cannot be looked at is 'unknown', never 'ok'.

--deep  also the largest folders, through symbolic links (du: may take minutes)
--json  the same table as JSON

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
  RECORD+=$',\n  "checks": [\n'
  for ((i = 0; i < ${#ROWS_CHECK[@]}; i++)); do
    ((i + 1 < ${#ROWS_CHECK[@]})) || comma=''
    RECORD+='    {"verdict": "'${ROWS_VERDICT[i]}'", "check": "'
    record_fit "${ROWS_CHECK[i]}"
    RECORD+=$REPLY'", "value": "'
    record_fit "${ROWS_VALUE[i]}"
    RECORD+=$REPLY'"}'$comma$'\n'
  done
  RECORD+='  ]'
  record_close
  printf '%s' "$RECORD"
}

main() {
  local deep=0 json=0 i failed=0 warned=0 unknown=0 verdict=ok
  while (($#)); do
    case $1 in
      -h | --help) usage && return 0 ;;
      --deep) deep=1 ;;
      --json) json=1 ;;
      *) usage >&2 && return "$EX_USAGE" ;;
    esac
    shift
  done
  ROWS_VERDICT=() ROWS_CHECK=() ROWS_VALUE=() VERDICT_CODE=0
  run_places
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  check_tools
  check_cpu_ram
  check_gpus
  check_disks
  check_region
  check_data
  check_detach
  check_linger
  check_budget
  ((deep == 0)) || check_hogs
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
