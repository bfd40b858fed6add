# lib/look.bash: what a teardown asks a box. These functions are sent there (declare -f) and run there; they only read.
# needs: exit log path file proc ssh

# Answers, one a line: run ID, manifest DIGEST, size WHERE KB PATH, left WHERE COUNT KB PATH, other WHERE KB RUN ID, stray WHERE PATH,
# busy TEXT, newer TEXT, unknown TEXT.
look_at_box() { # reads: DATA_DIR DURABLE_DIR RUN SHARED_MACHINE DATA_MOUNT DURABLE_MOUNT DATA_ROOT DURABLE_ROOT
  : "${DATA_DIR:?}" "${DURABLE_DIR?}" "${RUN:?}" "${SHARED_MACHINE:?}" "${DATA_MOUNT?}" "${DURABLE_MOUNT?}" "${DATA_ROOT?}" "${DURABLE_ROOT?}"
  expand_path DATA_DIR
  expand_path DURABLE_DIR
  D=$DATA_DIR/$RUN B=${DURABLE_DIR:-$DATA_DIR}/$RUN
  look_tier "$DATA_DIR" "$DATA_MOUNT"
  [[ -z $DURABLE_DIR ]] || look_tier "$DURABLE_DIR" "$DURABLE_MOUNT"
  look_run
  look_newer
  look_left data "$D"
  [[ $B == "$D" ]] || look_left durable "$B"
  look_claims
  look_sessions
  look_processes
  look_gpus
  look_others data "$DATA_DIR"
  [[ -z $DURABLE_DIR || $DURABLE_DIR == "$DATA_DIR" ]] || look_others durable "$DURABLE_DIR"
  [[ $SHARED_MACHINE == true ]] || look_strays
}

# A tier that is not attached looks as if there were no run: say that it cannot be told.
look_tier() { # <folder on it> <its mount point, or empty where no mount proves it>
  local mount=$2 line fields
  [[ -n $mount ]] || return 0
  expand_path mount
  [[ $1/ == "${mount%/}"/* ]] || return 0
  while IFS= read -r line; do
    read -ra fields <<<"$line"
    [[ ${fields[4]-} != "${mount// /\\040}" ]] || return 0
  done </proc/self/mountinfo
  printf 'unknown the storage at %s is not mounted\n' "$mount"
}

look_size() { # <folder>    prints kilobytes, or unknown
  local text
  text=$(within 60 du -sk -- "$1" 2>/dev/null) || text=
  text=${text%%[!0-9]*}
  printf '%s' "${text:-unknown}"
}

look_count() { # <folder>    prints how many files, or unknown
  local text
  text=$(within 60 find "$1" -type f 2>/dev/null | wc -l) || text=
  text=${text//[!0-9]/}
  printf '%s' "${text:-unknown}"
}

# A record that was cut says nothing, also where the member that one looks for is left.
look_whole() { # <file> <schema>
  local text=''
  [[ -f $1 ]] || return 1
  ! { IFS= read -r -d '' text <"$1"; } 2>/dev/null || return 1
  [[ $text == '{'$'\n''  "schema": "'"$2"'",'*$'\n''}'$'\n' ]]
}

look_run() {
  local file id=none digest=none here
  for file in "$D/run.json" "$B/run.json"; do
    [[ -e $file || -L $file ]] || continue
    here=''
    if look_whole "$file" run/1; then here=$(box_member "$file" run_id); fi
    [[ -n $here ]] || { here=unknown && printf 'unknown %s cannot be read\n' "$file"; }
    [[ $id == none || $id == "$here" ]] || printf 'unknown %s is of run %s, and the other tier is of %s\n' "$file" "$here" "$id"
    [[ $id != none ]] || id=$here
  done
  printf 'run %s\n' "$id"
  if [[ -e $B/PULL_MANIFEST.json ]]; then
    digest=unreadable
    [[ ! -f $B/PULL_MANIFEST.json ]] || digest=$(sha256sum <"$B/PULL_MANIFEST.json") || digest=unreadable
  fi
  printf 'manifest %s\n' "${digest%% *}"
  [[ ! -d $D ]] || printf 'size data %s %s\n' "$(look_size "$D")" "$D"
  [[ ! -d $B || $B == "$D" ]] || printf 'size durable %s %s\n' "$(look_size "$B")" "$B"
  [[ $id == none ]] || return 0
  for file in "$D/cells" "$D/state" "$D/claims" "$B/records" "$B/final_ckpts"; do
    [[ ! -e $file ]] || printf 'unknown %s is there, of a run without a record\n' "$file"
  done
}

# A cell that ran, or came into the queue, after the manifest was made is in no bundle, though the manifest is home and whole.
look_newer() {
  local REPLY file first there=()
  [[ -s $B/PULL_MANIFEST.json ]] || return 0
  for file in "$D/state" "$B/records" "$B/final_ckpts"; do
    [[ ! -d $file ]] || there+=("$file")
  done
  ((${#there[@]} == 0)) || {
    first=$(within 60 find "${there[@]}" -type f ! -name '.*' -newer "$B/PULL_MANIFEST.json" 2>&1 | head -n 1) || first=${first:-"what is newer cannot be told"}
    [[ -z $first ]] || printf 'newer %s was written after the manifest\n' "$first"
  }
  ! no_file "$D/queue.tsv" || { printf 'unknown %s is %s, not a queue\n' "$D/queue.tsv" "$REPLY" && return 0; }
  [[ -e $D/queue.tsv ]] || return 0
  first=$(awk 'FNR == NR { split($0, w, "\""); if (w[2] == "cell") known[w[4]] = 1; next }
    { split($0, w, "\t"); if (w[1] != "" && !(w[1] in known)) { print w[1]; exit } }' "$B/PULL_MANIFEST.json" "$D/queue.tsv" 2>&1) || first=${first:-the queue cannot be read}
  [[ -z $first ]] || printf 'newer cell %s is in the queue and not in the manifest\n' "$first"
}

# What no bundle holds: all in the run's folder but the bundle itself, the code and the scripts that came from home, and our bookkeeping.
look_left() { # <data or durable> <folder>
  local one count
  for one in "$2"/*; do
    [[ -e $one ]] || continue
    case ${one##*/} in
      final_ckpts | records | PULL_MANIFEST.json | SHA256SUMS | FORMAL_SUCCESS | run.json | queue.tsv | box | code | code.git | state | claims | data) continue ;;
      smoke.json | drill.json | formal.json | READY_TO_STOP | plans | events.tsv | NEGATIVE_RESULTS.tsv) continue ;;
    esac
    count=$(look_count "$one")
    [[ $count == 0 ]] || printf 'left %s %s %s %s\n' "$1" "$count" "$(look_size "$one")" "$one"
  done
}

# A run that was started in another folder than the one that we look into: its record, where somebody would have put it.
look_strays() {
  local where root file
  for where in data durable home; do
    case $where in
      data) root=$DATA_ROOT ;;
      durable) root=$DURABLE_ROOT ;;
      *) root=${HOME-} ;;
    esac
    [[ -n $root ]] || continue
    expand_path root
    [[ $root != / && -d $root ]] || continue
    while IFS= read -r file; do
      # Those beside this run are looked at as other runs.
      [[ ${file%/*/run.json} != "${DATA_DIR%/}" && ${file%/*/run.json} != "${DURABLE_DIR%/}" ]] || continue
      ! look_whole "$file" run/1 || printf 'stray %s %s\n' "$where" "${file%/run.json}"
    done < <(within 60 find "$root/" -maxdepth 5 -name run.json -type f 2>/dev/null)
  done
}

# Is HOST's work on the run in FOLDER possibly going on, and not here? Only the run record's own host may have any.
look_elsewhere() { # <run's folder> <host>
  local owner
  owner=$(box_member "$1/run.json" host)
  [[ $owner == "$2" ]]
}

look_claims() { # the highest claim of every cell of every run on the data tier
  local cell file last host boot pid ticks REPLY here now
  this_host && here=$REPLY
  this_boot_id && now=$REPLY
  for cell in "$DATA_DIR"/*/claims/*/; do
    last=''
    for file in "$cell"*; do
      [[ ${file##*/} =~ ^[0-9]+$ ]] || continue
      if [[ -z $last ]] || ((10#${file##*/} > 10#${last##*/})); then last=$file; fi
    done
    [[ -n $last ]] || continue
    # Nobody knows then whether its runner lives; and a FIFO would hang the look, which reads as a box that cannot be reached.
    if no_file "$last"; then
      printf 'unknown %s is %s, not a claim\n' "$last" "$REPLY"
      continue
    fi
    host='' boot='' pid='' ticks=''
    { read -r host boot pid ticks <"$last"; } 2>/dev/null || :
    if [[ -z $ticks ]]; then
      [[ -z $(find "$last" -mmin -1 2>/dev/null) ]] || printf 'busy a claim is being taken: %s\n' "$last"
    elif [[ $host == "$here" ]]; then
      [[ $boot != "$now" ]] || ! same_process "$pid" "$ticks" || printf 'busy a cell is running: %s, pid %s\n' "$cell" "$pid"
    elif look_elsewhere "${cell%/claims/*}" "$host" && look_unfinished "$cell"; then
      printf 'busy host %s has the claim on %s\n' "$host" "$cell"
    fi
  done
}
look_unfinished() { # <claims/CELL/>
  local cell=${1%/}
  case $(box_member "${cell%/claims/*}/state/${cell##*/}.json" state) in
    done | unsynced | failed | preempted) return 1 ;;
  esac
}

look_sessions() { # formal runs that are not over, of every run on the data tier
  local file state host pid ticks REPLY here now
  this_host && here=$REPLY
  this_boot_id && now=$REPLY
  for file in "$DATA_DIR"/*/formal.json; do
    [[ -e $file ]] || continue
    state=''
    if look_whole "$file" formal/1; then state=$(box_member "$file" state); fi
    case $state in
      starting | running | aggregating) ;;
      success | failed | stopped) continue ;;
      *) printf 'unknown %s cannot be read\n' "$file" && continue ;;
    esac
    host=$(box_member "$file" host) pid=$(box_member "$file" pid) ticks=$(box_member "$file" start_ticks)
    if [[ $host == "$here" ]]; then
      [[ $(box_member "$file" boot_id) == "$now" ]] || continue
      if { [[ -n $pid && $pid != null ]] && same_process "$pid" "$ticks"; } || { [[ $state == starting ]] && [[ -n $(find "$file" -mmin -2 2>/dev/null) ]]; }; then
        printf 'busy a formal run is %s: %s, pid %s\n' "$state" "${file%/*}" "$pid"
      fi
    elif look_elsewhere "${file%/*}" "$host"; then
      printf 'busy a formal run is %s on host %s: %s\n' "$state" "$host" "${file%/*}"
    fi
  done
}

# Our scripts and transfers. On a machine that is shared, only those that name this run's folders.
look_processes() {
  local dir pid word name words ours place
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/} words=() ours=false
    [[ $pid != "$$" && $pid != "${BASHPID-}" ]] || continue
    { while IFS= read -r -d '' word; do
      words+=("$word")
      [[ $word/ != *"$D"/* && $word/ != *"$B"/* ]] || ours=true
    done <"$dir/cmdline"; } 2>/dev/null || continue
    for word in "${words[0]-}" "${words[1]-}"; do
      name=${word##*/}
      case $name in
        rsync | scp | sftp-server | rclone | tar | aggregate_to_fs.sh | run_queue.sh | run_one.sh | formal_run.sh)
          place=$(readlink "$dir/cwd" 2>/dev/null) || place='a folder that it does not tell'
          [[ $SHARED_MACHINE == true && $ours == false ]] || printf 'busy %s is running: pid %s, in %s\n' "$name" "$pid" "$place"
          break
          ;;
      esac
    done
  done
}

look_gpus() {
  local text pid name id
  command -v nvidia-smi >/dev/null 2>&1 || return 0
  if ! text=$(within 60 nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader 2>&1); then
    [[ $text == *'No devices were found'* ]] || printf 'unknown nvidia-smi does not tell which processes use the GPUs\n'
    return 0
  fi
  id=$(box_member "$D/run.json" run_id)
  while IFS=', ' read -r pid name; do
    [[ $pid =~ ^[0-9]+$ ]] || continue
    if [[ $SHARED_MACHINE == true ]]; then
      # Other people's work is none of this run's business; a process of this run carries its id.
      [[ -n $id ]] || continue
      grep -qz "^RUN_ID=$id\$" "/proc/$pid/environ" 2>/dev/null || continue
    fi
    printf 'busy a process uses a GPU: pid %s %s\n' "$pid" "$name"
  done <<<"$text"
}

look_others() { # <data or durable> <folder>
  local file run
  for file in "$2"/*/run.json; do
    run=${file%/run.json} run=${run##*/}
    [[ -e $file && $run != "$RUN" ]] || continue
    printf 'other %s %s %s %s\n' "$1" "$(look_size "$2/$run")" "$run" "$(box_member "$file" run_id)"
  done
}

# shellcheck disable=SC2034 # teardown sends these along
readonly -a LOOK_FUNCTIONS=(expand_path box_member this_host this_boot_id start_ticks same_process within no_file look_tier look_size look_count
  look_whole look_run look_newer look_left look_strays look_elsewhere look_claims look_unfinished look_sessions look_processes look_gpus look_others)
