"""The ridge of a client's own head, against heads that are refitted without each sample."""

import numpy as np
import pytest

from fedgram import Grid, Labels, Lift, Samples, federate, run
from fedgram.core.targets import Output, Targets
from fedgram.federation.client import Client
from fedgram.methods.local import Local
from fedgram.selection.leave_one_out import HatMatrix
from fedgram.selection.own_ridge import OWN_RIDGES, best_own_ridge, left_out_scores

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(3, 9))
CODES = RNG.integers(3, size=40)
ROWS = CENTRES[CODES] + RNG.normal(size=(40, 9))


def classes(count):
    return Samples(Grid()(ROWS[:count]), Labels(CODES[:count], ("a", "b", "c")))


def numbers(count):
    values = np.column_stack([ROWS[:, 0] - ROWS[:, 1], ROWS.sum(axis=1)])[:count]
    outputs = tuple(Output(name=name, low=-30.0, high=30.0) for name in ("first", "second"))
    return Samples(Grid()(ROWS[:count]), Targets.of(values, outputs))


def client_of(samples):
    return Client(id="only", train=samples, valid=samples.take([]))


def refitted(samples, ridge, lift):
    """Return the scores of each sample by a head of the others."""
    found = []
    for place in range(len(samples)):
        others = np.flatnonzero(np.arange(len(samples)) != place)
        client = client_of(samples.take(others))
        head = Local(ridge=ridge, lift=lift).personalize(client, None)
        found.append(head(samples.features.take(slice(place, place + 1)))[0])
    return np.array(found)


@pytest.mark.parametrize("lift", [Lift(), Lift(width=50, seed=1)], ids=["plain", "lifted"])
@pytest.mark.parametrize("count", [2, 6, 40])
@pytest.mark.parametrize("kind", [classes, numbers])
def test_left_out_scores_are_those_of_refitted_heads(kind, count, lift):
    samples = kind(count)
    features, centered = lift(samples.features), kind is numbers
    left_out = left_out_scores(
        HatMatrix.of(features.values), samples.labels.onehot(), centered=centered
    )
    for ridge in (0.3, 30.0):
        scores = left_out(ridge / features.space.unit**2)
        np.testing.assert_allclose(scores, refitted(samples, ridge, lift), atol=1e-9)


@pytest.mark.parametrize("kind", [classes, numbers])
def test_the_ridge_with_the_fewest_errors_is_selected(kind):
    samples = kind(40)
    truth = samples.labels.onehot()

    def wrong(ridge):
        scores = refitted(samples, ridge, Lift())
        if kind is numbers:
            return np.sum((scores - truth) ** 2)
        return np.sum(scores.argmax(axis=1) != CODES)

    errors = [wrong(ridge) for ridge in OWN_RIDGES]
    expected = OWN_RIDGES[np.flatnonzero(np.array(errors) == min(errors))[-1]]
    assert min(errors) < max(errors)
    assert best_own_ridge(samples.features, samples.labels, centered=kind is numbers) == expected
    given, chosen = (
        Local(ridge=ridge).personalize(client_of(samples), None).weights
        for ridge in (expected, "auto")
    )
    np.testing.assert_array_equal(given, chosen)


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_is_selected_from_less_than_two_samples(count):
    head = Local().personalize(client_of(classes(count)), None)
    assert np.isfinite(head.weights).all()


def test_features_of_few_columns_are_not_drowned_by_the_ridge():
    from sklearn.datasets import load_iris

    from fedgram import Dataset

    flowers = load_iris()
    names = np.random.default_rng(0).choice(list("abcde"), size=150)
    data = federate(Dataset(flowers.data, flowers.target, clients=names), standardize=False)
    chosen, fixed = run([Local(), Local(ridge=30.0)], data)
    assert chosen.accuracy["client_mean"] > 0.8 > 2 * fixed.accuracy["client_mean"]
