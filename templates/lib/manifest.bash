# lib/manifest.bash: the bundle as a whole: every file of every record looked at, SHA256SUMS, PULL_MANIFEST.json.
# needs: exit log file record hash hashes bundle carry
# reads: D B RUN_ID RUN_COMMIT; works on CELL_NAMES, CELL_STATE[cell], CELL_WHY[cell] and the parallel FILE_SUMS FILE_PATHS

# A cell as it is to be listed. Its why becomes fit for a record.
set_cell() { # <cell> <state> <why>
  local REPLY
  record_fit "$3"
  CELL_STATE[$1]=$2
  CELL_WHY[$1]=$REPLY
}

# What the manifest that stands there says of cells and files, into OLD_CELLS and OLD_FILES ("bytes sha256 path").
# A cell that was once listed is never forgotten, also where its record is gone.
read_old_manifest() {
  local line item='^ {4}\{"(cell|bytes)": (.*)\},?$'
  OLD_CELLS=() OLD_FILES=()
  read_record "$B/PULL_MANIFEST.json" pull_manifest/1 "$RUN_ID" || return 0
  while IFS= read -r line; do
    [[ $line =~ $item ]] || continue
    line=${BASH_REMATCH[2]}
    if [[ ${BASH_REMATCH[1]} == cell && $line =~ ^\"([^\"]+)\",\ \"state\":\ \"([a-z]+)\" ]]; then
      OLD_CELLS+=("${BASH_REMATCH[1]}")
    elif [[ $line =~ ^([0-9]+),\ \"sha256\":\ \"([0-9a-f]{64})\",\ \"path\":\ \"([^\"]+)\"$ ]]; then
      OLD_FILES+=("${BASH_REMATCH[1]} ${BASH_REMATCH[2]} ${BASH_REMATCH[3]}")
    fi
  done <"$B/PULL_MANIFEST.json"
}

# One record's digest list into FILE_SUMS and FILE_PATHS.
take_list() { # <cell>    returns: 1 where a line is not one that we write
  local line
  while IFS= read -r line; do
    [[ $line =~ ^([0-9a-f]{64})\ \ ([^/].*)$ && /$line/ != *'/../'* && ! ${line:66} =~ ^\.\.(/|$) ]] || return 1
    FILE_SUMS+=("${line:0:64}")
    FILE_PATHS+=("final_ckpts/$1/${line:66}")
  done <"$B/records/$1.sha256"
}

# The lists of all records that hold, in C order of the cells; and what an earlier manifest has of cells without one.
take_lists() {
  local cell sorted old path
  FILE_SUMS=() FILE_PATHS=() FILE_BYTES=()
  sorted=$(printf '%s\n' "${CELL_NAMES[@]}" | LC_ALL=C sort) || return "$EX_COPY"
  while IFS= read -r cell; do
    if [[ -e $B/records/$cell.json && -s $B/records/$cell.sha256 ]]; then
      take_list "$cell" || { log "$B/records/$cell.sha256 is not a digest list" && return "$EX_INTEGRITY"; }
    else
      for old in ${OLD_FILES[@]+"${OLD_FILES[@]}"}; do
        path=${old#* * }
        [[ $path == "final_ckpts/$cell/"* ]] || continue
        FILE_SUMS+=("${old:$((${#old} - ${#path} - 65)):64}")
        FILE_PATHS+=("$path")
      done
    fi
  done <<<"$sorted"
}

# Digests that were taken before and still hold, by size, inode and both times, into CACHE["path|stat"].
read_cache() { # <file>
  local line
  declare -gA CACHE
  CACHE=()
  [[ -f $1 ]] || return 0
  while IFS= read -r line; do
    if [[ $line =~ ^[0-9a-f]{64}\  ]]; then CACHE[${line:65}]=${line:0:64}; fi
  done <"$1"
}

# Look at every file of FILE_PATHS: what is unchanged since its last digest is not read again, unless REHASH is true.
# Sets FILE_BYTES, and BAD[path] for each that is not what its record says.
verify_files() { # <cache file> <rehash: true or false>
  local i path key stat text=''
  local -a full=() miss=()
  local -A held=()
  declare -gA BAD
  BAD=() FILE_BYTES=()
  if [[ $2 == true ]]; then rm -f -- "$1"; fi
  read_cache "$1"
  for path in ${FILE_PATHS[@]+"${FILE_PATHS[@]}"}; do full+=("$B/$path"); done
  stat_many ${full[@]+"${full[@]}"}
  for path in ${full[@]+"${full[@]}"}; do
    key="$path|${STAT_OF[$path]-}"
    if [[ -z ${STAT_OF[$path]-} || ! -f $path || -L $path ]]; then
      BAD[$path]="it is not there"
    elif [[ -n ${CACHE[$key]-} ]]; then
      held[$path]=${CACHE[$key]}
    else
      miss+=("$path")
    fi
  done
  if [[ $2 == true ]]; then forget_cached ${miss[@]+"${miss[@]}"}; fi
  hash_many ${miss[@]+"${miss[@]}"} || :
  for ((i = 0; i < ${#full[@]}; i++)); do
    path=${full[i]}
    key=${held[$path]-${SUM_OF[$path]-}}
    stat=${STAT_OF[$path]-}
    FILE_BYTES+=("${stat%%|*}")
    [[ -n ${BAD[$path]-} || $key == "${FILE_SUMS[i]}" ]] || BAD[$path]="its digest is ${key:-not to be had}"
    if [[ -z ${BAD[$path]-} ]]; then text+="$key $path|$stat"$'\n'; fi
  done
  replace_file "$1" "$text" || :
}

# Bytes that an earlier manifest gave for a file that is not there now.
old_bytes() { # <path>    into REPLY
  local old
  for old in ${OLD_FILES[@]+"${OLD_FILES[@]}"}; do
    if [[ ${old#* * } == "$1" ]]; then REPLY=${old%% *} && return 0; fi
  done
  REPLY=0
}

write_sums() {
  local i text=''
  for ((i = 0; i < ${#FILE_PATHS[@]}; i++)); do text+="${FILE_SUMS[i]}  ${FILE_PATHS[i]}"$'\n'; done
  replace_file "$B/SHA256SUMS" "$text"
}

# A list in a record's shape: the members are whole lines.
record_list() { # <name> <lines with their commas>
  RECORD+=,$'\n''  "'$1'": ['$'\n'"$2"'  ]'
}

# The manifest, its own digest last, written and read back.
write_manifest() { # <cells expected> <cells done>
  local REPLY i cell cells='' files='' bytes=0 comma body
  record_open pull_manifest/1
  record_text run_id "$RUN_ID"
  record_text commit "$RUN_COMMIT"
  record_int cells_expected "$1" || return
  record_int cells_done "$2" || return
  comma=''
  for cell in "${CELL_NAMES[@]}"; do
    cells+="$comma    {\"cell\": \"$cell\", \"state\": \"${CELL_STATE[$cell]}\", \"why\": \"${CELL_WHY[$cell]}\"}"
    comma=,$'\n'
  done
  comma=''
  for ((i = 0; i < ${#FILE_PATHS[@]}; i++)); do
    REPLY=${FILE_BYTES[i]}
    [[ -n $REPLY ]] || old_bytes "${FILE_PATHS[i]}"
    files+="$comma    {\"bytes\": $REPLY, \"sha256\": \"${FILE_SUMS[i]}\", \"path\": \"${FILE_PATHS[i]}\"}"
    comma=,$'\n'
    bytes=$((bytes + REPLY))
  done
  record_int files_total "${#FILE_PATHS[@]}" || return
  record_int bytes_total "$bytes" || return
  record_list cells "$cells"$'\n'
  record_list files "${files:+$files$'\n'}"
  body=$RECORD,$'\n'
  hash_text "$body" || return "$EX_COPY"
  RECORD=$body'  "self_sha256": "'$REPLY'"'
  record_close
  replace_file "$B/PULL_MANIFEST.json" "$RECORD" || return
  hash_text "$RECORD" || return "$EX_COPY"
  body=$REPLY
  hash_file "$B/PULL_MANIFEST.json" && [[ $REPLY == "$body" ]] || { log "$B/PULL_MANIFEST.json does not read back" && return "$EX_COPY"; }
  MANIFEST_DIGEST=$body
}
