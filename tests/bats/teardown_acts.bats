#!/usr/bin/env bats
# teardown.sh: what it does once the gate is open, over ssh too, and the states in which it has to stay shut.
# shellcheck disable=SC2154,SC2030,SC2031,SC2016 # bats sets status, output and stderr; each test is its own shell; words for files
load helper
load teardown_state

@test "teardown: where no run is known it opens for the word nothing alone, and only where the box shows none" {
  rm -r "$L" && mkdir -p "$L"
  record "$L/box.json" 'schema:"box/1"' 'run_id:""' 'profile:"machine"' 'host:"local"' 'instance:"box-7"' 'host_key:""'
  OK='terminate box-7 nothing'
  teardown_run
  refused 77 'nothing of it is home'
  rm -r "$D" "$B"
  run --separate-stderr "$TD" terminate --run --approve 'terminate box-7 '
  refused 77 'not exactly'
  not_acted
  teardown_run
  [[ $status -eq 0 ]] || fail_with 'shut'
  grep -q '"manifest_sha256": "nothing"' "$L/teardown.jsonl"
}

@test "teardown: a command that answers 0 and does nothing is a loud failure, never gone (case 128 X5 T45)" {
  no_sleep
  : >"$CLOUD/stubborn"
  PRICE_PER_HOUR=0.79 teardown_run
  [[ $status -eq 1 && $output != *gone* && $stderr == *'FAILED: box-7 is still there after terminate, and costs 0.79 an hour: end it on this machine now'* ]] || fail_with 'not loud'
  tail -n 1 "$L/teardown.jsonl" | grep -q '"ran": true, "confirmed": "present"'
}

@test "teardown: a list that never showed the box proves nothing by not showing it" {
  no_sleep
  echo box-77 >"$CLOUD/machines"
  teardown_run
  [[ $status -eq 69 && $output != *': gone'* && $stderr == *'proves nothing'* ]] || fail_with 'believed'
  rm "$BATS_TEST_TMPDIR/bin/fakecloud"
  teardown_run
  [[ $status -eq 69 && $output != *': gone'* ]] || fail_with 'believed without the tool'
}

# The machine of the tests, whose tool ends well where it failed, as some do: its list is one only where it begins with [.
as_answering() {
  sed "s/^      - list\$/      - json/; s/^      absent: .*/&\n      answer: '['/" "$ROOT/tests/fixtures/teardown/machine.yaml" >"$BATS_TEST_TMPDIR/machine.yaml"
  compile_job "$BATS_TEST_TMPDIR/machine.yaml" jobs/demo.yaml
  TD=$OUT/local/teardown.sh
  printf '%s\n' '#!/bin/sh' 'if [ "$1" = json ]; then' '  echo "$*" >>"$CLOUD/calls"' \
    '  if [ -e "$CLOUD/refused" ]; then echo "error 401 [no key]: nothing of box-7" >&2; exit 0; fi' \
    '  echo "[$(sed "s/.*/{\"id\": \"&\"},/" "$CLOUD/machines")]"; exit' 'fi' "exec $ROOT/tests/fixtures/teardown/fakecloud \"\$@\"" >"$BATS_TEST_TMPDIR/bin/new"
  chmod +x "$BATS_TEST_TMPDIR/bin/new" && mv "$BATS_TEST_TMPDIR/bin/new" "$BATS_TEST_TMPDIR/bin/fakecloud"
}

@test "teardown: a look that was refused and ends with 0 all the same shows neither that it is there nor that it is gone (case 128 T45)" {
  no_sleep
  as_answering
  # The list answers before, and is refused once the machine should be gone, which it is not.
  printf '%s\n' '#!/bin/sh' 'case $1 in delete) : >"$CLOUD/refused"; : >"$CLOUD/stubborn" ;; esac' "exec $BATS_TEST_TMPDIR/bin/real \"\$@\"" >"$BATS_TEST_TMPDIR/bin/new"
  chmod +x "$BATS_TEST_TMPDIR/bin/new" && mv "$BATS_TEST_TMPDIR/bin/fakecloud" "$BATS_TEST_TMPDIR/bin/real" && mv "$BATS_TEST_TMPDIR/bin/new" "$BATS_TEST_TMPDIR/bin/fakecloud"
  teardown_run
  [[ $status -eq 69 && $output != *': gone'* && $stderr == *'not known whether terminate took effect'* ]] || fail_with 'a refusal was taken for an end'
  grep -qx box-7 "$CLOUD/machines"
  # Refused before too: what its errors say of the box is no list that shows it.
  rm "$CLOUD/stubborn"
  teardown_run
  [[ $status -eq 69 && $output != *': gone'* ]] || fail_with 'a refusal was taken for a list'
  # It answers: an empty list is an answer.
  mv "$BATS_TEST_TMPDIR/bin/real" "$BATS_TEST_TMPDIR/bin/fakecloud"
  rm -f "$CLOUD/refused" "$CLOUD/stubborn"
  echo box-7 >"$CLOUD/machines"
  teardown_run
  [[ $status -eq 0 && $output == *gone* && ! -s $CLOUD/machines && ! -e $CLOUD/WRONG ]] || fail_with 'an empty list was no answer'
}

# How a profile reads its own tool: 0 gone, 1 there, 2 no answer.
looked() { # <profile> <verb> <instance>
  compile_job "$1" jobs/demo.yaml
  run bash -c 'source "$1"; INSTANCE=$3; load_action "$2"; look_gone && exit 0 || exit $?' - "$OUT/local/teardown.sh" "$2" "$3"
}

@test "teardown: vastai's refusals end with 0, and no list of it is believed that is none (case 128 T45)" {
  printf '%s\n' '#!/bin/sh' '[ "$*" = "show instances --raw" ] || exit 64' '. "$CLOUD/says"' >"$BATS_TEST_TMPDIR/bin/vastai"
  chmod +x "$BATS_TEST_TMPDIR/bin/vastai"
  local want says
  while IFS='|' read -r want says; do
    printf '%s\n' "$says" >"$CLOUD/says"
    looked vastai destroy 4242
    [[ $status -eq $want ]] || fail_with "$says: $status, not $want"
  done <<'SAYS'
2|echo 'Failed with error 401: Invalid user key' >&2; exit 0
2|echo '{"error": true, "status_code": 429, "msg": "[slow] 4242"}' >&2; exit 0
2|echo 'Expecting value: line 1 column 1 (char 0)' >&2
2|echo 'Failed with error 404: Your 2FA session has expired.'
2|echo '[]'; exit 1
1|echo '[{"id": 4242, "actual_status": "running"}]'
0|echo '[{"id": 42420, "label": null}]'
0|echo '[]'
SAYS
}

@test "teardown: gcloud's list is asked to fail where it is short, for left to itself it warns and ends with 0 (case 128 T45)" {
  printf '%s\n' '#!/bin/sh' '[ "$*" = "compute instances list --format=value(name)" ] || exit 64' \
    'if [ -e "$CLOUD/refused" ]; then' '  echo "Some requests did not succeed." >&2' '  [ "${CLOUDSDK_COMPUTE_ALLOW_PARTIAL_ERROR-}" != false ]; exit' 'fi' 'cat "$CLOUD/machines"' \
    >"$BATS_TEST_TMPDIR/bin/gcloud"
  chmod +x "$BATS_TEST_TMPDIR/bin/gcloud"
  looked gcp-gce delete box-7
  [[ $status -eq 1 ]] || fail_with 'not seen'
  : >"$CLOUD/refused"
  looked gcp-gce delete box-7
  [[ $status -eq 2 ]] || fail_with 'a list that was refused was believed'
  rm "$CLOUD/refused" && : >"$CLOUD/machines"
  looked gcp-gce delete box-7
  [[ $status -eq 0 ]] || fail_with 'an empty list was not believed'
}

@test "teardown: an AWS instance that shuts down bills no more and does not come back: it is no false alarm, and a stopping one is no end (case 128)" {
  printf '%s\n' '#!/bin/sh' '[ "$1 $2 $3" = "ec2 describe-instances --filters" ] || exit 64' '[ "$5 $6 $7 $8" = "--query Reservations[].Instances[].InstanceId --output text" ] || exit 64' \
    'state=$(cat "$CLOUD/state")' '[ "$state" != refused ] || exit 255' 'case ,${4#Name=instance-state-name,Values=}, in *",$state,"*) echo i-0abc ;; esac' >"$BATS_TEST_TMPDIR/bin/aws"
  chmod +x "$BATS_TEST_TMPDIR/bin/aws"
  local want state
  while read -r want state; do
    echo "$state" >"$CLOUD/state"
    looked aws-ec2 terminate i-0abc
    [[ $status -eq $want ]] || fail_with "$state: $status, not $want"
  done <<'STATES'
1 pending
1 running
1 stopping
1 stopped
0 shutting-down
0 terminated
2 refused
STATES
}

@test "teardown: each kind is sent where it can look and act, and none to ssh or a console that it has not (S66 case 132)" {
  local kind body=$BATS_TEST_TMPDIR/words.bash
  sed -n '/^where_seen() {$/,/^}$/p; /^way_home() {$/,/^}$/p' "$TD" >"$body"
  while read -r kind home seen; do
    run bash -c 'KIND=$1; source "$2"; printf "%s | %s" "$(way_home)" "$(where_seen)"' - "$kind" "$body"
    [[ $status -eq 0 && $output == *"$home"*" | "*"$seen"* ]] || fail_with "$kind: $output"
    [[ $kind == ssh-rental || $kind == cloud-vm || $kind == kubernetes || $output != *console* ]] || fail_with "$kind: $output"
    [[ $kind != notebook && $kind != kubernetes || $output != *ssh* ]] || fail_with "$kind: $output"
  done <<KINDS
owned ssh this machine
slurm ssh squeue --me and sacct
kubernetes P5.3 kubectl get jobs,pods,nodes
notebook P5.3 own page
ssh-rental ssh console
cloud-vm ssh console
KINDS
}

@test "teardown: nothing is done that cannot be recorded" {
  mkdir "$L/teardown.jsonl"
  teardown_run
  refused 74 'nothing is done unrecorded'
  not_acted
}

@test "teardown: a verb with steps prints them through the same gate, and says nothing that nobody saw (S97 S102)" {
  run --separate-stderr "$TD" delete-volume --run --approve "${OK/terminate/delete-volume}" </dev/null
  [[ $status -eq 69 && $output == *'Delete the volume in the console'* && $output == *'usual order'* && $output != *': gone'* ]] || fail_with 'wrong'
  printf '{"accuracy": 0.99}\n' >"$L/final_ckpts/a/metrics.json"
  run --separate-stderr "$TD" delete-volume --run --approve "${OK/terminate/delete-volume}" </dev/null
  refused 77 'not in order'
}

@test "teardown: every verb goes through the gate (S97)" {
  local verb
  rm "$L/PULL_MANIFEST.json"
  for verb in stop terminate delete-volume; do
    run --separate-stderr "$TD" "$verb" --run --approve "$verb box-7 ${OK##* }"
    refused 77
  done
  not_acted
}

@test "teardown: a wrong call is 64 and names the verbs; FAKE_ROOT, a bad price and a bad run are 78" {
  run --separate-stderr "$TD"
  refused 64
  run --separate-stderr "$TD" destroy
  refused 64 'stop terminate delete-volume'
  run --separate-stderr "$TD" terminate --force
  refused 64
  FAKE_ROOT=/x run --separate-stderr "$TD" terminate
  refused 78 FAKE_ROOT
  PRICE_PER_HOUR='1;id' run --separate-stderr "$TD" terminate
  refused 78 PRICE_PER_HOUR
  RUN=../x run --separate-stderr "$TD" terminate
  refused 78
  run "$TD" --help
  [[ $status -eq 0 && $output == *'stop terminate delete-volume'* ]]
}

@test "teardown: --accept is handed to its own verification, shown, and recorded; it helps no other doubt (S95 S98 S100)" {
  printf '{"accuracy": NaN}\n' >"$B/final_ckpts/a/metrics.json"
  manifest "$B" "$RUN_ID" done && bring_home && ok_text
  teardown_run
  refused 77 'not in order'
  # An accept of an earlier, separate verification is output, never input.
  python3 "$OUT/local/verify_local.py" "$L" --accept 'final_ckpts/a/metrics.json=diverged, is in the paper' >/dev/null
  teardown_run
  refused 77 'not in order'
  local one
  for one in final_ckpts/a/metrics.json =why 'final_ckpts/a/metrics.json= '; do
    run --separate-stderr "$TD" terminate --accept "$one"
    refused 64 'PATH=WHY'
  done
  for one in final_ckpts/b/metrics.json=other final_ckpts/c=none; do
    run --separate-stderr "$TD" terminate --run --approve "$OK" --accept "$one" </dev/null
    refused 77 'not in order'
  done
  not_acted
  run --separate-stderr "$TD" terminate --run --approve "$OK" --accept 'final_ckpts/a/metrics.json=diverged, is in the paper' </dev/null
  [[ $status -eq 0 && $output == *'accepted:         {"path": "final_ckpts/a/metrics.json"'* ]] || fail_with 'shut, or not shown'
  tail -n 1 "$L/teardown.jsonl" | grep -q '"confirmed": "gone", "deadline": null, "accepted": \[{"path": "final_ckpts/a/metrics.json", "verdict": "[a-z]*", "why": "diverged, is in the paper"}\]}'
  tail -n 1 "$L/teardown.jsonl" | "$PYTHON" -c 'import json, sys; json.loads(sys.stdin.read())'
}

@test "teardown: --accept cannot take a file that is not what the box hashed (S96 S98)" {
  printf '{"accuracy": 0.99}\n' >"$L/final_ckpts/a/metrics.json"
  run --separate-stderr "$TD" terminate --run --approve "$OK" --accept 'final_ckpts/a/metrics.json=it will do' </dev/null
  refused 77 'not in order'
  rm "$L/final_ckpts/a/metrics.json"
  run --separate-stderr "$TD" terminate --run --approve "$OK" --accept 'final_ckpts/a/metrics.json=it will do' </dev/null
  refused 77 'not in order'
  not_acted
}

@test "teardown: --data-dir and --durable-dir say where the run lies on the box, as in push and pull" {
  local data=$DATA_DIR durable=$DURABLE_DIR
  unset DATA_DIR DURABLE_DIR
  run --separate-stderr "$TD" terminate
  refused 77
  run --separate-stderr "$TD" terminate --data-dir
  refused 64
  run --separate-stderr "$TD" terminate --data-dir "$data" --durable-dir "$durable"
  [[ $status -eq 0 && $output == *'The gate is open'* ]] || fail_with 'shut'
}

@test "teardown: every single spoilt state keeps the gate shut, and the provider is never called (S95 S96 S97 F43 case 133)" {
  local number=0 spoil saved=$BATS_TEST_TMPDIR/saved
  mkdir "$saved"
  mkdir -p "$saved/l" "$saved/d" "$saved/b" && cp -Rp "$L/." "$saved/l/" && cp -Rp "$D/." "$saved/d/" && cp -Rp "$B/." "$saved/b/"
  while IFS= read -r spoil; do
    [[ -n $spoil ]] || continue
    rm -rf "${L:?}" "${D:?}" "${B:?}" && mkdir -p "$L" "$D" "$B" && cp -Rp "$saved/l/." "$L/" && cp -Rp "$saved/d/." "$D/" && cp -Rp "$saved/b/." "$B/"
    number=$((number + 1))
    (cd "$L" && eval "$spoil")
    teardown_run
    if [[ $status -eq 0 ]] || acted; then fail_with "open after: $spoil"; fi
  done <<SPOILS
$(spoils)
SPOILS
  ((number >= 60))
  # And the right state, once more, is open.
  rm -rf "${L:?}" "${D:?}" "${B:?}" && mkdir -p "$L" "$D" "$B" && cp -Rp "$saved/l/." "$L/" && cp -Rp "$saved/d/." "$D/" && cp -Rp "$saved/b/." "$B/"
  teardown_run
  [[ $status -eq 0 ]] || fail_with 'shut'
}

@test "teardown: where a container has no shutdown, poweroff is tried; neither is an error (X5 T45)" {
  mkdir "$BATS_TEST_TMPDIR/empty"
  call() { PATH=$BATS_TEST_TMPDIR/empty "$BASH" -c 'source "$1"; PATH=$2 COMMAND=$3; run_there' x "$TD" "$BATS_TEST_TMPDIR/empty" "$1"; }
  run call $'/sbin/gone/shutdown\n-h\nnow'
  [[ $status -eq 69 && $output == 'poweroff is not there' ]]
  printf '#!/bin/sh\necho poweroff "$@"\n' >"$BATS_TEST_TMPDIR/empty/poweroff"
  chmod +x "$BATS_TEST_TMPDIR/empty/poweroff"
  run call $'/sbin/gone/shutdown\n-h\nnow'
  [[ $status -eq 0 && $output == poweroff ]]
  run call $'reboot\nnow'
  [[ $status -eq 69 ]]
}

@test "teardown: over ssh it looks, acts on the box, and counts it as off only when it no longer answers (X5 S95 case 128 T45)" {
  start_box
  as_cluster
  no_sleep
  run --separate-stderr "$TD" off testbox
  [[ $status -eq 0 && $output == *'The gate is open'* && -s $L/known_hosts ]] || fail_with 'shut'
  run --separate-stderr "$TD" terminate
  refused 77 'without HOST'
  run --separate-stderr "$TD" terminate -oProxyCommand=x
  refused 64
  OK="off box-7 ${OK##* }"
  # The command is not on the box's PATH: nothing is switched off, and that is said.
  run --separate-stderr "$TD" off testbox --run --approve "$OK" </dev/null
  # A cluster has no console.
  [[ $status -eq 1 && $stderr == *'FAILED: box-7 is still there'*'end it with squeue --me and sacct, on the login node now'* ]] || fail_with 'not loud'
  # What leaves the box as it is does not wait for its silence, and the box that still answers is no failure (case 128).
  run --separate-stderr "$TD" withdraw testbox --run --approve "withdraw ${OK#off }" </dev/null
  [[ $status -eq 69 && $output == *'the queue shows it no longer'* && $stderr == *'not known whether withdraw took effect: look with squeue'* ]] || fail_with 'not asked'
  # Now it is.
  printf '#!/bin/sh\nkill %s\n' "$SSHD_PID" >"$BATS_TEST_TMPDIR/sshd/bin/gpu-runbook-test-off"
  chmod +x "$BATS_TEST_TMPDIR/sshd/bin/gpu-runbook-test-off"
  run --separate-stderr "$TD" off testbox --run --approve "$OK" </dev/null
  [[ $status -eq 0 && $output == *'off box-7: no longer reachable (receipt '* ]] || fail_with 'not off'
  tail -n 1 "$L/teardown.jsonl" | grep -q '"ran": true, "confirmed": "unreachable"'
}

@test "teardown: a box that does not answer shuts it, but for a run that switched it off after its success (S95 F57 case 132)" {
  need_tool ssh
  as_cluster
  printf '#!/bin/sh\necho "ssh: connect to host testbox port 22: Connection refused" >&2\nexit 255\n' >"$BATS_TEST_TMPDIR/bin/ssh"
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
  success() { # <power_off> <manifest digest> <run id>
    record "$L/FORMAL_SUCCESS" 'schema:"formal_success/1"' "run_id:\"$3\"" 'start_id:"5e0c11d2"' "manifest_sha256:\"$2\"" "power_off:$1"
  }
  local digest
  digest=$(sha "$L/PULL_MANIFEST.json")
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  success false "$digest" "$RUN_ID"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  success true "${digest/[0-9a-f]/x}" "$RUN_ID"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  success true "$digest" "$OTHER_ID"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  not_acted
  success true "$digest" "$RUN_ID"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  [[ $status -eq 0 && $output == *'terminate box-7: gone'* ]] || fail_with 'shut'
  # The volume, later: the box was seen to go by this gate and is not in the list now either (S102).
  rm "$L/FORMAL_SUCCESS"
  run --separate-stderr "$TD" delete-volume testbox
  [[ $status -eq 0 ]] || fail_with 'shut for the volume'
  echo box-7 >>"$CLOUD/machines"
  run --separate-stderr "$TD" delete-volume testbox
  refused 77 'does not answer'
}

@test "teardown: the box that this gate stopped may be deleted though it is silent, and no other (S95 F57 case 132)" {
  need_tool ssh
  as_cluster
  local entry digest
  printf '#!/bin/sh\necho "ssh: connect to host testbox port 22: Connection refused" >&2\nexit 255\n' >"$BATS_TEST_TMPDIR/bin/ssh"
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
  digest=$(sha "$L/PULL_MANIFEST.json")
  # What the running list does not show, while the other list still does.
  printf 'box-77\n' >"$CLOUD/running"
  stopped() { # <verb> <instance> <manifest> <ran> <confirmed>
    printf '{"time": "2026-08-03T15:00:00Z", "verb": "%s", "instance": "%s", "manifest_sha256": "%s", "ran": %s, "confirmed": "%s", "deadline": null}\n' "$@" >"$L/teardown.jsonl"
  }
  while read -r -a entry; do
    stopped "${entry[@]:0:4}" "${entry[*]:4}"
    run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
    refused 77 'does not answer'
  done <<ENTRIES
stop box-77 $digest true gone
stop box-7 ${digest/[0-9a-f]/x} true gone
stop box-7 $digest false unknown
stop box-7 $digest true unknown
stop box-7 $digest true unreachable
stop box-7 $digest true present
restart box-7 $digest true gone
ENTRIES
  stopped stop box-7 "$digest" true gone
  printf 'box-7\nbox-77\n' >"$CLOUD/running"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  refused 77 'does not answer'
  not_acted
  printf 'box-77\n' >"$CLOUD/running"
  run --separate-stderr "$TD" terminate testbox --run --approve "$OK"
  [[ $status -eq 0 && $output == *'terminate box-7: gone'* && $stderr == *"has 'stop' of it"* ]] || fail_with 'shut'
}

@test "teardown: where nothing leads to the box the same gate holds, commands are only printed, and it says that nobody looked" {
  local notebook
  compile_job kaggle jobs/demo.yaml
  TD=$OUT/local/teardown.sh
  notebook=$HOME/gpu-runs/kaggle.demo
  mv "$L" "$notebook" && rm "$notebook/box.json"
  run --separate-stderr "$TD" finish --run --approve "${OK/terminate/finish}" </dev/null
  [[ $status -eq 69 && $output == *'step:'* && $stderr == *'nobody looked at the box'* && $output != *': gone'* ]] || fail_with 'wrong'
  printf 'x' >>"$notebook/final_ckpts/a/metrics.json"
  run --separate-stderr "$TD" finish --run --approve "${OK/terminate/finish}" </dev/null
  refused 77 'not in order'
}

@test "teardown: a person who types the command is told what to see, where the profile has a command to look with (S100)" {
  local kube
  compile_job kubernetes jobs/demo.yaml
  TD=$OUT/local/teardown.sh
  kube=$HOME/gpu-runs/kubernetes.demo
  mv "$L" "$kube" && rm "$kube/box.json"
  run --separate-stderr "$TD" delete-job --run --approve "${OK/terminate/delete-job}" </dev/null
  [[ $status -eq 69 && $output == *'then see: '*'kubectl get jobs -o name: box-7 is no longer in it'* ]] || fail_with 'nothing to see'
}

@test "teardown: a run that was pushed to other folders than these is not overlooked where nothing of it is home (S95 F43)" {
  # Pushed before it began, so that box.json knows no run yet; it has ended, and was never pulled.
  rm -rf "${L:?}"/* && rm -rf "${B:?}"
  record "$L/box.json" 'schema:"box/1"' 'run_id:""' 'profile:"machine"' 'host:"local"' 'instance:"box-7"' 'host_key:""' \
    "data_dir:\"$DATA_DIR\"" "durable_dir:\"$DURABLE_DIR\""
  run --separate-stderr "$TD" terminate
  refused 77 'nothing of it is home'
  mkdir "$BATS_TEST_TMPDIR/elsewhere"
  TYPED=DATA_DIR DATA_DIR=$BATS_TEST_TMPDIR/elsewhere run --separate-stderr "$TD" terminate
  refused 77 "push had '$DATA_DIR'"
  run --separate-stderr "$TD" terminate --data-dir "$BATS_TEST_TMPDIR/elsewhere"
  refused 77 "push had '$DATA_DIR'"
  run --separate-stderr "$TD" terminate --durable-dir "$BATS_TEST_TMPDIR/elsewhere"
  refused 77 "push had '$DURABLE_DIR'"
  not_acted
}
