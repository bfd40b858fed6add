# lib/box_json.bash: what the laptop knows of the box: L/box.json (docs/contracts.md, section 8).
# needs: exit log file record ssh
# reads: L PROFILE KIND DATA_DIR DURABLE_DIR, INSTANCE from the environment

# Read L/box.json into KNOWN_RUN_ID KNOWN_INSTANCE; both empty where there is none yet.
read_box_json() {
  local rc=0
  KNOWN_RUN_ID='' KNOWN_INSTANCE=''
  read_record "$L/box.json" box/1 || rc=$?
  ((rc != 2)) || refuse "$EX_INTEGRITY" "$L/box.json" "it is not a whole record" "look at it; move it aside to learn the box anew"
  ((rc == 0)) || return 0
  # shellcheck disable=SC2034 # not every script asks for the instance
  KNOWN_RUN_ID=${R_run_id-} KNOWN_INSTANCE=${R_instance-}
}

# The folders that push was told, as L/box.json says right after it was read: in others a run of this name may be another one,
# or none, and a shell in which DATA_DIR was not set would take the profile's. TYPED: names whose option is on this command line.
same_places() { # <exit code> <remedy>
  local REPLY name known
  for name in DATA_DIR DURABLE_DIR; do
    known=R_data_dir
    [[ $name == DATA_DIR ]] || known=R_durable_dir
    [[ -n ${!known+x} && " ${TYPED-} " != *" $name "* ]] || continue
    record_fit "${!name}"
    [[ $REPLY == "${!known}" ]] || refuse "$1" "$name is '$REPLY'" "push had '${!known}' ($L/box.json)" "set $name to that; $2"
  done
}

# The id that the box shows must be the one that we know, before any byte is taken from it.
same_run() { # <run id of the box>
  [[ $1 =~ ^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$ ]] || refuse "$EX_INTEGRITY" "the box's run.json" "it has no run id" "look at it on the box"
  [[ -z $KNOWN_RUN_ID || $KNOWN_RUN_ID == "$1" ]] ||
    refuse "$EX_INTEGRITY" "run $RUN" "the box has run $1, and $L is of run $KNOWN_RUN_ID: they are never mixed" "give that run a RUN of its own, or move $L aside"
}

write_box_json() { # <run id or empty> <host name of the box> <instance>
  local REPLY key
  host_key
  key=$REPLY
  record_open box/1
  record_text run_id "$1"
  record_text profile "$PROFILE"
  record_text host "$2"
  record_text instance "$3"
  record_text host_key "$key"
  record_text data_dir "$DATA_DIR"
  record_text durable_dir "$DURABLE_DIR"
  record_close
  replace_file "$L/box.json" "$RECORD"
}

# The name of the instance that we are at: INSTANCE, or what was known before. An owned machine has none of a platform's.
this_instance() { # into REPLY
  REPLY=${INSTANCE-$KNOWN_INSTANCE}
  [[ -n $REPLY || $KIND != owned ]] || REPLY=local
  [[ -z $REPLY || $REPLY =~ ^[A-Za-z0-9][A-Za-z0-9._:-]*$ ]] ||
    refuse "$EX_CONFIG" "INSTANCE '${REPLY//[[:cntrl:]]/?}'" "it is no id of a platform" "give it as the platform shows it"
}
