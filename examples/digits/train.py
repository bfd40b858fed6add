"""Train a small classifier on scikit-learn's digits, on the CPU, so that it can be killed at any moment.

Each epoch ends with a checkpoint that is replaced atomically, and each start loads it: the identical command
resumes. An epoch depends on the seed and its number alone, so a run that was killed ends as one that was not.
Leaves best.pth and best_metrics.json in --out; deletes nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

HELD_OUT = 360  # of 1797 images
stopped_by = 0


def on_signal(number: int, _frame: object) -> None:
    """Only note it: the training loop leaves at the next batch."""
    global stopped_by
    stopped_by = number


def leave_if_stopped(epoch: int) -> None:
    """Exit 128+n after a signal. The last whole epoch is on disk already, so there is nothing to save."""
    if stopped_by:
        print(f"stopped by signal {stopped_by}; {epoch} epochs are saved", flush=True)
        sys.exit(128 + stopped_by)


def replace(path: Path, data: bytes) -> None:
    """Write a temporary file, flush it, then put it in place: never half a file under its name."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def packed(value: dict) -> bytes:
    """`torch.save` into memory: in a file, the archive would hold the temporary file's name."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, held-out images and labels; the same split always."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, data, given: argparse.Namespace, epoch: int) -> None:
    """One pass, in an order that depends on the seed and the epoch only."""
    images, labels, *_ = data
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(given.seed * 1000 + epoch))
    batches = order.split(given.batch_size)[: given.batches or None]
    until = time.monotonic() + given.pace
    model.train()
    for batch in batches:
        leave_if_stopped(epoch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    while time.monotonic() < until:
        leave_if_stopped(epoch)
        time.sleep(0.02)


def evaluate(model: nn.Module, data) -> tuple[float, float]:
    """Loss and accuracy on the held-out images."""
    *_, images, labels = data
    model.eval()
    with torch.no_grad():
        scores = model(images)
        return float(nn.functional.cross_entropy(scores, labels)), float((scores.argmax(1) == labels).float().mean())


def resume(latest: Path, model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict) -> tuple[int, float]:
    """Epochs done and the best accuracy so far: from the latest checkpoint where there is one, else from nothing."""
    if not latest.exists():
        print("starting from nothing", flush=True)
        return 0, -1.0
    found = torch.load(latest, weights_only=True)
    if found["settings"] != settings:
        sys.exit(f"{latest} belongs to {found['settings']}, not to {settings}")
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    print(f"resumed after epoch {found['epoch']} from {latest.name}", flush=True)
    return found["epoch"], found["best"]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and results")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=0, help="batches in an epoch; 0 = all")
    parser.add_argument("--pace", type=float, default=0.0, help="an epoch takes at least so many seconds, so that a person can watch it or kill it")
    parser.add_argument("--no-log", action="store_true", help="write no log.jsonl")
    return parser.parse_args()


def main() -> None:
    """Resume, train, keep the best."""
    given = parse()
    for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
        signal.signal(getattr(signal, name), on_signal)
    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(given.seed)
    data = load_data()
    model = nn.Sequential(nn.Linear(64, given.width), nn.ReLU(), nn.Linear(given.width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)
    settings = {name: getattr(given, name) for name in ("lr", "width", "seed", "batch_size", "batches")}
    done, best = resume(given.out / "latest.pth", model, optimizer, settings)
    for epoch in range(done, given.epochs):
        train_epoch(model, optimizer, data, given, epoch)
        loss, accuracy = evaluate(model, data)
        row = {"epoch": epoch + 1, "val_loss": loss, "val_accuracy": accuracy, **settings}
        if accuracy > best:
            best = accuracy
            replace(given.out / "best.pth", packed({"model": model.state_dict(), "epoch": epoch + 1}))
            replace(given.out / "best_metrics.json", (json.dumps(row, indent=2) + "\n").encode())
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1, "best": best, "settings": settings}
        if not given.no_log:
            with open(given.out / "log.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps(row) + "\n")
        replace(given.out / "latest.pth", packed(state))
        print(f"epoch {epoch + 1}/{given.epochs} loss {loss:.4f} accuracy {accuracy:.4f}", flush=True)
        leave_if_stopped(epoch + 1)
    print(f"done: best accuracy {best:.4f}", flush=True)


if __name__ == "__main__":
    main()
