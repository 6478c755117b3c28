"""Every method keeps the public laws, in every variant it offers; and what they do not cover.

Beyond the public laws: wide spaces, numbers of threads, other processes, private federations.
"""

import dataclasses
import json
import os
import subprocess
import sys
import typing

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedgram.checks import laws  # a law is called test_...: imported by name it would be collected
from fedgram.checks.federations import federated, partitioned, trainable
from fedgram.core import codec
from fedgram.core.shared import part_for
from fedgram.engines.in_process import InProcess
from fedgram.errors import PrivacyError
from fedgram.experiments.runner import run
from fedgram.features.lift import Lift
from fedgram.federation.method import create_method, find_method, names
from fedgram.methods import auto

METHODS = names()
# Solved from totals: what is shared has the same digest however the samples are spread.
SOLVED = (
    "afl",
    "apfl",  # with settings given, below
    "apfl-linear",
    "central",
    "deepafl",
    "deepafl-apfl",
    "deepafl-fedhip",
    "ensemble",
    "fed3r",
    "fedacnnl",
    "fedcgs",
    "fedhip",  # with settings given, below
    "fedncm",
    "kernel",
    "lda",
    "logistic",
    "pfedacnnl",
    "projected",
)
# By default these select settings with personal models: then it matters who has which samples.
GIVEN = {
    "apfl": {"refinement_ridge": 300.0, "balance": 0.5},
    "fedhip": {"alpha": 10.0, "ridge": 100.0},
}
# Of these, those whose clients all have the same model.
ALIKE = (
    "afl",
    "central",
    "deepafl",
    "ensemble",
    "fed3r",
    "fedacnnl",
    "fedcgs",
    "fedncm",
    "kernel",
    "logistic",
    "projected",
)
CLOSED_FORM = (*SOLVED, "local")  # or nothing is shared
NEED_GATHER = {"central", "fedcof", "lcfed"}  # show the server every sample, mean or model
OTHERWISE_IN_PRIVATE = {"fedpcl"}  # peers' prototypes are left out there
WIDE = 512  # below about this width many wrong programs pass
# One of each way to solve; the others share the code, and are tried by the tests marked wide.
WIDE_BY_DEFAULT = ("afl", "apfl", "pfedacnnl")


# Methods


def short(name, settings=None, *, search=False):
    """A method with few rounds and exchanges."""
    return create_method(name, settings or {}).shortened(search=search)


def solved(name, settings=None):
    """The same with nothing to select: the shared result depends on the total alone."""
    return short(name, {**GIVEN.get(name, {}), **(settings or {})})


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    """A law holds for any width: the widest lift of `auto` would take minutes."""
    monkeypatch.setattr(auto, "HIGH_WIDTH", 96)
    monkeypatch.setattr(auto, "WIDEST", 96)


def wide(name, width):
    """Settings that give every lift of a method this width."""
    if name == "apfl-linear":  # which refuses lifts
        return {}
    fields = dataclasses.fields(find_method(name))
    return {f.name: {"width": width} for f in fields if isinstance(f.default, Lift)}


def first_with(kind, field):
    """The first method that inherits a field from where this one has it."""
    owner = next(k for k in kind.__mro__ if field in vars(k).get("__annotations__", {}))
    return next(name for name in METHODS if issubclass(find_method(name), owner))


def variants(name):
    """Settings that try every choice a method offers in words, each where it comes first."""
    hints = typing.get_type_hints(find_method(name))
    choices = {
        field: typing.get_args(hint)
        for field, hint in hints.items()
        if typing.get_origin(hint) is typing.Literal
        and first_with(find_method(name), field) == name
    }
    usual = {field.name: field.default for field in dataclasses.fields(find_method(name))}
    words = [
        {field: word} for field, words in choices.items() for word in words if word != usual[field]
    ]
    if "hidden" not in hints:
        return [{}, *words]
    return [{}, {"precision": "double", "hidden": 8}]


def varied(chosen):
    """Names and settings as parameters; other settings than the usual ones are marked wide."""
    return [
        pytest.param(
            name,
            settings,
            id="-".join([name, *map(str, settings.values())]),
            marks=[pytest.mark.wide] if settings else [],
        )
        for name in chosen
        for settings in variants(name)
    ]


def mostly_wide(chosen):
    """Names as parameters; all but a few only in the run of what is marked wide."""
    return [
        name if name in WIDE_BY_DEFAULT else pytest.param(name, marks=pytest.mark.wide)
        for name in chosen
    ]


VARIANTS = varied(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_solved_from_totals_as_listed(name):
    assert laws.stands_on_totals(solved(name)) == (name in SOLVED)
    assert laws.stands_on_totals(short(name)) == (name in SOLVED and name not in GIVEN)
    result = run(solved(name), partitioned(clients=3))
    models = {codec.digest(model) for model in result.predictors.values()}
    assert (name in SOLVED and len(models) == 1) == (name in ALIKE)
    assert (name in SOLVED or result.shared is None) == (name in CLOSED_FORM)


# Every method keeps the public laws


def law_by_law(*chosen):
    return pytest.mark.parametrize("law", chosen, ids=lambda law: law.__name__)


@law_by_law(*(law for law in laws.LAWS if law not in laws.SOLVED_LAWS))
@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_every_method_keeps_the_law(law, name, settings):
    # The search for a rate is where test data could come in; elsewhere it only takes time.
    law(short(name, settings, search=law is laws.test_data_do_not_matter))


@law_by_law(laws.order_of_replies_does_not_matter, laws.rest_may_be_spread_in_any_way)
@pytest.mark.parametrize(("name", "settings"), varied(CLOSED_FORM))
def test_every_closed_form_keeps_the_law(law, name, settings):
    law(solved(name, settings))


# As they are, those whose clients have one model are tried below, with the model.
@pytest.mark.parametrize(
    ("name", "settings"),
    [each for each in varied(SOLVED) if each.values[0] not in ALIKE or each.values[1]],
)
def test_any_partition_gives_the_same_totals(name, settings):
    laws.any_partition_gives_the_same_totals(solved(name, settings))


# Every method, beyond the public laws


@pytest.mark.parametrize("name", mostly_wide(CLOSED_FORM))
def test_a_clients_own_model_is_the_same_however_the_rest_is_spread_in_a_wide_space(name):
    laws.rest_may_be_spread_in_any_way(solved(name, wide(name, WIDE)))


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_a_lone_client_works(name, settings):
    result = run(short(name, settings), federated({"only": trainable().take([3])}))
    scores = result.predictors["only"](trainable().features)
    assert scores.shape == (len(trainable()), 10)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_a_late_client_is_scored_apart(name, settings):
    parts = {client: trainable().take(slice(k, None, 4)) for k, client in enumerate("abcd")}
    result = run(short(name, settings), federated(parts, holdout="d"))
    assert (result.scores.tally.clients, result.holdout.tally.clients) == (3, 1)


@pytest.mark.parametrize("name", METHODS)
def test_only_sums_are_needed_unless_said_otherwise(name):
    everybody = partitioned(clients=5)
    if name in NEED_GATHER:
        with pytest.raises(PrivacyError):
            run(short(name), everybody, private=True)
        return
    if name in OTHERWISE_IN_PRIVATE:
        run(short(name), everybody, private=True)
        return
    openly, privately = run(short(name), everybody), run(short(name), everybody, private=True)
    assert privately.shared_digest == openly.shared_digest
    for client, model in privately.predictors.items():
        rows = everybody.test.features
        np.testing.assert_allclose(model(rows), openly.predictors[client](rows), rtol=0, atol=1e-8)


@pytest.mark.parametrize("width", [0, WIDE])
def test_whoever_solves_fedhip_the_predictions_agree(width):
    everybody, lift = partitioned(clients=5), {"lift": {"width": width}}
    server, client = (
        run(solved("fedhip", {"solver": solver, **lift}), everybody)
        for solver in ("server", "client")
    )
    for name, model in server.predictors.items():
        rows = everybody.test.features
        np.testing.assert_allclose(model(rows), client.predictors[name](rows), rtol=0, atol=1e-8)


def test_a_server_that_solves_sends_heads_and_to_late_clients_the_total():
    everybody = partitioned(clients=4)
    engine = InProcess(everybody.members)
    *_, shared = solved("fedhip").fit(engine)
    assert {type(part_for(shared, name)).__name__ for name in engine.clients} == {"Linear"}
    assert type(part_for(shared, "a late client")).__name__ == "NormalEquations"


# Methods that are solved from sums


@pytest.mark.parametrize("name", ALIKE)
def test_any_partition_gives_the_same_model(name):
    found = set()
    for partition, clients in laws.REPARTITIONS:
        result = run(short(name), partitioned(partition=partition, clients=clients))
        found.add((result.shared_digest, result.model_digest))
    ((shared, _),) = found
    assert shared is not None


@pytest.mark.parametrize("name", mostly_wide(SOLVED))
def test_any_partition_gives_the_same_digests_in_a_wide_space_with_any_number_of_threads(name):
    method, found = solved(name, wide(name, WIDE)), set()
    for partition, clients, threads in (("iid", 1, 2), ("dirichlet", 40, 1), ("shards", 4, 2)):
        with threadpool_limits(threads, user_api="blas"):
            result = run(method, partitioned(partition=partition, clients=clients))
        found.add((result.shared_digest, result.model_digest if name in ALIKE else None))
    assert len(found) == 1


def outcome(method, everybody):
    """Return all bytes that a run ends with, as digests."""
    result = run(method, everybody)
    models = {client: codec.digest(model) for client, model in result.predictors.items()}
    return result.shared_digest, result.model_digest, models


def test_federated_is_central_to_the_byte():
    everybody = partitioned(clients=7)
    for settings in ({}, {"ridge": 3.0, "lift": {"width": 64}}):
        one, other = (outcome(short(name, settings), everybody) for name in ("afl", "central"))
        assert one == other


def digests_of_a_process(methods, partition, clients, threads):
    """Run methods that are solved from sums in a process of their own, with few blocks."""
    chosen = ["-s", f"data.partition={partition}", "-s", f"data.clients={clients}"]
    for name in {"deepafl", "deepafl-apfl", "deepafl-fedhip"} & set(methods):
        chosen += ["-s", f"method.{name}.blocks=1", "-s", f"method.{name}.width=16"]
    for name in methods:
        chosen += ["-m", name]
        for lift in wide(name, WIDE):
            chosen += ["-s", f"method.{name}.{lift}.width={WIDE}"]
        for key, value in GIVEN.get(name, {}).items():
            chosen += ["-s", f"method.{name}.{key}={value}"]
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


@pytest.mark.parametrize(
    "methods", [WIDE_BY_DEFAULT, pytest.param(SOLVED, marks=pytest.mark.wide)], ids=["few", "all"]
)
def test_separate_processes_with_other_partitions_and_threads_give_the_same_digests(methods):
    one = digests_of_a_process(methods, "iid", 1, 1)
    two = digests_of_a_process(methods, "dirichlet", 4, 2)
    assert one == two
    assert set(one) == set(methods)
    here = run(create_method("afl", wide("afl", WIDE)), partitioned(partition="shards", clients=9))
    assert one["afl"] == (here.shared_digest, here.model_digest)
