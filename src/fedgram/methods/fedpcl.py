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
    """FedPCL (Tan et al., NeurIPS 2022): clients exchange class prototypes instead of models.

    Each client trains a personal projection of the frozen features. Projected samples of length one
    are pulled towards the prototype of their class and away from the others: the mean prototypes of
    all clients, and those of some peers, drawn at random in each round. A prototype is the mean of
    a class; for a class without samples at the client, the mean over all clients is used. The
    prediction is the class of the client with the most similar prototype (by inner product); a
    class without samples at the client is never predicted, as in the authors' code. The authors use
    the prototypes of all peers and Adam; here it is plain SGD, as for all methods.

    Prototypes of peers are gathered: the server and the peers see class means of single clients. In
    a private federation only the mean over all clients is used.

    Exchanges: class prototypes in each round, as a sum or gathered; projections are never sent.

    Parameters
    ----------
    hidden
        Width of the projection, > 0.
    temperature
        Temperature of the similarities in the loss (tau in the paper), > 0.
    peers
        Number of peers whose prototypes are sent to all clients; 0 for no peers.
    """

    any_layers: ClassVar[bool] = False

    hidden: int = 128
    temperature: float = 0.07
    peers: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden < 1 or not self.temperature > 0:
            raise ConfigError("hidden (of the projection) and temperature must be greater than 0")

    def most_weight(self, samples: int) -> int | None:
        return 1  # the prototypes of all clients have equal weights

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        empty = replace(model.network, theta=np.zeros(0, model.theta.dtype))
        return self._renewed(federation, replace(model, network=empty), self.first)

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        return self._renewed(federation, model, self.update)

    def _renewed(self, federation: Federation, model: RoundModel, step: Any) -> RoundModel:
        """Return the model with the prototypes of the clients that take part."""
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
        average = total.mean(otherwise=known if known.size else np.zeros(1)).astype(dtype)
        return model.at(
            model.theta,
            prototypes=average,
            peers=[peer.mean(otherwise=average).astype(dtype) for peer in peers],
        )

    @step
    def first(self, client: Client, model: RoundModel) -> Weighted:
        """Return the prototypes under the public initialization."""
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
        # The norm of a projected sample does not change the order of its similarities.
        with ignore_overflow():
            weights = matmul(projection, prototypes.T.astype(projection.dtype), 1.0)
        linear = replace(model.mlp, hidden=0)
        network = replace(model.network, theta=weights.reshape(-1), shape=linear)
        return ClassMasked(model=network, allowed=self._sets(model, known.weight)[:, 0] > 0)

    def _start_of(self, client: Client, model: RoundModel) -> Array:
        """Return the client's projection; before its first round, the public initialization."""
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
        average = self._sets(model, model.more["prototypes"])
        peers = [self._sets(model, peer) for peer in model.more["peers"]]
        with ignore_overflow():
            for batch in rows.batches(self.batch, self.epochs, rng):
                inside, lengths = _projected(projection, batch)
                slope = self._drawn(inside, batch, average)
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
    """Return projected rows, normalized, and their norms."""
    inside = matmul(rows.values, projection, rows.unit)
    lengths = np.maximum(np.linalg.norm(inside, axis=1, keepdims=True), 1e-12)
    inside /= lengths
    return inside, lengths.astype(inside.dtype)
