#!/usr/bin/env bats
# push.sh: scripts, code, data and secrets to the box (S41-S43 S61-S63, F2, cases 14 15 89 112).

load helper
load sshd
# shellcheck disable=SC2154 # compile_job sets OUT

setup() {
  common_setup
  export RUN=r1 LOCAL_DIR=$BATS_TEST_TMPDIR/laptop RETRY_S=0
  BOX=$BATS_TEST_TMPDIR/box D=$BATS_TEST_TMPDIR/box/data/r1
  mkdir -p "$BOX/durable" "$BATS_TEST_TMPDIR/files"
  echo 'print(1)' >"$BATS_TEST_TMPDIR/files/train.py"
  printf 'data/\n' >"$BATS_TEST_TMPDIR/files/.gitignore"
  make_repository "$BATS_TEST_TMPDIR/files"
  sed 's#^retry:.*#retry: {max: 2}\nsecrets: [DEMO_TOKEN, OTHER]\ndata: [{path: data/raw, files: 4}]#' "$ROOT/jobs/demo.yaml" >"$BATS_TEST_TMPDIR/full.yaml"
}
teardown() { sshd_stop; }

push() { # [profile=generic-ssh] words…
  compile_job generic-ssh "$BATS_TEST_TMPDIR/full.yaml"
  "$OUT/local/push.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable" "$@"
}
commit() {
  echo "$1" >>"$CODE_DIR/train.py"
  git -C "$CODE_DIR" commit -q -am "$1"
}
make_data() {
  mkdir -p "$CODE_DIR/data/raw/deep"
  head -c 9000000 /dev/urandom >"$CODE_DIR/data/raw/big.bin"
  echo 1 >"$CODE_DIR/data/raw/a b" && echo 2 >"$CODE_DIR/data/raw/\$(touch X)" && echo 3 >"$CODE_DIR/data/raw/deep/-rf"
}

@test "push: scripts under their digest with a link, code as a clone that pulls without a server (S63)" {
  sshd_start
  INSTANCE=pod-1 run --separate-stderr push
  [[ $status -eq 0 && $output == *'run r1 on demo-pod: there'* ]]
  compile_job generic-ssh "$BATS_TEST_TMPDIR/full.yaml"
  local digest
  digest=$(cd "$OUT/box" && LC_ALL=C sha256sum -- * | sha256sum | cut -c1-12)
  [[ $(readlink "$D/box/current") == "$digest" ]]
  diff -r "$OUT/box" "$D/box/current/"
  [[ -x $D/box/current/aggregate_to_fs.sh ]]
  [[ $(git -C "$D/code" rev-parse HEAD) == "$(git -C "$CODE_DIR" rev-parse main)" ]]
  [[ -z $(git -C "$D/code" status --porcelain) ]]
  [[ $(git -C "$D/code" ls-remote origin refs/heads/main | cut -f1) == "$(git -C "$CODE_DIR" rev-parse main)" ]]
  grep -q '"instance": "pod-1"' "$LOCAL_DIR/generic-ssh.r1/box.json"
  # A new commit comes as an increment, and the work tree follows.
  commit second
  run --separate-stderr push
  [[ $status -eq 0 && $(git -C "$D/code" rev-parse HEAD) == "$(git -C "$CODE_DIR" rev-parse main)" ]]
  grep -q '"instance": "pod-1"' "$LOCAL_DIR/generic-ssh.r1/box.json"
}

@test "push: on one's own machine by the same way, without ssh" {
  compile_job local demo
  run --separate-stderr "$OUT/local/push.sh" --data-dir "$BOX/data"
  [[ $status -eq 0 && -x $D/box/current/aggregate_to_fs.sh && -s $D/code/train.py ]]
}

@test "push: once a run has begun its code stays, and its origin has the new commit" {
  sshd_start
  push
  local old
  old=$(git -C "$D/code" rev-parse HEAD)
  printf '{\n  "schema": "run/1",\n  "run_id": "20260803T141500Z-1f3a9c04",\n  "commit": "%s"\n}\n' "$old" >"$D/run.json"
  commit later
  run --separate-stderr push
  [[ $status -eq 0 && $stderr == *'run has begun'* && $(git -C "$D/code" rev-parse HEAD) == "$old" ]]
  [[ $(git -C "$D/code" ls-remote origin refs/heads/main | cut -f1) != "$old" ]]
  grep -q '"run_id": "20260803T141500Z-1f3a9c04"' "$LOCAL_DIR/generic-ssh.r1/box.json"
  sed -i 's/1f3a9c04/00000000/' "$D/run.json"
  run --separate-stderr push
  refused 65 r1
}

@test "push: what a push that was killed at once left half made on the box is made whole (S63)" {
  compile_job local demo
  mkdir -p "$D/code.git/refs" "$D/.push/code"
  run --separate-stderr "$OUT/local/push.sh" --data-dir "$BOX/data"
  [[ $status -eq 0 && -s $D/code/train.py ]] || fail_with 'not mended'
}

@test "push: the lock files of a git that was killed, here or on the box, stop no later push; a living git's stay (S63 case 106)" {
  local folder git
  compile_job local demo
  push_local() { "$OUT/local/push.sh" --data-dir "$BOX/data"; }
  push_local
  commit second
  mkdir -p "$LOCAL_DIR/local.r1/.partial/bundle.999999999"
  for folder in "$LOCAL_DIR/local.r1/.partial/code.bundle" "$LOCAL_DIR/local.r1/.partial/bundle.999999999/code.bundle" "$D/code.git/refs/heads/main" "$D/code.git/config" \
    "$D/code.git/HEAD" "$D/code/.git/index" "$D/code/.git/refs/remotes/origin/main"; do
    : >"$folder.lock"
  done
  # What is named git and stands in the repository may be at work.
  cp "$(type -P sleep)" "$BATS_TEST_TMPDIR/git-fetch"
  (cd "$D/code.git" && exec "$BATS_TEST_TMPDIR/git-fetch" 60) >/dev/null 2>&1 3>&- &
  git=$!
  at_work() { [[ $(<"/proc/$git/comm") == git-fetch ]]; }
  wait_for 30 at_work
  run --separate-stderr push_local
  kill "$git"
  [[ $status -eq 74 && $stderr == *'could not lock'*'another push'* && -e $D/code.git/refs/heads/main.lock ]] || fail_with 'a living git'
  wait "$git" || :
  run --separate-stderr push_local
  [[ $status -eq 0 && $(git -C "$D/code" rev-parse HEAD) == "$(git -C "$CODE_DIR" rev-parse HEAD)" ]] || fail_with 'not mended'
  [[ -z $(find "$D/code.git" "$D/code/.git" -name '*.lock') && -z $(find "$LOCAL_DIR/local.r1/.partial" -name 'bundle.*') ]]
}

@test "push: rewritten history is refused; uncommitted work is said to stay here" {
  sshd_start
  push
  echo more >>"$CODE_DIR/train.py"
  git -C "$CODE_DIR" commit -q --amend -am other
  echo loose >"$CODE_DIR/loose.txt"
  git -C "$CODE_DIR" checkout -q -b exp
  run --separate-stderr push
  refused 77 demo-pod
  [[ $stderr == *'you stand on exp, and the job names main: what travels is main at '* ]]
  [[ $stderr == *'fast-forward'* && $stderr == *'1 changed or untracked'* ]]
}

@test "push: a script that runs is never replaced; a changed folder is found out (S63)" {
  sshd_start
  push
  local inode first
  first=$(readlink -f "$D/box/current")
  inode=$(stat -c %i "$first/aggregate_to_fs.sh")
  push
  [[ $(stat -c %i "$first/aggregate_to_fs.sh") == "$inode" ]]
  # Other scripts: another folder, the link leads there, the old ones lie where they were.
  cp -R "$OUT" "$BATS_TEST_TMPDIR/other"
  echo '# another' >>"$BATS_TEST_TMPDIR/other/box/queue.tsv"
  "$BATS_TEST_TMPDIR/other/local/push.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable"
  [[ $(readlink -f "$D/box/current") != "$first" && $(stat -c %i "$first/aggregate_to_fs.sh") == "$inode" ]]
  echo '# edited' >>"$first/aggregate_to_fs.sh"
  run --separate-stderr push
  refused 65 demo-pod
  [[ $stderr == *'somebody changed them'* ]]
}

@test "push: the data by rsync and by its stand-in, counted there, hostile names stay names (S61 S62, case 112)" {
  need_tool rsync
  make_data
  sshd_start
  run --separate-stderr push --data
  [[ $status -eq 0 ]]
  diff -r "$CODE_DIR/data/raw" "$D/code/data/raw"
  grep -q -- rsync "$SSH_CALLS"
  rm -rf "$D/code/data"
  box_without rsync
  : >"$SSH_CALLS"
  # Cut off before: the long file goes on.
  mkdir -p "$D/.push/data/data/raw"
  head -c 8000000 "$CODE_DIR/data/raw/big.bin" >"$D/.push/data/data/raw/big.bin"
  run --separate-stderr push --data
  [[ $status -eq 0 ]]
  diff -r "$CODE_DIR/data/raw" "$D/code/data/raw"
  [[ ! -e X && ! -e $BOX_HOME/X && -z $(find "$BOX" -name X) ]]
}

@test "push: a wrong beginning on the box is found by the digest and sent anew (case 103)" {
  make_data
  sshd_start
  box_without rsync
  push
  mkdir -p "$D/.push/data/data/raw"
  head -c 8000000 /dev/zero >"$D/.push/data/data/raw/big.bin"
  run --separate-stderr push --data
  [[ $status -eq 0 ]]
  diff -r "$CODE_DIR/data/raw" "$D/code/data/raw"
}

@test "push: data that are not what the job declares are refused here (gate)" {
  make_data
  rm "$CODE_DIR/data/raw/a b"
  sshd_start
  run --separate-stderr push --data
  refused 77 'data/raw' '3 files'
}

@test "push: secrets come by standard input, into a file of mode 600, and are seen nowhere else (S41-S43, case 15)" {
  sshd_start
  local canary=canary-$RANDOM$RANDOM
  export CRED_FILE=$BOX_HOME/creds
  mkdir -p "$BOX_HOME"
  printf 'KEEP=1\nDEMO_TOKEN=old\n' >"$CRED_FILE"
  # Every command line on this machine while it runs.
  (while [[ ! -e $BATS_TEST_TMPDIR/over ]]; do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' >>"$BATS_TEST_TMPDIR/cmdlines" || :; done) 3>&- &
  local watcher=$!
  run --separate-stderr push --secrets <<<"DEMO_TOKEN=$canary=x y"
  : >"$BATS_TEST_TMPDIR/over"
  wait "$watcher"
  [[ $status -eq 0 && $(stat -c %a "$CRED_FILE") == 600 ]]
  [[ $(<"$CRED_FILE") == "DEMO_TOKEN=$canary=x y"$'\n'"KEEP=1" ]]
  not grep -q "$canary" "$BATS_TEST_TMPDIR/cmdlines"
  [[ $output$stderr != *$canary* ]]
  [[ $(grep -rl "$canary" "$BATS_TEST_TMPDIR" --exclude-dir=bin) == "$CRED_FILE" ]]
}

@test "push: secrets never onto a shared or durable tier, nor names that the job does not have (S42)" {
  sshd_start
  compile_job generic-ssh "$BATS_TEST_TMPDIR/full.yaml"
  # As of a profile whose shared tier lies below the home; reached by its own path and through a link.
  cp -R "$OUT" "$BATS_TEST_TMPDIR/shared"
  # shellcheck disable=SC2016 # expanded on the box
  sed -i 's/^readonly -a SHARED_PATHS=.*/readonly -a SHARED_PATHS=('"'"'$HOME\/tier'"'"')/' "$BATS_TEST_TMPDIR/shared/local/push.sh"
  OUT=$BATS_TEST_TMPDIR/shared
  push() { "$OUT/local/push.sh" demo-pod --data-dir "$BOX/data" --durable-dir "$BOX/durable" "$@"; }
  local tier=$BOX_HOME/tier
  mkdir -p "$tier/x"
  CRED_FILE=$tier/x/creds run --separate-stderr push --secrets <<<'DEMO_TOKEN=1'
  refused 78 demo-pod
  ln -s "$tier/x" "$BOX_HOME/link"
  CRED_FILE=$BOX_HOME/link/creds run --separate-stderr push --secrets <<<'DEMO_TOKEN=1'
  refused 78 demo-pod
  [[ -z $(find "$BOX_HOME" -name creds) ]]
  CRED_FILE=$BOX_HOME/c run --separate-stderr push --secrets <<<'NOT_MINE=secret-value'
  refused 78 secrets
  [[ $stderr != *secret-value* ]]
  CRED_FILE='' run --separate-stderr push --secrets <<<'DEMO_TOKEN=1'
  refused 78 CRED_FILE
}

@test "push: --print says what would be done, reaches nobody and makes nothing (F2)" {
  sshd_start
  run --separate-stderr push --print --data --secrets
  [[ $status -eq 0 && $output == *'nothing was done'* && $output == *DEMO_TOKEN* ]]
  [[ ! -s $SSH_CALLS && ! -e $LOCAL_DIR && ! -e $D ]]
}

@test "push: a script with carriage returns is not sent (case 14)" {
  compile_job generic-ssh "$BATS_TEST_TMPDIR/full.yaml"
  cp -R "$OUT" "$BATS_TEST_TMPDIR/crlf"
  sed -i 's/$/\r/' "$BATS_TEST_TMPDIR/crlf/box/queue.tsv"
  run --separate-stderr "$BATS_TEST_TMPDIR/crlf/local/push.sh" demo-pod --data-dir "$BOX/data"
  refused 65 queue.tsv 'carriage returns'
}

@test "push: no git work tree, no such branch, no host: each says so" {
  compile_job generic-ssh "$BATS_TEST_TMPDIR/full.yaml"
  CODE_DIR=$HOME run --separate-stderr "$OUT/local/push.sh" demo-pod
  refused 69 CODE_DIR
  git -C "$CODE_DIR" branch -m main other
  run --separate-stderr "$OUT/local/push.sh" demo-pod
  refused 77 main
  run --separate-stderr "$OUT/local/push.sh"
  refused 78 HOST
  run --separate-stderr "$OUT/local/push.sh" --nonsense
  [[ $status -eq 64 ]]
}

@test "push, smoke: without CODE_DIR the repository of these scripts is not taken for the code" {
  compile_job generic-ssh "$BATS_TEST_TMPDIR/full.yaml"
  git init -q "$OUT"
  cd "$OUT"
  local code=$CODE_DIR
  unset CODE_DIR
  run --separate-stderr "$OUT/local/push.sh" demo-pod --print
  refused 78 CODE_DIR
  run --separate-stderr "$OUT/local/smoke.sh"
  refused 78 CODE_DIR
  cd "$code"
  run --separate-stderr "$OUT/local/push.sh" demo-pod --print
  [[ $status -eq 0 && $output == *"$(pwd -P), branch main"* ]]
}

# A path with the name of a storage in it (/nfs/$FS_NAME): only the person knows it, no login of the box does (S23).
@test "push, pull: the name of a storage that is part of a path goes along to the box, and is asked for by name" {
  mkdir -p "$BATS_TEST_TMPDIR/profiles" "$BOX/nfs/my fs"
  sed "s#/lambda/nfs/#$BOX/nfs/#; s#proof: mount#proof: marker#" "$ROOT/profiles/lambda.yaml" >"$BATS_TEST_TMPDIR/profiles/lambda.yaml"
  compile_job "$BATS_TEST_TMPDIR/profiles/lambda.yaml" "$BATS_TEST_TMPDIR/full.yaml"
  sshd_start
  run --separate-stderr "$OUT/local/push.sh" demo-pod
  refused 78 demo-pod
  [[ $stderr == *"\$FS_NAME is not set or empty here"* ]]
  FS_NAME='my fs' run --separate-stderr "$OUT/local/push.sh" demo-pod
  [[ $status -eq 74 && $stderr == *"nfs/my fs/.gpu-runbook-tier is missing"* ]] || fail_with tier
  echo kept >"$BOX/nfs/my fs/.gpu-runbook-tier"
  FS_NAME='my fs' run --separate-stderr "$OUT/local/push.sh" demo-pod
  [[ $status -eq 0 && -x "$BOX/nfs/my fs/r1/box/current/run_one.sh" ]] || fail_with push
  FS_NAME='my fs' run --separate-stderr "$OUT/local/pull.sh" demo-pod
  [[ $stderr == *"nfs/my fs/r1"* && $stderr != *'is not set'* ]] || fail_with pull
}

@test "push: its folders are remembered, and another shell that does not say them changes, looks at and pulls nothing (S62 S63 F2)" {
  sshd_start
  run --separate-stderr push
  compile_job generic-ssh "$BATS_TEST_TMPDIR/full.yaml"
  local words L=$LOCAL_DIR/generic-ssh.r1
  [[ $status -eq 0 ]] && grep -qx "  \"data_dir\": \"$BOX/data\"," "$L/box.json" && grep -qx "  \"durable_dir\": \"$BOX/durable\"" "$L/box.json"
  cp "$L/box.json" "$BATS_TEST_TMPDIR/before"
  for words in push patrol pull; do
    DATA_DIR=$BOX/elsewhere run --separate-stderr "$OUT/local/$words.sh" demo-pod --durable-dir "$BOX/durable"
    refused 78 "DATA_DIR is '$BOX/elsewhere'; push had '$BOX/data'"
    DATA_DIR=$BOX/data run --separate-stderr "$OUT/local/$words.sh" demo-pod
    refused 78 "push had '$BOX/durable'"
    cmp "$L/box.json" "$BATS_TEST_TMPDIR/before"
  done
  [[ ! -e $BOX/elsewhere ]]
  # The same folders from the environment will do; an option says that another one is meant.
  DATA_DIR=$BOX/data DURABLE_DIR=$BOX/durable run --separate-stderr "$OUT/local/push.sh" demo-pod
  [[ $status -eq 0 ]]
  run --separate-stderr "$OUT/local/push.sh" demo-pod --data-dir "$BOX/new" --durable-dir "$BOX/durable"
  [[ $status -eq 0 && -d $BOX/new/r1/box ]] && grep -qx "  \"data_dir\": \"$BOX/new\"," "$L/box.json"
}
