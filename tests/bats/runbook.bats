#!/usr/bin/env bats
# The runbook is what a person types: its own blocks, in its own order, on this machine.
# shellcheck disable=SC2154 # bats sets status, output and stderr
load helper
load sshd
setup() {
  common_setup
  # Nothing of a test stays in the machine's own /tmp: here, and on the box by its start-up file.
  export SCRATCH=$BATS_TEST_TMPDIR/scratch
  mkdir "$SCRATCH"
}
teardown() { sshd_stop; }
box_scratch() { echo "export SCRATCH=$SCRATCH" >"$BOX_HOME/.bashrc"; }

# The N-th fenced block (from 1) of SECTION whose info string is INFO, without the indent of its list.
block() { # <section's beginning> <info> <n>
  awk -v section="## $1" -v info="\`\`\`$2" -v n="$3" '
    index($0, "## ") == 1 { here = index($0, section) == 1 }
    here && !inside { line = $0; sub(/^ +/, "", line); if (line == info && ++count == n) { inside = 1; indent = length($0) - length(line); next } }
    inside { line = substr($0, indent + 1); if (line == "```") exit; print line }' "$OUT/RUNBOOK.md"
}

# Type a block as a person does, with the values that only they know.
type_block() { # <section's beginning> <info> <n>
  local text
  text=$(block "$@")
  [[ -n $text ]] || fail_with "no block $*"
  run --separate-stderr bash -c "cd $(printf '%q' "$OUT") && export CODE_DIR=$(printf '%q' "$CODE_DIR") INSTANCE=local PRICE_PER_HOUR=0; ${VALUES-} set -e; $text"
}
ended_well() { [[ $status -eq 0 ]] || fail_with "$1"; }

@test "runbook: typed block by block on this machine, it launches, finishes, comes home and opens the gate (case 134 S4 S22 S57 S66 S82 S90)" {
  need_tool git tmux
  compile_job local tests/fixtures/runbook/tiny.yaml
  mkdir "$BATS_TEST_TMPDIR/src" && echo '*.sh text eol=lf' >"$BATS_TEST_TMPDIR/src/.gitattributes"
  make_repository "$BATS_TEST_TMPDIR/src"
  local line n
  type_block 'Phase -1' 'bash verify' 1
  ended_well 'P-1' && [[ $output == reachable ]]
  type_block 'Phase 0' 'bash verify' 1
  ended_well 'P0'
  # Nothing is home yet: the gate says so.
  run --separate-stderr bash -c "cd $(printf '%q' "$OUT") && local/teardown.sh finish --run --approve 'finish local nothing'"
  refused 77
  # The short path, line by line; its last one, the patrol, may not know yet while cells of no length come and go.
  while IFS= read -r line; do
    [[ $line != local/patrol.sh* ]] || wait_for 60 grep -q '"state": "success"' "$HOME/gpu-runs-box/tiny/formal.json"
    run --separate-stderr bash -c "cd $(printf '%q' "$OUT") && export CODE_DIR=$(printf '%q' "$CODE_DIR") && $line"
    ended_well "short path: $line"
  done < <(block 'Short path' bash 1)
  type_block 'Phase 2' 'bash verify' 1
  ended_well 'P2' && [[ $output == *'"result": "passed"'* ]]
  type_block 'Phase 3' 'bash verify' 1
  ended_well 'P3'
  type_block 'Phase 4' 'bash verify' 1
  ended_well 'P4' && [[ -n $output ]]
  # Phase 5: aggregate, count, pull, verify, and the gate.
  for n in 1 2 3 4; do
    type_block 'Phase 5' bash "$n"
    ended_well "P5, block $n"
    [[ $n != 2 || $output == *2 ]] || fail_with 'not two records'
  done
  # All that a teardown would name as in no bundle, but code and checkpoints.
  for n in logs/k1/attempt-001.log formal.log environment.txt starts/; do
    tar -tzf "$HOME/gpu-runs/local.tiny.logs.tgz" | grep -qxF "./$n" || fail_with "$n is not home"
  done
  ! tar -tzf "$HOME/gpu-runs/local.tiny.logs.tgz" | grep -qE '^./(code|cells|final_ckpts|box)/' || fail_with 'more than the logs'
  type_block 'Phase 5' 'bash verify' 1
  ended_well 'P5' && [[ $output == *'OK 2/2, errors 0'* ]]
  type_block 'Phase 5' bash 5
  ended_well 'the gate' && [[ $output == *'The gate is open. Nothing was done.'* ]]
  # With --run and without anybody there, it stays shut.
  type_block 'Phase 5' bash 6
  refused 77 'nobody approved it'
}

@test "runbook: another RUN and other folders hold on both sides, over ssh (case 131 S49)" {
  need_tool git tmux rsync
  local line
  sshd_start
  box_scratch
  printf '%s\n' "  UserKnownHostsFile $SSHD_DIR/known" >>"$SSHD_DIR/client"
  compile_job generic-ssh tests/fixtures/runbook/tiny.yaml
  mkdir "$BATS_TEST_TMPDIR/src" && echo '*.sh text eol=lf' >"$BATS_TEST_TMPDIR/src/.gitattributes"
  make_repository "$BATS_TEST_TMPDIR/src"
  # The person's own block, with another run and another folder in it.
  VALUES="export DATA_DIR=$BOX_HOME/other; $(block 'Your values' bash 1 | sed 's/HOST=[^ ]*/HOST=demo-pod/; s/RUN=tiny$/RUN=tiny.2/; s/INSTANCE=""/INSTANCE=pod-1/; s/CODE_DIR=.*//')"$'\n'
  type_block 'Phase -1' 'bash verify' 1
  ended_well 'P-1' && [[ $output == reachable ]]
  while IFS= read -r line; do
    [[ $line != local/patrol.sh* ]] || wait_for 60 grep -q '"state": "success"' "$BOX_HOME/other/tiny.2/formal.json"
    run --separate-stderr bash -c "cd $(printf '%q' "$OUT") && $VALUES export CODE_DIR=$(printf '%q' "$CODE_DIR"); $line"
    ended_well "short path: $line"
  done < <(block 'Short path' bash 1 && block 'Short path' bash 2)
  for line in 'Phase 2' 'Phase 3' 'Phase 4'; do
    type_block "$line" 'bash verify' 1
    ended_well "$line"
  done
  for line in 1 2 3 4; do
    type_block 'Phase 5' bash "$line"
    ended_well "P5, block $line"
  done
  [[ -s $HOME/gpu-runs/generic-ssh.tiny.2.logs.tgz ]] || fail_with 'the logs are not home'
  type_block 'Phase 5' 'bash verify' 1
  ended_well 'P5' && [[ $output == *'OK 2/2, errors 0'* ]]
  # Nothing of it lies, and nothing was read, in the folders that were compiled in.
  [[ ! -e $HOME/gpu-runs/generic-ssh.tiny && $(cd "$BOX_HOME" && find . -name 'tiny' | wc -l) -eq 0 ]] || fail_with 'the compiled folders were used'
  VALUES=${VALUES/tiny.2/tiny.3}
  type_block 'Phase 2' 'bash verify' 1
  [[ $status -ne 0 ]] || fail_with 'P2 passed for a run that never was, by the record of another'
}

@test "runbook: pull-only, the old box is gone: what was pulled goes back to the new one, and only the rest runs (case 131 F23)" {
  need_tool git tmux rsync
  local line
  sshd_start
  box_scratch
  printf '%s\n' "  UserKnownHostsFile $SSHD_DIR/known" >>"$SSHD_DIR/client"
  compile_job generic-ssh tests/fixtures/runbook/tiny.yaml
  mkdir "$BATS_TEST_TMPDIR/src" && echo '*.sh text eol=lf' >"$BATS_TEST_TMPDIR/src/.gitattributes"
  make_repository "$BATS_TEST_TMPDIR/src"
  VALUES="$(block 'Your values' bash 1 | sed 's/HOST=[^ ]*/HOST=demo-pod/; s/INSTANCE=""/INSTANCE=pod-1/; s/CODE_DIR=.*//')"$'\n'
  type_block 'Phase -1' 'bash verify' 1
  ended_well 'P-1'
  launch() { # [anything: what was pulled is sent back]
    type_block 'Phase 1' bash 1
    ended_well 'push'
    [[ -z ${1-} ]] || { type_block 'Failure handling' bash 1 && ended_well 'sent back'; }
    type_block 'Phase 2' bash 3
    ended_well 'P2.6'
    type_block 'Phase 3' bash 2
    ended_well 'P3.2'
    wait_for 60 grep -q '"state": "success"' "$BOX_HOME/gpu-runs/tiny/formal.json"
  }
  launch
  type_block 'Phase 5' bash 3
  ended_well 'P5.3'
  # As if it had been pulled when the first of the two was done; then the box is gone, and its successor is empty.
  rm -rf "$HOME"/gpu-runs/generic-ssh.tiny/{final_ckpts/k2,records/k2.json,records/k2.sha256}
  rm -rf "${BOX_HOME:?}"/* && sshd_new_key
  type_block 'Phase -1' 'bash verify' 1
  [[ $status -ne 0 ]] || fail_with 'ssh took another host key'
  # shellcheck disable=SC2016 # as it stands there: P-1.10 names what makes ssh itself look anew
  grep -qF 'ssh-keygen -R "[$ADDRESS]:$PORT"' "$OUT/RUNBOOK.md"
  ADDRESS=127.0.0.1 PORT=$SSHD_PORT && ssh-keygen -f "$SSHD_DIR/known" -R "[$ADDRESS]:$PORT" 2>/dev/null
  type_block 'Phase -1' 'bash verify' 1
  ended_well 'P-1 of the new box'
  run --separate-stderr bash -c "cd $(printf '%q' "$OUT") && $VALUES CODE_DIR=$(printf '%q' "$CODE_DIR") local/push.sh demo-pod --new-host-key"
  ended_well 'push to the new box'
  launch back
  [[ ! -e $BOX_HOME/gpu-runs/tiny/logs/k1 && -s $BOX_HOME/gpu-runs/tiny/logs/k2/attempt-001.log ]] || fail_with 'a pulled cell ran again, or the other did not'
  type_block 'Phase 5' bash 3
  ended_well 'P5.3 of the same run'
  type_block 'Phase 5' 'bash verify' 1
  ended_well 'P5' && [[ $output == *'OK 2/2, errors 0'* ]]
}

@test "runbook: the one Slurm job takes the run over from another node, aggregates, and leaves box/ as it was (case 131 F23)" {
  need_tool git rsync
  local line
  sshd_start
  box_scratch
  printf '%s\n' "  UserKnownHostsFile $SSHD_DIR/known" >>"$SSHD_DIR/client"
  # A stand-in for the scheduler: flags off, then the words; the job file comes through the input.
  # shellcheck disable=SC2016 # the text of a script
  printf '%s\n' '#!/bin/bash' 'while [[ $1 == -* ]]; do shift; done' 'exec "$@"' >"$BOX_BIN/srun"
  # shellcheck disable=SC2016 # the text of a script
  printf '%s\n' '#!/bin/bash' 'for word; do [[ $word != --output=* ]] || out=${word#--output=}; done' 'cat >"$HOME/job"' \
    'bash "$HOME/job" >"${out/\%j/4711}" 2>&1 </dev/null; echo 4711' >"$BOX_BIN/sbatch"
  chmod +x "$BOX_BIN"/*
  compile_job slurm tests/fixtures/runbook/tiny.yaml
  mkdir "$BATS_TEST_TMPDIR/src" && echo '*.sh text eol=lf' >"$BATS_TEST_TMPDIR/src/.gitattributes"
  make_repository "$BATS_TEST_TMPDIR/src"
  VALUES="export DATA_DIR=$BOX_HOME/scratch; $(block 'Your values' bash 1 | sed 's/HOST=[^ ]*/HOST=demo-pod/; s/CODE_DIR=.*//')"$'\n'
  type_block 'Phase -1' 'bash verify' 1
  ended_well 'P-1' && [[ $output == reachable ]]
  while IFS= read -r line; do
    run --separate-stderr bash -c "cd $(printf '%q' "$OUT") && $VALUES export CODE_DIR=$(printf '%q' "$CODE_DIR"); $line"
    ended_well "short path: $line"
  done < <(block 'Short path' bash 1 && block 'Short path' bash 2)
  # The first node took the run and died.
  type_block 'Phase 3' bash 1
  ended_well 'P3.2' && [[ $output == 4711 ]]
  sed -i 's/^  "host": ".*"/  "host": "node-1"/' "$BOX_HOME/scratch/tiny/run.json"
  rm "$BOX_HOME/scratch/tiny/records/k2.json" "$BOX_HOME"/gpu-runs/tiny/records/k2.json 2>/dev/null || :
  type_block 'Phase 3' bash 1
  ended_well 'P3.2 again' && grep -q 'adopt' "$BOX_HOME/scratch/tiny/events.tsv" || fail_with "$(cat "$BOX_HOME"/scratch/tiny/logs/slurm-4711.out)"
  [[ $(find "$BOX_HOME/gpu-runs/tiny/records" -name '*.json' | wc -l) -eq 2 ]] || fail_with 'not aggregated'
  # The number is recorded by another push: nothing of the job lies in box/.
  VALUES=${VALUES/none-yet/4711}
  type_block 'Phase 1' bash 1
  ended_well 'push again' && grep -q '"instance": "4711"' "$HOME/gpu-runs/slurm.tiny/box.json"
}
