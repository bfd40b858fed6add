"""Demands on the runbook that test_runbook.py leaves to a word, or proves for boxes with ssh only."""

import re

import pytest
from generator import render
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
