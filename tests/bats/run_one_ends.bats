#!/usr/bin/env bats
# run_one.sh: how an attempt ends, by limits, full disks and hard stops, and what its environment may hold.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

@test "a lifted oom_kill counter makes it oom_host, in both cgroup versions (case 20)" {
  local version
  for version in 1 2; do
    root=$BATS_TEST_TMPDIR/root$version
    mkdir -p "$root/proc/self" "$root/proc/sys/kernel/random" "$root/sys/fs/cgroup/x" "$root/sys/fs/cgroup/memory/x"
    cp /proc/sys/kernel/hostname "$root/proc/sys/kernel/" && cp /proc/sys/kernel/random/boot_id "$root/proc/sys/kernel/random/"
    if ((version == 1)); then
      echo '5:memory:/x' >"$root/proc/self/cgroup"
      counter=$root/sys/fs/cgroup/memory/x/memory.oom_control
      printf 'oom_kill_disable 0\nunder_oom 0\noom_kill 4\n' >"$counter"
    else
      echo '0::/x' >"$root/proc/self/cgroup"
      counter=$root/sys/fs/cgroup/x/memory.events
      printf 'low 0\noom 4\noom_kill 4\n' >"$counter"
    fi
    printf 'o%s\tsed -i "s/^oom_kill 4/oom_kill 5/" %s; kill -KILL $$\n' $version "$counter" >>"$Q"
    FAKE_ROOT=$root one o$version
    [[ $status -eq 137 ]]
    is o$version failed oom_host
  done
}

# --- limits ---

@test "the wall limit ends the group: timeout, exit 1; with all artifacts there it is stuck (case 21, case 31)" {
  cell t stalls
  cell h hangs
  sed 's/^readonly WALL_S=.*/readonly WALL_S=1/' "$BOX/run_one.sh" >"$BATS_TEST_TMPDIR/run_one.sh"
  run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" t
  [[ $status -eq 1 ]]
  is t failed timeout
  run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" h
  [[ $status -eq 1 ]]
  is h failed stuck
  nothing_alive
}

@test "the stall limit looks at the log and at the folder (case 25, case 31, S105)" {
  cell q 'slow 30 0.1'
  cell s stalls
  sed 's/^readonly STALL_S=.*/readonly STALL_S=2/; s/^readonly GRACE_S=.*/readonly GRACE_S=1/' "$BOX/run_one.sh" >"$BATS_TEST_TMPDIR/run_one.sh"
  run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" q
  [[ $status -eq 0 ]]
  run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" s
  [[ $status -eq 1 ]]
  is s failed timeout
  [[ $(why s) == *stall* ]]
}

@test "SIGKILL loses no line that was printed before (case 25)" {
  cell a talks
  bash "$BOX/run_one.sh" --queue "$Q" a >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 grep -q 'line 9' "$D/logs/a/attempt-001.log"
  pkill_trainer=$(awk 'END {print $4}' "$D/starts.a")
  kill -KILL "$pkill_trainer"
  wait $pid || [[ $? -eq 137 ]]
  grep -q 'line 8' "$D/logs/a/attempt-001.log"
}

# --- disks ---

@test "a full log disk is never a success (T8, case 17)" {
  cell a talks
  cell b 'talks; true'
  mkdir -p "$D/logs"
  small_disk size=16k
  rmdir "$D/logs" && ln -s "$BATS_TEST_TMPDIR/small" "$D/logs"
  head -c 12000 /dev/zero >"$BATS_TEST_TMPDIR/small/fill"
  printf 'c\tfor i in {1..2000}; do echo line $i; done; bash trainer.sh ok\n' >"$Q"
  one c
  [[ $status -ne 0 && ! -e $B/records/c.json ]]
  is c failed disk_full
}

@test "a full data tier refuses before the claim with 73, bytes and inodes (case 29, S106)" {
  cell a ok
  small_disk size=64k
  DATA_DIR=$BATS_TEST_TMPDIR/small one a
  refused 73 'bytes are free'
  umount "$BATS_TEST_TMPDIR/small"
  small_disk size=10m,nr_inodes=8
  DATA_DIR=$BATS_TEST_TMPDIR/small one a
  refused 73
  [[ -z $(ls "$BATS_TEST_TMPDIR/small/r/claims/a" 2>/dev/null) ]]
}

@test "a checkpoint that meets a full disk is disk_full, names mount, bytes and inodes, and best stays (case 29, S106, S107)" {
  small_disk size=1m
  cell a full
  DATA_DIR=$BATS_TEST_TMPDIR/small D=$BATS_TEST_TMPDIR/small/r
  one a
  [[ $status -eq 1 ]]
  is a failed disk_full
  [[ $(why a) == *"$D has "*bytes*inodes* && -s $D/cells/a/best.pth ]]
}

@test "a durable tier without room leaves the cell unsynced, the data copy alone, and the next call only copies (T9, T19)" {
  small_disk size=300k
  export DURABLE_DIR=$BATS_TEST_TMPDIR/small
  B=$DURABLE_DIR/r
  printf 'a\tbash trainer.sh ok; head -c 600000 /dev/zero >"$CELL_DIR/best.pth"\n' >>"$Q"
  one a
  [[ $status -eq 73 && $stderr == *'no room for the copy'* ]]
  is a unsynced
  [[ -s $D/cells/a/best.pth && ! -e $B/records/a.json && ! -e $B/final_ckpts/a/best.pth ]]
  mount -o remount,size=4m "$DURABLE_DIR"
  one a
  [[ $status -eq 0 && $(starts a) -eq 1 ]]
  bundled a
}

# --- secrets, proxy ---

@test "secrets are read, not sourced, exported by the job's names only, and a leak is named without its value (S49)" {
  sed 's/^readonly -a SECRETS=()/readonly -a SECRETS=(WANDB_API_KEY)/' "$BOX/run_one.sh" >"$BATS_TEST_TMPDIR/run_one.sh"
  printf 'OTHER=x\nWANDB_API_KEY=s3cr3t$(touch %s/pwned)\n' "$HOME" >"$HOME/cred"
  chmod 644 "$HOME/cred"
  export CRED_FILE=$HOME/cred
  cell a env
  cell b 'says "$WANDB_API_KEY" 1'
  run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" a
  refused 77 'others may read it'
  chmod 600 "$HOME/cred"
  run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" a
  [[ $status -eq 0 && ! -e $HOME/pwned ]]
  grep -qF 'WANDB_API_KEY=s3cr3t$(touch' "$D/cells/a/env"
  ! grep -q '^OTHER=' "$D/cells/a/env"
  run --separate-stderr bash "$BATS_TEST_TMPDIR/run_one.sh" --queue "$Q" b
  [[ $stderr == *'holds the value of: WANDB_API_KEY'* && $stderr != *s3cr3t* ]]
  ! grep -rqF 's3cr3t' "$D/events.tsv" "$D/state" "$D/run.json"
}

@test "the proxy hook is sourced with strict mode lifted, and looked at afterwards; an address is exported (case 24, T1, T10, X7)" {
  cell a env
  cell b env
  cell c ok
  printf 'echo $UNSET_NAME >/dev/null; export http_proxy=http://p:1; false\nreturn 1\n' >"$HOME/hook"
  PROXY_HOOK=$HOME/hook one a
  [[ $status -eq 0 ]]
  grep -qx http_proxy=http://p:1 "$D/cells/a/env"
  PROXY_HOOK=http://h:2 one b
  grep -qx https_proxy=http://h:2 "$D/cells/b/env"
  for text in 'true' 'exit 0' 'export x=1'; do
    echo "$text" >"$HOME/hook"
    PROXY_HOOK=$HOME/hook one c
    refused 77 PROXY_HOOK
  done
  PROXY_HOOK=/nowhere one c
  refused 77 'is not there'
  [[ -z $(ls "$D/claims/c" 2>/dev/null) ]]
  PROXY_HOOK='' one c
  [[ $status -eq 0 ]]
}

# --- the record ---

@test "an empty or cut record is unknown: the cell is run again, not done (case 36)" {
  cell a ok
  cell b ok
  one a && one b
  : >"$D/state/a.json"
  : >"$B/records/a.json"
  head -c 100 "$B/records/b.json" >"$HOME/cut" && cp "$HOME/cut" "$B/records/b.json" && cp "$HOME/cut" "$D/state/b.json"
  one a
  [[ $status -eq 0 && $(starts a) -eq 2 ]]
  one b
  [[ $status -eq 0 && $(starts b) -eq 2 ]]
  bundled a
  bundled b
}

@test "busybox first on PATH, a comma locale, no terminal, TMPDIR full, no setsid: the same (case 27, F29)" {
  cell a 'slow 2 0.1'
  cell b daemon
  busybox_path
  small_disk size=4k
  head -c 8000 /dev/zero >"$BATS_TEST_TMPDIR/small/fill" 2>/dev/null || :
  comma_locale
  TMPDIR=$BATS_TEST_TMPDIR/small one a
  [[ $status -eq 0 ]]
  bundled a
  box_path_only
  rm -f "$BATS_TEST_TMPDIR/box-bin/setsid"
  sed -i 's/setsid bash/bash/' "$CODE_DIR/trainer.sh"
  one b
  [[ $status -eq 0 && $stderr == *'left process'* ]]
  nothing_alive
}

@test "finished by its record, but a hard stop has cut what it left: it is run again, not committed (case 36, T4, T9)" {
  cell a ok
  # No copy is possible: the record says unsynced.
  fail_nth cp 0 1 'Input/output error'
  one a
  PATH=$REAL_PATH
  is a unsynced
  : >"$D/cells/a/best.pth"
  one a
  [[ $status -eq 0 && $(starts a) -eq 2 && $stderr == *'run again'* ]]
  bundled a
  [[ -s $B/final_ckpts/a/best.pth ]]
}

# A trainer that leaves more than what is copied in a moment.
big_cell() { printf '%s\tbash trainer.sh ok && head -c 2000000 /dev/zero >>"$CELL_DIR/best.pth"\n' "$1" >>"$Q"; }

@test "what a finished cell has left is flushed before its record says so, and a file that cannot be flushed is no success (case 28, case 29, T9)" {
  big_cell a
  fail_nth sync 99 1 never
  one a
  [[ $status -eq 0 ]]
  # The record's text and both results in one call, ahead of the copies.
  grep -n 'state/.a.json.*cells/a/best.pth.*cells/a/metrics.json' "$SHIMS/sync.calls"
  # A quota on a network disk shows at the flush: each call that names a file fails, others do not.
  printf '#!/bin/bash\nfor one; do [[ $one != */.syncing/* ]] || { echo "sync: error syncing: Disk quota exceeded" >&2; exit 1; }; done\necho "$*" >>%s\nexec /bin/sync "$@"\n' "$SHIMS/sync.calls" >"$SHIMS/sync"
  cell b ok
  big_cell c
  for c in b c; do
    one $c
    [[ $status -eq 74 && $output != *synced* && ! -e $B/records/$c.json ]]
    is $c unsynced
    # What waits for another try is on the disk, be it little or much.
    grep "cells/$c/best.pth.*cells/$c/metrics.json" "$SHIMS/sync.calls"
    [[ $(why $c) != *boot* ]]
  done
  PATH=$REAL_PATH
  for c in b c; do
    one $c
    [[ $status -eq 0 && $(starts $c) -eq 1 ]]
    bundled $c
  done
}

@test "finished, and stopped before its few files were flushed: copied in the same boot, run again in a later one (case 29, case 36, T9)" {
  cell a ok
  cell b ok
  # Killed at the copy: the record says finished in this boot.
  mkdir "$HOME/bin"
  printf '#!/bin/bash\nkill -9 $PPID\n' >"$HOME/bin/cp" && chmod +x "$HOME/bin/cp"
  for c in a b; do
    PATH=$HOME/bin:$PATH one $c
    [[ $status -eq 137 && ! -e $B/records/$c.json ]]
    is $c unsynced
    [[ $(why $c) == "not flushed, boot $(cat /proc/sys/kernel/random/boot_id)" ]]
  done
  one a
  [[ $status -eq 0 && $(starts a) -eq 1 ]]
  bundled a
  sed -i 's/not flushed, boot ......../not flushed, boot 00000000/' "$D/state/b.json"
  # Nobody copies what nobody knows: not aggregation either.
  cp "$Q" "$D/queue.tsv"
  run --separate-stderr bash "$BOX/aggregate_to_fs.sh"
  [[ ! -e $B/records/b.json && $stderr == *'cell b finished in an earlier boot'* ]]
  one b
  [[ $status -eq 0 && $(starts b) -eq 2 && $stderr == *'an earlier boot'*'run again'* ]]
  bundled b
  # Where the boot cannot be told, it is never this one.
  cell c ok
  PATH=$HOME/bin:$PATH one c
  sed -i 's/not flushed, boot [^"]*/not flushed, boot unknown/' "$D/state/c.json"
  mkdir -p "$HOME/fake/proc/sys/kernel" && cp /proc/sys/kernel/hostname "$HOME/fake/proc/sys/kernel/"
  FAKE_ROOT=$HOME/fake one c
  [[ $status -eq 0 && $(starts c) -eq 2 ]]
  bundled c
}

@test "a run_one that waits is told of a cell or ends with who would tell it (S48)" {
  cell a ok
  run --separate-stderr bash "$BOX/run_one.sh" --queue "$Q" --wait </dev/null
  [[ $status -eq 79 && -z $output && -z $stderr && ! -e $D ]]
  run --separate-stderr bash "$BOX/run_one.sh" --queue "$Q" --wait <<<"=a"
  [[ $status -eq 79 && -z $output && ! -e $D ]]
  run --separate-stderr bash "$BOX/run_one.sh" --queue "$Q" --wait a </dev/null
  [[ $status -eq 64 ]]
}

@test "a mount that cannot flush a folder is no failure (case 28)" {
  cell a ok
  mkdir "$HOME/bin"
  printf '#!/bin/bash\nfor one; do [[ ! -d $one ]] || exit 1; done\nexec /bin/sync "$@"\n' >"$HOME/bin/sync"
  chmod +x "$HOME/bin/sync"
  PATH=$HOME/bin:$PATH one a
  [[ $status -eq 0 ]]
  bundled a
}

@test "a small cell with all guards costs at most 30 external processes" {
  need_tool strace
  printf '%s\techo {} >"$CELL_DIR/metrics.json"; echo w >"$CELL_DIR/best.pth"\n' w x y z >"$Q"
  git -C "$CODE_DIR" init -q && git -C "$CODE_DIR" commit -q --allow-empty -m start
  queue --only w
  [[ $status -eq 0 ]]
  strace -f -qq -e trace=execve -o "$HOME/one" bash "$BOX/run_queue.sh" --queue "$Q" --only x >/dev/null 2>&1
  strace -f -qq -e trace=execve -o "$HOME/two" bash "$BOX/run_queue.sh" --queue "$Q" --only y,z >/dev/null 2>&1
  bundled x
  bundled y
  bundled z
  each=$(($(grep -c 'execve.* = 0' "$HOME/two") - $(grep -c 'execve.* = 0' "$HOME/one")))
  echo "# $each processes" >&3
  ((each > 5 && each <= 30))
}

@test "a cell's log names its environment by eight digits that differ when a package does (X9)" {
  mkdir "$HOME/py"
  printf '#!/bin/bash\necho "{\\"packages\\": [\\"torch==%%s\\"]}"\n' >"$HOME/py/python3"
  digits() { sed -n '1s/.* environment \([0-9a-f]\{8\}\) .*/\1/p' "$D/logs/$1/attempt-001.log"; }
  for one in a b c; do cell $one ok; done
  for one in a:2.1 b:2.1 c:2.2; do
    sed "s/%s/${one#*:}/" "$HOME/py/python3" >"$HOME/py/now" && chmod +x "$HOME/py/now"
    PY=$HOME/py/now one "${one%:*}"
    [[ $status -eq 0 ]]
  done
  [[ -n $(digits a) && $(digits a) == "$(digits b)" && $(digits a) != "$(digits c)" && $stderr == *'environment is another one'* ]]
  [[ $(cut -f 2 "$D/events.tsv" | grep -c environment) -eq 2 ]]
}

@test "resumed after a hard stop: an empty checkpoint is named and left alone (case 35, case 36)" {
  printf 'a\tif ((CELL_RESUME)); then bash trainer.sh ok; else : >"$CELL_DIR/step_10.pth"; echo x >"$CELL_DIR/step_9.pth"; exit 7; fi\n' >>"$Q"
  one a
  [[ $status -eq 7 ]]
  one a
  [[ $status -eq 0 && $stderr == *'step_10.pth'* && $stderr != *'step_9.pth'* && -e $D/cells/a/step_10.pth ]]
}

@test "a signal in the very moment in which the cell ends: run_one does not wait out the grace (case 42, T17)" {
  local n rc pid
  sed -E 's/^readonly (SIGNAL_)?GRACE_S=.*/readonly \1GRACE_S=600/' "$BOX/run_one.sh" >"$HOME/run_one.sh"
  # bash loses an end now and then, not each time.
  printf 'a\tbash trainer.sh ok; kill -TERM $PPID\n' >"$Q"
  over() { ! kill -0 "$pid" 2>/dev/null; }
  for n in 1 2 3 4 5; do
    bash "$HOME/run_one.sh" --queue "$Q" a >/dev/null 2>&1 3>&- &
    pid=$! rc=0
    wait_for 60 over
    wait "$pid" || rc=$?
    [[ $rc -eq 143 ]]
    is a preempted preempted
  done
}

@test "a cell that stands still is told to go on when it is told to stop: it saves, and nobody waits out the grace (case 42, T17)" {
  local pid rc=0
  sed -E 's/^readonly (SIGNAL_)?GRACE_S=.*/readonly \1GRACE_S=600/' "$BOX/run_one.sh" >"$HOME/run_one.sh"
  printf 'a\ttrap '"'"'echo x >"$CELL_DIR/saved"; exit 0'"'"' TERM; kill -STOP $$; sleep 600\n' >"$Q"
  bash "$HOME/run_one.sh" --queue "$Q" a >/dev/null 2>&1 3>&- &
  pid=$!
  still() { grep -qs '^State:.T' /proc/"$(pgrep -f 'kill -STOP' -P "$pid")"/status; }
  wait_for 30 still
  kill -TERM "$pid"
  over() { ! kill -0 "$pid" 2>/dev/null; }
  wait_for 60 over
  wait "$pid" || rc=$?
  [[ $rc -eq 143 && -s $D/cells/a/saved ]]
  is a preempted preempted
}
