"""The teardown gate under hundreds of states: it opens in the right one, and the provider's command is called never but then.

Issue of the gate's own: S95 S96 S97 S98 S99, F43,, X5, cases 125 and 133. Each state is one change to a folder in which all is
right: a record that is missing, stale, forged, of another run or instance; a byte of the bundle; an approval; what the box shows.
Nothing is stubbed but the provider, whose fake notes each call and checks its words.

GR_GATE_STATES=N says how many states (every day: all that are named, and others by chance up to 520); GR_SEED repeats a choice.
"""

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN, OTHER = "20260803T141500Z-1f3a9c04", "20260101T000000Z-deadbeef"
STATES = int(os.environ.get("GR_GATE_STATES", "520"))
SEED = int(os.environ.get("GR_SEED") or random.SystemRandom().randrange(10**9))


def sha(data):
    return hashlib.sha256(data).hexdigest()


def record(schema, **members):
    lines = [f'  "schema": "{schema}"'] + [f'  "{k}": {v if v in ("true", "false", "null") else chr(34) + v + chr(34)}' for k, v in members.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def manifest(run, files, states=("done", "done"), commit="7" * 40, note=""):
    """A manifest that holds together in itself, whatever it says."""
    rows = [f'    {{"bytes": {len(data)}, "sha256": "{sha(data)}", "path": "{path}"}}' for path, data in files.items()]
    cells = [f'    {{"cell": "{cell}", "state": "{state}", "why": "{note}"}}' for cell, state in zip("ab", states)]
    text = (f'{{\n  "schema": "pull_manifest/1",\n  "run_id": "{run}",\n  "commit": "{commit}",\n  "cells_expected": {len(cells)},\n'
            f'  "cells_done": {list(states).count("done")},\n  "files_total": {len(rows)},\n  "bytes_total": {sum(map(len, files.values()))},\n'
            '  "cells": [\n' + ",\n".join(cells) + '\n  ],\n  "files": [\n' + ",\n".join(rows) + "\n  ],\n").encode()
    return text + f'  "self_sha256": "{sha(text)}"\n}}\n'.encode()


FILES = {f"final_ckpts/{cell}/metrics.json": b'{"accuracy": 0.%d}\n' % n for cell, n in (("a", 91), ("b", 87))}


class World:
    """A laptop and a box in one folder, all right; `ok` is the approval that the gate asks for."""

    def __init__(self, top, script):
        self.top, self.script = top, script
        self.home, self.data, self.durable, self.cloud = top / "home", top / "box", top / "volume", top / "cloud"
        self.L, self.D, self.B = self.home / "gpu-runs/machine.demo", self.data / "demo", self.durable / "demo"
        self.bin = top / "bin"
        self.env = {"PATH": f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self.home), "TMPDIR": str(top), "CLOUD": str(self.cloud),
                    "DATA_DIR": str(self.data), "DURABLE_DIR": str(self.durable), "INSTANCE": "box-7"}
        self.reset()

    def reset(self):
        for folder in (self.home, self.data, self.durable, self.cloud, self.bin):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.L, self.D / "cells/a", self.B, self.cloud, self.bin):
            folder.mkdir(parents=True)
        host, boot = (Path("/proc/sys/kernel", name).read_text().strip() for name in ("hostname", "random/boot_id"))
        run = record("run/1", run_id=RUN, job="demo", profile="machine", formal="true", host=host, boot_id=boot)
        for folder in (self.D, self.B):
            (folder / "run.json").write_bytes(run)
        self.whole = manifest(RUN, FILES)
        for folder in (self.B, self.L):
            for path, data in FILES.items():
                (folder / path).parent.mkdir(parents=True)
                (folder / path).write_bytes(data)
            (folder / "PULL_MANIFEST.json").write_bytes(self.whole)
        (self.L / "box.json").write_bytes(record("box/1", run_id=RUN, profile="machine", host="local", instance="box-7", host_key=""))
        (self.cloud / "machines").write_text("box-7\nbox-77\n")
        (self.bin / "fakecloud").symlink_to(ROOT / "tests/fixtures/teardown/fakecloud")
        self.ok, self.verb, self.extra = f"terminate box-7 {sha(self.whole)[:12]}", "terminate", {}

    def run(self, *words):
        call = [str(self.script), self.verb, "--run", "--approve", self.ok, *words]
        return subprocess.run(call, env={**self.env, **self.extra}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def called(self):
        """What would change something at the provider's."""
        calls = self.cloud / "calls"
        return [line for line in (calls.read_text().splitlines() if calls.exists() else []) if line not in ("list", "running")]


def rewrite(path, change):
    path.write_bytes(change(path.read_bytes()))


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


def to_other(path):
    return lambda w: rewrite(path(w), lambda data: data.replace(RUN.encode(), OTHER.encode()))


def approval(text):
    return lambda w: setattr(w, "ok", text(w.ok) if callable(text) else text)


def both(text):
    """A manifest that holds in itself, on both sides, with the approval that it asks for."""
    def change(w):
        for folder in (w.L, w.B):
            (folder / "PULL_MANIFEST.json").write_bytes(text)
        w.ok = f"terminate box-7 {sha(text)[:12]}"
    return change


def home_only(text):
    def change(w):
        both(text)(w)
        (w.B / "PULL_MANIFEST.json").write_bytes(w.whole)
    return change


def while_verifying(line):
    """Right after the gate's own verification somebody does this, and sets the times back."""
    def change(w):
        fake = w.bin / "python3"
        fake.write_text(f'#!/bin/sh\n{sys.executable} "$@" || exit\ncd {w.L}\nsleep 0.02\n{line}\n')
        fake.chmod(0o755)
    return change


def environment(**names):
    return lambda w: w.extra.update(names)


def claim(fresh):
    def change(w):
        folder = w.D / "claims/a"
        folder.mkdir(parents=True)
        host, boot = (Path("/proc/sys/kernel", name).read_text().strip() for name in ("hostname", "random/boot_id"))
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        (folder / "001").write_text("" if fresh else f"{host} {boot} {os.getpid()} {ticks}\n")
    return change


def forged_receipt(change):
    """A receipt as if all were right, beside a bundle where it is not."""
    def forge(w):
        (w.L / "PULL_VERIFIED.json").write_bytes(record("pull_verified/1", run_id=RUN, manifest_sha256=sha(w.whole)).replace(
            b"\n}", b',\n  "expected": 2,\n  "checked": 2,\n  "ok": 2,\n  "bad": 0,\n  "unproven": 0,\n  "accepted": [],\n  "ended": "2026-08-03T15:00:00Z"\n}'))
        change(w)
        os.utime(w.L / "PULL_VERIFIED.json", (4e9, 4e9))
    return forge


def empty_verifier(receipt):
    """A python3 that only writes a receipt: the numbers in it have to be right at least."""
    def change(w):
        fake = w.bin / "python3"
        (w.top / "receipt").write_bytes(receipt(w))
        fake.write_text(f'#!/bin/sh\ncp {w.top}/receipt {w.L}/PULL_VERIFIED.json\n')
        fake.chmod(0o755)
    return change


def numbers(run=RUN, digest=None, **other):
    counts = {"expected": 2, "checked": 2, "ok": 2, "bad": 0, "unproven": 0, **other}
    return lambda w: record("pull_verified/1", run_id=run, manifest_sha256=digest or sha(w.whole)).replace(
        b"\n}", b"".join(b',\n  "%s": %s' % (k.encode(), str(v).encode()) for k, v in counts.items()) + b"\n}")


def damage(where, how):
    def change(w):
        path = where(w)
        if how == "gone":
            path.unlink()
        elif how == "empty":
            path.write_bytes(b"")
        elif how == "folder":
            path.unlink()
            path.mkdir()
        elif how == "link":
            path.unlink()
            path.symlink_to("/dev/null")
        elif how == "half":
            rewrite(path, lambda data: data[:len(data) // 2])
        elif how == "longer":
            rewrite(path, lambda data: data + b"\n")
        elif how == "zeros":
            rewrite(path, lambda data: bytes(len(data)))
        elif how == "crlf":
            rewrite(path, lambda data: data.replace(b"\n", b"\r\n"))
    return change


HARM = ("gone", "empty", "folder", "link", "half", "longer", "zeros", "crlf")


def named_states():
    """(what, change): states that each must stay shut."""
    at = {"manifest": lambda w: w.L / "PULL_MANIFEST.json", "box.json": lambda w: w.L / "box.json", "metrics a": lambda w: w.L / "final_ckpts/a/metrics.json",
          "metrics b": lambda w: w.L / "final_ckpts/b/metrics.json", "the box's manifest": lambda w: w.B / "PULL_MANIFEST.json", "the box's run": lambda w: w.D / "run.json"}
    for name, where in at.items():
        for how in HARM:
            # Where it is gone, the durable tier's copy of the run record says the same.
            if (name, how) == ("the box's run", "gone"):
                continue
            yield f"{name}: {how}", damage(where, how)
        if not name.startswith("metrics"):
            yield f"{name}: of another run", to_other(where)
    for length in (0, 1, 4, 8, 11, 13, 64):
        yield f"approval with {length} digits", approval(lambda ok, n=length: "terminate box-7 " + (ok.split()[2] * 6)[:n])
    for text in ("", " ", "y", "yes", "force", "terminate", "terminate box-7", "terminate box-7 nothing", "terminate box-7 ????????????", "terminate box-7 *", ".*"):
        yield f"approval '{text}'", approval(text)
    for what, text in (("blank behind", "{} "), ("blank before", " {}"), ("line end", "{}\n"), ("CR", "{}\r"), ("twice", "{} {}"), ("quoted", "'{}'"), ("tab", "{}\t"), ("no-break", "\u00a0{}")):
        yield f"approval with {what}", approval(lambda ok, t=text: t.replace("{}", ok))
    for swap in (("terminate", "stop"), ("terminate", "TERMINATE"), ("box-7", "box-77"), ("box-7", "BOX-7"), ("box-7", "box-07"), (" ", "  "), (" ", "\t"), ("terminate", "delete-volume")):
        yield f"approval with {swap[1]!r} for {swap[0]!r}", approval(lambda ok, s=swap: ok.replace(*s))
    yield "approval in capitals", approval(str.upper)
    yield "approval of yesterday's manifest", approval(f"terminate box-7 {sha(manifest(RUN, FILES, note='older'))[:12]}")
    yield "a token of terminate used for stop", lambda w: setattr(w, "verb", "stop")
    yield "a token of terminate used for the volume", lambda w: setattr(w, "verb", "delete-volume")
    for instance in ("", "box-77", "box-", "BOX-7", "latest", "-x", "box 7", "box-7;id", "$(id)", "box-7\n", "../box-7", "box-7,box-77", "*"):
        yield f"INSTANCE={instance!r}", lambda w, i=instance: (environment(INSTANCE=i)(w), setattr(w, "ok", w.ok.replace("box-7", i)))
        if instance not in ("", "box-7\n"):
            yield f"box.json says {instance!r}", lambda w, i=instance: rewrite(w.L / "box.json", lambda data: data.replace(b'"box-7"', f'"{i}"'.encode()))
    for note, text in (("of another run", manifest(OTHER, FILES)), ("with a failed cell", manifest(RUN, dict(list(FILES.items())[:1]), ("done", "failed"))),
                       ("with an unknown cell", manifest(RUN, dict(list(FILES.items())[:1]), ("done", "unknown"))), ("with an unsynced cell", manifest(RUN, dict(list(FILES.items())[:1]), ("done", "unsynced"))),
                       ("without files", manifest(RUN, {}, ("excepted", "excepted"))), ("without a file of b", manifest(RUN, dict(list(FILES.items())[:1]))),
                       ("that leaves the folder", manifest(RUN, {"final_ckpts/a/../../x": b"x", **FILES})), ("with other bytes", manifest(RUN, {**FILES, "final_ckpts/a/metrics.json": b"{}\n"})),
                       ("with NaN", manifest(RUN, {**FILES, "final_ckpts/a/metrics.json": b'{"accuracy": NaN}\n'})), ("whose file is a pickle", manifest(RUN, {**FILES, "final_ckpts/a/x.pth": b"cos\nsystem\n"})),
                       ("with no run id", manifest("", FILES)), ("with an odd commit", manifest(RUN, FILES, commit="zzz")), ("of another schema", manifest(RUN, FILES).replace(b"manifest/1", b"manifest/2"))):
        yield f"a manifest {note}, both sides", both(text)
        yield f"a manifest {note}, here alone", home_only(text)
    yield "another manifest that holds, here alone", home_only(manifest(RUN, FILES, note="better"))
    for line in ("printf '#' | dd of=final_ckpts/a/metrics.json bs=1 seek=3 conv=notrunc status=none", "printf '#' | dd of=final_ckpts/a/metrics.json bs=1 seek=3 conv=notrunc status=none; touch -d 2020-01-01 final_ckpts/a/metrics.json",
                 "rm final_ckpts/b/metrics.json", "rm -r final_ckpts", "rm -r final_ckpts/b", "mv final_ckpts/b final_ckpts/c", "touch -d 2020-01-01 final_ckpts/a/metrics.json", "cp -p final_ckpts/a/metrics.json x && mv x final_ckpts/a/metrics.json",
                 "echo >>PULL_MANIFEST.json", "rm PULL_MANIFEST.json", "rm PULL_VERIFIED.json", "touch PULL_MANIFEST.json", "sed -i 's/\"bad\": 0/\"bad\": 1/' PULL_VERIFIED.json", f"sed -i s/{RUN}/{OTHER}/ PULL_VERIFIED.json",
                 "sed -i s/box-7/box-77/ box.json", "rm box.json", "mv final_ckpts y && ln -s y final_ckpts", "chmod 000 final_ckpts; rm -r final_ckpts"):
        yield f"after the verification: {line}", while_verifying(line)
    for name, where in (("a byte", damage(at["metrics a"], "zeros")), ("a file gone", damage(at["metrics b"], "gone")), ("the box's manifest newer", damage(at["the box's manifest"], "longer"))):
        yield f"a forged receipt of tomorrow, and {name}", forged_receipt(where)
    for what, other in (("ok", {"ok": 1}), ("more ok", {"ok": 3}), ("bad", {"bad": 1}), ("unproven", {"unproven": 1}), ("checked", {"checked": 1}), ("expected", {"expected": 1}), ("no numbers", {"ok": "null"}),
                        ("zero", {"expected": 0, "checked": 0, "ok": 0})):
        yield f"a verifier that lies about {what}", empty_verifier(numbers(**other))
    yield "a verifier that speaks of another run", empty_verifier(numbers(run=OTHER))
    yield "a verifier that speaks of another manifest", empty_verifier(numbers(digest="0" * 64))
    yield "a verifier that writes rubbish", empty_verifier(lambda w: b"OK 2/2, errors 0\n")
    yield "a live claim", claim(False)
    yield "a claim that is being taken", claim(True)
    yield "the durable tier has another run", to_other(lambda w: w.B / "run.json")
    yield "no run on the box", lambda w: (shutil.rmtree(w.D), shutil.rmtree(w.B))
    yield "the durable tier is empty", lambda w: shutil.rmtree(w.B)
    yield "another RUN", environment(RUN="other")
    yield "another DATA_DIR and DURABLE_DIR", environment(DATA_DIR="/nonexistent/a", DURABLE_DIR="/nonexistent/b")
    yield "FAKE_ROOT", environment(FAKE_ROOT="/x")
    yield "another LOCAL_DIR", environment(LOCAL_DIR="/nonexistent/c")
    yield "profile of another", lambda w: rewrite(w.L / "box.json", lambda data: data.replace(b'"machine"', b'"runpod"'))
    yield "teardown.jsonl is a folder", lambda w: (w.L / "teardown.jsonl").mkdir()


def chance_states(dice):
    """States by chance: one byte of a file that counts; a word of the approval; a line of a record away, twice, or swapped."""
    while True:
        kind = dice.choice(("byte", "byte", "approval", "line", "cut", "two"))
        name = dice.choice(("PULL_MANIFEST.json", "final_ckpts/a/metrics.json", "final_ckpts/b/metrics.json"))
        if kind == "byte":
            n = dice.randrange(1 << 20)
            yield f"byte {n} of {name}", lambda w, f=name, n=n: rewrite(w.L / f, lambda data: flip(data, n % len(data)))
        elif kind == "cut":
            n = dice.randrange(1 << 20)
            yield f"{name} cut at {n}", lambda w, f=name, n=n: rewrite(w.L / f, lambda data: data[:n % len(data)])
        elif kind == "approval":
            at, char = dice.randrange(28), dice.choice("abcdef0123456789 -xX")
            yield f"approval, {at} is {char!r}", approval(lambda ok, at=at, c=char: ok[:at % len(ok)] + (c if ok[at % len(ok)] != c else c + "~") + ok[at % len(ok) + 1:])
        elif kind == "line":
            n, how = dice.randrange(100), dice.choice(("away", "twice", "swapped"))

            def lines(data, n=n, how=how):
                rows = data.splitlines(True)
                i = n % (len(rows) - 1)
                new = {"away": rows[:i] + rows[i + 1:], "twice": rows[:i] + [rows[i]] + rows[i:], "swapped": rows[:i] + [rows[i + 1], rows[i]] + rows[i + 2:]}[how]
                return b"".join(new)
            yield f"line {n} of the manifest {how}", lambda w, change=lines: rewrite(w.L / "PULL_MANIFEST.json", change)
        else:
            n, digits = dice.randrange(1 << 20), "%012x" % dice.randrange(1 << 48)
            yield f"byte {n} of both manifests, token {digits}", lambda w, n=n, d=digits: (
                [rewrite(f / "PULL_MANIFEST.json", lambda data: flip(data, n % len(data))) for f in (w.L, w.B)], setattr(w, "ok", f"terminate box-7 {d}"))


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled") / "machine"
    call = [sys.executable, "-m", "generator", "compile", "tests/fixtures/teardown/machine.yaml", "--job", "jobs/demo.yaml", "--out", str(out)]
    subprocess.run(call, cwd=ROOT, check=True, capture_output=True)
    return out / "local/teardown.sh"


def try_states(script, top, states):
    """Each state in turn in one world; what was open that should not be, and what refused with a wrong code or without a line."""
    wrong, world = [], World(top, script)
    for what, change in states:
        world.reset()
        change(world)
        done = world.run()
        calls = world.called()
        refusal = re.search(r"^teardown\.sh: refused: .+; .+; .+$", done.stderr, re.M)
        if calls or done.returncode not in (64, 65, 69, 74, 77, 78) or not refusal:
            wrong.append(f"{what}: exit {done.returncode}, calls {calls}, {done.stderr[-300:]}")
    return wrong


def test_the_gate_opens_in_no_other_state(script, tmp_path):
    """S95-S99 F43 X5, cases 125 133: more than 500 states, and none of them calls the provider."""
    print(f"GR_SEED={SEED}")
    states = list(named_states())
    assert len(states) > 150 and len({what for what, _ in states}) == len(states)
    chance = chance_states(random.Random(SEED))
    states += [next(chance) for _ in range(max(0, STATES - len(states)))]
    assert len(states) >= min(STATES, 500)
    with ThreadPoolExecutor(2) as pool:
        wrong = sum(pool.map(lambda n: try_states(script, tmp_path / str(n), states[n::2]), range(2)), [])
    assert not wrong, f"GR_SEED={SEED}: {len(wrong)} states\n" + "\n".join(wrong[:10])


def test_the_right_state_is_open_and_the_same_token_does_it_once(script, tmp_path):
    """S95 S99: the provider is called with exactly these words, once; the same approval again calls nobody."""
    world = World(tmp_path, script)
    done = world.run()
    assert done.returncode == 0 and "terminate box-7: gone (receipt " in done.stdout, done.stderr
    assert world.called() == ["delete --id box-7"] and not (world.cloud / "WRONG").exists()
    again = world.run()
    assert again.returncode == 0 and "nothing was called" in again.stderr, again.stderr
    assert world.called() == ["delete --id box-7"]
    # The platform shows that id anew: it is a new box under the old approval's words, and the gate looks at the run on it.
    (world.cloud / "machines").write_text("box-7\n")
    shutil.rmtree(world.D)
    shutil.rmtree(world.B)
    assert world.run().returncode == 77 and world.called() == ["delete --id box-7"]
