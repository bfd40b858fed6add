"""Trace docs/requirements.md: for each demand, which tests name its number, and what is still open.

Reads the table rows `| number | demand | carrier | test |`. A demand is *tested* where a file under tests/ names its
number (S47, F22, X3), *carried* where only something else does (generator, templates, profiles, schema, tools, examples),
and *open* otherwise. A row that names a file that is not there, a number twice, a gap in the numbering: exit 1. `--write` fills the last column by what is found.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/requirements.md"
ROW = re.compile(r"^\|\s*\**([A-Z][0-9]+)\**\s*\|(.*)\|\s*$")
NUMBER = re.compile(r"(?<![A-Za-z0-9_$.])([SFX])([0-9]{1,3})(?:\s*(?:\.\.|-|–|to)\s*\1?([0-9]{1,3}))?(?![A-Za-z0-9_])")
MENTIONED = re.compile(r"`((?:tests|tools|generator|templates|profiles|schema|jobs|examples|docs)/[^`*{}<>\s]+)`")
TESTS = ("tests",)
CARRIERS = ("generator", "templates", "profiles", "schema", "tools", "examples", "jobs", "Makefile")
SUFFIXES = {".py", ".bats", ".bash", ".sh", ".j2", ".yaml", ".json", ".md", ""}


def numbers_in(text: str) -> set[str]:
    """Numbers that a text names; `S47-S49` and `S47..49` name all three."""
    found = set()
    for letter, first, last in NUMBER.findall(text):
        end = int(last) if last and int(first) < int(last) < int(first) + 30 else int(first)
        found |= {f"{letter}{n}" for n in range(int(first), end + 1)}
    return found


def namers(places: tuple[str, ...]) -> dict[str, set[str]]:
    """number -> the files under these places that name it."""
    found: dict[str, set[str]] = {}
    for place in places:
        top = ROOT / place
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES and not {"__pycache__", "node_modules"} & set(path.parts):
                for number in numbers_in(path.read_text(encoding="utf-8", errors="replace")):
                    found.setdefault(number, set()).add(path.relative_to(ROOT).as_posix())
    return found


def rows(text: str) -> tuple[dict[str, str], list[str]]:
    """number -> the rest of its row, and what is wrong with the table itself."""
    found: dict[str, str] = {}
    wrong = []
    for line in text.splitlines():
        if hit := ROW.match(line):
            number, rest = hit.groups()
            if number in found:
                wrong.append(f"{number} stands twice")
            found[number] = rest
            if rest.count("|") < 2:
                wrong.append(f"{number} lacks a column")
    for letter in sorted({number[0] for number in found}):
        have = {int(number[1:]) for number in found if number[0] == letter}
        wrong += [f"{letter}{n} is missing" for n in range(1, max(have)) if n not in have]
    return found, wrong


def names_of_tests(number: str, files: set[str]) -> str:
    """The tests that name a number: `file::test` where a Python test says it on its first line, else the file."""
    found = []
    for name in sorted(files):
        tests = [hit[1] for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
                 if number in numbers_in(line) and (hit := re.match(r"def (test_\w+)", line))] if name.endswith(".py") else []
        found += [f"`{name}::{test}`" for test in tests[:1]] or [f"`{name}`"]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "") if found else "open"


def write_column(tests: dict[str, set[str]]) -> None:
    """Rewrite the last column of the table."""
    lines = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if hit := ROW.match(line):
            line = line[:line.rstrip(" |").rindex("|")] + f"| {names_of_tests(hit[1], tests.get(hit[1], set()))} |"
        lines.append(line)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Print the state of every demand that is not tested, then the counts."""
    if not TABLE.is_file():
        print("trace: there is no docs/requirements.md", file=sys.stderr)
        return 1
    tests, carriers = namers(TESTS), namers(CARRIERS)
    if sys.argv[1:] == ["--write"]:
        write_column(tests)
    table, wrong = rows(TABLE.read_text(encoding="utf-8"))
    wrong += [f"{number} names {path}, which is not there" for number, rest in table.items() for path in MENTIONED.findall(rest)
              if not (ROOT / path.split("::")[0].rstrip("/")).exists()]
    tested = [number for number in table if tests.get(number)]
    carried = [number for number in table if number not in tested and carriers.get(number)]
    left = [number for number in table if number not in tested and number not in carried]
    for number in carried:
        print(f"no test   {number:5} {table[number].split('|')[0].strip()}  [{', '.join(sorted(carriers[number])[:3])}]")
    for number in left:
        print(f"open      {number:5} {table[number].split('|')[0].strip()}")
    for line in wrong:
        print(f"wrong     {line}")
    print(f"trace: {len(table)} demands: {len(tested)} named by a test, {len(carried)} by code only, {len(left)} open, {len(wrong)} faults of the table")
    return 1 if wrong or not table else 0


if __name__ == "__main__":
    sys.exit(main())
