#!/usr/bin/env bats
# The environment check of preflight in three tiers: imports, a kernel that runs and says what is expected, documentation (X9).
# shellcheck disable=SC2016 # words for the job's commands
load helper
load cells
setup() { cells_setup; }
teardown() { cells_teardown; }

with_environment() { # <yaml>
  { cat "$ROOT/tests/fixtures/trainers/job.yaml" && printf 'environment: %s\n' "$1"; } >"$BATS_TEST_TMPDIR/job.yaml"
  compile_job local "$BATS_TEST_TMPDIR/job.yaml"
  BOX=$OUT/box
}
preflight() { run --separate-stderr bash "$BOX/preflight.sh" "$@"; }
says() { # <verdict> <check> <words>
  grep -E "^  $1 +$2 " <<<"$output" | grep -qF -- "$3" || fail_with "no line: $1 $2 … $3"
}

@test "three tiers that hold: imports, a kernel's answer, the documentation's command; the spec's digits are the cells' (X9)" {
  export PY=$PYTHON
  with_environment "{imports: [yaml, json.decoder], kernel: [{command: '\"\$PY\" -c \"print(6 * 7)\"', expect: '^4[0-9]\$'}], docs: [{command: 'bash trainer.sh ok; echo usage: x', expect: '^usage: (x|y)'}]}"
  sed -i 's/^way=/[[ $CELL_NAME == preflight ]] \&\& exit 0; way=/' "$CODE_DIR/trainer.sh"
  preflight
  says ok 'env imports' 'yaml 6'
  says ok 'env kernel' 'said: 42'
  says ok 'env docs' 'said: usage: x'
  spec=$(sed -n 's/.* spec \([0-9a-f]\{8\}\),.*/\1/p' <<<"$output")
  [[ -n $spec && ! -e $D ]]
  sed -i 's/exit 0; way=/:; way=/' "$CODE_DIR/trainer.sh"
  cell a ok
  one a
  grep -q " environment $spec " "$D/logs/a/attempt-001.log"
}

# The key of a new environment beside the text of the old one would be believed for ever.
@test "killed while it writes down another environment, the next one does not take the old one's digits (X9, T17)" {
  local kill='event() { kill -KILL $BASHPID; }' one two
  spec() { # <folder of packages> <words before>
    PY=$PYTHON PYTHONPATH=$HOME/$1 D=$HOME/d bash -c 'source "$0"; D=$HOME/d; '"${2:-:}"'; env_spec; echo "$ENV_SPEC"' "$BOX/run_one.sh"
  }
  mkdir -p "$HOME/d" "$HOME/one/x-1.dist-info" "$HOME/two/x-2.dist-info"
  two=$(spec two)
  one=$(spec one 2>/dev/null)
  [[ $one =~ ^[0-9a-f]{8}$ && $one != "$two" && $(spec one) == "$one" ]]
  run spec two "$kill"
  [[ $status -eq 137 && $(spec two 2>/dev/null) == "$two" ]]
  # Once written down, the interpreter is not asked again.
  [[ $(spec two 'describe_environment() { exit 9; }') == "$two" ]]
}

@test "each tier that does not hold is a FAIL with its command, and shuts the gate with 77 (X9, S31)" {
  export PY=$PYTHON
  with_environment "{imports: [yaml, no_such_module], kernel: [{command: 'echo 41', expect: '^42\$'}, {command: 'echo 42; exit 3', expect: '42'}], docs: [{command: 'cat no-such-file', expect: x}]}"
  preflight
  [[ $status -eq 77 && $output == *'verdict: FAIL'* ]]
  says FAIL 'env imports' "no_such_module: ModuleNotFoundError: No module named 'no_such_module'"
  says FAIL 'env kernel' 'no line of its answer matches ^42$; the last one: 41'
  says FAIL 'env kernel' 'status 3; its last line: 42'
  says FAIL 'env docs' "status 1; its last line: cat: no-such-file: No such file or directory"
  PY=/nowhere preflight
  says FAIL 'env imports' 'status 127'
}

@test "a command that hangs ends, one that prints much is read at its end, a broken pattern fails; nothing is left in /tmp (X9)" {
  with_environment "{kernel: [{command: 'read -r -t 60 <> <(:)', expect: x}, {command: 'head -c 3000000 /dev/zero; echo; echo 42', expect: '^42\$'}], docs: [{command: 'echo a', expect: a_}]}"
  # The compiler refuses such a pattern; where it comes here all the same, nothing matches it.
  sed -i 's/^  a_$/  "a("/' "$BOX/preflight.sh"
  sed -i 's/^readonly ENV_TIMEOUT_S=.*/readonly ENV_TIMEOUT_S=1/' "$BOX/preflight.sh"
  before=$(ls -d /tmp/gpu-runbook.* 2>/dev/null || :)
  preflight
  says FAIL 'env kernel' 'no end after 1 s'
  says ok 'env kernel' 'said: 42'
  says FAIL 'env docs' 'matches a('
  [[ $(ls -d /tmp/gpu-runbook.* 2>/dev/null || :) == "$before" ]]
}

@test "they run as a cell would: proxy, mirrors, code directory, caches that go (X9, X7)" {
  with_environment "{kernel: [{command: 'echo \$PWD \$http_proxy \$HF_ENDPOINT; [[ \$XDG_CACHE_HOME == /tmp/gpu-runbook.* && -d \$TMPDIR ]]', expect: '^/.*/code http://p:1 https://m\$'}]}"
  sed -i 's|^readonly -a MIRRORS=.*|readonly -a MIRRORS=(HF_ENDPOINT=https://m)|' "$BOX/preflight.sh"
  PROXY_HOOK=http://p:1 preflight
  says ok 'env kernel' 'http://p:1 https://m'
  echo true >"$HOME/hook"
  PROXY_HOOK=$HOME/hook preflight
  says FAIL 'env kernel' 'set no proxy variable'
  rm -r "$CODE_DIR"
  preflight
  says unknown environment 'is not there yet'
}
