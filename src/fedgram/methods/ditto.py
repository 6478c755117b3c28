from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client
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
    """Ditto: a personal model beside the shared one, pulled towards it (Li et al., ICML 2021).

    In each round a client first descends with its personal model on its loss plus
    ``strength / 2 |v - shared|^2``, then takes part in FedAvg. The personal model is never sent.
    Strength 0 is training alone. A client that comes late starts its personal model at the shared
    one.

    Parameters
    ----------
    strength
        Weight of the pull.
    personal_epochs
        Passes over the client's samples for the personal model in each round.
    """

    strength: float = 1.0
    personal_epochs: int = 3

    @batched_step
    def update(self, client: Client, model: RoundModel) -> Descents[Weighted]:
        rows = self.rows(client, model)
        # Randomness of its own: the shared model is FedAvg's, to the bit.
        personal = self._personal(client, model, rows, client.rng.spawn(1)[0])
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
        self, client: Client, model: RoundModel, rows: TrainingRows, rng: np.random.Generator
    ) -> LocalDescent:
        """Return the descent of the personal model from where it is."""
        start: Array = load_state(client, model).get("personal", model.theta)
        pull: dict[str, Any] = {"towards": model.theta, "strength": self.strength}
        descent = self.descent(model, self.personal_epochs)
        return descent.task(model.shape, start.copy(), rows, rng, **pull)
