from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Predictor
from fedgram.models.mlp import Rows
from fedgram.training.loop import Model, Training, headless, keep, recalled, repeatable, under


@dataclass(frozen=True, kw_only=True)
class FedRep(Training):
    """FedRep: a shared representation under personal heads (Collins et al., ICML 2021).

    In each round a client first trains its own head on the shared layer, then the layer under its
    fixed head, and sends the layer. On purely frozen features (``hidden`` 0) there is no shared
    layer and each client trains its head alone; set ``hidden`` for more.

    Parameters
    ----------
    head_epochs
        Passes over the client's samples for the head in each round.
    """

    head_epochs: int = 3

    def begin(self, federation: Federation, model: Model) -> Model:
        return headless(model)

    def update(self, client: Client, model: Model) -> Weighted:
        rows, base = self.rows(client, model), model.shape.base
        theta = self._headed(client, model, rows, client.rng)
        keep(client, model, head=theta[base:].copy())
        if model.shape.hidden:
            below = np.arange(len(theta)) < base
            self.descent(model)(model.shape, theta, rows, client.rng, mask=below)
        return self.weighted(theta[:base], len(rows), theta[base:])

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: Model = shared
        head = recalled(client, model).get("head")
        if head is not None:
            return model.at(under(model, head)).network
        theta = self._headed(client, model, self.rows(client, model), repeatable(client, model))
        return model.at(theta).network

    def _headed(self, client: Client, model: Model, rows: Rows, rng: np.random.Generator) -> Array:
        """Return the shared layer under the client's head, trained on."""
        base = model.shape.base
        theta = under(model, recalled(client, model).get("head"))
        above = np.arange(len(theta)) >= base if base else None
        self.descent(model, self.head_epochs)(model.shape, theta, rows, rng, mask=above)
        return theta
