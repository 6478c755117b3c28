"""Images, texts and tables by name: what is read, and what is refused by name."""

import gzip
import json
import pickle

import numpy as np
import pytest

from fedgram.data.dataset import TEST, TRAIN, VALID
from fedgram.data.items import Columns, read_items
from fedgram.errors import DataError

Image = pytest.importorskip("PIL.Image")


def picture(path, color):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), color).save(path)


def test_a_folder_of_classes(tmp_path):
    for name, color in (("cat/2.png", 9), ("cat/1.png", 8), ("ant/1.png", 7)):
        picture(tmp_path / name, (color, 0, 0))
    (tmp_path / "notes.txt").write_text("not an image")
    items = read_items(str(tmp_path))
    assert (items.kind, items.classes, list(items.y)) == ("images", ("ant", "cat"), [0, 1, 1])
    assert [entry.name for entry in items.entries] == ["1.png", "1.png", "2.png"]
    assert items.client is None
    assert items.split is None


def test_a_folder_of_clients(tmp_path):
    picture(tmp_path / "north/cat/1.png", (1, 1, 1))
    picture(tmp_path / "south/ant/1.png", (2, 2, 2))
    items = read_items(str(tmp_path))
    assert list(items.client) == ["north", "south"]
    assert items.classes == ("ant", "cat")


def test_a_folder_of_splits(tmp_path):
    for name in ("train", "val", "test"):
        picture(tmp_path / name / "cat/1.png", (1, 1, 1))
    assert sorted(read_items(str(tmp_path)).split) == [TRAIN, VALID, TEST]


def test_folders_of_mixed_depth_or_without_images_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no images; expected .*\.png"):
        read_items(str(tmp_path))
    picture(tmp_path / "cat/1.png", (1, 1, 1))
    picture(tmp_path / "north/cat/1.png", (1, 1, 1))
    with pytest.raises(DataError, match="expected all images at"):
        read_items(str(tmp_path))


ROWS = [
    {"text": "good", "stars": "5", "site": "a", "split": "train"},
    {"text": "bad, very", "stars": "1", "site": "b", "split": "test"},
]


def table(tmp_path, kind):
    path = tmp_path / f"reviews.{kind}"
    if kind == "csv":
        lines = ["text,stars,site,split", "good,5,a,train", '"bad, very",1,b,test']
        path.write_text("\n".join(lines) + "\n")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_tables_of_texts(tmp_path, kind):
    items = read_items(table(tmp_path, kind), Columns(text="text", label="stars", client="site"))
    assert items.kind == "texts"
    assert list(items.entries) == ["good", "bad, very"]
    assert [items.classes[code] for code in items.y] == ["5", "1"]
    assert list(items.client) == ["a", "b"]
    assert list(items.split) == [TRAIN, TEST]


def test_tables_of_numbers(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("a,label,b\n1,x,2.5\n3,y,4\n")
    items = read_items(str(path))
    assert items.kind == "vectors"
    assert np.array_equal(items.entries, [[1, 2.5], [3, 4]])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns(text="texts", label="stars"), "did you mean 'text'"),
        (Columns(text="text", label="star"), "did you mean 'stars'"),
        (Columns(label="stars"), "not a number"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(tmp_path, columns, message):
    with pytest.raises(DataError, match=message):
        read_items(table(tmp_path, "csv"), columns)


def test_a_table_that_cannot_be_read_is_refused_by_name(tmp_path):
    for name, content in (("a.csv", b"\xff\xfe"), ("a.jsonl", b"{"), ("b.jsonl", b"[1]\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            read_items(str(tmp_path / name), Columns(text="text"))
    with pytest.raises(DataError, match="file not found"):
        read_items(str(tmp_path / "none.csv"))


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return head + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files(tmp_path, zipped):
    rng = np.random.default_rng(0)
    images = {"train": rng.integers(0, 256, (6, 5, 5)), "t10k": rng.integers(0, 256, (3, 5, 5))}
    for split, x in images.items():
        for part, array in (("images-idx3", x), ("labels-idx1", np.arange(len(x)) % 3)):
            data = idx(array)
            name = f"{split}-{part}-ubyte"
            if zipped:
                (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
            else:
                (tmp_path / name).write_bytes(data)
    items = read_items(str(tmp_path))
    assert np.array_equal(items.entries, np.concatenate(list(images.values())))
    assert list(items.split) == [TRAIN] * 6 + [TEST] * 3
    assert list(items.y) == [0, 1, 2, 0, 1, 2, 0, 1, 2]


def cifar(tmp_path, poison=None):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
    content = {b"data": x, b"fine_labels": [0, 1, 0, 1]}
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(pickle.dumps(poison or content, protocol=2))
    meta = {b"fine_label_names": [b"apple", b"bear"]}
    (tmp_path / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    return x


def test_cifar_files(tmp_path):
    x = cifar(tmp_path)
    items = read_items(str(tmp_path))
    assert items.entries.shape == (8, 32, 32, 3)
    assert items.entries[0][2, 5, 1] == x[0, 1024 + 2 * 32 + 5]  # green plane, row 2, column 5
    assert items.classes == ("apple", "bear")
    assert list(items.split) == [TRAIN] * 4 + [TEST] * 4


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_cifar_file_that_would_run_something_is_refused(tmp_path):
    cifar(tmp_path, poison={b"data": Bomb(tmp_path / "mark")})
    with pytest.raises(DataError, match="is not allowed in a CIFAR file"):
        read_items(str(tmp_path))
    assert not (tmp_path / "mark").exists()
