"""The rules on storage: tiers, what survives what, and the folders that lie on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .budget import choose, folder, holding, left_out as is_left_out, plain, within
from .diagnostics import Diagnostic, closest
from .rules import Case

Found = Iterator[Diagnostic]


def tiers_known(case: Case) -> Found:
    """P301: unknown tier."""
    names = [tier["name"] for tier in case.p["storage"]["tiers"]]
    for key in ("data", "durable"):
        for index, name in enumerate(case.p["storage"][key]):
            if name not in names:
                yield case.say(
                    "P301",
                    ("storage", key, index),
                    f"'{name}' is not the name of any tier",
                    closest(name, names) or "tiers: " + ", ".join(names),
                )
    for index, action in enumerate(case.p["teardown"]["actions"]):
        for number, name in enumerate(action.get("deletes", [])):
            if name not in names:
                yield case.say(
                    "P301",
                    ("teardown", "actions", index, "deletes", number),
                    f"'{name}' is not the name of any tier",
                    closest(name, names) or "tiers: " + ", ".join(names),
                )


def left_out(case: Case) -> Found:
    """P304: --without a tier that one cannot be without."""
    tiers = {tier["name"]: (index, tier) for index, tier in enumerate(case.p["storage"]["tiers"])}
    for name in case.without:
        if name not in tiers:
            yield case.say(
                "P304",
                ("storage", "tiers"),
                f"--without {name}: there is no such tier",
                closest(name, tiers) or "tiers: " + ", ".join(tiers),
                True,
            )
        elif not tiers[name][1].get("optional"):
            optional = [each for each, (_, tier) in tiers.items() if tier.get("optional")]
            yield case.say(
                "P304",
                ("storage", "tiers", tiers[name][0], "name"),
                f"--without {name}: this tier comes with every box",
                "these are optional: " + (", ".join(optional) or "none"),
            )


def data_tier_left(case: Case) -> Found:
    """P303: no data tier left."""
    known = {tier["name"] for tier in case.p["storage"]["tiers"]}
    if set(case.p["storage"]["data"]) <= known and choose(case.p, case.without)[0] is None:
        yield case.say(
            "P303", ("storage", "data"), f"without {', '.join(case.without)} no data tier is left", "add one that every box has", True
        )


def durable_outlives(case: Case) -> Found:
    """The proof: every durable tier that is left outlives the verb that stops the meter."""
    verb = case.p["teardown"]["meter_stop"]
    at, action = next(((i, one) for i, one in enumerate(case.p["teardown"]["actions"]) if one["verb"] == verb), (0, {}))
    like = action.get("like")
    tiers = {tier["name"]: (index, tier) for index, tier in enumerate(case.p["storage"]["tiers"])}
    for index, name in enumerate(case.p["storage"]["durable"]):
        if name not in tiers or like in (None, "none") or name in case.without:
            continue
        if like == "storage":
            yield case.say(
                "P307",
                ("storage", "durable", index),
                f"'{verb}' stops the meter by deleting durable storage, so tier '{name}' does not outlive it",
                "name a verb that leaves it, or say pull-only: durable: [] and DURABLE_DIR: ''",
            )
        elif action["retention_days"] == 0:
            line = case.profile.span(("teardown", "actions", at, "retention_days")).line
            yield case.say(
                "P307",
                ("storage", "durable", index),
                f"what survives '{verb}' is kept 0 days (line {line}), so tier '{name}' does not outlive it",
                "write the days that it is kept, null where no limit is known, or say pull-only: durable: [] and DURABLE_DIR: ''",
            )
        elif not tiers[name][1]["survives"][like]:
            line = case.profile.span(("storage", "tiers", tiers[name][0], "survives", like)).line
            better = [each for each, (_, tier) in tiers.items() if tier["survives"][like] and each not in case.without]
            yield case.say(
                "P307",
                ("storage", "durable", index),
                f"tier '{name}' does not survive '{verb}' (like {like}, line {line}), which stops the meter",
                ("these do: " + ", ".join(better)) if better else "none does: say pull-only, durable: [] and DURABLE_DIR: ''",
            )


def pull_only(case: Case) -> Found:
    """P308: pull-only said by halves."""
    durable, override = case.p["storage"]["durable"], case.p["overrides"]["DURABLE_DIR"]
    if bool(durable) != bool(override):
        yield case.say(
            "P308",
            ("overrides", "DURABLE_DIR"),
            "DURABLE_DIR is empty and storage.durable is not" if durable else f"DURABLE_DIR is '{override}' and storage.durable is empty",
            (
                "give the folder on the durable tier"
                if durable
                else "name its tier under storage.durable, or write DURABLE_DIR: '' for pull-only"
            ),
        )


def outlives_daemon(case: Case) -> Found:
    """P309: checkpoints die with the daemon."""
    data, _ = choose(case.p, case.without)
    if data is None:
        return
    for event in ("ssh_drop", "restart"):
        if not case.p["daemon"]["survives"][event] and not data["survives"][event]:
            index = case.p["storage"]["tiers"].index(data)
            ours = set(case.p["storage"]["data"] + case.p["storage"]["durable"]) - set(case.without)
            better = [tier["name"] for tier in case.p["storage"]["tiers"] if tier["name"] in ours and tier["survives"][event]]
            yield case.say(
                "P309",
                ("storage", "tiers", index, "survives", event),
                f"neither the detached run nor its data tier '{data['name']}' outlives {event}: the checkpoints go with the run",
                (
                    f"put one first under storage.data that survives it: {', '.join(better)}"
                    if better
                    else "no tier here does better: expect to begin anew"
                ),
                mild=not better,
            )


def on_their_tiers(case: Case) -> Found:
    """P310: folder off its tier; P311: unsafe path."""
    whole = choose(case.p, ())
    for name, tier in zip(("DATA_DIR", "DURABLE_DIR"), whole):
        value = case.p["overrides"][name]
        if tier and value and not within(value, tier["path"]):
            yield case.say(
                "P310",
                ("overrides", name),
                f"'{value}' does not lie on tier '{tier['name']}', whose path is {tier['path']}",
                f"write {tier['path']} or a folder below it",
            )
    left = [tier for tier in case.p["storage"]["tiers"] if tier["name"] not in case.without]
    for name, tier in zip(("DATA_DIR", "DURABLE_DIR"), choose(case.p, case.without)):
        value = folder(case.p["overrides"][name], tier)
        nearer = holding(value, left) if value and within(value, tier["path"]) else []  # type: ignore[index]
        if nearer and tier["name"] not in [one["name"] for one in nearer]:  # type: ignore[index]
            yield case.say(
                "P310",
                ("overrides", name),
                f"'{value}' lies on tier '{nearer[0]['name']}', mounted at {nearer[0]['path']}, and not on '{tier['name']}'",  # type: ignore[index]
                f"write another folder below {tier['path']}, or name '{nearer[0]['name']}' under storage",  # type: ignore[index]
            )
        if case.without and tier and path_trouble(value):
            index = case.p["storage"]["tiers"].index(tier)
            yield case.say(
                "P311",
                ("storage", "tiers", index, "path"),
                f"without {', '.join(case.without)} {name} would be '{value}': {path_trouble(value)}",
                "give the tier a path of its own",
            )


def path_trouble(value: str, tier: bool = False) -> str:
    """What is wrong with a path, or an empty string. A tier may be the root disk or the home folder, a folder of ours not."""
    parts = value.split("/")
    if re.search(r"[\x00-\x1f\x7f]", value):
        return "it holds a control character"
    if '"' in value or "\\" in value:
        return "it holds a quote or a backslash"
    if value != value.strip() or not value:
        return "it has a blank at its end" if value else "it is empty"
    if value in ("/", "~", "$HOME", "~/", "$HOME/"):
        return "" if tier else "it is the root or the home folder itself"
    if "" in parts[1:-1] or value.startswith("//"):
        return "it holds //"
    if "." in parts or ".." in parts:
        return "it holds a . or .. component"
    if parts[0] not in ("", "~") and not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", parts[0]):
        return "it neither is absolute nor begins with ~/ or $NAME"
    for part in parts[1:]:
        if "$" in part and not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", part):
            return "$NAME stands there as a part of a component"
    return ""


def paths_safe(case: Case) -> Found:
    """P311: unsafe path."""
    for index in range(len(case.p["storage"]["tiers"])):
        path = ("storage", "tiers", index, "path")
        trouble = path_trouble(case.p["storage"]["tiers"][index]["path"], tier=True)
        if trouble:
            yield case.say("P311", path, f"the path '{case.profile.raw(path)}': {trouble}", "write a plain absolute path")
    for name in ("DATA_DIR", "DURABLE_DIR", "CRED_FILE", "SCRATCH", "HF_HOME"):
        value = case.p["overrides"][name]
        if value and path_trouble(value):
            yield case.say(
                "P311", ("overrides", name), f"{name} is '{value}': {path_trouble(value)}", "write a plain absolute path of its own"
            )


def scratch_apart(case: Case) -> Found:
    """P331: scratch is not apart."""
    given = case.p["overrides"]
    if is_left_out(given["SCRATCH"], case.p, case.without):
        return  # it is a folder of its own below DATA_DIR then
    pruned = plain(given["SCRATCH"]) + "/gpu-runbook"
    for name, tier in zip(("DATA_DIR", "DURABLE_DIR"), choose(case.p, case.without)):
        value = folder(given[name], tier) if case.without else given[name]
        if value and plain(value) == plain(given["SCRATCH"]):
            yield case.say(
                "P331", ("overrides", "SCRATCH"), f"SCRATCH is {name} itself", f"write {value.rstrip('/')}/scratch or another folder"
            )
        elif value and within(value, pruned):
            yield case.say(
                "P331", ("overrides", name), f"{name} lies in {pruned}, which is emptied", "put it or SCRATCH somewhere else"
            )


def one_path_each(case: Case) -> Found:
    """P333: two tiers at one path."""
    seen: dict[str, int] = {}
    tiers = case.p["storage"]["tiers"]
    for index, tier in enumerate(tiers):
        first = seen.setdefault(plain(tier["path"]), index)
        if first != index and not tier.get("optional") and not tiers[first].get("optional"):
            yield case.say(
                "P333",
                ("storage", "tiers", index, "path"),
                f"tier '{tiers[first]['name']}', line {case.profile.span(('storage', 'tiers', first, 'path')).line}, is at {tier['path']} too, and every box has both",
                "give each its own path, or say optional: true of the one that is rented besides",
            )


def rented_is_shown(case: Case) -> Found:
    """P334: nothing shows that a rented tier is there."""
    rented = case.p["launch"]["kind"] in ("ssh-rental", "cloud-vm")
    for index, tier in enumerate(case.p["storage"]["tiers"]):
        apart = rented and tier["survives"]["destroy"]  # no disk of the box's own outlives it
        if tier["proof"] == "none" and tier["name"] in case.p["storage"]["durable"] and (tier.get("optional") or apart):
            yield case.say(
                "P334",
                ("storage", "tiers", index, "proof"),
                f"tier '{tier['name']}' is durable and {'optional' if tier.get('optional') else 'outlives the box'}, and nothing on the box shows that it is there",
                "write mount or marker: without it the results go to whatever disk has that folder",
            )
        for other in case.p["storage"]["tiers"]:
            if tier.get("optional") and other is not tier and other["path"] == tier["path"] and other["proof"] in (tier["proof"], "mount"):
                yield case.say(
                    "P334",
                    ("storage", "tiers", index, "proof"),
                    f"tier '{tier['name']}' is optional, '{other['name']}' is at {tier['path']} too, and `{tier['proof']}` is true of either",
                    "write mount-network for the one and mount-local for the other",
                )


def credentials_apart(case: Case) -> Found:
    """P322: credentials on a shared tier."""
    cred = case.p["overrides"]["CRED_FILE"]
    if not cred:
        return
    tiers = holding(cred, case.p["storage"]["tiers"])
    tier = next((one for one in tiers if one["shared"] or one["name"] in case.p["storage"]["durable"]), None)
    if tier:
        what = "shared" if tier["shared"] else "durable"
        yield case.say(
            "P322",
            ("overrides", "CRED_FILE"),
            f"CRED_FILE lies on the {what} tier '{tier['name']}'",
            "put it on a disk of the box alone, or write '' for none",
        )


def matrix_rows(case: Case) -> Found:
    """P330: odd row of the matrix."""
    for index, tier in enumerate(case.p["storage"]["tiers"]):
        row = tier["survives"]
        odd = [event for event in ("restart", "stop") if row["destroy"] and not row[event]]
        if not row["ssh_drop"]:
            odd.append("ssh_drop")
        for event in odd if row["destroy"] or not row["ssh_drop"] else []:
            if case.p["launch"]["kind"] != "owned":
                yield case.say(
                    "P330",
                    ("storage", "tiers", index, "survives", event),
                    (
                        f"tier '{tier['name']}' survives destroy and not {event}"
                        if row["destroy"]
                        else f"tier '{tier['name']}' does not even survive a dropped connection"
                    ),
                    "look again",
                )
