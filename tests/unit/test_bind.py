"""Bound values: arithmetic, choices after --without, and where each came from."""

import pytest
from conftest import check_texts
from generator import cells
from generator.bind import action_fields, bind


@pytest.fixture
def bound(tmp_path, rental, sweep):
    """Binds the two bases with changes to either."""

    def one(profile=(), job=(), without=()):
        p_text, j_text = rental, sweep
        for old, new in profile:
            assert p_text.count(old) == 1, old
            p_text = p_text.replace(old, new)
        for old, new in job:
            assert j_text.count(old) == 1, old
            j_text = j_text.replace(old, new)
        p, j, found = check_texts(tmp_path, p_text, j_text, without)
        assert [one for one in found if one.severity == "error"] == []
        return bind(p, j, tuple(without))

    return one


def test_the_budget(bound):
    """S19 S33: 4 cells x 2.5 GB and a tenth on top, against the tier's cap."""
    need = bound().budget["data"]
    assert (need.per_cell_bytes, need.cells, need.buffer_bytes, need.total_bytes) == (2_500_000_000, 4, 1_000_000_000, 11_000_000_000)
    assert (need.total_files, need.cap_bytes, need.cap_files, need.fits) == (400, 100_000_000_000, 100_000, True)
    assert bound().budget["durable"].cap_bytes == 50_000_000_000 and bound(without=("volume",)).budget["durable"] is None


@pytest.mark.parametrize("platform, save, grace", [("null", 20, 30), ("5", 20, 5), ("120", 20, 30), ("0", 20, 0), ("null", 0, 10), ("30", 20, 30)])
def test_the_grace_is_derived_from_the_save_time(bound, platform, save, grace):
    """Case 79: one number, save_s + 10; behind the platform's own signal less where the platform gives less."""
    b = bound([("grace_s: null", f"grace_s: {platform}")], [("save_s: 20", f"save_s: {save}")])
    assert b["GRACE_S"].value == save + 10 and b["GRACE_S"].origin == ("J", ("save_s",))
    assert b["SIGNAL_GRACE_S"].value == grace
    assert b["SIGNAL_GRACE_S"].origin[0] == ("P" if grace != save + 10 else "J")


def test_without_a_tier_nothing_points_to_it(bound):
    """S49 T2: pull-only is an empty DURABLE_DIR, never another tier's path."""
    b = bound(without=("volume",))
    assert [b[name].value for name in ("DURABLE_DIR", "DURABLE_TIER", "DURABLE_TIER_PATH", "DURABLE_PROOF", "DURABLE_CAP_BYTES")] == ["", "", "", "none", ""]
    assert "/volume" not in [value for one in b.by_name.values() for value in (one.value if isinstance(one.value, list) else [one.value])]
    texts, arrays = action_fields(b, b.actions[1])
    assert arrays["SURVIVES"] == [] and arrays["LOST"] == ["local-disk", "root-disk"]


def test_scratch_caches_and_credentials_leave_a_tier_that_is_left_out(bound):
    """S49: without its tier a folder moves to the data folder, credentials go; what lies elsewhere stays."""
    change = [("  SCRATCH: /data/scratch", "  SCRATCH: /volume/scratch"), ("  HF_HOME: /data/hf", "  HF_HOME: /volume/hf")]
    assert [bound(change)[name].value for name in ("SCRATCH", "HF_HOME")] == ["/volume/scratch", "/volume/hf"]
    b = bound(change, without=("volume",))
    assert [b[name].value for name in ("SCRATCH", "HF_HOME", "CRED_FILE")] == ["/data/.scratch", "/data/.huggingface", "/root/.gpu-runbook.env"]
    own = [("      shared: true", "      shared: false"), ("  durable: [volume]", "  durable: []"), ("  DURABLE_DIR: /volume\n", "  DURABLE_DIR: ''\n"),
           ("  CRED_FILE: /root/.gpu-runbook.env", "  CRED_FILE: /volume/env")]
    assert bound(own)["CRED_FILE"].value == "/volume/env" and bound(own, without=("volume",))["CRED_FILE"].value == ""


def test_the_first_tier_that_is_left_is_used(bound):
    change = [("  data: [local-disk]", "  data: [volume, local-disk]"), ("  DATA_DIR: /data\n", "  DATA_DIR: /volume/run\n")]
    assert [bound(change)[name].value for name in ("DATA_TIER", "DATA_DIR", "DATA_PROOF")] == ["volume", "/volume/run", "mount"]
    assert [bound(change, without=("volume",))[name].value for name in ("DATA_TIER", "DATA_DIR", "DATA_PROOF")] == ["local-disk", "/data", "none"]


def test_what_an_action_leaves_is_the_column_that_it_is_like(bound):
    """S26 S100: said once, in the matrix."""
    b = bound()
    survives = {action["verb"]: action_fields(b, action)[1]["SURVIVES"] for action in b.actions}
    assert survives == {"stop": ["local-disk", "volume"], "terminate": ["volume"], "delete-volume": ["local-disk", "root-disk"]}


def test_optional_parts_of_a_job_have_defaults(bound):
    b = bound(job=[("limits: {wall_s: 7200, stall_s: 900}\n", ""), ("retry: {max: 2}\n", ""), ("secrets: [WANDB_API_KEY]\n", ""), ("data: [{path: data/raw, files: 1797}]\n", ""),
                   (", prune: [latest.pth]", "")])
    assert [b[name].value for name in ("WALL_S", "STALL_S", "RETRY_MAX", "SECRETS", "DATA_PATHS", "PRUNE", "NEED_FILES")] == [0, 0, 2, [], [], [], 100]


def test_every_bound_value_has_a_reason_and_its_origin_exists(bound):
    b = bound()
    for one in b.by_name.values():
        assert one.why and (one.origin is None or one.origin[0] in "PJ")
        if one.origin and one.origin[1]:
            doc = b.profile_doc if one.origin[0] == "P" else b.job_doc
            assert doc.node(one.origin[1][:1]) is not None, one.name


def test_the_matrix_goes_in_written_order():
    job = {"matrix": {"b": ["2", "1"], "a": ["x", "y"]}, "cell": "{b}{a}", "command": "run {a} {b} ${b} '{b}' \"{a}\" \\{b} {} {b,a} a{b}c"}
    got = list(cells.cells(job))
    assert [name for name, _ in got] == ["2x", "2y", "1x", "1y"]
    assert got[0][1] == "run x 2 ${b} '{b}' \"{a}\" \\{b} {} {b,a} a2c"


def test_an_escaped_quote_in_an_ansi_string_closes_nothing():
    job = {"matrix": {"v": ["1"]}, "cell": "c", "command": "run $'it\\'s {v}' {v} \"\\\"{v}\" {v}"}
    assert [command for _, command in cells.cells(job)] == ["run $'it\\'s {v}' 1 \"\\\"{v}\" 1"]
    assert {kind for _, kind, _ in cells.split_command(job["command"], ["v"])[1]} == {"quoted"}
    assert [kind for _, kind, _ in cells.split_command("a 'b", [])[1]] == ["open"] and [kind for _, kind, _ in cells.split_command("a \\", [])[1]] == ["open"]


def test_a_hostile_value_is_one_word(tmp_path):
    """Case 12: a value that looks like an option or a command stays a value."""
    job = {"matrix": {"v": ["--help", "a b", "$(x)", "it's", ""]}, "cell": "c", "command": "run {v}"}
    assert [command for _, command in cells.cells(job)] == ["run --help", "run 'a b'", "run '$(x)'", "run 'it'\\''s'", "run ''"]


def test_a_hundred_thousand_cells_cost_little(tmp_path, rental, sweep):
    """Bounded memory and time; the ratio is by `make bench`, here only that nothing is quadratic."""
    import resource

    job = sweep.replace("matrix: {lr: [0.10, 1e-2], width: [32, 64]}", "cells:\n" + "\n".join(f"  - {{lr: {i}, width: 3}}" for i in range(100_000))).replace("disk_gb: 2.5", "disk_gb: 0.0001")
    rental = rental.replace("inode_cap: 100000", "inode_cap: null")
    p, j, found = check_texts(tmp_path, rental, job)
    assert found == [] and cells.queue_tsv(j.data).count(b"\n") == 100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 600_000  # of the whole test process


def test_without_a_tier_there_is_no_action_on_that_tier_alone(bound):
    """S100: a verb that deletes what the renter does not have would be said to keep what lies at the same path."""
    verbs = {action["verb"] for action in bound().actions if action["like"] == "storage"}
    assert verbs and not verbs & set(bound(without=("volume",))["ACTION_VERBS"].value)
