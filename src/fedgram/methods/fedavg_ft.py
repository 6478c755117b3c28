from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgram.federation.client import Client
from fedgram.methods.fedavg import FedAvg
from fedgram.models.linear import Predictor
from fedgram.training.loop import fine_tuned


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(FedAvg):
    """FedAvg, then every client goes on training its own copy of the shared model.

    Parameters
    ----------
    tuning_epochs
        Passes over the client's samples after the last round.
    """

    tuning_epochs: int = 5

    def personalize(self, client: Client, shared: Any) -> Predictor:
        return fine_tuned(self, client, shared, self.tuning_epochs)
