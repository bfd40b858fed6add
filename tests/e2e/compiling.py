"""What the end-to-end tests share: every profile compiled once, and a PATH with the box's tools only."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """A folder with one compiled folder for each profile."""
    out = tmp_path_factory.mktemp("compiled")
    compile_all(ROOT, out, cwd=ROOT)
    return out


@pytest.fixture(scope="module")
def box_path(tmp_path_factory) -> str:
    """A PATH of the tools that a box must have: no python, perl or jq. The list is the one of the bats helper."""
    folder = tmp_path_factory.mktemp("box-bin")
    text = (ROOT / "tests/bats/helper.bash").read_text(encoding="utf-8")
    names = " ".join(re.findall(r"^readonly BOX_(?:TOOLS|OPTIONAL)='([^']*)'", text, re.M)).split()
    assert {"bash", "awk", "tar", "sha256sum"} <= set(names) and not {"python3", "perl", "jq"} & set(names)
    for name in names:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return str(folder)
