from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram.core.gcv import Ridge, resolved
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned, unwrap
from fedgram.federation.step import step
from fedgram.methods._closed_form import ClosedForm
from fedgram.methods._tuning import select_best
from fedgram.models.adjusted import Shifted
from fedgram.models.linear import Predictor, require_lift
from fedgram.selection.class_prior import (
    TEMPERATURES,
    HeadWithClassCounts,
    class_counts,
    counts_of,
    left_out_log_odds,
    log_odds,
)
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import LeaveOneOut, correct
from fedgram.selection.normal_equations import NormalEquations


@dataclass(frozen=True, kw_only=True)
class Prior(ClosedForm[HeadWithClassCounts | Tuned]):
    """The shared head times how often each class is at the client: personal at no cost.

    The scores of `afl`, times a temperature, are taken for logarithms of posteriors. To them a
    client adds the logarithm of how much more often each class is among its own samples than among
    everybody's. Only one number for each class is a client's own, and it never leaves.

    Parameters
    ----------
    temperature
        Of the scores: the smaller, the more the client's frequencies count. "auto" takes the one
        of 5, 10, 20, ..., 160, 10,000 that gets the most samples right, over all clients, when each
        is left out of everything; clients are sent the total for that and answer with counts.
    smoothing
        So many samples with everybody's frequencies are added to each client's.
    ridge
        Weight of the head's squared norm, for features of unit size; "auto" takes the least with
        nearly the smallest generalized cross-validation error.
    lift
        Random projection and activation before the head; width 0 for none.
    """

    temperature: float | Literal["auto"] = "auto"
    smoothing: float = 1.0
    ridge: Ridge = "auto"
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        if self.temperature != "auto" and not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature = {self.temperature}: use a number > 0, or 'auto'")
        if not 0 < self.smoothing < float("inf"):
            raise ConfigError(f"smoothing = {self.smoothing}: use a number > 0")

    def leaves_samples_out(self) -> bool:
        return True

    @step
    def left_out(self, client: Client, whole: NormalEquations) -> CorrectCounts:
        counted = client.in_total
        own = LeaveOneOut.of(client.samples, whole, self.lift, counted=counted)
        odds = left_out_log_odds(
            own.codes,
            counts_of(client.samples.labels),
            class_counts(whole.total)[0],
            self.smoothing,
            counted=counted,
        )
        return CorrectCounts.of(
            np.stack([correct(own.shared() + odds / t, own.codes) for t in TEMPERATURES], axis=1)
        )

    def fit(self, federation: Federation) -> Iterator[HeadWithClassCounts | Tuned]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        whole = NormalEquations(total=total, ridge=resolved(self.ridge, total))
        shared = HeadWithClassCounts(head=whole.linear(self.lift), counts=class_counts(total)[0])
        if self.temperature != "auto":
            yield shared
            return
        ballot = federation.sum(self.left_out, whole)
        yield select_best(ballot, [{"temperature": t} for t in TEMPERATURES], shared)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        informed, setting = unwrap(shared, temperature=self.temperature)
        odds = log_odds(counts_of(client.samples.labels), informed.counts, self.smoothing)
        return Shifted(model=informed.head, shift=odds / setting["temperature"])
