"""A cache of arrays that are computed from a client's features once and used in every round."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Hashable
from operator import itemgetter
from weakref import WeakKeyDictionary, finalize

from fedgram.core.samples import Array, Features

_Piece = tuple[int, Array]  # the place of the first row in the block, and the rows
_first = itemgetter(0)


class ArrayCache:
    """Arrays computed from features, cached while the features exist and memory allows.

    The cache changes no bit of a result, only the time to compute the result.

    Parameters
    ----------
    most
        Maximum number of cached bytes, over all clients of this process. Arrays beyond this limit
        are computed again on each use.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.core.samples import Space
    >>> rows = Features(np.array([[2, -4]], dtype=np.int8), Space(width=2, bound=127))
    >>> doubles = ArrayCache(most=2**20)
    >>> first = doubles(rows, "twice", lambda: 2.0 * rows.values)
    >>> first, doubles(rows, "twice", lambda: 2.0 * rows.values) is first
    (array([[ 4., -8.]]), True)
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._held = 0  # cached bytes; a running count, because there may be thousands of clients
        self._arrays: WeakKeyDictionary[Features, dict[Hashable, Array]] = WeakKeyDictionary()
        self._rows: WeakKeyDictionary[Features, dict[Hashable, list[_Piece]]] = WeakKeyDictionary()
        # Reentrant: features can be garbage collected while this thread holds the lock.
        self._lock = threading.RLock()

    def __call__(self, features: Features, key: Hashable, make: Callable[[], Array]) -> Array:
        """Return the array cached under `key`, or make, cache and return a new one.

        Parameters
        ----------
        features
            The features that the array is computed from; the array is dropped with them.
        key
            Name of the array among those of the same features.
        make
            Computes the array.
        """
        with self._lock:
            found = self._arrays.get(features, {}).get(key)
        if found is not None:
            return found
        made = make()
        made.flags.writeable = False  # all users share this array
        with self._lock:
            mine = self._arrays.setdefault(features, {})
            if key not in mine and self._held + made.nbytes <= self._most:
                mine[key] = made
                self._held += made.nbytes
                finalize(features, self._release, made.nbytes).atexit = False
        return made

    def rows(self, features: Features, key: Hashable, make: Callable[[], Array]) -> Array:
        """Return an array with one row for each sample, which depends on this sample alone.

        Rows that were made for a block of samples serve every part of the block: those of the union
        of many clients serve each of these clients.

        Parameters
        ----------
        features, key, make
            As in a call of this object.

        Examples
        --------
        >>> import numpy as np
        >>> from fedgram.core.samples import Space
        >>> block = Features(np.array([[2], [-4], [6]], dtype=np.int8), Space(width=1, bound=127))
        >>> doubles = ArrayCache(most=2**20)
        >>> first = doubles.rows(block, "twice", lambda: 2.0 * block.values)
        >>> doubles.rows(block.take(slice(1, 3)), "twice", lambda: None)  # not made again
        array([[-8.],
               [12.]])
        """
        block, start = features.part_of or (features, 0)
        stop = start + len(features)
        with self._lock:
            pieces = self._rows.get(block, {}).get(key, [])
            place = bisect_right(pieces, start, key=_first) - 1
            if place >= 0:
                first, held = pieces[place]
                if stop <= first + len(held):
                    return held[start - first : stop - first]
        made = make()
        made.flags.writeable = False  # all users share this array
        with self._lock:
            if self._held + made.nbytes <= self._most:
                pieces = self._rows.setdefault(block, {}).setdefault(key, [])
                insort(pieces, (start, made), key=_first)
                self._held += made.nbytes
                finalize(block, self._release, made.nbytes).atexit = False
        return made

    def _release(self, size: int) -> None:
        with self._lock:
            self._held -= size
