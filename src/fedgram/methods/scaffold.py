from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.training.batched import Descents, batched_step
from fedgram.training.loop import GradientMethod, RoundModel, load_state, save_state


@codec.register("Corrected/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Corrected(Additive):
    """A client's parameters with the change of its control variate."""

    theta: Weighted = field(default_factory=Weighted.zero)
    control: Weighted = field(default_factory=Weighted.zero)


@dataclass(frozen=True, kw_only=True)
class Scaffold(GradientMethod):
    """SCAFFOLD: control variates take client drift out of local descent (ICML 2020).

    Every client keeps an estimate of its own gradient and the server one of everybody's; local
    steps are corrected by their difference (Karimireddy et al., Algorithm 1, option II). Clients
    count alike, as in the paper. The shared model is everybody's model.

    Parameters
    ----------
    shared_rate
        Step of the server towards the clients' average.
    """

    shared_rate: float = 1.0

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        return model.at(model.theta, control=np.zeros_like(model.theta))

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        total = federation.sum(self.corrected, model, clients=self.participants(federation))
        mean = total.theta.mean()
        share = int(total.theta.weight[0]) / len(federation.clients)  # of those who answered
        theta = model.theta + self.shared_rate * (mean - model.theta)
        control = model.more["control"] + share * total.control.mean()
        return model.at(theta, control=control.astype(model.theta.dtype))

    @batched_step
    def corrected(self, client: Client, model: RoundModel) -> Descents[Corrected]:
        """Train with corrected steps; return the parameters and the change of the control."""
        rows = self.rows(client, model)
        everybody: Array = model.more["control"]
        own: Array = load_state(client, model).get("control", np.zeros_like(everybody))
        theta = model.theta.copy()
        drift = everybody - own
        task = self.descent(model).task(model.shape, theta, rows, client.rng, drift=drift)
        yield task
        steps = self.epochs * len(task.batch_slices)
        renewed = own - everybody + (model.theta - theta) / (steps * model.rate)
        save_state(client, model, control=renewed)
        return Corrected(theta=self.weighted(theta, 1), control=self.weighted(renewed - own, 1))
