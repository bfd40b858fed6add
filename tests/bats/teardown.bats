#!/usr/bin/env bats
# teardown.sh: the gate opens in the one right state and in no other; what it says afterwards it has seen.
# shellcheck disable=SC2154,SC2030,SC2031,SC2016 # bats sets status, output and stderr; each test is its own shell; words for files
load helper

RUN_ID=20260803T141500Z-1f3a9c04
OTHER_ID=20260101T000000Z-deadbeef

setup() {
  common_setup
  BACKGROUND=() SSHD_PID=''
  compile_job tests/fixtures/teardown/machine.yaml jobs/demo.yaml
  TD=$OUT/local/teardown.sh
  export CLOUD=$BATS_TEST_TMPDIR/cloud DATA_DIR=$BATS_TEST_TMPDIR/box DURABLE_DIR=$BATS_TEST_TMPDIR/volume INSTANCE=box-7
  L=$HOME/gpu-runs/machine.demo D=$DATA_DIR/demo B=$DURABLE_DIR/demo
  mkdir -p "$CLOUD" "$BATS_TEST_TMPDIR/bin"
  printf 'box-7\nbox-77\n' >"$CLOUD/machines"
  ln -s "$ROOT/tests/fixtures/teardown/fakecloud" "$BATS_TEST_TMPDIR/bin/fakecloud"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
  make_run
}

teardown() {
  [[ -z ${SSHD_PID-} ]] || kill "$SSHD_PID" 2>/dev/null || :
  ((${#BACKGROUND[@]} == 0)) || kill "${BACKGROUND[@]}" 2>/dev/null || :
}

# Teardown's pauses of 5 s are not what these tests are about.
no_sleep() {
  local real
  real=$(type -P sleep)
  printf '#!/bin/sh\n[ "$1" = 5 ] || exec %s "$@"\n' "$real" >"$BATS_TEST_TMPDIR/bin/sleep"
  chmod +x "$BATS_TEST_TMPDIR/bin/sleep"
}

record() { # <file> <name:value>…    value with its JSON quotes
  local file=$1 pair text='{' comma=''
  shift
  for pair in "$@"; do
    text+="$comma"$'\n'"  \"${pair%%:*}\": ${pair#*:}"
    comma=,
  done
  mkdir -p "${file%/*}"
  printf '%s\n}\n' "$text" >"$file"
}

sha() { sha256sum <"$1" | cut -d' ' -f1; }

manifest() { # <folder> <run id> <state of cell b>    a cell that is not done has no file
  local folder=$1 id=$2 state=$3 cells='a b' cell sum text='' bytes=0 file
  [[ $state == done ]] || cells=a
  : >"$folder/SHA256SUMS"
  for cell in $cells; do
    file=final_ckpts/$cell/metrics.json
    text+="${text:+,$'\n'}    {\"bytes\": $(wc -c <"$folder/$file"), \"sha256\": \"$(sha "$folder/$file")\", \"path\": \"$file\"}"
    bytes=$((bytes + $(wc -c <"$folder/$file")))
    printf '%s  %s\n' "$(sha "$folder/$file")" "$file" >>"$folder/SHA256SUMS"
  done
  set -- $cells
  {
    printf '{\n  "schema": "pull_manifest/1",\n  "run_id": "%s",\n  "commit": "%040d",\n' "$id" 7
    printf '  "cells_expected": 2,\n  "cells_done": %s,\n  "files_total": %s,\n  "bytes_total": %s,\n  "cells": [\n' $# $# "$bytes"
    printf '    {"cell": "a", "state": "done", "why": ""},\n    {"cell": "b", "state": "%s", "why": "%s"}\n  ],\n' "$state" "$([[ $state == done ]] || echo "the reason")"
    printf '  "files": [\n%s\n  ],\n' "$text"
  } >"$folder/PULL_MANIFEST.json"
  sum=$(sha "$folder/PULL_MANIFEST.json")
  printf '  "self_sha256": "%s"\n}\n' "$sum" >>"$folder/PULL_MANIFEST.json"
}

# A run that is over, whose bundle is home: the one right state.
make_run() {
  mkdir -p "$D/cells/a" "$B/final_ckpts/a" "$B/final_ckpts/b" "$L"
  record "$D/run.json" 'schema:"run/1"' "run_id:\"$RUN_ID\"" 'job:"demo"' 'profile:"machine"' 'formal:true' "host:\"$(</proc/sys/kernel/hostname)\"" \
    "boot_id:\"$(</proc/sys/kernel/random/boot_id)\""
  cp "$D/run.json" "$B/run.json"
  printf '{"accuracy": 0.91}\n' >"$B/final_ckpts/a/metrics.json"
  printf '{"accuracy": 0.87}\n' >"$B/final_ckpts/b/metrics.json"
  manifest "$B" "$RUN_ID" done
  bring_home
  record "$L/box.json" 'schema:"box/1"' "run_id:\"$RUN_ID\"" 'profile:"machine"' 'host:"local"' 'instance:"box-7"' 'host_key:""'
  ok_text
}
bring_home() { cp -R "$B/final_ckpts" "$B/SHA256SUMS" "$B/PULL_MANIFEST.json" "$L/"; }
ok_text() { # the approval that the state of now asks for
  local digest
  digest=$(sha "$L/PULL_MANIFEST.json")
  OK="terminate box-7 ${digest:0:12}"
}

# A negated command does not fail a test (errexit ignores it): this one does.
not_acted() {
  if acted; then fail_with 'the provider was called'; fi
}
acted() { grep -qE '^(delete|stop)' "$CLOUD/calls" 2>/dev/null; }
teardown_run() { run --separate-stderr "$TD" terminate --run --approve "$OK" </dev/null; }

@test "teardown: in the one right state it acts, sees that the box is gone, and says so (S95 S96 S99 F43 case 133)" {
  teardown_run
  [[ $status -eq 0 && $output == *'OK 2/2, errors 0'* && $output == *'terminate box-7: gone (receipt '* ]] || fail_with 'not done'
  [[ $(grep -c '^delete --id box-7$' "$CLOUD/calls") == 1 && ! -e $CLOUD/WRONG && $(<"$CLOUD/machines") == box-77 ]]
  [[ $(tail -n 1 "$L/teardown.jsonl") == *'"verb": "terminate", "instance": "box-7", "manifest_sha256": "'"$(sha "$L/PULL_MANIFEST.json")"'", "ran": true, "confirmed": "gone", "deadline": null}' ]]
}

@test "teardown: without --run it shows what is kept, lost and still billed, and does nothing (S101 F2 F41 F63 case 124)" {
  PRICE_PER_HOUR=0.79 run --separate-stderr "$TD" terminate
  [[ $status -eq 0 ]] || fail_with 'the gate is shut'
  for words in 'what survives:    volume' 'what is lost:     box-disk' 'still billed:     the volume' '0.79 for each hour' "$D (LOST by terminate)" \
    'fakecloud delete --id box-7' "approve with: $OK"; do
    [[ $output == *"$words"* ]] || fail_with "no: $words"
  done
  [[ ! -e $CLOUD/calls && ! -e $L/teardown.jsonl ]]
}

@test "teardown: logs are in no bundle: those that the verb loses are named with count, size and place (F63 case 125)" {
  mkdir -p "$D/logs" && echo one >"$D/logs/a.log" && echo two >"$D/logs/b.log"
  run --separate-stderr "$TD" terminate
  [[ $status -eq 0 && $output =~ 'NOT at home:'\ +'2 files of logs, '[0-9]+' kB, '"$D/logs (LOST by terminate)" ]] || fail_with 'not named'
}

@test "teardown: a verb that does not stop the meter says that it goes on (S101 case 124), and a retention clock is recorded" {
  OK="stop ${OK#terminate }"
  PRICE_PER_HOUR=0.79 run --separate-stderr "$TD" stop --run --approve "$OK"
  [[ $status -eq 0 && $output == *'goes on costing:  0.79'* && $output == *'kept for:         15 days'* ]] || fail_with 'not said'
  deadline=$(sed -n '$s/.*"deadline": "\(.*\)"}/\1/p' "$L/teardown.jsonl")
  [[ $(($(date -d "$deadline" +%s) - $(date +%s))) -gt $((15 * 86400 - 600)) ]]
}

@test "teardown: no approval but the exact words opens it; silence, blanks and other words do not (F43 case 125)" {
  local text
  for text in '' ' ' yes "$OK " " $OK" "${OK%?}" "stop ${OK#terminate }" "terminate box-77 ${OK##* }" "terminate box-7 nothing" "terminate box-7 $(sha "$L/PULL_MANIFEST.json")" "$OK"$'\n'; do
    run --separate-stderr "$TD" terminate --run --approve "$text" </dev/null
    refused 77 'the approval is not exactly'
  done
  run --separate-stderr "$TD" terminate --run </dev/null
  refused 77 'nobody approved it'
  run --separate-stderr "$TD" terminate --run <<<"$OK"
  refused 77 'there is no terminal'
  not_acted
}

@test "teardown: at a terminal the words are typed, and an end of input is no approval (F43 S99 case 125)" {
  need_tool script
  run script -qec "$TD terminate --run" /dev/null </dev/null
  [[ $status -eq 77 ]]
  not_acted
  # script(1) hands our lines to the terminal that it makes.
  run script -qec "$TD terminate --run" /dev/null <<<"$OK"
  [[ $status -eq 0 && $output == *'terminate box-7: gone'* ]] || fail_with 'not done'
}

@test "teardown: a flipped byte, a missing file, an unfinished cell or no bundle shuts it (S96 S98 F44)" {
  printf '{"accuracy": 0.99}\n' >"$L/final_ckpts/a/metrics.json"
  teardown_run
  refused 77 'not in order'
  rm "$L/final_ckpts/a/metrics.json"
  teardown_run
  refused 77 'not in order'
  manifest "$B" "$RUN_ID" failed && bring_home && ok_text
  teardown_run
  refused 77 '1 of 2 cells'
  rm "$L/PULL_MANIFEST.json"
  teardown_run
  refused 77 'nothing of it is home'
  rm "$L/box.json"
  teardown_run
  refused 77 'there is no bundle'
  not_acted
}

@test "teardown: an excepted cell is no obstacle" {
  manifest "$B" "$RUN_ID" excepted && bring_home && ok_text
  teardown_run
  [[ $status -eq 0 ]] || fail_with 'shut'
}

@test "teardown: an old receipt counts for nothing, it verifies itself (S98)" {
  "$TD" terminate >/dev/null
  printf '{"accuracy": 0.99}\n' >"$L/final_ckpts/a/metrics.json"
  [[ -s $L/PULL_VERIFIED.json ]]
  touch -d '2020-01-01' "$L/final_ckpts/a/metrics.json"
  teardown_run
  refused 77 'not in order'
  not_acted
}

@test "teardown: a bundle that changes after the verification, or one that leaves no receipt, shuts it (S96 S98)" {
  local real
  real=$(type -P python3)
  printf '#!/bin/sh\n%s "$@" || exit\ntouch -d "+1 hour" %s\n' "$real" "$L/final_ckpts/b/metrics.json" >"$BATS_TEST_TMPDIR/bin/python3"
  chmod +x "$BATS_TEST_TMPDIR/bin/python3"
  teardown_run
  refused 77 'changed after it was verified'
  "$TD" terminate >/dev/null 2>&1 || :
  printf '#!/bin/sh\nexit 0\n' >"$BATS_TEST_TMPDIR/bin/python3"
  teardown_run
  refused 77 'left no receipt'
  not_acted
}

@test "teardown: another instance, run or profile in box.json shuts it (S99 case 133)" {
  local instance
  for instance in box-77 box- latest '' '-x' 'box-7;id' 'box 7' BOX-7; do
    INSTANCE=$instance run --separate-stderr "$TD" terminate --run --approve "terminate $instance ${OK##* }"
    refused 77
  done
  sed -i "s/$RUN_ID/$OTHER_ID/" "$L/box.json"
  teardown_run
  refused 77
  make_run
  sed -i 's/"machine"/"runpod"/' "$L/box.json"
  teardown_run
  refused 77 "of profile 'runpod'"
  printf '{' >"$L/box.json"
  teardown_run
  refused 77 'does not say which box'
  not_acted
}

@test "teardown: a box with another run or a newer manifest shuts it (case 133)" {
  manifest "$B" "$RUN_ID" excepted
  teardown_run
  refused 77 'another manifest' 'pull again'
  manifest "$B" "$RUN_ID" done
  sed -i "s/$RUN_ID/$OTHER_ID/" "$D/run.json"
  teardown_run
  refused 77 'the other tier is of' "$OTHER_ID"
  rm -r "$D" "$B"
  teardown_run
  refused 77 "shows run 'none'"
  not_acted
}

@test "teardown: a live claim of this or another run shuts it, a dead one does not (F42 case 132)" {
  local host boot ticks
  host=$(</proc/sys/kernel/hostname) boot=$(</proc/sys/kernel/random/boot_id)
  ticks=$(awk '{print $22}' "/proc/$$/stat")
  mkdir -p "$D/claims/a" "$DATA_DIR/other/claims/x"
  printf '%s %s %s %s\n' "$host" "$boot" 999999 1 >"$D/claims/a/001"
  printf '%s %s %s %s\n' "$host" "$boot" "$$" 1 >"$D/claims/a/002"
  run --separate-stderr "$TD" terminate
  [[ $status -eq 0 ]] || fail_with 'a dead claim shuts it'
  printf '%s %s %s %s\n' "$host" "$boot" "$$" "$ticks" >"$D/claims/a/010"
  teardown_run
  refused 77 'a cell is running' "pid $$"
  rm "$D/claims/a/010"
  printf '%s %s %s %s\n' "$host" "$boot" "$$" "$ticks" >"$DATA_DIR/other/claims/x/001"
  teardown_run
  refused 77 'a cell is running' other
  : >"$DATA_DIR/other/claims/x/001"
  teardown_run
  refused 77 'a claim is being taken'
  not_acted
}

@test "teardown: a formal run that is not over shuts it, a lost or finished one does not (F42 case 132)" {
  formal() { # <state> <pid> <ticks>
    record "$D/formal.json" 'schema:"formal/1"' "run_id:\"$RUN_ID\"" "state:\"$1\"" "host:\"$(</proc/sys/kernel/hostname)\"" \
      "boot_id:\"$(</proc/sys/kernel/random/boot_id)\"" "pid:$2" "start_ticks:$3"
  }
  local ticks
  ticks=$(awk '{print $22}' "/proc/$$/stat")
  formal running $$ "$ticks"
  teardown_run
  refused 77 'a formal run is running'
  printf '{\n' >"$D/formal.json"
  teardown_run
  refused 77 'cannot be read'
  formal starting null null
  teardown_run
  refused 77 'a formal run is starting'
  not_acted
  formal running $$ 1
  run --separate-stderr "$TD" terminate
  [[ $status -eq 0 ]] || fail_with 'a lost one shuts it'
  formal success $$ "$ticks"
  teardown_run
  [[ $status -eq 0 ]] || fail_with 'a finished one shuts it'
}

@test "teardown: a transfer of this run and a GPU process shut it; a driver that does not tell does too (F42 F63 case 132)" {
  cat >"$BATS_TEST_TMPDIR/bin/rsync" <<'FAKE'
#!/usr/bin/env bash
read -r _ <"$1/latch"
FAKE
  chmod +x "$BATS_TEST_TMPDIR/bin/rsync"
  mkfifo "$B/latch"
  "$BATS_TEST_TMPDIR/bin/rsync" "$B" >/dev/null 2>&1 3>&- &
  local pid=$!
  BACKGROUND+=("$pid")
  wait_for 5 grep -qz "$B" "/proc/$pid/cmdline"
  teardown_run
  echo >"$B/latch"
  wait "$pid"
  refused 77 'rsync is running'
  printf '#!/bin/sh\necho "driver mismatch" >&2\nexit 18\n' >"$BATS_TEST_TMPDIR/bin/nvidia-smi"
  chmod +x "$BATS_TEST_TMPDIR/bin/nvidia-smi"
  teardown_run
  refused 77 'nvidia-smi does not tell'
  # On a machine of one's own only processes of this run count: they carry its id.
  mkfifo "$BATS_TEST_TMPDIR/latch"
  RUN_ID=$RUN_ID bash -c 'read -r _ <"$1"' gpu "$BATS_TEST_TMPDIR/latch" >/dev/null 2>&1 3>&- &
  pid=$!
  BACKGROUND+=("$pid")
  printf '#!/bin/sh\nprintf "%s, python\\n"\n' "$pid" >"$BATS_TEST_TMPDIR/bin/nvidia-smi"
  wait_for 5 grep -qz "^RUN_ID=$RUN_ID" "/proc/$pid/environ"
  teardown_run
  echo >"$BATS_TEST_TMPDIR/latch"
  wait "$pid"
  refused 77 'a process uses a GPU'
  not_acted
}

@test "teardown: another run on a lost tier has to be home too (case 125 case 132)" {
  mkdir -p "$DATA_DIR/second"
  sed "s/$RUN_ID/$OTHER_ID/" "$D/run.json" >"$DATA_DIR/second/run.json"
  teardown_run
  refused 77 'run second' 'box-disk' || refused 77 'run second' 'data tier'
  not_acted
  # On a tier that survives it is no obstacle.
  mkdir -p "$DURABLE_DIR/third"
  mv "$DATA_DIR/second/run.json" "$DURABLE_DIR/third/run.json"
  teardown_run
  [[ $status -eq 0 ]] || fail_with 'shut'
}

@test "teardown: a verified copy inside of what the verb deletes is none (case 125)" {
  mkdir "$D/home"
  mv "$L" "$D/home/machine.demo" && L=$D/home/machine.demo
  LOCAL_DIR=$D/home teardown_run
  refused 77 'which it loses'
  not_acted
}

@test "teardown: where no run is known it opens for the word nothing alone, and only where the box shows none" {
  rm -r "$L" && mkdir -p "$L"
  record "$L/box.json" 'schema:"box/1"' 'run_id:""' 'profile:"machine"' 'host:"local"' 'instance:"box-7"' 'host_key:""'
  OK='terminate box-7 nothing'
  teardown_run
  refused 77 'nothing of it is home'
  rm -r "$D" "$B"
  run --separate-stderr "$TD" terminate --run --approve 'terminate box-7 '
  refused 77 'not exactly'
  not_acted
  teardown_run
  [[ $status -eq 0 ]] || fail_with 'shut'
  grep -q '"manifest_sha256": "nothing"' "$L/teardown.jsonl"
}

@test "teardown: a command that answers 0 and does nothing is a loud failure, never gone (case 128 X5 T45)" {
  no_sleep
  : >"$CLOUD/stubborn"
  PRICE_PER_HOUR=0.79 teardown_run
  [[ $status -eq 1 && $output != *gone* && $stderr == *'FAILED: box-7 is still there after terminate, and costs 0.79 an hour'* ]] || fail_with 'not loud'
  tail -n 1 "$L/teardown.jsonl" | grep -q '"ran": true, "confirmed": "present"'
}

@test "teardown: a list that never showed the box proves nothing by not showing it" {
  no_sleep
  echo box-77 >"$CLOUD/machines"
  teardown_run
  [[ $status -eq 69 && $output != *': gone'* && $stderr == *'proves nothing'* ]] || fail_with 'believed'
  rm "$BATS_TEST_TMPDIR/bin/fakecloud"
  teardown_run
  [[ $status -eq 69 && $output != *': gone'* ]] || fail_with 'believed without the tool'
}

@test "teardown: nothing is done that cannot be recorded" {
  mkdir "$L/teardown.jsonl"
  teardown_run
  refused 74 'nothing is done unrecorded'
  not_acted
}

@test "teardown: a verb with steps prints them through the same gate, and says nothing that nobody saw (S97 S102)" {
  run --separate-stderr "$TD" delete-volume --run --approve "${OK/terminate/delete-volume}" </dev/null
  [[ $status -eq 69 && $output == *'Delete the volume in the console'* && $output == *'usual order'* && $output != *': gone'* ]] || fail_with 'wrong'
  printf '{"accuracy": 0.99}\n' >"$L/final_ckpts/a/metrics.json"
  run --separate-stderr "$TD" delete-volume --run --approve "${OK/terminate/delete-volume}" </dev/null
  refused 77 'not in order'
}

@test "teardown: every verb goes through the gate (S97)" {
  local verb
  rm "$L/PULL_MANIFEST.json"
  for verb in stop terminate delete-volume; do
    run --separate-stderr "$TD" "$verb" --run --approve "$verb box-7 ${OK##* }"
    refused 77
  done
  not_acted
}

@test "teardown: a wrong call is 64 and names the verbs; FAKE_ROOT, a bad price and a bad run are 78" {
  run --separate-stderr "$TD"
  refused 64
  run --separate-stderr "$TD" destroy
  refused 64 'stop terminate delete-volume'
  run --separate-stderr "$TD" terminate --force
  refused 64
  FAKE_ROOT=/x run --separate-stderr "$TD" terminate
  refused 78 FAKE_ROOT
  PRICE_PER_HOUR='1;id' run --separate-stderr "$TD" terminate
  refused 78 PRICE_PER_HOUR
  RUN=../x run --separate-stderr "$TD" terminate
  refused 78
  run "$TD" --help
  [[ $status -eq 0 && $output == *'stop terminate delete-volume'* ]]
}

@test "teardown: --accept is handed to its own verification, shown, and recorded; it helps no other doubt (S95 S98 S100)" {
  printf '{"accuracy": NaN}\n' >"$B/final_ckpts/a/metrics.json"
  manifest "$B" "$RUN_ID" done && bring_home && ok_text
  teardown_run
  refused 77 'not in order'
  # An accept of an earlier, separate verification is output, never input.
  python3 "$OUT/local/verify_local.py" "$L" --accept 'final_ckpts/a/metrics.json=diverged, is in the paper' >/dev/null
  teardown_run
  refused 77 'not in order'
  local one
  for one in final_ckpts/a/metrics.json =why 'final_ckpts/a/metrics.json= '; do
    run --separate-stderr "$TD" terminate --accept "$one"
    refused 64 'PATH=WHY'
  done
  for one in final_ckpts/b/metrics.json=other final_ckpts/c=none; do
    run --separate-stderr "$TD" terminate --run --approve "$OK" --accept "$one" </dev/null
    refused 77 'not in order'
  done
  not_acted
  run --separate-stderr "$TD" terminate --run --approve "$OK" --accept 'final_ckpts/a/metrics.json=diverged, is in the paper' </dev/null
  [[ $status -eq 0 && $output == *'accepted:         {"path": "final_ckpts/a/metrics.json"'* ]] || fail_with 'shut, or not shown'
  tail -n 1 "$L/teardown.jsonl" | grep -q '"confirmed": "gone", "deadline": null, "accepted": \[{"path": "final_ckpts/a/metrics.json", "verdict": "[a-z]*", "why": "diverged, is in the paper"}\]}'
  tail -n 1 "$L/teardown.jsonl" | "$PYTHON" -c 'import json, sys; json.loads(sys.stdin.read())'
}

@test "teardown: --accept cannot take a file that is not what the box hashed (S96 S98)" {
  printf '{"accuracy": 0.99}\n' >"$L/final_ckpts/a/metrics.json"
  run --separate-stderr "$TD" terminate --run --approve "$OK" --accept 'final_ckpts/a/metrics.json=it will do' </dev/null
  refused 77 'not in order'
  rm "$L/final_ckpts/a/metrics.json"
  run --separate-stderr "$TD" terminate --run --approve "$OK" --accept 'final_ckpts/a/metrics.json=it will do' </dev/null
  refused 77 'not in order'
  not_acted
}

@test "teardown: --data-dir and --durable-dir say where the run lies on the box, as in push and pull" {
  local data=$DATA_DIR durable=$DURABLE_DIR
  unset DATA_DIR DURABLE_DIR
  run --separate-stderr "$TD" terminate
  refused 77
  run --separate-stderr "$TD" terminate --data-dir
  refused 64
  run --separate-stderr "$TD" terminate --data-dir "$data" --durable-dir "$durable"
  [[ $status -eq 0 && $output == *'The gate is open'* ]] || fail_with 'shut'
}

@test "teardown: every single spoilt state keeps the gate shut, and the provider is never called (S95 S96 S97 F43 case 133)" {
  local number=0 spoil saved=$BATS_TEST_TMPDIR/saved
  mkdir "$saved"
  mkdir -p "$saved/l" "$saved/d" "$saved/b" && cp -R "$L/." "$saved/l/" && cp -R "$D/." "$saved/d/" && cp -R "$B/." "$saved/b/"
  while IFS= read -r spoil; do
    [[ -n $spoil ]] || continue
    rm -rf "${L:?}" "${D:?}" "${B:?}" && mkdir -p "$L" "$D" "$B" && cp -R "$saved/l/." "$L/" && cp -R "$saved/d/." "$D/" && cp -R "$saved/b/." "$B/"
    number=$((number + 1))
    (cd "$L" && eval "$spoil")
    teardown_run
    if [[ $status -eq 0 ]] || acted; then fail_with "open after: $spoil"; fi
  done <<SPOILS
$(spoils)
SPOILS
  ((number >= 60))
  # And the right state, once more, is open.
  rm -rf "${L:?}" "${D:?}" "${B:?}" && mkdir -p "$L" "$D" "$B" && cp -R "$saved/l/." "$L/" && cp -R "$saved/d/." "$D/" && cp -R "$saved/b/." "$B/"
  teardown_run
  [[ $status -eq 0 ]] || fail_with 'shut'
}

@test "teardown: where a container has no shutdown, poweroff is tried; neither is an error (X5 T45)" {
  mkdir "$BATS_TEST_TMPDIR/empty"
  call() { PATH=$BATS_TEST_TMPDIR/empty "$BASH" -c 'source "$1"; PATH=$2 COMMAND=$3; run_there' x "$TD" "$BATS_TEST_TMPDIR/empty" "$1"; }
  run call $'/sbin/gone/shutdown\n-h\nnow'
  [[ $status -eq 69 && $output == 'poweroff is not there' ]]
  printf '#!/bin/sh\necho poweroff "$@"\n' >"$BATS_TEST_TMPDIR/empty/poweroff"
  chmod +x "$BATS_TEST_TMPDIR/empty/poweroff"
  run call $'/sbin/gone/shutdown\n-h\nnow'
  [[ $status -eq 0 && $output == poweroff ]]
  run call $'reboot\nnow'
  [[ $status -eq 69 ]]
}

# A box of its own: sshd on loopback.
start_box() {
  need_tool sshd ssh-keygen
  local port=$((20000 + RANDOM % 20000)) dir=$BATS_TEST_TMPDIR/sshd user sshd
  user=$(id -un) sshd=$(PATH=$REAL_PATH:/usr/sbin type -P sshd)
  mkdir -p "$dir/bin" "$HOME/.ssh"
  chmod 700 "$HOME/.ssh"
  [[ $user != root || -d /run/sshd ]] || mkdir -p /run/sshd
  ssh-keygen -q -t ed25519 -N '' -f "$dir/host" && ssh-keygen -q -t ed25519 -N '' -f "$dir/id" && cp "$dir/id.pub" "$dir/keys"
  printf '%s\n' "Port $port" 'ListenAddress 127.0.0.1' "HostKey $dir/host" "AuthorizedKeysFile $dir/keys" 'StrictModes no' 'UsePAM no' "PidFile $dir/pid" \
    "ForceCommand PATH=$dir/bin:/usr/local/bin:/usr/bin:/bin bash -s" >"$dir/config"
  "$sshd" -f "$dir/config" -E "$dir/log"
  wait_for 10 test -s "$dir/pid"
  SSHD_PID=$(<"$dir/pid")
  # ssh finds the alias in the system's place only: a shim hands it ours.
  printf '%s\n' 'Host testbox' '  HostName 127.0.0.1' "  Port $port" "  User $user" "  IdentityFile $dir/id" '  IdentitiesOnly yes' >"$dir/client"
  printf '#!/bin/sh\nexec %s -F %s "$@"\n' "$(PATH=$REAL_PATH type -P ssh)" "$dir/client" >"$BATS_TEST_TMPDIR/bin/ssh"
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
}

# The same state for a kind with ssh, with a verb that is typed on the box. It is a cluster, for on a rental all of this machine counts.
as_cluster() {
  compile_job tests/fixtures/teardown/cluster.yaml jobs/demo.yaml
  TD=$OUT/local/teardown.sh
  mv "$L" "$HOME/gpu-runs/cluster.demo" && L=$HOME/gpu-runs/cluster.demo
  sed -i 's/"machine"/"cluster"/' "$L/box.json"
}

@test "teardown: over ssh it looks, acts on the box, and counts it as off only when it no longer answers (X5 S95 case 128 T45)" {
  start_box
  as_cluster
  no_sleep
  run --separate-stderr "$TD" off testbox
  [[ $status -eq 0 && $output == *'The gate is open'* && -s $L/known_hosts ]] || fail_with 'shut'
  run --separate-stderr "$TD" terminate
  refused 77 'without HOST'
  run --separate-stderr "$TD" terminate -oProxyCommand=x
  refused 64
  OK="off box-7 ${OK##* }"
  # The command is not on the box's PATH: nothing is switched off, and that is said.
  run --separate-stderr "$TD" off testbox --run --approve "$OK" </dev/null
  [[ $status -eq 1 && $stderr == *'FAILED: box-7 is still there'* ]] || fail_with 'not loud'
  # Now it is.
  printf '#!/bin/sh\nkill %s\n' "$SSHD_PID" >"$BATS_TEST_TMPDIR/sshd/bin/gpu-runbook-test-off"
  chmod +x "$BATS_TEST_TMPDIR/sshd/bin/gpu-runbook-test-off"
  run --separate-stderr "$TD" off testbox --run --approve "$OK" </dev/null
  [[ $status -eq 0 && $output == *'off box-7: no longer reachable (receipt '* ]] || fail_with 'not off'
  tail -n 1 "$L/teardown.jsonl" | grep -q '"ran": true, "confirmed": "unreachable"'
}

@test "teardown: a box that does not answer shuts it, but for a run that switched it off after its success (S95 F57 case 132)" {
  need_tool ssh
  as_cluster
  printf '#!/bin/sh\necho "ssh: connect to host testbox port 22: Connection refused" >&2\nexit 255\n' >"$BATS_TEST_TMPDIR/bin/ssh"
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
  success() { # <power_off> <manifest digest> <run id>
    record "$L/FORMAL_SUCCESS" 'schema:"formal_success/1"' "run_id:\"$3\"" 'start_id:"5e0c11d2"' "manifest_sha256:\"$2\"" "power_off:$1"
  }
  local digest
  digest=$(sha "$L/PULL_MANIFEST.json")
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  success false "$digest" "$RUN_ID"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  success true "${digest/[0-9a-f]/x}" "$RUN_ID"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  success true "$digest" "$OTHER_ID"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  not_acted
  success true "$digest" "$RUN_ID"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  [[ $status -eq 0 && $output == *'terminate box-7: gone'* ]] || fail_with 'shut'
  # The volume, later: the box was seen to go by this gate and is not in the list now either (S102).
  rm "$L/FORMAL_SUCCESS"
  run --separate-stderr "$TD" delete-volume testbox
  [[ $status -eq 0 ]] || fail_with 'shut for the volume'
  echo box-7 >>"$CLOUD/machines"
  run --separate-stderr "$TD" delete-volume testbox
  refused 77 'does not answer'
}

@test "teardown: the box that this gate stopped may be deleted though it is silent, and no other (S95 F57 case 132)" {
  need_tool ssh
  as_cluster
  local entry digest
  printf '#!/bin/sh\necho "ssh: connect to host testbox port 22: Connection refused" >&2\nexit 255\n' >"$BATS_TEST_TMPDIR/bin/ssh"
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
  digest=$(sha "$L/PULL_MANIFEST.json")
  # What the running list does not show, while the other list still does.
  printf 'box-77\n' >"$CLOUD/running"
  stopped() { # <verb> <instance> <manifest> <ran> <confirmed>
    printf '{"time": "2026-08-03T15:00:00Z", "verb": "%s", "instance": "%s", "manifest_sha256": "%s", "ran": %s, "confirmed": "%s", "deadline": null}\n' "$@" >"$L/teardown.jsonl"
  }
  while read -r -a entry; do
    stopped "${entry[@]:0:4}" "${entry[*]:4}"
    run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
    refused 77 'does not answer'
  done <<ENTRIES
stop box-77 $digest true gone
stop box-7 ${digest/[0-9a-f]/x} true gone
stop box-7 $digest false unknown
stop box-7 $digest true unknown
stop box-7 $digest true unreachable
stop box-7 $digest true present
restart box-7 $digest true gone
ENTRIES
  stopped stop box-7 "$digest" true gone
  printf 'box-7\nbox-77\n' >"$CLOUD/running"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  not_acted
  printf 'box-77\n' >"$CLOUD/running"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  [[ $status -eq 0 && $output == *'terminate box-7: gone'* && $stderr == *"has 'stop' of it"* ]] || fail_with 'shut'
}

@test "teardown: where nothing leads to the box the same gate holds, commands are only printed, and it says that nobody looked" {
  local notebook
  compile_job kaggle jobs/demo.yaml
  TD=$OUT/local/teardown.sh
  notebook=$HOME/gpu-runs/kaggle.demo
  mv "$L" "$notebook" && rm "$notebook/box.json"
  run --separate-stderr "$TD" finish --run --approve "${OK/terminate/finish}" </dev/null
  [[ $status -eq 69 && $output == *'step:'* && $stderr == *'nobody looked at the box'* && $output != *': gone'* ]] || fail_with 'wrong'
  printf 'x' >>"$notebook/final_ckpts/a/metrics.json"
  run --separate-stderr "$TD" finish --run --approve "${OK/terminate/finish}" </dev/null
  refused 77 'not in order'
}

# One shell line each, run in L.
spoils() {
  local file n
  for file in PULL_MANIFEST.json box.json; do
    printf '%s\n' "rm $file" ": >$file" "printf '{}' >$file" "sed -i 's/$RUN_ID/$OTHER_ID/' $file" "sed -i 1d $file" "sed -i '\$d' $file" \
      "sed -i 's/schema\": \"[a-z_]*/&x/' $file" "head -c 60 $file >x && mv x $file" "printf ' ' >>$file" "rm $file && mkdir $file" "rm $file && ln -s /dev/null $file"
  done
  # One byte of the manifest, at several places; one of each file; the receipt forged before a broken bundle.
  for n in 3 40 120 200 300 420 560 640; do
    printf '%s\n' "printf '#' | dd of=PULL_MANIFEST.json bs=1 seek=$n conv=notrunc status=none"
  done
  for n in 0 5 10 17; do
    for file in a b; do printf '%s\n' "printf '#' | dd of=final_ckpts/$file/metrics.json bs=1 seek=$n conv=notrunc status=none"; done
  done
  for file in a b; do
    printf '%s\n' "rm final_ckpts/$file/metrics.json" ": >final_ckpts/$file/metrics.json" "echo >>final_ckpts/$file/metrics.json" \
      "rm final_ckpts/$file/metrics.json && ln -s /dev/null final_ckpts/$file/metrics.json"
  done
  printf '%s\n' "rm -r final_ckpts" "sed -i 's/box-7/box-77/' box.json" "sed -i 's/box-7/BOX-7/' box.json" "sed -i '/instance/d' box.json" \
    "sed -i 's/\"machine\"/\"local\"/' box.json" "sed -i 's/\"done\"/\"failed\"/' PULL_MANIFEST.json" "sed -i 's/cells_expected\": 2/cells_expected\": 3/' PULL_MANIFEST.json" \
    "sed -i '/\"cell\": \"b\"/d' PULL_MANIFEST.json" "rm $D/run.json $B/run.json" ": >$D/run.json" "sed -i 's/$RUN_ID/$OTHER_ID/' $D/run.json" "rm $B/PULL_MANIFEST.json" \
    "echo >>$B/PULL_MANIFEST.json" "chmod 0 $D; rm -rf $D/run.json $B/run.json"
}
