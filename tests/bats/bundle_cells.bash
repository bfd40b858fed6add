# bundle_cells.bash: cells and runs as the box's scripts leave them, for tests of what comes after.
# shellcheck disable=SC2154,SC2034 # the tests set and use these

RUN_ID=20260803T141500Z-1f3a9c04

run_record_here() { # <run folder...>: run.json for this host, by which aggregate finds its run
  local dir
  for dir in "$@"; do
    mkdir -p "$dir"
    printf '{\n  "schema": "run/1",\n  "run_id": "%s",\n  "job": "demo",\n  "profile": "local",\n  "formal": false,\n  "commit": "none",\n  "branch": "",\n  "shard": "1/1",\n  "host": "%s",\n  "boot_id": "%s",\n  "box_digest": "00"\n}\n' \
      "$RUN_ID" "$(</proc/sys/kernel/hostname)" "$(</proc/sys/kernel/random/boot_id)" >"$dir/run.json"
  done
}

cell_record() { # <file> <cell> <state> [class] [exit]
  mkdir -p "${1%/*}"
  printf '{\n  "schema": "cell/1",\n  "run_id": "%s",\n  "cell": "%s",\n  "state": "%s",\n  "class": "%s",\n  "why": "",\n  "attempt": 1,\n  "exit": %s,\n  "signal": null,\n  "started": "2026-08-03T14:20:00Z",\n  "ended": "2026-08-03T14:51:07Z",\n  "peak_memory_bytes": null,\n  "gpu": "L4",\n  "command_sha256": "ab",\n  "files_sha256": "",\n  "tracker_url": ""\n}\n' \
    "$RUN_ID" "$2" "$3" "${4-}" "${5-0}" >"$1"
}

finished_cell() { # <D> <cell> [bytes]: results and an unsynced record
  mkdir -p "$1/cells/$2" "$1/state"
  [[ -e $1/cells/$2/best.pth ]] || head -c "${3-50000}" /dev/urandom >"$1/cells/$2/best.pth"
  [[ -e $1/cells/$2/best_metrics.json ]] || echo '{"accuracy": 0.9}' >"$1/cells/$2/best_metrics.json"
  cell_record "$1/state/$2.json" "$2" unsynced
}

roster() { # <D> <cell...>: the queue as run_queue leaves it
  local dir=$1 cell
  shift
  mkdir -p "$dir"
  for cell in "$@"; do printf '%s\ttrue\n' "$cell"; done >"$dir/queue.tsv"
}
