"""Clusters of clients with similar models: cosines of low-rank coordinates, and k-means."""

from __future__ import annotations

import numpy as np

from fedgram.core.samples import Floats, Integers
from fedgram.runtime.threads import single_threaded_blas

_MOST_SWEEPS = 100
_ROUNDING = 1e-12  # share of the largest singular value; smaller ones are rounding errors


def low_rank_directions(models: Floats, rank: int) -> Floats:
    """Return the models' coordinates along the first principal axes, with rows of norm one.

    The cosine of two models is then the inner product of their rows. A model that does not differ
    from the mean of all has a row of zeros.

    Parameters
    ----------
    models
        Clients by parameters.
    rank
        Number of principal axes at most.

    Examples
    --------
    >>> rows = low_rank_directions(np.array([[1.0, 9.0], [2.0, 9.0], [6.0, 9.0]]), rank=1)
    >>> (rows @ rows.T).round(12)
    array([[ 1.,  1., -1.],
           [ 1.,  1., -1.],
           [-1., -1.,  1.]])
    """
    centered = models - models.mean(axis=0)
    with single_threaded_blas():
        left, sizes, _ = np.linalg.svd(centered, full_matrices=False)
    kept = np.flatnonzero(sizes > _ROUNDING * sizes.max(initial=0.0))[:rank]
    coordinates = left[:, kept] * sizes[kept]
    norms = np.linalg.norm(coordinates, axis=1, keepdims=True)
    directions: Floats = coordinates / np.where(norms > 0, norms, 1.0)
    return directions


def clustered(directions: Floats, clusters: int, start: Integers | None = None) -> Integers:
    """Return the cluster of each client, by k-means with cosines.

    A cluster without clients has the cosine 0 with every client: clients that are unlike all other
    clusters open it again.

    Parameters
    ----------
    directions
        Clients by coordinates, as `low_rank_directions` returns them.
    clusters
        Number of clusters at most.
    start
        Clusters to start from, -1 for clients without one. By default the first centers are
        clients that are unlike each other.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> clustered(rows, 2)
    array([0, 1, 1, 0])
    """
    groups = _nearest(directions, _far_apart(directions, clusters)) if start is None else start
    for _ in range(_MOST_SWEEPS):
        renewed = _nearest(directions, _centers(directions, groups, clusters))
        if np.array_equal(renewed, groups):
            break
        groups = renewed
    return groups


def _far_apart(directions: Floats, clusters: int) -> Floats:
    """Return the directions of clients, each as unlike those before it as possible."""
    chosen = [0]
    while len(chosen) < min(clusters, len(directions)):
        most_alike = _cosines(directions, directions[chosen]).max(axis=1)
        most_alike[chosen] = np.inf
        chosen.append(int(most_alike.argmin()))
    return directions[chosen]


def _centers(directions: Floats, groups: Integers, clusters: int) -> Floats:
    """Return the mean direction of each cluster, of norm one; zeros without clients."""
    sums = np.zeros((clusters, directions.shape[1]))
    placed = groups >= 0
    np.add.at(sums, groups[placed], directions[placed])
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    centers: Floats = sums / np.where(norms > 0, norms, 1.0)
    return centers


def _nearest(directions: Floats, centers: Floats) -> Integers:
    """Return the center with the largest cosine for each client; of equal ones the first."""
    nearest: Integers = _cosines(directions, centers).argmax(axis=1)
    return nearest


def _cosines(directions: Floats, centers: Floats) -> Floats:
    with single_threaded_blas():
        cosines: Floats = directions @ centers.T
    return cosines
