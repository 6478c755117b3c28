"""FedAvg, Ditto and FedALA against the slow versions, with the same seed."""

import numpy as np
import pytest

from fedgram import InProcess
from fedgram.methods.ditto import Ditto
from fedgram.methods.fedala import FedALA
from fedgram.methods.fedavg import FedAvg

from . import gradients

SIZES = (5, 9, 14)  # none is divided by the batch
SETTINGS = {"rate": 0.3, "epochs": 2, "batch": 4}
SEED = 11
CLOSE = {"rtol": 0, "atol": 1e-9}
hidden = pytest.mark.parametrize("hidden", [0, 3], ids=["linear", "hidden"])


@pytest.fixture(scope="module")
def everybody(gridded, dealt):
    samples = gridded(sum(SIZES), 4, 3, seed=2)
    return dealt(samples, np.repeat(np.arange(len(SIZES)), SIZES))


def plain(sites):
    return {
        site.id: list(zip(site.train.features.real(), site.train.labels.codes, strict=True))
        for site in sites
    }


def flat(model):
    return np.concatenate([layer.reshape(-1) for layer in model])


def fitted(method, sites):
    """The shared models of all rounds, and the personal ones after the last."""
    for site in sites:
        site.state.clear()
    engine = InProcess(sites, seed=SEED)
    shared = list(method.fit(engine))
    personal = engine.evaluate(lambda _, client, part: method.personalize(client, part), shared[-1])
    return shared, {name: model.theta for name, model in personal}


@hidden
def test_fedavg_is_the_slow_one_after_every_round(everybody, hidden):
    shared, _ = fitted(FedAvg(rounds=4, precision="double", hidden=hidden, **SETTINGS), everybody)
    first = gradients.start(5, hidden, 3)
    slow = list(gradients.fedavg(plain(everybody), first, rounds=4, seed=SEED, **SETTINGS))
    assert len(shared) == len(slow) == 4
    for ours, theirs in zip(shared, slow, strict=True):
        np.testing.assert_allclose(ours.theta, flat(theirs), **CLOSE)


@hidden
def test_ditto_is_the_slow_one(everybody, hidden):
    own = {"strength": 0.8, "personal_epochs": 3}
    shared, personal = fitted(
        Ditto(rounds=3, precision="double", hidden=hidden, **own, **SETTINGS), everybody
    )
    slow, theirs = gradients.ditto(
        plain(everybody), gradients.start(5, hidden, 3), rounds=3, seed=SEED, **own, **SETTINGS
    )
    np.testing.assert_allclose(shared[-1].theta, flat(slow), **CLOSE)
    for name, theta in personal.items():
        np.testing.assert_allclose(theta, flat(theirs[name]), **CLOSE)


@hidden
def test_fedala_is_the_slow_one(everybody, hidden):
    mixing = {"mixing_rate": 1.5, "mixing_share": 0.7, "settled": 0.25}
    shared, personal = fitted(
        FedALA(rounds=3, precision="double", hidden=hidden, **mixing, **SETTINGS), everybody
    )
    slow, theirs = gradients.fedala(
        plain(everybody),
        gradients.start(5, hidden, 3),
        rounds=3,
        seed=SEED,
        mixing=(*mixing.values(), SETTINGS["batch"]),
        **SETTINGS,
    )
    np.testing.assert_allclose(shared[-1].theta, flat(slow), **CLOSE)
    for name, theta in personal.items():
        np.testing.assert_allclose(theta, flat(theirs[name]), **CLOSE)


def test_the_weights_of_fedala_were_learned(everybody):
    """Else the comparison above would say nothing of them."""
    method = FedALA(rounds=3, precision="double", mixing_rate=1.5, settled=0.25, **SETTINGS)
    _, personal = fitted(method, everybody)
    for site in everybody:
        weights = site.state["weights"]
        assert np.any((weights > 0) & (weights < 1))
    assert len({theta.tobytes() for theta in personal.values()}) == len(SIZES)


def test_another_seed_is_noticed(everybody):
    shared, _ = fitted(FedAvg(rounds=2, precision="double", **SETTINGS), everybody)
    first = gradients.start(5, 0, 3)
    *_, other = gradients.fedavg(plain(everybody), first, rounds=2, seed=SEED + 1, **SETTINGS)
    assert np.abs(shared[-1].theta - flat(other)).max() > 1e-3
