"""The ridge chosen from sums: against samples, against clients left out, and the whole grid."""

import dataclasses

import numpy as np
import pytest

from fedgram import InProcess, Lift, Statistics, create_method, run
from fedgram.checks.federations import federated, partitioned, trainable
from fedgram.core import gcv
from fedgram.core.gcv import (
    RIDGES,
    SLACK,
    best_ridge,
    best_ridge_for_new_clients,
    best_ridges,
    error_at_new_clients,
    generalized_error,
    resolved,
)
from fedgram.core.quadratic_forms import QuadraticForms
from fedgram.core.solve import SIGNS, Factor, random_signs
from fedgram.engines.ledger_backed import Ledgered
from fedgram.errors import PrivacyError, SolveError
from fedgram.models.linear import Linear


def statistics(samples):
    return Statistics.of(samples.features, samples.labels)


def hat(rows, ridge):
    return rows @ np.linalg.solve(rows.T @ rows + ridge * np.eye(rows.shape[1]), rows.T)


@pytest.mark.parametrize("ridge", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("shape", [(300, 20), (20, 30), (1, 5), (2, 3)])
def test_the_error_from_sums_is_the_one_from_samples(gridded, shape, ridge):
    count, width = shape
    samples = gridded(count, width, 4)
    rows, targets = samples.features.real(), samples.labels.onehot()
    fitted = hat(rows, ridge)
    left_over = np.sum((targets - fitted @ targets) ** 2)
    expected = count * left_over / (count - np.trace(fitted)) ** 2
    assert generalized_error(statistics(samples), ridge) == pytest.approx(expected, rel=1e-7)


def test_with_equal_leverages_it_is_the_error_left_out(gridded):
    """On a balanced design generalized cross-validation is leave-one-out itself."""
    samples = gridded(64, 7, 3)
    signs = np.array(
        [[1 if bin(i & j).count("1") % 2 else -1 for j in range(8)] for i in range(64)]
    )
    values = (21 * signs).astype(np.int8)
    features = dataclasses.replace(samples.features, values=values)
    samples = dataclasses.replace(samples, features=features)
    rows, targets = samples.features.real(), samples.labels.onehot()
    wrong = 0.0
    for i in range(64):
        rest = np.arange(64) != i
        head = np.linalg.solve(
            rows[rest].T @ rows[rest] + 9.0 * np.eye(8), rows[rest].T @ targets[rest]
        )
        wrong += np.sum((targets[i] - rows[i] @ head) ** 2)
    assert generalized_error(statistics(samples), 9.0) == pytest.approx(wrong / 64, rel=1e-9)


def test_of_few_features_every_ridge_is_tried():
    total = statistics(trainable())
    errors = [generalized_error(total, ridge) for ridge in RIDGES]
    assert best_ridge(total) == RIDGES[int(np.argmin(errors))]


@pytest.mark.parametrize("width", [160, 300])
@pytest.mark.parametrize("count", [40, 200, 1400])
def test_of_many_features_few_are_tried_and_little_is_lost(width, count):
    samples = trainable().take(slice(0, count))
    total = Statistics.of(Lift(width=width)(samples.features), samples.labels)
    errors = {ridge: generalized_error(total, ridge) for ridge in RIDGES}
    assert errors[best_ridge(total)] <= min(errors.values()) * 1.02


@pytest.mark.parametrize("slack", [0.001, 0.01, 0.1, 1.0])
def test_with_slack_it_is_the_smallest_ridge_that_is_nearly_as_good(slack):
    total = statistics(trainable())
    errors = np.array([generalized_error(total, ridge) for ridge in RIDGES])
    best = int(errors.argmin())
    found = RIDGES.index(best_ridge(total, slack=slack))
    assert best - 4 <= found <= best
    assert np.all(errors[found:best] <= errors[best] * (1 + slack))
    assert found == best - 4 or errors[found - 1] > errors[best] * (1 + slack)


@pytest.mark.parametrize("width", [160, 300])
def test_with_slack_ridges_that_were_not_tried_are_nearly_as_good(width):
    total = Statistics.of(Lift(width=width)(trainable().features), trainable().labels)
    errors = {ridge: generalized_error(total, ridge) for ridge in RIDGES}
    without, found = best_ridge(total), best_ridge(total, slack=0.05)
    assert without / 10.5 < found < without
    assert errors[found] <= errors[without] * 1.05


def test_several_slacks_take_one_search():
    total = statistics(trainable())
    slacks = [0.0, 0.01, 0.1]
    assert best_ridges(total, slacks) == [best_ridge(total, slack=slack) for slack in slacks]


def test_a_search_takes_few_factorizations(monkeypatch):
    samples = trainable()
    total = Statistics.of(Lift(width=160)(samples.features), samples.labels)
    made, original = [], Factor.of.__func__
    monkeypatch.setattr(
        Factor, "of", classmethod(lambda cls, *a, **k: made.append(1) or original(cls, *a, **k))
    )
    best_ridge(total)
    assert len(made) <= 5


@pytest.fixture
def large(monkeypatch):
    """Totals of 200 features and four samples for each count as large."""
    monkeypatch.setattr(gcv, "_ESTIMATED", 200)


@pytest.mark.parametrize("ridge", [1.0, 100.0, 10_000.0])
def test_an_estimated_trace_is_close_to_the_exact_one(ridge):
    """The error follows from the entries off the diagonal; it is at most four standard errors."""
    rows = Lift(width=400)(trainable().features).real()
    gram = rows.T @ rows
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    signs, off = random_signs(400 + 1), np.sum(inverse**2) - np.sum(np.diagonal(inverse) ** 2)
    found = float(np.einsum("ij,ij->", signs, inverse @ signs)) / SIGNS
    assert Factor.of(gram, ridge).inverse_trace() == pytest.approx(np.trace(inverse), rel=1e-6)
    assert 0 < abs(found - np.trace(inverse)) <= 4 * np.sqrt(2 * off / SIGNS)


@pytest.mark.parametrize("ridge", [3.0, 10.0, 100.0, 1000.0, 10_000.0])
def test_forms_of_nearby_ridges_are_those_of_a_factorization(ridge):
    lifted = Lift(width=400)(trainable().features)
    rows, vectors = lifted.real(), random_signs(401)[:, :5]
    gram = rows.T @ rows
    solved = np.linalg.solve(gram + ridge * np.eye(len(gram)), vectors)
    forms = QuadraticForms.of(Factor.of(gram, 100.0), 100.0, vectors)
    forms.extend(20)
    first, second = forms.at(ridge)
    assert first == pytest.approx(np.sum(vectors * solved, axis=0), rel=1e-4)
    assert second == pytest.approx(np.sum(solved**2, axis=0), rel=1e-3)
    fewer = forms.at(ridge, steps=2)[0]
    assert ridge == 100.0 or not np.allclose(fewer, first, rtol=1e-6)


def test_forms_end_with_the_space_that_the_vectors_span():
    gram, vectors = np.diag([1.0, 1.0, 8.0]), np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    forms = QuadraticForms.of(Factor.of(gram, 1.0), 1.0, vectors)
    forms.extend(6)
    first, second = forms.at(2.0)
    assert first == pytest.approx([2 / 3 + 1 / 10, 0.0], rel=1e-6)
    assert second == pytest.approx([2 / 9 + 1 / 100, 0.0], rel=1e-6)


def test_one_or_two_factorizations_find_the_ridge_of_a_large_total(monkeypatch, large):
    total = Statistics.of(Lift(width=300)(trainable().features), trainable().labels)
    assert total.count >= 4 * total.space.width
    exact = {ridge: generalized_error(total, ridge) for ridge in RIDGES}
    made, original = [], Factor.of.__func__
    monkeypatch.setattr(
        Factor, "of", classmethod(lambda cls, *a, **k: made.append(1) or original(cls, *a, **k))
    )
    found = best_ridges(total, [0.0, 0.01])
    assert len(made) <= 2  # five without
    assert exact[found[0]] <= min(exact.values()) * 1.02
    monkeypatch.setattr(gcv, "_ESTIMATED", 10_000)
    assert found == best_ridges(total, [0.0, 0.01])


def test_errors_of_a_large_total_are_close_at_every_ridge(large):
    """Those far from the factorized ridge need factorizations of their own."""
    total = Statistics.of(Lift(width=300)(trainable().features), trainable().labels)
    errors = gcv._NearbyErrors(total, total.count / 30)
    for ridge in (*RIDGES, 1e9):
        assert errors(ridge) == pytest.approx(generalized_error(total, ridge), rel=0.005)


def test_a_singular_gram_matrix_of_a_large_total_is_found(large):
    features = Lift(width=300)(trainable().features)
    values = features.values.copy()
    values[:, 1:200] = values[:, :1]
    total = Statistics.of(dataclasses.replace(features, values=values), trainable().labels)
    errors = gcv._NearbyErrors(total, 10.0)
    assert errors(10.0) == pytest.approx(generalized_error(total, 10.0), rel=0.01)
    for of in (errors, lambda ridge: generalized_error(total, ridge)):
        with pytest.raises(SolveError, match="singular"):
            of(1e-12)


def test_few_samples_for_each_feature_have_an_exact_trace(monkeypatch, large):
    monkeypatch.setattr(gcv, "_NearbyErrors", lambda *of: 1 / 0)
    lifted = Lift(width=300)(trainable().features)
    few = slice(0, 1100)
    assert best_ridge(Statistics.of(lifted.take(few), trainable().labels.take(few))) > 0
    with pytest.raises(ZeroDivisionError):
        best_ridge(Statistics.of(lifted, trainable().labels))


def test_a_given_ridge_is_left_alone():
    assert resolved(7, Statistics.zero()) == 7.0


def test_nothing_to_solve_is_refused():
    with pytest.raises(SolveError, match="holds 0 samples"):
        best_ridge(Statistics.zero())


@pytest.mark.parametrize("take", [[3], [3, 3, 3], [0, 1]], ids=["one", "copies", "two"])
def test_tiny_totals_have_a_ridge(take):
    assert best_ridge(statistics(trainable().take(take))) in RIDGES


@pytest.mark.parametrize("name", ["afl", "fedhip", "apfl-linear", "fed3r", "central"])
def test_methods_take_the_ridge_of_the_sum(name):
    everybody = partitioned(clients=4)
    slack, given_settings = (0.0, {"alpha": 10.0}) if name == "fedhip" else (SLACK, {})
    ridge = best_ridge(sum(statistics(site.train) for site in everybody.members), slack=slack)
    chosen, given = (
        run(create_method(name, {**given_settings, "ridge": value}), everybody)
        for value in ("auto", ridge)
    )
    assert chosen.model_digest == given.model_digest


def test_sums_alone_are_enough():
    everybody = partitioned(clients=4)
    openly, privately = (
        run(create_method("afl", {"ridge": "auto"}), everybody, private=private)
        for private in (False, True)
    )
    assert openly.shared_digest == privately.shared_digest
    total = sum(statistics(site.train) for site in everybody.members)
    (head,) = create_method("afl", {"ridge": "auto"}).fit(Ledgered(total, ["a"]))
    assert head.weights.tobytes() == openly.shared.weights.tobytes()


# Clients left out


def test_the_error_at_new_clients_is_the_one_of_refitting():
    everybody = partitioned(clients=5).members
    parts = [statistics(site.train) for site in everybody]
    wrong = 0.0
    for k, site in enumerate(everybody):
        rest = sum(part for i, part in enumerate(parts) if i != k)
        scores = Linear.of(rest, ridge=30.0)(site.train.features)
        wrong += np.sum((site.train.labels.onehot() - scores) ** 2)
    expected = wrong / sum(len(site.train) for site in everybody)
    assert error_at_new_clients(sum(parts), parts, 30.0) == pytest.approx(expected, rel=1e-9)


def test_the_ridge_for_new_clients_is_the_best_of_all():
    parts = [statistics(site.train) for site in partitioned(clients=5).members]
    total = sum(parts)
    errors = [error_at_new_clients(total, parts, ridge) for ridge in RIDGES]
    found = best_ridge_for_new_clients(total, lambda: parts)
    assert found == RIDGES[int(np.argmin(errors))]
    shared = run(create_method("afl", {"ridge": "clients"}), partitioned(clients=5)).shared
    assert shared.weights.tobytes() == Linear.of(total, ridge=found).weights.tobytes()


def test_a_lone_client_cannot_be_left_out():
    total = statistics(trainable())
    assert best_ridge_for_new_clients(total, lambda: [total]) == best_ridge(total)
    everybody = federated({"only": trainable()})
    assert run(create_method("afl", {"ridge": "clients"}), everybody).shared.origin


def test_to_leave_clients_out_their_statistics_must_be_seen():
    with pytest.raises(PrivacyError):
        list(
            create_method("afl", {"ridge": "clients"}).fit(
                InProcess(partitioned().members, private=True)
            )
        )
