"""The part of the engine that runs inside a Ray worker: the clients of one shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.engines.in_process import InProcess
from fedgram.engines.ray.placement import unpack
from fedgram.engines.totals import Totals
from fedgram.errors import FedgramError
from fedgram.federation.client import Site
from fedgram.federation.method import create_method
from fedgram.federation.protocol import Exchange
from fedgram.federation.scoring import ScoreTask
from fedgram.federation.step import Step, named_step
from fedgram.federation.union_step import UnionStep
from fedgram.models.linear import Predictor

Encoded = list[tuple[str, bytes]]  # a client's name, and bytes of the codec


@dataclass(frozen=True, kw_only=True)
class ShardAsk:
    """A request to some of the clients of a shard.

    Parameters
    ----------
    number
        Number of the call of `sum` or `gather`, which random numbers depend on.
    step
        Name of the step of the method.
    clients
        Names of the clients.
    totals
        The clients of this shard that are in the last total of each step.
    """

    number: int
    step: str
    clients: tuple[str, ...]
    totals: Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class ShardAnswer:
    """The answer of a shard.

    Parameters
    ----------
    replies
        Encoded replies, each under the name of its client. A partial sum is under the name of its
        first client.
    exchange
        Bytes and operations of the clients that answered.
    stateful
        Whether a client had or has a state.
    models
        Encoded models by digest, each once.
    error
        The error of a client, with its name; None if all answered.
    """

    replies: Encoded
    exchange: Exchange
    stateful: bool = False
    models: Mapping[str, bytes] = field(default_factory=dict)
    error: tuple[str, FedgramError] | None = None


class ShardWorker:
    """The clients of one shard, with their samples and states.

    Parameters
    ----------
    placed
        The sites, as `fedgram.engines.ray.placement.pack` returns them.
    states
        Encoded states of clients that have one.
    method, settings
        Name and parameters of the method whose steps are run.
    seed
        Seed of the random numbers of all clients.
    """

    def __init__(
        self, placed: bytes, states: Encoded, method: str, settings: Mapping[str, Any], seed: int
    ) -> None:
        self._sites = {site.id: site for site in unpack(placed)}
        for name, state in states:
            self._sites[name].state.update(codec.decode(state))
        self._method = create_method(method, settings)
        self._seed = seed
        self._models_sent: set[str] = set()

    def states(self) -> Encoded:
        """Return the states of all clients that have one."""
        return [
            (name, codec.encode(dict(site.state)))
            for name, site in self._sites.items()
            if site.state
        ]

    def sum(self, ask: ShardAsk, broadcast: bytes) -> ShardAnswer:
        """Run a step and return the sum of the replies; single replies if a sum is not exact."""
        return self._answer(ask, broadcast, merge=True)

    def gather(self, ask: ShardAsk, broadcast: bytes) -> ShardAnswer:
        """Run a step and return each reply."""
        return self._answer(ask, broadcast, merge=False)

    def score(
        self, ask: ShardAsk, shared: bytes, task: Mapping[str, Any], first: bool, keep: bool
    ) -> ShardAnswer:
        """Personalize and score; return each client's score, and each model once.

        Parameters
        ----------
        ask
            The clients; no step is named.
        shared
            The encoded result to score.
        task
            Fields of `ScoreTask`, except method and `keep`.
        first
            Whether this is the first request of a scoring.
        keep
            Whether to return models.
        """
        if first:
            self._models_sent.clear()
        models: dict[str, Predictor] = {}
        whole = ScoreTask(method=self._method, keep=models.__setitem__, **task)
        engine, result = _ShardEngine(self._asked(ask), ask, self._seed), codec.decode(shared)
        replies: Encoded = []
        fresh: dict[str, bytes] = {}
        error = None
        try:
            for name, score in engine.evaluate(whole, result):
                replies.append((name, codec.encode(score)))
                digest = score.model_digest
                if keep and digest is not None and digest not in self._models_sent:
                    fresh[digest] = codec.encode(models[name])
                    self._models_sent.add(digest)
        except FedgramError as raised:
            error = ask.clients[engine.asks[-1].clients], raised
        return ShardAnswer(replies=replies, exchange=engine.asks[-1], models=fresh, error=error)

    def _answer(self, ask: ShardAsk, broadcast: bytes, *, merge: bool) -> ShardAnswer:
        sites = self._asked(ask)
        before = any(site.state for site in sites)
        engine = _ShardEngine(sites, ask, self._seed)
        step, argument = named_step(self._method, ask.step), codec.decode(broadcast)
        replies: Encoded = []
        error = None
        try:
            found = engine.partial_sums(step, argument) if merge else engine.gather(step, argument)
            replies = [(name, codec.encode(reply)) for name, reply in found]
        except FedgramError as raised:
            error = ask.clients[engine.asks[-1].clients], raised
        return ShardAnswer(
            replies=replies,
            exchange=engine.asks[-1],
            stateful=before or any(site.state for site in sites),
            error=error,
        )

    def _asked(self, ask: ShardAsk) -> list[Site]:
        return [self._sites[name] for name in ask.clients]


class _ShardEngine(InProcess):
    """The engine of one request: only its clients are members."""

    def __init__(self, sites: Sequence[Site], ask: ShardAsk, seed: int) -> None:
        super().__init__(sites, seed=seed)
        self._asked = ask.number - 1
        self._totals = Totals.from_dict(ask.totals)

    def partial_sums(self, step: Step[Any], broadcast: Any) -> Iterator[tuple[str, Any]]:
        """Yield the sum of all replies, or the replies if the order of additions matters."""
        if isinstance(step, UnionStep):
            union = self._sum_of_union(step, broadcast, self.clients)
            if union is not None:
                yield self.clients[0], union
                return
        total: tuple[str, Any] | None = None
        for name, reply in self.gather(step, broadcast):
            if not adds_exactly(reply):
                yield name, reply
            else:
                total = (name, reply) if total is None else (total[0], total[1] + reply)
        if total is not None:
            yield total


def adds_exactly(value: Additive) -> bool:
    """Whether sums of this value do not depend on the order: all of its numbers are integers.

    Examples
    --------
    >>> from fedgram.core.weighted import Weighted
    >>> adds_exactly(Weighted.of(np.array([0.5, 0.1]), 3))
    True
    """
    return all(_is_whole(getattr(value, name)) for name in value.summed_fields())


def _is_whole(content: Any) -> bool:
    if isinstance(content, Additive):
        return adds_exactly(content)
    return np.asarray(content).dtype.kind in "biu"
