from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedgram.core.samples import Array
from fedgram.federation.client import Client
from fedgram.models.linear import Predictor
from fedgram.models.mlp import TrainingRows, gradient, ignore_overflow
from fedgram.training.descent import LocalDescent
from fedgram.training.loop import GradientMethod, RoundModel, fine_tuned


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(GradientMethod):
    """Per-FedAvg (Fallah et al., NeurIPS 2020): a shared initialization for few local steps (MAML).

    Each local step looks one step ahead: from w to ``w - inner_rate * gradient`` on one batch, then
    w moves by the gradient at that point on the next batch. This is the first-order variant (FO),
    without second derivatives. A client's model is the shared one after `tuning_epochs` of SGD with
    the inner rate.

    Exchanges: in each round the model parameters, averaged by sample counts.

    Parameters
    ----------
    inner_rate
        Learning rate of the step ahead (alpha in the paper), >= 0; 0 uses the learning rate.
    tuning_epochs
        Number of passes over the client's samples from the shared model to its own, >= 0; 0 is the
        shared model.
    """

    inner_rate: float = 0.0
    tuning_epochs: int = 1

    def descend(
        self, client: Client, model: RoundModel, theta: Array, rows: TrainingRows
    ) -> Iterable[LocalDescent]:
        ahead = self._ahead(model)
        with ignore_overflow():
            batches = self.batches(rows, client.randomness)
            start = next(batches)
            for first, second in itertools.pairwise(itertools.chain([start], batches, [start])):
                there = theta - ahead * gradient(model.shape, theta, first)
                theta -= model.rate * gradient(model.shape, there, second)
        return []  # all steps are done: they look ahead, unlike those of `LocalDescent`

    def personalize(self, client: Client, shared: Any) -> Predictor:
        ahead = replace(shared, rate=self._ahead(shared))
        return fine_tuned(self, client, ahead, self.tuning_epochs)

    def _ahead(self, model: RoundModel) -> float:
        return self.inner_rate or model.rate
