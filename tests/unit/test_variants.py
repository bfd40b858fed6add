"""A box without an optional tier is told nothing of it, and the box with all of them is told everything (S2 S4 S23 S26).

Over every profile and every way to leave tiers out that compiles: what a variant says is read, not what its profile marks.
"""

import copy
import functools
import re

import pytest
from generator import quote
from generator.bind import bind
from generator.budget import session_cap
from generator.diagnostics import Report
from generator.inputs import inputs
from generator.render import render
from generator.runbook import cite, prose
from generator.variants import MARKS, is_wording, marked, optional_tiers, stays, variant
from runbook_pages import PROFILES, VARIANTS, bound, every_variant, section, text

# What people call a tier besides its name and its path.
ALSO = {
    ("autodl", "file-storage"): ["文件存储", "autodl-fs"], ("aws-ec2", "kept-volume"): ["disks.json", "kept volume"],
    ("aws-ec2", "instance-store"): ["local NVMe"], ("azure-vm", "data-disk"): ["az vm disk attach"], ("azure-vm", "temp-disk"): ["temporary disk"],
    ("colab", "drive"): ["google.colab"], ("gcp-gce", "kept-disk"): ["attach-disk", "kept disk"], ("gpushare", "net-disk"): ["/hy-netdisk"], ("gpushare", "nas"): ["/hy-nas"],
    ("jarvislabs", "filesystem"): ["fs_id", "fs-id"], ("lambda", "filesystem"): ["file_system", "FS_NAME"], ("nebius", "filesystem"): ["shared filesystem"],
    ("runpod", "network-volume"): ["volume-id", "MooseFS", "S3-compatible"], ("thundercompute", "ephemeral-disk"): ["ephemeral"],
    ("vastai", "local-volume"): ["vastai show volumes"],
}
OPTIONAL = [(profile, name) for profile in PROFILES for name in optional_tiers(bound(profile).profile_doc.data)]


def words(profile: str, without: tuple) -> re.Pattern:
    """What names a tier that was left out: its name however it is spelt, its path where no other tier has it, and ALSO."""
    b, found = bound(profile, "demo", without), []
    for tier in bound(profile).tiers:
        if tier["name"] in without:
            found += [r"[- _]?".join(map(re.escape, re.split("-|(?<=file)(?=system)", tier["name"])))]
            found += [re.escape(one) for one in ALSO[profile, tier["name"]]]
            if tier["path"] not in [one["path"] for one in b.tiers]:
                found.append(re.escape(tier["path"].split("/$")[0]) + r"(?![\w-])")
    return re.compile(rf"(?<![\w-])(?:{'|'.join(found)})(?!r)", re.I)


def said_of_it(profile: str, without: tuple, name: str, body: str) -> str:
    """A file without the places that say what it was compiled without, without citations, and a script without its libraries."""
    if name.startswith(("box/", "local/")):
        body = body.split("# --- end of bound values ---")[0]
        body = re.sub(r"^readonly -a TIERS_OUT=\(.*?^\)$", "", body, flags=re.M | re.S)  # what preflight looks for, and may not find
        body = re.sub(r"^  ACTION_SOURCE=.*$", "", body, flags=re.M)
    else:
        assert body.count("**without** " + ", ".join(without)) == 1
        body = body.replace("Compiled for a box **without** " + ", ".join(without), "").replace("export DATA_DIR=/data DURABLE_DIR=/keep", "")
        for fact in facts(bound(profile).profile):
            body = body.replace(cite(fact), "")
    return re.sub(rf"without[ =]{','.join(without)}|without {', '.join(without)}", "", body)


def facts(value) -> list[dict]:
    """Every mapping that cites a source."""
    items = value.values() if isinstance(value, dict) else value
    return [value] * (isinstance(value, dict) and "source" in value) + [one for item in items if isinstance(item, (dict, list)) for one in facts(item)]


@functools.lru_cache(maxsize=None)
def files(profile: str, without: tuple) -> dict:
    """What a person gets and reads; install_cell.py carries box/ once more."""
    return {
        name: one.data.decode() for name, one in render(bound(profile, "demo", without)).items() if name == "RUNBOOK.md" or name.endswith(".sh")
    }


def test_each_optional_tier_has_its_words():
    assert set(ALSO) == set(OPTIONAL) and len(OPTIONAL) >= 14
    assert {(profile, name) for profile, without in VARIANTS for name in without} == set(OPTIONAL)


@every_variant
def test_a_variant_never_names_what_it_is_without(profile, without):  # S2 S23 S26
    pattern = words(profile, without)
    for name, body in files(profile, without).items():
        for line in said_of_it(profile, without, name, body).splitlines():
            found = pattern.search(line)
            assert not found, f"{name}: {line[max(0, found.start() - 80) : found.end() + 60]}"


@pytest.mark.parametrize(("profile", "name"), OPTIONAL)
def test_the_whole_profile_names_it(profile, name):
    """The words that are looked for above are the ones that the runbook of the whole box says."""
    page = text(profile)
    for one in ALSO[profile, name]:
        assert one.lower() in page.lower(), one
    assert words(profile, (name,)).search(page) and any(item.get("tier", item.get("needs_tier")) == name for _, item in marked(bound(profile).profile_doc.data))


def told(profile: str, without: tuple) -> tuple[list, list]:
    """Of all that depends on a tier: the sentences that a box is told, and those that it is not, by the marks alone."""
    yes, no = [], []

    def sentences(value) -> list[str]:
        if isinstance(value, str):
            return [value]
        if is_wording(value):
            return [value.get("without" if value["tier"] in without else "with", "")]
        items = [item for key, item in value.items() if key in ("effect", "fact", "symptom", "steps")] if isinstance(value, dict) else value
        return [one for item in items for one in sentences(item)]

    for path, item in marked(bound(profile).profile_doc.data):
        if is_wording(item):
            here = item["tier"] not in without
            no.append((path, item.get("without" if here else "with", "")))
            yes.append((path, item.get("with" if here else "without", "")))
        else:
            (yes if stays(item, without) else no).extend((path, one) for one in sentences(item))
    return [one for one in yes if one[1]], [one for one in no if one[1]]


@pytest.mark.parametrize(("profile", "without"), [(profile, ()) for profile, _ in OPTIONAL] + VARIANTS)
def test_each_sentence_stands_where_it_is_true(profile, without):
    """The full variant has them all; a variant has what is true without, and lacks the rest, ids of clocks and traps too."""
    page, b = text(profile, "demo", without), bound(profile, "demo", without)
    yes, no = told(profile, without)
    assert no if without else yes
    for path, one in yes:
        hidden = path[:2] == ("teardown", "actions") and b.profile_doc.data["teardown"]["actions"][path[2]]["verb"] not in b["ACTION_VERBS"].value
        assert hidden or prose(one.rstrip(". ")) in page, (path, one)
    for path, one in no:
        # A short one may be the beginning of what is said instead.
        instead = [other for where, other in yes if one in other]
        if len(one) > 20 and not instead:
            assert prose(one.rstrip(". ")) not in page, (path, one)
            assert not any(quote.word(one) in body for body in files(profile, without).values()), (path, one)
    for path, item in marked(b.profile_doc.data):
        if "id" in item:
            assert (f"**{item['id']}**" in page or f"| `{item['id']}` |" in page) == stays(item, without), item["id"]


@every_variant
def test_clocks_are_the_same_everywhere(profile, without):  # S4
    """At the top, before teardown, and in the plan of the box: the clocks of this box, no more and no fewer."""
    b, page = bound(profile, "demo", without), text(profile, "demo", without)
    left = [one["id"] for one in b.clocks]
    data = b.profile_doc.data
    gone = {one["id"] for one in data["interruption"]["clocks"] + data["teardown"]["cost_traps"] if not stays(one, without)}
    assert left == [one for one in data["launch"]["surface"]["danger_clocks"] if one not in gone]
    assert [one for one in re.findall(r"^- \*\*([a-z0-9-]+)\*\*", section(page, "Danger clocks"), re.M) if one != "pull-only"] == left
    assert re.findall(r"^  - \*\*([a-z0-9-]+)\*\*", page, re.M) == left
    assert b["CLOCKS"].value == [one["effect"] for one in b.clocks] and all(isinstance(one, str) for one in b["CLOCKS"].value)


@pytest.mark.parametrize(("profile", "without"), [(profile, ()) for profile in PROFILES] + VARIANTS)
def test_no_mark_is_left(profile, without):
    b = bound(profile, "demo", without)
    assert list(marked(b.profile)) == [] and "'tier': " not in repr(b.profile) and not any(mark in repr(b.profile) for mark in MARKS)
    # The tiers keep their places: the fields that values come from are counted in the file.
    assert [one["name"] for one in b.profile["storage"]["tiers"]] == [one["name"] for one in b.profile_doc.data["storage"]["tiers"]]


def test_what_a_profile_says_is_left_as_it_was():
    """Variants are made from one document, again and again."""
    data = bound("runpod").profile_doc.data
    before = copy.deepcopy(data)
    variant(data, ("network-volume",))
    assert data == before and variant(data, ()) != variant(data, ("network-volume",))


def test_runpod_without_its_volume():
    """The one that was reported: clocks, launch, going on, teardown, cost, gotcha."""
    page = text("runpod", "demo", ("network-volume",))
    assert "network-volume" not in section(page, "Danger clocks") and "Attach the" not in page and "mfs#" not in page
    assert "| storage after `terminate` | nothing" in page and "What goes on costing after `terminate`: nothing" in page
    assert "none is left here, so keep a second copy at home" in page and "--volume-in-gb" in page
    whole = text("runpod")
    # And the other way round: a Pod with the volume has no disk of its own that could cost double.
    assert "**stopped-disk-double**" in section(page, "Danger clocks") and "**stopped-disk-double**" not in whole and "at twice its" not in whole
    assert "**network-volume-unpaid**" in whole and "Attach the network volume first" in whole and "--network-volume-id" in whole


def test_the_cap_of_a_session_goes_with_its_tier():
    data = copy.deepcopy(bound("runpod").profile_doc.data)
    data["interruption"]["clocks"].append(
        {"id": "cap", "needs_tier": "network-volume", "effect": "e", "after_s": 7200, "ends_session": True, "source": "s", "as_of": "2026-08"}
    )
    assert session_cap(variant(data, ()))["id"] == "cap" and session_cap(variant(data, ("network-volume",))) is None


def test_the_place_of_the_power_off_command_is_that_of_the_file():
    """A variant lacks an action before it; explain and SOURCES.json still point to the line that it comes from."""
    b = bound("autodl")
    doc = copy.copy(b.profile_doc)
    data = doc.data = copy.deepcopy(doc.data)
    first = {**copy.deepcopy(data["teardown"]["actions"][-1]), "verb": "look", "like": "none", "needs_tier": "file-storage"}
    data["teardown"]["actions"].insert(0, first)
    for without, verbs in (((), "look shut-down"), (("file-storage",), "shut-down release")):
        found = bind(doc, b.job_doc, without)
        assert " ".join(found["ACTION_VERBS"].value[:2]) == verbs
        assert found["POWER_OFF_COMMAND"].value == ["/usr/bin/shutdown"] and found["POWER_OFF_COMMAND"].origin == ("P", ("teardown", "actions", 1, "command"))


def test_an_unknown_or_common_tier_is_a_clear_error(tmp_path):
    """File, line, cause and remedy, as a person sees them."""
    from generator.inputs import ROOT

    whole = (ROOT / "profiles/runpod.yaml").read_text(encoding="utf-8")
    for name, code, cause, remedy in (
        ("network-volum", "P301", "'network-volum' is not the name of any tier", "did you mean 'network-volume'?"),
        ("volume-disk", "P338", "tier 'volume-disk' comes with every box, so nothing depends on it", "these are optional: network-volume"),
    ):
        path = tmp_path / code / "runpod.yaml"
        path.parent.mkdir()
        path.write_text(whole.replace("- id: network-volume-bills\n      needs_tier: network-volume", f"- id: network-volume-bills\n      needs_tier: {name}"), encoding="utf-8")
        report = Report()
        assert inputs(str(path), "demo", (), report) is None
        one = next(one for one in report.found if one.severity == "error")
        line = path.read_text(encoding="utf-8").splitlines()[one.span.line - 1]
        assert one.code == code and one.message == cause and remedy in one.hint and line.strip() == f"needs_tier: {name}"
