"""docs/profile.md and docs/job.md from the schemas, docs/rules.md from the codes, docs/platforms.md from the profiles:
`python -m generator.reference [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import platforms
from .codes import BOTH, JOB, PROFILE, TABLE
from .quote import code, md
from .validate import TEXT, merged, schema_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Made by `python -m generator.reference` from {source}; do not edit. -->"


def pages() -> dict[str, str]:
    """File name -> text."""
    return {
        "profile.md": _schema_page("P", "profile"),
        "job.md": _schema_page("J", "job"),
        "rules.md": _rules_page(),
        "platforms.md": platforms.page(NOTE.format(source="profiles/")),
    }


def _schema_page(letter: str, kind: str) -> str:
    schema = schema_of(letter)
    out = [f"# The {kind}, field by field", "", NOTE.format(source=f"schema/{kind}.schema.json"), "", schema["description"], ""]
    out += [
        f"An editor that knows YAML schemas completes the fields where the first line is "
        f"`# yaml-language-server: $schema=../schema/{kind}.schema.json`; `python -m generator new {'--job ' if letter == 'J' else ''}NAME` writes it.",
        "",
    ]
    for key, sub in schema["properties"].items():
        base = merged(letter, sub)
        out += [f"## {key}", "", f"{base.get('description', '')} {_must(key, schema)}".strip(), ""]
        rows = list(_rows(letter, base, ""))
        if rows:
            out += ["| field | what | type | example |", "|---|---|---|---|", *rows, ""]
        else:
            out += [f"Type: {_type(letter, base)}. {_sample(base)}", ""]
    text = schema.get("$defs", {}).get("text", {})
    if text.get("type") == TEXT:
        rows = list(_rows(letter, {**text, "type": "object"}, ""))
        out += [f"## {text['title']}", "", text["$comment"], "", "| field | what | type | example |", "|---|---|---|---|", *rows, ""]
    return "\n".join(out).rstrip("\n") + "\n"


def _must(key: str, parent: dict) -> str:
    return "" if key in parent.get("required", []) else "Optional."


def _rows(letter: str, schema: dict, prefix: str):
    """A table row for each field below a schema, depth first."""
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        yield from _rows(letter, merged(letter, schema["items"]), prefix + "[]")
        return
    for key, sub in schema.get("properties", {}).items() if schema.get("type") != TEXT else ():
        base = merged(letter, sub)
        name = f"{prefix}.{key}" if prefix else key
        text = f"{base.get('description', '')} {_must(key, schema)}".strip()
        yield f"| {code(name)} | {md(text)} | {md(_type(letter, base))} | {_sample(base, True)} |"
        yield from _rows(letter, base, name)


def _type(letter: str, schema: dict) -> str:
    if "enum" in schema:
        return " or ".join(str(each) for each in schema["enum"])
    if "anyOf" in schema and "type" not in schema:
        return " or ".join("empty" if branch.get("const") == "" else _type(letter, merged(letter, branch)) for branch in schema["anyOf"])
    kind = schema.get("type", "any")
    kind = "string" if kind == TEXT else kind
    names = {
        "string": "text",
        "integer": "whole number",
        "boolean": "true or false",
        "array": "list",
        "object": "mapping",
        "null": "null",
        "number": "number",
    }
    kind = " or ".join(names[each] for each in ([kind] if isinstance(kind, str) else kind))
    limits = [
        f"{word} {schema[key]}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("minItems", "at least"),
            ("maxItems", "at most"),
        )
        if key in schema
    ]
    return kind + (", " + " ".join(limits) if limits else "")


def _sample(schema: dict, cell: bool = False) -> str:
    if not schema.get("examples"):
        return ""
    text = code(json.dumps(schema["examples"][0], ensure_ascii=False))
    return text if cell else f"Example: {text}"


def _rules_page() -> str:
    out = [
        "# Every message of the compiler",
        "",
        NOTE.format(source="generator/codes.py"),
        "",
        "A code is stable and never reused. P is said of a profile, J of a job. A warning does not stop a compile.",
        "",
        "## Loading and schema",
        "",
        "The same numbers for both: `P108` is a key twice in a profile, `J108` in a job.",
        "",
    ]
    for number, row in BOTH.items():
        codes = " ".join(letter + number for letter in "PJ" if letter + number in TABLE)
        out += [f"### {codes}: {row[1]}", "", row[2], ""]
    for title, table in (("Rules on a profile", PROFILE), ("Rules on a job, with the profile that it is compiled for", JOB)):
        out += [f"## {title}", ""]
        for name, (severity, short, text) in table.items():
            out += [f"### {name}: {short}", "", ("Warning. " if severity == "warning" else "") + text, ""]
    return "\n".join(out).rstrip("\n") + "\n"


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check say which are out of date (exit 1)."""
    stale = [name for name, text in pages().items() if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        for name in stale:
            print(f"docs/{name} is out of date; run: python -m generator.reference", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print("usage: python -m generator.reference [--check]", file=sys.stderr)
        return 2
    for name in stale:
        (DOCS / name).write_text(pages()[name], encoding="utf-8", newline="\n")
        print(f"docs/{name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
