# lib/gone.bash: a teardown's command is run without any shell of ours reading it, and a look says whether it took effect.
# needs: exit log file ssh
# reads: KIND INSTANCE L VERB ACT DIGEST ACCEPTED LOOKED_AGAIN, ACTION_* of load_action; ask_box and say_list of the script

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
  if [[ -n $ACTION_GONE_ANSWER ]]; then
    # This tool ends with 0 where it failed, too: only what begins so is an answer.
    text=$(run_words 2>/dev/null) || return 2
    [[ $text == "$ACTION_GONE_ANSWER"* ]] || return 2
  else
    text=$(run_words 2>&1) || return 2
  fi
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
  if ((${#ACTION_GONE_COMMAND[@]} > 0)); then
    put_instance "${ACTION_GONE_COMMAND[@]}"
    say_list "then see" "${WORDS[*]}: ${ACTION_GONE_ANSWER:+it begins with $ACTION_GONE_ANSWER, and }${ACTION_GONE_ABSENT//\{instance\}/$INSTANCE} is no longer in it"
  fi
  [[ -t 0 ]] || { log "nobody is here to say what they see" && return 0; }
  printf "Type 'gone' once you see this, anything else if you do not:\n> "
  IFS= read -r said || said=''
  if [[ $said == gone ]]; then CONFIRMED='said gone'; else [[ $CONFIRMED == unreachable ]] || CONFIRMED=unknown; fi
}

# When the platform deletes what the verb leaves, into DEADLINE; empty where no limit is known.
find_deadline() {
  local then_s
  DEADLINE=''
  [[ $ACTION_RETENTION_DAYS =~ ^[1-9][0-9]*$ ]] || return 0
  then_s=$(($(date +%s) + ACTION_RETENTION_DAYS * 86400))
  DEADLINE=$(date -u -d "@$then_s" +%Y-%m-%dT%H:%M:%SZ 2>/dev/null) || DEADLINE=$(date -u -r "$then_s" +%Y-%m-%dT%H:%M:%SZ) || DEADLINE=''
}

# One line in L/teardown.jsonl, read back.
write_line() { # <ran: true or false> <confirmed>
  local line REPLY deadline=null
  utc_now
  [[ -z $DEADLINE ]] || deadline="\"$DEADLINE\""
  line="{\"time\": \"$REPLY\", \"verb\": \"$VERB\", \"instance\": \"$INSTANCE\", \"manifest_sha256\": \"${DIGEST:-nothing}\", \"ran\": $1, \"confirmed\": \"$2\", \"deadline\": $deadline${ACCEPTED:+, \"accepted\": [$ACCEPTED]}}"
  mkdir -p -- "$L" || return "$EX_COPY"
  { printf '%s\n' "$line" >>"$L/teardown.jsonl"; } 2>/dev/null || return "$EX_COPY"
  flush "$L/teardown.jsonl"
  [[ $(tail -n 1 "$L/teardown.jsonl") == "$line" ]] || return "$EX_COPY"
}

# Did this gate see this very thing end before, with this very bundle?
recorded_gone() { # <verb>
  local line="\"verb\": \"$1\", \"instance\": \"$INSTANCE\", \"manifest_sha256\": \"${DIGEST:-nothing}\", \"ran\": true, \"confirmed\":"
  grep -qF -e "$line \"gone\"" -e "$line \"said gone\"" "$L/teardown.jsonl" 2>/dev/null
}

# Nobody answers there: was the box seen to go, or to stop, by this gate, with this very bundle? What can be looked at is looked
# at again now, for a stopped box may have been started since.
known_gone() {
  local verb=$VERB one rc
  for one in "${ACTION_VERBS[@]}"; do
    if [[ $one == "$verb" ]] || ! recorded_gone "$one"; then continue; fi
    load_action "$one"
    rc=0
    if [[ $one != "$METER_STOP" && $ACTION_LIKE != stop && $ACTION_LIKE != destroy ]]; then
      rc=1
    elif ((${#ACTION_GONE_COMMAND[@]} > 0)) && [[ $ACTION_WHERE != box ]]; then
      look_gone || rc=1
    else
      look_again "$one" || rc=1
    fi
    load_action "$verb"
    ((rc != 0)) || { log "the box does not answer; $L/teardown.jsonl has '$one' of it with this very bundle, confirmed" && return 0; }
  done
  return 1
}

# A stop that no program can look at is known by a person's word alone, and a box may have been started since: the word is
# asked for again, once, before anything is done.
look_again() { # <verb of the past>    returns: 0 the person sees it now; without --run: it is only announced
  local step said=''
  [[ $LOOKED_AGAIN == false ]] || return 0
  if [[ $ACT != true ]]; then
    log "no program can see that '$1' still holds: with --run you are asked to look again"
    return 0
  fi
  [[ -t 0 ]] || { log "no program can see that '$1' still holds, and nobody is here to look again" && return 1; }
  for step in ${ACTION_GONE_STEPS[@]+"${ACTION_GONE_STEPS[@]}"}; do say_list "look again" "$step"; done
  printf "Type 'gone' if you see now that it was not started since '%s':\n> " "$1"
  IFS= read -r said || said=''
  [[ $said == gone ]] || return 1
  LOOKED_AGAIN=true
}
