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
