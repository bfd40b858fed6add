"""A commented file to fill in, made from a schema: every required field with `???`, optional ones as comments."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from .validate import merged, schema_of

UNFILLED = "???"


def skeleton(letter: str, name: str) -> str:
    """The text of a new profile (P) or job (J)."""
    kind = "profile" if letter == "P" else "job"
    head = [
        f"# yaml-language-server: $schema=../schema/{kind}.schema.json",
        f"# {name}: fill in each {UNFILLED}. What a field means stands above it; docs/{kind}.md has all of them.",
        "# Say what you know and where you know it from; leave out what a comment calls optional.",
    ]
    return "\n".join(head + _fields(letter, schema_of(letter), 0)) + "\n"


def _comment(text: str, indent: int) -> list[str]:
    return [" " * indent + "# " + line for line in textwrap.wrap(text, max(60, 118 - indent))]


def _fields(letter: str, schema: dict, indent: int) -> list[str]:
    out: list[str] = []
    required = list(schema.get("required", []))
    # Of two ways to say a thing the first is written out: steps for a person, a command, a matrix.
    for branch in schema.get("anyOf", []):
        required += [key for key in branch.get("required", []) if key == "steps"]
    if letter == "J" and indent == 0:
        required.append("matrix")
    for key, sub in schema.get("properties", {}).items():
        sub = merged(letter, sub)
        need = key in required
        out += _comment(("" if need else "Optional. ") + sub.get("description", "") + _options(sub), indent)
        out += _value(letter, key, sub, indent) if need else [" " * indent + f"# {key}: {_example(sub)}".removesuffix(f" {UNFILLED}")]
    return out


def _options(schema: dict) -> str:
    if "enum" in schema:
        return " One of: " + ", ".join(map(str, schema["enum"])) + "."
    if "examples" in schema and schema.get("type") not in ("object",):
        return f" Example: {_example(schema)}"
    return ""


def _example(schema: dict) -> str:
    examples = schema.get("examples")
    return json.dumps(examples[0], ensure_ascii=False) if examples else UNFILLED


def _value(letter: str, key: str, schema: dict, indent: int) -> list[str]:
    pad = " " * indent
    if schema.get("type") == "object" and "properties" in schema:
        return [f"{pad}{key}:", *_fields(letter, schema, indent + 2)]
    if schema.get("type") == "object":
        return [f"{pad}{key}: {{}}"] if letter == "P" else [f'{pad}{key}: {{column: ["{UNFILLED}"]}}']
    if schema.get("type") == "array":
        return _list(letter, key, schema, indent)
    return [f"{pad}{key}: {UNFILLED}"]


def _list(letter: str, key: str, schema: dict, indent: int) -> list[str]:
    pad = " " * indent
    item: Any = merged(letter, schema["items"])
    if item.get("type") != "object":
        return [f'{pad}{key}: ["{UNFILLED}"]']  # in brackets a bare ??? is not YAML
    out = [f"{pad}{key}:"]
    for number in range(schema.get("minItems", 1)):
        lines = _fields(letter, item, indent + 4)
        if number:
            lines = [line for line in lines if not line.lstrip().startswith("#")]
        first = next(at for at, line in enumerate(lines) if not line.lstrip().startswith("#"))
        lines[first] = f"{pad}  - {lines[first].lstrip()}"
        # Comments above the first field of an item stand above its dash.
        out += [pad + "  " + line.lstrip() for line in lines[:first]] + lines[first:]
    return out
