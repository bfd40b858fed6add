# lib/room.bash: bytes and inodes that are free, and whether a tier is really there.
# needs: exit log path proc

# The nearest folder above PATH (or PATH itself) that exists, into REPLY.
existing_parent() { # <path>
  REPLY=$1
  while [[ -n $REPLY && ! -e $REPLY ]]; do REPLY=${REPLY%/*}; done
  REPLY=${REPLY:-/}
}

# One df, bounded: a dead network mount must not hang us. Prints the last line.
df_line() { # <-k or -i> <path>
  local text
  text=$(within 20 df -P "$1" -- "$2" 2>/dev/null) || return "$EX_MISSING"
  printf '%s\n' "${text##*$'\n'}"
}

# Bytes and inodes that are free at each of the folders, in one look: ROOM_BYTES and ROOM_INODES, parallel to the words. An entry is
# empty where it is not known: no such call, or a file system that does not count inodes.
look_room() { # <folders that exist...>
  begin_look_room "$@"
  end_look_room "$@"
}
# The two halves of it: the look runs beside us, while something else is done.
begin_look_room() { # <folders...>    sets ROOM_FD for end_look_room
  exec {ROOM_FD}< <(exec stat -f -c '%a %S %d %c' -- "$@" 2>/dev/null)
}
end_look_room() { # <the same folders...>
  local blocks size left all i
  ROOM_BYTES=() ROOM_INODES=()
  while read -r blocks size left all; do
    [[ $blocks$size$left$all =~ ^[0-9]+$ ]] || break
    ROOM_BYTES+=($((blocks * size)))
    if ((all > 0)); then ROOM_INODES+=("$left"); else ROOM_INODES+=(''); fi
  done <&"$ROOM_FD"
  exec {ROOM_FD}<&-
  # No such stat: two calls of df for each.
  for ((i = ${#ROOM_BYTES[@]} + 1; i <= $#; i++)); do
    free_bytes "${!i}" || :
    ROOM_BYTES+=("$REPLY")
    free_inodes "${!i}" || :
    ROOM_INODES+=("$REPLY")
  done
}

# Free bytes of the file system that holds PATH, into REPLY; empty and 69 where it cannot be told.
free_bytes() { # <path>
  local line
  existing_parent "$1"
  line=$(df_line -k "$REPLY") || { REPLY= && return "$EX_MISSING"; }
  REPLY=
  [[ $line =~ \ ([0-9]+)\ +([0-9]+)\ +(-?[0-9]+)\ +([0-9]+|-)%?\ + ]] || return "$EX_MISSING"
  REPLY=$((BASH_REMATCH[3] * 1024))
}

# Free inodes, into REPLY; empty where the file system does not count them (btrfs, some FUSE): 0 of 0 is not full.
free_inodes() { # <path>    returns: 0, also where REPLY is empty; 69 where df failed
  local line
  existing_parent "$1"
  line=$(df_line -i "$REPLY") || { REPLY= && return "$EX_MISSING"; }
  REPLY=
  [[ $line =~ \ ([0-9]+)\ +([0-9]+)\ +([0-9]+)\ +([0-9]+|-)%?\ + ]] || return 0
  ((BASH_REMATCH[1] > 0)) || return 0
  REPLY=${BASH_REMATCH[3]}
}

# Why nothing can be written in FOLDER, or where it would be made, in words, into REPLY. To be asked where writing has failed: on
# some mounts the rights say no, and writing works.
write_fault() { # <folder>    returns: 0, or 1 where nothing speaks against it
  local dir line fields best=''
  existing_parent "$1"
  dir=$REPLY REPLY=''
  [[ ! -w $dir ]] || return 1
  REPLY="we have no right to write in $dir"
  dir=$(cd -P -- "$dir" 2>/dev/null && pwd) || return 0
  while read -ra fields; do
    line=${fields[4]-} line=${line//\\040/ }
    [[ ${dir%/}/ == "${line%/}"/* && ${#line} -ge ${#best} ]] || continue
    best=$line
    # The options of the mount, and in the last field those of its file system.
    if [[ ,${fields[5]-}, == *,ro,* || ,${fields[${#fields[@]} - 1]}, == *,ro,* ]]; then REPLY="$best is mounted read-only"; else REPLY="we have no right to write in $dir"; fi
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  return 0
}
# The words for a refusal: FAULT_WHY and FAULT_DO.
write_words() { # <folder> <what could not be done there> <tier>
  if write_fault "$1"; then
    FAULT_WHY="$2: $REPLY" FAULT_DO="mount the $3 tier for writing again (dmesg says why it is not), or mend its rights; then the same call"
  else
    FAULT_WHY=$2 FAULT_DO="look at the $3 tier: room, rights"
  fi
}

# The type of the file system that is mounted at PATH itself, into REPLY; 1 where PATH is no mount point. By the kernel's list,
# which costs no look at a dead mount; the last of several mounts at one place hides the others.
mount_type() { # <path>
  local line fields
  REPLY=''
  while IFS= read -r line; do
    read -ra fields <<<"$line"
    # The kernel writes a blank as \040.
    [[ ${fields[4]-} == "${1// /\\040}" && $line == *' - '* ]] || continue
    line=${line#* - }
    REPLY=${line%% *}
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  [[ -n $REPLY ]]
}
# What a type of file system is made of, into REPLY: network, local, or unknown (virtiofs, 9p: what the host has).
mount_kind() { # <type>
  case $1 in
    fuseblk | fuse.fuse-overlayfs | ext[234] | xfs | btrfs | bcachefs | zfs | f2fs | overlay | tmpfs | ramfs | vfat | ntfs3) REPLY=local ;;
    nfs | nfs4 | cifs | smb3 | ceph | lustre | gpfs | beegfs | glusterfs | moosefs | wekafs | panfs | afs | fuse | fuse.*) REPLY=network ;;
    *) REPLY=unknown ;;
  esac
}

# Is the tier at PATH there, by its profile's proof? Says why not into REPLY.
prove_tier() { # <path of the tier> <the profile's proof>    returns: 0 or 74
  local type
  REPLY=
  case $2 in
    mount | mount-network | mount-local)
      if ! mount_type "$1"; then
        REPLY="$1 is not a mount point: the storage is not attached, and files there would go to another disk"
      else
        type=$REPLY
        mount_kind "$type"
        case $2,$REPLY in
          mount-network,local) REPLY="$1 is a local disk ($type), not the storage of the network that is meant: it does not survive as that does" ;;
          mount-local,network) REPLY="$1 is storage of the network ($type), not the box's own disk that is meant" ;;
          *) REPLY= ;;
        esac
      fi
      ;;
    mount-parent) # a folder that a mount one above it brings along
      if ! mount_type "${1%/*}"; then
        REPLY="${1%/*} is not a mount point: the storage is not attached, and files in $1 would go to another disk"
      elif [[ ! -d $1 ]]; then
        REPLY="${1%/*} is mounted, and $1 is not in it"
      else REPLY=; fi
      ;;
    marker) [[ -s $1/.gpu-runbook-tier ]] || REPLY="$1/.gpu-runbook-tier is missing: the storage is not attached, or nobody has marked it yet" ;;
    none) [[ -d $1 ]] || mkdir -p -- "$1" 2>/dev/null || REPLY="$1 is not there and cannot be made" ;;
    *) REPLY="the proof '$2' is not known" ;;
  esac
  [[ -z $REPLY ]] || return "$EX_COPY"
}

# Is the durable tier there? If not, what is wrong, why and what to do are in TIER_SAID, three entries.
# shellcheck disable=SC2154 # bound in each script that calls it; others take this library for its other functions
durable_there() { # reads: DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF    returns: 0 or 74
  local REPLY tier=$DURABLE_TIER_PATH
  TIER_SAID=()
  [[ -n $DURABLE_DIR ]] || return 0
  # Then the tier is nowhere, and a folder that a person has named cannot lie in it.
  if unset_name "$tier"; then tier="its \$$REPLY is not set"; else expand_path tier; fi
  if [[ $DURABLE_DIR/ == "${tier%/}"/* ]]; then
    prove_tier "${tier%/}" "$DURABLE_PROOF" ||
      TIER_SAID=("the durable tier" "$REPLY" "attach the storage, or set DURABLE_DIR= (empty) to run pull-only")
  elif [[ ! -d $DURABLE_DIR ]]; then
    # Not the profile's place: then nothing proves it but that a person made the folder.
    TIER_SAID=("DURABLE_DIR=$DURABLE_DIR" "it is not the profile's tier ($tier) and is no folder" "make the folder on storage that survives, or unset DURABLE_DIR")
  fi
  ((${#TIER_SAID[@]} == 0)) || return "$EX_COPY"
}

# The durable tier, proven before the first byte goes to it. Refuses 74.
prove_durable() {
  durable_there || refuse "$EX_COPY" "${TIER_SAID[@]}"
}
