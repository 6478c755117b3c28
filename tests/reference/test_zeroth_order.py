"""FedZO, pFedZO and BAFFLE against the slow versions, with the same seed."""

import numpy as np
import pytest

from fedgram import InProcess
from fedgram.methods.baffle import BAFFLE
from fedgram.methods.fedzo import FedZO
from fedgram.methods.pfedzo import PFedZO

from . import gradients, zeroth_order

SIZES = (5, 9, 14)  # none is divided by the batch
LOCAL = {"rate": 0.05, "epochs": 2, "batch": 4}
ESTIMATE = {"directions": 3, "smoothing": 1e-2}
SEED = 11
CLOSE = {"rtol": 0, "atol": 1e-8}
hidden = pytest.mark.parametrize("hidden", [0, 2], ids=["linear", "hidden"])


@pytest.fixture(scope="module")
def everybody(gridded, dealt):
    samples = gridded(sum(SIZES), 3, 3, seed=2)
    return dealt(samples, np.repeat(np.arange(len(SIZES)), SIZES))


def plain(sites):
    return {
        site.id: list(zip(site.train.features.real(), site.train.labels.codes, strict=True))
        for site in sites
    }


def fitted(method, sites):
    """The last shared model, and the personal ones."""
    for site in sites:
        site.state.clear()
    engine = InProcess(sites, seed=SEED)
    *_, shared = method.fit(engine)
    personal = engine.evaluate(lambda _, client, part: method.personalize(client, part), shared)
    return shared.theta, {name: model.theta for name, model in personal}


@hidden
def test_fedzo_is_the_slow_one(everybody, hidden):
    method = FedZO(rounds=2, precision="double", hidden=hidden, **LOCAL, **ESTIMATE)
    first = gradients.start(4, hidden, 3)
    slow = zeroth_order.fedzo(plain(everybody), first, rounds=2, seed=SEED, **LOCAL, **ESTIMATE)
    theta, _ = fitted(method, everybody)
    np.testing.assert_allclose(theta, zeroth_order.flat(slow), **CLOSE)
    assert np.abs(theta - zeroth_order.flat(first)).max() > 1e-2


def test_pfedzo_is_the_slow_one(everybody):
    own = {"strength": 2.0, "inner_steps": 2}
    method = PFedZO(rounds=2, precision="double", **own, **LOCAL, **ESTIMATE)
    slow, theirs = zeroth_order.pfedzo(
        plain(everybody),
        gradients.start(4, 0, 3),
        rounds=2,
        seed=SEED,
        **own,
        **LOCAL,
        **ESTIMATE,
    )
    theta, personal = fitted(method, everybody)
    np.testing.assert_allclose(theta, zeroth_order.flat(slow), **CLOSE)
    for name, model in personal.items():
        np.testing.assert_allclose(model, theirs[name], **CLOSE)


@hidden
def test_baffle_is_the_slow_one(everybody, hidden):
    method = BAFFLE(rounds=2, precision="double", rate=0.1, seed=5, hidden=hidden, **ESTIMATE)
    first = gradients.start(4, hidden, 3)
    slow = zeroth_order.baffle(plain(everybody), first, rounds=2, rate=0.1, seed=5, **ESTIMATE)
    theta, _ = fitted(method, everybody)
    np.testing.assert_allclose(theta, zeroth_order.flat(slow), **CLOSE)
    assert np.abs(theta - zeroth_order.flat(first)).max() > 1e-2
