"""All clients in Ray workers, on one machine or many: partial sums travel and are added exactly."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from fedgram.core import codec
from fedgram.engines.in_process import InProcess
from fedgram.engines.protocol import SCORING
from fedgram.engines.ray.cluster import LOCAL, Cluster
from fedgram.engines.ray.placement import balanced
from fedgram.engines.ray.shard import Shard
from fedgram.engines.ray.worker import ShardAnswer, ShardAsk
from fedgram.errors import ConfigError, FedgramError
from fedgram.federation.client import Client, Site
from fedgram.federation.method import PACKAGE, Method
from fedgram.federation.protocol import Phase, Total
from fedgram.federation.scoring import ScoreTask, SiteScore
from fedgram.federation.step import Reply, Step, step_name
from fedgram.models.linear import Predictor

Result = TypeVar("Result")

_ROOM = 2**26  # bytes of single replies that are requested at once
_FIRST = 16  # clients in the first of several requests
_UNSENT = ("method", "keep", "digests")  # fields of a ScoreTask that a worker has itself


class RayFederation(InProcess):
    """A federation whose clients live in Ray workers.

    Every worker has some of the sites, with about equally many samples. A worker runs the steps
    of its clients and returns their partial sum. Sums on the grid are integers, so totals, digests
    and recorded bytes equal those of `InProcess` for any number of workers. Values whose sums are
    not exact (``grid = "off"``) are returned one by one and added in the order of the clients'
    names. Random numbers depend on seed, client and number of the request, as in one process.

    A worker that is lost is replaced. Its clients get their samples and their states again, and a
    request that it did not answer is repeated; exchanges count each answer once. Where a client's
    step fails, the clients that the record counts are those that had answered in all workers.

    Parameters
    ----------
    sites
        The sites. This process keeps their samples, to place them again.
    method
        The method whose steps are run; workers create it from its name and its settings.
    name
        Its name, or the ``.py`` file that holds it, which every machine needs at the same path. By
        default the name of a method that comes with fedgram.
    workers
        Number of Ray workers.
    address
        "local" to start Ray on this machine, "auto", or the address of a cluster.
    on_loss
        Called with the number of clients and the reason when a worker is lost.
    options
        Options of `InProcess`.
    """

    def __init__(
        self,
        sites: Iterable[Site],
        *,
        method: Method[Any],
        name: str | None = None,
        workers: int = 1,
        address: str = LOCAL,
        on_loss: Callable[[int, str], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(sites, workers=workers, **options)
        self._cluster = Cluster(address, cpus=workers)
        self._about = _findable(method, name), method.settings(), self._seed
        self._on_loss = on_loss
        self._shards: list[Shard] = []
        self.losses = 0

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        groups = balanced(self._sites, self._workers)
        self._shards = [Shard(self._cluster, group, self._about, self._lost) for group in groups]
        return self

    def __exit__(self, *_: object) -> None:
        for shard in self._shards:
            shard.end()
        self._shards.clear()
        self._cluster.__exit__()

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        names = self._survivors(self._prepare(step, clients)[0])
        request = self._request("sum", step, broadcast)
        exact = all(self._site(name).train.features.space.exact for name in names)
        replies = self._replies(request, names, len(names) if exact else _FIRST)
        total: Total = functools.reduce(operator.add, (reply for _, reply in replies))
        self._totals.summed(step, broadcast, names)
        return total

    def evaluate(
        self, step: Callable[[Site, Client, Any], Result], shared: Any
    ) -> Iterator[tuple[str, Result]]:
        """Yield the score of each site, with the site's part of `shared`."""
        if not isinstance(step, ScoreTask):
            raise ConfigError(f"Ray workers score by ScoreTask, got {step_name(step)}")
        return cast(Iterator[tuple[str, Result]], self._scores(step, shared))

    def _scores(self, task: ScoreTask, shared: Any) -> Iterator[tuple[str, SiteScore]]:
        plain = {f.name: getattr(task, f.name) for f in fields(task) if f.name not in _UNSENT}
        models: dict[str, Predictor] = {}
        first = True

        def send(shard: Shard, ask: ShardAsk, content: Any) -> Any:
            return shard.send("score", ask, content, plain, first, task.keep is not None)

        def received(answer: ShardAnswer) -> None:
            models.update((key, codec.decode(data)) for key, data in answer.models.items())

        request = _Request(
            phase="score",
            step=step_name(task),
            number=SCORING,
            content=self._cluster.put(codec.encode(shared)),
            send=send,
            received=received,
        )
        for name, score in self._replies(request, self.clients, _FIRST):
            first = False
            if task.keep and score.model_digest is not None:
                task.keep(name, models[score.model_digest])
            yield name, score

    def _ask(
        self,
        step: Step[Reply],
        broadcast: Any,
        names: Sequence[str],
        client_at: Callable[[str], Client],  # the clients are in the workers
    ) -> Iterator[tuple[str, Reply]]:
        return self._replies(self._request("gather", step, broadcast), names, _FIRST)

    def _request(self, verb: str, step: Step[Any], broadcast: Any) -> _Request:
        return _Request(
            phase="train",
            step=step_name(step),
            number=self._asked,
            content=self._cluster.put(codec.encode(broadcast)),
            send=lambda shard, ask, content: shard.send(verb, ask, content),
        )

    def _replies(
        self, request: _Request, names: Sequence[str], window: int
    ) -> Iterator[tuple[str, Any]]:
        """Yield replies in the order of names, and record the exchange even if it is interrupted.

        `window` clients are asked first, then as many as have room in memory.
        """
        start = time.perf_counter()
        clients = up = down = flops = done = 0
        try:
            while done < len(names):
                answers = self._answers(request, names[done : done + window])
                for each in (answer.exchange for answer in answers):
                    clients, up, down = (
                        clients + each.clients,
                        up + each.bytes_up,
                        down + each.bytes_down,
                    )
                    flops += each.flops
                _raise_first(answers)
                replies = sorted(reply for answer in answers for reply in answer.replies)
                for name, content in replies:
                    yield name, codec.decode(content, origin=f"client {name}")
                done += window
                largest = max(len(content) for _, content in replies)
                window = max(1, min(2 * window, _ROOM // largest))
                if self._on_reply:
                    self._on_reply(request.step, clients, len(names))
        finally:
            self._record(request.step, request.phase, clients, up, down, start, flops)

    def _answers(self, request: _Request, names: Sequence[str]) -> list[ShardAnswer]:
        """Ask all shards that have some of these clients, at the same time."""
        asked, sent = frozenset(names), []
        for shard in self._shards:
            if inside := sorted(asked & shard.clients):
                ask = ShardAsk(
                    number=request.number,
                    step=request.step,
                    clients=tuple(inside),
                    totals=self._totals.among(shard.clients),
                )
                sent.append((shard, request.send(shard, ask, request.content)))
        answers = [shard.receive(each) for shard, each in sent]
        for answer in answers:
            request.received(answer)
        return answers

    def _lost(self, clients: int, reason: str) -> None:
        self.losses += 1
        if self._on_loss:
            self._on_loss(clients, reason)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Request:
    """A request to all shards: how an exchange is recorded, and how a shard is asked."""

    phase: Phase
    step: str
    number: int
    content: Any  # reference to the encoded broadcast
    send: Callable[[Shard, ShardAsk, Any], Any]
    received: Callable[[ShardAnswer], None] = lambda _: None


def _raise_first(answers: Iterable[ShardAnswer]) -> None:
    """Raise the error of the first client in the order of names, if there is one."""
    errors: dict[str, FedgramError] = dict(a.error for a in answers if a.error is not None)
    if errors:
        raise errors[min(errors)]


def _findable(method: Method[Any], name: str | None) -> str:
    """Return the name by which a worker finds the method."""
    if name is not None:
        return str(Path(name).resolve()) if name.endswith(".py") else name
    package, _, module = type(method).__module__.rpartition(".")
    if package != PACKAGE:
        raise ConfigError(
            f"{type(method).__name__}: a Ray worker finds a method by its name; give the .py file "
            "that holds it as name"
        )
    return module.replace("_", "-")
