"""What methods that see losses only come down to: gradient methods, where the losses tell all."""

import dataclasses

import numpy as np
import pytest

from fedgram import InProcess
from fedgram.checks.federations import partitioned
from fedgram.core.weighted import Weighted
from fedgram.errors import ConfigError
from fedgram.experiments.runner import run
from fedgram.methods.baffle import BAFFLE
from fedgram.methods.fedavg import FedAvg
from fedgram.methods.fedzo import FedZO
from fedgram.methods.pfedme import PFedMe
from fedgram.methods.pfedzo import PFedZO
from fedgram.models.mlp import MLP, TrainingRows, gradient, loss
from fedgram.training.zeroth_order import (
    axes,
    gaussian,
    in_double,
    loss_function,
    slopes,
    spherical,
)

ZEROTH_ORDER = [FedZO, PFedZO, BAFFLE]
SIZES = (7, 12, 18)
SETTINGS = {"rate": 0.2, "rounds": 3, "epochs": 2, "batch": 5, "precision": "double"}
WHOLE = {**SETTINGS, "epochs": 1, "batch": 0}
EVERY = {"directions": 0, "central": True, "smoothing": 1e-6}  # exact up to rounding
hidden = pytest.mark.parametrize("hidden", [0, 3], ids=["linear", "hidden"])


@pytest.fixture(scope="module")
def samples(gridded):
    return gridded(sum(SIZES), 5, 3)


@pytest.fixture(scope="module")
def sites(samples, dealt):
    return dealt(samples, np.repeat(np.arange(len(SIZES)), SIZES))


def models(method, sites):
    """The last shared parameters, and everybody's own."""
    engine = InProcess([dataclasses.replace(site, state={}) for site in sites])
    *_, shared = method.fit(engine)
    own = engine.evaluate(lambda _, client, part: method.personalize(client, part), shared)
    return [shared.theta, *(model.theta for _, model in sorted(own, key=lambda pair: pair[0]))]


def require_close(ours, theirs, *, atol=1e-6):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)
        assert np.any(other)


# Along every axis, differences are derivatives


@hidden
def test_fedzo_along_every_axis_is_fedavg(sites, hidden):
    ours = FedZO(hidden=hidden, **SETTINGS, **EVERY)
    require_close(models(ours, sites), models(FedAvg(hidden=hidden, **SETTINGS), sites))


@hidden
def test_pfedzo_along_every_axis_is_pfedme(sites, hidden):
    same = {"hidden": hidden, "strength": 2.0, "inner_steps": 2, **SETTINGS, "rounds": 2}
    require_close(models(PFedZO(**same, **EVERY), sites), models(PFedMe(**same), sites))


@hidden
def test_baffle_along_every_axis_is_one_step_of_gradient_descent(sites, hidden):
    ours = BAFFLE(hidden=hidden, **SETTINGS, **EVERY)
    require_close(models(ours, sites), models(FedAvg(hidden=hidden, **WHOLE), sites))


@pytest.mark.parametrize("kind", ZEROTH_ORDER)
def test_a_wrong_step_would_be_noticed(sites, kind):
    """The law above tells one-sided differences of a long step from derivatives."""
    slow = {**SETTINGS, "rate": 0.05}
    loose = kind(**slow, directions=0, central=False, smoothing=0.5)
    near = kind(**slow, **EVERY)
    with pytest.raises(AssertionError):
        require_close(models(loose, sites), models(near, sites))


# Along random directions


@pytest.fixture(scope="module")
def rows(samples):
    return TrainingRows(
        values=samples.features.values.astype(np.float64),
        codes=samples.labels.codes,
        unit=samples.features.space.unit,
    )


SHAPE = MLP(width=6, hidden=0, classes=3)


@pytest.mark.parametrize("draw", [spherical, gaussian])
def test_many_random_directions_give_the_gradient(rows, draw):
    theta = np.random.default_rng(1).normal(size=SHAPE.size)
    exact = gradient(SHAPE, theta, rows)
    drawn = draw(1000, SHAPE.size, np.random.default_rng(2))
    found = [slope * v for v, slope in slopes(loss_function(SHAPE, rows), theta, drawn, 1e-5)]
    error = np.linalg.norm(np.mean(found, axis=0) - exact) / np.linalg.norm(exact)
    assert error < 3 * np.sqrt(SHAPE.size / 1000)


def test_baffle_with_many_directions_steps_along_the_gradient(sites, rows):
    method = BAFFLE(rate=1.0, rounds=1, precision="double", directions=1000)
    theta, exact = models(method, sites)[0], -gradient(SHAPE, np.zeros(SHAPE.size), rows)
    assert theta @ exact / np.linalg.norm(theta) / np.linalg.norm(exact) > 0.98


@pytest.mark.parametrize("draw", [spherical, gaussian])
def test_the_mean_square_of_directions_is_the_identity(draw):
    drawn = np.array(list(draw(20_000, 3, np.random.default_rng(0))))
    np.testing.assert_allclose(drawn.T @ drawn / len(drawn), np.eye(3), atol=0.05)
    along = np.array(list(axes(3)))
    np.testing.assert_allclose(along.T @ along / 3, np.eye(3), atol=1e-12)


def test_directions_on_the_sphere_have_one_length():
    drawn = np.array(list(spherical(9, 5, np.random.default_rng(0))))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), np.sqrt(5))


def test_losses_are_computed_in_double_whatever_the_parameters_are(rows):
    single = dataclasses.replace(rows, values=rows.values.astype(np.float32))
    theta = np.random.default_rng(1).normal(size=SHAPE.size).astype(np.float32)
    exact = loss(SHAPE, in_double(theta), rows)
    assert loss_function(SHAPE, single)(in_double(theta)) == exact
    assert loss(SHAPE, theta, single) != exact


# BAFFLE sends numbers, and no model


def test_baffle_sends_as_many_numbers_as_there_are_directions():
    method = BAFFLE(directions=7, rounds=2, rate=0.1)
    engine = InProcess(partitioned(clients=4).members)
    *_, shared = method.fit(engine)
    replies = dict(engine.gather(method.update, shared))
    assert {type(reply) for reply in replies.values()} == {Weighted}
    assert {reply.total.size for reply in replies.values()} == {7}
    assert {reply.total.dtype for reply in replies.values()} == {np.dtype(np.int64)}
    sent, of_models = (
        sum(ask.bytes_up for ask in run(each, partitioned(clients=4)).record.exchanges)
        for each in (method, FedAvg(rounds=2, rate=0.1))
    )
    assert sent < 0.6 * of_models  # with the tallies of every round


def test_secure_sums_of_baffle_are_open_sums_to_the_bit():
    pytest.importorskip("cryptography")
    method = BAFFLE(directions=5, rounds=2, rate=0.05)
    openly, securely = (
        run(method, partitioned(clients=5), private=True, threshold=threshold)
        for threshold in (None, 0.5)
    )
    assert securely.model_digest == openly.model_digest


def test_the_directions_of_baffle_differ_between_rounds_and_seeds():
    method = BAFFLE(directions=2, rounds=1, rate=0.1)
    *_, shared = method.fit(InProcess(partitioned(clients=2).members))
    later = dataclasses.replace(shared, round=2)
    drawn = {
        np.array(list(each._drawn(model))).tobytes()
        for each in (method, dataclasses.replace(method, seed=1))
        for model in (shared, later, dataclasses.replace(shared, trial=1))
    }
    assert len(drawn) == 6


# Settings


@pytest.mark.parametrize("kind", ZEROTH_ORDER)
@pytest.mark.parametrize(
    "wrong",
    [{"directions": -1}, {"smoothing": 0.0}, {"smoothing": float("nan")}, {"rate": -1.0}],
)
def test_wrong_settings_are_refused(kind, wrong):
    with pytest.raises(ConfigError):
        kind(**wrong)


def test_pfedzo_checks_the_settings_of_pfedme_too():
    with pytest.raises(ConfigError, match="inner_steps"):
        PFedZO(inner_steps=0)
