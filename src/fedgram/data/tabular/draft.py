"""A first draft of a schema, from one table: for people to review, or for that table alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fedgram.data.tabular.columns import LEVELS, CategoryColumn, NumberColumn, is_number
from fedgram.data.tabular.moments import measured, settled
from fedgram.data.tabular.reader import SPLIT, Table, read_tables
from fedgram.data.tabular.schema import BLANK, Column, Schema
from fedgram.errors import DataError

MOST_VALUES = 100  # a column of more different words is hardly one of categories


@dataclass
class _Seen:
    """What has been seen of a column so far."""

    low: float = math.inf
    high: float = -math.inf
    numbers: bool = True
    decimals: int = 0
    gaps: bool = False
    words: set[str] = field(default_factory=set)

    def look(self, words: set[str]) -> None:
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
        """Return what the column seems to be, or why it is left out."""
        missing: Literal["indicate", "refuse"] = "indicate" if self.gaps else "refuse"
        if not self.words:
            return "holds nothing"
        if self.numbers and not math.isfinite(self.high - self.low):
            return "holds numbers too far apart"
        if self.numbers:
            low, high = roomy(self.low, self.high)
            # Where values are written with few digits, their sum can be that of what is written.
            step = 10.0**-self.decimals
            fits = 1 <= (high - low) / step <= LEVELS
            return NumberColumn(range=(low, high), step=step if fits else None, missing=missing)
        if len(self.words) > MOST_VALUES:
            return f"holds more than {MOST_VALUES} different words"
        return CategoryColumn(values=tuple(sorted(self.words)), missing=missing)


def draft(
    tables: Iterable[Table], *, label: str, without: Collection[str] = ()
) -> tuple[Schema, dict[str, str]]:
    """Return a schema that fits these rows, and the columns that were left out, with the reason.

    Test rows tell nothing but their classes. Ranges are rounded outwards to one digit, which
    leaves room for other sites and does not tell the very lowest and highest value.

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
    seen: dict[str, _Seen] = {}
    name = ""
    for table in tables:
        name = table.name
        for column in without:
            table.column(column)  # a misspelt one would stay in
        classes |= set(table.texts(label))
        kept = table.learnt()
        for column in table.columns:
            if column not in {label, SPLIT, *without}:
                words = set(itertools.compress(table.texts(column), kept))
                seen.setdefault(column, _Seen()).look(words)
    if not classes.isdisjoint(BLANK):
        raise DataError(f"{name}: some rows have no {label!r}; fill it in or remove them")
    found = {column: "has no name" if not column else s.column() for column, s in seen.items()}
    columns = {column: kind for column, kind in found.items() if not isinstance(kind, str)}
    if not columns:
        raise DataError(f"{name}: no columns are left for features; name the text column?")
    schema = Schema(label=label, classes=tuple(sorted(classes)), columns=columns)
    return schema, {column: why for column, why in found.items() if isinstance(why, str)}


def alone(
    path: Path, *, label: str, without: Collection[str] = ()
) -> tuple[Schema, dict[str, str]]:
    """Return a schema for one file alone, settled by its own rows, as `draft` does."""
    schema, left_out = draft(read_tables(path), label=label, without=without)
    # Test rows had no say in the draft, so they may not fit it.
    columns: dict[str, Column] = {
        name: replace(column, outside="clip")
        if isinstance(column, NumberColumn)
        else replace(column, outside="zero")
        for name, column in schema.columns.items()
    }
    schema = replace(schema, columns=columns)
    return settled(schema, measured(schema, read_tables(path))), left_out


def _decimals(word: str) -> int:
    """Return how many digits follow the point; many, where the number is written otherwise."""
    whole, _, fraction = word.partition(".")
    return len(fraction) if (whole.lstrip("+-") + fraction).isdecimal() else 99


def roomy(low: float, high: float) -> tuple[float, float]:
    """Round a range outwards, to one digit of its width.

    Examples
    --------
    >>> roomy(18.3, 91.7), roomy(0.052, 0.163), roomy(-3.0, -3.0), roomy(0.0, 0.0)
    ((10.0, 100.0), (0.0, 0.2), (-3.0, -2.0), (0.0, 1.0))
    """
    width = high - low or abs(low) or 1.0
    digits = -math.floor(math.log10(width))
    unit = 10.0**-digits
    bottom, top = math.floor(low / unit), math.ceil(high / unit)
    top = max(top, bottom + 1)
    # Rounding must not leave the ends outside.
    return min(low, round(bottom * unit, digits)), max(high, round(top * unit, digits))
