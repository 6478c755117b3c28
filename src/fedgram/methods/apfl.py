from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.client import Client
from fedgram.features.lift import Lift
from fedgram.federation import Federation
from fedgram.gcv import Ridge
from fedgram.heads import Blend, Linear, Predictor, lifted
from fedgram.stats import Statistics


@dataclass(frozen=True, kw_only=True)
class APFL:
    """Analytic (not Adaptive) Personalized FL: dual-stream least squares (arXiv 2508.10732).

    A primary stream, shared by all, is the ridge regression of the summed statistics (eqs. 3 to
    10; as in `afl` the sum is solved directly, with one ridge whatever the number of clients). A
    refinement stream, each client's own, fits what the primary one leaves over (eqs. 11 to 13), and
    prediction adds the two (eq. 14). The equations' bodies are derived from the paper's text.
    The name also belongs to Adaptive Personalized FL (Deng et al., 2020), another method.

    Parameters
    ----------
    ridge
        Weight of the primary head's squared norm (beta in the paper), for features of unit size;
        "auto" takes the one with the smallest generalized cross-validation error.
    refinement_ridge
        The same for a client's own head (gamma).
    balance
        Weight of the client's own stream in the prediction (lambda).
    primary
        Lift of the shared stream; width 0 for none.
    refinement
        Lift of the client's own stream; width 0 for none.
    """

    ridge: Ridge = 100.0
    refinement_ridge: float = 300.0
    balance: float = 0.5
    primary: Lift = Lift()
    refinement: Lift = Lift(seed=1)

    def statistics(self, client: Client, _: None) -> Statistics:
        return Statistics.of(*lifted(client.samples, self.primary))

    def fit(self, federation: Federation) -> Iterator[Linear]:
        total = federation.sum(self.statistics)
        yield Linear.of(total, ridge=self.ridge, lift=self.primary)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        samples = client.samples
        residual = samples.labels.onehot() - shared(samples.features)  # eq. 12
        own = Linear.fitted(
            samples, residual, ridge=self.refinement_ridge, lift=self.refinement
        )  # eq. 13
        return Blend(first=shared, second=own, balance=self.balance)  # eq. 14
