# lib/bundle.bash: a cell's results on their way into the bundle: copied, read back, committed.
# needs: exit log path file record proc hash hashes room run results
# reads: D B RUN_ID DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF
#
# Who runs a cell writes D/state/<cell>.json with state "unsynced" (exit 0, evidence there), then calls sync_cell:
# on 0 both that record and B/records/<cell>.json say done; on 73, 74 or 65 nothing in B was replaced by worse,
# and the record is as it was; OWN_FAULT is not empty where the cell's own files are at fault, not the way into the bundle.
# A crash in between leaves "unsynced", which aggregate repeats.

# Is a cell committed: does B's record say done in this run, over the digest list that lies beside it?
check_bundled() { # <cell>    returns: 0 yes, 1 no record, 2 a record or list that does not hold; leaves R_*
  local REPLY rc=0 HASH_TOOL=${HASH_TOOL-}
  read_record "$B/records/$1.json" cell/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return "$rc"
  [[ ${R_cell-} == "$1" && ${R_state-} == "done" && -n ${R_files_sha256-} ]] || return 2
  hash_tool_small
  hash_file "$B/records/$1.sha256" || return 2
  [[ $REPLY == "$R_files_sha256" ]] || return 2
}

# The record in R_* once more, with STATE, WHY and the digest list, into RECORD.
cell_record() { # <state> <why> <files digest>
  record_open cell/1
  record_text run_id "$RUN_ID"
  record_text cell "$R_cell"
  record_text state "$1"
  record_text class ''
  record_text why "$2"
  record_int attempt "${R_attempt-}" || return
  record_int exit "${R_exit-}" || return
  record_raw signal "${R_signal:-null}"
  record_text started "${R_started-}"
  record_text ended "${R_ended-}"
  record_int peak_memory_bytes "${R_peak_memory_bytes-}" || return
  record_text gpu "${R_gpu-}"
  record_text command_sha256 "${R_command_sha256-}"
  record_text files_sha256 "$3"
  record_text tracker_url "${R_tracker_url-}"
  record_close
}

# Remove what an earlier sync of this cell, killed half-way, left in the bundle: our own names and nothing else.
drop_own_leftovers() { # <cell>
  local path
  for path in "$B/.syncing/$1".[0-9]*; do
    if [[ ! -d $path || ! ${path##*.} =~ ^[0-9]+$ || $path != "$B/.syncing/$1.${path##*.}" ]]; then continue; fi
    [[ $path != "${STAGE-}" ]] || continue
    # One of our own number is a dead one's too: numbers come again, in a container soon.
    [[ ${path##*.} == "$$" ]] || ! start_ticks "${path##*.}" || continue
    rm -rf -- "${path:?}" || return "$EX_COPY"
  done
}

# Which files of the list are not in TARGET as they should be: indices into TODO, their bytes into TODO_BYTES.
sync_todo() { # <target folder>
  local i path
  local -a same=()
  TODO=() TODO_BYTES=0
  for path in "${LIST_PATHS[@]}"; do
    path=$1/$path
    [[ ! -f $path || -L $path ]] || same+=("$path")
  done
  SUM_OF=()
  if ((${#same[@]} > 0)); then
    stat_many "${same[@]}"
    hash_many "${same[@]}" || :
  fi
  for ((i = 0; i < ${#LIST_PATHS[@]}; i++)); do
    path=$1/${LIST_PATHS[i]}
    [[ ${SUM_OF[$path]-} != "${LIST_SUMS[i]}" ]] || continue
    TODO+=("$i")
    TODO_BYTES=$((TODO_BYTES + LIST_SIZES[i]))
  done
}

# Room for the whole copy, before its first byte: the old files stay until the new ones are proven. Where it is
# little cp says the same, and as early.
sync_room() { # <target folder>    returns: 0 or 73
  ((TODO_BYTES >= SMALL_BYTES || ${#TODO[@]} > 64)) || return 0
  look_room "$1"
  if [[ -n ${ROOM_BYTES[0]} ]] && ((TODO_BYTES + 65536 > ROOM_BYTES[0])); then
    log "no room for the copy: it needs $TODO_BYTES bytes, $1 has ${ROOM_BYTES[0]}"
    return "$EX_NOROOM"
  fi
  if [[ -n ${ROOM_INODES[0]} ]] && ((${#TODO[@]} + 8 > ROOM_INODES[0])); then
    log "no room for the copy: it needs ${#TODO[@]} files, $1 has inodes for ${ROOM_INODES[0]}"
    return "$EX_NOROOM"
  fi
}

# TODO in runs of files that lie in one folder: RUN_FOLDER (below the cell's, empty for itself) and RUN_FIRST, where in TODO it
# begins. A call of cp or mv takes a run whole.
split_runs() {
  local i folder last='' n=0
  RUN_FOLDER=() RUN_FIRST=()
  for ((i = 0; i < ${#TODO[@]}; i++)); do
    folder=${LIST_PATHS[TODO[i]]}
    if [[ $folder == */* ]]; then folder=${folder%/*}; else folder=''; fi
    n=$((n + 1))
    if ((i == 0 || n > 200)) || [[ $folder != "$last" ]]; then
      RUN_FOLDER+=("$folder") RUN_FIRST+=("$i")
      last=$folder n=1
    fi
  done
  RUN_FIRST+=("${#TODO[@]}")
}

# The files of run N below FOLDER, into RUN_FILES.
run_files() { # <n> <folder>
  local i
  RUN_FILES=()
  for ((i = RUN_FIRST[$1]; i < RUN_FIRST[$1 + 1]; i++)); do RUN_FILES+=("$2/${LIST_PATHS[TODO[i]]}"); done
}

# The folders of the copy below ROOT, all in one call; none of them may be a link.
make_folders_below() { # <root> [further folders...]
  local n folder root=$1
  local -a folders=("$@")
  for folder in ${RUN_FOLDER[@]+"${RUN_FOLDER[@]}"}; do
    [[ -z $folder ]] || folders+=("$root/$folder")
  done
  for ((n = 0; n < ${#folders[@]}; n += 500)); do
    mkdir -p -- "${folders[@]:n:500}" 2>/dev/null || { log "$root cannot be made" && return "$EX_COPY"; }
  done
  for folder in "${folders[@]}"; do
    [[ ! -L $folder ]] || { log "$folder is a link, not a folder of the bundle" && return "$EX_COPY"; }
  done
}

# Files into a folder, under their names. Says 73 where the disk is full.
copy_files() { # <folder> <files...>
  local said to=$1
  shift
  # In English: what it says decides.
  said=$(LC_ALL=C exec cp -L -- "$@" "$to/" 2>&1) && return 0
  said=${said//[[:cntrl:]]/ }
  case $said in
    *'No space left'* | *'quota exceeded'*) log "no room for the copy of ${1%/*}: $said" && return "$EX_NOROOM" ;;
  esac
  log "copying from ${1%/*} failed: $said"
  return "$EX_COPY"
}

# The copies in TMP, flushed and read back, the list with them: each digest must be its source's.
prove_copies() { # <temporary folder> <target folder> <the list's file>
  local i tmp rc=0 read_back=0
  local -a tmps=()
  for i in "${TODO[@]}"; do tmps+=("$1/${LIST_PATHS[i]}"); done
  declare -gA STAT_OF=()
  # For sharing out the reading.
  # shellcheck disable=SC2004 # STAT_OF is associative; its declaration is in lib hashes too
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    STAT_OF[$tmp]=${LIST_SIZES[i]}
  done
  STAT_OF[$3]=${#LIST_TEXT}
  # Little comes from memory anyway: it is read while it is flushed.
  ((TODO_BYTES >= SMALL_BYTES)) || begin_hash "${tmps[@]}" "$3"
  flush "${tmps[@]}" || rc=$?
  if ((TODO_BYTES >= SMALL_BYTES && rc == 0)); then
    forget_cached "${tmps[@]}"
    begin_hash "${tmps[@]}" "$3"
  fi
  end_hash || read_back=1
  ((rc == 0)) || { log "the copy to $2 cannot be flushed: no room, a quota, or its disk is failing" && return "$EX_COPY"; }
  ((read_back == 0)) || { log "the copy to $2 cannot be read back" && return "$EX_COPY"; }
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    if [[ ${SUM_OF[$tmp]-} != "${LIST_SUMS[i]}" ]]; then
      log "the copy of ${LIST_PATHS[i]} on $2 reads back as ${SUM_OF[$tmp]-nothing}, its source was ${LIST_SUMS[i]}: a bad disk, or the source is still being written"
      return "$EX_COPY"
    fi
  done
  LIST_DIGEST=${SUM_OF[$3]}
}

# What TODO names is copied, flushed and read back, and only then renamed: the whole folder where the bundle has none of the cell
# yet, else file by file. The last good copy stays until the new one is proven. First into a temporary folder:
stage_files() { # <cell> <temporary folder>
  local n
  split_runs
  [[ $2 == "${STAGE-}" && -d $2 && ${RUN_FOLDER[*]} == '' && ! -L $2 && ! -L $B/.syncing && ! -L $B/final_ckpts && ! -L $B/records ]] ||
    make_folders_below "$2" "$B/.syncing" "$B/final_ckpts" "$B/records" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]}; n++)); do
    run_files "$n" "$D/cells/$1"
    copy_files "$2/${RUN_FOLDER[n]}" "${RUN_FILES[@]}" || return
  done
}
# Then proven, and under their names.
readonly OTHERS=3
place_files() { # <temporary folder> <target folder> <the list's file>    returns: 0, 74, or OTHERS: another has just put its copy there
  local tmp=$1 target=$2
  prove_copies "$tmp" "$target" "$3" || return
  # Some mounts cannot rename a folder.
  if [[ ! -e $target ]] && mv -- "$tmp" "$target" 2>/dev/null; then
    # Had another made the target in that moment, ours would lie inside it: then we compare with what lies there.
    [[ ! -e $target/${tmp##*/} ]] || { rm -rf -- "${target:?}/${tmp##*/}" && return "$OTHERS"; }
    [[ -e $target/${LIST_PATHS[TODO[0]]} ]] || { log "$target is not what was moved there: look at the durable tier" && return "$EX_COPY"; }
    return 0
  fi
  move_files "$tmp" "$target"
}
move_files() { # <temporary folder> <target folder>
  local n file
  make_folders_below "$2" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]}; n++)); do
    run_files "$n" "$2"
    for file in "${RUN_FILES[@]}"; do
      [[ ! -d $file ]] || { log "$file is a folder where a file is to be" && return "$EX_COPY"; }
    done
    run_files "$n" "$1"
    mv -f -- "${RUN_FILES[@]}" "$2/${RUN_FOLDER[n]}" || return "$EX_COPY"
  done
}

# A cell's results into the bundle, then its list, last its record: whoever sees the record may count on the rest.
sync_cell() { # <cell>    returns: 0 committed, 65, 73 or 74 with the reason said; see the top of this file
  local cell=$1 target=$B/final_ckpts/$1 tmp=$B/.syncing/$1.$$ rc=0 bundled=''
  OWN_FAULT=''
  # The tier is proven before any byte.
  # The refusal is this function's status, not the end of the script.
  durable_there || { (refuse "$EX_COPY" "${TIER_SAID[@]}") || return; }
  ! check_bundled "$cell" || bundled=$R_files_sha256
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || { log "cell $cell has no whole record of this run" && return "$EX_INTEGRITY"; }
  [[ ${R_state-} == unsynced || ${R_state-} == "done" ]] || { log "cell $cell is ${R_state-}: nothing to sync" && return "$EX_INTEGRITY"; }
  still_flushed "${R_why-}" || { log "cell $cell finished in an earlier boot, before its files were flushed: unknown, so it is to run again" && return "$EX_INTEGRITY"; }
  [[ ! -L $target ]] || { log "$target is a link, not a folder of the bundle" && return "$EX_COPY"; }
  drop_own_leftovers "$cell" || return
  # shellcheck disable=SC2034 # lib/cell asks for it; aggregate has no use for it
  begin_list "$cell" || { rc=$? OWN_FAULT=1 && return "$rc"; }
  if [[ -z $bundled && ! -e $target ]] && ((LIST_BYTES < SMALL_BYTES && ${#LIST_PATHS[@]} <= 64)); then
    sync_new "$cell" "$tmp" || rc=$?
  else
    sync_known "$cell" "$tmp" "$bundled" || rc=$?
  fi
  if ((rc == OTHERS)); then
    rc=0
    begin_list "$cell" && sync_known "$cell" "$tmp" "$bundled" || rc=$?
  fi
  [[ ! -e $tmp ]] || rm -rf -- "${tmp:?}" || rc=$EX_COPY
  ((rc == 0)) || return "$rc"
  commit_cell "$cell"
}
# The usual case, little and all of it new, is copied while its digests are taken.
sync_new() { # <cell> <temporary folder>
  local rc=0
  TODO=("${!LIST_PATHS[@]}") TODO_BYTES=$LIST_BYTES
  stage_files "$1" "$2" || rc=$?
  end_list "$1" || return
  ((rc == 0)) || return "$rc"
  place_files "$2" "$B/final_ckpts/$1" "$D/state/$1.sha256"
}
sync_known() { # <cell> <temporary folder> <digest of the list in the bundle, or empty>
  local target=$B/final_ckpts/$1
  end_list "$1" || return
  if [[ -n $3 ]]; then
    list_digest || return
    if [[ $3 != "$LIST_DIGEST" ]]; then
      log "cell $1 is in the bundle, and its files in $D/cells/$1 were changed since: the bundle keeps the first ones"
      return "$EX_INTEGRITY"
    fi
  fi
  sync_todo "$target"
  sync_room "$B" || return
  ((${#TODO[@]} > 0)) || return 0
  stage_files "$1" "$2" && place_files "$2" "$target" "$D/state/$1.sha256"
}

# What a record of a finished cell says whose few files are not flushed yet, for they are copied at once: true in the boot that it
# names. After a power cut nobody knows what the files hold.
readonly UNFLUSHED='not flushed, boot '
still_flushed() { # <the record's why>    returns: 1 where that boot is over
  local REPLY
  [[ $1 == "$UNFLUSHED"* ]] || return 0
  this_boot_id
  # One that cannot be told could be any.
  [[ $1 == "$UNFLUSHED$REPLY" && $REPLY != unknown ]]
}

# The list and the record into B, then our own record. All is flushed in one call behind the renames, the folders first: what
# a power cut tears is seen, for the list must have the digest that the record says, and our own record still says unsynced.
commit_cell() { # <cell>    reads: R_*, of the cell's record on the data tier
  local cell=$1 back=$B/records/$1
  list_digest || return
  cell_record 'done' '' "$LIST_DIGEST" || return
  write_list "$back.sha256" || return
  replace_file "$back.json" "$RECORD" soon || return
  target_folders "$cell"
  flush "${TARGET_FOLDERS[@]}" "$back.sha256" "$back.json" "$B/records" || { log "the record of cell $cell cannot be flushed to $B" && return "$EX_COPY"; }
  overwrite_file "$D/state/$cell.json" "$RECORD" || replace_file "$D/state/$cell.json" "$RECORD" soon || return
  say_bundled "$cell"
}

# The list under its name at once: nobody looks at one that has no record of its digest beside it.
write_list() { # <file>
  local REPLY
  ! read_text "$1" || [[ $REPLY != "$LIST_TEXT" ]] || return 0
  put_text "$1" "$LIST_TEXT" && read_text "$1" && [[ $REPLY == "$LIST_TEXT" ]] || {
    log "could not write $1: no room, no right, or its disk is gone"
    return "$EX_COPY"
  }
}

# The folders in the bundle whose names a commit speaks of, into TARGET_FOLDERS.
target_folders() { # <cell>
  local path folder=$B/final_ckpts/$1
  local -A seen=([$folder]=1)
  TARGET_FOLDERS=("$B/final_ckpts" "$folder")
  for path in "${LIST_PATHS[@]}"; do
    path=$folder/$path
    while [[ ${path%/*} != "$folder" && -z ${seen[${path%/*}]-} ]]; do
      path=${path%/*}
      seen[$path]=1
      TARGET_FOLDERS+=("$path")
    done
  done
}

# The words for a committed cell. Without a durable tier it is exported, and nothing more is said.
say_bundled() { # <cell>
  if [[ -n $DURABLE_DIR ]]; then
    claim synced "cell $1" "$B/records/$1.json"
  else
    claim 'exported, on this box only' "cell $1" "$B/records/$1.json"
  fi
}
