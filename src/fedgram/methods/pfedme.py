from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.errors import ConfigError
from fedgram.federation.client import Client, Randomness
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Predictor
from fedgram.models.mlp import TrainingRows, ignore_overflow
from fedgram.training.batched import Descents, batched_step, run_alone
from fedgram.training.descent import SGD, LocalDescent
from fedgram.training.loop import (
    GradientMethod,
    RoundModel,
    deterministic_rng,
    load_state,
    save_state,
)


@dataclass(frozen=True, kw_only=True)
class PFedMe(GradientMethod):
    """pFedMe (Dinh et al., NeurIPS 2020): personal models by Moreau envelopes.

    A client's local model w and its personal model theta start at the shared model. On each batch
    theta takes a few steps towards the minimizer of the loss plus ``strength / 2 |theta - w|^2``,
    and then w moves towards theta: ``w -= rate * strength * (w - theta)``. The server mixes the
    average of the w into the shared model (Algorithm 1). The personal model is the last theta.

    Exchanges: in each round the local models w, averaged by sample counts; personal models are
    never sent.

    Parameters
    ----------
    strength
        Weight of the squared distance between personal and local model (lambda in the paper), >= 0;
        with 0 the shared model does not move.
    inner_steps
        Number of steps of the personal model on each batch (K in the paper), >= 1.
    inner_rate
        Learning rate of the inner steps, >= 0; 0 uses the learning rate. Above 2 / strength the
        inner steps diverge.
    mixing
        Weight of the clients' average in the shared model (beta in the paper); 0 keeps the shared
        model, 1 replaces it.
    """

    strength: float = 15.0
    inner_steps: int = 5
    inner_rate: float = 0.0
    mixing: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_steps < 1:
            raise ConfigError(f"inner_steps = {self.inner_steps}: use at least 1")

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        mean = federation.sum(self.update, model, clients=self.participants(federation)).mean()
        return model.at((1 - self.mixing) * model.theta + self.mixing * mean)

    @batched_step
    def update(self, client: Client, model: RoundModel) -> Descents[Weighted]:
        rows = self.rows(client, model)
        local, personal = yield from self._trained(model, rows, client.randomness)
        save_state(client, model, personal=personal)
        return self.weighted(local, len(rows), personal)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: RoundModel = shared
        personal = load_state(client, model).get("personal")
        if personal is None:
            rows = self.rows(client, model)
            rng = Randomness(deterministic_rng(client, model))
            _, personal = run_alone(self._trained(model, rows, rng))
        return model.at(personal).network

    def _trained(
        self, model: RoundModel, rows: TrainingRows, randomness: Randomness
    ) -> Descents[tuple[Array, Array]]:
        """Return the local and the personal model after a round."""
        local, personal = model.theta.copy(), model.theta.copy()
        for batch in self.batches(rows, randomness):
            yield from self.approach(model, personal, local, batch, randomness)
            with ignore_overflow():
                local -= model.rate * self.strength * (local - personal)
        return local, personal

    def approach(
        self,
        model: RoundModel,
        personal: Array,
        local: Array,
        batch: TrainingRows,
        randomness: Randomness,
    ) -> Iterable[LocalDescent]:
        """Return the descents that move the personal model to the minimizer on a batch.

        Parameters
        ----------
        model
            The broadcast model.
        personal
            The personal model, changed in place.
        local
            The local model, which pulls the personal one.
        batch
            The samples.
        randomness
            Random numbers of the steps.
        """
        inner = SGD(rate=self.inner_rate or model.rate, epochs=self.inner_steps, batch=0)
        pull: dict[str, Any] = {"towards": local, "strength": self.strength}
        return [inner.task(model.shape, personal, batch, randomness, **pull)]
