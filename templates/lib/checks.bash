# lib/checks.bash: what preflight looks at. Each check adds lines to the table; none of them changes anything.
# needs: exit log path room run probe detach data

# One line of the table. A verdict is ok, note, warn, unknown or FAIL; a FAIL carries the exit code of its kind, and where
# the value does not say it, the command that failed and the smallest remedy (X3).
row() { # <verdict> <check> <value> [exit code for FAIL] [command] [what to do]
  ROWS_VERDICT+=("$1") ROWS_CHECK+=("$2") ROWS_VALUE+=("${3//[[:cntrl:]]/ }")
  ROWS_COMMAND+=("${5-}") ROWS_REMEDY+=("${6-}")
  [[ $1 != FAIL || $VERDICT_CODE -ne 0 ]] || VERDICT_CODE=${4:-$EX_GATE}
}

check_tools() {
  local tool missing='' said
  for tool in awk cat cp date df dirname du env find grep head ln mkdir mktemp mv rm sed sleep sort stat sync tail tar tr wc; do
    command -v "$tool" >/dev/null 2>&1 || missing+=" $tool"
  done
  if [[ -n $missing ]]; then row FAIL tools "missing:$missing" "$EX_MISSING" "command -v$missing" "install them, or put their folder on PATH"; else row ok tools "bash $BASH_VERSION and all that is needed"; fi
  if said=$(git --version 2>/dev/null); then row ok git "$said"; else row FAIL git "not on PATH: a formal run needs it" "$EX_MISSING" "git --version" "install git on this machine"; fi
  hash_tool
  row ok sha256 "$HASH_TOOL"
  for tool in rsync timeout setsid; do
    command -v "$tool" >/dev/null 2>&1 || row warn "$tool" "not on PATH: slower or less sure without it"
  done
  if ! command -v "$PY" >/dev/null 2>&1; then
    row FAIL python "PY=$PY is not there" "$EX_MISSING" "command -v $PY" "set PY to the python of the environment, by its path"
  else
    said=$(within 60 "$PY" --version 2>&1 </dev/null | head -n 1) || said='it does not say its version'
    row ok python "$(command -v "$PY"), $said"
  fi
}

check_cpu_ram() {
  local quota=none limit=none free said
  probe_cpus
  probe_ram
  [[ -z $CPU_QUOTA ]] || printf -v quota '%d.%02d' $((CPU_QUOTA / 100)) $((CPU_QUOTA % 100))
  row ok cpu "$CPUS usable (nproc ${CPU_NPROC:-not known}, affinity ${CPU_AFFINITY:-not known}, cgroup quota $quota)"
  if [[ -n $RAM_LIMIT ]]; then human "$RAM_LIMIT" && limit=$REPLY; fi
  human "$RAM_FREE" && free=$REPLY
  human "$RAM_TOTAL"
  said="$free free for us (machine $REPLY, cgroup limit $limit)"
  human "$NEED_RAM_BYTES"
  if [[ -z $RAM_FREE ]]; then
    row unknown ram "$said"
  elif ((${RAM_LIMIT:-$RAM_TOTAL} < NEED_RAM_BYTES)); then
    row FAIL ram "$said; one cell needs $REPLY" "$EX_GATE" "cat /proc/meminfo /sys/fs/cgroup/memory.max" "take a larger machine, or correct needs.ram_gb in the job"
  elif ((RAM_FREE < NEED_RAM_BYTES)); then
    row warn ram "$said; one cell needs $REPLY: something else is using it now"
  else row ok ram "$said; one cell needs $REPLY"; fi
  recommend 1 "$NEED_RAM_BYTES"
  row note workers "one cell at a time: $WORKERS loader worker(s), $THREADS thread(s); fewer is the safe side"
}

check_gpus() {
  local line index name driver total used
  probe_gpus
  for line in ${GPU_LINES[@]+"${GPU_LINES[@]}"}; do
    IFS=, read -r index name driver total used <<<"$line"
    if [[ ${used# } =~ ^[0-9]+$ ]] && ((${used# } <= GPU_FREE_MIB)); then
      row ok "gpu $index" "${name# }, driver${driver}, $total MiB, in use$used MiB"
    elif [[ ${used# } =~ ^[0-9]+$ ]]; then
      row warn "gpu $index" "${name# }, driver${driver}, $total MiB, in use$used MiB: somebody is on it"
    else row unknown "gpu $index" "${name# }, driver${driver}, in use:${used:- not said}"; fi
  done
  if ((NEED_GPUS == 0)); then
    row ok gpus "none needed; here ${GPU_COUNT:-not known}${GPU_WHY:+ ($GPU_WHY)}"
  elif [[ $GPU_WHY == 'no nvidia-smi'* && (-e /dev/kfd || -e /dev/accel) ]]; then
    row unknown gpus "a cell needs $NEED_GPUS; here is another maker's device, which nothing of ours can count"
  elif [[ $GPU_STATE == unknown ]]; then
    row FAIL gpus "a cell needs $NEED_GPUS, and it cannot be told what is here: $GPU_WHY" "$EX_MISSING" nvidia-smi "make nvidia-smi answer: restart the box, or take another one"
  elif ((GPU_COUNT < NEED_GPUS)); then
    row FAIL gpus "a cell needs $NEED_GPUS, here are $GPU_COUNT${GPU_WHY:+ ($GPU_WHY)}" "$EX_GATE" nvidia-smi "take a machine with enough of them, or correct needs.gpus in the job"
  else row ok gpus "$GPU_COUNT here, a cell needs $NEED_GPUS"; fi
}

# Bytes and inodes of one folder's disk. What cannot be asked is unknown, and only that.
check_disk() { # <name> <path> <bytes for one cell or 0> <files for one cell>
  local said verdict=ok code=$EX_NOROOM free inodes
  free_bytes "$2" || :
  free=$REPLY
  free_inodes "$2" || :
  inodes=$REPLY
  human "$free"
  said="$2: $REPLY free, ${inodes:-n/a} inodes free"
  if [[ -z $free ]]; then
    row unknown "$1" "$2: df gave no answer in 20 s"
    return 0
  fi
  if (($3 > 0)); then
    if ((free < $3)) || [[ -n $inodes && $inodes -lt $4 ]]; then
      verdict=FAIL said+="; one cell needs $3 bytes and $4 files"
    elif ((free / CELLS_LEFT < $3)) || [[ -n $inodes && $((inodes / CELLS_LEFT)) -lt $4 ]]; then
      verdict=warn said+="; not enough for all $CELLS_LEFT cells with $3 bytes and $4 files each"
    fi
  fi
  if [[ $verdict == ok ]] && { ((free < 2000000000)) || [[ -n $inodes && $inodes -lt 20000 ]]; }; then
    verdict=warn said+=": less than 2 GB or 20000 inodes"
  fi
  row "$verdict" "$1" "$said" "$code" "df $2" "free room there, or take a larger one"
}

check_disks() {
  local REPLY bytes
  cells_left
  # A run that is done needs no room for another cell.
  bytes=$((CELLS_LEFT > 0 ? NEED_DISK_BYTES : 0))
  check_disk "data tier" "$DATA_DIR" "$bytes" "$NEED_FILES"
  check_disk scratch "$SCRATCH" 0 0
  [[ -z $HF_HOME ]] || check_disk HF_HOME "$HF_HOME" 0 0
  [[ -z ${HOME-} ]] || check_disk home "$HOME" 0 0
  if [[ -n $HF_HOME ]] && same_disk "$HF_HOME" / && ! same_disk "$DATA_DIR" /; then
    row warn caches "HF_HOME=$HF_HOME lies on the system disk, and the data tier does not: hub downloads may fill it"
  fi
  if [[ -z $DURABLE_DIR ]]; then
    row note "durable tier" "none: nothing here outlives the box; pull results before it ends"
  else
    check_durable "$bytes"
  fi
}
# How many cells of the queue have no record in the bundle yet, into CELLS_LEFT: an estimate, for room and time alone.
cells_left() {
  local file
  CELLS_LEFT=$CELLS
  for file in "$B"/records/*.json; do
    [[ ! -s $file ]] || CELLS_LEFT=$((CELLS_LEFT - 1))
  done
  ((CELLS_LEFT >= 0)) || CELLS_LEFT=0
}

# Is the storage that is to survive really there, and not just a folder of its name?
check_durable() { # <bytes for one cell or 0>
  local REPLY tier=$DURABLE_TIER_PATH
  expand_path tier
  tier=${tier%/}
  if [[ $DURABLE_DIR/ != "$tier"/* ]]; then
    if [[ -d $DURABLE_DIR ]]; then
      row warn "durable proof" "$DURABLE_DIR is not the profile's tier ($tier): that it survives is your word"
    else
      row FAIL "durable proof" "$DURABLE_DIR is not the profile's tier ($tier), and no folder" "$EX_COPY" "cd $DURABLE_DIR" "make the folder on storage that survives, or unset DURABLE_DIR"
      return 0
    fi
  elif prove_tier "$tier" "$DURABLE_PROOF"; then
    if same_disk "$DURABLE_DIR" /; then
      row "$([[ $DURABLE_PROOF == none ]] && echo ok || echo warn)" "durable proof" "$tier ($DURABLE_PROOF); on the same disk as /"
    else row ok "durable proof" "$tier ($DURABLE_PROOF), a disk of its own"; fi
  else
    row FAIL "durable proof" "$REPLY" "$EX_COPY" "df $tier" "attach the storage, or set DURABLE_DIR= (empty) to run pull-only"
    return 0
  fi
  check_disk "durable tier" "$DURABLE_DIR" "$1" "$NEED_FILES"
}

# Where the box lies cannot be asked here, but which storage would be out of reach from another place is known.
check_region() {
  ((${#REGION_LOCKED[@]} == 0)) || row note region "only from where it lies: ${REGION_LOCKED[*]}; a box elsewhere does not see it, so take the next one in the same place"
}

check_detach() {
  local REPLY one
  DETACH_WORKS=''
  case $DETACH in
    tmux | screen | nohup) ;;
    *) row note detach "$DETACH: submitted through the platform, not started by formal_run" && return 0 ;;
  esac
  # The profile says what may take the place of the first: where a platform kills it, nohup may not.
  for one in "$DETACH" "$DETACH_FALLBACK"; do
    case $one in tmux | screen | nohup) ;; *) continue ;; esac
    if detach_trial "$one"; then
      DETACH_WORKS=$one
      break
    fi
    row warn detach "$one: $REPLY"
  done
  if [[ -z $DETACH_WORKS ]]; then
    row FAIL detach "nothing works here to start a run that outlives this shell" "$EX_MISSING" "a trial session by $DETACH" "install tmux or screen"
  else row ok detach "$DETACH_WORKS: a trial session ran$([[ $DETACH_WORKS == "$DETACH" ]] || echo " (falling back from $DETACH)")"; fi
}

# Where systemd ends a user's processes at logout, a detached run dies with the last session.
check_linger() {
  local said linger kill_setting
  [[ -d ${FAKE_ROOT-}/run/systemd/system ]] && command -v loginctl >/dev/null 2>&1 || return 0
  linger=$(within 60 loginctl show-user "$(id -un)" -p Linger 2>/dev/null) || linger=''
  said=$(within 60 systemd-analyze cat-config systemd/logind.conf 2>/dev/null) || said=''
  kill_setting=$(sed -n 's/^[[:space:]]*KillUserProcesses[[:space:]]*=[[:space:]]*//p' <<<"$said" | tail -n 1)
  case ${linger#Linger=},${kill_setting:-not set} in
    yes,*) row ok linger "lingering is on: sessions outlive a logout" ;;
    *,yes | *,true | *,1 | *,on) row warn linger "KillUserProcesses=$kill_setting and no lingering: a logout ends the run; loginctl enable-linger, or start under systemd-run --scope --user" ;;
    *) row note linger "lingering is off, KillUserProcesses is ${kill_setting:-not set}: usually fine; loginctl enable-linger makes sure" ;;
  esac
}

check_data() {
  local REPLY i path
  if [[ ! -d $CODE_DIR ]]; then
    row warn code "$CODE_DIR is not there yet"
    return 0
  fi
  code_commit
  row "$([[ $CODE_COMMIT == none ]] && echo warn || echo ok)" code "$CODE_DIR at commit $CODE_COMMIT"
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    data_place "$i"
    path=$REPLY
    data_remedy "$i"
    if ! count_data "$path"; then
      row FAIL data "$path: not there, or not readable" "$EX_GATE" "find -L $path -type f" "$REPLY, or link it there"
    elif [[ $DATA_N != "${DATA_FILES[i]}" || $DATA_EMPTY == "$DATA_N" ]]; then
      row FAIL data "$path: $DATA_N files, $DATA_EMPTY of them empty; the job expects ${DATA_FILES[i]}" "$EX_GATE" "find -L $path -type f" "$REPLY"
    else
      human "$DATA_BYTES"
      check_digests "$i" "$path: $DATA_N files as expected, $REPLY on disk, $DATA_EMPTY empty"
    fi
  done
}

# Digests of little data are compared at once; of more, with --deep, for it takes its time.
check_digests() { # <index> <what is known of it>    reads: DEEP
  local REPLY rc=0
  prove_data "$1" known || rc=$?
  if ((rc == 2)) && ((DEEP == 1 || PROOF_BYTES < 2000000000)); then
    rc=0
    prove_data "$1" look || rc=$?
  fi
  case $rc in
    0) row ok data "$2${PROOF_SAID:+; $PROOF_SAID}" ;;
    2) row unknown data "$2; digests not compared yet: preflight.sh --deep, or the start does" ;;
    *)
      data_remedy "$1"
      row FAIL data "$PROOF_WHAT: $PROOF_WHY" "$EX_GATE" "sha256sum" "$REPLY"
      ;;
  esac
}

check_budget() {
  local minutes=$(((CELLS_LEFT * NEED_S + 59) / 60)) cost=''
  if [[ ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]]; then
    cost=$(awk -v m="$minutes" -v p="$PRICE_PER_HOUR" 'BEGIN {printf ", about %.2f at %s per hour", m / 60 * p, p}')
  fi
  row note budget "$CELLS_LEFT cells to do, about $minutes minutes one at a time$cost"
}

# The largest folders, through the links that caches often are. Bounded, for it may take long.
check_hogs() {
  local root child said
  for root in "$DATA_DIR" "$HF_HOME" "${HOME-}" "${HOME:+$HOME/.cache}" "$SCRATCH"; do
    [[ -n $root && -d $root && $root != / ]] || continue
    while IFS= read -r child; do
      [[ -n $child ]] && row note "du $root" "$child"
    done < <(for said in "$root"/* "$root"/.[!.]*; do
      [[ ! -d $said ]] || within 60 du -sk -- "$said/" 2>/dev/null || :
    done | sort -rn | head -n 3 | awk '{kb = $1; sub(/^[0-9]+[ \t]*/, ""); printf "%.2f GB  %s\n", kb / 1e6, $0}')
  done
}
