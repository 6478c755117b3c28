"""Send requests to many sites, and return all answers, enough answers, or an error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from fedgram.core.compression import compress, expand
from fedgram.engines.remote.messages import Answer, read_answer, request_digest, shown
from fedgram.engines.remote.transport import Transport
from fedgram.errors import ConfigError, FederationError, FedgramError

_POLL = 0.25  # seconds between two polls
_TRIES = 3  # for a site that fails, within the time limit
Check = Callable[[str, Answer], None]


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """The start and the end of an exchange.

    Parameters
    ----------
    minimum
        Number of sites that must be connected before a run starts.
    wait
        Seconds to wait for them, and for the sites that are listed by name.
    timeout
        Time limit for an answer, in seconds.
    quorum
        Fraction of the asked sites that must answer. If it is below 1, sites that do not answer
        are left out of that sum, and their names are recorded.
    grace
        Time limit for the other sites once a quorum has answered, in seconds.
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
            raise ConfigError(f"federation.quorum = {self.quorum}: use a fraction, 0 < quorum <= 1")
        for name in ("wait", "timeout", "grace"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"federation.{name} = {getattr(self, name)}: use a number of seconds"
                )

    def needed(self, asked: int) -> int:
        """Return the number of answers that are needed from this number of sites."""
        return max(1, math.ceil(self.quorum * asked - 1e-9))


@dataclass(frozen=True, eq=False, kw_only=True)
class Received:
    """One site's valid answer, with its bytes up and down: of the messages, and as sent."""

    client: str
    answer: Answer
    bytes_up: int
    bytes_down: int
    sent_up: int
    sent_down: int

    @property
    def cost(self) -> list[int]:
        """Bytes up and down, FLOPs, and bytes up and down as sent."""
        messages = [self.bytes_up, self.bytes_down, self.answer.flops]
        return [*messages, self.sent_up, self.sent_down]


class Collector:
    """Sends each site its request and yields valid answers in the order of their arrival.

    Parameters
    ----------
    transport
        The connection to the sites.
    node
        Returns the current node of a site; None while it is not connected.
    deadlines
        The time limits of an exchange.
    note
        Called with a site's name and a line for the log.
    compressed
        Whether requests are compressed.
    """

    def __init__(
        self,
        transport: Transport,
        node: Callable[[str], int | None],
        deadlines: Deadlines,
        note: Callable[[str, str], None],
        *,
        compressed: bool = False,
    ) -> None:
        self._compressed = compressed
        self._transport = transport
        self._node = node
        self._deadlines = deadlines
        self._note = note

    def needed(self, asked: int) -> int:
        """Return the number of answers that are needed from this number of sites."""
        return self._deadlines.needed(asked)

    def note(self, client: str, text: str) -> None:
        """Add a line about a site to the log."""
        self._note(client, text)

    def ask(
        self,
        requests: Mapping[str, bytes],
        *,
        needed: int | None = None,
        check: Check | None = None,
        limit: int,
    ) -> Iterator[Received]:
        """Yield the answers, until all sites have answered, or enough of them in time.

        Parameters
        ----------
        requests
            The request to each site.
        needed
            Number of answers without which the exchange fails; by default the quorum.
        check
            Raises for an invalid answer.
        limit
            Most bytes of an answer; larger ones are not decoded.
        """
        needed = self._deadlines.needed(len(requests)) if needed is None else needed
        pack = cache(compress) if self._compressed else _unchanged  # many sites get the same
        sent = {name: pack(request) for name, request in requests.items()}
        round_ = _Collection(
            self._transport, self._node, requests, sent, self._deadlines, self._note
        )
        yield from round_.received(needed, check or _anything, limit)
        if round_.answered < needed:
            raise FederationError(
                f"{round_.answered} of {len(requests)} sites answered and {needed} are needed; "
                f"missing: {round_.missing()}; start again when they are connected"
            )


class _Collection:
    """The state of each site within one exchange."""

    def __init__(
        self,
        transport: Transport,
        node: Callable[[str], int | None],
        requests: Mapping[str, bytes],
        sent: Mapping[str, bytes],
        deadlines: Deadlines,
        note: Callable[[str, str], None],
    ) -> None:
        self._transport, self._node, self._deadlines, self._note = transport, node, deadlines, note
        self._requests, self._sent = requests, sent
        self._tickets: dict[str, tuple[str, int]] = {}  # the site and the node it was sent to
        self._unsent = sorted(requests)
        self._tried: Counter[str] = Counter()
        self._out: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self.answered = 0

    def received(self, needed: int, check: Check, limit: int) -> Iterator[Received]:
        clock = self._transport.now
        end = clock() + (self._deadlines.timeout if needed else self._deadlines.grace)
        while self._tickets or self._unsent:
            self._send(end - clock())
            got = False
            for ticket, content in self._transport.receive(list(self._tickets)):
                if ticket not in self._tickets:
                    continue  # a second answer to one request
                got = True
                name, _ = self._tickets.pop(ticket)
                if len(content) > limit:
                    self._leave_out(
                        name, f"an answer of {len(content)} bytes; the limit is {limit}"
                    )
                elif (received := self._opened(name, content, check, limit)) is not None:
                    self.answered += 1
                    yield received
                    if self.answered == needed:
                        end = min(end, clock() + self._deadlines.grace)
            if clock() >= end:
                break
            if not got:
                self._transport.wait(min(_POLL, max(0.0, end - clock())))
                self._follow()
        for name in (*(name for name, _ in self._tickets.values()), *self._unsent):
            reason = self._reasons.get(name)
            self._leave_out(name, reason or "no answer in time")

    def missing(self) -> str:
        """Return the sites that did not answer, with the reasons."""
        return "; ".join(f"{name} ({reason})" for name, reason in sorted(self._out.items()))

    def _send(self, patience: float) -> None:
        for name in list(self._unsent):
            node = self._node(name)
            if node is None:
                self._reasons[name] = "not connected"
                continue
            self._unsent.remove(name)
            self._tried[name] += 1
            ticket = self._transport.send(node, self._sent[name], patience=patience)
            self._tickets[ticket] = name, node

    def _follow(self) -> None:
        """Repeat the request to sites that reconnected as another node."""
        for ticket, (name, node) in list(self._tickets.items()):
            if self._node(name) not in (None, node):
                del self._tickets[ticket]
                self._again(name, "reconnected as another node")

    def _opened(self, name: str, content: bytes | str, check: Check, limit: int) -> Received | None:
        """Return a valid answer; otherwise log the reason and return None."""
        request = self._requests[name]
        if isinstance(content, str):
            self._again(name, content)
            return None
        try:
            message = expand(content, most=limit)
            answer = read_answer(message, client=name, to=request_digest(request))
            check(name, answer)
        except FedgramError as error:
            self._leave_out(name, str(error))
            return None
        except Exception as error:  # the run continues, whatever one site sends
            self._leave_out(name, f"invalid answer ({type(error).__name__}: {error})")
            return None
        return Received(
            client=name,
            answer=answer,
            bytes_up=len(message),
            bytes_down=len(request),
            sent_up=len(content),
            sent_down=len(self._sent[name]),
        )

    def _again(self, name: str, reason: str) -> None:
        self._reasons[name] = reason
        if self._tried[name] < _TRIES:
            self._note(name, f"{shown(reason)}; asked again")
            self._unsent.append(name)
        else:
            self._leave_out(name, reason)

    def _leave_out(self, name: str, reason: str) -> None:
        self._out[name] = shown(reason)
        self._note(name, f"left out: {shown(reason)}")


def _unchanged(content: bytes) -> bytes:
    return content


def _anything(client: str, answer: Answer) -> None:
    pass
