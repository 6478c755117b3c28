"""Raw columns: standardization by exact sums over clients, and the check that a grid keeps them.

The grid scales every row to one size, which suits the features of a backbone. Columns of a table
have units of their own: the largest one would decide the size of the row, and the others would be
rounded away. So columns are standardized first.

Means and deviations come from integer sums (`ColumnSums`). They are the same for every partition of
the samples over clients, to the last bit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, require_shape, schema_field
from fedgram.core.layouts import name_and_digest
from fedgram.core.samples import Array, Features, Floats, Integers, Space
from fedgram.data.ranges import rounded_outwards
from fedgram.errors import DataError
from fedgram.features.grid import Grid
from fedgram.features.tabular import rescaled

LEVELS = 2**26  # fixed-point steps of a column's range
_HALF = 2**13  # squares are summed in two parts, so that no sum overflows
_CHECKED = 4096  # rows that are rounded to find lost columns
_MOST = 0.8  # a column is lost if this fraction of its values fall into one step
_MOST_LOST = 0.1  # fraction of the columns that may be lost
STANDARDIZED = "standardized"  # first word of the name of a backbone
_FAR = 5.0  # deviations from zero to the mean of a column
FEW = 8  # with fewer columns, the size of a row is a large part of what it says


def _empty() -> Integers:
    return np.zeros(0, np.int64)


@codec.register("ColumnSums/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ColumnSums(Additive):
    """Number of samples, and sum and sum of squares of each column in fixed point.

    Parameters
    ----------
    count
        Number of samples.
    total
        Sum of each column.
    high, low
        Sum of squares of each column, as ``high * 2^26 + low``.
    least, most
        Range of each column over all clients: zero and 2^26 of the fixed point. `Standardization`
        rounds it outwards, so that no sample's exact value is shared.

    Examples
    --------
    >>> x = np.array([[0.0, 5.0], [1.0, 6.0], [4.0, 9.0]])
    >>> ends = x.min(axis=0), x.max(axis=0)
    >>> north, south = ColumnSums.of(x[:1], *ends), ColumnSums.of(x[1:], *ends)
    >>> north + south == ColumnSums.of(x, *ends), (north + south).mean
    (True, array([1.66666667, 6.66666667]))
    """

    count: int = 0
    total: Integers = field(default_factory=_empty)
    high: Integers = field(default_factory=_empty)
    low: Integers = field(default_factory=_empty)
    least: tuple[float, ...] = schema_field(default=())
    most: tuple[float, ...] = schema_field(default=())

    @classmethod
    def of(cls, x: Array, least: Floats, most: Floats) -> ColumnSums:
        """Return the sums of the rows of one client.

        Parameters
        ----------
        x
            Samples by columns.
        least, most
            Range of each column over all clients.
        """
        width = np.where(most > least, most - least, 1.0)
        shares = np.clip((x.astype(np.float64) - least) / width, 0.0, 1.0)
        whole = np.rint(shares * LEVELS).astype(np.int64)
        squares = whole * whole
        return cls(
            count=len(x),
            total=whole.sum(axis=0),
            high=(squares // LEVELS).sum(axis=0),
            low=(squares % LEVELS).sum(axis=0),
            least=tuple(least.tolist()),
            most=tuple(most.tolist()),
        )

    def lacks_schema(self) -> bool:
        return not self.least

    def claimed_samples(self) -> int:
        return self.count

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        ends = (*self.least, *self.most)
        if len(self.least) != len(self.most) or not all(type(end) is float for end in ends):
            raise DataError("ColumnSums: expected the least and the most of each column as floats")
        for name in ("total", "high", "low"):
            sums = getattr(self, name)
            require_shape(f"ColumnSums.{name}", sums, len(self.least))
            if (sums < 0).any() or (sums > self.count * LEVELS).any():
                raise DataError(f"ColumnSums.{name}: expected from 0 to {LEVELS} per sample")

    @property
    def mean(self) -> Floats:
        """Mean of each column, computed in exact fractions and rounded once."""
        return np.array([float(mean) for mean, _ in self._moments()])

    @property
    def deviation(self) -> Floats:
        """Standard deviation of each column; 1 for a column of equal values."""
        return np.array([deviation for _, deviation in self._moments()])

    def _moments(self) -> list[tuple[Fraction, float]]:
        found = []
        for place, (least, most) in enumerate(zip(self.least, self.most, strict=True)):
            count, total = max(1, self.count), int(self.total[place])
            squares = int(self.high[place]) * LEVELS + int(self.low[place])
            step = (Fraction(most) - Fraction(least)) / LEVELS
            mean = Fraction(least) + step * Fraction(total, count)
            scatter = count * squares - total * total
            root = math.isqrt(scatter << 128) if scatter > 0 else 0
            deviation = float(step * Fraction(root, count << 64)) if root else 1.0
            found.append((mean, deviation or 1.0))
        return found


@codec.register("Standardization/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Standardization:
    """Standardize columns, then put rows on the grid with a part of their size kept.

    Rows are divided by ``sqrt((mean square + 1) / 2)``, as those of tables with a schema.

    Parameters
    ----------
    mean, deviation
        Mean and standard deviation of each column.

    Examples
    --------
    >>> scale = Standardization(mean=np.array([60.0, 0.5]), deviation=np.array([10.0, 0.1]))
    >>> scale(np.array([[60.0, 0.6], [70.0, 0.4]]), Grid()).values
    array([[  0,  24,  21],
           [ 21, -21,  21]], dtype=int8)
    """

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, x: Array) -> Standardization:
        """Return the standardization by the exact sums over these rows: the training samples.

        The range of each column is rounded outwards before the sums are made in it.
        """
        rows = x.astype(np.float64)
        sums = ColumnSums.of(rows, *public_ranges(rows))
        return cls(mean=sums.mean, deviation=sums.deviation)

    @property
    def backbone(self) -> str:
        """Name in feature spaces: sums with another standardization do not add."""
        return f"{STANDARDIZED} {codec.digest([self.mean, self.deviation])[:16]}"

    def __call__(self, x: Array, grid: Grid) -> Features:
        """Return the standardized rows on the grid, with the constant.

        Parameters
        ----------
        x
            Samples by columns.
        grid
            The grid; without one the rows are standardized and not rounded.
        """
        standard = (x.astype(np.float64) - self.mean) / self.deviation
        if not grid.bound:
            return grid(standard, backbone=self.backbone)
        clipped = np.clip(standard, -grid.reach, grid.reach)
        return grid.stored(grid.levels(rescaled(clipped, 1.0)), backbone=self.backbone)


def public_ranges(rows: Floats) -> tuple[Floats, Floats]:
    """Return the least and the most of each column, rounded outwards: exact ends stay private.

    They depend on the rows of all clients together, and on no partition. A column of equal values
    keeps its value, which its mean tells anyway.

    Parameters
    ----------
    rows
        Samples by columns.

    Examples
    --------
    >>> public_ranges(np.array([[18.3, 5.0], [91.7, 5.0]]))
    (array([10.,  5.]), array([100.,   5.]))
    """
    ends = zip(rows.min(axis=0).tolist(), rows.max(axis=0).tolist(), strict=True)
    found = np.array([_outwards(low, high) for low, high in ends])
    return found[:, 0], found[:, 1]


def _outwards(low: float, high: float) -> tuple[float, float]:
    if low == high or not math.isfinite(high - low):
        return low, high
    wide = rounded_outwards(low, high)
    return wide if math.isfinite(wide[1] - wide[0]) else (low, high)


def is_standardized(space: Space) -> bool:
    """Whether features were raw columns that were standardized before the grid.

    A model takes raw columns only if its file contains their means and deviations.
    """
    return name_and_digest(space.backbone)[0] == STANDARDIZED


def require_means(known: Standardization | None, space: Space, source: str) -> Standardization:
    """Return what makes these features of raw columns, or raise DataError without it.

    Parameters
    ----------
    known
        What the file of a model contains.
    space
        The standardized features of the model.
    source
        Name of the raw columns.
    """
    if known is None or known.backbone != space.backbone:
        raise DataError(
            f"{source}: the model was made for standardized columns (data.standardize), and its "
            "file does not contain their means; make it again with 'fedgram run', or make the "
            "features of a table with 'fedgram features'"
        )
    return known


def require_kept(x: Array, grid: Grid, name: str, columns: Sequence[str] = ()) -> None:
    """Raise DataError if the grid would lose raw columns; warn of few and of distant ones.

    Parameters
    ----------
    x
        Samples by columns.
    grid
        The grid.
    name
        Name of the data.
    columns
        Names of the columns, if known.
    """
    if not grid.bound or not len(x):
        return
    lost, varying = lost_columns(x, grid)
    if len(lost) > _MOST_LOST * varying or (len(lost) and varying < FEW):
        first = columns[lost[0]] if columns else f"number {lost[0]}"
        raise DataError(
            f"{name}: {len(lost)} of {varying} columns are lost on the grid, such as column "
            f"{first!r}: {_scales(x, columns)}; use standardize=True (data.standardize=true), make "
            "features of a table with 'fedgram features', or use standardize=False "
            "(data.standardize=false) to go on"
        )
    if x.shape[1] < FEW:
        warnings.warn(
            f"{name}: {x.shape[1]} columns, and each row is scaled to one size, which loses the "
            "size of rows of few columns; use standardize=True (data.standardize=true), or "
            "standardize=False (data.standardize=false) to keep it so",
            UserWarning,
            stacklevel=3,
        )
        return
    _warn_of_distant(x, name, columns)


def _warn_of_distant(x: Array, name: str, columns: Sequence[str]) -> None:
    """Warn if most columns are far from zero, compared with how much they vary."""
    some = x[:: max(1, len(x) // _CHECKED)].astype(np.float64)
    mean, deviation = some.mean(axis=0), some.std(axis=0)
    varying = np.flatnonzero(np.ptp(some, axis=0) > 0)
    far = varying[np.abs(mean[varying]) > _FAR * deviation[varying]]
    if 2 * len(far) <= len(varying):
        return
    first = far[0]
    warnings.warn(
        f"{name}: {len(far)} of {len(varying)} columns are far from zero, such as column "
        f"{columns[first] if columns else f'number {first}'!r} with mean {mean[first]:.3g} and "
        f"deviation {deviation[first]:.3g}; each row is scaled to one size, which keeps little of "
        "how they vary; use standardize=True (data.standardize=true), or standardize=False "
        "(data.standardize=false) to keep it so",
        UserWarning,
        stacklevel=4,
    )


def lost_columns(x: Array, grid: Grid) -> tuple[Integers, int]:
    """Return the columns that are lost on the grid, and the number of columns that vary.

    A column is lost if four fifths of its values fall into one step of the grid.

    Parameters
    ----------
    x
        Samples by columns.
    grid
        The grid.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(100, 10))
    >>> lost_columns(x, Grid()), lost_columns(x * ([1] * 9 + [1000]), Grid())[0]
    ((array([], dtype=int64), 10), array([0, 1, 2, 3, 4, 5, 6, 7, 8]))
    """
    some = x[:: max(1, len(x) // _CHECKED)].astype(np.float64)
    off = Grid(bits="off")
    exact = off(some).values[:, off.space(x.shape[1]).without_constant]
    low, high = np.quantile(exact, [(1 - _MOST) / 2, (1 + _MOST) / 2], axis=0)
    # Most values of a sparse column are equal: it is lost if the others are too.
    spread = np.where(high > low, high - low, np.ptp(exact, axis=0))
    varying = np.ptp(some, axis=0) > 0
    step = min(grid.step, Grid().step)  # a coarser grid is a choice, and loses all columns alike
    return np.flatnonzero(varying & (spread < step)), int(varying.sum())


def _scales(x: Array, columns: Sequence[str]) -> str:
    """Return the columns of the largest and of the smallest size in words."""
    size = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=0))
    size = np.where(np.ptp(x, axis=0) > 0, size, np.nan)
    named = [
        f"{columns[k] if columns else f'number {k}'!r} is about {size[k]:.3g}"
        for k in (int(np.nanargmax(size)), int(np.nanargmin(size)))
    ]
    return "column " + ", column ".join(named)
