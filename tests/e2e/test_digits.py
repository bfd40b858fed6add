"""The example's trainer: stopped by a signal, then killed, it ends with the same bytes as one that was left alone (S51)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

TRAIN = Path(__file__).resolve().parents[2] / "examples/digits/train.py"


def start(out: Path, *words: str) -> subprocess.Popen:
    """The trainer on OUT, its output to a pipe."""
    return subprocess.Popen([sys.executable, TRAIN, "--out", out, "--epochs", "6", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def stop_after(out: Path, epochs: int, number: int) -> tuple[int, str]:
    """Start it slowly, send the signal once so many epochs are on disk, and give exit code and output."""
    process = start(out, "--pace", "0.3")
    until = time.monotonic() + 60
    while (out / "log.jsonl").read_text().count("\n") < epochs if (out / "log.jsonl").exists() else True:
        assert process.poll() is None and time.monotonic() < until, "it ended or hung before the signal"
        time.sleep(0.02)
    process.send_signal(number)
    text = process.communicate(timeout=60)[0]
    return process.returncode, text


def test_stopped_and_killed_it_ends_as_if_left_alone(tmp_path):
    """SIGTERM ends it with 143, SIGKILL at once; each start goes on from the last whole epoch."""
    alone, hurt = tmp_path / "alone", tmp_path / "hurt"
    process = start(alone)
    assert "starting from nothing" in process.communicate(timeout=120)[0] and process.returncode == 0
    code, text = stop_after(hurt, 1, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM and "epochs are saved" in text
    code, text = stop_after(hurt, 3, signal.SIGKILL)
    assert code == -signal.SIGKILL and "resumed after epoch" in text and "done: best" not in text
    process = start(hurt)
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and "resumed after epoch" in text, text
    for name in ("best.pth", "best_metrics.json"):
        assert (alone / name).read_bytes() == (hurt / name).read_bytes(), name
    # A kill between the log line and the next one may repeat an epoch in the log, but never changes what it found.
    rows = {json.loads(line)["epoch"]: line for line in (hurt / "log.jsonl").read_text().splitlines()}
    assert list(rows.values()) == (alone / "log.jsonl").read_text().splitlines()


def test_another_cells_checkpoint_is_not_taken(tmp_path):
    """A checkpoint with other settings is refused, not trained on."""
    assert start(tmp_path, "--batches", "1").wait(timeout=120) == 0
    process = start(tmp_path, "--batches", "1", "--lr", "0.5")
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "belongs to" in text
