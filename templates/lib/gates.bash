# lib/gates.bash: what must hold before evidence is started; the first gate that does not hold ends it.
# needs: exit log path record hash room run queue roster states git data syntax smoked probe

# Setup, preflight, code, syntax, smoke, data, room: in this order, for a later gate means nothing on a broken base.
all_gates() { # <start: true or false>
  gate_setup
  gate_preflight
  gate_code "$1"
  gate_queue
  gate_syntax "$SELF_DIR"
  gate_smoke
  read_drill
  read_done
  gate_data
  gate_room
}

gate_setup() {
  local name
  for name in preflight.sh run_queue.sh aggregate_to_fs.sh; do
    [[ -f $SELF_DIR/$name ]] || refuse "$EX_MISSING" "$SELF_DIR/$name" "it is not beside $PROG" "copy the whole folder box/ again"
  done
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  box_digest "$SELF_DIR" || refuse "$EX_MISSING" "$SELF_DIR" "its files cannot be read" "copy the whole folder box/ again"
  BOX_DIGEST=$REPLY
}

# All that preflight.sh looks at, by itself: its first FAIL shuts the gate with its own code, command and remedy, its warnings
# are passed on, and its figures are the plan's. Sets CPUS RAM_FREE GPU_COUNT DETACH_WORKS and SAID_OF[check].
gate_preflight() {
  local said line rc=0 again="bash $SELF_DIR/preflight.sh"
  local row='^    \{"verdict": "([A-Za-z]+)", "check": "([^"]*)", "value": "([^"]*)"(, "command": "([^"]*)", "remedy": "([^"]*)")?\},?$'
  declare -gA SAID_OF=()
  CPUS=1 RAM_FREE='' GPU_COUNT='' DETACH_WORKS=''
  said=$(bash "$SELF_DIR/preflight.sh" --json) || rc=$?
  [[ $said == '{'$'\n''  "schema": "preflight/1"'*$'\n''}' ]] ||
    refuse "$((rc > 0 ? rc : EX_GATE))" "$again --json" "it ended with $rc and without its table" "$again, and see what it says"
  while IFS= read -r line; do
    if [[ $line =~ $row ]]; then
      SAID_OF[${BASH_REMATCH[2]}]+=${SAID_OF[${BASH_REMATCH[2]}]:+$'\n'}${BASH_REMATCH[3]}
      case ${BASH_REMATCH[1]} in
        FAIL) refuse "$((rc > 0 ? rc : EX_GATE))" "preflight, ${BASH_REMATCH[2]}${BASH_REMATCH[5]:+: ${BASH_REMATCH[5]}}" "${BASH_REMATCH[3]}" "${BASH_REMATCH[6]:-mend that, then: $again}" ;;
        warn | unknown) log "preflight: ${BASH_REMATCH[1]}: ${BASH_REMATCH[2]}: ${BASH_REMATCH[3]}" ;;
      esac
    elif [[ $line =~ ^\ \ \"(cpus|ram_free_bytes|gpus|detach)\":\ \"?([a-z0-9]*)\"?,$ ]]; then
      line=${BASH_REMATCH[2]#null}
      case ${BASH_REMATCH[1]} in
        cpus) CPUS=$line ;;
        ram_free_bytes) RAM_FREE=$line ;;
        gpus) GPU_COUNT=$line ;;
        detach) DETACH_WORKS=$line ;;
      esac
    fi
  done <<<"$said"
  ((rc == 0)) || refuse "$rc" "$again --json" "it ended with $rc" "$again, and see what it says"
}

gate_code() { # <start: true or false>
  local commit='' path protected=("$D" "$B" "$S")
  for path in ${DATA_PATHS[@]+"${DATA_PATHS[@]}"}; do protected+=("$CODE_DIR/$path"); done
  if find_run; then
    commit=$R_commit
    if [[ $R_formal != true ]]; then
      refuse "$EX_GATE" "run $R_run_id" "it was not begun by formal_run, so it is never evidence" "begin anew with RUN=$JOB.2"
    fi
  fi
  git_gate "$BRANCH" "$commit" "$1" "$([[ $1 == true ]] && printf '%s' "$STASH" || printf false)" "${protected[@]}"
  if [[ -n $commit && $commit != "$GIT_HEAD" ]]; then
    refuse "$EX_GATE" "run $R_run_id" "it is of commit $commit, and $GIT_TOP is at $GIT_HEAD" "check out $commit there, or begin anew with RUN=$JOB.2"
  fi
  CODE_COMMIT=$GIT_HEAD
}

# How many files there are preflight has counted; digests are compared once, against a receipt that stands until a file changes.
gate_data() { # reads: SAID_OF    sets DATA_SAID
  local i
  local -a rows=()
  DATA_SAID=()
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  [[ -z ${SAID_OF[data]-} ]] || mapfile -t rows <<<"${SAID_OF[data]}"
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    gate_proof "$i"
    DATA_SAID+=("${rows[i]-}${PROOF_SAID:+; $PROOF_SAID}")
  done
}

# The cells of this start, and how many of them are still to be done.
# As run_queue will see them: the run's roster and what the source has new, of this run's shard; --only names a part.
gate_queue() { # sets ROSTER_N CELL_NAMES CELL_STATES CELLS_DONE CELLS_LEFT, and QUEUE_NAMES QUEUE_COMMANDS
  local REPLY name DRY_QUEUE=1
  RUN_SHARD=${SHARD:-1/1} RUN_ID='' CELL_NAMES=() CELL_STATES=() CELLS_DONE=0
  declare -gA RECORD_OF=()
  if find_run; then
    RUN_ID=$R_run_id RUN_SHARD=$R_shard
    [[ -z $SHARD || $SHARD == "$RUN_SHARD" ]] ||
      refuse "$EX_GATE" "run $RUN_ID" "it is of shard $RUN_SHARD, not $SHARD" "give --shard $RUN_SHARD, or a RUN of its own to each box"
    read_states
  fi
  merge_queue
  ROSTER_N=${#QUEUE_NAMES[@]}
  for name in "${QUEUE_NAMES[@]}"; do
    in_part "$name" || continue
    state_now "$name"
    CELL_NAMES+=("$name") CELL_STATES+=("$REPLY")
    [[ $REPLY != 'done' ]] || CELLS_DONE=$((CELLS_DONE + 1))
  done
  CELLS_LEFT=$((${#CELL_NAMES[@]} - CELLS_DONE))
  for name in ${ONLY//,/ }; do
    [[ " ${CELL_NAMES[*]-} " == *" $name "* ]] ||
      refuse "$EX_CONFIG" "--only $name" "no cell of the queue has this name" "names: ${QUEUE_NAMES[*]:0:5} …"
  done
}
in_part() { # <cell>    returns: 0 where this start is about it
  [[ -z $ONLY || ,$ONLY, == *",$1,"* ]]
}

# Room for the cells that are left, with a tenth more, on each tier; once for both where they share a disk. A checkpoint
# that the smoke found larger than what the job says for a whole cell counts instead.
gate_room() {
  local REPLY bytes=$NEED_DISK_BYTES files both=1
  [[ -z $M_BYTES || $M_BYTES -le $bytes ]] || bytes=$M_BYTES
  bytes=$((bytes * CELLS_LEFT * 11 / 10)) files=$NEED_FILES
  [[ -z $M_FILES || $M_FILES -le $files ]] || files=$M_FILES
  files=$((files * CELLS_LEFT))
  ROOM_SAID=()
  if [[ $B != "$D" ]]; then
    if same_disk "$D" "$B"; then both=2; else gate_tier "$B" "$bytes" "$files" "$DURABLE_CAP_BYTES" "$DURABLE_CAP_INODES"; fi
  fi
  gate_tier "$D" $((bytes * both)) $((files * both)) "$DATA_CAP_BYTES" "$DATA_CAP_INODES"
}
gate_tier() { # <path> <bytes> <files> <cap bytes> <cap inodes>
  local have inodes need REPLY
  human "$2"
  need=$REPLY
  [[ -z $4 || $2 -le $4 ]] || refuse "$EX_NOROOM" "$1" "the cells need $need, and the tier's cap is $4 bytes" "take a larger tier, or fewer cells"
  [[ -z $5 || $3 -le $5 ]] || refuse "$EX_NOROOM" "$1" "the cells need $3 files, and the tier's cap is $5" "pack the output into fewer files"
  free_bytes "$1" || :
  have=$REPLY
  free_inodes "$1" || :
  inodes=$REPLY
  [[ -z $have || $have -ge $2 ]] || refuse "$EX_NOROOM" "df $1" "$have bytes are free, the cells that are left need $2" "free room there, or set needs.disk_gb in the job to what the smoke measured"
  [[ -z $inodes || $inodes -ge $3 ]] || refuse "$EX_NOROOM" "df -i $1" "$inodes inodes are free, the cells that are left need $3" "remove small files there, or set needs.files in the job"
  human "$have"
  ROOM_SAID+=("$1: needs $need in $3 files, free $REPLY and ${inodes:-an unknown number of} inodes")
}
