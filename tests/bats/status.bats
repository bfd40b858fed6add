#!/usr/bin/env bats
# status.sh: what the run is in now, read only, in one pass.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

status() { run --separate-stderr bash "$BOX/status.sh" "$@"; }

@test "every state by name, and a sum that is true (X8, case 36, case 40)" {
  cell a ok
  cell b fail
  cell c ok
  cell d ok
  cell e ok
  cell f 'once "" 143'
  queue --only a,b,c,d
  run --separate-stderr bash "$BOX/run_one.sh" --queue "$Q" f
  : >"$D/state/c.json" && rm "$B/records/c.json"
  rm "$B/records/d.json"
  status --json
  [[ $status -eq 0 ]]
  PATH=$REAL_PATH "$PYTHON" - "$output" <<'P'
import json, sys
said = json.loads(sys.argv[1])
assert said["schema"] == "status/1" and said["planned"] == 6, said
assert {c["cell"]: c["state"] for c in said["cells"]} == dict(a="done", b="failed", c="unknown", d="unsynced", e="pending", f="preempted"), said["cells"]
assert sum(said[k] for k in "pending running done unsynced failed preempted unknown".split()) == 6
for name in "run_id state last_progress_s eta_s session bytes_free inodes_free host boot_id why".split():
    assert name in said, name
P
  status
  [[ $output == *'planned 6 = done 1 + running 0 + pending 1 + failed 1 + unsynced 1 + preempted 1 + unknown 1'* ]]
}

@test "a running cell is running while its claim lives, and unknown when its runner was killed (case 45)" {
  cell a 'slow 60 0.1'
  bash "$BOX/run_queue.sh" --queue "$Q" >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 test -s "$D/cells/a/latest.pth"
  status
  [[ $output == *'running 1'* && $output == *'session alive'* ]]
  kill -TERM $pid
  wait $pid || :
  status
  [[ $output == *'preempted 1'* ]]
  sed -i 's/"preempted"/"running"/; s/"class": "running"/"class": ""/' "$D/state/a.json"
  status
  [[ $output == *'unknown 1'* ]]
}

@test "it changes nothing, begins no run, and says so where there is none" {
  status
  refused 69 'there is neither'
  [[ -z $(ls "$DATA_DIR" "$DURABLE_DIR" | grep -v ':') ]]
  cell a ok
  queue
  before=$(cd "$BATS_TEST_TMPDIR" && find data durable scratch -type f -exec sha256sum {} + | sort)
  status && status --json
  [[ $before == "$(cd "$BATS_TEST_TMPDIR" && find data durable scratch -type f -exec sha256sum {} + | sort)" ]]
  status --nope
  [[ $status -eq 64 ]]
  : >"$D/run.json"
  status
  refused 65
}

@test "the cost does not grow by processes: two cells or two hundred, the same number" {
  local n count last=''
  for n in 2 200; do
    : >"$Q"
    for ((i = 0; i < n; i++)); do cell "c$i" ok; done
    export RUN=s$n
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    queue --only c0
    for ((i = 1; i < n; i++)); do
      sed "s/\"cell\": \"c0\"/\"cell\": \"c$i\"/" "$D/state/c0.json" >"$D/state/c$i.json"
      sed "s/\"cell\": \"c0\"/\"cell\": \"c$i\"/" "$B/records/c0.json" >"$B/records/c$i.json"
      cp "$B/records/c0.sha256" "$B/records/c$i.sha256"
    done
    SHIMS=$BATS_TEST_TMPDIR/shims.$n
    for tool in find awk sed sha256sum stat date cat; do fail_nth $tool 9999 1 never; done
    status
    [[ $output == *"done $n "* ]]
    count=$(cat "$SHIMS"/*.calls | wc -l)
    [[ -z $last || $count -le $((last + 1)) ]] || { echo "$last then $count" >&2 && return 1; }
    last=$count
    PATH=$REAL_PATH
  done
}

@test "what run_one itself writes beside the log is no progress of the cell (case 25, X8)" {
  cell a saves
  bash "$BOX/run_one.sh" --queue "$Q" a >/dev/null 2>&1 3>&- &
  pid=$!
  wait_for 30 test -e "$D/cells/a/ready"
  # Its memory is looked at after a second; only what lies there besides is made old.
  wait_for 30 test -s "$D/logs/a/.peak"
  cp "$Q" "$D/queue.tsv"
  find "$D/cells/a" "$D/logs/a" -type f ! -name .peak -exec touch -d '1 hour ago' {} +
  touch "$D/logs/a/.peak"
  run --separate-stderr bash "$BOX/status.sh" --json
  kill -TERM $pid
  wait $pid || :
  progress=$(sed -n 's/^  "last_progress_s": \([0-9]*\),*$/\1/p' <<<"$output")
  ((progress >= 3000))
}

@test "one record that cannot be read hides no other, and odd bytes in a text give no word of awk's, whichever awk (case 36, X8)" {
  local tool c
  for c in a b c d; do cell $c ok; done
  queue --only a,b
  # In the order of names it comes first of all; then one with a byte that is no text.
  mkdir "$D/state/0.json"
  sed 's/"cell": "a"/"cell": "c"/; s/"done"/"failed"/; s/"why": ""/"why": "cut here \xe2\x82"/' "$D/state/a.json" >"$D/state/c.json"
  rm "$B/records/b.json"
  for tool in mawk gawk original-awk 'busybox awk'; do
    PATH=$REAL_PATH type -P "${tool%% *}" >/dev/null || continue
    mkdir -p "$HOME/awk" && printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$(PATH=$REAL_PATH type -P "${tool%% *}")" "$([[ $tool != *' '* ]] || echo awk)" >"$HOME/awk/awk" && chmod +x "$HOME/awk/awk"
    PATH=$HOME/awk:$PATH LC_ALL=C.UTF-8 status
    [[ $status -eq 0 && $output == *'= done 1 + running 0 + pending 1 + failed 1 + unsynced 1 + '* && $stderr != *awk* ]] || { echo "$tool: $output $stderr" >&2 && return 1; }
  done
}
