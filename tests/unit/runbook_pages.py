"""Compiled runbooks for the tests: pages, their blocks and sections, and the profiles by what they are."""

import itertools
import re
import shutil
from functools import lru_cache

import pytest

from conftest import FIXTURES
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


def variants(profile: str) -> list[tuple]:
    """Each way to leave optional tiers out that compiles; not the whole profile."""
    names = sorted(tier["name"] for tier in bound(profile).profile["storage"]["tiers"] if tier.get("optional"))
    subsets = [chosen for size in range(1, len(names) + 1) for chosen in itertools.combinations(names, size)]
    return [chosen for chosen in subsets if inputs(profile, "demo", chosen, Report()) is not None]


VARIANTS = [(profile, without) for profile in PROFILES for without in variants(profile)]
every_variant = pytest.mark.parametrize(("profile", "without"), VARIANTS, ids=lambda one: one if isinstance(one, str) else "no-" + "-".join(one))
every = pytest.mark.parametrize("profile", PROFILES)
with_jobs = pytest.mark.parametrize("job", JOBS)
SSH = [p for p in PROFILES if bound(p)["KIND"].value in runbook.SSH]
RENTED = [p for p in PROFILES if bound(p)["KIND"].value != "owned"]
PULL_ONLY = [p for p in PROFILES if bound(p).durable is None]
