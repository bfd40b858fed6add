"""docs/platforms.md: every profile as a few rows, so that platforms can be compared before one is rented."""

from __future__ import annotations

from . import quote
from .bind import Bindings, action_fields
from .diagnostics import Report
from .inputs import DEFAULT_JOB, inputs, known
from .runbook import check, how, prose

HEAD = """# Every platform at a glance

{note}

One row for each profile, and one for each way to rent it without an optional tier (`without=TIER`) that changes where a run
is written. Facts are as the profiles
have them, where each stands with its source and its month; what is marked *not quite sure* or **check first** is weak.

- *survives the stop*: tiers that outlive the verb that stops the meter; bold: those that a run is written to. **pull-only**: no tier is
  counted on to keep results, whatever else survives, so they come home first.
- *restart*: whether a detached run survives a restart of the box; where not, relaunch it and it resumes.
"""


def page(note: str) -> str:
    """The whole page."""
    found = [b for name in known("profiles") for b in variants(name)]
    out = [HEAD.format(note=note), "## What stops the meter, and what survives it", ""]
    out += ["| platform | kind | the meter stops with | survives the stop | is lost | goes on costing |", "|---|---|---|---|---|---|"]
    out += [_stop_row(b) for b in found]
    whole = [b for b in found if not b.without]
    out += ["", "## Detaching and interruption", ""]
    out += ["| platform | detach | restart | who interrupts | signal, seconds until the kill |", "|---|---|---|---|---|"]
    out += [_interruption_row(b) for b in whole]
    out += ["", "## Traps", "", "Clocks strike by themselves; costs go on unseen; the gotchas' fixes stand in the profile and in the runbook.", ""]
    out += ["| platform | clocks | hidden costs | gotchas |", "|---|---|---|---|"]
    out += [_trap_row(b) for b in whole]
    return "\n".join(out) + "\n"


def variants(name: str) -> list[Bindings]:
    """A profile as it is; then without each optional tier, and without all, where that compiles and moves a run elsewhere."""
    whole = inputs(name, DEFAULT_JOB, (), Report())
    if whole is None:
        raise ValueError(f"profiles/{name}.yaml has errors: python -m generator check {name}")
    optional = [tier["name"] for tier in whole.tiers if tier.get("optional")]
    sets = [(one,) for one in optional] + ([tuple(optional)] if len(optional) > 1 else [])
    found = [b for b in (inputs(name, DEFAULT_JOB, left_out, Report()) for left_out in sets) if b]
    return [whole, *(b for b in found if places(b) != places(whole))]


def places(b: Bindings) -> tuple[str, str]:
    """The tiers that a run is written to: data and durable, the second empty where there is none."""
    return b.data["name"], b.durable["name"] if b.durable else ""


def _stop_row(b: Bindings) -> str:
    action = next(one for one in b.actions if one["verb"] == b["METER_STOP"].value)
    texts, arrays = action_fields(b, action)
    used = set(places(b))
    kept = [f"**{quote.code(name)}**" if name in used else str(quote.code(name)) for name in arrays["SURVIVES"]]
    if b.durable is None:
        kept.insert(0, "**pull-only**")
    undone = "can be undone" if action["reversible"] else "cannot be undone"
    days = f", kept {texts['RETENTION_DAYS']} days" if texts["RETENTION_DAYS"] not in ("", None) else ""
    stop = f"{check(action)}{quote.code(action['verb'])} ({undone}{days}): {how(b, action)}"
    cells = [_name(b), b["KIND"].value, stop, ", ".join(kept) or "nothing", _codes(arrays["LOST"]) or "nothing", prose(action["storage_billed"])]
    return _row(cells)


def _interruption_row(b: Bindings) -> str:
    daemon, model = b.profile["daemon"], b.profile["interruption"]
    fallback = f", else {quote.code(daemon['fallback'])}" if daemon.get("fallback", "none") != "none" else ""
    grace = "not known" if model.get("grace_s") is None else str(model["grace_s"])
    signal = "no warning" if model["signal"] == "none" else f"{model['signal']}, {grace}"
    restart = f"{check(daemon)}{'yes' if daemon['survives']['restart'] else 'no'}"
    return _row([_name(b), f"{quote.code(daemon['primitive'])}{fallback}", restart, f"{check(model)}{prose(model['model'])}", signal])


def _trap_row(b: Bindings) -> str:
    """Names only, those of every variant: the sentences are long, and stand in the runbook."""
    profile = b.profile_doc.data
    return _row([_name(b), *(_codes([one["id"] for one in part]) or "none known" for part in (
        profile["interruption"]["clocks"], profile["teardown"]["cost_traps"], profile["gotchas"]))])


def _name(b: Bindings) -> str:
    name = b["PROFILE"].value
    without = f" without {_codes(b.without)}" if b.without else ""
    return f"[{prose(b.profile['launch']['title'])}](../profiles/{name}.yaml) {quote.code(name)}{without}"


def _codes(names) -> str:
    return ", ".join(quote.code(name) for name in names)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
