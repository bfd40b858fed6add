# lib/git.bash: is the code one recorded, pushed, clean commit? The gate of a formal run.
# needs: exit log path proc

# No call of git waits for ever for a dead mount, a filter, a helper or a server: a question, a look at all files, the network.
readonly GIT_ASK_S=60 GIT_LOOK_S=300 GIT_NET_S=180

# In the work tree GIT_TOP, with no prompt, no hook and no pager, in English; by the commit itself, not by what "git replace" put in
# its place here.
git_with() { # <seconds> <git's words...>    returns: git's, or 124
  local limit=$1 asked=(env GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 GIT_NO_REPLACE_OBJECTS=1 LANGUAGE=en)
  shift
  # A repository's own way to its origin (a key of its own) wins over ours.
  [[ -n ${GIT_OWN_SSH-} ]] || asked+=(GIT_SSH_COMMAND="ssh -oBatchMode=yes -oConnectTimeout=20")
  within "$limit" "${asked[@]}" git -C "$GIT_TOP" -c core.hooksPath=/dev/null -c core.fsmonitor=false --no-pager "$@" </dev/null
}
# A short question; its answer into REPLY.
git_ask() { # <git's words...>    returns: git's
  local rc=0
  REPLY=$(git_with "$GIT_ASK_S" "$@" 2>/dev/null) || rc=$?
  git_in_time "$rc" "$GIT_ASK_S" "$@"
}
# Refuses where git was ended by its limit: an empty answer would be taken for a "no".
git_in_time() { # <status> <seconds> <git's words...>    returns: the status
  local rc=$1 limit=$2 do="find what it waits for: a disk or mount that does not answer, a filter or a helper in 'git config --list'"
  shift 2
  ((rc == 124)) || return "$rc"
  [[ $limit != "$GIT_NET_S" ]] || do="look at the network, at a credential helper and at ssh: run it by hand there"
  refuse "$EX_MISSING" "git -C $GIT_TOP $*" "it did not end in $limit s, so nothing is known" "$do"
}
git_refuse() { # <what> <why> <what to do>
  refuse "$EX_GATE" "$1" "$2" "$3"
}

# Git and a work tree with a commit. The reasons are told apart: each has another remedy. Sets GIT_TOP GIT_HEAD GIT_BRANCH.
git_open() { # reads: CODE_DIR
  local REPLY said rc=0
  git_alone
  command -v git >/dev/null 2>&1 || refuse "$EX_MISSING" "the code" "git is not on PATH" "install git on this machine"
  within "$GIT_ASK_S" test -d "$CODE_DIR" || rc=$?
  ((rc != 124)) || refuse "$EX_MISSING" "cd $CODE_DIR" "its disk or mount did not answer in $GIT_ASK_S s" "find it in /proc/mounts and attach it again"
  ((rc == 0)) || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  GIT_TOP=$CODE_DIR GIT_OWN_SSH=${GIT_SSH_COMMAND-}${GIT_SSH-}
  [[ -n $GIT_OWN_SSH ]] || if git_ask config --get core.sshCommand; then GIT_OWN_SSH=$REPLY; fi
  if ! git_ask rev-parse --show-toplevel; then
    said=$(git_with "$GIT_ASK_S" rev-parse --show-toplevel 2>&1) || :
    case $said in
      *'dubious ownership'*)
        # The folder that git wants to be named is the top of the work tree.
        REPLY=$CODE_DIR
        [[ ! $said =~ \ repository\ at\ \'([^\']+)\' ]] || REPLY=${BASH_REMATCH[1]}
        git_refuse "git -C $CODE_DIR" "another user owns $REPLY (dubious ownership)" "git config --global --add safe.directory $REPLY"
        ;;
      *'not a git repository'*) git_refuse "git -C $CODE_DIR" "it is not a git repository" "clone the code there, or set CODE_DIR to its work tree" ;;
      *) git_refuse "git -C $CODE_DIR rev-parse" "${said//[[:cntrl:]]/ }" "make git work there first" ;;
    esac
  fi
  GIT_TOP=$REPLY
  git_ask rev-parse --verify -q HEAD || REPLY=''
  GIT_HEAD=$REPLY
  [[ $GIT_HEAD =~ ^[0-9a-f]{40,64}$ ]] || git_refuse "$GIT_TOP" "it has no commit yet" "commit the code and push it"
  git_ask symbolic-ref -q --short HEAD || REPLY=''
  # shellcheck disable=SC2034 # for the gate of a formal run
  GIT_BRANCH=$REPLY
  # A folder that some repository around it ignores is clean there, and recorded nowhere.
  said=$GIT_TOP GIT_TOP=$CODE_DIR
  git_ask ls-files -- . || :
  GIT_TOP=$said
  [[ -n $REPLY ]] || git_refuse "$CODE_DIR" "the repository $GIT_TOP around it tracks no file in it" "set CODE_DIR to the work tree of the code"
}
# What a caller's git has in its environment leads elsewhere, and is not this tree's.
git_alone() {
  unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR GIT_NAMESPACE
}

# Prefixes under GIT_TOP that hold the run's own output: what the run itself makes is no dirt. Sets GIT_EXEMPT.
git_exempt() { # <folder...>
  local dir top real code
  GIT_EXEMPT=()
  top=$(cd -P -- "$GIT_TOP" && pwd -P) || return
  code=$(cd -P -- "$CODE_DIR" && pwd -P) || return
  for dir in "$@"; do
    real=$(cd -P -- "$dir" 2>/dev/null && pwd -P) || continue
    # A run folder that holds the code exempts nothing: the code is what we look at.
    [[ $real/ == "$top"/?* && $code/ != "$real"/* ]] || continue
    GIT_EXEMPT+=("${real#"$top"/}/")
  done
}
git_is_exempt() { # <path of an untracked file>
  local prefix
  # Python loads nothing from __pycache__ that its source does not vouch for.
  [[ /$1 != */__pycache__/* ]] || return 0
  for prefix in ${GIT_EXEMPT[@]+"${GIT_EXEMPT[@]}"}; do
    [[ $1 != "$prefix"* ]] || return 0
  done
  return 1
}

# Modes count, whatever the repository's setting says, where the file system can hold them.
git_modes() { # prints true or false
  local REPLY probe
  { git_ask rev-parse --absolute-git-dir && probe=$(mktemp "$REPLY/mode.XXXXXX" 2>/dev/null); } || { echo true && return 0; }
  chmod 600 "$probe"
  if [[ -x $probe ]]; then echo false; else
    chmod 700 "$probe"
    if [[ -x $probe ]]; then echo true; else echo false; fi
  fi
  rm -f -- "$probe"
}

# All that differs from the commit: GIT_DIRTY (state and path) and GIT_UNTRACKED (paths). Names may hold anything.
git_look() { # returns: 0 looked, 1 git failed; refuses where it does not end
  local entry='' ended=1 modes hidden_words=(ls-files -v -z)
  GIT_DIRTY=() GIT_UNTRACKED=()
  modes=$(git_modes) || exit
  while IFS= read -r -d '' entry; do
    case $entry in
      '== end '*) ended=${entry##* } ;;
      '?? '*) git_is_exempt "${entry:3}" || GIT_UNTRACKED+=("${entry:3}") ;;
      [RC]*)
        GIT_DIRTY+=("$entry")
        IFS= read -r -d '' entry || break
        ;;
      *) GIT_DIRTY+=("$entry") ;;
    esac
  done < <(git_list_all -c core.fileMode="$modes" -c core.untrackedCache=false -c core.trustctime=true -c core.checkStat=default -c status.renames=false status --porcelain=v1 -z \
    --untracked-files=all --ignore-submodules=none)
  git_in_time "$ended" "$GIT_LOOK_S" status || return 1
  # Files that a person told git not to look at are hidden edits waiting to happen, in a repository inside this one too.
  [[ ! -f $GIT_TOP/.gitmodules ]] || hidden_words+=(--recurse-submodules)
  ended=1
  while IFS= read -r -d '' entry; do
    case $entry in
      '== end '*) ended=${entry##* } ;;
      [a-z]\ *) GIT_DIRTY+=("hidden (assume-unchanged) ${entry:2}") ;;
      # A sparse checkout leaves such files out; one that is there is not compared.
      S\ *) [[ ! -e $GIT_TOP/${entry:2} && ! -L $GIT_TOP/${entry:2} ]] || GIT_DIRTY+=("hidden (skip-worktree) ${entry:2}") ;;
    esac
  done < <(git_list_all "${hidden_words[@]}")
  git_in_time "$ended" "$GIT_LOOK_S" ls-files -v
}
# What git lists with -z, and behind it how git ended: a list that breaks off is none.
git_list_all() { # <git's words...>    prints
  local rc=0
  git_with "$GIT_LOOK_S" "$@" 2>/dev/null || rc=$?
  printf '== end %s\0' "$rc"
}

# Lines for people: the first 20, control characters made visible.
git_list() { # prints
  local entry n=0 total=$((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]}))
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"} ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]/#/?? }"}; do
    ((n++ < 20)) || break
    printf '  %s\n' "${entry//[[:cntrl:]]/?}"
  done
  ((total <= 20)) || printf '  … and %d more\n' $((total - 20))
}

# Would a stash take declared data or a run's folder? Says what into REPLY.
git_stash_takes() { # <protected folder...>    returns: 0 it would
  local path dir real top
  REPLY=''
  top=$(cd -P -- "$GIT_TOP" && pwd -P) || return 0
  for path in ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]}"}; do
    for dir in "$@"; do
      real=$(cd -P -- "$dir" 2>/dev/null && pwd -P) || real=$dir
      [[ $top/$path != "$real"/* && $top/$path != "$real" ]] || { REPLY=$path && return 0; }
    done
  done
  # The exempt files (this run's own output) would be swept along.
  ((${#GIT_EXEMPT[@]} == 0)) || REPLY="${GIT_EXEMPT[0]} (this run's own output)"
  [[ -n $REPLY ]]
}

# A git that was killed leaves its lock behind, at which every later one stops.
git_lock_remedy() { # <what git said> <what else to do>    prints
  local REPLY
  if [[ $1 =~ \'([^\']+\.lock)\':\ File\ exists ]]; then REPLY=${BASH_REMATCH[1]}; else
    # git stash does not name the lock.
    git_ask rev-parse --git-path index.lock || REPLY=''
    [[ $REPLY == /* ]] || REPLY=$GIT_TOP/$REPLY
  fi
  if [[ -f $REPLY ]]; then printf 'if no git is at work there: rm %q' "$REPLY"; else printf '%s' "$2"; fi
}

# Put uncommitted work aside under a dated name. Nothing is dropped; data is never taken.
git_stash() { # <protected folder...>
  local REPLY name said entry links rc=0
  # What git would leave where it is, and say yes: a repository inside this one.
  git_ask ls-files -s || git_refuse "git ls-files in $GIT_TOP" "git failed" "run it by hand and see"
  links=$(grep '^160000 ' <<<"$REPLY") || links=''
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"} ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]/#/?? }"}; do
    [[ $entry == '?? '*/ || $links$'\n' == *$'\t'"${entry:3}"$'\n'* ]] || continue
    git_refuse "git stash in $GIT_TOP" "it does not take what is in ${entry:3}, a repository of its own" "commit and push it there, and its new commit here"
  done
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"}; do
    case $entry in
      hidden*) git_refuse "git stash in $GIT_TOP" "it does not take ${entry#hidden }" "git update-index --no-assume-unchanged --no-skip-worktree FILE, then commit it" ;;
      UU* | AA* | DD* | AU* | UA* | DU* | UD*) git_refuse "git stash in $GIT_TOP" "a merge is unfinished: $entry" "finish or abort the merge" ;;
    esac
  done
  if git_stash_takes "$@"; then
    git_refuse "git stash in $GIT_TOP" "it would take data or output away: $REPLY" "add it to .gitignore, or commit the other files by hand"
  fi
  utc_now
  name="before formal run $REPLY"
  said=$(git_with "$GIT_LOOK_S" stash push --include-untracked -m "$name" 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_LOOK_S" stash push ||
    git_refuse "git stash in $GIT_TOP" "git could not stash${said:+: ${said//[[:cntrl:]]/ }}" "$(git_lock_remedy "$said" "commit the files by hand")"
  log "uncommitted work is in the stash '$name'; bring it back with: git -C $GIT_TOP stash pop"
}

git_clean() { # <stash: true or false> <protected folder...>
  local REPLY stash=$1 remedy
  shift
  git_look || git_refuse "git status in $GIT_TOP" "git failed" "run it by hand and see"
  ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)) || return 0
  if [[ $stash == true ]]; then
    git_stash "$@"
    git_look || git_refuse "git status in $GIT_TOP" "git failed" "run it by hand and see"
    ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)) || return 0
  fi
  git_list >&2
  remedy="commit and push them, or put them aside with: start --stash"
  [[ $stash != true ]] || remedy="commit them by hand: the stash did not take them"
  if git_stash_takes "$@"; then remedy="commit them, or name them in .gitignore; a stash would take $REPLY"; fi
  git_refuse "git status in $GIT_TOP" "$((${#GIT_DIRTY[@]})) changed and ${#GIT_UNTRACKED[@]} untracked files (listed above) are in no commit" "$remedy"
}

# Each repository inside the commit is there and at the commit that the parent names (status has said so); its commit is kept
# for the plan. One that .gitmodules does not name comes along with no clone.
git_submodules() { # sets GIT_SUBMODULES
  local REPLY line said rc=0
  GIT_SUBMODULES=()
  git_ask ls-files -s || git_refuse "git ls-files in $GIT_TOP" "git failed" "run it by hand and see"
  [[ $'\n'$REPLY == *$'\n160000 '* ]] || return 0
  said=$(git_with "$GIT_LOOK_S" submodule status --recursive 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_LOOK_S" submodule status ||
    git_refuse "git submodule status in $GIT_TOP" "${said##*$'\n'}" "name it in .gitmodules (git submodule add), or take it out: git rm --cached"
  while IFS= read -r line; do
    case $line in
      -*) git_refuse "git submodule in $GIT_TOP" "not initialised: ${line#-}" "git -C $GIT_TOP submodule update --init --recursive" ;;
      +* | U*) git_refuse "git submodule in $GIT_TOP" "not at the recorded commit: ${line#?}" "git -C $GIT_TOP submodule update, or commit the new one" ;;
      '') ;;
      *) GIT_SUBMODULES+=("${line# }") && log "submodule ${line# }" ;;
    esac
  done <<<"$said"
}

# The branch is the job's, and its head is what the origin has. A run goes on at its own commit without a new look:
# it was pushed when the run began, and the network may be gone now.
git_pushed() { # <branch> <commit of the run, or empty> <pull: true or false>
  local REPLY branch=$1 there before=$GIT_HEAD
  if [[ -n $2 && $2 == "$GIT_HEAD" ]]; then return 0; fi
  [[ $GIT_BRANCH == "$branch" ]] ||
    git_refuse "the branch of $GIT_TOP" "it is '${GIT_BRANCH:-no branch}', the job says '$branch'" "git -C $GIT_TOP switch $branch"
  git_ask config --get remote.origin.url && [[ -n $REPLY ]] ||
    git_refuse "git push" "$GIT_TOP has no remote 'origin', so the commit is nowhere else" "git -C $GIT_TOP remote add origin URL, then push"
  ! git_is_itself "${REPLY#file://}" ||
    git_refuse "git push" "the remote 'origin' of $GIT_TOP is this very repository, so the commit is nowhere else" "git -C $GIT_TOP remote set-url origin URL, then push"
  if git_origin "$branch"; then there=$REPLY; else
    [[ $3 == true ]] || git_refuse "git -C $GIT_TOP ls-remote origin" "origin cannot be reached" "look at the network and at the rights on this machine"
    there=''
  fi
  if [[ $3 == true && $there != "$GIT_HEAD" ]]; then
    # Only where origin is elsewhere: of two starts at one moment git would fail both pulls.
    git_pull "$branch"
    there=$REPLY
  fi
  git_ask rev-parse --verify -q HEAD || REPLY=none
  GIT_HEAD=$REPLY
  [[ $before == "$GIT_HEAD" ]] || log "the pull moved $GIT_TOP from $before to $GIT_HEAD"
  [[ $there == "$GIT_HEAD" ]] ||
    git_refuse "HEAD of $GIT_TOP" "$GIT_HEAD is not what origin has on $branch (${there:-nothing})" "git -C $GIT_TOP push origin $branch"
}
git_is_itself() { # <url>    returns: 0 where it is a folder, and that of this repository
  local REPLY url=$1
  [[ $url == /* ]] || url=$GIT_TOP/$url
  git_ask rev-parse --git-common-dir || return
  [[ $REPLY == /* ]] || REPLY=$GIT_TOP/$REPLY
  [[ $url -ef $REPLY || $url/.git -ef $REPLY ]]
}
# What origin has on the branch, into REPLY.
git_origin() { # <branch>    returns: 1 it cannot be reached
  local rc=0
  REPLY=$(git_with "$GIT_NET_S" ls-remote origin "refs/heads/$1" 2>/dev/null) || rc=$?
  git_in_time "$rc" "$GIT_NET_S" ls-remote origin || return 1
  REPLY=${REPLY%%[[:space:]]*}
}
git_pull() { # <branch>    sets REPLY: what origin has
  local said rc=0
  # By its full name: a tag of the same name would come first.
  said=$(git_with "$GIT_NET_S" pull -q --ff-only origin "refs/heads/$1" 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_NET_S" pull --ff-only origin "$1" ||
    git_refuse "git -C $GIT_TOP pull --ff-only origin $1" "it failed: ${said//[[:cntrl:]]/ }" "$(git_lock_remedy "$said" "bring $1 in line with origin by hand"); nothing was changed"
  git_ask rev-parse -q --verify FETCH_HEAD || REPLY=''
}

# The whole gate, in order. Sets GIT_TOP GIT_HEAD GIT_BRANCH.
# shellcheck disable=SC2154 # D B S are those of the one script that calls it; others take this library for its other functions
git_gate() { # <branch> <run's commit or empty> <pull> <stash> <protected folder...>
  local branch=$1 commit=$2 pull=$3 stash=$4 before
  shift 4
  git_open
  git_exempt "$D" "$B" "$S"
  git_clean "$stash" "$@"
  git_submodules
  before=$GIT_HEAD
  git_pushed "$branch" "$commit" "$pull"
  if [[ $before != "$GIT_HEAD" ]]; then
    # A pull moves no submodule. That has a remedy of its own, so it comes before "uncommitted".
    git_submodules
    git_clean false "$@"
  fi
}
