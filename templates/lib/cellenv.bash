# lib/cellenv.bash: what a cell finds in its environment, and what it must not find there.
# needs: exit log file room probe checkpoint
# reads: S HF_HOME PY MIRRORS SECRETS CRED_FILE PROXY_HOOK RUN_ID CELL CELL_INDEX ATTEMPT CELL_RESUME

# Secrets into SECRET_NAMES and SECRET_VALUES: from the file's NAME=value lines, for the job's names only.
# The file is read, never sourced; a value is printed nowhere.
read_secrets() { # returns: 0, or refuses 77, 78
  local line name mode file=$CRED_FILE
  SECRET_NAMES=() SECRET_VALUES=()
  ((${#SECRETS[@]} > 0)) || return 0
  expand_path file
  if [[ -n $file && -e $file ]]; then
    [[ -f $file && -r $file ]] || refuse "$EX_GATE" "CRED_FILE=$file" "it cannot be read" "make it a file of yours with mode 600"
    mode=$(stat -L -c %a -- "$file" 2>/dev/null) || mode=unknown
    [[ $mode =~ 00$ ]] || refuse "$EX_GATE" "CRED_FILE=$file" "others may read it (mode $mode)" "chmod 600 $file"
    while IFS= read -r line || [[ -n $line ]]; do
      line=${line%$'\r'}
      [[ $line =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$ ]] || continue
      take_secret "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}"
    done <"$file"
  fi
  for name in "${SECRETS[@]}"; do
    [[ " ${SECRET_NAMES[*]-} " != *" $name "* ]] || continue
    if [[ -n ${!name-} ]]; then
      SECRET_NAMES+=("$name") SECRET_VALUES+=("${!name}")
    elif [[ -n $file ]]; then
      refuse "$EX_GATE" "secret $name" "it stands neither in CRED_FILE=$file nor in the environment" "bring it (P1.6 in the runbook; push.sh --secrets where there is ssh), or set CRED_FILE= (empty) to go without"
    else
      log "warning: secret $name is not set, and CRED_FILE is empty"
    fi
  done
}
take_secret() { # <name> <value>
  local name value=$2
  for name in "${SECRETS[@]}"; do
    [[ $name == "$1" ]] || continue
    case $value in
      \"*\" | \'*\') value=${value:1:${#value}-2} ;;
    esac
    SECRET_NAMES+=("$name") SECRET_VALUES+=("$value")
  done
}

# Does a log hold the value of a secret? Names it, never the value; the value is on no command line either.
find_leaks() { # <file>    into LEAKS
  local i
  LEAKS=''
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do
    # A very short value would be found everywhere.
    ((${#SECRET_VALUES[i]} >= 6)) || continue
    if printf '%s\n' "${SECRET_VALUES[i]}" | grep -qFf - -- "$1" 2>/dev/null; then LEAKS+=" ${SECRET_NAMES[i]}"; fi
  done
  LEAKS=${LEAKS# }
}

# The proxy: an address is exported, a file is sourced. Strict mode is lifted around the file only, for it is not ours;
# then its effect is looked at. To be called in the shell that becomes the cell.
load_proxy() { # returns: 0, or 77 with the reason in REPLY
  REPLY=''
  case $PROXY_HOOK in
    '') return 0 ;;
    http://* | https://*)
      export http_proxy=$PROXY_HOOK https_proxy=$PROXY_HOOK HTTP_PROXY=$PROXY_HOOK HTTPS_PROXY=$PROXY_HOOK
      export no_proxy=${no_proxy:-localhost,127.0.0.1} NO_PROXY=${NO_PROXY:-localhost,127.0.0.1}
      return 0
      ;;
  esac
  local file=$PROXY_HOOK flags=$- rc=0
  expand_path file
  [[ -f $file && -r $file ]] || { REPLY="$file is not there" && return "$EX_GATE"; }
  set +euo pipefail
  # shellcheck source=/dev/null # the platform's own file
  source "$file" >/dev/null 2>&1 </dev/null
  rc=$?
  set -uo pipefail
  [[ $flags != *e* ]] || set -e
  IFS=$' \t\n'
  if [[ -z ${http_proxy-}${https_proxy-}${HTTP_PROXY-}${HTTPS_PROXY-}${all_proxy-}${ALL_PROXY-} ]]; then
    REPLY="$file ended with $rc and set no proxy variable"
    return "$EX_GATE"
  fi
  # Set is not exported: what the file only assigned is to reach the cell too.
  for REPLY in http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY; do
    [[ -z ${!REPLY-} ]] || export "${REPLY?}"
  done
  REPLY=''
}

# The hook is tried before anything is claimed: what it does to a shell, it does to one that is thrown away.
prove_proxy() { # refuses 77
  local why rc=0
  [[ -n $PROXY_HOOK && $PROXY_HOOK != http://* && $PROXY_HOOK != https://* ]] || return 0
  why=$(
    set +e
    trap 'printf "%s" "${REPLY:-the file ended the shell that sourced it}"' EXIT
    load_proxy
    rc=$?
    ((rc != 0)) || { trap - EXIT && printf ok; }
    exit "$rc"
  ) || rc=$?
  [[ $why == ok ]] || refuse "$EX_GATE" "PROXY_HOOK=$PROXY_HOOK" "${why:-status $rc}" "mend it, or set PROXY_HOOK= (empty) to go without"
}

# Caches and temporary files on this run's scratch, so that nothing fills the small system disk. What a person set stays.
cache_env() {
  local c=$S/cache
  export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$c} TORCH_HOME=${TORCH_HOME:-$c/torch} TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$c/torch_extensions}
  export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$c/inductor} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$c/triton}
  export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$c/cuda} NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$c/numba} MPLCONFIGDIR=${MPLCONFIGDIR:-$c/matplotlib}
  export WANDB_DIR=${WANDB_DIR:-$CELL_DIR} WANDB_CACHE_DIR=${WANDB_CACHE_DIR:-$c/wandb} WANDB_DATA_DIR=${WANDB_DATA_DIR:-$c/wandb-data}
  export WANDB_ARTIFACT_DIR=${WANDB_ARTIFACT_DIR:-$c/wandb-artifacts} WANDB_CONFIG_DIR=${WANDB_CONFIG_DIR:-$c/wandb-config}
  export PIP_CACHE_DIR=${PIP_CACHE_DIR:-$c/pip} KERAS_HOME=${KERAS_HOME:-$c/keras} TFHUB_CACHE_DIR=${TFHUB_CACHE_DIR:-$c/tfhub}
  # Byte code beside the sources would be an output that cells share.
  export PYTHONPYCACHEPREFIX=${PYTHONPYCACHEPREFIX:-$c/pycache}
  if [[ -n $HF_HOME ]]; then
    export HF_HOME
    export HF_HUB_CACHE=${HF_HUB_CACHE:-$HF_HOME/hub} HF_DATASETS_CACHE=${HF_DATASETS_CACHE:-$HF_HOME/datasets}
  else
    # None: the library's own default, which is below XDG_CACHE_HOME and so on scratch, not in the home folder.
    unset HF_HOME
  fi
  # Short on purpose: sockets of worker processes lie in it, and their whole path has about 100 characters.
  export TMPDIR=$S/t/$CELL_INDEX
  export TMP=$TMPDIR TEMP=$TMPDIR
  export SCRATCH=$S
}

# By this mark we know scratch as this run's own, and only then is it ever emptied.
mark_scratch() {
  [[ -s $S/.gpu-runbook-scratch ]] || put_text "$S/.gpu-runbook-scratch" "$RUN_ID"$'\n'
}

# How many threads numeric libraries may start, where nobody has said it: what this box lets us use, never all it has.
thread_env() {
  if [[ -z ${OMP_NUM_THREADS-} ]]; then
    probe_cpus
    export OMP_NUM_THREADS=$CPUS
  fi
  export OMP_NUM_THREADS MKL_NUM_THREADS=${MKL_NUM_THREADS:-$OMP_NUM_THREADS} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-$OMP_NUM_THREADS}
  export NUMEXPR_NUM_THREADS=${NUMEXPR_NUM_THREADS:-$OMP_NUM_THREADS} NUMEXPR_MAX_THREADS=${NUMEXPR_MAX_THREADS:-$OMP_NUM_THREADS}
}

# All of it. To be called in the shell that becomes the cell.
cell_env() { # returns: 0, or 77 with the reason in REPLY
  local one i
  unset OVERRIDES_SAID HASH_TOOL ENV_SPEC QUEUE_AT QUEUE_CELL QUEUE_COMMAND QUEUE_SHA QUEUE_PID
  export CELL_NAME=$CELL CELL_INDEX CELL_DIR CELL_ATTEMPT=$ATTEMPT CELL_RESUME RUN_ID PY
  export PYTHONUNBUFFERED=${PYTHONUNBUFFERED-1}
  unset CELL_CHECKPOINT
  # Only where the job says what a complete one is; else the trainer loads the latest that it can read.
  if [[ -n ${CKPT_PATTERN-} && $CELL_RESUME == 1 ]]; then
    choose_checkpoint
    export CELL_CHECKPOINT
  fi
  # By this mark the cell's processes are found again, wherever they went.
  export GPU_RUNBOOK_CELL=$RUN_ID/$CELL/$ATTEMPT
  for one in ${MIRRORS[@]+"${MIRRORS[@]}"}; do
    # Where a person set the variable, theirs counts.
    i=${one%%=*}
    [[ -n ${!i-} ]] || export "${one?}"
  done
  cache_env
  thread_env
  # The monitor's numbering for CUDA too. A value that a scheduler or a person gave stays, with its own order.
  [[ -n ${CUDA_VISIBLE_DEVICES-} ]] || export CUDA_DEVICE_ORDER=PCI_BUS_ID
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do export "${SECRET_NAMES[i]}=${SECRET_VALUES[i]}"; done
  load_proxy
}

# No descriptor of ours goes to the cell: not a lock, not a pipe.
close_descriptors() {
  local fd path
  for path in "/proc/$BASHPID/fd"/*; do
    fd=${path##*/}
    [[ $fd =~ ^[0-9]+$ ]] || continue
    ((fd <= 2)) || { exec {fd}>&-; } 2>/dev/null || :
  done
}
