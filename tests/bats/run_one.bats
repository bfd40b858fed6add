#!/usr/bin/env bats
# run_one.sh: one cell to a checked result.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

@test "a cell runs, is copied, read back and committed; again it is not run (S47, S50, T2)" {
  cell a ok
  one a
  [[ $status -eq 0 && $output == *'cell a: synced (receipt '* ]]
  is a 'done'
  bundled a
  [[ $(member "$D/state/a.json" files_sha256) == "$(sha256sum <"$B/records/a.sha256" | cut -d' ' -f1)" ]]
  one a
  [[ $status -eq 0 && $output == *'done already'* && $(starts a) -eq 1 ]]
}

@test "required stays and prune goes only behind the commit (S107, T4)" {
  cell a ok
  cell z zero
  one a
  [[ ! -e $D/cells/a/latest.pth && -s $D/cells/a/best.pth ]]
  one z
  [[ $status -eq 1 && -s $D/cells/z/latest.pth && ! -e $B/final_ckpts/z ]]
  is z failed no_evidence
}

@test "the trainer's own code passes through, and the record tells (case 17, case 18, F64)" {
  cell f fail 7
  cell n nothing
  cell l lies
  cell k link
  one f
  [[ $status -eq 7 ]]
  is f failed bug
  [[ $(member "$D/state/f.json" exit) == 7 ]]
  for c in n l k; do
    one $c
    [[ $status -eq 1 ]]
    is $c failed no_evidence
  done
}

@test "DURABLE_DIR empty is pull-only: exported, never synced; nothing is made elsewhere (T2, T3)" {
  cell a ok
  DURABLE_DIR='' one a
  [[ $status -eq 0 && $output == *'exported, on this box only'* && $output != *synced* ]]
  [[ -s $D/final_ckpts/a/best.pth && -z $(ls "$DURABLE_DIR") ]]
  DURABLE_DIR=off-box one a
  refused 78 'not absolute'
}

@test "each attempt has its own log, a second one resumes by the identical command (S51, S104, T6)" {
  cell a 'once "ValueError: no" 5'
  one a
  [[ $status -eq 5 ]]
  one a
  [[ $status -eq 0 ]]
  grep -q 'ValueError: no' "$D/logs/a/attempt-001.log"
  grep -q 'attempt 2 resume 1' "$D/logs/a/attempt-002.log"
  [[ $(member "$D/state/a.json" attempt) == 2 ]]
  printf 'a\tbash trainer.sh ok other\n' >"$Q"
  rm "$B/records/a.json"
  one a
  refused 77 'its command was changed'
}

@test "files of no attempt of this run go to quarantine, not into the result (case 18, F40)" {
  cell a nothing
  mkdir -p "$D/cells/a"
  echo old >"$D/cells/a/best.pth"
  echo '{}' >"$D/cells/a/metrics.json"
  one a
  [[ $status -eq 1 ]]
  is a failed no_evidence
  [[ $(cat "$D/quarantine/a--001/best.pth") == old ]]
}

@test "a cell gets what the contract names and none of our descriptors (S49, S53, case 30, case 37, case 43)" {
  cell a env
  exec 7<"$Q"
  PYTHONUNBUFFERED='' one a
  exec 7<&-
  [[ $status -eq 0 ]]
  env=$D/cells/a/env
  for line in CELL_NAME=a CELL_INDEX=0 "CELL_DIR=$D/cells/a" CELL_ATTEMPT=1 CELL_RESUME=0 PY=python3 PYTHONUNBUFFERED= CUDA_DEVICE_ORDER=PCI_BUS_ID "SCRATCH=$SCRATCH/gpu-runbook/r" "TMPDIR=$SCRATCH/gpu-runbook/r/t/0"; do
    grep -qxF "$line" "$env" || { echo "no $line" >&2 && return 1; }
  done
  # The hub's libraries use XDG_CACHE_HOME/huggingface then, which is on scratch.
  not grep -q '^HF_HOME=' "$env"
  for name in TORCH_HOME TRITON_CACHE_DIR XDG_CACHE_HOME WANDB_CACHE_DIR WANDB_DIR MPLCONFIGDIR CUDA_CACHE_PATH; do
    grep -qE "^$name=$BATS_TEST_TMPDIR/(scratch|data)/" "$env"
  done
  [[ $(sort -n "$D/cells/a/fds" | awk '$1 > 3 && $1 != 255' | wc -l) -eq 0 ]]
}

@test "a scheduler's GPUs and order are left alone (case 33)" {
  cell a env
  CUDA_VISIBLE_DEVICES=3 CUDA_DEVICE_ORDER=FASTEST_FIRST one a
  grep -qx CUDA_VISIBLE_DEVICES=3 "$D/cells/a/env"
  grep -qx CUDA_DEVICE_ORDER=FASTEST_FIRST "$D/cells/a/env"
}

@test "a needed GPU that is not there refuses before the claim (S47)" {
  cell a ok
  sed 's/^readonly NEED_GPUS=0/readonly NEED_GPUS=1/' "$BOX/run_one.sh" >"$BATS_TEST_TMPDIR/run_one.sh"
  box_path_only
  run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" a
  refused 77 'GPUs' 'nvidia-smi'
  [[ -z $(ls "$D/claims/a" 2>/dev/null) ]]
}

@test "usage, an unknown cell, a bad name and a missing queue are refused; --help stands alone" {
  cell a ok
  run --separate-stderr bash "$BOX/run_one.sh"
  [[ $status -eq 64 ]]
  one a b
  [[ $status -eq 64 ]]
  one nope
  refused 78 'it is not in'
  one ../x
  refused 78 'a name is'
  Q=/nowhere one a
  refused 69 'queue /nowhere'
  cp "$BOX/run_one.sh" "$HOME/"
  run --separate-stderr env -i PATH="$PATH" bash "$HOME/run_one.sh" --help
  [[ $status -eq 0 && $output == *'exit codes'* ]]
}

@test "the GPU's name and driver stand in the record, by the pinned number; a GPU that is not free is said (case 33, X8)" {
  mkdir -p "$HOME/bin"
  printf '#!/bin/sh\necho "0, NVIDIA T4, 535.1, 15360, 3"\necho "1, NVIDIA L4, 550.54.15, 23034, 3"\n' >"$HOME/bin/nvidia-smi"
  chmod +x "$HOME/bin/nvidia-smi"
  sed 's/^readonly NEED_GPUS=0/readonly NEED_GPUS=1/' "$BOX/run_one.sh" >"$BATS_TEST_TMPDIR/run_one.sh"
  cell a ok
  PATH=$HOME/bin:$PATH CUDA_VISIBLE_DEVICES=1 run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" a
  [[ $status -eq 0 && $(member "$B/records/a.json" gpu) == 'NVIDIA L4, 550.54.15' ]]
  [[ $stderr != *'not free'* ]]
  # 500 MiB are free; more is said, of the cell's own GPUs only (X8).
  printf '#!/bin/sh\necho "0, NVIDIA T4, 535.1, 15360, 900"\necho "1, NVIDIA L4, 550.54.15, 23034, 500"\necho "2, NVIDIA L4, 550.54.15, 23034, 501"\n' >"$HOME/bin/nvidia-smi"
  cell c ok
  PATH=$HOME/bin:$PATH CUDA_VISIBLE_DEVICES=1,2 run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" c
  [[ $status -eq 0 && $stderr == *'GPU 2 is not free: 501 MiB'* && $stderr != *'GPU 1 is'* && $stderr != *'GPU 0 is'* ]]
  printf '#!/bin/sh\necho "No devices were found"\n' >"$HOME/bin/nvidia-smi"
  cell b ok
  PATH=$HOME/bin:$PATH run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" b
  refused 77 'GPUs' 'No devices were found'
}

# --- the second runner, stale claims ---

@test "a live claim refuses and names the holder; a recycled pid and an old boot are stale (case 45, T17)" {
  cell a ok
  one a && rm "$D/claims/a/001" "$D/state/a.json" "$B/records/a.json"
  read -r _ boot _ < <(printf '%s %s x\n' "$(cat /proc/sys/kernel/hostname)" "$(cat /proc/sys/kernel/random/boot_id)")
  host=$(cat /proc/sys/kernel/hostname)
  ticks=$(sed 's/.*) //' /proc/$$/stat | cut -d' ' -f20)
  echo "$host $boot $$ $ticks" >"$D/claims/a/001"
  one a
  refused 75 "process $$"
  echo "$host $boot $$ $((ticks + 1))" >"$D/claims/a/001"
  one a
  [[ $status -eq 0 && -d /proc/$$ ]]
  [[ $(member "$D/state/a.json" attempt) == 2 ]]
}

@test "a claim of another box is foreign until --adopt; an empty one is live for a minute (S47, case 45)" {
  cell a ok
  cell b ok
  one b
  mkdir -p "$D/claims/a"
  echo "otherbox 1-2 3 4" >"$D/claims/a/001"
  one a
  refused 75 'otherbox' '--adopt'
  : >"$D/claims/a/002"
  one a
  [[ $status -eq 75 ]]
  touch -d '2 minutes ago' "$D/claims/a/002"
  one a
  [[ $status -eq 0 ]]
  mkdir -p "$D/claims/c"
  echo "otherbox 1-2 3 4" >"$D/claims/c/001"
  cell c ok
  one --adopt c
  [[ $status -eq 0 ]]
}

@test "of two runners at once one runs and the other is busy, time after time (T17)" {
  local i
  for i in 1 2 3 4 5 6 7 8; do
    cell "c$i" slow 1 0.2
    bash "$BOX/run_one.sh" --queue "$Q" "c$i" >/dev/null 2>&1 3>&- &
    one=$!
    bash "$BOX/run_one.sh" --queue "$Q" "c$i" >/dev/null 2>&1 3>&- &
    two=$!
    a=0 b=0
    wait $one || a=$?
    wait $two || b=$?
    [[ "$a $b" == '0 75' || "$a $b" == '75 0' ]] || { echo "round $i: $a $b" >&2 && return 1; }
    [[ $(starts "c$i") -eq 1 ]]
  done
  [[ ! -e $D/DOUBLED ]]
}

@test "a killed run_one's trainer is ended before the next attempt begins: never two at once (T17)" {
  cell a slow 40 0.1
  bash "$BOX/run_one.sh" --queue "$Q" a >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 test -s "$D/cells/a/latest.pth"
  # All of them at once, as a memory killer or a person may: what watches the cell beside run_one too.
  for file in /proc/[0-9]*/stat; do
    { read -r stat <"$file"; } 2>/dev/null || continue
    [[ ${stat##*) } == ?" $pid "* ]] || continue
    child=${file#/proc/} && child=${child%/stat}
    if { tr '\0' ' ' <"/proc/$child/cmdline"; } 2>/dev/null | grep -q 'run_one[.]sh'; then kill -KILL "$child"; fi
  done
  kill -KILL $pid
  wait $pid 2>/dev/null || :
  cell_alive
  sed -i 's/slow 40 0.1/slow 40 0.1/' "$Q"
  bash "$BOX/run_one.sh" --queue "$Q" a >/dev/null 2>"$HOME/err" 3>&- &
  pid=$!
  wait_for 30 grep -q 'resume 1' "$D/logs/a/attempt-002.log"
  [[ ! -e $D/DOUBLED ]]
  grep -q 'left process' "$HOME/err"
  kill -TERM $pid
  wait $pid || [[ $? -eq 143 ]]
  nothing_alive
}

@test "without any limit too: run_one is killed, and its trainer is told and ends by itself (case 43, T17)" {
  cell a saves
  sed 's/^readonly WALL_S=[0-9]*/readonly WALL_S=0/; s/^readonly STALL_S=[0-9]*/readonly STALL_S=0/' "$BOX/run_one.sh" >"$BATS_TEST_TMPDIR/run_one.sh"
  bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" a >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 test -e "$D/cells/a/ready"
  kill -KILL $pid
  wait $pid 2>/dev/null || :
  wait_for 30 nothing_alive
  # It saved; nobody has recorded an end, so it is unknown, and it is not called a success.
  [[ -s $D/cells/a/stamp && $(state a) == running && ! -e $B/records/a.json ]]
}

@test "the highest memory of a cell that lived long enough stands in its record; a shorter one says null (X8)" {
  cell a ok
  printf 'b\ttext=$(head -c 60000000 /dev/zero | tr "\\0" x); read -r -t 2.5 <> <(:); echo {} >"$CELL_DIR/metrics.json"; echo w >"$CELL_DIR/best.pth"\n' >>"$Q"
  one a
  [[ $(member "$D/state/a.json" peak_memory_bytes) == null ]]
  one b
  [[ $status -eq 0 ]]
  peak=$(member "$B/records/b.json" peak_memory_bytes)
  ((peak > 50000000 && peak < 2000000000))
}

# --- signals ---

@test "TERM, INT and HUP to run_one alone reach the trainer within a second; stopped is preempted, not done (case 23, case 42)" {
  local signal
  # A background child, and all below a nohup, begin with INT or HUP ignored, and no bash can undo that: the tests may be run so.
  local fresh='import os, signal, sys
for one in (signal.SIGINT, signal.SIGHUP): signal.signal(one, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])'
  for signal in TERM INT HUP USR1; do
    cell "s$signal" saves
    "$PYTHON" -c "$fresh" bash "$BOX/run_one.sh" --queue "$Q" "s$signal" >/dev/null 2>&1 3>&- &
    pid=$!
    wait_for 30 test -e "$D/cells/s$signal/ready"
    sent=$EPOCHREALTIME
    kill "-$signal" $pid
    rc=0
    wait $pid || rc=$?
    stamp=$(cat "$D/cells/s$signal/stamp")
    ((${stamp/[.,]/} - ${sent/[.,]/} < 1000000))
    [[ $rc -eq $((128 + $(kill -l $signal))) ]]
    is "s$signal" preempted preempted
    [[ ! -e $B/records/s$signal.json ]]
  done
  nothing_alive
}

@test "a trainer that is deaf to TERM, and its daemon, are killed after the grace; nothing is left (case 21)" {
  cell a deaf
  sed 's/^\(readonly [A-Z_]*GRACE_S\)=[0-9]*/\1=1/' "$BOX/run_one.sh" >"$BATS_TEST_TMPDIR/run_one.sh"
  bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" a >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 test -e "$D/cells/a/ready"
  kill -TERM $pid
  # Not by wait alone: where nobody kills the trainer, that would never end.
  wait_for 30 not kill -0 $pid
  rc=0
  wait $pid || rc=$?
  [[ $rc -eq 143 ]]
  is a preempted preempted
  nothing_alive
}

@test "a platform's short grace binds its own signal alone: a limit, the queue's stop and a second signal leave the time of a save (case 79)" {
  local way pid
  mkdir "$BATS_TEST_TMPDIR/box"
  cp "$BOX"/* "$BATS_TEST_TMPDIR/box/"
  BOX=$BATS_TEST_TMPDIR/box
  sed -i 's/^readonly GRACE_S=.*/readonly GRACE_S=60/; s/^readonly SIGNAL_GRACE_S=.*/readonly SIGNAL_GRACE_S=2/; s/^readonly SIGNAL=.*/readonly SIGNAL=TERM/' "$BOX/run_one.sh"
  sed 's/^readonly WALL_S=.*/readonly WALL_S=1/' "$BOX/run_one.sh" >"$BOX/limited.sh"
  for way in platform twice limit queue; do
    : >"$Q"
    cell "$way" lingers
    case $way in
      queue) bash "$BOX/run_queue.sh" --queue "$Q" >/dev/null 2>"$HOME/$way" 3>&- & ;;
      limit) bash "$BOX/limited.sh" --queue "$Q" $way >/dev/null 2>"$HOME/$way" 3>&- & ;;
      *) bash "$BOX/run_one.sh" --queue "$Q" $way >/dev/null 2>"$HOME/$way" 3>&- & ;;
    esac
    pid=$!
    wait_for 30 test -e "$D/cells/$way/ready"
    [[ $way == limit ]] || kill -TERM $pid
    wait_for 30 test -e "$D/cells/$way/told"
    if [[ $way == twice ]]; then
      # Not while it still handles the first one: bash may count two as one.
      wait_for 30 grep -q 'has 2 s to save' "$HOME/$way"
      kill -TERM $pid
    fi
    if [[ $way == platform ]]; then
      wait_for 30 not kill -0 $pid
      [[ ! -e $D/cells/$way/best.pth ]]
      grep -q 'has 2 s to save' "$HOME/$way" || fail_with "$(<"$HOME/$way")"
      continue
    fi
    # Longer than the platform's limit, which would have killed it by then.
    sleep 2.5
    touch "$D/cells/$way/go"
    wait_for 30 not kill -0 $pid || fail_with "$way: $(<"$HOME/$way") $(ps -o pid,ppid,stat,args --forest -g $pid)"
    [[ -s $D/cells/$way/best.pth ]] || fail_with "$way: killed before it had saved: $(<"$HOME/$way")"
  done
  is limit failed stuck
  nothing_alive
}

@test "a daemon that a finished cell leaves behind is ended, and the cell is done (case 21, case 43)" {
  cell a daemon
  one a
  [[ $status -eq 0 && $stderr == *'left process'* ]]
  nothing_alive
}

@test "a signal that nobody explained is killed, TERM from outside is preempted (case 20)" {
  cell k die KILL
  cell t die TERM
  cell v die SEGV
  one k
  [[ $status -eq 137 ]]
  is k failed killed
  [[ $(why k) == *'cause unknown'* && $(member "$D/state/k.json" signal) == 9 ]]
  one t
  is t preempted preempted
  one v
  is v failed bug
}
