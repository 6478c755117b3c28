"""Check the laws of methods."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from fedgram.checks import Finding
from fedgram.checks import check as check_laws
from fedgram.cli.root import main
from fedgram.cli.screen import cell
from fedgram.errors import ConfigError, LawError
from fedgram.federation.method import create_method, names

STYLES = {"kept": "green", "broken": "bold red", "does not apply": "dim"}


@main.command()
@click.argument("methods", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Check every method of fedgram.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(methods: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Check the laws of methods, by name or in a file of your own.

    Example: fedgram check afl path/to/mine.py
    """
    chosen = [*methods, *(names() if everything else [])]
    if not chosen:
        raise ConfigError("name a method or a .py file, or use --all")
    console, broken = Console(), 0
    report: dict[str, list[Finding]] = {}
    for name in dict.fromkeys(chosen):
        report[name] = []
        if not as_json:
            console.print(f"[bold]{cell(name)}[/bold]")
        for finding in check_laws(create_method(name)):
            report[name].append(finding)
            broken += finding.outcome == "broken"
            if not as_json:
                detail = f": {cell(finding.detail)}" if finding.detail else ""
                style = STYLES[finding.outcome]
                outcome = Padding(f"[{style}]{finding.outcome}[/{style}]", (0, 0, 0, 2))
                line = Table.grid(padding=(0, 1, 0, 0))
                line.add_column(width=17)
                line.add_row(outcome, f"{finding.law}{detail}")
                console.print(line)
    if as_json:
        plain = {name: [vars(finding) for finding in found] for name, found in report.items()}
        click.echo(json.dumps({"checks": plain}, indent=2))
    if broken:
        raise LawError(f"number of broken laws: {broken}")
