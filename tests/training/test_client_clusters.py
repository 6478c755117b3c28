"""Clusters of clients by the cosines of their models."""

import numpy as np
import pytest

from fedgram.training.client_clusters import clustered, low_rank_directions


def blobs(seed=0, each=5):
    """Models of three kinds of clients, in a space of many parameters."""
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(3, 200))
    return np.repeat(kinds, each, axis=0) + 0.1 * rng.normal(size=(3 * each, 200))


def same_clusters(one, other):
    return np.array_equal(one[:, None] == one, other[:, None] == other)


@pytest.mark.parametrize("rank", [1, 2, 50])
def test_cosines_are_those_of_the_projected_models(rank):
    models = blobs()
    centered = models - models.mean(axis=0)
    _, _, axes = np.linalg.svd(centered)
    projected = centered @ axes[:rank].T @ axes[:rank]
    norms = np.linalg.norm(projected, axis=1)
    rows = low_rank_directions(models, rank)
    assert rows.shape[1] <= rank
    np.testing.assert_allclose(
        rows @ rows.T, projected @ projected.T / np.outer(norms, norms), atol=1e-9
    )


@pytest.mark.parametrize("models", [np.ones((1, 4)), np.ones((3, 4)), np.zeros((2, 1))])
def test_models_that_do_not_differ_are_one_cluster(models):
    rows = low_rank_directions(models, 3)
    assert np.isfinite(rows).all()
    assert set(clustered(rows, 2)) == {0}


@pytest.mark.parametrize("seed", range(4))
def test_kinds_of_clients_are_found(seed):
    truth = np.repeat(np.arange(3), 5)
    assert same_clusters(clustered(low_rank_directions(blobs(seed), 8), 3), truth)


def test_clusters_of_before_are_kept_and_new_clients_join_them():
    rows = low_rank_directions(blobs(), 8)
    before = np.array([2] * 5 + [0] * 5 + [1] * 5)
    np.testing.assert_array_equal(clustered(rows, 3, before), before)
    missing = before.copy()
    missing[[0, 7]] = -1
    np.testing.assert_array_equal(clustered(rows, 3, missing), before)
    wrong = before.copy()
    wrong[3] = 1
    np.testing.assert_array_equal(clustered(rows, 3, wrong), before)


def test_no_more_clusters_than_clients():
    rows = low_rank_directions(blobs(each=1), 8)
    assert sorted(clustered(rows, 9)) == [0, 1, 2]


def test_an_empty_cluster_is_opened_by_clients_unlike_the_others():
    rows = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0]])
    np.testing.assert_array_equal(clustered(rows, 2, np.array([0, 0, -1])), [0, 0, 1])
