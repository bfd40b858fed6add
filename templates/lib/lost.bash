# lib/lost.bash: what a teardown's verb takes along that is in no verified bundle. A person sees it, or the gate stays shut.
# needs: exit log
# reads: VERB INSTANCE KIND L HOST DATA_DIR DURABLE_DIR DATA_TIER DURABLE_TIER ACTION_LOST, ON_BOX and LEFT of judge_look; say_list of the script

lost() { # <tier>    returns: 0 where the verb loses it
  local tier
  for tier in ${ACTION_LOST[@]+"${ACTION_LOST[@]}"}; do [[ $tier != "$1" ]] || return 0; done
  return 1
}
tier_lost() { # <data, durable or home>    what lies at home on the box goes with a box that loses anything
  case $1 in
    data) lost "$DATA_TIER" ;;
    durable) lost "$DURABLE_TIER" ;;
    *) ((${#ACTION_LOST[@]} > 0)) ;;
  esac
}

# Nothing is deleted whose size nobody saw, and no copy at home counts that goes with it.
judge_sizes() {
  local where size path
  while read -r where size path; do
    [[ -n $where ]] || continue
    printf '  on the box:       %s tier, %s kB, %s%s\n' "$where" "$size" "$path" "$(tier_lost "$where" && printf ' (LOST by %s)' "$VERB")"
    [[ $size != unknown ]] || ! tier_lost "$where" || refuse "$EX_GATE" "$VERB $INSTANCE" "the size of $path could not be read" "look there by hand first: du -sh"
    if [[ $KIND != owned ]] || ! tier_lost "$where"; then continue; fi
    # The tier, not the run's folder alone: other folders of it go as well.
    path=${path%/*}
    [[ $(cd -P -- "$L" && pwd -P)/ != "$(cd -P -- "$path" && pwd -P)"/* ]] ||
      refuse "$EX_GATE" "$VERB $INSTANCE" "the verified copy at $L lies in $path, which it loses" "pull to another place: LOCAL_DIR=/path/to/local"
  done <<<"$ON_BOX"
}

# Logs, archives, what is left of failed attempts: in no bundle, so a person who wants them copies them first.
say_left() {
  local where count size path any=false
  while read -r where count size path; do
    if [[ -z $where ]] || ! tier_lost "$where"; then continue; fi
    any=true
    [[ ${path##*/} != cells ]] || path+=' (beside the results, which are home)'
    say_list "NOT at home" "$count files, $size kB, $path (LOST by $VERB)"
  done <<<"$LEFT"
  [[ $any == false ]] || say_list "in no bundle" "copy first what anybody will read of it: the runbook's phase 5 has the line"
}

# A run elsewhere on what the verb loses, which nobody has asked for here.
judge_strays() { # <WHERE PATH...>
  local one
  for one in "$@"; do
    tier_lost "${one%% *}" || continue
    refuse "$EX_GATE" "$VERB $INSTANCE" "there is a run at ${one#* }, outside of the folders that were looked at" "give --data-dir and RUN for it and pull it, or delete that folder yourself if nobody needs it"
  done
}
