"""Loading of data sets by name: the embedded digits, synthetic data and feature files."""

from __future__ import annotations

import csv
import io
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors.numpy import load_file

from fedgram.core.layouts import ImageLayout
from fedgram.core.samples import Array, Integers
from fedgram.data import synthetic
from fedgram.data.archives import cifar_folder, idx_folder
from fedgram.data.arrays import coded, require_classes
from fedgram.data.dataset import REGRESSION, Dataset, Vectors
from fedgram.errors import DataError, FedgramError
from fedgram.runtime import files, memory
from fedgram.runtime.settings import propose
from fedgram.runtime.text import clean_name

DATA_VARIABLE = "FEDGRAM_DATA"
_DATASET_ARRAYS = (
    *("x", "y", "scale", "offset", "client", "domain", "split", "classes", "backbone", "grid"),
    "columns",
)
# The digest of each item lets an extraction be resumed; the schema says what the columns of a table
# mean that the features were made from.
_ARRAYS = (*_DATASET_ARRAYS, "digest", "schema")


def load_vectors(source: str) -> Vectors:
    """Return the feature vectors of an ``.npz``, ``.safetensors`` or ``.csv`` file."""
    path = located(source)
    if path.suffix == ".csv":
        return Vectors(x=_read_csv(path))
    arrays = flat(read_arrays(source))
    if "x" not in arrays or arrays["x"].ndim != 2:
        raise DataError(f"{source}: expected an array 'x', samples by features")
    return Vectors(
        x=arrays["x"],
        scale=arrays.get("scale"),
        offset=arrays.get("offset"),
        backbone=_word(arrays.get("backbone"), source),
        grid=_grid(arrays.get("grid"), source),
    )


def load_dataset(source: str, *, task: str | None = None, output_range: Any = None) -> Dataset:
    """Return the data set with this name.

    Parameters
    ----------
    source
        ``digits`` (embedded), ``synthetic:ALPHA,BETA`` (see `fedgram.data.synthetic`), or the path
        of an ``.npz`` or ``.safetensors`` file, of a folder with the idx files of MNIST, or of a
        folder with the python files of CIFAR. Relative paths are tried as given, then below the
        folder in the environment variable ``FEDGRAM_DATA``. The features of images are their
        pixels.
    task
        "regression" if `y` contains numbers: one for each sample, or a row of them.
    output_range
        For a regression the lowest and highest possible value of the outputs.

    Examples
    --------
    >>> len(load_dataset("digits"))
    1797
    """
    if task != REGRESSION and output_range is not None:
        raise DataError(
            f"{source}: output_range (data.output_range): expected task = 'regression' (data.task) "
            "with it; leave it out for classes"
        )
    if task == REGRESSION:
        named = source == "digits" or source.startswith(f"{synthetic.NAME}:")
        if named:
            raise DataError(f"{source}: task: expected classification, got regression")
        return _numbers(flat(read_arrays(source)), source, output_range)
    if source.startswith(f"{synthetic.NAME}:"):
        return to_dataset(synthetic.read(source).arrays(), source)
    if source == "digits":
        with resources.as_file(resources.files("fedgram.data") / "digits.npz") as path:
            return to_dataset(_read_npz(path), "digits")
    return to_dataset(flat(read_arrays(source)), source)


def load_schema(source: str) -> str:
    """Return the schema of the table that a feature file was made from, as TOML.

    The text is empty if the source is not such a file.
    """
    if not source.endswith(".npz"):
        return ""
    path = located(source)
    with opened_npz(path) as (archive, entries):
        held = {name: entry for name, entry in entries.items() if name == "schema"}
        return _word(read_entries(path, archive, held).get("schema"), source)


def save(path: Path, data: Dataset | Vectors, *, schema: str = "") -> None:
    """Write a data set, or vectors without labels, to an ``.npz`` file; equal data, equal bytes.

    Parameters
    ----------
    path
        The file.
    data
        The data.
    schema
        The schema of the table that the features were made from, as TOML, if any.
    """
    arrays = {name: getattr(data, name, None) for name in _DATASET_ARRAYS}
    arrays["columns"] = arrays["columns"] or None  # without names as files ever were
    if schema:
        arrays["schema"] = np.array(schema)
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.asarray(v) for name, v in arrays.items() if v is not None})  # type: ignore[arg-type]
    files.write(path, buffer.getvalue())


def read_arrays(source: str) -> dict[str, Array]:
    """Return the arrays of a file, or of a folder of MNIST or CIFAR; see `load_dataset`."""
    path = located(source)
    if path.is_dir():
        return _read_folder(path)
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise DataError(
            f"{source}: expected digits, .npz or .safetensors; 'fedgram features {source} -o "
            "FEATURES.npz' makes features of images, texts and tables"
        )
    return readers[path.suffix](path)


def located(source: str) -> Path:
    """Return the path of a source: as given, or below the folder of ``FEDGRAM_DATA``."""
    folder = os.environ.get(DATA_VARIABLE)
    for path in [Path(source), *([Path(folder) / source] if folder else [])]:
        if os.path.exists(path):  # unlike Path.exists, never raises
            return path
    where = f" here or below ${DATA_VARIABLE}" if folder else f" ({DATA_VARIABLE} is not set)"
    raise DataError(f"data.source = {source!r}: not found{where}; {_proposed(source)}")


def _proposed(source: str) -> str:
    """Return what to give in place of a source that is not there."""
    name = os.path.basename(source)
    if source == "digits":  # asked for as a file
        return "use a path"
    near = propose(name, ["digits"] if "." not in name else [])
    return near if near.startswith("did") else "use a path, or 'digits'"


def flat(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return images as vectors of pixels, with a backbone name that contains the image shape."""
    x = arrays.get("x")
    if x is None or x.ndim not in (3, 4) or x.dtype != np.uint8:
        return dict(arrays)
    height, width, channels = (*x.shape[1:], 1)[:3]
    backbone = np.array(ImageLayout(height=height, width=width, channels=channels).backbone)
    return {**arrays, "x": x.reshape(len(x), -1), "backbone": backbone}


def _read_folder(path: Path) -> dict[str, Array]:
    arrays = idx_folder(path) or cifar_folder(path)
    if arrays is None:
        raise DataError(
            f"{path}: contains neither the idx files of MNIST nor the python files of CIFAR; for "
            "other images, extract features with 'fedgram features'"
        )
    return arrays


def _read_npz(path: Path) -> dict[str, Array]:
    with opened_npz(path) as (archive, entries):
        return read_entries(path, archive, entries)


def read_entries(
    path: Path, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]
) -> dict[str, Array]:
    """Return arrays of an archive, after a check that there is memory for them.

    Parameters
    ----------
    path
        Path of the archive, for errors.
    archive
        The archive.
    entries
        The entries to read, by the names of their arrays.
    """
    whole = sum(entry.file_size for entry in entries.values())
    memory.require(whole, str(path), "use fewer samples")
    return {name: _array(archive, entry) for name, entry in entries.items()}


@contextmanager
def opened_npz(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Open an ``.npz`` file; errors of the body name the file and the cause.

    The entries are those of the known arrays, by name.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            there = {entry.filename: entry for entry in archive.infolist()}
            yield archive, {n: there[f"{n}.npy"] for n in _ARRAYS if f"{n}.npy" in there}
    except FedgramError:
        raise
    except Exception as error:  # zip and numpy raise many types for damaged files
        # NumPy would advise to unpickle, which runs code of the file.
        reason = "it contains pickled objects" if "pickle" in str(error) else str(error)
        raise DataError(
            f"{path}: cannot be read as an .npz of plain arrays ({reason}); create the file again"
        ) from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    """Read one array, after a check that the archive has the bytes that its header declares."""
    with archive.open(entry) as file:
        shape, columns_first, kind = array_header(file, entry)
        count = math.prod(shape)
        flat = np.frombuffer(bytearray(file.read()), kind, count) if count else np.empty(0, kind)
        return flat.reshape(shape, order="F" if columns_first else "C")


def array_header(
    file: IO[bytes], entry: zipfile.ZipInfo
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array in an archive: shape, whether columns come first, number type."""
    major, _ = np.lib.format.read_magic(file)
    readers = {
        1: np.lib.format.read_array_header_1_0,
        2: np.lib.format.read_array_header_2_0,
    }
    shape, columns_first, kind = readers[major](file)
    if kind.hasobject:
        raise ValueError("pickled objects")
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != (
        entry.file_size - file.tell()
    ):
        raise ValueError(f"{entry.filename}: expected an array of shape {shape}")
    return shape, columns_first, kind


def _read_safetensors(path: Path) -> dict[str, Array]:
    try:
        return dict(load_file(path))
    except Exception as error:  # also number types that numpy does not have
        raise DataError(
            f"{path}: cannot be read as safetensors ({error}); create the file again"
        ) from error


def _read_csv(path: Path) -> Array:
    """Read columns of numbers; a first line without numbers, or of places 0, 1, ..., is a header.

    pandas writes places for a frame whose columns have no names.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: cannot be read as CSV ({error}); create the file again"
        ) from error
    if rows and (not any(map(is_number, rows[0])) or _are_places(rows[0])):
        rows = rows[1:]
    if not rows:
        raise DataError(f"{path}: no rows; expected a row of numbers for each sample")
    for line, row in enumerate(rows, 1):
        if len(row) != len(rows[0]) or not all(map(is_number, row)):
            raise DataError(
                f"{path}: row {line} of the data: expected {len(rows[0])} numbers, as in row 1"
            )
    return np.array(rows, dtype=np.float64)


def _are_places(row: list[str]) -> bool:
    """Whether a row is 0, 1, 2, ...; of less than three cells it may well be a sample."""
    return len(row) > 2 and [cell.strip() for cell in row] == [str(k) for k in range(len(row))]


def is_number(text: str) -> bool:
    """Whether a cell of a CSV file is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def to_dataset(arrays: Mapping[str, Any], name: str) -> Dataset:
    """Return arrays as a data set, or raise `DataError` if they are missing or invalid."""
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing == ["y"]:
        raise DataError(
            f"{name}: array 'y' is missing: without labels it is for 'fedgram predict' only; "
            "expected x (n, d) and y (n)"
        )
    if missing:
        raise DataError(f"{name}: array {missing[0]!r} is missing; expected x (n, d) and y (n)")
    given, y = _text(arrays.get("classes"), name), _text(arrays["y"], name)
    if given is None and y is not None and y.dtype.kind == "U":  # the names themselves
        found = coded(y, f"{name}: y")
        given, y = np.array(found.classes), found.codes
    codes = _codes(arrays["y"] if y is None else y, name)
    if given is not None and given.ndim != 1:
        raise DataError(f"{name}: classes: expected a list of names, got shape {given.shape}")
    if given is None:
        require_classes(np.unique(codes), len(codes), f"{name}: y")
        classes = numbered(codes, name)
    else:
        classes = [clean_name(str(label), f"{name}: class") for label in given]
    return Dataset(
        x=arrays["x"],
        y=codes,
        classes=tuple(classes),
        scale=arrays.get("scale"),
        offset=arrays.get("offset"),
        client=_names(arrays.get("client"), f"{name}: client"),
        domain=_names(arrays.get("domain"), f"{name}: domain"),
        split=arrays.get("split"),
        backbone=_word(arrays.get("backbone"), name),
        grid=_grid(arrays.get("grid"), name),
        columns=_columns(arrays.get("columns"), name),
        name=name,
    )


def _numbers(arrays: Mapping[str, Any], name: str, output_range: Any) -> Dataset:
    """Return the arrays of a regression as a data set."""
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        raise DataError(f"{name}: array {missing[0]!r} is missing; expected x (n, d) and y (n)")
    return Dataset(
        arrays["x"],
        _named_numbers(arrays, name) if "classes" in arrays else arrays["y"],
        scale=arrays.get("scale"),
        offset=arrays.get("offset"),
        client=_names(arrays.get("client"), f"{name}: client"),
        domain=_names(arrays.get("domain"), f"{name}: domain"),
        split=arrays.get("split"),
        backbone=_word(arrays.get("backbone"), name),
        grid=_grid(arrays.get("grid"), name),
        columns=_columns(arrays.get("columns"), name),
        name=name,
        task=REGRESSION,
        output_range=output_range,
    )


def _named_numbers(arrays: Mapping[str, Any], name: str) -> Array:
    """Return the outputs of a file whose classes are numbers, as 'fedgram features' writes them."""
    classes = [str(one) for one in np.asarray(arrays["classes"]).reshape(-1)]
    try:
        values = np.array([float(one) for one in classes])
    except ValueError as error:
        raise DataError(
            f"{name}: task: expected numbers, got classes such as {classes[0]!r}; leave the task "
            "out, or give an outcome of numbers"
        ) from error
    return values[_codes(np.asarray(arrays["y"]), name)]


def _grid(array: Array | None, name: str) -> tuple[int, float] | None:
    if array is None:
        return None
    numbers = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    if array.shape != (2,) or not numbers or not np.isfinite(array).all():
        raise DataError(f"{name}: grid: expected two numbers, bits and clip; create the file again")
    return int(array[0]), float(array[1])


def _columns(array: Array | None, name: str) -> tuple[str, ...]:
    """Return the names of columns; empty if the file has none."""
    array = _text(array, name)
    if array is None:
        return ()
    if array.ndim != 1 or array.dtype.kind != "U" or len(np.unique(array)) < len(array):
        raise DataError(f"{name}: columns: expected a list of different names, one per feature")
    return tuple(array.tolist())


def _word(array: Array | None, name: str) -> str:
    array = _text(array, name)
    if array is not None and array.size != 1:
        raise DataError(f"{name}: backbone: expected one text, got {array.size}")
    return "" if array is None else str(array.reshape(-1)[0])


def _text(array: Array | None, name: str) -> Array | None:
    """Return an array of bytes as an array of str; other arrays stay unchanged."""
    if array is not None and array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}: a text is not UTF-8 ({error}); create the file again"
            ) from error
    return array


def _names(array: Array | None, what: str) -> Array | None:
    """Return names of clients or domains, normalized; numbers stay unchanged."""
    array = _text(array, what)
    if array is None or array.dtype.kind != "U":
        return array
    given, places = np.unique(array.reshape(-1), return_inverse=True)
    clean = np.array([clean_name(str(one), what) for one in given], np.str_)
    return array if np.array_equal(given, clean) else clean[places].reshape(array.shape)


def _codes(y: Array, name: str) -> Integers:
    if y.ndim != 1:
        raise DataError(f"{name}: y: expected a class code for each sample, got shape {y.shape}")
    if y.dtype.kind in "US":
        raise DataError(
            f"{name}: y: expected the codes of the array 'classes', integers from 0, got texts; "
            "leave out 'classes' to take the texts as names of the classes"
        )
    if not np.issubdtype(y.dtype, np.integer):
        floats = np.issubdtype(y.dtype, np.floating)
        whole = floats and bool((np.abs(y) < 2**53).all()) and np.array_equal(y, np.rint(y))
        if not whole:
            raise DataError(
                f"{name}: y: expected integer class codes from 0, got {y.dtype} values "
                "(for numbers use data.task=regression, or task='regression' in Python)"
            )
    codes: Integers = y.astype(np.int64)
    return codes


def numbered(codes: Integers, name: str) -> list[str]:
    """Return the numbers from 0 to the largest class code, as names of classes."""
    count = int(codes.max(initial=-1)) + 1
    if count > max(1000, len(codes)):
        raise DataError(
            f"{name}: the largest label, {count - 1}, exceeds the number of samples; number the "
            "classes from 0, or add an array 'classes' of class names"
        )
    return [str(code) for code in range(count)]
