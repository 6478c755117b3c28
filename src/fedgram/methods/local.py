from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedgram.core.gcv import Ridge
from fedgram.core.targets import Targets
from fedgram.features.grid import bias
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Linear, Predictor
from fedgram.selection.own_ridge import best_own_ridge


@dataclass(frozen=True, kw_only=True)
class Local(Method[None]):
    """Ridge regression of each client on its own samples: the baseline without a federation.

    Exchanges: nothing.

    Parameters
    ----------
    ridge
        Weight of the head's squared norm, for features of unit size; 0 is plain least squares.
        "auto" lets each client select its own, by exact leave-one-out on its samples.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    predicts_numbers: ClassVar[bool] = True

    ridge: Ridge = "auto"
    lift: Lift = Lift()

    def fit(self, federation: Federation) -> Iterator[None]:
        yield None

    def personalize(self, client: Client, shared: Any) -> Predictor:
        samples = client.samples
        targets = samples.labels.onehot()
        # Of a regression the ridge pulls towards the client's mean, as in `TargetStatistics`.
        centered = isinstance(samples.labels, Targets) and samples.features.space.has_constant
        mean = targets.mean(axis=0) if centered and len(targets) else np.zeros(targets.shape[1])
        ridge = self.ridge
        if ridge == "auto":
            features = self.lift(samples.features)
            ridge = best_own_ridge(features, samples.labels, centered=centered)
        head = Linear.fitted(samples, targets - mean, ridge=ridge, lift=self.lift)
        if not centered:
            return head
        space, weights = head.space, head.weights.copy()
        weights[space.constant] += mean / (bias(space.unit, space.bound) * space.unit)
        return replace(head, weights=weights)
