"""The cell to paste on a platform without ssh: one text that carries every script of box/ and puts them in place.

It is plain text, not an archive: the same bytes wherever it is compiled (what zlib, bz2 and xz write depends on their
versions), a difference that a reviewer can read, and nothing hidden from the person who pastes it. The scripts share most
of their libraries, so each paragraph (between two empty lines) stands once and a file is a list of their numbers.

The whole cell is one expression whose closing parenthesis comes last, so a paste that was cut off at any place is a syntax
error and runs nothing; each string's first line, which Python shows then, says what happened. A paste that was changed is
seen by the digest over all three strings, before the first of them runs. Line ends are none of its business: Python reads
a carriage return and a newline as one newline.
"""

from __future__ import annotations

import hashlib
import json
import re

from .bind import Bindings
from .render import TEMPLATES, Output, TemplateBug

CELL = "notebook/install_cell.py"
CUT = "# SyntaxError at this line? Then the paste was cut off: copy ALL of install_cell.py again, into an empty cell.\n"
LOADER = (
    ': exec(compile(code, "install_cell.py", "exec"), {"__name__": "install_cell", "INDEX": index[index.index("\\n"):], "TEXT": text[text.index("\\n") + 1:-1]})\n'
    'if __import__("hashlib").sha256("\\0".join((code, index, text)).encode()).hexdigest() == digest else (\n'
    'print("install_cell.py: refused: the cell; its text is not what was compiled: cut, changed or mangled on the way; "\n'
    '"copy ALL of install_cell.py again, as plain text, into an empty cell", file=__import__("sys").stderr, flush=True),\n'
    '(_ for _ in ()).throw(SystemExit(65))))())\n'
)


def install_cell(b: Bindings, files: dict[str, Output]) -> str:
    """The text to paste."""
    box = {path[4:]: output for path, output in sorted(files.items()) if path.startswith("box/")}
    text, index = pack(box)
    spec = {
        "profile": b.profile_doc.name,
        "run": b["RUN"].value,
        "data_dir": b["DATA_DIR"].value,
        "box_digest": box_digest(box),
        "files": index,
    }
    code = CUT + (TEMPLATES / "notebook/install.py").read_text(encoding="utf-8")
    shown = CUT + json.dumps(spec, indent=1) + "\n"
    parts = (code, shown, CUT + text + "\n")
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    written = [f"{name}='''{literal(part)}'''" for name, part in zip(("code", "index", "text"), parts)]
    return "((lambda " + ", ".join([*written, f'digest="{digest}"']) + LOADER


def pack(box: dict[str, Output]) -> tuple[str, list[dict]]:
    """Every paragraph once, joined by empty lines, and the list of files that are made of them."""
    numbers: dict[str, int] = {}
    index = []
    for name, output in box.items():
        text = output.data.decode()
        paragraphs = text[:-1].split("\n\n")
        for paragraph in paragraphs:
            numbers.setdefault(paragraph, len(numbers))
        index.append(
            {
                "name": name,
                "mode": "0700" if output.executable else "0600",
                "sha256": output.sha256,
                "paragraphs": " ".join(str(numbers[one]) for one in paragraphs),
            }
        )
    whole = "\n\n".join(numbers)
    if whole.split("\n\n") != list(numbers) or not all(output.data.endswith(b"\n") for output in box.values()):
        raise TemplateBug("a script in box/ ends without a newline, or in an empty line: it cannot be packed into a cell")
    return whole, index


def box_digest(box: dict[str, Output]) -> str:
    """As docs/contracts.md has it: of the lines that sha256sum prints, in the order of C."""
    lines = "".join(f"{box[name].sha256}  {name}\n" for name in sorted(box))
    return hashlib.sha256(lines.encode()).hexdigest()


def literal(text: str) -> str:
    """Text inside a Python string in triple quotes: printable ASCII and newlines, so that no paste can change it unseen."""
    text = re.sub(r"[^ -~\n]", lambda odd: odd[0].encode("unicode_escape").decode(), text.replace("\\", "\\\\"))
    return text.replace("'''", "''\\'")
