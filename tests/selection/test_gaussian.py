"""Linear discriminant analysis from sums: its definition, and left-out samples by refitting."""

import numpy as np
import pytest

from fedgram import Lift, Statistics
from fedgram.core.solve import Factor
from fedgram.selection.gaussian import Discriminant, gaussian_weights

SHRINKAGES = (0.01, 0.3)
LIFTS = {"plain": Lift(), "lifted": Lift(width=9, activation="tanh", seed=2)}


def total_of(samples, lift=LIFTS["plain"]):
    return Statistics.of(lift(samples.features), samples.labels)


def by_definition(rows, codes, classes, shrinkage, *, mass=None):
    """Return the scores of new rows by Gaussians around class means with one covariance.

    `mass` is what is added to the scatter; without it, the shrinkage for every sample.
    """
    inner, count = rows[:, :-1], len(rows)
    scatter, means = np.zeros((inner.shape[1],) * 2), np.zeros((classes, inner.shape[1]))
    for c in range(classes):
        mine = inner[codes == c]
        if len(mine):
            means[c] = mine.mean(axis=0)
            scatter += (mine - means[c]).T @ (mine - means[c])
    mass = shrinkage * count if mass is None else mass
    inverse = np.linalg.inv((scatter + mass * np.eye(len(scatter))) / count)
    log_chances = np.log(np.maximum(np.bincount(codes, minlength=classes), 0.5) / count)

    def scores(new):
        found = []
        for mean, chance in zip(means, log_chances, strict=True):
            found.append(new[:, :-1] @ inverse @ mean - mean @ inverse @ mean / 2 + chance)
        return np.stack(found, axis=1)

    return scores


def close(ours, theirs):
    return np.abs(ours - theirs).max() <= 1e-8 * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)
@pytest.mark.parametrize("shrinkage", SHRINKAGES)
def test_weights_are_those_of_the_definition(gridded, lift, shrinkage):
    samples = gridded(120, 13, 5)
    rows = lift(samples.features).real()
    found = Discriminant(total=total_of(samples, lift), shrinkage=shrinkage)
    expected = by_definition(rows, samples.labels.codes, 5, shrinkage)
    assert close(rows @ found.weights, expected(rows))
    assert close(found.means.T[2], rows[samples.labels.codes == 2, :-1].mean(axis=0))
    assert np.array_equal(found.weights, gaussian_weights(found.total, shrinkage, within=True))


def test_a_class_without_samples_is_half_a_sample_at_the_origin(gridded):
    samples = gridded(120, 13, 5)
    some = samples.take(np.flatnonzero(samples.labels.codes != 3))
    found = Discriminant(total=total_of(some), shrinkage=0.1)
    rows = samples.features.real()
    expected = by_definition(some.features.real(), some.labels.codes, 5, 0.1)
    assert close(rows @ found.weights, expected(rows))
    assert close((rows @ found.weights)[:, 3], np.log(0.5 / len(some)))


def test_one_covariance_of_all_samples(gridded):
    """With `within=False`: as FedCGS defines it, by the covariance around the common mean."""
    samples = gridded(120, 13, 5)
    rows, codes = samples.features.real(), samples.labels.codes
    inner = rows[:, :-1]
    inverse = np.linalg.inv(np.cov(inner.T) + 0.1 * np.eye(inner.shape[1]))
    means = np.stack([inner[codes == c].mean(axis=0) for c in range(5)])
    bias = np.log(np.bincount(codes) / len(codes)) - np.sum(means @ inverse * means, axis=1) / 2
    weights = gaussian_weights(total_of(samples), 0.1, within=False)
    assert close(rows @ weights, inner @ inverse @ means.T + bias)


# Left-out samples


def owned(gridded, kind):
    everything = gridded(160, 13, 5)
    codes = everything.labels.codes
    lonely = np.flatnonzero(codes == 4)[:1]
    rest = np.flatnonzero(codes != 4)
    return everything.take(
        {
            "many": np.arange(160),
            "few": np.arange(12),
            "copies": np.array([*range(30), 3, 3, 4]),
            "a class of one sample": np.concatenate([lonely, rest[:60]]),
            "a class of two": np.concatenate([np.flatnonzero(codes == 4)[:2], rest[:60]]),
            "one class": np.flatnonzero(codes == 2)[:20],
            "two samples": np.arange(2),
        }[kind]
    )


KINDS = ("many", "few", "copies", "a class of one sample", "a class of two", "one class",
         "two samples")  # fmt: skip


@pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)
@pytest.mark.parametrize("shrinkage", SHRINKAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_left_out_scores_are_those_of_refitting(gridded, kind, shrinkage, lift):
    """The weight of the shrinkage stays that of all samples, as the docstring says."""
    samples = owned(gridded, kind)
    rows, codes = lift(samples.features).real(), samples.labels.codes
    known = Discriminant(total=total_of(samples, lift), shrinkage=shrinkage)
    found = known.left_out(rows, codes, in_total=True)
    assert found.shape == (len(samples), 5)
    for i in range(0, len(samples), 1 + len(samples) // 25):
        others = np.arange(len(samples)) != i
        refit = by_definition(
            rows[others], codes[others], 5, shrinkage, mass=shrinkage * len(samples)
        )
        assert close(found[i], refit(rows[i : i + 1])[0])


def test_samples_that_were_not_counted_are_out_already(gridded):
    samples = gridded(60, 13, 5)
    known = Discriminant(total=total_of(gridded(100, 13, 5, seed=1)), shrinkage=0.1)
    rows = samples.features.real()
    assert close(known.left_out(rows, samples.labels.codes, in_total=False), rows @ known.weights)


def test_a_single_sample_leaves_nothing(gridded):
    samples = gridded(1, 13, 5)
    known = Discriminant(total=total_of(samples), shrinkage=0.1)
    found = known.left_out(samples.features.real(), samples.labels.codes, in_total=True)
    assert np.isfinite(found).all()
    assert np.ptp(found) == 0


def test_no_samples_give_no_scores(gridded):
    known = Discriminant(total=total_of(gridded(100, 13, 5)), shrinkage=0.1)
    nothing = gridded(60, 13, 5).take([])
    found = known.left_out(nothing.features.real(), nothing.labels.codes, in_total=True)
    assert found.shape == (0, 5)


def test_the_factor_is_that_of_the_scatter_within_classes(gridded):
    samples = gridded(80, 13, 5)
    rows, codes = samples.features.real()[:, :-1], samples.labels.codes
    centred = rows - np.stack([rows[codes == c].mean(axis=0) for c in range(5)])[codes]
    expected = Factor.of(centred.T @ centred, 0.1 * 80)
    found = Discriminant(total=total_of(samples), shrinkage=0.1).factor
    assert close(found.solve(np.eye(13)), expected.solve(np.eye(13)))
