from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.quadratic import Quadratic
from fedgram.core.samples import Floats
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.linear import Linear, Predictor, lifted
from fedgram.runtime.threads import single_threaded_blas


@dataclass(frozen=True, kw_only=True)
class ClosedMAML(Method[Linear]):
    """Per-FedAvg's objective (Fallah et al., NeurIPS 2020) on squared loss, in closed form.

    A client's model is the shared head after one gradient step on its mean squared error, ``W - eta
    (G_k W - b_k) / n_k``. The shared head minimizes the clients' squared errors after this step:
    with ``A_k = I - eta G_k / n_k`` it is ``(sum A_k^2 G_k)^-1 sum A_k^2 b_k``. It depends on the
    partition by design.

    Exchanges: one sum of Gram matrices and class sums, each multiplied by the client's ``A_k^2``,
    where ``A_k = I - eta G_k / n_k``; the server solves the head.

    Parameters
    ----------
    rate
        Learning rate of the client's step (alpha in the paper) in units of 1 / number of features,
        >= 0; up to 1 no step overshoots, since features are of unit size. 0 gives the head of
        `afl`, up to rounding.
    ridge
        Weight of the shared head's squared norm, for features of unit size; 0 is plain least
        squares.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    rate: float = 1.0
    ridge: float = 100.0
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        if not 0 <= self.rate < float("inf"):
            raise ConfigError(f"rate = {self.rate}: use a number >= 0")

    @step
    def ahead(self, client: Client, _: None) -> Quadratic:
        features, labels = lifted(client.samples, self.lift)
        gram, moment = _means(features.real(), labels.onehot())
        with single_threaded_blas():
            step = np.eye(len(gram)) - self.rate / len(gram) * gram
            twice = step @ step
            matrix, target = twice @ gram, twice @ moment
        return Quadratic.of(matrix, target, len(labels), features.space, labels.classes)

    def fit(self, federation: Federation) -> Iterator[Linear]:
        total = federation.sum(self.ahead)
        yield Linear(
            weights=total.solve(self.ridge),
            space=total.space,
            classes=total.classes,
            lift=self.lift,
        )

    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        features, labels = lifted(client.samples, self.lift)
        gram, moment = _means(features.real(), labels.onehot())
        with single_threaded_blas():
            slope = gram @ head.weights - moment
        return Linear(
            weights=head.weights - self.rate / len(gram) * slope,
            space=head.space,
            classes=head.classes,
            lift=head.lift,
        )


def _means(rows: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Return the mean of f f' and of f y'."""
    with single_threaded_blas():
        return rows.T @ rows / max(1, len(rows)), rows.T @ targets / max(1, len(rows))
