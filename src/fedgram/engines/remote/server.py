"""The server's side of the protocol: a `Federation` of remote sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.error_tally import ErrorTally
from fedgram.core.shared import part_for
from fedgram.core.statistics import Statistics
from fedgram.core.tally import Tally
from fedgram.core.targets import Targets, labels_of
from fedgram.engines.protocol import refusal, resolve_clients, server_rng
from fedgram.engines.remote.collector import Check, Collector, Received
from fedgram.engines.remote.contributions import Contributions
from fedgram.engines.remote.messages import (
    Answer,
    Delivery,
    Request,
    RequestKind,
    ScoreRequest,
    Terms,
    request_digest,
)
from fedgram.engines.remote.replay_log import ReplayLog
from fedgram.engines.remote.validation import (
    example,
    require_possible,
    require_registered,
    require_same_schema,
)
from fedgram.engines.totals import Totals
from fedgram.errors import DataError, FederationError, MismatchError
from fedgram.federation.protocol import Exchange, Phase, Total
from fedgram.federation.scoring import ErrorScoreSums, ScoreSums, ScoreTask, SiteScore
from fedgram.federation.step import Reply, Step, step_name
from fedgram.selection.site_screen import screen

_ROOM = 8  # limit of an answer, in sizes of the reply for one sample, whose numbers are small
_LEAST_ROOM = 1 << 20


class RemoteFederation:
    """A federation of remote sites; answers are added in the order of their arrival.

    Parameters
    ----------
    collector
        Sends requests and receives answers.
    names
        Names of the sites.
    terms
        The terms of the run.
    replay_log
        Records finished exchanges, so that a restarted server continues.
    members
        Returns the stored contributions with a digest of their kind; None without a ledger.
    private
        Refuse `gather`, and omit the digests of models from scores.
    samples
        Registered number of samples of each site; empty for no limit.
    on_ask
        Called after each exchange with its record.
    """

    def __init__(
        self,
        collector: Collector,
        names: Iterable[str],
        terms: Terms,
        replay_log: ReplayLog,
        *,
        members: Callable[[str], Contributions] | None = None,
        private: bool = False,
        samples: Mapping[str, int] | None = None,
        on_ask: Callable[[Exchange], None] | None = None,
    ) -> None:
        self._collector = collector
        self._names = sorted(names)
        self._terms = terms
        self._replay_log = replay_log
        self._members = members
        self._private = private
        self._samples = samples or {}
        self._on_ask = on_ask
        self._asked = self._serial = 0
        self._totals = Totals()
        self.asks: list[Exchange] = []

    @property
    def clients(self) -> Sequence[str]:
        return self._names

    @property
    def private(self) -> bool:
        return self._private

    @property
    def contributors(self) -> Sequence[str]:
        return self._totals.contributors

    @property
    def rng(self) -> np.random.Generator:
        return server_rng(self._terms.seed, self._asked)

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        names = self._begin(step, clients)
        like = self._example(step, broadcast)
        if self._members and self._kept(like, broadcast, clients):
            kept = self._collected(self._members, step, like)
            self._totals.summed(step, broadcast, kept.names)
            return kept.total(self._terms.classes)  # type: ignore[return-value]
        summed: Total
        summed, contributors = self._summed(step_name(step), broadcast, names, like)
        self._totals.summed(step, broadcast, contributors)
        return summed

    def gather(
        self, step: Step[Reply], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Reply]]:
        if self._private:
            raise refusal(step)
        names = self._begin(step, clients)
        like = self._example(step, broadcast)
        if self._members and self._kept(like, broadcast, clients):
            replies: Any = self._collected(self._members, step, like).each(self._terms.classes)
        else:
            requests = self._requests(step_name(step), broadcast, names)
            replies = self._gathered("train", step_name(step), requests, like)
        yield from self._totals.gathered(step, broadcast, replies)

    def evaluate(self, step: ScoreTask, shared: Any) -> Iterator[tuple[str, SiteScore]]:
        """Yield the score of each site, without its model's digest if the federation is private."""
        self._serial += 1
        requests = self._parts(
            "score", shared, lambda part: ScoreRequest(part=part, round=step.round, best=step.best)
        )
        like = SiteScore(sums=self._zero_scores(), model_digest="")
        for name, found in self._gathered("score", "score", requests, like):
            yield name, SiteScore(sums=found.sums) if self._private else found

    def deliver(self, shared: Any, round_: int) -> None:
        """Send every site the final result; a site that is not connected gets the next one."""
        self._serial += 1
        requests = self._parts("deliver", shared, lambda part: Delivery(part=part, round=round_))
        count = Count()
        with suppress(FederationError):  # the notes list the sites that did not get it
            for received in self._collector.ask(requests, limit=_LEAST_ROOM):
                count.add(received.cost)
        self._note(count.ask("deliver", "deliver"))

    def _begin(self, step: Callable[..., Any], clients: Iterable[str] | None) -> Sequence[str]:
        self._serial += 1
        self._asked += 1
        return resolve_clients(step, clients, self._names)

    def _example(
        self, step: Callable[..., Any], broadcast: Any, state: dict[str, Any] | None = None
    ) -> Any:
        return example(step, broadcast, self._terms.space, self._terms.classes, state)

    def _mark(self, step: Callable[..., Any]) -> str:
        """Return the digest of a step's reply for one sample: replies of equal digests add."""
        return codec.digest(example(step, None, self._terms.space, ("one", "two")))

    def _parts(
        self, kind: RequestKind, shared: Any, about_part: Callable[[Any], Any]
    ) -> dict[str, bytes]:
        """Return each site's request with its part of a shared result, often the same part."""
        made: dict[tuple[int, frozenset[str]], bytes] = {}
        requests = {}
        for name in self._names:
            part, totals = part_for(shared, name), self._totals.of(name)
            if (id(part), totals) not in made:
                made[id(part), totals] = self._request(kind, kind, about_part(part), totals)
            requests[name] = made[id(part), totals]
        return requests

    def _requests(self, step: str, broadcast: Any, names: Iterable[str]) -> dict[str, bytes]:
        """Return each site's request to run a step; sites in the same totals share one."""
        totals = {name: self._totals.of(name) for name in names}
        made = {each: self._request("step", step, broadcast, each) for each in {*totals.values()}}
        return {name: made[each] for name, each in totals.items()}

    def _zero_scores(self) -> ScoreSums:
        """Return zero scores, with the layout that all scores have."""
        nothing = labels_of(np.zeros(0, np.int64), self._terms.classes)
        zero = Tally.of(np.zeros(0), nothing)
        if not isinstance(nothing, Targets):
            return ScoreSums(tally=zero, valid=zero)
        errors = ErrorTally.of(np.zeros((0, len(nothing.outputs))), nothing)
        return ErrorScoreSums(tally=zero, valid=zero, errors=errors)

    def _kept(self, like: Any, broadcast: Any, clients: Iterable[str] | None) -> bool:
        """Whether the ledger stores these replies: they depend on the samples alone."""
        alone = broadcast is None and clients is None
        return alone and isinstance(like, Statistics) and like.space.exact

    def _collected(
        self, members: Callable[[str], Contributions], step: Callable[..., Any], like: Any
    ) -> Contributions:
        """Request missing contributions, and store each before the next one is read."""
        kept, count = members(self._mark(step)), Count()
        missing = kept.missing(self._names)
        requests = self._requests(step_name(step), None, missing)
        joined = self._replay_log.begun(self._serial)
        for name, cost in joined.items():
            if name not in missing:  # it joined before a restart
                count.add(cost)
        present = set(self._names) - set(missing)
        needed = max(0, self._collector.needed(len(self._names)) - len(present))

        def check(name: str, answer: Answer) -> None:
            if reason := kept.refusal(name):
                raise MismatchError(f"the site {reason}")
            kept.require_room(name, answer.value)

        for received in self._answers(requests, like, needed=needed, also=check):
            self._replay_log.put(self._serial, received.client, received.cost)
            self._join(kept, received)
            count.add(received.cost)
        self._note(count.ask("train", step_name(step)))
        if missing and like.labeled:
            self._screen(kept)
        self._compare_registered(kept)
        return kept

    def _compare_registered(self, kept: Contributions) -> None:
        """Note members that joined with more samples before their number was registered."""
        for name in kept.names if self._samples else ():
            count, most = kept.samples(name), self._samples.get(name, 0)
            if count > most:
                self._collector.note(
                    name,
                    f"warning: in the total with {count} samples, and {most} are registered; "
                    "'fedgram federation forget' takes it back",
                )

    def _join(self, kept: Contributions, received: Received) -> None:
        """Store a contribution; note it if the site has more samples than before."""
        name, value = received.client, received.answer.value
        before = kept.samples(name)
        kept.join(name, value)
        if 0 < before < value.count:
            grown = f"{value.count} samples, {before} before; ask the site if it has more data"
            self._collector.note(name, grown)

    def _screen(self, kept: Contributions) -> None:
        """Note what is suspicious in the contributions; nothing is removed."""
        for report in screen(lambda: kept.each(self._terms.classes)):
            for warning in report.warnings:
                self._collector.note(report.name, f"warning: {warning}")

    def _summed(
        self, step: str, broadcast: Any, names: Sequence[str], like: Total
    ) -> tuple[Total, Sequence[str]]:
        """Return the total and the sites in it."""
        requests = self._requests(step, broadcast, names)
        key = codec.digest(
            [step, {name: request_digest(request) for name, request in requests.items()}]
        )
        if self._replayed(key):
            replayed = dict(self._replay_log.values(self._serial))
            return replayed["total"], replayed["names"]
        count, contributors = Count(), []
        total: Total | None = None
        for received in self._answers(requests, like):
            value = received.answer.value
            total = value if total is None else total + value
            contributors.append(received.client)
            count.add(received.cost)
        if total is None:
            raise FederationError(f"no site answered {step}; the log has the reasons")
        contributors.sort()
        self._replay_log.put(self._serial, "total", total)
        self._replay_log.put(self._serial, "names", contributors)
        self._close(key, count.ask("train", step), ["names", "total"])
        return total, contributors

    def _gathered(
        self, phase: Phase, step: str, requests: Mapping[str, bytes], like: Any
    ) -> Iterator[tuple[str, Any]]:
        key = codec.digest(
            [step, {name: request_digest(request) for name, request in requests.items()}]
        )
        if not self._replayed(key):
            count, names = Count(), []
            for received in self._answers(requests, like):
                self._replay_log.put(self._serial, received.client, received.answer.value)
                names.append(received.client)
                count.add(received.cost)
            self._close(key, count.ask(phase, step), names)
        yield from self._replay_log.values(self._serial)

    def _answers(
        self,
        requests: Mapping[str, bytes],
        like: Any,
        *,
        needed: int | None = None,
        also: Check | None = None,
    ) -> Iterator[Received]:
        """Yield valid answers in the order of their arrival."""
        limit = _LEAST_ROOM + _ROOM * codec.size(like)
        most_weight = self._terms.make().most_weight

        def check(name: str, answer: Answer) -> None:
            _require_answer(answer.value, like, among=len(self._names))
            if self._samples:
                registered = self._samples.get(name, 0)
                require_registered(name, answer.value, registered, most_weight)
            if also:
                also(name, answer)

        return self._collector.ask(requests, needed=needed, check=check, limit=limit)

    def _request(
        self,
        kind: RequestKind,
        step: str,
        broadcast: Any,
        totals: frozenset[str] = frozenset(),
    ) -> bytes:
        return codec.encode(
            Request(
                terms=self._terms,
                kind=kind,
                serial=self._serial,
                ask_number=self._asked,
                step=step,
                broadcast=broadcast,
                totals=tuple(sorted(totals)),
            )
        )

    def _replayed(self, key: str) -> bool:
        """Whether this exchange was finished before a restart; if so, record it again."""
        ask = self._replay_log.ask(self._serial, key)
        if ask is not None:
            self._note(ask)
        return ask is not None

    def _close(self, key: str, ask: Exchange, names: list[str]) -> None:
        self._replay_log.close(self._serial, key, ask, names)
        self._note(ask)

    def _note(self, ask: Exchange) -> None:
        self.asks.append(ask)
        if self._on_ask:
            self._on_ask(ask)


def _require_answer(value: Any, like: Any, *, among: int) -> None:
    """Raise for an answer with another layout than `like`, or with impossible values."""
    require_same_schema(value, like)
    if isinstance(value, SiteScore):
        if not isinstance(value.model_digest, str):
            raise DataError("expected the digest of a model as a string")
        value, like = value.sums, like.sums
        require_same_schema(value, like)
    require_possible(value, among=among)


@dataclass(kw_only=True)
class Count:
    """The cost of an exchange so far: number of clients, bytes and FLOPs."""

    start: float = field(default_factory=time.perf_counter)
    clients: int = 0
    up: int = 0
    down: int = 0
    flops: int = 0
    sent_up: int = 0
    sent_down: int = 0

    def add(self, cost: Sequence[int], *, counts: bool = True) -> None:
        """Add the cost of one answer; without `counts`, the client is counted elsewhere."""
        up, down, flops, sent_up, sent_down = cost
        self.clients += int(counts)
        self.up, self.down, self.flops = self.up + up, self.down + down, self.flops + flops
        self.sent_up, self.sent_down = self.sent_up + sent_up, self.sent_down + sent_down

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
            sent_up=self.sent_up,
            sent_down=self.sent_down,
        )
