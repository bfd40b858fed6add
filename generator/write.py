"""The only place that writes: all or nothing, only what differs, nothing that a person has edited.

A file is replaced by rename, so a script that runs keeps its old text. All files lie written and flushed beside their
places before the first is renamed, so a full disk changes nothing. `SOURCES.json` lists every file with its digest; the
next list is put down before all else as `.SOURCES.next.json`, so that a run that was killed half-way is recognised and
simply finished by the next one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from . import __version__
from .bind import Bindings
from .render import TEMPLATES, Output
from .validate import SCHEMA_DIR

NEXT = ".SOURCES.next.json"


class Refused(Exception):
    """Nothing was written, and why."""


@dataclass
class Written:
    """What a run did: relative paths."""

    made: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    same: int = 0
    overwritten: list[str] = field(default_factory=list)  # with --force: what was not ours, in words


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=None)
def _templates_digest(folder: Path) -> str:
    """One digest over all templates and libraries, by name."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".j2", ".bash", ".py"):
            whole.update(f"{path.relative_to(folder).as_posix()} {digest(path.read_bytes())}\n".encode())
    return whole.hexdigest()


def sources(b: Bindings, files: dict[str, Output]) -> bytes:
    """SOURCES.json: what this was compiled from. No time, host or absolute path."""
    record = {
        "schema": "sources/1",
        "compiler": __version__,
        "profile": {"file": b.profile_doc.file, "sha256": b.profile_doc.digest},
        "job": {"file": b.job_doc.file, "sha256": b.job_doc.digest},
        "without": list(b.without),
        "schemas": [
            {"file": f"schema/{name}", "sha256": digest((SCHEMA_DIR / name).read_bytes())}
            for name in ("profile.schema.json", "job.schema.json")
        ],
        "templates_sha256": _templates_digest(TEMPLATES),
        "files": [
            {"path": path, "sha256": files[path].sha256, "mode": "0755" if files[path].executable else "0644"}
            for path in sorted(files)
        ],
    }
    return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()


def write(target: Path, b: Bindings, files: dict[str, Output], force: bool = False) -> Written:
    """Bring `target` to exactly these files and SOURCES.json."""
    record = sources(b, files)
    target.mkdir(parents=True, exist_ok=True)
    handle = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # a second compile into the same folder waits
        return _write_locked(target, files, record, force)
    finally:
        os.close(handle)


def _write_locked(target: Path, files: dict[str, Output], record: bytes, force: bool) -> Written:
    _sweep(target, [NEXT])
    known = _recorded(target / "SOURCES.json")
    half = _recorded(target / NEXT)
    if not force and not known and not half and any(target.iterdir()):
        raise Refused(
            f"{target}: the folder is not empty and was not made by this compiler; nothing was written; name another, or use --force (make: force=1)"
        )
    stale = sorted((set(known) | set(half)) - set(files))
    _no_way_out(target, [*files, *stale])
    _sweep(target, [*files, *stale, "SOURCES.json"])
    foreign, same = _compare(target, files, stale, known, half)
    if foreign and not force:
        raise Refused(
            f"{target}: {'; '.join(foreign)}; nothing was written; "
            "move your change into the template or the profile, or overwrite it with --force (make: force=1)"
        )
    changed = [path for path in files if path not in same]
    gone = [path for path in stale if os.path.lexists(target / path)]
    for path in [*changed, *gone, "SOURCES.json"]:
        if (target / path).is_dir() and not (target / path).is_symlink():
            raise Refused(f"{target / path} is a folder; nothing was written; remove it")
    if changed or gone or _read(target / "SOURCES.json") != record:
        # What a killed run may have left: the files of the list before, of the run that was killed, and ours.
        earlier = [{"path": path, "sha256": one} for path, digests in sorted(half.items()) for one in sorted(digests)]
        coming = json.dumps({"files": json.loads(record)["files"] + earlier}).encode()
        os.replace(_stage(target / NEXT, coming, 0o644), target / NEXT)
        _replace_all(target, {path: files[path] for path in changed} | {"SOURCES.json": Output(record)}, gone, bool(half))
    (target / NEXT).unlink(missing_ok=True)
    return Written(changed, gone, len(files) - len(changed), foreign)


def _replace_all(target: Path, files: dict[str, Output], gone: list[str], half: bool) -> None:
    """Stage all, then rename and remove. What cannot be staged leaves everything as it was."""
    staged: dict[Path, Path] = {}
    folders = [each for path in files for each in reversed((target / path).parents) if each.is_relative_to(target) and not each.exists()]
    try:
        _flush({target})
        for path, output in files.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            staged[target / path] = _stage(target / path, output.data, 0o755 if output.executable else 0o644)
    except OSError:
        for temporary in staged.values():
            temporary.unlink()
        for folder in reversed(dict.fromkeys(folders)):
            if folder.is_dir():
                folder.rmdir()
        if not half:
            (target / NEXT).unlink()
        raise
    record = staged.pop(target / "SOURCES.json")
    for place, temporary in staged.items():
        os.replace(temporary, place)
    for path in gone:
        _remove(target, path)
    # The names too are on the disk before the list that says so.
    _flush({place.parent for place in staged} | {target})
    os.replace(record, target / "SOURCES.json")
    _flush({target})


def _flush(folders: set[Path]) -> None:
    """Put the names in these folders on the disk, where the file system knows how to."""
    for folder in folders:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)


def _remove(target: Path, path: str) -> None:
    """Remove a file that nobody makes any more, and folders that are empty then."""
    (target / path).unlink()
    for parent in (target / path).parents:
        if parent == target or any(parent.iterdir()):
            break
        parent.rmdir()


def _sweep(target: Path, paths: list[str]) -> None:
    """Remove what a killed run left beside these places, by the names of `_stage`; the lock says that nobody writes now."""
    names: dict[Path, set[str]] = {}
    for path in paths:
        names.setdefault((target / path).parent, set()).add(Path(path).name)
    for folder, known in names.items():
        for place in folder.glob(".*.tmp"):
            match = re.fullmatch(r"\.(.+)\.[0-9]+\.tmp", place.name)
            if match and match[1] in known:
                place.unlink()


def _no_way_out(target: Path, paths: list[str]) -> None:
    """Refuse a folder in `target` that is a link: what is written or removed through it lies elsewhere."""
    for folder in {target / parent for path in paths for parent in Path(path).parents if parent.name}:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise Refused(f"{folder} is {'a link' if folder.is_symlink() else 'no folder'}; nothing was written; remove it")


def _recorded(path: Path) -> dict[str, set[str]]:
    """path -> digests of an earlier run; nothing where the list is missing or cut."""
    found: dict[str, set[str]] = {}
    try:
        for one in json.loads(_read(path))["files"]:
            if _inside(one["path"]):
                found.setdefault(one["path"], set()).add(one["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _inside(path: str) -> bool:
    parts = Path(path).parts
    return bool(parts) and not Path(path).is_absolute() and ".." not in parts and "\0" not in path


def _compare(target: Path, files: dict[str, Output], stale: list[str], known: dict, half: dict) -> tuple[list[str], set[str]]:
    """What stands where we would write and is not ours, in words; and which files are as they should be.

    Of a file's mode only the execute bit counts, for the umask of a clone is its own.
    """
    foreign, same = [], set()
    for path in [*files, *stale]:
        place = target / path
        try:
            mode = os.lstat(place).st_mode
        except (OSError, ValueError):
            continue
        if not stat.S_ISREG(mode):
            foreign.append(f"{path} was not made by this compiler")
            continue
        data = place.read_bytes()
        if path in files and data == files[path].data:
            if bool(mode & 0o100) == files[path].executable:
                same.add(path)
            continue
        if digest(data) not in known.get(path, set()) | half.get(path, set()):
            foreign.append(f"{path} was edited by hand" if path in known else f"{path} was not made by this compiler")
    return foreign, same


def _stage(place: Path, data: bytes, mode: int) -> Path:
    """Write beside the place and flush; the name to rename from."""
    temporary = place.parent / f".{place.name}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
