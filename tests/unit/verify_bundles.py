"""Bundles and checkpoints made by hand, for the tests of verify_local.py. Nothing here uses the script's own code."""

import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN_ID = "20260803T141500Z-1f3a9c04"
COMMIT = "a" * 40


def script_text() -> str:
    """The script as the compiler makes it, with two plain values in its block."""
    text = (ROOT / "templates/local/verify_local.py.j2").read_text(encoding="utf-8")
    text = re.sub(r"\{\{ const\('(\w+)'\) \}\}", r"\1 = 'demo'", text)
    lib = lambda name: (ROOT / f"templates/lib/{name}.py").read_text(encoding="utf-8").rstrip("\n") + "\n"  # noqa: E731
    text = re.sub(r"\{\{ lib\((.*?)\) \}\}", lambda m: "\n".join(map(lib, re.findall(r"'(\w+)'", m[1]))).rstrip("\n"), text)
    text = re.sub(r"\{\{ (header|bound_begin|bound_end)\(.*\) \}\}", "# ", text)
    assert "{{" not in text.replace("{{}}", "")
    return text


def line_json(record: dict) -> str:
    """The layout of the contracts, section 2."""
    out = []
    for key, value in record.items():
        if isinstance(value, list):
            out.append(f'  "{key}": [\n' + ",\n".join("    " + json.dumps(one, ensure_ascii=False) for one in value) + "\n  ]")
        else:
            out.append(f'  "{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(out) + "\n}\n"


def seal(record: dict) -> bytes:
    """A manifest with its own digest at the end."""
    record = {k: v for k, v in record.items() if k != "self_sha256"}
    above = line_json(record)[: -len("\n}\n")] + ",\n"
    return (above + f'  "self_sha256": "{hashlib.sha256(above.encode()).hexdigest()}"\n' + "}\n").encode()


def manifest(folder: Path, cells: dict[str, str], files: dict[str, bytes]) -> dict:
    listed = [{"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "path": path} for path, data in files.items()]
    return {"schema": "pull_manifest/1", "run_id": RUN_ID, "commit": COMMIT, "cells_expected": len(cells),
            "cells_done": sum(state == "done" for state in cells.values()), "files_total": len(listed),
            "bytes_total": sum(one["bytes"] for one in listed),
            "cells": [{"cell": cell, "state": state, "why": "diverged" if state == "excepted" else ""} for cell, state in cells.items()], "files": listed}


def bundle(folder: Path, cells: dict[str, dict[str, bytes]], other: dict[str, str] | None = None, records: bool = True) -> Path:
    """A folder as pull leaves it. `cells`: files by name; `other`: cells in another state."""
    files = {f"final_ckpts/{cell}/{name}": data for cell, named in cells.items() for name, data in named.items()}
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    folder.mkdir(parents=True, exist_ok=True)
    states = {**{cell: "done" for cell in cells}, **(other or {})}
    (folder / "PULL_MANIFEST.json").write_bytes(seal(manifest(folder, states, files)))
    if records:
        (folder / "records").mkdir(exist_ok=True)
        for number, cell in enumerate(cells, 1):
            (folder / "records" / f"{cell}.json").write_text(line_json({
                "schema": "cell/1", "run_id": RUN_ID, "cell": cell, "state": "done", "attempt": number, "started": "2026-08-03T14:20:00Z",
                "ended": "2026-08-03T14:51:07Z", "gpu": "NVIDIA L4, 550.54.15", "command_sha256": "c" * 64, "tracker_url": f"https://tracker.example/{cell}"}))
    return folder


def run(script: Path, *args, torch: bool = False, cwd=None, env: dict | None = None):
    """Run the script; without torch an import of it fails honestly."""
    blocked = script.parent / "blocked"
    if not blocked.exists():
        blocked.mkdir()
        for name in ("torch", "numpy", "safetensors"):
            (blocked / f"{name}.py").write_text(f"raise ImportError('no {name} here')\n")
    base = {"PATH": os.environ["PATH"], "HOME": str(script.parent), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    if not torch:
        base["PYTHONPATH"] = str(blocked)
    return subprocess.run([sys.executable, str(script), *map(str, args)], capture_output=True, text=True, env=base, cwd=cwd, timeout=120)


# --- pickles by hand ---
def word(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def number(n: int) -> bytes:
    return b"J" + struct.pack("<i", n) if n < 2**31 else b"\x8a\x08" + struct.pack("<q", n)


def storage(kind: str, key: str, count: int) -> bytes:
    return b"(" + word("storage") + b"ctorch\n" + kind.encode() + b"\n" + word(key) + word("cpu") + number(count)


def tensor(kind: str, key: str, count: int, shape: tuple, offset: int = 0, legacy: bool = False) -> bytes:
    stride, step = [], 1
    for n in reversed(shape):
        stride.insert(0, step)
        step *= n
    sizes = b"(" + b"".join(map(number, shape)) + b"t(" + b"".join(map(number, stride)) + b"t"
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage(kind, key, count) + (b"N" if legacy else b"") + b"tQ" + number(offset) + sizes
            + b"\x89ccollections\nOrderedDict\n)RtR")


def state_dict(tensors: dict[str, bytes]) -> bytes:
    return b"\x80\x02}(" + b"".join(word(name) + made for name, made in tensors.items()) + b"u."


def zipped(members: dict[str, bytes], method=zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def torch_zip(pickle: bytes, storages: dict[str, bytes] | None = None, **more: bytes) -> bytes:
    members = {"best/data.pkl": pickle, "best/byteorder": b"little", **{f"best/data/{key}": data for key, data in (storages or {}).items()}}
    return zipped({**members, **{f"best/{name}": data for name, data in more.items()}, "best/version": b"3\n"})


ONES = struct.pack("<6f", 1, -2, 3, 4, 5, 6)
GOOD_PICKLE = state_dict({"fc.weight": tensor("FloatStorage", "0", 6, (2, 3)), "steps": tensor("LongStorage", "1", 1, ())})
GOOD = torch_zip(GOOD_PICKLE, {"0": ONES, "1": struct.pack("<q", 7)})
METRICS = b'{"val_acc": 0.91, "epoch": 12}\n'
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def legacy(pickle: bytes, storages: dict[str, tuple[int, bytes]]) -> bytes:
    """torch's format before 1.6."""
    info = b"\x80\x02}(" + word("protocol_version") + number(1001) + word("little_endian") + b"\x88u."
    keys = b"\x80\x02](" + b"".join(map(word, storages)) + b"e."
    return (LEGACY_MAGIC + b"\x80\x02M\xe9\x03." + info + pickle + keys
            + b"".join(struct.pack("<q", count) + data for count, data in storages.values()))


def safetensors(tensors: dict[str, tuple[str, list, bytes]], **change) -> bytes:
    head, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, shape, raw) in tensors.items():
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head.update(change)
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy(descr: str, shape: tuple, data: bytes) -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


NAN, INF = float("nan"), float("inf")


def last(done) -> str:
    return done.stdout.splitlines()[-1]


def verdict(script, folder, data, name="best.pth", args=(), torch=False):
    """(verdict, text, exit code) of one file in a bundle."""
    bundle(folder, {"c1": {name: data}})
    done = run(script, folder, "--json", *args, torch=torch)
    one = json.loads(done.stdout)["runs"][0]["files"][0]
    return one["verdict"], one["text"] or one["how"], done.returncode


def two(folder: Path) -> Path:
    return bundle(folder, {"lr=0.1,w32": {"best.pth": GOOD, "best_metrics.json": METRICS},
                           "lr=0.1,w64": {"best.pth": GOOD, "best_metrics.json": b'[{"val_acc": 0.1}, {"val_acc": 0.93}]'}})
