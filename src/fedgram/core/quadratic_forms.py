"""Quadratic forms of a regularized Gram matrix for many ridges, from one factorization."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

from fedgram.core.samples import Array, Floats
from fedgram.core.solve import Factor
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas


@dataclass(eq=False, kw_only=True)
class QuadraticForms:
    """``v' (G + r I)^-1 v`` and ``v' (G + r I)^-2 v`` for vectors v and any ridge r.

    The Lanczos method on ``(G + center I)^-1``: k steps give the Gauss quadrature with k nodes for
    each vector. Of a ridge ten times larger or smaller than the center, each step removes about
    three quarters of the error. A step solves with the factor once, in single precision.

    Parameters
    ----------
    narrow
        Lower Cholesky factor of ``G + center I``, in single precision.
    center
        The ridge of the factor.
    sizes
        Squared norms of the vectors.

    Examples
    --------
    >>> gram, vectors = np.diag([1.0, 3.0, 8.0]), np.ones((3, 1))
    >>> forms = QuadraticForms.of(Factor.of(gram, 1.0), 1.0, vectors)
    >>> forms.extend(3)
    >>> first, second = forms.at(2.0)
    >>> first.round(5), second.round(5)  # 1/3 + 1/5 + 1/10, 1/9 + 1/25 + 1/100
    (array([0.63333]), array([0.16111]))
    """

    narrow: Array
    center: float
    sizes: Floats
    _last: Floats  # the last two vectors of the recurrence
    _before: Floats
    _diagonal: list[Floats] = field(default_factory=list)
    _beside: list[Floats] = field(default_factory=list)

    @classmethod
    def of(cls, factor: Factor, center: float, vectors: Floats) -> QuadraticForms:
        """Return the forms of the columns of `vectors`, before the first step.

        Parameters
        ----------
        factor
            Of the matrix whose inverse is in the forms.
        center
            The ridge that this matrix contains.
        vectors
            One column for each form.
        """
        sizes = np.einsum("ij,ij->j", vectors, vectors)
        return cls(
            narrow=factor.lower.astype(np.float32),
            center=center,
            sizes=sizes,
            _last=_scaled(vectors, np.sqrt(sizes)),
            _before=np.zeros_like(vectors),
        )

    @property
    def steps(self) -> int:
        """The number of steps so far: nodes of the quadrature."""
        return len(self._diagonal)

    def extend(self, steps: int = 1) -> None:
        """Make further steps."""
        for _ in range(steps):
            flops.add(2 * self._last.size * len(self.narrow))
            with single_threaded_blas():
                moved = scipy.linalg.cho_solve(
                    (self.narrow, True), self._last.astype(np.float32), check_finite=False
                ).astype(np.float64)
            along = np.einsum("ij,ij->j", self._last, moved)
            moved -= along * self._last
            if self._beside:
                moved -= self._beside[-1] * self._before
            length = np.sqrt(np.einsum("ij,ij->j", moved, moved))
            self._diagonal.append(along)
            self._beside.append(length)
            self._before, self._last = self._last, _scaled(moved, length)

    def at(self, ridge: float, *, steps: int | None = None) -> tuple[Floats, Floats]:
        """Return both forms of each vector for a ridge, by the first `steps` steps (all)."""
        count = self.steps if steps is None else steps
        matrix = np.zeros((len(self.sizes), count, count))
        each = np.arange(count)
        matrix[:, each, each] = np.stack(self._diagonal[:count], axis=1)
        if count > 1:
            beside = np.stack(self._beside[: count - 1], axis=1)
            matrix[:, each[1:], each[:-1]] = matrix[:, each[:-1], each[1:]] = beside
        nodes, vectors = np.linalg.eigh(matrix)
        weights = vectors[:, 0] ** 2 * self.sizes[:, None]
        inverse = nodes / (1 + (ridge - self.center) * nodes)
        return np.sum(weights * inverse, axis=1), np.sum(weights * inverse**2, axis=1)


def _scaled(columns: Floats, lengths: Floats) -> Floats:
    """Return columns of norm one; a column of norm zero stays."""
    scaled: Floats = columns / np.where(lengths > 0, lengths, 1.0)
    return scaled
