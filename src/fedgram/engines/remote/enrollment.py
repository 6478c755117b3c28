"""Who is there, by name: nodes are greeted, and found again after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

from fedgram.core import codec
from fedgram.core.samples import NO_SPACE, Space
from fedgram.engines.remote.collector import Deadlines
from fedgram.engines.remote.messages import (
    Answer,
    Greeting,
    Refusal,
    Request,
    Terms,
    request_digest,
    shown,
)
from fedgram.engines.remote.transport import Transport
from fedgram.errors import DataError, FederationError, FedgramError, MismatchError
from fedgram.ledger.contribution import merged_classes
from fedgram.ledger.ledger import COHORT

_POLL = 0.25  # seconds between two looks
_FRESH = 2.0  # seconds for which the list of nodes is believed
_AGAIN = 15.0  # seconds until a node that was not admitted is greeted again: it may be mended
_LONGEST_NAME = 200
_LARGEST = 1 << 24  # bytes of a greeting


class Enrollment:
    """The sites of a run and the nodes they can be reached by.

    Parameters
    ----------
    carrier
        What reaches the nodes.
    policy
        How many must come, and how long to wait.
    listed
        Names of the sites that may take part; none given, anybody who comes.
    shut_out
        Names that may not, and why: they have left, or were forgotten.
    registered
        The node that each site's key belongs to, where keys are asked for: a site may not go by
        another's name.
    classes
        Names of classes that are in use already.
    note
        Called with a site's name and what happened to it.
    """

    def __init__(
        self,
        carrier: Transport,
        policy: Deadlines,
        *,
        listed: Collection[str] = (),
        shut_out: Mapping[str, str] | None = None,
        registered: Mapping[str, int] | None = None,
        classes: Sequence[str] = (),
        note: Callable[[str, str], None],
    ) -> None:
        self._carrier = carrier
        self._policy = policy
        self._listed = frozenset(listed)
        self._shut_out = shut_out or {}
        self._registered = registered or {}
        self._owners = {node: name for name, node in self._registered.items()}
        self._classes = tuple(classes)
        self._note = note
        self._nodes: dict[str, int] = {}
        self._due: dict[int, float] = {}  # when a node may be greeted again
        self._tickets: dict[str, int] = {}  # greetings under way, and their nodes
        self._told: set[tuple[int, str]] = set()
        self._seen: tuple[float, frozenset[int]] = (float("-inf"), frozenset())
        self.greetings: dict[str, Greeting] = {}

    @property
    def fingerprints(self) -> dict[str, str]:
        """Digests of the samples that sites have, by name."""
        return {name: greeting.fingerprint for name, greeting in self.greetings.items()}

    def assemble(self, terms: Terms) -> Terms:
        """Wait until enough sites have come; return the terms with what they all agree on."""
        self._hello = codec.encode(Request(terms=terms, kind="greet", serial=0))
        clock = self._carrier.now
        end, enough = clock() + self._policy.wait, False
        while True:
            self._greet(end - clock())
            if self._complete() and not enough:  # those who are slow to greet have a while yet
                end, enough = min(end, clock() + self._policy.grace), True
            if (enough and not self._tickets) or clock() >= end:
                break
            self._carrier.wait(min(_POLL, max(0.0, end - clock())))
        return self._agreed(terms)

    def node(self, name: str) -> int | None:
        """Return the node of a site if it is there; one that came back is greeted again."""
        if self._nodes.get(name) not in self._here():
            self._greet(self._policy.grace)
        node = self._nodes.get(name)
        return node if node in self._here() else None

    def _here(self) -> frozenset[int]:
        """Return the nodes that are there, as of a moment ago."""
        when, nodes = self._seen
        if self._carrier.now() >= when + _FRESH:
            nodes = frozenset(self._carrier.nodes())
            self._seen = (self._carrier.now(), nodes)
        return nodes

    def _complete(self) -> bool:
        if len(self._nodes) < self._policy.minimum:
            return False
        return self._listed - set(self._shut_out) <= set(self._nodes)

    def _greet(self, patience: float) -> None:
        """Greet the nodes that are not known, and take in those that have answered."""
        now = self._carrier.now()
        for node in sorted(self._here()):
            if self._due.get(node, -inf) <= now:
                ticket = self._carrier.send(node, self._hello, patience=max(patience, 1.0))
                self._tickets[ticket], self._due[node] = node, inf
        for ticket, content in self._carrier.receive(list(self._tickets)):
            if (answering := self._tickets.pop(ticket, None)) is not None:
                self._welcome(answering, content)

    def _welcome(self, node: int, content: bytes | str) -> None:
        try:
            if isinstance(content, str):
                raise FederationError(f"no greeting came ({content})")
            name, greeting = self._introduced(content)
            self._admit(name, node, greeting)
        except Exception as error:  # whatever one node sends, the others' run goes on
            kind = "" if isinstance(error, FedgramError) else f"{type(error).__name__}: "
            self._due[node] = self._carrier.now() + _AGAIN
            reason = shown(f"not admitted: {kind}{error}")
            if (node, reason) not in self._told:
                self._told.add((node, reason))
                self._note(f"node {node}", reason)

    def _introduced(self, content: bytes) -> tuple[str, Greeting]:
        if len(content) > _LARGEST:
            raise DataError(f"a greeting of {len(content)} bytes, more than any can have")
        answer = codec.decode(content, origin="greeting")
        if isinstance(answer, Refusal):
            raise MismatchError(f"{str(answer.client)[:_LONGEST_NAME]} refuses: {answer.text}")
        if not isinstance(answer, Answer) or answer.about != request_digest(self._hello):
            raise DataError("not a greeting of this run")
        name, greeting = answer.client, answer.value
        if not isinstance(name, str) or not 0 < len(name.strip()) <= len(name) <= _LONGEST_NAME:
            raise DataError(
                f"its name is none of 1 to {_LONGEST_NAME} letters; set 'name' in site.toml"
            )
        if not name.isprintable() or name == COHORT:
            raise DataError(f"{name!r} cannot be a site's name; set another 'name' in site.toml")
        _require_greeting(name, greeting)
        return name, greeting

    def _admit(self, name: str, node: int, greeting: Greeting) -> None:
        if self._listed and name not in self._listed:
            raise MismatchError(f"{name} is not among the listed sites; see federation.sites")
        if self._owners.get(node, name) != name or self._registered.get(name, node) != node:
            owner = self._owners.get(node, "nobody who is known")
            raise MismatchError(
                f"it says that it is {name}, but its key is that of {owner}; if that is a new key, "
                "register it"
            )
        if name in self._shut_out:
            raise MismatchError(f"{name} {self._shut_out[name]}")
        if self._nodes.get(name, node) != node and self._nodes[name] in self._here():
            raise MismatchError(f"{name} is here already, as another node; names must differ")
        self._nodes[name] = node
        self.greetings[name] = greeting
        self._note(name, f"is here, as node {node}")

    def _agreed(self, terms: Terms) -> Terms:
        """Return the terms with the space that most sites have, and all their classes."""
        space = self._prevailing_space()
        classes = self._merged_classes()
        if len(self._nodes) < self._policy.minimum:
            raise FederationError(
                f"{len(self._nodes)} sites are there and federation.minimum = "
                f"{self._policy.minimum}; the log says who was refused"
            )
        return replace(terms, space=space, classes=classes)

    def _prevailing_space(self) -> Space:
        """Return the space of most sites, without the others."""
        spaces = Counter(greeting.space for greeting in self.greetings.values()).most_common(2)
        if not spaces:
            return NO_SPACE
        space, count = spaces[0]
        if len(spaces) > 1 and spaces[1][1] == count:
            one, two = (
                ", ".join(
                    sorted(n for n, greeting in self.greetings.items() if greeting.space == s)
                )
                for s, _ in spaces
            )
            raise MismatchError(
                f"the features of {one} and those of {two} differ, and neither prevails: "
                f"{space.difference(spaces[1][0])}; use the same backbone and grid everywhere"
            )
        for name, greeting in sorted(self.greetings.items()):
            if greeting.space != space:
                detail = space.difference(greeting.space)
                self._leave_out(name, f"its features are others than most: {detail}")
        return space

    def _merged_classes(self) -> tuple[str, ...]:
        """Return all classes, without sites that name them in another way than most do."""
        merged = tuple(sorted(self._classes))
        votes = Counter(greeting.classes for greeting in self.greetings.values())
        for name in sorted(self.greetings, key=lambda n: (-votes[self.greetings[n].classes], n)):
            try:
                merged = merged_classes(merged, self.greetings[name].classes)
            except MismatchError as error:
                self._leave_out(name, str(error))
        lists = {greeting.classes for greeting in self.greetings.values()}
        alike = len(lists) == 1 and set(merged) == {each for some in lists for each in some}
        return lists.pop() if alike else merged

    def _leave_out(self, name: str, reason: str) -> None:
        self._note(name, shown(f"left out: {reason}"))
        del self._nodes[name], self.greetings[name]


def _require_greeting(name: str, greeting: object) -> None:
    """Refuse what is no greeting, down to what is counted and compared later."""
    if not isinstance(greeting, Greeting) or not isinstance(greeting.space, Space):
        raise DataError(f"{name}: not a greeting")
    texts = (greeting.fingerprint, *greeting.classes, *greeting.space.steps)
    if not all(isinstance(text, str) for text in (greeting.space.backbone, *texts)):
        raise DataError(f"{name}: classes, steps and digests are texts")
    if len(set(greeting.classes)) < len(greeting.classes) or not greeting.classes:
        raise DataError(f"{name}: it has no classes, or names one twice")
    hash((greeting.space, greeting.classes))
