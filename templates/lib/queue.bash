# lib/queue.bash: the one reader of queue files. Whoever counts cells counts them with this.
# needs: exit log path

# Read FILE into QUEUE_NAMES and QUEUE_COMMANDS. A line is name<TAB>command; blank lines and # do not count.
read_queue() { # <file>    returns: 0, or refuses 69 (not there) or 78 (not a queue), naming file and line
  local file=$1 line n=0 name command fold
  local -A seen=()
  QUEUE_NAMES=()
  QUEUE_COMMANDS=()
  [[ -r $file && -f $file ]] || refuse "$EX_MISSING" "queue $file" "it cannot be read" "give --queue FILE, or put queue.tsv there"
  # The last line counts also without its newline: read fails then, but has filled the variable.
  while IFS= read -r line || [[ -n $line ]]; do
    n=$((n + 1))
    ((n > 1)) || line=${line#$'\xef\xbb\xbf'}
    line=${line%$'\r'}
    case $line in
      '#'*) continue ;;
      *[![:space:]]*) ;;
      *) continue ;;
    esac
    [[ $line == *$'\t'* ]] || refuse "$EX_CONFIG" "$file:$n" "no tab between name and command" "write name<TAB>command"
    name=${line%%$'\t'*}
    command=${line#*$'\t'}
    [[ ${command//$'\t'/} != *[[:cntrl:]]* ]] || refuse "$EX_CONFIG" "$file:$n" "a control character in the command" "take it out"
    [[ $command == *[![:space:]]* ]] || refuse "$EX_CONFIG" "$file:$n" "cell '$name' has no command" "write name<TAB>command"
    check_name "$name" "$file:$n: cell"
    fold=${name,,}
    [[ -z ${seen[$fold]-} ]] || refuse "$EX_CONFIG" "$file:$n" "cell '$name' stands in line ${seen[$fold]} too (upper and lower case count as one)" "give each cell a name of its own"
    seen[$fold]=$n
    QUEUE_NAMES+=("$name")
    QUEUE_COMMANDS+=("$command")
  done <"$file"
  ((${#QUEUE_NAMES[@]} > 0)) || refuse "$EX_CONFIG" "queue $file" "it holds no cell" "write a line name<TAB>command for each cell"
}

# The place of a cell in QUEUE_NAMES, into REPLY.
queue_index() { # <cell>    returns: 1 where it is not there
  for ((REPLY = 0; REPLY < ${#QUEUE_NAMES[@]}; REPLY++)); do
    [[ ${QUEUE_NAMES[REPLY]} != "$1" ]] || return 0
  done
  REPLY=''
  return 1
}
