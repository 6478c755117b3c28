"""Sufficient statistics of ridge regression: Gram matrix, moment, count and energy, as sums.

Clients send `Statistics`, the server adds them and solves the normal equations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, feature_field, schema_field
from fedgram.core.exact import Accumulator
from fedgram.core.samples import NO_SPACE, Array, Features, Floats, Integers, Labels, Space
from fedgram.core.semidefinite import UNIT_ROUNDOFF, can_be_sums
from fedgram.core.solve import require_ridge, ridge_solve, unpack_symmetric
from fedgram.core.targets import LEVELS, Targets
from fedgram.errors import DataError, ExactnessError, MismatchError, SolveError

_ROWS_AT_A_TIME = 64  # of a Gram matrix that is checked
_SLACK = 1e-9  # of a product of 64-bit integers computed in float64: far above its rounding


@codec.register("Statistics/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Statistics(Additive):
    """The sufficient statistics of ridge regression, which every closed-form method sums.

    On the grid the sums are integers, and the laws of a commutative group hold to the last bit: any
    split of the same samples over any number of clients, in any order, in batches of any size,
    gives the same bytes.

    Parameters
    ----------
    count
        Number of samples.
    gram
        Sum of f f', the upper triangle row by row.
    moment
        Sum of f y', features by classes.
    energy
        Sum of the squared norms of the targets y.
    space
        The feature space; statistics of different spaces do not add.
    classes
        The class list, in the order of the moment's columns.

    Examples
    --------
    >>> space = Space(width=2, bound=127)
    >>> rows = Features(np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int8), space)
    >>> labels = Labels(np.array([0, 1, 1]), ("no", "yes"))
    >>> whole = Statistics.of(rows, labels)
    >>> part, rest = (
    ...     Statistics.of(rows.take(s), labels.take(s)) for s in (slice(0, 1), slice(1, 3))
    ... )
    >>> part + rest == whole, whole - part == rest, (part + rest).digest() == whole.digest()
    (True, True, True)
    >>> whole.gram
    array([35, 44, 56])
    """

    count: int = 0
    gram: Array = feature_field(default_factory=lambda: np.zeros(0, np.int64))
    moment: Array = feature_field(default_factory=lambda: np.zeros((0, 0), np.int64))
    energy: int = 0
    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())

    def __post_init__(self) -> None:
        width = self.space.width
        shapes = (width * (width + 1) // 2,), (width, len(self.classes))
        if (self.gram.shape, self.moment.shape) != shapes:
            raise DataError(
                f"expected statistics of shapes {shapes[0]} and {shapes[1]} for {width} features "
                f"and {len(self.classes)} classes, got {self.gram.shape} and {self.moment.shape}"
            )
        if abs(self.count) > self.space.most_samples:
            raise ExactnessError(
                f"a total of {self.count} samples may not be exact: the maximum with this grid is "
                f"{self.space.most_samples}; use fewer grid.bits"
            )

    @classmethod
    def of(cls, features: Features, labels: Labels) -> Self:
        """Return the statistics of one block of samples."""
        return cls.over([(features, labels)])

    @classmethod
    def over(cls, batches: Iterable[tuple[Features, Labels]]) -> Self:
        """Return the statistics of a stream of batches; memory is independent of its length."""
        total: Accumulator | None = None
        outputs: _OutputSums | None = None
        count, space = 0, NO_SPACE
        classes: tuple[str, ...] = ()
        for features, labels in batches:
            if len(features) != len(labels):
                raise DataError(f"{len(features)} feature rows but {len(labels)} labels")
            if total is None:
                space, classes = features.space, labels.classes
                total = Accumulator(space.width, len(classes), space.bound)
            elif features.space != space:
                raise MismatchError(f"batches differ: {space.difference(features.space)}")
            elif labels.classes != classes:
                raise MismatchError("batches differ in their class lists")
            if isinstance(labels, Targets):
                outputs = outputs or _OutputSums(space, len(classes))
                total.add_rows(features.values)
                outputs.add(features.values, labels.values)
            else:
                total.add(features.values, labels.codes)
            count += len(labels)
        if total is None:
            return cls.zero()
        gram, moment = total.take()
        if outputs is not None:
            return TargetStatistics(  # type: ignore[return-value]  # which is a `Statistics` too
                count=count,
                gram=gram,
                moment=outputs.moment,
                energy=outputs.energy,
                space=space,
                classes=classes,
            )
        return cls(
            count=count,
            gram=gram,
            moment=moment,
            energy=count,  # |y|^2 = 1 for one-hot targets
            space=space,
            classes=classes,
        )

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE

    @property
    def labeled(self) -> bool:
        """Whether the targets are classes, which are counted."""
        return self.space.labeled

    def validate(self, sites: int = 1) -> None:
        """Raise an error if no samples can give these sums.

        Besides the types and the range: sums of squares, Cauchy-Schwarz for every entry, class
        sums and counts, and a positive semi-definite matrix of features and targets together
        (`fedgram.core.semidefinite`). It costs about as much as a solve.

        Parameters
        ----------
        sites
            Number of sites that add to the same total: each may use this fraction of its range.
        """
        super().validate(sites)
        if self.count * sites > self.space.most_samples:
            raise DataError("more samples than leave room for those of other sites")
        diagonal = self.diagonal()
        if self.count < 0 or self.energy < 0 or (diagonal < 0).any():
            raise DataError("a Gram matrix with a negative count or sum of squares")
        if self.space.exact and (diagonal > self.count * self.space.bound**2).any():
            raise DataError("a Gram matrix larger than its samples allow")
        if self.labeled and self.energy != self.count:
            raise DataError("class sums that do not count every sample once")
        self._validate_sizes(diagonal.astype(np.float64))
        self._validate_class_sums()
        self._validate_definite()

    def claimed_samples(self) -> int:
        return self.count if self.space.labeled else 0

    def class_counts(self) -> Array | None:
        """Return the number of samples of each class; None without the constant that counts."""
        space = self.space
        if not (space.exact and space.traceable and space.has_constant and self.labeled):
            return None
        constant = self._constant()
        if not constant:
            return None
        counts: Array = self.moment[space.constant] // constant
        return counts

    def _constant(self) -> int:
        """Return the value of the constant feature; 0 without samples."""
        if not self.count:
            return 0
        square, rest = divmod(int(self.diagonal()[self.space.constant]), self.count)
        constant = isqrt(square)
        if rest or constant**2 != square:
            raise DataError("a constant feature that is not constant")
        return constant

    def _validate_sizes(self, diagonal: Floats) -> None:
        """Raise an error for an entry that breaks Cauchy-Schwarz."""
        slack = _SLACK + 4 * self._rounding() * UNIT_ROUNDOFF
        sizes = np.sqrt(diagonal) * (1 + slack)
        # As floats: the smallest 64-bit integer has no magnitude.
        gram = unpack_symmetric(self.gram, self.space.width)
        for start in range(0, len(gram), _ROWS_AT_A_TIME):
            part = slice(start, start + _ROWS_AT_A_TIME)
            if (np.abs(gram[part]) > np.outer(sizes[part], sizes)).any():
                raise DataError("a Gram matrix with an entry larger than its diagonal allows")
        length = float(np.sqrt(float(self.energy)))
        if (np.abs(self.moment.astype(np.float64)) > sizes[:, None] * length).any():
            raise DataError("class sums larger than the Gram matrix allows")

    def _validate_class_sums(self) -> None:
        """Raise an error if the row of the constant contradicts class sums and class counts."""
        counts, last = self.class_counts(), self.space.width - 1
        if counts is None:
            return
        constant = self._constant()
        # The column of the constant repeats the total of the class sums.
        column = self.gram[self._starts() + last - np.arange(last + 1)]
        if (column != self.moment.sum(axis=1) * constant).any():
            raise DataError("a Gram matrix whose row of sums differs from the class sums")
        if (counts < 0).any() or (self.moment[last] % constant).any():
            raise DataError("class counts that no samples can have")
        if (np.abs(self.moment) > counts * self.space.bound).any():
            raise DataError("class sums larger than their samples allow")

    def _validate_definite(self) -> None:
        """Raise an error if a combination of features and targets has a negative sum of squares.

        The squares of the targets are the class counts. If these are unknown, or if targets are
        not classes, the energy is an upper bound of each.
        """
        counts = self.class_counts()
        squares = np.full(len(self.classes), self.energy) if counts is None else counts
        if not can_be_sums(self.gram, self.moment, squares, rounding=self._rounding()):
            raise DataError(
                "a Gram matrix that is not positive semi-definite: no samples have these sums"
            )

    def _rounding(self) -> int:
        """Return the number of roundings of an entry: none on the grid."""
        return 0 if self.space.exact else self.count

    def _starts(self) -> Integers:
        """Return the index of each row's first entry, which is on the diagonal, in `gram`."""
        rows = np.arange(self.space.width)
        starts: Integers = rows * self.space.width - rows * (rows - 1) // 2
        return starts

    @property
    def products(self) -> Floats:
        """The moment as floats: of stored features with targets in the units of `Labels.onehot`."""
        return self.moment.astype(np.float64)

    @property
    def target_squares(self) -> float:
        """The energy in the same units."""
        return float(self.energy)

    @property
    def free(self) -> int | None:
        """Place of the feature whose weight has no ridge; None for classes."""
        return None

    def solve(self, ridge: float, *, towards: Floats | None = None) -> Floats:
        """Return the weights of argmin_W ``|F W - Y|^2 + ridge |W - towards|^2``, (d, c).

        `ridge`, `towards` and the weights are in real units (features of about unit size). So they
        depend neither on the grid nor on the number of clients.
        """
        return next(iter(self.path([ridge], towards=towards)))

    def path(self, ridges: Sequence[float], *, towards: Floats | None = None) -> Iterable[Floats]:
        """Yield the weights for each of several ridges."""
        if self.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {self.count} samples")
        gram, unit = unpack_symmetric(self.gram, self.space.width), self.space.unit
        # stored feature = real feature / unit, so stored weights = real weights * unit
        #                                       and stored ridge = real ridge / unit^2.
        pull = None if towards is None else towards * unit
        for ridge in ridges:
            require_ridge(ridge)
            stored = ridge_solve(
                gram,
                self.products,
                ridge / unit**2,
                towards=pull,
                samples=self.count,
                free=self.free,
            )
            yield stored / unit

    def error(self, weights: Floats) -> float:
        """Return the sum of ``|y - W' f|^2`` over the samples, from the statistics alone."""
        # sum |y - W'f|^2 = energy - 2 tr W'B + tr W'GW
        stored = weights * self.space.unit
        cross = np.sum(stored * self.products)
        curvature = np.sum(stored * (unpack_symmetric(self.gram, self.space.width) @ stored))
        return float(self.target_squares - 2 * cross + curvature)

    def diagonal(self) -> Array:
        """Return the diagonal of the Gram matrix: the sum of squares of each feature."""
        diagonal: Array = self.gram[self._starts()]
        return diagonal

    def with_classes(self, classes: Sequence[str]) -> Statistics:
        """Return the same statistics for another class list: other order, more or fewer classes.

        A new class gets a moment column of zeros. A removed class must have a column of zeros.
        """
        place = {name: column for column, name in enumerate(self.classes)}
        for name in set(self.classes) - set(classes):
            if self.moment[:, place[name]].any():
                raise MismatchError(f"class {name!r} has samples and cannot be removed")
        moment = np.zeros((self.space.width, len(classes)), self.moment.dtype)
        for column, name in enumerate(classes):
            if name in place:
                moment[:, column] = self.moment[:, place[name]]
        return replace(self, moment=moment, classes=tuple(classes))

    def digest(self) -> str:
        """Return the sha256 of the canonical bytes; on the grid equal on every machine.

        Classes are sorted first, so the order of the class list does not change the digest.
        """
        return codec.digest(self.with_classes(sorted(self.classes)))


@codec.register("TargetStatistics/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class TargetStatistics(Statistics):
    """The same sums for a regression: the targets are outputs in fixed point, not classes.

    `classes` are the names of the outputs with their ranges.

    Examples
    --------
    >>> from fedgram.core.targets import Output
    >>> rows = Features(np.array([[1, 2], [3, 4]], dtype=np.int8), Space(width=2, bound=127))
    >>> dose = Output(name="dose", low=0.0, high=100.0)
    >>> truth = Targets.of(np.array([[50.0], [100.0]]), (dose,))
    >>> whole = Statistics.of(rows, truth)
    >>> type(whole).__name__, whole.moment.ravel(), whole.classes
    ('TargetStatistics', array([ 98304, 131072]), ('dose in [0.0, 100.0]',))
    """

    @property
    def labeled(self) -> bool:
        """False: nothing is counted by class."""
        return False

    def claimed_samples(self) -> int:
        return self.count

    @property
    def free(self) -> int | None:
        """Place of the constant, whose weight has no ridge; None without a constant.

        So predictions do not depend on where the outputs lie in their declared range.
        """
        return self.space.constant if self.space.has_constant else None

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        # With it the bound of the moment too, which the energy and the diagonal limit.
        if self.energy > self.count * len(self.classes) * LEVELS**2:
            raise DataError("outputs larger than their range allows")

    @property
    def products(self) -> Floats:
        return self.moment / LEVELS

    @property
    def target_squares(self) -> float:
        return self.energy / LEVELS**2


_EXACT_ROWS = 2**16  # whose products of 16-bit features and outputs add up exactly in float64


class _OutputSums:
    """Adds up products of features with fixed-point outputs, exactly on the grid."""

    def __init__(self, space: Space, outputs: int) -> None:
        self._kind = np.int64 if space.exact else np.float64
        self.moment: Array = np.zeros((space.width, outputs), self._kind)
        self.energy = 0

    def add(self, values: Array, outputs: Integers) -> None:
        for start in range(0, len(values), _EXACT_ROWS):
            part = slice(start, start + _EXACT_ROWS)
            rows = values[part].astype(np.float64)
            product = rows.T @ outputs[part].astype(np.float64)
            self.moment += np.rint(product).astype(np.int64) if self._kind is np.int64 else product
            self.energy += int(np.sum(outputs[part] ** 2))
