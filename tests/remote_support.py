"""A stand-in for the wire: sites in this process, reached by number, with faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from fedgram.engines.remote.office import Office
from fedgram.experiment.config import Config
from fedgram.federated.site import simulated

Fault = Callable[[int, bytes, Callable[[bytes], bytes]], bytes | str | None]


class StandIn:
    """Carries requests to offices at once; time passes only by waiting.

    `fault` may answer in a node's place: bytes, a reason why there are none, or None for silence.
    """

    def __init__(self, offices: dict[int, Office], fault: Fault | None = None) -> None:
        self.offices = offices
        self.fault = fault
        self.time = 0.0
        self.sent: list[tuple[int, bytes]] = []
        self._waiting: dict[str, bytes | str | None] = {}

    def nodes(self) -> Collection[int]:
        return list(self.offices)

    def send(self, node: int, request: bytes, *, patience: float) -> str:
        assert patience >= 0
        ticket = f"ticket {len(self.sent)}"
        self.sent.append((node, request))
        answer = self.offices[node].answer
        self._waiting[ticket] = self.fault(node, request, answer) if self.fault else answer(request)
        return ticket

    def receive(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | str]]:
        for ticket in tickets:
            content = self._waiting.get(ticket)
            if content is not None:
                del self._waiting[ticket]
                yield ticket, content

    def wait(self, seconds: float) -> None:
        self.time += max(seconds, 0.01)

    def now(self) -> float:
        return self.time


def offices(config: Config, folder: Path) -> dict[int, Office]:
    """Return the offices of all clients that the data are dealt to, by node."""
    return {100 + k: simulated(config, k, folder) for k in range(config.data.clients)}
