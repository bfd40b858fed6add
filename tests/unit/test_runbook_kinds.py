"""A runbook speaks only of what its kind of box has: the scripts that are there, remedies that can be had, ways that exist."""

import os
import re
import signal
import subprocess
import time

import pytest
import yaml
from generator import render, runbook
from runbook_pages import PROFILES, blocks, bound, outside_fences, section, text

KIND = {profile: bound(profile)["KIND"].value for profile in PROFILES}
NOTEBOOKS = [profile for profile in PROFILES if KIND[profile] == "notebook"]


@pytest.mark.parametrize("profile", PROFILES)
def test_no_patrol_and_no_formal_run_where_there_is_none(profile):  # S38 S69 S75
    page = text(profile)
    watched, detached = KIND[profile] not in ("notebook", "kubernetes"), KIND[profile] in ("owned", "ssh-rental", "cloud-vm")
    part = section(page, "Phase 4: monitoring")
    assert ("**P4.2** What it compares with its last look" in part) == ("patrol.sh" in render.scripts(KIND[profile])["local"]) == watched
    assert ("patrol.sh" in page) == watched
    # The run is started by formal_run.sh on a box with a shell of its own; elsewhere by what P3.2 names.
    assert ("formal_run.sh" in re.sub(r"## Gotchas.*", "", page, flags=re.S)) == detached
    layer = next(line for line in part.splitlines() if line.startswith("| 1 |"))
    starts = {"notebook": "session.sh", "slurm": "batch job", "kubernetes": "the Job"}.get(KIND[profile], "formal_run.sh")
    assert starts in layer and starts.split()[-1] in section(page, "Phase 3: detached launch"), layer
    only = re.search(r"`([^`]*) --only CELL,…` runs only these cells", page)
    assert only and only[1] == {"notebook": "session.sh --", "slurm": "run_queue.sh", "kubernetes": "run_queue.sh"}.get(KIND[profile], "formal_run.sh start")


@pytest.mark.parametrize("profile", PROFILES)
def test_more_room_is_a_remedy_that_can_be_had(profile):  # S108 case 38: nobody enlarges a notebook's disk or a site's quota
    remedy = {"notebook": "no larger disk can be had here", "slurm": "ask the site for more quota", "kubernetes": "ask for a larger claim",
              "owned": "free what fills it, or add a larger disk"}.get(KIND[profile], "ask for a larger disk")
    page = outside_fences(text(profile))
    assert f"Not enough room: {remedy}" in section(page, "Phase 0: environment audit")
    assert f"**{remedy}" in next(line for line in page.splitlines() if line.startswith("| `disk_full`"))
    assert ("ask for a larger disk" in page) == (remedy == "ask for a larger disk")


@pytest.mark.parametrize("profile", NOTEBOOKS)
def test_a_notebook_tells_one_story_of_ssh(profile):  # S38: no "there is no ssh" beside a way to use it
    page, flavour = text(profile), bound(profile).profile["network"]["ssh"]["flavour"]
    p12 = next(line for line in page.splitlines() if "**P1.2**" in line)
    assert ("no ssh" in p12) == (flavour == "none") and "ProxyCommand" not in page
    assert ("Nothing in this file goes through ssh" in p12 and "For a look by hand there is one:" in p12) == (flavour != "none")
    assert ("No ssh here" in page) == (flavour == "none") and "needs ssh" not in page
    for body in blocks(page, "bash") + blocks(page, "bash verify"):
        assert not re.search(r"\bssh\b", body)


def test_what_a_pushed_version_can_not_be_told_is_asked_from_home():  # S82 S86 S87: its box takes no words, and is gone at the end
    page = text("kaggle")
    for heading in ("Phase 3: detached launch", "Phase 4: monitoring"):
        assert blocks(section(page, heading), "bash verify") == [
            'said=$(kaggle kernels status "${INSTANCE:?}") && printf \'%s\\n\' "$said" | grep -E "QUEUED|RUNNING|COMPLETE"\n']
    assert 'kaggle kernels logs "${INSTANCE:?}" -f' in section(page, "Phase 4: monitoring")
    push = re.search(r"kaggle kernels push -p \. -t (\d+)", section(page, "Phase 3: detached launch").split("**P3.3**")[0])
    # S11: a limit of the push that is shorter than the session's own clock kills the run before it has saved and aggregated.
    assert push and int(push[1]) >= bound("kaggle")["SESSION_S"].value + 3600
    assert "then the push of `run.py`" in section(page, "Short path")
    home = section(page, "Phase 5: aggregate, pull, verify, teardown")
    assert "nothing can be typed there any more" in home.split("**P5.2**")[0]
    for body in blocks(home, "bash"):
        assert "/kaggle/" not in body and "DATA_DIR" not in body, body
    assert 'kaggle kernels output "${INSTANCE:?}" -o -p ' in home.split("**P5.3**")[1].split("**P5.4**")[0]
    assert not re.search(r"\bDIR\b|\bWORDS\b", page)  # S8
    # The private dataset that carries the code is made where the code is brought.
    assert "kaggle datasets create -p dataset" in section(page, "Phase 1: connection and credentials").split("**P1.5**")[1].split("**P1.6**")[0]


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_said_of_a_version_elsewhere(profile):
    assert ("pushed version" in text(profile)) == ("from_home" in bound(profile).profile["daemon"]) == (bound(profile)["DETACH"].value == "commit")


@pytest.mark.parametrize("profile", NOTEBOOKS)
def test_the_reader_of_a_notebook_knows_where_to_type(profile):  # S8: one mark tells the box's blocks from those of this machine
    page = text(profile)
    assert "Commands with `${DATA_DIR` in them are typed on the box" in page.split("\n## ")[0]
    for body in blocks(page, "bash") + blocks(page, "bash verify"):
        here = re.search(r"local/|notebook/|LOCAL_DIR|CODE_DIR|PRICE_PER_HOUR|INSTANCE", body)
        assert ("${DATA_DIR" in body) != bool(here), body


def test_a_schedulers_job_is_pending_running_or_over():  # S66 S67 S100: what it waits for is no failure, and what has ended is not cancelled
    for profile, words in (("slurm", "the job is pending or runs"), ("kubernetes", "the pod runs (pending: look again)")):
        assert f"evidence: {words}; within 60 s of its start the first log line" in section(text(profile), "Phase 3: detached launch")
    verify = blocks(section(text("slurm"), "Phase 3: detached launch"), "bash verify")[0]
    assert "squeue" in verify and "attempt-*.log" in verify
    for profile in PROFILES:
        b = bound(profile)
        over = [one["verb"] for one in b.actions if one["like"] == "none" and one["stops_meter"] and one["verb"] != b["METER_STOP"].value]
        assert [f"type `{verb}` in its place" in section(text(profile), "Phase 5: aggregate, pull, verify, teardown") for verb in over] == [True] * len(over)
        assert bool(over) == ("has ended by itself" in text(profile)) == (profile == "slurm")


@pytest.mark.parametrize("profile", PROFILES)
def test_no_sentence_without_its_object(profile):  # S27 S93: a list of nothing, a tracker that the job has not, a verification without its command
    page = text(profile)
    assert "before the launch: nothing" not in page and "before the launch: ." not in page
    # S27: a shared or kept storage has its place; a disk of the box's own is always where the box is.
    tied = [one["name"] for one in bound(profile).tiers if one["region_locked"] and (one["survives"]["destroy"] or one["shared"]) and KIND[profile] != "owned"]
    line = page.split("**P0.3** Region: ")[1].split("\n")[0]
    assert line == (f"what outlives the box is tied to its place; see before the launch that the box lies where it is: {', '.join(tied)}." if tied
                    else "no storage here is apart from the box and tied to one place.")
    assert "the tracker's address where there is a tracker" in page and "Verify, by the block at the end of this phase (`local/verify_phase.sh 5` runs it)" in page


PODS = [profile for profile in PROFILES if KIND[profile] == "kubernetes"]


@pytest.mark.parametrize("profile", PODS)
def test_a_pod_is_no_evidence_of_a_run(profile, tmp_path):  # S66 S67: what counts is a claimed cell and what it printed
    block = blocks(section(text(profile), "Phase 3: detached launch"), "bash verify")[0]
    (tmp_path / "kubectl").write_text('#!/bin/bash\ncase $1 in get) echo "run-x7 1/1 ${POD}" ;; *) [[ $POD == Running ]] || exit 1\n'
                                      'until [[ $1 == -- ]]; do shift; done; shift; exec "$@" ;; esac\n')
    (tmp_path / "kubectl").chmod(0o755)
    run = tmp_path / "data/demo"
    run.mkdir(parents=True)

    def typed(pod):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "INSTANCE": "run", "POD": pod, "BOX_ENV": f'DATA_DIR="{tmp_path}/data"'}
        return subprocess.run(["bash", "-c", block], env=env, capture_output=True, text=True)
    assert typed("Running").returncode != 0
    (run / "claims/a").mkdir(parents=True)
    (run / "logs/a").mkdir(parents=True)
    (run / "logs/a/attempt-001.log").write_text("gpu-runbook: cell a attempt 1\nepoch 1/12 loss 0.5\n")
    assert (typed("Running").returncode, typed("Running").stdout) == (0, "run-x7 1/1 Running\na\nepoch 1/12 loss 0.5\n")
    assert typed("Pending").returncode != 0 and "epoch" not in typed("Pending").stdout


@pytest.mark.parametrize("profile", PODS)
def test_a_pods_warning_reaches_the_queue(profile, tmp_path):  # S50 S105 case 131: a shell as process 1 swallows TERM, and no second pod adopts
    page, b = text(profile), bound(profile)
    spec = yaml.safe_load(blocks(page, "yaml")[0])["spec"]
    pod = spec["template"]["spec"]
    assert spec["completions"] == 1 and spec["podReplacementPolicy"] == "Failed" and pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] > b["GRACE_S"].value + 30
    one = pod["containers"][0]
    assert {"name": "RUN", "value": "demo"} in one["env"]
    box = tmp_path / "demo/box/current"
    box.mkdir(parents=True)
    (box / "run_queue.sh").write_text("trap 'echo warned >warned; exit 1' TERM\necho \"$*\" >began\nwhile :; do sleep 0.1; done\n")
    (box / "aggregate_to_fs.sh").write_text("cat began warned >all\n")
    with subprocess.Popen(one["command"], env={"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path), "RUN": "demo"}) as shell:
        try:
            end = time.monotonic() + 30
            while not (box / "began").exists() and time.monotonic() < end:
                time.sleep(0.02)
            # Again and again: the first may come before the shell knows the queue's number.
            while shell.poll() is None and time.monotonic() < end:
                shell.send_signal(signal.SIGTERM)
                time.sleep(0.1)
            assert shell.wait(30) == 0
        finally:
            shell.kill()
    assert (box / "all").read_text() == "--adopt\nwarned\n"
    # What brings the results home needs a pod again: the holding one ended for the run, and the run's ends with it.
    home = section(page, "Phase 5: aggregate, pull, verify, teardown").split("**P5.2**")[0]
    assert "make the holding Job of P-1.9 again and write its name into `INSTANCE`" in home


@pytest.mark.parametrize("profile", PROFILES)
def test_a_power_off_says_what_it_depends_on(profile):  # S101 F35: a stop that terminates, a subscription that goes on
    b, part = bound(profile), section(text(profile), "Phase 3: detached launch").split("**P3.3**")[0]
    command = b["POWER_OFF_COMMAND"].value
    if not command:
        assert "With `--power-off`" not in part
        return
    action = next(one for one in b.actions if one.get("command") == command)
    line = next(line for line in part.splitlines() if "With `--power-off`" in line)
    assert runbook.check(action) + runbook.prose(action.get("note", "")) in line and runbook.cite(action) in line


@pytest.mark.parametrize("profile", PODS)
def test_what_is_typed_for_a_pod_is_typed_here(profile):  # S8: "all commands are typed here", so none is a bare one of the box
    page = outside_fences(text(profile))
    assert "All commands are typed here; those with `kubectl exec` run in the pod" in page
    assert [span for span in re.findall(r"`([^`]+)`", page) if re.match(r"cd |bash \./", span)] == []
    assert "with the block at the end of this phase: `local/verify_phase.sh 4` runs it" in section(page, "Phase 4: monitoring")
    # S97: P3.2 is given again after an interruption, when INSTANCE names the run's own Job.
    assert re.search(r"names that one, and never with a run's, $", section(page, "Phase 3: detached launch").split("`kubectl delete job")[0])


@pytest.mark.parametrize("profile", PROFILES)
def test_the_first_login_has_its_address_and_its_order(profile):  # S16 S37: nobody guesses where the box is, or types there before there is a way in
    if KIND[profile] not in ("ssh-rental", "cloud-vm"):
        return
    page = text(profile)
    assert "where the box answers ([P1.3](#phase-1-connection-and-credentials) has the way to read them)" in section(page, "Your values")
    create = page.split("- [ ] **P-1.9**")[1].split("- [ ] **P-1.10**")[0]
    there = re.findall(r"^    1\. On the box\b.*", create, re.M)
    assert bool(there) == ("typed *on the box* waits for the alias (P-1.10)" in create)
    assert bool(there) == ("do there what P-1.9 wants *on the box*" in section(page, "Short path"))
    assert all(re.search(r"`[^`]*\bmount ", one) for one in there if re.search(r"\bmount\b", one)), there


@pytest.mark.parametrize("profile", PROFILES)
def test_going_on_elsewhere_names_the_word_that_its_kind_has(profile):  # S72: `--adopt` is typed only where formal_run starts the run
    part = section(text(profile), "Phase 4: monitoring").split("**P4.3**")[1].split("**P4.4**")[0]
    if KIND[profile] in ("slurm", "kubernetes", "notebook"):
        assert "gone for good: P3.2 once more, see [Failure handling]" in part and "`--adopt`" not in part
    else:
        assert KIND[profile] == "owned" or "with `--adopt`, see [Failure handling]" in part or "what was pulled goes back, see" in part


@pytest.mark.parametrize("profile", ["kaggle", "kubernetes"])
def test_a_remedy_names_no_script_that_its_kind_has_not(profile):  # S38 S91: there is no push, pull or patrol without ssh
    b = bound(profile)
    for path, output in render.render(b).items():
        if not path.endswith((".sh", ".py")) or path.startswith("notebook/"):
            continue
        for line in output.data.decode().splitlines():
            if re.search(r"\b(push|pull|patrol)\.sh\b", line) and not line.lstrip().startswith("#"):
                assert "where there is ssh" in line or "if there else" in line or '"pull.sh"' in line or "box.json does not say" in line, (path, line)
