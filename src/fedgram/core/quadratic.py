"""Sums of clients' quadratic objectives in fixed point, for terms that are not sums of samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, require_shape, schema_field
from fedgram.core.samples import NO_SPACE, Floats, Space
from fedgram.core.solve import Factor, unpack_symmetric
from fedgram.core.weighted import DOUBLE, Weighted
from fedgram.errors import DataError


@codec.register("Quadratic/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Quadratic(Additive):
    """A weighted sum of the clients' objectives ``tr W'AW / 2 - tr B'W``.

    Used where A and B of a client are the result of a solve, not sums over its samples. Terms are
    rounded to steps of 2^-54, so that sums are exact and secure aggregation can add them. Unlike
    `Statistics`, the total depends on the partition of the samples over clients.

    Parameters
    ----------
    terms
        The upper triangle of A, row by row, and B.
    space
        The feature space.
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
        """Return one client's terms.

        Parameters
        ----------
        matrix
            A, features by features.
        moment
            B, features by classes.
        weight
            Weight of the client: the sum contains `weight` times A and B.
        space
            The feature space.
        classes
            The class list.
        """
        upper = matrix[np.triu_indices(len(matrix))]
        terms = Weighted.of(np.concatenate([upper, moment.ravel()]), weight, places=DOUBLE)
        return cls(terms=terms, space=space, classes=classes)

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        width = self.space.width
        size = width * (width + 1) // 2 + width * len(self.classes)
        require_shape("Quadratic.terms", self.terms.total, size)
        starts = np.arange(width) * width - np.arange(width) * (np.arange(width) - 1) // 2
        # Rounding may leave a diagonal of zero slightly below: less than a step for each sample.
        if (self.terms.total[starts] < -self.terms.weight[0]).any():
            raise DataError("a quadratic objective with a negative diagonal: it has no minimum")

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
        """Return the minimizer of the objective plus ``ridge / 2 |W|^2``."""
        return self.factor(ridge).solve(self.moment)

    @property
    def _sums(self) -> Floats:
        weight = int(self.terms.weight[0])
        sums: Floats = self.terms.mean() * weight
        return sums
