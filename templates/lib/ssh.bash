# lib/ssh.bash: a program on the box: over ssh, pinned and bounded, or here where the machine is one's own.
# needs: exit log path compat host
# reads: KIND HOST L PROFILE RUN KEEPALIVE_S KEEPALIVE_MAX
#
# What runs there is sent as text: values by printf %q, functions by declare -f, so the box needs nothing of ours. Its answer
# begins with "begin NONCE" and ends with "end NONCE STATUS"; an answer without that end is no answer.

# The run's two folders, on the box: these functions are sent there.
# shellcheck disable=SC2034 # each script uses the one that it needs
box_places() { # sets D B
  require_path DATA_DIR
  [[ -z $DURABLE_DIR ]] || require_path DURABLE_DIR
  D=$DATA_DIR/$RUN B=${DURABLE_DIR:-$DATA_DIR}/$RUN
}
box_member() { # <file> <member>    prints the text or number of a record's member
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $1 ]] || return 1
  sed -n 's/^  "'"$2"'": "\{0,1\}\([^",]*\)"\{0,1\},\{0,1\}$/\1/p' "$1" 2>/dev/null
}

# The run's folder on the laptop, into L. Makes nothing.
local_places() {
  check_name "$RUN" RUN
  LOCAL_DIR=${LOCAL_DIR-'~/gpu-runs'}
  require_path LOCAL_DIR
  L=$LOCAL_DIR/$PROFILE.$RUN
}

# ssh's words into SSH_WORDS. Paths in them are relative to L, where it is started: no blank and no % can matter.
ssh_words() { # [liveness]    with that word no connection of earlier is reused: it would answer for a dead box
  local strict=accept-new every=$KEEPALIVE_S times=$KEEPALIVE_MAX
  # A link that died is noticed within three minutes, also where the profile's values are for a person's idle session.
  ((every > 0 && every <= 60)) || every=30
  ((times > 0 && every * times <= 180)) || times=$((180 / every))
  if [[ -s $L/known_hosts ]]; then strict=yes; fi
  SSH_WORDS=(ssh -T -o BatchMode=yes -o ConnectTimeout=15 -o ConnectionAttempts=1
    -o "ServerAliveInterval=$every" -o "ServerAliveCountMax=$times"
    -o "StrictHostKeyChecking=$strict" -o UserKnownHostsFile=known_hosts -o GlobalKnownHostsFile=/dev/null
    -o "HostKeyAlias=$PROFILE.$RUN" -o CheckHostIP=no -o UpdateHostKeys=no -o HashKnownHosts=no
    -o ForwardAgent=no -o ForwardX11=no -o ClearAllForwardings=yes -o PermitLocalCommand=no -o LogLevel=ERROR)
  [[ ${1-} != liveness ]] || SSH_WORDS+=(-o ControlPath=none -o ControlMaster=no)
}

# The pin of the first contact, aside: a person has said that the box's key changed for a good reason.
new_host_key() {
  [[ -e $L/known_hosts ]] || return 0
  mv -f -- "$L/known_hosts" "$L/known_hosts.before" || refuse "$EX_COPY" "$L/known_hosts" "it cannot be moved aside" "look at the folder's rights"
  log "the pinned host key is moved aside to $L/known_hosts.before; the next contact pins a new one"
}

# Fingerprint of the pinned key, into REPLY, or empty.
host_key() {
  REPLY=''
  [[ -s $L/known_hosts ]] && command -v ssh-keygen >/dev/null 2>&1 || return 0
  REPLY=$(ssh-keygen -lf "$L/known_hosts" 2>/dev/null) || { REPLY='' && return 0; }
  REPLY=${REPLY%%$'\n'*}
  REPLY=${REPLY#* }
  REPLY=${REPLY%% *}
}

# A path may hold the name of a storage that only the person knows, as in /nfs/$NAME: what is set here goes along, for the box's
# login does not know it. HOME and USER are the box's own.
send_names() { # <value>
  local rest=$1 name
  while [[ $rest =~ (^|/)\$([A-Za-z_][A-Za-z0-9_]*)(.*)$ ]]; do
    name=${BASH_REMATCH[2]} rest=${BASH_REMATCH[3]}
    case $name in HOME | USER | LOGNAME | PATH) continue ;; esac
    [[ -z ${!name-} ]] || PROGRAM+="export $name=$(printf '%q' "${!name}")"$'\n'
  done
}

# Our values and functions as bash text, into PROGRAM. The last line is read only when all before it was.
build_program() { # <entry function> <nonce> -- <variable names...> -- <function names...>
  local entry=$1 nonce=$2 name
  shift 3
  PROGRAM=$'set -u -o pipefail\numask 077\nexport LC_ALL=C\n'
  while [[ $1 != -- ]]; do
    name=$1
    PROGRAM+="$name=$(printf '%q' "${!name}")"$'\n'
    send_names "${!name}"
    shift
  done
  shift
  for name in EX_FAIL EX_USAGE EX_INTEGRITY EX_MISSING EX_NOROOM EX_COPY EX_BUSY EX_GATE EX_CONFIG; do PROGRAM+="$name=${!name}"$'\n'; done
  PROGRAM+=$(declare -f "$entry" refuse log utc_now "$@")$'\n' || return
  if [[ $nonce == raw ]]; then
    PROGRAM+="{ $entry; exit; }"$'\n'
  else
    # In a subshell, so that a refusal there ends it and not the last line.
    PROGRAM+="{ printf 'begin %s\\n' $nonce; ( $entry ); printf 'end %s %s\\n' $nonce \$?; exit 0; }"$'\n'
  fi
}

# Start the transport: words of PROGRAM on its input, then whatever our own input holds.
transport() { # stdin: the program and its data
  if [[ $KIND == owned ]]; then
    # Its own session of variables is the person's; nothing of this script's is exported.
    bash -s
  else
    (cd -- "$L" && exec "${SSH_WORDS[@]}" "$HOST" 'bash -s')
  fi
}

# The same for a process that may be ended from outside: what is ended is the connection itself, and nothing is left of it.
transport_alone() {
  [[ $KIND != owned ]] || exec bash -s
  cd -- "$L" && exec "${SSH_WORDS[@]}" "$HOST" 'bash -s'
}

new_nonce() { # into NONCE
  NONCE=$(LC_ALL=C tr -dc 'a-f0-9' </dev/urandom 2>/dev/null | head -c 16) || :
  [[ ${#NONCE} -eq 16 ]] || NONCE=$$$RANDOM$RANDOM
}

# Run ENTRY on the box; its output into the file ANSWER, ssh's words into ANSWER.err. Data for it come from the file BOX_INPUT.
on_box() { # <answer file> <seconds, 0 = no limit> <entry> -- <variables...> -- <functions...>    returns: its status, 69, 77
  local REPLY answer=$1 limit=$2 entry=$3 rc=0
  shift 3
  new_nonce
  build_program "$entry" "$NONCE" "$@" || return
  if ((limit > 0)); then
    program_and_data | bounded "$limit" transport_alone >"$answer" 2>"$answer.err" || rc=$?
  else
    program_and_data | transport >"$answer" 2>"$answer.err" || rc=$?
  fi
  judge_answer "$answer" "$rc"
}
program_and_data() {
  printf '%s' "$PROGRAM" && cat -- "${BOX_INPUT:-/dev/null}"
}

# The same for bytes: ENTRY's output comes on our standard output as it is. Whoever calls holds digests to compare.
bytes_from_box() { # <entry> -- <variables...> -- <functions...>    returns: the status of the transport
  local entry=$1
  shift
  build_program "$entry" raw "$@" || return
  printf '%s' "$PROGRAM" | transport
}

# What came back: noise before our first line, no end, or a status. Leaves the plain answer in the file.
judge_answer() { # <answer file> <status of ssh>    returns: the box's status, 69 or 77 with the reason said
  local REPLY answer=$1 rc=$2 first last
  first=$(head -c 200 -- "$answer" | LC_ALL=C tr -d '\000') || first=''
  last=$(tail -n 1 -- "$answer" | LC_ALL=C tr -d '\000') || last=''
  if [[ -n $first && ${first%%$'\n'*} != "begin $NONCE" ]]; then
    foreign_answer "$answer" "${first:0:80}"
    return "$EX_GATE"
  fi
  if [[ ! $last =~ ^end\ $NONCE\ ([0-9]+)$ ]]; then
    transport_failed "$answer.err" "$rc"
    return
  fi
  rc=${BASH_REMATCH[1]}
  if [[ -s $answer.err ]]; then
    while IFS= read -r REPLY || [[ -n $REPLY ]]; do
      plain_text "$REPLY"
      printf 'box: %s\n' "$REPLY" >&2
    done <"$answer.err"
  fi
  sed -e '1d' -e '$d' "$answer" >"$answer.plain" && mv -f -- "$answer.plain" "$answer" || return "$EX_COPY"
  return "$rc"
}

# Text that is not ours came first. Whose? A start-up file's where our own follows; else the login did not run our command.
foreign_answer() { # <answer file> <its beginning>
  local REPLY
  plain_text "$2"
  if LC_ALL=C grep -q "^begin $NONCE\$" "$1"; then
    log "the box answers with text of its own before ours: '$REPLY'"
    log "its start-up files print something also when nobody is logged in: let .bashrc be silent there (case \$- in *i*) ;; *) return ;; esac)"
  else
    log "the login at ${HOST_NAME} is a terminal for people: it did not run our command as it was sent, and answered: '$REPLY'"
    shell_only_remedy
  fi
}
shell_only_remedy() {
  log "nothing of ours can pass there. Take the platform's direct address (runbook P1.2: ADDRESS and PORT, then the block of P-1.10);"
  log "where it has none, the bytes go by the platform's own transfer, step by step as in the gotcha U24"
}

transport_failed() { # <file with ssh's words> <status>    returns: 69, or 77 where the host key is another
  local REPLY text
  text=$(tail -c 2000 -- "$1" 2>/dev/null) || text=''
  case $text in
    *'REMOTE HOST IDENTIFICATION HAS CHANGED'* | *'Host key verification failed'*)
      log "the host key of $HOST is not the one that this run pinned in $L/known_hosts: it is another box, or the platform made a new key"
      log "if the platform itself says that it is your box: --new-host-key"
      return "$EX_GATE"
      ;;
  esac
  plain_text "$text"
  log "no whole answer from ${HOST_NAME} (status $2): ${REPLY:-it said nothing}"
  case $text in
    # What gateways with a shell only say to a client that sends a command and asks for no terminal.
    *PTY* | *[Pp]seudo-terminal* | *'not a tty'* | *'requires a terminal'* | *'shell request failed'* | *'exec request failed'*)
      log "this login is a terminal for people and runs no command"
      shell_only_remedy
      return "$EX_GATE"
      ;;
  esac
  # 124: bounded's own word for time that was over.
  [[ $2 != 124 ]] || log "it took the connection and gave no answer in time: a gateway that runs no command (runbook P1.2), or a box that hangs"
  return "$EX_MISSING"
}
