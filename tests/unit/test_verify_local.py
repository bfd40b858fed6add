"""verify_local.py: cases 36, 101, 112, 114, 116, 118, 119, 120, 122, 123, traps T24 to T28, requirements S89 to S93 and S98."""

import ast
import hashlib
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from verify_bundles import (COMMIT, GOOD, GOOD_PICKLE, LEGACY_MAGIC, METRICS, ONES, RUN_ID, bundle, legacy, line_json, manifest, npy, run, safetensors,
                            script_text, seal, state_dict, storage, tensor, torch_zip, word, zipped)

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="session")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("local") / "verify_local.py"
    path.write_text(script_text(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def module() -> dict:
    names = {"__name__": "verify_local"}
    exec(compile(script_text(), "verify_local.py", "exec"), names)
    return names


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


# --- the whole ---
def test_the_compiled_script_is_what_is_tested_here(script, tmp_path):
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "generator", "compile", "local", "--job", "jobs/demo.yaml", "--out", str(tmp_path)], cwd=root, capture_output=True, text=True)
    made = (tmp_path / "local/verify_local.py").read_text()
    assert made.partition("\nimport argparse")[2] == script.read_text().partition("\nimport argparse")[2], done.stderr
    ast.parse(made, feature_version=(3, 9))
    assert run(tmp_path / "local/verify_local.py", "--help").returncode == 0



def test_all_ok_gives_the_exact_line_receipt_and_facts(script, tmp_path):  # S89 S90 S92 S93 T25
    folder = two(tmp_path / "L")
    (folder / "run.json").write_text(line_json({"schema": "run/1", "run_id": RUN_ID, "formal": True, "branch": "main", "shard": "1/1", "box_digest": "d" * 64}))
    (folder / "events.tsv").write_text("2026-08-03T14:15:00Z\toverride\t\t\tDATA_DIR=/mnt/other\n")
    done = run(script, folder)
    assert (done.returncode, last(done)) == (0, "OK 2/2, errors 0"), done.stdout + done.stderr
    assert "expected 4, checked 4, ok 4, bad 0, unproven 0" in done.stdout and "val_acc=0.93" in done.stdout and "without torch" in done.stdout
    receipt = json.loads((folder / "PULL_VERIFIED.json").read_text())
    ended = receipt.pop("ended")
    assert receipt == {"schema": "pull_verified/1", "run_id": RUN_ID, "manifest_sha256": hashlib.sha256((folder / "PULL_MANIFEST.json").read_bytes()).hexdigest(),
                       "expected": 4, "checked": 4, "ok": 4, "bad": 0, "unproven": 0, "accepted": []}
    assert abs(time.mktime(time.strptime(ended, "%Y-%m-%dT%H:%M:%SZ")) - time.mktime(time.gmtime())) < 120
    assert oct((folder / "PULL_VERIFIED.json").stat().st_mode & 0o777) == "0o600"
    facts = (folder / "RUN_FACTS.md").read_text()
    for text in (COMMIT, RUN_ID.replace("_", "\\_"), "tracker.example/lr=0.1,w64", "override: ", "DATA\\_DIR=/mnt/other", "d" * 64, "c" * 64, "| 2 |"):
        assert text in facts
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []
    before = facts
    assert run(script, folder).returncode == 0 and (folder / "RUN_FACTS.md").read_text() == before  # twice: nothing new, no stray


def test_receipt_is_line_json_that_the_bash_reader_takes(script, tmp_path):  # contracts, section 2
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": torch_zip(state_dict({"m": tensor("FloatStorage", "0", 2, (2,))}), {"0": struct.pack("<2f", -INF, 0)})}})
    assert run(script, folder, "--accept", 'final_ckpts/c1/best.pth=it is a "mask"\\\n').returncode == 0
    libs = "".join((Path(__file__).parents[2] / f"templates/lib/{name}.bash").read_text() for name in ("exit", "log", "file", "record"))
    probe = f"PROG=t\n{libs}\nread_record {folder}/PULL_VERIFIED.json pull_verified/1 {RUN_ID} && echo $R_ok/$R_expected"
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True)
    assert done.stdout == "1/1\n", done.stderr
    assert json.loads((folder / "PULL_VERIFIED.json").read_text())["accepted"] == [
        {"path": "final_ckpts/c1/best.pth", "verdict": "suspicious", "why": "it is a 'mask'/"}]


def test_a_cell_folder_that_is_a_link_is_not_followed(script, tmp_path):  # case 112
    folder = two(tmp_path / "L")
    (folder / "final_ckpts/lr=0.1,w32").rename(tmp_path / "elsewhere")
    (folder / "final_ckpts/lr=0.1,w32").symlink_to(tmp_path / "elsewhere")
    done = run(script, folder)
    assert done.returncode == 65 and done.stdout.count("a symbolic link, or behind one") == 2


@pytest.mark.parametrize("how", ["flip", "cut", "grow", "gone", "link", "fifo"])
def test_damage_on_the_way_is_65_and_says_how_to_pull_again(script, tmp_path, how):  # S91 S96, a fifo must not block
    folder = two(tmp_path / "L")
    for name in ("PULL_VERIFIED.json", "RUN_FACTS.md"):
        (folder / name).write_text("an old receipt")
    path = folder / "final_ckpts/lr=0.1,w64/best.pth"
    data = bytearray(path.read_bytes())
    path.unlink()
    if how == "flip":
        data[len(data) // 2] ^= 1
    if how in ("flip", "cut", "grow"):
        path.write_bytes({"cut": data[:-5], "grow": bytes(data) + b"x"}.get(how, bytes(data)))
    elif how == "link":
        (tmp_path / "elsewhere").write_bytes(bytes(data))
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "fifo":
        os.mkfifo(path)
    done = run(script, folder)
    assert done.returncode == 65 and "pull.sh --only lr=0.1,w64" in done.stdout and last(done) == "NOT OK 1/2, errors 1"
    assert "OK 2/2" not in done.stdout and not (folder / "PULL_VERIFIED.json").exists() and not (folder / "RUN_FACTS.md").exists()
    word_ = {"flip": "corrupt: is not what the box hashed", "cut": "truncated: has", "grow": "at the source it had", "gone": "missing: is not there", "link": "symbolic link", "fifo": "not a plain file"}[how]
    assert word_ in done.stdout


def test_every_byte_counts(script, module, tmp_path):  # S89: any flipped byte of any file is found
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": GOOD}})
    entry = json.loads((folder / "PULL_MANIFEST.json").read_text())["files"][0]
    path = folder / entry["path"]
    for at in random.Random(1).sample(range(len(GOOD)), 150):
        data = bytearray(GOOD)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        assert module["check_file"](str(folder), entry, set()).verdict == "corrupt"


def test_cells_that_are_neither_done_nor_excepted_are_named(script, tmp_path):
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": GOOD}}, {"c2": "excepted", "c3": "failed"})
    done = run(script, folder)
    assert done.returncode == 1 and "cell c3: it is failed" in done.stdout and last(done) == "NOT OK 1/2, errors 1" and not (folder / "PULL_VERIFIED.json").exists()
    folder = bundle(tmp_path / "M", {"c1": {"best.pth": GOOD}}, {"c2": "excepted"})
    done = run(script, folder)
    assert done.returncode == 0 and "excepted: cell c2: diverged" in done.stdout and last(done) == "OK 1/1, errors 0"


def test_several_folders_one_table_own_receipts(script, tmp_path):
    folders = [bundle(tmp_path / name, {name: {"best.pth": GOOD}}) for name in ("a", "b")]
    done = run(script, *folders)
    assert last(done) == "OK 2/2, errors 0" and done.stdout.count("attempts") == 1 and all((f / "PULL_VERIFIED.json").exists() for f in folders)
    (folders[1] / "final_ckpts/b/best.pth").write_bytes(b"x")
    done = run(script, *folders, tmp_path / "nowhere")
    assert done.returncode == 69 and last(done).startswith("NOT OK 1/2, errors 2") and [(f / "PULL_VERIFIED.json").exists() for f in folders] == [True, False]


def test_strays_are_tolerated_and_named(script, tmp_path):  # T26, cases 101 and 118
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": GOOD, "epoch.tmp": b"listed, so a result"}})
    for name in (".DS_Store", "final_ckpts/c1/.best.pth.Ab12Cd", "final_ckpts/c1/extra.pth", "known_hosts", "box.json", "smoke.json", "patrol.json",
                 "teardown.jsonl", "SHA256SUMS", "FORMAL_SUCCESS", ".partial/x"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    done = run(script, folder)
    strays = [line for line in done.stdout.splitlines() if line.startswith("  stray: ")]
    assert done.returncode == 0 and len(strays) == 3, strays
    assert "by the system" in strays[0] and "interrupted copy" in strays[1] and "not in the manifest" in strays[2]


def test_json_is_json_also_for_metrics_that_are_not_finite(script, tmp_path):
    done = run(script, bundle(tmp_path, {"c1": {"metrics.json": b'{"loss": NaN, "acc": 0.5}'}}), "--json")
    value = json.loads(done.stdout, parse_constant=lambda text: pytest.fail(text))
    assert value["runs"][0]["cells"][0]["metrics"] == {"loss": "nan", "acc": 0.5} and value["result"] == "NOT OK 0/1, errors 1"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX")
def test_a_receipt_that_cannot_be_written_is_no_success(script, tmp_path):  # S98
    folder = two(tmp_path / "L")
    (folder / "PULL_VERIFIED.json").mkdir()
    done = run(script, folder)
    assert done.returncode == 74 and "OK 2/2" not in done.stdout


# --- the manifest ---
def test_nothing_to_verify_is_not_verified(script, tmp_path):  # case 120, T27's end
    (tmp_path / "L").mkdir()
    for setup in (None, b"", b"# nothing\n", b"\0" * 100):
        if setup is not None:
            (tmp_path / "L/PULL_MANIFEST.json").write_bytes(setup)
        done = run(script, tmp_path / "L")
        assert done.returncode == 65 and "0 files checked" in done.stderr and len(done.stderr.splitlines()) == 1 and last(done) == "NOT OK 0/0, errors 1"
    assert run(script, tmp_path / "nowhere").returncode == 69
    (tmp_path / "L/PULL_MANIFEST.json").write_bytes(seal(manifest(tmp_path, {"c1": "failed"}, {})))
    assert run(script, tmp_path / "L").returncode == 65


DIALECTS = {
    "sha256sum": (b"%s  final_ckpts/c1/best.pth\n" % (b"a" * 64), "as sha256sum writes it"),
    "md5sum": (b"%s *best.pth\n" % (b"a" * 32), "as sha256sum writes it"),
    "bsd": (b"SHA256 (best.pth) = %s\n" % (b"a" * 64), "BSD form"),
    "csv": (b"path,bytes,sha256\nbest.pth,3,aa\n", "it begins with 'path,bytes"),
    "other json": (b'{"files": []}', "not a whole pull_manifest/1"),
    "json list": (b"[]", "not a whole pull_manifest/1"),
    "deep": (b"[" * 200000, "not a whole pull_manifest/1"),
    "utf-16": ("{}".encode("utf-16"), "byte order mark"),
    "yaml": (b"files:\n", "it begins with 'files:'"),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_foreign_dialect_is_one_clear_line(script, tmp_path, name):  # case 123
    (tmp_path / "PULL_MANIFEST.json").write_bytes(DIALECTS[name][0])
    done = run(script, tmp_path)
    assert done.returncode == 65 and DIALECTS[name][1] in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_converted_or_changed_manifest_is_refused(script, tmp_path):  # case 123: CR; T28: the manifest signs itself
    folder = two(tmp_path / "L")
    raw = (folder / "PULL_MANIFEST.json").read_bytes()
    changes = {"CR at its line ends": raw.replace(b"\n", b"\r\n"), "own digest": raw.replace(b'"done"', b'"fail"', 1), "layout": json.dumps(json.loads(raw)).encode(),
               "own digest ": raw.replace(b"    {", b"     {", 1), "not a whole": raw[:-3], "not a whole ": raw + b"x"}
    for words, data in changes.items():
        (folder / "PULL_MANIFEST.json").write_bytes(data)
        done = run(script, folder)
        assert done.returncode == 65 and words.strip() in done.stderr.replace("own digest does not match", "own digest layout"), (words, done.stderr)


def test_the_layout_is_exact_even_where_the_digest_is_right(script, tmp_path):  # contracts, section 2: bash reads it line by line
    folder = two(tmp_path / "L")
    text = (folder / "PULL_MANIFEST.json").read_text()
    head = text[: text.index('  "self_sha256"')]
    for above in (head.replace('    {"bytes"', '      {"bytes"', 1), head.replace('"commit": ', '"commit":  '), head.replace('"bytes": ', '"bytes":', 1),
                  head.replace('  "commit"', '  "commit": "none",\n  "commit"'), head.replace(RUN_ID, RUN_ID.replace("Z", "\\u005a"))):
        digest = hashlib.sha256(above.encode()).hexdigest()
        (folder / "PULL_MANIFEST.json").write_text(above + f'  "self_sha256": "{digest}"\n}}\n')
        assert above != head and run(script, folder).returncode == 65


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "final_ckpts/c1/../../../x", "final_ckpts/c1//x", "final_ckpts/c1/./x", "final_ckpts/c2/x", "final_ckpts/x",
                                  "final_ckpts/c1/a\nb", "final_ckpts/c1/a\x1b[2J", "-rf", "records/c1.json", "final_ckpts/c1/\u0085x", ""])
def test_a_path_that_is_not_safe_refuses_the_manifest(script, tmp_path, path):  # case 112
    folder = tmp_path / "L"
    folder.mkdir()
    (folder / "PULL_MANIFEST.json").write_bytes(seal(manifest(folder, {"c1": "done"}, {"final_ckpts/c1/a": b"", path: b""})))
    done = run(script, folder)
    assert done.returncode == 65 and "path" in done.stderr and "\x1b" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_names_are_data(script, tmp_path):  # case 112
    names = ["$(touch X).json", "-rf *.json", "a b'c;.json", "ünï.json"]
    folder = bundle(tmp_path / "L", {"c1": {name: METRICS for name in names}})
    assert run(script, folder, cwd=tmp_path).returncode == 0 and not (tmp_path / "X").exists()


@pytest.mark.parametrize("field, value", [("files_total", 9), ("cells_done", 0), ("bytes_total", 1), ("cells_expected", 9), ("cells_expected", True), ("commit", "main"),
                                          ("run_id", "../x"), ("schema", "pull_manifest/2"), ("cells", []), ("files", [])])
def test_counts_and_members_must_agree(script, tmp_path, field, value):  # case 102
    folder = two(tmp_path / "L")
    record = json.loads((folder / "PULL_MANIFEST.json").read_text())
    (folder / "PULL_MANIFEST.json").write_bytes(seal({**record, field: value}))
    assert run(script, folder).returncode == 65


def test_a_done_cell_needs_a_file(script, tmp_path):
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": GOOD}}, {"c2": "done"})
    assert "cell c2 is done and has no file" in run(script, folder).stderr


def test_an_unknown_member_is_ignored(script, tmp_path):  # contracts, section 2
    folder = two(tmp_path / "L")
    record = json.loads((folder / "PULL_MANIFEST.json").read_text())
    (folder / "PULL_MANIFEST.json").write_bytes(seal({**record, "later": "x"}))
    assert run(script, folder).returncode == 0


def test_the_run_id_is_compared(script, tmp_path):  # T28
    folder = two(tmp_path / "L")
    assert run(script, folder, "--run-id", RUN_ID).returncode == 0
    done = run(script, folder, "--run-id", "20260101T000000Z-00000000")
    assert done.returncode == 65 and "another run" in done.stderr and not (folder / "PULL_VERIFIED.json").exists()
    (folder / "box.json").write_text(line_json({"schema": "box/1", "run_id": "20260101T000000Z-00000000"}))
    assert run(script, folder).returncode == 65


@pytest.mark.parametrize("args", [[], ["--bogus", "L"], ["L", "--allow", "os.system"], ["L", "--allow", "builtins.eval"], ["L", "--allow", "x"],
                                  ["L", "--accept", "final_ckpts/nothing=why"], ["L", "--accept", "final_ckpts/c1/best.pth="], ["L", "--run-id", "a/b"]])
def test_usage(script, tmp_path, args):
    bundle(tmp_path / "L", {"c1": {"best.pth": GOOD}})
    done = run(script, *args, cwd=tmp_path)
    assert done.returncode == 64 and done.stderr.startswith("verify_local.py: refused: ") and len(done.stderr.splitlines()) == 1


# --- formats ---
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
