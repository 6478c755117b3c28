"""Bytes of the replies of many clients, of which only the kinds are encoded.

The codec writes an integer array in the smallest integer type that holds it, and a number in its
digits. Replies whose arrays have equal shapes and types, and whose numbers have equally many
digits, are equally long: one of each kind is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Integers

_TYPES = (np.int8, np.int16, np.int32, np.int64)  # those that the codec narrows to
_LIMITS = np.array([np.iinfo(kind).max for kind in _TYPES[:-1]])


def narrow_types(low: Integers, high: Integers) -> Integers:
    """Return the place of the smallest integer type that holds all numbers from low to high.

    Examples
    --------
    >>> narrow_types(np.array([-128, -129, 0]), np.array([5, 5, 2**40])).tolist()
    [0, 1, 3]
    """
    return np.maximum(np.searchsorted(_LIMITS, high), np.searchsorted(_LIMITS, -1 - low))


def types_of_rows(values: Array) -> Integers:
    """Return the place of the integer type of each row, for integers along the last axis."""
    return narrow_types(values.min(axis=-1, initial=0), values.max(axis=-1, initial=0))


def of_type(place: int, *shape: int) -> Integers:
    """Return integers of a shape that the codec writes in the type at a place."""
    found = np.zeros(shape, np.int64)
    found.flat[:1] = np.iinfo(_TYPES[place]).max
    return found


def total_size(kinds: Array, like: Callable[..., Any]) -> int:
    """Return the sum of the bytes of many replies.

    Parameters
    ----------
    kinds
        The kind of each reply, as a row of integers.
    like
        Returns a reply of a kind, given its integers.

    Examples
    --------
    >>> replies = [np.array([1, 2]), np.array([3, 400])]
    >>> kinds = types_of_rows(np.array(replies))[:, None]
    >>> total_size(kinds, lambda place: of_type(place, 2)) == sum(map(codec.counted, replies))
    True
    """
    found, numbers = np.unique(kinds, axis=0, return_counts=True)
    sizes = [codec.counted(like(*kind)) for kind in found.tolist()]
    return int(np.dot(numbers, np.array(sizes, np.int64)))
