from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.core import codec
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.methods._closed_form import ClosedForm
from fedgram.models.linear import Linear, Predictor, require_lift
from fedgram.selection.gaussian import gaussian_weights


@dataclass(frozen=True, kw_only=True)
class FedCGS(ClosedForm[Linear]):
    """FedCGS: a Gaussian classifier from summed feature statistics (AAAI 2025, arXiv 2503.06962).

    From the same sums as `afl`: the mean mu_c of each class, the covariance S of all features,
    w_c = S^-1 mu_c, and a bias of log(n_c / N) - mu_c' S^-1 mu_c / 2. The paper's personalized
    variant trains the backbone towards the shared class means; with a frozen one nothing is left
    of it, so everybody gets the shared classifier.

    Parameters
    ----------
    shrinkage
        Added to the variance of every feature, for features of unit size.
    lift
        Random projection and activation before the head; width 0 for none.
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

    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        return head
