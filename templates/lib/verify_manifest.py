# lib/verify_manifest.py: line JSON (docs/contracts.md, section 2), the manifest, and safe ways into the folder.
EX_FAIL, EX_USAGE, EX_INTEGRITY, EX_MISSING, EX_COPY = 1, 64, 65, 69, 74
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}\Z")
HEX64 = re.compile(r"[0-9a-f]{64}\Z")
MAX_MANIFEST = 256 << 20
CELL_STATES = ("done", "excepted", "pending", "running", "unsynced", "failed", "preempted", "unknown")
FIELDS = {"schema": str, "run_id": str, "commit": str, "cells_expected": int, "cells_done": int, "files_total": int, "bytes_total": int,
          "cells": list, "files": list, "self_sha256": str}


class Refusal(Exception):
    """Nothing can be verified here: exit code, what, why, what to do."""


def fit(text):
    """Free text made fit for a record."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in str(text).replace('"', "'").replace("\\", "/"))


def line_json(record):
    """A record in the one layout that bash reads too."""
    members = []
    for name, value in record.items():
        if isinstance(value, list):
            rows = ",\n".join("    " + json.dumps(one, ensure_ascii=False) for one in value)
            members.append('  "%s": [\n%s\n  ]' % (name, rows) if value else '  "%s": []' % name)
        else:
            members.append('  "%s": %s' % (name, json.dumps(value, ensure_ascii=False)))
    return "{\n" + ",\n".join(members) + "\n}\n"


def replace_file(path, text):
    """Put `text` at `path` at once and for good; read back."""
    folder, name = os.path.split(path)
    temp = os.path.join(folder, ".%s.%d.tmp" % (name, os.getpid()))
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temp, path)
        flush_folder(folder)
        with open(path, encoding="utf-8", newline="") as back:
            if back.read() != text:
                raise OSError("it reads back differently")
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise Refusal(EX_COPY, "%s cannot be written" % show(path), show(error), "make the folder writable, then verify again")


def flush_folder(folder):
    """Names too must survive a power cut; some file systems cannot do it for a folder."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def void_receipt(folder):
    """What an earlier run said is nothing about what lies here now."""
    for name in ("PULL_VERIFIED.json", "RUN_FACTS.md"):
        try:
            os.unlink(os.path.join(folder, name))
            flush_folder(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Refusal(EX_COPY, "the old %s cannot be removed" % name, show(error), "remove it by hand, then verify again")


def read_small(folder, name, limit=1 << 20):
    """The bytes of a plain file in the folder, or None."""
    try:
        with open_inside(folder, name) as src:
            return src.at(0, src.size) if src.size <= limit else None
    except (OSError, Finding):
        return None


def read_record(folder, name, schema, run_id=None):
    """A record as a dict; {} where it is not there, not of this schema or of another run."""
    try:
        record = load_json(read_small(folder, name) or b"")
    except ValueError:
        return {}
    good = isinstance(record, dict) and record.get("schema") == schema and (run_id is None or record.get("run_id") == run_id)
    return record if good else {}


def open_inside(folder, path):
    """Open a plain file below the folder; no link on the way, never a fifo that would block."""
    here = folder
    for part in path.split("/"):
        here = os.path.join(here, part)
        if os.path.islink(here):
            raise Finding(CORRUPT, "a symbolic link, or behind one")
    fd = os.open(here, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Finding(CORRUPT, "not a plain file")
    return Source(fd)


def dialect(raw):
    """What a manifest is that is not ours, in words."""
    if not raw.strip(b"\0 \t\r\n"):
        return "it is empty"
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or raw[:3] == b"\xef\xbb\xbf":
        return "it begins with a byte order mark: an editor or a shell wrote it anew"
    if b"\r" in raw:
        return "it has CR at its line ends: something on the way converted it"
    first = raw.split(b"\n", 1)[0]
    if re.match(rb"\\?[0-9a-fA-F]{32,128} [ *]", first):
        return "it is a list of sums, as sha256sum writes it"
    if re.match(rb"[A-Z0-9]+ ?\(.*\) ?= ?[0-9a-f]{32,}", first):
        return "it is a list of sums in the BSD form"
    if first.lstrip()[:1] in (b"{", b"["):
        return "it is JSON, but not a whole pull_manifest/1 in its layout"
    return "it begins with '%s'" % show(first[:60].decode("utf-8", "replace"))


def read_manifest(folder, run_id):
    """The manifest as a dict, with `sha256` of the file; every doubt is a Refusal."""
    again = "pull it again (P5.3 in the runbook), or run aggregate_to_fs.sh anew on the box; 0 files checked"
    if not os.path.isdir(folder):
        raise Refusal(EX_MISSING, "%s is no folder" % show(folder), "nothing to verify", "name the folder that P5.3 in the runbook fills")
    raw = read_small(folder, "PULL_MANIFEST.json", MAX_MANIFEST)
    if raw is None:
        raise Refusal(EX_INTEGRITY, "%s has no PULL_MANIFEST.json that can be read" % show(folder),
                      "it comes last, so the pull is not complete, or this is another folder", again)

    def bad(why):
        return Refusal(EX_INTEGRITY, "%s/PULL_MANIFEST.json is not to be believed" % show(folder), why, again)
    try:
        manifest = load_json(raw)
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("schema") != "pull_manifest/1":
        raise bad(dialect(raw))
    if any(type(manifest.get(name)) is not kind for name, kind in FIELDS.items()):
        raise bad("it lacks a member")
    above, mark, _ = raw.partition(b'\n  "self_sha256"')
    if not mark or hashlib.sha256(above + b"\n").hexdigest() != manifest["self_sha256"]:
        raise bad("it was cut or changed: its own digest does not match" if b"\r" not in raw else dialect(raw))
    try:
        same = line_json(manifest).encode() == raw and list(manifest)[-1] == "self_sha256"
    except (TypeError, UnicodeError):
        same = False
    if not same:
        raise bad(dialect(raw))
    why = manifest_problem(manifest)
    if why:
        raise bad(why)
    for known, where in ((run_id, "--run-id"), (read_record(folder, "box.json", "box/1").get("run_id"), "box.json")):
        if known and known != manifest["run_id"]:
            raise Refusal(EX_INTEGRITY, "%s is of another run" % show(folder), "the manifest says %s, %s says %s" % (
                manifest["run_id"], where, show(known)), "name the folder of the run that you mean")
    manifest["sha256"] = hashlib.sha256(raw).hexdigest()
    return manifest


def manifest_problem(manifest):
    """What contradicts itself in a manifest, or is dangerous; '' if nothing."""
    cells, files = manifest["cells"], manifest["files"]
    if not NAME.match(manifest["run_id"]):
        return "its run id is no run id"
    if not re.match(r"([0-9a-f]{40,64}|none)\Z", manifest["commit"]):
        return "its commit is no commit"
    states, seen = {}, set()
    for one in cells:
        if not isinstance(one, dict) or not isinstance(one.get("cell"), str) or not NAME.match(one["cell"]) or one["cell"] in states:
            return "a cell has no proper name, or is there twice"
        if one.get("state") not in CELL_STATES or not isinstance(one.get("why"), str):
            return "cell %s has the state '%s'" % (one["cell"], show(one.get("state")))
        states[one["cell"]] = one["state"]
    for one in files:
        if not isinstance(one, dict) or type(one.get("bytes")) is not int or not 0 <= one["bytes"] < 1 << 62 or not isinstance(one.get("path"), str) \
                or not HEX64.match(str(one.get("sha256"))):
            return "a file has no proper size, digest or path"
        path, parts = one["path"], one["path"].split("/")
        if any(unicodedata.category(c) in ("Cc", "Cs") or c in '"\\' for c in path) or any(part in ("", ".", "..") for part in parts):
            return "the path '%s' is not safe" % show(path)
        if len(parts) < 3 or parts[0] != "final_ckpts" or states.get(parts[1]) != "done":
            return "the path '%s' is not below final_ckpts and a cell that is done" % show(path)
        if path in seen:
            return "the path '%s' is there twice" % show(path)
        seen.add(path)
    if not cells or not files:
        return "it lists no %s" % ("file" if cells else "cell")
    with_files = {path.split("/")[1] for path in seen}
    bare = sorted(cell for cell, state in states.items() if state == "done" and cell not in with_files)
    if bare:
        return "cell %s is done and has no file" % bare[0]
    counts = (len(cells), sum(state == "done" for state in states.values()), len(files), sum(one["bytes"] for one in files))
    said = tuple(manifest[name] for name in ("cells_expected", "cells_done", "files_total", "bytes_total"))
    return "" if counts == said else "its counts %s do not match its lists %s" % (said, counts)
