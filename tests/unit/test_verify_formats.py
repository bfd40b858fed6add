"""verify_local.py format by format: whole, cut, not finite, sharded (cases 36, 114, 116, 118, 119, 122; traps T24 to T26)."""

import json
import os
import pickle
import random
import struct

import pytest
from verify_bundles import (
    GOOD, GOOD_PICKLE, INF, LEGACY_MAGIC, METRICS, NAN, ONES, bundle, last, legacy, npy, run, safetensors, state_dict, tensor, torch_zip,
    verdict, word, zipped,
)


F32 = safetensors({"w": ("F32", [2, 3], ONES), "n": ("I64", [1], b"\0" * 8)})
PLAIN = pickle.dumps({"a": [1, 2.5, None, "x", (1, 2), {3}, b"x", 2**80]}, 4)
NPZ = zipped({"a.npy": npy("<f4", (6,), ONES), "b.npy": npy("<i8", (1,), b"\0" * 8)})
ONE = {"w": tensor("FloatStorage", "0", 6, (6,))}
FORMATS = [
    ("torch zip", "best.pth", GOOD, "ok", "3 storages"[2:]),
    ("torch zip, deflated", "best.pth", zipped({"b/data.pkl": GOOD_PICKLE, "b/data/0": ONES, "b/data/1": b"\1" * 8}, 8), "ok", "2 storages"),
    ("torch zip, nested", "ck.ckpt", torch_zip(b"\x80\x02}(" + word("model") + state_dict(ONE)[2:-1] + word("epoch") + b"K\x05u.", {"0": ONES}), "ok", "1 storages"),
    ("no tensor", "best.pth", torch_zip(b"\x80\x02}" + word("model") + b"Ns."), "suspicious", "without a tensor"),  # T24
    ("storage gone", "best.pth", torch_zip(state_dict(ONE)), "corrupt", "not in the archive"),
    ("storage short", "best.pth", torch_zip(state_dict(ONE), {"0": ONES[:-1]}), "corrupt", "23 of 24 bytes"),
    ("tensor beyond", "best.pth", torch_zip(state_dict({"w": tensor("FloatStorage", "0", 6, (7,))}), {"0": ONES}), "corrupt", "needs 7 elements"),
    ("cut 1", "best.pth", GOOD[:-1], "truncated", "truncated archive"),  # case 119
    ("cut 30 %", "best.pth", GOOD[:len(GOOD) * 7 // 10], "truncated", "truncated archive"),
    ("cut 50 %", "best.pth", GOOD[:len(GOOD) // 2], "truncated", "truncated archive"),
    ("wrong CRC", "best.pth", GOOD.replace(ONES, ONES[:-1] + b"\x41"), "corrupt", "wrong CRC"),
    ("pickle cut", "best.pth", torch_zip(GOOD_PICKLE[:-9], {"0": ONES}), "truncated", "before its STOP"),
    ("two members", "best.pth", None, "corrupt", "two members of one name"),
    ("zip not torch", "best.pth", zipped({"a": b"x"}), "corrupt", "not as torch writes it"),
    ("empty", "best.pth", b"", "truncated", "empty"),  # case 36
    ("empty log", "stderr.log", b"", "ok", "empty"),
    ("zeros", "best.pth", b"\0" * 999, "corrupt", "zeros"),
    ("text", "best.pth", b"404 not found", "corrupt", "no format of that name"),
    ("legacy", "best.pth", legacy(state_dict({"w": tensor("FloatStorage", "9", 6, (6,), legacy=True)}), {"9": (6, ONES)}), "ok", "older torch stream"),
    ("legacy cut", "best.pth", legacy(state_dict({"w": tensor("FloatStorage", "9", 6, (6,), legacy=True)}), {"9": (6, ONES[:-3])}), "truncated", "by 3 bytes"),
    ("legacy long", "best.pth", legacy(state_dict({"w": tensor("FloatStorage", "9", 6, (6,), legacy=True)}), {"9": (6, ONES + b"x")}), "corrupt", "1 trailing"),
    ("legacy head only", "best.pth", LEGACY_MAGIC, "truncated", "before its STOP"),
    ("tar-named", "best.pth.tar", GOOD, "ok", "torch zip"),
    ("tar of old torch", "best.pth", b"sys_info".ljust(257, b"\0") + b"ustar\x0000" + b"\0" * 800, "unproven", "before 0.1.10"),
    ("safetensors", "m.safetensors", F32, "ok", "2 tensors"),
    ("st cut 1", "m.safetensors", F32[:-1], "truncated", "by 1 bytes"),  # case 116
    ("st cut to header", "m.safetensors", F32[:-32], "truncated", "by 32 bytes"),
    ("st cut in header", "m.safetensors", F32[:40], "truncated", "header has"),
    ("st long", "m.safetensors", F32 + b"x", "corrupt", "1 trailing"),
    ("st 2^63", "m.safetensors", struct.pack("<Q", 2**63) + b"{}", "corrupt", "not safetensors"),
    ("st zero", "m.safetensors", b"", "truncated", "empty"),
    ("st zeros", "m.safetensors", b"\0" * 64, "corrupt", "not JSON"),
    ("st torch", "m.safetensors", GOOD, "corrupt", "torch file under that name"),
    ("st overlap", "m.safetensors", safetensors({"w": ("F32", [6], ONES)}, v={"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}), "corrupt", "overlaps"),
    ("st gap", "m.safetensors", safetensors({"w": ("F32", [6], ONES)}, v={"dtype": "F32", "shape": [1], "data_offsets": [28, 32]}) + b"\0" * 8, "corrupt", "gap"),
    ("st span", "m.safetensors", safetensors({"w": ("F32", [7], ONES)}), "corrupt", "do not agree"),
    ("st negative", "m.safetensors", safetensors({"w": ("F32", [-2, -3], ONES)}), "corrupt", "do not agree"),
    ("st dtype", "m.safetensors", safetensors({"w": ("F99", [6], ONES)}), "corrupt", "unknown type"),
    ("st none", "m.safetensors", safetensors({}), "suspicious", "without a tensor"),
    ("st deep", "m.safetensors", struct.pack("<Q", 99000) + b'{"a":' + b"[" * 98995, "corrupt", "not JSON"),
    ("npy", "a.npy", npy("<f4", (2, 3), ONES), "ok", "npy"),
    ("npy cut", "a.npy", npy("<f4", (2, 3), ONES[:-2]), "truncated", "by 2 bytes"),
    ("npy huge", "a.npy", npy("<f4", (2**63,), ONES), "truncated", "truncated by"),
    ("npy header", "a.npy", npy("<q9", (6,), ONES), "corrupt", "npy header"),
    ("npy call in header", "a.npy", npy("<f4", (6,), ONES).replace(b"(6,)", b"f(6)"), "corrupt", "npy header"),
    ("npz", "a.npz", NPZ, "ok", "2 CRCs"),
    ("npz deflated", "a.npz", zipped({"a.npy": npy("<f4", (6,), ONES)}, 8), "ok", "CRCs"),
    ("npz inner cut", "a.npz", zipped({"a.npy": npy("<f4", (6,), ONES)[:-1]}), "truncated", "by 1 bytes"),
    ("npz none", "a.npz", zipped({"a.txt": b"x"}), "suspicious", "without an array"),
    ("json", "m.json", METRICS, "ok", "JSON"),
    ("json list", "m.json", b"[1.5, 2]", "ok", "JSON"),  # T25
    ("jsonl", "m.jsonl", b'{"a": 1}\n{"a": 2.5}\n', "ok", "JSON"),
    ("json cut", "m.json", METRICS[:-4], "truncated", "not JSON"),
    ("json cut word", "m.json", b'{"val_a', "truncated", "not JSON"),
    ("json bad", "m.json", b"{'a': 1}", "corrupt", "not JSON"),
    ("json deep", "m.json", b"[" * 300000, "corrupt", "not JSON"),
    ("json nan", "m.json", b'{"loss": NaN}', "suspicious", "NaN or infinite"),  # T24
    ("json huge", "m.json", b'{"loss": 1e999}', "suspicious", "NaN or infinite"),
    ("json word", "m.json", b'{"loss": "nan"}', "suspicious", "NaN or infinite"),
    ("json zero", "m.json", b'{"acc": 0.0}', "suspicious", "every metric is zero"),
    ("json none", "m.json", b"{}", "suspicious", "holds nothing"),
    ("pickle", "m.pkl", PLAIN, "ok", "walked, not loaded"),
    ("pickle cut", "m.pkl", PLAIN[:-1], "truncated", "before its STOP"),
    ("pickle 0", "m.pkl", pickle.dumps({"a": [1, 2.5, "x"]}, 0), "ok", "walked"),
    ("pickle junk", "m.pkl", b"\xff\xfe\xfd\xfc", "corrupt", "not a pickle"),
    ("pickle long line", "m.pkl", b"L" + b"9" * 100000 + b"L\n.", "corrupt", "not a pickle"),
    ("pickle long length", "m.pkl", b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f" + b"x.", "truncated", "STOP"),
    ("pickle deep", "m.pkl", b"\x80\x02" + b"(" * 200000 + b"N" + b"t" * 200000 + b".", "ok", "walked"),
    ("pickle bad stack", "m.pkl", b"\x80\x02R.", "corrupt", "stack"),
    ("config object", "m.pkl", b"\x80\x02capp.conf\nConfig\n)R.", "needs-allowlist", "app.conf.Config"),
    ("numpy scalar", "best.pth", torch_zip(b"\x80\x02}" + word("f1") + b"cnumpy.core.multiarray\nscalar\n)Rs."), "needs-allowlist", "numpy.core.multiarray.scalar"),
    ("hdf5", "m.h5", b"\x89HDF\r\n\x1a\n" + b"\1" * 99, "unproven", "only its digest"),
    ("bin", "m.bin", b"\1" * 99, "unproven", "only its digest"),
    ("log", "train.log", b"epoch 1\n", "ok", "digest"),
]


@pytest.fixture(scope="session")
def all_formats(script, tmp_path_factory):
    """Every file of FORMATS in one bundle, verified once: verdict, text and proof by its place in the list."""
    folder = tmp_path_factory.mktemp("formats")
    twice = zipped({"best/data.pkl": GOOD_PICKLE, "best/data.pkX": GOOD_PICKLE}).replace(b"data.pkX", b"data.pkl")
    bundle(folder, {f"c{i}": {name: twice if data is None else data} for i, (_, name, data, _, _) in enumerate(FORMATS)}, records=False)
    done = run(script, folder, "--json")
    assert done.returncode == 1, done.stderr
    return {int(one["path"].split("/")[1][1:]): one for one in json.loads(done.stdout)["runs"][0]["files"]}


@pytest.mark.parametrize("number", range(len(FORMATS)), ids=[one[0] for one in FORMATS])
def test_formats(all_formats, number):  # cases 36, 114, 116, 119; T24 to T26
    one, (_, _, _, expected, words) = all_formats[number], FORMATS[number]
    assert (one["verdict"], words in one["text"] + one["how"]) == (expected, True), one


# --- not finite, all zero ---
def pack(kind, values):
    if kind == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack("<%d%s" % (len(values), {"F32": "f", "F16": "e", "F64": "d", "C64": "f"}[kind]), *values)


@pytest.mark.parametrize("kind", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize("bad, words", [(NAN, "w: NaN at element 5"), (INF, "w: inf at element 5"), (-INF, "w: -inf at element 5"), (0, "w: all zero")])
def test_weights_that_are_not_finite(script, module, tmp_path, kind, bad, words):  # case 122, T24
    values = [0.0] * 9 if bad == 0 else [1.5] * 5 + [bad] + [2.0] * 3
    plan = module["Plan"]("")
    src = tmp_path / "m.safetensors"
    src.write_bytes(safetensors({"n": ("U8", [1], b"\0"), "w": (kind, [9], pack(kind, values)), "f8": ("F8_E4M3", [2], b"\x7f\x7f")}))  # unaligned on purpose
    with module["Source"](os.open(src, os.O_RDONLY)) as opened:
        plan = module["make_plan"]("m.safetensors", opened, set())
        module["read_through"](opened, plan)
    assert [found.text for found in plan.findings] == [words]


def test_finite_numbers_are_never_suspicious(module):  # case 122: the largest and smallest, in pieces of any length
    rng = random.Random(3)
    for kind, code, size in (("f4", "f", 4), ("f8", "d", 8), ("f2", "e", 2)):
        top = {"f4": 3.4028234663852886e38, "f8": 1.7976931348623157e308, "f2": 65504.0}[kind]
        for big in (False, True):
            for bad in (None, NAN, INF, -INF):
                values = [rng.choice([top, -top, 1e-7, -0.0, 1.0]) for _ in range(300)]
                where = rng.randrange(300)
                if bad is not None:
                    values[where] = bad
                data, found = struct.pack((">" if big else "<") + "300" + code, *values), []
                part, at = module["Floats"](0, len(data), kind, "w", big), 0
                while at < len(data):
                    step = rng.choice([1, 3, 7, 64, 1000])
                    part.feed(data[at:at + step])
                    at += step
                part.finish(found)
                name = None if bad is None else "w: %s at element %d" % ({INF: "inf", -INF: "-inf"}.get(bad, "NaN"), where)
                assert [one.text for one in found] == ([name] if name else []), (kind, big, bad)


def test_suspicious_until_a_person_accepts_it_by_name(script, tmp_path):  # case 122: masks of -inf are honest
    data = torch_zip(state_dict({"mask": tensor("FloatStorage", "0", 6, (6,))}), {"0": struct.pack("<6f", 0, -INF, -INF, 0, 0, 0)})
    folder = bundle(tmp_path / "L", {"lr=0.1": {"best.pth": data}})
    done = run(script, folder)
    assert done.returncode == 1 and "suspicious: mask: -inf at element 1; if that is as it should be: --accept" in done.stdout and not (folder / "PULL_VERIFIED.json").exists()
    done = run(script, folder, "--accept", "final_ckpts/lr=0.1/best.pth=a=mask")
    assert done.returncode == 0 and "accepted: final_ckpts/lr=0.1/best.pth: suspicious" in done.stdout and last(done) == "OK 1/1, errors 0"
    assert json.loads((folder / "PULL_VERIFIED.json").read_text())["accepted"][0]["why"] == "a=mask"
    (folder / "final_ckpts/lr=0.1/best.pth").write_bytes(data[:-1])  # accepting excuses no damage
    assert run(script, folder, "--accept", "final_ckpts/lr=0.1/best.pth=a=mask").returncode == 65
    bundle(folder, {"lr=0.1": {"best.pth": data[:-1]}})
    assert run(script, folder, "--accept", "final_ckpts/lr=0.1/best.pth=a=mask").returncode == 1


def test_views_of_one_storage_are_looked_at_one_by_one(script, tmp_path):
    data = torch_zip(state_dict({"a": tensor("FloatStorage", "0", 6, (3,)), "b": tensor("FloatStorage", "0", 6, (3,), offset=3), "tied": tensor("FloatStorage", "0", 6, (3,))}),
                     {"0": ONES[:12] + b"\0" * 12})
    assert verdict(script, tmp_path, data)[:2] == ("suspicious", "b: all zero")
    data = torch_zip(state_dict({"a": tensor("FloatStorage", "0", 6, (4,)), "b": tensor("FloatStorage", "0", 6, (4,), offset=2)}), {"0": ONES[:20] + struct.pack("<f", NAN)})
    assert verdict(script, tmp_path / "overlap", data)[:2] == ("suspicious", "a: NaN at element 5")


# --- sharded ---
def sharded(change=None):
    files = {"model-00001-of-00002.safetensors": safetensors({"a": ("F32", [6], ONES)}), "model-00002-of-00002.safetensors": safetensors({"b": ("F32", [6], ONES)})}
    index = {"metadata": {"total_size": 48}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    change and change(files, index)
    return {**files, "model.safetensors.index.json": json.dumps(index).encode()}


def rename_all(files, index):
    for name in list(files):
        files[name.replace("of-00002", "of-00003")] = files.pop(name)


SHARDS = {
    "good": (None, "ok", "both ways"),
    "missing": (lambda f, i: f.pop("model-00002-of-00002.safetensors"), "corrupt", "missing (1 of 2"),
    "stale": (rename_all, "corrupt", "stale index"),
    "extra": (lambda f, i: f.update({"model-00003-of-00002.safetensors": F32}), "suspicious", "is extra"),
    "wrong shard": (lambda f, i: i["weight_map"].update(b="model-00001-of-00002.safetensors"), "corrupt", "tensor b is not in shard"),
    "unmapped": (lambda f, i: f.update({"model-00001-of-00002.safetensors": safetensors({"a": ("F32", [6], ONES), "c": ("F32", [6], ONES)})}), "corrupt", "tensor c is in a shard"),
    "total": (lambda f, i: i["metadata"].update(total_size=47), "corrupt", "the index says 47"),
    "escape": (lambda f, i: i["weight_map"].update(b="../c2/x.safetensors"), "corrupt", "outside"),
    "no map": (lambda f, i: i.pop("weight_map"), "corrupt", "without a weight_map"),
    "bad shard": (lambda f, i: f.update({"model-00001-of-00002.safetensors": F32[:-1]}), "unproven", "a shard of it is not ok"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_sharded_index_both_ways(script, tmp_path, name):  # case 118
    change, expected, words = SHARDS[name]
    done = run(script, bundle(tmp_path, {"c1": sharded(change)}), "--json")
    one = next(one for one in json.loads(done.stdout)["runs"][0]["files"] if one["path"].endswith("index.json"))
    assert (one["verdict"], words in one["text"] + one["how"]) == (expected, True), one


def test_sharded_torch_files(script, tmp_path):  # case 118
    files = {"pytorch_model-0000%d-of-00002.bin" % n: torch_zip(state_dict({name: tensor("FloatStorage", "0", 6, (6,))}), {"0": ONES}) for n, name in ((1, "a"), (2, "b"))}
    index = json.dumps({"metadata": {"total_size": 48}, "weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}).encode()
    assert run(script, bundle(tmp_path, {"c1": {**files, "pytorch_model.bin.index.json": index}})).returncode == 0
