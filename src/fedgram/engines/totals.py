"""Who is in which total: leave-one-out steps at a client depend on it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from fedgram.federation.step import Reply, total_name


class Totals:
    """The clients in the last total of each step of a run.

    Examples
    --------
    >>> def statistics(client, broadcast): ...
    >>> totals = Totals()
    >>> totals.summed(statistics, None, ["south", "north"])
    >>> totals.contributors, sorted(totals.of("north")), totals.of("east")
    (['north', 'south'], ['statistics'], frozenset())
    """

    def __init__(self) -> None:
        self._clients: dict[str, Sequence[str]] = {}  # sorted: a set of a million names is large
        self.contributors: Sequence[str] = ()

    def of(self, client: str) -> frozenset[str]:
        """Return the names of the totals that a client is in."""
        return frozenset(name for name, clients in self._clients.items() if _has(clients, client))

    def to_dict(self) -> dict[str, list[str]]:
        """Return the clients in each total, sorted."""
        return {name: list(clients) for name, clients in sorted(self._clients.items())}

    @classmethod
    def from_dict(cls, clients: Mapping[str, Iterable[str]]) -> Self:
        """Return the totals with these clients."""
        totals = cls()
        totals._clients = {name: sorted(members) for name, members in clients.items()}
        return totals

    def among(self, clients: Iterable[str]) -> dict[str, list[str]]:
        """Return those of some clients that are in each total, sorted."""
        asked = sorted(clients)
        return {
            name: [client for client in asked if _has(members, client)]
            for name, members in self._clients.items()
        }

    def summed(self, step: Callable[..., Any], broadcast: Any, clients: Iterable[str]) -> None:
        """Record the clients in the total that a sum returns.

        Parameters
        ----------
        step, broadcast
            The arguments of the sum.
        clients
            Names of the clients in the total.
        """
        self.contributors = sorted(clients)  # linear where they are sorted already
        self._clients[total_name(step, broadcast)] = self.contributors

    def gathered(
        self, step: Callable[..., Any], broadcast: Any, replies: Iterable[tuple[str, Reply]]
    ) -> Iterator[tuple[str, Reply]]:
        """Yield replies, and record the clients: a method adds gathered replies by itself.

        Parameters
        ----------
        step, broadcast
            The arguments of `gather`.
        replies
            Names and replies.
        """
        names = set()
        for name, reply in replies:
            names.add(name)
            yield name, reply
        self._clients[total_name(step, broadcast)] = sorted(names)


def _has(names: Sequence[str], name: str) -> bool:
    """Whether a name is among sorted names."""
    place = bisect_left(names, name)
    return place < len(names) and names[place] == name
