"""Standardization by exact sums, and the check that a grid keeps raw columns."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.errors import DataError
from fedgram.features.standardize import (
    ColumnSums,
    Standardization,
    lost_columns,
    public_ranges,
    require_kept,
)


@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 5))
def test_sums_do_not_depend_on_the_partition(seed, clients):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 3)) * 10.0 ** rng.integers(-6, 7, size=3) + rng.normal(size=3)
    ends = x.min(axis=0), x.max(axis=0)
    owner = rng.integers(clients, size=30)
    parts = [ColumnSums.of(x[owner == k], *ends) for k in range(clients)]
    total = sum(parts[1:], start=parts[0])
    whole = ColumnSums.of(x[rng.permutation(30)], *ends)
    assert total == whole
    assert total.mean.tobytes() == whole.mean.tobytes()
    assert total.deviation.tobytes() == whole.deviation.tobytes()
    total.validate()


def test_mean_and_deviation_are_those_of_exact_arithmetic():
    rng = np.random.default_rng(0)
    x = rng.normal(1e9, 1e-3, size=(500, 1))  # of such a column floats lose every digit
    sums = ColumnSums.of(x, x.min(axis=0), x.max(axis=0))
    values = [Fraction(float(value)) for value in x[:, 0]]
    mean = sum(values) / len(values)
    variance = float(sum((value - mean) ** 2 for value in values) / len(values))
    assert sums.mean[0] == pytest.approx(float(mean), rel=1e-15)
    assert sums.deviation[0] == pytest.approx(variance**0.5, rel=1e-6)


def test_a_column_of_equal_values_has_deviation_one():
    scale = Standardization.of(np.array([[5.0, 1.0], [5.0, 3.0]]))
    assert scale.mean.tolist() == [5.0, 2.0]
    assert scale.deviation.tolist() == [1.0, 1.0]


@given(seed=st.integers(0, 2**32 - 1))
def test_shared_ranges_contain_the_columns_and_not_their_exact_ends(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 4)) * 10.0 ** rng.integers(-6, 7, size=4) + rng.normal(size=4)
    least, most = public_ranges(x)
    low, high = x.min(axis=0), x.max(axis=0)
    assert (least < low).all()
    assert (most > high).all()
    assert (most - least <= 3 * (high - low)).all()  # wider ranges would have wider steps
    shifted = np.clip(x, low + 0.001 * (high - low), None)
    assert np.mean(public_ranges(shifted)[0] == least) > 0.5  # other ends, the same range


def test_sums_are_made_in_the_rounded_ranges(monkeypatch):
    x, seen = np.random.default_rng(0).normal(size=(50, 3)), []
    of = ColumnSums.of
    monkeypatch.setattr(ColumnSums, "of", lambda rows, *ends: seen.append(ends) or of(rows, *ends))
    scale = Standardization.of(x)
    (least, most), owner = seen[0], np.arange(50) % 4
    assert not np.isin(x, [least, most]).any()
    total = sum(
        (of(x[owner == k], least, most) for k in range(1, 4)), of(x[owner == 0], least, most)
    )
    assert total.mean.tobytes() == scale.mean.tobytes()
    assert total.deviation.tobytes() == scale.deviation.tobytes()
    assert scale.mean == pytest.approx(x.mean(axis=0), abs=1e-6)


def test_extreme_columns_have_ranges():
    x = np.array([[61.3, -1.7e308, 0.0], [61.3, 1.7e308, 1.7e308]])
    assert np.isfinite(public_ranges(x)).all()
    assert public_ranges(x)[0][0] == public_ranges(x)[1][0] == 61.3


def test_sums_out_of_range_are_refused():
    sums = ColumnSums.of(np.array([[1.0], [2.0]]), np.array([1.0]), np.array([2.0]))
    with pytest.raises(DataError, match=r"ColumnSums\.total"):
        fg.Additive.validate(sums) or ColumnSums(
            count=1, total=sums.total * 4, high=sums.high, low=sums.low, least=(1.0,), most=(2.0,)
        ).validate()


def tables(rng, scales, samples=400):
    y = rng.integers(2, size=samples)
    x = (rng.normal(size=(samples, len(scales))) + 1.5 * y[:, None]) * np.array(scales)
    return x, np.where(y, "ill", "well")


@pytest.mark.parametrize("scales", [[1.0] * 9 + [1000.0], [1e-4, 1e-4, 1e-4, 1.0, 50.0] * 3])
def test_columns_of_different_scales_are_an_error_that_names_the_remedies(scales):
    x, y = tables(np.random.default_rng(0), scales)
    data = fg.Dataset(x, y)
    with pytest.raises(DataError, match=r"columns are lost .* standardize=True .*fedgram features"):
        fg.federate(data, clients=3)
    standard = fg.federate(data, clients=3, standardize=True)
    ruined = fg.federate(data, clients=3, standardize=False)
    good, bad = (fg.run("afl", each).accuracy["sample_mean"] for each in (standard, ruined))
    assert good > 0.9
    assert good >= bad


def test_few_columns_are_a_warning():
    x, y = tables(np.random.default_rng(0), [1.0, 1.0, 1.0])
    with pytest.warns(UserWarning, match=r"3 columns, .* standardize=True"):
        fg.federate(fg.Dataset(x, y), clients=3)
    with pytest.warns(UserWarning, match="3 columns"):
        require_kept(x, fg.Grid(), "x")


@pytest.mark.parametrize("share", [0.3, 0.02])
def test_sparse_columns_and_backbones_with_a_large_feature_are_kept(share):
    rng = np.random.default_rng(0)
    sparse = (rng.random((1000, 300)) < share).astype(float)
    vectors = rng.normal(size=(1000, 300)) * ([30.0] + [1.0] * 299)
    for x in (sparse, vectors):
        assert len(lost_columns(x, fg.Grid())[0]) == 0


def test_the_embedded_data_are_kept():
    assert len(lost_columns(fg.load_dataset("digits").x, fg.Grid())[0]) == 0


def test_test_samples_do_not_change_the_standardization():
    x, y = tables(np.random.default_rng(0), [1.0] * 9)
    split = np.arange(len(x)) % 4 // 3 * 2
    moved = np.where(split[:, None] == 2, 1e3 * x, x)
    one, other = (
        fg.federate(fg.Dataset(each, y, split=split), clients=3, standardize=True).made.inputs
        for each in (x, moved)
    )
    assert one.standardization.backbone == other.standardization.backbone


def test_the_partition_changes_no_standardized_total():
    x, y = tables(np.random.default_rng(0), [1.0, 10.0, 1e3, 1e6])
    data = fg.Dataset(x, y, standardize=True)
    digests = {
        fg.run("afl", fg.federate(data, clients=clients, partition=partition)).shared_digest
        for clients, partition in ((2, "iid"), (7, "dirichlet"), (5, "shards"))
    }
    assert len(digests) == 1


def test_breast_cancer_is_learned_from_raw_columns():
    datasets = pytest.importorskip("sklearn.datasets")
    cancer = datasets.load_breast_cancer()
    data = fg.Dataset(cancer.data, cancer.target, standardize=True)
    result = fg.run("afl", fg.federate(data, clients=5, partition="iid"))
    assert result.accuracy["sample_mean"] > 0.95
