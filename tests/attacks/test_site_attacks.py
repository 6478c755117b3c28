"""A server against sites with samples: paths, states, totals, stored answers, limits."""

from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
from remote_support import StandIn
from secure_support import signers

from fedgram.core import codec
from fedgram.core.samples import Labels, Samples
from fedgram.engines.remote.collector import Collector, Deadlines
from fedgram.engines.remote.messages import (
    Answer,
    Delivery,
    Refusal,
    Request,
    Round,
    ScoreRequest,
    Terms,
    request_digest,
)
from fedgram.engines.remote.policy import SitePolicy
from fedgram.engines.remote.replay_log import ReplayLog
from fedgram.engines.remote.secure_server import SecureRemoteFederation
from fedgram.engines.remote.site import SiteEndpoint
from fedgram.errors import FederationError
from fedgram.features.grid import Grid
from fedgram.federation.client import Client, Site
from fedgram.methods.auto import Question
from fedgram.selection.normal_equations import NormalEquations

NAMES = ["a", "b", "c", "v"]
CLASSES = ("no", "yes")


def site_of(name, samples=40):
    rng = np.random.default_rng(ord(name))
    labels = Labels(rng.integers(0, 2, 40), CLASSES)
    every = Samples(Grid(bits=8)(rng.normal(size=(40, 6)), backbone=""), labels)
    some = every.take(slice(0, samples))
    return Site(id=name, train=some, valid=every.take([]), test=every.take(slice(0, 5)))


SITES = {name: site_of(name) for name in NAMES}


def terms(method="auto", *, secure=True, run="0"):
    settings = {"exchanges": 0, "effort": "low"} if method == "auto" else {}
    return Terms(
        version=version("fedgram"),
        run=run * 32,
        seed=0,
        method=method,
        settings=settings,
        grid={},
        secure=secure,
        space=SITES["a"].train.features.space,
        classes=CLASSES,
    )


def endpoint(folder, name, *, signer=None, site=None, **policy):
    return SiteEndpoint(
        name,
        lambda: site or SITES[name],
        grid={},
        folder=folder / name / "cache",
        accept=SitePolicy(**policy),
        signer=signer,
    )


class Server:
    """A server that changes the requests to single sites after it has made them."""

    def __init__(self, folder):
        known = signers(NAMES)
        sites = {
            node: endpoint(folder, name, signer=known[name], secure=True)
            for node, name in enumerate(NAMES)
        }
        self.alter = None
        self.transport = StandIn(sites, self._sent)
        collector = Collector(
            self.transport, NAMES.index, Deadlines(timeout=5, grace=1), lambda *_: None
        )
        self.engine = SecureRemoteFederation(collector, NAMES, terms(), ReplayLog(folder / "log"))
        self.method = terms().make()
        total = self.engine.sum(self.method.statistics)
        self.question = Question(
            equations=(NormalEquations(total=total, ridge=1.0),),
            soft=np.zeros((0, 0, 0), np.int64),
            folds=5,
            counts=np.array([80.0, 80.0]),
            pseudo_count=1.0,
        )

    def _sent(self, node, request, answer):
        if self.alter is None:
            return answer(request)
        changed = self.alter(NAMES[node], codec.decode(request))
        if changed is None:
            return None
        said = codec.decode(answer(codec.encode(changed)))
        if isinstance(said, Answer):
            said = replace(said, request_digest=request_digest(request))
        return codec.encode(said)

    def own(self, name, weights, totals=("statistics",)):
        """Return what a site alone would contribute to the pool."""
        site = SITES[name]
        client = Client(
            id=name, train=site.train, valid=site.valid, state={}, totals=frozenset(totals)
        )
        self.method.left_out(client, self.question)
        return self.method.pool(client, weights)


WEIGHTS = {"weights": np.array([1.0, 0.5]), "places": [0]}


def test_a_step_uses_the_state_of_one_session_at_every_member(tmp_path):
    """Other members with an older state would contribute zeros, and the total be of one."""
    server = Server(tmp_path)
    server.engine.sum(server.method.left_out, server.question)
    server.alter = lambda name, asked: replace(asked, serial=0) if name != "v" else asked
    total = server.engine.sum(server.method.pool, WEIGHTS)
    assert total == sum((server.own(name, WEIGHTS) for name in NAMES[1:]), server.own("a", WEIGHTS))


def test_a_state_is_used_only_after_its_sum_was_revealed(tmp_path):
    server = Server(tmp_path)
    server.alter = lambda name, asked: None if asked.kind == "masked" and name != "v" else asked
    with pytest.raises(FederationError):
        server.engine.sum(server.method.left_out, server.question)
    server.alter = None
    total = server.engine.sum(server.method.pool, WEIGHTS)
    assert total.weight == 0  # nobody has a state
    pending = next((tmp_path / "v" / "cache" / "runs").glob("*/pending-*")).name
    server.engine._state = pending.removeprefix("pending-")
    with pytest.raises(FederationError, match="was not in the sum whose state"):
        server.engine.sum(server.method.pool, WEIGHTS)


def test_all_members_are_sent_the_same_members_of_earlier_totals(tmp_path):
    server = Server(tmp_path)

    def others(name, asked):
        round_ = asked.broadcast
        if name != "v" or asked.kind != "masked":
            return asked
        return replace(asked, broadcast=replace(round_, totals={}))

    server.alter = others
    server.engine.sum(server.method.left_out, server.question)
    assert server.engine.contributors == ["a", "b", "c"]
    said = [codec.decode(answer) for answer in server.transport.answered]
    (refusal,) = {said_.text for said_ in said if isinstance(said_, Refusal)}
    assert "the members of earlier totals are not those" in refusal


def test_names_of_totals_beside_the_round_change_nothing(tmp_path):
    server = Server(tmp_path)
    first = server.engine.sum(server.method.left_out, server.question)
    server.alter = lambda name, asked: replace(asked, totals=()) if name == "v" else asked
    assert server.engine.sum(server.method.left_out, server.question) == first


HOSTILE = ["/../../../../outside", "0/../../x", -1, 1.5, True, None, "\0", "1"]


@pytest.mark.parametrize("number", HOSTILE, ids=repr)
def test_a_round_that_is_no_number_becomes_no_path(tmp_path, number):
    folder = tmp_path / "sites"
    for secure in (False, True):
        victim = endpoint(folder, "v")
        known = terms("afl", secure=secure)
        scoring = ScoreRequest(part=None, round=number)
        for kind, broadcast in (
            ("deliver", Delivery(part=None, round=number)),
            ("score", scoring),
            ("score", ScoreRequest(part=None, round=0, best=number)),
            ("masked", Round(session="0" * 64, content=None, broadcast=scoring)),
        ):
            asked = Request(terms=known, kind=kind, serial=1, step=kind, broadcast=broadcast)
            said = codec.decode(victim.answer(codec.encode(asked)))
            assert isinstance(said, Refusal)
            assert "numbers of rounds" in said.text
    assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["sites"])
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_stored_answer_is_not_sent_where_the_policy_or_the_samples_have_changed(tmp_path):
    asked = codec.encode(
        Request(terms=terms("afl", secure=False), kind="step", serial=1, step="statistics")
    )
    first = codec.decode(endpoint(tmp_path, "v").answer(asked)).value
    assert codec.decode(endpoint(tmp_path, "v").answer(asked)).value == first
    for policy in ({"secure": True}, {"methods": ("fedhip",)}, {"samples": 10**9}):
        said = codec.decode(endpoint(tmp_path, "v", **policy).answer(asked))
        assert isinstance(said, Refusal)
    fewer = site_of("v", samples=39)
    said = codec.decode(endpoint(tmp_path, "v", site=fewer).answer(asked))
    assert said.value.count == 39


def test_another_class_list_does_not_erase_what_another_run_has_stored(tmp_path):
    victim = endpoint(tmp_path, "v")

    def ask(known):
        request = Request(terms=known, kind="step", serial=1, step="statistics")
        return codec.decode(victim.answer(codec.encode(request)))

    ask(terms("afl", secure=False, run="1"))
    before = sorted((tmp_path / "v" / "cache" / "runs").rglob("*"))
    ask(replace(terms("afl", secure=False, run="2"), classes=(*CLASSES, "maybe")))
    assert set(before) <= set((tmp_path / "v" / "cache" / "runs").rglob("*"))


def test_refused_requests_use_up_no_questions(tmp_path):
    victim = endpoint(tmp_path, "v", questions=1)
    for number in range(3):
        session = Round(session=f"{number:064x}", content=None)
        asked = Request(
            terms=terms("afl"), kind="masked", serial=1, step="statistics", broadcast=session
        )
        assert isinstance(codec.decode(victim.answer(codec.encode(asked))), Refusal)
    asked = Request(terms=terms("afl", secure=False), kind="step", serial=1, step="statistics")
    assert isinstance(codec.decode(victim.answer(codec.encode(asked))), Answer)
