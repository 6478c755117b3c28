"""Values that add and subtract exactly: a commutative group.

`Additive` is the base class of all values that a server, or secure aggregation, sums over clients.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from fedgram.errors import MismatchError

_SCHEMA = "agreed"  # key of the metadata of a schema field


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

        A server validates each reply before adding the reply. A valid value can still be false. A
        subclass with limits of its own overrides this; here, summed values in fields are validated.

        Parameters
        ----------
        sites
            Number of sites that add to the same total: each may use this fraction of its range.
        """
        for name in self.summed_fields():
            if isinstance(part := getattr(self, name), Additive):
                part.validate(sites)

    def validate_class_sums(self, like: Self, classes: tuple[str, ...]) -> None:
        """Raise an error if sums by class contradict the number of samples.

        Targets may be others than the classes, such as codes of them: then there is nothing to
        check.

        Parameters
        ----------
        like
            What the same step returns for one sample.
        classes
            The class list of the samples.
        """
        for name in self.summed_fields():
            if isinstance(part := getattr(self, name), Additive):
                part.validate_class_sums(getattr(like, name), classes)

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
    def summed_fields(cls) -> tuple[str, ...]:
        """Return the names of the fields that add up."""
        return tuple(f.name for f in dataclasses.fields(cls) if not f.metadata.get(_SCHEMA))

    @classmethod
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
            ours, theirs = np.shape(getattr(self, name)), np.shape(getattr(other, name))
            if ours != theirs:
                raise MismatchError(
                    f"{type(self).__name__}: {name} differs in shape: {ours} and {theirs}"
                )


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)
