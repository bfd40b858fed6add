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

# An output that is closed is none, and a reader that went away ends nobody. What is started has the usual PIPE.
open_outputs() {
  : 9>&2 || exec 2>/dev/null
  : 2>/dev/null 9>&1 || exec >/dev/null
  trap : PIPE
}

# What a trap has to say: the wait that it came into has its stderr turned away, so it is said behind that.
say_late() { # reads: LATE
  [[ -z ${LATE-} ]] || log "$LATE"
  LATE=''
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
