"""A projection of frozen features, adapted to the classes in closed form from summed statistics."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from fedgram.core.samples import Floats
from fedgram.core.solve import unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.features.grid import bias
from fedgram.runtime.threads import single_threaded_blas
from fedgram.selection.gaussian import Discriminant


def within_class_whitening(total: Statistics, strength: float, *, rank: int = 0) -> Floats:
    """Return a matrix that shrinks the directions in which samples of one class differ.

    ``P = (I + strength S / s)^-1/2`` with the within-class covariance S of mean variance s.
    Features are centered, and the result has a mean square of 1 over all samples. With strength 0
    distances stay; with a large strength they are Mahalanobis distances. With a rank, only the
    directions in which the class means differ most after P are returned: those of linear
    discriminant analysis, for a large strength.

    Parameters
    ----------
    total
        The summed statistics of features with a constant.
    strength
        The strength, >= 0.
    rank
        Number of projected features; 0 for all.

    Examples
    --------
    >>> from fedgram.core.samples import Labels
    >>> from fedgram.features.grid import Grid
    >>> x = np.array([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]])
    >>> total = Statistics.of(Grid(bits=16)(x), Labels(np.array([0, 0, 1, 1]), ("a", "b")))
    >>> plain, strong = (within_class_whitening(total, each) for each in (0.0, 100.0))
    >>> (plain[0, 0] / plain[1, 1]).round(2), (strong[0, 0] / strong[1, 1]).round(1)
    (np.float64(1.0), np.float64(14.2))
    """
    gaussian, space = Discriminant(total=total, shrinkage=0.0), total.space
    count, others = max(1, total.count), space.without_constant
    shares = gaussian.counts / max(1.0, gaussian.counts.sum())
    mean = gaussian.means @ shares
    scatter = gaussian.scatter / count
    with single_threaded_blas():
        second = unpack_symmetric(total.gram, space.width)[others, others] * (space.unit**2 / count)
        spread = second - np.outer(mean, mean)
        values, vectors = scipy.linalg.eigh(scatter, check_finite=False)
        typical = max(float(np.trace(scatter)) / max(1, len(scatter)), 1e-12)
        inverse = 1 / np.sqrt(1 + strength * np.maximum(values, 0) / typical)
        matrix = (vectors * inverse) @ vectors.T
        if rank:
            centers = (gaussian.means - mean[:, None]) * np.sqrt(shares)
            directions, _, _ = scipy.linalg.svd(matrix @ centers, full_matrices=True)
            matrix = matrix @ directions[:, :rank]
        size = np.einsum("ij,ij->", spread @ matrix, matrix) / max(1, matrix.shape[1])
        matrix = matrix / np.sqrt(max(float(size), 1e-12))
        shift = mean @ matrix
    constant = bias(space.unit, space.bound) * space.unit
    whole: Floats = np.vstack([matrix, -shift / constant])
    return whole
