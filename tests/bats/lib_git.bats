# shellcheck disable=SC2016,SC2030,SC2031,SC2154 # words for other shells; tests are subshells; bats sets status, output and stderr
load helper

setup() {
  common_setup
  make_repository "$ROOT/tests/fixtures/formal/code"
  D=$BATS_TEST_TMPDIR/d B=$D S=$BATS_TEST_TMPDIR/s
  mkdir -p "$D" "$S"
  cat >"$BATS_TEST_TMPDIR/gate" <<SH
set -euo pipefail
PROG=gate LC_MESSAGES=C D=$D B=$B S=$S
source "$ROOT/tests/bats/libs.bash"
load_libs git
git_gate "\$@"
printf '%s %s\n' "\$GIT_HEAD" "\$GIT_BRANCH"
SH
}
gate() { # [commit of the run] [pull] [stash] [protected…]
  run --separate-stderr bash "$BATS_TEST_TMPDIR/gate" main "${1-}" "${2-true}" "${3-false}" "${@:4}"
}
passes() {
  gate "$@"
  [[ $status -eq 0 ]] || fail_with "the gate is shut"
}
g() { git -C "$CODE_DIR" "$@"; }

# F7 F9 F13 F14: open for a clean, pushed commit on its branch; ignored files do not count.
@test "git: a clean pushed commit passes, with ignored files and Python's byte code lying about" {
  echo x >"$CODE_DIR/run.log"
  mkdir -p "$CODE_DIR/pkg/__pycache__"
  echo x >"$CODE_DIR/pkg/__pycache__/a.pyc"
  passes
  [[ $output == "$(g rev-parse HEAD) main" ]]
}

# Case 57 F8 F12: each kind of dirt shuts the gate and is listed.
@test "git: untracked, odd-named, edited, staged, deleted, mode-changed, hidden, unmerged: each is refused and listed" {
  local kind
  for kind in untracked odd edited staged deleted mode mode-off hidden skipped unmerged; do
    g reset -q --hard origin/main
    g clean -qfd
    case $kind in
      untracked) echo x >"$CODE_DIR/new.py" ;;
      odd) echo x >"$CODE_DIR/-rf"$'\n'"x.py" ;;
      edited) echo x >>"$CODE_DIR/train.sh" ;;
      staged) echo x >"$CODE_DIR/new.py" && g add new.py ;;
      deleted) rm "$CODE_DIR/train.sh" ;;
      mode) chmod +x "$CODE_DIR/train.sh" ;;
      mode-off) g config core.fileMode false && chmod +x "$CODE_DIR/train.sh" ;;
      hidden) g config core.fileMode true && g update-index --assume-unchanged train.sh && echo x >>"$CODE_DIR/train.sh" ;;
      skipped) g update-index --no-assume-unchanged train.sh && g reset -q --hard && g update-index --skip-worktree train.sh && echo x >>"$CODE_DIR/train.sh" ;;
      unmerged)
        g update-index --no-skip-worktree train.sh
        g reset -q --hard
        g switch -q -c other
        echo a >>"$CODE_DIR/train.sh" && g commit -qam a
        g switch -q main
        echo b >>"$CODE_DIR/train.sh" && g commit -qam b
        g merge -q other >/dev/null 2>&1 || :
        ;;
    esac
    gate
    refused 77 'in no commit' || fail "$kind"
    case $kind in untracked | staged) [[ $stderr == *new.py* ]] ;; odd) [[ $stderr == *'-rf?x.py'* ]] ;; *) [[ $stderr == *train.sh* ]] ;; esac || fail_with "$kind is not listed"
  done
}

# What a sparse checkout left out hides nothing.
@test "git: a sparse checkout passes, an edit in it does not" {
  mkdir "$CODE_DIR/big" && echo x >"$CODE_DIR/big/file"
  g add -A && g commit -qm big && g push -q origin main
  g sparse-checkout set data
  [[ ! -e $CODE_DIR/big ]]
  passes
  mkdir "$CODE_DIR/big" && echo y >"$CODE_DIR/big/file"
  gate
  refused 77
}

# A git that dies in the middle has shown nothing: no list is not a clean list.
@test "git: a listing of files that breaks off is a failure, not a clean tree" {
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\ncase "$*" in *"ls-files -v"*) exit 1 ;; esac\nexec %s "$@"\n' "$(type -P git)" >"$BATS_TEST_TMPDIR/bin/git"
  chmod +x "$BATS_TEST_TMPDIR/bin/git"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH gate
  refused 77 'git failed'
}

@test "git: the first 20 of many files are listed" {
  for i in $(seq 30); do echo x >"$CODE_DIR/n$i.py"; done
  gate
  refused 77 '30 untracked'
  [[ $(grep -c '?? n' <<<"$stderr") -eq 20 && $stderr == *'10 more'* ]]
}

# Case 60: edited, untracked, other commit, uninitialised, and a configuration that hides it all.
@test "git: a submodule that is not what the commit names is refused" {
  git init -q "$BATS_TEST_TMPDIR/sub"
  echo 1 >"$BATS_TEST_TMPDIR/sub/f"
  git -C "$BATS_TEST_TMPDIR/sub" add f && git -C "$BATS_TEST_TMPDIR/sub" commit -qm 1
  g -c protocol.file.allow=always submodule --quiet add "$BATS_TEST_TMPDIR/sub" vendor
  g config -f .gitmodules submodule.vendor.ignore all
  g config submodule.vendor.ignore all
  g config diff.ignoreSubmodules all
  g add -A && g commit -qm sub && g push -q origin main
  passes
  [[ $stderr == *"submodule $(git -C "$CODE_DIR/vendor" rev-parse HEAD) vendor"* ]]
  echo x >>"$CODE_DIR/vendor/f"
  gate
  refused 77
  git -C "$CODE_DIR/vendor" checkout -q f
  echo x >"$CODE_DIR/vendor/new"
  gate
  refused 77
  git -C "$CODE_DIR/vendor" add new && git -C "$CODE_DIR/vendor" commit -qm 2
  gate
  refused 77
  g submodule --quiet update
  g submodule --quiet deinit -f vendor
  gate
  refused 77 'not initialised'
}

# Issue 5 item 4: five reasons, five remedies.
@test "git: no git, no folder, no repository, another's repository and no commit are told apart" {
  local keep=$PATH
  box_path_only
  rm "$BATS_TEST_TMPDIR/box-bin/git"
  gate
  refused 69 'git is not on PATH'
  PATH=$keep
  CODE_DIR=$BATS_TEST_TMPDIR/nowhere gate
  refused 69 "cd $BATS_TEST_TMPDIR/nowhere"
  mkdir "$BATS_TEST_TMPDIR/plain"
  CODE_DIR=$BATS_TEST_TMPDIR/plain gate
  refused 77 'not a git repository'
  git init -q "$BATS_TEST_TMPDIR/empty"
  CODE_DIR=$BATS_TEST_TMPDIR/empty gate
  refused 77 'no commit yet'
  GIT_TEST_ASSUME_DIFFERENT_OWNER=1 gate
  refused 77 'dubious ownership' 'safe.directory'
}

# A folder inside another repository that ignores it is clean there, and recorded nowhere.
@test "git: code that the repository around it ignores is refused" {
  mkdir -p "$CODE_DIR/inner.log/d"
  echo x >"$CODE_DIR/inner.log/d/train.py"
  CODE_DIR=$CODE_DIR/inner.log/d gate
  refused 77 'tracks no file in it'
}

# F7: pushed means that the origin has it.
@test "git: unpushed, other branch, no origin, origin gone: refused" {
  local first
  first=$(g rev-parse HEAD)
  echo x >>"$CODE_DIR/train.sh"
  g commit -qam 2
  gate
  refused 77 'push origin main'
  gate '' false
  refused 77 'push origin main'
  gate "$(g rev-parse HEAD)" # a run of this commit goes on without a new look: it was pushed when it began
  [[ $status -eq 0 ]]
  g reset -q --hard "$first"
  g switch -q -c other
  gate
  refused 77 "'other'" "'main'"
  g switch -q main
  mv "$CODE_DIR.origin.git" "$CODE_DIR.away.git"
  gate
  refused 77 'pull --ff-only origin main' 'nothing was changed'
  gate '' false
  refused 77 'cannot be reached'
  g remote remove origin
  gate
  refused 77 "no remote 'origin'"
}

# F11 T43: only fast-forward, and a pull that fails ends it; plan never pulls.
@test "git: start pulls fast-forward only, and what diverged is refused" {
  local old
  g config pull.rebase true # a person's own setting must not turn the pull into anything else
  git clone -q "$CODE_DIR.origin.git" "$BATS_TEST_TMPDIR/mate"
  echo y >"$BATS_TEST_TMPDIR/mate/mate.py"
  git -C "$BATS_TEST_TMPDIR/mate" add -A && git -C "$BATS_TEST_TMPDIR/mate" commit -qm mate && git -C "$BATS_TEST_TMPDIR/mate" push -q origin main
  old=$(g rev-parse HEAD)
  gate '' false
  refused 77 'is not what origin has'
  [[ $(g rev-parse HEAD) == "$old" ]]
  passes
  [[ $(g rev-parse HEAD) == "$(git -C "$BATS_TEST_TMPDIR/mate" rev-parse HEAD)" ]]
  g reset -q --hard "$old"
  echo z >>"$CODE_DIR/train.sh"
  g commit -qam mine
  old=$(g rev-parse HEAD)
  gate
  refused 77 'pull --ff-only' 'it failed'
  [[ $(g rev-parse HEAD) == "$old" && -z $(g status --porcelain) ]]
}

# F10 F17: put aside under a dated name, nothing dropped, and never data or a run's output.
@test "git: --stash keeps everything, and is refused where it would take data" {
  echo x >"$CODE_DIR/new.py"
  echo y >>"$CODE_DIR/train.sh"
  passes '' true true "$CODE_DIR/data/raw"
  [[ $(g stash list) == *'before formal run 20'* && ! -e $CODE_DIR/new.py ]]
  g stash pop -q
  [[ $(<"$CODE_DIR/new.py") == x && $(tail -n 1 "$CODE_DIR/train.sh") == y ]]
  echo z >"$CODE_DIR/data/raw/4.csv"
  gate '' true true "$CODE_DIR/data/raw"
  refused 77 'would take data' data/raw/4.csv
  [[ -s $CODE_DIR/data/raw/4.csv && -s $CODE_DIR/new.py && -z $(g stash list) ]]
  gate '' true false "$CODE_DIR/data/raw"
  refused 77 'a stash would take data/raw/4.csv'
}

# Issue 5: the run's own output is exempt by its prefix, and only it; where the run's folder holds the code nothing is.
@test "git: a run's folder inside the work tree is no dirt, its neighbour is" {
  sed -i "s|^PROG=.*|PROG=gate LC_MESSAGES=C D=$CODE_DIR/runs/r B=$CODE_DIR/runs/r S=$S|" "$BATS_TEST_TMPDIR/gate"
  mkdir -p "$CODE_DIR/runs/r/cells" "$CODE_DIR/runs/r2"
  echo x >"$CODE_DIR/runs/r/cells/out"
  passes
  gate '' true true
  [[ $status -eq 0 && -s $CODE_DIR/runs/r/cells/out ]]
  echo x >"$CODE_DIR/runs/r2/out"
  gate
  refused 77
  [[ $stderr == *runs/r2/out* && $stderr != *runs/r/cells* ]]
  gate '' true true
  refused 77 "this run's own output"
  rm -r "$CODE_DIR/runs"
  sed -i "s|^PROG=.*|PROG=gate LC_MESSAGES=C D=$BATS_TEST_TMPDIR B=$BATS_TEST_TMPDIR S=$S|" "$BATS_TEST_TMPDIR/gate"
  passes
  echo x >"$CODE_DIR/new.py"
  gate
  refused 77
}

# Case 57, case 60: what a person told git not to look at hides an edit in a submodule as well.
@test "git: an edit that is hidden in a submodule, or in one inside it, is refused and listed" {
  local one
  for one in inner outer; do
    git init -q "$BATS_TEST_TMPDIR/$one"
    echo 1 >"$BATS_TEST_TMPDIR/$one/f"
    [[ $one == inner ]] || git -C "$BATS_TEST_TMPDIR/outer" -c protocol.file.allow=always submodule --quiet add "$BATS_TEST_TMPDIR/inner" nest
    git -C "$BATS_TEST_TMPDIR/$one" add -A && git -C "$BATS_TEST_TMPDIR/$one" commit -qm 1
  done
  g -c protocol.file.allow=always submodule --quiet add "$BATS_TEST_TMPDIR/outer" vendor
  g -c protocol.file.allow=always submodule --quiet update --init --recursive
  g commit -qm sub && g push -q origin main
  passes
  git -C "$CODE_DIR/vendor/nest" update-index --assume-unchanged f
  echo x >>"$CODE_DIR/vendor/nest/f"
  gate
  refused 77 'in no commit'
  [[ $stderr == *'hidden (assume-unchanged) vendor/nest/f'* ]]
  git -C "$CODE_DIR/vendor/nest" update-index --no-assume-unchanged f
  git -C "$CODE_DIR/vendor/nest" checkout -q f
  # A pull leaves submodules where they were: what is to be done is said, and it is no commit.
  git clone -q "$CODE_DIR.origin.git" "$BATS_TEST_TMPDIR/mate"
  echo 2 >"$BATS_TEST_TMPDIR/outer/f" && git -C "$BATS_TEST_TMPDIR/outer" commit -qam 2
  git -C "$BATS_TEST_TMPDIR/mate" update-index --cacheinfo "160000,$(git -C "$BATS_TEST_TMPDIR/outer" rev-parse HEAD),vendor"
  git -C "$BATS_TEST_TMPDIR/mate" commit -qm moved && git -C "$BATS_TEST_TMPDIR/mate" push -q origin main
  gate
  refused 77 'not at the recorded commit' 'submodule update'
}

# F7 F11: what a name or a folder only seems to be.
@test "git: an origin that is this repository is no origin, and a tag of the branch's name is not pulled" {
  local url
  echo x >>"$CODE_DIR/train.sh"
  g commit -qam 2
  for url in . "$CODE_DIR" "file://$CODE_DIR/.git"; do
    g remote set-url origin "$url"
    gate
    refused 77 'is this very repository' 'set-url origin' || fail "$url"
  done
  g remote set-url origin "$CODE_DIR.origin.git"
  g reset -q --hard origin/main
  g push -q origin HEAD:refs/tags/main
  git clone -q -b main "$CODE_DIR.origin.git" "$BATS_TEST_TMPDIR/mate"
  git -C "$BATS_TEST_TMPDIR/mate" switch -q -C main origin/main
  git -C "$BATS_TEST_TMPDIR/mate" commit -q --allow-empty -m mate && git -C "$BATS_TEST_TMPDIR/mate" push -q origin refs/heads/main
  passes
  [[ $output == "$(git -C "$BATS_TEST_TMPDIR/mate" rev-parse HEAD) main" ]] || fail_with 'the old commit passes'
}

# X3: a git that was killed leaves its lock: looking needs none, and what does says which file.
@test "git: a lock that was left behind holds up no look, and a stash or pull names it" {
  : >"$CODE_DIR/.git/index.lock"
  passes
  echo x >"$CODE_DIR/new.py"
  gate '' true true
  refused 77 'could not stash' "rm $CODE_DIR/.git/index.lock"
  rm "$CODE_DIR/new.py"
  git clone -q "$CODE_DIR.origin.git" "$BATS_TEST_TMPDIR/mate"
  git -C "$BATS_TEST_TMPDIR/mate" commit -q --allow-empty -m mate && git -C "$BATS_TEST_TMPDIR/mate" push -q origin main
  gate
  refused 77 'pull --ff-only' "rm $CODE_DIR/.git/index.lock"
  rm "$CODE_DIR/.git/index.lock"
  passes
}

# Variables of the caller's git do not lead elsewhere; no hook of the repository runs.
@test "git: GIT_DIR is not followed and hooks do not run" {
  git init -q "$BATS_TEST_TMPDIR/else"
  printf '#!/bin/sh\ntouch %q\n' "$BATS_TEST_TMPDIR/hooked" >"$CODE_DIR/.git/hooks/post-merge"
  chmod +x "$CODE_DIR/.git/hooks/post-merge"
  GIT_DIR=$BATS_TEST_TMPDIR/else/.git GIT_NAMESPACE=other passes
  [[ $output == "$(g rev-parse HEAD) main" && ! -e $BATS_TEST_TMPDIR/hooked ]]
}

# Case 57: an edit that keeps size and time, as an editor's or rsync's "keep the times" makes it.
@test "git: an edit of the same size with its old time is seen" {
  touch -d 2020-01-01 "$CODE_DIR/train.sh"
  g update-index -q --refresh
  passes
  sed -i 's/n=0/n=1/' "$CODE_DIR/train.sh"
  touch -d 2020-01-01 "$CODE_DIR/train.sh"
  g config core.trustctime false
  g config core.checkStat minimal
  gate
  refused 77 'in no commit'
}

# Case 60: a repository inside the commit that .gitmodules does not name comes along with no clone, and its commit is nowhere.
@test "git: a repository inside this one that .gitmodules does not name is refused, there and in a clone without it" {
  git init -q "$CODE_DIR/nest"
  echo 1 >"$CODE_DIR/nest/f.py"
  git -C "$CODE_DIR/nest" add f.py && git -C "$CODE_DIR/nest" commit -qm 1
  g -c advice.addEmbeddedRepo=false add nest && g commit -qm nest && g push -q origin main
  gate
  refused 77 nest '.gitmodules'
  rm -rf "$CODE_DIR/nest" && mkdir "$CODE_DIR/nest" # as a clone has it
  [[ -z $(g status --porcelain) ]]
  gate
  refused 77 nest '.gitmodules'
  printf '[submodule "x"]\n\tpath = other\n\turl = /x\n' >"$CODE_DIR/.gitmodules"
  g add -A && g commit -qm other && g push -q origin main
  gate
  refused 77 nest '.gitmodules'
  g rm -q --cached nest && g commit -qm out && g push -q origin main
  passes
}

# F10 case 60: what a stash would leave where it is, saying yes, is named before anything is taken.
@test "git: --stash is refused where a repository inside this one has work of its own" {
  git init -q "$CODE_DIR/inner"
  echo 1 >"$CODE_DIR/inner/f.py"
  echo x >>"$CODE_DIR/train.sh"
  gate '' true true
  refused 77 'does not take what is in inner/'
  git -C "$CODE_DIR/inner" add f.py && git -C "$CODE_DIR/inner" commit -qm 1
  g -c advice.addEmbeddedRepo=false add inner && g commit -qm inner
  echo 2 >>"$CODE_DIR/inner/f.py"
  gate '' true true
  refused 77 'does not take what is in inner,'
  [[ -z $(g stash list) && $(tail -n 1 "$CODE_DIR/train.sh") == x && $stderr != *'in the stash'* ]]
}

# F8: the tree is held against the commit that was pushed, not against what stands in for it on this machine alone.
@test "git: a commit that is replaced here alone does not hide an edit" {
  local old
  old=$(g rev-parse HEAD)
  echo evil >>"$CODE_DIR/train.sh"
  g commit -qam evil
  g branch -q evil && g reset -q --hard "$old"
  g replace "$old" evil
  g reset -q --hard
  [[ $(tail -n 1 "$CODE_DIR/train.sh") == evil && -z $(g status --porcelain) ]]
  gate
  refused 77 'in no commit'
}

# F7: the origin is asked in the repository's own way, a key of its own for instance.
@test "git: core.sshCommand leads to the origin, and so does GIT_SSH_COMMAND" {
  local ssh=$BATS_TEST_TMPDIR/ssh
  printf '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n' >"$ssh"
  chmod +x "$ssh"
  g remote set-url origin "me@demo.invalid:$CODE_DIR.origin.git"
  GIT_SSH_COMMAND=$ssh passes
  g config core.sshCommand "$ssh"
  passes
  gate '' false
  [[ $status -eq 0 ]] || fail_with 'plan'
}

# A git that hangs, and a clock for it alone: a second in place of its limit, which goes to $BATS_TEST_TMPDIR/limits.
git_hangs() { # <words of the call>
  local bin=$BATS_TEST_TMPDIR/bin
  mkdir -p "$bin"
  printf '#!/bin/sh\ncase "$*" in *"%s"*) exec sleep 1000 ;; esac\nexec %s "$@"\n' "$1" "$(type -P git)" >"$bin/git"
  cat >"$bin/timeout" <<SH
#!$BASH
case "\$*" in *'$1'*) [[ \$1 == -k ]] && echo "\$3" >>'$BATS_TEST_TMPDIR/limits' && set -- -k 1 1 "\${@:4}" ;; esac
exec $(type -P timeout) "\$@"
SH
  chmod +x "$bin/git" "$bin/timeout"
}

# Issue 5 item 4, X3, case 84: a dead mount, a filter or a server that never answers shuts the gate, and it is said which.
@test "git: a call that does not end is ended, and refused with its command, its place and what to do" {
  local words
  need_tool timeout
  g config filter.x.clean cat
  for words in 'rev-parse --show-toplevel' 'status --porcelain' 'ls-files -v' 'ls-files -s' 'ls-remote origin'; do
    git_hangs "$words"
    PATH=$BATS_TEST_TMPDIR/bin:$PATH gate
    refused 69 "git -C $CODE_DIR ${words% --porcelain}" 'it did not end in' || fail "$words"
    [[ $words != ls-remote* ]] || [[ $stderr == *'look at the network'* ]]
  done
  echo x >"$CODE_DIR/new.py"
  git_hangs 'stash push'
  PATH=$BATS_TEST_TMPDIR/bin:$PATH gate '' true true
  refused 69 'stash push' 'it did not end in 300 s'
  rm "$CODE_DIR/new.py"
  git clone -q "$CODE_DIR.origin.git" "$BATS_TEST_TMPDIR/mate"
  git -C "$BATS_TEST_TMPDIR/mate" commit -q --allow-empty -m mate && git -C "$BATS_TEST_TMPDIR/mate" push -q origin main
  git_hangs 'pull -q'
  PATH=$BATS_TEST_TMPDIR/bin:$PATH gate
  refused 69 "git -C $CODE_DIR pull --ff-only origin main" 'it did not end in 180 s'
  # The shortest is the one for a question.
  [[ $(sort -n "$BATS_TEST_TMPDIR/limits" | uniq | tr '\n' ' ') == '60 180 300 ' ]]
}

# The words of a helper, a trace or a person's own language are no answer of git.
@test "git: a trace in the environment changes nothing, and another language hides no reason" {
  GIT_TRACE=1 passes
  mkdir "$BATS_TEST_TMPDIR/bin" "$CODE_DIR/sub"
  printf '#!/bin/sh\n[ "$LANGUAGE" = en ] || { echo "fatal: zweifelhafte Inhaberschaft" >&2; exit 128; }\nexec %s "$@"\n' "$(type -P git)" >"$BATS_TEST_TMPDIR/bin/git"
  chmod +x "$BATS_TEST_TMPDIR/bin/git"
  export LANGUAGE=de
  # The folder to be named is the top of the work tree, where only that helps.
  PATH=$BATS_TEST_TMPDIR/bin:$PATH GIT_TEST_ASSUME_DIFFERENT_OWNER=1 CODE_DIR=$CODE_DIR/sub gate
  refused 77 'dubious ownership' "safe.directory $CODE_DIR"
  [[ $stderr != *"$CODE_DIR/sub"$'\n'* && $stderr != *"safe.directory $CODE_DIR/sub"* ]]
}
