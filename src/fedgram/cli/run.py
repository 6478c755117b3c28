"""Run methods, list them, compare recorded runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding

from fedgram.cli.root import main
from fedgram.cli.screen import cell, print_runs, progress
from fedgram.data.sources import load_schema
from fedgram.experiments import config as configuration
from fedgram.experiments.gains import who_gains
from fedgram.experiments.partition_summary import partition_name
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import Record
from fedgram.experiments.run_record import RunRecord
from fedgram.export.card import write_run_card
from fedgram.federation import method as methods_module
from fedgram.federation.federated_dataset import federate


@main.command()
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("-m", "--method", "methods", multiple=True, help="Method to run; may be repeated.")
@click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder to record runs in.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def run(
    config: Path | None,
    methods: tuple[str, ...],
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Run methods on a federation and print their accuracy.

    Without arguments: the embedded digits, 20 clients with Dirichlet 0.1 label skew, and the
    methods local, afl, fedhip, apfl and auto.

    Example: fedgram run -m afl -m apfl -s data.clients=50 -s method.apfl.balance=0.3 --out runs/a
    """
    settings = configuration.load(config, overrides, methods)
    data = settings.data.load()
    federation = federate(data, settings.data, settings.grid)
    runs = []
    with progress(shown=not as_json) as follow:
        for name in settings.methods:
            record = Record(
                out / Path(name).stem if out else None,
                settings.about(name),
                schema=load_schema(settings.data.source),
            )
            on_reply, on_round = follow(name, settings.make(name).number_of_rounds())
            result = settings.run(
                name, federation, record=record, on_reply=on_reply, on_round=on_round
            )
            runs.append(result.record)
            if out is not None:
                write_run_card(out / Path(name).stem)
    if as_json:
        click.echo(_json(runs, who_gains(runs)))
        return
    partition = f"{partition_name(asdict(settings.data))}, {settings.data.split} split"
    title = f"{data.name}: {len(federation.members)} clients, {partition}"
    print_runs(title, runs, who_gains(runs), "method")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a text.")
def methods(as_json: bool) -> None:
    """List the methods with their settings and defaults."""
    listed: list[dict[str, Any]] = []
    for name in methods_module.names():
        kind = methods_module.find_method(name)
        parameters = [
            {"name": p.name, "default": _plain(p.default), "text": p.text}
            for p in methods_module.parameters(kind)
        ]
        listed.append(
            {"name": name, "summary": methods_module.summary(kind), "parameters": parameters}
        )
    if as_json:
        click.echo(json.dumps({"methods": listed}, indent=2))
        return
    console = Console()
    for entry in listed:
        console.print(f"[bold]{entry['name']}[/bold]  {cell(entry['summary'])}")
        for parameter in entry["parameters"]:
            default = cell(_shown(parameter["default"]))
            console.print(f"    {parameter['name']} = {default}", highlight=False)
            text = f"[dim]{cell(parameter['text'])}[/dim]"
            console.print(Padding(text, (0, 0, 0, 8), expand=False), highlight=False)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(folders: tuple[Path, ...], as_json: bool) -> None:
    """Show recorded runs side by side.

    Example: fedgram compare runs/a runs/b
    """
    runs, gains = [], []
    for folder in folders:  # runs of one folder are of the same clients
        some = read_runs([folder])
        runs += some
        gains += who_gains(some)
    if as_json:
        click.echo(_json(runs, gains))
        return
    print_runs("recorded runs", runs, gains, "run")


def _json(runs: Sequence[RunRecord], gains: Sequence[dict[str, Any]]) -> str:
    results = [{**run.to_dict(), "gains": gain} for run, gain in zip(runs, gains, strict=True)]
    return json.dumps({"runs": results}, indent=2)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_shown(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
