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
