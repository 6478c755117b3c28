"""Settings chosen for everybody: by counts of samples that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgram.ballot import Ballot
from fedgram.federation import Federation, Settled, Step
from fedgram.quadratic import Quadratic

_REASONS = 12  # settings that are told of


def chosen(ballot: Ballot, tried: Sequence[Mapping[str, float]], shared: Any) -> Settled:
    """Return what is shared with the winner of these settings, and how the best of them did.

    Examples
    --------
    >>> import numpy as np
    >>> ballot = Ballot(samples=4, right=np.array([2, 3]))
    >>> chosen(ballot, [{"alpha": 0.0}, {"alpha": 10.0}], None)
    Settled(shared=None, setting={'alpha': 10.0}, told='alpha 10',
            reasons={'alpha 10': 0.75, 'alpha 0': 0.5})
    """
    best = np.argsort(-ballot.accuracy, kind="stable")[:_REASONS]
    return Settled(
        shared=shared,
        setting=dict(tried[ballot.winner]),
        told=told(tried[ballot.winner]),
        reasons={told(tried[place]): float(ballot.accuracy[place]) for place in best},
    )


def told(setting: Mapping[str, Any]) -> str:
    """Return settings in words.

    Examples
    --------
    >>> told({"refinement_ridge": 300.0, "balance": 0.5})
    'refinement ridge 300, balance 0.5'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())


def chosen_strength(
    federation: Federation,
    step: Step[Quadratic],
    left_out: Step[Ballot],
    tried: Sequence[float],
) -> tuple[Quadratic, Settled]:
    """Choose a strength that changes what is summed: one sum and one count for each.

    Returns the sum of the chosen one, and the choice with nothing shared yet.
    """
    right: list[int] = []
    samples, best = 0, Quadratic.zero()
    for strength in tried:
        total = federation.sum(step, strength)
        ballot = federation.sum(left_out, {"strength": strength, "total": total})
        if not right or int(ballot.right[0]) > max(right):
            best = total
        right.append(int(ballot.right[0]))
        samples = max(samples, ballot.samples)
    counts = Ballot(samples=samples, right=np.array(right))
    return best, chosen(counts, [{"strength": strength} for strength in tried], None)
