"""The case files: what is refused, with code and place, and what is not.

A file of cases/negative begins with `# expect: CODE at 12:15` (line and column) or `# expect: CODE at 'text under the
caret'`, once for each finding; a file of cases/positive that is the counterpart of a rule's negative ones, just on the
allowed side of its edge, begins with `# clean: CODE, CODE`. Then either the file itself is the input, or it
names changes to a base of fixtures/: `# swap: OLD => NEW` in the profile for P, in the job for J; `# profile: OLD =>
NEW` in the profile for J. `\\n` and `\\t` and `\\xNN` are escapes. Also `# without: TIER`, `# today: DATE`, `# name: STEM`, `# bound:
NAME=value` (positive), `# warns: CODE` (positive). Covers S7 S8 S10 S19 S23 S26 S33 S34 S43 S53 F49 F60 and cases 1 2 4 5 6 11 12 15 79.
"""

import datetime
import re
from pathlib import Path

import pytest
from conftest import FIXTURES, TODAY, check_texts
from generator import rules_job, rules_profile
from generator.bind import bind
from generator.codes import TABLE
from generator.inputs import default_out, without_of

CASES = Path(__file__).resolve().parent / "cases"
NEGATIVE = sorted((CASES / "negative").glob("*.yaml"))
POSITIVE = sorted((CASES / "positive").glob("*.yaml"))


def unescape(text: str) -> str:
    return re.sub(r"\\(n|t|x[0-9a-f]{2}|u[0-9a-f]{4})", lambda m: {"n": "\n", "t": "\t"}.get(m[1]) or chr(int(m[1][1:], 16)), text)


def directives(text: str) -> list[tuple[str, str]]:
    """The `# key: value` lines at the top."""
    found = []
    for line in text.split("\n"):
        match = re.match(r"# (expect|clean|swap|profile|without|today|name|bound|warns|proves): (.*)", line)
        if not match:
            break
        found.append((match[1], match[2]))
    return found


def swapped(base: str, changes: list[str]) -> str:
    for change in changes:
        old, _, new = change.removesuffix(" =>").partition(" => ")
        old, new = unescape(old), unescape(new)
        assert base.count(old) == 1, f"{old!r} stands {base.count(old)} times in the base"
        base = base.replace(old, new)
    return base


def run_case(path: Path, tmp_path: Path):
    """Findings of a case, its directives and the documents."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    given = directives(text)
    letter = "J" if path.name.startswith("J") or path.parent.name == "positive" and path.name.startswith("job") else "P"
    swaps = [value for key, value in given if key == "swap"]
    profile = (FIXTURES / "rental.yaml").read_text()
    job = (FIXTURES / "sweep.yaml").read_text()
    one = dict(given)
    # The base is long enough to hide a mistake in a swap, so each of its parts is to be found exactly once.
    profile = swapped(profile, [value for key, value in given if key == "profile"] + (swaps if letter == "P" else []))
    job = swapped(job, swaps) if letter == "J" else job
    if path.parent.name == "negative" and not swaps and not {"without", "profile", "name", "today"} & one.keys():
        body = path.read_bytes()
        profile, job = (body, job) if letter == "P" else (profile, body)
    names = (one.get("name", ""), "") if letter == "P" else ("", one.get("name", ""))
    without = tuple(part for part in one.get("without", "").split(",") if part)
    today = datetime.date.fromisoformat(one["today"]) if "today" in one else TODAY
    need_job = letter == "J" or path.parent.name == "positive"
    return (*check_texts(tmp_path, profile, job if need_job else None, without, today, names), given, without)


def under(doc, span) -> str:
    return doc.lines[span.line - 1][span.col - 1 : span.col - 1 + span.width] if span.line <= len(doc.lines) else ""


def matches(finding, code: str, place: str, p, j) -> bool:
    doc = p if code[0] == "P" else j
    if finding.code != code:
        return False
    if re.fullmatch(r"\d+:\d+", place):
        return place == f"{finding.span.line}:{finding.span.col}"
    return unescape(place[1:-1]) == under(doc, finding.span)


def fails(path: Path, tmp_path: Path) -> str:
    """What is wrong with a negative case's outcome; empty where it is as expected."""
    p, j, found, given, _ = run_case(path, tmp_path)
    wanted = [value for key, value in given if key == "expect"]
    said = "; ".join(f"{one.code} at {one.span.line}:{one.span.col} {under(p if one.code[0] == 'P' else j, one.span)!r} {one.message}" for one in found)
    for want in wanted:
        code, _, place = want.partition(" at ")
        if not any(matches(one, code, place, p, j) for one in found):
            return f"expected {want}; found {said or 'nothing'}"
    extra = {one.code for one in found} - {want.split()[0] for want in wanted}
    return f"not expected: {', '.join(sorted(extra))}; found {said}" if extra else ""


@pytest.mark.parametrize("path", NEGATIVE, ids=lambda path: path.stem)
def test_is_refused(path, tmp_path):
    assert path.name.split("-")[0] in {value.split()[0] for key, value in directives(path.read_bytes().decode("utf-8", "replace")) if key == "expect"}
    assert fails(path, tmp_path) == ""


@pytest.mark.parametrize("path", POSITIVE, ids=lambda path: path.stem)
def test_is_accepted(path, tmp_path):
    p, j, found, given, without = run_case(path, tmp_path)
    assert sorted({one.code for one in found}) == sorted(value for key, value in given if key == "warns"), found
    assert not [one for one in found if one.severity == "error" or one.code in clean(path)], found
    bound = bind(p, j, without)
    for value in [value for key, value in given if key == "bound"]:
        name, _, want = value.partition("=")
        assert str(bound[name].value) == want


def clean(path: Path) -> set[str]:
    """The codes that a positive case is the counterpart of: its first line says them."""
    found = [value for key, value in directives(path.read_text(encoding="utf-8"))[:1] if key == "clean"]
    return {code for value in found for code in value.split(", ")}


@pytest.mark.parametrize("code", [code for code in TABLE if code[1] == "3"])
def test_each_rule_has_both_cases(code):
    """Case 1 and its kind: a rule is known by what it refuses and by what it just lets pass."""
    assert [path.name for path in NEGATIVE if path.name.split("-")[0] == code], "no negative case"
    assert [path.name for path in POSITIVE if code in clean(path)], "no positive case"


def test_clean_names_rules():
    assert set().union(*map(clean, POSITIVE)) <= {code for code in TABLE if code[1] == "3"}


def test_the_order_of_without_says_nothing():
    """What is the same compile has one folder, header and SOURCES."""
    assert without_of(["b", "a,b"]) == without_of(["a,b"]) == ("a", "b")
    assert default_out("p", "demo", without_of(["b", "a"])).name == "p.no-a.no-b"


def test_there_are_enough_cases():
    assert len(NEGATIVE) >= 80 and len(POSITIVE) >= 20


def test_each_code_has_a_case():
    """A code without a case, or a case of an unknown code, is a gap."""
    seen = {path.name.split("-")[0] for path in NEGATIVE}
    assert seen <= set(TABLE)
    assert sorted(set(TABLE) - seen - {"P101", "J101"}) == []  # a file that cannot be read: test_cli.py


@pytest.mark.parametrize("rule", rules_profile.PROFILE_RULES + rules_job.JOB_RULES, ids=lambda rule: rule.__module__[-7:] + "." + rule.__name__)
def test_each_rule_is_missed(rule, tmp_path, monkeypatch):
    """Mutation: a rule that is switched off fails at least one case."""
    for module, name in ((rules_profile, "PROFILE_RULES"), (rules_job, "JOB_RULES")):
        monkeypatch.setattr(module, name, [one for one in getattr(module, name) if one is not rule])
    codes = set(re.findall(r'"([PJ]3[0-9]{2})"', __import__("inspect").getsource(rule)))
    if rule.__module__.endswith("rules_job"):  # also a rule that yields through a helper
        codes = codes or {"J318"}
    assert any(fails(path, tmp_path) for path in NEGATIVE if path.name.split("-")[0] in codes)
