# lib/queue.bash: the one reader of queue files. Whoever counts cells counts them with this.
# needs: exit log path file

# What an environment may have put there is none of ours.
QUEUE_TEXT=''

# Read FILE into QUEUE_NAMES and QUEUE_COMMANDS. A line is name<TAB>command; blank lines and # do not count.
# What was read last is not taken apart again: the same text, whichever file it stands in, has the same cells.
read_queue() { # <file>    returns: 0, or refuses 69 (not there) or 78 (not a queue), naming file and line
  # Set once: to switch the locale for each line costs more than all the rest.
  local LC_ALL=C file=$1 line n=0 name command text
  local -a lines
  local -A seen=()
  [[ -r $file && -f $file ]] || refuse "$EX_MISSING" "queue $file" "it cannot be read$(no_file "$file" && printf ': it is %s' "$REPLY")" "give --queue FILE, or put queue.tsv there"
  ! IFS= read -r -d '' text <"$file" || refuse "$EX_CONFIG" "queue $file" "it holds a NUL: it is no text" "write it anew"
  [[ -z ${QUEUE_TEXT-} || $text != "$QUEUE_TEXT" ]] || return 0
  QUEUE_NAMES=() QUEUE_COMMANDS=() QUEUE_TEXT=''
  ! take_plain "$text" || { QUEUE_TEXT=$text && return 0; }
  # The last line counts also without its newline.
  mapfile -t lines <"$file" || refuse "$EX_MISSING" "queue $file" "it cannot be read" "look at its rights and its disk"
  for line in ${lines[@]+"${lines[@]}"}; do
    n=$((n + 1))
    ((n > 1)) || line=${line#$'\xef\xbb\xbf'}
    line=${line%$'\r'}
    case $line in
      '#'*) continue ;;
      *[![:space:]]*) ;;
      *) continue ;;
    esac
    name=${line%%$'\t'*}
    command=${line#*$'\t'}
    # By patterns, not by a regular expression: bash would compile it anew for each line.
    if [[ $name == *[!A-Za-z0-9._=,+@-]* || $name != [A-Za-z0-9]* || ${#name} -gt 128 || $command == "$line" || ${command//$'\t'/} == *[[:cntrl:]]* || $command != *[![:space:]]* ||
      -n ${seen[${name,,}]-} ]]; then
      refuse_line "$file:$n" "$line" "$name" "$command" "${name:+${seen[${name,,}]-}}"
    fi
    seen[${name,,}]=$n
    QUEUE_NAMES+=("$name")
    QUEUE_COMMANDS+=("$command")
  done
  ((${#QUEUE_NAMES[@]} > 0)) || refuse "$EX_CONFIG" "queue $file" "it holds no cell" "write a line name<TAB>command for each cell"
  QUEUE_TEXT=$text
}

# A text in which each line is a cell, looked at as a whole: line by line costs ten times as much. Whatever is unusual in it is for
# the slow way, which names it.
take_plain() { # <text>    returns: 0, or 1 with nothing set
  local IFS=$'\n' all name
  local -a lines names commands odd
  local -A seen=()
  [[ $1 == *[!$'\n']$'\n' && $1 != $'\n'* && $1 != *$'\n\n'* && $1 != *[$'\001'-$'\010'$'\013'-$'\037'$'\177']* ]] || return 1
  set -f
  # shellcheck disable=SC2206 # split at line ends
  lines=(${1%$'\n'})
  set +f
  # Whatever has a tab and a word behind it falls away, and nothing must be left.
  odd=("${lines[@]/#*$'\t'*[![:space:]]*/}")
  all=${odd[*]}
  [[ -z ${all//$'\n'/} ]] || return 1
  names=("${lines[@]%%$'\t'*}") commands=("${lines[@]#*$'\t'}")
  all=$'\n'${names[*]}$'\n'
  [[ ${all//$'\n'/} != *[!A-Za-z0-9._=,+@-]* && $all != *$'\n'[!A-Za-z0-9]* ]] || return 1
  # A name that is too long would leave nothing here.
  printf -v all '%129s' ''
  odd=("${names[@]##${all// /?}*}")
  all=$'\n'${odd[*]}$'\n'
  [[ $all != *$'\n\n'* ]] || return 1
  for name in "${names[@]}"; do seen[${name,,}]=1; done
  ((${#seen[@]} == ${#lines[@]})) || return 1
  QUEUE_NAMES=("${names[@]}") QUEUE_COMMANDS=("${commands[@]}")
}

# What is wrong with one line.
refuse_line() { # <where> <line> <name> <command> <line that has the name too, or empty>
  [[ $2 == *$'\t'* ]] || refuse "$EX_CONFIG" "$1" "no tab between name and command" "write name<TAB>command"
  [[ ${4//$'\t'/} != *[[:cntrl:]]* ]] || refuse "$EX_CONFIG" "$1" "a control character in the command" "take it out"
  [[ $4 == *[![:space:]]* ]] || refuse "$EX_CONFIG" "$1" "cell '${3//[[:cntrl:]]/?}' has no command" "write name<TAB>command"
  check_name "$3" "$1: cell"
  refuse "$EX_CONFIG" "$1" "cell '$3' stands in line $5 too (upper and lower case count as one)" "give each cell a name of its own"
}

# The place of a cell in QUEUE_NAMES, into REPLY.
queue_index() { # <cell>    returns: 1 where it is not there
  for ((REPLY = 0; REPLY < ${#QUEUE_NAMES[@]}; REPLY++)); do
    [[ ${QUEUE_NAMES[REPLY]} != "$1" ]] || return 0
  done
  REPLY=''
  return 1
}
