"""The base class of shared results: what a method sends to its clients."""

from __future__ import annotations

from typing import Any

from fedgram.core import codec
from fedgram.core.samples import Space


class Wrapper:
    """Base of values made of another value, with its space and its class list.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Head:
    ...     space: Space
    ...     classes: tuple[str, ...]
    >>> @dataclass(frozen=True)
    ... class Halved(Wrapper):
    ...     head: Head
    ...
    ...     @property
    ...     def wrapped(self) -> Head:
    ...         return self.head
    >>> Halved(Head(Space(width=3), ("cat", "dog"))).classes
    ('cat', 'dog')
    """

    @property
    def wrapped(self) -> Any:
        """The value whose space and class list this one has."""
        raise NotImplementedError

    @property
    def space(self) -> Space:
        """The feature space of the wrapped value."""
        space: Space = self.wrapped.space
        return space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list of the wrapped value, in the order of its scores."""
        classes: tuple[str, ...] = self.wrapped.classes
        return classes


class Shared:
    """Base class of shared results.

    A subclass is a registered dataclass with `space` and `classes`, as fields or properties: the
    space and the class list that a client's samples must have. The defaults below are those
    of a result that is the same for all clients; a subclass overrides them.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @codec.register("Nothing/1")
    ... @dataclass(frozen=True)
    ... class Nothing(Shared):
    ...     classes: tuple[str, ...] = ()
    >>> nothing = Nothing()
    >>> nothing.part_for("north") is nothing, nothing.predictor(), nothing.tuned
    (True, None, None)
    """

    def part_for(self, client: str) -> Any:  # noqa: ARG002  # it is the same for all
        """Return the part of the result that is sent to one client."""
        return self

    def provenance(self) -> str:
        """Return the digest of the totals behind this result.

        Totals on the grid are integers, so that digest is the same on every machine. Without
        totals it is the digest of the result itself.
        """
        return codec.digest(self)

    def predictor(self) -> Any:
        """Return a model for clients without samples; None if there is no such model."""
        return None

    @property
    def tuned(self) -> Any:
        """The settings that were chosen for all clients (`Tuned`); None without selection."""
        return None


def provenance(shared: Any) -> str:
    """Return the digest of the totals behind a shared result, else of the result itself."""
    return shared.provenance() if isinstance(shared, Shared) else codec.digest(shared)


def part_for(shared: Any, client: str) -> Any:
    """Return the part of a shared result that is sent to one client."""
    return shared.part_for(client) if isinstance(shared, Shared) else shared


def same_for_all(shared: Any) -> bool:
    """Whether every client is sent the whole of a shared result, and not a part of its own."""
    return not isinstance(shared, Shared) or type(shared).part_for is Shared.part_for
