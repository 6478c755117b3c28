"""Tables as files: the same cells from every kind of file, and what is wrong named by row."""

import csv
import json

import numpy as np
import pytest

from fedgram.data.dataset import TEST, TRAIN, VALID
from fedgram.data.tabular.reader import Table, read_table, read_tables, text
from fedgram.errors import DataError

ROWS = [
    {"age": 61, "dose": 2.5, "sex": "f", "note": None},
    {"age": 7, "dose": 3.0, "sex": "m", "note": "late, very"},
    {"age": 80, "dose": None, "sex": "f", "note": "x"},
]


def written(folder, kind, rows=ROWS):
    path = folder / f"ward.{kind}"
    if kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "jsonl":
        kept = [{k: v for k, v in row.items() if v is not None} for row in rows]
        path.write_text("\n\n".join(map(json.dumps, kept)))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


KINDS = ["csv", "jsonl", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_texts(tmp_path, kind):
    table = read_table(written(tmp_path, kind))
    assert {name: table.texts(name) for name in table.columns} == {
        "age": ["61", "7", "80"],
        "dose": ["2.5", "3.0" if kind == "csv" else "3", ""],
        "sex": ["f", "m", "f"],
        "note": ["", "late, very", "x"],
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_rows_come_in_parts_that_know_their_place(tmp_path, kind, rows):
    path = written(tmp_path, kind)
    parts = list(read_tables(path, rows=rows))
    assert [part.start for part in parts] == list(np.cumsum([0, *map(len, parts)])[:-1])
    assert max(map(len, parts)) <= rows
    ages = [age for part in parts for age in part.texts("age")]
    assert ages == read_table(path).texts("age")
    assert parts[-1].row(0) == f"{path}: row {parts[-1].start + 1}"


def test_a_mark_at_the_start_and_spaces_in_the_header_do_not_matter(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffage , sex\r\n 61 ,f\r\n\r\n".encode())
    table = read_table(path)
    assert (table.texts("age"), table.texts("sex"), len(table)) == (["61"], ["f"], 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,age\n1,2\n", "two columns are named 'age'"),
        ("age,sex\n1,f\n2\n", "row 2: expected 2 entries, got 1"),
        ("age,sex\n1,f,extra\n", "row 1: expected 2 entries, got 3"),
        ("age,sex\n", "no rows"),
        ("", "no rows"),
        ("61,2.5\n47,3\n", "expected the names of the columns in the first line, got numbers"),
    ],
)
def test_a_csv_that_is_not_a_table_is_refused(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"a\.csv: {message}"):
        read_table(path)


def test_two_columns_of_one_name_are_refused_in_parquet_too(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    twice = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two columns are named 'a'"):
        read_table(tmp_path / "a.parquet")


def test_a_key_that_few_lines_have_is_a_column_with_gaps(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 5 + '{"a": 2, "b": 3}\n')
    parts = list(read_tables(path, rows=2))
    assert [part.texts("b") for part in parts] == [["", ""], ["", ""], ["", "3"]]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, ""),
        ("  a b ", "a b"),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (7.0, "7"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_cells_as_texts(cell, shown):
    assert text(cell) == shown
    mixed = Table(name="t", columns={"a": [cell, 3]})
    assert mixed.texts("a") == [shown, "3"]


def test_splits_by_word_or_number():
    table = Table(name="t", columns={"split": ["train", "val", "valid", "test", "0", "1", "2"]})
    expected = [TRAIN, VALID, VALID, TEST, TRAIN, VALID, TEST]
    assert list(table.split()) == expected
    assert list(table.training_mask()) == [code != TEST for code in expected]
    assert Table(name="t", columns={"a": [1, 2]}).split() is None
    assert list(Table(name="t", columns={"a": [1, 2]}).training_mask()) == [True, True]
    with pytest.raises(DataError, match=r"t: row 12: split: expected one of train"):
        Table(name="t", columns={"split": ["0", "tset"]}, start=10).split()


def test_names_must_not_have_gaps():
    table = Table(name="t", columns={"client": ["a", None]})
    with pytest.raises(DataError, match=r"t: row 2: 'client' is missing"):
        table.names("client")
    assert table.names(None) is None
