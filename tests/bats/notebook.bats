#!/usr/bin/env bats
# install_cell.py, run_cell.py and session.sh: a run on a notebook, from the paste to the session after the next.
load helper
load cells
load notebook
bats_require_minimum_version 1.5.0
setup() { notebook_setup; }
teardown() { notebook_teardown; }

@test "notebook: the two cells bring a run from the paste to its bundle (S58 S69)" {
  machine # not this one, which may be up for longer than a session lasts
  run --separate-stderr "$PYTHON" "$OUT/notebook/run_cell.py"
  refused 69 'it is not there' 'install_cell.py'
  run --separate-stderr "$PYTHON" "$OUT/notebook/install_cell.py"
  [[ $status -eq 0 && $output == *'installed 8 scripts and the queue, digest '* ]]
  # The compiled queue: ok, one that fails, one without its artifact.
  run --separate-stderr "$PYTHON" "$OUT/notebook/run_cell.py" --help
  [[ $status -eq 0 && $output == 'usage: run_cell.py '* && ! -e $D/session.log ]]
  run --separate-stderr "$PYTHON" "$OUT/notebook/run_cell.py" --seconds 0
  [[ $status -eq 1 && $output == *'it begins anew'* && $output == *'run_cell.py: session.sh ended with 1'* ]] || fail_with 'ended otherwise'
  [[ $output == *"session of run r: the queue ended with 1, aggregate with 1; the run is at $D and, for the next session, at $SAVED"* ]] || fail_with 'no verdict'
  [[ $(member "$D/records/c_ok.json" state) == 'done' && -s $D/PULL_MANIFEST.json ]]
  # As a cell (not as a file of that name) it never raises: that would end the session and may cost its output.
  cp "$OUT/notebook/run_cell.py" "$BATS_TEST_TMPDIR/cell.py"
  run --separate-stderr "$PYTHON" "$BATS_TEST_TMPDIR/cell.py"
  [[ $status -eq 0 && $output == *'session.sh ended with 1'* ]] || fail_with 'raised'
  # Both in one file, as a platform takes it that wants one.
  cat "$OUT/notebook/install_cell.py" "$OUT/notebook/run_cell.py" >"$BATS_TEST_TMPDIR/run.py"
  RUN=r2 run --separate-stderr "$PYTHON" "$BATS_TEST_TMPDIR/run.py"
  [[ $status -eq 0 && $output == *'installed 8 scripts'*'session of run r2:'* && -s $DATA_DIR/r2/PULL_MANIFEST.json ]] || fail_with 'one file'
}

@test "notebook: the verify blocks look: at the paste and the smoke here, at scripts and commit there (S22 S46)" {
  local copy=$BATS_TEST_TMPDIR/copy block
  cp -R "$OUT" "$copy"
  phase() { run --separate-stderr bash "$copy/local/verify_phase.sh" -1; }
  export LOCAL_DIR=$HOME/runs
  phase
  [[ $status -eq 1 && $output == *'whole; would install 8 scripts'* && $output == *'smoke.json: No such file'* ]] || fail_with 'no smoke'
  mkdir -p "$LOCAL_DIR/notebook.r"
  printf '{\n  "result": "failed"\n}\n' >"$LOCAL_DIR/notebook.r/smoke.json"
  phase
  [[ $status -eq 1 ]]
  printf '{\n  "result": "passed"\n}\n' >"$LOCAL_DIR/notebook.r/smoke.json"
  phase
  [[ $status -eq 0 && $output == *PASS* ]] || fail_with 'not passed'
  sed -i 's/aggregate/aggregated/' "$copy/notebook/install_cell.py"
  phase
  [[ $status -eq 1 && $output == *'refused: the cell'* ]] || fail_with 'a changed cell passed'
  # P1, typed on the box.
  block=$(awk '/^## Phase 1/ { here = 1 } here && /^```$/ && inside { exit } inside { print } here && /^```bash verify/ { inside = 1 }' "$OUT/RUNBOOK.md")
  [[ $block == *sha256sum*torch* ]]
  make_repository "$ROOT/tests/fixtures/trainers" "$BATS_TEST_TMPDIR/repo"
  printf '#!/bin/bash\necho True\n' >"$HOME/py" && chmod +x "$HOME/py"
  PY=$HOME/py run bash -c "$block"
  [[ $status -ne 0 ]]
  install_it && cp -R "$CODE_DIR" "$D/code"
  PY=$HOME/py run bash -c "$block"
  [[ $status -eq 0 && ${lines[0]} == "$(readlink "$D/box/current")" && ${lines[1]} == "$(git -C "$CODE_DIR" rev-parse HEAD)" && ${lines[2]} == True ]] || fail_with 'P1'
  echo '# changed' >>"$D/box/current/status.sh"
  PY=$HOME/py run bash -c "$block"
  [[ $status -ne 0 ]] || fail_with 'a changed script passed'
}

@test "notebook: a fresh session brings back what was saved and does only what is left (S50 S51)" {
  cell a ok
  cell b ok
  install_it
  echo old >"$D/smoke.json"
  session
  [[ $status -eq 0 && $output == *'aggregate with 0'* ]] || fail_with 'first session'
  # What each session gets anew is not saved; everything else is, whole.
  [[ ! -e $SAVED/box && ! -e $SAVED/code && -s $SAVED/run.json && -s $SAVED/final_ckpts/a/best.pth ]]
  (cd "$D" && find . -path ./box -prune -o -type f ! -name '.*.tmp' -print | sort) >"$HOME/here"
  (cd "$SAVED" && find . -type f | sort) | diff "$HOME/here" -
  cell c ok
  fresh
  echo torn >"$SAVED/final_ckpts/a/.best.pth.tmp"
  echo new >"$D/smoke.json" # this machine's own
  chmod -R a-w "$SAVED"
  session
  [[ $status -eq 0 && $stderr == *"bringing back $SAVED"* && $stderr == *'brought back: run '* ]] || fail_with 'second session'
  [[ $(starts a) -eq 1 && $(starts b) -eq 1 && $(starts c) -eq 1 ]] || fail_with 'a cell that was done ran again'
  for c in a b c; do bundled $c; done
  [[ ! -e $D/final_ckpts/a/.best.pth.tmp && $(<"$D/smoke.json") == new && -w $D/run.json && ! -e $D/.restore && $(member "$D/run.json" host) == "$(<"$FAKE_ROOT/proc/sys/kernel/hostname")" ]]
  # In the same session again: nothing is brought back over what is here.
  session
  [[ $status -eq 0 && $stderr == *'the run is here already'* && $(starts c) -eq 1 ]] || fail_with 'same session'
}

@test "notebook: the clock stops the queue in time, the checkpoint is saved, the next session goes on from it (S11 S50 case 131)" {
  cell long 'slow 30 0.2'
  install_it
  run --separate-stderr bash "$D/box/current/session.sh" --seconds 3 -- --queue "$Q"
  [[ $status -eq 1 && $output == *'(stopped by the clock)'* && $(state long) == preempted ]] || fail_with 'not stopped'
  step=$(<"$SAVED/cells/long/latest.pth")
  ((step > 0 && step < 30))
  fresh
  session
  [[ $status -eq 0 && $(starts long) -eq 2 ]] || fail_with 'second session'
  grep -q "from step $step" "$D"/logs/long/attempt-002.log
}

@test "notebook: a session that is killed without a word loses no more than what was new since the last copy" {
  cell long 'slow 300 0.1'
  install_it
  SAVE_EVERY_S=1 setsid bash "$D/box/current/session.sh" --seconds 0 -- --queue "$Q" >"$HOME/said" 2>&1 &
  wait_for 30 test -s "$SAVED/cells/long/latest.pth"
  wait_for 30 test -s "$SAVED/run.json"
  kill -KILL -- -$!
  cells_teardown
  step=$(<"$SAVED/cells/long/latest.pth")
  fresh
  setsid bash "$D/box/current/session.sh" --seconds 0 -- --queue "$Q" >"$HOME/said" 2>&1 &
  wait_for 30 grep -q "from step $step" "$D"/logs/long/attempt-002.log
  kill -TERM $!
  wait $! || :
  grep -q 'stopped by a signal' "$HOME/said"
}

@test "notebook: a stop of the cell saves first (S55)" {
  cell long 'slow 300 0.1'
  install_it
  # As a kernel runs it, with its own handler: a job in the background is deaf to INT.
  "$PYTHON" -c 'import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
cell = sys.argv[1]
sys.argv = ["run_cell.py", "--seconds", "0", "--", "--queue", sys.argv[2]]
runpy.run_path(cell)' "$OUT/notebook/run_cell.py" "$Q" >"$HOME/said" 2>&1 &
  wait_for 30 test -s "$D/cells/long/latest.pth"
  kill -INT $!
  wait $! || :
  grep -q 'stopping: the checkpoints are saved first' "$HOME/said"
  grep -q 'stopped by a signal' "$HOME/said"
  [[ -s $SAVED/cells/long/latest.pth && $(state long) == preempted ]]
}

@test "notebook: a kernel that dies does not end the session; the cell again does no harm (S59)" {
  cell long 'slow 6 0.5'
  install_it
  setsid "$PYTHON" "$OUT/notebook/run_cell.py" --seconds 0 -- --queue "$Q" >"$HOME/said" 2>&1 &
  wait_for 30 test -s "$D/cells/long/latest.pth"
  kill -KILL -- -$!
  # The cell again shows what goes on, for as long as it does: a kernel that looks idle is ended.
  run --separate-stderr "$PYTHON" "$OUT/notebook/run_cell.py" --seconds 0 -- --queue "$Q"
  [[ $status -eq 75 && $output == *'is at work already'*'session of run r: the queue ended with 0, aggregate with 0'*'that session has ended'* ]] || fail_with 'not shown'
  grep -q 'session of run r: the queue ended with 0' "$D/session.log"
  [[ $(starts long) -eq 1 && ! -e $D/DOUBLED ]]
  bundled long
}

@test "notebook: bringing back is whole or not at all, and the same call goes on (case 38)" {
  cell a ok
  install_it
  session
  [[ $status -eq 0 ]]
  for n in 1 3; do
    fresh
    run --separate-stderr bash -c "source '$ROOT/tests/bats/helper.bash'; fail_nth cp $n 1 'No space left on device'; exec bash '$D/box/current/session.sh' --seconds 0"
    refused 73 'the copy failed' 'make room'
    [[ ! -e $D/run.json && -d $D/.restore ]]
    rm -rf "$BATS_TEST_TMPDIR/shims"
  done
  session
  [[ $status -eq 0 && $(starts a) -eq 1 && ! -e $D/.restore ]] || fail_with 'not brought back'
  bundled a
}

@test "notebook: what came back wrong is not taken (T9)" {
  cell a ok
  install_it
  session
  fresh
  # A copy that says it went well and did not.
  mkdir "$BATS_TEST_TMPDIR/bad"
  printf '#!/bin/bash\n/bin/cp "$@" || exit\n[[ ${*: -1} != *final_ckpts ]] || echo x >>"${*: -1}/a/best.pth"\n' >"$BATS_TEST_TMPDIR/bad/cp"
  chmod +x "$BATS_TEST_TMPDIR/bad/cp"
  PATH=$BATS_TEST_TMPDIR/bad:$PATH session
  refused 74 'it is not what'
  [[ ! -e $D/run.json ]]
}

@test "notebook: another job's run is left alone, two runs of one name want a word (S53)" {
  cell a ok
  install_it
  session
  [[ $status -eq 0 ]]
  cp -R "$SAVED" "$BATS_TEST_TMPDIR/r"
  sed -i 's/"job": "[^"]*"/"job": "other"/' "$SAVED/run.json"
  fresh
  session
  # It is neither taken nor overwritten.
  refused 77 'the copy of another run' 'another name'
  [[ $stderr == *'is no run of'*'left alone'* && $stderr == *'begins anew'* ]] || fail_with 'taken'
  session --from "$SAVED"
  refused 69 'no run of'
  # Both are of this job, and differ in their run id.
  rm -r "$SAVED" && cp -R "$BATS_TEST_TMPDIR/r" "$SAVED"
  mkdir -p "$DRIVE/r" && cp -R "$BATS_TEST_TMPDIR/r/." "$DRIVE/r/"
  sed -i 's/"run_id": "[^"]*"/"run_id": "20990101T000000Z-00000000"/' "$DRIVE/r/run.json"
  fresh
  session
  refused 77 'two runs of this name' '--from'
  session --from "$BATS_TEST_TMPDIR"
  [[ $status -eq 0 && $stderr == *"bringing back $BATS_TEST_TMPDIR/r"* && $(starts a) -eq 1 ]] || fail_with 'not from there'
}

@test "notebook: a copy that came short is not taken for one, and it is said that not all arrived (case 92)" {
  cell a ok
  install_it
  mkdir -p "$BATS_TEST_TMPDIR/bin"
  # Ends with 0 and has copied the first byte alone, as a full quota can look.
  printf '#!/bin/bash\nif [[ ${!#} == %q/*pth* ]]; then head -c 1 "$2" >"${!#}"; else exec %q "$@"; fi\n' "$BATS_TEST_TMPDIR/away" "$(type -P cp)" >"$BATS_TEST_TMPDIR/bin/cp"
  chmod +x "$BATS_TEST_TMPDIR/bin/cp"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH session --save-to "$BATS_TEST_TMPDIR/away"
  [[ $status -eq 74 && $output == *"NOT all of it arrived"* && ! -e $BATS_TEST_TMPDIR/away/r/run.json ]] || fail_with 'taken for a copy'
  session --save-to "$BATS_TEST_TMPDIR/away"
  [[ $status -eq 0 ]] && cmp "$D/cells/a/best.pth" "$BATS_TEST_TMPDIR/away/r/cells/a/best.pth"
}

@test "notebook: of several copies of one run the latest is taken, also from a read-only place some folders deep" {
  cell a ok
  install_it
  session --save-to "$BATS_TEST_TMPDIR/away"
  [[ $status -eq 0 && -s $BATS_TEST_TMPDIR/away/r/run.json && ! -e $SAVED ]] || fail_with 'not saved there'
  mkdir -p "$DRIVE/notebooks/me/old" "$DRIVE/notebooks/me/new"
  cp -R "$BATS_TEST_TMPDIR/away/r" "$DRIVE/notebooks/me/new/"
  cp -R "$BATS_TEST_TMPDIR/away/r" "$DRIVE/notebooks/me/old/"
  printf '2020-01-01T00:00:00Z\trun\t-\t-\told\n' >"$DRIVE/notebooks/me/old/r/events.tsv"
  # A run folder that came home whole, or is a notebook's output, has its scripts and code in it: not these.
  mkdir -p "$DRIVE/notebooks/me/new/r/box/current" "$DRIVE/notebooks/me/new/r/code"
  : >"$DRIVE/notebooks/me/new/r/code/old.py"
  mount --bind "$DRIVE" "$DRIVE" 2>/dev/null && mount -o remount,bind,ro "$DRIVE" || missing_tool 'mount (root)'
  fresh
  session
  [[ $status -eq 0 && $stderr == *"bringing back $DRIVE/notebooks/me/new/r"* && $output == *'and nowhere else: bring it home'* ]] || fail_with 'the wrong one'
  [[ $(starts a) -eq 1 && ! -e $D/code && -L $D/box/current ]]
}

@test "notebook: the code comes from a bundle that lies about; two that differ want a word (S44)" {
  cell a ok
  make_repository "$ROOT/tests/fixtures/trainers" "$BATS_TEST_TMPDIR/repo"
  git -C "$CODE_DIR" bundle create -q "$HOME/code.bundle" main
  head=$(git -C "$CODE_DIR" rev-parse HEAD)
  unset CODE_DIR
  install_it
  session --prepare
  refused 69 'no code.bundle in' 'git bundle create code.bundle main'
  mkdir -p "$DRIVE/datasets/me/code" && cp "$HOME/code.bundle" "$DRIVE/datasets/me/code/"
  cp "$HOME/code.bundle" "$DATA_DIR/"
  session --prepare
  [[ $status -eq 0 && $(git -C "$D/code" rev-parse HEAD) == "$head" && ! -e $D/run.json && $stderr == *'prepared: '* ]] || fail_with 'not prepared'
  session
  [[ $status -eq 0 && $(member "$D/run.json" commit) == "$head" ]] || fail_with 'another commit'
  rm -rf "$D/code"
  git -C "$BATS_TEST_TMPDIR/repo" commit -q --allow-empty -m two && git -C "$BATS_TEST_TMPDIR/repo" bundle create -q "$DATA_DIR/code.bundle" main
  session
  refused 77 'two that differ'
  [[ ! -e $D/code ]]
  printf 'no bundle\n' >"$DATA_DIR/code.bundle" && rm -r "$DRIVE/datasets"
  session
  refused 74 'git cannot clone'
}

@test "notebook: declared data that is mounted somewhere is linked to the code; found twice it is only said (X7)" {
  local job=$BATS_TEST_TMPDIR/data.yaml
  cp "$ROOT/tests/fixtures/trainers/job.yaml" "$job"
  printf 'data:\n  - {path: data/raw, files: 2}\n  - {path: list.txt, files: 1}\n' >>"$job"
  compile_job "$BATS_FILE_TMPDIR/notebook.yaml" "$job"
  cell a ok
  install_it
  mkdir -p "$DRIVE/datasets/me/one/data/raw"
  touch "$DRIVE/datasets/me/one/data/raw/"{1,2} "$DRIVE/list.txt" "$DRIVE/datasets/list.txt"
  session --prepare
  [[ $status -eq 0 && $(readlink "$CODE_DIR/data/raw") == "$DRIVE/datasets/me/one/data/raw" && $stderr == *'data list.txt: found 2 times'* && ! -e $CODE_DIR/list.txt ]] || fail_with 'not linked'
  session
  [[ $status -ne 0 && $(starts a) -eq 0 ]] || fail_with 'ran without its data'
  rm "$DRIVE/datasets/list.txt"
  session
  [[ $status -eq 0 && $(starts a) -eq 1 && -e $CODE_DIR/list.txt ]] || fail_with 'not linked afterwards'
}

@test "notebook: a Drive that was not mounted is a folder of the disk that goes; My Drive lies one below the mount (case 91)" {
  local profile=$BATS_TEST_TMPDIR/drive.yaml
  sed 's|path: /content/drive/MyDrive|path: $DRIVE/MyDrive|' "$ROOT/profiles/colab.yaml" >"$profile"
  compile_job "$profile" "$ROOT/tests/fixtures/trainers/job.yaml"
  cell a ok
  install_it
  mkdir "$DRIVE/MyDrive"
  # What preflight says of a folder of ours on it (durable storage on Drive, against the advice, is a person's to choose).
  said_of_drive() { DURABLE_DIR=$DRIVE/MyDrive/keep bash "$D/box/current/preflight.sh" 2>/dev/null | grep -E 'tier drive' | grep -qF -- "$1"; }
  said_of_drive "$DRIVE is not a mount point" || fail_with 'preflight took a folder of the disk for Drive'
  session
  [[ $status -eq 0 && $stderr == *"drive: $DRIVE/MyDrive is not there"* && $output == *'and nowhere else'* && ! -e $DRIVE/MyDrive/gpu-runbook ]] || fail_with 'not mounted'
  mount -t tmpfs -o size=1m tmpfs "$DRIVE" 2>/dev/null || missing_tool 'mount (root)'
  said_of_drive "and $DRIVE/MyDrive is not in it" || fail_with 'preflight misses My Drive'
  mkdir "$DRIVE/MyDrive"
  said_of_drive "$DRIVE/MyDrive is there, by its proof (mount-parent)" || fail_with 'preflight does not take the mounted Drive'
  session
  [[ $status -eq 0 && $output == *"for the next session, at $DRIVE/MyDrive/gpu-runbook/r" && -s $DRIVE/MyDrive/gpu-runbook/r/run.json ]] || fail_with 'mounted'
}

@test "notebook: where the copy does not arrive it says so, and the run itself is whole (case 38 S67)" {
  cell a ok
  cell b ok
  install_it
  mount -t tmpfs -o size=12k tmpfs "$DRIVE" 2>/dev/null || missing_tool 'mount (root)'
  session
  [[ $status -eq 74 && $output == *'aggregate with 0'*"NOT all of it arrived at $DRIVE/gpu-runbook"* ]] || fail_with 'claimed'
  bundled a && bundled b
  [[ ! -e $SAVED/run.json ]] || fail_with 'a run that is not whole looks whole'
  umount "$DRIVE"
  # One file that does not arrive is enough; the next copy goes on with it.
  mkdir "$BATS_TEST_TMPDIR/bad"
  printf '#!/bin/bash\n[[ ${*: -1} != */a/.best.pth.tmp ]] || exit 1\nexec /bin/cp "$@"\n' >"$BATS_TEST_TMPDIR/bad/cp"
  chmod +x "$BATS_TEST_TMPDIR/bad/cp"
  PATH=$BATS_TEST_TMPDIR/bad:$PATH session
  [[ $status -eq 74 && -e $SAVED/final_ckpts/b/best.pth && ! -e $SAVED/run.json ]] || fail_with 'it looks whole'
  session
  [[ $status -eq 0 && -e $SAVED/final_ckpts/a/best.pth && -e $SAVED/run.json ]] || fail_with 'not made up for'
  # Nor does a record speak of what did not arrive, also where a whole copy is there already.
  cell c ok
  sed -i 's|/a/.best.pth.tmp|/c/.best.pth.tmp|' "$BATS_TEST_TMPDIR/bad/cp"
  PATH=$BATS_TEST_TMPDIR/bad:$PATH session
  [[ $status -eq 74 && -e $D/records/c.json && ! -e $SAVED/records/c.json && ! -e $SAVED/state/c.json && -e $SAVED/records/b.json ]] || fail_with 'a record too early'
  # Nothing that outlives the session is here at all.
  mv "$DRIVE" "$DRIVE.gone"
  DRIVE=/nowhere/$RANDOM session
  [[ $status -eq 0 && $stderr == *'is not there'* && $output == *'and nowhere else: bring it home'* ]] || fail_with 'claimed'
}

@test "notebook: the clock began with the session, not with the cell (S11)" {
  cell a ok
  install_it
  machine
  up() { # <seconds that this session has run>
    local fields
    read -ra fields <<<"$(sed 's/.*) //' /proc/1/stat)"
    echo "$((fields[19] / 100 + $1)).11 0" >"$FAKE_ROOT/proc/uptime"
  }
  start() { run --separate-stderr bash "$D/box/current/session.sh" -- --queue "$Q"; }
  up 1000
  start
  [[ $status -eq 0 && $stderr == *'the session began 1000 s ago: the queue stops in 38600 s'* ]] || fail_with 'no clock'
  up 39500
  start
  refused 77 'it began 39500 s ago' 'begin a new session'
  # Longer than a session can last: then that is not its age.
  up 100000
  start
  [[ $status -eq 0 && $stderr == *'is not known: the queue gets 39600 s from now'* ]] || fail_with 'a wrong clock'
}

@test "notebook: session.sh says what it does, and refuses other words (S9)" {
  install_it
  run --separate-stderr bash "$D/box/current/session.sh" --help
  [[ $status -eq 0 && $output == 'usage: session.sh'* ]]
  for words in --what '--seconds x' '--from' '--seconds -1'; do
    # shellcheck disable=SC2086 # several words
    run --separate-stderr bash "$D/box/current/session.sh" $words
    [[ $status -eq 64 && $stderr == *usage:* ]] || fail_with "$words"
  done
  run --separate-stderr bash "$D/box/current/session.sh" --from relative
  refused 78 'not absolute'
}
