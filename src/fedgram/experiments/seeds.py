"""Means and standard deviations over runs that differ in their seeds alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from fedgram.experiments.run_record import RunRecord

MeanAndStd = tuple[float, float | None]  # a mean, and a standard deviation where there is one
Point = tuple[float, float, float]  # a cost, mean accuracy and its standard deviation


def mean_and_std(values: Iterable[float | None]) -> MeanAndStd | None:
    """Return mean and standard deviation of the known values; a single value has no deviation.

    Examples
    --------
    >>> mean_and_std([1.0, 3.0, None]), mean_and_std([0.5]), mean_and_std([None])
    ((2.0, 1.4142135623730951), (0.5, None), None)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    return mean(known), stdev(known) if len(known) > 1 else None


def mean_curve(runs: Sequence[RunRecord], axis: str) -> list[Point]:
    """Return cost, mean accuracy and deviation for every round that all runs have scored."""
    by_round = [{one.round: (run, one) for one in run.rounds} for run in runs]
    common = set.intersection(*map(set, by_round)) if by_round else set()
    if by_round and not common:  # scored at other times: one run stands for all
        by_round, common = by_round[:1], set(by_round[0])
    points: list[Point] = []
    for number in sorted(common):
        scored = [rounds[number] for rounds in by_round]
        cost = mean_and_std(run.cost_at(one, axis) for run, one in scored)
        accuracy = mean_and_std(one.summary.score("client_mean") for _, one in scored)
        if cost and accuracy:
            points.append((cost[0], accuracy[0], accuracy[1] or 0.0))
    return points


def chosen_at(runs: Iterable[RunRecord], axis: str) -> float | None:
    """Return the mean cost up to the chosen round."""
    found = mean_and_std(run.cost_at(run.chosen, axis) for run in runs)
    return found[0] if found else None
