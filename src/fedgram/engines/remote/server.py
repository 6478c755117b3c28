"""The server's end of the wire: a `Federation` of sites that are elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgram import codec
from fedgram.engines.engine import refusal, server_rng
from fedgram.engines.remote.journal import Journal
from fedgram.engines.remote.members import Members
from fedgram.engines.remote.messages import Answer, Delivery, Kind, Request, Scoring, Terms, about
from fedgram.engines.remote.plausible import example, require_form, require_possible
from fedgram.engines.remote.post import Post, Received
from fedgram.errors import ConfigError, FederationError
from fedgram.evaluation import Evaluated, Evaluation, Task
from fedgram.federation import Ask, Phase, Reply, Step, Total, delivery, step_name
from fedgram.group import Additive
from fedgram.samples import Labels
from fedgram.stats import Statistics, Tally

_ROOM = 8  # an answer may be so many times as large as that of one sample, whose numbers are small
_LEAST_ROOM = 1 << 20


class Remote:
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
    on_ask, on_reply
        As of `InProcess`.
    """

    def __init__(
        self,
        post: Post,
        names: Iterable[str],
        terms: Terms,
        journal: Journal,
        *,
        members: Callable[[str], Members] | None = None,
        private: bool = False,
        on_ask: Callable[[Ask], None] | None = None,
        on_reply: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._post = post
        self._names = sorted(names)
        self._terms = terms
        self._journal = journal
        self._members = members
        self._private = private
        self._on_ask = on_ask
        self._on_reply = on_reply
        self._asked = self._serial = 0
        self.asks: list[Ask] = []

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
        total: Total = self._summed("step", step_name(step), broadcast, names, like)
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
        request = self._request("step", step_name(step), broadcast)
        yield from self._gathered("train", step_name(step), dict.fromkeys(names, request), like)

    def evaluate(self, step: Task, shared: Any) -> Iterator[tuple[str, Evaluated | Evaluation]]:
        """Yield what scoring finds at each site, or the sum over all where only that is seen."""
        self._serial += 1
        requests: dict[int, bytes] = {}  # sites often get the same part

        def request(name: str) -> bytes:
            part = delivery(shared, name)
            if id(part) not in requests:
                scoring = Scoring(part=part, round=step.round, best=step.best)
                requests[id(part)] = self._request("score", "score", scoring)
            return requests[id(part)]

        like = Evaluated(sums=self._nobody(), model_digest="")
        asked = {name: request(name) for name in self._names}
        for name, found in self._gathered("score", "score", asked, like):
            yield name, found.sums if self._private else found

    def deliver(self, shared: Any, round_: int) -> None:
        """Hand every site the final result; one that is away gets it from the next run."""
        self._serial += 1
        requests = {
            name: self._request(
                "deliver", "deliver", Delivery(part=delivery(shared, name), round=round_)
            )
            for name in self._names
        }
        count = Count()
        for received in self._post.ask(requests, needed=0, limit=_LEAST_ROOM):
            count.add(received)
        self._note(count.ask("deliver", "deliver"))

    def _begin(self, step: Callable[..., Any], clients: Iterable[str] | None) -> Sequence[str]:
        self._serial += 1
        self._asked += 1
        names = self._names if clients is None else sorted(set(clients))
        unknown = [name for name in names if name not in self._names]
        if unknown or not names:
            missing = f"{', '.join(unknown)} not in it" if unknown else "nobody to ask"
            raise ConfigError(f"this federation cannot answer {step_name(step)}: {missing}")
        return names

    def _example(self, step: Callable[..., Any], broadcast: Any) -> Any:
        return example(step, broadcast, self._terms.space, self._terms.classes)

    def _mark(self, step: Callable[..., Any]) -> str:
        """Return what tells contributions apart that must not be added: what one sample gives."""
        return codec.digest(example(step, None, self._terms.space, ("one", "two")))

    def _nobody(self) -> Evaluation:
        """Return the form that scores have."""
        nobody = Tally.of(np.zeros(0), Labels(np.zeros(0, np.int64), self._terms.classes))
        return Evaluation(tally=nobody, valid=nobody)

    def _kept(self, like: Any, broadcast: Any, clients: Iterable[str] | None) -> bool:
        """Whether contributions of this kind are kept one by one: sums of the samples alone."""
        alone = broadcast is None and clients is None
        return alone and isinstance(like, Statistics) and like.space.exact

    def _collected(
        self, members: Callable[[str], Members], step: Callable[..., Any], like: Any
    ) -> Members:
        """Ask those whose contribution is not kept yet, and keep each before the next is read."""
        kept = members(self._mark(step))
        missing = kept.missing(self._names)
        request, count = self._request("step", step_name(step), None), Count()
        present = len(self._names) - len(missing)
        needed = max(0, self._post.needed(len(self._names)) - present)
        for received in self._answers(dict.fromkeys(missing, request), like, needed=needed):
            kept.join(received.client, received.answer.value)
            count.add(received)
            self._tell(step_name(step), count.clients, len(missing))
        self._note(count.ask("train", step_name(step)))
        return kept

    def _summed(
        self, kind: Kind, step: str, broadcast: Any, names: Sequence[str], like: Total
    ) -> Total:
        request = self._request(kind, step, broadcast)
        key = codec.digest([step, about(request), list(names)])
        if self._replayed(key):
            replayed: Total = next(value for _, value in self._journal.values(self._serial))
            return replayed
        count = Count()
        total: Total | None = None
        for received in self._answers(dict.fromkeys(names, request), like):
            value = received.answer.value
            total = value if total is None else total + value
            count.add(received)
            self._tell(step, count.clients, len(names))
        if total is None:
            raise FederationError(f"nobody answered {step}; the log says why")
        self._journal.put(self._serial, "total", total)
        self._close(key, count.ask("train", step))
        return total

    def _gathered(
        self, phase: Phase, step: str, requests: Mapping[str, bytes], like: Any
    ) -> Iterator[tuple[str, Any]]:
        key = codec.digest([step, {name: about(request) for name, request in requests.items()}])
        if not self._replayed(key):
            count = Count()
            for received in self._answers(requests, like):
                self._journal.put(self._serial, received.client, received.answer.value)
                count.add(received)
                self._tell(step, count.clients, len(requests))
            self._close(key, count.ask(phase, step))
        yield from self._journal.values(self._serial)

    def _answers(
        self, requests: Mapping[str, bytes], like: Any, *, needed: int | None = None
    ) -> Iterator[Received]:
        """Yield answers of the right form; they are counted as they come."""
        limit = _LEAST_ROOM + _ROOM * codec.size(like)
        return self._post.ask(requests, needed=needed, check=_checked(like), limit=limit)

    def _request(self, kind: Kind, step: str, broadcast: Any) -> bytes:
        return codec.encode(
            Request(
                terms=self._terms,
                kind=kind,
                serial=self._serial,
                draw=self._asked,
                step=step,
                broadcast=broadcast,
            )
        )

    def _replayed(self, key: str) -> bool:
        """Whether this exchange was finished before a restart; then it is only recorded again."""
        ask = self._journal.ask(self._serial, key)
        if ask is not None:
            self._note(ask)
        return ask is not None

    def _close(self, key: str, ask: Ask) -> None:
        self._journal.close(self._serial, key, ask)
        self._note(ask)

    def _note(self, ask: Ask) -> None:
        self.asks.append(ask)
        if self._on_ask:
            self._on_ask(ask)

    def _tell(self, step: str, done: int, asked: int) -> None:
        if self._on_reply:
            self._on_reply(step, done, asked)


def _checked(like: Any) -> Callable[[str, Answer], None]:
    """Return the check that an answer is of this form and can be true."""

    def check(_: str, answer: Answer) -> None:
        value, form = answer.value, like
        require_form(value, form)
        if isinstance(value, Evaluated):
            value, form = value.sums, like.sums
            require_form(value, form)
        if isinstance(value, Additive):
            require_possible(value, form)

    return check


@dataclass(kw_only=True)
class Count:
    """What an exchange has taken so far: whose answers count, bytes and operations."""

    start: float = field(default_factory=time.perf_counter)
    clients: int = 0
    up: int = 0
    down: int = 0
    flops: int = 0

    def add(self, received: Received, *, counts: bool = True) -> None:
        """Add one answer; `counts` unless the client is counted elsewhere."""
        self.clients += int(counts)
        self.up += received.bytes_up
        self.down += received.bytes_down
        self.flops += int(received.answer.flops)

    def ask(self, phase: Phase, step: str) -> Ask:
        """Return the record of the exchange."""
        return Ask(
            step=step,
            phase=phase,
            clients=self.clients,
            bytes_up=self.up,
            bytes_down=self.down,
            seconds=time.perf_counter() - self.start,
            flops=self.flops,
        )
