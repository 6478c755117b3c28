from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.core import codec
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import for_all_clients
from fedgram.federation.protocol import Federation
from fedgram.methods._closed_form import ClosedForm
from fedgram.models.linear import Linear, Predictor, require_lift
from fedgram.selection.gaussian import gaussian_weights


@dataclass(frozen=True, kw_only=True)
class FedCGS(ClosedForm[Linear]):
    """FedCGS (AAAI 2025, arXiv 2503.06962): a Gaussian classifier from summed statistics.

    From the sum of `afl`: the mean mu_c of each class, the covariance S of all features, w_c = S^-1
    mu_c, and a bias of log(n_c / N) - mu_c' S^-1 mu_c / 2. The paper's personalized variant trains
    the backbone towards the shared class means. With a frozen backbone this has no effect, so all
    clients get the shared classifier.

    Exchanges: the sum of `afl`.

    Parameters
    ----------
    shrinkage
        Added to the variance of each feature, for features of unit size, >= 0; with 0 the
        covariance must be invertible.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    shrinkage: float = 0.01
    lift: Lift = Lift()

    def fit(self, federation: Federation) -> Iterator[Linear]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        yield Linear(
            weights=gaussian_weights(total, self.shrinkage, within=False),
            space=total.space,
            classes=total.classes,
            lift=self.lift,
            origin=codec.digest({"total": total.digest(), "shrinkage": float(self.shrinkage)}),
        )

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        return head
