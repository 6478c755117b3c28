from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client, Randomness
from fedgram.models.linear import Predictor
from fedgram.models.mlp import TrainingRows
from fedgram.training.batched import Descents, batched_step
from fedgram.training.descent import LocalDescent, run_batched
from fedgram.training.loop import (
    GradientMethod,
    RoundModel,
    deterministic_rng,
    load_state,
    save_state,
)


@dataclass(frozen=True, kw_only=True)
class Ditto(GradientMethod):
    """Ditto (Li et al., ICML 2021): personal models with a proximal term to the FedAvg model.

    In each round a client first trains its personal model v on its loss plus ``strength / 2 |v -
    shared|^2``, then takes part in FedAvg. The personal model of a client that joins late starts at
    the shared model.

    Exchanges: the model parameters of `fedavg` in each round; personal models are never sent.

    Parameters
    ----------
    strength
        Weight of the proximal term (lambda in the paper), >= 0; 0 is local training. Training
        diverges if rate * strength exceeds 2.
    personal_epochs
        Number of passes over the client's samples for the personal model in each round.
    """

    strength: float = 1.0
    personal_epochs: int = 3

    @batched_step
    def update(self, client: Client, model: RoundModel) -> Descents[Weighted]:
        rows = self.rows(client, model)
        # A separate generator, so that the shared model equals that of FedAvg to the bit.
        personal = self._personal(client, model, rows, client.randomness.child())
        yield personal
        save_state(client, model, personal=personal.theta)
        theta = model.theta.copy()
        yield from self.descend(client, model, theta, rows)
        return self.weighted(theta, len(rows), personal.theta)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        personal = load_state(client, model).get("personal")
        if personal is None:
            rows = self.rows(client, model)
            task = self._personal(client, model, rows, deterministic_rng(client, model))
            run_batched([task])
            personal = task.theta
        return model.at(personal).network

    def _personal(
        self,
        client: Client,
        model: RoundModel,
        rows: TrainingRows,
        rng: np.random.Generator | Randomness,
    ) -> LocalDescent:
        """Return the local descent of the personal model from its current parameters."""
        start: Array = load_state(client, model).get("personal", model.theta)
        pull: dict[str, Any] = {"towards": model.theta, "strength": self.strength}
        descent = self.descent(model, self.personal_epochs)
        return descent.task(model.shape, start.copy(), rows, rng, **pull)
