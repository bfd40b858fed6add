"""Compiled templates, kept from one run to the next."""

from __future__ import annotations

import hashlib
from pathlib import Path


def kept():
    """Where compiled templates are kept: under build/, by the digest of what they depend on beside their own text.

    Nothing needs it: where it cannot be written, or what lies there is cut, templates are compiled again.
    """
    import jinja2

    class Kept(jinja2.FileSystemBytecodeCache):
        def dump_bytecode(self, bucket):
            try:
                super().dump_bytecode(bucket)
            except OSError:
                pass

    here = Path(__file__).resolve().parent
    version = hashlib.sha256(b"".join((here / name).read_bytes() for name in ("quote.py", "render.py")) + jinja2.__version__.encode())
    folder = here.parent / "build" / "templates" / version.hexdigest()[:12]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Kept(str(folder))
    except OSError:
        return None
