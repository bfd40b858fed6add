# lib/limits.bash: what a box refuses a cell: memory kills, room, GPUs.
# needs: exit log file room probe

# How often the kernel has killed in our cgroup for want of memory, into REPLY; empty = cannot be told.
oom_count() {
  local root=${FAKE_ROOT-}/sys/fs/cgroup path='' file name value rest
  REPLY=''
  if cgroup_path memory; then
    # Version 1. In a container the path may be the host's: then the mount's own root is ours.
    for path in "$REPLY" ''; do
      file=$root/memory${path%/}/memory.oom_control
      [[ ! -r $file ]] || break
    done
  elif cgroup_path ''; then
    for path in "$REPLY" ''; do
      file=$root${path%/}/memory.events
      [[ ! -r $file ]] || break
    done
  fi
  REPLY=''
  [[ -n ${file-} && -r $file ]] || return 0
  while read -r name value rest; do
    [[ $name != oom_kill || ! $value =~ ^[0-9]+$ ]] || REPLY=$value
  done <"$file"
}

# The look at the room of both tiers, which gate_cell_room takes up.
begin_room() { # reads: D B    sets ROOM_TIERS
  ROOM_TIERS=("$D")
  [[ $B == "$D" ]] || ROOM_TIERS+=("$B")
  begin_look_room "${ROOM_TIERS[@]}"
}

# The room that one cell needs must be there before it starts, and a tier that cannot be written and flushed is no room either:
# df says nothing of quotas and dead mounts. What is written is room kept for the cell's records (keep_room). The flush is the
# claim's own. Refuses 73; sets PROBES.
gate_cell_room() { # reads: D B NEED_DISK_BYTES NEED_FILES
  local i
  end_look_room "${ROOM_TIERS[@]}"
  for ((i = 0; i < ${#ROOM_TIERS[@]}; i++)); do
    [[ -z ${ROOM_BYTES[i]} || ${ROOM_BYTES[i]} -ge $NEED_DISK_BYTES ]] ||
      refuse "$EX_NOROOM" "${ROOM_TIERS[i]}" "${ROOM_BYTES[i]} bytes are free, one cell needs $NEED_DISK_BYTES" "free room there or expand the disk; nothing is shrunk or removed for it"
    [[ -z ${ROOM_INODES[i]} || ${ROOM_INODES[i]} -ge $NEED_FILES ]] ||
      refuse "$EX_NOROOM" "${ROOM_TIERS[i]}" "${ROOM_INODES[i]} inodes are free, one cell needs $NEED_FILES" "remove small files there, or take a disk with more inodes"
  done
  write_probes
}

PROBES=() PROBED=0
# A probe for each tier. Each lies where the cell's record will be written next.
write_probes() {
  local file
  PROBED=0 PROBES=("$D/state/.$CELL.json.$$.tmp")
  [[ $B == "$D" ]] || PROBES+=("$B/records/.$CELL.json.$$.tmp")
  printf -v PROBE_TEXT '%0*d' "$PROBE_BYTES" 0
  for file in "${PROBES[@]}"; do
    { printf '%s' "$PROBE_TEXT" >"$file"; } 2>/dev/null || refuse_probe "$file"
  done
}
# More than a record has, and two blocks of most disks.
readonly PROBE_BYTES=8192

# Behind the flush: do they read back?
read_probes() { # returns: 0, or 1 with the probe's name in REPLY
  local file
  for file in "${PROBES[@]}"; do
    read_text "$file" && [[ $REPLY == "$PROBE_TEXT" ]] || { REPLY=$file && return 1; }
  done
}
refuse_probe() { # <probe>
  drop_room
  refuse "$EX_NOROOM" "${1%/*}" "a probe file cannot be written, flushed and read back" "look at the disk: full, read-only, or gone"
}

# What was made for a cell that does not begin, or that needs it no more.
drop_room() {
  ((${#PROBES[@]} == 0)) || rm -f -- "${PROBES[@]}" 2>/dev/null || :
  [[ ! -d ${STAGE:-/dev/null} ]] || rmdir -- "$STAGE" 2>/dev/null || :
}

# Room for the next record, under the very name that it will be written by: a disk that the cell fills has none left else.
keep_room() { # reads: D CELL
  [[ ! -s $D/state/.$CELL.json.$$.tmp ]] || return 0
  printf '%0*d' "$PROBE_BYTES" 0 2>/dev/null >"$D/state/.$CELL.json.$$.tmp" || :
}

# The GPUs that the job needs are there. Sets GPU_SAID ("name, driver") for the record.
gate_gpus() { # reads: NEED_GPUS
  local line fields visible
  GPU_SAID=''
  ((NEED_GPUS > 0)) || return 0
  probe_gpus
  if [[ $GPU_STATE != ok ]]; then
    [[ -e /dev/kfd || -e /dev/accel ]] && return 0 # another maker's: no nvidia-smi to ask
    refuse "$EX_GATE" "GPUs" "a cell needs $NEED_GPUS and none is seen here: $GPU_WHY" "look with nvidia-smi; restart the box, or rent one with GPUs"
  fi
  ((GPU_COUNT >= NEED_GPUS)) || refuse "$EX_GATE" "GPUs" "a cell needs $NEED_GPUS, here are $GPU_COUNT" "rent a box with enough of them"
  if [[ -n ${CUDA_VISIBLE_DEVICES-} ]]; then
    IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
    ((${#visible[@]} >= NEED_GPUS)) || refuse "$EX_GATE" "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" "a cell needs $NEED_GPUS GPUs" "name as many, or unset it"
  fi
  line=${GPU_LINES[0]}
  if [[ ${visible[0]-} =~ ^[0-9]+$ && -n ${GPU_LINES[${visible[0]}]-} ]]; then line=${GPU_LINES[${visible[0]}]}; fi
  IFS=, read -ra fields <<<"$line"
  GPU_SAID="${fields[1]# },${fields[2]}"
  note_busy_gpus ${visible[@]+"${visible[@]}"}
}

# A GPU that is not free has another cell on it, or somebody else. It is said, not refused: two cells may share one.
note_busy_gpus() { # <numbers or UUIDs of the cell's GPUs; none: all are its own>
  local line fields
  for line in "${GPU_LINES[@]}"; do
    IFS=, read -ra fields <<<"${line// /}"
    (($# == 0)) || [[ " $* " == *" ${fields[0]} "* ]] || continue
    [[ ! ${fields[4]-} =~ ^[0-9]+$ || ${fields[4]} -le $GPU_FREE_MIB ]] || log "GPU ${fields[0]} is not free: ${fields[4]} MiB are in use before cell $CELL begins"
  done
}
