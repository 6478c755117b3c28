"""The connected sites, by name: nodes are greeted, and found again after a restart."""

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
from fedgram.ledger.history import COHORT
from fedgram.runtime.text import normalized

_POLL = 0.25  # seconds between two polls
_FRESH = 2.0  # seconds for which the list of nodes is used
_AGAIN = 15.0  # seconds until a rejected node is greeted again: it may have been corrected
_LONGEST_NAME = 200
_LARGEST = 1 << 24  # bytes of a greeting
_MOST_CLASSES = 10_000  # of a site, and of all sites


class Enrollment:
    """The sites of a run and the nodes they can be reached by.

    Parameters
    ----------
    transport
        The connection to the nodes.
    deadlines
        The minimum number of sites, and how long to wait.
    listed
        Names of the sites that may take part; empty for every site that connects.
    excluded
        Sites that may not take part, with the reason: they have left, or were forgotten.
    registered
        The node that each site's key belongs to, if sites have keys: no site can use the name of
        another.
    classes
        Names of classes that are in use already.
    note
        Called with a site's name and a line for the log.
    """

    def __init__(
        self,
        transport: Transport,
        deadlines: Deadlines,
        *,
        listed: Collection[str] = (),
        excluded: Mapping[str, str] | None = None,
        registered: Mapping[str, int] | None = None,
        classes: Sequence[str] = (),
        note: Callable[[str, str], None],
    ) -> None:
        self._transport = transport
        self._deadlines = deadlines
        self._listed = frozenset(listed)
        self._excluded = excluded or {}
        self._registered = registered or {}
        self._owners = {node: name for name, node in self._registered.items()}
        self._classes = tuple(classes)
        self._note = note
        self._nodes: dict[str, int] = {}
        self._due: dict[int, float] = {}  # when a node may be greeted again
        self._tickets: dict[str, int] = {}  # open greetings, and their nodes
        self._reported: set[tuple[int, str]] = set()
        self._seen: tuple[float, frozenset[int]] = (float("-inf"), frozenset())
        self.greetings: dict[str, Greeting] = {}

    @property
    def fingerprints(self) -> dict[str, str]:
        """Digests of the sites' samples, by name."""
        return {name: greeting.fingerprint for name, greeting in self.greetings.items()}

    def assemble(self, terms: Terms) -> Terms:
        """Wait for enough sites; return the terms with their common space and classes."""
        self._hello = codec.encode(Request(terms=terms, kind="greet", serial=0))
        clock = self._transport.now
        end, enough = clock() + self._deadlines.wait, False
        while True:
            self._greet(end - clock())
            if self._complete() and not enough:  # slow sites get the grace period
                end, enough = min(end, clock() + self._deadlines.grace), True
            if (enough and not self._tickets) or clock() >= end:
                break
            self._transport.wait(min(_POLL, max(0.0, end - clock())))
        return self._agreed(terms)

    def node(self, name: str) -> int | None:
        """Return the node of a site if it is connected; a new node is greeted first."""
        if self._nodes.get(name) not in self._here():
            self._greet(self._deadlines.grace)
        node = self._nodes.get(name)
        return node if node in self._here() else None

    def _here(self) -> frozenset[int]:
        """Return the connected nodes, as of a moment ago."""
        when, nodes = self._seen
        if self._transport.now() >= when + _FRESH:
            nodes = frozenset(self._transport.nodes())
            self._seen = (self._transport.now(), nodes)
        return nodes

    def _complete(self) -> bool:
        if len(self._nodes) < self._deadlines.minimum:
            return False
        return self._listed - set(self._excluded) <= set(self._nodes)

    def _greet(self, patience: float) -> None:
        """Greet unknown nodes, and admit those that have answered."""
        now = self._transport.now()
        for node in sorted(self._here()):
            if self._due.get(node, -inf) <= now:
                ticket = self._transport.send(node, self._hello, patience=max(patience, 1.0))
                self._tickets[ticket], self._due[node] = node, inf
        for ticket, content in self._transport.receive(list(self._tickets)):
            if (answering := self._tickets.pop(ticket, None)) is not None:
                self._welcome(answering, content)

    def _welcome(self, node: int, content: bytes | str) -> None:
        try:
            if isinstance(content, str):
                raise FederationError(f"no answer to the greeting ({content})")
            name, greeting = self._introduced(content)
            self._admit(name, node, greeting)
        except Exception as error:  # the run continues, whatever one node sends
            kind = "" if isinstance(error, FedgramError) else f"{type(error).__name__}: "
            self._due[node] = self._transport.now() + _AGAIN
            reason = shown(f"not admitted: {kind}{error}")
            if (node, reason) not in self._reported:
                self._reported.add((node, reason))
                self._note(f"node {node}", reason)

    def _introduced(self, content: bytes) -> tuple[str, Greeting]:
        if len(content) > _LARGEST:
            raise DataError(f"a greeting of {len(content)} bytes; the limit is {_LARGEST}")
        answer = codec.decode(content, origin="greeting")
        if isinstance(answer, Refusal):
            raise MismatchError(f"{str(answer.client)[:_LONGEST_NAME]} refuses: {answer.text}")
        if not isinstance(answer, Answer) or answer.request_digest != request_digest(self._hello):
            raise DataError("not a greeting of this run")
        name, greeting = answer.client, answer.value
        if not isinstance(name, str) or not 0 < len(name.strip()) <= len(name) <= _LONGEST_NAME:
            raise DataError(
                f"site name must have 1 to {_LONGEST_NAME} characters; set 'name' in site.toml"
            )
        if not name.isprintable() or name != normalized(name) or name == COHORT:
            raise DataError(f"{name!r} is not a valid site name; set another 'name' in site.toml")
        _require_greeting(name, greeting)
        return name, greeting

    def _admit(self, name: str, node: int, greeting: Greeting) -> None:
        if self._listed and name not in self._listed:
            raise MismatchError(f"{name} is not among the listed sites; see federation.sites")
        if self._owners.get(node, name) != name or self._registered.get(name, node) != node:
            owner = self._owners.get(node, "an unknown site")
            raise MismatchError(
                f"a node with the name {name} has the key of {owner}; if this is a new key, "
                "register it"
            )
        if name in self._excluded:
            raise MismatchError(f"{name} {self._excluded[name]}")
        if self._nodes.get(name, node) != node and self._nodes[name] in self._here():
            raise MismatchError(f"{name} is connected already, as another node; names must differ")
        self._nodes[name] = node
        self.greetings[name] = greeting
        self._note(name, f"connected, as node {node}")

    def _agreed(self, terms: Terms) -> Terms:
        """Return the terms with the space of most sites, and the classes of all."""
        space = self._prevailing_space()
        classes = self._merged_classes()
        if len(self._nodes) < self._deadlines.minimum:
            raise FederationError(
                f"{len(self._nodes)} sites are connected and federation.minimum = "
                f"{self._deadlines.minimum}; the log lists the sites that were refused"
            )
        return replace(terms, space=space, classes=classes)

    def _prevailing_space(self) -> Space:
        """Return the space of most sites; the other sites are left out."""
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
                f"the features of {one} and those of {two} differ, and neither has a majority: "
                f"{space.difference(spaces[1][0])}; use the same backbone and grid everywhere"
            )
        for name, greeting in sorted(self.greetings.items()):
            if greeting.space != space:
                detail = space.difference(greeting.space)
                self._leave_out(name, f"its features differ from most: {detail}")
        return space

    def _merged_classes(self) -> tuple[str, ...]:
        """Return all classes; sites that name them differently from most are left out."""
        merged = tuple(sorted(self._classes))
        votes = Counter(greeting.classes for greeting in self.greetings.values())
        for name in sorted(self.greetings, key=lambda n: (-votes[self.greetings[n].classes], n)):
            try:
                union = merged_classes(merged, self.greetings[name].classes)
                if len(union) > _MOST_CLASSES:
                    raise MismatchError(
                        f"all sites together have {len(union)} classes; the limit is "
                        f"{_MOST_CLASSES}"
                    )
                merged = union
            except MismatchError as error:
                self._leave_out(name, str(error))
        lists = {greeting.classes for greeting in self.greetings.values()}
        alike = len(lists) == 1 and set(merged) == {each for some in lists for each in some}
        return lists.pop() if alike else merged

    def _leave_out(self, name: str, reason: str) -> None:
        self._note(name, shown(f"left out: {reason}"))
        del self._nodes[name], self.greetings[name]


def _require_greeting(name: str, greeting: object) -> None:
    """Raise DataError unless all fields of a greeting are valid."""
    if not isinstance(greeting, Greeting) or not isinstance(greeting.space, Space):
        raise DataError(f"{name}: expected a greeting, got {type(greeting).__name__}")
    texts = (greeting.fingerprint, *greeting.classes, *greeting.space.steps)
    if not all(isinstance(text, str) for text in (greeting.space.backbone, *texts)):
        raise DataError(f"{name}: classes, steps and digests must be strings")
    if len(set(greeting.classes)) < len(greeting.classes) or not greeting.classes:
        raise DataError(f"{name}: no classes, or a class twice")
    if len(greeting.classes) > _MOST_CLASSES:
        raise DataError(f"{name}: {len(greeting.classes)} classes; the limit is {_MOST_CLASSES}")
    greeting.space.validate()
    hash((greeting.space, greeting.classes))
