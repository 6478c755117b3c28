"""A stand-in for the wire: sites in this process, reached by number, with faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from fedgram.data.sources import load
from fedgram.engines.remote.office import Office
from fedgram.experiment.config import Config
from fedgram.experiment.record import Record
from fedgram.experiment.runner import Result
from fedgram.experiment.sites import sites
from fedgram.experiment.toml import written
from fedgram.federated.serve import serve
from fedgram.federated.settings import read_federation
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


def federation(
    tmp_path: Path,
    *methods: str,
    clients: int = 4,
    rules: dict[str, Any] | None = None,
    **tables: Any,
) -> tuple[Path, Config]:
    """Write the folder of a server whose clients share the digits."""
    settings = {
        "methods": list(methods),
        "data": {"clients": clients, "valid_fraction": 0.1, "dirichlet": 1.0},
        **tables,
        "federation": {"minimum": clients, **(rules or {})},
    }
    folder = tmp_path / "server"
    folder.mkdir(exist_ok=True)
    (folder / "federation.toml").write_text(written(settings))
    config, _ = read_federation(folder / "federation.toml")
    return folder, config


def served(
    tmp_path: Path, *methods: str, fault: Fault | None = None, **more: Any
) -> tuple[Path, Config, StandIn, list[str]]:
    """Run a federation by letter; return its record, settings, carrier and what the server said."""
    folder, config = federation(tmp_path, *methods, **more)
    carrier = StandIn(offices(config, tmp_path / "sites"), fault)
    said: list[str] = []
    return serve(carrier, folder, said.append), config, carrier, said


def in_process(config: Config, name: str) -> Result:
    """Run the same federation in this process."""
    return config.run(name, sites(load("digits"), config.data, config.grid), record=Record())
