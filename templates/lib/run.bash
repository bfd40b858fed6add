# lib/run.bash: the run: its folders, its record, its events (docs/contracts.md, sections 1 and 3).
# needs: exit log path file record proc hash room

# One line for people and watchers; nothing decides by it, so a full disk here stops nothing.
event() { # <event> <cell or -> <attempt or -> <text>
  local REPLY
  utc_now
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $D/events.tsv || ! -e $D/events.tsv ]] || return 0
  printf '%s\t%s\t%s\t%s\t%s\n' "$REPLY" "$1" "$2" "$3" "${4//[[:cntrl:]]/ }" 2>/dev/null >>"$D/events.tsv" || :
}

refuse_write() { # <exit code> <path> <what could not be done> <tier>
  local REPLY
  write_words "$2" "$3" "$4"
  refuse "$1" "$2" "$FAULT_WHY" "$FAULT_DO"
}

# The run's folders from the bound values and the environment: D, B, S. Makes nothing.
run_places() { # [asked: refuse where one of them does not answer]
  check_name "$RUN" RUN
  require_path DATA_DIR
  [[ -z $DURABLE_DIR ]] || require_path DURABLE_DIR
  require_path SCRATCH
  D=$DATA_DIR/$RUN
  # shellcheck disable=SC2034 # not every script has to do with the bundle and with scratch
  B=${DURABLE_DIR:-$DATA_DIR}/$RUN S=$SCRATCH/gpu-runbook/$RUN
  CODE_DIR=${CODE_DIR:-$D/code}
  expand_path CODE_DIR
  [[ ${1-} != asked ]] || places_answer
  scratch_apart
}
# A look at a folder on a dead mount never returns: a process of its own looks, and is ended (case 84).
places_answer() {
  local name rc
  for name in DATA_DIR DURABLE_DIR SCRATCH CODE_DIR; do
    [[ -n ${!name} ]] || continue
    rc=0
    within 20 test -e "${!name}" || rc=$?
    ((rc != 124)) || refuse "$EX_MISSING" "$name=${!name}" "its disk or mount did not answer in 20 s" "find it in /proc/mounts and attach it again, or set $name to another folder"
  done
}

# S is emptied when the disk is full: nothing of the run may lie in it, by name or by a link.
scratch_apart() {
  local place
  for place in "$D" "$B"; do
    [[ $place/ != "$S"/* && ! $place -ef $S ]] ||
      refuse "$EX_CONFIG" "SCRATCH=$SCRATCH" "$place lies in $S, which is emptied when room is short" "set SCRATCH to another folder"
  done
}

# The real path of a folder, into REPLY, without a process: there and back again.
resolve_folder() { # <folder>    returns: 0, or 1 where it cannot be entered
  local before=$PWD
  REPLY=''
  cd -P -- "$1" 2>/dev/null || return 1
  REPLY=$PWD
  # The folder that we stood in may be gone by now; nothing that follows needs it.
  cd -- "$before" 2>/dev/null || :
}

# The real folder of this script, into SELF_DIR: its siblings lie there, and a moved link changes nothing.
self_dir() {
  local REPLY dir=${BASH_SOURCE[0]-}
  [[ $dir == */* ]] || dir=./$dir
  # shellcheck disable=SC2034 # not every script that comes here asks for it
  resolve_folder "${dir%/*}" && SELF_DIR=$REPLY
}

# Digest of the folder that this script lies in, into REPLY: which scripts these are.
box_digest() { # <folder box/>
  local HASH_TOOL=${HASH_TOOL-} file said='' text=''
  local -a files=()
  for file in "$1"/*; do
    [[ ! -f $file ]] || files+=("$file")
  done
  hash_tool_small
  ((${#files[@]} == 0)) || said=$(exec_hash_tool "${files[@]}" 2>/dev/null) || return "$EX_INTEGRITY"
  while IFS= read -r file; do
    [[ -z $file ]] || text+="${file:0:64}  ${file##*/}"$'\n'
  done <<<"$said"
  hash_text "$text"
}

# Is there anything at FOLDER or above it that git would take for a repository? Where there is not, it need not be asked.
may_be_repository() { # <folder>
  local REPLY dir
  [[ -z ${GIT_DIR-} ]] || return 0
  resolve_folder "$1" || return 0
  dir=$REPLY
  while :; do
    [[ ! -e $dir/.git && ! -e $dir/HEAD ]] || return 0
    [[ -n $dir ]] || return 1
    dir=${dir%/*}
  done
}

# The commit of the code, into CODE_COMMIT (40 digits or none).
code_commit() {
  CODE_COMMIT=none
  command -v git >/dev/null 2>&1 && [[ -d $CODE_DIR ]] && may_be_repository "$CODE_DIR" || return 0
  CODE_COMMIT=$(git -C "$CODE_DIR" rev-parse --verify -q HEAD 2>/dev/null) || CODE_COMMIT=none
  [[ $CODE_COMMIT =~ ^[0-9a-f]{40}$ ]] || CODE_COMMIT=none
}

# The text of this run's record with HOST and BOOT_ID of now, into RECORD.
run_record() { # <run id> <formal> <commit> <branch> <shard> <box digest>
  local REPLY
  record_open run/1
  record_text run_id "$1"
  record_text job "$JOB"
  record_text profile "$PROFILE"
  record_bool formal "$2" || return
  record_text commit "$3"
  record_text branch "$4"
  record_text shard "$5"
  this_host
  record_text host "$REPLY"
  this_boot_id
  record_text boot_id "$REPLY"
  record_text box_digest "$6"
  record_close
}

new_run() { # <formal> <shard>: create the record, or find that another start was quicker
  local REPLY id uuid digest branch=''
  IFS= read -r uuid </proc/sys/kernel/random/uuid || return "$EX_MISSING"
  utc_now
  id=${REPLY//[-:]/}-${uuid:0:8}
  box_digest "$SELF_DIR" || return
  digest=$REPLY
  [[ $CODE_COMMIT == none ]] || branch=$(git -C "$CODE_DIR" symbolic-ref -q --short HEAD 2>/dev/null) || branch=''
  run_record "$id" "$1" "$CODE_COMMIT" "$branch" "$2" "$digest" || return
  create_once "$D/run.json" "$RECORD" || [[ $? -eq 1 ]]
}

# Read D's record into R_*, taking B's where D has none yet (a new box on the same durable tier).
find_run() { # returns: 0 found, 1 there is none; refuses 65 where one is unreadable
  local REPLY rc=0
  read_record "$D/run.json" run/1 || rc=$?
  ((rc != 2)) || { record_fault "$D/run.json" && refuse "$EX_INTEGRITY" "$D/run.json" "$REPLY" "compare it with $B/run.json and copy the whole one over it"; }
  ((rc == 1)) || return 0
  [[ $B != "$D" && (-e $B/run.json || -L $B/run.json) ]] || return 1
  read_record "$B/run.json" run/1 || {
    record_fault "$B/run.json"
    refuse "$EX_INTEGRITY" "$B/run.json" "$REPLY" "look at it; begin anew with RUN=$JOB.2 if it is lost"
  }
  read_text "$B/run.json"
  create_once "$D/run.json" "$REPLY" || [[ $? -eq 1 ]] || return "$EX_COPY"
  read_record "$D/run.json" run/1
}

# The durable copy: made where it is missing, refused where it is another run's.
mirror_run() {
  [[ $B != "$D" ]] || return 0
  local REPLY id=$R_run_id text rc=0
  read_text "$D/run.json" || refuse "$EX_INTEGRITY" "$D/run.json" "it cannot be read" "look at the data tier"
  text=$REPLY
  # The very same text is the very same run.
  ! read_text "$B/run.json" || [[ $REPLY != "$text" ]] || return 0
  [[ -d $B ]] || mkdir -p -- "$B" 2>/dev/null || refuse_write "$EX_COPY" "$B" "the folder cannot be made" durable
  create_once "$B/run.json" "$text" || [[ $? -eq 1 ]] ||
    refuse_write "$EX_COPY" "$B/run.json" "it cannot be written" durable
  read_record "$B/run.json" run/1 "$id" || rc=$?
  ((rc == 0)) || refuse "$EX_INTEGRITY" "$B/run.json" "it is another run's record, or not whole; ours is $id" "begin anew with RUN=$JOB.2, or put the right storage in place"
  read_record "$D/run.json" run/1
}

# Take the run over: write our host into both copies.
adopt_run() { # <host that had it>
  event adopt - - "from $1"
  run_record "$R_run_id" "${R_formal-}" "${R_commit-}" "${R_branch-}" "${R_shard-}" "${R_box_digest-}" || return
  replace_file "$D/run.json" "$RECORD" || return
  [[ $B == "$D" ]] || replace_file "$B/run.json" "$RECORD" || return
  read_record "$D/run.json" run/1
}

# What an existing run insists on: its commit, its shard, its formality, its host.
check_run() { # <formal wanted> <shard or empty> <adopt>
  local REPLY anew="begin anew with RUN=$JOB.2"
  [[ ${R_commit-} == "$CODE_COMMIT" ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it is of commit ${R_commit-}, and the code at $CODE_DIR is at $CODE_COMMIT" "check out ${R_commit-} there, or $anew"
  [[ -z $2 || ${R_shard-} == "$2" ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it is of shard ${R_shard-}, not $2" "give --shard ${R_shard-}, or a RUN of its own to each box"
  [[ $1 != true || ${R_formal-} == true ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it was not begun by formal_run, so it is never evidence" "$anew"
  this_host
  if [[ ${R_host-} != "$REPLY" ]]; then
    [[ $3 == true ]] ||
      refuse "$EX_BUSY" "run $R_run_id" "box ${R_host-} has it, and this is $REPLY" "if that box is gone for good, say --adopt; else give this box its own RUN"
    adopt_run "${R_host-}" || return
  fi
}

# What a person set in place of the bound values, by this process's own environment: printed and logged.
log_overrides() {
  local pair name value
  # Run_queue has said it for all its cells.
  [[ -z ${OVERRIDES_SAID-} && -r /proc/$$/environ ]] || return 0
  while IFS= read -r -d '' pair; do
    name=${pair%%=*} value=${pair#*=}
    case $name in
      DATA_DIR | DURABLE_DIR | SCRATCH | HF_HOME | PROXY_HOOK | CRED_FILE | DETACH | PY) ;;
      *) continue ;;
    esac
    # A proxy's address may carry a password.
    [[ $value != *://*@* ]] || value="${value%%://*}://...@${value##*@}"
    log "override: $name=$value"
    event override - - "$name=$value"
  done <"/proc/$$/environ"
}

# Begin or continue the run. Sets D B S CODE_DIR RUN_ID RUN_COMMIT RUN_FORMAL RUN_SHARD RUN_HOST RUN_BOX_DIGEST.
open_run() { # <formal wanted: true or false> <shard I/N or empty> <adopt: true or false>
  local formal=$1 shard=$2 adopt=$3 pid='' rest
  # It tells which processes live; that of another PID namespace shows other processes under our numbers.
  { read -r pid rest </proc/self/stat; } 2>/dev/null && [[ $pid == "$BASHPID" ]] ||
    refuse "$EX_MISSING" "/proc" "it does not show this process: not mounted, or of another PID namespace" "mount it: mount -t proc proc /proc, or unshare with --mount-proc"
  self_dir
  run_places
  prove_durable
  [[ -d $D ]] || mkdir -p -- "$D" 2>/dev/null || refuse_write "$EX_NOROOM" "$D" "the folder cannot be made" data
  code_commit
  [[ $formal != true || $CODE_COMMIT != none ]] ||
    refuse "$EX_GATE" "a formal run" "the code at $CODE_DIR has no commit" "put a git work tree there, or set CODE_DIR"
  if ! find_run; then
    new_run "$formal" "${shard:-1/1}" || refuse_write "$EX_COPY" "$D/run.json" "it cannot be written" data
    find_run || refuse "$EX_COPY" "$D/run.json" "it does not read back" "look at the data tier"
  fi
  mirror_run
  check_run "$formal" "$shard" "$adopt" || refuse "$EX_COPY" "run $RUN" "its record cannot be rewritten" "look at the tiers: room, rights"
  # shellcheck disable=SC2034 # a script uses the ones that it needs
  RUN_ID=$R_run_id RUN_COMMIT=${R_commit-} RUN_FORMAL=${R_formal-} RUN_SHARD=${R_shard-} RUN_HOST=${R_host-} RUN_BOX_DIGEST=${R_box_digest-}
  log_overrides
}
