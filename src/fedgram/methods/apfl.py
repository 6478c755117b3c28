from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

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
from fedgram.selection.leave_one_out import BALANCES, STRENGTHS, LeaveOneOut, correct
from fedgram.selection.normal_equations import NormalEquations


@dataclass(frozen=True, kw_only=True)
class APFL(ClosedForm[Linear | Tuned]):
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
        "auto" takes the least with nearly the smallest generalized cross-validation error.
    refinement_ridge
        The same for a client's own head (gamma). "auto" takes the one that gets the most samples
        right, over all clients, when each is left out of both streams; clients answer with counts.
    balance
        Weight of the client's own stream in the prediction (lambda); "auto" as above, together
        with the ridge if that is "auto" too.
    corrected
        Where something is "auto": take samples out of the shared stream exactly. Clients are sent
        the total for that. Else they are sent the head only, and what it knows of a sample stays
        in: choices then trust the shared stream too much, the more so the fewer samples there are.
    primary
        Lift of the shared stream; width 0 for none.
    refinement
        Lift of the client's own stream; width 0 for none.
    """

    ridge: Ridge = 100.0
    refinement_ridge: float | Literal["auto"] = 300.0
    balance: float | Literal["auto"] = 0.5
    corrected: bool = True
    primary: Lift = Lift()
    refinement: Lift = Lift(seed=1)

    def shared_lift(self) -> Lift:
        return self.primary

    def leaves_samples_out(self) -> bool:
        return self._chooses

    @step
    def left_out(self, client: Client, shared: NormalEquations | Linear) -> CorrectCounts:
        samples = client.samples
        own = LeaveOneOut.of(samples, shared, self.primary, counted=client.in_total)
        features = self.refinement(samples.features)
        refined = own.fit_residual(features.values.astype(np.float64))
        hits = []
        for ridge in self._ridges:
            second = refined(ridge / features.space.unit**2)
            hits += [correct(own.shared() + b * second, own.codes) for b in self._balances]
        return CorrectCounts.of(np.stack(hits, axis=1))

    def fit(self, federation: Federation) -> Iterator[Linear | Tuned]:
        total = federation.sum(self.statistics)
        if not self._chooses:
            yield Linear.of(total, ridge=self.ridge, lift=self.primary)
            return
        require_lift(total.space, self.primary)
        whole = NormalEquations(total=total, ridge=resolved(self.ridge, total))
        head = whole.linear(self.primary)
        ballot = federation.sum(self.left_out, whole if self.corrected else head)
        tried = [
            {"refinement_ridge": ridge, "balance": balance}
            for ridge, balance in product(self._ridges, self._balances)
        ]
        yield select_best(ballot, tried, head)

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
