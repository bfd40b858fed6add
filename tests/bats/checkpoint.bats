#!/usr/bin/env bats
# A resumed cell is told its newest complete checkpoint, where the job says what complete means (case 35, case 36, S50).
# shellcheck disable=SC2016 # words for the cells' commands
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

with_checkpoint() { # <yaml>
  sed 's/prune: \[latest.pth\]}/prune: [latest.pth], checkpoint: '"$1"'}/' "$ROOT/tests/fixtures/trainers/job.yaml" >"$BATS_TEST_TMPDIR/job.yaml"
  compile_job local "$BATS_TEST_TMPDIR/job.yaml"
  BOX=$OUT/box
}
# A cell whose first attempt runs the words in its folder and fails; the second one says what it was handed.
resumes() { # <name> <words>
  printf '%s\tif ((CELL_RESUME)); then echo "handed <${CELL_CHECKPOINT-unset}>"; bash trainer.sh ok; else cd "$CELL_DIR"; %s; exit 7; fi\n' "$1" "$2" >>"$Q"
  one "$1"
  [[ $status -eq 7 ]]
  one "$1"
  [[ $status -eq 0 ]]
  LOG=$D/logs/$1/attempt-002.log
}
handed() { # <path below the cell's folder, or nothing>
  grep -qxF "handed <${1:+$D/cells/$CELL_IS/}${1-}>" "$LOG" || fail_with "$(<"$LOG")"
}

@test "folders 9, 10, 100: numbers count as numbers, and what lacks a file or has an empty one is named and left alone (case 35)" {
  with_checkpoint '{pattern: "step_*", files: [model.bin, state.json]}'
  CELL_IS=a
  resumes a 'for n in 9 10 100; do mkdir step_$n; echo x >step_$n/model.bin; echo x >step_$n/state.json; done; : >step_10/state.json; rm step_100/model.bin'
  handed step_9
  grep -q 'checkpoint step_100 is not complete: model.bin is missing or empty; left alone' "$LOG"
  grep -q 'checkpoint step_10 is not complete: state.json is missing or empty; left alone' "$LOG"
  [[ -e $D/cells/a/step_100/state.json && -e $D/cells/a/step_10/state.json ]]
  CELL_IS=b
  resumes b 'for n in 9 10 100; do mkdir step_$n; echo x >step_$n/model.bin; echo x >step_$n/state.json; done; touch -d "1 hour" step_9'
  handed step_100
  CELL_IS=c
  resumes c 'mkdir step_1; : >step_1/model.bin'
  handed ''
  CELL_IS=d
  resumes d 'mkdir "step_08 of 2"; mkdir step_9; echo x | tee "step_08 of 2/model.bin" "step_08 of 2/state.json" step_9/model.bin >step_9/state.json'
  handed step_9
}

@test "a marker beside a file or in a folder, written last; an empty file, a link and a temporary one are none (case 35, case 36)" {
  with_checkpoint '{pattern: "e*", marker: .ok}'
  CELL_IS=a
  resumes a 'echo x >e1.pth; : >e1.pth.ok; echo x >e2.pth; : >e3.pth; : >e3.pth.ok; ln -s e1.pth e4.pth; : >e4.pth.ok; echo x >e5.pth.tmp'
  handed e1.pth
  grep -q 'checkpoint e2.pth is not complete: there is no .ok' "$LOG"
  grep -q 'checkpoint e3.pth is not complete: it is empty' "$LOG"
  CELL_IS=b
  resumes b 'mkdir e1 e2 e10; : >e1/.ok; : >e2/.ok'
  handed e2
}

@test "the least that one holds; without numbers the newest by time; busybox says the same (case 35)" {
  with_checkpoint '{pattern: "*.pth", bytes: 6}'
  busybox_path
  CELL_IS=a
  resumes a 'echo 12345 >old.pth; touch -t 202001010000 old.pth; echo 12345 >new.pth; echo 1 >cut.pth'
  handed new.pth
  grep -q 'checkpoint cut.pth is not complete: 2 bytes, less than 6' "$LOG"
}

@test "nothing declared: nothing is handed; a value from outside does not reach the cell; a first attempt has none (S50)" {
  CELL_IS=a
  export CELL_CHECKPOINT=/elsewhere
  resumes a 'echo x >step_1.pth'
  grep -qx 'handed <unset>' "$LOG"
  with_checkpoint '{pattern: "step_*", marker: .ok}'
  printf 'f\techo "handed <${CELL_CHECKPOINT-unset}>"; bash trainer.sh ok\n' >>"$Q"
  one f
  grep -qx 'handed <unset>' "$D/logs/f/attempt-001.log"
}
