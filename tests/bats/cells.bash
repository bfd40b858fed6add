# cells.bash: what the tests of run_one, run_queue and status share. `load cells` behind `load helper`.

# A box of its own: folders, the fake trainer as code, and the compiled scripts in $BOX.
cells_setup() {
  common_setup
  compile_job local "$ROOT/tests/fixtures/trainers/job.yaml"
  BOX=$OUT/box
  export DATA_DIR=$BATS_TEST_TMPDIR/data DURABLE_DIR=$BATS_TEST_TMPDIR/durable SCRATCH=$BATS_TEST_TMPDIR/scratch CODE_DIR=$BATS_TEST_TMPDIR/code
  export RUN=r CRED_FILE='' HF_HOME=''
  mkdir -p "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH" "$CODE_DIR"
  cp "$ROOT/tests/fixtures/trainers/trainer.sh" "$CODE_DIR/"
  D=$DATA_DIR/r B=$DURABLE_DIR/r Q=$BATS_TEST_TMPDIR/q.tsv
}

# Whatever a test started is gone after it: by the mark of its cells, and by the folder in its command line.
cells_teardown() {
  PATH=$REAL_PATH
  local file pid
  for file in $(grep -lsF "$BATS_TEST_TMPDIR" /proc/[0-9]*/environ 2>/dev/null); do
    pid=${file#/proc/} && pid=${pid%/environ}
    [[ $pid != "$$" && $pid != "$BASHPID" && $pid != "$PPID" ]] || continue
    if grep -qsF GPU_RUNBOOK_CELL= "$file" || tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qE 'run_(one|queue)\.sh'; then kill -KILL "$pid" 2>/dev/null || :; fi
  done
  if mountpoint -q "$BATS_TEST_TMPDIR/small" 2>/dev/null; then umount "$BATS_TEST_TMPDIR/small"; fi
}

cell() { # <name> <trainer's words…> : a line of the queue
  local name=$1
  shift
  printf '%s\tbash trainer.sh %s\n' "$name" "$*" >>"$Q"
}
one() { run --separate-stderr bash "$BOX/run_one.sh" --queue "$Q" "$@"; }
queue() { run --separate-stderr bash "$BOX/run_queue.sh" --queue "$Q" "$@"; }

member() { # <file> <member> : its value as written
  sed -n 's/^  "'"$2"'": "\{0,1\}\([^"]*\)"\{0,1\},\{0,1\}$/\1/p' "$1" | sed 's/,$//'
}
state() { member "$D/state/$1.json" state; }
class() { member "$D/state/$1.json" class; }
why() { member "$D/state/$1.json" why; }

# A cell's record says STATE (and CLASS).
is() { # <cell> <state> [class]
  local found
  found="$(state "$1") $(class "$1")"
  [[ $found == "$2 ${3-}" ]] && return 0
  printf 'cell %s is %s, not %s %s; why: %s\nstatus %s\n%s\n%s\n' "$1" "$found" "$2" "${3-}" "$(why "$1")" "${status-}" "${output-}" "${stderr-}" >&2
  return 1
}
# What is in the bundle is what the source had: the list matches, and the record says done.
bundled() { # <cell>
  [[ $(member "$B/records/$1.json" state) == 'done' ]] && (cd "$B/final_ckpts/$1" && sha256sum -c "$B/records/$1.sha256" >/dev/null)
}
starts() { # <cell> : how often its trainer began
  local n=0
  [[ ! -e $D/starts.$1 ]] || n=$(wc -l <"$D/starts.$1")
  echo "$n"
}
small_disk() { # <size and options> : a tmpfs at $BATS_TEST_TMPDIR/small
  mkdir -p "$BATS_TEST_TMPDIR/small"
  mount -t tmpfs -o "$1" tmpfs "$BATS_TEST_TMPDIR/small" 2>/dev/null || missing_tool 'mount (root)'
}
cell_alive() { grep -qsF "GPU_RUNBOOK_CELL=$(member "$D/run.json" run_id)/" /proc/[0-9]*/environ; }
nothing_alive() { ! cell_alive; }
# A locale with a comma in its numbers for everything that follows, made here: boxes rarely have one ready.
comma_locale() {
  mkdir -p "$HOME/locales"
  PATH=$REAL_PATH localedef -i de_DE -f UTF-8 "$HOME/locales/de_DE.UTF-8" >/dev/null 2>&1 || missing_tool 'localedef with de_DE (apt package locales)'
  # In this shell setlocale may not see the folder; in those that it starts it does.
  { export LOCPATH=$HOME/locales LC_ALL=de_DE.UTF-8 LANG=de_DE.UTF-8; } 2>/dev/null
  [[ $(bash -c "printf '%.1f' 1,5" 2>/dev/null) == 1,5 ]]
}
