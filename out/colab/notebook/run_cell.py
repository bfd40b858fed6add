#!/usr/bin/env python3
# run_cell.py: the second cell: one session of the run; paste it behind install_cell.py, or run it as a file.
# Generated; do not edit. Source: templates/notebook/run_cell.py.j2
# To change it, edit the source or profiles/colab.yaml, then: make profile=colab
# It shows what session.sh writes to session.log in the run's folder. Without this process (a kernel that restarts) the session
# goes on; a stop of the cell is passed on, so that the checkpoints are saved.
# --- bound values: profiles/colab.yaml x jobs/demo.yaml ---
# the run's name; a new one begins anew
RUN = 'demo'
# tier content: survives ssh drop, restart, not stop, destroy
DATA_DIR = '/content/runs'
# --- end of bound values ---
import fcntl
import os
import signal
import subprocess
import sys
import time

USAGE = """usage: run_cell.py [WORDS FOR session.sh...]    or pasted, all of it, into a cell behind install_cell.py

Runs session.sh of the run that is installed here (its --help tells what that does), with its output in session.log, shows that
output as it comes, and says how it ended. DATA_DIR and RUN from the environment.

exit codes: those of session.sh; 69 it is not there, 74 session.log cannot be written, 75 another session is
at work: it is shown until it ends. In a cell only printed."""


def locked(log):
    """Take the lock that goes with the log; False while a session has it: it is inherited, and lasts as long as that does."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # no locks on this disk
    return True


def follow(ended, log):
    """Show what comes until it has ended and all of it is shown."""
    over = False
    while True:
        text = log.read()
        if text:
            sys.stdout.write(text.decode("utf-8", "replace"))
            sys.stdout.flush()
        elif over:
            return
        else:
            over = ended()
            time.sleep(0 if over else 0.3)


def main(words):
    """Run session.sh with these words; its exit code."""
    folder = os.path.join(os.environ.get("DATA_DIR", DATA_DIR), os.environ.get("RUN", RUN))
    folder = os.path.expanduser(os.path.expandvars(folder))
    script, name = os.path.join(folder, "box", "current", "session.sh"), os.path.join(folder, "session.log")
    if not os.path.isfile(script):
        print("run_cell.py: refused: %s; it is not there; run install_cell.py in a cell before this one" % script, file=sys.stderr)
        return 69
    try:
        to, log = open(name, "ab"), open(name, "rb")
    except OSError as error:
        print("run_cell.py: refused: %s; it cannot be written (%s); make room, or look at its rights" % (name, error.strerror), file=sys.stderr)
        return 74
    with to, log:
        log.seek(0, os.SEEK_END)
        if not locked(to):
            print("run_cell.py: a session of this run is at work already; this is what it says:", flush=True)
            follow(lambda: locked(to), log)
            print("run_cell.py: that session has ended; its last line tells how")
            return 75
        child = subprocess.Popen(["bash", script] + words, stdin=subprocess.DEVNULL, stdout=to, stderr=to, start_new_session=True)
        while True:
            try:
                follow(lambda: child.poll() is not None, log)
                print("run_cell.py: session.sh ended with %d" % child.returncode)
                return child.returncode
            except KeyboardInterrupt:
                print("run_cell.py: stopping: the checkpoints are saved first")
                child.send_signal(signal.SIGTERM)


AS_FILE = os.path.basename(sys.argv[0]) == "run_cell.py"
if AS_FILE and sys.argv[1:2] in (["-h"], ["--help"]):
    print(USAGE)
    raise SystemExit(0)
if AS_FILE and sys.argv[1:] and sys.argv[1] not in ("--prepare", "--from", "--save-to", "--seconds", "--"):
    print(USAGE, file=sys.stderr)
    raise SystemExit(64)
# In a notebook a cell that fails ends the session, and that may cost its output: there the code is only printed.
CODE = main(sys.argv[1:] if AS_FILE else [])
if AS_FILE:
    raise SystemExit(CODE)
