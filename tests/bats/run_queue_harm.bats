#!/usr/bin/env bats
# run_queue.sh under harm: a second queue at its roster, dead locks, records that cannot be written, full disks, bad outputs.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

@test "two queues begun at once with other cells each: the run has all of them, and neither is refused (S51, X8)" {
  mkdir "$HOME/bin"
  cell a ok
  printf 'z\tbash trainer.sh ok\n' >"$HOME/second"
  # In the midst of the first one's writing the second one begins, and has a moment in which it should wait.
  cat >"$HOME/bin/sync" <<SHIM
#!/bin/bash
if [[ " \$*" == */.queue.tsv.* && ! -e $HOME/second.out ]]; then
  : >$HOME/second.out
  bash $BOX/run_queue.sh --queue $HOME/second --only z >$HOME/second.out 2>&1 3>&- &
  for n in {1..30}; do
    if [[ -e $D/queue.tsv ]]; then : >$HOME/both && break; fi
    read -r -t 0.05 <> <(:)
  done
fi
exec /bin/sync "\$@"
SHIM
  chmod +x "$HOME/bin/sync"
  PATH=$HOME/bin:$PATH queue --only a
  [[ $status -eq 0 && ! -e $HOME/both ]]
  sum_is 1 1 0 0 0
  wait_for 30 grep -q '^planned' "$HOME/second.out"
  output=$(<"$HOME/second.out") sum_is 1 1 0 0 0
  [[ $(cut -f 1 "$D/queue.tsv" | tr '\n' ' ') == 'a z ' && ! -e $D/.queue.lock ]]
}

@test "a lock on the roster whose owner died, or that is cut, holds nobody up for good (S51, T17)" {
  cell a ok
  mkdir -p "$D"
  printf '%s %s 999999999 1\n' "$(</proc/sys/kernel/hostname)" "$(</proc/sys/kernel/random/boot_id)" >"$D/.queue.lock"
  queue
  [[ $status -eq 0 && ! -e $D/.queue.lock ]]
  cell b ok
  echo "otherbox 1 $$" >"$D/.queue.lock"
  queue
  [[ $status -eq 0 && ! -e $D/.queue.lock ]]
  sum_is 2 1 1 0 0
}

@test "a lock on the roster whose owner lives is waited for, said, and not taken away (S51, T17)" {
  local ticks
  cell a ok
  mkdir -p "$D" "$HOME/box" && cp "$BOX"/* "$HOME/box/"
  sed -i 's/n < 200; n++/n < 3; n++/' "$HOME/box/run_queue.sh"
  ticks=$(sed 's/.*) //' "/proc/$$/stat" | cut -d ' ' -f 20)
  printf '%s %s %s %s\n' "$(</proc/sys/kernel/hostname)" "$(</proc/sys/kernel/random/boot_id)" $$ "$ticks" >"$D/.queue.lock"
  cp "$D/.queue.lock" "$HOME/lock"
  run --separate-stderr bash "$HOME/box/run_queue.sh" --queue "$Q"
  [[ $status -eq 0 && $stderr == *'.queue.lock could not be had'*'remove it'* ]] || fail_with said
  cmp "$HOME/lock" "$D/.queue.lock"
  sum_is 1 1 0 0 0
}

@test "a cell that has run and whose record cannot be written stops the queue with 73, and is not run again and again (S81, S108)" {
  # A file in the place of the folder: who waits ahead of its turn would make the folder anew, and may do so in between.
  printf 'a\tbash trainer.sh ok; s=$CELL_DIR/../../state; until { rm -rf "$s"; : >"$s"; } 2>/dev/null; do :; done\n' >"$Q"
  cell b ok
  queue
  [[ $status -eq 73 && $(starts a) -eq 1 && $(starts b) -eq 0 ]] || fail_with unwritten
  sum_is 2 1 0 0 1
}

@test "the first of five cells fills the disk: one more is begun at most, whatever it then says; the queue stops, and ends well once there is room (S106, S108)" {
  local c
  small_disk size=4m
  export DATA_DIR=$BATS_TEST_TMPDIR/small
  D=$DATA_DIR/r
  # Room for a log is left, none for a cell.
  printf 'a\tbash trainer.sh ok; cat /dev/zero >"$CELL_DIR/junk" 2>/dev/null; truncate -s -20000 "$CELL_DIR/junk"\n' >"$Q"
  for c in b c d e; do printf '%s\techo >>"$HOME/on.%s"; head -c 80000 /dev/zero >"$CELL_DIR/x" 2>/dev/null || exit 1; bash trainer.sh ok\n' $c $c >>"$Q"; done
  queue
  [[ $status -eq 73 && $stderr == *'bytes are free, one cell needs'* ]]
  for c in c d e; do [[ ! -e $HOME/on.$c ]]; done
  if [[ -e $HOME/on.b ]]; then sum_is 5 1 0 1 3; else sum_is 5 1 0 0 4; fi
  rm "$D/cells/a/junk"
  queue
  [[ $status -eq 0 ]]
  sum_is 5 4 1 0 0
}

@test "an output that is closed, full or read by nobody any more stops no cell and changes no code (case 25, case 27, S48)" {
  local how n=0 rc words=(bash "$BOX/run_queue.sh" --queue "$Q")
  printf 'a\tbash trainer.sh ok; yes | head -n 1 >/dev/null; printf %%s "${PIPESTATUS[0]}" >"$CELL_DIR/yes"\n' >"$Q"
  cell b ok
  for how in closed closed_err closed_both full gone; do
    export RUN=$how
    D=$DATA_DIR/$how B=$DURABLE_DIR/$how rc=0
    case $how in
      closed) "${words[@]}" >&- 2>"$HOME/said" 3>&- || rc=$? ;;
      closed_err) "${words[@]}" >/dev/null 2>&- 3>&- || rc=$? ;;
      closed_both) "${words[@]}" >&- 2>&- 3>&- || rc=$? ;;
      full) "${words[@]}" >/dev/full 2>&1 3>&- || rc=$? ;;
      gone) "${words[@]}" > >(exec true) 2>&1 3>&- || rc=$? ;;
    esac
    [[ $rc -eq 0 ]] && bundled a && bundled b && is a 'done' && is b 'done' || fail_with "$how: $rc"
    [[ $(<"$HOME/said") != *'write error'* ]]
    # The cell itself has the usual PIPE.
    [[ $(<"$D/cells/a/yes") -eq 141 ]]
  done
  rc=0
  RUN=refused PROXY_HOOK=/nowhere "${words[@]}" >/dev/null 2>/dev/full 3>&- || rc=$?
  [[ $rc -eq 77 ]]
}

@test "few files may be open: the queue runs to its end all the same (case 27, S48)" {
  local n
  for n in {1..18}; do cell "c$n" ok; done
  run --separate-stderr bash -c 'ulimit -n 24 && exec bash "$@" 3>&-' - "$BOX/run_queue.sh" --queue "$Q"
  [[ $status -eq 0 ]]
  sum_is 18 18 0 0 0
}

@test "a quota that is used up is a full disk, in a cell's log and at a copy of ours: pruned once, then the queue stops; the rest is pending (S106, S108, case 29)" {
  local how n=0
  for how in 'OSError: [Errno 122] Disk quota exceeded' 'cp: error writing x: Disk quota exceeded' 'write ckpt.bin: disk quota exceeded'; do
    rm -f "$Q"
    export RUN=q$((n += 1))
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    cell a "says '$how'"
    cell b ok
    queue
    [[ $status -eq 73 && $stderr == *'a: disk_full, once more after scratch is pruned'* && $stderr == *'the disk is full also after pruning'* ]] || fail_with "$how"
    is a failed disk_full
    sum_is 2 0 0 1 1
    [[ $(starts a) -eq 2 && $(starts b) -eq 0 ]]
  done
  rm -f "$Q"
  export RUN=copy
  D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
  cell a ok
  cell b ok
  fail_nth cp 1 1 "error writing 'x': Disk quota exceeded"
  queue
  [[ $status -eq 73 && $stderr == *'no room for the copy'*'Disk quota exceeded'* ]] || fail_with copy
  is a unsynced
  sum_is 2 1 0 0 1
  queue
  [[ $status -eq 0 && $(starts a) -eq 1 ]] && bundled a && bundled b
}
