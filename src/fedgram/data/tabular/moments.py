"""Federated standardization of table columns: mean and standard deviation from exact sums.

For each column of numbers a site sends the count, the sum and the sum of squares of its values, as
integers in the fixed point of the schema. So mean and deviation do not depend on the partition of
the rows over sites, to the last digit.
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
from fedgram.runtime.text import clean_name

_ROOT_BITS = 64  # precision of a square root before it is rounded to a float


def _empty() -> Array:
    return np.zeros(0, np.int64)


@codec.register("Moments/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Moments(Additive):
    """Count, sum and sum of squares of the values of each column, in fixed point.

    Parameters
    ----------
    count
        Number of values in each column.
    total, squares
        Sum and sum of squares of the values in each column.
    columns
        The names of the columns.
    levels
        The largest possible value in each column.
    schema
        Digest of the schema; moments of different schemas do not add.

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
    >>> with_moments(schema, one + two).columns["age"].mean
    40.0
    """

    count: Array = field(default_factory=_empty)
    total: Array = field(default_factory=_empty)
    squares: Array = field(default_factory=_empty)
    columns: tuple[str, ...] = schema_field(default=())
    levels: tuple[int, ...] = schema_field(default=())
    schema: str = schema_field(default="")

    def __post_init__(self) -> None:
        for array in (self.count, self.total, self.squares):
            if array.shape != (len(self.columns),) or array.dtype != np.int64:
                raise DataError(
                    f"moments: expected {len(self.columns)} int64 numbers, one per column, got "
                    f"{array.dtype} of shape {array.shape}; measure the table again"
                )
        for name, count, levels in zip(self.columns, self.count, self.levels, strict=True):
            most = (2**63 - 1) // max(1, levels) ** 2
            if abs(int(count)) > most:
                raise ExactnessError(
                    f"a sum over {count} values of {name!r} may not be exact: the maximum with its "
                    f"fixed point is {most}; declare a larger step"
                )

    def lacks_schema(self) -> bool:
        return not self.schema

    @classmethod
    def of(cls, schema: Schema, values: Sequence[Floats]) -> Self:
        """Return the moments of values of the pending columns of a schema."""
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

    def claimed_samples(self) -> int:
        return int(self.count.max(initial=0))

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        for name, *numbers in zip(
            self.columns, self.count, self.total, self.squares, self.levels, strict=True
        ):
            count, total, squares, levels = map(int, numbers)
            if not (0 <= total <= count * levels and squares <= levels * total):
                raise DataError(f"the sums of {name!r} do not fit its range; measure again")
            if total**2 > count * squares:  # Cauchy-Schwarz
                raise DataError(f"the sums of {name!r} contradict each other; measure again")


@codec.register("Measured/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """The moments of one site with the name of the site.

    Examples
    --------
    >>> codec.decode(codec.encode(Measured(client="north", moments=Moments()))).client
    'north'
    """

    client: str
    moments: Moments


def measured(schema: Schema, tables: Iterable[Table]) -> Moments:
    """Return the moments of a site's rows without test rows; invalid rows raise `DataError`."""
    total = Moments.zero()
    for table in tables:
        schema.codes(table)  # raises an error for invalid classes, before anything is sent
        values, mask = schema.read(table), table.training_mask()
        total += Moments.of(schema, [values[name][mask] for name in schema.pending])
    return total


def sum_measured(schema: Schema, parts: Iterable[Measured]) -> Moments:
    """Return the sum of the moments of all sites, which must have measured with this schema."""
    # A zero with the columns of this schema: moments with other columns do not add.
    total = Moments.of(schema, [np.zeros(0) for _ in schema.pending])
    clients: set[str] = set()
    for part in parts:
        client = clean_name(part.client, "client")
        if client in clients:
            raise MismatchError(f"client {client}: sums in two files; remove one of them")
        clients.add(client)
        if not isinstance(part.moments, Moments):
            raise DataError(f"client {client}: expected sums of columns; measure the table again")
        if part.moments.schema != schema.digest:
            raise MismatchError(
                f"client {part.client}: the table was measured with another schema; measure it "
                "again with this schema"
            )
        try:
            part.moments.validate()
            total += part.moments
        except (DataError, ExactnessError, MismatchError) as error:
            raise error.with_context(f"client {part.client}") from error
    return total


def with_moments(schema: Schema, total: Moments) -> Schema:
    """Return the schema with the mean and the deviation of each pending column.

    A column without values, or with equal values only, keeps the scale of its range.
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
    """Return mean and deviation, computed in exact fractions and rounded once each."""
    middle, spread = number.scale
    if not count:
        return middle, spread
    low, grain = Fraction((number.range or (0.0, 0.0))[0]), Fraction(number.grain)
    mean = float(low + grain * total / count)
    scatter = count * squares - total**2
    return mean, (float(grain * _root(scatter) / count) if scatter else spread)


def _root(whole: int) -> Fraction:
    """Return the square root of an integer, to more digits than a float has."""
    shift = 2 * _ROOT_BITS
    return Fraction(math.isqrt(whole << shift), 1 << _ROOT_BITS)
