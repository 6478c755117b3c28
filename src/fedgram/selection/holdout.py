"""Held-out samples and cross-validation folds by content hash.

The fold of a sample follows from a hash of its features and class name. So the folds do not depend
on the partition over clients or on the order, and copies of a sample are in the same fold.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedgram.core.array_cache import ArrayCache
from fedgram.core.samples import Integers, Samples

PARTS = 10  # with one fold a tenth of the samples is held out
FOLDS = 5
SMALL = 2000  # with fewer samples a tenth is too few for selection
CHEAP = 20_000  # up to this number of weights, messages are small enough for all folds

_numbers = ArrayCache(most=2**26)


def content_hashes(samples: Samples) -> Integers:
    """Return a 64-bit hash of the features and the class name of each sample.

    Examples
    --------
    >>> from fedgram.core.samples import Features, Labels, Space
    >>> rows = Features(np.array([[5], [6], [5]], dtype=np.int8), Space(width=1, bound=127))
    >>> hashes = content_hashes(Samples(rows, Labels(np.array([0, 0, 0]), ("no", "yes"))))
    >>> bool(hashes[0] == hashes[2]), bool(hashes[0] == hashes[1])
    (True, False)
    """
    codes, classes = samples.labels.codes, samples.labels.classes
    cached = _numbers.rows(
        samples.features, classes, lambda: np.column_stack([codes, _hashed(samples)])
    )
    # Labels of the same rows may change between calls.
    return cached[:, 1] if np.array_equal(cached[:, 0], codes) else _hashed(samples)


def folds(samples: Samples, number: int) -> Integers:
    """Return the fold in which each sample is held out; -1 for never.

    With 0 folds no sample is held out, with one fold a tenth, with more folds each sample once.
    """
    if not number:
        return np.full(len(samples), -1, np.int64)
    part = (content_hashes(samples).view(np.uint64) % np.uint64(PARTS)).astype(np.int64)
    if number == 1:
        return np.where(part == 0, 0, -1)
    return part * number // PARTS


def folds_for(count: int, weights: int) -> int:
    """Return the number of folds for a number of samples and a number of weights of a head.

    Examples
    --------
    >>> folds_for(1000, 10**6), folds_for(50_000, 1281 * 100), folds_for(50_000, 1281 * 7)
    (5, 1, 5)
    """
    return FOLDS if count < SMALL or weights <= CHEAP else 1


def _hashed(samples: Samples) -> Integers:
    values = np.ascontiguousarray(samples.features.values)
    rows = values.astype(values.dtype.newbyteorder("<"), copy=False)
    named = [hashlib.blake2b(name.encode(), digest_size=16) for name in samples.labels.classes]
    found = np.empty(len(samples), "<u8")
    for i, code in enumerate(samples.labels.codes):
        each = named[code].copy()
        each.update(rows[i].data)
        found[i] = int.from_bytes(each.digest()[:8], "little")
    return found.astype(np.uint64).view(np.int64)
