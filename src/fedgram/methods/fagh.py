from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Floats
from fedgram.core.weighted import Weighted
from fedgram.errors import ConfigError
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.mlp import Architecture, TrainingRows, gradient
from fedgram.runtime.threads import single_threaded_blas
from fedgram.training.loop import GradientMethod, RoundModel
from fedgram.training.zeroth_order import in_double

_LENGTH = 1e-4  # of the central difference of gradients that gives a row of the Hessian


@dataclass(frozen=True, kw_only=True)
class FAGH(GradientMethod):
    """FAGH (Sen et al., arXiv 2403.11041): Newton steps with one row of the global Hessian.

    Each client sends the gradient g of its loss and one row v of its Hessian; both are averaged by
    sample counts, and over rounds with weights that decay. The Hessian is approximated by the
    matrix of rank one with this row, ``H = v v' / v_j``, and the server steps by
    ``rate * (H + damping I)^-1 g``, which needs two inner products (Sherman-Morrison). The paper
    takes the first row. Here it is the row j of the last parameter, the weight of the constant for
    the last class: the first weight may belong to a feature that is always zero, whose row is
    zero. If v_j is not positive, as a network with a hidden layer may have it, H is left out. Row
    and gradient are computed in float64, the row by a central difference of gradients. The formulas
    are from a public summary of the paper; the default damping and memories are ours.

    Exchanges: in each round one sum of gradients and rows of Hessians, weighted by sample counts.

    Parameters
    ----------
    damping
        Added to the diagonal of the approximated Hessian (rho in the paper), > 0.
    gradient_memory, curvature_memory
        Weight of earlier rounds in the averages of the gradient and of the row (beta_1 and beta_2
        in the paper), from 0 to below 1.
    epochs, batch
        Not used: a round is one step with the gradient of all samples.
    """

    damping: float = 1.0
    gradient_memory: float = 0.9
    curvature_memory: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.damping < float("inf"):
            raise ConfigError(f"damping = {self.damping}: use a number > 0")
        for name in ("gradient_memory", "curvature_memory"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: use 0 <= weight < 1")

    def train(self, federation: Federation, model: RoundModel, rounds: int) -> Iterator[Any]:
        # The averages stay at the server: clients do not need them.
        memory = np.repeat([self.gradient_memory, self.curvature_memory], model.shape.size)
        averages = np.zeros(len(memory))
        for number in range(1, rounds + 1):
            total = federation.sum(self.update, model, clients=self.participants(federation))
            averages = memory * averages + (1 - memory) * total.mean()
            slope, row = np.split(averages / (1 - memory**number), 2)
            moved = in_double(model.theta) - model.rate * newton_step(slope, row, self.damping)
            model = replace(model.at(moved), round=number)
            yield model

    @step
    def update(self, client: Client, model: RoundModel) -> Weighted:
        """Return the gradient of the client's loss, and the last row of its Hessian."""
        rows = self.rows(client, model)
        exact = replace(rows, values=rows.values.astype(np.float64, copy=False))
        theta = in_double(model.theta)
        slope = gradient(model.shape, theta, exact)
        row = last_hessian_row(model.shape, theta, exact)
        return self.weighted(np.concatenate([slope, row]), len(rows), model.theta)


def last_hessian_row(shape: Architecture, theta: Floats, rows: TrainingRows) -> Array:
    """Return the row of the Hessian of the mean cross-entropy that belongs to the last parameter.

    Parameters
    ----------
    shape
        The layers.
    theta
        All parameters.
    rows
        The samples.
    """
    ahead, behind = theta.copy(), theta.copy()
    ahead[-1] += _LENGTH
    behind[-1] -= _LENGTH
    row: Array = gradient(shape, ahead, rows) - gradient(shape, behind, rows)
    return row / (2 * _LENGTH)


def newton_step(slope: Floats, row: Floats, damping: float) -> Floats:
    """Return ``(v v' / v_j + damping I)^-1 g`` for the row v and its last entry v_j.

    Parameters
    ----------
    slope
        The gradient g.
    row
        The row v of the Hessian.
    damping
        Added to the diagonal.

    Examples
    --------
    >>> newton_step(np.array([2.0, 2.0]), np.array([0.0, 3.0]), 1.0)
    array([2. , 0.5])
    """
    if not row[-1] > 0:
        return slope / damping
    # (v v'/a + r I)^-1 g = (g - v (v'g) / (a r + v'v)) / r
    with single_threaded_blas():  # else the sums depend on the number of cores
        share = (row @ slope) / (row[-1] * damping + row @ row)
    result: Floats = (slope - share * row) / damping
    return result
