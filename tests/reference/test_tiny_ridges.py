"""Tiny ridges and dependent features: a right model or a refusal."""

import numpy as np
import pytest

from fedgram import Lift
from fedgram.errors import SolveError
from fedgram.methods.afl import AFL

REFUSED, SOLVED = (1e-15, 1e-14), (1e-11, 1e-8, 1e-6, 1e-3, 1.0)
LIFT = Lift(width=160)  # more features than samples
CLIENTS, SAMPLES = 5, 80


@pytest.fixture
def wide_sites(gridded, dealt):
    return dealt(gridded(SAMPLES, 13, 5), np.arange(SAMPLES) % CLIENTS)


@pytest.fixture
def outputs(gridded, pairs, wide_sites):
    """Return a function from a ridge to unseen rows and what ridge regression predicts for them.

    From the products of samples, not of features: that matrix has full rank, so nothing is lost
    however small the ridge is.
    """
    unseen = LIFT(gridded(200, 13, 5).features).real()
    rows, labels = (np.concatenate(part) for part in zip(*pairs(wide_sites, LIFT), strict=True))
    products = rows @ rows.T
    assert np.linalg.matrix_rank(products) == len(rows) < rows.shape[1]

    def predicted(ridge):
        weights = np.linalg.solve(products + ridge * np.eye(len(rows)), labels)
        return unseen, unseen @ rows.T @ weights

    return predicted


@pytest.mark.parametrize("ridge", SOLVED)
def test_a_head_with_a_tiny_ridge_is_right(wide_sites, fitted, outputs, ridge):
    unseen, expected = outputs(ridge)
    head = fitted(AFL(ridge=ridge, lift=LIFT), wide_sites).weights
    assert np.abs(unseen @ head - expected).max() < 0.01


@pytest.mark.parametrize("ridge", REFUSED)
def test_a_smaller_ridge_is_refused(wide_sites, fitted, ridge):
    with pytest.raises(SolveError, match="singular"):
        fitted(AFL(ridge=ridge, lift=LIFT), wide_sites)


def test_what_is_refused_would_be_wrong(wide_sites, pairs, outputs):
    """The same equations without the check: numpy solves them, and says nothing."""
    unseen, expected = outputs(REFUSED[0])
    plain = pairs(wide_sites, LIFT)
    gram = sum(x.T @ x for x, _ in plain) + REFUSED[0] * np.eye(unseen.shape[1])
    head = np.linalg.solve(gram, sum(x.T @ y for x, y in plain))
    assert np.abs(unseen @ head - expected).max() > 0.1
