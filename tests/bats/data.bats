#!/usr/bin/env bats
# Declared data: sizes and digests, compared before a cell runs, by preflight and by the formal gate; mirrors; X7.
load helper
load cells
setup() {
  cells_setup
  mkdir -p "$CODE_DIR/data/raw/sub"
  echo one >"$CODE_DIR/data/raw/1.bin"
  echo twoo >"$CODE_DIR/data/raw/sub/2.bin"
  (cd "$CODE_DIR/data/raw" && find . -type f -exec sha256sum {} + >../raw.sha256)
  printf weights >"$CODE_DIR/w.pth"
  SUM=$(sha256sum "$CODE_DIR/w.pth") && SUM=${SUM%% *}
  LIST=$CODE_DIR/data/raw.sha256
}
teardown() { cells_teardown; }

# A job with these data; compiled, $BOX and DATA_DIR's run anew.
with_data() { # <yaml list>
  { cat "$ROOT/tests/fixtures/trainers/job.yaml" && printf 'data: %s\n' "$1"; } >"$BATS_TEST_TMPDIR/job.yaml"
  compile_job local "$BATS_TEST_TMPDIR/job.yaml"
  BOX=$OUT/box
}
none_claimed() { # <cell>
  [[ ! -e $D/claims/$1 || -z $(ls "$D/claims/$1") ]]
}

@test "a manifest and a digest are compared before the claim; what differs is named with line, expected and found (X7)" {
  with_data "[{path: data/raw, files: 2, bytes: 9, manifest: data/raw.sha256}, {path: w.pth, files: 1, sha256: \"$SUM\"}]"
  cell a ok
  one a
  [[ $status -eq 0 ]]
  bundled a
  cell b ok
  echo twox >"$CODE_DIR/data/raw/sub/2.bin"
  found=$(sha256sum "$CODE_DIR/data/raw/sub/2.bin")
  line=$(grep -n 2.bin "$LIST") && line=${line%%:*}
  one b
  refused 77 "data $CODE_DIR/data/raw/sub/2.bin" "$LIST:$line expects $(sed -n "${line}s/ .*//p" "$LIST")" "found ${found%% *}" '1 of 2 files differ' 'push.sh --data'
  none_claimed b
  echo twoo >"$CODE_DIR/data/raw/sub/2.bin"
  printf WEIGHTS >"$CODE_DIR/w.pth"
  one b
  refused 77 "data $CODE_DIR/w.pth" "the job's sha256 expects $SUM"
  printf weights >"$CODE_DIR/w.pth"
  one b
  [[ $status -eq 0 ]]
}

@test "digests are read once; then a receipt by size, inode and times stands for them; a changed file is read again (X7)" {
  with_data "[{path: data/raw, files: 2, manifest: data/raw.sha256}]"
  cell a ok
  cell b ok
  cell c ok
  one a
  [[ $status -eq 0 && -s $D/data/0.proof ]]
  # As a tool that reads them would fail, the second cell has not read them.
  fail_nth sha256sum 0 9 'not to be called'
  real=$(PATH=$REAL_PATH type -P sha256sum)
  sed -i "s|^exec .*||; s|^if ((n == 0.*|if [[ \$* == *raw/* ]]; then|; \$a exec $real \"\$@\"" "$SHIMS/sha256sum"
  one b
  [[ $status -eq 0 ]] || fail_with "the receipt was not used"
  # Of two only the one that changed; a list that was only touched costs none.
  touch "$LIST"
  cell e ok
  one e
  [[ $status -eq 0 ]] || fail_with "the list was touched, and all was read again"
  touch "$CODE_DIR/data/raw/1.bin"
  one c
  refused 77 'it cannot be read' '1 of 2 files differ'
  # A cut receipt is none.
  head -c 40 "$D/data/0.proof" >"$HOME/cut" && cp "$HOME/cut" "$D/data/0.proof"
  one c
  refused 77 'it cannot be read'
  PATH=$REAL_PATH
  # Another box has compared nothing yet.
  one c
  [[ $status -eq 0 ]]
  sed -i '1s/^data\/2|[^|]*/data\/2|elsewhere/' "$D/data/0.proof"
  cell d ok
  one d
  [[ $status -eq 0 ]] && ! grep -q elsewhere "$D/data/0.proof"
}

@test "a missing file, a wrong size, a manifest that is broken, short or leads outside: each is named (X7)" {
  local sum=0000000000000000000000000000000000000000000000000000000000000000
  with_data "[{path: data/raw, files: 2, bytes: 9, manifest: data/raw.sha256}]"
  cell a ok
  cp "$LIST" "$HOME/good"
  mv "$CODE_DIR/data/raw/1.bin" "$HOME/"
  one a
  refused 77 "data $CODE_DIR/data/raw/1.bin" 'it is not there' "$LIST:"
  mv "$HOME/1.bin" "$CODE_DIR/data/raw/"
  echo longer >>"$CODE_DIR/data/raw/1.bin"
  one a
  refused 77 'it has 16 bytes, the job expects 9'
  echo one >"$CODE_DIR/data/raw/1.bin"
  for bad in "nothing  x" "$sum x" "$sum  ../w.pth" "$sum  /etc/passwd" "$sum  sub//2.bin" "${sum^^}g  x" "\\$sum  a\\nb"; do
    { cat "$HOME/good" && printf '%s\n' "$bad"; } >"$LIST"
    one a
    refused 77 "manifest $LIST" 'line 3 is not'
  done
  { cat "$HOME/good" && grep 1.bin "$HOME/good"; } >"$LIST"
  one a
  refused 77 'line 3 names 1.bin'
  head -n 1 "$HOME/good" >"$LIST"
  one a
  refused 77 'it lists 1 files, the job says 2'
  rm "$LIST"
  one a
  refused 77 "manifest $LIST" 'it is not there'
  none_claimed a
  # A comment, a blank line, CR and no last line end are fine.
  { printf '# made by hand\r\n\r\n' && sed 's/$/\r/' "$HOME/good" | head -c -2; } >"$LIST"
  one a
  [[ $status -eq 0 ]]
}

@test "what the hub fetches lies under HF_HOME: revision and digest are held to, and the remedy names the mirror (X7)" {
  with_data "[{path: hub/models--m/snapshots/0a1b2c, under: hf_home, files: 1, manifest: hub.sha256}]"
  sed -i 's|^readonly -a MIRRORS=.*|readonly -a MIRRORS=(HF_ENDPOINT=https://mirror.example)|' "$BOX/run_one.sh"
  export HF_HOME=$BATS_TEST_TMPDIR/hf
  mkdir -p "$HF_HOME/hub/models--m/blobs" "$HF_HOME/hub/models--m/snapshots/0a1b2c"
  echo right >"$HF_HOME/hub/models--m/blobs/x"
  ln -s ../../blobs/x "$HF_HOME/hub/models--m/snapshots/0a1b2c/model.safetensors"
  (cd "$HF_HOME/hub/models--m/snapshots/0a1b2c" && sha256sum model.safetensors) >"$CODE_DIR/hub.sha256"
  cell a ok
  echo wrong >"$HF_HOME/hub/models--m/blobs/x"
  one a
  refused 77 model.safetensors 'hub.sha256:1 expects' 'without the mirror (HF_ENDPOINT=https://mirror.example)'
  mv "$HF_HOME/hub/models--m/snapshots/0a1b2c" "$HF_HOME/hub/models--m/snapshots/another"
  one a
  refused 77 snapshots/0a1b2c 'it is not there'
  mv "$HF_HOME/hub/models--m/snapshots/another" "$HF_HOME/hub/models--m/snapshots/0a1b2c"
  echo right >"$HF_HOME/hub/models--m/blobs/x"
  one a
  [[ $status -eq 0 ]]
  cell b ok
  HF_HOME='' one b
  refused 78 'HF_HOME, which is empty'
}

@test "preflight compares without leaving a receipt; the queue compares once for all slots, and stops where they differ (X7, X8)" {
  with_data "[{path: data/raw, files: 2, manifest: data/raw.sha256}, {path: w.pth, files: 1, bytes: 7}]"
  run --separate-stderr bash "$BOX/preflight.sh"
  [[ $output == *"data/raw: 2 files as expected"*"2 of 2 digests compared"* && $output == *'7 bytes'* && ! -e $D ]]
  cell a ok
  cell b ok
  cell c ok
  fail_nth sha256sum 9999 1 none
  fail_nth openssl 9999 1 none
  queue --slots 3
  [[ $status -eq 0 ]]
  [[ $(cat "$SHIMS"/*.calls | grep -c 'raw/sub/2.bin') -eq 1 ]]
  PATH=$REAL_PATH
  echo twox >"$CODE_DIR/data/raw/sub/2.bin"
  run --separate-stderr bash "$BOX/preflight.sh"
  [[ $status -eq 77 && $output == *FAIL*'raw.sha256:'*expects*found* ]]
  cell d ok
  cell e ok
  queue --slots 2
  [[ $status -eq 77 && $output == *'planned 5 = started 0 + skipped 3 + failed 0 + pending 2'* && $stderr == *'2.bin'* ]]
  echo twoo >"$CODE_DIR/data/raw/sub/2.bin"
  printf heavier! >"$CODE_DIR/w.pth"
  queue
  [[ $status -eq 77 && $stderr == *'it has 8 bytes, the job expects 7'* ]]
}

@test "busybox compares as well (X7)" {
  with_data "[{path: data/raw, files: 2, bytes: 9, manifest: data/raw.sha256}, {path: data, files: 3, bytes: $((9 + $(wc -c <"$LIST")))}]"
  cell a ok
  busybox_path
  one a
  [[ $status -eq 0 ]]
  echo twox >"$CODE_DIR/data/raw/sub/2.bin"
  cell b ok
  one b
  refused 77 2.bin expects found
}
