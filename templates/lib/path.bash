# lib/path.bash: names and paths that are safe to build upon.
# needs: exit log

# A run, profile, job or cell name: it becomes a folder and an argument.
check_name() { # <value> <what it is>    returns: 0, or refuses 78
  local LC_ALL=C
  if [[ ! $1 =~ ^[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}$ ]]; then
    refuse "$EX_CONFIG" "$2 '${1//[[:cntrl:]]/?}'" "a name is 1 to 128 of A-Z a-z 0-9 . _ = , + @ - and begins with a letter or digit" "rename it"
  fi
}

# Expand a leading ~ or $NAME, and $NAME as a whole later component, in the variable NAME itself.
# Not by eval: a path is data. An unset or empty $NAME is a refusal, for "$X/" would be the root.
expand_path() { # <variable name>
  local var=$1 value=${!1} head rest part out='' name
  [[ $value == *[\~\$]* ]] || return 0
  case $value in
    \~ | \~/*) value=\$HOME${value#\~} ;;
  esac
  rest=$value
  while [[ -n $rest ]]; do
    part=${rest%%/*}
    head=''
    if [[ $part =~ ^\$([A-Za-z_][A-Za-z0-9_]*)$ ]]; then
      name=${BASH_REMATCH[1]}
      head=${!name-}
      [[ -n $head ]] || refuse "$EX_CONFIG" "$var=$value" "\$$name is not set or empty here" "set $name, or set $var to a full path"
      part=${head%/}
      # At the front the name gives the whole beginning of a path, later one component of it.
      [[ -z $out || $part != /* ]] || part=${part#/}
    fi
    out+=$part
    [[ $rest == */* ]] || break
    rest=${rest#*/}
    out+=/
  done
  printf -v "$var" '%s' "$out"
}

# The first $NAME in a path that has no value here, which expand_path would refuse, into REPLY.
unset_name() { # <path>    returns: 0, or 1 where each has one
  local rest=$1/
  case $rest in \~/*) rest=\$HOME${rest#\~} ;; esac
  while [[ $rest =~ (^|/)\$([A-Za-z_][A-Za-z0-9_]*)(/.*) ]]; do
    REPLY=${BASH_REMATCH[2]} rest=${BASH_REMATCH[3]}
    [[ -n ${!REPLY-} ]] || return 0
  done
  return 1
}

# Expand, then insist: absolute, not /, not $HOME alone, no .. and no control character.
require_path() { # <variable name>
  expand_path "$1"
  local var=$1 value=${!1} why=''
  while [[ $value == *//* ]]; do value=${value//\/\//\/}; done
  [[ $value == / ]] || value=${value%/}
  case $value in
    '') why="it is empty" ;;
    *[[:cntrl:]]*) why="it holds a control character" ;;
    *[\"\\]*) why="it holds a quote or a backslash" ;;
    /) why="it is the root folder" ;;
    */../* | */.. | */./* | */.) why="it holds a . or .. component" ;;
    /*) ;;
    *) why="it is not absolute" ;;
  esac
  [[ -n $why || $value != "${HOME-}" ]] || why="it is the home folder itself"
  [[ -z $why ]] || refuse "$EX_CONFIG" "$var='${value//[[:cntrl:]]/?}'" "$why" "set $var to an absolute folder of its own"
  printf -v "$var" '%s' "$value"
}
