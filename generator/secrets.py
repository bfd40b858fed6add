"""What looks like a secret: known token forms, key=value pairs, addresses with a password. Never the value in a message."""

from __future__ import annotations

import re

_FORMS = [
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{16,}"),
    ("an API key", r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"),
    ("an API key", r"\b(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{10,}"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    ("a GitLab token", r"\bglpat-[A-Za-z0-9_-]{16,}"),
    ("a RunPod key", r"\brpa_[A-Za-z0-9]{16,}"),
    ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("a Docker token", r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}"),
    ("a package index token", r"\bpypi-[A-Za-z0-9_-]{16,}|\bnpm_[A-Za-z0-9]{20,}"),
    ("a Weights & Biases key", r"\bwandb_v1_[A-Za-z0-9_]{16,}|\blocal-[0-9a-f]{40}\b"),
    ("a Kaggle key", r"\bKGAT_[A-Za-z0-9]{16,}"),
    ("an AWS key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a Google key", r"\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}"),
    ("a JSON web token", r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\."),
    ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    ("a password in an address", r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/@:$]*:[^\s/@$<{]+@"),
    ("a bearer token", r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{16,}"),
]
_KNOWN = [(name, re.compile(form)) for name, form in _FORMS]
_ANY = re.compile("|".join(f"(?:{form})" for _, form in _FORMS if "(?i)" not in form) + "|(?i:bearer)")
_WORDS = r"(?:api|access|auth|secret|private)[_-]?(?:key|token)|token|secret|passw(?:or)?d|passphrase|credential"
# NAME=value, name: value, --name value. A value that is a variable, a placeholder or prose is none: `_valuable`.
_PAIR = re.compile(rf"(?i)(?:{_WORDS})['\"]?\s*[=:]\s*['\"]?(?P<value>[^\s'\",;&}}]+)")
_OPTION = re.compile(rf"(?i)(?<![a-z-])--[a-z-]{{0,40}}(?:{_WORDS})[ =]+['\"]?(?P<value>[^\s'\",;&}}]+)")
_HINT = re.compile(r"(?i)key|token|secret|passw|passphrase|credential")
_NAME = re.compile(rf"(?i)(?:^|[_-])(?:{_WORDS})\Z")


def secret_in(text: str) -> str:
    """What kind of secret the text seems to hold; empty where none."""
    if _ANY.search(text):  # one look for the many texts that hold none
        for name, form in _KNOWN:
            if form.search(text):
                return name
    if not _HINT.search(text):
        return ""
    for form in (_PAIR, _OPTION):
        if any(_valuable(match["value"]) for match in form.finditer(text)):
            return "a value beside a name like token, key or password"
    return ""


def masked(text: str) -> str:
    """The text with what has the form of a secret taken out."""
    if _ANY.search(text):
        for _, form in _KNOWN:
            text = form.sub("(not shown)", text)
    return text


def named_secret(name: str, value: str) -> bool:
    """True where a field or option called like a secret has a value that could be one."""
    return bool(_NAME.search(name)) and _valuable(value)


def _valuable(value: str) -> bool:
    if len(value) < 8 or value[0] in "$<{[(*%/~" or value.startswith(("...", "YOUR", "your", "http")):
        return False
    return (
        bool(re.search(r"[0-9]", value))
        and bool(re.search(r"[A-Za-z]", value))
        and bool(re.fullmatch(r"[A-Za-z0-9+/=_.~!@#%^&*-]+", value))
    )
