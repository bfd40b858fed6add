# shellcheck disable=SC2030,SC2031,SC2034,SC2154 # tests are subshells; bats sets status
load helper

setup() {
  common_setup
  PROG=test RUN=demo DETACH=nohup
  load_libs run
  DATA_DIR=$BATS_TEST_TMPDIR/data DURABLE_DIR=$BATS_TEST_TMPDIR/kept SCRATCH=$BATS_TEST_TMPDIR/scratch
  mkdir -p "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH"
}

# S22 P331: what a person overrides is held to the same as the profile.
@test "places: a run's folders in the scratch that is emptied are refused, also through a link" {
  run_places
  [[ $D == "$DATA_DIR/demo" && $B == "$DURABLE_DIR/demo" && $S == "$SCRATCH/gpu-runbook/demo" ]]
  DURABLE_DIR=$SCRATCH/gpu-runbook run --separate-stderr run_places
  refused 78 'which is emptied' "$SCRATCH/gpu-runbook/demo"
  DATA_DIR=$SCRATCH/gpu-runbook/demo/x run --separate-stderr run_places
  refused 78 'which is emptied'
  mkdir -p "$SCRATCH/gpu-runbook/demo" "$DURABLE_DIR"
  ln -s "$SCRATCH/gpu-runbook/demo" "$DURABLE_DIR/demo"
  run --separate-stderr run_places
  refused 78 'which is emptied' "$DURABLE_DIR/demo"
  rm "$DURABLE_DIR/demo"
  DURABLE_DIR='' run_places # one tier
  SCRATCH=$DATA_DIR/scratch run_places
}

# S47: a profile's tier may lie in $HOME, or in a storage of the person's own name.
@test "places: a folder that a person has named needs no name that only the profile's tier has" {
  local tier
  DURABLE_PROOF=none
  for tier in '~' '~/x' "\$HOME" "\$HOME/x" "/nfs/\$STORE_OF_MINE" "/nfs/\$STORE_OF_MINE/\$USER"; do
    DURABLE_TIER_PATH=$tier
    HOME='' run --separate-stderr durable_there
    [[ $status -eq 0 && -z $stderr ]] || fail_with "$tier"
  done
  # One that has a value leads there, and the tier is proven.
  DURABLE_TIER_PATH="\$STORE_OF_MINE" DURABLE_PROOF=marker STORE_OF_MINE=$DURABLE_DIR run --separate-stderr prove_durable
  refused 74 '.gpu-runbook-tier is missing'
  DURABLE_TIER_PATH="\$STORE_OF_MINE/x" DURABLE_DIR=$BATS_TEST_TMPDIR/none
  run --separate-stderr prove_durable
  refused 74 "\$STORE_OF_MINE is not set" 'is no folder'
}
