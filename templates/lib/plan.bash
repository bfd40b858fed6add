# lib/plan.bash: the plan that a formal run prints before it starts, from what the gates have read.
# needs: log probe

print_plan() { # reads what gates.bash has set
  local REPLY slots=${SLOTS:-1} line name n=0 ids rounds
  if [[ -n ${GPUS-} ]]; then
    IFS=, read -ra ids <<<"$GPUS"
    slots=${#ids[@]}
  fi
  printf 'plan for run %s (%s x %s)\n' "$RUN" "$PROFILE" "$JOB"
  printf '  code      %s at %s, branch %s\n' "$GIT_TOP" "$GIT_HEAD" "${GIT_BRANCH:-none}"
  git_here log -1 --format='  commit    %h %ci %s' 2>/dev/null || :
  printf '  smoke     %s\n' "$SMOKE_SAID"
  printf '  cells     %s, of which done %s, to do %s\n' "${#CELL_NAMES[@]}" "$CELLS_DONE" "$CELLS_LEFT"
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
  rounds=$(((CELLS_LEFT + slots - 1) / slots))
  printf '  time      about %s minutes for what is left, %s at a time\n' $((rounds * NEED_MINUTES)) "$slots"
  [[ ${F_POWER-} != true ]] || printf '  power     off after success: %s\n' "${POWER_OFF_COMMAND[*]}"
}

plan_resources() { # <slots>
  local REPLY total limit free
  probe_cpus
  probe_ram
  probe_gpus
  recommend "$1" "$NEED_RAM_BYTES"
  printf '  cpu       %s usable: nproc %s, affinity %s, cgroup quota %s\n' "$CPUS" "${CPU_NPROC:-not known}" \
    "${CPU_AFFINITY:-not known}" "${CPU_QUOTA:+$((CPU_QUOTA / 100)).$(printf '%02d' $((CPU_QUOTA % 100)))}${CPU_QUOTA:-none}"
  human "$RAM_TOTAL" && total=$REPLY
  human "$RAM_LIMIT" && limit=$REPLY
  [[ -n $RAM_LIMIT ]] || limit=none
  human "$RAM_FREE" && free=$REPLY
  human $((NEED_RAM_BYTES * $1))
  printf '  ram       %s free for us: machine %s, cgroup limit %s; %s cell(s) need %s\n' "$free" "$total" "$limit" "$1" "$REPLY"
  [[ -z $RAM_FREE || $RAM_FREE -ge $((NEED_RAM_BYTES * $1)) ]] || log "warning: $free of memory is free, $1 cell(s) at a time need $REPLY"
  printf '  gpu       %s needed for a cell; here: %s\n' "$NEED_GPUS" "${GPU_COUNT:-not known}${GPU_WHY:+ ($GPU_WHY)}"
  [[ -z $GPU_COUNT || $GPU_COUNT -ge $((NEED_GPUS * $1)) ]] || log "warning: $GPU_COUNT GPUs here, $1 cell(s) at a time need $((NEED_GPUS * $1))"
  printf '  threads   recommended for each cell: %s loader worker(s), %s thread(s)\n' "$WORKERS" "$THREADS"
}
