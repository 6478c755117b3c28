"""A check of models and shared results that come from a file or from a server."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedgram.core.additive import Additive
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError, FedgramError

# What the checks of a value may raise if its parts are not of the declared types.
_UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def require_sound(value: Any, origin: str) -> None:
    """Raise an error, which starts with `origin`, for a value that no fedgram can have written.

    At any depth, floats must be finite, statistics must be possible sums of samples, and a value
    with a method `validate` must pass it. A sound model can still be a bad one.

    Examples
    --------
    >>> require_sound({"weights": np.array([1.0, np.nan])}, "north.safetensors")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: north.safetensors: weights: expected finite numbers, got others; \
create or copy the file again
    """
    try:
        _check(value, "")
    except FedgramError as error:
        raise DataError(f"{origin}: {error}; create or copy the file again") from error
    except _UNFIT as error:
        raise DataError(
            f"{origin}: parts of other types than declared ({error}); create or copy the file again"
        ) from error


def _check(value: Any, name: str) -> None:
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "fc" and not np.isfinite(value).all():
            raise DataError(f"{name or 'an array'}: expected finite numbers, got others")
    elif isinstance(value, Additive) and not isinstance(value, Statistics):
        value.validate_declared()  # a total: limits of a single client do not hold
    elif hasattr(value, "validate"):
        value.validate()
    for inside, item in _items(value):
        _check(item, inside or name)


def _items(value: Any) -> list[tuple[str, Any]]:
    """Return what is inside of a value, by name; parts of a sequence have no name."""
    if is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()]
    return [("", item) for item in value] if isinstance(value, list | tuple) else []
