"""Of the libraries in a script only those functions that it can reach: less to send and to review.

Reaching is judged by words: a function stays where its name stands anywhere in the script or in a function that stays, be it
in a string, a trap or a list for `declare -f`. What is no function stays as it is.
"""

from __future__ import annotations

import re
from functools import lru_cache

_HEAD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\(\) ([{(])")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def split(text: str) -> list[tuple[str, str]]:
    """A library cut into (name, text) for its top-level functions, each with the comment above it, and ("", text) for the rest."""
    parts: list[tuple[str, str]] = []
    rest: list[str] = []
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        head = _HEAD.match(lines[at])
        if not head:
            rest.append(lines[at])
            at += 1
            continue
        end, close = at, "}" if head[2] == "{" else ")"
        if not re.search(r"[;)}] *[})](?: *#.*)?$", lines[at]):  # else it is one line
            while not lines[end].startswith(close):
                end += 1
        comment: list[str] = []
        while rest and rest[-1].startswith("#") and not rest[-1].startswith("# needs:"):
            comment.insert(0, rest.pop())
        blank = [""] if lines[end + 1 : end + 2] == [""] else []
        parts += [("", "\n".join(rest))] if rest else []
        parts.append((head[1], "\n".join(comment + lines[at : end + 1] + blank)))
        rest, at = [], end + 1 + len(blank)
    return parts + ([("", "\n".join(rest))] if rest else [])


@lru_cache(maxsize=64)
def trim(script: str, libraries: tuple[str, ...]) -> list[str]:
    """The libraries without the functions that `script` cannot reach. The same for every profile of a kind, so kept."""
    parts = [split(text) for text in libraries]
    bodies: dict[str, str] = {}
    for name, text in (part for each in parts for part in each if part[0]):
        bodies[name] = bodies.get(name, "") + "\n" + text
    reached: set[str] = set()
    new = set(_WORD.findall("\n".join([script, *(text for each in parts for name, text in each if not name)]))) & bodies.keys()
    while new:
        reached |= new
        new = {word for name in new for word in _WORD.findall(bodies[name])} & bodies.keys() - reached
    return ["\n".join(text for name, text in each if not name or name in reached).rstrip("\n") for each in parts]
