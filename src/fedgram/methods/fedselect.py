from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.errors import ConfigError
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.linear import Predictor
from fedgram.models.mlp import Architecture, TrainingRows
from fedgram.training.loop import GradientMethod, RoundModel, load_state, save_state


@dataclass(frozen=True, kw_only=True)
class FedSelect(GradientMethod):
    """FedSelect (Tamirisa et al., CVPR 2024): the parameters that change most become personal.

    Each client has a mask of personal parameters, empty at first. A round alternates epochs on the
    personal and on the shared parameters; the server averages each parameter over the clients that
    share it. Every few rounds the mask is extended, layer by layer, by the shared parameters that
    have changed most since the last extension. A parameter that becomes personal keeps the client's
    own value; in the authors' code it starts at the average, and clients have equal weights.

    Exchanges: in each round the shared parameters, averaged over the clients that share them.

    Parameters
    ----------
    growth
        Fraction of the shared parameters that become personal when the mask is extended, from 0 to
        1.
    target
        Fraction of personal parameters at which the mask stops growing, from 0 to 1; 0 is `fedavg`,
        to the bit, and 1 with growth 1 is local training.
    growing_rounds
        Number of rounds between two extensions of the mask, >= 1.
    """

    growth: float = 0.25
    target: float = 0.8
    growing_rounds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.growth <= 1 or not 0 <= self.target <= 1:
            raise ConfigError("growth and target are shares: use numbers from 0 to 1")
        if self.growing_rounds < 1:
            raise ConfigError(f"growing_rounds = {self.growing_rounds}: use at least 1")

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        total = federation.sum(self.update, model, clients=self.participants(federation))
        return model.at(total.mean(otherwise=model.theta))

    @step
    def update(self, client: Client, model: RoundModel) -> Weighted:
        rows = self.rows(client, model)
        mask, since = self._grown(client, model)
        theta = self._merged(client, model, mask)
        self._alternate(client, model, theta, rows, mask)
        save_state(client, model, mask=mask, own=theta, since=since)
        return self.weighted(theta, np.where(mask, 0, len(rows)))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        mask: Array = load_state(client, model).get("mask", np.zeros(len(model.theta), bool))
        return model.at(self._merged(client, model, mask)).network

    def _merged(self, client: Client, model: RoundModel, mask: Array) -> Array:
        """Return the shared parameters, with the client's own where masked."""
        own: Array = load_state(client, model).get("own", model.theta)
        merged: Array = np.where(mask, own, model.theta)
        return merged

    def _alternate(
        self, client: Client, model: RoundModel, theta: Array, rows: TrainingRows, mask: Array
    ) -> None:
        descent = self.descent(model, 1)
        for _ in range(self.epochs):
            if mask.any():
                descent(model.shape, theta, rows, client.rng, mask=mask)
            if not mask.any():
                descent(model.shape, theta, rows, client.rng)
            elif not mask.all():
                descent(model.shape, theta, rows, client.rng, mask=~mask)

    def _grown(self, client: Client, model: RoundModel) -> tuple[Array, Array]:
        """Return the mask, extended if due, and the parameters at its last extension."""
        kept = load_state(client, model)
        if "mask" not in kept:
            return np.zeros(len(model.theta), bool), model.theta.copy()
        mask, since, own = kept["mask"], kept["since"], kept["own"]
        if model.round % self.growing_rounds or mask.mean() >= self.target:
            return mask, since
        mask = mask.copy()
        change = np.abs(own - since)
        for layer in _layers(model.shape):
            self._grow(mask[layer], change[layer])
        return mask, own

    def _grow(self, mask: Array, change: Array) -> None:
        """Add the most changed shared entries to the mask, up to the target."""
        shared = np.flatnonzero(~mask)
        room = int(self.target * len(mask)) - (len(mask) - len(shared))
        count = min(round(self.growth * len(shared)), room)
        if count > 0:
            most = np.argsort(-change[shared], kind="stable")[:count]
            mask[shared[most]] = True


def _layers(shape: Architecture) -> list[slice]:
    return [part for part in (slice(0, shape.base), slice(shape.base, None)) if part.stop != 0]
