# notebook.bash: what the tests of a notebook's run share. `load notebook` behind `load helper` and `load cells`.
# A notebook's profile whose Drive is a folder of this test.
notebook_setup() {
  common_setup
  local profile=$BATS_FILE_TMPDIR/notebook.yaml
  [[ -e $profile ]] || sed -e 's|path: /content/drive/MyDrive|path: $DRIVE|' -e 's|proof: mount-parent|proof: none|' "$ROOT/profiles/colab.yaml" >"$profile"
  compile_job "$profile" "$ROOT/tests/fixtures/trainers/job.yaml"
  export DATA_DIR=$BATS_TEST_TMPDIR/data SCRATCH=$BATS_TEST_TMPDIR/scratch CODE_DIR=$BATS_TEST_TMPDIR/code DRIVE=$BATS_TEST_TMPDIR/drive RUN=r CRED_FILE='' HF_HOME=''
  mkdir -p "$DRIVE" "$SCRATCH" "$CODE_DIR"
  cp "$ROOT/tests/fixtures/trainers/trainer.sh" "$CODE_DIR/"
  D=$DATA_DIR/r B=$D Q=$BATS_TEST_TMPDIR/q.tsv SAVED=$DRIVE/gpu-runbook/r
}
notebook_teardown() {
  cells_teardown
  ! mountpoint -q "$DRIVE" 2>/dev/null || umount "$DRIVE"
}

install_it() { "$PYTHON" "$OUT/notebook/install_cell.py" >/dev/null; }
session() { run --separate-stderr bash "$D/box/current/session.sh" --seconds 0 "$@" -- --queue "$Q"; }
machine() { # another machine, as far as our scripts look
  export FAKE_ROOT=$BATS_TEST_TMPDIR/machine
  mkdir -p "$FAKE_ROOT/proc/sys/kernel/random" "$FAKE_ROOT/proc/self"
  cp /proc/meminfo "$FAKE_ROOT/proc/"
  cp /proc/self/status /proc/self/cgroup /proc/self/mountinfo "$FAKE_ROOT/proc/self/"
  echo "vm-$RANDOM$RANDOM" >"$FAKE_ROOT/proc/sys/kernel/hostname"
  echo "$RANDOM-boot" >"$FAKE_ROOT/proc/sys/kernel/random/boot_id"
}
# As the next session finds it: the disk is gone, the scripts and the code are put there again; a new name and boot.
fresh() {
  rm -rf "$DATA_DIR" "$SCRATCH" && mkdir -p "$SCRATCH"
  machine
  install_it
}
