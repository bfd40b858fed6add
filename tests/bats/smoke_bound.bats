# shellcheck disable=SC2016,SC2030,SC2031,SC2153,SC2154 # words for other shells; tests are subshells; bats sets status, output and stderr
load helper
load formal
load smoke

setup() { formal_setup; }
teardown() { formal_teardown; }

edited() { # <member> <text> : and signed, as if the smoke had written it
  set_member "$D/smoke.json" "$1" "$2" && resign "$D/smoke.json"
}

# Case 61 F23: a record that somebody edited opens nothing, whatever it says then.
@test "smoke's record: edited by hand it is found out" {
  smoked
  for edit in ended=2031-01-01T00:00:00Z artifact_sha256="$(printf '%064d' 7)" who=ada; do
    cp "$D/smoke.json" "$BATS_TEST_TMPDIR/keep"
    set_member "$D/smoke.json" "${edit%%=*}" "${edit#*=}"
    formal plan
    refused 77 'was changed after it was written'
    cp "$BATS_TEST_TMPDIR/keep" "$D/smoke.json"
  done
  sed -i '/self_sha256/d; s/^\(  "ended": ".*"\),$/\1/' "$D/smoke.json"
  formal plan
  refused 77 'was changed after it was written'
  # A failure that is made a pass, with all that a pass has.
  : >"$FAIL"
  smoke
  set_member "$D/smoke.json" result passed && set_member "$D/smoke.json" artifact_sha256 "$(printf '%064d' 7)"
  sed -i 's/"exit": 3/"exit": 0/' "$D/smoke.json"
  formal plan
  refused 77 'was changed after it was written'
  smoke --waive 'ada=known'
  rm "$FAIL"
  formal_ok
  grep -q "^# smoke WAIVED by ada at .*: known$" "$D/plans/$(member "$D/formal.json" start_id).tsv"
  grep -q $'\twaiver\t.*WAIVED by ada at .*: known' "$D/events.tsv"
  set_member "$D/smoke.json" who bob
  formal plan
  refused 77 'was changed after it was written'
  for one in who why ended; do
    smoke --waive 'ada=known'
    edited "$one" ''
    formal plan
    refused 77 'without who and why, or when' || fail "$one"
  done
}

# Issue 5 item 2: of this machine, this code directory, this interpreter and what it has installed.
@test "smoke's record: of another machine, folder, interpreter or environment it is refused" {
  export PY=$PYTHON PYTHONPATH=$BATS_TEST_TMPDIR/packages
  mkdir -p "$PYTHONPATH/one-1.0.dist-info"
  smoked
  formal plan
  [[ $status -eq 0 ]] || fail_with plan
  mv "$PYTHONPATH/one-1.0.dist-info" "$PYTHONPATH/one-1.1.dist-info"
  formal plan
  refused 77 'packages, interpreter or driver' 'smoke.sh'
  mv "$PYTHONPATH/one-1.1.dist-info" "$PYTHONPATH/one-1.0.dist-info"
  PY=bash formal plan
  refused 77 'was made with' "PY is $(type -P bash)"
  git clone -q "$CODE_DIR.origin.git" "$BATS_TEST_TMPDIR/clone"
  CODE_DIR=$BATS_TEST_TMPDIR/clone formal plan
  refused 77 'is of the code in'
  edited host elsewhere
  formal plan
  refused 77 'was made on elsewhere'
}

# Case 61: what was there before is no artifact of this trial, by whatever way it comes.
@test "smoke: an old artifact is not taken for a fresh one" {
  export OLD=$BATS_TEST_TMPDIR/old
  again() { rm -rf "$OLD" && mkdir -p "$OLD/best" && for f in "$OLD/best.bin" "$OLD/best/w"; do echo old >"$f" && touch -d '-1 day' "$f"; done; }
  for words in 'cp -p "$OLD/best.bin" "$CELL_DIR/"' 'ln "$OLD/best.bin" "$CELL_DIR/"' 'mv "$OLD/best.bin" "$CELL_DIR/"'; do
    again
    command_is "$words" best.bin
    smoke
    failed_because 'not written by this trial'
  done
  for words in 'mkdir "$CELL_DIR/best" && cp -p "$OLD/best/w" "$CELL_DIR/best/"' 'mv "$OLD/best" "$CELL_DIR/" && touch "$CELL_DIR/best"'; do
    again
    command_is "$words" best
    smoke
    failed_because 'not written by this trial'
  done
  again
  command_is 'ln -s "$OLD" "$CELL_DIR/out" && echo new >"$OLD/best.bin"' out/best.bin
  smoke
  failed_because 'lies outside of CELL_DIR'
  # What is copied along may be old.
  command_is 'mkdir "$CELL_DIR/best" && cp -p "$OLD/best/w" "$CELL_DIR/best/" && echo new >"$CELL_DIR/best/v"' best
  smoke
  [[ $status -eq 0 ]] || fail_with 'copied along'
}

# Issue 5 item 2: the commit is the one that ran from start to end.
@test "smoke: code that changes while the trial runs makes it speak of no commit" {
  for words in 'echo "# x" >>train.sh' 'git commit -q --allow-empty -m more' 'echo x >results.csv'; do
    command_is "$words; echo 1 >\"\$CELL_DIR/best.bin\"" best.bin
    smoke
    [[ $status -eq 0 && $(member "$D/smoke.json" commit) == none && $stderr == *'the code changed while the trial ran, or the trial left files in it'* ]] || fail_with "$words"
    git -C "$CODE_DIR" checkout -q train.sh && rm -f "$CODE_DIR/results.csv"
  done
}

# Issue 5 item 2: edits that git was told not to look at.
@test "smoke: hidden edits are no commit" {
  for hide in skip-worktree assume-unchanged; do
    git -C "$CODE_DIR" update-index --"$hide" train.sh
    echo '# hidden' >>"$CODE_DIR/train.sh"
    smoke
    [[ $status -eq 0 && $(member "$D/smoke.json" commit) == none && $stderr == *"hidden ($hide) train.sh"* ]] || fail_with "$hide"
    formal plan
    [[ $status -eq 77 ]]
    git -C "$CODE_DIR" update-index --no-"$hide" train.sh && git -C "$CODE_DIR" checkout -q train.sh
  done
}

# Case 61: one that was begun and killed leaves no pass behind, not even an older one.
@test "smoke: killed by SIGKILL it has not passed" {
  smoked
  [[ $(member "$D/smoke.json" result) == passed ]]
  : >"$HOLD"
  bash "$BOX/smoke.sh" 3>&- >/dev/null 2>&1 &
  pid=$!
  wait_for 30 trainer_runs
  kill -KILL "$pid"
  formal plan
  refused 77 "'failed'" 'has not ended'
}

# A clock that is set back lengthens no limit (here: one that stands still for the shell).
@test "smoke: its limit is not of the clock that people set" {
  command_is 'sleep 300' best.bin 1
  printf 'set -T\ntrap SECONDS=0 DEBUG\n' >"$BATS_TEST_TMPDIR/env"
  BASH_ENV=$BATS_TEST_TMPDIR/env run --separate-stderr timeout 30 bash "$BOX/smoke.sh"
  failed_because 'not done in 1 s'
}
