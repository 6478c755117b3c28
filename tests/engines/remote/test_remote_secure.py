"""Remote secure sums: sites that drop out, repeated requests, and what the server sees."""

from dataclasses import replace

import numpy as np
import pytest
from remote_support import StandIn, at, done, federation, in_process, notes, offices, served
from secure_sites_support import Remote, loads, office, silent, terms, traces  # noqa: F401
from secure_support import leaks, names, total_of

from fedgram.core import codec
from fedgram.deploy.membership import Membership
from fedgram.deploy.server import run_federation
from fedgram.engines.remote.messages import Answer, Refusal, Request, Round, commitment_of
from fedgram.errors import FederationError, LedgerError
from fedgram.ledger.folder import Ledgers
from fedgram.ledger.ledger import COHORT
from fedgram.secure.messages import (
    NOTHING,
    Masked,
    Reveal,
    Roster,
    SealedShares,
    SessionStart,
    Survivors,
)

COUNT = 6  # of whom five must stay


pytestmark = pytest.mark.usefixtures("loads")


@pytest.mark.wide  # tests/secure has the same of the protocol alone
def test_fifty_sites_of_whom_ten_drop_out_after_sharing_keys(tmp_path):
    away = names(50)[::5]
    remote = Remote(tmp_path, 50, silent(away, ("masked", "reveal")))
    assert remote.sum() == total_of(set(names(50)) - set(away))
    assert leaks([remote.view]) == set()
    seen = remote.seen()
    assert not any(trace in seen for name in names(50) for trace in traces(name))
    assert remote.notes == [(name, "left out: no answer in time") for name in away]


@pytest.mark.parametrize("kinds", [(), ("keys",), ("shares",), ("masked", "reveal"), ("reveal",)])
def test_one_may_drop_out_at_any_time(tmp_path, kinds):
    away = ["c02"] if kinds else []
    remote = Remote(tmp_path, COUNT, silent(away, kinds))
    gone = [] if kinds == ("reveal",) else away
    assert remote.sum() == total_of(set(names(COUNT)) - set(gone))
    assert leaks([remote.view]) == set()


@pytest.mark.parametrize("kinds", [("keys",), ("shares",), ("masked", "reveal"), ("reveal",)])
def test_with_fewer_than_the_threshold_nothing_is_revealed_and_one_can_start_again(tmp_path, kinds):
    away = ["c02", "c04"]
    remote = Remote(tmp_path, COUNT, silent(away, kinds))
    with pytest.raises(FederationError, match=r"4 of . sites answered and 5 are needed"):
        remote.sum()
    view = remote.view
    if any(isinstance(message, Masked) for message in view):
        assert leaks([view]) == set()
    assert kinds == ("reveal",) or not any(isinstance(message, Reveal) for message in view)
    again = Remote(tmp_path, COUNT)  # the same run, at the same sites
    assert again.sum() == total_of(names(COUNT))
    assert again.engine.asks[-1].clients == COUNT
    views = [v for v in (view, again.view) if any(isinstance(m, Masked) for m in v)]
    assert leaks(views) == set()


def told(change):
    """Return a fault: what a site answers, with something changed."""

    def say(request, answer):
        honest = codec.decode(answer(request))
        return codec.encode(replace(honest, value=change(honest.value)))

    return say


BAD = {
    "one key for two purposes": (
        "keys",
        lambda v: replace(v, mask=v.encryption),
        "one key for two purposes",
    ),
    "keys that are none": ("keys", lambda v: replace(v, mask="what?"), "not hexadecimal"),
    "a key of zeros": ("keys", lambda v: replace(v, mask="00" * 32), "public key is invalid"),
    "an invalid commitment": ("keys", lambda v: replace(v, seed_commitment=5), "not hexadecimal"),
    "keys of another": ("keys", lambda v: replace(v, name="c00"), "invalid answer to keys"),
    "shares for strangers": (
        "shares",
        lambda v: replace(v, sealed={**v.sealed, "c77": "00"}),
        "other clients than asked",
    ),
    "shares for some": ("shares", lambda v: replace(v, sealed={}), "other clients than asked"),
    "letters that are none": (
        "shares",
        lambda v: replace(v, sealed=dict.fromkeys(v.sealed, "no")),
        "not hexadecimal",
    ),
    "another layout": ("masked", lambda v: replace(v, layout={}), "the layout of its sums differs"),
    "another length": ("masked", lambda v: replace(v, vector=v.vector[1:]), "does not fit"),
    "no integers": (
        "masked",
        lambda v: replace(v, vector=v.vector.astype(np.float64)),
        "does not fit",
    ),
    "no vector": ("masked", lambda v: replace(v, vector=[1]), "does not fit"),
    "two secrets of one": (
        "reveal",
        lambda v: replace(v, keys={**v.keys, "c05": "00" * 33}),
        "other clients than asked",
    ),
    "a wrong share": (
        "reveal",
        lambda v: replace(v, seeds={**v.seeds, "c05": "00" * 33}),
        "client c02: it sent a wrong share of the secret of c05",
    ),
    "digests of some": ("shares", lambda v: replace(v, digests={}), "digests of other shares"),
    "no secrets": ("reveal", lambda v: replace(v, seeds={}), "other clients than asked"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_left_out_and_the_others_finish(tmp_path, name):
    stage, change, reason = BAD[name]
    remote = Remote(tmp_path, COUNT, at(102, stage, told(change)))
    gone = () if stage == "reveal" else ("c02",)
    assert remote.sum() == total_of(set(names(COUNT)) - set(gone))
    assert any(who == "c02" and reason in text for who, text in remote.notes)


def test_a_letter_that_cannot_be_opened_ends_the_sum_and_reveals_nothing(tmp_path):
    def noise(shares):
        return replace(shares, sealed=dict.fromkeys(shares.sealed, "ab" * 100))

    remote = Remote(tmp_path, COUNT, at(102, "shares", told(noise)))
    with pytest.raises(FederationError, match="sites answered and 5 are needed"):
        remote.sum()
    assert not any(isinstance(message, Reveal) for message in remote.view)
    assert sum("an encrypted share was changed" in text for _, text in remote.notes) == 5


# What a site says, it says once.


def asked(folder, what, content, *, serial=1, session="ab" * 32, broadcast=None):
    """Ask a site as it is started anew; return the bytes that it answers, and what they say."""
    round_ = Round(session=session, content=content, broadcast=broadcast)
    request = Request(terms=terms(), kind=what, serial=serial, step="statistics", broadcast=round_)
    answer = office(folder, "c00").answer(codec.encode(request))
    return answer, codec.decode(answer)


@pytest.fixture
def rounds(tmp_path):
    """Go through a whole sum with a site; return what it was asked in each round."""
    remote = Remote(tmp_path, 3)
    remote.sum()
    mine = [codec.decode(request) for at_, request in remote.carrier.sent if at_ == 100]
    return tmp_path, {request.kind: request for request in mine}


def test_the_same_question_gets_the_same_answer_and_another_none(rounds, tmp_path):
    folder, requests = rounds
    for what, request in requests.items():
        again = office(folder, "c00").answer(codec.encode(request))
        assert isinstance(codec.decode(again), Answer)
        assert again == office(folder, "c00").answer(codec.encode(request))
        other = codec.encode(replace(request, ask_number=9))
        said = codec.decode(office(folder, "c00").answer(other))
        assert isinstance(said, Refusal), what
        assert "it is not answered" in said.text


def test_a_round_whose_answer_was_lost_at_the_site_is_not_answered_again(rounds):
    folder, requests = rounds
    for path in folder.glob("c00/runs/*/answer-*"):
        path.unlink()
    for request in requests.values():
        said = codec.decode(office(folder, "c00").answer(codec.encode(request)))
        assert isinstance(said, Refusal)
        assert "it is not answered" in said.text


def test_rounds_are_answered_in_order_and_sessions_not_mixed(tmp_path):
    about = commitment_of(
        terms(), ask_number=0, step="statistics", federation="", broadcast=NOTHING
    )
    start = SessionStart(session="ab" * 32, commitment=about)
    assert "unknown here" in asked(tmp_path, "shares", None)[1].text
    for other in (replace(about, run="1"), replace(about, step="score"), replace(about, method="")):
        said = asked(tmp_path, "keys", replace(start, commitment=other))[1]
        assert "the session is about another federation, run, step" in said.text
    _, keys = asked(tmp_path, "keys", start)
    assert isinstance(keys, Answer)
    listed = Survivors(names=("c00", "c01", "c02"))
    for what, content in (("masked", SealedShares(sealed={})), ("reveal", listed)):
        assert "out of order" in asked(tmp_path, what, content)[1].text
    roster = Roster(session="cd" * 32, threshold=3, members=(keys.value,) * 3)
    assert isinstance(asked(tmp_path, "shares", roster)[1], Refusal)
    assert isinstance(
        asked(tmp_path, "keys", SessionStart(session="x"), session="../../x")[1], Refusal
    )


def test_in_a_secure_run_nothing_is_told_in_the_open(tmp_path):
    for what, content in (("step", None), ("score", None)):
        answer, said = asked(tmp_path, what, content)
        assert isinstance(said, Refusal)
        assert not any(trace in answer for trace in traces("c00"))


# The whole way, with the methods as they are.


@pytest.fixture
def honest(loads, monkeypatch):  # noqa: F811
    monkeypatch.undo()


def test_a_run_with_secure_sums_goes_on_without_one_that_drops_out(tmp_path, honest):
    policy = {"timeout": 30, "grace": 5}
    fault = silent(["c2"], ("masked", "reveal"))
    out, config, _, _ = served(
        tmp_path, "afl", clients=6, fault=fault, rules=policy, engine={"secure": True}
    )
    rest = [f"c{k}" for k in range(6) if k != 2]
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl", rest).shared_digest
    assert ("c2", "left out: no answer in time") in notes(out, "afl")
    (account,) = Membership(folder=tmp_path / "server").status()["ledgers"]
    assert account["members"] == rest
    assert account["cohort"]


def test_a_secure_run_that_failed_is_started_again(tmp_path, honest):
    rules = {"timeout": 30, "grace": 5}
    options = {"clients": 4, "rules": rules, "engine": {"secure": True}}
    with pytest.raises(FederationError, match="2 of 4 sites answered and 3 are needed"):
        served(tmp_path, "afl", fault=silent(["c1", "c2"], ("masked",)), **options)
    folder, config = federation(tmp_path, "afl", **options)
    out = run_federation(StandIn(offices(config, tmp_path / "sites")), folder, print)
    assert out.name == "0001"
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl").shared_digest


def test_who_is_forgotten_in_a_cohort_is_out_of_the_next_sum(tmp_path, honest):
    options = {"clients": 4, "rules": {"minimum": 3}, "engine": {"secure": True}}
    served(tmp_path, "afl", **options)
    (certificate,) = Membership(folder=tmp_path / "server").forget("c1")
    Membership(folder=tmp_path / "server").verify(certificate)
    out, config, _, _ = served(tmp_path, "afl", **options)
    rest = ["c0", "c2", "c3"]
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl", rest).shared_digest
    (account,) = Membership(folder=tmp_path / "server").status()["ledgers"]
    assert account["members"] == rest


def test_who_is_forgotten_while_a_sum_is_made_is_not_in_what_is_kept(tmp_path, honest):
    options = {"clients": 4, "rules": {"minimum": 3}, "engine": {"secure": True}}
    served(tmp_path, "afl", **options)

    def forgotten(request, answer):
        with Ledgers(tmp_path / "server") as ledgers:  # by a program that does not take the lock
            [ledger.forget("c1", within=COHORT) for _, ledger in ledgers]
        return answer(request)

    with pytest.raises(LedgerError, match=r"c1: .*during the secure sum; start again"):
        served(tmp_path, "afl", fault=at(101, "reveal", forgotten), **options)
    out, config, _, _ = served(tmp_path, "afl", **options)
    rest = ["c0", "c2", "c3"]
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl", rest).shared_digest
