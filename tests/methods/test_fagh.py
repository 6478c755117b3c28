"""FAGH: one row stands for the Hessian."""

import dataclasses

import numpy as np
import pytest

from fedgram import InProcess
from fedgram.errors import ConfigError
from fedgram.methods.fagh import FAGH, last_hessian_row, newton_step
from fedgram.methods.fedavg import FedAvg
from fedgram.models.mlp import MLP, TrainingRows, gradient

SIZES = (7, 12, 18)
SETTINGS = {"rounds": 3, "precision": "double"}
hidden = pytest.mark.parametrize("hidden", [0, 3], ids=["linear", "hidden"])


@pytest.fixture(scope="module")
def samples(gridded):
    return gridded(sum(SIZES), 4, 3)


@pytest.fixture(scope="module")
def sites(samples, dealt):
    return dealt(samples, np.repeat(np.arange(len(SIZES)), SIZES))


def trained(method, sites):
    """The shared parameters after each round."""
    engine = InProcess([dataclasses.replace(site, state={}) for site in sites])
    return [model.theta for model in method.fit(engine)]


# The step


@pytest.mark.parametrize("damping", [0.01, 1.0, 30.0])
def test_a_step_solves_with_the_matrix_of_rank_one(damping):
    rng = np.random.default_rng(0)
    row, slope = rng.normal(size=6), rng.normal(size=6)
    row[-1] = abs(row[-1])
    matrix = np.outer(row, row) / row[-1] + damping * np.eye(6)
    np.testing.assert_allclose(newton_step(slope, row, damping), np.linalg.solve(matrix, slope))
    np.testing.assert_allclose(matrix[-1], row + damping * np.eye(6)[-1])  # it has this row


@pytest.mark.parametrize("last", [0.0, -2.0, np.nan])
def test_a_row_that_is_not_convex_is_left_out(last):
    slope = np.array([1.0, 2.0])
    np.testing.assert_array_equal(newton_step(slope, np.array([3.0, last]), 4.0), slope / 4)


def test_one_step_reaches_the_minimum_of_a_quadratic_of_rank_one():
    rng = np.random.default_rng(1)
    a, x, b = rng.normal(size=5), rng.normal(size=5), 3.0
    step = newton_step(a * (a @ x - b), a * a[-1], 1e-9)
    assert abs(a @ (x - step) - b) < 1e-5
    # Of another quadratic one row does not tell the minimum.
    wide = np.diag([1.0, 2.0, 3.0, 4.0, 5.0])
    assert np.linalg.norm(wide @ (x - newton_step(wide @ x, wide[-1], 1.0))) > 0.1


# The row


def rows_of(samples, unit=None):
    return TrainingRows(
        values=samples.features.values.astype(np.float64),
        codes=samples.labels.codes,
        unit=samples.features.space.unit if unit is None else unit,
    )


def test_the_row_is_that_of_the_softmax(samples):
    """d^2 L / dW_jc dW_ie is the mean of x_j x_i p_c ((c = e) - p_e)."""
    shape = MLP(width=5, hidden=0, classes=3)
    theta = np.random.default_rng(0).normal(size=shape.size)
    x, last = samples.features.real(), (4, 2)
    scores = x @ theta.reshape(5, 3)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = np.zeros((5, 3))
    for sample, p in zip(x, chances, strict=True):
        for j in range(5):
            for c in range(3):
                curvature = p[last[1]] * ((c == last[1]) - p[c])
                expected[j, c] += sample[last[0]] * sample[j] * curvature / len(x)
    row = last_hessian_row(shape, theta, rows_of(samples))
    np.testing.assert_allclose(row, expected.reshape(-1), rtol=0, atol=1e-7)
    assert row[-1] > 0


# The method


@hidden
def test_fagh_is_the_slow_one(samples, sites, hidden):
    chosen = {"damping": 0.5, "gradient_memory": 0.6, "curvature_memory": 0.3, "rate": 0.2}
    shape, rows = MLP(width=5, hidden=hidden, classes=3), rows_of(samples)
    theta = shape.start(np.float64)
    first = second = np.zeros(shape.size)
    for number, found in enumerate(
        trained(FAGH(hidden=hidden, **chosen, **SETTINGS), sites), start=1
    ):
        first = 0.6 * first + 0.4 * gradient(shape, theta, rows)
        second = 0.3 * second + 0.7 * last_hessian_row(shape, theta, rows)
        slope, row = first / (1 - 0.6**number), second / (1 - 0.3**number)
        matrix = np.outer(row / row[-1], row) + 0.5 * np.eye(shape.size)
        theta = theta - 0.2 * np.linalg.solve(matrix, slope)
        np.testing.assert_allclose(found, theta, rtol=0, atol=1e-9)


@hidden
def test_with_much_damping_it_is_gradient_descent(sites, hidden):
    damped = FAGH(damping=1e6, rate=2e5, gradient_memory=0.0, hidden=hidden, **SETTINGS)
    descent = FedAvg(rate=0.2, epochs=1, batch=0, hidden=hidden, **SETTINGS)
    for ours, theirs in zip(trained(damped, sites), trained(descent, sites), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    little = trained(dataclasses.replace(damped, damping=1.0, rate=0.2), sites)
    assert np.abs(little[-1] - trained(descent, sites)[-1]).max() > 1e-3


def test_the_averages_over_rounds_stay_at_the_server(sites):
    method = FAGH(rate=0.1, **SETTINGS)
    *_, model = method.fit(InProcess(sites))
    assert not model.more
    (reply,) = (reply for _, reply in InProcess(sites[:1]).gather(method.update, model))
    assert reply.total.size == 2 * model.shape.size


@pytest.mark.parametrize(
    "wrong",
    [{"damping": 0.0}, {"damping": float("inf")}, {"gradient_memory": 1.0}, {"rounds": 0}],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        FAGH(**wrong)
