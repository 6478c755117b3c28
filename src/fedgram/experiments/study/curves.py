"""Numbers of a study as curves: accuracy against a parameter or a cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgram.experiments.measures import SCORES
from fedgram.experiments.seeds import Point, chosen_at, mean_curve
from fedgram.experiments.study.cells import Cell, slug
from fedgram.experiments.study.layout import worded
from fedgram.experiments.study.summary import CellValue, Summary


@dataclass(frozen=True, kw_only=True)
class Curves:
    """One picture's worth of curves.

    Parameters
    ----------
    name
        Part of a file's name.
    title
        What the picture is of.
    axis
        The parameter, or one of rounds, seconds, flops, bytes.
    lines
        For each curve points (place on the axis, mean accuracy, standard deviation), the
        accuracies as fractions.
    chosen
        Where on the axis the chosen round lies, mean over seeds.
    """

    name: str
    title: str
    axis: str
    lines: Mapping[str, tuple[Point, ...]]
    chosen: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the curves for JSON."""
        lines = {name: [list(point) for point in points] for name, points in self.lines.items()}
        about = {"name": self.name, "title": self.title, "axis": self.axis}
        return {**about, "lines": lines, "chosen": dict(self.chosen)}


def sensitivities(summary: Summary) -> list[Curves]:
    """Return accuracy against each parameter that varies over numbers."""
    found = []
    for sweep in summary.table.sweeps:
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in sweep.values):
            continue
        for dataset in dict.fromkeys(n.cell.place.dataset for n in summary.numbers):
            lines: dict[str, list[Point]] = {}
            for number in summary.numbers:
                place = number.cell.place
                point = _point(number)
                if (place.parameter, place.dataset) == (sweep.parameter, dataset) and point:
                    lines.setdefault(_label(summary, number), []).append(point)
            if lines:
                points = {name: tuple(sorted(line)) for name, line in lines.items()}
                name, title = slug(f"{sweep.parameter} {dataset}"), f"{sweep.name}, {dataset}"
                found.append(
                    Curves(name=name, title=title, axis=sweep.name, lines=points, chosen={})
                )
    return found


def costs(summary: Summary) -> list[Curves]:
    """Return accuracy, round by round, against the costs that the table asks for."""
    places: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in dict.fromkeys(number.cell for number in summary.numbers):
        p = cell.place
        value = () if p.parameter is None else (f"{p.parameter} {worded(p.value)}",)
        clients = () if p.clients is None else (f"{p.clients} clients",)
        places.setdefault((p.dataset, *clients, p.partition, *value), []).append(cell)
    found = []
    for where, cells in places.items():
        for axis in summary.table.curves:
            lines = {
                cell.place.method: tuple(mean_curve(list(summary.finished(cell).values()), axis))
                for cell in cells
            }
            drawn = {name: points for name, points in lines.items() if points}
            chosen = {
                cell.place.method: chosen_at(list(summary.finished(cell).values()), axis)
                for cell in cells
            }
            rings = {name: at for name, at in chosen.items() if name in drawn and at is not None}
            if drawn:
                name, title = slug(" ".join([axis, *where])), ", ".join(where)
                found.append(Curves(name=name, title=title, axis=axis, lines=drawn, chosen=rings))
    return found


def _point(number: CellValue) -> Point | None:
    value = number.chosen
    if value is None or number.measure.base not in SCORES:
        return None
    return float(number.cell.place.value), value.mean / 100, (value.deviation or 0.0) / 100


def _label(summary: Summary, number: CellValue) -> str:
    """Return the label that distinguishes a curve from others in its figure."""
    place, table = number.cell.place, summary.table
    words = [
        f"{place.clients} clients" if len(table.clients) > 1 else "",
        place.partition if len(table.partitions) > 1 else "",
        place.method if len(table.methods) > 1 else "",
        number.measure.name if len(table.show) > 1 else "",
    ]
    return ", ".join(word for word in words if word) or place.method
