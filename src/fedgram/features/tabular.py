"""Rows of a table on the grid: each column at its public scale.

A table mixes units, so a row's RMS would be that of its largest column. Columns are standardized
first. What is left of the differences in size between rows is evened out in part (`anchor`): a row
whose RMS were made exactly one would lose what a lone column has to say but its sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Floats
from fedgram.data.dataset import Dataset, Vectors
from fedgram.data.items import Columns
from fedgram.data.tabular.reader import Table
from fedgram.data.tabular.schema import Schema
from fedgram.features.grid import Grid

_SQUARE_BITS = 15  # of values that are squared: their sum is one of integers, the same everywhere


def dataset(schema: Schema, tables: Iterable[Table], columns: Columns, grid: Grid) -> Dataset:
    """Return the features of a table with what is known of its rows."""
    parts, name = [], ""
    for table in tables:
        name = table.name
        of_rows = (table.names(columns.client), table.names(columns.domain), table.split())
        parts.append((rows(schema, table, grid), schema.codes(table), *of_rows))
    x, y, client, domain, split = map(_joined, zip(*parts, strict=True))
    return Dataset(
        x=x,
        y=y,
        classes=schema.classes,
        client=client,
        domain=domain,
        split=split,
        backbone=schema.backbone,
        grid=(int(grid.bits), grid.reach),
        name=name,
    )


def _joined(parts: Sequence[Array | None]) -> Any:
    return None if parts[0] is None else np.concatenate([p for p in parts if p is not None])


def vectors(schema: Schema, tables: Iterable[Table], grid: Grid) -> Vectors:
    """Return the features of rows whose class is not known."""
    x = np.concatenate([rows(schema, table, grid) for table in tables])
    return Vectors(x=x, backbone=schema.backbone, grid=(int(grid.bits), grid.reach))


def rows(schema: Schema, table: Table, grid: Grid) -> Array:
    """Return the rows of a table on the grid, without the constant.

    Examples
    --------
    >>> from fedgram.data.tabular.columns import NumberColumn
    >>> age = {"age": NumberColumn(mean=60.0, deviation=10.0)}
    >>> schema = Schema(label="outcome", classes=("no", "yes"), columns=age)
    >>> rows(schema, Table(name="a.csv", columns={"age": [60, 70, 80]}), Grid()).ravel()
    array([ 0, 21, 27], dtype=int8)
    """
    read = schema.read(table)
    standard = np.hstack([column.encoded(read[name]) for name, column in schema.columns.items()])
    return grid.levels(_evened(np.clip(standard, -grid.reach, grid.reach), schema.anchor))


def _evened(standard: Floats, anchor: float) -> Floats:
    """Divide each row by its size, in which a public size of one has a part.

    The sum of squares is one of integers, and what remains are operations that IEEE rounds in one
    way only, so every machine makes the same of a row.
    """
    whole = np.rint(np.ldexp(standard, _SQUARE_BITS)).astype(np.int64)
    squares = np.einsum("ij,ij->i", whole, whole) / standard.shape[1]
    mean_square = np.ldexp(squares, -2 * _SQUARE_BITS)
    size = np.sqrt((mean_square + anchor**2) / (1 + anchor**2))
    evened: Floats = standard / np.where(size > 0, size, 1.0)[:, None]
    return evened
