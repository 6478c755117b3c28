"""Data sets of the Hugging Face hub, saved in a folder or in the cache, through its library.

``hf:NAME`` or ``hf:NAME@CONFIGURATION`` comes from the usual cache or is downloaded as usual; a
folder that ``save_to_disk`` has written is recognized. Images stay where they are, encoded, until
they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Integers
from fedgram.data.items import Columns, Encoded, Items
from fedgram.data.tabular.reader import SPLITS
from fedgram.errors import DataError
from fedgram.runtime.settings import propose

PREFIX = "hf:"
_SPLITS = {**SPLITS, "validation": SPLITS["valid"]}


def is_hub(source: str) -> bool:
    """Whether a source is a data set of the hub, or one that its library has saved."""
    return source.startswith(PREFIX) or _is_saved(Path(source))


def read_hub(source: str, columns: Columns) -> Items:
    """Return the items of a data set: of its image column, its text column or its numbers."""
    data = _Rows(source, _loaded(source))
    named = (columns.label, columns.text, columns.image, columns.client, columns.domain)
    for column in named:
        data.require(column)
    if columns.text and columns.image:
        raise DataError(f"{source}: name a column of texts or one of images, not both")
    image = None if columns.text else columns.image or data.image_column()
    kind, entries = data.entries(columns.text, image, [name for name in named if name])
    y, classes = data.labels(columns.label)
    return Items(
        kind=kind,
        entries=entries,
        y=y,
        classes=classes,
        client=np.array(data.words(columns.client)) if columns.client else None,
        domain=np.array(data.words(columns.domain)) if columns.domain else None,
        split=data.split(),
        name=source,
    )


def _is_saved(folder: Path) -> bool:
    one = (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    return one or (folder / "dataset_dict.json").is_file()


def _loaded(source: str) -> dict[str, Any]:
    """Return the parts of a data set by the names of their splits, "" where there is but one."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{source}: reading it needs: pip install 'fedgram[datasets]'") from error
    path = source.removeprefix(PREFIX)
    name, _, configuration = (path, "", "") if Path(path).is_dir() else path.partition("@")
    if not name:
        raise DataError(f"{source!r}: write hf:NAME, hf:NAME@CONFIGURATION or hf:FOLDER")
    try:
        if _is_saved(Path(name)):
            loaded = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # of the library, the hub, or what it downloads with
        first = str(error).split("\n", 1)[0]
        remedy = "; connect once, or name a folder" if isinstance(error, ConnectionError) else ""
        raise DataError(f"{source}: cannot be loaded ({first}){remedy}") from error
    if not isinstance(loaded, Mapping):
        return {"": loaded}
    parts = {str(split): part for split, part in loaded.items()}
    if len(parts) == 1:
        return {"": next(iter(parts.values()))}
    for split in parts:
        if split not in _SPLITS:
            known = ", ".join(_SPLITS)
            raise DataError(
                f"{source}: split {split!r} is none of {known}; save those you need with "
                "save_to_disk"
            )
    return parts


class _Rows:
    """The rows of all parts, one after the other."""

    def __init__(self, source: str, parts: Mapping[str, Any]) -> None:
        import datasets

        self._source, self._parts = source, parts
        if not sum(len(part) for part in parts.values()):
            raise DataError(f"{source}: holds no rows")
        try:
            self._data = datasets.concatenate_datasets(list(parts.values()))
        except ValueError as error:
            raise DataError(f"{source}: its splits differ in their columns ({error})") from error
        self._features = self._data.features

    def require(self, column: str | None) -> None:
        """Refuse the name of a column that is not there."""
        if column is not None and column not in self._features:
            near = propose(column, self._features)
            raise DataError(f"{self._source}: there is no column {column!r}; {near}")

    def place(self, index: int) -> str:
        """Say where a row is, for messages."""
        starts = np.cumsum([0, *(len(part) for part in self._parts.values())])
        part = int(np.searchsorted(starts, index, side="right")) - 1
        split = list(self._parts)[part]
        return f"{self._source}: {split}[{index - starts[part]}]"

    def image_column(self) -> str | None:
        """Return the one column of images, None where there is none."""
        import datasets

        found = [name for name, kind in self._features.items() if isinstance(kind, datasets.Image)]
        if len(found) > 1:
            listed = ", ".join(found)
            raise DataError(f"{self._source}: {listed} hold images; name one with --image")
        return found[0] if found else None

    def entries(self, text: str | None, image: str | None, named: list[str]) -> Any:
        """Return the kind of what a backbone is run on, and the entries."""
        if text:
            if getattr(self._features[text], "dtype", "") not in ("string", "large_string"):
                raise DataError(f"{self._source}: the column {text!r} does not hold texts")
            return "texts", self.words(text)
        if image:
            return "images", self._images(image)
        return "vectors", self._numbers([c for c in self._features if c not in (*named, "split")])

    def labels(self, column: str) -> tuple[Integers, tuple[str, ...]]:
        """Return class codes and names: those that the data set declares, where it does."""
        words = self.words(column)
        names = getattr(self._features[column], "names", None) or sorted(set(words))
        codes = {name: code for code, name in enumerate(names)}
        return np.array([codes[word] for word in words], np.int64), tuple(names)

    def words(self, column: str) -> list[str]:
        """Return a column that must not have gaps, as texts; codes by the names they stand for."""
        names = getattr(self._features[column], "names", None)
        words = []
        for index, value in enumerate(self._column(column)):
            if value is None or (names and value < 0):
                raise DataError(
                    f"{self.place(index)} has no {column!r}; leave out such rows and save the rest"
                )
            words.append(names[value] if names else str(value))
        return words

    def split(self) -> Array | None:
        """Return the split of each row, by the names of the parts or from a column."""
        if len(self._parts) > 1:
            sizes = [len(part) for part in self._parts.values()]
            return np.repeat([_SPLITS[name] for name in self._parts], sizes)
        if "split" not in self._features:
            return None
        words = self.words("split")
        for index, word in enumerate(words):
            if word not in _SPLITS:
                known = ", ".join(_SPLITS)
                raise DataError(f"{self.place(index)}: split {word!r} is none of {known}")
        return np.array([_SPLITS[word] for word in words])

    def _column(self, column: str) -> list[Any]:
        values: list[Any] = self._data.select_columns([column])[:][column]
        return values

    def _images(self, column: str) -> _Images:
        import datasets

        if not isinstance(self._features[column], datasets.Image):
            raise DataError(f"{self._source}: the column {column!r} does not hold images")
        encoded = self._data.select_columns([column]).cast_column(
            column, datasets.Image(decode=False)
        )
        return _Images(self, encoded, column)

    def _numbers(self, columns: list[str]) -> Array:
        if not columns:
            raise DataError(f"{self._source}: no columns are left for features; name --text?")
        try:
            blocks = [np.asarray(self._column(column), np.float64) for column in columns]
            return np.column_stack(blocks)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self._source}: a feature is not a number ({error}); name the column of texts "
                "with --text, or remove it"
            ) from error


class _Images(Sequence[Any]):
    """Images as they are stored, read when they are asked for: memory does not grow with them."""

    def __init__(self, rows: _Rows, data: Any, column: str) -> None:
        self._rows, self._data, self._column = rows, data, column

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        cell = self._data[index][self._column] or {}
        if cell.get("bytes") is None and cell.get("path"):
            return Path(cell["path"])
        return Encoded(name=self._rows.place(index), data=cell.get("bytes") or b"")
