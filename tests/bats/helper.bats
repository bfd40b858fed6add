#!/usr/bin/env bats
# The helpers themselves: a check that cannot fail proves nothing.

load helper

@test "fail_nth: the second call fails with code and words, the others are real, all are recorded" {
  fail_nth sha256sum 2 5 'No space left on device'
  echo x >"$BATS_TEST_TMPDIR/a b"
  sha256sum "$BATS_TEST_TMPDIR/a b"
  run --separate-stderr sha256sum "$BATS_TEST_TMPDIR/a b"
  [[ $status -eq 5 && $stderr == 'sha256sum: No space left on device' ]]
  sha256sum "$BATS_TEST_TMPDIR/a b"
  [[ $(wc -l <"$SHIMS/sha256sum.calls") -eq 3 && $(head -n 1 "$SHIMS/sha256sum.calls") == *'a\ b '* ]]
}

@test "refused: another code, a missing word and a line without its three parts are found out" {
  run --separate-stderr bash -c 'echo "x.sh: refused: disk is full; 3 of 9 bytes; buy more" >&2; exit 73'
  refused 73 'disk is full' 'buy more'
  run ! refused 74 'disk is full'
  status=73
  run ! refused 73 'no such word'
  run --separate-stderr bash -c 'echo "x.sh: refused: disk is full" >&2; exit 73'
  run ! refused 73 'disk is full'
}

@test "box_path_only: no python, perl or jq, and bash with sha256sum works" {
  box_path_only
  local tool
  for tool in python python3 perl jq; do
    run ! type -P "$tool"
  done
  bash -c 'echo x | sha256sum >/dev/null'
}

@test "busybox_path: applets come first, bash stays bash" {
  need_tool busybox
  busybox_path
  [[ $(stat --help 2>&1) == *BusyBox* ]]
  [[ $(bash --version) == *'GNU bash'* ]]
}

@test "wait_for: gives up when the time is over" {
  run ! wait_for 1 false
  wait_for 5 true
}

@test "compile_job: compiles once and a refusal of the compiler fails the test" {
  run ! compile_job local no-such-job
}
