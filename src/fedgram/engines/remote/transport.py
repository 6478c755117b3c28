"""What must carry the messages: Flower, or anything that can reach sites by number."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol


class Transport(Protocol):
    """Sends requests to nodes and brings back what they answer, in any order, or not at all."""

    def nodes(self) -> Collection[int]:
        """Return the nodes that are there now."""

    def send(self, node: int, request: bytes, *, patience: float) -> str:
        """Send a request that is of use for so many seconds; return a ticket for its answer."""

    def receive(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | str]]:
        """Yield, one at a time, what has come for some tickets: bytes, or why there are none."""

    def wait(self, seconds: float) -> None:
        """Let time pass until more may have come, this long at most."""

    def now(self) -> float:
        """Return a clock in seconds."""
