# shellcheck disable=SC2016,SC2154 # paths with a name in them; bats sets status, output and stderr
# Is the box the variant that was compiled for? The mounts are a list as the kernel gives it, under FAKE_ROOT; in one test they are real.
load helper

setup() {
  common_setup
  export FAKE_ROOT=$BATS_TEST_TMPDIR/root CRED_FILE='' PY=bash DETACH=nohup
  mkdir -p "$FAKE_ROOT/proc/self"
  printf 'Cpus_allowed_list:\t0-1\n' >"$FAKE_ROOT/proc/self/status"
  printf 'MemTotal:  65000000 kB\nMemAvailable: 60000000 kB\n' >"$FAKE_ROOT/proc/meminfo"
  : >"$FAKE_ROOT/proc/self/cgroup"
  mounts
}

mounts() { # "PATH TYPE"… : what is mounted besides /
  local one
  {
    printf '21 1 0:30 / / rw,relatime - overlay overlay rw\n'
    for one in "$@"; do printf '40 21 0:50 / %s rw,noatime shared:7 - %s some#source:9421 rw\n' "${one% *}" "${one##* }"; done
  } >"$FAKE_ROOT/proc/self/mountinfo"
}
compiled_for() { # <profile> [--without TIER…]
  compile_job "$1" demo "${@:2}"
  BOX=$OUT/box
}
preflight() { run --separate-stderr bash "$BOX/preflight.sh"; }
says() { # <verdict> <tier> <words>
  grep -E "^  $1 +tier $2 " <<<"$output" | grep -qF -- "$3" || fail_with "no line: $1 tier $2 … $3"
}
advises() { grep -F 'what to do' <<<"$output" | grep -qF -- "$1" || fail_with "no advice: $1"; }
silent() { # <tier>
  ! grep -qE "^  [a-zA-Z]+ +tier $1 " <<<"$output" || fail_with "a line of tier $1"
}
first_fail() { # <exit code> : there is a FAIL, and the exit code is its kind's
  [[ $status -eq $1 && $output == *'verdict: FAIL'* ]] || fail_with "status $status, not $1"
}
fine() { ! grep -qE '^  FAIL +tier ' <<<"$output" || fail_with 'a tier failed'; }

# S33 S65 case 91: a Pod's own disk is a mount at /workspace too, and it dies with the Pod.
@test "preflight: runpod with the network volume is no Pod with a volume disk" {
  compiled_for runpod
  mounts '/workspace fuse'
  preflight
  fine
  says ok network-volume '/workspace is there, by its proof (mount-network)'
  silent volume-disk
  mounts '/workspace xfs'
  preflight
  first_fail 74
  says FAIL network-volume '/workspace is a local disk (xfs)'
  advises 'compile for a box without it: make profile=runpod job=demo without=network-volume'
  mounts
  preflight
  first_fail 74
  says FAIL network-volume '/workspace is not a mount point'
  # What can be either is believed: the kernel does not say more.
  mounts '/workspace virtiofs'
  preflight
  fine
}

# S33 case 91: the same the other way round.
@test "preflight: runpod without the network volume refuses a Pod that has one" {
  compiled_for runpod --without network-volume
  mounts '/workspace xfs'
  preflight
  fine
  says ok volume-disk '/workspace is there, by its proof (mount-local)'
  says ok network-volume 'left out, and not here'
  mounts '/workspace fuse'
  preflight
  says FAIL volume-disk '/workspace is storage of the network (fuse)'
  says FAIL network-volume '/workspace is mounted, but this was compiled for a box without it'
  advises 'compile with it: make profile=runpod job=demo; or take it off the box'
  # A later mount hides the first one.
  mounts '/workspace fuse' '/workspace ext4'
  preflight
  fine
  mounts '/workspace virtiofs'
  preflight
  fine
  says unknown network-volume 'look at the console'
  mounts
  preflight
  first_fail 74
  says FAIL volume-disk 'every box of this platform has it'
}

# S33: a formal run and a push hold to the same proof, not only the table.
@test "the durable tier's proof refuses a local disk in the volume's place" {
  compiled_for runpod
  mounts '/workspace ext4'
  run --separate-stderr bash "$BOX/run_queue.sh"
  refused 74 '/workspace is a local disk (ext4)'
}

@test "preflight: lambda with and without a filesystem, whatever its name" {
  compiled_for lambda
  mounts '/lambda/nfs/mine virtiofs'
  FS_NAME=mine preflight
  fine
  says ok filesystem '/lambda/nfs/mine is there'
  FS_NAME=other preflight
  first_fail 74
  says FAIL filesystem '/lambda/nfs/other is not a mount point'
  advises 'make profile=lambda job=demo without=filesystem'
  compiled_for lambda --without filesystem
  mounts '/lambda/nfs nfs' '/lambda/nfs/a/b nfs' '/lambda/nfsx/a nfs'
  DATA_DIR=$BATS_TEST_TMPDIR/d SCRATCH=$BATS_TEST_TMPDIR/s preflight
  fine
  says ok filesystem 'left out, and not here'
  mounts '/lambda/nfs/mine nfs4'
  DATA_DIR=$BATS_TEST_TMPDIR/d SCRATCH=$BATS_TEST_TMPDIR/s preflight
  first_fail 77
  says FAIL filesystem '/lambda/nfs/mine is mounted, but'
  advises 'make profile=lambda job=demo;'
}

@test "preflight: autodl with and without file storage" {
  compiled_for autodl
  mounts '/root/autodl-tmp xfs' '/root/autodl-fs nfs4'
  preflight
  fine
  says ok file-storage '/root/autodl-fs is there'
  says ok data-disk '/root/autodl-tmp is there'
  mounts '/root/autodl-tmp xfs'
  preflight
  first_fail 74
  advises 'make profile=autodl job=demo without=file-storage'
  compiled_for autodl --without file-storage
  preflight
  fine
  says ok file-storage 'left out, and not here'
  mounts '/root/autodl-tmp xfs' '/root/autodl-fs nfs4'
  preflight
  first_fail 77
  says FAIL file-storage '/root/autodl-fs is mounted, but'
}

@test "preflight: several tiers: what is not used is a note, what was left out stays so in the remedy" {
  compiled_for gpushare --without nas
  mounts '/hy-tmp ext4'
  preflight
  first_fail 74
  advises 'without=net-disk,nas'
  compiled_for aws-ec2 --without kept-volume
  mounts '/opt/dlami/nvme ext4'
  DATA_DIR=$BATS_TEST_TMPDIR/d preflight
  fine
  says ok kept-volume 'left out, and not here'
  mounts
  DATA_DIR=$BATS_TEST_TMPDIR/d preflight
  says note instance-store 'nothing of this run lies there'
  mounts '/data xfs'
  DATA_DIR=$BATS_TEST_TMPDIR/d preflight
  first_fail 77
  says FAIL kept-volume '/data is mounted, but'
}

# The same with mounts of the kernel's own: a folder of the name is not the storage, and a marker is.
@test "preflight: real mounts and a real marker" {
  local tier=$BATS_TEST_TMPDIR/tier
  mkdir -p "$tier"
  unset FAKE_ROOT
  compiled_for autodl --without file-storage
  mkdir "$BATS_TEST_TMPDIR/box"
  cp "$BOX/preflight.sh" "$BATS_TEST_TMPDIR/box/" && BOX=$BATS_TEST_TMPDIR/box
  sed -i "s|/root/autodl-fs|$tier|" "$BOX/preflight.sh"
  DATA_DIR=$BATS_TEST_TMPDIR/d preflight
  says ok file-storage 'left out, and not here'
  sed -i "s|file-storage mount |file-storage marker |" "$BOX/preflight.sh"
  echo id >"$tier/.gpu-runbook-tier"
  DATA_DIR=$BATS_TEST_TMPDIR/d preflight
  says FAIL file-storage "$tier is mounted, but"
  rm "$tier/.gpu-runbook-tier"
  mount -t tmpfs -o size=64k tmpfs "$tier" 2>/dev/null || skip 'no mount here'
  DATA_DIR=$BATS_TEST_TMPDIR/d preflight
  umount "$tier"
  says FAIL file-storage "$tier is mounted, but"
}

# Case 91: Drive is mounted at /content/drive, and My Drive, which the profile names, is a folder in it.
@test "preflight: a Drive that was left out shows by what is mounted one above it" {
  compiled_for colab --without drive
  mounts
  preflight
  says ok drive 'left out, and not here'
  mounts '/content/drive fuse.drive'
  preflight
  fine
  says note drive '/content/drive is mounted; it was left out'
}
