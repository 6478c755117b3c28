"""Reader of tables (CSV, JSON lines, Parquet), in chunks of rows."""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.dataset import TEST, TRAIN, VALID
from fedgram.data.sources import is_number
from fedgram.errors import DataError, FedgramError
from fedgram.runtime import memory
from fedgram.runtime.parse import json_object
from fedgram.runtime.settings import propose

ROWS_AT_A_TIME = 2**14  # bounds memory: a table may have millions of rows
SPLIT = "split"  # name of the optional column with train, valid or test
SPLITS = {"train": TRAIN, "valid": VALID, "val": VALID, "test": TEST}
_SPLIT_WORDS = {**SPLITS, "0": TRAIN, "1": VALID, "2": TEST}
_CELLS, _CELLS_PER_BYTE = 10**6, 16  # of a table of JSON lines, with missing ones
_WHOLE_UP_TO = 2**53  # smaller whole floats are written as integers: 2.0 as 2


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Rows of a table, by columns.

    Parameters
    ----------
    name
        Name of the table in messages.
    columns
        The values of each column; all columns have the same length.
    start
        Number of rows of the file before these rows.

    Examples
    --------
    >>> table = Table(name="ward.csv", columns={"age": ["61", ""], "sex": ["f", "m"]})
    >>> len(table), table.column("age")
    (2, ['61', ''])
    >>> table.column("sexe")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: ward.csv: column 'sexe' is missing; did you mean 'sex'?
    """

    name: str
    columns: Mapping[str, Sequence[Any]]
    start: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def column(self, column: str) -> Sequence[Any]:
        """Return the values of a column; raise `DataError` if the column is missing."""
        if column not in self.columns:
            near = propose(column, self.columns)
            raise DataError(f"{self.name}: column {column!r} is missing; {near}")
        return self.columns[column]

    def row(self, index: int) -> str:
        """Return the place of a row for messages: rows count from 1, below the header."""
        return f"{self.name}: row {self.start + index + 1}"

    def words(self, column: str) -> list[str]:
        """Return a column as texts; raise `DataError` at a missing value."""
        values = self.column(column)
        for index, value in enumerate(values):
            if value is None:
                raise DataError(
                    f"{self.row(index)}: {column!r} is missing; fill it in or remove the row"
                )
        return [str(value) for value in values]

    def texts(self, column: str) -> list[str]:
        """Return a column as stripped texts; a missing value is the empty text."""
        values = self.column(column)
        try:
            return list(map(str.strip, values))
        except TypeError:  # not all values are texts
            return [text(value) for value in values]

    def names(self, column: str | None) -> Array | None:
        """Return a column of names, or None if `column` is None."""
        return None if column is None else np.array(self.words(column))

    def split(self) -> Array | None:
        """Return the split code of each row, or None without a split column."""
        if SPLIT not in self.columns:
            return None
        words = self.words(SPLIT)
        for index, word in enumerate(words):
            if word not in _SPLIT_WORDS:
                known = ", ".join(_SPLIT_WORDS)
                raise DataError(f"{self.row(index)}: split: expected one of {known}, got {word!r}")
        return np.array([_SPLIT_WORDS[word] for word in words])

    def training_mask(self) -> Array:
        """Return a mask of the rows for training and validation: all rows but test rows."""
        split = self.split()
        return np.ones(len(self), bool) if split is None else split != TEST


def text(value: Any) -> str:
    """Return a cell as text, equally for all file formats; a missing cell is the empty text.

    Examples
    --------
    >>> [text(cell) for cell in (" f ", 2, 2.0, 2.5, True, None)]
    ['f', '2', '2', '2.5', 'true', '']
    """
    if isinstance(value, str):
        return value.strip()
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and abs(value) < _WHOLE_UP_TO:
        return str(int(value)) if value == int(value) else repr(float(value))
    return str(value)


def read_table(path: Path) -> Table:
    """Return all rows of a file."""
    parts = list(read_tables(path))
    columns = {
        name: [value for part in parts for value in part.columns[name]] for name in parts[0].columns
    }
    return Table(name=str(path), columns=columns)


def read_tables(path: Path, rows: int = ROWS_AT_A_TIME) -> Iterator[Table]:
    """Yield the rows of a ``.csv``, ``.jsonl`` or ``.parquet`` file in chunks of `rows`."""
    if not path.is_file():
        raise DataError(f"{path}: file not found")
    start = 0
    for columns in _READERS[path.suffix](path, rows):
        table = Table(name=str(path), columns=columns, start=start)
        yield table
        start += len(table)
    if not start:
        raise DataError(f"{path}: no rows")


def is_table(path: Path) -> bool:
    """Whether a file of this name is read as a table."""
    return path.suffix in _READERS


def csv_header(path: Path) -> list[str]:
    """Return the cells of the first line of a ``.csv`` file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [cell.strip() for cell in next(filter(None, csv.reader(file)), [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from error


Cells = Mapping[str, Sequence[Any]]


def _csv(path: Path, rows: int) -> Iterator[Cells]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = (line for line in csv.reader(file) if line)
            header = [name.strip() for name in next(lines, [])]
            _require_names(header, path)
            _require_unique(header, path)
            checked = _require_length(lines, header, path)
            while chunk := list(itertools.islice(checked, rows)):
                yield dict(zip(header, map(list, zip(*chunk, strict=True)), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from error


def _require_names(header: Sequence[str], path: Path) -> None:
    """Raise DataError if the first line is a row of numbers; places 0, 1, ... are names."""
    if all(map(is_number, header)) and header != [str(place) for place in range(len(header))]:
        raise DataError(
            f"{path}: expected the names of the columns in the first line, got numbers such as "
            f"{header[0]}; add a line of names"
        )


def _require_unique(header: Sequence[str], path: Path) -> None:
    if len(set(header)) < len(header):
        twice = Counter(header).most_common(1)[0][0]
        raise DataError(f"{path}: two columns are named {twice!r}; use a unique name for each")


def _require_length(
    lines: Iterable[list[str]], header: list[str], path: Path
) -> Iterator[list[str]]:
    for number, line in enumerate(lines, 1):
        if len(line) != len(header):
            raise DataError(
                f"{path}: row {number}: expected {len(header)} entries, got {len(line)}; "
                "correct the row, or quote texts with commas"
            )
        yield line


def _jsonl(path: Path, rows: int) -> Iterator[Cells]:
    # Read twice: a key may be absent from some lines, and the columns are the keys of all lines.
    lines, known = 0, dict[str, None]()
    for entry in _json_lines(path):
        lines += 1
        known.update(dict.fromkeys(entry))
    cells = lines * len(known)
    if cells > _CELLS + _CELLS_PER_BYTE * path.stat().st_size:  # almost all of them are missing
        raise DataError(
            f"{path}: {lines} lines of {len(known)} different keys, almost all of them missing; "
            "use the same keys in every line"
        )
    entries = _json_lines(path)
    while chunk := list(itertools.islice(entries, rows)):
        yield {key: [entry.get(key) for entry in chunk] for key in known}


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    yield json_object(line)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON lines ({error})") from error


def _parquet(path: Path, rows: int) -> Iterator[Cells]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{path}: reading Parquet needs: pip install 'fedgram[tables]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            _require_unique(file.schema_arrow.names, path)
            cells = file.metadata.num_rows * len(file.schema_arrow.names)
            memory.require(8 * cells, str(path), "use fewer rows")
            for batch in file.iter_batches(rows):
                yield batch.to_pydict()
    except FedgramError:
        raise
    except Exception as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from error


_READERS: Mapping[str, Callable[[Path, int], Iterator[Cells]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
