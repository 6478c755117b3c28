"""Whether a lift would help: leave-one-out predictions of some samples, without and with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedgram.core.samples import Features, Floats, Labels, Samples
from fedgram.features.lift import Lift
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.holdout import content_hashes
from fedgram.selection.leave_one_out import HatMatrix, one_minus_leverage
from fedgram.selection.squared_errors import SquaredErrors, left_out_sums

MOST = 256  # samples of a client: the cost grows with the cube
RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # over the mean squared length of the samples
LEAST_GAIN = 0.01  # of accuracy, or R2, and at least its standard error: a lift has its price


def left_out_alone(samples: Samples, lift: Lift) -> CorrectCounts | SquaredErrors:
    """Return what each ridge head of a client's samples alone predicts, without the lift and with.

    Of more than `MOST` samples, those with the smallest hashes of their features are used.

    Parameters
    ----------
    samples
        The client's samples.
    lift
        The lift.
    """
    if len(samples) > MOST:
        alike = Samples(samples.features, Labels(np.zeros(len(samples), np.int64), ("any",)))
        samples = samples.take(np.sort(np.argsort(content_hashes(alike), kind="stable")[:MOST]))
    truth, features = samples.labels.onehot(), samples.features
    scores = [*_predictions(features, truth), *_predictions(lift(features), truth)]
    return left_out_sums([each[None] for each in scores], [samples.labels])[0]


def gains(counted: CorrectCounts | SquaredErrors) -> bool:
    """Return whether the lift makes the best ridge head better, beyond `LEAST_GAIN` and chance.

    Parameters
    ----------
    counted
        The sum of `left_out_alone` over clients.
    """
    shares = counted.accuracy
    plain, lifted = shares[: len(RIDGES)].max(), shares[len(RIDGES) :].max()
    chance = np.sqrt(max(0.0, 2 * plain * (1 - plain)) / max(1, counted.claimed_samples()))
    return bool(lifted > plain + max(LEAST_GAIN, chance))


def _predictions(features: Features, truth: Floats) -> Iterator[Floats]:
    hat = HatMatrix.of(features.values)
    fitted, length = hat.fitting(truth), hat.spread.sum() / max(1, len(truth))
    for share in RIDGES:
        ridge = share * max(float(length), 1.0)
        leverage = hat.leverage(ridge)[:, None]
        yield (fitted(ridge) - leverage * truth) / one_minus_leverage(leverage)
