"""All recorded numbers, and how findings are judged and written."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.paper_studies import left_out, studies

DOCS = Path(__file__).parents[2] / "docs"
REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
PARTLY = "partly reproduced"
LITTLE = 1.0  # points: what hardly depends on something changes by less


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was measured for a claim."""

    measured: str
    verdict: str
    command: str


class Records:
    """All recorded numbers."""

    def __init__(self) -> None:
        self.all_studies = studies(DOCS / "results" / "studies")
        # Of one that is not complete only single rows are used, and its command says so.
        self.studies = {name: s for name, s in self.all_studies.items() if s["complete"]}
        self.theorems = _stored("results/theorems.json")
        self.ridges = _stored("results/tiny-ridge.json")
        self.times = _stored("results/training-time.json")
        self.runs = _stored("results.json")["runs"]

    def value(self, study: str, method: str, measure: str = "client_mean", **where: Any) -> float:
        """Return the one recorded number at this place."""
        found = self._rows(study, method=method, measure=measure, **where)
        if len(found) != 1:
            raise LookupError(f"{study}, {method}, {measure}, {where}: {len(found)} numbers")
        return float(found[0]["mean"])

    def series(self, study: str, method: str, measure: str, **where: Any) -> dict[Any, float]:
        """Return the numbers of a parameter's values."""
        rows = self._rows(study, method=method, measure=measure, **where)
        return {row["value"]: float(row["mean"]) for row in rows}

    def methods(self, study: str) -> list[str]:
        return self.values(study, "method")

    def values(self, study: str, column: str) -> list[Any]:
        """Return what a column of a study has, in its order."""
        return list(dict.fromkeys(row[column] for row in self.studies[study]["rows"]))

    def clients(self, study: str) -> str:
        """Return the number of clients, in words."""
        return " and ".join(f"{number} clients" for number in self.values(study, "clients"))

    def _rows(self, study: str, **where: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.studies[study]["rows"]
        return [row for row in rows if all(row[key] == value for key, value in where.items())]

    def by_seed(self, cell: str, row: str) -> dict[int, float]:
        """Return the accuracies of a cell of docs/results.md by seed, in %."""
        runs = [run for run in self.runs if (run["cell"], run["row"]) == (cell, row)]
        return {run["seed"]: 100 * run["accuracy"] for run in runs}

    def mean(self, cell: str, row: str) -> float:
        """Return the mean over seeds of a cell of docs/results.md, in %."""
        return statistics.fmean(self.by_seed(cell, row).values())

    def command(self, study: str) -> str:
        """Return the last line of the command that made a study, in one line."""
        text = self.all_studies[study]["command"].replace("\\\n", " ")
        commands = [line for line in text.strip().splitlines() if line.startswith("fedgram")]
        line = commands[-1].split("  #")[0].split("    #")[0]
        return f"`{' '.join(line.split())}`{self.lacking(study)}"

    def lacking(self, study: str) -> str:
        """Return how many runs of a study were not made, and which rows its preset has too."""
        missing = self.all_studies[study]["missing"]
        said = [f"{missing} of its runs were not made"] if missing else []
        said += [f"without {part}" for part in left_out(self.all_studies[study]) if "rows" in part]
        return f" ({'; '.join(said)})" if said else ""


def _stored(name: str) -> Any:
    return json.loads((DOCS / name).read_text("utf-8"))


def saved(ours: float, theirs: float) -> float:
    """Return by how many per cent the one is less than the other."""
    return 100 * (1 - ours / theirs)


def between(numbers: Iterable[float], digits: int = 1, unit: str = "") -> str:
    """Return the range of some numbers in words."""
    texts = [f"{number:.{digits}f}" for number in sorted(numbers)]
    return texts[0] + unit if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}{unit}"


def signed(numbers: Iterable[float]) -> str:
    found = sorted(numbers)
    texts = [f"{number:+.1f}" for number in (found[0], found[-1])]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def judged(numbers: Iterable[float], least: float) -> str:
    """Return whether all, some or none of the numbers reach what is claimed."""
    reached = [number >= least for number in numbers]
    if all(reached):
        return REPRODUCED
    return PARTLY if any(reached) else CONTRADICTED


def reached(numbers: Iterable[float], least: float) -> str:
    """Return in how many cases the numbers reach what is claimed, in words."""
    found = list(numbers)
    return f"{sum(number >= least for number in found)} of {len(found)}"


def ranged(numbers: Iterable[float], least: float, most: float) -> str:
    """Return how many numbers are in the claimed range, above and below it, as a verdict."""
    found = list(numbers)
    above, below = sum(n > most for n in found), sum(n < least for n in found)
    within = len(found) - above - below
    if within == len(found):
        return REPRODUCED
    counts = f"{within} of {len(found)} in the range, {above} above, {below} below"
    return f"{PARTLY if within else CONTRADICTED}: {counts}"


def rises_then_falls(found: Mapping[float, float]) -> bool:
    """Return whether numbers rise to a value in between, and fall after it."""
    numbers = [found[value] for value in sorted(found)]
    top = numbers.index(max(numbers))
    up = all(a <= b for a, b in itertools.pairwise(numbers[: top + 1]))
    down = all(a >= b for a, b in itertools.pairwise(numbers[top:]))
    return 0 < top < len(numbers) - 1 and up and down
