"""Demands on the runbook that test_runbook.py leaves to a word, or proves for boxes with ssh only."""

import re

import pytest
from conftest import ROOT
from generator import render, runbook
from runbook_pages import PHASES, PROFILES, RENTED, SSH, blocks, bound, section, text


@pytest.mark.parametrize("profile", SSH)
def test_one_alias_and_no_stored_password(profile):  # X6
    page = text(profile, "sweep")
    assert "No passwords, no sshpass" in page and "read-only deploy key" in page
    for block in (*blocks(page, "bash"), *blocks(page, "bash verify")):
        assert not re.search(r"sshpass|SSHPASS|PasswordAuthentication|StrictHostKeyChecking=no\b", block)
        # One address for ssh, scp and rsync: the alias.
        for target in re.findall(r"\b(?:ssh|scp|rsync) (?:-\S+ |-o \S+ )*(\"[^\"]*\"|\S+)", block):
            assert "${HOST:?}" in target or target.startswith(("-", "'")) or "@" not in target, target


@pytest.mark.parametrize("profile", RENTED)
def test_the_cost_table_stands_before_the_box_is_created(profile):  # X10
    part = section(text(profile, "sweep"), "Phase -1: one-time setup")
    table, create = part.index("| item | what it costs |"), part.index("Then create the box")
    assert table < create and "| compute |" in part[table:create] and "| moving data out |" in part[table:create]
    assert text(profile, "sweep").index("what it costs") < text(profile, "sweep").index("## Phase 0")


@pytest.mark.parametrize("profile", PROFILES)
def test_each_phase_can_be_verified_by_the_script(profile):  # S4 S9
    page = text(profile)
    assert "local/verify_phase.sh N" in page.split("## Contents")[0]
    assert "verify_phase.sh" in render.scripts(bound(profile)["KIND"].value)["local"]
    assert len(blocks(page, "bash verify")) == len(blocks(page, "text expected")) == len(PHASES)


def line_of(page: str, start: str) -> str:
    return next(line for line in page.splitlines() if line.strip().startswith(start))


@pytest.mark.parametrize("profile", PROFILES)
def test_each_line_on_money_or_data_has_its_own_source(profile):  # S12 S25 S101 X10: a source somewhere else in the file is none
    page, b = text(profile), bound(profile)
    p, bare = b.profile, page.replace("\\_", "_")

    def sourced(line, fact):
        assert runbook.cite(fact).replace("\\_", "_") in line and runbook.check(fact) in line, line
    for action in b.actions:
        sourced(next(line for line in section(bare, "Teardown table").splitlines() if line.startswith("| ") and f"**{action['verb']}**:" in line), action)
        if b["KIND"].value != "owned":
            sourced(line_of(bare, f"| storage after `{action['verb']}`"), action)
    sourced(line_of(bare, "- [ ] **P5.7**"), b.meter_stop)
    sourced(line_of(bare, "- [ ] **P4.3**"), p["interruption"])
    sourced(line_of(bare, "- [ ] **P3.3**"), p["daemon"])
    sourced(line_of(bare, "- [ ] **P1.4**"), p["launch"]["environment"])
    sourced(line_of(bare, "- [ ] **P-1.6**"), p["launch"]["image"])
    if b["KIND"].value != "owned":
        for way in p["launch"]["ways"]:
            sourced(line_of(bare, f"- *{way['way']}* "), way)
    if profile in SSH:
        sourced(line_of(bare, "- [ ] **P1.3**"), p["network"]["address"])
        sourced(line_of(bare, "- [ ] **P1.2**"), p["network"]["ssh"])


def test_no_template_cites_a_fact_without_its_warning():  # a weak fact says so wherever it stands
    for path in sorted((ROOT / "templates/runbook").glob("*.j2")):
        for line in path.read_text(encoding="utf-8").splitlines():
            for fact in re.findall(r"\bcite\(([\w.]+)\)", line):
                assert f"check({fact})" in line, (path.name, line)
