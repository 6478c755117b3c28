"""Quasi-Newton steps (L-BFGS) of the server for softmax regression, from integer sums only.

The initial metric is the summed Gram matrix. Weights and gradients are integers on public grids, so
every product of a step with a gradient change is exact. Solutions are float64, refined, and rounded
to the grid of the weights before they are broadcast. Two servers with different BLAS libraries
broadcast equal integers unless an entry is very close to the middle of two grid steps; such near
ties are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgram.core.samples import Array, Floats, Integers
from fedgram.errors import SolveError
from fedgram.softmax.objective import Metric, Objective, Point, exact_product

MEMORY = 10  # maximum number of curvature pairs
_DAMPING = 0.3  # of a class's scale of the metric, towards the common scale of all classes
_REACH = 5.0  # largest ratio of a class's scale to the common scale
_EDGE = 2.0**-16  # an entry within this distance of a rounding tie counts as a near tie


@dataclass(frozen=True, eq=False, kw_only=True)
class CurvaturePair:
    """One step and the change of the residual sums along it, in integers."""

    step: Integers
    change: Array

    @classmethod
    def between(cls, before: Point, after: Point) -> CurvaturePair:
        """Return the pair of two points."""
        return cls(step=after.values - before.values, change=before.products - after.products)


@dataclass(frozen=True, eq=False, kw_only=True)
class QuasiNewton:
    """The state of an L-BFGS search: the best point so far and the last curvature pairs.

    Parameters
    ----------
    objective
        The objective to minimize.
    point
        The point with the smallest penalized loss so far.
    pairs
        At most `MEMORY` curvature pairs, the oldest first.
    near_ties
        Number of entries of broadcast weights that were close to a rounding tie.
    """

    objective: Objective
    point: Point
    pairs: tuple[CurvaturePair, ...] = ()
    near_ties: int = 0

    def direction(self, ridge: float, metric: Metric) -> Floats:
        """Return the quasi-Newton step to be subtracted, in real units."""
        objective, step = self.objective, self.objective.step
        held = objective.penalized[:, None] * (ridge * step)
        changes = [objective.slope * pair.change + held * pair.step for pair in self.pairs]
        steps = [np.float64(step) * pair.step for pair in self.pairs]
        along = [self._along(pair, pair, ridge) for pair in self.pairs]
        weights: dict[int, float] = {}
        rest = objective.gradient(self.point, ridge)
        for k in reversed(range(len(self.pairs))):
            # The step times the remaining gradient, from exact products of integers.
            downhill = self._downhill(self.pairs[k], ridge) - sum(
                weight * self._along(self.pairs[k], self.pairs[later], ridge)
                for later, weight in weights.items()
            )
            weights[k] = downhill / along[k]
            rest = rest - weights[k] * changes[k]
        moved = metric.solve(rest)
        if self.pairs:
            moved = moved * _scales(steps[-1], changes[-1], metric.solve(changes[-1]))
        for k in range(len(self.pairs)):
            moved = moved + steps[k] * (weights[k] - _dot(changes[k], moved) / along[k])
        # A term common to all classes changes no probability; without it the penalty is smaller.
        centred: Floats = moved - moved.mean(axis=1, keepdims=True)
        return centred

    def candidate(self, direction: Floats, length: float) -> tuple[Integers, int]:
        """Return the weights after a step, rounded to the grid, and their number of near ties."""
        exact = self.point.values - (length / self.objective.step) * direction
        rounded = np.rint(exact)
        if not np.isfinite(rounded).all() or np.abs(rounded).max(initial=0.0) >= 2.0**52:
            raise SolveError("the softmax regression diverged; use a larger ridge")
        ties = int((np.abs(np.abs(exact - rounded) - 0.5) < _EDGE).sum())
        return rounded.astype(np.int64), ties

    def accepted(self, after: Point, ridge: float, ties: int) -> QuasiNewton:
        """Return the search at a better point, with one more curvature pair.

        Parameters
        ----------
        after
            The better point.
        ridge
            The ridge.
        ties
            Number of near ties of its weights.
        """
        pair = CurvaturePair.between(self.point, after)
        pairs = self.pairs
        if self._along(pair, pair, ridge) > 0:
            pairs = (*pairs, pair)[-MEMORY:]
        return replace(self, point=after, pairs=pairs, near_ties=self.near_ties + ties)

    def restarted(self, point: Point, ties: int = 0) -> QuasiNewton:
        """Return the search at a point without curvature pairs, as of other samples."""
        return replace(self, point=point, pairs=(), near_ties=self.near_ties + ties)

    def _downhill(self, pair: CurvaturePair, ridge: float) -> float:
        """Return the product of a step with the gradient, from exact integers."""
        objective = self.objective
        values, products = objective.relative(self.point)
        data = exact_product(pair.step, products)
        rows = objective.penalized > 0
        held = exact_product(pair.step[rows], values[rows]) * objective.step**2
        return ridge * held - data * (objective.step * objective.slope)

    def _along(self, one: CurvaturePair, other: CurvaturePair, ridge: float) -> float:
        """Return the product of a step with a change of the gradient, from exact integers."""
        objective = self.objective
        data = exact_product(one.step, other.change) * (objective.step * objective.slope)
        rows = objective.penalized > 0
        held = exact_product(one.step[rows], other.step[rows]) * objective.step**2
        return data + ridge * held


def _dot(left: Array, right: Array) -> float:
    return float(np.sum(left * right))


def _scales(step: Floats, change: Floats, solved: Floats) -> Floats:
    """Return a factor of the metric's steps for each class, from the last curvature pair."""
    along, across = np.sum(step * change, axis=0), np.sum(change * solved, axis=0)
    if not (along.sum() > 0 and across.sum() > 0):
        return np.ones(step.shape[1])
    common = along.sum() / across.sum()
    damping = _DAMPING * along.mean()
    each: Floats = (along + damping) / (across + damping / common)
    return np.clip(each, common / _REACH, common * _REACH)
