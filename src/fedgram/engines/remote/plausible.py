"""Whether an answer can be what it says it is: what a server checks before it adds anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any

import numpy as np

from fedgram.client import Client
from fedgram.errors import DataError, MismatchError
from fedgram.group import Additive
from fedgram.samples import Array, Features, Labels, Samples, Space
from fedgram.stats import Statistics, Tally
from fedgram.weighted import Weighted

_SLACK = 1e-9  # of a product of 64-bit integers taken in float64: far above its rounding


def example(
    step: Callable[[Client, Any], Any], broadcast: Any, space: Space, classes: tuple[str, ...]
) -> Any:
    """Return what a step makes of one sample: the form that every honest answer has.

    Every method works for a client of one sample with empty state, so the server can be one.
    """
    dtype = np.int8 if 0 < space.bound <= np.iinfo(np.int8).max else np.int64
    row = Features(np.ones((1, space.width), dtype if space.exact else np.float64), space)
    samples = Samples(row, Labels(np.zeros(1, np.int64), classes))
    return step(Client(id="", train=samples, valid=samples.take([]), state={}), broadcast)


def require_form(value: Any, like: Any) -> None:
    """Refuse a value that could not be added to one of the right form, saying where they part."""
    if type(value) is not type(like):
        raise MismatchError(f"a {type(value).__name__} where a {type(like).__name__} is wanted")
    if not isinstance(like, Additive):
        return
    value._refuse_disagreement(like)  # the very rules by which they add
    for field in dataclasses.fields(like):
        if field.metadata.get("agreed"):
            continue
        ours, theirs = getattr(like, field.name), getattr(value, field.name)
        if isinstance(ours, Additive):
            require_form(theirs, ours)
        else:
            _require_numbers(field.name, theirs, ours)


def _require_numbers(name: str, value: Any, like: Any) -> None:
    if isinstance(like, np.ndarray) != isinstance(value, np.ndarray):
        raise MismatchError(f"{name} is a {type(value).__name__}; an array is one, a number is not")
    found, wanted = np.asarray(value), np.asarray(like)
    if found.dtype != wanted.dtype:
        raise MismatchError(f"{name} holds {found.dtype.name}, not {wanted.dtype.name}")
    if found.shape != wanted.shape:
        raise MismatchError(f"{name} has the shape {found.shape}, not {wanted.shape}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise DataError(f"{name} holds values that are not finite numbers")


def require_possible(value: Any, like: Any) -> None:
    """Refuse sums that no samples could have given; `like` is what one sample gives.

    What passes may still be false: a site can lie within what is possible.
    """
    if isinstance(value, Statistics):
        _require_gram(value)
        if like.energy == like.count:  # targets are classes, one for each sample
            _require_class_sums(value)
    elif isinstance(value, Weighted):
        if (np.asarray(value.weight) < 0).any():
            raise DataError("weights below zero")
    elif isinstance(value, Tally):
        if not 0 <= value.correct <= value.samples or value.clients not in (0, 1):
            raise DataError("a tally that no single client can have")
    elif isinstance(value, Additive):
        for field in dataclasses.fields(value):
            require_possible(getattr(value, field.name), getattr(like, field.name))


def _require_gram(sums: Statistics) -> None:
    """Check a Gram matrix by what holds for every one, a row at a time."""
    diagonal, space = sums.diagonal(), sums.space
    if sums.count < 0 or (diagonal < 0).any():
        raise DataError("a Gram matrix with a negative count or sum of squares")
    if space.exact and (diagonal > sums.count * space.bound**2).any():
        raise DataError("a Gram matrix larger than its samples allow")
    sizes = np.sqrt(diagonal.astype(np.float64)) * (1 + _SLACK)
    for i, row in _rows(sums):
        if (np.abs(row) > sizes[i] * sizes[i:]).any():
            raise DataError("a Gram matrix with an entry larger than its diagonal allows")


def _require_class_sums(sums: Statistics) -> None:
    """Check the class sums against the Gram matrix, whose last row repeats their total.

    The last feature is the same for all samples.
    """
    if sums.energy != sums.count:
        raise DataError("class sums that do not count every sample once")
    if not (sums.space.exact and sums.space.inputs and sums.count):
        return
    square, rest = divmod(int(sums.diagonal()[-1]), sums.count)
    constant = isqrt(square)
    if rest or constant**2 != square:
        raise DataError("a constant feature that is not constant")
    if not constant:
        return
    last = np.array([row[-1] for _, row in _rows(sums)])
    if (last != sums.moment.sum(axis=1) * constant).any():
        raise DataError("a Gram matrix whose row of sums differs from the class sums")
    if (sums.moment[-1] < 0).any() or (sums.moment[-1] % constant).any():
        raise DataError("class counts that no samples can have")


def _rows(sums: Statistics) -> Iterator[tuple[int, Array]]:
    """Yield the rows of the upper triangle."""
    start, width = 0, sums.space.width
    for i in range(width):
        yield i, sums.gram[start : start + width - i]
        start += width - i
