"""Landmarks: kernel values between a sample and public points (the Nystroem method).

The kernel is ``exp(scale^2 (t - 1))`` with ``t = x'z / d``. For samples and points of root mean
square 1, as on the grid, ``|x - z|^2 = 2 d (1 - t)``, so that it is the Gaussian kernel
``exp(-scale^2 |x - z|^2 / 2 d)``. A ridge head on these features is a function of the form of the
Nystroem approximation (Williams and Seeger, NIPS 2000), a weighted sum of kernels at the points;
its penalty is the squared norm of the weights, and not that of the function. This choice is ours.

The features have 12 bits: they are similar to each other, and 8 bits would lose their differences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgram.core import codec
from fedgram.core.exact import exact_matmul
from fedgram.core.samples import Array, Features, Floats, Space
from fedgram.errors import DataError, MismatchError
from fedgram.features.grid import bias

BITS = 12  # of a feature
_LARGEST = 6.0  # the value of a sample at a point
_TERMS = 20  # of the series of the exponential: the next term is below 1e-19
_HALVINGS = 8
_ENTRIES_AT_A_TIME = 2**21


@codec.register("Landmarks/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Landmarks:
    """Features by the Gaussian kernel between a sample and each point; a constant is appended.

    Parameters
    ----------
    points
        Integers in the units of the inputs, points by features without the constant.
    scale
        The reciprocal of the kernel's bandwidth, > 0.

    Examples
    --------
    >>> from fedgram.features.grid import Grid
    >>> rows = Grid(bits=8)(np.array([[1.0, 1.0, -1.0, 1.0], [1.0, -1.0, 1.0, 1.0]]))
    >>> points = Landmarks(points=rows.values[:1, :-1], scale=1.0)
    >>> points(rows).real().round(1)  # 6 exp(t - 1) - 6 exp(-1), for t near 1 and t = 0
    array([[3.7, 1. ],
           [0. , 1. ]])
    """

    points: Array
    scale: float

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or not np.issubdtype(self.points.dtype, np.integer):
            raise DataError("landmarks: expected a matrix of integers, points by features")
        if not 0 < self.scale < float("inf"):
            raise DataError(f"landmarks: expected a finite scale > 0, got {self.scale}")

    def __call__(self, features: Features) -> Features:
        """Return the kernel features."""
        space = self.space(features.space)
        rows = np.empty((len(features), space.width), np.int16)
        rows[:, space.constant] = bias(space.unit, space.bound)
        at_a_time = max(1, _ENTRIES_AT_A_TIME // max(1, len(self.points)))
        for start in range(0, len(features), at_a_time):
            some = slice(start, start + at_a_time)
            values = features.values[some, features.space.without_constant]
            rows[some, space.without_constant] = self._kernel(values, features.space, space)
        return Features(rows, space)

    def space(self, inputs: Space) -> Space:
        """Return the feature space of kernel features, for features in the space `inputs`."""
        if self.points.shape[1] != inputs.constant:
            raise MismatchError(
                f"landmarks of {self.points.shape[1]} features for samples of {inputs.constant}"
            )
        if not inputs.exact:
            raise MismatchError("landmarks are points of the grid: use grid.bits from 2 to 16")
        bound = 2 ** (BITS - 1) - 1
        return replace(
            inputs,
            width=len(self.points) + 1,
            unit=_LARGEST / bound,
            bound=bound,
            clip=_LARGEST,
            steps=(
                *inputs.steps,
                f"landmarks({len(self.points)} points, {codec.digest(self)[:16]})",
            ),
        )

    def _kernel(self, values: Array, inputs: Space, space: Space) -> Floats:
        points = self.points.T
        longest = int(np.abs(points.astype(np.int64)).sum(axis=0).max(initial=0))
        products = exact_matmul(values, points, inputs.bound, longest=longest)
        alike = products.astype(np.float64) * (inputs.unit**2 / max(1, inputs.constant))
        square = self.scale**2
        real = _exponential(square * (np.minimum(alike, 1.0) - 1))
        real -= float(_exponential(np.array([-square]))[0])
        steps: Floats = np.rint(real * (_LARGEST / space.unit))
        clipped: Floats = np.clip(steps, -space.bound, space.bound)
        return clipped


def _exponential(t: Floats) -> Floats:
    """Return exp(t) of numbers t <= 0, with equal bits on every IEEE machine.

    Libraries round the exponential differently. The series and the squares need sums, products and
    quotients only, which are defined to the bit. Below -100 the result is that of -100.
    """
    small = np.maximum(t, -100.0) / 2**_HALVINGS
    series: Floats = np.ones_like(small)
    for power in range(_TERMS, 0, -1):
        series = 1 + small / power * series
    for _ in range(_HALVINGS):
        series = series * series
    return series
