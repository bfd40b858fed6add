# lib/formal.bash: the records of a formal run, and what is judged from them (docs/contracts.md, section 7).
# needs: exit log file record proc hash
# reads: D B RUN_ID, and F_START F_SESSION F_NAME F_SOCKET F_PID F_TICKS F_DIGEST F_POWER of this start

write_formal() { # <state> <why>
  local REPLY host boot
  this_host
  host=$REPLY
  this_boot_id
  boot=$REPLY
  record_open formal/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text state "$1"
  record_text why "$2"
  utc_now
  record_text since "$REPLY"
  record_text session "$F_SESSION"
  record_text session_name "$F_NAME"
  record_text socket "$F_SOCKET"
  record_text host "$host"
  record_text boot_id "$boot"
  record_int pid "$F_PID" || return
  record_int start_ticks "$F_TICKS" || return
  record_text box_digest "$F_DIGEST"
  record_bool power_off "$F_POWER" || return
  record_close
  replace_file "$D/formal.json" "$RECORD"
}

# The record's members into F_*, so that a rewrite keeps them.
take_formal() {
  F_START=${R_start_id-} F_SESSION=${R_session-} F_NAME=${R_session_name-} F_SOCKET=${R_socket-}
  F_PID=${R_pid-} F_TICKS=${R_start_ticks-} F_DIGEST=${R_box_digest-} F_POWER=${R_power_off-} F_SINCE=${R_since-} F_STATE=${R_state-}
}

# Is FORMAL_SUCCESS there for this run and start, over the manifest that lies in B now? A proof of a part says so.
success_holds() { # <start id>    returns: 0 with PART_SAID, or 1 with the reason in REPLY
  local start=$1 rc=0 said
  PART_SAID=''
  read_record "$B/FORMAL_SUCCESS" formal_success/1 "$RUN_ID" || rc=$?
  case $rc in
    1) REPLY="there is no $B/FORMAL_SUCCESS" && return 1 ;;
    2) REPLY="$B/FORMAL_SUCCESS is not a whole record of this run" && return 1 ;;
  esac
  [[ ${R_start_id-} == "$start" ]] || { REPLY="$B/FORMAL_SUCCESS is of another start (${R_start_id-})" && return 1; }
  said=${R_manifest_sha256-}
  hash_file "$B/PULL_MANIFEST.json" && [[ $REPLY == "$said" ]] || { REPLY="$B/FORMAL_SUCCESS was said over another PULL_MANIFEST.json" && return 1; }
  [[ -z ${R_part_cells-} ]] || PART_SAID="a part only: $R_part_cells cells, named in plans/$start.tsv; ${R_cells_done-} of the ${R_cells_expected-} cells of the run are done"
  REPLY=''
}

# What the formal run is in now, into FORMAL_STATE and FORMAL_WHY; leaves the record in R_* and F_*.
judge_formal() {
  local rc=0 REPLY host boot
  FORMAL_STATE=unknown FORMAL_WHY=''
  # shellcheck disable=SC2034 # not every script that judges prints all of them
  F_START='' F_SESSION='' F_NAME='' F_SOCKET='' F_PID='' F_TICKS='' F_DIGEST='' F_POWER=false F_SINCE='' F_STATE=''
  read_record "$D/formal.json" formal/1 "$RUN_ID" || rc=$?
  case $rc in
    1) FORMAL_STATE=none FORMAL_WHY="no formal run was started here" && return 0 ;;
    2) FORMAL_WHY="$D/formal.json is not a whole record of this run" && return 0 ;;
  esac
  take_formal
  FORMAL_WHY=${R_why-}
  this_host
  host=$REPLY
  this_boot_id
  boot=$REPLY
  case ${R_state-} in
    success)
      FORMAL_STATE=success
      if success_holds "$F_START"; then
        [[ -z $PART_SAID ]] || FORMAL_WHY="$PART_SAID${FORMAL_WHY:+; $FORMAL_WHY}"
      else
        FORMAL_STATE=unknown FORMAL_WHY="the record says success, but ${REPLY-}"
      fi
      ;;
    failed | stopped) FORMAL_STATE=$R_state ;;
    starting | running | aggregating)
      if [[ ${R_host-} != "$host" ]]; then
        FORMAL_WHY="it was $R_state on $R_host, and this is $host: look there"
      elif [[ ${R_boot_id-} != "$boot" ]]; then
        FORMAL_STATE=lost FORMAL_WHY="boot id changed while it was $R_state, no exit record: the box was restarted under it"
      elif same_process "$F_PID" "$F_TICKS"; then
        FORMAL_STATE=$R_state
      else
        # The last act may have been written while we looked.
        FORMAL_STATE=lost FORMAL_WHY="its process is gone while it was $R_state, no exit record: killed, or ended at logout"
        lost_after_all
      fi
      ;;
    *) FORMAL_WHY="$D/formal.json says state '${R_state-}', which nobody writes" ;;
  esac
}

# A run that died between its success record and its last state is a success: the proof is complete.
lost_after_all() {
  local REPLY rc=0
  read_record "$D/formal.json" formal/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return 0
  case ${R_state-} in
    failed | stopped | success) FORMAL_STATE=$R_state FORMAL_WHY=${R_why-} ;;
  esac
  if [[ $FORMAL_STATE != failed && $FORMAL_STATE != stopped ]] && success_holds "$F_START"; then
    FORMAL_STATE=success FORMAL_WHY="${PART_SAID:+$PART_SAID; }its process ended right after it had written FORMAL_SUCCESS"
  fi
}

# A process of this run's detached part that is at work, whatever the records say: it stands in D and runs our own words.
# Where the part itself was killed, what it had started goes on.
live_detached() { # returns: 0 with its number in REPLY, 1 there is none
  local dir word found='' oldest=''
  local -a words
  for dir in /proc/[0-9]*; do
    [[ $dir/cwd -ef $D ]] || continue
    words=()
    { while IFS= read -r -d '' word; do words+=("$word"); done <"$dir/cmdline"; } 2>/dev/null || continue
    case ${words[1]-},${words[2]-} in
      */"$PROG",_run | */"$PROG",_enter) ;;
      */run_queue.sh,--dry-run | */aggregate_to_fs.sh,--help) continue ;;
      */run_queue.sh,* | */aggregate_to_fs.sh,*) ;;
      # A cell outlives a queue that was killed.
      */run_one.sh,--queue) [[ ${words[3]-} == "$D/queue.tsv" ]] || continue ;;
      *) continue ;;
    esac
    start_ticks "${dir#/proc/}" || continue
    # Of several the oldest: it began the others, and ends them when it is told to.
    if [[ -z $found ]] || ((REPLY < oldest)); then found=${dir#/proc/} oldest=$REPLY; fi
  done
  REPLY=$found
  [[ -n $found ]]
}

# Of a start and its detached part one takes the mark in the private folder, in one step: whoever has it decides whether the
# part begins. Where the folder is gone it cannot begin either.
bar_detached() { # <start id>    returns: 0 it will never begin, 1 it has begun
  local dir=/tmp/gr-$EUID-$1
  mkdir -- "$dir/taken" 2>/dev/null || [[ ! -d $dir ]]
}
# It has begun: wait until its own record says so.    sets R_pid
await_begun() { # returns: 0, or 1 it died before
  local n
  for ((n = 0; n < 50; n++)); do
    if read_record "$D/formal.json" formal/1 "$RUN_ID" && [[ ${R_start_id-} == "$F_START" && ${R_state-} != starting ]]; then return 0; fi
    sleep 0.1 2>/dev/null || sleep 1
  done
  return 1
}

# Take the next start number, which only one start can have; refuses while an earlier start is still at work. Its last word is
# the id, and so the private folder, of a start that may be killed before its record names it.
take_start() {
  local REPLY uuid dir=$D/starts n=0 file host boot pid ticks id mine
  mkdir -p -- "$dir" || refuse "$EX_NOROOM" "$dir" "the folder cannot be made" "look at the data tier: room, rights"
  IFS= read -r uuid </proc/sys/kernel/random/uuid || refuse "$EX_MISSING" "/proc" "it cannot be read" "mount /proc"
  NEW_START=${uuid:0:8} EARLIER_START=''
  for file in "$dir"/[0-9][0-9][0-9]*; do
    [[ -e $file ]] || continue
    ((10#${file##*/} <= n)) || n=$((10#${file##*/}))
  done
  this_host
  mine=$REPLY
  this_boot_id
  mine+=" $REPLY"
  if ((n > 0)); then
    printf -v file '%s/%03d' "$dir" "$n"
    [[ ! -f $file ]] || read -r host boot pid ticks id <"$file" || :
    if [[ "${host-} ${boot-}" == "$mine" ]] && same_process "${pid:-0}" "${ticks:-0}"; then
      refuse "$EX_BUSY" "start" "another start is at work (process $pid)" "wait for it, then: bash $SELF_DIR/$PROG status"
    fi
    EARLIER_START=${id-}
  fi
  start_ticks $$
  printf -v file '%s/%03d' "$dir" $((n + 1))
  create_once "$file" "$mine $$ $REPLY $NEW_START"$'\n' ||
    refuse "$EX_BUSY" "start" "another start was quicker, or $file cannot be written" "bash $SELF_DIR/$PROG status"
}

# What stands there from an earlier start, aside under its own id: nobody can take it for this start's.
move_old_aside() {
  local file to id
  for file in "$B/FORMAL_SUCCESS" "$D/FORMAL_FAILURE.json" "$D/READY_TO_STOP"; do
    [[ -e $file ]] || continue
    id=''
    if read_record "$file" formal_success/1 || read_record "$file" formal_failure/1 || read_record "$file" ready_to_stop/1; then id=${R_start_id-}; fi
    to=$file.${id:-unreadable-before-$F_START}
    if ! mv -f -- "$file" "$to" || [[ -e $file ]]; then
      refuse "$EX_COPY" "mv $file $to" "the old record cannot be moved aside" "look at the tier: rights, room"
    fi
    log "moved aside: $to"
    [[ $file == */FORMAL_FAILURE.json ]] || continue
    for to in "" .sha256; do
      [[ ! -e $D/formal.failed.tar.gz$to ]] || mv -f -- "$D/formal.failed.tar.gz$to" "$D/formal.failed.${id:-before-$F_START}.tar.gz$to"
    done
  done
}

# The bundle's manifest says that every cell of the roster is done, or where --only named a part, every cell of the plan.
# Sets M_EXPECTED M_DONE M_DIGEST, and M_PART: how many cells the part has, empty where the whole roster is proven.
check_manifest() { # <cells in the roster> <plan>    returns: 0 or 65 with the reason in REPLY
  local file=$B/PULL_MANIFEST.json body said
  read_record "$file" pull_manifest/1 "$RUN_ID" || { REPLY="$file is not a whole manifest of this run" && return "$EX_INTEGRITY"; }
  M_EXPECTED=${R_cells_expected-} M_DONE=${R_cells_done-} M_PART='' said=${R_self_sha256-}
  body=$(sed -n '/^  "self_sha256": /q;p' "$file")
  hash_text "$body"$'\n'
  [[ $REPLY == "$said" ]] || { REPLY="$file does not match its own digest" && return "$EX_INTEGRITY"; }
  [[ ${R_commit-} == "$RUN_COMMIT" ]] || { REPLY="$file is of commit ${R_commit-}, the run of $RUN_COMMIT" && return "$EX_INTEGRITY"; }
  [[ $M_EXPECTED == "$1" ]] || { REPLY="$file knows ${M_EXPECTED:-?} cells, the roster has $1" && return "$EX_INTEGRITY"; }
  if [[ -n $ONLY && $M_DONE != "$1" ]]; then
    part_is_done "$file" "$2" || return
  elif [[ $M_DONE != "$1" ]]; then
    REPLY="$file has ${M_DONE:-?} of ${M_EXPECTED:-?} cells done, the roster has $1" && return "$EX_INTEGRITY"
  fi
  hash_file "$file" || { REPLY="$file cannot be read" && return "$EX_INTEGRITY"; }
  M_DIGEST=$REPLY
}
# Each cell of the plan, which are those that --only named, is done by the manifest. Sets M_PART.
part_is_done() { # <manifest> <plan>    returns: 0 or 65 with the reason in REPLY
  local name rest n=0
  local -A well=()
  while IFS= read -r name; do well[$name]=1; done < <(awk -F'"' '/^    \{"cell": / && $8 == "done" {print $4}' "$1")
  while IFS=$'\t' read -r name rest; do
    [[ $name != '#'* ]] || continue
    [[ -n ${well[$name]-} ]] || { REPLY="cell $name of the part is not done by $1" && return "$EX_INTEGRITY"; }
    n=$((n + 1))
  done <"$2"
  ((n > 0)) || { REPLY="the plan $2 names no cell" && return "$EX_INTEGRITY"; }
  M_PART=$n
}

write_success() { # returns: 0 written and read back
  local REPLY
  record_open formal_success/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text commit "$RUN_COMMIT"
  record_int cells_expected "$M_EXPECTED" || return
  record_int cells_done "$M_DONE" || return
  record_int part_cells "$M_PART" || return
  record_text manifest_sha256 "$M_DIGEST"
  record_bool power_off "$F_POWER" || return
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$B/FORMAL_SUCCESS" "$RECORD" || return
  success_holds "$F_START" || { log "$REPLY" && return "$EX_INTEGRITY"; }
}

write_failure() { # <stage> <command> <exit> <remedy>
  local REPLY
  record_open formal_failure/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text stage "$1"
  record_text command "$2"
  record_int exit "$3" || return
  record_text log "$D/formal.log"
  record_text remedy "$4"
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$D/FORMAL_FAILURE.json" "$RECORD"
}

# The last word of a start: its proof, or the evidence of its failure, is written, and nothing of it is at work (X11).
# It says nothing about results being at home: a teardown has its own gate.
write_ready() { # <success or failed>
  local REPLY
  record_open ready_to_stop/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text outcome "$1"
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$D/READY_TO_STOP" "$RECORD"
}

# What is needed to say why a run failed, in one file of bounded size with its digest: records, plan, the run's log, and of
# every cell that is not done its record and its logs.
pack_failure() { # writes: D/formal.failed.tar.gz and .sha256    returns: 0 packed, 1 not
  local REPLY stage=$D/.evidence.$$ file cell rc=0
  LEFT_TO_PACK=$((64 * 1024 * 1024))
  rm -rf -- "$D"/.evidence.* "$D"/.formal.failed.*.tmp
  mkdir -p -- "$stage" || return
  for file in run.json formal.json FORMAL_FAILURE.json queue.tsv events.tsv smoke.json NEGATIVE_RESULTS.tsv environment.txt formal.log; do
    pack_end "$D/$file" "$stage/$file"
  done
  pack_end "$D/plans/$F_START.tsv" "$stage/$F_START.tsv"
  while IFS= read -r cell; do
    cell=${cell##*/} cell=${cell%.json}
    ((LEFT_TO_PACK > 0)) || break
    pack_end "$D/state/$cell.json" "$stage/state/$cell.json"
    for file in "$D/logs/$cell"/attempt-*.log; do pack_end "$file" "$stage/logs/$cell/${file##*/}"; done
  done < <(find "$D/state" -maxdepth 1 -name '*.json' ! -name '.*' -exec grep -L '^  "state": "done"' {} + 2>/dev/null | LC_ALL=C sort)
  if tar -czf "$D/.formal.failed.$$.tmp" -C "$stage" . && flush "$D/.formal.failed.$$.tmp" && mv -f -- "$D/.formal.failed.$$.tmp" "$D/formal.failed.tar.gz" &&
    tar -tzf "$D/formal.failed.tar.gz" >/dev/null && hash_file "$D/formal.failed.tar.gz"; then
    replace_file "$D/formal.failed.tar.gz.sha256" "$REPLY  formal.failed.tar.gz"$'\n' && log "evidence of the failure: $D/formal.failed.tar.gz ($REPLY)" || rc=1
  else
    log "the evidence could not be packed; it lies in $D as it is"
    rc=1
  fi
  rm -rf -- "${stage:?}" "$D/.formal.failed.$$.tmp"
  return "$rc"
}
# The last megabyte of a file, as long as there is room for it. Reads and lowers LEFT_TO_PACK.
pack_end() { # <file> <copy>
  local size
  [[ -f $1 ]] && ((LEFT_TO_PACK > 0)) || return 0
  mkdir -p -- "${2%/*}" && tail -c $((1024 * 1024)) -- "$1" >"$2" || return 0
  size=$(wc -c <"$2") || size=$((1024 * 1024))
  LEFT_TO_PACK=$((LEFT_TO_PACK - size))
}
