"""The figures of the report as PDF and PNG for papers, drawn by matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgram.errors import ConfigError
from fedgram.experiments.measures import COST_AXES
from fedgram.experiments.run_record import RunRecord
from fedgram.experiments.seeds import Point, chosen_at, mean_curve
from fedgram.report.charts.axes import wide
from fedgram.report.charts.clients import ClientPair, floor
from fedgram.report.charts.curves import accuracy_limits
from fedgram.report.charts.palette import LIGHT
from fedgram.report.groups import Comparison, comparisons
from fedgram.runtime import files

COLUMN = 3.4  # inches: a column of a page with two
RATIO = 0.72  # height of a figure, by its width
NAMES_IN_A_ROW = 4
ROW = 0.17  # inches of a row of names above the plot
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e3e6eb",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # text stays text, as publishers ask for
    "savefig.dpi": 300,
}
FORMATS = ("pdf", "png")
MOST_MARKS = 12  # of a curve
LONG = 14  # characters of a name from which on fewer names are in a row


def write_figures(runs: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Write all figures of these runs into a folder, each as PDF and PNG.

    Figures are as wide as a column of a paper with two, without titles. Their numbers are those of
    the page. Returns the paths without endings.

    Parameters
    ----------
    runs
        What `read_runs` returns.
    folder
        Where to write; created if it is missing.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "figures as PDF and PNG need matplotlib: pip install 'fedgram[figures]'"
        ) from error
    written = []
    found = comparisons(runs)
    with mpl.rc_context(STYLE):
        for place, comparison in enumerate(found):
            section = f"{place + 1}-" if len(found) > 1 else ""
            for name, draw in _drawings(comparison):
                figure = Figure(figsize=(COLUMN, RATIO * COLUMN))
                draw(figure)
                _name(figure)
                path = folder / f"{section}{name}"
                _write(figure, path)
                written.append(path)
    return written


def _name(figure: Any) -> None:
    """Write the names of the series above the plot, where they hide no curve."""
    marks, names = figure.axes[0].get_legend_handles_labels()
    across = NAMES_IN_A_ROW if max(map(len, names)) < LONG else NAMES_IN_A_ROW // 2
    across = min(across, len(names))
    figure.set_figheight(figure.get_figheight() + ROW * math.ceil(len(names) / across))
    figure.legend(
        marks,
        names,
        loc="outside upper center",
        ncols=across,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.0,
        borderaxespad=0.2,
    )


def _drawings(comparison: Comparison) -> Iterator[tuple[str, Any]]:
    """Yield the name of each figure and a function that draws it."""
    score = comparison.words.one
    for axis in COST_AXES:
        series = {row.label: mean_curve(row.runs, axis) for row in comparison.rows}
        if sum(map(len, series.values())) > 1:
            chosen = {r.label: chosen_at(r.runs, axis) for r in comparison.rows if r.repeated}
            yield f"accuracy-{axis}", _Costs(axis, series, chosen, score).draw
    reached = {
        row.label: sorted(a for run in row.runs for a in run.chosen.by_client().values())
        for row in comparison.rows
    }
    if any(reached.values()):
        yield "clients", _Clients(reached, score).draw
    compared = {row.label: comparison.pairs(row) for row in comparison.rows if not row.alone}
    start = floor([pair for some in compared.values() for pair in some])
    for label, pairs in compared.items():
        if pairs:
            yield f"gain-{_file_name(label)}", _Gain(label, pairs, start, score).draw


class _Costs:
    """Accuracy against a cost."""

    def __init__(
        self,
        axis: str,
        series: Mapping[str, Sequence[Point]],
        chosen: Mapping[str, float | None],
        score: str,
    ) -> None:
        self.axis, self.series, self.chosen, self.score = axis, series, chosen, score

    def draw(self, figure: Any) -> None:
        axes = figure.add_subplot()
        costs = [x for points in self.series.values() for x, _, _ in points]
        counted = self.axis in ("rounds", "exchanges")
        if wide(costs) and (not counted or max(costs) > 300):
            lowest = min(x for x in costs if x > 0)
            zero = min(costs) <= 0
            axes.set_xscale(*(("symlog",) if zero else ("log",)), **_linear_up_to(lowest, zero))
        for place, (label, points) in enumerate(self.series.items()):
            if points:
                self._curve(axes, place, label, points)
        low, high = accuracy_limits(self.series)
        axes.set_ylim(100 * low, 100 * high + 1)
        axes.set_xlabel(COST_AXES[self.axis].label)
        axes.set_ylabel(f"client-mean {self.score} (%)")

    def _curve(self, axes: Any, place: int, label: str, points: Sequence[Point]) -> None:
        color, marker = LIGHT[place % len(LIGHT)], MARKERS[(place + place // 8) % len(MARKERS)]
        x, mean, sd = (list(column) for column in zip(*points, strict=True))
        y, spread = [100 * one for one in mean], [100 * one for one in sd]
        every = max(1, math.ceil(len(points) / MOST_MARKS))
        axes.plot(x, y, color=color, marker=marker, markevery=every, label=label)
        if len(points) == 1:
            if any(spread):
                axes.errorbar(x, y, spread, color=color, capsize=2, linewidth=0.8)
            axes.axhline(y[0], color=color, linestyle="--", linewidth=0.7)
        elif any(spread):
            low = [a - b for a, b in zip(y, spread, strict=True)]
            high = [a + b for a, b in zip(y, spread, strict=True)]
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        where = self.chosen.get(label)
        if where is not None and len(points) > 1:
            at = min(range(len(x)), key=lambda k: abs(x[k] - where))
            axes.plot(x[at], y[at], "o", markersize=8, markerfacecolor="none", color=color)


def _linear_up_to(lowest: float, zero: bool) -> dict[str, float]:
    """Return the settings of an axis with zero: linear up to the lowest cost above it."""
    return {"linthresh": lowest} if zero else {}


class _Clients:
    """The clients of every method from the worst to the best."""

    def __init__(self, reached: Mapping[str, Sequence[float]], score: str) -> None:
        self.reached, self.score = reached, score

    def draw(self, figure: Any) -> None:
        axes = figure.add_subplot()
        for place, (label, found) in enumerate(self.reached.items()):
            if found:
                last = max(len(found) - 1, 1)
                axes.plot(
                    [100 * k / last for k in range(len(found))],
                    [100 * one for one in found],
                    color=LIGHT[place % len(LIGHT)],
                    linestyle=":" if place >= len(LIGHT) else "-",
                    label=label,
                )
        axes.set_xlabel("% of clients, from the worst to the best")
        axes.set_ylabel(f"{self.score} of a client (%)")


class _Gain:
    """Each client's score with a method against that of training alone."""

    def __init__(self, label: str, pairs: Sequence[ClientPair], start: float, score: str) -> None:
        self.label, self.pairs, self.start, self.score = label, pairs, 100 * start, score

    def draw(self, figure: Any) -> None:
        axes = figure.add_subplot()
        most = max(pair.samples for pair in self.pairs) or 1
        for way, color, marker in ((1, LIGHT[0], "^"), (-1, LIGHT[1], "v"), (0, "#5f6675", "o")):
            some = [
                pair
                for pair in self.pairs
                if (pair.ours > pair.alone) - (pair.ours < pair.alone) == way
            ]
            axes.scatter(
                [max(100 * pair.alone, self.start) for pair in some],
                [max(100 * pair.ours, self.start) for pair in some],
                [8 + 16 * pair.samples / most for pair in some],
                color=color,
                marker=marker,
                alpha=0.6,
                linewidths=0,
                label=f"{len(some)} {('the same', 'better', 'worse')[way]}",
                clip_on=False,
            )
        axes.plot([self.start, 100], [self.start, 100], color="#5f6675", linewidth=0.6)
        axes.set_aspect("equal")
        room = 0.03 * (100 - self.start)
        ends = (self.start - room, 100 + room)
        axes.set(xlim=ends, ylim=ends)
        axes.locator_params(nbins=5, steps=[1, 2, 5, 10])
        axes.set_xlabel(f"{self.score} of training alone (%)")
        axes.set_ylabel(f"{self.score} with {self.label} (%)")


def _write(figure: Any, path: Path) -> None:
    """Write a figure in every format; the same records give the same bytes."""
    from io import BytesIO

    undated = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
    for ending in FORMATS:
        buffer = BytesIO()
        figure.savefig(buffer, format=ending, metadata=undated[ending])
        files.write(path.with_name(f"{path.name}.{ending}"), buffer.getvalue())


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label).strip("-")[:80] or "method"
