"""Data sets: what a file may hold, where it is looked for, and how damaged ones are refused."""

import contextlib
import gzip
import json
import os
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedgram.data.archives import read_idx
from fedgram.data.batches import dataset_batches
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import DATA_VARIABLE, load_dataset, load_vectors
from fedgram.errors import DataError, MemoryLimitError
from fedgram.features.grid import Grid
from fedgram.federation.federated_dataset import federate
from fedgram.runtime import memory

SAMPLES = 12


def arrays(**more):
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(SAMPLES, 3)).astype(np.float32),
        "y": np.arange(SAMPLES) % 3,
        **more,
    }


def numbered(**more):
    """All optional arrays, as numbers."""
    return arrays(
        scale=np.full(3, 0.5, np.float32),
        offset=np.full(3, 2.0, np.float32),
        client=np.arange(SAMPLES) % 4,
        domain=np.arange(SAMPLES) % 2,
        split=np.arange(SAMPLES) % 3,
        classes=np.array([10, 20, 30]),
        **more,
    )


def write(path, content):
    """Write arrays as the kind of file that the suffix names."""
    if path.suffix == ".npz":
        np.savez(path, **content)
    else:
        save_file({name: np.ascontiguousarray(array) for name, array in content.items()}, path)
    return str(path)


@pytest.fixture(params=["npz", "safetensors"])
def path(request, tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    return tmp_path / f"features.{request.param}"


@pytest.fixture
def npz(tmp_path):
    return tmp_path / "features.npz"


# What a file may hold


def test_digits_are_embedded():
    digits = load_dataset("digits")
    assert digits.x.shape == (1797, 64)
    assert digits.classes == tuple("0123456789")


def test_x_and_y_are_enough_and_classes_are_numbered(path):
    data = load_dataset(write(path, arrays()))
    np.testing.assert_array_equal(data.x, arrays()["x"])
    np.testing.assert_array_equal(data.y, arrays()["y"])
    assert data.classes == ("0", "1", "2")
    assert data.client is data.domain is data.split is data.scale is data.offset is None


def test_every_optional_array_is_read(path):
    content = numbered()
    data = load_dataset(write(path, content))
    for name in ("scale", "offset", "client", "domain", "split"):
        np.testing.assert_array_equal(getattr(data, name), content[name])
    assert data.classes == ("10", "20", "30")


def test_text_names_clients_domains_and_classes(npz):
    content = arrays(
        client=np.array(["ann", "bob"] * 6),
        domain=np.array(["photo", "sketch"] * 6),
        classes=np.array(["cat", "dog", "eel"]),
    )
    data = load_dataset(write(npz, content))
    assert data.classes == ("cat", "dog", "eel")
    assert [s.id for s in federate(data, PartitionPlan(partition="given")).members] == [
        "ann",
        "bob",
    ]
    assert [s.id for s in federate(data, PartitionPlan(partition="domain")).members] == [
        "photo",
        "sketch",
    ]


def test_text_in_bytes_is_read_as_text(npz):
    content = arrays(client=np.array([b"ann", b"bob"] * 6), classes=np.array([b"a", b"b", b"c"]))
    data = load_dataset(write(npz, content))
    assert data.classes == ("a", "b", "c")
    assert [s.id for s in federate(data, PartitionPlan(partition="given")).members] == [
        "ann",
        "bob",
    ]


def test_a_class_without_samples_keeps_its_name(path):
    assert load_dataset(write(path, arrays(classes=np.arange(5)))).classes == tuple("01234")


def test_whole_numbers_in_floats_are_labels(path):
    data = load_dataset(write(path, {**arrays(), "y": np.arange(SAMPLES) % 3.0}))
    assert data.y.dtype == np.int64


def test_stored_codes_are_scaled_and_shifted_before_the_grid(path):
    codes = np.random.default_rng(1).integers(0, 255, (SAMPLES, 3)).astype(np.uint8)
    scale, offset = np.array([0.1, 0.2, 0.3]), np.array([-3.0, 0.0, 5.0])
    stored = load_dataset(write(path, {**arrays(), "x": codes, "scale": scale, "offset": offset}))
    plain = load_dataset(write(path, {**arrays(), "x": codes * scale + offset}))
    for one, other in zip(
        federate(stored, PartitionPlan(clients=2)).members,
        federate(plain, PartitionPlan(clients=2)).members,
        strict=True,
    ):
        np.testing.assert_array_equal(one.train.features.values, other.train.features.values)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32])
def test_features_of_any_number_type_reach_the_grid(path, dtype):
    x = np.arange(SAMPLES * 3).reshape(SAMPLES, 3)
    data = load_dataset(write(path, {**arrays(), "x": x.astype(dtype)}))
    np.testing.assert_array_equal(Grid()(data.x).values, Grid()(x).values)


# Where a file is looked for


def test_a_file_is_found_in_the_folder_that_the_environment_names(path, monkeypatch):
    write(path, arrays())
    monkeypatch.setenv(DATA_VARIABLE, str(path.parent))
    assert len(load_dataset(path.name)) == SAMPLES


def test_a_file_as_given_goes_before_the_folder(path, monkeypatch, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    write(folder / path.name, {**arrays(), "y": np.arange(SAMPLES) % 2})
    write(path, arrays())
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    monkeypatch.chdir(path.parent)
    assert len(load_dataset(path.name).classes) == 3


def test_a_missing_file_is_named_with_the_remedy(path, monkeypatch):
    with pytest.raises(DataError, match=f"{path.name}.*{DATA_VARIABLE} is not set.*digits"):
        load_dataset(str(path))
    monkeypatch.setenv(DATA_VARIABLE, str(path.parent))
    with pytest.raises(DataError, match=f"below .{DATA_VARIABLE}"):
        load_dataset(path.name)


@pytest.mark.parametrize("name", ["features.csv", "features", "features.pt"])
def test_a_file_of_another_kind_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"1,2,3")
    with pytest.raises(DataError, match=r"expected digits, \.npz or \.safetensors"):
        load_dataset(str(tmp_path / name))


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(DataError):
        load_dataset(str(tmp_path))


def test_a_name_too_long_for_a_file_is_refused():
    with pytest.raises(DataError):
        load_dataset("a" * 300)


# Wrong content


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_missing_array_is_named(path, name):
    content = {key: array for key, array in arrays().items() if key != name}
    with pytest.raises(DataError, match=f"array '{name}' is missing"):
        load_dataset(write(path, content))


@pytest.mark.parametrize("name", ["y", "client", "domain", "split"])
def test_an_array_of_another_length_is_named(path, name):
    content = numbered()
    with pytest.raises(DataError, match=rf"{name} has shape \(11,\) but x has 12 rows"):
        load_dataset(write(path, {**content, name: content[name][:-1]}))


@pytest.mark.parametrize("name", ["scale", "offset"])
def test_a_scale_that_does_not_fit_the_features_is_named(path, name):
    with pytest.raises(DataError, match=name):
        federate(load_dataset(write(path, arrays(**{name: np.ones(5)}))), PartitionPlan(clients=2))


@pytest.mark.parametrize("y", [np.linspace(0, 2, SAMPLES), np.full(SAMPLES, np.nan)])
def test_labels_that_are_no_whole_numbers_are_refused(path, y):
    with pytest.raises(DataError, match="integer class codes"):
        load_dataset(write(path, {**arrays(), "y": y}))


def test_infinite_labels_are_refused(path):
    with pytest.raises(DataError, match="y: "):
        load_dataset(write(path, {**arrays(), "y": np.where(arrays()["y"], np.inf, 0.0)}))


@pytest.mark.parametrize("kind", ["U", "S"])
def test_labels_in_text_are_names_of_classes(npz, kind):
    words = np.array(["owl", "cat", "dog"] * 4).astype(kind)
    data = load_dataset(write(npz, {**arrays(), "y": words}))
    assert data.classes == ("cat", "dog", "owl")
    assert np.array_equal(data.y[:3], [2, 0, 1])
    (batch,) = dataset_batches(str(npz))
    assert np.array_equal(batch.y, data.y)
    assert batch.classes == data.classes


def test_labels_in_text_beside_a_list_of_classes_are_refused(npz):
    content = {**arrays(classes=["a", "b", "c"]), "y": np.array(["a", "b", "c"] * 4)}
    with pytest.raises(DataError, match="expected the codes of the array 'classes'"):
        load_dataset(write(npz, content))


def test_a_wrong_name_has_a_proposal():
    with pytest.raises(DataError, match=r"'digit': not found.*did you mean 'digits'"):
        load_dataset("digit")
    with pytest.raises(DataError, match="use a path, or 'digits'"):
        load_dataset("missing.npz")
    with pytest.raises(DataError, match=r"; use a path$"):
        load_vectors("digits")


def test_the_places_of_columns_are_a_header(tmp_path):
    """As pandas writes a frame whose columns have no names."""
    path = tmp_path / "x.csv"
    path.write_text("0,1,2\n0.5,1,2\n3,4,5\n")
    assert load_vectors(str(path)).x.tolist() == [[0.5, 1, 2], [3, 4, 5]]
    path.write_text("0.5,1,2\n3,4,5\n")
    assert len(load_vectors(str(path)).x) == 2


@pytest.mark.parametrize("shift", [-1, 1])
def test_labels_outside_the_class_list_are_refused(path, shift):
    content = arrays(classes=np.arange(3))
    with pytest.raises(DataError, match="labels run from"):
        load_dataset(write(path, {**content, "y": content["y"] + shift}))


@pytest.mark.parametrize("shape", [(SAMPLES,), (SAMPLES, 3, 1)])
def test_features_must_be_samples_by_features(path, shape):
    with pytest.raises(DataError, match="samples by features"):
        load_dataset(write(path, {**arrays(), "x": np.ones(shape)}))


def test_features_that_are_no_numbers_are_refused(npz):
    with pytest.raises(DataError, match="expected numbers"):
        load_dataset(write(npz, {**arrays(), "x": np.full((SAMPLES, 3), "1.5")}))


def test_complex_features_are_refused(npz):
    with pytest.raises(DataError, match="x: expected numbers"):
        load_dataset(write(npz, {**arrays(), "x": np.ones((SAMPLES, 3), complex)}))


def test_a_split_in_text_is_refused(npz):
    source = write(npz, arrays(split=np.array(["train"] * SAMPLES)))
    with pytest.raises(DataError, match="split"):
        federate(load_dataset(source), PartitionPlan(clients=2))


def test_classes_must_be_a_list(npz):
    with pytest.raises(DataError, match="classes"):
        load_dataset(write(npz, arrays(classes=np.array("cat"))))


# Damaged and hostile files


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("name", ["x", "y", "client", "classes", "other"])
def test_pickled_arrays_are_never_unpickled(npz, tmp_path, name):
    mark = tmp_path / "unpickled"
    content = {**arrays(), name: np.array([Bomb(mark)] * SAMPLES, object)}
    np.savez(npz, **content)
    if name == "other":  # not one of ours: not even looked at
        assert len(load_dataset(str(npz))) == SAMPLES
    else:
        with pytest.raises(DataError, match="plain arrays"):
            load_dataset(str(npz))
    assert not mark.exists()


def test_a_pickle_with_the_name_of_an_archive_is_never_unpickled(npz, tmp_path):
    mark = tmp_path / "unpickled"
    npz.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(DataError):
        load_dataset(str(npz))
    assert not mark.exists()


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused_by_name(path, part):
    write(path, arrays())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(DataError, match=path.name):
        load_dataset(str(path))


def test_a_file_damaged_anywhere_is_refused_or_read_never_worse(npz):
    np.savez_compressed(npz, **{**arrays(), "x": np.tile(np.arange(300.0), (SAMPLES, 1))})
    whole = npz.read_bytes()
    for start in range(0, len(whole), 16):
        npz.write_bytes(whole[:start] + b"\xff" * 8 + whole[start + 8 :])
        with contextlib.suppress(DataError):
            load_dataset(str(npz))


def test_a_lone_array_with_the_name_of_an_archive_is_refused(npz):
    with npz.open("wb") as file:
        np.save(file, arrays()["x"])
    with pytest.raises(DataError, match=npz.name):
        load_dataset(str(npz))


def test_a_number_type_that_numpy_does_not_know_is_refused(tmp_path):
    path = tmp_path / "features.safetensors"
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(DataError, match=path.name):
        load_dataset(str(path))


def test_an_archive_that_does_not_fit_is_not_unpacked(tmp_path, monkeypatch):
    """An .npz of 10 kB that declares 10 MB, on a machine with 1 MB."""
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1000, 1250)), y=np.zeros(1000, int))
    assert (tmp_path / "x.npz").stat().st_size < 50_000
    monkeypatch.setattr(memory, "available", lambda: 10**6)

    def opened(*_, **__):
        raise AssertionError("it was unpacked")

    monkeypatch.setattr(zipfile.ZipFile, "open", opened)
    with pytest.raises(MemoryLimitError, match=r"x\.npz needs 10 MB"):
        load_dataset(str(tmp_path / "x.npz"))


def test_an_idx_file_is_unpacked_no_further_than_its_header(tmp_path):
    whole = b"\x00\x00\x08\x01" + (4).to_bytes(4, "big") + bytes(4)
    (tmp_path / "a.gz").write_bytes(gzip.compress(whole))
    assert read_idx(tmp_path / "a.gz").tolist() == [0] * 4
    (tmp_path / "a.gz").write_bytes(gzip.compress(whole + bytes(10**7)))
    with pytest.raises(DataError, match="expected 4 bytes"):
        read_idx(tmp_path / "a.gz")


def test_an_array_has_the_bytes_that_its_header_declares(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3)), y=np.zeros(2, int))
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for more in (b"", b"\0"):
        with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content + more)
        if not more:
            assert len(load_dataset(str(tmp_path / "y.npz"))) == 2
            continue
        with pytest.raises(DataError, match=r"y\.npz: .*expected an array of shape"):
            load_dataset(str(tmp_path / "y.npz"))


def test_a_number_in_a_cifar_file_reserves_no_memory(tmp_path):
    """The unpickler in C makes room for as many values as the largest number of a memo says."""
    for name in ("train", "test", "meta"):
        (tmp_path / name).write_bytes(b"}r" + (2**24).to_bytes(4, "little") + b".")
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="not a CIFAR file"):
            load_dataset(str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
