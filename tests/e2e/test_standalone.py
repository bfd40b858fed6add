"""Every generated script stands alone and is clean, for every profile; `make check` runs the same lint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from compiling import ROOT, box_path, compiled  # noqa: F401 (fixtures)

PROFILES = sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml"))


def call(script: Path, words: list[str], path: str, interpreter: str = "bash") -> subprocess.CompletedProcess:
    """Run a script that lies alone in its folder, with next to no environment."""
    environment = {"PATH": path, "HOME": str(script.parent), "LANG": "C"}
    return subprocess.run([interpreter, script.name, *words], cwd=script.parent, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=30)


def alone(script: Path, folder: Path) -> Path:
    """A copy of the script in an empty folder of its own."""
    folder.mkdir(parents=True)
    copy = folder / script.name
    copy.write_bytes(script.read_bytes())
    return copy


@pytest.mark.parametrize("profile", PROFILES)
def test_alone_in_an_empty_folder_it_says_what_it_does(profile, compiled, box_path, tmp_path):
    """--help: exit 0, usage and exit codes on stdout, nothing on stderr, nothing made. A wrong flag: 64. No python on PATH for bash."""
    scripts = [path for path in sorted((compiled / profile).rglob("*")) if path.suffix in (".sh", ".py")]
    assert len(scripts) >= 10, "the fewest are seven in box/ and three in local/"
    for number, script in enumerate(scripts):
        copy = alone(script, tmp_path / str(number))
        interpreter = sys.executable if script.suffix == ".py" else "bash"
        said = call(copy, ["--help"], box_path, interpreter)
        where = script.relative_to(compiled).as_posix()
        assert said.returncode == 0 and said.stderr == "", f"{where} --help: {said.returncode} {said.stderr}"
        assert f"usage: {script.name}" in said.stdout and "exit codes:" in said.stdout, f"{where} --help says: {said.stdout}"
        wrong = call(copy, ["--no-such-flag"], box_path, interpreter)
        assert wrong.returncode == 64 and "Traceback" not in wrong.stderr, f"{where} --no-such-flag: {wrong.returncode} {wrong.stderr}"
        left = [path.name for path in copy.parent.iterdir()]
        assert left == [script.name], f"{where} left {left}"


def test_lint_is_clean(compiled):
    """bash -n, shellcheck -S style and shfmt over every script of every profile, and over our own."""
    done = subprocess.run([sys.executable, ROOT / "tools/lint_scripts.py", compiled], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr


@pytest.mark.parametrize("text", ["echo $x", "if true; then echo 1; fi; done", "if true;then\n      echo 1\nfi"])
def test_the_lint_finds(text, tmp_path):
    """A script that shellcheck, bash or shfmt does not like turns it red: the checkers are checked."""
    script = tmp_path / "compiled/p/box/bad.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", LINT_ONE, str(ROOT), str(tmp_path / "compiled")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "bad.sh" in done.stdout, done.stdout + done.stderr


# The same program with an empty list of our own files, so that it reads the bad script only.
LINT_ONE = """
import sys
root, folder = sys.argv[1:]
sys.path.insert(0, root + "/tools")
import lint_scripts
lint_scripts.own_scripts = lambda: ([], [])
sys.argv = ["lint_scripts.py", folder]
sys.exit(lint_scripts.main())
"""
