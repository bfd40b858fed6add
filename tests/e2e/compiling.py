"""Compile every profile in one process, of this checkout or another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILE_ALL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from generator import cli
cli.default_out = lambda profile, job, without: Path(sys.argv[2]) / profile
sys.exit(cli.run(["compile", "--all"]))
"""


def compile_all(project: Path, out: Path, **changes) -> None:
    """Every profile of PROJECT into OUT/<profile>, in one process."""
    done = subprocess.run([sys.executable, "-c", COMPILE_ALL, str(project), str(out)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120, **changes)
    assert done.returncode == 0, done.stderr[-3000:]
