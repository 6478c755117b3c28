"""Settings chosen for everybody: by counts of samples that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedgram.core.quadratic import Quadratic
from fedgram.errors import ConfigError
from fedgram.federation.protocol import Federation, Settled, Step
from fedgram.selection.correct_counts import Ballot

_REASONS = 12  # settings that are told of


def chosen(ballot: Ballot, tried: Sequence[Mapping[str, float]], shared: Any) -> Settled:
    """Return what is shared with the winner of these settings, and how the best of them did.

    Examples
    --------
    >>> import numpy as np
    >>> ballot = Ballot(samples=np.array([4]), right=np.array([[2, 3]]))
    >>> chosen(ballot, [{"alpha": 0.0}, {"alpha": 10.0}], None)
    Settled(shared=None, setting={'alpha': 10.0}, told='alpha 10',
            reasons={'alpha 10': 0.75, 'alpha 0': 0.5}, ...)
    """
    return _settled(ballot.accuracy.tolist(), tried, shared)


def _settled(shares: Sequence[float], tried: Sequence[Mapping[str, float]], shared: Any) -> Settled:
    best = np.argsort(-np.array(shares), kind="stable")[:_REASONS]
    winner = tried[best[0]]  # of equal ones the first
    return Settled(
        shared=shared,
        setting=dict(winner),
        told=told(winner),
        reasons={told(tried[place]): shares[place] for place in best},
    )


def told(setting: Mapping[str, Any]) -> str:
    """Return settings in words.

    Examples
    --------
    >>> told({"refinement_ridge": 300.0, "balance": 0.5})
    'refinement ridge 300, balance 0.5'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())


def require_strength(strength: float | Literal["auto"]) -> None:
    """Refuse a weight of a pull that is none."""
    if strength != "auto" and not 0 < strength < float("inf"):
        raise ConfigError(f"strength = {strength}: use a number > 0, or 'auto'")


def chosen_strength(
    federation: Federation,
    step: Step[Quadratic],
    left_out: Step[Ballot],
    tried: Sequence[float],
) -> tuple[Quadratic, Settled]:
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
