"""The Makefile takes no variable that it does not know: a misspelt one would be silently without effect (F2)."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("word", "refused"), [("PROFILE=runpod", True), ("profil=runpod", True), ("without=x", False), ("force=1", False), ("profile=runpod", False)])
def test_an_unknown_variable_is_an_error(word, refused):
    said = subprocess.run(["make", "-n", "help", word], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (said.returncode != 0) is refused
    assert ("no such variable" in said.stderr) is refused


@pytest.mark.parametrize(("force", "given"), [("force=1", True), ("force=0", False), ("force=", False)])
def test_force_reaches_the_compiler(force, given):
    """The refusal of a file that was edited by hand says how, in make's own words."""
    said = subprocess.run(["make", "-n", "profile=runpod", force], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("--force" in said.stdout) is given
    assert "(make: force=1)" in (ROOT / "generator/write.py").read_text(encoding="utf-8")
