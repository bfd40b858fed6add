"""Bound values and templates -> files. The only place that knows Jinja.

What a template may call stands in docs/architecture.md. A Markdown template (`RUNBOOK.md.j2`) is handed these names:

    profile, job    the two files' data as loaded; facts keep `source`, `as_of`, `confidence`
    b               bound values by name, each with `.value`, `.why`, `.kind`: `{{ b.DATA_DIR.value | code }}`
    tiers           the tiers after --without; data_tier, durable_tier: the chosen ones (durable_tier None = pull-only)
    without         names of the tiers left out
    actions         teardown actions, each with `survives` and `lost` (tier names) besides the profile's fields and
                    `where` always set; meter_stop: the one that stops the meter
    clocks          the danger clocks in order (id, effect, source, as_of, after_s where known)
    cells           the first 50 cells, each (name, command); cell_count: how many there are
    budget          budget.budget(): `data` and `durable` (Need: tier, per_cell_bytes, cells, buffer_bytes, total_bytes,
                    total_files, cap_bytes, cap_files, fits), minutes, same_tier, buffer (0.1), files_per_cell
    scripts         {'box': [names], 'local': [names]}: what this kind gets
    has_ssh         true where the kind has the scripts that go over ssh
    title, make_command   the header's texts
    gb(bytes)       a number of bytes in GB with up to 2 decimals
    and the helpers of runbook.py: box, script, here, prose, cite, check, yes, rows, facts …

Every `{{ … }}` needs a filter of quote.py (q, comment, md, code, json, py, directive); plain integers may go without.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from . import cells as cells_module
from . import quote, runbook
from .bind import SSH_KINDS, Bindings, Bound, action_fields
from .load import Document
from .trim import trim

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
BOX = ("preflight.sh", "smoke.sh", "run_one.sh", "run_queue.sh", "formal_run.sh", "status.sh", "aggregate_to_fs.sh")
LOCAL = ("smoke.sh", "push.sh", "patrol.sh", "pull.sh", "verify_phase.sh", "verify_local.py", "teardown.sh")
LOCAL_NO_SSH = ("smoke.sh", "verify_phase.sh", "verify_local.py", "teardown.sh")
NOTEBOOK = {"box": (*BOX, "session.sh"), "notebook": ("run_cell.py",), "local": LOCAL_NO_SSH}


class TemplateBug(Exception):
    """A template is wrong: a bug in this program, not in anybody's profile."""


@dataclass(frozen=True)
class Output:
    """One file to write."""

    data: bytes
    executable: bool = False

    @cached_property
    def sha256(self) -> str:
        """Its digest, in hex: several ask for it."""
        return hashlib.sha256(self.data).hexdigest()


def scripts(kind: str) -> dict[str, tuple[str, ...]]:
    """The scripts that a kind of platform gets, by folder."""
    if kind == "notebook":
        return NOTEBOOK
    return {"box": BOX, "local": LOCAL if kind in SSH_KINDS else LOCAL_NO_SSH}


def render(b: Bindings) -> dict[str, Output]:
    """All files by relative path."""
    out: dict[str, Output] = {}
    wanted = [(f"{folder}/{name}", f"{folder}/{name}.j2") for folder, names in scripts(b["KIND"].value).items() for name in names]
    for target, template in [("RUNBOOK.md", "runbook/RUNBOOK.md.j2"), *wanted]:
        if not (TEMPLATES / template).exists():
            raise TemplateBug(f"there is no templates/{template}")
        out[target] = Output(_render_one(b, target, template).encode(), target.endswith((".sh", ".py")))
    out["box/queue.tsv"] = Output(cells_module.queue_tsv(b.job))
    if b["KIND"].value == "notebook":
        from . import notebook

        out[notebook.CELL] = Output(notebook.install_cell(b, out).encode(), True)
    return out


def _render_one(b: Bindings, target: str, template: str) -> str:
    import jinja2

    language = {".sh": Bash, ".py": Python}.get(Path(target).suffix, Markdown)
    page = language(b, target, template)
    try:
        text = _environment().get_template(template).render(page.names())
    except jinja2.TemplateSyntaxError as error:
        raise TemplateBug(f"templates/{error.name or template}:{error.lineno}: {error.message}") from error
    except (jinja2.TemplateError, _Misuse, KeyError, TypeError, AttributeError, ValueError) as error:
        raise TemplateBug(f"templates/{template}:{_line(error, template)}: {type(error).__name__}: {error}") from error
    return page.finish(text)


def _line(error: BaseException, template: str) -> int:
    """The line of the template that an error came from."""
    trace, line = error.__traceback__, 0
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith(template):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


class _Misuse(Exception):
    """A template calls something in a way that it is not meant for."""


def _only_safe(value: Any) -> Any:
    if isinstance(value, quote.Safe) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _Misuse(f"a value without a filter: {value!r:.60}")


@lru_cache(maxsize=1)
def _environment():
    import jinja2

    from .kept import kept

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        bytecode_cache=kept(),
        undefined=jinja2.StrictUndefined,
        finalize=_only_safe,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        line_statement_prefix="#%",
        comment_start_string="<#--",
        comment_end_string="--#>",
    )
    env.filters.update(
        q=quote.word, comment=quote.comment, md=quote.md, code=quote.code, json=quote.to_json, py=quote.python, directive=quote.directive
    )
    del env.filters["default"], env.filters["d"]
    return env


class Page:
    """What one template may call; the block of bound values must be opened and closed once."""

    suffix = ".bash"  # of its libraries

    def __init__(self, b: Bindings, target: str, template: str):
        self.b, self.target, self.template = b, target, template
        self.name = Path(target).name
        self.block = "before"
        self.libs: list[str] = []
        self.texts: list[str] = []

    def names(self) -> dict:
        """The names that the template sees."""
        return {
            "header": self.header,
            "bound_begin": self.bound_begin,
            "bound_end": self.bound_end,
            "const": self.const,
            "array": self.array,
            "lib": self.lib,
        }

    def finish(self, text: str) -> str:
        """The whole text; a block that was left open is complained of."""
        if self.block == "open":
            raise TemplateBug(f"templates/{self.template}: bound_begin() without bound_end()")
        return text

    def bound_begin(self) -> quote.Safe:
        """The first marker of the block, with the files that its values are from."""
        self.block = "open"
        return quote.Safe(f"# --- bound values: {origin_files(self.b)} ---")

    def bound_end(self) -> quote.Safe:
        """The last marker; below it nothing depends on the profile."""
        self._in_block("bound_end")
        self.block = "closed"
        return quote.Safe("# --- end of bound values ---")

    def _in_block(self, what: str) -> None:
        if self.block != "open":
            raise _Misuse(f"{what} stands outside of bound_begin() and bound_end()")

    def _bound(self, name: str, *kinds: str) -> Bound:
        self._in_block(name)
        if name not in self.b.by_name:
            raise _Misuse(f"no bound value {name}")
        bound = self.b[name]
        if bound.kind not in kinds:
            raise _Misuse(f"{name} is of kind {bound.kind}")
        return bound

    def _head(self, purpose: str) -> list[str]:
        return [
            f"# {self.name}: {purpose}",
            f"# Generated; do not edit. Source: templates/{self.template}",
            f"# To change it, edit the source or {quote.comment(self.b.profile_doc.file)}, then: {make_command(self.b)}",
        ]

    def lib(self, *names: str) -> quote.Safe:
        """The text of library files, each once in a script, after what it needs."""
        order: list[str] = []
        for name in names:
            _collect(name, self.suffix, order, ())
        new = [name for name in order if name not in self.libs]
        self.libs += new
        return self.keep("\n".join(lib_text(name, self.suffix).rstrip("\n") + "\n" for name in new).rstrip("\n"))

    def keep(self, text: str) -> quote.Safe:
        """What stands in the output for the text of libraries."""
        return quote.Safe(text)

    def header(self, purpose: str) -> quote.Safe:
        raise NotImplementedError

    def const(self, name: str) -> quote.Safe:
        raise NotImplementedError

    def array(self, name: str) -> quote.Safe:
        raise NotImplementedError


class Bash(Page):
    """A bash script: of its libraries the functions that it can reach."""

    def keep(self, text: str) -> quote.Safe:
        self.texts.append(text)
        return quote.Safe(f"\0{len(self.texts) - 1}\0")

    def finish(self, text: str) -> str:
        text = super().finish(text)
        # Header and bound values are data: a word there must not decide what stands below.
        top, mark, below = text.partition("\n# --- end of bound values ---\n")
        for number, library in enumerate(trim(below if mark else top, tuple(self.texts))):
            text = text.replace(f"\0{number}\0", library)
        return text

    def names(self) -> dict:
        return {**super().names(), "override": self.override, "load_action": self.load_action}

    def header(self, purpose: str) -> quote.Safe:
        return quote.Safe(
            "\n".join(
                [
                    "#!/usr/bin/env bash",
                    *self._head(purpose),
                    "set -euo pipefail",
                    "shopt -u failglob # an exported BASHOPTS may have it",
                    "umask 077",
                    'export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"',
                    "# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.",
                    'if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi',
                    "export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C",
                    f"readonly PROG={self.name}",
                ]
            )
        )

    def override(self, name: str) -> quote.Safe:
        """A value that a person may override from the environment; an empty one stays empty."""
        bound = self._bound(name, "text", "path")
        return quote.Safe(f"{_why(bound)}{name}=${{{name}-{quote.word(bound.value) if bound.value else ''}}}")

    def const(self, name: str) -> quote.Safe:
        """A value that is fixed here."""
        bound = self._bound(name, "text", "path", "int", "bool")
        value = str(bound.value).lower() if bound.kind == "bool" else bound.value
        return quote.Safe(f"{_why(bound)}readonly {name}={quote.word(value)}")

    def array(self, name: str) -> quote.Safe:
        """A list, one element a line."""
        bound = self._bound(name, "array")
        return quote.Safe(_why(bound) + f"readonly -a {name}=" + words(bound.value, "  "))

    def load_action(self) -> quote.Safe:
        """The teardown table: one function that sets the columns of a row."""
        self._in_block("load_action")
        unused = "# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs"
        out = []
        for number, action in enumerate(self.b.actions, 1):
            texts, arrays = action_fields(self.b, action)
            out += [unused, f"action_{number}() {{ # {quote.comment(action['verb'])}"]
            out += [f"  ACTION_{name}={quote.word(value)}" for name, value in texts.items()]
            out += [f"  ACTION_{name}={words(value, '    ', '  ')}" for name, value in arrays.items()]
            out += ["}"]
        out += [
            "# One row of the teardown table, as ACTION_*.",
            "load_action() { # <verb>    returns: 1 for an unknown verb",
            "  case $1 in",
        ]
        out += [f"    {quote.word(action['verb'])}) action_{number} ;;" for number, action in enumerate(self.b.actions, 1)]
        return quote.Safe("\n".join([*out, "    *) return 1 ;;", "  esac", "}"]))


class Python(Page):
    """A Python script: the same block, as assignments."""

    suffix = ".py"

    def header(self, purpose: str) -> quote.Safe:
        return quote.Safe("\n".join(["#!/usr/bin/env python3", *self._head(purpose)]))

    def const(self, name: str) -> quote.Safe:
        bound = self._bound(name, "text", "path", "int", "bool")
        return quote.Safe(f"{_why(bound)}{name} = {quote.python(bound.value if bound.value != '' or bound.kind != 'int' else None)}")

    def array(self, name: str) -> quote.Safe:
        bound = self._bound(name, "array")
        items = "".join(f"    {quote.python(item)},\n" for item in bound.value)
        return quote.Safe(f"{_why(bound)}{name} = [\n{items}]" if items else f"{_why(bound)}{name} = []")


class Markdown(Page):
    """The runbook: the data themselves, to be filtered."""

    def names(self) -> dict:
        b = self.b
        cells = [pair for pair, _ in zip(cells_module.cells(b.job), range(50))]
        actions = []
        for action in b.actions:
            texts, arrays = action_fields(b, action)
            actions.append({**action, "where": texts["WHERE"], "survives": arrays["SURVIVES"], "lost": arrays["LOST"]})
        kind = b["KIND"].value
        return {
            "profile": b.profile,
            "job": b.job,
            "b": b.by_name,
            "tiers": b.tiers,
            "data_tier": b.data,
            "durable_tier": b.durable,
            "without": list(b.without),
            "actions": actions,
            "clocks": b.clocks,
            "cells": cells,
            "meter_stop": next(one for one in actions if one["verb"] == b.profile["teardown"]["meter_stop"]),
            "cell_count": b["CELLS"].value,
            "budget": b.budget,
            "scripts": scripts(kind),
            "has_ssh": kind in SSH_KINDS and kind != "owned",
            "title": b["TITLE"].value,
            "make_command": make_command(b),
            "gb": _gb,
            **runbook.helpers(b),
        }


def _gb(number: int) -> quote.Safe:
    return quote.Safe(f"{number / 1e9:.2f}".rstrip("0").rstrip("."))


def _why(bound: Bound) -> str:
    return f"# {quote.comment(bound.why)}\n" if bound.why else ""


def words(values: list[str], indent: str, outer: str = "") -> str:
    """A bash array literal, one element a line."""
    if not values:
        return "()"
    return "(\n" + "".join(f"{indent}{quote.word(value)}\n" for value in values) + outer + ")"


@lru_cache(maxsize=None)
def lib_text(name: str, suffix: str = ".bash") -> str:
    """A library file; Jinja never reads it."""
    path = TEMPLATES / "lib" / f"{name}{suffix}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not path.exists():
        raise _Misuse(f"no library templates/lib/{name}{suffix}")
    return path.read_text(encoding="utf-8")


@lru_cache(maxsize=None)
def _needs(name: str, suffix: str, text: str) -> tuple[str, ...]:
    """What the second line of a library says that it needs."""
    second = (text.split("\n", 2) + [""])[1]
    match = re.match(r"# needs:(?P<names>[a-z0-9_ ]*)", second)
    if not match and suffix == ".bash":
        raise _Misuse(f"the second line of templates/lib/{name}.bash is not '# needs: …'")
    return () if not match else tuple(re.split(r"\s{2,}", match["names"].strip())[0].split())


def _collect(name: str, suffix: str, order: list[str], above: tuple[str, ...]) -> None:
    """Append `name` after all that it needs."""
    if name in above:
        raise _Misuse(f"libraries need each other in a ring: {' > '.join((*above, name))}")
    if name in order:
        return
    for need in _needs(name, suffix, lib_text(name, suffix)):
        _collect(need, suffix, order, (*above, name))
    order.append(name)


def origin_files(b: Bindings) -> quote.Safe:
    """`profiles/x.yaml x jobs/y.yaml`, and what it was compiled without."""
    text = f"{b.profile_doc.file} x {b.job_doc.file}"
    return quote.comment(text + (f" without {', '.join(b.without)}" if b.without else ""))


def make_command(b: Bindings) -> quote.Safe:
    """The command that makes this output again."""

    def typed(doc: Document, folder: str) -> str:
        if doc.file == f"{folder}/{doc.name}.yaml":
            return doc.name
        return doc.file if "/" in doc.file else f"/path/to/{doc.file}"  # of a file elsewhere only its name is known

    job = "" if b.job_doc.file == "jobs/demo.yaml" else f" job={typed(b.job_doc, 'jobs')}"
    return quote.comment(f"make profile={typed(b.profile_doc, 'profiles')}{job}" + (f" without={','.join(b.without)}" if b.without else ""))
