from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np

from fedgram.core.codec import added_field
from fedgram.core.disk_store import DiskStore
from fedgram.core.gcv import Ridge, resolved
from fedgram.core.samples import Floats
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError, SolveError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation, gather_to_disk
from fedgram.federation.shared import PerClient, Tuned, unwrap
from fedgram.federation.stacked_step import alike, stacked_step
from fedgram.methods._closed_form import ClosedForm
from fedgram.methods._tuning import select_best
from fedgram.models.linear import Linear, Predictor, require_lift
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import ALPHAS, LeaveOneOut, at_once
from fedgram.selection.normal_equations import NormalEquations
from fedgram.selection.squared_errors import SquaredErrors, left_out_sums

# Ridges of personal heads, as multiples of the shared head's.
RIDGE_FACTORS = (1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True, kw_only=True)
class FedHiP(ClosedForm[NormalEquations | Tuned | PerClient]):
    """FedHiP (Tang et al., arXiv 2508.04470): ridge regression with extra weight on own samples.

    The model of client k minimizes the squared error over all clients' samples plus `alpha` times
    the squared error over its own,

        P_k = (G + ridge I + alpha G_k)^-1 (b + alpha b_k).

    The paper's formula for the last phase is not public. This one is derived: it is the only
    quadratic objective that agrees with the paper's description. The paper's server updates S_K
    and M_K recursively with each client's local model; here the sums G and b replace the
    recursion and the local models, with the same result. If the server sees individual
    statistics, it solves for each client and sends the head alone. If it sees only sums, it
    broadcasts the total and the client solves, by the Woodbury identity in the number of its own
    samples. Both give the same head up to rounding. A client that was not in the sum receives the
    total too. The total minus a client's own part is the sum of the others: between two clients
    nothing is hidden.

    Exchanges: the sum of `afl`, or each client's statistics; with alpha = "auto" also counts of
    correct leave-one-out predictions; clients receive the total or their head.

    Parameters
    ----------
    alpha
        Extra weight of a client's own samples, >= 0; 0 gives the shared head. "auto" selects from
        0, 1, 3, 10, ..., 1000 by leave-one-out accuracy over all clients: clients receive the total
        and answer with counts of correct predictions.
    ridge
        Weight of the head's squared norm, for features of unit size; 0 is plain least squares.
        "auto" selects the ridge with the smallest generalized cross-validation error, which suits
        the shared head. If alpha is "auto" too, the ridge of the personal heads is selected
        together with alpha, from 1, 3, 10 and 30 times that ridge.
    lift
        Random projection and activation before the head; width 0 for no lift.
    solver
        Where personal heads are solved: "server", "client", or "auto" (at the server, unless the
        federation is private).
    regularized
        The paper's reading: the client's Gram matrix carries the ridge, so alpha multiplies it too
        and personal heads have the ridge (1 + alpha) ridge.
    """

    predicts_numbers: ClassVar[bool] = True

    alpha: float | Literal["auto"] = "auto"
    ridge: Ridge = "auto"
    lift: Lift = Lift()
    solver: Literal["auto", "server", "client"] = "auto"
    regularized: bool = added_field(False)

    def __post_init__(self) -> None:
        if self.alpha != "auto" and not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"alpha = {self.alpha}: use a finite weight >= 0, or 'auto'")

    @stacked_step
    def left_out(
        self, clients: Sequence[Client], equations: NormalEquations
    ) -> list[CorrectCounts | SquaredErrors]:
        """Count correct leave-one-out predictions; every ridge takes one factorization."""
        replies: dict[int, CorrectCounts | SquaredErrors] = {}
        size = len(self._tried(equations.ridge)) * len(equations.classes)
        for places in alike([len(client.samples) for client in clients], size):
            some = [clients[place] for place in places]
            sums = left_out_sums(
                self._left_out_scores(some, equations), [client.samples.labels for client in some]
            )
            replies |= zip(places, sums, strict=True)
        return [replies[place] for place in range(len(clients))]

    def _left_out_scores(
        self, clients: Sequence[Client], equations: NormalEquations
    ) -> list[Floats]:
        """Return the scores of each setting, (clients, samples, classes)."""
        parts = [client.samples for client in clients]
        in_total = [client.in_total for client in clients]
        settings = self._tried(equations.ridge)
        tried = [(self._personal_ridge(setting), setting["alpha"]) for setting in settings]
        left = {each: np.empty((len(parts), *parts[0].labels.onehot().shape)) for each in tried}
        for ridge in dict.fromkeys(ridge for ridge, _ in tried):
            alphas = [alpha for each, alpha in tried if each == ridge]
            other = equations.with_ridge(ridge)
            for places, own in LeaveOneOut.stacks(parts, other, self.lift, in_total=in_total):
                curve = at_once(own.with_extra_weight(), [a for a in alphas if a], own.truth)
                for alpha in alphas:
                    left[ridge, alpha][places] = curve(alpha) if alpha else own.shared()
        return [left[each] for each in tried]

    def fit(self, federation: Federation) -> Iterator[NormalEquations | Tuned | PerClient]:
        at_server = self.solver == "server" or (self.solver == "auto" and not federation.private)
        if at_server:
            yield self._solved_at_server(federation)
        else:
            total = federation.sum(self.statistics)
            require_lift(total.space, self.lift)
            yield self._common(federation, total)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        if isinstance(shared, Linear):
            return shared
        equations, alpha = self._personal_equations(shared)
        model: Linear = equations.with_extra_weight(client.samples, self.lift, alpha)
        return model

    def shared_predictor(self, shared: Any) -> Linear:
        """Return the shared head (alpha = 0), for clients without samples."""
        common = shared.common if isinstance(shared, PerClient) else shared
        equations: NormalEquations = unwrap(common)[0]
        return equations.linear(self.lift)

    def _tried(self, ridge: float) -> list[dict[str, float]]:
        """Return the candidate settings, for the ridge of the shared head."""
        factors = RIDGE_FACTORS if self.ridge == "auto" else (1.0,)
        return [
            {"alpha": alpha, "ridge": self._stated_ridge(ridge * factor, alpha)}
            for alpha, factor in product(ALPHAS, factors)
        ]

    def _stated_ridge(self, personal: float, alpha: float) -> float:
        """Return the setting that gives a ridge of the personal heads; a given one is kept."""
        chosen = self.regularized and self.ridge == "auto"
        return personal / (1 + alpha) if chosen else personal

    def _personal_ridge(self, setting: Mapping[str, float]) -> float:
        """Return the ridge of the personal heads."""
        return setting["ridge"] * (1 + setting["alpha"] if self.regularized else 1)

    def _personal_equations(self, shared: NormalEquations | Tuned) -> tuple[NormalEquations, float]:
        """Return the normal equations of the personal heads without own samples, and alpha."""
        equations, setting = unwrap(shared, alpha=self.alpha)
        setting = {"ridge": equations.ridge, **setting}
        return equations.with_ridge(self._personal_ridge(setting)), setting["alpha"]

    def _common(self, federation: Federation, total: Statistics) -> NormalEquations | Tuned:
        """Return the broadcast to all clients."""
        if total.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {total.count} samples")
        # No slack: personal heads use this ridge too, and need more of it than a shared head.
        equations = NormalEquations(total=total, ridge=resolved(self.ridge, total, slack=0.0))
        if self.alpha != "auto":
            return equations
        correct_counts = federation.sum(self.left_out, equations)
        return select_best(correct_counts, self._tried(equations.ridge), equations)

    def _solved_at_server(self, federation: Federation) -> PerClient:
        with DiskStore() as store:
            total = gather_to_disk(federation, self.statistics, store)
            common = self._common(federation, total)
            equations, alpha = self._personal_equations(common)
            heads = {
                client: equations.with_extra_statistics(store[client], self.lift, alpha)
                for client in store
            }
        return PerClient(common=common, own=heads)
