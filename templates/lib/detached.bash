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
