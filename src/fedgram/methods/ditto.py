from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.client import Client
from fedgram.heads import Predictor
from fedgram.network import Rows
from fedgram.samples import Array
from fedgram.training import Model, Training, keep, recalled, repeatable
from fedgram.weighted import Weighted


@dataclass(frozen=True, kw_only=True)
class Ditto(Training):
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

    def update(self, client: Client, model: Model) -> Weighted:
        rows = self.rows(client, model)
        # Randomness of its own: the shared model is FedAvg's, to the bit.
        rng = client.rng.spawn(1)[0]
        personal = self._personal(client, model, rows, rng)
        keep(client, model, personal=personal)
        theta = model.theta.copy()
        self.descend(client, model, theta, rows)
        return self.weighted(theta, len(rows), personal)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: Model = shared
        personal = recalled(client, model).get("personal")
        if personal is None:
            rows = self.rows(client, model)
            personal = self._personal(client, model, rows, repeatable(client, model))
        return model.at(personal).network

    def _personal(
        self, client: Client, model: Model, rows: Rows, rng: np.random.Generator
    ) -> Array:
        start: Array = recalled(client, model).get("personal", model.theta)
        theta = start.copy()
        self.descent(model, self.personal_epochs)(
            model.shape, theta, rows, rng, towards=model.theta, strength=self.strength
        )
        return theta
