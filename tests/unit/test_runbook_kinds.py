"""A runbook speaks only of what its kind of box has: the scripts that are there, remedies that can be had, ways that exist."""

import re

import pytest
from generator import render
from runbook_pages import PROFILES, bound, outside_fences, section, text

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
