# lib/envcheck.bash: is the environment the one that the job means? (X9) For preflight: once for each start, not for each cell.
# needs: exit log envspec cellenv probe
# Three tiers: it imports; its kernels run and say what is expected; what the documentation says to type works.
# reads: CODE_DIR PY S ENV_IMPORTS ENV_TIERS ENV_COMMANDS ENV_EXPECTS ENV_TIMEOUT_S, and the function row of lib checks

readonly ENV_TIMEOUT_S=300 # the first import from a network disk may take minutes

check_environment() {
  local REPLY i
  ((${#ENV_IMPORTS[@]} + ${#ENV_COMMANDS[@]} > 0)) || return 0
  if [[ ! -d $CODE_DIR ]]; then
    row unknown environment "not looked at: $CODE_DIR is not there yet"
    return 0
  fi
  # Preflight's end takes it along, however that comes.
  ENV_WORK=$(mktemp -d /tmp/gpu-runbook.XXXXXX) || ENV_WORK=''
  if [[ -z $ENV_WORK ]] || ! mkdir -p "$ENV_WORK/t/0"; then
    row FAIL environment "no folder for trials can be made in /tmp" "$EX_NOROOM" "mktemp -d /tmp/gpu-runbook.XXXXXX" "look at its room and rights"
    return 0
  fi
  check_imports "$ENV_WORK"
  for ((i = 0; i < ${#ENV_COMMANDS[@]}; i++)); do
    check_witness "$ENV_WORK" "$i"
  done
  rm -rf -- "${ENV_WORK:?}"
  # Eight digits in each cell's log name what was looked at here.
  describe_environment
  hash_text "$REPLY" && row note environment "spec ${REPLY:0:8}, as the cells' logs will name it"
}

# The words as a cell would run them: code directory, proxy, mirrors, interpreter; caches and temporary files in a folder that
# goes. All they print is the answer.
as_a_cell() { # <folder> <words...>    prints; returns: their status, 124 over time
  local CELL=preflight CELL_INDEX=0 ATTEMPT=1 CELL_RESUME=0 RUN_ID=none CELL_DIR=$1 S=$1 run=()
  local CKPT_PATTERN='' CKPT_MARKER='' CKPT_BYTES=0
  local -a SECRET_NAMES=() SECRET_VALUES=() CKPT_FILES=()
  shift
  if command -v timeout >/dev/null 2>&1; then run=(timeout "$ENV_TIMEOUT_S"); fi
  (
    cell_env || { printf '%s\n' "$REPLY" && exit "$EX_GATE"; }
    unset GPU_RUNBOOK_CELL
    cd -- "$CODE_DIR" || exit
    exec ${run[@]+"${run[@]}"} "$@"
  ) </dev/null 2>&1
}

# Tier 1: each package that the job names is imported, by the job's interpreter, all in one process.
check_imports() { # <folder>
  local said rc=0
  ((${#ENV_IMPORTS[@]} > 0)) || return 0
  said=$(as_a_cell "$1" "$PY" -c 'import importlib, sys
bad = []
said = []
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        said.append((name + " " + str(getattr(module, "__version__", ""))).strip())
    except BaseException as why:
        bad.append("%s: %s: %s" % (name, type(why).__name__, str(why).split("\n")[0]))
print("\n" + ("missing " + "; ".join(bad) if bad else "imports " + ", ".join(said)))' "${ENV_IMPORTS[@]}") || rc=$?
  said=${said##*$'\n'}
  if ((rc == 0)) && [[ $said == 'imports '* ]]; then
    row ok 'env imports' "${said#imports }"
  else
    row FAIL 'env imports' "${said#missing } (status $rc)" "$EX_GATE" "$PY -c 'import …'" "install it into the environment of PY=$PY, or set PY to the right one"
  fi
}

# Tiers 2 and 3: the command ends with 0, and a line of what it prints matches. A check that cannot be made has failed.
check_witness() { # <folder> <index>
  local said rc=0 match='' last=nothing what=${ENV_TIERS[$2]} command=${ENV_COMMANDS[$2]} expect=${ENV_EXPECTS[$2]} line
  said=$(as_a_cell "$1" "$BASH" -c "$command" | tail -c 65536 | tr -d '\000') || rc=$?
  while IFS= read -r line; do
    line=${line%$'\r'}
    [[ -z $line ]] || last=$line
    if [[ -z $match && $line =~ $expect ]] 2>/dev/null; then match="said: $line"; fi
  done <<<"$said"
  if ((rc == 0)) && [[ -n $match ]]; then
    row ok "env $what" "$match"
    return 0
  fi
  case $rc in
    0) said="no line of its answer matches $expect; the last one: $last" ;;
    124) said="no end after $ENV_TIMEOUT_S s" ;;
    *) said="status $rc; its last line: $last" ;;
  esac
  line='mend the environment, or the documentation where it is wrong'
  [[ $what != kernel ]] || line='device, driver and packages do not fit: compare their versions, or take an image that fits'
  row FAIL "env $what" "$said" "$EX_GATE" "$command" "$line"
}
