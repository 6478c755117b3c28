"""Scores beyond accuracy: ranking, and who gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgram.samples import Floats, Integers

ALONE, SHARED = "local", "afl"  # the methods that stand for these two cases


def macro_auroc(scores: Floats, codes: Integers) -> float | None:
    """Return the mean over classes of the area under the ROC curve, each class against the rest.

    Classes without samples, or with all of them, are left out; None where none remains.

    Examples
    --------
    >>> macro_auroc(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1]))
    1.0
    >>> macro_auroc(np.array([[0.9, 0.1]]), np.array([0])) is None
    True
    """
    areas = []
    for code in np.unique(codes):
        inside = codes == code
        positive, negative = int(inside.sum()), int((~inside).sum())
        if negative:
            ranks = _ranks(scores[:, code])[inside].sum()
            areas.append((ranks - positive * (positive + 1) / 2) / (positive * negative))
    return float(np.mean(areas)) if areas else None


def _ranks(values: Floats) -> Floats:
    """Return ranks from 1, equal values sharing their mean; scipy.stats takes long to import."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (counts.cumsum() - (counts - 1) / 2)[places]
    return ranks


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
