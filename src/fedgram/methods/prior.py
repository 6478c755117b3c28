from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram.core.gcv import Ridge, resolved
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned, unwrap
from fedgram.federation.stacked_step import alike, stacked_step
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
from fedgram.selection.leave_one_out import LeaveOneOut
from fedgram.selection.normal_equations import NormalEquations
from fedgram.selection.squared_errors import correct_sums


@dataclass(frozen=True, kw_only=True)
class Prior(ClosedForm[HeadWithClassCounts | Tuned]):
    """The head of `afl` with each client's class prior added to its scores.

    The scores of `afl`, times a temperature, are used as log-posteriors. A client adds, for each
    class, the logarithm of the ratio of its own to the global class frequency. Only one number per
    class is personal, and it is never sent.

    Exchanges: the sum of `afl`; with temperature "auto" also counts of correct leave-one-out
    predictions.

    Parameters
    ----------
    temperature
        Scale of the scores against the class prior, > 0: the smaller, the more the client's class
        frequencies count. "auto" selects from 5, 10, 20, ..., 160, 10,000 by leave-one-out accuracy
        over all clients: clients receive the total and answer with counts of correct predictions.
    smoothing
        Pseudo-count: number of samples with the global class frequencies that are added to each
        client's counts, > 0.
    ridge
        Weight of the head's squared norm, for features of unit size; 0 is plain least squares.
        "auto" selects the smallest ridge with nearly the smallest generalized cross-validation
        error, which the sum alone determines.
    lift
        Random projection and activation before the head; width 0 for no lift.
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

    @stacked_step
    def left_out(
        self, clients: Sequence[Client], equations: NormalEquations
    ) -> list[CorrectCounts]:
        counts = class_counts(equations.total)[0]
        replies: dict[int, CorrectCounts] = {}
        size = len(TEMPERATURES) * len(equations.classes)
        for places in alike([len(client.samples) for client in clients], size):
            parts = [clients[place].samples for place in places]
            in_total = [clients[place].in_total for place in places]
            stacks = LeaveOneOut.stacks(parts, equations, self.lift, in_total=in_total)
            for some, own in stacks:
                odds = np.stack(
                    [
                        left_out_log_odds(
                            parts[k].labels.codes,
                            counts_of(parts[k].labels),
                            counts,
                            self.smoothing,
                            in_total=in_total[k],
                        )
                        for k in some
                    ]
                )
                scores = [own.shared() + odds / t for t in TEMPERATURES]
                sums = correct_sums(scores, own.codes)
                replies |= {places[k]: one for k, one in zip(some, sums, strict=True)}
        return [replies[place] for place in range(len(clients))]

    def fit(self, federation: Federation) -> Iterator[HeadWithClassCounts | Tuned]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        equations = NormalEquations(total=total, ridge=resolved(self.ridge, total))
        shared = HeadWithClassCounts(
            head=equations.linear(self.lift), counts=class_counts(total)[0]
        )
        if self.temperature != "auto":
            yield shared
            return
        correct_counts = federation.sum(self.left_out, equations)
        yield select_best(correct_counts, [{"temperature": t} for t in TEMPERATURES], shared)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        common, setting = unwrap(shared, temperature=self.temperature)
        odds = log_odds(counts_of(client.samples.labels), common.counts, self.smoothing)
        return Shifted(model=common.head, shift=odds / setting["temperature"])
