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
from fedgram.models.mlp import TrainingRows, ignore_overflow
from fedgram.training.descent import SGD
from fedgram.training.loop import (
    GradientMethod,
    RoundModel,
    deterministic_rng,
    load_state,
    save_state,
)


@dataclass(frozen=True, kw_only=True)
class PFedMe(GradientMethod):
    """pFedMe (Dinh et al., NeurIPS 2020): personal models by Moreau envelopes.

    A client's local model w and its personal model theta start at the shared model. On each batch
    theta takes a few steps towards the minimizer of the loss plus ``strength / 2 |theta - w|^2``,
    and then w moves towards theta: ``w -= rate * strength * (w - theta)``. The server mixes the
    average of the w into the shared model (Algorithm 1). The personal model is the last theta.

    Exchanges: in each round the local models w, averaged by sample counts; personal models are
    never sent.

    Parameters
    ----------
    strength
        Weight of the squared distance between personal and local model (lambda in the paper), >= 0;
        with 0 the shared model does not move.
    inner_steps
        Number of steps of the personal model on each batch (K in the paper), >= 1.
    inner_rate
        Learning rate of the inner steps, >= 0; 0 uses the learning rate. Above 2 / strength the
        inner steps diverge.
    mixing
        Weight of the clients' average in the shared model (beta in the paper); 0 keeps the shared
        model, 1 replaces it.
    """

    strength: float = 15.0
    inner_steps: int = 5
    inner_rate: float = 0.0
    mixing: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_steps < 1:
            raise ConfigError(f"inner_steps = {self.inner_steps}: use at least 1")

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        mean = federation.sum(self.update, model, clients=self.participants(federation)).mean()
        return model.at((1 - self.mixing) * model.theta + self.mixing * mean)

    @step
    def update(self, client: Client, model: RoundModel) -> Weighted:
        rows = self.rows(client, model)
        local, personal = self._trained(model, rows, client.rng)
        save_state(client, model, personal=personal)
        return self.weighted(local, len(rows), personal)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        personal = load_state(client, model).get("personal")
        if personal is None:
            rows = self.rows(client, model)
            _, personal = self._trained(model, rows, deterministic_rng(client, model))
        return model.at(personal).network

    def _trained(
        self, model: RoundModel, rows: TrainingRows, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return the local and the personal model after a round."""
        local, personal = model.theta.copy(), model.theta.copy()
        with ignore_overflow():
            for batch in rows.batches(self.batch, self.epochs, rng):
                self.approach(model, personal, local, batch, rng)
                local -= model.rate * self.strength * (local - personal)
        return local, personal

    def approach(
        self,
        model: RoundModel,
        personal: Array,
        local: Array,
        batch: TrainingRows,
        rng: np.random.Generator,
    ) -> None:
        """Move the personal model towards the minimizer of its objective on a batch.

        Parameters
        ----------
        model
            The broadcast model.
        personal
            The personal model, changed in place.
        local
            The local model, which pulls the personal one.
        batch
            The samples.
        rng
            Random generator of the step.
        """
        inner = SGD(rate=self.inner_rate or model.rate, epochs=self.inner_steps, batch=0)
        inner(model.shape, personal, batch, rng, towards=local, strength=self.strength)
