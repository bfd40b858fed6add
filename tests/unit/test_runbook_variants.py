"""The runbook of each variant, that is with optional tiers left out: the same structure, and no word of what this box has not.

What is whole in test_runbook.py for the profiles as they are is asked here of every way to leave tiers out that compiles (S1 S2 S4 S5
S8 S23 S26), and of both: nothing of another platform, by its own commands and paths (S2).
"""

import functools
import re

import pytest
from conftest import ROOT
from generator import runbook
from runbook_pages import HEADINGS, PHASES, PROFILES, VARIANTS, blocks, bound, every_variant, outside_fences, section, slug, text
from test_runbook import check_bash

GOTCHAS = {slug(one) for one in re.findall(r"^#+ (.*)$", (ROOT / "docs/gotchas.md").read_text(encoding="utf-8"), re.M)}
BOTH = [(profile, ()) for profile in PROFILES] + VARIANTS


def test_there_are_variants():
    """The platforms whose survival depends on what was rented, by name."""
    assert {("runpod", ("network-volume",)), ("lambda", ("filesystem",)), ("autodl", ("file-storage",)), ("gpushare", ("nas", "net-disk"))} <= set(VARIANTS)
    assert len(VARIANTS) >= 15


@every_variant
def test_structure(profile, without):  # S1 S5 S6 S9 S10
    page = text(profile, "demo", without)
    assert re.findall(r"^## (.*)$", page, re.M) == HEADINGS
    assert re.findall(r"^- \[ \] \*\*(P-?\d) done\*\*, evidence", page, re.M) == PHASES
    ids = re.findall(r"^- \[ \] \*\*(P-?\d\.\d+)\*\* ", page, re.M)
    assert len(ids) == len(set(ids)) and set(ids) == set(re.findall(r"^- \[ \] \*\*(P-?\d\.\d+)\*\* ", text(profile), re.M))
    anchors = {slug(one) for one in re.findall(r"^#+ (.*)$", page, re.M)}
    for link in re.findall(r"\]\(([^)\s]+)\)", page):
        path, _, anchor = link.partition("#")
        if path:
            # A variant's folder lies as deep as any other.
            assert (ROOT / "out" / f"{profile}.no-x" / path).resolve() == ROOT / "docs/gotchas.md" and (not anchor or anchor in GOTCHAS), link
        else:
            assert anchor in anchors, link
    assert {f"u{number}" for number in re.findall(r"\bU(\d\d)\b", page)} <= GOTCHAS


@every_variant
def test_blocks(profile, without, tmp_path):  # S4 S8
    page = text(profile, "demo", without)
    found = blocks(page, "bash verify")
    assert len(found) == len(PHASES) == len(blocks(page, "text expected"))
    # What stands in the whole profile's page too is read there.
    seen = set(blocks(text(profile), "bash") + blocks(text(profile), "bash verify"))
    new = [body for body in found + blocks(page, "bash") if body not in seen]
    if new:
        check_bash(new, tmp_path)
    plain = re.sub(r"</?code>", "", outside_fences(page))
    assert not re.search(r"(?<!\\)<[A-Za-z/][^>]*>", plain) and "{{" not in plain and "{%" not in plain
    assert not re.search(r"TODO|FIXME|XXX|your-[a-z]+-here|undefined|\bNone\b", plain.replace("`None`", ""))


@every_variant
def test_what_is_left_out_is_nowhere(profile, without):  # S23 S26
    page, b = text(profile, "demo", without), bound(profile, "demo", without)
    whole = bound(profile)
    rows = re.findall(r"^  \| `([^`]+)` \| `[^`]+` \|", section(page, "Phase 0: environment audit"), re.M)
    assert [name for name in rows if name in without] == [] and [tier["name"] for tier in b.tiers] == [name for name in rows if name in {t["name"] for t in b.tiers}]
    table = section(page, "Teardown table")
    for name in without:
        assert f"**without** {name}" in page or name in page.split("**without**", 1)[1].split("\n")[0]
        assert not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", re.sub(r"\*\*[^*]*\*\*", "", "".join(line.split("|")[4] for line in table.splitlines() if line.startswith("| "))))
    durable = whole.profile["storage"]["durable"]
    for action in whole.actions:
        if action["like"] == "storage" and set(action.get("deletes", durable) or ["-"]) <= set(without):
            assert f"**{action['verb']}**" not in table and f"storage after `{action['verb']}`" not in page
    # No folder of the run lies on a tier that was left out, unless another one takes its path.
    paths = {tier["path"] for tier in whole.tiers if tier["name"] in without} - {tier["path"] for tier in b.tiers}
    for name in ("DATA_DIR", "DURABLE_DIR", "SCRATCH", "HF_HOME", "CRED_FILE"):
        assert not any((b[name].value + "/").startswith(path + "/") for path in paths), name
    assert ("pull-only" in page) == (b.durable is None) == (b["DURABLE_DIR"].value == "")


@pytest.mark.parametrize(("profile", "without"), BOTH)
def test_the_box_is_told_what_to_find(profile, without):
    """Preflight gets each tier that something shows on exactly one of its lists: the used one of a path, and what was left out."""
    b, whole = bound(profile, "demo", without), bound(profile).profile["storage"]
    here = {entry.split()[0]: entry.split()[1:] for entry in b["TIERS_IN"].value}
    gone = {entry.split()[0]: entry.split()[1:] for entry in b["TIERS_OUT"].value}
    assert set(gone) == {tier["name"] for tier in whole["tiers"] if tier["name"] in without and tier["proof"] != "none"}
    shown = [tier for tier in b.tiers if tier["proof"] != "none"]
    assert set(here) <= {tier["name"] for tier in shown} and {tier["path"] for tier in shown} == {entry[2] for entry in here.values()}
    for tier in (b.data, b.durable):
        assert tier is None or tier["proof"] == "none" or tier["name"] in here
    assert all(entry[1] == "kept" for name, entry in gone.items() if name in whole["durable"])
    # Two at one path: what is looked for is true of one of them only.
    for tier in whole["tiers"]:
        others = [one for one in whole["tiers"] if one is not tier and one["path"] == tier["path"]]
        assert not others or {tier["proof"], *(one["proof"] for one in others)} == {"mount-local", "mount-network"}


@functools.lru_cache
def marks() -> dict:
    """What only one platform says: its commands' first words and its tiers' paths, by profile."""
    found = {}
    for profile in PROFILES:
        p = bound(profile).profile
        paths = {tier["path"].split("/$")[0] for tier in p["storage"]["tiers"] if tier["path"].count("/") > 1 or re.match(r"/[a-z]+-", tier["path"])}
        tools = {words[0] for action in p["teardown"]["actions"] for words in (action.get("command"), action["confirm_gone"].get("command")) if words}
        found[profile] = {profile} | paths | tools - {"sudo", "env", "/usr/bin/shutdown"}
    return found


# Words that a page shares with another platform on purpose: a path of the same name there, a tool that is really typed, a pointer.
SHARED = {("coreweave", "/scratch"), ("kubernetes", "/scratch"), ("colab", "gcloud"), ("local", "generic-ssh")}


@pytest.mark.parametrize(("profile", "without"), BOTH)
def test_nothing_of_another_platform(profile, without):  # S2: whether the template says it or the profile
    page = re.sub(r"\]\([^)]*\)", "]", text(profile, "demo", without)).replace("local/", "")
    for other, words in marks().items():
        if other in (profile, "local", "lambda", "slurm", "kubernetes"):
            words = words - {other}
        for word in words if other != profile else ():
            if (profile, word) not in SHARED and word not in marks()[profile]:
                assert not re.search(rf"(?<![\w./-]){re.escape(word)}(?![\w-])", page), (other, word)


@pytest.mark.parametrize(("profile", "without"), BOTH)
def test_the_page_agrees_with_the_matrix(profile, without):  # S25 S26: P0.2 says of the checkpoints what the matrix says of their tier
    b = bound(profile, "demo", without)
    page = text(profile, "demo", without)
    line = next(line for line in page.splitlines() if line.startswith("- [ ] **P0.2**"))
    like = b.meter_stop["like"]
    stays = like == "none" or b.data["survives"][like]
    if b.durable is None:
        assert ("do **not** survive" in line) != stays and ("is still there after" in line) == stays, line
    else:
        assert "which survives" in line and (like == "none" or b.durable["survives"][like])
