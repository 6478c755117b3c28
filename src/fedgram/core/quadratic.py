"""Sums of quadratic objectives that are no statistics of samples, in fixed point."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.samples import NO_SPACE, Floats, Space
from fedgram.core.solve import Factor, unpack_symmetric
from fedgram.core.weighted import DOUBLE, Weighted


@codec.register("Quadratic/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Quadratic(Additive):
    """A weighted sum of objectives ``tr W'AW / 2 - tr B'W``, one of each client.

    What clients send beside plain sums of samples, such as their statistics seen through a solve
    of their own. It is rounded to steps of 2^-54, so that its sum is exact and can be secure; but
    unlike that of samples it depends on who has which.

    Parameters
    ----------
    terms
        The upper triangle of A, row by row, and B.
    space
        What the features mean.
    classes
        The class list.

    Examples
    --------
    >>> space = Space(width=1)
    >>> one = Quadratic.of(np.array([[2.0]]), np.array([[1.0]]), 1, space, ("a",))
    >>> two = Quadratic.of(np.array([[4.0]]), np.array([[2.0]]), 3, space, ("a",))
    >>> (one + two).matrix, (one + two).solve(0.0)
    (array([[14.]]), array([[0.5]]))
    """

    terms: Weighted = field(default_factory=Weighted)
    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())

    @classmethod
    def of(
        cls, matrix: Floats, moment: Floats, weight: int, space: Space, classes: tuple[str, ...]
    ) -> Self:
        """Return one client's part; what is summed is `weight` times what is given."""
        upper = matrix[np.triu_indices(len(matrix))]
        terms = Weighted.of(np.concatenate([upper, moment.ravel()]), weight, places=DOUBLE)
        return cls(terms=terms, space=space, classes=classes)

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE

    @property
    def matrix(self) -> Floats:
        """The summed A."""
        width = self.space.width
        return unpack_symmetric(self._sums[: width * (width + 1) // 2], width)

    @property
    def moment(self) -> Floats:
        """The summed B."""
        width = self.space.width
        return self._sums[width * (width + 1) // 2 :].reshape(width, len(self.classes))

    def factor(self, ridge: float) -> Factor:
        """Return the factorized ``A + ridge I``."""
        return Factor.of(self.matrix, ridge)

    def solve(self, ridge: float) -> Floats:
        """Return the minimizer with ``ridge / 2 |W|^2`` added."""
        return self.factor(ridge).solve(self.moment)

    @property
    def _sums(self) -> Floats:
        weight = int(self.terms.weight[0])
        sums: Floats = self.terms.mean() * weight
        return sums
