"""Time and memory of verify_local.py against a plain script that hashes with hashlib and then loads with torch.

usage: python tests/bench/bench_verify.py [--mb 512] [--files 4] [--rounds 3] [--check]
Prints ratios, medians of the rounds; --check exits 1 where one misses its limit (issue: 0.6 of the time, a third of
the memory; without torch 1.5 times hashing alone).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from verify_bundles import manifest, script_text, seal  # noqa: E402

MAKE = """
import sys, torch
folder, files, mb = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for n in range(files):
    torch.save({"model": {str(i): torch.randn(mb << 14) for i in range(16)}, "epoch": n}, f"{folder}/{n}.pth")
"""
PLAIN = """
import hashlib, sys, torch
for path in sys.argv[1:]:
    with open(path, "rb") as f:
        hashlib.file_digest(f, "sha256").hexdigest()
    torch.load(path, map_location="cpu", weights_only=True)
"""
HASH = """
import hashlib, sys
for path in sys.argv[1:]:
    with open(path, "rb") as f:
        hashlib.file_digest(f, "sha256").hexdigest()
"""


def measure(command, env=None):
    """(seconds, peak KiB of the largest process) of one command; the peak needs a process in between."""
    code = ("import resource, subprocess, sys, time\nt = time.monotonic()\nr = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
            "print(r.returncode, time.monotonic() - t, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, env=env, check=True)
    status, seconds, peak = done.stdout.split()
    if status != "0":
        raise SystemExit(f"{command[:3]} ended with {status}: {done.stderr}")
    return float(seconds), int(peak)


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("--mb", 512), ("--files", 4), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "L"
        cell = folder / "final_ckpts" / "c1"
        cell.mkdir(parents=True)
        subprocess.run([sys.executable, "-c", MAKE, str(cell), str(args.files), str(args.mb)], check=True)
        paths = sorted(cell.iterdir())
        record = manifest(folder, {"c1": "done"}, {f"final_ckpts/c1/{path.name}": b"" for path in paths})
        for one, path in zip(record["files"], paths):
            digest = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]
            one.update(bytes=path.stat().st_size, sha256=digest)
        record["bytes_total"] = sum(one["bytes"] for one in record["files"])
        (folder / "PULL_MANIFEST.json").write_bytes(seal(record))
        script = Path(top) / "verify_local.py"
        script.write_text(script_text())
        (Path(top) / "blocked").mkdir()
        (Path(top) / "blocked" / "torch.py").write_text("raise ImportError\n")
        without = {**os.environ, "PYTHONPATH": str(Path(top) / "blocked")}
        names = [str(path) for path in paths]
        rounds = [(measure([sys.executable, "-c", PLAIN, *names]), measure([sys.executable, str(script), str(folder)]),
                   measure([sys.executable, "-c", HASH, *names]), measure([sys.executable, str(script), str(folder)], without)) for _ in range(args.rounds)]
    plain, ours, hashing, bare = ((statistics.median(r[i][0] for r in rounds), max(r[i][1] for r in rounds)) for i in range(4))
    print(f"{args.files} x {args.mb} MB: plain {plain[0]:.2f} s {plain[1] >> 10} MiB; ours {ours[0]:.2f} s {ours[1] >> 10} MiB;"
          f" hashing alone {hashing[0]:.2f} s; ours without torch {bare[0]:.2f} s {bare[1] >> 10} MiB")
    ratios = {"time with torch": (ours[0] / plain[0], 0.6), "memory with torch": (ours[1] / plain[1], 1 / 3), "time without torch / hashing": (bare[0] / hashing[0], 1.5)}
    for name, (ratio, limit) in ratios.items():
        print(f"{name}: {ratio:.2f} (limit {limit:.2f})")
    return int(args.check and any(ratio > limit for ratio, limit in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
