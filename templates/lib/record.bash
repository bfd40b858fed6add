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
  local REPLY
  record_fit "$2"
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
  local file=$1 schema=$2 run_id=${3-} line text='' member value first=1 closed=0 in_list=0
  if [[ -n ${!R_@} ]]; then unset "${!R_@}"; fi
  [[ -e $file ]] || return 1
  # Up to a NUL or the end, without a fork: where read succeeds there was a NUL, and that is no text.
  ! { IFS= read -r -d '' text <"$file"; } 2>/dev/null || return 2
  [[ $text == '{'$'\n'*$'\n''}'$'\n' ]] || return 2
  while IFS= read -r line; do
    if ((first)); then
      first=0
      continue
    fi
    ((closed == 0)) || return 2
    case $line in
      '}') closed=1 ;;
      '  ]' | '  ],') in_list=0 ;;
      '    '*) ((in_list)) || return 2 ;;
      '  "'*'": '*)
        ((in_list == 0)) || return 2
        member=${line#'  "'}
        member=${member%%\"*}
        [[ $member =~ ^[a-z][a-z0-9_]*$ ]] || return 2
        value=${line#*'": '}
        value=${value%,}
        case $value in
          '[') in_list=1 ;;
          '[]') ;;
          '"'*'"')
            value=${value#\"}
            printf -v "R_$member" '%s' "${value%\"}"
            ;;
          null) printf -v "R_$member" '%s' '' ;;
          true | false) printf -v "R_$member" '%s' "$value" ;;
          *)
            [[ $value =~ ^-?[0-9]+$ ]] || return 2
            printf -v "R_$member" '%s' "$value"
            ;;
        esac
        ;;
      *) return 2 ;;
    esac
  done <"$file"
  [[ ${R_schema-} == "$schema" ]] || return 2
  [[ -z $run_id || ${R_run_id-} == "$run_id" ]] || return 2
}
