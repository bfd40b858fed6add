"""Which tiers are used, and the arithmetic: room for all cells, time, grace."""

from __future__ import annotations

from dataclasses import dataclass

from . import cells as cells_module

GB = 1_000_000_000
SAVE_MARGIN_S = 10
BUFFER = 0.1  # room on top of what the cells need
DEFAULT_FILES = 100


@dataclass(frozen=True)
class Need:
    """Room on one tier in bytes and files: for the cells, with buffer, and the tier's caps (None = not known)."""

    tier: str
    per_cell_bytes: int
    cells: int
    buffer_bytes: int
    total_bytes: int
    total_files: int
    cap_bytes: int | None
    cap_files: int | None

    @property
    def fits(self) -> bool:
        """False only where a known cap is exceeded."""
        return not (self.cap_bytes is not None and self.total_bytes > self.cap_bytes) and not (
            self.cap_files is not None and self.total_files > self.cap_files
        )


def plain(path: str) -> str:
    """A path with one spelling: `$HOME` and `~` are the same folder, and a slash at the end says nothing."""
    head, slash, rest = path.rstrip("/").partition("/")
    return ("~" if head == "$HOME" else head) + slash + rest


def within(path: str, tier_path: str) -> bool:
    """True where `path` is the tier's path or below it, as texts."""
    path, tier_path = plain(path), plain(tier_path)
    return path == tier_path or path.startswith(tier_path + "/")


def holding(path: str, tiers: list[dict]) -> list[dict]:
    """The tiers that a path lies on: those with the longest path, for /root/fs is not on / where it is a tier of its own."""
    found = [tier for tier in tiers if within(path, tier["path"])]
    longest = max((len(plain(tier["path"])) for tier in found), default=0)
    return [tier for tier in found if len(plain(tier["path"])) == longest]


def choose(profile: dict, without: tuple[str, ...]) -> tuple[dict | None, dict | None]:
    """The data tier and the durable tier (None = pull-only) that are left."""
    tiers = {tier["name"]: tier for tier in profile["storage"]["tiers"] if tier["name"] not in without}
    data = next((tiers[name] for name in profile["storage"]["data"] if name in tiers), None)
    durable = next((tiers[name] for name in profile["storage"]["durable"] if name in tiers), None)
    return data, durable


def folder(override: str, tier: dict | None) -> str:
    """A folder of `overrides` as it stands after `without`: kept where it lies on the tier, else the tier's own path."""
    if tier is None:
        return ""
    return override if override and within(override, tier["path"]) else tier["path"]


def left_out(path: str, profile: dict, without: tuple[str, ...]) -> bool:
    """True where the tier that holds a path, the one with the longest path, was left out, and no other is mounted there."""
    names = [tier["name"] for tier in holding(path, profile["storage"]["tiers"])]
    return bool(names) and all(name in without for name in names)


def outlives(tier: dict, action: dict) -> bool:
    """True where a tier outlives an action: its column of the survival matrix, and nothing is deleted with it."""
    like = action["like"]
    if tier["name"] in action.get("deletes", []) or action["retention_days"] == 0 and like != "none":
        return False
    return like == "none" or (like != "storage" and tier["survives"][like])


def grace_s(profile: dict, job: dict) -> int:
    """Seconds between the platform's signal and the kill: save_s + 10, or its own number where that is shorter.

    Where a cell is stopped by us, at a limit or because the queue is stopped, nobody kills sooner: there it is save_s + 10.
    """
    ours = job["save_s"] + SAVE_MARGIN_S
    theirs = profile["interruption"]["grace_s"]
    # Without a signal there is no time to share: the number then only tells that the platform kills at once.
    if theirs is None or profile["interruption"]["signal"] == "none":
        return ours
    return min(ours, theirs)


def session_cap(profile: dict) -> dict | None:
    """The clock that ends a running session first, whatever runs in it; None where no such clock has a number."""
    caps = [one for one in profile["interruption"]["clocks"] if one.get("ends_session") and one.get("after_s")]
    return min(caps, key=lambda one: one["after_s"], default=None)


def session_s(profile: dict) -> int:
    """After how many seconds a session's queue ends by itself: an hour before the shortest cap of a session; 0 = no cap is known."""
    cap = session_cap(profile)
    return max(cap["after_s"] - 3600, 1800) if cap else 0


def budget(profile: dict, job: dict, data: dict, durable: dict | None) -> dict:
    """Room and time for all cells. The durable tier is counted with as much as the data tier, which is the most it can be."""
    number = cells_module.count(job)
    per_cell = round(job["needs"]["disk_gb"] * GB)
    files = job["needs"].get("files", DEFAULT_FILES)

    def need(tier: dict) -> Need:
        buffer = round(per_cell * number * BUFFER)
        cap = tier["size_cap_gb"]
        return Need(
            tier["name"],
            per_cell,
            number,
            buffer,
            per_cell * number + buffer,
            files * number,
            None if cap is None else round(cap * GB),
            tier["inode_cap"],
        )

    return {
        "data": need(data),
        "durable": need(durable) if durable else None,
        "minutes": job["needs"]["minutes"] * number,
        "same_tier": durable is not None and durable["name"] == data["name"],
        "buffer": BUFFER,
        "files_per_cell": files,
    }
