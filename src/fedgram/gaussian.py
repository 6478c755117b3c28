"""Gaussian classifiers from summed statistics."""

from __future__ import annotations

import numpy as np

from fedgram.priors import class_counts
from fedgram.samples import Floats
from fedgram.solve import Factor, square
from fedgram.stats import Statistics


def gaussian_weights(total: Statistics, shrinkage: float, *, within: bool) -> Floats:
    """Return the weights of the classifier with one covariance for all classes.

    With S the covariance and mu_c the mean of class c: ``w_c = S^-1 mu_c`` and a bias of
    ``log(n_c / N) - mu_c' S^-1 mu_c / 2``.

    Parameters
    ----------
    total
        Statistics whose last feature is a constant.
    shrinkage
        Added to the variance of every feature, for features of unit size.
    within
        Whether the covariance is that within classes (linear discriminant analysis), or that of
        all samples.
    """
    counts, constant = class_counts(total)
    unit, inner = total.space.unit, slice(0, -1)  # the constant has no variance
    means = total.moment[inner] / np.maximum(counts, 1) * unit
    second = square(total.gram, total.space.width)[inner, inner] * unit**2
    if within:
        spread = (second - (means * counts) @ means.T) / max(1, total.count)
    else:
        center = total.moment[inner].sum(axis=1) / total.count * unit
        spread = (second - total.count * np.outer(center, center)) / max(1, total.count - 1)
    head = Factor.of(spread, shrinkage, samples=total.count).solve(means)
    # A class without samples counts as half a sample at the origin.
    chances = np.log(np.maximum(counts, 0.5) / total.count)
    bias = chances - np.sum(means * head, axis=0) / 2
    weights: Floats = np.vstack([head, bias / constant])
    return weights
