"""Whether sums can be those of samples: a test for positive semi-definite matrices.

For samples with features F and targets Y, the matrix ``[[F'F, F'Y], [Y'F, Y'Y]]`` is positive
semi-definite: its value for any weights is a sum of squares. A matrix with a negative direction is
the sum of no samples, and a model solved from it could be arbitrarily large there.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, lapack

from fedgram.core.kernels.choice import chosen
from fedgram.core.samples import Array, Floats
from fedgram.runtime.threads import single_threaded_blas

UNIT_ROUNDOFF = 2.0**-53
_STEPS = 8  # roundings per entry besides those of the two products


def shift(width: int, targets: int, trace: float, rounding: int = 0) -> float:
    """Return what is added to the diagonal before the factorization: ``2 m u trace``.

    Here ``m = width + targets + rounding + 8``, and u is the unit roundoff. Every matrix of true
    samples then passes. Cholesky's algorithm in floating point, in any order of summation, returns
    the factor of a matrix that differs from A by at most ``gamma sqrt(a_ii a_jj)`` in each entry,
    with ``gamma`` about ``(n + 1) u`` for n columns (Higham 2002, theorem 10.3; Demmel 1989). The
    Frobenius norm of such a difference is at most ``gamma trace(A)``. So it runs to its end if the
    smallest eigenvalue of A is at least ``gamma trace(A)`` (Rump 2006). Eliminating the targets
    first is part of the same algorithm, with one column for each target. Integers above 2^53 are
    rounded once, by at most ``u |a_ij|``, and float sums of N samples by ``N u sqrt(a_ii a_jj)``
    (`rounding`). The sum of these is below ``m u trace``; twice that is added.

    Conversely, if the factorization runs to its end, no eigenvalue of the scaled matrix is below
    ``-4 m u trace``: the shift, and as much again for the rounding of an accepted matrix.

    Parameters
    ----------
    width, targets
        Number of features and of target columns.
    trace
        Trace of the scaled matrix of features.
    rounding
        Number of roundings in each entry of the matrix itself.
    """
    return 2.0 * (width + targets + rounding + _STEPS) * UNIT_ROUNDOFF * trace


def lowest_accepted(width: int, targets: int) -> float:
    """Return a bound for the most negative eigenvalue of a scaled integer matrix that passes.

    Features are scaled to a sum of squares from 1/2 to 2, so the trace is at most ``2 width``.

    Examples
    --------
    >>> -1e-8 < lowest_accepted(1281, 100) < lowest_accepted(1281, 10) < 0
    True
    """
    return -2.0 * shift(width, targets, 2.0 * width)


def can_be_sums(packed: Array, moment: Array, squares: Array, *, rounding: int = 0) -> bool:
    """Return whether ``[[G, B], [B', diag(squares)]]`` is positive semi-definite, up to rounding.

    G and B must satisfy Cauchy-Schwarz, and a column of B whose square is 0 must be 0. Features
    are scaled by powers of two, which is exact, so that the test does not depend on their sizes.
    The cost is one factorization. All checks of `Statistics.validate` together took 1.2 times a
    solve at 1281 features and 1.0 times at 4096, or 0.26 and 0.61 times the Gram matrix of 5,000
    samples (``python -m benchmarks.core``).

    Parameters
    ----------
    packed
        The upper triangle of G, row by row.
    moment
        B, features by targets.
    squares
        Sum of the squares of each target column, or an upper bound.
    rounding
        Number of roundings in each entry, for sums that are not exact.

    Examples
    --------
    >>> rows, onehot = np.array([[1, 2], [3, 4]]), np.eye(2, dtype=int)
    >>> gram, moment = (rows.T @ rows)[np.triu_indices(2)], rows.T @ onehot
    >>> can_be_sums(gram, moment, np.ones(2)), can_be_sums(gram, moment, np.array([1, 0.9]))
    (True, False)
    """
    width, targets = moment.shape
    matrix, scales = _scaled(packed, width)
    trace = float(np.trace(matrix))
    lengths = np.sqrt(np.asarray(squares, np.float64))
    reciprocal = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    half = np.asfortranarray(moment * scales[:, None] * reciprocal)
    rest = matrix.T  # in Fortran order
    with single_threaded_blas():
        if targets:
            rest = blas.dsyrk(-1.0, half, beta=1.0, c=rest, lower=1, overwrite_c=1)
        rest[np.diag_indices(width)] += shift(width, targets, trace, rounding)
        _, failed = lapack.dpotrf(rest, lower=1, clean=0, overwrite_a=1)
    return not failed


def _scaled(packed: Array, width: int) -> tuple[Floats, Floats]:
    """Return the scaled matrix and the scale of each feature."""
    matrix = chosen().unpack(packed, width)
    diagonal = np.diagonal(matrix).copy()
    scales: Floats = np.ldexp(1.0, -(np.frexp(diagonal)[1] // 2))
    matrix *= scales
    matrix *= scales[:, None]
    empty = np.flatnonzero(diagonal == 0)
    matrix[empty, empty] = 1.0  # its row is zero: nothing depends on it
    return matrix, scales
