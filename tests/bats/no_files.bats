#!/usr/bin/env bats
# A FIFO, a folder, a device, a link that leads nowhere in place of a file of ours: nothing hangs, and it is said what lies there.
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

# Each of our scripts, ended where it hangs: 124.
limited() { run --separate-stderr timeout -k 5 60 bash "$BOX/$1.sh" "${@:2}"; }

put() { # <what> <path>
  rm -rf "$2"
  case $1 in
    fifo) mkfifo "$2" ;;
    folder) mkdir "$2" ;;
    device) ln -s /dev/zero "$2" ;;
    nowhere) ln -s "$HOME/nowhere" "$2" ;;
    empty) : >"$2" ;;
  esac
}

@test "status: what lies in place of a cell's record is told with the cell's name, the other cells as they are (X8, case 36)" {
  local what said
  for what in a b c d e; do cell $what ok; done
  queue --only a,b
  rm "$B"/records/b.json "$B"/records/b.sha256
  for what in fifo:'is a FIFO' folder:'is a folder' device:'is a device' nowhere:'is a link that leads nowhere' empty:'is empty'; do
    put "${what%%:*}" "$D/state/c.json"
    put "${what%%:*}" "$B/records/d.json"
    limited status
    [[ $status -eq 0 && $output == *'= done 1 + running 0 + pending 1 + failed 0 + unsynced 1 + preempted 0 + unknown 2'* ]] || fail_with "$what"
    [[ $output == *"unknown    c, attempt 0, $D/state/c.json ${what#*:}"* && $output == *"unknown    d, attempt 0, $B/records/d.json ${what#*:}"* ]] || fail_with "$what"
    limited status --json
    said=$(PATH=$REAL_PATH "$PYTHON" -c 'import json, sys; print({c["cell"]: c["why"] for c in json.loads(sys.argv[1])["cells"]}["c"])' "$output")
    [[ $said == *"${what#*:}"* ]] || fail_with "$what"
  done
}

@test "status: a bundle's record and list that are none leave the cell unsynced, and both are told (X8)" {
  cell a ok
  queue
  put fifo "$B/records/a.json"
  put fifo "$B/records/a.sha256"
  limited status
  [[ $status -eq 0 && $output == *"unsynced   a, attempt 1, $B/records/a.json is a FIFO, not a record"* ]] || fail_with record
}

@test "status: run.json, the roster, the claim, the formal record: none is waited for (X8, case 45)" {
  local what
  cell a ok
  queue
  cp "$D/run.json" "$HOME/run" && cp "$D/queue.tsv" "$HOME/roster"
  for what in fifo folder device; do
    put $what "$D/run.json"
    limited status
    refused 65 "it is a ${what/fifo/FIFO}, not a record"
    rm -rf "$D/run.json" && cp "$HOME/run" "$D/run.json"
    put $what "$D/queue.tsv"
    limited status
    refused 65 "$D/queue.tsv" "it is a ${what/fifo/FIFO}"
    rm -rf "$D/queue.tsv" && cp "$HOME/roster" "$D/queue.tsv"
    put $what "$D/formal.json"
    limited status
    [[ $status -eq 0 && $output == *'formal.json is not a whole record'* ]] || fail_with "$what"
    rm -rf "$D/formal.json"
  done
  rm "$D/state/a.json" "$B/records/a.json"
  put fifo "$D/claims/a/001"
  limited status
  [[ $status -eq 0 && $output == *"unknown    a, attempt 0, $D/claims/a/001 is a FIFO"* ]] || fail_with claim
}

@test "run_queue and aggregate: a cell's record or claim that is no file is that cell's affair alone (S81, case 36, case 45)" {
  local c
  for c in a b c d e f; do cell $c ok; done
  queue --only b
  mkdir -p "$D/claims/c" "$D/state"
  put fifo "$D/state/a.json"
  put fifo "$D/claims/c/001"
  put folder "$D/state/d.json"
  put device "$D/state/e.json"
  put nowhere "$D/state/f.json"
  put fifo "$D/events.tsv"
  put fifo "$D/.queue.lock"
  put fifo "$D/.environment.key"
  put fifo "$D/environment.txt"
  limited aggregate_to_fs
  [[ $status -eq 1 && $stderr == *'a: unknown'*'it is a FIFO, not a record'* ]] || fail_with aggregate
  limited run_queue --queue "$Q"
  [[ $status -eq 1 && $stderr == *"cell a: unknown ($D/state/a.json is a FIFO, not a record): to resume"* ]] || fail_with queue
  [[ $stderr == *"refused: cell c; $D/claims/c/001 is a FIFO, not a claim"* && $stderr == *"refused: $D/state/d.json; it is a folder"* ]] || fail_with said
  sum_is 6 3 1 2 0
  bundled a && bundled e && bundled f
  [[ ! -e $HOME/nowhere ]]
  [[ $(starts c) -eq 0 && $(starts d) -eq 0 && -p $D/events.tsv ]]
  cell g ok
  limited run_queue --queue "$Q" --only g
  [[ $status -eq 0 && $stderr == *'.queue.lock is no file, so no lock'* ]] || fail_with lock
  mkfifo "$HOME/q"
  limited run_queue --queue "$HOME/q"
  refused 69 'it cannot be read: it is a FIFO'
}

@test "status and aggregate: a cell that was running under a claim that is none is unknown to both (S81, case 45)" {
  cell a ok
  cell b ok
  queue
  sed -i 's/"state": "done"/"state": "running"/' "$D/state/a.json"
  rm "$B"/records/a.*
  put fifo "$D/claims/a/001"
  limited status
  [[ $status -eq 0 && $output == *"unknown    a, attempt 1, $D/claims/a/001 is a FIFO"* ]] || fail_with status
  limited aggregate_to_fs
  [[ $status -eq 1 && $stderr == *"a: unknown"*"$D/claims/a/001 is a FIFO, not a claim"* ]] || fail_with aggregate
}

@test "run_one: its log, its list, its marks that become a FIFO while it runs: it ends, and is no success without its log (S48, T8, case 17)" {
  local file
  for file in state/a.sha256 logs/a/.peak logs/a/attempt-001.log ../scratch; do
    export RUN=r.${file##*/}
    D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
    printf 'a\tbash trainer.sh ok; rm -f "$CELL_DIR/../../%s"; mkfifo "$CELL_DIR/../../%s"\n' "$file" "$file" >"$Q"
    [[ $file != ../scratch ]] || printf 'a\tbash trainer.sh ok; rm -f "$SCRATCH/.gpu-runbook-scratch"; mkfifo "$SCRATCH/.gpu-runbook-scratch"\n' >"$Q"
    limited run_one --queue "$Q" a
    case $file in
      */.peak | ../scratch) [[ $status -eq 0 ]] && bundled a ;;
      *.sha256) [[ $status -eq 74 ]] && is a unsynced ;;
      *.log) [[ $status -eq 1 ]] && is a failed bug ;;
    esac || fail_with "$file"
  done
}
