from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedgram.core.targets import Targets
from fedgram.features.grid import bias
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Linear, Predictor


@dataclass(frozen=True, kw_only=True)
class Local(Method[None]):
    """Ridge regression of each client on its own samples: the baseline without a federation.

    Exchanges: nothing.

    Parameters
    ----------
    ridge
        Weight of the head's squared norm, for features of unit size; 0 is plain least squares.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    predicts_numbers: ClassVar[bool] = True

    ridge: float = 30.0
    lift: Lift = Lift()

    def fit(self, federation: Federation) -> Iterator[None]:
        yield None

    def personalize(self, client: Client, shared: Any) -> Predictor:
        samples = client.samples
        targets = samples.labels.onehot()
        if not (isinstance(samples.labels, Targets) and samples.features.space.has_constant):
            return Linear.fitted(samples, targets, ridge=self.ridge, lift=self.lift)
        # Of a regression the ridge pulls towards the client's mean, as in `TargetStatistics`.
        mean = targets.mean(axis=0) if len(targets) else np.zeros(targets.shape[1])
        head = Linear.fitted(samples, targets - mean, ridge=self.ridge, lift=self.lift)
        space, weights = head.space, head.weights.copy()
        weights[space.constant] += mean / (bias(space.unit, space.bound) * space.unit)
        return replace(head, weights=weights)
