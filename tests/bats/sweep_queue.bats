#!/usr/bin/env bats
# Each external command of a queue with the aggregation behind it fails in turn, at each call: no run ends 0 or says success
# without the proof, and the same call mends it. SWEEP=all tries every call (make sweep); else some, others each day.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

whole_life() { # the queue, then the aggregation: what formal_run does detached
  timeout 90 bash "$BOX/run_queue.sh" --queue "$Q" --slots 2 || return
  timeout 60 bash "$BOX/aggregate_to_fs.sh"
}
# What "success" promises: both cells once, whole in the bundle, and a manifest that holds.
proven() {
  local text sum
  bundled a && bundled b && [[ $(starts a) -ge 1 && $(starts b) -ge 1 && ! -e $D/DOUBLED ]] || return 1
  [[ $(member "$B/PULL_MANIFEST.json" cells_done) == 2 && $(member "$B/PULL_MANIFEST.json" cells_expected) == 2 ]] || return 1
  (cd "$B" && sha256sum -c --quiet SHA256SUMS >/dev/null 2>&1) || return 1
  # The manifest's own digest: of all lines above its last one.
  text=$(grep -v '^  "self_sha256"' "$B/PULL_MANIFEST.json" | sed '$d' && printf x) && text=${text%x}
  sum=$(printf '%s' "$text" | sha256sum)
  [[ $(member "$B/PULL_MANIFEST.json" self_sha256) == "${sum%% *}" ]]
}

@test "each external command fails in turn, at each call: a queue with its aggregation never ends 0 or says success without the proof (case 27, case 28, case 92)" {
  cell a ok
  cell b ok
  fails_in_turn whole_life proven 8
}
