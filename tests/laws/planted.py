"""Implementations with one mistake each, on which the laws must fail."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from safetensors.numpy import load as unpacked
from threadpoolctl import threadpool_info

from fedgram import Samples, Statistics, Tally
from fedgram.core import codec
from fedgram.errors import DataError

# Values that add and subtract.


@dataclass(frozen=True, eq=False, kw_only=True)
class Averaging(Statistics):
    """Stores the mean Gram matrix instead of the sum."""

    def __add__(self, other: Self) -> Self:
        if self.lacks_schema() or other.lacks_schema():
            return super().__add__(other)
        count = self.count + other.count
        total = self.count * self.gram.astype(float) + other.count * other.gram.astype(float)
        mean = np.clip(total / (count or 1), -(2**62), 2**62).astype(np.int64)
        return replace(super().__add__(other), gram=mean)


@dataclass(frozen=True, eq=False, kw_only=True)
class Single(Statistics):
    """Sums in float32."""

    def __add__(self, other: Self) -> Self:
        if self.lacks_schema() or other.lacks_schema():
            return super().__add__(other)
        total = self.gram.astype(np.float32) + other.gram.astype(np.float32)
        return replace(super().__add__(other), gram=total.astype(np.float64))


@dataclass(frozen=True, eq=False, kw_only=True)
class Saturating(Statistics):
    """Stops at the largest int32 instead of going on."""

    def _combine(self, other: Self, op: Callable[[Any, Any], Any]) -> Self:
        total = super()._combine(other, op)
        return replace(total, moment=np.clip(total.moment, -(2**31), 2**31 - 1))


@dataclass(frozen=True, eq=False, kw_only=True)
class FirstComes(Statistics):
    """Keeps the first one's energy: the order matters."""

    def __add__(self, other: Self) -> Self:
        return replace(super().__add__(other), energy=self.energy)


@dataclass(frozen=True, eq=False, kw_only=True)
class Swallowing(Statistics):
    """A zero that does not adopt what the other side has agreed on."""

    def __add__(self, other: Self) -> Self:
        return self if self.lacks_schema() else super().__add__(other)


@dataclass(frozen=True, eq=False, kw_only=True)
class Magnitude(Statistics):
    """Loses the sign of the count."""

    def __neg__(self) -> Self:
        return replace(super().__neg__(), count=abs(self.count))


@dataclass(frozen=True, eq=False, kw_only=True)
class InPlace(Statistics):
    """Adds into its own array to save memory."""

    def __add__(self, other: Self) -> Self:
        total = super().__add__(other)
        self.gram[...] = total.gram
        return total


@dataclass(frozen=True, eq=False, kw_only=True)
class Restarting(Statistics):
    """Does not know how the built-in sum starts."""

    def __radd__(self, other: object) -> Self:
        return self.zero()


@dataclass(frozen=True, eq=False, kw_only=True)
class Careless(Statistics):
    """Adds whatever comes, without asking what it means."""

    def require_same_schema(self, other: Self) -> None:
        pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairwise(Tally):
    """Averages accuracies two by two."""

    def __add__(self, other: Self) -> Self:
        if self.lacks_schema() or other.lacks_schema():
            return super().__add__(other)
        return replace(super().__add__(other), accuracies=(self.accuracies + other.accuracies) // 2)


# Values that become bytes and come back.


class Codec:
    """The real one; each subclass makes one mistake."""

    encode = staticmethod(codec.encode)
    decode = staticmethod(codec.decode)
    digest = staticmethod(codec.digest)


class DropsSign(Codec):
    @staticmethod
    def encode(value: Any) -> bytes:
        return codec.encode(_mapped(value, lambda a: a if a.dtype == bool else np.abs(a)))


class NarrowsTooFar(Codec):
    """Takes 128 to 255 for eight signed bits."""

    @staticmethod
    def encode(value: Any) -> bytes:
        def narrowed(array: np.ndarray) -> np.ndarray:
            small = array.size and array.min() > -129 and array.max() < 256
            return array.astype(np.int8).astype(array.dtype) if small else array

        return codec.encode(_mapped(value, narrowed))


class KeepsNarrow(Codec):
    """Hands out the arrays as they travelled."""

    @staticmethod
    def decode(data: bytes) -> Any:
        sent = {name: array.dtype for name, array in unpacked(data).items()}
        kinds = iter(sent.values())
        return _mapped(codec.decode(data), lambda a: a.astype(next(kinds)))


class NeverNarrows(Codec):
    @staticmethod
    def encode(value: Any) -> bytes:
        wide = _mapped(value, lambda a: a.view(np.uint64) if a.dtype == np.int64 else a)
        return codec.encode(wide)

    @staticmethod
    def decode(data: bytes) -> Any:
        return _mapped(
            codec.decode(data), lambda a: a.view(np.int64) if a.dtype == np.uint64 else a
        )


class ForgetsTuples(Codec):
    @staticmethod
    def decode(data: bytes) -> Any:
        return _listed(codec.decode(data))


class Numbered(Codec):
    """Gives every message a number of its own."""

    _numbers = itertools.count()

    @classmethod
    def encode(cls, value: Any) -> bytes:
        return codec.encode({"number": next(cls._numbers), "value": value})

    @staticmethod
    def decode(data: bytes) -> Any:
        return codec.decode(data)["value"]


class Trusting(Codec):
    """Makes something of any bytes."""

    @staticmethod
    def decode(data: bytes) -> Any:
        try:
            return codec.decode(data)
        except DataError:
            return None


class HashesMessage(Codec):
    """Takes the hash of the message, narrowed as it is."""

    @staticmethod
    def digest(value: Any) -> str:
        return hashlib.sha256(codec.encode(value)).hexdigest()


def _mapped(value: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Return the value with every array changed."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value)]
        return replace(value, **{n: _mapped(getattr(value, n), change) for n in fields})
    return value


def _listed(value: Any) -> Any:
    """Return the value with lists for tuples."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, Statistics):
        return replace(value, classes=list(value.classes))
    return value


# Statistics of samples.


def unblocked(batches: Sequence[Samples]) -> Statistics:
    """Multiply a whole batch in float32, without blocks."""
    return _summed(batches, lambda rows: (_f32(rows).T @ _f32(rows)).astype(np.int64))


def real_units(batches: Sequence[Samples]) -> Statistics:
    """Sum float64 products in real units instead of integers."""
    return _summed(batches, lambda rows: (rows * 0.1).T @ (rows * 0.1))


def half_precision(batches: Sequence[Samples]) -> Statistics:
    """Round each batch's products to eleven bits."""
    return _summed(batches, lambda rows: _rounded(rows.T @ rows, 11).astype(np.int64))


def centred(batches: Sequence[Samples]) -> Statistics:
    """Measure features from the first row of each batch."""
    return _summed(batches, lambda rows: (rows - rows[0]).T @ (rows - rows[0]))


def rescaled(batches: Sequence[Samples]) -> Statistics:
    """Scale each batch by its own spread."""
    return _summed(batches, lambda rows: rows.T @ rows * int(10 * rows.std()))


def mean_of_batches(batches: Sequence[Samples]) -> Statistics:
    """Store means over the batch, as integers."""
    return _summed(batches, lambda rows: (rows.T @ rows) // len(rows))


def drops_last(batches: Sequence[Samples]) -> Statistics:
    """Leave out a last batch that is shorter than the others."""
    even = [batch for batch in batches if len(batch) == len(batches[0])]
    return of_batches(even)


def by_threads(batches: Sequence[Samples]) -> Statistics:
    """Sum float64 in as many slices as there are BLAS threads."""
    threads = max(library["num_threads"] for library in threadpool_info())

    def gram(rows: np.ndarray) -> np.ndarray:
        return sum((part * 0.1).T @ (part * 0.1) for part in np.array_split(rows, threads))

    return _summed(batches, gram)


def single_floats(batches: Sequence[Samples]) -> Statistics:
    """Sum plain features in float32."""
    return _summed(batches, lambda rows: (_f32(rows).T @ _f32(rows)).astype(np.float64))


def of_batches(batches: Sequence[Samples]) -> Statistics:
    """The real one."""
    return Statistics.over((batch.features, batch.labels) for batch in batches)


def _summed(batches: Sequence[Samples], gram: Callable[[np.ndarray], np.ndarray]) -> Statistics:
    """Return the real statistics with another Gram matrix, summed over the batches."""
    total = Statistics.zero()
    for batch in batches:
        values = batch.features.values
        rows = values.astype(np.int64 if batch.features.space.exact else np.float64)
        upper = gram(rows)[np.triu_indices(rows.shape[1])]
        total = total + replace(Statistics.of(batch.features, batch.labels), gram=upper)
    return total


def _f32(rows: np.ndarray) -> np.ndarray:
    return rows.astype(np.float32)


def _rounded(values: np.ndarray, bits: int) -> np.ndarray:
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)
