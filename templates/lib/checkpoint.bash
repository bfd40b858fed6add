# lib/checkpoint.bash: the newest complete checkpoint of a cell that is resumed (case 35), where the job says what complete means.
# needs:
# reads: CELL_DIR CKPT_PATTERN CKPT_FILES CKPT_MARKER CKPT_BYTES

# Its path into CELL_CHECKPOINT, empty where none is complete. What is not complete is named and left alone: nothing is moved
# or removed, for a trainer may know better. Newest is by the numbers in the name, 10 behind 9; without any, by time.
choose_checkpoint() { # prints
  local REPLY path key best='' IFS=
  CELL_CHECKPOINT=''
  # shellcheck disable=SC2231 # the pattern is to expand; IFS is empty, so a blank in it does not split
  for path in "$CELL_DIR"/$CKPT_PATTERN; do
    [[ -e $path && ! -L $path ]] || continue
    case $path in *.tmp | *.part | *.partial) continue ;; esac
    [[ -z $CKPT_MARKER || $path != *"$CKPT_MARKER" ]] || continue
    if ! is_complete "$path"; then
      printf 'gpu-runbook: checkpoint %s is not complete: %s; left alone\n' "${path#"$CELL_DIR"/}" "$REPLY"
      continue
    fi
    number_key "${path#"$CELL_DIR"/}"
    key=$REPLY
    if [[ -z $CELL_CHECKPOINT || $key > $best ]] || [[ $key == "$best" && $path -nt $CELL_CHECKPOINT ]]; then
      CELL_CHECKPOINT=$path best=$key
    fi
  done
  [[ -z $CELL_CHECKPOINT ]] || printf 'gpu-runbook: newest complete checkpoint: %s\n' "${CELL_CHECKPOINT#"$CELL_DIR"/}"
}

# All that the job says of a complete one holds; else the reason is in REPLY.
is_complete() { # <path>
  local name
  REPLY=''
  if [[ ! -d $1 ]]; then
    [[ -s $1 ]] || { REPLY='it is empty' && return 1; }
  fi
  [[ -z $CKPT_MARKER || -e $1$CKPT_MARKER || -d $1 && -e $1/$CKPT_MARKER ]] || { REPLY="there is no $CKPT_MARKER" && return 1; }
  for name in ${CKPT_FILES[@]+"${CKPT_FILES[@]}"}; do
    [[ -s $1/$name ]] || { REPLY="$name is missing or empty" && return 1; }
  done
  if ((CKPT_BYTES > 0)); then
    REPLY=$(find "$1" -type f -exec stat -c %s {} + 2>/dev/null | awk '{s += $1} END {printf "%.0f", s}') || REPLY=0
    ((REPLY >= CKPT_BYTES)) || { REPLY="$REPLY bytes, less than $CKPT_BYTES" && return 1; }
  fi
}

# The numbers in a name, each with leading zeros, so that text compares as numbers do. Into REPLY.
number_key() { # <name>
  local rest=$1 digits
  REPLY=''
  while [[ $rest =~ [0-9]+ ]]; do
    rest=${rest#*"${BASH_REMATCH[0]}"} digits=${BASH_REMATCH[0]}
    while [[ $digits == 0?* ]]; do digits=${digits#0}; done
    ((${#digits} >= 20)) || printf -v digits '%*s' 20 "$digits"
    REPLY+=${digits// /0}.
  done
}
