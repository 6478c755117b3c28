"""From finished runs to the numbers of a table: means, standard deviations, ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedgram.experiments.measures import Measure
from fedgram.experiments.run_record import RoundRecord, RunRecord
from fedgram.experiments.seeds import mean_and_std
from fedgram.experiments.study.cells import Cell, CellRun, needed
from fedgram.experiments.study.published import PublishedNumbers
from fedgram.experiments.study.settings import Study


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number over seeds, by seed."""

    by_seed: Mapping[int, float]
    mean: float
    deviation: float | None  # None of a single run

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> Value | None:
        """Return mean and standard deviation over seeds; None where there is no number."""
        found = mean_and_std(by_seed.values())
        return found and cls(by_seed=by_seed, mean=found[0], deviation=found[1])


@dataclass(frozen=True, eq=False, kw_only=True)
class CellValue:
    """One cell's number of one measure.

    Parameters
    ----------
    chosen, last
        At the round chosen on validation samples, and at the last one; None before any run ended.
    rank
        1 for the best, 2 for the second of those it is compared with; None for others.
    published
        What a paper prints here, with another backbone.
    """

    cell: Cell
    measure: Measure
    chosen: Value | None
    last: Value | None
    rank: int | None = None
    published: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the last round's mean is written differently from the chosen one's."""
        return (
            self.chosen is not None
            and self.last is not None
            and self.measure.shown(self.chosen.mean) != self.measure.shown(self.last.mean)
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary:
    """The numbers of a study, as far as its runs are finished.

    ``failed`` has the errors of runs that were tried in vain, by digest.
    """

    table: Study
    numbers: Sequence[CellValue]
    records: Mapping[str, RunRecord]
    published: Sequence[PublishedNumbers]
    failed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def runs(self) -> list[CellRun]:
        """All runs that the table needs."""
        return needed(list({id(number.cell): number.cell for number in self.numbers}.values()))

    @cached_property
    def missing(self) -> list[CellRun]:
        """The runs that are not finished."""
        return [run for run in self.runs if run.digest not in self.records]

    def finished(self, cell: Cell) -> dict[int, RunRecord]:
        """Return the finished runs of a cell, by seed."""
        runs = cell.runs.items()
        return {s: self.records[run.digest] for s, run in runs if run.digest in self.records}

    @property
    def versions(self) -> list[str]:
        """The versions of fedgram that made the runs."""
        digests = (run.digest for run in self.runs)
        return sorted(
            {str(self.records[d].versions["fedgram"]) for d in digests if d in self.records}
        )

    @property
    def cited(self) -> list[PublishedNumbers]:
        """The papers that have a number or a remark here."""
        return [
            paper
            for paper in self.published
            if paper.remarks
            or any(paper.number(n.cell, n.measure.name) is not None for n in self.numbers)
        ]


def summarize(
    table: Study,
    cells: Sequence[Cell],
    records: Mapping[str, RunRecord],
    published: Sequence[PublishedNumbers],
    failed: Mapping[str, str],
) -> Summary:
    """Return the numbers of all cells, as far as their runs are finished."""
    rows = {(cell.place, measure): cell for cell in cells for measure in table.show}

    def value(cell: Cell, measure: Measure, of: Callable[[RunRecord], RoundRecord]) -> Value | None:
        found = _by_seed(cell, measure, records, of)
        if measure.over is not None:
            base = rows[replace(cell.place, method=measure.over), measure]
            reference = _by_seed(base, measure, records, of)
            found = {s: 100 * found[s] / reference[s] for s in found if reference.get(s)}
        return Value.of(found)

    numbers = [
        CellValue(
            cell=cell,
            measure=measure,
            chosen=value(cell, measure, lambda record: record.chosen),
            last=value(cell, measure, lambda record: record.last),
            published=_published(published, cell, measure),
        )
        for cell in cells
        for measure in table.show
    ]
    return Summary(
        table=table,
        numbers=_ranked(numbers),
        records=records,
        published=published,
        failed=failed,
    )


def ranks(means: Sequence[float], shown: Sequence[str], *, higher: bool) -> list[int | None]:
    """Return 1 for the best and 2 for the second best; equal texts have equal ranks.

    Examples
    --------
    >>> ranks([80.724, 80.721, 70.0, 60.0], ["80.72", "80.72", "70.00", "60.00"], higher=True)
    [1, 1, 2, None]
    >>> ranks([5.0], ["5.00"], higher=False)  # nothing to compare with
    [None]
    """
    order = sorted(range(len(means)), key=lambda i: means[i], reverse=higher)
    levels = list(dict.fromkeys(shown[i] for i in order))[:2]
    if len(means) < 2:
        return [None] * len(means)
    return [levels.index(text) + 1 if text in levels else None for text in shown]


def _by_seed(
    cell: Cell,
    measure: Measure,
    records: Mapping[str, RunRecord],
    of: Callable[[RunRecord], RoundRecord],
) -> dict[int, float]:
    finished = {s: records[r.digest] for s, r in cell.runs.items() if r.digest in records}
    values = {seed: measure.of(record, of(record)) for seed, record in finished.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def _published(papers: Sequence[PublishedNumbers], cell: Cell, measure: Measure) -> float | None:
    found = (paper.number(cell, measure.name) for paper in papers)
    return next((number for number in found if number is not None), None)


def _ranked(numbers: Sequence[CellValue]) -> list[CellValue]:
    """Rank methods within a column; in a sweep the values of the parameter within a row."""
    groups: dict[Any, list[int]] = {}
    for index, number in enumerate(numbers):
        place = number.cell.place
        if number.chosen is None or not number.cell.moved:
            continue
        rival = {"method": ""} if place.parameter is None else {"value": None}
        groups.setdefault((replace(place, **rival), number.measure), []).append(index)
    ranked = list(numbers)
    for (_, measure), members in groups.items():
        means = [number.chosen.mean for number in (numbers[i] for i in members) if number.chosen]
        shown = [measure.shown(mean) for mean in means]
        found = ranks(means, shown, higher=measure.higher_is_better)
        for index, rank in zip(members, found, strict=True):
            ranked[index] = replace(numbers[index], rank=rank)
    return ranked
