"""What a method may ask of a federation, whatever carries the messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from fedgram.core.additive import Additive
from fedgram.core.disk_store import DiskStore
from fedgram.federation.step import Reply, Step

Total = TypeVar("Total", bound=Additive)
Phase = Literal["train", "deliver", "score"]


class Federation(Protocol):
    """Clients that can be asked for sums: all a method knows of the world.

    A step is a method's own function ``step(client, broadcast)``, declared with `@step`. It runs
    at each client.
    """

    @property
    def clients(self) -> Sequence[str]:
        """Names of the members, sorted."""

    @property
    def private(self) -> bool:
        """Whether the server may see nothing but sums."""

    @property
    def rng(self) -> np.random.Generator:
        """The server's randomness until the next ask, from the run's seed."""

    def sum(
        self,
        step: Step[Total],
        broadcast: Any = None,
        *,
        clients: Iterable[str] | None = None,
    ) -> Total:
        """Return the total of the replies; the server sees only that."""

    def gather(
        self,
        step: Step[Reply],
        broadcast: Any = None,
        *,
        clients: Iterable[str] | None = None,
    ) -> Iterator[tuple[str, Reply]]:
        """Yield each client's reply as it comes: the server sees every one of them.

        To use this is a statement about privacy; a private federation refuses it.
        """


def gather_to_disk(federation: Federation, step: Step[Total], shelf: DiskStore) -> Total:
    """Gather replies, put each on a shelf and return their total: one is in memory at a time."""
    replies = federation.gather(step)
    client, total = next(replies)
    shelf[client] = total
    for client, own in replies:
        shelf[client] = own
        total = total + own
    return total


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One exchange with some of the clients, as it is recorded.

    Bytes are those of the encoded payloads, and operations those counted at the clients, both
    added up over the clients that answered.
    """

    step: str
    phase: Phase
    clients: int
    bytes_up: int
    bytes_down: int
    seconds: float
    flops: int = 0


def traffic(asks: Iterable[Exchange]) -> dict[str, int]:
    """Return bytes up and down of training and delivery, mean per client of the federation.

    A client that is not asked neither sends nor gets anything: it counts as zero.

    Examples
    --------
    >>> ask = Exchange(step="s", phase="train", clients=2, bytes_up=10, bytes_down=4, seconds=0.0)
    >>> traffic([ask, ask])
    {'up': 10, 'down': 4}
    """
    counted = [ask for ask in asks if ask.phase != "score"]
    clients = max((ask.clients for ask in counted), default=0) or 1
    return {
        "up": round(sum(ask.bytes_up for ask in counted) / clients),
        "down": round(sum(ask.bytes_down for ask in counted) / clients),
    }
