# lib/push_box.bash: what push does on the box. These functions are sent there (declare -f) and run there.
# needs: exit log path file hash room ssh
# reads, besides the places: BRANCH COMMIT SUM DIGEST NAMES LIST ONE CRED_FILE SHARED_PATHS_TEXT DATA_PROOF DATA_TIER_PATH

# What is there already, one fact a line. Makes nothing.
look_before_push() {
  local tier=$DATA_TIER_PATH
  box_places
  expand_path tier
  if [[ $DATA_DIR/ == "${tier%/}"/* && $DATA_PROOF != none ]]; then
    prove_tier "${tier%/}" "$DATA_PROOF" || refuse "$EX_COPY" "the data tier" "$REPLY" "attach the storage, or give --data-dir"
  fi
  printf 'host %s\n' "$(cat /proc/sys/kernel/hostname 2>/dev/null)"
  printf 'folder %s\n' "$D"
  [[ ! -s $D/run.json ]] || printf 'run_id %s\n' "$(box_member "$D/run.json" run_id)"
  [[ -s $D/run.json || ! -s $B/run.json ]] || printf 'run_id %s\n' "$(box_member "$B/run.json" run_id)"
  if command -v git >/dev/null 2>&1; then
    printf 'git yes\ncommit %s\n' "$(git -C "$D/code.git" rev-parse -q --verify "refs/heads/$BRANCH" 2>/dev/null)"
  fi
  printf 'rsync %s\n' "$(rsync --version 2>/dev/null | head -n 1)"
}

# Our input into a new file, held to its digest.
take_input() { # <file>
  local REPLY
  rm -f -- "$1"
  cat >"$1" || refuse "$EX_NOROOM" "$1" "it cannot be written" "make room on the data tier"
  hash_file "$1" && [[ $REPLY == "$SUM" ]] || refuse "$EX_COPY" "$1" "it did not arrive as it was sent" "push again"
}

folder_digest() { # <folder>    sha256 of its files' sha256sum lines, in C order, into REPLY
  local LC_ALL=C file text=''
  for file in "$1"/*; do
    [[ -f $file && ! -L $file ]] || return 1
    hash_file "$file" || return
    text+="$REPLY  ${file##*/}"$'\n'
  done
  hash_text "$text"
}

# The scripts into a folder named by their digest. A folder that is there is never written to: a script in it may run.
take_box() { # stdin: a tar of the files
  local REPLY dir new
  box_places
  dir=$D/box/${DIGEST:0:12} new=$D/box/.new.$$
  mkdir -p -- "$new" || refuse "$EX_NOROOM" "$new" "the folder cannot be made" "look at the data tier: room, rights"
  tar -xof - -C "$new" || { rm -rf -- "${new:?}" && refuse "$EX_COPY" "$new" "the scripts did not arrive whole" "push again"; }
  chmod -- 700 "$new"/*.sh
  if ! folder_digest "$new" || [[ $REPLY != "$DIGEST" ]]; then
    rm -rf -- "${new:?}"
    refuse "$EX_COPY" "$new" "the scripts read back with another digest" "push again"
  fi
  flush "$new"/* "$new"
  if [[ -e $dir ]]; then
    rm -rf -- "${new:?}"
    folder_digest "$dir" && [[ $REPLY == "$DIGEST" ]] ||
      refuse "$EX_INTEGRITY" "$dir" "its files are not what its name says: somebody changed them" "move it aside (mv), then push again"
  else
    mv -- "$new" "$dir" || refuse "$EX_COPY" "$dir" "it cannot be put in place" "look at the data tier"
  fi
  # A new link takes the old one's place in one step; whoever runs in the old folder stays there.
  ln -s -- "${DIGEST:0:12}" "$D/box/.current.$$" && mv -fT -- "$D/box/.current.$$" "$D/box/current" 2>/dev/null ||
    { rm -f -- "$D/box/.current.$$" && ln -sfn -- "${DIGEST:0:12}" "$D/box/current"; } ||
    refuse "$EX_COPY" "$D/box/current" "the link cannot be set" "look at the data tier: can it hold links?"
  [[ $(readlink "$D/box/current") == "${DIGEST:0:12}" ]] || refuse "$EX_COPY" "$D/box/current" "it does not read back" "push again"
}

box_git() { GIT_TERMINAL_PROMPT=0 git -c core.hooksPath=/dev/null -c safe.directory='*' "$@"; }

# A git that was killed leaves lock files, at which every later one stops. Where no git runs in FOLDER, they are nobody's.
drop_dead_locks() { # <folder that git runs in> <its repository>
  local proc comm
  [[ -d $2 && -e /proc/self/cwd ]] || return 0
  for proc in /proc/[0-9]*; do
    [[ $proc/cwd -ef $1 ]] || continue
    { IFS= read -r comm <"$proc/comm"; } 2>/dev/null || comm=''
    [[ $comm != git* ]] || return 0
  done
  find "$2" -name '*.lock' -type f -exec rm -f -- {} + 2>/dev/null || :
}

# The bundle into a bare repository, which is the work tree's origin: so a fast-forward pull needs no server.
take_code() { # stdin: the bundle; SUM is empty where none is needed
  box_places
  local said bare=$D/code.git part=$D/.push/code.bundle
  mkdir -p -- "$D/.push" || refuse "$EX_NOROOM" "$D/.push" "the folder cannot be made" "look at the data tier: room, rights"
  drop_dead_locks "$bare" "$bare"
  # Also where it is there: what a killed push left half made is made whole, and nothing in it is overwritten.
  box_git init -q --bare -- "$bare" || refuse "$EX_COPY" "$bare" "git cannot make it" "see the line above; is another push at work? else look at the data tier: room, rights"
  if [[ -n $SUM ]]; then
    take_input "$part"
    if ! said=$(LC_ALL=C box_git -C "$bare" fetch --no-tags -- "$part" "refs/heads/$BRANCH:refs/heads/$BRANCH" 2>&1); then
      [[ $said == *non-fast-forward* ]] ||
        refuse "$EX_COPY" "$bare" "git cannot take the commits: ${said//[[:cntrl:]]/ }" "look at the data tier: room, rights; then push again"
      refuse "$EX_GATE" "branch $BRANCH" "the box's copy has commits that yours has not, so this is no fast-forward" "merge them, or begin anew with another RUN"
    fi
    rm -f -- "$part"
  fi
  [[ $(box_git -C "$bare" rev-parse -q --verify "refs/heads/$BRANCH") == "$COMMIT" ]] ||
    refuse "$EX_COPY" "$bare" "its branch $BRANCH is not at $COMMIT afterwards" "push again"
  box_git -C "$bare" symbolic-ref HEAD "refs/heads/$BRANCH"
  place_code "$bare"
}

# The work tree. Once a run has begun, its code is left alone.
place_code() { # <bare repository>
  local bare=$1 url head
  if [[ ! -e $D/code ]]; then
    rm -rf -- "$D/.push/code"
    box_git clone -q -b "$BRANCH" -- "$bare" "$D/.push/code" || refuse "$EX_COPY" "$D/code" "git cannot make the work tree" "look at the data tier: room"
    # A stash of the formal gate needs some name to commit under.
    box_git -C "$D/.push/code" config user.name box && box_git -C "$D/.push/code" config user.email box@localhost
    mv -- "$D/.push/code" "$D/code" || refuse "$EX_COPY" "$D/code" "it cannot be put in place" "look at the data tier"
  fi
  url=$(box_git -C "$D/code" config --get remote.origin.url 2>/dev/null) || url=''
  head=$(box_git -C "$D/code" rev-parse -q --verify HEAD 2>/dev/null) || head=none
  if [[ $url != "$bare" ]]; then
    printf 'note %s is not from here (origin: %s): left as it is\n' "$D/code" "${url:-none}"
  elif [[ $head == "$COMMIT" ]]; then
    :
  elif [[ -e $D/run.json ]]; then
    printf 'note the run has begun at %s: %s stays there\n' "$(box_member "$D/run.json" commit)" "$D/code"
  elif [[ -n $(box_git -C "$D/code" status --porcelain --untracked-files=no) ]]; then
    printf 'note %s has uncommitted changes: left as it is\n' "$D/code"
  else
    drop_dead_locks "$D/code" "$D/code/.git"
    box_git -C "$D/code" pull -q --ff-only origin "$BRANCH" || refuse "$EX_GATE" "$D/code" "it cannot be fast-forwarded" "look at it on the box"
    head=$(box_git -C "$D/code" rev-parse -q --verify HEAD)
  fi
  printf 'head %s\n' "$head"
}

# Which of the listed data are not there with this size, and how much of each has come: LIST lines "bytes path".
need_data() { # stdin: the list
  local REPLY bytes path
  box_places
  while IFS= read -r path; do
    bytes=${path%% *} path=${path#* }
    REPLY=$(stat -c %s -- "$D/code/$path" 2>/dev/null) || REPLY=''
    [[ $REPLY != "$bytes" ]] || continue
    REPLY=$(stat -c %s -- "$D/.push/data/$path" 2>/dev/null) || REPLY=0
    printf 'need %s %s\n' "$REPLY" "$path"
  done
}
take_data_batch() { # stdin: a tar
  box_places
  mkdir -p -- "$D/.push/data" && tar -xof - -C "$D/.push/data"
}
take_data_tail() { # stdin: the rest of ONE
  box_places
  mkdir -p -- "$D/.push/data/$(dirname -- "$ONE")" && cat >>"$D/.push/data/$ONE"
}
# What came, held to its digest and then put under its name. stdin: lines "sha256 path".
place_data() {
  local REPLY sum path rc=0
  box_places
  while IFS= read -r path; do
    sum=${path%% *} path=${path#* }
    if hash_file "$D/.push/data/$path" && [[ $REPLY == "$sum" ]]; then
      mkdir -p -- "$(dirname -- "$D/code/$path")" && mv -f -- "$D/.push/data/$path" "$D/code/$path" || return "$EX_COPY"
    else
      rm -f -- "$D/.push/data/$path"
      printf 'wrong %s\n' "$path"
      rc=$EX_COPY
    fi
  done
  return "$rc"
}
count_data() { # reads: ONE    prints how many files it holds
  box_places
  find -L "$D/code/$ONE" -type f 2>/dev/null | wc -l
}

# Names and values into CRED_FILE: never on storage that others mount, never readable by others, others' lines kept.
take_secrets() { # stdin: NAME=value lines
  local dir shared line text='' names=' '
  box_places
  require_path CRED_FILE
  dir=${CRED_FILE%/*}
  mkdir -p -- "$dir" || refuse "$EX_CONFIG" "$dir" "the folder cannot be made" "set CRED_FILE to a place on the box's own disk"
  dir=$(cd -P -- "$dir" && pwd -P) || return
  while IFS= read -r shared; do
    [[ -n $shared ]] || continue
    expand_path shared
    shared=$(cd -P -- "$shared" 2>/dev/null && pwd -P) || continue
    [[ $dir/ != "${shared%/}"/* ]] ||
      refuse "$EX_CONFIG" "CRED_FILE=$CRED_FILE" "it lies on $shared, which others may mount or which outlives the box" "set CRED_FILE to a place on the box's own disk"
  done <<<"$SHARED_PATHS_TEXT"
  while IFS= read -r line; do
    names+="${line%%=*} "
    text+=$line$'\n'
  done
  if [[ -f $CRED_FILE && ! -L $CRED_FILE ]]; then
    while IFS= read -r line || [[ -n $line ]]; do
      [[ $names == *" ${line%%=*} "* ]] || text+=$line$'\n'
    done <"$CRED_FILE"
  fi
  replace_file "$CRED_FILE" "$text" || return
  chmod -- 600 "$CRED_FILE" && [[ $(stat -c %a -- "$CRED_FILE") == 600 ]] || refuse "$EX_COPY" "$CRED_FILE" "its mode cannot be made 600 there" "set CRED_FILE to a place that knows modes"
}
