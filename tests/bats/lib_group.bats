#!/usr/bin/env bats
# lib/group: the watcher beside a cell.
load helper

setup() {
  common_setup
  PROG=test D=$BATS_TEST_TMPDIR/run CELL=a RUN_ID=r GRACE_S=1 WALL_S=0 STALL_S=0 ROUND=0
  CELL_DIR=$D/cells/a CELL_LOG=$D/logs/a/attempt-001.log
  mkdir -p "$CELL_DIR" "$D/logs/a"
  : >"$CELL_LOG"
  load_libs group
  # Stands for run_one, and ends when it is told of a limit.
  sleep 60 3>&- &
  MAIN=$!
  start_ticks "$MAIN"
  MY_TICKS=$REPLY
  look_memory() { :; }
}
teardown() {
  kill "$MAIN" 2>/dev/null || :
}
# A cell and its watcher, which has taken away the traps of the shell that it runs in. Prints how often it looked.
watched() (
  sleep 60 >/dev/null 3>&- &
  CELL_PID=$!
  watch_cell "$MAIN"
  kill "$CELL_PID" 2>/dev/null || :
  echo "$ROUND"
)
end_cell() {
  kill "$CELL_PID"
  wait "$CELL_PID" || :
}
told() { # of a limit
  local rc=0
  kill -TERM "$MAIN" 2>/dev/null || :
  wait "$MAIN" || rc=$?
  [[ $rc -eq $((128 + $(kill -l USR2))) ]]
}

@test "a clock that is set, or a box that sleeps, is no time of the cell: neither limit is reached by it (case 21, case 31)" {
  local jump
  WALL_S=300 STALL_S=200
  idle() {
    ROUND=$((ROUND + 1)) SECONDS=$((SECONDS + jump))
    ((ROUND < 4)) || end_cell
  }
  for jump in 5000 -5000; do
    [[ $(watched) -eq 4 ]]
  done
  not told
}

@test "a clock that is set back hides no sign of life: the stamp is made anew (case 25, case 31)" {
  STALL_S=100
  # The clock is set back in the first round; two of the others are longer than the limit, and each has a line in the log.
  idle() {
    ROUND=$((ROUND + 1))
    if ((ROUND == 1)); then
      SECONDS=$((SECONDS - 5000))
      touch -d '2 hours' "$D/logs/a/.alive"
    else
      SECONDS=$((SECONDS + 55))
      touch -d '1 minute' "$CELL_LOG"
    fi
    ((ROUND < 6)) || end_cell
  }
  [[ $(watched) -eq 6 ]]
  not told
}

@test "time that goes by as it should reaches the limits (case 21)" {
  WALL_S=100
  idle() {
    ROUND=$((ROUND + 1)) SECONDS=$((SECONDS + $1))
    ((ROUND < 30)) || end_cell
  }
  [[ $(watched) -ge 5 ]]
  told
}

@test "what is left of a cell has its seconds to end, whatever the clock is set to (case 42, T17)" {
  local jump
  find_cell_processes() { LEFT=('999999999 1'); }
  log() { :; }
  idle() {
    echo >>"$D/rounds"
    SECONDS=$((SECONDS + jump))
    (($(wc -l <"$D/rounds") < 200)) || exit 1
  }
  for jump in 100 -100; do
    : >"$D/rounds"
    (sweep_cell mark '' 2 1)
    [[ $(wc -l <"$D/rounds") -ge 40 ]]
  done
}
