from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgram.client import Client
from fedgram.heads import Predictor
from fedgram.network import Rows, descending, gradient
from fedgram.samples import Array
from fedgram.training import Model, Training, tuned


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Training):
    """Per-FedAvg: a shared start from which few steps lead far (Fallah et al., NeurIPS 2020).

    Each local step looks one step ahead: from w to ``w - inner_rate * gradient`` on one batch, then
    w moves against the gradient there on the next batch. This is the first-order variant (FO),
    without second derivatives. A client's model is the shared one after `tuning_epochs` of plain
    descent.

    Parameters
    ----------
    inner_rate
        Rate of the step ahead; 0 takes the learning rate.
    tuning_epochs
        Passes over the client's samples from the shared start to its own model.
    """

    inner_rate: float = 0.0
    tuning_epochs: int = 1

    def descend(self, client: Client, model: Model, theta: Array, rows: Rows) -> None:
        ahead = self.inner_rate or model.rate
        with descending():
            batches = list(rows.batches(self.batch, self.epochs, client.rng))
            for first, second in zip(batches, batches[1:] + batches[:1], strict=True):
                there = theta - ahead * gradient(model.shape, theta, first)
                theta -= model.rate * gradient(model.shape, there, second)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        return tuned(self, client, shared, self.tuning_epochs)
