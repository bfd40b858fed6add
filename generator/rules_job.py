"""The rules on a job, together with the profile that it is compiled for, but for those on its cells."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from .budget import GB, SAVE_MARGIN_S, Need, budget, choose, session_cap
from .cells import CELL_NAME, count
from .diagnostics import Diagnostic
from .rules import Case, Rule, reserved, walk
from .rules_cells import (
    cell_names,
    columns_used,
    few_enough,
    known_columns,
    one_line,
    one_source,
    parses,
    place_given,
    python_given,
    same_columns,
    smoke_without_columns,
    witnesses,
)
from .secrets import named_secret, secret_in
from .variants import variant

Found = Iterator[Diagnostic]


def file_name(case: Case) -> Found:
    """J323: name of the file."""
    name = case.j and case.job.name  # type: ignore[union-attr]
    if not CELL_NAME.match(name):
        yield case.say("J323", (), f"'{name}' is no name for a run", "rename the file")
    elif ".no-" in f".{name.lower()}":  # a laptop's file system may not tell NO- from no-
        yield case.say("J323", (), f"'{name}' reads like a folder of --without: 'no-' is the mark of a tier left out", "rename the file")


def run_apart(case: Case) -> Found:
    """J325: the run's folder is taken."""
    given = case.p["overrides"]
    for place in ("DATA_DIR", "DURABLE_DIR"):
        for name in ("SCRATCH", "HF_HOME", "CRED_FILE"):
            base = given[place].rstrip("/") + "/"
            if given[place] and given[name].startswith(base) and given[name][len(base) :].split("/")[0] == case.job.name:  # type: ignore[union-attr]
                yield case.say("J325", (), f"the run's folder {base}{case.job.name} is or holds the profile's {name}", "rename the job's file")  # type: ignore[union-attr]


def _budget(case: Case) -> dict:
    data, durable = choose(case.p, case.without)
    assert data is not None
    return budget(case.p, case.j, data, durable)


def _sum(need: Need) -> str:
    return f"{need.per_cell_bytes / GB:g} GB x {need.cells} cells + {need.buffer_bytes / GB:g} GB in reserve = {need.total_bytes / GB:g} GB"


def room(case: Case) -> Found:
    """J310: does not fit the data tier; J311: too many files for the tier; J312: does not fit the durable tier; J313: data and results together do not fit."""
    total = _budget(case)
    data, durable = total["data"], total["durable"]
    if data.cap_bytes is not None and data.total_bytes > data.cap_bytes:
        yield case.say(
            "J310",
            ("needs", "disk_gb"),
            f"{_sum(data)}, and tier '{data.tier}' has {data.cap_bytes / GB:g} GB",
            "fewer cells in one job, or smaller checkpoints",
        )
    for need in [data] if total["same_tier"] or durable is None else [data, durable]:
        if need.cap_files is not None and need.total_files > need.cap_files:
            yield case.say(
                "J311",
                ("needs", "files") if "files" in case.j["needs"] else ("needs",),
                f"{total['files_per_cell']} files x {need.cells} cells = {need.total_files}, and tier '{need.tier}' has room for {need.cap_files}",
                "fewer files in one cell (tar them), or fewer cells in one job",
            )
    if durable and durable.cap_bytes is not None:
        both = data.total_bytes + durable.total_bytes
        if not total["same_tier"] and durable.total_bytes > durable.cap_bytes:
            yield case.say(
                "J312",
                ("needs", "disk_gb"),
                f"{_sum(durable)}, and tier '{durable.tier}' has {durable.cap_bytes / GB:g} GB",
                "pull between two jobs, or a larger tier",
            )
        elif total["same_tier"] and data.total_bytes <= durable.cap_bytes < both:
            yield case.say(
                "J313",
                ("needs", "disk_gb"),
                f"cells and results may take {both / GB:g} GB together, and tier '{durable.tier}' has {durable.cap_bytes / GB:g} GB",
                "prune what need not stay: artifacts.prune",
            )


def grace(case: Case) -> Found:
    """J314: grace shorter than a save."""
    theirs = case.p["interruption"]["grace_s"]
    if theirs is not None and case.p["interruption"]["signal"] != "none" and theirs <= case.j["save_s"]:
        yield case.say(
            "J314",
            ("save_s",),
            f"a save takes {case.j['save_s']} s, and the platform kills {theirs} s after its signal",
            "save as you go, not at the signal alone: what was done since the last whole checkpoint is lost",
        )


def limits(case: Case) -> Found:
    """J315: limit shorter than the work."""
    given, save = case.j.get("limits", {}), case.j["save_s"]
    work = case.j["needs"]["minutes"] * 60
    if given.get("wall_s") and given["wall_s"] < work:
        yield case.say(
            "J315",
            ("limits", "wall_s"),
            f"{given['wall_s']} s is less than the expected {work:g} s of a cell",
            f"write at least {round(work * 2)}, twice the time, or 0",
        )
    if given.get("stall_s") and given["stall_s"] < save + SAVE_MARGIN_S:
        yield case.say(
            "J315",
            ("limits", "stall_s"),
            f"{given['stall_s']} s without a sign of life is less than a save with its margin, {save + SAVE_MARGIN_S} s",
            f"write at least {save + SAVE_MARGIN_S}, better several times that",
        )
    if case.j["smoke"]["timeout_s"] <= save:
        yield case.say(
            "J315",
            ("smoke", "timeout_s"),
            f"the smoke trial is stopped after {case.j['smoke']['timeout_s']} s, and one save takes {save} s",
            "write more",
        )


def silence(case: Case) -> Found:
    """J329: silence is short."""
    stall = case.j.get("limits", {}).get("stall_s")
    save, work = case.j["save_s"] + SAVE_MARGIN_S, case.j["needs"]["minutes"] * 60
    wanted = max(3 * save, min(round(work / 4), 900))
    if stall and save <= stall < wanted:
        yield case.say(
            "J329",
            ("limits", "stall_s"),
            f"a cell that writes nothing for {stall} s is killed as stuck; it runs for {work:g} s and a save takes {case.j['save_s']} s",
            f"more than the longest epoch or download that writes no line, here at least {wanted}; 0 = no limit",
        )


def session_end(case: Case) -> Found:
    """J327: longer than a session; counted for one cell after the other, as a queue runs them."""
    clock = session_cap(variant(case.p, case.without))
    work, cells = case.j["needs"]["minutes"] * 60, count(case.j)
    if clock and work * cells > (cap := clock["after_s"]):
        yield case.say(
            "J327",
            ("needs", "minutes"),
            f"{cells} cells x {work / 60:g} minutes = {work * cells / 3600:.1f} h, and clock '{clock['id']}' ends a session after {cap / 3600:g} h",
            "resume in further sessions, or split the job" if work < cap else "one cell alone is longer: it must resume from its checkpoint",
        )


def prune_spares(case: Case) -> Found:
    """J316: pruned and required at once."""
    required = case.j["artifacts"]["required"]
    for index, pattern in enumerate(case.j["artifacts"].get("prune", [])):
        for path in required:
            parents = [path[:at] for at, c in enumerate(path) if c == "/"] + [path]
            inside = pattern.rstrip("/").startswith(path.rstrip("/") + "/")
            if inside or any(fnmatch.fnmatchcase(each, pattern.rstrip("/")) for each in parents):
                yield case.say(
                    "J316", ("artifacts", "prune", index), f"'{pattern}' takes the required '{path}' too", "prune only what is not a result"
                )
                break


def required_apart(case: Case) -> Found:
    """J317: artifact inside an artifact."""
    required = case.j["artifacts"]["required"]
    for index, path in enumerate(required):
        outer = next((other for other in required if path != other and path.startswith(other.rstrip("/") + "/")), None)
        if outer:
            yield case.say(
                "J317", ("artifacts", "required", index), f"'{path}' lies inside '{outer}'", "name the folder or its files, not both"
            )


def artifacts_named(case: Case) -> Found:
    """J326: artifact by pattern."""
    named = [(("artifacts", "required", at), path) for at, path in enumerate(case.j["artifacts"]["required"])]
    for at, path in [*named, (("smoke", "artifact"), case.j["smoke"]["artifact"])]:
        if re.search(r"[*?]|\[[^\]]*\]|\{[^{}]*\}", path):
            yield case.say(
                "J326", at, f"'{path}' is taken as it stands: no file has this name", "write the name of one file, or the folder that holds them"
            )


def data_digests(case: Case) -> Found:
    """J328: digests that cannot be compared."""
    for index, one in enumerate(case.j.get("data", [])):
        if "sha256" in one and "manifest" in one:
            yield case.say("J328", ("data", index, "sha256"), "there is a manifest too", "keep the one that is maintained")
        elif "sha256" in one and one["files"] != 1:
            yield case.say("J328", ("data", index, "sha256"), f"it is of one file, and files is {one['files']}", "list the digests in a manifest")
        if "manifest" in one and one.get("under") != "hf_home" and (one["manifest"] + "/").startswith(one["path"].rstrip("/") + "/"):
            yield case.say("J328", ("data", index, "manifest"), f"it lies in '{one['path']}', whose files it lists", "put it beside the data")


def no_secret(case: Case) -> Found:
    """J318: looks like a secret."""
    for path, value in walk({key: value for key, value in case.j.items() if key != "cells"}):
        if isinstance(value, str):
            name = next((part for part in reversed(path) if isinstance(part, str)), "")
            kind = secret_in(value) or ("the value of a secret" if named_secret(name, value) else "")
            if kind:
                yield case.say(
                    "J318",
                    path,
                    f"this looks like {kind}",
                    "take it out, make it void where it came from, and name its variable under `secrets`",
                )
    yield from _secret_cells(case)


def _secret_cells(case: Case) -> Found:
    """The cells one by one, each different value once."""
    seen: set[str] = set()
    for index, cell in enumerate(case.j.get("cells", [])):
        for name, value in cell.items():
            if value in seen:
                continue
            if len(value) >= 8:
                seen.add(value)
                if secret_in(value) or named_secret(name, value):
                    yield case.say("J318", ("cells", index, name), "this looks like a secret", "name its variable under `secrets`")


def secrets_reach(case: Case) -> Found:
    """J319: secrets without a file; J320: reserved variable."""
    if case.j.get("secrets") and not case.p["overrides"]["CRED_FILE"]:
        yield case.say(
            "J319",
            ("secrets",),
            f"{case.profile.name} has no CRED_FILE, so {', '.join(case.j['secrets'])} will not be set there",
            "see its runbook for how secrets come in",
            True,
        )
    for index, name in enumerate(case.j.get("secrets", [])):
        if reserved(name):
            yield case.say(
                "J320", ("secrets", index), f"{name} is a variable that the scripts live by", "give the secret a name of its own"
            )


def texts_clean(case: Case) -> Found:
    """J324: control character in a text."""
    for path, value in walk({key: value for key, value in case.j.items() if key != "cells"}):
        if isinstance(value, str):
            control = re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", value)
            if control or ("\n" in value and path[-1] != "command"):
                what = f"U+{ord(control.group()):04X}" if control else "a line end"
                yield case.say("J324", path, f"{what} is in this text", "one line of visible characters")
    pattern = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
    for index, cell in enumerate(case.j.get("cells", [])):
        for name, value in cell.items():
            if not value.isprintable() and pattern.search(value):
                yield case.say("J324", ("cells", index, name), "a control character is in this value", "one line of visible characters")
                return


JOB_RULES: list[Rule] = [
    file_name,
    run_apart,
    one_source,
    same_columns,
    known_columns,
    smoke_without_columns,
    one_line,
    parses,
    witnesses,
    place_given,
    python_given,
    columns_used,
    few_enough,
    cell_names,
    room,
    grace,
    limits,
    silence,
    session_end,
    prune_spares,
    required_apart,
    artifacts_named,
    data_digests,
    no_secret,
    secrets_reach,
    texts_clean,
]
