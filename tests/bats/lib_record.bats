#!/usr/bin/env bats
# The record, file and path libraries: what every other script stands on. CONTRACTS of docs/contracts.md, section 2.

load helper

setup() {
  common_setup
  PROG=test
  load_libs record path
  mkdir "$BATS_TEST_TMPDIR/here" && cd "$BATS_TEST_TMPDIR/here"
}

write_cell() { # <file>
  record_open cell/1
  record_text run_id r1
  record_text why 'said "no" \ and'$'\n''left'
  record_int exit 3
  record_int signal ''
  record_bool ok true
  record_close
  replace_file "$1" "$RECORD"
}

@test "record: what is written reads back, and text is made fit: quote, backslash, newline" {
  write_cell cell.json
  read_record cell.json cell/1 r1
  [[ $R_why == "said 'no' / and left" && $R_exit == 3 && -z $R_signal && $R_ok == true ]]
  python3 -c 'import json; assert json.load(open("cell.json"))["signal"] is None'
}

@test "record: a read leaves the environment's own R_ names to the cell" {
  write_cell cell.json
  export R_HOME=/usr/lib/R R_LIBS=/libs
  read_record cell.json cell/1 r1
  rm cell.json
  read_record cell.json cell/1 r1 || :
  [[ $R_HOME == /usr/lib/R && $R_LIBS == /libs && -z ${R_exit-} ]]
}

@test "record: written over in place and killed at any command, it is the old one, the new one or unknown (case 36, T9)" {
  write_cell old.json
  local old new n rc whole=0
  old=$(<old.json)
  record_open cell/1 && record_text run_id r1 && record_text why 'some longer words that say what is so now' && record_int exit 0 && record_int signal '' && record_bool ok false && record_close
  new=${RECORD%$'\n'}
  for ((n = 1; n < 40; n++)); do
    cp old.json one.json
    (
      at=0
      set -T
      trap '((++at != n)) || kill -9 $BASHPID' DEBUG
      overwrite_file one.json "$RECORD"
    ) 2>/dev/null && whole=1
    rc=0
    read_record one.json cell/1 r1 || rc=$?
    [[ $rc -eq 2 || $(<one.json) == "$old" || $(<one.json) == "$new" ]]
    ((whole == 0)) || break
  done
  [[ $whole -eq 1 && $n -gt 5 && $(<one.json) == "$new" ]]
}

@test "record: only a longer text is written over in place, and never through a link" {
  write_cell one.json
  cp one.json before
  ! overwrite_file one.json $'{\n}\n'
  ln -s one.json link.json
  ! overwrite_file link.json "$RECORD$RECORD"
  ! overwrite_file missing.json "$RECORD"
  : >empty.json
  ! overwrite_file empty.json "$RECORD"
  cmp one.json before
  [[ ! -e missing.json ]]
}

@test "record: one that is cut at any byte is unknown, never done and never not-there (case 36)" {
  write_cell cell.json
  local size n rc
  size=$(wc -c <cell.json)
  for ((n = 0; n < size; n++)); do
    head -c "$n" cell.json >cut.json
    rc=0
    read_record cut.json cell/1 r1 || rc=$?
    [[ $rc -eq 2 ]] || { echo "cut at $n reads as $rc"; return 1; }
  done
  rc=0
  read_record absent.json cell/1 || rc=$?
  [[ $rc -eq 1 ]]
}

@test "record: another schema, another run, bytes behind the end, a NUL and a list that never closes are unknown" {
  write_cell cell.json
  local rc bad
  rc=0; read_record cell.json cell/2 r1 || rc=$?; [[ $rc -eq 2 ]]
  rc=0; read_record cell.json cell/1 r2 || rc=$?; [[ $rc -eq 2 ]]
  cp cell.json long.json; echo x >>long.json
  printf '{\n  "schema": "cell/1",\n    "x": 1\n}\n' >loose.json
  { cat cell.json; cat cell.json; } >twice.json
  for bad in long loose twice; do
    rc=0; read_record "$bad.json" cell/1 || rc=$?
    [[ $rc -eq 2 ]] || { echo "$bad reads as $rc"; return 1; }
  done
}

@test "record: a hostile value is data when it is read back" {
  printf '{\n  "schema": "cell/1",\n  "why": "$(touch PWNED) `touch PWNED` %%s"\n}\n' >cell.json
  read_record cell.json cell/1
  [[ $R_why == '$(touch PWNED) `touch PWNED` %s' && ! -e PWNED ]]
}

@test "record: a member name that is no name is unknown, not a variable" {
  printf '{\n  "schema": "cell/1",\n  "x[$(touch PWNED)]": 1\n}\n' >cell.json
  run read_record cell.json cell/1
  [[ $status -eq 2 && ! -e PWNED ]]
}

@test "file: a full disk leaves the old text whole and no temporary file (case 29, T9)" {
  [[ $EUID -eq 0 ]] || skip "mounting a tmpfs needs root"
  mkdir small
  mount -t tmpfs -o size=64k tmpfs small
  replace_file small/r.json "old"$'\n'
  head -c 60000 /dev/zero >small/fill || :
  local text rc=0
  text=$(head -c 30000 /dev/zero | tr '\0' x)
  replace_file small/r.json "$text" || rc=$?
  local left
  left=$(cat small/r.json; ls -A small)
  umount small
  [[ $rc -eq 74 && $left == $'old\nfill\nr.json' ]] || { echo "$rc $left"; return 1; }
}

@test "file: on a mount that cannot flush folders, a file that cannot be flushed is seen all the same; folders alone are no failure" {
  mkdir -p bin d && echo x >f && echo x >d/g
  # The tool names each that fails, as GNU and busybox do; every folder fails, and what FAILS names.
  printf '#!/bin/bash\n[[ $1 == -- ]] && shift\nrc=0\nfor one; do if [[ -d $one || $one == "${FAILS-}" ]]; then echo "sync: error syncing %s$one%s: Invalid argument" >&2; rc=1; fi; done\nexit $rc\n' "'" "'" >bin/sync
  chmod +x bin/sync
  PATH=$PWD/bin:$PATH
  flush "$PWD/d" "$PWD/f" "$PWD/d/g"
  FAILS=$PWD/f run flush "$PWD/d" "$PWD/f" "$PWD/d/g"
  [[ $status -eq 74 ]]
  FAILS=$PWD/f run flush "$PWD/f"
  [[ $status -eq 74 ]]
  FAILS=$PWD/f flush "$PWD/d" "$PWD/d/g"
}

@test "file: create_once makes it once, and the second caller reads the first one's text" {
  create_once once "a"$'\n'
  run create_once once "b"$'\n'
  [[ $status -eq 1 && $(<once) == a ]]
  [[ $(ls -A) == once ]]
}

@test "path: what may not be a folder of ours is refused 78 with the variable's name (case 11)" {
  local value
  HOME=/home/u
  for value in '' / // /. '/a/..' '/a/../b' 'rel/x' '.' "$HOME" '~' '$HOME' '$NOT_SET_HERE/x' '/a/$NOT_SET_HERE' $'/a\nb' '/a"b'; do
    P=$value
    run require_path P
    [[ $status -eq 78 && $output == *'refused: P='* ]] || { echo "accepted: '$value' ($status)"; return 1; }
  done
}

@test "path: a leading ~ or \$NAME and a whole later \$NAME expand; nothing else does" {
  HOME=/home/u FS_NAME=fs1
  local -A want=([~/runs]=/home/u/runs [\$HOME/runs]=/home/u/runs [/nfs/\$FS_NAME/x]=/nfs/fs1/x
    [/a/b\$FS_NAME]=/a/b\$FS_NAME ['/a/$(touch PWNED)']='/a/$(touch PWNED)' [/a//b/]=/a/b)
  local value
  for value in "${!want[@]}"; do
    P=$value
    require_path P
    [[ $P == "${want[$value]}" ]] || { echo "$value gave $P"; return 1; }
  done
  [[ ! -e PWNED ]]
}

@test "path: names: the charset is kept, and what is outside it is refused (case 12, T21)" {
  check_name 'lr=0.1,bs=2' cell
  check_name "$(printf 'a%.0s' {1..128})" cell
  local bad
  for bad in '' -x .x 'a b' 'a/b' 'a(b)' --help 'ä' $'a\n' "$(printf 'a%.0s' {1..129})"; do
    run check_name "$bad" cell
    [[ $status -eq 78 ]] || { echo "accepted '$bad'"; return 1; }
  done
}

@test "claim: a success word without a receipt is not said" {
  run claim synced cell nothing.json
  [[ $status -eq 65 && $output != *'cell: synced'* ]]
}
