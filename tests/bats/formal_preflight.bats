# shellcheck disable=SC2016,SC2030,SC2031,SC2154 # words for shims; tests are subshells; bats sets status, output and stderr
# formal_run asks preflight.sh for all that it looks at (F22); preflight.bats has what is looked at.
load helper
load formal

setup() { formal_setup; }
teardown() {
  # Also where a test broke off: nobody answers for it any more.
  umount -l "$BATS_TEST_TMPDIR/dead" 2>/dev/null || :
  formal_teardown
}

shim() { # <tool> <script>
  mkdir -p "$BATS_TEST_TMPDIR/bin"
  printf '#!%s\n%s\n' "$(type -P bash)" "$2" >"$BATS_TEST_TMPDIR/bin/$1"
  chmod +x "$BATS_TEST_TMPDIR/bin/$1"
  PATH=$BATS_TEST_TMPDIR/bin:${PATH//"$BATS_TEST_TMPDIR/bin:"/}
  hash -r
}
set_const() { sed -i "s|^readonly $1=.*|readonly $1=$2|" "$BOX"/*.sh; }

# F22 F27 X3: machine and GPUs, before code and smoke are asked; another maker's device and a driver that is silent are told apart.
@test "formal gate: fewer GPUs or less memory than one cell needs shuts it, with command and remedy" {
  set_const NEED_GPUS 2
  formal plan
  refused 77 'preflight, gpus: nvidia-smi' 'no nvidia-smi on PATH' 'needs.gpus'
  shim nvidia-smi 'echo "0, NVIDIA L4, 550.54.15, 23034, 1"'
  formal plan
  refused 77 'a cell needs 2, here are 1'
  shim nvidia-smi 'echo "Failed to initialize NVML"; exit 9'
  formal plan
  refused 69 'Failed to initialize NVML' 'restart the box'
  set_const NEED_GPUS 0
  set_const NEED_RAM_BYTES 90000000000000
  formal start
  refused 77 'preflight, ram: cat /proc/meminfo' 'one cell needs' 'needs.ram_gb'
  [[ ! -e $D/formal.json && ! -e $D/run.json ]]
}

# F22 X3: the rest of the table, each with its own code.
@test "formal gate: start looks at tools, interpreter, room, tiers and sessions as preflight does" {
  smoked
  PY=/nowhere/python formal start
  refused 69 '/nowhere/python' 'set PY'
  shim df 'case " $* " in *" -i "*) echo h; echo "dev 100 95 5 95% /data" ;; *) echo h; echo "dev 100000000 1 99999999 1% /data" ;; esac'
  formal start
  refused 73 "preflight, data tier: df $DATA_DIR" '5 inodes free' 'free room there'
  rm "$BATS_TEST_TMPDIR/bin/df"
  shim setsid 'exit 1'
  DETACH='nohup' formal start
  refused 69 'preflight, detach' 'outlives this shell' 'install tmux or screen'
  rm "$BATS_TEST_TMPDIR/bin/setsid"
  set_const DURABLE_TIER_PATH "$DURABLE_DIR"
  set_const DURABLE_PROOF marker
  formal plan
  refused 74 'preflight, durable proof: df' '.gpu-runbook-tier is missing' 'attach the storage'
  [[ ! -e $D/formal.json ]]
}

# A preflight that cannot be made has failed; what only warns opens the gate and is passed on.
@test "formal gate: no table is no preflight, and a warning is passed on" {
  smoked
  shim nvidia-smi 'echo "0, NVIDIA L4, 550.54.15, 23034, 20000"'
  formal plan
  [[ $status -eq 0 && $stderr == *'preflight: warn: gpu 0: '*'somebody is on it'* && $output == *'gpu       none needed; here 1'* ]] || fail_with warned
  printf 'exit 0\n' >"$BOX/preflight.sh"
  formal start
  refused 77 'preflight.sh --json' 'without its table'
  printf 'printf "{\\n  \\"schema\\": \\"preflight/1\\"\\n}\\n"; exit 78\n' >"$BOX/preflight.sh"
  formal start
  refused 78 'preflight.sh --json' 'ended with 78'
  rm "$BOX/preflight.sh"
  formal start
  refused 69 preflight.sh 'box/ again'
}

# Issue 5: the gate does not cry wolf: a finished run has filled the disk, and its second start needs no room.
@test "formal gate: a second run right after the first passes on a disk that the first has filled" {
  smoked
  formal_ok
  shim df 'case " $* " in *" -i "*) echo h; echo "dev 100000 99997 3 100% /data" ;; *) echo h; echo "dev 100000000 99999990 10 100% /data" ;; esac'
  formal_ok
  rm "$B/records/s2.json" # one cell is to be done again: now it does
  formal start
  refused 73 'one cell needs'
}

# Case 53: what preflight found to work is what start uses, tried once.
@test "formal gate: the session is the one that preflight has tried" {
  need_tool tmux
  smoked
  shim screen 'echo "Directory must have mode 777" >&2; exit 1'
  set_const DETACH_FALLBACK tmux
  smoked
  DETACH=screen formal start
  [[ $status -eq 0 && $stderr == *'preflight: warn: detach: screen: Directory must have mode 777'* && $stderr == *'falling back from screen to tmux'* ]] || fail_with fallback
  wait_for 30 ended
  in_state success
}

# F22: where everything is broken at once, the gates are met one behind the other, and the first that is shut ends it.
@test "formal gate: preflight, code, syntax, smoke, room, dry run, in this order" {
  set_const NEED_GPUS 1
  set_const DATA_CAP_BYTES 1500
  echo x >"$CODE_DIR/new.py"
  printf 'main() {\n' >>"$BOX/run_one.sh"
  mv "$BOX/run_queue.sh" "$BATS_TEST_TMPDIR/run_queue.sh"
  printf 'echo "dry run" >&2\nexit 78\n' >"$BOX/run_queue.sh"
  formal start
  refused 77 'preflight, gpus'
  set_const NEED_GPUS 0
  formal start
  refused 77 'in no commit'
  rm "$CODE_DIR/new.py"
  formal start
  refused 77 'bash -n' run_one.sh
  cp "$OUT/box/run_one.sh" "$BOX/"
  formal start
  refused 77 smoke 'there is no'
  smoked
  formal start
  refused 73 'cap is 1500 bytes'
  set_const DATA_CAP_BYTES "''"
  smoked
  formal start
  refused 77 'run_queue.sh --dry-run' 'dry run'
  [[ ! -e $D/formal.json ]]
  mv "$BATS_TEST_TMPDIR/run_queue.sh" "$BOX/"
  smoked
  formal_ok
}

# Case 84: a mount that never answers, a real one where FUSE may be mounted, else a test(1) that does not: whoever looks says which,
# and hangs nowhere.
@test "formal_run, preflight, smoke: a dead mount under a folder of the run is named, and holds nobody up" {
  local name script bad='' dead=$BATS_TEST_TMPDIR/dead fd=9 fake=$BATS_TEST_TMPDIR/fake real
  need_tool timeout
  mkdir "$dead"
  # Nobody will ever answer for it.
  if ! { exec {fd}<>/dev/fuse && mount -i -t fuse -o "fd=$fd,rootmode=040000,user_id=0,group_id=0" dead "$dead"; } 2>/dev/null; then
    mkdir "$fake"
    real=$(type -P test)
    printf '#!/bin/sh\ncase $* in *"%s"*) exec sleep 600 ;; esac\nexec "%s" "$@"\n' "$dead" "$real" >"$fake/test"
    chmod +x "$fake/test"
    PATH=$fake:$PATH
  fi
  sed -i 's/within 20 test/within 1 test/; s/^readonly GIT_ASK_S=60/readonly GIT_ASK_S=1/' "$BOX"/*.sh
  for name in CODE_DIR DATA_DIR DURABLE_DIR SCRATCH; do
    for script in preflight.sh smoke.sh 'formal_run.sh plan' 'formal_run.sh status'; do
      # shellcheck disable=SC2086 # a script and its word
      run --separate-stderr timeout -k 1 60 env "$name=$dead/x" bash "$BOX"/$script {fd}>&-
      refused 69 "$name=$dead/x" 'did not answer' '/proc/mounts' || { bad="$name $script" && break 2; }
    done
  done
  # At the end of a run as well: there the code is looked at by itself.
  [[ -n $bad ]] || run --separate-stderr timeout -k 1 60 bash -c 'source "$1" && CODE_DIR=$2 D=/ B=/ S=/ && code_unchanged' x "$BOX/formal_run.sh" "$dead/x" {fd}>&-
  # Answered by nobody and held by nobody it ends.
  exec {fd}>&-
  [[ -e $fake ]] || umount -l "$dead"
  [[ -z $bad ]] || fail_with "$bad"
  refused 69 "cd $dead/x" 'did not answer in 1 s'
}
