# lib/data.bash: declared data: counted, weighed, compared with declared digests (X7); and whether two paths share a disk.
# needs: exit log room proc hash hashes
# reads: D CODE_DIR HF_HOME DATA_PATHS DATA_FILES DATA_SIZES DATA_SUMS DATA_LISTS DATA_UNDER MIRRORS

# Where declared data lie, into REPLY.
data_place() { # <index>
  local base=$CODE_DIR path=${DATA_PATHS[$1]%/}
  if [[ ${DATA_UNDER[$1]-} == hf_home ]]; then
    [[ -n ${HF_HOME-} ]] || refuse "$EX_CONFIG" "data $path" "it is declared under HF_HOME, which is empty here" "set HF_HOME to the folder that the hub's library uses"
    base=$HF_HOME
  fi
  REPLY=$base/$path
  [[ $path != /* ]] || REPLY=$path
}

# How to get them again, into REPLY. What came through a mirror may be another revision.
data_remedy() { # <index>
  if [[ ${DATA_UNDER[$1]-} != hf_home ]]; then
    REPLY='push.sh --data again, or correct the job'
  elif [[ -n ${MIRRORS[*]-} ]]; then
    REPLY="remove it and fetch the revision again, without the mirror (${MIRRORS[*]}) where that goes on, or correct the job"
  else
    REPLY='remove it and fetch the revision again, or correct the job'
  fi
}

# Files, bytes and empty files of a data path, following links. DATA_N DATA_BYTES DATA_EMPTY.
count_data() { # <path>
  local said
  DATA_N='' DATA_BYTES='' DATA_EMPTY=''
  # One line a file, whatever its name holds.
  said=$(find -L "$1" -type f -exec sh -c 'for f; do [ -s "$f" ] && echo 1 || echo 0; done' sh {} + 2>/dev/null |
    awk '{n++; if ($1 == 0) e++} END {printf "%d %d", n, e}') || return 1
  DATA_N=${said% *} DATA_EMPTY=${said#* }
  said=$(du -skL -- "$1" 2>/dev/null) || return 1
  DATA_BYTES=$((${said%%[[:space:]]*} * 1024))
}

# Compare declared data with its declared size and digests. The digests are read once: a receipt with size, inode and times of
# each file stands for them until one of these changes, or another box looks. HOW is now; look, which leaves no receipt; or
# known: then files that no receipt stands for are not read. Sets PROOF_SAID; where it does not hold PROOF_WHAT and PROOF_WHY.
prove_data() { # <index> <now|look|known>    returns: 0, 1 it does not hold, 2 not compared yet (known only)
  local REPLY place text receipt=$D/data/$1.proof
  PROOF_SAID='' PROOF_WHAT='' PROOF_WHY=''
  data_place "$1"
  place=$REPLY
  PROOF_WHAT="data $place" PROOF_PATHS=() PROOF_SUMS=() PROOF_AT=()
  if [[ -n ${DATA_LISTS[$1]} ]]; then
    read_data_list "$1" "$place" || return 1
  elif [[ -n ${DATA_SUMS[$1]} ]]; then
    [[ -f $place ]] || { PROOF_WHY='it is not there, or no file' && return 1; }
    PROOF_PATHS=("$place") PROOF_SUMS=("${DATA_SUMS[$1]}") PROOF_AT=("the job's sha256")
  else
    prove_size "$1" "$place"
    return
  fi
  stat_data "$1" "$place" || return 1
  text=$REPLY
  # A receipt that is not whole is none.
  if [[ -f $receipt && $(<"$receipt") == "${text%$'\n'}" ]]; then
    PROOF_SAID="${#PROOF_PATHS[@]} digests as compared before"
    return 0
  fi
  [[ $2 != known ]] || return 2
  hash_data || return 1
  PROOF_SAID="${#PROOF_PATHS[@]} digests compared"
  [[ $2 == now ]] || return 0
  # Without it the next one reads them again.
  { mkdir -p -- "$D/data" && printf '%s' "$text" >"$receipt"; } 2>/dev/null || log "could not write $receipt"
}

# The manifest's lines. A line that is none, a name twice, or one that leads outside makes the whole list worth nothing.
read_data_list() { # <index> <place>
  local list=$CODE_DIR/${DATA_LISTS[$1]} line name n=0
  local -A seen=()
  [[ ${DATA_UNDER[$1]-} != hf_home || -e $list ]] || list=$HF_HOME/${DATA_LISTS[$1]}
  PROOF_WHAT="manifest $list"
  [[ -f $list && -r $list ]] || { PROOF_WHY='it is not there, or cannot be read' && return 1; }
  while IFS= read -r line || [[ -n $line ]]; do
    n=$((n + 1)) line=${line%$'\r'}
    [[ -n $line && $line != '#'* ]] || continue
    PROOF_WHY="line $n is not 64 hex digits, two characters and a name below ${DATA_PATHS[$1]}"
    [[ $line =~ ^[0-9a-f]{64}\ [\ *](.+)$ ]] || return 1
    name=${BASH_REMATCH[1]#./}
    case /$name/ in *[[:cntrl:]\\]* | */../* | */./* | *//*) return 1 ;; esac
    [[ -z ${seen[$name]-} ]] || { PROOF_WHY="line $n names $name, as line ${seen[$name]} does" && return 1; }
    seen[$name]=$n
    PROOF_PATHS+=("$2/$name") PROOF_SUMS+=("${line:0:64}") PROOF_AT+=("$list:$n")
  done <"$list"
  PROOF_WHY="it lists ${#PROOF_PATHS[@]} files, the job says ${DATA_FILES[$1]}"
  [[ ${#PROOF_PATHS[@]} == "${DATA_FILES[$1]}" ]] || return 1
  PROOF_WHY=''
}

# Are all there, and as heavy as the job says? The receipt's text into REPLY.
stat_data() { # <index> <place>
  local i host bytes=0 text
  this_host
  host=$REPLY
  stat_many "${PROOF_PATHS[@]}"
  text="data/1 $host ${#PROOF_PATHS[@]} $2"$'\n'
  for ((i = 0; i < ${#PROOF_PATHS[@]}; i++)); do
    REPLY=${STAT_OF[${PROOF_PATHS[i]}]-}
    [[ -n $REPLY ]] || { PROOF_WHAT="data ${PROOF_PATHS[i]}" PROOF_WHY="it is not there, and ${PROOF_AT[i]} names it" && return 1; }
    bytes=$((bytes + ${REPLY%%|*}))
    text+="${PROOF_SUMS[i]}|$REPLY|${PROOF_PATHS[i]}"$'\n'
  done
  # shellcheck disable=SC2034 # only preflight asks how much it is
  PROOF_BYTES=$bytes
  PROOF_WHAT="data $2"
  PROOF_WHY="it has $bytes bytes, the job expects ${DATA_SIZES[$1]}"
  [[ -z ${DATA_SIZES[$1]} || ${DATA_SIZES[$1]} == "$bytes" ]] || return 1
  PROOF_WHY='' REPLY=$text
}

# Read them all and compare.
hash_data() {
  local i found bad=0
  hash_many "${PROOF_PATHS[@]}" || :
  for ((i = 0; i < ${#PROOF_PATHS[@]}; i++)); do
    found=${SUM_OF[${PROOF_PATHS[i]}]-}
    [[ $found != "${PROOF_SUMS[i]}" ]] || continue
    bad=$((bad + 1))
    ((bad == 1)) || continue
    PROOF_WHAT="data ${PROOF_PATHS[i]}"
    PROOF_WHY="${PROOF_AT[i]} expects ${PROOF_SUMS[i]}, found ${found:-nothing: it cannot be read}"
  done
  ((bad == 0)) || PROOF_WHY+=" ($bad of ${#PROOF_PATHS[@]} files differ)"
  ((bad == 0))
}

# Size alone: of all files below, links followed.
prove_size() { # <index> <place>
  local sum
  [[ -n ${DATA_SIZES[$1]} ]] || return 0
  sum=$(find -L "$2" -type f -exec stat -L -c %s {} + 2>/dev/null | awk '{s += $1} END {printf "%.0f", s}') || sum='an unknown number of'
  PROOF_WHY="it has $sum bytes, the job expects ${DATA_SIZES[$1]}"
  [[ $sum == "${DATA_SIZES[$1]}" ]] || return 1
  # shellcheck disable=SC2034 # run_one does not say what holds
  PROOF_WHY='' PROOF_SAID="$sum bytes"
}

# Declared data is there, before each cell: how many files it holds the formal gates count once. What has no digest costs no
# process where it is a file.
gate_inputs() {
  local REPLY i place
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    data_place "$i"
    place=$REPLY
    data_remedy "$i"
    [[ -e $place ]] || refuse "$EX_GATE" "data $place" "it is not there" "$REPLY, or link it there"
    [[ ! -d $place || -n $(find -L "$place" -mindepth 1 -print 2>/dev/null | head -n 1) ]] || refuse "$EX_GATE" "data $place" "the folder is empty" "$REPLY"
    gate_proof "$i"
  done
}
gate_proof() { # <index>    refuses 77
  local REPLY
  prove_data "$1" now && return 0
  data_remedy "$1"
  refuse "$EX_GATE" "$PROOF_WHAT" "$PROOF_WHY" "$REPLY"
}

# Before cells start side by side: the digests are read once, not by each of them. What does not hold, run_one refuses.
prove_ahead() {
  local i
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    [[ -n ${DATA_SUMS[i]}${DATA_LISTS[i]} ]] || continue
    prove_data "$i" now || log "$PROOF_WHAT: $PROOF_WHY"
  done
}

# Do two paths lie on one file system? Where that cannot be told, yes: the careful answer for room.
same_disk() { # <path> <path>
  local one two
  existing_parent "$1"
  one=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  existing_parent "$2"
  two=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  [[ $one == "$two" ]]
}
