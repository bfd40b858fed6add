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

# Points between 1 and ALL: all of them, or a stride with an offset that moves with the day.
points() { # <all> <how many>
  local all=$1 n=${SWEEP_POINTS:-$2} step
  [[ ${SWEEP-} == all ]] && seq 1 "$all" && return
  step=$((all / n > 0 ? all / n : 1))
  seq $((10#$(date +%j) * 7 % step + 1)) "$step" "$all"
}

# --- each external command made to fail, at each call ---

readonly TOOLS='bash git mkdir sync ln mv cp rm openssl sha256sum shasum stat find grep df nproc sort env setsid timeout tail tr head sed date awk
  sleep cat readlink touch dd wc du comm cut basename dirname mktemp uniq od rmdir chmod'

# The calls of these tools in one untroubled life, "tool n" a line. They differ a little from time to time.
list_calls() { # <function>
  local tool n
  export RUN=count SHIMS=$BATS_TEST_TMPDIR/shims.count
  for tool in $TOOLS; do
    # What makes the shims calls none of them.
    PATH=$REAL_PATH
    ! type -P "$tool" >/dev/null || fail_nth "$tool" 999999 1 never
  done
  "$1" >/dev/null 2>&1
  PATH=$REAL_PATH
  for tool in $TOOLS; do
    [[ -e $SHIMS/$tool.calls ]] || continue
    n=$(wc -l <"$SHIMS/$tool.calls")
    seq -f "$tool %g" 1 "$n"
  done
  rm -rf "$SHIMS"
}

# One life with this call failing, then another that mends it. A life that ends 0 or says success is held to PROVEN, and records
# that say done are true whatever was said.
try_call() { # <life> <proven> <tool> <n>
  local life=$1 proven=$2 file name
  shift 2
  export RUN=$1.$2 SHIMS=$BATS_TEST_TMPDIR/shims.$1.$2
  D=$DATA_DIR/$RUN B=$DURABLE_DIR/$RUN
  fail_nth "$1" "$2" 1 'injected failure'
  run --separate-stderr "$life"
  PATH=$REAL_PATH
  if [[ $status -eq 0 || $output == *'files checked'* ]]; then "$proven" || { fail_with "$1 call $2: success without proof"; return 1; }; fi
  while IFS= read -r name; do
    bundled "$name" || { fail_with "$1 call $2: $name is called synced"; return 1; }
  done < <(sed -n 's/^cell \([^:]*\): synced.*/\1/p' <<<"$output")
  for file in "$B"/records/*.json; do
    name=${file##*/} && name=${name%.json}
    [[ ! -e $file || $(member "$file" state) != 'done' ]] || bundled "$name" || { fail_with "$1 call $2: $name is called done"; return 1; }
  done
  [[ ! -e $D/DOUBLED ]] || { fail_with "$1 call $2: a cell twice at once"; return 1; }
  if [[ $status -ne 0 ]]; then
    # An empty claim counts as live for a minute: it is old now.
    touch -d '2 minutes ago' "$D"/claims/*/* 2>/dev/null || :
    run --separate-stderr "$life"
    [[ $status -eq 0 ]] && "$proven" || { fail_with "$1 call $2: not mended"; return 1; }
  fi
  rm -rf "$D" "$B" "$SHIMS"
}

fails_in_turn() { # <life> <proven> <how many points in everyday's run>    tells how many were tried
  local n calls tried=0 bad=''
  mapfile -t calls < <(list_calls "$1")
  ((${#calls[@]} > 10)) || return 1
  for n in $(points "${#calls[@]}" "$3"); do
    # shellcheck disable=SC2086 # tool and number
    try_call "$1" "$2" ${calls[n - 1]} || bad+="${calls[n - 1]}; "
    tried=$((tried + 1))
  done
  [[ -z $bad ]] || fail_with "these calls: $bad"
  echo "# $1: $tried of ${#calls[@]} failing calls tried" >&3
}

# The last line's sum is true and has these numbers.
sum_is() { # <planned> <started> <skipped> <failed> <pending>
  local line
  line=$(grep '^planned ' <<<"$output" | tail -n 1)
  [[ $(($2 + $3 + $4 + $5)) -eq $1 && $line == "planned $1 = started $2 + skipped $3 + failed $4 + pending $5;"* ]] && return 0
  printf 'not planned %s = %s + %s + %s + %s: %s\nstatus %s\n%s\n' "$@" "$line" "$status" "$stderr" >&2
  return 1
}
