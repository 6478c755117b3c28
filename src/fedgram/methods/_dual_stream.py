"""Base class of the two-stream methods: a shared stream, and a client's own on its residual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

from fedgram.core.gcv import Ridge, resolved
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned, unwrap
from fedgram.federation.step import step
from fedgram.methods._closed_form import ClosedForm
from fedgram.methods._tuning import select_best
from fedgram.models.adjusted import Blend
from fedgram.models.linear import Linear, Predictor, require_lift
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import BALANCES, STRENGTHS, LeaveOneOut
from fedgram.selection.normal_equations import NormalEquations
from fedgram.selection.squared_errors import SquaredErrors, left_out_sums


@dataclass(frozen=True, kw_only=True)
class DualStream(ClosedForm[Linear | Tuned]):
    """Two least squares: one shared by all clients, and a client's own on its residual.

    Equation numbers are those of APFL (arXiv 2508.10732).

    Parameters
    ----------
    ridge
        Ridge of the primary stream (beta in the paper): weight of the head's squared norm, for
        features of unit size; 0 is plain least squares. "auto" selects the smallest ridge with
        nearly the smallest generalized cross-validation error, which the sum alone determines.
    refinement_ridge
        Ridge of the client's refinement stream (gamma in the paper), >= 0. "auto" selects it from
        10, 30, ..., 30,000 by leave-one-out accuracy over all clients, each sample left out of both
        streams; clients answer with counts of correct predictions.
    balance
        Weight of the refinement stream in the prediction (lambda in the paper); 0 is the shared
        head alone. "auto" selects it by leave-one-out accuracy, together with refinement_ridge if
        that is "auto" too.
    corrected
        Used if refinement_ridge or balance is "auto". true: leave-one-out is exact in both streams;
        clients receive the total. false: clients receive the head only and samples are left out of
        the refinement stream only, which favors the primary stream, the more the fewer samples
        there are.
    primary
        Lift of the primary stream: random projection and activation; width 0 for no lift.
    refinement
        Lift of the refinement stream: random projection and activation; width 0 for no lift.
    """

    predicts_numbers: ClassVar[bool] = True

    ridge: Ridge = 100.0
    refinement_ridge: float | Literal["auto"] = 300.0
    balance: float | Literal["auto"] = 0.5
    corrected: bool = True
    primary: Lift = Lift()
    refinement: Lift = Lift(seed=1)

    def shared_lift(self) -> Lift:
        return self.primary

    @step
    def left_out(
        self, client: Client, shared: NormalEquations | Linear
    ) -> CorrectCounts | SquaredErrors:
        samples = client.samples
        own = LeaveOneOut.of(samples, shared, self.primary, in_total=client.in_total)
        features = self.refinement(samples.features)
        refined = own.fit_residual(features.values)
        columns = []
        for ridge in self._ridges:
            second = refined(ridge / features.space.unit**2)
            columns += [own.shared() + b * second for b in self._balances]
        return left_out_sums([column[None] for column in columns], [samples.labels])[0]

    def fit(self, federation: Federation) -> Iterator[Linear | Tuned]:
        total = federation.sum(self.statistics)
        if not self._chooses:
            yield Linear.of(total, ridge=self.ridge, lift=self.primary)
            return
        require_lift(total.space, self.primary)
        equations = NormalEquations(total=total, ridge=resolved(self.ridge, total))
        head = equations.linear(self.primary)
        correct_counts = federation.sum(self.left_out, equations if self.corrected else head)
        tried = [
            {"refinement_ridge": ridge, "balance": balance}
            for ridge, balance in product(self._ridges, self._balances)
        ]
        yield select_best(correct_counts, tried, head)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        head, setting = unwrap(shared, refinement_ridge=self.refinement_ridge, balance=self.balance)
        own = head.fit_residual(
            client.samples, ridge=setting["refinement_ridge"], lift=self.refinement
        )
        return Blend(first=head, second=own, balance=setting["balance"])  # eq. 14

    @property
    def _chooses(self) -> bool:
        return "auto" in (self.refinement_ridge, self.balance)

    @property
    def _ridges(self) -> Sequence[float]:
        return STRENGTHS if self.refinement_ridge == "auto" else (self.refinement_ridge,)

    @property
    def _balances(self) -> Sequence[float]:
        return BALANCES if self.balance == "auto" else (self.balance,)
