"""What a backbone is run on: images, texts or vectors with their labels, read by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from fedgram.core.samples import Array, Integers
from fedgram.data.archives import cifar_folder, idx_folder
from fedgram.data.sources import read_arrays, to_dataset
from fedgram.data.tabular.reader import SPLIT, SPLITS, Table, is_table, read_table
from fedgram.errors import DataError

ItemKind = Literal["images", "texts", "vectors"]
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An image that lies in a data set as the bytes of a file.

    Parameters
    ----------
    name
        What to call it in messages.
    data
        What a file of its own would hold.
    """

    name: str
    data: bytes

    def __str__(self) -> str:
        return self.name

    def read_bytes(self) -> bytes:
        """Return the bytes, as a path does."""
        return self.data


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

    kind: ItemKind
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
    if isinstance(entry, Path | Encoded):
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
    image
        Column of images in a data set of the Hugging Face hub; by default the only one.
    client, domain
        Columns of client and domain names.
    """

    text: str | None = None
    image: str | None = None
    label: str = "label"
    client: str | None = None
    domain: str | None = None


def read_items(source: str, columns: Columns | None = None) -> Items:
    """Return the items of a folder of images, a table, a file of arrays or a data set of the hub.

    A folder holds ``class/image``, ``client/class/image``, or ``train/class/image`` beside
    ``test/class/image``; or the idx files of MNIST, or the python files of CIFAR. A table is
    ``.csv``, ``.jsonl`` or ``.parquet``. An ``.npz`` or ``.safetensors`` file holds ``x`` and
    ``y``; three or four dimensions of ``x`` are images. ``hf:NAME``, or a folder that the library
    ``datasets`` has saved, is a data set of the Hugging Face hub.
    """
    from fedgram.data.hub import is_hub, read_hub  # which is made of what stands here

    path, columns = Path(source), columns or Columns()
    if is_hub(source):
        return read_hub(source, columns)
    if columns.image is not None:
        raise DataError(f"{source}: only data sets of the hub have a column of images")
    if path.is_dir():
        archive = idx_folder(path) or cifar_folder(path)
        return _arrays(archive, source) if archive else _folder(path)
    if is_table(path):
        return _table(read_table(path), columns)
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


def _table(table: Table, columns: Columns) -> Items:
    labels = table.words(columns.label)
    classes = sorted(set(labels))
    if columns.text is not None:
        kind: ItemKind = "texts"
        entries: Any = table.words(columns.text)
    else:
        kind, entries = "vectors", _numbers(table, columns)
    return Items(
        kind=kind,
        entries=entries,
        y=np.array([classes.index(label) for label in labels], np.int64),
        classes=tuple(classes),
        client=table.names(columns.client),
        domain=table.names(columns.domain),
        split=table.split(),
        name=table.name,
    )


def _numbers(table: Table, columns: Columns) -> Array:
    named = (columns.label, columns.client, columns.domain, SPLIT)
    numbers = [values for name, values in table.columns.items() if name not in named]
    if not numbers:
        raise DataError(f"{table.name}: no columns are left for features; name the text column?")
    try:
        return np.array([[float(value) for value in values] for values in numbers]).T
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{table.name}: a feature is not a number ({error}); name the text column, or remove it"
        ) from error
