"""AFL against the paper's absolute aggregation law, and against scikit-learn."""

import itertools

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from fedgram import Lift
from fedgram.core import codec
from fedgram.methods.afl import AFL
from fedgram.methods.central import Central
from fedgram.methods.local import Local

from . import papers

LIFT = Lift(width=20, activation="gelu", seed=4)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_the_absolute_aggregation_law_with_the_ridge_put_back(sites, fitted, pairs, close, gamma):
    clients = [papers.local(*pair, gamma) for pair in pairs(sites)]
    total, head = papers.absolute_aggregation(clients)
    for ridge in (0.5, 30.0):
        reference = papers.ridge_put_back(total, head, len(sites), gamma, ridge)
        assert close(fitted(AFL(ridge=ridge), sites).weights, reference)


def test_the_paper_itself_is_plain_least_squares(sites, fitted, pairs, close):
    clients = [papers.local(*pair, 1.0) for pair in pairs(sites)]
    total, head = papers.absolute_aggregation(clients)
    reference = papers.intermediary_removed(total, head, len(sites), 1.0)
    assert close(fitted(AFL(ridge=0.0), sites).weights, reference)


def test_the_law_for_two_is_the_recursion_for_two(sites, pairs, close):
    clients = [papers.local(*pair, 1.0) for pair in pairs(sites)]
    for u, v in itertools.pairwise(clients):
        assert close(papers.pairwise(u, v)[1], papers.absolute_aggregation([u, v])[1])


def test_a_ridge_that_is_not_put_right_would_be_noticed(sites, fitted, pairs, close):
    """Without the bookkeeping the head depends on the number of clients."""
    _, head = papers.absolute_aggregation([papers.local(*p, 10.0) for p in pairs(sites)])
    assert close(fitted(AFL(ridge=10.0), sites).weights, head) == (len(sites) == 1)
    assert close(fitted(AFL(ridge=10.0 * len(sites)), sites).weights, head)


def test_the_law_holds_for_lifted_features(sites, fitted, pairs, close):
    clients = [papers.local(*pair, 5.0) for pair in pairs(sites, LIFT)]
    total, head = papers.absolute_aggregation(clients)
    reference = papers.ridge_put_back(total, head, len(sites), 5.0, 2.0)
    assert close(fitted(AFL(ridge=2.0, lift=LIFT), sites).weights, reference)


@pytest.mark.parametrize("lift", [Lift(), LIFT], ids=["plain", "lift"])
def test_afl_is_scikit_learns_ridge_on_all_samples(sites, fitted, pairs, close, lift):
    features, labels = map(np.concatenate, zip(*pairs(sites, lift), strict=True))
    ridge = Ridge(alpha=3.0, fit_intercept=False, solver="cholesky").fit(features, labels)
    head = fitted(AFL(ridge=3.0, lift=lift), sites)
    assert close(head.weights, ridge.coef_.T)


def test_local_is_scikit_learns_ridge_on_ones_own_samples(sites, personalized, pairs, close):
    models = personalized(Local(ridge=3.0), sites)
    for (features, labels), site in zip(pairs(sites), sites, strict=True):
        ridge = Ridge(alpha=3.0, fit_intercept=False, solver="cholesky").fit(features, labels)
        assert close(models[site.id].weights, ridge.coef_.T)


@pytest.mark.parametrize("lift", [Lift(), LIFT], ids=["plain", "lift"])
def test_central_and_afl_are_the_same_bytes(sites, fitted, lift):
    central, afl = (fitted(kind(ridge=3.0, lift=lift), sites) for kind in (Central, AFL))
    assert codec.encode(central) == codec.encode(afl)
    assert central.weights.tobytes() == afl.weights.tobytes()


def test_every_partition_gives_the_same_bytes(gridded, dealt, fitted):
    samples = gridded(500, 13, 5)
    rng = np.random.default_rng(0)
    owners = [rng.integers(k, size=500) for k in (1, 2, 9, 200)] + [samples.labels.codes]
    heads = {
        codec.encode(fitted(AFL(ridge=3.0), dealt(samples, who), workers=workers))
        for who in owners
        for workers in (1, 2)
    }
    assert len(heads) == 1
