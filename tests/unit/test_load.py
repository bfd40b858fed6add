"""Loading: what a person wrote is what the script gets, byte for byte, or one clear finding. Cases 1 2 4 5 6, S21."""

import re
import resource
import time

import pytest
from conftest import check_texts, load_text
from generator import quote
from generator.bind import bind
from generator.diagnostics import Report
from generator.load import scalar
from generator.secrets import _FORMS, masked, secret_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("written", ["12.10", "007", "010", "08", "1_000", "2026-01-02", "1e3", "0x1F", "1:30:00", "no", "on", "3.10", "True", "~x", "1.0"])
def test_the_same_verdict_for_every_surprising_spelling(tmp_path, rental, written):
    """Cases 1 and 4: bare, each is an error whose hint is the quoted form; quoted, the script gets it byte for byte."""
    text = rental.replace("title: Example Pod", f"title: {written}")
    profile, found = load_text(tmp_path, text, "P")
    if written == "~x":  # text to every reader
        assert found == [] and profile.data["launch"]["title"] == "~x"
        return
    assert len(found) == 1 and f'"{written}"' in found[0].hint and found[0].span.line == 4 and profile.raw(("launch", "title")) == written
    p, j, found = check_texts(tmp_path, rental.replace("title: Example Pod", f"title: '{written}'"))
    assert found == [] and p.data["launch"]["title"] == written


@pytest.mark.parametrize("written", ["0.10", "1e-2", "012", "no", "on", "1_000", "2026-01-02", "0x1F", "true", "null", "+1", "1.", "12:30", "-0", "NaN"])
def test_a_column_is_the_text_as_written(tmp_path, rental, sweep, written):
    """Case 1: no value of a matrix is changed on its way into the queue."""
    job = sweep.replace("lr: [0.10, 1e-2]", f"lr: [{written}]").replace("cell: 'lr{lr}_w{width}'", "cell: 'w{width}'")
    p, j, found = check_texts(tmp_path, rental, job)
    assert found == [] and j.data["matrix"]["lr"] == [written]
    from generator.cells import queue_tsv

    assert f"--lr {written} ".encode() in queue_tsv(j.data).replace(b"'", b"")


def test_unambiguous_scalars():
    assert [scalar(text)[0] for text in ("true", "false", "null", "", "7", "-3", "0", "2.50", "abc", "1.2.3", "v1", "1 GB", "y", "N")] == \
        [True, False, None, None, 7, -3, 0, 2.5, "abc", "1.2.3", "v1", "1 GB", "y", "N"]
    assert all(scalar(text)[1] for text in ("yes", "No", "OFF", "TRUE", "Null", "1_0", "0o17", "0b1", "1e3", "1.", ".5", "+1", "1:30", ".inf", ".NaN", "2026-08-01", "9" * 30))


def bomb() -> str:
    head = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    return head + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join('*' + chr(97 + i) for _ in range(9))}]\n" for i in range(9))


@pytest.mark.parametrize("name, text, code", [
    ("bomb", bomb(), "107"), ("brackets", "x: " + "[" * 3000 + "]" * 3000, "107"), ("a million brackets", "x: " + "[" * 1_000_000, "107"),
    ("dashes", "- " * 3000, "107"), ("braces", "{a: " * 3000, "107"), ("questions", "? " * 5000, "107"), ("keys", "".join(" " * i + f"k{i}:\n" for i in range(900)), "107"),
])
def test_what_explodes_is_refused_at_once(tmp_path, name, text, code):
    """Case 6: bounded time and memory, one finding, no traceback."""
    start = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, found = load_text(tmp_path, text, "P")
    assert [one.code for one in found] == ["P" + code]
    assert time.monotonic() - start < 10 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_file_that_is_merely_long_is_no_bomb(tmp_path):
    """Case 6, the control: 5 MB without an alias. It is refused for what it is, not as a bomb."""
    _, found = load_text(tmp_path, "gotchas:\n" + "- abcdefg\n" * 500_000, "P")
    codes = {one.code for one in found}
    assert "P107" not in codes and "P202" in codes and len(found) < 1000


def test_an_alias_of_a_few_values_is_fine(tmp_path, rental):
    text = rental.replace("survives: {ssh_drop: true, restart: true, stop: true, destroy: false}", "survives: &row {ssh_drop: true, restart: true, stop: true, destroy: false}")
    text = text.replace("survives: {ssh_drop: true, restart: false, stop: false, destroy: false}", "survives: *row")
    profile, found = load_text(tmp_path, text, "P")
    assert found == [] and profile.data["storage"]["tiers"][2]["survives"]["stop"] is True


def test_both_places_of_a_double_key_are_named(tmp_path):
    """Case 5."""
    _, found = load_text(tmp_path, "launch: {}\nstorage: {}\n\nlaunch: {}\n", "P")
    assert [(one.code, one.span.line) for one in found if one.code == "P108"] == [("P108", 4)] and "line 1" in found[0].message and "line 4" in found[0].message


def test_text_that_is_not_ascii_keeps_its_place(tmp_path):
    """Columns count characters, so the caret stands right behind Chinese text."""
    _, found = load_text(tmp_path, "launch: {title: 算力平台, kind: 1:30:00}\n", "P")
    assert [(one.span.line, one.span.col) for one in found if one.code == "P110"] == [(1, 29)]


def test_all_findings_of_one_file_come_at_once(tmp_path, rental):
    text = rental.replace("title: Example Pod", "titel: x").replace("kind: ssh-rental", "kind: rental").replace("interval_s: 15", "interval_s: 1").replace("  data: [local-disk]\n", "")
    _, found = load_text(tmp_path, text, "P")
    assert sorted(one.code for one in found) == ["P201", "P202", "P202", "P204", "P206"]


def test_bound_values_are_the_written_text(tmp_path, rental, sweep):
    """Case 4, byte for byte through the whole compiler."""
    rental = rental.replace("DATA_DIR: /data", "DATA_DIR: '/data/007/1e3'").replace("CRED_FILE: /root/.gpu-runbook.env", 'CRED_FILE: "/root/012 é"')
    p, j, found = check_texts(tmp_path, rental, sweep)
    assert found == []
    bound = bind(p, j)
    assert bound["DATA_DIR"].value == "/data/007/1e3" and bound["CRED_FILE"].value == "/root/012 é"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(blacklist_categories=("Cs",)), max_size=40), st.sampled_from("\"'"))
def test_quoted_text_is_loaded_byte_for_byte_or_refused(tmp_path, rental, value, mark):
    """Whatever stands in quotes is either what the title becomes, exactly, or a finding at its place."""
    if mark == '"':
        written = quote.to_json(value)
    else:
        value = value.replace("\n", "")  # in single quotes YAML itself folds lines
        written = "'" + value.replace("'", "''") + "'"
    profile, _, found = check_texts(tmp_path, rental.replace("title: Example Pod", f"title: {written}"))
    if not found:
        assert profile.data["launch"]["title"] == value and profile.raw(("launch", "title")) == value
    else:
        assert {one.span.line for one in found} <= {4, 5} or "\n" in value
    plain = value.isprintable() and 0 < len(value) < 150 and not any(c in "\u00a0\u3000" for c in value) and not secret_in(value)
    assert not (plain and found), found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text(st.sampled_from("ab:-[]{}&*!|>'\"%@`#,? \n\t\r\\~0129.eE+_\u00a0"), max_size=60))
def test_any_bytes_give_findings_and_never_a_traceback(tmp_path, data):
    """Case 6 and its kind: whatever a file holds, there is a finding with a place in it."""
    for letter in "PJ":
        doc, found = load_text(tmp_path, data, letter)
        assert any(one.severity == "error" for one in found)
        for one in found:
            assert 1 <= one.span.line <= max(1, len(doc.lines)) + 1 and one.span.col >= 1
        report = Report(found, {doc.file: doc.lines})
        assert "\x1b" not in report.text() and report.json() and report.github()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_profile_with_any_value_anywhere_never_stumbles(tmp_path, rental, sweep, data):
    """One to three scalars of the bases are replaced by anything: findings or none, never an exception."""
    texts = []
    for text in (rental, sweep):
        spots = [match.span(1) for match in re.finditer(r"(?<=: )([A-Za-z0-9/$_.-]+|\"[^\"]*\"|'[^']*')", text)]
        for start, end in sorted(data.draw(st.lists(st.sampled_from(spots), max_size=3, unique=True)), reverse=True):
            new = data.draw(st.sampled_from(["~", "[]", "{}", "[x]", "{a: b}", "true", "1", "-1", "1.5", "''", "'x'", "\"a\\nb\"", "x", "/", "$HOME", "99999999999", "'512 MB'", "[1, 2]", "{instance}"]))
            text = text[:start] + new + text[end:]
        texts.append(text)
    p, j, found = check_texts(tmp_path, *texts)
    if not any(one.severity == "error" for one in found):
        assert bind(p, j)


def test_no_rule_computes_with_a_value_of_the_wrong_kind(tmp_path, sweep):
    """'512 MB' times a thousand million would be gigabytes of text: the value is taken out before the rules run."""
    job, found = load_text(tmp_path, sweep.replace("disk_gb: 2.5", "disk_gb: 512 MB").replace("lr: [0.10, 1e-2]", "lr: [[0.1], 2]"), "J")
    assert {one.code for one in found} == {"J203"} and "disk_gb" not in job.data["needs"] and "lr" not in job.data["matrix"]


@pytest.mark.parametrize("part", ["x", "-", "x+", "a://", "a://b:", "--token ", "--token-", "bearer ", "token=", "-----BEGIN A", "sk-", "eyJ", "local-", " ", "--"])
def test_a_look_for_secrets_takes_no_longer_than_the_text(part):
    """Case 6 and its kind: a line of a million characters, whatever they are, is looked at in bounded time."""
    start = time.monotonic()
    secret_in(part * (1_000_000 // len(part)) + "!token")
    masked(part * (1_000_000 // len(part)))
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("old, new, words", [
    ("title: Example", "title\uff1aExample", "full-width colon"), ("image: {reusable: true, how: save it as a template,", "image: {reusable: true,", "How to save it"),
    ("HF_ENDPOINT:", "hf endpoint:", "capital letters"), ("interval_s: 15", "interval_s: -0", "write 0 for the number"), ("\ngotchas:", "\n...\nfoo\ngotchas:", "look at this line")])
def test_each_finding_says_what_to_write(tmp_path, rental, old, new, words):
    assert old in rental
    _, found = load_text(tmp_path, rental.replace(old, new), "P")
    assert any(words in one.hint for one in found), found


def test_every_negative_case_says_what_to_write(tmp_path):
    """Issue: every message tells what to write. Over all case files."""
    from test_cases import NEGATIVE, run_case

    assert [(path.name, one.code) for path in NEGATIVE for one in run_case(path, tmp_path)[2] if not one.hint] == []


def test_a_finding_on_a_huge_value_is_a_line_that_one_can_read(tmp_path, rental, sweep):
    """Case 6 and its kind: bounded time, a short message."""
    start = time.monotonic()
    p, j, found = check_texts(tmp_path, rental, sweep.replace("width: [32, 64]", 'width: [32, "' + "x" * 2_000_000 + '"]'))
    report = Report(found, {j.file: j.lines})
    assert report.failed and max(map(len, report.text().split("\n"))) < 700 and max(map(len, report.json().split("\n"))) < 700
    assert time.monotonic() - start < 30


KEYS = "aB3" * 16
SAMPLES = [
    "hf_" + KEYS, "rk-" + KEYS, "pk_live_" + KEYS, "ghs_" + KEYS, "glpat-" + KEYS, "rpa_" + KEYS, "xoxb-" + KEYS, "dckr_oat_" + KEYS, "npm_" + KEYS,
    "local-" + "0a" * 20, "KGAT_" + KEYS, "ASIA" + "A1" * 8, "ya29." + KEYS, "eyJ" + KEYS + "." + KEYS + ".", "-----BEGIN RSA PRIVATE KEY", "ftp://me:" + KEYS + "@there",
    "Authorization: BEARER " + KEYS,
]  # fmt: skip


def test_each_known_form_of_a_secret_is_seen_and_masked():
    """Case 15, P316: the cheap look before the forms lets none of them by."""
    assert len(SAMPLES) == len(_FORMS)
    for sample, (name, _, _) in zip(SAMPLES, _FORMS):
        assert secret_in(f"say {sample} here") == name
        assert sample not in masked(f"say {sample} here") and KEYS not in masked(f"say {sample} here")
    assert not secret_in("asia, https://example.invalid/a, local-time and a bearer of news")
