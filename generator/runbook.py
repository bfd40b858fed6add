"""What the runbook's template needs besides the bound values: shell text for the box, prose with its source, tables."""

from __future__ import annotations

import re

from . import quote
from .bind import Bindings, action_fields

SSH = ("ssh-rental", "cloud-vm", "slurm")
# The six rows that every runbook shows, in order.
ROWS = ("stop", "release", "terminate", "destroy", "delete files", "cancel subscription")
# Words in a verb that say in which row it belongs; the first that fits counts.
VERBS = (("release", ("release", "return", "scale")), ("terminate", ("terminate", "scancel")), ("destroy", ("destroy", "delete", "end-rental")))


def helpers(b: Bindings) -> dict:
    """The names that `render` adds for RUNBOOK.md.j2."""
    places = words(b)

    def fill(command: str) -> str:
        return re.sub(r"@([A-Z]+)\b", lambda match: places[match[1]], command)

    def box(command: str) -> quote.Safe:
        return on_box(b["KIND"].value, fill(command))

    def script(command: str) -> quote.Safe:
        if b["KIND"].value == "owned":
            return quote.Safe("box/" + command)
        return box("cd @BOX && ./" + command)

    return {
        "box": box, "script": script, "here": lambda command: quote.Safe(fill(command)), "prose": prose, "cite": cite, "check": check,
        "say": quote.Safe, "gap": quote.Safe(), "clause": lambda text: prose(str(text).rstrip(". ")),
        "get": lambda item, key: item.get(key, ""), "yes": lambda value: quote.Safe("yes" if value else "no"), "run_dir": places["D"].strip('"'), "bundle_dir": places["B"].strip('"'),
        "rows": rows(b), "facts": facts(b), "hours": quote.Safe(f"{b.budget['minutes'] / 60:.2f}".rstrip("0").rstrip(".")),
        "long_job": b.budget["minutes"] > 60, "action_of": lambda action: how(b, action), "spaced": lambda items: ", ".join(items) or "nothing",
        "spaced_or_dash": lambda items: ", ".join(items) or "–",
    }


def shell_path(path: str) -> str:
    """A path as one double-quoted bash word in which a leading ~ or $NAME still expands, where it is run."""
    text = "$HOME" + path[1:] if path.startswith("~") else path
    parts = [part if re.fullmatch(r"\$[A-Za-z_]\w*", part) else re.sub(r'([\\"$`])', r"\\\1", part) for part in text.split("/")]
    return '"' + "/".join(parts) + '"'


def words(b: Bindings) -> dict[str, str]:
    """@NAME in a command of the template -> the bash word that it stands for."""
    run = b["RUN"].value
    data, durable = b["DATA_DIR"].value, b["DURABLE_DIR"].value or b["DATA_DIR"].value
    return {
        "DATA": shell_path(data), "DURABLE": shell_path(durable), "D": shell_path(f"{data}/{run}"), "B": shell_path(f"{durable}/{run}"),
        "BOX": shell_path(f"{data}/{run}/box/current"), "PY": shell_path(b["PY"].value), "TIER": shell_path(b.data["path"]),
        "HOOK": shell_path(b["PROXY_HOOK"].value),
    }


def on_box(kind: str, command: str) -> quote.Safe:
    """A command as it is typed on the laptop (through ssh or kubectl), or on the box itself where nothing leads there."""
    inner = command.replace("'", "'\\''")
    if kind in SSH:
        return quote.Safe(f"ssh \"${{HOST:?}}\" '{inner}'")
    if kind == "kubernetes":
        if "$" in command:
            # In double quotes, or a checker takes the dollars for a slip.
            return quote.Safe('kubectl exec "job/${INSTANCE:?}" -- bash -c "' + re.sub(r'([\\"$`])', r"\\\1", command) + '"')
        return quote.Safe(f"kubectl exec \"job/${{INSTANCE:?}}\" -- bash -c '{inner}'")
    return quote.Safe(command)


def prose(text: str) -> quote.Safe:
    """A profile's sentence as Markdown: `code` stays code, nothing else is markup, and no needless backslash disturbs a reader."""
    parts = " ".join(str(text).split()).split("`")
    if len(parts) % 2 == 0:
        return _plain(" ".join(parts))
    return quote.Safe("".join(quote.code(part) if index % 2 else _plain(part) for index, part in enumerate(parts)))


def _plain(text: str) -> quote.Safe:
    text = re.sub(r"([\\`*\[\]<|~])", r"\\\1", text)
    text = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)
    text = re.sub(r"&(?=#?\w+;)", "&amp;", text)
    return quote.Safe("".join(c if c.isprintable() else " " for c in text))


def cite(fact: dict) -> quote.Safe:
    """Where a fact is from and of which month."""
    return quote.Safe(f"({_plain(fact['source'])}; {fact['as_of']})")


def check(fact: dict) -> quote.Safe:
    """The warning in front of a fact that nobody should rely on."""
    return quote.Safe({"low": "**check first:** ", "medium": "*not quite sure:* "}.get(fact.get("confidence", "high"), ""))


def facts(b: Bindings) -> list[dict]:
    """The further facts of all fields that affect money, data or the way there, each with the field's name."""
    return [{**one, "field": field} for field in ("launch", "storage", "network", "interruption", "teardown", "daemon")
            for one in b.profile[field].get("facts", [])]


def how(b: Bindings, action: dict) -> quote.Safe:
    """What an action is done with: its command, or its steps."""
    if "command" in action:
        return quote.code(" ".join(word.replace("{instance}", '"$INSTANCE"') for word in action["command"]))
    return quote.Safe("; ".join(prose(step) for step in action["steps"]))


def row_of(action: dict) -> str:
    """Which of the six rows an action of the profile belongs to."""
    verb = action["verb"]
    if action["like"] == "storage":
        return "delete files" if "file" in verb else "cancel subscription"
    for row, known in VERBS:
        if action["like"] != "stop" and any(word in verb for word in known):
            return row
    return "stop"


def rows(b: Bindings) -> list[tuple[str, dict | None]]:
    """The six rows in order: (row, action), or (row, None) where the platform has no such action."""
    found: dict[str, list[dict]] = {row: [] for row in ROWS}
    for action in b.actions:
        _, arrays = action_fields(b, action)
        found[row_of(action)].append({**action, "survives": arrays["SURVIVES"], "lost": arrays["LOST"]})
    return [(row, action) for row in ROWS for action in (found[row] or [None])]
