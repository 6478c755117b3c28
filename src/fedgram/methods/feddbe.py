from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
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
    """FedDBE: a personal shift of the representation takes the domain bias away (NeurIPS 2023).

    A first ask gives the mean representation of everybody. Then each client trains a vector of its
    own, never sent, that is added to what the head sees; the rest is FedAvg. With a hidden layer
    the running mean of the representation is also pulled towards everybody's mean (Zhang et al.).
    With a purely frozen representation (``hidden`` 0) that pull has no gradient: only the personal
    vector and the shared head remain. In the authors' code the clients train for a round before
    the means are taken, and the running mean begins at zero in each round; here the means are those
    of the public start, and the running mean begins there and goes on.

    Parameters
    ----------
    strength
        Weight of the pull of the mean representation.
    momentum
        Weight of the present batch in the running mean.
    """

    any_layers: ClassVar[bool] = False

    strength: float = 1.0
    momentum: float = 0.1

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        mean = federation.sum(self.mean, model).mean()
        return model.at(model.theta, mean=mean.astype(model.theta.dtype))

    def mean(self, client: Client, model: RoundModel) -> Weighted:
        """Return the client's mean representation, weighted by its samples."""
        rows = self.rows(client, model)
        with ignore_overflow():
            mean = _seen(model, model.theta, rows).mean(axis=0)
        return self.weighted(mean, len(rows))

    def update(self, client: Client, model: RoundModel) -> Weighted:
        rows = self.rows(client, model)
        theta, kept = self._trained(client, model, rows, client.rng)
        save_state(client, model, **kept)
        return self.weighted(theta, len(rows), kept["shift"])

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        shift = load_state(client, model).get("shift")
        if shift is None:  # a late client finds its shift under the shared model
            rows = self.rows(client, model)
            _, kept = self._trained(client, model, rows, deterministic_rng(client, model))
            shift = kept["shift"]
        return replace(model.network, offset=shift)

    def _trained(
        self, client: Client, model: RoundModel, rows: TrainingRows, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Any]]:
        kept = load_state(client, model)
        everybody: Array = model.more["mean"]
        shift: Array = np.array(kept.get("shift", np.zeros_like(everybody)))
        running: Array = np.array(kept.get("running", everybody))
        theta = model.theta.copy()
        with ignore_overflow():
            for batch in rows.batches(self.batch, self.epochs, rng):
                running = self._step(model, theta, batch, shift, running)
        return theta, {"shift": shift, "running": running}

    def _step(
        self, model: RoundModel, theta: Array, batch: TrainingRows, shift: Array, running: Array
    ) -> Array:
        """Change parameters and shift in place; return the new running mean."""
        shape, everybody = model.mlp, model.more["mean"]
        head = shape.layers(theta)[-1]
        seen = _seen(model, theta, batch)
        residual = cross_entropy_grad(matmul(seen, head, 1.0) + shift @ head, batch.codes)
        below = matmul(residual, head.T, 1.0)
        if shape.hidden:
            running = (1 - self.momentum) * running + self.momentum * seen.mean(axis=0)
            pull = self.strength * self.momentum / len(batch) / shape.depth * (running - everybody)
            slope = (below + pull)[:, :-1] * (seen[:, :-1] > 0)
            hidden = shape.layers(theta)[0]
            hidden -= model.rate * matmul(batch.values.T, slope, batch.unit)
        step = matmul(seen.T, residual, 1.0)
        step += np.outer(shift, residual.sum(axis=0))
        shift -= model.rate * below.sum(axis=0)
        head -= model.rate * step
        return running


def _seen(model: RoundModel, theta: Array, rows: TrainingRows) -> Array:
    """Return what the head sees, in real units."""
    seen = model.mlp.represent(theta, rows)
    return seen if model.mlp.hidden else seen * seen.dtype.type(rows.unit)
