"""What a backbone is run on: images, texts or vectors with their labels, read by name."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from fedgram.data.archives import cifar_folder, idx_folder
from fedgram.data.sources import TEST, TRAIN, VALID, read_arrays, to_dataset
from fedgram.errors import DataError
from fedgram.samples import Array, Integers
from fedgram.settings import propose

Kind = Literal["images", "texts", "vectors"]
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")
SPLITS = {"train": TRAIN, "valid": VALID, "val": VALID, "test": TEST}


@dataclass(frozen=True, eq=False, kw_only=True)
class Items:
    """Things to be turned into features, with what is known of each.

    Parameters
    ----------
    kind
        images (files, or arrays of height by width by channels), texts, or vectors.
    entries
        One per sample.
    y, classes
        Class codes and names.
    client, domain, split
        As in a `Dataset`, where known.
    name
        What to call the data in messages.
    """

    kind: Kind
    entries: Sequence[Any]
    y: Integers
    classes: tuple[str, ...]
    client: Array | None = None
    domain: Array | None = None
    split: Array | None = None
    name: str = "data"

    def __len__(self) -> int:
        return len(self.y)


def content(entry: Any) -> bytes:
    """Return the bytes that make an entry what it is: a file is read, others are in memory."""
    if isinstance(entry, Path):
        return entry.read_bytes()
    if isinstance(entry, str):
        return entry.encode()
    array = np.ascontiguousarray(entry)
    return f"{array.dtype.str}{array.shape}".encode() + array.tobytes()


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a table mean what.

    Parameters
    ----------
    text
        Column of texts; without one, all other columns must be numbers.
    label
        Column of class names.
    client, domain
        Columns of client and domain names.
    """

    text: str | None = None
    label: str = "label"
    client: str | None = None
    domain: str | None = None


def read_items(source: str, columns: Columns | None = None) -> Items:
    """Return the items of a folder of images, a table, or a file of arrays.

    A folder holds ``class/image``, ``client/class/image``, or ``train/class/image`` beside
    ``test/class/image``; or the idx files of MNIST, or the python files of CIFAR. A table is
    ``.csv``, ``.jsonl`` or ``.parquet``. An ``.npz`` or ``.safetensors`` file holds ``x`` and
    ``y``; three or four dimensions of ``x`` are images.
    """
    path, columns = Path(source), columns or Columns()
    if path.is_dir():
        archive = idx_folder(path) or cifar_folder(path)
        return _arrays(archive, source) if archive else _folder(path)
    tables: Mapping[str, Callable[[Path], list[dict[str, Any]]]] = {
        ".csv": _csv_rows,
        ".jsonl": _json_rows,
        ".parquet": _parquet_rows,
    }
    if path.suffix in tables:
        if not path.is_file():
            raise DataError(f"{source}: there is no such file")
        return _table(tables[path.suffix](path), columns, source)
    return _arrays(read_arrays(source), source)


def _arrays(arrays: Mapping[str, Array], name: str) -> Items:
    x = arrays.get("x")
    images = x is not None and x.ndim in (3, 4)
    if images and x is not None and x.dtype != np.uint8:
        raise DataError(f"{name}: images must be stored as uint8, not {x.dtype}")
    # The same checks as for features, with a stand-in of two dimensions for images.
    flat = {**arrays, "x": np.zeros((len(x), 1))} if images and x is not None else arrays
    data = to_dataset(flat, name)
    if not images:
        real = data.x * (1.0 if data.scale is None else data.scale)
        x = real if data.offset is None else real + data.offset
    return Items(
        kind="images" if images else "vectors",
        entries=cast(Sequence[Any], x),
        y=data.y,
        classes=data.classes,
        client=data.client,
        domain=data.domain,
        split=data.split,
        name=name,
    )


def _folder(root: Path) -> Items:
    files = sorted(p for p in root.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not files:
        raise DataError(f"{root}: holds no images; put them in a folder for each class")
    parts = [path.relative_to(root).parts[:-1] for path in files]
    depths = {len(part) for part in parts}
    if len(depths) != 1 or not depths <= {1, 2}:
        raise DataError(
            f"{root}: images must lie in class/image, client/class/image or train/class/image, "
            "all alike"
        )
    classes = sorted({part[-1] for part in parts})
    codes = np.array([classes.index(part[-1]) for part in parts], np.int64)
    above = [part[0] for part in parts] if depths == {2} else []
    splits = bool(above) and set(above) <= set(SPLITS)
    return Items(
        kind="images",
        entries=files,
        y=codes,
        classes=tuple(classes),
        split=np.array([SPLITS[name] for name in above]) if splits else None,
        client=np.array(above) if above and not splits else None,
        name=str(root),
    )


def _table(rows: list[dict[str, Any]], columns: Columns, name: str) -> Items:
    if not rows:
        raise DataError(f"{name}: holds no rows")
    known = list(rows[0])
    named = [columns.label, columns.text, columns.client, columns.domain]
    for column in named:
        if column is not None and column not in known:
            raise DataError(f"{name}: there is no column {column!r}; {propose(column, known)}")
    labels = _column(rows, columns.label, name)
    classes = sorted(set(labels))
    if columns.text is not None:
        kind: Kind = "texts"
        entries: Any = _column(rows, columns.text, name)
    else:
        kind = "vectors"
        entries = _numbers(rows, [c for c in known if c not in named and c != "split"], name)
    return Items(
        kind=kind,
        entries=entries,
        y=np.array([classes.index(label) for label in labels], np.int64),
        classes=tuple(classes),
        client=_optional(rows, columns.client, name),
        domain=_optional(rows, columns.domain, name),
        split=_split(rows, name) if "split" in known else None,
        name=name,
    )


def _column(rows: Iterable[Mapping[str, Any]], column: str, name: str) -> list[str]:
    values = [row.get(column) for row in rows]
    for line, value in enumerate(values, 1):
        if value is None:
            raise DataError(f"{name}: row {line} has no {column!r}; fill it in or remove the row")
    return [str(value) for value in values]


def _optional(rows: list[dict[str, Any]], column: str | None, name: str) -> Array | None:
    return None if column is None else np.array(_column(rows, column, name))


def _split(rows: list[dict[str, Any]], name: str) -> Array:
    words = _column(rows, "split", name)
    codes = {**SPLITS, "0": TRAIN, "1": VALID, "2": TEST}
    wrong = [word for word in words if word not in codes]
    if wrong:
        raise DataError(f"{name}: split {wrong[0]!r} is none of {', '.join(codes)}")
    return np.array([codes[word] for word in words])


def _numbers(rows: list[dict[str, Any]], columns: list[str], name: str) -> Array:
    if not columns:
        raise DataError(f"{name}: no columns are left for features; name the text column?")
    try:
        return np.array([[float(row[c]) for c in columns] for row in rows])
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"{name}: a feature is not a number ({error}); name the text column, or remove it"
        ) from error


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from error


def _json_rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [dict(json.loads(line)) for line in lines if line.strip()]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: cannot be read as JSON lines ({error})") from error


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{path}: reading Parquet needs: pip install 'fedgram[tables]'") from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except Exception as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from error
    return rows
