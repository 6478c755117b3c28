from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import MOST_WEIGHT, Weighted
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Predictor
from fedgram.models.mlp import TrainingRows, gradient, ignore_overflow, matmul
from fedgram.training.batched import Descents, batched_step
from fedgram.training.loop import (
    GradientMethod,
    RoundModel,
    deterministic_rng,
    load_state,
    save_state,
    with_head,
    without_head,
)

_WEIGHT_STEPS = 2**20  # fixed-point steps of a weight: the Fisher trace per feature


@dataclass(frozen=True, kw_only=True)
class FedAS(GradientMethod):
    """FedAS (Yang et al., CVPR 2024): personal heads, a shared layer weighted by Fisher traces.

    A client aligns the received shared layer for one epoch: its features are pulled towards the
    class means under the client's previous layer. Then it trains the whole model. The server
    averages the layers with weights that are the traces of each client's empirical Fisher
    information: the sum of the squared gradients of its batches after training, as in the authors'
    code. With ``hidden`` 0 there is no layer to align or average, and each client trains its head
    alone.

    Exchanges: the shared layer in each round, weighted by Fisher information; heads are never sent.

    Parameters
    ----------
    aligning_rate
        Learning rate of the alignment, >= 0; 0 for no alignment.
    """

    any_layers: ClassVar[bool] = False

    aligning_rate: float = 0.01

    def most_weight(self, samples: int) -> int | None:
        return None  # a trace has no bound that follows from the number of samples

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        most = MOST_WEIGHT // len(federation.clients)  # of one client
        return replace(without_head(model), more={"most": most})

    @batched_step
    def update(self, client: Client, model: RoundModel) -> Descents[Weighted]:
        rows, base = self.rows(client, model), model.mlp.base
        theta = self._aligned(client, model, rows, client.rng)
        yield from self.descend(client, model, theta, rows)
        save_state(client, model, own=theta)
        parts = self._fisher_trace(model, theta, rows) / model.mlp.width * _WEIGHT_STEPS
        weight = int(np.clip(parts, 1, model.more["most"]))
        return self.weighted(theta[:base], weight, theta[base:])

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        kept = load_state(client, model)
        if "own" in kept:
            return model.at(kept["own"]).network
        rows, theta = self.rows(client, model), with_head(model, None)
        self.descent(model)(model.mlp, theta, rows, deterministic_rng(client, model))
        return model.at(theta).network

    def _aligned(
        self, client: Client, model: RoundModel, rows: TrainingRows, rng: np.random.Generator
    ) -> Array:
        """Return the shared layer, aligned to the client's class means, with the client's head."""
        shape = model.mlp
        own: Array = load_state(client, model).get("own", with_head(model, None))
        theta = with_head(model, own[shape.base :])
        if not shape.hidden:
            return theta
        with ignore_overflow():
            means = _class_means(shape.represent(own, rows), rows, shape.classes)
            for batch in rows.batches(self.batch, 1, rng):
                inside = shape.represent(theta, batch)
                # Classes in the batch have equal weights, as in the authors' code.
                alike = np.bincount(batch.codes, minlength=shape.classes)[batch.codes, None]
                slope = (inside - means[batch.codes])[:, :-1]
                slope *= (2 / (alike * shape.hidden)).astype(slope.dtype)
                slope *= inside[:, :-1] > 0
                step = matmul(batch.values.T, slope, batch.unit)
                shape.layers(theta)[0][...] -= self.aligning_rate * step
        return theta

    def _fisher_trace(self, model: RoundModel, theta: Array, rows: TrainingRows) -> float:
        """Return the sum over mini-batches of their squared gradients."""
        order = np.arange(len(rows))
        size = self.batch or len(rows)
        parts = [rows.take(order[at : at + size]) for at in range(0, len(rows), size)]
        with ignore_overflow():
            squares = [
                float(np.sum(gradient(model.mlp, theta, part) ** 2, dtype=np.float64))
                for part in parts
            ]
        trace = sum(squares)
        return trace if np.isfinite(trace) else 0.0


def _class_means(inside: Array, rows: TrainingRows, classes: int) -> Array:
    """Return the mean representation of each class; zeros for a class without samples."""
    means = np.zeros((classes, inside.shape[1]), inside.dtype)
    for code in np.unique(rows.codes):
        means[code] = inside[rows.codes == code].mean(axis=0)
    return means
