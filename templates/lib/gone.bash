# lib/gone.bash: a teardown's command is run without any shell of ours reading it, and a look says whether it took effect.
# needs: exit log ssh
# reads: KIND INSTANCE, ACTION_* of load_action; ask_box of the script

put_instance() { # <words...>    sets WORDS, {instance} replaced
  local word
  WORDS=()
  for word in "$@"; do WORDS+=("${word//\{instance\}/$INSTANCE}"); done
}

# Run WORDS where the action takes place. No shell of ours reads them.
run_words() {
  if [[ $ACTION_WHERE == box && $KIND != owned ]]; then
    local COMMAND
    COMMAND=$(printf '%s\n' "${WORDS[@]}")
    ask_box run_there 60 -- COMMAND PROG --
  else
    "${WORDS[@]}" </dev/null
  fi
}
run_there() { # reads: COMMAND, a word a line
  local word
  set --
  while IFS= read -r word; do set -- "$@" "$word"; done <<<"$COMMAND"
  # A container has no shutdown, as often as not; poweroff may be there.
  if [[ ${1##*/} == shutdown ]] && ! command -v -- "$1" >/dev/null 2>&1; then set -- poweroff; fi
  command -v -- "$1" >/dev/null 2>&1 || { echo "$1 is not there" && return 69; }
  "$@" </dev/null
}
still_there() { :; }

# One look: does the platform still show it?    returns: 0 it does not, 1 it does, 2 the look itself failed
look_gone() {
  local text absent
  put_instance "$ACTION_GONE_ABSENT"
  absent=${WORDS[0]}
  put_instance "${ACTION_GONE_COMMAND[@]}"
  text=$(run_words 2>&1) || return 2
  # Whole words: pod-12 is not pod-1.
  [[ -n $absent ]] || return 2
  text=" ${text//[^A-Za-z0-9_-]/ } " absent=" ${absent//[^A-Za-z0-9_-]/ } "
  [[ $text != *"$absent"* ]]
}

await_gone() {
  local try rc
  for ((try = 0; try < 12; try++)); do
    ((try == 0)) || sleep 5
    rc=0
    look_gone || rc=$?
    case $rc in
      0) CONFIRMED=gone && return ;;
      1) CONFIRMED=present ;;
      *) CONFIRMED=unknown ;;
    esac
  done
}

# A box that was switched off from inside no longer answers; the same key answered a moment ago.
await_silence() {
  local try silent=0
  CONFIRMED=present
  for ((try = 0; try < 12; try++)); do
    sleep 5
    if ask_box still_there 30 -- PROG -- >/dev/null 2>&1; then silent=0; else silent=$((silent + 1)); fi
    ((silent < 2)) || { CONFIRMED=unreachable && return; }
  done
}

# No program can look there: the person says what they see.
ask_person() {
  local step said=''
  for step in ${ACTION_GONE_STEPS[@]+"${ACTION_GONE_STEPS[@]}"}; do say_list "then see" "$step"; done
  [[ -t 0 ]] || { log "nobody is here to say what they see" && return 0; }
  printf "Type 'gone' once you see this, anything else if you do not:\n> "
  IFS= read -r said || said=''
  if [[ $said == gone ]]; then CONFIRMED='said gone'; else [[ $CONFIRMED == unreachable ]] || CONFIRMED=unknown; fi
}
