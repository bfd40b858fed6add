"""What the compiler's tests share: the project's root, and loading and checking in one step."""

import datetime
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).resolve().parent / "fixtures"
TODAY = datetime.date(2026, 9, 1)
sys.path.insert(0, str(ROOT))

from generator.cli import FREE  # noqa: E402
from generator.load import load  # noqa: E402
from generator.rules import check  # noqa: E402
from generator.validate import validate  # noqa: E402


def load_text(tmp_path: Path, text: str | bytes, letter: str, name: str = ""):
    """A document of this text, and its findings from loading and the schema."""
    path = tmp_path / f"{name or {'P': 'rental', 'J': 'sweep'}[letter]}.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    doc = load(path, path.name, letter, FREE if letter == "J" else frozenset())
    found = list(doc.diagnostics)
    if isinstance(doc.data, dict):
        found += validate(doc, letter)
    return doc, found


def check_texts(tmp_path: Path, profile: str, job: str | None = None, without=(), today=TODAY, names=("", "")):
    """Everything that is found on a profile and a job; the documents too."""
    p, found = load_text(tmp_path, profile, "P", names[0])
    j = None
    if job is not None:
        j, more = load_text(tmp_path, job, "J", names[1])
        found += more
    if isinstance(p.data, dict) and (j is None or isinstance(j.data, dict)):
        found += check(p, j, tuple(without), today, found)
    return p, j, found


@pytest.fixture
def rental() -> str:
    """The base profile's text."""
    return (FIXTURES / "rental.yaml").read_text(encoding="utf-8")


@pytest.fixture
def sweep() -> str:
    """The base job's text."""
    return (FIXTURES / "sweep.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def script(tmp_path_factory) -> Path:
    """verify_local.py as a file, as compiled but for its head."""
    from verify_bundles import script_text

    path = tmp_path_factory.mktemp("local") / "verify_local.py"
    (path.parent / "pull.sh").touch()  # it lies there for every kind that ssh leads to
    path.write_text(script_text(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def module() -> dict:
    """Its names, for tests of its functions."""
    from verify_bundles import script_text

    names = {"__name__": "verify_local"}
    exec(compile(script_text(), "verify_local.py", "exec"), names)
    return names
