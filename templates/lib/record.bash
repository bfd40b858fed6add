# lib/record.bash: line JSON that bash writes and reads without help (docs/contracts.md, section 2).
# needs: exit log file

# Free text made fit for a record: no quote, no backslash, no control character. Into REPLY.
record_fit() { # <text>
  REPLY=${1//\"/\'}
  REPLY=${REPLY//\\//}
  REPLY=${REPLY//[[:cntrl:]]/ }
}

record_open() { # <schema>
  RECORD='{'$'\n''  "schema": "'$1'"'
}
record_text() { # <name> <text>
  local REPLY=$2
  [[ $2 != *[\"\\[:cntrl:]]* ]] || record_fit "$2"
  RECORD+=,$'\n''  "'$1'": "'$REPLY'"'
}
record_raw() { # <name> <integer, true, false or null>
  RECORD+=,$'\n''  "'$1'": '$2
}
# An integer, or null where the value is empty (not known).
record_int() { # <name> <digits or empty>
  if [[ -z $2 ]]; then
    record_raw "$1" null
  elif [[ $2 =~ ^-?[0-9]+$ ]]; then
    record_raw "$1" "$2"
  else
    log "a bug here: member $1 of a record is to be an integer and is '$2'"
    return "$EX_INTEGRITY"
  fi
}
record_bool() { # <name> <true or false>
  case $2 in
    true | false) record_raw "$1" "$2" ;;
    *)
      log "a bug here: member $1 of a record is to be true or false and is '$2'"
      return "$EX_INTEGRITY"
      ;;
  esac
}
record_close() {
  RECORD+=$'\n''}'$'\n'
}

# Read FILE into R_<member>. Lists are skipped. Only a whole record of the expected schema (and run) counts.
read_record() { # <file> <schema> [run id]    returns: 0 read, 1 not there, 2 unknown
  local REPLY file=$1 schema=$2 run_id=${3-} name names=" ${!R_*}"
  # Ours are in small letters: R_HOME and R_LIBS are the cell's affair.
  if [[ $names != *' R_'[!a-z]* ]]; then
    # shellcheck disable=SC2086 # names
    unset $names
  else
    for name in "${!R_@}"; do [[ $name != R_[a-z]* ]] || unset "$name"; done
  fi
  [[ -e $file || -L $file ]] || return 1
  read_text "$file" || return 2
  parse_record || return 2
  [[ ${R_schema-} == "$schema" ]] || return 2
  [[ -z $run_id || ${R_run_id-} == "$run_id" ]] || return 2
}

# Why FILE is no record, into REPLY.
record_fault() { # <file that read_record found unknown>
  if no_file "$1"; then
    REPLY="it is $REPLY, not a record"
  elif [[ ! -s $1 ]]; then
    REPLY='it is empty, not a whole record'
  else
    REPLY='it is not a whole record'
  fi
}

# The members of the text in REPLY into R_<member>. By patterns, not by regular expressions: bash compiles those anew each time.
parse_record() { # returns: 0, or 2 where it is not a whole record
  local IFS=$'\n' line member value in_list=0
  local -a lines=()
  [[ $REPLY == '{'$'\n'*$'\n''}'$'\n' && $REPLY != *$'\n\n'* ]] || return 2
  REPLY=${REPLY#'{'$'\n'}
  set -f
  # shellcheck disable=SC2206 # split at line ends
  lines=(${REPLY%$'\n''}'$'\n'})
  set +f
  for line in ${lines[@]+"${lines[@]}"}; do
    case $line in
      '  "'[a-z]*'": "'*'"' | '  "'[a-z]*'": "'*'",')
        member=${line:3} value=${line#*'": "'}
        member=${member%%\"*} value=${value%\"*}
        [[ $in_list == 0 && $member != *[!a-z0-9_]* ]] || return 2
        printf -v "R_$member" '%s' "$value"
        ;;
      '  "'[a-z]*'": '*)
        member=${line:3} value=${line#*'": '}
        member=${member%%\"*} value=${value%,}
        [[ $in_list == 0 && $member != *[!a-z0-9_]* ]] || return 2
        case $value in
          null) value='' ;;
          true | false) ;;
          '[') in_list=1 && continue ;;
          '[]') continue ;;
          *) [[ $value == [0-9-]* && ${value#-} != *[!0-9]* && $value != - ]] || return 2 ;;
        esac
        printf -v "R_$member" '%s' "$value"
        ;;
      '    '*) ((in_list)) || return 2 ;;
      '  ]' | '  ],') in_list=0 ;;
      *) return 2 ;;
    esac
  done
}
