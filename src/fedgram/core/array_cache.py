"""What a client makes of its samples once and uses in every round, in memory while they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary, finalize

from fedgram.core.samples import Array, Features


class ArrayCache:
    """Arrays made of features, kept with them as far as there is room.

    Whether one was kept changes no bit of a result, only the time until it is there.

    Parameters
    ----------
    most
        Bytes that are kept, of all clients of this process together; beyond that arrays are made
        again whenever they are asked for.

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
        self._held = 0  # counted, not added up: there may be many thousands of clients
        self._arrays: WeakKeyDictionary[Features, dict[Hashable, Array]] = WeakKeyDictionary()
        self._lock = threading.RLock()  # samples may go while this very thread holds it

    def __call__(self, features: Features, key: Hashable, make: Callable[[], Array]) -> Array:
        """Return what was kept under `key`, or make it."""
        with self._lock:
            found = self._arrays.get(features, {}).get(key)
        if found is not None:
            return found
        made = make()
        made.flags.writeable = False  # others will see it
        with self._lock:
            mine = self._arrays.setdefault(features, {})
            if key not in mine and self._held + made.nbytes <= self._most:
                mine[key] = made
                self._held += made.nbytes
                finalize(features, self._release, made.nbytes).atexit = False
        return made

    def _release(self, size: int) -> None:
        with self._lock:
            self._held -= size
