"""Methods over secure sums: the same results, to the byte, and refusals."""

import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from secure_support import federation, load_of, names, signers, total_of

from fedgram.checks.federations import partitioned
from fedgram.cli import main
from fedgram.core import codec
from fedgram.data.dataset import Dataset
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.errors import ConfigError, ExactnessError, PrivacyError
from fedgram.experiments.runner import run
from fedgram.features.grid import Grid
from fedgram.federation.federated_dataset import federate
from fedgram.federation.method import create_method
from fedgram.methods.afl import AFL

QUICK = {"rounds": 2, "hidden": 4, "rate": 0.1}


@pytest.mark.parametrize("dropout", [0.0, 0.15])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("afl", {}),
        ("afl", {"lift": {"width": 512}}),  # more than one piece of a mask
        ("fedhip", {}),
        ("apfl-linear", {}),
        ("fedavg", QUICK),
        ("ditto", QUICK),
        ("scaffold", QUICK),
    ],
)
def test_secure_sums_change_nothing(name, settings, dropout):
    method = create_method(name, settings)
    openly, securely = (
        run(method, partitioned(clients=9), private=True, dropout=dropout, threshold=threshold)
        for threshold in (None, 0.5)
    )
    assert securely.shared_digest == openly.shared_digest
    assert securely.model_digest == openly.model_digest
    assert securely.accuracy == openly.accuracy
    assert securely.scores.rows == []


@pytest.mark.parametrize(
    ("name", "dropout"),
    [("afl", 0.15), ("fedhip", 0.0), ("apfl-linear", 0.15), ("intercept", 0.0), ("auto", 0.15)],
)
def test_secure_sums_of_a_regression_change_nothing(name, dropout):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 5))
    y = np.stack([10 * x[:, 0] + rng.normal(size=240), x[:, 1] ** 2], axis=1)
    data = Dataset(
        x, y, np.arange(240) % 6, task="regression", output_range=(-60, 60), standardize=True
    )
    openly, securely = (
        run(create_method(name), federate(data), private=True, dropout=dropout, threshold=threshold)
        for threshold in (None, 0.5)
    )
    assert securely.shared_digest == openly.shared_digest
    assert securely.model_digest == openly.model_digest
    assert securely.accuracy["client_mean"] == openly.accuracy["client_mean"]
    assert securely.scores.errors == openly.scores.errors


def test_gather_is_refused():
    with pytest.raises(PrivacyError, match="it allows sums only"):
        federation(5).gather(load_of)
    assert federation(5).private


def test_two_clients_are_refused_before_anything_is_computed():
    def step(client, _):
        raise AssertionError("computed")

    with pytest.raises(PrivacyError, match="2 clients hides nothing"):
        federation(5).sum(step, clients=["c00", "c01"])
    with pytest.raises(PrivacyError, match="2 clients hides nothing"):
        run(create_method("fedhip", {}), partitioned(clients=2), threshold=2 / 3)


def test_sums_without_the_grid_are_refused():
    loose = federate(load_dataset("digits"), PartitionPlan(clients=4), Grid(bits="off"))
    with pytest.raises(ExactnessError, match="use a grid"):
        run(AFL(), loose, threshold=2 / 3)


@pytest.mark.parametrize("threshold", [0.4, 1.0])
def test_a_threshold_is_a_share_from_one_half_on(threshold):
    with pytest.raises(ConfigError, match=r"engine\.threshold"):
        federation(5, threshold=threshold)


def test_workers_change_nothing():
    assert federation(6, workers=3).sum(load_of) == federation(6).sum(load_of)


def test_signatures_take_a_round_more():
    engine = federation(5, signers=signers(names(5)), absent={"masked": ["c01"]})
    assert engine.sum(load_of) == total_of(["c00", "c02", "c03", "c04"])
    assert [ask.step.partition(": ")[2] for ask in engine.asks] == [
        "keys",
        "shares",
        "",
        "confirm",
        "reveal",
    ]


def test_some_of_the_clients_may_be_asked():
    asked = ["c01", "c02", "c04"]
    engine = federation(6)
    assert engine.sum(load_of, clients=asked) == total_of(asked)
    assert {ask.clients for ask in engine.asks} == {3}


def test_contributors_are_the_clients_whose_masked_values_were_summed():
    engine = federation(6, threshold=0.5, absent={"masked": ["c01"], "late": ["c03"]})
    assert list(engine.contributors) == []
    total = engine.sum(load_of)
    assert engine.contributors == ["c00", "c02", "c04", "c05"]
    assert total == total_of(engine.contributors)


def test_an_error_at_a_client_names_it():
    def step(client, _):
        if client.id == "c02":
            raise ConfigError("no such thing")
        return load_of(client)

    with pytest.raises(ConfigError, match="client c02: no such thing"):
        federation(5).sum(step)


def test_the_broadcast_is_counted():
    def down(broadcast):
        engine = federation(5)
        engine.sum(load_of, broadcast)
        return sum(ask.bytes_down for ask in engine.asks)

    assert down("x" * 1000) - down(None) == 5 * codec.size("x" * 1000)


def test_the_command_line_runs_securely():
    def digest(*settings):
        arguments = ["run", "--json", "-m", "afl", "-s", "data.clients=5", *settings]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        return re.search(r'"shared_digest": "(\w{64})"', done.stdout)[1]

    assert digest("-s", "engine.secure=true") == digest()


def test_without_the_package_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "fedgram.engines.secure_in_process", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedgram\[secure\]'"):
        run(AFL(), partitioned(), threshold=2 / 3)
