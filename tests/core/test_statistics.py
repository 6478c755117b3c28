"""Statistics and tallies, against sums written out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram import Features, Grid, Labels, Lift, Space, Statistics, Tally
from fedgram.core.tally import HISTOGRAM_BINS, worst_decile
from fedgram.errors import DataError, FedgramError, MismatchError

SPACE = Space(width=3, unit=0.5, bound=127)
CLASSES = ("a", "b")


def features(rows, space=SPACE):
    return Features(np.array(rows, np.int8).reshape(-1, space.width), space)


def labels(*codes, classes=CLASSES):
    return Labels(np.array(codes, np.int64), classes)


def slow(samples):
    """Sum in Python integers, one product at a time."""
    rows, codes = samples.features.values.tolist(), samples.labels.codes.tolist()
    width, classes = samples.features.space.width, len(samples.labels.classes)
    gram = [sum(row[i] * row[j] for row in rows) for i in range(width) for j in range(i, width)]
    moment = [
        [
            sum(r[i] for r, code in zip(rows, codes, strict=True) if code == c)
            for c in range(classes)
        ]
        for i in range(width)
    ]
    return gram, moment


@pytest.mark.parametrize("lift", [Lift(), Lift(width=6, activation="tanh")], ids=["plain", "lift"])
@pytest.mark.parametrize("bits", [2, 8, 9, 16])
def test_statistics_are_the_sums_of_python_integers(gridded, bits, lift):
    samples = gridded(70, 5, 3, grid=Grid(bits=bits), lift=lift)
    total = Statistics.of(samples.features, samples.labels)
    gram, moment = slow(samples)
    assert total.gram.tolist() == gram
    assert total.moment.tolist() == moment
    assert (total.gram.dtype, total.moment.dtype) == (np.int64, np.int64)
    assert (total.count, total.energy) == (70, 70)
    assert total.space == samples.features.space
    assert total.classes == samples.labels.classes


def test_float_statistics_are_float64_sums(gridded):
    samples = gridded(50, 4, 3, grid=Grid(bits="off"))
    total = Statistics.of(samples.features, samples.labels)
    rows = samples.features.values
    assert np.allclose(total.gram, (rows.T @ rows)[np.triu_indices(5)], rtol=1e-13)
    assert np.allclose(total.moment, rows.T @ samples.labels.onehot(), rtol=1e-13)
    assert total.gram.dtype == np.float64


@pytest.mark.parametrize("batch", [1, 7, 69, 70, 500])
def test_a_stream_is_its_whole(gridded, batch):
    samples = gridded(70, 5, 3)
    stream = (
        (samples.features.take(slice(s, s + batch)), samples.labels.take(slice(s, s + batch)))
        for s in range(0, 70, batch)
    )
    assert Statistics.over(stream) == Statistics.of(samples.features, samples.labels)


def test_an_empty_stream_is_zero_and_an_empty_batch_is_nothing():
    assert Statistics.over([]) == Statistics.zero()
    nothing = Statistics.of(features([]), labels())
    something = Statistics.of(features([[1, 2, 3]]), labels(1))
    assert nothing.count == 0
    assert nothing + something == something


def test_one_sample_of_one_class_and_an_absent_class_work():
    total = Statistics.of(features([[1, -2, 3]]), labels(1))
    assert total.gram.tolist() == [1, -2, 3, 4, -6, 9]
    assert total.moment.tolist() == [[0, 1], [0, -2], [0, 3]]


def test_batches_of_other_spaces_and_class_lists_are_refused():
    first = (features([[1, 2, 3]]), labels(0))
    other = replace(SPACE, steps=("grid(4 bits)",))
    with pytest.raises(MismatchError, match=r"grid\(4 bits\) on one side only"):
        Statistics.over([first, (features([[1, 2, 3]], other), labels(0))])
    with pytest.raises(MismatchError, match="class lists"):
        Statistics.over([first, (features([[1, 2, 3]]), labels(0, classes=("b", "a")))])


@pytest.mark.parametrize("codes", [(), (1,), (1, 0), (1, 0, 1, 0)])
def test_as_many_labels_as_rows_are_wanted(codes):
    with pytest.raises(DataError, match="3"):
        Statistics.of(features([[1, 2, 3]] * 3), labels(*codes))


def test_statistics_of_a_shape_that_does_not_fit_their_space_are_refused():
    good = Statistics.of(features([[1, 2, 3]]), labels(1))
    for wrong in ({"gram": np.array([1])}, {"moment": np.array([[1, 2]])}):
        with pytest.raises(FedgramError):
            _ = good + replace(good, **wrong)


def test_a_client_that_leaves_was_never_there(gridded):
    samples = gridded(60, 5, 3)
    shares = [samples.take(slice(s, s + 20)) for s in (0, 20, 40)]
    one, two, three = (Statistics.of(s.features, s.labels) for s in shares)
    assert (one + two + three - two).digest() == (three + one).digest()


def test_the_digest_tells_everything_apart():
    total = Statistics.of(features([[1, 2, 3]]), labels(1))
    others = [
        total + total,
        -total,
        replace(total, energy=2),
        replace(total, classes=("b", "a")),
        replace(total, space=replace(SPACE, unit=0.25)),
        replace(total, space=replace(SPACE, steps=("lift",))),
        replace(total, gram=total.gram[::-1].copy()),
    ]
    assert len({s.digest() for s in [total, *others]}) == len(others) + 1


def test_the_digest_does_not_depend_on_how_classes_are_listed():
    there = Statistics.of(features([[1, -2, 3], [4, 5, -6]]), labels(0, 1))
    here = Statistics.of(features([[1, -2, 3], [4, 5, -6]]), labels(1, 0, classes=("b", "a")))
    assert there != here
    assert there.digest() == here.digest()
    assert there == here.with_classes(("a", "b"))


def test_arranging_adds_and_drops_empty_classes_only():
    total = Statistics.of(features([[1, -2, 3], [4, 5, -6]]), labels(0, 1))
    wider = total.with_classes(("c", "b", "a"))
    assert wider.moment.tolist() == [[0, 4, 1], [0, 5, -2], [0, -6, 3]]
    assert wider.with_classes(("a", "b")) == total
    with pytest.raises(MismatchError, match="class 'a' has samples"):
        wider.with_classes(("b", "c"))


# Tallies.


def tally(correct, samples, classes=CLASSES, **more):
    """A client with the first so many samples right; all are of the first class."""
    guess = np.array([0] * correct + [1] * (samples - correct))
    return Tally.of(guess, Labels(np.zeros(samples, np.int64), classes), **more)


def test_a_tally_counts_one_client():
    truth = labels(0, 0, 0, 1)
    one = Tally.of(np.array([0, 0, 1, 0]), truth, global_accuracy=0.25)
    assert (one.clients, one.clients_without_test, one.samples, one.correct) == (1, 0, 4, 2)
    assert (one.accuracies, one.global_accuracy_sum) == (5 * 10**11, 25 * 10**10)
    assert np.flatnonzero(one.histogram).tolist() == [50]
    assert one.class_samples.tolist() == [3, 1]
    assert one.class_correct.tolist() == [2, 0]


def test_means_are_over_clients_samples_and_classes():
    total = tally(1, 1, global_accuracy=0.5) + tally(0, 3, global_accuracy=0.7)
    assert total.client_mean == 0.5
    assert total.sample_mean == 0.25
    assert total.global_mean == pytest.approx(0.6)
    assert total.balanced == 0.25  # the class that nobody has does not count


def test_a_client_without_test_samples_counts_as_untested():
    nobody = Tally.of(np.zeros(0, np.int64), labels(), global_accuracy=1.0)
    assert (nobody.clients, nobody.clients_without_test) == (1, 1)
    assert not nobody.histogram.any()
    assert (nobody + tally(1, 2)).client_mean == 0.5
    assert np.isnan(nobody.client_mean)
    assert np.isnan(nobody.balanced)
    assert np.isnan(nobody.worst_decile)


def test_the_sum_of_accuracies_is_exact_whatever_the_order():
    clients = [tally(k, 7) for k in range(8)] * 5
    forward, backward = sum(clients), sum(reversed(clients))
    assert forward == backward
    assert forward.client_mean == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [([0.3], 0.3), ([1.0] * 9 + [0.2], 0.2), ([1.0] * 9 + [0.2, 0.4], 0.3), ([0.5] * 40, 0.5)],
)
def test_the_worst_decile_is_the_mean_of_the_lowest_tenth(accuracies, expected):
    assert worst_decile(np.array(accuracies)) == pytest.approx(expected)


def test_the_worst_decile_of_a_tally_comes_from_its_histogram():
    total = sum([tally(1, 4), tally(2, 4), *(tally(4, 4) for _ in range(18))])
    assert total.histogram.sum() == 20
    assert len(total.histogram) == HISTOGRAM_BINS
    assert total.worst_decile == pytest.approx((0.25 + 0.5) / 2)


def test_an_empty_tally_has_no_means():
    zero = Tally.zero()
    means = [zero.client_mean, zero.sample_mean, zero.global_mean, zero.worst_decile]
    assert np.isnan([*means, zero.balanced]).all()
