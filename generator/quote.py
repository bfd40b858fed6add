"""Quoting, one function for each target language. What comes out is `Safe`: a template prints nothing else."""

from __future__ import annotations

import json
import re


class Safe(str):
    """Text that is right for the language that it was quoted for."""


_KEYWORDS = frozenset("if then elif else fi for in do done while until case esac select function time coproc".split())
_BARE = re.compile(r"[A-Za-z0-9_@%+,./:=-]+\Z")


def word(value) -> Safe:
    """One bash word that is exactly `value`. Readable where it can be; $'…' only for control characters."""
    text = str(value)
    if "\0" in text:
        raise ValueError("a NUL cannot be in a bash word")
    # A word like NAME=x or a leading = could be read as an assignment in front of a command or by zsh.
    if _BARE.match(text) and "=" not in text:
        return Safe(text)
    if text == "":
        return Safe("''")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):
        return Safe("$'" + "".join(_ansi(c) for c in text) + "'")
    head = ""
    if text.startswith("~"):
        # In quotes a tilde looks as if somebody had hoped that it expands.
        head, text = "\\~", text[1:]
        if text == "" or _BARE.match(text):
            return Safe(head + text)
    return Safe(head + '"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"')


def _ansi(c: str) -> str:
    known = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}
    if c in known:
        return known[c]
    if ord(c) < 32 or ord(c) == 127:
        return f"\\{ord(c):03o}"
    if 127 < ord(c) < 160:
        return "".join(f"\\{byte:03o}" for byte in c.encode())
    return c


def single(value) -> Safe:
    """One POSIX shell word in single quotes where it needs any: for a cell's command, which bash -c reads.

    It may stand anywhere there: `=` would be an assignment in front of a command, `,` a list between braces, `if` a keyword.
    """
    text = str(value)
    return Safe(text if _BARE.match(text) and not re.search(r"[=,]", text) and text not in _KEYWORDS else "'" + text.replace("'", "'\\''") + "'")


def comment(value) -> Safe:
    """Text for one comment line: no line end, no control character."""
    text = str(value)
    return Safe(" ".join((text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)).split()))


def md(value) -> Safe:
    """Markdown text on one line: nothing in it is markup, also in a table cell."""
    text = " ".join(str(value).split())
    text = re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", text)
    text = re.sub(r"^(\d+)([.)])", r"\1\\\2", text)
    text = re.sub(r"^([-+=])", r"\\\1", text)
    return Safe(text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text))


def code(value) -> Safe:
    """A Markdown code span. With a bar, a backtick or a backslash in it: HTML, which is right in a table too."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    if text and not re.search(r"[`|\\]", text) and text == text.strip():
        return Safe(f"`{text}`")
    html = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;").replace("`", "&#96;")
    html = re.sub(r"([\\*_\[\]~])", lambda m: f"&#{ord(m[1])};", html)
    return Safe("<code>" + html + "</code>")


def directive(value) -> Safe:
    """The value of a scheduler's directive (`#SBATCH --job-name=…`): no quoting is sure there, so what would need it is refused."""
    text = str(value)
    if not _BARE.match(text):
        raise ValueError(f"{text!r} cannot stand in a directive: a blank or a sign would cut or change what follows")
    return Safe(text)


def to_json(value) -> Safe:
    """JSON, which is YAML too: what YAML would fold or refuse is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return Safe("".join(c if c.isprintable() or c > "\uffff" else json.dumps(c)[1:-1] for c in text))


def python(value) -> Safe:
    """A Python literal."""
    return Safe(ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value))
