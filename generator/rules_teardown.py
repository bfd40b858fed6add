"""The rules on teardown actions: what a verb says of itself and what it does agree."""

from __future__ import annotations

from collections.abc import Iterator

from .diagnostics import Diagnostic
from .rules import Case

Found = Iterator[Diagnostic]
RENTED = ("ssh-rental", "cloud-vm", "notebook")  # what is given back there is somebody else's next
HALTS = frozenset(("shutdown", "poweroff", "halt", "reboot"))  # programs that end the machine on which they run


def rented_is_touched(case: Case) -> Found:
    """P335: a rental ends and nothing is touched."""
    if case.p["launch"]["kind"] not in RENTED:
        return
    for index, action in enumerate(case.p["teardown"]["actions"]):
        if action["stops_meter"] and action["like"] == "none":
            yield case.say(
                "P335",
                ("teardown", "actions", index, "like"),
                f"'{action['verb']}' stops the meter of a rented box, so it touches something",
                "write like: stop or like: destroy, whichever column of the survival matrix holds for it",
            )


def deletes_storage(case: Case) -> Found:
    """P336: deletes goes with like storage."""
    for index, action in enumerate(case.p["teardown"]["actions"]):
        if "deletes" in action and action["like"] != "storage":
            yield case.say(
                "P336",
                ("teardown", "actions", index, "deletes"),
                f"'{action['verb']}' is like {action['like']}, so the survival matrix says what it deletes",
                "say survives: false of those tiers, or write like: storage",
                True,
            )


def commands_once(case: Case) -> Found:
    """P337: one command, two meanings."""
    actions = case.p["teardown"]["actions"]
    seen: dict[tuple, int] = {}
    for index, action in enumerate(actions):
        words = tuple(action.get("command", ()))
        first = seen.setdefault((action.get("where"), *words), index) if words else index
        if first != index:
            yield case.say(
                "P337",
                ("teardown", "actions", index, "command"),
                f"'{action['verb']}' has the command of '{actions[first]['verb']}', line {case.profile.span(('teardown', 'actions', first, 'command')).line}",
                "each verb has a command of its own: what a person approves is what runs",
                True,
            )
    for index, action in enumerate(actions):
        look = action["confirm_gone"].get("command", [])
        for one in actions:
            words = one.get("command", [])
            if words and look[: len(words)] == words:
                yield case.say(
                    "P337",
                    ("teardown", "actions", index, "confirm_gone", "command"),
                    f"to look whether '{action['verb']}' took effect would do '{one['verb']}'",
                    "write a command that only looks",
                    True,
                )
                break


def whole_look(case: Case) -> Found:
    """P346: a command without the word to look for, or the word without a command."""
    for index, action in enumerate(case.p["teardown"]["actions"]):
        words = {"command", "absent", "answer"} & action["confirm_gone"].keys()
        if words and not {"command", "absent"} <= words:
            yield case.say(
                "P346",
                ("teardown", "actions", index, "confirm_gone"),
                f"to look whether '{action['verb']}' took effect there is only {' and '.join(sorted(words))}",
                "write command and absent, both, or only steps for a person",
                True,
            )


def box_is_meant(case: Case) -> Found:
    """P343: it would end your own machine; P344: which box it ends is not said."""
    for index, action in enumerate(case.p["teardown"]["actions"]):
        words = action.get("command", [])
        if not words or action.get("where", "laptop") != "laptop":
            continue
        first = next((word for word in words if word != "sudo" and word[:1] != "-"), "")
        if first.rsplit("/", 1)[-1] in HALTS:
            yield case.say(
                "P343",
                ("teardown", "actions", index, "where"),
                f"'{action['verb']}' is typed on the person's own machine, and '{first}' ends the machine on which it runs",
                "write where: box, or the platform's own command",
            )
        elif action["stops_meter"] and not any("{" in word or "<" in word for word in words):  # another name in braces is P319
            yield case.say(
                "P344",
                ("teardown", "actions", index, "command"),
                f"'{action['verb']}' is typed on the person's own machine and does not name the box that it ends",
                'put "{instance}" into the command',
                True,
            )
