"""From words of the command line to checked inputs: names, paths, findings, bindings."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from .bind import Bindings
from .diagnostics import Report, closest
from .load import Document, load

ROOT = Path(__file__).resolve().parent.parent
FREE = frozenset({"matrix", "cells"})  # of a job: values are text as written
DEFAULT_JOB = "demo"


class Usage(Exception):
    """A wrong call; the message says what to type instead."""


def known(folder: str) -> list[str]:
    """The names in profiles/ or jobs/."""
    return sorted(each.stem for each in (ROOT / folder).glob("*.yaml"))


def locate(word: str, folder: str) -> tuple[Path, str]:
    """The file of a name or path, and how it is shown: relative to the project, else its own name."""
    path = Path(word)
    if path.suffix not in (".yaml", ".yml") and len(path.parts) <= 1:
        path = ROOT / folder / f"{word}.yaml"
        if not _there(path.is_file):
            raise Usage(
                f"there is no {folder}/{word}.yaml; "
                + (closest(word, known(folder)) or "there are: " + (", ".join(known(folder)) or "none"))
            )
    elif len(path.parts) == 1 and not _there(path.exists) and _there((ROOT / folder / word).is_file):
        path = ROOT / folder / word  # runpod.yaml is as good as runpod
    elif not _there(path.exists):
        raise Usage(f"there is no file {word}; " + (closest(path.stem, known(folder)) or f"names in {folder}/: " + (", ".join(known(folder)) or "none")))
    elif not path.is_file():
        raise Usage(f"{word} is not a plain file; name a file or one of: {', '.join(known(folder))}")
    full = path.resolve()
    shown = full.relative_to(ROOT).as_posix() if full.is_relative_to(ROOT) else path.name
    if not shown.isprintable():  # it stands in the header of every script
        raise Usage(f"the path {shown} holds a character that is not visible or not UTF-8; rename the file or its folder")
    return path, shown


def _there(look) -> bool:
    """What `look` says; a name that no file can have is not there."""
    try:
        return look()
    except OSError:
        return False


def read(word: str, folder: str, report: Report) -> Document:
    """Load and validate one profile or job."""
    doc, found = _read(*locate(word, folder), "P" if folder == "profiles" else "J")
    report.add(found)
    report.lines[doc.file] = doc.lines
    return doc


@lru_cache(maxsize=4)
def _read(path: Path, shown: str, letter: str) -> tuple[Document, list]:
    """A document and its findings; the job of many profiles is read once."""
    doc = load(path, shown, letter, FREE if letter == "J" else frozenset())
    if not isinstance(doc.data, dict):
        return doc, doc.diagnostics
    from .validate import validate

    return doc, doc.diagnostics + validate(doc, letter)


def without_of(words: list[str]) -> tuple[str, ...]:
    """--without, each tier once, sorted: the order given says nothing; a comma separates too."""
    return tuple(sorted({name for word in words for name in word.split(",") if name}))


def inputs(profile: str, job: str, without: tuple[str, ...], report: Report) -> Bindings | None:
    """Load, validate, rules; the bindings, or None where there is an error. All findings go to the report."""
    p = read(profile, "profiles", report)
    j = read(job, "jobs", report)
    if not isinstance(p.data, dict) or not isinstance(j.data, dict):
        return None
    from .rules import check

    report.add(check(p, j, without, found=report.found))
    if report.failed:
        return None
    from .bind import bind

    return bind(p, j, without)


def default_out(profile: str, job: str, without: tuple[str, ...]) -> Path:
    """out/<profile>[.<job>][.no-<tier>]…; P328 keeps the mark out of a profile's own name."""
    return ROOT / "out" / ".".join([profile, *([] if job == DEFAULT_JOB else [job]), *(f"no-{name}" for name in without)])


def shown_path(path: Path) -> str:
    """A path for messages: relative to the project where it lies in it."""
    full = path.resolve()
    return full.relative_to(ROOT).as_posix() if full.is_relative_to(ROOT) else str(path)
