"""Nearest class mean: a sample belongs to the class with the closest mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Features, Floats, Space
from fedgram.core.shared import Shared
from fedgram.features.lift import Lift
from fedgram.models.linear import require_space
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

_ROWS_AT_A_TIME = 8192  # bounds the float64 copy of the features


@codec.register("NearestMean/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class NearestMean(Shared):
    """A classifier by distances to class means, or by angles if the means have norm one.

    The score of class c is ``m_c' x - |m_c|^2 / 2``: half the negative squared distance, plus a
    term that is equal for all classes. For means of norm one the order is that of the cosines.

    Parameters
    ----------
    means
        Features (without the constant) by classes, in real units.
    present
        Which classes have a mean; the others are never predicted.
    space
        The feature space, after the lift.
    classes
        The class list, in the order of the columns.
    lift
        Applied to features first.
    origin
        Digest of the total that the means were computed from.

    Examples
    --------
    >>> rows = Features(np.array([[1.0], [4.0]]), Space(width=1, inputs=1))
    >>> model = NearestMean(
    ...     means=np.array([[0.0, 3.0]]),
    ...     present=np.array([True, True]),
    ...     space=rows.space,
    ...     classes=("low", "high"),
    ... )
    >>> model(rows)
    array([[ 0. , -1.5],
           [ 0. ,  7.5]])
    """

    means: Floats
    present: Array
    space: Space
    classes: tuple[str, ...]
    lift: Lift = Lift()
    origin: str = ""

    def __call__(self, features: Features) -> Floats:
        lifted = self.lift(features)
        require_space(self.space, lifted.space)
        scores = np.empty((len(lifted), len(self.classes)))
        flops.add(2 * self.means.size * len(lifted))
        half_squares = np.sum(self.means**2, axis=0) / 2
        with single_threaded_blas():
            for start in range(0, len(lifted), _ROWS_AT_A_TIME):
                part = slice(start, start + _ROWS_AT_A_TIME)
                rows = lifted.take(part).real()[:, self.space.without_constant]
                scores[part] = rows @ self.means - half_squares
        if not self.present.all():
            scores[:, ~self.present] = scores[:, self.present].min(axis=1, keepdims=True) - 1
        return scores

    def predictor(self) -> NearestMean:
        """Return this classifier."""
        return self

    def provenance(self) -> str:
        """Digest of the total if known, otherwise of the classifier."""
        return self.origin or codec.digest(self)
