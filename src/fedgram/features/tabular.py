"""Quantized features of table rows: each column on its public scale.

The columns of a table have different units, so the RMS of a row would depend on its largest column
only. Columns are standardized first. Then rows are scaled partially to a common size (`anchor`):
with an RMS of exactly one, a row of a single column would keep only its sign.
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

_SQUARE_BITS = 15  # binary places of values before they are squared: the sum is one of integers


def dataset(schema: Schema, tables: Iterable[Table], columns: Columns, grid: Grid) -> Dataset:
    """Return the features, classes and metadata of a table.

    Parameters
    ----------
    schema
        The public schema.
    tables
        The rows, in chunks.
    columns
        The columns of client and domain names.
    grid
        Quantizes the features.
    """
    chunks, name = [], ""
    for table in tables:
        name = table.name
        metadata = (table.names(columns.client), table.names(columns.domain), table.split())
        chunks.append((rows(schema, table, grid), schema.codes(table), *metadata))
    x, y, client, domain, split = map(_concatenated, zip(*chunks, strict=True))
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


def _concatenated(chunks: Sequence[Array | None]) -> Any:
    return None if chunks[0] is None else np.concatenate([c for c in chunks if c is not None])


def vectors(schema: Schema, tables: Iterable[Table], grid: Grid) -> Vectors:
    """Return the features of rows without classes.

    Parameters
    ----------
    schema
        The public schema.
    tables
        The rows, in chunks.
    grid
        Quantizes the features.
    """
    x = np.concatenate([rows(schema, table, grid) for table in tables])
    return Vectors(x=x, backbone=schema.backbone, grid=(int(grid.bits), grid.reach))


def rows(schema: Schema, table: Table, grid: Grid) -> Array:
    """Return the quantized rows of a table, without the constant.

    Parameters
    ----------
    schema
        The public schema.
    table
        The rows.
    grid
        Quantizes the features.

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
    return grid.levels(rescaled(np.clip(standard, -grid.reach, grid.reach), schema.anchor))


def rescaled(standard: Floats, anchor: float) -> Floats:
    """Divide each row by ``sqrt((mean square + anchor^2) / (1 + anchor^2))``.

    The squares are summed as integers, and IEEE 754 defines the other operations to the bit. So
    every machine computes the same rows.
    """
    whole = np.rint(np.ldexp(standard, _SQUARE_BITS)).astype(np.int64)
    squares = np.einsum("ij,ij->i", whole, whole) / standard.shape[1]
    mean_square = np.ldexp(squares, -2 * _SQUARE_BITS)
    size = np.sqrt((mean_square + anchor**2) / (1 + anchor**2))
    rescaled: Floats = standard / np.where(size > 0, size, 1.0)[:, None]
    return rescaled
