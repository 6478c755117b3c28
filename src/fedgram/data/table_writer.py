"""Rows written one batch after the other as CSV, JSON lines, JSON or Parquet, in one step."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from fedgram.errors import ConfigError
from fedgram.runtime.files import cannot_write
from fedgram.runtime.text import csv_cell

TableFormat = Literal["csv", "parquet", "jsonl", "json"]
FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
Columns = Mapping[str, Sequence[Any]]
Write = Callable[[Columns], None]


def format_of(path: Path, given: TableFormat | None = None) -> TableFormat:
    """Return the format of a file: the given one, else that of the ending of its name.

    Examples
    --------
    >>> format_of(Path("a.csv")), format_of(Path("a.txt"), "jsonl")
    ('csv', 'jsonl')
    """
    if given is not None:
        return given
    for known in FORMATS:
        if path.suffix == f".{known}":
            return known
    expected = ", ".join(f".{known}" for known in FORMATS)
    raise ConfigError(f"{path}: expected a name that ends in {expected}; or give --format")


@contextmanager
def writer(path: Path, kind: TableFormat, *, full: bool = False) -> Iterator[Write]:
    """Yield a function that writes columns of some rows; the file appears when all are written.

    Parameters
    ----------
    path, kind
        The file and its format.
    full
        Whether numbers of a CSV file have all their digits.
    """
    part = path.with_name(path.name + ".part")
    opened: dict[TableFormat, Callable[[Path], AbstractContextManager[Write]]] = {
        "csv": partial(_csv_file, full=full),
        "jsonl": _lines_file,
        "json": _json_file,
        "parquet": _parquet_file,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with opened[kind](part) as write:
            yield write
        part.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if part.is_file():
            part.unlink()


def csv_text(columns: Columns, *, header: bool, full: bool = False) -> str:
    r"""Return rows as CSV, in which no cell is a formula.

    Parameters
    ----------
    columns
        The rows, by column.
    header
        Whether the names of the columns come first.
    full
        Whether numbers have all their digits, else six.

    Examples
    --------
    >>> csv_text({"item": ["a.png", "=b"], "score": [0.25, 1e-9]}, header=True)
    "item,score\na.png,0.25\n'=b,1e-09\n"
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if header:
        lines.writerow([csv_cell(name) for name in columns])
    for row in zip(*columns.values(), strict=True):
        lines.writerow([_number(v, full) if isinstance(v, float) else csv_cell(v) for v in row])
    return text.getvalue()


def _number(value: float, full: bool) -> str:
    return repr(value) if full else f"{value:.6g}"


@contextmanager
def _csv_file(path: Path, *, full: bool) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="") as file:
        first = [True]

        def write(columns: Columns) -> None:
            file.write(csv_text(columns, header=first[0], full=full))
            first[0] = False

        yield write


@contextmanager
def _lines_file(path: Path) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda columns: file.writelines(f"{line}\n" for line in _entries(columns))


@contextmanager
def _json_file(path: Path) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:
        file.write('{"predictions": [')
        before = [""]

        def write(columns: Columns) -> None:
            for line in _entries(columns):
                file.write(f"{before[0]}\n  {line}")
                before[0] = ","

        yield write
        file.write("\n]}\n")


def _entries(columns: Columns) -> Iterator[str]:
    for row in zip(*columns.values(), strict=True):
        yield json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)


@contextmanager
def _parquet_file(path: Path) -> Iterator[Write]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("writing Parquet needs: pip install 'fedgram[tables]'") from error
    opened: list[Any] = []

    def write(columns: Columns) -> None:
        table = pa.table(dict(columns))
        if not opened:
            opened.append(parquet.ParquetWriter(path, table.schema))
        opened[0].write_table(table)

    try:
        yield write
    finally:
        for file in opened:
            file.close()
