"""All clients in this process: deterministic, with one contribution in memory at a time."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from fedgram.core import codec
from fedgram.core.shared import part_for
from fedgram.engines.protocol import (
    DROPOUT,
    SCORING,
    client_rng,
    refusal,
    resolve_clients,
    server_rng,
)
from fedgram.engines.totals import Totals
from fedgram.errors import ConfigError, DataError, at_client
from fedgram.federation.client import Client, Site
from fedgram.federation.protocol import Exchange, Phase, Total
from fedgram.federation.step import Reply, Step, step_name
from fedgram.runtime import flops

Item = TypeVar("Item")
Result = TypeVar("Result")
Answer = tuple[Result, int, int, int]  # a reply, bytes up and down, FLOPs

_MOST_TOGETHER = 10  # clients in a batch; more save little, and workers wait for each other
_ROOM = 2**23  # bytes of the parameters of all clients in a batch


class InProcess:
    """A federation of sites held in this process.

    Replies are added in the order of the clients' names. Besides the sum, one contribution is in
    memory with one worker, and the number of workers plus two with several workers. Steps with a
    batched form (`fedgram.training.batched`) run for several clients at once, up to 8 MB of
    parameters; memory then grows by the size of a batch. The result depends on none of this.

    Parameters
    ----------
    sites
        The sites.
    seed
        Seed of the random numbers of all clients.
    workers
        Number of clients that compute at the same time.
    private
        Refuse `gather`, as a federation with secure sums does.
    dropout
        Probability that a client does not answer a request in training. At least one answers.
    on_ask, on_reply
        Called after each exchange with its record, and after each client's part of it with the
        name of the step and the numbers of clients done and asked.

    Examples
    --------
    >>> from fedgram.core.samples import Features, Labels, Samples, Space
    >>> from fedgram.core.statistics import Statistics
    >>> rows = Features(np.array([[1], [2], [3]], dtype=np.int8), Space(width=1, bound=127))
    >>> everything = Samples(rows, Labels(np.array([0, 1, 1]), ("no", "yes")))
    >>> nothing = everything.take([])
    >>> sites = [
    ...     Site(id=name, train=everything.take(part), valid=nothing, test=nothing)
    ...     for name, part in (("north", [0]), ("south", [1, 2]))
    ... ]
    >>> def statistics(client, broadcast):
    ...     return Statistics.of(client.train.features, client.train.labels)
    >>> federation = InProcess(sites)
    >>> federation.sum(statistics).gram, federation.asks[0].clients
    (array([14]), 2)
    """

    def __init__(
        self,
        sites: Iterable[Site],
        *,
        seed: int = 0,
        workers: int = 1,
        private: bool = False,
        dropout: float = 0.0,
        on_ask: Callable[[Exchange], None] | None = None,
        on_reply: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._sites: dict[str, Site] = {}
        for site in sites:
            if site.id in self._sites:
                raise DataError(f"client {site.id}: two clients have this name; names must differ")
            self._sites[site.id] = site
        if workers < 1:
            raise ConfigError(f"engine.workers = {workers}: use at least 1")
        if seed < 0:
            raise ConfigError(f"engine.seed = {seed}: use 0 or more")
        if not 0 <= dropout < 1:
            raise ConfigError(f"engine.dropout = {dropout}: use 0 <= dropout < 1")
        self._dropout = dropout
        self._seed = seed
        self._workers = workers
        self._private = private
        self._on_ask = on_ask
        self._on_reply = on_reply
        self._asked = 0
        self._totals = Totals()
        self.asks: list[Exchange] = []

    @property
    def clients(self) -> Sequence[str]:
        return sorted(self._sites)

    @property
    def private(self) -> bool:
        return self._private

    @property
    def contributors(self) -> Sequence[str]:
        return self._totals.contributors

    @property
    def rng(self) -> np.random.Generator:
        return server_rng(self._seed, self._asked)

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        replies = self._ask(step, broadcast, clients)
        first, total = next(replies)
        names = [first]
        for name, reply in replies:
            total = total + reply
            names.append(name)
        self._totals.summed(step, broadcast, names)
        return total

    def gather(
        self, step: Step[Reply], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Reply]]:
        if self._private:
            raise refusal(step)
        return self._totals.gathered(step, broadcast, self._ask(step, broadcast, clients))

    def evaluate(
        self, step: Callable[[Site, Client, Any], Result], shared: Any
    ) -> Iterator[tuple[str, Result]]:
        """Yield the result of `step` at each site, with the site's part of `shared`.

        Only the runner calls this method, because the step sees the site's test data. The state of
        the client is read-only.
        """
        sizes: dict[int, int] = {}  # many clients get the same part

        def at(name: str) -> Answer[Result]:
            site, part = self._sites[name], part_for(shared, name)
            if id(part) not in sizes:
                sizes[id(part)] = _size(part)
            rng, totals = client_rng(self._seed, name, SCORING), self._totals.of(name)
            client = site.client(rng, frozen=True, totals=totals)
            result, flops = with_flops(lambda: step(site, client, part))
            return result, _size(result), sizes[id(part)], flops

        return self._exchange("score", step_name(step), self.clients, at)

    def deliver(self, shared: Any, round_: int = 0) -> None:
        """Count one delivery of the final result to every client."""
        start = time.perf_counter()
        parts = {id(part): part for part in (part_for(shared, name) for name in self.clients)}
        sizes = {key: _size(part) for key, part in parts.items()}  # often one part for all clients
        down = sum(sizes[id(part_for(shared, name))] for name in self.clients)
        self._record("deliver", "deliver", len(self._sites), 0, down, start)

    def _ask(
        self, step: Step[Result], broadcast: Any, clients: Iterable[str] | None
    ) -> Iterator[tuple[str, Result]]:
        names, client_at = self._prepare(step, clients)
        down, names = _size(broadcast), self._survivors(names)
        together = getattr(step, "together", None)
        if together is None:

            def at(name: str) -> Answer[Result]:
                reply, flops = with_flops(lambda: step(client_at(name), broadcast))
                return reply, _size(reply), down, flops

            return self._exchange("train", step_name(step), names, at)

        def at_all(group: Sequence[str]) -> list[Answer[Result]]:
            members = [client_at(name) for name in group]
            replies, flops = with_flops(lambda: together(members, broadcast))
            # Only the sum of the FLOPs is known: it is counted at the first client.
            return [(r, _size(r), down, 0 if k else flops) for k, r in enumerate(replies)]

        groups = self._groups(names, min(_MOST_TOGETHER, _ROOM // max(1, down)))
        return self._run_groups("train", step_name(step), groups, at_all)

    def _prepare(
        self, step: Step[Result], clients: Iterable[str] | None
    ) -> tuple[Sequence[str], Callable[[str], Client]]:
        """Return the asked clients, and a function that returns the `Client` of a name."""
        names = resolve_clients(step, clients, self.clients)
        self._asked += 1
        number = self._asked

        def client_at(name: str) -> Client:
            rng = client_rng(self._seed, name, number)
            return self._sites[name].client(rng, totals=self._totals.of(name))

        return names, client_at

    def _groups(self, names: Sequence[str], most: int) -> list[Sequence[str]]:
        """Return groups of at most `most` clients, with equally many groups for each worker."""
        turns = -(-len(names) // (self._workers * max(1, most)))
        count = min(len(names), self._workers * turns)
        ends = [len(names) * k // count for k in range(count + 1)]
        return [names[begin:end] for begin, end in itertools.pairwise(ends)]

    def _exchange(
        self,
        phase: Phase,
        step: str,
        names: Sequence[str],
        at: Callable[[str], Answer[Result]],
    ) -> Iterator[tuple[str, Result]]:
        """Yield each client's reply, and record the exchange even if it is interrupted."""

        def alone(group: Sequence[str]) -> list[Answer[Result]]:
            (name,) = group
            with at_client(name, step):
                return [at(name)]

        return self._run_groups(phase, step, [[name] for name in names], alone)

    def _run_groups(
        self,
        phase: Phase,
        step: str,
        groups: Sequence[Sequence[str]],
        at: Callable[[Sequence[str]], list[Answer[Result]]],
    ) -> Iterator[tuple[str, Result]]:
        """Do the same with groups of clients whose replies are computed together."""
        start = time.perf_counter()
        clients = up = down = flops = 0
        asked = sum(map(len, groups))
        try:
            for group, answers in zip(groups, self._spread(at, groups), strict=True):
                for name, (reply, bytes_up, bytes_down, more) in zip(group, answers, strict=True):
                    clients, up, down = clients + 1, up + bytes_up, down + bytes_down
                    flops += more
                    yield name, reply
                    if self._on_reply:
                        self._on_reply(step, clients, asked)
        finally:
            self._record(step, phase, clients, up, down, start, flops)

    def _spread(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the results in order.

        One item more than there are workers is submitted, so that no worker waits for the sum.
        """
        if self._workers == 1:
            yield from map(work, items)
            return
        with ThreadPoolExecutor(self._workers) as pool:
            coming = iter(items)
            ahead = deque(pool.submit(work, item) for item in islice(coming, self._workers + 1))
            while ahead:
                result = ahead.popleft().result()
                ahead.extend(pool.submit(work, item) for item in islice(coming, 1))
                yield result

    def _survivors(self, names: Sequence[str]) -> Sequence[str]:
        """Return the clients that answer: all clients, unless some drop out."""
        if not self._dropout:
            return names
        rng = server_rng(self._seed, self._asked, DROPOUT)
        always = names[int(rng.integers(len(names)))]
        stays = rng.random(len(names)) >= self._dropout
        return [name for name, here in zip(names, stays, strict=True) if here or name == always]

    def _record(
        self,
        step: str,
        phase: Phase,
        clients: int,
        up: int,
        down: int,
        start: float,
        flops: int = 0,
    ) -> None:
        ask = Exchange(
            step=step,
            phase=phase,
            clients=clients,
            bytes_up=up,
            bytes_down=down,
            seconds=time.perf_counter() - start,
            flops=flops,
        )
        self.asks.append(ask)
        if self._on_ask:
            self._on_ask(ask)


def with_flops(step: Callable[[], Result]) -> tuple[Result, int]:
    """Return the result of a step and its FLOPs, which are removed from the server's count."""
    before = flops.total()
    result = step()
    operations = flops.total() - before
    flops.add(-operations)
    return result, operations


def _size(value: Any) -> int:
    return 0 if value is None else codec.counted(value)
