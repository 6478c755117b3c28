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
    for estimator, truth in ((fg.FederatedClassifier, Y), (fg.FederatedRegressor, X[:, 0])):
        fitted = estimator("afl")
        given = {"y": pd.Series(truth), "groups": pd.Series(IDS)}
        name = "groups" if argument == "clients" else argument
        given[name] = given[name].sample(frac=1, random_state=0)
        with pytest.raises(ValueError, match=f"{name}: expected the index of X, got the same"):
            fitted.fit(frame(), **given)


def test_estimators_refuse_columns_by_name():
    twice = pd.DataFrame(X, columns=["a", "a", *NAMES[2:]])
    words = frame().assign(sex="f")
    for made, text in ((twice, "got 'a' twice"), (words, "X: column 'sex': expected numbers")):
        with pytest.raises(ValueError, match=text):
            fg.FederatedClassifier("afl").fit(made, Y, groups=IDS)


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


def test_outputs_of_a_regression_are_numbers_of_any_type():
    x, y = X, X[:, 0]
    expected = fg.Dataset(x, y, task="regression", output_range=(-9, 9)).targets.values
    same = [y.astype(object), pd.Series(y).astype(object), pd.array(y, dtype="Float64")]
    for given in (*same, pl.Series(y), pd.DataFrame({"dose": y})):
        data = fg.Dataset(x, given, task="regression", output_range=(-9, 9))
        np.testing.assert_array_equal(data.targets.values, expected)
    missing = y.astype(object)
    missing[3] = None
    for given, words in (
        (missing, "y: expected finite numbers, got NaN in row 3"),
        ((y > 0).astype(object), "y: expected numbers for a regression, got objects"),
        (pd.DataFrame(np.stack([y, y], axis=1), columns=["a", "a"]), "outputs: .* got 'a' twice"),
    ):
        with pytest.raises(DataError, match=words):
            fg.Dataset(x, given, task="regression", output_range=(-9, 9))


def test_a_range_without_a_regression_is_refused(tmp_path):
    words = "output_range.*: expected task"
    with pytest.raises(DataError, match=words):
        fg.Dataset(X, Y, output_range=(0, 1))
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    with pytest.raises(DataError, match=words):
        fg.load_dataset(str(tmp_path / "d.npz"), output_range=(0, 1))
