"""What server and sites write to each other; each is a value that `codec` carries."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedgram.core import codec
from fedgram.core.samples import NO_SPACE, Space
from fedgram.errors import DataError, FedgramError, MismatchError
from fedgram.federation.method import Method, create_method
from fedgram.federation.scoring import Metrics

RequestKind = Literal["greet", "step", "score", "deliver", "keys", "shares", "masked", "reveal"]
_LONGEST_TEXT = 300  # of what a site says that is shown to people


@codec.register("Terms/1")
@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a site must agree to before it answers anything.

    Parameters
    ----------
    version
        Of fedgram: sums of different versions are never added.
    run
        Tells this run from all others.
    seed
        From which the methods' randomness is drawn.
    method, settings
        Which steps are asked for.
    grid
        Settings of the grid.
    secure
        Whether contributions travel under masks.
    space, classes
        What features and class codes mean; nowhere while sites are greeted.
    metrics, kept_valid, reserve_valid
        How a model is scored, and what validation samples are for.
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

    def make(self) -> Method[Any]:
        """Return the method, which must be one of fedgram's own: no code travels."""
        if self.method.endswith(".py"):
            raise DataError(f"method {self.method!r} is a file; only fedgram's own run at sites")
        return create_method(self.method, self.settings)


@codec.register("Held/1")
@dataclass(frozen=True, kw_only=True)
class Held:
    """A step that a site is not asked for in this run: the server holds its answer already.

    What the step remembers is nowhere but at the site, which does it for itself when it is asked
    for the next one.
    """

    serial: int
    draw: int
    step: str


@codec.register("Request/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """One question, often the same to all sites.

    Parameters
    ----------
    serial
        Number of the exchange within the run.
    draw
        Number of the ask, from which the site's randomness is drawn.
    step
        Name of the method's own function that answers.
    broadcast
        What the step is given.
    held
        Earlier steps of this run that the site was not asked for.
    """

    terms: Terms
    kind: RequestKind
    serial: int
    draw: int = 0
    step: str = ""
    broadcast: Any = None
    held: tuple[Held, ...] = ()


@codec.register("Greeting/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Greeting:
    """What a site says of itself before a run; less of it where sums are secure.

    Parameters
    ----------
    space, classes
        What its features and class codes mean.
    samples
        Number of training samples, 0 where it is not told.
    fingerprint
        Digest of the samples: whether a contribution that the server has is still of these.
    """

    space: Space
    classes: tuple[str, ...]
    samples: int = 0
    fingerprint: str = ""


@codec.register("Answer/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What a site answers; `about` is the digest of its request: no answer can be used again."""

    client: str
    about: str
    value: Any
    flops: int = 0


@codec.register("Refusal/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Refusal:
    """Why a site does not answer: the kind of error, and its text."""

    client: str
    about: str
    error: str
    text: str


def request_digest(request: bytes) -> str:
    """Return by what an answer says which request it is to."""
    return hashlib.sha256(request).hexdigest()


def read_request(content: bytes) -> Request:
    """Return the request that these bytes carry."""
    request = codec.decode(content, origin="request")
    if not isinstance(request, Request) or not isinstance(request.terms, Terms):
        raise DataError("not a request of a fedgram server")
    asked: tuple[Request | Held, ...] = (request, *request.held)
    if request.kind not in get_args(RequestKind) or not all(
        _counts(each.serial) and _counts(each.draw) for each in asked
    ):
        raise DataError("a request of no known kind; install the same fedgram as the server")
    return request


def read_answer(content: bytes, *, client: str, to: str) -> Answer:
    """Return the answer of this client to the request of this digest; all else is refused.

    Examples
    --------
    >>> answer = Answer(client="north", about="12", value=3)
    >>> read_answer(codec.encode(answer), client="north", to="12").value
    3
    >>> read_answer(codec.encode(answer), client="north", to="13")
    Traceback (most recent call last):
    ...
    fedgram.errors.MismatchError: an answer to another request; it is not counted
    """
    answer = codec.decode(content, origin="answer")
    if not isinstance(answer, Answer | Refusal):
        raise DataError(f"a {type(answer).__name__} is no answer")
    if isinstance(answer, Refusal):
        raise refused(answer)
    if answer.client != client:
        raise MismatchError(f"it calls itself {shown(answer.client)!r}; it is not counted")
    if answer.about != to:
        raise MismatchError("an answer to another request; it is not counted")
    if not _counts(answer.flops):
        raise DataError("its number of operations is none; it is not counted")
    return answer


def refused(refusal: Refusal) -> FedgramError:
    """Return a site's refusal as an error of the kind it was."""
    known = {kind.__name__: kind for kind in _kinds(FedgramError)}
    return known.get(str(refusal.error), FedgramError)(shown(refusal.text))


def shown(text: object) -> str:
    """Return what a site says as one line that is not too long, whatever it is.

    Examples
    --------
    >>> shown(["one", 2]), len(shown("x" * 1000))
    ("['one', 2]", 303)
    """
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}..."


def _counts(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _kinds(kind: type[FedgramError]) -> list[type[FedgramError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _kinds(below))]


@codec.register("Scoring/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreRequest:
    """A site's part of a shared result, to be scored; models of other rounds may go."""

    part: Any
    round: int
    best: int = 0


@codec.register("Round/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """One round of a secure sum: the session, its message, and what the step is given."""

    session: str
    content: Any
    broadcast: Any = None


@codec.register("Delivery/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Delivery:
    """A site's part of the final result, which is that of a round."""

    part: Any
    round: int
