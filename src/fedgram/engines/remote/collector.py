"""Asks many sites at once, and ends: with every answer, with enough of them, or with an error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fedgram.engines.remote.messages import Answer, read_answer, request_digest, shown
from fedgram.engines.remote.transport import Transport
from fedgram.errors import ConfigError, FederationError, FedgramError

_POLL = 0.25  # seconds between two looks into the letter box
_TRIES = 3  # of one site that fails, within the time there is
Check = Callable[[str, Answer], None]


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """When an exchange begins and ends.

    Parameters
    ----------
    minimum
        Sites that must be there before a run begins.
    wait
        Seconds to wait for them, and for sites that were listed by name.
    timeout
        Seconds that sites have for an answer.
    quorum
        Share of the asked sites that must answer. Below 1, those who do not are left out of that
        sum, and it is recorded who.
    grace
        Seconds that the others still have once a quorum has answered.
    """

    minimum: int = 1
    wait: float = 600.0
    timeout: float = 600.0
    quorum: float = 1.0
    grace: float = 60.0

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise ConfigError(f"federation.minimum = {self.minimum}: use at least 1")
        if not 0 < self.quorum <= 1:
            raise ConfigError(f"federation.quorum = {self.quorum}: use a share, 0 < share <= 1")
        for name in ("wait", "timeout", "grace"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"federation.{name} = {getattr(self, name)}: use a number of seconds"
                )

    def needed(self, asked: int) -> int:
        """Return how many of so many sites must answer."""
        return max(1, math.ceil(self.quorum * asked - 1e-9))


@dataclass(frozen=True, eq=False, kw_only=True)
class Received:
    """One site's checked answer, and the bytes it took."""

    client: str
    answer: Answer
    bytes_up: int
    bytes_down: int

    @property
    def cost(self) -> list[int]:
        """Bytes up and down, and operations."""
        return [self.bytes_up, self.bytes_down, self.answer.flops]


class Collector:
    """Sends each site its request and yields checked answers as they come, one at a time.

    Parameters
    ----------
    carrier
        What reaches the sites.
    node
        Gives a site's node now, None while it is away.
    policy
        When an exchange ends.
    note
        Called with a site's name and what happened to it, for the log.
    """

    def __init__(
        self,
        carrier: Transport,
        node: Callable[[str], int | None],
        policy: Deadlines,
        note: Callable[[str, str], None],
    ) -> None:
        self._carrier = carrier
        self._node = node
        self._policy = policy
        self._note = note

    def needed(self, asked: int) -> int:
        """Return how many of so many sites must answer."""
        return self._policy.needed(asked)

    def ask(
        self,
        requests: Mapping[str, bytes],
        *,
        needed: int | None = None,
        check: Check | None = None,
        limit: int,
    ) -> Iterator[Received]:
        """Yield what sites answer until all have, or enough of them and the time is up.

        `check` raises where an answer must not be counted; one of more bytes than `limit` is not
        even read.
        """
        needed = self._policy.needed(len(requests)) if needed is None else needed
        round_ = _Collection(self._carrier, self._node, requests, self._policy, self._note)
        yield from round_.received(needed, check or _anything, limit)
        if round_.answered < needed:
            raise FederationError(
                f"{round_.answered} of {len(requests)} sites answered and {needed} are needed; "
                f"missing: {round_.missing()}; start again when they are there"
            )


class _Collection:
    """Where each site stands within one exchange."""

    def __init__(
        self,
        carrier: Transport,
        node: Callable[[str], int | None],
        requests: Mapping[str, bytes],
        policy: Deadlines,
        note: Callable[[str, str], None],
    ) -> None:
        self._carrier, self._node, self._policy, self._note = carrier, node, policy, note
        self._requests = requests
        self._tickets: dict[str, tuple[str, int]] = {}  # the site and the node it was sent to
        self._unsent = sorted(requests)
        self._tried: Counter[str] = Counter()
        self._out: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self.answered = 0

    def received(self, needed: int, check: Check, limit: int) -> Iterator[Received]:
        clock = self._carrier.now
        end = clock() + (self._policy.timeout if needed else self._policy.grace)
        while self._tickets or self._unsent:
            self._send(end - clock())
            got = False
            for ticket, content in self._carrier.receive(list(self._tickets)):
                if ticket not in self._tickets:
                    continue  # a second answer to one question
                got = True
                name, _ = self._tickets.pop(ticket)
                if len(content) > limit:
                    self._settle(name, f"an answer of {len(content)} bytes, more than any can have")
                elif (received := self._opened(name, content, check)) is not None:
                    self.answered += 1
                    yield received
                    if self.answered == needed:
                        end = min(end, clock() + self._policy.grace)
            if clock() >= end:
                break
            if not got:
                self._carrier.wait(min(_POLL, max(0.0, end - clock())))
                self._follow()
        for name in (*(name for name, _ in self._tickets.values()), *self._unsent):
            reason = self._reasons.get(name)
            self._settle(name, reason or "no answer in time")

    def missing(self) -> str:
        """Say who did not answer, and why."""
        return "; ".join(f"{name} ({reason})" for name, reason in sorted(self._out.items()))

    def _send(self, patience: float) -> None:
        for name in list(self._unsent):
            node = self._node(name)
            if node is None:
                self._reasons[name] = "not connected"
                continue
            self._unsent.remove(name)
            self._tried[name] += 1
            ticket = self._carrier.send(node, self._requests[name], patience=patience)
            self._tickets[ticket] = name, node

    def _follow(self) -> None:
        """Ask sites again that came back as another node: the old one will not answer."""
        for ticket, (name, node) in list(self._tickets.items()):
            if self._node(name) not in (None, node):
                del self._tickets[ticket]
                self._again(name, "it came back as another node")

    def _opened(self, name: str, content: bytes | str, check: Check) -> Received | None:
        """Return an answer that counts; else note why, and whether to try again."""
        request = self._requests[name]
        if isinstance(content, str):
            self._again(name, content)
            return None
        try:
            answer = read_answer(content, client=name, to=request_digest(request))
            check(name, answer)
        except FedgramError as error:
            self._settle(name, str(error))
            return None
        except Exception as error:  # whatever one site sends, the others' run goes on
            self._settle(name, f"an answer of no sense ({type(error).__name__}: {error})")
            return None
        return Received(client=name, answer=answer, bytes_up=len(content), bytes_down=len(request))

    def _again(self, name: str, reason: str) -> None:
        self._reasons[name] = reason
        if self._tried[name] < _TRIES:
            self._note(name, f"{shown(reason)}; asked again")
            self._unsent.append(name)
        else:
            self._settle(name, reason)

    def _settle(self, name: str, reason: str) -> None:
        self._out[name] = shown(reason)
        self._note(name, f"left out: {shown(reason)}")


def _anything(client: str, answer: Answer) -> None:
    pass
