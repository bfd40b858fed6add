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
