#!/usr/bin/env bats
# teardown.sh: the gate opens in the one right state and in no other; what it says afterwards it has seen.
# shellcheck disable=SC2154,SC2030,SC2031,SC2016 # bats sets status, output and stderr; each test is its own shell; words for files
load helper
load teardown_state

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
  refused 77 "the bundle at $L has 1 of 2 cells done or excepted; where the box has done more since, aggregate there and pull again"
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

# A look that hangs would be a box that cannot be reached, for which other gates hold.
@test "teardown: what lies in place of a claim, a record or the queue and is no file shuts it, and is never waited for (case 45 case 132)" {
  local what file
  mkdir -p "$D/claims/a"
  for file in claims/a/001 run.json formal.json queue.tsv; do
    [[ $file != run.json ]] || mv "$D/run.json" "$HOME/run.json"
    for what in fifo folder; do
      if [[ $what == fifo ]]; then mkfifo "$D/$file"; else mkdir "$D/$file"; fi
      run --separate-stderr timeout -k 5 60 "$TD" terminate --run --approve "$OK" </dev/null
      refused 77 "$D/$file" || fail_with "$file $what"
      [[ $file != claims/* || $stderr == *"is a ${what/fifo/FIFO}, not a claim"* ]]
      rm -rf "${D:?}/$file"
    done
    [[ $file != run.json ]] || mv "$HOME/run.json" "$D/run.json"
  done
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
  wait_for 30 grep -qz "$B" "/proc/$pid/cmdline"
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
  wait_for 30 grep -qz "^RUN_ID=$RUN_ID" "/proc/$pid/environ"
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
