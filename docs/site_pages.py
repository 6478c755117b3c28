"""Parts of the pages that are made from the code when the site is built.

A page has a line `<!-- generated: NAME -->` where the part of this name goes.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import click
import notebook_cells

import fedgram
import fedgram.checks
from fedgram.cli import main
from fedgram.core.codec import wire_fields, wire_name
from fedgram.core.wire_types import WIRE_TYPES
from fedgram.experiments.config import Config
from fedgram.federation.method import find_method, names, parameters, summary

HERE = Path(__file__).parent
ROOT = HERE.parent
# Files beside the folder of the pages that are pages of the site too.
PROJECT_PAGES = {
    "README.md": "project/readme",
    "CONTRIBUTING.md": "project/contributing",
    "CHANGELOG.md": "project/changelog",
    "SECURITY.md": "project/security-policy",
    "CODE_OF_CONDUCT.md": "project/conduct",
}
# Pages whose title says too little in the list of all pages.
LISTED = {"../README.md": "README <project/readme>"}
# Public names by the package that they come from; a new package gets a line.
GROUPS = {
    "data": "Data",
    "federation": "Clients and methods",
    "experiments": "Runs and results",
    "models": "Models",
    "estimator": "scikit-learn",
    "export": "Export",
    "features": "Features",
    "core": "Values that add up",
    "engines": "Engines",
    "errors": "Errors",
    "checks": "Checks of methods",
}
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_LINK = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")


def completed(text: str, docname: str) -> str:
    """Return a page of the site from its file."""
    for name, page in PROJECT_PAGES.items():
        if docname == page:
            text = (ROOT / name).read_text(encoding="utf-8")
            return linked(text, ROOT, docname)
    if shown := re.search(r"^<!-- notebook: (\w+) -->$", text, re.MULTILINE):
        text = notebook(HERE / "notebooks" / f"{shown.group(1)}.py")
    text = _MARK.sub(lambda found: PARTS[found.group(1)](), text)
    if docname == "index":
        text = with_toctrees(text)
    if docname in ("decisions/README", "notebooks/README"):
        rows = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\.md\)", text, re.MULTILINE)
        text = f"{text}\n{toctree(rows)}"
    return linked(text, (HERE / f"{docname}.md").parent, docname)


def linked(text: str, folder: Path, docname: str) -> str:
    """Return a page whose links to files beside the folder of the pages work on the site."""

    def replaced(found: re.Match[str]) -> str:
        head, target, anchor = found.groups()
        path = (folder / target).resolve()
        start = posixpath.dirname(docname) or "."
        if path.is_dir() and (path / "README.md").is_file():
            path = path / "README.md"
        if path.is_relative_to(HERE) and not path.is_dir():
            place = path.relative_to(HERE).as_posix()
        elif path.parent == ROOT and path.name in PROJECT_PAGES:
            place = f"{PROJECT_PAGES[path.name]}.md"
        elif path.exists():
            name = path.relative_to(ROOT).as_posix()
            return f"{head[:-2].lstrip('![')} (`{name}` of the sources)"
        else:
            return found.group(0)  # the build fails
        if re.fullmatch(r"\[(\w|[-./])+\.md\]\(", head):  # the title of the page instead
            head = "[]("
        return f"{head}{posixpath.relpath(place, start)}{anchor or ''})"

    inside, lines = False, []
    for line in text.split("\n"):
        inside ^= line.startswith("```")
        lines.append(line if inside else _LINK.sub(replaced, line))
    return "\n".join(lines)


def with_toctrees(text: str) -> str:
    """Return the first page with a hidden table of contents for each of its tables of pages."""
    parts = re.split(r"^(## .*)$", text, flags=re.MULTILINE)
    whole = [parts[0]]
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        pages = re.findall(r"^\| \[[^\]]*\]\(([^)#]+\.md)\)", body, re.MULTILINE)
        places = [
            LISTED.get(page)
            or PROJECT_PAGES.get(page.removeprefix("../"), page.removesuffix(".md"))
            for page in dict.fromkeys(pages)
        ]
        whole += [heading, body, f"\n{toctree(places, heading[3:])}\n" if places else ""]
    return "".join(whole)


def toctree(places: list[str], caption: str = "") -> str:
    """Return a hidden table of contents."""
    named = [f":caption: {caption}"] if caption else []
    return "\n".join(["```{toctree}", ":hidden:", *named, "", *places, "```"])


def notebook(script: Path) -> str:
    """Return a script with cells as a page, each cell with what it shows when it runs."""
    shown = iter(notebook_cells.outputs(script))
    parts = []
    for one in notebook_cells.cells(script.read_text(encoding="utf-8")):
        if one.is_text:
            parts.append(one.source)
        else:
            parts += [f"```python\n{one.source}\n```", *output(**next(shown))]
    return "\n\n".join(parts)


def output(text: str, html: str) -> Iterator[str]:
    r"""Yield the blocks of what a cell shows.

    Examples
    --------
    >>> print(*output("one\ntwo", "<b>3</b>"), sep="\n")
    ```{code-block} text
    :class: output
    one
    two
    ```
    ```{raw} html
    <div class="output"><b>3</b></div>
    ```
    """
    if text:
        yield f"```{{code-block}} text\n:class: output\n{text}\n```"
    if html:
        yield f'```{{raw}} html\n<div class="output">{html}</div>\n```'


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return a text as code, also in a cell of a table."""
    return f"`{cell(text)}`"


# Python


def public_names() -> Iterator[tuple[str, str]]:
    """Yield the group and the full name of everything public."""
    for name in sorted(fedgram.__all__, key=str.lower):
        if name != "__version__":
            home = inspect.getmodule(getattr(fedgram, name))
            assert home is not None
            yield home.__name__.split(".")[1], f"fedgram.{name}"
    for name in sorted(fedgram.checks.__all__, key=str.lower):
        yield "checks", f"fedgram.checks.{name}"


def api() -> str:
    """Return the reference of everything public, by group."""
    found: dict[str, list[str]] = {}
    for group, name in public_names():
        found.setdefault(group, []).append(name)
    parts = []
    for group in [*GROUPS, *sorted(set(found) - set(GROUPS))]:
        if group in found:
            parts.append(f"## {GROUPS.get(group, group)}\n")
            parts += [_directive(name) for name in found[group]]
    return "\n".join(parts)


def _directive(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
    else:
        kind = "autofunction" if callable(value) else "autodata"
    return f"```{{eval-rst}}\n.. {kind}:: {name}\n```\n"


# The command line


def leaves(
    group: click.Group = main, prefix: str = "fedgram"
) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def commands() -> str:
    """Return all commands with their arguments and options."""
    return "\n".join(_command(name, command) for name, command in leaves())


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    rows = [row for parameter in command.params if (row := _option(parameter, context))]
    table = ["| option | meaning |", "|---|---|", *rows] if rows else []
    return "\n".join(
        [f"## {name}\n", f"```\n{name} {usage}\n```\n", _escaped(text), "", *table, ""]
    )


def _option(parameter: click.Parameter, context: click.Context) -> str:
    record = parameter.get_help_record(context)
    if not isinstance(parameter, click.Option) or record is None:
        return ""
    return f"| {code(record[0])} | {_escaped(cell(record[1]))} |"


def _escaped(text: str) -> str:
    """Return a help text as Markdown: stars and brackets stay what they are."""
    return re.sub(r"([*_<\[\]$])", r"\\\1", text)


# Settings and methods


def settings() -> str:
    """Return all keys of the settings of a run, with types and defaults."""
    parts = []
    for table in dataclasses.fields(Config):
        if not dataclasses.is_dataclass(table.default):
            continue
        rows = [
            f"| {code(f'{table.name}.{one.name}')} | {code(_shown(one.default))} | "
            f"{_escaped(cell(one.text))} |"
            for one in parameters(type(table.default))
        ]
        head = ["| key | default | meaning |", "|---|---|---|"]
        parts.append("\n".join([f"## {table.name}\n", *head, *rows, ""]))
    return "\n".join(parts)


def methods() -> str:
    """Return all methods with their settings."""
    parts = []
    for name in names():
        kind = find_method(name)
        rows = [
            f"| {code(one.name)} | {code(_shown(one.default))} | {_escaped(cell(one.text))} |"
            for one in parameters(kind)
        ]
        head = ["| setting | default | meaning |", "|---|---|---|"]
        table = [*head, *rows] if rows else ["No settings."]
        parts.append("\n".join([f"## {name}\n", _escaped(summary(kind)), "", *table, ""]))
    return "\n".join(parts)


def _shown(value: object) -> str:
    """Return a default as it is written in TOML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = (f"{f.name} = {_shown(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{{ {', '.join(inside)} }}"
    if value is None:
        return "not set"
    if isinstance(value, tuple):
        return f"[{', '.join(_shown(one) for one in value)}]"
    return json.dumps(value) if isinstance(value, str | bool | int | float) else str(value)


# Files and messages


def wire_types() -> str:
    """Return the types that are written to files and messages, with their fields."""
    rows = []
    for name, module in sorted(WIRE_TYPES.items()):
        try:
            kinds = [
                one for one in vars(importlib.import_module(module)).values() if _is(one, name)
            ]
        except ImportError:  # its package is an extra
            kinds = []
        about = (
            _escaped(cell(summary(kinds[0]))) if kinds else f"in `{module}`, which needs an extra"
        )
        fields = ", ".join(code(wire) for wire in wire_fields(kinds[0]).values()) if kinds else ""
        rows.append(f"| {code(name)} | {about} | {fields} |")
    return "\n".join(["| name | what it is | fields |", "|---|---|---|", *rows])


def _is(value: object, name: str) -> bool:
    """Whether a value of a module is the class of this wire name."""
    try:
        return inspect.isclass(value) and wire_name(value) == name
    except TypeError:  # a class that is not written
        return False


PARTS = {
    "api": api,
    "commands": commands,
    "settings": settings,
    "methods": methods,
    "wire_types": wire_types,
}
