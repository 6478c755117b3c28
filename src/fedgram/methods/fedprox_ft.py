from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgram.federation.client import Client
from fedgram.methods.fedprox import FedProx
from fedgram.models.linear import Predictor
from fedgram.training.loop import fine_tuned


@dataclass(frozen=True, kw_only=True)
class FedProxFT(FedProx):
    """FedProx with fine-tuning: each client continues training its copy of the shared model.

    Exchanges: the model parameters of `fedprox` in each round; fine-tuned models are never sent.

    Parameters
    ----------
    tuning_epochs
        Number of passes over the client's samples after the last round, >= 0; 0 is the shared
        model.
    """

    tuning_epochs: int = 5

    def personalize(self, client: Client, shared: Any) -> Predictor:
        return fine_tuned(self, client, shared, self.tuning_epochs)
