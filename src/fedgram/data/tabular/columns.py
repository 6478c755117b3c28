"""Columns of a table schema: numbers (standardized) and categories (one-hot encoded)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgram.core.samples import Floats, Integers
from fedgram.data.tabular.reader import Table
from fedgram.errors import ConfigError, DataError

LEVELS = 2**16  # number of fixed-point steps of a range without a declared step
MOST_LEVELS = 2**24
_UNIFORM = math.sqrt(12)  # width of a range / standard deviation of the uniform distribution on it


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A column of numbers, standardized on a public scale.

    Values are standardized by `mean` and `deviation` if given. Otherwise by the mean and the
    standard deviation of the uniform distribution on `range`.

    Parameters
    ----------
    range
        Lowest and highest possible value, known without the data.
    step
        Step of the fixed point for sums; by default 1/65,536 of the range.
    mean, deviation
        Mean and standard deviation for standardization.
    outside
        Values outside the range: "refuse" (an error) or "clip".
    missing
        Missing values: "refuse" (an error), or "indicate": the mean, and a 1 in an indicator
        feature.

    Examples
    --------
    >>> age = NumberColumn(range=(0, 120), missing="indicate")
    >>> read = age.read(Table(name="a.csv", columns={"age": ["60", "", "120"]}), "age", {""})
    >>> age.encoded(read).round(3)
    array([[0.   , 0.   ],
           [0.   , 1.   ],
           [1.732, 0.   ]])
    """

    range: tuple[float, float] | None = None
    step: float | None = None
    mean: float | None = None
    deviation: float | None = None
    outside: Literal["refuse", "clip"] = "refuse"
    missing: Literal["refuse", "indicate"] = "refuse"

    def __post_init__(self) -> None:
        # Files write -0.0 as 0: without this the digest would change when a schema is read again.
        if self.range is not None:
            object.__setattr__(self, "range", tuple(map(without_negative_zero, self.range)))
        if self.mean is not None:
            object.__setattr__(self, "mean", without_negative_zero(self.mean))
        if (self.mean is None) != (self.deviation is None):
            raise ConfigError("expected both mean and deviation, or neither")
        if self.range is None and self.mean is None:
            raise ConfigError("expected a range = [low, high], or a mean and a deviation")
        if self.deviation is not None and not self.deviation > 0:
            raise ConfigError(f"deviation = {self.deviation:g}: use a number > 0")
        if self.range is None:
            return
        low, high = self.range
        if not (low < high and math.isfinite(high - low)):
            raise ConfigError(
                f"range = [{low:g}, {high:g}]: expected finite numbers with low < high"
            )
        if self.step is None and not (high - low) / LEVELS > 0:
            raise ConfigError(f"range = [{low:g}, {high:g}]: too narrow for {LEVELS} steps")
        if self.step is not None and not (
            self.step > 0 and 1 <= (high - low) / self.step <= MOST_LEVELS
        ):
            raise ConfigError(f"step = {self.step:g}: expected a range of 1 to {MOST_LEVELS} steps")

    @property
    def has_scale(self) -> bool:
        """Whether mean and deviation are given; otherwise they are pending."""
        return self.mean is not None

    @property
    def scale(self) -> tuple[float, float]:
        """Mean and standard deviation for standardization."""
        if self.mean is not None and self.deviation is not None:
            return self.mean, self.deviation
        low, high = self.range or (0.0, 0.0)
        return low + (high - low) / 2, (high - low) / _UNIFORM

    @property
    def grain(self) -> float:
        """The step of the fixed point for sums."""
        low, high = self.range or (0.0, 0.0)
        return self.step or (high - low) / LEVELS

    @property
    def levels(self) -> int:
        """The largest fixed-point value; zero is the low end of the range."""
        low, high = self.range or (0.0, 0.0)
        return round((high - low) / self.grain) if self.range else 0

    def labels(self, name: str) -> list[str]:
        """Return the names of the features."""
        return [name, *_missing_label(self, name)]

    def read(self, table: Table, name: str, blank: Collection[str]) -> Floats:
        """Return the column's values; missing values are NaN.

        Parameters
        ----------
        table
            The rows.
        name
            Name of the column.
        blank
            Words for missing values.
        """
        words = table.texts(name)
        numbers = {word: math.nan if word in blank else _number(word) for word in set(words)}
        values = np.array([numbers[word] for word in words], np.float64)
        if not np.isfinite(values).all():
            self._require_values(values, words, table, name, blank)
        return self._within(values, table, name)

    def _require_values(
        self, values: Floats, words: Sequence[str], table: Table, name: str, blank: Collection[str]
    ) -> None:
        for index in map(int, np.flatnonzero(~np.isfinite(values))):
            if words[index] not in blank:
                raise DataError(
                    f"{table.row(index)}: {name} = {words[index]!r} is not a finite number; "
                    "correct it, or list the word for missing values under 'blank' in the schema"
                )
            if self.missing == "refuse":
                raise _missing(table, index, name)

    def _within(self, values: Floats, table: Table, name: str) -> Floats:
        if self.range is None:
            return values
        low, high = self.range
        outside = np.flatnonzero((values < low) | (values > high))
        if len(outside) and self.outside == "refuse":
            raise DataError(
                f"{table.row(int(outside[0]))}: {name} = {values[outside[0]]:g} is outside its "
                f"range from {low:g} to {high:g}; correct it, agree on a wider range, or declare "
                "outside = 'clip'"
            )
        return np.clip(values, low, high)

    def encoded(self, values: Floats) -> Floats:
        """Return the features of values from `read`, one row per value."""
        centre, spread = self.scale
        with np.errstate(over="ignore"):  # infinite features are clipped by the grid
            standard = np.nan_to_num((values - centre) / spread, nan=0.0)
        if self.missing == "refuse":
            return standard[:, None]
        return np.stack([standard, np.isnan(values).astype(np.float64)], axis=1)

    def fixed(self, values: Floats) -> Integers:
        """Return the values that are not missing in fixed point: steps above the low end."""
        low, _ = self.range or (0.0, 0.0)
        fixed: Integers = np.rint((values[~np.isnan(values)] - low) / self.grain).astype(np.int64)
        return fixed


@dataclass(frozen=True, kw_only=True)
class CategoryColumn:
    """A column of categories, one-hot encoded.

    Parameters
    ----------
    values
        The categories, in the order of their features.
    outside
        Other values: "refuse" (an error), or "zero": all features are 0.
    missing
        Missing values: "refuse" (an error), or "indicate": a 1 in an indicator feature.

    Examples
    --------
    >>> sex = CategoryColumn(values=("f", "m"), missing="indicate")
    >>> read = sex.read(Table(name="a.csv", columns={"sex": ["m", "", "f"]}), "sex", {""})
    >>> sex.encoded(read)
    array([[0., 1., 0.],
           [0., 0., 1.],
           [1., 0., 0.]])
    """

    values: tuple[str, ...]
    outside: Literal["refuse", "zero"] = "refuse"
    missing: Literal["refuse", "indicate"] = "refuse"

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("values = []: expected at least one category")
        if len(set(self.values)) < len(self.values):
            raise ConfigError("values: a category is listed twice; list each once")
        for value in self.values:
            if value != value.strip():
                raise ConfigError(f"values: {value!r} has spaces around it; remove the spaces")

    def labels(self, name: str) -> list[str]:
        """Return the names of the features."""
        return [*(f"{name} = {value}" for value in self.values), *_missing_label(self, name)]

    def read(self, table: Table, name: str, blank: Collection[str]) -> Integers:
        """Return the category code of each row: ``len(values)`` if missing, -1 for other values.

        Parameters
        ----------
        table
            The rows.
        name
            Name of the column.
        blank
            Words for missing values; a word that is also listed as a category is a category.
        """
        words = table.texts(name)
        place = {value: code for code, value in enumerate(self.values)}
        others = set(words) - set(place)
        for word in others:
            place[word] = len(self.values) if word in blank else -1
        refused = {w for w in others if (self.missing if w in blank else self.outside) == "refuse"}
        if refused:
            index, word = next((i, word) for i, word in enumerate(words) if word in refused)
            if word in blank:
                raise _missing(table, index, name)
            raise DataError(
                f"{table.row(index)}: {name} = {word!r} is not among {_shortened(self.values)}; "
                "correct it, agree on a longer list, or declare outside = 'zero'"
            )
        return np.array([place[word] for word in words], np.int64)

    def encoded(self, values: Integers) -> Floats:
        """Return the features of values from `read`, one row per value."""
        width = len(self.values) + (self.missing == "indicate")
        encoded: Floats = (values[:, None] == np.arange(width)).astype(np.float64)
        return encoded


def without_negative_zero(value: float) -> float:
    """Return the number, 0.0 for -0.0.

    Examples
    --------
    >>> without_negative_zero(-0.0), without_negative_zero(-1.5)
    (0.0, -1.5)
    """
    return value if value else abs(value)


def class_codes(table: Table, label: str, classes: Sequence[str]) -> Integers:
    """Return the class code of each row; raise `DataError` at a class that is not listed.

    Parameters
    ----------
    table
        The rows.
    label
        Column of the class.
    classes
        The class list.
    """
    place = {name: code for code, name in enumerate(classes)}
    words = table.texts(label)
    for index, word in enumerate(words):
        if word not in place:
            problem = f"{label} = {word!r} is not among the classes {_shortened(classes)}"
            raise DataError(f"{table.row(index)}: {problem}; correct it, or remove the row")
    return np.array([place[word] for word in words], np.int64)


def _missing(table: Table, index: int, name: str) -> DataError:
    return DataError(
        f"{table.row(index)}: {name!r} is missing; fill it in, remove the row, or declare "
        "missing = 'indicate' in the schema"
    )


def _missing_label(column: NumberColumn | CategoryColumn, name: str) -> list[str]:
    return [f"{name} missing"] if column.missing == "indicate" else []


def _number(word: str) -> float:
    try:
        return float(word) if "_" not in word else math.nan
    except ValueError:
        return math.nan


def _shortened(names: Sequence[str]) -> str:
    """Return the first ten names as text, with the number of the others."""
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def is_number(word: str) -> bool:
    """Whether a cell holds a finite number."""
    return math.isfinite(_number(word))
