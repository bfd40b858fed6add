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
