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

# A person says that HOST is gone: its claims are dead from now on, also for calls without --adopt.
bury_host() { # <host>
  mkdir -p -- "$D/claims/.gone" && : >"$D/claims/.gone/${1//\//_}" || return "$EX_COPY"
  event adopt - - "claims of $1 are dead"
}

# Take the next attempt after CLAIM_N; what else must be on its disk before the cell begins is flushed with it. Sets ATTEMPT,
# CLAIM_FILE and MY_TICKS.
take_claim() { # <cell> [paths...]    returns: 0, 75 somebody was quicker, 73 it cannot be written, 74 it cannot be flushed
  local REPLY dir=$D/claims/$1 file line back=''
  shift
  [[ -d $dir ]] || mkdir -p -- "$dir" 2>/dev/null || return "$EX_NOROOM"
  ATTEMPT=$((CLAIM_N + 1))
  printf -v file '%s/%03d' "$dir" "$ATTEMPT"
  start_ticks $$ || return "$EX_MISSING"
  MY_TICKS=$REPLY
  this_host
  line=$REPLY
  this_boot_id
  line+=" $REPLY $$ $MY_TICKS"
  set -C
  { printf '%s\n' "$line" >"$file"; } 2>/dev/null || :
  set +C
  { IFS= read -r back <"$file"; } 2>/dev/null || :
  if [[ $back != "$line" ]]; then
    # Not there: no room or no right. There and empty: somebody is just writing it, or our own write found no room.
    [[ -s $file ]] || { [[ -e $file ]] && can_write "$dir"; } || return "$EX_NOROOM"
    return "$EX_BUSY"
  fi
  CLAIM_FILE=$file
  flush "$@" "$file" "$dir" || { withdraw_claim && return "$EX_COPY"; }
}

# A claim under which nothing was begun yet is as if it had never been.
withdraw_claim() {
  rm -f -- "$CLAIM_FILE"
}

# A tier that was mounted read-only, or became it, is no cell's affair: refused by its name, before anything is begun.
gate_write() { # reads: D B    refuses 73, 74
  [[ -w $D ]] || can_write "$D" || refuse_write "$EX_NOROOM" "$D" "nothing can be written there" data
  [[ $B == "$D" || -w $B ]] || can_write "$B" || refuse_write "$EX_COPY" "$B" "nothing can be written there" durable
}

# Can a line be written there at all?
can_write() { # <folder>
  local rc=0
  { printf 'probe\n' >"$1/.probe.$$"; } 2>/dev/null || rc=1
  rm -f -- "$1/.probe.$$" 2>/dev/null
  return "$rc"
}
