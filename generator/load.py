"""A YAML file to data with source positions. Nothing is guessed: what YAML 1.1 and 1.2 read differently is an error.

The file is read as a stream of events (libyaml's, where PyYAML has it), so neither depth nor aliases can cost more than
a fixed budget. `Document.data` has str, int, float, bool, None, list and dict; every scalar's own text is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .diagnostics import Diagnostic, Span

MAX_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 40
MAX_ALIASED = 10_000  # nodes that may be reached through aliases


class Node:
    """A YAML node: kind is 's', 'm' or 'l'; value is text, [(key, value)] or [item]; line and col are 1-based."""

    __slots__ = ("kind", "value", "line", "col", "width", "plain")

    def __init__(self, kind: str, value: Any, line: int, col: int, width: int, plain: bool):
        self.kind, self.value, self.line, self.col, self.width, self.plain = kind, value, line, col, width, plain


@dataclass
class Document:
    """A loaded file. `free` names top-level keys whose scalars are text as written (the columns of a job)."""

    file: str
    name: str
    digest: str
    lines: list[str]
    data: Any = None
    root: Node | None = None
    free: frozenset[str] = frozenset()
    diagnostics: list[Diagnostic] = field(default_factory=list)
    lossy: list[Node] = field(default_factory=list)  # mappings that lost a key that cannot be read

    def lacks(self, path: tuple) -> bool:
        """True where the mapping at `path` lost a key: what it lacks then is no finding."""
        node = self.node(path)
        return any(each is node for each in self.lossy)

    def node(self, path: tuple) -> Node | None:
        """The node at a tuple path of keys and indexes."""
        here = self.root
        for part in path:
            here = _child(here, part)
            if here is None:
                return None
        return here

    def raw(self, path: tuple) -> str:
        """The scalar at `path` as it was written, without its quotes; empty where there is none."""
        node = self.node(path)
        return node.value if node is not None and node.kind == "s" else ""

    def span(self, path: tuple) -> Span:
        """Where the value at `path` stands; where it is missing, its nearest parent."""
        while True:
            node = self.node(path)
            if node is not None:
                return Span(self.file, node.line, node.col, node.width)
            if not path:
                return Span(self.file, 1, 1, 1)
            path = path[:-1]

    def key_span(self, path: tuple) -> Span:
        """Where the key of `path` stands; an item of a list has no key, then its value."""
        parent = self.node(path[:-1]) if path else None
        if parent is not None and parent.kind == "m":
            for key, _ in parent.value:
                if key.value == path[-1]:
                    return Span(self.file, key.line, key.col, key.width)
        return self.span(path)


def _child(node: Node | None, part) -> Node | None:
    if node is None:
        return None
    if node.kind == "m":
        return next((value for key, value in node.value if key.kind == "s" and key.value == part), None)
    if node.kind == "l" and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


# What a plain scalar may be without doubt in every YAML version.
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+\Z")
_WORDS = {"true": True, "false": False, "null": None}
# What some YAML version reads as something other than text.
_BOOLISH = re.compile(r"(?:yes|no|on|off|true|false)\Z", re.I)  # y and n are text to every reader in use
_NULLISH = re.compile(r"(?:~|null)?\Z", re.I)
_NUMBERISH = re.compile(
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
    r"|\.inf|\.Inf|\.INF)\Z|\.nan\Z|\.NaN\Z|\.NAN\Z"
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+)[0-9].*)?\Z")


def scalar(text: str) -> tuple[Any, str]:
    """The value of a plain scalar and, where YAML's versions disagree on it, what they take it for."""
    if text in _WORDS:
        return _WORDS[text], ""
    if _INT.match(text):
        return (int(text), "") if len(text) < 19 and text != "-0" else (text, "a number")
    if _FLOAT.match(text):
        return (float(text), "") if len(text) < 40 else (text, "a number")
    if text == "" or text == "~":
        return None, ""
    if _BOOLISH.match(text):
        return text, "true or false"
    if _NULLISH.match(text):
        return text, "null"
    if _NUMBERISH.match(text):
        return text, "a number"
    if _DATE.match(text):
        return text, "a date"
    return text, ""


def load(path: Path, shown: str, letter: str, free: frozenset[str] = frozenset()) -> Document:
    """Load a profile (letter P) or a job (J). `shown` is the file's name in messages and output."""
    import hashlib

    doc = Document(shown, path.stem, "", [], free=free)
    try:
        blob = path.read_bytes()
    except OSError as error:
        return _fail(doc, letter + "101", 1, 1, f"the file cannot be read: {error.strerror or error}")
    doc.digest = hashlib.sha256(blob).hexdigest()
    text = _decode(doc, letter, blob)
    if text is None:
        return doc
    doc.lines = text.split("\n")
    from .compose import compose

    doc.root = compose(doc, letter, text)
    if doc.root is not None:
        doc.data = _data(doc, letter, doc.root, False, True)
        if not isinstance(doc.data, dict):
            _fail(
                doc,
                letter + "104",
                doc.root.line,
                doc.root.col,
                "the file is not a mapping of fields",
                "write 'field: value' lines; see docs/" + ("profile.md" if letter == "P" else "job.md"),
            )
    return doc


def _fail(doc: Document, code: str, line: int, col: int, message: str, hint: str = "", width: int = 1) -> Document:
    doc.diagnostics.append(Diagnostic(code, Span(doc.file, line, col, width), message, hint))
    return doc


# Controls, byte order marks, line separators, direction marks, zero-width characters and blanks that are no blanks.
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufffe\uffff]")


def _decode(doc: Document, letter: str, blob: bytes) -> str | None:
    """The text, or None with one diagnostic that says which byte is the trouble."""
    where, trouble, hint = (1, 1), "", "save it as UTF-8 without a byte order mark"
    text = None
    if len(blob) > MAX_BYTES:
        trouble, hint = f"the file has {len(blob)} bytes, the limit is {MAX_BYTES}", ""
    elif blob.startswith((b"\xff\xfe", b"\xfe\xff")):
        trouble = "the file is UTF-16"
    elif blob.startswith(b"\xef\xbb\xbf"):
        trouble = "the file begins with a byte order mark"
    else:
        try:
            text = blob.decode("utf-8")
        except UnicodeDecodeError as error:
            before = blob[: error.start].decode("utf-8")
            where, trouble = _place(before, len(before)), f"byte 0x{blob[error.start]:02x} is not UTF-8"
    if text is None:
        _fail(doc, letter + "102", *where, trouble, hint)
        return None
    doc.lines = text.split("\n")
    return text if _clean(doc, letter, text) else None


def _clean(doc: Document, letter: str, text: str) -> bool:
    """True for a text without characters that look like nothing; else one finding."""
    bad = _INVISIBLE.search(text)
    if "\r" in text:
        hint = "save it with LF line ends, e.g. sed -i 's/\\r$//' FILE"
        _fail(doc, letter + "103", *_place(text, text.index("\r")), "a carriage return: the file has Windows line ends", hint)
    elif "\t" in text:
        hint = 'indent and separate with blanks; inside text write "\\t" in double quotes'
        _fail(doc, letter + "113", *_place(text, text.index("\t")), "a tab", hint)
    elif bad:
        hint = "put a blank in its place or delete it; it is easily there after copying from a web page"
        _fail(doc, letter + "103", *_place(text, bad.start()), f"an invisible character, U+{ord(bad.group()):04X}", hint)
    else:
        return True
    return False


def _place(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _data(doc: Document, letter: str, node: Node, free: bool, top: bool = False) -> Any:
    """Plain data of a node. In a free part every scalar is its own text."""
    if node.kind == "l":
        return [_data(doc, letter, item, free) for item in node.value]
    if node.kind == "m":
        return {key.value: _data(doc, letter, value, free or (top and key.value in doc.free)) for key, value in node.value}
    if not node.plain:
        return node.value
    value, doubt = scalar(node.value)
    if free:
        if value is None and node.value in ("", "~"):
            _fail(doc, letter + "111", node.line, node.col, "an empty value", "write '' for an empty text", node.width)
        return node.value
    if doubt:
        _fail(
            doc,
            letter + "110",
            node.line,
            node.col,
            f"'{node.value}' is text to one YAML reader and {doubt} to another",
            _doubt_hint(node.value, doubt),
            node.width,
        )
    return value


def _doubt_hint(text: str, doubt: str) -> str:
    quoted = f'write "{text}" where text is meant'
    if doubt == "true or false":
        word = "true" if text.lower() in ("yes", "on", "true") else "false"
        return f"write {word} for the value, or {quoted.removeprefix('write ')}"
    if doubt == "null":
        return f"write null for no value, or {quoted.removeprefix('write ')}"
    plain = _plain_number(text) if doubt == "a number" else ""
    return f"write {plain} for the number, or {quoted.removeprefix('write ')}" if plain else quoted


def _plain_number(text: str) -> str:
    """The decimal spelling of a number in another notation; empty where two readings are possible."""
    bare = text.replace("_", "").lstrip("+")
    try:
        if re.fullmatch(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|-?\.[0-9]+(?:[eE][-+]?[0-9]+)?", bare):
            if re.fullmatch(r"-?0[0-9]+", bare):
                return ""
            from decimal import Decimal

            plain = format(Decimal(bare).normalize(), "f")
            return "0" if plain == "-0" else plain if len(plain) < 25 else ""
        if re.fullmatch(r"0[xob][0-9a-f]+", bare.lower()):
            return str(int(bare, 0))
        if ":" in bare:
            total = 0
            for part in bare.split(":"):
                total = total * 60 + int(part)
            return str(total)
    except (ArithmeticError, ValueError):
        pass
    return ""
