"""All clients in this process: deterministic, with one contribution in memory at a time."""

from __future__ import annotations

import functools
import itertools
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Integers
from fedgram.core.shared import part_for, same_for_all
from fedgram.engines.protocol import (
    DROPOUT,
    SCORING,
    client_rng,
    refusal,
    resolve_clients,
    server_rng,
)
from fedgram.engines.totals import Totals
from fedgram.errors import ConfigError, FedgramError, at_client
from fedgram.federation.client import Client, Site
from fedgram.federation.protocol import Exchange, Phase, Total
from fedgram.federation.scoring import ScoreTask, SiteScore
from fedgram.federation.sites import Sites
from fedgram.federation.stacked_step import StackedStep
from fedgram.federation.step import Reply, Step, step_name
from fedgram.federation.union_scoring import (
    OwnScore,
    UnionScores,
    can_score_models,
    can_score_together,
    joined_scores,
    score_together,
)
from fedgram.federation.union_step import UnionStep
from fedgram.runtime import flops

Item = TypeVar("Item")
Result = TypeVar("Result")
Answer = tuple[Result, int, int, int]  # a reply, bytes up and down, FLOPs

# Clients in a batch: of large ones more save little, and workers wait for each other.
_MOST_TOGETHER, _LARGE_TOGETHER, _ROWS_TOGETHER = 2**8, 10, 2**12
_SCORED = 16  # clients that are scored in a group
_ROOM = 2**23  # bytes of the parameters of all clients in a batch


class InProcess:
    """A federation of sites held in this process.

    Replies are added in the order of the clients' names. Besides the sum, one contribution is in
    memory with one worker, and the number of workers plus two with several workers. Steps with a
    batched form (`fedgram.training.batched`) run for several clients at once, up to 8 MB of
    parameters, and stacked steps (`fedgram.federation.stacked_step`) for small clients of up to
    4,096 samples in all; memory then grows by the size of a batch. The result depends on none of
    this.

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
        name of the step and the numbers of clients done and asked; of clients that are computed
        together, after some of them.

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
        self._sites = Sites.of(sites).sorted()
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
        return self._sites.names

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
        names, client_at = self._prepare(step, clients)
        names = self._survivors(names)
        total = None
        if isinstance(step, UnionStep):
            total = self._sum_of_union(step, broadcast, names)
        if total is None:
            replies = self._ask(step, broadcast, names, client_at)
            total = functools.reduce(operator.add, (reply for _, reply in replies))
        self._totals.summed(step, broadcast, names)
        return total

    def gather(
        self, step: Step[Reply], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Reply]]:
        if self._private:
            raise refusal(step)
        names, client_at = self._prepare(step, clients)
        replies = self._ask(step, broadcast, self._survivors(names), client_at)
        return self._totals.gathered(step, broadcast, replies)

    def evaluate(
        self, step: Callable[[Site, Client, Any], Result], shared: Any
    ) -> Iterable[tuple[str, Result]]:
        """Return the result of `step` at each site, with the site's part of `shared`.

        Only the runner calls this method, because the step sees the site's test data. The state of
        the client is read-only. Sites that all have one model are scored together.
        """
        if self.clients and isinstance(step, ScoreTask):
            found: Any = self._evaluate_together(step, shared)
            if found is not None:
                return cast(Iterable[tuple[str, Result]], found)
        sizes: dict[int, int] = {}  # many clients get the same part

        def at(name: str) -> Answer[Result]:
            site, part = self._site(name), part_for(shared, name)
            if id(part) not in sizes:
                sizes[id(part)] = _size(part)
            client = self._scored_client(name)
            result, flops = with_flops(lambda: step(site, client, part))
            return result, _size(result), sizes[id(part)], flops

        return self._exchange("score", step_name(step), self.clients, at)

    def _evaluate_together(self, task: ScoreTask, shared: Any) -> UnionScores | None:
        """Return the scores of all sites with one model; None if they are to be made one by one."""
        client = self._scored_client(self.clients[0])
        try:
            if can_score_together(task, shared):
                return self._evaluate_one_model(task, client, shared)
            if can_score_models(task, client):
                return self._evaluate_models(task, shared)
        except FedgramError:
            pass  # the error at a client names this client
        return None

    def _evaluate_one_model(self, task: ScoreTask, client: Client, shared: Any) -> UnionScores:
        start, name, clients = time.perf_counter(), step_name(task), len(self._sites)
        found, flops = with_flops(lambda: score_together(task, self._sites, client, shared))
        down = clients * _size(shared)
        self._record(name, "score", clients, found.size(), down, start, flops)
        self._report(name, clients, clients, clients)
        return found

    def _evaluate_models(self, task: ScoreTask, shared: Any) -> UnionScores:
        start, name, clients = time.perf_counter(), step_name(task), len(self._sites)

        def at(site: Site) -> OwnScore:
            with at_client(site.id, name):
                client = self._scored_client(site.id)
                return OwnScore.of(task, site, client, part_for(shared, site.id))

        def at_all(group: Sequence[Site]) -> tuple[list[OwnScore], int]:
            return with_flops(lambda: [at(site) for site in group])

        found: list[OwnScore] = []
        flops = 0
        groups = [self._sites[k : k + _SCORED] for k in range(0, clients, _SCORED)]
        for some, more in self._spread(at_all, groups):
            found += some
            flops += more
            self._report(name, len(some), len(found), clients)
        scores = joined_scores(task, self._sites, found)
        self._record(name, "score", clients, scores.size(), self._sent(shared), start, flops)
        return scores

    def _sent(self, shared: Any) -> int:
        """Return the bytes of what all clients receive of a shared result."""
        if same_for_all(shared):
            return len(self._sites) * _size(shared)
        parts = [part_for(shared, name) for name in self.clients]
        sizes: dict[int, int] = {}  # many clients get the same part
        for part in parts:
            if id(part) not in sizes:
                sizes[id(part)] = _size(part)
        return sum(sizes[id(part)] for part in parts)

    def _scored_client(self, name: str) -> Client:
        rng, totals = client_rng(self._seed, name, SCORING), self._totals.of(name)
        return self._site(name).client(rng, frozen=True, totals=totals)

    def deliver(self, shared: Any, round_: int = 0) -> None:
        """Count one delivery of the final result to every client."""
        start = time.perf_counter()
        self._record("deliver", "deliver", len(self._sites), 0, self._sent(shared), start)

    def _sum_of_union(self, step: UnionStep, broadcast: Any, names: Sequence[str]) -> Any:
        """Return the sum over the clients in batches; None if it has to be made one by one."""
        start, done, up, flops = time.perf_counter(), 0, 0, 0
        batches = list(self._sites.batches(self._sites.places(names)))
        total, failed = None, False
        try:
            work = self._spread(lambda batch: self._union_at(step, broadcast, batch), batches)
            for batch, ((part, size), more) in zip(batches, work, strict=True):
                total, done = part if total is None else total + part, done + len(batch)
                up, flops = up + size, flops + more
                self._report(step_name(step), len(batch), done, len(names))
        except FedgramError:
            failed = True  # the error at a client names this client
        finally:
            if not failed:
                down = done * _size(broadcast)
                self._record(step_name(step), "train", done, up, down, start, flops)
        return None if failed else total

    def _report(self, step: str, new: int, done: int, asked: int) -> None:
        """Tell of the clients of a batch: of each if they are few, else about a hundred times."""
        if self._on_reply:
            for count in (*range(done - new + 1, done, 1 + new // 100), done):
                self._on_reply(step, count, asked)

    def _union_at(
        self, step: UnionStep, broadcast: Any, batch: Integers
    ) -> tuple[tuple[Any, int], int]:
        return with_flops(lambda: step.total(self._sites.closed_form(batch), broadcast))

    def _ask(
        self,
        step: Step[Result],
        broadcast: Any,
        names: Sequence[str],
        client_at: Callable[[str], Client],
    ) -> Iterator[tuple[str, Result]]:
        down = _size(broadcast)
        if isinstance(step, StackedStep):
            return self._stacked(step, broadcast, names, client_at)
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

        rows = self._sites.train.counts[self._sites.places(names)].mean()
        most = max(_LARGE_TOGETHER, int(_ROWS_TOGETHER / max(1, rows)))
        groups = self._groups(names, min(_MOST_TOGETHER, most, _ROOM // max(1, down)))
        return self._run_groups("train", step_name(step), groups, at_all)

    def _stacked(
        self,
        step: StackedStep[Result],
        broadcast: Any,
        names: Sequence[str],
        client_at: Callable[[str], Client],
    ) -> Iterator[tuple[str, Result]]:
        """Yield the replies of clients that are computed in stacks; of a failed one, one by one."""
        down = _size(broadcast)

        def at(name: str) -> Answer[Result]:
            with at_client(name, step_name(step)):
                reply, flops = with_flops(lambda: step(client_at(name), broadcast))
                return reply, _size(reply), down, flops

        def at_all(group: Sequence[str]) -> Iterable[Answer[Result]]:
            try:
                members = [client_at(name) for name in group]
                replies, flops = with_flops(lambda: step.stacked(members, broadcast))
            except FedgramError:
                return map(at, group)  # the error at a client names this client
            return [(r, _size(r), down, 0 if k else flops) for k, r in enumerate(replies)]

        groups = self._sites.stacks(self._sites.places(names))
        listed = [[names[place] for place in group] for group in groups]
        return self._run_groups("train", step_name(step), listed, at_all)

    def _prepare(
        self, step: Step[Result], clients: Iterable[str] | None
    ) -> tuple[Sequence[str], Callable[[str], Client]]:
        """Return the asked clients, and a function that returns the `Client` of a name."""
        names = resolve_clients(step, clients, self.clients)
        self._asked += 1
        number = self._asked

        def client_at(name: str) -> Client:
            rng = client_rng(self._seed, name, number)
            return self._site(name).client(rng, totals=self._totals.of(name))

        return names, client_at

    def _site(self, name: str) -> Site:
        return self._sites[self._sites.place(name)]

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
        at: Callable[[Sequence[str]], Iterable[Answer[Result]]],
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
    if isinstance(value, SiteScore):
        return value.size()
    return 0 if value is None else codec.counted(value)
