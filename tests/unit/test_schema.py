"""The schemas: every property is described with an example, examples are valid, editors find them. S3."""

import copy

import jsonschema
import pytest
from conftest import ROOT
from generator import codes, reference
from generator.inputs import known
from generator.validate import schema_of

UNITS = {"_s": "second", "_gb": "GB", "_days": "day", "minutes": "minute"}


def properties(schema, path=""):
    """Every property below a schema: its path, its name, itself."""
    for key, sub in schema.get("properties", {}).items():
        yield f"{path}.{key}", key, sub
        yield from properties(sub, f"{path}.{key}")
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from properties(schema[word], path + "[]")
    for key, sub in schema.get("$defs", {}).items():
        yield from properties(sub, f"${key}")


def gaps(letter: str, schema: dict) -> list[str]:
    """What the schema lacks: a description, an example, a unit, a closed object, a valid example."""
    out = []
    defs = schema["$defs"]
    for path, key, sub in properties(schema):
        base = defs[sub["$ref"].rsplit("/", 1)[1]] if "$ref" in sub else {}
        whole = {**base, **sub}
        if not whole.get("description", "").strip():
            out.append(f"{path}: no description")
        leaf = whole.get("type") not in ("object", "array")
        if leaf and not whole.get("examples"):
            out.append(f"{path}: no example")
        for end, word in UNITS.items():
            if key.endswith(end) and word.lower() not in whole.get("description", "").lower():
                out.append(f"{path}: the unit {word} is not in its description")
        if whole.get("type") == "object" and "properties" in whole and whole.get("additionalProperties") is not False:
            out.append(f"{path}: takes unknown fields")
        for example in whole.get("examples", []):
            check = jsonschema.Draft202012Validator({**{k: v for k, v in whole.items() if k != "$ref"}, "$defs": defs})
            out += [f"{path}: the example {example!r} is not valid"] * (not check.is_valid(example))
        pattern = whole.get("pattern", "")
        if pattern.endswith("$"):
            out.append(f"{path}: '$' lets a line end through, write \\Z")
    return out


@pytest.mark.parametrize("letter", "PJ")
def test_every_property_is_described(letter):
    jsonschema.Draft202012Validator.check_schema(schema_of(letter))
    assert gaps(letter, schema_of(letter)) == []


@pytest.mark.parametrize("harm, word", [
    (lambda s: s["properties"]["save_s"].pop("description"), "no description"),
    (lambda s: s["properties"]["save_s"].pop("examples"), "no example"),
    (lambda s: s["properties"]["save_s"].update(description="how long"), "unit"),
    (lambda s: s["properties"]["save_s"].update(examples=["x"]), "not valid"),
    (lambda s: s["properties"]["code"].pop("additionalProperties"), "unknown fields"),
    (lambda s: s["properties"]["code"]["properties"]["branch"].update(pattern="^[a-z]+$"), "line end"),
])
def test_the_check_finds_a_bad_schema(harm, word):
    bad = copy.deepcopy(schema_of("J"))
    harm(bad)
    assert any(word in gap for gap in gaps("J", bad))


def test_a_profile_has_exactly_eight_fields():
    """S3."""
    schema = schema_of("P")
    assert sorted(schema["required"]) == sorted(schema["properties"]) == sorted("launch storage network interruption teardown daemon gotchas overrides".split())
    assert schema["additionalProperties"] is False


def test_editors_find_the_schema():
    for folder, kind in (("profiles", "profile"), ("jobs", "job")):
        for name in known(folder):
            first = (ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8").split("\n")[0]
            assert first == f"# yaml-language-server: $schema=../schema/{kind}.schema.json", name


def test_the_reference_pages_are_up_to_date(capsys, monkeypatch, tmp_path):
    """Drift is found, and the check is itself checked."""
    assert reference.main(["--check"]) == 0
    for name, text in reference.pages().items():
        (tmp_path / name).write_text(text + "edited\n", encoding="utf-8")
    monkeypatch.setattr(reference, "DOCS", tmp_path)
    assert reference.main(["--check"]) == 1 and "docs/rules.md is out of date" in capsys.readouterr().err
    assert reference.main([]) == 0 and reference.main(["--check"]) == 0


def test_every_code_has_a_page_and_no_page_is_an_orphan():
    """Codes that the compiler uses are in the table, and the other way round."""
    import re

    used = set()
    for path in (ROOT / "generator").glob("*.py"):
        if path.name != "codes.py":
            text = path.read_text(encoding="utf-8")
            used |= set(re.findall(r'"([PJ]3[0-9]{2})"', text))
            used |= {letter + number for number in re.findall(r'(?:letter \+ |self\.say\(\s*)"([12][0-9]{2})"', text) for letter in "PJ"}
            used |= set(re.findall(r'"([PJ][12][0-9]{2})"', text))
    assert used - set(codes.TABLE) - {"P111", "J204"} == set() and set(codes.TABLE) - used == set()
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert all(code in page for code in codes.TABLE)


