# shellcheck disable=SC2016,SC2153,SC2154 # words for other shells; bats sets status, output and stderr
load helper
load formal
load smoke

setup() { formal_setup; }
teardown() { formal_teardown; }

drilled() { # <member> <value>
  [[ $(member "$D/drill.json" "$1") == "$2" ]] || fail_with "drill.json: $1 is '$(member "$D/drill.json" "$1")', not '$2'"
}

# Issue 5 item 3, S67: SIGKILL behind a checkpoint, the identical command, and the step went on.
@test "smoke --resume: killed behind a checkpoint it goes on; one that starts over is found out" {
  command_is "$(trainer "$FROM")" best.bin
  smoke --resume
  [[ $status -eq 0 && $stderr == *'resumed: smoke was killed at step '* && $(member "$D/smoke.json" result) == passed ]] || fail_with drill
  drilled result passed && drilled cell smoke && drilled where box
  drilled commit "$(git -C "$CODE_DIR" rev-parse HEAD)" && drilled box_digest "$(member "$D/smoke.json" box_digest)"
  [[ $(member "$D/drill.json" command_sha256) =~ ^[0-9a-f]{64}$ ]] && drilled command_sha256_again "$(member "$D/drill.json" command_sha256)"
  # Only what is later than the first step proves anything.
  [[ $(member "$D/drill.json" checkpoint) =~ ^step\ ([2-9]|1[0-2])$ && $(member "$D/drill.json" resumed) =~ ^step\ ([3-9]|1[0-2])$ ]]
  [[ -z $(ls -A "$SCRATCH/gpu-runbook") && $(cd "$D" && ls -A) == $'drill.json\nsmoke.json' ]]
  command_is "$(trainer "$ANEW")" best.bin
  smoke --resume
  failed_because 'began at step 1 again, before step'
  drilled result failed
}

# Issue 5 item 3: steps that begin anew in each epoch are no start from the beginning.
@test "smoke --resume: an epoch and a step on one line are read together" {
  command_is "$(trainer "${FROM/echo 0/echo 2}" 'echo "[Epoch $((n / 4))] Step: 00$((n % 4)) loss 0.5"')" best.bin
  smoke --resume
  [[ $status -eq 0 && $stderr == *'was killed at epoch '*', step '*'went on at epoch '*', step '* ]] || fail_with drill
  # The same lines, and it begins again.
  command_is "$(trainer 'n=2' 'echo "[Epoch $((n / 4))] Step: 00$((n % 4)) loss 0.5"')" best.bin
  smoke --resume
  failed_because 'began at epoch 0, step 3 again'
}

# Issue 5 item 3: what its log says is not all. A word of resuming, steps without a checkpoint, an older checkpoint.
@test "smoke --resume: a log that only says that it resumes is found out" {
  command_is "$(trainer 'echo "resuming at step $(cat "$CELL_DIR/best.bin" 2>/dev/null)"; n=0')" best.bin
  smoke --resume
  failed_because 'began at step 1 again'
  command_is "$(trainer "$FROM" 'echo "step $n"' '[ "$CELL_ATTEMPT" = 1 ] && echo "$n" >"$CELL_DIR/.t"')" best.bin
  smoke --resume
  failed_because 'wrote no newer best.bin'
  # It saves from step 6 on, and goes on behind a step three before that. Step 5 is seen in the log before the save, however slow the look.
  command_is "$(trainer 'n=$(($(cat "$CELL_DIR/best.bin" 2>/dev/null || echo 3) - 3))' 'echo "step $n"' 'touch "$CELL_DIR/best.bin"; [ "$n" = 6 ] && sleep 3; [ "$n" -gt 5 ] && echo "$n" >"$CELL_DIR/.t"')" best.bin
  smoke --resume
  failed_because 'of the newest checkpoint (killed at step'
}

# Issue 5 item 3: the checkpoint's own step, where it can be read, is held against the log and against the next one.
@test "smoke --resume: the step that the checkpoint itself names counts" {
  need_tool python3
  export PY=python3
  local save='echo "{\"model\": [1], \"state\": {\"global_step\": $n}}" >"$CELL_DIR/.t"'
  local from='n=$(grep -o "[0-9]*}}" "$CELL_DIR/best.bin" 2>/dev/null | tr -d "}" || :); n=${n:-0}'
  command_is "$(trainer "$from" 'echo "step $n"' "$save")" best.bin
  smoke --resume
  [[ $status -eq 0 && $(member "$D/drill.json" checkpoint_says) =~ ^step\ [0-9]+$ ]] || fail_with drill
  # It trains anew, and its log counts on.
  command_is "$(trainer 'n=0; past=$(cat "$CELL_DIR/past" 2>/dev/null || echo 0)' 'echo $((past + n)) >"$CELL_DIR/past"; echo "step $((past + n))"' "$save")" best.bin
  smoke --resume
  failed_because 'best.bin says step'
}

# Issue 5 item 3: a smoke of one step cannot be killed in its midst. The smoke counts, and the first cell of the queue is drilled.
@test "smoke --resume: falls back to the first cell of the queue" {
  queue_is "$(trainer "$FROM" 'echo "step $n $CELL_NAME $CELL_RESUME" | tee -a "$DATA_DIR/said"' 'echo "$n" >"$CELL_DIR/.t"' 4000)"
  smoke --resume
  [[ $status -eq 0 && $output == *'smoke on the box'*'resume drill with cell c1 on the box: passed'* ]] || fail_with drill
  drilled cell c1 && drilled result passed
  [[ $(member "$D/smoke.json" result) == passed && $(member "$D/smoke.json" steps) == 1 ]]
  # It was given its own name and the word to resume, and did not go on to its end.
  grep -qE '^step [0-9]+ c1 1$' "$DATA_DIR/said" && not grep -q '^step 300 ' "$DATA_DIR/said"
  not runs_here 'lt 4000'
  [[ -z $(ls -A "$SCRATCH/gpu-runbook") ]]
  queue_is "$(trainer "$ANEW" 'echo "step $n"' 'echo "$n" >"$CELL_DIR/.t"' 4000)"
  smoke --resume
  failed_because 'the drill with cell c1: the second attempt began at step 1 again'
  formal plan
  refused 77 "'failed'"
}

@test "smoke --resume: where nothing can be drilled it is refused, and the smoke stands" {
  smoke --resume
  refused 77 'the resume drill with cell s2' 'two steps' 'more often'
  [[ $(member "$D/smoke.json" result) == passed && ! -e $D/drill.json ]]
  printf '# none\n' >"$BOX/queue.tsv"
  smoke --resume
  refused 77 'no cell to take instead' 'a few more steps'
  : >"$FAIL"
  smoke --resume
  failed_because 'status 3'
}

# Issue 5 item 3: the same command, or it was no drill.
@test "smoke --resume: a command that is another one the second time is found out" {
  export QUEUE=$BOX/queue.tsv
  queue_is "$(trainer "$FROM" 'echo "step $n"; sed -i s/3999/3998/ "$QUEUE"' 'echo "$n" >"$CELL_DIR/.t"' 3999)"
  smoke --resume
  failed_because 'the command of the two attempts is not the same'
  [[ $(member "$D/drill.json" command_sha256) != "$(member "$D/drill.json" command_sha256_again)" ]]
}
