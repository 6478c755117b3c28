"""FedNCM and FedCOF: classifiers from the class means alone."""

import numpy as np
import pytest
from sklearn.neighbors import NearestCentroid

from fedgram import Features, Grid, InProcess, Labels, Lift, Space, predict
from fedgram.checks.federations import partitioned
from fedgram.errors import ConfigError, DataError, ExactnessError, PrivacyError
from fedgram.experiments.runner import run
from fedgram.methods.fedcof import FedCOF, scaled_deviations
from fedgram.methods.fedncm import FedNCM
from fedgram.selection.class_sums import ClassSums


def rows_of(samples, lift=None):
    """Return the real features without the constant, and the codes."""
    features = (lift or Lift())(samples.features)
    return features.real()[:, : features.space.width - 1], samples.labels.codes


@pytest.fixture
def samples(gridded):
    return gridded(240, 7, 4)


@pytest.fixture
def sites(samples, dealt):
    return dealt(samples, np.random.default_rng(1).integers(6, size=len(samples)))


def fitted(method, sites):
    (shared,) = method.fit(InProcess(sites))
    return shared


@pytest.mark.parametrize("lift", [Lift(), Lift(width=9)])
def test_fedncm_is_the_nearest_centroid_of_all_samples(samples, sites, gridded, lift):
    x, y = rows_of(samples, lift)
    other = gridded(100, 7, 4, seed=5)
    model = fitted(FedNCM(lift=lift), sites)
    expected = NearestCentroid().fit(x, y)
    np.testing.assert_allclose(model.means.T, expected.centroids_, rtol=1e-12)
    np.testing.assert_array_equal(
        predict(model, other.features), expected.predict(rows_of(other, lift)[0])
    )


def test_the_scores_of_fedncm_are_distances(samples, sites):
    x, _ = rows_of(samples)
    model = fitted(FedNCM(), sites)
    distances = ((x[:, None, :] - model.means.T[None]) ** 2).sum(axis=2)
    expected = (np.sum(x**2, axis=1, keepdims=True) - distances) / 2
    np.testing.assert_allclose(model(samples.features), expected, rtol=0, atol=1e-10)


def test_normalized_means_compare_angles(samples, sites):
    x, y = rows_of(samples)
    means = np.stack([x[y == c].mean(axis=0) for c in range(4)])
    cosines = x @ means.T / np.linalg.norm(means, axis=1)
    model = fitted(FedNCM(normalize=True), sites)
    np.testing.assert_array_equal(predict(model, samples.features), cosines.argmax(axis=1))
    assert (cosines.argmax(axis=1) != predict(fitted(FedNCM(), sites), samples.features)).any()


@pytest.mark.parametrize("method", [FedNCM(), FedNCM(normalize=True), FedCOF()])
def test_a_class_without_samples_is_never_predicted(method, samples, dealt):
    some = samples.take(np.flatnonzero(samples.labels.codes != 2))
    sites = dealt(some, np.arange(len(some)) % 3)
    shared = fitted(method, sites)
    model = method.personalize(sites[0].client(np.random.default_rng(0)), shared)
    scores = model(samples.features)
    assert np.isfinite(scores).all()
    assert 2 not in scores.argmax(axis=1)


def slow_fedcof(parts, shrinkage):
    """FedCOF's formulas, class by class and client by client, without a constant."""
    x = np.concatenate([rows for rows, _ in parts])
    y = np.concatenate([codes for _, codes in parts])
    width, classes = x.shape[1], y.max() + 1
    gram = len(x) * np.outer(x.mean(axis=0), x.mean(axis=0))
    for c in range(classes):
        center = x[y == c].mean(axis=0)
        covariance, clients = np.zeros((width, width)), 0
        for rows, codes in parts:
            own = rows[codes == c]
            if len(own):
                away = own.mean(axis=0) - center
                covariance += len(own) * np.outer(away, away)
                clients += 1
        covariance /= max(1, clients - 1)
        gram += (np.sum(y == c) - 1) * (covariance + shrinkage * np.eye(width))
    head = np.linalg.solve(gram, x.T @ np.eye(classes)[y])
    return head / np.linalg.norm(head, axis=0)


@pytest.mark.parametrize("shrinkage", [0.1, 3.0])
def test_fedcof_is_the_slow_one(sites, shrinkage):
    head = fitted(FedCOF(shrinkage=shrinkage), sites)
    expected = slow_fedcof([rows_of(site.train) for site in sites], shrinkage)
    np.testing.assert_allclose(head.weights[:-1], expected, rtol=0, atol=1e-10)
    assert not head.weights[-1].any()


def test_the_estimated_covariance_has_no_bias(samples, dealt):
    """The mean over random deals of the samples is the covariance within classes."""
    x, y = rows_of(samples)
    within = sum(
        (x[y == c] - x[y == c].mean(axis=0)).T @ (x[y == c] - x[y == c].mean(axis=0))
        for c in range(4)
    )
    rng, found = np.random.default_rng(0), 0
    for _ in range(100):
        sites = dealt(samples, rng.choice(8, size=len(samples), p=np.arange(1, 9) / 36))
        parts = [ClassSums.of(site.train.features, site.train.labels) for site in sites]
        rows = scaled_deviations(parts, sum(parts))
        found = found + rows.T @ rows / 100
    assert np.abs(found - within).max() < 0.08 * np.abs(within).max()


def test_fedcof_shows_the_server_each_client_and_is_refused_where_sums_are_allowed_only():
    with pytest.raises(PrivacyError, match="allows sums only"):
        run(FedCOF(), partitioned(clients=5), private=True)


@pytest.mark.parametrize("shrinkage", [-1.0, 0.0, float("nan")])
def test_shrinkage_is_a_positive_number(shrinkage):
    with pytest.raises(ConfigError):
        FedCOF(shrinkage=shrinkage)


# The sums


def sums_of(samples):
    return ClassSums.of(samples.features, samples.labels)


def test_class_sums_are_exact_for_every_split(samples):
    whole, order = sums_of(samples), np.random.default_rng(3).permutation(len(samples))
    parts = [sums_of(samples.take(part)) for part in np.array_split(order, 7)]
    assert sum(parts) == whole
    assert whole.sums.dtype == np.int64
    assert sum(parts) - parts[0] == sum(parts[1:])
    np.testing.assert_array_equal(whole.counts, np.bincount(samples.labels.codes))


def test_class_sums_of_floats_are_floats(gridded):
    loose = gridded(30, 3, 2, grid=Grid(bits="off"))
    total = sums_of(loose)
    assert total.sums.dtype == np.float64
    total.validate()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"counts": np.array([1, -1])}, "below zero"),
        ({"sums": np.full((1, 2), 128)}, "larger than their samples allow"),
        ({"sums": np.zeros((2, 2), np.int64)}, "expected the shape"),
        ({"counts": np.array([1])}, "expected the shape"),
    ],
)
def test_sums_that_no_samples_have_are_refused(changed, words):
    space = Space(width=2, inputs=1, bound=127)
    rows = Features(np.array([[3, 1], [5, 1]], np.int8), space)
    honest = ClassSums.of(rows, Labels(np.array([0, 1]), ("a", "b")))
    honest.validate()
    fields = {name: getattr(honest, name) for name in ("counts", "sums", "space", "classes")}
    with pytest.raises(DataError, match=words):
        ClassSums(**{**fields, **changed}).validate()


def test_more_samples_than_the_grid_allows_have_no_means():
    space = Space(width=2, inputs=1, bound=2**15 - 1)
    total = ClassSums(
        counts=np.array([space.most_samples + 1]),
        sums=np.zeros((1, 1), np.int64),
        space=space,
        classes=("a",),
    )
    with pytest.raises(ExactnessError, match=r"use fewer grid\.bits"):
        _ = total.means
