"""Write recorded runs as one page."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from fedgram.cli.root import main, say
from fedgram.experiments.reader import read_runs
from fedgram.report.page import page
from fedgram.report.watching import follow
from fedgram.runtime import files

PATH = click.Path(path_type=Path, dir_okay=False)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=PATH, default=Path("report.html"), show_default=True)
@click.option("--title", help="Title of the page.")
@click.option("--watch", is_flag=True, help="Follow running runs: write the page at every change.")
@click.option(
    "--figures",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the figures as PDF and PNG for papers too.",
)
def report(
    folders: tuple[Path, ...], out: Path, title: str | None, watch: bool, figures: Path | None
) -> None:
    """Write recorded runs as one HTML page.

    Runs that differ in their seeds only become one row, with mean and standard deviation. A folder
    may be that of a run, of several runs, or of a study.

    With --watch, open the page in a browser: it loads itself again while the runs go on, from the
    disk, without a server. End it with Ctrl-C. --figures needs: pip install 'fedgram[figures]'

    Example: fedgram report runs/a runs/b -o report.html --figures figures
    """
    if watch:
        _follow(folders, out, title)
    found = read_runs(folders)
    files.write(out, page(found, title=title))
    say(f"{out}: {len(found)} runs, {out.stat().st_size} bytes")
    if figures is not None:
        from fedgram.report.paper_figures import write_figures  # needs an extra

        written = write_figures(found, figures)
        say(f"{figures}: {len(written)} figures, each as PDF and PNG")


def _follow(folders: tuple[Path, ...], out: Path, title: str | None) -> None:
    """Follow running runs until Ctrl-C; the page that is written after that stays as it is."""
    say(f"{out.absolute().as_uri()} follows the runs; Ctrl-C ends it")
    with suppress(KeyboardInterrupt):
        for state in follow(folders, out, title=title):
            say(state)
