"""The figures of a section of the page: costs, clients, the partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fedgram.experiments.measures import COST_AXES
from fedgram.experiments.partition_summary import PartitionSummary
from fedgram.experiments.seeds import Point, chosen_at, mean_curve
from fedgram.report.charts.clients import floor, gains, spread_of_clients
from fedgram.report.charts.curves import NARROW, WIDE, curves
from fedgram.report.charts.palette import style
from fedgram.report.charts.partition import partition
from fedgram.report.groups import Comparison, MethodSeeds, named_seeds
from fedgram.report.markup import Markup, joined, tag

COUNTED = ("rounds", "exchanges")
PANELS_IN_A_ROW = 4  # on a usual screen; the figure of all clients takes the room of two


def costs(comparison: Comparison) -> Markup | None:
    """Return the score against every cost that is recorded, with a note on what is drawn."""
    words = comparison.words
    y_name = f"{words.quantities['client_mean'].short} {words.one}, %"
    drawn = []
    for axis, about in COST_AXES.items():
        series = {row.label: mean_curve(row.runs, axis) for row in comparison.rows}
        if not _tells(axis, series.values(), comparison):
            continue
        chosen = {row.label: chosen_at(row.runs, axis) for row in comparison.rows if row.repeated}
        rings = {label: where for label, where in chosen.items() if where is not None}
        name = f"{words.One} against {about.short}"
        drawn.append(_both(partial(curves, name, series, axis=axis, chosen=rings, y_name=y_name)))
    if not drawn:
        return None
    return _gallery([*drawn, tag("p", _drawn_here(comparison), class_="note")])


def _tells(axis: str, series: Iterable[Sequence[Point]], comparison: Comparison) -> bool:
    """Return whether a figure of this cost says something: not that all take one round."""
    found = [point for points in series for point in points]
    if axis == "rounds":
        return any(row.repeated for row in comparison.rows)
    if axis in COUNTED:
        return len({cost for cost, _, _ in found}) > 1
    return bool(found)


def _drawn_here(comparison: Comparison) -> str:
    several = any(len(row.runs) > 1 for row in comparison.rows)
    sentence = f"Drawn: {comparison.words.quantities['client_mean'].meaning}"
    if several:
        sentence += f"; mean and standard deviation over seeds ({named_seeds(comparison.runs)})"
    sentence += ". A mark with a dashed line: solved at once"
    if any(row.repeated for row in comparison.rows):
        sentence += "; a ring: the round that the table shows"
    return f"{sentence}."


def clients(comparison: Comparison) -> Markup | None:
    """Return all clients of each method in order, and each client against training alone."""
    score = comparison.words.one
    reached = {row.label: _scores(row) for row in comparison.rows}
    if not any(reached.values()):
        return None

    compared = {
        place: comparison.pairs(row) for place, row in enumerate(comparison.rows) if not row.alone
    }
    start = floor([pair for some in compared.values() for pair in some])
    panels = [
        _figure(
            gains(comparison.rows[place].label, some, low=start, score=score),
            data_row=str(place),
        )
        for place, some in compared.items()
        if some
    ]
    # No panel is left alone in a row: the figure of all clients takes the room of one more.
    alone = (2 + len(panels)) % PANELS_IN_A_ROW == 1
    title = "Clients from the worst to the best"
    all_clients = partial(spread_of_clients, title, reached, score=score)
    drawn = [_both(all_clients, class_="double stretched" if alone else "double"), *panels]
    note = tag("p", _read_so(comparison, panels=bool(panels)), class_="note")
    return joined(_gallery(drawn, class_="panels"), note)


def _read_so(comparison: Comparison, *, panels: bool) -> str:
    shown = f"Each client's {comparison.words.one} on its own test samples"
    if any(len(row.runs) > 1 for row in comparison.rows):
        shown += f"; clients of all seeds together ({named_seeds(comparison.runs)})"
    if panels:
        shown += (
            ". In the panels of single methods a mark is a client: above the line it gains over "
            "training alone, below it loses; a larger mark has more test samples"
        )
    return f"{shown}."


def partition_of(title: str, summary: PartitionSummary) -> Markup:
    """Return the picture of a partition, which may be wider than the page."""
    drawn = _figure(partition(title, summary))
    return tag("div", drawn, class_="wide", tabindex="0", role="region", aria_label=title)


def _scores(row: MethodSeeds) -> list[float]:
    scores = (score.accuracy for run in row.runs for score in run.chosen.clients)
    return [score for score in scores if score is not None]


def _both(draw: Callable[..., str], *, class_: str | None = None) -> Markup:
    """Return a figure in two sizes, of which the page shows the one that fits the screen."""
    wide = tag("div", _inlined(draw(sheet=WIDE)), class_="at-wide")
    narrow = tag("div", _inlined(draw(sheet=NARROW)), class_="at-narrow")
    return tag("figure", wide, narrow, class_=class_)


def _figure(drawing: str, **more: str) -> Markup:
    return tag("figure", _inlined(drawing), **more)


def _inlined(drawing: str) -> Markup:
    """Return a drawing without its style, which the page has once for all."""
    return Markup(drawing.replace(style(), ""))


def _gallery(figures: Sequence[Markup], class_: str = "figures") -> Markup:
    return tag("div", figures, class_=class_)
