"""docs/gotchas.md: each trap once, found by its id, and every id that is cited anywhere resolves (S10; U26 for S21, U33 for S85)."""

import re

import pytest
from conftest import ROOT

TEXT = (ROOT / "docs" / "gotchas.md").read_text(encoding="utf-8")
CITED = re.compile(r"""(?<![A-Za-z0-9_+"'\\-])U[0-9]{2}(?![0-9A-Za-z"'])""")
ENTRIES = {one[1]: one[2] for one in re.finditer(r"^### (U[0-9]{2})\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S)}


def cited():
    """Every id with the file that cites it. One in quotes is a number format's name ("U64"), not a trap."""
    for folder in ("templates", "generator", "profiles", "jobs", "schema", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in (".j2", ".bash", ".py", ".yaml", ".json", ".md", ".sh"):
                for one in CITED.finditer(path.read_text(encoding="utf-8")):
                    yield one[0], path.relative_to(ROOT)


def test_ids_are_in_order_and_once():
    ids = re.findall(r"^### (\S+)$", TEXT, re.M)
    assert ids == sorted(set(ids)) and 20 <= len(ids) <= 36 and set(ids) == set(ENTRIES)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_an_entry_has_symptom_cause_and_fix(name):
    parts = re.findall(r"^(\*\*|- Symptom: |- Cause: |- Fix: |- → )\S", ENTRIES[name], re.M)
    assert parts == ["**", "- Symptom: ", "- Cause: ", "- Fix: ", "- → "]


def test_the_ids_that_the_requirements_name():
    assert "CRLF" in ENTRIES["U26"] and "eol=lf" in ENTRIES["U26"]
    assert "echo synced" in ENTRIES["U33"]


def test_every_cited_id_resolves():
    found = list(cited())
    assert found and [(name, str(path)) for name, path in found if name not in ENTRIES] == []
