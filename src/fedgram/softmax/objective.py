"""What a softmax regression minimizes, as far as the server knows it: from integer sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Array, Floats, Integers
from fedgram.core.solve import Factor, require_ridge, unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import SolveError
from fedgram.runtime.threads import single_threaded_blas
from fedgram.softmax.arithmetic import LN2, LOSS_BITS, SoftmaxGrid
from fedgram.softmax.sums import ResidualSums

CURVATURE = 0.05  # of the loss, as a share of the Gram matrix
_REFINEMENTS = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Metric:
    """The curvature that steps are measured in: a share of the Gram matrix, plus the ridge.

    Parameters
    ----------
    matrix
        In real units, with the ridge, (features, features).
    factor
        Its Cholesky factor.
    """

    matrix: Floats
    factor: Factor

    @classmethod
    def of(cls, gram: Floats, ridge: float, penalized: Floats, samples: int) -> Metric:
        """Factorize ``CURVATURE gram + ridge``, the ridge on penalized features alone."""
        matrix = CURVATURE * gram
        matrix[np.diag_indices(len(gram))] += ridge * penalized
        return cls(matrix=matrix, factor=Factor.of(matrix, 0.0, samples=samples))

    def solve(self, rhs: Floats) -> Floats:
        """Return the solution, refined until another correction changes nothing to speak of."""
        solution = self.factor.solve(rhs)
        size = float(np.abs(solution).max(initial=0.0))
        for _ in range(_REFINEMENTS):
            with single_threaded_blas():
                rest = rhs - self.matrix @ solution
            correction = self.factor.solve(rest)
            solution = solution + correction
            if float(np.abs(correction).max(initial=0.0)) <= 1e-14 * size:
                break
        return solution


@dataclass(frozen=True, eq=False, kw_only=True)
class Point:
    """Integer weights with the loss and the residual sums at them.

    Parameters
    ----------
    values
        Integer weights, (features, classes).
    loss
        Summed loss in steps of 2^-20 bits.
    products
        Residual sums, (features, classes).
    fingerprint
        Of the samples that answered.
    """

    values: Integers
    loss: int
    products: Array
    fingerprint: int

    @classmethod
    def of(cls, values: Integers, sums: ResidualSums) -> Point:
        """Take the sums of one fold."""
        return cls(
            values=values,
            loss=int(sums.loss[0]),
            products=sums.products[0],
            fingerprint=int(sums.fingerprint[0]),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Anchor:
    """Weights that were chosen on a part of the samples, before a minimum was reached.

    A fit to all samples that begins there is to move by what the further samples say, and not on
    towards the minimum, which the left-out samples did not ask for. So it minimizes the loss plus
    the one linear function that makes the chosen weights stationary for the samples they know.

    Parameters
    ----------
    values
        The chosen integer weights.
    products
        Residual sums there, of the samples they know, scaled to the number of all samples.
    """

    values: Integers
    products: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Objective:
    """The penalized loss of a softmax regression, as far as the server needs to know it.

    Parameters
    ----------
    gram
        Summed Gram matrix of the samples, in real units.
    samples
        Their number.
    unit, bound, grid
        Of the features and of the weights.
    penalized
        1 for features that the ridge holds, 0 for others, (features,).
    anchor
        Where the gradient is to be zero but for what new samples add, if anywhere.
    """

    gram: Floats
    samples: int
    unit: float
    bound: int
    grid: SoftmaxGrid
    penalized: Floats
    anchor: Anchor | None = None

    @classmethod
    def of(
        cls,
        total: Statistics,
        grid: SoftmaxGrid,
        *,
        share: float = 1.0,
        constant: bool = False,
        anchor: Anchor | None = None,
    ) -> Objective:
        """Take the statistics of which a `share` of the samples is used.

        The last feature is the constant; the ridge holds it only with `constant`.
        """
        if total.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {total.count} samples")
        penalized = np.ones(total.space.width)
        penalized[-1] = float(constant)
        return cls(
            gram=unpack_symmetric(total.gram, total.space.width) * (share * total.space.unit**2),
            samples=total.count,
            unit=total.space.unit,
            bound=total.space.bound,
            grid=grid,
            penalized=penalized,
            anchor=anchor,
        )

    @property
    def step(self) -> float:
        """The real weight that the integer 1 stands for."""
        return LN2 / (2.0**self.grid.weights * self.unit)

    @property
    def slope(self) -> float:
        """The real gradient that the integer -1 of a residual sum stands for."""
        return self.unit / 2.0**self.grid.residuals

    def metric(self, ridge: float) -> Metric:
        """Return the metric for a ridge."""
        require_ridge(ridge)
        return Metric.of(self.gram, ridge, self.penalized, self.samples)

    def value(self, point: Point, ridge: float) -> float:
        """Return the penalized loss in nats."""
        return self.penalized_loss(point.values, point.loss, ridge)

    def penalized_loss(self, values: Integers, loss: int, ridge: float) -> float:
        """Return the penalized loss of weights whose loss is known, in nats."""
        moved = values if self.anchor is None else values - self.anchor.values
        held = moved[self.penalized > 0]
        squares = exact_product(held, held) * self.step**2
        value = loss * LN2 / 2.0**LOSS_BITS + ridge / 2 * squares
        if self.anchor is not None:
            along = exact_product(moved, self.anchor.products)
            value += along * (self.step * self.slope)
        return value

    def gradient(self, point: Point, ridge: float) -> Floats:
        """Return the gradient in real units, (features, classes)."""
        moved, products = self.relative(point)
        pull = ridge * self.step * self.penalized[:, None] * moved
        gradient: Floats = pull - self.slope * products
        return gradient

    def relative(self, point: Point) -> tuple[Integers, Array]:
        """Return weights and residual sums as far as they differ from those of the anchor."""
        if self.anchor is None:
            return point.values, point.products
        return point.values - self.anchor.values, point.products - self.anchor.products


def exact_product(left: Array, right: Array) -> float:
    """Return the sum of products of two integer arrays: exact, then rounded once to float64.

    Examples
    --------
    >>> big = np.array([2**40, 3, -(2**40)])
    >>> exact_product(big, big - np.array([0, 0, 1])) == float(2 * 2**80 + 9 + 2**40)
    True
    """
    if left.dtype.kind == "f" or right.dtype.kind == "f":  # without the grid nothing is exact
        return float(np.sum(left * right))
    total = 0
    for shift, part in _limbs(left.ravel()):
        for other, piece in _limbs(right.ravel()):
            total += int(part @ piece) << (shift + other)
    return float(total)


def _limbs(values: Integers) -> list[tuple[int, Integers]]:
    """Cut integers into signed pieces of 20 bits, whose products add up within 64."""
    pieces, shift, rest = [], 0, values
    while rest.any():
        low = ((rest + (1 << 19)) & ((1 << 20) - 1)) - (1 << 19)
        pieces.append((shift, low))
        rest = (rest - low) >> 20
        shift += 20
    return pieces
