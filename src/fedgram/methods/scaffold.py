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
    """SCAFFOLD (Karimireddy et al., ICML 2020): control variates against client drift.

    Each client keeps an estimate of its own gradient, and the server one of the mean gradient;
    local steps are corrected by their difference (Algorithm 1, option II). Clients have equal
    weights, as in the paper. All clients use the shared model.

    Exchanges: in each round the model parameters and the changes of the control variates.

    Parameters
    ----------
    shared_rate
        Learning rate of the server (eta_g in the paper): step towards the clients' average; 1 takes
        the average, 0 keeps the shared model.
    """

    shared_rate: float = 1.0

    def most_weight(self, samples: int) -> int | None:
        return 1  # clients have equal weights

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        return model.at(model.theta, control=np.zeros_like(model.theta))

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        total = federation.sum(self.corrected, model, clients=self.participants(federation))
        mean = total.theta.mean()
        # The fraction of clients that answered.
        share = int(total.theta.weight[0]) / len(federation.clients)
        theta = model.theta + self.shared_rate * (mean - model.theta)
        control = model.more["control"] + share * total.control.mean()
        return model.at(theta, control=control.astype(model.theta.dtype))

    @batched_step
    def corrected(self, client: Client, model: RoundModel) -> Descents[Corrected]:
        """Train with corrected steps; return the parameters and the change of the control."""
        rows = self.rows(client, model)
        average: Array = model.more["control"]
        own: Array = load_state(client, model).get("control", np.zeros_like(average))
        theta = model.theta.copy()
        drift = average - own
        task = self.descent(model).task(model.shape, theta, rows, client.randomness, drift=drift)
        yield task
        steps = self.epochs * len(task.batch_slices)
        renewed = own - average + (model.theta - theta) / (steps * model.rate)
        save_state(client, model, control=renewed)
        return Corrected(theta=self.weighted(theta, 1), control=self.weighted(renewed - own, 1))
