"""The command line: ``fedgram run``, ``fedgram methods``, ``fedgram compare``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedgram import method as methods_module
from fedgram.data.sources import load as load_data
from fedgram.errors import FedgramError
from fedgram.experiment import config as configuration
from fedgram.experiment.compare import runs as recorded
from fedgram.experiment.record import Record
from fedgram.experiment.runner import run as run_method
from fedgram.experiment.sites import sites

OnReply = Callable[[str, int, int], None]


class Commands(click.Group):
    """Print fedgram's own errors in one line and end with their exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FedgramError as error:
            click.echo(f"fedgram: error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("fedgram: interrupted; what was recorded is kept", err=True)
            ctx.exit(130)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fedgram")
def main() -> None:
    """Federated learning that is solved, not trained.

    Exit codes: 0 done, 2 wrong usage or configuration, 3 unusable data, 4 values that must not be
    added, 5 exactness cannot be kept, 6 nothing to solve, 7 refused for privacy, 130 interrupted.
    """


@main.command()
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("-m", "--method", "methods", multiple=True, help="Method to run; may be repeated.")
@click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting."
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder to record the runs in.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def run(
    config: Path | None,
    methods: tuple[str, ...],
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Run methods on a federation and print what they reach.

    Without arguments: the embedded digits, 20 clients with Dirichlet 0.1 label skew, and the
    methods local, afl, fedhip and apfl.

    Example: fedgram run -m afl -m apfl -s data.clients=50 -s method.apfl.balance=0.3 --out runs/a
    """
    settings = configuration.load(config, overrides, methods)
    data = load_data(settings.data.source)
    everybody = sites(data, settings.data, settings.grid)
    results = []
    with _progress(shown=not as_json) as progress:
        for name in settings.methods:
            method = settings.make(name)
            record = Record(
                out / Path(name).stem if out else None,
                {"method": name, "parameters": asdict(method), "config": settings.plain()},  # type: ignore[call-overload]
            )
            result = run_method(
                method,
                everybody,
                name=name,
                seed=settings.engine.seed,
                workers=settings.engine.workers,
                private=settings.engine.private,
                record=record,
                on_reply=progress(name),
            )
            results.append(result.plain())
    if as_json:
        click.echo(json.dumps({"runs": results}, indent=2))
        return
    title = f"{data.name}: {len(everybody.members)} clients, {_dealt(settings.data)}"
    _print_table(title, results)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a text.")
def methods(as_json: bool) -> None:
    """List the methods with their parameters and defaults."""
    listed: list[dict[str, Any]] = []
    for name in methods_module.names():
        kind = methods_module.find(name)
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
        console.print(f"[bold]{entry['name']}[/bold]  {escape(entry['summary'])}")
        for parameter in entry["parameters"]:
            default = escape(_shown(parameter["default"]))
            console.print(f"    {parameter['name']} = {default}", highlight=False)
            console.print(f"        [dim]{escape(parameter['text'])}[/dim]", highlight=False)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(folders: tuple[Path, ...], as_json: bool) -> None:
    """Show recorded runs side by side.

    Example: fedgram compare runs/a runs/b
    """
    results = recorded(folders)
    if as_json:
        click.echo(json.dumps({"runs": results}, indent=2))
        return
    _print_table("recorded runs", results, label="run")


COLUMNS = {
    "client\nmean": "client_mean",
    "sample\nmean": "sample_mean",
    "worst\ndecile": "worst_decile",
    "whole\ntest": "global",
    "bal-\nanced": "balanced",
}


def _print_table(title: str, results: list[dict[str, Any]], label: str = "method") -> None:
    table = Table(
        title=title,
        caption="accuracy in %, bytes per client",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column(label, overflow="fold")
    for header in (*COLUMNS, "bytes\nup", "bytes\ndown", "seconds"):
        table.add_column(header, justify="right", no_wrap=True)
    best = max(result["accuracy"]["client_mean"] for result in results)
    for result in results:
        cells = [f"{100 * result['accuracy'][key]:.1f}" for key in COLUMNS.values()]
        if result["accuracy"]["client_mean"] == best:
            cells[0] = f"[bold]{cells[0]}[/bold]"
        size = [_bytes(result["bytes"][key]) for key in ("up", "down")]
        table.add_row(escape(str(result[label])), *cells, *size, f"{result['seconds']:.2f}")
    console = Console()
    console.print(table)
    for note in dict.fromkeys(note for result in results for note in _notes(result, label)):
        console.print(note, highlight=False, markup=False)


def _notes(result: dict[str, Any], label: str) -> Iterator[str]:
    if not result.get("finished", True):
        yield f"{result[label]}: interrupted after round {result['rounds']}"
    if result["untested_clients"]:
        yield (
            f"{result['untested_clients']} of {result['clients']} clients have no test samples "
            "and are left out of client means"
        )
    if result["holdout"]:
        accuracy = 100 * result["holdout"]["accuracy"]["client_mean"]
        yield (
            f"{result[label]}: {result['holdout']['clients']} clients held out of training reach "
            f"a client mean of {accuracy:.1f} %"
        )


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str], OnReply]]:
    """Draw on standard error, and only on a terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    ) as bar:

        def follow(name: str) -> OnReply:
            task = bar.add_task(name)

            def reply(step: str, done: int, total: int) -> None:
                bar.update(
                    task,
                    description=f"{name}: {step.strip('_').replace('_', ' ')}",
                    completed=done,
                    total=total,
                )

            return reply

        yield follow


def _dealt(data: configuration.Data) -> str:
    skew = f" {data.dirichlet:g}" if data.partition == "dirichlet" else ""
    return f"{data.partition}{skew}, {data.split} split"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_shown(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
