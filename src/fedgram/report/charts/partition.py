"""A partition as a picture: clients from left to right, classes from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedgram.experiments.partition_summary import ClientCounts, PartitionSummary
from fedgram.report.charts.frame import LETTER, TITLE_LETTER, shortened, svg, words
from fedgram.report.markup import Markup, joined, number, tag

LONGEST_TITLE = 100
MOST_CLIENTS = 200  # more are thinned out: a column needs a few pixels
MANY = 2500  # cells that are drawn without words of their own
SMALLEST_DOT = 9.0  # pixels of a cell from which on dots of different size can be distinguished
SHADES = (0.15, 0.3, 0.46, 0.63, 0.81, 1.0)
BARS = 44.0


def partition(title: str, summary: PartitionSummary) -> str:
    """Draw each client's number of training samples of each class.

    Few clients and classes are dots whose area is the number of samples; many are shaded cells.
    Bars above show each client's total number of training samples.

    Examples
    --------
    >>> one = ClientCounts(client="a", holdout=False, train=(3, 0), valid=(0, 0), test=(1, 0))
    >>> picture = partition("two classes", PartitionSummary(classes=("cat", "dog"), clients=(one,)))
    >>> "a, class cat: 3 train, 0 valid, 1 test" in picture
    True
    """
    shown = _thinned(summary.clients)
    sheet = _Sheet.of(summary.classes, shown)
    classes = f", {len(summary.classes)} classes" if len(summary.classes) > 1 else ""  # or numbers
    caption = [f"training samples of {len(summary.clients)} clients{classes}"]
    if len(shown) < len(summary.clients):
        caption.append(f"{len(shown)} of the clients, evenly picked by size")
    if any(client.holdout for client in shown):
        caption.append("orange: held out of training")
    head, below = shortened(title, LONGEST_TITLE), "; ".join(caption)
    return svg(
        max(sheet.width, 24 + TITLE_LETTER * len(head), 24 + LETTER * len(below)),
        sheet.height,
        f"{title}: {', '.join(caption)}",
        words(12, 22, head, class_="title"),
        tag("g", words(12, 40, below, class_="small"), class_="faint"),
        sheet.bars(),
        sheet.strips(),
        sheet.dots() if sheet.dotted else sheet.cells(),
        sheet.names(),
        sheet.key(),
    )


def _thinned(clients: Sequence[ClientCounts]) -> tuple[ClientCounts, ...]:
    """Return clients that fit side by side: all, or some of every size."""
    if len(clients) <= MOST_CLIENTS:
        return tuple(clients)
    by_size = sorted(clients, key=lambda client: (-sum(client.train), client.client))
    step = (len(clients) - 1) / (MOST_CLIENTS - 1)
    return tuple(by_size[round(place * step)] for place in range(MOST_CLIENTS))


@dataclass(frozen=True, kw_only=True)
class _Sheet:
    classes: tuple[str, ...]
    clients: tuple[ClientCounts, ...]
    across: float  # width of a client's column
    down: float  # height of a class's row
    left: float
    most: int  # samples in the fullest cell
    top: float = 56 + BARS

    @classmethod
    def of(cls, classes: tuple[str, ...], clients: tuple[ClientCounts, ...]) -> _Sheet:
        largest = max(sum(client.train) for client in clients)
        longest = max(len(name) for name in (f"{largest:,}", *(shortened(c, 16) for c in classes)))
        return cls(
            classes=classes,
            clients=clients,
            across=min(26.0, max(3.6, 760 / len(clients))),
            down=min(20.0, max(1.5, 520 / len(classes))),
            left=20 + 6.8 * longest,
            most=max(1, *(max(client.train) for client in clients)),
        )

    @property
    def right(self) -> float:
        return self.left + self.across * len(self.clients)

    @property
    def bottom(self) -> float:
        return self.top + self.down * len(self.classes)

    @property
    def width(self) -> float:
        return max(self.right + 24, 430.0)

    @property
    def height(self) -> float:
        return self.bottom + self._label_room + 56

    @property
    def dotted(self) -> bool:
        return min(self.across, self.down) >= SMALLEST_DOT

    @property
    def _upright(self) -> bool:
        longest = max(len(client.client) for client in self.clients)
        return 6.6 * longest > self.across * self._every(60.0) - 4

    @property
    def _label_room(self) -> float:
        longest = max(len(shortened(client.client, 16)) for client in self.clients)
        return 10 + 6.6 * longest if self._upright else 16

    def _every(self, needed: float) -> int:
        """Return the number of columns from one name to the next."""
        return max(1, math.ceil(needed / self.across)) if self.across < SMALLEST_DOT * 1.6 else 1

    def x(self, place: float) -> float:
        return self.left + self.across * place

    def y(self, place: float) -> float:
        return self.top + self.down * place

    def bars(self) -> Markup:
        """How many training samples each client has."""
        sizes = [sum(client.train) for client in self.clients]
        tallest, gap = max(*sizes, 1), min(3.0, self.across * 0.18)
        shapes = [
            tag(
                "rect",
                x=self.x(k) + gap / 2,
                y=self.top - 6 - (BARS - 8) * count / tallest,
                width=self.across - gap,
                height=(BARS - 8) * count / tallest,
                class_="bar",
            )
            for k, count in enumerate(sizes)
        ]
        most = words(
            self.left - 8, self.top - BARS + 9, f"{tallest:,}", anchor="end", class_="small"
        )
        return tag("g", shapes, most, class_="faint")

    def strips(self) -> Markup:
        """Return columns with a tooltip about each client."""
        return tag(
            "g",
            [
                tag(
                    "g",
                    tag(
                        "rect",
                        x=self.x(k),
                        y=self.top - BARS,
                        width=self.across,
                        height=self.bottom - self.top + BARS,
                        class_="strip",
                    ),
                    tag("title", _client_tooltip(client)),
                )
                for k, client in enumerate(self.clients)
            ],
        )

    def dots(self) -> Markup:
        drawn = []
        for k, client in enumerate(self.clients):
            circles = [
                tag(
                    "circle",
                    tag("title", self._cell_tooltip(client, c)),
                    cx=self.x(k + 0.5),
                    cy=self.y(c + 0.5),
                    r=self._radius(count),
                    class_="mark",
                )
                for c, count in enumerate(client.train)
                if count
            ]
            drawn.append(tag("g", circles, class_="s1" if client.holdout else "s0"))
        return tag("g", self._lattice(), drawn)

    def cells(self) -> Markup:
        """Return shaded cells: a path for each shade, or a shape for each cell where few."""
        shades: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        for k, client in enumerate(self.clients):
            for c, count in enumerate(client.train):
                if count:
                    shades.setdefault((client.holdout, self._level(count)), []).append((k, c))
        worded = sum(map(len, shades.values())) <= MANY
        return tag(
            "g",
            [
                tag(
                    "g",
                    self._shaded(shades[holdout, level], worded=worded),
                    class_=f"{'s1' if holdout else 's0'} cells",
                    opacity=SHADES[level],
                )
                for holdout, level in sorted(shades)
            ],
        )

    def _shaded(self, cells: Sequence[tuple[int, int]], *, worded: bool) -> Markup:
        shape = f"h{number(self.across - 0.4)}v{number(self.down - 0.4)}"
        shape += f"h{number(0.4 - self.across)}z"
        paths = [f"M{number(self.x(k))} {number(self.y(c))}{shape}" for k, c in cells]
        if not worded:
            return tag("path", d="".join(paths), class_="mark", pointer_events="none")
        titles = [tag("title", self._cell_tooltip(self.clients[k], c)) for k, c in cells]
        return joined(
            tag("path", title, d=path, class_="mark")
            for title, path in zip(titles, paths, strict=True)
        )

    def names(self) -> Markup:
        """Return the names of classes and clients, as many as there is room for."""
        every = max(1, math.ceil(12 / self.down))
        drawn = [
            words(
                self.left - 8,
                self.y(c + 0.5) + 4,
                shortened(name, 16),
                anchor="end",
                class_="small",
            )
            for c, name in enumerate(self.classes)
            if c % every == 0
        ]
        between = self._every(14.0 if self._upright else 60.0)
        for k, client in enumerate(self.clients):
            if k % between == 0:
                drawn.append(self._client_name(self.x(k + 0.5), client))
        return tag("g", drawn, class_="faint")

    def _client_name(self, x: float, client: ClientCounts) -> Markup:
        name, y = shortened(client.client, 16), self.bottom + 14
        if not self._upright:
            return words(x, y, name, anchor="middle", class_="small")
        turned = f"rotate(-90 {number(x + 4)} {number(y - 6)})"
        return tag(
            "text", name, x=x + 4, y=y - 6, text_anchor="end", transform=turned, class_="small"
        )

    def key(self) -> Markup:
        """Return the legend of sizes or shades."""
        y, x = self.height - 22, self.left + 4
        drawn: list[Markup] = []
        for shown, count in self._steps():
            radius = self._radius(count) if self.dotted else 7.0
            if self.dotted:
                shape = tag("circle", cx=x + radius, cy=y, r=radius, class_="mark")
            else:
                shade = SHADES[self._level(count)]
                shape = tag("rect", x=x, y=y - 7, width=14, height=14, class_="mark", opacity=shade)
            x += 2 * radius + 6
            drawn += [tag("g", shape, class_="s0"), words(x, y + 4, shown, class_="small")]
            x += 14 + 7 * len(shown)
        drawn.append(words(x, y + 4, "training samples", class_="small"))
        return tag("g", drawn, class_="faint")

    def _steps(self) -> list[tuple[str, int]]:
        """Return what the key shows: three sizes, or the range of every shade."""
        if self.dotted:
            return [(f"{n:,}", n) for n in sorted({1, math.ceil(self.most / 4), self.most})]
        ranges: dict[int, list[int]] = {}
        for level in range(len(SHADES)):
            low = math.floor(self.most * (level / len(SHADES)) ** 2) + 1
            high = math.floor(self.most * ((level + 1) / len(SHADES)) ** 2)
            if high >= low:
                ranges[level] = [low, high]
        return [
            (f"{low:,}" if low == high else f"{low:,}-{high:,}", high)
            for low, high in ranges.values()
        ]

    def _radius(self, count: int) -> float:
        largest = min(self.across, self.down) * 0.48
        return max(1.2, largest * math.sqrt(count / self.most))

    def _level(self, count: int) -> int:
        """Return the shade of a count, on a scale of square roots so that few still show."""
        return math.ceil(len(SHADES) * math.sqrt(count / self.most) - 1e-9) - 1

    def _lattice(self) -> Markup:
        rows = "".join(
            f"M{number(self.left)} {number(self.y(c + 0.5))}H{number(self.right)}"
            for c in range(len(self.classes))
        )
        return tag("path", d=rows, class_="rule grid", pointer_events="none")

    def _cell_tooltip(self, client: ClientCounts, c: int) -> str:
        kind = f"class {self.classes[c]}" if len(self.classes) > 1 else self.classes[c]
        return (
            f"{client.client}, {kind}: {client.train[c]} train, "
            f"{client.valid[c]} valid, {client.test[c]} test"
        )


def _client_tooltip(client: ClientCounts) -> str:
    held = ", held out of training" if client.holdout else ""
    classes = f"; {client.classes} classes in training" if len(client.train) > 1 else ""
    return (
        f"{client.client}{held}: {sum(client.train)} train, {sum(client.valid)} valid, "
        f"{sum(client.test)} test samples{classes}"
    )
