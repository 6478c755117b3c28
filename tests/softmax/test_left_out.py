"""Own softmax parts of many clients: those of each client alone, to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram.softmax import left_out
from fedgram.softmax.left_out import FoldLogits, left_out_logits
from fedgram.softmax.personal import OwnRows

STRENGTHS = (0.0, 60.0, 2.0, 0.3)


def client(samples, *, features=6, classes=3, number=5, seed=0, narrow=None):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(samples, features))
    if samples < features if narrow is None else narrow:
        rows = rows.astype(np.float32)
    fold = rng.integers(-1 if number == 1 else 0, number, samples)
    logits = {k: 9 * rng.normal(size=(samples, classes)) for k in set(fold.tolist()) - {-1}}
    targets = np.eye(classes)[rng.integers(0, classes, samples)]
    return FoldLogits(rows=rows, targets=targets, fold=fold, logits=logits)


def one_by_one(own):
    """The formula, part by part."""
    found = np.zeros((len(STRENGTHS), *own.targets.shape), np.float32)
    for number, logits in own.logits.items():
        out, rest = np.flatnonzero(own.fold == number), np.flatnonzero(own.fold != number)
        for place, strength in enumerate(STRENGTHS):
            found[place, out] = logits[out]
            if strength:
                fitted = OwnRows.of(own.rows[rest])
                added = fitted.weights(logits[rest], own.targets[rest], strength=strength)
                found[place, out] += (own.rows[out] @ added).astype(np.float32)
    return found


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=7),
    number=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 99),
    classes=st.sampled_from([1, 2, 3, 11]),
)
def test_logits_do_not_depend_on_the_other_clients(sizes, number, seed, classes):
    clients = [
        client(size, number=number, seed=seed + k, classes=classes)
        for k, size in enumerate([*sizes, sizes[0]])
    ]
    together = left_out_logits(clients, STRENGTHS)
    backwards = left_out_logits(clients[::-1], STRENGTHS)[::-1]
    for own, found, again in zip(clients, together, backwards, strict=True):
        assert np.array_equal(found, one_by_one(own))
        assert np.array_equal(found, again)
        assert np.array_equal(found, left_out_logits([own], STRENGTHS)[0])


@pytest.mark.parametrize("entries", [1, 300, 2**18])
def test_stacks_of_any_size_give_the_same(monkeypatch, entries):
    clients = [client(9, seed=k) for k in range(8)] + [client(40, seed=9)]
    expected = [one_by_one(own) for own in clients]
    monkeypatch.setattr(left_out, "_ENTRIES_AT_A_TIME", entries)
    for found, wanted in zip(left_out_logits(clients, STRENGTHS), expected, strict=True):
        assert np.array_equal(found, wanted)


def test_samples_of_no_fold_and_clients_without_samples():
    own = client(20, number=1)
    (found,) = left_out_logits([own], STRENGTHS)
    assert not found[:, own.fold < 0].any()
    assert found[:, own.fold == 0].any()
    (empty,) = left_out_logits([client(0)], STRENGTHS)
    assert empty.shape == (4, 0, 3)


def test_a_step_is_rejected_for_its_client_alone():
    """One client's loss rises at the usual curvature: the others keep their steps."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(4, 30, 5))
    logits = np.zeros((4, 30, 2))
    logits[1:] = 8 * rng.normal(size=(3, 30, 2))
    targets = np.eye(2)[rng.integers(0, 2, (4, 30))]
    own = OwnRows.of(rows)
    found = own.corrections(logits, targets, [1e-3, 5.0])
    for k in range(4):
        for place, strength in enumerate([1e-3, 5.0]):
            alone = OwnRows.of(rows[k]).weights(logits[k], targets[k], strength=strength)
            assert np.array_equal(found[k, place], alone)
