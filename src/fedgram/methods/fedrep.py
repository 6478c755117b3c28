from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.linear import Predictor
from fedgram.models.mlp import TrainingRows
from fedgram.training.loop import (
    GradientMethod,
    RoundModel,
    deterministic_rng,
    load_state,
    save_state,
    with_head,
    without_head,
)


@dataclass(frozen=True, kw_only=True)
class FedRep(GradientMethod):
    """FedRep (Collins et al., ICML 2021): a shared representation under personal heads.

    In each round a client first trains its own head on the shared layers, then the layers under its
    fixed head, and sends the layers. With ``hidden`` 0 there is no shared layer, and each client
    trains its head alone.

    Exchanges: in each round the layers below the head, averaged by sample counts; heads are never
    sent.

    Parameters
    ----------
    head_epochs
        Number of passes over the client's samples for the head in each round (tau in the paper
        counts steps).
    """

    head_epochs: int = 3

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        return without_head(model)

    @step
    def update(self, client: Client, model: RoundModel) -> Weighted:
        rows, base = self.rows(client, model), model.shape.base
        theta = self._headed(client, model, rows, client.rng)
        save_state(client, model, head=theta[base:].copy())
        if model.shape.hidden:
            below = np.arange(len(theta)) < base
            self.descent(model)(model.shape, theta, rows, client.rng, mask=below)
        return self.weighted(theta[:base], len(rows), theta[base:])

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        head = load_state(client, model).get("head")
        if head is not None:
            return model.at(with_head(model, head)).network
        theta = self._headed(
            client, model, self.rows(client, model), deterministic_rng(client, model)
        )
        return model.at(theta).network

    def _headed(
        self, client: Client, model: RoundModel, rows: TrainingRows, rng: np.random.Generator
    ) -> Array:
        """Return the shared layers with the client's head, after training the head."""
        base = model.shape.base
        theta = with_head(model, load_state(client, model).get("head"))
        above = np.arange(len(theta)) >= base if base else None
        self.descent(model, self.head_epochs)(model.shape, theta, rows, rng, mask=above)
        return theta
