# formal.bash: what the tests of formal_run, preflight and smoke share. `load formal` behind `load helper`.
# shellcheck disable=SC2034,SC2154 # the tests use what is set here; bats and run set the rest

# A box of its own: a copy of the compiled scripts, a repository with a pushed commit, tiers, and a smoke where wanted.
formal_setup() {
  common_setup
  compile_job local "$ROOT/tests/fixtures/formal/job.yaml"
  BOX=$BATS_TEST_TMPDIR/out/box LOCAL=$BATS_TEST_TMPDIR/out/local
  mkdir -p "$BATS_TEST_TMPDIR/out"
  cp -R "$OUT/box" "$OUT/local" "$BATS_TEST_TMPDIR/out/"
  make_repository "$ROOT/tests/fixtures/formal/code"
  export DATA_DIR=$BATS_TEST_TMPDIR/data DURABLE_DIR=$BATS_TEST_TMPDIR/durable SCRATCH=$BATS_TEST_TMPDIR/scratch
  export RUN=r CRED_FILE='' HF_HOME='' PY=bash DETACH=nohup HOLD=$BATS_TEST_TMPDIR/hold FAIL=$BATS_TEST_TMPDIR/fail
  mkdir -p "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH"
  D=$DATA_DIR/r B=$DURABLE_DIR/r
}

# Whatever a test started is gone after it: found by the test's own folder in its environment or command line.
formal_teardown() {
  PATH=$REAL_PATH
  local file pid dir
  rm -f "$HOLD"
  # shellcheck disable=SC2013 # paths of /proc, one word each
  for file in $(grep -lsF "$BATS_TEST_TMPDIR/" /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null); do
    pid=${file#/proc/} && pid=${pid%/*}
    [[ $pid != "$$" && $pid != "$BASHPID" && $pid != "$PPID" ]] || continue
    if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qE 'formal_run|run_queue|run_one|aggregate|train\.sh|tmux|SCREEN'; then kill -KILL "$pid" 2>/dev/null || :; fi
  done
  for dir in /tmp/gr-*; do
    if grep -qsF "$BATS_TEST_TMPDIR/" "$dir/where"; then rm -rf "$dir"; fi
  done
}

formal() { run --separate-stderr bash "$BOX/formal_run.sh" "$@"; }
smoke() { run --separate-stderr bash "$BOX/smoke.sh" "$@"; }
smoked() { bash "$BOX/smoke.sh" >/dev/null 2>&1; }
member() { # <file> <member> : its value as written
  sed -n 's/^  "'"$2"'": "\{0,1\}\([^"]*\)"\{0,1\},\{0,1\}$/\1/p' "$1" | sed 's/,$//'
}
set_member() { # <file> <member> <text>
  sed -i 's|^  "'"$2"'": "[^"]*"|  "'"$2"'": "'"$3"'"|' "$1"
}
state() { member "$D/formal.json" state; }
in_state() { [[ $(state) == "$1" ]]; }
ended() { case $(state) in success | failed | stopped) ;; *) return 1 ;; esac }

# A whole formal run, to its success.
formal_ok() { # [words…]
  formal start "$@"
  [[ $status -eq 0 ]] || fail_with "start" || return
  wait_for 30 ended
  in_state success || {
    cat "$D/formal.log" >&2
    return 1
  }
}

# Stand-ins for run_queue and aggregate: instant, strict about their words, as honest as the real ones in what they leave.
fake_siblings() {
  cat >"$BOX/run_queue.sh" <<'SH'
[[ ${1-} != --dry-run ]] || exit 0
(($# == 0)) || exit 64
[[ -z ${QUEUE_FAILS-} ]] || exit 1
cp "${0%/*}/queue.tsv" "$DATA_DIR/$RUN/queue.tsv"
SH
  cat >"$BOX/aggregate_to_fs.sh" <<'SH'
(($# == 0)) || exit 64
id=$(sed -n 's/^  "run_id": "\(.*\)",$/\1/p' "$DATA_DIR/$RUN/run.json") commit=$(sed -n 's/^  "commit": "\(.*\)",$/\1/p' "$DATA_DIR/$RUN/run.json")
m=$DURABLE_DIR/$RUN/PULL_MANIFEST.json
printf '{\n  "schema": "pull_manifest/1",\n  "run_id": "%s",\n  "commit": "%s",\n  "cells_expected": 2,\n  "cells_done": %s,\n  "files_total": 0,\n  "bytes_total": 0,\n  "cells": [\n  ],\n  "files": [\n  ],\n' "$id" "$commit" "${CELLS_DONE_SAID:-2}" >"$m"
printf '  "self_sha256": "%s"\n}\n' "$(sha256sum <"$m" | cut -c 1-64)" >>"$m"
SH
}
