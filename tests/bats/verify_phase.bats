#!/usr/bin/env bats
# verify_phase: the verify block of one phase, run as it stands in the runbook; pass, fail or not known, with the evidence.
# shellcheck disable=SC2154 # bats sets status, output and stderr
load helper

phase() { # <words…>
  run --separate-stderr bash "$OUT/local/verify_phase.sh" "$@"
}
ends_in() { # <code> <words of the last line>
  [[ $status -eq $1 && ${lines[${#lines[@]} - 1]} == *"$2"* ]] || fail_with "not $1 with: $2"
}
own_copy() { # <profile>    a compiled folder that this test may change
  compile_job "$1" demo
  cp -R "$OUT" "$BATS_TEST_TMPDIR/mine"
  OUT=$BATS_TEST_TMPDIR/mine
}
code_with_origin() { # the person's code, as phase -1 wants it: its branch is at an origin that answers
  export CODE_DIR=$BATS_TEST_TMPDIR/code
  git init -q --bare "$BATS_TEST_TMPDIR/origin.git"
  git init -q -b main "$CODE_DIR"
  git -C "$CODE_DIR" -c user.name=t -c user.email=t@example.invalid commit -q --allow-empty -m start
  git -C "$CODE_DIR" remote add origin "$BATS_TEST_TMPDIR/origin.git"
  git -C "$CODE_DIR" push -q origin main
}
put_block() { # <phase> <command> <expected>    in place of that phase's block
  awk -v section="## Phase $1:" -v command="$2" -v expected="$3" '
    index($0, "## ") == 1 { here = index($0, section) == 1 }
    here && /^```bash verify$/ { print; print command; skip = 1; next }
    here && /^```text expected$/ { print; print expected; skip = 1; next }
    skip && /^```$/ { skip = 0 }
    !skip { print }' "$OUT/RUNBOOK.md" >"$OUT/new" && mv "$OUT/new" "$OUT/RUNBOOK.md"
}

@test "verify_phase: copied alone it explains itself, and without the runbook nothing is known (S8)" {
  compile_job local demo
  mkdir -p "$BATS_TEST_TMPDIR/alone/local"
  cp "$OUT/local/verify_phase.sh" "$BATS_TEST_TMPDIR/alone/local/"
  OUT=$BATS_TEST_TMPDIR/alone
  phase --help
  [[ $status -eq 0 && $output == 'usage: verify_phase.sh N [HOST]'* ]]
  phase 0
  refused 69 'no readable RUNBOOK.md'
}

@test "verify_phase: a wrong call is 64" {
  compile_job local demo
  local words
  for words in '' 6 -2 x '0 a b' '0 -oProxyCommand=x' 00; do
    # shellcheck disable=SC2086 # words
    phase $words
    [[ $status -eq 64 && $stderr == usage:* ]] || fail_with "words: $words"
  done
}

@test "verify_phase: it passes with the block, what it printed and what was expected (S8 S22)" {
  compile_job local demo
  code_with_origin
  phase -1
  ends_in 0 'phase -1 of demo on local (here): PASS'
  [[ $output == *'block:
  git -C "${CODE_DIR:?}" ls-remote --exit-code origin refs/heads/main >/dev/null && echo reachable
printed:
  reachable
expected:
  reachable'* && $output != *note:* ]]
}

@test "verify_phase: on one's own machine phase -1 does not pass before the code has its branch at an origin (S22)" {
  compile_job local demo
  phase -1
  ends_in 69 'NOT KNOWN'
  [[ $output == *CODE_DIR* ]]
  code_with_origin
  git -C "$BATS_TEST_TMPDIR/origin.git" branch -m main other
  phase -1
  ends_in 1 FAIL
  rm -rf "$BATS_TEST_TMPDIR/origin.git"
  phase -1
  [[ $status -ne 0 && $output != *PASS* ]]
}

@test "verify_phase: each phase of each kind has a block that is found" {
  local name n
  for name in local runpod slurm kubernetes kaggle; do
    compile_job "$name" demo
    for n in -1 0 1 2 3 4 5; do
      # No host is given and no kubectl is there: what counts is that no block is missing.
      run --separate-stderr env KUBECONFIG=/dev/null INSTANCE=none bash "$OUT/local/verify_phase.sh" "$n"
      [[ $status -ne 65 && $status -ne 64 ]] || fail_with "$name, phase $n"
    done
  done
}

@test "verify_phase: what is not there fails, and never passes (S8)" {
  compile_job local demo
  phase 2
  ends_in 1 'FAIL (exit code'
  ends_in 1 '; do the steps P'
  [[ $output == *'smoke.json: No such file'* ]]
  phase 5
  ends_in 69 'NOT KNOWN'
}

@test "verify_phase: the expected word has to be printed, whatever the exit code (S46)" {
  own_copy local
  put_block 1 'echo False' True
  phase 1
  ends_in 1 "no line 'True'"
  put_block 1 'printf "True\r\n"' True
  phase 1
  ends_in 0 PASS
  put_block 1 'echo True; exit 3' True
  phase 1
  ends_in 1 'FAIL (exit code 3)'
  put_block 1 'false | echo True' True
  phase 1
  ends_in 1 'FAIL (exit code 1)'
}

@test "verify_phase: a tool that is missing or a box that does not answer is not known" {
  own_copy local
  local code
  for code in 69 127 255; do
    put_block 3 "exit $code" x
    phase 3
    ends_in 69 "NOT KNOWN (exit code $code"
    ends_in 69 '; is a step P3.x still open, does the box answer'
  done
}

@test "verify_phase: an edited runbook is named, and its block is run as it stands" {
  own_copy local
  code_with_origin
  sed 's/^- \[ \] \*\*P0 done/- [x] **P0 done/' "$OUT/RUNBOOK.md" >"$OUT/new" && mv "$OUT/new" "$OUT/RUNBOOK.md"
  phase -1
  ends_in 0 PASS
  [[ $output == *'RUNBOOK.md was edited since it was compiled'* ]]
  rm "$OUT/SOURCES.json"
  phase -1
  ends_in 0 PASS
  [[ $output == *'does not tell whether'* ]]
}

@test "verify_phase: a runbook without the block is 65" {
  own_copy local
  grep -v '^```bash verify$' "$OUT/RUNBOOK.md" >"$OUT/new" && mv "$OUT/new" "$OUT/RUNBOOK.md"
  phase 0
  refused 65 'no verify block'
}

@test "verify_phase: the host is checked, then handed to the block; its text loses control characters" {
  own_copy runpod
  phase 3
  refused 78 HOST 'not set'
  phase 3 "$(hostname)"
  refused 78 'this machine itself'
  phase 3 'a;b'
  refused 78 'no ssh alias'
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/bash\n[[ $1 != -n ]] || shift\nprintf "to %%s\\033[2J\\n" "$1"\n' >"$BATS_TEST_TMPDIR/bin/ssh"
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH phase 3 box-alias
  ends_in 0 'on runpod (box-alias): PASS'
  [[ $output == *'  to box-alias[2J'* && $output != *$'\033'* ]]
}

@test "verify_phase: where nothing leads to the box, a block for the box is shown, not run here" {
  compile_job colab demo
  phase 3
  refused 69 'for the box' 'type it on the box: '
  phase 1
  # What is shown can be typed as it stands.
  refused 69 'type it on the box: '
  bash -n <<<"${stderr##*type it on the box: }" || fail_with 'what is shown is no command'
  phase 5
  ends_in 69 'NOT KNOWN'
}

@test "verify_phase: it works with busybox's tools" {
  need_tool busybox
  compile_job local demo
  code_with_origin
  busybox_path
  phase -1
  ends_in 0 PASS
}
