#!/usr/bin/env bats
# teardown.sh: what is in no bundle keeps the gate shut, or is named before anything is done.
# shellcheck disable=SC2154,SC2030,SC2031,SC2016 # bats sets status, output and stderr; each test is its own shell; words for files
load helper
load teardown_state

@test "teardown: what no bundle holds and the verb loses is named with count, size and place; what it keeps is not (F63 case 125)" {
  mkdir -p "$D/logs/a" "$D/quarantine/a--001" "$D/claims/a" "$D/box/x" "$B/quarantine"
  echo one >"$D/logs/a/attempt-001.log" && echo two >"$D/logs/a/attempt-002.log"
  local name
  for name in formal.log environment.txt formal.failed.tar.gz cells/a/latest.pth quarantine/a--001/best.pth FORMAL_FAILURE.json smoke.json queue.tsv claims/a/001 box/x/y; do
    printf 'a\ttrue\n' >"$D/$name"
  done
  printf 'elsewhere x 1 1\n' >"$D/claims/a/001"
  echo kept >"$B/quarantine/kept"
  run --separate-stderr "$TD" terminate
  [[ $status -eq 0 && $output =~ 'NOT at home:'\ +'2 files, '[0-9]+' kB, '"$D/logs (LOST by terminate)" ]] || fail_with 'not named'
  for name in formal.log environment.txt formal.failed.tar.gz quarantine FORMAL_FAILURE.json 'cells (beside the results, which are home)'; do
    [[ $output =~ 'NOT at home:'\ +'1 files, '[0-9]+' kB, '"$D/$name (LOST by terminate)" ]] || fail_with "no $name"
  done
  [[ $(grep -c 'NOT at home' <<<"$output") -eq 7 && $output != *"$B/quarantine"* ]] || fail_with 'too much'
}

@test "teardown: what ran or came into the queue after the manifest shuts it, though the bundle is home and whole (S96 case 125)" {
  mkdir -p "$D/state" "$B/records"
  printf 'a\ttrue\nb\ttrue\n' >"$D/queue.tsv"
  echo x >"$D/state/a.json" && echo x >"$B/records/a.json" && echo x >"$D/state/.aggregate"
  touch -d '1 hour ago' "$D/state/a.json" "$B/records/a.json" "$B"/final_ckpts/*/*
  run --separate-stderr "$TD" terminate
  [[ $status -eq 0 ]] || fail_with 'shut'
  local file
  for file in "$D/state/a.json" "$B/records/a.json" "$B/final_ckpts/a/metrics.json"; do
    touch -d '1 hour' "$file"
    teardown_run
    refused 77 "$file was written after the manifest" 'aggregate and pull'
    touch -d '1 hour ago' "$file"
  done
  printf 'c\ttrue\n' >>"$D/queue.tsv"
  teardown_run
  refused 77 'cell c is in the queue and not in the manifest' 'aggregate and pull'
  not_acted
}

@test "teardown: work without a run's record is no empty box (case 125)" {
  rm -r "$L" "$B" && mkdir -p "$L"
  record "$L/box.json" 'schema:"box/1"' 'run_id:""' 'profile:"machine"' 'host:"local"' 'instance:"box-7"' 'host_key:""'
  rm "$D/run.json"
  run --separate-stderr "$TD" terminate --run --approve 'terminate box-7 nothing'
  refused 77 "$D/cells is there, of a run without a record"
  not_acted
}

@test "teardown: box.json alone knows of a run: the box shows none and nothing is home (S95 case 133)" {
  rm -r "$D" "$B" "$L/PULL_MANIFEST.json"
  teardown_run
  refused 77 "run $RUN_ID was on it and nothing of it is home"
  make_run
  sed -i "s/$RUN_ID/$OTHER_ID/" "$L/box.json"
  teardown_run
  refused 77 'not in order'
  not_acted
}

@test "teardown: a run in another folder than the one looked into is found, and shuts it where the verb loses it (case 125)" {
  local home=$BATS_TEST_TMPDIR/boxhome
  mkdir -p "$home/x/late" "$home/data/demo" "$home/deep"
  record "$home/x/late/run.json" 'schema:"run/1"' 'run_id:"z"'
  cp "$home/x/late/run.json" "$home/data/demo/run.json"
  echo '{}' >"$home/deep/run.json"
  call() { # <words…>    functions of teardown.sh, as on a rented box
    HOME=$home bash -c 'source "$1"; shift; load_action terminate; VERB=terminate; DATA_DIR=$HOME/data DURABLE_DIR=$HOME/volume DATA_ROOT="\$HOME/data" DURABLE_ROOT=/nowhere; "$@"' x "$TD" "$@"
  }
  run call look_strays
  [[ $status -eq 0 && $output == "stray home $home/x/late" ]] || fail_with 'not found'
  run --separate-stderr call judge_strays "home $home/x/late"
  refused 77 "there is a run at $home/x/late"
  run --separate-stderr call judge_strays "data $home/x/late"
  refused 77
  run call judge_strays "durable $home/x/late"
  [[ $status -eq 0 ]]
}

@test "teardown: a reason is said once, with where it is and what to do about it (case 132)" {
  mkdir -p "$BATS_TEST_TMPDIR/elsewhere"
  printf '#!/bin/bash\nread -r _ <"$1"\n' >"$BATS_TEST_TMPDIR/elsewhere/run_one.sh"
  mkfifo "$D/latch"
  (cd "$BATS_TEST_TMPDIR/elsewhere" && exec bash run_one.sh "$D/latch") >/dev/null 2>&1 3>&- &
  local pid=$!
  BACKGROUND+=("$pid")
  wait_for 30 grep -qz "$D" "/proc/$pid/cmdline"
  teardown_run
  echo >"$D/latch"
  wait "$pid"
  refused 77 "run_one.sh is running: pid $pid, in $BATS_TEST_TMPDIR/elsewhere" 'wait until it is over'
  # A mount that holds both tiers is missing for both.
  judged() {
    bash -c 'source "$1"; VERB=terminate; LOOK=$2; judge_look' x "$TD" $'run x\nmanifest none\nunknown the storage at /w is not mounted\nunknown the storage at /w is not mounted\nunknown no'
  }
  run --separate-stderr judged
  refused 77 'put that right there'
  [[ $(grep -o 'is not mounted' <<<"$stderr" | grep -c .) -eq 1 && $stderr == *'mounted; no;'* && $stderr != *'wait until'* ]] || fail_with 'said twice'
}

silent_box() {
  as_cluster
  printf '#!/bin/sh\necho "ssh: connect to host testbox port 22: Connection refused" >&2\nexit 255\n' >"$BATS_TEST_TMPDIR/bin/ssh"
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
}

@test "teardown: another run that was begun on the same box has to be home too where nobody can look (case 125 case 132)" {
  need_tool ssh
  silent_box
  record "$L/FORMAL_SUCCESS" 'schema:"formal_success/1"' "run_id:\"$RUN_ID\"" 'start_id:"5e0c11d2"' "manifest_sha256:\"$(sha "$L/PULL_MANIFEST.json")\"" 'power_off:true'
  local other=$HOME/gpu-runs/cluster.second
  mkdir -p "$other"
  sed "s/$RUN_ID/$OTHER_ID/" "$L/box.json" >"$other/box.json"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'run second was begun on it too'
  sed -i 's/"run_id": ".*"/"run_id": ""/' "$other/box.json"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'run second was begun on it too'
  printf '{' >"$other/box.json"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'of another run, cannot be read'
  not_acted
  # On another box it is no matter; at home and in order neither.
  sed 's/box-7/box-77/' "$L/box.json" >"$other/box.json"
  run --separate-stderr "$TD" terminate testbox
  [[ $status -eq 0 ]] || fail_with 'shut for a run elsewhere'
  cp -R "$L/." "$other/"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  [[ $status -eq 0 && $stderr == *'run second was there too'* && $output == *'terminate box-7: gone'* ]] || fail_with 'shut'
}

@test "teardown: a stop that only a person has seen is asked for again, and silence of nobody is no answer (S95 S99 case 132)" {
  need_tool ssh script
  silent_box
  printf '{"time": "2026-08-03T15:00:00Z", "verb": "off", "instance": "box-7", "manifest_sha256": "%s", "ran": true, "confirmed": "said gone", "deadline": null}\n' "$(sha "$L/PULL_MANIFEST.json")" >"$L/teardown.jsonl"
  run --separate-stderr "$TD" terminate testbox
  [[ $status -eq 0 && $stderr == *"asked to look again"* ]] || fail_with 'not announced'
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK" </dev/null
  refused 77 'does not answer'
  run script -qec "$TD terminate testbox --run --approve '$OK'" /dev/null <<<'no'
  [[ $status -eq 77 && $output == *'look again:       the console says off'* ]] || fail_with 'not asked'
  not_acted
  run script -qec "$TD terminate testbox --run --approve '$OK'" /dev/null <<<'gone'
  [[ $status -eq 0 && $output == *'terminate box-7: gone'* ]] || fail_with 'shut'
}
