"""Accuracy against costs, and against a parameter: curves as SVG.

SVG is written by hand: the output is the same bytes whatever is installed, needs no package beyond
the core, keeps text as text, follows the reader's light or dark setting, and shows the numbers
behind a mark where the pointer rests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedgram.errors import ConfigError
from fedgram.experiments.measures import COST_AXES
from fedgram.experiments.seeds import Point
from fedgram.report.charts.axes import Scale, Written, axis_for, wide
from fedgram.report.charts.frame import (
    LETTER,
    NAME_X,
    ROW,
    Frame,
    LegendEntry,
    legend,
    legend_below,
    legend_width,
    rows_below,
    words,
)
from fedgram.report.charts.palette import color_class, line_class, marker
from fedgram.report.markup import Markup, number, tag
from fedgram.runtime.settings import propose
from fedgram.runtime.text import compact, percent_tick

Series = Mapping[str, Sequence[Point]]

TOP, BOTTOM = 56.0, 44.0
FEW = 12  # points that are marked one by one
ANSWERS = 40  # points of a curve that answer to the pointer, at most about this number
CURVE = 5  # points from which on the lowest ones may lie below the axis
WORTH = 1.5  # how much higher the plot of the others must get by that
ACCURACY = "accuracy, %"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The size of a figure, and whether names are below the plot instead of beside it."""

    width: float
    height: float
    left: float
    names_below: bool = False


WIDE = Sheet(width=560, height=330, left=44)
NARROW = Sheet(width=344, height=270, left=36, names_below=True)  # a telephone: words of full size


def curves(
    title: str,
    series: Series,
    *,
    axis: str,
    chosen: Mapping[str, float] | None = None,
    y_name: str = ACCURACY,
    sheet: Sheet = WIDE,
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
        What the cost is: rounds, exchanges, seconds, flops or bytes.
    chosen
        For methods of many rounds, the cost at which the model was taken: it gets a ring.
    y_name
        Which accuracy it is.
    sheet
        Size of the figure: `WIDE`, or `NARROW` for a small screen.

    Notes
    -----
    The lowest fifth of a curve of five points or more may lie below the axis, where it would
    squash all others: the figure says so.

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
    counted = axis in ("rounds", "exchanges")
    logarithmic = wide(costs) and (not counted or max(costs) > 300)
    frame = _frame(title, kept, about.label, about.text, logarithmic=logarithmic, sheet=sheet)
    frame = replace(frame, y=_above_early(kept, frame.y), y_name=y_name)
    if counted and not logarithmic:
        frame = replace(frame, x_ticks=_integer_ticks(frame.x, min(costs, default=1.0)))
    places = _places(series)
    rings = [
        _ring(places[name], min(kept[name], key=lambda point: abs(point[0] - where)), frame)
        for name, where in (chosen or {}).items()
        if len(kept.get(name, ())) > 1
    ]
    return _drawn(frame, kept, places, rings, reaching=True, sheet=sheet)


def sensitivity(
    title: str, parameter: str, series: Series, *, logarithmic: bool, y_name: str = ACCURACY
) -> str:
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
    y_name
        Which score it is.

    Examples
    --------
    >>> ridge = {"digits": [(0.1, 0.90, 0.01), (1, 0.93, 0.01), (10, 0.92, 0.01)]}
    >>> sensitivity("AFL", "ridge", ridge, logarithmic=True).count('class="mark"')
    4
    """
    kept = _drawable(series)
    if logarithmic and any(x < 0 for points in kept.values() for x, _, _ in points):
        raise ConfigError(f"{parameter}: a negative value cannot be shown on a logarithmic axis")
    frame = _frame(title, kept, parameter, compact, logarithmic=logarithmic, sheet=WIDE)
    frame = replace(frame, y_name=y_name)
    values = sorted({x for points in kept.values() for x, _, _ in points})
    if 1 < len(values) <= 7 and not logarithmic:
        frame = replace(frame, x_ticks=values)  # ticks at the values that were tried
    return _drawn(frame, kept, _places(series), sheet=WIDE)


def drawn_series(
    title: str, series: Series, x_name: str, x_text: Written, y_name: str, sheet: Sheet
) -> str:
    """Draw accuracy against anything, on plain axes."""
    kept = _drawable(series)
    frame = _frame(title, kept, x_name, x_text, logarithmic=False, sheet=sheet)
    return _drawn(replace(frame, y_name=y_name), kept, _places(series), sheet=sheet)


def _places(series: Series) -> dict[str, int]:
    """Return the place of each series, which gives it its color; empty ones have theirs too."""
    return {name: place for place, name in enumerate(series)}


def _drawn(
    frame: Frame,
    kept: Series,
    places: Mapping[str, int],
    above: Sequence[Markup] = (),
    *,
    sheet: Sheet,
    reaching: bool = False,
) -> str:
    """Return a frame with its curves, what lies above them, and their names.

    A single point reaches on as a dashed line if asked to.
    """
    lines = {
        name: line_class(places[name], "reach" if reaching and len(points) == 1 else "line")
        for name, points in kept.items()
    }
    with_titles = not sheet.names_below  # no pointer rests on a mark of a telephone
    marks = [
        _curve(name, places[name], kept[name], frame, line, with_titles=with_titles)
        for name, line in lines.items()
    ]
    lowest = min((mean for points in kept.values() for _, mean, _ in points), default=0.0)
    return frame.draw(
        _names(kept, places, lines, frame, sheet),
        _below(kept, frame, "early point" if reaching else "point"),
        plot=[*marks, *above],
        all_of_y=lowest if lowest < frame.y.low else None,
    )


def _below(kept: Series, frame: Frame, what: str) -> Markup:
    """Return a line of text on what lies below the axis: above the plot, where no curve is."""
    counts = {
        name: sum(mean < frame.y.low for _, mean, _ in points) for name, points in kept.items()
    }
    number_below = sum(counts.values())
    if not number_below:
        return Markup("")
    points = f"{number_below} {what}{'s' * (number_below > 1)}"
    names = ", ".join(name for name, count in counts.items() if count)
    room = (frame.x.end - NAME_X - LETTER * len(frame.y_name)) / LETTER - 2
    labels = [f"{points} of {names} below the axis", f"{points} below the axis"]
    label = next((label for label in labels if len(label) <= room), f"{points} below")
    line = words(frame.x.end, frame.y_name_height, label, anchor="end", class_="small")
    return tag("g", line, class_="faint below")


def _drawable(series: Series) -> dict[str, list[Point]]:
    """Return the points that are numbers, in order, of the series that have any."""
    kept = {
        name: sorted(point for point in points if all(map(math.isfinite, point)))
        for name, points in series.items()
    }
    return {name: points for name, points in kept.items() if points}


def _frame(
    title: str, kept: Series, x_name: str, x_text: Written, *, logarithmic: bool, sheet: Sheet
) -> Frame:
    points = [point for some in kept.values() for point in some]
    if sheet.names_below:
        bottom = BOTTOM + 4 + ROW * len(rows_below(kept, sheet.width - 12))
        height, right = sheet.height + bottom - BOTTOM, sheet.width - 8
    else:
        bottom = BOTTOM
        height = max(sheet.height, TOP + BOTTOM + ROW * len(kept))
        right = sheet.width - legend_width(kept)
    x = axis_for([x for x, _, _ in points], sheet.left, right, logarithmic=logarithmic)
    return Frame(
        title=title,
        x=x,
        y=_accuracy_axis(kept, height - bottom, TOP),
        x_name=x_name,
        y_name=ACCURACY,
        width=sheet.width,
        height=height,
        x_text=x_text,
        y_text=percent_tick,
        x_ticks=None if points else (),
    )


def _accuracy_axis(kept: Series, start: float, end: float) -> Scale:
    ends = [mean + way * sd for some in kept.values() for _, mean, sd in some for way in (-1, 1)]
    y = axis_for(ends or [0.0, 1.0], start, end, margin=0.06)
    return replace(y, low=max(y.low, 0.0), high=min(y.high, 1.0)) if _proper(y) else y


def _above_early(kept: Series, y: Scale) -> Scale:
    """Return the axis from where the lowest points of curves do not squash all others."""
    late = [point for some in kept.values() for point in _without_lowest(some)]
    floor = min((mean - sd for _, mean, sd in late), default=y.low)
    low = floor - 0.06 * (y.high - floor)
    return replace(y, low=low) if 0 < WORTH * (y.high - low) < y.high - y.low else y


def accuracy_limits(series: Series) -> tuple[float, float]:
    """Return the ends of the axis on which `curves` draws these series, as fractions."""
    kept = _drawable(series)
    y = _above_early(kept, _accuracy_axis(kept, 1.0, 0.0))
    return y.low, y.high


def _without_lowest(points: Sequence[Point]) -> Sequence[Point]:
    """Return the points without the lowest fifth of a curve; its last point is always there."""
    if len(points) < CURVE:
        return points
    limit = sorted(mean for _, mean, _ in points)[len(points) // 5]
    return [point for point in points if point[1] >= limit or point is points[-1]]


def _integer_ticks(x: Scale, first: float) -> list[float]:
    """Return the ticks of an axis that counts, from the first count: integers."""
    return [first, *(tick for tick in x.ticks() if tick > first and tick == int(tick))]


def _proper(y: Scale) -> bool:
    """Return whether an axis cut at 0 and 1 still shows more than a line."""
    return min(y.high, 1.0) > max(y.low, 0.0)


def _curve(
    name: str, place: int, points: Sequence[Point], frame: Frame, line: str, *, with_titles: bool
) -> Markup:
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
        elif with_titles and where % math.ceil(len(points) / ANSWERS) == 0:
            shape = tag("circle", cx=x, cy=y, r=5, class_="strip")
        else:
            continue
        text = tag("title", _tooltip(name, point, frame)) if with_titles else ""
        drawn.append(tag("g", shape, text) if with_titles else shape)
    return tag("g", drawn, class_=color_class(place), data_row=str(place))


def _tooltip(name: str, point: Point, frame: Frame) -> str:
    x, mean, sd = point
    deviation = f" ± {100 * sd:.2f}" if sd > 0 else ""
    return f"{name}: {100 * mean:.2f}{deviation} % at {frame.x_text(x)} ({frame.x_name})"


def _ends(point: Point, frame: Frame) -> tuple[float, float]:
    """Return the heights of a deviation either way; no accuracy is below 0 or above 1."""
    _, mean, sd = point
    low, high = min(frame.y.low, 0.0), max(1.0, mean)
    return frame.y(min(mean + sd, high)), frame.y(max(mean - sd, low))


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
    with_titles = tag("title", "the round that was chosen")
    return tag("g", shape, with_titles, class_=color_class(place), data_row=str(place))


def _names(
    kept: Series,
    places: Mapping[str, int],
    lines: Mapping[str, str],
    frame: Frame,
    sheet: Sheet,
) -> Markup:
    if not kept:
        middle = (frame.x.start + frame.x.end) / 2
        return words(middle, (TOP + frame.y.start) / 2, "nothing recorded", anchor="middle")
    entries = [
        LegendEntry(name=name, place=places[name], height=frame.y(points[-1][1]), line=lines[name])
        for name, points in kept.items()
    ]
    if sheet.names_below:
        return legend_below(entries, 12, frame.y.start + BOTTOM + 6, sheet.width - 12)
    return legend(entries, frame.x.end, TOP, frame.y.start)
