"""Rendering: what a template may call, and what holds for every file that is rendered."""

import os
import re
import subprocess
import sys
import types

import pytest
from conftest import FIXTURES, ROOT, TODAY
from generator import render
from generator.bind import bind
from generator.budget import left_out
from generator.inputs import FREE, known
from generator.load import load
from generator.rules import check

JOB = load(FIXTURES / "sweep.yaml", "jobs/sweep.yaml", "J", FREE)
BEGIN, END = "# --- bound values", "# --- end of bound values ---\n"


def bindings(name: str, without=(), job=JOB):
    path = FIXTURES / "rental.yaml" if name == "rental" else ROOT / "profiles" / f"{name}.yaml"
    return bind(load(path, f"profiles/{name}.yaml", "P"), job, tuple(without))


@pytest.fixture(scope="module")
def rendered():
    """profile -> (kind, its files)."""
    all_of_them = {}
    for name in ["rental", *known("profiles")]:
        b = bindings(name)
        all_of_them[name] = (b["KIND"].value, render.render(b))
    return all_of_them


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Renders one template text as box/x.sh (or another target), with libraries from the test's own folder."""
    (tmp_path / "box").mkdir()
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(render, "TEMPLATES", tmp_path)
    render._environment.cache_clear()
    render.lib_text.cache_clear()

    def one(text: str, target: str = "box/x.sh", libs=None, name: str = "rental", without=()):
        for lib, body in (libs or {}).items():
            (tmp_path / "lib" / f"{lib}.bash").write_text(body)
        (tmp_path / f"{target}.j2").parent.mkdir(exist_ok=True)
        (tmp_path / f"{target}.j2").write_text(text)
        path = FIXTURES / "rental.yaml"
        b = bind(load(path, f"profiles/{name}.yaml", "P"), JOB, tuple(without))
        return render._render_one(b, target, f"{target}.j2")

    yield one
    render._environment.cache_clear()
    render.lib_text.cache_clear()


HEADER = """#!/usr/bin/env bash
# x.sh: do a thing.
# Generated; do not edit. Source: templates/box/x.sh.j2
# To change it, edit the source or profiles/rental.yaml, then: make profile=rental job=sweep
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
"""


def test_the_header(page):
    """F20 F45: an explicit PATH and strict mode; the file says what it is and how it is changed."""
    text = page('{{ header("do a thing.") }}\n')
    assert text.startswith(HEADER) and text.endswith("\nreadonly PROG=x.sh\n")


def test_the_locale_loses_its_comma_and_keeps_its_letters(page):
    """Case 86: numbers and order do not follow the locale, UTF-8 names stay whole."""
    text = page('{{ header("do a thing.") }}\nprintf "%s %s %s\\n" "${LC_ALL-unset}" "$LANG" "$LC_NUMERIC"\n')
    done = subprocess.run(["bash", "-c", text], env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "LANG": "xx"}, capture_output=True, text=True, check=True)
    assert done.stdout == "unset C.UTF-8 C\n"


def test_calls(page):
    block = "{{ bound_begin() }}\n%s\n{{ bound_end() }}\n"
    assert page(block % "{{ const('GRACE_S') }}").endswith("readonly GRACE_S=30\n" + END)
    assert "\nDATA_DIR=${DATA_DIR-/data}\n" in page(block % "{{ override('DATA_DIR') }}")
    assert "\nPROXY_HOOK=${PROXY_HOOK-}\n" in page(block % "{{ override('PROXY_HOOK') }}")
    assert "\nreadonly -a REQUIRED=(\n  best.pth\n  best_metrics.json\n)\n" in page(block % "{{ array('REQUIRED') }}")
    assert "\nreadonly -a POWER_OFF_COMMAND=()\n" in page(block % "{{ array('POWER_OFF_COMMAND') }}")
    assert "without volume ---" in page(block % "{{ const('DURABLE_TIER') }}", without=("volume",))


def test_python_and_markdown_pages(page):
    text = page("{{ header('v.') }}\n{{ bound_begin() }}\n{{ const('JOB') }}\n{{ array('REQUIRED') }}\n{{ const('SSH_COPY') }}\n{{ bound_end() }}\n", "local/x.py")
    names: dict = {}
    exec(text, names)  # noqa: S102
    assert names["JOB"] == "sweep" and names["REQUIRED"] == ["best.pth", "best_metrics.json"] and names["SSH_COPY"] is True
    assert page("{{ title | md }} {{ b.DATA_DIR.value | code }} {{ cell_count }} {{ gb(budget.data.total_bytes) }}", "runbook/x.md") == "Example Pod `/data` 4 11"


@pytest.mark.parametrize("text", [
    "{{ const('GRACE_S') }}",  # outside of the block
    "{{ bound_begin() }}\n{{ const('GRACE') }}\n{{ bound_end() }}",  # no such value
    "{{ bound_begin() }}\n{{ const('REQUIRED') }}\n{{ bound_end() }}",  # a list is no constant
    "{{ bound_begin() }}\n{{ override('GRACE_S') }}\n{{ bound_end() }}",
    "{{ bound_begin() }}\n",  # never closed
    "{{ lib('nothing') }}",
    "{{ 'text' }}",  # no filter
    "{{ nothing }}",
    "{{ header('x' ",  # not a template
    "{{ title | default('x') | md }}",
])
def test_a_bad_template_is_a_bug_here(page, text):
    """S8: an undefined name or a value without a filter never becomes text; the message says template and line."""
    with pytest.raises(render.TemplateBug, match=r"templates/box/x\.sh\.j2"):
        page(text)


def test_libraries_come_once_and_after_what_they_need(page):
    libs = {"a": "# a\n# needs: b\na() { :; }\n", "b": "# b\n# needs:\nb() { echo ${#x[@]} {{ x }}; }\n", "c": "# c\n# needs: a b    reads: X\nc() { :; }\n"}
    text = page("{{ lib('c') }}\n{{ lib('a', 'b') }}\n", libs=libs)
    assert text.index("b() {") < text.index("a() {") < text.index("c() {") and text.count("a() {") == 1
    assert "${#x[@]} {{ x }}" in text  # Jinja has not read it
    (render.TEMPLATES / "lib" / "p.py").write_text("# p\nX = '{{ x }}'\n")  # a Python page takes .py, whose needs line may be left out
    assert "X = '{{ x }}'" in page("{{ lib('p') }}\n", "local/x.py")
    with pytest.raises(render.TemplateBug, match="ring"):
        page("{{ lib('d') }}", libs={"d": "# d\n# needs: e\n", "e": "# e\n# needs: d\n"})


def test_every_kind_has_its_files(rendered):
    """The table of docs/architecture.md; a notebook and Kubernetes have nothing that goes over ssh."""
    for name, (kind, files) in rendered.items():
        for folder, names in render.scripts(kind).items():
            assert {f"{folder}/{one}" for one in names} <= files.keys(), name
        assert ("local/push.sh" in files) == (kind in ("owned", "ssh-rental", "cloud-vm", "slurm"))
        assert {"RUNBOOK.md", "box/queue.tsv"} <= files.keys()
        for path, output in files.items():
            assert output.executable == path.endswith((".sh", ".py"))


def test_below_the_block_nothing_depends_on_the_profile(rendered):
    """Review one, and the rest is data: the same bytes for every profile of a kind."""
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for name, (kind, files) in rendered.items():
        for path, output in files.items():
            text = output.data.decode()
            if not path.endswith((".sh", ".py")) or path == "notebook/install_cell.py":  # that one carries scripts with their blocks
                continue
            assert text.count(BEGIN) == 1 and text.count(END) == 1, (name, path)
            below = text.split(END, 1)[1]
            first, old = seen.setdefault((kind, path), (name, below))
            assert old == below, f"{path} differs below the block for {first} and {name}"
    assert seen


def test_every_file_has_unix_line_ends_and_no_placeholder(rendered):
    """S8 S21 case 14: LF only, a newline at the end, no template mark and no unfilled field left."""
    for name, (_, files) in rendered.items():
        for path, output in files.items():
            assert b"\r" not in output.data and output.data.endswith(b"\n"), (name, path)
            assert not re.search(rb"\{\{ |#% ", output.data), (name, path)


def test_nothing_of_this_machine_is_in_the_output(rendered):
    """S88: no path of the compiling machine, no host name, and of home folders only those that the profile itself names."""
    host = os.uname().nodename
    for name, (_, files) in rendered.items():
        given = (FIXTURES / "rental.yaml" if name == "rental" else ROOT / "profiles" / f"{name}.yaml").read_text(encoding="utf-8")
        for path, output in files.items():
            text = output.data.decode()
            assert str(ROOT) not in text and (len(host) < 6 or host not in text), (name, path)
            homes = set(re.findall(r"/(?:home|Users)/[a-z]+", text))
            assert all(home in given for home in homes), (name, path, homes)


PROBE = """
import hashlib, sys
sys.path[:0] = [{root!r}, {tests!r}]
from test_render import bindings
from generator import render
from generator.write import sources
b = bindings("rental")
files = render.render(b)
digest = hashlib.sha256(sources(b, files))
for path in files:
    digest.update(path.encode() + files[path].data)
print(digest.hexdigest())
"""


def test_the_same_bytes_everywhere(tmp_path):
    """Another HOME, time zone, locale, umask, folder and hash seed make no difference."""
    script = PROBE.format(root=str(ROOT), tests=str(ROOT / "tests/unit"))
    seen = set()
    for home, zone, locale, seed, mask in (("/", "UTC", "C", "0", 0o22), (str(tmp_path), "Asia/Shanghai", "C.UTF-8", "1", 0o77), ("/nowhere", "America/Lima", "tr_TR.UTF-8", "4242", 0)):
        env = {"PATH": os.environ["PATH"], "HOME": home, "TZ": zone, "LC_ALL": locale, "LANG": locale, "PYTHONHASHSEED": seed}
        seen.add(subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True, umask=mask).stdout)
    assert len(seen) == 1


def test_every_profile_compiles_with_every_job():
    """S7: all that is shipped passes the rules that it is shipped with."""
    for job_name in known("jobs"):
        job = load(ROOT / "jobs" / f"{job_name}.yaml", f"jobs/{job_name}.yaml", "J", FREE)
        for name in known("profiles"):
            profile = load(ROOT / "profiles" / f"{name}.yaml", f"profiles/{name}.yaml", "P")
            assert profile.diagnostics == [] and [one for one in check(profile, job, (), TODAY) if one.severity == "error" and one.code != "P318"] == []


def test_scripts_keep_unix_line_ends_in_git():
    """S21: git never turns them into Windows lines."""
    lines = (ROOT / ".gitattributes").read_text(encoding="utf-8").split("\n")
    assert "*.sh text eol=lf" in lines and any(line.startswith("out/**") and "eol=lf" in line for line in lines)


def test_no_secret_of_the_environment_reaches_the_output(tmp_path):
    """S43 case 15: a script names a variable, and holds no value of one, not even where it is set while compiling."""
    env = {**os.environ, "HF_TOKEN": "canary-4711", "WANDB_API_KEY": "canary-4711", "RUNPOD_API_KEY": "canary-4711"}
    subprocess.run([sys.executable, "-m", "generator", "compile", "runpod", "--job", str(FIXTURES / "sweep.yaml"), "--out", str(tmp_path / "o")],
                   cwd=ROOT, env=env, check=True, capture_output=True)
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "o").rglob("*") if path.is_file()]
    assert texts and not any("canary-4711" in text for text in texts) and any("WANDB_API_KEY" in text for text in texts)


def test_every_profile_compiles_without_its_optional_tiers():
    """The survival proof is done again, and no folder stays on a tier that the renter has not."""
    seen = 0
    for name in known("profiles"):
        profile = load(ROOT / "profiles" / f"{name}.yaml", f"profiles/{name}.yaml", "P")
        optional = [tier["name"] for tier in profile.data["storage"]["tiers"] if tier.get("optional")]
        for without in {*((one,) for one in optional), *([tuple(optional)] if optional else [])}:
            found = check(profile, JOB, without, TODAY)
            assert [one for one in found if one.severity == "error" and one.code != "P318"] == [], (name, without)
            b = bind(profile, JOB, without)
            for place in ("DATA_DIR", "DURABLE_DIR", "SCRATCH", "HF_HOME", "CRED_FILE"):
                assert not left_out(b[place].value, profile.data, without), (name, without, place)
            assert b["DURABLE_TIER"].value not in without and b["DATA_TIER"].value not in without
            seen += 1
    assert seen > 10


@pytest.mark.parametrize(("place", "word"), [("jobs/sweep.yaml", "job=sweep"), ("tests/fixtures/sweep.yaml", "job=tests/fixtures/sweep.yaml"), ("sweep.yaml", "job=/path/to/sweep.yaml")])
def test_the_command_that_makes_it_again_finds_the_job(place, word):  # S1 S88: as it is typed, and no path of anybody's
    b = types.SimpleNamespace(
        profile_doc=types.SimpleNamespace(file="profiles/runpod.yaml", name="runpod"), job_doc=types.SimpleNamespace(file=place, name="sweep"), without=("network-volume",)
    )
    assert str(render.make_command(b)) == f"make profile=runpod {word} without=network-volume"
