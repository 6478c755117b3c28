"""A client's own head, and its ridge, selected on its samples alone by exact leave-one-out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgram.core.samples import Features, Floats, Labels, Samples
from fedgram.core.targets import Targets
from fedgram.features.grid import bias
from fedgram.features.lift import Lift
from fedgram.models.linear import Linear
from fedgram.selection.leave_one_out import (
    Curve,
    HatMatrix,
    Setting,
    at_once,
    correct,
    one_minus_leverage,
)

# The smallest first: of equally good ridges the largest is selected.
OWN_RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


def around_mean(samples: Samples) -> bool:
    """Whether own heads are solved around the mean of the targets: of numbers, with a constant.

    So predictions do not depend on where the outputs lie in their declared range.
    """
    return isinstance(samples.labels, Targets) and samples.features.space.has_constant


def own_head(samples: Samples, *, ridge: float, lift: Lift) -> Linear:
    """Return the ridge regression of a client's own samples.

    Parameters
    ----------
    samples
        The client's samples.
    ridge
        Weight of the squared norm.
    lift
        Applied to the features first.
    """
    targets = samples.labels.onehot()
    if not around_mean(samples) or not len(targets):
        return Linear.fitted(samples, targets, ridge=ridge, lift=lift)
    mean = targets.mean(axis=0)
    head = Linear.fitted(samples, targets - mean, ridge=ridge, lift=lift)
    space, weights = head.space, head.weights.copy()
    weights[space.constant] += mean / (bias(space.unit, space.bound) * space.unit)
    return replace(head, weights=weights)


def best_own_ridge(features: Features, labels: Labels, *, centered: bool = False) -> float:
    """Return the ridge that predicts a client's left-out samples best.

    With classes this is the ridge with the most correct predictions, with numbers the one with the
    smallest squared error.

    Parameters
    ----------
    features
        The client's features, lifted.
    labels
        Their classes or numbers.
    centered
        Whether the mean of the targets is subtracted before the head is solved.

    Examples
    --------
    >>> from fedgram.core.samples import Labels
    >>> from fedgram.features.grid import Grid
    >>> rows = np.array([[3.0, 0.0], [2.0, 1.0], [0.0, 2.0], [1.0, 3.0]])
    >>> best_own_ridge(Grid()(rows), Labels(np.array([0, 0, 1, 1]), ("east", "north")))
    3.0
    """
    if len(labels) < 2:
        return OWN_RIDGES[-1]
    targets = labels.onehot()
    curve = left_out_scores(HatMatrix.of(features.values), targets, centered=centered)
    stored = [ridge / features.space.unit**2 for ridge in OWN_RIDGES]
    left_out = at_once(curve, stored, targets)
    best, least = OWN_RIDGES[-1], np.inf
    for ridge, own in zip(OWN_RIDGES, stored, strict=True):
        scores = left_out(own)
        if isinstance(labels, Targets):
            wrong = float(np.sum(np.nan_to_num(targets - scores, nan=2.0) ** 2))
        else:
            wrong = float(np.sum(~correct(scores, labels.codes)))
        if wrong <= least:
            best, least = ridge, wrong
    return best


def left_out_scores(hat: HatMatrix, targets: Floats, *, centered: bool) -> Curve:
    """Return each sample's scores from the ridge regression of the others, by the ridge.

    If the mean is subtracted, the others have another mean than all: their targets all move by the
    same amount, so that the ridge regression of a column of ones is needed beside that of targets.

    Parameters
    ----------
    hat
        The hat matrix of all samples.
    targets
        Samples by outputs.
    centered
        Whether the regression is of the targets minus their mean, to which the mean is added.
    """
    mean = targets.mean(axis=0) if centered else np.zeros(targets.shape[1])
    rest = max(1, len(targets) - 1)
    others = (len(targets) * mean - targets) / rest if centered else mean
    both = np.column_stack([targets - mean, np.ones(len(targets))])
    fitted = hat.fitting(both)

    def scores(ridge: Setting) -> Floats:
        leverage = hat.leverage(ridge)[..., None]
        alone = (fitted(ridge) - leverage * both) / one_minus_leverage(leverage)
        found: Floats = others + alone[..., :-1] - (others - mean) * alone[..., -1:]
        return found

    return scores
