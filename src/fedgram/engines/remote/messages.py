"""Messages between server and sites; `codec` encodes each of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from fedgram.core import codec
from fedgram.core.samples import NO_SPACE, Space
from fedgram.errors import DataError, FedgramError, MismatchError
from fedgram.federation.method import Method, create_method
from fedgram.federation.scoring import Metrics
from fedgram.runtime.text import one_line
from fedgram.secure.messages import NOTHING, Commitment

RequestKind = Literal[
    "greet", "step", "score", "deliver", "keys", "shares", "masked", "confirm", "reveal"
]
_LONGEST_TEXT = 300  # characters of a text from a site that are shown


@codec.register("Terms/1")
@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a run. A site answers only if it agrees to them.

    Parameters
    ----------
    version
        Version of fedgram: contributions of different versions are never added.
    run
        Unique name of this run.
    seed
        Seed of the random numbers of the method.
    method, settings
        The method and its settings.
    grid
        Settings of the grid.
    secure
        Whether contributions are sent under masks.
    space, classes
        Meaning of the features and of the class codes; empty while sites enroll.
    metrics, kept_valid, reserve_valid
        How a model is scored, and the use of validation samples.
    compress
        Whether messages are compressed, unless contributions are sent under masks.
    """

    version: str
    run: str
    seed: int
    method: str
    settings: dict[str, Any]
    grid: dict[str, Any]
    secure: bool = False
    space: Space = NO_SPACE
    classes: tuple[str, ...] = ()
    metrics: Metrics = Metrics()
    kept_valid: bool = False
    reserve_valid: bool = False
    compress: bool = codec.added_field(True)

    def make(self) -> Method[Any]:
        """Return the method, which must come with fedgram: no code is sent."""
        return create_method(self.method, self.settings)


# "held" had the steps that a site was not asked for. Without entries it means the same; a value of
# the former type with entries is refused as unknown.
@codec.register("Request/1", fields={"ask_number": "draw", "totals": "held"})
@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """One request, often the same for all sites.

    Parameters
    ----------
    serial
        Number of the exchange within the run.
    ask_number
        Number of the call of `sum` or `gather`, which the site's random numbers depend on.
    step
        Name of the step.
    broadcast
        Argument of the step.
    totals
        Names of the steps whose last total includes the site.
    """

    terms: Terms
    kind: RequestKind
    serial: int
    ask_number: int = 0
    step: str = ""
    broadcast: Any = None
    totals: tuple[str, ...] = ()


@codec.register("Greeting/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Greeting:
    """What a site reports about itself before a run; less of it if sums are secure.

    Parameters
    ----------
    space, classes
        Meaning of its features and of its class codes.
    samples
        Number of training samples; 0 if it is not reported.
    fingerprint
        Digest of the samples, which shows whether a contribution at the server is up to date.
    """

    space: Space
    classes: tuple[str, ...]
    samples: int = 0
    fingerprint: str = ""


@codec.register("Answer/1", fields={"request_digest": "about"})
@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """A site's answer to one request, which the digest names: it cannot answer another one."""

    client: str
    request_digest: str
    value: Any
    flops: int = 0


@codec.register("Refusal/1", fields={"request_digest": "about"})
@dataclass(frozen=True, eq=False, kw_only=True)
class Refusal:
    """A site's refusal to answer: the type of the error, and its text."""

    client: str
    request_digest: str
    error: str
    text: str


def commitment_of(
    terms: Terms,
    *,
    ask_number: int,
    step: str,
    federation: str,
    broadcast: str,
    state: str = "",
    totals: str = NOTHING,
) -> Commitment:
    """Return what a secure sum is about; server and sites compute it, each from what they have.

    Parameters
    ----------
    terms
        The terms of the run.
    ask_number, step
        Number of the sum, and its step.
    federation
        Digest that names the federation.
    broadcast
        Digest of the argument of the step.
    state
        The session whose state the step uses.
    totals
        Digest of the members of earlier totals.
    """
    return Commitment(
        federation=federation,
        run=terms.run,
        ask_number=ask_number,
        step=step,
        method=terms.method,
        settings=codec.digest(replace(terms, run="", classes=())),
        classes=codec.digest(list(terms.classes)),
        broadcast=broadcast,
        state=state,
        totals=totals,
    )


def request_digest(request: bytes) -> str:
    """Return the digest of a request, which its answer contains."""
    return hashlib.sha256(request).hexdigest()


def read_request(content: bytes) -> Request:
    """Decode a request."""
    request = codec.decode(content, origin="request")
    if not isinstance(request, Request) or not isinstance(request.terms, Terms):
        raise DataError("not a request of a fedgram server")
    counted = _counts(request.serial) and _counts(request.ask_number)
    if request.kind not in get_args(RequestKind) or not counted:
        raise DataError("unknown kind of request; install the same fedgram as the server")
    if not isinstance(request.totals, tuple) or not all(isinstance(t, str) for t in request.totals):
        raise DataError("expected the names of totals as strings")
    _require_rounds(request.broadcast)
    return request


def _require_rounds(broadcast: object) -> None:
    """Raise DataError unless numbers of rounds are numbers: they become names of files."""
    if isinstance(broadcast, Round):
        _require_rounds(broadcast.broadcast)
    numbers: tuple[object, ...] = ()
    if isinstance(broadcast, ScoreRequest):
        numbers = broadcast.round, broadcast.best
    elif isinstance(broadcast, Delivery):
        numbers = (broadcast.round,)
    if not all(map(_counts, numbers)):
        raise DataError("expected the numbers of rounds as integers >= 0")


def read_answer(content: bytes, *, client: str, to: str) -> Answer:
    """Decode the answer of a client to the request with this digest; raise for all else.

    Examples
    --------
    >>> answer = Answer(client="north", request_digest="12", value=3)
    >>> read_answer(codec.encode(answer), client="north", to="12").value
    3
    >>> read_answer(codec.encode(answer), client="north", to="13")
    Traceback (most recent call last):
    ...
    fedgram.errors.MismatchError: answer to another request; answer ignored
    """
    answer = codec.decode(content, origin="answer")
    if not isinstance(answer, Answer | Refusal):
        raise DataError(f"expected an answer, got {type(answer).__name__}")
    if isinstance(answer, Refusal):
        raise refused(answer)
    if answer.client != client:
        raise MismatchError(f"answer in the name of {shown(answer.client)!r}; answer ignored")
    if answer.request_digest != to:
        raise MismatchError("answer to another request; answer ignored")
    if not _counts(answer.flops):
        raise DataError("invalid FLOP count; answer ignored")
    return answer


def refused(refusal: Refusal) -> FedgramError:
    """Return the error of a site's refusal, with its type."""
    known = {kind.__name__: kind for kind in _kinds(FedgramError)}
    return known.get(str(refusal.error), FedgramError)(shown(refusal.text))


def shown(text: object) -> str:
    """Return anything that a site sent as one short line of text; controls are escaped.

    Examples
    --------
    >>> shown(["one", 2]), len(shown("x" * 1000))
    ("['one', 2]", 303)
    """
    line = one_line(text)
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}..."


def _counts(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _kinds(kind: type[FedgramError]) -> list[type[FedgramError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _kinds(below))]


@codec.register("Scoring/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreRequest:
    """A site's part of a shared result, to be scored; models of other rounds are deleted."""

    part: Any
    round: int
    best: int = 0


@codec.register("Round/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """One round of a secure sum: the session, its message, and the argument of the step.

    Parameters
    ----------
    session, content
        The session, and the message of the protocol.
    broadcast
        Argument of the step; the same for all members.
    totals
        The members of earlier totals, by name; the same for all members.
    """

    session: str
    content: Any
    broadcast: Any = None
    totals: dict[str, list[str]] | None = None

    def totals_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the earlier totals that a member is in."""
        found = self.totals or {}
        if not all(isinstance(names, list) for names in found.values()):
            raise DataError("expected the members of earlier totals as lists of names")
        return tuple(sorted(total for total, names in found.items() if name in names))


@codec.register("Delivery/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Delivery:
    """A site's part of the final result, and the round of that result."""

    part: Any
    round: int
