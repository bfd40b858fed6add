# lib/states.bash: the state of every cell at once: a few processes for all of them, none for a cell.
# needs: exit log file proc claim
# reads: D B RUN_ID

# Every cell that has a record on either tier, into RECORD_OF[cell]: in the bundle (1 yes, 0 no, 2 damaged there), then state class
# attempt started ended exit why of its record, US (31) between. In the bundle is a cell whose record there says done over the very
# list beside it; of such a one the record on the data tier is not even opened. What is not a whole record of this run is unknown.
read_states() {
  begin_states
  end_states
}
# The two halves of it: awk reads beside us, while something else is done.
begin_states() { # [the records to read: all]    sets STATES_FD
  local REPLY file
  local -a odd=()
  (($# > 0)) || set -- "$B/records"/*.json "$D/state"/*.json
  # Texts may hold any bytes, and some awks warn of them elsewhere than in the C locale.
  exec {STATES_FD}< <({
    for file; do [[ -f $file && -r $file ]] || odd+=("$file"); done
    # What is no file is named here and opened by nobody: a FIFO would wait for ever.
    for file in ${odd[@]+"${odd[@]}"}; do
      if no_file "$file"; then printf '\037%s\037%s\n' "$REPLY" "$file"; fi
    done
    if ((${#odd[@]} == 0)); then printf '%s\n' "$@"; else
      for file; do [[ ! -f $file || ! -r $file ]] || printf '%s\n' "$file"; done
    fi
  } 2>/dev/null | LC_ALL=C awk -v run="$RUN_ID" -v b="$B/records/" -v d="$D/state/" '
    # A record is read whole, for no text holds a 1.
    function read_whole(file,   got) {
      RS = "\001"; text = ""
      got = (getline text < file)
      close(file)
      RS = "\n"
      return got
    }
    function member(key,   at, rest) {
      at = index(text, "\n  \"" key "\": ")
      if (!at) return ""
      rest = substr(text, at + length(key) + 7)
      rest = substr(rest, 1, index(rest, "\n") - 1)
      sub(/,$/, "", rest)
      if (substr(rest, 1, 1) == "\"") return substr(rest, 2, length(rest) - 2)
      return rest == "null" ? "" : rest
    }
    function unknown(why) { return s "unknown" s s s s s s why }
    function fields(name, file) {
      if (substr(text, 1, 4) != "{\n  " || substr(text, length(text) - 2) != "\n}\n" || member("schema") != "cell/1" || member("run_id") != run || member("cell") != name || member("state") == "")
        return unknown(file (text == "" ? " is empty, or cannot be read" : " is not a whole record of this run"))
      return s member("state") s member("class") s member("attempt") s member("started") s member("ended") s member("exit") s member("why")
    }
    function name_of(path, folder) { return substr(path, length(folder) + 1, length(path) - length(folder) - 5) }
    BEGIN { s = "\037" }
    index($0, s) == 1 {
      split($0, part, s)
      why = unknown(part[3] " is " part[2] ", not a record")
      if (index(part[3], b) == 1) { n = name_of(part[3], b); in_b[++nb] = n; of_b[n] = why }
      else { n = name_of(part[3], d); in_d[++nd] = n; odd[n] = why }
      next
    }
    index($0, b) == 1 {
      n = name_of($0, b)
      read_whole($0)
      in_b[++nb] = n
      of_b[n] = fields(n, $0)
      list[n] = member("files_sha256")
      next
    }
    index($0, d) == 1 { in_d[++nd] = name_of($0, d); next }
    { n = $0; sub(/.*\//, "", n); sub(/\.sha256$/, "", n); digest[n] = substr($0, 1, 64) }
    END {
      for (i = 1; i <= nb; i++) {
        n = in_b[i]
        has[n] = (index(of_b[n], s "done" s) == 1 && list[n] != "" && digest[n] == list[n]) ? 1 : 2
        if (has[n] == 1) print n s 1 of_b[n]
      }
      for (i = 1; i <= nd; i++) {
        n = in_d[i]
        if ((n in has) && has[n] == 1) continue
        if (n in odd) line = odd[n]
        else { read_whole(d n ".json"); line = fields(n, d n ".json") }
        # Damaged there, and what is here may well be whole: both are to be told.
        why = ""
        if (n in has && index(of_b[n], s "unknown" s) == 1) { why = of_b[n]; sub(/.*\037/, "", why) }
        if (why != "" && substr(line, length(line)) != s) why = "; " why
        print n s ((n in has) ? has[n] : 0) line why
        delete of_b[n]
      }
      for (n in of_b) if (has[n] == 2) print n s 2 of_b[n]
      print "."
    }' - <([[ ! -d $B/records ]] || find "$B/records" -maxdepth 1 -type f -name '*.sha256' ! -name '.*' -exec sha256sum {} + 2>/dev/null) 2>/dev/null)
}
end_states() {
  declare -gA RECORD_OF=()
  take_states || read_sound || log "the records in $D/state and $B/records cannot all be read: some states are not known; look at those disks, then ask again"
}
take_states() { # returns: 1 where awk has not come to its end
  local line text IFS=$'\n'
  # By the thousand characters: from a pipe bash takes lines one character at a time.
  read -r -N 1000000000 -u "$STATES_FD" text || :
  exec {STATES_FD}<&-
  [[ $text == .$'\n' || $text == *$'\n.\n' ]] || return 1
  text=${text%.$'\n'}
  set -f
  for line in $text; do RECORD_OF[${line%%$'\037'*}]=${line#*$'\037'}; done
  set +f
}
# Some awks give up at a record that cannot be read (a folder in its place, a fault of the disk): the others once more without it.
read_sound() { # returns: 1 where that fails too
  local file name
  local -a sound=() unread=()
  for file in "$B/records"/*.json "$D/state"/*.json; do
    if [[ ! -f $file ]] || { read -r -n 1 name <"$file"; } 2>/dev/null; then sound+=("$file"); elif [[ -e $file || -L $file ]]; then unread+=("$file"); fi
  done
  RECORD_OF=()
  begin_states "${sound[@]-$D/state/*.json}"
  take_states || return
  for file in ${unread[@]+"${unread[@]}"}; do
    log "$file cannot be read: unknown; look at its rights and its disk"
    name=${file##*/} && name=${name%.json}
    if [[ ${file%/*} == "$B/records" ]]; then
      [[ -z ${RECORD_OF[$name]-} ]] || RECORD_OF[$name]=2${RECORD_OF[$name]:1}
      RECORD_OF[$name]=${RECORD_OF[$name]-2$'\037unknown\037\037\037\037\037\037'}
    else
      RECORD_OF[$name]=${RECORD_OF[$name]-0$'\037unknown\037\037\037\037\037\037'}
    fi
  done
}

# One cell's record as it was read, into C_BUNDLE C_STATE C_CLASS C_ATTEMPT C_STARTED C_ENDED C_EXIT C_WHY.
# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs
cell_record_of() { # <cell>
  C_BUNDLE=0 C_STATE='' C_CLASS='' C_ATTEMPT='' C_STARTED='' C_ENDED='' C_EXIT='' C_WHY=''
  [[ -n ${RECORD_OF[$1]-} ]] || return 0
  local IFS=$'\037' fields
  set -f
  # shellcheck disable=SC2206 # split at US, which no field holds
  fields=(${RECORD_OF[$1]})
  set +f
  C_BUNDLE=${fields[0]-} C_STATE=${fields[1]-} C_CLASS=${fields[2]-} C_ATTEMPT=${fields[3]-} C_STARTED=${fields[4]-}
  C_ENDED=${fields[5]-} C_EXIT=${fields[6]-} C_WHY=${fields[7]-}
}

# What a cell is in now, from what was read: pending running done unsynced failed preempted unknown. Into REPLY, and C_WHY.
# shellcheck disable=SC2034 # a script reads C_WHY or not
state_now() { # <cell>
  local line=${RECORD_OF[$1]-} next
  C_WHY=''
  case $line in
    1*) REPLY='done' && return 0 ;;
    '')
      REPLY=pending
      [[ ! -d $D/claims/$1 ]] || claim_says "$1"
      return 0
      ;;
  esac
  cell_record_of "$1"
  REPLY=$C_STATE
  case $REPLY in
    'done') REPLY=unsynced ;;
    failed | preempted | unsynced)
      # A claim newer than the record is an attempt that has just begun, or died before its record.
      printf -v next '%s/claims/%s/%03d' "$D" "$1" $((${C_ATTEMPT:-0} + 1))
      [[ ! -e $next ]] || claim_says "$1"
      ;;
    running | unknown) claim_says "$1" ;;
    *) REPLY=unknown ;;
  esac
}
# shellcheck disable=SC2034 # as above
claim_says() { # <cell>    running where somebody lives behind the last claim, else unknown
  last_claim "$1"
  case $CLAIM_STATE in
    live | foreign) REPLY=running ;;
    # A folder alone is no claim: the cell was refused before it.
    none) [[ -z ${RECORD_OF[$1]-} ]] && REPLY=pending || REPLY=unknown ;;
    unread) REPLY=unknown C_WHY=$CLAIM_SAID ;;
    *) REPLY=unknown ;;
  esac
}

# What the cells took that are done, by their own records: DONE_S seconds, all DONE_N of them together.
cells_took() { # reads: RECORD_OF
  read -r DONE_S DONE_N < <(printf '%s\n' ${RECORD_OF[@]+"${RECORD_OF[@]}"} | awk -F$'\037' '
    # Days since 1970 of a civil date: no date tool for each line.
    function at(t,   y, m, d, era, yoe, doy) {
      y = substr(t, 1, 4) + 0; m = substr(t, 6, 2) + 0; d = substr(t, 9, 2) + 0
      if (m <= 2) y--
      era = int(y / 400); yoe = y - era * 400; doy = int((153 * (m + (m > 2 ? -3 : 9)) + 2) / 5) + d - 1
      return (era * 146097 + yoe * 365 + int(yoe / 4) - int(yoe / 100) + doy - 719468) * 86400 + substr(t, 12, 2) * 3600 + substr(t, 15, 2) * 60 + substr(t, 18, 2)
    }
    $2 == "done" && $5 ~ /^[0-9]/ && $6 ~ /^[0-9]/ { sum += at($6) - at($5); n++ }
    END { print sum + 0, n + 0 }') || :
  DONE_S=${DONE_S:-0} DONE_N=${DONE_N:-0}
}
