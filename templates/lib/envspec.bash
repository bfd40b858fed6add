# lib/envspec.bash: which environment a cell ran in, as eight digits that differ when it differs (X9).
# needs: exit log hash run
# reads: PY D

# A sorted description: the interpreter, its version, each installed package with its version, and the GPU driver. Into REPLY.
# What cannot be asked is said so; a hanging interpreter is left after 60 s.
describe_environment() {
  local said run=() driver=none
  if command -v timeout >/dev/null 2>&1; then run=(timeout 60); fi
  said=$(${run[@]+"${run[@]}"} "$PY" -c 'import json, platform, sys
from importlib import metadata
names = sorted({"%s==%s" % (d.metadata["Name"], d.version) for d in metadata.distributions()})
print(json.dumps({"packages": names, "python": platform.python_version(), "where": sys.prefix}, sort_keys=True))' </dev/null 2>/dev/null) || said="no answer from PY=$PY"
  { IFS= read -r driver </proc/driver/nvidia/version; } 2>/dev/null || :
  REPLY="$said"$'\n'"driver $driver"$'\n'
}

# The digest into ENV_SPEC, the description into D/environment.txt. A run that goes on in another environment says so.
env_spec() {
  local REPLY text before=''
  [[ ! ${ENV_SPEC-} =~ ^[0-9a-f]{8}$ ]] || return 0
  describe_environment
  text=$REPLY
  ENV_SPEC=unknown
  hash_text "$text" && ENV_SPEC=${REPLY:0:8}
  before=''
  { IFS= read -r -d '' before <"$D/environment.txt"; } 2>/dev/null || :
  [[ $before != "$text" ]] || return 0
  [[ -z $before ]] || log "the environment is another one than this run began in: now $ENV_SPEC, see $D/environment.txt and events.tsv"
  event environment - - "$ENV_SPEC"
  { printf '%s' "$text" >"$D/environment.txt"; } 2>/dev/null || log "could not write $D/environment.txt"
}
