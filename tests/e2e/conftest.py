"""What the end-to-end tests share: every profile compiled once, and a PATH with the box's tools only."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from compiling import ROOT, compile_all

@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> Path:
    """A folder with one compiled folder for each profile."""
    out = tmp_path_factory.mktemp("compiled")
    compile_all(ROOT, out, cwd=ROOT)
    return out


@pytest.fixture(scope="session")
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
