#!/usr/bin/env bash
# patrol.sh: one read-only look at the run: healthy, done, to be looked at, or not known. Always a line.
# Generated; do not edit. Source: templates/local/patrol.sh.j2
# To change it, edit the source or profiles/paperspace.yaml, then: make profile=paperspace
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=patrol.sh

# --- bound values: profiles/paperspace.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=paperspace
# what kind of platform it is
readonly KIND=cloud-vm
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier machine-disk: survives ssh drop, restart, stop, not destroy
DATA_DIR=${DATA_DIR-/home/paperspace/run}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/tmp}
# seconds without a sign of life; 0: no limit
readonly STALL_S=120
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# expected seconds for one cell
readonly NEED_S=6
# ServerAliveInterval
readonly KEEPALIVE_S=15
# ServerAliveCountMax
readonly KEEPALIVE_MAX=4
# --- end of bound values ---

# lib/exit.bash: exit codes by name, the same in every script.
# needs:
# shellcheck disable=SC2034 # the whole table is here; a script uses the codes that it needs
{
  readonly EX_FAIL=1       # the work itself failed: a cell, a verification
  readonly EX_USAGE=64     # wrong call
  readonly EX_INTEGRITY=65 # a digest, manifest or record does not match
  readonly EX_MISSING=69   # something needed is missing or cannot be reached
  readonly EX_NOROOM=73    # no room: bytes or inodes
  readonly EX_COPY=74      # a copy is incomplete or could not be read back
  readonly EX_BUSY=75      # another runner holds it
  readonly EX_GATE=77      # refused: a precondition is not met
  readonly EX_CONFIG=78    # configuration is wrong
  readonly EX_AGAIN=79     # of run_one to run_queue alone: nothing was said nor begun, begin another
}

# lib/log.bash: one line per event on stderr, so that stdout stays data.
# needs: exit    reads: PROG

# The current UTC time into REPLY, without a fork where bash can format it.
utc_now() {
  if ! TZ=UTC0 printf -v REPLY '%(%Y-%m-%dT%H:%M:%SZ)T' -1 2>/dev/null; then
    REPLY=$(date -u +%Y-%m-%dT%H:%M:%SZ) || REPLY=
  fi
}

log() { # <words...>
  local REPLY
  utc_now
  # shellcheck disable=SC2034 # run_one asks whether anything was said
  LOGGED=1
  # Talk stops nothing: whoever listened may be gone, and the disk with the log full.
  printf '%s %s: %s\n' "$REPLY" "$PROG" "$*" >&2 || :
}

# The only way out of a precondition that is not met: one line, then the code.
refuse() { # <exit code> <what> <why> <what to do>
  printf '%s: refused: %s; %s; %s\n' "$PROG" "$2" "$3" "$4" >&2 || :
  exit "$1"
}

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

# lib/file.bash: small files that are whole or not there, also after a power cut.
# needs: exit log

# Flush files and folders to their disks. An old sync takes no names and flushes everything: slower, as safe. But where it
# takes names, a file that it cannot flush is not on the disk (a quota on NFS says so here first, and says it once only),
# and a sync of everything would hide that. Some mounts cannot flush a folder; that alone is no failure.
flush() { # <path...>    returns: 0 or 74
  local path said folders=()
  # A command line has room for so many.
  while (($# > 500)); do
    flush "${@:1:500}" || return
    shift 500
  done
  said=$(LC_ALL=C exec sync -- "$@" 2>&1) && return 0
  if sync -- "$BASH" 2>/dev/null; then
    for path in "$@"; do
      if [[ -d $path ]]; then
        folders+=("$path")
      # Beside a folder that fails too it is told apart by its name: nobody names it a second time.
      elif [[ $said == *"$path"[\'\":]* ]]; then
        return 74
      fi
    done
    ((${#folders[@]} == $#)) || { ((${#folders[@]} > 0)) && ! sync -- "${folders[@]}" 2>/dev/null; } || return 74
  fi
  sync
}

# A whole small file into REPLY, without a process. A file that holds a NUL is no text.
read_text() { # <file>    returns: 0, or 1 where it cannot be read or is no text
  REPLY=''
  [[ -f $1 ]] || return 1
  ! { IFS= read -r -d '' REPLY <"$1"; } 2>/dev/null || return 1
  # Where it could not be opened nothing was read either.
  [[ -n $REPLY || -r $1 ]]
}

# Put TEXT into FILE: temporary name beside it, flushed, renamed, read back.
# With "soon" nothing is flushed: for what may be lost in a power cut, because its loss is seen and costs little.
# With "behind" the paths that follow are flushed with the text in one call, before the rename: the name speaks of them.
# The rename itself may be lost; the old text is then still true.
replace_file() { # <file> <text> [soon | behind <paths...>]    returns: 0, or 74 with nothing changed under the name
  local REPLY file=$1 text=$2 dir=${1%/*} tmp how=${3-}
  shift $(($# < 3 ? $# : 3))
  [[ $dir != "$file" ]] || dir=.
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || { [[ $how != soon ]] && ! flush "$tmp" "$@"; } || ! mv -f -- "$tmp" "$file"; then
    rm -f -- "$tmp" 2>/dev/null || :
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  [[ -n $how ]] || flush "$dir"
  read_text "$file" && [[ $REPLY == "$text" ]] || {
    log "$file does not read back as it was written"
    return "$EX_COPY"
  }
}

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

# lib/proc.bash: who a process is. A number alone is recycled; with its start and this boot it is one process.
# needs:

# No dead mount, driver or server makes us wait for ever: WORDS, ended after SECONDS where a `timeout` works here, killed where they
# do not heed that.
within() { # <seconds> <words...>    returns: theirs, or 124
  local limit=$1 rc=0 begin=$SECONDS
  shift
  if ! command -v timeout >/dev/null 2>&1; then
    "$@"
  elif timeout -k 5 5 true 2>/dev/null; then
    timeout -k 5 "$limit" "$@" || rc=$?
  elif timeout 5 true 2>/dev/null; then
    timeout "$limit" "$@" || rc=$?
  else
    "$@"
  fi || return
  # Ended at the limit: by TERM under busybox (143), by KILL where TERM was not heeded (137). Before it, that is the words' own status.
  case $rc in 137 | 143) ((SECONDS - begin < limit)) || rc=124 ;; esac
  return "$rc"
}

# lib/room.bash: bytes and inodes that are free, and whether a tier is really there.
# needs: exit log path proc

# lib/compat.bash: the laptop's userland, be it GNU, busybox or BSD. Bash 3.2 is enough.
# needs: exit log

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

# lib/host.bash: HOST, as a person gives it.
# needs: exit log    reads: KIND HOST

# HOST becomes an argument of ssh: one that is no host is refused before ssh sees it.
check_host() { # sets HOST_NAME
  local name own
  [[ $KIND != owned ]] || { HOST_NAME=here && return 0; }
  [[ -n $HOST ]] || refuse "$EX_CONFIG" "HOST" "it is not set, so there is no box to talk to" "give the ssh alias or user@host as argument, or set HOST"
  if [[ ! $HOST =~ ^[A-Za-z0-9_][A-Za-z0-9._@-]*$ ]]; then
    refuse "$EX_CONFIG" "HOST '${HOST//[[:cntrl:]]/?}'" "it is no ssh alias and no user@host" "put port and key under an alias into ~/.ssh/config and give that"
  fi
  name=${HOST#*@}
  HOST_NAME=$HOST
  own=$(hostname 2>/dev/null) || own=${HOSTNAME-}
  case $name in
    localhost | localhost.* | "$own" | "${own%%.*}")
      refuse "$EX_CONFIG" "HOST '$HOST'" "that is this machine itself" "give the box's address; for a tunnel, an alias in ~/.ssh/config"
      ;;
  esac
}

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

# lib/patrol_box.bash: what patrol looks at on the box. Sent there (declare -f); it reads, writes nothing, signals nothing of the run's.
# needs: exit log path room ssh
# reads, besides the places: RUN STATUS_SH SEEN FAST_S SCRATCH
#
# Facts, one a line, for the laptop to judge: every probe has its own end, and one that does not end says so.

# Run WORDS with an end; what they print goes into REPLY. One that hangs, also against KILL, is not waited for.
probe() { # <seconds> <words...>    returns: theirs unless 0, 124 where it did not end in time
  local limit=$1 pid='' rc=0 fd out='' part
  shift
  REPLY=''
  exec {fd}< <(
    printf '%s\n' "$BASHPID"
    "$@" </dev/null 2>/dev/null
    printf '\nrc %s\n' $?
  )
  IFS= read -r -t "$limit" -u "$fd" pid || rc=124
  # A NUL never comes, so this reads to the end, or to the end of the time.
  IFS= read -r -d '' -t "$limit" -u "$fd" part || { (($? <= 128)) || rc=124; }
  exec {fd}<&-
  if ((rc == 124)); then
    [[ ! $pid =~ ^[0-9]+$ ]] || kill_tree "$pid"
    return 124
  fi
  part=${part%$'\n'}
  out=${part##*$'\n'}
  REPLY=${part%$'\n'*}
  REPLY=${REPLY%$'\n'}
  [[ $part == *$'\n'* ]] || REPLY=''
  rc=${out#rc }
  [[ $rc =~ ^[0-9]+$ ]] || rc=1
  return "$rc"
}
# Our own probe and its children, nothing else: their parent is the number that it told us.
kill_tree() { # <pid>
  local child children=''
  { IFS= read -r children <"/proc/$1/task/$1/children"; } 2>/dev/null || :
  # From the top, so that none is there to start the next.
  kill -KILL "$1" 2>/dev/null || :
  for child in $children; do kill_tree "$child"; done
}

lines_with() { # <key> <text>: each line of the text behind a key
  local line
  while IFS= read -r line; do printf '%s %s\n' "$1" "$line"; done <<<"$2"
}

look_around() {
  box_places
  printf 'now %s\nhost %s\nfolder %s\n' "$(date +%s)" "$(cat /proc/sys/kernel/hostname 2>/dev/null)" "$D"
  look_status
  look_tier_room data "$DATA_DIR"
  [[ -z $DURABLE_DIR || $DURABLE_DIR == "$DATA_DIR" ]] || look_tier_room durable "$DURABLE_DIR"
  expand_path SCRATCH
  [[ -z $SCRATCH ]] || look_tier_room scratch "$SCRATCH"
  look_gpu
  look_memory
  # A dead mount hangs whoever asks: what reads the run's folders has its own end.
  if bounded_look 4 'processes of the run' look_processes; then
    look_logs
    bounded_look 4 'times of the cells' look_fast || :
  fi
  bounded_look 4 'how the run ended' look_end || :
}
bounded_look() { # <seconds> <what> <function>    returns: 124 where it did not end in time
  probe "$1" "$3" || { (($? != 124)) || { printf 'unknown %s: no answer in %s s\n' "$2" "$1" && return 124; }; }
  [[ -z $REPLY ]] || printf '%s\n' "$REPLY"
}

# The run's own status script judges its records: there is one such judgement, not two.
look_status() {
  local script=$D/box/current/status.sh rc=0
  [[ -f $script ]] || script=$STATUS_SH
  [[ -n $script && -f $script ]] || { printf 'status-failed no status.sh on the box: push first\n' && return 0; }
  probe 10 env "RUN=$RUN" "DATA_DIR=$DATA_DIR" "DURABLE_DIR=$DURABLE_DIR" bash "$script" --json || rc=$?
  if ((rc == 0)); then
    lines_with status "$REPLY"
  elif ((rc == 69)) && [[ -d $DATA_DIR ]]; then
    printf 'status-none\n'
  else
    printf 'status-failed status.sh ended with %s\n' "$rc"
  fi
}

look_tier_room() { # <name> <path>    "room NAME bytes TOTAL USED AVAIL" and "room NAME inodes ..."
  local kind flag line
  for kind in bytes inodes; do
    [[ $kind == bytes ]] && flag=-k || flag=-i
    # The path itself is touched inside the probe only: a dead mount hangs whoever asks.
    # shellcheck disable=SC2016 # expanded by the probe's own shell
    if ! probe 4 bash -c 'p=$2; while [[ -n $p && ! -e $p ]]; do p=${p%/*}; done; exec df -P "$1" -- "${p:-/}"' df "$flag" "$2"; then
      printf 'room %s %s UNKNOWN\n' "$1" "$kind"
      [[ $kind == bytes ]] || continue
      printf 'room %s inodes UNKNOWN\n' "$1"
      return 0
    fi
    # A long device name wraps: the figures are together all the same.
    line=${REPLY#*$'\n'}
    line=${line//$'\n'/ }
    if [[ $line =~ \ ([0-9]+)\ +([0-9]+)\ +(-?[0-9]+)\ +([0-9]+|-)%?\  ]] && ((BASH_REMATCH[1] > 0)); then
      printf 'room %s %s %s %s %s\n' "$1" "$kind" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}"
    else
      printf 'room %s %s n/a\n' "$1" "$kind"
    fi
  done
}

look_gpu() {
  local dir name rc=0
  command -v nvidia-smi >/dev/null 2>&1 || { printf 'gpu none\n' && return 0; }
  # One of an earlier look that still hangs in the driver is not joined by a second.
  for dir in /proc/[0-9]*; do
    { IFS= read -r name <"$dir/comm"; } 2>/dev/null || continue
    [[ $name == nvidia-smi ]] || continue
    grep -q '^State:[[:space:]]*D' "$dir/status" 2>/dev/null || continue
    printf 'gpu UNKNOWN(an earlier query still hangs)\n'
    return 0
  done
  probe 5 nvidia-smi --query-gpu=index,utilization.gpu,memory.used,memory.total,temperature.gpu --format=csv,noheader,nounits || rc=$?
  case $rc in
    0) lines_with gpu "${REPLY:-UNKNOWN(no answer)}" ;;
    124) printf 'gpu UNKNOWN(timeout)\n' ;;
    *) printf 'gpu UNKNOWN(status %s)\n' "$rc" ;;
  esac
}

# Memory of the control group that we are in, where it has a limit; else the machine's.
look_memory() {
  local root=${FAKE_ROOT-}/sys/fs/cgroup used='' limit='' key value total='' free=''
  { IFS= read -r limit <"$root/memory.max" && IFS= read -r used <"$root/memory.current"; } 2>/dev/null ||
    { IFS= read -r limit <"$root/memory/memory.limit_in_bytes" && IFS= read -r used <"$root/memory/memory.usage_in_bytes"; } 2>/dev/null || :
  if [[ $limit =~ ^[0-9]{1,15}$ && $used =~ ^[0-9]+$ ]]; then
    printf 'memory cgroup %s %s\n' "$used" "$limit"
    return 0
  fi
  while read -r key value _; do
    case $key in
      MemTotal:) total=$value ;;
      MemAvailable:) free=$value ;;
    esac
  done 2>/dev/null <"${FAKE_ROOT-}/proc/meminfo"
  if [[ -n $total && -n $free ]]; then
    printf 'memory machine %s %s\n' $(((total - free) * 1024)) $((total * 1024))
  else
    printf 'memory UNKNOWN\n'
  fi
}

# Processes that carry this run's id: ours by birth, whatever they are called, and never this look itself.
look_processes() {
  local id file pid stat fields n=0 ticks uptime
  id=$(box_member "$D/run.json" run_id)
  [[ -n $id ]] || return 0
  read -r uptime _ </proc/uptime || return 0
  ticks=$(getconf CLK_TCK 2>/dev/null) || ticks=100
  while IFS= read -r file; do
    pid=${file#/proc/} pid=${pid%/environ}
    { IFS= read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }"
    n=$((n + 1))
    ((n <= 8)) || continue
    stat=${stat#*(}
    printf 'process %s ppid %s state %s for %s s, %s MB, %s\n' "$pid" "${fields[1]}" "${fields[0]}" \
      $((${uptime%.*} - fields[19] / ticks)) $((fields[21] * 4 / 1024)) "${stat%)*}"
  done < <(grep -lsz "^RUN_ID=$id\$" /proc/[0-9]*/environ 2>/dev/null)
  printf 'processes %s\n' "$n"
}

# What the newest log of each cell says since the last look. SEEN has lines "bytes path". Bounded to the last megabyte.
look_logs() {
  local dir file bytes seen from count first pattern
  pattern='^Traceback \(most recent call last\)|^[A-Za-z_][A-Za-z0-9_.]*(Error|Exception)(:|$)|(^|[^A-Za-z])(ERROR|FATAL|CRITICAL)([^A-Za-z]|$)|CUDA error|CUDA out of memory|Segmentation fault|^Killed$'
  for dir in "$D"/logs/*/; do
    file=''
    for file in "$dir"attempt-*.log; do :; done
    [[ -f $file ]] || continue
    bytes=$(stat -c %s -- "$file" 2>/dev/null) || continue
    case $'\n'$SEEN in
      *" $file"$'\n'*)
        seen=$'\n'$SEEN
        seen=${seen%%" $file"$'\n'*}
        seen=${seen##*$'\n'}
        ;;
      *) seen=0 ;;
    esac
    [[ $seen =~ ^[0-9]+$ ]] && ((seen <= bytes)) || seen=0
    from=$seen count=0 first=''
    ((bytes - from <= 1048576)) || from=$((bytes - 1048576))
    # shellcheck disable=SC2016 # expanded by the probe's own shell
    if ((bytes > from)) && probe 4 bash -c 'tail -c "+$1" -- "$2" | tr "\r" "\n" | grep -aE "$3" | head -n 1000' logs $((from + 1)) "$file" "$pattern"; then
      if [[ -n $REPLY ]]; then
        first=${REPLY%%$'\n'*}
        count=$(grep -c '' <<<"$REPLY") || count=1
      fi
    fi
    printf 'log %s %s %s\n' "$bytes" "$count" "$file"
    [[ -z $first ]] || printf 'log-line %s\n' "${first:0:160}"
  done
}

# Cells that are done in less than half of the time that the job said.
look_fast() {
  local n
  n=$(cat -- "$D"/state/*.json 2>/dev/null | awk -F'"' -v limit="$FAST_S" '
    function at(t,   y, m, d, e, o) {
      y = substr(t, 1, 4) + 0; m = substr(t, 6, 2) + 0; d = substr(t, 9, 2) + 0
      if (m <= 2) y--
      e = int(y / 400); o = y - e * 400
      return (e * 146097 + o * 365 + int(o / 4) - int(o / 100) + int((153 * (m + (m > 2 ? -3 : 9)) + 2) / 5) + d - 1) * 86400 \
        + substr(t, 12, 2) * 3600 + substr(t, 15, 2) * 60 + substr(t, 18, 2)
    }
    # A resumed attempt had less to do.
    $2 == "state" { state = $4 }
    $2 == "attempt" { first = ($3 ~ /^: 1,/) }
    $2 == "started" { started = $4 }
    $2 == "ended" && state == "done" && first && at($4) - at(started) < limit { n++ }
    END { print n + 0 }') || n=0
  printf 'fast %s\n' "$n"
}

# How the formal run ended, as it says itself, and what a person has excepted by name in the last manifest.
look_end() {
  local file member value id
  for file in "$D/FORMAL_FAILURE.json" "$B/FORMAL_SUCCESS"; do
    [[ -s $file ]] || continue
    for member in start_id stage log remedy power_off manifest_sha256 ended; do
      # Not box_member: a remedy is a sentence, with its commas.
      value=$(sed -n 's/^  "'"$member"'": "\{0,1\}\(.*[^",]\)"\{0,1\},\{0,1\}$/\1/p' "$file" 2>/dev/null)
      [[ -z $value ]] || printf 'end-%s %s %s\n' "${file##*/}" "$member" "$value"
    done
  done
  file=$B/PULL_MANIFEST.json
  [[ -s $file ]] || return 0
  id=$(box_member "$file" run_id)
  [[ -n $id && $id == "$(box_member "$D/run.json" run_id)" ]] || return 0
  awk -F'"' '
    $2 == "cells_expected" { expected = substr($3, 3) + 0 }
    $2 == "cell" && $6 == "state" { state[$8]++ }
    $2 == "files" { exit }
    END { printf "settled %d %d %d\n", expected, state["done"], state["excepted"] }' "$file"
}

# lib/patrol.bash: what the facts of a look mean: healthy, done, to be looked at by a person, or not known.
# needs: exit log file record compat ssh
# reads: the answer of look_around; L; STALL_S NEED_DISK_BYTES SAVE_S

# Worst first: an escalation stays one, whatever else is not known.
escalate() { # <why> <what to do>
  [[ $VERDICT == escalate ]] || VERDICT=escalate WHY=''
  WHY+="${WHY:+ | }$1 -> $2"
}
not_known() { # <why>
  [[ $VERDICT == escalate ]] || VERDICT=unknown
  NOTE+="${NOTE:+; }$1"
}
note() { # <text>
  NOTE+="${NOTE:+; }$1"
}

# The last look of ours, into LAST_*; all empty where there was none.
read_last_look() {
  local line
  LAST_TIME='' TREND_SINCE='' LAST_SUCCESS=false LAST_POWER_OFF=false LAST_RUN_ID='' SEEN='' LAST_USED_data='' LAST_USED_durable='' LAST_INODES_data='' LAST_INODES_durable=''
  read_record "$L/patrol.json" patrol/1 || return 0
  LAST_TIME=${R_time_s-} TREND_SINCE=${R_trend_since_s-} LAST_SUCCESS=${R_success_seen-false} LAST_POWER_OFF=${R_power_off-false} LAST_RUN_ID=${R_run_id-}
  LAST_USED_data=${R_data_bytes_used-} LAST_USED_durable=${R_durable_bytes_used-}
  LAST_INODES_data=${R_data_inodes_used-} LAST_INODES_durable=${R_durable_inodes_used-}
  while IFS= read -r line; do
    [[ $line =~ ^\ {4}\"([0-9]+\ /[^\"]*)\",?$ ]] || continue
    SEEN+=${BASH_REMATCH[1]}$'\n'
  done <"$L/patrol.json"
}

# The answer's lines into facts: S_<member> of status.sh, and the others as they are.
read_facts() { # <answer file>
  local line text member
  FACT_NOW='' STATUS='' STATUS_WHY='' GPU='' MEMORY='' PROCESSES='' FAST=0 LOGS='' NEW_ERRORS=0 FIRST_ERROR='' FAILURE='' FAILED_AT='' SUCCESS_POWER=''
  ROOM='' TREE='' UNANSWERED='' SETTLED=''
  for member in run_id state planned pending running 'done' unsynced failed preempted unknown last_progress_s eta_s session why; do printf -v "S_$member" '%s' ''; done
  while IFS= read -r line; do
    plain_line "$line"
    line=$REPLY
    text=${line#* }
    case $line in
      'now '*) FACT_NOW=$text ;;
      'status '*) take_status "$text" ;;
      'status-none'*) STATUS=none ;;
      'status-failed '*) STATUS=failed STATUS_WHY=$text ;;
      'room '*) ROOM+=$text$'\n' ;;
      'gpu '*) GPU+=$text$'\n' ;;
      'memory '*) MEMORY=$text ;;
      'processes '*) PROCESSES=$text ;;
      'process '*) TREE+="  $line"$'\n' ;;
      'fast '*) FAST=$text ;;
      'unknown '*) UNANSWERED+="${UNANSWERED:+; }$text" ;;
      'settled '*) SETTLED=$text ;;
      'log '*) take_log "$text" ;;
      'log-line '*) [[ -n $FIRST_ERROR ]] || FIRST_ERROR=$text ;;
      'end-FORMAL_FAILURE.json ended '*) FAILED_AT=${text#ended } ;;
      'end-FORMAL_FAILURE.json '*) FAILURE+="${FAILURE:+, }$text" ;;
      'end-FORMAL_SUCCESS power_off '*) SUCCESS_POWER=${text#power_off } ;;
    esac
  done <"$1"
}
# No fork for the many lines that are plain already.
plain_line() { # <text>    into REPLY
  REPLY=$1
  [[ $1 != *[[:cntrl:]]* ]] || plain_text "$1"
}
take_status() { # <line of line JSON>
  local member value
  if [[ $1 =~ ^\ *\"([a-z_]+)\":\ \"?([^\"]*)\"?,?$ ]]; then
    member=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]%,}
    case $member in
      run_id | state | planned | pending | running | 'done' | unsynced | failed | preempted | unknown | last_progress_s | eta_s | session | why)
        STATUS='read'
        [[ $value != null ]] || value=''
        printf -v "S_$member" '%s' "$value"
        ;;
    esac
  fi
}
take_log() { # <bytes count path>
  local bytes=${1%% *} rest=${1#* }
  [[ $bytes =~ ^[0-9]+$ && ${rest%% *} =~ ^[0-9]+$ && ${rest#* } != *[\"\\]* ]] || return 0
  LOGS+="$bytes ${rest#* }"$'\n'
  NEW_ERRORS=$((NEW_ERRORS + ${rest%% *}))
}

# The run itself.
judge_run() {
  local start='formal_run.sh start there (P3.2)'
  [[ $KIND != slurm ]] || start='submit the job (P3.2)'
  case $STATUS in
    none) escalate "no run has begun on the box" "start it: $start; or it lies elsewhere: --data-dir" && return 0 ;;
    'read') ;;
    *) not_known "${STATUS_WHY:-the box did not say what the run is in}" && return 0 ;;
  esac
  ! settled || return 0
  ((${S_failed:-0} == 0)) || escalate "${S_failed-} cells failed" "status.sh there names class and log; each class has its remedy in the runbook"
  ((${S_unsynced:-0} == 0)) || escalate "${S_unsynced-} cells are finished but not in the bundle" "make room or attach the storage, then aggregate_to_fs.sh there"
  case ${S_state-} in
    # A proof of a part, or a power-off that failed: the record says it, and so do we.
    success) over "${S_why:+${S_why-}; }" && return 0 ;;
    'done') over '' && return 0 ;;
    failed)
      escalate "FAILED, $(meter_since): ${S_why:-no reason given}${FAILURE:+ ($FAILURE)}" "read its log; keep the machine; it goes on with: $start"
      return 0
      ;;
    stopped | lost | idle) escalate "the run is ${S_state-}${S_why:+: ${S_why-}}" "start it again, it goes on: $start" && return 0 ;;
    unknown)
      not_known "the run's state is not known${S_why:+: ${S_why-}}"
      [[ $KIND == slurm || ${S_why-} != *'look there' ]] || note "if that box is gone for good: $start with --adopt"
      return 0
      ;;
  esac
  case ${S_session-} in
    alive) ;;
    gone) escalate "nothing runs${S_why:+: ${S_why-}}" "start it: $start" ;;
    *) not_known "whether its session lives cannot be told" ;;
  esac
  judge_progress
}

# A person has excepted by name what is not done, so nothing is left to be done: the manifest says so, and nothing runs.
settled() {
  local expected finished excepted rest
  read -r expected finished excepted rest <<<"$SETTLED"
  [[ ${excepted-} =~ ^[1-9][0-9]*$ && $((finished + excepted)) -eq $expected && $expected == "${S_planned-}" ]] || return 1
  [[ ${S_session-} == gone && ${S_running-} == 0 && ${S_unsynced-} == 0 && ${S_done-} == "$finished" ]] || return 1
  over "$excepted of $expected cells are excepted by name: "
}
over() { # <words before>
  VERDICT=${VERDICT/healthy/done}
  if [[ $KIND == ssh-rental || $KIND == cloud-vm ]]; then note "$1over, with the $(meter_since): aggregate, pull, verify, teardown"; else [[ -z $1 ]] || note "$1over"; fi
}

# A failed run keeps the machine, and the machine keeps costing (case 129).
meter_since() { # prints
  # Only a rented box goes on costing by being there.
  [[ $KIND == ssh-rental || $KIND == cloud-vm ]] || { printf 'nothing runs%s' "${FAILED_AT:+ since $FAILED_AT}" && return 0; }
  printf 'meter running%s' "${FAILED_AT:+ since $FAILED_AT}"
  [[ ! ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]] || printf ' at %s an hour' "$PRICE_PER_HOUR"
}

# Alive is not progress: the age of the last sign of it decides. A start gets its time: nothing is judged before the first.
judge_progress() {
  local limit=$STALL_S
  local age=${S_last_progress_s-}
  ((limit > 0)) || limit=1800
  ((${S_running:-0} > 0)) || return 0
  if [[ ! $age =~ ^-?[0-9]+$ ]]; then
    not_known "how old its last progress is cannot be told"
  elif ((age < 0)); then
    not_known "files of the run are dated in the future: a clock is wrong"
  elif ((age > limit)); then
    escalate "no progress for $age s (limit $limit)" "look at its log's end and at the GPU; stop and start it if it hangs"
  fi
  [[ -z $PROCESSES || $PROCESSES != 0 ]] || not_known "${S_running-} cells are running by their records, and no process carries this run's id (another user's, or between two cells)"
}

judge_room() { # sets ROOM_TEXT
  local name kind total used free percent
  ROOM_TEXT='' TREND_SPAN=0 TREND_ANEW=true
  if [[ $TREND_SINCE =~ ^[0-9]+$ && $FACT_NOW =~ ^[0-9]+$ ]] && ((FACT_NOW >= TREND_SINCE)); then
    TREND_SPAN=$((FACT_NOW - TREND_SINCE)) TREND_ANEW=false
    ((TREND_SPAN < TREND_MAX_S)) || TREND_ANEW=true
  fi
  while read -r name kind total used free; do
    [[ -n $name ]] || continue
    if [[ $total == UNKNOWN ]]; then
      ROOM_TEXT+=" $name.$kind=UNKNOWN"
      [[ $name == scratch ]] || not_known "the $name tier does not answer"
      continue
    elif [[ ! $total =~ ^[0-9]+$ || ! $used =~ ^[0-9]+$ || ! $free =~ ^-?[0-9]+$ ]]; then
      ROOM_TEXT+=" $name.$kind=n/a"
      continue
    fi
    percent=$((used * 100 / total))
    ROOM_TEXT+=" $name.$kind=$percent%"
    if ((percent >= 95)); then
      escalate "$name: $percent% of its $kind are used" "make room: prune $name, or a larger disk"
    elif ((percent >= 85)); then
      note "$name: $percent% of its $kind are used"
    fi
    if [[ $kind == bytes ]]; then
      [[ $name == scratch ]] || ((free * 1024 >= NEED_DISK_BYTES)) || [[ -z ${S_pending-} || ${S_pending-} == 0 ]] ||
        escalate "$name: $((free / 1024)) MB free, less than one cell needs" "make room before the next cell"
      used=$((used * 1024)) free=$((free * 1024))
    fi
    trend "$name" "$kind" "$used" "$free"
  done <<<"$ROOM"
}

# A pace is taken over some minutes at least: what is copied in the seconds between two looks says nothing of the hours to come.
readonly TREND_S=300 TREND_MAX_S=1800

# Growth since the figures that were kept, and when it will be full at that pace.
trend() { # <name> <kind> <used> <free>
  local before left span
  case $1.$2 in
    data.bytes) before=$LAST_USED_data NOW_data_bytes=$3 ;;
    data.inodes) before=$LAST_INODES_data NOW_data_inodes=$3 ;;
    durable.bytes) before=$LAST_USED_durable NOW_durable_bytes=$3 ;;
    durable.inodes) before=$LAST_INODES_durable NOW_durable_inodes=$3 ;;
    *) return 0 ;;
  esac
  [[ $before =~ ^[0-9]+$ ]] || { TREND_ANEW=true && return 0; }
  ((TREND_SPAN >= TREND_S && $3 > before)) || return 0
  span=$TREND_SPAN
  left=$(($4 * span / ($3 - before)))
  ROOM_TEXT+="(+$((($3 - before) * 3600 / span))/h)"
  if ((left < 3600)); then
    escalate "$1 will be out of $2 in $((left / 60)) min at this pace" "make room now"
  elif ((left < 21600)); then
    note "$1 will be out of $2 in $((left / 3600)) h at this pace"
  fi
}

# A card's figures are numbers, or they are not known: never idle because a text was read as 0.
judge_gpu() { # sets GPU_TEXT
  local line index use used total temp out
  GPU_TEXT=''
  while IFS= read -r line; do
    [[ -n $line ]] || continue
    case $line in none | UNKNOWN*) GPU_TEXT+=" gpu=$line" && continue ;; esac
    IFS=, read -r index use used total temp out <<<"$line"
    index=${index// /} use=${use// /} used=${used// /} total=${total// /} temp=${temp// /}
    if [[ ! $index =~ ^[0-9]+$ ]]; then
      GPU_TEXT+=' gpu=UNKNOWN'
      continue
    fi
    [[ $use =~ ^[0-9]+$ ]] || use=UNKNOWN
    [[ $used =~ ^[0-9]+$ && $total =~ ^[0-9]+$ ]] || used=UNKNOWN total=UNKNOWN
    [[ $temp =~ ^[0-9]+$ ]] || temp=UNKNOWN
    GPU_TEXT+=" gpu$index=$use%,$used/${total}MB,${temp}C"
  done <<<"${GPU:-UNKNOWN}"
}

judge_memory() { # sets MEMORY_TEXT
  local kind used limit percent
  read -r kind used limit <<<"$MEMORY"
  MEMORY_TEXT=' mem=UNKNOWN'
  [[ ${used-} =~ ^[0-9]+$ && ${limit-} =~ ^[1-9][0-9]*$ ]] || return 0
  percent=$((used * 100 / limit))
  MEMORY_TEXT=" mem($kind)=$percent%"
  ((percent < 95)) || escalate "memory is at $percent% of its limit" "fewer cells at once, or a smaller batch: the kernel kills next"
}

judge_logs() {
  ((NEW_ERRORS > 0)) || return 0
  # At a first look everything is new, so nothing is news.
  if [[ -n $LAST_TIME && $LAST_RUN_ID == "${S_run_id-}" ]]; then
    escalate "$NEW_ERRORS new lines of errors in its logs: $FIRST_ERROR" "read the log; the record of the cell says whether it went on"
  else
    note "$NEW_ERRORS lines of errors in its logs (first look): $FIRST_ERROR"
  fi
}

write_last_look() {
  local line comma='' list='' success=$LAST_SUCCESS power=$LAST_POWER_OFF
  # A run that was started again after its success is as mortal as before.
  if [[ $STATUS == 'read' ]]; then success=false power=false; fi
  if [[ ${S_state-} == success ]]; then success=true power=${SUCCESS_POWER:-false}; fi
  [[ $power == true || $power == false ]] || power=false
  record_open patrol/1
  utc_now
  record_text time "$REPLY"
  record_int time_s "$FACT_NOW" || return
  record_text run_id "${S_run_id-}"
  record_text verdict "$VERDICT"
  record_text why "$WHY"
  record_bool success_seen "$success" || return
  record_bool power_off "$power" || return
  if [[ $TREND_ANEW == true ]]; then
    TREND_SINCE=$FACT_NOW LAST_USED_data=${NOW_data_bytes-} LAST_INODES_data=${NOW_data_inodes-}
    LAST_USED_durable=${NOW_durable_bytes-} LAST_INODES_durable=${NOW_durable_inodes-}
  fi
  record_int trend_since_s "$TREND_SINCE" || return
  record_int data_bytes_used "$LAST_USED_data" || return
  record_int data_inodes_used "$LAST_INODES_data" || return
  record_int durable_bytes_used "$LAST_USED_durable" || return
  record_int durable_inodes_used "$LAST_INODES_durable" || return
  while IFS= read -r line; do
    [[ -n $line ]] || continue
    list+="$comma    \"$line\""
    comma=,$'\n'
  done <<<"$LOGS"
  RECORD+=,$'\n''  "logs": ['$'\n'"${list:+$list$'\n'}"'  ]'
  record_close
  replace_file "$L/patrol.json" "$RECORD"
}

readonly TICK_S=45 # a look ends by then, whatever hangs

usage() {
  cat <<'USAGE'
usage: patrol.sh [HOST] [--json] [--print] [--new-host-key] [--data-dir P] [--durable-dir P]

Looks at the run on the box, once, and prints one line; further lines where a person should look. One connection; it only
reads there. It tells: the run's state by its records, the age of its last progress, room and inodes of each tier with their
trend, GPUs, memory, processes of the run, new errors in the logs, cells that were done surprisingly fast. What it cannot
see is UNKNOWN, never fine. It starts, stops and repairs nothing.

--json          the verdict as one record
--print         say what would be done, and do nothing
--new-host-key  move the pinned host key aside: only after the platform itself has said that the box has a new one
--data-dir P, --durable-dir P  where the run lies on the box, if not where the profile says

exit codes: 0 healthy or done; 1 a person should look: the line says why and what to do; 69 not known: the box or a part of
it did not answer, which does not mean that the run is dead; 64 usage, 78 configuration
USAGE
}

bad_usage() { # <why>
  printf '%s: %s\n' "$PROG" "$1" >&2
  usage >&2
  exit "$EX_USAGE"
}
parse_words() { # <words...>    sets HOST PRINT JSON NEW_KEY TYPED DATA_DIR DURABLE_DIR
  local given=''
  HOST=${HOST-} PRINT=false JSON=false NEW_KEY=false TYPED=''
  while (($# > 0)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --print) PRINT=true ;;
      --json) JSON=true ;;
      --new-host-key) NEW_KEY=true ;;
      --data-dir | --durable-dir)
        (($# > 1)) || bad_usage "$1 wants a value"
        if [[ $1 == --data-dir ]]; then DATA_DIR=$2 TYPED+=' DATA_DIR'; else DURABLE_DIR=$2 TYPED+=' DURABLE_DIR'; fi
        shift
        ;;
      -*) bad_usage "'${1//[[:cntrl:]]/?}' is no option, and no host begins with a dash" ;;
      *)
        [[ -z $given ]] || bad_usage "one HOST at most"
        given=$1 HOST=$1
        ;;
    esac
    shift
  done
}

# One connection, never one of earlier: it would answer for a dead box.
look() { # returns: 0 looked, else not
  local rc=0 STATUS_SH='' FAST_S self
  self=${BASH_SOURCE[0]-}
  if [[ $KIND == owned && $self == */* ]]; then STATUS_SH=$(cd -P -- "${self%/*}/.." && pwd -P)/box/status.sh; fi
  FAST_S=$((NEED_S / 2))
  ssh_words liveness
  ANSWER=$L/.partial/patrol-answer
  on_box "$ANSWER" "$TICK_S" look_around -- PROG RUN DATA_DIR DURABLE_DIR SCRATCH STATUS_SH SEEN FAST_S -- \
    box_places box_member require_path expand_path probe kill_tree lines_with bounded_look look_status look_tier_room look_gpu look_memory \
    look_processes look_logs look_fast look_end 2>"$L/.partial/patrol-said" || rc=$?
  return "$rc"
}

# No answer is no answer: only a success that we saw ourselves, with the power-off asked for, explains the silence.
judge_silence() { # <code>
  local said
  said=$(tail -n 3 -- "$L/.partial/patrol-said" 2>/dev/null | tr '\n' ' ') || said=''
  plain_text "$said"
  if [[ $1 == "$EX_MISSING" && $LAST_SUCCESS == true && $LAST_POWER_OFF == true && ${KNOWN_RUN_ID:-$LAST_RUN_ID} == "$LAST_RUN_ID" ]]; then
    VERDICT='done'
    note "not reached; its success was seen before, and it was to switch itself off then: collect the bundle from the durable tier"
  else
    not_known "the box was not looked at, which does not mean that it is dead ($REPLY); does the platform's own page show it, and at which address (P1.3)?"
  fi
}

judge() {
  local known
  read_facts "$ANSWER"
  known=${KNOWN_RUN_ID:-${S_run_id-}}
  [[ -z ${S_run_id-} || ${S_run_id-} == "$known" ]] || escalate "the box has run ${S_run_id-}, and $L is of run $known" "is that the right box? else give it a RUN of its own"
  judge_run
  judge_room
  judge_gpu
  judge_memory
  judge_logs
  [[ -z $UNANSWERED ]] || not_known "$UNANSWERED"
  ((${FAST:-0} == 0)) || note "$FAST cells were done in less than half of the expected time: look whether they did all their work"
}

say() {
  local REPLY
  utc_now
  if [[ $JSON == true ]]; then
    say_json
    return
  fi
  printf '%s %s.%s: %s; done %s/%s running %s pending %s failed %s; progress %s s ago, to go %s s;%s%s%s%s\n' "$REPLY" "$PROFILE" "$RUN" \
    "$VERDICT" "${S_done:-?}" "${S_planned:-?}" "${S_running:-?}" "${S_pending:-?}" "${S_failed:-?}" "${S_last_progress_s:-?}" "${S_eta_s:-?}" \
    "${ROOM_TEXT- room UNKNOWN}" "${GPU_TEXT- gpu=UNKNOWN}" "${MEMORY_TEXT- mem=UNKNOWN}" "${NOTE:+; $NOTE}"
  [[ -z $WHY ]] || printf '  look: %s\n' "$WHY"
  [[ $VERDICT == healthy || $VERDICT == 'done' || -z ${TREE-} ]] || printf '%s' "$TREE"
}
say_json() {
  local now=$REPLY name
  record_open patrol_line/1
  record_text time "$now"
  record_text run_id "${S_run_id-}"
  record_text verdict "$VERDICT"
  record_text why "$WHY"
  record_text note "$NOTE"
  record_text state "${S_state-}"
  for name in planned pending running 'done' unsynced failed preempted unknown last_progress_s eta_s; do
    now=S_$name
    now=${!now-}
    [[ $now =~ ^-?[0-9]+$ ]] || now=''
    record_int "$name" "$now"
  done
  record_text room "${ROOM_TEXT-}"
  record_text gpu "${GPU_TEXT-}"
  record_text memory "${MEMORY_TEXT-}"
  record_close
  printf '%s' "$RECORD"
}

main() {
  local REPLY rc=0
  parse_words "$@"
  check_host
  local_places
  if [[ $PRINT == true ]]; then
    printf 'would look, reading only, at %s on %s: %s/%s and its status.sh, disks, GPUs, memory, logs\nnothing was done\n' "$RUN" "$HOST_NAME" "$DATA_DIR" "$RUN"
    return 0
  fi
  mkdir -p -- "$L/.partial" || refuse "$EX_NOROOM" "$L" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
  VERDICT=healthy WHY='' NOTE=''
  [[ $NEW_KEY == false ]] || new_host_key
  read_box_json
  same_places "$EX_CONFIG" "or give --data-dir and --durable-dir to look elsewhere"
  read_last_look
  look || rc=$?
  if ((rc == 0)); then
    judge
    write_last_look || log "this look could not be recorded in $L/patrol.json"
  else
    judge_silence "$rc"
  fi
  say
  case $VERDICT in
    healthy | 'done') return 0 ;;
    escalate) return "$EX_FAIL" ;;
    *) return "$EX_MISSING" ;;
  esac
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
