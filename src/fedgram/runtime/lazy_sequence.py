"""A sequence whose items are made when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

Item = TypeVar("Item")


class LazySequence(Sequence[Item]):
    """Base class of tables that look like a sequence of items: a million items take no memory.

    Examples
    --------
    >>> class Squares(LazySequence):
    ...     def __len__(self):
    ...         return 4
    ...     def make(self, place):
    ...         return place**2
    >>> list(Squares()), Squares()[-1], Squares()[1:3], Squares() == [0, 1, 4, 9]
    ([0, 1, 4, 9], 9, [1, 4], True)
    """

    @abstractmethod
    def make(self, place: int) -> Item:
        """Return the item at a place from 0."""

    @overload
    def __getitem__(self, place: int) -> Item: ...

    @overload
    def __getitem__(self, place: slice) -> list[Item]: ...

    def __getitem__(self, place: int | slice) -> Item | list[Item]:
        if isinstance(place, slice):
            return [self.make(k) for k in range(*place.indices(len(self)))]
        return self.make(range(len(self))[place])  # raises IndexError, and counts from the end

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has equal items."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal by content
