"""Settings chosen for everybody: by counts of samples that were left out."""

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

_REASONS = 12  # settings that are told of


def select_best(ballot: CorrectCounts, tried: Sequence[Mapping[str, float]], shared: Any) -> Tuned:
    """Return what is shared with the winner of these settings, and how the best of them did.

    Examples
    --------
    >>> import numpy as np
    >>> ballot = CorrectCounts(samples=np.array([4]), correct=np.array([[2, 3]]))
    >>> select_best(ballot, [{"alpha": 0.0}, {"alpha": 10.0}], None)
    Tuned(shared=None, setting={'alpha': 10.0}, description='alpha 10',
            left_out_accuracy={'alpha 10': 0.75, 'alpha 0': 0.5}, ...)
    """
    return _settled(ballot.accuracy.tolist(), tried, shared)


def _settled(shares: Sequence[float], tried: Sequence[Mapping[str, float]], shared: Any) -> Tuned:
    best = np.argsort(-np.array(shares), kind="stable")[:_REASONS]
    winner = tried[best[0]]  # of equal ones the first
    return Tuned(
        shared=shared,
        setting=dict(winner),
        description=describe(winner),
        left_out_accuracy={describe(tried[place]): shares[place] for place in best},
    )


def describe(setting: Mapping[str, Any]) -> str:
    """Return settings in words.

    Examples
    --------
    >>> describe({"refinement_ridge": 300.0, "balance": 0.5})
    'refinement ridge 300, balance 0.5'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())


def require_strength(strength: float | Literal["auto"]) -> None:
    """Refuse a weight of a pull that is none."""
    if strength != "auto" and not 0 < strength < float("inf"):
        raise ConfigError(f"strength = {strength}: use a number > 0, or 'auto'")


def select_strength(
    federation: Federation,
    step: Step[Quadratic],
    left_out: Step[CorrectCounts],
    tried: Sequence[float],
) -> tuple[Quadratic, Tuned]:
    """Choose a strength that changes what is summed: one sum and one count for each.

    Returns the sum of the chosen one, and the choice with nothing shared yet.
    """
    shares: list[float] = []
    best = Quadratic.zero()
    for strength in tried:
        total = federation.sum(step, strength)
        ballot = federation.sum(left_out, {"strength": strength, "total": total})
        share = float(ballot.accuracy[0])
        if not shares or share > max(shares):
            best = total
        shares.append(share)
    return best, _settled(shares, [{"strength": strength} for strength in tried], None)
