"""Values that add and subtract exactly: a commutative group.

`Additive` is the base class of all values that a server, or secure aggregation, sums over clients.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from fedgram.errors import DataError, MismatchError

_SCHEMA = "agreed"  # keys of the metadata of a field
_FLOATS = "floats"
_MODULAR = "modular"
_MOST = 2**63 - 1


def schema_field(**kwargs: Any) -> Any:
    """Declare a field of an `Additive` that is not summed and must be equal on both sides.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
    ... class Sum(Additive):
    ...     total: int = 0
    ...     unit: str = schema_field(default="")
    >>> Sum(total=1, unit="mg") + Sum(total=2, unit="mg")
    Sum(total=3, unit='mg')
    """
    return dataclasses.field(metadata={_SCHEMA: True}, **kwargs)


def feature_field(**kwargs: Any) -> Any:
    """Declare an array of sums of features: int64 on the grid, float64 in a space without one."""
    return dataclasses.field(metadata={_FLOATS: True}, **kwargs)


def modular_field(**kwargs: Any) -> Any:
    """Declare an array whose sums are meant modulo 2^64; its entries may have any size."""
    return dataclasses.field(metadata={_MODULAR: True}, **kwargs)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Additive:
    """A commutative group, field by field.

    A subclass is a frozen dataclass. Its fields are numbers or arrays that add up, except those
    declared with `schema_field`, which must be equal on both sides. Integer arrays wrap modulo
    2^64, so the group laws hold to the last bit whatever the order of additions and subtractions.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False, kw_only=True)
    ... class Purse(Additive):
    ...     coins: int = 0
    ...     currency: str = schema_field(default="")
    >>> two, three = Purse(coins=2, currency="EUR"), Purse(coins=3, currency="EUR")
    >>> (two + three - two) == three
    True
    >>> two + Purse(coins=1, currency="SEK")
    Traceback (most recent call last):
    ...
    fedgram.errors.MismatchError: Purse: currency differs: 'EUR' and 'SEK'
    """

    @classmethod
    def zero(cls) -> Self:
        """Return the neutral element: every field at its default."""
        return cls()

    def lacks_schema(self) -> bool:
        """Whether this value is a zero that adds to values of any schema."""
        return False

    def validate(self, sites: int = 1) -> None:
        """Raise an error if no data of a client can give this value.

        Called wherever a value enters from outside: before it is added, stored or used. A valid
        value can still be false. Here the fields are checked against their declarations. A
        subclass with limits of its own extends this.

        Parameters
        ----------
        sites
            Number of sites that add to the same total: each may use this fraction of its range.
        """
        self.validate_declared(sites)
        for part in self._parts():
            part.validate(sites)

    def validate_declared(self, sites: int = 1) -> None:
        """Raise an error for a field of another kind than declared.

        Checked are the type of its numbers, the number of axes, finite floats, and integers so
        small that a sum over all sites cannot wrap. This holds for totals too.

        Parameters
        ----------
        sites
            Number of sites that add to the same total.
        """
        declared = type(self).zero()
        for each in dataclasses.fields(self):
            found, wanted = (type(getattr(whole, each.name)) for whole in (self, declared))
            if found is not wanted:
                raise DataError(
                    f"{type(self).__name__}.{each.name}: expected {wanted.__name__}, got "
                    f"{found.__name__}"
                )
        self._validate_schema()
        for each in dataclasses.fields(self):
            value, default = getattr(self, each.name), getattr(declared, each.name)
            name = f"{type(self).__name__}.{each.name}"
            if isinstance(value, np.ndarray):
                _require_type(name, value, default, self._dtype(each, default))
            if not each.metadata.get(_SCHEMA) and not each.metadata.get(_MODULAR):
                _require_room(name, value, _MOST // max(1, sites))

    def claimed_samples(self) -> int:
        """Return the number of samples that this value claims to be the sum of; 0 if none."""
        return max((part.claimed_samples() for part in self._parts()), default=0)

    def claimed_weight(self) -> int:
        """Return the weight that this value claims in a weighted sum; 0 if it has none.

        `Method.most_weight` says how large that of an honest site can be.
        """
        return max((part.claimed_weight() for part in self._parts()), default=0)

    def _parts(self) -> list[Additive]:
        found = (getattr(self, name) for name in self.summed_fields())
        return [part for part in found if isinstance(part, Additive)]

    def _dtype(self, field: dataclasses.Field[Any], default: Any) -> Any:
        space: Any = getattr(self, "space", None)
        floats = field.metadata.get(_FLOATS) and space.width and not space.exact
        return np.dtype(np.float64) if floats else default.dtype

    def _validate_schema(self) -> None:
        """Raise an error for an invalid feature space, or names of classes that are not unique."""
        space, classes = getattr(self, "space", None), getattr(self, "classes", ())
        if space is not None:
            space.validate()
        if not all(type(name) is str for name in classes) or len({*classes}) < len(classes):
            raise DataError(
                f"{type(self).__name__}.classes: expected different names, each of them a text"
            )

    @classmethod
    def sum_of(cls, values: Sequence[Self]) -> Self:
        """Return the sum of many small values, faster than one addition after the other.

        Examples
        --------
        >>> from fedgram.core.tally import Tally
        >>> one = Tally(clients=1, histogram=np.arange(101))
        >>> Tally.sum_of([one, one, one]) == one + one + one, Tally.sum_of([]) == Tally.zero()
        (True, True)
        """
        values = [value for value in values if not value.lacks_schema()]
        if not values:
            return cls.zero()
        first = values[0]
        for other in values[1:]:
            if type(other) is not type(first):
                return functools.reduce(operator.add, values)  # which raises an error
            first.require_same_schema(other)
            first._require_same_shapes(other)
        keys = type(first).summed_fields()  # of a subclass: those that it adds too
        sums = {key: _sum([getattr(value, key) for value in values]) for key in keys}
        return dataclasses.replace(first, **sums)

    def __add__(self, other: Self) -> Self:
        return self._combine(other, operator.add)

    def __radd__(self, other: object) -> Self:
        if other == 0:  # the start value of the built-in sum
            return self
        return NotImplemented

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, operator.sub)

    def __neg__(self) -> Self:
        return dataclasses.replace(self, **{k: -getattr(self, k) for k in self.summed_fields()})

    def __eq__(self, other: object) -> bool:
        """Whether every field is equal, arrays in type, shape and every entry."""
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _same(getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)
        )

    __hash__ = None  # type: ignore[assignment]  # equal by content, and the content is large

    def _combine(self, other: Self, op: Callable[[Any, Any], Any]) -> Self:
        if type(other) is not type(self):
            raise MismatchError(
                f"expected another {type(self).__name__} to add, got {type(other).__name__}"
            )
        if other.lacks_schema():
            return self
        if self.lacks_schema():
            return other if op is operator.add else -other
        self.require_same_schema(other)
        self._require_same_shapes(other)
        return dataclasses.replace(
            self, **{k: op(getattr(self, k), getattr(other, k)) for k in self.summed_fields()}
        )

    @classmethod
    @functools.cache
    def summed_fields(cls) -> tuple[str, ...]:
        """Return the names of the fields that add up."""
        return tuple(f.name for f in dataclasses.fields(cls) if not f.metadata.get(_SCHEMA))

    @classmethod
    @functools.cache
    def schema_fields(cls) -> tuple[str, ...]:
        """Return the names of the fields that must be equal on both sides."""
        return tuple(f.name for f in dataclasses.fields(cls) if f.metadata.get(_SCHEMA))

    def require_same_schema(self, other: Self) -> None:
        """Raise MismatchError unless all fields declared with `schema_field` are equal."""
        for name in self.schema_fields():
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                explain = getattr(ours, "difference", None)
                detail = explain(theirs) if explain else f"{ours!r} and {theirs!r}"
                raise MismatchError(f"{type(self).__name__}: {name} differs: {detail}")

    def _require_same_shapes(self, other: Self) -> None:
        for (
            name
        ) in self.summed_fields():  # NumPy would broadcast one array to the shape of the other
            ours, theirs = _shape(getattr(self, name)), _shape(getattr(other, name))
            if ours != theirs:
                raise MismatchError(
                    f"{type(self).__name__}: {name} differs in shape: {ours} and {theirs}"
                )


def _shape(value: Any) -> tuple[int, ...]:
    return value.shape if isinstance(value, np.ndarray) else ()


def _sum(parts: list[Any]) -> Any:
    if isinstance(parts[0], Additive):
        return type(parts[0]).sum_of(parts)
    return functools.reduce(operator.add, parts)


def require_shape(name: str, array: Any, *shape: int) -> None:
    """Raise DataError unless an array has this shape."""
    if array.shape != shape:
        raise DataError(f"{name}: expected the shape {shape}, got {array.shape}")


def _require_type(name: str, value: Any, default: Any, dtype: Any) -> None:
    if value.dtype != dtype:
        raise DataError(f"{name}: expected numbers of type {dtype}, got {value.dtype}")
    if value.ndim != default.ndim:
        raise DataError(f"{name}: expected {default.ndim} axes, got {value.ndim}")
    if dtype.kind == "f" and not np.isfinite(value).all():
        raise DataError(f"{name}: expected finite numbers, got others")


def _require_room(name: str, value: Any, most: int) -> None:
    """Raise DataError for integers that leave no room in a sum for those of other sites."""
    integers = isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.size
    if integers:
        low, high = int(value.min()), int(value.max())
    else:
        low = high = value if type(value) is int else 0
    if low < -most or high > most:
        raise DataError(
            f"{name}: expected magnitudes up to {most}, got {max(-low, high)}; with other "
            "sites the sum may overflow"
        )


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)
