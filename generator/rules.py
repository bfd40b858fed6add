"""What a schema cannot say: findings P3xx on a profile, J3xx on a job with it. docs/rules.md explains each."""

from __future__ import annotations

from .bind import choose
from .diagnostics import Diagnostic, closest
from .load import Document


def check(profile: Document, job: Document | None, without: tuple[str, ...] = ()) -> list[Diagnostic]:
    """All findings of the rules."""
    out = []
    data = profile.data
    names = [tier["name"] for tier in data["storage"]["tiers"]]
    for path in ("data", "durable"):
        for index, name in enumerate(data["storage"][path]):
            if name not in names:
                at = ("storage", path, index)
                out.append(Diagnostic("P301", profile.span(at), f"'{name}' is not the name of any tier", closest(name, names)))
    verbs = [action["verb"] for action in data["teardown"]["actions"]]
    verb = data["teardown"]["meter_stop"]
    if verb not in verbs:
        out.append(Diagnostic("P305", profile.span(("teardown", "meter_stop")), f"'{verb}' is not the verb of any teardown action", closest(verb, verbs)))
    if choose(data, without)[0] is None:
        out.append(Diagnostic("P303", profile.span(("storage", "data")), "no data tier is left"))
    return out
