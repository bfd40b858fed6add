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
