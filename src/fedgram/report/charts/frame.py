"""The frame that figures share: paper, title, axes, and the names of series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedgram.report.charts.axes import Scale, Written
from fedgram.report.charts.palette import color_class, marker, style
from fedgram.report.markup import Markup, number, tag
from fedgram.runtime.text import compact, percent_tick, quantity, size

CHARACTER = 7.2  # width of a character at 12 px in a wide font
LONGEST = 24
ROW = 16.0
MARK = 8.0  # room above a plot for a marker at its upper end
GAP = 9.0  # between two labels of an axis
NAME_X = 12  # where a title and the name of the y axis begin
TITLE_LETTER = 7.7  # width of a character of a title
LETTER = 7.0  # width of a character of small text in a wide font, also on a telephone
# How the page's script writes the ticks of an axis that is zoomed.
_FORMATS = {percent_tick: "percent", size: "bytes", quantity: "quantity"}


def svg(
    width: float, height: float, label: str, *content: str | Iterable[str], **more: str | None
) -> Markup:
    """Return an SVG file that can be inlined in a page; the label is for screen readers."""
    return tag(
        "svg",
        style(),
        tag("rect", width=width, height=height, class_="paper"),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_="fg",
        **more,
    )


def words(
    x: float, y: float, content: str, *, anchor: str | None = None, class_: str | None = None
) -> Markup:
    """Return a line of text; anchor is "middle" or "end"."""
    return tag("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def shortened(name: str, longest: int = LONGEST) -> str:
    """Return a name that fits where there is little room.

    Examples
    --------
    >>> shortened("a very long name", 8)
    'a very …'
    """
    return name if len(name) <= longest else name[: longest - 1] + "…"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Two axes and what they mean.

    The scales set the place of the plot on the page: x from left to right, y from bottom to top.
    """

    title: str
    x: Scale
    y: Scale
    x_name: str
    y_name: str
    width: float
    height: float
    x_text: Written = compact
    y_text: Written = compact
    x_ticks: Sequence[float] | None = None

    @property
    def y_name_height(self) -> float:
        """Where the name of the y axis stands, above the plot."""
        return self.y.end - 14

    def draw(
        self,
        *content: str | Iterable[str],
        plot: Iterable[Markup] = (),
        all_of_y: float | None = None,
    ) -> str:
        """Return the figure: grid below, content above.

        What is in `plot` is cut off at the axes, and the page can zoom into it, or out to
        `all_of_y`, the lowest value of all.
        """
        drawn = list(plot)
        zoom = {
            "data_x": _described(self.x, self.x_text),
            "data_y": _described(self.y, self.y_text),
            "data_low": None if all_of_y is None else repr(all_of_y),
        }
        return svg(
            self.width,
            self.height,
            f"{self.title}: {self.y_name} against {self.x_name}",
            words(
                NAME_X, 22, shortened(self.title, int(self.width / TITLE_LETTER)), class_="title"
            ),
            self._horizontal(),
            self._vertical(),
            self._clipped(drawn) if drawn else "",
            *content,
            **(zoom if drawn else {}),
        )

    def _clipped(self, plot: Sequence[Markup]) -> Markup:
        """Return the content of the plot; an SVG within an SVG shows nothing outside of itself."""
        left, top = self.x.start, self.y.end - MARK
        width, height = self.x.end - left, self.y.start - top
        box = " ".join(map(number, (left, top, width, height)))
        return tag(
            "svg", plot, x=left, y=top, width=width, height=height, viewBox=box, class_="plot"
        )

    def _horizontal(self) -> Markup:
        left, right = self.x.start, self.x.end
        ticks = self.y.ticks(6)
        rules = "".join(f"M{number(left)} {number(self.y(t))}H{number(right)}" for t in ticks)
        texts = [
            words(left - 6, self.y(t) + 4, self.y_text(t), anchor="end", class_="small")
            for t in ticks
        ]
        name = words(NAME_X, self.y_name_height, self.y_name, class_="small")
        grid = tag("g", tag("path", d=rules, class_="rule grid"), texts, class_="yticks")
        return tag("g", grid, name, class_="faint")

    def _vertical(self) -> Markup:
        base = self.y.start
        ticks = self._that_fit(self.x.ticks() if self.x_ticks is None else self.x_ticks)
        rules = "".join(f"M{number(self.x(t))} {number(base)}v4" for t in ticks)
        line = f"M{number(self.x.start)} {number(base)}H{number(self.x.end)}"
        if (gap := self.x.gap) is not None:
            rules += "".join(f"M{number(gap + d)} {number(base + 4)}l4 -8" for d in (-4, 0))
        texts = [
            words(self.x(t), base + 17, self.x_text(t), anchor="middle", class_="small")
            for t in ticks
        ]
        middle = (self.x.start + self.x.end) / 2
        name = words(middle, base + 34, self.x_name, anchor="middle", class_="small")
        marks = tag("g", tag("path", d=rules, class_="rule") if rules else "", texts)
        marks = tag("g", marks, class_="xticks")
        return tag("g", tag("path", d=line, class_="rule"), marks, name, class_="faint")

    def _that_fit(self, ticks: Sequence[float]) -> list[float]:
        """Return the ticks whose labels do not touch the one before, nor leave the figure."""
        kept: list[float] = []
        end = float("-inf")
        for tick in ticks:
            half = 0.9 * CHARACTER * len(self.x_text(tick)) / 2  # 11 px, not 12
            if self.x(tick) - half >= end + GAP and self.x(tick) + half <= self.width - 2:
                kept.append(tick)
                end = self.x(tick) + half
        return kept


def _described(scale: Scale, text: Written) -> str:
    """Return an axis for the page's script: its range, its kind and how numbers are written."""
    kind = ("zero" if scale.zero else "log") if scale.logarithmic else "linear"
    return f"{scale.low!r} {scale.high!r} {kind} {_FORMATS.get(text, 'compact')}"


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A name of the legend: its place among all series, its height, its kind of line."""

    name: str
    place: int
    height: float
    line: str


def legend_width(names: Iterable[str]) -> float:
    """Return the room that names at the right edge need."""
    return 34 + CHARACTER * max((len(shortened(name)) for name in names), default=0)


def legend(entries: Sequence[LegendEntry], x: float, top: float, low: float) -> Markup:
    """Return names at the right edge, each as near as can be to the height it belongs to."""
    placed = sorted(entries, key=lambda entry: (entry.height, entry.place))
    heights = dodged([entry.height for entry in placed], top, low)
    return tag(
        "g",
        [_entry(entry, x + 6, y) for entry, y in zip(placed, heights, strict=True)],
        class_="names",
    )


def rows_below(names: Iterable[str], width: float) -> list[list[str]]:
    """Return names in the rows in which they fit below a plot.

    Examples
    --------
    >>> rows_below(["local", "afl", "a longer name"], 180)
    [['local', 'afl'], ['a longer name']]
    """
    rows: list[list[str]] = []
    used = width
    for name in names:
        needed = _room(name)
        if used + needed > width:
            rows.append([])
            used = 0.0
        rows[-1].append(name)
        used += needed
    return rows


def legend_below(entries: Sequence[LegendEntry], x: float, top: float, width: float) -> Markup:
    """Return names in rows below the plot, in the order of the series."""
    by_name = {entry.name: entry for entry in entries}
    drawn = []
    for down, row in enumerate(rows_below(by_name, width)):
        at = x
        for name in row:
            drawn.append(_entry(by_name[name], at, top + ROW * down))
            at += _room(name)
    return tag("g", drawn, class_="names")


def _room(name: str) -> float:
    return 40 + 0.9 * CHARACTER * len(shortened(name))


def _entry(entry: LegendEntry, x: float, y: float) -> Markup:
    return tag(
        "g",
        tag("path", d=f"M{number(x)} {number(y)}h18", class_=entry.line),
        marker(entry.place, x + 9, y),
        tag("g", words(x + 24, y + 4, shortened(entry.name)), class_="ink"),
        tag("title", entry.name),
        class_=color_class(entry.place),
        data_row=str(entry.place),
    )


def dodged(heights: Sequence[float], top: float, low: float) -> list[float]:
    """Move sorted heights apart by a row, as little as a pass down and one up can.

    Examples
    --------
    >>> dodged([50.0, 52.0, 100.0], 0, 200)
    [50.0, 66.0, 100.0]
    >>> dodged([190.0, 195.0], 0.0, 200.0)
    [184.0, 200.0]
    """
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + ROW if placed else top))
    for place in reversed(range(len(placed))):
        ceiling = placed[place + 1] - ROW if place + 1 < len(placed) else low
        placed[place] = min(placed[place], ceiling)
    return placed
