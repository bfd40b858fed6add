"""The cells of a job: names and commands, in written order, in bounded memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from .quote import single

CELL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}\Z")
_WORD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def columns(job: dict) -> list[str]:
    """The names of the columns, in written order; none where the job is one cell."""
    if "matrix" in job:
        return list(job["matrix"])
    return list(job["cells"][0]) if job.get("cells") else []


def rows(job: dict) -> Iterator[tuple[str, ...]]:
    """The values of each cell, in the order of `columns`; the last column of a matrix goes fastest."""
    if "matrix" in job:
        return itertools.product(*job["matrix"].values())
    names = columns(job)
    return (tuple(cell[name] for name in names) for cell in job.get("cells", [{}]))


def count(job: dict) -> int:
    """How many cells there are, without making them."""
    if "matrix" in job:
        total = 1
        for values in job["matrix"].values():
            total *= len(values)
        return total
    return len(job.get("cells", [{}]))


def split_command(command: str, names: list[str]) -> tuple[list[str | int], list[tuple[int, str, str]]]:
    """A command cut at its columns: literal text and column indexes by turns, and what is wrong with it.

    A column counts outside quotes and not after `$`. Each trouble is (offset, kind, word), kind being `unknown` (no such
    column), `quoted` (a column inside quotes, where it stays as it is) or `open` (a quote or backslash without its end).
    """
    parts: list[str | int] = []
    troubles: list[tuple[int, str, str]] = []
    index = {name: at for at, name in enumerate(names)}
    start = at = opened = 0
    quote = ""  # ', " or $' while inside one
    while at < len(command):
        c = command[at]
        if c == "\\" and quote != "'":
            if at + 1 == len(command):
                troubles.append((at, "open", "a backslash at the end"))
            at += 2
            continue
        if quote:
            quote = "" if c == quote[-1] else quote
        elif c in "'\"":
            quote, opened = ("$'" if c == "'" and command[at - 1 : at] == "$" else c), at
        if c == "{":
            match = _WORD.match(command, at)
            if match and command[at - 1 : at] != "$":
                if quote and match[1] in index:
                    troubles.append((at, "quoted", match[1]))
                elif not quote and match[1] not in index:
                    troubles.append((at, "unknown", match[1]))
                elif not quote:
                    parts += [command[start:at], index[match[1]]]
                    at = start = match.end()
                    continue
        at += 1
    if quote:
        troubles.append((opened, "open", f"the {quote[-1]} is not closed"))
    parts.append(command[start:])
    return parts, troubles


def split_name(pattern: str, names: list[str]) -> tuple[list[str | int], list[tuple[int, str, str]]]:
    """The pattern of cell names, cut the same way; it knows no quotes."""
    parts: list[str | int] = []
    troubles = []
    start = 0
    for match in _WORD.finditer(pattern):
        if match[1] in names:
            parts += [pattern[start : match.start()], names.index(match[1])]
            start = match.end()
        else:
            troubles.append((match.start(), "unknown", match[1]))
    parts.append(pattern[start:])
    return parts, troubles


def cells(job: dict) -> Iterator[tuple[str, str]]:
    """Name and command of each cell."""
    names = columns(job)
    name_parts, _ = split_name(job["cell"], names)
    command_parts, _ = split_command(job["command"], names)
    quoted: dict[str, str] = {}
    # A number right before > or < would be taken for a file descriptor.
    before = {at for at, part in enumerate(command_parts[:-1]) if isinstance(part, int) and str(command_parts[at + 1])[:1] in ("<", ">")}

    def word(value: str) -> str:
        if value not in quoted:
            if len(quoted) > 10_000:
                quoted.clear()
            quoted[value] = single(value)
        return quoted[value]

    for row in rows(job):
        name = "".join(part if isinstance(part, str) else row[part] for part in name_parts)
        yield name, "".join(
            part if isinstance(part, str) else f"'{row[part]}'" if at in before and row[part].isdigit() else word(row[part])
            for at, part in enumerate(command_parts)
        )


def queue_tsv(job: dict) -> bytes:
    """The queue file: one line a cell, name, tab, command."""
    return "".join(f"{name}\t{command}\n" for name, command in cells(job)).encode()
