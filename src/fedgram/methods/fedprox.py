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
    """FedProx: FedAvg whose local descent is pulled back to the shared model (Li et al., 2020).

    Each client descends on its loss plus ``strength / 2 |w - shared|^2``; strength 0 is FedAvg.

    Parameters
    ----------
    strength
        Weight of the pull.
    """

    strength: float = 0.01

    def descend(
        self, client: Client, model: RoundModel, theta: Array, rows: TrainingRows
    ) -> Iterable[LocalDescent]:
        pull: dict[str, Any] = {"towards": model.theta, "strength": self.strength}
        return [self.descent(model).task(model.shape, theta, rows, client.rng, **pull)]
