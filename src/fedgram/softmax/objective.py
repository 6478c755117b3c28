"""The penalized loss of softmax regression at the server, with its gradient, from integer sums."""

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

CURVATURE = 0.05  # assumed curvature of the loss, relative to the Gram matrix
_REFINEMENTS = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Metric:
    """The initial metric of quasi-Newton steps: ``CURVATURE`` times the Gram matrix, plus ridge.

    Parameters
    ----------
    matrix
        The matrix in real units, with the ridge, (features, features).
    factor
        The Cholesky factor of the matrix.
    """

    matrix: Floats
    factor: Factor

    @classmethod
    def of(cls, gram: Floats, ridge: float, penalized: Floats, samples: int) -> Metric:
        """Factorize ``CURVATURE gram + ridge``.

        Parameters
        ----------
        gram
            Gram matrix in real units.
        ridge
            Added to the diagonal entries of penalized features.
        penalized
            1 for penalized features, 0 for others.
        samples
            Number of samples, for the error message.
        """
        matrix = CURVATURE * gram
        matrix[np.diag_indices(len(gram))] += ridge * penalized
        return cls(matrix=matrix, factor=Factor.of(matrix, 0.0, samples=samples))

    def solve(self, rhs: Floats) -> Floats:
        """Return the solution, with iterative refinement up to rounding."""
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
        Fingerprint of the samples in the sums.
    """

    values: Integers
    loss: int
    products: Array
    fingerprint: int

    @classmethod
    def of(cls, values: Integers, sums: ResidualSums) -> Point:
        """Return the point from the sums of one fold."""
        return cls(
            values=values,
            loss=int(sums.loss[0]),
            products=sums.products[0],
            fingerprint=int(sums.fingerprint[0]),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Anchor:
    """Weights that were selected by early stopping on a part of the samples.

    A refit to all samples starts from these weights. It must change them only because of the
    further samples, and not continue to the minimum, which held-out samples rejected. So it
    minimizes the loss plus a linear function for which the selected weights are stationary on the
    samples they were fitted to.

    Parameters
    ----------
    values
        The selected integer weights.
    products
        Residual sums at these weights, of the fitted samples, scaled to the number of all samples.
    """

    values: Integers
    products: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Objective:
    """The penalized loss of a softmax regression.

    Parameters
    ----------
    gram
        Summed Gram matrix of the samples, in real units.
    samples
        Number of samples.
    unit, bound
        Unit and bound of the feature space.
    grid
        Precision of the weights and residuals.
    penalized
        1 for penalized features, 0 for others, (features,).
    anchor
        The weights of a refit, if any.
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
        """Return the objective for summed statistics.

        Parameters
        ----------
        total
            The summed statistics; the last feature is the constant.
        grid
            Precision of the weights and residuals.
        share
            Fraction of the samples in the objective.
        constant
            Whether the constant is penalized.
        anchor
            The weights of a refit, if any.
        """
        if total.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {total.count} samples")
        penalized = np.ones(total.space.width)
        penalized[total.space.constant] = float(constant)
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
        """The real value of the integer weight 1."""
        return LN2 / (2.0**self.grid.weights * self.unit)

    @property
    def slope(self) -> float:
        """The real gradient of an integer residual sum of -1."""
        return self.unit / 2.0**self.grid.residuals

    def metric(self, ridge: float) -> Metric:
        """Return the metric for a ridge."""
        require_ridge(ridge)
        return Metric.of(self.gram, ridge, self.penalized, self.samples)

    def value(self, point: Point, ridge: float) -> float:
        """Return the penalized loss in nats."""
        return self.penalized_loss(point.values, point.loss, ridge)

    def penalized_loss(self, values: Integers, loss: int, ridge: float) -> float:
        """Return the penalized loss in nats.

        Parameters
        ----------
        values
            Integer weights.
        loss
            Their loss in steps of 2^-20 bits.
        ridge
            The ridge.
        """
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
        """Return weights and residual sums minus those of the anchor."""
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
    if left.dtype.kind == "f" or right.dtype.kind == "f":  # without a grid sums are not exact
        return float(np.sum(left * right))
    total = 0
    for shift, part in _limbs(left.ravel()):
        for other, piece in _limbs(right.ravel()):
            total += int(part @ piece) << (shift + other)
    return float(total)


def _limbs(values: Integers) -> list[tuple[int, Integers]]:
    """Return integers as signed limbs of 20 bits, whose products sum up within 64 bits."""
    pieces, shift, rest = [], 0, values
    while rest.any():
        low = ((rest + (1 << 19)) & ((1 << 20) - 1)) - (1 << 19)
        pieces.append((shift, low))
        rest = (rest - low) >> 20
        shift += 20
    return pieces
