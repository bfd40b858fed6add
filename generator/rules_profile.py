"""The rules on a profile by itself, but for those on its storage."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

from .bind import interpreter
from .budget import choose
from .cells import CELL_NAME
from .diagnostics import Diagnostic, closest
from .rules import Case, Rule, reserved
from .rules_storage import (
    credentials_apart,
    data_tier_left,
    durable_outlives,
    left_out,
    matrix_rows,
    on_their_tiers,
    one_path_each,
    outlives_daemon,
    path_trouble,
    paths_safe,
    pull_only,
    rented_is_shown,
    scratch_apart,
    tiers_known,
)
from .rules_teardown import box_is_meant, commands_once, deletes_storage, rented_is_touched, whole_look
from .rules_variants import depends_on_optional, names_what_may_be_missing, something_is_left
from .secrets import named_secret, secret_in

Found = Iterator[Diagnostic]
STALE_DAYS = 180
DETACH_OF_KIND = {
    "owned": ("tmux", "screen", "nohup"),
    "ssh-rental": ("tmux", "screen", "nohup"),
    "cloud-vm": ("tmux", "screen", "nohup"),
    "slurm": ("sbatch",),
    "kubernetes": ("k8s-job",),
    "notebook": ("commit", "tmux", "screen", "nohup"),
}
IN_MEMORY = ("tmux", "screen", "nohup")  # a process, no record of one
SHELLS = ("sh", "bash", "zsh", "dash", "ksh", "ash", "fish")
# Fields that may hold more than one line.
LONG = {
    "is",
    "note",
    "notes",
    "how",
    "fact",
    "effect",
    "symptom",
    "cause",
    "fix",
    "steps",
    "model",
    "detection",
    "resume",
    "install",
    "relaunch",
    "read_again",
    "conveniences",
    "ports",
    "storage_billed",
    "proxy_hook",
    "with",
    "without",
}


def file_name(case: Case) -> Found:
    """P328: name of the file."""
    if not CELL_NAME.match(case.profile.name):
        yield case.say("P328", (), f"'{case.profile.name}' is no name for a profile", "rename the file")
    elif "." in case.profile.name:
        yield case.say("P328", (), f"'{case.profile.name}' has a dot: behind one stands the job, out/<profile>.<job>, or .no- and a tier", "rename the file")


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


def meter_stop_known(case: Case) -> Found:
    """P305: meter_stop names no action."""
    verbs = [action["verb"] for action in case.p["teardown"]["actions"]]
    verb = case.p["teardown"]["meter_stop"]
    if verb not in verbs:
        yield case.say(
            "P305",
            ("teardown", "meter_stop"),
            f"'{verb}' is not the verb of any teardown action",
            closest(verb, verbs) or "verbs: " + ", ".join(verbs),
        )


def meter_stop_stops(case: Case) -> Found:
    """P306: meter_stop does not stop the meter."""
    for index, action in enumerate(case.p["teardown"]["actions"]):
        if action["verb"] == case.p["teardown"]["meter_stop"] and not action["stops_meter"]:
            stops = [one["verb"] for one in case.p["teardown"]["actions"] if one["stops_meter"]]
            yield case.say(
                "P306",
                ("teardown", "meter_stop"),
                f"'{action['verb']}' does not stop the meter: stops_meter is false on line "
                f"{case.profile.span(('teardown', 'actions', index, 'stops_meter')).line}",
                "these do: " + (", ".join(stops) or "none"),
            )


def somebody_stops(case: Case) -> Found:
    """P329: nobody stops the meter."""
    if not any(action["stops_meter"] for action in case.p["teardown"]["actions"]):
        yield case.say("P329", ("teardown", "actions"), "no action stops the meter", "describe the one that does", True)


def detach_agrees(case: Case) -> Found:
    """P312: DETACH disagrees."""
    detach, primitive = case.p["overrides"]["DETACH"], case.p["daemon"]["primitive"]
    kind = case.p["launch"]["kind"]
    if detach != primitive:
        yield case.say(
            "P312",
            ("overrides", "DETACH"),
            f"DETACH is {detach} and daemon.primitive, line {case.profile.span(('daemon', 'primitive')).line}, is {primitive}",
            f"write {primitive}",
        )
    elif detach not in DETACH_OF_KIND[kind]:
        yield case.say(
            "P312",
            ("overrides", "DETACH"),
            f"a platform of kind {kind} does not detach by {detach}",
            "one of: " + ", ".join(DETACH_OF_KIND[kind]),
        )


def outlives_the_line(case: Case) -> Found:
    """P341: the run dies with the line; P345: memory outlives a restart."""
    daemon = case.p["daemon"]
    if not daemon["survives"]["ssh_drop"]:
        yield case.say(
            "P341",
            ("daemon", "survives", "ssh_drop"),
            f"a run that {daemon['primitive']} starts here ends when the connection does",
            "write a primitive that the platform leaves alone: " + ", ".join(DETACH_OF_KIND[case.p["launch"]["kind"]]),
        )
    if daemon["survives"]["restart"] and daemon["primitive"] in IN_MEMORY:
        yield case.say(
            "P345",
            ("daemon", "survives", "restart"),
            f"{daemon['primitive']} holds a process, and no process outlives a restart of its box",
            "write false, and under relaunch what starts it again",
        )
    for index, tier in enumerate(case.p["storage"]["tiers"]):
        if tier["survives"]["restart"] and re.match(r"/(dev/shm|run|proc|sys)(/|$)", tier["path"]):
            yield case.say(
                "P345",
                ("storage", "tiers", index, "survives", "restart"),
                f"{tier['path']} lies in memory, and memory does not outlive a restart",
                "write false",
            )


def grace_of_a_signal(case: Case) -> Found:
    """P342: seconds after no signal."""
    given = case.p["interruption"]
    if given["signal"] == "none" and given["grace_s"]:
        yield case.say(
            "P342",
            ("interruption", "grace_s"),
            f"{given['grace_s']} s are granted after a signal, and signal says that none comes",
            "name the signal, or write null; a notice that a program has to ask for is a clock",
        )


def ssh_agrees(case: Case) -> Found:
    """P313: SSH disagrees with the kind."""
    kind, ssh = case.p["launch"]["kind"], case.p["network"]["ssh"]
    if kind in ("ssh-rental", "cloud-vm", "slurm") and ssh["flavour"] == "none":
        yield case.say("P313", ("network", "ssh", "flavour"), f"a platform of kind {kind} is reached by SSH", "write direct or proxied")
    if ssh["flavour"] == "none" and ssh["copy"]:
        yield case.say("P313", ("network", "ssh", "copy"), "without SSH nothing is copied over it", "write false")


def clocks_shown(case: Case) -> Found:
    """P302: name twice; P314: danger clock not shown; P315: unknown danger clock."""
    shown = case.p["launch"]["surface"]["danger_clocks"]
    ids = [one["id"] for one in case.p["interruption"]["clocks"]]
    traps = [one["id"] for one in case.p["teardown"]["cost_traps"]]
    for index, name in enumerate(ids):
        if name not in shown:
            yield case.say(
                "P314",
                ("interruption", "clocks", index, "id"),
                f"the clock '{name}' is not among launch.surface.danger_clocks",
                "add it there",
            )
    for index, name in enumerate(shown):
        at = ("launch", "surface", "danger_clocks", index)
        if name not in ids + traps:
            yield case.say(
                "P315", at, f"'{name}' is neither a clock nor a cost trap", closest(name, ids + traps) or "known: " + ", ".join(ids + traps)
            )
        elif name in shown[:index]:
            yield case.say("P302", at, f"'{name}' stands there twice", "delete one")


def no_secret(case: Case) -> Found:
    """P316: looks like a secret."""
    for path, value in case.scalars:
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
            yield case.say(
                "P316", path, f"this looks like {kind}", "take it out, make it void where it came from, and name the variable that holds it"
            )


def facts_fresh(case: Case) -> Found:
    """P317: old fact; P318: month in the future."""
    for path, value in case.scalars:
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
    """P319: substitution in a command; P320: command for a shell; P327: placeholder left."""
    for path, value in case.scalars:
        if not (len(path) > 1 and path[-2] == "command" and isinstance(value, str)):
            continue
        for word in re.findall(r"\{[A-Za-z_][A-Za-z0-9_]*\}", value):
            if word != "{instance}":
                yield case.say("P319", path, f"'{word}' is not replaced by anything", "{instance} is; write steps for the rest")
            elif path[-1] == 0:
                yield case.say("P319", path, "the instance's name is no program", "the first word is the program")
        if re.search(r"<[A-Za-z][^<>]*>", value):
            yield case.say("P327", path, f"'{value}' is a placeholder", "{instance} stands for the instance; write steps for the rest")
        first = path[-1] == 0
        if (
            value in ("|", ";", "&&", "||", ">", "<", ">>", "&")
            or re.search(r"\$\(|`|\$\{?[A-Za-z_]", value)
            or (first and re.search(r"\s", value))
        ):
            yield case.say(
                "P320",
                path,
                f"'{value}' would need a shell, and none reads a command",
                "one word of the command in each item" if first and " " in value else "write steps instead",
            )
        elif (
            not first
            and value.startswith("-")
            and "c" in value
            and any(case.profile.raw((*path[:-1], at)).rsplit("/", 1)[-1] in SHELLS for at in range(path[-1]))
        ):
            yield case.say("P320", path, "a command that hands its text to a shell", "write steps instead")


def proxy_hook(case: Case) -> Found:
    """P321: proxy hook is neither file nor address."""
    value, when = case.p["overrides"]["PROXY_HOOK"], case.p["network"]["proxy_hook"]
    at = ("overrides", "PROXY_HOOK")
    address = re.fullmatch(r"https?://[A-Za-z0-9._-]+:[0-9]{1,5}/?", value)
    if value and not address and (path_trouble(value) or re.search(r"\s", value)):
        yield case.say(
            "P321", at, f"'{value}' is neither a file to source nor http://host:port", "write /path/of/the/hook or http://host:port"
        )
    elif bool(value) != bool(when):
        yield case.say(
            "P321",
            at if when else ("network", "proxy_hook"),
            "PROXY_HOOK and network.proxy_hook: one is empty, the other is not",
            "say in network.proxy_hook when it is needed, or empty both",
        )


def interpreter_plain(case: Case) -> Found:
    """P323: interpreter is not one path or name."""
    value, at = interpreter(case.p)
    if not re.fullmatch(r"(?:(?:/|~/|\$[A-Za-z_][A-Za-z0-9_]*/)[^\s\"'\\;&|<>()`]+|[A-Za-z0-9][A-Za-z0-9._+-]*)", value):
        yield case.say("P323", at or ("overrides", "PY"), f"'{value}' is not one path or name", "write python3 or /path/of/python")


def reversible_means_it(case: Case) -> Found:
    """P324: irreversible and reversible at once."""
    data, _ = choose(case.p, case.without)
    rented = case.p["launch"]["kind"] in ("ssh-rental", "cloud-vm")
    for index, action in enumerate(case.p["teardown"]["actions"]):
        at, verb = ("teardown", "actions", index, "reversible"), action["verb"]
        if action["like"] in ("destroy", "storage") and action["reversible"] and not action["retention_days"]:
            yield case.say(
                "P324",
                at,
                f"'{verb}' is like {action['like']} and reversible, and nothing is kept (retention_days)",
                "write reversible: false, or the days that it is kept",
            )
        elif action["like"] == "stop" and action["stops_meter"] and not action["reversible"] and rented and data and data["survives"]["stop"]:
            yield case.say(
                "P324",
                at,
                f"'{verb}' cannot be undone, and tier '{data['name']}' is said to survive it as it does a stop",
                "write like: destroy, for a box that does not come back; or reversible: true",
            )


def mirrors_plain(case: Case) -> Found:
    """P325: reserved variable."""
    for name in case.p["network"]["mirrors"]:
        if reserved(name):
            yield case.say(
                "P325",
                ("network", "mirrors", name),
                f"{name} is a variable that the scripts live by",
                "mirrors are variables of tools, like HF_ENDPOINT",
                True,
            )


def texts_clean(case: Case) -> Found:
    """P326: control character in a text."""
    for path, value in case.scalars:
        if not isinstance(value, str):
            continue
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        control = re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", value)
        if control or ("\n" in value and name not in LONG):
            what = f"U+{ord(control.group()):04X}" if control else "a line end"
            yield case.say(
                "P326",
                path,
                f"{what} is in this text",
                "one line of visible characters; write > or | for a longer text only where it is one",
            )


def gone_looks(case: Case) -> Found:
    """P332: confirm_gone looks for nothing."""
    for index, action in enumerate(case.p["teardown"]["actions"]):
        absent = action["confirm_gone"].get("absent")
        for word in re.findall(r"\{[A-Za-z_][A-Za-z0-9_]*\}", absent or ""):
            if word != "{instance}":
                at = ("teardown", "actions", index, "confirm_gone", "absent")
                yield case.say("P332", at, f"'{word}' is not replaced by anything, so it is never there", "{instance} is replaced")
        if (
            absent is not None
            and "{instance}" not in absent
            and not any("{instance}" in word for word in action["confirm_gone"]["command"])
        ):
            yield case.say(
                "P332",
                ("teardown", "actions", index, "confirm_gone", "absent"),
                f"neither '{absent}' nor the command names the instance",
                "write {instance}: another one's state proves nothing",
            )


PROFILE_RULES: list[Rule] = [
    file_name,
    names_once,
    tiers_known,
    left_out,
    data_tier_left,
    meter_stop_known,
    meter_stop_stops,
    somebody_stops,
    durable_outlives,
    pull_only,
    outlives_daemon,
    on_their_tiers,
    paths_safe,
    scratch_apart,
    one_path_each,
    rented_is_shown,
    rented_is_touched,
    deletes_storage,
    commands_once,
    whole_look,
    box_is_meant,
    detach_agrees,
    outlives_the_line,
    grace_of_a_signal,
    ssh_agrees,
    clocks_shown,
    no_secret,
    facts_fresh,
    commands_plain,
    proxy_hook,
    credentials_apart,
    interpreter_plain,
    reversible_means_it,
    mirrors_plain,
    texts_clean,
    matrix_rows,
    gone_looks,
    depends_on_optional,
    something_is_left,
    names_what_may_be_missing,
]
