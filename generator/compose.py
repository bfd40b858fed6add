"""YAML text to a tree of `Node`s, in one loop over the parser's events and without recursion."""

from __future__ import annotations

from .diagnostics import Diagnostic, Span
from .load import MAX_ALIASED, MAX_DEPTH, Document, Node, scalar


class _Stop(Exception):
    """Composing has ended with a diagnostic."""


def compose(doc: Document, letter: str, text: str) -> Node | None:
    """The root node, or None after a fatal finding; findings go to `doc.diagnostics`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    composer = _Composer(doc, letter)
    try:
        for event in yaml.parse(text, Loader=loader):
            composer.take(event)
    except _Stop:
        return None
    except yaml.YAMLError as error:
        _syntax(doc, letter, text, error)
        return None
    if composer.root is None:
        composer.say("104", 1, 1, "the file is empty", "start from: python -m generator new")
    return composer.root


class _Composer:
    """Takes events one by one; `stack` holds the open collections as [node, pending key, keys seen]."""

    def __init__(self, doc: Document, letter: str):
        self.doc, self.letter = doc, letter
        self.root: Node | None = None
        self.stack: list[list] = []
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.open_anchors: list[str | None] = []
        self.nodes = 0
        self.aliased = 0
        self.documents = 0

    def say(self, code: str, line: int, col: int, message: str, hint: str = "", width: int = 1) -> None:
        span = Span(self.doc.file, line, col, width)
        self.doc.diagnostics.append(Diagnostic(self.letter + code, span, message, hint))

    def take(self, event) -> None:
        """One event of the parser."""
        name = type(event).__name__
        if name == "ScalarEvent":
            self._scalar(event)
        elif name in ("MappingStartEvent", "SequenceStartEvent"):
            self._open(event, "m" if name == "MappingStartEvent" else "l")
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            self._close()
        elif name == "AliasEvent":
            self._alias(event)
        elif name == "DocumentStartEvent":
            self.documents += 1
            mark = event.start_mark
            if self.documents > 1:
                self.say(
                    "105",
                    mark.line + 1,
                    mark.column + 1,
                    "a second document begins here",
                    "a file holds one document: delete the '---' line or split the file",
                )
                raise _Stop
            if event.version or event.tags:
                self.say("106", mark.line + 1, mark.column + 1, "YAML directives are not used here", "delete the line that begins with %")

    def _tagged(self, event) -> None:
        mark = event.start_mark
        if event.tag is not None:
            self.say(
                "106",
                mark.line + 1,
                mark.column + 1,
                f"the tag {event.tag} is not used here",
                "delete the tag; quote the value where text is meant",
            )

    def _scalar(self, event) -> None:
        if event.tag is not None:
            self._tagged(event)
        start, end = event.start_mark, event.end_mark
        width = end.column - start.column if end.line == start.line else 1
        node = Node("s", event.value, start.line + 1, start.column + 1, max(width, 1), not event.style)
        self.nodes += 1
        if event.anchor:
            self.anchors[event.anchor] = (node, 1)
        self._add(node)

    def _open(self, event, kind: str) -> None:
        if event.tag is not None:
            self._tagged(event)
        mark = event.start_mark
        if len(self.stack) >= MAX_DEPTH:
            self.say("107", mark.line + 1, mark.column + 1, f"nested more than {MAX_DEPTH} levels deep", "flatten it; no field needs that")
            raise _Stop
        node = Node(kind, [], mark.line + 1, mark.column + 1, 1, False)
        self.nodes += 1
        self.stack.append([node, None, {}, self.nodes])
        self.open_anchors.append(event.anchor)

    def _close(self) -> None:
        node, _, _, before = self.stack.pop()
        anchor = self.open_anchors.pop()
        if anchor:
            self.anchors[anchor] = (node, self.nodes - before + 1)
        self._add(node)

    def _alias(self, event) -> None:
        mark = event.start_mark
        if event.anchor in self.open_anchors:
            self.say("107", mark.line + 1, mark.column + 1, f"the alias *{event.anchor} holds itself", "write the value out")
            raise _Stop
        if event.anchor not in self.anchors:
            self.say(
                "106",
                mark.line + 1,
                mark.column + 1,
                f"the alias *{event.anchor} has no anchor &{event.anchor} before it",
                "write the value out, or quote it where text is meant",
            )
            raise _Stop
        node, size = self.anchors[event.anchor]
        self.nodes += size
        self.aliased += size
        if self.aliased > MAX_ALIASED:
            self.say("107", mark.line + 1, mark.column + 1, f"the aliases stand for more than {MAX_ALIASED} values", "write them out")
            raise _Stop
        self._add(node)

    def _add(self, node: Node) -> None:
        """Hang a finished node into its parent, checking keys."""
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        if frame[0].kind == "l":
            frame[0].value.append(node)
        elif frame[1] is None:
            frame[1] = node
        else:
            key, frame[1] = frame[1], None
            if self._key(key, frame[2]):
                frame[0].value.append((key, node))
            else:
                self.doc.lossy.append(frame[0])

    def _key(self, key: Node, seen: dict) -> bool:
        """True for a key that is text and new here."""
        if key.kind != "s":
            self.say("109", key.line, key.col, "a key is a list or a mapping", "a key is one word")
            return False
        if key.plain and key.value == "<<":
            self.say("112", key.line, key.col, "merge keys (<<) are not used here", "write the fields out", 2)
            return False
        if key.plain and (key.value == "" or scalar(key.value) != (key.value, "")):
            self.say(
                "109",
                key.line,
                key.col,
                f"the key '{key.value}' is not text to every YAML reader",
                f'write "{key.value}" in quotes',
                key.width,
            )
            return False
        first = seen.setdefault(key.value, key)
        if first is not key:
            self.say(
                "108",
                key.line,
                key.col,
                f"'{key.value}' stands here twice: first on line {first.line}, again on line {key.line}",
                "keep one of the two; the last would silently win",
                key.width,
            )
            return False
        return True


def _syntax(doc: Document, letter: str, text: str, error) -> None:
    """One finding for what the parser could not read."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, col = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    if "nesting" in problem:
        span = Span(doc.file, line, col)
        doc.diagnostics.append(
            Diagnostic(letter + "107", span, f"nested more than {MAX_DEPTH} levels deep", "flatten it; no field needs that")
        )
        return
    lines = doc.lines
    if line > len(lines) or (line == len(lines) and not lines[-1]):  # the end of the text: show its last line
        line = max(1, len(lines) - 1)
        col = len(lines[line - 1]) + 1
    shown = lines[line - 1]
    hint = ""
    if "\uff1a" in "".join(lines[max(0, line - 2) : line]):
        hint = "a full-width colon (\uff1a) stands here or in the line above: write ': '"
    elif ": " in shown.partition(": ")[2]:
        hint = "quote a value that holds ': '"
    elif shown.lstrip()[:1] in "@`%*&!|>[{" and shown.strip():
        hint = "quote a value that begins with one of @ ` % * & ! | > [ {"
    elif shown.count('"') % 2 or shown.count("'") % 2:
        hint = "a quote is not closed"
    hint = hint or "look at this line and the one above: the blanks before it, a ': ' or a quote that is missing"
    span = Span(doc.file, line, col)
    doc.diagnostics.append(Diagnostic(letter + "120", span, f"not YAML: {problem}", hint))
