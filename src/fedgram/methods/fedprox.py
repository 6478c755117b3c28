from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedgram.core.samples import Array
from fedgram.federation.client import Client
from fedgram.models.mlp import TrainingRows
from fedgram.training.descent import LocalDescent
from fedgram.training.loop import GradientMethod, RoundModel


@dataclass(frozen=True, kw_only=True)
class FedProx(GradientMethod):
    """FedProx (Li et al., MLSys 2020): FedAvg with a proximal term to the shared model.

    Each client trains on its loss plus ``strength / 2 |w - shared|^2``.

    Exchanges: in each round the model parameters, averaged by sample counts.

    Parameters
    ----------
    strength
        Weight of the proximal term (mu in the paper), >= 0; 0 is `fedavg`, to the bit.
    """

    strength: float = 0.01

    def descend(
        self, client: Client, model: RoundModel, theta: Array, rows: TrainingRows
    ) -> Iterable[LocalDescent]:
        pull: dict[str, Any] = {"towards": model.theta, "strength": self.strength}
        return [self.descent(model).task(model.shape, theta, rows, client.randomness, **pull)]
