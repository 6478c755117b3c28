"""Inputs of feature extraction: images, texts or vectors with their labels, read by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from fedgram.core.samples import Array, Integers
from fedgram.data.archives import cifar_folder, idx_folder
from fedgram.data.sources import read_arrays, to_dataset
from fedgram.data.tabular.reader import SPLIT, SPLITS, Table, is_table, read_table
from fedgram.errors import DataError
from fedgram.runtime.text import normalized

ItemKind = Literal["images", "texts", "vectors"]
Labelling = Literal["required", "optional", "ignored"]
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An encoded image inside a data set.

    Parameters
    ----------
    name
        Name of the image in messages.
    data
        The bytes of the image file.
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
    """Images, texts or vectors to extract features from, with labels and metadata.

    Parameters
    ----------
    kind
        images (files, or arrays of height by width by channels), texts, or vectors.
    entries
        One per sample.
    y, classes
        Class codes and names; None and empty if the classes are unknown.
    client, domain, split
        As in a `Dataset`, if known.
    name
        Name of the data in messages.
    """

    kind: ItemKind
    entries: Sequence[Any]
    y: Integers | None = None
    classes: tuple[str, ...] = ()
    client: Array | None = None
    domain: Array | None = None
    split: Array | None = None
    name: str = "data"

    def __len__(self) -> int:
        return len(self.entries)


def content(entry: Any) -> bytes:
    """Return the bytes of an entry, for its digest; a file is read."""
    if isinstance(entry, Path | Encoded):
        return entry.read_bytes()
    if isinstance(entry, str):
        return entry.encode()
    array = np.ascontiguousarray(entry)
    return f"{array.dtype.str}{array.shape}".encode() + array.tobytes()


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of the columns of a table by their role.

    Parameters
    ----------
    text
        Column of texts; without a text column all other columns must be numbers.
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


def read_items(
    source: str, columns: Columns | None = None, *, labels: Labelling = "required"
) -> Items:
    """Return the items of a folder of images, a table, a file of arrays or a data set of the hub.

    A folder contains ``class/image``, ``client/class/image``, or ``train/class/image`` and
    ``test/class/image``; or the idx files of MNIST, or the python files of CIFAR. A table is
    ``.csv``, ``.jsonl`` or ``.parquet``. An ``.npz`` or ``.safetensors`` file contains ``x`` and
    ``y``; an ``x`` of three or four dimensions is an array of images. ``hf:NAME``, or a folder
    saved by the library ``datasets``, is a Hugging Face data set.

    Parameters
    ----------
    source
        Path or name of the data.
    columns
        The names of the columns of a table.
    labels
        Whether the class of each item is "required", "optional" (items have no classes if the
        source has none: images directly in the folder, a table without the column, no ``y``) or
        "ignored": then images may be in any folders.
    """
    from fedgram.data.hub import is_hub, read_hub  # hub imports `Items` from this module

    path, columns = Path(source), columns or Columns()
    if is_hub(source):
        return read_hub(source, columns, labels=labels)
    if columns.image is not None:
        raise DataError(f"{source}: only Hugging Face data sets have an image column")
    if path.is_dir():
        archive = idx_folder(path) or cifar_folder(path)
        return _arrays(archive, source, labels) if archive else _folder(path, labels)
    if path.suffix.lower() in IMAGE_SUFFIXES and labels != "required":
        return _images([path], str(path))
    if is_table(path):
        return _table(read_table(path), columns, labels)
    return _arrays(read_arrays(source), source, labels)


def _arrays(arrays: Mapping[str, Array], name: str, labels: Labelling) -> Items:
    x = arrays.get("x")
    if x is not None and (labels == "ignored" or (labels == "optional" and "y" not in arrays)):
        numbers = np.zeros(len(x), np.int64)  # unknown: not returned
        labelled = {**arrays, "y": numbers, "classes": np.array(["unknown"])}
        return replace(_arrays(labelled, name, "required"), y=None, classes=())
    images = x is not None and x.ndim in (3, 4)
    if images and x is not None and x.dtype != np.uint8:
        raise DataError(f"{name}: images: expected uint8, got {x.dtype}")
    # The same checks as for features; images are replaced by an array of two dimensions.
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


def _images(files: Sequence[Path], name: str) -> Items:
    return Items(kind="images", entries=files, name=name)


def _folder(root: Path, labels: Labelling) -> Items:
    files = sorted(p for p in root.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not files:
        wanted = "a folder of images for each class" if labels == "required" else "images"
        raise DataError(
            f"{root}: no images; expected {wanted}, in files that end with "
            f"{', '.join(sorted(IMAGE_SUFFIXES))}"
        )
    folders = [tuple(map(normalized, path.relative_to(root).parts[:-1])) for path in files]
    depths = {len(names) for names in folders}
    if labels == "ignored" or (labels == "optional" and depths == {0}):
        return _images(files, str(root))
    if len(depths) != 1 or not depths <= {1, 2}:
        raise DataError(
            f"{root}: expected all images at class/image, client/class/image or "
            "train/class/image, or all in this folder if their classes are unknown"
        )
    classes = sorted({names[-1] for names in folders})
    numbers = {name: code for code, name in enumerate(classes)}
    codes = np.array([numbers[names[-1]] for names in folders], np.int64)
    above = [names[0] for names in folders] if depths == {2} else []
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


def _table(table: Table, columns: Columns, labels: Labelling) -> Items:
    known = labels == "required" or (labels == "optional" and columns.label in table.columns)
    names = [normalized(name) for name in table.words(columns.label)] if known else []
    classes = sorted(set(names))
    numbers = {name: code for code, name in enumerate(classes)}
    if columns.text is not None:
        kind: ItemKind = "texts"
        entries: Any = table.words(columns.text)
    else:
        kind, entries = "vectors", _numbers(table, columns)
    return Items(
        kind=kind,
        entries=entries,
        y=np.array([numbers[name] for name in names], np.int64) if known else None,
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
        raise DataError(f"{table.name}: no feature columns; use --text for a text column")
    try:
        return np.array([[float(value) for value in values] for values in numbers]).T
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{table.name}: a feature is not a number ({error}); use --text for a text column, or "
            "remove the column"
        ) from error
