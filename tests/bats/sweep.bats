#!/usr/bin/env bats
# Crash sweep and failing commands: whatever is killed or fails at whatever moment, no cell is lost, doubled or falsely done.
# SWEEP=all tries every command of a run (make sweep); else some points, others each day. SWEEP_POINTS=n: so many.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

commands_of() { # <script and words…> : how many commands it runs
  CRASH_COUNT=$HOME/count BASH_ENV=$ROOT/tests/faults/crash_at.bash bash "$@" >/dev/null 2>&1
  cat "$HOME/count"
}
crash() { # <n> <script and words…>
  local n=$1
  shift
  CRASH_AT=$n BASH_ENV=$ROOT/tests/faults/crash_at.bash timeout 60 bash "$@" >/dev/null 2>&1 3>&- || :
}
# A moment after a crash: what is committed is whole.
nothing_false() {
  local file name
  for file in "$B"/records/*.json; do
    [[ -e $file ]] || continue
    name=${file##*/} && name=${name%.json}
    [[ $(member "$file" state) != 'done' ]] || bundled "$name" || return 1
  done
  [[ ! -e $D/DOUBLED ]]
}

@test "run_one killed before its n-th command: the next call ends well, nothing good is lost, none runs twice at once (S47, T9)" {
  local n all tried=0 committed
  cell a ok
  cell b ok
  bash "$BOX/run_one.sh" --queue "$Q" b >/dev/null 2>&1
  all=$(RUN=count commands_of "$BOX/run_one.sh" --queue "$Q" a)
  for n in $(points "$all" 12); do
    export RUN=n$n
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    crash "$n" "$BOX/run_one.sh" --queue "$Q" a
    nothing_false || { echo "point $n: false" >&2 && return 1; }
    committed=0
    ! bundled a 2>/dev/null || committed=$(starts a)
    one a
    [[ $status -eq 0 ]] && bundled a && [[ ! -e $D/DOUBLED ]] || { echo "point $n: $status $stderr" >&2 && return 1; }
    ((committed == 0)) || [[ $(starts a) -eq $committed ]] || { echo "point $n: run again though committed" >&2 && return 1; }
    tried=$((tried + 1))
    rm -rf "$D" "$B"
  done
  echo "# run_one: $tried of $all points tried" >&3
}

@test "a run_one that was told of its cell ahead of time, killed before its n-th command: the next call ends well, nothing is left of it (S47, S48, T9)" {
  local n all tried=0 committed
  cell a ok
  told() { printf '=%s\n' a 0 '' 1 '' 'bash trainer.sh ok' && echo 'go 00000000'; }
  all=$(RUN=count commands_of "$BOX/run_one.sh" --queue "$Q" --wait < <(told))
  for n in $(points "$all" 8); do
    export RUN=n$n
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    crash "$n" "$BOX/run_one.sh" --queue "$Q" --wait < <(told)
    nothing_false || { echo "point $n: false" >&2 && return 1; }
    committed=0
    ! bundled a 2>/dev/null || committed=$(starts a)
    queue
    [[ $status -eq 0 ]] && bundled a && [[ ! -e $D/DOUBLED ]] || { echo "point $n: $status $stderr" >&2 && return 1; }
    ((committed == 0)) || [[ $(starts a) -eq $committed ]] || { echo "point $n: run again though committed" >&2 && return 1; }
    [[ -z $(find "$D/state" "$B/records" -name '*.tmp') ]] || { echo "point $n: $(find "$D/state" "$B/records" -name '*.tmp')" >&2 && return 1; }
    tried=$((tried + 1))
    rm -rf "$D" "$B"
  done
  echo "# run_one, told: $tried of $all points tried" >&3
}

@test "run_queue killed before its n-th command: the next call ends well and no cell is doubled (S48, case 48, T17)" {
  local n all tried=0 again
  cell a ok
  cell b 'slow 2 0.05'
  cell c ok
  all=$(RUN=count commands_of "$BOX/run_queue.sh" --queue "$Q" --slots 2)
  for n in $(points "$all" 8); do
    export RUN=n$n
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    crash "$n" "$BOX/run_queue.sh" --queue "$Q" --slots 2
    nothing_false || { echo "point $n: false" >&2 && return 1; }
    # Its run_ones live on, and hold their cells until they are done.
    for again in 1 2 3 4 5 6 7 8 9 10; do
      queue --slots 2
      [[ $status -eq 75 ]] || break
      sleep 0.2
    done
    [[ $status -eq 0 ]] && bundled a && bundled b && bundled c && [[ ! -e $D/DOUBLED ]] || { echo "point $n: $status $stderr" >&2 && return 1; }
    tried=$((tried + 1))
    rm -rf "$D" "$B"
  done
  echo "# run_queue: $tried of $all points tried" >&3
}

@test "both killed at random moments: every cell ends well, once at a time (S47, S48, T17)" {
  local i tried=0 rounds=${SWEEP_RANDOM:-4}
  for ((i = 1; i <= rounds; i++)); do
    export RUN=r$i
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    : >"$Q"
    cell a 'slow 3 0.05'
    cell b ok
    bash "$BOX/run_queue.sh" --queue "$Q" >/dev/null 2>&1 3>&- &
    pid=$!
    sleep "0.$((RANDOM % 9))$((RANDOM % 10))"
    kill -KILL $pid 2>/dev/null || :
    # The run_one of this run too, by the folder in its words.
    for file in /proc/[0-9]*/cmdline; do
      if { tr '\0' ' ' <"$file"; } 2>/dev/null | grep -q "run_one.sh --queue $D/queue.tsv"; then
        one=${file#/proc/} && kill -KILL "${one%/cmdline}" 2>/dev/null || :
      fi
    done
    wait $pid 2>/dev/null || :
    nothing_false
    queue
    [[ $status -eq 0 ]] && bundled a && bundled b && [[ ! -e $D/DOUBLED ]] || { echo "round $i: $status $stderr" >&2 && return 1; }
    tried=$((tried + 1))
    rm -rf "$D" "$B"
  done
  echo "# $tried random moments tried" >&3
}

run_one_a() { timeout 60 bash "$BOX/run_one.sh" --queue "$Q" a; }
a_is_bundled() { bundled a && [[ ! -e $D/DOUBLED ]]; }

@test "each external command fails in turn, at each call: run_one never ends 0 or says success without the proof (case 27, case 28)" {
  cell a ok
  fails_in_turn run_one_a a_is_bundled 20
}
