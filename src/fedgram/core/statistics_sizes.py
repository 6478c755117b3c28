"""Bytes of the encoded statistics of many clients, without making the statistics.

The encoded size depends on the samples in three ways only: the integer type of the Gram matrix,
the integer type of the class sums, and the number of digits of the count. The largest entry of a
Gram matrix is on its diagonal, because ``|G_ij| <= max(G_ii, G_jj)``. So column sums of squares
and class sums give both types. One client of each kind is then measured by the codec itself.
"""

from __future__ import annotations

from functools import cached_property, lru_cache, partial

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Features, Integers, Labels, Space
from fedgram.core.statistics import Statistics

_TYPES = (np.int8, np.int16, np.int32, np.int64)  # those that the codec narrows to
_LIMITS = np.array([np.iinfo(kind).max for kind in _TYPES[:-1]])
_DIGITS = 10 ** np.arange(1, 19)  # the smallest numbers of 2, 3, ... digits


def statistics_sizes(
    features: Features, labels: Labels, owners: Integers, clients: int
) -> Integers:
    """Return for each client the number of bytes of its encoded `Statistics`.

    Parameters
    ----------
    features, labels
        The samples of all clients, on the grid.
    owners
        The client of each sample, from 0.
    clients
        Number of clients.

    Examples
    --------
    >>> from fedgram.core.samples import Space
    >>> rows = Features(np.array([[1, 2], [90, 4]], dtype=np.int8), Space(width=2, bound=127))
    >>> labels = Labels(np.array([0, 1]), ("no", "yes"))
    >>> statistics_sizes(rows, labels, np.array([0, 1]), 2).tolist() == [
    ...     codec.counted(Statistics.of(rows.take([k]), labels.take([k]))) for k in (0, 1)
    ... ]
    True
    """
    counts = np.bincount(owners, minlength=clients)
    groups = _Groups(features.values, labels.codes, owners)
    gram, moment = groups.types(clients)
    digits = np.searchsorted(_DIGITS, counts, side="right")
    kinds = (digits * len(_TYPES) + gram) * len(_TYPES) + moment
    _, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
    size = partial(_size, features.space, labels.classes)
    sizes = [size(int(digits[k]), int(gram[k]), int(moment[k])) for k in first]
    found: Integers = np.array(sizes, np.int64)[kind]
    return found


@lru_cache(maxsize=256)
def _size(space: Space, classes: tuple[str, ...], digits: int, gram: int, moment: int) -> int:
    """Return the bytes of encoded statistics with these integer types."""
    width, count = space.width, 10**digits
    sums = np.zeros(width * (width + 1) // 2, np.int64), np.zeros((width, len(classes)), np.int64)
    for zeros, kind in zip(sums, (gram, moment), strict=True):
        zeros.flat[:1] = np.iinfo(_TYPES[kind]).max
    like = Statistics(
        count=count, gram=sums[0], moment=sums[1], energy=count, space=space, classes=classes
    )
    return codec.counted(like)


class _Groups:
    """Rows in groups of one client and one class, sorted by client."""

    def __init__(self, values: Array, codes: Integers, owners: Integers) -> None:
        self._values = values
        order = _sorting(codes)
        self._order = order[_sorting(owners[order])]
        codes, owners = codes[self._order], owners[self._order]
        new = (np.diff(codes, prepend=-1) != 0) | (np.diff(owners, prepend=-1) != 0)
        self._starts = np.flatnonzero(new)
        self._owners = owners[self._starts]
        self._counts = np.diff(self._starts, append=len(codes))
        self._clients = np.flatnonzero(np.diff(self._owners, prepend=-1))
        self._last = values[self._order, -1].astype(np.int64)

    def types(self, clients: int) -> tuple[Integers, Integers]:
        """Return the integer types of each client's Gram matrix and class sums, as places."""
        found = np.zeros((2, clients), np.int64)
        if self._values.size:
            present = self._owners[self._clients]
            found[:, present] = self._gram_types(), self._moment_types()
        return found[0], found[1]

    def _gram_types(self) -> Integers:
        """Return the types of the largest column sums of squares."""
        one = np.add.reduceat(np.add.reduceat(self._last**2, self._starts), self._clients)
        largest = np.maximum.reduceat(self._largest, self._clients)
        rows = np.add.reduceat(self._counts, self._clients)
        low, high = np.maximum(one, largest**2), rows * largest**2
        return self._decided(low, high, np.append(self._starts[self._clients], len(self._last)), 2)

    def _moment_types(self) -> Integers:
        """Return the types of the largest class sums."""
        low = np.abs(np.add.reduceat(self._last, self._starts))
        low = np.where(self._counts == 1, self._largest, low)
        high = self._counts * self._largest
        by_group = self._decided(low, high, np.append(self._starts, len(self._last)), 1)
        types: Integers = np.maximum.reduceat(by_group, self._clients)
        return types

    @cached_property
    def _largest(self) -> Integers:
        """The largest magnitude in each group."""
        high, low = self._values.max(axis=1), self._values.min(axis=1)
        magnitudes = np.maximum(high.astype(np.int64), -low.astype(np.int64))
        largest: Integers = np.maximum.reduceat(magnitudes[self._order], self._starts)
        return largest

    def _decided(self, low: Integers, high: Integers, ends: Integers, power: int) -> Integers:
        """Return the types of the largest sums, which are computed only where bounds differ.

        Parameters
        ----------
        low, high
            Bounds of each largest sum.
        ends
            The rows of sum k are those from ``ends[k]`` to ``ends[k + 1]``.
        power
            Whether rows (1) or their squares (2) are summed.
        """
        types, most = _type(low), _type(high)
        for open_ in _pieces(np.flatnonzero(types < most), np.diff(ends)):
            types[open_] = _type(self._sums(open_, ends, power, int(high[open_].max())))
        return types

    def _sums(self, which: Integers, ends: Integers, power: int, most: int) -> Integers:
        from scipy.sparse import csr_array  # takes long to import

        starts, counts = ends[which], np.diff(ends)[which]
        pointers = np.append(0, np.cumsum(counts))
        places = np.arange(pointers[-1]) + np.repeat(starts - pointers[:-1], counts)
        dtype = _TYPES[max(1, int(_type(np.array(most))))]  # no int8: squares are made in it too
        rows = self._values[self._order[places]].astype(dtype)
        ones = np.ones(len(rows), dtype)
        choose = csr_array((ones, np.arange(len(rows)), pointers), shape=(len(which), len(rows)))
        sums = choose @ (rows * rows if power == 2 else rows)
        largest: Integers = sums.max(axis=1).astype(np.int64)
        return largest if power == 2 else np.maximum(largest, -sums.min(axis=1).astype(np.int64))


def _sorting(numbers: Integers) -> Integers:
    """Return the stable order of small integers, which NumPy sorts fastest in 16 bits."""
    narrow = np.uint16 if numbers.max(initial=0) < 2**16 else np.int64
    return np.argsort(numbers.astype(narrow), kind="stable")


_ROWS_AT_A_TIME = 2**14  # of sums that are computed: bounds their memory


def _pieces(which: Integers, counts: Integers) -> list[Integers]:
    """Return the same sums in pieces with a bounded number of rows, unless one sum has more."""
    if not len(which):
        return []
    piece = np.cumsum(counts[which]) // _ROWS_AT_A_TIME
    return np.split(which, np.flatnonzero(np.diff(piece)) + 1)


def _type(largest: Integers) -> Integers:
    """Return the places of the smallest types that hold these magnitudes."""
    return np.searchsorted(_LIMITS, largest)
