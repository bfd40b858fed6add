"""Libraries in a script: the functions that it can reach, all of them, and no others."""

import re
import subprocess

import pytest
from conftest import FIXTURES, ROOT
from generator.bind import bind
from generator.inputs import FREE
from generator.load import load
from generator.render import render
from generator.trim import split, trim

LIBRARIES = sorted((ROOT / "templates/lib").glob("*.bash"))
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@pytest.fixture(scope="module")
def functions() -> dict[str, set[str]]:
    """library -> its functions, as bash itself says."""
    script = 'for f in "$@"; do (source "$f" >/dev/null 2>&1; printf "%s " "${f##*/}"; compgen -A function | tr "\\n" " "; echo); done'
    lines = subprocess.run(["env", "-i", "bash", "-c", script, "bash", *LIBRARIES], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0]: set(line.split()[1:]) for line in lines}


def test_a_library_is_cut_where_bash_cuts_it(functions):
    """Nothing is lost, and each top-level function is seen."""
    assert len(functions) == len(LIBRARIES) > 40
    for path in LIBRARIES:
        text = path.read_text(encoding="utf-8")
        parts = split(text)
        assert "\n".join(part for _, part in parts).rstrip() == text.rstrip(), path.name
        assert {name for name, _ in parts if name} == functions[path.name], path.name


LIB = """# lib/a.bash: for the test.
# needs:
A=1

# Says one.
one() { # <word>
  two "$1"
}

two() { printf '%s\\n' "$1"; } # short
three() (
  A=2
  four
)
# in a string
four() {
  trap 'five' EXIT
}
five() { :; }

# Nobody asks for it.
six() {
  one
}
B=2
"""


def test_what_can_be_reached_stays():
    """By a call, a subshell, a trap, a list for declare -f; the rest goes with its comment, and what is no function stays."""
    assert trim("main() { :; }", (LIB,)) == ["# lib/a.bash: for the test.\n# needs:\nA=1\n\nB=2"]
    assert trim('declare -f "one"', (LIB,))[0].count("()") == 2
    kept = trim("x=three", (LIB,))[0]
    assert [name for name, _ in split(kept) if name] == ["three", "four", "five"] and "# in a string" in kept and "Nobody" not in kept
    assert trim("six one three", (LIB,))[0] == LIB.rstrip("\n")


def compiled(tmp_path, old: str = "", new: str = ""):
    path = tmp_path / "rental.yaml"
    path.write_text((FIXTURES / "rental.yaml").read_text(encoding="utf-8").replace(old, new) if old else (FIXTURES / "rental.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return render(bind(load(path, "rental.yaml", "P"), load(FIXTURES / "sweep.yaml", "sweep.yaml", "J", FREE)))


def body(data: bytes) -> str:
    return data.decode().partition("# --- end of bound values ---")[2]


def test_every_function_that_a_script_names_is_in_it(tmp_path, functions):
    """Also in strings and lists; and what is in it is named somewhere besides its own definition, or by what is named."""
    everything = set().union(*functions.values())
    for path, output in compiled(tmp_path).items():
        if not path.endswith(".sh"):
            continue
        text = body(output.data)
        assert "\0" not in text
        there = set(re.findall(r"(?m)^([A-Za-z_][A-Za-z0-9_]*)\(\)", text))
        code = re.sub(r"(?m)^\s*#.*$", "", text)
        from_libraries = {name for name in everything if re.search(rf"(?<![\w$]){name}(?!\w)", code)}
        libraries = set(re.findall(r"(?m)^# lib/(\w+\.bash):", text))
        mine = set().union(*(functions[name] for name in libraries))
        assert (from_libraries & mine) - there == set(), path


def test_words_in_a_value_decide_nothing(tmp_path):
    """S49: below the block the bytes are the same, whatever a profile's texts say."""
    plain = compiled(tmp_path)
    names = "take_lists look_at_box read_queue six git_refuse merge_queue"
    odd = compiled(tmp_path, "storage_billed: the local disk", f"storage_billed: {names}")
    assert names in odd["local/teardown.sh"].data.decode()
    assert all(body(plain[path].data) == body(odd[path].data) for path in plain if path.endswith(".sh"))
