"""The commands beside `compile`: check, diff, explain, new, list. Nothing here writes but `new`."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from pathlib import Path

from .bind import Bindings
from .budget import choose
from .diagnostics import Report, closest, visible
from .inputs import ROOT, Usage, default_out, inputs, known, read, shown_path, without_of


def check(given: argparse.Namespace) -> int:
    """check: all findings of all profiles with one job."""
    from .rules import check as rules

    report = Report()
    without = without_of(given.without)
    job = read(given.job, "jobs", report)
    job_ok = isinstance(job.data, dict)
    of_job = list(report.found)
    profiles = given.profiles or known("profiles")
    for word in profiles:
        alone = Report()
        doc = read(word, "profiles", alone)
        if isinstance(doc.data, dict):
            alone.add(rules(doc, job if job_ok else None, without, found=alone.found + of_job))
        report.add(alone.found)
        report.lines.update(alone.lines)
    sys.stdout.write(getattr(report, given.format)())
    if given.format == "text":
        errors = sum(one.severity == "error" for one in report.ordered())
        warnings = len(report.ordered()) - errors
        print(
            f"{len(profiles)} profile{'s' * (len(profiles) != 1)} with {job.file}: {errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
        )
    return 1 if report.failed else 0


def _bindings(profile: str, job: str, without: tuple[str, ...]) -> Bindings | None:
    report = Report()
    bindings = inputs(profile, job, without, report)
    if bindings is None:
        sys.stderr.write(report.text())
    return bindings


def _rendered(b: Bindings):
    from .render import TemplateBug, render

    try:
        return render(b)
    except TemplateBug as error:
        print(f"gpu-runbook: a bug here, not in your profile: {error}", file=sys.stderr)
        return None


def diff(given: argparse.Namespace) -> int:
    """diff: unified differences between an output folder and what would be written."""
    if given.out and len(given.profiles) != 1:
        raise Usage("--out goes with exactly one PROFILE")
    worst = 0
    without = without_of(given.without)
    for word in given.profiles or known("profiles"):
        b = _bindings(word, given.job, without)
        files = _rendered(b) if b else None
        if b is None or files is None:
            worst = 1
            continue
        target = Path(given.out) if given.out else default_out(b.profile_doc.name, b.job_doc.name, without)
        if not target.exists():
            print(f"{shown_path(target)}: not compiled yet")
            worst = 1
            continue
        changes = list(_changes(b, target, files))
        sys.stdout.write("".join(changes))
        if changes:
            worst = 1
            job = "" if b.job_doc.name == "demo" else f" --job {given.job}"
            print(
                f"gpu-runbook: {shown_path(target)} differs; to update it: python -m generator compile {word}{job}"
                + "".join(f" --without {name}" for name in without)
                + (f" --out {given.out}" if given.out else ""),
                file=sys.stderr,
            )
    return worst


def _changes(b: Bindings, target: Path, files: dict):
    """Differences file by file: content, mode, files that are missing or too many."""
    from .render import Output
    from .write import sources

    wanted = {**files, "SOURCES.json": Output(sources(b, files))}
    there = _files(target) if target.is_dir() else set()
    changed = False
    for path in sorted(wanted.keys() | there, key=lambda one: (one == "SOURCES.json", one)):
        place = target / path
        old = place.read_bytes() if path in there else None
        new = wanted[path].data if path in wanted else None
        names = (f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null")
        if changed and path == "SOURCES.json":
            old, new = _inputs_only(old), _inputs_only(new)  # the digests of what is shown above tell nothing more
        if old != new:
            changed = True
            yield from _unified((old or b"").decode("utf-8", "replace"), (new or b"").decode("utf-8", "replace"), names)
        if old is not None and new is not None and bool(place.stat().st_mode & 0o100) != wanted[path].executable:
            yield f"mode of {path}: {'0755' if wanted[path].executable else '0644'} is wanted\n"


def _files(target: Path) -> set[str]:
    """The files in a folder; one that cannot be read is an error, not empty."""

    def unreadable(error: OSError):
        raise error

    paths = [Path(folder, name) for folder, _, names in os.walk(target, onerror=unreadable) for name in names]
    return {path.relative_to(target).as_posix() for path in paths if path.is_file() and not path.name.startswith(".")}


def _inputs_only(record: bytes | None) -> bytes | None:
    return None if record is None else record.partition(b'\n  "files": [')[0] + b"\n"


def _unified(old: str, new: str, names: tuple[str, str]):
    for line in difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names):
        yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def explain(given: argparse.Namespace) -> int:
    """explain: value, reason, origin and every place where it lands."""
    b = _bindings(given.profile, given.job, without_of(given.without))
    if b is None:
        return 1
    if given.name and given.name not in b.by_name:
        raise Usage(
            f"there is no bound value {given.name}; " + (closest(given.name.upper(), b.by_name) or "there are: " + ", ".join(b.by_name))
        )
    files = _rendered(b)
    if files is None:
        return 1
    texts = {path: output.data.decode().split("\n") for path, output in files.items() if path not in ("box/queue.tsv", "notebook/install_cell.py")}
    for name in [given.name] if given.name else list(b.by_name):
        sys.stdout.write(_explained(b, name, texts, bool(given.name)))
    return 0


def _explained(b: Bindings, name: str, texts: dict[str, list[str]], full: bool) -> str:
    bound = b[name]
    value = (
        "(" + " ".join(repr(item) for item in bound.value) + ")"
        if bound.kind == "array"
        else repr(bound.value) if bound.value != "" else "'' (none)"
    )
    out = [f"{name} = {visible(value)}", f"  why     {bound.why}", f"  from    {origin(b, bound.origin)}"]
    lands = places(name, texts)
    for path, (line, uses) in lands.items():
        said = f"  lands   {path}:{line}"
        out.append(
            said
            + (
                f", used on line{'s' * (len(uses) != 1)} {', '.join(map(str, uses))}"
                if uses and full
                else f", used {len(uses)} time{'s' * (len(uses) != 1)}" if uses else ""
            )
        )
    shown = [str(at) for at, line in enumerate(texts.get("RUNBOOK.md", []), 1) if shows(bound.value, line)]
    if shown:
        out.append(f"  shown   RUNBOOK.md:{','.join(shown if full else shown[:8])}{'…' if not full and len(shown) > 8 else ''}")
    if not lands and not shown:
        out.append("  lands   nowhere on this platform")
    return "\n".join(out) + "\n"


def origin(b: Bindings, at: tuple | None) -> str:
    """file:line and the field, or that no field says it."""
    if at is None:
        return "the compiler's default: no field says otherwise"
    doc = b.profile_doc if at[0] == "P" else b.job_doc
    if not at[1]:
        return f"{doc.file} (the file's name)"
    from .validate import dotted

    there = doc.node(at[1]) is not None
    span = doc.key_span(at[1]) if there else doc.span(at[1])
    return f"{span.file}:{span.line} ({dotted(at[1])}{'' if there else ', left out: the default'})"


def places(name: str, texts: dict[str, list[str]]) -> dict[str, tuple[int, list[int]]]:
    """file -> the line that binds the value, and the lines that use it."""
    binding = re.compile(rf"(?:readonly (?:-a )?)?{name}(?:=| = )")
    use = re.compile(rf"\$\{{?[!#]?{name}\b|(?:path|override\w*) {name}\b|^[^#]*(?<![\w$]){name}(?!\w)")
    found = {}
    for path, lines in texts.items():
        at = next((number for number, line in enumerate(lines, 1) if binding.match(line)), None)
        if at:
            found[path] = (at, [number for number, line in enumerate(lines, 1) if number != at and use.search(line)])
    return found


def shows(value, line: str) -> bool:
    """True where a line of the runbook shows the value; values of one or two characters are everywhere and tell nothing."""
    text = str(value)
    return not isinstance(value, list) and len(text) > 2 and re.search(rf"(?<![\w/.-]){re.escape(text)}(?![\w-])", line) is not None


def new(given: argparse.Namespace) -> int:
    """new: a file with every field, its meaning and ??? for its value."""
    from .cells import CELL_NAME
    from .skeleton import skeleton

    folder, letter = ("jobs", "J") if given.job else ("profiles", "P")
    if not CELL_NAME.match(given.name):
        raise Usage(f"'{given.name}' is no name: 1 to 128 of A-Z a-z 0-9 . _ = , + @ -, beginning with a letter or digit")
    if letter == "P" and ".no-" in given.name.lower():
        raise Usage(f"'{given.name}' is no name for a profile: '.no-' is the mark of a tier left out")
    target = ROOT / folder / f"{given.name}.yaml"
    try:
        target.parent.mkdir(exist_ok=True)
        with open(target, "x", encoding="utf-8", newline="\n") as file:
            file.write(skeleton(letter, given.name))
    except FileExistsError:
        print(f"gpu-runbook: refused: {shown_path(target)} is there already; choose another name or edit it", file=sys.stderr)
        return 1
    what = f"check --job {given.name}" if given.job else f"check {given.name}"
    print(f"{shown_path(target)}: fill in each ???; python -m generator {what} says what is missing")
    return 0


def list_(given: argparse.Namespace) -> int:
    """list: one line for each profile."""
    rows = [("platform", "kind", "stops the meter", "survives that", "oldest fact")]
    broken = []
    for name in known("profiles"):
        report = Report()
        doc = read(name, "profiles", report)
        if report.failed:
            broken.append(name)
            continue
        from .rules import walk

        data = doc.data
        verb = data["teardown"]["meter_stop"]
        like = next((one["like"] for one in data["teardown"]["actions"] if one["verb"] == verb), "none")
        tiers = [tier["name"] for tier in data["storage"]["tiers"] if tier["survives"].get(like, like == "none")]
        durable = choose(data, ())[1]
        kept = ", ".join(name + ("*" if durable and name == durable["name"] else "") for name in tiers) or "nothing"
        oldest = min(str(value) for path, value in walk(data) if path[-1] == "as_of")
        rows.append((name, data["launch"]["kind"], verb, kept if durable else f"{kept} (pull-only)", oldest))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print("* the durable tier; pull-only: results come home before the meter stops")
    for name in broken:
        print(f"gpu-runbook: profiles/{name}.yaml has errors: python -m generator check {name}", file=sys.stderr)
    return 1 if broken else 0
