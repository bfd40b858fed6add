"""The rules on what depends on an optional tier: items with `needs_tier` or `without_tier`, texts with `tier`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .diagnostics import Diagnostic, closest
from .rules import Case
from .validate import dotted, merged, schema_of
from .variants import MARKS, is_wording, optional_tiers, stays

Found = Iterator[Diagnostic]
# Fields that name tiers or cite a page, and tell nobody anything.
NAMES = frozenset({"source", "path", "data", "durable", "deletes", "danger_clocks", "tier", *MARKS})


def depends_on_optional(case: Case) -> Found:
    """P301: unknown tier; P338: a tier that every box has."""
    names, optional = [tier["name"] for tier in case.p["storage"]["tiers"]], optional_tiers(case.p)
    for path, item in case.marks:
        for key in ("tier",) if is_wording(item) else MARKS:
            name = item.get(key)
            if name is None or name in optional:
                continue
            if name not in names:
                hint = closest(name, names) or "these are optional: " + (", ".join(optional) or "none")
                yield case.say("P301", (*path, key), f"'{name}' is not the name of any tier", hint)
            else:
                yield case.say(
                    "P338",
                    (*path, key),
                    f"tier '{name}' comes with every box, so nothing depends on it",
                    f"delete this line, or say optional: true of '{name}'; these are optional: " + (", ".join(optional) or "none"),
                )


def something_is_left(case: Case) -> Found:
    """P305: the verb that stops the meter depends on a tier; P339: a field or list that is empty for some box, or an item for none."""
    optional = optional_tiers(case.p)
    boxes = list(dict.fromkeys([(), *((name,) for name in optional), tuple(optional)]))
    lists: set[tuple] = set()
    for path, item in case.marks:
        key = next(key for key in ("tier", *MARKS) if key in item)
        if path[:2] == ("teardown", "actions") and len(path) == 3 and item["verb"] == case.p["teardown"]["meter_stop"]:
            yield case.say("P305", (*path, key), f"'{item['verb']}' stops the meter of every box, whatever tiers it has", "delete this line")
        elif is_wording(item) and not {"with", "without"} & item.keys() or all(item.get(mark) == item[key] for mark in MARKS):
            yield case.say("P339", (*path, key), f"{dotted(path)} is true of no box", "say what is true with the tier, without it, or both")
        elif not isinstance(path[-1], int):
            if path[-1] in _schema(path[:-1]).get("required", []) and (gone := {"with", "without"} - item.keys()):
                where = f"where the box has '{item['tier']}'" if "with" in gone else f"without '{item['tier']}'"
                yield case.say("P339", (*path, key), f"{dotted(path)} says nothing {where}", f"add {gone.pop()}:")
        elif path[:-1] not in lists:
            lists.add(path[:-1])
            items: list = case.p  # type: ignore[assignment]
            for part in path[:-1]:
                items = items[part]
            for without in boxes if _schema(path[:-1]).get("minItems") else ():
                if not any(stays(one, without) for one in items):
                    where = "without " + ", ".join(without) if without else "for the box that has every tier"
                    yield case.say("P339", (*path, key), f"nothing is left of {dotted(path[:-1])} {where}", "add what is true there")
                    break


def names_what_may_be_missing(case: Case) -> Found:
    """P340: a sentence names an optional tier and does not depend on it."""
    tiers, durables = case.p["storage"]["tiers"], case.p["storage"]["durable"]
    marks = dict(case.marks)
    for index, tier in enumerate(tiers):
        if not tier.get("optional"):
            continue
        names = [re.escape(tier["name"]).replace(r"\-", "[- _]?") + "s?"]
        if tier["path"] not in [one["path"] for one in tiers if one is not tier]:
            names.append(re.escape(tier["path"]))
        wanted = re.compile(rf"(?<![\w/.-])(?:{'|'.join(names)})(?![\w-])", re.I)
        # What an action deletes alone goes with it by itself.
        own = [("storage", "tiers", index)] + [path for path, item in marks.items() if item.get("needs_tier") == tier["name"]]
        own += [(*path, "with") for path, item in marks.items() if item.get("tier") == tier["name"]]
        own += [
            ("teardown", "actions", at)
            for at, action in enumerate(case.p["teardown"]["actions"])
            if action["like"] == "storage" and set(action.get("deletes", durables)) <= {tier["name"]}
        ]
        # Most sentences hold no word of it; a pattern is slow.
        hints = (tier["name"].split("-")[0], tier["path"].lower())
        for path, value in case.scalars:
            if not isinstance(value, str) or hints[0] not in (low := value.lower()) and hints[1] not in low or not wanted.search(value):
                continue
            if path[0] != "overrides" and not NAMES & set(path):
                if not any(path[: len(one)] == one for one in own):
                    yield case.say(
                        "P340",
                        path,
                        f"'{wanted.search(value)[0]}' may be missing: tier '{tier['name']}' is optional",  # type: ignore[index]
                        "say what is true with it and without it, {tier, with, without}, or give the item needs_tier",
                    )


def _schema(path: tuple) -> dict:
    """The schema of a field."""
    found = schema_of("P")
    for part in path:
        found = merged("P", found["items"] if isinstance(part, int) else found["properties"][part])
    return found
