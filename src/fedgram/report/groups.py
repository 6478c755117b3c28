"""Groups of runs: the same data in one section, the same except for seeds in one row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.experiments.gains import ALONE, gains_of_pairs
from fedgram.experiments.measures import ScoreWords, score_words
from fedgram.experiments.run_record import Plain, RunRecord, flat
from fedgram.experiments.seeds import MeanAndStd, mean_and_std
from fedgram.report.charts.clients import ClientPair

SEED = "seed"


@dataclass(frozen=True, kw_only=True)
class MethodSeeds:
    """Runs of one method that differ in their seeds only."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def alone(self) -> bool:
        """Whether each client trains alone: the baseline of other rows."""
        return self.runs[0].method == ALONE

    @property
    def repeated(self) -> bool:
        """Whether the method has several rounds, of which one had to be chosen."""
        return any(len(run.rounds) > 1 for run in self.runs)

    def score(self, name: str) -> MeanAndStd | None:
        """Return mean and standard deviation of an accuracy or the AUROC in the chosen rounds."""
        return mean_and_std(run.summary.score(name) for run in self.runs)

    def error(self, name: str) -> MeanAndStd | None:
        """Return mean and standard deviation of the RMSE or MAE of a regression."""
        return mean_and_std((run.summary.errors or {}).get(name) for run in self.runs)

    def cost(self, name: str) -> MeanAndStd | None:
        """Return mean and standard deviation of a cost up to the chosen rounds."""
        return mean_and_std(run.summary.cost(name) for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows that may be compared: the same data with the same partition, except for the seed.

    ``repeats`` is the number of runs left out because another run has the same seeds.
    """

    data: Plain
    rows: tuple[MethodSeeds, ...]
    repeats: int

    @property
    def runs(self) -> list[RunRecord]:
        """All runs of all rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def numbers(self) -> bool:
        """Whether numbers are predicted, so that scores are R2 and not accuracies."""
        return any(run.summary.errors for run in self.runs)

    @property
    def words(self) -> ScoreWords:
        """What the scores are called."""
        return score_words(numbers=self.numbers)

    def pairs(self, row: MethodSeeds) -> list[ClientPair]:
        """Return the accuracy of every client with the method and alone, on the same samples."""
        found = []
        for run in row.runs:
            other = self._alone(run)
            alone = (
                {score.client: score.accuracy for score in other.chosen.clients} if other else {}
            )
            for score in run.chosen.clients:
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

    def gain(self, row: MethodSeeds) -> dict[str, float] | None:
        """Return the fractions of clients that do better and worse than alone."""
        return gains_of_pairs((pair.ours, pair.alone) for pair in self.pairs(row))

    def _alone(self, run: RunRecord) -> RunRecord | None:
        others = [
            other
            for row in self.rows
            if row.alone
            for other in row.runs
            if set_up(other) == set_up(run) and data_seed(other) == data_seed(run)
        ]
        same = [other for other in others if seeds(other) == seeds(run)]
        return next(iter(same or others), None)

    def _named(self, client: str, run: RunRecord) -> str:
        partitions = {data_seed(other) for other in self.runs}
        return f"{client}, seed {data_seed(run)}" if len(partitions) > 1 else client


def comparisons(found: Iterable[RunRecord]) -> list[Comparison]:
    """Return the runs in groups that may be compared."""
    groups: dict[str, list[RunRecord]] = {}
    for run in found:
        groups.setdefault(_key(set_up(run)), []).append(run)
    return [_comparison(group) for group in groups.values()]


def _turn(run: RunRecord) -> int:
    """Return a method's position in the configuration; folders are in alphabetical order."""
    methods = run.config.get("methods")
    named = isinstance(methods, Sequence) and run.method in methods
    return list(methods).index(run.method) if named else 0  # type: ignore[arg-type]


def _comparison(group: Sequence[RunRecord]) -> Comparison:
    alike: dict[str, dict[str, RunRecord]] = {}
    for run in sorted(group, key=_turn):
        name = [Path(run.method).stem, _effective(_varied(run))]
        alike.setdefault(_key(name), {}).setdefault(_key(seeds(run)), run)
    firsts = [next(iter(some.values())) for some in alike.values()]
    rows = tuple(
        MethodSeeds(label=_label(first, firsts), runs=tuple(some.values()))
        for first, some in zip(firsts, alike.values(), strict=True)
    )
    kept = sum(len(row.runs) for row in rows)
    return Comparison(data=_unseeded(group[0].table("data")), rows=rows, repeats=len(group) - kept)


def seeds(run: RunRecord) -> dict[str, Any]:
    """Return all seeds of a run, by the name they are set with."""
    tables = {"data": run.table("data"), "engine": run.table("engine"), "method": run.parameters}
    return {key: value for key, value in flat(tables).items() if _is_seed(key)}


def varied_seeds(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Return the seeds that all runs have and that differ: by name, a value for each run."""
    found = [seeds(run) for run in runs]
    names = [name for name in found[0] if all(name in one for one in found)]
    values = {name: [one[name] for one in found] for name in names}
    return {name: some for name, some in values.items() if len({*map(str, some)}) > 1}


def named_seeds(runs: Sequence[RunRecord]) -> str:
    """Return the seeds of runs in words: those that differ, or that of the partition.

    Examples
    --------
    >>> run = RunRecord(folder=None, method="afl", parameters={}, versions={}, rounds=(),
    ...                 config={"data": {"seed": 3}})
    >>> named_seeds([run])
    'data.seed 3'
    """
    together: dict[str, list[str]] = {}
    for name, values in varied_seeds(runs).items():
        shown = ", ".join(dict.fromkeys(map(str, values)))
        together.setdefault(shown, []).append(name)
    if not together:
        return f"data.seed {data_seed(runs[0])}"
    return "; ".join(f"{' and '.join(names)} {shown}" for shown, names in together.items())


def data_seed(run: RunRecord) -> Any:
    """Return the seed of the partition."""
    return run.table("data").get(SEED, 0)


# Settings of the partition that only some partitions use.
_USED_BY = {
    "dirichlet": ("dirichlet", "quantity"),
    "equal_sizes": ("dirichlet",),
    "shards": ("shards",),
    "classes_per_client": ("classes",),
}


def set_up(run: RunRecord) -> dict[str, Any]:
    """Return the data and the partition of a run, in one form for all spellings.

    Settings that this partition does not use are left out, a number of clients that is left to the
    data is the one that there were, paths are in their shortest form, and whole numbers are
    integers.

    Examples
    --------
    >>> one, two = ({"source": "a.npz", "partition": "iid", "clients": 5, "dirichlet": 0.1},
    ...             {"source": "./a.npz", "partition": "iid", "clients": 5.0, "dirichlet": 1})
    >>> runs = [RunRecord(folder=None, method="afl", parameters={}, versions={}, rounds=(),
    ...                   config={"data": data}) for data in (one, two)]
    >>> set_up(runs[0]) == set_up(runs[1])
    True
    """
    data = _unseeded(run.table("data"))
    kind = data.get("partition")
    unused = {key for key, kinds in _USED_BY.items() if kind not in kinds}
    if data.get("clients") is None and "clients" in data and run.rounds:
        data["clients"] = run.summary.clients + data.get("holdout_clients", 0)
    if isinstance(data.get("source"), str) and ":" not in data["source"]:
        data["source"] = os.path.normpath(data["source"])
    return _effective({key: value for key, value in data.items() if key not in unused})


def _effective(settings: Plain) -> dict[str, Any]:
    """Return settings without those of lifts of width 0, with whole numbers as integers."""
    off = {key.rpartition(".")[0] for key, value in settings.items() if _no_lift(key, value)}
    return {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in settings.items()
        if _no_lift(key, value) or key.rpartition(".")[0] not in off
    }


def _no_lift(key: str, value: Any) -> bool:
    return key.endswith(".width") and value == 0


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == SEED


def _unseeded(table: Plain) -> dict[str, Any]:
    return {key: value for key, value in flat(table).items() if not _is_seed(key)}


def _varied(run: RunRecord) -> dict[str, Any]:
    """Return all settings, except seeds, in which runs of a method on the same data may differ."""
    tables = {name: run.table(name) for name in ("grid", "engine", "scoring")}
    return {**_unseeded(run.parameters), **_unseeded(tables)}


def _label(run: RunRecord, others: Iterable[RunRecord]) -> str:
    """Return a method's name, with the settings that differ from other rows of that name."""
    ours = _varied(run)
    namesakes = [_varied(other) for other in others if other.method == run.method]
    apart = [key for key in ours if any(other.get(key) != ours[key] for other in namesakes)]
    name = Path(run.method).stem
    return f"{name} ({', '.join(f'{key} {ours[key]}' for key in apart)})" if apart else name


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
