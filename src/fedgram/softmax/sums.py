"""Softmax regression as sums over samples, in exact integers.

The server broadcasts integer weights. A client's logits are then exact integers. Its probabilities
are computed from a public table of integer exponentials, with one IEEE division and one rounding.
Its reply, the sum of products of features and residuals, is a sum of integers. So the totals are
equal, to the bit, for any partition, order, batch size and number of threads, on every IEEE
machine. No function of the C library is used.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from fedgram.core.reply_sizes import narrow_types, of_type, total_size, types_of_rows
from fedgram.core.samples import NO_SPACE, Array, Features, Floats, Integers, Samples, Space
from fedgram.errors import DataError, ExactnessError, MismatchError
from fedgram.features.lift import Lift
from fedgram.federation.sites import Union
from fedgram.models.linear import Linear, lifted
from fedgram.runtime import flops
from fedgram.selection.holdout import content_hashes, folds
from fedgram.softmax.arithmetic import SoftmaxGrid, exact_logits, softmax_residuals

_SMALL = 256  # samples of a client that is computed together with others
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
        return self._sums(samples, None)

    def total(self, union: Union) -> tuple[ResidualSums, int]:
        """Return the sum of the replies of the clients of a union, and the sum of their bytes."""
        if not self.space.exact:
            raise ExactnessError("sums of features without a grid depend on the order of additions")
        counts, large = union.count(), np.flatnonzero(union.count() > _SMALL)
        replies = [self.sums(_of_client(union, client)) for client in large.tolist()]
        size = sum(map(codec.counted, replies))
        if len(large):  # they have blocks of their own, and their sums need more bytes
            rows, place = np.flatnonzero(counts[union.owners] <= _SMALL), counts <= _SMALL
            owners = (np.cumsum(place) - 1)[union.owners[rows]]
            small = union.samples.take(rows)
            union = Union(samples=small, owners=owners, clients=union.clients - len(large))
        if union.clients:
            sizes = _ReplySizes.of(self, union)
            replies.append(self._sums(union.samples, sizes))
            size += sizes.total(self, union, replies[-1].at)
        return ResidualSums.sum_of(replies), size

    def _sums(self, samples: Samples, sizes: _ReplySizes | None) -> ResidualSums:
        features, labels = lifted(samples, self.lift)
        if features.space != self.space:
            raise MismatchError(
                f"the weights are for other features: {self.space.difference(features.space)}; "
                "use the same backbone, grid and lift"
            )
        if labels.classes != self.classes:
            raise MismatchError("the weights are for another class list; use the same class list")
        fold = folds(samples, self.folds)
        parts = [
            self._fold(k, fold, features, labels.codes, sizes) for k in range(len(self.values))
        ]
        hashes = content_hashes(samples)
        if sizes:
            sizes.add_fingerprints(hashes)
        return ResidualSums(
            **{name: np.stack([part[name] for part in parts]) for name in parts[0]},
            fingerprint=np.array([hashes.sum(dtype=np.int64)]),
            space=self.space,
            classes=self.classes,
            grid=self.grid,
            at=codec.digest([self.values, self.base]),
        )

    def _fold(
        self,
        number: int,
        fold: Integers,
        features: Features,
        codes: Integers,
        sizes: _ReplySizes | None,
    ) -> dict[str, Array]:
        shape = self.values.shape[1:] if self.residuals else (0, 0)
        dtype = np.int64 if self.space.exact else np.float64
        products: Array = np.zeros(shape, dtype)
        numbers = dict.fromkeys(_NUMBERS, 0)
        for part, rows in _blocks(features, len(self.classes)):
            used = fold[part] != number
            logits = exact_logits(rows, self.values[number], self.space)
            residuals, losses = softmax_residuals(logits, codes[part], self.grid)
            if self.residuals:
                residuals[~used] = 0
                products += block_matmul(rows.T, residuals).astype(dtype, copy=False)
            hits = np.zeros(len(used), np.int64)
            hits[~used] = logits[~used].argmax(axis=1) == codes[part][~used]
            each = {
                "count": used.astype(np.int64),
                "loss": np.where(used, losses, 0),
                "base_loss": np.where(used, self._base_losses(number, rows, codes[part]), 0),
                "out_count": (~used).astype(np.int64),
                "out_loss": np.where(used, 0, losses),
                "out_correct": hits,
            }
            for name, values in each.items():
                numbers[name] += int(values.sum())
            if sizes:
                sizes.add(part, each, rows[:, -1:] * residuals if self.residuals else None)
        if sizes:
            sizes.end_fold()
        sums: dict[str, Array] = {name: np.array(number) for name, number in numbers.items()}
        return {**sums, "products": products}

    def _base_losses(self, number: int, rows: Floats, codes: Integers) -> Integers | int:
        """Return the loss of each sample at the base of a fold; 0 without a base."""
        if not self.base.size:
            return 0
        logits = exact_logits(rows, self.base[number], self.space)
        return softmax_residuals(logits, codes, self.grid)[1]


_NUMBERS = ("count", "loss", "base_loss", "out_count", "out_loss", "out_correct")


@dataclass(eq=False)
class _ReplySizes:
    """The integer types of the arrays in the reply of each client of a union.

    Residual sums of the last feature, and the largest possible ones, bound the type of a client's
    residual sums. Only where the bounds differ are they made.
    """

    owners: Integers
    types: dict[str, Integers]  # place of the type of each client, so far
    _fold: dict[str, Integers]  # sums of each client in the present fold
    _last: Floats  # residual sums of the last feature, (clients, classes)

    @classmethod
    def of(cls, query: SoftmaxQuery, union: Union) -> _ReplySizes:
        """Return the types before the first fold: the smallest ones."""
        names = (*_NUMBERS, "fingerprint", "products")
        types = {name: np.zeros(union.clients, np.int64) for name in names}
        found = cls(union.owners, types, {}, np.zeros((union.clients, len(query.classes))))
        found.end_fold()
        return found

    def add(self, part: slice, numbers: dict[str, Integers], last: Floats | None) -> None:
        """Add the numbers and the products with the last feature of some samples."""
        owners = self.owners[part]
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        for name, values in numbers.items():
            np.add.at(self._fold[name], owners[starts], np.add.reduceat(values, starts))
        if last is not None:
            np.add.at(self._last, owners[starts], np.add.reduceat(last, starts, axis=0))

    def add_fingerprints(self, hashes: Integers) -> None:
        """Add the hashes of all samples, modulo 2^64."""
        sums = np.zeros_like(self.types["fingerprint"])
        np.add.at(sums, self.owners, hashes)
        self.types["fingerprint"] = narrow_types(sums, sums)

    def end_fold(self) -> None:
        """Take the types of the sums of a fold into account, and begin the next one."""
        for name, sums in self._fold.items():
            np.maximum(self.types[name], narrow_types(sums, sums), out=self.types[name])
        last = types_of_rows(self._last)
        np.maximum(self.types["products"], last, out=self.types["products"])
        self._fold = {name: np.zeros_like(last) for name in _NUMBERS}
        self._last[:] = 0

    def total(self, query: SoftmaxQuery, union: Union, at: str) -> int:
        """Return the sum of the bytes of all replies."""
        before = flops.total()
        if query.residuals:
            most = union.count() * (query.space.bound << query.grid.residuals)
            for client in np.flatnonzero(self.types["products"] < narrow_types(-most, most)):
                alone = query.sums(_of_client(union, int(client)))
                self.types["products"][client] = types_of_rows(alone.products.ravel())
        flops.add(before - flops.total())  # a client does not make its reply twice
        folds, shape = len(query.values), query.values.shape if query.residuals else (0, 0, 0)

        def like(*types: int) -> ResidualSums:
            lengths = {"products": shape, "fingerprint": (1,)}
            arrays = {
                name: of_type(place, *lengths.get(name, (folds,)))
                for name, place in zip(self.types, types, strict=True)
            }
            return ResidualSums(
                **arrays, space=query.space, classes=query.classes, grid=query.grid, at=at
            )

        return total_size(np.stack(list(self.types.values()), axis=1), like)


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


def _of_client(union: Union, client: int) -> Samples:
    """Return the samples of one client of a union, as a part of its block if they are together."""
    rows = np.flatnonzero(union.owners == client)
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return union.samples.take(slice(int(rows[0]), int(rows[-1]) + 1))
    return union.samples.take(rows)


def _blocks(features: Features, classes: int) -> Iterator[tuple[slice, Floats]]:
    """Yield samples in float64 blocks, with their places; all products of a block are exact."""
    size = max(64, _ENTRIES_AT_A_TIME // max(1, classes, features.space.width))
    for start in range(0, len(features), size):
        part = slice(start, start + size)
        yield part, features.values[part].astype(np.float64)
