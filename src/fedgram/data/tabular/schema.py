"""The schema of a table, on which sites agree before they share anything.

A schema is a small public file. It declares the columns that become features, so that every site
computes the same features of the same row. It contains no rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.core.layouts import TableLayout
from fedgram.core.samples import Array, Integers
from fedgram.data.tabular.columns import (
    CategoryColumn,
    NumberColumn,
    class_codes,
    without_negative_zero,
)
from fedgram.data.tabular.reader import SPLIT, Table, text
from fedgram.errors import ConfigError
from fedgram.runtime.files import read_text
from fedgram.runtime.parse import MOST_TOML, toml_table
from fedgram.runtime.settings import build, propose
from fedgram.runtime.toml import written

VERSION = 1
BLANK = ("", "NA", "NaN", "nan", "null")
Column = NumberColumn | CategoryColumn


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table and what they mean.

    Parameters
    ----------
    label
        Column with the class.
    classes
        The classes, in the order of their codes.
    columns
        The columns that become features, by name, in this order; other columns are ignored.
    anchor
        How far the size of rows is kept. Rows are divided by
        ``sqrt((mean square + anchor^2) / (1 + anchor^2))``: 0 makes all rows equally large, a large
        number such as 1000 leaves them as they are, and 1 lies between.
    blank
        Texts that stand for a missing value.

    Examples
    --------
    >>> schema = Schema(
    ...     label="outcome",
    ...     classes=("died", "survived"),
    ...     columns={
    ...         "age": NumberColumn(range=(0.0, 120.0)),
    ...         "sex": CategoryColumn(values=("f", "m")),
    ...     },
    ... )
    >>> schema.features
    ('age', 'sex = f', 'sex = m')
    >>> Schema.parsed(schema.toml()) == schema
    True
    """

    label: str
    classes: tuple[str, ...]
    columns: Mapping[str, Column]
    anchor: float = 1.0
    blank: tuple[str, ...] = BLANK

    def __post_init__(self) -> None:
        object.__setattr__(self, "anchor", without_negative_zero(self.anchor))
        if not self.label:
            raise ConfigError(
                "label is missing: the column with the class, such as label = 'outcome'"
            )
        if not self.columns:
            raise ConfigError("columns are missing, such as [columns.age] with a range")
        if self.label in self.columns or SPLIT in self.columns:
            name = self.label if self.label in self.columns else SPLIT
            raise ConfigError(f"columns.{name}: the {name!r} column cannot be a feature too")
        if len(set(self.classes)) < max(1, len(self.classes)):
            raise ConfigError("classes: list at least one class, and each class once")
        if self.anchor < 0:
            raise ConfigError(f"anchor = {self.anchor:g}: use a number >= 0")

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in their order."""
        return tuple(
            label for name, column in self.columns.items() for label in column.labels(name)
        )

    @property
    def pending(self) -> dict[str, NumberColumn]:
        """The columns of numbers without mean and deviation."""
        numbers = {name: c for name, c in self.columns.items() if isinstance(c, NumberColumn)}
        return {name: number for name, number in numbers.items() if not number.has_scale}

    @property
    def digest(self) -> str:
        """Digest of the declarations; comments and layout of the file do not matter."""
        columns = [[name, asdict(column)] for name, column in self.columns.items()]
        return codec.digest({**self._plain(), "columns": columns})

    @property
    def backbone(self) -> str:
        """Name in feature files and sums, so that sums of different schemas are not added."""
        return TableLayout(schema=self.digest[:16]).backbone

    def read(self, table: Table) -> dict[str, Array]:
        """Return the values of each column; errors name the row and the column."""
        blank = set(self.blank)
        return {name: column.read(table, name, blank) for name, column in self.columns.items()}

    def codes(self, table: Table) -> Integers:
        """Return the class code of each row."""
        return class_codes(table, self.label, self.classes)

    def _plain(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "label": self.label,
            "classes": list(self.classes),
            "anchor": float(self.anchor),
            "blank": list(self.blank),
        }

    def toml(self) -> str:
        """Return the schema as the text of a TOML file."""
        columns = {name: _changed(column) for name, column in self.columns.items()}
        return written(_short({**self._plain(), "columns": columns}))

    @classmethod
    def parsed(cls, content: str) -> Schema:
        """Parse a TOML text."""
        try:
            settings = toml_table(content)
        except ValueError as error:
            raise ConfigError(f"not valid TOML ({error})") from error
        version = settings.pop("version", VERSION)
        if version != VERSION:
            raise ConfigError(
                f"expected a schema of version {VERSION}, got {version}; upgrade fedgram"
            )
        columns = settings.pop("columns", {})
        if not isinstance(columns, Mapping):
            raise ConfigError("columns: expected tables, such as [columns.age] with a range")
        kinds = {name: _column(column, f"columns.{name}") for name, column in columns.items()}
        stated: _Stated = build(_Stated, {**settings, **_texts(settings, "classes")}, "schema")
        return cls(columns=kinds, **asdict(stated))

    @classmethod
    def load(cls, path: Path) -> Schema:
        """Read a schema from a file; errors name the file."""
        try:
            return cls.parsed(read_text(path, most=MOST_TOML))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Stated:
    """The settings of a file besides its columns."""

    label: str = ""
    classes: tuple[str, ...] = ()
    anchor: float = 1.0
    blank: tuple[str, ...] = BLANK


def _column(settings: Any, where: str) -> Column:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: expected a table, such as {{ range = [0, 120] }}")
    kind = CategoryColumn if "values" in settings else NumberColumn
    known = {field.name for each in (NumberColumn, CategoryColumn) for field in fields(each)}
    for key in set(settings) - known:
        raise ConfigError(f"{where}.{key} is not a setting; {propose(key, sorted(known))}")
    try:
        column: Column = build(kind, {**settings, **_texts(settings, "values")}, where)
    except ConfigError as error:
        named = str(error).startswith(where)
        raise ConfigError(str(error) if named else f"{where}: {error}") from error
    return column


def _texts(settings: Mapping[str, Any], key: str) -> dict[str, list[str]]:
    """Return a list of names as texts; numbers are allowed, as in cells."""
    value = settings.get(key)
    return {key: [text(item) for item in value]} if isinstance(value, list) else {}


def _changed(column: Column) -> dict[str, Any]:
    """Return the settings of a column that differ from their defaults."""
    values = {field.name: (getattr(column, field.name), field.default) for field in fields(column)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _short(value: Any) -> Any:
    """Return a value in which 1 stands for 1.0; a schema reads both alike."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if whole else value
