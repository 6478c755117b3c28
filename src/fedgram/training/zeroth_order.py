"""Zeroth-order training: gradients are estimated from values of the loss, without derivatives.

For random directions v with ``E v v' = I`` and a short length h, the mean of
``(L(theta + h v) - L(theta)) / h * v`` is the gradient of the loss, up to an error of the order of
h. With n parameters and k directions its variance is about ``n / k`` times the squared gradient, so
the learning rate must be smaller than that of gradient descent by about this factor. The
differences are small numbers: they are computed in float64, whatever the precision of the
parameters is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedgram.core.samples import Array, Floats
from fedgram.errors import ConfigError
from fedgram.models.mlp import Architecture, TrainingRows, ignore_overflow, loss
from fedgram.training.loop import GradientMethod

_FEW = 1  # directions of a shortened method
LossOf = Callable[[Floats], float]


@dataclass(frozen=True, kw_only=True)
class ZerothOrderMethod(GradientMethod):
    """Base class of methods whose clients compute losses instead of gradients.

    Parameters
    ----------
    directions
        Number of random directions of an estimated gradient; 0 takes each parameter once, which
        is exact up to the smoothing and needs as many losses as there are parameters.
    smoothing
        Distance between the parameters whose losses are compared, > 0.
    central
        Compare the losses on both sides of the parameters: twice as many losses, and a smaller
        error.
    """

    directions: int = 20
    smoothing: float = 1e-3
    central: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.directions < 0:
            raise ConfigError(
                f"directions = {self.directions}: use at least 1, or 0 for each parameter once"
            )
        if not 0 < self.smoothing < float("inf"):
            raise ConfigError(f"smoothing = {self.smoothing}: use a number > 0")

    def shortened(self, *, search: bool = True) -> Self:
        """Return the same with two rounds and one direction at most."""
        few = replace(self, directions=min(_FEW, self.directions))
        return super(ZerothOrderMethod, few).shortened(search=search)

    def estimated(self, loss_of: LossOf, theta: Floats, rng: np.random.Generator) -> Floats:
        """Return the estimated gradient: directions are uniform on the sphere, or the axes.

        Parameters
        ----------
        loss_of
            The loss as a function of the parameters.
        theta
            The parameters.
        rng
            Draws the directions.
        """
        size = len(theta)
        chosen = spherical(self.directions, size, rng) if self.directions else axes(size)
        length = self.smoothing / np.sqrt(size)  # directions have the norm sqrt(size)
        gradient, count = np.zeros(size), 0
        for direction, slope in slopes(loss_of, theta, chosen, length, central=self.central):
            gradient += slope * direction
            count += 1
        return gradient / count


def slopes(
    loss_of: LossOf,
    theta: Floats,
    directions: Iterable[Floats],
    length: float,
    *,
    central: bool = False,
) -> Iterator[tuple[Floats, float]]:
    """Yield each direction with the slope of the loss along it, by a difference of losses.

    Parameters
    ----------
    loss_of
        The loss as a function of the parameters.
    theta
        The parameters.
    directions
        The directions.
    length
        Factor of a direction in the compared parameters.
    central
        Compare the losses on both sides of `theta`, instead of one side and `theta`.

    Examples
    --------
    >>> square = lambda theta: float(theta @ theta)
    >>> start = np.array([1.0, 2.0])
    >>> [slope for _, slope in slopes(square, start, [np.array([0.0, 1.0])], 0.5)]
    [4.5]
    >>> [slope for _, slope in slopes(square, start, [np.array([0.0, 1.0])], 0.5, central=True)]
    [4.0]
    """
    here = 0.0 if central else loss_of(theta)
    for direction in directions:
        step = length * direction
        if central:
            yield direction, (loss_of(theta + step) - loss_of(theta - step)) / (2 * length)
        else:
            yield direction, (loss_of(theta + step) - here) / length


def spherical(count: int, size: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield directions that are uniform on the sphere, of norm ``sqrt(size)``.

    Parameters
    ----------
    count
        Number of directions.
    size
        Number of parameters.
    rng
        Draws the directions.
    """
    for direction in gaussian(count, size, rng):
        yield direction * (np.sqrt(size) / np.linalg.norm(direction))


def gaussian(count: int, size: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield directions whose entries have a standard normal distribution.

    Parameters
    ----------
    count
        Number of directions.
    size
        Number of parameters.
    rng
        Draws the directions.
    """
    for _ in range(count):
        yield rng.standard_normal(size)


def axes(size: int) -> Iterator[Floats]:
    """Yield the direction of each parameter, of norm ``sqrt(size)``."""
    for place in range(size):
        direction = np.zeros(size)
        direction[place] = np.sqrt(size)
        yield direction


def loss_function(shape: Architecture, rows: TrainingRows) -> LossOf:
    """Return the mean cross-entropy of rows as a function of the parameters, in float64."""
    exact = replace(rows, values=rows.values.astype(np.float64, copy=False))

    def loss_of(theta: Floats) -> float:
        with ignore_overflow():
            return loss(shape, theta, exact)

    return loss_of


def in_double(theta: Array) -> Floats:
    """Return a copy of parameters in float64."""
    return theta.astype(np.float64)
