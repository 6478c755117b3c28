"""Show methods and settings."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from fedgram.cli.completion import complete_keys, complete_methods
from fedgram.cli.root import main
from fedgram.errors import ConfigError
from fedgram.experiments import config as configuration
from fedgram.experiments.settings_list import (
    Setting,
    markdown,
    plain,
    selected,
    settings_of,
    written,
)
from fedgram.federation import method as methods_module
from fedgram.runtime.text import broken, escaped


@main.command()
@click.argument("name", required=False, shell_complete=complete_methods)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a text.")
def methods(name: str | None, as_json: bool) -> None:
    """List the methods with their settings and defaults, or show one method whole.

    NAME is the name of a method, or a .py file with one.

    Example: fedgram methods apfl
    """
    listed = [_described(one) for one in ([name] if name else methods_module.names())]
    if as_json:
        click.echo(json.dumps({"methods": listed}, indent=2))
        return
    console = Console()
    for entry in listed:
        _write(console, f"{entry['name']}  {entry['summary']}", bold=len(entry["name"]))
        if name:
            for paragraph in _paragraphs(methods_module.find_method(name)):
                console.print()
                _write(console, paragraph)
            console.print()
        for parameter in entry["parameters"]:
            default = written(parameter["default"])
            _write(console, f"{parameter['name']} = {default}", indent=4, hanging=8)
            _write(console, parameter["text"], indent=8, style="dim")


def _write(
    console: Console,
    text: str,
    *,
    indent: int = 0,
    hanging: int = 0,
    bold: int = 0,
    style: str = "",
) -> None:
    """Print a text in lines that fit, broken between words, its beginning in bold.

    Parameters
    ----------
    console
        Where it is printed.
    text
        The text.
    indent
        Spaces before each line.
    hanging
        Further spaces before all lines but the first.
    bold
        Number of characters in bold.
    style
        Style of the whole text.
    """
    first = " " * indent
    lines = Text(
        broken(escaped(text), console.width, first=first, rest=first + " " * hanging), style=style
    )
    lines.stylize("bold", indent, indent + bold)
    console.print(lines, soft_wrap=True)


def _described(name: str) -> dict[str, Any]:
    kind = methods_module.find_method(name)
    return {
        "name": name,
        "summary": methods_module.summary(kind),
        "parameters": [
            {"name": p.name, "default": plain(p.default), "text": p.text}
            for p in methods_module.parameters(kind)
        ],
    }


def _paragraphs(kind: type[Any]) -> list[str]:
    """Return the text of a method between its first line and its parameters, by paragraphs."""
    doc = inspect.getdoc(kind) or ""
    text = re.split(r"\n\w+\n-+\n", doc.partition("\n")[2])[0]
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()) if part]


@main.command()
@click.argument("keys", nargs=-1, shell_complete=complete_keys)
@click.option("--file", "path", type=click.Path(path_type=Path), help="Settings of a run (.toml).")
@click.option(
    "-s",
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_keys,
    help="Change a setting.",
)
@click.option("-m", "--method", "names", multiple=True, shell_complete=complete_methods)
@click.option("--changed", is_flag=True, help="Only settings that are not the default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a text.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a Markdown table.")
def settings(
    keys: tuple[str, ...],
    path: Path | None,
    overrides: tuple[str, ...],
    names: tuple[str, ...],
    changed: bool,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """List the settings of a run with their meaning, default and current value.

    KEYS select settings by their name or by the beginning of it, such as data or method.apfl.
    Parameters are listed of the methods that would be run.

    Example: fedgram settings data grid.bits --file settings.toml
    """
    for key in keys:  # a method that is asked for is one that is listed
        table, _, rest = key.partition(".")
        name = rest.partition(".")[0]
        if table == "method" and name:
            names = (*names, name)
    config = configuration.load(path, overrides, names)
    found = settings_of(config)
    if keys:
        found = selected(found, keys)
    if changed:
        found = [one for one in found if one.changed]
    if as_json:
        entries = [
            {"key": one.key, "default": one.default, "value": one.value, "text": one.text}
            for one in found
        ]
        click.echo(json.dumps({"settings": entries}, indent=2))
    elif as_markdown:
        click.echo(markdown(found), nl=False)
    else:
        _print(found)


def _print(found: list[Setting]) -> None:
    console = Console()
    if not found:
        raise ConfigError("all settings have their defaults; leave out --changed")
    for one in found:
        more = f"  (default {written(one.default)})" if one.changed else ""
        value = f"{one.key} = {written(one.value)}{more}"
        _write(console, value, hanging=8, bold=len(one.key))
        _write(console, one.text.replace("`", ""), indent=4, style="dim")
