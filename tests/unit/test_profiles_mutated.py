"""A wrong fact about survival, injected into each committed profile, stops the compile with its own code: no profile is exempt.

Each mutation is one edit of the data; `inputs`, which is what `compile` calls first, has to refuse it (S12 S23 S26 S101, F35;
cases 1 and 2). Which profiles a mutation could not be done to is fixed here too, so that none slips out in silence.
"""

import copy
import functools
import itertools

import pytest
import yaml
from conftest import ROOT
from generator import render
from generator.diagnostics import Report
from generator.inputs import DEFAULT_JOB, inputs, known

PROFILES = known("profiles")


@functools.cache
def _text(name):
    return yaml.load((ROOT / "profiles" / f"{name}.yaml").read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def data(name: str) -> dict:
    """A profile's data, to be damaged."""
    return copy.deepcopy(_text(name))


def compiled(tmp_path, name: str, p: dict, without=()):
    """Codes of the errors with which this profile is refused, and whether it was."""
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(p, allow_unicode=True, sort_keys=False, width=1000), encoding="utf-8")
    report = Report()
    bindings = inputs(str(path), DEFAULT_JOB, tuple(without), report)
    return {each.code for each in report.found if each.severity == "error"}, bindings is None


def stop_of(p: dict) -> dict:
    """The action that stops the meter."""
    return next(action for action in p["teardown"]["actions"] if action["verb"] == p["teardown"]["meter_stop"])


def tiers_of(p: dict) -> dict:
    return {tier["name"]: tier for tier in p["storage"]["tiers"]}


KEEPS = [name for name in PROFILES if data(name)["storage"]["durable"]]
ENDS = [name for name in PROFILES if stop_of(data(name))["like"] in ("stop", "destroy")]


def test_few_profiles_are_spared():
    """What cannot be mutated is known by name: pull-only ones keep nothing, one's own machine ends nothing."""
    assert set(PROFILES) - set(ENDS) == {name for name in PROFILES if stop_of(data(name))["like"] == "none"}
    assert len(set(KEEPS) & set(ENDS)) > 12 and len(PROFILES) >= 21


@pytest.mark.parametrize("name", PROFILES)
def test_the_copy_itself_compiles(tmp_path, name):
    """What is refused below is refused for the mutation, not for the way it is written."""
    assert compiled(tmp_path, name, data(name)) == (set(), False)


@pytest.mark.parametrize("name", [name for name in KEEPS if name in ENDS])
def test_a_durable_tier_that_does_not_survive(tmp_path, name):  # S26 case 1
    for tier in data(name)["storage"]["durable"]:
        p = data(name)
        tiers_of(p)[tier]["survives"][stop_of(p)["like"]] = False
        codes, refused = compiled(tmp_path / _folder(tmp_path, tier), name, p)
        assert refused and "P307" in codes, tier


@pytest.mark.parametrize("name", [name for name in PROFILES if name not in KEEPS or name not in ENDS])
def test_a_tier_that_is_lost_cannot_be_called_durable(tmp_path, name):  # S26: pull-only profiles, and verbs that end nothing
    p = data(name)
    stop = stop_of(p)
    if stop["like"] == "none":
        stop["like"] = "destroy"
    tier = tiers_of(p)[p["storage"]["data"][0]]
    tier["survives"][stop["like"]] = False
    p["storage"]["durable"] = [tier["name"]]
    p["overrides"]["DURABLE_DIR"] = p["overrides"]["DATA_DIR"]
    codes, refused = compiled(tmp_path, name, p)
    assert refused and "P307" in codes


@pytest.mark.parametrize("name", KEEPS)
def test_a_verb_that_deletes_the_storage_cannot_stop_the_meter(tmp_path, name):  # S26
    p = data(name)
    stop_of(p)["like"] = "storage"
    codes, refused = compiled(tmp_path, name, p)
    assert refused and "P307" in codes


@pytest.mark.parametrize("name", PROFILES)
def test_a_tier_that_nobody_knows(tmp_path, name):  # S23
    for key in ("data", "durable"):
        p = data(name)
        p["storage"][key] = ["no-such-tier"]
        codes, refused = compiled(tmp_path / _folder(tmp_path, key), name, p)
        assert refused and "P301" in codes, key


@pytest.mark.parametrize("name", PROFILES)
def test_a_verb_that_nobody_knows(tmp_path, name):  # S101
    p = data(name)
    p["teardown"]["meter_stop"] += "x"
    codes, refused = compiled(tmp_path, name, p)
    assert refused and "P305" in codes


@pytest.mark.parametrize("name", PROFILES)
def test_a_verb_that_does_not_stop_the_meter(tmp_path, name):  # S101 case 2
    p = data(name)
    stop_of(p)["stops_meter"] = False
    codes, refused = compiled(tmp_path, name, p)
    assert refused and codes & {"P306", "P329"}


@pytest.mark.parametrize("name", PROFILES)
def test_each_clock_without_its_line(tmp_path, name):  # S12
    clocks = [one["id"] for one in data(name)["interruption"]["clocks"]]
    assert clocks, "every profile has a clock"
    for clock in clocks:
        p = data(name)
        p["launch"]["surface"]["danger_clocks"].remove(clock)
        codes, refused = compiled(tmp_path / _folder(tmp_path, clock), name, p)
        assert refused and "P314" in codes, clock


@pytest.mark.parametrize("name", PROFILES)
def test_a_line_without_its_clock(tmp_path, name):  # S12
    p = data(name)
    p["launch"]["surface"]["danger_clocks"].append("no-such-clock")
    codes, refused = compiled(tmp_path, name, p)
    assert refused and "P315" in codes


@pytest.mark.parametrize("name", KEEPS)
def test_pull_only_said_by_halves(tmp_path, name):  # S26
    p = data(name)
    p["overrides"]["DURABLE_DIR"] = ""
    codes, refused = compiled(tmp_path, name, p)
    assert refused and "P308" in codes


@pytest.mark.parametrize("name", [name for name in PROFILES if stop_of(data(name))["like"] == "destroy"])
def test_a_destroy_that_can_be_undone(tmp_path, name):  # S99
    p = data(name)
    stop_of(p)["reversible"] = True
    codes, refused = compiled(tmp_path, name, p)
    assert refused and codes


@pytest.mark.parametrize("name", PROFILES)
def test_a_detached_run_that_the_platform_ends(tmp_path, name):  # S58 S59 S60: with the line, or a multiplexer that comes back by itself
    p = data(name)
    p["daemon"]["survives"]["ssh_drop"] = False
    codes, refused = compiled(tmp_path / _folder(tmp_path, "line"), name, p)
    assert refused and "P341" in codes
    if p["daemon"]["primitive"] not in ("tmux", "screen", "nohup"):
        return
    p = data(name)
    p["daemon"]["survives"]["restart"] = True
    codes, refused = compiled(tmp_path / _folder(tmp_path, "restart"), name, p)
    assert refused and "P345" in codes


@pytest.mark.parametrize("name", PROFILES)
def test_a_notice_that_is_taken_for_a_grace(tmp_path, name):  # S105: seconds after a signal that never comes
    p = data(name)
    p["interruption"].update(signal="none", grace_s=120)
    codes, refused = compiled(tmp_path, name, p)
    assert refused and "P342" in codes


@pytest.mark.parametrize("name", PROFILES)
def test_a_verb_typed_here_that_ends_this_machine_or_any(tmp_path, name):  # S16 S95 S99
    p = data(name)
    stop = stop_of(p)
    stop.pop("steps", None)
    stop.update(command=["sudo", "shutdown", "-h", "now"], where="laptop")
    codes, refused = compiled(tmp_path / _folder(tmp_path, "here"), name, p)
    assert refused and "P343" in codes
    p = data(name)
    stop = stop_of(p)
    stop.pop("steps", None)
    stop.update(command=["cloudctl", "delete", "--all"], where="laptop")
    codes, refused = compiled(tmp_path / _folder(tmp_path, "any"), name, p)
    assert refused and "P344" in codes


@pytest.mark.parametrize("name", [name for name in ENDS if stop_of(data(name))["like"] == "destroy" and data(name)["launch"]["kind"] in ("ssh-rental", "cloud-vm")])
def test_a_destroy_that_is_called_a_stop(tmp_path, name):  # S26 S99: the survival proof would read the wrong column
    p = data(name)
    stop_of(p)["like"] = "stop"
    tiers_of(p)[p["storage"]["data"][0]]["survives"]["stop"] = True
    codes, refused = compiled(tmp_path, name, p)
    assert refused and "P324" in codes


@pytest.mark.parametrize("name", [name for name in PROFILES if data(name)["launch"]["kind"] in ("ssh-rental", "cloud-vm")])
def test_a_disk_of_the_box_that_is_said_to_outlive_it(tmp_path, name):  # S26: a false yes in the column destroy, where nothing could show it
    p = data(name)
    tier = next((one for one in p["storage"]["tiers"] if one["proof"] == "none"), p["storage"]["tiers"][0])
    tier.update(proof="none", survives=dict.fromkeys(tier["survives"], True))
    p["storage"]["durable"] = [tier["name"]]
    p["overrides"]["DURABLE_DIR"] = tier["path"].rstrip("/") + "/keep"
    codes, refused = compiled(tmp_path, name, p)
    assert refused and "P334" in codes


@pytest.mark.parametrize("name", PROFILES)
def test_a_survival_that_is_not_said(tmp_path, name):  # S25
    for column in ("ssh_drop", "restart", "stop", "destroy"):
        p = data(name)
        del p["storage"]["tiers"][0]["survives"][column]
        codes, refused = compiled(tmp_path / _folder(tmp_path, column), name, p)
        assert refused and codes, column


def _variants():
    """(profile, tiers left out): each way that compiles; a wrong fact of what is left has to be caught there too."""
    for name in PROFILES:
        optional = sorted(tier["name"] for tier in data(name)["storage"]["tiers"] if tier.get("optional"))
        for size in range(1, len(optional) + 1):
            for without in itertools.combinations(optional, size):
                if inputs(name, DEFAULT_JOB, without, Report()) is not None:
                    yield pytest.param(name, without, id=f"{name}.no-{'-'.join(without)}")


VARIANTS = list(_variants())
each_variant = pytest.mark.parametrize(("name", "without"), VARIANTS)


def test_every_profile_is_hurt_in_each_way():
    """No profile is without a mutation of what survives, of the verb and of a clock, and the variants' platforms are all there."""
    lost = {name for name in KEEPS if name in ENDS} | {name for name in PROFILES if name not in KEEPS or name not in ENDS}
    assert lost == set(PROFILES)
    assert {one.values[0] for one in VARIANTS} == {name for name in PROFILES if any(tier.get("optional") for tier in data(name)["storage"]["tiers"])}
    assert all(data(name)["interruption"]["clocks"] for name in PROFILES)


@each_variant
def test_a_variant_whose_last_storage_does_not_survive(tmp_path, name, without):  # S26 case 1
    p = data(name)
    stop = stop_of(p)
    left = [tier for tier in p["storage"]["durable"] if tier not in without]
    if left:
        # What is left is called durable and is not.
        tiers_of(p)[left[0]]["survives"][stop["like"]] = False
    else:
        # Nothing durable is left: the data tier that is used is called so, and dies with the meter.
        tier = next(tiers_of(p)[one] for one in p["storage"]["data"] if one not in without)
        tier["survives"][stop["like"]] = False
        p["storage"]["durable"].append(tier["name"])
        p["overrides"]["DURABLE_DIR"] = p["overrides"]["DURABLE_DIR"] or p["overrides"]["DATA_DIR"]
    codes, refused = compiled(tmp_path, name, p, without)
    assert refused and "P307" in codes


@each_variant
def test_a_variant_without_verb_or_line(tmp_path, name, without):  # S101 S12 case 2
    p = data(name)
    p["teardown"]["meter_stop"] += "x"
    codes, refused = compiled(tmp_path / _folder(tmp_path, "verb"), name, p, without)
    assert refused and "P305" in codes
    for clock in [one["id"] for one in data(name)["interruption"]["clocks"]]:
        p = data(name)
        p["launch"]["surface"]["danger_clocks"].remove(clock)
        codes, refused = compiled(tmp_path / _folder(tmp_path, clock), name, p, without)
        assert refused and "P314" in codes, clock


@each_variant
def test_a_variant_keeps_nothing_that_was_left_out(tmp_path, name, without):  # S26: a tier that is left out proves no survival
    p = data(name)
    stop = stop_of(p)
    for tier in p["storage"]["tiers"]:
        if tier["name"] in without:
            tier["survives"] = dict.fromkeys(tier["survives"], True)
    assert compiled(tmp_path, name, p, without) == (set(), False)
    b = inputs(str(tmp_path / f"{name}.yaml"), DEFAULT_JOB, without, Report())
    assert b.durable is None or b.durable["name"] not in without and b.durable["survives"].get(stop["like"], True)


@each_variant
def test_a_tier_of_every_box_cannot_be_left_out(tmp_path, name, without):  # P304
    p = data(name)
    tiers_of(p)[without[0]]["optional"] = False
    codes, refused = compiled(tmp_path, name, p, without)
    assert refused and "P304" in codes


def _folder(tmp_path, name: str) -> str:
    """A folder of its own for a file: documents are cached by path."""
    (tmp_path / name).mkdir()
    return name


def shapes(value, at=()) -> set[tuple]:
    """Where its names stand, each list's entries as one."""
    if isinstance(value, list):
        return set().union(*(shapes(one, (*at, "*")) for one in value))
    return {(*at, key) for key in value}.union(*(shapes(one, (*at, key)) for key, one in value.items())) if isinstance(value, dict) else set()


def drop(value, shape) -> None:
    """The name that stands there left out, in each entry of a list."""
    if shape[0] == "*":
        for one in value if isinstance(value, list) else []:
            drop(one, shape[1:])
    elif isinstance(value, dict) and shape[0] in value:
        if shape[1:]:
            drop(value[shape[0]], shape[1:])
        else:
            del value[shape[0]]


@pytest.mark.parametrize("profile", ["runpod", "slurm"])
def test_what_is_left_out_is_missed_by_nobody(tmp_path, profile):  # S10: a finding or the files, never a crash
    accepted = set()
    for shape in sorted(shapes(data(profile))):
        p = data(profile)
        drop(p, shape)
        path = tmp_path / _folder(tmp_path, ".".join(shape)) / f"{profile}.yaml"
        path.write_text(yaml.safe_dump(p, allow_unicode=True, sort_keys=False, width=1000), encoding="utf-8")
        b = inputs(str(path), DEFAULT_JOB, (), Report())
        if b is not None:
            accepted.add(shape[-1])
            render.render(b)
    assert {"where", "note", "confidence"} <= accepted
