from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fedgram.core.gcv import Ridge
from fedgram.core.samples import Samples
from fedgram.core.statistics import Statistics
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method, for_all_clients
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.linear import Linear, Predictor, lifted


@dataclass(frozen=True, kw_only=True)
class Central(Method[Linear]):
    """Ridge regression of all samples in one place: the reference, not a federated method.

    Each client's samples are gathered at the server, so nothing is private. The digests are those
    of `afl` with the same settings: the federated solution equals the central one.

    Exchanges: all samples are gathered; the server solves the head.

    Parameters
    ----------
    ridge
        Weight of the head's squared norm, for features of unit size; 0 is plain least squares.
        "auto" selects the smallest ridge with nearly the smallest generalized cross-validation
        error, which the sum alone determines.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    predicts_numbers: ClassVar[bool] = True

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

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        return head
