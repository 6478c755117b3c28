"""Data frames of pandas and polars, recognized by their own methods; neither is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgram.errors import DataError


def is_frame(given: Any) -> bool:
    """Whether this is a data frame."""
    return hasattr(given, "columns") and hasattr(given, "dtypes")


def frame_columns(given: Any) -> tuple[str, ...]:
    """Return the names of the columns of a frame; none of anything else."""
    return tuple(map(str, given.columns)) if is_frame(given) else ()


def require_numbers(frame: Any, columns: Sequence[str], name: str) -> None:
    """Raise DataError that names a column of a frame that does not contain numbers.

    Parameters
    ----------
    frame
        The frame.
    columns
        Names of its columns.
    name
        Name of the argument in error messages.
    """
    for place, label in enumerate(columns):
        one = frame.iloc[:, place] if hasattr(frame, "iloc") else frame[label]
        found = np.asarray(one).dtype.kind
        numeric = found in "iufb" or (found not in "mM" and _numeric_objects(one))
        if not numeric:
            kind = str(one.dtype)
            raise DataError(
                f"{name}: column {label!r}: expected numbers, got {kind}; leave the column out, "
                "encode it as numbers, or make features of the whole table with 'fedgram features "
                "TABLE --label COLUMN'"
            )


def _numeric_objects(one: Any) -> bool:
    try:
        np.asarray(one, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return not any(isinstance(each, str) for each in np.asarray(one, dtype=object).tolist())


def require_in_memory(given: Any, name: str) -> None:
    """Raise DataError for a lazy frame, whose values are not known yet.

    Parameters
    ----------
    given
        What was given.
    name
        Name of the argument.
    """
    if hasattr(given, "collect") and not hasattr(given, "to_numpy"):  # of polars
        kind = type(given).__name__
        raise DataError(f"{name}: expected values, got a {kind}; use {name}.collect()")


def require_one_order(frame: Any, given: Any, name: str) -> None:
    """Raise DataError if the index of a series is that of the frame in another order.

    Rows belong together by their place. Labels or clients that were sorted or shuffled on their own
    would belong to other samples.

    Parameters
    ----------
    frame
        The features.
    given
        Labels or clients.
    name
        Name of the argument in error messages.
    """
    if not (hasattr(frame, "iloc") and hasattr(given, "iloc")):
        return
    index, own = frame.index, given.index
    if len(index) != len(own) or index.equals(own) or not (index.is_unique and own.is_unique):
        return
    if index.sort_values().equals(own.sort_values()):
        raise DataError(
            f"{name}: expected the index of X, got the same index in another order; use "
            f"{name}.loc[X.index] to bring the rows together, or {name}.to_numpy() if they belong "
            "together by their place"
        )


def require_unique(columns: Sequence[str], name: str) -> None:
    """Raise DataError for a name of two columns: models find columns by their names.

    Parameters
    ----------
    columns
        Names of the columns.
    name
        Name of the data.
    """
    if len(set(columns)) < len(columns):
        twice = next(label for k, label in enumerate(columns) if label in columns[:k])
        raise DataError(
            f"{name}: expected a different name for each column, got {twice!r} twice; rename one "
            "of them, or leave it out"
        )
