"""Lint every script that the profiles compile to, and our own: bash -n, shellcheck, shfmt; a missing checker is an error.

usage: lint_scripts.py [FOLDER]    FOLDER holds one compiled folder for each profile (default: compiled anew, in a temporary folder)

Below its block of bound values a script is the same for every profile of a kind (a test holds that). So shellcheck reads
one whole script for each different body, and of the others the part down to the end of the block, where values differ.
bash -n and shfmt read all of them whole, and Python compiles its own, the cells of the notebooks among them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"
BLOCK_END = b"# --- end of bound values ---\n"
SHFMT = ["-d", "-i", "2", "-ci"]
ALONE = "SC2034,SC2153,SC2154"  # a library or a block alone: names that the rest of the script gives or uses


def run(words: list[str | Path]) -> str:
    """What a checker says, empty where it is content."""
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode == 0:
        return ""
    return done.stdout or f"{words[0]} ended with {done.returncode}\n"


def compile_all(folder: Path) -> str:
    """Every profile into FOLDER/<profile>, and what went wrong."""
    said = ""
    for profile in sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml")):
        words = [sys.executable, "-m", "generator", "compile", profile, "--out", str(folder / profile)]
        said += run(words)
    return said


def split(scripts: list[Path], tops: Path) -> tuple[list[Path], list[Path]]:
    """Scripts to read whole, one for each different body, and files in `tops` with the upper parts of the others."""
    bodies: dict[tuple[str, bytes], list[Path]] = defaultdict(list)
    for script in scripts:
        top, found, body = script.read_bytes().partition(BLOCK_END)
        bodies[script.name, body if found else top].append(script)
    others = [script for same in bodies.values() for script in same[1:]]
    parts = []
    for script in others:
        part = tops / "/".join(script.parts[-3:])
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(script.read_bytes().partition(BLOCK_END)[0])
        parts.append(part)
    return [same[0] for same in bodies.values()], parts


def chunks(words: list[str | Path], files: list[Path], size: int) -> list[list[str | Path]]:
    """Calls of a checker with some files each, so that all cores have work."""
    return [[*words, *files[at : at + size]] for at in range(0, len(files), size)]


def own_scripts() -> tuple[list[Path], list[Path]]:
    """Bash of this repository that is not compiled: whole scripts, and libraries that other text is put around."""
    whole = [*(ROOT / "tools").glob("*.sh"), ROOT / ".ci/run", ROOT / "tests/bats/helper.bash"]
    return sorted(whole), sorted((ROOT / "templates/lib").glob("*.bash"))


def python_faults(files: list[Path]) -> str:
    """What Python itself says of scripts that it cannot read."""
    said = ""
    for file in files:
        try:
            compile(file.read_bytes(), str(file), "exec")
        except (SyntaxError, ValueError) as error:
            said += f"{file}: {error}\n"
    return said


def main() -> int:
    """Print all findings; 0 where there is none, 69 where a checker is missing."""
    for tool in ("shellcheck", "shfmt"):
        if not (BIN / tool).is_file():
            print(f"lint_scripts: {tool} is missing from .venv; run: make check", file=sys.stderr)
            return 69
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary) / "compiled"
        findings = [] if len(sys.argv) > 1 else [compile_all(folder)]
        scripts = sorted(folder.glob("*/*/*.sh"))
        pythons = [*sorted(folder.glob("*/*/*.py")), *sorted((ROOT / "templates").glob("*/*.py"))]
        findings.append(python_faults(pythons))
        whole, tops = split(scripts, Path(temporary) / "tops")
        own, libraries = own_scripts()
        check = [BIN / "shellcheck", "--rcfile", ROOT / ".shellcheckrc", "-S", "style"]
        calls = [
            *chunks(check, whole + own, 2), *chunks([*check, "-e", ALONE], tops, 40), *chunks([*check, "-e", ALONE], libraries, 4),
            *chunks([BIN / "shfmt", *SHFMT], [*scripts, *own, *libraries], 60), *([["bash", "-n", one] for one in [*scripts, *own, *libraries]]),
        ]
        with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
            findings += pool.map(run, calls)
    text = "".join(findings)
    sys.stdout.write(text)
    print(f"lint_scripts: {len(scripts)} compiled scripts ({len(whole)} different bodies), {len(own)} of our own, {len(libraries)} libraries, {len(pythons)} of Python"
          + (": findings above" if text else ": clean"))
    return 1 if text or not scripts else 0


if __name__ == "__main__":
    sys.exit(main())
