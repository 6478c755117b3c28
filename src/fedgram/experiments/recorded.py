"""Recorded runs as the report sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.errors import DataError
from fedgram.experiments.partition_summary import PartitionSummary
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import read_lines, read_object

Plain = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Score:
    """One client's result: of so many test samples so many were right."""

    client: str
    samples: int
    correct: int

    @property
    def accuracy(self) -> float | None:
        """The share that was right; None where there is nothing to try."""
        return self.correct / self.samples if self.samples else None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One recorded run, as far as it came.

    Parameters
    ----------
    folder, method, parameters, config, versions
        What was run, and on what.
    finished
        Whether it came to its end.
    rounds, chosen
        The last round that was scored, and the one whose models were taken.
    summary, last
        What all clients together reached in the chosen and in the last round.
    curve
        A point for every scored round.
    clients, held_out
        What each client reached in the chosen round; empty where the server may not see it.
    holdout
        What the clients held out of training reached together, if there are any.
    exchanges
        A line for every exchange with clients.
    dealt
        Who has how many samples of which class, if it is recorded.
    """

    folder: str
    method: str
    parameters: Plain
    config: Plain
    versions: Plain
    finished: bool
    rounds: int
    chosen: int
    summary: Plain
    last: Plain
    curve: Sequence[Plain]
    clients: tuple[Score, ...]
    held_out: tuple[Score, ...]
    holdout: Plain | None
    exchanges: tuple[Plain, ...]
    dealt: PartitionSummary | None

    def table(self, name: str) -> Plain:
        """Return one of the tables of the configuration; an empty one where it has none."""
        found = self.config.get(name)
        return found if isinstance(found, Mapping) else {}


def read(folders: Iterable[Path]) -> list[Run]:
    """Return the runs in these folders, or right below them, each of them once."""
    found = {str(Path(result["run"]).resolve()): result for result in read_runs(folders)}
    return [_readable(result) for result in found.values()]


def _readable(result: Plain) -> Run:
    try:
        return _run(result)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(
            f"{result['run']}: not a record of a run, or damaged ({error}); run again into another "
            "folder"
        ) from error


def _run(result: Plain) -> Run:
    """Return a run as `compare.runs` tells of it, with what else its folder holds."""
    folder, rounds = Path(result["run"]), int(result["rounds"])
    about = read_object(folder / "run.json")
    chosen = int(result["chosen"])
    scores = read_lines(folder / "scores.jsonl")
    partition = folder / "partition.json"
    return Run(
        folder=str(folder),
        method=result["method"],
        parameters=_table(about, "parameters"),
        config=_table(about, "config"),
        versions=_table(about, "versions"),
        finished=result["finished"],
        rounds=rounds,
        chosen=chosen,
        summary=result,
        last=result["last"],
        curve=result["curve"],
        clients=_scores(scores, "members", chosen),
        held_out=_scores(scores, "holdout", chosen),
        holdout=result["holdout"],
        exchanges=tuple(read_lines(folder / "asks.jsonl")),
        dealt=PartitionSummary.read(read_object(partition)) if partition.is_file() else None,
    )


def _table(about: Plain, name: str) -> Plain:
    found = about.get(name, {})
    if not isinstance(found, Mapping):
        raise TypeError(f"its {name} are no table")
    return found


def _scores(lines: Iterable[Plain], who: str, round_: int) -> tuple[Score, ...]:
    """Return the clients' scores of one round; the last word on a client counts."""
    found = {
        line["client"]: Score(
            client=str(line["client"]), samples=int(line["samples"]), correct=int(line["correct"])
        )
        for line in lines
        if "client" in line and line["set"] == who and line["round"] == round_
    }
    return tuple(found.values())
