# pull_state.bash: a bundle on a box, made by the box's own script, and the two ways to pull it.
# shellcheck disable=SC2154,SC2034 # compile_job sets OUT; the tests read what is set here

setup() {
  common_setup
  export RUN=r1 LOCAL_DIR=$BATS_TEST_TMPDIR/laptop RETRY_S=0
  BOX=$BATS_TEST_TMPDIR/box
}
teardown() { sshd_stop; }

# A bundle on the box, made by the box's own script.
bundle() { # <cell...>
  local cell
  D=$BOX/data/r1 B=$BOX/durable/r1
  run_record_here "$D"
  mkdir -p "$BOX/durable"
  roster "$D" "$@"
  for cell in "$@"; do finished_cell "$D" "$cell" "${CELL_BYTES-60000}"; done
  compile_job local demo
  DATA_DIR=$BOX/data DURABLE_DIR=$BOX/durable "$OUT/box/aggregate_to_fs.sh" >/dev/null
}
over_ssh() { # [pull's words...]
  compile_job generic-ssh demo
  "$OUT/local/pull.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable" "$@"
}
here() {
  compile_job local demo
  "$OUT/local/pull.sh" --data-dir "$BOX/data" --durable-dir "$BOX/durable" "$@"
}
home_is_whole() { # <profile>
  L=$LOCAL_DIR/$1.r1
  cmp "$L/PULL_MANIFEST.json" "$B/PULL_MANIFEST.json" && (cd "$L" && sha256sum -c --strict --quiet SHA256SUMS) &&
    cmp "$L/run.json" "$B/run.json" && diff -r "$L/records" "$B/records" && diff -r "$L/final_ckpts" "$B/final_ckpts"
}
