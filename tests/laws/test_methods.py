"""The laws that every method keeps, found by name; and planted methods that break them.

A law is a plain function of a method, so that it can be tried on methods made to fail it.
"""

import dataclasses
import functools
import json
import operator
import os
import subprocess
import sys
import typing

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedgram import codec
from fedgram.client import Site
from fedgram.data.plan import Plan
from fedgram.data.sources import load
from fedgram.engines.inprocess import InProcess
from fedgram.errors import PrivacyError
from fedgram.experiment.runner import run
from fedgram.experiment.sites import Sites, sites
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation import delivery, provenance
from fedgram.method import find, make, names
from fedgram.samples import Features, Labels, Samples, concatenate

METHODS = names()
NEED_GATHER = {"central"}  # show the server every sample, by definition
WIDE = 512  # below about this width many wrong programs pass


# Federations


@functools.cache
def digits():
    data = load("digits")
    return Samples(Grid()(data.x), Labels(data.y, data.classes))


def dealt(**plan):
    return sites(load("digits"), Plan(**{"clients": 8, **plan}))


def federated(parts, holdout=()):
    """Sites of these samples by name; a fifth of the digits, unseen by all, to test on."""
    test = digits().take(slice(0, None, 5))
    nothing = test.take([])
    built = {
        name: Site(id=name, train=train, valid=nothing, test=test) for name, train in parts.items()
    }
    return Sites(
        members=[site for name, site in built.items() if name not in holdout],
        holdout=[site for name, site in built.items() if name in holdout],
        test=test,
    )


def trainable():
    """The digits that `federated` does not test on."""
    return digits().take(np.flatnonzero(np.arange(len(digits())) % 5))


# Methods


def wide(name, width):
    """Settings that give every lift of a method this width."""
    fields = dataclasses.fields(find(name))
    return {f.name: {"width": width} for f in fields if isinstance(f.default, Lift)}


def variants(name):
    """Settings that try every choice a method offers in words."""
    hints = typing.get_type_hints(find(name))
    choices = {
        field: typing.get_args(hint)
        for field, hint in hints.items()
        if typing.get_origin(hint) is typing.Literal
    }
    return [{}, *({field: word} for field, words in choices.items() for word in words)]


@functools.cache
def tried(name):
    return run(make(name), dealt(clients=3))


def stands_on_totals(name):
    """Whether what is shared was solved from a sum and knows it, so that its digest is promised."""
    shared = tried(name).shared
    return shared is not None and provenance(shared) != codec.digest(shared)


def one_model_for_all(name):
    return len({codec.digest(model) for model in tried(name).models.values()}) == 1


SOLVED = [name for name in METHODS if stands_on_totals(name)]
ALIKE = [name for name in SOLVED if one_model_for_all(name)]
CLOSED_FORM = [name for name in METHODS if name in SOLVED or tried(name).shared is None]


def varied(chosen):
    return [
        pytest.param(name, settings, id="-".join([name, *settings.values()]))
        for name in chosen
        for settings in variants(name)
    ]


VARIANTS = varied(METHODS)


# Laws


def outcome(method, everybody, **options):
    """Return all bytes that a run ends with, as digests."""
    result = run(method, everybody, **options)
    models = {client: codec.digest(model) for client, model in result.models.items()}
    return result.shared_digest, result.model_digest, models


def same_seed_same_bytes(method):
    assert outcome(method, dealt()) == outcome(method, dealt())


def order_and_workers_do_not_matter(method):
    expected = outcome(method, dealt())
    turned = dealt()
    turned = dataclasses.replace(turned, members=turned.members[3:] + turned.members[2::-1])
    for workers in (1, 2, 3):
        assert outcome(method, turned, workers=workers) == expected


class Backwards:
    """A federation whose replies come in the opposite order."""

    def __init__(self, engine):
        self._engine = engine
        self.clients, self.private = engine.clients, engine.private

    def gather(self, step, broadcast=None, *, clients=None):
        return reversed(list(self._engine.gather(step, broadcast, clients=clients)))

    def sum(self, step, broadcast=None, *, clients=None):
        replies = (reply for _, reply in self.gather(step, broadcast, clients=clients))
        return functools.reduce(operator.add, replies)


def the_order_of_replies_does_not_matter(method):
    outcomes = []
    for order in (lambda engine: engine, Backwards):
        engine = InProcess(dealt().members)
        *_, shared = method.fit(order(engine))
        outcomes.append((provenance(shared), personal(method, engine, shared)))
    assert outcomes[0] == outcomes[1]


def personal(method, engine, shared):
    """Return the digest of every client's model."""
    return dict(
        engine.evaluate(
            lambda _, client, part: codec.digest(method.personalize(client, part)), shared
        )
    )


def personalizing_changes_nothing(method):
    engine = InProcess(dealt().members)
    *_, shared = method.fit(engine)

    def kept():
        states = dict(engine.evaluate(lambda _, client, __: dict(client.state), None))
        return codec.digest([shared, states])

    before = kept()
    assert personal(method, engine, shared) == personal(method, engine, shared)
    assert kept() == before


def poisoned_test_data_do_not_matter(method):
    honest = dealt(holdout_clients=2)
    assert outcome(method, poisoned(honest)) == outcome(method, honest)


def poisoned(everybody):
    """The same federation with other test features and other test labels."""
    rng = np.random.default_rng(0)

    def spoiled(samples):
        space, labels = samples.features.space, samples.labels
        values = rng.integers(-127, 128, samples.features.values.shape).astype(np.int8)
        codes = (labels.codes + rng.integers(1, 10, len(labels))) % len(labels.classes)
        return Samples(Features(values, space), Labels(codes, labels.classes))

    def spoil(members):
        return [dataclasses.replace(site, test=spoiled(site.test)) for site in members]

    members, holdout = spoil(everybody.members), spoil(everybody.holdout)
    test = concatenate([site.test for site in (*members, *holdout)])
    return Sites(members=members, holdout=holdout, test=test)


def the_partition_does_not_matter(method, *, alike=False, plans=None):
    """Any spread of the same samples: the same totals, and `alike` also the same model."""
    found = set()
    for partition, clients in plans or REPARTITIONS:
        result = run(method, dealt(partition=partition, clients=clients))
        found.add((result.shared_digest, result.model_digest if alike else None))
    assert len(found) == 1
    assert None not in {shared for shared, _ in found}


REPARTITIONS = [(p, k) for p in ("iid", "dirichlet", "shards") for k in (1, 7, 40)]


def the_rest_may_be_spread_in_any_way(method):
    """A client's own model depends on its samples and on the sum of the others'."""
    everything = trainable()
    own, rest = everything.take(slice(0, 60)), np.arange(60, len(everything))
    by_class = rest[np.argsort(everything.labels.codes[rest], kind="stable")]
    spreads = ([rest], [rest[k::6] for k in range(6)], np.array_split(by_class, 4))
    found = set()
    for parts in spreads:
        others = {f"other{k}": everything.take(part) for k, part in enumerate(parts)}
        # Among the others' names the fixed client comes now first, now last.
        result = run(method, federated({**others, "me" if len(parts) % 2 else "you": own}))
        (mine,) = set(result.models) - set(others)
        found.add(codec.digest(result.models[mine]))
    assert len(found) == 1


# Every method keeps them


def law_by_law(*laws):
    return pytest.mark.parametrize("law", laws, ids=lambda law: law.__name__)


@law_by_law(
    same_seed_same_bytes,
    order_and_workers_do_not_matter,
    personalizing_changes_nothing,
    poisoned_test_data_do_not_matter,
)
@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_every_method_keeps_the_law(law, name, settings):
    law(make(name, settings))


@law_by_law(the_order_of_replies_does_not_matter, the_rest_may_be_spread_in_any_way)
@pytest.mark.parametrize(("name", "settings"), varied(CLOSED_FORM))
def test_every_closed_form_keeps_the_law(law, name, settings):
    law(make(name, settings))


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_a_clients_own_model_is_the_same_however_the_rest_is_spread_in_a_wide_space(name):
    the_rest_may_be_spread_in_any_way(make(name, wide(name, WIDE)))


def usable(result, client):
    scores = result.models[client](trainable().features)
    return scores.shape == (len(trainable()), 10) and bool(np.isfinite(scores).all())


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_tiny_and_one_sided_clients_work(name, settings):
    everything = trainable()
    codes = everything.labels.codes
    no_nine = np.flatnonzero(codes != 9)[10:]
    parts = {
        "one-sample": everything.take([0]),
        "one-class": everything.take(np.flatnonzero(codes == 3)[:9]),
        "no-nine": everything.take(no_nine),
    }
    result = run(make(name, settings), federated(parts))
    assert all(usable(result, client) for client in parts)  # nobody ever saw a nine


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_a_lone_client_works(name, settings):
    assert usable(run(make(name, settings), federated({"only": trainable().take([3])})), "only")


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_a_late_client_gets_a_model_and_changes_nobody_elses(name, settings):
    everything = trainable()
    parts = {name: everything.take(slice(k, None, 4)) for k, name in enumerate("abcd")}
    late = run(make(name, settings), federated(parts, holdout="d"))
    without = run(make(name, settings), federated({k: v for k, v in parts.items() if k != "d"}))
    assert usable(late, "d")
    assert late.holdout.tally.clients == 1
    assert late.shared_digest == without.shared_digest
    assert late.model_digest == without.model_digest


@pytest.mark.parametrize("name", METHODS)
def test_only_sums_are_needed_unless_said_otherwise(name):
    everybody = dealt(clients=5)
    if name in NEED_GATHER:
        with pytest.raises(PrivacyError):
            run(make(name), everybody, private=True)
        return
    openly, privately = run(make(name), everybody), run(make(name), everybody, private=True)
    assert privately.shared_digest == openly.shared_digest
    for client, model in privately.models.items():
        rows = everybody.test.features
        np.testing.assert_allclose(model(rows), openly.models[client](rows), rtol=0, atol=1e-8)


@pytest.mark.parametrize("width", [0, WIDE])
def test_whoever_solves_fedhip_the_predictions_agree(width):
    everybody, lift = dealt(clients=5), {"lift": {"width": width}}
    server, client = (
        run(make("fedhip", {"solver": solver, **lift}), everybody)
        for solver in ("server", "client")
    )
    for name, model in server.models.items():
        rows = everybody.test.features
        np.testing.assert_allclose(model(rows), client.models[name](rows), rtol=0, atol=1e-8)


# Methods that are solved from sums


def test_some_methods_are_solved_from_sums():
    assert {"afl", "central"} <= set(ALIKE) < set(SOLVED)


@pytest.mark.parametrize("name", SOLVED)
def test_any_partition_gives_the_same_digests(name):
    the_partition_does_not_matter(make(name), alike=name in ALIKE)


@pytest.mark.parametrize("name", SOLVED)
def test_any_partition_gives_the_same_digests_in_a_wide_space_with_any_number_of_threads(name):
    method, found = make(name, wide(name, WIDE)), set()
    for partition, clients, threads in (("iid", 1, 2), ("dirichlet", 7, 1), ("shards", 40, 2)):
        with threadpool_limits(threads, user_api="blas"):
            result = run(method, dealt(partition=partition, clients=clients))
        found.add((result.shared_digest, result.model_digest if name in ALIKE else None))
    assert len(found) == 1


def test_federated_is_central_to_the_byte():
    everybody = dealt(clients=7)
    for settings in ({}, {"ridge": 3.0, "lift": {"width": 64}}):
        one, other = (outcome(make(name, settings), everybody) for name in ("afl", "central"))
        assert one == other


def digests_of_a_process(partition, clients, threads):
    """Run all methods that are solved from sums in a process of their own."""
    chosen = ["-s", f"data.partition={partition}", "-s", f"data.clients={clients}"]
    for name in SOLVED:
        chosen += ["-m", name]
        for lift in wide(name, WIDE):
            chosen += ["-s", f"method.{name}.{lift}.width={WIDE}"]
    done = subprocess.run(
        [sys.executable, "-m", "fedgram.cli", "run", "--json", *chosen],
        env={**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        check=True,
    )
    return {
        result["method"]: (
            result["shared_digest"],
            result["model_digest"] if result["method"] in ALIKE else None,
        )
        for result in json.loads(done.stdout)["runs"]
    }


def test_separate_processes_with_other_partitions_and_threads_give_the_same_digests():
    one, two = digests_of_a_process("iid", 1, 1), digests_of_a_process("dirichlet", 13, 2)
    assert one == two
    assert set(one) == set(SOLVED)
    here = run(make("afl", wide("afl", WIDE)), dealt(partition="shards", clients=9))
    assert one["afl"] == (here.shared_digest, here.model_digest)


# The laws are laws: planted methods break them

HONEST = """
from dataclasses import dataclass

from fedgram.heads import Linear
from fedgram.stats import Statistics

CALLS = []


@dataclass(frozen=True, kw_only=True)
class Planted:
    ridge: float = 100.0

    def statistics(self, client, _):
        client.state["log"] = []
        return Statistics.of(client.samples.features, client.samples.labels)

    def fit(self, federation):
        total = federation.sum(self.statistics)
        yield Linear.of(total, ridge=self.ridge)

    def personalize(self, client, shared):
        return shared
"""


@pytest.fixture
def planted(tmp_path):
    def plant(*changes):
        """Return the honest method above with some of its text changed."""
        text = HONEST
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "planted.py"
        path.write_text(text, encoding="utf-8")
        return find(str(path))()

    return plant


TOTAL = "total = federation.sum(self.statistics)\n"
SHARED = "        return shared\n"
LAWS = (
    same_seed_same_bytes,
    order_and_workers_do_not_matter,
    the_order_of_replies_does_not_matter,
    personalizing_changes_nothing,
    poisoned_test_data_do_not_matter,
    the_rest_may_be_spread_in_any_way,
    the_partition_does_not_matter,
)


def broken_by(method):
    """Return the names of the laws that a method breaks."""
    broken = set()
    for law in LAWS:
        try:
            law(method)
        except (AssertionError, TypeError):
            broken.add(law.__name__)
    return broken


def test_an_honest_method_breaks_no_law(planted):
    assert not broken_by(planted())


def test_a_method_that_prefers_who_answers_last_is_caught(planted):
    method = planted(
        (TOTAL, "for _, total in federation.gather(self.statistics):\n            pass\n")
    )
    assert {
        "the_order_of_replies_does_not_matter",
        "the_rest_may_be_spread_in_any_way",
        "the_partition_does_not_matter",
    } <= broken_by(method)


def test_a_method_that_remembers_earlier_runs_is_caught(planted):
    method = planted(
        ("ridge=self.ridge)", "ridge=self.ridge * len(CALLS))"),
        (TOTAL, "CALLS.append(1)\n        " + TOTAL),
    )
    assert {"same_seed_same_bytes", "the_partition_does_not_matter"} <= broken_by(method)


def test_a_method_that_counts_clients_is_caught(planted):
    method = planted(("ridge=self.ridge)", "ridge=self.ridge * len(federation.clients))"))
    assert "the_partition_does_not_matter" in broken_by(method)


def test_a_method_that_writes_state_while_personalizing_is_caught(planted):
    method = planted((SHARED, '        client.state["seen"] = 1\n' + SHARED))
    assert "personalizing_changes_nothing" in broken_by(method)


def test_a_method_that_writes_inside_state_while_personalizing_is_caught(planted):
    method = planted(
        (SHARED, "        [log.append(1) for log in client.state.values()]\n" + SHARED)
    )
    assert broken_by(method) == {"personalizing_changes_nothing"}


def test_a_method_that_changes_what_is_shared_while_personalizing_is_caught(planted):
    method = planted((SHARED, "        shared.weights[0] += len(client.samples)\n" + SHARED))
    assert "personalizing_changes_nothing" in broken_by(method)


def test_a_method_that_sees_test_data_is_caught(planted):
    spy = """
        import sys

        caller = sys._getframe(1).f_locals.values()
        codes = next(value.test.labels.codes for value in caller if hasattr(value, "test"))
        return Linear(**{**vars(shared), "origin": str(codes.sum())})
"""
    assert broken_by(planted((SHARED, spy))) == {"poisoned_test_data_do_not_matter"}


def test_a_server_that_solves_sends_heads_and_to_late_clients_the_total():
    everybody = dealt(clients=4)
    engine = InProcess(everybody.members)
    *_, shared = make("fedhip").fit(engine)
    assert {type(delivery(shared, name)).__name__ for name in engine.clients} == {"Linear"}
    assert type(delivery(shared, "a late client")).__name__ == "Whole"
