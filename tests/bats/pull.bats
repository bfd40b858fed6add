#!/usr/bin/env bats
# pull.sh: the bundle home, by rsync and by its stand-in, over a real sshd and on one's own machine
# (S61 S62 S87, cases 89 96 103 106-108 110-113, T29 T32).

load helper
load sshd
load bundle_cells
# shellcheck disable=SC2154 # compile_job sets OUT
load pull_state

@test "pull: the whole bundle over ssh by rsync; the id is learnt; twice fetches nothing (S87)" {
  need_tool rsync
  bundle a b
  sshd_start
  run --separate-stderr over_ssh
  [[ $status -eq 0 && $output == *'pulled, 2 of 2 cells'* ]]
  home_is_whole generic-ssh
  grep -q "\"run_id\": \"$RUN_ID\"" "$L/box.json"
  grep -q '"host_key": "SHA256:' "$L/box.json"
  # A dead link is noticed within minutes, not hours (T32), and rsync was really the way.
  local every times
  every=$(grep -o 'ServerAliveInterval=[0-9]*' "$SSH_CALLS" | head -n 1 | tr -dc 0-9)
  times=$(grep -o 'ServerAliveCountMax=[0-9]*' "$SSH_CALLS" | head -n 1 | tr -dc 0-9)
  ((every > 0 && times > 0 && every * times <= 180))
  grep -q rsync "$SSH_CALLS"
  run --separate-stderr over_ssh
  [[ $status -eq 0 && $stderr == *' 0 files, 0 bytes to come'* ]]
}

@test "pull: on one's own machine by the same way, without ssh" {
  bundle a b
  run --separate-stderr here
  [[ $status -eq 0 ]]
  home_is_whole local
}

@test "pull: a box without rsync is no obstacle (S62, T32)" {
  CELL_BYTES=5000000
  bundle a b
  sshd_start
  box_without rsync
  run --separate-stderr over_ssh
  [[ $status -eq 0 ]]
  home_is_whole generic-ssh
}

@test "pull: a wrong prefix, a short file and damage of the same size are mended, by both ways (case 103)" {
  local way first
  CELL_BYTES=5000000
  bundle a b c
  sshd_start
  for way in rsync stream; do
    [[ $way == rsync ]] || box_without rsync
    L=$LOCAL_DIR/generic-ssh.r1
    mkdir -p "$L/.partial/files/final_ckpts/a" "$L/final_ckpts/b" "$L/final_ckpts/c"
    printf 'not the beginning' >"$L/.partial/files/final_ckpts/a/best.pth"
    head -c 1000 "$B/final_ckpts/b/best.pth" >"$L/final_ckpts/b/best.pth"
    cp "$B/final_ckpts/c/best.pth" "$L/final_ckpts/c/best.pth"
    printf XXXXXXXX | dd of="$L/final_ckpts/c/best.pth" bs=1 seek=77 conv=notrunc status=none
    run --separate-stderr over_ssh
    [[ $status -eq 0 ]]
    home_is_whole generic-ssh
    first=$BATS_TEST_TMPDIR/first.$way
    mv "$L" "$first"
  done
}

@test "pull: a long file goes on where it was cut off; nothing short ever has a final name (case 106)" {
  CELL_BYTES=9000000
  bundle a
  sshd_start
  box_without rsync
  L=$LOCAL_DIR/generic-ssh.r1
  mkdir -p "$L/.partial/files/final_ckpts/a"
  head -c 8000000 "$B/final_ckpts/a/best.pth" >"$L/.partial/files/final_ckpts/a/best.pth"
  # The box's tail says which bytes were asked for.
  printf '#!/bin/bash\nprintf "%%s\\n" "$*" >>%q\nexec %q "$@"\n' "$BATS_TEST_TMPDIR/asked" "$(type -P tail)" >"$BOX_BIN/tail"
  chmod +x "$BOX_BIN/tail"
  run --separate-stderr over_ssh
  [[ $status -eq 0 ]]
  home_is_whole generic-ssh
  grep -q -- '-c +8000001 ' "$BATS_TEST_TMPDIR/asked"
}

@test "pull: the link breaks again and again; it resumes, and a reader never sees a short file (cases 106 111)" {
  CELL_BYTES=9000000
  bundle a
  sshd_start
  box_without rsync
  # The first three streams break after a part.
  cat >"$BOX_BIN/tail" <<SHIM
#!/bin/bash
[[ \$1 == -c ]] || exec $(type -P tail) "\$@"
n=\$(cat $BATS_TEST_TMPDIR/n 2>/dev/null || echo 0)
echo \$((n + 1)) >$BATS_TEST_TMPDIR/n
((n < 3)) || exec $(type -P tail) "\$@"
$(type -P tail) "\$@" | head -c 2000000
kill -9 \$PPID
SHIM
  chmod +x "$BOX_BIN/tail"
  run --separate-stderr over_ssh
  [[ $status -eq 0 && $(<"$BATS_TEST_TMPDIR/n") -eq 4 ]]
  home_is_whole generic-ssh
}

@test "pull: where nothing moves it ends after a bounded number of tries, with both ends' versions (case 111)" {
  bundle a
  sshd_start
  box_without rsync
  printf '#!/bin/bash\necho x >>%q\nexit 1\n' "$BATS_TEST_TMPDIR/tries" >"$BOX_BIN/tar"
  chmod +x "$BOX_BIN/tar"
  run --separate-stderr over_ssh
  refused 69 'cell a' 'method: stream'
  [[ $(wc -l <"$BATS_TEST_TMPDIR/tries") -le 6 && ! -e $LOCAL_DIR/generic-ssh.r1/PULL_MANIFEST.json ]]
}

@test "pull: an rsync that garbles is left for the stream; garbling there too is 65 (cases 96 111)" {
  need_tool rsync
  bundle a
  sshd_start
  # The local rsync: brings a file of the right size and the wrong content.
  mkdir -p "$BATS_TEST_TMPDIR/bad"
  printf '#!/bin/bash\n[[ $1 != --version ]] || exec %q --version\nmkdir -p .partial/files/final_ckpts/a\nhead -c 60000 /dev/zero >.partial/files/final_ckpts/a/best.pth\nexit 0\n' "$(type -P rsync)" >"$BATS_TEST_TMPDIR/bad/rsync"
  chmod +x "$BATS_TEST_TMPDIR/bad/rsync"
  PATH=$BATS_TEST_TMPDIR/bad:$PATH run --separate-stderr over_ssh
  [[ $status -eq 0 ]]
  home_is_whole generic-ssh
  rm -rf "$LOCAL_DIR"
  printf XXXXXXXX | dd of="$B/final_ckpts/a/best.pth" bs=1 seek=77 conv=notrunc status=none
  run --separate-stderr over_ssh
  refused 65 'final_ckpts/a/best.pth' 'the durable tier has it with digest'
  [[ ! -e $LOCAL_DIR/generic-ssh.r1/PULL_MANIFEST.json && ! -e $LOCAL_DIR/generic-ssh.r1/final_ckpts/a/best.pth ]]
}

@test "pull: bytes changed on the way are told from bytes changed on the durable tier (each hop is named)" {
  bundle a
  sshd_start
  box_without rsync
  # The box's own tar garbles what it sends; what lies there is right.
  printf '#!/bin/bash\n%q "$@" | sed "s/accuracy/accurate/"\n' "$(type -P tar)" >"$BOX_BIN/tar"
  chmod +x "$BOX_BIN/tar"
  run --separate-stderr over_ssh
  refused 65 'final_ckpts/a/best_metrics.json' 'the durable tier has it right'
  rm "$BOX_BIN/tar"
  over_ssh
  printf XXXXXXXX | dd of="$LOCAL_DIR/generic-ssh.r1/final_ckpts/a/best.pth" bs=1 seek=7 conv=notrunc status=none
  run --separate-stderr over_ssh
  [[ $status -eq 0 && $stderr == *'a/best.pth is here, but not what the manifest says'* ]]
  home_is_whole generic-ssh
}

@test "pull: rsync codes 12, 23, 30 are no success (case 96)" {
  need_tool rsync
  local code
  bundle a
  sshd_start
  for code in 12 23 30; do
    fail_nth rsync 1 "$code" 'rsync error'
    run --separate-stderr over_ssh
    [[ $status -eq 0 && $stderr == *"status $code"* ]]
    home_is_whole generic-ssh
    rm -rf "$LOCAL_DIR" "$SHIMS"
  done
}

@test "pull: another host key is refused until a person says --new-host-key" {
  bundle a
  sshd_start
  over_ssh
  sshd_new_key
  run --separate-stderr over_ssh
  refused 77 demo-pod
  [[ $stderr == *'host key'* ]]
  run --separate-stderr over_ssh --new-host-key
  [[ $status -eq 0 && -e $LOCAL_DIR/generic-ssh.r1/known_hosts.before ]]
}

@test "pull: a box that cannot be reached, or says nothing, is 69 and changes nothing (case 89)" {
  bundle a
  sshd_start
  over_ssh
  sshd_stop
  local before
  before=$(find "$LOCAL_DIR" -name .partial -prune -o -type f -exec sha256sum {} + | sort)
  run --separate-stderr over_ssh
  refused 69 demo-pod
  [[ $(find "$LOCAL_DIR" -name .partial -prune -o -type f -exec sha256sum {} + | sort) == "$before" ]]
  [[ -s $LOCAL_DIR/generic-ssh.r1/PULL_MANIFEST.json ]]
}

@test "pull: start-up files that talk are named with their first bytes (case 107)" {
  bundle a
  sshd_start
  printf 'printf "\\033[1mWelcome to pod\\n"\n' >"$BOX_HOME/.bashrc"
  run --separate-stderr over_ssh
  refused 77 demo-pod
  [[ $stderr == *'Welcome to pod'* && $stderr != *$'\033'* ]]
  printf 'head -c 3000000 /dev/zero | tr "\\\\0" x\n' >"$BOX_HOME/.bashrc"
  run --separate-stderr over_ssh
  refused 77 demo-pod
}
