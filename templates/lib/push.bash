# lib/push.bash: the laptop's side of a push: scripts, code, data, secrets, each held to a digest or read back.
# needs: exit log file hash compat ssh push_box
# reads: L SELF_DIR CODE_DIR BRANCH HOST KIND D_FOLDER BOX_COMMIT BOX_GIT BOX_RSYNC

# One act on the box; its notes are shown, its facts are left in ANSWER. Any refusal there ends us with the same code.
act() { # <what> <input file or empty> <entry> <further variables...>
  local REPLY rc=0 what=$1 input=$2 entry=$3 line
  shift 3
  ANSWER=$L/.partial/push-answer
  BOX_INPUT=$input on_box "$ANSWER" "${ACT_S:-0}" "$entry" -- PROG RUN DATA_DIR DURABLE_DIR BRANCH COMMIT SUM DIGEST ONE "$@" -- "${BOX_FUNCTIONS[@]}" || rc=$?
  while IFS= read -r line; do
    [[ $line != 'note '* ]] || { plain_text "${line#note }" && log "$REPLY"; }
  done <"$ANSWER"
  ((rc == 0)) || refuse "$rc" "push to $HOST_NAME" "$what failed" "see the lines above; what arrived is kept, push again"
}
readonly -a BOX_FUNCTIONS=(box_places box_member require_path expand_path prove_tier mount_type mount_kind take_input folder_digest
  hash_tool hash_tool_small exec_hash_tool hash_file hash_text flush box_git drop_dead_locks place_code replace_file read_text)

# The scripts beside us, in the folder box/. A carriage return in one means that some tool rewrote the lines.
check_box_folder() { # sets DIGEST
  local file cr=$'\r'
  [[ -d $SELF_DIR/../box ]] || refuse "$EX_MISSING" "$SELF_DIR/../box" "the scripts for the box are not there" "push from the compiled folder, whole"
  BOX_FOLDER=$(cd -P -- "$SELF_DIR/../box" && pwd -P) || return
  for file in "$BOX_FOLDER"/*; do
    ! LC_ALL=C grep -q "$cr" "$file" ||
      refuse "$EX_INTEGRITY" "$file" "it holds carriage returns: a tool changed its line ends" "compile anew, and copy it as bytes"
  done
  folder_digest "$BOX_FOLDER" || refuse "$EX_INTEGRITY" "$BOX_FOLDER" "it holds something that is no plain file" "compile anew"
  DIGEST=$REPLY
}

push_box() {
  local names=() file
  for file in "$BOX_FOLDER"/*; do names+=("${file##*/}"); done
  # No resource forks of a Mac in it.
  COPYFILE_DISABLE=1 tar -cf "$L/.partial/box.tar" -C "$BOX_FOLDER" "${names[@]}" || refuse "$EX_NOROOM" "$L/.partial" "the archive cannot be written" "make room"
  act 'sending the scripts' "$L/.partial/box.tar" take_box
  rm -f -- "$L/.partial/box.tar"
  log "scripts: $D_FOLDER/box/${DIGEST:0:12}, and box/current leads there"
}

here_git() { GIT_TERMINAL_PROMPT=0 git -C "$CODE_DIR" -c core.hooksPath=/dev/null --no-pager "$@"; }

# The commit that is to run, into COMMIT; says what does not travel.
check_code() {
  local dirty on
  command -v git >/dev/null 2>&1 || refuse "$EX_MISSING" "the code" "git is not on PATH" "install git here"
  here_git rev-parse --git-dir >/dev/null 2>&1 || refuse "$EX_MISSING" "CODE_DIR=$CODE_DIR" "it is no git work tree" "go to the code, or set CODE_DIR to it"
  COMMIT=$(here_git rev-parse -q --verify "refs/heads/$BRANCH") || refuse "$EX_GATE" "branch $BRANCH" "$CODE_DIR has no such branch" "commit the code on $BRANCH; the job names it"
  [[ $(here_git rev-parse --is-shallow-repository 2>/dev/null) != true ]] || refuse "$EX_GATE" "$CODE_DIR" "it is a shallow clone, whose history cannot travel" "git fetch --unshallow"
  dirty=$(here_git status --porcelain 2>/dev/null | wc -l) || dirty=0
  ((dirty == 0)) || log "$((dirty)) changed or untracked files in $CODE_DIR are in no commit: they stay here"
  on=$(here_git symbolic-ref -q --short HEAD) || on='no branch'
  [[ $on == "$BRANCH" ]] || log "you stand on $on, and the job names $BRANCH: what travels is $BRANCH at $COMMIT"
  [[ ! -e $CODE_DIR/.gitmodules ]] || log "submodules do not travel in a bundle: get them on the box, or vendor them"
}

# A folder for the bundle of this push alone, into REPLY: a git that was killed leaves a lock file beside its half bundle, at
# which the next one stops. Those of dead pushes go.
bundle_folder() {
  local dir
  for dir in "$L/.partial/bundle."*; do
    [[ ! -d $dir ]] || kill -0 "${dir##*.}" 2>/dev/null || rm -rf -- "${dir:?}"
  done
  REPLY=$L/.partial/bundle.$$
  { rm -rf -- "${REPLY:?}" && mkdir -- "$REPLY"; } || refuse "$EX_NOROOM" "$REPLY" "the folder cannot be made" "look at LOCAL_DIR: room, rights"
}

push_code() {
  local REPLY head bundle said
  local range=("$BRANCH")
  [[ $BOX_GIT == yes ]] || refuse "$EX_MISSING" "the code" "there is no git on the box" "install git there; a formal run needs it"
  SUM=''
  if [[ $BOX_COMMIT != "$COMMIT" ]]; then
    # Only what is new, where the box has an ancestor of it.
    if [[ -n $BOX_COMMIT ]] && here_git merge-base --is-ancestor "$BOX_COMMIT" "$COMMIT" 2>/dev/null; then range+=("^$BOX_COMMIT"); fi
    bundle_folder
    bundle=$REPLY/code.bundle
    said=$(here_git bundle create "$bundle" "${range[@]}" 2>&1) ||
      refuse "$EX_NOROOM" "$bundle" "git cannot write the bundle: ${said//[[:cntrl:]]/ }" "look at the folder: room, rights"
    hash_file "$bundle" || return "$EX_COPY"
    SUM=$REPLY
    act 'sending the code' "$bundle" take_code
    rm -rf -- "${bundle%/*}"
  else
    act 'the code' '' take_code
  fi
  head=$(sed -n 's/^head //p' "$ANSWER")
  log "code: $D_FOLDER/code at ${head:-none}; its origin has $BRANCH at $COMMIT"
}

# Secrets from our standard input: in no argument, no file and no log, here or there. Only names are ever shown.
read_secrets() { # sets SECRET_TEXT
  local name value line
  SECRET_TEXT=''
  ((${#SECRETS[@]} > 0)) || refuse "$EX_CONFIG" "--secrets" "the job names no secrets" "name the variables in the job's field secrets"
  if [[ -t 0 ]]; then
    for name in "${SECRETS[@]}"; do
      printf '%s (not shown): ' "$name" >&2
      IFS= read -rs value || value=''
      printf '\n' >&2
      [[ -z $value ]] || SECRET_TEXT+="$name=$value"$'\n'
    done
  else
    while IFS= read -r line || [[ -n $line ]]; do
      line=${line%$'\r'}
      name=${line%%=*}
      [[ $line =~ [^[:space:]] && $line != '#'* ]] || continue
      [[ $line == *=* && " ${SECRETS[*]} " == *" $name "* ]] ||
        refuse "$EX_CONFIG" "--secrets" "a line on standard input is not NAME=value with a NAME of the job's secrets (${SECRETS[*]})" "give only those"
      SECRET_TEXT+=$line$'\n'
    done
  fi
  [[ -n $SECRET_TEXT ]] || refuse "$EX_CONFIG" "--secrets" "standard input held none" "printf '%s\\n' NAME=value | push.sh --secrets, from a file or a prompt"
}
push_secrets() {
  local SHARED_PATHS_TEXT='' path
  for path in ${SHARED_PATHS[@]+"${SHARED_PATHS[@]}"}; do SHARED_PATHS_TEXT+=$path$'\n'; done
  # In a pipeline of builtins: the values are on a pipe and nowhere else.
  printf '%s' "$SECRET_TEXT" | act 'writing the secrets' /dev/stdin take_secrets CRED_FILE SHARED_PATHS_TEXT || exit
  log "secrets: ${SECRETS[*]} are in $CRED_FILE on the box, mode 600"
}
