# shellcheck disable=SC2016,SC2030,SC2031,SC2154 # words for shims; tests are subshells; bats sets status, output and stderr
load helper
load formal

setup() {
  formal_setup
  SHIM=$BATS_TEST_TMPDIR/bin
  mkdir "$SHIM"
}
teardown() { formal_teardown; }

preflight() { run --separate-stderr bash "$BOX/preflight.sh" "$@"; }
shim() { # <tool> <script>
  printf '#!%s\n%s\n' "$(type -P bash)" "$2" >"$SHIM/$1"
  chmod +x "$SHIM/$1"
  PATH=$SHIM:${PATH//"$SHIM:"/}
  hash -r
}
says() { # <verdict> <check> <words>
  grep -E "^  $1 +$2 " <<<"$output" | grep -qF -- "$3" || fail_with "no line: $1 $2 … $3"
}
need() { sed -i "s/^readonly $1=.*/readonly $1=$2/" "$BOX/preflight.sh"; }
cgroup() { # a faked machine under FAKE_ROOT with these "file=text" in its cgroup tree, and these lines of /proc/self/cgroup
  export FAKE_ROOT=$BATS_TEST_TMPDIR/root
  mkdir -p "$FAKE_ROOT/proc/self" "$FAKE_ROOT/sys/fs/cgroup"
  local word
  : >"$FAKE_ROOT/proc/self/cgroup"
  printf 'Cpus_allowed_list:\t0-7,9\n' >"$FAKE_ROOT/proc/self/status"
  printf 'MemTotal:  65000000 kB\nMemAvailable: 60000000 kB\n' >"$FAKE_ROOT/proc/meminfo"
  for word in "$@"; do
    if [[ $word == *=* ]]; then
      mkdir -p "$FAKE_ROOT/sys/fs/cgroup/$(dirname "${word%%=*}")"
      printf '%s\n' "${word#*=}" >"$FAKE_ROOT/sys/fs/cgroup/${word%%=*}"
    else
      printf '%s\n' "$word" >>"$FAKE_ROOT/proc/self/cgroup"
    fi
  done
}

# S28 S29 S30 S31: one table, one verdict, and the same as JSON; it changes nothing.
@test "preflight: a table with a verdict, and the same as JSON" {
  preflight
  [[ $status -eq 0 && $output == *'verdict: ok'* ]]
  for word in tools git python cpu ram gpus 'data tier' 'durable tier' detach data budget; do
    [[ $output == *"$word"* ]] || fail_with "no $word"
  done
  preflight --json
  [[ $status -eq 0 ]]
  "$PYTHON" -c 'import json,sys; d=json.loads(sys.argv[1]); assert d["schema"]=="preflight/1" and d["verdict"]=="ok" and d["cpus"]>=1 and len(d["checks"])>10, d' "$output"
  [[ -z $(ls -A "$DATA_DIR") && -z $(ls -A "$DURABLE_DIR") && -z $(ls -A "$SCRATCH") ]]
  preflight --frobnicate
  [[ $status -eq 64 ]]
}

# F29 F30 S30: version 2: the smallest of nproc, affinity, our cgroup and its parents.
@test "preflight: cgroup version 2 quota and memory limit bind, also a parent's" {
  shim nproc 'echo 64'
  cgroup '0::/job/step' 'job/step/cpu.max=max 100000' 'job/cpu.max=250000 100000' 'job/step/memory.max=max' 'job/memory.max=8000000000' 'job/memory.current=7000000000'
  need NEED_RAM_BYTES 2000000000
  preflight
  says ok cpu '2 usable (nproc 64, affinity 9, cgroup quota 2.50)'
  says warn ram 'something else is using it'
  says note workers '0 loader worker(s), 2 thread(s)'
  need NEED_RAM_BYTES 9000000000
  preflight
  [[ $status -eq 77 ]]
  says FAIL ram 'one cell needs'
}

# F29: version 1, where "no limit" is a number near 2^63 and the path is the host's.
@test "preflight: cgroup version 1, and the host's path inside a container" {
  shim nproc 'echo 64'
  cgroup '4:cpu,cpuacct:/docker/abc' '5:memory:/docker/abc' 'cpu,cpuacct/cpu.cfs_quota_us=400000' 'cpu,cpuacct/cpu.cfs_period_us=100000' \
    'memory/memory.limit_in_bytes=9223372036854771712'
  preflight
  says ok cpu '4 usable (nproc 64, affinity 9, cgroup quota 4.00)'
  says ok ram 'cgroup limit none'
  echo 3000000000 >"$FAKE_ROOT/sys/fs/cgroup/memory/memory.limit_in_bytes"
  echo -1 >"$FAKE_ROOT/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"
  preflight
  says ok cpu '9 usable (nproc 64, affinity 9, cgroup quota none)'
  says ok ram 'cgroup limit 3000 MB'
}

@test "preflight: real affinity is seen" {
  need_tool taskset
  run --separate-stderr taskset -c 0 bash "$BOX/preflight.sh"
  says ok cpu '1 usable'
}

# S31 S35 case 81: what is not a number is unknown, never idle; "No devices" comes with status 0; a sick driver hangs.
@test "preflight: GPUs by canned answers of the driver" {
  need NEED_GPUS 1
  preflight
  [[ $status -eq 77 ]]
  says FAIL gpus 'no nvidia-smi'
  shim nvidia-smi 'echo "0, NVIDIA L4, 550.54.15, 23034, 1"; echo "1, NVIDIA L4, 550.54.15, 23034, 20000"; echo "2, NVIDIA L4, 550.54.15, 23034, [N/A]"'
  preflight
  [[ $status -eq 0 ]]
  says ok 'gpu 0' 'NVIDIA L4, driver 550.54.15'
  says warn 'gpu 1' 'somebody is on it'
  says unknown 'gpu 2' '[N/A]'
  says ok gpus '3 here'
  need NEED_GPUS 4
  preflight
  says FAIL gpus 'a cell needs 4, here are 3'
  need NEED_GPUS 1
  shim nvidia-smi 'echo "No devices were found"'
  preflight
  [[ $status -eq 77 ]]
  says FAIL gpus 'No devices were found'
  shim nvidia-smi 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 0'
  preflight
  [[ $status -eq 69 ]]
  says FAIL gpus 'version mismatch'
  shim nvidia-smi 'echo "Field \"index\" is not a valid field to query." >&2; exit 2'
  preflight
  says FAIL gpus 'not a valid field'
  shim nvidia-smi 'exec sleep 60'
  sed -i 's/within 20 nvidia-smi/within 1 nvidia-smi/' "$BOX/preflight.sh"
  preflight
  says FAIL gpus 'did not answer'
  shim nvidia-smi 'trap "" TERM; while :; do sleep 0.2; done'
  preflight
  says FAIL gpus 'did not answer'
}

# Case 80: a query that hangs in the kernel cannot be killed, and nobody waits for it.
@test "preflight: a GPU query that no signal ends is not waited for" {
  need NEED_GPUS 1
  need_tool timeout
  : >"$BATS_TEST_TMPDIR/hangs"
  shim nvidia-smi 'exit 0'
  # For who waits, a timeout whose child does not end is one that does not end.
  shim timeout "case \"\$*\" in *nvidia-smi*) while [ -e '$BATS_TEST_TMPDIR/hangs' ]; do sleep 0.2; done ;; esac; exec $(PATH=$REAL_PATH type -P timeout) \"\$@\""
  sed -i 's/-t 30 -u/-t 1 -u/' "$BOX/preflight.sh"
  run --separate-stderr "$(PATH=$REAL_PATH type -P timeout)" 60 bash "$BOX/preflight.sh" 3>&-
  rm "$BATS_TEST_TMPDIR/hangs"
  says FAIL gpus 'did not answer in 20 s'
}

# S36 case 85: both columns; no inodes at all is n/a, not full; long device names wrap nothing that we read.
@test "preflight: bytes and inodes, of canned df answers" {
  shim df 'case " $* " in *" -i "*) echo "Filesystem Inodes IUsed IFree IUse% Mounted on"; echo "dev 0 0 0 - /data" ;; *) echo "Filesystem 1024-blocks Used Available Capacity Mounted on"; echo "/dev/mapper/a-very-long-name-of-a-volume-group-0123456789 100000000 1 99999999 1% /data" ;; esac'
  preflight
  [[ $status -eq 0 ]]
  says ok 'data tier' 'n/a inodes free'
  shim df 'case " $* " in *" -i "*) echo h; echo "dev 100 95 5 95% /data" ;; *) echo h; echo "dev 100000000 1 99999999 1% /data" ;; esac'
  preflight
  [[ $status -eq 73 ]]
  says FAIL 'data tier' 'one cell needs'
  shim df 'case " $* " in *" -i "*) echo h; echo "dev 100000 1 99999 1% /data" ;; *) echo h; echo "dev 100000000 99999990 1500 100% /data" ;; esac'
  preflight
  says warn 'data tier' 'not enough for all 2 cells'
}

# Case 84: a dead durable mount is unknown in its own line only, and no other mount is asked.
@test "preflight: a df that hangs on one tier leaves the other lines whole" {
  shim df 'printf "%s\n" "$*" >>"'"$BATS_TEST_TMPDIR"'/df.calls"; case "$*" in */durable) exec sleep 60 ;; *) exec '"$(type -P df)"' "$@" ;; esac'
  sed -i 's/within 20 df/within 1 df/' "$BOX/preflight.sh"
  preflight
  says unknown 'durable tier' 'df gave no answer'
  says ok 'data tier' 'inodes free'
  not grep -vE -- "$BATS_TEST_TMPDIR" "$BATS_TEST_TMPDIR/df.calls"
}

# Case 91: a folder of the tier's name is not the tier.
@test "preflight: a durable tier that is not attached is 74" {
  sed -i "s|^readonly DURABLE_TIER_PATH=.*|readonly DURABLE_TIER_PATH=$DURABLE_DIR|; s|^readonly DURABLE_PROOF=.*|readonly DURABLE_PROOF=mount|" "$BOX/preflight.sh"
  preflight
  [[ $status -eq 74 ]]
  says FAIL 'durable proof' 'not a mount point'
  sed -i "s|^readonly DURABLE_PROOF=.*|readonly DURABLE_PROOF=marker|" "$BOX/preflight.sh"
  preflight
  [[ $status -eq 74 ]]
  echo id >"$DURABLE_DIR/.gpu-runbook-tier"
  preflight
  [[ $status -eq 0 ]]
  DURABLE_DIR='' preflight
  [[ $status -eq 0 ]]
  says note 'durable tier' 'nothing here outlives the box'
}

# Case 53 case 55: what would end or not start a detached run.
@test "preflight: an unusable multiplexer and a logout that kills are warned of" {
  shim screen 'echo "Cannot make directory /run/screen" >&2; exit 1'
  DETACH=screen preflight
  [[ $status -eq 0 ]]
  says warn detach 'screen: Cannot make directory'
  says ok detach 'nohup: a trial session ran (falling back from screen)'
  # S58 F31: where the profile names no such fallback, nohup takes no run.
  need DETACH_FALLBACK none
  DETACH=screen preflight
  [[ $status -eq 69 ]]
  says FAIL detach 'nothing works here to start a run that outlives this shell'
  need DETACH_FALLBACK nohup
  cgroup '0::/'
  mkdir -p "$FAKE_ROOT/run/systemd/system"
  shim loginctl 'echo Linger=no'
  shim systemd-analyze 'echo "[Login]"; echo "#KillUserProcesses=no"; echo "KillUserProcesses=yes"'
  preflight
  says warn linger 'enable-linger'
  shim loginctl 'echo Linger=yes'
  preflight
  says ok linger 'lingering is on'
}

# S32: through the link that a cache often is.
@test "preflight --deep: the hog behind a link is found" {
  mkdir -p "$BATS_TEST_TMPDIR/other/hub" "$HOME/.cache"
  head -c 30000000 /dev/zero >"$BATS_TEST_TMPDIR/other/hub/big"
  ln -s "$BATS_TEST_TMPDIR/other" "$HOME/.cache/huggingface"
  preflight --deep
  [[ $output == *"0.03 GB  $HOME/.cache/huggingface/"* ]] || fail_with hog
}

# F18: counted here too; S32 F21: a missing interpreter is named.
@test "preflight: short data and a missing interpreter fail with their own words" {
  rm "$CODE_DIR/data/raw/1.csv"
  PY=/nowhere/python preflight
  [[ $status -eq 69 ]]
  says FAIL data '2 files'
  says FAIL python '/nowhere/python'
}

# README: a box has bash, coreutils and a few more, or busybox.
@test "preflight: runs on what a box must have, and on busybox" {
  box_path_only
  preflight
  [[ $status -eq 0 ]] || fail_with plain
  busybox_path
  preflight
  [[ $status -eq 0 ]] || fail_with busybox
}

# Issue 5 item 1: which storage another place would not see, from the profile; no line where there is none.
@test "preflight: tiers that are tied to one region are named" {
  sed -i '/^readonly -a REGION_LOCKED=($/,/^)$/c readonly -a REGION_LOCKED=()' "$BOX/preflight.sh"
  preflight
  [[ $status -eq 0 && $output != *' region '* ]] || fail_with none
  sed -i 's/^readonly -a REGION_LOCKED=()/readonly -a REGION_LOCKED=(volume "net disk")/' "$BOX/preflight.sh"
  preflight
  says note region 'only from where it lies: volume net disk'
}

# S29: it changes nothing, also where it is ended in the midst of a trial.
@test "preflight: ended in the midst of a trial it leaves no folder in /tmp" {
  local pid dir
  shim tmux 'echo "${SCREENDIR-}$*" >"'"$BATS_TEST_TMPDIR"'/asked"; exec sleep 20'
  sed -i 's/^readonly -a ENV_IMPORTS=()/readonly -a ENV_IMPORTS=(json)/' "$BOX/preflight.sh"
  for sig in TERM HUP; do
    rm -f "$BATS_TEST_TMPDIR/asked"
    # Under nohup the whole test run ignores a hangup, and a shell cannot take that back.
    DETACH=tmux PY=$BATS_TEST_TMPDIR/no env --default-signal=HUP bash "$BOX/preflight.sh" >/dev/null 2>&1 3>&- &
    pid=$!
    wait_for 30 test -s "$BATS_TEST_TMPDIR/asked"
    dir=/tmp/gr-$EUID-try$pid
    [[ -n $(ls -d "$dir"*) ]]
    kill "-$sig" "$pid"
    wait "$pid" || :
    [[ -z $(ls -d "$dir"* 2>/dev/null) ]] || fail "$sig: $(ls -d "$dir"*)"
  done
  # The same for the folder of the environment's trials.
  shim python '[[ $1 != --version ]] || exit 0; echo "$TMPDIR" >"'"$BATS_TEST_TMPDIR"'/trial"; exec sleep 20'
  PY=$SHIM/python bash "$BOX/preflight.sh" >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 test -s "$BATS_TEST_TMPDIR/trial"
  dir=$(<"$BATS_TEST_TMPDIR/trial")
  [[ $dir == /tmp/gpu-runbook.* ]] || fail "$dir"
  kill "$pid"
  wait "$pid" || :
  dir=${dir#/tmp/} && [[ ! -e /tmp/${dir%%/*} ]]
}
