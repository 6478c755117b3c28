"""Least squares by Cholesky, under a fixed number of threads; never an inverse.

LAPACK's last bits depend on the number of threads, so everything solved goes through
`single_threaded_blas`: the same totals then give the same models on the same BLAS build.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from threadpoolctl import ThreadpoolController

from fedgram.core.samples import Array, Floats
from fedgram.errors import SolveError
from fedgram.runtime import flops

THREADS = 1

_lock = threading.Lock()
_inside = 0
_before: list[int] = []


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Run the body with `THREADS` BLAS threads.

    The limit holds for the whole process, so it is counted: the first to come sets it and the last
    to leave lifts it, whatever happens in other Python threads in between.
    """
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = [library.get_num_threads() for library in _libraries()]
            _set_threads([THREADS] * len(_before))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _set_threads(_before)


@functools.cache
def _libraries() -> list[Any]:
    return [c for c in ThreadpoolController().lib_controllers if c.user_api == "blas"]


def _set_threads(counts: list[int]) -> None:
    """Set the number of threads from any Python thread.

    Newer versions of threadpoolctl obey only the thread that set a limit first; ours is set and
    lifted by whichever comes first and last, under a lock of our own.
    """
    for library, count in zip(_libraries(), counts, strict=True):
        release = getattr(library, "clear_controlling_thread", None)
        if release:
            release(force=True)
        library.set_num_threads(count)
        if release:
            release(force=True)


@dataclass(frozen=True, eq=False)
class Factor:
    """The Cholesky factor of ``gram + ridge * I``: factorize once, solve many times.

    Examples
    --------
    >>> Factor.of(np.diag([1.0, 3.0]), 1.0).solve(np.array([[2.0], [4.0]])).round(12)
    array([[1.],
           [1.]])
    """

    lower: Floats  # (d, d), Fortran order; only the lower triangle is meaningful

    @classmethod
    def of(cls, gram: Floats, ridge: float, *, samples: int | None = None) -> Factor:
        """Factorize; only the upper triangle of `gram` is read, and `gram` is left as it was."""
        require_ridge(ridge)
        width = len(gram)
        flops.add(width**3 // 3)
        shifted = np.array(gram, np.float64)
        shifted[np.diag_indices(width)] += ridge
        with single_threaded_blas():
            try:
                # The upper triangle in C order is the lower one in Fortran order: no copy.
                lower, _ = scipy.linalg.cho_factor(
                    shifted.T, lower=True, overwrite_a=True, check_finite=False
                )
            except scipy.linalg.LinAlgError:
                raise _singular(width, ridge, samples) from None
        pivots = np.diagonal(lower)
        # A pivot of rounding size: the matrix was singular although the factorization went through.
        if width and not pivots.min() > pivots.max() * np.sqrt(width * np.finfo(float).eps):
            raise _singular(width, ridge, samples)
        return cls(lower)

    def solve(self, rhs: Floats) -> Floats:
        """Return ``(gram + ridge * I)^-1 rhs``."""
        flops.add(2 * len(self.lower) ** 2 * rhs.shape[1])
        with single_threaded_blas():
            solution: Floats = scipy.linalg.cho_solve((self.lower, True), rhs, check_finite=False)
        # Row by row, as it is after it was sent: BLAS may round products of other orders otherwise.
        return np.ascontiguousarray(solution)

    def inverse_trace(self) -> float:
        """Return the trace of ``(gram + ridge * I)^-1``, from the inverse of the factor alone."""
        flops.add(len(self.lower) ** 3 // 3)
        with single_threaded_blas():
            inverse, _ = scipy.linalg.lapack.dtrtri(self.lower, lower=1)
        return float(np.sum(np.square(np.tril(inverse))))

    def whitened(self, rows: Floats) -> Floats:
        """Return rows w with ``w w' = rows (gram + ridge * I)^-1 rows'``, samples by features."""
        flops.add(rows.shape[1] ** 2 * len(rows))
        with single_threaded_blas():
            half: Floats = scipy.linalg.solve_triangular(
                self.lower, rows.T, lower=True, check_finite=False
            )
        return half.T

    def update(self, rows: Floats, residual: Floats, weight: float) -> Floats:
        """Return ``(A + weight rows' rows)^-1 weight rows' residual`` for the factorized A.

        By the Woodbury identity, in the number of rows: no second factorization of A's size.
        """
        if not weight:
            return np.zeros((rows.shape[1], residual.shape[1]))
        width, count = rows.shape[1], len(rows)
        flops.add(width * count * (2 * count + 2 * residual.shape[1]))
        flops.add(width**2 * residual.shape[1])
        with single_threaded_blas():
            half = self.whitened(rows).T  # (d, n): half' half = rows A^-1 rows'
            inner = Factor.of(half.T @ half, 1.0 / weight).solve(residual)
            step: Floats = scipy.linalg.solve_triangular(
                self.lower, half @ inner, lower=True, trans=1, check_finite=False
            )
        return step


def ridge_solve(
    gram: Floats,
    moment: Floats,
    ridge: float,
    *,
    towards: Floats | None = None,
    samples: int | None = None,
) -> Floats:
    """Return argmin_W ``|F W - Y|^2 + ridge |W - towards|^2`` from ``F'F`` and ``F'Y``."""
    rhs = moment if towards is None else moment + ridge * towards
    return Factor.of(gram, ridge, samples=samples).solve(rhs)


def least_squares(rows: Floats, targets: Floats, ridge: float) -> Floats:
    """Return argmin_W ``|rows W - targets|^2 + ridge |W|^2``, in the cheaper of the two forms.

    With fewer rows than features the dual form ``rows' (rows rows' + ridge I)^-1 targets`` never
    makes a matrix of features by features.

    Examples
    --------
    >>> rows, targets = np.array([[1.0, 0.0, 1.0]]), np.array([[3.0]])
    >>> least_squares(rows, targets, 1.0).round(12).ravel()
    array([1., 0., 1.])
    """
    count, width = rows.shape
    flops.add(2 * count * width * (min(count, width) + targets.shape[1]))
    with single_threaded_blas():
        if count < width:
            inner = Factor.of(rows @ rows.T, ridge, samples=count).solve(targets)
            weights: Floats = rows.T @ inner
            return weights
        return ridge_solve(rows.T @ rows, rows.T @ targets, ridge, samples=count)


def unpack_symmetric(packed: Array, width: int) -> Floats:
    """Return the symmetric float64 matrix whose upper triangle, row by row, is `packed`."""
    matrix = np.empty((width, width))
    start = 0
    for i in range(width):
        row = packed[start : start + width - i]
        matrix[i, i:] = row
        matrix[i:, i] = row
        start += width - i
    return matrix


def require_ridge(ridge: float) -> None:
    """Refuse a ridge that is negative or not a number."""
    if not ridge >= 0 or not np.isfinite(ridge):
        raise SolveError(f"ridge = {ridge} is not a weight; use a number > 0")


def _singular(width: int, ridge: float, samples: int | None) -> SolveError:
    count = "" if samples is None else f"{samples} samples, "
    return SolveError(
        f"the Gram matrix is singular ({count}{width} features, ridge = {ridge:g}); "
        "use a larger ridge"
    )
