"""Every profile's runbook: structure, blocks that run, words that have to be there, and nothing of another platform."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from generator import render, runbook
from runbook_pages import HEADINGS, PHASES, PROFILES, PULL_ONLY, RENTED, SHELLS, SSH, blocks, bound, every, outside_fences, section, slug, text, with_jobs


@every
@with_jobs
def test_headings_in_order(profile, job):  # S1 S5
    assert re.findall(r"^## (.*)$", text(profile, job), re.M) == HEADINGS


@every
@with_jobs
def test_steps_have_boxes_and_stable_ids(profile, job):  # S1 S6 S9
    page = text(profile, job)
    ids = re.findall(r"^- \[ \] \*\*(P-?\d\.\d+)\*\* ", page, re.M)
    assert len(ids) == len(set(ids)) > 30 or bound(profile)["KIND"].value in ("owned", "notebook", "kubernetes") and len(ids) > 24
    assert ids == sorted(ids, key=lambda one: tuple(map(int, one[1:].split("."))))
    assert re.findall(r"^- \[ \] \*\*(P-?\d) done\*\*, evidence", page, re.M) == PHASES
    numbers = {phase: [int(one.split(".")[1]) for one in ids if one.startswith(phase + ".")] for phase in PHASES}
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values()), numbers
    # An id means the same step in every runbook, whatever is left out.
    for one in re.findall(r"^- \[ \] \*\*(?:P3\.5|P5\.4|P-1\.7|P2\.2)\*\* (\w+)", page, re.M):
        assert one in ("Look", "Verify", "Scripts", "The")


@every
def test_links_resolve(profile):  # S5 S10
    page = text(profile)
    anchors = {slug(one) for one in re.findall(r"^#+ (.*)$", page, re.M)}
    gotchas = (ROOT / "docs/gotchas.md").read_text(encoding="utf-8")
    known_ids = {slug(one) for one in re.findall(r"^#+ (.*)$", gotchas, re.M)}
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) > 20
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors, link
        else:
            path, _, anchor = link.partition("#")
            assert (ROOT / "out" / profile / path).resolve() == ROOT / "docs/gotchas.md", link
            assert not anchor or anchor in known_ids, link
    cited = set(re.findall(r"\bU(\d\d)\b", page))
    assert {"08", "21", "26", "33", "36"} <= cited
    assert {f"u{number}" for number in cited} <= known_ids


@every
@with_jobs
def test_every_phase_ends_in_a_verify_block_with_its_output(profile, job, tmp_path):  # S4 S22 S35 S46 S57 S66 S82
    page = text(profile, job)
    found = blocks(page, "bash verify")
    assert len(found) == len(PHASES) == len(blocks(page, "text expected"))
    for phase, heading in zip(PHASES, HEADINGS[4:11]):
        part = section(page, heading)
        assert part.count("```bash verify") == 1 and part.count(f"**Verify {phase}**") == 1
        assert re.search(r"```bash verify\n.*?```\n\n```text expected\n.+?\n```\s*\Z", part, re.S), phase
    check_bash(found, tmp_path)


@every
def test_every_other_block_parses(profile, tmp_path):  # S1
    check_bash(blocks(text(profile, "sweep"), "bash"), tmp_path)


def check_bash(found: list[str], tmp_path: Path) -> None:
    paths = []
    for index, body in enumerate(found):
        path = tmp_path / f"{index}.sh"
        path.write_text("#!/usr/bin/env bash\n" + body, encoding="utf-8")
        for shell in SHELLS:
            subprocess.run([shell, "-n", path], check=True)
        paths.append(path)
    got = subprocess.run([ROOT / ".venv/bin/shellcheck", "-S", "style", "--norc", *paths], capture_output=True, text=True)
    assert got.returncode == 0, got.stdout


@every
@with_jobs
def test_nothing_is_left_to_fill_in(profile, job):  # S8
    page = outside_fences(text(profile, job))
    without_html = re.sub(r"</?code>", "", page)
    assert not re.search(r"(?<!\\)<[A-Za-z/][^>]*>", without_html)
    assert "{{" not in page and "{%" not in page and not re.search(r"(?<![\w.=])(None|True|False)(?= (GB|files|s\b|\|)|`|\.)", page.replace("`True`", "").replace("`False`", ""))
    assert not re.search(r"TODO|FIXME|XXX|your-[a-z]+-here|undefined", page)
    assert "$'" not in page


@every
def test_danger_clocks_come_first_and_again(profile):  # S11 S12 S13
    page, b = text(profile), bound(profile)
    clocks = [one["id"] for one in b.profile["interruption"]["clocks"]]
    first, again = section(page, "Danger clocks"), section(page, "Phase 5: aggregate, pull, verify, teardown")
    for clock in clocks:
        assert f"**{clock}**" in first and f"**{clock}**" in again, clock
    for one in b.clocks:
        assert runbook.cite(one) in first
    assert page.index("## Danger clocks") < page.index("## Short path") < page.index("## Phase -1")
    assert again.index("**P5.6**") < again.index("**P5.8**")
    for one in b.profile["launch"]["surface"]["conveniences"]:
        assert runbook.prose(one) in section(page, "Phase -1: one-time setup")


@every
def test_facts_show_source_and_month(profile):  # X10 and the facts that cost money or data
    page, b = text(profile), bound(profile)
    facts = [*b.profile["teardown"]["actions"], *b.profile["teardown"]["cost_traps"], *b.profile["interruption"]["clocks"], *b.tiers,
             *b.profile["gotchas"], *runbook.facts(b), b.profile["network"]["egress"] if b["KIND"].value != "owned" else b.tiers[0]]
    for fact in facts:
        assert runbook.cite(fact) in page, fact
    low = [one for one in facts if one.get("confidence") == "low"]
    assert page.count("**check first:**") >= len(low)
    for one in low:
        words = one.get("effect") or one.get("fact") or ""
        assert f"**check first:** {runbook.prose(words)}" in page


@every
def test_survival_matrix_has_every_tier(profile):  # S23 S25 S26 S18
    page, b = text(profile), bound(profile)
    part = section(page, "Phase 0: environment audit")
    for tier in b.tiers:
        row = next(line for line in part.splitlines() if line.startswith(f"  | `{tier['name']}` | `{tier['path']}`"))
        said = [cell.strip() for cell in row.split("|")[3:9]]
        survives = tier["survives"]
        assert said == ["yes" if one else "no" for one in (survives["ssh_drop"], survives["restart"], survives["stop"], survives["destroy"],
                                                           tier["shared"], tier["region_locked"])]
    assert f"`{b['METER_STOP'].value}`" in part


@every
def test_budget_is_computed(profile):  # S19 S33
    part = section(text(profile, "sweep"), "Phase 0: environment audit")
    # 4 cells of 2.5 GB and a tenth for reserve
    assert "| 2.5 GB | × 4 | 10 GB | + 1 GB | **11 GB** | 100 × 4 = **400** |" in part


@pytest.mark.parametrize("profile", RENTED)
def test_cost_before_renting(profile):  # X10
    part = section(text(profile, "sweep"), "Phase -1: one-time setup")
    assert "4 × 30 min = 2 h" in part and "PRICE_PER_HOUR" in part
    for action in bound(profile).actions:
        assert f"storage after `{action['verb']}`" in part
    assert part.index("**P-1.8**") < part.index("**P-1.9**")


@every
def test_teardown_table_has_six_rows(profile):  # S100 S101 S102
    page, b = text(profile), bound(profile)
    part = section(page, "Teardown table")
    rows = [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("|")][2:]
    assert list(dict.fromkeys(rows)) == list(runbook.ROWS)
    for action in b.actions:
        row = next(line for line in part.splitlines() if f"| **{runbook.prose(action['verb'])}**" in line or f"**{action['verb']}**" in line and line.startswith("|"))
        cells = re.split(r"(?<!\\)\|", row)
        assert cells[3].strip() == ("yes" if action["stops_meter"] else "no") and cells[6].strip() == ("yes" if action["reversible"] else "no")
        days = action["retention_days"]
        assert cells[8].strip() == ("no limit known" if days is None else f"{days} days" if days else "at once")
        kept, lost = ([] if cell.strip() == "nothing" else cell.strip().replace("\\", "").split(", ") for cell in cells[4:6])
        assert sorted(kept + lost) == sorted(tier["name"] for tier in b.tiers)
        if action["like"] in ("stop", "destroy"):
            assert set(kept) == {tier["name"] for tier in b.tiers if tier["survives"][action["like"]]}
    assert f"**{b['METER_STOP'].value}**" in part.replace("\\", "")


@every
def test_profile_gotchas_stand_once(profile):  # S10
    page = text(profile)
    for one in bound(profile).profile["gotchas"]:
        assert page.count(f"| `{one['id']}` |") == 1


@every
def test_image_step_only_where_there_is_one(profile):  # S20
    assert ("**P-1.6** Save a reusable image" in text(profile)) == bound(profile).profile["launch"]["image"]["reusable"]


@pytest.mark.parametrize("profile", PULL_ONLY)
def test_pull_only_never_says_synced(profile):  # S26 S85
    page = outside_fences(text(profile))
    assert "pull-only" in page and "exported, on this box only" in page
    assert not re.search(r"(?<!un)synced", page.split("## Failure handling")[0])


@every
@with_jobs
def test_a_verify_block_is_one_command(profile, job):  # S57: what fails in its first line is not made good by its last one
    for body in blocks(text(profile, job), "bash verify"):
        lines = body.strip().split("\n")
        assert all(line.endswith(" &&") for line in lines[:-1]) and not lines[-1].endswith("&&"), body


def test_there_are_pull_only_profiles():
    assert PULL_ONLY and set(PULL_ONLY) < set(PROFILES)


OWN = {"autodl": "autodl /root/autodl network_turbo", "kaggle": "kaggle /kaggle", "vastai": "vastai vast.ai"}


@every
def test_no_other_platform_is_named(profile):  # S2
    page = text(profile)
    shared = {"coreweave": {"kubernetes"}, "gpushare": {"network_turbo", "kaggle"}}.get(profile, set())  # what it really has or reaches
    for other in ("runpod", "autodl", "vast.ai", "vastai", "lambda", "paperspace", "kaggle", "colab", "slurm", "kubernetes", "jarvislabs",
                  "tensordock", "featurize", "matpool", "gpushare", "lanrui", "/root/autodl", "network_turbo", "/kaggle"):
        if other in shared or other in OWN.get(profile, profile):
            continue
        assert not re.search(rf"(?<![a-z]){re.escape(other)}(?![a-z])", page, re.I), other


def test_the_template_names_no_platform():  # S2
    template = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "templates/runbook").glob("*.j2")))
    for name in set(PROFILES) - {"local", "lambda", "slurm", "kubernetes"}:
        assert not re.search(rf"\b{name}\b", template, re.I), name


@every
def test_the_launch_is_within_two_screens(profile):  # S24
    # A reused setup: what one has to read, from the top, up to the block with the start command. 50 lines of 100 columns a screen.
    lines = text(profile).splitlines()
    launch = next(i for i, line in enumerate(lines) if "P3.2" in line and i > lines.index("## Short path"))
    end = lines.index("```", launch)
    assert launch - lines.index("## Your values") < 60 and launch < 100
    assert sum(max(1, -(-len(line) // 100)) for line in lines[:end + 1]) <= 100


@every
def test_no_personal_path_and_no_environment_building(profile):  # S40 S88
    page = text(profile)
    assert "conda create" not in page
    assert not re.search(r"/home/[a-z]|/Users/", page.replace("/home/ubuntu", "").replace("/home/featurize", "").replace("/home/jovyan", "")) or re.search(
        r"/home/[a-z]", (ROOT / f"profiles/{profile}.yaml").read_text(encoding="utf-8"))
    assert "/path/to/local" in page or bound(profile)["KIND"].value in ("notebook", "kubernetes")


# number -> words that the runbook of a box with ssh has to say, and in which section
WORDS = {
    "S14": ("Phase -1: one-time setup", r"ssh-keygen -t ed25519"),
    "S15": ("Phase -1: one-time setup", r"public half is registered"),
    "S16": ("Phase -1: one-time setup", r"One ssh alias for each box[\s\S]*Host \$\{HOST:\?\}"),
    "S17": ("Phase -1: one-time setup", r"ServerAliveInterval \d+\" \"  ServerAliveCountMax \d+"),
    "S21": ("Phase -1: one-time setup", r"\*\.sh text eol=lf"),
    "S22": ("Phase -1: one-time setup", r"'echo reachable'\n```\n\n```text expected\nreachable\n"),
    "S24": ("Phase -1: one-time setup", r"Skip it if you come with a setup from a past project"),
    "S27": ("Phase 0: environment audit", r"Region: "),
    "S28": ("Phase 0: environment audit", r"df -h "),
    "S29": ("Phase 0: environment audit", r"df -i "),
    "S30": ("Phase 0: environment audit", r"memory\.max"),
    "S31": ("Phase 0: environment audit", r"nvidia-smi'"),
    "S32": ("Phase 0: environment audit", r"du -shL "),
    "S35": ("Phase 0: environment audit", r"nvidia-smi --query-gpu=name"),
    "S36": ("Phase 0: environment audit", r"df -Pi .*8\[0-9\]"),
    "S37": ("Phase 1: connection and credentials", r"`HOST` and the other"),
    "S38": ("Phase 1: connection and credentials", r"SSH here is \*\*(direct|proxied)\*\* and (copies|cannot copy) files"),
    "S39": ("Phase 1: connection and credentials", r"Address and port \*\*may change\*\*.*--new-host-key|The address stays the same"),
    "S41": ("Phase 1: connection and credentials", r"through stdin|secret store|with an editor"),
    "S42": ("Phase 1: connection and credentials", r"#u25"),
    "S43": ("Phase 1: connection and credentials", r"only the names `WANDB_API_KEY`"),
    "S45": ("Phase 1: connection and credentials", r"on the route that the transfer takes"),
    "S46": ("Phase 1: connection and credentials", r"torch\.cuda\.is_available\(\)[\s\S]*```text expected\nTrue\n"),
    "S50": ("Phase 2: queue and smoke", r"loads its latest checkpoint when it starts"),
    "S51": ("Phase 2: queue and smoke", r"identical command runs on every attempt"),
    "S52": ("Phase 2: queue and smoke", r"`CELL_DIR` of its own"),
    "S54": ("Phase 2: queue and smoke", r"smoke on this machine, \*before\* renting"),
    "S55": ("Phase 2: queue and smoke", r"tiny shapes, a few batches, no tracker"),
    "S56": ("Phase 2: queue and smoke", r"the job's own command, and its output is never evidence"),
    "S57": ("Phase 2: queue and smoke", r"no Traceback"),
    "F16": ("Phase 2: queue and smoke", r"`data/raw` 1797 files"),
    "S60": ("Phase 3: detached launch", r"Restart of the box: a detached run \*\*(survives it|does not survive it)\*\*"),
    "S61": ("Phase 1: connection and credentials", r"goes on where it stopped"),
    "S63": ("Phase 3: detached launch", r"change no script under the run"),
    "S65": ("Phase 3: detached launch", r"No blocking `sleep`"),
    "S66": ("Phase 3: detached launch", r"within 60 s (the session is alive|of its start)"),
    "S67": ("Phase 3: detached launch", r"first log line shows the expected step"),
    "S68": ("Phase 4: monitoring", r"This is a long job: use all four layers"),
    "S69": ("Phase 4: monitoring", r"\| 1 \| the box completes by itself"),
    "S70": ("Phase 4: monitoring", r"\| 2 \| somebody looks"),
    "S71": ("Phase 4: monitoring", r"\| 3 \| events"),
    "S72": ("Phase 4: monitoring", r"\| 4 \| fixed remedies"),
    "S73": ("Phase 4: monitoring", r"in the background"),
    "S74": ("Phase 4: monitoring", r"bar in them stand in quotes"),
    "S75": ("Phase 4: monitoring", r"free inodes and their trend"),
    "S78": ("Phase 4: monitoring", r"less than half of the expected time"),
    "S80": ("Phase 4: monitoring", r"watcher of a run that is over or replaced is ended"),
    "S81": ("Failure handling", r"Classify before you react"),
    "S86": ("Phase 5: aggregate, pull, verify, teardown", r"The count in `.*` is 4"),
    "S87": ("Phase 5: aggregate, pull, verify, teardown", r"run it again after any interruption"),
    "S88": ("Phase 5: aggregate, pull, verify, teardown", r"/path/to/local"),
    "S91": ("Phase 5: aggregate, pull, verify, teardown", r"pull that cell again, then verify again"),
    "S92": ("Phase 5: aggregate, pull, verify, teardown", r"overrides"),
    "S93": ("Phase 5: aggregate, pull, verify, teardown", r"the tracker's address"),
    "S94": ("Phase 5: aggregate, pull, verify, teardown", r"hf upload-large-folder.*hf download"),
    "S96": ("Phase 5: aggregate, pull, verify, teardown", r"printed \*before\* any teardown[\s\S]*verify_local\.py[\s\S]*OK N/N, errors 0"),
    "S97": ("Phase 5: aggregate, pull, verify, teardown", r"The iron law.*deleting of files"),
    "S98": ("Phase 5: aggregate, pull, verify, teardown", r"A log that looks finished is no evidence"),
    "S102": ("Phase 5: aggregate, pull, verify, teardown", r"compute first; durable storage stays until .*; a subscription is cancelled last"),
    "S103": ("Failure handling", r"Classify before you react"),
    "S104": ("Failure handling", r"only with the identical command"),
    "S105": ("Failure handling", r"`preempted`, `transient`.*stall in the first epoch"),
    "S106": ("Failure handling", r"`disk_full`.*iostream.*/gpu-runbook/"),
    "S107": ("Failure handling", r"the best checkpoint is kept"),
    "S108": ("Failure handling", r"ask (for a larger disk|the site for more quota)"),
    "S109": ("Failure handling", r"CUDA out of memory.*all-zero metric.*\*\*no retry\*\*"),
    "F1": ("Phase 3: detached launch", r"The gates run first|Missing here"),
    "F2": ("Phase 5: aggregate, pull, verify, teardown", r"Without `--run` it only says"),
    "X6": ("Phase 1: connection and credentials", r"read-only deploy key"),
}


@pytest.mark.parametrize("number", WORDS)
def test_says(number):
    heading, words = WORDS[number]
    for profile in SSH:
        assert re.search(words, section(text(profile, "sweep"), heading)), (number, profile)


def test_mirror_and_proxy_only_where_the_profile_has_them():  # S44 X7
    for profile in PROFILES:
        network, hook = bound(profile).profile["network"], bound(profile)["PROXY_HOOK"].value
        part = section(text(profile), "Phase 1: connection and credentials")
        assert ("no mirror and no proxy is known here" in part) == (not (network["mirrors"] or hook)), profile
        for name, value in network["mirrors"].items():
            assert f"`{name}={value}`" in part
    assert "in the same shell" in section(text("autodl"), "Phase 1: connection and credentials")


def test_scripts_are_named_only_where_the_kind_has_them():  # S38
    for profile in PROFILES:
        has = set(render.scripts(bound(profile)["KIND"].value)["local"])
        assert set(re.findall(r"local/([a-z_]+\.(?:sh|py))", text(profile))) <= has, profile


def test_missing_parts_are_said():
    for profile in PROFILES:
        kind = bound(profile)["KIND"].value
        assert ("*Missing here:*" in text(profile)) == (kind in ("slurm", "kubernetes", "notebook")), profile


def test_detach_primitive_and_power_off():  # S58 F35
    for profile in PROFILES:
        b = bound(profile)
        part = section(text(profile), "Phase 3: detached launch")
        if b["KIND"].value in ("ssh-rental", "cloud-vm", "owned"):
            assert f"`{b['DETACH'].value}`" in part
            assert ("nothing typed inside the box stops this meter" in part) == (not b["POWER_OFF_COMMAND"].value)


def test_overrides_are_shown():  # S49
    for profile in PROFILES:
        b = bound(profile)
        part = section(text(profile), "Phase 2: queue and smoke")
        for name in ("DATA_DIR", "DURABLE_DIR", "PROXY_HOOK", "CRED_FILE", "SCRATCH", "HF_HOME", "DETACH"):
            assert f"{name}={b[name].value}" in part.replace("&#95;", "_"), (profile, name)


def test_without_a_tier_the_runbook_says_so():
    page = text("runpod", "demo", ("network-volume",))
    assert "**without** network-volume" in page and "pull-only" in page and "`network-volume` |" not in page


def test_prose_is_text():
    assert runbook.prose("a `b|c` *d* <e> f_g _h_ [i]") == r"a <code>b&#124;c</code> \*d\* \<e> f_g \_h\_ \[i\]"
    assert "`" not in runbook.prose("an odd ` mark")


def test_shell_paths_expand_where_they_are_run():
    assert runbook.shell_path("$HOME/gpu runs") == '"$HOME/gpu runs"'
    assert runbook.shell_path("~/x$(y)") == '"$HOME/x\\$(y)"'
    assert runbook.shell_path("/a{b}") == '"/a{b}"' and runbook.path_text("/a{b}") == "/a{b\\}"
    assert runbook.on_box("ssh-rental", "echo 'a'") == "ssh -n \"${HOST:?}\" 'echo '\\''a'\\'''"
