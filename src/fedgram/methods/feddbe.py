from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.linear import Predictor
from fedgram.models.mlp import TrainingRows, cross_entropy_grad, ignore_overflow, matmul
from fedgram.training.loop import (
    GradientMethod,
    RoundModel,
    deterministic_rng,
    load_state,
    save_state,
)


@dataclass(frozen=True, kw_only=True)
class FedDBE(GradientMethod):
    """FedDBE (Zhang et al., NeurIPS 2023): a personal offset removes the representation bias.

    Each client trains an offset of its own that is added to the input of the head; the rest is
    FedAvg. With a hidden layer the running mean of the representation is also pulled towards the
    mean over all clients. With ``hidden`` 0 the representation is frozen and this pull has no
    gradient. In the authors' code the clients train for a round before the means are computed, and
    the running mean starts at zero in each round; here the means are those of the public
    initialization, and the running mean starts there and continues over rounds.

    Exchanges: one sum for the mean representation, then the model parameters in each round; offsets
    are never sent.

    Parameters
    ----------
    strength
        Weight of the pull of the mean representation (kappa in the paper), >= 0; 0 for no pull.
    momentum
        Weight of the current batch in the running mean (mu in the paper), from 0 to 1.
    """

    any_layers: ClassVar[bool] = False

    strength: float = 1.0
    momentum: float = 0.1

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        mean = federation.sum(self.mean, model).mean()
        return model.at(model.theta, mean=mean.astype(model.theta.dtype))

    @step
    def mean(self, client: Client, model: RoundModel) -> Weighted:
        """Return the client's mean representation, weighted by its samples."""
        rows = self.rows(client, model)
        with ignore_overflow():
            mean = _seen(model, model.theta, rows).mean(axis=0)
        return self.weighted(mean, len(rows))

    @step
    def update(self, client: Client, model: RoundModel) -> Weighted:
        rows = self.rows(client, model)
        theta, kept = self._trained(client, model, rows, client.rng)
        save_state(client, model, **kept)
        return self.weighted(theta, len(rows), kept["shift"])

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        shift = load_state(client, model).get("shift")
        if shift is None:  # a client that joins late trains its offset on the shared model
            rows = self.rows(client, model)
            _, kept = self._trained(client, model, rows, deterministic_rng(client, model))
            shift = kept["shift"]
        return replace(model.network, offset=shift)

    def _trained(
        self, client: Client, model: RoundModel, rows: TrainingRows, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Any]]:
        kept = load_state(client, model)
        average: Array = model.more["mean"]
        shift: Array = np.array(kept.get("shift", np.zeros_like(average)))
        running: Array = np.array(kept.get("running", average))
        theta = model.theta.copy()
        with ignore_overflow():
            for batch in rows.batches(self.batch, self.epochs, rng):
                running = self._step(model, theta, batch, shift, running)
        return theta, {"shift": shift, "running": running}

    def _step(
        self, model: RoundModel, theta: Array, batch: TrainingRows, shift: Array, running: Array
    ) -> Array:
        """Update parameters and offset in place; return the new running mean."""
        shape, average = model.mlp, model.more["mean"]
        head = shape.layers(theta)[-1]
        seen = _seen(model, theta, batch)
        residual = cross_entropy_grad(matmul(seen, head, 1.0) + shift @ head, batch.codes)
        below = matmul(residual, head.T, 1.0)
        if shape.hidden:
            running = (1 - self.momentum) * running + self.momentum * seen.mean(axis=0)
            pull = self.strength * self.momentum / len(batch) / shape.depth * (running - average)
            slope = (below + pull)[:, :-1] * (seen[:, :-1] > 0)
            hidden = shape.layers(theta)[0]
            hidden -= model.rate * matmul(batch.values.T, slope, batch.unit)
        step = matmul(seen.T, residual, 1.0)
        step += np.outer(shift, residual.sum(axis=0))
        shift -= model.rate * below.sum(axis=0)
        head -= model.rate * step
        return running


def _seen(model: RoundModel, theta: Array, rows: TrainingRows) -> Array:
    """Return the input of the head, in real units."""
    seen = model.mlp.represent(theta, rows)
    return seen if model.mlp.hidden else seen * seen.dtype.type(rows.unit)
