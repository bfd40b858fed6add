#!/usr/bin/env bats
# The paste under harm, and the runbook's own blocks of a notebook: asked and brought home from here.
load helper
load cells
load notebook
bats_require_minimum_version 1.5.0
setup() { notebook_setup; }
teardown() { notebook_teardown; }

@test "notebook: killed at a random moment the paste leaves the old scripts or the new ones" {
  install_it
  old=$(readlink "$D/box/current")
  other=$BATS_FILE_TMPDIR/other.yaml
  sed 's/minutes: 1/minutes: 2/' "$ROOT/tests/fixtures/trainers/job.yaml" >"$other"
  compile_job "$BATS_FILE_TMPDIR/notebook.yaml" "$other"
  for delay in 0.02 0.03 0.04 0.05 0.06 0.07 0.08 0.1; do
    (timeout -s KILL "$delay" "$PYTHON" "$OUT/notebook/install_cell.py" || :) >/dev/null 2>&1
    now=$(readlink "$D/box/current")
    [[ $(cd "$D/box/current" && LC_ALL=C sha256sum -- * | sha256sum) == "$now"* ]] || fail_with "not whole after $delay s"
  done
  install_it
  [[ $(readlink "$D/box/current") != "$old" && $(ls -A "$D/box" | wc -l) -eq 3 ]]
}

# A stand-in for the platform's tool: what the version left lies in VERSION; its words are checked as the real one's parser takes them.
version_tool() { # <state>
  mkdir -p "$HOME/bin"
  cat >"$HOME/bin/kaggle" <<TOOL
#!/bin/bash
[[ \$1 == kernels && \$3 == me/demo ]] || exit 2
case \$2,\${*:4} in
  status,) echo 'me/demo has status "KernelWorkerStatus.$1"' ;;
  logs,-f) cat "$HOME/said" ;;
  output,'-o -p '*) mkdir -p "\$6" && cp -R "$HOME/version/." "\$6" ;;
  *) exit 2 ;;
esac
TOOL
  chmod +x "$HOME/bin/kaggle"
}
step_block() { # <step>    the first block behind it
  awk -v step="**$1**" 'index($0, step) { here = 1 } here && /^ *```$/ && inside { exit } inside { print } here && /^ *```bash$/ { inside = 1 }' "$OUT/RUNBOOK.md"
}

@test "notebook: a pushed version is asked and brought home from here, when its box is gone (S82 S86 S87 S90)" {
  compile_job kaggle "$ROOT/tests/fixtures/runbook/tiny.yaml"
  export RUN=tiny LOCAL_DIR=$HOME/runs INSTANCE=me/demo PATH=$HOME/bin:$PATH
  local copy=$BATS_TEST_TMPDIR/copy step
  cp -R "$OUT" "$copy"
  phase() { run --separate-stderr bash "$copy/local/verify_phase.sh" "$1"; }
  phase 3
  [[ $status -eq 69 && $output == *'NOT KNOWN'* ]] || fail_with 'without the tool'
  version_tool ERROR
  phase 4
  [[ $status -eq 1 && $output == *FAIL* ]] || fail_with 'an error passed'
  version_tool RUNNING
  phase 3
  [[ $status -eq 0 && $output == *PASS* ]] || fail_with 'P3'
  (cd "$copy" && bash -c "set -e; $(step_block P3.2)")
  machine # its clock, not that of this machine, which may be up for longer than a session lasts
  # Its machine has no variable of this shell: the file says which run and where.
  env -u RUN -u DATA_DIR "$PYTHON" "$copy/run.py" >"$HOME/said" 2>&1
  mkdir -p "$LOCAL_DIR/kaggle.tiny" && echo mine >"$LOCAL_DIR/kaggle.tiny/smoke.json"
  mv "$DATA_DIR" "$HOME/version"
  version_tool COMPLETE
  unset DATA_DIR CODE_DIR
  for step in P5.1 P5.3 P5.2 P5.4; do
    run --separate-stderr bash -c "set -e; $(step_block "$step")"
    [[ $status -eq 0 ]] || fail_with "$step"
    [[ $step != P5.1 || $output == *'session of run tiny: the queue ended with 0, aggregate with 0'* ]] || fail_with 'P5.1 does not tell'
    [[ $step != P5.2 || $output == *2 ]] || fail_with 'not two records'
  done
  phase 5
  [[ $status -eq 0 && $output == *'OK 2/2, errors 0'* ]] || fail_with 'P5'
  [[ $(<"$LOCAL_DIR/kaggle.tiny/smoke.json") == mine && -s $LOCAL_DIR/kaggle.tiny.logs.tgz ]]
}

@test "notebook: the blocks of a session's own box show what a cell prints, and bring the results home as one file (S67 S87 S90)" {
  compile_job colab "$ROOT/tests/fixtures/runbook/tiny.yaml"
  export RUN=tiny LOCAL_DIR=$HOME/runs
  local step verify
  install_it && machine
  D=$DATA_DIR/tiny
  "$PYTHON" "$OUT/notebook/run_cell.py" >/dev/null 2>&1
  echo 'epoch 1/12' >>"$D/logs/k1/attempt-001.log"
  verify=$(awk '/^## Phase 3/ { here = 1 } here && /^```$/ && inside { exit } inside { print } here && /^```bash verify/ { inside = 1 }' "$OUT/RUNBOOK.md")
  run --separate-stderr bash -c "$verify"
  [[ $status -eq 0 && $output == *k1*'epoch 1/12'* && $output != *'environment names'* ]] || fail_with 'P3'
  run --separate-stderr bash -c "set -e; cd $(printf %q "$HOME"); $(step_block P5.2); $(step_block P5.3); $(step_block P5.4); mv \"\$DATA_DIR\"/home.tar .
    mkdir -p \"\$LOCAL_DIR/colab.tiny\" && tar -xof home.tar -C \"\$LOCAL_DIR/colab.tiny\""
  [[ $status -eq 0 && $output == 2 && -s $DATA_DIR/logs.tgz ]] || fail_with 'P5'
  run --separate-stderr bash "$OUT/local/verify_phase.sh" 5
  [[ $status -eq 0 && $output == *'OK 2/2, errors 0'* ]] || fail_with 'verify P5'
}
