from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram import codec
from fedgram.client import Client
from fedgram.errors import ConfigError, MismatchError, SolveError
from fedgram.features.lift import Lift
from fedgram.federation import Federation, Tailored
from fedgram.gcv import Ridge, settled
from fedgram.heads import Linear, Predictor, Whole, lifted, require_lift
from fedgram.samples import Floats, Samples
from fedgram.solve import ridge_solve, square, steady
from fedgram.stats import Statistics


@dataclass(frozen=True, kw_only=True)
class FedHiP:
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
        Extra weight of a client's own samples; 0 gives the shared head.
    ridge
        Weight of the head's squared norm, for features of unit size; "auto" takes the one with the
        smallest generalized cross-validation error.
    lift
        Random projection and activation before the head; width 0 for none.
    solver
        Who solves: "server", "client", or "auto" (the server, unless the federation is private).
    """

    alpha: float = 10.0
    ridge: Ridge = 100.0
    lift: Lift = Lift()
    solver: Literal["auto", "server", "client"] = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"alpha = {self.alpha}: use a finite weight >= 0")

    def statistics(self, client: Client, _: None) -> Statistics:
        return Statistics.of(*lifted(client.samples, self.lift))

    def fit(self, federation: Federation) -> Iterator[Whole | Tailored]:
        at_server = self.solver == "server" or (self.solver == "auto" and not federation.private)
        if at_server:
            yield self._solved_at_server(federation)
        else:
            total = federation.sum(self.statistics)
            require_lift(total.space, self.lift)
            if total.count <= 0:
                raise SolveError(f"nothing to solve: the total holds {total.count} samples")
            yield Whole(total=total, ridge=settled(self.ridge, total))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        if isinstance(shared, Linear):
            return shared
        return self._solved_at_client(client.samples, shared)

    def _solved_at_server(self, federation: Federation) -> Tailored:
        with codec.Shelf() as shelf:  # one client's statistics in memory at a time
            total = Statistics.zero()
            for client, own in federation.gather(self.statistics):
                shelf[client] = own
                total = total + own
            whole = Whole(total=total, ridge=settled(self.ridge, total))
            heads = {client: self._mixed(whole, shelf[client]) for client in shelf}
        return Tailored(common=whole, own=heads)

    def _mixed(self, whole: Whole, own: Statistics) -> Linear:
        total = whole.total
        stored = ridge_solve(
            whole.gram + self.alpha * square(own.gram, own.space.width),
            total.moment + self.alpha * own.moment,
            whole.stored_ridge,
            samples=total.count,
        )
        return self._head(stored, total)

    def _solved_at_client(self, samples: Samples, whole: Whole) -> Linear:
        features, agreed = self.lift(samples.features), whole.total.space
        if features.space != agreed:
            detail = agreed.difference(features.space)
            raise MismatchError(
                f"the total was made with other settings: {detail}; use the same ones"
            )
        if len(features) >= features.space.width:  # Woodbury would be the larger problem
            return self._mixed(whole, Statistics.of(features, samples.labels))
        rows = features.values.astype(np.float64)
        with steady():
            residual = samples.labels.onehot() - rows @ whole.head
        stored = whole.head + whole.factor.update(rows, residual, self.alpha)
        return self._head(stored, whole.total)

    def _head(self, stored: Floats, total: Statistics) -> Linear:
        return Linear(
            weights=stored / total.space.unit,
            space=total.space,
            classes=total.classes,
            lift=self.lift,
        )
