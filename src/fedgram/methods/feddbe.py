from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedgram.core.samples import Array, Integers
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client, Randomness
from fedgram.federation.protocol import Federation
from fedgram.federation.stacked_step import stacked_step
from fedgram.federation.step import step
from fedgram.models.linear import Predictor
from fedgram.models.mlp import TrainingRows, cross_entropy_grad, ignore_overflow, matmul
from fedgram.training.descent import is_small, stack_matmul
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

    @stacked_step
    def update(self, clients: Sequence[Client], model: RoundModel) -> list[Weighted]:
        parts = [self.rows(client, model) for client in clients]
        kinds: dict[Any, list[int]] = {}
        for place, rows in enumerate(parts):
            alone = model.mlp.hidden or not is_small(model.theta, rows)
            kinds.setdefault(place if alone else (len(rows), rows.unit), []).append(place)
        trained: dict[int, tuple[Array, Mapping[str, Any]]] = {}
        for kind, places in kinds.items():
            if isinstance(kind, tuple):
                some = [(clients[place], parts[place]) for place in places]
                trained.update(zip(places, self._stack_trained(model, some), strict=True))
            else:
                client = clients[kind]
                trained[kind] = self._trained(client, model, parts[kind], client.randomness)
        return [
            self._reply(client, model, rows, trained[place])
            for place, (client, rows) in enumerate(zip(clients, parts, strict=True))
        ]

    def _reply(
        self,
        client: Client,
        model: RoundModel,
        rows: TrainingRows,
        trained: tuple[Array, Mapping[str, Any]],
    ) -> Weighted:
        theta, kept = trained
        save_state(client, model, **kept)
        return self.weighted(theta, len(rows), kept["shift"])

    def _stack_trained(
        self, model: RoundModel, some: Sequence[tuple[Client, TrainingRows]]
    ) -> list[tuple[Array, Mapping[str, Any]]]:
        """Train linear heads of clients with equally many samples, as `_trained` does one."""
        shape, average, rate = model.mlp, model.more["mean"], model.rate
        kept = [load_state(client, model) for client, _ in some]
        shift: Array = np.stack([each.get("shift", np.zeros_like(average)) for each in kept])
        values = np.stack([rows.values for _, rows in some])
        values *= values.dtype.type(some[0][1].unit)
        codes = np.stack([rows.codes for _, rows in some])
        theta = np.repeat(model.theta[None], len(some), axis=0)
        head = theta.reshape(len(some), shape.width, shape.classes)
        orders = [self._orders(rows, client.randomness) for client, rows in some]
        each_client = np.arange(len(some))[:, None]
        with ignore_overflow():
            for chosen in zip(*orders, strict=True):
                batch = np.stack(chosen)
                seen, truth = values[each_client, batch], codes[each_client, batch]
                scores = stack_matmul(seen, head) + shift[:, None] @ head
                flat = scores.reshape(-1, shape.classes)
                residual = cross_entropy_grad(flat, truth.ravel(), 1 / batch.shape[1])
                residual = residual.reshape(scores.shape)
                below = stack_matmul(residual, head.transpose(0, 2, 1))
                change = stack_matmul(seen.transpose(0, 2, 1), residual)
                change += shift[:, :, None] * residual.sum(axis=1)[:, None]
                shift -= rate * below.sum(axis=1)
                head -= rate * change
        running = [np.array(each.get("running", average)) for each in kept]
        return [
            (theta[place], {"shift": shift[place].copy(), "running": running[place]})
            for place in range(len(some))
        ]

    def _orders(self, rows: TrainingRows, randomness: Randomness) -> Iterator[Integers]:
        """Yield the samples of the batches of all epochs."""
        slices = rows.batch_slices(self.batch)
        if len(slices) == 1:
            yield from [np.arange(len(rows))] * self.epochs
            return
        for order in rows.epoch_orders(self.batch, self.epochs, randomness.generator):
            yield from (order[batch] for batch in slices)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        shift = load_state(client, model).get("shift")
        if shift is None:  # a client that joins late trains its offset on the shared model
            rows = self.rows(client, model)
            rng = Randomness(deterministic_rng(client, model))
            _, kept = self._trained(client, model, rows, rng)
            shift = kept["shift"]
        return replace(model.network, offset=shift)

    def _trained(
        self, client: Client, model: RoundModel, rows: TrainingRows, randomness: Randomness
    ) -> tuple[Array, Mapping[str, Any]]:
        kept = load_state(client, model)
        average: Array = model.more["mean"]
        shift: Array = np.array(kept.get("shift", np.zeros_like(average)))
        running: Array = np.array(kept.get("running", average))
        theta = model.theta.copy()
        with ignore_overflow():
            for batch in self.batches(rows, randomness):
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
