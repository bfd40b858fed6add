"""Hold the profiles' commands against the platforms' own tools, by `--help` alone: no account, no request.

`platform_tools.py --pins` prints the packages of each tool; `platform_tools.py --check FOLDER` expects FOLDER/<tool>/bin/<tool> and
prints a table; exit 1 where a command or an option is not known there. tools/check_platform_tools.sh installs and calls this.
A word list is right where the help of its sub-command exists, names that sub-command in its usage, and names each option.
A tool that no registry has is asked where this machine has it; where not, its rows say so and fail nothing.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
# tool -> (packages, sub-commands and options that the profiles' sentences speak of; word lists are read from the profiles)
PINS = {
    "vastai": (["vastai==1.9.1"], ["create ssh-key", "create instance --image --disk --ssh --direct --onstart-cmd", "search offers -o", "show instance --raw", "show volumes --raw",
               "delete volume", "ssh-url", "change bid --price", "cloud copy", "execute"]),
    "jl": (["jarvislabs==0.2.19"], ["create --gpu --storage --fs-id --yes --json", "get --json", "resume --spot --yes --json", "status --json", "run --gpu --json --keep",
           "ssh-key add --name", "filesystem create --name --storage --yes --json", "filesystem list --json", "filesystem remove --yes"]),
    "kaggle": (["kaggle==2.2.5", "six"], ["quota", "kernels init -p", "kernels push -p -t --accelerator",
               "kernels status", "kernels logs -f", "kernels output -p -o", "kernels delete",
               "datasets init -p", "datasets create -p", "datasets version -p -m", "kernels list --mine --page-size --page-token"]),
    "aws": (["awscli==1.46.3"], ["ec2 run-instances --image-id --instance-type --key-name --security-group-ids --block-device-mappings --count --dry-run "
            "--instance-market-options", "ec2 describe-instances --instance-ids --query", "ec2 wait instance-stopped --instance-ids", "ec2 create-image",
            "ec2 describe-images --owners --filters --query --output", "ec2 describe-volumes",
            "ec2 cancel-spot-instance-requests --spot-instance-request-ids", "ec2 delete-volume --volume-id", "ec2 wait volume-deleted --volume-ids",
            "ec2 release-address --allocation-id", "ec2 describe-addresses"]),
    "az": (["azure-cli==2.91.0"], ["configure --defaults", "vm create -n --image --size --admin-username --generate-ssh-keys --os-disk-delete-option --nic-delete-option "
           "--public-ip-sku --priority --max-price --eviction-policy", "vm disk attach --vm-name --name --new --size-gb", "group create -n -l", "vm show -n --query", "image create", "vm simulate-eviction", "vm auto-shutdown", "vm start",
           "vm stop", "vm list-ip-addresses -n -o", "disk list -o", "disk delete -n", "group delete -n", "network public-ip list"]),
    # No registry has these: as this machine has them.
    "gcloud": ([], ["config set", "compute config-ssh", "compute ssh", "compute images create", "compute images list --project --no-standard-images", "compute disks create --size",
                    "compute instances attach-disk --disk --device-name", "compute instances set-disk-auto-delete --no-auto-delete --disk", "compute disks list", "compute disks delete",
                    "compute addresses list", "compute instances describe --format", "compute instances create --machine-type --maintenance-policy --image-family "
                    "--image-project --boot-disk-size --metadata --max-run-duration --instance-termination-action --provisioning-model"]),
    "kubectl": ([], ["create -f --dry-run", "get -o -l", "cp", "exec", "port-forward", "patch -p", "config current-context", "config set-context --current --namespace", "describe", "apply -f"]),
    "squeue": ([], ["--me -h -j 1", "-r -j 1"]),
    "scancel": ([], []),
    "sacct": ([], ["-j 1 -X -n -P -o State,ExitCode"]),
    "sbatch": ([], ["--test-only --parsable --job-name=x --dependency=singleton --nodes=1 --ntasks=1 --gres=gpu:1 --mem=1M --time=60 --requeue "
                    "--open-mode=append --signal=B:TERM@90 --output=x-%j.out", "--cpus-per-task=2"]),
}


def commands() -> list[tuple[str, list[str]]]:
    """(where it is from, words) of every word list in the profiles whose tool is in PINS, then of the sentences."""
    found = []

    def walk(name, value):
        if isinstance(value, dict):
            for key, one in value.items():
                if key == "command" and isinstance(one, list):
                    typed = [word for word in one if word != "env" and not re.match(r"[A-Z_]+=", word)]
                    if typed[0] in PINS:
                        found.append((name, typed))
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
    if words[0] in SLURM:
        return [word.replace("{instance}", "1") for word in words[1:]], []
    if words[0] == "kubectl" and sub[:1] != ["config"]:
        sub = sub[:1]  # what follows is a kind of object, which the cluster knows
    return sub, [word.split("=")[0] for word in words[1:] if word.startswith("-")]


# Slurm's help names few of its options, but its parser reads all words that stand before --help, values too.
SLURM = ("squeue", "scancel", "sacct", "sbatch")
# awscli's help is a manual page that wants a formatter; its tables of sub-commands and options are the parser's own.
AWS_HELP = """
import sys
from awscli.clidriver import create_clidriver
node = driver = create_clidriver()
for word in sys.argv[1:]:
    table = node._get_command_table() if hasattr(node, "_get_command_table") else getattr(node, "subcommand_table", {})
    if word not in table:
        sys.exit(2)
    node = table[word]
print("usage: aws", *sys.argv[1:])
print(*("--" + name for name in [*driver._get_argument_table(), *getattr(node, "arg_table", {})]))
"""


def ask(folder: Path, tool: str, sub: list[str], home: str) -> tuple[int, str]:
    """Exit code and text of the sub-command's help, with a home of its own and nothing else of the environment."""
    tool_bin = folder / tool / "bin"
    env = {"PATH": f"{tool_bin}:/usr/bin:/bin", "HOME": home, "COLUMNS": "400", "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "TERM": "dumb",
           "KAGGLE_USERNAME": "nobody", "KAGGLE_KEY": "none", "SLURM_CONF": f"{home}/slurm.conf", "AZURE_CORE_COLLECT_TELEMETRY": "no"}
    Path(home, "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\nAccountingStorageType=accounting_storage/slurmdbd\n", encoding="utf-8")
    words = [tool_bin / "python", "-c", AWS_HELP, *sub] if tool == "aws" else [tool_bin / tool if PINS[tool][0] else tool, *sub, "--help"]
    try:
        done = subprocess.run(words, env=env, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout + done.stderr)


def judge(tool: str, sub: list[str], options: list[str], code: int, text: str) -> str:
    """Empty where the words are right, else what is wrong with them."""
    if tool in SLURM:
        # sacct asks its database before it helps; by then it has read its words.
        wrong = re.search(r".*(?:unrecognized|nvalid|ambiguous|requires an argument).*", text)
        return wrong[0] if wrong else "" if code == 0 or "database" in text else f"its help ends with {code}"
    if code != 0:
        return f"its help ends with {code}"
    usage = re.search(r"^\s*(?:usage:|SYNOPSIS$|Command$)(.*?)(?:\n\s*\n|\Z)", text, re.I | re.S | re.M)
    if not usage or not re.search(r"\b" + r"\s+".join(map(re.escape, sub)) + r"(?![\w-])", usage[1]):
        return "its usage does not name the sub-command"
    missing = [each for each in options if not re.search(r"(?<![\w-])" + re.escape(each) + r"(?![\w-])", text)]
    return "no option " + " ".join(missing) if missing else ""


# A tool without sub-commands has to refuse an option.
MADE_UP = dict.fromkeys(SLURM, ["--no-such-option"])
VERSIONS = {"gcloud": ["--version"], "kubectl": ["version", "--client"]}


@functools.cache
def version(tool: str, home: str) -> str:
    """What was asked: the pinned package, or what the machine's own tool says of itself."""
    if PINS[tool][0]:
        return PINS[tool][0][0]
    try:
        done = subprocess.run([tool, *VERSIONS.get(tool, ["--version"])], env={"PATH": "/usr/bin:/bin", "HOME": home, "SLURM_CONF": f"{home}/slurm.conf"},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return tool
    return f"{tool}: {(done.stdout.splitlines() or ['it does not say'])[0]}"


def check(folder: Path) -> int:
    """Print the table; 1 where something is wrong, or where a made-up sub-command passes as well."""
    bad = 0
    with tempfile.TemporaryDirectory() as home:
        helps: dict[tuple, tuple[int, str]] = {}
        made_up = [("made up: has to be refused", [tool, *MADE_UP.get(tool, ["no-such-command"])]) for tool in PINS]
        print("| from | tool | words | verdict |\n|---|---|---|---|")
        for name, words in [*made_up, *commands()]:
            if not PINS[words[0]][0] and not shutil.which(words[0]):
                print(f"| {name} | {words[0]} | `{' '.join(words)}` | not looked at: this machine has no {words[0]} |", flush=True)
                continue
            sub, options = split(words)
            key = (words[0], *sub)
            if key not in helps:
                helps[key] = ask(folder, words[0], sub, home)
            wrong = judge(words[0], sub, options, *helps[key])
            if name.startswith("made up"):
                wrong = "" if wrong and helps[key][0] != 127 else "it passes, or the tool does not start: this check is worth nothing"
            bad += bool(wrong)
            print(f"| {name} | {version(words[0], home)} | `{' '.join(words)}` | {wrong or 'ok'} |", flush=True)
    return 1 if bad else 0


def main(arguments: list[str]) -> int:
    if arguments == ["--pins"]:
        for tool, (packages, _) in PINS.items():
            if packages:
                print(tool, *packages)
        return 0
    if len(arguments) == 2 and arguments[0] == "--check":
        return check(Path(arguments[1]).resolve())
    print("usage: platform_tools.py --pins | --check FOLDER", file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
