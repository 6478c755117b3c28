from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.core.gcv import Ridge
from fedgram.core.samples import Samples
from fedgram.core.statistics import Statistics
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.linear import Linear, Predictor, lifted


@dataclass(frozen=True, kw_only=True)
class Central(Method[Linear]):
    """All samples in one place, one ridge regression: the reference, and no federation at all.

    Every client's samples are gathered at the server, so nothing is private here. Its digests are
    those of `afl` with the same settings, which is the point of `afl`.

    Parameters
    ----------
    ridge
        Weight of the head's squared norm, for features of unit size; "auto" takes the least with
        nearly the smallest generalized cross-validation error.
    lift
        Random projection and activation before the head; width 0 for none.
    """

    ridge: Ridge = 100.0
    lift: Lift = Lift()

    @step
    def samples(self, client: Client, _: None) -> Samples:
        return client.samples

    def fit(self, federation: Federation) -> Iterator[Linear]:
        total = Statistics.over(
            lifted(samples, self.lift) for _, samples in federation.gather(self.samples)
        )
        yield Linear.of(total, ridge=self.ridge, lift=self.lift)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        return head
