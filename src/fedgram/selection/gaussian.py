"""Gaussian classifiers from summed statistics: linear discriminant analysis (LDA)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram.core.samples import Floats, Integers
from fedgram.core.solve import Factor, unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.runtime.threads import single_threaded_blas
from fedgram.selection.class_prior import class_counts

_ABSENT = 0.5  # count of a class without samples; its mean is the origin


@dataclass(frozen=True, eq=False, kw_only=True)
class Discriminant:
    """Linear discriminant analysis of a total: one Gaussian per class, one covariance for all.

    Parameters
    ----------
    total
        Statistics whose last feature is a constant.
    shrinkage
        Added to the variance of every feature, for features of unit size.
    """

    total: Statistics
    shrinkage: float

    @cached_property
    def counts(self) -> Floats:
        """Number of samples of each class."""
        return class_counts(self.total)[0]

    @cached_property
    def means(self) -> Floats:
        """Mean of each class without the constant, in real units, (features - 1, classes)."""
        space, counts = self.total.space, np.maximum(self.counts, 1)
        means: Floats = self.total.moment[space.without_constant] / counts * space.unit
        return means

    @cached_property
    def scatter(self) -> Floats:
        """The number of samples times the within-class covariance, in real units."""
        space = self.total.space
        others = space.without_constant
        second = unpack_symmetric(self.total.gram, space.width)[others, others] * space.unit**2
        with single_threaded_blas():
            scatter: Floats = second - (self.means * self.counts) @ self.means.T
        return scatter

    @cached_property
    def factor(self) -> Factor:
        """Cholesky factor of count * (within-class covariance + shrinkage I)."""
        mass = self.shrinkage * self.total.count
        return Factor.of(self.scatter, mass, samples=self.total.count)

    @cached_property
    def solved(self) -> Floats:
        """The inverse of this matrix times the means, (features - 1, classes)."""
        return self.factor.solve(self.means)

    @cached_property
    def weights(self) -> Floats:
        """Weights in real units, (features, classes): scores are log-posteriors plus a constant."""
        return self.with_bias(self.total.count * self.solved)

    def with_bias(self, head: Floats) -> Floats:
        """Return `head` (inverse covariance times means) with the bias as a further row."""
        # bias_c = log(n_c / N) - mu_c' S^-1 mu_c / 2
        log_prior = np.log(np.maximum(self.counts, _ABSENT) / self.total.count)
        bias = log_prior - np.sum(self.means * head, axis=0) / 2
        weights: Floats = np.vstack([head, bias / class_counts(self.total)[1]])
        return weights

    def left_out(self, rows: Floats, codes: Integers, *, in_total: bool) -> Floats:
        """Return the leave-one-out scores of samples.

        Without a sample x of class c the scatter matrix is smaller by ``n_c / (n_c - 1) d d'`` with
        ``d = x - mean_c``, and the mean of c changes by ``-d / (n_c - 1)``: a rank-one update. The
        weight of the shrinkage stays.

        Parameters
        ----------
        rows
            Samples by features, in real units, with the constant.
        codes
            Class codes.
        in_total
            Whether the samples are in the total; otherwise the scores are the plain ones.
        """
        if not in_total:
            with single_threaded_blas():
                plain: Floats = rows @ self.weights
            return plain
        inner, each = rows[:, self.total.space.without_constant], np.arange(len(rows))
        with single_threaded_blas():
            across = inner @ self.solved  # x' S mean_j
            between = self.means.T @ self.solved  # mean_i' S mean_j
        white = self.factor.whitened(inner)
        size = np.einsum("ij,ij->i", white, white)  # x' S x
        others = self.counts[codes] - 1
        only_sample = others < 1  # the class is empty without the sample
        fewer = np.where(only_sample, 1.0, others)
        ratio = self.counts[codes] / fewer
        own = across[each, codes]
        along = size - own  # x' S d
        aside = across - between[codes]  # mean_j' S d
        spread = size - 2 * own + between[codes, codes]  # d' S d
        gain = 1 / np.maximum(1 - ratio * spread, np.finfo(float).eps)
        scale = ratio * gain
        linear = across + (scale * along)[:, None] * aside
        squares = np.diagonal(between) + scale[:, None] * aside**2
        linear[each, codes] -= along * gain / fewer
        squares[each, codes] -= (2 * aside[each, codes] - spread / fewer) * gain / fewer
        left = np.maximum(np.broadcast_to(self.counts, across.shape), _ABSENT).copy()
        left[each, codes] = np.maximum(others, _ABSENT)
        count = self.total.count - 1
        scores: Floats = count * (linear - squares / 2) + np.log(left / max(1, count))
        empty = np.flatnonzero(only_sample)
        scores[empty, codes[empty]] = np.log(_ABSENT / max(1, count))
        return scores


def gaussian_weights(total: Statistics, shrinkage: float, *, within: bool) -> Floats:
    """Return the weights of the Gaussian classifier with one covariance for all classes.

    With S the covariance and mu_c the mean of class c: ``w_c = S^-1 mu_c`` and a bias of
    ``log(n_c / N) - mu_c' S^-1 mu_c / 2``.

    Parameters
    ----------
    total
        Statistics whose last feature is a constant.
    shrinkage
        Added to the variance of every feature, for features of unit size.
    within
        Whether the covariance is the one within classes (LDA), or that of all samples.
    """
    known = Discriminant(total=total, shrinkage=shrinkage)
    if within:
        return known.weights
    unit, inner = total.space.unit, total.space.without_constant  # the constant has no variance
    second = unpack_symmetric(total.gram, total.space.width)[inner, inner] * unit**2
    center = total.moment[inner].sum(axis=1) / total.count * unit
    spread = (second - total.count * np.outer(center, center)) / max(1, total.count - 1)
    return known.with_bias(Factor.of(spread, shrinkage, samples=total.count).solve(known.means))
