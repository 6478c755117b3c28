"""Data sets from what people have, and errors that name the argument."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from fedgram import Dataset, federate
from fedgram.data.arrays import coded
from fedgram.errors import DataError

X = np.arange(12.0).reshape(6, 2)
Y = ["b", "a", "b", "a", "b", "c"]


def same(data):
    assert data.classes == ("a", "b", "c")
    np.testing.assert_array_equal(data.x, X)
    np.testing.assert_array_equal(data.y, [1, 0, 1, 0, 1, 2])
    assert data.labels.tolist() == ["a", "b", "c"]


def test_lists_and_arrays_give_the_same_data():
    same(Dataset(X, Y))
    same(Dataset(X.tolist(), np.array(Y, object)))
    same(Dataset(X.astype(np.float32), tuple(Y)))


def test_frames_of_pandas_bring_their_column_names():
    pandas = pytest.importorskip("pandas")
    data = Dataset(pandas.DataFrame(X, columns=["age", "dose"]), pandas.Series(Y))
    same(data)
    assert data.columns == ("age", "dose")
    same(Dataset(pandas.DataFrame(X), pandas.Series(Y, dtype="category")))


def test_frames_of_polars_bring_their_column_names():
    polars = pytest.importorskip("polars")
    data = Dataset(polars.DataFrame(X, schema=["age", "dose"]), polars.Series(Y))
    same(data)
    assert data.columns == ("age", "dose")


def test_tensors_are_read():
    class Tensor:  # torch takes seconds to import
        """What is used of a tensor of torch, which is on another device and has a gradient."""

        def detach(self):
            return SimpleNamespace(cpu=lambda: SimpleNamespace(numpy=lambda: X))

    same(Dataset(Tensor(), Y))


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        ([3, 7, 3, 7, 3, 9], [3, 7, 9]),
        ([3.0, 7.0, 3.0, 7.0, 3.0, 9.0], [3.0, 7.0, 9.0]),
        ([True, False, True, False, True, True], [False, True]),
        (["10", "9", "10", "9", "9", "9"], ["10", "9"]),
    ],
)
def test_labels_of_any_kind_are_returned_as_they_were(labels, values):
    data = Dataset(X, labels)
    assert data.labels.tolist() == values
    assert data.labels[data.y].tolist() == labels


def test_clients_are_numbers_or_texts():
    numbers = Dataset(X, Y, [10, 9, 10, 9, 10, 9]).client
    assert np.unique(numbers).tolist() == [9, 10]
    assert Dataset(X, Y, clients=list("nsnsns")).client.tolist() == list("nsnsns")
    assert Dataset(X, Y, client=np.array([1.0] * 6)).client.tolist() == [1] * 6


def test_codes_with_class_names_are_still_codes():
    data = Dataset(x=X, y=np.array([1, 0, 1, 0, 1, 2]), classes=("a", "b", "c"))
    same(data)
    assert dataclasses.replace(data, name="other").classes == data.classes
    assert dataclasses.replace(Dataset(X, Y, clients=[1] * 6)).client.tolist() == [1] * 6


WRONG = {
    "lengths": ((X, Y[:5]), "y: expected 6 values, one for each row of X, got 5"),
    "clients": ((X, Y, [1, 2]), "clients: expected 6 values, one for each row of X, got 2"),
    "NaN": (
        (np.where(X == 5, np.nan, X), Y),
        r"X: expected finite numbers, got NaN in row 2 \(column 1\)",
    ),
    "infinity": ((np.where(X == 4, np.inf, X), Y), "got infinite values in row 2"),
    "one axis": ((X[:, 0], Y), r"X: expected samples by features, got shape \(6,\)"),
    "texts": (([["a"]] * 6, Y), "X: expected numbers, samples by features, got <U1"),
    "regression": ((X, X[:, 0] + 0.5), "y: expected class labels, got 6 different numbers"),
    "many integers": (
        (np.zeros((50, 1)), np.arange(50)),
        r'look like a quantity; for regression use task="regression" .* FederatedRegressor',
    ),
    "no label": ((X, ["a", None, "b", "a", "b", None]), "y: .* got none in rows 1, 5"),
    "no client": ((X, Y, [1.0, np.nan, 1, 1, 1, 1]), "clients: .* got none in row 1"),
    "columns of y": ((X, np.zeros((6, 2))), r"y: expected one value .* shape \(6, 2\)"),
    "ragged": (([[1.0], [1.0, 2.0]], ["a", "b"]), "expected rows of equal length"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused_by_name(case):
    given, words = WRONG[case]
    with pytest.raises(DataError, match=words):
        Dataset(*given)


def test_a_column_of_words_is_named():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0] * 6, "sex": list("fmfmfm")})
    with pytest.raises(DataError, match=r"X: column 'sex': expected numbers, got .*features"):
        Dataset(frame, Y)


def test_labels_of_two_types_are_refused():
    with pytest.raises(DataError, match="expected labels of one type, got int and str"):
        coded(np.array(["a", 1], object))


@pytest.mark.parametrize("argument", ["y", "clients"])
def test_a_column_that_was_left_over_is_named(argument):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": X[:, 0], "left": [0, 1, 0, 1, 0, 1]})
    given = {"y": Y, "clients": None} | {argument: frame["left"]}
    with pytest.raises(DataError, match=f"X: column 'left' is {argument} too, and would become"):
        Dataset(frame, **given)
    assert Dataset(frame.drop(columns="left"), **given).columns == ("age",)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((6, 0)), "one column or more"),
        (np.ma.masked_greater(X, 3), "without masked values"),
        ([[1.0, 2.0], [3.0]], "got rows of different lengths$"),
        (np.array([[1.0, None]] * 6, object), r"NaN in rows 0, 1, 2, 3, 4 and 1 more \(column 1\)"),
        (np.array([[1.0, SimpleNamespace()]] * 6, object), "got SimpleNamespace;"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused_in_plain_words(x, words):
    with pytest.raises(DataError, match=words):
        Dataset(x, Y)


def test_no_samples_are_no_classes():
    with pytest.raises(DataError, match="got no samples"):
        federate(Dataset(X[:0], Y[:0]))
    with pytest.raises(DataError, match="got no samples"):
        Dataset(X[:0], X[:0, 0], task="regression")


@pytest.mark.parametrize("rare", [0.0, 9.0])
def test_outputs_that_are_nearly_all_the_same_are_split(rare):
    x = np.arange(160.0).reshape(80, 2)
    y = [rare] * 4 + [9.0 - rare] * 76
    data = Dataset(
        x, y, clients=np.arange(80) % 4, task="regression", output_range=(0, 9), standardize=False
    )
    assert len(federate(data, clients=3, partition="iid").members) == 3
