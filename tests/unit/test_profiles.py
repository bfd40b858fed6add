"""The committed profiles as data: schema, survival, clocks, paths, secrets, form. The compiler's rules are not used here.

Covers S3 S12 S18 S23 S25 S26 S42 S43 S49 S100 S101 F35, DESIGN section 3. `findings` is itself checked: each kind of
damage is done to each profile once, and must be found.
"""

import copy
import functools
import json
import re

import jsonschema
import pytest
import yaml
from conftest import ROOT

FILES = sorted((ROOT / "profiles").glob("*.yaml"))
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "schema" / "profile.schema.json").read_text(encoding="utf-8")))
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}\Z")
EXPECTED = {"local", "runpod", "autodl", "slurm", "kaggle", "vastai", "lambda", "paperspace", "gpushare", "matpool", "featurize", "lanrui",
            "jarvislabs", "tensordock", "thundercompute", "kubernetes", "colab", "generic-ssh", "aws-ec2", "gcp-gce", "azure-vm"}
TOKEN = re.compile(r"hf_[A-Za-z0-9]{10}|\b(?:sk|pk|rk)[-_][A-Za-z0-9]{12}|gh[pousr]_[A-Za-z0-9]{12}|AKIA[0-9A-Z]{12}|rpa_[A-Za-z0-9]{12}|PRIVATE KEY|"
                   r"eyJ[A-Za-z0-9_-]{12}|://[^/\s]*:[^/\s]+@|\b[0-9a-f]{32,}\b")
HOOK = re.compile(r"(?:/[^\s;|&$`]+|https?://[A-Za-z0-9._-]+:[0-9]+/?)?\Z")


@functools.cache
def _loaded(path):
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def load(path):
    """A profile's data, to be changed at will."""
    return copy.deepcopy(_loaded(path))


def texts(value, path=()):
    """Every text in the data with its path."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from texts(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from texts(one, (*path, index))
    elif isinstance(value, str):
        yield path, value


def below(path, tier):
    tier = tier.rstrip("/")
    return path == tier or path.startswith(tier + "/")


def survival(p, without=()):
    """What is wrong with the survival matrix once the tiers in `without` are not rented (S18 S23 S26)."""
    tiers = {tier["name"]: tier for tier in p["storage"]["tiers"]}
    like = {action["verb"]: action for action in p["teardown"]["actions"]}.get(p["teardown"]["meter_stop"], {}).get("like")
    data = [name for name in p["storage"]["data"] if name not in without]
    durable = [name for name in p["storage"]["durable"] if name not in without]
    for name in p["storage"]["data"] + p["storage"]["durable"]:
        if name not in tiers:
            yield f"unknown tier {name}"
    if not data:
        yield "no data tier is left"
    for name in durable:
        if like == "storage" or (like in ("stop", "destroy") and not tiers.get(name, {}).get("survives", {}).get(like)):
            yield f"durable tier {name} does not outlive the meter stop"


def findings(p):
    """All that is wrong with a profile's data, as texts."""
    out = [error.message for error in SCHEMA.iter_errors(p)]
    if out:
        return out
    tiers = {tier["name"]: tier for tier in p["storage"]["tiers"]}
    actions = {action["verb"]: action for action in p["teardown"]["actions"]}
    out += survival(p)
    optional = [name for name, tier in tiers.items() if tier.get("optional")]
    for left_out in [(name,) for name in optional] + [tuple(optional)]:
        out += [f"without {left_out}: {one}" for one in survival(p, left_out)]
    if len(tiers) != len(p["storage"]["tiers"]) or len(actions) != len(p["teardown"]["actions"]):
        out.append("a name twice")
    # S101: the verb exists and really ends the charge.
    if not actions.get(p["teardown"]["meter_stop"], {}).get("stops_meter"):
        out.append("meter_stop does not stop the meter")
    # S12: every clock has a line that is shown first; what is shown is known.
    clocks, traps = ([one["id"] for one in part] for part in (p["interruption"]["clocks"], p["teardown"]["cost_traps"]))
    shown = p["launch"]["surface"]["danger_clocks"]
    out += [f"clock {one} is not shown" for one in clocks if one not in shown]
    out += [f"{one} is no clock" for one in shown if one not in clocks + traps]
    if len(set(clocks + traps)) != len(clocks + traps) or len(set(shown)) != len(shown):
        out.append("a clock twice")
    # S49: the folders lie on their tiers; empty means none.
    given = p["overrides"]
    if bool(given["DURABLE_DIR"]) != bool(p["storage"]["durable"]):
        out.append("pull-only is said by halves")
    for name, key in (("DATA_DIR", "data"), ("DURABLE_DIR", "durable")):
        if p["storage"][key] and not below(given[name], tiers.get(p["storage"][key][0], {}).get("path", "?")):
            out.append(f"{name} is off its tier")
    if given["DATA_DIR"] in ("/", "~", "$HOME"):
        out.append("DATA_DIR is the home or the root itself")
    # S42: no credentials where others read or where files outlive the box. The longest path that holds the file counts.
    holding = sorted((tier for tier in tiers.values() if below(given["CRED_FILE"], tier["path"])), key=lambda one: len(one["path"]))
    if given["CRED_FILE"] and holding and (holding[-1]["shared"] or holding[-1]["name"] in p["storage"]["durable"]):
        out.append("CRED_FILE is on a shared or durable tier")
    if not HOOK.match(given["PROXY_HOOK"]) or bool(given["PROXY_HOOK"]) != bool(p["network"]["proxy_hook"]):
        out.append("PROXY_HOOK is no file and no address")
    if given["DETACH"] != p["daemon"]["primitive"]:
        out.append("DETACH is not the daemon's primitive")
    out += command_findings(p)
    # S43: names of variables only.
    out += [f"like a secret: {'.'.join(map(str, path))}" for path, text in texts(p) if TOKEN.search(text)]
    return out


def command_findings(p):
    """Commands are words; {instance} is the only substitution; an action that deletes is not reversible (S99)."""
    for path, text in texts(p):
        if "command" in path[-2:-1] and (re.search(r"[|;`]|\$\(|&&|<[a-z]+>", text.replace("{instance}", "")) or re.search(r"\{(?!instance\})[A-Za-z]", text)):
            yield f"not a plain word: {text}"
    for action in p["teardown"]["actions"]:
        if action["like"] in ("destroy", "storage") and action["reversible"]:
            yield f"{action['verb']} deletes and is reversible"
        if action["like"] != "none" and "command" in action and "where" not in action:
            yield f"{action['verb']} does not say where it is run"
        absent = action["confirm_gone"].get("absent")
        if absent is not None and "{instance}" not in absent:
            yield f"{action['verb']} looks for another word than the instance"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_profile_is_sound(path):
    assert findings(load(path)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_profile_file_form(path):
    """The editor's schema line, a legal stem, readable lines, LF; YAML 1.1 and the loader read the same data."""
    from generator.load import load as load_positions

    text = path.read_bytes().decode("utf-8")
    lines = text.split("\n")
    assert lines[0] == "# yaml-language-server: $schema=../schema/profile.schema.json"
    assert NAME.match(path.stem) and "\r" not in text and "\t" not in text and text.endswith("\n")
    assert [index for index, line in enumerate(lines, 1) if len(line) > 142] == []
    doc = load_positions(path, path.name, "P")
    assert doc.diagnostics == [] and doc.data == load(path)
    assert all(isinstance(value, str) for where, value in texts(doc.data) if where[-1] == "as_of")


def test_the_platforms_are_there():
    """21 or more, each field filled: no profile is a shell of another."""
    names = {path.stem for path in FILES}
    assert names >= EXPECTED and len(names) >= 21
    assert len({load(path)["launch"]["title"] for path in FILES}) == len(names)


def test_runpod_without_its_network_volume_is_pull_only():
    """S26: the same profile with and without the volume; the volume disk does not outlive terminate."""
    p = load(ROOT / "profiles" / "runpod.yaml")
    tiers = {tier["name"]: tier for tier in p["storage"]["tiers"]}
    assert p["storage"]["data"] == ["network-volume", "volume-disk"] and p["storage"]["durable"] == ["network-volume"]
    assert tiers["network-volume"]["optional"] and not tiers["volume-disk"]["survives"]["destroy"]


def test_power_off_from_inside_is_offered_only_where_the_rental_survives_it():
    """F35: a command that is run on the box without an instance is what a success may switch off with; it must be like stop."""
    for path in FILES:
        for action in load(path)["teardown"]["actions"]:
            if action.get("where") == "box" and action["stops_meter"] and "{instance}" not in " ".join(action.get("command", ["{instance}"])):
                assert action["like"] == "stop" and action["reversible"], (path.stem, action["verb"])


def damage():
    """Name -> a function that damages a profile; the damage must be found in every profile that it can be done to."""

    def survives(p):
        stop = next(action for action in p["teardown"]["actions"] if action["verb"] == p["teardown"]["meter_stop"])
        if not p["storage"]["durable"] or stop["like"] == "none":
            return False
        for tier in p["storage"]["tiers"]:
            tier["survives"][stop["like"]] = False
        return True

    def verb(p):
        p["teardown"]["meter_stop"] += "x"

    def clock(p):
        if not p["interruption"]["clocks"]:
            return False
        p["launch"]["surface"]["danger_clocks"].remove(p["interruption"]["clocks"][0]["id"])

    def hook(p):
        p["overrides"]["PROXY_HOOK"] = "source /etc/proxy"

    def durable(p):
        p["overrides"]["DURABLE_DIR"] = "" if p["overrides"]["DURABLE_DIR"] else "/elsewhere"

    def off_tier(p):
        p["overrides"]["DATA_DIR"] = "~/off-its-tier"

    def credentials(p):
        if not p["storage"]["durable"]:
            return False
        p["overrides"]["CRED_FILE"] = p["overrides"]["DURABLE_DIR"] + "/secret.env"

    def secret(p):
        p["launch"]["surface"]["conveniences"].append("hf_" + "A1b2C3d4E5f6G7h8I9")

    def gotchas(p):
        del p["gotchas"][3:]

    def source(p):
        del p["teardown"]["actions"][0]["source"]

    def ninth(p):
        p["extra"] = {}

    def shell(p):
        p["teardown"]["actions"][0]["command"] = ["tool", "$(stop)"]

    return {name: one for name, one in locals().items() if callable(one)}


@pytest.mark.parametrize("name", sorted(damage()))
def test_damage_is_found_in_every_profile(name):
    """S3 S12 S26 and the rest: a wrong fact in any profile does not pass."""
    done = 0
    for path in FILES:
        p = load(path)
        if damage()[name](p) is not False:
            done += 1
            assert findings(p), f"{name} was not found in {path.stem}"
    assert done > len(FILES) / 3


MONEY_OR_DATA = re.compile(r"\b(bills?|billed|charged?|costs?|price|yuan|USD|refund|erase[sd]?|wipe[sd]?|deletes?|kept|keeps the|survives?|outlives|for free|Free|free (of|both|part))\b")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_touches_money_or_data_has_a_source(path):  # S11 S12: conveniences and ports have none, so they say nothing of either
    p = load(path)
    said = [text for one in p["launch"]["surface"]["conveniences"] + p["network"]["ports"] for text in ([one] if isinstance(one, str) else one.values())]
    assert [one for one in said if MONEY_OR_DATA.search(one)] == []
