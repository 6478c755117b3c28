"""Samples are left out by their content: the same ones whoever holds them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fedgram import Features, Grid, Labels, Samples
from fedgram.checks.federations import digits
from fedgram.core.samples import concatenate
from fedgram.selection.holdout import CHEAP, FOLDS, PARTS, SMALL, content_hashes, folds, folds_for

# No shrinking: planted failures would be shrunk at every run.
EXAMPLES = settings(phases=(Phase.explicit, Phase.generate))
GRIDS = {"int8": Grid(bits=8), "int16": Grid(bits=12), "float64": Grid(bits="off")}


@pytest.fixture(scope="module", params=GRIDS)
def samples(request, gridded):
    made = gridded(300, 6, 4, grid=GRIDS[request.param])
    assert made.features.values.dtype == request.param
    return made


def the_same_samples_are_left_out(chosen, samples):
    """A law of a function that gives every sample its fold, at the client of that number."""
    whole = chosen(samples, 0)

    @EXAMPLES
    @given(st.integers(0, 2**32), st.integers(1, 60))
    def law(seed, clients):
        order = np.random.default_rng(seed).permutation(len(samples))
        for client, part in enumerate(np.array_split(order, clients)):
            assert np.array_equal(chosen(samples.take(part), client), whole[part])

    law()


@pytest.mark.parametrize("number", [0, 1, 5])
def test_the_same_samples_are_left_out_for_any_split_and_order(samples, number):
    the_same_samples_are_left_out(lambda some, _: folds(some, number), samples)


def by_client(some, client):
    return np.where(np.random.default_rng(client).random(len(some)) < 0.1, 0, -1)


def by_place(some, _):
    return np.where(np.arange(len(some)) % 10, -1, 0)


def by_address(some, _):
    return np.array([id(row) // 16 % 10 for row in some.features.values])


@pytest.mark.parametrize("broken", [by_client, by_place, by_address])
def test_the_law_fails_on_a_choice_by_anything_else(gridded, broken):
    with pytest.raises(AssertionError):
        the_same_samples_are_left_out(broken, gridded(300, 6, 4))


def test_copies_stay_together(samples):
    twice = concatenate([samples, samples.take(slice(None, None, -1))])
    hashes = content_hashes(twice)
    assert np.array_equal(hashes[: len(samples)], hashes[len(samples) :][::-1])
    for number in (1, 5):
        place = folds(twice, number)
        assert np.array_equal(place[: len(samples)], place[len(samples) :][::-1])


def test_samples_that_differ_have_other_hashes(samples):
    assert len(np.unique(content_hashes(samples))) == len(samples)


def test_another_label_is_another_sample(samples):
    classes = len(samples.labels.classes)
    other = Labels((samples.labels.codes + 1) % classes, samples.labels.classes)
    changed = content_hashes(replace(samples, labels=other))  # of the very same rows
    assert not (changed == content_hashes(samples)).any()
    assert np.array_equal(content_hashes(samples), content_hashes(samples.take(slice(None))))


def test_a_class_counts_by_its_name(samples):
    names = samples.labels.classes[::-1]
    turned = replace(samples, labels=samples.labels.relabel(names))
    assert not np.array_equal(turned.labels.codes, samples.labels.codes)
    assert np.array_equal(content_hashes(turned), content_hashes(samples))
    renamed = Labels(samples.labels.codes, tuple(f"other {name}" for name in names))
    assert not (content_hashes(replace(samples, labels=renamed)) == content_hashes(samples)).any()


def test_one_step_of_one_feature_is_another_sample(samples):
    values = samples.features.values.copy()
    values[:, 2] = np.where(values[:, 2] > 0, values[:, 2] - 1, values[:, 2] + 1)
    moved = Samples(Features(values, samples.features.space), samples.labels)
    assert not (content_hashes(moved) == content_hashes(samples)).any()


def test_the_layout_of_rows_in_memory_does_not_matter(samples):
    for values in (
        np.asfortranarray(samples.features.values),
        samples.features.values.astype(samples.features.values.dtype.newbyteorder(">")),
        np.repeat(samples.features.values, 2, axis=0)[::2],
    ):
        again = Samples(Features(values, samples.features.space), samples.labels)
        assert np.array_equal(content_hashes(again), content_hashes(samples))


def test_hashes_are_the_same_in_every_version():
    """Clients with other versions must leave out the same samples."""
    rows = Grid()(np.array([[3.0, 4.0], [0.0, -1.0]]))
    two = Samples(rows, Labels(np.array([0, 1]), ("no", "yes")))
    assert content_hashes(two).tolist() == [-5615085240809586569, -1569541514508531550]


def test_about_a_tenth_is_left_out():
    place = folds(digits(), 1)
    assert set(place) == {-1, 0}
    share, spread = (place == 0).mean(), (0.1 * 0.9 / len(place)) ** 0.5
    assert abs(share - 1 / PARTS) < 4 * spread


@pytest.mark.parametrize("number", [2, 5, 10])
def test_more_folds_leave_out_every_sample_once(number):
    place = folds(digits(), number)
    assert set(place) == set(range(number))
    sizes = np.bincount(place)
    share = 1 / number
    assert (np.abs(sizes / len(place) - share) < 4 * (share / len(place)) ** 0.5).all()


def test_without_folds_none_is_left_out(samples):
    assert (folds(samples, 0) == -1).all()


def test_no_samples_have_no_folds(samples):
    for number in (0, 1, 5):
        assert folds(samples.take([]), number).shape == (0,)


@pytest.mark.parametrize(
    ("count", "weights", "number"),
    [
        (SMALL - 1, 10**9, FOLDS),
        (SMALL, CHEAP, FOLDS),
        (SMALL, CHEAP + 1, 1),
        (10**9, CHEAP, FOLDS),
    ],
)
def test_few_samples_or_weights_are_all_left_out_once(count, weights, number):
    assert folds_for(count, weights) == number
