# install_cell.py: put the scripts of this run in place on a notebook's machine, whole or not at all.
# Generated; do not edit. Source: templates/notebook/install.py and the scripts in box/.
# The cell has checked its own digest before this text runs. It may be run again at any time.
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time

USAGE = """usage: install_cell.py [--print]    or pasted, all of it, into one empty cell of a notebook

Puts the scripts that it carries into DATA_DIR/<run>/box/<digest> and lets box/current lead there. Each file is read
back and compared with its digest; a folder appears under its name when all of it is right. What is there already is
only looked at. DATA_DIR and RUN come from the environment (in a notebook: %env RUN=name, before this cell).

--print  say what would be installed, and write nothing

exit codes: 0 in place, 64 usage, 65 something is not what was compiled, 73 no room, 74 not written, 75 busy,
78 configuration"""


class Refused(Exception):
    """What, why and what to do; with the exit code in front."""


def sha(data):
    return hashlib.sha256(data).hexdigest()


def unpack(spec, text):
    """{name: bytes}: every paragraph stands once in the text, and each file is a list of their numbers."""
    paragraphs = text.split("\n\n")
    files = {}
    for one in spec["files"]:
        numbers = [int(word) for word in one["paragraphs"].split()]
        data = ("\n\n".join(paragraphs[number] for number in numbers) + "\n").encode()
        if sha(data) != one["sha256"]:
            raise Refused(65, "the cell", "%s does not come out with its digest" % one["name"], "copy the whole file again, as plain text, into an empty cell")
        files[one["name"]] = data
    return files


def folder_digest(folder):
    """The digest of the files in a folder, as push and the scripts themselves take it; None where it holds other things."""
    lines = b""
    for name in sorted(os.listdir(folder), key=os.fsencode):
        path = os.path.join(folder, name)
        if os.path.islink(path) or not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            lines += b"%s  %s\n" % (sha(file.read()).encode(), os.fsencode(name))
    return sha(lines)


def run_folder(spec):
    """DATA_DIR/<run>, from the environment or as compiled."""
    run, data = os.environ.get("RUN", spec["run"]), os.environ.get("DATA_DIR", spec["data_dir"])
    if not re.match(r"[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}\Z", run):
        raise Refused(78, "RUN %r" % run, "a name is 1 to 128 of A-Z a-z 0-9 . _ = , + @ - and begins with a letter or digit", "rename it")
    place = os.path.expanduser(os.path.expandvars(data))
    if "$" in place or not os.path.isabs(place) or os.path.normpath(place) == "/":
        raise Refused(78, "DATA_DIR=%r" % data, "it gives no absolute folder here", "set DATA_DIR to one, such as %s" % spec["data_dir"])
    return os.path.join(os.path.normpath(place), run)


def flush(path):
    """To the disk; some mounts cannot flush a folder, and that alone is no failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not os.path.isdir(path):
            raise
    finally:
        os.close(handle)


def alone(box):
    """Wait until no other run of this cell is at work: (handle, whether this disk knows locks, so that what lies about is left over)."""
    handle = os.open(box, os.O_RDONLY)  # stays open, and so locked, until this process or this call ends
    for _ in range(300):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle, True
        except BlockingIOError:
            time.sleep(0.2)
        except OSError:
            return handle, False
    os.close(handle)
    raise Refused(75, box, "another run of this cell has been at work there for a minute", "wait for it, or end it")


def sweep(box):
    """Take away what a killed run of this cell left."""
    for name in os.listdir(box):
        if re.match(r"\.(new|current)\.[0-9]+\Z", name):
            path = os.path.join(box, name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def put(spec, files, folder):
    """The files into a folder beside, flushed and read back, then one rename."""
    new = os.path.join(os.path.dirname(folder), ".new.%d" % os.getpid())
    os.mkdir(new)
    try:
        for one in spec["files"]:
            path = os.path.join(new, one["name"])
            with open(path, "wb") as file:
                file.write(files[one["name"]])
            flush(path)
        if folder_digest(new) != spec["box_digest"]:
            raise Refused(74, new, "the files do not read back as they were written", "look at the disk, and run this cell again")
        flush(new)
        try:
            os.rename(new, folder)
        except OSError:
            if not os.path.isdir(folder):  # else another run was quicker, on a disk without locks; its folder is looked at next
                raise
        flush(os.path.dirname(folder))
    finally:
        shutil.rmtree(new, ignore_errors=True)


def point(box, name):
    """box/current leads to the folder: the old one or the new one, never none."""
    current, link = os.path.join(box, "current"), os.path.join(box, ".current.%d" % os.getpid())
    if os.path.isdir(current) and not os.path.islink(current):
        raise Refused(65, current, "it is a folder, and not a link of ours", "move it aside (mv), then run this cell again")
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink(name, link)
    os.replace(link, current)
    if os.readlink(current) != name:
        raise Refused(74, current, "it does not read back", "look at the disk: can it hold links?")


def install(spec, text, dry):
    """All of it; gives the sentence to print."""
    files = unpack(spec, text)
    box = os.path.join(run_folder(spec), "box")
    name = spec["box_digest"][:12]
    folder = os.path.join(box, name)
    scripts = sum(one["mode"] == "0700" for one in spec["files"])
    if dry:
        return "whole; would install %d scripts and the queue, digest %s, in %s" % (scripts, name, folder)
    os.makedirs(box, exist_ok=True)
    handle, locked = alone(box)
    try:
        if locked:
            sweep(box)
        there = os.path.isdir(folder)
        if not there:
            put(spec, files, folder)
        if folder_digest(folder) != spec["box_digest"]:
            raise Refused(65, folder, "its files are not what its name says: somebody changed them", "move it aside (mv), then run this cell again")
        for one in spec["files"]:
            if os.stat(os.path.join(folder, one["name"])).st_mode & 0o777 != int(one["mode"], 8):
                os.chmod(os.path.join(folder, one["name"]), int(one["mode"], 8))
        point(box, name)
    finally:
        os.close(handle)
    return "%s %d scripts and the queue, digest %s, in %s; %s leads there" % (
        "there already, unchanged:" if there else "installed", scripts, name, folder, os.path.join(box, "current"))


def reason(error):
    """A refusal for what the system said."""
    what = error.filename or "the run's folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(73, what, "no room (%s)" % error.strerror, "free some, and run this cell again; nothing that was installed before has changed")
    return Refused(74, what, "it cannot be written (%s)" % error.strerror, "set DATA_DIR to a folder that you may write to, and run this cell again")


def main(spec, text, words):
    """The exit code."""
    if words not in ([], ["--print"]):
        print(USAGE, file=sys.stdout if words in (["-h"], ["--help"]) else sys.stderr)
        return 0 if words in (["-h"], ["--help"]) else 64
    old = os.umask(0o077)
    try:
        print("install_cell.py: " + install(spec, text, bool(words)), flush=True)
        return 0
    except OSError as error:
        no = reason(error)
    except Refused as error:
        no = error
    finally:
        os.umask(old)
    print("install_cell.py: refused: %s; %s; %s" % no.args[1:], file=sys.stderr, flush=True)
    return no.args[0]


CODE = main(json.loads(INDEX), TEXT, sys.argv[1:] if os.path.basename(sys.argv[0]) == "install_cell.py" else [])  # noqa: F821 (the cell gives them)
if CODE or sys.argv[0].endswith("install_cell.py"):
    raise SystemExit(CODE)
