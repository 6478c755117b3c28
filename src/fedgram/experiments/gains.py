"""Which clients gain by a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgram.experiments.run_record import RunRecord

ALONE, SHARED = "local", "afl"  # methods that represent these two cases


def gains(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float] | None:
    """Return the fractions of clients whose accuracy is higher and lower in ours than in theirs.

    Examples
    --------
    >>> gains({"a": 0.9, "b": 0.5, "c": 0.5}, {"a": 0.8, "b": 0.5, "c": 0.6})
    {'better': 0.3333333333333333, 'worse': 0.3333333333333333}
    """
    return gains_of_pairs((ours[client], theirs[client]) for client in ours if client in theirs)


def gains_of_pairs(pairs: Iterable[tuple[float, float]]) -> dict[str, float] | None:
    """Return the fractions of pairs in which the first accuracy is higher and lower."""
    both = list(pairs)
    if not both:
        return None
    return {
        "better": sum(a > b for a, b in both) / len(both),
        "worse": sum(a < b for a, b in both) / len(both),
    }


def who_gains(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Compare every run's clients with training alone and with the shared model.

    All runs have the same clients. A comparison is None if the other method was not run.
    """
    others = {"over_alone": ALONE, "over_shared": SHARED}
    accuracies = {run.method: run.chosen.by_client() for run in runs}
    return [
        {
            key: None
            if run.method == other
            else gains(run.chosen.by_client(), accuracies.get(other, {}))
            for key, other in others.items()
        }
        for run in runs
    ]
