# lib/data.bash: declared data counted, and whether two paths share a disk.
# needs: room

# Files, bytes and empty files of a data path, following links. DATA_N DATA_BYTES DATA_EMPTY.
count_data() { # <path>
  local said
  DATA_N='' DATA_BYTES='' DATA_EMPTY=''
  # One line a file, whatever its name holds.
  said=$(find -L "$1" -type f -exec sh -c 'for f; do [ -s "$f" ] && echo 1 || echo 0; done' sh {} + 2>/dev/null |
    awk '{n++; if ($1 == 0) e++} END {printf "%d %d", n, e}') || return 1
  DATA_N=${said% *} DATA_EMPTY=${said#* }
  said=$(du -skL -- "$1" 2>/dev/null) || return 1
  DATA_BYTES=$((${said%%[[:space:]]*} * 1024))
}

# Do two paths lie on one file system? Where that cannot be told, yes: the careful answer for room.
same_disk() { # <path> <path>
  local one two
  existing_parent "$1"
  one=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  existing_parent "$2"
  two=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  [[ $one == "$two" ]]
}
