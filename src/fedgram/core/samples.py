"""Samples as methods get them: feature rows with their feature space, and class labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedgram.core.codec import local_field, register
from fedgram.core.layouts import ImageLayout, TableLayout, layout_of
from fedgram.errors import DataError, MismatchError

Array = NDArray[Any]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
RAW = "grid(raw)"  # the step of features that are neither scaled nor rounded, without a constant


@register("Space/1")
@dataclass(frozen=True, kw_only=True)
class Space:
    """The feature space: how feature vectors were made. Statistics add only within one space.

    Parameters
    ----------
    width
        Number of features.
    unit
        The real value of the stored number 1.
    bound
        Largest magnitude of a stored integer; 0 for plain float64 features.
    inputs
        Number of features of the backbone, before grid and lift.
    clip
        Clipping threshold of the grid, in units of a sample's RMS (of tables: in standard
        deviations); 0 without clipping.
    backbone
        Name of the backbone that made the vectors, empty if unknown. Statistics of different
        backbones do not add.
    steps
        The steps that made a vector, in order: input, grid, lift.

    Examples
    --------
    >>> digits = Space(width=65, unit=6 / 127, bound=127, steps=("input(64)", "grid(8 bits)"))
    >>> digits.exact, digits.most_samples
    (True, 571850209985416)
    >>> digits.constant, digits.without_constant
    (64, slice(0, 64, None))
    >>> images = Space(width=785, inputs=784, backbone="image 28x28x1")
    >>> images.layout, images.traceable
    (ImageLayout(height=28, width=28, channels=1), True)
    """

    width: int
    unit: float = 1.0
    bound: int = 0
    inputs: int = 0
    clip: float = 0.0
    backbone: str = ""
    steps: tuple[str, ...] = ()

    @property
    def labeled(self) -> bool:
        """Whether the targets of sums are the classes: those of patches are codes of classes."""
        return not any(step.startswith("patches(") for step in self.steps)

    @property
    def traceable(self) -> bool:
        """Whether the number of inputs is known, so that grid and lift can be checked."""
        return self.inputs > 0

    @property
    def has_constant(self) -> bool:
        """Whether the last feature is a constant, as the grid and all later steps append one.

        Raw features, and a space without steps whose features are the inputs, have no constant.
        """
        made = bool(self.steps) or self.width != self.inputs
        return self.width > 0 and made and RAW not in self.steps

    @property
    def constant(self) -> int:
        """Index of the constant, which is also the number of features before it."""
        if not self.has_constant:
            raise MismatchError(
                "expected a constant as last feature, which this method needs; raw features have "
                "none: use grid.bits from 2 to 16, or 'off'"
            )
        return self.width - 1

    @property
    def without_constant(self) -> slice:
        """The features without the constant; all features of a space that has no constant."""
        return slice(0, self.width - self.has_constant)

    @property
    def layout(self) -> ImageLayout | TableLayout | None:
        """What the inputs are, as the name of the backbone states; None if unknown."""
        return layout_of(self.backbone)

    @property
    def image(self) -> tuple[int, ...]:
        """Height, width and channels if the features are the pixels of images; else empty."""
        lifted = self.width != self.inputs + self.has_constant
        return () if lifted or not isinstance(self.layout, ImageLayout) else self.layout.shape

    @property
    def exact(self) -> bool:
        """Whether features are integers, so that sums are exact to the bit."""
        return self.bound > 0

    @property
    def most_samples(self) -> int:
        """Maximum number of samples in an exact total: with more, an entry may exceed 64 bits."""
        return (2**63 - 1) // self.bound**2 if self.exact else 2**63 - 1

    def validate(self) -> None:
        """Raise an error for fields of other types or ranges than declared."""
        numbers = (self.width, self.bound, self.inputs)
        if not all(type(each) is int and 0 <= each < 2**31 for each in numbers):
            raise DataError(f"a space: expected integers from 0 to 2^31, got {numbers}")
        reals = (self.unit, self.clip)
        if not all(type(each) in (float, int) and isfinite(each) for each in reals):
            raise DataError(f"a space: expected finite numbers, got {reals}")
        if not (self.unit > 0 and self.clip >= 0):
            raise DataError(f"a space: expected unit > 0 and clip >= 0, got {reals}")
        texts = (self.backbone, *self.steps) if isinstance(self.steps, tuple) else (None,)
        if not all(type(each) is str for each in texts):
            raise DataError("a space: expected the backbone and the steps as texts")

    def difference(self, other: Space) -> str:
        """Return the first difference between two spaces as text, for error messages."""
        for ours, theirs in zip(self.steps, other.steps, strict=False):
            if ours != theirs:
                return f"{ours} and {theirs}"
        if len(self.steps) != len(other.steps):
            longer = max(self.steps, other.steps, key=len)
            extra = longer[min(len(self.steps), len(other.steps))]
            return f"{extra} on one side only"
        return f"{self} and {other}"


NO_SPACE = Space(width=0)


@register("Features/1")
@dataclass(frozen=True, eq=False)
class Features:
    """Rows of one space: small integers on the grid, or float64.

    Parameters
    ----------
    values
        Samples by features, in stored units.
    space
        The feature space.
    cache
        Features made from these rows, by their feature space, for repeated evaluation; None
        without a cache.
    part_of
        If these rows are a view of a block: the block, and the place of the first row in it. What
        is computed from the rows of a block need not be computed again for a part of it.

    Examples
    --------
    >>> rows = Features(np.array([[2, -4]], dtype=np.int8), Space(width=2, unit=0.5, bound=127))
    >>> rows.real()
    array([[ 1., -2.]])
    """

    values: Array
    space: Space
    cache: dict[Space, Features] | None = local_field(default=None)
    part_of: tuple[Features, int] | None = local_field(default=None)

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != self.space.width:
            raise DataError(
                f"expected features of shape (samples, {self.space.width}), got {self.values.shape}"
            )
        bound = self.space.bound
        if (
            bound
            and self.values.size
            and not (-bound <= self.values.min() <= self.values.max() <= bound)
        ):
            raise DataError(f"expected stored features from -{bound} to {bound}")

    def __len__(self) -> int:
        return len(self.values)

    def real(self) -> Floats:
        """Return the rows as float64 in real units: stored value times the unit."""
        real: Floats = self.values * np.float64(self.space.unit)
        return real

    def derived(self, space: Space, make: Callable[[], Features]) -> Features:
        """Return the features in `space` that `make` computes from these, from the cache if cached.

        A feature space contains all steps that made the features. So the space is the key: features
        of different steps cannot be confused.
        """
        if self.cache is None:
            return make()
        if space not in self.cache:
            made = make()
            if made.space != space:
                raise MismatchError(f"derived features differ: {space.difference(made.space)}")
            self.cache[space] = made
        return self.cache[space]

    def take(self, indices: Array | slice) -> Features:
        """Return some of the rows."""
        if not isinstance(indices, slice):
            return Features(self.values[indices], self.space)
        start, _, step = indices.indices(len(self))
        block, before = self.part_of or (self, 0)
        part_of = (block, before + start) if step == 1 else None
        return Features(self.values[indices], self.space, part_of=part_of)


@register("Labels/1")
@dataclass(frozen=True, eq=False)
class Labels:
    """One class per sample: codes into a list of class names.

    Examples
    --------
    >>> Labels(np.array([1, 0]), ("cat", "dog")).onehot()
    array([[0., 1.],
           [1., 0.]])
    """

    codes: Integers
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        codes = self.codes
        if len(set(self.classes)) < len(self.classes):
            raise DataError("two classes have the same name; use a different name for each class")
        if codes.ndim != 1 or not np.issubdtype(codes.dtype, np.integer):
            raise DataError(
                f"expected one integer class code per sample, got {codes.dtype} of shape "
                f"{codes.shape}"
            )
        if len(codes) and not (codes.min() >= 0 and codes.max() < len(self.classes)):
            raise DataError(
                f"labels run from {codes.min()} to {codes.max()}, but there are "
                f"{len(self.classes)} classes (codes 0 to {len(self.classes) - 1})"
            )

    def __len__(self) -> int:
        return len(self.codes)

    def onehot(self, dtype: type[np.floating[Any]] = np.float64) -> Array:
        """Return one row per sample with a 1 in the column of its class."""
        rows = np.zeros((len(self.codes), len(self.classes)), dtype)
        rows[np.arange(len(self.codes)), self.codes] = 1
        return rows

    def relabel(self, classes: tuple[str, ...]) -> Labels:
        """Return the same labels as codes into another class list that contains all of them."""
        used = {self.classes[code] for code in np.unique(self.codes)}
        if used - set(classes):
            names = ", ".join(sorted(used - set(classes)))
            raise MismatchError(
                f"classes {names} are not in the shared class list; remove their samples"
            )
        place = {name: code for code, name in enumerate(classes)}
        codes = np.array([place.get(name, -1) for name in self.classes], np.int64)
        return Labels(codes[self.codes], classes)

    @classmethod
    def joined(cls, parts: Sequence[Any]) -> Self:
        """Return the labels of all parts, one after the other; the class lists are equal."""
        return cls(np.concatenate([part.codes for part in parts]), parts[0].classes)

    def take(self, indices: Array | slice) -> Labels:
        """Return some of the labels."""
        return Labels(self.codes[indices], self.classes)


@register("Samples/1")
@dataclass(frozen=True, eq=False)
class Samples:
    """Features with their labels.

    Examples
    --------
    >>> space = Space(width=1, bound=127)
    >>> rows = Features(np.array([[5], [6]], dtype=np.int8), space)
    >>> both = Samples(rows, Labels(np.array([0, 1]), ("no", "yes")))
    >>> len(both), len(both.take([0])), len(both + both)
    (2, 1, 4)
    """

    features: Features
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise DataError(
                f"{len(self.features)} feature rows but {len(self.labels)} labels: "
                "give one label per row"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Array | slice | Sequence[int]) -> Self:
        """Return some of the samples."""
        where = indices if isinstance(indices, slice) else np.asarray(indices, dtype=np.int64)
        return replace(self, features=self.features.take(where), labels=self.labels.take(where))

    def __add__(self, other: Samples) -> Samples:
        if not len(other):
            return self
        return concatenate([self, other])

    def with_cache(self) -> Samples:
        """Return the same samples with an empty cache for lifted features."""
        return replace(self, features=replace(self.features, cache={}))


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all `parts`, which must have equal spaces and class lists."""
    first = parts[0]
    for part in parts[1:]:
        if part.features.space != first.features.space:
            detail = first.features.space.difference(part.features.space)
            raise MismatchError(f"samples of different spaces: {detail}")
        if part.labels.classes != first.labels.classes:
            raise MismatchError("samples of different class lists")
    return Samples(
        Features(np.concatenate([p.features.values for p in parts]), first.features.space),
        type(first.labels).joined([part.labels for part in parts]),
    )
