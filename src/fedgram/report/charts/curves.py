"""Accuracy against costs, and against a parameter: curves as SVG.

SVG is written by hand: the output is the same bytes whatever is installed, needs no package beyond
the core, keeps text as text, follows the reader's light or dark setting, and shows the numbers
behind a mark where the pointer rests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedgram.errors import ConfigError
from fedgram.experiments.measures import COST_AXES
from fedgram.experiments.seeds import Point
from fedgram.report.charts.axes import Scale, Written, axis_for, wide
from fedgram.report.charts.frame import ROW, Frame, LegendEntry, legend, legend_width, words
from fedgram.report.charts.palette import color_class, line_class, marker
from fedgram.report.markup import Markup, number, tag
from fedgram.runtime.settings import propose
from fedgram.runtime.text import compact, percent_tick

Series = Mapping[str, Sequence[Point]]

WIDTH, HEIGHT = 560.0, 330.0
LEFT, TOP, BOTTOM = 44.0, 56.0, 44.0
FEW = 12  # points that are marked one by one
MANY = 250  # points of which only a few answer to the pointer
ACCURACY = "accuracy, %"


def curves(
    title: str, series: Series, *, axis: str, chosen: Mapping[str, float] | None = None
) -> str:
    """Draw accuracy against a cost, with all methods in one figure.

    A method with a single point was solved at once: its mark is followed by a dashed line.

    Parameters
    ----------
    title
        Above the figure.
    series
        For each method points (cost, mean accuracy, standard deviation), accuracies as fractions;
        the standard deviation is 0 where there is none.
    axis
        What the cost is: rounds, seconds, flops or bytes.
    chosen
        For methods of many rounds, the cost at which the model was taken: it gets a ring.

    Examples
    --------
    >>> picture = curves("digits", {"afl": [(1, 0.93, 0)]}, axis="rounds")
    >>> picture.startswith("<svg"), "rounds of communication" in picture
    (True, True)
    """
    if axis not in COST_AXES:
        raise ConfigError(f"axis = {axis!r}: unknown; {propose(axis, COST_AXES)}")
    about, kept = COST_AXES[axis], _drawable(series)
    costs = [x for points in kept.values() for x, _, _ in points]
    logarithmic = wide(costs) and (axis != "rounds" or max(costs) > 300)
    frame = _frame(title, kept, about.label, about.text, logarithmic=logarithmic)
    if axis == "rounds" and not logarithmic:
        frame = replace(frame, x_ticks=_integer_ticks(frame.x.ticks()))
    places = _places(series)
    rings = [
        _ring(places[name], min(kept[name], key=lambda point: abs(point[0] - where)), frame)
        for name, where in (chosen or {}).items()
        if len(kept.get(name, ())) > 1
    ]
    return _drawn(frame, kept, places, rings, reaching=True)


def sensitivity(title: str, parameter: str, series: Series, *, logarithmic: bool) -> str:
    """Draw accuracy against a parameter, a curve for each data set, heterogeneity or method.

    Parameters
    ----------
    title
        Above the figure.
    parameter
        Name of the parameter, below it.
    series
        For each curve points (value, mean accuracy, standard deviation), accuracies as fractions.
    logarithmic
        Equal ratios of the parameter are equal distances; zero gets a place of its own.

    Examples
    --------
    >>> ridge = {"digits": [(0.1, 0.90, 0.01), (1, 0.93, 0.01), (10, 0.92, 0.01)]}
    >>> sensitivity("AFL", "ridge", ridge, logarithmic=True).count('class="mark"')
    4
    """
    kept = _drawable(series)
    if logarithmic and any(x < 0 for points in kept.values() for x, _, _ in points):
        raise ConfigError(f"{parameter}: a negative value cannot be shown on a logarithmic axis")
    frame = _frame(title, kept, parameter, compact, logarithmic=logarithmic)
    values = sorted({x for points in kept.values() for x, _, _ in points})
    if 1 < len(values) <= 7 and not logarithmic:
        frame = replace(frame, x_ticks=values)  # ticks at the values that were tried
    return _drawn(frame, kept, _places(series))


def drawn_series(title: str, series: Series, x_name: str, x_text: Written) -> str:
    """Draw accuracy against anything, on plain axes."""
    kept = _drawable(series)
    frame = _frame(title, kept, x_name, x_text, logarithmic=False)
    return _drawn(frame, kept, _places(series))


def _places(series: Series) -> dict[str, int]:
    """Return the place of each series, which gives it its color; empty ones have theirs too."""
    return {name: place for place, name in enumerate(series)}


def _drawn(
    frame: Frame,
    kept: Series,
    places: Mapping[str, int],
    above: Sequence[Markup] = (),
    *,
    reaching: bool = False,
) -> str:
    """Return a frame with its curves, what lies above them, and their names.

    A single point reaches on as a dashed line if asked to.
    """
    lines = {
        name: line_class(places[name], "reach" if reaching and len(points) == 1 else "line")
        for name, points in kept.items()
    }
    marks = [_curve(name, places[name], kept[name], frame, line) for name, line in lines.items()]
    return frame.draw(marks, above, _names(kept, places, lines, frame))


def _drawable(series: Series) -> dict[str, list[Point]]:
    """Return the points that are numbers, in order, of the series that have any."""
    kept = {
        name: sorted(point for point in points if all(map(math.isfinite, point)))
        for name, points in series.items()
    }
    return {name: points for name, points in kept.items() if points}


def _frame(title: str, kept: Series, x_name: str, x_text: Written, *, logarithmic: bool) -> Frame:
    points = [point for some in kept.values() for point in some]
    height = max(HEIGHT, TOP + BOTTOM + ROW * len(kept))
    right = WIDTH - legend_width(kept)
    x = axis_for([x for x, _, _ in points], LEFT, right, logarithmic=logarithmic)
    ends = [mean + way * sd for _, mean, sd in points for way in (-1, 1)]
    y = axis_for(ends or [0.0, 1.0], height - BOTTOM, TOP, margin=0.06)
    y = replace(y, low=max(y.low, 0.0), high=min(y.high, 1.0)) if _proper(y) else y
    return Frame(
        title=title,
        x=x,
        y=y,
        x_name=x_name,
        y_name=ACCURACY,
        width=WIDTH,
        height=height,
        x_text=x_text,
        y_text=percent_tick,
        x_ticks=None if points else (),
    )


def _integer_ticks(ticks: Sequence[float]) -> list[float]:
    """Return the ticks of an axis of rounds: integers, with the first round."""
    return [1.0, *(tick for tick in ticks if tick > 1 and tick == int(tick))]


def _proper(y: Scale) -> bool:
    """Return whether an axis cut at 0 and 1 still shows more than a line."""
    return min(y.high, 1.0) > max(y.low, 0.0)


def _curve(name: str, place: int, points: Sequence[Point], frame: Frame, line: str) -> Markup:
    """Return one series: a line with its deviations and marks."""
    at = [(frame.x(x), frame.y(mean)) for x, mean, _ in points]
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in at)
    path += f"H{number(frame.x.end)}" if line.startswith("reach") else ""
    drawn: list[Markup] = []
    if len(points) <= FEW:
        drawn += [_whisker(point, frame) for point in points if point[2] > 0]
    elif any(sd > 0 for _, _, sd in points):
        drawn.append(_band(points, frame))
    drawn.append(tag("path", d=path, class_=line))
    every = max(1, math.ceil(len(points) / 8)) if len(points) > FEW else 1
    marked = {*range(0, len(points), every), len(points) - 1}
    for where, (point, (x, y)) in enumerate(zip(points, at, strict=True)):
        if where in marked:
            shape = marker(place, x, y)
        elif len(points) <= MANY:
            shape = tag("circle", cx=x, cy=y, r=5, class_="strip")
        else:
            continue
        drawn.append(
            tag("g", shape, tag("title", _tooltip(name, point, frame.x_name, frame.x_text)))
        )
    return tag("g", drawn, class_=color_class(place))


def _tooltip(name: str, point: Point, what: str, text: Callable[[float], str]) -> str:
    x, mean, sd = point
    deviation = f" ± {100 * sd:.2f}" if sd > 0 else ""
    return f"{name}: {100 * mean:.2f}{deviation} % at {text(x)} ({what})"


def _ends(point: Point, frame: Frame) -> tuple[float, float]:
    """Return the heights of a deviation either way; there is nothing beyond the axis."""
    _, mean, sd = point
    return frame.y(min(mean + sd, frame.y.high)), frame.y(max(mean - sd, frame.y.low))


def _band(points: Sequence[Point], frame: Frame) -> Markup:
    ends = [(frame.x(point[0]), *_ends(point, frame)) for point in points]
    upper = [(x, high) for x, high, _ in ends]
    lower = [(x, low) for x, _, low in reversed(ends)]
    outline = "L".join(f"{number(x)} {number(y)}" for x, y in upper + lower)
    return tag("path", d=f"M{outline}z", class_="band")


def _whisker(point: Point, frame: Frame) -> Markup:
    upper, lower = map(number, _ends(point, frame))
    where = frame.x(point[0])
    caps = "".join(f"M{number(where - 3)} {y}h6" for y in (upper, lower))
    return tag("path", d=f"M{number(where)} {upper}V{lower}{caps}", class_="whisker")


def _ring(place: int, point: Point, frame: Frame) -> Markup:
    x, mean, _ = point
    shape = tag("circle", cx=frame.x(x), cy=frame.y(mean), r=6.5, class_="ring")
    return tag("g", shape, tag("title", "the round that was chosen"), class_=color_class(place))


def _names(
    kept: Series, places: Mapping[str, int], lines: Mapping[str, str], frame: Frame
) -> Markup:
    if not kept:
        middle = (frame.x.start + frame.x.end) / 2
        return words(middle, (TOP + frame.y.start) / 2, "nothing recorded", anchor="middle")
    entries = [
        LegendEntry(name=name, place=places[name], height=frame.y(points[-1][1]), line=lines[name])
        for name, points in kept.items()
    ]
    return legend(entries, frame.x.end, TOP, frame.y.start)
