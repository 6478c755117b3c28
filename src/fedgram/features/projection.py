"""A solved linear map of the features on a public integer grid."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgram.core import codec
from fedgram.core.exact import exact_matmul
from fedgram.core.samples import Array, Features, Floats, Space
from fedgram.features.grid import bias
from fedgram.features.residual import rounded
from fedgram.runtime.threads import single_threaded_blas


@codec.register("Projection/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Projection:
    """A linear map of the features, rounded once to the grid of its inputs; a constant is appended.

    Parameters
    ----------
    matrix
        Integers, features (with their constant) by projected features.
    places
        Number of binary places of the integers.

    Examples
    --------
    >>> space = Space(width=3, unit=0.5, bound=127, steps=("grid(8 bits)",))
    >>> rows = Features(np.array([[10, -20, 2]], dtype=np.int8), space)
    >>> halves = Projection.of(np.array([[0.5], [0.0], [1.0]]))
    >>> halves(rows).values
    array([[7, 2]], dtype=int8)
    """

    matrix: Array
    places: int

    @classmethod
    def of(cls, matrix: Floats) -> Projection:
        """Return the projection by a real matrix, rounded to the public grid."""
        steps, places = rounded(matrix)
        return cls(matrix=steps, places=places)

    def __call__(self, features: Features) -> Features:
        """Return the projected features."""
        space = self.space(features.space)
        if space.exact:
            longest = int(np.abs(self.matrix.astype(np.int64)).sum(axis=0).max(initial=0))
            product = exact_matmul(features.values, self.matrix, space.bound, longest=longest)
        else:
            with single_threaded_blas():
                product = features.values @ self.matrix.astype(np.float64)
        steps = np.ldexp(product.astype(np.float64, copy=False), -self.places)
        if space.exact:
            steps = np.clip(np.rint(steps), -space.bound, space.bound)
        rows = np.empty((len(features), space.width), features.values.dtype)
        rows[:, space.without_constant] = steps
        if space.has_constant:
            rows[:, space.constant] = bias(space.unit, space.bound)
        return Features(rows, space)

    def space(self, inputs: Space) -> Space:
        """Return the feature space of projected features, for features in the space `inputs`."""
        width = self.matrix.shape[1]
        step = f"projection({width} wide, {codec.digest(self)[:16]})"
        return replace(inputs, width=width + inputs.has_constant, steps=(*inputs.steps, step))
