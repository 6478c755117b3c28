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

_LEAST_CURVATURE = 0.03  # where probabilities are near 0 or 1
_BETWEEN = 0.1  # share of the between-class part of the Gram matrix in the metric
_REFINEMENTS = 3


def curvature(classes: int) -> float:
    """Return the assumed curvature of the loss, relative to the Gram matrix.

    With equal probabilities of all classes it is ``1 / classes``, and it decreases as the
    probabilities become certain: half of it, plus a small number.

    Examples
    --------
    >>> round(curvature(2), 3), round(curvature(100), 3)
    (0.28, 0.035)
    """
    return _LEAST_CURVATURE + 0.5 / classes


@dataclass(frozen=True, eq=False, kw_only=True)
class Metric:
    """The initial metric of quasi-Newton steps: a multiple of the Gram matrix, plus ridge.

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
    def of(cls, scaled: Floats, ridge: float, penalized: Floats, samples: int) -> Metric:
        """Factorize ``scaled + ridge``.

        Parameters
        ----------
        scaled
            Gram matrix in real units, times the assumed curvature.
        ridge
            Added to the diagonal entries of penalized features.
        penalized
            1 for penalized features, 0 for others.
        samples
            Number of samples, for the error message.
        """
        matrix = scaled.copy()
        matrix[np.diag_indices(len(matrix))] += ridge * penalized
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
    samples, classes
        Number of samples and of classes.
    unit, bound
        Unit and bound of the feature space.
    grid
        Precision of the weights and residuals.
    penalized
        1 for penalized features, 0 for others, (features,).
    between
        Between-class part of the Gram matrix, if known; see `between_classes`.
    anchor
        The weights of a refit, if any.
    """

    gram: Floats
    samples: int
    classes: int
    unit: float
    bound: int
    grid: SoftmaxGrid
    penalized: Floats
    between: Floats | None = None
    anchor: Anchor | None = None

    @classmethod
    def of(
        cls,
        total: Statistics,
        grid: SoftmaxGrid,
        *,
        share: float = 1.0,
        constant: bool = False,
        between: Floats | None = None,
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
        between
            Between-class part of the Gram matrix of all samples, if known.
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
            classes=len(total.classes),
            unit=total.space.unit,
            bound=total.space.bound,
            grid=grid,
            penalized=penalized,
            between=None if between is None else share * between,
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

    def metric(self, ridge: float, *, first: bool = False) -> Metric:
        """Return the metric for a ridge.

        With equal probabilities the curvature is a multiple of the Gram matrix. Later the loss is
        almost linear in the directions that separate the classes: few samples are uncertain
        between distant classes. So most of the between-class part is left out, except in a first
        step, whose length no earlier step corrects.

        Parameters
        ----------
        ridge
            The ridge.
        first
            Whether no curvature pair is known yet.
        """
        require_ridge(ridge)
        gram = self.gram
        if self.between is not None and not first:
            gram = gram - (1 - _BETWEEN) * self.between
        scaled = curvature(self.classes) * gram
        return Metric.of(scaled, ridge, self.penalized, self.samples)

    def value(self, point: Point, ridge: float) -> float:
        """Return the penalized loss in nats."""
        return self.penalized_loss(point.values, point.loss, ridge)

    @property
    def loss_rounding(self) -> float:
        """Size of the rounding error of a loss, in nats: losses are rounded for each sample."""
        return float(np.sqrt(self.samples)) * LN2 / 2.0**LOSS_BITS

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


def between_classes(sums: Floats, counts: Floats) -> Floats:
    """Return the between-class part of a Gram matrix: ``sum_c s_c s_c' / n_c``.

    The vectors are rounded so that their products are exact, in whatever order they are added.

    Parameters
    ----------
    sums
        Sum of the features of each class, s_c, (features, classes).
    counts
        Number of samples of each class, n_c.

    Examples
    --------
    >>> between_classes(np.array([[3.0, 0.0], [2.0, 4.0]]), np.array([1.0, 4.0]))
    array([[9., 6.],
           [6., 8.]])
    """
    present = counts >= 0.5
    vectors = sums[:, present] / np.sqrt(counts[present])
    # Products of two such integers, summed over classes, stay within 2^53.
    bits = (52 - len(counts).bit_length()) // 2
    largest = float(np.abs(vectors).max(initial=0.0))
    scale = 2.0 ** (bits - int(np.frexp(largest)[1]))
    rounded = np.rint(vectors * scale)
    with single_threaded_blas():
        between: Floats = (rounded @ rounded.T) / scale**2
    return between


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
