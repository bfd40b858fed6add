# lib/states.bash: the state of every cell at once: a few processes for all of them, none for a cell.
# needs: exit log proc claim
# reads: D B RUN_ID

# The records below a folder, a line each: tag cell state class attempt command files started ended exit why, with
# US (31) between. What is not a whole record of this run has the state unknown. Prints.
scan_records() { # <folder> <tag>
  [[ -d $1 ]] || return 0
  # An empty file has no line, so awk does not see it.
  find "$1" -maxdepth 1 -name '*.json' ! -name '.*' -size 0 -print 2>/dev/null | sed "s|.*/||; s|\\.json\$||; s|^|$2"$'\037''|; s|$|'$'\037''unknown|'
  find "$1" -maxdepth 1 -name '*.json' ! -name '.*' -type f -exec awk -v run="$RUN_ID" -v tag="$2" -v s=$'\037' '
    function put(   whole) {
      if (name == "") return
      whole = ok && closed && v["schema"] == "cell/1" && v["run_id"] == run && v["cell"] == name && v["state"] != ""
      print tag s name s (whole ? v["state"] : "unknown") s v["class"] s v["attempt"] s v["command_sha256"] s v["files_sha256"] s v["started"] s v["ended"] s v["exit"] s v["why"]
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
      if (substr(val, 1, 1) == "\"") val = substr(val, 2, length(val) - 2)
      v[key] = (val == "null" ? "" : val)
      next
    }
    { ok = 0 }
    END { put() }' {} +
}

# Every cell that has a record on either tier, into RECORD_OF[cell]: in the bundle (1 yes, 0 no, 2 damaged there), then the
# fields of the record on the data tier. In the bundle is a cell whose record there says done over the very list beside it.
read_states() {
  local line
  local -a lines
  declare -gA RECORD_OF=()
  mapfile -t lines < <({
    [[ ! -d $B/records ]] || find "$B/records" -maxdepth 1 -name '*.sha256' ! -name '.*' -exec sha256sum {} +
    scan_records "$B/records" B
    scan_records "$D/state" D
  } 2>/dev/null | awk -F$'\037' '
    function rest() { return FS $3 FS $4 FS $5 FS $8 FS $9 FS $10 FS $11 }
    NF == 1 { n = $0; sub(/.*\//, "", n); sub(/\.sha256$/, "", n); digest[n] = substr($0, 1, 64); next }
    $1 == "B" { has[$2] = ($3 == "done" && $7 != "" && digest[$2] == $7) ? 1 : 2; alone[$2] = rest(); next }
    { print $2 FS (($2 in has) ? has[$2] : 0) rest(); delete alone[$2] }
    END { for (n in alone) print n FS has[n] alone[n] }')
  for line in ${lines[@]+"${lines[@]}"}; do RECORD_OF[${line%%$'\037'*}]=${line#*$'\037'}; done
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

# What a cell is in now, from what was read: pending running done unsynced failed preempted unknown. Into REPLY.
state_now() { # <cell>
  local line=${RECORD_OF[$1]-} next
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
claim_says() { # <cell>    running where somebody lives behind the last claim, else unknown
  last_claim "$1"
  case $CLAIM_STATE in
    live | foreign) REPLY=running ;;
    # A folder alone is no claim: the cell was refused before it.
    none) [[ -z ${RECORD_OF[$1]-} ]] && REPLY=pending || REPLY=unknown ;;
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
