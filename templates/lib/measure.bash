# lib/measure.bash: what a trial takes: time of a step, memory, size (bash 3.2, BSD userland too).
# needs: exit log steps
# reads: SMOKE_WORK SMOKE_LOG SMOKE_PID

# Milliseconds of a clock that nobody sets, where there is one, into REPLY.
now_ms() {
  local up
  if { read -r up _ </proc/uptime; } 2>/dev/null && [[ $up =~ ^([0-9]+)[.]([0-9][0-9])$ ]]; then
    REPLY=$((BASH_REMATCH[1] * 1000 + 10#${BASH_REMATCH[2]} * 10))
  else
    REPLY=$((SECONDS * 1000))
  fi
}

in_time() { # <limit in those milliseconds>    returns: 1 where it is past
  now_ms
  ((REPLY < $1))
}

# How many lines the log had, and when: a line in the file times whenever it grew. The log is open as 3.
note_lines() { # reads and sets: LINES_SEEN
  local line before=$LINES_SEEN REPLY
  while IFS= read -r line <&3; do LINES_SEEN=$((LINES_SEEN + 1)); done
  ((LINES_SEEN > before)) || return 0
  now_ms
  printf '%s %s\n' "$REPLY" "$LINES_SEEN" >>"$SMOKE_WORK/times"
}

# The memory of the attempt's group: the largest sum of what its processes held, in kB, into the file peak. Where ps cannot say
# it, the file stays away.
note_memory() { # reads and sets: PEAK
  local now
  now=$({ ps -A -o pgid= -o rss= || ps -o pgid,rss; } 2>/dev/null | awk -v g="$SMOKE_PID" '$1 == g && $2 ~ /^[0-9]+$/ {n += $2} END {printf "%d", n}') || now=0
  ((now > PEAK)) || return 0
  PEAK=$now
  printf '%s\n' "$PEAK" >"$SMOKE_WORK/peak"
}

# Beside an attempt, for so long: lines ten times a second, memory at first and then each second.
watch_attempt() { # <seconds>
  local REPLY until n=0 LINES_SEEN=0 PEAK=0
  now_ms
  until=$((REPLY + $1 * 1000))
  exec 3<"$SMOKE_LOG"
  while in_time "$until"; do
    # Whoever waits for the attempt was killed: nobody would record how it ends.
    kill -0 $$ 2>/dev/null || break
    note_lines
    ((n > 3 && n % 10 > 0)) || note_memory
    n=$((n + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
}

# What was measured of the attempt that has ended: MEASURED_STEP_MS, the time of one step (empty where its log named fewer than
# two, or they came too fast to be told apart), and MEASURED_TOTAL, how many steps it said that there are ("epoch 2/40").
measure_steps() {
  local REPLY kind end
  MEASURED_STEP_MS='' MEASURED_TOTAL=''
  # What came between the last look and the end.
  now_ms
  end="$REPLY 1000000000"
  kind=$(smoke_steps "$SMOKE_LOG" kind)
  read -r MEASURED_STEP_MS MEASURED_TOTAL < <(smoke_steps "$SMOKE_LOG" "$kind" lines | awk '
    FNR == NR { ms[++n] = $1; upto[n] = $2; next }
    {
      while (i < n && upto[i + 1] < $1) i++
      at = ms[i + 1]
      if ($3 + 0 > total) total = $3 + 0
      # Steps that begin anew: only those of the first epoch.
      if (!got) { got = 1; first = $2; start = at; whole = int($2 / 1000000000) }
      else if ($2 > first && int($2 / 1000000000) == whole && at > start) each = (at - start) / ($2 - first)
    }
    END { printf "%s %s\n", (each ? int(each + 0.5) : "-"), (total ? total : "-") }' <(
    cat -- "$SMOKE_WORK/times" 2>/dev/null
    printf '%s\n' "$end"
  ) -) || :
  MEASURED_STEP_MS=${MEASURED_STEP_MS#-} MEASURED_TOTAL=${MEASURED_TOTAL#-}
}

# What the attempt left in CELL_DIR. Sets MEASURED_BYTES and MEASURED_FILES.
measure_room() {
  read -r MEASURED_BYTES MEASURED_FILES < <(find "$SMOKE_WORK/cell" -type f -exec wc -c {} + 2>/dev/null |
    awk '{ if ($2 == "total" && NF == 2) next; b += $1; n++ } END { printf "%.0f %d\n", b, n }') || MEASURED_BYTES='' MEASURED_FILES=''
}
