"""Ridge regression by Cholesky factorization of the normal equations; no matrix is inverted.

The last bits of LAPACK results depend on the number of threads. So every solve runs under
`single_threaded_blas`: equal totals give equal models with the same BLAS kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from fedgram.core.kernels.choice import chosen
from fedgram.core.samples import Array, Floats
from fedgram.errors import SolveError
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

_STRIP = 64  # columns of a factor that are summed at a time
SIGNS = 64  # random vectors of an estimated trace


@dataclass(frozen=True, eq=False)
class Factor:
    """The Cholesky factor L of ``gram + ridge * I = L L'``: factorize once, solve many times.

    Examples
    --------
    >>> Factor.of(np.diag([1.0, 3.0]), 1.0).solve(np.array([[2.0], [4.0]])).round(12)
    array([[1.],
           [1.]])
    """

    lower: Floats  # (d, d), Fortran order; only the lower triangle is meaningful

    @classmethod
    def of(
        cls,
        gram: Array,
        ridge: float,
        *,
        samples: int | None = None,
        narrow: bool = False,
        free: int | None = None,
    ) -> Factor:
        """Factorize ``gram + ridge * I``.

        Parameters
        ----------
        gram
            Gram matrix; only its upper triangle is read, and it is not changed.
        ridge
            Added to the diagonal.
        samples
            Number of samples behind the Gram matrix, for the error message.
        narrow
            Whether the factor is in single precision.
        free
            Place of a feature whose weight has no ridge.
        """
        require_ridge(ridge)
        width, kind = len(gram), np.float32 if narrow else np.float64
        flops.add(width**3 // 3)
        shifted: Array = np.array(gram, kind)
        shifted[np.diag_indices(width)] += ridge
        if free is not None:
            shifted[free, free] = gram[free, free]
        if not width:
            return cls(shifted)
        factorize = lapack.spotrf if narrow else lapack.dpotrf
        with single_threaded_blas():
            # The upper triangle in C order is the lower triangle in Fortran order: no copy.
            lower, failed = factorize(shifted.T, lower=1, clean=0, overwrite_a=1)
        pivots = np.diagonal(lower)
        # A pivot of rounding size: the matrix is singular although the factorization succeeded.
        if failed or not pivots.min() > pivots.max() * np.sqrt(width * np.finfo(kind).eps):
            raise _singular(width, ridge, samples)
        return cls(lower)

    def solve(self, rhs: Floats) -> Floats:
        """Return ``(gram + ridge * I)^-1 rhs``."""
        flops.add(2 * len(self.lower) ** 2 * rhs.shape[1])
        with single_threaded_blas():
            solution: Floats = _solved(self.lower, rhs)
        # C order, as after decoding: BLAS may round products in Fortran order differently.
        return np.ascontiguousarray(solution)

    def inverse_trace(self) -> float:
        """Return the trace of ``(gram + ridge * I)^-1``."""
        # tr (L L')^-1 = sum of the squared entries of L^-1
        flops.add(len(self.lower) ** 3 // 3)
        with single_threaded_blas():
            inverse, _ = lapack.dtrtri(self.lower, lower=1)
        # By strips of columns: what LAPACK leaves above the diagonal does not count.
        squares = 0.0
        for start in range(0, len(inverse), _STRIP):
            part = inverse[start:, start : start + _STRIP]
            squares += float(np.sum(np.square(np.tril(part[:_STRIP]))))
            below = part[_STRIP:]
            squares += float(np.einsum("ij,ij->", below, below))
        return squares

    def whitened(self, rows: Floats) -> Floats:
        """Return rows w with ``w w' = rows (gram + ridge * I)^-1 rows'``, samples by features."""
        # w = rows L'^-1
        flops.add(rows.shape[1] ** 2 * len(rows))
        with single_threaded_blas():
            half: Floats = _triangular(self.lower, rows.T)
        return half.T

    def solve_whitened(self, whitened: Array) -> Array:
        """Return ``(gram + ridge * I)^-1 rows'`` from whitened rows, in their precision."""
        flops.add(whitened.shape[1] ** 2 * len(whitened))
        lower = self._narrow if whitened.dtype == np.float32 else self.lower
        with single_threaded_blas():
            solution: Array = _triangular(lower, whitened.T, transposed=True)
        return solution

    def narrowly_whitened(self, rows: Array) -> Array:
        """Return `whitened` rows in single precision, in half of the time.

        Their products have a relative error of about 1e-7 times the square root of the condition
        number; with a ridge it is moderate.
        """
        flops.add(rows.shape[1] ** 2 * len(rows))
        with single_threaded_blas():
            half: Array = _triangular(self._narrow, rows.T.astype(np.float32))
        return half.T

    @cached_property
    def _narrow(self) -> Array:
        """The factor in single precision."""
        return self.lower.astype(np.float32)

    def update(self, rows: Floats, residual: Floats, weight: float) -> Floats:
        """Return ``(A + weight rows' rows)^-1 weight rows' residual`` for the factorized A.

        By the Woodbury identity this factorizes a matrix of samples by samples only.

        Parameters
        ----------
        rows
            Samples by features.
        residual
            Samples by classes.
        weight
            Weight of the rows; 0 gives zeros.
        """
        if not weight:
            return np.zeros((rows.shape[1], residual.shape[1]))
        width, count = rows.shape[1], len(rows)
        flops.add(width * count * (2 * count + 2 * residual.shape[1]))
        flops.add(width**2 * residual.shape[1])
        with single_threaded_blas():
            half = self.whitened(rows).T  # (d, n): half' half = rows A^-1 rows'
            inner = Factor.of(half.T @ half, 1.0 / weight).solve(residual)
            return self.solve_whitened((half @ inner).T)


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of a stack of small matrices, with several ridges each.

    Each is the `Factor` of this matrix and ridge, to the bit.

    Examples
    --------
    >>> factors = Factors.of(np.array([np.eye(1), 3 * np.eye(1)]), [1.0, 5.0])
    >>> factors.solve(np.full((2, 2, 1, 1), 24.0)).ravel().round(12)
    array([12.,  4.,  6.,  3.])
    """

    lower: list[list[Array]]  # of each matrix and ridge

    @classmethod
    def of(cls, grams: Array, ridges: Sequence[float]) -> Factors:
        """Factorize ``gram + ridge * I`` for each of the matrices and ridges.

        Parameters
        ----------
        grams
            Gram matrices in double or single precision, (matrices, d, d).
        ridges
            The ridges.
        """
        for ridge in ridges:
            require_ridge(ridge)
        matrices, width, _ = grams.shape
        flops.add(width**3 // 3 * matrices * len(ridges))
        shifted = np.repeat(grams[:, None], len(ridges), axis=1)
        places = np.arange(width)
        shifted[:, :, places, places] += np.array(ridges, grams.dtype)[:, None]
        factorize = lapack.spotrf if grams.dtype == np.float32 else lapack.dpotrf
        lower, pivots = [], np.empty((matrices, len(ridges), width), grams.dtype)
        with single_threaded_blas():
            for found, some in zip(pivots, shifted, strict=True):
                row = [factorize(each.T, lower=1, clean=0, overwrite_a=1) for each in some]
                if any(failed for _, failed in row):
                    raise _singular(width, min(ridges), None)
                for diagonal, (factor, _) in zip(found, row, strict=True):
                    diagonal[:] = factor.diagonal()
                lower.append([factor for factor, _ in row])
        if width and matrices and ridges:
            least = pivots.max(axis=2) * np.sqrt(width * np.finfo(grams.dtype).eps)
            if not (pivots.min(axis=2) > least).all():
                raise _singular(width, min(ridges), None)
        return cls(lower)

    def solve(self, rhs: Array) -> Array:
        """Return ``(gram + ridge * I)^-1 rhs``, (matrices, ridges, d, columns)."""
        flops.add(2 * rhs.size * rhs.shape[-2])
        found = np.empty_like(rhs)
        with single_threaded_blas():
            for factors, sides, solutions in zip(self.lower, rhs, found, strict=True):
                for lower, side, solution in zip(factors, sides, solutions, strict=True):
                    solution[...] = _solved(lower, side)
        return found


def _triangular(lower: Array, rhs: Array, *, transposed: bool = False) -> Array:
    """Return ``L^-1 rhs`` or ``L'^-1 rhs``, in Fortran order."""
    if not rhs.size:
        return np.zeros(rhs.shape, lower.dtype)
    narrow = lower.dtype == rhs.dtype == np.float32
    solve = lapack.strtrs if narrow else lapack.dtrtrs
    solution: Array = solve(lower, rhs, lower=1, trans=int(transposed))[0]
    return solution


def _solved(lower: Array, rhs: Array) -> Array:
    """Return the solution by a Cholesky factor, in Fortran order."""
    if not rhs.size:
        return np.zeros(rhs.shape, lower.dtype)
    narrow = lower.dtype == rhs.dtype == np.float32
    solution: Array = (lapack.spotrs if narrow else lapack.dpotrs)(lower, rhs, lower=1)[0]
    return solution


def ridge_solve(
    gram: Floats,
    moment: Floats,
    ridge: float,
    *,
    towards: Floats | None = None,
    samples: int | None = None,
    free: int | None = None,
) -> Floats:
    """Return argmin_W ``|F W - Y|^2 + ridge |W - towards|^2`` from ``F'F`` and ``F'Y``.

    Parameters
    ----------
    gram
        The Gram matrix ``F'F``.
    moment
        The right-hand side ``F'Y`` of the normal equations.
    ridge
        Weight of the penalty.
    towards
        Weights that the penalty pulls to; zeros by default.
    samples
        Number of samples behind the Gram matrix, for the error message.
    free
        Place of a feature whose weight has no penalty.
    """
    # (F'F + ridge I) W = F'Y + ridge towards
    rhs = moment if towards is None else moment + ridge * towards
    if free is not None:
        rhs[free] = moment[free]
    return Factor.of(gram, ridge, samples=samples, free=free).solve(rhs)


def least_squares(
    rows: Floats, targets: Floats, ridge: float, *, products: Floats | None = None
) -> Floats:
    """Return argmin_W ``|rows W - targets|^2 + ridge |W|^2``, in the primal or the dual form.

    With fewer rows than features the dual form ``rows' (rows rows' + ridge I)^-1 targets`` is
    cheaper: it needs no matrix of features by features.

    Parameters
    ----------
    rows
        Samples by features.
    targets
        Samples by classes.
    ridge
        Weight of the squared norm.
    products
        ``rows rows'`` if there are fewer rows than features, otherwise ``rows' rows``; computed if
        not given.

    Examples
    --------
    >>> rows, targets = np.array([[1.0, 0.0, 1.0]]), np.array([[3.0]])
    >>> least_squares(rows, targets, 1.0).round(12).ravel()
    array([1., 0., 1.])
    """
    count, width = rows.shape
    flops.add(2 * count * width * (min(count, width) + targets.shape[1]))
    with single_threaded_blas():
        if products is None:
            products = rows @ rows.T if count < width else rows.T @ rows
        if count < width:
            inner = Factor.of(products, ridge, samples=count).solve(targets)
            weights: Floats = rows.T @ inner
            return weights
        return ridge_solve(products, rows.T @ targets, ridge, samples=count)


def unpack_symmetric(packed: Array, width: int) -> Floats:
    """Return the symmetric float64 matrix whose upper triangle, row by row, is `packed`."""
    return chosen().unpack(packed, width)


def random_signs(width: int) -> Floats:
    """Return `SIGNS` columns of random signs, from the counter-based generator of the lifts."""
    bits = np.random.Philox(key=0).random_raw(-(-width * SIGNS // 64))
    entries = np.unpackbits(bits.astype("<u8").view(np.uint8))[: width * SIGNS]
    return 2 * entries.reshape(width, SIGNS).astype(np.float64) - 1


def require_ridge(ridge: float) -> None:
    """Raise SolveError unless `ridge` is finite and not negative."""
    if not ridge >= 0 or not np.isfinite(ridge):
        raise SolveError(f"ridge = {ridge}: expected a finite number >= 0")


def _singular(width: int, ridge: float, samples: int | None) -> SolveError:
    count = "" if samples is None else f"{samples} samples, "
    return SolveError(
        f"the Gram matrix is singular ({count}{width} features, ridge = {ridge:g}); "
        "use a larger ridge"
    )
