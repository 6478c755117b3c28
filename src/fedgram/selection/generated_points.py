"""Points generated from summed statistics, to be public landmarks of a kernel.

No sample of a client may be a landmark. From the sums follow the class means and the within-class
covariance S. A point is a class mean plus `SPREAD` times Gaussian noise of covariance S, scaled to
a root mean square of 1 and rounded to the grid. So points are like samples, and no point is one. A
class of few samples has no points of its own, because its mean is close to each of its samples: of
one sample it is the sample. Points show what the sums show: they are no protection of the sums.
"""

from __future__ import annotations

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.statistics import Statistics
from fedgram.runtime.threads import single_threaded_blas
from fedgram.selection.gaussian import Discriminant

FEWEST = 10  # samples of a class whose mean is a center of points
SPREAD = 0.5  # standard deviations
_SHARE = 1e-6  # of the mean variance, added to each variance


def generated_points(total: Statistics, number: int, *, seed: int) -> Array:
    """Return points as integers in the units of the features, without the constant.

    Parameters
    ----------
    total
        The summed statistics of features with a constant.
    number
        Number of points.
    seed
        Seed of the noise.

    Examples
    --------
    >>> from fedgram.core.samples import Labels
    >>> from fedgram.features.grid import Grid
    >>> x = np.array([[1.0, 1.0], [1.0, 0.9]] * 20)
    >>> total = Statistics.of(Grid(bits=8)(x), Labels(np.zeros(40, np.int64), ("all",)))
    >>> bool(np.abs(generated_points(total, 3, seed=0) - 21).max() <= 3)
    True
    """
    gaussian = Discriminant(total=total, shrinkage=0.0)
    means, counts = gaussian.means.T, gaussian.counts
    overall = counts @ means / max(1.0, counts.sum())
    centers = means[counts >= FEWEST]
    centers = centers if len(centers) else overall[None]
    scatter = gaussian.scatter / max(1, total.count)
    held = _SHARE * float(np.trace(scatter)) / max(1, len(scatter)) + 1e-12
    noise = np.random.Generator(np.random.Philox(key=seed)).standard_normal((number, len(overall)))
    with single_threaded_blas():
        root = np.linalg.cholesky(scatter + held * np.eye(len(scatter)))
        points = centers[np.arange(number) % len(centers)] + SPREAD * noise @ root.T
    sizes = np.sqrt(np.mean(points**2, axis=1, keepdims=True))
    space = total.space
    steps = np.rint(points / np.where(sizes > 0, sizes, 1.0) / space.unit)
    most = space.bound or 2**15 - 1
    return np.clip(steps, -most, most).astype(np.int8 if most < 2**7 else np.int16)
