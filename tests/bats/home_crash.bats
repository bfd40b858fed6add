#!/usr/bin/env bats
# The way home under harm: a link that drops in the midst, and kills at random moments of pull, push and aggregate. What was good
# stays, nothing false is said, the rerun completes (S62 S83-S87, T32, cases 93 101 106 111).
# GR_CRASH_MOMENTS=210 makes that many kills (every day: 18); GR_SEED repeats a choice.

# shellcheck disable=SC2154,SC2009,SC2016,SC2034 # the helper sets ROOT and OUT; pgrep knows no states; words for another shell
load helper
load sshd
load bundle_cells
# shellcheck disable=SC2154 # compile_job sets OUT

setup() {
  common_setup
  export RUN=r1 LOCAL_DIR=$BATS_TEST_TMPDIR/laptop RETRY_S=0
  BOX=$BATS_TEST_TMPDIR/box D=$BATS_TEST_TMPDIR/box/data/r1 B=$BATS_TEST_TMPDIR/box/durable/r1 NETNS=''
  L=$LOCAL_DIR/local.r1
  RANDOM=${GR_SEED:=$((RANDOM + 1))}
  MOMENTS=$(((${GR_CRASH_MOMENTS:-18} + 2) / 3))
}
teardown() {
  sshd_stop
  [[ -z $NETNS ]] || ip netns del "$NETNS" || :
}

bundle() { # <bytes> <cell...>
  local bytes=$1 cell
  shift
  run_record_here "$D"
  mkdir -p "$BOX/durable"
  roster "$D" "$@"
  for cell in "$@"; do finished_cell "$D" "$cell" "$bytes"; done
  compile_job local demo
  aggregate >/dev/null 2>&1
}
aggregate() { DATA_DIR=$BOX/data DURABLE_DIR=$BOX/durable "${RUNNER[@]}" "$OUT/box/aggregate_to_fs.sh"; }
pull() { "${RUNNER[@]}" "$OUT/local/pull.sh" --data-dir "$BOX/data" --durable-dir "$BOX/durable"; }
push() { "${RUNNER[@]}" "$OUT/local/push.sh" --data-dir "$BOX/data" --durable-dir "$BOX/durable"; }
RUNNER=(env)

home_is_whole() { # <L>
  cmp "$1/PULL_MANIFEST.json" "$B/PULL_MANIFEST.json" && (cd "$1" && sha256sum -c --strict --quiet SHA256SUMS) && diff -r "$1/final_ckpts" "$B/final_ckpts"
}
nothing_short() { # <L>
  local path
  while IFS= read -r path; do
    cmp "$path" "$B/${path#"$1/"}" || return
  done < <(find "$1/final_ckpts" -type f 2>/dev/null)
  [[ ! -e $1/PULL_MANIFEST.json ]] || (cd "$1" && sha256sum -c --strict --quiet SHA256SUMS)
}

# Kill COMMAND once: its shell before a command of it by chance, or at a moment by chance all that it started.
kill_within() { # <function> <commands in all> <milliseconds in all>
  local pid
  if ((RANDOM % 2)); then
    MOMENT="command $((RANDOM % $2 + 1)) of $2"
    local at=${MOMENT#command }
    CRASH_AT=${at%% *} BASH_ENV=$ROOT/tests/faults/crash_at.bash "$1" >/dev/null 2>&1 || :
  else
    local ms=$((RANDOM % ($3 + 1)))
    MOMENT="$ms ms of $3"
    # A variable of an array does not reach another shell: the function runs here, in a group of its own.
    set -m
    "$1" >/dev/null 2>&1 3>&- &
    pid=$!
    set +m
    sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
    kill -9 -- "-$pid" 2>/dev/null || :
    wait "$pid" 2>/dev/null || :
    wait_for 30 group_is_dead "$pid"
  fi
}

group_is_dead() { ! ps -eo pgid=,stat= | grep -qE "^ *$1 [^Z]"; }

measure() { # <function>    sets COMMANDS and MS of one whole run
  local from
  from=$(date +%s%3N)
  "$1" >/dev/null 2>&1
  MS=$(($(date +%s%3N) - from))
}
count_commands() { # <function>    the scripts have traps of their own for their end, so the count is written all the time
  printf 'unset BASH_ENV\ncount=0\nset -T\ntrap "echo \\$((++count)) >|%q" DEBUG\n' "$BATS_TEST_TMPDIR/total" >"$BATS_TEST_TMPDIR/count.bash"
  BASH_ENV=$BATS_TEST_TMPDIR/count.bash "$1" >/dev/null 2>&1 || :
  COMMANDS=$(<"$BATS_TEST_TMPDIR/total")
}

@test "pull: killed at random moments, what is here stays good and the rerun completes (S87 case 106)" {
  local n
  bundle 300000 a
  pull >/dev/null 2>&1
  cp -R "$L" "$BATS_TEST_TMPDIR/old"
  roster "$D" a b c
  finished_cell "$D" b 9000000
  finished_cell "$D" c 1000
  aggregate >/dev/null 2>&1
  rm -r "$L" && measure pull
  rm -r "$L" && count_commands pull
  ((COMMANDS > 100)) || fail_with "COMMANDS=$COMMANDS"
  for ((n = 0; n < MOMENTS; n++)); do
    rm -rf "${L:?}"
    # From an older bundle that is here, or from nothing.
    ((n % 2)) || cp -R "$BATS_TEST_TMPDIR/old" "$L"
    kill_within pull "$COMMANDS" "$MS"
    nothing_short "$L" || fail_with "GR_SEED=$GR_SEED, killed at $MOMENT"
    ((n % 2)) || cmp "$L/final_ckpts/a/best.pth" "$B/final_ckpts/a/best.pth"
    run --separate-stderr pull
    [[ $status -eq 0 ]] || fail_with "GR_SEED=$GR_SEED, the rerun after $MOMENT"
    home_is_whole "$L" || fail_with "GR_SEED=$GR_SEED, after $MOMENT"
  done
  echo "# $n kills, GR_SEED=$GR_SEED" >&3
}

@test "push: killed at random moments, no half folder is current and the rerun completes (S63)" {
  local n folder
  mkdir "$BATS_TEST_TMPDIR/files"
  head -c 200000 /dev/urandom >"$BATS_TEST_TMPDIR/files/train.py"
  make_repository "$BATS_TEST_TMPDIR/files"
  compile_job local demo
  push >/dev/null 2>&1
  cp -R "$BOX" "$BATS_TEST_TMPDIR/old"
  echo second >>"$CODE_DIR/train.py" && git -C "$CODE_DIR" commit -q -am second
  rm -r "$BOX" && measure push
  rm -r "$BOX" && count_commands push
  for ((n = 0; n < MOMENTS; n++)); do
    rm -rf "${BOX:?}"
    ((n % 2)) || cp -R "$BATS_TEST_TMPDIR/old" "$BOX"
    kill_within push "$COMMANDS" "$MS"
    if [[ -e $D/box/current ]]; then
      folder=$(readlink "$D/box/current")
      [[ $(cd "$D/box/current" && LC_ALL=C sha256sum -- * | sha256sum) == "$folder"* ]] || fail_with "GR_SEED=$GR_SEED, half a folder after $MOMENT"
    fi
    run --separate-stderr push
    [[ $status -eq 0 ]] || fail_with "GR_SEED=$GR_SEED, the rerun after $MOMENT"
    diff -r "$OUT/box" "$D/box/current/"
    [[ $(git -C "$D/code" rev-parse HEAD) == "$(git -C "$CODE_DIR" rev-parse HEAD)" && -z $(git -C "$D/code" status --porcelain) ]] || fail_with "GR_SEED=$GR_SEED, code after $MOMENT"
  done
  echo "# $n kills, GR_SEED=$GR_SEED" >&3
}

@test "aggregate: killed at random moments, the bundle holds what it says and the rerun completes (S83-S85 cases 93 101)" {
  local n record cell
  bundle 50000 a
  roster "$D" a b
  finished_cell "$D" b 4000000
  cp -R "$BOX" "$BATS_TEST_TMPDIR/old"
  measure aggregate
  rm -r "$BOX" && cp -R "$BATS_TEST_TMPDIR/old" "$BOX" && count_commands aggregate
  for ((n = 0; n < MOMENTS; n++)); do
    rm -rf "${BOX:?}" && cp -R "$BATS_TEST_TMPDIR/old" "$BOX"
    kill_within aggregate "$COMMANDS" "$MS"
    for record in "$B"/records/*.json; do
      cell=${record##*/} cell=${cell%.json}
      (cd "$B/final_ckpts/$cell" && sha256sum -c --strict --quiet "$B/records/$cell.sha256") || fail_with "GR_SEED=$GR_SEED, $cell after $MOMENT"
    done
    (cd "$B" && sha256sum -c --strict --quiet SHA256SUMS) || fail_with "GR_SEED=$GR_SEED, killed at $MOMENT"
    run --separate-stderr aggregate
    [[ $status -eq 0 && $output == *'2 of 2 cells done'* ]] || fail_with "GR_SEED=$GR_SEED, the rerun after $MOMENT"
    (cd "$B" && sha256sum -c --strict --quiet SHA256SUMS)
    [[ $(grep -c '"path"' "$B/PULL_MANIFEST.json") == 4 && -z $(find "$B/.syncing" -mindepth 1) ]] || fail_with "GR_SEED=$GR_SEED, leftovers after $MOMENT"
  done
  echo "# $n kills, GR_SEED=$GR_SEED" >&3
}

@test "aggregate: what a sync left whose corpse nobody has buried goes too (case 101)" {
  bundle 1000 a
  # A parent that never waits for its child, which ends once its parent is no shell any more: a shell would bury it.
  bash -c '{ until [[ $(<"/proc/$$/comm") == sleep ]]; do sleep 0.05; done; } & echo $! >"$1" && exec sleep 300' x "$BATS_TEST_TMPDIR/child" >/dev/null 2>&1 3>&- &
  local parent=$! child
  wait_for 30 test -s "$BATS_TEST_TMPDIR/child"
  child=$(<"$BATS_TEST_TMPDIR/child")
  wait_for 30 grep -q ') Z ' "/proc/$child/stat"
  mkdir -p "$B/.syncing/a.$child"
  finished_cell "$D" a
  rm "$B/records/a.json"
  run --separate-stderr aggregate
  kill "$parent"
  [[ $status -eq 0 && ! -e $B/.syncing/a.$child ]] || fail_with 'left there'
}

@test "pull: the box's interface goes down in the midst; it ends with a clear word, and the rerun goes on from there (T32 case 111)" {
  need_tool ip
  [[ $EUID -eq 0 ]] || skip 'needs root for a network namespace'
  local pid net=$((RANDOM % 250)) rc=0 part
  bundle 9000000 a
  NETNS=gr-$$ SSHD_ADDRESS=10.213.$net.2 SSHD_VIA=(ip netns exec "gr-$$")
  ip netns add "$NETNS" || { NETNS='' && skip 'no network namespaces here'; }
  ip link add "gr$$" type veth peer name inside netns "$NETNS"
  ip addr add "10.213.$net.1/30" dev "gr$$" && ip link set "gr$$" up
  ip -n "$NETNS" addr add "10.213.$net.2/30" dev inside && ip -n "$NETNS" link set inside up
  sshd_start
  box_without rsync
  # The box sends a part and then waits; once the latch is away, everything. What is asked for is noted.
  : >"$BATS_TEST_TMPDIR/latch"
  cat >"$BOX_BIN/tail" <<SHIM
#!$(type -P bash)
echo "\$*" >>$BATS_TEST_TMPDIR/asked
if [[ -e $BATS_TEST_TMPDIR/latch ]]; then
  $(type -P tail) "\$@" | head -c 3000000
  for i in {1..600}; do [[ -e $BATS_TEST_TMPDIR/latch ]] || exit 1; sleep 0.1; done
fi
exec $(type -P tail) "\$@"
SHIM
  chmod +x "$BOX_BIN/tail"
  compile_job generic-ssh demo
  sed 's/^readonly KEEPALIVE_S=.*/readonly KEEPALIVE_S=1/; s/^readonly KEEPALIVE_MAX=.*/readonly KEEPALIVE_MAX=3/' "$OUT/local/pull.sh" >"$BATS_TEST_TMPDIR/pull.sh"
  chmod +x "$BATS_TEST_TMPDIR/pull.sh"
  L=$LOCAL_DIR/generic-ssh.r1 part=$LOCAL_DIR/generic-ssh.r1/.partial/files/final_ckpts/a/best.pth
  "$BATS_TEST_TMPDIR/pull.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable" >"$BATS_TEST_TMPDIR/said" 2>&1 3>&- &
  pid=$!
  arrived() { [[ $(stat -c %s "$part" 2>/dev/null) -ge 2900000 ]]; }
  wait_for 30 arrived
  ip -n "$NETNS" link set inside down
  wait "$pid" || rc=$?
  [[ $rc -eq 69 ]] || { cat "$BATS_TEST_TMPDIR/said" && fail_with "exit $rc"; }
  grep -q 'pull.sh: refused: .*run this again' "$BATS_TEST_TMPDIR/said"
  nothing_short "$L"
  [[ ! -e $L/PULL_MANIFEST.json ]]
  arrived
  rm "$BATS_TEST_TMPDIR/latch" "$BATS_TEST_TMPDIR/asked"
  ip -n "$NETNS" link set inside up
  run --separate-stderr "$BATS_TEST_TMPDIR/pull.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable"
  [[ $status -eq 0 ]] || fail_with 'the rerun'
  home_is_whole "$L"
  # It went on where the link had broken.
  grep -qE -- '-c \+(29|30)[0-9]{5} ' "$BATS_TEST_TMPDIR/asked"
}
