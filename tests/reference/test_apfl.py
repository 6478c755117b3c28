"""Analytic APFL against the paper's equations 3 to 14, and against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from fedgram import Lift
from fedgram.core import codec
from fedgram.methods.afl import AFL
from fedgram.methods.apfl import APFL

from . import papers

PRIMARY = Lift(width=20, activation="hardswish", seed=3)
REFINEMENT = Lift(width=30, activation="sigmoid", seed=4)
STREAMS = {
    "plain": (Lift(), Lift()),
    "two lifts": (PRIMARY, REFINEMENT),
    "one lift": (Lift(), REFINEMENT),
}


@pytest.fixture(params=STREAMS.values(), ids=STREAMS)
def method(request):
    first, second = request.param
    return APFL(ridge=0.5, refinement_ridge=8.0, balance=0.3, primary=first, refinement=second)


@pytest.fixture
def unseen(gridded):
    """Samples that no client has."""
    return gridded(40, 13, 5, seed=9).features


def test_the_equations_of_the_paper(sites, method, fitted, personalized, pairs, close, unseen):
    phi, psi = pairs(sites, method.primary), pairs(sites, method.refinement)
    shared = papers.primary(phi, method.ridge)
    assert close(fitted(method, sites).weights, shared)
    new_phi, new_psi = method.primary(unseen).real(), method.refinement(unseen).real()
    models = personalized(method, sites)
    for site, (own_phi, labels), (own_psi, _) in zip(sites, phi, psi, strict=True):
        own = papers.refinement(own_phi, own_psi, labels, shared, method.refinement_ridge)
        model = models[site.id]
        assert close(model.second.weights, own)
        scores = papers.prediction(new_phi, new_psi, shared, own, method.balance)
        assert close(model(unseen), scores)


def test_apfl_is_two_of_scikit_learns_ridges(sites, method, personalized, pairs, close, unseen):
    phi, psi = pairs(sites, method.primary), pairs(sites, method.refinement)
    features, labels = map(np.concatenate, zip(*phi, strict=True))
    plain = {"fit_intercept": False, "solver": "cholesky"}
    first = Ridge(alpha=method.ridge, **plain).fit(features, labels)
    models = personalized(method, sites)
    for site, (own_phi, own_labels), (own_psi, _) in zip(sites, phi, psi, strict=True):
        residual = own_labels - first.predict(own_phi)
        second = Ridge(alpha=method.refinement_ridge, **plain).fit(own_psi, residual)
        scores = first.predict(method.primary(unseen).real())
        scores = scores + method.balance * second.predict(method.refinement(unseen).real())
        assert close(models[site.id](unseen), scores)


def test_the_shared_stream_is_afl_to_the_byte(sites, method, fitted):
    afl = AFL(ridge=method.ridge, lift=method.primary)
    assert codec.encode(fitted(method, sites)) == codec.encode(fitted(afl, sites))


def test_a_model_does_not_depend_on_how_the_others_share_their_samples(
    gridded, dealt, personalized, method
):
    samples = gridded(400, 13, 5)
    rng = np.random.default_rng(1)
    models = set()
    for others in (1, 2, 30):
        owners = rng.integers(1, others + 1, size=400)
        owners[:9] = 0
        models.add(codec.encode(personalized(method, dealt(samples, owners))["client 000"]))
    assert len(models) == 1
