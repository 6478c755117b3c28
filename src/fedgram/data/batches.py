"""Data sets read in batches of rows: the memory that is used does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.arrow import SUFFIXES, arrow_batches
from fedgram.data.dataset import Dataset
from fedgram.data.sources import (
    array_header,
    flat,
    load_dataset,
    located,
    opened_npz,
    read_entries,
    to_dataset,
)
from fedgram.errors import DataError

BATCH_BYTES = 2**26  # of the features of a batch
_BY_ROW = ("y", "client", "domain", "split")


def dataset_batches(source: str) -> Iterator[Dataset]:
    """Yield a data set in batches of at most 64 MB of features, in the order of its rows.

    Parameters
    ----------
    source
        Path of an ``.npz`` file as in `load_dataset`, whose array ``x`` is never in memory as a
        whole; or of a ``.parquet`` or ``.arrow`` file with a list of numbers ``x``, a class ``y``
        (a number or a text) and perhaps ``split`` in each row. Any other source of `load_dataset`
        is one batch.

    Examples
    --------
    >>> [len(batch) for batch in dataset_batches("digits")]
    [1797]
    """
    if source.endswith(".npz"):
        return _npz_batches(located(source), source)
    if source.endswith(SUFFIXES):
        return _arrow_parts(located(source), source)
    return iter([load_dataset(source)])


def _npz_batches(path: Path, source: str) -> Iterator[Dataset]:
    with opened_npz(path) as (archive, entries):
        if "x" not in entries or "y" not in entries:
            yield load_dataset(source)  # which raises the error
            return
        with archive.open(entries["x"]) as file:
            shape, columns_first, kind = array_header(file, entries["x"])
            if columns_first or len(shape) < 2:  # rows cannot be read one after the other
                yield load_dataset(source)
                return
            others = {name: entry for name, entry in entries.items() if name not in ("x", "digest")}
            arrays = read_entries(path, archive, others)
            _require_rows(arrays, shape[0], source)
            if "classes" not in arrays:
                no_vectors = np.broadcast_to(np.int8(0), (shape[0], 1))
                whole = to_dataset({**arrays, "x": no_vectors}, source)
                arrays |= {"classes": np.array(whole.classes, np.str_), "y": whole.y}
            yield from _parts(file, shape, kind, arrays, source)


def _parts(
    file: IO[bytes],
    shape: tuple[int, ...],
    kind: np.dtype[Any],
    arrays: Mapping[str, Array],
    source: str,
) -> Iterator[Dataset]:
    """Yield the batches of an open array, with the other arrays of its rows."""
    row = int(np.prod(shape[1:])) * kind.itemsize
    step = max(1, BATCH_BYTES // max(1, row))
    for start in range(0, max(1, shape[0]), step):
        rows = min(step, shape[0] - start)
        content = bytearray(file.read(rows * row))
        x = np.frombuffer(content, kind) if content else np.empty(0, kind)
        part = slice(start, start + rows)
        here = {n: a[part] if n in _BY_ROW else a for n, a in arrays.items()}
        yield to_dataset(flat({**here, "x": x.reshape(rows, *shape[1:])}), _name(source, start))


def _require_rows(arrays: Mapping[str, Array], rows: int, source: str) -> None:
    for name in _BY_ROW:
        if name in arrays and arrays[name].shape != (rows,):
            raise DataError(
                f"{source}: {name} has shape {arrays[name].shape} but x has {rows} rows; give one "
                "entry per row"
            )


def _arrow_parts(path: Path, source: str) -> Iterator[Dataset]:
    start = 0
    for arrays in arrow_batches(path, source, BATCH_BYTES):
        yield to_dataset(arrays, _name(source, start))
        start += len(arrays["y"])


def _name(source: str, start: int) -> str:
    """Return the name of a batch in messages, in which rows are counted from its start."""
    return f"{source} (rows from {start})" if start else source
