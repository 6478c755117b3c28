"""The federation as a method sees it, over any transport."""

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
    """Clients whose replies can be summed: all that a method sees.

    A step is a method's own function ``step(client, broadcast)``, declared with `@step`. It runs
    at each client.
    """

    @property
    def clients(self) -> Sequence[str]:
        """Names of the members, sorted."""

    @property
    def private(self) -> bool:
        """Whether the server may see sums only."""

    @property
    def contributors(self) -> Sequence[str]:
        """Names of the clients in the last total that `sum` returned, sorted; at first none."""

    @property
    def rng(self) -> np.random.Generator:
        """The server's random generator until the next call, from the run's seed."""

    def sum(
        self,
        step: Step[Total],
        broadcast: Any = None,
        *,
        clients: Iterable[str] | None = None,
    ) -> Total:
        """Return the total of the replies; the server sees only that.

        `contributors` are the clients in the total. Clients that do not answer are not among them.
        A federation with a ledger asks only for contributions that the ledger lacks, and returns
        the ledger's total. That total includes members of the ledger that are absent now. A ledger
        is used only if all clients are asked, there is no broadcast, and the replies are exact
        `Statistics`: then a reply depends on the client's samples alone.

        Parameters
        ----------
        step
            The step to run at each client.
        broadcast
            Argument of the step, the same for all clients.
        clients
            Names of the clients to ask; all by default.
        """

    def gather(
        self,
        step: Step[Reply],
        broadcast: Any = None,
        *,
        clients: Iterable[str] | None = None,
    ) -> Iterator[tuple[str, Reply]]:
        """Yield each client's name and reply: the server sees every reply.

        A private federation raises PrivacyError.

        Parameters
        ----------
        step
            The step to run at each client.
        broadcast
            Argument of the step, the same for all clients.
        clients
            Names of the clients to ask; all by default.
        """


def gather_to_disk(federation: Federation, step: Step[Total], store: DiskStore) -> Total:
    """Gather and store replies, and return their total; beyond a limit they are stored on disk."""
    replies = federation.gather(step)
    client, total = next(replies)
    store[client] = total
    for client, own in replies:
        store[client] = own
        total = total + own
    return total


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The record of one exchange with some of the clients.

    Bytes of the encoded messages and FLOPs of the clients are summed over the clients that
    answered. ``sent_up`` and ``sent_down`` are the bytes of the messages as they were sent, which
    may be compressed; None in a simulation, which sends nothing.
    """

    step: str
    phase: Phase
    clients: int
    bytes_up: int
    bytes_down: int
    seconds: float
    flops: int = 0
    sent_up: int | None = None
    sent_down: int | None = None


def traffic(asks: Iterable[Exchange]) -> dict[str, int]:
    """Return bytes up and down of training and delivery, mean per client of the federation.

    A client that is not asked counts with zero bytes.

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
