"""What a method may ask of a federation, whatever carries the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.federation.client import Client

Total = TypeVar("Total", bound=Additive)
Reply = TypeVar("Reply")
Phase = Literal["train", "deliver", "score"]
Step = Callable[[Client, Any], Reply]


class Federation(Protocol):
    """Clients that can be asked for sums: all a method knows of the world.

    A step is a method's own function ``step(client, broadcast)``. It runs at each client.
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


def gather_to_disk(federation: Federation, step: Step[Total], shelf: codec.DiskStore) -> Total:
    """Gather replies, put each on a shelf and return their total: one is in memory at a time."""
    replies = federation.gather(step)
    client, total = next(replies)
    shelf[client] = total
    for client, own in replies:
        shelf[client] = own
        total = total + own
    return total


def step_name(step: Callable[..., Any]) -> str:
    """Return the name a step goes by in messages and records."""
    return getattr(step, "__name__", type(step).__name__)


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


@codec.register("Tailored/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PerClient:
    """A shared result of which each client is sent its own part only.

    Parameters
    ----------
    common
        What a client without a part of its own is sent.
    own
        Parts by client name.
    """

    common: Any
    own: dict[str, Any]

    def provenance(self) -> str:
        """Digest of what the parts were made from."""
        return provenance(self.common)


@codec.register("Settled/1", fields={"description": "told", "left_out_accuracy": "reasons"})
@dataclass(frozen=True, eq=False, kw_only=True)
class Tuned:
    """What is shared, with the settings that were chosen for everybody.

    Parameters
    ----------
    shared
        What a method with these settings shares.
    setting
        The chosen ones, by name.
    description
        The same in words.
    left_out_accuracy
        What speaks for them: accuracy on samples that were left out, of them and of others.
    invariant
        Whether the settings are the same however samples are spread over clients.
    notes
        What else is recorded of the fit; nothing depends on it.
    """

    shared: Any
    setting: dict[str, Any]
    description: str = ""
    left_out_accuracy: dict[str, float] = field(default_factory=dict)
    invariant: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    def provenance(self) -> str:
        """Digest of what is shared and of the settings."""
        return codec.digest({"shared": provenance(self.shared), "setting": self.setting})

    def to_dict(self) -> dict[str, Any]:
        """Return the choice and its reasons as plain numbers and texts, for JSON."""
        return {
            "settings": self.setting,
            "description": self.description,
            "left_out_accuracy": self.left_out_accuracy,
            "notes": self.notes,
        }


def tuned_settings(shared: Any) -> Tuned | None:
    """Return what was chosen for everybody, None where nothing was."""
    common = shared.common if isinstance(shared, PerClient) else shared
    return common if isinstance(common, Tuned) else None


def unwrap(shared: Any, **given: Any) -> tuple[Any, dict[str, Any]]:
    """Return what is shared and the settings: those chosen for everybody, else the given ones."""
    if isinstance(shared, Tuned):
        return shared.shared, {**given, **shared.setting}
    return shared, given


def part_for(shared: Any, client: str) -> Any:
    """Return what one client is sent of a shared result."""
    return shared.own.get(client, shared.common) if isinstance(shared, PerClient) else shared


def provenance(shared: Any) -> str:
    """Return the digest of the totals a shared result stands on, else of the result itself.

    Totals on the grid are integers, so this digest is the same on every machine; a solved array
    is only the same for the same BLAS.
    """
    known = getattr(shared, "provenance", None)
    return known() if known else codec.digest(shared)
