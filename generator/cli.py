"""The command line. Exit codes: 0 done, 1 findings or a refusal, 2 wrong call."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .diagnostics import Report, closest
from .load import Document, load

ROOT = Path(__file__).resolve().parent.parent
FREE = frozenset({"matrix", "cells"})


class Usage(Exception):
    """A wrong call; the message says what to type instead."""


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(prog="gpu-runbook", description="Compile a platform profile and a job into a runbook and bash scripts.")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    one = commands.add_parser("compile", help="profile x job -> out/", description="Compile a profile and a job.",
                              epilog="example: python -m generator compile runpod --job jobs/sweep.yaml --without network-volume")
    _inputs(one)
    one.add_argument("--out", metavar="DIR", help="output folder (default: out/<profile>, out/<profile>.<job>)")
    one.add_argument("--force", action="store_true", help="overwrite files that were edited by hand")
    one.set_defaults(action=compile_)
    return top


def _inputs(one: argparse.ArgumentParser) -> None:
    one.add_argument("profile", metavar="PROFILE", help="a name in profiles/ or a path")
    one.add_argument("--job", metavar="JOB", default="demo", help="a name in jobs/ or a path (default: demo)")
    one.add_argument("--without", metavar="TIER", action="append", default=[], help="compile for a renter who has no such tier")


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code."""
    given = parser().parse_args(arguments)
    try:
        return given.action(given)
    except Usage as error:
        print(f"gpu-runbook: {error}", file=sys.stderr)
        return 2


def locate(word: str, folder: str) -> tuple[Path, str]:
    """The file of a name or path, and how it is shown: relative to the project, else its own name."""
    path = Path(word)
    if path.suffix not in (".yaml", ".yml") and len(path.parts) == 1:
        path = ROOT / folder / f"{word}.yaml"
        if not path.is_file():
            known = sorted(each.stem for each in (ROOT / folder).glob("*.yaml"))
            raise Usage(f"there is no {folder}/{word}.yaml; " + (closest(word, known) or "there are: " + (", ".join(known) or "none")))
    elif not path.is_file():
        raise Usage(f"there is no file {word}")
    full = path.resolve()
    return path, full.relative_to(ROOT).as_posix() if full.is_relative_to(ROOT) else path.name


def read(word: str, folder: str, letter: str, report: Report) -> Document:
    """Load and validate one input."""
    path, shown = locate(word, folder)
    doc = load(path, shown, letter, FREE if letter == "J" else frozenset())
    report.add(doc.diagnostics)
    report.lines[shown] = doc.lines
    if not any(one.severity == "error" for one in doc.diagnostics):
        from .validate import validate

        report.add(validate(doc, letter))
    return doc


def tiers_left_out(given: argparse.Namespace) -> tuple[str, ...]:
    """--without, each once, in the order given; a comma separates too."""
    return tuple(dict.fromkeys(name for word in given.without for name in word.split(",") if name))


def check_inputs(given: argparse.Namespace, report: Report):
    """Load, validate and run the rules; the bindings, or None where there is an error."""
    without = tiers_left_out(given)
    profile = read(given.profile, "profiles", "P", report)
    job = read(given.job, "jobs", "J", report)
    if report.failed:
        return None
    from .rules import check

    report.add(check(profile, job, without))
    if report.failed:
        return None
    from .bind import bind

    return bind(profile, job, without)


def default_out(profile: str, job: str, without: tuple[str, ...]) -> Path:
    """out/<profile>[.<job>][.no-<tier>]…"""
    return ROOT / "out" / ".".join([profile, *([] if job == "demo" else [job]), *(f"no-{name}" for name in without)])


def compile_(given: argparse.Namespace) -> int:
    """compile: write the output folder."""
    report = Report()
    bindings = check_inputs(given, report)
    sys.stderr.write(report.text())
    if bindings is None:
        return 1
    from .render import TemplateBug, render
    from .write import Refused, write

    target = Path(given.out) if given.out else default_out(bindings.profile_doc.name, bindings.job_doc.name, bindings.without)
    try:
        files, missing = render(bindings)
        for name in missing:
            print(f"gpu-runbook: warning: there is no templates/{name} yet", file=sys.stderr)
        done = write(target, bindings, files, given.force)
    except TemplateBug as error:
        print(f"gpu-runbook: a bug here, not in your profile: {error}", file=sys.stderr)
        return 1
    except (Refused, OSError) as error:
        print(f"gpu-runbook: refused: {error}", file=sys.stderr)
        return 1
    shown = target.resolve().relative_to(ROOT) if target.resolve().is_relative_to(ROOT) else target
    print(f"{shown}: {len(done.made)} written, {done.same} unchanged, {len(done.removed)} removed")
    return 0
