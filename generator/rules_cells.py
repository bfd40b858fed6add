"""The rules on the commands of a job, its columns and the names of its cells."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from .cells import CELL_NAME, columns, count, rows, split_command, split_name
from .diagnostics import Diagnostic, Span, closest
from .rules import Case

Found = Iterator[Diagnostic]
MAX_CELLS = 1_000_000
MAX_SHOWN = 20  # findings of one kind on cells


def one_source(case: Case) -> Found:
    """J301: matrix and cells."""
    if "matrix" in case.j and "cells" in case.j:
        yield case.say("J301", ("cells",), "the job has matrix and cells", "keep one of them", True)


def same_columns(case: Case) -> Found:
    """J302: cells with different columns."""
    cells = case.j.get("cells", [])
    found = 0
    for index, cell in enumerate(cells):
        if cell.keys() != cells[0].keys() and found < MAX_SHOWN:
            found += 1
            lacks, more = sorted(cells[0].keys() - cell.keys()), sorted(cell.keys() - cells[0].keys())
            what = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has {', '.join(more)} besides"] * bool(more)
            yield case.say("J302", ("cells", index), f"this cell {' and '.join(what)}", "give each cell the same columns")


def _sound(case: Case) -> bool:
    """True where the columns can be trusted: the rules on them need it."""
    assert case.job is not None
    if case.job.lacks(("matrix",)) or any(
        case.job.lacks(("cells", index)) for index in range(len(case.j.get("cells", [])) if case.job.lossy else 0)
    ):
        return False
    return not any(True for _ in one_source(case)) and not any(True for _ in same_columns(case))


def _at(case: Case, path: tuple, offset: int, width: int) -> Span:
    """A place inside a scalar, where it stands on one line without escapes; else the scalar."""
    assert case.job is not None
    span, raw = case.job.span(path), case.job.raw(path)
    line = case.job.lines[span.line - 1]
    start = line.find(raw, span.col - 1)
    return Span(span.file, span.line, start + offset + 1, width) if start >= 0 and "\n" not in raw else span


def known_columns(case: Case) -> Found:
    """J303: unknown column; J304: column inside quotes."""
    if not _sound(case):
        return
    names = columns(case.j)
    for path, cut in ((("cell",), split_name), (("command",), split_command)):
        for offset, kind, word in cut(case.j[path[0]], names)[1]:
            span = _at(case, path, offset, len(word) + 2)
            if kind == "unknown":
                near = closest(word, names)
                yield Diagnostic(
                    "J303",
                    span,
                    f"'{{{word}}}' is not a column",
                    near or f"columns: {', '.join(names) or 'none'}; a brace that is to stay goes into quotes",
                )
            elif kind == "quoted":
                yield Diagnostic(
                    "J304",
                    span,
                    f"'{{{word}}}' stands inside quotes and stays as it is",
                    "end the quotes before it: the value is quoted by itself",
                    "warning",
                )


def smoke_without_columns(case: Case) -> Found:
    """J322: column in the smoke command."""
    for offset, kind, word in split_command(case.j["smoke"]["command"], [])[1]:
        if kind == "unknown" and word in columns(case.j):
            yield Diagnostic(
                "J322",
                _at(case, ("smoke", "command"), offset, len(word) + 2),
                f"'{{{word}}}': the smoke trial has no cell",
                "write a value",
            )


def one_line(case: Case) -> Found:
    """J307: command is not one line."""
    for path in (("command",), ("smoke", "command")):
        text = case.j["command"] if path == ("command",) else case.j["smoke"]["command"]
        if "\n" in text.strip("\n") or text != text.strip() or not text.strip():
            if not text.strip():
                yield case.say("J307", path, "the command is blank", "write what is to run")
            elif "\n" in text.strip("\n"):
                yield case.say(
                    "J307", path, "the command has a line end in it", "write it on one line, with && between steps, or as command: >-"
                )
            else:
                yield case.say(
                    "J307", path, "the command has a blank or a line end at its edge", "take it away; a block is written command: >-"
                )


def parses(case: Case) -> Found:
    """Bash can read the commands. Where there is no bash of version 4 here, at least the quotes are counted."""
    for path in (("command",), ("smoke", "command")):
        text = case.j["command"] if path == ("command",) else case.j["smoke"]["command"]
        parts, troubles = split_command(text, columns(case.j) if path == ("command",) else [])
        opened = next(((offset, word) for offset, kind, word in troubles if kind == "open"), None)
        if "\0" in text:
            continue  # said elsewhere
        readable = bash_reads("".join(part if isinstance(part, str) else "x" for part in parts))
        if readable is False or (opened and (readable is None or "backslash" in opened[1])):
            span = _at(case, path, opened[0], 1) if opened else case.job.span(path)  # type: ignore[union-attr]
            yield Diagnostic(
                "J308", span, f"bash cannot read this command: {opened[1] if opened else 'a syntax error'}", "try it: bash -n -c '…'"
            )


def witnesses(case: Case) -> Found:
    """J332: a pattern that matches nothing; J308 for the commands beside it."""
    for tier in ("kernel", "docs"):
        for index, one in enumerate(case.j.get("environment", {}).get(tier, [])):
            if "\0" in one["command"] + one["expect"]:
                continue  # said elsewhere
            if bash_reads(one["command"]) is False:
                yield case.say(
                    "J308", ("environment", tier, index, "command"), "bash cannot read this command: a syntax error", "try it: bash -n -c '…'"
                )
            if not _bash("-c", "[[ '' =~ $1 ]]; (($? < 2))", "bash", one["expect"]):
                yield case.say(
                    "J332", ("environment", tier, index, "expect"), "this is no extended regular expression", "try it: grep -E '…' </dev/null"
                )


def _commands(case: Case) -> list[tuple[tuple, str]]:
    return [(("command",), case.j["command"]), (("smoke", "command"), case.j["smoke"]["command"])]


def place_given(case: Case) -> Found:
    """J330: CELL_DIR is not in the command."""
    for path, text in _commands(case):
        if "CELL_DIR" not in text and text.strip():
            yield case.say(
                "J330",
                path,
                "nothing here says where to write: $CELL_DIR is not in it",
                'add --out "$CELL_DIR" or the like; where the program reads the variable itself, begin with CELL_DIR="$CELL_DIR"',
            )


_PYTHON = re.compile(r"(?:^|[;&|(]|&&)\s*(?:(?:exec|nohup|time|env|[A-Za-z_]\w*=\S*)\s+)*(python[0-9.]*)(?=\s|$)")


def python_given(case: Case) -> Found:
    """J331: python by name."""
    for path, text in _commands(case):
        match = _PYTHON.search(text)
        if match:
            yield Diagnostic(
                "J331",
                _at(case, path, match.start(1), len(match[1])),
                f"'{match[1]}' is whatever the box finds first on its PATH",
                'write "$PY", with the quotes: the interpreter that the profile names and preflight has looked at',
                "warning",
            )


@lru_cache(maxsize=64)
def bash_reads(command: str) -> bool | None:
    """True where bash can parse it; nothing is run. None where no bash of version 4 or later is here."""
    if _bash("-n", "-c", command):
        return True
    return False if _bash("-c", "((BASH_VERSINFO[0] >= 4))") else None


def _bash(*words: str) -> bool:
    """True where bash ends with 0. Its words go nowhere, and nothing of the environment but PATH reaches it."""
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    try:
        child = os.posix_spawnp("bash", ["bash", *words], {"PATH": os.environ.get("PATH", os.defpath)}, file_actions=quiet)
    except OSError:
        return False
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def columns_used(case: Case) -> Found:
    """J309: column not in the command."""
    if not _sound(case):
        return
    names = columns(case.j)
    parts, _ = split_command(case.j["command"], names)
    used = {part for part in parts if isinstance(part, int)}
    key = "matrix" if "matrix" in case.j else "cells"
    for index, name in enumerate(names):
        if index not in used and "CELL_" not in case.j["command"].replace("CELL_DIR", ""):
            at = (key, name) if key == "matrix" else (key, 0, name)
            yield case.say(
                "J309", at, f"'{name}' is not in the command, so its values make no difference", f"write {{{name}}} where it belongs", True
            )


def few_enough(case: Case) -> Found:
    """J321: too many cells."""
    if count(case.j) > MAX_CELLS:
        yield case.say(
            "J321",
            ("matrix" if "matrix" in case.j else "cells",),
            f"{count(case.j)} cells, the limit is {MAX_CELLS}",
            "split the job",
            True,
        )


def cell_names(case: Case) -> Found:
    """Every name fits and stands alone, also after case folding and normalisation."""
    if count(case.j) > MAX_CELLS or not _sound(case):
        return
    names = columns(case.j)
    parts, troubles = split_name(case.j["cell"], names)
    if troubles:
        return
    seen: dict[str, int] = {}
    found = 0
    for number, row in enumerate(rows(case.j)):
        name = "".join(part if isinstance(part, str) else row[part] for part in parts)
        if not CELL_NAME.match(name):
            found += 1
            yield case.say(
                "J305",
                _place(case, number, name, parts, row),
                f"cell {number + 1} would be named '{name}': {_name_trouble(name)}",
                "change `cell` or the value: A-Z a-z 0-9 . _ = , + @ -",
            )
        elif not name.isascii() or seen.setdefault(name.lower(), number) != number:
            first = seen[unicodedata.normalize("NFC", name).casefold()]
            found += 1
            yield case.say(
                "J306",
                ("cell",),
                f"cells {first + 1} and {number + 1} would both be named '{name}'"
                + (
                    ""
                    if _name_of(case, first, parts) == name
                    else f" ('{_name_of(case, first, parts)}' differs in upper and lower case only)"
                ),
                "put every column into `cell`",
            )
        if found >= MAX_SHOWN:
            return


def _name_of(case: Case, number: int, parts: list) -> str:
    row = next(row for at, row in enumerate(rows(case.j)) if at == number)
    return "".join(part if isinstance(part, str) else row[part] for part in parts)


def _place(case: Case, number: int, name: str, parts: list, row: tuple) -> tuple:
    """The value that spoils a name, else the pattern."""
    names = columns(case.j)
    for part in parts:
        if isinstance(part, int) and re.search(r"[^A-Za-z0-9._=,+@-]", row[part]):
            column = names[part]
            return ("matrix", column, case.j["matrix"][column].index(row[part])) if "matrix" in case.j else ("cells", number, column)
    return ("cell",)


def _name_trouble(name: str) -> str:
    if not name:
        return "it is empty"
    bad = re.search(r"[^A-Za-z0-9._=,+@-]", name)
    if bad:
        return f"it holds {bad.group()!r}" if bad.group().isprintable() else f"it holds U+{ord(bad.group()):04X}"
    if len(name) > 128:
        return f"it has {len(name)} characters, at most 128 are allowed"
    return f"it begins with '{name[0]}'"
