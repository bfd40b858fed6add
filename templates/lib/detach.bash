# lib/detach.bash: sessions that outlive the shell that starts them, each with a socket folder of its own.
# needs: exit log proc
# One session a folder: no name can hit another run's session, and no server lends us its environment.

# A private folder under /tmp, for sockets fail on network mounts and on long paths. Sets DETACH_DIR.
detach_dir() { # <start id>    returns: 0, or 74 where it cannot be made
  local dir=/tmp/gr-${EUID:-$(id -u)}-$1
  # mkdir fails where the name exists, also as somebody's link: nobody else's folder is ever used or changed.
  mkdir -m 700 -- "$dir" 2>/dev/null || return "$EX_COPY"
  DETACH_DIR=$dir
}

detach_have() { # <primitive>    returns: 0 where its tool is on PATH
  case $1 in
    tmux | screen) command -v "$1" >/dev/null 2>&1 ;;
    nohup) command -v setsid >/dev/null 2>&1 ;;
    *) return 1 ;;
  esac
}

# The multiplexer with its own server and no start-up file; never inside the one that we may be typed in. Its client waits for
# a server that is stopped or sick as long as that is: not for ever. Status 124: no answer.
detach_tmux() { # <socket> <words...>
  local socket=$1
  shift
  within 15 env -u TMUX -u TMUX_PANE SHELL=/bin/sh TERM="${TERM:-dumb}" tmux -S "$socket" -f /dev/null "$@"
}
detach_screen() { # <socket folder> <words...>
  local socket=$1
  shift
  within 15 env -u STY SCREENDIR="$socket" SHELL=/bin/sh TERM="${TERM:-dumb}" screen -c /dev/null "$@"
}

# Start WORDS detached. A status of 0 says that the tool took them, not that they run: await a heartbeat. nohup: DETACH_PID.
detach_start() { # <primitive> <socket> <session name> <log> <words...>
  local primitive=$1 socket=$2 name=$3 log=$4 line='' word end="'\\''"
  shift 4
  case $primitive in
    tmux)
      # The server joins the words and hands them to sh: quote them once for it. Not by %q, whose $'…' is bash's alone.
      for word in "$@"; do
        word=${word//\'/$end}
        line+="'$word' "
      done
      detach_tmux "$socket" new-session -d -s "$name" "exec $line" </dev/null >>"$log" 2>&1
      ;;
    screen)
      [[ -d $socket ]] || mkdir -m 700 -- "$socket" || return
      detach_screen "$socket" -dmS "$name" "$@" </dev/null >>"$log" 2>&1
      ;;
    nohup)
      (
        trap '' HUP
        exec setsid "$@"
      ) </dev/null >>"$log" 2>&1 &
      # Neither the subshell nor setsid forks again: this number is the session's own.
      # shellcheck disable=SC2034 # for who starts a run; a trial session does not ask
      DETACH_PID=$!
      ;;
    *) return "$EX_MISSING" ;;
  esac
}

# Is exactly this session there?
detach_alive() { # <primitive> <socket> <session name>    returns: 0 alive, 1 gone, 2 cannot be told
  local list='' line rc=0 said=$2.$$.said
  case $1 in
    tmux) [[ -S $2 ]] || return 1 ;;
    screen) [[ -d $2 ]] || return 1 ;;
    *) return 2 ;;
  esac
  command -v "$1" >/dev/null 2>&1 && { : >"$said"; } 2>/dev/null || return 2
  # Into a file: a client hands what it writes to over to its server, and a pipe would not end before a server that is stopped.
  case $1 in
    tmux) detach_tmux "$2" list-sessions -F '#{session_name}' ;;
    screen) detach_screen "$2" -ls ;;
  esac </dev/null 2>/dev/null >"$said" || rc=$?
  list=$(<"$said") || rc=124
  rm -f -- "$said"
  ((rc != 124)) || return 2
  while read -r line; do
    # Screen's status says nothing here; a line of it is PID.NAME, tab, state.
    if [[ $1 == screen ]]; then
      [[ $line =~ ^[0-9]+\.([^[:space:]]+)[[:space:]] && ${BASH_REMATCH[1]} == "$3" && $line != *'(Dead'* ]] && return 0
    else
      [[ $line != "$3" ]] || return 0
    fi
  done <<<"$list"
  return 1
}

# Are we inside the session that was started with these values? A second lock beside the environment file.
detach_inside() { # <primitive> <socket> <session name>
  local stat fields
  case $1 in
    tmux) [[ ${TMUX-} == "$2",* ]] ;;
    screen) [[ ${STY-} =~ ^[0-9]+\.(.*)$ && ${BASH_REMATCH[1]} == "$3" ]] ;;
    nohup)
      # Leader of its own kernel session: field 6 of stat.
      IFS= read -r stat <"/proc/$$/stat" || return 1
      read -ra fields <<<"${stat##*) }"
      [[ ${fields[3]-} == "$$" ]]
      ;;
    *) return 1 ;;
  esac
}

# Does the primitive really work here? A trial session that leaves a file. Says why not into REPLY.
detach_trial() { # <primitive>    returns: 0 or 1
  local dir=${DETACH_DIR-} tries=0 rc=0 took=0
  REPLY=''
  detach_have "$1" || {
    REPLY="not installed"
    return 1
  }
  detach_dir "try$$$RANDOM" || {
    REPLY="no private folder can be made under /tmp"
    return 1
  }
  # shellcheck disable=SC2016 # for the bash that is started
  detach_start "$1" "$DETACH_DIR/s" gr_try "$DETACH_DIR/log" "$BASH" -c 'printf ok >"$1"' try "$DETACH_DIR/ok" || took=$?
  if ((took == 0)); then
    while [[ ! -s $DETACH_DIR/ok ]] && ((tries++ < 100)); do sleep 0.05 2>/dev/null || sleep 1; done
    [[ -s $DETACH_DIR/ok ]] || { REPLY="a trial session was accepted, but did not run" && rc=1; }
  elif ((took == 124)); then
    REPLY="a trial session was asked for, and $1 did not answer in 15 s" rc=1
  else
    rc=1
    IFS= read -r REPLY <"$DETACH_DIR/log" || :
    REPLY=${REPLY:-"a trial session was not accepted"}
  fi
  # Our own folder: mkdir made it a moment ago.
  rm -rf -- "${DETACH_DIR:?}"
  DETACH_DIR=$dir
  return "$rc"
}

# The environment of now into FILE, NUL-separated: no server's, and no argument list shows it.
detach_save_env() { # <file>
  (
    set -C
    env -0 >"$1"
  ) 2>/dev/null || return "$EX_COPY"
  [[ -s $1 ]]
}

# Replace our environment by the one in FILE, and remove FILE. Names that no shell variable can have are left out.
detach_load_env() { # <file>
  local name entry
  local -a entries=()
  while IFS= read -r -d '' entry; do entries+=("$entry"); done <"$1" || return
  rm -f -- "$1"
  ((${#entries[@]} > 0)) || return "$EX_MISSING"
  for name in $(compgen -e); do unset -v "$name" 2>/dev/null || :; done
  for entry in "${entries[@]}"; do
    [[ ${entry%%=*} =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
    export "${entry?}" 2>/dev/null || :
  done
}
