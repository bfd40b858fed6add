# teardown_state.bash: a run at home and on the box, and a provider that is a fake: what the tests of the gate begin with.
# shellcheck disable=SC2154,SC2030,SC2031,SC2016 # bats sets status, output and stderr; each test is its own shell; words for files

RUN_ID=20260803T141500Z-1f3a9c04
OTHER_ID=20260101T000000Z-deadbeef

setup() {
  common_setup
  BACKGROUND=() SSHD_PID=''
  compile_job tests/fixtures/teardown/machine.yaml jobs/demo.yaml
  TD=$OUT/local/teardown.sh
  export CLOUD=$BATS_TEST_TMPDIR/cloud DATA_DIR=$BATS_TEST_TMPDIR/box DURABLE_DIR=$BATS_TEST_TMPDIR/volume INSTANCE=box-7
  L=$HOME/gpu-runs/machine.demo D=$DATA_DIR/demo B=$DURABLE_DIR/demo
  mkdir -p "$CLOUD" "$BATS_TEST_TMPDIR/bin"
  printf 'box-7\nbox-77\n' >"$CLOUD/machines"
  ln -s "$ROOT/tests/fixtures/teardown/fakecloud" "$BATS_TEST_TMPDIR/bin/fakecloud"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
  make_run
}

teardown() {
  [[ -z ${SSHD_PID-} ]] || kill "$SSHD_PID" 2>/dev/null || :
  ((${#BACKGROUND[@]} == 0)) || kill "${BACKGROUND[@]}" 2>/dev/null || :
}

# Teardown's pauses of 5 s are not what these tests are about.
no_sleep() {
  local real
  real=$(type -P sleep)
  printf '#!/bin/sh\n[ "$1" = 5 ] || exec %s "$@"\n' "$real" >"$BATS_TEST_TMPDIR/bin/sleep"
  chmod +x "$BATS_TEST_TMPDIR/bin/sleep"
}

record() { # <file> <name:value>…    value with its JSON quotes
  local file=$1 pair text='{' comma=''
  shift
  for pair in "$@"; do
    text+="$comma"$'\n'"  \"${pair%%:*}\": ${pair#*:}"
    comma=,
  done
  mkdir -p "${file%/*}"
  printf '%s\n}\n' "$text" >"$file"
}

sha() { sha256sum <"$1" | cut -d' ' -f1; }

manifest() { # <folder> <run id> <state of cell b>    a cell that is not done has no file
  local folder=$1 id=$2 state=$3 cells='a b' cell sum text='' bytes=0 file
  [[ $state == done ]] || cells=a
  : >"$folder/SHA256SUMS"
  for cell in $cells; do
    file=final_ckpts/$cell/metrics.json
    text+="${text:+,$'\n'}    {\"bytes\": $(wc -c <"$folder/$file"), \"sha256\": \"$(sha "$folder/$file")\", \"path\": \"$file\"}"
    bytes=$((bytes + $(wc -c <"$folder/$file")))
    printf '%s  %s\n' "$(sha "$folder/$file")" "$file" >>"$folder/SHA256SUMS"
  done
  set -- $cells
  {
    printf '{\n  "schema": "pull_manifest/1",\n  "run_id": "%s",\n  "commit": "%040d",\n' "$id" 7
    printf '  "cells_expected": 2,\n  "cells_done": %s,\n  "files_total": %s,\n  "bytes_total": %s,\n  "cells": [\n' $# $# "$bytes"
    printf '    {"cell": "a", "state": "done", "why": ""},\n    {"cell": "b", "state": "%s", "why": "%s"}\n  ],\n' "$state" "$([[ $state == done ]] || echo "the reason")"
    printf '  "files": [\n%s\n  ],\n' "$text"
  } >"$folder/PULL_MANIFEST.json"
  sum=$(sha "$folder/PULL_MANIFEST.json")
  printf '  "self_sha256": "%s"\n}\n' "$sum" >>"$folder/PULL_MANIFEST.json"
}

# A run that is over, whose bundle is home: the one right state.
make_run() {
  mkdir -p "$D/cells/a" "$B/final_ckpts/a" "$B/final_ckpts/b" "$L"
  record "$D/run.json" 'schema:"run/1"' "run_id:\"$RUN_ID\"" 'job:"demo"' 'profile:"machine"' 'formal:true' "host:\"$(</proc/sys/kernel/hostname)\"" \
    "boot_id:\"$(</proc/sys/kernel/random/boot_id)\""
  cp "$D/run.json" "$B/run.json"
  printf '{"accuracy": 0.91}\n' >"$B/final_ckpts/a/metrics.json"
  printf '{"accuracy": 0.87}\n' >"$B/final_ckpts/b/metrics.json"
  manifest "$B" "$RUN_ID" done
  bring_home
  record "$L/box.json" 'schema:"box/1"' "run_id:\"$RUN_ID\"" 'profile:"machine"' 'host:"local"' 'instance:"box-7"' 'host_key:""'
  ok_text
}
bring_home() { cp -R "$B/final_ckpts" "$B/SHA256SUMS" "$B/PULL_MANIFEST.json" "$L/"; }
ok_text() { # the approval that the state of now asks for
  local digest
  digest=$(sha "$L/PULL_MANIFEST.json")
  OK="terminate box-7 ${digest:0:12}"
}

# A negated command does not fail a test (errexit ignores it): this one does.
not_acted() {
  if acted; then fail_with 'the provider was called'; fi
}
acted() { grep -qE '^(delete|stop)' "$CLOUD/calls" 2>/dev/null; }
teardown_run() { run --separate-stderr "$TD" terminate --run --approve "$OK" </dev/null; }

# A box of its own: sshd on loopback.
start_box() {
  need_tool sshd ssh-keygen
  local port try dir=$BATS_TEST_TMPDIR/sshd user sshd
  user=$(id -un) sshd=$(PATH=$REAL_PATH:/usr/sbin type -P sshd)
  mkdir -p "$dir/bin" "$HOME/.ssh"
  chmod 700 "$HOME/.ssh"
  [[ $user != root || -d /run/sshd ]] || mkdir -p /run/sshd
  ssh-keygen -q -t ed25519 -N '' -f "$dir/host" && ssh-keygen -q -t ed25519 -N '' -f "$dir/id" && cp "$dir/id.pub" "$dir/keys"
  # A port may be taken: another one then.
  for try in 1 2 3 4 5; do
    port=$((20000 + (RANDOM + try) % 12000))
    printf '%s\n' "Port $port" 'ListenAddress 127.0.0.1' "HostKey $dir/host" "AuthorizedKeysFile $dir/keys" 'StrictModes no' 'UsePAM no' "PidFile $dir/pid" \
      "ForceCommand PATH=$dir/bin:/usr/local/bin:/usr/bin:/bin bash -s" >"$dir/config"
    if "$sshd" -f "$dir/config" -E "$dir/log"; then break; fi
  done
  wait_for 30 test -s "$dir/pid"
  SSHD_PID=$(<"$dir/pid")
  # ssh finds the alias in the system's place only: a shim hands it ours.
  printf '%s\n' 'Host testbox' '  HostName 127.0.0.1' "  Port $port" "  User $user" "  IdentityFile $dir/id" '  IdentitiesOnly yes' >"$dir/client"
  printf '#!/bin/sh\nexec %s -F %s "$@"\n' "$(PATH=$REAL_PATH type -P ssh)" "$dir/client" >"$BATS_TEST_TMPDIR/bin/ssh"
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
}

# The same state for a kind with ssh, with a verb that is typed on the box. It is a cluster, for on a rental all of this machine counts.
as_cluster() {
  compile_job tests/fixtures/teardown/cluster.yaml jobs/demo.yaml
  TD=$OUT/local/teardown.sh
  mv "$L" "$HOME/gpu-runs/cluster.demo" && L=$HOME/gpu-runs/cluster.demo
  sed -i 's/"machine"/"cluster"/' "$L/box.json"
}

# One shell line each, run in L.
spoils() {
  local file n
  for file in PULL_MANIFEST.json box.json; do
    printf '%s\n' "rm $file" ": >$file" "printf '{}' >$file" "sed -i 's/$RUN_ID/$OTHER_ID/' $file" "sed -i 1d $file" "sed -i '\$d' $file" \
      "sed -i 's/schema\": \"[a-z_]*/&x/' $file" "head -c 60 $file >x && mv x $file" "printf ' ' >>$file" "rm $file && mkdir $file" "rm $file && ln -s /dev/null $file"
  done
  # One byte of the manifest, at several places; one of each file; the receipt forged before a broken bundle.
  for n in 3 40 120 200 300 420 560 640; do
    printf '%s\n' "printf '#' | dd of=PULL_MANIFEST.json bs=1 seek=$n conv=notrunc status=none"
  done
  for n in 0 5 10 17; do
    for file in a b; do printf '%s\n' "printf '#' | dd of=final_ckpts/$file/metrics.json bs=1 seek=$n conv=notrunc status=none"; done
  done
  for file in a b; do
    printf '%s\n' "rm final_ckpts/$file/metrics.json" ": >final_ckpts/$file/metrics.json" "echo >>final_ckpts/$file/metrics.json" \
      "rm final_ckpts/$file/metrics.json && ln -s /dev/null final_ckpts/$file/metrics.json"
  done
  printf '%s\n' "rm -r final_ckpts" "sed -i 's/box-7/box-77/' box.json" "sed -i 's/box-7/BOX-7/' box.json" "sed -i '/instance/d' box.json" \
    "sed -i 's/\"machine\"/\"local\"/' box.json" "sed -i 's/\"done\"/\"failed\"/' PULL_MANIFEST.json" "sed -i 's/cells_expected\": 2/cells_expected\": 3/' PULL_MANIFEST.json" \
    "sed -i '/\"cell\": \"b\"/d' PULL_MANIFEST.json" "rm $D/run.json $B/run.json" ": >$D/run.json" "sed -i 's/$RUN_ID/$OTHER_ID/' $D/run.json" "rm $B/PULL_MANIFEST.json" \
    "echo >>$B/PULL_MANIFEST.json" "chmod 0 $D; rm -rf $D/run.json $B/run.json"
}
