#!/usr/bin/env bash
# push.sh: bring scripts, code, data and secrets to the box; each is read back there.
# Generated; do not edit. Source: templates/local/push.sh.j2
# To change it, edit the source or profiles/local.yaml, then: make profile=local
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=push.sh

# --- bound values: profiles/local.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=local
# what kind of platform it is
readonly KIND=owned
# the branch that a formal run is at
readonly BRANCH=main
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier runs-folder: survives ssh drop, restart, stop, destroy
DATA_DIR=${DATA_DIR-"\$HOME/gpu-runs-box"}
# tier runs-folder: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-"\$HOME/gpu-runs-box"}
# NAME=value lines, mode 600; empty: none
CRED_FILE=${CRED_FILE-"\$HOME/.gpu-runbook.env"}
# what shows that the tier is there
readonly DATA_PROOF=none
# where it is mounted
readonly DATA_TIER_PATH="\$HOME/gpu-runs-box"
# shared and durable tiers: no secret may lie there
readonly -a SHARED_PATHS=(
  "\$HOME/gpu-runs-box"
)
# names of variables, never values
readonly -a SECRETS=()
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
# and how many files each must hold
readonly -a DATA_FILES=()
# hf_home: below HF_HOME, not below the code
readonly -a DATA_UNDER=()
# ServerAliveInterval
readonly KEEPALIVE_S=30
# ServerAliveCountMax
readonly KEEPALIVE_MAX=4
# direct, proxied or none
readonly SSH_FLAVOUR=none
# files can be copied over it
readonly SSH_COPY=false
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

# The type of the file system that is mounted at PATH itself, into REPLY; 1 where PATH is no mount point. By the kernel's list,
# which costs no look at a dead mount; the last of several mounts at one place hides the others.
mount_type() { # <path>
  local line fields
  REPLY=''
  while IFS= read -r line; do
    read -ra fields <<<"$line"
    # The kernel writes a blank as \040.
    [[ ${fields[4]-} == "${1// /\\040}" && $line == *' - '* ]] || continue
    line=${line#* - }
    REPLY=${line%% *}
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  [[ -n $REPLY ]]
}
# What a type of file system is made of, into REPLY: network, local, or unknown (virtiofs, 9p: what the host has).
mount_kind() { # <type>
  case $1 in
    fuseblk | fuse.fuse-overlayfs | ext[234] | xfs | btrfs | bcachefs | zfs | f2fs | overlay | tmpfs | ramfs | vfat | ntfs3) REPLY=local ;;
    nfs | nfs4 | cifs | smb3 | ceph | lustre | gpfs | beegfs | glusterfs | moosefs | wekafs | panfs | afs | fuse | fuse.*) REPLY=network ;;
    *) REPLY=unknown ;;
  esac
}

# Is the tier at PATH there, by its profile's proof? Says why not into REPLY.
prove_tier() { # <path of the tier> <the profile's proof>    returns: 0 or 74
  local type
  REPLY=
  case $2 in
    mount | mount-network | mount-local)
      if ! mount_type "$1"; then
        REPLY="$1 is not a mount point: the storage is not attached, and files there would go to another disk"
      else
        type=$REPLY
        mount_kind "$type"
        case $2,$REPLY in
          mount-network,local) REPLY="$1 is a local disk ($type), not the storage of the network that is meant: it does not survive as that does" ;;
          mount-local,network) REPLY="$1 is storage of the network ($type), not the box's own disk that is meant" ;;
          *) REPLY= ;;
        esac
      fi
      ;;
    mount-parent) # a folder that a mount one above it brings along
      if ! mount_type "${1%/*}"; then
        REPLY="${1%/*} is not a mount point: the storage is not attached, and files in $1 would go to another disk"
      elif [[ ! -d $1 ]]; then
        REPLY="${1%/*} is mounted, and $1 is not in it"
      else REPLY=; fi
      ;;
    marker) [[ -s $1/.gpu-runbook-tier ]] || REPLY="$1/.gpu-runbook-tier is missing: the storage is not attached, or nobody has marked it yet" ;;
    none) [[ -d $1 ]] || mkdir -p -- "$1" 2>/dev/null || REPLY="$1 is not there and cannot be made" ;;
    *) REPLY="the proof '$2' is not known" ;;
  esac
  [[ -z $REPLY ]] || return "$EX_COPY"
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

# lib/push_box.bash: what push does on the box. These functions are sent there (declare -f) and run there.
# needs: exit log path file hash room ssh
# reads, besides the places: BRANCH COMMIT SUM DIGEST NAMES LIST ONE CRED_FILE SHARED_PATHS_TEXT DATA_PROOF DATA_TIER_PATH

# What is there already, one fact a line. Makes nothing.
look_before_push() {
  local tier=$DATA_TIER_PATH
  box_places
  expand_path tier
  if [[ $DATA_DIR/ == "${tier%/}"/* && $DATA_PROOF != none ]]; then
    prove_tier "${tier%/}" "$DATA_PROOF" || refuse "$EX_COPY" "the data tier" "$REPLY" "attach the storage, or give --data-dir"
  fi
  printf 'host %s\n' "$(cat /proc/sys/kernel/hostname 2>/dev/null)"
  printf 'folder %s\n' "$D"
  [[ ! -s $D/run.json ]] || printf 'run_id %s\n' "$(box_member "$D/run.json" run_id)"
  [[ -s $D/run.json || ! -s $B/run.json ]] || printf 'run_id %s\n' "$(box_member "$B/run.json" run_id)"
  if command -v git >/dev/null 2>&1; then
    printf 'git yes\ncommit %s\n' "$(git -C "$D/code.git" rev-parse -q --verify "refs/heads/$BRANCH" 2>/dev/null)"
  fi
  printf 'rsync %s\n' "$(rsync --version 2>/dev/null | head -n 1)"
}

# Our input into a new file, held to its digest.
take_input() { # <file>
  local REPLY
  rm -f -- "$1"
  cat >"$1" || refuse "$EX_NOROOM" "$1" "it cannot be written" "make room on the data tier"
  hash_file "$1" && [[ $REPLY == "$SUM" ]] || refuse "$EX_COPY" "$1" "it did not arrive as it was sent" "push again"
}

folder_digest() { # <folder>    sha256 of its files' sha256sum lines, in C order, into REPLY
  local LC_ALL=C file text=''
  for file in "$1"/*; do
    [[ -f $file && ! -L $file ]] || return 1
    hash_file "$file" || return
    text+="$REPLY  ${file##*/}"$'\n'
  done
  hash_text "$text"
}

# The scripts into a folder named by their digest. A folder that is there is never written to: a script in it may run.
take_box() { # stdin: a tar of the files
  local REPLY dir new
  box_places
  dir=$D/box/${DIGEST:0:12} new=$D/box/.new.$$
  mkdir -p -- "$new" || refuse "$EX_NOROOM" "$new" "the folder cannot be made" "look at the data tier: room, rights"
  tar -xof - -C "$new" || { rm -rf -- "${new:?}" && refuse "$EX_COPY" "$new" "the scripts did not arrive whole" "push again"; }
  chmod -- 700 "$new"/*.sh
  if ! folder_digest "$new" || [[ $REPLY != "$DIGEST" ]]; then
    rm -rf -- "${new:?}"
    refuse "$EX_COPY" "$new" "the scripts read back with another digest" "push again"
  fi
  flush "$new"/* "$new"
  if [[ -e $dir ]]; then
    rm -rf -- "${new:?}"
    folder_digest "$dir" && [[ $REPLY == "$DIGEST" ]] ||
      refuse "$EX_INTEGRITY" "$dir" "its files are not what its name says: somebody changed them" "move it aside (mv), then push again"
  else
    mv -- "$new" "$dir" || refuse "$EX_COPY" "$dir" "it cannot be put in place" "look at the data tier"
  fi
  # A new link takes the old one's place in one step; whoever runs in the old folder stays there.
  ln -s -- "${DIGEST:0:12}" "$D/box/.current.$$" && mv -fT -- "$D/box/.current.$$" "$D/box/current" 2>/dev/null ||
    { rm -f -- "$D/box/.current.$$" && ln -sfn -- "${DIGEST:0:12}" "$D/box/current"; } ||
    refuse "$EX_COPY" "$D/box/current" "the link cannot be set" "look at the data tier: can it hold links?"
  [[ $(readlink "$D/box/current") == "${DIGEST:0:12}" ]] || refuse "$EX_COPY" "$D/box/current" "it does not read back" "push again"
}

box_git() { GIT_TERMINAL_PROMPT=0 git -c core.hooksPath=/dev/null -c safe.directory='*' "$@"; }

# A git that was killed leaves lock files, at which every later one stops. Where no git runs in FOLDER, they are nobody's.
drop_dead_locks() { # <folder that git runs in> <its repository>
  local proc comm
  [[ -d $2 && -e /proc/self/cwd ]] || return 0
  for proc in /proc/[0-9]*; do
    [[ $proc/cwd -ef $1 ]] || continue
    { IFS= read -r comm <"$proc/comm"; } 2>/dev/null || comm=''
    [[ $comm != git* ]] || return 0
  done
  find "$2" -name '*.lock' -type f -exec rm -f -- {} + 2>/dev/null || :
}

# The bundle into a bare repository, which is the work tree's origin: so a fast-forward pull needs no server.
take_code() { # stdin: the bundle; SUM is empty where none is needed
  box_places
  local said bare=$D/code.git part=$D/.push/code.bundle
  mkdir -p -- "$D/.push" || refuse "$EX_NOROOM" "$D/.push" "the folder cannot be made" "look at the data tier: room, rights"
  drop_dead_locks "$bare" "$bare"
  # Also where it is there: what a killed push left half made is made whole, and nothing in it is overwritten.
  box_git init -q --bare -- "$bare" || refuse "$EX_COPY" "$bare" "git cannot make it" "see the line above; is another push at work? else look at the data tier: room, rights"
  if [[ -n $SUM ]]; then
    take_input "$part"
    if ! said=$(LC_ALL=C box_git -C "$bare" fetch --no-tags -- "$part" "refs/heads/$BRANCH:refs/heads/$BRANCH" 2>&1); then
      [[ $said == *non-fast-forward* ]] ||
        refuse "$EX_COPY" "$bare" "git cannot take the commits: ${said//[[:cntrl:]]/ }" "look at the data tier: room, rights; then push again"
      refuse "$EX_GATE" "branch $BRANCH" "the box's copy has commits that yours has not, so this is no fast-forward" "merge them, or begin anew with another RUN"
    fi
    rm -f -- "$part"
  fi
  [[ $(box_git -C "$bare" rev-parse -q --verify "refs/heads/$BRANCH") == "$COMMIT" ]] ||
    refuse "$EX_COPY" "$bare" "its branch $BRANCH is not at $COMMIT afterwards" "push again"
  box_git -C "$bare" symbolic-ref HEAD "refs/heads/$BRANCH"
  place_code "$bare"
}

# The work tree. Once a run has begun, its code is left alone.
place_code() { # <bare repository>
  local bare=$1 url head
  if [[ ! -e $D/code ]]; then
    rm -rf -- "$D/.push/code"
    box_git clone -q -b "$BRANCH" -- "$bare" "$D/.push/code" || refuse "$EX_COPY" "$D/code" "git cannot make the work tree" "look at the data tier: room"
    # A stash of the formal gate needs some name to commit under.
    box_git -C "$D/.push/code" config user.name box && box_git -C "$D/.push/code" config user.email box@localhost
    mv -- "$D/.push/code" "$D/code" || refuse "$EX_COPY" "$D/code" "it cannot be put in place" "look at the data tier"
  fi
  url=$(box_git -C "$D/code" config --get remote.origin.url 2>/dev/null) || url=''
  head=$(box_git -C "$D/code" rev-parse -q --verify HEAD 2>/dev/null) || head=none
  if [[ $url != "$bare" ]]; then
    printf 'note %s is not from here (origin: %s): left as it is\n' "$D/code" "${url:-none}"
  elif [[ $head == "$COMMIT" ]]; then
    :
  elif [[ -e $D/run.json ]]; then
    printf 'note the run has begun at %s: %s stays there\n' "$(box_member "$D/run.json" commit)" "$D/code"
  elif [[ -n $(box_git -C "$D/code" status --porcelain --untracked-files=no) ]]; then
    printf 'note %s has uncommitted changes: left as it is\n' "$D/code"
  else
    drop_dead_locks "$D/code" "$D/code/.git"
    box_git -C "$D/code" pull -q --ff-only origin "$BRANCH" || refuse "$EX_GATE" "$D/code" "it cannot be fast-forwarded" "look at it on the box"
    head=$(box_git -C "$D/code" rev-parse -q --verify HEAD)
  fi
  printf 'head %s\n' "$head"
}

# Which of the listed data are not there with this size, and how much of each has come: LIST lines "bytes path".
need_data() { # stdin: the list
  local REPLY bytes path
  box_places
  while IFS= read -r path; do
    bytes=${path%% *} path=${path#* }
    REPLY=$(stat -c %s -- "$D/code/$path" 2>/dev/null) || REPLY=''
    [[ $REPLY != "$bytes" ]] || continue
    REPLY=$(stat -c %s -- "$D/.push/data/$path" 2>/dev/null) || REPLY=0
    printf 'need %s %s\n' "$REPLY" "$path"
  done
}
take_data_batch() { # stdin: a tar
  box_places
  mkdir -p -- "$D/.push/data" && tar -xof - -C "$D/.push/data"
}
take_data_tail() { # stdin: the rest of ONE
  box_places
  mkdir -p -- "$D/.push/data/$(dirname -- "$ONE")" && cat >>"$D/.push/data/$ONE"
}
# What came, held to its digest and then put under its name. stdin: lines "sha256 path".
place_data() {
  local REPLY sum path rc=0
  box_places
  while IFS= read -r path; do
    sum=${path%% *} path=${path#* }
    if hash_file "$D/.push/data/$path" && [[ $REPLY == "$sum" ]]; then
      mkdir -p -- "$(dirname -- "$D/code/$path")" && mv -f -- "$D/.push/data/$path" "$D/code/$path" || return "$EX_COPY"
    else
      rm -f -- "$D/.push/data/$path"
      printf 'wrong %s\n' "$path"
      rc=$EX_COPY
    fi
  done
  return "$rc"
}
count_data() { # reads: ONE    prints how many files it holds
  box_places
  find -L "$D/code/$ONE" -type f 2>/dev/null | wc -l
}

# Names and values into CRED_FILE: never on storage that others mount, never readable by others, others' lines kept.
take_secrets() { # stdin: NAME=value lines
  local dir shared line text='' names=' '
  box_places
  require_path CRED_FILE
  dir=${CRED_FILE%/*}
  mkdir -p -- "$dir" || refuse "$EX_CONFIG" "$dir" "the folder cannot be made" "set CRED_FILE to a place on the box's own disk"
  dir=$(cd -P -- "$dir" && pwd -P) || return
  while IFS= read -r shared; do
    [[ -n $shared ]] || continue
    expand_path shared
    shared=$(cd -P -- "$shared" 2>/dev/null && pwd -P) || continue
    [[ $dir/ != "${shared%/}"/* ]] ||
      refuse "$EX_CONFIG" "CRED_FILE=$CRED_FILE" "it lies on $shared, which others may mount or which outlives the box" "set CRED_FILE to a place on the box's own disk"
  done <<<"$SHARED_PATHS_TEXT"
  while IFS= read -r line; do
    names+="${line%%=*} "
    text+=$line$'\n'
  done
  if [[ -f $CRED_FILE && ! -L $CRED_FILE ]]; then
    while IFS= read -r line || [[ -n $line ]]; do
      [[ $names == *" ${line%%=*} "* ]] || text+=$line$'\n'
    done <"$CRED_FILE"
  fi
  replace_file "$CRED_FILE" "$text" || return
  chmod -- 600 "$CRED_FILE" && [[ $(stat -c %a -- "$CRED_FILE") == 600 ]] || refuse "$EX_COPY" "$CRED_FILE" "its mode cannot be made 600 there" "set CRED_FILE to a place that knows modes"
}

# lib/push.bash: the laptop's side of a push: scripts, code, data, secrets, each held to a digest or read back.
# needs: exit log file hash compat ssh push_box
# reads: L SELF_DIR CODE_DIR BRANCH HOST KIND D_FOLDER BOX_COMMIT BOX_GIT BOX_RSYNC

# One act on the box; its notes are shown, its facts are left in ANSWER. Any refusal there ends us with the same code.
act() { # <what> <input file or empty> <entry> <further variables...>
  local REPLY rc=0 what=$1 input=$2 entry=$3 line
  shift 3
  ANSWER=$L/.partial/push-answer
  BOX_INPUT=$input on_box "$ANSWER" "${ACT_S:-0}" "$entry" -- PROG RUN DATA_DIR DURABLE_DIR BRANCH COMMIT SUM DIGEST ONE "$@" -- "${BOX_FUNCTIONS[@]}" || rc=$?
  while IFS= read -r line; do
    [[ $line != 'note '* ]] || { plain_text "${line#note }" && log "$REPLY"; }
  done <"$ANSWER"
  ((rc == 0)) || refuse "$rc" "push to $HOST_NAME" "$what failed" "see the lines above; what arrived is kept, push again"
}
readonly -a BOX_FUNCTIONS=(box_places box_member require_path expand_path prove_tier mount_type mount_kind take_input folder_digest
  hash_tool hash_tool_small exec_hash_tool hash_file hash_text flush box_git drop_dead_locks place_code replace_file read_text)

# The scripts beside us, in the folder box/. A carriage return in one means that some tool rewrote the lines.
check_box_folder() { # sets DIGEST
  local file cr=$'\r'
  [[ -d $SELF_DIR/../box ]] || refuse "$EX_MISSING" "$SELF_DIR/../box" "the scripts for the box are not there" "push from the compiled folder, whole"
  BOX_FOLDER=$(cd -P -- "$SELF_DIR/../box" && pwd -P) || return
  for file in "$BOX_FOLDER"/*; do
    ! LC_ALL=C grep -q "$cr" "$file" ||
      refuse "$EX_INTEGRITY" "$file" "it holds carriage returns: a tool changed its line ends" "compile anew, and copy it as bytes"
  done
  folder_digest "$BOX_FOLDER" || refuse "$EX_INTEGRITY" "$BOX_FOLDER" "it holds something that is no plain file" "compile anew"
  DIGEST=$REPLY
}

push_box() {
  local names=() file
  for file in "$BOX_FOLDER"/*; do names+=("${file##*/}"); done
  # No resource forks of a Mac in it.
  COPYFILE_DISABLE=1 tar -cf "$L/.partial/box.tar" -C "$BOX_FOLDER" "${names[@]}" || refuse "$EX_NOROOM" "$L/.partial" "the archive cannot be written" "make room"
  act 'sending the scripts' "$L/.partial/box.tar" take_box
  rm -f -- "$L/.partial/box.tar"
  log "scripts: $D_FOLDER/box/${DIGEST:0:12}, and box/current leads there"
}

here_git() { GIT_TERMINAL_PROMPT=0 git -C "$CODE_DIR" -c core.hooksPath=/dev/null --no-pager "$@"; }

# The commit that is to run, into COMMIT; says what does not travel.
check_code() {
  local dirty on
  command -v git >/dev/null 2>&1 || refuse "$EX_MISSING" "the code" "git is not on PATH" "install git here"
  here_git rev-parse --git-dir >/dev/null 2>&1 || refuse "$EX_MISSING" "CODE_DIR=$CODE_DIR" "it is no git work tree" "go to the code, or set CODE_DIR to it"
  COMMIT=$(here_git rev-parse -q --verify "refs/heads/$BRANCH") || refuse "$EX_GATE" "branch $BRANCH" "$CODE_DIR has no such branch" "commit the code on $BRANCH; the job names it"
  [[ $(here_git rev-parse --is-shallow-repository 2>/dev/null) != true ]] || refuse "$EX_GATE" "$CODE_DIR" "it is a shallow clone, whose history cannot travel" "git fetch --unshallow"
  dirty=$(here_git status --porcelain 2>/dev/null | wc -l) || dirty=0
  ((dirty == 0)) || log "$((dirty)) changed or untracked files in $CODE_DIR are in no commit: they stay here"
  on=$(here_git symbolic-ref -q --short HEAD) || on='no branch'
  [[ $on == "$BRANCH" ]] || log "you stand on $on, and the job names $BRANCH: what travels is $BRANCH at $COMMIT"
  [[ ! -e $CODE_DIR/.gitmodules ]] || log "submodules do not travel in a bundle: get them on the box, or vendor them"
}

# A folder for the bundle of this push alone, into REPLY: a git that was killed leaves a lock file beside its half bundle, at
# which the next one stops. Those of dead pushes go.
bundle_folder() {
  local dir
  for dir in "$L/.partial/bundle."*; do
    [[ ! -d $dir ]] || kill -0 "${dir##*.}" 2>/dev/null || rm -rf -- "${dir:?}"
  done
  REPLY=$L/.partial/bundle.$$
  { rm -rf -- "${REPLY:?}" && mkdir -- "$REPLY"; } || refuse "$EX_NOROOM" "$REPLY" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
}

push_code() {
  local REPLY head bundle said
  local range=("$BRANCH")
  [[ $BOX_GIT == yes ]] || refuse "$EX_MISSING" "the code" "there is no git on the box" "install git there; a formal run needs it"
  SUM=''
  if [[ $BOX_COMMIT != "$COMMIT" ]]; then
    # Only what is new, where the box has an ancestor of it.
    if [[ -n $BOX_COMMIT ]] && here_git merge-base --is-ancestor "$BOX_COMMIT" "$COMMIT" 2>/dev/null; then range+=("^$BOX_COMMIT"); fi
    bundle_folder
    bundle=$REPLY/code.bundle
    said=$(here_git bundle create "$bundle" "${range[@]}" 2>&1) ||
      refuse "$EX_NOROOM" "$bundle" "git cannot write the bundle: ${said//[[:cntrl:]]/ }" "look at the folder: room, rights"
    hash_file "$bundle" || return "$EX_COPY"
    SUM=$REPLY
    act 'sending the code' "$bundle" take_code
    rm -rf -- "${bundle%/*}"
  else
    act 'the code' '' take_code
  fi
  head=$(sed -n 's/^head //p' "$ANSWER")
  log "code: $D_FOLDER/code at ${head:-none}; its origin has $BRANCH at $COMMIT"
}

# Secrets from our standard input: in no argument, no file and no log, here or there. Only names are ever shown.
read_secrets() { # sets SECRET_TEXT
  local name value line
  SECRET_TEXT=''
  ((${#SECRETS[@]} > 0)) || refuse "$EX_CONFIG" "--secrets" "the job names no secrets" "name the variables in the job's field secrets"
  if [[ -t 0 ]]; then
    for name in "${SECRETS[@]}"; do
      printf '%s (not shown): ' "$name" >&2
      IFS= read -rs value || value=''
      printf '\n' >&2
      [[ -z $value ]] || SECRET_TEXT+="$name=$value"$'\n'
    done
  else
    while IFS= read -r line || [[ -n $line ]]; do
      line=${line%$'\r'}
      name=${line%%=*}
      [[ $line =~ [^[:space:]] && $line != '#'* ]] || continue
      [[ $line == *=* && " ${SECRETS[*]} " == *" $name "* ]] ||
        refuse "$EX_CONFIG" "--secrets" "a line on standard input is not NAME=value with a NAME of the job's secrets (${SECRETS[*]})" "give only those"
      SECRET_TEXT+=$line$'\n'
    done
  fi
  [[ -n $SECRET_TEXT ]] || refuse "$EX_CONFIG" "--secrets" "standard input held none" "printf '%s\\n' NAME=value | push.sh --secrets, from a file or a prompt"
}
push_secrets() {
  local SHARED_PATHS_TEXT='' path
  for path in ${SHARED_PATHS[@]+"${SHARED_PATHS[@]}"}; do SHARED_PATHS_TEXT+=$path$'\n'; done
  # In a pipeline of builtins: the values are on a pipe and nowhere else.
  printf '%s' "$SECRET_TEXT" | act 'writing the secrets' /dev/stdin take_secrets CRED_FILE SHARED_PATHS_TEXT || exit
  log "secrets: ${SECRETS[*]} are in $CRED_FILE on the box, mode 600"
}

# lib/push_data.bash: the job's declared data to the box, resumable: rsync where both ends have it, else our own stream.
# needs: exit log file hash compat ssh push_box push
# reads: L CODE_DIR D_FOLDER METHOD DATA_PATHS DATA_FILES DATA_UNDER

readonly DATA_SMALL=4194304 # a file up to this size travels with others
readonly DATA_TRIES=5

push_data() {
  local REPLY i found
  ((${#DATA_PATHS[@]} > 0)) || refuse "$EX_CONFIG" "--data" "the job declares no data" "name paths in the job's field data"
  METHOD=stream
  if [[ $KIND != owned && $SSH_COPY == true && -n $BOX_RSYNC && $D_FOLDER =~ ^/[A-Za-z0-9._/=,+@-]*$ ]] && command -v rsync >/dev/null 2>&1; then METHOD=rsync; fi
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    ONE=${DATA_PATHS[i]%/}
    [[ ${DATA_UNDER[i]} != hf_home ]] || { log "data: $ONE is fetched on the box, into HF_HOME" && continue; }
    [[ -e $CODE_DIR/$ONE ]] || refuse "$EX_MISSING" "$CODE_DIR/$ONE" "the declared data are not here" "get them, or set CODE_DIR"
    found=$(find -L "$CODE_DIR/$ONE" -type f | wc -l)
    [[ $((found)) -eq ${DATA_FILES[i]} ]] || refuse "$EX_GATE" "$CODE_DIR/$ONE" "it holds $((found)) files, the job says ${DATA_FILES[i]}" "correct the data or the job"
    push_one_path
    act "counting $ONE" '' count_data
    found=$(tr -dc 0-9 <"$ANSWER")
    [[ $found == "${DATA_FILES[i]}" ]] || refuse "$EX_COPY" "$ONE" "the box holds ${found:-no} files of it, the job says ${DATA_FILES[i]}" "push again"
    log "data: $ONE, $found files are on the box"
  done
}

push_one_path() { # reads: ONE    ends after a bounded number of tries
  local try=0 rc
  while :; do
    try=$((try + 1)) rc=0
    if [[ $METHOD == rsync ]]; then data_by_rsync || rc=$?; else data_by_stream || rc=$?; fi
    ((rc != 0)) || return 0
    log "$ONE: try $try ended with $rc"
    case $METHOD:$rc:$try in
      # Another version's rsync, or a gateway that lets none through: the stream needs neither.
      rsync:[1245]:* | rsync:127:* | rsync:*:2) METHOD=stream && log "rsync does not work here: going on without it" ;;
    esac
    ((try < DATA_TRIES)) || refuse "$EX_COPY" "$ONE" "it did not arrive in $DATA_TRIES tries" "push again: what arrived is kept"
    sleep $((RETRY_S * try)) || :
  done
}

data_by_rsync() {
  local slash=''
  [[ ! -d $CODE_DIR/$ONE ]] || slash=/
  (
    remote=${SSH_WORDS[*]}
    from=$(cd -- "$CODE_DIR" && pwd) || exit "$EX_MISSING"
    unset RSYNC_RSH RSYNC_PARTIAL_DIR
    cd -- "$L" || exit "$EX_MISSING"
    # ./ keeps the path below it: the box gets it at the same place below the code.
    exec rsync -rtLR --partial --partial-dir=.rsync-partial --timeout=120 -e "$remote" -- "$from/./$ONE$slash" "$HOST:$D_FOLDER/code/"
  ) </dev/null >/dev/null
}

# Sizes decide what is to be sent, digests whether it came. A long file goes on where it was cut off.
data_by_stream() {
  local REPLY list=$L/.partial/data.list sums=$L/.partial/data.sums path have line
  local small=()
  (cd -- "$CODE_DIR" && find -L "$ONE" -type f -print) | while IFS= read -r path; do
    file_bytes "$CODE_DIR/$path" && printf '%s %s\n' "$REPLY" "$path"
  done >"$list"
  act "looking at $ONE" "$list" need_data
  cp -- "$ANSWER" "$L/.partial/data.need" || return
  : >"$sums"
  while IFS= read -r line; do
    [[ $line == 'need '* ]] || continue
    line=${line#need }
    have=${line%% *} path=${line#* }
    hash_file "$CODE_DIR/$path" || return "$EX_MISSING"
    printf '%s %s\n' "$REPLY" "$path" >>"$sums"
    file_bytes "$CODE_DIR/$path" || return "$EX_MISSING"
    if ((REPLY <= DATA_SMALL)); then
      small+=("$path")
      ((${#small[@]} < 200)) || { send_small "${small[@]}" && small=(); } || return
    elif ((have < REPLY)); then
      send_rest "$path" "$have" || return
    fi
  done <"$L/.partial/data.need"
  ((${#small[@]} == 0)) || send_small "${small[@]}" || return
  [[ ! -s $sums ]] || (act "placing $ONE" "$sums" place_data)
}
send_small() { # <paths...>
  COPYFILE_DISABLE=1 tar -chf - -C "$CODE_DIR" -- "$@" | (act 'sending data' /dev/stdin take_data_batch)
}
send_rest() { # <path> <bytes that are there>
  local whole=$ONE ONE=$1
  : "$whole"
  tail -c "+$(($2 + 1))" -- "$CODE_DIR/$ONE" | (act 'sending data' /dev/stdin take_data_tail)
}

RETRY_S=${RETRY_S-3} # first pause before a further try
LOOK_S=${LOOK_S-120} # for the first answer of the box

usage() {
  cat <<'USAGE'
usage: push.sh [HOST] [--print] [--data] [--secrets] [--new-host-key] [--data-dir P] [--durable-dir P]

Brings to the box, below DATA_DIR/<run>:
  box/DIGEST  the scripts, in a folder named by their digest (box/current leads to it); no running script is replaced
  code        the branch of the job, from the git work tree CODE_DIR (default: here), as a bundle: the box gets a bare
              repository and a work tree that pulls from it, so it needs no way to your git server
Only committed work travels. Once a run has begun its code is left as it is.

--data          also the data that the job declares, resumable, and counted there
--secrets       also the job's secrets: NAME=value lines on standard input (asked for at a terminal), into CRED_FILE there
HOST            ssh alias or user@host (or HOST in the environment); not needed where the machine is this one
--print         say what would be done, and do nothing
--new-host-key  move the pinned host key aside: only after the platform itself has said that the box has a new one
--data-dir P, --durable-dir P  where the run lies on the box, if not where the profile says
environment: INSTANCE (what the platform calls the box), CODE_DIR, LOCAL_DIR, RUN

exit codes: 0 there and read back, 64 usage, 65 something does not match, 69 missing or not reached, 73 no room, 74 a copy
did not arrive or the tier is not there, 77 refused, 78 configuration
USAGE
}

bad_usage() { # <why>
  printf '%s: %s\n' "$PROG" "$1" >&2
  usage >&2
  exit "$EX_USAGE"
}
parse_words() { # <words...>    sets HOST PRINT WITH_DATA WITH_SECRETS NEW_KEY TYPED DATA_DIR DURABLE_DIR
  local given=''
  HOST=${HOST-} PRINT=false WITH_DATA=false WITH_SECRETS=false NEW_KEY=false TYPED=''
  while (($# > 0)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --print) PRINT=true ;;
      --data) WITH_DATA=true ;;
      --secrets) WITH_SECRETS=true ;;
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

print_plan() {
  printf 'would push run %s of %s to %s\n' "$RUN" "$PROFILE" "$HOST_NAME"
  printf '  scripts  %s (digest %s) -> %s/%s/box/%s, then box/current\n' "$BOX_FOLDER" "${DIGEST:0:12}" "$DATA_DIR" "$RUN" "${DIGEST:0:12}"
  printf '  code     %s, branch %s at %s -> %s/%s/code\n' "$CODE_DIR" "$BRANCH" "$COMMIT" "$DATA_DIR" "$RUN"
  [[ $WITH_DATA == false ]] || printf '  data     %s -> %s/%s/code/\n' "${DATA_PATHS[*]-none declared}" "$DATA_DIR" "$RUN"
  [[ $WITH_SECRETS == false ]] || printf '  secrets  %s, from standard input -> %s\n' "${SECRETS[*]-none named}" "${CRED_FILE:-nowhere: CRED_FILE is empty}"
  printf 'nothing was done\n'
}

# Sets D_FOLDER BOX_HOST BOX_COMMIT BOX_GIT BOX_RSYNC BOX_RUN_ID.
meet_box() {
  local line
  D_FOLDER='' BOX_HOST='' BOX_COMMIT='' BOX_GIT=no BOX_RSYNC='' BOX_RUN_ID=''
  [[ $SSH_COPY == true || $KIND == owned ]] || log "this platform's ssh ($SSH_FLAVOUR) carries no scp and no rsync: what is sent goes as streams through the shell"
  # Whoever is no shell for commands may take this one and stay silent for ever.
  ACT_S=$LOOK_S act 'looking at the box' '' look_before_push DATA_PROOF DATA_TIER_PATH
  while IFS= read -r line; do
    case $line in
      'host '*) BOX_HOST=${line#* } ;;
      'folder '*) D_FOLDER=${line#* } ;;
      'run_id '*) BOX_RUN_ID=${line#* } ;;
      'git '*) BOX_GIT=${line#* } ;;
      'commit '*) BOX_COMMIT=${line#* } ;;
      'rsync '*) BOX_RSYNC=${line#* } ;;
    esac
  done <"$ANSWER"
  [[ $BOX_COMMIT =~ ^[0-9a-f]*$ ]] || BOX_COMMIT=''
}

# Where the code is, as a whole path. Not the repository that these scripts were compiled in, unless somebody says so.
code_places() { # reads: SELF_DIR    sets CODE_DIR
  local top given=${CODE_DIR:-.}
  top=$(git -C "$given" rev-parse --show-toplevel 2>/dev/null) || top=''
  if [[ -z ${CODE_DIR-} && -n $top && $SELF_DIR/ == "$(cd -P -- "$top" && pwd -P)"/* ]]; then
    refuse "$EX_CONFIG" "CODE_DIR" "it is not set, and $top is where these scripts lie, not the code to run" "set CODE_DIR to the work tree of the code"
  fi
  [[ ! -d $given ]] || given=$(cd -P -- "$given" && pwd -P) || return
  CODE_DIR=$given
}

main() {
  local REPLY instance self
  parse_words "$@"
  check_host
  local_places
  self=${BASH_SOURCE[0]-}
  [[ $self == */* ]] || self=./$self
  SELF_DIR=$(cd -P -- "${self%/*}" && pwd -P)
  code_places
  SUM='' ONE='' COMMIT='' DIGEST=''
  check_box_folder
  check_code
  if [[ $PRINT == true ]]; then
    print_plan
    return 0
  fi
  if [[ $WITH_SECRETS == true ]]; then
    [[ -n $CRED_FILE ]] || refuse "$EX_CONFIG" "--secrets" "this profile has no CRED_FILE" "set CRED_FILE to a file on the box's own disk"
    read_secrets
  fi
  mkdir -p -- "$L/.partial" || refuse "$EX_NOROOM" "$L" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
  [[ $NEW_KEY == false ]] || new_host_key
  read_box_json
  same_places "$EX_CONFIG" "if it is to lie elsewhere from now on, say so with --data-dir and --durable-dir"
  this_instance
  instance=$REPLY
  ssh_words
  meet_box
  # From the second connection on the key is the pinned one.
  ssh_words
  [[ -z $BOX_RUN_ID ]] || same_run "$BOX_RUN_ID"
  push_box
  push_code
  [[ $WITH_DATA == false ]] || push_data
  [[ $WITH_SECRETS == false ]] || push_secrets
  write_box_json "${BOX_RUN_ID:-$KNOWN_RUN_ID}" "${HOST:-$BOX_HOST}" "$instance" || refuse "$EX_NOROOM" "$L/box.json" "it cannot be written" "make room"
  [[ -n $instance || $KIND == owned ]] || log "INSTANCE is not set: teardown will want it; set it to the id that the platform shows, and push again"
  claim "there, digest ${DIGEST:0:12}, commit $COMMIT" "run $RUN on $HOST_NAME" "$L/box.json"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
