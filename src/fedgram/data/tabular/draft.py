"""A draft of a table's schema, inferred from its rows: for review, or for one file only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fedgram.data.ranges import rounded_outwards
from fedgram.data.tabular.columns import LEVELS, CategoryColumn, NumberColumn, is_number
from fedgram.data.tabular.moments import measured, with_moments
from fedgram.data.tabular.reader import SPLIT, Table, read_tables
from fedgram.data.tabular.schema import BLANK, Column, Schema
from fedgram.errors import DataError

MOST_VALUES = 100  # a column with more different words is not drafted as categories


@dataclass
class _ColumnSummary:
    """Range, decimals, missing values and distinct words of a column, over the rows read so far."""

    low: float = math.inf
    high: float = -math.inf
    numbers: bool = True
    decimals: int = 0
    gaps: bool = False
    words: set[str] = field(default_factory=set)

    def update(self, words: set[str]) -> None:
        self.gaps |= not words.isdisjoint(BLANK)
        words = words - set(BLANK)
        self.numbers &= all(map(is_number, words))
        if self.numbers and words:
            self.low = min(self.low, *map(float, words))
            self.high = max(self.high, *map(float, words))
            self.decimals = max(self.decimals, *map(_decimals, words))
        if len(self.words) <= MOST_VALUES:
            self.words |= words

    def column(self) -> Column | str:
        """Return the drafted column, or the reason to exclude the column."""
        missing: Literal["indicate", "refuse"] = "indicate" if self.gaps else "refuse"
        if not self.words:
            return "has no values"
        if self.numbers and not math.isfinite(self.high - self.low):
            return "has a range that is not finite"
        if self.numbers:
            low, high = rounded_outwards(self.low, self.high)
            # Values with few decimals are summed exactly as written.
            step = 10.0**-self.decimals
            fits = step > 0 and 1 <= (high - low) / step <= LEVELS
            if not (fits or (high - low) / LEVELS > 0):
                return f"has a range too narrow for {LEVELS} steps"
            return NumberColumn(range=(low, high), step=step if fits else None, missing=missing)
        if len(self.words) > MOST_VALUES:
            return f"has more than {MOST_VALUES} different words"
        return CategoryColumn(values=tuple(sorted(self.words)), missing=missing)


def draft(
    tables: Iterable[Table], *, label: str, without: Collection[str] = ()
) -> tuple[Schema, dict[str, str]]:
    """Return a schema that fits these rows, and the excluded columns with the reasons.

    Of test rows only the classes are used. Ranges are rounded outwards to one digit: other sites'
    values fit too, and the exact minimum and maximum stay private.

    Parameters
    ----------
    tables
        The rows.
    label
        Column of the class.
    without
        Columns to exclude.

    Examples
    --------
    >>> cells = {"age": [31, 78], "sex": ["f", "m"], "outcome": ["no", "yes"]}
    >>> schema, left_out = draft([Table(name="ward.csv", columns=cells)], label="outcome")
    >>> print(schema.toml())
    version = 1
    label = "outcome"
    classes = ["no", "yes"]
    anchor = 1
    blank = ["", "NA", "NaN", "nan", "null"]
    <BLANKLINE>
    [columns.age]
    range = [30, 80]
    step = 1
    <BLANKLINE>
    [columns.sex]
    values = ["f", "m"]
    <BLANKLINE>
    """
    classes: set[str] = set()
    summaries: dict[str, _ColumnSummary] = {}
    name = ""
    for table in tables:
        name = table.name
        for column in without:
            table.column(column)  # raises an error if misspelt
        classes |= set(table.texts(label))
        mask = table.training_mask()
        for column in table.columns:
            if column not in {label, SPLIT, *without}:
                words = set(itertools.compress(table.texts(column), mask))
                summaries.setdefault(column, _ColumnSummary()).update(words)
    if not classes.isdisjoint(BLANK):
        raise DataError(f"{name}: {label!r} is missing in some rows; fill it in or remove the rows")
    found = {name: "has no name" if not name else s.column() for name, s in summaries.items()}
    columns = {column: kind for column, kind in found.items() if not isinstance(kind, str)}
    if not columns:
        raise DataError(f"{name}: no feature columns; use --text for a text column")
    schema = Schema(label=label, classes=tuple(sorted(classes)), columns=columns)
    return schema, {column: why for column, why in found.items() if isinstance(why, str)}


def draft_for_file(
    path: Path, *, label: str, without: Collection[str] = ()
) -> tuple[Schema, dict[str, str]]:
    """Return a schema for one file only, with mean and deviation of its rows; see `draft`.

    Parameters
    ----------
    path
        The file.
    label
        Column of the class.
    without
        Columns to exclude.
    """
    schema, left_out = draft(read_tables(path), label=label, without=without)
    # The draft does not use test rows, so test values may be outside its ranges.
    columns: dict[str, Column] = {
        name: replace(column, outside="clip")
        if isinstance(column, NumberColumn)
        else replace(column, outside="zero")
        for name, column in schema.columns.items()
    }
    schema = replace(schema, columns=columns)
    return with_moments(schema, measured(schema, read_tables(path))), left_out


def _decimals(word: str) -> int:
    """Return the number of digits after the point; 99 for other notations, such as 1e-3."""
    whole, _, fraction = word.partition(".")
    return len(fraction) if (whole.lstrip("+-") + fraction).isdecimal() else 99
