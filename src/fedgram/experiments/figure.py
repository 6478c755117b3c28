"""What results look like: a figure, and the page that colleagues get."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgram.errors import ConfigError
from fedgram.experiments.run_record import RunRecord
from fedgram.runtime import files


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure as SVG; a notebook shows it.

    Parameters
    ----------
    title
        What it shows.
    svg
        The figure.

    Examples
    --------
    >>> import fedgram as fg
    >>> figure = fg.run("afl", fg.federate(fg.load_dataset("digits"))).plot()
    >>> figure, figure.svg[:4]
    (Figure(accuracy of 19 clients), '<svg')
    """

    title: str
    svg: str

    def __repr__(self) -> str:
        return f"Figure({self.title})"

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the figure to an ``.svg`` or ``.html`` file.

        Parameters
        ----------
        path
            The file.
        """
        path = Path(path)
        if path.suffix not in (".svg", ".html"):
            raise ConfigError(f"path: expected a name that ends with .svg or .html, got {path}")
        page = f"<!doctype html>\n<meta charset='utf-8'>\n<title>fedgram</title>\n{self.svg}\n"
        files.write(path, self.svg if path.suffix == ".svg" else page)
        return path


def scores_of_clients(scores: Mapping[str, Sequence[float]], score: str) -> Figure:
    """Return a figure of each method's clients, from the worst to the best.

    Parameters
    ----------
    scores
        Of each method, the score of every client that has test samples.
    score
        What the score is called.
    """
    # By name: the report reads recorded runs, so that it is above this package.
    charts = importlib.import_module("fedgram.report.charts.clients")
    clients = max((len(found) for found in scores.values()), default=0)
    title = f"{score} of {clients} clients"
    return Figure(title=title, svg=str(charts.spread_of_clients(title, scores, score=score)))


def write_page(runs: Sequence[RunRecord], path: str | Path, title: str | None) -> Path:
    """Write the report of some runs as one HTML file.

    Parameters
    ----------
    runs
        The runs.
    path
        The file, whose name ends with ``.html``.
    title
        Title of the page; by default what the runs have in common.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise ConfigError(f"path: expected a name that ends with .html, got {path}")
    report = importlib.import_module("fedgram.report.page")  # by name, as above
    files.write(path, report.page(runs, title=title))
    return path
