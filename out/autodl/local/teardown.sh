#!/usr/bin/env bash
# teardown.sh: end a cost on the platform, once the results are home, verified here, and you have approved this very action.
# Generated; do not edit. Source: templates/local/teardown.sh.j2
# To change it, edit the source or profiles/autodl.yaml, then: make profile=autodl
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=teardown.sh

# --- bound values: profiles/autodl.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=autodl
# what kind of platform it is
readonly KIND=ssh-rental
# the platform's name
readonly TITLE="AutoDL container instance (容器实例)"
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier data-disk: survives ssh drop, restart, stop, not destroy
DATA_DIR=${DATA_DIR-/root/autodl-tmp}
# tier file-storage: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-/root/autodl-fs}
# the data tier
readonly DATA_TIER=data-disk
# the durable tier
readonly DURABLE_TIER=file-storage
# what shows that the tier is there
readonly DATA_PROOF=mount
# what shows that the tier is there
readonly DURABLE_PROOF=mount
# where it is mounted
readonly DATA_TIER_PATH=/root/autodl-tmp
# where it is mounted
readonly DURABLE_TIER_PATH=/root/autodl-fs
# the verb that stops the meter
readonly METER_STOP=shut-down
# ServerAliveInterval
readonly KEEPALIVE_S=15
# ServerAliveCountMax
readonly KEEPALIVE_MAX=4
# all verbs, in the profile's order
readonly -a ACTION_VERBS=(
  shut-down
  release
  delete-files
)
# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs
action_1() { # shut-down
  ACTION_LIKE=stop
  ACTION_WHERE=box
  ACTION_STOPS_METER=true
  ACTION_REVERSIBLE=true
  ACTION_RETENTION_DAYS=15
  ACTION_BILLED="the paid part of the data disk by the day; file storage above its free part"
  ACTION_NOTE="The console's 关机 does the same. It ends the charge of pay-as-you-go only: a subscription (包日, 包周, 包月) is paid anyway."
  ACTION_SOURCE="AutoDL docs: save money, billing, 2026-08"
  ACTION_GONE_ABSENT=''
  ACTION_GONE_ANSWER=''
  ACTION_COMMAND=(
    /usr/bin/shutdown
  )
  ACTION_STEPS=()
  ACTION_GONE_COMMAND=()
  ACTION_GONE_STEPS=(
    "the console shows the instance as 已关机 (Pro: status says shut down)"
  )
  ACTION_SURVIVES=(
    system-disk
    data-disk
    file-storage
    public-data
  )
  ACTION_LOST=()
}
# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs
action_2() { # release
  ACTION_LIKE=destroy
  ACTION_WHERE=console
  ACTION_STOPS_METER=true
  ACTION_REVERSIBLE=false
  ACTION_RETENTION_DAYS=''
  ACTION_BILLED="file storage above its free part"
  ACTION_NOTE=''
  ACTION_SOURCE="AutoDL docs: instance data; Pro API, 2026-08"
  ACTION_GONE_ABSENT=''
  ACTION_GONE_ANSWER=''
  ACTION_COMMAND=()
  ACTION_STEPS=(
    "Only when the file storage or home holds all that is wanted: both disks of the instance are erased"
    "Shut down first, then 更多 > 释放实例 in the console"
  )
  ACTION_GONE_COMMAND=()
  ACTION_GONE_STEPS=(
    "the list of instances no longer shows it"
  )
  ACTION_SURVIVES=(
    file-storage
    public-data
  )
  ACTION_LOST=(
    system-disk
    data-disk
  )
}
# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs
action_3() { # delete-files
  ACTION_LIKE=storage
  ACTION_WHERE=box
  ACTION_STOPS_METER=false
  ACTION_REVERSIBLE=false
  ACTION_RETENTION_DAYS=''
  ACTION_BILLED="nothing within the free part"
  ACTION_NOTE=''
  ACTION_SOURCE="AutoDL docs: file storage, 2026-08"
  ACTION_GONE_ABSENT=''
  ACTION_GONE_ANSWER=''
  ACTION_COMMAND=()
  ACTION_STEPS=(
    "Only when the results are verified at home"
    "Show sizes with du -sh, then delete the run's folder on /root/autodl-fs by its full name, until the free part is enough"
  )
  ACTION_GONE_COMMAND=()
  ACTION_GONE_STEPS=(
    "the console's file storage page shows less than the free part"
  )
  ACTION_SURVIVES=(
    system-disk
    data-disk
    public-data
  )
  ACTION_LOST=(
    file-storage
  )
}
# One row of the teardown table, as ACTION_*.
load_action() { # <verb>    returns: 1 for an unknown verb
  case $1 in
    shut-down) action_1 ;;
    release) action_2 ;;
    delete-files) action_3 ;;
    *) return 1 ;;
  esac
}
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

# The only place where a success word is printed. Without a receipt that can be read it is not.
claim() { # <word> <what> <receipt file>
  if [[ ! -f $3 || ! -s $3 ]]; then
    printf '%s: refused: saying %s of %s; no receipt at %s; look there, then run this again\n' \
      "$PROG" "$1" "$2" "$3" >&2 || :
    return "$EX_INTEGRITY"
  fi
  printf '%s: %s (receipt %s)\n' "$2" "$1" "$3" || :
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

# What lies at PATH and is no file that we may read, in words, into REPLY. None of it is ever opened: a FIFO would wait for ever.
no_file() { # <path>    returns: 0, or 1 where it is a file, or nothing lies there
  REPLY=''
  if [[ -f $1 ]]; then
    [[ -r $1 ]] || REPLY='a file that we may not read'
  elif [[ -d $1 ]]; then
    REPLY='a folder'
  elif [[ -p $1 ]]; then
    REPLY='a FIFO'
  elif [[ -S $1 ]]; then
    REPLY='a socket'
  elif [[ -b $1 || -c $1 ]]; then
    REPLY='a device'
  elif [[ -L $1 ]]; then
    REPLY='a link that leads nowhere'
  fi
  [[ -n $REPLY ]]
}

# A whole small file into REPLY, without a process. A file that holds a NUL is no text.
read_text() { # <file>    returns: 0, or 1 where it cannot be read or is no text
  REPLY=''
  [[ -f $1 ]] || return 1
  ! { IFS= read -r -d '' REPLY <"$1"; } 2>/dev/null || return 1
  # Where it could not be opened nothing was read either.
  [[ -n $REPLY || -r $1 ]]
}

# lib/record.bash: line JSON that bash writes and reads without help (docs/contracts.md, section 2).
# needs: exit log file

# Free text made fit for a record: no quote, no backslash, no control character. Into REPLY.
record_fit() { # <text>
  REPLY=${1//\"/\'}
  REPLY=${REPLY//\\//}
  REPLY=${REPLY//[[:cntrl:]]/ }
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

# lib/hash.bash: SHA-256 by the quickest tool of the box.
# needs: exit log

# openssl uses the processor's SHA instructions; older sha256sum does not. Chosen once.
hash_tool() {
  case ${HASH_TOOL-} in openssl | sha256sum | shasum) return 0 ;; esac
  if command -v openssl >/dev/null 2>&1 && openssl dgst -sha256 -r </dev/null >/dev/null 2>&1; then
    HASH_TOOL=openssl
  elif command -v sha256sum >/dev/null 2>&1; then
    HASH_TOOL=sha256sum
  elif command -v shasum >/dev/null 2>&1; then
    HASH_TOOL=shasum
  else
    refuse "$EX_MISSING" "hashing" "no openssl, sha256sum or shasum on PATH" "install one of them"
  fi
}

# Become the tool: over the files named, or over standard input. To be called in a subshell only. It prints 64 digits, two
# characters, the name.
# shellcheck disable=SC2120 # without a word it reads standard input
exec_hash_tool() { # [files...]
  case $HASH_TOOL in
    openssl) exec openssl dgst -sha256 -r "$@" ;;
    sha256sum) exec sha256sum "$@" ;;
    shasum) exec shasum -a 256 "$@" ;;
  esac
}

hash_file() { # <file>    sets REPLY to 64 hex digits; returns 1 where it cannot be read
  REPLY=''
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $1 ]] || return 1
  hash_tool
  REPLY=$({ exec_hash_tool <"$1"; } 2>/dev/null) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
}

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

# lib/proc.bash: who a process is. A number alone is recycled; with its start and this boot it is one process.
# needs:

this_host() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/hostname"; } 2>/dev/null || REPLY=${HOSTNAME-unknown}
}
this_boot_id() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/random/boot_id"; } 2>/dev/null || REPLY=unknown
}
# Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), into REPLY.
start_ticks() { # <pid>    returns: 1 where there is no such process, or only its zombie
  local stat fields
  REPLY=
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  # The name in parentheses may hold blanks and parentheses itself: cut behind the last one.
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]-} != [ZX] ]] || return 1
  REPLY=${fields[19]-}
  [[ -n $REPLY ]]
}
same_process() { # <pid> <start ticks>
  local REPLY
  start_ticks "$1" && [[ $REPLY == "$2" ]]
}

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

# lib/look.bash: what a teardown asks a box. These functions are sent there (declare -f) and run there; they only read.
# needs: exit log path file proc ssh

# Answers, one a line: run ID, manifest DIGEST, size WHERE KB PATH, left WHERE COUNT KB PATH, other WHERE KB RUN ID, stray WHERE PATH,
# busy TEXT, newer TEXT, unknown TEXT.
look_at_box() { # reads: DATA_DIR DURABLE_DIR RUN SHARED_MACHINE DATA_MOUNT DURABLE_MOUNT DATA_ROOT DURABLE_ROOT
  : "${DATA_DIR:?}" "${DURABLE_DIR?}" "${RUN:?}" "${SHARED_MACHINE:?}" "${DATA_MOUNT?}" "${DURABLE_MOUNT?}" "${DATA_ROOT?}" "${DURABLE_ROOT?}"
  expand_path DATA_DIR
  expand_path DURABLE_DIR
  D=$DATA_DIR/$RUN B=${DURABLE_DIR:-$DATA_DIR}/$RUN
  look_tier "$DATA_DIR" "$DATA_MOUNT"
  [[ -z $DURABLE_DIR ]] || look_tier "$DURABLE_DIR" "$DURABLE_MOUNT"
  look_run
  look_newer
  look_left data "$D"
  [[ $B == "$D" ]] || look_left durable "$B"
  look_claims
  look_sessions
  look_processes
  look_gpus
  look_others data "$DATA_DIR"
  [[ -z $DURABLE_DIR || $DURABLE_DIR == "$DATA_DIR" ]] || look_others durable "$DURABLE_DIR"
  [[ $SHARED_MACHINE == true ]] || look_strays
}

# A tier that is not attached looks as if there were no run: say that it cannot be told.
look_tier() { # <folder on it> <its mount point, or empty where no mount proves it>
  local mount=$2 line fields
  [[ -n $mount ]] || return 0
  expand_path mount
  [[ $1/ == "${mount%/}"/* ]] || return 0
  while IFS= read -r line; do
    read -ra fields <<<"$line"
    [[ ${fields[4]-} != "${mount// /\\040}" ]] || return 0
  done </proc/self/mountinfo
  printf 'unknown the storage at %s is not mounted\n' "$mount"
}

look_size() { # <folder>    prints kilobytes, or unknown
  local text
  text=$(within 60 du -sk -- "$1" 2>/dev/null) || text=
  text=${text%%[!0-9]*}
  printf '%s' "${text:-unknown}"
}

look_count() { # <folder>    prints how many files, or unknown
  local text
  text=$(within 60 find "$1" -type f 2>/dev/null | wc -l) || text=
  text=${text//[!0-9]/}
  printf '%s' "${text:-unknown}"
}

# A record that was cut says nothing, also where the member that one looks for is left.
look_whole() { # <file> <schema>
  local text=''
  [[ -f $1 ]] || return 1
  ! { IFS= read -r -d '' text <"$1"; } 2>/dev/null || return 1
  [[ $text == '{'$'\n''  "schema": "'"$2"'",'*$'\n''}'$'\n' ]]
}

look_run() {
  local file id=none digest=none here
  for file in "$D/run.json" "$B/run.json"; do
    [[ -e $file || -L $file ]] || continue
    here=''
    if look_whole "$file" run/1; then here=$(box_member "$file" run_id); fi
    [[ -n $here ]] || { here=unknown && printf 'unknown %s cannot be read\n' "$file"; }
    [[ $id == none || $id == "$here" ]] || printf 'unknown %s is of run %s, and the other tier is of %s\n' "$file" "$here" "$id"
    [[ $id != none ]] || id=$here
  done
  printf 'run %s\n' "$id"
  if [[ -e $B/PULL_MANIFEST.json ]]; then
    digest=unreadable
    [[ ! -f $B/PULL_MANIFEST.json ]] || digest=$(sha256sum <"$B/PULL_MANIFEST.json") || digest=unreadable
  fi
  printf 'manifest %s\n' "${digest%% *}"
  [[ ! -d $D ]] || printf 'size data %s %s\n' "$(look_size "$D")" "$D"
  [[ ! -d $B || $B == "$D" ]] || printf 'size durable %s %s\n' "$(look_size "$B")" "$B"
  [[ $id == none ]] || return 0
  for file in "$D/cells" "$D/state" "$D/claims" "$B/records" "$B/final_ckpts"; do
    [[ ! -e $file ]] || printf 'unknown %s is there, of a run without a record\n' "$file"
  done
}

# A cell that ran, or came into the queue, after the manifest was made is in no bundle, though the manifest is home and whole.
look_newer() {
  local REPLY file first there=()
  [[ -s $B/PULL_MANIFEST.json ]] || return 0
  for file in "$D/state" "$B/records" "$B/final_ckpts"; do
    [[ ! -d $file ]] || there+=("$file")
  done
  ((${#there[@]} == 0)) || {
    first=$(within 60 find "${there[@]}" -type f ! -name '.*' -newer "$B/PULL_MANIFEST.json" 2>&1 | head -n 1) || first=${first:-"what is newer cannot be told"}
    [[ -z $first ]] || printf 'newer %s was written after the manifest\n' "$first"
  }
  ! no_file "$D/queue.tsv" || { printf 'unknown %s is %s, not a queue\n' "$D/queue.tsv" "$REPLY" && return 0; }
  [[ -e $D/queue.tsv ]] || return 0
  first=$(awk 'FNR == NR { split($0, w, "\""); if (w[2] == "cell") known[w[4]] = 1; next }
    { split($0, w, "\t"); if (w[1] != "" && !(w[1] in known)) { print w[1]; exit } }' "$B/PULL_MANIFEST.json" "$D/queue.tsv" 2>&1) || first=${first:-the queue cannot be read}
  [[ -z $first ]] || printf 'newer cell %s is in the queue and not in the manifest\n' "$first"
}

# What no bundle holds: all in the run's folder but the bundle itself, the code and the scripts that came from home, and our bookkeeping.
look_left() { # <data or durable> <folder>
  local one count
  for one in "$2"/*; do
    [[ -e $one ]] || continue
    case ${one##*/} in
      final_ckpts | records | PULL_MANIFEST.json | SHA256SUMS | FORMAL_SUCCESS | run.json | queue.tsv | box | code | code.git | state | claims | data) continue ;;
      smoke.json | drill.json | formal.json | READY_TO_STOP | plans | events.tsv | NEGATIVE_RESULTS.tsv) continue ;;
    esac
    count=$(look_count "$one")
    [[ $count == 0 ]] || printf 'left %s %s %s %s\n' "$1" "$count" "$(look_size "$one")" "$one"
  done
}

# A run that was started in another folder than the one that we look into: its record, where somebody would have put it.
look_strays() {
  local where root file
  for where in data durable home; do
    case $where in
      data) root=$DATA_ROOT ;;
      durable) root=$DURABLE_ROOT ;;
      *) root=${HOME-} ;;
    esac
    [[ -n $root ]] || continue
    expand_path root
    [[ $root != / && -d $root ]] || continue
    while IFS= read -r file; do
      # Those beside this run are looked at as other runs.
      [[ ${file%/*/run.json} != "${DATA_DIR%/}" && ${file%/*/run.json} != "${DURABLE_DIR%/}" ]] || continue
      ! look_whole "$file" run/1 || printf 'stray %s %s\n' "$where" "${file%/run.json}"
    done < <(within 60 find "$root/" -maxdepth 5 -name run.json -type f 2>/dev/null)
  done
}

# Is HOST's work on the run in FOLDER possibly going on, and not here? Only the run record's own host may have any.
look_elsewhere() { # <run's folder> <host>
  local owner
  owner=$(box_member "$1/run.json" host)
  [[ $owner == "$2" ]]
}

look_claims() { # the highest claim of every cell of every run on the data tier
  local cell file last host boot pid ticks REPLY here now
  this_host && here=$REPLY
  this_boot_id && now=$REPLY
  for cell in "$DATA_DIR"/*/claims/*/; do
    last=''
    for file in "$cell"*; do
      [[ ${file##*/} =~ ^[0-9]+$ ]] || continue
      if [[ -z $last ]] || ((10#${file##*/} > 10#${last##*/})); then last=$file; fi
    done
    [[ -n $last ]] || continue
    # Nobody knows then whether its runner lives; and a FIFO would hang the look, which reads as a box that cannot be reached.
    if no_file "$last"; then
      printf 'unknown %s is %s, not a claim\n' "$last" "$REPLY"
      continue
    fi
    host='' boot='' pid='' ticks=''
    { read -r host boot pid ticks <"$last"; } 2>/dev/null || :
    if [[ -z $ticks ]]; then
      [[ -z $(find "$last" -mmin -1 2>/dev/null) ]] || printf 'busy a claim is being taken: %s\n' "$last"
    elif [[ $host == "$here" ]]; then
      [[ $boot != "$now" ]] || ! same_process "$pid" "$ticks" || printf 'busy a cell is running: %s, pid %s\n' "$cell" "$pid"
    elif look_elsewhere "${cell%/claims/*}" "$host" && look_unfinished "$cell"; then
      printf 'busy host %s has the claim on %s\n' "$host" "$cell"
    fi
  done
}
look_unfinished() { # <claims/CELL/>
  local cell=${1%/}
  case $(box_member "${cell%/claims/*}/state/${cell##*/}.json" state) in
    done | unsynced | failed | preempted) return 1 ;;
  esac
}

look_sessions() { # formal runs that are not over, of every run on the data tier
  local file state host pid ticks REPLY here now
  this_host && here=$REPLY
  this_boot_id && now=$REPLY
  for file in "$DATA_DIR"/*/formal.json; do
    [[ -e $file ]] || continue
    state=''
    if look_whole "$file" formal/1; then state=$(box_member "$file" state); fi
    case $state in
      starting | running | aggregating) ;;
      success | failed | stopped) continue ;;
      *) printf 'unknown %s cannot be read\n' "$file" && continue ;;
    esac
    host=$(box_member "$file" host) pid=$(box_member "$file" pid) ticks=$(box_member "$file" start_ticks)
    if [[ $host == "$here" ]]; then
      [[ $(box_member "$file" boot_id) == "$now" ]] || continue
      if { [[ -n $pid && $pid != null ]] && same_process "$pid" "$ticks"; } || { [[ $state == starting ]] && [[ -n $(find "$file" -mmin -2 2>/dev/null) ]]; }; then
        printf 'busy a formal run is %s: %s, pid %s\n' "$state" "${file%/*}" "$pid"
      fi
    elif look_elsewhere "${file%/*}" "$host"; then
      printf 'busy a formal run is %s on host %s: %s\n' "$state" "$host" "${file%/*}"
    fi
  done
}

# Our scripts and transfers. On a machine that is shared, only those that name this run's folders.
look_processes() {
  local dir pid word name words ours place
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/} words=() ours=false
    [[ $pid != "$$" && $pid != "${BASHPID-}" ]] || continue
    { while IFS= read -r -d '' word; do
      words+=("$word")
      [[ $word/ != *"$D"/* && $word/ != *"$B"/* ]] || ours=true
    done <"$dir/cmdline"; } 2>/dev/null || continue
    for word in "${words[0]-}" "${words[1]-}"; do
      name=${word##*/}
      case $name in
        rsync | scp | sftp-server | rclone | tar | aggregate_to_fs.sh | run_queue.sh | run_one.sh | formal_run.sh)
          place=$(readlink "$dir/cwd" 2>/dev/null) || place='a folder that it does not tell'
          [[ $SHARED_MACHINE == true && $ours == false ]] || printf 'busy %s is running: pid %s, in %s\n' "$name" "$pid" "$place"
          break
          ;;
      esac
    done
  done
}

look_gpus() {
  local text pid name id
  command -v nvidia-smi >/dev/null 2>&1 || return 0
  if ! text=$(within 60 nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader 2>&1); then
    [[ $text == *'No devices were found'* ]] || printf 'unknown nvidia-smi does not tell which processes use the GPUs\n'
    return 0
  fi
  id=$(box_member "$D/run.json" run_id)
  while IFS=', ' read -r pid name; do
    [[ $pid =~ ^[0-9]+$ ]] || continue
    if [[ $SHARED_MACHINE == true ]]; then
      # Other people's work is none of this run's business; a process of this run carries its id.
      [[ -n $id ]] || continue
      grep -qz "^RUN_ID=$id\$" "/proc/$pid/environ" 2>/dev/null || continue
    fi
    printf 'busy a process uses a GPU: pid %s %s\n' "$pid" "$name"
  done <<<"$text"
}

look_others() { # <data or durable> <folder>
  local file run
  for file in "$2"/*/run.json; do
    run=${file%/run.json} run=${run##*/}
    [[ -e $file && $run != "$RUN" ]] || continue
    printf 'other %s %s %s %s\n' "$1" "$(look_size "$2/$run")" "$run" "$(box_member "$file" run_id)"
  done
}

# shellcheck disable=SC2034 # teardown sends these along
readonly -a LOOK_FUNCTIONS=(expand_path box_member this_host this_boot_id start_ticks same_process within no_file look_tier look_size look_count
  look_whole look_run look_newer look_left look_strays look_elsewhere look_claims look_unfinished look_sessions look_processes look_gpus look_others)

# lib/lost.bash: what a teardown's verb takes along that is in no verified bundle. A person sees it, or the gate stays shut.
# needs: exit log
# reads: VERB INSTANCE KIND L HOST DATA_DIR DURABLE_DIR DATA_TIER DURABLE_TIER ACTION_LOST, ON_BOX and LEFT of judge_look; say_list of the script

lost() { # <tier>    returns: 0 where the verb loses it
  local tier
  for tier in ${ACTION_LOST[@]+"${ACTION_LOST[@]}"}; do [[ $tier != "$1" ]] || return 0; done
  return 1
}
tier_lost() { # <data, durable or home>    what lies at home on the box goes with a box that loses anything
  case $1 in
    data) lost "$DATA_TIER" ;;
    durable) lost "$DURABLE_TIER" ;;
    *) ((${#ACTION_LOST[@]} > 0)) ;;
  esac
}

# Nothing is deleted whose size nobody saw, and no copy at home counts that goes with it.
judge_sizes() {
  local where size path
  while read -r where size path; do
    [[ -n $where ]] || continue
    printf '  on the box:       %s tier, %s kB, %s%s\n' "$where" "$size" "$path" "$(tier_lost "$where" && printf ' (LOST by %s)' "$VERB")"
    [[ $size != unknown ]] || ! tier_lost "$where" || refuse "$EX_GATE" "$VERB $INSTANCE" "the size of $path could not be read" "look there by hand first: du -sh"
    if [[ $KIND != owned ]] || ! tier_lost "$where"; then continue; fi
    # The tier, not the run's folder alone: other folders of it go as well.
    path=${path%/*}
    [[ $(cd -P -- "$L" && pwd -P)/ != "$(cd -P -- "$path" && pwd -P)"/* ]] ||
      refuse "$EX_GATE" "$VERB $INSTANCE" "the verified copy at $L lies in $path, which it loses" "pull to another place: LOCAL_DIR=/path/to/local"
  done <<<"$ON_BOX"
}

# Logs, archives, what is left of failed attempts: in no bundle, so a person who wants them copies them first.
say_left() {
  local where count size path any=false
  while read -r where count size path; do
    if [[ -z $where ]] || ! tier_lost "$where"; then continue; fi
    any=true
    [[ ${path##*/} != cells ]] || path+=' (beside the results, which are home)'
    say_list "NOT at home" "$count files, $size kB, $path (LOST by $VERB)"
  done <<<"$LEFT"
  [[ $any == false ]] || say_list "in no bundle" "copy first what anybody will read of it: the runbook's phase 5 has the line"
}

# A run elsewhere on what the verb loses, which nobody has asked for here.
judge_strays() { # <WHERE PATH...>
  local one
  for one in "$@"; do
    tier_lost "${one%% *}" || continue
    refuse "$EX_GATE" "$VERB $INSTANCE" "there is a run at ${one#* }, outside of the folders that were looked at" "give --data-dir and RUN for it and pull it, or delete that folder yourself if nobody needs it"
  done
}

# lib/home.bash: is the bundle at home whole and verified, now? An earlier receipt is output, never input.
# needs: exit log record hash
# reads: VERB SELF_DIR INSTANCE LOCAL_DIR PROFILE, tier_lost of the script, ACCEPTS (PATH=WHY, for the bundle that the verb is about)

# Verify the bundle in FOLDER now; an earlier receipt counts for nothing. Sets DIGEST and BUNDLE_RUN.
check_bundle() { # <folder> <run id, or empty>
  local dir=$1 rc=0 cells
  hash_file "$dir/PULL_MANIFEST.json" || refuse "$EX_GATE" "$VERB" "there is no bundle at $dir" "pull the results first"
  DIGEST=$REPLY
  read_record "$dir/PULL_MANIFEST.json" pull_manifest/1 || refuse "$EX_GATE" "$VERB" "$dir/PULL_MANIFEST.json is not a whole manifest" "pull again"
  BUNDLE_RUN=${R_run_id-}
  if [[ -z $BUNDLE_RUN || -n $2 && $BUNDLE_RUN != "$2" ]]; then
    refuse "$EX_GATE" "$VERB" "the bundle at $dir is of run '$BUNDLE_RUN', not '$2'" "pull this run's results"
  fi
  cells=$(grep -cE '^    \{"cell": "[^"]*", "state": "(done|excepted)", "why": "[^"]*"\},?$' "$dir/PULL_MANIFEST.json") || cells=0
  [[ ${R_cells_expected-} =~ ^[1-9][0-9]*$ && $cells == "$R_cells_expected" ]] ||
    refuse "$EX_GATE" "$VERB" "the bundle at $dir has $cells of ${R_cells_expected:-?} cells done or excepted" "where the box has done more since, aggregate there and pull again; else finish them, or except them by name in aggregate_to_fs.sh, and pull"
  local total=${R_files_total-}
  [[ -f $SELF_DIR/verify_local.py ]] || refuse "$EX_MISSING" "$SELF_DIR/verify_local.py" "it is not beside this script" "compile again"
  command -v python3 >/dev/null 2>&1 || refuse "$EX_MISSING" "python3" "it is not on PATH, and nothing is torn down unverified" "install Python 3.9 or later"
  rm -f -- "${dir:?}/PULL_VERIFIED.json"
  local words=() one
  # What a person accepts is said of this bundle alone, not of others that the verb would take along.
  if [[ -z $2 ]]; then for one in ${ACCEPTS[@]+"${ACCEPTS[@]}"}; do words+=("--accept=$one"); done; fi
  python3 "$SELF_DIR/verify_local.py" "$dir" --run-id "$BUNDLE_RUN" ${words[@]+"${words[@]}"} || rc=$?
  ((rc == 0)) || refuse "$EX_GATE" "$VERB" "verify_local.py found the bundle at $dir not in order (exit $rc)" "pull again, then run this again"
  check_receipt "$dir" "$total"
}

check_receipt() { # <folder> <files of the manifest>
  local file=$1/PULL_VERIFIED.json
  read_record "$file" pull_verified/1 "$BUNDLE_RUN" || refuse "$EX_GATE" "$VERB" "verify_local.py left no receipt of run $BUNDLE_RUN at $file" "run it by hand and see"
  [[ ${R_manifest_sha256-} == "$DIGEST" && ${R_expected-} == "$2" && ${R_checked-} == "$2" && ${R_ok-} == "$2" && $2 -gt 0 && ${R_bad-} == 0 && ${R_unproven-} == 0 ]] ||
    refuse "$EX_GATE" "$VERB" "the receipt says ok ${R_ok:-?} of ${R_expected:-?}, bad ${R_bad:-?}, unproven ${R_unproven:-?}, of manifest ${R_manifest_sha256:-?}" "pull again, then run this again"
  check_unchanged "$1"
}

# Is the bundle still what was verified? Cheap, so it can be asked again right before the act. The time of the last change
# of a name or a file's bytes (ctime) cannot be set back, and a folder's shows that something in it was removed.
check_unchanged() { # <folder>
  local newer ref=$1/PULL_VERIFIED.json
  hash_file "$1/PULL_MANIFEST.json" && [[ $REPLY == "$DIGEST" ]] || refuse "$EX_GATE" "$VERB" "the manifest at $1 changed after it was verified" "run this again"
  local test=(-newer "$ref")
  # busybox may have no -cnewer.
  if find "$ref" -cnewer "$ref" >/dev/null 2>&1; then test=('(' -newer "$ref" -o -cnewer "$ref" ')'); fi
  newer=$(find "$1/final_ckpts" "$1/PULL_MANIFEST.json" "${test[@]}" 2>&1) || newer="something in $1"
  newer=${newer%%$'\n'*}
  [[ -z $newer ]] || refuse "$EX_GATE" "$VERB" "$newer changed after it was verified" "run this again"
}

# Other runs that the verb would take along have to be home as well.
judge_others() { # <WHERE KB RUN ID...>
  local line where size run id keep_digest=$DIGEST keep_run=$BUNDLE_RUN
  for line in "$@"; do
    read -r where size run id <<<"$line"
    tier_lost "$where" || continue
    if [[ ! $run =~ ^[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}$ || -z $id || ! -f $LOCAL_DIR/$PROFILE.$run/PULL_MANIFEST.json ]]; then
      refuse "$EX_GATE" "$VERB $INSTANCE" "run $run ($size kB) lies on the $where tier, which it loses, and is not home" "pull it with RUN=$run, or delete its folder yourself if nobody needs it"
    fi
    log "run $run lies there too: verifying it as well"
    check_bundle "$LOCAL_DIR/$PROFILE.$run" "$id"
  done
  DIGEST=$keep_digest BUNDLE_RUN=$keep_run
}

# Nobody can look there: what this laptop knows to be on the same box has to be home as well.
judge_known_others() {
  local file dir keep_digest=$DIGEST keep_run=$BUNDLE_RUN
  tier_lost data || tier_lost durable || return 0
  for file in "$LOCAL_DIR/$PROFILE".*/box.json; do
    dir=${file%/box.json}
    [[ -e $file && $dir != "$L" ]] || continue
    read_record "$file" box/1 || refuse "$EX_GATE" "$VERB $INSTANCE" "the box does not answer, and $file, of another run, cannot be read" "look at it; move it aside if that run was never there"
    [[ ${R_instance-} == "$INSTANCE" ]] || continue
    [[ -n ${R_run_id-} && -e $dir/PULL_MANIFEST.json ]] ||
      refuse "$EX_GATE" "$VERB $INSTANCE" "the box does not answer; run ${dir##*/"$PROFILE".} was begun on it too, and nothing of it is home" "start or reach the box and pull that run; move $dir aside if it never began"
    log "run ${dir##*/"$PROFILE".} was there too: verifying it as well"
    check_bundle "$dir" "$R_run_id"
  done
  DIGEST=$keep_digest BUNDLE_RUN=$keep_run
}

# lib/gone.bash: a teardown's command is run without any shell of ours reading it, and a look says whether it took effect.
# needs: exit log file ssh
# reads: KIND INSTANCE L VERB ACT DIGEST ACCEPTED LOOKED_AGAIN, ACTION_* of load_action; ask_box and say_list of the script

put_instance() { # <words...>    sets WORDS, {instance} replaced
  local word
  WORDS=()
  for word in "$@"; do WORDS+=("${word//\{instance\}/$INSTANCE}"); done
}

# Run WORDS where the action takes place. No shell of ours reads them.
run_words() {
  if [[ $ACTION_WHERE == box && $KIND != owned ]]; then
    local COMMAND
    COMMAND=$(printf '%s\n' "${WORDS[@]}")
    ask_box run_there 60 -- COMMAND PROG --
  else
    "${WORDS[@]}" </dev/null
  fi
}
run_there() { # reads: COMMAND, a word a line
  local word
  set --
  while IFS= read -r word; do set -- "$@" "$word"; done <<<"$COMMAND"
  # A container has no shutdown, as often as not; poweroff may be there.
  if [[ ${1##*/} == shutdown ]] && ! command -v -- "$1" >/dev/null 2>&1; then set -- poweroff; fi
  command -v -- "$1" >/dev/null 2>&1 || { echo "$1 is not there" && return 69; }
  "$@" </dev/null
}
still_there() { :; }

# One look: does the platform still show it?    returns: 0 it does not, 1 it does, 2 the look itself failed
look_gone() {
  local text absent
  put_instance "$ACTION_GONE_ABSENT"
  absent=${WORDS[0]}
  put_instance "${ACTION_GONE_COMMAND[@]}"
  if [[ -n $ACTION_GONE_ANSWER ]]; then
    # This tool ends with 0 where it failed, too: only what begins so is an answer.
    text=$(run_words 2>/dev/null) || return 2
    [[ $text == "$ACTION_GONE_ANSWER"* ]] || return 2
  else
    text=$(run_words 2>&1) || return 2
  fi
  # Whole words: pod-12 is not pod-1.
  [[ -n $absent ]] || return 2
  text=" ${text//[^A-Za-z0-9_-]/ } " absent=" ${absent//[^A-Za-z0-9_-]/ } "
  [[ $text != *"$absent"* ]]
}

await_gone() {
  local try rc
  for ((try = 0; try < 12; try++)); do
    ((try == 0)) || sleep 5
    rc=0
    look_gone || rc=$?
    case $rc in
      0) CONFIRMED=gone && return ;;
      1) CONFIRMED=present ;;
      *) CONFIRMED=unknown ;;
    esac
  done
}

# A box that was switched off from inside no longer answers; the same key answered a moment ago.
await_silence() {
  local try silent=0
  CONFIRMED=present
  for ((try = 0; try < 12; try++)); do
    sleep 5
    if ask_box still_there 30 -- PROG -- >/dev/null 2>&1; then silent=0; else silent=$((silent + 1)); fi
    ((silent < 2)) || { CONFIRMED=unreachable && return; }
  done
}

# No program can look there: the person says what they see.
ask_person() {
  local step said=''
  for step in ${ACTION_GONE_STEPS[@]+"${ACTION_GONE_STEPS[@]}"}; do say_list "then see" "$step"; done
  if ((${#ACTION_GONE_COMMAND[@]} > 0)); then
    put_instance "${ACTION_GONE_COMMAND[@]}"
    say_list "then see" "${WORDS[*]}: ${ACTION_GONE_ANSWER:+it begins with $ACTION_GONE_ANSWER, and }${ACTION_GONE_ABSENT//\{instance\}/$INSTANCE} is no longer in it"
  fi
  [[ -t 0 ]] || { log "nobody is here to say what they see" && return 0; }
  printf "Type 'gone' once you see this, anything else if you do not:\n> "
  IFS= read -r said || said=''
  if [[ $said == gone ]]; then CONFIRMED='said gone'; else [[ $CONFIRMED == unreachable ]] || CONFIRMED=unknown; fi
}

# When the platform deletes what the verb leaves, into DEADLINE; empty where no limit is known.
find_deadline() {
  local then_s
  DEADLINE=''
  [[ $ACTION_RETENTION_DAYS =~ ^[1-9][0-9]*$ ]] || return 0
  then_s=$(($(date +%s) + ACTION_RETENTION_DAYS * 86400))
  DEADLINE=$(date -u -d "@$then_s" +%Y-%m-%dT%H:%M:%SZ 2>/dev/null) || DEADLINE=$(date -u -r "$then_s" +%Y-%m-%dT%H:%M:%SZ) || DEADLINE=''
}

# One line in L/teardown.jsonl, read back.
write_line() { # <ran: true or false> <confirmed>
  local line REPLY deadline=null
  utc_now
  [[ -z $DEADLINE ]] || deadline="\"$DEADLINE\""
  line="{\"time\": \"$REPLY\", \"verb\": \"$VERB\", \"instance\": \"$INSTANCE\", \"manifest_sha256\": \"${DIGEST:-nothing}\", \"ran\": $1, \"confirmed\": \"$2\", \"deadline\": $deadline${ACCEPTED:+, \"accepted\": [$ACCEPTED]}}"
  mkdir -p -- "$L" || return "$EX_COPY"
  { printf '%s\n' "$line" >>"$L/teardown.jsonl"; } 2>/dev/null || return "$EX_COPY"
  flush "$L/teardown.jsonl"
  [[ $(tail -n 1 "$L/teardown.jsonl") == "$line" ]] || return "$EX_COPY"
}

# Did this gate see this very thing end before, with this very bundle?
recorded_gone() { # <verb>
  local line="\"verb\": \"$1\", \"instance\": \"$INSTANCE\", \"manifest_sha256\": \"${DIGEST:-nothing}\", \"ran\": true, \"confirmed\":"
  grep -qF -e "$line \"gone\"" -e "$line \"said gone\"" "$L/teardown.jsonl" 2>/dev/null
}

# Nobody answers there: was the box seen to go, or to stop, by this gate, with this very bundle? What can be looked at is looked
# at again now, for a stopped box may have been started since.
known_gone() {
  local verb=$VERB one rc
  for one in "${ACTION_VERBS[@]}"; do
    if [[ $one == "$verb" ]] || ! recorded_gone "$one"; then continue; fi
    load_action "$one"
    rc=0
    if [[ $one != "$METER_STOP" && $ACTION_LIKE != stop && $ACTION_LIKE != destroy ]]; then
      rc=1
    elif ((${#ACTION_GONE_COMMAND[@]} > 0)) && [[ $ACTION_WHERE != box ]]; then
      look_gone || rc=1
    else
      look_again "$one" || rc=1
    fi
    load_action "$verb"
    ((rc != 0)) || { log "the box does not answer; $L/teardown.jsonl has '$one' of it with this very bundle, confirmed" && return 0; }
  done
  return 1
}

# A stop that no program can look at is known by a person's word alone, and a box may have been started since: the word is
# asked for again, once, before anything is done.
look_again() { # <verb of the past>    returns: 0 the person sees it now; without --run: it is only announced
  local step said=''
  [[ $LOOKED_AGAIN == false ]] || return 0
  if [[ $ACT != true ]]; then
    log "no program can see that '$1' still holds: with --run you are asked to look again"
    return 0
  fi
  [[ -t 0 ]] || { log "no program can see that '$1' still holds, and nobody is here to look again" && return 1; }
  for step in ${ACTION_GONE_STEPS[@]+"${ACTION_GONE_STEPS[@]}"}; do say_list "look again" "$step"; done
  printf "Type 'gone' if you see now that it was not started since '%s':\n> " "$1"
  IFS= read -r said || said=''
  [[ $said == gone ]] || return 1
  LOOKED_AGAIN=true
}

usage() {
  cat <<USAGE
usage: teardown.sh VERB [HOST] [--run] [--approve TEXT] [--accept PATH=WHY]... [--data-dir P] [--durable-dir P]

Ends a cost on $TITLE. Without --run it shows what VERB keeps, loses and goes on costing, checks the gate and prints
what would be done. With --run it does it, after your approval, and looks whether it took effect.

The gate is the same for every verb. It opens when all of this holds now: verify_local.py (run here and now) finds every
file of the bundle in order; each cell is done or excepted; manifest, receipt and box.json are of one run; INSTANCE is the
one in box.json; and the box reports no live claim, session, transfer or GPU process.

The approval is exactly: VERB INSTANCE DIGITS. The digits are the first 12 of the manifest's SHA-256 (or the word
nothing, where no run was found). Type it when asked, or give it with --approve.

--accept PATH=WHY  is handed to verify_local.py: take that file of the bundle, which is suspicious, unproven or needs an
                   allow-list, as ok. It is shown, and stands with WHY in the receipt and in teardown.jsonl. A file that is
                   missing or not what the box hashed cannot be accepted.
--data-dir P, --durable-dir P  where the run lies on the box, if not where the profile says

VERB is one of: ${ACTION_VERBS[*]}
environment: INSTANCE (what the platform calls the box), HOST, RUN, LOCAL_DIR (default ~/gpu-runs), PRICE_PER_HOUR;
DATA_DIR and DURABLE_DIR, as the two options
exit codes: 0 done and checked, or printed; 1 the action failed; 64 usage; 65 a record does not match; 69 something is
missing or it is not known whether it took effect; 74 the record could not be written; 77 the gate is shut; 78 configuration
USAGE
}

parse_args() { # <words...>    sets VERB HOST ACT APPROVAL APPROVED
  VERB='' ACT=false APPROVAL='' APPROVED=false ACCEPTS=() LOOKED_AGAIN=false TYPED=''
  HOST=${HOST-}
  local given=()
  while (($# > 0)); do
    case $1 in
      --run) ACT=true ;;
      --approve | --accept | --data-dir | --durable-dir)
        (($# > 1)) || refuse "$EX_USAGE" "$1" "it wants a value" "see --help"
        take_value "$1" "$2"
        shift
        ;;
      -*) refuse "$EX_USAGE" "${1//[[:cntrl:]]/?}" "no such option" "see --help" ;;
      *) given+=("$1") ;;
    esac
    shift
  done
  ((${#given[@]} == 1 || ${#given[@]} == 2)) || refuse "$EX_USAGE" "the call" "it wants VERB and at most one HOST" "see --help"
  VERB=${given[0]}
  HOST=${given[1]-$HOST}
  load_action "$VERB" || refuse "$EX_USAGE" "'${VERB//[[:cntrl:]]/?}'" "$TITLE has no such action" "one of: ${ACTION_VERBS[*]}"
}

take_value() { # <option> <value>
  case $1 in
    --approve) APPROVAL=$2 APPROVED=true ;;
    --accept)
      [[ $2 == ?*=*[![:space:]]* ]] || refuse "$EX_USAGE" "--accept ${2//[[:cntrl:]]/?}" "it is not PATH=WHY" "see --help"
      ACCEPTS+=("$2")
      ;;
    --data-dir) DATA_DIR=$2 ;;
    --durable-dir) DURABLE_DIR=$2 ;;
  esac
}

# Where things lie, and who is meant. Sets L INSTANCE SELF_DIR SHARED_MACHINE.
places() {
  [[ -z ${FAKE_ROOT-} ]] || refuse "$EX_CONFIG" "FAKE_ROOT" "it is set, and this is no rehearsal" "unset FAKE_ROOT"
  local_places
  local self=${BASH_SOURCE[0]-}
  [[ $self == */* ]] || self=./$self
  SELF_DIR=$(cd -P -- "${self%/*}" && pwd -P) || return
  # An owned machine has no id of a platform's: it is this one.
  if [[ $KIND == owned ]]; then INSTANCE=${INSTANCE-local}; else INSTANCE=${INSTANCE-}; fi
  # A notebook is owner/slug.
  local slug=$INSTANCE
  [[ $KIND != notebook ]] || slug=${INSTANCE/\//-}
  if [[ $INSTANCE == */ || ! $slug =~ ^[A-Za-z0-9][A-Za-z0-9._:-]*$ || $INSTANCE == latest ]]; then
    refuse "$EX_GATE" "INSTANCE='${INSTANCE//[[:cntrl:]]/?}'" "it does not name one box" "set INSTANCE to the exact id that the platform shows"
  fi
  [[ ${PRICE_PER_HOUR-} =~ ^([0-9]+([.][0-9]+)?)?$ ]] ||
    refuse "$EX_CONFIG" "PRICE_PER_HOUR='${PRICE_PER_HOUR//[[:cntrl:]]/?}'" "it is no number" "give a plain number such as 0.79"
  if [[ $KIND == owned || $KIND == slurm ]]; then SHARED_MACHINE=true; else SHARED_MACHINE=false; fi
}

say_list() { # <label> <words...>
  local label=$1
  shift
  printf '  %-17s %s\n' "$label:" "${*:-nothing}"
}

# The profile's row for the verb: facts with their source, nothing of our own.
show_action() {
  printf '%s of %s on %s (%s)\n' "$VERB" "$INSTANCE" "$TITLE" "$ACTION_SOURCE"
  say_list "stops the meter" "$ACTION_STOPS_METER"
  say_list "can be undone" "$ACTION_REVERSIBLE"
  say_list "what survives" ${ACTION_SURVIVES[@]+"${ACTION_SURVIVES[@]}"}
  say_list "what is lost" ${ACTION_LOST[@]+"${ACTION_LOST[@]}"}
  say_list "still billed" "$ACTION_BILLED"
  [[ -z $ACTION_RETENTION_DAYS ]] || say_list "kept for" "$ACTION_RETENTION_DAYS days, then the platform deletes it"
  [[ -z $ACTION_NOTE ]] || say_list "note" "$ACTION_NOTE"
  if [[ -n ${PRICE_PER_HOUR-} ]]; then
    if [[ $ACTION_STOPS_METER == true ]]; then
      say_list "until then" "$PRICE_PER_HOUR for each hour"
    else say_list "goes on costing" "$PRICE_PER_HOUR for each hour: this verb does not stop the meter"; fi
  fi
  if [[ $ACTION_LIKE == storage ]]; then
    say_list "usual order" "$METER_STOP first; keep durable storage until the work is published; a subscription last of all"
  fi
}

# Is it this box? The record that push left at first contact says which instance the run is on.
check_identity() {
  local rc=0
  read_record "$L/box.json" box/1 || rc=$?
  if ((rc == 1)) && [[ $KIND == notebook || $KIND == kubernetes ]]; then return 0; fi
  ((rc == 0)) || refuse "$EX_GATE" "$VERB $INSTANCE" "$L/box.json does not say which box this run is on" "run push.sh or pull.sh with INSTANCE set, against that box"
  [[ ${R_instance-} == "$INSTANCE" ]] ||
    refuse "$EX_GATE" "$VERB $INSTANCE" "the run is on instance '${R_instance-}' ($L/box.json)" "set INSTANCE to that one, or leave this box alone"
  [[ ${R_profile-} == "$PROFILE" ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "$L/box.json is of profile '${R_profile-}'" "use that profile's teardown.sh"
  same_places "$EX_GATE" "where it really lies elsewhere now, push with --data-dir and --durable-dir first"
  BOX_RUN=${R_run_id-}
  [[ -z $BUNDLE_RUN || $BOX_RUN == "$BUNDLE_RUN" ]] ||
    refuse "$EX_GATE" "$VERB $INSTANCE" "the box has run '$BOX_RUN' and the bundle is of run '$BUNDLE_RUN'" "pull this run's results"
}

# Run ENTRY on the box (an owned machine: here), and print its answer. A connection of earlier is not reused: it would answer for a dead box.
ask_box() { # <entry> <seconds> -- <variables...> -- <functions...>    returns: its status, 69, 77
  local entry=$1 limit=$2 rc=0 tmp
  shift 2
  # ssh starts in L, where the pinned key lies.
  mkdir -p -- "$L" && tmp=$(mktemp -d) || return "$EX_COPY"
  ssh_words liveness
  on_box "$tmp/answer" "$limit" "$entry" "$@" || rc=$?
  cat -- "$tmp/answer"
  # Our own folder: mktemp made it a moment ago.
  rm -rf -- "${tmp:?}"
  return "$rc"
}

# Look at the box. Sets REACHED and LOOK (its answer).
look_now() {
  local rc=0
  REACHED=false LOOK=''
  case $KIND in
    notebook | kubernetes) return 0 ;;
    owned) ;;
    *) [[ -n $HOST ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "without HOST nobody can look whether something still runs there" "give HOST, an ssh alias or user@host" ;;
  esac
  check_host
  DATA_MOUNT='' DURABLE_MOUNT=''
  [[ $DATA_PROOF != mount* ]] || DATA_MOUNT=$DATA_TIER_PATH
  [[ $DURABLE_PROOF != mount* ]] || DURABLE_MOUNT=$DURABLE_TIER_PATH
  # shellcheck disable=SC2034 # on_box sends them by name
  DATA_ROOT=$DATA_TIER_PATH DURABLE_ROOT=$DURABLE_TIER_PATH
  LOOK=$(ask_box look_at_box 300 -- DATA_DIR DURABLE_DIR RUN SHARED_MACHINE DATA_MOUNT DURABLE_MOUNT DATA_ROOT DURABLE_ROOT PROG -- "${LOOK_FUNCTIONS[@]}") || rc=$?
  case $rc in
    0) REACHED=true ;;
    69) ;;
    *) refuse "$EX_GATE" "$VERB $INSTANCE" "looking at the box ended with status $rc" "make 'patrol' or a plain ssh work first" ;;
  esac
}

# What the box said, against the bundle: any doubt shuts the gate. Sets ON_BOX (sizes), LEFT (what no bundle has).
judge_look() {
  local word rest busy='' unknown='' newer='' seen_run='' seen_manifest='' others=() strays=()
  ON_BOX='' LEFT=''
  while read -r word rest; do
    case $word in
      run) [[ -z $seen_run ]] || unknown+="; it names two runs" && seen_run=$rest ;;
      manifest) [[ -z $seen_manifest ]] || unknown+="; it names two manifests" && seen_manifest=$rest ;;
      size) ON_BOX+="$rest"$'\n' ;;
      left) LEFT+="$rest"$'\n' ;;
      other) others+=("$rest") ;;
      stray) strays+=("$rest") ;;
      busy) busy+="; $rest" ;;
      newer) newer+="; $rest" ;;
      # One mount may hold both tiers: said once.
      unknown) [[ "$unknown; " == *"; $rest; "* ]] || unknown+="; $rest" ;;
      *) unknown+="; the box said: $word $rest" ;;
    esac
  done <<<"$LOOK"
  [[ -n $seen_run && -n $seen_manifest ]] || unknown="; the look was cut short$unknown"
  [[ -z $unknown ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "${unknown#; }${busy}" "put that right there (attach the storage? another --data-dir?), then run this again"
  [[ -z $busy ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "${busy#; }" "wait until it is over, or end it yourself by its own command, then run this again"
  judge_run_seen "$seen_run" "$seen_manifest"
  [[ -z $newer ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "${newer#; }" "aggregate and pull, then run this again"
  judge_sizes
  judge_strays ${strays[@]+"${strays[@]}"}
  say_left
  judge_others ${others[@]+"${others[@]}"}
}
judge_run_seen() { # <run id> <digest of the manifest>
  if [[ -z $BUNDLE_RUN ]]; then
    [[ $1 == none && $2 == none ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "run $1 is on the box and nothing of it is home" "aggregate, pull, then run this again"
    log "no run is below $DATA_DIR${DURABLE_DIR:+ or $DURABLE_DIR}: if yours ran in another folder, give --data-dir"
    return 0
  fi
  [[ $1 == "$BUNDLE_RUN" ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "the box shows run '$1' and the bundle is of run '$BUNDLE_RUN'" "see whether HOST is the right box"
  [[ $2 == "$DIGEST" ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "the box has another manifest (${2:0:12}) than the one verified here (${DIGEST:0:12})" "pull again, then run this again"
}

# Where a person sees what is there and is billed, and how things come home: each kind has its own.
where_seen() {
  case $KIND in
    owned) printf 'on this machine' ;;
    slurm) printf 'with squeue --me and sacct, on the login node' ;;
    kubernetes) printf "with kubectl get jobs,pods,nodes and in the provider's console" ;;
    notebook) printf "on the platform's own page of what runs" ;;
    *) printf "in the platform's console" ;;
  esac
}
way_home() {
  if [[ $KIND == notebook || $KIND == kubernetes ]]; then printf 'bring the results home (P5.3 of RUNBOOK.md)'; else printf 'make ssh work'; fi
}

# An unreachable box is no proof of an end, but for a run that switched it off by itself, or a box that is known to be gone.
judge_silence() {
  [[ -n $BUNDLE_RUN ]] || refuse "$EX_GATE" "$VERB $INSTANCE" "the box does not answer and nothing is home, so nobody knows what is on it" "$(way_home), or decide yourself $(where_seen)"
  case $KIND in
    notebook | kubernetes)
      # Nothing leads there. Every cell of the verified bundle is over, and no command of ours runs: the person acts and looks.
      log "nobody looked at the box from here: see yourself that nothing of yours still runs there"
      return 0
      ;;
  esac
  if read_record "$L/FORMAL_SUCCESS" formal_success/1 "$BUNDLE_RUN" && [[ ${R_manifest_sha256-} == "$DIGEST" && ${R_power_off-} == true ]] || known_gone; then
    judge_known_others
    return 0
  fi
  refuse "$EX_GATE" "$VERB $INSTANCE" "the box does not answer, and no FORMAL_SUCCESS of this bundle at $L says that it is over and that it powered off" "start or reach the box, then run this again"
}

plan() { # prints what --run would do
  local word
  say_list "bundle" "${DIGEST:+$L, manifest ${DIGEST:0:12}}"
  if ((${#ACTION_COMMAND[@]} > 0)) && can_run; then
    put_instance "${ACTION_COMMAND[@]}"
    printf '  %-17s' "command ($ACTION_WHERE):"
    for word in "${WORDS[@]}"; do printf ' %q' "$word"; done
    printf '\n'
  elif ((${#ACTION_COMMAND[@]} > 0)); then
    put_instance "${ACTION_COMMAND[@]}"
    say_list "type yourself" "${WORDS[*]}"
  else
    for word in "${ACTION_STEPS[@]}"; do say_list "step" "$word"; done
  fi
}
# Where no record says which instance the run is on, the command is only printed.
can_run() { [[ $KIND != notebook && $KIND != kubernetes && $ACTION_WHERE != console ]]; }

# Exactly these words, from a terminal or from --approve. Silence is no approval.
approve() {
  local wanted="$VERB $INSTANCE $DIGITS" said=''
  if [[ $APPROVED == true ]]; then
    said=$APPROVAL
  elif [[ -t 0 ]]; then
    printf 'To approve, type exactly:  %s\n> ' "$wanted"
    IFS= read -r said || said=''
  else
    refuse "$EX_GATE" "$VERB $INSTANCE" "nobody approved it, and there is no terminal to ask at" "add: --approve '$wanted'"
  fi
  [[ -n $said && $said == "$wanted" ]] ||
    refuse "$EX_GATE" "$VERB $INSTANCE" "the approval is not exactly '$wanted'" "run this again and type those words"
}

# Do it. Sets CONFIRMED: gone, present, unreachable or unknown.
act() {
  local rc=0 seen=0
  CONFIRMED=unknown
  if ((${#ACTION_COMMAND[@]} == 0)) || ! can_run; then
    plan
    ask_person
    return
  fi
  if ((${#ACTION_GONE_COMMAND[@]} > 0)); then look_gone || seen=$?; fi
  # The same approval twice: what is over is not done again, for an id may be given to somebody else later.
  if ((${#ACTION_GONE_COMMAND[@]} > 0 && seen == 0)) && recorded_gone "$VERB"; then
    log "$L/teardown.jsonl says that it was done before, and a look does not find it: nothing was called"
    CONFIRMED=gone
    return
  fi
  put_instance "${ACTION_COMMAND[@]}"
  run_words || rc=$?
  ((rc == 0)) || log "the command ended with status $rc"
  if ((${#ACTION_GONE_COMMAND[@]} > 0)); then
    await_gone
    # A list that never showed it proves nothing by not showing it.
    if [[ $CONFIRMED == gone ]] && ((seen != 1)); then
      log "the list did not show $INSTANCE before either, so its absence proves nothing"
      CONFIRMED=unknown
    fi
  elif [[ $ACTION_WHERE == box && $KIND != owned && ($ACTION_LIKE == stop || $ACTION_LIKE == destroy) ]]; then
    await_silence
    [[ $CONFIRMED != unreachable ]] || ask_person
  elif ((rc == 0)); then
    ask_person
  fi
}

finish() {
  [[ -z $DEADLINE ]] || printf '%s: what is left there is deleted by the platform at %s\n' "$VERB" "$DEADLINE"
  say_list "still billed" "$ACTION_BILLED"
  case $CONFIRMED in
    gone) claim gone "$VERB $INSTANCE" "$L/teardown.jsonl" ;;
    'said gone') claim "gone by your own look" "$VERB $INSTANCE" "$L/teardown.jsonl" ;;
    unreachable) claim "no longer reachable" "$VERB $INSTANCE" "$L/teardown.jsonl" && log "see $(where_seen) that it is no longer billed" ;;
    present)
      log "FAILED: $INSTANCE is still there after $VERB${PRICE_PER_HOUR:+, and costs $PRICE_PER_HOUR an hour}: end it $(where_seen) now"
      return "$EX_FAIL"
      ;;
    *)
      log "it is not known whether $VERB took effect${PRICE_PER_HOUR:+; if not, it costs $PRICE_PER_HOUR an hour}: look $(where_seen)"
      return "$EX_MISSING"
      ;;
  esac
}

# What a person vouches for instead of the verification, from the receipt, into ACCEPTED for the record.
show_accepted() {
  local line
  while IFS= read -r line; do
    [[ $line == '    {"path": '* ]] || continue
    line=${line#    } line=${line%,}
    say_list "accepted" "$line"
    ACCEPTED+=${ACCEPTED:+, }$line
  done <"$L/PULL_VERIFIED.json"
}

check_gate() {
  DIGEST='' BUNDLE_RUN='' BOX_RUN='' ON_BOX=''
  # No bundle is right only where box and laptop know of no run at all.
  ACCEPTED=''
  if [[ -e $L/PULL_MANIFEST.json || ! -e $L/box.json ]]; then
    check_bundle "$L" ''
    show_accepted
  fi
  check_identity
  if [[ -z $BUNDLE_RUN && -n $BOX_RUN ]]; then
    refuse "$EX_GATE" "$VERB $INSTANCE" "run $BOX_RUN was on it and nothing of it is home" "aggregate and pull, then run this again"
  fi
  look_now
  if [[ $REACHED == true ]]; then judge_look; else judge_silence; fi
  DIGITS=${DIGEST:0:12}
  DIGITS=${DIGITS:-nothing}
}

main() {
  case ${1-} in -h | --help) usage && return 0 ;; esac
  parse_args "$@"
  places
  show_action
  check_gate
  find_deadline
  if [[ $ACT != true ]]; then
    plan
    printf 'The gate is open. Nothing was done. To do it:\n  teardown.sh %s%s --run      and approve with: %s\n' "$VERB" "${HOST:+ $HOST}" "$VERB $INSTANCE $DIGITS"
    return 0
  fi
  approve
  # The person took their time: look again at what may have moved.
  look_now
  if [[ $REACHED == true ]]; then judge_look >/dev/null; else judge_silence; fi
  check_identity
  [[ -z $BUNDLE_RUN ]] || check_unchanged "$L"
  write_line false unknown || refuse "$EX_COPY" "$L/teardown.jsonl" "it cannot be written, and nothing is done unrecorded" "look at the disk here: room, rights"
  act
  find_deadline
  write_line true "$CONFIRMED" || log "could not record the outcome '$CONFIRMED' in $L/teardown.jsonl: write it down"
  finish
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
