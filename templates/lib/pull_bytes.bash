# lib/pull_bytes.bash: the bytes: into a private folder, compared with the manifest, and only then under their names.
# needs: exit log file hash compat ssh pull_list room
# reads: L B_FOLDER METHOD; the P_ arrays

readonly SMALL=4194304   # a file up to this size travels with others
readonly BATCH_FILES=200 # that many at most
readonly TRIES=6         # for one cell

# Runs on the box.
send_tail() { # reads: ONE OFFSET
  box_places
  tail -c "+$OFFSET" -- "$B/$ONE"
}
send_batch() { # reads: NAMES
  box_places
  cd -- "$B" || return
  set -f
  local IFS=$'\n'
  # shellcheck disable=SC2086 # one name a line, none begins with a dash
  tar -cf - $NAMES
}

# One large file from where it was cut off.
stream_one() { # <path> <bytes>
  local REPLY ONE=$1 OFFSET part=$L/.partial/files/$1
  mkdir -p -- "${part%/*}" || return "$EX_NOROOM"
  file_bytes "$part" || REPLY=0
  if ((REPLY >= $2)); then REPLY=0 && : >"$part"; fi
  OFFSET=$((REPLY + 1))
  bytes_from_box send_tail -- PROG RUN DATA_DIR DURABLE_DIR ONE OFFSET -- box_places require_path expand_path >>"$part" 2>"$L/.partial/transport.err"
}

stream_small() { # reads: NAMES
  mkdir -p -- "$L/.partial/files" || return "$EX_NOROOM"
  # -o: the files are ours, whoever made them there.
  bytes_from_box send_batch -- PROG RUN DATA_DIR DURABLE_DIR NAMES -- box_places require_path expand_path 2>"$L/.partial/transport.err" |
    tar -xof - -C "$L/.partial/files" 2>"$L/.partial/tar.err"
}

# The listed indices by our own stream: the small ones together, each large one by itself.
by_stream() { # <indices...>
  local i NAMES='' n=0 rc=0
  for i in "$@"; do
    if ((P_BYTES[i] > SMALL)); then
      stream_one "${P_PATHS[i]}" "${P_BYTES[i]}" || return
      continue
    fi
    NAMES+=${NAMES:+$'\n'}${P_PATHS[i]}
    n=$((n + 1))
    if ((n >= BATCH_FILES)); then
      stream_small || return
      NAMES='' n=0
    fi
  done
  ((n == 0)) || stream_small || rc=$?
  return "$rc"
}

# The same by rsync. Names travel in its own protocol, not through a shell.
by_rsync() { # <indices...>
  local i remote="${SSH_WORDS[*]}"
  mkdir -p -- "$L/.partial/files" || return "$EX_NOROOM"
  for i in "$@"; do printf '%s\0' "${P_PATHS[i]}"; done |
    (unset RSYNC_RSH RSYNC_PARTIAL_DIR && cd -- "$L" && exec rsync --files-from=- --from0 --partial --inplace --timeout=120 \
      -e "$remote" -- "$HOST:$B_FOLDER/" .partial/files/) >/dev/null 2>"$L/.partial/transport.err"
}

# A name under final_ckpts/ whose way there leads through a link would be written somewhere else.
real_folder() { # <folder below L>
  local dir=$L rest=$1/
  while [[ -n $rest ]]; do
    dir=$dir/${rest%%/*}
    rest=${rest#*/}
    [[ ! -L $dir ]] || refuse "$EX_GATE" "$dir" "it is a link, so files would go elsewhere" "put a folder in its place"
  done
  mkdir -p -- "$dir" || refuse "$EX_NOROOM" "$dir" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
}

# Take what came: a file that is what the manifest says moves to its name. Sets LEFT (indices) WRONG (whole, but another) GOT.
take_files() { # <indices...>
  local REPLY i path part
  LEFT=() WRONG=() GOT=0
  for i in "$@"; do
    path=${P_PATHS[i]} part=$L/.partial/files/${P_PATHS[i]}
    if [[ -L $part || ! -f $part ]] || ! file_bytes "$part"; then
      LEFT+=("$i")
    elif ((REPLY < P_BYTES[i])); then
      GOT=$((GOT + REPLY))
      LEFT+=("$i")
    elif hash_file "$part" && [[ $REPLY == "${P_SUMS[i]}" ]]; then
      [[ $path != */* ]] || real_folder "${path%/*}"
      flush "$part"
      [[ ! -L $L/$path && ! -d $L/$path ]] || refuse "$EX_GATE" "$L/$path" "a link or folder is where the file belongs" "move it aside"
      mv -f -- "$part" "$L/$path" || return "$EX_NOROOM"
      GOT=$((GOT + P_BYTES[i]))
      DONE_BYTES=$((DONE_BYTES + P_BYTES[i]))
      if file_stamp "$L/$path"; then remember "$path" "${P_SUMS[i]}" "$REPLY"; fi
    else
      rm -f -- "$part"
      LEFT+=("$i")
      WRONG+=("$i")
    fi
  done
}

versions() { # into REPLY: both ends' tools, for whoever reads the failure
  local mine
  mine=$(rsync --version 2>/dev/null | head -n 1) || mine='no rsync'
  REPLY="here: ${mine:-no rsync}; box: ${BOX_RSYNC:-no rsync}; method: $METHOD"
}

give_up() { # <code> <what> <why>
  local REPLY said=''
  [[ ! -s $L/.partial/transport.err ]] || said=$(tail -c 300 "$L/.partial/transport.err")
  plain_text "$said"
  said=$REPLY
  versions
  refuse "$1" "$2" "$3${said:+ ($said)}; $REPLY" "run this again: what is here already is kept"
}

# One cell, or a part of it, until it is here. Ends after a bounded number of tries, sooner where nothing moves.
fetch() { # <what it is called> <indices...>    returns: 0, or refuses 65, 69, 73
  local what=$1 try=0 idle=0 wrong=0 rc
  shift
  LEFT=("$@")
  while ((${#LEFT[@]} > 0)); do
    try=$((try + 1))
    ((try <= TRIES)) || give_up "$EX_MISSING" "$what" "it is not here after $TRIES tries"
    ((try == 1)) || retry_pause "$try"
    rc=0
    if [[ $METHOD == rsync ]]; then by_rsync "${LEFT[@]}" || rc=$?; else by_stream "${LEFT[@]}" || rc=$?; fi
    set -- "${LEFT[@]}"
    take_files "$@" || give_up "$EX_NOROOM" "$what" "a file could not be put in place"
    after_try "$what" "$rc"
  done
}
after_try() { # <what> <status of the transfer>    reads and sets fetch's idle and wrong
  local REPLY
  ((${#LEFT[@]} > 0)) || return 0
  if free_bytes "$L" && [[ -n $REPLY ]] && ((REPLY < 1048576)); then
    give_up "$EX_NOROOM" "$L" "the disk is full"
  fi
  if [[ $METHOD == rsync ]]; then
    case $2 in
      # Wrong call, protocol or feature missing: another version's rsync. The stream needs neither.
      1 | 2 | 4 | 5 | 127) METHOD=stream && log "rsync does not work here (status $2): going on without it" ;;
    esac
  fi
  if ((${#WRONG[@]} > 0)); then
    wrong=$((wrong + 1))
    log "${P_PATHS[${WRONG[0]}]} came, but is not what the manifest says: fetched anew from its beginning"
    # The second time is no accident of the transfer.
    ((wrong < 2)) || [[ $METHOD == rsync ]] || name_the_hop "${WRONG[0]}"
    ((wrong < 2)) || METHOD=stream
  fi
  if ((GOT <= LAST_GOT)); then idle=$((idle + 1)); else idle=0; fi
  if ((idle == 2)) && [[ $METHOD == rsync ]]; then
    # A gateway that lets no rsync through ends it with whatever status.
    METHOD=stream idle=1
    log "rsync brings nothing here (status $2): going on without it"
  fi
  LAST_GOT=$GOT
  ((idle < 3)) || give_up "$EX_MISSING" "$what" "three tries brought nothing new"
  log "$what: ${#LEFT[@]} files are still to come (status $2)"
}
# A file came twice and is wrong: where was it changed? The box reads its own copy once more.
name_the_hop() { # <index>    refuses 65
  local REPLY ONE=${P_PATHS[$1]} why
  if on_box "$L/.partial/hop" 0 digest_there -- PROG RUN DATA_DIR DURABLE_DIR ONE -- box_places require_path expand_path; then
    REPLY=$(<"$L/.partial/hop")
    why="the durable tier has it with digest ${REPLY:0:12}, not ${P_SUMS[$1]:0:12}: it was changed there after aggregation; run aggregate_to_fs.sh --rehash there"
    [[ $REPLY != "${P_SUMS[$1]}" ]] || why="the durable tier has it right: the line or this disk changes it on the way"
  else
    why="it came twice and is not what the manifest says, and the box cannot be asked"
  fi
  give_up "$EX_INTEGRITY" "$ONE" "$why"
}
digest_there() { # runs on the box
  local text
  box_places
  text=$(sha256sum <"$B/$ONE") && printf '%s\n' "${text%% *}"
}
retry_pause() { # <try>
  sleep $((RETRY_S * ($1 - 1))) || :
}
