"""Frames of pandas and polars that would give wrong results are refused by name."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import fedgram as fg
from fedgram.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 9))
Y = np.where(X[:, 0] > 0, "yes", "no")
IDS = np.array(["north", "south"])[np.arange(60) % 2]
NAMES = [f"c{k}" for k in range(9)]


def frame():
    return pd.DataFrame(X, columns=NAMES)


def model_of(data):
    return fg.run("afl", fg.federate(data)).models["north"]


def test_two_columns_of_one_name_are_refused():
    """A model finds columns by their names, and would take the second one twice."""
    twice = pd.DataFrame(X, columns=["a", "a", *NAMES[2:]])
    words = "columns: expected a different name for each column, got 'a' twice; rename"
    with pytest.raises(DataError, match=words):
        fg.Dataset(twice, Y)
    model = model_of(fg.Dataset(frame(), Y, IDS))
    new = frame().assign(other=1.0)
    with pytest.raises(DataError, match=r"X: expected a different name .* got 'c0' twice"):
        model.predict(pd.concat([new, new[["c0"]]], axis=1))
    both = pd.concat([new, new[["other"]]], axis=1)  # of no column of the model
    np.testing.assert_array_equal(model.predict(both), model.predict(frame()))


@pytest.mark.parametrize("argument", ["y", "clients"])
def test_an_index_in_another_order_is_refused(argument):
    given = {"y": pd.Series(Y), "clients": pd.Series(IDS)}
    shuffled = given | {argument: given[argument].sample(frac=1, random_state=0)}
    words = rf"{argument}: expected the index of X, got the same index in another order; use"
    with pytest.raises(DataError, match=words):
        fg.Dataset(frame(), **shuffled)
    again = shuffled | {argument: shuffled[argument].loc[frame().index]}
    by_place = given | {argument: given[argument].set_axis(np.arange(60) + 1000)}
    for fine in (again, by_place):
        data = fg.Dataset(frame(), **fine)
        np.testing.assert_array_equal(data.y, fg.Dataset(X, Y).y)
        assert data.client.tolist() == IDS.tolist()


def test_rows_of_a_frame_with_any_index_are_taken_by_place():
    some = frame().set_index(RNG.permutation(60) + 7)
    expected = fg.Dataset(X, Y, IDS)
    data = fg.Dataset(some, pd.Series(Y, index=some.index), pd.Series(IDS, index=some.index))
    np.testing.assert_array_equal(data.x, expected.x)
    np.testing.assert_array_equal(data.y, expected.y)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda: pd.Timestamp("2020-01-01"), "datetime64"),
        (lambda: pd.Timedelta("1D"), "timedelta64"),
        (lambda: pd.Categorical(list("mf") * 30), "category"),
        (lambda: [str(k) for k in range(60)], "str|object"),
    ],
)
def test_a_column_of_no_numbers_is_named(made, kind):
    with pytest.raises(DataError, match=rf"X: column 'more': expected numbers, got ({kind}).*;"):
        fg.Dataset(frame().assign(more=made()), Y)


def test_a_lazy_frame_has_no_values_yet():
    lazy = pl.DataFrame(X, schema=NAMES).lazy()
    with pytest.raises(DataError, match=r"X: expected values, got a LazyFrame; use X.collect\(\)"):
        fg.Dataset(lazy, Y)
    model = model_of(fg.Dataset(lazy.collect(), pl.Series(Y), pl.Series(IDS)))
    with pytest.raises(DataError, match="X: expected values, got a LazyFrame"):
        model.predict(lazy)
    assert model.predict(lazy.collect()).tolist() == model.predict(X).tolist()


def test_arrays_of_other_kinds_are_refused_by_name():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(DataError, match=r"X: expected a dense array, .* use X.toarray\(\)"):
        fg.Dataset(sparse.csr_array(X), Y)
    with pytest.raises(DataError, match="X: expected samples by features, got a structured array"):
        fg.Dataset(frame().to_records(index=False), Y)


def test_columns_that_are_far_from_zero_are_a_warning():
    words = r"data: 9 of 9 columns are far from zero, such as column 'c0' with mean"
    far = frame() + 12
    with pytest.warns(UserWarning, match=words):
        fg.federate(fg.Dataset(far, Y, IDS))
    for fine in (frame() + 2, far):
        chosen = None if fine is not far else True
        fg.federate(fg.Dataset(fine, Y, IDS, standardize=chosen))  # warnings are errors in tests
