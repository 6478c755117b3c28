"""Accuracy against methods that train, on the cells of docs/results.md."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from math import sqrt

from benchmarks.claims.records import Records, between

TRAINED = ("fedavg", "fedavg-ft", "ditto", "feddbe", "pfedme")
CELLS = {  # by data set; the clients of the others are hospitals or few
    "CIFAR-100": ("cifar100 0.1", "cifar100 0.5", "cifar100 1"),
    "Banking77": ("banking77 0.1", "banking77 0.5", "banking77 1"),
    "PACS": ("pacs",),
    "MNIST": ("mnist",),
}
TERMS = "200 rounds each, ± the error over splits where there are several"
TABLE_1 = "`python -m benchmarks.default` ([results.md](results.md): the settings and all rows)"


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Points above the best trained method of a cell, paired by seed."""

    points: float
    error: float | None

    def text(self) -> str:
        return f"{self.points:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")


def gains(records: Records, row: str) -> dict[str, list[Gain]]:
    """Return the gains of a row by data set, over the best trained method of each cell."""
    found: dict[str, list[Gain]] = {}
    for name, cells in CELLS.items():
        for cell in cells:
            if records.by_seed(cell, row):
                found.setdefault(name, []).append(gain(records, cell, row))
    return found


def gain(records: Records, cell: str, row: str) -> Gain:
    ours = records.by_seed(cell, row)
    rivals = [found for other in TRAINED if (found := records.by_seed(cell, other))]
    best = max(rivals, key=lambda found: statistics.fmean(found.values()))
    gaps = [ours[seed] - best[seed] for seed in sorted(ours.keys() & best.keys())]
    error = statistics.stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else None
    return Gain(points=statistics.fmean(gaps), error=error)


def in_words(found: dict[str, list[Gain]]) -> str:
    return "; ".join(f"{name} {', '.join(g.text() for g in each)}" for name, each in found.items())


def number_of_rivals(records: Records) -> str:
    counts = [
        sum(bool(records.by_seed(cell, other)) for other in TRAINED)
        for cells in CELLS.values()
        for cell in cells
    ]
    return between(counts, digits=0)
