"""Exact integer matrix products and Gram matrices, at the speed of float BLAS.

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

from fedgram.core.samples import Array, Integers
from fedgram.errors import ExactnessError
from fedgram.runtime import flops, memory

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
EXACT_UP_TO = {FLOAT32: 2**24, FLOAT64: 2**53}
SHORTEST_FLOAT32_BLOCK = 512  # rows; for shorter blocks the additions cost more than float32 saves
MOST_BLOCK_ENTRIES = 2**22  # 16 MB in float32: the allocator reuses blocks of this size
STRIP = 64  # rows of a triangle that are added at a time


class Accumulator:
    """The running Gram matrix and moment of a stream of rows.

    Memory is O(width squared) for any number of rows. Integer rows give int64 results that do not
    depend on the batches; float rows (``bound=0``) give float64 results.

    Parameters
    ----------
    width
        Number of features.
    classes
        Number of classes.
    bound
        Largest magnitude of an integer feature; 0 for float features.
    """

    def __init__(self, width: int, classes: int, bound: int) -> None:
        total = np.int64 if bound else np.float64
        require_gram(width, classes)
        self._bound = bound
        self._dtype = block_dtype(bound)
        # Sums of float32 blocks stay in int32 while they fit: less memory traffic.
        narrow = bool(bound) and self._dtype == FLOAT32
        self._square: Array = np.zeros((width, width), np.int32 if narrow else total)
        self._most_blocks = 2**31 // EXACT_UP_TO[FLOAT32] - 1 if narrow else 2**62
        self._room = self._most_blocks
        self._gram: Array = np.zeros(width * (width + 1) // 2, total)
        self._block_square = np.zeros((width, width), self._dtype, order="F")
        self._moment: Array = np.zeros((width, classes), total)
        if bound:
            self_test(self._dtype)

    def add(self, values: Array, codes: Integers) -> None:
        """Add rows with their class codes."""
        start = 0
        for block in blocks(values, self._bound, self._dtype):
            onehot = np.zeros((len(block), self._moment.shape[1]), self._dtype)
            onehot[np.arange(len(block)), codes[start : start + len(block)]] = 1
            start += len(block)
            # Exact like the Gram matrix: |sum of f| <= sum of f^2 for integers.
            self._moment += block_matmul(block.T, onehot).astype(self._moment.dtype)
            self.add_block(block)

    def add_block(self, block: Array) -> None:
        """Add one block of float rows, as `blocks` yields them, to the Gram matrix only."""
        flops.add(len(block) * len(self._square) * (len(self._square) + 1))
        self._block_square = _syrk(block, self._block_square)
        self._add_upper(self._block_square.T)

    def take(self) -> tuple[Array, Array]:
        """Return the Gram's upper triangle, row by row, and the moment; reset both to zero."""
        self._fold()
        taken = self._gram, self._moment
        self._gram, self._moment = (np.zeros(sums.shape, sums.dtype) for sums in taken)
        return taken

    def _add_upper(self, upper: Array) -> None:
        if not self._room:
            self._fold()
        self._room -= 1
        total = self._square
        for i in range(0, len(total), STRIP):  # by strips: half the work, and cache-friendly
            total[i : i + STRIP, i:] += upper[i : i + STRIP, i:].astype(total.dtype)

    def _fold(self) -> None:
        """Add the sums of blocks to the packed 64-bit total, and reset the sums of blocks."""
        start = 0
        for i, row in enumerate(self._square):
            self._gram[start : start + len(row) - i] += row[i:]
            start += len(row) - i
        self._square.fill(0)
        self._room = self._most_blocks


def require_gram(width: int, classes: int) -> None:
    """Raise an error if a Gram matrix would not fit in memory."""
    memory.require(
        24 * width**2 + 16 * width * classes,  # arrays for summing, then for solving
        f"a Gram matrix of {width} features and {classes} classes",
        "use a narrower lift or backbone",
    )


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


def exact_matmul(values: Array, factors: Array, bound: int, *, longest: int = 0) -> Array:
    """Return the exact product ``values @ factors`` of integer matrices.

    Parameters
    ----------
    values
        Integers of magnitude at most `bound`, samples by features.
    factors
        Signs (+1 and -1), or integers; features by outputs.
    bound
        Largest magnitude of `values`.
    longest
        Largest sum of magnitudes in a column of `factors`; by default that of signs. No partial
        sum exceeds `longest` times `bound`.
    """
    reach = bound * (longest or values.shape[1])
    dtype = FLOAT32 if reach <= EXACT_UP_TO[FLOAT32] else FLOAT64
    if reach > EXACT_UP_TO[dtype]:
        raise ExactnessError(
            f"a product of {values.shape[1]} features up to {bound} would not be exact; "
            "use fewer grid.bits"
        )
    self_test(dtype)
    return block_matmul(values.astype(dtype, copy=False), factors.astype(dtype, copy=False))


@functools.cache
def self_test(dtype: np.dtype[Any]) -> None:
    """Raise `ExactnessError` if this machine's BLAS does not multiply integers exactly.

    A BLAS in a reduced-precision mode (TF32, bfloat16) would give wrong sums silently. The sums of
    the test block are close to the limit.
    """
    before = flops.total()
    check(lambda rows: _syrk(rows, np.zeros((rows.shape[1],) * 2, dtype, order="F")).T, dtype)
    check(lambda rows: block_matmul(rows.T, rows), dtype)
    # A lift multiplies larger integers by signs: their highest bits must be correct too.
    wide = np.random.default_rng(1).integers(0, EXACT_UP_TO[dtype] // 64, (64, 64), endpoint=True)
    signs = np.where(np.random.default_rng(2).integers(0, 2, (64, 64)), 1, -1)
    if not np.array_equal(block_matmul(wide.astype(dtype), signs.astype(dtype)), wide @ signs):
        raise _inexact(dtype)
    flops.add(before - flops.total())  # the self-test does not count as a client's work


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
    """Return ``left @ right`` in C order, by the same BLAS as `_syrk`.

    NumPy has a BLAS of its own, whose idle threads would compete with those of SciPy's BLAS. Both
    operands may be transposed views.
    """
    gemm = blas.sgemm if left.dtype == FLOAT32 else blas.dgemm
    flops.add(2 * left.shape[0] * left.shape[1] * right.shape[1])
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
