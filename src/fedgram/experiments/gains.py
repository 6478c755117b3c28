"""Who gains by a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ALONE, SHARED = "local", "afl"  # the methods that stand for these two cases


def gains(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float] | None:
    """Return the shares of clients that are better and worse off with ours than with theirs.

    Examples
    --------
    >>> gains({"a": 0.9, "b": 0.5, "c": 0.5}, {"a": 0.8, "b": 0.5, "c": 0.6})
    {'better': 0.3333333333333333, 'worse': 0.3333333333333333}
    """
    both = [(ours[client], theirs[client]) for client in ours if client in theirs]
    if not both:
        return None
    return {
        "better": sum(a > b for a, b in both) / len(both),
        "worse": sum(a < b for a, b in both) / len(both),
    }


def who_gains(runs: Sequence[tuple[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Compare every run's clients with training alone and with the shared model.

    Each run is a method's name and its accuracy by client. A comparison is None where its other
    side was not run.

    Examples
    --------
    >>> who_gains([("local", {"a": 0.5}), ("apfl", {"a": 0.7})])[1]
    {'over_alone': {'better': 1.0, 'worse': 0.0}, 'over_shared': None}
    """
    others = {"over_alone": ALONE, "over_shared": SHARED}
    accuracies = dict(runs)
    return [
        {
            key: None if method == other else gains(ours, accuracies.get(other, {}))
            for key, other in others.items()
        }
        for method, ours in runs
    ]
