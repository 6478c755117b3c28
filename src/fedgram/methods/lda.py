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
    """Linear discriminant analysis from the sums of `afl`, with each client's class frequencies.

    Classes are Gaussians with their own means and the covariance within classes, all of it read off
    the summed statistics. A client's own frequencies, smoothed, take the place of everybody's.

    Parameters
    ----------
    shrinkage
        Added to the variance of every feature, for features of unit size.
    smoothing
        So many samples with everybody's frequencies are added to each client's.
    lift
        Random projection and activation before the head; width 0 for none.
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
