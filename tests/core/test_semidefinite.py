"""Sums of true samples always pass; a matrix with a negative direction does not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.samples import Features, Labels, Space
from fedgram.core.semidefinite import can_be_sums, lowest_accepted, shift
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError

LETTERS = tuple("abcdefghij")


@st.composite
def true_sums(draw):
    """Return statistics of samples that are as awkward as samples can be."""
    bound = draw(st.sampled_from([1, 7, 127, 32767]))
    width, count = draw(st.integers(1, 40)), draw(st.integers(0, 60))
    classes = draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rank = draw(st.integers(0, width))
    rows = rng.integers(-bound, bound, (count, width), endpoint=True)
    kind = draw(st.sampled_from(["any", "extreme", "duplicated", "dependent", "tiny"]))
    if kind == "extreme":
        rows = np.where(rows < 0, -bound, bound)
    elif kind == "duplicated" and count:
        rows = rows[rng.integers(max(1, count // 5), size=count) % count]
    elif kind == "dependent":
        rows[:, rank:] = rows[:, :1]  # columns that repeat, or are zero
    elif kind == "tiny":
        rows = np.where(rng.random(rows.shape) < 0.1, np.sign(rows), 0)
    constant = draw(st.sampled_from([0, 1, bound]))
    steps, inputs = ("input(any)",), 0
    if constant:
        rows[:, -1], inputs = constant, width
    space = Space(width=width, bound=bound, inputs=inputs, steps=steps)
    labels = Labels(rng.integers(classes, size=count), LETTERS[:classes])
    return Statistics.of(Features(rows, space), labels)


@given(sums=true_sums(), times=st.sampled_from([1, 3, 10**6, 10**9]))
def test_the_sums_of_any_samples_pass_however_often_they_are_repeated(sums, times):
    if sums.count * times <= sums.space.most_samples:
        repeated = {name: getattr(sums, name) * times for name in sums.summed_fields()}
        replace(sums, **repeated).validate()


@given(parts=st.lists(st.integers(1, 9), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_totals_pass_and_so_does_what_is_left_of_them(parts, seed):
    rng = np.random.default_rng(seed)
    space = Space(width=6, bound=127, inputs=6, steps=("input(6)",))
    found = []
    for count in parts:
        rows = rng.integers(-127, 127, (count, 6), endpoint=True)
        rows[:, -1] = 21
        labels = Labels(rng.integers(3, size=count), LETTERS[:3])
        found.append(Statistics.of(Features(rows, space), labels))
    total = sum(found)
    total.validate()
    (total - found[0]).validate()
    with pytest.raises(DataError):
        (found[0] - total).validate()


@pytest.mark.parametrize(("width", "count"), [(600, 1), (600, 30), (600, 599), (300, 4000)])
@pytest.mark.parametrize("bound", [127, 32767])
def test_wide_and_long_sums_pass(width, count, bound):
    rng = np.random.default_rng(width + count)
    rows = rng.integers(-bound, bound, (count, width), endpoint=True)
    labels = Labels(rng.integers(10, size=count), LETTERS)
    Statistics.of(Features(rows, Space(width=width, bound=bound)), labels).validate()


@pytest.mark.parametrize("count", [1, 20, 5000])
def test_sums_of_floats_pass_although_they_are_rounded(count):
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(count, 30)) * 10.0 ** rng.integers(-9, 9, 30)
    rows[:, 20:] = rows[:, :10]
    labels = Labels(rng.integers(3, size=count), LETTERS[:3])
    Statistics.of(Features(rows, Space(width=30)), labels).validate()


def packed(matrix):
    return matrix[np.triu_indices(len(matrix))]


def test_a_matrix_that_passes_cauchy_schwarz_is_refused_for_its_negative_direction():
    # Three features, each pair with a correlation of -0.9: their sum would have a negative square.
    gram = np.full((3, 3), -90_000) + np.diag([190_000] * 3)
    assert (gram**2 <= np.outer(np.diag(gram), np.diag(gram))).all()
    assert not can_be_sums(packed(gram), np.zeros((3, 0)), np.zeros(0))
    space = Space(width=3, bound=127)
    sums = Statistics(
        count=100,
        energy=100,
        gram=packed(gram),
        moment=np.zeros((3, 2), np.int64),
        space=space,
        classes=("a", "b"),
    )
    with pytest.raises(DataError, match="not positive semi-definite"):
        sums.validate()


def test_class_sums_that_no_targets_can_have_are_refused_although_the_gram_matrix_is_true():
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 127, (50, 8), endpoint=True)
    space = Space(width=8, bound=127)
    sums = Statistics.of(Features(rows, space), Labels(rng.integers(2, size=50), ("a", "b")))
    sums.validate()
    # Half of what Cauchy-Schwarz allows, in two features at once.
    moment = sums.moment.copy()
    moment[:, 0] = 0.8 * np.sqrt(sums.diagonal() * 50.0)
    with pytest.raises(DataError, match="not positive semi-definite"):
        replace(sums, moment=moment).validate()


@given(width=st.integers(2, 60), rank=st.integers(1, 60), seed=st.integers(0, 10**6))
def test_what_passes_has_no_eigenvalue_below_the_bound(width, rank, seed):
    """Plant a smallest eigenvalue: zero passes, one beyond the stated bound does not."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(min(rank, width - 1), width))
    gram = rows.T @ rows + np.diag(rng.uniform(0.5, 1, width))
    sizes = np.sqrt(np.diag(gram))
    values, vectors = np.linalg.eigh(gram / np.outer(sizes, sizes))

    def passes(smallest):
        planted = (vectors * np.array([smallest, *values[1:]])) @ vectors.T
        return can_be_sums(packed(planted), np.zeros((width, 0)), np.zeros(0))

    assert passes(0.0)
    assert not passes(1.5 * lowest_accepted(width, 0))


def test_without_the_shift_true_sums_would_be_refused(monkeypatch):
    rng = np.random.default_rng(1)
    rows = np.repeat(rng.integers(-127, 127, (5, 40), endpoint=True), 3, axis=0)
    sums = Statistics.of(
        Features(rows, Space(width=40, bound=127)), Labels(np.zeros(15, int), ("a",))
    )
    sums.validate()
    monkeypatch.setattr("fedgram.core.semidefinite.shift", lambda *_: 0.0)
    with pytest.raises(DataError, match="semi-definite"):
        sums.validate()


def test_the_bound_is_small_at_every_width_in_use():
    assert -4e-9 < lowest_accepted(1281, 100) < 0
    assert -4e-8 < lowest_accepted(4096, 100) < 0
    assert lowest_accepted(1281, 100) == -2 * shift(1281, 100, 2 * 1281.0)
