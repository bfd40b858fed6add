"""What is wrong with an input: values that are collected, sorted and printed at once.

A code is stable and never reused: P1xx/J1xx loading, P2xx/J2xx schema, P3xx/J3xx rules; P is a profile, J a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


SECRETS = ("P316", "J318")  # the line that holds one goes into no terminal and no log


@dataclass(frozen=True, order=True)
class Span:
    """Where something stands in a file: 1-based line and column, width in characters."""

    file: str
    line: int
    col: int
    width: int = 1


@dataclass(frozen=True)
class Diagnostic:
    """One finding. `message` says what is wrong (lower case, no full stop), `hint` what to write instead."""

    code: str
    span: Span
    message: str
    hint: str = ""
    severity: str = "error"  # or "warning"


@dataclass
class Report:
    """All findings of one run and the source lines that they point into."""

    found: list[Diagnostic] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)

    def add(self, diagnostics: list[Diagnostic]) -> None:
        """Collect further findings."""
        self.found.extend(diagnostics)

    @property
    def failed(self) -> bool:
        """True where at least one finding is an error."""
        return any(one.severity == "error" for one in self.found)

    def ordered(self) -> list[Diagnostic]:
        """Each finding once, by file and place; what looks like a secret is not said again."""
        from .secrets import masked

        found = {replace(one, message=_short(masked(one.message)), hint=_short(masked(one.hint))) for one in self.found}
        return sorted(found, key=lambda one: (one.span, one.code, one.message))

    def text(self) -> str:
        """The findings as people read them."""
        ordered = self.ordered()
        secret = {(each.span.file, each.span.line) for each in ordered if each.code in SECRETS}
        return "".join(self._one(each, (each.span.file, each.span.line) in secret) for each in ordered)

    def _one(self, one: Diagnostic, secret: bool) -> str:
        span = one.span
        out = [f"{visible(span.file)}:{span.line}:{span.col}: {one.severity}[{one.code}]: {visible(one.message)}\n"]
        lines = self.lines.get(span.file, [])
        from .secrets import secret_in

        if secret or (0 < span.line <= len(lines) and secret_in(lines[span.line - 1])):
            out.append(f"{span.line:5} | (not shown)\n")
        elif 0 < span.line <= len(lines):
            out.append(_excerpt(lines[span.line - 1], span))
        if one.hint:
            out.append(f"      = hint: {visible(one.hint)}\n")
        return "".join(out)

    def json(self) -> str:
        """The findings as one JSON document, schema diagnostics/1."""
        import json

        return (
            json.dumps(
                {
                    "schema": "diagnostics/1",
                    "errors": sum(one.severity == "error" for one in self.ordered()),
                    "warnings": sum(one.severity == "warning" for one in self.ordered()),
                    "diagnostics": [
                        {
                            "code": one.code,
                            "severity": one.severity,
                            "file": one.span.file,
                            "line": one.span.line,
                            "column": one.span.col,
                            "width": one.span.width,
                            "message": one.message,
                            "hint": one.hint,
                        }
                        for one in self.ordered()
                    ],
                },
                indent=2,
                ensure_ascii=False,
            )
            + "\n"
        )

    def github(self) -> str:
        """The findings as workflow commands, which show up beside the changed lines of a pull request."""
        out = []
        for one in self.ordered():
            text = one.message + (f" (hint: {one.hint})" if one.hint else "")
            span = one.span
            out.append(
                f"::{one.severity} file={_property(span.file)},line={span.line},col={span.col},"
                f"endColumn={span.col + span.width},title={one.code}::{_escape(visible(text))}\n"
            )
        return "".join(out)


def _short(text: str) -> str:
    """A value may have a million characters; a line that somebody is to read has not."""
    return text if len(text) <= 500 else text[:240] + " … " + text[-240:]


def visible(text: str) -> str:
    """Text for a terminal: control and invisible characters are shown as escapes, so that they do nothing."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _excerpt(line: str, span: Span) -> str:
    """The source line and carets below it. A long line is cut around the place."""
    start = max(0, span.col - 60) if len(line) > 120 else 0
    shown = "".join(c if c.isprintable() else " " for c in line[start : start + 120])
    col = span.col - start
    width = max(1, min(span.width, len(shown) - col + 1))
    return f"{span.line:5} | {shown}\n      | {' ' * (col - 1)}{'^' * width}\n"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


def closest(word: str, allowed) -> str:
    """`did you mean 'x'?` where something allowed is near, else an empty string."""
    import difflib

    near = difflib.get_close_matches(str(word), [str(each) for each in allowed], 1, 0.6)
    return f"did you mean '{near[0]}'?" if near else ""
