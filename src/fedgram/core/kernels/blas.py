"""The way of float BLAS: integers as floats, in blocks whose sums are exact.

A float32 sum of products of integers is exact while every partial sum is at most 2^24, a float64
sum while every partial sum is at most 2^53. If in a block of rows the sum of squares of each column
is within this limit, the block's Gram matrix is exact: by Cauchy-Schwarz,
``|sum f_i f_j| <= sqrt(sum f_i^2 * sum f_j^2)``, for all partial sums in any order. Rows are cut
into such blocks, and the Gram matrices of the blocks are added in int64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.linalg import blas

from fedgram.core.kernels.way import MOST_TERMS, Array, Int8, Int64, Way, triangle_size
from fedgram.errors import ExactnessError
from fedgram.runtime import flops

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
EXACT_UP_TO = {FLOAT32: 2**24, FLOAT64: 2**53}
SHORTEST_FLOAT32_BLOCK = 512  # rows; for shorter blocks the additions cost more than float32 saves
MOST_BLOCK_ENTRIES = 2**22  # 16 MB in float32: the allocator reuses blocks of this size
STRIP = 64  # rows of a triangle that are added at a time


class Squares:
    """The running sum of the Gram matrices of float blocks: int64 for integers, else float64.

    Parameters
    ----------
    width
        Number of features.
    bound
        Largest magnitude of an integer feature; 0 for float features.
    """

    def __init__(self, width: int, bound: int) -> None:
        self._bound = bound
        self.dtype = block_dtype(bound)
        # Sums of float32 blocks stay in int32 while they fit: less memory traffic.
        narrow = bool(bound) and self.dtype == FLOAT32
        total = np.int64 if bound else np.float64
        self._square: Array = np.zeros((width, width), np.int32 if narrow else total)
        self._most_blocks = 2**31 // EXACT_UP_TO[FLOAT32] - 1 if narrow else 2**62
        self._room = self._most_blocks
        self._block_square = np.zeros((width, width), self.dtype, order="F")
        if bound:
            self_test(self.dtype)

    def add(self, values: Array, total: Array) -> None:
        """Add the Gram matrix of rows; where sums of blocks would not fit, they go to `total`."""
        for block in blocks(values, self._bound, self.dtype):
            if not self._room:
                self.fold(total)
            self._room -= 1
            self._block_square = _syrk(block, self._block_square)
            square, upper = self._square, self._block_square.T
            for i in range(0, len(square), STRIP):  # half the work, and cache-friendly
                square[i : i + STRIP, i:] += upper[i : i + STRIP, i:].astype(square.dtype)

    def fold(self, total: Array) -> None:
        """Add the sums of blocks to a packed triangle, and reset them."""
        width = len(self._square)
        for start in range(0, width, STRIP):
            stop = min(width, start + STRIP)
            upper = np.arange(start, width) >= np.arange(start, stop)[:, None]
            packed = slice(triangle_size(width, start), triangle_size(width, stop))
            total[packed] += self._square[start:stop, start:][upper]
        self._square.fill(0)
        self._room = self._most_blocks


class FloatBlas(Way):
    """Products by float32 BLAS, in blocks of rows."""

    name = "blas"

    def gram(self, rows: Int8, total: Int64) -> None:
        squares = Squares(rows.shape[1], _largest(rows))
        squares.add(rows, total)
        squares.fold(total)

    def product(self, left: Int8, right: Int8) -> Array:
        self_test(FLOAT32)
        count = left.shape[1]
        dtype = np.int32 if count <= MOST_TERMS else np.int64
        sums: Array = np.zeros((left.shape[0], right.shape[1]), dtype)
        terms = EXACT_UP_TO[FLOAT32] // (_largest(left) * _largest(right))
        for start in range(0, count, terms):
            part = slice(start, start + terms)
            found = gemm(left[:, part].astype(FLOAT32), right[part].astype(FLOAT32))
            sums += found.astype(dtype)
        return sums


def _largest(matrix: Int8) -> int:
    """Return the largest magnitude, at least 1."""
    return max(1, -int(matrix.min(initial=0)), int(matrix.max(initial=0)))


def made() -> Way:
    """Return this way, which every machine has."""
    return FloatBlas()


def block_dtype(bound: int) -> np.dtype[Any]:
    """Return the float type in which blocks of integers up to `bound` are multiplied fastest."""
    if bound and bound**2 * SHORTEST_FLOAT32_BLOCK <= EXACT_UP_TO[FLOAT32]:
        return FLOAT32
    return FLOAT64


def blocks(values: Array, bound: int, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield the rows in float blocks whose Gram matrices are exact, each as long as possible.

    Parameters
    ----------
    values
        Samples by features.
    bound
        Largest magnitude of an integer feature; 0 for float features.
    dtype
        Float type of the blocks.
    """
    most = max(1, MOST_BLOCK_ENTRIES // max(1, values.shape[1]))
    if not bound:
        for start in range(0, len(values), most):
            yield np.ascontiguousarray(values[start : start + most], dtype)
        return
    limit = EXACT_UP_TO[dtype]
    always_safe = min(limit // bound**2, most)
    pending: list[Array] = []
    energy = np.zeros(values.shape[1], np.float64)  # column sums of squares, exact below 2^53
    for start in range(0, len(values), always_safe):
        rows = values[start : start + always_safe].astype(dtype)
        more = np.einsum("ij,ij->j", rows, rows)
        full = sum(map(len, pending)) + len(rows) > most
        if pending and (full or (energy + more).max() > limit):
            yield _concatenated(pending)
            pending, energy = [], np.zeros_like(energy)
        pending.append(rows)
        energy += more
    if pending:
        yield _concatenated(pending)


@functools.cache
def self_test(dtype: np.dtype[Any]) -> None:
    """Raise `ExactnessError` if this machine's BLAS does not multiply integers exactly.

    A BLAS in a reduced-precision mode (TF32, bfloat16) would give wrong sums silently. The sums of
    the test block are close to the limit.
    """
    check(lambda rows: _syrk(rows, np.zeros((rows.shape[1],) * 2, dtype, order="F")).T, dtype)
    check(lambda rows: gemm(rows.T, rows), dtype)
    # A lift multiplies larger integers by signs: their highest bits must be correct too.
    wide = np.random.default_rng(1).integers(0, EXACT_UP_TO[dtype] // 64, (64, 64), endpoint=True)
    signs = np.where(np.random.default_rng(2).integers(0, 2, (64, 64)), 1, -1)
    if not np.array_equal(gemm(wide.astype(dtype), signs.astype(dtype)), wide @ signs):
        raise _inexact(dtype)


def check(gram: Callable[[Array], Array], dtype: np.dtype[Any]) -> None:
    """Raise `ExactnessError` if `gram` differs from int64 on a block close to the limit."""
    limit = EXACT_UP_TO[dtype]
    rows, width = 1040, 96
    top = int((limit // rows) ** 0.5)
    whole = np.random.default_rng(0).integers(top - top // 8, top, (rows, width), endpoint=True)
    whole[:, ::3] *= -1
    whole[0] = top
    upper = np.triu(gram(whole.astype(dtype)))
    if not np.array_equal(upper.astype(np.int64), np.triu(whole.T @ whole)):
        raise _inexact(dtype)


def _inexact(dtype: np.dtype[Any]) -> ExactnessError:
    return ExactnessError(
        f"this machine's BLAS does not multiply {dtype.name} integers exactly "
        "(a reduced-precision mode such as TF32 or bfloat16?); switch this mode off, or set "
        "grid.bits = 'off' for sums that are not exact"
    )


def _syrk(block: Array, out: Array) -> Array:
    """Return the lower triangle of block' block in Fortran order, written to `out`."""
    syrk = blas.ssyrk if block.dtype == FLOAT32 else blas.dsyrk
    result: Array = syrk(1.0, block.T, beta=0.0, c=out, lower=1, overwrite_c=1)
    return result


def block_matmul(left: Array, right: Array) -> Array:
    """Return ``left @ right`` in C order, by the same BLAS as `_syrk`, and count the work.

    NumPy has a BLAS of its own, whose idle threads would compete with those of SciPy's BLAS. Both
    operands may be transposed views.
    """
    flops.add(2 * left.shape[0] * left.shape[1] * right.shape[1])
    return gemm(left, right)


def gemm(left: Array, right: Array) -> Array:
    """Return ``left @ right`` as `block_matmul` does; the work is not counted."""
    gemm = blas.sgemm if left.dtype == FLOAT32 else blas.dgemm
    # BLAS works in Fortran order: right' left' in Fortran order is left right in C order. An
    # operand that is contiguous in the other order is passed transposed instead of copied.
    first, second = right.T, left.T
    flip_first, flip_second = not first.flags.f_contiguous, not second.flags.f_contiguous
    result: Array = gemm(
        1.0,
        first.T if flip_first else first,
        second.T if flip_second else second,
        trans_a=flip_first,
        trans_b=flip_second,
    )
    return result.T


def _concatenated(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
