"""Show a partition: each client's number of samples of each class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from fedgram.cli.root import main
from fedgram.cli.screen import cell
from fedgram.data.partition import partition
from fedgram.experiments import config as configuration
from fedgram.experiments.partition_summary import ClientCounts, PartitionSummary, summary_of_indices
from fedgram.report.charts.partition import partition as drawn_partition
from fedgram.report.page import described
from fedgram.runtime import files
from fedgram.runtime.text import compact, escaped

PATH = click.Path(path_type=Path, dir_okay=False)
MOST_ROWS = 30  # clients that are listed one by one


@main.command("partition")
@click.argument("source", required=False)
@click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting."
)
@click.option("-o", "--out", type=PATH, help="File to draw the partition in, as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def partition_command(
    source: str | None, overrides: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    """Show each client's number of samples of each class.

    Nothing is run.
    SOURCE is a feature file, digits, or a .toml file of settings as for 'fedgram run'.

    Example: fedgram partition digits -s data.partition=shards -s data.clients=10 -o shards.svg
    """
    settings = _settings(source, overrides)
    data = settings.data.load()
    summary = summary_of_indices(data, partition(data, settings.data))
    about = described(settings.to_dict()["data"], len(summary.clients))
    kind = "classes" if data.targets is None else "groups of samples with similar outputs"
    if out:
        files.write(out, drawn_partition(about, summary))
    if as_json:
        click.echo(json.dumps({**summary.to_dict(), "summary": summary.summary()}, indent=2))
        return
    console = Console()
    console.print(
        escaped(f"{about}, {len(summary.classes)} {kind}"),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(_table(summary))
    if len(summary.clients) > MOST_ROWS:
        console.print("too many clients for one line each; --json lists them all", highlight=False)
    if out:
        console.print(f"{out}: figure written", markup=False, highlight=False, soft_wrap=True)


def _settings(source: str | None, overrides: tuple[str, ...]) -> configuration.Config:
    if source and source.endswith(".toml"):
        return configuration.load(Path(source), overrides)
    first = [f"data.source={json.dumps(source)}"] if source else []
    return configuration.load(None, [*first, *overrides])


def _table(summary: PartitionSummary) -> Table:
    """Return a line for each client, if they are few, and the smallest, median and largest."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("client", overflow="fold")
    for header in ("train", "valid", "test", "classes"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("largest class", overflow="fold")
    if len(summary.clients) <= MOST_ROWS:
        for client in summary.clients:
            table.add_row(*map(cell, _cells(summary, client)))
        table.add_section()
    ranges = summary.summary()
    for key in ("min", "median", "max", "total"):
        numbers = [_number(ranges[part].get(key)) for part in ("train", "valid", "test")]
        classes = _number(ranges["classes"].get(key))
        table.add_row(key, *numbers, classes, "", style="bold")
    return table


def _cells(summary: PartitionSummary, client: ClientCounts) -> list[str]:
    held = " (held out)" if client.holdout else ""
    parts = [str(sum(part)) for part in (client.train, client.valid, client.test)]
    largest = max(range(len(client.train)), key=client.train.__getitem__)
    share = round(100 * client.train[largest] / sum(client.train))
    most = f"{summary.classes[largest]} ({share} %)"
    return [f"{client.client}{held}", *parts, str(client.classes), most]


def _number(value: Any) -> str:
    return "" if value is None else compact(value)
