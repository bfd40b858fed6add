# lib/results.bash: a cell's result files: which they are, what they weigh, their digests.
# needs: exit log file hash hashes
# reads: D REQUIRED

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

# A cell's results and their sizes in one look, into LIST_PATHS LIST_FULL LIST_SEEN LIST_SIZES LIST_BYTES; LOOKED_AT names the cell.
look_cell() { # <cell>    returns: 0, 65, or 74 (missing, unreadable)
  begin_look "$1" && end_look "$1"
}
begin_look() { # <cell>
  local path
  LOOKED_AT='' LIST_FULL=()
  list_paths "$D/cells/$1" || return
  for path in "${LIST_PATHS[@]}"; do LIST_FULL+=("$D/cells/$1/$path"); done
  begin_stat "${LIST_FULL[@]}"
}
end_look() { # <cell>
  local path line
  LIST_SEEN=() LIST_SIZES=() LIST_BYTES=0
  end_stat
  for path in "${LIST_FULL[@]}"; do
    line=${STAT_OF[$path]-}
    [[ -n $line ]] || { log "$path went away" && return "$EX_COPY"; }
    LIST_SEEN+=("$line")
    LIST_SIZES+=("${line%%|*}")
    LIST_BYTES=$((LIST_BYTES + ${line%%|*}))
  done
  LOOKED_AT=$1
}

# Digests of a cell's results, taken at the source, into D/state/<cell>.sha256 and LIST_TEXT LIST_SUMS, beside what look_cell sets.
# LIST_DIGEST is the list's own, empty until somebody needs it (list_digest) or it comes with the read-back.
# In two halves: the tool runs beside us, while something else is done.
begin_list() { # <cell>    returns: 0, 65, or 74 (missing, unreadable)
  [[ ${LOOKED_AT-} == "$1" ]] || look_cell "$1" || return
  # A look serves once: the next one is to see what has come since.
  LOOKED_AT=''
  begin_hash "${LIST_FULL[@]}"
}
end_list() { # <cell>    returns: 0, or 74 (unreadable, or still being written)
  local cell=$1 path i
  LIST_SUMS=() LIST_TEXT='' LIST_DIGEST=''
  # What is wrong from here on lies in what this cell has left; no other cell's copy has to do with it.
  OWN_FAULT=1
  end_hash || { log "a result of cell $cell cannot be read" && return "$EX_COPY"; }
  ((LIST_BYTES < SMALL_BYTES)) || stat_many "${LIST_FULL[@]}"
  for ((i = 0; i < ${#LIST_FULL[@]}; i++)); do
    path=${LIST_FULL[i]}
    [[ ${STAT_OF[$path]-} == "${LIST_SEEN[i]}" ]] || { log "$path is still being written" && return "$EX_COPY"; }
    LIST_SUMS+=("${SUM_OF[$path]}")
    LIST_TEXT+="${SUM_OF[$path]}  ${LIST_PATHS[i]}"$'\n'
  done
  # shellcheck disable=SC2034 # of sync_cell
  OWN_FAULT=''
  # The commit takes the list from here and a repeated sync takes new digests: from the file only its own digest is taken.
  put_text "$D/state/$cell.sha256" "$LIST_TEXT" || { log "could not write $D/state/$cell.sha256" && return "$EX_COPY"; }
}
list_digest() { # into LIST_DIGEST
  local REPLY
  [[ -z $LIST_DIGEST ]] || return 0
  hash_text "$LIST_TEXT" || return "$EX_COPY"
  LIST_DIGEST=$REPLY
}
