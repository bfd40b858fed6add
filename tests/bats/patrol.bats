#!/usr/bin/env bats
# patrol.sh: one look, three answers, and never harm (S64 S66 S67 S73-S79 S82, F36-F39 F42 F51-F57, cases 80 81 84-87 89 90, T33-T37).

load helper
load sshd
load bundle_cells
# shellcheck disable=SC2154 # compile_job sets OUT

setup() {
  common_setup
  export RUN=r1 LOCAL_DIR=$BATS_TEST_TMPDIR/laptop
  BOX=$BATS_TEST_TMPDIR/box D=$BATS_TEST_TMPDIR/box/data/r1
  mkdir -p "$BOX/durable" "$D/box/current"
  L=$LOCAL_DIR/generic-ssh.r1
}
teardown() { sshd_stop; }

# The box's status.sh with an answer that a test chooses: name=value over a healthy run.
status_says() {
  local state=running planned=4 pending=1 running=1 done=2 unsynced=0 failed=0 preempted=0 unknown=0 progress=12 eta=100 session=alive why='' pair
  for pair in "$@"; do printf -v "${pair%%=*}" '%s' "${pair#*=}"; done
  cat >"$D/box/current/status.sh" <<STATUS
cat <<'JSON'
{
  "schema": "status/1",
  "run_id": "$RUN_ID",
  "state": "$state",
  "planned": $planned,
  "pending": $pending,
  "running": $running,
  "done": $done,
  "unsynced": $unsynced,
  "failed": $failed,
  "preempted": $preempted,
  "unknown": $unknown,
  "last_progress_s": $progress,
  "eta_s": $eta,
  "session": "$session",
  "bytes_free": 1000,
  "inodes_free": null,
  "host": "pod",
  "boot_id": "x",
  "why": "$why",
  "cells": [
    {"cell": "a", "state": "failed", "class": "bug", "attempt": 1, "why": "x"}
  ]
}
JSON
STATUS
}
# A command of the box that prints this and ends so.
box_command() { # <name> <status> <text>
  printf '#!/bin/bash\nprintf "%%s\\n" %q\nexit %s\n' "$3" "$2" >"$BOX_BIN/$1"
  chmod +x "$BOX_BIN/$1"
}
patrol() {
  compile_job generic-ssh demo
  "$OUT/local/patrol.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable" "$@"
}
look() { # [words…]
  run --separate-stderr patrol "$@"
}
verdict() { # <status> <word>
  [[ $status -eq $1 && ${lines[0]} == *" generic-ssh.r1: $2;"* ]] || fail_with "not $2"
}
calm_room() { # disks that are neither full nor another test's
  box_command df 0 $'Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 100000000 10000000 90000000 10% /x'
}

@test "patrol: healthy and done are 0, and there is always a line (S82)" {
  sshd_start
  calm_room
  status_says
  look
  verdict 0 healthy
  [[ ${lines[0]} == *'done 2/4 running 1 pending 1 failed 0; progress 12 s ago'* && ${lines[0]} == *'data.bytes=10%'* ]]
  status_says state=success running=0 pending=0 'done'=4 session=gone
  look
  verdict 0 'done'
  look --json
  [[ $status -eq 0 ]]
  "$PYTHON" -c 'import json, sys; assert json.loads(sys.argv[1])["verdict"] == "done"' "$output"
  # F44: a proof of a part is told as one.
  status_says state=success running=0 pending=3 'done'=1 session=gone why='a part only: 1 cells'
  look
  [[ $status -eq 0 && $output == *'a part only: 1 cells'* ]] || fail_with part
}

@test "patrol: nothing running is never healthy; ended without success is failed (T33, F55 F56)" {
  sshd_start
  calm_room
  status_says state=idle running=0 session=gone
  look
  verdict 1 escalate
  status_says state=failed running=0 session=gone why='cell x failed'
  printf '{\n  "schema": "formal_failure/1",\n  "stage": "queue",\n  "remedy": "read the log, then start",\n  "ended": "2026-08-03T14:15:00Z"\n}\n' >"$D/FORMAL_FAILURE.json"
  # Case 129: the machine is kept, and so is its price in view.
  PRICE_PER_HOUR=0.79 look
  verdict 1 escalate
  [[ $output == *'FAILED, meter running since 2026-08-03T14:15:00Z at 0.79 an hour: cell x failed'* && $output == *'stage queue, remedy read the log, then start'* && $output != *'power_off'* ]]
  status_says state=lost session=gone why='boot id changed'
  look
  verdict 1 escalate
  status_says state=running running=0 session=gone
  look
  verdict 1 escalate
  status_says failed=1
  look
  verdict 1 escalate
  status_says unsynced=1
  look
  verdict 1 escalate
}

@test "patrol: alive without progress is stalled; dates in the future and unknown are not known (case 87, T37)" {
  sshd_start
  calm_room
  status_says progress=36000
  look
  verdict 1 escalate
  [[ $output == *'no progress for 36000 s'* ]]
  status_says progress=-5
  look
  verdict 69 unknown
  status_says progress=null
  look
  verdict 69 unknown
  status_says state=unknown session=unknown
  look
  verdict 69 unknown
}

@test "patrol: a run that was another box's names the word for going on here (case 131 F23)" {
  sshd_start
  calm_room
  status_says state=unknown 'why=it was running on vm, and this is pod: look there'
  look
  verdict 69 unknown
  [[ ${lines[0]} == *'look there; if that box is gone for good: formal_run.sh start there (P3.2) with --adopt'* ]] || fail_with 'no way on'
}

@test "patrol: not reached, wrong key, cut output, remote 255: not known, and nothing is changed (case 89)" {
  sshd_start
  calm_room
  status_says
  look
  cp "$L/patrol.json" "$BATS_TEST_TMPDIR/before"
  # The remote shell dies before the end.
  printf '#!/bin/bash\nkill -9 $PPID\n' >"$BOX_BIN/date"
  chmod +x "$BOX_BIN/date"
  look
  verdict 69 unknown
  rm "$BOX_BIN/date"
  printf 'exit 255\n' >"$BOX_HOME/.bashrc"
  look
  verdict 69 unknown
  rm "$BOX_HOME/.bashrc"
  sshd_new_key
  look
  verdict 69 unknown
  [[ ${lines[0]} == *'host key'* ]]
  sshd_stop
  look
  verdict 69 unknown
  [[ ${lines[0]} == *'does the platform'*'at which address (P1.3)?'* ]] || fail_with 'it does not say where to look'
  cmp "$L/patrol.json" "$BATS_TEST_TMPDIR/before"
}

@test "patrol: silence after a success that was seen, with its power-off, is done; otherwise not known (F57)" {
  sshd_start
  calm_room
  mkdir -p "$BOX/durable/r1"
  printf '{\n  "schema": "formal_success/1",\n  "power_off": true\n}\n' >"$BOX/durable/r1/FORMAL_SUCCESS"
  status_says state=success running=0 pending=0 'done'=4 session=gone
  look
  verdict 0 'done'
  sshd_stop
  look
  verdict 0 'done'
  [[ ${lines[0]} == *'collect the bundle'* ]]
  sed -i 's/"power_off": true/"power_off": false/' "$L/patrol.json"
  look
  verdict 69 unknown
  # Another run is known by now, or this one was started again: the old success explains nothing.
  sed -i 's/"power_off": false/"power_off": true/' "$L/patrol.json"
  printf '{\n  "schema": "box/1",\n  "run_id": "20200101T000000Z-00000000",\n  "profile": "x",\n  "host": "x",\n  "instance": "",\n  "host_key": ""\n}\n' >"$L/box.json"
  look
  verdict 69 unknown
  rm "$L/box.json"
  sshd_start
  calm_room
  status_says
  look
  verdict 0 healthy
  sshd_stop
  look
  verdict 69 unknown
}

@test "patrol: a GPU query that hangs, also against TERM, ends the look in time and is UNKNOWN (case 80)" {
  sshd_start
  calm_room
  status_says
  printf '#!/bin/bash\ntrap "" TERM INT HUP\necho $$ >%q\nwhile :; do sleep 600; done\n' "$BATS_TEST_TMPDIR/hung" >"$BOX_BIN/nvidia-smi"
  chmod +x "$BOX_BIN/nvidia-smi"
  look
  verdict 0 healthy
  [[ ${lines[0]} == *'gpu=UNKNOWN(timeout)'* ]]
  # Nothing of the look is left behind.
  wait_for 30 bash -c '! kill -0 "$1"' gone "$(<"$BATS_TEST_TMPDIR/hung")"
}

@test "patrol: what a GPU does not tell is UNKNOWN, never idle (case 81)" {
  local text
  sshd_start
  calm_room
  status_says
  for text in '[N/A], [N/A], [N/A], [N/A], [N/A]' '0, [Not Supported], 10, 20, 30' '0, ERR!, ERR!, 24, 3' '0, [Unknown Error], 1, 2, 3' \
    'Failed to initialize NVML: Driver/library version mismatch' 'No devices were found' '' '0, 87' '0, 87, 10, 20, N/A' 'Field "x" is not a valid field' \
    '  MIG 1g.5gb     Device  0:' '0, 50 %, 1 MiB, 2 MiB, 3'; do
    box_command nvidia-smi 0 "$text"
    look
    verdict 0 healthy
    [[ ${lines[0]} == *UNKNOWN* && ${lines[0]} != *'=0%'* ]] || fail_with "$text"
  done
  box_command nvidia-smi 0 $'0, 87, 10000, 24000, 61\n1, 0, 1, 24000, 30'
  look
  [[ ${lines[0]} == *'gpu0=87%,10000/24000MB,61C gpu1=0%,1/24000MB,30C'* ]]
  box_command nvidia-smi 9 'NVML error'
  look
  [[ ${lines[0]} == *'gpu=UNKNOWN(status 9)'* ]]
}

@test "patrol: a dead mount is UNKNOWN for its own column, the others are filled (case 84)" {
  sshd_start
  status_says
  # Durable does not answer; the rest does.
  cat >"$BOX_BIN/df" <<'SHIM'
#!/bin/bash
[[ $* != *durable* ]] || exec sleep 600
printf 'Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 100000000 10000000 90000000 10%% /x\n'
SHIM
  chmod +x "$BOX_BIN/df"
  look
  verdict 69 unknown
  [[ ${lines[0]} == *'durable.bytes=UNKNOWN'* && ${lines[0]} == *'data.bytes=10%'* ]]
}

@test "patrol: full by inodes, none counted, wrapped lines, growing fast (case 85, S75)" {
  sshd_start
  status_says
  cat >"$BOX_BIN/df" <<'SHIM'
#!/bin/bash
echo 'Filesystem     Blocks Used Available Capacity Mounted on'
if [[ $2 == -i ]]; then cat "$HOME/inodes"; else cat "$HOME/bytes"; fi
SHIM
  chmod +x "$BOX_BIN/df"
  printf '/dev/a/very/long/name\n      100000000 60000000 40000000 60%% /x\n' >"$BOX_HOME/bytes"
  echo '/dev/x 1000 1000 0 100% /x' >"$BOX_HOME/inodes"
  look
  verdict 1 escalate
  [[ $output == *'100% of its inodes'* && ${lines[0]} == *'data.bytes=60%'* ]] || fail_with room
  echo '/dev/x 0 0 0 - /x' >"$BOX_HOME/inodes"
  look
  verdict 0 healthy
  [[ ${lines[0]} == *'data.inodes=n/a'* ]]
  # Three quarters of what was free went since the last look: in a minute that is one copy, in ten minutes a pace.
  echo '/dev/x 100000000 84000000 16000000 84% /x' >"$BOX_HOME/bytes"
  since 60
  look
  verdict 0 healthy
  [[ $output != *'at this pace'* && $output != */h* ]]
  since 600
  look
  verdict 1 escalate
  [[ $output == *'out of bytes in 6 min at this pace'* ]]
  # Looks every minute do not push the beginning away, and after half an hour it begins anew.
  since 1800
  look
  look
  verdict 0 healthy
}
since() { # <seconds>    the figures were kept so long ago
  sed -i "s/\"trend_since_s\": .*/\"trend_since_s\": $(($(date +%s) - $1)),/" "$L/patrol.json"
}

@test "patrol: cells that a person has excepted by name are no alarm for ever; the meter is (case 129)" {
  sshd_start
  calm_room
  run_record_here "$D"
  mkdir -p "$BOX/durable/r1"
  printf '{\n  "schema": "pull_manifest/1",\n  "run_id": "%s",\n  "cells_expected": 4,\n  "cells": [\n' "$RUN_ID" >"$BOX/durable/r1/PULL_MANIFEST.json"
  printf '    {"cell": "%s", "state": "%s", "why": "x"},\n' a 'done' b 'done' c 'done' d excepted >>"$BOX/durable/r1/PULL_MANIFEST.json"
  status_says state=failed running=0 pending=0 failed=1 'done'=3 session=gone why='cell d failed'
  PRICE_PER_HOUR=0.79 look
  verdict 0 'done'
  [[ $output == *'1 of 4 cells are excepted by name: over, with the meter running at 0.79 an hour: aggregate, pull'* ]]
  # A cell that has failed since, one that runs, a manifest of another run: the exception is not of these.
  status_says state=failed running=0 pending=0 failed=2 'done'=2 session=gone
  look
  verdict 1 escalate
  status_says state=running running=1 pending=0 failed=1 'done'=2
  look
  verdict 1 escalate
  sed -i 's/"run_id": "2026/"run_id": "2025/' "$BOX/durable/r1/PULL_MANIFEST.json"
  status_says state=failed running=0 pending=0 failed=1 'done'=3 session=gone
  look
  verdict 1 escalate
}

@test "patrol: a tier that hangs whoever reads it is not known, and the rest is told (case 84)" {
  sshd_start
  calm_room
  status_says
  run_record_here "$D"
  printf '#!/bin/sh\ncase "$*" in */run.json) exec sleep 600 ;; esac\nexec %s "$@"\n' "$(PATH=$REAL_PATH type -P sed)" >"$BOX_BIN/sed"
  chmod +x "$BOX_BIN/sed"
  look
  verdict 69 unknown
  [[ ${lines[0]} == *'processes of the run: no answer'* && ${lines[0]} == *'data.bytes=10%'* ]]
}

@test "patrol: new tracebacks since the last look are news, old ones and relative errors are not (S77, T35)" {
  sshd_start
  calm_room
  status_says
  mkdir -p "$D/logs/a"
  printf 'Relative Error 0.12\nepoch 1 mean error: 0.5\nno errors found\n' >"$D/logs/a/attempt-001.log"
  look
  verdict 0 healthy
  [[ ${lines[0]} != *'lines of errors'* ]]
  printf 'Traceback (most recent call last):\n  File "x"\nValueError: boom\n' >>"$D/logs/a/attempt-001.log"
  look
  verdict 1 escalate
  [[ $output == *'2 new lines of errors'* && $output == *Traceback* ]]
  look
  verdict 0 healthy
  printf '\033[31m2026 ERROR rank 3\rstep 4\n' >>"$D/logs/a/attempt-001.log"
  look
  verdict 1 escalate
  [[ $output != *$'\033'* ]]
}

@test "patrol: it reads only: no file of the run changes, as many looks as you like leave no process (case 90)" {
  sshd_start
  calm_room
  status_says
  finished_cell "$D" a
  run_record_here "$D"
  mkdir -p "$D/logs/a" && echo x >"$D/logs/a/attempt-001.log"
  local before i
  before=$(find "$BOX" -exec stat -c '%n %s %Y %Z %i' {} + | sort)
  # The records say running, and no process is there: not known, which is no matter here.
  for i in 1 2 3; do patrol >/dev/null || [[ $? -eq 69 ]]; done
  [[ $(find "$BOX" -exec stat -c '%n %s %Y %Z %i' {} + | sort) == "$before" ]]
  # The brackets: the look itself has no such word in its own command line.
  wait_for 30 bash -c "! grep -lsz '$BATS_TEST_TMPDIR/sshd/[l]ogin' /proc/[0-9]*/cmdline"
}

@test "patrol: its own command line is no process of the run; those with the run's id are (T33, F36)" {
  sshd_start
  calm_room
  status_says failed=1
  run_record_here "$D"
  look
  [[ $output == *'no process carries this run'* ]]
  RUN_ID=$RUN_ID bash -c 'exec -a trainer sleep 100' 3>&- &
  local pid=$!
  look
  kill "$pid"
  [[ $output == *"process $pid "* && $output != *'no process carries'* ]]
}

@test "patrol: memory of the control group, and cells that were done too fast to believe (S76 S78)" {
  sshd_start
  calm_room
  status_says
  cell_record "$D/state/a.json" a 'done'
  sed -i 's/T14:51:07Z/T14:20:02Z/' "$D/state/a.json"
  look
  verdict 0 healthy
  [[ ${lines[0]} == *'mem('*')='* && ${lines[0]} == *'1 cells were done in less than half'* ]]
}

@test "patrol: another run on the box, no run and no scripts are each said, with what to do (S82)" {
  sshd_start
  calm_room
  status_says
  mkdir -p "$L"
  printf '{\n  "schema": "box/1",\n  "run_id": "20200101T000000Z-00000000",\n  "profile": "x",\n  "host": "x",\n  "instance": "",\n  "host_key": ""\n}\n' >"$L/box.json"
  look
  verdict 1 escalate
  [[ $output == *20200101T000000Z-00000000* ]]
  rm "$L/box.json" "$D/box/current/status.sh"
  look
  verdict 69 unknown
  printf 'exit 69\n' >"$D/box/current/status.sh"
  look
  verdict 1 escalate
  # A person who looks before the launch is told what the launch is.
  [[ $output == *'no run has begun on the box -> start it: formal_run.sh start there (P3.2)'* ]] || fail_with 'no remedy'
}

@test "patrol: with the real status.sh on one's own machine; --print looks at nothing (F2)" {
  compile_job local demo
  run --separate-stderr "$OUT/local/patrol.sh" --print
  [[ $status -eq 0 && $output == *'nothing was done'* && ! -e $LOCAL_DIR ]]
  rm -r "$D"
  run_record_here "$D"
  roster "$D" a b
  finished_cell "$D" a
  DATA_DIR=$BOX/data DURABLE_DIR=$BOX/durable "$OUT/box/aggregate_to_fs.sh" || [[ $? -eq 1 ]]
  run --separate-stderr "$OUT/local/patrol.sh" --data-dir "$BOX/data" --durable-dir "$BOX/durable"
  [[ $status -eq 1 && $output == *'done 1/2 running 0 pending 1'* ]]
}

@test "patrol: wrong words are 64, no host 78" {
  compile_job generic-ssh demo
  run --separate-stderr "$OUT/local/patrol.sh" --nonsense
  [[ $status -eq 64 ]]
  run --separate-stderr "$OUT/local/patrol.sh"
  refused 78 HOST
}
