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
