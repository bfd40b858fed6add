"""The command line. Exit codes: 0 done, 1 findings, a difference or a refusal, 2 wrong call."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .diagnostics import Report, visible
from .inputs import DEFAULT_JOB, FREE, Usage, default_out, inputs, known, shown_path, without_of

__all__ = ["FREE", "run"]


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="gpu-runbook",
        description="Compile a platform profile and a job into a runbook and plain bash scripts.",
        epilog="example: python -m generator compile runpod --job demo",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, line: str, example: str) -> argparse.ArgumentParser:
        one = commands.add_parser(
            name,
            help=line,
            description=line[0].upper() + line[1:] + ".",
            epilog="example: python -m generator " + example,
            formatter_class=argparse.RawDescriptionHelpFormatter,  # an example that is wrapped cannot be copied
        )
        one.set_defaults(action=name)
        return one

    one = add("compile", "profile x job -> an output folder", "compile runpod --job jobs/demo.yaml --without network-volume")
    one.add_argument("profiles", metavar="PROFILE", nargs="*", help="names in profiles/ or paths")
    one.add_argument("--all", action="store_true", help="every profile in profiles/")
    _job(one)
    one.add_argument(
        "--out", metavar="DIR", help="output folder of one profile (default: out/PROFILE, out/PROFILE.JOB for another job than demo)"
    )
    one.add_argument("--force", action="store_true", help="overwrite files that were edited by hand")
    one = add("check", "say everything that is wrong, write nothing", "check runpod --job demo --format github")
    one.add_argument("profiles", metavar="PROFILE", nargs="*", help="names in profiles/ or paths (default: all)")
    _job(one)
    one.add_argument("--format", choices=("text", "json", "github"), default="text", help="how findings are printed (default: text)")
    one = add("diff", "show what compiling would change, exit 1 where it would", "diff runpod")
    one.add_argument("profiles", metavar="PROFILE", nargs="*", help="names in profiles/ or paths (default: all)")
    _job(one)
    one.add_argument("--out", metavar="DIR", help="compare with this folder (one profile)")
    one = add("explain", "show each bound value, where it comes from and where it lands", "explain runpod GRACE_S")
    _profile(one)
    one.add_argument("name", metavar="NAME", nargs="?", help="one bound value (default: all)")
    _job(one)
    one = add("new", "write a commented file to fill in", "new myhost; python -m generator new --job sweep")
    one.add_argument("name", metavar="NAME", help="name of the profile, or of the job with --job")
    one.add_argument("--job", action="store_true", help="a job instead of a profile")
    one = add("list", "show the profiles: kind, meter-stop verb, what survives it, oldest fact", "list")
    return top


def _profile(one: argparse.ArgumentParser) -> None:
    one.add_argument("profile", metavar="PROFILE", help="a name in profiles/ or a path")


def _job(one: argparse.ArgumentParser) -> None:
    one.add_argument("--job", metavar="JOB", default=DEFAULT_JOB, help=f"a name in jobs/ or a path (default: {DEFAULT_JOB})")
    one.add_argument(
        "--without", metavar="TIER", action="append", default=[], help="for a renter who has no such storage tier; may be given again"
    )


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code."""
    _streams()
    try:
        given = parser().parse_args(arguments)
        code = _run(given)
        sys.stdout.flush()
        return code
    except Usage as error:
        print(f"gpu-runbook: {visible(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gpu-runbook: stopped; the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1  # a reader like head has left; nothing is wrong
    except OSError as error:
        print(f"gpu-runbook: refused: {visible(str(error))}", file=sys.stderr)
        return 1


def _run(given: argparse.Namespace) -> int:
    if getattr(given, "out", None) == "":
        raise Usage("--out is empty; name a folder, or leave it out")
    if given.action == "compile":
        return compile_(given)
    from . import commands

    return getattr(commands, given.action.replace("list", "list_"))(given)


def _streams() -> None:
    """Texts hold any character: where the terminal's encoding lacks one it is shown as an escape. A closed stream is no error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def compile_(given: argparse.Namespace) -> int:
    """compile: write the output folder of each profile, or nothing of it. The worst exit code counts."""
    profiles = known("profiles") if given.all else given.profiles
    if not profiles or (given.all and given.profiles):
        raise Usage("name a profile, or --all; there are: " + ", ".join(known("profiles")))
    if given.out and len(profiles) > 1:
        raise Usage("--out goes with one profile")
    return max([_compile_one(word, given) for word in profiles])


def _compile_one(word: str, given: argparse.Namespace) -> int:
    report = Report()
    without = without_of(given.without)
    bindings = inputs(word, given.job, without, report)
    sys.stderr.write(report.text())
    if bindings is None:
        return 1
    from .render import TemplateBug, render
    from .write import Refused, write

    target = Path(given.out) if given.out else default_out(bindings.profile_doc.name, bindings.job_doc.name, without)
    try:
        done = write(target, bindings, render(bindings), given.force)
    except TemplateBug as error:
        print(f"gpu-runbook: a bug here, not in your profile: {error}", file=sys.stderr)
        return 1
    except (Refused, OSError) as error:
        print(f"gpu-runbook: refused: {visible(str(error))}", file=sys.stderr)
        return 1
    for what in done.overwritten:
        print(f"gpu-runbook: warning: {shown_path(target)}: {what}, and is overwritten", file=sys.stderr)
    print(f"{shown_path(target)}: {len(done.made)} written, {done.same} unchanged, {len(done.removed)} removed")
    if bindings.durable is None:
        print("  pull-only: no storage here is durable, so results come home before the meter stops")
    if not given.all:
        print(f"  read it first: {shown_path(target)}/RUNBOOK.md")
    return 0
