from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedgram.core.samples import Array
from fedgram.federation.client import Client
from fedgram.models.mlp import TrainingRows
from fedgram.training.descent import LocalDescent
from fedgram.training.loop import RoundModel
from fedgram.training.zeroth_order import ZerothOrderMethod, in_double, loss_function


@dataclass(frozen=True, kw_only=True)
class FedZO(ZerothOrderMethod):
    """FedZO (Fang et al., IEEE TSP 2022, arXiv 2201.09531): FedAvg with zeroth-order gradients.

    Each local step estimates the gradient of its batch from differences of losses:
    ``n / (k h) * sum (L(w + h u) - L(w)) u`` over k directions u, uniform on the unit sphere, for n
    parameters and the smoothing h. The paper averages clients with equal weights; here they are
    weighted by their samples, as in `fedavg`. With ``directions`` 0 it is `fedavg`, up to the error
    of the differences. The estimator is derived from the paper's public summary.

    Exchanges: in each round the model parameters, averaged by sample counts.
    """

    def descend(
        self, client: Client, model: RoundModel, theta: Array, rows: TrainingRows
    ) -> Iterable[LocalDescent]:
        moved = in_double(theta)
        for batch in rows.batches(self.batch, self.epochs, client.rng):
            loss_of = loss_function(model.shape, batch)
            moved -= model.rate * self.estimated(loss_of, moved, client.rng)
        theta[...] = moved
        return []  # all steps are done: they need losses, unlike those of `LocalDescent`
