# lib/smoked.bash: what a formal run believes of the smoke and of the drill, and the measures that it takes from them.
# needs: exit log file record proc hash hashes run envspec states
# reads: D SELF_DIR CODE_DIR PY GIT_HEAD BOX_DIGEST

# What was measured, empty where it was not: of the trial M_SECONDS M_STEPS M_STEP_MS; of one checkpoint M_CKPT (bytes) and
# M_SAVE (seconds); of a cell M_BYTES M_FILES M_PEAK, and M_CELL_S with where that comes from in M_CELL_FROM.
forget_measures() {
  M_SECONDS='' M_STEPS='' M_STEP_MS='' M_CKPT='' M_SAVE='' M_BYTES='' M_FILES='' M_PEAK='' M_CELL_S='' M_CELL_FROM=''
}

# A figure that is none, or that no machine has, counts as not measured.
check_measures() {
  local name
  for name in M_SECONDS M_STEPS M_STEP_MS M_CKPT M_SAVE M_BYTES M_FILES M_PEAK; do
    [[ ${!name} =~ ^(0|[1-9][0-9]{0,14})$ ]] || printf -v "$name" ''
  done
}

# Was it made here: on this machine, with this code directory, this interpreter and its packages?
smoke_here() { # reads: R_* of the smoke's record    refuses 77
  local REPLY py
  this_host
  [[ ${R_host-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file was made on ${R_host:-another machine}, this is $REPLY" "$again"
  record_fit "$CODE_DIR"
  [[ ${R_code_dir-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file is of the code in ${R_code_dir:-another folder}, CODE_DIR is $CODE_DIR" "$again"
  py=$(type -P "$PY") || py=''
  record_fit "$py"
  [[ ${R_py-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file was made with ${R_py:-another interpreter}, PY is $py" "$again"
  describe_environment
  hash_text "$REPLY" || return
  [[ ${R_env_spec-} == "${REPLY:0:8}" ]] || refuse "$EX_GATE" "smoke" "packages, interpreter or driver of $py changed after it ($file: ${R_env_spec:-none}, now ${REPLY:0:8})" "$again"
}

# Is the text still the one over which its last line has the digest?
whole_record() { # <file>
  local REPLY text sum=${R_self_sha256-}
  read_text "$1" || return 1
  text=${REPLY%,$'\n''  "self_sha256": "'*}
  [[ $REPLY == "$text,"$'\n''  "self_sha256": "'"$sum"'"'$'\n''}'$'\n' ]] && hash_text "$text" && [[ $REPLY == "$sum" ]]
}

# The smoke of this box, of this commit and these scripts: passed with proof, or waived by somebody for a reason.
gate_smoke() {
  local rc=0 file=$D/smoke.json again="bash $SELF_DIR/smoke.sh"
  forget_measures
  read_record "$file" smoke/1 || rc=$?
  ((rc != 1)) || refuse "$EX_GATE" "smoke" "there is no $file" "$again; or a waiver in writing: smoke.sh --waive WHO=WHY"
  ((rc == 0)) || refuse "$EX_GATE" "smoke" "$file is not a whole record" "$again"
  [[ ${R_where-} == box ]] || refuse "$EX_GATE" "smoke" "$file is of '${R_where-}', not of this box" "$again"
  [[ ${R_commit-} == "$GIT_HEAD" ]] || refuse "$EX_GATE" "smoke" "$file is of commit ${R_commit:-none}, the code is at $GIT_HEAD" "$again"
  [[ ${R_box_digest-} == "$BOX_DIGEST" ]] || refuse "$EX_GATE" "smoke" "$file is of other scripts (queue.tsv is one) than those in $SELF_DIR" "$again"
  case ${R_result-} in
    passed)
      [[ ${R_exit-} == 0 && ${R_artifact_sha256-} =~ ^[0-9a-f]{64}$ ]] ||
        refuse "$EX_GATE" "smoke" "$file says passed without an artifact" "$again"
      smoke_here
      SMOKE_SAID="passed at ${R_ended-}"
      M_SECONDS=${R_seconds_s-} M_STEPS=${R_steps-} M_STEP_MS=${R_step_ms-} M_SAVE=${R_save_s-} M_PEAK=${R_peak_memory_bytes-}
      M_CKPT=${R_ckpt_bytes-} M_BYTES=${R_cell_bytes:-${R_ckpt_bytes-}} M_FILES=${R_cell_files-}
      check_measures
      ;;
    waived)
      [[ ${R_who-} == *[![:space:]]* && ${R_why-} == *[![:space:]]* && -n ${R_ended-} ]] || refuse "$EX_GATE" "smoke" "$file is a waiver without who and why, or when" "smoke.sh --waive WHO=WHY"
      SMOKE_SAID="WAIVED by $R_who at ${R_ended-}: $R_why"
      ;;
    *) refuse "$EX_GATE" "smoke" "$file says '${R_result-}': ${R_why-}" "mend it, then $again" ;;
  esac
  whole_record "$file" || refuse "$EX_GATE" "smoke" "$file was changed after it was written" "$again; or a waiver in writing: smoke.sh --waive WHO=WHY"
}

# The resume drill opens and shuts nothing: one that failed has left a smoke that failed. Its word is shown, and where it was
# made with a cell, that cell's steps tell how long one takes. Sets DRILL_SAID.
read_drill() {
  local rc=0
  read_record "$D/drill.json" drill/1 || rc=$?
  if ((rc != 0)); then
    DRILL_SAID="none was made here: smoke.sh --resume shows that a killed cell goes on"
    return 0
  fi
  DRILL_SAID="${R_result-} at ${R_ended-} with ${R_cell-}: killed at ${R_killed-}, went on at ${R_resumed-}"
  if [[ ${R_commit-} != "$GIT_HEAD" || ${R_box_digest-} != "$BOX_DIGEST" || ${R_where-} != box ]]; then
    DRILL_SAID="of another commit or other scripts ($DRILL_SAID)"
  elif [[ ${R_cell-} != smoke && ${R_step_ms-} =~ ^[1-9][0-9]{0,8}$ && ${R_steps_total-} =~ ^[1-9][0-9]{0,8}$ ]]; then
    M_CELL_S=$((R_step_ms * R_steps_total / 1000 + 1)) M_CELL_FROM="$R_steps_total steps of $R_step_ms ms, as the drill saw cell $R_cell"
  fi
}

# What cells of this run took that are done says more than any trial.
read_done() {
  local peak
  cells_took
  ((DONE_N > 0)) || return 0
  M_CELL_S=$(((DONE_S + DONE_N - 1) / DONE_N)) M_CELL_FROM="the mean of $DONE_N cells of this run that are done"
  peak=$(find "$D/state" -maxdepth 1 -name '*.json' ! -name '.*' -exec sed -n 's/^  "peak_memory_bytes": \([0-9]*\),$/\1/p' {} + 2>/dev/null | sort -n | tail -n 1) || peak=''
  [[ -z $peak || (-n $M_PEAK && $M_PEAK -ge $peak) ]] || M_PEAK=$peak
}
