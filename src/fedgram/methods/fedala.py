from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client
from fedgram.models.linear import Predictor
from fedgram.models.mlp import TrainingRows, gradient, ignore_overflow, loss
from fedgram.training.batched import Descents, batched_step
from fedgram.training.loop import (
    GradientMethod,
    RoundModel,
    deterministic_rng,
    load_state,
    save_state,
)

_WINDOW = 10  # number of last losses whose spread decides whether the weights have converged
_MOST_PASSES = 100


@dataclass(frozen=True, kw_only=True)
class FedALA(GradientMethod):
    """FedALA (Zhang et al., AAAI 2023): clients learn how to mix the shared model into their own.

    A client keeps its last local model and a mixing weight in [0, 1] for each parameter. When it
    receives the shared model it learns the weights by gradient descent (until the loss converges
    the first time, one pass in later rounds), starts from ``own + weights * (shared - own)``,
    trains and sends the result (Algorithm 1). With a linear head all parameters are mixed; with
    hidden layers only the head is mixed and the layers below are copied.

    Exchanges: the model parameters in each round; mixing weights are never sent.

    Parameters
    ----------
    mixing_rate
        Learning rate of the mixing weights (eta in the paper), >= 0; 0 keeps the weights at 1,
        which is `fedavg` to the bit.
    mixing_share
        Fraction of the client's samples on which the mixing weights are learned (s in the paper, in
        percent).
    settled
        Standard deviation of the last ten losses below which the first learning of the weights
        stops; it stops after 100 passes at the latest.
    """

    mixing_rate: float = 1.0
    mixing_share: float = 0.8
    settled: float = 0.1

    @batched_step
    def update(self, client: Client, model: RoundModel) -> Descents[Weighted]:
        rows = self.rows(client, model)
        theta, weights = self._mixed(client, model, rows)
        yield from self.descend(client, model, theta, rows)
        save_state(client, model, own=theta, weights=weights)
        return self.weighted(theta, len(rows))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        theta, _ = self._mixed(client, model, self.rows(client, model))
        return model.at(theta).network

    def _mixed(
        self, client: Client, model: RoundModel, rows: TrainingRows
    ) -> tuple[Array, Array | None]:
        """Return the start of local training, and the mixing weights if they have been learned."""
        kept, theta = load_state(client, model), model.theta.copy()
        learned: Array | None = kept.get("weights")
        if "own" not in kept or not self.mixing_rate:
            return theta, learned
        change = (model.theta - kept["own"])[model.shape.base :]  # layers below are copied
        if not np.any(change):
            return theta, learned
        weights = np.ones_like(change) if learned is None else learned.copy()
        rng = deterministic_rng(client, model)
        some = max(1, round(self.mixing_share * len(rows)))
        chosen = rows.take(rng.permutation(len(rows))[:some])
        self._learn(model, chosen, rng, (theta, weights, change), first=learned is None)
        return theta, weights

    def _learn(
        self,
        model: RoundModel,
        rows: TrainingRows,
        rng: np.random.Generator,
        mix: tuple[Array, Array, Array],
        *,
        first: bool,
    ) -> None:
        """Update the mixed parameters and their weights in place."""
        theta, weights, change = mix
        base, losses = model.shape.base, []
        shared = theta[base:].copy()
        theta[base:] -= (1 - weights) * change  # own + weights * change, and exact at weight 1
        with ignore_overflow():
            for _ in range(_MOST_PASSES if first else 1):
                for batch in rows.batches(self.batch, 1, rng):
                    slope = gradient(model.shape, theta, batch)[base:]
                    weights -= self.mixing_rate * slope * change
                    np.clip(weights, 0, 1, out=weights)
                    theta[base:] = shared - (1 - weights) * change
                losses.append(loss(model.shape, theta, batch))
                if len(losses) > _WINDOW and np.std(losses[-_WINDOW:]) < self.settled:
                    break
