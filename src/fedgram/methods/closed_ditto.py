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
    """Ditto's objective (Li et al., ICML 2021) on squared loss, in closed form.

    The shared head M is that of `afl`. A client's head minimizes its squared error plus ``strength
    |W - M|^2``, that is ``(G_k + strength I)^-1 (b_k + strength M)``. It equals `apfl-linear`
    with a balance of 1.

    Exchanges: the sum of `afl`; with strength "auto" also counts of correct leave-one-out
    predictions.

    Parameters
    ----------
    strength
        Weight of the squared distance to the shared head (lambda / 2 in the paper, with summed
        squared errors), > 0. "auto" selects from 10, 30, ..., 30,000 by leave-one-out accuracy over
        all clients: clients receive the total and answer with counts of correct predictions.
    ridge
        Weight of the shared head's squared norm, for features of unit size; 0 is plain least
        squares. "auto" selects the smallest ridge with nearly the smallest generalized
        cross-validation error, which the sum alone determines.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    strength: float | Literal["auto"] = "auto"
    ridge: Ridge = "auto"
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        require_strength(self.strength)

    @step
    def left_out(self, client: Client, equations: NormalEquations) -> CorrectCounts:
        own = LeaveOneOut.of(client.samples, equations, self.lift, in_total=client.in_total)
        refined = own.fit_residual(equations.rows(client.samples, self.lift))
        unit = equations.total.space.unit
        return CorrectCounts.of(
            np.stack(
                [correct(own.shared() + refined(s / unit**2), own.codes) for s in STRENGTHS], axis=1
            )
        )

    def fit(self, federation: Federation) -> Iterator[Linear | Tuned]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        equations = NormalEquations(total=total, ridge=resolved(self.ridge, total))
        if self.strength != "auto":
            yield equations.linear(self.lift)
            return
        correct_counts = federation.sum(self.left_out, equations)
        yield select_best(
            correct_counts, [{"strength": s} for s in STRENGTHS], equations.linear(self.lift)
        )

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
