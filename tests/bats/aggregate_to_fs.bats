#!/usr/bin/env bats
# aggregate_to_fs.sh: the whole bundle, its sums and its manifest (S83-S86, cases 91 92 96 98 101 102, T18 T19 T21 T22).

load helper
load bundle_cells

setup() {
  common_setup
  compile_job local demo
  export DATA_DIR=$BATS_TEST_TMPDIR/data DURABLE_DIR=$BATS_TEST_TMPDIR/durable RUN=r1
  mkdir -p "$DURABLE_DIR"
  D=$DATA_DIR/r1 B=$DURABLE_DIR/r1
  run_record_here "$D"
  roster "$D" a b
}

aggregate() { "$OUT/box/aggregate_to_fs.sh" "$@"; }

# What a reader of the manifest insists on: valid JSON, own digest, and sums that the stock tool accepts.
sound() { # <cells expected> <cells done> <files>
  "$PYTHON" - "$B/PULL_MANIFEST.json" "$@" <<'PY'
import hashlib, json, sys
raw = open(sys.argv[1], "rb").read()
m = json.loads(raw)
assert list(m) == "schema run_id commit cells_expected cells_done files_total bytes_total cells files self_sha256".split(), list(m)
head, _, _ = raw.rpartition(b'  "self_sha256"')
assert hashlib.sha256(head).hexdigest() == m["self_sha256"]
assert [m["cells_expected"], m["cells_done"], m["files_total"]] == [int(x) for x in sys.argv[2:]], m
assert len(m["files"]) == m["files_total"] and len(m["cells"]) == m["cells_expected"]
assert sum(f["bytes"] for f in m["files"]) == m["bytes_total"]
PY
  (($3 == 0)) || (cd "$B" && sha256sum -c --strict --quiet SHA256SUMS)
}

@test "aggregate: finished but uncopied cells are copied, the bundle is whole, twice is the same (S83-S86)" {
  finished_cell "$D" a
  finished_cell "$D" b
  run --separate-stderr aggregate
  [[ $status -eq 0 && $output == *'2 of 2 cells done'* ]]
  sound 2 2 4
  grep -q '"state": "done"' "$D/state/a.json"
  cp "$B/PULL_MANIFEST.json" "$BATS_TEST_TMPDIR/first"
  run --separate-stderr aggregate
  [[ $status -eq 0 ]]
  cmp "$B/PULL_MANIFEST.json" "$BATS_TEST_TMPDIR/first"
  [[ -z $(find "$B" -name '*.tmp') ]]
}

@test "aggregate: events and roster go into the bundle, what another box left there stays, and twice is the same (S92)" {
  finished_cell "$D" a
  printf '2026-08-03T14:00:00Z\toverride\t-\t-\tDATA_DIR=/elsewhere\n' >"$D/events.tsv"
  printf '# time\n2026-08-03T14:00:00Z\tbox\tc\t3\t9\tit ended with status 3\tx\n' >"$D/NEGATIVE_RESULTS.tsv"
  printf '2026-08-01T10:00:00Z\tadopt\t-\t-\tfrom an older box\n' >"$BATS_TEST_TMPDIR/older"
  mkdir -p "$B" && cp "$BATS_TEST_TMPDIR/older" "$B/events.tsv"
  run --separate-stderr aggregate --except 'b=diverged'
  [[ $status -eq 0 ]]
  grep -q 'older box' "$B/events.tsv"
  grep -q 'DATA_DIR=/elsewhere' "$B/events.tsv"
  grep -q 'excepted: diverged' "$B/events.tsv"
  cmp "$D/queue.tsv" "$B/queue.tsv"
  cmp "$D/NEGATIVE_RESULTS.tsv" "$B/NEGATIVE_RESULTS.tsv" # X4
  cp "$B/events.tsv" "$BATS_TEST_TMPDIR/first"
  run --separate-stderr aggregate
  [[ $(grep -c 'older box' "$B/events.tsv") == 1 && -z $(find "$B" -name '*.tmp') ]]
  sed 1q "$B/events.tsv" | grep -q 'older box'
  sound 2 1 2
}

@test "aggregate: spent inodes and a full tier leave the old bundle; with room the rerun completes (T19,, case 93)" {
  [[ $EUID -eq 0 ]] || skip 'needs root for a small tmpfs'
  local words first said more
  for words in size=8m,nr_inodes=15:nr_inodes=200 size=140k,nr_inodes=200:size=8m; do
    rm -rf "${D:?}" && run_record_here "$D" && roster "$D" a b
    mount -t tmpfs -o "${words%:*}" tmpfs "$DURABLE_DIR" || skip 'no mount here'
    finished_cell "$D" a 40000
    run --separate-stderr aggregate
    [[ -s $B/PULL_MANIFEST.json ]] || { umount "$DURABLE_DIR" && fail_with "no first bundle with $words"; }
    cp "$B/PULL_MANIFEST.json" "$BATS_TEST_TMPDIR/old"
    finished_cell "$D" b 90000
    for more in 1 2 3 4 5 6 7 8; do [[ $words != *nr_inodes=15:* ]] || : >"$D/cells/b/best.pth.$more"; done
    run --separate-stderr aggregate
    first=$status said=$output
    # Old or new, never half: what is listed is there and right.
    (cd "$B" && sha256sum -c --strict --quiet SHA256SUMS) || { umount "$DURABLE_DIR" && fail_with "half a bundle with $words"; }
    [[ ! -e $B/records/b.json ]] || { umount "$DURABLE_DIR" && fail_with "b is in the bundle with $words"; }
    mount -o "remount,${words#*:}" "$DURABLE_DIR"
    run --separate-stderr aggregate
    (sound 2 2 4) || { umount "$DURABLE_DIR" && fail_with "the rerun with $words"; }
    umount "$DURABLE_DIR"
    [[ $first -ne 0 && $said != *done* && $status -eq 0 ]] || fail_with "first $first, then $status, with $words"
  done
}

@test "aggregate: one cell still missing: exit 1, and the manifest holds the finished one (T18)" {
  finished_cell "$D" a
  run --separate-stderr aggregate
  [[ $status -eq 1 && $stderr == *'b: pending'* && $output != *done* ]]
  sound 2 1 2
  cell_record "$D/state/b.json" b failed bug 1
  run --separate-stderr aggregate
  [[ $status -eq 1 && $stderr == *'b: failed'* ]]
}

@test "aggregate: an exception is recorded with its reason; of an unknown cell it is refused" {
  finished_cell "$D" a
  run --separate-stderr aggregate --except 'b=diverged, "row" dropped'
  [[ $status -eq 0 && $output == *'1 excepted'* ]]
  grep -qF '{"cell": "b", "state": "excepted", "why": "diverged, '"'row'"' dropped"}' "$B/PULL_MANIFEST.json"
  sound 2 1 2
  grep -q $'override\tb' "$D/events.tsv"
  run --separate-stderr aggregate --except c=x
  refused 78 'no cell'
  run --separate-stderr aggregate --except b=
  [[ $status -eq 64 ]]
}

@test "aggregate: names with = and , are cells like any other (T21)" {
  roster "$D" lr=0.1,bs=2 lr=0.1
  finished_cell "$D" lr=0.1,bs=2
  run --separate-stderr aggregate --except 'lr=0.1=no need'
  [[ $status -eq 0 ]]
  sound 2 1 2
}

@test "aggregate: nothing done is never a whole bundle (case 91)" {
  run --separate-stderr aggregate
  [[ $status -eq 1 ]]
  sound 2 0 0
  run --separate-stderr aggregate --except a=x --except b=y
  [[ $status -eq 74 && $output == '' ]]
}

@test "aggregate: a durable tier that is not there gets no byte (case 91)" {
  finished_cell "$D" a
  DURABLE_DIR=$BATS_TEST_TMPDIR/none run --separate-stderr aggregate
  refused 74 'DURABLE_DIR' 'none'
  [[ ! -e $BATS_TEST_TMPDIR/none ]]
}

@test "aggregate: no run is 69, another box's run 75, wrong words 64" {
  RUN=other run --separate-stderr aggregate
  refused 69 'run other'
  sed -i 's/"host": .*/"host": "elsewhere",/' "$D/run.json"
  run --separate-stderr aggregate
  refused 75 elsewhere
  run --separate-stderr aggregate --what
  [[ $status -eq 64 ]]
}

@test "aggregate: a record and files that were taken away stay in the manifest (case 102)" {
  roster "$D" a b c
  finished_cell "$D" a
  finished_cell "$D" b
  finished_cell "$D" c
  aggregate
  mkdir "$BATS_TEST_TMPDIR/aside"
  mv "$B/final_ckpts/b" "$BATS_TEST_TMPDIR/aside/files"
  mv "$B/records/b.json" "$D/cells/b" "$BATS_TEST_TMPDIR/aside"
  rm "$D/state/b.json"
  roster "$D" a c
  run --separate-stderr aggregate
  [[ $status -eq 65 && $output == '' ]]
  grep -q 'final_ckpts/b/best.pth' "$B/PULL_MANIFEST.json"
  [[ $(grep -c '"path"' "$B/PULL_MANIFEST.json") -eq 6 && $(grep -c '"cell":' "$B/PULL_MANIFEST.json") -eq 3 ]]
}

@test "aggregate: a new box on the same tier adds its cells to what is there (case 102)" {
  finished_cell "$D" a
  aggregate || [[ $? -eq 1 ]]
  # The new box: another data tier, a shorter queue, the same run.
  cp "$D/run.json" "$BATS_TEST_TMPDIR/run.json"
  DATA_DIR=$BATS_TEST_TMPDIR/data2 D=$DATA_DIR/r1
  mkdir -p "$D" && roster "$D" b
  finished_cell "$D" b
  run --separate-stderr aggregate
  [[ $status -eq 0 ]]
  sound 2 2 4
}

@test "aggregate: a damaged file is mended from the source, and named; without a source it is 65" {
  finished_cell "$D" a
  finished_cell "$D" b
  aggregate
  printf 'XXXXXXXX' | dd of="$B/final_ckpts/a/best.pth" bs=1 seek=100 conv=notrunc status=none
  run --separate-stderr aggregate
  [[ $status -eq 0 && $stderr == *'final_ckpts/a/best.pth is not what its record says'* ]]
  sound 2 2 4
  rm -r "$D/cells/a"
  printf 'XXXXXXXX' | dd of="$B/final_ckpts/a/best.pth" bs=1 seek=100 conv=notrunc status=none
  run --separate-stderr aggregate
  [[ $status -eq 65 && $output == '' ]]
  grep -qF '{"cell": "a", "state": "unknown"' "$B/PULL_MANIFEST.json"
}

@test "aggregate: unchanged files are not read again; --rehash finds what a lying file system hides (S83)" {
  finished_cell "$D" a
  finished_cell "$D" b
  aggregate
  fail_nth sha256sum 99999 1 x
  run --separate-stderr aggregate
  [[ $status -eq 0 ]]
  ! grep -q final_ckpts "$SHIMS/sha256sum.calls"
  run --separate-stderr aggregate --rehash
  [[ $status -eq 0 ]]
  grep -q final_ckpts "$SHIMS/sha256sum.calls"
  # Same size, inode and times as the cache believes: only --rehash can see it.
  cp -p "$D/state/.aggregate" "$BATS_TEST_TMPDIR/cache"
  printf 'XXXXXXXX' | dd of="$B/final_ckpts/a/best.pth" bs=1 seek=100 conv=notrunc status=none
  local now
  now=$(TZ=UTC0 stat -c '%s|%i|%y|%z' "$B/final_ckpts/a/best.pth")
  sed -i "s#\(final_ckpts/a/best.pth\)|.*#\1|$now#" "$D/state/.aggregate"
  rm -r "$D/cells/a"
  run --separate-stderr aggregate
  [[ $status -eq 0 ]]
  run --separate-stderr aggregate --rehash
  [[ $status -eq 65 ]]
}

@test "aggregate: a copy that fails leaves the cell unsynced; the rerun completes (case 92)" {
  finished_cell "$D" a
  finished_cell "$D" b
  fail_nth cp 1 1 'Input/output error'
  run --separate-stderr aggregate
  [[ $status -eq 1 && $stderr == *'a: unsynced'* ]]
  sound 2 1 2
  run --separate-stderr aggregate
  [[ $status -eq 0 ]]
  sound 2 2 4
}

@test "aggregate: each external command fails at each of its first calls: never a whole bundle that is not whole (case 92)" {
  local tool n
  for tool in mv sync stat sort cat df ln; do
    for n in 1 2 4; do
      rm -rf "$B" "$D" "${BATS_TEST_TMPDIR:?}/shims"
      (PATH=$REAL_PATH && run_record_here "$D" && roster "$D" a b && finished_cell "$D" a 3000 && finished_cell "$D" b 3000)
      fail_nth "$tool" "$n" 5 'Input/output error'
      run --separate-stderr aggregate
      PATH=$REAL_PATH
      [[ $status -ne 0 ]] || sound 2 2 4
      run --separate-stderr aggregate
      [[ $status -eq 0 ]]
      sound 2 2 4
    done
  done
}

@test "aggregate: files of other runs and stale files in the target are not merged into the bundle (T22)" {
  finished_cell "$D" a
  finished_cell "$D" b
  aggregate
  echo stale >"$B/final_ckpts/a/old.pth"
  mkdir -p "$B/final_ckpts/zz" && echo x >"$B/final_ckpts/zz/best.pth"
  run --separate-stderr aggregate
  [[ $status -eq 0 && -e $B/final_ckpts/a/old.pth ]]
  sound 2 2 4
}

@test "aggregate: a cell that its runner copies right now is left to it" {
  finished_cell "$D" a
  finished_cell "$D" b
  mkdir -p "$D/claims/a"
  local stat fields
  stat=$(</proc/$$/stat)
  read -ra fields <<<"${stat##*) }"
  printf '%s %s %s %s\n' "$(</proc/sys/kernel/hostname)" "$(</proc/sys/kernel/random/boot_id)" $$ "${fields[19]}" >"$D/claims/a/001"
  run --separate-stderr aggregate
  [[ $status -eq 1 && ! -e $B/records/a.json && $stderr == *'a: unsynced its runner'* ]]
}

@test "aggregate: pull-only says where the results are, and not that they are synced" {
  finished_cell "$D" a
  finished_cell "$D" b
  DURABLE_DIR='' B=$D run --separate-stderr aggregate
  [[ $status -eq 0 && $output == *'on this box only'* && $output$stderr != *synced* ]]
  B=$D
  sound 2 2 4
}

@test "aggregate: runs with a box's tools alone and with busybox's" {
  finished_cell "$D" a
  finished_cell "$D" b
  (box_path_only && aggregate)
  sound 2 2 4
  rm -r "$B"
  cell_record "$D/state/a.json" a unsynced
  cell_record "$D/state/b.json" b unsynced
  (busybox_path && aggregate)
  sound 2 2 4
}

@test "aggregate: two at once end with the one whole bundle" {
  finished_cell "$D" a 400000
  finished_cell "$D" b 400000
  aggregate >/dev/null 2>&1 3>&- &
  local other=$!
  run --separate-stderr aggregate
  [[ $status -eq 0 ]] || fail_with 'not the whole bundle'
  wait "$other"
  sound 2 2 4
  [[ -z $(find "$B" -name '*.tmp') ]]
}

# F44: judged by a part: its cells must be done; the manifest tells of the others as ever.
@test "aggregate --only: a part that is done is 0, one that is not is 1, and nobody is hidden" {
  finished_cell "$D" a
  run --separate-stderr aggregate --only a
  [[ $status -eq 0 && $output == *'1 of 2 cells done'*'a part: a'* ]] || fail_with part
  sound 2 1 2
  grep -q '"cell": "b", "state": "pending"' "$B/PULL_MANIFEST.json"
  run --separate-stderr aggregate --only a,b
  [[ $status -eq 1 && $stderr == *'of --only'*'b: pending'* ]] || fail_with "not done"
  run --separate-stderr aggregate --only c
  refused 78 '--only c'
  run --separate-stderr aggregate --only
  [[ $status -eq 64 ]]
}
