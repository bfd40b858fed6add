#!/usr/bin/env bats
# Environments and cells that nobody expects: what they break is their own affair, and said by its name.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

@test "results that cannot be copied as they are, a link that leads nowhere among them, are their cell's affair: the others run (S48, S81, case 98)" {
  printf 'a\tbash trainer.sh ok; rm "$CELL_DIR/best.pth"; mkdir "$CELL_DIR/best.pth"; echo w >"$CELL_DIR/best.pth/w"; ln -s epoch_9 "$CELL_DIR/best.pth/last"\n' >"$Q"
  cell b ok
  queue
  [[ $status -eq 1 && $stderr == *'best.pth/last is a link that leads nowhere'* && $stderr != *'no further cell is begun'* ]] || fail_with stopped
  is a unsynced && bundled b
  sum_is 2 2 0 0 0
  cell c ok
  queue
  [[ $status -eq 1 ]] && bundled c
  rm "$D/cells/a/best.pth/last"
  queue
  [[ $status -eq 0 && $(starts a) -eq 1 ]] && bundled a
}

@test "a cell that removes everybody's logs has failed by that, no disk is blamed, and the next one runs (T8, S81)" {
  printf 'a\tbash trainer.sh ok; rm -rf "$CELL_DIR/../../logs"\n' >"$Q"
  cell b ok
  queue
  [[ $status -eq 1 ]]
  is a failed bug
  [[ $(why a) == *'was removed, replaced or closed'* && $stderr != *prun* ]] && bundled b
  sum_is 2 1 0 1 0
}

@test "HOME unset: where a person has named all places it is not needed, else it is asked for by its name (S47)" {
  cell a ok
  run --separate-stderr env -u HOME bash "$BOX/run_queue.sh" --queue "$Q"
  [[ $status -eq 0 ]] && bundled a
  run --separate-stderr env -u HOME -u DURABLE_DIR bash "$BOX/run_queue.sh" --queue "$Q"
  refused 78 "\$HOME is not set"
  run --separate-stderr env -u HOME DURABLE_DIR="$BATS_TEST_TMPDIR/none" bash "$BOX/run_queue.sh" --queue "$Q"
  refused 74 'is no folder'
}

@test "an exported BASHOPTS with failglob ends no script (S47)" {
  cell a ok
  run --separate-stderr env BASHOPTS=failglob bash "$BOX/run_queue.sh" --queue "$Q"
  [[ $status -eq 0 && -z $(grep 'no match' <<<"$stderr") ]] && bundled a
}

@test "a folder that a person's own STAGE names is not removed (S47)" {
  cell a ok
  mkdir "$HOME/stage"
  run --separate-stderr env STAGE="$HOME/stage" bash "$BOX/run_one.sh" --queue "$Q" nosuch
  [[ $status -eq 78 && -d $HOME/stage ]]
}

@test "a /proc of another PID namespace is refused by its name; one of its own, with the shell as process 1, is as good as any (T17, case 43)" {
  cell a ok
  unshare -pf true 2>/dev/null || missing_tool 'unshare -p (root)'
  run --separate-stderr unshare -pf bash "$BOX/run_queue.sh" --queue "$Q"
  refused 69 '/proc' 'of another PID namespace'
  run --separate-stderr unshare -pf --mount-proc bash "$BOX/run_queue.sh" --queue "$Q"
  [[ $status -eq 0 ]] && bundled a
}

@test "a limit on the size of files that a trainer meets is named (S81, case 20)" {
  printf 'a\tulimit -f 8; exec head -c 100000 /dev/zero >"$CELL_DIR/x"\n' >"$Q"
  one a
  is a failed killed
  [[ $(why a) == *'SIGXFSZ'*'ulimit -f'* ]]
}

@test "events.tsv that is no file keeps no result from coming home (S83, case 98)" {
  cell a ok
  queue
  rm "$D/events.tsv" && mkdir "$D/events.tsv" && : >"$D/events.tsv/x"
  run --separate-stderr bash "$BOX/aggregate_to_fs.sh"
  [[ $status -eq 0 && $stderr == *'events.tsv is a folder: it does not come home'* && -s $B/PULL_MANIFEST.json ]] || fail_with home
}

@test "a tracker_url of megabytes makes no record of megabytes (X8)" {
  printf 'a\tbash trainer.sh ok; head -c 300000 /dev/zero | tr "\\0" u >"$CELL_DIR/tracker_url"\n' >"$Q"
  one a
  [[ $status -eq 0 && $(wc -c <"$B/records/a.json") -lt 5000 && $(member "$B/records/a.json" tracker_url) == uuuu* ]]
}

@test "a user who is not root: a log, a result and a claim that are closed to us are their cell's affair, and named (S81, T8, case 45)" {
  local name
  PATH=$REAL_PATH setpriv --reuid 65534 --regid 65534 --clear-groups true 2>/dev/null || missing_tool 'setpriv (root)'
  printf 'a\tbash trainer.sh ok; chmod 000 "$CELL_DIR/../../logs/a/attempt-001.log"\n' >"$Q"
  printf 'b\tbash trainer.sh ok; chmod 000 "$CELL_DIR/best.pth"\n' >>"$Q"
  printf 'c\tbash trainer.sh ok; chmod 000 "$CELL_DIR/../../claims/c/001"; exit 3\n' >>"$Q"
  cell d ok
  # Of the folders above, which are root's, others may pass through; the scripts lie where they can be read.
  cp -R "$BOX" "$BATS_TEST_TMPDIR/box"
  chmod -R a+rX "$BATS_TEST_TMPDIR/box" "$Q"
  chown -R 65534:65534 "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH" "$CODE_DIR" "$HOME"
  name=$BATS_TEST_TMPDIR
  while [[ $name == */bats-run-* ]]; do chmod a+x "$name" && name=${name%/*}; done
  setpriv --reuid 65534 --regid 65534 --clear-groups test -r "$BATS_TEST_TMPDIR/box/run_queue.sh" || skip 'another user cannot pass to the temporary folder'
  run --separate-stderr setpriv --reuid 65534 --regid 65534 --clear-groups bash "$BATS_TEST_TMPDIR/box/run_queue.sh" --queue "$Q"
  [[ $status -eq 1 && $stderr != *'no further cell'* && $stderr == *"claims/c/001 is a file that we may not read, not a claim"* ]] || fail_with queue
  is a failed bug && is b unsynced && is c failed bug && bundled d
  run --separate-stderr setpriv --reuid 65534 --regid 65534 --clear-groups bash "$BATS_TEST_TMPDIR/box/status.sh"
  [[ $status -eq 0 && $output == *'= done 1 + running 0 + pending 0 + failed 2 + unsynced 1 + '* ]] || fail_with status
}
