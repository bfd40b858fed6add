"""Lint of the templates and of what is rendered from them: what must not stand there, whoever writes it.

Each lint is shown to find a bad line first.
"""

import re

import pytest
import yaml
from conftest import FIXTURES, ROOT
from generator import render
from generator.bind import bind
from generator.inputs import FREE, known
from generator.load import load
from generator.quote import md

FILES = sorted(path for path in (ROOT / "templates").rglob("*") if path.suffix in (".j2", ".bash", ".py"))
BASH = [path for path in FILES if path.suffix == ".bash" or path.name.endswith(".sh.j2")]
# Names that are also words: a script may speak of the local machine, and Slurm and Kubernetes are kinds with names of their own.
WORDS = {"local", "slurm", "kubernetes", "lambda"}
COMMON = {"/", "/tmp", "/mnt", "/data", "/root", "/home", "/scratch", "$HOME", "~"}


def platform_words() -> set[str]:
    """What would tell a platform: the profiles' names, their tools, their paths."""
    found = {name for name in known("profiles") if name not in WORDS}
    for name in known("profiles"):
        data = yaml.safe_load((ROOT / "profiles" / f"{name}.yaml").read_text(encoding="utf-8"))
        if name in ("local", "slurm", "kubernetes", "generic-ssh"):
            continue
        paths = [tier["path"] for tier in data["storage"]["tiers"]] + [data["overrides"][key] for key in ("DATA_DIR", "DURABLE_DIR", "PROXY_HOOK")]
        found |= {path for path in paths if path.startswith("/") and path not in COMMON and path.count("/") < 4 and not path.startswith("http")}
        found |= {action["command"][0] for action in data["teardown"]["actions"] if "command" in action and action.get("where") != "box"}
    return found - {"ssh", "aws", "az", "sudo", "bash", "kubectl", "scancel"}  # too short, or the tool of a whole kind


def platform_in(text: str, words: set[str]) -> str:
    """The first platform word in a text, as a whole word."""
    hit = re.search("|".join(rf"(?<![A-Za-z0-9_./-]){re.escape(word)}(?![A-Za-z0-9_-])" for word in sorted(words)), text, re.I)
    return hit.group() if hit else ""


def test_no_platform_is_named_in_a_template():
    """S2: variety is data. Neither a mount, a verb's tool, a proxy hook nor a platform's name stands in a template."""
    words = platform_words()
    assert {"runpod", "/workspace", "/root/autodl-tmp", "runpodctl", "/etc/network_turbo"} <= words
    assert platform_in("cp x /workspace/y", words) and platform_in("on RunPod do", words) and not platform_in("a local disk", words)
    found = {path.relative_to(ROOT).as_posix(): platform_in(path.read_text(encoding="utf-8"), words) for path in FILES}
    assert {path: word for path, word in found.items() if word} == {}


def unquoted(line: str) -> str:
    """A bash line without its comment, quoted parts as Q."""
    line = re.sub(r"\\.", "x", line)
    line = re.sub(r"'[^']*'|\"[^\"]*\"", "Q", line)
    return re.sub(r"(?:^|\s)#.*", "", line)


AFTER_GREP = set("awk sed grep sort head tail tr cut wc while read xargs tee cat uniq sha256sum".split())


def stray_pipe(line: str) -> str:
    """The word behind a pipe that follows a grep, where it is no program that one pipes into: `grep -E train|eval`."""
    match = re.search(r"\b(?:p?grep|egrep)\b[^|;&]*(?<!\|)\|(?!\|)\s*(?:[A-Z_]+=\S*\s+)?([^\s)]+)", unquoted(line))
    return match[1] if match and match[1] not in AFTER_GREP and not match[1].startswith(("{", "(", "Q")) else ""


def test_no_pattern_has_an_unquoted_bar():
    """S74 T36: `pgrep -f train|eval` reads from a program named eval, and a grep before it waits for ever."""
    assert stray_pipe("pgrep -f train|eval") == "eval" and stray_pipe("grep -E a | b x") == "b"
    assert not stray_pipe("grep -E 'a|b' x | head -1") and not stray_pipe("grep x y || return")
    for path in BASH:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            assert not stray_pipe(line), f"{path.relative_to(ROOT)}:{number}: {line}"


DEFINED = re.compile(r"^([a-z_][a-z0-9_]*)\(\)", re.M)
CALLED = re.compile(r"(?:^|[;&|({!])[ \t]*(?:(?:if|then|else|elif|do|while|until|!|\{)[ \t]+)*([a-z_][a-z0-9_]*)(?=[\s;)&|]|$)", re.M)


def calls_of_nothing(script: str, functions: set[str]) -> set[str]:
    """Those of the project's functions that a script calls and does not define."""
    code = re.sub(r"(?:^|(?<=\s))#.*|'[^']*'", "", script, flags=re.M)
    labels = re.sub(r"^\s*[a-z_ |]+\)", "", code, flags=re.M)  # a case's words are no calls
    return set(CALLED.findall(labels)) & functions - set(DEFINED.findall(script))


def test_a_script_defines_each_function_that_it_calls():
    """A library's `needs` that leaves one out, or a trim that takes too much, shows as status 127 at night on a rented box."""
    assert calls_of_nothing("a() { :; }\nif a; then b; fi # c\necho d | e\n", set("abcde")) == {"b", "e"}
    functions = {name for path in BASH for name in DEFINED.findall(path.read_text(encoding="utf-8"))}
    functions = {name for name in functions if "_" in name} | {"within", "refuse"}  # a plain word is also one of a --help
    assert {"start_ticks", "run_places"} <= functions and len(functions) > 500
    job = load(FIXTURES / "sweep.yaml", "jobs/sweep.yaml", "J", FREE)
    seen = 0
    for name in known("profiles"):
        files = render.render(bind(load(ROOT / "profiles" / f"{name}.yaml", f"profiles/{name}.yaml", "P"), job))
        for file, output in files.items():
            if file.endswith(".sh"):
                seen += 1
                assert calls_of_nothing(output.data.decode(), functions) == set(), f"{name}: {file}"
    assert seen > 250


FORBIDDEN = {
    r"\bconda (?:env )?create\b": "S40: the image is the environment",
    r"(?:^\s*|[;&|]\s*|\bexec |\bsudo )(?:/s?bin/|/usr/s?bin/)?(?:shutdown|poweroff|halt|reboot)\b": "F60 F35: only the words of POWER_OFF_COMMAND switch a box off",
    r"(?:^\s*|[;&|]\s*)eval\b": "no eval",
    r"\bset -[a-z]*x\b|\bset -o xtrace\b": "case 15: tracing would print secrets",
    r"\bsshpass\b": "X6: no stored password",
    r"\bStrictHostKeyChecking=(?:no|off)\b": "a host key is pinned",
    r"\brm -[a-zA-Z]*r[a-zA-Z]* (?!.*\$\{?[A-Za-z_]\w*(?::\?|\?)|-- )": "case 11: a recursive rm has -- before a guarded path",
    r"\bgit (?:reset --hard|clean -[a-z]*f|push --force|stash drop|stash clear)": "nothing of a person's work is dropped",
    r"(?<![\w-])find (?!\"\$\{\w+:\?)[^|]*-delete\b": "case 11: what is deleted by pattern lies below a guarded path",
}


@pytest.mark.parametrize("pattern, sample", list(zip(FORBIDDEN, [
    "conda create -n x", "  shutdown -h now", "eval $x", "set -x", "sshpass -p x", "-o StrictHostKeyChecking=no", "rm -rf $DIR/x", "git reset --hard", 'find "$DIR" -name x -delete',
])))
def test_a_forbidden_line_stands_nowhere(pattern, sample):
    assert re.search(pattern, sample), sample
    for path in BASH:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            assert not re.search(pattern, re.sub(r"(?:^|\s)#.*", "", line)), f"{path.relative_to(ROOT)}:{number}: {FORBIDDEN[pattern]}: {line.strip()}"


@pytest.fixture(scope="module")
def runbooks():
    """profile -> (bindings, the lines of its runbook)."""
    job = load(FIXTURES / "sweep.yaml", "jobs/sweep.yaml", "J", FREE)
    out = {}
    for name in known("profiles"):
        b = bind(load(ROOT / "profiles" / f"{name}.yaml", f"profiles/{name}.yaml", "P"), job)
        out[name] = (b, render.render(b).get("RUNBOOK.md", render.Output(b"")).data.decode())
    if not any(text for _, text in out.values()):
        pytest.skip("there is no runbook template yet")
    return out


def test_every_danger_clock_is_in_the_runbook(runbooks):
    """S12 S13: whatever strikes by itself is told."""
    for name, (b, text) in runbooks.items():
        for clock in b.clocks:
            assert str(md(clock["effect"])) in text or clock["effect"] in text, (name, clock["id"])


def test_the_budget_is_in_the_runbook(runbooks):
    """S19 S33: disk per cell x cells + buffer, computed and shown."""
    for name, (b, text) in runbooks.items():
        assert str(render._gb(b.budget["data"].total_bytes)) in text, name


def test_no_placeholder_is_left_in_a_runbook(runbooks):
    """S8: the mounts, the verb and the detach primitive are bound; no <…> waits for somebody."""
    for name, (b, text) in runbooks.items():
        assert not re.findall(r"(?<![\\`$&])<(?!/?(?:code|details|summary|br|a|sub|sup|kbd|!--)\b)[a-z][a-z _-]*>", text), name
        for value in (b["DATA_DIR"].value, b["DURABLE_DIR"].value, b["METER_STOP"].value, b["DETACH"].value):
            assert value in text, (name, value)


def test_the_only_free_parts_of_a_frame_are_bound_values():
    """F49: a template holds no job's command; what a job says comes in through the block and the queue."""
    for path in BASH:
        text = path.read_text(encoding="utf-8")
        for expression in re.findall(r"\{\{(.*?)\}\}", text) if path.suffix == ".j2" else []:
            assert re.match(r" (?:header|bound_begin|bound_end|override|const|array|load_action|lib)\(", expression), (path.name, expression)
