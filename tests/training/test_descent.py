"""Descent at a client: both ways of it are a naive loop."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_support import some_rows, some_theta

from fedgram import Lift
from fedgram.models import mlp
from fedgram.models.mlp import MLP, TrainingRows
from fedgram.runtime import flops
from fedgram.training import descent
from fedgram.training.descent import SGD, dual_is_cheaper, products

SHAPES = {
    "linear": MLP(width=5, hidden=0, classes=3),
    "hidden": MLP(width=5, hidden=4, classes=3),
    "spanned": MLP(width=40, hidden=0, classes=3),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


def naive(shape, theta, batches, rate, *, towards=0.0, strength=0.0, drift=0.0, mask=True):
    for batch in batches:
        slope = mlp.gradient(shape, theta, batch) + strength * (theta - towards) + drift
        theta = theta - rate * np.where(mask, slope, 0.0)
    return theta


@shapes
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("pulled", [False, True], ids=["free", "pulled"])
@pytest.mark.parametrize("drifting", [False, True], ids=["still", "drifting"])
def test_descent_is_a_naive_loop(shape, masked, pulled, drifting):
    rng = np.random.default_rng(5)
    extra = {}
    if pulled:
        extra |= {"towards": rng.normal(size=shape.size), "strength": 0.7}
    if drifting:
        extra["drift"] = rng.normal(size=shape.size)
    if masked:
        extra["mask"] = rng.random(shape.size) < 0.5
    rows, theta = some_rows(shape), some_theta(shape)
    batches = list(rows.batches(4, 3, np.random.default_rng(9)))
    wanted = naive(shape, theta, batches, 0.2, **extra)
    SGD(rate=0.2, epochs=3, batch=4)(shape, theta, rows, np.random.default_rng(9), **extra)
    np.testing.assert_allclose(theta, wanted, rtol=0, atol=1e-12)


@shapes
def test_what_the_mask_leaves_out_stays_as_it_is(shape):
    theta = some_theta(shape)
    mask = np.arange(shape.size) % 2 == 0
    before = theta.copy()
    SGD(rate=0.2, epochs=2, batch=4)(
        shape, theta, some_rows(shape), np.random.default_rng(0), mask=mask
    )
    np.testing.assert_array_equal(theta[~mask], before[~mask])
    assert np.all(theta[mask] != before[mask])


@shapes
def test_a_pull_without_strength_changes_no_bit(shape):
    results = []
    for extra in ({}, {"towards": np.full(shape.size, 7.0), "strength": 0.0}):
        theta = some_theta(shape)
        SGD(rate=0.2, epochs=2, batch=4)(
            shape, theta, some_rows(shape), np.random.default_rng(0), **extra
        )
        results.append(theta.tobytes())
    assert results[0] == results[1]


@shapes
def test_single_precision_is_close_to_double(shape):
    found = []
    for dtype in (np.float32, np.float64):
        theta = some_theta(shape, dtype=dtype)
        rows = some_rows(shape, dtype=dtype)
        SGD(rate=0.1, epochs=5, batch=4)(shape, theta, rows, np.random.default_rng(0))
        assert theta.dtype == dtype
        found.append(theta)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4)


@shapes
def test_a_descent_that_diverges_does_so_in_silence(shape):
    theta = some_theta(shape, dtype=np.float32)
    rows = some_rows(shape, dtype=np.float32)
    SGD(rate=1e38, epochs=20, batch=4)(shape, theta, rows, np.random.default_rng(0))
    assert not np.isfinite(theta).all()


# SGD in the span of the samples


def test_which_shapes_are_descended_in_the_span_of_the_samples():
    found = {
        n: dual_is_cheaper(shape, some_rows(shape, 11), 3, None) for n, shape in SHAPES.items()
    }
    assert found == {"linear": False, "hidden": False, "spanned": True}


@given(
    width=st.integers(12, 60),
    count=st.integers(1, 30),
    batch=st.integers(0, 12),
    epochs=st.integers(1, 4),
    strength=st.sampled_from([0.0, 0.3, 5.0]),
    drifting=st.booleans(),
    seed=st.integers(0, 99),
)
def test_both_ways_end_at_the_same_numbers(width, count, batch, epochs, strength, drifting, seed):
    """Strength 5 at rate 0.2 keeps nothing of the parameters from one step to the next."""
    shape = MLP(width=width, hidden=0, classes=4)
    rows = some_rows(shape, count, seed, unit=0.1)
    rng = np.random.default_rng(seed)
    extra = {"drift": rng.normal(size=shape.size)} if drifting else {}
    if strength:
        extra |= {"towards": rng.normal(size=shape.size), "strength": strength}
    found = []
    for spanned in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(descent, "dual_is_cheaper", lambda *_, spanned=spanned: spanned)
            theta = some_theta(shape)
            SGD(rate=0.2, epochs=epochs, batch=batch)(
                shape, theta, rows, np.random.default_rng(seed), **extra
            )
            found.append(theta)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("part", [False, True])  # products with a part are made every time
def test_the_span_is_taken_only_where_it_saves_operations(gridded, part):
    taken = set()
    for count, width, epochs in ((12, 80, 3), (12, 80, 1), (70, 40, 3), (60, 80, 2), (30, 80, 8)):
        samples = gridded(count, width, 3)
        rows = TrainingRows.of(samples, Lift(), np.float64)
        if part:
            rows = rows.take(np.arange(count))
        shape = MLP(width=width + 1, hidden=0, classes=3)
        counted = {}
        for spanned in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(descent, "dual_is_cheaper", lambda *_, spanned=spanned: spanned)
                before = flops.total()
                for _ in range(descent._CALLS):
                    SGD(rate=0.1, epochs=epochs, batch=5)(
                        shape, some_theta(shape), rows, np.random.default_rng(0)
                    )
                counted[spanned] = flops.total() - before
        assert dual_is_cheaper(shape, rows, epochs, None) == (counted[True] < counted[False])
        taken.add(counted[True] < counted[False])
    assert taken == {False, True}


def test_rows_and_products_are_kept_as_long_as_the_samples(gridded):
    samples = gridded(9, 4, 3)
    rows = TrainingRows.of(samples, Lift(), np.float64)
    kernel = products(rows)
    real = samples.features.real()
    np.testing.assert_allclose(kernel, real @ real.T, rtol=1e-12)
    assert products(TrainingRows.of(samples, Lift(), np.float64)) is kernel
    assert products(TrainingRows.of(samples, Lift(width=6), np.float64)).shape == kernel.shape
    assert products(TrainingRows.of(samples, Lift(width=6), np.float64)) is not kernel
    assert products(TrainingRows.of(samples, Lift(), np.float32)).dtype == np.float32
    assert products(rows.take(np.arange(9))) is not kernel  # a part may be any part
    assert TrainingRows.of(samples, Lift(), np.float64).values is rows.values
    assert TrainingRows.of(samples, Lift(width=6), np.float64).values.shape == (9, 7)
    assert TrainingRows.of(samples, Lift(), np.float32).values.dtype == np.float32
    gone = [weakref.ref(kernel), weakref.ref(rows.values)]
    del rows, samples, kernel
    gc.collect()
    assert [still() for still in gone] == [None, None]
