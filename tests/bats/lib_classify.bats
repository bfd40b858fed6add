#!/usr/bin/env bats
# lib/classify: labelled samples of logs (tests/fixtures/logs*/CLASS/*.log), with precision and recall by class.
# Most sets have shaped the patterns. What they told at first sight: logs_found 32 of 46, logs_held 18 of 28, and, the patterns
# rewritten by what a message is about instead of by its words, logs_wild 19 of 22, all found in public issue threads. The others
# were called a bug, which retries nothing, but for two called transient, which would have been. logs_mixed has what the network, a
# tracker or another rank say behind the true end: at first sight 4 of 13, the others transient. logs_blind, a half drawn by
# chance of one list of messages, has shaped nothing, and may not: look at its numbers, not at its files.
load helper

setup() {
  common_setup
  PROG=test
  load_libs classify
}

# What a log alone speaks for; nothing is a bug.
say() { # <log>
  local said
  said=$(classify_log "$1")
  said=${said%%$'\t'*}
  echo "${said:-bug}"
}

measure() { # <sets…>    prints a table, and each sample of them that is classified wrongly
  local log label found class set
  local -A right=() said=() all=()
  for set in "$@"; do
    for log in "$ROOT/tests/fixtures/$set"/*/*.log; do
      label=${log%/*} && label=${label##*/}
      found=$(say "$log")
      all[$label]=$((${all[$label]:-0} + 1)) said[$found]=$((${said[$found]:-0} + 1))
      if [[ $found == "$label" ]]; then
        right[$label]=$((${right[$label]:-0} + 1))
      elif [[ $set != logs_blind ]]; then echo "wrong: ${log#"$ROOT"/}: $found"; fi
    done
  done
  for class in "${!all[@]}"; do
    echo "$class: ${all[$class]} samples, precision $((100 * ${right[$class]:-0} / (${said[$class]:-0} > 0 ? ${said[$class]} : 1))) %, recall $((100 * ${right[$class]:-0} / ${all[$class]})) %"
  done
}
readonly KNOWN='logs logs_found logs_held logs_wide logs_wild logs_mixed'

@test "labelled logs: each class with its precision and recall, at least 90 % (S81, S103, case 20, T35)" {
  # shellcheck disable=SC2086 # names of folders
  result=$(measure $KNOWN)
  echo "$result" | sed 's/^/# /' >&3
  ! grep -oE '(precision|recall) [0-9]+' <<<"$result" | awk '$2 < 90 {exit 1}' && fail_with "$result"
  [[ $(grep -c samples <<<"$result") -ge 6 ]]
}

@test "logs that have shaped no pattern: at least 80 %, and nothing wrongly called transient or disk_full (S81, S109)" {
  result=$(measure logs_blind)
  echo "$result" | sed 's/^/# unseen: /' >&3
  ! grep -oE 'recall [0-9]+' <<<"$result" | awk '$2 < 80 {exit 1}' && fail_with "$result"
  grep -q '^transient: .* precision 100 %' <<<"$result"
  grep -q '^disk_full: .* precision 100 %' <<<"$result"
}

@test "what is never retried is never taken for transient (S81, S109)" {
  for log in "$ROOT"/tests/fixtures/logs*/{bug,killed,oom_gpu,oom_host,non_finite,disk_full}/*.log; do
    [[ $(say "$log") != transient ]] || { echo "$log" >&2 && return 1; }
  done
}

@test "a GPU, a driver or a disk that fails is a bug to nobody's code, and says so; it is never retried (S81, S109)" {
  local log found n=0
  for log in "$ROOT"/tests/fixtures/logs_wi*/bug/{ecc_tf,driver_thc,eio_rank}.log; do
    [[ -e $log ]] || continue
    n=$((n + 1))
    found=$(classify_log "$log")
    [[ $found == bug$'\t''the machine, not the code: '* ]] || fail_with "$log: $found"
  done
  [[ $n -ge 3 && -z $(classify_log "$ROOT/tests/fixtures/logs_wild/bug/mask_shape.log") ]]
}

@test "busybox's awk says the same" {
  # shellcheck disable=SC2086 # names of folders
  before=$(measure $KNOWN logs_blind)
  busybox_path
  # shellcheck disable=SC2086 # names of folders
  [[ $(measure $KNOWN logs_blind) == "$before" ]]
}

@test "a log of one enormous line, of NULs, or that is missing is classified without a hang" {
  head -c 3000000 /dev/zero | tr '\0' 'x' >"$HOME/long"
  head -c 300000 /dev/zero >"$HOME/nul"
  [[ $(say "$HOME/long") == bug && $(say "$HOME/nul") == bug && $(say "$HOME/missing") == bug ]]
}

@test "a bug's why quotes the last words of its log, without the value of a secret (S81 S103)" {
  # shellcheck disable=SC2034 # classify_end reads them
  local STOP_SIGNAL='' LIMIT_HIT='' CELL_RC=1 CELL_LOG=$HOME/log OOM_BEFORE='' OOM_AFTER='' D=$HOME CLASS WHY
  # shellcheck disable=SC2034 # mask_secrets reads them
  local -a SECRET_NAMES=(API_KEY SHORT) SECRET_VALUES=('s3cr[e]t*value' ab)
  printf 'epoch 1\nTraceback (most recent call last):\n  File "x"\nValueError: bad s3cr[e]t*value about\033\n\n  ----\ngpu-runbook: ended\n' >"$CELL_LOG"
  classify_end ''
  [[ $CLASS == bug && $WHY == 'exit 1; its last words: ValueError: bad [API_KEY] about; nothing in the log speaks for another cause' ]] || fail_with "$WHY"
  # Also where the line names a cause, and though a cut would hide half of it.
  printf 'ConnectionError: %0280d s3cr[e]t*value\n' 0 >"$CELL_LOG"
  classify_end ''
  [[ $CLASS == transient && $WHY == *0000* && $WHY != *s3cr* ]] || fail_with "$WHY"
  : >"$CELL_LOG"
  classify_end ''
  [[ $WHY == 'exit 1; nothing in the log speaks for another cause' ]] || fail_with "$WHY"
}
