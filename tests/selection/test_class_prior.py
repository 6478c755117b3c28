"""Class priors: the likeliest pseudo-count of all clients, and left-out samples in a prior."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from fedgram import Statistics
from fedgram.checks.federations import trainable
from fedgram.errors import DataError, SolveError
from fedgram.selection.class_prior import (
    PSEUDO_COUNTS,
    PriorEvidence,
    class_counts,
    counts_of,
    left_out_log_odds,
    log_odds,
    prior_evidence,
    repeats,
)

STEP = 2.0**-20


def drawn(pseudo_count, clients=40, samples=60, seed=0):
    """Return class counts of clients whose frequencies are drawn around common ones."""
    rng = np.random.default_rng(seed)
    common = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    shares = rng.dirichlet(pseudo_count * common, size=clients)
    return [rng.multinomial(samples, share).astype(float) for share in shares]


def log_likelihood(own, everything, pseudo_count):
    """Return the Dirichlet-multinomial one, but for the number of orders of the samples."""
    shares = everything / everything.sum()
    counts = own.astype(int)
    whole = scipy.stats.dirichlet_multinomial.logpmf(counts, pseudo_count * shares, counts.sum())
    return (
        whole
        - scipy.stats.multinomial.logpmf(counts, counts.sum(), shares)
        + np.sum(scipy.stats.multinomial.logpmf(np.eye(5, dtype=int), 1, shares) * counts)
    )


@pytest.mark.parametrize("pseudo_count", [0.5, 5.0, 50.0, 5000.0])
def test_the_evidence_is_the_dirichlet_multinomial_likelihood(pseudo_count):
    clients = drawn(pseudo_count)
    everything = np.sum(clients, axis=0)
    total = sum(prior_evidence(own, everything) for own in clients)
    expected = [sum(log_likelihood(own, everything, p) for own in clients) for p in PSEUDO_COUNTS]
    np.testing.assert_allclose(total.likelihood * STEP, expected, rtol=1e-9, atol=1e-4)
    assert total.best == PSEUDO_COUNTS[int(np.argmax(expected))]
    assert total.clients == len(clients)


@pytest.mark.parametrize("pseudo_count", [1.5, 15.0, 150.0])
def test_the_best_is_next_to_the_one_that_clients_were_drawn_with(pseudo_count):
    clients = drawn(pseudo_count, clients=200, samples=200)
    everything = np.sum(clients, axis=0)
    found = sum(prior_evidence(own, everything) for own in clients).best
    place, true = PSEUDO_COUNTS.index(found), PSEUDO_COUNTS.index(pseudo_count)
    assert abs(place - true) <= 1
    best = scipy.optimize.minimize_scalar(
        lambda log: -sum(log_likelihood(own, everything, np.exp(log)) for own in clients),
        bounds=(-3, 10),
        method="bounded",
    )
    assert PSEUDO_COUNTS[max(0, place - 1)] <= np.exp(best.x) <= PSEUDO_COUNTS[place + 1]


def test_clients_may_come_in_any_order():
    clients = drawn(5.0, clients=4)
    everything = np.sum(clients, axis=0)
    evidence = [prior_evidence(own, everything) for own in clients]
    whole = sum(evidence)
    for order in permutations(evidence):
        assert sum(order) == whole
    assert sum(evidence[1:]) == whole - evidence[0]
    assert PriorEvidence.zero() + whole == whole


def test_clients_that_have_nothing_say_nothing():
    nothing = prior_evidence(np.zeros(5), np.array([5.0, 5.0, 0.0, 1.0, 2.0]))
    assert not nothing.likelihood.any()
    assert nothing.best == PSEUDO_COUNTS[0]
    with pytest.raises(SolveError, match="at least one"):
        _ = PriorEvidence.zero().best


def test_classes_that_are_absent_everywhere_do_no_harm():
    own, everything = np.array([3.0, 0.0, 0.0]), np.array([10.0, 2.0, 0.0])
    evidence = prior_evidence(own, everything)
    evidence.validate()
    assert np.isfinite(log_odds(own, everything, evidence.best)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": -1}, "one client"),
        ({"likelihood": np.full(len(PSEUDO_COUNTS), 2**30)}, "at most 1"),
        ({"likelihood": np.full(len(PSEUDO_COUNTS), -(2**61))}, "may overflow"),
    ],
)
def test_evidence_that_cannot_be_is_refused(change, message):
    for own in drawn(5.0, clients=3):
        good = prior_evidence(own, own + 10)
        good.validate(sites=8)
        with pytest.raises(DataError, match=message):
            replace(good, **change).validate(sites=8)


# The prior itself


@pytest.mark.parametrize("in_total", [True, False])
@pytest.mark.parametrize("pseudo_count", [0.3, 7.0])
def test_left_out_log_odds_are_those_of_counting_without_the_sample(in_total, pseudo_count):
    labels = trainable().labels.take(slice(0, 30))
    own = counts_of(labels)
    others = counts_of(trainable().labels.take(slice(100, 160)))
    everything = own + others if in_total else others
    found = left_out_log_odds(labels.codes, own, everything, pseudo_count, in_total=in_total)
    for i, odds in enumerate(found):
        rest = counts_of(labels.take(np.flatnonzero(np.arange(30) != i)))
        expected = log_odds(rest, rest + others if in_total else others, pseudo_count)
        np.testing.assert_allclose(odds, expected, atol=1e-12)


def test_log_odds_are_the_posterior_mean_over_the_common_share():
    own, everything = np.array([6.0, 0.0, 2.0]), np.array([50.0, 30.0, 20.0])
    shares = everything / 100
    posterior = (own + 7 * shares) / (own.sum() + 7)  # of a Dirichlet prior
    np.testing.assert_allclose(log_odds(own, everything, 7.0), np.log(posterior / shares))
    assert np.abs(log_odds(own, everything, 1e12)).max() < 1e-9


def test_repeats_make_classes_count_about_alike():
    samples = trainable().take(slice(0, 30))
    counts = class_counts(Statistics.of(samples.features, samples.labels))[0]
    assert np.array_equal(counts, counts_of(samples.labels))
    weighed = counts * repeats(counts)
    assert weighed[counts > 0].min() > 0.6 * weighed.max()
