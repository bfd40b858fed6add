# lib/push_data.bash: the job's declared data to the box, resumable: rsync where both ends have it, else our own stream.
# needs: exit log file hash compat ssh push_box push
# reads: L CODE_DIR D_FOLDER METHOD DATA_PATHS DATA_FILES DATA_UNDER

readonly DATA_SMALL=4194304 # a file up to this size travels with others
readonly DATA_TRIES=5

push_data() {
  local REPLY i found
  ((${#DATA_PATHS[@]} > 0)) || refuse "$EX_CONFIG" "--data" "the job declares no data" "name paths in the job's field data"
  METHOD=stream
  if [[ $KIND != owned && $SSH_COPY == true && -n $BOX_RSYNC && $D_FOLDER =~ ^/[A-Za-z0-9._/=,+@-]*$ ]] && command -v rsync >/dev/null 2>&1; then METHOD=rsync; fi
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    ONE=${DATA_PATHS[i]%/}
    [[ ${DATA_UNDER[i]} != hf_home ]] || { log "data: $ONE is fetched on the box, into HF_HOME" && continue; }
    [[ -e $CODE_DIR/$ONE ]] || refuse "$EX_MISSING" "$CODE_DIR/$ONE" "the declared data are not here" "get them, or set CODE_DIR"
    found=$(find -L "$CODE_DIR/$ONE" -type f | wc -l)
    [[ $((found)) -eq ${DATA_FILES[i]} ]] || refuse "$EX_GATE" "$CODE_DIR/$ONE" "it holds $((found)) files, the job says ${DATA_FILES[i]}" "correct the data or the job"
    push_one_path
    act "counting $ONE" '' count_data
    found=$(tr -dc 0-9 <"$ANSWER")
    [[ $found == "${DATA_FILES[i]}" ]] || refuse "$EX_COPY" "$ONE" "the box holds ${found:-no} files of it, the job says ${DATA_FILES[i]}" "push again"
    log "data: $ONE, $found files are on the box"
  done
}

push_one_path() { # reads: ONE    ends after a bounded number of tries
  local try=0 rc
  while :; do
    try=$((try + 1)) rc=0
    if [[ $METHOD == rsync ]]; then data_by_rsync || rc=$?; else data_by_stream || rc=$?; fi
    ((rc != 0)) || return 0
    log "$ONE: try $try ended with $rc"
    case $METHOD:$rc:$try in
      # Another version's rsync, or a gateway that lets none through: the stream needs neither.
      rsync:[1245]:* | rsync:127:* | rsync:*:2) METHOD=stream && log "rsync does not work here: going on without it" ;;
    esac
    ((try < DATA_TRIES)) || refuse "$EX_COPY" "$ONE" "it did not arrive in $DATA_TRIES tries" "push again: what arrived is kept"
    sleep $((RETRY_S * try)) || :
  done
}

data_by_rsync() {
  local slash=''
  [[ ! -d $CODE_DIR/$ONE ]] || slash=/
  (
    remote=${SSH_WORDS[*]}
    from=$(cd -- "$CODE_DIR" && pwd) || exit "$EX_MISSING"
    unset RSYNC_RSH RSYNC_PARTIAL_DIR
    cd -- "$L" || exit "$EX_MISSING"
    # ./ keeps the path below it: the box gets it at the same place below the code.
    exec rsync -rtLR --partial --partial-dir=.rsync-partial --timeout=120 -e "$remote" -- "$from/./$ONE$slash" "$HOST:$D_FOLDER/code/"
  ) </dev/null >/dev/null
}

# Sizes decide what is to be sent, digests whether it came. A long file goes on where it was cut off.
data_by_stream() {
  local REPLY list=$L/.partial/data.list sums=$L/.partial/data.sums path have line
  local small=()
  (cd -- "$CODE_DIR" && find -L "$ONE" -type f -print) | while IFS= read -r path; do
    file_bytes "$CODE_DIR/$path" && printf '%s %s\n' "$REPLY" "$path"
  done >"$list"
  act "looking at $ONE" "$list" need_data
  cp -- "$ANSWER" "$L/.partial/data.need" || return
  : >"$sums"
  while IFS= read -r line; do
    [[ $line == 'need '* ]] || continue
    line=${line#need }
    have=${line%% *} path=${line#* }
    hash_file "$CODE_DIR/$path" || return "$EX_MISSING"
    printf '%s %s\n' "$REPLY" "$path" >>"$sums"
    file_bytes "$CODE_DIR/$path" || return "$EX_MISSING"
    if ((REPLY <= DATA_SMALL)); then
      small+=("$path")
      ((${#small[@]} < 200)) || { send_small "${small[@]}" && small=(); } || return
    elif ((have < REPLY)); then
      send_rest "$path" "$have" || return
    fi
  done <"$L/.partial/data.need"
  ((${#small[@]} == 0)) || send_small "${small[@]}" || return
  [[ ! -s $sums ]] || (act "placing $ONE" "$sums" place_data)
}
send_small() { # <paths...>
  COPYFILE_DISABLE=1 tar -chf - -C "$CODE_DIR" -- "$@" | (act 'sending data' /dev/stdin take_data_batch)
}
send_rest() { # <path> <bytes that are there>
  local whole=$ONE ONE=$1
  : "$whole"
  tail -c "+$(($2 + 1))" -- "$CODE_DIR/$ONE" | (act 'sending data' /dev/stdin take_data_tail)
}
