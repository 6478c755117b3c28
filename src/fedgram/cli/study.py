"""Tables of runs with one command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from fedgram.cli.root import main
from fedgram.cli.screen import cell
from fedgram.experiments.measures import score_words
from fedgram.experiments.study.curves import costs, sensitivities
from fedgram.experiments.study.export import table_json
from fedgram.experiments.study.make import State, make
from fedgram.experiments.study.settings import load, preset, presets, title
from fedgram.experiments.study.summary import Summary
from fedgram.experiments.study.writers import text
from fedgram.report.charts.axes import wide
from fedgram.report.charts.curves import curves, sensitivity
from fedgram.runtime import files
from fedgram.runtime.text import broken, duration, escaped


@main.command("study")
@click.argument("name", required=False, metavar="[TABLE.toml|PRESET]")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder for runs and tables.")
@click.option("--source", "sources", multiple=True, metavar="[NAME=]FILE", help="Data to use.")
@click.option("-m", "--method", "methods", multiple=True, help="Row to compute; may be repeated.")
@click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting."
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    help="Runs at a time.  [default: number of processors]",
)
@click.option(
    "--ray", metavar="ADDRESS", help="Ray cluster for the runs: HOST:PORT, auto or local."
)
@click.option("--estimate", is_flag=True, help="Show how long it will take, and stop.")
@click.option("--list", "listed", is_flag=True, help="List the presets, and stop.")
@click.option("--print", "printed", is_flag=True, help="Print the preset's TOML, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def study(
    context: click.Context,
    name: str | None,
    out: Path | None,
    sources: tuple[str, ...],
    methods: tuple[str, ...],
    overrides: tuple[str, ...],
    jobs: int | None,
    ray: str | None,
    estimate: bool,
    listed: bool,
    printed: bool,
    as_json: bool,
) -> None:
    """Run data sets x partitions x clients x seeds x methods; write tables.

    TABLE.toml is your own file; PRESET is the name of a preset. Without either, the presets are
    listed. Runs are recorded in the folder (tables/NAME, or the one of -o), and finished runs are
    not repeated. table.txt, .md, .csv, .tex and .json are updated after every run; figures are
    written at the end. To continue an interrupted study, give the same command again.

    Example: fedgram study lambda-ablation --source CIFAR-100=cifar100.npz -o tables/lambda
    """
    if name is None or listed:
        _list()
        return
    if printed:
        click.echo(preset(name), nl=False)
        return
    settings = load(name, overrides, sources=sources, methods=methods)
    folder = out or Path("tables") / Path(name).stem
    with _progress() as show:
        for state in make(settings, folder, jobs=jobs, only_estimate=estimate, ray=ray):
            show(state)
    if not estimate:
        _draw(state.summary, folder)
        click.echo(
            table_json(state.summary) if as_json else text(state.summary, _width()), nl=False
        )
        click.echo(f"table.txt, .md, .csv, .tex and .json are in {folder}", err=True)
    context.exit(state.code)


def _list() -> None:
    """Print a line for each preset; in narrow terminals it is broken between words."""
    names = presets()
    longest = max(map(len, names))
    for name in names:
        rest = " " * (longest + 2)
        click.echo(broken(title(name), _width(), first=f"{name:{longest}}  ", rest=rest))


def _width() -> int:
    """Return the columns of the terminal: 80 where there is none, unless COLUMNS says otherwise."""
    return Console().width


def _draw(summary: Summary, folder: Path) -> None:
    """Draw accuracy against parameters and costs, if the study has them."""
    y_name = f"{score_words(numbers=summary.table.numbers).one}, %"
    for picture in sensitivities(summary):
        places = [x for points in picture.lines.values() for x, _, _ in points]
        logarithmic = min(places) > 0 and wide(places)
        drawn = sensitivity(
            picture.title, picture.axis, picture.lines, logarithmic=logarithmic, y_name=y_name
        )
        files.write(folder / f"table-{picture.name}.svg", drawn)
    for picture in costs(summary):
        drawn = curves(
            picture.title,
            picture.lines,
            axis=picture.axis,
            chosen=picture.chosen,
            y_name=y_name,
        )
        files.write(folder / f"table-{picture.name}.svg", drawn)


@contextmanager
def _progress() -> Iterator[Callable[[State], None]]:
    """Draw on standard error: a bar on a terminal, and messages always."""
    console = Console(stderr=True)
    with Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("runs{task.fields[left]}"),
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None, left="")

        def show(state: State) -> None:
            left = "" if state.left is None else f", {duration(state.left)} left"
            now = state.running[0] if state.running else ""
            bar.update(
                task, completed=state.done, total=state.total, left=left, description=cell(now)
            )
            if state.message:
                console.print(escaped(state.message), markup=False, highlight=False, soft_wrap=True)

        yield show
