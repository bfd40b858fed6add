# lib/tree.bash: a process and all that came from it, by identity: number and start time.
# needs: proc

# TREE_IDS ("pid ticks", parents first) and TREE_LINES for people, from ROOT down. Empty where ROOT is gone.
process_tree() { # <root pid>
  local dir pid stat fields next=("$1") more
  local -A kids=() ticks=() comm=()
  TREE_IDS=() TREE_LINES=()
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/}
    { IFS= read -r stat <"$dir/stat"; } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[0]-} != [ZX] ]] || continue
    kids[${fields[1]}]+=" $pid"
    ticks[$pid]=${fields[19]-0}
    stat=${stat#*(}
    comm[$pid]="parent ${fields[1]}, ${stat%)*}"
  done
  while ((${#next[@]} > 0)); do
    more=()
    for pid in "${next[@]}"; do
      [[ -n ${ticks[$pid]-} ]] || continue
      TREE_IDS+=("$pid ${ticks[$pid]}")
      TREE_LINES+=("process $pid, ${comm[$pid]}")
      # shellcheck disable=SC2206 # numbers with blanks between
      more+=(${kids[$pid]-})
    done
    next=(${more[@]+"${more[@]}"})
  done
}

# Those of the tree that stand still (SIGSTOP, Ctrl-Z), into TREE_STILL: they act on no signal until they are told to go on.
find_still() {
  local id stat
  TREE_STILL=()
  for id in ${TREE_IDS[@]+"${TREE_IDS[@]}"}; do
    { IFS= read -r stat <"/proc/${id% *}/stat"; } 2>/dev/null || continue
    if [[ ${stat##*) } == T\ * ]] && same_process "${id% *}" "${id#* }"; then TREE_STILL+=("${id% *}"); fi
  done
}
wake_tree() {
  find_still
  ((${#TREE_STILL[@]} == 0)) || kill -CONT "${TREE_STILL[@]}" 2>/dev/null || :
}

# Is any process of the tree still there? TREE_LEFT holds those that are.
tree_alive() {
  local id
  TREE_LEFT=()
  for id in ${TREE_IDS[@]+"${TREE_IDS[@]}"}; do
    ! same_process "${id% *}" "${id#* }" || TREE_LEFT+=("$id")
  done
  ((${#TREE_LEFT[@]} > 0))
}
