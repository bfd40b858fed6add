#!/usr/bin/env bash
# Aggregation's hashing against one sha256sum over the same files, and a second aggregation against the first.
# usage: bash tests/bench/bench_aggregate.sh [--mb 512] [--cells 4] [--check]
# Medians of three; --check exits 1 below 1.6 times one sha256sum, or where an unchanged second aggregation takes more
# than a tenth of the first.
set -euo pipefail
ROOT=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)

now_ms() { date +%s%3N; }
timed() { # <words...>    milliseconds into MS
  local start
  start=$(now_ms)
  "$@" >/dev/null 2>&1
  MS=$(($(now_ms) - start))
}
median() { # <three numbers>    prints
  printf '%s\n' "$@" | sort -n | sed -n 2p
}

main() {
  local mb=512 cells=4 check=false i one=() first=() again=() a b c fast slow
  while (($# > 0)); do
    case $1 in
      --mb) mb=$2 && shift ;;
      --cells) cells=$2 && shift ;;
      --check) check=true ;;
    esac
    shift
  done
  TOP=$(mktemp -d)
  trap 'rm -rf -- "${TOP:?}"' EXIT
  (cd "$ROOT" && .venv/bin/python -m generator compile local --job demo --out "$TOP/out" >/dev/null)
  # shellcheck source=/dev/null # beside the bats tests
  source "$ROOT/tests/bats/bundle_cells.bash"
  export RUN=r1 DATA_DIR=$TOP/data DURABLE_DIR=$TOP/durable
  mkdir -p "$DURABLE_DIR"
  run_record_here "$DATA_DIR/r1"
  for ((i = 1; i <= cells; i++)); do finished_cell "$DATA_DIR/r1" "c$i" $((mb * 1048576)); done
  roster "$DATA_DIR/r1" $(seq -f 'c%g' 1 "$cells")
  "$TOP/out/box/aggregate_to_fs.sh" >/dev/null 2>&1
  # Interleaved, so that all see the same machine.
  for i in 1 2 3; do
    timed sha256sum "$DURABLE_DIR"/r1/final_ckpts/*/*
    one+=("$MS")
    timed "$TOP/out/box/aggregate_to_fs.sh" --rehash
    first+=("$MS")
    timed "$TOP/out/box/aggregate_to_fs.sh"
    again+=("$MS")
  done
  a=$(median "${one[@]}") b=$(median "${first[@]}") c=$(median "${again[@]}")
  fast=$((a * 100 / b)) slow=$((c * 100 / b))
  printf '%s cells of %s MB on %s cores, hashing by %s\n' "$cells" "$mb" "$(nproc)" "$(type -P openssl >/dev/null && openssl version || echo sha256sum)"
  printf 'aggregation that reads all: %d.%02d times one sha256sum (%s ms, %s ms)\n' $((fast / 100)) $((fast % 100)) "$b" "$a"
  printf 'unchanged second aggregation: 0.%02d of the first (%s ms)\n' "$slow" "$c"
  [[ $check == false ]] || ((fast >= 160 && slow <= 10))
}
main "$@"
