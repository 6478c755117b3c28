"""Reader of Hugging Face data sets, by the library ``datasets``.

``hf:NAME`` and ``hf:NAME@CONFIGURATION`` are read from the cache or downloaded; a folder written
by ``save_to_disk`` is recognized. Images are decoded only when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Integers
from fedgram.data.items import Columns, Encoded, Items, Labelling
from fedgram.data.tabular.reader import SPLITS
from fedgram.errors import DataError
from fedgram.runtime.settings import propose

PREFIX = "hf:"
_SPLITS = {**SPLITS, "validation": SPLITS["valid"]}


def is_hub(source: str) -> bool:
    """Whether a source is a Hugging Face data set: on the hub, or in a folder."""
    return source.startswith(PREFIX) or _is_saved(Path(source))


def read_hub(source: str, columns: Columns, *, labels: Labelling = "required") -> Items:
    """Return the items of a data set, from its image column, text column or number columns.

    Parameters
    ----------
    source
        The name of the data set.
    columns
        The names of the columns.
    labels
        Whether the class of each item is required, as in `fedgram.data.items.read_items`.
    """
    data = _Rows(source, _loaded(source))
    known = labels == "required" or (labels == "optional" and data.has(columns.label))
    label = columns.label if known or data.has(columns.label) else None
    named = (label, columns.text, columns.image, columns.client, columns.domain)
    for column in named:
        data.require(column)
    if columns.text and columns.image:
        raise DataError(f"{source}: expected a text column or an image column, got both")
    image = None if columns.text else columns.image or data.image_column()
    kind, entries = data.entries(columns.text, image, [name for name in named if name])
    y, classes = data.labels(columns.label) if known else (None, ())
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
    """Return the splits of a data set by name; the name is "" if there is only one."""
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
    except Exception as error:  # of the library, the hub or the download
        first = str(error).split("\n", 1)[0]
        remedy = "; connect once, or use a folder" if isinstance(error, ConnectionError) else ""
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
                f"{source}: split: expected one of {known}, got {split!r}; save the splits you "
                "need with save_to_disk"
            )
    return parts


class _Rows:
    """The rows of all splits, one after the other."""

    def __init__(self, source: str, splits: Mapping[str, Any]) -> None:
        import datasets

        self._source, self._splits = source, splits
        if not sum(len(split) for split in splits.values()):
            raise DataError(f"{source}: no rows")
        try:
            self._data = datasets.concatenate_datasets(list(splits.values()))
        except ValueError as error:
            raise DataError(f"{source}: the splits have different columns ({error})") from error
        self._features = self._data.features

    def has(self, column: str) -> bool:
        """Whether there is a column of this name."""
        return column in self._features

    def require(self, column: str | None) -> None:
        """Raise `DataError` if the column is missing."""
        if column is not None and column not in self._features:
            near = propose(column, self._features)
            raise DataError(f"{self._source}: column {column!r} is missing; {near}")

    def place(self, index: int) -> str:
        """Return the split and index of a row as text, for error messages."""
        starts = np.cumsum([0, *(len(split) for split in self._splits.values())])
        number = int(np.searchsorted(starts, index, side="right")) - 1
        split = list(self._splits)[number]
        return f"{self._source}: {split}[{index - starts[number]}]"

    def image_column(self) -> str | None:
        """Return the only column of images; None if there is none."""
        import datasets

        found = [name for name, kind in self._features.items() if isinstance(kind, datasets.Image)]
        if len(found) > 1:
            listed = ", ".join(found)
            raise DataError(f"{self._source}: {listed} contain images; select one with --image")
        return found[0] if found else None

    def entries(self, text: str | None, image: str | None, named: list[str]) -> Any:
        """Return the kind and the entries of the items for a backbone."""
        if text:
            if getattr(self._features[text], "dtype", "") not in ("string", "large_string"):
                raise DataError(f"{self._source}: the column {text!r} does not contain texts")
            return "texts", self.words(text)
        if image:
            return "images", self._images(image)
        return "vectors", self._numbers([c for c in self._features if c not in (*named, "split")])

    def labels(self, column: str) -> tuple[Integers, tuple[str, ...]]:
        """Return class codes and class names; the names as declared by the data set, if any."""
        words = self.words(column)
        names = getattr(self._features[column], "names", None) or sorted(set(words))
        codes = {name: code for code, name in enumerate(names)}
        return np.array([codes[word] for word in words], np.int64), tuple(names)

    def words(self, column: str) -> list[str]:
        """Return a column without missing values as texts; class codes as class names."""
        names = getattr(self._features[column], "names", None)
        words = []
        for index, value in enumerate(self._column(column)):
            if value is None or (names and value < 0):
                raise DataError(
                    f"{self.place(index)}: {column!r} is missing; remove such rows, save the rest"
                )
            words.append(names[value] if names else str(value))
        return words

    def split(self) -> Array | None:
        """Return the split of each row, from the names of the splits or from a column."""
        if len(self._splits) > 1:
            sizes = [len(split) for split in self._splits.values()]
            return np.repeat([_SPLITS[name] for name in self._splits], sizes)
        if "split" not in self._features:
            return None
        words = self.words("split")
        for index, word in enumerate(words):
            if word not in _SPLITS:
                known = ", ".join(_SPLITS)
                raise DataError(
                    f"{self.place(index)}: split: expected one of {known}, got {word!r}"
                )
        return np.array([_SPLITS[word] for word in words])

    def _column(self, column: str) -> list[Any]:
        values: list[Any] = self._data.select_columns([column])[:][column]
        return values

    def _images(self, column: str) -> _Images:
        import datasets

        if not isinstance(self._features[column], datasets.Image):
            raise DataError(f"{self._source}: the column {column!r} does not contain images")
        encoded = self._data.select_columns([column]).cast_column(
            column, datasets.Image(decode=False)
        )
        return _Images(self, encoded, column)

    def _numbers(self, columns: list[str]) -> Array:
        if not columns:
            raise DataError(f"{self._source}: no feature columns; use --text for a text column")
        try:
            blocks = [np.asarray(self._column(column), np.float64) for column in columns]
            return np.column_stack(blocks)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self._source}: a feature is not a number ({error}); use --text for a text "
                "column, or remove the column"
            ) from error


class _Images(Sequence[Any]):
    """Encoded images that are read on access: memory does not grow with their number."""

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
