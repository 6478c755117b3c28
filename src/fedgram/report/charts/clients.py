"""Accuracy client by client: gains over training alone, and the distribution over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedgram.experiments.measures import ACCURACY
from fedgram.experiments.seeds import Point
from fedgram.report.charts.axes import Scale
from fedgram.report.charts.curves import WIDE, Series, Sheet, drawn_series
from fedgram.report.charts.frame import Frame, shortened, words
from fedgram.report.markup import Markup, number, tag
from fedgram.runtime.text import percent, percent_tick

PANEL = 268.0
LEFT, TOP, BOTTOM, RIGHT = 42.0, 82.0, 42.0, 12.0
HEIGHT = PANEL + 40
MANY = 300  # clients that are drawn without words of their own
STEPS = 200  # points of a curve over clients, at most


@dataclass(frozen=True, kw_only=True)
class ClientPair:
    """A client's accuracy with a method and alone, as fractions, and its number of test samples."""

    client: str
    ours: float
    alone: float
    samples: int


def gains(
    title: str,
    pairs: Sequence[ClientPair],
    *,
    low: float | None = None,
    score: str = ACCURACY.one,
) -> str:
    """Draw each client's score against that of training alone: above the line it gains.

    Parameters
    ----------
    title
        Above the figure: the method.
    pairs
        One for each client.
    low
        Where both axes start; a client below it is drawn at the edge. Panels side by side want
        the same one.
    score
        What the score is called.

    Examples
    --------
    >>> pairs = [ClientPair(client="a", ours=0.9, alone=0.7, samples=20)]
    >>> picture = gains("apfl", pairs)
    >>> "a: 90.0 % with apfl, 70.0 % alone (20 test samples)" in picture
    True
    """
    start = floor(pairs) if low is None else low
    room = (1 - start) * 0.03
    axis = Scale(low=start - room, high=1 + room, start=LEFT, end=PANEL - RIGHT)
    frame = Frame(
        title=title,
        x=axis,
        y=replace(axis, start=HEIGHT - BOTTOM, end=TOP),
        x_name=f"{score} of training alone, %",
        y_name=f"{score} with {shortened(title)}, %",
        width=PANEL,
        height=HEIGHT,
        x_text=percent_tick,
        y_text=percent_tick,
        x_ticks=axis.ticks(6),
    )
    ways = {
        way: [pair for pair in pairs if (pair.ours > pair.alone) - (pair.ours < pair.alone) == way]
        for way in (0, 1, -1)
    }
    marks = [_marks(title, way, some, frame) for way, some in ways.items() if some]
    corners = [number(value) for value in (frame.x.start, frame.y.start, frame.x.end, frame.y.end)]
    diagonal = f"M{corners[0]} {corners[1]}L{corners[2]} {corners[3]}"
    line = tag("g", tag("path", d=diagonal, class_="rule"), class_="faint")
    outside = sum(min(pair.ours, pair.alone) < frame.x.low for pair in pairs)
    label = f"{outside} further out" if outside else ""
    beyond = words(frame.x.end, frame.y.start - 8, label, anchor="end", class_="small")
    tally = _tally({way: len(some) for way, some in ways.items()})
    return frame.draw(line, marks, tally, tag("g", beyond, class_="faint halo"))


def floor(pairs: Sequence[ClientPair]) -> float:
    """Return a round accuracy to start axes from: few lie below, and those are drawn at the edge.

    A client of two test samples may well have none right; it must not squeeze all others.
    """
    both = sorted(value for pair in pairs for value in (pair.ours, pair.alone))
    lowest = both[len(both) // 50] if both else 0.0
    return min(math.floor(lowest * 10) / 10, 0.9)


_KINDS = {1: ("s0", "better"), -1: ("s1", "worse"), 0: ("faint", "the same")}


def _shape(way: int, x: float, y: float, radius: float) -> str:
    """Return a path: a triangle up for a gain or down for a loss, else a circle."""
    if not way:
        r = number(radius)
        return f"M{number(x - radius)} {number(y)}a{r} {r} 0 1 0 {number(2 * radius)} 0" + (
            f"a{r} {r} 0 1 0 {number(-2 * radius)} 0z"
        )
    top, base = number(y - way * 1.2 * radius), number(y + way * 0.8 * radius)
    return f"M{number(x)} {top}L{number(x + 1.1 * radius)} {base}H{number(x - 1.1 * radius)}z"


def _marks(title: str, way: int, pairs: Sequence[ClientPair], frame: Frame) -> Markup:
    """Return marks of all clients that gain, lose or stay; larger with more test samples."""
    largest = max(pair.samples for pair in pairs) or 1
    drawn = []
    for pair in sorted(pairs, key=lambda pair: -pair.samples):  # the small ones on top
        radius = 2.4 + 3.2 * math.sqrt(pair.samples / largest)
        alone, ours = max(pair.alone, frame.x.low), max(pair.ours, frame.y.low)
        shape = _shape(way, frame.x(alone), frame.y(ours), radius)
        drawn.append((shape, pair))
    if len(drawn) > MANY:
        marks = [tag("path", d="".join(shape for shape, _ in drawn), class_="cloud")]
    else:
        marks = [
            tag("path", tag("title", _tooltip(title, pair)), d=shape, class_="cloud")
            for shape, pair in drawn
        ]
    return tag("g", marks, class_=_KINDS[way][0])


def _tooltip(title: str, pair: ClientPair) -> str:
    return (
        f"{pair.client}: {percent(pair.ours)} % with {title}, {percent(pair.alone)} % alone "
        f"({pair.samples} test samples)"
    )


def _tally(counts: Mapping[int, int]) -> Markup:
    """Return the number of clients that gain, lose or stay: also the legend of the shapes."""
    drawn: list[Markup] = []
    x = 15.0
    for way in (1, -1, 0):
        color, name = _KINDS[way]
        label = f"{counts[way]} {name}"
        drawn.append(tag("path", d=_shape(way, x, 40, 4), class_="mark " + color))
        drawn.append(tag("g", words(x + 9, 44, label, class_="small"), class_="faint"))
        x += 24 + 6.2 * len(label)
    return tag("g", drawn)


def spread_of_clients(
    title: str,
    scores: Mapping[str, Sequence[float]],
    *,
    score: str = ACCURACY.one,
    sheet: Sheet = WIDE,
) -> str:
    """Draw every method's clients in order, from the worst to the best.

    Parameters
    ----------
    title
        Above the figure.
    scores
        Of each method, the score of every client.
    score
        What the score is called.
    sheet
        Size of the figure.

    Examples
    --------
    >>> picture = spread_of_clients("clients", {"afl": [0.5, 0.9], "apfl": [0.8, 0.9]})
    >>> "% of clients, from the worst" in picture
    True
    """
    series: Series = {name: _in_order(found) for name, found in scores.items()}
    x_name, y_name = "% of clients, from the worst to the best", f"{score} of a client, %"
    return drawn_series(title, series, x_name, percent_tick, y_name, sheet)


def _in_order(accuracies: Sequence[float]) -> list[Point]:
    """Return the clients from the worst to the best; of many an even selection with both ends."""
    ordered = sorted(accuracies)
    last = len(ordered) - 1
    steps = min(last, STEPS)
    places = [round(step * last / steps) for step in range(steps + 1)] if steps else range(last + 1)
    return [(place / max(last, 1), ordered[place], 0.0) for place in places]
