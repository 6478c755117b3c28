"""What a column of a table means: a number or one of some categories, and how it is encoded."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgram.core.samples import Floats, Integers
from fedgram.data.tabular.reader import Table
from fedgram.errors import ConfigError, DataError

LEVELS = 2**16  # of a number whose step is not declared
MOST_LEVELS = 2**24
_UNIFORM = math.sqrt(12)  # width of a range over the deviation of values spread evenly in it


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A column of numbers, brought to a public scale.

    It is standardized by `mean` and `deviation` where they are given, and by its `range` where
    they are not: by the middle, and the deviation of values spread evenly from end to end.

    Parameters
    ----------
    range
        Lowest and highest value there can be, known without looking at the data.
    step
        Of the fixed point on which values are summed; by default the range in 65,536 steps.
    mean, deviation
        What values are standardized by.
    outside
        What to do with values out of the range: "refuse" or "clip".
    missing
        What to do with gaps: "refuse", or "indicate": the mean, and a 1 in a column of its own.

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
        if (self.mean is None) != (self.deviation is None):
            raise ConfigError("mean and deviation go together; give both, or neither")
        if self.range is None and self.mean is None:
            raise ConfigError("a number needs a range = [low, high], or a mean and a deviation")
        if self.deviation is not None and not self.deviation > 0:
            raise ConfigError(f"deviation = {self.deviation:g}: use a number > 0")
        if self.range is None:
            return
        low, high = self.range
        if not (low < high and math.isfinite(high - low)):
            raise ConfigError(
                f"range = [{low:g}, {high:g}]: the first must be well below the second"
            )
        if self.step is not None and not (
            self.step > 0 and 1 <= (high - low) / self.step <= MOST_LEVELS
        ):
            raise ConfigError(
                f"step = {self.step:g}: the range must be 1 to {MOST_LEVELS} steps wide"
            )

    @property
    def settled(self) -> bool:
        """Whether mean and deviation are given, so that nothing need be summed."""
        return self.mean is not None

    @property
    def scale(self) -> tuple[float, float]:
        """What is subtracted, and what is divided by."""
        if self.mean is not None and self.deviation is not None:
            return self.mean, self.deviation
        low, high = self.range or (0.0, 0.0)
        return low + (high - low) / 2, (high - low) / _UNIFORM

    @property
    def grain(self) -> float:
        """The step of the fixed point that values are summed on."""
        low, high = self.range or (0.0, 0.0)
        return self.step or (high - low) / LEVELS

    @property
    def levels(self) -> int:
        """The largest value on the fixed point, whose zero is the low end of the range."""
        low, high = self.range or (0.0, 0.0)
        return round((high - low) / self.grain) if self.range else 0

    def labels(self, name: str) -> list[str]:
        """Return what to call the features."""
        return [name, *_gap_label(self, name)]

    def read(self, table: Table, name: str, blank: Collection[str]) -> Floats:
        """Return the column's values, NaN where they are missing."""
        words = table.texts(name)
        numbers = {word: math.nan if word in blank else _number(word) for word in set(words)}
        values = np.array([numbers[word] for word in words], np.float64)
        if not np.isfinite(values).all():
            self._refuse_gaps(values, words, table, name, blank)
        return self._within(values, table, name)

    def _refuse_gaps(
        self, values: Floats, words: Sequence[str], table: Table, name: str, blank: Collection[str]
    ) -> None:
        for index in map(int, np.flatnonzero(~np.isfinite(values))):
            if words[index] not in blank:
                raise DataError(
                    f"{table.row(index)}: {name} = {words[index]!r} is not a finite number; "
                    "repair it, or declare what stands for a gap ('blank' in the schema)"
                )
            if self.missing == "refuse":
                raise _gap(table, index, name)

    def _within(self, values: Floats, table: Table, name: str) -> Floats:
        if self.range is None:
            return values
        low, high = self.range
        outside = np.flatnonzero((values < low) | (values > high))
        if len(outside) and self.outside == "refuse":
            raise DataError(
                f"{table.row(int(outside[0]))}: {name} = {values[outside[0]]:g} is outside its "
                f"range from {low:g} to {high:g}; repair it, agree on a wider range, or declare "
                "outside = 'clip'"
            )
        return np.clip(values, low, high)

    def encoded(self, values: Floats) -> Floats:
        """Return the features of values that were read, one row each."""
        centre, spread = self.scale
        with np.errstate(over="ignore"):  # what is too large for a float is cut at the clip
            standard = np.nan_to_num((values - centre) / spread, nan=0.0)
        if self.missing == "refuse":
            return standard[:, None]
        return np.stack([standard, np.isnan(values).astype(np.float64)], axis=1)

    def fixed(self, values: Floats) -> Integers:
        """Return values that are not missing as integers, in steps from the low end."""
        low, _ = self.range or (0.0, 0.0)
        fixed: Integers = np.rint((values[~np.isnan(values)] - low) / self.grain).astype(np.int64)
        return fixed


@dataclass(frozen=True, kw_only=True)
class CategoryColumn:
    """A column of categories: a feature for each, 1 where it is the row's and 0 elsewhere.

    Parameters
    ----------
    values
        The categories there are, in the order of their features.
    outside
        What to do with others: "refuse", or "zero": no feature is 1.
    missing
        What to do with gaps: "refuse", or "indicate": a feature of its own is 1.

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
            raise ConfigError("values = []: give the categories there are")
        if len(set(self.values)) < len(self.values):
            raise ConfigError("values: a category is listed twice; list each once")
        for value in self.values:
            if value != value.strip():
                raise ConfigError(f"values: {value!r} has spaces around it; leave them out")

    def labels(self, name: str) -> list[str]:
        """Return what to call the features."""
        return [*(f"{name} = {value}" for value in self.values), *_gap_label(self, name)]

    def read(self, table: Table, name: str, blank: Collection[str]) -> Integers:
        """Return the place of each value in the list: the one after for gaps, -1 for others."""
        words = table.texts(name)
        place = {value: code for code, value in enumerate(self.values)}
        others = set(words) - set(place)  # a listed word is a category, even if it is a blank one
        for word in others:
            place[word] = len(self.values) if word in blank else -1
        refused = {w for w in others if (self.missing if w in blank else self.outside) == "refuse"}
        if refused:
            index, word = next((i, word) for i, word in enumerate(words) if word in refused)
            if word in blank:
                raise _gap(table, index, name)
            raise DataError(
                f"{table.row(index)}: {name} = {word!r} is not among {_some(self.values)}; "
                "repair it, agree on a longer list, or declare outside = 'zero'"
            )
        return np.array([place[word] for word in words], np.int64)

    def encoded(self, values: Integers) -> Floats:
        """Return the features of values that were read, one row each."""
        width = len(self.values) + (self.missing == "indicate")
        encoded: Floats = (values[:, None] == np.arange(width)).astype(np.float64)
        return encoded


def class_codes(table: Table, label: str, classes: Sequence[str]) -> Integers:
    """Return the class code of each row; other classes are refused by name."""
    place = {name: code for code, name in enumerate(classes)}
    words = table.texts(label)
    for index, word in enumerate(words):
        if word not in place:
            what = f"{label} = {word!r} is not among the classes {_some(classes)}"
            raise DataError(f"{table.row(index)}: {what}; repair it, or remove the row")
    return np.array([place[word] for word in words], np.int64)


def _gap(table: Table, index: int, name: str) -> DataError:
    return DataError(
        f"{table.row(index)} has no {name!r}; fill it in, remove the row, or declare "
        "missing = 'indicate' in the schema"
    )


def _gap_label(column: NumberColumn | CategoryColumn, name: str) -> list[str]:
    return [f"{name} missing"] if column.missing == "indicate" else []


def _number(word: str) -> float:
    try:
        return float(word) if "_" not in word else math.nan
    except ValueError:
        return math.nan


def _some(names: Sequence[str]) -> str:
    """List names, but not hundreds of them."""
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def is_number(word: str) -> bool:
    """Whether a cell holds a finite number."""
    return math.isfinite(_number(word))
