"""Parquet and Arrow files of features: a list of numbers and a class in each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.sources import numbered
from fedgram.errors import DataError, FedgramError

SUFFIXES = (".parquet", ".arrow")
_LABELS = 2**20  # rows of labels that are read at a time


def arrow_batches(path: Path, source: str, most: int) -> Iterator[dict[str, Array]]:
    """Yield the arrays of a data set in batches of about `most` bytes of features.

    The columns are ``x``, ``y`` and perhaps ``split``. The file is read twice: first the classes,
    then the rows. Of a Parquet file, one row group at a time may be in memory.

    Parameters
    ----------
    path
        The file.
    source
        Its name in errors.
    most
        Number of bytes.
    """
    try:
        names = _columns(path)
        if not {"x", "y"} <= names:
            raise DataError(f"{source}: expected columns x and y, got {', '.join(sorted(names))}")
        classes = np.array(_classes(path, source), np.str_)
        wanted = [name for name in ("x", "y", "split") if name in names]
        for table in _tables(path, wanted, _rows(path, most)):
            x, y, *split = (table.column(name) for name in wanted)
            arrays = {"x": _matrix(x, source), "y": _codes(y, classes), "classes": classes}
            if split:
                arrays["split"] = split[0].to_numpy(zero_copy_only=False)
            yield arrays
    except FedgramError:
        raise
    except Exception as error:  # pyarrow has many types of errors
        raise DataError(f"{source}: cannot be read ({error}); create the file again") from error


def _rows(path: Path, most: int) -> int:
    """Return the number of rows of a batch."""
    first = next(_tables(path, ["x"], 1), None)
    return max(1, most // max(1, first.column(0).nbytes)) if first is not None else 1


def _pyarrow() -> Any:
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("Parquet and Arrow files need: pip install 'fedgram[tables]'") from error
    return pyarrow


def _columns(path: Path) -> set[str]:
    arrow = _pyarrow()
    if path.suffix == ".parquet":
        return set(arrow.parquet.read_schema(path).names)
    with arrow.memory_map(str(path)) as file:
        return set(arrow.ipc.open_file(file).schema.names)


def _tables(path: Path, names: Sequence[str], rows: int) -> Iterator[Any]:
    """Yield record batches with these columns, in this order, of at most this number of rows."""
    arrow = _pyarrow()
    if path.suffix == ".parquet":
        with arrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(rows, columns=list(names)):
                yield batch.select(list(names))
        return
    with arrow.memory_map(str(path)) as mapped:
        reader = arrow.ipc.open_file(mapped)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number).select(list(names))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _classes(path: Path, source: str) -> list[str]:
    """Return the class names: the texts of ``y``, sorted, or its numbers up to the largest."""
    found: set[Any] = set()
    for table in _tables(path, ["y"], _LABELS):
        found.update(table.column(0).unique().to_pylist())
    if None in found:
        raise DataError(f"{source}: y: a row has no class; remove or correct it")
    if all(isinstance(value, str) for value in found):
        return sorted(found)
    if not all(isinstance(value, int) and value >= 0 for value in found):
        raise DataError(f"{source}: y: expected integer class codes from 0, or texts")
    return numbered(np.array(sorted(found), np.int64), source)


def _codes(column: Any, classes: Array) -> Array:
    values = np.array(column.to_pylist())
    return np.searchsorted(classes, values) if values.dtype.kind == "U" else values


def _matrix(column: Any, source: str) -> Array:
    """Return a column of lists of numbers as rows; all lists must have one length."""
    lists = column.flatten()
    lengths = set() if column.null_count else set(column.value_lengths().unique().to_pylist())
    if lists.null_count or len(lengths) != 1:
        raise DataError(f"{source}: x: expected lists of one length, without missing values")
    rows: Array = lists.to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return rows
