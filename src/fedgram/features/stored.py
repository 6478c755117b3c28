"""Vectors of a data set or of a file as features on a grid, which may be on that grid already."""

from __future__ import annotations

import numpy as np

from fedgram.core.samples import Array, Features
from fedgram.data.dataset import Dataset
from fedgram.errors import DataError, RowError
from fedgram.features.grid import Grid
from fedgram.features.standardize import Standardization


def features_of(data: Dataset, grid: Grid, scaling: Standardization | None = None) -> Features:
    """Return the vectors of a data set on the grid; errors name the invalid row and its client.

    Parameters
    ----------
    data
        The data set.
    grid
        The grid.
    scaling
        Standardizes raw columns first.

    Examples
    --------
    >>> data = Dataset([[3.0, 4.0], [1.0, 0.0]], ["cat", "dog"])
    >>> features_of(data, Grid()).values
    array([[18, 24, 21],
           [30,  0, 21]], dtype=int8)
    """
    if data.grid is not None:
        require_on_grid(data.x, data.grid, grid, data.name)
        return grid.stored(data.x, backbone=data.backbone)
    if scaling is not None:
        return scaling(data.x, grid)
    try:
        return grid(data.x, scale=data.scale, offset=data.offset, backbone=data.backbone)
    except RowError as error:
        client = "" if data.client is None else f"client {data.client[error.row]}: "
        raise DataError(f"{data.name}: {client}{error}") from error


def require_on_grid(x: Array, stored: tuple[int, float], grid: Grid, name: str) -> None:
    """Raise DataError if stored integers are of another grid.

    Parameters
    ----------
    x
        The integers.
    stored
        Bits and clip of the grid that they were stored on.
    grid
        The grid that is needed.
    name
        Name of the data.
    """
    if (grid.bits, grid.reach) != stored:
        bits, clip = stored
        raise DataError(
            f"{name}: the features were stored on a grid of {bits} bits, clip {clip:g}; "
            f"set grid.bits={bits} and grid.clip={clip:g}, or extract them again"
        )
    whole = np.issubdtype(x.dtype, np.integer)
    if not whole or np.abs(x.astype(np.int64)).max(initial=0) > grid.bound:
        raise DataError(
            f"{name}: the features are not on the grid that the file names; extract them again"
        )
