"""verify_local.py: cases 36, 101, 112, 114, 116, 118, 119, 120, 122, 123, traps T24 to T28, requirements S89 to S93 and S98."""

import ast
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from verify_bundles import (
    COMMIT, GOOD, INF, METRICS, RUN_ID, bundle, last, line_json, manifest, run, seal, state_dict, tensor, torch_zip, two,
)


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
    alone = tmp_path / "kaggle" / script.name  # S91: where nothing pulls, no remedy names pull.sh
    alone.parent.mkdir()
    alone.write_bytes(script.read_bytes())
    said = run(alone, folder).stdout
    assert "pull that cell again: P5.3 in the runbook, then" in said and "pull.sh" not in said
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


def test_strays_of_one_folder_are_one_line_with_their_count(script, tmp_path):  # T26: a notebook's whole run folder came home
    folder = bundle(tmp_path / "L", {"c1": {"best.pth": GOOD}})
    names = [f"logs/c1/attempt-{n}.log" for n in range(30)] + [f"code/{a}/{b}" for a in "xyz" for b in "pq"] + ["claims/c1/1", "final_ckpts/c1/.a.tmp"]
    names += ["mine/a", "mine/b/c", "mine/b/d", "other/x", "environment.txt"]
    for name in [*names, *(f"final_ckpts/c1/old{n}.pth" for n in range(3)), *(f"final_ckpts/c2/old{n}.pth" for n in range(3))]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    done = run(script, folder)
    strays = [line[9:] for line in done.stdout.splitlines() if line.startswith("  stray: ")]
    assert done.returncode == 0 and sorted(strays) == [
        "claims/: 1 file, of the run's folder on the box; left alone", "code/: 6 files, of the run's folder on the box; left alone",
        "final_ckpts/c1/.a.tmp: left by an interrupted copy; left alone", "final_ckpts/c1/: 3 files, not in the manifest; left alone",
        "final_ckpts/c2/: 3 files, not in the manifest; left alone", "logs/: 30 files, of the run's folder on the box; left alone",
        "mine/: 3 files, not in the manifest; left alone", "other/x: not in the manifest; left alone"]
    assert len(json.loads(run(script, folder, "--json").stdout)["runs"][0]["strays"]) == 48  # each of them by name


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
