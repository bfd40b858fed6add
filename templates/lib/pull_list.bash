# lib/pull_list.bash: the box's manifest, read as something that may be hostile, and what of it is here already.
# needs: exit log file record hash compat room
# reads: L RUN_ID; works on the parallel P_BYTES P_SUMS P_PATHS and on P_CELLS P_STATES

# Read the manifest in FILE. Each line must be one that aggregate writes; a path can only lie below final_ckpts/<cell>/.
read_manifest() { # <file>    returns: 0, or refuses 65
  local file=$1 line body bad='' name='[A-Za-z0-9][A-Za-z0-9._=,+@-]*'
  local cell='^    \{"cell": "([^"]*)", "state": "([a-z]+)", "why": "[^"]*"\},?$'
  local entry='^    \{"bytes": ([0-9]+), "sha256": "([0-9a-f]+)", "path": "([^"]*)"\},?$'
  P_BYTES=() P_SUMS=() P_PATHS=() P_CELLS=() P_STATES=() P_TOTAL=0
  read_record "$file" pull_manifest/1 "$RUN_ID" || bad='it is not a whole manifest of this run'
  if [[ -z $bad ]]; then
    M_EXPECTED=${R_cells_expected-} M_DONE=${R_cells_done-}
    body=$(sed -n -e '/^  "self_sha256": /q' -e p "$file")
    hash_text "$body"$'\n'
    [[ $REPLY == "${R_self_sha256-}" ]] || bad='it does not match its own digest'
  fi
  while [[ -z $bad ]] && IFS= read -r line; do
    if [[ $line =~ $cell ]]; then
      P_CELLS+=("${BASH_REMATCH[1]}")
      P_STATES+=("${BASH_REMATCH[2]}")
    elif [[ $line =~ $entry ]]; then
      safe_path "${BASH_REMATCH[3]}" || bad="a path in it is not below final_ckpts/: '${BASH_REMATCH[3]//[[:cntrl:]]/?}'"
      P_BYTES+=("${BASH_REMATCH[1]}")
      P_SUMS+=("${BASH_REMATCH[2]}")
      P_PATHS+=("${BASH_REMATCH[3]}")
      P_TOTAL=$((P_TOTAL + BASH_REMATCH[1]))
    elif [[ $line == '    '* ]]; then
      bad="a line of it is no entry: ${line//[[:cntrl:]]/?}"
    fi
  done <"$file"
  [[ -n $bad || ${#P_PATHS[@]} -eq ${R_files_total:-x} && ${#P_CELLS[@]} -eq ${M_EXPECTED:-x} ]] || bad='it holds fewer or more entries than it says'
  for line in ${P_CELLS[@]+"${P_CELLS[@]}"}; do
    [[ $line =~ ^$name$ && ${#line} -le 128 ]] || bad="a cell's name in it is none: '${line//[[:cntrl:]]/?}'"
  done
  [[ -z $bad ]] || refuse "$EX_INTEGRITY" "the box's PULL_MANIFEST.json" "$bad" "run aggregate_to_fs.sh on the box again, and look at what changed it"
}

# Is PATH one that we may write below L?
safe_path() { # <path>
  case $1 in
    *[[:cntrl:]]* | *\\* | *//* | */ | */. | */.. | */./* | */../*) return 1 ;;
    final_ckpts/[A-Za-z0-9]*/?*) return 0 ;;
  esac
  return 1
}

path_cell() { # <path>    the cell's name into REPLY
  REPLY=${1#final_ckpts/}
  REPLY=${REPLY%%/*}
}

# A bundle that holds less than what is here already is not the bundle that we mean.
not_shorter() {
  local cell old
  [[ -s $L/PULL_MANIFEST.json ]] || return 0
  old=$(sed -n 's/^    {"cell": "\([^"]*\)", "state": "done".*/\1/p' "$L/PULL_MANIFEST.json")
  while IFS= read -r cell; do
    [[ -n $cell ]] || continue
    in_manifest "$cell" ||
      refuse "$EX_COPY" "the box's bundle" "cell $cell was pulled before and is not done there now: wrong folder, or storage not attached" "look at the box; nothing here was changed"
  done <<<"$old"
}
in_manifest() { # <cell>    is it done there?
  local i
  for ((i = 0; i < ${#P_CELLS[@]}; i++)); do
    [[ ${P_CELLS[i]} != "$1" || ${P_STATES[i]} != 'done' ]] || return 0
  done
  return 1
}

# Can the target hold these names? Two that differ in case only, colons, names too long: found by trying, before any transfer.
probe_target() {
  local dir=$L/.partial/probe path part folded fold_case=false seen=$'\n' shown
  rm -rf -- "${dir:?}"
  mkdir -p -- "$dir" || refuse "$EX_NOROOM" "$dir" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
  : >"$dir/case-Aa"
  [[ ! -e $dir/CASE-aA ]] || fold_case=true
  for path in ${P_PATHS[@]+"${P_PATHS[@]}"}; do
    if [[ $fold_case == true ]]; then
      folded=$(printf '%s' "$path" | tr '[:upper:]' '[:lower:]')
      [[ $seen != *$'\n'"$folded"$'\n'* ]] ||
        refuse "$EX_GATE" "$L" "its file system takes upper and lower case as one, and the bundle has two files named $path" "set LOCAL_DIR to a case-sensitive volume"
      seen+=$folded$'\n'
    fi
    [[ ! $path =~ ^[A-Za-z0-9._/=,+@-]*$ || ${#path} -gt 150 || $path == *./* || $path == *. ]] || continue
    part=$path
    # The same depth and the same names, in a folder of its own.
    if ! mkdir -p -- "$dir/${part%/*}" 2>/dev/null || ! { : >"$dir/$part"; } 2>/dev/null || ! shown=$(ls -a -- "$dir/${part%/*}") ||
      [[ $'\n'$shown$'\n' != *$'\n'"${part##*/}"$'\n'* ]]; then
      refuse "$EX_GATE" "$L" "its file system cannot hold the name $path" "set LOCAL_DIR to a volume that can"
    fi
  done
  rm -rf -- "${dir:?}"
}

# A file here with this digest? Digests of earlier are kept by size, inode and times.
have_file() { # <path> <sha256>
  local REPLY stamp
  file_stamp "$L/$1" || return 1
  stamp=$REPLY
  case $'\n'$VERIFIED in
    *$'\n'"$2 $stamp $1"$'\n'*) return 0 ;;
  esac
  if ! hash_file "$L/$1" || [[ $REPLY != "$2" ]]; then
    log "$L/$1 is here, but not what the manifest says (changed there, or damaged here): fetched anew"
    return 1
  fi
  remember "$1" "$2" "$stamp"
}
remember() { # <path> <sha256> <stamp>
  VERIFIED+="$2 $3 $1"$'\n'
  printf '%s %s %s\n' "$2" "$3" "$1" >>"$L/.partial/verified" || :
}

# Which files are still to come, of all or of one cell: indices into TODO, bytes into TODO_BYTES.
find_todo() { # <cell or empty>
  local REPLY i
  TODO=() TODO_BYTES=0 VERIFIED=''
  [[ ! -f $L/.partial/verified ]] || VERIFIED=$(<"$L/.partial/verified")$'\n'
  for ((i = 0; i < ${#P_PATHS[@]}; i++)); do
    path_cell "${P_PATHS[i]}"
    [[ -z $1 || $REPLY == "$1" ]] || continue
    if have_file "${P_PATHS[i]}" "${P_SUMS[i]}"; then continue; fi
    TODO+=("$i")
    TODO_BYTES=$((TODO_BYTES + P_BYTES[i]))
  done
}

# Room on the laptop for what is to come, less what of it lies in .partial already.
pull_room() {
  local REPLY i have=0 free
  for i in ${TODO[@]+"${TODO[@]}"}; do
    if file_bytes "$L/.partial/files/${P_PATHS[i]}" && ((REPLY <= P_BYTES[i])); then have=$((have + REPLY)); fi
  done
  free_bytes "$L" && [[ -n $REPLY ]] || return 0
  free=$REPLY
  ((TODO_BYTES - have + 1048576 <= free)) ||
    refuse "$EX_NOROOM" "$L" "$((TODO_BYTES - have)) bytes are to come and $free are free" "make room, or set LOCAL_DIR to a larger disk, and run this again"
}
