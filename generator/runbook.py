"""What the runbook's template needs besides the bound values: shell text for the box, prose with its source, tables."""

from __future__ import annotations

import re

from . import quote
from .bind import Bindings, action_fields
from .budget import outlives

SSH = ("ssh-rental", "cloud-vm", "slurm")
# The six rows that every runbook shows, in order.
ROWS = ("stop", "release", "terminate", "destroy", "delete files", "cancel subscription")
# Words in a verb that say in which row it belongs; the first that fits counts.
VERBS = (("release", ("release", "return", "scale")), ("terminate", ("terminate", "scancel")), ("destroy", ("destroy", "delete", "end-rental")))


def helpers(b: Bindings) -> dict:
    """The names that `render` adds for RUNBOOK.md.j2."""
    places = words(b)

    def fill(command: str) -> str:
        command = command.replace("@NODE ", f"srun {need_flags(b)} " if b["KIND"].value == "slurm" else "")
        return re.sub(r"@([A-Z]+)\b", lambda match: places[match[1]], command)

    def box(command: str, flags: str = "-n ") -> quote.Safe:
        return on_box(b["KIND"].value, fill(command), b["RUN"].value, flags)

    def script(command: str, node: str = "") -> quote.Safe:
        if b["KIND"].value == "owned":
            return quote.Safe("box/" + command)
        # An upload may have lost the x bit, so bash stands in front.
        return box(f"cd @BOX && {node}bash ./{command}")

    return {
        "box": box, "script": script, "here": lambda command: quote.Safe(fill(command).replace("$RUN", "${RUN:-" + run_word(b["RUN"].value) + "}")), "prose": prose, "cite": cite, "check": check,
        "say": quote.Safe, "gap": quote.Safe(), "clause": lambda text: prose(str(text).rstrip(". ")),
        "get": lambda item, key: item.get(key, ""), "yes": lambda value: quote.Safe("yes" if value else "no"),
        "run_dir": f"{b['DATA_DIR'].value}/{b['RUN'].value}", "bundle_dir": f"{b['DURABLE_DIR'].value or b['DATA_DIR'].value}/{b['RUN'].value}",
        "run_word": quote.Safe("${RUN:-" + run_word(b["RUN"].value) + "}"), "session_s": b["SESSION_S"].value if b["KIND"].value == "notebook" else 0, "away": [one.split(" ", 2)[2] for one in b["AWAY"].value], "adopt": adopt(b["KIND"].value), "need_flags": quote.Safe(need_flags(b)),
        "job_minutes": int(b.budget["minutes"] * 6 / 5) + 15, "each_minutes": quote.Safe(f"{b.job['needs']['minutes']:g}"), "stop_days": next((one["retention_days"] for one in b.actions if one["like"] == "stop"), None),
        "words_of": words_of, "rows": rows(b), "facts": facts(b), "hours": quote.Safe(f"{b.budget['minutes'] / 60:.2f}".rstrip("0").rstrip(".")),
        "long_job": b.budget["minutes"] > 60, "action_of": lambda action: how(b, action), "spaced": lambda items: ", ".join(items) or "nothing",
        "on_the_box": any(str(step).startswith("On the box") for way in b.profile["launch"]["ways"] for step in way.get("steps", ())),
        "power_off": power_off(b), "data_word": places["DATA"].strip('"'), "data_stays": outlives(b.data, b.meter_stop), "asked": asked(b), "spaced_or_dash": lambda items: ", ".join(items) or "–",
    }


def power_off(b: Bindings) -> dict:
    """The action that `--power-off` does from inside; only where there is one."""
    return next((one for one in b.actions if one.get("command") == b["POWER_OFF_COMMAND"].value), {})


def asked(b: Bindings) -> list[str]:
    """Names in the folders' and the tiers' paths that no login sets: what a storage is called, only the person knows."""
    paths = [b[name].value for name in ("DATA_DIR", "DURABLE_DIR", "SCRATCH", "HF_HOME", "CRED_FILE")] + [tier["path"] for tier in b.tiers]
    return list(dict.fromkeys(name for path in paths for name in re.findall(r"(?:^|/)\$([A-Za-z_]\w*)", path) if name not in ("HOME", "USER")))


def path_text(path: str) -> str:
    """A path as text inside double quotes and ${X:-…}: a $NAME or leading ~ still expands, where it is run, nothing else does."""
    text = "$HOME" + path[1:] if path.startswith("~") else path
    parts = [part if re.fullmatch(r"\$[A-Za-z_]\w*", part) else re.sub(r'([\\"$`}])', r"\\\1", part) for part in text.split("/")]
    return "/".join(parts)


def shell_path(path: str) -> str:
    """A path as one double-quoted bash word."""
    return '"' + path_text(path).replace("\\}", "}") + '"'


def run_word(run: str) -> str:
    """The run's name; it needs no quotes anywhere, or it is no name."""
    return run if re.fullmatch(r"[A-Za-z0-9._-]+", run) else "run"


def need_flags(b: Bindings) -> str:
    """What one cell needs, as flags of srun and sbatch."""
    gpus = f"--gpus={b['NEED_GPUS'].value} " if b["NEED_GPUS"].value else ""
    return f"{gpus}--mem={-(-b['NEED_RAM_BYTES'].value // 1000000)}M"


def words(b: Bindings) -> dict[str, str]:
    """@NAME in a command of the template -> the bash word that it stands for."""
    # Over ssh and kubectl the values that travel along say RUN.
    run = "$RUN" if b["KIND"].value in (*SSH, "kubernetes") else "${RUN:-" + run_word(b["RUN"].value) + "}"
    data = "${DATA_DIR:-" + path_text(b["DATA_DIR"].value) + "}"
    # An empty DURABLE_DIR means that there is none; then a path of it must not be that of another run.
    durable = "${DURABLE_DIR-" + path_text(b["DURABLE_DIR"].value) + "}" if b["DURABLE_DIR"].value else "${DURABLE_DIR:-" + data + "}"
    return {
        "DATA": f'"{data}"', "D": f'"{data}/{run}"', "B": f'"{durable}/{run}"', "BOX": f'"{data}/{run}/box/current"',
        "PY": '"${PY:-' + path_text(b["PY"].value) + '}"',
    }


def adopt(kind: str) -> quote.Safe:
    """How a run goes on at another box."""
    if kind in ("slurm", "kubernetes", "notebook"):
        return quote.Safe("start it again as in P3.2, which says `--adopt` itself; never let two of them run at once.")
    return quote.Safe(
        "make the new one and its alias (P-1.9, P-1.10, verify P-1), push to it (`--new-host-key`), and there give P2.6, then P3.2's command as "
        "`formal_run.sh start --adopt`. Without that word it is refused (75: the old box has the run); with it the old box's claims count as dead, "
        "so say it only when that box is gone for good."
    )


def on_box(kind: str, command: str, run: str = "run", flags: str = "-n ") -> quote.Safe:
    """A command as it is typed on the laptop (through ssh or kubectl), or on the box itself where nothing leads there.

    The run's name and what a person set for the box travel along: no ssh forwards them. With -n it does not swallow the lines
    that were pasted behind it.
    """
    values = "export RUN=${RUN:-" + run_word(run) + "} ${BOX_ENV-};"
    carried = f'"{values}" ' if re.search(r"\$|\./|srun", command) else ""
    inner = command.replace("'", "'\\''")
    if kind in SSH:
        return quote.Safe(f"ssh {flags}\"${{HOST:?}}\" {carried}'{inner}'")
    if kind == "kubernetes":
        typed = "kubectl exec" if "-n" in flags else "kubectl exec -i"
        if "$" in command:
            # In double quotes, or a checker takes the dollars for a slip.
            return quote.Safe(typed + ' "job/${INSTANCE:?}" -- bash -c "' + values + " " + re.sub(r'([\\"$`])', r"\\\1", command) + '"')
        return quote.Safe(f"{typed} \"job/${{INSTANCE:?}}\" -- bash -c '{inner}'")
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
    return quote.Safe(text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text))


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
    """What an action is done with, as it is typed at home: its command, or its steps."""
    if "command" in action:
        # A bare `shutdown` in the table would end the reader's own machine, and the meter would run on.
        there = 'ssh "$HOST" ' if action.get("where") == "box" and b["KIND"].value in ("ssh-rental", "cloud-vm", "slurm") else ""
        return quote.code(there + " ".join(word.replace("{instance}", '"$INSTANCE"') for word in action["command"]))
    return quote.Safe("; ".join(prose(step) for step in action["steps"]))


def words_of(command: list[str]) -> quote.Safe:
    """A command's words as a person types them, the instance out of its variable."""
    return quote.Safe(" ".join('"' + word.replace("{instance}", "${INSTANCE:?}") + '"' if "{instance}" in word else str(quote.word(word)) for word in command))


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
