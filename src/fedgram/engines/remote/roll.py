"""Who is there, by name: nodes are greeted, and found again after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from fedgram import codec
from fedgram.engines.remote.carrier import Carrier
from fedgram.engines.remote.messages import Answer, Greeting, Refusal, Request, Terms, about
from fedgram.engines.remote.post import Policy
from fedgram.errors import DataError, FederationError, FedgramError, MismatchError
from fedgram.samples import Space

_POLL = 0.25  # seconds between two looks
_FRESH = 2.0  # seconds for which the list of nodes is believed
_LONGEST_NAME = 200


class Roll:
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
    note
        Called with a site's name and what happened to it.
    """

    def __init__(
        self,
        carrier: Carrier,
        policy: Policy,
        *,
        listed: Collection[str] = (),
        shut_out: Mapping[str, str] | None = None,
        registered: Mapping[str, int] | None = None,
        note: Callable[[str, str], None],
    ) -> None:
        self._carrier = carrier
        self._policy = policy
        self._listed = frozenset(listed)
        self._shut_out = shut_out or {}
        self._registered = registered or {}
        self._owners = {node: name for name, node in self._registered.items()}
        self._note = note
        self._nodes: dict[str, int] = {}
        self._greeted: set[int] = set()
        self._seen: tuple[float, frozenset[int]] = (float("-inf"), frozenset())
        self.greetings: dict[str, Greeting] = {}

    def assemble(self, terms: Terms) -> Terms:
        """Wait until enough sites have come; return the terms with what they all agree on."""
        self._hello = codec.encode(Request(terms=terms, kind="greet", serial=0))
        clock = self._carrier.now
        end, enough = clock() + self._policy.wait, False
        tickets: dict[str, int] = {}
        while True:
            tickets.update(self._greet(end - clock()))
            self._welcome(tickets)
            if self._complete() and not enough:  # those who are slow to greet have a while yet
                end, enough = min(end, clock() + self._policy.grace), True
            if (enough and not tickets) or clock() >= end:
                break
            self._carrier.wait(min(_POLL, max(0.0, end - clock())))
        return self._agreed(terms)

    def node(self, name: str) -> int | None:
        """Return the node of a site if it is there; one that came back is greeted again."""
        if (node := self._nodes.get(name)) in self._here():
            return node
        tickets = self._greet(_FRESH)
        end = self._carrier.now() + self._policy.grace
        while tickets and self._carrier.now() < end:
            self._welcome(tickets)
            if tickets:
                self._carrier.wait(_POLL)
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

    def _greet(self, patience: float) -> dict[str, int]:
        """Send everybody new a greeting; return tickets."""
        new = sorted(self._here() - self._greeted)
        self._greeted.update(new)
        return {self._carrier.send(n, self._hello, patience=max(patience, 1.0)): n for n in new}

    def _welcome(self, tickets: dict[str, int]) -> None:
        for ticket, content in self._carrier.receive(list(tickets)):
            node = tickets.pop(ticket)
            if isinstance(content, str):
                self._note(f"node {node}", f"did not greet: {content}")
                self._greeted.discard(node)  # it may be there later
                continue
            try:
                name, greeting = self._introduced(content)
                self._admit(name, node, greeting)
            except FedgramError as error:
                self._note(f"node {node}", f"not admitted: {error}")

    def _introduced(self, content: bytes) -> tuple[str, Greeting]:
        answer = codec.decode(content, origin="greeting")
        if isinstance(answer, Refusal):
            raise MismatchError(f"{str(answer.client)[:_LONGEST_NAME]} refuses: {answer.text}")
        if not isinstance(answer, Answer) or answer.about != about(self._hello):
            raise DataError("not a greeting of this run")
        name, greeting = answer.client, answer.value
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise DataError("it has no name; set 'name' in site.toml")
        if not isinstance(greeting, Greeting) or not isinstance(greeting.space, Space):
            raise DataError(f"{name}: not a greeting")
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
        if self.greetings:
            spaces = Counter(greeting.space for greeting in self.greetings.values()).most_common(2)
            space, count = spaces[0]
            if len(spaces) > 1 and spaces[1][1] == count:
                raise MismatchError(
                    f"the sites' features differ and no kind of them prevails: "
                    f"{space.difference(spaces[1][0])}; use the same backbone and grid everywhere"
                )
            for name, greeting in sorted(self.greetings.items()):
                if greeting.space != space:
                    detail = space.difference(greeting.space)
                    self._note(name, f"left out: its features are others than most: {detail}")
                    del self._nodes[name], self.greetings[name]
        if len(self._nodes) < self._policy.minimum:
            raise FederationError(
                f"{len(self._nodes)} sites are there and federation.minimum = "
                f"{self._policy.minimum}; the log says who was refused"
            )
        lists = {greeting.classes for greeting in self.greetings.values()}
        union = tuple(sorted({name for classes in lists for name in classes}))
        return replace(terms, space=space, classes=lists.pop() if len(lists) == 1 else union)
