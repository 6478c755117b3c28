from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Linear, Predictor


@dataclass(frozen=True, kw_only=True)
class Local(Method[None]):
    """Each client alone with its own samples: what every federation has to beat.

    Parameters
    ----------
    ridge
        Weight of the head's squared norm, for features of unit size.
    lift
        Random projection and activation before the head; width 0 for none.
    """

    ridge: float = 30.0
    lift: Lift = Lift()

    def fit(self, federation: Federation) -> Iterator[None]:
        yield None

    def personalize(self, client: Client, shared: Any) -> Predictor:
        samples = client.samples
        return Linear.fitted(samples, samples.labels.onehot(), ridge=self.ridge, lift=self.lift)
