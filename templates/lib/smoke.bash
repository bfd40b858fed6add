# lib/smoke.bash: one short trial of the job's smoke command, on the box and on the laptop (bash 3.2, BSD userland too).
# needs: exit log path file record hash git proc compat measure negative
# reads: SMOKE_WHERE (box or laptop) SMOKE_RECORD (its file) SMOKE_ROOT (where scratch folders go) SMOKE_BOX_DIGEST
#        CODE_DIR PY SMOKE_COMMAND SMOKE_ARTIFACT SMOKE_TIMEOUT_S SAVE_S NEED_DISK_BYTES, and the function
#        smoke_env: exports a cell's environment for CELL_DIR CELL_ATTEMPT CELL_RESUME

# The commit that this trial speaks of: none where the tree holds anything else than a commit. Sets SMOKE_COMMIT.
smoke_commit() { # <folders of our own output...>
  local REPLY said
  SMOKE_COMMIT=none SMOKE_DIRT='there is no git on PATH'
  command -v git >/dev/null 2>&1 || return 0
  git_alone
  GIT_TOP=$CODE_DIR
  git_ask rev-parse --verify HEAD || {
    said=$(git_with "$GIT_ASK_S" rev-parse --verify HEAD 2>&1) || :
    SMOKE_DIRT="git names no commit in $CODE_DIR: ${said%%$'\n'*}"
    return 0
  }
  git_open
  git_exempt "$@"
  git_look || { SMOKE_DIRT="git status failed" && return 0; }
  if ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)); then
    SMOKE_DIRT="files in $GIT_TOP are in no commit"
    git_list >&2
    return 0
  fi
  SMOKE_COMMIT=$GIT_HEAD SMOKE_DIRT=''
}

# Is the code still what the trial began with? Where it is not, the trial speaks of no commit.
smoke_same_code() { # reads: SMOKE_OURS
  local before=$SMOKE_COMMIT
  [[ $before != none ]] || return 0
  smoke_commit "${SMOKE_OURS[@]}"
  [[ $SMOKE_COMMIT == "$before" ]] || SMOKE_DIRT="the code changed while the trial ran, or the trial left files in it: ${SMOKE_DIRT:-it went from $before to $SMOKE_COMMIT}"
  [[ $SMOKE_COMMIT == "$before" ]] || SMOKE_COMMIT=none
}

# A scratch folder of our own: what a smoke makes never lies among results.
smoke_scratch() { # sets SMOKE_WORK
  local REPLY this
  if ! mkdir -p -- "$SMOKE_ROOT" || ! SMOKE_WORK=$(mktemp -d "$SMOKE_ROOT/smoke.$$.XXXXXX"); then
    refuse "$EX_NOROOM" "a scratch folder in $SMOKE_ROOT" "it cannot be made" "look at its room and rights, or set SCRATCH"
  fi
  SMOKE_PIDS=''
  trap 'smoke_clean $?' EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  start_ticks $$ || :
  this="$$ ${REPLY:--} "
  this_host
  # The mark first: what holds anything is marked, however this ends.
  if ! printf '%s\n' "$this$REPLY" >"$SMOKE_WORK/.smoke-of" || ! mkdir -p -- "$SMOKE_WORK/cell" "$SMOKE_WORK/tmp" "$SMOKE_WORK/t/0" "$SMOKE_WORK/cache"; then
    refuse "$EX_NOROOM" "$SMOKE_WORK" "it cannot be filled" "look at its room, its inodes and rights, or set SCRATCH"
  fi
}

# Scratch folders of smokes that were killed, with what still runs of them. Only our own, marked as that, of this machine; without
# a mark, where the process of its name has gone and it is empty: that one was killed before its first line.
smoke_leftovers() {
  local REPLY dir pid ticks host
  for dir in "$SMOKE_ROOT"/smoke.gone.*; do
    [[ ! -O $dir || -L $dir ]] || rm -rf -- "$dir"
  done
  for dir in "$SMOKE_ROOT"/smoke.[0-9]*; do
    [[ -O $dir && ! -L $dir && -d $dir ]] || continue
    pid='' ticks='' host=''
    [[ ! -s $dir/.smoke-of ]] || read -r pid ticks host <"$dir/.smoke-of" || continue
    this_host
    if [[ -z $pid ]]; then
      pid=${dir##*/smoke.} pid=${pid%%.*} ticks=- host=$REPLY
      [[ -z $(ls -A -- "$dir") || $(ls -A -- "$dir") == .smoke-of ]] || continue
    fi
    [[ $host == "$REPLY" && $pid =~ ^[1-9][0-9]*$ ]] || continue
    if [[ $ticks == - ]]; then ! kill -0 "$pid" 2>/dev/null || continue; else ! same_process "$pid" "$ticks" || continue; fi
    smoke_stragglers "$dir"
    # Its timed copy of a checkpoint is as large as one; a record that it was writing is none.
    rm -rf -- "${SMOKE_RECORD%/*}"/.{smoke,smoke.json,drill.json}."$pid.tmp"
    smoke_remove "$dir" && log "removed $dir of a smoke that was killed"
  done
}

# Under another name first: half removed it has perhaps no mark any more, and that name says that it may go.
smoke_remove() { # <scratch folder>
  local gone=$SMOKE_ROOT/smoke.gone.${1##*/smoke.}
  mv -- "$1" "$gone" 2>/dev/null || gone=$1
  rm -rf -- "${gone:?}"
}

# End what an attempt started and what left its group: known by CELL_DIR in its environment, where /proc shows it.
smoke_stragglers() { # <scratch folder>    sets SMOKE_STRAGGLERS: how many there were
  local file round found
  SMOKE_STRAGGLERS=0
  for round in 1 2 3 4 5; do
    found=$(grep -lsF -- "CELL_DIR=$1/cell" /proc/[0-9]*/environ 2>/dev/null) || :
    [[ -n $found ]] || return 0
    while IFS= read -r file; do
      file=${file#/proc/}
      kill -KILL "${file%/environ}" 2>/dev/null || continue
      ((round > 1)) || SMOKE_STRAGGLERS=$((SMOKE_STRAGGLERS + 1))
    done <<<"$found"
    sleep 0.1 2>/dev/null || sleep 1
  done
}
smoke_clean() { # <status>
  local pid
  trap - EXIT
  for pid in $SMOKE_PIDS; do kill -KILL -- "-$pid" 2>/dev/null || :; done
  smoke_stragglers "$SMOKE_WORK"
  smoke_remove "${SMOKE_WORK:?}"
  exit "$1"
}

# Start one attempt in a process group of its own. Sets SMOKE_PID.
smoke_launch() { # <attempt> <resume 0 or 1> <log>
  CELL_DIR=$SMOKE_WORK/cell CELL_ATTEMPT=$1 CELL_RESUME=$2 SMOKE_LOG=$3
  rm -f -- "$SMOKE_WORK/times" "$SMOKE_WORK/peak"
  : >"$SMOKE_LOG"
  set -m
  (
    cd -- "$CODE_DIR" || exit
    smoke_env || exit
    # A trial reports nothing to a tracker.
    export WANDB_MODE=disabled WANDB_SILENT=true COMET_MODE=disabled CLEARML_OFFLINE_MODE=1 NEPTUNE_MODE=offline SWANLAB_MODE=disabled
    export MLFLOW_TRACKING_URI=$SMOKE_WORK/tmp/mlruns
    # What an attempt is started with, as it is started.
    printf '%s\0' "$CODE_DIR" bash -c "$SMOKE_RUN" >"$SMOKE_WORK/words$1" || exit
    exec bash -c "$SMOKE_RUN"
  ) </dev/null >"$3" 2>&1 &
  SMOKE_PID=$!
  smoke_guard &
  set +m
  SMOKE_PIDS="$SMOKE_PIDS $SMOKE_PID"
}
# An attempt does not outlive whoever waits for it, also where that is killed. Ends by itself with the attempt's group.
smoke_guard() {
  while kill -0 -- "-$SMOKE_PID"; do
    kill -0 $$ || {
      kill -KILL -- "-$SMOKE_PID" || :
      break
    }
    sleep 0.2 || sleep 1
  done
} </dev/null >/dev/null 2>&1

# Wait for the attempt within the limit; the whole group ends with it. Sets SMOKE_EXIT and SMOKE_LATE.
smoke_wait() {
  local REPLY dog rc=0 until
  now_ms
  until=$((REPLY + SMOKE_TIMEOUT_S * 1000))
  set -m
  (
    # Whatever cannot be noted (a full disk): the limit holds.
    watch_attempt "$SMOKE_TIMEOUT_S" || :
    kill -TERM -- "-$SMOKE_PID" && kill -CONT -- "-$SMOKE_PID" || :
    sleep 10
    kill -KILL -- "-$SMOKE_PID"
  ) </dev/null >/dev/null 2>&1 &
  dog=$!
  set +m
  SMOKE_PIDS="$SMOKE_PIDS $dog"
  { wait "$SMOKE_PID" || rc=$?; } 2>/dev/null
  { kill -KILL -- "-$dog" && wait "$dog"; } >/dev/null 2>&1 || :
  kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
  SMOKE_PIDS=''
  SMOKE_LATE=0
  in_time "$until" || SMOKE_LATE=1
  smoke_stragglers "$SMOKE_WORK"
  ((SMOKE_STRAGGLERS == 0)) || log "warning: $SMOKE_STRAGGLERS process(es) of the trial outlived it and were ended"
  SMOKE_PEAK=''
  if { IFS= read -r SMOKE_PEAK <"$SMOKE_WORK/peak"; } 2>/dev/null && [[ $SMOKE_PEAK =~ ^[0-9]+$ ]]; then SMOKE_PEAK=$((SMOKE_PEAK * 1024)); else SMOKE_PEAK=''; fi
  SMOKE_EXIT=$rc
  measure_steps
  measure_room
}

# Digest and size of the artifact, a file or a folder of files. Sets SMOKE_SHA and SMOKE_BYTES.
smoke_digest() { # <path>
  local file list='' size REPLY
  SMOKE_SHA='' SMOKE_BYTES=0
  if [[ -f $1 ]]; then
    hash_file "$1" || return
    SMOKE_SHA=$REPLY
    SMOKE_BYTES=$(($(wc -c <"$1")))
    return 0
  fi
  while IFS= read -r file; do
    hash_file "$file" || return
    list+="$REPLY  ${file#"$1"/}"$'\n'
    size=$(wc -c <"$file") || return
    SMOKE_BYTES=$((SMOKE_BYTES + size))
  done < <(find "$1" -type f | LC_ALL=C sort)
  [[ -n $list ]] || return 1
  hash_text "$list" && SMOKE_SHA=$REPLY
}

# Is the artifact of this trial? Not a link out of CELL_DIR, and made between its start and its end; of a folder, that holds for
# one file at least (what a trainer copies along may be older) and nothing is newer. Sets SMOKE_WHY.
smoke_fresh() { # <artifact>
  local dir=${1%/*} cell=$SMOKE_WORK/cell
  SMOKE_WHY="it left no $SMOKE_ARTIFACT in CELL_DIR"
  [[ ! -L $1 && -e $1 ]] || return 1
  dir=$(cd -P -- "$dir" && pwd -P) && cell=$(cd -P -- "$cell" && pwd -P) || return 1
  SMOKE_WHY="$SMOKE_ARTIFACT lies outside of CELL_DIR, in $dir"
  [[ $dir/ == "$cell"/* ]] || return 1
  SMOKE_WHY="$SMOKE_ARTIFACT was not written by this trial: its time lies outside of it (or the clock was set meanwhile)"
  [[ ! $1 -ot $SMOKE_WORK/start && ! $1 -nt $SMOKE_WORK/end ]] || return 1
  [[ -d $1 ]] || return 0
  [[ -n $(find "$1" -type f ! -newer "$SMOKE_WORK/end" -newer "$SMOKE_WORK/start" | head -n 1) && -z $(find "$1" -type f -newer "$SMOKE_WORK/end" | head -n 1) ]]
}

# Did the trial write among results (X1)? While no run has begun there, nobody else does. Sets SMOKE_WHY.
smoke_spilled() { # reads: SMOKE_RESULTS (folders, may be none) HF_HOME    returns: 0 it did
  local found dir skip=() look=()
  for dir in ${SMOKE_RESULTS[@]+"${SMOKE_RESULTS[@]}"}; do [[ ! -d $dir ]] || look+=("$dir"); done
  ((${#look[@]} > 0)) || return 1
  for dir in "$CODE_DIR" "$SMOKE_ROOT" "${SMOKE_RECORD%/*}/drill.json" ${HF_HOME:+"$HF_HOME"}; do skip+=(-path "$dir" -prune -o); done
  found=$(bounded 60 find "${look[@]}" "${skip[@]}" -type f -newer "$SMOKE_WORK/start" -print 2>/dev/null </dev/null | head -n 1) || :
  [[ -n $found ]] || return 1
  found=${found//[[:cntrl:]]/?}
  if [[ -e ${SMOKE_RESULTS[0]}/run.json ]]; then
    log "warning: $found was written meanwhile, by the run or by the trial; a trial writes into CELL_DIR alone"
    return 1
  fi
  SMOKE_WHY="it wrote among results, outside of CELL_DIR: $found"
}

# Was it a real trial? Exit 0 in time, no traceback, and a fresh artifact. Sets SMOKE_RESULT and SMOKE_WHY.
smoke_judge() { # <log>
  local REPLY artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  SMOKE_RESULT=failed SMOKE_SHA='' SMOKE_BYTES=''
  now_ms
  SMOKE_SECONDS=$(((REPLY - SMOKE_BEGIN) / 1000))
  smoke_same_code
  : >"$SMOKE_WORK/end" || refuse "$EX_NOROOM" "$SMOKE_WORK" "there is no room for an empty file" "look at its inodes, or set SCRATCH"
  if ((SMOKE_LATE)); then
    SMOKE_WHY="it was not done in $SMOKE_TIMEOUT_S s"
  elif ((SMOKE_EXIT != 0)); then
    SMOKE_WHY="it ended with status $SMOKE_EXIT"
    case $SMOKE_EXIT in 126 | 127) SMOKE_WHY+=": a command of it cannot be run, or is not on PATH" ;; esac
  elif grep -q 'Traceback (most recent call last)' "$1"; then
    SMOKE_WHY="it ended with 0, but its log holds a traceback"
  elif ! smoke_fresh "$artifact" || smoke_spilled; then
    :
  elif ! smoke_digest "$artifact" || ((SMOKE_BYTES == 0)); then
    SMOKE_WHY="$SMOKE_ARTIFACT is empty or cannot be read"
    SMOKE_SHA='' SMOKE_BYTES=''
  else
    SMOKE_RESULT=passed SMOKE_WHY=$SMOKE_DIRT
  fi
}

# How long one checkpoint of this size takes on the disk where cells write theirs, rounded up. Sets SMOKE_SAVE_S.
smoke_time_save() {
  local REPLY begin to=${SMOKE_RECORD%/*}/.smoke.$$.tmp
  now_ms
  begin=$REPLY SMOKE_SAVE_S=''
  if cp -R -- "$SMOKE_WORK/cell/$SMOKE_ARTIFACT" "$to" 2>/dev/null && flush "$to"; then
    now_ms
    SMOKE_SAVE_S=$(((REPLY - begin) / 1000 + 1))
  fi
  rm -rf -- "$to"
  [[ -z $SMOKE_SAVE_S || $SMOKE_SAVE_S -le $SAVE_S ]] ||
    log "warning: one checkpoint took $SMOKE_SAVE_S s to save, the job says save_s: $SAVE_S"
  ((SMOKE_BYTES <= NEED_DISK_BYTES)) ||
    log "warning: one checkpoint has $SMOKE_BYTES bytes, the job's needs.disk_gb is $NEED_DISK_BYTES bytes for a whole cell"
}

smoke_write() { # <result> <exit> <seconds> <artifact digest> <save_s> <bytes> <who> <why>
  local REPLY
  record_open smoke/1
  record_text where "$SMOKE_WHERE"
  record_text result "$1"
  record_text commit "$SMOKE_COMMIT"
  record_text box_digest "$SMOKE_BOX_DIGEST"
  this_host
  record_text host "$REPLY"
  record_text code_dir "$CODE_DIR"
  record_text py "${SMOKE_PY-}"
  record_text env_spec "${SMOKE_ENV-}"
  record_int exit "$2" || return
  record_int seconds_s "$3" || return
  record_text artifact_sha256 "$4"
  record_int save_s "$5" || return
  record_int ckpt_bytes "$6" || return
  record_int steps "${SMOKE_STEPS_SEEN-}" || return
  record_int step_ms "${MEASURED_STEP_MS-}" || return
  record_int peak_memory_bytes "${SMOKE_PEAK-}" || return
  record_int cell_bytes "${MEASURED_BYTES-}" || return
  record_int cell_files "${MEASURED_FILES-}" || return
  record_text who "$7"
  record_text why "$8"
  utc_now
  record_text ended "$REPLY"
  # Over all lines above: a record that was edited by hand is found out.
  hash_text "$RECORD" || return
  record_text self_sha256 "$REPLY"
  record_close
  replace_file "$SMOKE_RECORD" "$RECORD"
}

smoke_waive() { # <WHO=WHY>
  local who=${1%%=*} why=${1#*=}
  [[ $1 == *=* && $who == *[![:space:]]* && $why == *[![:space:]]* ]] ||
    refuse "$EX_USAGE" "--waive $1" "a waiver names who waives and why" "--waive 'WHO=WHY'"
  smoke_write waived '' '' '' '' '' "$who" "$why" || return
  log "smoke WAIVED by $who: $why"
}

# From here on counts what the trial takes, and what it writes is fresh.
smoke_begin() {
  local REPLY
  now_ms
  SMOKE_BEGIN=$REPLY SMOKE_SAVE_S=''
  : >"$SMOKE_WORK/start"
}

smoke_trial() { # returns: 0 passed, 1 failed
  local log=$SMOKE_WORK/log
  SMOKE_CELL=smoke SMOKE_RUN=$SMOKE_COMMAND
  smoke_begin
  log "smoke: in $CODE_DIR, at most $SMOKE_TIMEOUT_S s: $SMOKE_COMMAND"
  smoke_launch 1 0 "$log"
  smoke_wait
  smoke_judge "$log"
  [[ $SMOKE_RESULT != passed ]] || smoke_time_save
  smoke_report "$log"
}

# A trial that failed is a result too: a line that stays, so that nobody pays for the same one twice without knowing (X4).
negative_file() { # sets NEGATIVE
  NEGATIVE=${SMOKE_RECORD%/*}/NEGATIVE_RESULTS.tsv
  # The box's own comes home under its name: the laptop's has another.
  [[ $SMOKE_WHERE == box ]] || NEGATIVE=${NEGATIVE%.tsv}.laptop.tsv
}
negative_add() {
  local NEGATIVE
  negative_file
  negative_line "$NEGATIVE" "$SMOKE_WHERE" "$SMOKE_COMMIT" "$SMOKE_EXIT" "$SMOKE_SECONDS" "$SMOKE_WHY" "$SMOKE_COMMAND"
}
negative_known() { # says so where this very trial has failed before
  local NEGATIVE line when='' where commit status seconds why command
  negative_file
  [[ -s $NEGATIVE && $SMOKE_COMMIT != none ]] || return 0
  while IFS=$'\t' read -r line where commit status seconds why command; do
    if [[ $commit == "$SMOKE_COMMIT" && $command == "${SMOKE_COMMAND//[[:cntrl:]]/ }" ]]; then when="$line: $why (exit $status, $seconds s, on the $where)"; fi
  done <"$NEGATIVE"
  [[ -z $when ]] || log "warning: this command failed at this commit before, $when; see $NEGATIVE"
}

smoke_report() { # <log>
  tail -n 20 -- "$1" >&2
  SMOKE_STEPS_SEEN=$(smoke_steps "$1" | sort -u | wc -l) SMOKE_STEPS_SEEN=$((SMOKE_STEPS_SEEN))
  ((SMOKE_STEPS_SEEN > 0)) || SMOKE_STEPS_SEEN=''
  [[ $SMOKE_RESULT == passed ]] || negative_add
  smoke_write "$SMOKE_RESULT" "$SMOKE_EXIT" "$SMOKE_SECONDS" "$SMOKE_SHA" "$SMOKE_SAVE_S" "$SMOKE_BYTES" '' "$SMOKE_WHY" ||
    refuse "$EX_COPY" "$SMOKE_RECORD" "it cannot be written" "look at its disk: room, rights"
  if [[ $SMOKE_RESULT != passed ]]; then
    printf '%s: smoke failed: %s; the end of its log stands above; mend it and run this again (%s)\n' "$PROG" "$SMOKE_WHY" "$SMOKE_RECORD" >&2
    return "$EX_FAIL"
  fi
  [[ -z $SMOKE_WHY ]] || log "warning: this smoke speaks of no commit: $SMOKE_WHY; a formal run will ask for another one"
  claim passed "smoke on the $SMOKE_WHERE, $SMOKE_SECONDS s, checkpoint of $SMOKE_BYTES bytes" "$SMOKE_RECORD"
}

# The command line of both scripts. Sets SMOKE_RESUME and SMOKE_WAIVER.
smoke_flags() { # <arguments...>
  SMOKE_RESUME=0 SMOKE_WAIVER=''
  while (($#)); do
    case $1 in
      --resume) SMOKE_RESUME=1 ;;
      --waive)
        (($# > 1)) && [[ -n $2 ]] || return "$EX_USAGE"
        SMOKE_WAIVER=$2
        shift
        ;;
      *) return "$EX_USAGE" ;;
    esac
    shift
  done
}

# Everything behind the places: waiver, trial or resume drill.
smoke_go() { # <folders of our own output...>
  SMOKE_OURS=("$@")
  smoke_commit "$@"
  if [[ -n $SMOKE_WAIVER ]]; then
    smoke_waive "$SMOKE_WAIVER"
    return
  fi
  [[ $SMOKE_COMMAND == *[![:space:]]* ]] || refuse "$EX_CONFIG" "smoke" "the job's smoke command is empty" "write one in the job and compile again"
  negative_known
  smoke_leftovers
  smoke_scratch
  # Until this one has ended, no earlier record opens a gate.
  smoke_write failed '' '' '' '' '' '' 'it was started and has not ended' ||
    refuse "$EX_COPY" "$SMOKE_RECORD" "it cannot be written" "look at its disk: room, rights"
  if ((SMOKE_RESUME)); then smoke_drill; else smoke_trial; fi
}
