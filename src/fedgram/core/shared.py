"""What a method shares with clients: the questions every shared result answers."""

from __future__ import annotations

from typing import Any

from fedgram.core import codec


class Shared:
    """Base of what a method shares.

    A subclass is a registered dataclass with `space` and `classes`, as fields or properties: the
    space and the class list that a client's samples must have. The answers below suit a result
    that is the same for every client; a subclass changes those that are different.

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
        """Return what one client is sent."""
        return self

    def provenance(self) -> str:
        """Return the digest of the totals behind this result.

        Totals on the grid are integers, so that digest is the same on every machine. Without
        totals it is the digest of the result itself.
        """
        return codec.digest(self)

    def predictor(self) -> Any:
        """Return a model for clients without samples of their own; None where there is none."""
        return None

    @property
    def tuned(self) -> Any:
        """The settings that were chosen for all clients (`Tuned`); None where none were."""
        return None


def provenance(shared: Any) -> str:
    """Return the digest of the totals behind a shared result, else of the result itself."""
    return shared.provenance() if isinstance(shared, Shared) else codec.digest(shared)


def part_for(shared: Any, client: str) -> Any:
    """Return what one client is sent of a shared result."""
    return shared.part_for(client) if isinstance(shared, Shared) else shared
