from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.errors import ConfigError
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.adjusted import ClassMasked
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
class FedPCL(GradientMethod):
    """FedPCL: only class prototypes travel (Tan et al., NeurIPS 2022).

    Each client trains a projection of its own on the frozen features. Projected samples of length
    one are drawn to the prototype of their class and away from the others: to everybody's mean
    prototypes, and to those of some peers, drawn anew in each round. A prototype is the mean of a
    class; a class that a client lacks gets everybody's. A sample goes to that class of its client
    whose prototype it is most like (by inner product); a class that the client lacks is never
    predicted, as in the authors' code. They use the prototypes of all peers and Adam; here it is
    plain descent, as for all methods.

    Peers' prototypes are gathered: the server and the peers see every client's class means. Where
    the federation is private, only everybody's mean is used.

    Parameters
    ----------
    hidden
        Width of the projection.
    temperature
        Scale of the similarities in the loss.
    peers
        Number of peers whose prototypes are sent to all; 0 for none.
    """

    any_layers: ClassVar[bool] = False

    hidden: int = 128
    temperature: float = 0.07
    peers: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden < 1 or not self.temperature > 0:
            raise ConfigError("hidden (of the projection) and temperature must be greater than 0")

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        nothing = replace(model.network, theta=np.zeros(0, model.theta.dtype))
        return self._renewed(federation, replace(model, network=nothing), self.first)

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        return self._renewed(federation, model, self.update)

    def _renewed(self, federation: Federation, model: RoundModel, step: Any) -> RoundModel:
        """Return the model with the prototypes that the clients answer."""
        dtype = model.theta.dtype
        known = model.more.get("prototypes", np.zeros(0, dtype))
        asked = self.participants(federation)
        if federation.private or not self.peers:
            total, peers = federation.sum(step, model, clients=asked), []
        else:
            replies = dict(federation.gather(step, model, clients=asked))
            total = sum(replies.values(), Weighted.zero())
            chosen = federation.rng.permutation(sorted(replies))[: self.peers]
            peers = [replies[name] for name in sorted(chosen)]
        everybody = total.mean(otherwise=known if known.size else np.zeros(1)).astype(dtype)
        return model.at(
            model.theta,
            prototypes=everybody,
            peers=[peer.mean(otherwise=everybody).astype(dtype) for peer in peers],
        )

    @step
    def first(self, client: Client, model: RoundModel) -> Weighted:
        """Return the prototypes under the public start."""
        rows = self.rows(client, model)
        return self._prototypes(model, self._start_of(client, model), rows)

    @step
    def update(self, client: Client, model: RoundModel) -> Weighted:
        rows = self.rows(client, model)
        projection = self._trained(client, model, rows, client.rng)
        save_state(client, model, projection=projection)
        return self._prototypes(model, projection, rows)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        rows = self.rows(client, model)
        projection = load_state(client, model).get("projection")
        if projection is None:
            projection = self._trained(client, model, rows, deterministic_rng(client, model))
        known = self._prototypes(model, projection, rows)
        prototypes = self._sets(model, known.mean(otherwise=model.more["prototypes"]))
        # The length of a projected sample does not change which prototype it is most like.
        with ignore_overflow():
            weights = matmul(projection, prototypes.T.astype(projection.dtype), 1.0)
        linear = replace(model.mlp, hidden=0)
        network = replace(model.network, theta=weights.reshape(-1), shape=linear)
        return ClassMasked(model=network, allowed=self._sets(model, known.weight)[:, 0] > 0)

    def _start_of(self, client: Client, model: RoundModel) -> Array:
        """Return the client's projection, at first the public start."""
        kept = load_state(client, model).get("projection")
        if kept is not None:
            return np.array(kept)
        return model.mlp.layers(model.mlp.start(model.theta.dtype))[0]

    def _prototypes(self, model: RoundModel, projection: Array, rows: TrainingRows) -> Weighted:
        onehot = np.zeros((model.mlp.classes, len(rows)), projection.dtype)
        onehot[rows.codes, np.arange(len(rows))] = 1
        with ignore_overflow():
            inside, _ = _projected(projection, rows)
            sums = matmul(onehot, inside, 1.0)
        counts = np.bincount(rows.codes, minlength=len(sums))
        means = sums / np.maximum(counts, 1)[:, None]
        return self.weighted(means.reshape(-1), np.repeat((counts > 0) * 1, self.hidden))

    def _sets(self, model: RoundModel, flat: Array) -> Array:
        return flat.reshape(model.mlp.classes, self.hidden)

    def _trained(
        self, client: Client, model: RoundModel, rows: TrainingRows, rng: np.random.Generator
    ) -> Array:
        projection = self._start_of(client, model)
        everybody = self._sets(model, model.more["prototypes"])
        peers = [self._sets(model, peer) for peer in model.more["peers"]]
        with ignore_overflow():
            for batch in rows.batches(self.batch, self.epochs, rng):
                inside, lengths = _projected(projection, batch)
                slope = self._drawn(inside, batch, everybody)
                for peer in peers:
                    slope += self._drawn(inside, batch, peer) / len(peers)
                slope -= inside * np.sum(slope * inside, axis=1, keepdims=True)
                slope /= lengths
                projection -= model.rate * matmul(batch.values.T, slope, batch.unit)
        return projection

    def _drawn(self, inside: Array, batch: TrainingRows, prototypes: Array) -> Array:
        """Return the gradient of the contrastive loss with respect to the projected samples."""
        residual = cross_entropy_grad(
            matmul(inside, prototypes.T, 1 / self.temperature), batch.codes
        )
        return matmul(residual, prototypes, 1 / self.temperature)


def _projected(projection: Array, rows: TrainingRows) -> tuple[Array, Array]:
    """Return projected rows of length one, and their lengths before."""
    inside = matmul(rows.values, projection, rows.unit)
    lengths = np.maximum(np.linalg.norm(inside, axis=1, keepdims=True), 1e-12)
    inside /= lengths
    return inside, lengths.astype(inside.dtype)
