from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.core import codec
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.methods._closed_form import ClosedForm
from fedgram.models.adjusted import Shifted
from fedgram.models.linear import Linear, Predictor, require_lift
from fedgram.selection.class_prior import HeadWithClassCounts, class_counts, counts_of, log_odds
from fedgram.selection.gaussian import gaussian_weights


@dataclass(frozen=True, kw_only=True)
class LDA(ClosedForm[HeadWithClassCounts]):
    """Linear discriminant analysis from the sum of `afl`, with each client's class frequencies.

    Classes are Gaussians with their own means and the within-class covariance, computed from the
    summed statistics. The smoothed class frequencies of a client replace the global ones.

    Exchanges: the sum of `afl`.

    Parameters
    ----------
    shrinkage
        Added to the variance of each feature, for features of unit size, >= 0; with 0 the
        covariance must be invertible.
    smoothing
        Pseudo-count: number of samples with the global class frequencies that are added to each
        client's counts, > 0.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    shrinkage: float = 0.01
    smoothing: float = 1.0
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        if not 0 < self.smoothing < float("inf"):
            raise ConfigError(f"smoothing = {self.smoothing}: use a number > 0")

    def fit(self, federation: Federation) -> Iterator[HeadWithClassCounts]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        head = Linear(
            weights=gaussian_weights(total, self.shrinkage, within=True),
            space=total.space,
            classes=total.classes,
            lift=self.lift,
            origin=codec.digest({"total": total.digest(), "shrinkage": float(self.shrinkage)}),
        )
        yield HeadWithClassCounts(head=head, counts=class_counts(total)[0])

    def personalize(self, client: Client, shared: Any) -> Predictor:
        odds = log_odds(counts_of(client.samples.labels), shared.counts, self.smoothing)
        return Shifted(model=shared.head, shift=odds)
