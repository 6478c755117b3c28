"""Layout of a table: rows, columns and the notes below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedgram.experiments.study.axes import Sweep
from fedgram.experiments.study.summary import CellValue, Summary

LineKind = Literal["chosen", "last", "published"]
LAST, PUBLISHED = "last round", "published"  # what stands at the head of such lines
_MOST_ERRORS = 5
Axis = Callable[[CellValue], str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Line:
    """One line: a row's means at the chosen round, at the last one, or published numbers."""

    labels: tuple[str, ...]
    kind: LineKind
    numbers: tuple[CellValue | None, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Panel:
    """One part of a table.

    Parameters
    ----------
    heading
        What is the same all over it: axes of one value.
    columns, rows
        Their labels, from the outermost level to the innermost.
    numbers
        By row and column.
    """

    heading: str
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: Mapping[tuple[tuple[str, ...], tuple[str, ...]], CellValue]
    parameter: str | None = None

    def lines(self, columns: Sequence[tuple[str, ...]] | None = None) -> Iterator[Line]:
        """Yield the lines of some columns, or of all; empty lines are left out."""
        columns = self.columns if columns is None else columns
        for row in self.rows:
            found = tuple(self.numbers.get((row, column)) for column in columns)
            yield Line(labels=row, kind="chosen", numbers=found)
            if any(number and number.differs for number in found):
                yield Line(labels=row, kind="last", numbers=found)
            if any(number and number.published is not None for number in found):
                yield Line(labels=row, kind="published", numbers=found)


def panels(summary: Summary) -> list[Panel]:
    """Return the parts of a table: one, or one for every parameter that varies.

    Methods are rows, and data sets, clients, partitions and measures columns, as in the papers'
    main tables. Where a parameter varies its values are columns, and partitions rows.
    """
    if not summary.table.sweeps:
        rows: dict[str, Axis] = {"method": _method}
        columns: dict[str, Axis] = {
            "dataset": _dataset,
            "clients": _clients,
            "partition": _partition,
            "measure": _measure,
        }
        return [_panel(summary.numbers, rows, columns, keep=("method",))]
    rows = {"clients": _clients, "partition": _partition, "method": _method}
    columns = {"dataset": _dataset, "value": _value, "measure": _measure}
    return [
        _panel(_of(summary, sweep), rows, columns, keep=("method", "value"), sweep=sweep)
        for sweep in summary.table.sweeps
    ]


def notes(summary: Summary, *, best: str, second: str) -> list[str]:
    """Return the notes below a table; `best` and `second` are their marks."""
    table = summary.table
    several = len(table.show) > 1
    found = [f"{m.name}: {m.label}" if several else m.label for m in table.show]
    if len(table.seeds) > 1:
        found.append(f"mean ± standard deviation over {len(table.seeds)} seeds")
    if any(number.rank for number in summary.numbers):
        found.append(f"{best} best, {second} second of a {'row' if table.sweeps else 'column'}")
    if any(number.differs for number in summary.numbers):
        found.append(f"at the round chosen on validation samples; '{LAST}' where it differs")
    for paper in summary.cited:
        found.append(
            f"{PUBLISHED}: {paper.source}; with another backbone ({paper.backbone}), so not to be "
            "compared number by number"
        )
        found += [f"{PUBLISHED} there: {remark}" for remark in paper.remarks]
    return [*found, *_shortcomings(summary)]


def _shortcomings(summary: Summary) -> Iterator[str]:
    missing, failed = summary.missing, summary.failed
    if missing:
        rows: dict[str, set[str]] = {}
        for number in summary.numbers:
            lacking = {run.digest for run in number.cell.runs.values()} - set(summary.records)
            rows.setdefault(number.cell.place.method, set()).update(lacking)
        which = ", ".join(f"{row} {len(lacking)}" for row, lacking in rows.items() if lacking)
        yield (
            f"incomplete: {len(missing)} of {len(summary.runs)} runs are missing ({which}); the "
            "same command goes on"
        )
    names = {run.digest: run.name for run in summary.runs}
    for digest, error in list(failed.items())[:_MOST_ERRORS]:
        yield f"failed: {names[digest]}: {error}"
    if len(failed) > _MOST_ERRORS:
        yield f"failed: {len(failed) - _MOST_ERRORS} more"
    if len(summary.versions) > 1:
        yield (
            f"made by several versions of fedgram ({', '.join(summary.versions)}); use a new "
            "folder to make all anew"
        )


def _of(summary: Summary, sweep: Sweep) -> list[CellValue]:
    return [n for n in summary.numbers if n.cell.place.parameter == sweep.parameter]


def _panel(
    numbers: Sequence[CellValue],
    rows: Mapping[str, Axis],
    columns: Mapping[str, Axis],
    *,
    keep: Sequence[str],
    sweep: Sweep | None = None,
) -> Panel:
    """Place the numbers; an axis of one value is shown once, in the heading."""
    axes = {**rows, **columns}
    values = {name: list(dict.fromkeys(map(axis, numbers))) for name, axis in axes.items()}
    shown = [name for name in axes if len(values[name]) > 1 or name in keep]
    if not set(shown) & set(columns):
        shown.append("measure")
    heading = [values[n][0] for n in axes if n not in shown and n != "measure" and values[n][0]]

    def labels(number: CellValue, of: Mapping[str, Axis]) -> tuple[str, ...]:
        return tuple(axis(number) for name, axis in of.items() if name in shown)

    placed = {(labels(n, rows), labels(n, columns)): n for n in numbers}
    return Panel(
        heading=", ".join([*heading, *([f"columns: {sweep.name}"] if sweep else [])]),
        rows=tuple(dict.fromkeys(row for row, _ in placed)),
        columns=tuple(dict.fromkeys(column for _, column in placed)),
        numbers=placed,
        parameter=sweep.parameter if sweep else None,
    )


def _dataset(number: CellValue) -> str:
    return number.cell.place.dataset


def _clients(number: CellValue) -> str:
    clients = number.cell.place.clients
    return "" if clients is None else f"{clients} clients"


def _partition(number: CellValue) -> str:
    return number.cell.place.partition


def _method(number: CellValue) -> str:
    return number.cell.place.method


def _measure(number: CellValue) -> str:
    return number.measure.name


def _value(number: CellValue) -> str:
    return worded(number.cell.place.value)


def worded(value: Any) -> str:
    """Return the text of a parameter's value."""
    return f"{value:g}" if isinstance(value, float) else str(value)
