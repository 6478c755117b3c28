"""Small networks: gradients against finite differences."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_support import some_rows, some_theta

from fedgram import Features, Grid, Lift, Space
from fedgram.core import codec
from fedgram.errors import MismatchError
from fedgram.models import mlp
from fedgram.models.mlp import MLP, TrainedModel, TrainingRows
from fedgram.runtime import flops, threads

SHAPES = [MLP(width=5, hidden=0, classes=3), MLP(width=5, hidden=4, classes=3)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["linear", "hidden"])


def slow_scores(shape, theta, rows):
    """Scores sample by sample, in plain numpy."""
    found = []
    for row in rows.values * rows.unit:
        seen = row
        if shape.hidden:
            inside = row @ theta[: shape.base].reshape(shape.width, shape.hidden)
            seen = np.append(np.where(inside > 0, inside, 0.0), 1.0)
        found.append(seen @ theta[shape.base :].reshape(shape.depth, shape.classes))
    return np.array(found)


def slow_loss(shape, theta, rows):
    scores = slow_scores(shape, theta, rows)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return -np.mean(
        [np.log(chance[code]) for chance, code in zip(chances, rows.codes, strict=True)]
    )


def differences(function, theta, step=1e-6):
    """Central finite differences."""
    found = np.zeros_like(theta)
    for i in range(len(theta)):
        there = theta.copy()
        there[i] += step
        up = function(there)
        there[i] -= 2 * step
        found[i] = (up - function(there)) / (2 * step)
    return found


# Shapes


@shapes
def test_layers_are_views_that_cover_every_parameter_once(shape):
    theta = np.zeros(shape.size)
    for layer in shape.layers(theta):
        layer += 1
    np.testing.assert_array_equal(theta, 1)
    assert [layer.shape for layer in shape.layers(theta)][-1] == (shape.depth, shape.classes)


@shapes
def test_the_start_is_public_random_below_and_zero_in_the_head(shape):
    start = shape.start(np.float64)
    np.testing.assert_array_equal(start, shape.start(np.float64))
    np.testing.assert_array_equal(start[shape.base :], 0)
    if shape.hidden:
        assert np.all(start[: shape.base] != 0)
        wide = MLP(width=2000, hidden=20, classes=2).start(np.float64)
        assert np.std(wide[:40_000]) == pytest.approx(np.sqrt(2 / 2000), rel=0.02)


# Scores, loss, gradient


@shapes
def test_scores_and_loss_are_those_of_a_slow_computation(shape):
    theta, rows = some_theta(shape), some_rows(shape)
    np.testing.assert_allclose(
        shape.logits(theta, rows), slow_scores(shape, theta, rows), atol=1e-12
    )
    assert mlp.loss(shape, theta, rows) == pytest.approx(slow_loss(shape, theta, rows))


@shapes
def test_without_a_head_every_class_is_as_likely(shape):
    assert mlp.loss(shape, shape.start(np.float64), some_rows(shape)) == pytest.approx(np.log(3))


@shapes
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_finite_differences(shape, seed):
    theta, rows = some_theta(shape, seed), some_rows(shape, seed=seed)
    wanted = differences(lambda there: slow_loss(shape, there, rows), theta)
    np.testing.assert_allclose(mlp.gradient(shape, theta, rows), wanted, atol=2e-9)


def test_scores_that_are_far_apart_do_not_overflow():
    shape = MLP(width=1, hidden=0, classes=2)
    rows = TrainingRows(values=np.array([[1.0]]), codes=np.array([1]), unit=1.0)
    theta = np.array([1e6, -1e6])
    np.testing.assert_array_equal(mlp.gradient(shape, theta, rows), [1.0, -1.0])
    assert mlp.loss(shape, theta, rows) > 500


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0, 40, 50, 69, 80, 90, 500, 800, 1e4])
def test_only_differences_of_scores_matter(dtype, shift):
    scores = np.random.default_rng(0).integers(-8, 9, (6, 5)).astype(dtype)
    away = np.array([[0], [1], [-1], [1], [-1], [0]]) * dtype(shift)
    codes = np.array([0, 1, 2, 3, 4, 0])
    np.testing.assert_allclose(
        mlp.softmax(scores + away), mlp.softmax(scores), rtol=8 * np.finfo(dtype).eps
    )
    with mlp.ignore_overflow():
        found, wanted = (
            mlp.cross_entropy_grad(scores + away, codes),
            mlp.cross_entropy_grad(scores, codes),
        )
    np.testing.assert_allclose(found, wanted, atol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_chances_are_those_of_decimal_arithmetic(dtype):
    for row in ([-90, -46, -47], [69, 70, 10], [-300, 0, 5], [88, 89, 90], [1e5, 0, 1e5]):
        powers = [Decimal(score).exp() for score in row]
        wanted = [float(power / sum(powers)) for power in powers]
        np.testing.assert_allclose(
            mlp.softmax(np.array([row], dtype))[0], wanted, rtol=1e-5, atol=1e-37
        )


@shapes
@pytest.mark.parametrize(("scale", "keep"), [(-0.3, 1.0), (-0.3, 0.9), (2.0, 0.0), (1.0, -0.5)])
def test_a_step_may_be_taken_in_place(shape, scale, keep):
    theta, rows = some_theta(shape), some_rows(shape)
    wanted = keep * theta + scale * mlp.gradient(shape, theta, rows)
    shape.backward(theta, rows, into=theta, scale=scale, keep=keep)
    np.testing.assert_allclose(theta, wanted, rtol=0, atol=1e-13)


@shapes
def test_what_is_not_kept_is_not_read(shape):
    theta, rows = some_theta(shape), some_rows(shape)
    into = np.full(shape.size, np.nan)
    shape.backward(theta, rows, into=into, scale=1.0)
    np.testing.assert_array_equal(into, mlp.gradient(shape, theta, rows))


# Products


LAYOUTS = {
    "as it is": np.ascontiguousarray,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "some columns": lambda a: np.hstack([a, a])[:, : a.shape[1]],
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
}
SIZES = st.integers(1, 5)


@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 2),
    dtype=st.sampled_from([np.float32, np.float64]),
    scale=st.sampled_from([1.0, 0.25, -3.0]),
)
def test_a_product_is_numpys_whatever_the_layout(sizes, layouts, dtype, scale):
    m, k, n = sizes
    rng = np.random.default_rng(m + 10 * k + 100 * n)
    left, right = (rng.integers(-8, 9, shape).astype(dtype) for shape in ((m, k), (k, n)))
    one, other = (LAYOUTS[name](array) for name, array in zip(layouts, (left, right), strict=True))
    np.testing.assert_array_equal(one, left)
    before = flops.total()
    found = mlp.matmul(one, other, scale)
    assert flops.total() - before == 2 * m * k * n
    np.testing.assert_array_equal(found, scale * (left @ right))
    assert found.dtype == dtype
    assert found.flags.c_contiguous


# Batches


@given(count=st.integers(1, 20), size=st.integers(0, 25), epochs=st.integers(1, 3))
def test_batches_hold_every_sample_once_an_epoch(count, size, epochs):
    rows = TrainingRows(
        values=np.arange(float(count))[:, None], codes=np.arange(count) % 3, unit=1.0
    )
    batches = list(rows.batches(size, epochs, np.random.default_rng(count)))
    size = size or count
    per_epoch = -(-count // size)
    assert len(batches) == epochs * per_epoch
    for epoch in range(epochs):
        some = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert [len(batch) for batch in some[:-1]] == [size] * (per_epoch - 1)
        seen = np.concatenate([batch.values[:, 0] for batch in some]).astype(int)
        assert sorted(seen) == list(range(count))
        np.testing.assert_array_equal(np.concatenate([b.codes for b in some]), seen % 3)


def test_batches_are_shuffled_anew_in_every_epoch():
    rows = TrainingRows(values=np.arange(50.0)[:, None], codes=np.zeros(50, int), unit=1.0)
    found = [b.values[:, 0] for b in rows.batches(25, 2, np.random.default_rng(0))]
    first, second = np.concatenate(found[:2]), np.concatenate(found[2:])
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, np.arange(50))


@pytest.mark.parametrize("size", [0, 50, 51])
def test_all_samples_at_once_need_neither_order_nor_copy(size):
    rows = TrainingRows(values=np.arange(50.0)[:, None], codes=np.zeros(50, int), unit=1.0)
    rng = np.random.default_rng(0)
    found = list(rows.batches(size, 3, rng))
    assert [batch is rows for batch in found] == [True] * 3
    assert rng.integers(2**40) == np.random.default_rng(0).integers(2**40)


def test_nothing_gives_no_batches():
    nothing = TrainingRows(values=np.zeros((0, 2)), codes=np.zeros(0, int), unit=1.0)
    for size in (0, 3):
        assert not list(nothing.batches(size, 2, np.random.default_rng(0)))


def test_rows_are_lifted_samples(gridded):
    samples = gridded(9, 4, 3)
    rows = TrainingRows.of(samples, Lift(width=6), np.float32)
    lifted = Lift(width=6)(samples.features)
    np.testing.assert_allclose(rows.values * rows.unit, lifted.real(), rtol=1e-6)
    assert rows.values.dtype == np.float32


def test_the_number_of_threads_is_fixed_while_descending():
    outside = threads._inside
    with mlp.ignore_overflow():
        assert threads._inside == outside + 1
    assert threads._inside == outside


# Networks


def a_network(shape, space, **extra):
    classes = tuple(f"class {k}" for k in range(shape.classes))
    return TrainedModel(theta=some_theta(shape), shape=shape, space=space, classes=classes, **extra)


@shapes
def test_a_network_scores_features_in_real_units_however_many(shape, monkeypatch):
    space = Space(width=5, unit=0.25, bound=127)
    rows = some_rows(shape, 11)
    features = Features(rows.values.astype(np.int8), space)
    wanted = slow_scores(shape, some_theta(shape), rows)
    model = a_network(shape, space)
    np.testing.assert_allclose(model(features), wanted, atol=1e-12)
    monkeypatch.setattr(mlp, "_ROWS_AT_A_TIME", 3)
    np.testing.assert_allclose(model(features), wanted, atol=1e-12)


@shapes
def test_an_offset_is_added_to_what_the_head_sees(shape):
    space = Space(width=5, unit=0.25, bound=127)
    features = Features(some_rows(shape).values.astype(np.int8), space)
    offset = np.arange(float(shape.depth))
    plain, shifted = a_network(shape, space), a_network(shape, space, offset=offset)
    head = some_theta(shape)[shape.base :].reshape(shape.depth, shape.classes)
    np.testing.assert_allclose(shifted(features) - plain(features), [offset @ head] * 11)


def test_a_network_lifts_and_refuses_other_features():
    lift, grid = Lift(width=8), Grid()
    features = grid(np.random.default_rng(0).normal(size=(6, 4)))
    shape = MLP(width=9, hidden=0, classes=3)
    model = a_network(shape, lift(features).space, lift=lift)
    wanted = lift(features).real() @ some_theta(shape).reshape(9, 3)
    np.testing.assert_allclose(model(features), wanted, atol=1e-12)
    with pytest.raises(MismatchError, match="made for other features"):
        model(Grid(bits=4)(np.ones((1, 4))))


@shapes
def test_a_network_survives_the_journey_through_bytes(shape):
    space = Space(width=5, unit=0.25, bound=127)
    model = a_network(shape, space, offset=np.ones(shape.depth))
    again = codec.decode(codec.encode(model))
    features = Features(some_rows(shape).values.astype(np.int8), space)
    np.testing.assert_array_equal(again(features), model(features))
    assert codec.digest(again) == codec.digest(model)
