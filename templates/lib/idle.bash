# lib/idle.bash: waiting that costs no process and leaves none behind.
# needs:

# Wait without a process: a read that nobody answers. Opens its descriptor at first use.
idle() { # <seconds, also a fraction>
  [[ -n ${IDLE_FD-} ]] || exec {IDLE_FD}<> <(:)
  # Its status is always that of a time-out.
  read -r -t "$1" -u "$IDLE_FD" || :
}
