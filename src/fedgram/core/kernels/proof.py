"""The self-test of a way: hard products, compared with 64-bit integers.

Libraries of int8 products go wrong on processors without the instructions: they add pairs of
products in 16 bits and saturate, or halve an operand. And a long sum wraps beyond 32 bits. So the
test has adjacent entries of full scale, of equal and of opposite signs, in odd shapes on both sides
of every block edge, and sums longer than 32 bits hold.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedgram.core.kernels.way import Int8, Int64, Way

# Terms by columns: registers, quads, panels, cache tiles, slices, and strips of whole products.
_SHAPES = ((1, 1), (3, 2), (4, 17), (5, 47), (9, 49), (63, 16), (450, 33), (513, 65), (1041, 7))
_WIDE = ((6, 289), (2, 577))
_LONGEST = 2**31 // 127**2 + 2  # terms of a sum that 32 bits do not hold, on the grid


def flaw(way: Way) -> str:
    """Return what a way gets wrong; empty if it is exact."""
    for matrix in _hard():
        terms, columns = matrix.shape
        wide = matrix.astype(np.int64)
        total: Int64 = np.arange(columns * (columns + 1) // 2)
        wanted = total + (wide.T @ wide)[np.triu_indices(columns)]
        way.gram(matrix, total)
        if not np.array_equal(total, wanted):
            return f"the Gram matrix of {terms} x {columns} integers is wrong"
        few = matrix[:, : min(columns, 50)]
        if not np.array_equal(way.product(few.T, matrix), few.astype(np.int64).T @ wide):
            return f"a product of {terms} terms is wrong"
        if terms <= 64 and not _others_agree(way, matrix):
            return f"class sums, a table or a transposed matrix of {terms} x {columns} is wrong"
    return ""


def _others_agree(way: Way, matrix: Int8) -> bool:
    wide = matrix.astype(np.int64)
    codes = np.arange(len(matrix)) % 3
    sums = np.zeros((3, matrix.shape[1]), np.int64)
    way.class_sums(matrix, codes, sums)
    table = np.random.default_rng(3).integers(-127, 128, 20_001).astype(np.int8)
    found = np.empty((len(matrix),) * 2, np.int8)
    way.looked_up(matrix, matrix.T, table, found)
    products = wide @ wide.T
    packed = np.zeros(len(matrix) * (len(matrix) + 1) // 2, np.int64)
    way.gram(matrix.T, packed)
    return (
        np.array_equal(sums, [wide[codes == code].sum(axis=0) for code in range(3)])
        and np.array_equal(found, table.take(products + 10_000, mode="clip"))
        and np.array_equal(way.unpack(packed, len(matrix)), products)
    )


def _hard() -> Iterator[Int8]:
    """Yield matrices whose products are as large, or as uneven, as they can be."""
    generator = np.random.default_rng(0)
    for terms, columns in (*_SHAPES, *_WIDE, (_LONGEST, 2)):
        matrix = generator.integers(-127, 128, (terms, columns))
        each = np.arange(terms)
        patterns = (
            np.full(terms, 127),
            np.full(terms, -127),
            np.where(each % 2, 127, -127),
            np.where(each % 4 < 2, 127, -127),
            127 * generator.choice([-1, 1], terms),
            np.full(terms, -128),  # not on the grid, and exact all the same
        )
        places = generator.permutation(columns)[: -(-columns * 3 // 4)]
        for number, place in enumerate(places):
            matrix[:, place] = patterns[number % len(patterns)]
        yield matrix.astype(np.int8)
