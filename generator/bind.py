"""Profile x job -> named values, each with why it is so and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import cells as cells_module
from .budget import DEFAULT_FILES, GB, SAVE_MARGIN_S, budget, choose, folder, grace_s, left_out, outlives, session_s
from .load import Document
from .variants import variant

DEFAULT_RETRIES = 2
SSH_KINDS = ("owned", "ssh-rental", "cloud-vm", "slurm")


@dataclass(frozen=True)
class Bound:
    """A named value. kind: text, path, int, bool or array. origin: (P or J, path of the field; () = the file's name), or None for a default of ours."""

    name: str
    value: Any
    kind: str
    why: str
    origin: tuple | None = None


@dataclass
class Bindings:
    """Everything that rendering needs.

    by_name: NAME -> Bound; profile: its data as they read after `without`; tiers: the tiers left; data, durable: the
    chosen tier (durable None = pull-only); actions: the teardown actions; meter_stop: the action that stops the meter; clocks: the danger clocks
    (id, effect, …) in order; budget: {'data': Need, 'durable': Need or None, 'minutes': …}.
    """

    by_name: dict[str, Bound]
    profile: dict
    job: dict
    profile_doc: Document
    job_doc: Document
    without: tuple[str, ...]
    tiers: list[dict]
    data: dict
    durable: dict | None
    actions: list[dict]
    meter_stop: dict
    clocks: list[dict]
    budget: dict

    def __getitem__(self, name: str) -> Bound:
        return self.by_name[name]


def bind(profile_doc: Document, job_doc: Document, without: tuple[str, ...] = ()) -> Bindings:
    """All bound values. The documents are valid and no rule has failed."""
    profile, job = variant(profile_doc.data, without), job_doc.data
    data, durable = choose(profile, without)
    assert data is not None, "the rules let a profile pass that has no data tier left"
    durables = profile["storage"]["durable"]
    # A box without a tier has no action that is about that tier alone: its row would say of another one that it is kept.
    actions = [
        action
        for action in profile["teardown"]["actions"]
        if action["like"] != "storage" or not (deleted := set(action.get("deletes", durables))) or not deleted <= set(without)
    ]
    verbs = {action["verb"]: action for action in actions}
    tiers = [tier for tier in profile["storage"]["tiers"] if tier["name"] not in without]
    found = Bindings(
        {},
        profile,
        job,
        profile_doc,
        job_doc,
        without,
        tiers,
        data,
        durable,
        actions,
        verbs[profile["teardown"]["meter_stop"]],
        clocks(profile),
        budget(profile, job, data, durable),
    )
    table = [*_identity(found), *_places(found), *_tiers(found), *_cell(found), *_box(found), *_teardown(found), *_session(found)]
    found.by_name = {one.name: one for one in table}
    return found


def clocks(profile: dict) -> list[dict]:
    """The danger clocks in the order of launch.surface."""
    known = {one["id"]: one for one in profile["interruption"]["clocks"] + profile["teardown"]["cost_traps"]}
    return [known[one] for one in profile["launch"]["surface"]["danger_clocks"] if one in known]


def _identity(b: Bindings) -> list[Bound]:
    launch = b.profile["launch"]
    job = b.job_doc.name
    return [
        Bound("PROFILE", b.profile_doc.name, "text", "the profile's name", ("P", ())),
        Bound("JOB", job, "text", "the job's name", ("J", ())),
        Bound("KIND", launch["kind"], "text", "what kind of platform it is", ("P", ("launch", "kind"))),
        Bound("TITLE", launch["title"], "text", "the platform's name", ("P", ("launch", "title"))),
        Bound("RUN", job, "text", "the run's name; a new one begins anew", ("J", ())),
        Bound(
            "CELLS", cells_module.count(b.job), "int", "cells in the compiled queue", ("J", ("matrix" if "matrix" in b.job else "cells",))
        ),
        Bound("BRANCH", b.job["code"]["branch"], "text", "the branch that a formal run is at", ("J", ("code", "branch"))),
    ]


def _survives(tier: dict | None) -> str:
    if tier is None:
        return "no tier outlives the meter stop: results come home first"
    column = tier["survives"]
    words = {
        True: [key.replace("_", " ") for key in column if column[key]],
        False: [key.replace("_", " ") for key in column if not column[key]],
    }
    said = f"tier {tier['name']}: survives " + (", ".join(words[True]) or "nothing")
    return said + (", not " + ", ".join(words[False]) if words[False] and words[True] else "")


def _places(b: Bindings) -> list[Bound]:
    given = b.profile["overrides"]

    def path(name: str, why: str, instead: str) -> Bound:
        if left_out(given[name], b.profile, b.without):
            return Bound(name, instead, "path", f"{why}; its tier is left out", ("P", _tier_path(b, b.data)) if instead else None)
        return Bound(name, given[name], "path", why, ("P", ("overrides", name)))

    def place(name: str, tier: dict | None) -> Bound:
        value = folder(given[name], tier)
        same = value == given[name] or not b.without
        origin = ("overrides", name) if same else ("storage", "tiers") if tier is None else _tier_path(b, tier)
        return Bound(name, value if b.without else given[name], "path", _survives(tier), ("P", origin))

    data_dir = folder(given["DATA_DIR"], b.data)
    python, python_at = interpreter(b.profile)
    user = ("overrides", "SSH_USER") if "SSH_USER" in given else ("launch", "login_user")
    return [
        place("DATA_DIR", b.data),
        place("DURABLE_DIR", b.durable),
        path("SCRATCH", "may be lost at any time", f"{data_dir}/.scratch"),
        path("HF_HOME", "cache of Hugging Face; empty: the library's own place", f"{data_dir}/.huggingface"),
        path("CRED_FILE", "NAME=value lines, mode 600; empty: none", ""),
        Bound(
            "PROXY_HOOK",
            given["PROXY_HOOK"],
            "text",
            "a file to source or an http address; empty: none",
            ("P", ("overrides", "PROXY_HOOK")),
        ),
        Bound("PY", python, "text", "the interpreter", ("P", python_at) if python_at else None),
        Bound("DETACH", given["DETACH"], "text", "what a detached run is started with", ("P", ("overrides", "DETACH"))),
        Bound("DETACH_FALLBACK", b.profile["daemon"]["fallback"], "text", "used where that is missing", ("P", ("daemon", "fallback"))),
        Bound("SSH_USER", given.get("SSH_USER", b.profile["launch"]["login_user"]), "text", "login user; empty: one's own", ("P", user)),
    ]


def _tier_path(b: Bindings, tier: dict) -> tuple:
    return ("storage", "tiers", b.profile["storage"]["tiers"].index(tier), "path")


def interpreter(profile: dict) -> tuple[str, tuple | None]:
    """The interpreter and the field that names it; python3 where none does."""
    if profile["overrides"].get("PY"):
        return profile["overrides"]["PY"], ("overrides", "PY")
    said = profile["launch"]["environment"]["python"]
    if "PY" not in profile["overrides"] and not any(c.isspace() for c in said):
        return said, ("launch", "environment", "python")
    return "python3", None


def _tiers(b: Bindings) -> list[Bound]:
    out = []
    for name, tier in (("DATA", b.data), ("DURABLE", b.durable)):
        at = _tier_path(b, tier)[:-1] if tier else ("storage", "durable")
        cap = b.budget["data"].cap_bytes if name == "DATA" else b.budget["durable"].cap_bytes if tier else None
        inodes = tier["inode_cap"] if tier else None
        out += [
            Bound(name + "_TIER", tier["name"] if tier else "", "text", f"the {name.lower()} tier", ("P", at)),
            Bound(name + "_PROOF", tier["proof"] if tier else "none", "text", "what shows that the tier is there", ("P", (*at, "proof"))),
            Bound(name + "_TIER_PATH", tier["path"] if tier else "", "path", "where it is mounted", ("P", (*at, "path"))),
            Bound(
                name + "_CAP_BYTES", "" if cap is None else cap, "int", "its size in bytes; empty: not known", ("P", (*at, "size_cap_gb"))
            ),
            Bound(
                name + "_CAP_INODES",
                "" if inodes is None else inodes,
                "int",
                "its limit of files; empty: not known",
                ("P", (*at, "inode_cap")),
            ),
        ]
    shared = [tier["path"] for tier in b.tiers if tier["shared"] or tier["name"] in b.profile["storage"]["durable"]]
    return out + [
        Bound(
            "DATA_SURVIVES_RESTART",
            b.data["survives"]["restart"],
            "bool",
            "what lies there outlives a restart of the box",
            ("P", (*_tier_path(b, b.data)[:-1], "survives", "restart")),
        ),
        Bound(
            "REGION_LOCKED",
            [
                tier["name"]
                for tier in b.tiers
                if tier["region_locked"] and (tier["survives"]["destroy"] or tier["shared"]) and b.profile["launch"]["kind"] != "owned"
            ],  # a disk of the box's own is always where the box is
            "array",
            "tiers that only boxes of one region, zone or host can reach",
            ("P", ("storage", "tiers")),
        ),
        Bound("TIERS_IN", _shown(b), "array", "what this box has to show: name, proof, role, path", ("P", ("storage", "tiers"))),
        Bound("TIERS_OUT", _hidden(b), "array", "what was left out, and may not show: name, proof, role, path", ("P", ("storage", "tiers"))),
        Bound(
            "SHARED_PATHS",
            list(dict.fromkeys(shared)),
            "array",
            "shared and durable tiers: no secret may lie there",
            ("P", ("storage", "tiers")),
        ),
    ]


def _shown(b: Bindings) -> list[str]:
    """The tiers of this variant that something on the box shows, one for each path: the one that is used, where several share it."""
    ordered = [tier for tier in (b.durable, b.data) if tier] + b.tiers
    paths = {tier["path"]: tier for tier in reversed(ordered)}
    return [
        f"{tier['name']} {tier['proof']} {'optional' if tier.get('optional') else 'every'} {tier['path']}"
        for tier in b.tiers
        if tier["proof"] != "none" and paths[tier["path"]] is tier
    ]


def _hidden(b: Bindings) -> list[str]:
    storage = b.profile["storage"]
    return [
        f"{tier['name']} {tier['proof']} {'kept' if tier['name'] in storage['durable'] + storage['data'] else 'other'} {tier['path']}"
        for tier in storage["tiers"]
        if tier["name"] in b.without and tier["proof"] != "none"
    ]


def _cell(b: Bindings) -> list[Bound]:
    job, needs, limits = b.job, b.job["needs"], b.job.get("limits", {})

    def at(*path: str) -> tuple:
        return ("J", path)

    grace = grace_s(b.profile, job)
    ours = job["save_s"] + SAVE_MARGIN_S
    checkpoint = job["artifacts"].get("checkpoint", {})
    ckpt_at = at("artifacts", "checkpoint") if checkpoint else None
    environment = job.get("environment", {})
    witnesses = [(tier, one) for tier in ("kernel", "docs") for one in environment.get(tier, [])]
    env_at = at("environment") if environment else None
    return [
        Bound("SAVE_S", job["save_s"], "int", "seconds that one checkpoint takes", at("save_s")),
        Bound("GRACE_S", ours, "int", "seconds between our signal and the kill: save_s + 10", at("save_s")),
        Bound(
            "SIGNAL_GRACE_S",
            grace,
            "int",
            "the same behind the platform's own signal: " + ("its limit" if grace != ours else "save_s + 10"),
            ("P", ("interruption", "grace_s")) if grace != ours else at("save_s"),
        ),
        Bound("WALL_S", limits.get("wall_s", 0), "int", "seconds for one attempt; 0: no limit", at("limits", "wall_s")),
        Bound("STALL_S", limits.get("stall_s", 0), "int", "seconds without a sign of life; 0: no limit", at("limits", "stall_s")),
        Bound("RETRY_MAX", job.get("retry", {}).get("max", DEFAULT_RETRIES), "int", "retries of a transient failure", at("retry", "max")),
        Bound(
            "REQUIRED", job["artifacts"]["required"], "array", "what a finished cell has, relative to CELL_DIR", at("artifacts", "required")
        ),
        Bound("PRUNE", job["artifacts"].get("prune", []), "array", "what may go once a cell is synced", at("artifacts", "prune")),
        Bound("CKPT_PATTERN", checkpoint.get("pattern", ""), "text", "checkpoints, relative to CELL_DIR; empty: not said", ckpt_at),
        Bound("CKPT_FILES", checkpoint.get("files", []), "array", "what a complete one holds", ckpt_at),
        Bound("CKPT_MARKER", checkpoint.get("marker", ""), "text", "what is written last, in it or behind its name", ckpt_at),
        Bound("CKPT_BYTES", checkpoint.get("bytes", 0), "int", "the least that it holds", ckpt_at),
        Bound("NEED_GPUS", needs["gpus"], "int", "GPUs for one cell", at("needs", "gpus")),
        Bound("NEED_DISK_BYTES", round(needs["disk_gb"] * GB), "int", "disk for one cell", at("needs", "disk_gb")),
        Bound("NEED_FILES", needs.get("files", DEFAULT_FILES), "int", "files of one cell", at("needs", "files")),
        Bound("NEED_RAM_BYTES", round(needs["ram_gb"] * GB), "int", "host memory for one cell", at("needs", "ram_gb")),
        Bound("NEED_S", max(1, round(needs["minutes"] * 60)), "int", "expected seconds for one cell", at("needs", "minutes")),
        Bound("SMOKE_COMMAND", job["smoke"]["command"], "text", "the short trial", at("smoke", "command")),
        Bound("SMOKE_ARTIFACT", job["smoke"]["artifact"], "text", "the checkpoint that it must leave in CELL_DIR", at("smoke", "artifact")),
        Bound("SMOKE_TIMEOUT_S", job["smoke"]["timeout_s"], "int", "seconds until it is stopped", at("smoke", "timeout_s")),
        Bound("SECRETS", job.get("secrets", []), "array", "names of variables, never values", at("secrets")),
        Bound("ENV_IMPORTS", environment.get("imports", []), "array", "modules that PY must import", env_at),
        *(
            Bound(name, [one[key] if key else tier for tier, one in witnesses], "array", why, env_at)
            for name, key, why in (
                ("ENV_TIERS", "", "what shows that the environment works: a kernel that runs, documentation that holds"),
                ("ENV_COMMANDS", "command", "the commands"),
                ("ENV_EXPECTS", "expect", "and what a line of their answers matches"),
            )
        ),
        Bound(
            "DATA_PATHS", [one["path"] for one in job.get("data", [])], "array", "data that must be there, relative to the code", at("data")
        ),
        Bound("DATA_FILES", [str(one["files"]) for one in job.get("data", [])], "array", "and how many files each must hold", at("data")),
        *(
            Bound(name, [str(one.get(key, "")) for one in job.get("data", [])], "array", why, at("data"))
            for name, key, why in (
                ("DATA_SIZES", "bytes", "and how many bytes; empty: not said"),
                ("DATA_SUMS", "sha256", "and its digest, where it is one file"),
                ("DATA_LISTS", "manifest", "and the list of its digests, relative to the code"),
                ("DATA_UNDER", "under", "hf_home: below HF_HOME, not below the code"),
            )
        ),
    ]


def _box(b: Bindings) -> list[Bound]:
    network, daemon = b.profile["network"], b.profile["daemon"]
    return [
        Bound("SIGNAL", b.profile["interruption"]["signal"], "text", "the platform's warning signal", ("P", ("interruption", "signal"))),
        Bound(
            "DAEMON_SURVIVES_RESTART",
            daemon["survives"]["restart"],
            "bool",
            "a detached run outlives a restart of the box",
            ("P", ("daemon", "survives", "restart")),
        ),
        Bound(
            "MIRRORS",
            [f"{name}={value}" for name, value in network["mirrors"].items()],
            "array",
            "mirrors, exported to every cell",
            ("P", ("network", "mirrors")),
        ),
        Bound(
            "KEEPALIVE_S", network["keepalive"]["interval_s"], "int", "ServerAliveInterval", ("P", ("network", "keepalive", "interval_s"))
        ),
        Bound(
            "KEEPALIVE_MAX", network["keepalive"]["count_max"], "int", "ServerAliveCountMax", ("P", ("network", "keepalive", "count_max"))
        ),
        Bound("SSH_FLAVOUR", network["ssh"]["flavour"], "text", "direct, proxied or none", ("P", ("network", "ssh", "flavour"))),
        Bound("SSH_COPY", network["ssh"]["copy"], "bool", "files can be copied over it", ("P", ("network", "ssh", "copy"))),
        Bound(
            "ADDRESS_CHANGES",
            network["address"]["changes_on_restart"],
            "bool",
            "host or port may change on a restart",
            ("P", ("network", "address", "changes_on_restart")),
        ),
    ]


def power_off(profile: dict, keeper: dict) -> tuple[list[str], str | None]:
    """Words that switch the box off from inside and their verb, where the profile says that this stops the meter, can be
    undone and leaves the tier `keeper` alive, on which the results lie."""
    for action in profile["teardown"]["actions"]:
        command = action.get("command", [])
        if (
            action.get("where") == "box"
            and action["stops_meter"]
            and action["reversible"]
            and outlives(keeper, action)
            and command
            and not any("{instance}" in word for word in command)
        ):
            return command, action["verb"]
    return [], None


def _teardown(b: Bindings) -> list[Bound]:
    command, verb = power_off(b.profile, b.durable or b.data)
    # The place in the file: a variant may lack an action before it.
    at = next((index for index, action in enumerate(b.profile_doc.data["teardown"]["actions"]) if action["verb"] == verb), None)
    return [
        Bound(
            "METER_STOP", b.profile["teardown"]["meter_stop"], "text", "the verb that stops the meter", ("P", ("teardown", "meter_stop"))
        ),
        Bound(
            "ACTION_VERBS",
            [action["verb"] for action in b.actions],
            "array",
            "all verbs, in the profile's order",
            ("P", ("teardown", "actions")),
        ),
        Bound(
            "POWER_OFF_COMMAND",
            command,
            "array",
            "switches the box off from inside; empty: the profile does not say that this stops the meter",
            None if at is None else ("P", ("teardown", "actions", at, "command")),
        ),
        Bound(
            "CLOCKS",
            [clock["effect"] for clock in b.clocks],
            "array",
            "what strikes by itself",
            ("P", ("launch", "surface", "danger_clocks")),
        ),
    ]


def _session(b: Bindings) -> list[Bound]:
    return [
        Bound(
            "SESSION_S",
            session_s(b.profile),
            "int",
            "a session's queue stops after so many seconds, an hour before its cap; 0: no cap is known",
            ("P", ("interruption", "clocks")),
        ),
        Bound(
            "AWAY",
            [f"{tier['name']} {tier['proof']} {tier['path']}" for tier in b.tiers if tier is not b.data and outlives(tier, b.meter_stop)],
            "array",
            "what outlives a session: name, proof, path",
            ("P", ("storage", "tiers")),
        ),
    ]


def action_fields(b: Bindings, action: dict) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The columns of `load_action` for one action: texts and arrays."""
    gone = action["confirm_gone"]
    like = action["like"]
    durable = b.profile["storage"]["durable"]
    if like in ("stop", "destroy"):
        survives = [tier["name"] for tier in b.tiers if tier["survives"][like]]
    else:
        survives = [tier["name"] for tier in b.tiers if like == "none" or tier["name"] not in action.get("deletes", durable)]
    lost = [tier["name"] for tier in b.tiers if tier["name"] not in survives]
    where = action.get("where", "laptop" if "command" in action else "console")
    texts = {
        "LIKE": like,
        "WHERE": where,
        "STOPS_METER": str(action["stops_meter"]).lower(),
        "REVERSIBLE": str(action["reversible"]).lower(),
        "RETENTION_DAYS": "" if action["retention_days"] is None else str(action["retention_days"]),
        "BILLED": action["storage_billed"],
        "NOTE": action.get("note", ""),
        "SOURCE": f"{action['source']}, {action['as_of']}",
        "GONE_ABSENT": gone.get("absent", ""),
        "GONE_ANSWER": gone.get("answer", ""),
    }
    arrays = {
        "COMMAND": action.get("command", []),
        "STEPS": action.get("steps", []),
        "GONE_COMMAND": gone.get("command", []),
        "GONE_STEPS": gone.get("steps", []),
        "SURVIVES": survives,
        "LOST": lost,
    }
    return texts, arrays
