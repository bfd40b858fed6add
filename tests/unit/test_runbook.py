"""Every profile's runbook: structure, blocks that run, words that have to be there, and nothing of another platform."""

import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

from conftest import FIXTURES, ROOT
from generator import render, runbook
from generator.diagnostics import Report
from generator.inputs import inputs, known

PROFILES = known("profiles")
JOBS = {"demo": "demo", "sweep": str(FIXTURES / "sweep.yaml")}
HEADINGS = [
    "Contents", "Your values", "Danger clocks", "Short path", "Phase -1: one-time setup", "Phase 0: environment audit",
    "Phase 1: connection and credentials", "Phase 2: queue and smoke", "Phase 3: detached launch", "Phase 4: monitoring",
    "Phase 5: aggregate, pull, verify, teardown", "Teardown table", "Failure handling", "Gotchas", "Facts",
]
SHELLS = ["bash"] + (["zsh"] if shutil.which("zsh") else [])  # macOS types into a zsh
PHASES = ["P-1", "P0", "P1", "P2", "P3", "P4", "P5"]


@lru_cache(maxsize=None)
def bound(profile: str, job: str = "demo", without: tuple = ()):
    b = inputs(profile, JOBS.get(job, job), without, Report())
    assert b is not None
    return b


@lru_cache(maxsize=None)
def text(profile: str, job: str = "demo", without: tuple = ()) -> str:
    return render._render_one(bound(profile, job, without), "RUNBOOK.md", "runbook/RUNBOOK.md.j2")


def blocks(page: str, info: str) -> list[str]:
    """The fenced blocks of this info string, without the indent of their list."""
    found = re.findall(rf"^( *)```{re.escape(info)}\n(.*?)^\1```$", page, re.M | re.S)
    return [re.sub(rf"^{indent}", "", body, flags=re.M) for indent, body in found]


def outside_fences(page: str) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.M | re.S)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def section(page: str, heading: str) -> str:
    return re.split(r"^## ", page.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]


every = pytest.mark.parametrize("profile", PROFILES)
with_jobs = pytest.mark.parametrize("job", JOBS)
SSH = [p for p in PROFILES if bound(p)["KIND"].value in runbook.SSH]
RENTED = [p for p in PROFILES if bound(p)["KIND"].value != "owned"]
PULL_ONLY = [p for p in PROFILES if bound(p).durable is None]


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
    assert "{{" not in page and "{%" not in page and not re.search(r"(?<![\w.])(None|True|False)(?= (GB|files|s\b|\|)|`|\.)", page.replace("`True`", "").replace("`False`", ""))
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


def test_there_are_pull_only_profiles():
    assert PULL_ONLY and set(PULL_ONLY) < set(PROFILES)


@every
def test_no_other_platform_is_named(profile):  # S2
    page = text(profile)
    own = (ROOT / f"profiles/{profile}.yaml").read_text(encoding="utf-8")
    for other in ("runpod", "autodl", "vast.ai", "vastai", "lambda", "paperspace", "kaggle", "colab", "slurm", "kubernetes", "jarvislabs",
                  "tensordock", "featurize", "matpool", "gpushare", "lanrui", "/root/autodl", "network_turbo", "/kaggle"):
        if other.lower() in own.lower() or other in profile:
            continue
        assert not re.search(rf"(?<![a-z]){re.escape(other)}(?![a-z])", page, re.I), other


def test_the_template_names_no_platform():  # S2
    template = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "templates/runbook").glob("*.j2")))
    for name in set(PROFILES) - {"local", "lambda", "slurm", "kubernetes"}:
        assert not re.search(rf"\b{name}\b", template, re.I), name


@every
def test_the_launch_is_within_two_screens(profile):
    # A reused setup: what one has to read before the start command. 50 lines a screen, long lines not counted.
    lines = text(profile).splitlines()
    launch = next(i for i, line in enumerate(lines) if "P3.2" in line and i > lines.index("## Short path"))
    assert launch - lines.index("## Your values") < 60 and launch < 100


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
    "S66": ("Phase 3: detached launch", r"within 60 s the session is alive"),
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
    "S108": ("Failure handling", r"ask for a larger disk"),
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


# --- what a newcomer ran into ---


def remote(page: str) -> list[str]:
    """Every line of a block that types a command on the box."""
    return [line for body in blocks(page, "bash") + blocks(page, "bash verify") for line in body.splitlines()
            if re.match(r'(ssh|kubectl exec) .*(\$\{DATA_DIR|\$\{DURABLE|\./|\$RUN)', line)]


@every
def test_run_and_folders_travel_to_the_box(profile):  # F26 case 131: another commit is another RUN, on both sides
    page, b = text(profile), bound(profile)
    if b["KIND"].value not in ("owned", "notebook"):
        lines = remote(page)
        assert len(lines) >= 5
        assert all('"export RUN=${RUN:-demo} ${BOX_ENV-};' in line for line in lines), lines
        assert 'export BOX_ENV="' in section(page, "Your values")
    for body in blocks(page, "bash") + blocks(page, "bash verify"):
        # No path of the run stands without the name and the folder that a person may have set.
        assert f"{b['DATA_DIR'].value}/demo" not in body and not re.search(r"/demo(?![\w}])", body), body
    assert "${RUN:-demo}" in blocks(page, "bash verify")[-1] and "RUN=demo.2` in [Your values]" in section(page, "Failure handling")
    assert "not carried over" in page and "--only CELL" in page and "--except CELL=WHY" in page
    assert not re.search(r"[^\n]\n## ", page) and not re.search(r"\n\n\n", page)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_values_reach_the_box_whole(shell, tmp_path):  # S49: folders with blanks and marks, set and not set
    page = text("runpod")
    line = next(one for one in remote(page) if "smoke.json" in one)
    line = re.sub(r"'grep.*", "'printf \"%s|\" \"$RUN\" \"${DATA_DIR-unset}\" \"${DURABLE_DIR-unset}\"'", line)
    fake = 'ssh() { shift 2; env -i PATH="$PATH" sh -c "$*"; }'
    for before, said in (("", "demo|unset|unset|"), ("export DATA_DIR='/my data' DURABLE_DIR=''", "demo|/my data||"),
                         ("export DURABLE_DIR='/k;eep'", "demo|unset|/k;eep|")):
        got = subprocess.run([shell, "-c", f"{before}\n{blocks(page, 'bash')[0]}\n{fake}\n{line}"], capture_output=True, text=True)
        assert got.stdout == said, got


@every
def test_no_comment_in_a_block(profile):  # an interactive zsh takes # for a command's word
    page = text(profile, "sweep")
    for body in blocks(page, "bash") + blocks(page, "bash verify"):
        body = re.sub(r"<<'JOB'\n.*?^JOB$", "", body, flags=re.M | re.S)
        assert not re.search(r"(^|\s)#", body, re.M), body


@every
def test_bash_stands_in_front(profile):  # an upload may have no x bit
    page = text(profile)
    if bound(profile)["KIND"].value != "owned":
        assert not re.findall(r"(?<!bash )\./\w+\.sh", page)


def patrol_loop(profile: str) -> str:
    return next(body for body in blocks(text(profile), "bash") if "patrol.log" in body)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "code,said,word",
    [(0, "t runpod.demo: done; done 4/4 running 0", "DONE: aggregate, pull, teardown now; it costs 0.79 an hour"),
     (1, "t runpod.demo: failed; done 3/4", "LOOK: patrol.sh ended with 1"), (77, "refused", "LOOK: patrol.sh ended with 77")])
def test_the_patrol_loop_ends_and_says_so(shell, code, said, word, tmp_path):  # S70 S73: not all weekend at the meter
    (tmp_path / "local").mkdir()
    script = tmp_path / "local/patrol.sh"
    # First healthy, then not known, then the end.
    script.write_text(f"""#!/usr/bin/env bash
echo x >>count
case $(wc -l <count | tr -d " ") in 1) echo "t runpod.demo: healthy; done 1/4" ;; 2) echo "no answer"; exit 69 ;; *) echo "{said}"; exit {code} ;; esac
""", encoding="utf-8")
    script.chmod(0o755)
    got = subprocess.run([shell, "-c", f"sleep() {{ :; }}; export HOST=h PRICE_PER_HOUR=0.79\n{patrol_loop('runpod')}\nwait"], cwd=tmp_path,
                         capture_output=True, text=True, timeout=30)
    assert word in got.stdout and (tmp_path / "count").read_text().count("x") == 3
    assert (tmp_path / "patrol.log").read_text().count("\n") == 3


def test_the_alias_is_a_file_that_is_overwritten(tmp_path):  # S16 S39 U28
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host other\n  User me\n", encoding="utf-8")
    block = next(body for body in blocks(text("runpod"), "bash") if "ServerAliveInterval" in body)
    for address, port in (("10.0.0.1", "22"), ("10.0.0.2", "41022")):
        subprocess.run(["bash", "-c", f"set -e; export HOME={tmp_path} HOST=gpu-x ADDRESS={address} PORT={port}\n{block}"], check=True)
    assert (tmp_path / ".ssh/config").read_text() == "Include config.d/*\n\nHost other\n  User me\n"
    alias = (tmp_path / ".ssh/config.d/gpu-x").read_text()
    assert "10.0.0.2" in alias and "41022" in alias and "10.0.0.1" not in alias
    assert "[P-1.10]" in section(text("runpod"), "Phase 1: connection and credentials")


@with_jobs
def test_slurm_is_one_job_on_one_node(job):  # case 131: a run belongs to one box
    part = section(text("slurm", job), "Phase 3: detached launch")
    block = blocks(part, "bash")[0]
    assert block.startswith('ssh "${HOST:?}" ')  # the job file comes through its input
    needs = bound("slurm", job).job["needs"]
    for flag in ("--nodes=1", "--dependency=singleton", f"--mem={int(needs['ram_gb'] * 1000)}M", "--requeue"):
        assert flag in block
    assert (f"--gpus={needs['gpus']} " in block) == bool(needs["gpus"]) and "--array" not in part
    output = re.search(r"--output=([^' ]+)", block)[1]
    assert output.endswith("/logs/slurm-%j.out") and "/box" not in output
    assert "run_queue.sh --adopt" in block and "*Missing here:* a run over several nodes" in part and "--cpus-per-task" in part
    assert "`TERM`" in section(text("slurm"), "Phase 4: monitoring") and "none-yet" in section(text("slurm"), "Your values")


def test_the_batch_script_checkpoints_and_aggregates(tmp_path):  # S55 T6: TERM before the limit reaches the queue
    block = blocks(section(text("slurm"), "Phase 3: detached launch"), "bash")[0]
    (tmp_path / "job").write_text(re.search(r"<<'JOB'\n(.*)^JOB$", block, re.M | re.S)[1], encoding="utf-8")
    (tmp_path / "aggregate_to_fs.sh").write_text("echo aggregated >>said\n")
    script = "bash job & n=$!; for i in $(seq 200); do [[ -e up ]] && break; sleep 0.05; done; kill -TERM $n; wait $n"
    (tmp_path / "run_queue.sh").write_text("trap 'echo saved >>said; kill $s; exit 143' TERM\necho \"$1\" >>said\nsleep 30 & s=$!\n: >up\nwait $s\n")
    subprocess.run(["bash", "-c", script], cwd=tmp_path, timeout=30)
    assert (tmp_path / "said").read_text().split() == ["--adopt", "saved", "aggregated"]


@pytest.mark.parametrize("profile,seconds", [("kaggle", 28800), ("colab", 39600)])
def test_a_notebook_ends_before_its_cap_and_keeps_its_output(profile, seconds):  # S11 S69
    part = section(text(profile), "Phase 3: detached launch")
    assert re.search(rf"timeout -s TERM {seconds} bash \./run_queue\.sh --adopt\nbash \./aggregate_to_fs\.sh\nexit 0$", blocks(part, "bash")[0].strip())
    assert "sessions; each next one" not in part


def test_a_job_longer_than_a_session_is_said(tmp_path):  # 6 cells of 5 h at a cap of 9 h
    job = tmp_path / "long.yaml"
    words = re.sub(r"wall_s: \d+", "wall_s: 0", (FIXTURES / "sweep.yaml").read_text(encoding="utf-8"))
    job.write_text(re.sub(r"minutes: \d+", "minutes: 300", words), encoding="utf-8")
    part = section(render._render_one(inputs("kaggle", str(job), (), Report()), "RUNBOOK.md", "runbook/RUNBOOK.md.j2"), "Phase 3: detached launch")
    assert "**These cells need 20 h and one session has 8.0 h**: plan for 3 sessions" in part


@pytest.mark.parametrize("profile", RENTED)
def test_adopt_is_told_where_it_is_needed(profile):  # F23 case 131: the old box is gone for good
    page = text(profile)
    assert "--adopt" in section(page, "Failure handling") and "--adopt" in section(page, "Phase 4: monitoring")
    if bound(profile)["KIND"].value in ("ssh-rental", "cloud-vm"):
        assert "formal_run.sh start --adopt" in section(page, "Failure handling") and "`--adopt`" in section(page, "Phase 3: detached launch")


@every
def test_the_logs_can_be_fetched(profile):
    part = section(text(profile), "Phase 5: aggregate, pull, verify, teardown")
    assert "training logs are no part of the results and stay on the box" in part
    assert any("logs.tgz" in body and "tar -czf" in body for body in blocks(part, "bash"))
    assert part.index("logs.tgz") < part.index("**P5.8**")


def test_git_is_announced_and_the_line_ends_are_committed(tmp_path):  # S21 U26: else the launch gate refuses later
    page = text("runpod")
    assert "an `origin` that you may push to" in section(page, "Your values")
    block = next(body for body in blocks(page, "bash") if ".gitattributes" in body)
    subprocess.run(["bash", "-c", f"""set -e; export HOME={tmp_path} GIT_CONFIG_NOSYSTEM=1
git config --global user.name a; git config --global user.email a@b.c; git config --global init.defaultBranch main
git init -q --bare origin; git init -q code; cd code; echo x >train.py; git add .; git commit -qm one; git remote add origin ../origin
export CODE_DIR={tmp_path}/code
{block}
{block}
test -z "$(git status --porcelain)"; test "$(git rev-parse HEAD)" = "$(git -C ../origin rev-parse main)"; test "$(git rev-list --count HEAD)" = 2
grep -qx '[*].sh text eol=lf' .gitattributes"""], check=True, cwd=tmp_path, capture_output=True)

def test_without_a_tier_the_steps_about_it_are_disowned():
    page = text("runpod", "demo", ("network-volume",))
    assert "Compiled without network-volume: leave out whatever the steps below say about it" in section(page, "Phase -1: one-time setup")
    assert "none is left here, so keep a second copy at home" in page


def test_an_own_machine_is_not_rented():
    page = text("local", "sweep")
    assert "no push, patrol and pull scripts" not in page and "was rented" not in page and "*before* renting" not in page


def test_power_off_and_the_iron_law():
    assert "> `--power-off` (P3.2) is no exception: it does not delete, the disks stay for 15 days" in text("autodl")
    assert "is no exception" not in text("runpod") or bound("runpod")["POWER_OFF_COMMAND"].value


def test_the_parts_are_short():
    for path in (ROOT / "templates/runbook").glob("*.j2"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 400
