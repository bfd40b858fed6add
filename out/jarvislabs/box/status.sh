#!/usr/bin/env bash
# status.sh: what the run is in now: every cell's state, progress, room, session. Reads only.
# Generated; do not edit. Source: templates/box/status.sh.j2
# To change it, edit the source or profiles/jarvislabs.yaml, then: make profile=jarvislabs
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=status.sh

# --- bound values: profiles/jarvislabs.yaml x jobs/demo.yaml ---
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier home: survives ssh drop, restart, stop, not destroy
DATA_DIR=${DATA_DIR-/home/run}
# tier filesystem: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-/home/jl_fs}
# may be lost at any time
SCRATCH=${SCRATCH-/tmp}
# expected seconds for one cell
readonly NEED_S=6
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

# Why FILE is no record, into REPLY.
record_fault() { # <file that read_record found unknown>
  if no_file "$1"; then
    REPLY="it is $REPLY, not a record"
  elif [[ ! -s $1 ]]; then
    REPLY='it is empty, not a whole record'
  else
    REPLY='it is not a whole record'
  fi
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

# Free inodes, into REPLY; empty where the file system does not count them (btrfs, some FUSE): 0 of 0 is not full.
free_inodes() { # <path>    returns: 0, also where REPLY is empty; 69 where df failed
  local line
  existing_parent "$1"
  line=$(df_line -i "$REPLY") || { REPLY= && return "$EX_MISSING"; }
  REPLY=
  [[ $line =~ \ ([0-9]+)\ +([0-9]+)\ +([0-9]+)\ +([0-9]+|-)%?\ + ]] || return 0
  ((BASH_REMATCH[1] > 0)) || return 0
  REPLY=${BASH_REMATCH[3]}
}

# lib/run.bash: the run: its folders, its record, its events (docs/contracts.md, sections 1 and 3).
# needs: exit log path file record proc hash room

# One line for people and watchers; nothing decides by it, so a full disk here stops nothing.
event() { # <event> <cell or -> <attempt or -> <text>
  local REPLY
  utc_now
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $D/events.tsv || ! -e $D/events.tsv ]] || return 0
  printf '%s\t%s\t%s\t%s\t%s\n' "$REPLY" "$1" "$2" "$3" "${4//[[:cntrl:]]/ }" 2>/dev/null >>"$D/events.tsv" || :
}

# The run's folders from the bound values and the environment: D, B, S. Makes nothing.
run_places() { # [asked: refuse where one of them does not answer]
  check_name "$RUN" RUN
  require_path DATA_DIR
  [[ -z $DURABLE_DIR ]] || require_path DURABLE_DIR
  require_path SCRATCH
  D=$DATA_DIR/$RUN
  # shellcheck disable=SC2034 # not every script has to do with the bundle and with scratch
  B=${DURABLE_DIR:-$DATA_DIR}/$RUN S=$SCRATCH/gpu-runbook/$RUN
  CODE_DIR=${CODE_DIR:-$D/code}
  expand_path CODE_DIR
  [[ ${1-} != asked ]] || places_answer
  scratch_apart
}
# A look at a folder on a dead mount never returns: a process of its own looks, and is ended (case 84).
places_answer() {
  local name rc
  for name in DATA_DIR DURABLE_DIR SCRATCH CODE_DIR; do
    [[ -n ${!name} ]] || continue
    rc=0
    within 20 test -e "${!name}" || rc=$?
    ((rc != 124)) || refuse "$EX_MISSING" "$name=${!name}" "its disk or mount did not answer in 20 s" "find it in /proc/mounts and attach it again, or set $name to another folder"
  done
}

# S is emptied when the disk is full: nothing of the run may lie in it, by name or by a link.
scratch_apart() {
  local place
  for place in "$D" "$B"; do
    [[ $place/ != "$S"/* && ! $place -ef $S ]] ||
      refuse "$EX_CONFIG" "SCRATCH=$SCRATCH" "$place lies in $S, which is emptied when room is short" "set SCRATCH to another folder"
  done
}

# The real path of a folder, into REPLY, without a process: there and back again.
resolve_folder() { # <folder>    returns: 0, or 1 where it cannot be entered
  local before=$PWD
  REPLY=''
  cd -P -- "$1" 2>/dev/null || return 1
  REPLY=$PWD
  # The folder that we stood in may be gone by now; nothing that follows needs it.
  cd -- "$before" 2>/dev/null || :
}

# The real folder of this script, into SELF_DIR: its siblings lie there, and a moved link changes nothing.
self_dir() {
  local REPLY dir=${BASH_SOURCE[0]-}
  [[ $dir == */* ]] || dir=./$dir
  # shellcheck disable=SC2034 # not every script that comes here asks for it
  resolve_folder "${dir%/*}" && SELF_DIR=$REPLY
}

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

# lib/claim.bash: who may run a cell: one numbered file for each attempt, created once, never removed once the cell has begun.
# needs: exit log file proc run
# reads: D B

# The highest claim on a cell. Sets CLAIM_N (0: none), CLAIM_STATE (live, foreign, dead, none, unread), CLAIM_HOST, CLAIM_PID.
# Unread: what lies there is no file that can be read (CLAIM_SAID tells what), so nobody knows whether its runner lives.
last_claim() { # <cell>
  local path n boot='' ticks='' REPLY
  CLAIM_N=0 CLAIM_STATE=none CLAIM_HOST='' CLAIM_PID=''
  for path in "$D/claims/$1"/[0-9]*; do
    n=${path##*/}
    [[ $n =~ ^[0-9]+$ ]] || continue
    ((10#$n <= CLAIM_N)) || CLAIM_N=$((10#$n))
  done
  ((CLAIM_N > 0)) || return 0
  printf -v path '%s/claims/%s/%03d' "$D" "$1" "$CLAIM_N"
  if no_file "$path"; then
    # shellcheck disable=SC2034 # who only asks for the state needs no words
    CLAIM_STATE=unread CLAIM_SAID="$path is $REPLY"
    return 0
  fi
  { read -r CLAIM_HOST boot CLAIM_PID ticks <"$path"; } 2>/dev/null || :
  CLAIM_STATE=dead
  this_host
  if [[ -z $ticks ]]; then
    # Somebody is writing it right now, or died at it: a minute tells.
    [[ -z $(find "$path" -mmin -1 2>/dev/null) ]] || CLAIM_STATE=live
  elif [[ $CLAIM_HOST != "$REPLY" ]]; then
    [[ -e $D/claims/.gone/${CLAIM_HOST//\//_} ]] || CLAIM_STATE=foreign
  else
    this_boot_id
    if [[ $boot == "$REPLY" ]] && same_process "$CLAIM_PID" "$ticks"; then CLAIM_STATE=live; fi
  fi
}

# lib/states.bash: the state of every cell at once: a few processes for all of them, none for a cell.
# needs: exit log file proc claim
# reads: D B RUN_ID

# Every cell that has a record on either tier, into RECORD_OF[cell]: in the bundle (1 yes, 0 no, 2 damaged there), then state class
# attempt started ended exit why of its record, US (31) between. In the bundle is a cell whose record there says done over the very
# list beside it; of such a one the record on the data tier is not even opened. What is not a whole record of this run is unknown.
read_states() {
  begin_states
  end_states
}
# The two halves of it: awk reads beside us, while something else is done.
begin_states() { # [the records to read: all]    sets STATES_FD
  local REPLY file
  local -a odd=()
  (($# > 0)) || set -- "$B/records"/*.json "$D/state"/*.json
  # Texts may hold any bytes, and some awks warn of them elsewhere than in the C locale.
  exec {STATES_FD}< <({
    for file; do [[ -f $file && -r $file ]] || odd+=("$file"); done
    # What is no file is named here and opened by nobody: a FIFO would wait for ever.
    for file in ${odd[@]+"${odd[@]}"}; do
      if no_file "$file"; then printf '\037%s\037%s\n' "$REPLY" "$file"; fi
    done
    if ((${#odd[@]} == 0)); then printf '%s\n' "$@"; else
      for file; do [[ ! -f $file || ! -r $file ]] || printf '%s\n' "$file"; done
    fi
  } 2>/dev/null | LC_ALL=C awk -v run="$RUN_ID" -v b="$B/records/" -v d="$D/state/" '
    # A record is read whole, for no text holds a 1.
    function read_whole(file,   got) {
      RS = "\001"; text = ""
      got = (getline text < file)
      close(file)
      RS = "\n"
      return got
    }
    function member(key,   at, rest) {
      at = index(text, "\n  \"" key "\": ")
      if (!at) return ""
      rest = substr(text, at + length(key) + 7)
      rest = substr(rest, 1, index(rest, "\n") - 1)
      sub(/,$/, "", rest)
      if (substr(rest, 1, 1) == "\"") return substr(rest, 2, length(rest) - 2)
      return rest == "null" ? "" : rest
    }
    function unknown(why) { return s "unknown" s s s s s s why }
    function fields(name, file) {
      if (substr(text, 1, 4) != "{\n  " || substr(text, length(text) - 2) != "\n}\n" || member("schema") != "cell/1" || member("run_id") != run || member("cell") != name || member("state") == "")
        return unknown(file (text == "" ? " is empty, or cannot be read" : " is not a whole record of this run"))
      return s member("state") s member("class") s member("attempt") s member("started") s member("ended") s member("exit") s member("why")
    }
    function name_of(path, folder) { return substr(path, length(folder) + 1, length(path) - length(folder) - 5) }
    BEGIN { s = "\037" }
    index($0, s) == 1 {
      split($0, part, s)
      why = unknown(part[3] " is " part[2] ", not a record")
      if (index(part[3], b) == 1) { n = name_of(part[3], b); in_b[++nb] = n; of_b[n] = why }
      else { n = name_of(part[3], d); in_d[++nd] = n; odd[n] = why }
      next
    }
    index($0, b) == 1 {
      n = name_of($0, b)
      read_whole($0)
      in_b[++nb] = n
      of_b[n] = fields(n, $0)
      list[n] = member("files_sha256")
      next
    }
    index($0, d) == 1 { in_d[++nd] = name_of($0, d); next }
    { n = $0; sub(/.*\//, "", n); sub(/\.sha256$/, "", n); digest[n] = substr($0, 1, 64) }
    END {
      for (i = 1; i <= nb; i++) {
        n = in_b[i]
        has[n] = (index(of_b[n], s "done" s) == 1 && list[n] != "" && digest[n] == list[n]) ? 1 : 2
        if (has[n] == 1) print n s 1 of_b[n]
      }
      for (i = 1; i <= nd; i++) {
        n = in_d[i]
        if ((n in has) && has[n] == 1) continue
        if (n in odd) line = odd[n]
        else { read_whole(d n ".json"); line = fields(n, d n ".json") }
        # Damaged there, and what is here may well be whole: both are to be told.
        why = ""
        if (n in has && index(of_b[n], s "unknown" s) == 1) { why = of_b[n]; sub(/.*\037/, "", why) }
        if (why != "" && substr(line, length(line)) != s) why = "; " why
        print n s ((n in has) ? has[n] : 0) line why
        delete of_b[n]
      }
      for (n in of_b) if (has[n] == 2) print n s 2 of_b[n]
      print "."
    }' - <([[ ! -d $B/records ]] || find "$B/records" -maxdepth 1 -type f -name '*.sha256' ! -name '.*' -exec sha256sum {} + 2>/dev/null) 2>/dev/null)
}
end_states() {
  declare -gA RECORD_OF=()
  take_states || read_sound || log "the records in $D/state and $B/records cannot all be read: some states are not known; look at those disks, then ask again"
}
take_states() { # returns: 1 where awk has not come to its end
  local line text IFS=$'\n'
  # By the thousand characters: from a pipe bash takes lines one character at a time.
  read -r -N 1000000000 -u "$STATES_FD" text || :
  exec {STATES_FD}<&-
  [[ $text == .$'\n' || $text == *$'\n.\n' ]] || return 1
  text=${text%.$'\n'}
  set -f
  for line in $text; do RECORD_OF[${line%%$'\037'*}]=${line#*$'\037'}; done
  set +f
}
# Some awks give up at a record that cannot be read (a folder in its place, a fault of the disk): the others once more without it.
read_sound() { # returns: 1 where that fails too
  local file name
  local -a sound=() unread=()
  for file in "$B/records"/*.json "$D/state"/*.json; do
    if [[ ! -f $file ]] || { read -r -n 1 name <"$file"; } 2>/dev/null; then sound+=("$file"); elif [[ -e $file || -L $file ]]; then unread+=("$file"); fi
  done
  RECORD_OF=()
  begin_states "${sound[@]-$D/state/*.json}"
  take_states || return
  for file in ${unread[@]+"${unread[@]}"}; do
    log "$file cannot be read: unknown; look at its rights and its disk"
    name=${file##*/} && name=${name%.json}
    if [[ ${file%/*} == "$B/records" ]]; then
      [[ -z ${RECORD_OF[$name]-} ]] || RECORD_OF[$name]=2${RECORD_OF[$name]:1}
      RECORD_OF[$name]=${RECORD_OF[$name]-2$'\037unknown\037\037\037\037\037\037'}
    else
      RECORD_OF[$name]=${RECORD_OF[$name]-0$'\037unknown\037\037\037\037\037\037'}
    fi
  done
}

# One cell's record as it was read, into C_BUNDLE C_STATE C_CLASS C_ATTEMPT C_STARTED C_ENDED C_EXIT C_WHY.
# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs
cell_record_of() { # <cell>
  C_BUNDLE=0 C_STATE='' C_CLASS='' C_ATTEMPT='' C_STARTED='' C_ENDED='' C_EXIT='' C_WHY=''
  [[ -n ${RECORD_OF[$1]-} ]] || return 0
  local IFS=$'\037' fields
  set -f
  # shellcheck disable=SC2206 # split at US, which no field holds
  fields=(${RECORD_OF[$1]})
  set +f
  C_BUNDLE=${fields[0]-} C_STATE=${fields[1]-} C_CLASS=${fields[2]-} C_ATTEMPT=${fields[3]-} C_STARTED=${fields[4]-}
  C_ENDED=${fields[5]-} C_EXIT=${fields[6]-} C_WHY=${fields[7]-}
}

# What a cell is in now, from what was read: pending running done unsynced failed preempted unknown. Into REPLY, and C_WHY.
# shellcheck disable=SC2034 # a script reads C_WHY or not
state_now() { # <cell>
  local line=${RECORD_OF[$1]-} next
  C_WHY=''
  case $line in
    1*) REPLY='done' && return 0 ;;
    '')
      REPLY=pending
      [[ ! -d $D/claims/$1 ]] || claim_says "$1"
      return 0
      ;;
  esac
  cell_record_of "$1"
  REPLY=$C_STATE
  case $REPLY in
    'done') REPLY=unsynced ;;
    failed | preempted | unsynced)
      # A claim newer than the record is an attempt that has just begun, or died before its record.
      printf -v next '%s/claims/%s/%03d' "$D" "$1" $((${C_ATTEMPT:-0} + 1))
      [[ ! -e $next ]] || claim_says "$1"
      ;;
    running | unknown) claim_says "$1" ;;
    *) REPLY=unknown ;;
  esac
}
# shellcheck disable=SC2034 # as above
claim_says() { # <cell>    running where somebody lives behind the last claim, else unknown
  last_claim "$1"
  case $CLAIM_STATE in
    live | foreign) REPLY=running ;;
    # A folder alone is no claim: the cell was refused before it.
    none) [[ -z ${RECORD_OF[$1]-} ]] && REPLY=pending || REPLY=unknown ;;
    unread) REPLY=unknown C_WHY=$CLAIM_SAID ;;
    *) REPLY=unknown ;;
  esac
}

# What the cells took that are done, by their own records: DONE_S seconds, all DONE_N of them together.
cells_took() { # reads: RECORD_OF
  read -r DONE_S DONE_N < <(printf '%s\n' ${RECORD_OF[@]+"${RECORD_OF[@]}"} | awk -F$'\037' '
    # Days since 1970 of a civil date: no date tool for each line.
    function at(t,   y, m, d, era, yoe, doy) {
      y = substr(t, 1, 4) + 0; m = substr(t, 6, 2) + 0; d = substr(t, 9, 2) + 0
      if (m <= 2) y--
      era = int(y / 400); yoe = y - era * 400; doy = int((153 * (m + (m > 2 ? -3 : 9)) + 2) / 5) + d - 1
      return (era * 146097 + yoe * 365 + int(yoe / 4) - int(yoe / 100) + doy - 719468) * 86400 + substr(t, 12, 2) * 3600 + substr(t, 15, 2) * 60 + substr(t, 18, 2)
    }
    $2 == "done" && $5 ~ /^[0-9]/ && $6 ~ /^[0-9]/ { sum += at($6) - at($5); n++ }
    END { print sum + 0, n + 0 }') || :
  DONE_S=${DONE_S:-0} DONE_N=${DONE_N:-0}
}

# lib/formal.bash: the records of a formal run, and what is judged from them (docs/contracts.md, section 7).
# needs: exit log file record proc hash
# reads: D B RUN_ID, and F_START F_SESSION F_NAME F_SOCKET F_PID F_TICKS F_DIGEST F_POWER of this start

# The record's members into F_*, so that a rewrite keeps them.
take_formal() {
  F_START=${R_start_id-} F_SESSION=${R_session-} F_NAME=${R_session_name-} F_SOCKET=${R_socket-}
  F_PID=${R_pid-} F_TICKS=${R_start_ticks-} F_DIGEST=${R_box_digest-} F_POWER=${R_power_off-} F_SINCE=${R_since-} F_STATE=${R_state-}
}

# Is FORMAL_SUCCESS there for this run and start, over the manifest that lies in B now? A proof of a part says so.
success_holds() { # <start id>    returns: 0 with PART_SAID, or 1 with the reason in REPLY
  local start=$1 rc=0 said
  PART_SAID=''
  read_record "$B/FORMAL_SUCCESS" formal_success/1 "$RUN_ID" || rc=$?
  case $rc in
    1) REPLY="there is no $B/FORMAL_SUCCESS" && return 1 ;;
    2) REPLY="$B/FORMAL_SUCCESS is not a whole record of this run" && return 1 ;;
  esac
  [[ ${R_start_id-} == "$start" ]] || { REPLY="$B/FORMAL_SUCCESS is of another start (${R_start_id-})" && return 1; }
  said=${R_manifest_sha256-}
  hash_file "$B/PULL_MANIFEST.json" && [[ $REPLY == "$said" ]] || { REPLY="$B/FORMAL_SUCCESS was said over another PULL_MANIFEST.json" && return 1; }
  [[ -z ${R_part_cells-} ]] || PART_SAID="a part only: $R_part_cells cells, named in plans/$start.tsv; ${R_cells_done-} of the ${R_cells_expected-} cells of the run are done"
  REPLY=''
}

# What the formal run is in now, into FORMAL_STATE and FORMAL_WHY; leaves the record in R_* and F_*.
judge_formal() {
  local rc=0 REPLY host boot
  FORMAL_STATE=unknown FORMAL_WHY=''
  # shellcheck disable=SC2034 # not every script that judges prints all of them
  F_START='' F_SESSION='' F_NAME='' F_SOCKET='' F_PID='' F_TICKS='' F_DIGEST='' F_POWER=false F_SINCE='' F_STATE=''
  read_record "$D/formal.json" formal/1 "$RUN_ID" || rc=$?
  case $rc in
    1) FORMAL_STATE=none FORMAL_WHY="no formal run was started here" && return 0 ;;
    2) FORMAL_WHY="$D/formal.json is not a whole record of this run" && return 0 ;;
  esac
  take_formal
  FORMAL_WHY=${R_why-}
  this_host
  host=$REPLY
  this_boot_id
  boot=$REPLY
  case ${R_state-} in
    success)
      FORMAL_STATE=success
      if success_holds "$F_START"; then
        [[ -z $PART_SAID ]] || FORMAL_WHY="$PART_SAID${FORMAL_WHY:+; $FORMAL_WHY}"
      else
        FORMAL_STATE=unknown FORMAL_WHY="the record says success, but ${REPLY-}"
      fi
      ;;
    failed | stopped) FORMAL_STATE=$R_state ;;
    starting | running | aggregating)
      if [[ ${R_host-} != "$host" ]]; then
        FORMAL_WHY="it was $R_state on $R_host, and this is $host: look there"
      elif [[ ${R_boot_id-} != "$boot" ]]; then
        FORMAL_STATE=lost FORMAL_WHY="boot id changed while it was $R_state, no exit record: the box was restarted under it"
      elif same_process "$F_PID" "$F_TICKS"; then
        FORMAL_STATE=$R_state
      else
        # The last act may have been written while we looked.
        FORMAL_STATE=lost FORMAL_WHY="its process is gone while it was $R_state, no exit record: killed, or ended at logout"
        lost_after_all
      fi
      ;;
    *) FORMAL_WHY="$D/formal.json says state '${R_state-}', which nobody writes" ;;
  esac
}

# A run that died between its success record and its last state is a success: the proof is complete.
lost_after_all() {
  local REPLY rc=0
  read_record "$D/formal.json" formal/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return 0
  case ${R_state-} in
    failed | stopped | success) FORMAL_STATE=$R_state FORMAL_WHY=${R_why-} ;;
  esac
  if [[ $FORMAL_STATE != failed && $FORMAL_STATE != stopped ]] && success_holds "$F_START"; then
    FORMAL_STATE=success FORMAL_WHY="${PART_SAID:+$PART_SAID; }its process ended right after it had written FORMAL_SUCCESS"
  fi
}

usage() {
  cat <<'USAGE'
usage: status.sh [--json]

Says what the run is in: each cell of its queue (pending, running, done, unsynced, failed, preempted, unknown), the attempt, how
long ago it last showed progress, an estimate of the time left, the session, free room. It reads, changes nothing, and does
not count what it could not look at: unknown is neither done nor never run.

--json  one record (docs/contracts.md, section 9), a line for each cell

exit codes: 0 it was looked at, 64 usage, 65 a record is damaged, 69 there is no run here, 78 configuration
USAGE
}

main() {
  local json=false
  case ${1-} in
    -h | --help) usage && return 0 ;;
    --json) json=true && shift ;;
  esac
  (($# == 0)) || { usage >&2 && return "$EX_USAGE"; }
  find_this_run
  look_at_cells
  look_at_run
  if [[ $json == true ]]; then print_json; else print_screen; fi
}

# The run's record and roster, from whichever tier has them. Begins nothing.
find_this_run() {
  local REPLY rc=0
  self_dir
  run_places
  read_record "$D/run.json" run/1 || rc=$?
  ((rc != 1)) || [[ $B == "$D" ]] || { rc=0 && read_record "$B/run.json" run/1 || rc=$?; }
  ((rc != 1)) || refuse "$EX_MISSING" "run $RUN" "there is neither $D/run.json nor $B/run.json" "start it, or set RUN, DATA_DIR and DURABLE_DIR to it"
  if ((rc != 0)); then
    if [[ -e $D/run.json || -L $D/run.json ]]; then record_fault "$D/run.json"; else record_fault "$B/run.json"; fi
    refuse "$EX_INTEGRITY" "the run's record" "$REPLY" "compare $D/run.json with $B/run.json"
  fi
  RUN_ID=$R_run_id
  ! no_file "$D/queue.tsv" || refuse "$EX_INTEGRITY" "$D/queue.tsv" "it is $REPLY, not the run's queue" "look at what made it, and move it away; run_queue.sh makes the queue anew"
  if [[ -e $D/queue.tsv ]]; then
    read_queue "$D/queue.tsv"
  else
    QUEUE_NAMES=() QUEUE_COMMANDS=()
  fi
}

# Every cell's state now, into NOW (parallel to QUEUE_NAMES), and the counts N_<state>.
look_at_cells() {
  local REPLY name
  NOW=() NOW_WHY=() N_pending=0 N_running=0 N_done=0 N_unsynced=0 N_failed=0 N_preempted=0 N_unknown=0
  read_states
  for name in ${QUEUE_NAMES[@]+"${QUEUE_NAMES[@]}"}; do
    state_now "$name"
    NOW+=("$REPLY") NOW_WHY+=("$C_WHY")
    case $REPLY in
      pending) N_pending=$((N_pending + 1)) ;;
      running) N_running=$((N_running + 1)) ;;
      'done') N_done=$((N_done + 1)) ;;
      unsynced) N_unsynced=$((N_unsynced + 1)) ;;
      failed) N_failed=$((N_failed + 1)) ;;
      preempted) N_preempted=$((N_preempted + 1)) ;;
      *) N_unknown=$((N_unknown + 1)) ;;
    esac
  done
}

# The formal run or else what the cells say, into RUN_STATE RUN_WHY SESSION; room; progress; estimate.
look_at_run() {
  local REPLY
  judge_formal
  RUN_STATE=$FORMAL_STATE RUN_WHY=$FORMAL_WHY
  case $FORMAL_STATE in
    starting | running | aggregating) SESSION=alive ;;
    unknown) SESSION=unknown ;;
    *) SESSION=gone ;;
  esac
  if [[ $FORMAL_STATE == none ]]; then
    RUN_WHY="not a formal run"
    if ((N_running > 0)); then
      RUN_STATE=running SESSION=alive
    elif ((${#QUEUE_NAMES[@]} == 0)); then
      RUN_STATE=starting RUN_WHY="the queue was never started"
    elif ((N_done == ${#QUEUE_NAMES[@]})); then
      RUN_STATE='done'
    elif ((N_pending + N_unknown + N_preempted > 0)); then
      RUN_STATE=idle
    else
      RUN_STATE=failed
    fi
  fi
  free_bytes "$D" || :
  BYTES_FREE=$REPLY
  free_inodes "$D" || :
  INODES_FREE=$REPLY
  last_progress
  estimate
}

# Seconds since the newest sign of life of a running cell, or since the last record: into PROGRESS_S.
last_progress() {
  local i name files=() newest='' now time
  PROGRESS_S=''
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    [[ ${NOW[i]} == running ]] || continue
    name=${QUEUE_NAMES[i]}
    files+=("$D/cells/$name" "$D/logs/$name")
  done
  ((${#files[@]} > 0)) || files=("$D/state")
  now=$(date +%s) || return 0
  while IFS= read -r time; do
    [[ $time =~ ^[0-9]+$ ]] || continue
    [[ -n $newest && $newest -ge $time ]] || newest=$time
  done < <(find "${files[@]}" -type f ! -name .alive ! -name .peak ! -name '*.sha256' -exec stat -c %Y {} + 2>/dev/null)
  [[ -z $newest ]] || PROGRESS_S=$((now > newest ? now - newest : 0))
}

# What is left, at the pace of the cells that are done: their mean where the records say it, else the job's own guess.
estimate() {
  local left=$((${#QUEUE_NAMES[@]} - N_done)) lanes=$((N_running > 0 ? N_running : 1))
  ETA_S=''
  ((left > 0)) || { ETA_S=0 && return 0; }
  cells_took
  if ((DONE_N > 0)); then ETA_S=$((DONE_S * left / DONE_N / lanes)); else ETA_S=$((NEED_S * left / lanes)); fi
}

print_json() {
  local REPLY i name line last
  record_open status/1
  record_text run_id "$RUN_ID"
  record_text state "$RUN_STATE"
  record_int planned "${#QUEUE_NAMES[@]}"
  for name in pending running 'done' unsynced failed preempted unknown; do
    line=N_$name
    record_int "$name" "${!line}"
  done
  record_int last_progress_s "$PROGRESS_S"
  record_int eta_s "$ETA_S"
  record_text session "$SESSION"
  record_int bytes_free "$BYTES_FREE"
  record_int inodes_free "$INODES_FREE"
  this_host
  record_text host "$REPLY"
  this_boot_id
  record_text boot_id "$REPLY"
  record_text why "$RUN_WHY"
  printf '%s,\n' "$RECORD"
  last=$((${#QUEUE_NAMES[@]} - 1))
  ((last >= 0)) || { printf '  "cells": []\n}\n' && return 0; }
  printf '  "cells": [\n'
  for ((i = 0; i <= last; i++)); do
    name=${QUEUE_NAMES[i]}
    [[ $i == "$last" ]] && line='' || line=,
    cell_record_of "$name"
    [[ ${NOW[i]} != 'done' ]] || C_CLASS='' C_WHY=''
    C_WHY=${C_WHY:-${NOW_WHY[i]}}
    printf '    {"cell": "%s", "state": "%s", "class": "%s", "attempt": %s, "why": "%s"}%s\n' \
      "$name" "${NOW[i]}" "$C_CLASS" "${C_ATTEMPT:-0}" "$C_WHY" "$line"
  done
  printf '  ]\n}\n'
}

print_screen() {
  local i name shown=0 hidden=0
  printf 'run %s (%s): %s%s\n' "$RUN" "$RUN_ID" "$RUN_STATE" "${RUN_WHY:+ ($RUN_WHY)}"
  printf '  cells    planned %s = done %s + running %s + pending %s + failed %s + unsynced %s + preempted %s + unknown %s\n' \
    "${#QUEUE_NAMES[@]}" "$N_done" "$N_running" "$N_pending" "$N_failed" "$N_unsynced" "$N_preempted" "$N_unknown"
  printf '  progress %s s ago, about %s s to go; session %s\n' "${PROGRESS_S:-not known}" "${ETA_S:-not known}" "$SESSION"
  printf '  room     %s bytes and %s inodes free at %s\n' "${BYTES_FREE:-not known}" "${INODES_FREE:-not known}" "$D"
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    name=${QUEUE_NAMES[i]}
    case ${NOW[i]} in 'done' | pending) hidden=$((hidden + 1)) && continue ;; esac
    ((shown++ < 30)) || continue
    cell_record_of "$name"
    C_WHY=${C_WHY:-${NOW_WHY[i]}}
    [[ -z $C_CLASS ]] || C_WHY="$C_CLASS: $C_WHY"
    printf '  %-10s %s, attempt %s%s\n' "${NOW[i]}" "$name" "${C_ATTEMPT:-0}" "${C_WHY:+, $C_WHY}"
  done
  ((shown <= 30)) || printf '  and %s more like these\n' $((shown - 30))
  ((hidden == 0)) || printf '  and %s that are done or pending\n' "$hidden"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
