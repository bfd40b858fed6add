"""The same inputs give the same bytes anywhere, and out/ holds them: a reviewer can trust the difference."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from compiling import ROOT, compile_all, compiled  # noqa: F401 (a fixture)

PARTS = ("generator", "templates", "profiles", "jobs", "schema")
OPENED = """
import os, sys
opened = set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" and isinstance(args[0], str) else None)
sys.path.insert(0, sys.argv[1])
sys.argv[0] = "gpu-runbook"
from generator import cli
code = cli.run(["compile", "runpod", "--out", sys.argv[2]])
for path in sorted(opened):
    print("opened", os.path.realpath(path))
sys.exit(code)
"""


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Relative path -> content and whether it may be executed."""
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100)) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_another_machine_gives_the_same_bytes(compiled, tmp_path):
    """Another checkout, folder, HOME, time zone, locale, umask and hash seed, for every profile."""
    project = tmp_path / "another checkout, with blanks"
    for part in PARTS:
        shutil.copytree(ROOT / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    home = tmp_path / "home"
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8",
                   "PYTHONHASHSEED": "4711", "PYTHONUTF8": "0", "COLUMNS": "40", "USER": "somebody"}
    old = os.umask(0o077)
    try:
        compile_all(project, tmp_path / "out", cwd=home, env=environment)
    finally:
        os.umask(old)
    here, there = tree(compiled), tree(tmp_path / "out")
    assert len(here) > 200 and here.keys() == there.keys()
    assert [name for name in here if here[name] != there[name]] == []


def test_out_is_what_compiling_gives(compiled):
    """The committed out/ has every profile, byte for byte; to update it: make all."""
    for folder in sorted(compiled.iterdir()):
        committed = tree(ROOT / "out" / folder.name)
        fresh = tree(folder)
        differ = [name for name in sorted(committed.keys() | fresh.keys()) if committed.get(name) != fresh.get(name)]
        assert differ == [], f"out/{folder.name} differs, run: make all"


def test_a_compile_opens_nothing_outside_the_project(tmp_path):
    """A user has this repository and nothing beside it: each file that is opened lies in it, in Python, in the system or in the output."""
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", OPENED, str(ROOT), str(out)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    opened = [Path(line.removeprefix("opened ")) for line in done.stdout.splitlines() if line.startswith("opened ")]
    assert any(path.name == "runpod.yaml" for path in opened)
    allowed = [ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), out, Path("/dev"), Path("/usr"), Path("/etc"), Path("/proc"), Path("/lib")]
    outside = [str(path) for path in opened if not any(path.is_relative_to(one) for one in allowed)]
    assert outside == []
