# lib/plan.bash: the plan that a formal run prints before it starts, from what the gates have read.
# needs: exit log file hash probe git

print_plan() { # reads what gates.bash has set
  local REPLY slots=${SLOTS:-1} line name n=0 ids
  if [[ -n ${GPUS-} ]]; then
    IFS=, read -ra ids <<<"$GPUS"
    # As run_queue counts: a cell takes as many entries as it needs GPUs.
    slots=$((${#ids[@]} / (NEED_GPUS > 0 ? NEED_GPUS : 1)))
    ((slots > 0)) || slots=1
  fi
  printf 'plan for run %s (%s x %s)\n' "$RUN" "$PROFILE" "$JOB"
  printf '  code      %s at %s, branch %s\n' "$GIT_TOP" "$GIT_HEAD" "${GIT_BRANCH:-none}"
  ! git_ask log -1 --format='  commit    %h %ci %s' || printf '%s\n' "$REPLY"
  printf '  syntax    %s\n' "$SYNTAX_SAID"
  printf '  smoke     %s\n' "$SMOKE_SAID"
  printf '  drill     %s\n' "$DRILL_SAID"
  plan_measured
  printf '  cells     %s, of which done %s, to do %s\n' "${#CELL_NAMES[@]}" "$CELLS_DONE" "$CELLS_LEFT"
  [[ -z $ONLY ]] || printf '            a part only: %s of the %s cells of the roster; the proof will be of these and will say so\n' "${#CELL_NAMES[@]}" "$ROSTER_N"
  for name in "${CELL_NAMES[@]}"; do
    ((n++ < 10)) || break
    printf '              %s\n' "$name"
  done
  ((${#CELL_NAMES[@]} <= 10)) || printf '              … and %s more\n' $((${#CELL_NAMES[@]} - 10))
  printf '  outputs   %s/cells/<cell>, results in %s/final_ckpts/<cell>\n' "$D" "$B"
  [[ -n $DURABLE_DIR ]] || printf '            pull-only: nothing here outlives the box; results must be pulled first\n'
  for line in "${ROOM_SAID[@]}"; do printf '  disk      %s\n' "$line"; done
  for line in ${DATA_SAID[@]+"${DATA_SAID[@]}"}; do printf '  data      %s\n' "$line"; done
  ((${#DATA_PATHS[@]} > 0)) || printf '  data      the job declares none\n'
  plan_resources "$slots"
  plan_time "$slots"
  [[ ${F_POWER-} != true ]] || printf '  power     off after success: %s\n' "${POWER_OFF_COMMAND[*]}"
}

# The time of what is left and its cost, from what a cell was measured to take; without that from the job's own word.
plan_time() { # <slots>    reads: M_CELL_S NEED_S CELLS_LEFT
  local REPLY rounds=$(((CELLS_LEFT + $1 - 1) / $1)) said=measured
  [[ -n $M_CELL_S ]] || said='declared, not measured'
  span_of $((rounds * ${M_CELL_S:-$NEED_S}))
  printf '  time      about %s for what is left, %s at a time (%s)\n' "$REPLY" "$1" "$said"
  [[ ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]] || return 0
  awk -v s="$((rounds * ${M_CELL_S:-$NEED_S}))" -v p="$PRICE_PER_HOUR" -v said="$said" \
    'BEGIN {printf "  cost      about %.2f at %s per hour (%s)\n", s / 3600 * p, p, said}'
}
span_of() { # <seconds>    into REPLY
  if (($1 >= 7200)); then REPLY="$(($1 / 3600)) h $(($1 % 3600 / 60)) min"; elif (($1 >= 120)); then REPLY="$((($1 + 30) / 60)) min"; else REPLY="$1 s"; fi
}
bytes_of() { # <bytes>    into REPLY
  human "$1"
}

# One figure of a cell: what was measured, with what the job says beside it; a warning where they are more than twice apart.
plan_figure() { # <what> <measured or empty> <declared> <function that names it> <name in the job> <how it was measured>
  local REPLY declared apart=''
  "$4" "$3"
  declared=$REPLY
  if [[ -z $2 ]]; then
    printf '    %-8s %s, declared, not measured%s\n' "$1" "$declared" "${6:+ ($6)}"
    return 0
  fi
  "$4" "$2"
  if (($2 > 2 * $3)); then apart='more than twice what'; elif (($3 > 2 * $2)); then apart='less than half of what'; fi
  printf '    %-8s %s, measured (%s); the job: %s\n' "$1" "$REPLY" "$6" "$declared"
  [[ -z $apart ]] || log "warning: $1 of a cell: $REPLY was measured, $apart $5 in the job says ($declared); correct it there, or leave it if other cells need it"
}

# What was measured beside what the job says.
plan_measured() {
  local trial=''
  [[ -z $M_SECONDS ]] || trial="the smoke: $M_SECONDS s${M_STEPS:+ for $M_STEPS step(s)}${M_STEP_MS:+, $M_STEP_MS ms a step}"
  printf '  one cell\n'
  plan_figure time "$M_CELL_S" "$NEED_S" span_of needs.minutes "${M_CELL_FROM:-$trial}"
  plan_figure disk "$M_BYTES" "$NEED_DISK_BYTES" bytes_of needs.disk_gb "${M_CKPT:+the smoke, with a checkpoint of $M_CKPT bytes}"
  plan_figure memory "$M_PEAK" "$NEED_RAM_BYTES" bytes_of needs.ram_gb "${M_PEAK:+the most that the smoke or a cell held}"
  plan_figure saving "$M_SAVE" "$SAVE_S" span_of save_s "${M_SAVE:+one checkpoint to the data tier}"
  [[ -z $M_SAVE || $M_SAVE -le $SAVE_S ]] || log "warning: saving took $M_SAVE s, save_s says $SAVE_S: a stopped cell may be killed while it saves"
}

# What this start will produce, written down before it runs: a line a cell, with its output and what must lie there. The
# proof at the end is held to it (F5 F6).
write_plan() { # reads what gates.bash has set, F_START    writes: D/plans/<start id>.tsv
  local REPLY file=$D/plans/$F_START.tsv text name state i n=0
  text="# run $RUN_ID start $F_START commit $RUN_COMMIT cells ${#CELL_NAMES[@]} done $CELLS_DONE to do $CELLS_LEFT"
  [[ -z $ONLY ]] || text+=", a part: the roster has $ROSTER_N"
  text+=$'\n'
  for name in ${GIT_SUBMODULES[@]+"${GIT_SUBMODULES[@]}"}; do text+="# submodule $name"$'\n'; done
  text+="# smoke ${SMOKE_SAID//[[:cntrl:]]/ }"$'\n'
  for ((i = 0; i < ${#CELL_NAMES[@]}; i++)); do
    name=${CELL_NAMES[i]} state='to do'
    [[ ${CELL_STATES[i]} != 'done' ]] || state='done'
    text+="$name"$'\t'"$state"$'\t'"$B/final_ckpts/$name"$'\t'"${REQUIRED[*]-}"$'\n'
  done
  if ! mkdir -p -- "$D/plans" || ! replace_file "$file" "$text"; then
    refuse "$EX_NOROOM" "$file" "the plan cannot be written" "look at the data tier: room, rights"
  fi
  while IFS= read -r name; do
    [[ $name == '#'* ]] || n=$((n + 1))
  done <"$file"
  ((n == ${#CELL_NAMES[@]})) || refuse "$EX_COPY" "$file" "it holds $n cells, the queue ${#CELL_NAMES[@]}" "look at the data tier"
  hash_file "$file" || refuse "$EX_COPY" "$file" "it cannot be read back" "look at the data tier"
  [[ $SMOKE_SAID != WAIVED* ]] || event waiver - - "smoke $SMOKE_SAID"
  event plan - - "$n cells, $CELLS_DONE done, $CELLS_LEFT to do, sha256 $REPLY"
  log "plan of $n cells: $file ($REPLY)"
}

# Is each cell of the plan in the roster that the manifest was held to?    reads: QUEUE_NAMES
plan_in_roster() { # <plan>    returns: 0, or 65 with the reason in REPLY
  local name rest n=0
  local -A have=()
  for name in "${QUEUE_NAMES[@]}"; do have[$name]=1; done
  [[ -s $1 ]] || { REPLY="the plan $1 is gone" && return "$EX_INTEGRITY"; }
  while IFS=$'\t' read -r name rest; do
    [[ $name != '#'* ]] || continue
    [[ -n ${have[$name]-} ]] || { REPLY="cell $name of the plan $1 is not in the roster" && return "$EX_INTEGRITY"; }
    n=$((n + 1))
  done <"$1"
  ((n > 0)) || { REPLY="the plan $1 names no cell" && return "$EX_INTEGRITY"; }
}

# What preflight has read, and what so many cells side by side want of it.
plan_resources() { # <slots>    reads: CPUS RAM_FREE GPU_COUNT SAID_OF
  local REPLY need=$NEED_RAM_BYTES
  [[ -z $M_PEAK || $M_PEAK -le $need ]] || need=$M_PEAK
  recommend "$1" "$need"
  printf '  cpu       %s\n' "${SAID_OF[cpu]-}"
  human $((need * $1))
  printf '  ram       %s; %s at a time: %s\n' "${SAID_OF[ram]-}" "$1" "$REPLY"
  [[ -z $RAM_FREE || $RAM_FREE -ge $((need * $1)) ]] || log "warning: $RAM_FREE bytes of memory are free, $1 cell(s) at a time need $REPLY"
  printf '  gpu       %s\n' "${SAID_OF[gpus]-}"
  [[ -n ${GPUS-} || -z $GPU_COUNT || $GPU_COUNT -ge $((NEED_GPUS * $1)) ]] || log "warning: $GPU_COUNT GPUs here, $1 cell(s) at a time need $((NEED_GPUS * $1))"
  printf '  threads   recommended for each cell: %s loader worker(s), %s thread(s)\n' "$WORKERS" "$THREADS"
}
