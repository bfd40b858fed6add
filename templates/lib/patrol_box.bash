# lib/patrol_box.bash: what patrol looks at on the box. Sent there (declare -f); it reads, writes nothing, signals nothing of the run's.
# needs: exit log path room ssh
# reads, besides the places: RUN STATUS_SH SEEN FAST_S SCRATCH
#
# Facts, one a line, for the laptop to judge: every probe has its own end, and one that does not end says so.

# Run WORDS with an end; what they print goes into REPLY. One that hangs, also against KILL, is not waited for.
probe() { # <seconds> <words...>    returns: theirs unless 0, 124 where it did not end in time
  local limit=$1 pid='' rc=0 fd out='' part
  shift
  REPLY=''
  exec {fd}< <(
    printf '%s\n' "$BASHPID"
    "$@" </dev/null 2>/dev/null
    printf '\nrc %s\n' $?
  )
  IFS= read -r -t "$limit" -u "$fd" pid || rc=124
  # A NUL never comes, so this reads to the end, or to the end of the time.
  IFS= read -r -d '' -t "$limit" -u "$fd" part || { (($? <= 128)) || rc=124; }
  exec {fd}<&-
  if ((rc == 124)); then
    [[ ! $pid =~ ^[0-9]+$ ]] || kill_tree "$pid"
    return 124
  fi
  part=${part%$'\n'}
  out=${part##*$'\n'}
  REPLY=${part%$'\n'*}
  REPLY=${REPLY%$'\n'}
  [[ $part == *$'\n'* ]] || REPLY=''
  rc=${out#rc }
  [[ $rc =~ ^[0-9]+$ ]] || rc=1
  return "$rc"
}
# Our own probe and its children, nothing else: their parent is the number that it told us.
kill_tree() { # <pid>
  local child children=''
  { IFS= read -r children <"/proc/$1/task/$1/children"; } 2>/dev/null || :
  # From the top, so that none is there to start the next.
  kill -KILL "$1" 2>/dev/null || :
  for child in $children; do kill_tree "$child"; done
}

lines_with() { # <key> <text>: each line of the text behind a key
  local line
  while IFS= read -r line; do printf '%s %s\n' "$1" "$line"; done <<<"$2"
}

look_around() {
  box_places
  printf 'now %s\nhost %s\nfolder %s\n' "$(date +%s)" "$(cat /proc/sys/kernel/hostname 2>/dev/null)" "$D"
  look_status
  look_tier_room data "$DATA_DIR"
  [[ -z $DURABLE_DIR || $DURABLE_DIR == "$DATA_DIR" ]] || look_tier_room durable "$DURABLE_DIR"
  expand_path SCRATCH
  [[ -z $SCRATCH ]] || look_tier_room scratch "$SCRATCH"
  look_gpu
  look_memory
  # A dead mount hangs whoever asks: what reads the run's folders has its own end.
  if bounded_look 4 'processes of the run' look_processes; then
    look_logs
    bounded_look 4 'times of the cells' look_fast || :
  fi
  bounded_look 4 'how the run ended' look_end || :
}
bounded_look() { # <seconds> <what> <function>    returns: 124 where it did not end in time
  probe "$1" "$3" || { (($? != 124)) || { printf 'unknown %s: no answer in %s s\n' "$2" "$1" && return 124; }; }
  [[ -z $REPLY ]] || printf '%s\n' "$REPLY"
}

# The run's own status script judges its records: there is one such judgement, not two.
look_status() {
  local script=$D/box/current/status.sh rc=0
  [[ -f $script ]] || script=$STATUS_SH
  [[ -n $script && -f $script ]] || { printf 'status-failed no status.sh on the box: push first\n' && return 0; }
  probe 10 env "RUN=$RUN" "DATA_DIR=$DATA_DIR" "DURABLE_DIR=$DURABLE_DIR" bash "$script" --json || rc=$?
  if ((rc == 0)); then
    lines_with status "$REPLY"
  elif ((rc == 69)) && [[ -d $DATA_DIR ]]; then
    printf 'status-none\n'
  else
    printf 'status-failed status.sh ended with %s\n' "$rc"
  fi
}

look_tier_room() { # <name> <path>    "room NAME bytes TOTAL USED AVAIL" and "room NAME inodes ..."
  local kind flag line
  for kind in bytes inodes; do
    [[ $kind == bytes ]] && flag=-k || flag=-i
    # The path itself is touched inside the probe only: a dead mount hangs whoever asks.
    # shellcheck disable=SC2016 # expanded by the probe's own shell
    if ! probe 4 bash -c 'p=$2; while [[ -n $p && ! -e $p ]]; do p=${p%/*}; done; exec df -P "$1" -- "${p:-/}"' df "$flag" "$2"; then
      printf 'room %s %s UNKNOWN\n' "$1" "$kind"
      [[ $kind == bytes ]] || continue
      printf 'room %s inodes UNKNOWN\n' "$1"
      return 0
    fi
    # A long device name wraps: the figures are together all the same.
    line=${REPLY#*$'\n'}
    line=${line//$'\n'/ }
    if [[ $line =~ \ ([0-9]+)\ +([0-9]+)\ +(-?[0-9]+)\ +([0-9]+|-)%?\  ]] && ((BASH_REMATCH[1] > 0)); then
      printf 'room %s %s %s %s %s\n' "$1" "$kind" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}"
    else
      printf 'room %s %s n/a\n' "$1" "$kind"
    fi
  done
}

look_gpu() {
  local dir name rc=0
  command -v nvidia-smi >/dev/null 2>&1 || { printf 'gpu none\n' && return 0; }
  # One of an earlier look that still hangs in the driver is not joined by a second.
  for dir in /proc/[0-9]*; do
    { IFS= read -r name <"$dir/comm"; } 2>/dev/null || continue
    [[ $name == nvidia-smi ]] || continue
    grep -q '^State:[[:space:]]*D' "$dir/status" 2>/dev/null || continue
    printf 'gpu UNKNOWN(an earlier query still hangs)\n'
    return 0
  done
  probe 5 nvidia-smi --query-gpu=index,utilization.gpu,memory.used,memory.total,temperature.gpu --format=csv,noheader,nounits || rc=$?
  case $rc in
    0) lines_with gpu "${REPLY:-UNKNOWN(no answer)}" ;;
    124) printf 'gpu UNKNOWN(timeout)\n' ;;
    *) printf 'gpu UNKNOWN(status %s)\n' "$rc" ;;
  esac
}

# Memory of the control group that we are in, where it has a limit; else the machine's.
look_memory() {
  local root=${FAKE_ROOT-}/sys/fs/cgroup used='' limit='' key value total='' free=''
  { IFS= read -r limit <"$root/memory.max" && IFS= read -r used <"$root/memory.current"; } 2>/dev/null ||
    { IFS= read -r limit <"$root/memory/memory.limit_in_bytes" && IFS= read -r used <"$root/memory/memory.usage_in_bytes"; } 2>/dev/null || :
  if [[ $limit =~ ^[0-9]{1,15}$ && $used =~ ^[0-9]+$ ]]; then
    printf 'memory cgroup %s %s\n' "$used" "$limit"
    return 0
  fi
  while read -r key value _; do
    case $key in
      MemTotal:) total=$value ;;
      MemAvailable:) free=$value ;;
    esac
  done 2>/dev/null <"${FAKE_ROOT-}/proc/meminfo"
  if [[ -n $total && -n $free ]]; then
    printf 'memory machine %s %s\n' $(((total - free) * 1024)) $((total * 1024))
  else
    printf 'memory UNKNOWN\n'
  fi
}

# Processes that carry this run's id: ours by birth, whatever they are called, and never this look itself.
look_processes() {
  local id file pid stat fields n=0 ticks uptime
  id=$(box_member "$D/run.json" run_id)
  [[ -n $id ]] || return 0
  read -r uptime _ </proc/uptime || return 0
  ticks=$(getconf CLK_TCK 2>/dev/null) || ticks=100
  while IFS= read -r file; do
    pid=${file#/proc/} pid=${pid%/environ}
    { IFS= read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }"
    n=$((n + 1))
    ((n <= 8)) || continue
    stat=${stat#*(}
    printf 'process %s ppid %s state %s for %s s, %s MB, %s\n' "$pid" "${fields[1]}" "${fields[0]}" \
      $((${uptime%.*} - fields[19] / ticks)) $((fields[21] * 4 / 1024)) "${stat%)*}"
  done < <(grep -lsz "^RUN_ID=$id\$" /proc/[0-9]*/environ 2>/dev/null)
  printf 'processes %s\n' "$n"
}

# What the newest log of each cell says since the last look. SEEN has lines "bytes path". Bounded to the last megabyte.
look_logs() {
  local dir file bytes seen from count first pattern
  pattern='^Traceback \(most recent call last\)|^[A-Za-z_][A-Za-z0-9_.]*(Error|Exception)(:|$)|(^|[^A-Za-z])(ERROR|FATAL|CRITICAL)([^A-Za-z]|$)|CUDA error|CUDA out of memory|Segmentation fault|^Killed$'
  for dir in "$D"/logs/*/; do
    file=''
    for file in "$dir"attempt-*.log; do :; done
    [[ -f $file ]] || continue
    bytes=$(stat -c %s -- "$file" 2>/dev/null) || continue
    case $'\n'$SEEN in
      *" $file"$'\n'*)
        seen=$'\n'$SEEN
        seen=${seen%%" $file"$'\n'*}
        seen=${seen##*$'\n'}
        ;;
      *) seen=0 ;;
    esac
    [[ $seen =~ ^[0-9]+$ ]] && ((seen <= bytes)) || seen=0
    from=$seen count=0 first=''
    ((bytes - from <= 1048576)) || from=$((bytes - 1048576))
    # shellcheck disable=SC2016 # expanded by the probe's own shell
    if ((bytes > from)) && probe 4 bash -c 'tail -c "+$1" -- "$2" | tr "\r" "\n" | grep -aE "$3" | head -n 1000' logs $((from + 1)) "$file" "$pattern"; then
      if [[ -n $REPLY ]]; then
        first=${REPLY%%$'\n'*}
        count=$(grep -c '' <<<"$REPLY") || count=1
      fi
    fi
    printf 'log %s %s %s\n' "$bytes" "$count" "$file"
    [[ -z $first ]] || printf 'log-line %s\n' "${first:0:160}"
  done
}

# Cells that are done in less than half of the time that the job said.
look_fast() {
  local n
  n=$(cat -- "$D"/state/*.json 2>/dev/null | awk -F'"' -v limit="$FAST_S" '
    function at(t,   y, m, d, e, o) {
      y = substr(t, 1, 4) + 0; m = substr(t, 6, 2) + 0; d = substr(t, 9, 2) + 0
      if (m <= 2) y--
      e = int(y / 400); o = y - e * 400
      return (e * 146097 + o * 365 + int(o / 4) - int(o / 100) + int((153 * (m + (m > 2 ? -3 : 9)) + 2) / 5) + d - 1) * 86400 \
        + substr(t, 12, 2) * 3600 + substr(t, 15, 2) * 60 + substr(t, 18, 2)
    }
    # A resumed attempt had less to do.
    $2 == "state" { state = $4 }
    $2 == "attempt" { first = ($3 ~ /^: 1,/) }
    $2 == "started" { started = $4 }
    $2 == "ended" && state == "done" && first && at($4) - at(started) < limit { n++ }
    END { print n + 0 }') || n=0
  printf 'fast %s\n' "$n"
}

# How the formal run ended, as it says itself, and what a person has excepted by name in the last manifest.
look_end() {
  local file member value id
  for file in "$D/FORMAL_FAILURE.json" "$B/FORMAL_SUCCESS"; do
    [[ -s $file ]] || continue
    for member in start_id stage log remedy power_off manifest_sha256 ended; do
      # Not box_member: a remedy is a sentence, with its commas.
      value=$(sed -n 's/^  "'"$member"'": "\{0,1\}\(.*[^",]\)"\{0,1\},\{0,1\}$/\1/p' "$file" 2>/dev/null)
      [[ -z $value ]] || printf 'end-%s %s %s\n' "${file##*/}" "$member" "$value"
    done
  done
  file=$B/PULL_MANIFEST.json
  [[ -s $file ]] || return 0
  id=$(box_member "$file" run_id)
  [[ -n $id && $id == "$(box_member "$D/run.json" run_id)" ]] || return 0
  awk -F'"' '
    $2 == "cells_expected" { expected = substr($3, 3) + 0 }
    $2 == "cell" && $6 == "state" { state[$8]++ }
    $2 == "files" { exit }
    END { printf "settled %d %d %d\n", expected, state["done"], state["excepted"] }' "$file"
}
