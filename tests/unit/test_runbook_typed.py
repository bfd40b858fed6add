"""The runbook as a person types it: what newcomers ran into, each run or read for every profile that it touches."""

import os
import re
import subprocess

import pytest
from conftest import FIXTURES, ROOT
from generator import render
from generator.diagnostics import Report
from generator.inputs import inputs
from runbook_pages import RENTED, SHELLS, SSH, blocks, bound, every, outside_fences, section, text, with_jobs


def remote(page: str) -> list[str]:
    """Every line of a block that types a command on the box."""
    return [line for body in blocks(page, "bash") + blocks(page, "bash verify") for line in body.splitlines()
            if re.match(r'(ssh|kubectl exec) .*(\$\{DATA_DIR|\$\{DURABLE|\./|\$RUN)', line)]


@every
def test_run_and_folders_travel_to_the_box(profile):  # F26 case 131: another commit is another RUN, on both sides
    page, b = text(profile), bound(profile)
    if b["KIND"].value not in ("owned", "notebook"):
        lines = remote(page)
        assert len(lines) >= 5
        assert all('"export RUN=${RUN:-demo} ${BOX_ENV-};' in line for line in lines), lines
        assert 'export BOX_ENV="' in section(page, "Your values")
    for body in blocks(page, "bash") + blocks(page, "bash verify"):
        # No path of the run stands without the name and the folder that a person may have set.
        assert f"{b['DATA_DIR'].value}/demo" not in body and not re.search(r"/demo(?![\w}])", body), body
    assert "${RUN:-demo}" in blocks(page, "bash verify")[-1] and "RUN=demo.2` in [Your values]" in section(page, "Failure handling")
    assert "not carried over" in page and "--only CELL" in page and "--except CELL=WHY" in page
    assert not re.search(r"[^\n]\n## ", page) and not re.search(r"\n\n\n", page)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_values_reach_the_box_whole(shell, tmp_path):  # S49: folders with blanks and marks, set and not set
    page = text("runpod")
    line = next(one for one in remote(page) if "smoke.json" in one)
    line = re.sub(r"'grep.*", "'printf \"%s|\" \"$RUN\" \"${DATA_DIR-unset}\" \"${DURABLE_DIR-unset}\"'", line)
    fake = 'ssh() { shift 2; env -i PATH="$PATH" sh -c "$*"; }'
    for before, said in (("", "demo|unset|unset|"), ("export DATA_DIR='/my data' DURABLE_DIR=''", "demo|/my data||"),
                         ("export DURABLE_DIR='/k;eep'", "demo|unset|/k;eep|")):
        got = subprocess.run([shell, "-c", f"{before}\n{blocks(page, 'bash')[0]}\n{fake}\n{line}"], capture_output=True, text=True)
        assert got.stdout == said, got


@every
def test_no_comment_in_a_block(profile):  # an interactive zsh takes # for a command's word
    page = text(profile, "sweep")
    for body in blocks(page, "bash") + blocks(page, "bash verify"):
        body = re.sub(r"<<'JOB'\n.*?^JOB$", "", body, flags=re.M | re.S)
        assert not re.search(r"(^|\s)#", body, re.M), body


@every
def test_bash_stands_in_front(profile):  # an upload may have no x bit
    page = text(profile)
    if bound(profile)["KIND"].value != "owned":
        assert not re.findall(r"(?<!bash )\./\w+\.sh", page)


def patrol_loop(profile: str) -> str:
    return next(body for body in blocks(text(profile), "bash") if "patrol.log" in body)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "code,said,word",
    [(0, "t runpod.demo: done; done 4/4 running 0", "DONE: aggregate, pull, teardown now; it costs 0.79 an hour"),
     (1, "t runpod.demo: failed; done 3/4", "LOOK: patrol.sh ended with 1"), (77, "refused", "LOOK: patrol.sh ended with 77")])
def test_the_patrol_loop_ends_and_says_so(shell, code, said, word, tmp_path):  # S70 S73: not all weekend at the meter
    (tmp_path / "local").mkdir()
    script = tmp_path / "local/patrol.sh"
    # First healthy, then not known, then the end.
    script.write_text(f"""#!/usr/bin/env bash
echo x >>count
case $(wc -l <count | tr -d " ") in 1) echo "t runpod.demo: healthy; done 1/4" ;; 2) echo "no answer"; exit 69 ;; *) echo "{said}"; exit {code} ;; esac
""", encoding="utf-8")
    script.chmod(0o755)
    got = subprocess.run([shell, "-c", f"sleep() {{ :; }}; export HOST=h PRICE_PER_HOUR=0.79\n{patrol_loop('runpod')}\nwait"], cwd=tmp_path,
                         capture_output=True, text=True, timeout=30)
    assert word in got.stdout and (tmp_path / "count").read_text().count("x") == 3
    assert (tmp_path / "patrol.log").read_text().count("\n") == 3


def test_the_alias_is_a_file_that_is_overwritten(tmp_path):  # S16 S39 U28
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host other\n  User me\n", encoding="utf-8")
    block = next(body for body in blocks(text("runpod"), "bash") if "ServerAliveInterval" in body)
    for address, port in (("10.0.0.1", "22"), ("10.0.0.2", "41022")):
        subprocess.run(["bash", "-c", f"set -e; export HOME={tmp_path} HOST=gpu-x ADDRESS={address} PORT={port}\n{block}"], check=True)
    assert (tmp_path / ".ssh/config").read_text() == "Include config.d/*\n\nHost other\n  User me\n"
    alias = (tmp_path / ".ssh/config.d/gpu-x").read_text()
    assert "10.0.0.2" in alias and "41022" in alias and "10.0.0.1" not in alias
    assert "[P-1.10]" in section(text("runpod"), "Phase 1: connection and credentials")


@pytest.mark.parametrize("profile", SSH)
def test_the_user_there_is_not_guessed(profile, tmp_path):  # S8 S16: who logs in at a site has another name there than here
    page, user = text(profile), bound(profile)["SSH_USER"].value
    values = section(page, "Your values")
    assert ("`LOGIN`" in values) == ('LOGIN="$USER"' in values) == (not user)
    block = next(body for body in blocks(page, "bash") if "ServerAliveInterval" in body)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "USER": "me", "HOST": "h", "ADDRESS": "a", "LOGIN": "me42"}
    subprocess.run(["bash", "-c", block], env=env, check=True)
    assert f"  User {user or 'me42'}\n" in (tmp_path / ".ssh/config.d/h").read_text()


@with_jobs
def test_slurm_is_one_job_on_one_node(job):  # case 131: a run belongs to one box
    part = section(text("slurm", job), "Phase 3: detached launch")
    block = blocks(part, "bash")[0]
    assert block.startswith('ssh "${HOST:?}" ')  # the job file comes through its input
    needs = bound("slurm", job).job["needs"]
    b = bound("slurm", job)
    # B: or the batch shell hears nothing (T6); a minute more than a cell has to save; append, or a requeue empties the log; time with slack.
    for flag in ("--nodes=1", "--ntasks=1", "--dependency=singleton", f"--mem={-(-needs['ram_gb'] * 1000 // 1):.0f}M", "--requeue", "--parsable",
                 "--open-mode=append", f"--signal=B:TERM@{b['GRACE_S'].value + 60}", f"--time={int(b.budget['minutes'] * 1.2) + 15}"):
        assert f" {flag} " in block, flag
    # The number that the teardown asks for: said where it is first known, and not an empty word before that (S99).
    assert "Write the job's number into `INSTANCE` and give `local/push.sh \"${HOST:?}\"` once more: it records the number, and the teardown asks for it." in part
    assert "export INSTANCE=none-yet " in section(text("slurm"), "Your values")
    assert (f"--gpus={needs['gpus']} " in block) == bool(needs["gpus"]) and "--array" not in part
    output = re.search(r"--output=([^' ]+)", block)[1]
    assert output.endswith("/logs/slurm-%j.out") and "/box" not in output
    assert "run_queue.sh --adopt" in block and "*Missing here:* a run over several nodes" in part and "--cpus-per-task" in part
    assert "`TERM`" in section(text("slurm"), "Phase 4: monitoring") and "none-yet" in section(text("slurm"), "Your values")


def test_minutes_may_be_a_fraction(tmp_path):  # a cell of 24 s is not planned as one of a minute, and sbatch takes whole minutes only
    job = tmp_path / "short.yaml"
    job.write_text(re.sub(r"minutes: [0-9.]+", "minutes: 0.4", (ROOT / "jobs/demo.yaml").read_text()))
    page = text("slurm", str(job))
    assert "4 × 0.4 min = 0.03 h" in page and re.search(r" --time=16 ", page)


def test_the_batch_script_checkpoints_and_aggregates(tmp_path):  # S55 T6: TERM before the limit reaches the queue
    block = blocks(section(text("slurm"), "Phase 3: detached launch"), "bash")[0]
    (tmp_path / "job").write_text(re.search(r"<<'JOB'\n(.*)^JOB$", block, re.M | re.S)[1], encoding="utf-8")
    (tmp_path / "aggregate_to_fs.sh").write_text("echo aggregated >>said\n")
    script = "bash job & n=$!; for i in $(seq 1200); do [[ -e up ]] && break; sleep 0.05; done; kill -TERM $n; wait $n"
    (tmp_path / "run_queue.sh").write_text("trap 'echo saved >>said; kill $s; exit 143' TERM\necho \"$1\" >>said\nsleep 110 & s=$!\n: >up\nwait $s\n")
    subprocess.run(["bash", "-c", script], cwd=tmp_path, timeout=120)
    assert (tmp_path / "said").read_text().split() == ["--adopt", "saved", "aggregated"]


def test_a_warning_is_handed_on_from_the_first_moment(tmp_path):  # T6: TERM may come before the shell has noted the queue's number
    block = blocks(section(text("slurm"), "Phase 3: detached launch"), "bash")[0]
    (tmp_path / "job").write_text(re.search(r"<<'JOB'\n(.*)^JOB$", block, re.M | re.S)[1], encoding="utf-8")
    (tmp_path / "aggregate_to_fs.sh").write_text("echo aggregated >>said\n")
    (tmp_path / "run_queue.sh").write_text("trap 'echo saved >>said; exit 143' TERM\nkill -TERM $PPID\nfor i in $(seq 100); do sleep 0.1; done\necho lost >>said\n")
    for _ in range(12):
        subprocess.run(["bash", "job"], cwd=tmp_path, timeout=120, stderr=subprocess.DEVNULL)
    assert (tmp_path / "said").read_text().split() == ["saved", "aggregated"] * 12


@pytest.mark.parametrize("profile,seconds", [("kaggle", 28800), ("colab", 39600)])
def test_a_notebook_ends_before_its_cap_and_keeps_its_output(profile, seconds):  # S11 S69
    part = section(text(profile), "Phase 3: detached launch")
    assert f"stop it {seconds / 3600:.1f} h after the session began" in part and "It never ends in an error" in part
    assert "cat notebook/install_cell.py notebook/run_cell.py" in blocks(part, "bash")[0]
    b = bound(profile)
    session = render._render_one(b, "box/session.sh", "box/session.sh.j2")
    assert f"readonly SESSION_S={seconds}\n" in session and re.search(r'"\$SELF_DIR/run_queue.sh" --adopt', session) and "aggregate_to_fs.sh" in session
    assert "sessions; each next one" not in part


@pytest.mark.parametrize("profile", ["kaggle", "colab"])
@pytest.mark.parametrize("shell", SHELLS)
def test_one_file_for_both_cells_carries_the_values(profile, shell, tmp_path):  # F26 case 131: its machine knows no RUN of this shell
    (tmp_path / "notebook").mkdir()
    for name in ("install_cell", "run_cell"):
        (tmp_path / f"notebook/{name}.py").write_text("import os\nprint([os.environ.get(one) for one in ('RUN', 'DATA_DIR', 'DURABLE_DIR')])\n")
    block = blocks(section(text(profile), "Phase 3: detached launch"), "bash")[0]
    plain = {"PATH": os.environ["PATH"]}
    for values in ({"RUN": "demo.2"}, {"RUN": "demo.2", "DATA_DIR": "/a b'c\"", "DURABLE_DIR": ""}):
        subprocess.run([shell, "-c", block], cwd=tmp_path, env={**plain, **values}, check=True)
        said = subprocess.run(["python3", "run.py"], cwd=tmp_path, env=plain, capture_output=True, text=True).stdout.splitlines()
        assert said == [str([values.get(one) for one in ("RUN", "DATA_DIR", "DURABLE_DIR")])] * 2


def test_a_job_longer_than_a_session_is_said(tmp_path):  # 6 cells of 5 h at a cap of 9 h
    job = tmp_path / "long.yaml"
    words = re.sub(r"wall_s: \d+", "wall_s: 0", (FIXTURES / "sweep.yaml").read_text(encoding="utf-8"))
    job.write_text(re.sub(r"minutes: \d+", "minutes: 300", words), encoding="utf-8")
    part = section(render._render_one(inputs("kaggle", str(job), (), Report()), "RUNBOOK.md", "runbook/RUNBOOK.md.j2"), "Phase 3: detached launch")
    assert "**These cells need 20 h and one session has 8.0 h**: plan for 3 sessions" in part


@pytest.mark.parametrize("profile", RENTED)
def test_adopt_is_told_where_it_is_needed(profile):  # F23 case 131: the old box is gone for good
    page = text(profile)
    typed = bound(profile)["KIND"].value in ("ssh-rental", "cloud-vm")
    back = bound(profile).durable is None and typed
    word = "what was pulled goes back" if back else "--adopt" if typed else "P3.2 once more"
    assert "--adopt" in section(page, "Failure handling") and word in section(page, "Phase 4: monitoring")
    assert ("P5.1 and P5.3, typed while it runs" in section(page, "Phase 4: monitoring")) == back == bool(blocks(section(page, "Failure handling"), "bash"))
    if bound(profile)["KIND"].value in ("ssh-rental", "cloud-vm"):
        assert "formal_run.sh start --adopt" in (lost := section(page, "Failure handling")) and "ake the new one and its alias (P-1.9, P-1.10, verify P-1), push to it (`--new-host-key`)" in lost and "P2.6" in lost  # F23: its smoke is gone too
        # One place tells how: on a pull-only box it is not this word alone.
        launch = section(page, "Phase 3: detached launch")
        assert "on another one see [Failure handling](#failure-handling)." in launch and "--adopt" not in launch


@every
def test_the_logs_can_be_fetched(profile):
    part = section(text(profile), "Phase 5: aggregate, pull, verify, teardown")
    came = "from_home" in bound(profile).profile["daemon"]
    assert ("are no part of the results; they came along" if came else "are no part of the results and stay on the box") in part
    assert any("logs.tgz" in body and "tar -czf" in body for body in blocks(part, "bash"))
    assert part.index("logs.tgz") < part.index("**P5.8**")


def test_the_launch_is_verified_by_its_process_and_what_a_cell_prints(tmp_path):  # S66 S67: a record alone, of a dead process or another box, shows nothing
    block = blocks(section(text("local"), "Phase 3: detached launch"), "bash verify")[0]
    run, status = tmp_path / "demo", tmp_path / "box/formal_run.sh"
    (run / "logs/a").mkdir(parents=True)
    status.parent.mkdir()
    status.write_text('#!/bin/bash\necho "running: as recorded"\n')
    status.chmod(0o755)
    (run / "formal.json").write_text('{\n  "state": "running",\n')
    (run / "formal.log").write_text("step queue\n")

    def typed():
        return subprocess.run(["bash", "-c", block], cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DATA_DIR": str(tmp_path)}, capture_output=True, text=True)
    # The first cell has not printed yet: that is no failure, but shows nothing.
    assert typed().returncode == 0 and typed().stdout == "running: as recorded\nstep queue\n"
    (run / "logs/a/attempt-001.log").write_text("gpu-runbook: cell a attempt 1\nepoch 1/12 loss 0.5\n")
    assert typed().stdout.endswith("step queue\nepoch 1/12 loss 0.5\n")
    status.write_text("#!/bin/bash\necho unknown: it was running on another box\nexit 69\n")
    assert typed().returncode == 69 and "epoch" not in typed().stdout


@pytest.mark.parametrize("profile,tool", [("slurm", "ssh"), ("kubernetes", "kubectl"), ("kaggle", "kaggle")])
def test_a_scheduler_that_shows_no_job_is_no_launch(profile, tool, tmp_path):  # S66: squeue and kubectl end with 0 where there is nothing
    for said, code, expected in (("4711 RUNNING", 0, 0), ("", 0, 1), ("", 255, 255)):
        (tmp_path / tool).write_text(f"#!/bin/bash\n[[ \"$*\" != *attempt-* ]] || exit 0\n{'echo ' + said if said else ':'}\nexit {code}\n")
        (tmp_path / tool).chmod(0o755)
        block = blocks(section(text(profile), "Phase 3: detached launch"), "bash verify")[0]
        done = subprocess.run(["bash", "-c", block], env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOST": "h", "INSTANCE": "1"}, capture_output=True, text=True)
        assert done.returncode == expected and done.stdout.strip() == said, (profile, said, code)


@every
def test_another_interpreter_for_the_smoke_is_named(profile):  # S54: the machine's python3 seldom has the job's packages
    part = section(text(profile), "Phase 2: queue and smoke")
    assert "`PY=/full/path local/smoke.sh`" in part.split("**P2.1**")[1].split("**P2.2**")[0]


def test_git_is_announced_and_the_line_ends_are_committed(tmp_path):  # S21 U26: else the launch gate refuses later
    page = text("runpod")
    assert "an `origin` that you may push to" in section(page, "Your values")
    block = next(body for body in blocks(page, "bash") if ".gitattributes" in body)
    subprocess.run(["bash", "-c", f"""set -e; export HOME={tmp_path} GIT_CONFIG_NOSYSTEM=1
git config --global user.name a; git config --global user.email a@b.c; git config --global init.defaultBranch main
git init -q --bare origin; git init -q code; cd code; echo x >train.py; git add .; git commit -qm one; git remote add origin ../origin
export CODE_DIR={tmp_path}/code
{block}
{block}
test -z "$(git status --porcelain)"; test "$(git rev-parse HEAD)" = "$(git -C ../origin rev-parse main)"; test "$(git rev-list --count HEAD)" = 2
grep -qx '[*].sh text eol=lf' .gitattributes"""], check=True, cwd=tmp_path, capture_output=True)


def test_an_own_machine_is_not_rented():
    page = text("local", "sweep")
    assert "no push, patrol and pull scripts" not in page and "was rented" not in page and "*before* renting" not in page


def test_power_off_and_the_iron_law():
    assert "> `--power-off` (P3.2) is no exception: it does not delete, the disks stay for 15 days" in text("autodl")
    assert "is no exception" not in text("runpod") or bound("runpod")["POWER_OFF_COMMAND"].value


def test_the_parts_are_short():
    for path in (ROOT / "templates/runbook").glob("*.j2"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 400


@every
def test_names_in_paths_are_asked_for_and_go_to_the_box(profile):  # S8 S23: /nfs/$NAME is known to the person alone
    page = section(text(profile), "Your values")
    names = {name for tier in bound(profile).tiers for name in re.findall(r"\$(\w+)", tier["path"])} - {"HOME", "USER"}
    assert set(re.findall(r"^export (\w+_NAME)=", page, re.M)) == names
    for name in names:
        assert f"`{name}`" in page and f'BOX_ENV="{name}=\\"${{{name}:?}}\\" ' in page
    assert names or profile != "lambda"


def test_kubernetes_brings_things_there_and_home_by_its_own_verbs(tmp_path):  # S38: typed as they stand, kubectl runs its command here
    page = text("kubernetes")
    there = next(body for body in blocks(page, "bash") if "by-hand" in body)
    home = next(body for body in blocks(page, "bash") if "tar -xof - -C \"${LOCAL_DIR" in body)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/kubectl"
    stub.write_text('#!/bin/bash\n[[ $1 == exec ]] || exit 9\nuntil [[ $1 == -- ]]; do [[ $1 == -i ]] && input=yes; shift; done\nshift\n'
                    '[[ -n ${input-} ]] || exec </dev/null\nexec "$@"\n')
    stub.chmod(0o755)
    (tmp_path / "out/box").mkdir(parents=True)
    (tmp_path / "out/box/run_one.sh").write_text("echo\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-C", str(tmp_path / "code")]
    subprocess.run(["git", "init", "-q", "-b", "main", str(tmp_path / "code")], check=True)
    (tmp_path / "code/train.py").write_text("pass\n")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "start"], check=True)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "INSTANCE": "job-1", "CODE_DIR": str(tmp_path / "code"), "RUN": "r1",
           "LOCAL_DIR": str(tmp_path / "laptop"), "BOX_ENV": f'DATA_DIR="{tmp_path}/claim" DURABLE_DIR="{tmp_path}/claim"'}
    subprocess.run(["bash", "-euo", "pipefail", "-c", there], check=True, cwd=tmp_path / "out", env=env, stdin=subprocess.DEVNULL)
    run = tmp_path / "claim/r1"
    assert (run / "box/current/run_one.sh").is_file() and (run / "code/train.py").is_file()
    names = ["run.json", "events.tsv", "queue.tsv", "SHA256SUMS", "PULL_MANIFEST.json", "final_ckpts/a/best.pth", "records/a.json", "smoke.json"]
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    subprocess.run(["bash", "-euo", "pipefail", "-c", home], check=True, cwd=tmp_path / "out", env=env, stdin=subprocess.DEVNULL)
    got = {str(path.relative_to(tmp_path / "laptop/kubernetes.r1")) for path in (tmp_path / "laptop/kubernetes.r1").rglob("*") if path.is_file()}
    # The box's own smoke record is another one than the laptop's, which lies there.
    assert got == set(names) - {"smoke.json"}


def code_spans(page: str) -> str:
    """The prose with its code spans taken out: what a renderer, and a reader of the plain file, sees as words."""
    return re.sub(r"<code>.*?</code>|(`+)(?!`).+?(?<!`)\1(?!`)", "", outside_fences(page))


@every
def test_what_is_typed_stands_as_it_is_typed(profile):  # S1 S8: Markdown's backslash in front of ~ [ * makes another command of it, read in less
    for line in code_spans(text(profile, "sweep")).splitlines():
        assert not re.search(r"\\[~*\[\]]", line), line


def steps_of(profile: str):
    """Each list of steps that a person does by hand, with where it stands, as texts of this variant."""
    p = bound(profile).profile
    for way in p["launch"]["ways"]:
        yield way["way"], [*way.get("steps", []), way.get("note", "")]
    for action in p["teardown"]["actions"]:
        yield action["verb"], [*action.get("steps", []), *action["confirm_gone"].get("steps", [])]
    yield "image", [p["launch"]["image"].get("how", "")]
    yield "address", [p["network"].get("address", {}).get("read_again", "")]
    yield "transfer", p["network"].get("transfer", {}).get("steps", [])
    yield "detection", [p["interruption"]["detection"]]
    yield "detach", [p["daemon"]["install"]]
    for one in p["launch"]["surface"]["conveniences"]:
        yield "convenience", [one]


WORD = re.compile(r"(?<![\w$'.-])[A-Z]{2}[A-Z_]*\b(?![\w.'-])")
HOLES = re.compile(r"\b(?:NAME|ID|POD|JOB|JOBID|CLAIM|DISK|VOLUME|SNAPSHOT|MACHINE|REQUEST|ALLOCATION|GROUP|OFFER|FS|OWNER/SLUG)\b(?: is)?")
# Values that a tool wants just so, and columns.
NO_CHOICE = {"FSTYPE", "TERMINATE", "STOP", "SPOT", "SECURE", "NVIDIA", "RTX", "HOME", "INSTANCE", "HOST", "USER"}


@every
def test_a_word_of_choice_says_what_to_put_there(profile):  # S8: NAME and DC in a command are holes, if nobody says what goes in
    for where, texts in steps_of(profile):
        whole = " ".join(" ".join(texts).split())
        spans = re.findall(r"`([^`]+)`", whole)
        for word in {word for span in spans for word in WORD.findall(span.replace("NAME,SIZE,MODEL", ""))} - NO_CHOICE:
            assert re.search(rf"\b{word} is ", re.sub(r"`[^`]*`", "", whole)), (where, word, whole)
        # Outside of code marks such a word only says what it is.
        for word in HOLES.findall(re.sub(r"`[^`]*`", "", whole)):
            assert word.endswith(" is"), (where, word, whole)
