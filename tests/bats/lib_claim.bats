#!/usr/bin/env bats
# lib/claim and lib/queue: the numbers only grow; one reader of queues.
load helper

setup() {
  common_setup
  PROG=test D=$BATS_TEST_TMPDIR/run
  mkdir -p "$D"
  load_libs queue claim
  event() { :; }
}

@test "the highest number counts, also past 999, and whatever else lies there does not (case 45)" {
  mkdir -p "$D/claims/a"
  last_claim a
  [[ $CLAIM_N -eq 0 && $CLAIM_STATE == none ]]
  for n in 001 009 010 1000 x .probe 12.tmp; do echo "other b 1 2" >"$D/claims/a/$n"; done
  last_claim a
  [[ $CLAIM_N -eq 1000 && $CLAIM_STATE == foreign ]]
  take_claim a
  [[ $ATTEMPT -eq 1001 && -s $D/claims/a/1001 ]]
  last_claim a
  [[ $CLAIM_STATE == live && $CLAIM_PID == "$$" ]]
}

@test "a claim that exists is never taken over, and never overwritten (T17)" {
  mkdir -p "$D/claims/a"
  echo "$HOSTNAME b 1 2" >"$D/claims/a/001"
  CLAIM_N=0
  before=$(cat "$D/claims/a/001")
  rc=0
  take_claim a || rc=$?
  [[ $rc -eq 75 && $before == "$(cat "$D/claims/a/001")" ]]
}

@test "a claim that cannot be written is no room, not busy" {
  [[ $EUID -eq 0 ]] || chmod 500 "$D"
  mkdir -p "$BATS_TEST_TMPDIR/small"
  mount -t tmpfs -o size=4k,nr_inodes=3 tmpfs "$BATS_TEST_TMPDIR/small" 2>/dev/null || missing_tool 'mount (root)'
  D=$BATS_TEST_TMPDIR/small
  mkdir -p "$D/claims" && : >"$D/fill" 2>/dev/null || :
  CLAIM_N=0 rc=0
  take_claim a || rc=$?
  umount "$BATS_TEST_TMPDIR/small"
  [[ $rc -eq 73 ]]
}

@test "the reader: last line without newline, comments, blanks, CR, BOM; tabs in the command stay (T11-T15, case 38, case 39)" {
  printf '\xef\xbb\xbf# c\r\n\r\na\tone\ttwo \r\n\n  \nb\tx' >"$HOME/q"
  read_queue "$HOME/q"
  [[ ${#QUEUE_NAMES[@]} -eq 2 && ${QUEUE_NAMES[1]} == b && ${QUEUE_COMMANDS[0]} == $'one\ttwo ' ]]
  for text in 'no tab' 'a/b\tx' '-a\tx' 'a\t' 'a\t  ' 'a\tx\na\ty' 'a\tx\nA\ty' 'a\tx\001y' '\tx'; do
    printf -- "$text" >"$HOME/q"
    run --separate-stderr read_queue "$HOME/q"
    refused 78 "$HOME/q"
  done
  printf 'a\tx\0y\n' >"$HOME/q"
  run --separate-stderr read_queue "$HOME/q"
  refused 78 NUL
}
