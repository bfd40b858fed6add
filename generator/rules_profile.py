"""The rules on a profile by itself."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

from .bind import choose, folder, within
from .cells import CELL_NAME
from .diagnostics import Diagnostic, closest
from .rules import Case, Rule, reserved, walk
from .secrets import named_secret, secret_in

Found = Iterator[Diagnostic]
STALE_DAYS = 180
DETACH_OF_KIND = {
    "owned": ("tmux", "screen", "nohup"), "ssh-rental": ("tmux", "screen", "nohup"), "cloud-vm": ("tmux", "screen", "nohup"),
    "slurm": ("sbatch",), "kubernetes": ("k8s-job",), "notebook": ("commit", "tmux", "screen", "nohup"),
}
# Fields that may hold more than one line.
LONG = {"is", "note", "notes", "how", "fact", "effect", "symptom", "cause", "fix", "steps", "model", "detection", "resume", "install",
        "relaunch", "read_again", "conveniences", "ports", "storage_billed", "proxy_hook"}


def file_name(case: Case) -> Found:
    if not CELL_NAME.match(case.profile.name):
        yield case.say("P328", (), f"'{case.profile.name}' is no name for a profile", "rename the file")


def names_once(case: Case) -> Found:
    """Tiers, verbs, gotchas; clocks and cost traps together, for they share one list."""
    groups = [
        [("storage", "tiers", i, "name") for i in range(len(case.p["storage"]["tiers"]))],
        [("teardown", "actions", i, "verb") for i in range(len(case.p["teardown"]["actions"]))],
        [("gotchas", i, "id") for i in range(len(case.p["gotchas"]))],
        [("interruption", "clocks", i, "id") for i in range(len(case.p["interruption"]["clocks"]))]
        + [("teardown", "cost_traps", i, "id") for i in range(len(case.p["teardown"]["cost_traps"]))],
    ]
    for group in groups:
        seen: dict[str, tuple] = {}
        for path in group:
            name = case.profile.raw(path)
            first = seen.setdefault(name, path)
            if first != path and name:
                yield case.say("P302", path, f"'{name}' is taken already, on line {case.profile.span(first).line}", "give it another name")


def tiers_known(case: Case) -> Found:
    names = [tier["name"] for tier in case.p["storage"]["tiers"]]
    for key in ("data", "durable"):
        for index, name in enumerate(case.p["storage"][key]):
            if name not in names:
                yield case.say("P301", ("storage", key, index), f"'{name}' is not the name of any tier", closest(name, names) or "tiers: " + ", ".join(names))


def left_out(case: Case) -> Found:
    tiers = {tier["name"]: (index, tier) for index, tier in enumerate(case.p["storage"]["tiers"])}
    for name in case.without:
        if name not in tiers:
            yield case.say("P304", ("storage", "tiers"), f"--without {name}: there is no such tier", closest(name, tiers) or "tiers: " + ", ".join(tiers), True)
        elif not tiers[name][1].get("optional"):
            optional = [each for each, (_, tier) in tiers.items() if tier.get("optional")]
            yield case.say("P304", ("storage", "tiers", tiers[name][0], "name"), f"--without {name}: this tier comes with every box",
                           "these are optional: " + (", ".join(optional) or "none"))


def data_tier_left(case: Case) -> Found:
    known = {tier["name"] for tier in case.p["storage"]["tiers"]}
    if set(case.p["storage"]["data"]) <= known and choose(case.p, case.without)[0] is None:
        yield case.say("P303", ("storage", "data"), f"without {', '.join(case.without)} no data tier is left", "add one that every box has", True)


def meter_stop_known(case: Case) -> Found:
    verbs = [action["verb"] for action in case.p["teardown"]["actions"]]
    verb = case.p["teardown"]["meter_stop"]
    if verb not in verbs:
        yield case.say("P305", ("teardown", "meter_stop"), f"'{verb}' is not the verb of any teardown action", closest(verb, verbs) or "verbs: " + ", ".join(verbs))


def meter_stop_stops(case: Case) -> Found:
    for index, action in enumerate(case.p["teardown"]["actions"]):
        if action["verb"] == case.p["teardown"]["meter_stop"] and not action["stops_meter"]:
            stops = [one["verb"] for one in case.p["teardown"]["actions"] if one["stops_meter"]]
            yield case.say("P306", ("teardown", "meter_stop"), f"'{action['verb']}' does not stop the meter: stops_meter is false on line "
                           f"{case.profile.span(('teardown', 'actions', index, 'stops_meter')).line}", "these do: " + (", ".join(stops) or "none"))


def somebody_stops(case: Case) -> Found:
    if not any(action["stops_meter"] for action in case.p["teardown"]["actions"]):
        yield case.say("P329", ("teardown", "actions"), "no action stops the meter", "describe the one that does", True)


def durable_outlives(case: Case) -> Found:
    """The proof: every durable tier that is left outlives the verb that stops the meter."""
    verb = case.p["teardown"]["meter_stop"]
    like = next((action["like"] for action in case.p["teardown"]["actions"] if action["verb"] == verb), None)
    tiers = {tier["name"]: (index, tier) for index, tier in enumerate(case.p["storage"]["tiers"])}
    for index, name in enumerate(case.p["storage"]["durable"]):
        if name not in tiers or like in (None, "none") or name in case.without:
            continue
        if like == "storage":
            yield case.say("P307", ("storage", "durable", index), f"'{verb}' stops the meter by deleting durable storage, so tier '{name}' does not outlive it",
                           "name a verb that leaves it, or say pull-only: durable: [] and DURABLE_DIR: ''")
        elif not tiers[name][1]["survives"][like]:
            line = case.profile.span(("storage", "tiers", tiers[name][0], "survives", like)).line
            better = [each for each, (_, tier) in tiers.items() if tier["survives"][like] and each not in case.without]
            yield case.say("P307", ("storage", "durable", index), f"tier '{name}' does not survive '{verb}' (like {like}, line {line}), which stops the meter",
                           ("these do: " + ", ".join(better)) if better else "none does: say pull-only, durable: [] and DURABLE_DIR: ''")


def pull_only(case: Case) -> Found:
    durable, override = case.p["storage"]["durable"], case.p["overrides"]["DURABLE_DIR"]
    if bool(durable) != bool(override):
        yield case.say("P308", ("overrides", "DURABLE_DIR"),
                       "DURABLE_DIR is empty and storage.durable is not" if durable else f"DURABLE_DIR is '{override}' and storage.durable is empty",
                       "give the folder on the durable tier" if durable else "name its tier under storage.durable, or write DURABLE_DIR: '' for pull-only")


def outlives_daemon(case: Case) -> Found:
    data, _ = choose(case.p, case.without)
    if data is None:
        return
    for event in ("ssh_drop", "restart"):
        if not case.p["daemon"]["survives"][event] and not data["survives"][event]:
            index = case.p["storage"]["tiers"].index(data)
            ours = set(case.p["storage"]["data"] + case.p["storage"]["durable"]) - set(case.without)
            better = [tier["name"] for tier in case.p["storage"]["tiers"] if tier["name"] in ours and tier["survives"][event]]
            yield case.say("P309", ("storage", "tiers", index, "survives", event),
                           f"neither the detached run nor its data tier '{data['name']}' outlives {event}: the checkpoints go with the run",
                           f"put one first under storage.data that survives it: {', '.join(better)}" if better else "no tier here does better: expect to begin anew",
                           mild=not better)


def on_their_tiers(case: Case) -> Found:
    whole = choose(case.p, ())
    for name, tier in zip(("DATA_DIR", "DURABLE_DIR"), whole):
        value = case.p["overrides"][name]
        if tier and value and not within(value, tier["path"]):
            yield case.say("P310", ("overrides", name), f"'{value}' does not lie on tier '{tier['name']}', whose path is {tier['path']}",
                           f"write {tier['path']} or a folder below it")
    for name, tier in zip(("DATA_DIR", "DURABLE_DIR"), choose(case.p, case.without)):
        value = folder(case.p["overrides"][name], tier)
        if case.without and tier and path_trouble(value):
            index = case.p["storage"]["tiers"].index(tier)
            yield case.say("P311", ("storage", "tiers", index, "path"), f"without {', '.join(case.without)} {name} would be '{value}': {path_trouble(value)}",
                           "give the tier a path of its own")


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
    for index in range(len(case.p["storage"]["tiers"])):
        path = ("storage", "tiers", index, "path")
        trouble = path_trouble(case.p["storage"]["tiers"][index]["path"], tier=True)
        if trouble:
            yield case.say("P311", path, f"the path '{case.profile.raw(path)}': {trouble}", "write a plain absolute path")
    for name in ("DATA_DIR", "DURABLE_DIR", "CRED_FILE", "SCRATCH", "HF_HOME"):
        value = case.p["overrides"][name]
        if value and path_trouble(value):
            yield case.say("P311", ("overrides", name), f"{name} is '{value}': {path_trouble(value)}", "write a plain absolute path of its own")


def scratch_apart(case: Case) -> Found:
    given = case.p["overrides"]
    for name in ("DATA_DIR", "DURABLE_DIR"):
        if given[name] and given["SCRATCH"].rstrip("/") == given[name].rstrip("/"):
            yield case.say("P331", ("overrides", "SCRATCH"), f"SCRATCH is {name} itself", f"write {given[name].rstrip('/')}/scratch or another folder")


def detach_agrees(case: Case) -> Found:
    detach, primitive = case.p["overrides"]["DETACH"], case.p["daemon"]["primitive"]
    kind = case.p["launch"]["kind"]
    if detach != primitive:
        yield case.say("P312", ("overrides", "DETACH"), f"DETACH is {detach} and daemon.primitive, line {case.profile.span(('daemon', 'primitive')).line}, is {primitive}",
                       f"write {primitive}")
    elif detach not in DETACH_OF_KIND[kind]:
        yield case.say("P312", ("overrides", "DETACH"), f"a platform of kind {kind} does not detach by {detach}", "one of: " + ", ".join(DETACH_OF_KIND[kind]))


def ssh_agrees(case: Case) -> Found:
    kind, ssh = case.p["launch"]["kind"], case.p["network"]["ssh"]
    if kind in ("ssh-rental", "cloud-vm", "slurm") and ssh["flavour"] == "none":
        yield case.say("P313", ("network", "ssh", "flavour"), f"a platform of kind {kind} is reached by SSH", "write direct or proxied")
    if ssh["flavour"] == "none" and ssh["copy"]:
        yield case.say("P313", ("network", "ssh", "copy"), "without SSH nothing is copied over it", "write false")


def clocks_shown(case: Case) -> Found:
    shown = case.p["launch"]["surface"]["danger_clocks"]
    ids = [one["id"] for one in case.p["interruption"]["clocks"]]
    traps = [one["id"] for one in case.p["teardown"]["cost_traps"]]
    for index, name in enumerate(ids):
        if name not in shown:
            yield case.say("P314", ("interruption", "clocks", index, "id"), f"the clock '{name}' is not among launch.surface.danger_clocks", "add it there")
    for index, name in enumerate(shown):
        at = ("launch", "surface", "danger_clocks", index)
        if name not in ids + traps:
            yield case.say("P315", at, f"'{name}' is neither a clock nor a cost trap", closest(name, ids + traps) or "known: " + ", ".join(ids + traps))
        elif name in shown[:index]:
            yield case.say("P302", at, f"'{name}' stands there twice", "delete one")


def no_secret(case: Case) -> Found:
    for path, value in walk(case.p):
        if not isinstance(value, str):
            continue
        kind = secret_in(value)
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        if not kind and named_secret(name, value):
            kind = "the value of a secret"
        if not kind and path[-2:-1] == ("command",) and path[-1] > 0:
            before = case.profile.raw((*path[:-1], path[-1] - 1))
            kind = "the value of an option" if before.startswith("-") and named_secret(before, value) else ""
        if kind:
            yield case.say("P316", path, f"this looks like {kind}", "take it out, make it void where it came from, and name the variable that holds it")


def facts_fresh(case: Case) -> Found:
    for path, value in walk(case.p):
        if path[-1] != "as_of" or not isinstance(value, str):
            continue
        year, month = int(value[:4]), int(value[5:])
        if (year, month) > (case.today.year, case.today.month):
            yield case.say("P318", path, f"{value} has not come yet", "write the month in which you looked")
            continue
        end = datetime.date(year + month // 12, month % 12 + 1, 1) - datetime.timedelta(days=1)
        age = (case.today - end).days
        if age > STALE_DAYS:
            yield case.say("P317", path, f"nobody has looked at this for {age} days", "look again and write the new month")


def commands_plain(case: Case) -> Found:
    for path, value in walk(case.p):
        if not (len(path) > 1 and path[-2] == "command" and isinstance(value, str)):
            continue
        for word in re.findall(r"\{[A-Za-z_][A-Za-z0-9_]*\}", value):
            if word != "{instance}":
                yield case.say("P319", path, f"'{word}' is not replaced by anything", "{instance} is; write steps for the rest")
        if re.search(r"<[A-Za-z][^<>]*>", value):
            yield case.say("P327", path, f"'{value}' is a placeholder", "{instance} stands for the instance; write steps for the rest")
        first = path[-1] == 0
        if value in ("|", ";", "&&", "||", ">", "<", ">>", "&") or re.search(r"\$\(|`|\$\{?[A-Za-z_]", value) or (first and re.search(r"\s", value)):
            yield case.say("P320", path, f"'{value}' would need a shell, and none reads a command",
                           "one word of the command in each item" if first and " " in value else "write steps instead")
        elif not first and value.startswith("-") and "c" in value and case.profile.raw((*path[:-1], 0)).rsplit("/", 1)[-1] in ("sh", "bash", "zsh", "dash", "ksh"):
            yield case.say("P320", path, "a command that hands its text to a shell", "write steps instead")


def proxy_hook(case: Case) -> Found:
    value, when = case.p["overrides"]["PROXY_HOOK"], case.p["network"]["proxy_hook"]
    at = ("overrides", "PROXY_HOOK")
    address = re.fullmatch(r"https?://[A-Za-z0-9._-]+:[0-9]{1,5}/?", value)
    if value and not address and (path_trouble(value) or re.search(r"\s", value)):
        yield case.say("P321", at, f"'{value}' is neither a file to source nor http://host:port", "write /path/of/the/hook or http://host:port")
    elif bool(value) != bool(when):
        yield case.say("P321", at if when else ("network", "proxy_hook"), "PROXY_HOOK and network.proxy_hook: one is empty, the other is not",
                       "say in network.proxy_hook when it is needed, or empty both")


def credentials_apart(case: Case) -> Found:
    cred = case.p["overrides"]["CRED_FILE"]
    if not cred:
        return
    # The longest path wins: /root/fs is not on / where it is a tier of its own.
    holding = [tier for tier in case.p["storage"]["tiers"] if within(cred, tier["path"])]
    tier = max(holding, key=lambda one: len(one["path"]), default=None)
    durable = case.p["storage"]["durable"]
    if tier and (tier["shared"] or tier["name"] in durable):
        what = "shared" if tier["shared"] else "durable"
        yield case.say("P322", ("overrides", "CRED_FILE"), f"CRED_FILE lies on the {what} tier '{tier['name']}'", "put it on a disk of the box alone, or write '' for none")


def interpreter_plain(case: Case) -> Found:
    value = case.p["overrides"].get("PY", "python3")
    if not re.fullmatch(r"(?:(?:/|~/|\$[A-Za-z_][A-Za-z0-9_]*/)[^\s\"'\\;&|<>()`]+|[A-Za-z0-9][A-Za-z0-9._+-]*)", value):
        yield case.say("P323", ("overrides", "PY"), f"'{value}' is not one path or name", "write python3 or /path/of/python")


def reversible_means_it(case: Case) -> Found:
    for index, action in enumerate(case.p["teardown"]["actions"]):
        if action["like"] in ("destroy", "storage") and action["reversible"] and not action["retention_days"]:
            yield case.say("P324", ("teardown", "actions", index, "reversible"), f"'{action['verb']}' is like {action['like']} and reversible, and nothing is kept (retention_days)",
                           "write reversible: false, or the days that it is kept")


def mirrors_plain(case: Case) -> Found:
    for name in case.p["network"]["mirrors"]:
        if reserved(name):
            yield case.say("P325", ("network", "mirrors", name), f"{name} is a variable that the scripts live by", "mirrors are variables of tools, like HF_ENDPOINT", True)


def texts_clean(case: Case) -> Found:
    for path, value in walk(case.p):
        if not isinstance(value, str):
            continue
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        control = re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", value)
        if control or ("\n" in value and name not in LONG):
            what = f"U+{ord(control.group()):04X}" if control else "a line end"
            yield case.say("P326", path, f"{what} is in this text", "one line of visible characters; write > or | for a longer text only where it is one")


def matrix_rows(case: Case) -> Found:
    for index, tier in enumerate(case.p["storage"]["tiers"]):
        row = tier["survives"]
        odd = [event for event in ("restart", "stop") if row["destroy"] and not row[event]]
        if not row["ssh_drop"]:
            odd.append("ssh_drop")
        for event in odd if row["destroy"] or not row["ssh_drop"] else []:
            if case.p["launch"]["kind"] != "owned":
                yield case.say("P330", ("storage", "tiers", index, "survives", event), f"tier '{tier['name']}' survives destroy and not {event}" if row["destroy"]
                               else f"tier '{tier['name']}' does not even survive a dropped connection", "look again")


def gone_looks(case: Case) -> Found:
    for index, action in enumerate(case.p["teardown"]["actions"]):
        absent = action["confirm_gone"].get("absent")
        if absent is not None and "{instance}" not in absent and not any("{instance}" in word for word in action["confirm_gone"]["command"]):
            yield case.say("P332", ("teardown", "actions", index, "confirm_gone", "absent"), f"neither '{absent}' nor the command names the instance",
                           "write {instance}: another one's state proves nothing")


PROFILE_RULES: list[Rule] = [
    file_name, names_once, tiers_known, left_out, data_tier_left, meter_stop_known, meter_stop_stops, somebody_stops, durable_outlives,
    pull_only, outlives_daemon, on_their_tiers, paths_safe, scratch_apart, detach_agrees, ssh_agrees, clocks_shown, no_secret, facts_fresh,
    commands_plain, proxy_hook, credentials_apart, interpreter_plain, reversible_means_it, mirrors_plain, texts_clean, matrix_rows, gone_looks,
]
