# lib/states.bash: the state of every cell at once: one find, one awk, no fork for a cell.
# needs: exit log proc claim
# reads: D B RUN_ID

# The records below a folder as lines of fields with US (31) between: cell state class attempt command files started ended exit why.
# What is not a whole record of this run has the state unknown. Prints.
scan_records() { # <folder>
  [[ -d $1 ]] || return 0
  # An empty file has no line, so awk does not see it.
  find "$1" -maxdepth 1 -name '*.json' ! -name '.*' -size 0 -print 2>/dev/null | sed 's|.*/||; s|\.json$||; s|$|'$'\037''unknown|'
  find "$1" -maxdepth 1 -name '*.json' ! -name '.*' -type f -exec awk -v run="$RUN_ID" -v s=$'\037' '
    function put(   whole) {
      if (name == "") return
      whole = ok && closed && v["schema"] == "cell/1" && v["run_id"] == run && v["cell"] == name && v["state"] != ""
      print name s (whole ? v["state"] : "unknown") s v["class"] s v["attempt"] s v["command_sha256"] s v["files_sha256"] s v["started"] s v["ended"] s v["exit"] s v["why"]
    }
    FNR == 1 {
      put()
      name = FILENAME; sub(/.*\//, "", name); sub(/\.json$/, "", name)
      ok = ($0 == "{"); closed = 0; split("", v)
      next
    }
    closed { ok = 0 }
    $0 == "}" { closed = 1; next }
    /^  "[a-z0-9_]+": / {
      line = substr($0, 4); at = index(line, "\""); key = substr(line, 1, at - 1); val = substr(line, at + 3)
      sub(/,$/, "", val)
      if (val ~ /^".*"$/) val = substr(val, 2, length(val) - 2)
      v[key] = (val == "null" ? "" : val)
      next
    }
    { ok = 0 }
    END { put() }' {} +
}

# Which cells are committed in the bundle: their record says done and their list has the digest that it names. Into IN_BUNDLE.
read_bundle() {
  local name state class attempt sha files rest sum path
  declare -gA IN_BUNDLE=()
  local -A digest=()
  while read -r sum path; do
    path=${path##*/}
    digest[${path%.sha256}]=$sum
  done < <([[ ! -d $B/records ]] || find "$B/records" -maxdepth 1 -name '*.sha256' ! -name '.*' -exec sha256sum {} +)
  while IFS=$'\037' read -r name state class attempt sha files rest; do
    if [[ $state == 'done' && -n $files && ${digest[$name]-} == "$files" ]]; then IN_BUNDLE[$name]=1; else IN_BUNDLE[$name]=0; fi
  done < <(scan_records "$B/records")
}

# All records of the data tier, by cell: STATE_OF CLASS_OF ATTEMPT_OF STARTED_OF ENDED_OF WHY_OF.
# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs
read_states() {
  local name state class attempt sha files started ended code why
  declare -gA STATE_OF=() CLASS_OF=() ATTEMPT_OF=() STARTED_OF=() ENDED_OF=() WHY_OF=()
  while IFS=$'\037' read -r name state class attempt sha files started ended code why; do
    STATE_OF[$name]=$state CLASS_OF[$name]=$class ATTEMPT_OF[$name]=$attempt
    STARTED_OF[$name]=$started ENDED_OF[$name]=$ended WHY_OF[$name]=$why
  done < <(scan_records "$D/state")
}

# What a cell is in now, from what was read: pending running done unsynced failed preempted unknown. Into REPLY.
state_now() { # <cell>
  local next
  REPLY=${STATE_OF[$1]-}
  if [[ ${IN_BUNDLE[$1]-} == 1 ]]; then
    REPLY='done'
    return 0
  fi
  case $REPLY in
    'done') REPLY=unsynced ;;
    failed | preempted | unsynced)
      # A claim that is newer than the record is an attempt that has just begun, or died before its record.
      printf -v next '%s/claims/%s/%03d' "$D" "$1" $((${ATTEMPT_OF[$1]:-0} + 1))
      [[ ! -e $next ]] || claim_says "$1"
      ;;
    running | '' | unknown)
      if [[ -d $D/claims/$1 ]]; then
        claim_says "$1"
      elif [[ -z $REPLY && -z ${IN_BUNDLE[$1]-} ]]; then
        REPLY=pending
      else
        REPLY=unknown
      fi
      ;;
    *) REPLY=unknown ;;
  esac
}
claim_says() { # <cell>    running where somebody lives behind the last claim, else unknown
  last_claim "$1"
  case $CLAIM_STATE in
    live | foreign) REPLY=running ;;
    none) REPLY=pending ;;
    *) REPLY=unknown ;;
  esac
}
