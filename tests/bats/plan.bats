# shellcheck disable=SC2016,SC2153,SC2154 # words for other shells; bats sets status, output and stderr
load helper
load formal
load smoke

setup() { formal_setup; }
teardown() { formal_teardown; }

figure() { # <member> <number> : as if the smoke had measured that
  sed -i 's/^  "'"$1"'": [0-9a-z]*,$/  "'"$1"'": '"$2"',/' "$D/smoke.json"
  resign "$D/smoke.json"
}
said() { # <words> : in the plan, which was printed
  [[ $status -eq 0 && $output == *"$1"* ]] || fail_with "the plan lacks: $1"
}
warned() { # <words> : among the warnings
  [[ $stderr == *'warning: '*"$1"* ]] || fail_with "no warning: $1"
}

# Issue 5 item 2: what the smoke measured stands beside the job's figures, and counts for room where it is more.
@test "plan: the smoke's measures stand beside the job's figures, the larger counts for room" {
  export SMOKE_STEPS=4 SLOW=0.3
  smoked
  [[ $(member "$D/smoke.json" peak_memory_bytes) -gt 100000 && $(member "$D/smoke.json" steps) -eq 4 ]]
  # Four steps of 0.3 s: what a busy machine adds is not counted here.
  [[ $(member "$D/smoke.json" step_ms) -ge 200 && $(member "$D/smoke.json" cell_bytes) -eq 2 && $(member "$D/smoke.json" cell_files) -eq 2 ]]
  PRICE_PER_HOUR=30 formal plan
  said 'time     60 s, declared, not measured (the smoke: '
  said "4 step(s), $(member "$D/smoke.json" step_ms) ms a step)"
  said 'disk     2 bytes, measured (the smoke, with a checkpoint of 2 bytes); the job: 1000000 bytes'
  said "memory   $(member "$D/smoke.json" peak_memory_bytes) bytes, measured"
  said 'saving   1 s, measured'
  said 'about 2 min for what is left, 1 at a time (declared, not measured)'
  said 'about 1.00 at 30 per hour (declared, not measured)'
  figure cell_bytes 90000000000000
  formal plan
  refused 73 'bytes are free'
  figure cell_bytes 2 && figure cell_files 90000000000000
  formal plan
  refused 73 'inodes are free'
  figure cell_files 2 && figure save_s 77 && figure peak_memory_bytes 90000000000000
  formal plan
  warned 'saving took 77 s' && warned 'bytes of memory are free, 1 cell(s) at a time need 90000 GB'
}

# Issue 5 item 2: a warning where they are more than twice apart, on either side, and not at twice.
@test "plan: measured and declared more than twice apart are a warning" {
  smoked
  figure peak_memory_bytes 100000000
  for bytes in 500000 2000000; do
    figure cell_bytes "$bytes"
    formal plan
    [[ $status -eq 0 && $stderr != *'of a cell:'* ]] || fail_with "a warning at $bytes"
  done
  figure cell_bytes 499999
  formal plan
  warned 'disk of a cell: 499999 bytes was measured, less than half of what needs.disk_gb'
  figure cell_bytes 2000001 && figure peak_memory_bytes 200000001
  formal plan
  warned 'disk of a cell: 2000001 bytes was measured, more than twice what needs.disk_gb'
  warned '200 MB was measured, more than twice what needs.ram_gb'
  # No figure at all: not measured, and nothing breaks.
  figure cell_bytes 99999999999999999999999 && figure peak_memory_bytes 08 && figure ckpt_bytes -3
  formal plan
  said 'disk     1000000 bytes, declared, not measured'
  said 'memory   100 MB, declared, not measured'
}

# Issue 5 item 2: a waiver measures nothing, and the plan says so.
@test "plan: after a waiver everything is declared, not measured" {
  smoke --waive 'ada=no GPU here'
  formal plan
  for one in 'time     60 s' 'disk     1000000 bytes' 'memory   100 MB' 'saving   1 s'; do said "$one, declared, not measured"; done
  [[ $output != *', measured'* && $stderr != *'of a cell:'* ]]
}

# Issue 5 item 2: cells of this run that are done say best what a cell takes.
@test "plan: the time is the mean of the cells that are done" {
  smoked
  formal_ok --only s2
  sed -i 's/"started": "[^"]*"/"started": "2026-02-28T23:59:00Z"/; s/"ended": "[^"]*"/"ended": "2026-03-01T00:04:01Z"/; s/"peak_memory_bytes": [0-9a-z]*/"peak_memory_bytes": 700000000/' "$D/state/s2.json" "$B/records/s2.json"
  PRICE_PER_HOUR=6 formal plan
  said 'time     5 min, measured (the mean of 1 cells of this run that are done); the job: 60 s'
  said 'memory   700 MB, measured'
  said 'about 5 min for what is left, 1 at a time (measured)'
  said 'about 0.50 at 6 per hour (measured)'
  warned 'time of a cell: 5 min was measured, more than twice what needs.minutes'
}

# Issue 5 items 2 and 3: a drill with a cell has seen the steps of a cell, and how many there are.
@test "plan: the time is that of a cell's steps where the drill saw them" {
  queue_is "$(trainer "$FROM" 'echo "step $n/4000"' 'echo "$n" >"$CELL_DIR/.t"' 4000)"
  smoke --resume
  [[ $status -eq 0 ]] || fail_with drill
  local ms
  ms=$(member "$D/drill.json" step_ms)
  [[ $ms -ge 20 && $(member "$D/drill.json" steps_total) == 4000 ]]
  formal plan
  said "measured (4000 steps of $ms ms, as the drill saw cell c1); the job: 60 s"
  said "about $((((ms * 4 + 1) + 30) / 60)) min for what is left, 1 at a time (measured)"
  said 'drill     passed at '
  set_member "$D/drill.json" commit 0123456789012345678901234567890123456789
  formal plan
  said 'drill     of another commit or other scripts' && said '60 s, declared, not measured'
}

# Issue 5 item 2: part of a minute is part of a minute.
@test "plan: minutes: 0.4 is 24 seconds, and 0.001 is not nothing" {
  local job=$BATS_TEST_TMPDIR/part.yaml
  sed 's/minutes: 1}/minutes: 0.4}/' "$ROOT/tests/fixtures/formal/job.yaml" >"$job"
  compile_job local "$job"
  cp "$OUT"/box/* "$BOX/"
  smoked
  PRICE_PER_HOUR=75 formal plan
  said 'time     24 s, declared, not measured'
  said 'about 48 s for what is left, 1 at a time'
  said 'about 1.00 at 75 per hour'
  grep -q '^readonly NEED_S=24$' "$BOX/formal_run.sh"
  sed 's/minutes: 1}/minutes: 0.001}/' "$ROOT/tests/fixtures/formal/job.yaml" >"$job.yaml"
  compile_job local "$job.yaml"
  grep -q '^readonly NEED_S=1$' "$OUT/box/formal_run.sh"
}
