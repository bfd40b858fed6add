# lib/evidence.bash: has a cell really left what it was to leave? Exit 0 alone proves nothing.
# needs: exit log
# reads: CELL_DIR REQUIRED

# Is everything required there, non-empty, inside the cell's own folder, and does no result say {"ok": false}?
# The folder began empty with this run, so what lies in it was written by this attempt or by the one that it resumed.
has_evidence() { # returns: 0, or 1 with the reason in REPLY
  local item path real home
  local -a results=()
  REPLY=''
  for item in "${REQUIRED[@]}"; do
    path=$CELL_DIR/${item%/}
    if [[ -L $path ]]; then
      # A link may lead inside the folder (best -> epoch 7), not to somebody else's file.
      home=$(readlink -f -- "$CELL_DIR") && real=$(readlink -f -- "$path") || real=''
      [[ -n $real && $real == "$home"/* ]] || { REPLY="$item is a link that leads out of the cell's folder" && return 1; }
    fi
    if [[ -d $path ]]; then
      [[ -n $(find -L "$path" -type f -size +0 -print 2>/dev/null | head -n 1) ]] || { REPLY="$item holds no file that is not empty" && return 1; }
    elif [[ ! -e $path ]]; then
      REPLY="$item is not there" && return 1
    elif [[ ! -f $path ]]; then
      REPLY="$item is not a file" && return 1
    elif [[ ! -s $path ]]; then
      REPLY="$item is empty" && return 1
    fi
    [[ $path != *.json || ! -f $path ]] || results+=("$path")
  done
  for path in ${results[@]+"${results[@]}"}; do
    # Small files without a process; a result is rarely large.
    real=''
    IFS= read -r -d '' -n 200000 real <"$path" || :
    if [[ ${#real} -lt 200000 ]]; then
      [[ $real =~ \"ok\"[[:space:]]*:[[:space:]]*false ]] || continue
    else
      grep -qE '"ok"[[:space:]]*:[[:space:]]*false' -- "$path" || continue
    fi
    REPLY="${path##*/} says 'ok': false"
    return 1
  done
}

# What is there of the evidence, without a word: a cell that has it all and does not end is stuck, not slow.
looks_complete() {
  local REPLY
  ((${#REQUIRED[@]} > 0)) && has_evidence
}

# Is no required item a folder?
names_files() {
  local item
  for item in "${REQUIRED[@]}"; do [[ ! -d $CELL_DIR/$item ]] || return 1; done
}
