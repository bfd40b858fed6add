"""Writing: all or nothing, only what differs, nothing that was edited, safe to kill and to run twice. S21, case 14."""

import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import FIXTURES, ROOT
from generator.bind import bind
from generator.inputs import FREE
from generator.load import load
from generator.render import Output
from generator.write import NEXT, Refused, digest, write


@pytest.fixture
def b():
    return bind(load(FIXTURES / "rental.yaml", "rental.yaml", "P"), load(FIXTURES / "sweep.yaml", "sweep.yaml", "J", FREE))


OLD = {"RUNBOOK.md": Output(b"old\n"), "box/a.sh": Output(b"#!a\n", True), "box/gone.sh": Output(b"gone\n", True), "x/only.txt": Output(b"x\n")}
NEW = {"RUNBOOK.md": Output(b"new\n"), "box/a.sh": Output(b"#!a\n", True), "box/b.sh": Output(b"#!b\n", True), "local/c.py": Output(b"c\n", True)}


def tree(target: Path) -> dict[str, bytes]:
    """Every file; the digest of the templates left out, for somebody may edit one while this runs."""
    files = {path.relative_to(target).as_posix(): path.read_bytes() for path in sorted(target.rglob("*")) if path.is_file()}
    return {path: re.sub(rb'"templates_sha256": "[0-9a-f]+"', b'"templates_sha256": ""', data) for path, data in files.items()}


def test_what_is_written_is_recorded(tmp_path, b):
    write(tmp_path / "o", b, NEW)
    there = tree(tmp_path / "o")
    record = json.loads(there.pop("SOURCES.json"))
    assert there == {path: output.data for path, output in NEW.items()}
    assert {one["path"]: one["sha256"] for one in record["files"]} == {path: digest(data) for path, data in there.items()}
    assert record["profile"] == {"file": "rental.yaml", "sha256": b.profile_doc.digest} and str(tmp_path) not in json.dumps(record)
    for path, output in NEW.items():
        assert (tmp_path / "o" / path).stat().st_mode & 0o777 == (0o755 if output.executable else 0o644)


def test_the_second_time_nothing_is_touched(tmp_path, b):
    write(tmp_path, b, NEW)
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")}
    done = write(tmp_path, b, NEW)
    assert (done.made, done.removed, done.same) == ([], [], 4)
    assert before == {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")}


def test_only_what_differs_and_what_nobody_makes_any_more_goes(tmp_path, b):
    write(tmp_path, b, OLD)
    kept = (tmp_path / "box/a.sh").stat().st_ino
    done = write(tmp_path, b, NEW)
    assert done.made == ["RUNBOOK.md", "box/b.sh", "local/c.py"] and done.removed == ["box/gone.sh", "x/only.txt"]
    assert (tmp_path / "box/a.sh").stat().st_ino == kept and not (tmp_path / "x").exists()


def test_a_running_script_keeps_its_text(tmp_path, b):
    """S63: a file is replaced by rename, so whoever has it open reads the old one to its end."""
    write(tmp_path, b, OLD)
    with open(tmp_path / "RUNBOOK.md", "rb") as open_file:
        write(tmp_path, b, NEW)
        assert open_file.read() == b"old\n"
    assert (tmp_path / "RUNBOOK.md").read_bytes() == b"new\n"


@pytest.mark.parametrize("path", ["RUNBOOK.md", "box/gone.sh"])
def test_a_file_edited_by_hand_is_refused_and_nothing_changes(tmp_path, b, path):
    write(tmp_path, b, OLD)
    (tmp_path / path).write_bytes(b"mine\n")
    before = tree(tmp_path)
    with pytest.raises(Refused, match="edited by hand"):
        write(tmp_path, b, NEW)
    assert tree(tmp_path) == before
    assert write(tmp_path, b, NEW, force=True).overwritten == [f"{path} was edited by hand"]
    assert (tmp_path / "RUNBOOK.md").read_bytes() == b"new\n" and not (tmp_path / "box/gone.sh").exists()


def test_a_mode_changed_by_hand_is_put_right(tmp_path, b):
    write(tmp_path, b, NEW)
    (tmp_path / "box/a.sh").chmod(0o644)
    assert write(tmp_path, b, NEW).made == ["box/a.sh"]
    assert os.access(tmp_path / "box/a.sh", os.X_OK)


def test_a_foreign_file_and_a_foreign_folder_are_refused(tmp_path, b):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Refused, match="not empty"):
        write(tmp_path, b, NEW)
    write(tmp_path / "o", b, OLD)
    (tmp_path / "o/local").mkdir()
    (tmp_path / "o/local/c.py").symlink_to("/etc/passwd")
    with pytest.raises(Refused, match="not made by"):
        write(tmp_path / "o", b, NEW)
    assert tree(tmp_path / "o")["RUNBOOK.md"] == b"old\n"


def test_a_recorded_path_outside_is_never_removed(tmp_path, b):
    """A SOURCES.json from elsewhere cannot make the compiler delete what lies outside."""
    write(tmp_path / "o", b, OLD)
    victim = tmp_path / "victim"
    victim.write_bytes(b"v")
    record = json.loads((tmp_path / "o/SOURCES.json").read_text())
    record["files"] += [{"path": path, "sha256": digest(b"v"), "mode": "0644"} for path in ("../victim", str(victim))]
    (tmp_path / "o/SOURCES.json").write_text(json.dumps(record))
    write(tmp_path / "o", b, NEW)
    assert victim.read_bytes() == b"v"


CRASH = """
import os, sys
sys.path[:0] = [{root!r}, {tests!r}]
from pathlib import Path
import generator.write as w
from test_write import NEW, OLD
from generator.bind import bind
from generator.inputs import FREE
from generator.load import load
from conftest import FIXTURES
b = bind(load(FIXTURES / "rental.yaml", "rental.yaml", "P"), load(FIXTURES / "sweep.yaml", "sweep.yaml", "J", FREE))
left = int(sys.argv[2])
def dying(real):
    def call(*arguments, **words):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return real(*arguments, **words)
    return call
for name in ("replace", "rmdir", "unlink", "fchmod", "mkdir"):
    setattr(os, name, dying(getattr(os, name)))
w.write(Path(sys.argv[1]), b, NEW)
"""


def test_killed_at_any_point_the_next_run_finishes(tmp_path, b):
    """Each file is whole at every moment, and the next run makes the folder what a single run makes it."""
    fresh = tmp_path / "fresh"
    write(fresh, b, NEW)
    script = CRASH.format(root=str(ROOT), tests=str(ROOT / "tests/unit"))
    for step in range(1, 100):
        target = tmp_path / f"o{step // 2}{step % 2}"
        if step % 2:  # every other time into an empty folder
            write(target, b, OLD)
        code = subprocess.run([sys.executable, "-c", script, str(target), str(step)], check=False).returncode
        whole = {*[output.data for output in OLD.values()], *[output.data for output in NEW.values()]}
        for path, data in tree(target).items():
            if not path.split("/")[-1].startswith(".") and path != "SOURCES.json":
                assert data in whole, (step, path)
        write(target, b, NEW)
        assert tree(target) == tree(fresh), step
        if code == 0:
            break
    assert code == 0 and step > 8


def test_killed_twice_with_different_contents_is_no_edit(tmp_path, b):
    """What each of the killed runs has written is still known as ours."""
    write(tmp_path, b, OLD)
    script = CRASH.format(root=str(ROOT), tests=str(ROOT / "tests/unit"))
    dying = """
real = os.replace
def after(old, new):
    real(old, new)
    if Path(new).name == {name!r}:
        os._exit(9)
os.replace = after
NEW['RUNBOOK.md'] = type(NEW['RUNBOOK.md'])(b'{text}')
"""
    for name, text in (("RUNBOOK.md", "middle"), ("RUNBOOK.md", "other"), (NEXT, "third")):
        changed = script.replace("w.write(Path", dying.format(name=name, text=text) + "w.write(Path")
        assert subprocess.run([sys.executable, "-c", changed, str(tmp_path), "-1"], check=False).returncode == 9
    assert tree(tmp_path)["RUNBOOK.md"] == b"other" and (tmp_path / NEXT).exists()
    write(tmp_path, b, NEW)
    assert tree(tmp_path)["RUNBOOK.md"] == b"new\n" and not (tmp_path / NEXT).exists()


def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_written(tmp_path, b):
    write(tmp_path, b, OLD)
    (tmp_path / "box/b.sh").mkdir()
    before = tree(tmp_path)
    with pytest.raises(Refused):
        write(tmp_path, b, NEW, force=True)
    assert tree(tmp_path) == before


def test_two_at_once_leave_one_whole_result(tmp_path, b):
    """Two compiles into one folder: the lock lets them go one after the other."""
    target = tmp_path / "o"
    words = [sys.executable, "-c", CRASH.format(root=str(ROOT), tests=str(ROOT / "tests/unit")), str(target), "-1"]
    runs = [subprocess.Popen(words) for _ in range(4)]
    assert [run.wait(60) for run in runs] == [0, 0, 0, 0]
    write(tmp_path / "fresh", b, NEW)
    assert tree(target) == tree(tmp_path / "fresh") and not (target / NEXT).exists()


@pytest.mark.parametrize(("before", "nth"), [(before, nth) for before in (OLD, {}) for nth in range(1, len([path for path in NEW if before.get(path) != NEW[path]]) + 4)])
def test_a_full_disk_changes_nothing(tmp_path, b, monkeypatch, nth, before):
    """Whichever file does not fit: what was there is as it was, and nothing half lies about, temporary files and folders included."""
    if before:
        write(tmp_path, b, before)
    here = tree(tmp_path), sorted(tmp_path.rglob("*"))
    left, real = nth, os.fsync

    def full(handle):
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(28, "No space left on device")
        return real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write(tmp_path, b, NEW)
    assert (tree(tmp_path), sorted(tmp_path.rglob("*"))) == here


def test_nothing_is_written_or_removed_through_a_link_to_a_folder(tmp_path, b):
    """A folder of the output that was made a link: what is behind it is somebody else's, also with --force."""
    write(tmp_path / "o", b, OLD)
    (tmp_path / "o/box").rename(tmp_path / "mine")
    (tmp_path / "o/box").symlink_to(tmp_path / "mine")
    before = tree(tmp_path / "mine")
    for force in (False, True):
        with pytest.raises(Refused, match="is a link"):
            write(tmp_path / "o", b, NEW, force)
    assert tree(tmp_path / "mine") == before and tree(tmp_path / "o")["RUNBOOK.md"] == b"old\n"


def test_temporary_files_of_others_stay(tmp_path, b):
    """Only what a killed compile left beside our own files is swept; a folder that is not ours loses nothing."""
    (tmp_path / "home/sub").mkdir(parents=True)
    for path in ("home/.keep.123.tmp", "home/sub/.mine.55.tmp", "home/.RUNBOOK.md.1.tmp"):
        (tmp_path / path).write_bytes(b"mine")
    with pytest.raises(Refused, match="not empty"):
        write(tmp_path / "home", b, NEW)
    assert len(tree(tmp_path / "home")) == 3
    write(tmp_path / "o", b, OLD)
    (tmp_path / "o/box/.a.sh.77.tmp").write_bytes(b"half")
    (tmp_path / "o/box/.vim.77.tmp").write_bytes(b"mine")
    write(tmp_path / "o", b, NEW)
    assert sorted(each.name for each in (tmp_path / "o/box").glob(".*")) == [".vim.77.tmp"]


@pytest.mark.parametrize("path", ["box/a\0b", "", ".", "box"])
def test_an_odd_list_of_files_is_no_traceback(tmp_path, b, path):
    write(tmp_path, b, OLD)
    record = json.loads((tmp_path / "SOURCES.json").read_text())
    record["files"].append({"path": path, "sha256": digest(b"v")})
    (tmp_path / "SOURCES.json").write_text(json.dumps(record))
    try:
        write(tmp_path, b, NEW)
    except Refused as error:
        assert path == "box" and "box was not made" in str(error)
    assert (tmp_path / "box/a.sh").exists()


def waits_for_a_lock(pid: int) -> bool:
    """True where the process is blocked on a file lock: its line in /proc/locks has an arrow."""
    return any("->" in line and line.split()[5] == str(pid) for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks")
def test_a_second_compile_waits_for_the_first(tmp_path, b):
    """While the folder is locked nothing is written into it; then the second run does its work."""
    write(tmp_path, b, OLD)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    run = subprocess.Popen([sys.executable, "-c", CRASH.format(root=str(ROOT), tests=str(ROOT / "tests/unit")), str(tmp_path), "-1"])
    end = time.monotonic() + 60
    while not waits_for_a_lock(run.pid) and run.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert run.poll() is None and tree(tmp_path)["RUNBOOK.md"] == b"old\n"
    os.close(handle)
    assert run.wait(60) == 0 and tree(tmp_path)["RUNBOOK.md"] == b"new\n"


def test_a_link_in_the_place_of_a_file_is_refused_also_with_the_same_content(tmp_path, b):
    write(tmp_path / "o", b, NEW)
    (tmp_path / "elsewhere").write_bytes(b"new\n")
    (tmp_path / "o/RUNBOOK.md").unlink()
    (tmp_path / "o/RUNBOOK.md").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused):
        write(tmp_path / "o", b, NEW)


def test_names_are_flushed_before_the_list_that_has_them(tmp_path, b, monkeypatch):
    """A crash of the machine leaves no SOURCES.json whose files were never on the disk (case 30 and its kind, at home)."""
    said = []
    sync, replace = os.fsync, os.replace

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            said.append(("folder", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))
        return sync(handle)

    def rename(old, new):
        said.append(("name", os.path.basename(new)))
        return replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    write(tmp_path / "o", b, NEW)
    record = said.index(("name", "SOURCES.json"))
    assert said[0] == ("name", ".SOURCES.next.json") and said[1] == ("folder", "o")
    folders = {os.path.basename(os.path.dirname("o/" + path)) for path in NEW}
    assert {("folder", one) for one in folders} <= set(said[2:record]) and said[record + 1] == ("folder", "o")
