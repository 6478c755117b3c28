"""Whatever a server sends to sites, it cannot compute the sums of few of them."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from attacker_support import Attacker, Plan, Replay, conduct, contribution, replay
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from secure_support import names, signers

from fedgram.engines.remote.policy import AnswerRecord, SitePolicy
from fedgram.engines.remote.site_store import SiteStore
from fedgram.federation.step import step
from fedgram.methods.afl import AFL
from fedgram.secure.messages import NOTHING, Commitment
from fedgram.secure.party import ROUNDS, Party

HONEST, COLLUDING, INVENTED = names(5), ["x00"], ["y00", "y01"]
SIGNERS = signers([*HONEST, *COLLUDING])


def step_of(self, client, broadcast):
    return contribution(client, broadcast)


@pytest.fixture(autouse=True)
def _sums(monkeypatch):
    """Let a method of fedgram's own sum what the attacker knows how to search for."""
    monkeypatch.setattr(AFL, "statistics", step(step_of))


def some(of, least=0):
    return st.lists(st.sampled_from(of), min_size=least, max_size=len(of), unique=True).map(tuple)


def mostly(usual, other, times=5):
    """The usual value, and about every sixth time another one."""
    return st.integers(0, times).flatmap(lambda number: st.just(usual) if number else other)


FEWER = some(HONEST, 1) | st.sampled_from(HONEST).map(lambda one: tuple(sorted({*HONEST} - {one})))
DEPARTURES = {
    "sites": mostly(tuple(HONEST), FEWER, times=1),
    "own": mostly((), some([*COLLUDING, *INVENTED], 1)),
    "odd": mostly("", st.sampled_from(HONEST)),
    "announced": st.booleans(),
    "threshold": mostly(0, st.integers(1, 4)),
    "hidden": mostly((), st.tuples(st.sampled_from(HONEST), st.sampled_from(HONEST))),
    "lists": st.lists(
        mostly((), some([*HONEST, *COLLUDING], 1), times=1), min_size=1, max_size=2, unique=True
    ).map(tuple),
    "confirm": mostly(True, st.just(False)),
    "run": st.sampled_from("01"),
    "serial": st.integers(1, 2),
}


def plans(**departures):
    """Sessions that depart from the protocol in some of these respects, and in no other."""
    return st.builds(Plan, **{"sites": st.just(tuple(HONEST)), **departures})


PLANS = plans(**DEPARTURES)
REPLAYS = st.builds(
    Replay,
    number=st.integers(0, 99),
    site=st.integers(0, 4),
    change=st.sampled_from(["", "serial", "kind", "run", "bare", "open", "content", "names"]),
    other=st.integers(0, 99),
)
POLICIES = st.builds(
    SitePolicy, samples=st.just(0), secure=st.just(True), difference=st.sampled_from([0, 3, "same"])
)


def attacked(policy, plans, replays):
    """Return what a server learns that conducts sessions by these plans, and sends more."""
    with tempfile.TemporaryDirectory() as folder:
        attacker = Attacker(
            folder=Path(folder),
            signers=SIGNERS,
            honest=HONEST,
            colluding=COLLUDING,
            invented=INVENTED,
            policy=policy,
        )
        for plan in plans:
            conduct(attacker, plan)
        for again in replays:
            replay(attacker, again)
        return attacker.leaks(), attacker


SEQUENCES = int(os.environ.get("FEDGRAM_ATTACK_SEQUENCES", settings.default.max_examples))
FEW = settings(
    max_examples=SEQUENCES,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


@FEW
@given(POLICIES, st.lists(PLANS, min_size=1, max_size=3), st.lists(REPLAYS, max_size=6))
def test_no_server_computes_the_sums_of_few_sites(policy, plans, replays):
    leaks, _ = attacked(policy, plans, replays)
    assert leaks == []


def test_a_server_that_follows_the_protocol_computes_the_sum():
    """Else an attacker that finds nothing would show nothing."""
    policy = SitePolicy(samples=0, secure=True)
    leaks, attacker = attacked(policy, [Plan(sites=tuple(HONEST))], [])
    assert leaks == []
    assert [each.names for each in attacker.releases()] == [frozenset(HONEST)]


# The same attacker finds the hole if a check is taken out.


def believed(self, name, message, signature):
    """Signatures are not verified: no key is pinned, policies are for greetings."""


def unpinned(patch):
    patch.setattr(Party, "_verify", believed)


def unbound(patch):
    """What a session is about does not contain the broadcast."""
    whole = Commitment.digest
    patch.setattr(Commitment, "digest", lambda self: whole(replace(self, broadcast=NOTHING)))
    patch.setattr(Party, "_check_broadcast", lambda self, broadcast: None)


def revealing_twice(patch):
    """A site forgets that it has confirmed, and revealed."""
    keep = SiteStore.keep_party

    def kept(self, session, party):
        if party:
            keep(self, session, party)

    def enter(self, round_):
        self._round = ROUNDS.index(round_)

    patch.setattr(SiteStore, "keep_party", kept)
    patch.setattr(Party, "_enter", enter)


def forgetful(patch):
    """A site does not compare sums with those that it has answered."""
    patch.setattr(AnswerRecord, "require_apart", lambda self, *_, least: None)


def searched(*names):
    return plans(**{name: DEPARTURES[name] for name in names})


HOLES = {  # what is learned, and by sessions of which kind
    unpinned: ("a sum of few members", plans(sites=FEWER, own=some([*COLLUDING, *INVENTED], 1))),
    unbound: ("sums for unequal broadcasts", searched("odd", "announced")),
    revealing_twice: ("a sum of few members", searched("lists", "sites")),
    forgetful: ("a difference of two sums", searched("sites", "run", "serial")),
}


def first_leak(sessions):
    """Return what the attacker learns by the first sequence that shows it something."""
    found = []

    @settings(
        FEW,
        max_examples=5000,  # a few hundred are enough
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    @given(POLICIES, st.lists(sessions, min_size=1, max_size=2))
    def attack(policy, plans):
        leaks, _ = attacked(policy, plans, [])
        found.extend(leaks)
        assert not leaks

    with pytest.raises(AssertionError):
        attack()
    return found[0]


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.__name__)
def test_the_attacker_finds_a_hole(monkeypatch, hole):
    """It is told which departures to combine, which shortens the search."""
    hole(monkeypatch)
    leak, sessions = HOLES[hole]
    assert leak in first_leak(sessions)


@pytest.mark.wide
@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.__name__)
def test_the_attacker_finds_a_hole_among_all_departures(monkeypatch, hole):
    hole(monkeypatch)
    leak, _ = HOLES[hole]
    assert leak in first_leak(PLANS)
