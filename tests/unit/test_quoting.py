"""Quoting: no value gets out of its place. S43 T8(by the profile) cases 8 and 10; the values are run under bash."""

import ast
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import FIXTURES
from generator import cells, quote, render
from generator.bind import bind
from generator.inputs import FREE
from generator.load import load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HOSTILE = [
    "$(touch PWNED)", "`touch PWNED`", "; touch PWNED", "| touch PWNED", "> PWNED", "&& touch PWNED #", "'; touch PWNED; '", '"; touch PWNED; "',
    "\\", "a\\", "\\\\'", "'\"'\"'", "-n", "--help", "-e x", "*", "?", "[a-z]", "~", "~root", "~/x", "${HOME}", "$HOME", "$'\\x41'", "}", "${X-}", "}; touch PWNED; {",
    "!!", "!x", "a b", " a ", "  ", "\t", "a\tb", "a\nb", "\n", "a\n", "a\r\n", "\x07", "\x1b[31m", "\x7f", "é", "算力", "\u200b", "😀", "#x", "a #x", "=", "a=b", "x=$(touch PWNED)",
    "{instance}", "{a,b}", "%s%n", "<<EOF", "(", ")", "((1))", "[[", "<(touch PWNED)", "\x85", "\u2028", "0", "-0", "00", "1e3",
]
text = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=30),
                 st.lists(st.sampled_from(HOSTILE), min_size=2, max_size=4).map("".join))
quick = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": "/nowhere"}


def bash(script: str, cwd: Path, *arguments: str) -> list[str]:
    """What a script prints, cut at NULs. It leaves no file behind."""
    done = subprocess.run(["bash", "-c", script, "bash", *arguments], cwd=cwd, env=ENV, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(cwd.iterdir()) == []
    return done.stdout.decode().split("\0")[:-1]


@pytest.fixture
def empty(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@quick
@given(st.lists(text, min_size=1, max_size=8))
def test_a_word_comes_back_equal(empty, values):
    """As a word, in an assignment, behind ${X-…}, in an array; and through two shells as ssh does it."""
    lines = []
    for value in values:
        word = quote.word(value)
        assert "\n" not in word
        lines += [f"printf '%s\\0' {word}", f"x={word}; printf '%s\\0' \"$x\"", f"unset u; x=${{u-{word}}}; printf '%s\\0' \"$x\"",
                  f"a=(\n  {word}\n); printf '%s\\0' \"${{a[@]}}\"", f"bash -c {quote.word(f'printf %s%b {word} ' + chr(39) + chr(92) + '0' + chr(39))}"]
    assert bash("\n".join(lines), empty) == [value for value in values for _ in range(5)]


@quick
@given(text)
def test_an_override_from_the_environment_wins_also_when_it_is_empty(empty, value):
    """S49 T1: an empty override stays empty, and is never another platform's default."""
    assert bash(f"X=; X=${{X-{quote.word(value)}}}; printf '%s\\0' \"$X\"", empty) == [""]


@quick
@given(text)
def test_a_column_comes_back_equal(empty, value):
    """Case 8: a cell's command reaches `bash -c` with each value as one argument."""
    job = {"matrix": {"v": [value]}, "cell": "x", "command": 'printf "%s\\0" {v}'}
    (name, command), = cells.cells(job)
    assert bash(command, empty) == [value]


@pytest.mark.parametrize("command, value, said", [
    ("f() { printf '<%s>' \"$@\"; }; f a{v}>&1", "2", "<a2>"), ("f() { printf '<%s>' \"$@\"; }; f {v}>/dev/null; f x", "1", "<x>"), ("printf '<%s>' {v}</dev/null", "0", "<0>"),
    ("printf '<%s>' {{v}}", "a,b", "<{a,b}>"), ("printf '<%s>' x{{v},c}", "a", "<xa><xc>"), ("{v} || printf no", "A=1", "no"), ("{v} 2>/dev/null || printf no", "if", "no"), ("{v} true 2>/dev/null || printf no", "coproc", "no")])
def test_a_value_cannot_get_out_of_its_place_anywhere_in_a_command(empty, command, value, said):
    """Case 8: before a redirection, between braces, where a command's name stands."""
    ((_, line),) = cells.cells({"matrix": {"v": [value]}, "cell": "x", "command": command})
    done = subprocess.run(["bash", "-c", line], cwd=empty, env=ENV, capture_output=True, check=False, text=True)
    assert done.stdout == said, line


@quick
@given(text)
def test_a_cell_value_is_one_word_of_any_shell(empty, value):
    """`sh` may be dash or busybox: single quotes are all that it takes."""
    done = subprocess.run(["sh", "-c", f"printf '%s\\0' {quote.single(value)}"], cwd=empty, env=ENV, capture_output=True, check=True)
    assert done.stdout.decode() == value + "\0" and list(empty.iterdir()) == []


@quick
@given(text)
def test_json_is_yaml(value):
    """A value in a YAML file comes back equal from a YAML 1.1 reader and from a JSON reader."""
    out = quote.to_json({"key": [value]})
    assert "\n" not in out and json.loads(out) == yaml.safe_load(out) == {"key": [value]}


@quick
@given(text)
def test_a_python_literal_comes_back_equal(value):
    assert ast.literal_eval(quote.python(value)) == value and "\n" not in quote.python(value)


@quick
@given(text)
def test_a_comment_stays_one(empty, value):
    line = quote.comment(value)
    assert "\n" not in line and bash(f"# {line}\nprintf 'x\\0'", empty) == ["x"]


@quick
@given(text)
def test_markdown_stays_in_its_cell(value):
    """In a table cell neither text nor code opens markup, ends the cell or the line."""
    for out in (quote.md(value), quote.code(value)):
        assert "\n" not in out and not re.search(r"(?<!\\)(?:\\\\)*\|", out)
        assert all(c.isprintable() for c in out)
    assert not re.search(r"(?<!\\)<", quote.md(value))
    bare = quote.code(value)
    assert not re.search(r"<(?!/?code>)", bare) or bare.startswith("`")
    assert bare.startswith("<code>") or (bare.startswith("`") and bare.count("`") == 2)


EVERYTHING = """{{ header("every value.") }}

{{ bound_begin() }}
%s
{{ load_action() }}
{{ bound_end() }}
main() {
  local verb
  %s
  for verb in "${ACTION_VERBS[@]}"; do
    load_action "$verb" || return
    printf '%%s\\0' "$ACTION_LIKE" "$ACTION_BILLED" "$ACTION_NOTE" "$ACTION_SOURCE" "$ACTION_GONE_ABSENT" \\
      ${ACTION_COMMAND[@]+"${ACTION_COMMAND[@]}"} ${ACTION_STEPS[@]+"${ACTION_STEPS[@]}"} ${ACTION_GONE_STEPS[@]+"${ACTION_GONE_STEPS[@]}"}
  done
}
main
"""
OVERRIDES = "RUN DATA_DIR DURABLE_DIR SCRATCH HF_HOME CRED_FILE PROXY_HOOK PY DETACH".split()


def put(value, where: dict | list) -> None:
    """Replace every text below `where`, but those that are kinds or names for the compiler."""
    for key in where if isinstance(where, dict) else range(len(where)):
        here = where[key]
        if isinstance(here, (dict, list)):
            put(value, here)
        elif isinstance(here, str) and key not in ("kind", "name", "like", "where", "verb", "meter_stop") and not isinstance(where, list):
            where[key] = value
        elif isinstance(here, str) and isinstance(where, list):
            where[key] = value


@pytest.fixture
def documents():
    profile = load(FIXTURES / "rental.yaml", "rental.yaml", "P")
    job = load(FIXTURES / "sweep.yaml", "sweep.yaml", "J", FREE)
    return profile, job


@quick
@given(value=text)
def test_hostile_text_in_every_field_comes_back_equal(tmp_path_factory, monkeypatch, value):
    """Case 8, S43: all eight fields and the job hold the text; what the script holds is the same text, and nothing ran."""
    profile = load(FIXTURES / "rental.yaml", "rental.yaml", "P")
    job = load(FIXTURES / "sweep.yaml", "sweep.yaml", "J", FREE)
    keep = profile.data["storage"]["data"], profile.data["storage"]["durable"]
    put(value, profile.data)
    profile.data["storage"]["data"], profile.data["storage"]["durable"] = ["local-disk"], ["volume"]
    profile.data["launch"]["surface"]["danger_clocks"] = [value]
    profile.data["interruption"]["clocks"][0]["id"] = value
    assert keep
    for key in ("command", "secrets"):
        job.data[key] = value if key == "command" else [value]
    put(value, job.data["artifacts"])
    put(value, job.data["smoke"])
    put(value, job.data["data"])
    b = bind(profile, job)
    folder = tmp_path_factory.mktemp("templates")
    (folder / "box").mkdir()
    binds, prints, want = [], [], []
    for name, bound in b.by_name.items():
        call = "array" if bound.kind == "array" else "override" if name in OVERRIDES else "const"
        binds.append(f"{{{{ {call}('{name}') }}}}")
        prints.append(f"printf '%s\\0' \"${{#{name}[@]}}\" ${{{name}[@]+\"${{{name}[@]}}\"}}" if call == "array" else f"printf '%s\\0' \"${name}\"")
        if call == "array":
            want += [str(len(bound.value)), *bound.value]
        else:
            want.append(str(bound.value).lower() if bound.kind == "bool" else str(bound.value))
    for action in b.actions:
        texts, arrays = render.action_fields(b, action)
        want += [texts["LIKE"], texts["BILLED"], texts["NOTE"], texts["SOURCE"], texts["GONE_ABSENT"], *arrays["COMMAND"], *arrays["STEPS"], *arrays["GONE_STEPS"]]
    (folder / "box" / "x.sh.j2").write_text(EVERYTHING % ("\n".join(binds), "\n  ".join(prints)))
    monkeypatch.setattr(render, "TEMPLATES", folder)
    render._environment.cache_clear()
    script = render._render_one(b, "box/x.sh", "box/x.sh.j2")
    render._environment.cache_clear()
    empty = tmp_path_factory.mktemp("empty")
    assert bash(script, empty) == want
    assert value == "" or value in want


def test_the_shipped_scripts_hold_hostile_text_as_data(tmp_path, documents):
    """Case 8 on the real templates: each script of a hostile profile parses, and its --help runs nothing of it."""
    profile, job = documents
    for field in ("title",):
        profile.data["launch"][field] = "$(touch PWNED) `touch PWNED` '; touch PWNED; \" \\"
    for action in profile.data["teardown"]["actions"]:
        action["note"] = action["storage_billed"] = "$(touch PWNED)'\"\\"
    profile.data["gotchas"][0]["symptom"] = "| a <script> $(touch PWNED) `x` |"
    profile.data["network"]["mirrors"] = {"HF_ENDPOINT": "$(touch PWNED)"}
    profile.data["interruption"]["clocks"][0]["effect"] = "\"$(touch PWNED)\""
    job.data["smoke"]["command"] = "echo '$(touch PWNED)'; `touch PWNED`"
    files = render.render(bind(profile, job))
    for path, output in files.items():
        place = tmp_path / "out" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(output.data)
        if path.endswith(".sh"):
            here = tmp_path / "cwd"
            here.mkdir(exist_ok=True)
            done = subprocess.run(["bash", str(place), "--help"], cwd=here, env=ENV, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (path, done.stderr)
            assert list(here.iterdir()) == []
        if path.endswith(".py"):
            compile(output.data, path, "exec")


def test_optional_fields_make_no_word_vanish():
    """Case 10: an array is rendered one element a line, an empty one as ()."""
    assert render.words([], "  ") == "()" and render.words(["a", "", "b c"], "  ") == '(\n  a\n  \'\'\n  "b c"\n)'


def test_a_nul_is_refused():
    with pytest.raises(ValueError):
        quote.word("a\0b")




@pytest.mark.parametrize("value, written", [
    ("runpod", "runpod"), ("", "''"), ("a b", '"a b"'), ("~/runs", "\\~/runs"), ("~", "\\~"), ("~/a b", '\\~"/a b"'), ("$HOME/runs", '"\\$HOME/runs"'), ("a=b", '"a=b"'),
    ("it's", '"it\'s"'), ("a\nb", "$'a\\nb'"), ("算力", '"算力"'), ("{instance}", '"{instance}"'),
])
def test_how_a_word_is_written(value, written):
    """Readable in a review, and nothing that a linter takes for a hope that it expands."""
    assert quote.word(value) == written


def test_how_a_comment_is_written():
    assert quote.comment("a\n b\x1b c  d") == "a b c d"


@quick
@given(text)
def test_a_directive_takes_only_what_needs_no_quoting(value):
    """Case 67: a blank in a directive's value swallows the rest, so it is refused and never rendered."""
    try:
        assert re.fullmatch(r"[A-Za-z0-9_@%+,./:=-]+", quote.directive(value)) and quote.directive(value) == value
    except ValueError:
        assert not re.fullmatch(r"[A-Za-z0-9_@%+,./:=-]+", value)
