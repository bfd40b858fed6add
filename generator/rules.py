"""What a schema cannot say: findings P3xx on a profile, J3xx on a job with it. `codes.py` explains each code.

A rule is a function of a `Case`; it yields findings. The two lists of rules are explicit, and a test switches off each
rule in turn and sees a case fail.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from .codes import severity
from .diagnostics import Diagnostic
from .load import Document
from .validate import MAX_FINDINGS
from .variants import marked


@dataclass
class Case:
    """What is checked: a profile, perhaps a job with it, tiers left out, and the day (for the age of facts)."""

    profile: Document
    job: Document | None = None
    without: tuple[str, ...] = ()
    today: datetime.date = field(default_factory=datetime.date.today)

    @property
    def p(self) -> dict:
        """The profile's data."""
        return self.profile.data

    @property
    def j(self) -> dict:
        """The job's data."""
        assert self.job is not None
        return self.job.data

    @functools.cached_property
    def scalars(self) -> list[tuple[tuple, object]]:
        """Every scalar of the profile with its path; several rules look at all of them."""
        return list(walk(self.p))

    @functools.cached_property
    def marks(self) -> list[tuple[tuple, dict]]:
        """What depends on an optional tier, with its path."""
        return list(marked(self.p))

    def say(self, code: str, path: tuple, message: str, hint: str = "", at_key: bool = False, mild: bool = False) -> Diagnostic:
        """A finding at a path of the profile (P) or the job (J); `mild` makes a warning of what is an error else."""
        doc = self.profile if code[0] == "P" else self.job
        assert doc is not None
        return Diagnostic(code, doc.key_span(path) if at_key else doc.span(path), message, hint, "warning" if mild else severity(code))


Rule = Callable[[Case], Iterator[Diagnostic]]


def check(
    profile: Document,
    job: Document | None,
    without: tuple[str, ...] = (),
    today: datetime.date | None = None,
    found: list[Diagnostic] | None = None,
) -> list[Diagnostic]:
    """All findings of the rules.

    `found` are earlier findings. With an error among them the data may lack what a rule reads: then a rule that stumbles
    says nothing, and nothing is said twice of one place. So everything that can be said is said in one run.
    """
    from .rules_job import JOB_RULES
    from .rules_profile import PROFILE_RULES

    case = Case(profile, job, without, today or datetime.date.today())
    out = list(found or [])
    if any(one.code.endswith("207") for one in out):
        return []  # a new file that is not filled in yet: rules on ??? would bury what is missing
    for rule in PROFILE_RULES + (JOB_RULES if job is not None else []):
        said = {one.span for one in out if one.severity == "error"}
        try:
            out += [one for one in islice(rule(case), MAX_FINDINGS) if one.span not in said]
        except (LookupError, TypeError, ValueError, AttributeError, AssertionError):
            if not any(one.severity == "error" for one in out):
                raise
    return out[len(found or []) :]


def walk(value, path: tuple = ()) -> Iterator[tuple[tuple, object]]:
    """Every scalar with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, (*path, index))
    else:
        yield path, value


# Variables that a mirror or a secret may not replace.
RESERVED = frozenset(
    "PATH HOME SHELL USER LOGNAME PWD OLDPWD IFS ENV BASH_ENV BASHOPTS SHELLOPTS PS4 PROMPT_COMMAND CDPATH LANG TZ TMPDIR UID EUID PPID "
    "DATA_DIR DURABLE_DIR SCRATCH PROXY_HOOK CRED_FILE DETACH PY RUN CODE_DIR HOST INSTANCE LOCAL_DIR FAKE_ROOT PROG "
    "RUN_ID PYTHONUNBUFFERED CUDA_VISIBLE_DEVICES".split()
)


def reserved(name: str) -> bool:
    """True for a variable that the scripts or the shell live by."""
    return name in RESERVED or name.startswith(("LD_", "DYLD_", "BASH_FUNC_", "CELL_", "LC_", "ACTION_", "EX_", "PYTHON"))
