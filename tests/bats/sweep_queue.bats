#!/usr/bin/env bats
# Each external command of a queue with the aggregation behind it fails in turn, at each call: no run ends 0 or says success
# without the proof, and the same call mends it. SWEEP=all tries every call (make sweep); else some, others each day.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

readonly TOOLS='bash git mkdir sync ln mv cp rm openssl sha256sum shasum stat find grep df nproc sort env setsid timeout tail tr head sed date awk
  sleep cat readlink touch dd wc du comm cut basename dirname mktemp uniq od rmdir chmod'

# Points between 1 and ALL: all of them, or a stride with an offset that moves with the day.
points() { # <all> <how many>
  local all=$1 n=${SWEEP_POINTS:-$2} step
  [[ ${SWEEP-} == all ]] && seq 1 "$all" && return
  step=$((all / n > 0 ? all / n : 1))
  seq $((10#$(date +%j) * 7 % step + 1)) "$step" "$all"
}
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
# Which calls of which tools there are: "tool n" a line, all of one untroubled run.
list_calls() {
  local tool n
  export RUN=count SHIMS=$BATS_TEST_TMPDIR/shims.count
  for tool in $TOOLS; do
    ! PATH=$REAL_PATH type -P "$tool" >/dev/null || fail_nth "$tool" 999999 1 never
  done
  whole_life >/dev/null 2>&1
  PATH=$REAL_PATH
  for tool in $TOOLS; do
    [[ -e $SHIMS/$tool.calls ]] || continue
    n=$(wc -l <"$SHIMS/$tool.calls")
    seq -f "$tool %g" 1 "$n"
  done
  rm -rf "$SHIMS"
}
try_call() { # <tool> <n>
  local again
  export RUN=$1.$2 SHIMS=$BATS_TEST_TMPDIR/shims.$1.$2
  D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
  fail_nth "$1" "$2" 1 'injected failure'
  run --separate-stderr whole_life
  PATH=$REAL_PATH
  if [[ $status -eq 0 || $output == *'files checked'* ]]; then
    proven || { fail_with "$1 call $2: success without proof" && return 1; }
  fi
  [[ ! -e $D/DOUBLED ]] || { fail_with "$1 call $2: a cell twice at once" && return 1; }
  # Records that say done are true, whatever was said.
  for again in a b; do
    [[ $(member "$B/records/$again.json" state 2>/dev/null) != 'done' ]] || bundled "$again" || { fail_with "$1 call $2: $again is called done" && return 1; }
  done
  if [[ $status -ne 0 ]]; then
    # An empty claim counts as live for a minute: it is old now.
    touch -d '2 minutes ago' "$D"/claims/*/* 2>/dev/null || :
    run --separate-stderr whole_life
    [[ $status -eq 0 ]] && proven || { fail_with "$1 call $2: not mended" && return 1; }
  fi
  rm -rf "$D" "$B" "$SHIMS"
}

@test "each external command fails in turn, at each call: a queue with its aggregation never ends 0 or says success without the proof (case 27, case 28, case 92)" {
  local n calls tried=0 bad=''
  cell a ok
  cell b ok
  mapfile -t calls < <(list_calls)
  ((${#calls[@]} > 50))
  for n in $(points "${#calls[@]}" 8); do
    # shellcheck disable=SC2086 # tool and number
    try_call ${calls[n - 1]} || bad+="${calls[n - 1]}; "
    tried=$((tried + 1))
  done
  [[ -z $bad ]] || fail_with "these calls: $bad"
  echo "# run_queue and aggregation: $tried of ${#calls[@]} failing calls tried" >&3
}
