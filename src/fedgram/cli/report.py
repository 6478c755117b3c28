"""Write recorded runs as one page."""

from __future__ import annotations

from pathlib import Path

import click

from fedgram.cli.root import main, say
from fedgram.experiments.reader import read_runs
from fedgram.report.page import page
from fedgram.runtime import files

PATH = click.Path(path_type=Path, dir_okay=False)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=PATH, default=Path("report.html"), show_default=True)
@click.option("--title", help="Title of the page.")
def report(folders: tuple[Path, ...], out: Path, title: str | None) -> None:
    """Write recorded runs as one HTML page.

    Runs that differ in their seeds only become one row, with mean and standard deviation.

    Example: fedgram report runs/a runs/b -o report.html
    """
    found = read_runs(folders)
    files.write(out, page(found, title=title))
    say(f"{out}: {len(found)} runs, {out.stat().st_size} bytes")
