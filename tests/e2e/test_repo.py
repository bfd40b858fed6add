"""The repository as a whole: nothing in it points outside, no file is too long to read, the set-up files agree."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In pieces, so that this file is not found itself. A package index is the user's own affair: pip and npm know theirs.
OUTSIDE = {
    "a path of somebody's machine": re.compile(r"(?<![\w.$}*])/(?:" + "work" + r"|ho" + r"me/[a-z]+|Us" + r"ers/[a-z]+)/(?:main|shared|gpu-runbook)\b"),
    "a folder beside the project": re.compile(r"\.\./" + "shared"),
    "a package registry": re.compile("|".join(name.replace(".", r"\.") for name in ("pypi" + ".org", "files.pythonhosted" + ".org", "registry.npmjs" + ".org",
                                                                                      "download.pytorch" + ".org", "deb.debian" + ".org"))),
}
LONGEST = 450
LONGEST_TEST = 600  # one file for each script: the cases of a gate are many
GENERATED = ("out/", "package-lock.json", "docs/rules.md", "docs/profile.md", "docs/job.md", "docs/gotchas.md", "docs/requirements.md")


def files() -> list[str]:
    """Every file that is or would be committed."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(name: str) -> str:
    """A file's text; bytes that are none show as replacement characters."""
    return (ROOT / name).read_bytes().decode("utf-8", "replace")


def test_nothing_points_outside():
    """A user has this repository alone."""
    assert OUTSIDE["a folder beside the project"].search("../" + "shared/facts") and OUTSIDE["a path of somebody's machine"].search(" /wor" + "k/main")
    found = [f"{name}: {what}: {hit.group()}" for name in files() for what, pattern in OUTSIDE.items() for hit in [pattern.search(text_of(name))] if hit]
    assert found == []


def test_no_link_leaves_the_repository():
    """A symbolic link is committed as its target's name: that name stays inside."""
    outside = [name for name in files() if (ROOT / name).is_symlink() and not (ROOT / name).resolve().is_relative_to(ROOT)]
    assert outside == []


def test_a_relative_link_in_a_page_leads_somewhere():
    """README and docs: what a reader clicks on is there."""
    broken = []
    for name in files():
        if name.endswith(".md") and not name.startswith(("out/", "tests/")):
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text_of(name)):
                if "://" not in target and not (ROOT / name).parent.joinpath(target).exists():
                    broken.append(f"{name}: {target}")
    assert broken == []


def test_no_file_is_too_long():
    """Nobody reads more than some 400 lines of code at once; pages and what is generated count apart."""
    code = [name for name in files() if not name.startswith(GENERATED) and not name.endswith((".md", ".md.j2")) and "/cases/" not in name]
    lines = {name: text_of(name).count("\n") for name in code}
    long = {name: count for name, count in lines.items() if count > (LONGEST_TEST if name.startswith("tests/") else LONGEST)}
    assert long == {}


def test_versions_are_pinned_and_said_once():
    """Every dependency has one exact version; the example asks for the same torch as the extra `demo`."""
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    for one in [*project["dependencies"], *extras["test"], *extras["demo"]]:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9.]*", one), one
    assert sorted(extras["demo"]) == sorted(text_of("examples/digits/requirements.txt").split())
    assert not any("torch" in one for one in project["dependencies"]), "compiling needs no torch"
    npm = json.loads(text_of("package.json"))
    assert npm["private"] and all(re.fullmatch(r"[0-9.]+", version) for version in npm["devDependencies"].values())
    assert "resolved" not in text_of("package-lock.json"), "the lock file names no address"


def test_make_lists_its_targets():
    """Plain `make` shows each target with a line, and each is there."""
    said = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("profile=NAME", "all", "demo", "check", "test", "bench", "trace", "clean"):
        assert re.search(rf"^make {target}\b.*", said, re.M), target


def test_the_job_of_the_readme_compiles_and_names_every_line(tmp_path):
    """README: every line of demo.yaml is the reader's own, and what it shows is a whole job."""
    job = re.search(r"```yaml\n(.*?)```", text_of("README.md"), re.S)[1]

    def keys(text):
        return re.findall(r"^(\w+):", text, re.M)

    assert keys(job) == keys(text_of("jobs/demo.yaml"))
    stall, minutes = (float(re.search(rf"{name}: ([0-9.]+)", job)[1]) for name in ("stall_s", "minutes"))
    assert stall >= 600 and stall >= minutes * 60 / 2  # the demo's 120 s would end a silent first epoch
    (tmp_path / "sweep.yaml").write_text(job + "\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "generator", "compile", "runpod", "--job", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out")], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out/box/queue.tsv").read_text().splitlines()) >= 6
