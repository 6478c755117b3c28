"""Pools: likelihoods and derivatives as sums, the likeliest weights, models pooled into one."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize

from fedgram import Lift
from fedgram.checks.federations import trainable
from fedgram.core import codec
from fedgram.errors import DataError, SolveError
from fedgram.methods._pooling import SOFT_SCALES, Judged, side_by_side
from fedgram.models.adjusted import Blend, ClassMasked, Shifted
from fedgram.models.linear import Linear
from fedgram.selection import pool
from fedgram.selection.candidates import GAUSSIAN_SCALES, SCALES
from fedgram.selection.pool import (
    LOSS_PLACES,
    LikelihoodSums,
    LogLinear,
    PoolSums,
    PoolWeights,
    likeliest_weights,
    log_losses,
)
from fedgram.softmax.personal import softmax

ONE = 2.0**LOSS_PLACES


def problem(seed=0, samples=400, classes=5, terms=3, signal=(1.0, 0.5, 0.3)):
    """Return terms, of which each knows a little of the class, and the classes."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(classes, size=samples)
    truth = np.eye(classes)[codes]
    scores = [s * truth + rng.normal(size=truth.shape) for s in signal[:terms]]
    return np.stack(scores), codes


def mean_loss(terms, codes, weights):
    shares = softmax(np.tensordot(weights, terms, axes=1))
    return -np.log(shares[np.arange(len(codes)), codes]).mean()


# Likelihoods


def test_losses_are_negative_log_likelihoods():
    (scores,), codes = problem(terms=1)
    expected = -np.log(softmax(scores)[np.arange(len(codes)), codes])
    np.testing.assert_allclose(log_losses(scores.copy(), codes) / ONE, expected, atol=1 / ONE)
    sums = LikelihoodSums.of([scores, 0 * scores], codes)
    assert sums.mean_loss.tolist() == pytest.approx([expected.mean(), np.log(5)], abs=1e-6)
    assert sums.accuracy[0] == (scores.argmax(axis=1) == codes).mean()
    assert sums.standard_error(0) == pytest.approx(
        np.sqrt(sums.accuracy[0] * (1 - sums.accuracy[0]) / 400)
    )


def test_scores_far_out_and_shifts_of_all_classes_do_no_harm():
    (scores,), codes = problem(terms=1)
    shifted = scores + 1e4 * np.arange(len(codes))[:, None]
    assert np.abs(log_losses(shifted, codes) - log_losses(scores.copy(), codes)).max() <= 20
    sure = log_losses(np.array([[1e30, 0.0], [0.0, 700.0]]), np.array([0, 0]))
    assert sure.tolist() == [0, 700 * 2**LOSS_PLACES]


def test_scores_that_are_not_a_number_count_as_no_knowledge():
    scores = np.array([[np.nan, 1.0, 2.0], [np.nan, np.nan, np.nan], [5.0, 0.0, 0.0]])
    losses = log_losses(scores.copy(), np.array([1, 0, 0])) / ONE
    assert losses[:2].tolist() == pytest.approx([np.log(3)] * 2, abs=1e-6)
    assert losses[2] < 0.02
    narrow = LikelihoodSums.of([scores.astype(np.float32)], np.array([1, 0, 0]))
    assert np.isfinite(narrow.mean_loss).all()


def test_weights_are_samples_that_are_there_more_often():
    terms, codes = problem()
    often = np.random.default_rng(1).integers(0, 4, len(codes))
    copies = np.repeat(np.arange(len(codes)), often)
    assert LikelihoodSums.of(list(terms), codes, often) == LikelihoodSums.of(
        list(terms[:, copies]), codes[copies]
    )
    weights = np.array([1.0, 0.5, 2.0])
    one = PoolSums.of(terms, codes, weights, often)
    other = PoolSums.of(terms[:, copies], codes[copies], weights)
    assert (one.weight, one.loss, one.correct) == (other.weight, other.loss, other.correct)
    assert np.abs(one.slope - other.slope).max() <= 1
    assert np.abs(one.curvature - other.curvature).max() <= 1


def test_sums_over_clients_are_the_sums_of_all_samples():
    terms, codes = problem()
    weights = np.array([1.0, 0.5, 2.0])
    parts = np.array_split(np.arange(len(codes)), [0, 1, 50, 51, 200])
    added = sum(LikelihoodSums.of(list(terms[:, part]), codes[part]) for part in parts)
    assert added == LikelihoodSums.of(list(terms), codes)
    pooled = sum(PoolSums.of(terms[:, part], codes[part], weights) for part in parts)
    whole = PoolSums.of(terms, codes, weights)
    assert (pooled.weight, pooled.loss, pooled.correct) == (whole.weight, whole.loss, whole.correct)
    assert np.abs(pooled.slope - whole.slope).max() <= len(parts)
    judged = sum(Judged(squared=LikelihoodSums.of(list(terms[:, p]), codes[p])) for p in parts)
    assert judged.squared == added
    assert LikelihoodSums.zero() + added == added
    assert PoolSums.zero() + whole == whole


def test_nobody_who_tried_anything_is_said_so():
    with pytest.raises(SolveError, match="at least one client"):
        _ = LikelihoodSums.zero().best
    assert side_by_side([]) == LikelihoodSums.zero()
    assert PoolSums.zero().mean_loss == PoolSums.zero().accuracy == 0


@pytest.mark.parametrize("scales", [SOFT_SCALES, SCALES, GAUSSIAN_SCALES])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scales_without_and_with_the_prior_are_the_settings_one_by_one(scales, dtype):
    rng = np.random.default_rng(len(scales))
    codes, often = rng.integers(0, 7, 300), rng.integers(0, 4, 300)
    scores = rng.normal(size=(300, 7)).astype(dtype) + (codes[:, None] == np.arange(7))
    odds = 8 * rng.normal(size=(300, 7))
    sums = LikelihoodSums.over_scales(scores.astype(dtype), odds, scales, codes, often)
    reference = LikelihoodSums.of(
        [scale * scores + prior * odds for scale in scales for prior in (0, 1)], codes, often
    )
    assert sums.weight == reference.weight
    assert np.array_equal(sums.correct, reference.correct)
    np.testing.assert_allclose(sums.mean_loss, reference.mean_loss, rtol=2e-6, atol=2e-6)


def test_scales_of_many_samples_are_summed_by_parts(monkeypatch):
    (scores, odds), codes = problem(terms=2)
    whole = LikelihoodSums.over_scales(scores, odds, SCALES, codes)
    monkeypatch.setattr(pool, "_SCORES_AT_ONCE", 3 * scores.shape[1])
    assert LikelihoodSums.over_scales(scores, odds, SCALES, codes) == whole
    nothing = LikelihoodSums.over_scales(scores[:0], odds[:0], SCALES, codes[:0])
    assert nothing.weight == 0
    assert nothing + whole == whole


def test_scales_of_scores_that_are_not_a_number_count_as_no_knowledge():
    scores = np.array([[np.nan, 1.0, 2.0], [50.0, 0.0, 0.0]])
    sums = LikelihoodSums.over_scales(scores, np.zeros((2, 3)), SCALES, np.array([1, 0]))
    assert sums.mean_loss[-1] == pytest.approx(np.log(3) / 2, abs=1e-6)


# Derivatives


@pytest.mark.parametrize("weights", [[1.0, 0.5, 2.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.1]])
def test_derivatives_are_those_of_finite_differences(weights):
    terms, codes = problem()
    terms[1] *= 40  # terms of different size, as squared scores and log-odds are
    weights, count = np.array(weights), len(codes)
    sums = PoolSums.of(terms, codes, weights)
    assert sums.mean_loss == pytest.approx(mean_loss(terms, codes, weights), abs=1e-6)
    step = 5e-3 / np.abs(terms).max(axis=(1, 2))
    for k in range(3):
        move = np.eye(3)[k] * step[k]
        up, down = (mean_loss(terms, codes, weights + s * move) for s in (1, -1))
        assert sums.slope[k] / ONE / count == pytest.approx(
            (up - down) / (2 * step[k]), rel=1e-4, abs=1e-4
        )
        further, back = (PoolSums.of(terms, codes, weights + s * move) for s in (1, -1))
        curved = (further.slope - back.slope) / (2 * step[k])
        scale = np.abs(sums.curvature).max()
        np.testing.assert_allclose(sums.curvature[k], curved, rtol=1e-3, atol=1e-4 * scale)
    assert np.abs(sums.curvature - sums.curvature.T).max() <= 1


def test_no_samples_have_no_derivatives():
    terms, codes = problem()
    sums = PoolSums.of(terms[:, :0], codes[:0], np.ones(3))
    assert (sums.weight, sums.loss, sums.correct) == (0, 0, 0)
    assert not sums.slope.any()
    assert not sums.curvature.any()


# Weights


def counted(terms, codes):
    """Return the question to clients, and all weights that were asked about."""
    asked = []

    def ask(weights):
        asked.append(weights.copy())
        return PoolSums.of(terms, codes, weights)

    return ask, asked


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("start", [[0.2, 0.0, 0.0], [5.0, 5.0, 5.0], [0.0, 0.0, 1.0]])
def test_the_likeliest_weights_are_the_minimum_within_bounds(seed, start):
    terms, codes = problem(seed)
    ask, asked = counted(terms, codes)
    found = likeliest_weights(ask, np.array(start), exchanges=20)
    best = scipy.optimize.minimize(
        lambda w: mean_loss(terms, codes, w), np.ones(3), bounds=[(0, None)] * 3, tol=1e-12
    )
    np.testing.assert_allclose(found.weights, best.x, atol=0.01)
    assert found.sums.mean_loss == pytest.approx(best.fun, abs=1e-5)
    assert np.min(asked) >= 0
    few = likeliest_weights(ask, np.array(start))  # with the usual number of questions
    assert few.sums.mean_loss < best.fun + 0.01


@pytest.mark.parametrize("seed", range(6))
def test_weights_are_never_negative(seed):
    """A part that is wrong more often than right would get a negative weight."""
    terms, codes = problem(seed, signal=(1.0, -0.8, 0.4))
    ask, asked = counted(terms, codes)
    found = likeliest_weights(ask, np.array([0.5, 0.5, 0.5]), exchanges=20)
    assert np.min(asked) >= 0
    assert found.weights[1] == 0
    free = scipy.optimize.minimize(lambda w: mean_loss(terms, codes, w), np.ones(3))
    assert free.x[1] < 0


@pytest.mark.parametrize("seed", range(6))
def test_a_step_that_raises_the_loss_is_not_kept(monkeypatch, seed):
    terms, codes = problem(seed)
    terms = terms * np.array([1.0, 30.0, 300.0])[:, None, None]
    ask, asked = counted(terms, codes)
    start = np.array([4.0, 2.0, 1.0])  # far too large: Newton's step goes nowhere near
    monkeypatch.setattr(pool, "_pruned", lambda ask, best, shared: best)
    found = [likeliest_weights(ask, start, exchanges=number).sums.loss for number in range(1, 12)]
    assert (np.diff([ask(start).loss, *found]) <= 0).all()
    assert max(ask(weights).loss for weights in list(asked)) > min(found)
    assert all(weights[:2].any() for weights in asked)


@pytest.mark.parametrize("seed", range(6))
def test_without_useless_terms_the_pool_is_hardly_worse(monkeypatch, seed):
    terms, codes = problem(seed, signal=(1.0, 0.1, 0.1))
    ask, _ = counted(terms, codes)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_pruned", lambda ask, best, shared: best)
        every = likeliest_weights(ask, np.ones(3), exchanges=20)
    found = likeliest_weights(ask, np.ones(3), exchanges=20)
    dropped = (found.weights == 0).sum() - (every.weights == 0).sum()
    assert found.sums.loss <= every.sums.loss + 1.1 * dropped * ONE


@pytest.mark.parametrize("seed", range(10))
def test_a_useless_term_is_dropped_by_akaikes_rule(seed):
    """A term stays where twice the log-likelihood falls by two without it."""
    terms, codes = problem(seed, signal=(1.0, 0.12, 0.6))
    ask, _ = counted(terms, codes)
    found = likeliest_weights(ask, np.array([1.0, 0.1, 0.5]), exchanges=20)

    def least(which):
        def loss(w):
            return len(codes) * mean_loss(terms[which], codes, w)

        bounds = [(0, None)] * len(which)
        return scipy.optimize.minimize(loss, np.ones(len(which)), bounds=bounds, tol=1e-12).fun

    fall = 2 * (least([0, 2]) - least([0, 1, 2]))
    if abs(fall - 2) > 0.2:  # the rule is applied to a parabola
        assert (found.weights[1] > 0) == (fall > 2)
    assert found.weights[0] > 0
    assert found.weights[2] > 0


def test_akaikes_rule_is_tried_both_ways():
    kept = []
    for seed in range(10):
        terms, codes = problem(seed, signal=(1.0, 0.12, 0.6))
        found = likeliest_weights(counted(terms, codes)[0], np.array([1.0, 0.1, 0.5]))
        kept.append(found.weights[1] > 0)
    assert 0 < sum(kept) < 10


def test_what_stays_is_moved_to_where_it_is_likeliest_alone():
    """Two terms that are nearly the same: one will do, with the weight of both."""
    (one, prior), codes = problem(terms=2)
    terms = np.stack([one, one + 1e-2 * np.roll(prior, 1, axis=0), prior])
    found = likeliest_weights(counted(terms, codes)[0], np.array([0.5, 0.5, 0.5]), exchanges=20)
    assert (found.weights[:2] > 0).sum() == 1
    alone = scipy.optimize.minimize(
        lambda w: mean_loss(np.stack([one, prior]), codes, w), np.ones(2), tol=1e-12
    )
    assert found.weights[:2].sum() == pytest.approx(alone.x[0], abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_one_part_beside_the_prior_stays(seed):
    terms, codes = problem(seed, signal=(0.0, 0.0, 1.0))
    ask, asked = counted(terms, codes)
    found = likeliest_weights(ask, np.array([0.1, 0.1, 1.0]))
    assert (found.weights[:2] > 0).sum() >= 1
    assert all(weights[:2].any() for weights in asked[-1:])


@pytest.mark.parametrize("seed", range(5))
def test_a_shared_part_stays_beside_an_own_one(seed):
    """Clients with few samples, or none, have no use for a pool of own heads."""
    terms, codes = problem(seed, signal=(0.0, 2.0, 0.5))
    start = np.array([0.1, 1.0, 0.5])
    found = likeliest_weights(counted(terms, codes)[0], start, own=1)
    assert (found.weights[:2] > 0).all()
    free = likeliest_weights(counted(terms, codes)[0], start)
    assert free.weights[1] > 0
    assert free.sums.loss <= found.sums.loss + 2 * ONE


def test_without_the_rule_only_the_own_part_would_stay():
    dropped = []
    for seed in range(5):
        terms, codes = problem(seed, signal=(0.0, 2.0, 0.5))
        found = likeliest_weights(counted(terms, codes)[0], np.array([0.1, 1.0, 0.5]))
        dropped.append(found.weights[0] == 0)
    assert any(dropped)


def test_the_prior_may_go():
    terms, codes = problem(1, signal=(1.0, 0.6, 0.0))
    terms[2] *= 0.01
    found = likeliest_weights(counted(terms, codes)[0], np.array([1.0, 0.5, 1.0]))
    assert found.weights[2] == 0


def test_answers_of_fewer_samples_are_not_taken_for_better_ones():
    """Each time other clients answer, and once none: the loss is then zero, and says nothing."""
    terms, codes = problem(samples=600)
    times = iter(range(100))

    def ask(weights):
        number = next(times)
        part = slice(0, 600) if not number else slice(0, 0) if number == 1 else slice(0, 60)
        return PoolSums.of(terms[:, part], codes[part], weights)

    start = np.array([0.6, 0.3, 0.2])
    found = likeliest_weights(ask, start)
    assert found.sums.weight > 0
    assert mean_loss(terms, codes, found.weights) < mean_loss(terms, codes, 0 * start)
    assert not PoolSums.zero().likelier(ask(start))
    assert ask(start).likelier(PoolSums.zero())


def test_nobody_answers_and_the_start_is_kept():
    terms, codes = problem()
    start = np.array([0.6, 0.0, 0.2])
    found = likeliest_weights(lambda w: PoolSums.of(terms[:, :0], codes[:0], w), start)
    assert found.weights.tolist() == start.tolist()
    assert found.standard_error == 0


def test_the_error_of_an_accuracy():
    sums = PoolSums(weight=400, correct=360)
    assert PoolWeights(weights=np.ones(1), sums=sums).standard_error == pytest.approx(0.015)


# Sums that cannot be


def good():
    return LikelihoodSums(weight=10, loss=np.array([5, 6]), correct=np.array([3, 10]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": -1}, "at least 0"),
        ({"loss": np.array([5, -6])}, "at least 0"),
        ({"correct": np.array([-1, 2])}, "at least 0"),
        ({"correct": np.array([3, 11])}, "expected correct"),
        ({"loss": np.array([5, 2**62])}, "may overflow"),
    ],
)
def test_left_out_sums_that_cannot_be_are_refused(change, message):
    good().validate(sites=3)
    with pytest.raises(DataError, match=message):
        replace(good(), **change).validate(sites=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": -1}, "at least 0"),
        ({"loss": -5}, "at least 0"),
        ({"correct": 401}, "expected correct"),
        ({"loss": 2**62}, "may overflow"),
        ({"slope": np.array([0, 0, 2**62])}, "may overflow"),
        ({"curvature": np.full((3, 3), -(2**62))}, "may overflow"),
        ({"curvature": np.full((3, 3), np.iinfo(np.int64).min)}, "may overflow"),
    ],
)
def test_pool_sums_that_cannot_be_are_refused(change, message):
    terms, codes = problem()
    sums = PoolSums.of(terms, codes, np.ones(3))
    sums.validate(sites=8)
    with pytest.raises(DataError, match=message):
        replace(sums, **change).validate(sites=8)


# Models pooled into one


def heads(lift, number, seed):
    samples = trainable()
    space = lift(samples.features.take(slice(0, 1))).space
    rng = np.random.default_rng(seed)
    return [
        Linear(
            weights=rng.normal(size=(space.width, 10)),
            space=space,
            classes=samples.labels.classes,
            lift=lift,
            origin=f"{seed} {k}",
        )
        for k in range(number)
    ]


def pooled():
    plain, lifted = heads(Lift(), 3, 0), heads(Lift(width=30, seed=1), 2, 1)
    shift = np.linspace(-1, 1, 10)
    parts = [
        (0.5, plain[0]),
        (2.0, Blend(first=lifted[0], second=plain[1], balance=0.25)),
        (1.5, lifted[1]),
        (3.0, Shifted(model=plain[2], shift=shift)),
        (0.7, ClassMasked(model=plain[0], allowed=np.arange(10) < 4)),
    ]
    return parts, shift


def test_linear_heads_on_the_same_features_become_one_and_scores_stay():
    parts, shift = pooled()
    rows = trainable().features.take(slice(0, 40))
    one = LogLinear.of(parts, shift)
    expected = sum(weight * model(rows) for weight, model in parts) + shift
    np.testing.assert_allclose(one(rows), expected, atol=1e-9 * np.abs(expected).max())
    kinds = [type(model) for model in one.models]
    assert kinds.count(Linear) == 2  # one for each lift
    assert Blend not in kinds
    assert len(one.models) == len(one.weights) == 4
    assert {model.lift.width for model in one.models if isinstance(model, Linear)} == {0, 30}
    assert not any(model.origin for model in one.models if isinstance(model, Linear))


def test_a_pool_of_linear_heads_is_one_head():
    plain = heads(Lift(), 3, 0)
    one = LogLinear.of([(k + 1.0, head) for k, head in enumerate(plain)], np.zeros(10))
    assert len(one.models) == 1
    assert one.space == plain[0].space
    assert one.classes == plain[0].classes
    np.testing.assert_allclose(
        one.models[0].weights, sum((k + 1) * head.weights for k, head in enumerate(plain))
    )


def test_probabilities_are_the_softmax_of_the_scores():
    one = LogLinear.of(*pooled())
    rows = trainable().features.take(slice(0, 40))
    found = one.probabilities(rows)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    assert (found >= 0).all()
    assert np.array_equal(found.argmax(axis=1), one(rows).argmax(axis=1))


def test_a_pool_goes_through_a_file(tmp_path):
    one = LogLinear.of(*pooled())
    codec.save(tmp_path / "pool.safetensors", one)
    again = codec.load(tmp_path / "pool.safetensors")
    assert codec.digest(again) == codec.digest(one)
    rows = trainable().features.take(slice(0, 10))
    assert np.array_equal(again(rows), one(rows))


# Many clients, and many models, together


@pytest.mark.parametrize("samples", [0, 1, 2, 9, 33])
@pytest.mark.parametrize("classes", [1, 2, 5, 17])
def test_pools_of_many_clients_are_those_of_each(samples, classes):
    rng = np.random.default_rng(samples + classes)
    terms = 40 * rng.normal(size=(7, 4, samples, classes))
    codes = rng.integers(0, classes, (7, samples))
    weights, shares = rng.integers(1, 5, (7, samples)), np.array([0.3, 0.0, 2.0, 1.0])
    together = PoolSums.of_each(terms, codes, shares, weights)
    for k, found in enumerate(together):
        assert found == PoolSums.of(terms[k], codes[k], shares, weights[k])
    some = [5, 2, 3]
    again = PoolSums.of_each(terms[some], codes[some], shares, weights[some])
    assert all(again[place] == together[k] for place, k in enumerate(some))


@pytest.mark.parametrize("samples", [0, 1, 2, 9, 33])
@pytest.mark.parametrize("classes", [1, 2, 5, 17])
def test_likelihoods_of_many_models_are_those_of_each(monkeypatch, samples, classes):
    rng = np.random.default_rng(samples + classes)
    scores = rng.normal(size=(6, samples, classes)).astype(np.float32)
    odds, codes = rng.normal(size=(samples, classes)), rng.integers(0, classes, samples)
    weights = rng.integers(1, 5, samples)
    for scales in (SCALES, GAUSSIAN_SCALES):
        alone = side_by_side(
            [LikelihoodSums.over_scales(each, odds, scales, codes, weights) for each in scores]
        )
        assert LikelihoodSums.over_scales(scores, odds, scales, codes, weights) == alone
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_SCORES_AT_ONCE", max(1, 2 * samples * classes))
            assert LikelihoodSums.over_scales(scores, odds, scales, codes, weights) == alone
