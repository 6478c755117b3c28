"""What sites with the same kind of table agree on before any of them shares anything.

A schema is a small public file. It says which columns count and what they mean, so that every site
makes the same features of the same row. It holds no rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.core.samples import Array, Integers
from fedgram.data.tabular.columns import CategoryColumn, NumberColumn, class_codes
from fedgram.data.tabular.reader import SPLIT, Table, text
from fedgram.errors import ConfigError
from fedgram.runtime.settings import build, propose
from fedgram.runtime.toml import written

VERSION = 1
BLANK = ("", "NA", "NaN", "nan", "null")
BACKBONE = "table"  # the first word of what tables call their backbone
Column = NumberColumn | CategoryColumn


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table and what they mean.

    Parameters
    ----------
    label
        Column of the class.
    classes
        The classes there are, in the order of their codes.
    columns
        The columns that become features, by name, in this order; others are left out.
    anchor
        How much of the size of a row is kept. Rows are divided by
        ``sqrt((mean square + anchor^2) / (1 + anchor^2))``: 0 makes all rows equally large, a large
        number such as 1000 leaves them as they are, and 1 lies between.
    blank
        Words that stand for a gap.

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
        if not self.label:
            raise ConfigError("a schema needs the column of the class, such as label = 'outcome'")
        if not self.columns:
            raise ConfigError("a schema needs columns, such as [columns.age] with a range")
        if self.label in self.columns or SPLIT in self.columns:
            name = self.label if self.label in self.columns else SPLIT
            raise ConfigError(f"columns.{name}: the {name!r} column cannot be a feature too")
        if len(set(self.classes)) < max(1, len(self.classes)):
            raise ConfigError("classes: list each class once, and at least one")
        if self.anchor < 0:
            raise ConfigError(f"anchor = {self.anchor:g}: use a number >= 0")

    @property
    def features(self) -> tuple[str, ...]:
        """What to call the features, in their order."""
        return tuple(
            label for name, column in self.columns.items() for label in column.labels(name)
        )

    @property
    def pending(self) -> dict[str, NumberColumn]:
        """The numbers that have no mean and deviation yet."""
        numbers = {name: c for name, c in self.columns.items() if isinstance(c, NumberColumn)}
        return {name: number for name, number in numbers.items() if not number.settled}

    @property
    def digest(self) -> str:
        """Of all that is declared: comments and layout of the file do not count."""
        columns = [[name, asdict(column)] for name, column in self.columns.items()]
        return codec.digest({**self._plain(), "columns": columns})

    @property
    def backbone(self) -> str:
        """What feature files and sums remember, so that different schemas never add up."""
        return f"{BACKBONE} {self.digest[:16]}"

    def read(self, table: Table) -> dict[str, Array]:
        """Return the values of each column; what does not fit is refused by row and name."""
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
        """Return the schema of a TOML text."""
        try:
            settings = tomllib.loads(content)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not valid TOML ({error})") from error
        version = settings.pop("version", VERSION)
        if version != VERSION:
            raise ConfigError(
                f"version {version} of schemas is not known (this fedgram reads {VERSION}); "
                "upgrade fedgram"
            )
        columns = settings.pop("columns", {})
        if not isinstance(columns, Mapping):
            raise ConfigError("columns must be tables, such as [columns.age] with a range")
        kinds = {name: _column(column, f"columns.{name}") for name, column in columns.items()}
        stated: _Stated = build(_Stated, {**settings, **_texts(settings, "classes")}, "schema")
        return cls(columns=kinds, **asdict(stated))

    @classmethod
    def load(cls, path: Path) -> Schema:
        """Return the schema of a file; what is wrong in it is named with the file."""
        try:
            return cls.parsed(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Stated:
    """What stands above the columns in a file."""

    label: str = ""
    classes: tuple[str, ...] = ()
    anchor: float = 1.0
    blank: tuple[str, ...] = BLANK


def _column(settings: Any, where: str) -> Column:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: a table is wanted, such as {{ range = [0, 120] }}")
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
    """Return a list of names in which numbers may stand for texts, as cells do."""
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
