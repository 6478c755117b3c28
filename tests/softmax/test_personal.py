"""A client's own softmax head: the minimum of what it claims to minimize."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize

from fedgram.methods._pooling import STRENGTHS
from fedgram.softmax import personal
from fedgram.softmax.personal import OwnRows, softmax

OWN = [strength for strength in STRENGTHS if strength]
# Samples, features, classes, share of random labels, size of the shared head's logits.
CLIENTS = {
    "few samples": (12, 30, 4, 0.2, 2.0),
    "as many as features": (30, 30, 4, 0.2, 2.0),
    "many samples": (200, 30, 4, 0.2, 2.0),
    "two classes that are hard to tell apart": (500, 30, 2, 0.5, 0.0),
    "three classes at random": (300, 20, 3, 1.0, 0.0),
    "a shared head that is surely wrong": (300, 20, 2, 0.5, 8.0),
}


def client(samples, features, classes, noise, size):
    rng = np.random.default_rng(0)
    rows = np.hstack([rng.normal(size=(samples, features - 1)), np.ones((samples, 1))])
    shared = rng.normal(size=(features, classes)) / np.sqrt(features)
    codes = (rows @ shared).argmax(axis=1)
    codes = np.where(rng.random(samples) < noise, rng.integers(classes, size=samples), codes)
    return rows, size * rows @ shared, np.eye(classes)[codes]


def objective(rows, logits, targets, strength):
    """Return the penalized loss with its slope as a function of the added weights."""

    def at(flat):
        weights = flat.reshape(rows.shape[1], -1)
        moved = logits + rows @ weights
        top = moved.max(axis=1)
        loss = np.sum(top + np.log(np.exp(moved - top[:, None]).sum(axis=1)))
        loss += strength / 2 * np.sum(weights**2) - np.sum(moved * targets)
        slope = rows.T @ (softmax(moved) - targets) + strength * weights
        return loss, slope.ravel()

    return at


def minimum(rows, logits, targets, strength):
    found = scipy.optimize.minimize(
        objective(rows, logits, targets, strength),
        np.zeros(rows.shape[1] * targets.shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "ftol": 1e-16, "gtol": 1e-10},
    )
    return found.x.reshape(rows.shape[1], -1), found.fun


def apart(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("strength", [0.5, 5.0, 100.0])
def test_the_dual_and_the_primal_form_agree(kind, strength):
    rows, logits, targets = client(*CLIENTS[kind])
    one = OwnRows.of(rows)
    assert one.dual == (len(rows) < rows.shape[1])
    # Features of zeros make a client have fewer samples than features, and change nothing else.
    wide = OwnRows.of(np.hstack([rows, np.zeros((len(rows), len(rows) + 1))]))
    padded = np.vstack([rows, np.zeros((rows.shape[1] + 1, rows.shape[1]))])
    more = np.zeros((rows.shape[1] + 1, targets.shape[1]))
    long = OwnRows.of(padded)
    assert wide.dual
    assert not long.dual
    dual = wide.weights(logits, targets, strength=strength)
    assert not dual[rows.shape[1] :].any()
    # Rows of zeros say nothing about weights, whatever their class.
    certain = np.vstack([logits, more]), np.vstack([targets, np.eye(targets.shape[1])[0] + more])
    primal = long.weights(*certain, strength=strength)
    assert apart(dual[: rows.shape[1]], primal) < 1e-8
    assert apart(one.weights(logits, targets, strength=strength), primal) < 1e-8


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("share", OWN)
def test_more_steps_end_in_the_minimum(monkeypatch, kind, share):
    rows, logits, targets = client(*CLIENTS[kind])
    strength = share * rows.shape[1]
    monkeypatch.setattr(personal, "STEPS", 600)
    found = OwnRows.of(rows).weights(logits, targets, strength=strength)
    assert apart(found, minimum(rows, logits, targets, strength)[0]) < 1e-4


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("share", OWN)
def test_the_usual_steps_come_near(kind, share):
    """Eight steps are no full fit where the own part is held weakly, but most of the way."""
    rows, logits, targets = client(*CLIENTS[kind])
    strength = share * rows.shape[1]
    found = OwnRows.of(rows).weights(logits, targets, strength=strength)
    best, least = minimum(rows, logits, targets, strength)
    loss = objective(rows, logits, targets, strength)
    gained = loss(np.zeros(best.size))[0] - loss(found.ravel())[0]
    assert gained > 0.97 * (loss(np.zeros(best.size))[0] - least)
    assert apart(found, best) < {2.4: 3e-2, 0.24: 0.15}.get(share, 0.3)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("strength", [1e-3, 0.5, 50.0])
def test_the_loss_never_rises(monkeypatch, kind, strength):
    rows, logits, targets = client(*CLIENTS[kind])
    loss = objective(rows, logits, targets, strength)
    values = [loss(np.zeros(rows.shape[1] * targets.shape[1]))[0]]
    for steps in (1, 2, 3, 5, 8, 20):
        monkeypatch.setattr(personal, "STEPS", steps)
        added = OwnRows.of(rows).weights(logits, targets, strength=strength)
        values.append(loss(added.ravel())[0])
    assert (np.diff(values) <= 1e-9 * np.abs(values[:-1])).all()


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("share", OWN)
def test_rows_of_single_precision_give_nearly_the_same(kind, share):
    rows, logits, targets = client(*CLIENTS[kind])
    strength = share * rows.shape[1]
    double, single = (
        OwnRows.of(rows.astype(kind)).weights(logits, targets, strength=strength)
        for kind in (np.float64, np.float32)
    )
    assert (double.dtype, single.dtype) == (np.float64, np.float32)
    assert 0 < apart(single, double) < 1e-4


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_huge_strength_adds_nothing(kind):
    rows, logits, targets = client(*CLIENTS[kind])
    added = OwnRows.of(rows).weights(logits, targets, strength=1e14)
    assert np.abs(added).max() < 1e-9


def test_a_client_without_samples_adds_nothing():
    empty = OwnRows.of(np.zeros((0, 7)))
    added = empty.weights(np.zeros((0, 3)), np.zeros((0, 3)), strength=1.0)
    assert added.shape == (7, 3)
    assert not added.any()


def test_logits_that_are_far_out_overflow_nowhere():
    own = OwnRows.of(np.array([[1.0, 2.0, 1.0]]))
    added = own.weights(np.array([[1e5, -1e5]]), np.array([[0.0, 1.0]]), strength=1.0)
    assert np.isfinite(added).all()
    assert added[0, 1] > 0 > added[0, 0]


def test_rows_may_come_in_any_order():
    rows, logits, targets = client(*CLIENTS["many samples"])
    order = np.random.default_rng(1).permutation(len(rows))
    one = OwnRows.of(rows).weights(logits, targets, strength=2.0)
    other = OwnRows.of(rows[order]).weights(logits[order], targets[order], strength=2.0)
    assert apart(other, one) < 1e-8
    assert replace(OwnRows.of(rows)).products.shape == (30, 30)
