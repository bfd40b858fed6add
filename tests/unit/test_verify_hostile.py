"""verify_local.py against files that want to run, to hang or to eat the machine (cases 114 and 119; trap T28), and with the real torch."""

import json
import os
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from verify_bundles import (GOOD, LEGACY_MAGIC, METRICS, ONES, bundle, legacy, npy, run, state_dict, tensor, torch_zip, word, zipped)


def raw_kinds(canary: Path) -> dict[str, bytes]:
    """Pickles that make the canary file when anything runs them."""
    shell = f"touch {canary}"
    text, name = word(shell), os.name == "posix" and "posix"
    code = word(f"open({str(canary)!r}, 'w')")
    system = f"c{name}\nsystem\n".encode()
    return {
        "reduce": b"\x80\x02" + system + text + b"\x85R.",
        "stack_global": b"\x80\x04" + word(name) + word("system") + b"\x93" + text + b"\x85R.",
        "stack_global by memo": b"\x80\x04(" + word("system") + b"\x94" + word(name) + b"\x94" + b"1h\x01h\x00\x93" + text + b"\x85R.",
        "inst": b"(S'" + shell.encode() + b"'\ni" + name.encode() + b"\nsystem\n.",
        "obj": b"\x80\x02(" + system + text + b"o.",
        "eval": b"\x80\x02cbuiltins\neval\n" + code + b"\x85R.",
        "newobj": b"\x80\x02csubprocess\nPopen\n((" + b"lp0\n" + word("touch") + b"a" + word(str(canary)) + b"at\x81.",
        "newobj_ex": b"\x80\x04csubprocess\nPopen\n)}" + word("args") + b"](" + word("touch") + word(str(canary)) + b"es\x92.",
        "build": b"\x80\x02ctypes\nSimpleNamespace\n)R}" + word("a") + system + text + b"\x85Rsb.",
        "getattr": b"\x80\x02cbuiltins\ngetattr\n(c" + name.encode() + b"\n__dict__\n" + word("get") + b"tR" + word("system") + b"\x85R" + text + b"\x85R.",
        "dotted": b"\x80\x04" + word("os") + word("path.os.system") + b"\x93" + text + b"\x85R.",
        "second pickle": b"\x80\x02}." + b"\x80\x02" + system + text + b"\x85R.",
        "protocol 0": b"c" + name.encode() + b"\nsystem\n(S'" + shell.encode() + b"'\ntR.",
        "popped": b"\x80\x02" + system + text + b"\x85R0}.",
        "after an error": b"\x80\x02" + system + text + b"\x85RRRR.",
    }


def all_kinds(canary: Path) -> dict[str, tuple[str, bytes]]:
    """Every kind: (file name, bytes)."""
    raw = raw_kinds(canary)
    reduce = raw["reduce"]
    good = state_dict({"w": tensor("FloatStorage", "0", 6, (6,))})
    evil = good[:-2] + word("x") + reduce[2:-1] + b"u."
    out = {f"{kind} as {name}": (name, data) for kind, data in raw.items() for name in ("m.pkl", "m.bin", "m.dat") if kind not in ("inst", "protocol 0") or name == "m.pkl"}
    out.update({f"{kind} in a torch zip": ("best.pth", torch_zip(data, {"0": ONES})) for kind, data in raw.items() if kind != "second pickle"})
    out.update({
        "extension code": ("m.pkl", b"\x80\x02\x82\x01)R."),
        "persistent id": ("m.pkl", b"P" + b"touch %s" % str(canary).encode() + b"\n."),
        "persistent id in a torch zip": ("best.pth", torch_zip(b"\x80\x02" + reduce[2:-1] + b"Q.")),
        "torch zip beside a good dict": ("best.pth", torch_zip(evil, {"0": ONES})),
        "second pickle in a torch zip": ("best.pth", torch_zip(good, {"0": ONES}, **{"extra.pkl": reduce})),
        "zip with a pickle": ("results.zip", zipped({"a/b/c.pkl": reduce})),
        "deflated torch zip": ("best.pth", zipped({"b/data.pkl": evil, "b/data/0": ONES}, zipfile.ZIP_DEFLATED)),
        "legacy torch, object": ("best.pth", legacy(evil.replace(b"tQJ", b"NtQJ"), {"0": (6, ONES)})),
        "legacy torch, header": ("best.pth", LEGACY_MAGIC + reduce + b"\x80\x02}." + good + b"\x80\x02]."),
        "legacy torch, keys": ("best.pth", LEGACY_MAGIC + b"\x80\x02M\xe9\x03." + b"\x80\x02}." + b"\x80\x02}." + reduce),
        "npy of objects": ("a.npy", npy("|O", (1,), reduce)),
        "npy with objects inside": ("a.npy", npy("|O", (1,), b"\x80\x02](" + reduce[2:-1] + b"e.")),
        "npz of objects": ("a.npz", zipped({"a.npy": npy("|O", (1,), reduce)})),
        "safetensors by name": ("m.safetensors", reduce),
        "json by name": ("m.json", reduce),
        "tar by name": ("m.pth.tar", reduce),
        "bytes loader of torch": ("m.pkl", b"\x80\x02ctorch.storage\n_load_from_bytes\n" + word("x") + b"\x85R."),
    })
    return out


NAMES = {**dict.fromkeys(("reduce", "stack_global", "stack_global by memo", "inst", "obj", "build", "second pickle", "protocol 0", "popped"), "posix.system"),
         "eval": "builtins.eval", "newobj": "subprocess.Popen", "newobj_ex": "subprocess.Popen", "getattr": "(a computed callable) builtins.getattr",
         "dotted": "os.path.os.system", "extension code": "(extension code 1)", "legacy torch, object": "posix.system", "npy of objects": "posix.system",
         "bytes loader of torch": "torch.storage._load_from_bytes", "zip with a pickle": "posix.system", "second pickle in a torch zip": "posix.system"}


def test_the_canary_sings_when_a_pickle_is_run(tmp_path):
    """Else the next test proves nothing."""
    sang = 0
    for kind, data in raw_kinds(tmp_path / "canary").items():
        (tmp_path / "x.pkl").write_bytes(data)
        subprocess.run([sys.executable, "-c", "import pickle, sys\nf = open(sys.argv[1], 'rb')\nfor _ in range(2): r = pickle.load(f)\nr", str(tmp_path / "x.pkl")],
                       capture_output=True, timeout=20)
        if not (tmp_path / "canary").exists():  # Popen: give it its moment
            subprocess.run(["sleep", "0.2"], check=True)
        sang += (tmp_path / "canary").exists()
        (tmp_path / "canary").unlink(missing_ok=True)
    assert sang >= 12


@pytest.mark.parametrize("mode", ["without torch", "with torch", "names allowed", "accepted"])
def test_no_pickle_is_ever_run(script, tmp_path, mode):  # case 114, T28: more than ten kinds, in every mode
    if mode == "with torch":
        pytest.importorskip("torch")
    canary = tmp_path / "canary"
    kinds = all_kinds(canary)
    folder = bundle(tmp_path / "L", {f"c{i}": {name: data} for i, (name, data) in enumerate(kinds.values())}, records=False)
    paths = [f"final_ckpts/c{i}/{name}" for i, (name, _) in enumerate(kinds.values())]
    args = ["--allow", "types.SimpleNamespace", "--allow", "numpy.object_"] if mode == "names allowed" else []
    args += [part for path in paths for part in ("--accept", path + "=trust me")] if mode == "accepted" else []
    done = run(script, folder, "--json", *args, torch=mode == "with torch", cwd=folder)
    assert not canary.exists()
    files = {one["path"]: one for one in json.loads(done.stdout)["runs"][0]["files"]}
    for (kind, (name, _)), path in zip(kinds.items(), paths):
        if mode == "accepted":
            assert files[path]["verdict"] in ("ok", "corrupt", "truncated") and files[path]["accepted"] in ("needs-allowlist", "unproven", ""), kind
        elif kind.split(" as ")[0] in NAMES and mode == "without torch":
            assert files[path]["verdict"] == "needs-allowlist" and NAMES[kind.split(" as ")[0]] in files[path]["text"], (kind, files[path])
        elif kind == "persistent id":
            assert files[path]["verdict"] == "ok"  # text that nothing reads
        else:
            assert files[path]["verdict"] in ("needs-allowlist", "corrupt", "truncated") if mode != "with torch" or name != "best.pth" else files[path]["verdict"] != "ok", (kind, files[path])
    assert done.returncode == 1 and not (folder / "PULL_VERIFIED.json").exists()


def test_the_names_are_said(script, tmp_path):  # case 114: needs-allowlist NAMES is not corrupt
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": torch_zip(b"\x80\x02}" + word("cfg") + b"capp.conf\nConfig\n)Rs.")}})
    done = run(script, folder)
    assert done.returncode == 1 and "needs-allowlist: app.conf.Config; if the names are yours: --allow app.conf.Config" in done.stdout
    good = state_dict({"w": tensor("FloatStorage", "0", 6, (6,))})
    bundle(folder, {"c1": {"best.pth": torch_zip(good[:-2] + word("cfg") + b"capp.conf\nConfig\n)Ru.", {"0": ONES})}})
    (tmp_path / "app").mkdir()
    (tmp_path / "app/conf.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nclass Config: pass\n")
    assert run(script, folder, "--allow", "app.conf.Config", torch=True, env={"PYTHONPATH": str(tmp_path)}).returncode == 0
    assert not (tmp_path / "imported").exists()


def test_a_torch_in_the_pulled_folder_is_not_imported(script, tmp_path):
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": GOOD}})
    for name in ("torch", "json", "zipfile"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\n")
    assert run(script, folder, cwd=folder, torch=True).returncode == 0 and not (tmp_path / "canary").exists()


# --- bounded ---
def limited():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def run_limited(script, folder, *args):
    """With 1 GiB of address space and 60 s. Threads' stacks are kept small: they are counted too."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(script.parent / "blocked"), "MALLOC_ARENA_MAX": "2"}
    return subprocess.run([sys.executable, str(script), str(folder), "--json", *args], capture_output=True, text=True, preexec_fn=limited, timeout=60, env=env)


def test_hostile_sizes_do_not_eat_the_machine(script, tmp_path):
    zeros = zipped({"a.npy": npy("<f4", (100_000_000,), b"") + b"\0" * 400_000_000}, zipfile.ZIP_DEFLATED)
    bomb = bytearray(zipped({"best/data.pkl": b"\x80\x02}.", "best/x": b"\0" * 50_000_000}, zipfile.ZIP_DEFLATED))
    lie = bytes(bomb).replace(struct.pack("<I", 50_000_000), struct.pack("<I", 1000))
    huge = bytes(bomb).replace(struct.pack("<I", 50_000_000), struct.pack("<I", 0xFFFFFFF0))
    files = {
        "zeros.npz": (zeros, "suspicious"), "lie.pth": (lie, "corrupt"), "huge.pth": (huge, "unproven corrupt"),
        "head.safetensors": (struct.pack("<Q", 2**63) + b"x", "corrupt"), "head2.safetensors": (struct.pack("<Q", 2**64 - 1) + b"x" * 99, "corrupt"),
        "shape.npy": (npy("<f8", (2**62, 2**62), b"x"), "truncated"), "unicode.npy": (npy("<U999999", (9**15,), b"x"), "truncated"),
        "len.pkl": (b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x", "truncated"), "bytearray.pkl": (b"\x80\x05\x96" + struct.pack("<Q", 2**63) + b"x", "corrupt truncated"),
        "frame.pkl": (b"\x80\x04\x95" + struct.pack("<Q", 2**64 - 1) + b"N.", "ok"), "laughs.pkl": (b"\x80\x02]q\x00" + b"(h\x00h\x00tq\x00" * 5000 + b".", "corrupt"),
        "many.pth": (torch_zip(b"\x80\x02" + b"N0" * 1_600_000 + b"N."), "unproven"),
        "header.safetensors": (struct.pack("<Q", 90_000_000) + b" " * 90_000_000, "unproven"), "puts.pkl": (b"\x80\x02N" + b"r\xff\xff\xff\x7f" * 9999 + b".", "ok"),
        "deep.pth": (torch_zip(b"\x80\x02" + b"]" * 1 + b"}(" * 200000 + b"." + b""), "corrupt"),
        "nest.pth": (torch_zip(b"\x80\x02" + b"]" * 300000 + b"a" * 299999 + b"."), "suspicious"),
        "keys.pth": (torch_zip(b"\x80\x02" + b"}" + b"(" * 99999 + b"N" + b"t" * 99999 + b"Ns."), "suspicious"),
        "deep.json": (b'{"a":' * 500000, "corrupt"), "digits.json": (b"[" + b"9" * 3_000_000 + b"]", "suspicious"),
    }
    done = run_limited(script, bundle(tmp_path / "L", {"c1": {name: data for name, (data, _) in files.items()}}))
    assert done.returncode == 1, done.stderr
    for one in json.loads(done.stdout)["runs"][0]["files"]:
        assert "lie" not in one["path"] or "more than it says" in one["text"]
        assert one["verdict"] in files[one["path"].rsplit("/", 1)[1]][1].split(), one


def test_big_files_take_little_memory(script, tmp_path):  # case 122, T28: 1 GB of zeros, sparse
    folder = bundle(tmp_path / "L", {"c1": {"m.safetensors": b"", "x.json": METRICS}})
    path, size = folder / "final_ckpts/c1/m.safetensors", 1 << 30
    head = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        out.truncate(8 + len(head) + size)
    import hashlib
    from verify_bundles import manifest, seal
    record = manifest(folder, {"c1": "done"}, {"final_ckpts/c1/m.safetensors": b"", "final_ckpts/c1/x.json": METRICS})
    with open(path, "rb") as back:
        record["files"][0].update(bytes=path.stat().st_size, sha256=hashlib.file_digest(back, "sha256").hexdigest())
    record["bytes_total"] += path.stat().st_size
    (folder / "PULL_MANIFEST.json").write_bytes(seal(record))
    code = "import resource, subprocess, sys\nr = subprocess.run([sys.executable, *sys.argv[1:]]).returncode\nprint(r, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", code, str(script), str(folder)], capture_output=True, text=True, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(script.parent / "blocked")})
    assert "suspicious: w: all zero" in done.stdout
    rc, peak = done.stdout.split()[-2:]
    assert rc == "1" and int(peak) < 80_000, done.stdout


def test_each_file_is_read_once(script, tmp_path):  # T28
    data = torch_zip(state_dict({"w": tensor("FloatStorage", "0", 2_000_000, (2_000_000,))}), {"0": struct.pack("<f", 1.5) * 2_000_000})
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": data}})
    names = {"__name__": "verify_local"}
    exec(compile(script.read_text(), "verify_local.py", "exec"), names)
    before, taken = names["Source"].read, []

    class Counting(names["Source"]):
        def read(self, n=-1):
            got = before(self, n)
            taken.append(len(got))
            return got
    names["Source"] = Counting
    entry = json.loads((folder / "PULL_MANIFEST.json").read_text())["files"][0]
    assert names["check_file"](str(folder), entry, set()).verdict == "ok"
    assert len(data) <= sum(taken) < len(data) + 100_000 and max(taken) <= 1 << 20


# --- the real torch ---
@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Checkpoints as torch itself writes them: one script, one process, both ways of writing."""
    pytest.importorskip("torch")
    import torch
    out = tmp_path_factory.mktemp("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last), torch.nn.Linear(8, 2).half())
    net[1].weight.data += 0.5
    net[1].bias.data += 0.5
    net[1](torch.randn(9, 8))
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    adam.param_groups[0]["params"][0].grad = torch.ones(3)
    adam.step()
    base = torch.arange(1.0, 13)
    objects = {
        "plain": net.state_dict(), "nested": {"model": net.state_dict(), "optim": adam.state_dict(), "epoch": 3, "args": {"lr": 0.1, "w": [1, 2]}},
        "views": {"a": base[:6].view(2, 3), "b": base[6:], "t": base.view(3, 4).t(), "tied": base},
        "kinds": {str(d): torch.ones(3, dtype=d) for d in (torch.float64, torch.bfloat16, torch.complex64, torch.int8, torch.bool, torch.uint8, torch.int16)},
        "parameter": {"p": torch.nn.Parameter(torch.ones(2)), "s": torch.Size([1, 2]), "d": torch.float32},
        "tensor": torch.ones(5), "list": [torch.ones(1), (torch.ones(2),)], "empty": {"w": torch.ones(2), "e": torch.empty(0)},
    }
    for name, value in objects.items():
        torch.save(value, out / f"{name}.pth")
        torch.save(value, out / f"{name}.legacy.pth", _use_new_zipfile_serialization=False)
    torch.save({"f8": torch.ones(3).to(torch.float8_e4m3fn), "w": torch.ones(2)}, out / "float8.pth")
    torch.save({"q": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "w": torch.ones(2)}, out / "quantized.pth")
    torch.save({"w": torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,))}, out / "sparse.pth")
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


@pytest.mark.parametrize("torch_here", [False, True])
def test_what_torch_writes_is_ok(script, tmp_path, made, torch_here):  # case 114, T24: plain and nested state dicts, with and without torch
    done = run(script, bundle(tmp_path / "L", {"c1": made}), "--json", torch=torch_here)
    files = json.loads(done.stdout)["runs"][0]["files"]
    assert [(one["path"], one["verdict"], one["text"]) for one in files if one["verdict"] != "ok"] == []
    assert all(("loaded by torch" if torch_here else "without torch") in one["how"] for one in files) and done.returncode == 0


def test_what_torch_writes_and_is_not_fit(script, tmp_path):  # case 114, 122
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    import io
    objects = {"nan": {"w": torch.tensor([1.0, float("nan")])}, "mask": {"m": torch.full((2, 2), float("-inf")).triu(1)}, "zero": {"w": torch.zeros(2, 3)},
               "module": torch.nn.Linear(2, 2), "scalar": {"w": torch.ones(1), "f1": numpy.float64(0.5)}, "none": {"model": None}}
    files = {}
    for name, value in objects.items():
        out = io.BytesIO()
        torch.save(value, out)
        files[name + ".pth"] = out.getvalue()
    done = run(script, bundle(tmp_path / "L", {"c1": files}), "--json", torch=True)
    got = {one["path"].rsplit("/", 1)[1][:-4]: one["verdict"] for one in json.loads(done.stdout)["runs"][0]["files"]}
    assert got == {"nan": "suspicious", "mask": "suspicious", "zero": "suspicious", "module": "needs-allowlist", "scalar": "needs-allowlist", "none": "suspicious"}


def test_safetensors_and_numpy_as_their_libraries_write_them(script, tmp_path):  # case 116
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({str(d): torch.ones(3, dtype=d) for d in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.float8_e4m3fn)}, tmp_path / "m.safetensors", {"a": "b"})
    numpy.savez(tmp_path / "a.npz", x=numpy.ones(5), y=numpy.array(["a", "bc"]), z=numpy.ones(3, dtype=[("a", "<f4"), ("b", "<i8", (2,))]))
    numpy.savez_compressed(tmp_path / "b.npz", x=numpy.arange(999.0))
    numpy.save(tmp_path / "c.npy", numpy.asfortranarray(numpy.ones((3, 4), dtype=">f8")))
    numpy.save(tmp_path / "o.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    done = run(script, bundle(tmp_path / "L", {"c1": files}), "--json")
    got = {one["path"].rsplit("/", 1)[1]: one["verdict"] for one in json.loads(done.stdout)["runs"][0]["files"]}
    assert got == {"m.safetensors": "ok", "a.npz": "ok", "b.npz": "ok", "c.npy": "ok", "o.npy": "needs-allowlist"}
