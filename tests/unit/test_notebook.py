"""The cell that is pasted: run for real, whole, cut at every byte, changed, killed, twice, and where it may not or cannot write."""

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from conftest import ROOT
from generator import notebook, render
from generator.diagnostics import Report
from generator.inputs import inputs

NOTEBOOKS = ("kaggle", "colab")
HINT = "the paste was cut off: copy ALL of install_cell.py again"


@lru_cache(maxsize=None)
def rendered(profile: str = "kaggle") -> dict:
    b = inputs(profile, "demo", (), Report())
    assert b is not None
    return render.render(b)


def cell(profile: str = "kaggle") -> str:
    return rendered(profile)[notebook.CELL].data.decode()


@lru_cache(maxsize=None)
def small_cell() -> str:
    """The same cell with two tiny scripts, for what has to be tried thousands of times."""
    files = {"box/a.sh": render.Output(b"#!/bin/bash\necho a\n\necho '''x''''\t\\n \xe2\x80\xa6\n", True), "box/queue.tsv": render.Output(b"a\tb\n")}
    return notebook.install_cell(inputs("kaggle", "demo", (), Report()), files)


def run(text: str | bytes, data: Path, name: str = "cell.py", **more: str) -> subprocess.CompletedProcess:
    """As a notebook's kernel runs it: the text is compiled whole, in a process whose own name is another."""
    place = data.parent / name
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    env = {"PATH": os.environ["PATH"], "HOME": str(data.parent), "DATA_DIR": str(data), **more}
    return subprocess.run([sys.executable, str(place)], env=env, capture_output=True, text=True, timeout=60)


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o777) for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(done: subprocess.CompletedProcess, code: int, *words: str) -> None:
    lines = [line for line in done.stderr.splitlines() if re.match(r"install_cell\.py: refused: .+; .+; .+", line)]
    assert done.returncode == code and len(lines) == 1 and "Traceback" not in done.stderr, done
    assert all(word in lines[0] for word in words), lines


@pytest.mark.parametrize("profile", NOTEBOOKS)
def test_it_installs_every_script_as_compiled(profile, tmp_path):  # S9 S21 S38 S58
    done = run(cell(profile), tmp_path / "data")
    box = {path[4:]: output for path, output in rendered(profile).items() if path.startswith("box/")}
    lines = "".join(f"{hashlib.sha256(output.data).hexdigest()}  {name}\n" for name, output in sorted(box.items()))
    digest = hashlib.sha256(lines.encode()).hexdigest()[:12]
    assert done.returncode == 0 and f"installed {len(box) - 1} scripts and the queue, digest {digest}, in " in done.stdout and not done.stderr
    current = tmp_path / "data/demo/box/current"
    assert os.readlink(current) == digest and {name: data for name, (data, _) in tree(current).items()} == {name: one.data for name, one in box.items()}
    assert {mode for name, (_, mode) in tree(current).items() if name.endswith(".sh")} == {0o700} and (current / "queue.tsv").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in current.parent.iterdir()) == sorted(["current", digest])
    said = subprocess.run(["bash", current / "status.sh", "--help"], capture_output=True, text=True)
    assert said.returncode == 0 and said.stdout.startswith("usage: status.sh")


def test_the_second_run_changes_nothing(tmp_path):  # S47
    run(cell(), tmp_path / "data")
    stamps = {path: path.lstat().st_mtime_ns for path in (tmp_path / "data").rglob("*") if path.is_file()}
    done = run(cell(), tmp_path / "data")
    assert done.returncode == 0 and "there already, unchanged:" in done.stdout and "installed" not in done.stdout
    assert stamps == {path: path.lstat().st_mtime_ns for path in (tmp_path / "data").rglob("*") if path.is_file()}


def test_a_lost_x_bit_is_set_again_and_a_changed_script_is_refused(tmp_path):
    run(small_cell(), tmp_path / "data")
    script = tmp_path / "data/demo/box/current/a.sh"
    script.chmod(0o600)
    assert run(small_cell(), tmp_path / "data").returncode == 0 and script.stat().st_mode & 0o777 == 0o700
    script.write_bytes(script.read_bytes() + b"# mine\n")
    refused(run(small_cell(), tmp_path / "data"), 65, "somebody changed them", "move it aside")
    assert script.read_bytes().endswith(b"# mine\n")


def test_a_new_version_gets_a_folder_of_its_own(tmp_path):  # S38 U08: a script that runs is never replaced
    run(small_cell(), tmp_path / "data")
    old = tree(tmp_path / "data/demo/box/current")
    first = os.readlink(tmp_path / "data/demo/box/current")
    assert run(cell(), tmp_path / "data").returncode == 0
    assert os.readlink(tmp_path / "data/demo/box/current") != first and tree(tmp_path / "data/demo/box" / first) == old


def test_every_byte_of_the_paste_counts(tmp_path):  # T32 case 14: cut off anywhere, nothing runs and Python shows why
    text = small_cell()
    for end in range(3, len(text) - 1):
        with pytest.raises(SyntaxError) as found:
            compile(text[:end], "cell", "exec")
        # Inside of the strings, which is nearly all of a real cell, the line that Python shows says what to do.
        if 150 < end < text.rindex("'''"):
            assert found.value.text is not None and ("SyntaxError at this line?" in found.value.text or end - text.rindex("\n", 0, end) < 160), end
    compile(text[:-1], "cell", "exec")


def test_a_cut_paste_leaves_the_old_version(tmp_path):
    run(small_cell(), tmp_path / "data")
    before, text = tree(tmp_path / "data"), cell()
    rng = random.Random(7)
    for end in [1, 40, len(text) - 2, *(rng.randrange(200, len(text) - 2) for _ in range(12))]:
        done = run(text[:end], tmp_path / "data")
        assert done.returncode == 1 and ("SyntaxError" in done.stderr or "NameError" in done.stderr), end
        if 200 < end < text.rindex("'''"):
            assert HINT in done.stderr, (end, done.stderr[-400:])
        assert tree(tmp_path / "data") == before


def test_a_changed_paste_is_refused_before_anything_runs(tmp_path):  # one character, anywhere in the three strings
    text = cell()
    rng = random.Random(11)
    places = [match.start() for match in re.finditer(r"[a-z](?=[a-z ])", text[150 : text.rindex("'''")])]
    for at in rng.sample(places, 25):
        at += 150
        changed = text[:at] + ("q" if text[at] != "q" else "z") + text[at + 1 :]
        done = run(changed, tmp_path / "data")
        if "'''" not in text[at - 12 : at + 12]:
            refused(done, 65, "its text is not what was compiled", "copy ALL of install_cell.py again")
        assert done.returncode and not (tmp_path / "data").exists(), at
    end = text.rindex('digest="') + 12
    refused(run(text[:end] + ("0" if text[end] != "0" else "1") + text[end + 1 :], tmp_path / "data"), 65, "not what was compiled")
    lines = text.splitlines(True)
    middle = len(lines) // 2
    for wrong in (lines[:middle] + lines[middle + 40 :], lines[:middle] + lines[middle : middle + 2] + lines[middle:], [one.replace("    ", "  ") for one in lines]):
        done = run("".join(wrong), tmp_path / "data")
        assert done.returncode and ("refused" in done.stderr or "SyntaxError" in done.stderr) and not (tmp_path / "data").exists()


def test_what_a_paste_may_do_to_line_ends_does_no_harm(tmp_path):  # case 14 T32: CRLF, blanks at line ends, a missing last newline
    whole = tree_of(tmp_path / "a", cell())
    assert tree_of(tmp_path / "b", cell().replace("\n", "\r\n")) == whole
    assert tree_of(tmp_path / "c", cell().rstrip("\n")) == whole
    assert tree_of(tmp_path / "d", "\n\n" + cell() + "\n\n") == whole
    assert not re.search(r"[ \t]$", cell(), re.M) and not re.search(r"[^\n -~]", cell())  # nothing that an editor would take away


def tree_of(folder: Path, text: str) -> dict:
    folder.mkdir()
    done = run(text.encode(), folder / "data")
    assert done.returncode == 0, done.stderr
    return tree(folder / "data")


KILL = """
import os, sys
left = int(os.environ["KILL_AT"])
def hook(event, args):
    global left
    if event in ("open", "os.mkdir", "os.rename", "os.chmod", "os.symlink", "os.remove", "os.rmdir", "os.listdir") and os.environ["DATA_DIR"] in str(args):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(hook)
exec(compile(open(sys.argv[1], encoding="utf-8").read(), "cell", "exec"), {})
"""


def test_killed_at_any_step_it_leaves_the_old_version_or_the_new_one(tmp_path):  # A new session dies when it likes
    data, place = tmp_path / "data", tmp_path / "cell.py"
    run(small_cell(), data)
    old = os.readlink(data / "demo/box/current")
    files = {"box/a.sh": render.Output(b"#!/bin/bash\necho b\n", True), "box/queue.tsv": render.Output(b"a\tb\n")}
    text = notebook.install_cell(inputs("kaggle", "demo", (), Report()), files)
    place.write_text(text, encoding="utf-8")
    steps = killed = 0
    while True:
        steps += 1
        done = subprocess.run([sys.executable, "-c", KILL, place], env={**os.environ, "DATA_DIR": str(data), "RUN": "demo", "KILL_AT": str(steps)}, capture_output=True, text=True)
        now = os.readlink(data / "demo/box/current")
        said = subprocess.run(["bash", data / "demo/box/current/a.sh"], capture_output=True, text=True).stdout
        assert said.startswith("a" if now == old else "b") and (data / "demo/box/current/queue.tsv").read_text() == "a\tb\n"
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        killed += 1
        again = run(text, data)  # as it was left there, without any cleaning
        assert again.returncode == 0 and tree(data / "demo/box/current") == {"a.sh": (b"#!/bin/bash\necho b\n", 0o700), "queue.tsv": (b"a\tb\n", 0o600)}, again.stderr
        new = (data / "demo/box/current").resolve()
        (data / "demo/box/current").unlink()  # the next one begins from the old version
        (data / "demo/box/current").symlink_to(old)
        shutil.rmtree(new)
    assert killed > 12 and sorted(one.name for one in (data / "demo/box").iterdir() if one.name.startswith(".")) == []  # leftovers are swept


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="root may write everywhere, and there is no setpriv")
def test_without_the_right_to_write_it_says_so(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    place = tmp_path / "cell.py"
    place.write_text(cell(), encoding="utf-8")
    data.chmod(0o555)
    for one in (tmp_path, *list(tmp_path.parents)[:3]):
        if one.stat().st_uid == os.getuid() and str(one).startswith("/tmp/"):
            one.chmod(one.stat().st_mode | 0o055)
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    # The text goes in by stdin, so that only the folder is in question.
    done = subprocess.run([*words, "/usr/bin/python3", "-"], input=cell(), env={"PATH": os.environ["PATH"], "DATA_DIR": str(data)}, capture_output=True, text=True)
    data.chmod(0o755)
    refused(done, 74, "cannot be written", "set DATA_DIR")


def test_on_a_full_disk_the_old_version_stays(tmp_path):  # case 38: no room
    data = tmp_path / "data"
    data.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", data], capture_output=True).returncode:
        pytest.skip("no right to mount")
    try:
        assert run(small_cell(), data).returncode == 0
        before = tree(data)
        refused(run(cell(), data), 73, "no room", "nothing that was installed before has changed")
        assert tree(data) == before
    finally:
        subprocess.run(["umount", data], check=True)


@pytest.mark.parametrize("name,value,word", [("DATA_DIR", "relative", "no absolute folder"), ("DATA_DIR", "/$NOT_SET_HERE/x", "no absolute folder"), ("DATA_DIR", "/", "no absolute folder"), ("DATA_DIR", "", "no absolute folder"), ("RUN", "../x", "a name is"), ("RUN", "", "a name is"), ("RUN", "a b", "a name is")])
def test_a_wrong_place_is_refused(name, value, word, tmp_path):  # S49 S53
    refused(run(small_cell(), tmp_path / "data", **{name: value}), 78, word)
    assert not (tmp_path / "data").exists()


def test_another_run_and_a_folder_in_the_way(tmp_path):
    assert run(small_cell(), tmp_path / "data", RUN="demo.2").returncode == 0 and (tmp_path / "data/demo.2/box/current/a.sh").exists()
    (tmp_path / "data/demo/box/current").mkdir(parents=True)  # a folder that was put there by hand
    refused(run(small_cell(), tmp_path / "data"), 65, "no", "move it aside")


def test_two_at_a_time(tmp_path):  # both say that it is there, and it is there once
    place = tmp_path / "cell.py"
    place.write_text(cell(), encoding="utf-8")
    env = {**os.environ, "DATA_DIR": str(tmp_path / "data"), "RUN": "demo"}
    both = [subprocess.Popen([sys.executable, place], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [(one.communicate(timeout=60), one.returncode) for one in both]
    assert [code for _, code in ended] == [0, 0, 0], ended
    assert len(list((tmp_path / "data/demo/box").iterdir())) == 2


def test_help_and_bad_usage_as_a_file(tmp_path):  # S9
    place = tmp_path / "install_cell.py"
    place.write_text(cell(), encoding="utf-8")
    usage, digest = "usage: install_cell.py [--print]", notebook.box_digest({path[4:]: one for path, one in rendered().items() if path.startswith("box/")})
    for words, code, said in ((["--help"], 0, usage), (["--what"], 64, usage), (["--print"], 0, f"whole; would install 8 scripts and the queue, digest {digest[:12]}, in ")):
        done = subprocess.run([sys.executable, place, *words], capture_output=True, text=True, env={"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path / "data")})
        assert done.returncode == code and said in done.stdout + done.stderr
    assert not (tmp_path / "data").exists()


def test_the_same_bytes_whatever_compresses_here(monkeypatch):  # S10: no zlib, bz2 or xz has a hand in it
    import bz2
    import lzma
    import zlib

    first = cell()
    for module in (zlib, bz2, lzma):
        monkeypatch.setattr(module, "compress", lambda *_: pytest.fail("compressed"))
    b = inputs("kaggle", "demo", (), Report())
    assert notebook.install_cell(b, rendered()) == first
    # The order in which files were rendered does not matter.
    assert notebook.install_cell(b, dict(reversed(list(rendered().items())))) == first
    assert len(first) < 700_000, "one cell is to stay well below a megabyte"


def test_packing_is_the_whole_truth():  # any script comes out as it went in, or is refused
    rng = random.Random(3)
    for _ in range(300):
        texts = {f"{n}.sh": "".join(rng.choice(["a", "\n", "\n\n", "'", '"', "\\", "é", "\x01", " "]) for _ in range(rng.randrange(30))) + "b\n" for n in range(3)}
        box = {name: render.Output(text.encode(), True) for name, text in texts.items()}
        whole, index = notebook.pack(box)
        value = eval("'''\n" + notebook.literal(whole) + "\n'''")[1:-1]  # noqa: S307 (our own text)
        paragraphs = value.split("\n\n")
        assert {one["name"]: "\n\n".join(paragraphs[int(n)] for n in one["paragraphs"].split()) + "\n" for one in index} == texts
    for bad in (b"a", b"a\n\n"):
        with pytest.raises(render.TemplateBug):
            notebook.pack({"a.sh": render.Output(bad), "b.sh": render.Output(b"c\n")})


def test_the_linter_reads_the_cells(tmp_path, monkeypatch):  # a cell that Python cannot read is a finding
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import lint_scripts

    whole, cut = tmp_path / "whole.py", tmp_path / "cut.py"
    whole.write_text(cell(), encoding="utf-8")
    cut.write_text(cell()[:-30], encoding="utf-8")
    assert lint_scripts.python_faults([whole]) == "" and str(cut) in lint_scripts.python_faults([whole, cut])


def test_only_a_notebook_gets_it():
    assert notebook.CELL not in rendered("local") and "box/session.sh" not in rendered("local") and notebook.CELL in rendered("colab")
