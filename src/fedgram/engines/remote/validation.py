"""Checks of an answer before a server adds it: its layout, and whether its values are possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedgram.core.additive import Additive
from fedgram.core.samples import Features, Samples, Space
from fedgram.core.targets import labels_of
from fedgram.errors import DataError, MismatchError
from fedgram.federation.client import Client
from fedgram.federation.scoring import SiteScore


def example(
    step: Callable[[Client, Any], Any],
    broadcast: Any,
    space: Space,
    classes: tuple[str, ...],
    state: dict[str, Any] | None = None,
) -> Any:
    """Return a step's reply for one sample: it has the form of every honest answer.

    Every method works for a client of one sample with empty state, so the server can be one.
    """
    dtype = np.int8 if 0 < space.bound <= np.iinfo(np.int8).max else np.int64
    row = Features(np.ones((1, space.width), dtype if space.exact else np.float64), space)
    samples = Samples(row, labels_of(np.zeros(1, np.int64), classes))
    client = Client(
        id="", train=samples, valid=samples.take([]), state={} if state is None else state
    )
    return step(client, broadcast)


def require_same_schema(value: Any, like: Any) -> None:
    """Refuse a value that could not be added to one of the right form, saying where they part."""
    if type(value) is not type(like):
        raise MismatchError(f"expected {type(like).__name__}, got {type(value).__name__}")
    if not isinstance(like, Additive):
        return
    value.require_same_schema(like)  # the very rules by which they add
    for name in like.summed_fields():
        ours, theirs = getattr(like, name), getattr(value, name)
        if isinstance(ours, Additive):
            require_same_schema(theirs, ours)
        else:
            _require_numbers(name, theirs, ours)


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


def require_registered(
    name: str, value: Any, samples: int, most_weight: Callable[[int], int | None]
) -> None:
    """Raise an error for a value of more samples, or of more weight, than are registered.

    Parameters
    ----------
    name
        Name of the site.
    value
        Its reply.
    samples
        Registered number of samples of the site.
    most_weight
        Returns the largest weight of a site with a number of samples; None for no limit.
    """
    if isinstance(value, SiteScore):
        value = value.sums
    if not isinstance(value, Additive):
        return
    remedy = f"if the site confirms its number, change federation.samples.{name}"
    if (claimed := value.claimed_samples()) > samples:
        raise DataError(
            f"a contribution of {claimed} samples, and {samples} are registered; {remedy}"
        )
    most = most_weight(samples)
    if most is not None and (claimed := value.claimed_weight()) > most:
        raise DataError(
            f"a contribution of weight {claimed}, expected at most {most} with {samples} "
            f"registered samples; {remedy}"
        )


def require_possible(value: Any, *, among: int = 1) -> None:
    """Raise an error if no samples can give this value; `among` sites add to the same total."""
    if isinstance(value, Additive):
        value.validate(sites=among)
