#!/usr/bin/env bats
# lib/results.bash, lib/bundle.bash and lib/hashes.bash: from a cell's folder into the bundle (S84 S85 F40, cases 91-93 98 101, T9 T19).

load helper
# shellcheck disable=SC2154 # set by the libraries

setup() {
  common_setup
  export PROG=test.sh RUN=r1 JOB=r1 PROFILE=local
  DATA_DIR=$BATS_TEST_TMPDIR/data DURABLE_DIR=$BATS_TEST_TMPDIR/durable
  DURABLE_TIER_PATH=$DURABLE_DIR DURABLE_PROOF=none
  D=$DATA_DIR/r1 B=$DURABLE_DIR/r1 RUN_ID=20260803T141500Z-1f3a9c04
  REQUIRED=(best.pth)
  mkdir -p "$D/state" "$D/cells" "$B"
}

# The libraries in a shell of their own, with these values; the rest of the words is a command for it.
in_lib() {
  (
    set -euo pipefail
    umask 077
    load_libs bundle
    list_cell() { begin_list "$1" && end_list "$1"; }
    "$@"
  )
}

cell() { # <name> [state]: a finished cell with a record as run_one leaves it before the sync
  mkdir -p "$D/cells/$1"
  [[ -e $D/cells/$1/best.pth ]] || head -c 100000 /dev/urandom >"$D/cells/$1/best.pth"
  printf '{\n  "schema": "cell/1",\n  "run_id": "%s",\n  "cell": "%s",\n  "state": "%s",\n  "class": "",\n  "why": "",\n  "attempt": 1,\n  "exit": 0,\n  "signal": null,\n  "started": "2026-08-03T14:20:00Z",\n  "ended": "2026-08-03T14:51:07Z",\n  "peak_memory_bytes": null,\n  "gpu": "L4",\n  "command_sha256": "ab",\n  "files_sha256": "",\n  "tracker_url": ""\n}\n' \
    "$RUN_ID" "$1" "${2-unsynced}" >"$D/state/$1.json"
}

no_temporary_names() { [[ -z $(find "$B" "$D" -name '.*.tmp' -print) ]]; }

@test "sync_cell: the copy, then the list, then the record; both records say done (S84 S85)" {
  cell a
  run --separate-stderr in_lib sync_cell a
  [[ $status -eq 0 && $output == "cell a: synced (receipt $B/records/a.json)" ]]
  cmp "$D/cells/a/best.pth" "$B/final_ckpts/a/best.pth"
  (cd "$B/final_ckpts/a" && sha256sum -c --strict --quiet "$B/records/a.sha256")
  cmp "$D/state/a.sha256" "$B/records/a.sha256"
  cmp "$D/state/a.json" "$B/records/a.json"
  grep -q '"state": "done"' "$B/records/a.json"
  grep -q "\"files_sha256\": \"$(sha256sum <"$B/records/a.sha256" | cut -c1-64)\"" "$B/records/a.json"
  run in_lib check_bundled a
  [[ $status -eq 0 ]]
  no_temporary_names
}

@test "sync_cell: without a durable tier the word synced is not said (T2, pull-only)" {
  DURABLE_DIR='' B=$D
  cell a
  run --separate-stderr in_lib sync_cell a
  [[ $status -eq 0 && $output == *'exported, on this box only'* && $output$stderr != *synced* ]]
  cmp "$D/cells/a/best.pth" "$D/final_ckpts/a/best.pth"
}

@test "sync_cell: a tier that is not there gets no byte (case 91)" {
  cell a
  DURABLE_PROOF=mount
  run --separate-stderr in_lib sync_cell a
  refused 74 'not a mount point'
  [[ -z $(ls -A "$B") ]]
  grep -q '"state": "unsynced"' "$D/state/a.json"
}

@test "sync_cell: cp that does nothing, or half, is found by reading back; the older good copy stays (cases 92 93)" {
  cell a
  mkdir -p "$B/final_ckpts/a" "$BATS_TEST_TMPDIR/bad"
  echo good >"$B/final_ckpts/a/best.pth"
  local body
  # shellcheck disable=SC2016 # for the shim
  for body in ': >"${@: -1}"' 'head -c 1000 "${@: -2:1}" >"${@: -1}"' 'exit 0'; do
    printf '#!/bin/bash\n%s\n' "$body" >"$BATS_TEST_TMPDIR/bad/cp"
    chmod +x "$BATS_TEST_TMPDIR/bad/cp"
    PATH=$BATS_TEST_TMPDIR/bad:$PATH run --separate-stderr in_lib sync_cell a
    [[ $status -eq 74 && $output != *synced* ]]
    [[ $(<"$B/final_ckpts/a/best.pth") == good && ! -e $B/records/a.json ]]
    no_temporary_names
  done
  run in_lib sync_cell a
  [[ $status -eq 0 ]]
  cmp "$D/cells/a/best.pth" "$B/final_ckpts/a/best.pth"
}

@test "sync_cell: a full tier is 73, the old copy stays, and with room the rerun completes (case 93, T19)" {
  [[ $EUID -eq 0 ]] || skip 'needs root for a small tmpfs'
  mount -t tmpfs -o size=300k tmpfs "$DURABLE_DIR" || skip 'no mount here'
  mkdir -p "$B/final_ckpts/a"
  echo good >"$B/final_ckpts/a/best.pth"
  DURABLE_PROOF=mount
  mkdir -p "$D/cells/a" && head -c 400000 /dev/urandom >"$D/cells/a/best.pth"
  cell a
  run --separate-stderr in_lib sync_cell a
  local first=$status kept
  kept=$(<"$B/final_ckpts/a/best.pth")
  mount -o remount,size=2m "$DURABLE_DIR"
  run --separate-stderr in_lib sync_cell a
  cmp "$D/cells/a/best.pth" "$B/final_ckpts/a/best.pth" && no_temporary_names
  local same=$?
  umount "$DURABLE_DIR"
  [[ $first -eq 73 && $kept == good && $status -eq 0 && $same -eq 0 ]]
}

@test "sync_cell: cp says no space although df saw some: 73, nothing left behind" {
  cell a
  fail_nth cp 1 1 'error writing: No space left on device'
  run --separate-stderr in_lib sync_cell a
  [[ $status -eq 73 && ! -e $B/records/a.json ]]
  no_temporary_names
}

@test "sync_cell: every external command fails once, at each call: never a record in B without its proven files" {
  local tool n
  for tool in cp mv sync stat sort mkdir; do
    for n in 1 2 3; do
      rm -rf "$B" "$D" "${BATS_TEST_TMPDIR:?}/shims"
      mkdir -p "$B" "$D/state"
      PATH=$REAL_PATH cell a
      fail_nth "$tool" "$n" 5 'Input/output error'
      run --separate-stderr in_lib sync_cell a
      PATH=$REAL_PATH
      if [[ -e $B/records/a.json ]]; then
        (cd "$B/final_ckpts/a" && sha256sum -c --strict --quiet "$B/records/a.sha256")
        grep -q "$(sha256sum <"$B/records/a.sha256" | cut -c1-64)" "$B/records/a.json"
      fi
      [[ $status -ne 0 ]] || cmp "$D/cells/a/best.pth" "$B/final_ckpts/a/best.pth"
      run --separate-stderr in_lib sync_cell a
      [[ $status -eq 0 ]]
    done
  done
}

@test "sync_cell: links become files; one that leads nowhere is 74; a fifo is never opened (case 98)" {
  REQUIRED=(best.pth deep)
  mkdir -p "$D/cells/a/deep/.hydra" "$BATS_TEST_TMPDIR/cache/dir"
  echo outside >"$BATS_TEST_TMPDIR/cache/blob"
  echo inner >"$BATS_TEST_TMPDIR/cache/dir/x y"
  ln -s "$BATS_TEST_TMPDIR/cache/blob" "$D/cells/a/best.pth"
  ln -s ../best.pth "$D/cells/a/deep/same"
  ln -s "$BATS_TEST_TMPDIR/cache/dir" "$D/cells/a/deep/link"
  echo h >"$D/cells/a/deep/.hydra/config.yaml"
  mkfifo "$D/cells/a/deep/pipe"
  cell a
  run --separate-stderr timeout 20 bash -c "source \"$ROOT/tests/bats/libs.bash\"; $(declare -f in_lib); $(declare -p ROOT D B RUN_ID DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF REQUIRED); in_lib sync_cell a"
  [[ $status -eq 0 && $stderr == *'deep/pipe'* ]]
  [[ -z $(find "$B" -type l) ]]
  [[ $(<"$B/final_ckpts/a/best.pth") == outside && $(<"$B/final_ckpts/a/deep/link/x y") == inner ]]
  [[ -s $B/final_ckpts/a/deep/.hydra/config.yaml && ! -e $B/final_ckpts/a/deep/pipe ]]
  ln -s /nowhere "$D/cells/a/deep/dangling"
  run --separate-stderr in_lib list_cell a
  [[ $status -eq 74 && $stderr == *dangling* ]]
  rm "$D/cells/a/deep/dangling"
  ln -s .. "$D/cells/a/deep/loop"
  run --separate-stderr in_lib list_cell a
  [[ $status -eq 74 ]]
}

@test "list_cell: leftovers of transfers are left out and named, hidden results are in (case 101, T26)" {
  REQUIRED=(deep)
  mkdir -p "$D/cells/a/deep/.~tmp~"
  touch "$D"/cells/a/deep/{x.tmp,.big.WkECEe,.~tmp~/y,z.partial}
  for name in .hidden .best.config 'a b' 'lr=0.1,bs=2' -rf; do echo x >"$D/cells/a/deep/$name"; done
  cell a
  run --separate-stderr in_lib list_cell a
  [[ $status -eq 0 && $stderr == *'.big.WkECEe'* && $stderr == *'x.tmp'* ]]
  [[ $(cut -c67- "$D/state/a.sha256") == $'deep/-rf\ndeep/.best.config\ndeep/.hidden\ndeep/a b\ndeep/lr=0.1,bs=2' ]]
  # A required file is a result whatever its name is.
  REQUIRED=(deep/x.tmp)
  in_lib list_cell a
}

@test "list_cell: a name that no list can hold is 65, a missing or special result 74" {
  REQUIRED=(deep)
  mkdir -p "$D/cells/a/deep"
  echo x >"$D/cells/a/deep/"$'new\nline'
  run --separate-stderr in_lib list_cell a
  [[ $status -eq 65 ]]
  REQUIRED=(nothing)
  run --separate-stderr in_lib list_cell a
  [[ $status -eq 74 && $stderr == *nothing* ]]
  mkfifo "$D/cells/a/p"
  REQUIRED=(p)
  run --separate-stderr in_lib list_cell a
  [[ $status -eq 74 ]]
}

@test "list_cell: a file that is being written is seen as such" {
  mkdir -p "$D/cells/a" "$BATS_TEST_TMPDIR/bad"
  head -c 1200000 /dev/urandom >"$D/cells/a/best.pth"
  cell a
  # The hashing tool is where time passes: the file grows meanwhile.
  printf '#!/bin/bash\necho more >>%q\nexec %q "$@"\n' "$D/cells/a/best.pth" "$(type -P sha256sum)" >"$BATS_TEST_TMPDIR/bad/sha256sum"
  chmod +x "$BATS_TEST_TMPDIR/bad/sha256sum"
  PATH=$BATS_TEST_TMPDIR/bad:$PATH run --separate-stderr in_lib list_cell a
  [[ $status -eq 74 && $stderr == *'still being written'* ]]
}

@test "sync_cell: a small file that is written between its digest and its copy is seen by the copy's digest" {
  cell a
  local tool bad=$BATS_TEST_TMPDIR/bad
  mkdir -p "$bad"
  # Both run side by side: here the copy waits until the digest has been taken.
  for tool in sha256sum openssl; do
    [[ -n $(type -P "$tool") ]] || continue
    printf '#!/bin/bash\n%q "$@" || exit\n: >%q\n' "$(type -P "$tool")" "$bad/digested" >"$bad/$tool"
  done
  printf '#!/bin/bash\nfor ((i = 0; i < 600; i++)); do [[ ! -e %q ]] || break; sleep 0.1; done\necho more >>%q\nexec %q "$@"\n' \
    "$bad/digested" "$D/cells/a/best.pth" "$(type -P cp)" >"$bad/cp"
  chmod +x "$bad"/*
  PATH=$bad:$PATH run --separate-stderr in_lib sync_cell a
  [[ $status -eq 74 && $stderr == *'still being written'* && ! -e $B/final_ckpts/a/best.pth && ! -e $B/records/a.json ]] || fail_with believed
}

@test "sync_cell: a committed cell whose source changed keeps the first copy; a damaged copy is mended from the source" {
  cell a
  in_lib sync_cell a
  echo rot >"$B/final_ckpts/a/best.pth"
  in_lib sync_cell a
  cmp "$D/cells/a/best.pth" "$B/final_ckpts/a/best.pth"
  echo changed >"$D/cells/a/best.pth"
  run --separate-stderr in_lib sync_cell a
  [[ $status -eq 65 && $(stat -c %s "$B/final_ckpts/a/best.pth") -eq 100000 ]]
}

@test "sync_cell: another killed sync's temporary files go, a stranger's stay; a linked folder is not followed (case 101)" {
  cell a
  mkdir -p "$B/final_ckpts/a" "$B/.syncing/a.999999" "$B/.syncing/a.$PPID" "$B/.syncing/a.1.999999"
  touch "$B/.syncing/a.999999/x" "$B/final_ckpts/a/old.bin"
  in_lib sync_cell a
  [[ ! -e $B/.syncing/a.999999 && -e $B/.syncing/a.$PPID && -e $B/.syncing/a.1.999999 && -e $B/final_ckpts/a/old.bin ]]
  # A dead one's number may be ours now: what it left is not taken into the bundle.
  cell c
  mkdir -p "$B/.syncing/c.$$"
  touch "$B/.syncing/c.$$/stale.bin"
  in_lib sync_cell c
  [[ -z $(ls -A "$B/.syncing" | grep '^c') && $(ls -A "$B/final_ckpts/c") == best.pth ]]
  cell b
  mkdir "$BATS_TEST_TMPDIR/elsewhere"
  ln -s "$BATS_TEST_TMPDIR/elsewhere" "$B/final_ckpts/b"
  run in_lib sync_cell b
  [[ $status -eq 74 && -z $(ls -A "$BATS_TEST_TMPDIR/elsewhere") ]]
  # On another disk a rename would be a copy that nobody has proven.
  rm -r "$B/.syncing"
  ln -s "$BATS_TEST_TMPDIR/elsewhere" "$B/.syncing"
  cell d
  run in_lib sync_cell d
  [[ $status -eq 74 && ! -e $B/final_ckpts/d && ! -e $B/records/d.json ]]
}

@test "sync_cell: works with busybox's tools and with sha256sum only" {
  cell a
  (busybox_path && in_lib sync_cell a)
  cmp "$D/cells/a/best.pth" "$B/final_ckpts/a/best.pth"
  cell b
  (box_path_only && rm -f "$BATS_TEST_TMPDIR/box-bin/openssl" && hash -r && in_lib sync_cell b)
  cmp "$D/cells/b/best.pth" "$B/final_ckpts/b/best.pth"
}

@test "sync_cell: cp speaks another language: a full disk is 73 all the same (case 29, F29)" {
  cell a
  mkdir -p "$HOME/bin"
  printf '#!/bin/bash\n[[ ${LC_ALL-} == C ]] && echo "cp: error writing: No space left on device" >&2 || echo "cp: Fehler: Auf dem Geraet ist kein Speicherplatz mehr frei" >&2\nexit 1\n' >"$HOME/bin/cp"
  chmod +x "$HOME/bin/cp"
  PATH=$HOME/bin:$PATH LC_ALL=de_DE.UTF-8 run --separate-stderr in_lib sync_cell a
  [[ $status -eq 73 && ! -e $B/records/a.json ]]
}

@test "sync_cell: the order is copies flushed, renamed, list, record, one flush of folders, list and record (T9, case 93)" {
  REQUIRED=(deep)
  mkdir -p "$D/cells/a/deep/x/y"
  echo 1 >"$D/cells/a/deep/x/y/w" && echo 2 >"$D/cells/a/deep/v"
  cell a
  fail_nth sync 99 1 never
  run --separate-stderr in_lib sync_cell a
  [[ $status -eq 0 ]]
  mapfile -t calls <"$SHIMS/sync.calls"
  [[ ${#calls[@]} -eq 2 && ${calls[0]} == *".syncing/a."*'/deep/v'*'/deep/x/y/w'* ]]
  [[ ${calls[1]} == *"final_ckpts/a/deep/x/y"*'records/a.sha256'*'records/a.json'*"$B/records "* ]]
}

@test "sync_cell: a result of more names than a command line holds comes over whole (case 98)" {
  REQUIRED=(deep)
  mkdir -p "$D/cells/a"
  "$PYTHON" - "$D/cells/a/deep" <<'PY'
import os, sys
for i in range(60):
    folder = os.path.join(sys.argv[1], "a-rather-long-name-for-a-folder-%04d" % i, "inner" * 20)
    os.makedirs(folder)
    for j in range(20):
        open(os.path.join(folder, "x" * 60 + str(j)), "w").write("%d.%d" % (i, j))
PY
  cell a
  # The kernel's room for words is a quarter of the stack: 256 KiB here, and the names are 300.
  ulimit -S -s 1024
  run --separate-stderr in_lib sync_cell a
  [[ $status -eq 0 && $(find "$B/final_ckpts/a" -type f | wc -l) -eq 1200 ]] || fail_with "$stderr"
  (cd "$B/final_ckpts/a" && sha256sum -c --strict --quiet "$B/records/a.sha256")
}

@test "list_paths: few names sort as many do, without repeats (S84)" {
  REQUIRED=(b B a-b a_b a.b ab b a)
  mkdir -p "$D/cells/a"
  for one in "${REQUIRED[@]}"; do echo x >"$D/cells/a/$one"; done
  say() { list_paths "$D/cells/a" && printf '%s\n' "${LIST_PATHS[@]}"; }
  LC_ALL=en_US.UTF-8 run --separate-stderr in_lib say
  [[ $output == "$(printf '%s\n' "${REQUIRED[@]}" | LC_ALL=C sort -u)" ]]
}
