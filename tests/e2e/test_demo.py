"""`make demo`, for real: torch trains, a cell is killed, the identical command resumes it (S51), results come home verified (S90), and no teardown before (S96)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def left_over(folder: Path) -> list[str]:
    """Processes whose environment names the demo's folder."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (proc / "environ").read_bytes() and int(proc.name) != os.getpid():
                found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            pass
    return found


@pytest.mark.slow
def test_the_whole_life(tmp_path):
    """Killed half-way, resumed, FORMAL_SUCCESS, home, verified; the gate shut before and open after. What an earlier demo left is no obstacle."""
    folder = tmp_path / "demo"
    old = folder / "box/data/demo/run.json"
    old.parent.mkdir(parents=True)
    old.write_text("{\n  of an earlier demo that was cut off")
    (folder / ".demo").touch()
    done = subprocess.run([ROOT / "tools/demo.sh"], cwd=ROOT, env={**os.environ, "DEMO_DIR": str(folder)}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\s+OK (\d+)/\1, errors 0$", done.stdout, re.M) and "teardown is refused" in done.stdout and "The gate is open. Nothing was done." in done.stdout
    assert left_over(folder) == []
    box, cell = folder / "box/data/demo", "lr0.1_w32"
    first, second = ((box / f"logs/{cell}/attempt-00{n}.log").read_text() for n in (1, 2))
    assert "done: best" not in first and (resumed := re.search(r"resumed after epoch (\d+) ", second)) and int(resumed[1]) >= 4
    assert f"epoch {resumed[1]}/12" not in second, "an epoch that was saved is not trained again"
    record = json.loads((box / f"state/{cell}.json").read_text())
    assert record["state"] == "done" and record["attempt"] == 2
    manifest = json.loads((folder / "laptop/local.demo/PULL_MANIFEST.json").read_text())
    assert manifest["cells_expected"] == manifest["cells_done"] == 4
    for n in (1, 2):
        assert len(list((box / f"claims/{cell}").glob(f"00{n}"))) == 1, "one claim for each attempt"


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path):
    """It deletes the folder of an earlier demo and no other."""
    (tmp_path / "precious").write_text("x")
    done = subprocess.run([ROOT / "tools/demo.sh"], cwd=ROOT, env={**os.environ, "DEMO_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and (tmp_path / "precious").read_text() == "x" and "no folder of an earlier demo" in done.stderr
