# lib/roster.bash: the run's own queue: what its source has new is appended, nothing leaves, no command changes.
# needs: exit log path file proc queue run idle
# reads: D SELF_DIR QUEUE_FILE JOB RUN_SHARD

# A shard goes by places in the source: with a line gone, or one put in before the end, it would get cells of other shards,
# which run on other boxes.
check_places() { # reads merge_queue's own: source names known mine of n
  local i at=-1 moved=''
  for ((i = 0; i < ${#names[@]}; i++)); do
    if ((i % of != mine)); then
      [[ -z ${known[${names[i]}]-} ]] || moved=${names[i]}
      continue
    fi
    # From the first cell that we have, ours follow one another there as here.
    if ((at < 0)) && [[ -n ${known[${names[i]}]-} ]]; then
      for ((at = 0; at < n; at++)); do [[ ${QUEUE_NAMES[at]} != "${names[i]}" ]] || break; done
    fi
    ((at >= 0 && at < n)) || continue
    [[ ${QUEUE_NAMES[at]} == "${names[i]}" ]] || moved=${names[i]}
    at=$((at + 1))
  done
  [[ -z $moved ]] ||
    refuse "$EX_GATE" "queue $source" "its lines have moved (cell $moved), and shard $RUN_SHARD goes by their places: it would run cells of other shards" "put the lines back as they were; new ones belong at the end"
}

# One merges at a time: a roster written by another in between would lose its names to ours, or ours to its. A dead one's lock is
# nobody's, and nobody waits for ever.
lock_roster() { # returns: 1 where it could not be had
  local REPLY here host boot pid ticks n
  this_host
  here=$REPLY
  this_boot_id
  here+=" $REPLY"
  start_ticks $$ || return 1
  if [[ -e $D/.queue.lock && ! -f $D/.queue.lock ]]; then
    log "$D/.queue.lock is no file, so no lock: going on without it; move it away"
    return 1
  fi
  for ((n = 0; n < 200; n++)); do
    set -C
    if { printf '%s %s %s\n' "$here" $$ "$REPLY" >"$D/.queue.lock"; } 2>/dev/null; then set +C && return 0; fi
    set +C
    [[ -e $D/.queue.lock ]] || continue
    if { read -r host boot pid ticks <"$D/.queue.lock"; } 2>/dev/null && { [[ "$host $boot" != "$here" || $pid == "$$" ]] || ! same_process "$pid" "$ticks"; }; then
      unlock_roster
    else
      idle 0.1
    fi
  done
  [[ ! -e $D/.queue.lock ]] ||
    log "$D/.queue.lock could not be had in 20 s: going on without it; if no other run_queue is at work on this run, remove it"
  return 1
}
unlock_roster() {
  rm -f -- "$D/.queue.lock"
}

# Merge the source into D/queue.tsv and leave the roster in QUEUE_NAMES QUEUE_COMMANDS. Refuses 69, 73, 77, 78.
merge_queue() { # returns: 0; ADDED says how many cells are new
  local REPLY source=${QUEUE_FILE:-$SELF_DIR/queue.tsv} i n mine=$((${RUN_SHARD%/*} - 1)) of=${RUN_SHARD#*/} text
  local -a names commands lines=()
  local -A known=() folded=()
  ADDED=0 MERGED_TEXT=''
  read_queue "$source"
  text=$QUEUE_TEXT
  # The usual case: the run has all of it, and nothing else.
  if [[ $of == 1 && -f $D/queue.tsv ]] && read_text "$D/queue.tsv" && [[ $REPLY == "$text" ]]; then
    MERGED_TEXT=$text
    return 0
  fi
  names=("${QUEUE_NAMES[@]}") commands=("${QUEUE_COMMANDS[@]}")
  if [[ -e $D/queue.tsv ]]; then
    read_queue "$D/queue.tsv"
  else
    QUEUE_NAMES=() QUEUE_COMMANDS=()
  fi
  n=${#QUEUE_NAMES[@]}
  for ((i = 0; i < n; i++)); do
    known[${QUEUE_NAMES[i]}]=${QUEUE_COMMANDS[i]}
  done
  ((of == 1 || n == 0)) || check_places
  for ((i = mine; i < ${#names[@]}; i += of)); do
    if [[ ${known[${names[i]}]-} == "${commands[i]}" ]]; then continue; fi
    [[ -z ${known[${names[i]}]-} ]] ||
      refuse "$EX_GATE" "cell ${names[i]}" "its command in $source differs from the run's own in $D/queue.tsv" "undo the change and continue, or begin anew with RUN=$JOB.2"
    QUEUE_NAMES+=("${names[i]}") QUEUE_COMMANDS+=("${commands[i]}")
    ADDED=$((ADDED + 1))
  done
  ((${#QUEUE_NAMES[@]} > 0)) || refuse "$EX_CONFIG" "shard $RUN_SHARD" "it owns no cell of $source" "give fewer shards"
  ((ADDED == 0)) || QUEUE_TEXT=''
  # shellcheck disable=SC2034 # for source_changed, which only run_queue asks
  MERGED_TEXT=$text
  [[ -z ${DRY_QUEUE-} ]] && ((ADDED > 0)) || return 0
  if [[ -z ${ROSTER_LOCKED-} ]]; then
    local ROSTER_LOCKED=1
    if lock_roster; then
      merge_queue
      unlock_roster
    else
      merge_queue
    fi
    return
  fi
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    if [[ -n ${folded[${QUEUE_NAMES[i],,}]-} ]]; then
      refuse "$EX_CONFIG" "cell ${QUEUE_NAMES[i]}" "the run has a cell whose name differs in upper and lower case only" "give it a name of its own"
    fi
    folded[${QUEUE_NAMES[i],,}]=1
    lines+=("${QUEUE_NAMES[i]}"$'\t'"${QUEUE_COMMANDS[i]}")
  done
  printf -v text '%s\n' "${lines[@]}"
  replace_file "$D/queue.tsv" "$text" || refuse_write "$EX_NOROOM" "$D/queue.tsv" "it cannot be written" data
  QUEUE_TEXT=$text
}

# Has the source, or the run's own queue, another text than at the last merge?
source_changed() {
  local REPLY LC_ALL=C
  ! read_text "${QUEUE_FILE:-$SELF_DIR/queue.tsv}" || [[ $REPLY != "$MERGED_TEXT" ]] || ! read_text "$D/queue.tsv" || [[ $REPLY != "$QUEUE_TEXT" ]]
}
