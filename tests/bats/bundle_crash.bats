#!/usr/bin/env bats
# Killed before any of its commands, the way into the bundle leaves the old state or the new, and the rerun completes
# (S83-S85, T9, cases 93 101 102).

load helper
load bundle_cells
# shellcheck disable=SC2154 # compile_job sets OUT

setup() {
  common_setup
  compile_job local demo
  export DATA_DIR=$BATS_TEST_TMPDIR/data DURABLE_DIR=$BATS_TEST_TMPDIR/durable RUN=r1
  D=$DATA_DIR/r1 B=$DURABLE_DIR/r1
  # 20 points spread over the whole; GR_CRASH_STEP=1 tries every one.
  STEP=${GR_CRASH_STEP-}
}

fresh() { # a run with an older, shorter bundle and one cell that is to come into it
  rm -rf "$DATA_DIR" "$DURABLE_DIR"
  mkdir -p "$DURABLE_DIR"
  run_record_here "$D"
  cp -Rp "$BATS_TEST_TMPDIR/kept/." "$BATS_TEST_TMPDIR/"
}

# Whoever believes a record or a manifest finds what it says.
nothing_false() {
  local record cell
  for record in "$B"/records/*.json; do
    [[ -e $record ]] || continue
    cell=${record##*/} cell=${cell%.json}
    grep -q '"state": "done"' "$record" && tail -n 1 "$record" | grep -qx '}' || return 1
    (cd "$B/final_ckpts/$cell" && sha256sum -c --strict --quiet "$B/records/$cell.sha256") || return 1
  done
  [[ ! -e $B/PULL_MANIFEST.json ]] || "$PYTHON" - "$B/PULL_MANIFEST.json" <<'PY' || return 1
import hashlib, json, os, sys
raw = open(sys.argv[1], "rb").read()
m = json.loads(raw)
assert hashlib.sha256(raw.rpartition(b'  "self_sha256"')[0]).hexdigest() == m["self_sha256"]
for f in m["files"]:
    data = open(os.path.join(os.path.dirname(sys.argv[1]), f["path"]), "rb").read()
    assert len(data) == f["bytes"] and hashlib.sha256(data).hexdigest() == f["sha256"], f
assert m["cells_done"] >= 1
PY
}

@test "aggregate: killed at any command it leaves nothing false, and the rerun completes and cleans up after it" {
  # The state from which each crash starts: a is in the bundle, b is finished.
  mkdir -p "$DURABLE_DIR"
  run_record_here "$D"
  roster "$D" a b
  finished_cell "$D" a 3000
  "$OUT/box/aggregate_to_fs.sh" >/dev/null 2>&1 || [[ $? -eq 1 ]]
  finished_cell "$D" b 3000
  mkdir "$BATS_TEST_TMPDIR/kept"
  cp -Rp "$DATA_DIR" "$DURABLE_DIR" "$BATS_TEST_TMPDIR/kept"
  local total=0 n rc killed=0
  # How many commands there are: a crash that never comes.
  BASH_ENV=$BATS_TEST_TMPDIR/count.bash
  printf 'unset BASH_ENV\ncrash_count=0\nset -T\ntrap "((++crash_count))" DEBUG\ntrap "echo \\$crash_count >%q" EXIT\n' "$BATS_TEST_TMPDIR/total" >"$BASH_ENV"
  BASH_ENV=$BASH_ENV "$OUT/box/aggregate_to_fs.sh" >/dev/null 2>&1
  unset BASH_ENV
  total=$(<"$BATS_TEST_TMPDIR/total")
  ((total > 300))
  for ((n = 1; n < total; n += ${STEP:-total / 20})); do
    fresh
    rc=0
    CRASH_AT=$n BASH_ENV=$ROOT/tests/faults/crash_at.bash "$OUT/box/aggregate_to_fs.sh" >/dev/null 2>&1 || rc=$?
    ((rc != 137)) || killed=$((killed + 1))
    nothing_false || fail_with "after a kill at command $n"
    run --separate-stderr "$OUT/box/aggregate_to_fs.sh"
    [[ $status -eq 0 ]] || fail_with "the rerun after a kill at command $n"
    nothing_false
    [[ -z $(find "$B/.syncing" -mindepth 1) ]]
  done
  echo "# aggregate: $killed of $total points tried" >&3
  ((killed >= 10))
}
