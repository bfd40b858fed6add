#!/usr/bin/env bats
# lib/compat: bounded stands in for `timeout`, which a Mac does not have.
load helper
bats_require_minimum_version 1.5.0

setup() {
  common_setup
  load_libs compat
}
# Sleeps of our own, by their environment.
no_naps() {
  local file
  for file in $(grep -lsF "NAPS_OF=$BATS_TEST_TMPDIR" /proc/[0-9]*/environ); do
    if [[ $(cat "${file%environ}comm" 2>/dev/null) == sleep ]]; then return 1; fi
  done
}

@test "bounded: status, output and input are the words' own" {
  [[ $(echo words | bounded 60 cat) == words ]]
  run bounded 60 bash -c 'echo said; exit 7'
  [[ $status -eq 7 && $output == said ]]
  run -127 bounded 60 no-such-command
}

@test "bounded: what takes too long is ended, also what ignores TERM, and that is 124" {
  # shellcheck disable=SC2030 # for what is started here
  export NAPS_OF=$BATS_TEST_TMPDIR
  run bounded 1 sleep 600
  [[ $status -eq 124 ]]
  run bounded 1 bash -c 'trap "" TERM; echo deaf; while :; do sleep 1; done'
  [[ $status -eq 124 && $output == deaf ]]
  # Words that end with a status of their own when they are told to (as ssh does) ran out of time all the same.
  run bounded 1 bash -c 'trap "exit 0" TERM; while :; do sleep 1; done'
  [[ $status -eq 124 ]]
  wait_for 30 no_naps
}

# Words that end at once when they are told to are as late as those that do not: many at a time, as a machine under load has it.
@test "bounded: that time ran out is not lost where the words end at once" {
  # shellcheck disable=SC2016 # the inner shell's own
  run bash -c 'set -euo pipefail; source "$1"; load_libs compat; late() { local rc=0; bounded 1 bash -c "trap \"exit 7\" TERM; sleep 9 & wait" || rc=$?; echo "$rc"; }
    for ((i = 0; i < 40; i++)); do late & done; wait' x "$ROOT/tests/bats/libs.bash"
  [[ $(sort -u <<<"$output") == 124 && ${#lines[@]} -eq 40 ]]
}

# Many short calls, each with a long limit: nobody waits for the watcher, and none of its sleeps lives on. One that was started in
# the very moment of the end does, for a second and not for the whole limit.
@test "bounded: the watcher goes with the words, whenever they end" {
  # shellcheck disable=SC2031 # its own test
  export NAPS_OF=$BATS_TEST_TMPDIR
  # In a shell of its own: the traps of this one would slow every step down.
  # shellcheck disable=SC2016 # the inner shell's own
  bash -c 'set -euo pipefail; source "$1"; load_libs compat; spin() { local i; for ((i = 0; i < $1; i++)); do :; done; }
    for ((i = 0; i < 400; i++)); do bounded 600 spin $((i * 5)); done' x "$ROOT/tests/bats/libs.bash"
  wait_for 30 no_naps
}
