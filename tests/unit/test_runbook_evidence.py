"""A verify block is evidence: it fails where the thing that it asks for is not so. Run as it is typed, with fakes in front."""

import os
import re
import subprocess
import time

import pytest
from conftest import FIXTURES
from generator import runbook
from runbook_pages import PROFILES, PULL_ONLY, RENTED, SSH, blocks, bound, every, outside_fences, section, text

PATH = os.environ["PATH"]


def fake(folder, name: str, body: str) -> None:
    (folder / name).write_text("#!/bin/bash\n" + body)
    (folder / name).chmod(0o755)


def verify(profile: str, heading: str, job: str = "demo") -> str:
    return blocks(section(text(profile, job), heading), "bash verify")[0]


def typed(block: str, tmp_path) -> subprocess.CompletedProcess:
    """The block of a page of the own machine, in a folder of its own; what lies in bin/ comes first."""
    env = {"PATH": f"{tmp_path}/bin:{PATH}", "HOME": str(tmp_path), "DATA_DIR": str(tmp_path / "data"), "RUN": "demo"}
    return subprocess.run(["bash", "-c", block], cwd=tmp_path, env=env, capture_output=True, text=True)


@pytest.fixture(name="here")
def own_machine(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "data/demo").mkdir(parents=True)
    return tmp_path


def test_the_cards_are_counted(here):  # S35: no card, or fewer than a cell needs, is billed all the same
    block = verify("local", "Phase 0: environment audit", "sweep")
    needed = bound("local", "sweep")["NEED_GPUS"].value
    assert needed >= 1
    fake(here / "bin", "df", "echo 'Filesystem Inodes IUsed IFree IUse% Mounted on'; echo '/dev/x 100 10 90 10% /data'\n")
    for cards, expected in ((needed - 1, 1), (needed, 0), (needed + 1, 0)):
        fake(here / "bin", "nvidia-smi", f"for i in $(seq {cards}); do case $1 in -L) echo \"GPU $i: NVIDIA X\" ;; *) echo 'NVIDIA X' ;; esac; done\n")
        assert typed(block, here).returncode == expected, cards
    fake(here / "bin", "nvidia-smi", "exit 9\n")
    assert typed(block, here).returncode != 0


@pytest.mark.parametrize("used,expected", [(0, 0), (9, 0), (79, 0), (80, 1), (89, 1), (90, 1), (99, 1), (100, 1)])
def test_the_inodes_in_use_are_below_the_threshold(used, expected, here):  # S36 U21
    fake(here / "bin", "df", f"echo 'Filesystem Inodes IUsed IFree IUse% Mounted on'; echo '/dev/x 800000 90 100 {used}% /data/85%'\n")
    got = typed(verify("local", "Phase 0: environment audit"), here)
    assert got.returncode == expected and (f" {used}% " in got.stdout) == (expected == 0)


def test_a_smoke_that_failed_is_no_smoke(here):  # S57: the record's words are shown, and decide
    block, record = verify("local", "Phase 2: queue and smoke"), here / "data/demo/smoke.json"
    assert typed(block, here).returncode != 0
    for result, expected in (("failed", 1), ("waived", 1), ("passed", 0)):
        record.write_text(f'{{\n  "schema": "smoke/1",\n  "result": "{result}",\n  "commit": "c0ffee",\n  "exit": 0,\n  "why": "it passed yesterday"\n}}\n')
        got = typed(block, here)
        assert got.returncode == expected and got.stdout == f'  "result": "{result}",\n  "commit": "c0ffee",\n  "exit": 0,\n', result


def test_what_an_attempt_of_yesterday_printed_is_no_launch(here):  # S67 S77: an old log stands there after each restart
    status, log = here / "box/formal_run.sh", here / "data/demo/logs/a/attempt-001.log"
    status.parent.mkdir()
    fake(status.parent, status.name, "echo running\n")
    log.parent.mkdir(parents=True)
    (here / "data/demo/formal.log").write_text("step queue\n")
    log.write_text("epoch 7/12 loss 0.5\n")
    assert typed(verify("local", "Phase 3: detached launch"), here).stdout.endswith("epoch 7/12 loss 0.5\n")
    old = time.time() - 3600
    os.utime(log, (old, old))
    assert typed(verify("local", "Phase 3: detached launch"), here).stdout == "running\nstep queue\n"


@pytest.mark.parametrize("profile", [one for one in PROFILES if "from_home" not in bound(one).profile["daemon"]])
def test_every_kind_asks_for_what_cells_print_now(profile):  # S66 S67: the same look, whatever leads there
    block = verify(profile, "Phase 3: detached launch")
    assert re.search(r'-name \\?"attempt-\*\.log\\?" -mmin -5 -exec grep -hv \\?"\^gpu-runbook: \\?" \{\} \+ \| tail -n 4', block), block
    kind = bound(profile)["KIND"].value
    asked = {"slurm": "squeue", "kubernetes": "kubectl get pods", "notebook": "/claims"}.get(kind, "formal_run.sh status &&")
    assert asked in block


@pytest.mark.parametrize("profile", SSH)
def test_each_command_there_takes_the_one_alias(profile):  # S16 S45: the speed too is that of the way the transfer takes
    for body in blocks(text(profile, "sweep"), "bash") + blocks(text(profile, "sweep"), "bash verify"):
        for target in re.findall(r"(?:^|[|(] ?)ssh (?:-n |-o \S+ )*(\S+)", body, re.M):
            assert target == '"${HOST:?}"', (target, body)


@every
def test_the_frame_says_what_holds_everywhere(profile):  # S9 S13 S34: skipped with evidence, clocks also then, room before the start
    page = outside_fences(text(profile))
    head = page.split("## Contents")[0]
    assert "where a whole phase is done already, tick its last box\nand write the date and what the verify block printed beside it" in head
    assert section(page, "Danger clocks").startswith("\nThese strike by themselves, also when you skip phase -1.\n")
    assert "A start that would not fit is refused by the queue itself (73)." in section(page, "Phase 0: environment audit")


def test_the_jobs_of_these_tests_need_a_card():
    assert (FIXTURES / "sweep.yaml").is_file() and bound("local", "sweep")["NEED_GPUS"].value and not bound("local")["NEED_GPUS"].value


@every
def test_results_are_counted_where_they_are_kept(profile):  # S86: a record on the data tier is none in the bundle
    page, b = text(profile), bound(profile)
    counted = section(page, "Phase 5: aggregate, pull, verify, teardown").split("**P5.2**")[1].split("**P5.3**")[0]
    (block,) = blocks("\n" + counted, "bash")
    folder = "LOCAL_DIR" if "from_home" in b.profile["daemon"] else "DURABLE_DIR"
    assert re.search(r"^(?:ssh|kubectl)?.*find \\?\"\\?\$\{" + folder + r"[:-]", block, re.M), block


@every
def test_the_gate_is_asked_before_anything_is_done(profile):  # S95 S96: the block that only asks has no --run, and stands first
    b, home = bound(profile), section(text(profile), "Phase 5: aggregate, pull, verify, teardown")
    ask, act = (blocks("\n" + home.split(f"**{step}**")[1].split("\n- [ ]")[0], "bash") for step in ("P5.8", "P5.9"))
    assert len(ask) == len(act) == 1 and ask[0].split()[:2] == ["local/teardown.sh", b["METER_STOP"].value]
    assert "--run" not in ask[0] and act[0].split() == [*ask[0].split(), "--run"]
    assert "teardown.sh" not in home.split("**P5.8**")[0]
    # S97: the law names each verb, also those that only stop something.
    law = re.search(r"> \*\*The iron law\.\*\* No (.*), and no deleting of files, before the results are", home)[1].replace("\\", "")
    assert law.split(", ") == [action["verb"] for action in b.actions]
    assert "before the results are **pulled home and verified by loading them**, and you have approved that very action." in home
    assert "Until then each hour costs `$PRICE_PER_HOUR`." in home.split("**P5.7**")[1].split("**P5.8**")[0]  # X10


@pytest.mark.parametrize("profile", RENTED)
def test_the_cost_is_computed_from_the_price(profile, tmp_path):  # X10: 4 cells of 30 minutes, at 1.50 an hour
    part = section(text(profile, "sweep"), "Phase -1: one-time setup")
    block = next(body for body in blocks(part, "bash") if "PRICE_PER_HOUR" in body)
    got = subprocess.run(["bash", "-c", block], env={"PATH": PATH, "PRICE_PER_HOUR": "1.50"}, capture_output=True, text=True)
    assert (got.returncode, got.stdout) == (0, "compute: 3.00\n")
    assert subprocess.run(["bash", "-c", block], env={"PATH": PATH, "PRICE_PER_HOUR": ""}, capture_output=True).returncode != 0


@pytest.mark.parametrize("profile", [one for one in PULL_ONLY if one in SSH])
def test_what_was_pulled_goes_back_whole(profile, tmp_path):  # S50 case 131: without the records every cell begins anew
    (block,) = [body for body in blocks(section(text(profile), "Failure handling"), "bash") if "tar -xof" in body]
    (tmp_path / "bin").mkdir()
    fake(tmp_path / "bin", "ssh", 'exec bash -c "${*:2}"\n')
    home, names = tmp_path / f"home/{profile}.demo", ["final_ckpts/a/best.pt", "records/a.json", "run.json", "events.tsv", "queue.tsv"]
    for name in [*names, "smoke.json", "box.json", "PULL_VERIFIED.json"]:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    env = {"PATH": f"{tmp_path}/bin:{PATH}", "HOME": str(tmp_path), "LOCAL_DIR": str(tmp_path / "home"), "HOST": "h", "BOX_ENV": f'DATA_DIR="{tmp_path}/box"'}
    subprocess.run(["bash", "-euo", "pipefail", "-c", block], env=env, check=True)
    # The laptop's own records stay there: the box has none but its own smoke.
    assert {str(path.relative_to(tmp_path / "box/demo")) for path in (tmp_path / "box/demo").rglob("*") if path.is_file()} == set(names)


@every
def test_the_room_to_rent_is_the_sum_of_the_budget(profile):  # S19: 4 cells of 2.5 GB and a reserve of 1
    step = section(text(profile, "sweep"), "Phase -1: one-time setup").split("**P-1.5**")[1].split("**P-1.6**")[0]
    assert ("Room at home: 11 GB." if profile in PULL_ONLY else "with at least 11 GB, the sum of [P0.5]") in step


@pytest.mark.parametrize("profile", SSH)
def test_the_link_is_watched_as_the_profile_says(profile):  # S17
    part, keep = section(text(profile), "Phase -1: one-time setup"), bound(profile).profile["network"]["keepalive"]
    assert f'"  ServerAliveInterval {keep["interval_s"]}" "  ServerAliveCountMax {keep["count_max"]}"' in part
    assert f"a dead link after {keep['interval_s']} × {keep['count_max']} s" in part


@every
def test_a_weak_clock_is_weak_the_second_time_too(profile):  # S12 S13
    again = section(text(profile), "Phase 5: aggregate, pull, verify, teardown").split("**P5.6**")[1].split("**P5.7**")[0].replace("\\_", "_")
    for clock in bound(profile).clocks:
        assert f"  - **{clock['id']}** {runbook.check(clock)}{runbook.prose(clock['effect'])}".replace("\\_", "_") in again


@every
def test_what_outlives_nothing_is_brought_home_in_time(profile):  # S26 S102: hours of work on a box that ends without notice; one copy is none
    b, page = bound(profile), text(profile)
    often = "do it every few hours, for nothing else outlives this box" in section(page, "Phase 4: monitoring")
    assert often == (profile in PULL_ONLY and b["KIND"].value in ("ssh-rental", "cloud-vm"))
    assert ("none is left here, so keep a second copy at home" in section(page, "Phase 5: aggregate, pull, verify, teardown")) == (profile in PULL_ONLY)


@every
def test_two_of_one_run_are_warned_of(profile):  # case 131 T19: --adopt counts the other one as dead
    lost, kind = section(text(profile), "Failure handling"), bound(profile)["KIND"].value
    if kind in ("slurm", "kubernetes", "notebook"):
        assert "says `--adopt` itself; never let two of them run at once." in lost
    elif kind != "owned":
        assert re.search(r"--adopt`[^`]*only when that box is gone for good\.", lost, re.S)


@every
def test_the_seconds_until_the_kill_are_the_platforms_own(profile):  # S105: its number with its source, or none; ours beside it
    b, part = bound(profile), section(text(profile), "Phase 4: monitoring").split("**P4.3**")[1]
    given, kind = b.profile["interruption"], b["KIND"].value
    signal, theirs = given["signal"], given["grace_s"]
    if kind == "slurm":
        assert f"signal `TERM`, {b['GRACE_S'].value + 60} s before the limit" in part
    elif signal == "none":
        assert "No warning signal comes before the kill" in part
    elif theirs is None:
        assert " s until the kill" not in part
        assert kind == "owned" or f"Signal `{signal}`; when the kill follows is not known;" in part
    else:
        assert f"Signal `{signal}`, then {theirs} s until the kill;" in part
    assert kind == "slurm" or signal == "none" or f"; a cell gets {b['SIGNAL_GRACE_S'].value} s to save;" in part


@every
def test_a_verb_of_the_box_is_typed_there(profile):  # S16 S100: `shutdown` alone, typed at home, ends the reader's machine
    b, table = bound(profile), section(text(profile), "Teardown table")
    for action in b.actions:
        if "command" not in action:
            continue
        typed = " ".join(action["command"]).replace("{instance}", '"$INSTANCE"')
        there = 'ssh "$HOST" ' if action["where"] == "box" and b["KIND"].value in ("ssh-rental", "cloud-vm", "slurm") else ""
        assert f"**{action['verb']}**: `{there}{typed}`" in table.replace("\\|", "|"), action["verb"]


def test_a_save_that_takes_longer_than_the_platform_waits_is_said():  # case 79: the page too, not the compiler's warning alone
    for job, long in (("sweep", True), ("demo", False)):
        part = section(text("runpod", job), "Phase 4: monitoring").split("**P4.3**")[1].split("**P4.4**")[0]
        assert bound("runpod", job)["SAVE_S"].value == (20 if long else 2)
        assert ("one checkpoint takes 20 s, which is **too long**: what was done since the last whole checkpoint is lost." in part) == long
        assert "too long" not in section(text("vastai", job), "Phase 4: monitoring")


def test_a_verb_stands_in_the_row_that_it_is_like():  # S100
    rows = {("return", "stop"): "stop", ("return", "destroy"): "release", ("release", "destroy"): "release", ("scale-down", "destroy"): "release",
            ("terminate", "destroy"): "terminate", ("scancel", "destroy"): "terminate", ("delete-job", "destroy"): "destroy", ("finish", "none"): "stop",
            ("end-rental", "destroy"): "destroy", ("delete-files", "storage"): "delete files", ("delete-volume", "storage"): "cancel subscription"}
    for (verb, like), row in rows.items():
        assert runbook.row_of({"verb": verb, "like": like}) == row, verb


@pytest.mark.parametrize("profile", [one for one in SSH if bound(one)["CRED_FILE"].value])
def test_secrets_land_in_a_file_for_one_reader(profile):  # S41 S42
    step = section(text(profile, "sweep"), "Phase 1: connection and credentials").split("**P1.6**")[1].split("**P1.7**")[0]
    assert "(mode 600, on no shared or durable tier, see [U25]" in step and "Never type a key into a command" in step


@pytest.mark.parametrize("profile", [*SSH, "local"])
def test_the_patrol_holds_no_terminal(profile):  # S65 S73: in the background, with a word at its end
    (loop,) = [body for body in blocks(text(profile), "bash") if "patrol.log" in body]
    assert loop.startswith("(\n") and loop.endswith("\n) &\n") and "sleep 900" in loop


def test_a_cell_gets_no_less_memory_than_it_needs():  # S30: sbatch takes whole megabytes, and a killed cell costs more than one
    class Value:
        def __init__(self, value):
            self.value = value

    assert runbook.need_flags({"NEED_GPUS": Value(2), "NEED_RAM_BYTES": Value(1_000_000_001)}) == "--gpus=2 --mem=1001M"
    assert runbook.need_flags({"NEED_GPUS": Value(0), "NEED_RAM_BYTES": Value(1_000_000_000)}) == "--mem=1000M"
