# smoke.bash: what the tests of smoke share. `load smoke` behind `load formal`.
# shellcheck disable=SC2154 # helper and formal set what is used here

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
failed_because() { # <words>
  [[ $status -eq 1 && $stderr == *"smoke failed: "*"$1"* ]] || fail_with "not failed because of: $1"
  [[ $(member "$D/smoke.json" result) == failed && $(member "$D/smoke.json" why) == *"$1"* && -z $(member "$D/smoke.json" artifact_sha256) ]]
}
