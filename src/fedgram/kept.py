"""What a client makes of its samples once and uses in every round, in memory while they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

from fedgram.samples import Array, Features


class Kept:
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
    >>> from fedgram.samples import Space
    >>> rows = Features(np.array([[2, -4]], dtype=np.int8), Space(width=2, bound=127))
    >>> doubles = Kept(most=2**20)
    >>> first = doubles(rows, "twice", lambda: 2.0 * rows.values)
    >>> first, doubles(rows, "twice", lambda: 2.0 * rows.values) is first
    (array([[ 4., -8.]]), True)
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._arrays: WeakKeyDictionary[Features, dict[Hashable, Array]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __call__(self, features: Features, key: Hashable, make: Callable[[], Array]) -> Array:
        """Return what was kept under `key`, or make it."""
        with self._lock:
            found = self._arrays.get(features, {}).get(key)
        if found is not None:
            return found
        made = make()
        made.flags.writeable = False  # others will see it
        with self._lock:
            held = sum(array.nbytes for some in self._arrays.values() for array in some.values())
            if held + made.nbytes <= self._most:
                self._arrays.setdefault(features, {})[key] = made
        return made
