#!/usr/bin/env bats
# lib/classify: labelled samples of logs (tests/fixtures/logs*/CLASS/*.log), with precision and recall by class.
# logs_found and logs_held hold shapes of messages that the patterns were not written for: at first sight 32 of 46 and then, the
# patterns mended, 18 of 28 new ones were told; the others were called a bug, which retries nothing,
# but for one GPU out of memory, called transient, which would have been retried. They count now.
load helper

setup() {
  common_setup
  PROG=test
  for lib in exit log path room evidence classify; do
    # shellcheck source=/dev/null # a library of the project
    source "$ROOT/templates/lib/$lib.bash"
  done
}

# What a log alone speaks for; nothing is a bug.
say() { # <log>
  local said
  said=$(classify_log "$1")
  said=${said%%$'\t'*}
  echo "${said:-bug}"
}

measure() { # prints a table, and each sample that is classified wrongly
  local log label found class
  local -A right=() said=() all=()
  for log in "$ROOT"/tests/fixtures/logs*/*/*.log; do
    label=${log%/*} && label=${label##*/}
    found=$(say "$log")
    all[$label]=$((${all[$label]:-0} + 1)) said[$found]=$((${said[$found]:-0} + 1))
    if [[ $found == "$label" ]]; then right[$label]=$((${right[$label]:-0} + 1)); else echo "wrong: ${log#"$ROOT"/}: $found"; fi
  done
  for class in "${!all[@]}"; do
    echo "$class: ${all[$class]} samples, precision $((100 * ${right[$class]:-0} / (${said[$class]:-0} > 0 ? ${said[$class]} : 1))) %, recall $((100 * ${right[$class]:-0} / ${all[$class]})) %"
  done
}

@test "labelled logs: each class with its precision and recall, at least 90 % (S81, S103, case 20, T35)" {
  result=$(measure)
  echo "$result" | sed 's/^/# /' >&3
  ! grep -oE '(precision|recall) [0-9]+' <<<"$result" | awk '$2 < 90 {exit 1}' && fail_with "$result"
  [[ $(grep -c samples <<<"$result") -ge 6 ]]
}

@test "what is never retried is never taken for transient (S81, S109)" {
  for log in "$ROOT"/tests/fixtures/logs*/{bug,killed,oom_gpu,oom_host,non_finite,disk_full}/*.log; do
    [[ $(say "$log") != transient ]] || { echo "$log" >&2 && return 1; }
  done
}

@test "busybox's awk says the same" {
  before=$(measure)
  busybox_path
  [[ $(measure) == "$before" ]]
}

@test "a log of one enormous line, of NULs, or that is missing is classified without a hang" {
  head -c 3000000 /dev/zero | tr '\0' 'x' >"$HOME/long"
  head -c 300000 /dev/zero >"$HOME/nul"
  [[ $(say "$HOME/long") == bug && $(say "$HOME/nul") == bug && $(say "$HOME/missing") == bug ]]
}
