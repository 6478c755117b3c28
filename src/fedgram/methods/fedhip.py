from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram.core.disk_store import DiskStore
from fedgram.core.gcv import Ridge, resolved
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError, SolveError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation, gather_to_disk
from fedgram.federation.shared import PerClient, Tuned, unwrap
from fedgram.federation.step import step
from fedgram.methods._closed_form import ClosedForm
from fedgram.methods._tuning import select_best
from fedgram.models.linear import Linear, Predictor, require_lift
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import ALPHAS, LeaveOneOut, correct
from fedgram.selection.normal_equations import NormalEquations


@dataclass(frozen=True, kw_only=True)
class FedHiP(ClosedForm[NormalEquations | Tuned | PerClient]):
    """FedHiP: own samples weigh more in one's own ridge regression (arXiv 2508.04470).

    Every client k ends up with the minimizer of the squared error over all clients' samples plus
    `alpha` times the squared error over its own,

        P_k = (G + ridge I + alpha G_k)^-1 (b + alpha b_k).

    The paper's formula for the last phase is not public; this one is derived: it is the only
    quadratic objective in keeping with what the paper says of it. Where the server sees individual
    statistics it solves for each client and sends the head alone. Where it sees only sums it
    broadcasts the total and the client solves, by the Woodbury identity in the number of its own
    samples. Both give the same head up to rounding. A client that was not in the sum is sent the
    total too. Note that the total minus one's own part is the others' sum: among two clients
    nothing is hidden.

    Parameters
    ----------
    alpha
        Extra weight of a client's own samples; 0 gives the shared head. "auto" takes the one of 0,
        1, 3, 10, ..., 1000 that gets the most samples right, over all clients, when each is left
        out of everything; clients are sent the total for that and answer with counts.
    ridge
        Weight of the head's squared norm, for features of unit size; "auto" takes the one with the
        smallest generalized cross-validation error.
    lift
        Random projection and activation before the head; width 0 for none.
    solver
        Who solves: "server", "client", or "auto" (the server, unless the federation is private).
    """

    alpha: float | Literal["auto"] = 10.0
    ridge: Ridge = 100.0
    lift: Lift = Lift()
    solver: Literal["auto", "server", "client"] = "auto"

    def __post_init__(self) -> None:
        if self.alpha != "auto" and not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"alpha = {self.alpha}: use a finite weight >= 0, or 'auto'")

    def leaves_samples_out(self) -> bool:
        return self.alpha == "auto"

    @step
    def left_out(self, client: Client, whole: NormalEquations) -> CorrectCounts:
        own = LeaveOneOut.of(client.samples, whole, self.lift, counted=client.in_total)
        scores = own.with_extra_weight()
        return CorrectCounts.of(np.stack([correct(scores(a), own.codes) for a in ALPHAS], axis=1))

    def fit(self, federation: Federation) -> Iterator[NormalEquations | Tuned | PerClient]:
        at_server = self.solver == "server" or (self.solver == "auto" and not federation.private)
        if at_server:
            yield self._solved_at_server(federation)
        else:
            total = federation.sum(self.statistics)
            require_lift(total.space, self.lift)
            yield self._common(federation, total)[0]

    def personalize(self, client: Client, shared: Any) -> Predictor:
        if isinstance(shared, Linear):
            return shared
        whole, setting = unwrap(shared, alpha=self.alpha)
        model: Linear = whole.with_extra_weight(client.samples, self.lift, setting["alpha"])
        return model

    def shared_predictor(self, shared: Any) -> Linear:
        """Return the shared head: alpha is 0 for a client without samples."""
        common = shared.common if isinstance(shared, PerClient) else shared
        whole: NormalEquations = unwrap(common)[0]
        return whole.linear(self.lift)

    def _common(
        self, federation: Federation, total: Statistics
    ) -> tuple[NormalEquations | Tuned, NormalEquations, float]:
        """Return what everybody may be sent, the total in it, and alpha."""
        if total.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {total.count} samples")
        # No slack: this ridge holds personal heads too, and they need it.
        whole = NormalEquations(total=total, ridge=resolved(self.ridge, total, slack=0.0))
        if self.alpha != "auto":
            return whole, whole, self.alpha
        ballot = federation.sum(self.left_out, whole)
        common = select_best(ballot, [{"alpha": alpha} for alpha in ALPHAS], whole)
        return common, whole, common.setting["alpha"]

    def _solved_at_server(self, federation: Federation) -> PerClient:
        with DiskStore() as shelf:
            total = gather_to_disk(federation, self.statistics, shelf)
            common, whole, alpha = self._common(federation, total)
            heads = {
                client: whole.with_extra_statistics(shelf[client], self.lift, alpha)
                for client in shelf
            }
        return PerClient(common=common, own=heads)
