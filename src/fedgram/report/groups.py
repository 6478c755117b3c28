"""Which runs belong together: the same data in one section, the same but for seeds in one row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedgram.experiments.gains import ALONE
from fedgram.experiments.recorded import Plain, Run
from fedgram.report.charts.clients import ClientPair
from fedgram.report.charts.curves import Point

SEED = "seed"
Centre = tuple[float, float | None]  # a mean, and a standard deviation where there is one


@dataclass(frozen=True, kw_only=True)
class MethodSeeds:
    """Runs of one method that differ in their seeds alone."""

    label: str
    runs: tuple[Run, ...]

    @property
    def alone(self) -> bool:
        """Whether this is each client training alone, which others are compared with."""
        return self.runs[0].method == ALONE

    @property
    def repeated(self) -> bool:
        """Whether the method goes on for rounds, so that one had to be chosen."""
        return any(len(run.curve) > 1 for run in self.runs)

    def accuracy(self, kind: str) -> Centre | None:
        """Return mean and standard deviation of one of the accuracies in the chosen rounds."""
        return mean_and_std(run.summary["accuracy"].get(kind) for run in self.runs)

    def curve(self, axis: str) -> list[Point]:
        """Return cost, mean accuracy and deviation for every round that all runs have scored."""
        by_round = [{int(point["round"]): point for point in run.curve} for run in self.runs]
        common = set.intersection(*map(set, by_round))
        if not common:  # scored at other times: one run stands for all
            by_round, common = by_round[:1], set(by_round[0])
        points: list[Point] = []
        for number in sorted(common):
            cost = mean_and_std(cost_of(rounds[number], axis) for rounds in by_round)
            accuracy = mean_and_std(rounds[number].get("accuracy") for rounds in by_round)
            if cost and accuracy:
                points.append((cost[0], accuracy[0], accuracy[1] or 0.0))
        return points

    def chosen_at(self, axis: str) -> float | None:
        """Return the mean cost of the chosen round."""
        points = (point for run in self.runs for point in run.curve if point["round"] == run.chosen)
        found = mean_and_std(cost_of(point, axis) for point in points)
        return found[0] if found else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows that may be compared: the same data, dealt in the same way but for the seed.

    ``repeats`` is the number of runs left out, since another has the same seeds.
    """

    data: Plain
    rows: tuple[MethodSeeds, ...]
    repeats: int

    @property
    def runs(self) -> list[Run]:
        """All runs of all rows."""
        return [run for row in self.rows for run in row.runs]

    def pairs(self, row: MethodSeeds) -> list[ClientPair]:
        """Return every client with what it reaches alone, on the same samples."""
        found = []
        for run in row.runs:
            other = self._alone(run)
            alone = {score.client: score.accuracy for score in other.clients} if other else {}
            for score in run.clients:
                theirs = alone.get(score.client)
                if score.accuracy is not None and theirs is not None:
                    found.append(
                        ClientPair(
                            client=self._named(score.client, run),
                            ours=score.accuracy,
                            alone=theirs,
                            samples=score.samples,
                        )
                    )
        return found

    def _alone(self, run: Run) -> Run | None:
        others = [
            other
            for row in self.rows
            if row.alone
            for other in row.runs
            if other.table("data") == run.table("data")
        ]
        same = [other for other in others if seeds(other) == seeds(run)]
        return next(iter(same or others), None)

    def _named(self, client: str, run: Run) -> str:
        dealt = {data_seed(other) for other in self.runs}
        return f"{client}, seed {data_seed(run)}" if len(dealt) > 1 else client


def settings(found: Iterable[Run]) -> list[Comparison]:
    """Return the runs in groups that may be compared."""
    groups: dict[str, list[Run]] = {}
    for run in found:
        groups.setdefault(_key(_unseeded(run.table("data"))), []).append(run)
    return [_setting(group) for group in groups.values()]


def _turn(run: Run) -> int:
    """Return a method's place among those it was run with; folders come in alphabetical order."""
    methods = run.config.get("methods")
    named = isinstance(methods, Sequence) and run.method in methods
    return list(methods).index(run.method) if named else 0  # type: ignore[arg-type]


def _setting(group: Sequence[Run]) -> Comparison:
    alike: dict[str, dict[str, Run]] = {}
    for run in sorted(group, key=_turn):
        alike.setdefault(_key([run.method, _varied(run)]), {}).setdefault(_key(seeds(run)), run)
    firsts = [next(iter(some.values())) for some in alike.values()]
    rows = tuple(
        MethodSeeds(label=_label(first, firsts), runs=tuple(some.values()))
        for first, some in zip(firsts, alike.values(), strict=True)
    )
    kept = sum(len(row.runs) for row in rows)
    return Comparison(data=_unseeded(group[0].table("data")), rows=rows, repeats=len(group) - kept)


def seeds(run: Run) -> dict[str, Any]:
    """Return all seeds of a run, by the name they are set with."""
    tables = {"data": run.table("data"), "engine": run.table("engine"), "method": run.parameters}
    return {key: value for key, value in flat(tables).items() if _is_seed(key)}


def data_seed(run: Run) -> Any:
    """Return the seed by which samples were dealt."""
    return run.table("data").get(SEED, 0)


def flat(table: Plain, prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level with dotted names.

    Examples
    --------
    >>> flat({"data": {"clients": 5}, "methods": ["afl"]})
    {'data.clients': 5, 'methods': ['afl']}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == SEED


def _unseeded(table: Plain) -> dict[str, Any]:
    return {key: value for key, value in flat(table).items() if not _is_seed(key)}


def _varied(run: Run) -> dict[str, Any]:
    """Return all that may set two runs of a method on the same data apart, but for seeds."""
    tables = {name: run.table(name) for name in ("grid", "engine", "scoring")}
    return {**_unseeded(run.parameters), **_unseeded(tables)}


def _label(run: Run, others: Iterable[Run]) -> str:
    """Return a method's name, with the settings that set it apart from others of that name."""
    ours = _varied(run)
    namesakes = [_varied(other) for other in others if other.method == run.method]
    apart = [key for key in ours if any(other.get(key) != ours[key] for other in namesakes)]
    name = Path(run.method).stem
    return f"{name} ({', '.join(f'{key} {ours[key]}' for key in apart)})" if apart else name


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def cost_of(point: Plain, axis: str) -> float | None:
    """Return what a round has cost so far; bytes are those up and down."""
    found = point.get("round" if axis == "rounds" else axis)
    if isinstance(found, Mapping):
        return float(sum(found.values()))
    return None if found is None else float(found)


def mean_and_std(values: Iterable[float | None]) -> Centre | None:
    """Return mean and standard deviation of what there is; a single value has no deviation.

    Examples
    --------
    >>> mean_and_std([1.0, 3.0, None]), mean_and_std([0.5]), mean_and_std([None])
    ((2.0, 1.4142135623730951), (0.5, None), None)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    return mean(known), stdev(known) if len(known) > 1 else None
