"""Sums of the features of each class, with the class counts: all that class means need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, feature_field, require_shape, schema_field
from fedgram.core.samples import NO_SPACE, Array, Features, Floats, Integers, Labels, Space
from fedgram.errors import DataError, ExactnessError
from fedgram.runtime import flops


@codec.register("ClassSums/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassSums(Additive):
    """The sum of the features and the number of samples of each class.

    Parameters
    ----------
    counts
        Number of samples of each class.
    sums
        Sum of the features of each class, features by classes, without the constant; integers on
        the grid.
    space
        The feature space; sums of different spaces do not add.
    classes
        The class list, in the order of the columns.

    Examples
    --------
    >>> space = Space(width=2, inputs=2, unit=0.5, bound=127)
    >>> rows = Features(np.array([[1, 2], [3, 4], [6, 6]], dtype=np.int8), space)
    >>> total = ClassSums.of(rows, Labels(np.array([0, 1, 1]), ("no", "yes")))
    >>> total.sums
    array([[ 1,  9],
           [ 2, 10]])
    >>> total.means
    array([[0.5 , 2.25],
           [1.  , 2.5 ]])
    """

    counts: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    sums: Array = feature_field(default_factory=lambda: np.zeros((0, 0), np.int64))
    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())

    @classmethod
    def of(cls, features: Features, labels: Labels) -> Self:
        """Return the sums of one client's samples."""
        space, classes = features.space, labels.classes
        counts = np.bincount(labels.codes, minlength=len(classes))
        inner = features.values[:, space.without_constant]
        dtype = np.int64 if space.exact else np.float64
        sums = np.zeros((inner.shape[1], len(classes)), dtype)
        flops.add(inner.size)
        for code in np.flatnonzero(counts):
            sums[:, code] = inner[labels.codes == code].sum(axis=0, dtype=dtype)
        return cls(counts=counts, sums=sums, space=space, classes=classes)

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE

    def claimed_samples(self) -> int:
        return sum(self.counts.tolist())

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        width = len(range(self.space.width)[self.space.without_constant])
        require_shape("ClassSums.counts", self.counts, len(self.classes))
        require_shape("ClassSums.sums", self.sums, width, len(self.classes))
        if (self.counts < 0).any() or self.claimed_samples() * sites > self.space.most_samples:
            raise DataError("class counts below zero, or that leave no room for other sites")
        if not self.space.exact:
            return
        reach = self.counts.astype(np.float64) * self.space.bound
        if (np.abs(self.sums.astype(np.float64)) > reach).any():
            raise DataError("class sums larger than their samples allow")

    @property
    def present(self) -> Array:
        """Which classes have samples."""
        present: Array = self.counts > 0
        return present

    @property
    def means(self) -> Floats:
        """Mean of each class in real units, features by classes; zeros for absent classes."""
        if self.claimed_samples() > self.space.most_samples:
            raise ExactnessError(
                f"expected at most {self.space.most_samples} samples with this grid, got "
                f"{self.claimed_samples()}; use fewer grid.bits"
            )
        means: Floats = self.sums * np.float64(self.space.unit) / np.maximum(self.counts, 1)
        return means
