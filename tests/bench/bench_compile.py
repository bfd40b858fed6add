"""How long a compile takes, as ratios to importing its three libraries: python tests/bench/bench_compile.py [ROUNDS].

Aims: one profile cold at most 2 times, all profiles in one process at most 5 times, a job of 100,000 cells in under 10 s
and 300 MB. Each figure is the median of the rounds, taken in turn, so that a busy moment hits all of them.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALL = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from generator import cli
cli.default_out = lambda profile, job, without: Path({out!r}) / profile
sys.exit(cli.run(["compile", "--all"]))
"""


def timed(words: list[str]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def big_job(folder: Path) -> Path:
    """A job of 100,000 cells, written out one by one: the costlier of the two ways."""
    text = (ROOT / "tests/unit/fixtures/sweep.yaml").read_text(encoding="utf-8")
    cells = "cells:\n" + "\n".join(f"  - {{lr: {i}, width: 32}}" for i in range(100_000))
    text = text.replace("matrix: {lr: [0.10, 1e-2], width: [32, 64]}", cells).replace("disk_gb: 2.5", "disk_gb: 0.00001")
    path = folder / "big.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def main(rounds: int) -> int:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = {
            "import": [sys.executable, "-c", "import yaml, jinja2, jsonschema"],
            "one": [sys.executable, "-m", "generator", "compile", "runpod", "--out", str(folder / "one")],
            "all": [sys.executable, "-c", ALL.format(root=str(ROOT), out=str(folder / "all"))],
        }
        times: dict[str, list[float]] = {key: [] for key in runs}
        for words in runs.values():
            timed(words)  # once, so that compiled templates and byte code are kept
        for _ in range(rounds):
            for key, words in runs.items():
                times[key].append(timed(words))
        middle = {key: statistics.median(values) for key, values in times.items()}
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "generator", "compile", "local", "--job", str(big_job(folder)), "--out", str(folder / "big")],
                       cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        big = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    profiles = len(list((ROOT / "profiles").glob("*.yaml")))
    base = middle["import"]
    print(f"importing yaml, jinja2, jsonschema         {base * 1000:6.0f} ms")
    print(f"compile of one profile, cold               {middle['one'] * 1000:6.0f} ms   {middle['one'] / base:4.2f} x   (aim: 2)")
    print(f"compile of all {profiles} profiles, one process     {middle['all'] * 1000:6.0f} ms   {middle['all'] / base:4.2f} x   (aim: 5)")
    print(f"compile of 100,000 cells                   {big * 1000:6.0f} ms   {memory:4.0f} MB at most   (aims: 10 s, 300 MB)")
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
