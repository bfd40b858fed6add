#!/usr/bin/env bats
# A tier that is mounted read-only, before or in the midst of a run: named with its remedy, nothing lost, the rest pending.
load helper
load cells
setup() {
  cells_setup
  small_disk size=20m
  SMALL=$BATS_TEST_TMPDIR/small
}
teardown() {
  cells_teardown
  while mountpoint -q "$BATS_TEST_TMPDIR/small" 2>/dev/null; do umount -l "$BATS_TEST_TMPDIR/small" || break; done
}

tier() { # <data or durable> : it lies on the small disk
  if [[ $1 == data ]]; then export DATA_DIR=$SMALL && D=$SMALL/r; else export DURABLE_DIR=$SMALL && B=$SMALL/r; fi
}
# The disk becomes read-only under whoever uses it, as after a fault: what is open stays so.
under='mount --bind "$SMALL" "$SMALL" && mount -o remount,bind,ro "$SMALL"'

@test "read-only before the start: refused by its name before any claim, and the same call goes on afterwards (S81, S108, case 29)" {
  local one code name
  for one in data:73 durable:74; do
    rm -f "$Q" && export RUN=$one && RUN=${RUN%:*}
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN code=${one#*:}
    tier "${one%:*}"
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    cell a ok
    cell b ok
    mount -o remount,ro "$SMALL"
    queue
    refused "$code" "$SMALL" "$SMALL is mounted read-only" "mount the ${one%:*} tier for writing again"
    if [[ $one == data:* ]]; then
      for name in 'formal_run.sh start' smoke.sh; do
        # shellcheck disable=SC2086 # a script and its word
        run --separate-stderr bash "$BOX"/$name
        refused 73 "$SMALL is mounted read-only" 'mount the data tier for writing again' || fail_with "$name"
      done
    fi
    mount -o remount,rw "$SMALL"
    queue --only a
    [[ $status -eq 0 ]]
    mount -o remount,ro "$SMALL"
    queue
    refused "$code" "$SMALL is mounted read-only" "mount the ${one%:*} tier for writing again"
    [[ $(starts b) -eq 0 && ! -e $D/claims/b && $stderr != *events.tsv* ]] || fail_with quiet
    one b
    refused "$code" "$SMALL is mounted read-only"
    # Nothing to do, nothing to write: done is done.
    queue --only a
    [[ $status -eq 0 ]] && sum_is 1 0 1 0 0
    mount -o remount,rw "$SMALL"
    queue
    [[ $status -eq 0 ]] && sum_is 2 1 1 0 0
    unset DATA_DIR && export DATA_DIR=$BATS_TEST_TMPDIR/data
  done
}

@test "a scratch that is read-only is named, and no cell is begun (S81, S108, case 29)" {
  export SCRATCH=$SMALL
  cell a ok
  mount -o remount,ro "$SMALL"
  one a
  refused 73 "$SMALL/gpu-runbook/r" "$SMALL is mounted read-only" 'mount the scratch tier for writing again'
  [[ $(starts a) -eq 0 && ! -e $D/claims/a/001 ]]
  mount -o remount,rw "$SMALL"
  one a
  [[ $status -eq 0 ]] && bundled a
}

@test "the data tier becomes read-only under a cell: the queue stops with its name, the rest is pending, nothing is lost (S81, S108, case 29)" {
  tier data
  export SMALL
  cell a ok
  printf 'b\tif [ ! -e "$HOME/once" ]; then : >"$HOME/once"; %s; fi; bash trainer.sh ok\n' "$under" >>"$Q"
  cell c ok
  cell d ok
  queue
  [[ $status -eq 73 && $stderr == *"no further cell is begun: cell b has run, and its record could not be written: $SMALL is mounted read-only; "*'mount the data tier for writing again'* ]] || fail_with said
  sum_is 4 2 0 0 2
  bundled a && [[ ! -e $B/records/b.json && $(starts c) -eq 0 ]]
  umount "$SMALL"
  queue
  [[ $status -eq 0 ]] && sum_is 4 3 1 0 0
}

@test "the durable tier becomes read-only behind a cell: unsynced, the queue stops with its name, then only the copy is made (S81, S108, T9, case 40)" {
  tier durable
  export SMALL
  cell a ok
  printf 'b\tbash trainer.sh ok; if [ ! -e "$HOME/once" ]; then : >"$HOME/once"; %s; fi\n' "$under" >>"$Q"
  cell c ok
  queue
  [[ $status -eq 74 && $stderr == *"$SMALL is mounted read-only, so nothing can be copied there: mount the durable tier for writing again"* ]] || fail_with said
  sum_is 3 2 0 0 1
  is b unsynced && bundled a
  run --separate-stderr bash "$BOX/aggregate_to_fs.sh"
  refused 74 "$SMALL is mounted read-only"
  run --separate-stderr bash "$BOX/status.sh"
  [[ $status -eq 0 && $output == *'unsynced 1'* ]]
  umount "$SMALL"
  queue
  [[ $status -eq 0 && $(starts b) -eq 1 ]] && bundled b && bundled c
}
