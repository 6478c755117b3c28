from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Floats
from fedgram.core.weighted import Weighted
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.training.loop import RoundModel
from fedgram.training.zeroth_order import (
    ZerothOrderMethod,
    axes,
    gaussian,
    in_double,
    loss_function,
    slopes,
)


@dataclass(frozen=True, kw_only=True)
class BAFFLE(ZerothOrderMethod):
    """BAFFLE (Feng et al., ECCV 2024, arXiv 2301.12195): clients send loss differences only.

    In each round server and clients draw the same k directions z with standard normal entries from
    a public seed. A client computes the slopes ``(L(w + s z) - L(w)) / s`` of its mean loss, with
    the smoothing s (sigma in the paper), and sends these k numbers. The server averages them by
    sample counts, and the estimated gradient is the mean of slope times direction (Stein's
    identity). The slopes are rounded to a public grid (steps of 2^-24, or 2^-54 in double
    precision), so their sums are exact and the same under secure sums. A round is one step of
    plain gradient descent; the authors use Adam and averages of models over rounds.

    Exchanges: in each round one sum of k slopes of the loss, weighted by sample counts.

    Parameters
    ----------
    directions
        Number of random directions, the numbers that a client sends (K in the paper); 0 takes each
        parameter once.
    smoothing
        Standard deviation of the changes of a parameter whose losses are compared, > 0.
    epochs, batch
        Not used: a round is one step on all samples.
    seed
        Public seed of the directions.
    """

    directions: int = 100
    smoothing: float = 1e-4
    seed: int = 0

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        total = federation.sum(self.update, model, clients=self.participants(federation))
        mean = total.mean()
        gradient = np.zeros(len(model.theta))
        for slope, direction in zip(mean, self._drawn(model), strict=True):
            gradient += slope * direction
        return model.at(in_double(model.theta) - model.rate / len(mean) * gradient)

    @step
    def update(self, client: Client, model: RoundModel) -> Weighted:
        """Return the slopes of the client's loss along the directions of the round."""
        rows = self.rows(client, model)
        found = slopes(
            loss_function(model.shape, rows),
            in_double(model.theta),
            self._drawn(model),
            self.smoothing,
            central=self.central,
        )
        return self.weighted(np.array([slope for _, slope in found]), len(rows), model.theta)

    def _drawn(self, model: RoundModel) -> Iterator[Floats]:
        """Return the directions of a round, the same at the server and at every client."""
        rng = np.random.default_rng([self.seed, model.trial, model.round])
        size = model.shape.size
        return gaussian(self.directions, size, rng) if self.directions else axes(size)
