from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram.core.gcv import Ridge, resolved
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned, unwrap
from fedgram.federation.step import step
from fedgram.methods._closed_form import ClosedForm
from fedgram.methods._tuning import require_strength, select_best
from fedgram.models.linear import Linear, Predictor, require_lift
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import STRENGTHS, LeaveOneOut, correct
from fedgram.selection.normal_equations import NormalEquations


@dataclass(frozen=True, kw_only=True)
class ClosedDitto(ClosedForm[Linear | Tuned]):
    """Ditto's objective on squared loss, solved: own ridge regressions pulled to the shared head.

    The shared head M is that of `afl`. A client's is the minimizer of its squared error plus
    ``strength |W - M|^2``, that is ``(G_k + strength I)^-1 (b_k + strength M)``. It equals `apfl`
    without lifts and with a balance of 1.

    Parameters
    ----------
    strength
        Weight of the pull. "auto" takes the one of 10, 30, ..., 30,000 that gets the most samples
        right, over all clients, when each is left out of everything; clients are sent the total
        for that and answer with counts.
    ridge
        Weight of the shared head's squared norm, for features of unit size; "auto" takes the
        least with nearly the smallest generalized cross-validation error.
    lift
        Random projection and activation before the head; width 0 for none.
    """

    strength: float | Literal["auto"] = "auto"
    ridge: Ridge = "auto"
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        require_strength(self.strength)

    def leaves_samples_out(self) -> bool:
        return True

    @step
    def left_out(self, client: Client, whole: NormalEquations) -> CorrectCounts:
        own = LeaveOneOut.of(client.samples, whole, self.lift, counted=client.in_total)
        refined = own.fit_residual(whole.rows(client.samples, self.lift))
        unit = whole.total.space.unit
        return CorrectCounts.of(
            np.stack(
                [correct(own.shared() + refined(s / unit**2), own.codes) for s in STRENGTHS], axis=1
            )
        )

    def fit(self, federation: Federation) -> Iterator[Linear | Tuned]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        whole = NormalEquations(total=total, ridge=resolved(self.ridge, total))
        if self.strength != "auto":
            yield whole.linear(self.lift)
            return
        ballot = federation.sum(self.left_out, whole)
        yield select_best(ballot, [{"strength": s} for s in STRENGTHS], whole.linear(self.lift))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        head, setting = unwrap(shared, strength=self.strength)
        return pulled(head, client, setting["strength"])


def pulled(head: Linear, client: Client, strength: float) -> Linear:
    """Return argmin_W ``|F W - Y|^2 + strength |W - head|^2`` on a client's samples."""
    own = head.fit_residual(client.samples, ridge=strength, lift=head.lift)
    return Linear(
        weights=head.weights + own.weights,
        space=head.space,
        classes=head.classes,
        lift=head.lift,
    )
