"""A stand-in for the wire: sites in this process, reached by number, with faults on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.deploy.server import run_federation
from fedgram.deploy.settings import plain_grid, read_federation
from fedgram.deploy.site import simulated
from fedgram.engines.remote.messages import Request
from fedgram.engines.remote.site import SiteEndpoint, SitePolicy
from fedgram.experiments.config import Config
from fedgram.experiments.record import Record, read_lines
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.runtime import flops
from fedgram.runtime.toml import written

Fault = Callable[[int, bytes, Callable[[bytes], bytes]], bytes | str | None]
MOST = {"quorum": 0.7, "timeout": 30, "grace": 5}  # three of four will do
REST = ["c0", "c2", "c3"]  # those of four sites who are not c1


class StandIn:
    """Carries requests to offices at once; time passes only by waiting.

    `fault` may answer in a node's place: bytes, a reason why there are none, or None for silence.
    """

    def __init__(self, offices: dict[int, SiteEndpoint], fault: Fault | None = None) -> None:
        self.offices = offices
        self.fault = fault
        self.time = 0.0
        self.sent: list[tuple[int, bytes]] = []
        self.answered: list[bytes | str] = []
        self._waiting: dict[str, bytes | str | None] = {}

    def nodes(self) -> Collection[int]:
        return list(self.offices)

    def send(self, node: int, request: bytes, *, patience: float) -> str:
        assert patience >= 0
        ticket = f"ticket {len(self.sent)}"
        self.sent.append((node, request))
        answer, before = self.offices[node].answer, flops.total()
        self._waiting[ticket] = self.fault(node, request, answer) if self.fault else answer(request)
        flops.add(before - flops.total())  # a site's work is done elsewhere
        return ticket

    def receive(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | str]]:
        for ticket in tickets:
            content = self._waiting.get(ticket)
            if content is not None:
                del self._waiting[ticket]
                self.answered.append(content)
                yield ticket, content

    def wait(self, seconds: float) -> None:
        self.time += max(seconds, 0.01)

    def now(self) -> float:
        return self.time


def kind(request: bytes) -> str:
    """Return what a request asks for."""
    asked: Request = codec.decode(request)
    return asked.kind


def at(node: int, kinds: str, say: Callable[[bytes, Callable[[bytes], bytes]], object]) -> Fault:
    """Return a fault of one node in requests of some kinds; all others answer as they should."""

    def fault(asked, request, answer):
        hit = asked == node and kind(request) in kinds.split()
        return say(request, answer) if hit else answer(request)

    return fault


def changed(**fields: Any) -> Callable[[bytes, Callable[[bytes], bytes]], bytes]:
    """Return a fault: an honest answer with some fields changed; `value` may be made of it."""

    def say(request, answer):
        honest = codec.decode(answer(request))
        made = {key: new(honest) if callable(new) else new for key, new in fields.items()}
        return codec.encode(replace(honest, **made))

    return say


def offices(config: Config, folder: Path) -> dict[int, SiteEndpoint]:
    """Return the offices of all clients that the data are dealt to, by node."""
    return {100 + k: simulated(config, k, folder) for k in range(config.data.clients)}


def members(config: Config) -> list[Site]:
    return list(federate(config.data.load(), config.data, config.grid).members)


def office_of(site: Site, config: Config, folder: Path, **changed: object) -> SiteEndpoint:
    """Return the office of a site, which may have another grid, or accept less."""
    options = {"grid": plain_grid(config.grid), "accept": SitePolicy(), **changed}
    return SiteEndpoint(site.id, lambda: site, folder=folder / "cache", **options)


def federation(tmp_path, *methods, clients=4, rules=None, **tables):
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


def served(tmp_path, *methods, fault=None, **more):
    folder, config = federation(tmp_path, *methods, **more)
    carrier = StandIn(offices(config, tmp_path / "sites"), fault)
    said = []
    out = run_federation(carrier, folder, said.append)
    return out, config, carrier, said


def in_process(config, name, some=None, record=None):
    """Run a method in this process, on some of the sites that the data are dealt to."""
    everybody = federate(config.data.load(), config.data, config.grid)
    if some is not None:
        here = [site if isinstance(site, Site) else _named(everybody, site) for site in some]
        everybody = replace(everybody, members=here)
    return config.run(name, everybody, record=record or Record())


def _named(everybody: FederatedDataset, name: str) -> Site:
    return next(site for site in everybody.members if site.id == name)


def shared_bytes(config, name, some, folder):
    """Return the shared model of a federation that never had anybody else, as it is written."""
    in_process(config, name, some, Record(folder, keep_models=True))
    return (folder / "shared.safetensors").read_bytes()


def notes(out, name):
    """Return what is noted of clients: pairs of a name and a text."""
    return [(note["client"], note["text"]) for note in read_lines(out / name / "notes.jsonl")]


def done(out, name):
    return json.loads((out / f"{name}.done").read_text())


def require_same(out, config, name, *, personal=True):
    """Compare a run with one in this process: digests, what was chosen and why, and scores."""
    expected, found = in_process(config, name).to_dict(), done(out, name)
    for part in (
        "shared_digest",
        "tuned",
        "rate_search",
        *(["model_digest"] if personal else []),
    ):
        assert found[part] == expected[part]
    assert found["accuracy"]["client_mean"] == expected["accuracy"]["client_mean"]
