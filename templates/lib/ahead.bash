# lib/ahead.bash: a run_one that run_queue has begun ahead of time: told of its cell, it looks, and waits for the word to go.
# needs: exit file limits cell
# reads: PROXY_HOOK NEED_GPUS DATA_PATHS

# Which cell, and what run_queue knows of it already. Where nothing comes, run_queue is gone or has none left.
hear_cell() { # sets CELL and what else is handed over    returns: 1 where nothing comes
  # By bytes: in another locale a command's last byte, should it begin a character, takes the end of the line with it.
  local line n LC_ALL=C
  local -a said=()
  # No command of ours is to read what is meant for us.
  exec {TOLD_FD}<&0 </dev/null
  for n in 1 2 3 4 5 6; do
    IFS= read -r -u "$TOLD_FD" line && [[ $line == =* ]] || return 1
    said+=("${line#=}")
  done
  CELL=${said[0]} QUEUE_CELL=${said[0]} QUEUE_AT=${said[1]} QUEUE_SHA=${said[2]} QUEUE_COMMAND=${said[5]}
  # Which environment this is comes with the word to go; nobody is to ask for it before.
  export OMP_NUM_THREADS=${said[3]} ENV_SPEC=00000000
  [[ -z ${said[4]} ]] || export CUDA_VISIBLE_DEVICES=${said[4]} CUDA_DEVICE_ORDER=PCI_BUS_ID
}

# While another cell runs, without a word. Should there be one to say, it is found again and said when it is our turn: by us, or,
# where it refuses the cell, by a run_one that is begun then. GPUs, data and a proxy are not looked at while others use them.
prepare_ahead() { # sets PREPARED_AT
  PREPARED_AT=-1 STAGE=''
  [[ -z $PROXY_HOOK ]] && ((NEED_GPUS == 0 && ${#DATA_PATHS[@]} == 0)) || return 0
  exec {SAID_FD}>&2 2>/dev/null
  trap 'drop_room; exit "$EX_AGAIN"' EXIT
  LOGGED=0
  prepare
  # The probes too: what is behind the word to go has less to flush.
  if [[ $CELL_NEXT == run ]] && flush "${PROBES[@]}" && read_probes; then PROBED=1; fi
  trap drop_room EXIT
  exec 2>&"$SAID_FD" {SAID_FD}>&-
  ((LOGGED != 0)) || PREPARED_AT=$SECONDS
}

await_go() { # returns: 1 where the word does not come
  local line
  IFS= read -r -u "$TOLD_FD" line && [[ $line == 'go '* ]] || return 1
  ENV_SPEC=${line#go }
  # Run_queue had no cell when it would have asked.
  [[ -n $ENV_SPEC ]] || PREPARED_AT=-1
  exec {TOLD_FD}<&-
}
