"""Hold the profiles' commands against the platforms' own tools, by `--help` alone: no account, no request.

`platform_tools.py --pins` prints the packages of each tool; `platform_tools.py --check FOLDER` expects FOLDER/<tool>/bin/<tool> and
prints a table; exit 1 where a command or an option is not known there. tools/check_platform_tools.sh installs and calls this.
A word list is right where the help of its sub-command exists, names that sub-command in its usage, and names each option.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
# tool -> (packages, sub-commands and options that the profiles' sentences speak of; word lists are read from the profiles)
PINS = {
    "vastai": (["vastai==1.9.1"], ["create ssh-key", "create instance --image --disk --ssh --direct", "search offers -o", "show instance --raw", "show volumes",
               "delete volume", "ssh-url", "change bid --price", "cloud copy", "execute"]),
    "jl": (["jarvislabs==0.2.19"], ["create --gpu --storage --fs-id --yes --json", "get --json", "resume --spot --yes --json", "status --json", "run --gpu --json --keep",
           "ssh-key add --name", "filesystem create --name --storage --yes --json", "filesystem list --json", "filesystem remove --yes"]),
    "kaggle": (["kaggle==2.2.5", "six"], ["quota", "kernels push -p -t --accelerator", "kernels status", "kernels logs -f", "kernels output -p -o", "kernels delete",
               "kernels list --mine"]),
    "lightning": (["lightning-sdk==2026.10.13"], ["studio create --name --teamspace", "studio start --name --teamspace --machine", "studio list", "ssh configure --name"]),
}


def commands() -> list[tuple[str, list[str]]]:
    """(where it is from, words) of every word list in the profiles whose tool is in PINS, then of the sentences."""
    found = []

    def walk(name, value):
        if isinstance(value, dict):
            for key, one in value.items():
                if key == "command" and isinstance(one, list) and one[0] in PINS:
                    found.append((name, one))
                walk(name, one)
        elif isinstance(value, list):
            for one in value:
                walk(name, one)

    for path in sorted((ROOT / "profiles").glob("*.yaml")):
        walk(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")))
    return found + [("sentence", [tool, *text.split()]) for tool, (_, texts) in PINS.items() for text in texts]


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """The sub-command's words, and the options."""
    sub = []
    for word in words[1:]:
        if word.startswith("-") or "{instance}" in word:
            break
        sub.append(word)
    return sub, [word.split("=")[0] for word in words[1:] if word.startswith("-")]


def ask(folder: Path, tool: str, sub: list[str], home: str) -> tuple[int, str]:
    """Exit code and text of the sub-command's help, with a home of its own and nothing else of the environment."""
    tool_bin = folder / tool / "bin"
    env = {"PATH": f"{tool_bin}:/usr/bin:/bin", "HOME": home, "COLUMNS": "400", "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "TERM": "dumb",
           "KAGGLE_USERNAME": "nobody", "KAGGLE_KEY": "none"}
    try:
        done = subprocess.run([tool_bin / tool, *sub, "--help"], env=env, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def judge(sub: list[str], options: list[str], code: int, text: str) -> str:
    """Empty where the words are right, else what is wrong with them."""
    if code != 0:
        return f"its help ends with {code}"
    usage = re.search(r"usage:(.*?)(?:\n\s*\n|\Z)", text, re.I | re.S)
    if not usage or not re.search(r"\b" + r"\s+".join(map(re.escape, sub)) + r"(?![\w-])", usage[1]):
        return "its usage does not name the sub-command"
    missing = [each for each in options if not re.search(r"(?<![\w-])" + re.escape(each) + r"(?![\w-])", text)]
    return "no option " + " ".join(missing) if missing else ""


def check(folder: Path) -> int:
    """Print the table; 1 where something is wrong, or where a made-up sub-command passes as well."""
    bad = 0
    with tempfile.TemporaryDirectory() as home:
        helps: dict[tuple, tuple[int, str]] = {}
        made_up = [("made up: has to be refused", [tool, "no-such-command"]) for tool in PINS]
        print("| from | tool | words | verdict |\n|---|---|---|---|")
        for name, words in [*made_up, *commands()]:
            sub, options = split(words)
            key = (words[0], *sub)
            if key not in helps:
                helps[key] = ask(folder, words[0], sub, home)
            wrong = judge(sub, options, *helps[key])
            if name.startswith("made up"):
                wrong = "" if wrong and helps[key][0] != 127 else "it passes, or the tool does not start: this check is worth nothing"
            bad += bool(wrong)
            print(f"| {name} | {PINS[words[0]][0][0]} | `{' '.join(words)}` | {wrong or 'ok'} |", flush=True)
    return 1 if bad else 0


def main(arguments: list[str]) -> int:
    if arguments == ["--pins"]:
        for tool, (packages, _) in PINS.items():
            print(tool, *packages)
        return 0
    if len(arguments) == 2 and arguments[0] == "--check":
        return check(Path(arguments[1]).resolve())
    print("usage: platform_tools.py --pins | --check FOLDER", file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
