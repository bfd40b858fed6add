"""A document against its JSON Schema: findings P2xx / J2xx, made from the facts of an error, never from its English."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from .diagnostics import Diagnostic, closest
from .load import Document

SCHEMA_DIR = Path(__file__).resolve().parent.parent / "schema"
MAX_FINDINGS = 300  # nobody reads more, and a file of the wrong kind may hold a million
# What a schema of a text may say; of a mapping in place of a text jsonschema sees to the rest.
LEAF = {"type", "enum", "minLength", "maxLength", "pattern", "title", "description", "examples", "form", "properties", "required", "additionalProperties"}
TEXT = ["string", "object"]  # a text, or one for each of two boxes: {tier, with, without}
_KINDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


@lru_cache(maxsize=None)
def schema_of(letter: str) -> dict:
    """The schema for profiles (P) or jobs (J)."""
    name = "profile" if letter == "P" else "job"
    return json.loads((SCHEMA_DIR / f"{name}.schema.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=None)
def _validator(letter: str):
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    return extend(Draft202012Validator, {"leaf": _leaf})(_inlined(letter, schema_of(letter)))


def _leaf(validator, leaf: tuple, value: Any, schema: dict):
    """A text, or one of several words, that is right at first sight; of what is not jsonschema says why."""
    whole, options, least, most, matches = leaf
    if isinstance(value, str) and (value in options if options else least <= len(value) <= most and (matches is None or matches(value))):
        return ()
    return validator.descend(value, whole)


def _leaves(schema: dict) -> dict:
    """A schema of a text as one keyword: most of a file are texts, and each keyword costs a call."""
    if schema.keys() - LEAF or schema.get("type") not in ("string", TEXT) and not all(isinstance(each, str) for each in schema.get("enum", (None,))):
        return schema
    matches = re.compile(schema["pattern"]).search if "pattern" in schema else None
    return {"leaf": (schema, schema.get("enum"), schema.get("minLength", 0), schema.get("maxLength", sys.maxsize), matches)}


def _inlined(letter: str, schema: Any) -> Any:
    """The schema with each $ref written out: quicker, and an error then carries the field's own description."""
    if isinstance(schema, list):
        return [_inlined(letter, each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return _leaves({key: _inlined(letter, each) for key, each in merged(letter, schema).items() if key not in ("$defs", "$comment")})


def merged(letter: str, schema: dict) -> dict:
    """A schema with its $ref resolved; what stands beside the reference wins."""
    if "$ref" not in schema:
        return schema
    base = schema_of(letter)["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    form = {"form": base["description"]} if "description" in beside and "description" in base else {}
    return {**base, **beside, **form}  # `form` says what such a text looks like, `description` what the field means


def validate(doc: Document, letter: str) -> list[Diagnostic]:
    """All findings of the schema on a loaded document."""
    data = doc.data
    found: list[Diagnostic] = []
    unfilled = _unfilled(doc, letter)
    if unfilled:
        return unfilled
    if letter == "J" and isinstance(data, dict) and isinstance(data.get("cells"), list) and len(data["cells"]) > 200:
        found += _many_cells(doc, data["cells"])
        data = {**data, "cells": data["cells"][:1]}
    said = {one.span for one in doc.diagnostics}  # what loading has said of a place is not said again in other words
    wrong = []
    for error in islice(_flat(_validator(letter).iter_errors(data)), MAX_FINDINGS):
        found += [one for one in _finding(doc, letter, error) if one.span not in said]
        if error.validator not in ("required", "additionalProperties"):
            wrong.append(tuple(error.absolute_path))
    for path in wrong:
        _drop(doc, path)
    return found


def _drop(doc: Document, path: tuple) -> None:
    """Take a value that is not what it should be out of the data, so that no rule computes with it."""
    holders = [doc.data]
    try:
        for part in path[:-1]:
            holders.append(holders[-1][part])
    except (LookupError, TypeError):
        return  # it went with something above it
    for depth in reversed(range(len(path))):
        if isinstance(holders[depth], dict):
            holders[depth].pop(path[depth], None)
            node = doc.node(path[:depth])
            if node is not None:
                doc.lossy.append(node)
            return
        # An item of a list: the others would change their numbers, so the list goes.


def _unfilled(doc: Document, letter: str) -> list[Diagnostic]:
    """Fields that still hold the ??? of a new file, each with what it means. Nothing else is said before they are filled."""
    if not any("???" in line for line in doc.lines):
        return []
    found, stack = [], [((), doc.data)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            stack += [((*path, index), item) for index, item in enumerate(value)]
        elif value == "???":
            found.append(_say(doc, letter + "207", path, f"{dotted(path)} is not filled in yet", _meaning(letter, path)))
    return found


def _meaning(letter: str, path: tuple) -> str:
    """The description of a field and an example, found by walking the schema along a path."""
    schema, parent = schema_of(letter), {}
    for part in path:
        parent = schema
        schema = (
            schema.get("items", {})
            if isinstance(part, int)
            else schema.get("properties", {}).get(part) or schema.get("additionalProperties") or {}
        )
        schema = merged(letter, schema)
    text = schema.get("description") or parent.get("description", "")
    options = "one of: " + ", ".join(map(str, schema["enum"])) if "enum" in schema else ""
    example = f"e.g. {json.dumps(schema['examples'][0], ensure_ascii=False)}" if schema.get("examples") and not options else ""
    return "; ".join(part for part in (text.rstrip("."), options or example) if part)


def _many_cells(doc: Document, cells: list) -> list[Diagnostic]:
    """The schema's word on `cells`, said by hand: jsonschema would take minutes for 100,000 of them."""
    name = re.compile(schema_of("J")["properties"]["matrix"]["propertyNames"]["pattern"])
    good: set[tuple] = set()
    found = []
    for index, cell in enumerate(cells):
        path = ("cells", index)
        if not isinstance(cell, dict):
            found.append(_type(doc, "J", path, cell, ["object"]))
            continue
        if tuple(cell) not in good:
            wrong = [key for key in cell if not name.match(key)]
            found += [_say(doc, "J205", (*path, key), f"'{key}' is not a column's name", "letters, digits and _", True) for key in wrong]
            if not wrong:
                good.add(tuple(cell))
        found += [_type(doc, "J", (*path, key), value, ["string"]) for key, value in cell.items() if not isinstance(value, str)]
        if len(found) > 100:
            break
    return found


def _flat(errors):
    """The errors that say something by themselves: into anyOf goes only the branch that was meant."""
    for error in errors:
        if error.validator in ("anyOf", "oneOf") and error.context and not _only_required(error):
            branches: dict[int, list] = {}
            for sub in error.context:
                branches.setdefault(sub.schema_path[0], []).append(sub)
            fitting = [subs for subs in branches.values() if not any(s.validator in ("type", "const") and not s.path for s in subs)]
            if fitting:
                yield from _flat(fitting[0])
                continue
        yield error


def _only_required(error) -> bool:
    return all(set(branch) == {"required"} for branch in error.validator_value)


def _say(doc: Document, code: str, path: tuple, message: str, hint: str = "", at_key: bool = False) -> Diagnostic:
    return Diagnostic(code, doc.key_span(path) if at_key else doc.span(path), message, hint)


def _finding(doc: Document, letter: str, error) -> list[Diagnostic]:
    """Findings for one error of jsonschema."""
    path, value, rule, want = tuple(error.absolute_path), error.instance, error.validator, error.validator_value
    if rule == "additionalProperties":
        return _unknown(doc, letter, error)
    if rule == "required":
        return _missing(doc, letter, error)
    if rule in ("anyOf", "oneOf") and _only_required(error):
        names = " or ".join("+".join(branch["required"]) for branch in want)
        return [_say(doc, letter + "202", path, f"{dotted(path)} has none of the fields {names}", "write one of them")]
    if rule in ("type", "anyOf", "oneOf"):
        kinds = [want] if isinstance(want, str) else list(want) if rule == "type" else [each.get("type") or "string" for each in want]
        one = _type(doc, letter, path, value, list(dict.fromkeys(kinds)))
        return [one if one.hint else replace(one, hint=_describe(error.schema))]
    if rule in ("enum", "const"):
        options = want if rule == "enum" else [want]
        hint = closest(value, options) if isinstance(value, str) else ""
        hint = hint or "one of: " + ", ".join(str(each) or "''" for each in options)
        return [_say(doc, letter + "204", path, f"{shown(value)} is not one of the values of {dotted(path)}", hint)]
    hint = _describe(error.schema)
    if rule == "pattern" and "propertyNames" in error.absolute_schema_path:
        return [_say(doc, letter + "205", (*path, value), f"'{value}' does not fit as a name in {dotted(path)}", hint, True)]
    if rule == "pattern":
        return [_say(doc, letter + "205", path, f"{shown(value)} does not fit {dotted(path)}", hint)]
    return [_say(doc, letter + "206", path, f"{dotted(path)}: {_limit(rule, want, value)}", hint)]


def _unknown(doc: Document, letter: str, error) -> list[Diagnostic]:
    """Each field that the schema does not know, at its key."""
    path, allowed = tuple(error.absolute_path), error.schema.get("properties", {})
    inside = f" in {dotted(path)}" if path else ""
    return [
        _say(
            doc,
            letter + "201",
            (*path, key),
            f"unknown field {shown(key)}{inside}",
            closest(key, allowed) or "known: " + ", ".join(allowed),
            True,
        )
        for key in error.instance
        if key not in allowed
    ]


def _missing(doc: Document, letter: str, error) -> list[Diagnostic]:
    """Each field that is missing, at its parent. jsonschema says it once for each; alike findings are printed once."""
    path = tuple(error.absolute_path)
    inside = f" in {dotted(path)}" if path else ""
    at_key = bool(path) and isinstance(path[-1], str)
    return [
        _say(doc, letter + "202", path, f"the field '{key}' is missing{inside}", _missing_hint(error.schema, key) or _meaning(letter, (*path, key)), at_key)
        for key in error.validator_value
        if key not in error.instance and not doc.lacks(path)
    ]


def _limit(rule: str, want: Any, value: Any) -> str:
    texts = {
        "minimum": f"{value} is below {want}",
        "maximum": f"{value} is above {want}",
        "exclusiveMinimum": f"{value} is not above {want}",
        "exclusiveMaximum": f"{value} is not below {want}",
        "minLength": "it is empty",
        "maxLength": f"it is longer than {want} characters",
        "minItems": f"it has fewer than {want} entries",
        "maxItems": f"it has more than {want} entries",
        "minProperties": "it is empty",
        "uniqueItems": "an entry stands there twice",
    }
    return texts.get(rule, f"it breaks the rule '{rule}'")


def _type(doc: Document, letter: str, path: tuple, value: Any, kinds: list) -> Diagnostic:
    kinds = ["string"] if kinds == TEXT else kinds
    words = " or ".join(_KINDS[kind] for kind in kinds)
    return _say(doc, letter + "203", path, f"{dotted(path)} is {words}, and this is {shown(value)}", _type_hint(doc, path, value, kinds))


def _type_hint(doc: Document, path: tuple, value: Any, kinds: list) -> str:
    """What to write: quotes where text is wanted, none where a number is."""
    raw = doc.raw(path)
    if "string" in kinds and value is not None and not isinstance(value, (dict, list)):
        return f'write "{raw}" in quotes'
    if isinstance(value, str):
        if "boolean" in kinds and value.lower() in ("true", "false", "yes", "no", "on", "off", "y", "n"):
            return f"write {'true' if value.lower() in ('true', 'yes', 'on') else 'false'} without quotes"
        if "integer" in kinds or "number" in kinds:
            return _number_hint(str(path[-1]) if path else "", value)
    if "array" in kinds and not isinstance(value, (dict, list)):
        return f"write [{raw}]" if raw else "write [] for none"
    if value is None:
        return "write a value, or '' for an empty text" if "string" in kinds else "write a value"
    if isinstance(value, float) and "integer" in kinds and value.is_integer():
        return f"write {int(value)}"
    return ""


_UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "minutes": 60, "h": 3600, "hours": 3600, "d": 86400, "days": 86400}
_SIZES = {"mb": 1e-3, "gb": 1, "tb": 1e3, "mib": 1.048576e-3, "gib": 1.073741824, "tib": 1099.511627776, "m": 1e-3, "g": 1, "t": 1e3}


def _number_hint(name: str, value: str) -> str:
    """For `2h` in a field of seconds or `512 MB` in a field of GB: the number to write."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
    if match:
        number, unit = float(match[1]), match[2].lower()
        factor = None
        if name.endswith("_s"):
            factor = _UNITS.get(unit)
        elif name.endswith("_gb"):
            factor = _SIZES.get(unit)
        elif name.endswith("_days"):
            factor = {"d": 1, "day": 1, "days": 1, "w": 7, "week": 7, "weeks": 7}.get(unit)
        elif name == "minutes":
            factor = _UNITS[unit] / 60 if unit in _UNITS else None
        elif not unit:
            factor = 1
        if not unit:
            return f"write {match[1]} without quotes"
        if factor is not None:
            return f"write {number * factor:.6g}" + (" (seconds)" if name.endswith("_s") else "")
    return "write a number without quotes and without a unit"


def _describe(schema: dict) -> str:
    text = schema.get("form") or schema.get("description", "")
    example = f", e.g. {json.dumps(schema['examples'][0], ensure_ascii=False)}" if schema.get("examples") else ""
    return text[:1].lower() + text[1:].rstrip(".") + example if text else ""


def _missing_hint(schema: dict, key: str) -> str:
    sub = schema.get("properties", {}).get(key, {})
    sub = sub["leaf"][0] if "leaf" in sub else sub
    text = sub.get("description", "")
    examples = sub.get("examples")
    example = f", e.g. {json.dumps(examples[0], ensure_ascii=False)}" if examples else ""
    return text.rstrip(".") + example


def shown(value: Any) -> str:
    """A value in a message: short, on one line."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def dotted(path: tuple) -> str:
    """A path as people write it: teardown.actions[2].verb."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else ("." if out else "") + str(part)
    return out or "the file"
