"""Arrays from what people have: lists, numpy, pandas, polars, torch; errors name the argument.

Nothing but numpy is imported. Frames and tensors are recognized by their own methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Integers
from fedgram.data.frames import (
    frame_columns,
    is_frame,
    require_in_memory,
    require_numbers,
    require_unique,
)
from fedgram.errors import DataError
from fedgram.runtime.text import escaped

SHOWN = 5  # rows or values that an error lists
MOST_LABELS = 20  # integers with more different values than this may be numbers, not classes


@dataclass(frozen=True, eq=False, kw_only=True)
class Coded:
    """Labels as codes.

    Parameters
    ----------
    codes
        Class code of each sample.
    classes
        Name of each class.
    values
        The class labels as they were given, in the order of the codes.
    """

    codes: Integers
    classes: tuple[str, ...]
    values: Array


def matrix(given: Any, name: str) -> tuple[Array, tuple[str, ...]]:
    """Return numbers as an array, samples by features, and the column names of a frame.

    Parameters
    ----------
    given
        An array, a nested list, a data frame or a tensor.
    name
        Name of the argument in error messages.

    Examples
    --------
    >>> matrix([[1, 2], [3, 4]], "X")[0].shape
    (2, 2)
    >>> matrix([1, 2], "X")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: X: expected samples by features, got shape (2,); use X.reshape(-1, 1)
    for a single feature, or X.reshape(1, -1) for a single sample
    """
    require_in_memory(given, name)
    if type(given) is np.ndarray:  # the checks below read the values, which are large
        columns: tuple[str, ...] = ()
        array: Array = given
    elif (columns := frame_columns(given)) and is_frame(given):
        require_numbers(given, columns, name)
        array = _numpy(given, name)
    else:
        array = _numpy(given, name)
    if array.dtype.kind == "b":
        array = array.astype(np.int8)
    if array.dtype.kind == "O":
        array = _numbers(array, name)
    if array.dtype.names:
        raise DataError(
            f"{name}: expected samples by features, got a structured array; use a data frame, or "
            f"np.column_stack([{name}[field] for field in {name}.dtype.names])"
        )
    if array.ndim != 2:
        remedy = (
            f"; use {name}.reshape(-1, 1) for a single feature, or {name}.reshape(1, -1) for a "
            "single sample"
        )
        raise DataError(
            f"{name}: expected samples by features, got shape {array.shape}"
            + (remedy if array.ndim == 1 else "")
        )
    if not array.shape[1]:
        raise DataError(f"{name}: expected one column or more, got none")
    if array.dtype.kind not in "iuf":
        raise DataError(
            f"{name}: expected numbers, samples by features, got {array.dtype}; images, texts and "
            "tables with words become features by 'fedgram features'"
        )
    return array, columns


def require_finite(x: Array, name: str, columns: Sequence[str] = ()) -> None:
    """Raise DataError that names the rows and columns with NaN or infinity.

    Parameters
    ----------
    x
        Samples by features.
    name
        Name of the argument.
    columns
        Names of the columns, if they have any.
    """
    if x.dtype.kind != "f" or np.isfinite(x.sum(dtype=np.float64)):
        return
    bad = ~np.isfinite(x)
    rows, places = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
    if not len(rows):
        return  # finite numbers whose sum is not
    what = "NaN" if np.isnan(x).any() else "infinite values"
    named = [repr(columns[k]) if columns else str(k) for k in places[:SHOWN]]
    raise DataError(
        f"{name}: expected finite numbers, got {what} in {_listed('row', rows)} "
        f"(column{'s' * (len(places) > 1)} {', '.join(named)}"
        f"{', ...' if len(places) > SHOWN else ''}); remove these rows or fill the values in"
    )


def column(given: Any, name: str, length: int | None = None, other: str = "X") -> Array:
    """Return one value for each sample.

    Parameters
    ----------
    given
        An array, a list, a column of a frame, or a tensor.
    name
        Name of the argument.
    length
        The expected length; None for any.
    other
        Name of the argument with this length.
    """
    array = _numpy(given, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{name}: expected one value for each sample, got an array of shape {array.shape}"
        )
    if length is not None and len(array) != length:
        raise DataError(
            f"{name}: expected {length} values, one for each row of {other}, got {len(array)}"
        )
    return array


def names(given: Any, name: str, length: int) -> Array:
    """Return the name of each sample's client or domain as texts.

    Parameters
    ----------
    given
        One name for each sample; numbers are names too.
    name
        Name of the argument.
    length
        Number of samples.
    """
    array = column(given, name, length)
    missing = _missing(array)
    if missing.any():
        raise DataError(
            f"{name}: expected a name for each sample, got none in "
            f"{_listed('row', np.flatnonzero(missing))}; fill them in or remove these rows"
        )
    if array.dtype.kind in "iub":
        return array
    if array.dtype.kind == "f" and np.array_equal(array, np.rint(array)):
        return array.astype(np.int64)
    return np.array([str(each) for each in array.tolist()])


def coded(given: Any, name: str = "y", length: int | None = None) -> Coded:
    """Return labels of any kind as codes, in the order of the sorted labels.

    Parameters
    ----------
    given
        One label for each sample: texts, integers, booleans.
    name
        Name of the argument.
    length
        Number of samples.

    Examples
    --------
    >>> labels = coded(["dog", "cat", "dog"])
    >>> labels.codes, labels.classes
    (array([1, 0, 1]), ('cat', 'dog'))
    >>> coded([0.5, 1.25, 3.7])
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: y: expected class labels, got 3 different numbers such as 0.5, which
    look like a quantity; for regression use task="regression" (data.task), or FederatedRegressor
    """
    array = column(given, name, length)
    missing = _missing(array)
    if missing.any():
        raise DataError(
            f"{name}: expected a label for each sample, got none in "
            f"{_listed('row', np.flatnonzero(missing))}; remove these rows"
        )
    if array.dtype.kind in "OUS":
        array = _words(array, name)
    values, codes = np.unique(array, return_inverse=True)
    require_classes(values, len(array), name)
    if array.dtype.kind == "f":  # whole numbers: 1.0 is the class "1"
        texts = [str(int(value)) for value in values.tolist()]
    else:
        texts = [str(value) for value in values.tolist()]
    return Coded(codes=codes.astype(np.int64), classes=tuple(texts), values=values)


def outputs(given: Any, name: str, length: int) -> tuple[Array, tuple[str, ...]]:
    """Return the numeric outputs of a regression, (samples, outputs), and their names.

    Parameters
    ----------
    given
        A number for each sample, or a row of numbers.
    name
        Name of the argument.
    length
        Number of samples.

    Examples
    --------
    >>> outputs([1.5, 2.0], "y", 2)
    (array([[1.5],
           [2. ]]), ('y',))
    """
    if hasattr(given, "columns"):
        values, found = matrix(given, name)
    else:
        single = getattr(given, "name", None)
        array = _numpy(given, name)
        if array.dtype.kind in "OUSb" and not _are_numbers(array):
            raise DataError(
                f"{name}: expected numbers for a regression, got {_kind(array)}; for classes leave "
                'task="regression" out'
            )
        values, _ = matrix(array[:, None] if array.ndim == 1 else array, name)
        count = values.shape[1]
        found = (str(single or name),) if count == 1 else tuple(f"{name}{k}" for k in range(count))
    if len(values) != length:
        raise DataError(
            f"{name}: expected {length} values, one for each row of X, got {len(values)}"
        )
    require_finite(values, name, found)
    require_unique(found, f"{name}: outputs")
    return values.astype(np.float64), found


def _are_numbers(array: Array) -> bool:
    """Whether an array of Python objects has numbers only; a missing one is refused later."""
    if array.dtype.kind != "O":
        return False
    kinds = {type(each) for each in array.ravel().tolist() if not _is_missing(each)}
    return all(issubclass(kind, Real | Decimal) and not issubclass(kind, bool) for kind in kinds)


def _kind(array: Array) -> str:
    return {"b": "booleans", "O": "objects"}.get(array.dtype.kind, "texts")


def require_two_classes(codes: Integers, classes: Sequence[str], name: str) -> None:
    """Raise DataError if all samples have one class.

    Parameters
    ----------
    codes
        Class codes.
    classes
        Names of the classes.
    name
        Name of the argument.
    """
    found = np.unique(codes)
    if len(found) < 2:
        if not len(found):
            raise DataError(f"{name}: expected samples of at least 2 classes, got no samples")
        raise DataError(
            f"{name}: expected at least 2 classes, got 1: all samples have one class, "
            f"{escaped(classes[found[0]])}; add samples of another class"
        )


def require_classes(values: Array, samples: int, name: str) -> None:
    """Raise DataError for labels that look like the numbers of a regression.

    Parameters
    ----------
    values
        The different labels, sorted.
    samples
        Number of samples.
    name
        Name of the argument.
    """
    if values.dtype.kind not in "iuf":
        return
    whole = values.dtype.kind in "iu" or bool(np.array_equal(values, np.rint(values)))
    count = len(values)
    codes = whole and count and values[-1] - values[0] + 1 == count  # one after the other
    if whole and count <= max(MOST_LABELS, samples // (2 if codes else 4)):
        return
    example = next((v for v in values.tolist() if v != int(v)), values[0])
    raise DataError(
        f"{name}: expected class labels, got {count} different numbers such as {example:g}, "
        'which look like a quantity; for regression use task="regression" (data.task), or '
        "FederatedRegressor"
    )


def _words(array: Array, name: str) -> Array:
    """Return labels of one type, so that they can be sorted."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "U":
        return array
    listed = array.tolist()
    kinds = {type(each) for each in listed}
    if kinds <= {bool, np.bool_} or all(issubclass(kind, int | float) for kind in kinds):
        return np.array(listed)
    if len(kinds) > 1 and any(issubclass(kind, str) for kind in kinds):
        found = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(
            f"{name}: expected labels of one type, got {found}; use "
            f"[str(label) for label in {name}] if they are names"
        )
    return np.array([str(each) for each in listed])


def _missing(array: Array) -> Array:
    if array.dtype.kind == "f":
        return np.isnan(array)
    if array.dtype.kind != "O":
        return np.zeros(len(array), bool)
    # A missing value of pandas differs from itself, or cannot be compared (NA).
    return np.array([_is_missing(each) for each in array.tolist()], bool)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _listed(word: str, rows: Sequence[int] | Integers) -> str:
    shown = ", ".join(str(int(row)) for row in rows[:SHOWN])
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"{word}{'s' * (len(rows) > 1)} {shown}{more}"


def _numbers(array: Array, name: str) -> Array:
    """Return an array of Python objects as float64."""
    if any(isinstance(each, str) for each in array.ravel().tolist()):
        raise DataError(f"{name}: expected numbers, got texts; {_FEATURES}")
    if array.ndim > 1:  # a missing value of pandas becomes NaN, which is then refused by its place
        array = np.where(_missing(array.ravel()).reshape(array.shape), np.nan, array)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{name}: expected numbers, got {_first_other(array)}; {_FEATURES}"
        ) from None


def _first_other(array: Array) -> str:
    """Return the type of the first value that is not a number."""
    for each in array.ravel().tolist():
        try:
            float(each)
        except (TypeError, ValueError):
            return type(each).__name__
    return "rows of different lengths"


_FEATURES = "images, texts and tables with words become features by 'fedgram features'"


def _numpy(given: Any, name: str) -> Array:
    """Return an array of anything that is a sequence of numbers or texts."""
    require_in_memory(given, name)
    if hasattr(given, "detach"):  # a tensor of torch, maybe on another device
        given = given.detach().cpu().numpy()
    elif hasattr(given, "to_numpy"):  # pandas, polars
        given = given.to_numpy()
    elif hasattr(given, "toarray"):  # a sparse matrix
        raise DataError(f"{name}: expected a dense array, got a sparse one; use {name}.toarray()")
    if isinstance(given, np.ma.MaskedArray):
        if np.ma.is_masked(given):
            raise DataError(
                f"{name}: expected an array without masked values; leave these rows out or fill "
                f"the values in ({name}.filled)"
            )
        given = given.data
    try:
        return np.asarray(given)
    except ValueError:
        raise DataError(
            f"{name}: expected rows of equal length, got rows of different lengths"
        ) from None
