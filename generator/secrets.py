"""What looks like a secret: known token forms, key=value pairs, addresses with a password. Never the value in a message."""

from __future__ import annotations

import re

# What it is, what stands in it literally (in small letters, one of the words), and its form.
_FORMS = [
    ("a Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{16,}"),
    ("an API key", "sk- pk- rk-", r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"),
    ("an API key", "sk_ pk_ rk_", r"\b(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{10,}"),
    ("a GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    ("a GitLab token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{16,}"),
    ("a RunPod key", "rpa_", r"\brpa_[A-Za-z0-9]{16,}"),
    ("a Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("a Docker token", "dckr_", r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}"),
    ("a package index token", "pypi- npm_", r"\bpypi-[A-Za-z0-9_-]{16,}|\bnpm_[A-Za-z0-9]{20,}"),
    ("a Weights & Biases key", "wandb_v1_ local-", r"\bwandb_v1_[A-Za-z0-9_]{16,}|\blocal-[0-9a-f]{40}\b"),
    ("a Kaggle key", "kgat_", r"\bKGAT_[A-Za-z0-9]{16,}"),
    ("an AWS key", "akia asia", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a Google key", "aiza ya29.", r"\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}"),
    ("a JSON web token", "eyj", r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\."),
    ("a private key", "-----begin", r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    ("a password in an address", "://", r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/@:$]*:[^\s/@$<{]+@"),
    ("a bearer token", "bearer", r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{16,}"),
]
_KNOWN = [(name, re.compile(form)) for name, _, form in _FORMS]
_MARKS = tuple(mark for _, marks, _ in _FORMS for mark in marks.split())
_WORDS = r"(?:api|access|auth|secret|private)[_-]?(?:key|token)|token|secret|passw(?:or)?d|passphrase|credential"
# NAME=value, name: value, --name value. A value that is a variable, a placeholder or prose is none: `_valuable`.
_PAIR = re.compile(rf"(?i)(?:{_WORDS})['\"]?\s*[=:]\s*['\"]?(?P<value>[^\s'\",;&}}]+)")
_OPTION = re.compile(rf"(?i)(?<![a-z-])--[a-z-]{{0,40}}(?:{_WORDS})[ =]+['\"]?(?P<value>[^\s'\",;&}}]+)")
_HINT = re.compile(r"(?i)key|token|secret|passw|passphrase|credential")
_NAME = re.compile(rf"(?i)(?:^|[_-])(?:{_WORDS})\Z")


def _marked(text: str) -> bool:
    """One cheap look for the many texts that hold no known form."""
    small = text.lower()
    return any(mark in small for mark in _MARKS)


def secret_in(text: str) -> str:
    """What kind of secret the text seems to hold; empty where none."""
    if _marked(text):
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
    if _marked(text):
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
