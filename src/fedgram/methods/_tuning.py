"""Selection of settings for all clients by leave-one-out accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedgram.core.quadratic import Quadratic
from fedgram.errors import ConfigError
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned
from fedgram.federation.step import Step
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.squared_errors import SquaredErrors

_LISTED = 12  # settings whose accuracy is recorded


def select_best(
    correct_counts: CorrectCounts | SquaredErrors, tried: Sequence[Mapping[str, float]], shared: Any
) -> Tuned:
    """Return the shared result with the most accurate setting, and the best accuracies.

    Parameters
    ----------
    correct_counts
        Counts of correct leave-one-out predictions, or squared errors of a regression, one column
        for each setting.
    tried
        The settings; of equally accurate ones the first is selected.
    shared
        What is shared.

    Examples
    --------
    >>> import numpy as np
    >>> correct_counts = CorrectCounts(samples=np.array([4]), correct=np.array([[2, 3]]))
    >>> select_best(correct_counts, [{"alpha": 0.0}, {"alpha": 10.0}], None)
    Tuned(shared=None, setting={'alpha': 10.0}, description='alpha 10',
            left_out_accuracy={'alpha 10': 0.75, 'alpha 0': 0.5}, ...)
    """
    return _tuned(correct_counts.accuracy.tolist(), tried, shared)


def _tuned(shares: Sequence[float], tried: Sequence[Mapping[str, float]], shared: Any) -> Tuned:
    best = np.argsort(-np.array(shares), kind="stable")[:_LISTED]
    winner = tried[best[0]]  # the first of equal ones
    return Tuned(
        shared=shared,
        setting=dict(winner),
        description=describe(winner),
        left_out_accuracy={describe(tried[place]): shares[place] for place in best},
    )


def describe(setting: Mapping[str, Any]) -> str:
    """Return a one-line description of a setting.

    Examples
    --------
    >>> describe({"refinement_ridge": 300.0, "balance": 0.5})
    'refinement ridge 300, balance 0.5'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())


def require_strength(strength: float | Literal["auto"]) -> None:
    """Raise ConfigError unless `strength` is positive or "auto"."""
    if strength != "auto" and not 0 < strength < float("inf"):
        raise ConfigError(f"strength = {strength}: use a number > 0, or 'auto'")


def select_strength(
    federation: Federation,
    step: Step[Quadratic],
    left_out: Step[CorrectCounts | SquaredErrors],
    tried: Sequence[float],
) -> tuple[Quadratic, Tuned]:
    """Return the total of the most accurate strength, and the selection without a shared result.

    For methods whose statistics depend on the strength: one sum of statistics and one of counts for
    each strength.

    Parameters
    ----------
    federation
        The clients.
    step
        Returns a client's statistics for a strength.
    left_out
        Returns the counts of correct leave-one-out predictions, given the strength and the total.
    tried
        The strengths; of equally accurate ones the first is selected.
    """
    shares: list[float] = []
    best = Quadratic.zero()
    for strength in tried:
        total = federation.sum(step, strength)
        correct_counts = federation.sum(left_out, {"strength": strength, "total": total})
        share = float(correct_counts.accuracy[0])
        if not shares or share > max(shares):
            best = total
        shares.append(share)
    return best, _tuned(shares, [{"strength": strength} for strength in tried], None)
