"""The command line as a person types it: exit codes, findings, nothing written on an error, no traceback."""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from conftest import FIXTURES, ROOT, TODAY
from generator import cli, commands, inputs, rules

SWEEP = str(FIXTURES / "sweep.yaml")


class Day(datetime.date):
    """The day on which the fixtures are fresh."""

    @classmethod
    def today(cls):
        return TODAY


@pytest.fixture
def gr(tmp_path, monkeypatch, capsys):
    """Runs a command line in a copy of the project's inputs; gives code, stdout, stderr."""
    root = tmp_path / "project"
    for folder in ("profiles", "jobs"):
        (root / folder).mkdir(parents=True)
    shutil.copy(FIXTURES / "rental.yaml", root / "profiles/rental.yaml")
    shutil.copy(SWEEP, root / "jobs/demo.yaml")
    for module in (inputs, commands):
        monkeypatch.setattr(module, "ROOT", root)
    # The fixture's facts do not grow old.
    monkeypatch.setattr(rules, "datetime", types.SimpleNamespace(date=Day))

    def run(*words: str):
        inputs._read.cache_clear()  # a process of its own reads the files anew
        try:
            code = cli.run(list(words))
        except SystemExit as leave:
            code = leave.code
        said = capsys.readouterr()
        return code, said.out, said.err

    run.root = root
    return run


def tree(folder: Path) -> dict:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} if folder.exists() else {}


BROKEN = {
    "unknown field": lambda text: text.replace("title: Example Pod", "titel: Example Pod"),
    "missing field": lambda text: text.replace("  title: Example Pod\n", ""),
    "wrong type": lambda text: text.replace("interval_s: 15", "interval_s: often"),
    "bad verb": lambda text: text.replace("meter_stop: terminate", "meter_stop: terminat"),
    "duplicate key": lambda text: text + "launch: {}\n",
    "not YAML": lambda text: "launch: [\n",
    "empty file": lambda text: "",
    "binary": lambda text: "\x00\x01\x02",
    "a list": lambda text: "- x\n",
    "only null": lambda text: "~\n",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_profile_writes_nothing(gr, what):
    """Its findings, exit 1, no traceback, and the output folder as it was, byte for byte."""
    assert gr("compile", "rental")[0] == 0
    before = tree(gr.root / "out")
    place = gr.root / "profiles/rental.yaml"
    place.write_text(BROKEN[what](place.read_text()))
    code, out, err = gr("compile", "rental")
    assert code == 1 and out == "" and "Traceback" not in err
    assert re.match(r"profiles/rental\.yaml:\d+:\d+: error\[P\d{3}\]: ", err)
    assert tree(gr.root / "out") == before != {}


def test_a_finding_looks_like_a_compilers(gr):
    place = gr.root / "profiles/rental.yaml"
    place.write_text(place.read_text().replace("meter_stop: terminate", "meter_stop: terminat"))
    _, _, err = gr("compile", "rental")
    assert err == ("profiles/rental.yaml:66:15: error[P305]: 'terminat' is not the verb of any teardown action\n"
                   "   66 |   meter_stop: terminat\n      |               ^^^^^^^^\n      = hint: did you mean 'terminate'?\n")


def test_each_finding_is_said_once_and_in_the_order_of_the_file(gr):
    place = gr.root / "profiles/rental.yaml"
    place.write_text(place.read_text().replace("  title: Example Pod\n", "").replace("  login_user: root\n", "").replace("DETACH: tmux", "DETACH: screen"))
    _, _, err = gr("compile", "rental")
    lines = [line for line in err.splitlines() if ": error[" in line]
    assert len(lines) == len(set(lines)) == 3 and lines == sorted(lines, key=lambda line: int(line.split(":")[1]))


def test_no_profile_no_render(gr):
    """S7."""
    assert gr("compile")[0] == 2
    code, _, err = gr("compile", "rentel")
    assert code == 2 and "did you mean 'rental'?" in err and not (gr.root / "out").exists()
    assert gr("compile", "no/such.yaml")[0] == 2 and gr("compile", str(gr.root))[0] == 2 and gr("compile", "/dev/zero")[0] == 2
    assert gr("compile", "rental", "--job", "dmo")[2].endswith("did you mean 'demo'?\n")
    assert gr("compil", "rental")[0] == 2 and gr()[0] == 2


def test_all_profiles_in_one_process(gr):
    shutil.copy(FIXTURES / "rental.yaml", gr.root / "profiles/second.yaml")
    code, out, _ = gr("compile", "--all")
    assert code == 0 and "out/rental: " in out and "out/second: " in out
    (gr.root / "profiles/second.yaml").write_text("x: 1\n")
    code, out, err = gr("compile", "rental", "second")
    assert code == 1 and "out/rental: " in out and "P201" in err
    assert gr("compile", "--all", "rental")[0] == 2 and gr("compile", "rental", "second", "--out", "x")[0] == 2


def test_the_output_folder(gr):
    """The default job has no name of its own in the folder's name; another one and a missing tier have."""
    shutil.copy(SWEEP, gr.root / "jobs/other.yaml")
    assert gr("compile", "rental")[1].startswith("out/rental: ")
    assert gr("compile", "rental", "--job", "other")[1].startswith("out/rental.other: ")
    assert gr("compile", "rental", "--job", str(gr.root / "jobs/other.yaml"), "--without", "volume")[1].startswith("out/rental.other.no-volume: ")
    assert "pull-only" in gr("compile", "rental", "--without", "volume")[1]
    said = gr("compile", "rental")[1]
    assert "pull-only" not in said and said.endswith("  read it first: out/rental/RUNBOOK.md\n")
    assert gr("compile", "rental", "--out", str(gr.root / "x"))[0] == 0 and (gr.root / "x/SOURCES.json").exists()


def test_warnings_do_not_stop_a_compile(gr):
    place = gr.root / "profiles/rental.yaml"
    place.write_text(place.read_text().replace("grace_s: null", "grace_s: 5"))
    code, _, err = gr("compile", "rental")
    assert code == 0 and "warning[J314]" in err


def test_a_file_that_cannot_be_read(gr, tmp_path):
    code, _, err = gr("compile", "/proc/self/mem/x.yaml")
    assert code == 2
    if os.geteuid() != 0:
        (gr.root / "profiles/rental.yaml").chmod(0)
        assert "P101" in gr("compile", "rental")[2]
    broken = tmp_path / "loop.yaml"
    broken.symlink_to(broken)
    assert gr("compile", str(broken))[0] == 2 and err


def test_the_files_own_name_is_as_good_as_the_name(gr):
    """`profile=rental.yaml` is what a shell's completion types; a name that is wrong is answered with the nearest."""
    assert gr("compile", "rental.yaml", "--job", "demo.yaml", "--out", str(gr.root / "x"))[0] == 0
    assert gr("compile", "rental", "--job", "demo", "--out", str(gr.root / "y"))[0] == 0
    assert list(tree(gr.root / "x").values()) == list(tree(gr.root / "y").values())
    code, _, err = gr("compile", "rentel.yaml")
    assert code == 2 and "did you mean 'rental'" in err


def test_check_says_all_in_three_forms(gr):
    place = gr.root / "profiles/rental.yaml"
    place.write_text(place.read_text().replace("meter_stop: terminate", "meter_stop: terminat").replace("DETACH: tmux", "DETACH: screen"))
    code, out, _ = gr("check")
    assert code == 1 and "error[P305]" in out and "error[P312]" in out and "2 errors" in out.splitlines()[-1]
    code, out, _ = gr("check", "rental", "--format", "json")
    record = json.loads(out)
    assert code == 1 and record["schema"] == "diagnostics/1" and record["errors"] == 2 and {one["code"] for one in record["diagnostics"]} == {"P305", "P312"}
    assert all(one["line"] > 1 and one["column"] > 1 for one in record["diagnostics"])
    code, out, _ = gr("check", "--format", "github")
    assert code == 1 and out.startswith("::error file=profiles/rental.yaml,line=66,col=15,endColumn=23,title=P305::")
    assert gr("check", "rental", "--format", "xml")[0] == 2


def test_a_message_cannot_forge_a_workflow_command(gr):
    """What is in a file stays text: no line end, no escape sequence."""
    place = gr.root / "profiles/rental.yaml"
    place.write_text(place.read_text().replace("kind: ssh-rental", 'kind: "a\\n::error ::x\\e[31m"'))
    for form in ("github", "text"):
        out = gr("check", "--format", form)[1]
        assert "\n::error ::x" not in out and "\x1b" not in out


def test_diff_shows_what_would_change(gr):
    assert gr("diff", "rental")[:2] == (1, "out/rental: not compiled yet\n")
    gr("compile", "rental")
    assert gr("diff", "rental")[:2] == (0, "") and gr("diff")[0] == 0
    target = gr.root / "out/rental/box/queue.tsv"
    target.write_text(target.read_text() + "x\ty\n")
    (gr.root / "out/rental/extra.txt").write_text("x\n")
    code, out, err = gr("diff", "rental")
    assert code == 1 and "--- a/box/queue.tsv" in out and "-x\ty" in out and "+++ /dev/null" in out and "python -m generator compile rental" in err
    target.unlink()
    assert "+++ b/box/queue.tsv" in gr("diff")[1]


def test_explain_says_where_from_and_where_to(gr):
    code, out, _ = gr("explain", "rental", "GRACE_S")
    assert code == 0 and "GRACE_S = 30" in out and "from    jobs/demo.yaml:9 (save_s)" in out
    assert "profiles/rental.yaml:112 (overrides.DATA_DIR)" in gr("explain", "rental", "DATA_DIR")[1] or "(overrides.DATA_DIR)" in gr("explain", "rental", "DATA_DIR")[1]
    assert "from    jobs/demo.yaml (the file's name)" in gr("explain", "rental", "RUN")[1]
    assert "from    the compiler's default" in gr("explain", "rental", "POWER_OFF_COMMAND")[1]
    code, out, _ = gr("explain", "rental")
    from generator.bind import bind
    from generator.load import load

    names = bind(load(FIXTURES / "rental.yaml", "r", "P"), load(FIXTURES / "sweep.yaml", "s", "J", inputs.FREE)).by_name
    assert code == 0 and all(f"\n{name} = " in "\n" + out for name in names)
    code, _, err = gr("explain", "rental", "GRACE")
    assert code == 2 and "did you mean 'GRACE_S'?" in err


def test_new_is_refused_until_it_is_filled_in(gr):
    code, out, _ = gr("new", "mine")
    assert code == 0 and "profiles/mine.yaml" in out
    code, out, _ = gr("check", "mine")
    assert code == 1 and {line.split("[")[1][:4] for line in out.splitlines() if ": error[" in line} == {"P207"} and "e.g." in out
    assert gr("new", "mine")[0] == 1 and gr("new", "-x")[0] == 2 and gr("new", "a/b")[0] == 2
    assert gr("new", "--job", "mine")[0] == 0
    code, out, _ = gr("check", "rental", "--job", "mine")
    assert code == 1 and "error[J207]" in out


def test_a_filled_skeleton_has_every_required_field(gr):
    """Filling each ??? of a new file leaves no missing and no unknown field."""
    gr("new", "mine")
    gr("new", "--job", "mine")
    for folder in ("profiles", "jobs"):
        place = gr.root / folder / "mine.yaml"
        place.write_text(place.read_text().replace("???", "x1"))
    out = gr("check", "mine", "--job", "mine")[1]
    assert not re.findall(r"\[[PJ]20[12]\].*", out)


def test_list_shows_what_survives(gr):
    code, out, _ = gr("list")
    assert code == 0 and re.search(r"^rental +ssh-rental +terminate +volume\* +2026-08$", out, re.M)
    (gr.root / "profiles/bad.yaml").write_text("x: 1\n")
    code, out, err = gr("list")
    assert code == 1 and "rental" in out and "bad" in err


@pytest.mark.parametrize("command", ["compile", "check", "diff", "explain", "new", "list"])
def test_help_shows_an_example(gr, command):
    code, out, _ = gr(command, "--help")
    example = next(line for line in out.splitlines() if line.startswith("example: python -m generator " + command))
    assert code == 0
    words = example.partition("; ")[0].removeprefix("example: python -m generator ").split()
    if command != "new":  # an example works as it stands
        more = ["--out", str(gr.root / "o")] if command == "compile" else []
        assert program(*words, *more).returncode in ((0, 1) if command == "diff" else (0,)), example


def test_it_runs_as_a_module_from_anywhere(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "generator", "list"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "runpod" in done.stdout
    done = subprocess.run([sys.executable, "-m", "generator", "nothing"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def program(*words: str, env: dict | None = None, **more) -> subprocess.CompletedProcess:
    """The program as a process of its own, from the project's folder."""
    return subprocess.run([sys.executable, "-m", "generator", *words], cwd=ROOT, env={**os.environ, **(env or {})}, capture_output="stdout" not in more, check=False, timeout=60, **more)


@pytest.mark.parametrize("words", [["check", "a" * 300], ["check", "./" + "a" * 300 + ".yaml"], ["compile", "a" * 300 + "/x.yaml"], ["check", b"\xff\xfe".decode("utf-8", "surrogateescape")],
                                   ["check", "x\x1b[31m"], ["check", "local", "--job", "a\nb"], ["explain", "local", "\x1b[2J"], ["new", "../x"], ["compile", "local", "--out", ""]])
def test_odd_words_are_a_wrong_call_and_never_a_traceback(words):
    """Too long for a name, not UTF-8, an escape sequence for the terminal: exit 2, one line, nothing that acts on the terminal."""
    done = program(*words)
    assert done.returncode == 2 and done.stderr.startswith(b"gpu-runbook: ") and done.stderr.count(b"\n") == 1 and b"\x1b" not in done.stderr


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_terminal_without_the_characters_gets_escapes(tmp_path, env):
    profile = tmp_path / "x.yaml"
    profile.write_text((FIXTURES / "rental.yaml").read_text().replace("Example Pod", "算力平台"), encoding="utf-8")
    done = program("explain", str(profile), "TITLE", "--job", SWEEP, env=env)
    assert done.returncode == 0 and b"\\u7b97" in done.stdout and b"Traceback" not in done.stderr
    assert program("diff", str(profile), "--job", SWEEP, "--out", str(tmp_path / "none"), env=env).returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("action", [["check", "local"], ["list"], ["explain", "local"]])
def test_output_that_cannot_be_written_is_said(action):
    """A full disk behind stdout is exit 1; a closed stdout is no traceback."""
    with open("/dev/full", "wb") as full:
        done = program(*action, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"No space left" in done.stderr and b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    closed = subprocess.run(["bash", "-c", '"$@" >&-', "bash", sys.executable, "-m", "generator", *action], cwd=ROOT, stderr=subprocess.PIPE, check=False)
    assert closed.returncode == 0 and b"Traceback" not in closed.stderr


@pytest.mark.parametrize("folder, file", [("a\ntouch PWNED #", "x.yaml"), ("a", "x.ya\ntouch PWNED #"), ("a\u2028b", "x.yaml")])
def test_a_path_gets_no_line_of_its_own_into_a_script(gr, folder, file):
    """Case 8: the header of each script names the profile's file."""
    place = gr.root / folder / file
    place.parent.mkdir(exist_ok=True)
    shutil.copy(FIXTURES / "rental.yaml", place)
    code, out, err = gr("compile", str(place), "--out", str(gr.root / "o"))
    assert code == 2 and "rename" in err and not (gr.root / "o").exists()


@pytest.mark.parametrize("folder, old, new", [
    ("profiles/rental.yaml", "resume: type the same command", "resume: hf_A1b2C3d4E5f6G7h8I9"), ("profiles/rental.yaml", "kind: ssh-rental", "kind: hf_A1b2C3d4E5f6G7h8I9"),
    ("jobs/demo.yaml", "secrets: [WANDB_API_KEY]", "secrets: [hf_A1b2C3d4E5f6G7h8I9]"), ("jobs/demo.yaml", "code: {branch: main}", "code: {branch: main, token: [hf_A1b2C3d4E5f6G7h8I9]}"),
    ("jobs/demo.yaml", "width: [32, 64]", "width: [hf_A1b2C3d4E5f6G7h8I9, 64]"), ("profiles/rental.yaml", "grace_s: null", "grace_s: hf_A1b2C3d4E5f6G7h8I9"),
    ("profiles/rental.yaml", "data: [local-disk]", "data: hf_A1b2C3d4E5f6G7h8I9"), ("jobs/demo.yaml", "lr{lr}_w", "hf_A1b2C3d4E5f6G7h8I9/{lr}")])
@pytest.mark.parametrize("form", ["text", "json", "github"])
def test_a_secret_is_found_and_not_said_again(gr, folder, old, new, form):
    """S43 case 15: the log of a check is public as often as not."""
    path = gr.root / folder
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    code, out, err = gr("check", "rental", "--format", form)
    assert code == 1 and "hf_A1b2C3" not in out + err


def test_the_readme_shows_what_explain_and_diff_say():
    """Issue: real output. Numbers of lines move with the templates, so they are not compared."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    def plain(text: str) -> str:
        return re.sub(r"lines? [0-9]+(?:, [0-9]+)*", "lines N", re.sub(r":[0-9]+", ":N", text))

    shown = readme.partition("generator explain runpod SIGNAL_GRACE_S\n")[2].partition("```")[0]
    assert plain(shown) == plain(program("explain", "runpod", "SIGNAL_GRACE_S").stdout.decode())
    assert re.search(r"generator diff runpod .*\n--- a/RUNBOOK.md\n(?s:.*)\n-readonly SIGNAL_GRACE_S=5\n\+readonly SIGNAL_GRACE_S=10\n", readme)


def test_diff_tells_the_inputs_digests_and_not_those_of_each_file(gr):
    """SOURCES.json comes last and says what was compiled; the digests of files that are shown above say nothing more."""
    assert gr("compile", "rental")[0] == 0
    path = gr.root / "profiles/rental.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("interval_s: 15", "interval_s: 20"), encoding="utf-8")
    code, out, err = gr("diff", "rental", "--out", str(gr.root / "out/rental"))
    last = out.rpartition("--- a/")[2]
    assert code == 1 and last.startswith("SOURCES.json") and '"path"' not in last and out.count("sha256") < 4 and f"--out {gr.root}/out/rental" in err
    record = gr.root / "out/rental/SOURCES.json"
    assert gr("compile", "rental")[0] == 0
    record.write_text(record.read_text(encoding="utf-8").replace('"mode": "0755"', '"mode": "0700"', 1), encoding="utf-8")
    code, out, _ = gr("diff", "rental")
    assert code == 1 and "0700" in out


def test_a_folder_that_cannot_be_read_is_no_empty_one(gr, monkeypatch):
    """diff could not look: that is said, and not that every file is missing."""
    assert gr("compile", "rental")[0] == 0
    real = os.scandir

    def closed(path):
        if str(path).endswith("/box"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)
    code, out, err = gr("diff", "rental")
    assert code == 1 and out == "" and "Permission denied" in err


def test_the_console_script_is_the_same_program(tmp_path):
    """What pip makes of [project.scripts] calls generator.__main__:main."""
    import tomllib

    entry = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]["gpu-runbook"]
    module, _, name = entry.partition(":")
    script = f"import sys; sys.argv[0] = 'gpu-runbook'; from {module} import {name}; sys.exit({name}())"
    done = subprocess.run([sys.executable, "-c", script, "list"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == program("list").stdout.decode() and "runpod" in done.stdout


def test_the_readme_shows_what_explain_says(capsys):
    """But for the numbers of lines, which move with each edit."""
    shown = (ROOT / "README.md").read_text(encoding="utf-8").split("generator explain runpod SIGNAL_GRACE_S\n", 1)[1].split("```", 1)[0]
    assert cli.run(["explain", "runpod", "SIGNAL_GRACE_S"]) == 0
    said = capsys.readouterr().out
    assert re.sub(r"(:|line )[0-9]+", r"\1N", said) == re.sub(r"(:|line )[0-9]+", r"\1N", shown)
