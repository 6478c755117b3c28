"""The server's end of the wire: a `Federation` of sites that are elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Labels
from fedgram.core.shared import part_for
from fedgram.core.statistics import Statistics
from fedgram.core.tally import Tally
from fedgram.engines.protocol import refusal, resolve_clients, server_rng
from fedgram.engines.remote.collector import Check, Collector, Received
from fedgram.engines.remote.contributions import Contributions
from fedgram.engines.remote.messages import (
    Answer,
    Delivery,
    Held,
    Request,
    RequestKind,
    ScoreRequest,
    Terms,
    request_digest,
)
from fedgram.engines.remote.replay_log import ReplayLog
from fedgram.engines.remote.validation import example, require_possible, require_same_schema
from fedgram.errors import DataError, FederationError, MismatchError
from fedgram.federation.protocol import Exchange, Phase, Total
from fedgram.federation.scoring import ScoreSums, ScoreTask, SiteScore
from fedgram.federation.step import Reply, Step, step_name

_ROOM = 8  # an answer may be so many times as large as that of one sample, whose numbers are small
_LEAST_ROOM = 1 << 20


class RemoteFederation:
    """A federation whose members answer by letter; sums are made as answers come.

    Parameters
    ----------
    post
        Sends and receives.
    names
        The members.
    terms
        What they have agreed to.
    journal
        Where finished exchanges are written down, so that a restarted server goes on.
    members
        Gives where contributions of a kind are kept one by one, if they are.
    private
        Refuse `gather`, and score by sums.
    on_ask
        Called after each exchange with its record.
    """

    def __init__(
        self,
        post: Collector,
        names: Iterable[str],
        terms: Terms,
        journal: ReplayLog,
        *,
        members: Callable[[str], Contributions] | None = None,
        private: bool = False,
        on_ask: Callable[[Exchange], None] | None = None,
    ) -> None:
        self._post = post
        self._names = sorted(names)
        self._terms = terms
        self._journal = journal
        self._members = members
        self._private = private
        self._on_ask = on_ask
        self._asked = self._serial = 0
        self._held: dict[str, tuple[Held, ...]] = {}  # what sites were not asked for, by name
        self.asks: list[Exchange] = []

    @property
    def clients(self) -> Sequence[str]:
        return self._names

    @property
    def private(self) -> bool:
        return self._private

    @property
    def rng(self) -> np.random.Generator:
        return server_rng(self._terms.seed, self._asked)

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        names = self._begin(step, clients)
        like = self._example(step, broadcast)
        if self._members and self._kept(like, broadcast, clients):
            # A step that gives statistics asks for their total.
            kept = self._collected(self._members, step, like)
            return kept.total(self._terms.classes)  # type: ignore[return-value]
        total: Total = self._summed(step_name(step), broadcast, names, like)
        return total

    def gather(
        self, step: Step[Reply], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Reply]]:
        if self._private:
            raise refusal(step)
        names = self._begin(step, clients)
        like = self._example(step, broadcast)
        if self._members and self._kept(like, broadcast, clients):
            each = self._collected(self._members, step, like).each(self._terms.classes)
            yield from each  # type: ignore[misc]
            return
        requests = self._requests(step_name(step), broadcast, names)
        yield from self._gathered("train", step_name(step), requests, like)

    def evaluate(self, step: ScoreTask, shared: Any) -> Iterator[tuple[str, SiteScore]]:
        """Yield the score of each site, without its model's digest if the federation is private."""
        self._serial += 1
        requests = self._parts(
            "score", shared, lambda part: ScoreRequest(part=part, round=step.round, best=step.best)
        )
        like = SiteScore(sums=self._nobody(), model_digest="")
        for name, found in self._gathered("score", "score", requests, like):
            yield name, SiteScore(sums=found.sums) if self._private else found

    def deliver(self, shared: Any, round_: int) -> None:
        """Hand every site the final result; one that is away gets it from the next run."""
        self._serial += 1
        requests = self._parts("deliver", shared, lambda part: Delivery(part=part, round=round_))
        count = Count()
        with suppress(FederationError):  # who did not get it is in the notes
            for received in self._post.ask(requests, limit=_LEAST_ROOM):
                count.add(received.cost)
        self._note(count.ask("deliver", "deliver"))

    def _begin(self, step: Callable[..., Any], clients: Iterable[str] | None) -> Sequence[str]:
        self._serial += 1
        self._asked += 1
        return resolve_clients(step, clients, self._names)

    def _example(self, step: Callable[..., Any], broadcast: Any) -> Any:
        return example(step, broadcast, self._terms.space, self._terms.classes)

    def _mark(self, step: Callable[..., Any], state: dict[str, Any] | None = None) -> str:
        """Return what tells contributions apart that must not be added: what one sample gives.

        What the step remembers is put into `state`.
        """
        return codec.digest(example(step, None, self._terms.space, ("one", "two"), state))

    def _parts(
        self, kind: RequestKind, shared: Any, about_part: Callable[[Any], Any]
    ) -> dict[str, bytes]:
        """Return every site's request about its part of a shared result, most often the same."""
        made: dict[tuple[int, tuple[Held, ...]], bytes] = {}
        requests = {}
        for name in self._names:
            part, held = part_for(shared, name), self._held.get(name, ())
            if (id(part), held) not in made:
                made[id(part), held] = self._request(kind, kind, about_part(part), held)
            requests[name] = made[id(part), held]
        return requests

    def _requests(self, step: str, broadcast: Any, names: Iterable[str]) -> dict[str, bytes]:
        """Return every site's request to do a step, the same for those who were asked alike."""
        held = {name: self._held.get(name, ()) for name in names}
        made = {each: self._request("step", step, broadcast, each) for each in set(held.values())}
        return {name: made[each] for name, each in held.items()}

    def _nobody(self) -> ScoreSums:
        """Return the form that scores have."""
        nobody = Tally.of(np.zeros(0), Labels(np.zeros(0, np.int64), self._terms.classes))
        return ScoreSums(tally=nobody, valid=nobody)

    def _kept(self, like: Any, broadcast: Any, clients: Iterable[str] | None) -> bool:
        """Whether contributions of this kind are kept one by one: sums of the samples alone."""
        alone = broadcast is None and clients is None
        return alone and isinstance(like, Statistics) and like.space.exact

    def _collected(
        self, members: Callable[[str], Contributions], step: Callable[..., Any], like: Any
    ) -> Contributions:
        """Ask those whose contribution is not kept yet, and keep each before the next is read."""
        state: dict[str, Any] = {}
        kept, count = members(self._mark(step, state)), Count()
        missing = kept.missing(self._names)
        requests = self._requests(step_name(step), None, missing)
        joined = self._journal.begun(self._serial)
        for name, cost in joined.items():
            if name not in missing:  # it joined before a restart
                count.add(cost)
        present = set(self._names) - set(missing)
        needed = max(0, self._post.needed(len(self._names)) - len(present))
        if state:
            self._hold(present - joined.keys(), step_name(step))

        def check(name: str, _: Answer) -> None:
            if reason := kept.refusal(name):
                raise MismatchError(f"it {reason}")

        for received in self._answers(requests, like, needed=needed, also=check):
            self._journal.put(self._serial, received.client, received.cost)
            kept.join(received.client, received.answer.value)
            count.add(received.cost)
        self._note(count.ask("train", step_name(step)))
        return kept

    def _hold(self, names: Iterable[str], step: str) -> None:
        """Tell sites, with all that they are asked later, that they were not asked for this step.

        What it remembers would be missing in their state.
        """
        held = Held(serial=self._serial, draw=self._asked, step=step)
        for name in names:
            self._held[name] = (*self._held.get(name, ()), held)

    def _summed(self, step: str, broadcast: Any, names: Sequence[str], like: Total) -> Total:
        requests = self._requests(step, broadcast, names)
        key = codec.digest(
            [step, {name: request_digest(request) for name, request in requests.items()}]
        )
        if self._replayed(key):
            replayed: Total = next(value for _, value in self._journal.values(self._serial))
            return replayed
        count = Count()
        total: Total | None = None
        for received in self._answers(requests, like):
            value = received.answer.value
            total = value if total is None else total + value
            count.add(received.cost)
        if total is None:
            raise FederationError(f"nobody answered {step}; the log says why")
        self._journal.put(self._serial, "total", total)
        self._close(key, count.ask("train", step), ["total"])
        return total

    def _gathered(
        self, phase: Phase, step: str, requests: Mapping[str, bytes], like: Any
    ) -> Iterator[tuple[str, Any]]:
        key = codec.digest(
            [step, {name: request_digest(request) for name, request in requests.items()}]
        )
        if not self._replayed(key):
            count, names = Count(), []
            for received in self._answers(requests, like):
                self._journal.put(self._serial, received.client, received.answer.value)
                names.append(received.client)
                count.add(received.cost)
            self._close(key, count.ask(phase, step), names)
        yield from self._journal.values(self._serial)

    def _answers(
        self,
        requests: Mapping[str, bytes],
        like: Any,
        *,
        needed: int | None = None,
        also: Check | None = None,
    ) -> Iterator[Received]:
        """Yield answers of the right form; they are counted as they come."""
        limit = _LEAST_ROOM + _ROOM * codec.size(like)

        def check(name: str, answer: Answer) -> None:
            _require_answer(answer.value, like, self._terms.classes, among=len(self._names))
            if also:
                also(name, answer)

        return self._post.ask(requests, needed=needed, check=check, limit=limit)

    def _request(
        self, kind: RequestKind, step: str, broadcast: Any, held: tuple[Held, ...] = ()
    ) -> bytes:
        return codec.encode(
            Request(
                terms=self._terms,
                kind=kind,
                serial=self._serial,
                draw=self._asked,
                step=step,
                broadcast=broadcast,
                held=held,
            )
        )

    def _replayed(self, key: str) -> bool:
        """Whether this exchange was finished before a restart; then it is only recorded again."""
        ask = self._journal.ask(self._serial, key)
        if ask is not None:
            self._note(ask)
        return ask is not None

    def _close(self, key: str, ask: Exchange, names: list[str]) -> None:
        self._journal.close(self._serial, key, ask, names)
        self._note(ask)

    def _note(self, ask: Exchange) -> None:
        self.asks.append(ask)
        if self._on_ask:
            self._on_ask(ask)


def _require_answer(value: Any, like: Any, classes: tuple[str, ...], *, among: int) -> None:
    """Refuse an answer that is not of this form, or cannot be true."""
    require_same_schema(value, like)
    if isinstance(value, SiteScore):
        if not isinstance(value.model_digest, str):
            raise DataError("the digest of its model is none")
        value, like = value.sums, like.sums
        require_same_schema(value, like)
    if isinstance(value, Additive):
        require_possible(value, like, classes=classes, among=among)


@dataclass(kw_only=True)
class Count:
    """What an exchange has taken so far: whose answers count, bytes and operations."""

    start: float = field(default_factory=time.perf_counter)
    clients: int = 0
    up: int = 0
    down: int = 0
    flops: int = 0

    def add(self, cost: Sequence[int], *, counts: bool = True) -> None:
        """Add the cost of one answer; `counts` unless the client is counted elsewhere."""
        up, down, flops = cost
        self.clients += int(counts)
        self.up, self.down, self.flops = self.up + up, self.down + down, self.flops + flops

    def ask(self, phase: Phase, step: str) -> Exchange:
        """Return the record of the exchange."""
        return Exchange(
            step=step,
            phase=phase,
            clients=self.clients,
            bytes_up=self.up,
            bytes_down=self.down,
            seconds=time.perf_counter() - self.start,
            flops=self.flops,
        )
