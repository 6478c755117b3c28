"""FedHiP against the paper's recursion, and against scikit-learn with weighted samples."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from fedgram import Lift
from fedgram.core import codec
from fedgram.methods.afl import AFL
from fedgram.methods.fedhip import FedHiP
from fedgram.methods.local import Local

from . import papers

SOLVERS = ["server", "client"]
GIVEN = {"alpha": 10.0, "ridge": 100.0}
WIDTH = 14


@pytest.fixture(params=SOLVERS)
def solver(request):
    return request.param


@pytest.mark.parametrize("alpha", [0.0, 1.0, 30.0])
def test_the_recursion_and_the_personal_head(sites, personalized, pairs, close, solver, alpha):
    own = [papers.local(*pair, 2.0) for pair in pairs(sites)]
    shared = papers.recursion(own)
    models = personalized(FedHiP(alpha=alpha, ridge=2.0, solver=solver), sites)
    for pair, site in zip(own, sites, strict=True):
        reference = papers.personal(shared, pair, clients=len(sites), ridge=2.0, alpha=alpha)
        assert close(models[site.id].weights, reference)


@pytest.mark.parametrize("alpha", [0.0, 7.0])
def test_in_the_papers_reading_alpha_multiplies_the_ridge_too(
    sites, personalized, pairs, close, solver, alpha
):
    """P_k = (sum G + beta I + alpha C_k)^-1 (b + alpha b_k) with C_k = G_k + beta I."""
    plain = pairs(sites)
    gram = sum(rows.T @ rows for rows, _ in plain)
    moment = sum(rows.T @ labels for rows, labels in plain)
    ridge = 4.0 * np.eye(len(gram))
    method = FedHiP(alpha=alpha, ridge=4.0, regularized=True, solver=solver)
    models = personalized(method, sites)
    for (rows, labels), site in zip(plain, sites, strict=True):
        left = gram + ridge + alpha * (rows.T @ rows + ridge)
        reference = np.linalg.solve(left, moment + alpha * rows.T @ labels)
        assert close(models[site.id].weights, reference)


def test_clients_of_fewer_and_of_more_samples_than_features(gridded, dealt, personalized, close):
    """At the client the Woodbury identity serves the few, the direct solution the many."""
    samples = gridded(300, 13, 5)
    sizes = [1, WIDTH - 1, WIDTH, WIDTH + 1, 300 - 3 * WIDTH - 1]
    sites = dealt(samples, np.repeat(np.arange(5), sizes))
    assert {len(site.train) >= WIDTH for site in sites} == {True, False}
    server, client = (personalized(FedHiP(solver=solver, **GIVEN), sites) for solver in SOLVERS)
    assert all(close(client[name].weights, server[name].weights, 1e-10) for name in server)


def test_the_recursion_is_the_absolute_aggregation_law(sites, pairs, close):
    own = [papers.local(*pair, 1.0) for pair in pairs(sites)]
    kalman, absolute = papers.recursion(own), papers.absolute_aggregation(own)
    assert close(kalman[0], absolute[0])
    assert close(kalman[1], absolute[1])


@pytest.mark.parametrize("alpha", [0.0, 7.0])
def test_fedhip_is_a_ridge_in_which_own_samples_weigh_more(
    sites, personalized, pairs, close, solver, alpha
):
    plain = pairs(sites)
    features, labels = map(np.concatenate, zip(*plain, strict=True))
    models = personalized(FedHiP(alpha=alpha, ridge=4.0, solver=solver), sites)
    for k, site in enumerate(sites):
        weight = np.concatenate(
            [np.full(len(rows), 1 + alpha * (k == i)) for i, (rows, _) in enumerate(plain)]
        )
        ridge = Ridge(alpha=4.0, fit_intercept=False, solver="cholesky")
        ridge.fit(features, labels, sample_weight=weight)
        assert close(models[site.id].weights, ridge.coef_.T)


def test_the_recursion_holds_for_lifted_features(sites, personalized, pairs, close, solver):
    lift = Lift(width=40, activation="tanh", seed=2)
    own = [papers.local(*pair, 3.0) for pair in pairs(sites, lift)]
    shared = papers.recursion(own)
    models = personalized(FedHiP(alpha=10.0, ridge=3.0, solver=solver, lift=lift), sites)
    for pair, site in zip(own, sites, strict=True):
        reference = papers.personal(shared, pair, clients=len(sites), ridge=3.0, alpha=10.0)
        assert close(models[site.id].weights, reference)


def test_no_extra_weight_is_afl_and_much_is_local(sites, personalized, fitted, close, solver):
    shared = fitted(AFL(ridge=2.0), sites)
    for model in personalized(FedHiP(alpha=0.0, ridge=2.0, solver=solver), sites).values():
        assert close(model.weights, shared.weights, 1e-10)
    devoted = personalized(FedHiP(alpha=1e7, ridge=2.0, solver=solver), sites)
    alone = personalized(Local(ridge=0.0), [s for s in sites if len(s.train) > 200])
    for name, model in alone.items():
        assert close(devoted[name].weights, model.weights, 1e-4)


def test_a_model_does_not_depend_on_how_the_others_share_their_samples(
    gridded, dealt, personalized, solver
):
    samples = gridded(400, 13, 5)
    rng = np.random.default_rng(1)
    models = set()
    for others in (1, 2, 30):
        owners = rng.integers(1, others + 1, size=400)
        owners[:9] = 0
        models.add(
            codec.encode(
                personalized(FedHiP(solver=solver, **GIVEN), dealt(samples, owners))["client 000"]
            )
        )
    assert len(models) == 1


def test_a_private_federation_gives_the_same_models(sites, personalized, close):
    private = personalized(FedHiP(**GIVEN), sites, private=True)
    open_to_all = personalized(FedHiP(**GIVEN), sites)
    assert all(close(private[n].weights, open_to_all[n].weights, 1e-10) for n in private)
