"""Exact integer matrix products and Gram matrices.

Features of up to 8 bits are multiplied as int8 by the fastest way that this machine has (see
`fedgram.core.kernels`). Wider integers, and plain float features, are multiplied by float BLAS in
blocks of rows (see `fedgram.core.kernels.blas`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram.core.kernels.blas import (
    EXACT_UP_TO,
    FLOAT32,
    FLOAT64,
    MOST_BLOCK_ENTRIES,
    Squares,
    block_dtype,
    block_matmul,
    blocks,
    gemm,
    self_test,
)
from fedgram.core.kernels.choice import chosen
from fedgram.core.samples import Array, Floats, Integers
from fedgram.errors import ExactnessError
from fedgram.runtime import flops, memory
from fedgram.runtime.threads import single_threaded_blas

__all__ = [
    "EXACT_UP_TO",
    "FLOAT32",
    "FLOAT64",
    "MOST_BLOCK_ENTRIES",
    "Accumulator",
    "activated_matmul",
    "block_matmul",
    "exact_matmul",
    "gram_matrix",
    "require_gram",
    "self_test",
    "smaller_gram_matrix",
    "stored_dtype",
]

_MOST_INT8 = 127


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
        self._width, self._bound = width, bound
        self._gram: Array = np.zeros(width * (width + 1) // 2, total)
        self._sums: Array = np.zeros((classes, width), total)  # the moment, transposed
        self._squares = None if _is_int8(bound) else Squares(width, bound)

    def add(self, values: Array, codes: Integers) -> None:
        """Add rows with their class codes."""
        self.add_rows(values)
        flops.add(2 * values.size * len(self._sums))
        if self._squares is None:
            way = chosen(values.size * self._width)
            way.class_sums(values.astype(np.int8, copy=False), codes, self._sums)
        else:
            _add_class_sums(values, codes, self._sums, self._bound)

    def add_rows(self, values: Array) -> None:
        """Add rows to the Gram matrix only."""
        flops.add(values.size * (self._width + 1))
        if self._squares is None:
            chosen(values.size * self._width).gram(values.astype(np.int8, copy=False), self._gram)
        else:
            self._squares.add(values, self._gram)

    def take(self) -> tuple[Array, Array]:
        """Return the Gram's upper triangle, row by row, and the moment; reset both to zero."""
        if self._squares is not None:
            self._squares.fold(self._gram)
        taken = self._gram, np.ascontiguousarray(self._sums.T)
        # Not zeros_like, which writes the zeros: most totals are taken once.
        self._gram, self._sums = (
            np.zeros(sums.shape, sums.dtype) for sums in (self._gram, self._sums)
        )
        return taken


def require_gram(width: int, classes: int) -> None:
    """Raise an error if a Gram matrix would not fit in memory."""
    memory.require(
        24 * width**2 + 16 * width * classes,  # arrays for summing, then for solving
        f"a Gram matrix of {width} features and {classes} classes",
        "use a narrower lift or backbone",
    )


def stored_dtype(bound: int) -> np.dtype[Any]:
    """Return the type in which rows of integers up to `bound`, or of floats (0), are multiplied."""
    return np.dtype(np.int8 if _is_int8(bound) else np.float64)


def exact_matmul(values: Array, factors: Array, bound: int, *, longest: int = 0) -> Array:
    """Return the exact product ``values @ factors`` of integer matrices, as floats.

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
    dtype = _require_exact(values, bound, longest)
    if _is_int8(bound) and factors.dtype == np.int8:
        flops.add(2 * values.size * factors.shape[1])
        way = chosen(values.size * factors.shape[1])
        return way.product(values.astype(np.int8, copy=False), factors).astype(dtype)
    self_test(dtype)
    return block_matmul(values.astype(dtype, copy=False), factors.astype(dtype, copy=False))


def activated_matmul(
    values: Array, factors: Array, bound: int, table: Array, out: Array, *, longest: int = 0
) -> None:
    """Look up each entry of the exact product ``values @ factors`` in a table.

    Parameters
    ----------
    values
        Integers of magnitude at most `bound`, samples by features.
    factors
        Signs (+1 and -1), or integers, as int8; features by outputs.
    bound
        Largest magnitude of `values`.
    table
        An odd number of entries; the middle one is that of the product 0. Larger products have the
        last entry, smaller ones the first.
    out
        The result, samples by outputs.
    longest
        As of `exact_matmul`.
    """
    if _is_int8(bound) and table.dtype == np.int8:
        _require_exact(values, bound, longest)
        flops.add(2 * values.size * factors.shape[1])
        chosen(values.size * factors.shape[1]).looked_up(values, factors, table, out)
        return
    products = exact_matmul(values, factors, bound, longest=longest)
    products += len(table) // 2
    out[...] = table.take(products.astype(np.int64), mode="clip")


_TINY = 2**17  # multiplications of a product


def gram_matrix(rows: Array) -> Floats:
    """Return ``rows' rows`` as float64, exact for int8 rows; the caller counts the work.

    Examples
    --------
    >>> rows = np.array([[1, 2, 3]], np.int8)
    >>> gram_matrix(rows.T)
    array([[14.]])
    """
    if rows.dtype != np.int8:
        real = rows.astype(np.float64, copy=False)
        with single_threaded_blas():
            matrix: Floats = real.T @ real
        return matrix
    width = rows.shape[1]
    if rows.size * width <= _TINY:  # exact in any order; other ways take longer to begin
        self_test(FLOAT64)
        small = rows.astype(np.float64)
        with single_threaded_blas():
            return small.T @ small + 0.0  # no negative zeros
    packed = np.zeros(width * (width + 1) // 2, np.int64)
    way = chosen(rows.size * width)
    if rows.size:
        way.gram(rows, packed)
    return way.unpack(packed, width)


def smaller_gram_matrix(rows: Array) -> Floats:
    """Return ``rows rows'`` if there are fewer rows than columns, otherwise ``rows' rows``."""
    return gram_matrix(rows.T if len(rows) < rows.shape[1] else rows)


def _is_int8(bound: int) -> bool:
    return 0 < bound <= _MOST_INT8


def _require_exact(values: Array, bound: int, longest: int) -> np.dtype[Any]:
    """Return the float type that holds every product; raise `ExactnessError` if there is none."""
    reach = bound * (longest or values.shape[1])
    dtype = FLOAT32 if reach <= EXACT_UP_TO[FLOAT32] else FLOAT64
    if reach > EXACT_UP_TO[dtype]:
        raise ExactnessError(
            f"a product of {values.shape[1]} features up to {bound} would not be exact; "
            "use fewer grid.bits"
        )
    return dtype


def _add_class_sums(values: Array, codes: Integers, sums: Array, bound: int) -> None:
    """Add rows to the sums of their classes, in blocks as for the Gram matrix."""
    start = 0
    for block in blocks(values, bound, block_dtype(bound)):
        onehot = np.zeros((len(block), len(sums)), block.dtype)
        onehot[np.arange(len(block)), codes[start : start + len(block)]] = 1
        start += len(block)
        # Exact like the Gram matrix: |sum of f| <= sum of f^2 for integers.
        sums += gemm(onehot.T, block).astype(sums.dtype)
