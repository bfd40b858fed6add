"""docs/platforms.md against the profiles, computed here a second time; drift itself is test_schema's (S18 S23 S26 S100 S101)."""

import re

import pytest
import yaml
from conftest import ROOT
from generator import platforms
from generator.inputs import known

PAGE = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
PROFILES = known("profiles")


def table(heading: str) -> list[list[str]]:
    """The rows of a section's table, cells stripped."""
    part = re.split(r"^## ", PAGE.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def data(name: str) -> dict:
    return yaml.safe_load((ROOT / "profiles" / f"{name}.yaml").read_text(encoding="utf-8"))


def row(heading: str, name: str) -> list[str]:
    (found,) = [one for one in table(heading) if one[0].endswith(f"`{name}`") and "without" not in one[0]]
    return found


def test_the_page_is_what_the_profiles_say():
    """Drift is caught, and a changed fact changes the page."""
    note = PAGE.split("\n")[2]
    assert note.startswith("<!-- Made by") and platforms.page(note) == PAGE


@pytest.mark.parametrize("name", PROFILES)
def test_every_platform_has_its_rows(name):  # S18 S23 S26 S100 S101
    p = data(name)
    stop = next(one for one in p["teardown"]["actions"] if one["verb"] == p["teardown"]["meter_stop"])
    cells = row("What stops the meter, and what survives it", name)
    assert len(cells) == 6 and f"](../profiles/{name}.yaml)" in cells[0] and cells[1] == p["launch"]["kind"]
    assert f"`{stop['verb']}`" in cells[2] and ("can be undone" in cells[2]) == stop["reversible"]
    assert ("check first" in cells[2]) == (stop.get("confidence") == "low")
    assert ("not quite sure" in cells[2]) == (stop.get("confidence") == "medium")
    days = stop["retention_days"]
    assert (f", kept {days} days)" in cells[2]) if days else (", kept " not in cells[2])
    if stop["like"] in ("stop", "destroy"):
        for tier in p["storage"]["tiers"]:
            kept, lost = (f"`{tier['name']}`" in cell for cell in cells[3:5])
            assert (kept, lost) == (tier["survives"][stop["like"]], not tier["survives"][stop["like"]]), tier["name"]
    assert ("**pull-only**" in cells[3]) == (not p["storage"]["durable"])
    assert row("Detaching and interruption", name)[1].startswith(f"`{p['daemon']['primitive']}`")
    traps = row("Traps", name)
    for cell, part in zip(traps[1:], (p["interruption"]["clocks"], p["teardown"]["cost_traps"], p["gotchas"])):
        assert re.findall(r"`([^`]+)`", cell) == [one["id"] for one in part]


def test_what_is_rented_without_an_optional_tier_has_a_row_of_its_own():  # S26
    rows = {one[0].split(") ", 1)[1]: one for one in table("What stops the meter, and what survives it")}
    assert "**pull-only**" in rows["`runpod` without `network-volume`"][3] and "**`network-volume`**" in rows["`runpod`"][3]
    assert "**pull-only**" in rows["`lambda` without `filesystem`"][3]
    assert "**pull-only**" in rows["`autodl` without `file-storage`"][3]


def test_a_profile_with_errors_is_named_not_left_out(monkeypatch):
    monkeypatch.setattr(platforms, "inputs", lambda *words: None)
    with pytest.raises(ValueError, match="profiles/runpod.yaml has errors"):
        platforms.variants("runpod")
