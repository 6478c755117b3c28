"""A shard as the server sees it: its worker, and what is needed to replace the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedgram.core import codec
from fedgram.engines.ray.cluster import Cluster, WorkerLost
from fedgram.engines.ray.placement import pack
from fedgram.engines.ray.worker import Encoded, ShardAnswer, ShardAsk, ShardWorker
from fedgram.errors import FederationError
from fedgram.federation.client import Site

MOST_LOSSES = 3  # workers that one request may lose
LOGGED = 8  # requests that are repeated in a new worker at most; then states are fetched


@dataclass(frozen=True, eq=False, kw_only=True)
class Sent:
    """A request under way: the worker it was sent to, what was sent, and where the answer will be.

    Parameters
    ----------
    worker
        The worker.
    answer
        Reference to the answer.
    verb, ask, arguments
        The called method of the worker, and its arguments.
    """

    worker: Any
    answer: Any
    verb: str
    ask: ShardAsk
    arguments: tuple[Any, ...]


class Shard:
    """Some of the clients, in one Ray worker that is replaced when it is lost.

    A new worker gets the samples again and the last states that were fetched. Then it repeats the
    requests since, if clients kept something in them. Their random numbers depend on the numbers of
    the requests, so the states become the same to the bit.

    Parameters
    ----------
    cluster
        The connection to Ray.
    sites
        The sites.
    method
        Name, settings and seed: arguments of `ShardWorker`.
    on_loss
        Called with the number of clients and the reason when a worker is lost.
    """

    def __init__(
        self,
        cluster: Cluster,
        sites: Sequence[Site],
        method: tuple[str, dict[str, Any], int],
        on_loss: Callable[[int, str], None],
    ) -> None:
        self._cluster = cluster
        self._sites = sites
        self._method = method
        self._on_loss = on_loss
        self.clients = frozenset(site.id for site in sites)
        self._states: Encoded = [
            (site.id, codec.encode(dict(site.state))) for site in sites if site.state
        ]
        self._log: list[Sent] = []  # since the states were fetched
        self._worker = self._started()

    def send(self, verb: str, ask: ShardAsk, *arguments: Any) -> Sent:
        """Send a request to the worker."""
        answer = self._cluster.call(self._worker, verb, ask, *arguments)
        return Sent(worker=self._worker, answer=answer, verb=verb, ask=ask, arguments=arguments)

    def receive(self, sent: Sent) -> ShardAnswer:
        """Return the answer to a request, which is sent again if the worker is lost."""
        for _ in range(MOST_LOSSES):
            try:
                answer: ShardAnswer = self._cluster.get(sent.answer)
                if answer.stateful:
                    self._logged(sent)
                return answer
            except WorkerLost as lost:
                reason = str(lost)
                if sent.worker is self._worker:
                    self._replace(reason)
                sent = self.send(sent.verb, sent.ask, *sent.arguments)
        raise FederationError(
            f"{sent.ask.step}: the Ray worker of {len(self.clients)} clients was lost "
            f"{MOST_LOSSES} times ({reason}); use more engine.workers, or machines with more memory"
        )

    def end(self) -> None:
        """End the worker."""
        self._cluster.end(self._worker)

    def _started(self) -> Any:
        placed = self._cluster.put(pack(self._sites))
        return self._cluster.start(ShardWorker, placed, self._states, *self._method)

    def _replace(self, reason: str) -> None:
        """Start a new worker, and bring its clients' states to where they were."""
        self._on_loss(len(self.clients), reason)
        self.end()
        self._worker = self._started()
        for sent in self._log:
            self.send(sent.verb, sent.ask, *sent.arguments)  # in order; nobody needs the answers

    def _logged(self, sent: Sent) -> None:
        """Note a request that may have changed states; fetch the states when there are many."""
        self._log.append(sent)
        if len(self._log) >= LOGGED:
            try:
                self._states = self._cluster.get(self._cluster.call(self._worker, "states"))
            except WorkerLost:
                return  # the next request replaces the worker and repeats what is logged
            self._log.clear()
