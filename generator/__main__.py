"""Entry point: `python -m generator`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from .cli import run

    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # Nobody reads what is left, which `run` has said: it goes nowhere, or the interpreter would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


if __name__ == "__main__":
    main()
