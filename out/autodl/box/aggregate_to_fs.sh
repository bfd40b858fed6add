#!/usr/bin/env bash
# aggregate_to_fs.sh: make the bundle whole: repeat missing syncs, look at every file, write SHA256SUMS and the manifest.
# Generated; do not edit. Source: templates/box/aggregate_to_fs.sh.j2
# To change it, edit the source or profiles/autodl.yaml, then: make profile=autodl
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=aggregate_to_fs.sh

# --- bound values: profiles/autodl.yaml x jobs/demo.yaml ---
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier data-disk: survives ssh drop, restart, stop, not destroy
DATA_DIR=${DATA_DIR-/root/autodl-tmp}
# tier file-storage: survives ssh drop, restart, stop, destroy
DURABLE_DIR=${DURABLE_DIR-/root/autodl-fs}
# may be lost at any time
SCRATCH=${SCRATCH-/root/autodl-tmp/scratch}
# where it is mounted
readonly DURABLE_TIER_PATH=/root/autodl-fs
# what shows that the tier is there
readonly DURABLE_PROOF=mount
# what a finished cell has, relative to CELL_DIR
readonly -a REQUIRED=(
  best.pth
  best_metrics.json
)
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

# TEXT into a small file that we can do without: it is silent where that fails, and leaves alone what is no file, for to open a
# FIFO for writing waits too.
put_text() { # <file> <text>    returns: 0, or 1
  [[ ! -e $1 || -f $1 ]] && { printf '%s' "$2" >"$1"; } 2>/dev/null
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

# Put TEXT over the shorter one that FILE holds, in place and without a process: for records whose loss is seen and costs little.
# Bash writes line by line, so until all is there the first character says that it is no record.
overwrite_file() { # <file> <text>    returns: 0, or 1: it has to be written in another way
  local REPLY LC_ALL=C
  [[ -f $1 && ! -L $1 ]] && read_text "$1" && ((${#REPLY} > 0 && ${#REPLY} <= ${#2})) || return 1
  { printf '#' 1<>"$1" && printf '#%s' "${2:1}" 1<>"$1" && printf '%s' "${2:0:1}" 1<>"$1"; } 2>/dev/null || return 1
  read_text "$1" && [[ $REPLY == "$2" ]]
}

# Put TEXT into FILE only if no FILE is there yet, in one step that cannot be raced.
create_once() { # <file> <text>    returns: 0 made, 1 it was there already, 74
  local file=$1 text=$2 dir=${1%/*} tmp rc=0
  [[ $dir != "$file" ]] || dir=.
  [[ ! -e $file ]] || return 1
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || ! flush "$tmp"; then
    rm -f -- "$tmp"
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  if ! ln -- "$tmp" "$file" 2>/dev/null; then
    rc=1
    # No hard links here (some FUSE mounts): noclobber is as atomic, for a whole text is one write.
    if [[ ! -e $file ]] && (
      set -C
      printf '%s' "$text" >"$file"
    ) 2>/dev/null; then rc=0; fi
    [[ -e $file ]] || rc=$EX_COPY
  fi
  rm -f -- "$tmp"
  flush "$dir"
  return "$rc"
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

# lib/hashes.bash: many files at once: their digests by all cores, their sizes and times in one look.
# needs: exit log hash

# What `stat` says of each path, links followed, into STAT_OF[path]: "size|inode|mtime|ctime". Not there: no entry.
stat_many() { # <path...>
  begin_stat "$@"
  end_stat
}
# The two halves of it: stat runs beside us, while something else is done.
begin_stat() { # <path...>    sets STAT_FD for end_stat
  exec {STAT_FD}< <(
    while (($# > 500)); do
      TZ=UTC0 stat -L -c '%s|%i|%y|%z|%n' -- "${@:1:500}" 2>/dev/null
      shift 500
    done
    (($# == 0)) || TZ=UTC0 exec stat -L -c '%s|%i|%y|%z|%n' -- "$@" 2>/dev/null
  )
}
end_stat() {
  local line rest
  declare -gA STAT_OF
  STAT_OF=()
  while IFS= read -r line; do
    rest=${line#*|*|*|*|}
    STAT_OF[$rest]=${line%"|$rest"}
  done <&"$STAT_FD"
  exec {STAT_FD}<&-
}

# Let the kernel forget what it keeps of these files, so that reading them asks the storage. Best effort, GNU dd only.
forget_cached() { # <path...>
  local path
  # Where one call fails dd does not know the flag, or the file is not there, which its digest will tell.
  for path in "$@"; do dd if="$path" of=/dev/null iflag=nocache count=0 2>/dev/null || return 0; done
}

# One worker: the tool over its share, some hundred names a call; the last call becomes the tool.
hash_share() { # <path...>    prints lines of the tool
  while (($# > 200)); do
    (exec_hash_tool "${@:1:200}") 2>/dev/null || :
    shift 200
  done
  (($# == 0)) || exec_hash_tool "$@" 2>/dev/null
}

# How many workers: the cores that we may use, and not more than there are files.
hash_workers() { # <files>    into REPLY
  REPLY=$(nproc 2>/dev/null) || REPLY=1
  [[ $REPLY =~ ^[1-9][0-9]*$ ]] || REPLY=1
  ((REPLY <= 16)) || REPLY=16
  ((REPLY <= $1)) || REPLY=$1
}

# Digests of absolute paths, into SUM_OF[path]. The names hold no control character and no backslash.
# Work is shared out by the sizes in STAT_OF, biggest burden never on the worker that has most already.
hash_many() { # <path...>    returns: 0, or 1 where a file could not be read (it has no entry)
  begin_hash "$@"
  end_hash
}
# The two halves of it: little is read beside us, while something else is done. No other digests are taken in between.
begin_hash() { # <path...>    sets HASH_FD and HASH_N for end_hash
  local REPLY path line all=0
  declare -gA SUM_OF
  SUM_OF=() HASH_FD='' HASH_N=$#
  (($# > 0)) || return 0
  for path in "$@"; do
    line=${STAT_OF[$path]-4194304}
    all=$((all + ${line%%|*}))
  done
  local HASH_TOOL=${HASH_TOOL-}
  if ((all < 4194304)); then
    # Little work is done sooner by one than shared out.
    hash_tool_small
    exec {HASH_FD}< <(hash_share "$@")
  else
    hash_tool
    hash_workers $#
    share_out "$REPLY" "$@"
  fi
}
end_hash() { # returns: 0, or 1 where a file could not be read
  if [[ -n $HASH_FD ]]; then
    read_sums <&"$HASH_FD"
    exec {HASH_FD}<&-
    HASH_FD=''
  fi
  ((${#SUM_OF[@]} >= HASH_N))
}
read_sums() { # the tool's lines from standard input into SUM_OF
  local line
  while IFS= read -r line; do
    [[ ! ${line:0:64} =~ ^[0-9a-f]{64}$ ]] || SUM_OF[${line:66}]=${line:0:64}
  done
}
share_out() { # <workers> <path...>
  local path line n=$1 best i share fd
  local -a load=() fds=()
  local -A burden=()
  shift
  for ((i = 0; i < n; i++)); do load[i]=0; done
  for path in "$@"; do
    best=0
    for ((i = 1; i < n; i++)); do ((load[i] >= load[best])) || best=$i; done
    line=${STAT_OF[$path]-1}
    load[best]=$((load[best] + ${line%%|*} + 4096))
    burden[$best]+=$path$'\n'
  done
  for ((i = 0; i < n; i++)); do
    IFS=$'\n' read -r -d '' -a share <<<"${burden[$i]-}" || :
    exec {fd}< <(hash_share ${share[@]+"${share[@]}"})
    fds+=("$fd")
  done
  for fd in "${fds[@]}"; do
    read_sums <&"$fd"
    exec {fd}<&-
  done
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

# Bytes and inodes that are free at each of the folders, in one look: ROOM_BYTES and ROOM_INODES, parallel to the words. An entry is
# empty where it is not known: no such call, or a file system that does not count inodes.
look_room() { # <folders that exist...>
  begin_look_room "$@"
  end_look_room "$@"
}
# The two halves of it: the look runs beside us, while something else is done.
begin_look_room() { # <folders...>    sets ROOM_FD for end_look_room
  exec {ROOM_FD}< <(exec stat -f -c '%a %S %d %c' -- "$@" 2>/dev/null)
}
end_look_room() { # <the same folders...>
  local blocks size left all i
  ROOM_BYTES=() ROOM_INODES=()
  while read -r blocks size left all; do
    [[ $blocks$size$left$all =~ ^[0-9]+$ ]] || break
    ROOM_BYTES+=($((blocks * size)))
    if ((all > 0)); then ROOM_INODES+=("$left"); else ROOM_INODES+=(''); fi
  done <&"$ROOM_FD"
  exec {ROOM_FD}<&-
  # No such stat: two calls of df for each.
  for ((i = ${#ROOM_BYTES[@]} + 1; i <= $#; i++)); do
    free_bytes "${!i}" || :
    ROOM_BYTES+=("$REPLY")
    free_inodes "${!i}" || :
    ROOM_INODES+=("$REPLY")
  done
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

# Why nothing can be written in FOLDER, or where it would be made, in words, into REPLY. To be asked where writing has failed: on
# some mounts the rights say no, and writing works.
write_fault() { # <folder>    returns: 0, or 1 where nothing speaks against it
  local dir line fields best=''
  existing_parent "$1"
  dir=$REPLY REPLY=''
  [[ ! -w $dir ]] || return 1
  REPLY="we have no right to write in $dir"
  dir=$(cd -P -- "$dir" 2>/dev/null && pwd) || return 0
  while read -ra fields; do
    line=${fields[4]-} line=${line//\\040/ }
    [[ ${dir%/}/ == "${line%/}"/* && ${#line} -ge ${#best} ]] || continue
    best=$line
    # The options of the mount, and in the last field those of its file system.
    if [[ ,${fields[5]-}, == *,ro,* || ,${fields[${#fields[@]} - 1]}, == *,ro,* ]]; then REPLY="$best is mounted read-only"; else REPLY="we have no right to write in $dir"; fi
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  return 0
}
# The words for a refusal: FAULT_WHY and FAULT_DO.
write_words() { # <folder> <what could not be done there> <tier>
  if write_fault "$1"; then
    FAULT_WHY="$2: $REPLY" FAULT_DO="mount the $3 tier for writing again (dmesg says why it is not), or mend its rights; then the same call"
  else
    FAULT_WHY=$2 FAULT_DO="look at the $3 tier: room, rights"
  fi
}

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

# Is the durable tier there? If not, what is wrong, why and what to do are in TIER_SAID, three entries.
# shellcheck disable=SC2154 # bound in each script that calls it; others take this library for its other functions
durable_there() { # reads: DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF    returns: 0 or 74
  local REPLY tier=$DURABLE_TIER_PATH
  TIER_SAID=()
  [[ -n $DURABLE_DIR ]] || return 0
  # Then the tier is nowhere, and a folder that a person has named cannot lie in it.
  if unset_name "$tier"; then tier="its \$$REPLY is not set"; else expand_path tier; fi
  if [[ $DURABLE_DIR/ == "${tier%/}"/* ]]; then
    prove_tier "${tier%/}" "$DURABLE_PROOF" ||
      TIER_SAID=("the durable tier" "$REPLY" "attach the storage, or set DURABLE_DIR= (empty) to run pull-only")
  elif [[ ! -d $DURABLE_DIR ]]; then
    # Not the profile's place: then nothing proves it but that a person made the folder.
    TIER_SAID=("DURABLE_DIR=$DURABLE_DIR" "it is not the profile's tier ($tier) and is no folder" "make the folder on storage that survives, or unset DURABLE_DIR")
  fi
  ((${#TIER_SAID[@]} == 0)) || return "$EX_COPY"
}

# The durable tier, proven before the first byte goes to it. Refuses 74.
prove_durable() {
  durable_there || refuse "$EX_COPY" "${TIER_SAID[@]}"
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

refuse_write() { # <exit code> <path> <what could not be done> <tier>
  local REPLY
  write_words "$2" "$3" "$4"
  refuse "$1" "$2" "$FAULT_WHY" "$FAULT_DO"
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

# Read D's record into R_*, taking B's where D has none yet (a new box on the same durable tier).
find_run() { # returns: 0 found, 1 there is none; refuses 65 where one is unreadable
  local REPLY rc=0
  read_record "$D/run.json" run/1 || rc=$?
  ((rc != 2)) || { record_fault "$D/run.json" && refuse "$EX_INTEGRITY" "$D/run.json" "$REPLY" "compare it with $B/run.json and copy the whole one over it"; }
  ((rc == 1)) || return 0
  [[ $B != "$D" && (-e $B/run.json || -L $B/run.json) ]] || return 1
  read_record "$B/run.json" run/1 || {
    record_fault "$B/run.json"
    refuse "$EX_INTEGRITY" "$B/run.json" "$REPLY" "look at it; begin anew with RUN=$JOB.2 if it is lost"
  }
  read_text "$B/run.json"
  create_once "$D/run.json" "$REPLY" || [[ $? -eq 1 ]] || return "$EX_COPY"
  read_record "$D/run.json" run/1
}

# The durable copy: made where it is missing, refused where it is another run's.
mirror_run() {
  [[ $B != "$D" ]] || return 0
  local REPLY id=$R_run_id text rc=0
  read_text "$D/run.json" || refuse "$EX_INTEGRITY" "$D/run.json" "it cannot be read" "look at the data tier"
  text=$REPLY
  # The very same text is the very same run.
  ! read_text "$B/run.json" || [[ $REPLY != "$text" ]] || return 0
  [[ -d $B ]] || mkdir -p -- "$B" 2>/dev/null || refuse_write "$EX_COPY" "$B" "the folder cannot be made" durable
  create_once "$B/run.json" "$text" || [[ $? -eq 1 ]] ||
    refuse_write "$EX_COPY" "$B/run.json" "it cannot be written" durable
  read_record "$B/run.json" run/1 "$id" || rc=$?
  ((rc == 0)) || refuse "$EX_INTEGRITY" "$B/run.json" "it is another run's record, or not whole; ours is $id" "begin anew with RUN=$JOB.2, or put the right storage in place"
  read_record "$D/run.json" run/1
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

# Can a line be written there at all?
can_write() { # <folder>
  local rc=0
  { printf 'probe\n' >"$1/.probe.$$"; } 2>/dev/null || rc=1
  rm -f -- "$1/.probe.$$" 2>/dev/null
  return "$rc"
}

# lib/results.bash: a cell's result files: which they are, what they weigh, their digests.
# needs: exit log file hash hashes
# reads: D REQUIRED

# Results below this in all are small: hashed and copied in a moment. Looks that cost a process and would see what happens in
# that moment (free room, a second stat, having the kernel forget what it keeps) are for more; the digests are for all.
readonly SMALL_BYTES=1048576

# Is this the name of a file that some transfer or writer left half done?
is_leftover() { # <path below the cell>
  local base=${1##*/} tail
  case $1 in
    .~tmp~/* | */.~tmp~/* | .rsync-partial/* | */.rsync-partial/* | .partial/* | */.partial/*) return 0 ;;
  esac
  case $base in
    *.tmp | *.temp | *.part | *.partial | *.crdownload | .nfs* | .fuse_hidden* | *.sw[op]) return 0 ;;
    .?*.??????)
      # rsync's temporary name: six random characters, of which one at least is no small letter.
      tail=${base##*.}
      [[ $tail =~ ^[A-Za-z0-9]{6}$ && $tail =~ [A-Z0-9] ]] && return 0
      ;;
  esac
  return 1
}

# Files below a required folder, links followed, into LIST_PATHS; what is not a result is named and left out.
list_folder() { # <cell folder> <item>
  local dir=$1 item=$2 path ended=0 found=0
  while IFS= read -r -d '' path; do
    path=${path#"$dir"/}
    path=${path#./}
    if [[ $path == '== end' ]]; then
      ended=1
    elif [[ -L $dir/$path && ! -e $dir/$path ]]; then
      log "$dir/$path is a link that leads nowhere"
      return "$EX_COPY"
    elif is_leftover "$path"; then
      log "left out: $path (its name says that it is unfinished)"
    elif [[ ! -f $dir/$path ]]; then
      # Never opened: reading a fifo would wait for ever.
      log "left out: $path (a socket, fifo or device)"
    else
      LIST_PATHS+=("$path")
      found=1
    fi
  done < <(find -L "$dir/$item" ! -type d -print0 2>/dev/null && printf '== end\0')
  ((ended)) || { log "$dir/$item cannot be read whole: a folder without rights, or a link that leads into itself" && return "$EX_COPY"; }
  ((found)) || { log "$dir/$item holds no file" && return "$EX_COPY"; }
}

# All result files of a cell, as paths below its folder, in C order without repeats: LIST_PATHS.
list_paths() { # <cell folder>    returns: 0, 65 a name that no list can hold, 74 not there or not readable
  local dir=$1 item path text
  LIST_PATHS=()
  for item in ${REQUIRED[@]+"${REQUIRED[@]}"}; do
    item=${item%/}
    if [[ -L $dir/$item && ! -e $dir/$item ]]; then
      log "$dir/$item is a link that leads nowhere"
      return "$EX_COPY"
    elif [[ -f $dir/$item ]]; then
      LIST_PATHS+=("$item")
    elif [[ -d $dir/$item ]]; then
      list_folder "$dir" "$item" || return
    elif [[ -e $dir/$item ]]; then
      log "$dir/$item is a socket, fifo or device, not a result"
      return "$EX_COPY"
    else
      log "$dir/$item is not there"
      return "$EX_COPY"
    fi
  done
  for path in ${LIST_PATHS[@]+"${LIST_PATHS[@]}"}; do
    [[ $path != *[[:cntrl:]\"\\]* ]] && continue
    log "$dir/${path//[[:cntrl:]]/?} has a quote, a backslash or a control character in its name: rename it"
    return "$EX_INTEGRITY"
  done
  ((${#LIST_PATHS[@]} > 0)) || { log "$dir has no result file" && return "$EX_COPY"; }
  ((${#LIST_PATHS[@]} > 1)) || return 0
  if ((${#LIST_PATHS[@]} <= 16)); then
    sort_paths
    return
  fi
  text=$(printf '%s\n' "${LIST_PATHS[@]}" | LC_ALL=C sort -u) || return "$EX_COPY"
  LIST_PATHS=()
  while IFS= read -r path; do LIST_PATHS+=("$path"); done <<<"$text"
}

# LIST_PATHS in C order without repeats, without a process: for few.
sort_paths() {
  local LC_ALL=C path i
  local -a sorted=()
  for path in "${LIST_PATHS[@]}"; do
    for ((i = ${#sorted[@]}; i > 0; i--)); do
      [[ $path < ${sorted[i - 1]} ]] || break
      sorted[i]=${sorted[i - 1]}
    done
    sorted[i]=$path
  done
  LIST_PATHS=()
  for path in "${sorted[@]}"; do
    [[ ${#LIST_PATHS[@]} -gt 0 && ${LIST_PATHS[${#LIST_PATHS[@]} - 1]} == "$path" ]] || LIST_PATHS+=("$path")
  done
}

# A cell's results and their sizes in one look, into LIST_PATHS LIST_FULL LIST_SEEN LIST_SIZES LIST_BYTES; LOOKED_AT names the cell.
look_cell() { # <cell>    returns: 0, 65, or 74 (missing, unreadable)
  begin_look "$1" && end_look "$1"
}
begin_look() { # <cell>
  local path
  LOOKED_AT='' LIST_FULL=()
  list_paths "$D/cells/$1" || return
  for path in "${LIST_PATHS[@]}"; do LIST_FULL+=("$D/cells/$1/$path"); done
  begin_stat "${LIST_FULL[@]}"
}
end_look() { # <cell>
  local path line
  LIST_SEEN=() LIST_SIZES=() LIST_BYTES=0
  end_stat
  for path in "${LIST_FULL[@]}"; do
    line=${STAT_OF[$path]-}
    [[ -n $line ]] || { log "$path went away" && return "$EX_COPY"; }
    LIST_SEEN+=("$line")
    LIST_SIZES+=("${line%%|*}")
    LIST_BYTES=$((LIST_BYTES + ${line%%|*}))
  done
  LOOKED_AT=$1
}

# Digests of a cell's results, taken at the source, into D/state/<cell>.sha256 and LIST_TEXT LIST_SUMS, beside what look_cell sets.
# LIST_DIGEST is the list's own, empty until somebody needs it (list_digest) or it comes with the read-back.
# In two halves: the tool runs beside us, while something else is done.
begin_list() { # <cell>    returns: 0, 65, or 74 (missing, unreadable)
  [[ ${LOOKED_AT-} == "$1" ]] || look_cell "$1" || return
  # A look serves once: the next one is to see what has come since.
  LOOKED_AT=''
  begin_hash "${LIST_FULL[@]}"
}
end_list() { # <cell>    returns: 0, or 74 (unreadable, or still being written)
  local cell=$1 path i
  LIST_SUMS=() LIST_TEXT='' LIST_DIGEST=''
  # What is wrong from here on lies in what this cell has left; no other cell's copy has to do with it.
  OWN_FAULT=1
  end_hash || { log "a result of cell $cell cannot be read" && return "$EX_COPY"; }
  ((LIST_BYTES < SMALL_BYTES)) || stat_many "${LIST_FULL[@]}"
  for ((i = 0; i < ${#LIST_FULL[@]}; i++)); do
    path=${LIST_FULL[i]}
    [[ ${STAT_OF[$path]-} == "${LIST_SEEN[i]}" ]] || { log "$path is still being written" && return "$EX_COPY"; }
    LIST_SUMS+=("${SUM_OF[$path]}")
    LIST_TEXT+="${SUM_OF[$path]}  ${LIST_PATHS[i]}"$'\n'
  done
  # shellcheck disable=SC2034 # of sync_cell
  OWN_FAULT=''
  # The commit takes the list from here and a repeated sync takes new digests: from the file only its own digest is taken.
  put_text "$D/state/$cell.sha256" "$LIST_TEXT" || { log "could not write $D/state/$cell.sha256" && return "$EX_COPY"; }
}
list_digest() { # into LIST_DIGEST
  local REPLY
  [[ -z $LIST_DIGEST ]] || return 0
  hash_text "$LIST_TEXT" || return "$EX_COPY"
  LIST_DIGEST=$REPLY
}

# lib/bundle.bash: a cell's results on their way into the bundle: copied, read back, committed.
# needs: exit log path file record proc hash hashes room run results
# reads: D B RUN_ID DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF
#
# Who runs a cell writes D/state/<cell>.json with state "unsynced" (exit 0, evidence there), then calls sync_cell:
# on 0 both that record and B/records/<cell>.json say done; on 73, 74 or 65 nothing in B was replaced by worse,
# and the record is as it was; OWN_FAULT is not empty where the cell's own files are at fault, not the way into the bundle.
# A crash in between leaves "unsynced", which aggregate repeats.

# Is a cell committed: does B's record say done in this run, over the digest list that lies beside it?
check_bundled() { # <cell>    returns: 0 yes, 1 no record, 2 a record or list that does not hold; leaves R_*
  local REPLY rc=0 HASH_TOOL=${HASH_TOOL-}
  read_record "$B/records/$1.json" cell/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return "$rc"
  [[ ${R_cell-} == "$1" && ${R_state-} == "done" && -n ${R_files_sha256-} ]] || return 2
  hash_tool_small
  hash_file "$B/records/$1.sha256" || return 2
  [[ $REPLY == "$R_files_sha256" ]] || return 2
}

# The record in R_* once more, with STATE, WHY and the digest list, into RECORD.
cell_record() { # <state> <why> <files digest>
  record_open cell/1
  record_text run_id "$RUN_ID"
  record_text cell "$R_cell"
  record_text state "$1"
  record_text class ''
  record_text why "$2"
  record_int attempt "${R_attempt-}" || return
  record_int exit "${R_exit-}" || return
  record_raw signal "${R_signal:-null}"
  record_text started "${R_started-}"
  record_text ended "${R_ended-}"
  record_int peak_memory_bytes "${R_peak_memory_bytes-}" || return
  record_text gpu "${R_gpu-}"
  record_text command_sha256 "${R_command_sha256-}"
  record_text files_sha256 "$3"
  record_text tracker_url "${R_tracker_url-}"
  record_close
}

# Remove what an earlier sync of this cell, killed half-way, left in the bundle: our own names and nothing else.
drop_own_leftovers() { # <cell>
  local path
  for path in "$B/.syncing/$1".[0-9]*; do
    if [[ ! -d $path || ! ${path##*.} =~ ^[0-9]+$ || $path != "$B/.syncing/$1.${path##*.}" ]]; then continue; fi
    [[ $path != "${STAGE-}" ]] || continue
    # One of our own number is a dead one's too: numbers come again, in a container soon.
    [[ ${path##*.} == "$$" ]] || ! start_ticks "${path##*.}" || continue
    rm -rf -- "${path:?}" || return "$EX_COPY"
  done
}

# Which files of the list are not in TARGET as they should be: indices into TODO, their bytes into TODO_BYTES.
sync_todo() { # <target folder>
  local i path
  local -a same=()
  TODO=() TODO_BYTES=0
  for path in "${LIST_PATHS[@]}"; do
    path=$1/$path
    [[ ! -f $path || -L $path ]] || same+=("$path")
  done
  SUM_OF=()
  if ((${#same[@]} > 0)); then
    stat_many "${same[@]}"
    hash_many "${same[@]}" || :
  fi
  for ((i = 0; i < ${#LIST_PATHS[@]}; i++)); do
    path=$1/${LIST_PATHS[i]}
    [[ ${SUM_OF[$path]-} != "${LIST_SUMS[i]}" ]] || continue
    TODO+=("$i")
    TODO_BYTES=$((TODO_BYTES + LIST_SIZES[i]))
  done
}

# Room for the whole copy, before its first byte: the old files stay until the new ones are proven. Where it is
# little cp says the same, and as early.
sync_room() { # <target folder>    returns: 0 or 73
  ((TODO_BYTES >= SMALL_BYTES || ${#TODO[@]} > 64)) || return 0
  look_room "$1"
  if [[ -n ${ROOM_BYTES[0]} ]] && ((TODO_BYTES + 65536 > ROOM_BYTES[0])); then
    log "no room for the copy: it needs $TODO_BYTES bytes, $1 has ${ROOM_BYTES[0]}"
    return "$EX_NOROOM"
  fi
  if [[ -n ${ROOM_INODES[0]} ]] && ((${#TODO[@]} + 8 > ROOM_INODES[0])); then
    log "no room for the copy: it needs ${#TODO[@]} files, $1 has inodes for ${ROOM_INODES[0]}"
    return "$EX_NOROOM"
  fi
}

# TODO in runs of files that lie in one folder: RUN_FOLDER (below the cell's, empty for itself) and RUN_FIRST, where in TODO it
# begins. A call of cp or mv takes a run whole.
split_runs() {
  local i folder last='' n=0
  RUN_FOLDER=() RUN_FIRST=()
  for ((i = 0; i < ${#TODO[@]}; i++)); do
    folder=${LIST_PATHS[TODO[i]]}
    if [[ $folder == */* ]]; then folder=${folder%/*}; else folder=''; fi
    n=$((n + 1))
    if ((i == 0 || n > 200)) || [[ $folder != "$last" ]]; then
      RUN_FOLDER+=("$folder") RUN_FIRST+=("$i")
      last=$folder n=1
    fi
  done
  RUN_FIRST+=("${#TODO[@]}")
}

# The files of run N below FOLDER, into RUN_FILES.
run_files() { # <n> <folder>
  local i
  RUN_FILES=()
  for ((i = RUN_FIRST[$1]; i < RUN_FIRST[$1 + 1]; i++)); do RUN_FILES+=("$2/${LIST_PATHS[TODO[i]]}"); done
}

# The folders of the copy below ROOT, all in one call; none of them may be a link.
make_folders_below() { # <root> [further folders...]
  local n folder root=$1
  local -a folders=("$@")
  for folder in ${RUN_FOLDER[@]+"${RUN_FOLDER[@]}"}; do
    [[ -z $folder ]] || folders+=("$root/$folder")
  done
  for ((n = 0; n < ${#folders[@]}; n += 500)); do
    mkdir -p -- "${folders[@]:n:500}" 2>/dev/null || { log "$root cannot be made" && return "$EX_COPY"; }
  done
  for folder in "${folders[@]}"; do
    [[ ! -L $folder ]] || { log "$folder is a link, not a folder of the bundle" && return "$EX_COPY"; }
  done
}

# Files into a folder, under their names. Says 73 where the disk is full.
copy_files() { # <folder> <files...>
  local said to=$1
  shift
  # In English: what it says decides.
  said=$(LC_ALL=C exec cp -L -- "$@" "$to/" 2>&1) && return 0
  said=${said//[[:cntrl:]]/ }
  case $said in
    *'No space left'* | *'quota exceeded'*) log "no room for the copy of ${1%/*}: $said" && return "$EX_NOROOM" ;;
  esac
  log "copying from ${1%/*} failed: $said"
  return "$EX_COPY"
}

# The copies in TMP, flushed and read back, the list with them: each digest must be its source's.
prove_copies() { # <temporary folder> <target folder> <the list's file>
  local i tmp rc=0 read_back=0
  local -a tmps=()
  for i in "${TODO[@]}"; do tmps+=("$1/${LIST_PATHS[i]}"); done
  declare -gA STAT_OF=()
  # For sharing out the reading.
  # shellcheck disable=SC2004 # STAT_OF is associative; its declaration is in lib hashes too
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    STAT_OF[$tmp]=${LIST_SIZES[i]}
  done
  STAT_OF[$3]=${#LIST_TEXT}
  # Little comes from memory anyway: it is read while it is flushed.
  ((TODO_BYTES >= SMALL_BYTES)) || begin_hash "${tmps[@]}" "$3"
  flush "${tmps[@]}" || rc=$?
  if ((TODO_BYTES >= SMALL_BYTES && rc == 0)); then
    forget_cached "${tmps[@]}"
    begin_hash "${tmps[@]}" "$3"
  fi
  end_hash || read_back=1
  ((rc == 0)) || { log "the copy to $2 cannot be flushed: no room, a quota, or its disk is failing" && return "$EX_COPY"; }
  ((read_back == 0)) || { log "the copy to $2 cannot be read back" && return "$EX_COPY"; }
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    if [[ ${SUM_OF[$tmp]-} != "${LIST_SUMS[i]}" ]]; then
      log "the copy of ${LIST_PATHS[i]} on $2 reads back as ${SUM_OF[$tmp]-nothing}, its source was ${LIST_SUMS[i]}: a bad disk, or the source is still being written"
      return "$EX_COPY"
    fi
  done
  LIST_DIGEST=${SUM_OF[$3]}
}

# What TODO names is copied, flushed and read back, and only then renamed: the whole folder where the bundle has none of the cell
# yet, else file by file. The last good copy stays until the new one is proven. First into a temporary folder:
stage_files() { # <cell> <temporary folder>
  local n
  split_runs
  [[ $2 == "${STAGE-}" && -d $2 && ${RUN_FOLDER[*]} == '' && ! -L $2 && ! -L $B/.syncing && ! -L $B/final_ckpts && ! -L $B/records ]] ||
    make_folders_below "$2" "$B/.syncing" "$B/final_ckpts" "$B/records" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]}; n++)); do
    run_files "$n" "$D/cells/$1"
    copy_files "$2/${RUN_FOLDER[n]}" "${RUN_FILES[@]}" || return
  done
}
# Then proven, and under their names.
readonly OTHERS=3
place_files() { # <temporary folder> <target folder> <the list's file>    returns: 0, 74, or OTHERS: another has just put its copy there
  local tmp=$1 target=$2
  prove_copies "$tmp" "$target" "$3" || return
  # Some mounts cannot rename a folder.
  if [[ ! -e $target ]] && mv -- "$tmp" "$target" 2>/dev/null; then
    # Had another made the target in that moment, ours would lie inside it: then we compare with what lies there.
    [[ ! -e $target/${tmp##*/} ]] || { rm -rf -- "${target:?}/${tmp##*/}" && return "$OTHERS"; }
    [[ -e $target/${LIST_PATHS[TODO[0]]} ]] || { log "$target is not what was moved there: look at the durable tier" && return "$EX_COPY"; }
    return 0
  fi
  move_files "$tmp" "$target"
}
move_files() { # <temporary folder> <target folder>
  local n file
  make_folders_below "$2" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]}; n++)); do
    run_files "$n" "$2"
    for file in "${RUN_FILES[@]}"; do
      [[ ! -d $file ]] || { log "$file is a folder where a file is to be" && return "$EX_COPY"; }
    done
    run_files "$n" "$1"
    mv -f -- "${RUN_FILES[@]}" "$2/${RUN_FOLDER[n]}" || return "$EX_COPY"
  done
}

# A cell's results into the bundle, then its list, last its record: whoever sees the record may count on the rest.
sync_cell() { # <cell>    returns: 0 committed, 65, 73 or 74 with the reason said; see the top of this file
  local cell=$1 target=$B/final_ckpts/$1 tmp=$B/.syncing/$1.$$ rc=0 bundled=''
  OWN_FAULT=''
  # The tier is proven before any byte.
  # The refusal is this function's status, not the end of the script.
  durable_there || { (refuse "$EX_COPY" "${TIER_SAID[@]}") || return; }
  ! check_bundled "$cell" || bundled=$R_files_sha256
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || { log "cell $cell has no whole record of this run" && return "$EX_INTEGRITY"; }
  [[ ${R_state-} == unsynced || ${R_state-} == "done" ]] || { log "cell $cell is ${R_state-}: nothing to sync" && return "$EX_INTEGRITY"; }
  still_flushed "${R_why-}" || { log "cell $cell finished in an earlier boot, before its files were flushed: unknown, so it is to run again" && return "$EX_INTEGRITY"; }
  [[ ! -L $target ]] || { log "$target is a link, not a folder of the bundle" && return "$EX_COPY"; }
  drop_own_leftovers "$cell" || return
  # shellcheck disable=SC2034 # lib/cell asks for it; aggregate has no use for it
  begin_list "$cell" || { rc=$? OWN_FAULT=1 && return "$rc"; }
  if [[ -z $bundled && ! -e $target ]] && ((LIST_BYTES < SMALL_BYTES && ${#LIST_PATHS[@]} <= 64)); then
    sync_new "$cell" "$tmp" || rc=$?
  else
    sync_known "$cell" "$tmp" "$bundled" || rc=$?
  fi
  if ((rc == OTHERS)); then
    rc=0
    begin_list "$cell" && sync_known "$cell" "$tmp" "$bundled" || rc=$?
  fi
  [[ ! -e $tmp ]] || rm -rf -- "${tmp:?}" || rc=$EX_COPY
  ((rc == 0)) || return "$rc"
  commit_cell "$cell"
}
# The usual case, little and all of it new, is copied while its digests are taken.
sync_new() { # <cell> <temporary folder>
  local rc=0
  TODO=("${!LIST_PATHS[@]}") TODO_BYTES=$LIST_BYTES
  stage_files "$1" "$2" || rc=$?
  end_list "$1" || return
  ((rc == 0)) || return "$rc"
  place_files "$2" "$B/final_ckpts/$1" "$D/state/$1.sha256"
}
sync_known() { # <cell> <temporary folder> <digest of the list in the bundle, or empty>
  local target=$B/final_ckpts/$1
  end_list "$1" || return
  if [[ -n $3 ]]; then
    list_digest || return
    if [[ $3 != "$LIST_DIGEST" ]]; then
      log "cell $1 is in the bundle, and its files in $D/cells/$1 were changed since: the bundle keeps the first ones"
      return "$EX_INTEGRITY"
    fi
  fi
  sync_todo "$target"
  sync_room "$B" || return
  ((${#TODO[@]} > 0)) || return 0
  stage_files "$1" "$2" && place_files "$2" "$target" "$D/state/$1.sha256"
}

# What a record of a finished cell says whose few files are not flushed yet, for they are copied at once: true in the boot that it
# names. After a power cut nobody knows what the files hold.
readonly UNFLUSHED='not flushed, boot '
still_flushed() { # <the record's why>    returns: 1 where that boot is over
  local REPLY
  [[ $1 == "$UNFLUSHED"* ]] || return 0
  this_boot_id
  # One that cannot be told could be any.
  [[ $1 == "$UNFLUSHED$REPLY" && $REPLY != unknown ]]
}

# The list and the record into B, then our own record. All is flushed in one call behind the renames, the folders first: what
# a power cut tears is seen, for the list must have the digest that the record says, and our own record still says unsynced.
commit_cell() { # <cell>    reads: R_*, of the cell's record on the data tier
  local cell=$1 back=$B/records/$1
  list_digest || return
  cell_record 'done' '' "$LIST_DIGEST" || return
  write_list "$back.sha256" || return
  replace_file "$back.json" "$RECORD" soon || return
  target_folders "$cell"
  flush "${TARGET_FOLDERS[@]}" "$back.sha256" "$back.json" "$B/records" || { log "the record of cell $cell cannot be flushed to $B" && return "$EX_COPY"; }
  overwrite_file "$D/state/$cell.json" "$RECORD" || replace_file "$D/state/$cell.json" "$RECORD" soon || return
  say_bundled "$cell"
}

# The list under its name at once: nobody looks at one that has no record of its digest beside it.
write_list() { # <file>
  local REPLY
  ! read_text "$1" || [[ $REPLY != "$LIST_TEXT" ]] || return 0
  put_text "$1" "$LIST_TEXT" && read_text "$1" && [[ $REPLY == "$LIST_TEXT" ]] || {
    log "could not write $1: no room, no right, or its disk is gone"
    return "$EX_COPY"
  }
}

# The folders in the bundle whose names a commit speaks of, into TARGET_FOLDERS.
target_folders() { # <cell>
  local path folder=$B/final_ckpts/$1
  local -A seen=([$folder]=1)
  TARGET_FOLDERS=("$B/final_ckpts" "$folder")
  for path in "${LIST_PATHS[@]}"; do
    path=$folder/$path
    while [[ ${path%/*} != "$folder" && -z ${seen[${path%/*}]-} ]]; do
      path=${path%/*}
      seen[$path]=1
      TARGET_FOLDERS+=("$path")
    done
  done
}

# The words for a committed cell. Without a durable tier it is exported, and nothing more is said.
say_bundled() { # <cell>
  if [[ -n $DURABLE_DIR ]]; then
    claim synced "cell $1" "$B/records/$1.json"
  else
    claim 'exported, on this box only' "cell $1" "$B/records/$1.json"
  fi
}

# lib/carry.bash: small files of the run that have to come home beside the bundle.
# needs: exit log file
# reads: D B

# What RUN_FACTS.md tells besides the records (S92): the events with their overrides, the roster, what failed (X4). Only what
# lies in B comes home, so they are copied there, once more each time. Lines that another box left there stay.
carry_logs() {
  local REPLY name text
  [[ $B != "$D" ]] || return 0
  for name in events.tsv queue.tsv NEGATIVE_RESULTS.tsv; do
    if no_file "$D/$name"; then
      log "$D/$name is $REPLY: it does not come home with the results"
      continue
    fi
    [[ -s $D/$name ]] || continue
    text=$(cat -- "$D/$name") || return
    if [[ -s $B/$name ]]; then text=$(awk '!seen[$0]++' "$B/$name" "$D/$name") || return; fi
    [[ -s $B/$name && $(<"$B/$name") == "$text" ]] || replace_file "$B/$name" "$text"$'\n' || return
  done
}

# lib/manifest.bash: the bundle as a whole: every file of every record looked at, SHA256SUMS, PULL_MANIFEST.json.
# needs: exit log file record hash hashes bundle carry
# reads: D B RUN_ID RUN_COMMIT; works on CELL_NAMES, CELL_STATE[cell], CELL_WHY[cell] and the parallel FILE_SUMS FILE_PATHS

# A cell as it is to be listed. Its why becomes fit for a record.
set_cell() { # <cell> <state> <why>
  local REPLY
  record_fit "$3"
  CELL_STATE[$1]=$2
  CELL_WHY[$1]=$REPLY
}

# What the manifest that stands there says of cells and files, into OLD_CELLS and OLD_FILES ("bytes sha256 path").
# A cell that was once listed is never forgotten, also where its record is gone.
read_old_manifest() {
  local line item='^ {4}\{"(cell|bytes)": (.*)\},?$'
  OLD_CELLS=() OLD_FILES=()
  read_record "$B/PULL_MANIFEST.json" pull_manifest/1 "$RUN_ID" || return 0
  while IFS= read -r line; do
    [[ $line =~ $item ]] || continue
    line=${BASH_REMATCH[2]}
    if [[ ${BASH_REMATCH[1]} == cell && $line =~ ^\"([^\"]+)\",\ \"state\":\ \"([a-z]+)\" ]]; then
      OLD_CELLS+=("${BASH_REMATCH[1]}")
    elif [[ $line =~ ^([0-9]+),\ \"sha256\":\ \"([0-9a-f]{64})\",\ \"path\":\ \"([^\"]+)\"$ ]]; then
      OLD_FILES+=("${BASH_REMATCH[1]} ${BASH_REMATCH[2]} ${BASH_REMATCH[3]}")
    fi
  done <"$B/PULL_MANIFEST.json"
}

# One record's digest list into FILE_SUMS and FILE_PATHS.
take_list() { # <cell>    returns: 1 where a line is not one that we write
  local line
  while IFS= read -r line; do
    [[ $line =~ ^([0-9a-f]{64})\ \ ([^/].*)$ && /$line/ != *'/../'* && ! ${line:66} =~ ^\.\.(/|$) ]] || return 1
    FILE_SUMS+=("${line:0:64}")
    FILE_PATHS+=("final_ckpts/$1/${line:66}")
  done <"$B/records/$1.sha256"
}

# The lists of all records that hold, in C order of the cells; and what an earlier manifest has of cells without one.
take_lists() {
  local cell sorted old path
  FILE_SUMS=() FILE_PATHS=() FILE_BYTES=()
  sorted=$(printf '%s\n' "${CELL_NAMES[@]}" | LC_ALL=C sort) || return "$EX_COPY"
  while IFS= read -r cell; do
    if [[ -e $B/records/$cell.json && -s $B/records/$cell.sha256 ]]; then
      take_list "$cell" || { log "$B/records/$cell.sha256 is not a digest list" && return "$EX_INTEGRITY"; }
    else
      for old in ${OLD_FILES[@]+"${OLD_FILES[@]}"}; do
        path=${old#* * }
        [[ $path == "final_ckpts/$cell/"* ]] || continue
        FILE_SUMS+=("${old:$((${#old} - ${#path} - 65)):64}")
        FILE_PATHS+=("$path")
      done
    fi
  done <<<"$sorted"
}

# Digests that were taken before and still hold, by size, inode and both times, into CACHE["path|stat"].
read_cache() { # <file>
  local line
  declare -gA CACHE
  CACHE=()
  [[ -f $1 ]] || return 0
  while IFS= read -r line; do
    if [[ $line =~ ^[0-9a-f]{64}\  ]]; then CACHE[${line:65}]=${line:0:64}; fi
  done <"$1"
}

# Look at every file of FILE_PATHS: what is unchanged since its last digest is not read again, unless REHASH is true.
# Sets FILE_BYTES, and BAD[path] for each that is not what its record says.
verify_files() { # <cache file> <rehash: true or false>
  local i path key stat text=''
  local -a full=() miss=()
  local -A held=()
  declare -gA BAD
  BAD=() FILE_BYTES=()
  if [[ $2 == true ]]; then rm -f -- "$1"; fi
  read_cache "$1"
  for path in ${FILE_PATHS[@]+"${FILE_PATHS[@]}"}; do full+=("$B/$path"); done
  stat_many ${full[@]+"${full[@]}"}
  for path in ${full[@]+"${full[@]}"}; do
    key="$path|${STAT_OF[$path]-}"
    if [[ -z ${STAT_OF[$path]-} || ! -f $path || -L $path ]]; then
      BAD[$path]="it is not there"
    elif [[ -n ${CACHE[$key]-} ]]; then
      held[$path]=${CACHE[$key]}
    else
      miss+=("$path")
    fi
  done
  if [[ $2 == true ]]; then forget_cached ${miss[@]+"${miss[@]}"}; fi
  hash_many ${miss[@]+"${miss[@]}"} || :
  for ((i = 0; i < ${#full[@]}; i++)); do
    path=${full[i]}
    key=${held[$path]-${SUM_OF[$path]-}}
    stat=${STAT_OF[$path]-}
    FILE_BYTES+=("${stat%%|*}")
    [[ -n ${BAD[$path]-} || $key == "${FILE_SUMS[i]}" ]] || BAD[$path]="its digest is ${key:-not to be had}"
    if [[ -z ${BAD[$path]-} ]]; then text+="$key $path|$stat"$'\n'; fi
  done
  replace_file "$1" "$text" || :
}

# Bytes that an earlier manifest gave for a file that is not there now.
old_bytes() { # <path>    into REPLY
  local old
  for old in ${OLD_FILES[@]+"${OLD_FILES[@]}"}; do
    if [[ ${old#* * } == "$1" ]]; then REPLY=${old%% *} && return 0; fi
  done
  REPLY=0
}

write_sums() {
  local i text=''
  for ((i = 0; i < ${#FILE_PATHS[@]}; i++)); do text+="${FILE_SUMS[i]}  ${FILE_PATHS[i]}"$'\n'; done
  replace_file "$B/SHA256SUMS" "$text"
}

# A list in a record's shape: the members are whole lines.
record_list() { # <name> <lines with their commas>
  RECORD+=,$'\n''  "'$1'": ['$'\n'"$2"'  ]'
}

# The manifest, its own digest last, written and read back.
write_manifest() { # <cells expected> <cells done>
  local REPLY i cell cells='' files='' bytes=0 comma body
  record_open pull_manifest/1
  record_text run_id "$RUN_ID"
  record_text commit "$RUN_COMMIT"
  record_int cells_expected "$1" || return
  record_int cells_done "$2" || return
  comma=''
  for cell in "${CELL_NAMES[@]}"; do
    cells+="$comma    {\"cell\": \"$cell\", \"state\": \"${CELL_STATE[$cell]}\", \"why\": \"${CELL_WHY[$cell]}\"}"
    comma=,$'\n'
  done
  comma=''
  for ((i = 0; i < ${#FILE_PATHS[@]}; i++)); do
    REPLY=${FILE_BYTES[i]}
    [[ -n $REPLY ]] || old_bytes "${FILE_PATHS[i]}"
    files+="$comma    {\"bytes\": $REPLY, \"sha256\": \"${FILE_SUMS[i]}\", \"path\": \"${FILE_PATHS[i]}\"}"
    comma=,$'\n'
    bytes=$((bytes + REPLY))
  done
  record_int files_total "${#FILE_PATHS[@]}" || return
  record_int bytes_total "$bytes" || return
  record_list cells "$cells"$'\n'
  record_list files "${files:+$files$'\n'}"
  body=$RECORD,$'\n'
  hash_text "$body" || return "$EX_COPY"
  RECORD=$body'  "self_sha256": "'$REPLY'"'
  record_close
  replace_file "$B/PULL_MANIFEST.json" "$RECORD" || return
  hash_text "$RECORD" || return "$EX_COPY"
  body=$REPLY
  hash_file "$B/PULL_MANIFEST.json" && [[ $REPLY == "$body" ]] || { log "$B/PULL_MANIFEST.json does not read back" && return "$EX_COPY"; }
  MANIFEST_DIGEST=$body
}

usage() {
  cat <<'USAGE'
usage: aggregate_to_fs.sh [--rehash] [--except CELL=WHY]... [--only CELL,...]

Makes the bundle on the durable tier whole and says what is in it. For each cell of the run's queue: one that is done is
looked at again, one that finished but was not copied is copied now (the run itself is not repeated). Then SHA256SUMS and,
last, PULL_MANIFEST.json are written anew from the records there; both are read back. Nothing is ever deleted.

--rehash           read every file again; without it a file whose size, inode and times are unchanged is believed
--except CELL=WHY  this cell need not be done; the reason goes into the manifest
--only CELL,...    judge by these cells alone: 0 where each of them is done or excepted; the manifest still tells of all

exit codes: 0 every cell is done or excepted, and every file is what its record says; 1 some cell is not (the manifest
names it and holds the finished ones); 64 usage, 65 a file or record of the bundle does not match, 69 no run here, 73 no room,
74 the durable tier is not there or a copy failed, 75 another box has this run, 78 configuration
USAGE
}

parse_words() { # <words...>    sets REHASH EXCEPT_CELLS
  REHASH=false EXCEPT_CELLS=() ONLY=''
  while (($# > 0)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --rehash) REHASH=true ;;
      --except)
        shift
        [[ ${1-} == ?*=*[![:space:]]* ]] || bad_usage "--except wants CELL=WHY"
        # A cell's name may hold '=': the longest name of the queue that fits is taken later.
        EXCEPT_CELLS+=("$1")
        ;;
      --only)
        shift
        [[ -n ${1-} ]] || bad_usage "--only wants CELL,..."
        ONLY=$1
        ;;
      *) bad_usage "'$1' is not known" ;;
    esac
    shift
  done
}
bad_usage() { # <why>
  printf '%s: %s\n' "$PROG" "$1" >&2
  usage >&2
  exit "$EX_USAGE"
}

# The run that lies here. Aggregating begins none: without a run there is nothing to bundle.
find_this_run() {
  local REPLY
  [[ -d $D || -d $B ]] || refuse "$EX_MISSING" "run $RUN" "there is no $D" "start the run first, or set RUN and DATA_DIR to it"
  [[ -d $D/state ]] || mkdir -p -- "$D/state" 2>/dev/null || refuse_write "$EX_NOROOM" "$D/state" "the folder cannot be made" data
  find_run || refuse "$EX_MISSING" "run $RUN" "$D/run.json is not there" "start the run first, or set RUN and DATA_DIR to it"
  mirror_run
  [[ -w $B ]] || can_write "$B" || refuse_write "$EX_COPY" "$B" "nothing can be written there" durable
  # shellcheck disable=SC2154 # read_record sets R_<member>
  RUN_ID=$R_run_id RUN_COMMIT=$R_commit
  this_host
  # shellcheck disable=SC2154 # as above
  [[ $R_host == "$REPLY" ]] ||
    refuse "$EX_BUSY" "run $RUN_ID" "box $R_host has it, and this is $REPLY" "if that box is gone, take it over first: run_queue.sh --adopt"
}

# Every cell that is to be in the manifest: the roster, then records and earlier manifest, so that nothing is shortened.
gather_cells() {
  local cell file
  declare -gA CELL_STATE CELL_WHY
  read_queue "$D/queue.tsv"
  CELL_NAMES=("${QUEUE_NAMES[@]}")
  read_old_manifest
  for cell in "${CELL_NAMES[@]}"; do set_cell "$cell" pending ''; done
  for file in "$B"/records/*.json; do
    cell=${file##*/}
    add_cell "${cell%.json}" 'has a record here, and is not in the queue'
  done
  for cell in ${OLD_CELLS[@]+"${OLD_CELLS[@]}"}; do
    add_cell "$cell" 'an earlier manifest has it; it is not in the queue and has no record'
  done
}
add_cell() { # <cell> <why>
  [[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}$ && -z ${CELL_STATE[$1]-} ]] || return 0
  CELL_NAMES+=("$1")
  set_cell "$1" unknown "$2"
}

# Is some run_one at this cell right now, here or on another box? Then its copy is its own affair.
cell_is_live() { # <cell>
  last_claim "$1"
  [[ $CLAIM_STATE == live || $CLAIM_STATE == foreign || $CLAIM_STATE == unread ]]
}

# State of a cell from the records, and the missing sync done where there is one.
settle_cell() { # <cell>
  local REPLY cell=$1 rc=0 said=0
  check_bundled "$cell" || rc=$?
  ((rc != 0)) || { set_cell "$cell" 'done' '' && return 0; }
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || said=$?
  case $said:${R_state-} in
    1:*)
      if ((rc != 1)); then
        set_cell "$cell" unknown "its record in $B/records does not hold"
      elif [[ -d $D/claims/$cell ]]; then
        set_cell "$cell" unknown 'it was begun, and has no record'
      fi
      return 0
      ;;
    2:*)
      record_fault "$D/state/$cell.json"
      set_cell "$cell" unknown "its record in $D/state: $REPLY" && return 0
      ;;
    0:unsynced | 0:done) ;;
    0:running)
      if ! cell_is_live "$cell"; then
        set_cell "$cell" unknown 'it was running, and its process is gone'
      elif [[ $CLAIM_STATE == unread ]]; then
        set_cell "$cell" unknown "$CLAIM_SAID, not a claim"
      else
        set_cell "$cell" running ''
      fi
      return 0
      ;;
    *) set_cell "$cell" "$R_state" "${R_why-}" && return 0 ;;
  esac
  if cell_is_live "$cell"; then
    set_cell "$cell" unsynced 'its runner is copying it now'
    return 0
  fi
  sync_again "$cell"
}
sync_again() { # <cell>
  local rc=0
  log "cell $1 is not in the bundle: copying it"
  sync_cell "$1" >&2 || rc=$?
  if ((rc == 0)); then
    set_cell "$1" 'done' ''
    event 'done' "$1" - 'copied by aggregate'
  else
    set_cell "$1" unsynced "the copy failed with $rc"
  fi
}

# A file that is not as its record says is copied again from the source, if that still is what was recorded.
mend_cells() {
  local path cell
  local -A tried=()
  for path in "${!BAD[@]}"; do
    log "on the durable tier $path is not what its record says: ${BAD[$path]}"
    cell=${path#"$B/final_ckpts/"}
    cell=${cell%%/*}
    [[ -z ${tried[$cell]-} && ${CELL_STATE[$cell]} == 'done' ]] || continue
    tried[$cell]=1
    if [[ -d $D/cells/$cell ]] && ! cell_is_live "$cell" && sync_cell "$cell" >&2; then
      log "cell $cell: mended from $D/cells/$cell"
    else
      set_cell "$cell" unknown "a file in the bundle is not what its record says: ${path##*/}"
    fi
  done
}

apply_exceptions() {
  local word cell best
  for word in ${EXCEPT_CELLS[@]+"${EXCEPT_CELLS[@]}"}; do
    best=''
    for cell in "${CELL_NAMES[@]}"; do
      if [[ $word == "$cell="* ]] && ((${#cell} > ${#best})); then best=$cell; fi
    done
    [[ -n $best ]] || refuse "$EX_CONFIG" "--except ${word//[[:cntrl:]]/?}" "no cell of the queue has that name" "look at $D/queue.tsv"
    if [[ ${CELL_STATE[$best]} == 'done' ]]; then
      log "cell $best is done: the exception is not needed"
    else
      set_cell "$best" excepted "${word#"$best="}"
      event override "$best" - "excepted: ${word#"$best="}"
    fi
  done
}

# Count, name what is missing, and only with nothing missing say that it is whole.
report() { # <expected> <done> <excepted>    returns: 0, 1 or 65
  local cell n=0
  if ((${#BAD[@]} > 0)); then
    log "${#BAD[@]} files of the bundle are not what their records say; $B/PULL_MANIFEST.json still lists them"
    return "$EX_INTEGRITY"
  fi
  for cell in "${CELL_NAMES[@]}"; do
    [[ ${CELL_STATE[$cell]} != 'done' && ${CELL_STATE[$cell]} != excepted ]] || continue
    # Of a part only its own cells are asked for; the others stand in the manifest with their states.
    [[ -z $ONLY || ,$ONLY, == *",$cell,"* ]] || continue
    ((n++ > 0)) || log "$2 of $1 cells are done, $3 excepted; the others${ONLY:+ of --only}:"
    ((n <= 20)) || { log "... and more; see $B/PULL_MANIFEST.json" && break; }
    log "  $cell: ${CELL_STATE[$cell]} ${CELL_WHY[$cell]}"
  done
  ((n == 0)) || return "$EX_FAIL"
  if (($2 == 0)); then
    log "no cell is done, so there is nothing to bundle"
    return "$EX_COPY"
  fi
  claim "$2 of $1 cells done, $3 excepted, ${#FILE_PATHS[@]} files checked${ON_THIS_BOX}${ONLY:+, a part: $ONLY}, digest ${MANIFEST_DIGEST:0:12}" "bundle of run $RUN" "$B/PULL_MANIFEST.json"
}

main() {
  local cell done=0 excepted=0
  parse_words "$@"
  ON_THIS_BOX=''
  self_dir
  run_places
  [[ -n $DURABLE_DIR ]] || ON_THIS_BOX=', exported, on this box only'
  prove_durable
  find_this_run
  gather_cells
  for cell in "${CELL_NAMES[@]}"; do settle_cell "$cell"; done
  take_lists || refuse "$?" "the bundle" "a digest list cannot be read" "look at $B/records; a good copy may lie in $D/state"
  verify_files "$D/state/.aggregate" "$REHASH"
  if ((${#BAD[@]} > 0)); then
    mend_cells
    verify_files "$D/state/.aggregate" false
  fi
  apply_exceptions
  for cell in ${ONLY//,/ }; do
    [[ -n ${CELL_STATE[$cell]-} ]] || refuse "$EX_CONFIG" "--only ${cell//[[:cntrl:]]/?}" "no cell of the queue has that name" "look at $D/queue.tsv"
  done
  for cell in "${CELL_NAMES[@]}"; do
    case ${CELL_STATE[$cell]} in
      'done') done=$((done + 1)) ;;
      excepted) excepted=$((excepted + 1)) ;;
    esac
  done
  carry_logs || refuse "$EX_COPY" "$B" "events.tsv, queue.tsv or NEGATIVE_RESULTS.tsv cannot be copied there" "look at the durable tier: room, rights"
  write_sums || refuse "$EX_COPY" "$B/SHA256SUMS" "it cannot be written" "look at the durable tier: room, rights"
  write_manifest "${#CELL_NAMES[@]}" "$done" || refuse "$EX_COPY" "$B/PULL_MANIFEST.json" "it cannot be written" "look at the durable tier: room, rights"
  report "${#CELL_NAMES[@]}" "$done" "$excepted"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi
