# smoke.bash: what the tests of smoke share. `load smoke` behind `load formal`.
# shellcheck disable=SC2016,SC2034,SC2154 # words for other shells; helper and formal set what is used here, the tests use the rest

laptop() { run --separate-stderr bash "$LOCAL/smoke.sh" "$@"; }
command_is() { # <command> <artifact> [limit]: of both scripts
  local file
  for file in "$BOX/smoke.sh" "$LOCAL/smoke.sh"; do
    C=$1 awk -v a="$2" -v t="${3-20}" 'BEGIN {q = sprintf("%c", 39); c = ENVIRON["C"]}
      /^readonly SMOKE_COMMAND=/ {print "readonly SMOKE_COMMAND=" q c q; next}
      /^readonly SMOKE_ARTIFACT=/ {print "readonly SMOKE_ARTIFACT=" q a q; next}
      /^readonly SMOKE_TIMEOUT_S=/ {print "readonly SMOKE_TIMEOUT_S=" t; next} {print}' "$file" >"$file.new"
    mv "$file.new" "$file"
  done
}
resign() { # <record> : as if what was edited had been written so
  local text
  text=$(sed '/^  "self_sha256": /,$d' "$1")
  text=${text%,}
  printf '%s,\n  "self_sha256": "%s"\n}\n' "$text" "$(printf '%s' "$text" | sha256sum | cut -c 1-64)" >"$1"
}
failed_because() { # <words>
  [[ $status -eq 1 && $stderr == *"smoke failed: "*"$1"* ]] || fail_with "not failed because of: $1"
  [[ $(member "$D/smoke.json" result) == failed && $(member "$D/smoke.json" why) == *"$1"* && -z $(member "$D/smoke.json" artifact_sha256) ]]
}

# A process of this very test with these words: others run beside it and have the same ones.
runs_here() { # <beginning or part of a command line>
  local file
  for file in $(grep -lsF "$BATS_TEST_TMPDIR" /proc/[0-9]*/environ); do
    if [[ $(tr '\0' ' ' <"${file%environ}cmdline" 2>/dev/null) == *"$1"* ]]; then return 0; fi
  done
  return 1
}
trainer_runs() { runs_here 'bash train.sh 1'; }
no_trainer() { ! trainer_runs; }

# A trainer as a smoke command. BEGIN sets n, the step that is done; SAVE writes step n into .t; SAY prints it.
readonly FROM='n=$(cat "$CELL_DIR/best.bin" 2>/dev/null || echo 0)' ANEW='n=0'
trainer() { # <begin> [say] [save] [last step]
  printf '%s; while [ "$n" -lt %s ]; do n=$((n + 1)); %s && mv "$CELL_DIR/.t" "$CELL_DIR/best.bin"; %s; sleep 0.1; done' \
    "$1" "${4-12}" "${3-echo "\$n" >"\$CELL_DIR/.t"}" "${2-echo "step \$n"}"
}
queue_is() { # <command> : one cell
  printf '# cells\n\nc1\t%s\r\n' "$1" >"$BOX/queue.tsv"
}
