"""A server that may send sites anything: hypothesis looks for a way to one site's sums.

The server has one member on its side, whose key all sites have pinned. The checker knows which
masks each answer has, and which of them the server can compute. A site's sums can be computed if
they are a linear combination of answers and known masks.
"""

import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from secure_sites_support import DEAD, LIVE, loads, office, terms  # noqa: F401
from secure_support import Load, names, signers

from fedgram.core import codec
from fedgram.engines.remote.messages import Answer, Request, Round, commitment_of
from fedgram.engines.remote.site_store import SiteStore
from fedgram.errors import PrivacyError
from fedgram.secure import party as party_module
from fedgram.secure.messages import Roster, SealedShares, SessionStart, Survivors
from fedgram.secure.party import Party

pytestmark = pytest.mark.usefixtures("loads")
SITES, HELPER, INVENTED = names(4), "c04", ("x1", "x2")
KNOWN = signers([*SITES, HELPER])
MODELS = st.sampled_from([DEAD, LIVE])
SUBSETS = st.sampled_from([SITES, SITES, SITES[:3], SITES[:2], SITES[:1], SITES[1:], SITES[2:]])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the server does in one session."""

    asked: list
    helper: bool
    invented: int
    threshold: int
    announced: list  # a model for each site
    sent: list
    silent: list  # sites whose contribution the server says it did not get
    other: list  # the same, for a second list of survivors
    order: list  # for each site: which of the two lists it gets first
    again: bool  # ask for the last round twice, with both lists


def mostly(usual, other):
    """Draw what a server does that keeps to the protocol in three of four cases."""
    return st.integers(0, 3).flatmap(lambda k: other if k == 3 else st.just(usual))


PLANS = st.builds(
    Plan,
    asked=SUBSETS,
    helper=st.booleans(),
    invented=mostly(0, st.just(2)),
    threshold=mostly(0, st.just(3)),
    announced=mostly(
        [LIVE] * 4, st.one_of(st.just([DEAD] * 4), st.lists(MODELS, min_size=4, max_size=4))
    ),
    sent=mostly(
        None, st.integers(0, 3).map(lambda k: [LIVE if j == k else DEAD for j in range(4)])
    ),
    silent=mostly([], st.sampled_from([[SITES[0]], [SITES[3]], SITES[:2]])),
    other=st.sampled_from([[], [SITES[0]], [SITES[1]]]),
    order=mostly([False] * 4, st.lists(st.booleans(), min_size=4, max_size=4)),
    again=st.booleans(),
)


@dataclass
class Knowledge:
    """All that the server can compute of masks and sums."""

    answers: list = field(default_factory=list)  # name, session, whether it holds sums, masks
    shares: dict = field(default_factory=lambda: defaultdict(set))  # who revealed which secret
    thresholds: dict = field(default_factory=dict)

    def recovered(self, kind, session, owner):
        return len(self.shares[kind, session, owner]) >= self.thresholds.get(session, 99)

    def knows(self, session, name, peer):
        """Whether the server can compute a mask: the own one of a site, or that with a peer."""
        if peer == name:
            return self.recovered("seeds", session, name)
        private = any(self.recovered("keys", session, each) for each in (name, peer))
        return private or peer not in SITES

    def exposed(self):
        """Return the sites whose sums can be computed."""
        columns = {name: place for place, name in enumerate(SITES)}
        rows = []
        for name, session, live, masks in self.answers:
            row = defaultdict(int)
            row[columns[name]] += int(live)
            for peer, key, negative in masks:
                if not self.knows(session, name, peer):
                    row[columns.setdefault(key, len(columns))] += -1 if negative else 1
            rows.append(row)
        if not rows:
            return set()
        matrix = np.zeros((len(rows), len(columns)))
        for place, row in enumerate(rows):
            matrix[place, list(row)] = list(row.values())
        rank = np.linalg.matrix_rank(matrix)
        units = np.eye(len(columns))[: len(SITES)]
        return {
            name
            for name, unit in zip(SITES, units, strict=True)
            if np.linalg.matrix_rank(np.vstack([matrix, unit])) == rank
        }


class Attacker:
    """Runs plans against sites, each answer in an endpoint of its own."""

    def __init__(self, folder, *, signed=True, **policy):
        self._folder = folder
        self._signers = KNOWN if signed else {}
        self._policy = policy
        self._number = 0
        self.knowledge = Knowledge()

    def ask(self, name, kind, content, model=None):
        """Return a site's answer; None for a refusal."""
        round_ = Round(session=self._session, content=content, broadcast=model)
        request = Request(
            terms=terms(),
            kind=kind,
            serial=self._number,
            ask_number=self._number,
            step="statistics",
            broadcast=round_,
        )
        endpoint = office(self._folder, name, signer=self._signers.get(name), **self._policy)
        said = codec.decode(endpoint.answer(codec.encode(request)))
        return said.value if isinstance(said, Answer) else None

    def run(self, plan):
        """Go through all rounds with the sites that answer."""
        self._number += 1
        self._session = f"{self._number:064x}"
        own = self._start(plan.announced[0])
        calls = dict(zip(SITES, map(self._start, plan.announced), strict=True))
        keys = {name: self.ask(name, "keys", calls[name]) for name in plan.asked}
        mine = [*([HELPER] if plan.helper else []), *INVENTED[: plan.invented]]
        parties = {
            name: Party(name, own, signer=self._signers.get(name), share=0.5) for name in mine
        }
        members = [*filter(None, keys.values()), *(each.keys() for each in parties.values())]
        members.sort(key=lambda each: each.name)
        threshold = plan.threshold or max(3, 2 * len(members) // 3 + 1)
        roster = Roster(session=self._session, threshold=threshold, members=tuple(members))
        self.knowledge.thresholds[self._session] = threshold
        sent = {name: self.ask(name, "shares", roster) for name in plan.asked}
        for name, each in parties.items():
            try:
                sent[name] = each.shares(roster)
            except PrivacyError:
                return
        self._contributed({name: each for name, each in sent.items() if each}, plan, mine)

    def _start(self, model):
        about = commitment_of(
            terms(),
            ask_number=self._number,
            step="statistics",
            federation="",
            broadcast=codec.digest(model),
        )
        return SessionStart(session=self._session, commitment=about)

    def _contributed(self, sent, plan, mine):
        models = plan.sent or plan.announced
        for name in set(sent) - set(mine):
            for owner in mine:  # the server opens what was sealed for its own parties
                for kind in ("seeds", "keys"):
                    self.knowledge.shares[kind, self._session, name].add(owner)
            others = [each for each in sent.values() if each.name != name]
            parcel = SealedShares(
                sealed={each.name: each.sealed[name] for each in others},
                digests={each.name: each.digests[name] for each in others},
                signatures={each.name: each.signatures[name] for each in others},
            )
            self.ask(name, "masked", parcel, models[SITES.index(name)])
        lists = [tuple(sorted(set(sent) - set(away))) for away in (plan.silent, plan.other)]
        self._revealed(lists, plan, sorted(set(sent) - set(mine)))

    def _revealed(self, lists, plan, sites):
        signatures = defaultdict(dict)
        for name in sites:
            some = lists[plan.order[SITES.index(name)]]
            said = self.ask(name, "confirm", Survivors(names=some))
            if said is not None:
                signatures[some][name] = said.signature
        for some, signed in signatures.items():
            if HELPER in some and self._signers:
                signed[HELPER] = self._forged(some)
        for name in sites:
            first = plan.order[SITES.index(name)]
            for some in (lists[first], *([lists[not first]] if plan.again else [])):
                content = Survivors(names=some, signatures=signatures[some])
                said = self.ask(name, "reveal", content)
                for kind in ("seeds", "keys") if said is not None else ():
                    for owner in getattr(said, kind):
                        self.knowledge.shares[kind, self._session, owner].add(name)

    def _forged(self, some):
        """Return the signature of the server's own member, for any list."""
        bound = self.bindings.get(self._session)
        message = Survivors(names=some).signed_part(bound) if bound else b""
        return KNOWN[HELPER].sign(message).hex()


def attacked(plans, *patches, **options):
    """Return the sites whose sums the server can compute after these sessions."""
    masked = Party.masked
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for each in patches:
            stack.enter_context(each())
        attacker = Attacker(Path(folder), **options)
        attacker.bindings = {}

        def noted(self, value, parcel, broadcast):
            said = masked(self, value, parcel, broadcast)
            peers = [self.name, *sorted(set(self._received) - {self.name})]
            terms_ = [(p, k, n) for p, (k, n) in zip(peers, self._masks(), strict=True)]
            session = self._call.session
            live = value != Load()
            attacker.knowledge.answers.append((self.name, session, live, terms_))
            attacker.bindings[session] = self._binding
            return said

        stack.enter_context(patch.object(Party, "masked", noted))
        for plan in plans:
            attacker.run(plan)
        return attacker.knowledge.exposed()


@given(st.lists(PLANS, min_size=1, max_size=4))
@settings(suppress_health_check=[*HealthCheck])
def test_no_sequence_of_messages_gives_the_sums_of_one_site(plans):
    assert attacked(plans) == set()


def no_binding():
    stack = ExitStack()
    stack.enter_context(patch.object(Party, "_check_broadcast", lambda *_: None))
    stack.enter_context(patch.object(party_module, "binding", lambda roster, _: roster.digest()))
    return stack


def revealing_twice():
    stack, keep = ExitStack(), SiteStore.keep_party
    stack.enter_context(
        patch.object(SiteStore, "keep_party", lambda *args: keep(*args) if args[-1] else None)
    )
    stack.enter_context(patch.object(Party, "_check_confirmed", lambda *_: None))
    return stack


HONEST = {
    "asked": SITES,
    "helper": True,
    "invented": 0,
    "threshold": 0,
    "announced": [LIVE] * 4,
    "sent": None,
    "silent": [],
    "other": [],
    "order": [False] * 4,
    "again": False,
}


def plan(**changed):
    return Plan(**{**HONEST, **changed})


def test_the_checker_sees_the_known_attacks_if_a_mechanism_is_missing():
    """By hand, so that it is clear what hypothesis has to find."""
    alone = [LIVE, DEAD, DEAD, DEAD]
    assert attacked([plan(announced=[DEAD] * 4, sent=alone)], no_binding) == {SITES[0]}
    twice = plan(other=[SITES[0]], again=True)
    assert SITES[0] in attacked([twice], revealing_twice, difference=0)
    assert attacked([plan(), plan(asked=SITES[1:])], difference=0) == {SITES[0]}
    invented = plan(asked=SITES[:1], helper=False, invented=2)
    assert attacked([invented], signed=False) == {SITES[0]}
    assert attacked([plan(announced=[DEAD] * 4, sent=alone), twice, invented]) == set()
    assert attacked([plan(), plan(asked=SITES[1:])]) == set()


@pytest.mark.parametrize(
    ("sessions", "patches", "options"),
    [
        (1, [no_binding], {}),
        (1, [revealing_twice], {"difference": 0}),
        (2, [], {"difference": 0}),
        (1, [], {"signed": False}),
    ],
    ids=["no binding of the broadcast", "reveal twice", "no rule of differences", "no pinned keys"],
)
def test_the_attacker_finds_the_hole_where_a_mechanism_is_missing(sessions, patches, options):
    found = find(
        st.lists(PLANS, min_size=1, max_size=sessions),
        lambda plans: bool(attacked(plans, *patches, **options)),
        settings=settings(
            max_examples=2000,
            derandomize=True,
            deadline=None,
            suppress_health_check=[*HealthCheck],
            phases=[Phase.generate],
        ),
    )
    assert found
