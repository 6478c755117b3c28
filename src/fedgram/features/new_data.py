"""Samples without labels, from files to the feature space of a model, in batches.

A model knows which backbone its features come from, by name and digest. Images, texts and rows of a
table go through that backbone; vectors must come from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedgram.core.layouts import ImageLayout, TableLayout, name_and_digest, source_and_model
from fedgram.core.samples import Array, Features, Space
from fedgram.data.dataset import Dataset, Vectors
from fedgram.data.hub import is_hub
from fedgram.data.items import IMAGE_SUFFIXES, Columns, Encoded, Items, read_items
from fedgram.data.sources import array_header, is_number, load_vectors, located, opened_npz
from fedgram.data.tabular.reader import Table, csv_header, is_table, read_tables
from fedgram.data.tabular.schema import Schema
from fedgram.errors import ConfigError, DataError, MismatchError, RowError
from fedgram.features.backbones.registry import Backbone, Staged, find
from fedgram.features.column_order import places
from fedgram.features.extract import decoded
from fedgram.features.grid import Grid
from fedgram.features.standardize import Standardization, is_standardized, require_means
from fedgram.features.stored import features_of
from fedgram.features.tabular import rows as table_rows
from fedgram.runtime.settings import propose

DIGITS = 16  # of a backbone's digest in the name of a feature space
_ROWS = 4096  # vectors or table rows at a time
_TEXT_SOURCES = ("wordllama", "hf")  # of backbones that may take texts
_TEXT = "text"  # the column of texts if there are several columns


@dataclass(frozen=True, eq=False, kw_only=True)
class NewBatch:
    """Some samples without labels.

    Parameters
    ----------
    names
        The name of each sample: a file's path, or the number of a row.
    features
        Their features.
    skipped
        Names of images of this batch that cannot be read.
    """

    names: Sequence[str]
    features: Features
    skipped: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class NewData:
    """How to read samples without labels.

    Parameters
    ----------
    backbone
        Name of the backbone; by default the one that the model names.
    weights
        File of weights, for backbones whose name is an architecture.
    near
        Folder in which an ONNX file that the model names is looked for too.
    text
        Column of texts.
    name
        Column with the name of each row; by default rows are numbered.
    schema
        What the columns of a table mean.
    columns
        Names of the columns of the model, if known: tables with names are brought in this order,
        and their other columns are left out. Files without names are taken by position.
    standardization
        Makes features of raw columns, if the model was made of such.
    batch
        Number of images or texts at a time.
    workers
        Number of threads that decode images.
    broken
        Images that cannot be read: "refuse" (an error) or "skip".
    """

    backbone: str = ""
    weights: Path | None = None
    near: Path | None = None
    text: str | None = None
    name: str | None = None
    schema: Schema | None = None
    columns: tuple[str, ...] = ()
    standardization: Standardization | None = None
    batch: int = 64
    workers: int = 2
    broken: Literal["refuse", "skip"] = "refuse"

    def batches(self, source: str, space: Space) -> Iterator[NewBatch]:
        """Yield the features of a source in the space of a model.

        Parameters
        ----------
        source
            An image or a folder of images, a table with a column of texts or with the columns of
            the schema, a ``.txt`` file with a text in each line, or a file of vectors.
        space
            The feature space of the model.
        """
        path = Path(source)
        if isinstance(space.layout, TableLayout) and is_table(path):
            return self._table_rows(path, space)
        if is_hub(source) or path.is_dir() or path.suffix.lower() in (*IMAGE_SUFFIXES, ".txt"):
            return self._embedded(source, space)
        if is_table(path) and (self.text or self._takes_texts(space)):
            return self._embedded(source, space)
        if is_table(path) and (path.suffix != ".csv" or self._names_columns(path)):
            return self._numbers(path, space)
        return self._vectors(source, space)

    # Rows of a table with a schema

    def _table_rows(self, path: Path, space: Space) -> Iterator[NewBatch]:
        schema = self.schema
        if schema is None:
            raise DataError(
                f"{path}: the model was made for {space.backbone}; give that schema with --schema"
            )
        if schema.backbone != space.backbone:
            raise MismatchError(
                f"the schema is {schema.backbone}, but the model was made for "
                f"{space.backbone or 'vectors'}; use the schema that its features were made with"
            )
        grid = Grid.of(space)
        for table in read_tables(path, _ROWS):
            features = grid.stored(table_rows(schema, table, grid), backbone=schema.backbone)
            yield NewBatch(names=self._row_names(table), features=features)

    def _row_names(self, table: Table) -> list[str]:
        if self.name is not None:
            return table.words(self.name)
        return _numbered(len(table), table.start)

    # Vectors

    def _vectors(self, source: str, space: Space) -> Iterator[NewBatch]:
        if _holds_images(source) and not _is_flat(space):
            return self._embedded(source, space)
        return self._on_grid(load_vectors(source), space, source)

    def _numbers(self, path: Path, space: Space) -> Iterator[NewBatch]:
        for table in read_tables(path, _ROWS):
            names = self._chosen(table)
            try:
                x = np.array([[float(cell) for cell in table.columns[name]] for name in names]).T
            except (TypeError, ValueError) as error:
                raise DataError(
                    f"{path}: a feature is not a number ({error}); expected {space.inputs} columns "
                    "of numbers; name a column of texts with --text, of names with --name"
                ) from error
            rows = self._on_grid(Vectors(x=x), space, str(path))
            yield replace(next(rows), names=self._row_names(table))

    def _chosen(self, table: Table) -> list[str]:
        """Return the columns of features, in the order of the model if it knows their names."""
        named = list(table.columns)
        if self.columns:
            return [named[place] for place in places(self.columns, named, table.name)]
        return [name for name in named if name != self.name]

    def _names_columns(self, path: Path) -> bool:
        """Whether the first line of a CSV file names columns, and the model knows such names."""
        return bool(self.columns) and any(not is_number(cell) for cell in csv_header(path))

    def _on_grid(self, found: Vectors, space: Space, source: str) -> Iterator[NewBatch]:
        _require_source(found, space, source)
        standardized = self._standardized(found, space, source)
        for start in range(0, max(1, len(found.x)), _ROWS):
            x = found.x[start : start + _ROWS]
            if standardized is not None:
                names = _numbered(len(x), start)
                yield NewBatch(names=names, features=standardized(x, Grid.of(space)))
                continue
            data = Dataset(
                x=x,
                y=np.zeros(len(x), np.int64),  # unknown, and not used
                classes=("",),
                scale=found.scale,
                offset=found.offset,
                backbone=space.backbone,  # that of the vectors, or they do not name theirs
                grid=found.grid,
                name=source if not start else f"{source} (rows from {start})",
            )
            features = features_of(data, Grid.of(space))
            yield NewBatch(names=_numbered(len(x), start), features=features)

    def _standardized(self, found: Vectors, space: Space, source: str) -> Standardization | None:
        """Return what makes features of these raw columns; None for features."""
        if found.backbone or not is_standardized(space):
            return None
        known = require_means(self.standardization, space, source)
        if not np.isfinite(found.x.astype(np.float64)).all():
            row = int(np.flatnonzero(~np.isfinite(found.x).all(axis=1))[0])
            raise DataError(f"{source}: row {row}: a column is NaN or infinite; correct it")
        return known

    # Images and texts, through the backbone

    def _embedded(self, source: str, space: Space) -> Iterator[NewBatch]:
        items, named = self._items(source)
        yield from self.embedded(items, named, space, self._backbone(space, items))

    def embedded(
        self, items: Items, named: Sequence[str], space: Space, backbone: Backbone
    ) -> Iterator[NewBatch]:
        """Yield the features of images or texts in the space of a model.

        Parameters
        ----------
        items, named
            The samples, and their names.
        space
            The feature space of the model.
        backbone
            The backbone of this space, from `backbone_of`.
        """
        if backbone.takes != items.kind:
            raise MismatchError(
                f"{items.name}: {items.kind}, but {backbone.name}, the backbone of the model, "
                f"takes {backbone.takes}"
            )
        grid = Grid.of(space)
        with ThreadPoolExecutor(self.workers) as pool:
            for start in range(0, len(items), self.batch):
                part = range(start, min(start + self.batch, len(items)))
                ready = list(pool.map(lambda i: self._prepared(items.entries[i], backbone), part))
                kept = [i for i, one in zip(part, ready, strict=True) if one is not None]
                if kept:
                    inputs = [one for one in ready if one is not None]
                    x = _embed(backbone, inputs)
                    features = self._quantized(x, grid, space, [named[i] for i in kept])
                else:
                    features = Features(np.zeros((0, space.width)), space)
                yield NewBatch(
                    names=[named[i] for i in kept],
                    features=features,
                    skipped=[named[i] for i in part if i not in set(kept)],
                )

    def _items(self, source: str) -> tuple[Items, list[str]]:
        """Return the items of a source with their names."""
        path = Path(source)
        if path.suffix == ".txt":
            texts = _lines(path)
            return Items(kind="texts", entries=texts, name=source), _numbered(len(texts))
        if is_table(path):
            column = self.text or _text_column(path)
            if self.name is None:
                items = read_items(source, Columns(text=column), labels="ignored")
                return items, _numbered(len(items))
            tables = list(read_tables(path))
            texts = [text for table in tables for text in table.words(column)]
            named = [name for table in tables for name in self._row_names(table)]
            return Items(kind="texts", entries=texts, name=source), named
        items = read_items(source, Columns(text=self.text), labels="ignored")
        if path.is_dir() and items.entries and isinstance(items.entries[0], Path):
            return items, [str(entry.relative_to(path)) for entry in items.entries]
        files = [e for e in items.entries[:1] if isinstance(e, Path | Encoded)]
        named = [str(entry) for entry in items.entries] if files else []
        return items, named or _numbered(len(items))

    def _prepared(self, entry: Any, backbone: Backbone) -> Any:
        if backbone.takes == "images":
            try:
                entry = decoded(entry)
            except DataError:
                if self.broken == "refuse":
                    raise
                return None
        return backbone.prepare(entry) if isinstance(backbone, Staged) else entry

    def _quantized(self, x: Array, grid: Grid, space: Space, named: Sequence[str]) -> Features:
        if x.shape[1] != space.inputs:
            raise MismatchError(
                f"the backbone gives {x.shape[1]} features, the model was made for {space.inputs}; "
                "use the model's backbone"
            )
        try:
            return grid(x, backbone=space.backbone)
        except RowError as error:
            raise DataError(
                f"{named[error.row]}: the features of {space.backbone} are NaN or infinite; "
                "correct or remove the item"
            ) from error

    def _backbone(self, space: Space, items: Items) -> Backbone:
        if not space.backbone and not self.backbone:
            raise ConfigError(
                f"{items.name}: {items.kind}, but the model was made from vectors and names no "
                "backbone; give vectors, or the backbone that made its features with --backbone"
            )
        return backbone_of(space, given=self.backbone, weights=self.weights, near=self.near)

    def _takes_texts(self, space: Space) -> bool:
        """Whether the backbone of the model takes texts; no if it cannot be had here."""
        wanted = self.backbone or name_and_digest(space.backbone)[0]
        if wanted.partition(":")[0] not in _TEXT_SOURCES:
            return False
        try:
            return find(wanted, self.weights).takes == "texts"
        except (ConfigError, DataError):
            return False


def backbone_of(
    space: Space, *, given: str = "", weights: Path | None = None, near: Path | None = None
) -> Backbone:
    """Return the backbone of a feature space; another one is refused.

    Parameters
    ----------
    space
        The feature space.
    given
        Name of the backbone; by default the one of the space.
    weights
        File of weights, for backbones whose name is an architecture.
    near
        Folder in which an ONNX file is looked for too.
    """
    if isinstance(space.layout, ImageLayout) and _is_flat(space):
        return FlatPixels(layout=space.layout, name=space.backbone)
    wanted, digest = name_and_digest(space.backbone)
    if isinstance(space.layout, TableLayout) or wanted == "identity":
        raise MismatchError(
            f"the model was made for {space.backbone}, which is no backbone; expected a table or "
            "vectors"
        )
    chosen = find(given or _findable(wanted, near), weights)
    if digest and chosen.digest[:DIGITS] != digest:
        raise MismatchError(
            f"backbone {chosen.name} {chosen.digest[:DIGITS]}: the model was made with "
            f"{space.backbone}; use that backbone with the same weights"
        )
    return chosen


def _findable(wanted: str, near: Path | None) -> str:
    """Return the name of a backbone with the path of its file."""
    source, _, rest = wanted.partition(":")
    if source != "onnx":
        return wanted
    for path in (Path(rest), (near or Path()) / rest):
        if path.is_file():
            return f"onnx:{path}"
    raise ConfigError(
        f"the model was made with {wanted}, which is neither here nor beside the model; give its "
        f"path: --backbone onnx:PATH/{rest}"
    )


@dataclass(frozen=True, kw_only=True)
class FlatPixels:
    """The pixels of images of one size as a vector."""

    layout: ImageLayout
    name: str
    takes: Literal["images"] = "images"

    @property
    def digest(self) -> str:
        return self.name

    def __call__(self, items: Sequence[Any]) -> Array:
        height, width, channels = self.layout.shape
        rows = []
        for image in items:
            if image.shape[:2] != (height, width):
                raise MismatchError(
                    f"an image of {image.shape[0]} x {image.shape[1]} pixels: the model was made "
                    f"for {height} x {width}"
                )
            gray = channels == 1 and image.shape[2] == 3
            if gray and not (image == image[:, :, :1]).all():
                raise MismatchError("a color image: the model was made for gray ones")
            rows.append(image[:, :, :channels].reshape(-1))
        return np.stack(rows)


def _embed(backbone: Backbone, ready: Sequence[Any]) -> Array:
    return backbone.embed(ready) if isinstance(backbone, Staged) else backbone(ready)


def _is_flat(space: Space) -> bool:
    """Whether the features are the pixels of images of one size, as they are."""
    return isinstance(space.layout, ImageLayout) and source_and_model(space.backbone)[0] != "pixels"


def _holds_images(source: str) -> bool:
    """Whether an ``.npz`` file holds an array of images; its content is not read."""
    if not source.endswith(".npz"):
        return False
    path = located(source)
    with opened_npz(path) as (archive, entries):
        if "x" not in entries:
            return False
        with archive.open(entries["x"]) as file:
            shape, _, kind = array_header(file, entries["x"])
    return len(shape) in (3, 4) and kind == np.uint8


def _require_source(found: Vectors, space: Space, source: str) -> None:
    if found.backbone and found.backbone != space.backbone:
        raise MismatchError(
            f"{source}: features of {found.backbone}, but the model was made with "
            f"{space.backbone or 'vectors of an unnamed backbone'}; extract them with that backbone"
        )
    if found.x.shape[1] != space.inputs:
        raise DataError(
            f"{source}: expected {space.inputs} features, as the model was fitted on, got "
            f"{found.x.shape[1]}; give one row of {space.inputs} numbers per sample"
        )
    if isinstance(space.layout, TableLayout) and not found.backbone:
        raise DataError(
            f"{source}: the model was made for {space.backbone}; give a table with these columns, "
            "or its features"
        )


def _numbered(count: int, start: int = 0) -> list[str]:
    return [str(start + k + 1) for k in range(count)]


def _lines(path: Path) -> list[str]:
    try:
        texts = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error}); expected UTF-8") from error
    if not texts:
        raise DataError(f"{path}: no lines; expected a text in each line")
    return texts


def _text_column(path: Path) -> str:
    columns = list(next(read_tables(path)).columns)
    if len(columns) == 1:
        return columns[0]
    if _TEXT in columns:
        return _TEXT
    raise DataError(
        f"{path}: the model takes texts; name their column with --text; {propose(_TEXT, columns)}"
    )
