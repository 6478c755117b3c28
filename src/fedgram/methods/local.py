from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fedgram.core.gcv import Ridge
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Predictor
from fedgram.selection.own_ridge import around_mean, best_own_ridge, own_head


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
        ridge = self.ridge
        if ridge == "auto":
            features = self.lift(samples.features)
            ridge = best_own_ridge(features, samples.labels, centered=around_mean(samples))
        return own_head(samples, ridge=ridge, lift=self.lift)
