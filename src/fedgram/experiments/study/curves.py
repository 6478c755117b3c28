"""Numbers of a table as curves: accuracy against a parameter, or against what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from fedgram.experiments.measures import ACCURACIES
from fedgram.experiments.study.cells import Cell, slug
from fedgram.experiments.study.layout import worded
from fedgram.experiments.study.summary import CellValue, Summary

Point = tuple[float, float, float]


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
            lines = {cell.place.method: _line(summary, cell, axis) for cell in cells}
            drawn = {name: points for name, points in lines.items() if points}
            chosen = {cell.place.method: _chosen(summary, cell, axis) for cell in cells}
            rings = {name: at for name, at in chosen.items() if name in drawn and at is not None}
            if drawn:
                name, title = slug(" ".join([axis, *where])), ", ".join(where)
                found.append(Curves(name=name, title=title, axis=axis, lines=drawn, chosen=rings))
    return found


def _point(number: CellValue) -> Point | None:
    value = number.chosen
    if value is None or number.measure.base not in ACCURACIES:
        return None
    return float(number.cell.place.value), value.mean / 100, (value.deviation or 0.0) / 100


def _label(summary: Summary, number: CellValue) -> str:
    """Return what sets a curve apart from the others of its picture."""
    place, table = number.cell.place, summary.table
    words = [
        f"{place.clients} clients" if len(table.clients) > 1 else "",
        place.partition if len(table.partitions) > 1 else "",
        place.method if len(table.methods) > 1 else "",
        number.measure.name if len(table.show) > 1 else "",
    ]
    return ", ".join(word for word in words if word) or place.method


def _curves(summary: Summary, cell: Cell) -> list[list[Mapping[str, Any]]]:
    """Return the rounds of each finished run; a record without them has the last round only."""
    found = []
    for run in cell.runs.values():
        outcome = summary.outcomes.get(run.digest)
        if outcome is not None:
            only = {**outcome.last, "round": outcome.rounds}
            accuracy = outcome.last["accuracy"]["client_mean"]
            found.append(outcome.chosen.get("curve") or [{**only, "accuracy": accuracy}])
    return found


def _line(summary: Summary, cell: Cell, axis: str) -> tuple[Point, ...]:
    points = []
    for rounds in zip(*_curves(summary, cell), strict=False):  # as far as every seed came
        at, heights = (
            _present(_cost(r, axis) for r in rounds),
            _present(r["accuracy"] for r in rounds),
        )
        if len(at) == len(heights) == len(rounds):
            points.append((mean(at), mean(heights), stdev(heights) if len(heights) > 1 else 0.0))
    return tuple(points)


def _chosen(summary: Summary, cell: Cell, axis: str) -> float | None:
    outcomes = [summary.outcomes.get(run.digest) for run in cell.runs.values()]
    rounds = [outcome.chosen_round for outcome in outcomes if outcome is not None]
    found = [
        _cost(point, axis)
        for curve, chosen in zip(_curves(summary, cell), rounds, strict=True)
        for point in curve
        if point["round"] == chosen
    ]
    at = _present(found)
    return mean(at) if at else None


def _cost(point: Mapping[str, Any], axis: str) -> float | None:
    value = point.get("round" if axis == "rounds" else axis)
    if isinstance(value, Mapping):
        return float(sum(value.values()))
    return None if value is None else float(value)


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
