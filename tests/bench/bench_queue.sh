#!/usr/bin/env bash
# run_queue and run_one against GNU parallel with a job log, in the same run: bash tests/bench/bench_queue.sh [--check] [--cells N]
# Aims: a no-op cell with all guards at most 6 times one of `parallel -j1 --joblog --resume`, and at most 30 processes; to resume
# 500 cells with 499 done at most once its --resume; of 10,000 cells a done queue recognised in 5 s, status in 2 s, memory flat.
# Medians of seven rounds, taken in turn. --check exits 1 where an aim is missed.
set -euo pipefail
ROOT=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
MISSED=0

now_ms() { date +%s%3N; }
timed() { # <words...>    milliseconds into MS
  local start
  start=$(now_ms)
  "$@" >/dev/null 2>&1 || { echo "failed: $*" >&2 && return 1; }
  MS=$(($(now_ms) - start))
}
median() { # <seven numbers>    prints
  printf '%s\n' "$@" | sort -n | sed -n 4p
}
say() { # <what> <figure> <limit> <unit>
  local word=ok
  (($2 <= $3)) || { word=MISSED && MISSED=1; }
  printf '%-52s %6s %s (aim: %s) %s\n' "$1" "$2" "$4" "$3" "$word"
}

new_run() { # <name> <cells>: an empty run, its queue in $Q, the same commands for parallel in $Q.jobs
  local i
  export RUN=$1
  D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN Q=$TOP/$RUN.tsv
  # shellcheck disable=SC2016 # for the cell's own shell
  for ((i = 1; i <= $2; i++)); do printf 'cell%05d\techo w >"$CELL_DIR/best.pth"; echo {} >"$CELL_DIR/metrics.json"\n' "$i"; done >"$Q"
  for ((i = 1; i <= $2; i++)); do printf 'echo w >%s/out.%s; echo {} >%s/out.%s.json\n' "$TOP" "$i" "$TOP" "$i"; done >"$Q.jobs"
}
queue() { bash "$TOP/out/box/run_queue.sh" --queue "$Q" "$@"; }
peer() { parallel -j1 --joblog "$1" --resume <"$Q.jobs"; }

# All cells done but the last LEFT: the first is run, the others are its records under their own names.
fill_run() { # <cells> <left>
  queue --only cell00001 >/dev/null 2>&1
  awk -v n="$(($1 - $2))" -v from="$B/records/cell00001.json" -v b="$B" -v d="$D" 'BEGIN {
    while ((getline line < from) > 0) text = text line "\n"
    getline sums < (b "/records/cell00001.sha256")
    getline second < (b "/records/cell00001.sha256")
    for (i = 2; i <= n; i++) {
      name = sprintf("cell%05d", i); one = text; gsub(/cell00001/, name, one)
      printf "%s", one > (d "/state/" name ".json"); close(d "/state/" name ".json")
      printf "%s", one > (b "/records/" name ".json"); close(b "/records/" name ".json")
      printf "%s\n%s\n", sums, second > (b "/records/" name ".sha256"); close(b "/records/" name ".sha256")
    }
  }'
  # In a real run the records of earlier cells have long been on the disk: the first flush of the measured call is not to pay for them.
  sync
}

bench_cells() { # <cells>
  local i a b ours=() theirs=()
  for i in 1 2 3 4 5 6 7; do
    new_run "noop$i" "$1"
    timed queue
    ours+=("$MS")
    timed peer "$TOP/noop$i.log"
    theirs+=("$MS")
  done
  a=$(median "${ours[@]}") b=$(median "${theirs[@]}")
  printf '%s no-op cells: run_queue %s ms a cell, GNU parallel %s ms\n' "$1" "$((a / $1))" "$((b / $1))"
  say "no-op cell against GNU parallel, times 100" $((a * 100 / b)) 600 %
}

bench_processes() {
  local one two
  new_run processes 4
  git -C "$CODE_DIR" init -q && git -C "$CODE_DIR" -c user.name=b -c user.email=b@example.invalid commit -q --allow-empty -m start
  queue --only cell00001 >/dev/null 2>&1
  if ! type -P strace >/dev/null; then
    echo 'processes a cell: not counted, strace is missing'
    return 0
  fi
  one=$(count_processes --only cell00002) two=$(count_processes --only cell00003,cell00004)
  say 'processes of a no-op cell, its own two included' $((two - one)) 30 ''
}
count_processes() { # <words of run_queue...>    prints
  strace -f -qq -e trace=execve -o "$TOP/trace" bash "$TOP/out/box/run_queue.sh" --queue "$Q" "$@" >/dev/null 2>&1
  grep -c 'execve.* = 0' "$TOP/trace"
}

bench_resume() {
  local i a b ours=() theirs=()
  new_run peer 500
  sed '$d' "$Q.jobs" >"$TOP/all.jobs"
  parallel -j1 --joblog "$TOP/all.log" <"$TOP/all.jobs"
  for i in 1 2 3 4 5 6 7; do
    new_run "resume$i" 500
    fill_run 500 1
    timed queue
    ours+=("$MS")
    cp "$TOP/all.log" "$TOP/resume.log"
    timed peer "$TOP/resume.log"
    theirs+=("$MS")
  done
  a=$(median "${ours[@]}") b=$(median "${theirs[@]}")
  printf '500 cells, 499 done: run_queue %s ms, GNU parallel --resume %s ms\n' "$a" "$b"
  say 'resume against GNU parallel --resume, times 100' $((a * 100 / b)) 100 %
}

# Peak memory in KiB and milliseconds of a command: PEAK, MS.
peak() { # <words...>
  local said
  said=$("$ROOT/.venv/bin/python" -c 'import resource, subprocess, sys, time
t = time.monotonic()
r = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, int((time.monotonic() - t) * 1000))
sys.exit(r.returncode)' "$@")
  PEAK=${said% *} MS=${said#* }
}
bench_many() {
  local small
  new_run thousand 1000
  fill_run 1000 0
  peak bash "$TOP/out/box/run_queue.sh" --queue "$Q"
  small=$PEAK
  new_run many 10000
  fill_run 10000 0
  peak bash "$TOP/out/box/run_queue.sh" --queue "$Q"
  say '10,000 cells: done queue recognised' "$MS" 5000 ms
  printf 'memory of run_queue at most: %s KiB for 1,000 cells, %s KiB for 10,000\n' "$small" "$PEAK"
  say 'memory for a further cell' $((((PEAK - small) * 1024) / 9000)) 4096 bytes
  peak bash "$TOP/out/box/status.sh"
  say '10,000 cells: status' "$MS" 2000 ms
}

main() {
  local cells=30 check=false
  while (($# > 0)); do
    case $1 in
      --cells) cells=$2 && shift ;;
      --check) check=true ;;
    esac
    shift
  done
  TOP=$(mktemp -d)
  trap 'rm -rf -- "${TOP:?}"' EXIT
  export DATA_DIR=$TOP/data DURABLE_DIR=$TOP/durable SCRATCH=$TOP/scratch CODE_DIR=$TOP/code CRED_FILE='' HF_HOME='' HOME=$TOP/home
  mkdir -p "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH" "$CODE_DIR" "$HOME/.parallel"
  : >"$HOME/.parallel/will-cite"
  # The interpreter itself: what some version managers put in its place starts several shells first, which is not ours to time.
  PY=$(python3 -c 'import sys; print(sys.executable)')
  export PY
  (cd "$ROOT" && .venv/bin/python -m generator compile local --job tests/fixtures/trainers/job.yaml --out "$TOP/out" >/dev/null)
  if type -P parallel >/dev/null; then
    bench_cells "$cells"
    bench_resume
  else
    echo 'GNU parallel is missing (apt package parallel): not compared' && MISSED=1
  fi
  bench_processes
  bench_many
  [[ $check == false || $MISSED == 0 ]]
}
main "$@"
