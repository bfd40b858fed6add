#!/usr/bin/env bash
# pull.sh: bring the bundle home: resumable, each file compared with the manifest, nothing deleted.
# Generated; do not edit. Source: templates/local/pull.sh.j2
# To change it, edit the source or profiles/lambda.yaml, then: make profile=lambda
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=pull.sh

# --- bound values: profiles/lambda.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=lambda
# what kind of platform it is
readonly KIND=cloud-vm
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier filesystem: survives ssh drop, restart, stop, destroy
DATA_DIR=${DATA_DIR-"/lambda/nfs/\$FS_NAME"}
# tier filesystem: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-"/lambda/nfs/\$FS_NAME"}
# ServerAliveInterval
readonly KEEPALIVE_S=15
# ServerAliveCountMax
readonly KEEPALIVE_MAX=4
# direct, proxied or none
readonly SSH_FLAVOUR=direct
# files can be copied over it
readonly SSH_COPY=true
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

# For little: openssl hashes quicker, but starts three times as slowly.
hash_tool_small() {
  if command -v sha256sum >/dev/null 2>&1; then HASH_TOOL=sha256sum; else hash_tool; fi
}

hash_text() { # <text>    sets REPLY
  local HASH_TOOL=${HASH_TOOL-}
  hash_tool_small
  REPLY=$(exec_hash_tool < <(printf '%s' "$1")) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
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

# The nearest folder above PATH (or PATH itself) that exists, into REPLY.
existing_parent() { # <path>
  REPLY=$1
  while [[ -n $REPLY && ! -e $REPLY ]]; do REPLY=${REPLY%/*}; done
  REPLY=${REPLY:-/}
}

# One df, bounded: a dead network mount must not hang us. Prints the last line.
df_line() { # <-k or -i> <path>
  local text
  text=$(within 20 df -P "$1" -- "$2" 2>/dev/null) || return "$EX_MISSING"
  printf '%s\n' "${text##*$'\n'}"
}

# Free bytes of the file system that holds PATH, into REPLY; empty and 69 where it cannot be told.
free_bytes() { # <path>
  local line
  existing_parent "$1"
  line=$(df_line -k "$REPLY") || { REPLY= && return "$EX_MISSING"; }
  REPLY=
  [[ $line =~ \ ([0-9]+)\ +([0-9]+)\ +(-?[0-9]+)\ +([0-9]+|-)%?\ + ]] || return "$EX_MISSING"
  REPLY=$((BASH_REMATCH[3] * 1024))
}

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

# The id that the box shows must be the one that we know, before any byte is taken from it.
same_run() { # <run id of the box>
  [[ $1 =~ ^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$ ]] || refuse "$EX_INTEGRITY" "the box's run.json" "it has no run id" "look at it on the box"
  [[ -z $KNOWN_RUN_ID || $KNOWN_RUN_ID == "$1" ]] ||
    refuse "$EX_INTEGRITY" "run $RUN" "the box has run $1, and $L is of run $KNOWN_RUN_ID: they are never mixed" "give that run a RUN of its own, or move $L aside"
}

write_box_json() { # <run id or empty> <host name of the box> <instance>
  local REPLY key
  host_key
  key=$REPLY
  record_open box/1
  record_text run_id "$1"
  record_text profile "$PROFILE"
  record_text host "$2"
  record_text instance "$3"
  record_text host_key "$key"
  record_text data_dir "$DATA_DIR"
  record_text durable_dir "$DURABLE_DIR"
  record_close
  replace_file "$L/box.json" "$RECORD"
}

# The name of the instance that we are at: INSTANCE, or what was known before. An owned machine has none of a platform's.
this_instance() { # into REPLY
  REPLY=${INSTANCE-$KNOWN_INSTANCE}
  [[ -n $REPLY || $KIND != owned ]] || REPLY=local
  [[ -z $REPLY || $REPLY =~ ^[A-Za-z0-9][A-Za-z0-9._:-]*$ ]] ||
    refuse "$EX_CONFIG" "INSTANCE '${REPLY//[[:cntrl:]]/?}'" "it is no id of a platform" "give it as the platform shows it"
}

# lib/pull_list.bash: the box's manifest, read as something that may be hostile, and what of it is here already.
# needs: exit log file record hash compat room
# reads: L RUN_ID; works on the parallel P_BYTES P_SUMS P_PATHS and on P_CELLS P_STATES

# Read the manifest in FILE. Each line must be one that aggregate writes; a path can only lie below final_ckpts/<cell>/.
read_manifest() { # <file>    returns: 0, or refuses 65
  local file=$1 line body bad='' name='[A-Za-z0-9][A-Za-z0-9._=,+@-]*'
  local cell='^    \{"cell": "([^"]*)", "state": "([a-z]+)", "why": "[^"]*"\},?$'
  local entry='^    \{"bytes": ([0-9]+), "sha256": "([0-9a-f]+)", "path": "([^"]*)"\},?$'
  P_BYTES=() P_SUMS=() P_PATHS=() P_CELLS=() P_STATES=() P_TOTAL=0
  read_record "$file" pull_manifest/1 "$RUN_ID" || bad='it is not a whole manifest of this run'
  if [[ -z $bad ]]; then
    M_EXPECTED=${R_cells_expected-} M_DONE=${R_cells_done-}
    body=$(sed -n -e '/^  "self_sha256": /q' -e p "$file")
    hash_text "$body"$'\n'
    [[ $REPLY == "${R_self_sha256-}" ]] || bad='it does not match its own digest'
  fi
  while [[ -z $bad ]] && IFS= read -r line; do
    if [[ $line =~ $cell ]]; then
      P_CELLS+=("${BASH_REMATCH[1]}")
      P_STATES+=("${BASH_REMATCH[2]}")
    elif [[ $line =~ $entry ]]; then
      safe_path "${BASH_REMATCH[3]}" || bad="a path in it is not below final_ckpts/: '${BASH_REMATCH[3]//[[:cntrl:]]/?}'"
      P_BYTES+=("${BASH_REMATCH[1]}")
      P_SUMS+=("${BASH_REMATCH[2]}")
      P_PATHS+=("${BASH_REMATCH[3]}")
      P_TOTAL=$((P_TOTAL + BASH_REMATCH[1]))
    elif [[ $line == '    '* ]]; then
      bad="a line of it is no entry: ${line//[[:cntrl:]]/?}"
    fi
  done <"$file"
  [[ -n $bad || ${#P_PATHS[@]} -eq ${R_files_total:-x} && ${#P_CELLS[@]} -eq ${M_EXPECTED:-x} ]] || bad='it holds fewer or more entries than it says'
  for line in ${P_CELLS[@]+"${P_CELLS[@]}"}; do
    [[ $line =~ ^$name$ && ${#line} -le 128 ]] || bad="a cell's name in it is none: '${line//[[:cntrl:]]/?}'"
  done
  [[ -z $bad ]] || refuse "$EX_INTEGRITY" "the box's PULL_MANIFEST.json" "$bad" "run aggregate_to_fs.sh on the box again, and look at what changed it"
}

# Is PATH one that we may write below L?
safe_path() { # <path>
  case $1 in
    *[[:cntrl:]]* | *\\* | *//* | */ | */. | */.. | */./* | */../*) return 1 ;;
    final_ckpts/[A-Za-z0-9]*/?*) return 0 ;;
  esac
  return 1
}

path_cell() { # <path>    the cell's name into REPLY
  REPLY=${1#final_ckpts/}
  REPLY=${REPLY%%/*}
}

# A bundle that holds less than what is here already is not the bundle that we mean.
not_shorter() {
  local cell old
  [[ -s $L/PULL_MANIFEST.json ]] || return 0
  old=$(sed -n 's/^    {"cell": "\([^"]*\)", "state": "done".*/\1/p' "$L/PULL_MANIFEST.json")
  while IFS= read -r cell; do
    [[ -n $cell ]] || continue
    in_manifest "$cell" ||
      refuse "$EX_COPY" "the box's bundle" "cell $cell was pulled before and is not done there now: wrong folder, or storage not attached" "look at the box; nothing here was changed"
  done <<<"$old"
}
in_manifest() { # <cell>    is it done there?
  local i
  for ((i = 0; i < ${#P_CELLS[@]}; i++)); do
    [[ ${P_CELLS[i]} != "$1" || ${P_STATES[i]} != 'done' ]] || return 0
  done
  return 1
}

# Can the target hold these names? Two that differ in case only, colons, names too long: found by trying, before any transfer.
probe_target() {
  local dir=$L/.partial/probe path part folded fold_case=false seen=$'\n' shown
  rm -rf -- "${dir:?}"
  mkdir -p -- "$dir" || refuse "$EX_NOROOM" "$dir" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
  : >"$dir/case-Aa"
  [[ ! -e $dir/CASE-aA ]] || fold_case=true
  for path in ${P_PATHS[@]+"${P_PATHS[@]}"}; do
    if [[ $fold_case == true ]]; then
      folded=$(printf '%s' "$path" | tr '[:upper:]' '[:lower:]')
      [[ $seen != *$'\n'"$folded"$'\n'* ]] ||
        refuse "$EX_GATE" "$L" "its file system takes upper and lower case as one, and the bundle has two files named $path" "set LOCAL_DIR to a case-sensitive volume"
      seen+=$folded$'\n'
    fi
    [[ ! $path =~ ^[A-Za-z0-9._/=,+@-]*$ || ${#path} -gt 150 || $path == *./* || $path == *. ]] || continue
    part=$path
    # The same depth and the same names, in a folder of its own.
    if ! mkdir -p -- "$dir/${part%/*}" 2>/dev/null || ! { : >"$dir/$part"; } 2>/dev/null || ! shown=$(ls -a -- "$dir/${part%/*}") ||
      [[ $'\n'$shown$'\n' != *$'\n'"${part##*/}"$'\n'* ]]; then
      refuse "$EX_GATE" "$L" "its file system cannot hold the name $path" "set LOCAL_DIR to a volume that can"
    fi
  done
  rm -rf -- "${dir:?}"
}

# A file here with this digest? Digests of earlier are kept by size, inode and times.
have_file() { # <path> <sha256>
  local REPLY stamp
  file_stamp "$L/$1" || return 1
  stamp=$REPLY
  case $'\n'$VERIFIED in
    *$'\n'"$2 $stamp $1"$'\n'*) return 0 ;;
  esac
  if ! hash_file "$L/$1" || [[ $REPLY != "$2" ]]; then
    log "$L/$1 is here, but not what the manifest says (changed there, or damaged here): fetched anew"
    return 1
  fi
  remember "$1" "$2" "$stamp"
}
remember() { # <path> <sha256> <stamp>
  VERIFIED+="$2 $3 $1"$'\n'
  printf '%s %s %s\n' "$2" "$3" "$1" >>"$L/.partial/verified" || :
}

# Which files are still to come, of all or of one cell: indices into TODO, bytes into TODO_BYTES.
find_todo() { # <cell or empty>
  local REPLY i
  TODO=() TODO_BYTES=0 VERIFIED=''
  [[ ! -f $L/.partial/verified ]] || VERIFIED=$(<"$L/.partial/verified")$'\n'
  for ((i = 0; i < ${#P_PATHS[@]}; i++)); do
    path_cell "${P_PATHS[i]}"
    [[ -z $1 || $REPLY == "$1" ]] || continue
    if have_file "${P_PATHS[i]}" "${P_SUMS[i]}"; then continue; fi
    TODO+=("$i")
    TODO_BYTES=$((TODO_BYTES + P_BYTES[i]))
  done
}

# Room on the laptop for what is to come, less what of it lies in .partial already.
pull_room() {
  local REPLY i have=0 free
  for i in ${TODO[@]+"${TODO[@]}"}; do
    if file_bytes "$L/.partial/files/${P_PATHS[i]}" && ((REPLY <= P_BYTES[i])); then have=$((have + REPLY)); fi
  done
  free_bytes "$L" && [[ -n $REPLY ]] || return 0
  free=$REPLY
  ((TODO_BYTES - have + 1048576 <= free)) ||
    refuse "$EX_NOROOM" "$L" "$((TODO_BYTES - have)) bytes are to come and $free are free" "make room, or set LOCAL_DIR to a larger disk, and run this again"
}

# lib/pull_bytes.bash: the bytes: into a private folder, compared with the manifest, and only then under their names.
# needs: exit log file hash compat ssh pull_list room
# reads: L B_FOLDER METHOD; the P_ arrays

readonly SMALL=4194304   # a file up to this size travels with others
readonly BATCH_FILES=200 # that many at most
readonly TRIES=6         # for one cell

# Runs on the box.
send_tail() { # reads: ONE OFFSET
  box_places
  tail -c "+$OFFSET" -- "$B/$ONE"
}
send_batch() { # reads: NAMES
  box_places
  cd -- "$B" || return
  set -f
  local IFS=$'\n'
  # shellcheck disable=SC2086 # one name a line, none begins with a dash
  tar -cf - $NAMES
}

# One large file from where it was cut off.
stream_one() { # <path> <bytes>
  local REPLY ONE=$1 OFFSET part=$L/.partial/files/$1
  mkdir -p -- "${part%/*}" || return "$EX_NOROOM"
  file_bytes "$part" || REPLY=0
  if ((REPLY >= $2)); then REPLY=0 && : >"$part"; fi
  OFFSET=$((REPLY + 1))
  bytes_from_box send_tail -- PROG RUN DATA_DIR DURABLE_DIR ONE OFFSET -- box_places require_path expand_path >>"$part" 2>"$L/.partial/transport.err"
}

stream_small() { # reads: NAMES
  mkdir -p -- "$L/.partial/files" || return "$EX_NOROOM"
  # -o: the files are ours, whoever made them there.
  bytes_from_box send_batch -- PROG RUN DATA_DIR DURABLE_DIR NAMES -- box_places require_path expand_path 2>"$L/.partial/transport.err" |
    tar -xof - -C "$L/.partial/files" 2>"$L/.partial/tar.err"
}

# The listed indices by our own stream: the small ones together, each large one by itself.
by_stream() { # <indices...>
  local i NAMES='' n=0 rc=0
  for i in "$@"; do
    if ((P_BYTES[i] > SMALL)); then
      stream_one "${P_PATHS[i]}" "${P_BYTES[i]}" || return
      continue
    fi
    NAMES+=${NAMES:+$'\n'}${P_PATHS[i]}
    n=$((n + 1))
    if ((n >= BATCH_FILES)); then
      stream_small || return
      NAMES='' n=0
    fi
  done
  ((n == 0)) || stream_small || rc=$?
  return "$rc"
}

# The same by rsync. Names travel in its own protocol, not through a shell.
by_rsync() { # <indices...>
  local i remote="${SSH_WORDS[*]}"
  mkdir -p -- "$L/.partial/files" || return "$EX_NOROOM"
  for i in "$@"; do printf '%s\0' "${P_PATHS[i]}"; done |
    (unset RSYNC_RSH RSYNC_PARTIAL_DIR && cd -- "$L" && exec rsync --files-from=- --from0 --partial --inplace --timeout=120 \
      -e "$remote" -- "$HOST:$B_FOLDER/" .partial/files/) >/dev/null 2>"$L/.partial/transport.err"
}

# A name under final_ckpts/ whose way there leads through a link would be written somewhere else.
real_folder() { # <folder below L>
  local dir=$L rest=$1/
  while [[ -n $rest ]]; do
    dir=$dir/${rest%%/*}
    rest=${rest#*/}
    [[ ! -L $dir ]] || refuse "$EX_GATE" "$dir" "it is a link, so files would go elsewhere" "put a folder in its place"
  done
  mkdir -p -- "$dir" || refuse "$EX_NOROOM" "$dir" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
}

# Take what came: a file that is what the manifest says moves to its name. Sets LEFT (indices) WRONG (whole, but another) GOT.
take_files() { # <indices...>
  local REPLY i path part
  LEFT=() WRONG=() GOT=0
  for i in "$@"; do
    path=${P_PATHS[i]} part=$L/.partial/files/${P_PATHS[i]}
    if [[ -L $part || ! -f $part ]] || ! file_bytes "$part"; then
      LEFT+=("$i")
    elif ((REPLY < P_BYTES[i])); then
      GOT=$((GOT + REPLY))
      LEFT+=("$i")
    elif hash_file "$part" && [[ $REPLY == "${P_SUMS[i]}" ]]; then
      [[ $path != */* ]] || real_folder "${path%/*}"
      flush "$part"
      [[ ! -L $L/$path && ! -d $L/$path ]] || refuse "$EX_GATE" "$L/$path" "a link or folder is where the file belongs" "move it aside"
      mv -f -- "$part" "$L/$path" || return "$EX_NOROOM"
      GOT=$((GOT + P_BYTES[i]))
      DONE_BYTES=$((DONE_BYTES + P_BYTES[i]))
      if file_stamp "$L/$path"; then remember "$path" "${P_SUMS[i]}" "$REPLY"; fi
    else
      rm -f -- "$part"
      LEFT+=("$i")
      WRONG+=("$i")
    fi
  done
}

versions() { # into REPLY: both ends' tools, for whoever reads the failure
  local mine
  mine=$(rsync --version 2>/dev/null | head -n 1) || mine='no rsync'
  REPLY="here: ${mine:-no rsync}; box: ${BOX_RSYNC:-no rsync}; method: $METHOD"
}

give_up() { # <code> <what> <why>
  local REPLY said=''
  [[ ! -s $L/.partial/transport.err ]] || said=$(tail -c 300 "$L/.partial/transport.err")
  plain_text "$said"
  said=$REPLY
  versions
  refuse "$1" "$2" "$3${said:+ ($said)}; $REPLY" "run this again: what is here already is kept"
}

# One cell, or a part of it, until it is here. Ends after a bounded number of tries, sooner where nothing moves.
fetch() { # <what it is called> <indices...>    returns: 0, or refuses 65, 69, 73
  local what=$1 try=0 idle=0 wrong=0 rc
  shift
  LEFT=("$@")
  while ((${#LEFT[@]} > 0)); do
    try=$((try + 1))
    ((try <= TRIES)) || give_up "$EX_MISSING" "$what" "it is not here after $TRIES tries"
    ((try == 1)) || retry_pause "$try"
    rc=0
    if [[ $METHOD == rsync ]]; then by_rsync "${LEFT[@]}" || rc=$?; else by_stream "${LEFT[@]}" || rc=$?; fi
    set -- "${LEFT[@]}"
    take_files "$@" || give_up "$EX_NOROOM" "$what" "a file could not be put in place"
    after_try "$what" "$rc"
  done
}
after_try() { # <what> <status of the transfer>    reads and sets fetch's idle and wrong
  local REPLY
  ((${#LEFT[@]} > 0)) || return 0
  if free_bytes "$L" && [[ -n $REPLY ]] && ((REPLY < 1048576)); then
    give_up "$EX_NOROOM" "$L" "the disk is full"
  fi
  if [[ $METHOD == rsync ]]; then
    case $2 in
      # Wrong call, protocol or feature missing: another version's rsync. The stream needs neither.
      1 | 2 | 4 | 5 | 127) METHOD=stream && log "rsync does not work here (status $2): going on without it" ;;
    esac
  fi
  if ((${#WRONG[@]} > 0)); then
    wrong=$((wrong + 1))
    log "${P_PATHS[${WRONG[0]}]} came, but is not what the manifest says: fetched anew from its beginning"
    # The second time is no accident of the transfer.
    ((wrong < 2)) || [[ $METHOD == rsync ]] || name_the_hop "${WRONG[0]}"
    ((wrong < 2)) || METHOD=stream
  fi
  if ((GOT <= LAST_GOT)); then idle=$((idle + 1)); else idle=0; fi
  if ((idle == 2)) && [[ $METHOD == rsync ]]; then
    # A gateway that lets no rsync through ends it with whatever status.
    METHOD=stream idle=1
    log "rsync brings nothing here (status $2): going on without it"
  fi
  LAST_GOT=$GOT
  ((idle < 3)) || give_up "$EX_MISSING" "$what" "three tries brought nothing new"
  log "$what: ${#LEFT[@]} files are still to come (status $2)"
}
# A file came twice and is wrong: where was it changed? The box reads its own copy once more.
name_the_hop() { # <index>    refuses 65
  local REPLY ONE=${P_PATHS[$1]} why
  if on_box "$L/.partial/hop" 0 digest_there -- PROG RUN DATA_DIR DURABLE_DIR ONE -- box_places require_path expand_path; then
    REPLY=$(<"$L/.partial/hop")
    why="the durable tier has it with digest ${REPLY:0:12}, not ${P_SUMS[$1]:0:12}: it was changed there after aggregation; run aggregate_to_fs.sh --rehash there"
    [[ $REPLY != "${P_SUMS[$1]}" ]] || why="the durable tier has it right: the line or this disk changes it on the way"
  else
    why="it came twice and is not what the manifest says, and the box cannot be asked"
  fi
  give_up "$EX_INTEGRITY" "$ONE" "$why"
}
digest_there() { # runs on the box
  local text
  box_places
  text=$(sha256sum <"$B/$ONE") && printf '%s\n' "${text%% *}"
}
retry_pause() { # <try>
  sleep $((RETRY_S * ($1 - 1))) || :
}

RETRY_S=${RETRY_S-3} # first pause before a further try
LOOK_S=${LOOK_S-300} # for the first answer of the box

usage() {
  cat <<'USAGE'
usage: pull.sh [HOST] [--print] [--only CELL] [--new-host-key] [--data-dir P] [--durable-dir P]

Brings the run's bundle from the durable tier to LOCAL_DIR/<profile>.<run>, cell by cell. Every file arrives in a private
folder, is compared with the digest in the box's manifest and only then gets its name; a file that is here already and
right is not fetched again, one that is damaged is replaced. Cut off at any point, the same command goes on. Nothing is
ever deleted here. PULL_MANIFEST.json comes last: where it lies, everything that it lists has arrived.

HOST            ssh alias or user@host (or HOST in the environment); not needed where the machine is this one
--print         say what would be done, and do nothing
--only CELL     this cell alone; the manifest then stays away
--new-host-key  move the pinned host key aside: only after the platform itself has said that the box has a new one
--data-dir P, --durable-dir P  where the run lies on the box, if not where the profile says

exit codes: 0 everything is here, 64 usage, 65 a digest, manifest or run id does not match, 69 the box or its bundle cannot
be reached, 73 no room here, 74 the bundle there is shorter than what is here, 75 another pull is at work, 77 refused, 78 configuration
USAGE
}

bad_usage() { # <why>
  printf '%s: %s\n' "$PROG" "$1" >&2
  usage >&2
  exit "$EX_USAGE"
}
parse_words() { # <words...>    sets HOST PRINT ONLY NEW_KEY TYPED DATA_DIR DURABLE_DIR
  local given=''
  HOST=${HOST-} PRINT=false ONLY='' NEW_KEY=false TYPED=''
  while (($# > 0)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --print) PRINT=true ;;
      --new-host-key) NEW_KEY=true ;;
      --only | --data-dir | --durable-dir)
        (($# > 1)) || bad_usage "$1 wants a value"
        case $1 in
          --only) check_name "$2" 'cell' && ONLY=$2 ;;
          --data-dir) DATA_DIR=$2 TYPED+=' DATA_DIR' ;;
          --durable-dir) DURABLE_DIR=$2 TYPED+=' DURABLE_DIR' ;;
        esac
        shift
        ;;
      # An option that is none may be meant as a host: it is refused as one, too.
      -*) bad_usage "'${1//[[:cntrl:]]/?}' is no option, and no host begins with a dash" ;;
      *)
        [[ -z $given ]] || bad_usage "one HOST at most"
        given=$1 HOST=$1
        ;;
    esac
    shift
  done
}

# Runs on the box: what lies there, before any byte is taken.
look_for_bundle() {
  local file
  box_places
  [[ -d $B ]] || refuse "$EX_MISSING" "$B" "there is no such folder on the box" "is the storage attached? else give --durable-dir"
  [[ -s $B/run.json ]] || refuse "$EX_MISSING" "$B/run.json" "no run has begun there" "start it, or give --durable-dir"
  [[ -s $B/PULL_MANIFEST.json ]] || refuse "$EX_MISSING" "$B/PULL_MANIFEST.json" "nothing was aggregated yet" "run aggregate_to_fs.sh on the box"
  printf 'run_id %s\n' "$(box_member "$B/run.json" run_id)"
  printf 'host %s\n' "$(cat /proc/sys/kernel/hostname 2>/dev/null)"
  printf 'folder %s\n' "$B"
  printf 'rsync %s\n' "$(rsync --version 2>/dev/null | head -n 1)"
  cd -- "$B" || return
  for file in run.json SHA256SUMS FORMAL_SUCCESS events.tsv queue.tsv NEGATIVE_RESULTS.tsv records/*; do
    if [[ -f $file ]]; then printf '%s\n' "$file"; fi
  done | tr '\n' '\0' | xargs -0 sha256sum -- | sed 's/^/meta /'
  printf 'manifest\n'
  cat PULL_MANIFEST.json
}

# Sets RUN_ID BOX_HOST B_FOLDER BOX_RSYNC META_SUMS META_PATHS; the manifest goes to L/.partial/manifest.
meet_box() {
  local line rc=0 answer=$L/.partial/answer
  on_box "$answer" "$LOOK_S" look_for_bundle -- PROG RUN DATA_DIR DURABLE_DIR -- box_places box_member require_path expand_path || rc=$?
  if ((rc != 0)); then
    [[ $SSH_COPY == true || $KIND == owned ]] || log "this platform's ssh ($SSH_FLAVOUR) carries no scp and no rsync: if it is a terminal only, runbook P1.2 says what to do"
    refuse "$rc" "pull from $HOST_NAME" "the bundle could not be looked at" "see the lines above"
  fi
  RUN_ID='' BOX_HOST='' B_FOLDER='' BOX_RSYNC='' META_SUMS=() META_PATHS=()
  while IFS= read -r line; do
    case $line in
      'run_id '*) RUN_ID=${line#* } ;;
      'host '*) BOX_HOST=${line#* } ;;
      'folder '*) B_FOLDER=${line#* } ;;
      'rsync '*) plain_text "${line#* }" && BOX_RSYNC=$REPLY ;;
      'meta '*) take_meta "${line#meta }" ;;
      manifest) break ;;
    esac
  done <"$answer"
  sed '1,/^manifest$/d' "$answer" >"$L/.partial/manifest" || refuse "$EX_NOROOM" "$L/.partial" "it cannot be written" "make room"
}
take_meta() { # <digest  path>
  [[ $1 =~ ^([0-9a-f]{64})\ [\ *](run\.json|SHA256SUMS|FORMAL_SUCCESS|events\.tsv|queue\.tsv|NEGATIVE_RESULTS\.tsv|records/[A-Za-z0-9][A-Za-z0-9._=,+@-]*)$ ]] || return 0
  META_SUMS+=("${BASH_REMATCH[1]}")
  META_PATHS+=("${BASH_REMATCH[2]}")
}

# rsync where both ends have it and its words are safe to hand to the shell there; else our own stream.
choose_method() {
  METHOD=stream
  [[ $KIND != owned && $SSH_COPY == true && -n $BOX_RSYNC ]] && command -v rsync >/dev/null 2>&1 || return 0
  [[ ! $B_FOLDER =~ ^/[A-Za-z0-9._/=,+@-]*$ ]] || METHOD=rsync
}

# Is this process a pull that still runs? Its number may be another program's by now, or a corpse that nobody has buried.
is_pull() { # <pid>    returns: 0 also where it cannot be told
  local text
  kill -0 "$1" 2>/dev/null || return 1
  text=$(ps -o stat= -o args= -p "$1" 2>/dev/null) || return 0
  [[ $text != Z* && $text == *"$PROG"* ]]
}

take_lock() {
  local pid='' file=$L/.partial/lock
  if ! (set -C && printf '%s\n' $$ >"$file") 2>/dev/null; then
    read -r pid <"$file" || :
    [[ ! $pid =~ ^[0-9]+$ ]] || ! is_pull "$pid" || refuse "$EX_BUSY" "$L" "another pull is at work (process $pid)" "wait for it, or end it"
    rm -f -- "$file"
    (set -C && printf '%s\n' $$ >"$file") 2>/dev/null || refuse "$EX_BUSY" "$L" "another pull was quicker" "wait for it"
  fi
  trap 'rc=$?; rm -f -- "${L:?}/.partial/lock"; exit "$rc"' EXIT
}

# Where we are, with rate and time to go.
progress() { # <what>
  local left rate eta=unknown
  left=$((TODO_BYTES - DONE_BYTES))
  rate=$((DONE_BYTES / (SECONDS - BEGAN > 0 ? SECONDS - BEGAN : 1)))
  ((rate == 0)) || eta="$((left / rate)) s"
  log "$1: $DONE_BYTES of $TODO_BYTES bytes, $((rate / 1000)) kB/s, to go: $eta"
}

pull_cells() {
  local REPLY i cell last='' n=0
  local group=()
  DONE_BYTES=0 BEGAN=$SECONDS LAST_GOT=-1
  # The manifest is in order of cells, so a cell's files stand together.
  for i in ${TODO[@]+"${TODO[@]}"} end; do
    if [[ $i != end ]]; then path_cell "${P_PATHS[i]}"; else REPLY=''; fi
    cell=$REPLY
    if [[ $cell != "$last" && -n $last ]]; then
      LAST_GOT=-1
      fetch "cell $last" "${group[@]}"
      progress "cell $last"
      group=() n=$((n + 1))
    fi
    last=$cell
    if [[ $i != end ]]; then group+=("$i"); fi
  done
}

# The small files of the bundle (run, records, sums): by the same way, compared with the digests that the box gave.
pull_meta() {
  local i
  local group=() moving=()
  P_PATHS=() P_SUMS=() P_BYTES=()
  for ((i = 0; i < ${#META_PATHS[@]}; i++)); do
    if ! have_file "${META_PATHS[i]}" "${META_SUMS[i]}"; then
      case ${META_PATHS[i]} in *.tsv) moving+=("$i") ;; *) group+=("$i") ;; esac
    fi
    P_PATHS+=("${META_PATHS[i]}")
    P_SUMS+=("${META_SUMS[i]}")
    P_BYTES+=(0)
  done
  LAST_GOT=-1 METHOD=stream
  ((${#group[@]} == 0)) || fetch "the records" "${group[@]}"
  # Where one tier holds all, a run that goes on still writes to these; nothing is decided by them.
  ((${#moving[@]} == 0)) || (fetch "events and queue" "${moving[@]}") ||
    log "events.tsv or queue.tsv did not come whole, so RUN_FACTS.md may lack overrides: pull again when the run is over"
}

# The manifest last. An older one goes aside first: while files change under it, it does not mean complete.
set_old_manifest_aside() {
  local REPLY
  [[ -s $L/PULL_MANIFEST.json ]] && ! cmp -s "$L/PULL_MANIFEST.json" "$L/.partial/manifest" || return 0
  hash_file "$L/PULL_MANIFEST.json" || return "$EX_COPY"
  mv -f -- "$L/PULL_MANIFEST.json" "$L/.partial/PULL_MANIFEST.${REPLY:0:12}.json"
}

print_plan() {
  local key
  key="its host key is pinned at first contact in $L/known_hosts"
  if [[ -s $L/known_hosts ]]; then key="its host key must be the one in $L/known_hosts"; fi
  [[ $KIND != owned ]] || key='this machine itself, without ssh'
  printf 'would pull run %s of %s\n' "$RUN" "$PROFILE"
  printf '  from  %s: %s/%s (%s)\n' "$HOST_NAME" "${DURABLE_DIR:-$DATA_DIR}" "$RUN" "$key"
  printf '  to    %s\n' "$L"
  printf '  by    rsync where both ends have it, else a plain stream over ssh; each file compared by SHA-256\n'
  printf '  cells %s\nnothing was done\n' "${ONLY:-all that are in the manifest}"
}

main() {
  local REPLY text known_host
  parse_words "$@"
  check_host
  local_places
  if [[ $PRINT == true ]]; then
    print_plan
    return 0
  fi
  mkdir -p -- "$L/.partial" || refuse "$EX_NOROOM" "$L" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
  take_lock
  [[ $NEW_KEY == false ]] || new_host_key
  read_box_json
  same_places "$EX_CONFIG" "or give --data-dir and --durable-dir to pull from elsewhere"
  ssh_words
  meet_box
  same_run "$RUN_ID"
  read_manifest "$L/.partial/manifest"
  not_shorter
  this_instance
  known_host=${HOST:-$BOX_HOST}
  [[ -n $KNOWN_RUN_ID && $KNOWN_INSTANCE == "$REPLY" ]] || write_box_json "$RUN_ID" "$known_host" "${KNOWN_INSTANCE:-$REPLY}"
  # From the second connection on the key is the pinned one.
  ssh_words
  [[ -z $ONLY ]] || in_manifest "$ONLY" || refuse "$EX_MISSING" "cell $ONLY" "the bundle does not have it done" "see the manifest: $L/.partial/manifest"
  probe_target
  find_todo "$ONLY"
  log "run $RUN_ID: ${#P_PATHS[@]} files, $P_TOTAL bytes in the bundle; ${#TODO[@]} files, $TODO_BYTES bytes to come"
  pull_room
  choose_method
  set_old_manifest_aside
  pull_cells
  pull_meta
  if [[ -n $ONLY ]]; then
    claim 'here, and every file as the manifest says' "cell $ONLY" "$L/records/$ONLY.json"
    return
  fi
  text=$(<"$L/.partial/manifest")
  replace_file "$L/PULL_MANIFEST.json" "$text"$'\n' || refuse "$EX_NOROOM" "$L/PULL_MANIFEST.json" "it cannot be written" "make room"
  claim "pulled, $M_DONE of $M_EXPECTED cells, every file as the manifest says" "bundle of run $RUN_ID" "$L/PULL_MANIFEST.json"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
