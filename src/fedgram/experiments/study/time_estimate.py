"""How long a study will take, and how many of its runs fit into memory at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from fedgram.experiments.study.cells import CellRun, Source
from fedgram.runtime import memory
from fedgram.training.loop import GradientMethod
from fedgram.training.pilots import rate_at

LONG = 20  # rounds from which a run is tried with a few before the table begins
TRIAL = 2  # scored ones, that few,
SCORED = 2  # every other of them: that separates the time of rounds from that of scorings
PILOTS = 4  # rates that are tried, as a rule
_COPIES = 4  # of the features: as stored, on the grid, partitioned, and those in use
_SQUARES = 6  # of feature by feature: sums, their parts, a solve


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of single runs, estimated from measured runs.

    Parameters
    ----------
    runs
        All runs of the table.
    measured
        Seconds of some of them, by digest.
    """

    runs: Sequence[CellRun]
    measured: Mapping[str, float]

    def of(self, run: CellRun) -> float | None:
        """Return a run's seconds: its own, or those of the most similar ones measured."""
        if run.digest in self.measured:
            return self.measured[run.digest]
        known = [r for r in self.runs if r.digest in self.measured and r.method == run.method]
        near = {r.digest: (r.made == run.made, r.source == run.source) for r in known}
        like = [r for r in known if near[r.digest] == max(near.values())]
        if not like:
            return None
        return mean(self.measured[r.digest] * _size(run) / _size(r) for r in like)

    def left(self, unfinished: Iterable[CellRun], side_by_side: int) -> float | None:
        """Return the seconds until these runs are done; None where no method is measured.

        A method of which nothing is measured is taken to be like the mean of the others.
        """
        by_kind: dict[tuple[str, str, Source], float | None] = {}  # seeds and partitions are alike
        guesses = []
        for run in unfinished:
            kind = (run.method, repr(run.made), run.source)
            if kind not in by_kind:
                by_kind[kind] = self.of(run)
            guesses.append(by_kind[kind])
        known = [guess for guess in guesses if guess is not None]
        if not known:
            return None if guesses else 0.0
        total = sum(known) + (len(guesses) - len(known)) * mean(known)
        return total / min(side_by_side, len(guesses))

    def unknown(self, unfinished: Iterable[CellRun]) -> list[CellRun]:
        """Return one run of every method without a measured run."""
        known = {run.method for run in self.runs if run.digest in self.measured}
        first: dict[str, CellRun] = {}
        for run in unfinished:
            if run.method not in known:
                first.setdefault(run.method, run)
        return list(first.values())


def trial(run: CellRun) -> dict[str, Any]:
    """Return the configuration of a short trial of a run; a short run is unchanged."""
    plain = run.settings.to_dict()
    if run.rounds >= LONG:
        every = min(run.settings.scoring.every, SCORED)
        plain["scoring"] = {**plain["scoring"], "every": every}
        changes: dict[str, Any] = {"rounds": TRIAL * every}
        if _pilots(run):
            changes["rate"] = rate_at(0)
        plain["method"] = {run.method: {**plain["method"].get(run.method, {}), **changes}}
    return plain


def rounds_in_all(run: CellRun) -> int:
    """Return the approximate number of rounds of a run, including its pilots."""
    return run.rounds + _pilots(run)


def extrapolated(rounds: int, ends: Sequence[float], end: float, *, every: int = 1) -> float:
    """Return the seconds of a number of rounds, estimated from a short trial.

    Parameters
    ----------
    rounds
        Number of rounds of the run.
    ends
        Seconds at which each round of the trial ended, with its scoring if it was scored.
    end
        Seconds at which the whole trial ended.
    every
        Number of rounds of the run from one scoring to the next. In the trial every second round is
        scored, or all if all are scored in the run.

    Examples
    --------
    >>> extrapolated(200, [5.0, 7.0], 8.0)  # 3 s before the first round, 2 s each, 1 s after
    404.0
    >>> extrapolated(20, [1.0, 4.0, 5.0, 8.0], 8.0, every=5)  # scoring takes 2 s
    28.0
    """
    if len(ends) <= min(every, SCORED):
        return end
    each = ends[-1] - ends[-2]
    if every == 1:
        return end + (rounds - len(ends)) * each
    alone = ends[-2] - ends[-3]
    scorings = max(0.0, rounds / every - len(ends) / SCORED)
    return end + (rounds - len(ends)) * alone + scorings * max(0.0, each - alone)


def side_by_side(runs: Sequence[CellRun], requested: int) -> int:
    """Return the number of runs that fit into memory, at least 1 and at most `requested`."""
    largest = max((_bytes(run) for run in runs), default=0)
    memory.require(largest, "one run of the table", "use fewer features or samples")
    free = memory.available()
    fitting = requested if free is None or not largest else max(1, free // largest)
    return max(1, min(requested, fitting, len(runs)))


def _pilots(run: CellRun) -> int:
    made = run.made
    return PILOTS * made.pilot if isinstance(made, GradientMethod) and made.rate == "auto" else 0


def _size(run: CellRun) -> float:
    """Return a number to which the time of one method is roughly proportional."""
    return rounds_in_all(run) * run.source.samples * run.source.features


def _bytes(run: CellRun) -> int:
    """Return the approximate memory of a run, in bytes."""
    source = run.source
    lifts = [getattr(value, "width", 0) for value in vars(run.made).values()]
    width = source.features + sum(w for w in lifts if isinstance(w, int))
    widest = max([source.features, *(w for w in lifts if isinstance(w, int))])
    return _COPIES * source.samples * width * source.itemsize + _SQUARES * 8 * widest**2
