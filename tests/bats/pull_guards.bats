#!/usr/bin/env bats
# pull.sh: what it refuses, and what it leaves alone: foreign and hostile bundles, narrow disks, odd laptops, kills
# (S61 S62 S87, cases 89 96 103 106-108 110-113, T29 T32).

load helper
load sshd
load bundle_cells
# shellcheck disable=SC2154 # compile_job sets OUT
load pull_state

@test "pull: another run's bundle gives no byte; a shorter bundle and a missing one leave what is here (cases 102 108)" {
  bundle a b
  here
  L=$LOCAL_DIR/local.r1
  sed -i 's/"run_id": .*/"run_id": "20200101T000000Z-00000000",/' "$B/run.json"
  run --separate-stderr here
  refused 65 'r1' "$RUN_ID"
  mv "$B" "$B.away"
  run --separate-stderr here
  refused 69
  [[ -s $L/final_ckpts/a/best.pth && -s $L/PULL_MANIFEST.json ]]
  # The same run, and a bundle with less in it than was pulled.
  rm -r "$BOX/data/r1/cells/b" "$BOX/data/r1/state/b.json"
  cell_record "$BOX/data/r1/state/a.json" a unsynced
  DATA_DIR=$BOX/data DURABLE_DIR=$BOX/durable "$OUT/box/aggregate_to_fs.sh" || [[ $? -eq 1 ]]
  run --separate-stderr here
  refused 74 'cell b'
  [[ -s $L/final_ckpts/b/best.pth ]]
}

@test "pull: hostile manifests are refused at both ends, and nothing they name is made (case 112)" {
  bundle a
  local path
  for path in '../../evil' '/tmp/evil' 'final_ckpts/../../evil' 'final_ckpts/-rf' 'final_ckpts/a/../../../evil' 'final_ckpts/a/x\y'; do
    "$PYTHON" - "$B/PULL_MANIFEST.json" "$path" <<'PY'
import hashlib, re, sys
raw = open(sys.argv[1]).read()
raw = re.sub(r'"path": "[^"]*best.pth"|"path": "EVIL[^"]*"', lambda _: '"path": "%s"' % sys.argv[2], raw, count=1)
head = raw[: raw.index('  "self_sha256"')]
open(sys.argv[1], "w").write(head + '  "self_sha256": "%s"\n}\n' % hashlib.sha256(head.encode()).hexdigest())
PY
    run --separate-stderr here
    refused 65 PULL_MANIFEST
    rm -rf "$LOCAL_DIR"
    DATA_DIR=$BOX/data DURABLE_DIR=$BOX/durable "$OUT/box/aggregate_to_fs.sh" >/dev/null
  done
  [[ -z $(find "$BATS_TEST_TMPDIR" -name 'evil*') ]]
  # One byte changed: the manifest's own digest.
  sed -i 's/"bytes": 6/"bytes": 7/' "$B/PULL_MANIFEST.json"
  run --separate-stderr here
  refused 65 'own digest'
}

@test "pull: names with blanks, quotes of the shell and globs stay names (case 112)" {
  need_tool rsync
  local path job=$BATS_TEST_TMPDIR/odd.yaml
  sed 's/required: .*, best_metrics.json\]/required: [best.pth, deep]/' "$ROOT/jobs/demo.yaml" >"$job"
  compile_job local "$job"
  D=$BOX/data/r1 B=$BOX/durable/r1
  run_record_here "$D"
  mkdir -p "$B" "$D/cells/a/deep"
  roster "$D" a
  finished_cell "$D" a
  for path in '$(touch X)' 'a b' '*' '-rf' "it's" ';id' '~' 'é'; do echo "$path" >"$D/cells/a/deep/$path"; done
  DATA_DIR=$BOX/data DURABLE_DIR=$BOX/durable "$OUT/box/aggregate_to_fs.sh" >/dev/null
  sshd_start
  compile_job generic-ssh demo
  run --separate-stderr env RSYNC_OLD_ARGS=1 "$OUT/local/pull.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable"
  [[ $status -eq 0 ]]
  home_is_whole generic-ssh
  box_without rsync
  rm -rf "$LOCAL_DIR"
  run --separate-stderr over_ssh
  [[ $status -eq 0 ]]
  home_is_whole generic-ssh
  [[ -z $(find "$BATS_TEST_TMPDIR" / -maxdepth 1 -name X) ]]
}

@test "pull: a target that folds case is refused where two names clash (case 110)" {
  bundle lr1 b
  # No such volume here: what the probe sees is played by the shell's own look at the folder.
  compile_job local demo
  sed 's/\[\[ ! -e $dir\/CASE-aA \]\] || fold_case=true/fold_case=true/' "$OUT/local/pull.sh" >"$BATS_TEST_TMPDIR/pull.sh"
  mv "$B/final_ckpts/b/best_metrics.json" "$B/final_ckpts/b/Best.pth"
  sed -i 's/best_metrics.json/Best.pth/' "$B/records/b.sha256"
  "$PYTHON" - "$B/PULL_MANIFEST.json" <<'PY'
import hashlib, sys
raw = open(sys.argv[1]).read().replace("b/best_metrics.json", "b/Best.pth")
head = raw[: raw.index('  "self_sha256"')]
open(sys.argv[1], "w").write(head + '  "self_sha256": "%s"\n}\n' % hashlib.sha256(head.encode()).hexdigest())
PY
  run --separate-stderr bash "$BATS_TEST_TMPDIR/pull.sh" --data-dir "$BOX/data" --durable-dir "$BOX/durable"
  refused 77 'upper and lower case'
  [[ ! -e $LOCAL_DIR/local.r1/final_ckpts ]]
  here
}

@test "pull: no room is 73 before a byte; a disk that fills up leaves no short file (case 113)" {
  [[ $EUID -eq 0 ]] || skip 'needs root for a small tmpfs'
  CELL_BYTES=3000000
  bundle a b
  mkdir -p "$LOCAL_DIR"
  mount -t tmpfs -o size=4m tmpfs "$LOCAL_DIR" || skip 'no mount here'
  run --separate-stderr here
  local first=$status said=$stderr
  mount -o remount,size=40m "$LOCAL_DIR"
  run --separate-stderr here
  home_is_whole local
  local whole=$?
  umount "$LOCAL_DIR"
  [[ $first -eq 73 && $said == *'bytes are to come and'* && $status -eq 0 && $whole -eq 0 ]]
}

@test "pull: spent inodes here end in a refusal, and with room the rerun completes (case 113)" {
  [[ $EUID -eq 0 ]] || skip 'needs root for a small tmpfs'
  bundle a b c
  mkdir -p "$LOCAL_DIR"
  mount -t tmpfs -o size=40m,nr_inodes=16 tmpfs "$LOCAL_DIR" || skip 'no mount here'
  run --separate-stderr here
  local first=$status said=$stderr short
  short=$(cd "$LOCAL_DIR/local.r1" && find final_ckpts -type f ! -exec cmp -s {} "$B/{}" \; -print && find . -maxdepth 1 -name PULL_MANIFEST.json) || :
  mount -o remount,nr_inodes=400 "$LOCAL_DIR"
  run --separate-stderr here
  local whole=0
  home_is_whole local || whole=$?
  umount "$LOCAL_DIR"
  [[ $first -ne 0 && -z $short && $said == *refused* && $status -eq 0 && $whole -eq 0 ]] || fail_with "first $first: $said; short: $short"
}

@test "pull: overrides, the roster and what failed come home, overrides stand in RUN_FACTS.md (S92 X4)" {
  CELL_BYTES=10
  bundle a
  # A real checkpoint, so that the verification has nothing to say against it.
  rm -r "$B" && rm "$D/state/"*
  PYTHONPATH=$ROOT/tests/unit "$PYTHON" -c 'import struct, sys; from verify_bundles import state_dict, tensor, torch_zip
open(sys.argv[1], "wb").write(torch_zip(state_dict({"m": tensor("FloatStorage", "0", 2, (2,))}), {"0": struct.pack("<2f", 1, 2)}))' "$D/cells/a/best.pth"
  finished_cell "$D" a
  printf '2026-08-03T14:00:00Z\toverride\t-\t-\tDATA_DIR=/elsewhere\n' >"$D/events.tsv"
  printf '# time\n2026-08-03T14:00:00Z\tformal\tc\t1\t9\tstage queue ended with 1\tx\n' >"$D/NEGATIVE_RESULTS.tsv"
  DATA_DIR=$BOX/data DURABLE_DIR=$BOX/durable "$OUT/box/aggregate_to_fs.sh" >/dev/null
  printf 'a failed smoke of the laptop\n' >"$L/NEGATIVE_RESULTS.laptop.tsv"
  run --separate-stderr here
  [[ $status -eq 0 ]] || fail_with 'not pulled'
  home_is_whole local
  cmp "$L/NEGATIVE_RESULTS.tsv" "$D/NEGATIVE_RESULTS.tsv"
  cmp "$L/events.tsv" "$B/events.tsv" && cmp "$L/queue.tsv" "$D/queue.tsv"
  run python3 "$OUT/local/verify_local.py" "$L"
  [[ $status -eq 0 && $output != *NEGATIVE_RESULTS* ]] || fail_with 'not verified, or a stray'
  grep -q 'override: .*DATA.*elsewhere' "$L/RUN_FACTS.md"
  grep -q '^## Commands' "$L/RUN_FACTS.md"
}

@test "pull: --only one cell, and the manifest stays away; --print does and makes nothing (F2)" {
  bundle a b
  run --separate-stderr here --print
  [[ $status -eq 0 && $output == *'nothing was done'* && ! -e $LOCAL_DIR ]]
  run --separate-stderr here --only b
  L=$LOCAL_DIR/local.r1
  [[ $status -eq 0 && -s $L/final_ckpts/b/best.pth && ! -e $L/final_ckpts/a && ! -e $L/PULL_MANIFEST.json ]]
  run --separate-stderr here --only zz
  refused 69 zz
}

@test "pull: words that are no host are refused; a relative LOCAL_DIR is named as such (T29, case 112)" {
  local host
  compile_job generic-ssh demo
  for host in '' 'a b' 'x;id' '$(id)' 'u@-oProxyCommand=id' localhost "$(hostname)" "me@$(hostname)"; do
    HOST=$host run --separate-stderr "$OUT/local/pull.sh" --print
    refused 78 HOST
  done
  run --separate-stderr "$OUT/local/pull.sh" -oProxyCommand=id
  [[ $status -eq 64 ]]
  HOST=-oProxyCommand=id run --separate-stderr "$OUT/local/pull.sh"
  refused 78 HOST
  LOCAL_DIR=relative run --separate-stderr "$OUT/local/pull.sh" demo-pod
  refused 78 LOCAL_DIR 'not absolute'
}

@test "pull: a link in the place of a folder is not followed; files of others here stay" {
  bundle a
  L=$LOCAL_DIR/local.r1
  mkdir -p "$L/final_ckpts" "$BATS_TEST_TMPDIR/elsewhere"
  ln -s "$BATS_TEST_TMPDIR/elsewhere" "$L/final_ckpts/a"
  run --separate-stderr here
  refused 77 'link'
  [[ -z $(ls -A "$BATS_TEST_TMPDIR/elsewhere") ]]
  rm "$L/final_ckpts/a"
  mkdir "$L/final_ckpts/a" && echo mine >"$L/final_ckpts/a/notes.txt"
  here
  [[ $(<"$L/final_ckpts/a/notes.txt") == mine ]]
}

@test "pull: killed at random moments, the rerun completes and no short file has a final name (case 106)" {
  CELL_BYTES=6000000
  bundle a b
  sshd_start
  box_without rsync
  compile_job generic-ssh demo
  L=$LOCAL_DIR/generic-ssh.r1
  local n pid
  for n in 1 2 3 4 5 6; do
    setsid "$OUT/local/pull.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable" >/dev/null 2>&1 3>&- &
    pid=$!
    sleep "0.$((RANDOM % 6))"
    kill -9 -- "-$pid" 2>/dev/null || :
    wait "$pid" 2>/dev/null || :
    while IFS= read -r path; do
      cmp "$path" "$B/${path#"$L/"}"
    done < <(find "$L/final_ckpts" -type f 2>/dev/null)
  done
  run --separate-stderr over_ssh
  [[ $status -eq 0 ]]
  home_is_whole generic-ssh
}

@test "pull: a second pull beside a live one is 75; a dead one's lock is taken over" {
  bundle a
  L=$LOCAL_DIR/local.r1
  mkdir -p "$L/.partial"
  bash -c 'exec -a pull.sh sleep 300' >/dev/null 2>&1 3>&- &
  local pid=$!
  wait_for 30 grep -qa '^pull.sh' "/proc/$pid/cmdline"
  echo "$pid" >"$L/.partial/lock"
  run --separate-stderr here
  kill "$pid"
  refused 75 "process $pid"
  # The number is another program's by now.
  echo $$ >"$L/.partial/lock"
  run --separate-stderr here
  [[ $status -eq 0 ]] || fail_with 'a recycled number'
  echo 999999 >"$L/.partial/lock"
  run --separate-stderr here
  [[ $status -eq 0 && ! -e $L/.partial/lock ]]
  home_is_whole local
}

# A laptop's userland in the BSD way: stat knows -f only, there is no timeout, sync takes no names, mv knows no -T.
bsd_laptop() {
  local dir=$BATS_TEST_TMPDIR/bsd tool
  mkdir -p "$dir"
  for tool in bash awk basename cat chmod cmp cp cut date dd df dirname find git grep head hostname id ls mkdir mv openssl printf pwd rm rsync \
    sed sleep sort ssh-keygen tail tar tr uname wc xargs; do
    ln -sfn "$(PATH=$REAL_PATH type -P "$tool")" "$dir/$tool"
  done
  [[ -z ${SSHD_DIR-} ]] || ln -sfn "$SSHD_DIR/bin/ssh" "$dir/ssh"
  cat >"$dir/stat" <<SHIM
#!$(type -P bash)
[[ " \$* " != *' -c '* && " \$* " != *' -- '* ]] || { echo 'stat: illegal option' >&2; exit 1; }
args=()
for word in "\$@"; do
  case \$word in -f) word=-c ;; %*) word=\${word//%z/%s} word=\${word//%m/%Y} word=\${word//%c/%Z} ;; esac
  args+=("\$word")
done
exec $(type -P stat) "\${args[@]}"
SHIM
  printf '#!%s\n(($# == 0)) || exit 1\nexec %q\n' "$(type -P bash)" "$(type -P sync)" >"$dir/sync"
  chmod +x "$dir/stat" "$dir/sync"
  PATH=$dir
  hash -r
}

@test "pull: a laptop with BSD's tools and no timeout, over ssh and here" {
  bundle a b
  sshd_start
  compile_job local demo
  local own=$OUT
  compile_job generic-ssh demo
  run --separate-stderr bash -c "$(declare -f bsd_laptop); $(declare -p REAL_PATH SSHD_DIR BATS_TEST_TMPDIR); bsd_laptop
    BASH_COMPAT=32 bash '$OUT/local/pull.sh' demo-pod --data-dir '$BOX/data' --durable-dir '$BOX/durable' &&
    BASH_COMPAT=32 bash '$own/local/pull.sh' --data-dir '$BOX/data' --durable-dir '$BOX/durable' &&
    BASH_COMPAT=32 bash '$OUT/local/patrol.sh' demo-pod --data-dir '$BOX/data' --durable-dir '$BOX/durable'"
  # Patrol has no status.sh there to ask: not known, and said so.
  [[ $status -eq 69 && $output == *'unknown; done'* ]]
  home_is_whole generic-ssh
}
