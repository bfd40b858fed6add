# lib/compat.bash: the laptop's userland, be it GNU, busybox or BSD. Bash 3.2 is enough.
# needs: exit log

# Which dialect of stat is here: chosen once.
stat_dialect() {
  [[ -z ${STAT_DIALECT-} ]] || return 0
  if stat -c %s / >/dev/null 2>&1; then STAT_DIALECT=gnu; else STAT_DIALECT=bsd; fi
}

file_bytes() { # <file>    into REPLY; returns 1 where there is none
  stat_dialect
  case $STAT_DIALECT in
    gnu) REPLY=$(stat -L -c %s -- "$1" 2>/dev/null) ;;
    *) REPLY=$(stat -L -f %z "$1" 2>/dev/null) ;;
  esac || { REPLY='' && return 1; }
}

# Size, inode and both times of a file that is no link: what a digest that was taken before still belongs to.
file_stamp() { # <file>    into REPLY; returns 1 where there is none
  stat_dialect
  REPLY=''
  [[ -f $1 && ! -L $1 ]] || return 1
  case $STAT_DIALECT in
    gnu) REPLY=$(stat -c '%s %i %Y %Z' -- "$1" 2>/dev/null) ;;
    *) REPLY=$(stat -f '%z %i %m %c' "$1" 2>/dev/null) ;;
  esac || { REPLY='' && return 1; }
}

# Run WORDS, and end them after SECONDS. No `timeout` on a Mac. Standard input passes through.
bounded() { # <seconds> <words...>    returns: theirs, or 124
  local limit=$1 pid watch fired=0 rc=0
  shift
  "$@" <&0 &
  pid=$!
  # The watcher holds none of our pipes, so that nobody waits for its sleep.
  (
    fired=0
    # $! and not nap: a TERM may come before nap has its number. Before the sleep it is still the words' own.
    trap '[[ $! == "$pid" ]] || kill "$!" 2>/dev/null || :' EXIT
    trap 'exit "$fired"' TERM
    # A second at a time: a TERM in the midst of its start may leave one behind, with all that we have open.
    while ((limit-- > 0)); do
      sleep 1 &
      nap=$!
      wait "$nap" || exit 0
      # bash may lose the end of a child; its wait then lasts as long as there is another one: us.
      kill -0 "$pid" 2>/dev/null || exit 0
    done
    # Before the kill: we may be told to go as soon as the words have ended.
    fired=9
    kill -TERM "$pid" 2>/dev/null || exit 0
    sleep 2 &
    nap=$!
    wait "$nap"
    kill -KILL "$pid" 2>/dev/null
    exit 9
  ) </dev/null >/dev/null 2>&1 &
  watch=$!
  wait "$pid" || rc=$?
  kill -TERM "$watch" 2>/dev/null || :
  # What a program says that was ended is its own matter (ssh: 255); the watcher knows.
  wait "$watch" 2>/dev/null || fired=$?
  ((fired != 9)) || rc=124
  return "$rc"
}

# Text of another machine, fit for a terminal.
plain_text() { # <text>    into REPLY
  REPLY=$(printf '%s' "$1" | LC_ALL=C tr '\t\r\n' '   ' | LC_ALL=C tr -d '\000-\037\177')
}
