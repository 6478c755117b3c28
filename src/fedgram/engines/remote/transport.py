"""The interface of a transport: Flower, or anything else that reaches sites by number."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol


class Transport(Protocol):
    """Sends requests to nodes and returns their answers, in any order; answers may be lost."""

    def nodes(self) -> Collection[int]:
        """Return the connected nodes."""

    def send(self, node: int, request: bytes, *, patience: float) -> str:
        """Send a request that is valid for `patience` seconds; return a ticket for its answer."""

    def receive(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | str]]:
        """Yield the answers for some tickets so far: bytes, or the reason of a failure."""

    def wait(self, seconds: float) -> None:
        """Wait for more answers, at most for this time."""

    def now(self) -> float:
        """Return the time in seconds, from any origin."""
