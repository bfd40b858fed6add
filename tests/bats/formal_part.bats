# shellcheck disable=SC2016,SC2030,SC2031,SC2154 # words for another shell; tests are subshells; bats sets status, output and stderr
load helper
load formal

setup() { formal_setup; }
teardown() { formal_teardown; }

# F5 F6 F24 F44 F47 F61: a start over a part plans, runs and proves that part, and says so wherever its success is told.
@test "formal_run --only: the plan, the counts and the proof are of the part, and say that it is one" {
  local id
  smoked
  formal plan --only s3
  [[ $status -eq 0 && $output == *'cells     1, of which done 0, to do 1'*'a part only: 1 of the 2 cells'* ]] || fail_with plan
  formal_ok --only s3
  id=$(member "$D/formal.json" start_id)
  [[ $(head -n 1 "$D/plans/$id.tsv") == *' cells 1 done 0 to do 1, a part: the roster has 2' && $(grep -vc '^#' "$D/plans/$id.tsv") -eq 1 ]]
  [[ $(member "$B/FORMAL_SUCCESS" part_cells)/$(member "$B/FORMAL_SUCCESS" cells_done)/$(member "$B/FORMAL_SUCCESS" cells_expected) == 1/1/2 ]]
  [[ -s $B/records/s3.json && ! -e $D/claims/s2 ]]
  grep -q '"cell": "s2", "state": "pending"' "$B/PULL_MANIFEST.json"
  grep -q '^FORMAL_SUCCESS of a part (1 cells) 20' "$D/formal.log"
  formal status
  [[ $status -eq 0 && $output == 'success: a part only: 1 cells'*'1 of the 2 cells of the run are done'* ]] || fail_with status
  run bash "$BOX/status.sh" --json
  [[ $output == *'"state": "success"'*'a part only'* ]] || fail_with "status.sh"
  # The rest; the proof is then of the whole, also where only the rest was asked for.
  formal_ok --only s2
  [[ $(member "$B/FORMAL_SUCCESS" part_cells)/$(member "$B/FORMAL_SUCCESS" cells_done) == null/2 && $(grep -c 'part_cells": 1' "$B/FORMAL_SUCCESS.$id") -eq 1 ]]
  formal status
  [[ $status -eq 0 && $output == 'success: as recorded'* ]] || fail_with whole
}

# F44 F61: a part whose cell is not done has no proof, and a name that is no cell starts nothing.
@test "formal_run --only: no proof over a manifest in which a cell of the part is not done" {
  fake_siblings
  sed -i 's/(($# == 0)) || exit 64/:/' "$BOX/run_queue.sh" "$BOX/aggregate_to_fs.sh"
  smoked
  formal start --only s4
  refused 78 '--only s4' 'no cell of the queue'
  [[ ! -e $D/formal.json ]]
  export CELLS_DONE_SAID=1
  sed -i 's/"cells": \[\\n/&    {"cell": "s2", "state": "done", "why": ""},\\n    {"cell": "s3", "state": "failed", "why": "done"}\\n/' "$BOX/aggregate_to_fs.sh"
  smoked
  formal start --only s3
  wait_for 30 ended
  in_state failed
  grep -q 'cell s3 of the part is not done' "$D/formal.log"
  formal_ok --only s2
}

# A run keeps its shard: the second start need not repeat it, and counts its own cells alone.
@test "formal_run: a run with a shard plans and proves the cells of that shard, also without the flag" {
  smoked
  formal_ok --shard 1/2
  formal_ok
  [[ $(member "$B/FORMAL_SUCCESS" cells_expected) -eq 1 && $(grep -vc '^#' "$D/plans/$(member "$D/formal.json" start_id).tsv") -eq 1 ]]
  formal start --shard 2/2
  refused 77 'shard 1/2, not 2/2'
  formal start --shard 3/2
  [[ $status -eq 64 ]]
}

# F6: a record that is damaged, or whose copy is, is no done cell; a cell of the roster that the source has lost counts.
@test "formal_run: plan counts by records that hold and by the run's own roster" {
  smoked
  formal_ok
  formal plan
  [[ $output == *'cells     2, of which done 2, to do 0'* ]] || fail_with both
  : >"$B/records/s2.json"
  formal plan
  [[ $output == *'cells     2, of which done 1, to do 1'* ]] || fail_with damaged
  sed -i '/^s3/d' "$BOX/queue.tsv"
  bash "$BOX/smoke.sh" --waive 'T=queue edited' 2>/dev/null
  formal plan
  [[ $output == *'cells     2, of which done 1, to do 1'* ]] || fail_with roster
  sed -i 's/^s2\t.*/s2\techo other/' "$BOX/queue.tsv"
  formal plan
  refused 77 'cell s2' 'differs from the run'
}

# Case 60: the commit of each submodule is written down with the plan.
@test "formal_run: the plan names the submodules' commits" {
  git init -q "$BATS_TEST_TMPDIR/sub"
  echo 1 >"$BATS_TEST_TMPDIR/sub/f"
  git -C "$BATS_TEST_TMPDIR/sub" add f && git -C "$BATS_TEST_TMPDIR/sub" commit -qm 1
  git -C "$CODE_DIR" -c protocol.file.allow=always submodule --quiet add "$BATS_TEST_TMPDIR/sub" vendor
  git -C "$CODE_DIR" add -A && git -C "$CODE_DIR" commit -qm sub && git -C "$CODE_DIR" push -q origin main
  smoked
  formal_ok
  grep -q "^# submodule $(git -C "$BATS_TEST_TMPDIR/sub" rev-parse HEAD) vendor" "$D/plans/$(member "$D/formal.json" start_id).tsv"
}

# F44 F47: an aggregation that fails ends it, whatever it has left in the bundle.
@test "formal_run: a failed aggregation is no success, also over a manifest that says all" {
  fake_siblings
  printf 'exit 74\n' >>"$BOX/aggregate_to_fs.sh"
  smoked
  formal start
  [[ $status -eq 0 ]] || fail_with start
  wait_for 30 ended
  in_state failed
  [[ $(member "$D/FORMAL_FAILURE.json" stage)/$(member "$D/FORMAL_FAILURE.json" exit) == aggregate/74 && ! -e $B/FORMAL_SUCCESS ]]
  [[ $(member "$B/PULL_MANIFEST.json" cells_done) == 2 ]]
}

# F44 F61: the manifest that a proof is said over is whole, of this run and commit, and knows as many cells as the roster.
@test "formal_run: a manifest that was edited, or is of another run, commit or roster, proves nothing" {
  local file=$B/PULL_MANIFEST.json
  fake_siblings
  smoked
  formal_ok
  cp "$file" "$BATS_TEST_TMPDIR/keep"
  proves() { # <words of the reason, none: it proves>
    run --separate-stderr bash -c 'source "$1" && self_dir && run_places && find_run && RUN_ID=$R_run_id RUN_COMMIT=$R_commit ONLY="" || exit 1
      check_manifest 2 none || { rc=$? && printf "%s\n" "$REPLY" && exit "$rc"; }' x "$BOX/formal_run.sh"
    if (($#)); then [[ $status -eq 65 && $output == *"$1"* ]]; else [[ $status -eq 0 ]]; fi || fail_with "not: ${1-proven}"
  }
  sign() {
    sed -i '/^  "self_sha256"/,$d' "$file"
    printf '  "self_sha256": "%s"\n}\n' "$(sha256sum <"$file" | cut -c 1-64)" >>"$file"
  }
  proves
  sed -i 's/"files_total": 0/"files_total": 1/' "$file"
  proves 'does not match its own digest'
  sign
  proves
  set_member "$file" commit 0123456789012345678901234567890123456789 && sign
  proves 'is of commit 0123456789012345678901234567890123456789'
  cp "$BATS_TEST_TMPDIR/keep" "$file"
  sed -i 's/"cells_expected": 2/"cells_expected": 3/' "$file" && sign
  proves 'knows 3 cells, the roster has 2'
  cp "$BATS_TEST_TMPDIR/keep" "$file"
  sed -i 's/"cells_done": 2/"cells_done": 1/' "$file" && sign
  proves '1 of 2 cells done'
  cp "$BATS_TEST_TMPDIR/keep" "$file"
  set_member "$file" run_id 20200101T000000Z-00000000 && sign
  proves 'not a whole manifest of this run'
}

# T41: a start that has its number and no heartbeat yet is seen by the next one, which leaves everything as it is.
@test "formal_run: a start beside one that is still at its gates is refused" {
  local first
  fake_siblings
  sed -i 's/|| exit 0/|| { : >"$DATA_DIR\/asked"; while [[ -e $DATA_DIR\/dry ]]; do sleep 0.05; done; exit 0; }/' "$BOX/run_queue.sh"
  smoked
  : >"$DATA_DIR/dry"
  bash "$BOX/formal_run.sh" start >"$BATS_TEST_TMPDIR/first" 2>&1 3>&- &
  first=$!
  wait_for 30 test -e "$DATA_DIR/asked"
  [[ -s $D/starts/001 && ! -e $D/formal.json ]]
  run --separate-stderr timeout 60 bash "$BOX/formal_run.sh" start
  refused 75 "another start is at work (process $first)"
  [[ $(ls "$D/starts") == 001 && ! -e $D/formal.json ]]
  rm "$DATA_DIR/dry"
  wait "$first" || { cat "$BATS_TEST_TMPDIR/first" && false; }
  wait_for 30 ended
  in_state success
}
