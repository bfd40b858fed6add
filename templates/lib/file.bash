# lib/file.bash: small files that are whole or not there, also after a power cut.
# needs: exit log

# Flush files and folders to their disks. An old sync takes no names and flushes everything: slower, as safe. But where it
# takes names, a file that it cannot flush is not on the disk (a quota on NFS says so here first, and says it once only),
# and a sync of everything would hide that. Some mounts cannot flush a folder; that alone is no failure.
flush() { # <path...>    returns: 0 or 74
  local path said folders=()
  # A command line has room for so many.
  while (($# > 500)); do
    flush "${@:1:500}" || return
    shift 500
  done
  said=$(LC_ALL=C exec sync -- "$@" 2>&1) && return 0
  if sync -- "$BASH" 2>/dev/null; then
    for path in "$@"; do
      if [[ -d $path ]]; then
        folders+=("$path")
      # Beside a folder that fails too it is told apart by its name: nobody names it a second time.
      elif [[ $said == *"$path"[\'\":]* ]]; then
        return 74
      fi
    done
    ((${#folders[@]} == $#)) || { ((${#folders[@]} > 0)) && ! sync -- "${folders[@]}" 2>/dev/null; } || return 74
  fi
  sync
}

# What lies at PATH and is no file that we may read, in words, into REPLY. None of it is ever opened: a FIFO would wait for ever.
no_file() { # <path>    returns: 0, or 1 where it is a file, or nothing lies there
  REPLY=''
  if [[ -f $1 ]]; then
    [[ -r $1 ]] || REPLY='a file that we may not read'
  elif [[ -d $1 ]]; then
    REPLY='a folder'
  elif [[ -p $1 ]]; then
    REPLY='a FIFO'
  elif [[ -S $1 ]]; then
    REPLY='a socket'
  elif [[ -b $1 || -c $1 ]]; then
    REPLY='a device'
  elif [[ -L $1 ]]; then
    REPLY='a link that leads nowhere'
  fi
  [[ -n $REPLY ]]
}

# TEXT into a small file that we can do without: it is silent where that fails, and leaves alone what is no file, for to open a
# FIFO for writing waits too.
put_text() { # <file> <text>    returns: 0, or 1
  [[ ! -e $1 || -f $1 ]] && { printf '%s' "$2" >"$1"; } 2>/dev/null
}

# A whole small file into REPLY, without a process. A file that holds a NUL is no text.
read_text() { # <file>    returns: 0, or 1 where it cannot be read or is no text
  REPLY=''
  [[ -f $1 ]] || return 1
  ! { IFS= read -r -d '' REPLY <"$1"; } 2>/dev/null || return 1
  # Where it could not be opened nothing was read either.
  [[ -n $REPLY || -r $1 ]]
}

# Put TEXT into FILE: temporary name beside it, flushed, renamed, read back.
# With "soon" nothing is flushed: for what may be lost in a power cut, because its loss is seen and costs little.
# With "behind" the paths that follow are flushed with the text in one call, before the rename: the name speaks of them.
# The rename itself may be lost; the old text is then still true.
replace_file() { # <file> <text> [soon | behind <paths...>]    returns: 0, or 74 with nothing changed under the name
  local REPLY file=$1 text=$2 dir=${1%/*} tmp how=${3-}
  shift $(($# < 3 ? $# : 3))
  [[ $dir != "$file" ]] || dir=.
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || { [[ $how != soon ]] && ! flush "$tmp" "$@"; } || ! mv -f -- "$tmp" "$file"; then
    rm -f -- "$tmp" 2>/dev/null || :
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  [[ -n $how ]] || flush "$dir"
  read_text "$file" && [[ $REPLY == "$text" ]] || {
    log "$file does not read back as it was written"
    return "$EX_COPY"
  }
}

# Put TEXT over the shorter one that FILE holds, in place and without a process: for records whose loss is seen and costs little.
# Bash writes line by line, so until all is there the first character says that it is no record.
overwrite_file() { # <file> <text>    returns: 0, or 1: it has to be written in another way
  local REPLY LC_ALL=C
  [[ -f $1 && ! -L $1 ]] && read_text "$1" && ((${#REPLY} > 0 && ${#REPLY} <= ${#2})) || return 1
  { printf '#' 1<>"$1" && printf '#%s' "${2:1}" 1<>"$1" && printf '%s' "${2:0:1}" 1<>"$1"; } 2>/dev/null || return 1
  read_text "$1" && [[ $REPLY == "$2" ]]
}

# Put TEXT into FILE only if no FILE is there yet, in one step that cannot be raced.
create_once() { # <file> <text>    returns: 0 made, 1 it was there already, 74
  local file=$1 text=$2 dir=${1%/*} tmp rc=0
  [[ $dir != "$file" ]] || dir=.
  [[ ! -e $file ]] || return 1
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || ! flush "$tmp"; then
    rm -f -- "$tmp"
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  if ! ln -- "$tmp" "$file" 2>/dev/null; then
    rc=1
    # No hard links here (some FUSE mounts): noclobber is as atomic, for a whole text is one write.
    if [[ ! -e $file ]] && (
      set -C
      printf '%s' "$text" >"$file"
    ) 2>/dev/null; then rc=0; fi
    [[ -e $file ]] || rc=$EX_COPY
  fi
  rm -f -- "$tmp"
  flush "$dir"
  return "$rc"
}
