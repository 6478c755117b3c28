"""What a way of multiplying int8 matrices offers: int8 in, exact integers out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]

# A sum of this many products of int8 numbers is below 2^31: (2^17 - 1) * 2^7 * 2^7 < 2^31.
MOST_TERMS = 2**17 - 1
_STRIP = 64  # rows of a triangle that are copied at a time


class Way(ABC):
    """One way of multiplying int8 matrices exactly.

    Sums of up to `MOST_TERMS` products fit in 32 bits. A way computes 32-bit sums of that length at
    most and adds them as 64-bit integers; so no sum wraps, whatever the entries are.

    Operands are any int8 matrices; transposed views are not copied.
    """

    name: str

    @abstractmethod
    def gram(self, rows: Int8, total: Int64) -> None:
        """Add the upper triangle of ``rows' rows``, row by row, to `total`."""

    @abstractmethod
    def product(self, left: Int8, right: Int8) -> Array:
        """Return ``left @ right`` as integers: int32, or int64 for more than `MOST_TERMS` terms."""

    def looked_up(self, left: Int8, right: Int8, table: Int8, out: Int8) -> None:
        """Write ``table[left @ right + middle]``, with the index clipped to the table, to `out`.

        Parameters
        ----------
        left, right
            The operands; at most `MOST_TERMS` terms.
        table
            An odd number of entries; the middle one is that of the product 0.
        out
            Left's rows by right's columns; its rows must be contiguous.
        """
        place = self.product(left, right)
        place += len(table) // 2
        out[...] = table.take(place, mode="clip")

    def class_sums(self, rows: Int8, codes: Int64, total: Int64) -> None:
        """Add each row to the total of its class.

        Parameters
        ----------
        rows
            Samples by features.
        codes
            Class codes.
        total
            Classes by features.
        """
        onehot = np.zeros((len(rows), len(total)), np.int8)
        onehot[np.arange(len(rows)), codes] = 1
        total += self.product(onehot.T, rows)

    def unpack(self, packed: Array, width: int) -> NDArray[np.float64]:
        """Return the symmetric float64 matrix whose upper triangle, row by row, is `packed`."""
        matrix = np.empty((width, width))
        for start in range(0, width, _STRIP):
            stop = min(width, start + _STRIP)
            upper = np.arange(start, width) >= np.arange(start, stop)[:, None]
            strip = matrix[start:stop, start:]
            strip[upper] = packed[triangle_size(width, start) : triangle_size(width, stop)]
            corner = strip[:, : stop - start]
            np.copyto(corner, corner.T, where=~upper[:, : stop - start])
            matrix[stop:, start:stop] = strip[:, stop - start :].T
        return matrix


def triangle_size(width: int, rows: int) -> int:
    """Return the number of entries in the first `rows` rows of an upper triangle.

    Examples
    --------
    >>> [triangle_size(4, rows) for rows in range(5)]
    [0, 4, 7, 9, 10]
    """
    return rows * width - rows * (rows - 1) // 2


def terms_of(total: int) -> Iterator[slice]:
    """Yield parts of the inner dimension whose sums fit in 32 bits."""
    for start in range(0, total, MOST_TERMS):
        yield slice(start, min(total, start + MOST_TERMS))


class WholeProducts(Way):
    """A way that multiplies whole matrices to int32: a Gram matrix is computed in strips.

    A strip of columns is multiplied by the columns from its first one on. So little is computed
    below the diagonal.
    """

    strip = 512  # columns

    @abstractmethod
    def _whole(self, left: Int8, right: Int8) -> NDArray[np.int32]:
        """Return ``left @ right`` of at most `MOST_TERMS` terms."""

    def gram(self, rows: Int8, total: Int64) -> None:
        width = rows.shape[1]
        for part in terms_of(len(rows)):
            for start in range(0, width, self.strip):
                stop = min(width, start + self.strip)
                block = self._whole(rows[part, start:stop].T, rows[part, start:])
                upper = np.arange(start, width) >= np.arange(start, stop)[:, None]
                total[triangle_size(width, start) : triangle_size(width, stop)] += block[upper]

    def product(self, left: Int8, right: Int8) -> Array:
        if left.shape[1] <= MOST_TERMS:
            return self._whole(left, right)
        sums = np.zeros((left.shape[0], right.shape[1]), np.int64)
        for part in terms_of(left.shape[1]):
            sums += self._whole(left[:, part], right[part])
        return sums
