#!/usr/bin/env bash
# make demo: the whole life of the demo job on this machine, everything under build/demo/: killed half-way, resumed, brought
# home, verified, and the teardown gate before and after. Each step is one line here and a log of its own there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
readonly ROOT
DEMO=${DEMO_DIR:-$ROOT/build/demo}
[[ $DEMO == /* ]] || DEMO=$PWD/$DEMO
readonly DEMO
readonly CELL=lr0.1_w32 # the first of the queue: this one is killed
readonly KILL_AT=5      # epochs of 12 that it may finish before
readonly START=(formal_run.sh start --slots 2)
STEP=0

say() { # <text>
  printf '%s\n' "$*"
}

stop() { # <what went wrong> [log]
  say "demo: FAILED: $1" >&2
  [[ -z ${2-} ]] || { tail -n 30 -- "$2" | sed 's/^/  | /' >&2; }
  exit 1
}

# One step: its words, then the command; its output goes to a log. The exit code has to be the expected one.
step() { # <expected code> <what is done> <command>…
  local want=$1 what=$2 rc=0
  shift 2
  STEP=$((STEP + 1))
  printf -v LOG '%s/log/%02d.log' "$DEMO" "$STEP"
  "$@" >"$LOG" 2>&1 </dev/null || rc=$?
  [[ $rc -eq $want ]] || stop "$what: exit code $rc, not $want" "$LOG"
  say "$(printf '%2d' "$STEP"). $what"
}

quote() { # <pattern> [lines] : what the last step said, from its log
  local found
  found=$(grep -E -- "$1" "$LOG" | tail -n "${2:-1}") || stop "the last step did not say: $1" "$LOG"
  say "$found" | sed 's/^/      /'
}

wait_until() { # <seconds> <what> <command>…
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS < until)) || stop "waited in vain until $what" "$DATA_DIR/demo/formal.log"
    sleep 0.1
  done
}

box() { # <script> [arguments]… : as one would type it on the box, where the code is what push brought
  local script=$1
  shift
  env -u CODE_DIR bash "$BOX/$script" "$@"
}

formal_state() { # prints the state that formal.json records
  sed -n 's/^  "state": "\([a-z]*\)",*$/\1/p' "$DATA_DIR/demo/formal.json" 2>/dev/null || :
}
state_is() { # <state>…
  local now word
  now=$(formal_state)
  for word in "$@"; do [[ $now != "$word" ]] || return 0; done
  return 1
}
epochs() { # prints the epochs that the cell has finished
  wc -l 2>/dev/null <"$DATA_DIR/demo/cells/$CELL/log.jsonl" || echo 0
}
half_way() {
  (($(epochs) >= KILL_AT))
}

# The training processes of a cell of this demo: those whose environment names its folder and whose words name train.py.
trainers() { # [cell] : prints their ids
  local proc
  for proc in /proc/[0-9]*; do
    if tr '\0' '\n' 2>/dev/null <"$proc/environ" | grep -qxF "CELL_DIR=$DATA_DIR/demo/cells/${1:-$CELL}" &&
      tr '\0' ' ' 2>/dev/null <"$proc/cmdline" | grep -qF train.py; then
      say "${proc#/proc/}"
    fi
  done 2>/dev/null
}

kill_cell() {
  local ids
  ids=$(trainers)
  [[ -n $ids ]] || { say 'no process of the cell was found' && return 1; }
  # shellcheck disable=SC2086 # ids, one word each
  kill -KILL $ids
  say "killed after $(epochs) epochs: process ${ids//$'\n'/ }"
}

# Whatever happens, nothing of the demo goes on running.
clean_up() {
  local rc=$? folder id
  trap - EXIT
  if state_is starting running aggregating && [[ -n ${BOX-} ]]; then box formal_run.sh stop >/dev/null 2>&1 || :; fi
  for folder in "${DATA_DIR:-/nowhere}"/demo/cells/*/; do
    [[ -d $folder ]] || continue
    folder=${folder%/}
    for id in $(trainers "${folder##*/}"); do kill -KILL "$id" 2>/dev/null || :; done
  done
  exit "$rc"
}

# Everything that the scripts take from the environment, all below build/demo. A person's own values must not leak in.
environment() {
  unset RUN HOST INSTANCE PRICE_PER_HOUR PROXY_HOOK DETACH
  export HOME=$DEMO/home DATA_DIR=$DEMO/box/data DURABLE_DIR=$DEMO/box/durable SCRATCH=$DEMO/box/scratch
  export HF_HOME=$DEMO/box/hf LOCAL_DIR=$DEMO/laptop CODE_DIR=$DEMO/code CRED_FILE='' PY=$ROOT/.venv/bin/python
  export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=demo GIT_AUTHOR_EMAIL=demo@example.invalid
  export GIT_COMMITTER_NAME=demo GIT_COMMITTER_EMAIL=demo@example.invalid
}

fresh_folder() { # an earlier demo's folder goes, and only that
  [[ -d /proc/self ]] || stop 'the box side needs /proc: run the demo on Linux'
  if [[ -e $DEMO && ! -e $DEMO/.demo ]]; then stop "$DEMO is there and is no folder of an earlier demo"; fi
  rm -rf -- "${DEMO:?}"
  mkdir -p "$DEMO/log" "$HOME" "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH" "$HF_HOME" "$LOCAL_DIR"
  : >"$DEMO/.demo"
}

repository() { # a throw-away repository with a bare origin: the user's own code
  git init -q --bare -b main "$DEMO/origin.git"
  git init -q -b main "$CODE_DIR"
  cp examples/digits/* "$CODE_DIR/"
  git -C "$CODE_DIR" add -A
  git -C "$CODE_DIR" commit -q -m 'the digits sweep'
  git -C "$CODE_DIR" remote add origin "$DEMO/origin.git"
  git -C "$CODE_DIR" push -q -u origin main
}

prepare() {
  step 0 'compiled the profile local with the demo job' "$PY" -m generator compile local --out "$DEMO/compiled"
  LOCAL=$DEMO/compiled/local
  step 0 'made a repository with examples/digits, pushed to a bare origin' repository
  step 0 'smoke on the laptop: two tiny batches and their checkpoint' bash "$LOCAL/smoke.sh"
  step 0 'push: the box scripts lie on the box under their digest' bash "$LOCAL/push.sh"
  BOX=$DATA_DIR/demo/box/current
  step 0 'preflight on the box' box preflight.sh
  quote '^verdict'
  step 0 'smoke on the box, with the very scripts that will run' box smoke.sh
}

train() {
  step 0 'formal_run started the queue detached, two cells at a time' box "${START[@]}"
  wait_until 120 "$CELL is half-way" half_way
  step 0 "SIGKILL to the training of $CELL half-way" kill_cell
  quote '^killed after'
  wait_until 180 'the first start has ended' state_is failed success
  step 1 'the other three cells went on; the run says failed, keeps all and names the remedy' box formal_run.sh status
  step 0 "the identical command again: bash ${START[*]}" box "${START[@]}"
  wait_until 180 'the second start has ended' state_is failed success
  LOG=$DATA_DIR/demo/logs/$CELL/attempt-002.log
  quote '^resumed after epoch'
  step 0 'FORMAL_SUCCESS, read back over the aggregated bundle' box formal_run.sh status
  quote 'success'
  step 0 'status: what the records say of each cell' box status.sh
}

bring_home() {
  step 77 'teardown is refused: nothing is home yet' bash "$LOCAL/teardown.sh" finish
  quote 'refused:'
  step 0 'aggregate again: nothing to copy, the same bundle' box aggregate_to_fs.sh
  step 0 'patrol: one look, healthy or done' bash "$LOCAL/patrol.sh"
  step 0 'pull: each file compared with the manifest' bash "$LOCAL/pull.sh"
  step 0 'verify_local: every file hashed, every checkpoint loaded without running its code' \
    "$PY" "$LOCAL/verify_local.py" "$LOCAL_DIR/local.demo"
  quote '^OK [0-9]+/[0-9]+, errors 0'
  step 0 'teardown now shows what it would do, and does nothing without --run' bash "$LOCAL/teardown.sh" finish
  sed 's/^/      /' "$LOG"
}

main() {
  environment
  fresh_folder
  trap clean_up EXIT
  say "demo: everything below $DEMO; the step's logs are in log/"
  prepare
  train
  bring_home
  say ''
  say "The runbook:       $DEMO/compiled/RUNBOOK.md"
  say "The results:       $LOCAL_DIR/local.demo/final_ckpts/"
  say "What the box saw:  $DATA_DIR/demo/events.tsv and logs/$CELL/attempt-00{1,2}.log"
  say 'The same for a rented box: make profile=runpod'
}

main "$@"
