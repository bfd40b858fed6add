# lib/variant.bash: is this box the one that was compiled for? What was left out may not be here, what was not must be.
# needs: exit path room checks
# reads: PROFILE JOB TIERS_IN TIERS_OUT DATA_DIR DURABLE_DIR SCRATCH HF_HOME

# Does one of our folders lie on this path?
path_is_used() { # <path>
  local one
  for one in "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH" "$HF_HOME"; do
    [[ -z $one || $one/ != "${1%/}"/* ]] || return 0
  done
  return 1
}

# The command that compiles for the box as it is, into REPLY.
compile_words() { # <tier to leave out or empty> <tier to take in or empty>
  local entry name left=$1
  for entry in ${TIERS_OUT[@]+"${TIERS_OUT[@]}"}; do
    name=${entry%% *}
    [[ $name == "$2" ]] || left+=${left:+,}$name
  done
  REPLY="make profile=$PROFILE job=$JOB${left:+ without=$left}"
}

# A tier of this variant: there, or a refusal where a folder of ours lies on it.
check_tier_in() { # <name> <proof> <role> <path>
  local REPLY why path=$4
  # The name of a storage that the person may not have: no refusal of ours, only a line.
  if ! (expand_path path) 2>/dev/null; then
    row FAIL "tier $1" "$4: a name in this path is not set" "$EX_CONFIG" "echo $4" "export it, then look again"
    return 0
  fi
  expand_path path
  path=${path%/}
  if prove_tier "$path" "$2"; then
    row ok "tier $1" "$path is there, by its proof ($2)"
  elif ! path_is_used "$path"; then
    row note "tier $1" "$REPLY; nothing of this run lies there"
  else
    why=$REPLY
    if [[ $3 == optional ]]; then
      compile_words "$1" ''
      row FAIL "tier $1" "$why; this box has not what it was compiled for" "$EX_COPY" "grep $path /proc/self/mountinfo" "attach it, or compile for a box without it: $REPLY"
    else row FAIL "tier $1" "$why; every box of this platform has it" "$EX_COPY" "grep $path /proc/self/mountinfo" "look at the console, and do not begin"; fi
  fi
}

# Where a tier shows that was left out, into REPLY; 1 where it does not, 2 where it cannot be told.
find_tier_out() { # <proof> <path>
  local line fields folder path=$2
  if [[ $path =~ ^(/.+)/\$[A-Za-z_][A-Za-z0-9_]*$ ]]; then
    folder=${BASH_REMATCH[1]}
    # Under a name that only a person with such a storage knows: any mount in that folder.
    while IFS= read -r line; do
      read -ra fields <<<"$line"
      [[ ${fields[4]-} == "$folder"/* && ${fields[4]#"$folder"/} != */* ]] || continue
      REPLY=${fields[4]}
      return 0
    done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
    return 1
  fi
  (expand_path path) 2>/dev/null || return 1
  expand_path path
  path=${path%/}
  [[ $1 != mount-parent ]] || path=${path%/*}
  if mount_type "$path"; then
    mount_kind "$REPLY"
    case $1,$REPLY in
      mount-network,local | mount-local,network) return 1 ;;
      mount-network,unknown | mount-local,unknown) REPLY=$path && return 2 ;;
    esac
  elif [[ $1 != marker || ! -s $path/.gpu-runbook-tier ]]; then
    return 1
  fi
  REPLY=$path
}

# A tier that was left out: the survival proof was done for a box without it, and the runbook says nothing of it.
check_tier_out() { # <name> <proof> <role> <path>
  local REPLY='' rc=0 found
  find_tier_out "$2" "$4" || rc=$?
  found=$REPLY
  case $rc,$3 in
    0,kept)
      compile_words '' "$1"
      row FAIL "tier $1" "$found is mounted, but this was compiled for a box without it: what it keeps and costs is not in this runbook" "$EX_GATE" "grep $found /proc/self/mountinfo" "compile with it: $REPLY; or take it off the box"
      ;;
    0,*) row note "tier $1" "$found is mounted; it was left out, and nothing of this run lies there" ;;
    2,*) row unknown "tier $1" "$found is mounted, and its file system does not tell whether it is the storage that was left out: look at the console" ;;
    *) row ok "tier $1" "left out, and not here" ;;
  esac
}

check_variant() {
  local entry name proof role path
  for entry in ${TIERS_IN[@]+"${TIERS_IN[@]}"}; do
    read -r name proof role path <<<"$entry"
    check_tier_in "$name" "$proof" "$role" "$path"
  done
  for entry in ${TIERS_OUT[@]+"${TIERS_OUT[@]}"}; do
    read -r name proof role path <<<"$entry"
    check_tier_out "$name" "$proof" "$role" "$path"
  done
}
