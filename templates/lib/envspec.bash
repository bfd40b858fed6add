# lib/envspec.bash: which environment a cell ran in, as eight digits that differ when it differs (X9).
# needs: exit log file hash hashes run
# reads: PY D

# A sorted description: the interpreter, its version, each installed package with its version, and the GPU driver. Into REPLY;
# into ENV_FOLDERS where the interpreter looks for packages. What cannot be asked is said so; a hanging interpreter is left
# after 60 s.
describe_environment() {
  local said=''
  [[ -n ${DESCRIBE_FD-} ]] || begin_describing
  IFS= read -r -d '' said <&"$DESCRIBE_FD" || :
  exec {DESCRIBE_FD}<&-
  DESCRIBE_FD=''
  [[ $said == *$'\n' ]] || said="no answer from PY=$PY"
  said=${said%$'\n'}
  ENV_FOLDERS=''
  # shellcheck disable=SC2034 # preflight has no use for them
  [[ $said != *$'\n'* ]] || ENV_FOLDERS=${said#*$'\n'}
  gpu_driver
  REPLY="${said%%$'\n'*}"$'\n'"driver $REPLY"$'\n'
}
# The interpreter is asked beside us, while something else is done.
begin_describing() { # sets DESCRIBE_FD
  local run=()
  if command -v timeout >/dev/null 2>&1; then run=(timeout 60); fi
  # By the names of the folders that installers write: to read every package's metadata takes seconds on a network disk.
  exec {DESCRIBE_FD}< <(said=$(${run[@]+"${run[@]}"} "$PY" -c 'import json, os, sys
paths = [p for p in sys.path if p.startswith("/")]
found = {e.rpartition(".")[0] for p in paths if os.path.isdir(p) for e in os.listdir(p) if e.endswith((".dist-info", ".egg-info"))}
version = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps({"packages": sorted(found), "python": version, "where": sys.prefix}, sort_keys=True))
print("\n".join(paths))' </dev/null 2>/dev/null) && printf '%s\n' "$said")
}
gpu_driver() { # into REPLY
  REPLY=none
  { IFS= read -r REPLY </proc/driver/nvidia/version; } 2>/dev/null || :
}

# By what an environment that was described before is known again, without its interpreter: the driver, what decides where
# packages are looked for, and how the interpreter and those folders lie there (a package that comes or goes changes its
# folder). Into REPLY; empty where it cannot be told: a script in the interpreter's place may start another one each time.
environment_key() { # <folders, a line each>
  begin_key "$1"
  end_key
}
# The two halves of it: the look runs beside us, while something else is done.
begin_key() { # <folders>    sets KEY_FD KEY_HEAD KEY_PATHS for end_key
  local REPLY path head=''
  KEY_FD=''
  path=$(type -P "$PY") && [[ -n $1 ]] || return 0
  { IFS= read -r -n 2 head <"$path"; } 2>/dev/null || :
  [[ $head != '#!' ]] || return 0
  gpu_driver
  KEY_HEAD="$REPLY|$PY|${PYTHONPATH-}|${PYTHONHOME-}|${PYTHONUSERBASE-}|${PYTHONNOUSERSITE-}"
  KEY_PATHS=("$path" "${path%/*}/../pyvenv.cfg")
  while IFS= read -r path; do KEY_PATHS+=("$path"); done <<<"$1"
  begin_stat "${KEY_PATHS[@]}"
  KEY_FD=$STAT_FD
}
end_key() { # into REPLY
  local path
  REPLY=''
  [[ -n $KEY_FD ]] || return 0
  STAT_FD=$KEY_FD KEY_FD=''
  end_stat
  REPLY=$KEY_HEAD
  for path in "${KEY_PATHS[@]}"; do REPLY+=$'\n'"$path"$'\t'"${STAT_OF[$path]-}"; done
}

# The digest of the description that the run has, if that is still true of this environment. Into REPLY.
known_environment() { # returns: 0, or 1: ask the interpreter
  [[ -n ${KNOWN_SPEC-} ]] || begin_known || return 1
  end_key
  [[ -n $REPLY && $REPLY == "$KNOWN_KEY" ]] && REPLY=$KNOWN_SPEC
}
begin_known() { # sets KNOWN_SPEC KNOWN_KEY    returns: 1 where the run has none
  local REPLY path where=''
  read_text "$D/.environment.key" && [[ $REPLY =~ ^[0-9a-f]{8}$'\n' && -s $D/environment.txt ]] || return 1
  KNOWN_SPEC=${REPLY%%$'\n'*} KNOWN_KEY=${REPLY#*$'\n'}
  # The folders are its lines behind the first three: the settings, the interpreter, its pyvenv.cfg.
  while IFS= read -r path; do where+=${path%$'\t'*}$'\n'; done <<<"$KNOWN_KEY"
  where=${where#*$'\n'*$'\n'*$'\n'}
  begin_key "${where%$'\n'}"
}

# The digest into ENV_SPEC, the description into D/environment.txt. A run that goes on in another environment says so.
env_spec() {
  local REPLY text key='' before=''
  [[ ! ${ENV_SPEC-} =~ ^[0-9a-f]{8}$ ]] || return 0
  if known_environment; then
    ENV_SPEC=$REPLY
    return 0
  fi
  # Wherever this is cut off, no key stands beside a text that is not its own: none first, the new one last.
  put_text "$D/.environment.key" '' || :
  describe_environment
  text=$REPLY
  environment_key "$ENV_FOLDERS"
  key=$REPLY
  ENV_SPEC=unknown
  hash_text "$text" && ENV_SPEC=${REPLY:0:8}
  ! read_text "$D/environment.txt" || before=$REPLY
  if [[ $before != "$text" ]]; then
    [[ -z $before ]] || log "the environment is another one than this run began in: now $ENV_SPEC, see $D/environment.txt and events.tsv"
    event environment - - "$ENV_SPEC"
    put_text "$D/environment.txt" "$text" || { log "could not write $D/environment.txt" && return 0; }
  fi
  [[ -z $key || $ENV_SPEC == unknown ]] || put_text "$D/.environment.key" "$ENV_SPEC"$'\n'"$key" || :
}
