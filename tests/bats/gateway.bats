#!/usr/bin/env bats
# Logins that cannot copy files: no scp, sftp and rsync behind them (push and pull send streams), or no command at all, only a
# terminal (each script says so and what to do) (S38, X7, cases 89 107). A real sshd with a gateway's manners.

# shellcheck disable=SC2016,SC2154 # scripts as text; compile_job sets OUT, bats sets the rest
load helper
load sshd
load bundle_cells
load pull_state

gateway() { # <text of a script> : stands before the box's login; $1 is the command that was asked for
  mv "$SSHD_DIR/login" "$SSHD_DIR/login.box"
  {
    printf '#!%s\nlogin=%q\n' "$(type -P bash)" "$SSHD_DIR/login.box"
    printf 'set -- "${SSH_ORIGINAL_COMMAND-}"\n%s\n' "$1"
  } >"$SSHD_DIR/login"
  chmod +x "$SSHD_DIR/login"
}
no_copies() {
  gateway 'printf "%s\n" "$1" >>"${login%/*}/asked"
case $1 in
  *rsync\ --server* | scp\ * | *sftp*) echo "subsystem request failed on channel 0" >&2; exit '"${1-1}"' ;;
esac
exec "$login"'
}
code_with_data() {
  mkdir -p "$BATS_TEST_TMPDIR/files"
  echo 'print(1)' >"$BATS_TEST_TMPDIR/files/train.py"
  printf 'data/\n' >"$BATS_TEST_TMPDIR/files/.gitignore"
  make_repository "$BATS_TEST_TMPDIR/files"
  mkdir -p "$CODE_DIR/data/raw"
  head -c 5000000 /dev/urandom >"$CODE_DIR/data/raw/big.bin"
  echo 1 >"$CODE_DIR/data/raw/a b"
  sed 's#^retry:.*#data: [{path: data/raw, files: 2}]#' "$ROOT/jobs/demo.yaml" >"$BATS_TEST_TMPDIR/with-data.yaml"
}
push() { # <profile> [words…]
  compile_job "$1" "$BATS_TEST_TMPDIR/with-data.yaml"
  "$OUT/local/push.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable" "${@:2}"
}
# Each script that reaches the box, in one list: its exit code and its words.
each_says() { # <code> <scripts> <words…>
  local script word
  for script in $2; do
    case $script in
      push) LOOK_S=2 run --separate-stderr push generic-ssh ;;
      pull) LOOK_S=2 run --separate-stderr over_ssh ;;
      patrol)
        compile_job generic-ssh demo
        run --separate-stderr "$OUT/local/patrol.sh" demo-pod --data-dir "$BOX/data"
        ;;
    esac
    [[ $script == patrol && $status -ne 0 || $status -eq $1 ]] || fail_with "$script ended with $status, not $1"
    for word in "${@:3}"; do [[ $output$stderr == *"$word"* ]] || fail_with "$script does not say: $word"; done
    [[ $output$stderr != *.bashrc* ]] || fail_with "$script blames a start-up file"
  done
}

# A process that vanishes meanwhile makes grep fail, but not where -q has found one.
no_client() { ! grep -qsF "$SSHD_DIR/client" /proc/[0-9]*/cmdline; }
left_alone() { # no connection of ours is left
  wait_for 30 no_client
}

@test "gateway: without scp, sftp and rsync a push brings scripts, code and data, and a pull brings all home (S38)" {
  need_tool rsync
  bundle a b
  code_with_data
  rm -rf "${BOX:?}/data"
  sshd_start
  no_copies
  # One that admits it cannot copy asks for no rsync at all.
  mkdir -p "$BATS_TEST_TMPDIR/profiles"
  sed 's/^    flavour: .*/    flavour: proxied/; s/^    copy: true/    copy: false/' "$ROOT/profiles/generic-ssh.yaml" >"$BATS_TEST_TMPDIR/profiles/generic-ssh.yaml"
  run --separate-stderr push "$BATS_TEST_TMPDIR/profiles/generic-ssh.yaml" --data
  [[ $status -eq 0 ]] || fail_with push
  [[ $stderr == *'streams through the shell'* ]]
  cmp "$CODE_DIR/data/raw/big.bin" "$BOX/data/r1/code/data/raw/big.bin"
  cmp "$CODE_DIR/data/raw/a b" "$BOX/data/r1/code/data/raw/a b"
  [[ $(git -C "$BOX/data/r1/code" rev-parse HEAD) == "$(git -C "$CODE_DIR" rev-parse HEAD)" ]]
  not grep -q rsync "$SSHD_DIR/asked"
  rm -rf "${LOCAL_DIR:?}"
  compile_job "$BATS_TEST_TMPDIR/profiles/generic-ssh.yaml" demo
  run --separate-stderr "$OUT/local/pull.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable"
  [[ $status -eq 0 ]] || fail_with pull
  home_is_whole generic-ssh
  not grep -q rsync "$SSHD_DIR/asked"
}

@test "gateway: where the profile promises rsync and none gets through, both go on without it, whatever its status" {
  need_tool rsync
  bundle a b
  code_with_data
  rm -rf "${BOX:?}/data"
  sshd_start
  local status_there
  for status_there in 1 255; do
    [[ ! -e $SSHD_DIR/login.box ]] || mv "$SSHD_DIR/login.box" "$SSHD_DIR/login"
    no_copies "$status_there"
    rm -rf "${LOCAL_DIR:?}" "$BOX/data"
    run --separate-stderr push generic-ssh --data
    [[ $status -eq 0 && $stderr == *'going on without it'* ]] || fail_with "push, $status_there"
    cmp "$CODE_DIR/data/raw/big.bin" "$BOX/data/r1/code/data/raw/big.bin"
    rm -rf "${LOCAL_DIR:?}"
    run --separate-stderr over_ssh
    [[ $status -eq 0 && $stderr == *'going on without it'* ]] || fail_with "pull, $status_there"
    home_is_whole generic-ssh
  done
  grep -q 'rsync --server' "$SSHD_DIR/asked"
}

# The gateway that wants a terminal says so, on either channel, and ends: the reason is that, and no start-up file of the box.
@test "gateway: a login that wants a terminal is named, with the way round it (S38)" {
  bundle a
  code_with_data
  sshd_start
  local channel
  for channel in 1 2; do
    [[ ! -e $SSHD_DIR/login.box ]] || mv "$SSHD_DIR/login.box" "$SSHD_DIR/login"
    gateway 'echo "Error: Your SSH client doesn'\''t support PTY" >&'"$channel"'; exit 1'
    each_says 77 'push pull patrol' 'is a terminal for people' "Take the platform's direct address" U24
  done
  # Nothing of it is on the box or at home.
  [[ ! -e $BOX/data/r1/box && ! -e $LOCAL_DIR/generic-ssh.r1/PULL_MANIFEST.json ]]
}

# One that gives everybody a shell in a terminal: what is typed comes back, bytes are changed.
@test "gateway: a login that puts a terminal in between is refused before a byte goes through it (S38)" {
  need_tool script
  bundle a
  code_with_data
  rm -rf "${BOX:?}/data"
  sshd_start
  gateway 'exec script -qec "$login" /dev/null'
  each_says 77 'push pull' 'is a terminal for people' U24
  left_alone
  [[ ! -e $BOX/data/r1/box && ! -e $LOCAL_DIR/generic-ssh.r1/PULL_MANIFEST.json ]]
}

@test "gateway: one that takes the connection and stays silent is left after a time, with what it may be (case 89)" {
  bundle a
  code_with_data
  sshd_start
  gateway 'exec sleep 60'
  LOOK_S=1 run --separate-stderr push generic-ssh
  [[ $status -eq 69 && $stderr == *'a gateway that runs no command'* ]] || fail_with push
  LOOK_S=1 run --separate-stderr over_ssh
  [[ $status -eq 69 && $stderr == *'a gateway that runs no command'* ]] || fail_with pull
  left_alone
}

# The gotcha's steps are commands that somebody will type at night: typed here as they stand, with the words in capitals filled in.
@test "gateway: the way by hand, as the gotcha U24 has it, brings code there and a bundle home that verifies (S38 X7)" {
  code_with_data
  compile_job local demo
  mkdir -p "$BATS_TEST_TMPDIR/home/out" && cp -R "$OUT" "$BATS_TEST_TMPDIR/home/out/local"
  local step steps=()
  while IFS= read -r step; do
    step=${step//out\/PROFILE/out/local}
    step=${step//PROFILE/local}
    step=${step//RUN/r1}
    step=${step//BRANCH/main}
    step=${step//DATA_DIR/$BOX/data}
    step=${step//DURABLE_DIR/$BOX/durable}
    steps+=("$step")
  done < <(sed -n '/^### U24/,/^### U25/p' "$ROOT/docs/gotchas.md" | sed -n '/^  1\./,/^- →/p' | tr '\n' ' ' | grep -oE '`(tar|git|mkdir|ln|python3) [^`]*`' | tr -d '`')
  [[ ${#steps[@]} -eq 8 ]] || fail_with "${#steps[@]} steps: ${steps[*]}"
  cd "$BATS_TEST_TMPDIR/home"
  bash -ec "${steps[0]}; cd $CODE_DIR; ${steps[1]}"
  mkdir -p "$BOX.sent" && mv "$CODE_DIR/code.bundle" box.tar "$BOX.sent/"
  cd "$BOX.sent"
  bash -ec "${steps[2]}; ${steps[3]}; ${steps[4]}" 2>/dev/null
  [[ -x $BOX/data/r1/box/current/run_one.sh && -f $BOX/data/r1/code/train.py ]]
  bundle a b
  bash -ec "${steps[5]}"
  mkdir -p "$HOME" && mv r1.tar "$BATS_TEST_TMPDIR/home/out/local/"
  cd "$BATS_TEST_TMPDIR/home/out/local"
  bash -ec "${steps[6]}"
  run --separate-stderr bash -c "PATH=$ROOT/.venv/bin:\$PATH; ${steps[7]}"
  # The bundle's checkpoints are no real ones, which it says; all that it lists is here, as it was there.
  [[ $output == *'expected 4, checked 4'* ]] || fail_with verify
  (cd "$HOME/gpu-runs/local.r1" && sha256sum -c --strict --quiet SHA256SUMS)
}
