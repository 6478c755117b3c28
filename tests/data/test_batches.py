"""Feature files read in batches: the same sums, in memory that does not grow with the file."""

import resource
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.data import batches
from fedgram.data.batches import dataset_batches
from fedgram.data.sources import load_dataset
from fedgram.errors import DataError
from fedgram.features.feature_file import write
from fedgram.features.grid import Grid
from fedgram.federation.federated_dataset import training_batches

ROWS, WIDTH = 500, 9


def arrays(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, WIDTH)).astype(np.float32),
        "y": rng.integers(0, 4, rows),
        "split": rng.integers(0, 3, rows),
    }


def saved(path, kind, content):
    if kind == "npz":
        np.savez(path, **content)
    elif kind == "compressed npz":
        np.savez_compressed(path, **content)
    else:
        arrow = pytest.importorskip("pyarrow")
        lists = arrow.FixedSizeListArray.from_arrays(content["x"].reshape(-1), WIDTH)
        if kind == "arrow":
            lists = lists.cast(arrow.list_(arrow.float32()))
        table = arrow.table({"x": lists, "y": content["y"], "split": content["split"]})
        if kind == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, path, row_group_size=77)
        else:
            with arrow.ipc.new_file(path, table.schema) as file:
                file.write_table(table, max_chunksize=130)
    return str(path)


KINDS = {"npz": ".npz", "compressed npz": ".npz", "parquet": ".parquet", "arrow": ".arrow"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 7, 499, 500, 501])
def test_batches_of_any_size_give_the_contribution_of_the_whole_file(
    kind, rows, tmp_path, monkeypatch
):
    content = arrays()
    whole = saved(tmp_path / "whole.npz", "npz", content)
    source = saved(tmp_path / f"some{KINDS[kind]}", kind, content)
    expected, found = tmp_path / "whole.contribution", tmp_path / "found.contribution"
    assert contributed(whole, expected) == 0
    monkeypatch.setattr(batches, "BATCH_BYTES", rows * WIDTH * 4)
    assert contributed(source, found) == 0
    assert found.read_bytes() == expected.read_bytes()
    assert max(len(part) for part in dataset_batches(source)) <= rows
    kept = codec.load(found).statistics
    assert kept.count == (content["split"] != 2).sum()


def contributed(source, out):
    command = ["contribute", source, "--client", "north", "-o", str(out)]
    return CliRunner().invoke(main, command).exit_code


def test_texts_are_classes(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table({"x": [[1.0, 2.0], [3.0, 4.0], [1.0, 1.0]], "y": ["wolf", "cat", "wolf"]})
    parquet.write_table(table, tmp_path / "animals.parquet")
    (data,) = dataset_batches(str(tmp_path / "animals.parquet"))
    assert data.classes == ("cat", "wolf")
    assert data.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}, "lists of one length"),
        ({"x": [[1.0], None], "y": [0, 1]}, "without missing values"),
        ({"x": [[1.0], [2.0]], "y": [0, None]}, "no class"),
        ({"x": [[1.0], [2.0]], "y": [0, -1]}, "class codes from 0"),
        ({"x": [[1.0], [2.0]], "z": [0, 1]}, "expected columns x and y"),
    ],
)
def test_invalid_columns_are_refused(columns, reason, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=reason):
        list(dataset_batches(str(tmp_path / "bad.parquet")))


def test_an_invalid_row_of_a_later_batch_is_named(tmp_path, monkeypatch):
    content = arrays()
    content["x"][433, 2] = np.nan
    source = saved(tmp_path / "bad.npz", "npz", content)
    monkeypatch.setattr(batches, "BATCH_BYTES", 100 * WIDTH * 4)
    with pytest.raises(DataError, match=r"bad.npz \(rows from 400\): row 33: .* NaN"):
        list(training_batches(source, Grid()))


def test_damaged_and_unfitting_files_are_refused(tmp_path):
    source = saved(tmp_path / "short.npz", "npz", arrays())
    content = (tmp_path / "short.npz").read_bytes()
    spoiled = bytearray(content)
    spoiled[2000] ^= 1  # within x: the checksum of the archive differs
    (tmp_path / "short.npz").write_bytes(bytes(spoiled))
    with pytest.raises(DataError, match="cannot be read"):
        list(dataset_batches(source))
    unfitting = saved(tmp_path / "unfitting.npz", "npz", {**arrays(), "y": np.zeros(3, int)})
    with pytest.raises(DataError, match="one entry per row"):
        list(dataset_batches(unfitting))
    nothing = {name: array[:0] for name, array in arrays().items()}
    with pytest.raises(DataError, match="no training samples"):
        list(training_batches(saved(tmp_path / "empty.npz", "npz", nothing), Grid()))


def test_a_file_whose_columns_come_first_is_read_whole(tmp_path):
    content = arrays()
    source = saved(
        tmp_path / "columns.npz", "npz", {**content, "x": np.asfortranarray(content["x"])}
    )
    (data,) = dataset_batches(source)
    assert np.array_equal(data.x, load_dataset(source).x)


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    """Eight times the rows add what their labels need, a few percent of the features."""
    monkeypatch.setattr(batches, "BATCH_BYTES", 2**18)
    peaks, width, few, many = [], 256, 2_000, 16_000
    for rows in (few, many):
        x = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
        np.savez(tmp_path / "some.npz", x=x, y=np.arange(rows) % 4)
        tracemalloc.start()
        found = training_batches(str(tmp_path / "some.npz"), Grid())
        total = Statistics.over((samples.features, samples.labels) for samples in found)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert total.count == rows
    assert peaks[1] - peaks[0] < 0.1 * (many - few) * width * 4


@pytest.mark.wide
def test_a_site_contributes_a_file_larger_than_its_memory(tmp_path):
    """With an address space of 1.2 GB, a file of 1.6 GB; loading it fails under this limit."""
    rows, width, block = 3_200_000, 64, 100_000
    values = np.random.default_rng(0).normal(size=(block, width))
    path = tmp_path / "large.npz"
    blocks = (values for _ in range(rows // block))
    write(path, blocks, rows, {"y": np.zeros(rows, np.int8), "classes": np.array(["one", "two"])})
    limit = 1_200_000_000
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("x.npy").file_size > limit

    def limited(*command):
        return subprocess.run(
            [sys.executable, *command],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
            capture_output=True,
            text=True,
        )

    out = tmp_path / "north.contribution"
    found = limited(
        *("-m", "fedgram.cli", "contribute", str(path), "--client", "north", "-o", str(out))
    )
    assert found.returncode == 0, found.stderr
    total = codec.load(out).statistics
    part = Statistics.over([(Grid()(values), labels_of(block))])
    assert total.count == rows
    assert np.array_equal(total.gram, part.gram * (rows // block))
    whole = limited("-c", f"import fedgram; fedgram.load_dataset({str(path)!r})")
    assert "Error" in whole.stderr


def labels_of(rows):
    from fedgram import Labels

    return Labels(np.zeros(rows, np.int64), ("one", "two"))
