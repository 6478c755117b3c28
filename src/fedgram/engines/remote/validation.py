"""Whether an answer can be what it says it is: what a server checks before it adds anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any

import numpy as np

from fedgram.core.additive import Additive
from fedgram.core.samples import Array, Features, Labels, Samples, Space
from fedgram.core.statistics import Statistics
from fedgram.core.tally import FIXED_POINT_ONE, Tally
from fedgram.core.weighted import MOST_WEIGHT, REACH, SINGLE, Weighted
from fedgram.errors import DataError, MismatchError
from fedgram.federation.client import Client
from fedgram.federation.scoring import ScoreSums
from fedgram.training.pilots import FIXED_POINT_ONE as LOSS_ONE
from fedgram.training.pilots import MOST_LOSS, Loss

_SLACK = 1e-9  # of a product of 64-bit integers taken in float64: far above its rounding


def example(
    step: Callable[[Client, Any], Any],
    broadcast: Any,
    space: Space,
    classes: tuple[str, ...],
    state: dict[str, Any] | None = None,
) -> Any:
    """Return what a step makes of one sample: the form that every honest answer has.

    Every method works for a client of one sample with empty state, so the server can be one. What
    the step remembers is put into `state`.
    """
    state = {} if state is None else state
    dtype = np.int8 if 0 < space.bound <= np.iinfo(np.int8).max else np.int64
    row = Features(np.ones((1, space.width), dtype if space.exact else np.float64), space)
    samples = Samples(row, Labels(np.zeros(1, np.int64), classes))
    return step(Client(id="", train=samples, valid=samples.take([]), state=state), broadcast)


def require_same_schema(value: Any, like: Any) -> None:
    """Refuse a value that could not be added to one of the right form, saying where they part."""
    if type(value) is not type(like):
        raise MismatchError(f"a {type(value).__name__} where a {type(like).__name__} is wanted")
    if not isinstance(like, Additive):
        return
    value.require_same_schema(like)  # the very rules by which they add
    for field in dataclasses.fields(like):
        if field.metadata.get("agreed"):
            continue
        ours, theirs = getattr(like, field.name), getattr(value, field.name)
        if isinstance(ours, Additive):
            require_same_schema(theirs, ours)
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


def require_possible(value: Any, like: Any, *, classes: tuple[str, ...], among: int = 1) -> None:
    """Refuse sums that no samples could have given; `like` is what one sample gives.

    Targets may be something else than the samples' `classes`, such as codes of them. Of so many
    sites `among` whom it is, none may take all the room that their total has. What passes may still
    be false: a site can lie within what is possible.
    """
    if isinstance(value, Statistics):
        if value.count * among > value.space.most_samples:
            raise DataError("more samples than leave room for those of the others")
        _require_gram(value)
        if like.energy == like.count and like.classes == classes:  # one class for each sample
            _require_class_sums(value)
    elif isinstance(value, Weighted):
        _require_weights(value, among)
    elif isinstance(value, Tally):
        _require_tally(value)
    elif isinstance(value, Loss):
        _require_loss(value)
    elif isinstance(value, Additive):
        value.validate(sites=among)
        if isinstance(value, ScoreSums) and min(value.microseconds, value.flops) < 0:
            raise DataError("a scoring that took less than no time or work")
        for field in dataclasses.fields(value):
            ours, theirs = getattr(like, field.name), getattr(value, field.name)
            require_possible(theirs, ours, classes=classes, among=among)


def _require_weights(value: Weighted, among: int) -> None:
    """Check a weighted sum by what holds while nothing has grown beyond all bounds."""
    weight = np.asarray(value.weight)
    if (weight < 0).any() or (weight > MOST_WEIGHT // among).any():
        raise DataError("weights below zero, or that leave no room for those of the others")
    if value.diverged not in (0, 1):
        raise DataError("a client that diverged more than once")
    reach = weight.astype(np.float64) * REACH * 2**SINGLE
    if (np.abs(value.total.astype(np.float64)) > reach).any():
        raise DataError("a weighted sum beyond the reach of its weights")
    if (np.abs(value.fine.astype(np.float64)) > 2.0 ** (value.places - SINGLE - 1)).any():
        raise DataError("a rest of rounding that is more than half a step")


def _require_tally(value: Tally) -> None:
    """Check scores by what holds for those of one client."""
    tested = int(value.samples > 0)
    wrong = (
        value.clients != 1
        or value.clients_without_test != 1 - tested
        or not 0 <= value.correct <= value.samples
        or not all(0 <= n <= FIXED_POINT_ONE for n in (value.accuracies, value.global_accuracy_sum))
        or value.auroc_clients not in (0, 1)
        or not 0 <= value.aurocs <= value.auroc_clients * FIXED_POINT_ONE
        or (value.histogram < 0).any()
        or int(value.histogram.sum()) != tested
        or (value.class_correct < 0).any()
        or (value.class_correct > value.class_samples).any()
        or sum(value.class_samples.tolist()) != value.samples
        or sum(value.class_correct.tolist()) != value.correct
    )
    if wrong:
        raise DataError("a tally that no single client can have")


def _require_loss(value: Loss) -> None:
    """Check a validation loss by the least and the most that a sample can have."""
    most = value.samples * MOST_LOSS
    possible = (
        0 <= value.total <= most * LOSS_ONE and 0 <= value.squares <= most * MOST_LOSS * LOSS_ONE
    )
    if not possible:
        raise DataError("a validation loss that its samples cannot have")


def _require_gram(sums: Statistics) -> None:
    """Check a Gram matrix and the sums beside it by what holds for all, a row at a time."""
    diagonal, space = sums.diagonal(), sums.space
    if sums.count < 0 or sums.energy < 0 or (diagonal < 0).any():
        raise DataError("a Gram matrix with a negative count or sum of squares")
    if space.exact and (diagonal > sums.count * space.bound**2).any():
        raise DataError("a Gram matrix larger than its samples allow")
    sizes = np.sqrt(diagonal.astype(np.float64)) * (1 + _SLACK)
    for i, row in _rows(sums):  # as floats, for there is a 64-bit integer without magnitude
        if (np.abs(row.astype(np.float64)) > sizes[i] * sizes[i:]).any():
            raise DataError("a Gram matrix with an entry larger than its diagonal allows")
    length = float(np.sqrt(float(sums.energy)))
    if (np.abs(sums.moment.astype(np.float64)) > sizes[:, None] * length).any():
        raise DataError("class sums larger than the Gram matrix allows")


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
    if (np.abs(sums.moment) > sums.moment[-1] // constant * sums.space.bound).any():
        raise DataError("class sums larger than their samples allow")


def _rows(sums: Statistics) -> Iterator[tuple[int, Array]]:
    """Yield the rows of the upper triangle."""
    start, width = 0, sums.space.width
    for i in range(width):
        yield i, sums.gram[start : start + width - i]
        start += width - i
