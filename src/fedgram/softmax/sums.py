"""Softmax regression as sums over samples, in exact integers.

The server broadcasts integer weights. A client's logits are then exact integers. Its probabilities
are computed from a public table of integer exponentials, with one IEEE division and one rounding.
Its reply, the sum of products of features and residuals, is a sum of integers. So the totals are
equal, to the bit, for any partition, order, batch size and number of threads, on every IEEE
machine. No function of the C library is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import (
    Additive,
    feature_field,
    modular_field,
    require_shape,
    schema_field,
)
from fedgram.core.exact import block_matmul
from fedgram.core.samples import NO_SPACE, Array, Features, Floats, Integers, Samples, Space
from fedgram.errors import DataError, MismatchError
from fedgram.features.lift import Lift
from fedgram.models.linear import Linear, lifted
from fedgram.selection.holdout import content_hashes, folds
from fedgram.softmax.arithmetic import SoftmaxGrid, exact_logits, softmax_residuals

_ENTRIES_AT_A_TIME = 2**18  # of float64 logits: 2 MB fit in the cache


@codec.register("IntegerHead/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class IntegerHead:
    """A linear head with integer weights in steps of a public size, as the server broadcasts it.

    Parameters
    ----------
    values
        Integer weights, (features, classes).
    grid
        Precision of the weights.
    space, classes, lift
        Feature space (after the lift), class list and lift, as in `Linear`.
    origin
        Digest of the totals and settings that the head was solved from.

    Examples
    --------
    >>> space = Space(width=1, unit=0.5, bound=127)
    >>> head = IntegerHead.of(np.array([[0.5, -0.5]]), SoftmaxGrid(), space, ("a", "b"))
    >>> head.linear().weights.round(5)
    array([[ 0.5, -0.5]])
    """

    values: Integers
    grid: SoftmaxGrid
    space: Space
    classes: tuple[str, ...]
    lift: Lift = Lift()
    origin: str = ""

    @classmethod
    def of(
        cls,
        weights: Floats,
        grid: SoftmaxGrid,
        space: Space,
        classes: tuple[str, ...],
        lift: Lift | None = None,
        origin: str = "",
    ) -> IntegerHead:
        """Return a head with real weights rounded to the grid.

        Parameters
        ----------
        weights
            Real weights, (features, classes).
        grid
            Precision of the weights.
        space
            The feature space, after the lift.
        classes
            The class list.
        lift
            The lift.
        origin
            Digest of the totals and settings that the head was solved from.
        """
        return cls(
            values=np.rint(weights / grid.step(space)).astype(np.int64),
            grid=grid,
            space=space,
            classes=classes,
            lift=lift or Lift(),
            origin=origin,
        )

    def validate(self) -> None:
        """Raise an error unless the weights are integers for every feature and class."""
        shape = (self.space.width, len(self.classes))
        if self.values.shape != shape or self.values.dtype != np.int64:
            raise DataError(
                f"weights: expected int64 of shape {shape}, got {self.values.dtype} of shape "
                f"{self.values.shape}"
            )

    def linear(self) -> Linear:
        """Return the head in real units; its scores are logits to base e."""
        return Linear(
            # C order, as after decoding: BLAS may round products in Fortran order differently.
            weights=np.multiply(self.values, np.float64(self.grid.step(self.space)), order="C"),
            space=self.space,
            classes=self.classes,
            lift=self.lift,
            origin=self.origin,
        )

    def provenance(self) -> str:
        """Digest of the totals and settings if known, otherwise of the head."""
        return self.origin or codec.digest(self)


@codec.register("SoftmaxQuery/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SoftmaxQuery:
    """The broadcast of one exchange: a query for residual sums at integer weights.

    Parameters
    ----------
    values
        Integer weights of each fold, (folds, features, classes).
    base
        Further weights at which only the loss is computed, (folds, features, classes), or shape
        (0, 0, 0) for none. So two losses can be compared on the same clients.
    folds
        Number of folds that are held out in turn (`fedgram.selection.holdout`); 0 to use all
        samples.
    residuals
        Whether residual sums are computed, or the loss only.
    grid, space, classes, lift
        As in `IntegerHead`.
    """

    values: Integers
    grid: SoftmaxGrid
    space: Space
    classes: tuple[str, ...]
    lift: Lift = Lift()
    base: Integers = field(default_factory=lambda: np.zeros((0, 0, 0), np.int64))
    folds: int = 0
    residuals: bool = True

    def __post_init__(self) -> None:
        shape = (max(1, self.folds), self.space.width, len(self.classes))
        if self.values.shape != shape or self.base.shape not in (shape, (0, 0, 0)):
            raise DataError(
                f"softmax weights: expected the shape {shape}, got {self.values.shape} "
                f"and {self.base.shape}"
            )

    def sums(self, samples: Samples) -> ResidualSums:
        """Return the sums over a client's samples."""
        features, labels = lifted(samples, self.lift)
        if features.space != self.space:
            raise MismatchError(
                f"the weights are for other features: {self.space.difference(features.space)}; "
                "use the same backbone, grid and lift"
            )
        if labels.classes != self.classes:
            raise MismatchError("the weights are for another class list; use the same class list")
        fold = folds(samples, self.folds)
        parts = [self._fold(k, fold, features, labels.codes) for k in range(len(self.values))]
        hashes = content_hashes(samples)
        return ResidualSums(
            **{name: np.stack([part[name] for part in parts]) for name in parts[0]},
            fingerprint=np.array([hashes.sum(dtype=np.int64)]),
            space=self.space,
            classes=self.classes,
            grid=self.grid,
            at=codec.digest([self.values, self.base]),
        )

    def _fold(
        self, number: int, fold: Integers, features: Features, codes: Integers
    ) -> dict[str, Array]:
        used, out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        shape = self.values.shape[1:] if self.residuals else (0, 0)
        dtype = np.int64 if self.space.exact else np.float64
        products: Array = np.zeros(shape, dtype)
        loss = 0
        for rows, classes in _batches(features, codes, used, len(self.classes)):
            logits = exact_logits(rows, self.values[number], self.space)
            residuals, losses = softmax_residuals(logits, classes, self.grid)
            loss += int(losses.sum())
            if self.residuals:
                product = block_matmul(rows.T, residuals)
                products += product.astype(dtype, copy=False)
        out_loss, out_correct = self._losses(features, codes, out, self.values[number])
        base = self._losses(features, codes, used, self.base[number])[0] if self.base.size else 0
        return {
            "count": np.array(len(used)),
            "products": products,
            "loss": np.array(loss),
            "base_loss": np.array(base),
            "out_count": np.array(len(out)),
            "out_loss": np.array(out_loss),
            "out_correct": np.array(out_correct),
        }

    def _losses(
        self, features: Features, codes: Integers, which: Integers, values: Integers
    ) -> tuple[int, int]:
        """Return the loss of some of the samples, and their number of correct predictions."""
        loss = correct = 0
        for rows, classes in _batches(features, codes, which, len(self.classes)):
            logits = exact_logits(rows, values, self.space)
            _, losses = softmax_residuals(logits, classes, self.grid)
            loss += int(losses.sum())
            correct += int((logits.argmax(axis=1) == classes).sum())
        return loss, correct


@codec.register("ResidualSums/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ResidualSums(Additive):
    """The reply to a `SoftmaxQuery`: integer sums over samples, for each fold.

    Parameters
    ----------
    count, loss
        Number of fitted samples, and their loss in steps of 2^-20 bits.
    products
        Sum of feature times residual, (folds, features, classes). A residual is 2^residuals times
        the one-hot label minus the rounded probabilities; residuals sum to zero over classes.
    base_loss
        The loss at the query's base, if any.
    out_count, out_loss, out_correct
        Number of held-out samples, their loss, and their number of correct predictions.
    fingerprint
        Sum of the hashes of all samples, modulo 2^64: equal if the set of samples is equal.
    at
        Digest of the weights; sums at different weights do not add.

    Examples
    --------
    >>> from fedgram.core.samples import Labels
    >>> space = Space(width=1, unit=1.0, bound=127)
    >>> rows = Features(np.array([[3], [4]], dtype=np.int8), space)
    >>> query = SoftmaxQuery(
    ...     values=np.zeros((1, 1, 2), np.int64), grid=SoftmaxGrid(), space=space,
    ...     classes=("a", "b"))
    >>> sums = query.sums(Samples(rows, Labels(np.array([0, 1]), ("a", "b"))))
    >>> sums.products  # half of 2^14 for each: 3 - 4
    array([[[-8192,  8192]]])
    >>> sums.loss / 2**20
    array([2.])
    """

    count: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    products: Array = feature_field(default_factory=lambda: np.zeros((0, 0, 0), np.int64))
    loss: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    base_loss: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    out_count: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    out_loss: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    out_correct: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    fingerprint: Integers = modular_field(default_factory=lambda: np.zeros(1, np.int64))
    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())
    grid: SoftmaxGrid = schema_field(default=SoftmaxGrid())
    at: str = schema_field(default="")

    def lacks_schema(self) -> bool:
        return not self.at

    def fold(self, number: int) -> Self:
        """Return the sums of one fold."""
        one = slice(number, number + 1)
        names = ("count", "products", "loss", "base_loss", "out_count", "out_loss", "out_correct")
        return replace(self, **{name: getattr(self, name)[one] for name in names})

    def claimed_samples(self) -> int:
        return int((self.count + self.out_count).max(initial=0))

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        self._validate_shapes()
        counts = np.stack([self.count, self.out_count, self.out_correct])
        losses = np.stack([self.loss, self.base_loss, self.out_loss])
        if (counts < 0).any() or (losses < 0).any() or (self.out_correct > self.out_count).any():
            raise DataError("softmax sums: expected counts and losses >= 0, and correct <= count")
        # Sums of all sites stay below 2^62, so that a total cannot overflow.
        room = 2**62 // max(1, sites)
        most = self.count.astype(np.float64) * self.space.bound * 2.0**self.grid.residuals
        if (losses > room).any() or (most > room).any():
            raise DataError("softmax sums: the number of samples is too large: a sum may overflow")
        if not (self.space.exact and self.products.size):
            return
        if self.products.sum(axis=2).any():
            raise DataError("softmax sums: expected residuals that sum to zero over classes")
        if (np.abs(self.products.astype(np.float64)) > most[:, None, None]).any():
            raise DataError("softmax sums: residuals are too large for the number of samples")

    def _validate_shapes(self) -> None:
        folds = len(self.count)
        for name in ("loss", "base_loss", "out_count", "out_loss", "out_correct"):
            require_shape(f"ResidualSums.{name}", getattr(self, name), folds)
        require_shape("ResidualSums.fingerprint", self.fingerprint, 1)
        if self.products.size:
            shape = (folds, self.space.width, len(self.classes))
            require_shape("ResidualSums.products", self.products, *shape)

    def totals(self) -> dict[str, Array]:
        """Return the sums that do not depend on the partition, for digests."""
        names = ("count", "products", "loss", "out_count", "out_loss", "out_correct", "fingerprint")
        return {name: getattr(self, name) for name in names}


def _batches(
    features: Features, codes: Integers, which: Integers, classes: int
) -> list[tuple[Floats, Integers]]:
    """Return samples in float64 blocks; all products of a block are exact."""
    size = max(64, _ENTRIES_AT_A_TIME // max(1, classes, features.space.width))
    return [
        (features.values[part].astype(np.float64), codes[part])
        for part in (which[start : start + size] for start in range(0, len(which), size))
    ]
