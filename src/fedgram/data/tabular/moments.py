"""Mean and deviation of everybody's columns, from one tiny exact sum.

Each site sends, for each column of numbers, how many values it has, their sum and the sum of their
squares: integers, on the fixed point that the schema declares. What comes of their sum is the same
to the last digit however rows are spread over sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.samples import Array, Floats
from fedgram.data.tabular.columns import NumberColumn
from fedgram.data.tabular.reader import Table
from fedgram.data.tabular.schema import Schema
from fedgram.errors import DataError, ExactnessError, MismatchError

_ROOT_BITS = 64  # of a square root before it is rounded to a float


def _none() -> Array:
    return np.zeros(0, np.int64)


@codec.register("Moments/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Moments(Additive):
    """Number, sum and sum of squares of the values of some columns, in steps of a fixed point.

    Parameters
    ----------
    count
        How many values each column has.
    total, squares
        Their sums and sums of squares.
    columns
        The columns' names.
    levels
        The largest value there can be in each column.
    schema
        Digest of the schema; moments of different schemas refuse to add.

    Examples
    --------
    >>> schema = Schema(
    ...     label="outcome",
    ...     classes=("no", "yes"),
    ...     columns={"age": NumberColumn(range=(0.0, 120.0), step=1.0)},
    ... )
    >>> north = Table(name="north.csv", columns={"age": [20, 30], "outcome": ["no", "yes"]})
    >>> south = Table(name="south.csv", columns={"age": [70], "outcome": ["no"]})
    >>> one, two = measured(schema, [north]), measured(schema, [south])
    >>> (one + two).count, (one + two).total, (one + two).squares
    (array([3]), array([120]), array([6200]))
    >>> settled(schema, one + two).columns["age"].mean
    40.0
    """

    count: Array = field(default_factory=_none)
    total: Array = field(default_factory=_none)
    squares: Array = field(default_factory=_none)
    columns: tuple[str, ...] = schema_field(default=())
    levels: tuple[int, ...] = schema_field(default=())
    schema: str = schema_field(default="")

    def __post_init__(self) -> None:
        for array in (self.count, self.total, self.squares):
            if array.shape != (len(self.columns),) or array.dtype != np.int64:
                raise DataError("moments need one integer per column; measure the table again")
        for name, count, levels in zip(self.columns, self.count, self.levels, strict=True):
            most = (2**63 - 1) // max(1, levels) ** 2
            if abs(int(count)) > most:
                raise ExactnessError(
                    f"a sum over {count} values of {name!r} might not be exact: its fixed point "
                    f"holds {most}; declare a larger step"
                )

    def lacks_schema(self) -> bool:
        return not self.schema

    @classmethod
    def of(cls, schema: Schema, values: Sequence[Floats]) -> Self:
        """Return the moments of the values of the columns that are pending in a schema."""
        pending = schema.pending
        fixed = [number.fixed(v) for number, v in zip(pending.values(), values, strict=True)]
        return cls(
            count=np.array([len(column) for column in fixed], np.int64),
            total=np.array([column.sum() for column in fixed], np.int64),
            squares=np.array([column @ column for column in fixed], np.int64),
            columns=tuple(pending),
            levels=tuple(number.levels for number in pending.values()),
            schema=schema.digest,
        )

    def require_possible(self) -> None:
        """Refuse sums that no values could have."""
        for name, *numbers in zip(
            self.columns, self.count, self.total, self.squares, self.levels, strict=True
        ):
            count, total, squares, levels = map(int, numbers)
            if not (0 <= total <= count * levels and squares <= levels * total):
                raise DataError(f"the sums of {name!r} do not fit its range; measure again")
            if total**2 > count * squares:
                raise DataError(f"the sums of {name!r} contradict each other; measure again")


@codec.register("Measured/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """What a site hands over before features are made: its moments, under its name.

    Examples
    --------
    >>> codec.decode(codec.encode(Measured(client="north", moments=Moments()))).client
    'north'
    """

    client: str
    moments: Moments


def measured(schema: Schema, tables: Iterable[Table]) -> Moments:
    """Return the moments of a site's rows, test rows left out; rows that do not fit are refused."""
    total = Moments.zero()
    for table in tables:
        schema.codes(table)  # what is wrong with the classes is better known now than later
        values, kept = schema.read(table), table.learnt()
        total += Moments.of(schema, [values[name][kept] for name in schema.pending])
    return total


def joined(schema: Schema, parts: Iterable[Measured]) -> Moments:
    """Return the sum of what sites measured; a site of another schema is refused by name."""
    # Nothing yet, but with this schema's columns: a message that has others does not add to it.
    total = Moments.of(schema, [np.zeros(0) for _ in schema.pending])
    seen: set[str] = set()
    for part in parts:
        if part.client in seen:
            raise MismatchError(f"client {part.client}: two files have its sums; leave one out")
        seen.add(part.client)
        if part.moments.schema != schema.digest:
            raise MismatchError(
                f"client {part.client}: measured its table by another schema; measure it again "
                "with this one"
            )
        try:
            part.moments.require_possible()
            total += part.moments
        except (DataError, ExactnessError, MismatchError) as error:
            raise type(error)(f"client {part.client}: {error}") from error
    return total


def settled(schema: Schema, total: Moments) -> Schema:
    """Return the schema with mean and deviation in it.

    A column without values, or with the same one everywhere, keeps the scale of its range.
    """
    columns = dict(schema.columns)
    for name, *numbers in zip(total.columns, total.count, total.total, total.squares, strict=True):
        number = schema.pending[name]
        mean, deviation = _mean_and_deviation(number, *map(int, numbers))
        columns[name] = replace(number, mean=mean, deviation=deviation)
    return replace(schema, columns=columns)


def _mean_and_deviation(
    number: NumberColumn, count: int, total: int, squares: int
) -> tuple[float, float]:
    """Compute in fractions, and round each result once."""
    middle, spread = number.scale
    if not count:
        return middle, spread
    low, grain = Fraction((number.range or (0.0, 0.0))[0]), Fraction(number.grain)
    mean = float(low + grain * total / count)
    scatter = count * squares - total**2
    return mean, (float(grain * _root(scatter) / count) if scatter else spread)


def _root(whole: int) -> Fraction:
    """Return the square root of an integer to far more digits than a float has."""
    shift = 2 * _ROOT_BITS
    return Fraction(math.isqrt(whole << shift), 1 << _ROOT_BITS)
