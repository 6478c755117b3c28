"""The frame that figures share: paper, title, axes, and names at the right edge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedgram.report.charts.axes import Scale, Written
from fedgram.report.charts.palette import color_class, marker, style
from fedgram.report.markup import Markup, number, tag
from fedgram.runtime.text import compact

CHARACTER = 7.2  # width of a character at 12 px in a wide font
LONGEST = 24
ROW = 16.0


def svg(width: float, height: float, label: str, *content: str | Iterable[str]) -> Markup:
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

    def draw(self, *content: str | Iterable[str]) -> str:
        """Return the figure: grid below, content above."""
        return svg(
            self.width,
            self.height,
            f"{self.title}: {self.y_name or 'accuracy, %'} against {self.x_name}",
            words(12, 22, self.title, class_="title"),
            self._horizontal(),
            self._vertical(),
            *content,
        )

    def _horizontal(self) -> Markup:
        left, right = self.x.start, self.x.end
        ticks = self.y.ticks(6)
        rules = "".join(f"M{number(left)} {number(self.y(t))}H{number(right)}" for t in ticks)
        texts = [
            words(left - 6, self.y(t) + 4, self.y_text(t), anchor="end", class_="small")
            for t in ticks
        ]
        name = words(left, self.y.end - 8, self.y_name, class_="small")
        return tag("g", tag("path", d=rules, class_="rule grid"), texts, name, class_="faint")

    def _vertical(self) -> Markup:
        base = self.y.start
        ticks = self.x.ticks() if self.x_ticks is None else self.x_ticks
        rules = f"M{number(self.x.start)} {number(base)}H{number(self.x.end)}"
        rules += "".join(f"M{number(self.x(t))} {number(base)}v4" for t in ticks)
        if (gap := self.x.gap) is not None:
            rules += "".join(f"M{number(gap + d)} {number(base + 4)}l4 -8" for d in (-4, 0))
        texts = [
            words(self.x(t), base + 17, self.x_text(t), anchor="middle", class_="small")
            for t in ticks
        ]
        middle = (self.x.start + self.x.end) / 2
        name = words(middle, base + 34, self.x_name, anchor="middle", class_="small")
        return tag("g", tag("path", d=rules, class_="rule"), texts, name, class_="faint")


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A name at the right edge: its place among all series, its height, its kind of line."""

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
        [
            tag(
                "g",
                tag("path", d=f"M{number(x + 6)} {number(y)}h18", class_=entry.line),
                marker(entry.place, x + 15, y),
                tag("g", words(x + 30, y + 4, shortened(entry.name)), class_="ink"),
                tag("title", entry.name),
                class_=color_class(entry.place),
            )
            for entry, y in zip(placed, heights, strict=True)
        ],
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
