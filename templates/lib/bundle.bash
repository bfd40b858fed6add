# lib/bundle.bash: a cell's results on their way into the bundle: listed, copied, read back, committed.
# needs: exit log path file record proc hash hashes room run
# reads: D B RUN_ID DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF REQUIRED
#
# Who runs a cell writes D/state/<cell>.json with state "unsynced" (exit 0, evidence there), then calls sync_cell:
# on 0 both that record and B/records/<cell>.json say done; on 73, 74 or 65 nothing in B was replaced by worse,
# and the record is as it was. A crash in between leaves "unsynced", which aggregate repeats.

# Results below this in all are small: hashed and copied in a moment. Looks that cost a process and would see what happens in
# that moment (free room, a second stat, having the kernel forget what it keeps) are for more; the digests are for all.
readonly SMALL_BYTES=1048576

# Is this the name of a file that some transfer or writer left half done?
is_leftover() { # <path below the cell>
  local base=${1##*/} tail
  case $1 in
    .~tmp~/* | */.~tmp~/* | .rsync-partial/* | */.rsync-partial/* | .partial/* | */.partial/*) return 0 ;;
  esac
  case $base in
    *.tmp | *.temp | *.part | *.partial | *.crdownload | .nfs* | .fuse_hidden* | *.sw[op]) return 0 ;;
    .?*.??????)
      # rsync's temporary name: six random characters, of which one at least is no small letter.
      tail=${base##*.}
      [[ $tail =~ ^[A-Za-z0-9]{6}$ && $tail =~ [A-Z0-9] ]] && return 0
      ;;
  esac
  return 1
}

# Files below a required folder, links followed, into LIST_PATHS; what is not a result is named and left out.
list_folder() { # <cell folder> <item>
  local dir=$1 item=$2 path ended=0 found=0
  while IFS= read -r -d '' path; do
    path=${path#"$dir"/}
    path=${path#./}
    if [[ $path == '== end' ]]; then
      ended=1
    elif [[ -L $dir/$path && ! -e $dir/$path ]]; then
      log "$dir/$path is a link that leads nowhere"
      return "$EX_COPY"
    elif is_leftover "$path"; then
      log "left out: $path (its name says that it is unfinished)"
    elif [[ ! -f $dir/$path ]]; then
      # Never opened: reading a fifo would wait for ever.
      log "left out: $path (a socket, fifo or device)"
    else
      LIST_PATHS+=("$path")
      found=1
    fi
  done < <(find -L "$dir/$item" ! -type d -print0 2>/dev/null && printf '== end\0')
  ((ended)) || { log "$dir/$item cannot be read whole: a folder without rights, or a link that leads into itself" && return "$EX_COPY"; }
  ((found)) || { log "$dir/$item holds no file" && return "$EX_COPY"; }
}

# All result files of a cell, as paths below its folder, in C order without repeats: LIST_PATHS.
list_paths() { # <cell folder>    returns: 0, 65 a name that no list can hold, 74 not there or not readable
  local dir=$1 item path text
  LIST_PATHS=()
  for item in ${REQUIRED[@]+"${REQUIRED[@]}"}; do
    item=${item%/}
    if [[ -L $dir/$item && ! -e $dir/$item ]]; then
      log "$dir/$item is a link that leads nowhere"
      return "$EX_COPY"
    elif [[ -f $dir/$item ]]; then
      LIST_PATHS+=("$item")
    elif [[ -d $dir/$item ]]; then
      list_folder "$dir" "$item" || return
    elif [[ -e $dir/$item ]]; then
      log "$dir/$item is a socket, fifo or device, not a result"
      return "$EX_COPY"
    else
      log "$dir/$item is not there"
      return "$EX_COPY"
    fi
  done
  for path in ${LIST_PATHS[@]+"${LIST_PATHS[@]}"}; do
    [[ $path != *[[:cntrl:]\"\\]* ]] && continue
    log "$dir/${path//[[:cntrl:]]/?} has a quote, a backslash or a control character in its name: rename it"
    return "$EX_INTEGRITY"
  done
  ((${#LIST_PATHS[@]} > 0)) || { log "$dir has no result file" && return "$EX_COPY"; }
  ((${#LIST_PATHS[@]} > 1)) || return 0
  if ((${#LIST_PATHS[@]} <= 16)); then
    sort_paths
    return
  fi
  text=$(printf '%s\n' "${LIST_PATHS[@]}" | LC_ALL=C sort -u) || return "$EX_COPY"
  LIST_PATHS=()
  while IFS= read -r path; do LIST_PATHS+=("$path"); done <<<"$text"
}

# LIST_PATHS in C order without repeats, without a process: for few.
sort_paths() {
  local LC_ALL=C path i
  local -a sorted=()
  for path in "${LIST_PATHS[@]}"; do
    for ((i = ${#sorted[@]}; i > 0; i--)); do
      [[ $path < ${sorted[i - 1]} ]] || break
      sorted[i]=${sorted[i - 1]}
    done
    sorted[i]=$path
  done
  LIST_PATHS=()
  for path in "${sorted[@]}"; do
    [[ ${#LIST_PATHS[@]} -gt 0 && ${LIST_PATHS[${#LIST_PATHS[@]} - 1]} == "$path" ]] || LIST_PATHS+=("$path")
  done
}

# Digests of a cell's results, taken at the source, into D/state/<cell>.sha256 and LIST_TEXT LIST_PATHS LIST_SUMS LIST_SIZES
# LIST_BYTES. LIST_DIGEST is the list's own, empty until somebody needs it (list_digest) or it comes with the read-back.
list_cell() { # <cell>    returns: 0, 65, or 74 (missing, unreadable, or still being written)
  local cell=$1 dir=$D/cells/$1 path line i
  local -a full=() seen_first=()
  list_paths "$dir" || return
  LIST_SUMS=() LIST_SIZES=() LIST_BYTES=0 LIST_TEXT='' LIST_DIGEST=''
  for path in "${LIST_PATHS[@]}"; do full+=("$dir/$path"); done
  stat_many "${full[@]}"
  for path in "${full[@]}"; do
    line=${STAT_OF[$path]-}
    [[ -n $line ]] || { log "$path went away" && return "$EX_COPY"; }
    seen_first+=("$line")
    LIST_SIZES+=("${line%%|*}")
    LIST_BYTES=$((LIST_BYTES + ${line%%|*}))
  done
  hash_many "${full[@]}" || { log "a result of cell $cell cannot be read" && return "$EX_COPY"; }
  ((LIST_BYTES < SMALL_BYTES)) || stat_many "${full[@]}"
  for ((i = 0; i < ${#full[@]}; i++)); do
    path=${full[i]}
    [[ ${STAT_OF[$path]-} == "${seen_first[i]}" ]] || { log "$path is still being written" && return "$EX_COPY"; }
    LIST_SUMS+=("${SUM_OF[$path]}")
    LIST_TEXT+="${SUM_OF[$path]}  ${LIST_PATHS[i]}"$'\n'
  done
  # The commit takes the list from here and a repeated sync takes new digests: from the file only its own digest is taken.
  { printf '%s' "$LIST_TEXT" >"$D/state/$cell.sha256"; } 2>/dev/null || { log "could not write $D/state/$cell.sha256" && return "$EX_COPY"; }
}
list_digest() { # into LIST_DIGEST
  local REPLY
  [[ -z $LIST_DIGEST ]] || return 0
  hash_text "$LIST_TEXT" || return "$EX_COPY"
  LIST_DIGEST=$REPLY
}

# Is a cell committed: does B's record say done in this run, over the digest list that lies beside it?
check_bundled() { # <cell>    returns: 0 yes, 1 no record, 2 a record or list that does not hold; leaves R_*
  local REPLY rc=0
  read_record "$B/records/$1.json" cell/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return "$rc"
  [[ ${R_cell-} == "$1" && ${R_state-} == "done" && -n ${R_files_sha256-} ]] || return 2
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
  local i tmp
  local -a tmps=()
  for i in "${TODO[@]}"; do tmps+=("$1/${LIST_PATHS[i]}"); done
  flush "${tmps[@]}" || { log "the copy to $2 cannot be flushed: no room, a quota, or its disk is failing" && return "$EX_COPY"; }
  ((TODO_BYTES < SMALL_BYTES)) || forget_cached "${tmps[@]}"
  declare -gA STAT_OF=()
  # For sharing out the reading.
  # shellcheck disable=SC2004 # STAT_OF is associative; its declaration is in lib hashes too
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    STAT_OF[$tmp]=${LIST_SIZES[i]}
  done
  STAT_OF[$3]=${#LIST_TEXT}
  hash_many "${tmps[@]}" "$3" || { log "the copy to $2 cannot be read back" && return "$EX_COPY"; }
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    if [[ ${SUM_OF[$tmp]-} != "${LIST_SUMS[i]}" ]]; then
      log "the copy of ${LIST_PATHS[i]} on $2 reads back as ${SUM_OF[$tmp]-nothing}, its source was ${LIST_SUMS[i]}: a bad disk, or the source is still being written"
      return "$EX_COPY"
    fi
  done
  LIST_DIGEST=${SUM_OF[$3]}
}

# Copy what TODO names, flush, read back, and only then rename: the whole folder where the bundle has none of the cell yet,
# else file by file. The last good copy stays until the new one is proven.
sync_files() { # <cell> <the list's file>
  local target=$B/final_ckpts/$1 tmp=$B/.syncing/$1.$$ n rc=0
  split_runs
  make_folders_below "$tmp" "$B/.syncing" "$B/final_ckpts" "$B/records" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]} && rc == 0; n++)); do
    run_files "$n" "$D/cells/$1"
    copy_files "$tmp/${RUN_FOLDER[n]}" "${RUN_FILES[@]}" || rc=$?
  done
  ((rc != 0)) || prove_copies "$tmp" "$target" "$2" || rc=$?
  # Some mounts cannot rename a folder.
  if ((rc == 0)) && [[ ! -e $target ]] && mv -- "$tmp" "$target" 2>/dev/null; then
    # Had another made the target in that moment, ours would lie inside it.
    [[ ! -e $target/${tmp##*/} && -e $target/${LIST_PATHS[TODO[0]]} ]] || { log "$target was made by somebody else meanwhile: copy again, which compares with what lies there" && rm -rf -- "${target:?}/${tmp##*/}" && return "$EX_COPY"; }
    return 0
  fi
  ((rc != 0)) || move_files "$tmp" "$target" || rc=$?
  rm -rf -- "${tmp:?}" || rc=$EX_COPY
  return "$rc"
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
  local cell=$1 target=$B/final_ckpts/$1 rc=0 bundled=''
  # The tier is proven before any byte.
  # The refusal is this function's status, not the end of the script.
  durable_there || { (refuse "$EX_COPY" "${TIER_SAID[@]}") || return; }
  check_bundled "$cell" || rc=$?
  ((rc != 0)) || bundled=$R_files_sha256
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || { log "cell $cell has no whole record of this run" && return "$EX_INTEGRITY"; }
  [[ ${R_state-} == unsynced || ${R_state-} == "done" ]] || { log "cell $cell is ${R_state-}: nothing to sync" && return "$EX_INTEGRITY"; }
  list_cell "$cell" || return
  if ((rc == 0)); then
    list_digest || return
    if [[ $bundled != "$LIST_DIGEST" ]]; then
      log "cell $cell is in the bundle, and its files in $D/cells/$cell were changed since: the bundle keeps the first ones"
      return "$EX_INTEGRITY"
    fi
  fi
  [[ ! -L $target ]] || { log "$target is a link, not a folder of the bundle" && return "$EX_COPY"; }
  drop_own_leftovers "$cell" || return
  sync_todo "$target"
  sync_room "$B" || return
  if ((${#TODO[@]} > 0)); then sync_files "$cell" "$D/state/$cell.sha256" || return; fi
  commit_cell "$cell"
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
  replace_file "$D/state/$cell.json" "$RECORD" soon || return
  say_bundled "$cell"
}

# The list under its name at once: nobody looks at one that has no record of its digest beside it.
write_list() { # <file>
  local REPLY
  ! read_text "$1" || [[ $REPLY != "$LIST_TEXT" ]] || return 0
  { printf '%s' "$LIST_TEXT" >"$1"; } 2>/dev/null && read_text "$1" && [[ $REPLY == "$LIST_TEXT" ]] || {
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
