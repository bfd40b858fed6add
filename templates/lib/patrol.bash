# lib/patrol.bash: what the facts of a look mean: healthy, done, to be looked at by a person, or not known.
# needs: exit log file record compat ssh
# reads: the answer of look_around; L; STALL_S NEED_DISK_BYTES SAVE_S

# Worst first: an escalation stays one, whatever else is not known.
escalate() { # <why> <what to do>
  [[ $VERDICT == escalate ]] || VERDICT=escalate WHY=''
  WHY+="${WHY:+ | }$1 -> $2"
}
not_known() { # <why>
  [[ $VERDICT == escalate ]] || VERDICT=unknown
  NOTE+="${NOTE:+; }$1"
}
note() { # <text>
  NOTE+="${NOTE:+; }$1"
}

# The last look of ours, into LAST_*; all empty where there was none.
read_last_look() {
  local line
  LAST_TIME='' TREND_SINCE='' LAST_SUCCESS=false LAST_POWER_OFF=false LAST_RUN_ID='' SEEN='' LAST_USED_data='' LAST_USED_durable='' LAST_INODES_data='' LAST_INODES_durable=''
  read_record "$L/patrol.json" patrol/1 || return 0
  LAST_TIME=${R_time_s-} TREND_SINCE=${R_trend_since_s-} LAST_SUCCESS=${R_success_seen-false} LAST_POWER_OFF=${R_power_off-false} LAST_RUN_ID=${R_run_id-}
  LAST_USED_data=${R_data_bytes_used-} LAST_USED_durable=${R_durable_bytes_used-}
  LAST_INODES_data=${R_data_inodes_used-} LAST_INODES_durable=${R_durable_inodes_used-}
  while IFS= read -r line; do
    [[ $line =~ ^\ {4}\"([0-9]+\ /[^\"]*)\",?$ ]] || continue
    SEEN+=${BASH_REMATCH[1]}$'\n'
  done <"$L/patrol.json"
}

# The answer's lines into facts: S_<member> of status.sh, and the others as they are.
read_facts() { # <answer file>
  local line text member
  FACT_NOW='' STATUS='' STATUS_WHY='' GPU='' MEMORY='' PROCESSES='' FAST=0 LOGS='' NEW_ERRORS=0 FIRST_ERROR='' FAILURE='' FAILED_AT='' SUCCESS_POWER=''
  ROOM='' TREE='' UNANSWERED='' SETTLED=''
  for member in run_id state planned pending running 'done' unsynced failed preempted unknown last_progress_s eta_s session why; do printf -v "S_$member" '%s' ''; done
  while IFS= read -r line; do
    plain_line "$line"
    line=$REPLY
    text=${line#* }
    case $line in
      'now '*) FACT_NOW=$text ;;
      'status '*) take_status "$text" ;;
      'status-none'*) STATUS=none ;;
      'status-failed '*) STATUS=failed STATUS_WHY=$text ;;
      'room '*) ROOM+=$text$'\n' ;;
      'gpu '*) GPU+=$text$'\n' ;;
      'memory '*) MEMORY=$text ;;
      'processes '*) PROCESSES=$text ;;
      'process '*) TREE+="  $line"$'\n' ;;
      'fast '*) FAST=$text ;;
      'unknown '*) UNANSWERED+="${UNANSWERED:+; }$text" ;;
      'settled '*) SETTLED=$text ;;
      'log '*) take_log "$text" ;;
      'log-line '*) [[ -n $FIRST_ERROR ]] || FIRST_ERROR=$text ;;
      'end-FORMAL_FAILURE.json ended '*) FAILED_AT=${text#ended } ;;
      'end-FORMAL_FAILURE.json '*) FAILURE+="${FAILURE:+, }$text" ;;
      'end-FORMAL_SUCCESS power_off '*) SUCCESS_POWER=${text#power_off } ;;
    esac
  done <"$1"
}
# No fork for the many lines that are plain already.
plain_line() { # <text>    into REPLY
  REPLY=$1
  [[ $1 != *[[:cntrl:]]* ]] || plain_text "$1"
}
take_status() { # <line of line JSON>
  local member value
  if [[ $1 =~ ^\ *\"([a-z_]+)\":\ \"?([^\"]*)\"?,?$ ]]; then
    member=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]%,}
    case $member in
      run_id | state | planned | pending | running | 'done' | unsynced | failed | preempted | unknown | last_progress_s | eta_s | session | why)
        STATUS='read'
        [[ $value != null ]] || value=''
        printf -v "S_$member" '%s' "$value"
        ;;
    esac
  fi
}
take_log() { # <bytes count path>
  local bytes=${1%% *} rest=${1#* }
  [[ $bytes =~ ^[0-9]+$ && ${rest%% *} =~ ^[0-9]+$ && ${rest#* } != *[\"\\]* ]] || return 0
  LOGS+="$bytes ${rest#* }"$'\n'
  NEW_ERRORS=$((NEW_ERRORS + ${rest%% *}))
}

# The run itself.
judge_run() {
  local start='formal_run.sh start there (P3.2)'
  [[ $KIND != slurm ]] || start='submit the job (P3.2)'
  case $STATUS in
    none) escalate "no run has begun on the box" "start it: $start; or it lies elsewhere: --data-dir" && return 0 ;;
    'read') ;;
    *) not_known "${STATUS_WHY:-the box did not say what the run is in}" && return 0 ;;
  esac
  ! settled || return 0
  ((${S_failed:-0} == 0)) || escalate "${S_failed-} cells failed" "status.sh there names class and log; each class has its remedy in the runbook"
  ((${S_unsynced:-0} == 0)) || escalate "${S_unsynced-} cells are finished but not in the bundle" "make room or attach the storage, then aggregate_to_fs.sh there"
  case ${S_state-} in
    # A proof of a part, or a power-off that failed: the record says it, and so do we.
    success) over "${S_why:+${S_why-}; }" && return 0 ;;
    'done') over '' && return 0 ;;
    failed)
      escalate "FAILED, $(meter_since): ${S_why:-no reason given}${FAILURE:+ ($FAILURE)}" "read its log; keep the machine; it goes on with: $start"
      return 0
      ;;
    stopped | lost | idle) escalate "the run is ${S_state-}${S_why:+: ${S_why-}}" "start it again, it goes on: $start" && return 0 ;;
    unknown)
      not_known "the run's state is not known${S_why:+: ${S_why-}}"
      [[ $KIND == slurm || ${S_why-} != *'look there' ]] || note "if that box is gone for good: $start with --adopt"
      return 0
      ;;
  esac
  case ${S_session-} in
    alive) ;;
    gone) escalate "nothing runs${S_why:+: ${S_why-}}" "start it: $start" ;;
    *) not_known "whether its session lives cannot be told" ;;
  esac
  judge_progress
}

# A person has excepted by name what is not done, so nothing is left to be done: the manifest says so, and nothing runs.
settled() {
  local expected finished excepted rest
  read -r expected finished excepted rest <<<"$SETTLED"
  [[ ${excepted-} =~ ^[1-9][0-9]*$ && $((finished + excepted)) -eq $expected && $expected == "${S_planned-}" ]] || return 1
  [[ ${S_session-} == gone && ${S_running-} == 0 && ${S_unsynced-} == 0 && ${S_done-} == "$finished" ]] || return 1
  over "$excepted of $expected cells are excepted by name: "
}
over() { # <words before>
  VERDICT=${VERDICT/healthy/done}
  if [[ $KIND == ssh-rental || $KIND == cloud-vm ]]; then note "$1over, with the $(meter_since): aggregate, pull, verify, teardown"; else [[ -z $1 ]] || note "$1over"; fi
}

# A failed run keeps the machine, and the machine keeps costing (case 129).
meter_since() { # prints
  # Only a rented box goes on costing by being there.
  [[ $KIND == ssh-rental || $KIND == cloud-vm ]] || { printf 'nothing runs%s' "${FAILED_AT:+ since $FAILED_AT}" && return 0; }
  printf 'meter running%s' "${FAILED_AT:+ since $FAILED_AT}"
  [[ ! ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]] || printf ' at %s an hour' "$PRICE_PER_HOUR"
}

# Alive is not progress: the age of the last sign of it decides. A start gets its time: nothing is judged before the first.
judge_progress() {
  local limit=$STALL_S
  local age=${S_last_progress_s-}
  ((limit > 0)) || limit=1800
  ((${S_running:-0} > 0)) || return 0
  if [[ ! $age =~ ^-?[0-9]+$ ]]; then
    not_known "how old its last progress is cannot be told"
  elif ((age < 0)); then
    not_known "files of the run are dated in the future: a clock is wrong"
  elif ((age > limit)); then
    escalate "no progress for $age s (limit $limit)" "look at its log's end and at the GPU; stop and start it if it hangs"
  fi
  [[ -z $PROCESSES || $PROCESSES != 0 ]] || not_known "${S_running-} cells are running by their records, and no process carries this run's id (another user's, or between two cells)"
}

judge_room() { # sets ROOM_TEXT
  local name kind total used free percent
  ROOM_TEXT='' TREND_SPAN=0 TREND_ANEW=true
  if [[ $TREND_SINCE =~ ^[0-9]+$ && $FACT_NOW =~ ^[0-9]+$ ]] && ((FACT_NOW >= TREND_SINCE)); then
    TREND_SPAN=$((FACT_NOW - TREND_SINCE)) TREND_ANEW=false
    ((TREND_SPAN < TREND_MAX_S)) || TREND_ANEW=true
  fi
  while read -r name kind total used free; do
    [[ -n $name ]] || continue
    if [[ $total == UNKNOWN ]]; then
      ROOM_TEXT+=" $name.$kind=UNKNOWN"
      [[ $name == scratch ]] || not_known "the $name tier does not answer"
      continue
    elif [[ ! $total =~ ^[0-9]+$ || ! $used =~ ^[0-9]+$ || ! $free =~ ^-?[0-9]+$ ]]; then
      ROOM_TEXT+=" $name.$kind=n/a"
      continue
    fi
    percent=$((used * 100 / total))
    ROOM_TEXT+=" $name.$kind=$percent%"
    if ((percent >= 95)); then
      escalate "$name: $percent% of its $kind are used" "make room: prune $name, or a larger disk"
    elif ((percent >= 85)); then
      note "$name: $percent% of its $kind are used"
    fi
    if [[ $kind == bytes ]]; then
      [[ $name == scratch ]] || ((free * 1024 >= NEED_DISK_BYTES)) || [[ -z ${S_pending-} || ${S_pending-} == 0 ]] ||
        escalate "$name: $((free / 1024)) MB free, less than one cell needs" "make room before the next cell"
      used=$((used * 1024)) free=$((free * 1024))
    fi
    trend "$name" "$kind" "$used" "$free"
  done <<<"$ROOM"
}

# A pace is taken over some minutes at least: what is copied in the seconds between two looks says nothing of the hours to come.
readonly TREND_S=300 TREND_MAX_S=1800

# Growth since the figures that were kept, and when it will be full at that pace.
trend() { # <name> <kind> <used> <free>
  local before left span
  case $1.$2 in
    data.bytes) before=$LAST_USED_data NOW_data_bytes=$3 ;;
    data.inodes) before=$LAST_INODES_data NOW_data_inodes=$3 ;;
    durable.bytes) before=$LAST_USED_durable NOW_durable_bytes=$3 ;;
    durable.inodes) before=$LAST_INODES_durable NOW_durable_inodes=$3 ;;
    *) return 0 ;;
  esac
  [[ $before =~ ^[0-9]+$ ]] || { TREND_ANEW=true && return 0; }
  ((TREND_SPAN >= TREND_S && $3 > before)) || return 0
  span=$TREND_SPAN
  left=$(($4 * span / ($3 - before)))
  ROOM_TEXT+="(+$((($3 - before) * 3600 / span))/h)"
  if ((left < 3600)); then
    escalate "$1 will be out of $2 in $((left / 60)) min at this pace" "make room now"
  elif ((left < 21600)); then
    note "$1 will be out of $2 in $((left / 3600)) h at this pace"
  fi
}

# A card's figures are numbers, or they are not known: never idle because a text was read as 0.
judge_gpu() { # sets GPU_TEXT
  local line index use used total temp out
  GPU_TEXT=''
  while IFS= read -r line; do
    [[ -n $line ]] || continue
    case $line in none | UNKNOWN*) GPU_TEXT+=" gpu=$line" && continue ;; esac
    IFS=, read -r index use used total temp out <<<"$line"
    index=${index// /} use=${use// /} used=${used// /} total=${total// /} temp=${temp// /}
    if [[ ! $index =~ ^[0-9]+$ ]]; then
      GPU_TEXT+=' gpu=UNKNOWN'
      continue
    fi
    [[ $use =~ ^[0-9]+$ ]] || use=UNKNOWN
    [[ $used =~ ^[0-9]+$ && $total =~ ^[0-9]+$ ]] || used=UNKNOWN total=UNKNOWN
    [[ $temp =~ ^[0-9]+$ ]] || temp=UNKNOWN
    GPU_TEXT+=" gpu$index=$use%,$used/${total}MB,${temp}C"
  done <<<"${GPU:-UNKNOWN}"
}

judge_memory() { # sets MEMORY_TEXT
  local kind used limit percent
  read -r kind used limit <<<"$MEMORY"
  MEMORY_TEXT=' mem=UNKNOWN'
  [[ ${used-} =~ ^[0-9]+$ && ${limit-} =~ ^[1-9][0-9]*$ ]] || return 0
  percent=$((used * 100 / limit))
  MEMORY_TEXT=" mem($kind)=$percent%"
  ((percent < 95)) || escalate "memory is at $percent% of its limit" "fewer cells at once, or a smaller batch: the kernel kills next"
}

judge_logs() {
  ((NEW_ERRORS > 0)) || return 0
  # At a first look everything is new, so nothing is news.
  if [[ -n $LAST_TIME && $LAST_RUN_ID == "${S_run_id-}" ]]; then
    escalate "$NEW_ERRORS new lines of errors in its logs: $FIRST_ERROR" "read the log; the record of the cell says whether it went on"
  else
    note "$NEW_ERRORS lines of errors in its logs (first look): $FIRST_ERROR"
  fi
}

write_last_look() {
  local line comma='' list='' success=$LAST_SUCCESS power=$LAST_POWER_OFF
  # A run that was started again after its success is as mortal as before.
  if [[ $STATUS == 'read' ]]; then success=false power=false; fi
  if [[ ${S_state-} == success ]]; then success=true power=${SUCCESS_POWER:-false}; fi
  [[ $power == true || $power == false ]] || power=false
  record_open patrol/1
  utc_now
  record_text time "$REPLY"
  record_int time_s "$FACT_NOW" || return
  record_text run_id "${S_run_id-}"
  record_text verdict "$VERDICT"
  record_text why "$WHY"
  record_bool success_seen "$success" || return
  record_bool power_off "$power" || return
  if [[ $TREND_ANEW == true ]]; then
    TREND_SINCE=$FACT_NOW LAST_USED_data=${NOW_data_bytes-} LAST_INODES_data=${NOW_data_inodes-}
    LAST_USED_durable=${NOW_durable_bytes-} LAST_INODES_durable=${NOW_durable_inodes-}
  fi
  record_int trend_since_s "$TREND_SINCE" || return
  record_int data_bytes_used "$LAST_USED_data" || return
  record_int data_inodes_used "$LAST_INODES_data" || return
  record_int durable_bytes_used "$LAST_USED_durable" || return
  record_int durable_inodes_used "$LAST_INODES_durable" || return
  while IFS= read -r line; do
    [[ -n $line ]] || continue
    list+="$comma    \"$line\""
    comma=,$'\n'
  done <<<"$LOGS"
  RECORD+=,$'\n''  "logs": ['$'\n'"${list:+$list$'\n'}"'  ]'
  record_close
  replace_file "$L/patrol.json" "$RECORD"
}
