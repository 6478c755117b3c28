"""Patches of feature maps (im2col) and their exact sums, in bounded memory.

Maps are integers on the grid, samples by height by width by channels. A patch is the input of a
filter at one position, followed by a constant; a dense layer has one patch, the whole map. Patches
are computed for a few samples at a time. The sums are integers, so batches of any size give the
same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram.core.exact import (
    EXACT_UP_TO,
    FLOAT64,
    MOST_BLOCK_ENTRIES,
    Accumulator,
    block_matmul,
    stored_dtype,
)
from fedgram.core.samples import Array, Integers, Space
from fedgram.errors import ExactnessError
from fedgram.features.grid import bias
from fedgram.models.architecture import Conv, Layer, MapShape
from fedgram.runtime import memory

_SHARE_OF_MEMORY = 32  # a batch of patches may use 1/32 of the free memory


def positions(layer: Layer, maps: MapShape) -> int:
    """Return the number of patches of one sample."""
    return layer.filtered(maps).places


def batch_size(layer: Layer, maps: MapShape, room: int = MOST_BLOCK_ENTRIES) -> int:
    """Return the number of samples whose patches fit in `room` entries and in memory.

    Parameters
    ----------
    layer
        The layer.
    maps
        Its input shape.
    room
        Maximum number of entries of all patches.

    Examples
    --------
    >>> batch_size(Conv(channels=8, kernel=5), MapShape(height=28, width=28, channels=1))
    280
    """
    free = memory.available()
    if free is not None:
        room = min(room, free // (_SHARE_OF_MEMORY * FLOAT64.itemsize))
    return max(1, room // (positions(layer, maps) * (layer.fan_in(maps) + 1)))


def patches(
    values: Array, layer: Layer, maps: MapShape, constant: Array | int, dtype: Any
) -> Array:
    """Return all patches of some samples, one per row, with the constant as last entry.

    A row contains the positions of a patch from left to right and from top to bottom, all channels
    of a position together.

    Parameters
    ----------
    values
        Samples by entries of the maps.
    layer
        The layer.
    maps
        Its input shape.
    constant
        The constant, or one for each sample.
    dtype
        Type of the result.

    Examples
    --------
    >>> image, maps = np.arange(9, dtype=np.int8), MapShape(height=3, width=3, channels=1)
    >>> patches(image.reshape(1, 9), Conv(channels=1, kernel=2), maps, 21, np.int64)
    array([[ 0,  1,  3,  4, 21],
           [ 1,  2,  4,  5, 21],
           [ 3,  4,  6,  7, 21],
           [ 4,  5,  7,  8, 21]])
    """
    out = layer.filtered(maps)
    rows = np.empty((len(values), out.height, out.width, layer.fan_in(maps) + 1), dtype)
    rows[..., -1] = np.reshape(constant, (-1, 1, 1))
    if isinstance(layer, Conv):
        _write(rows, values.reshape(-1, maps.height, maps.width, maps.channels), layer)
    else:
        rows[:, 0, 0, :-1] = values
    return rows.reshape(-1, rows.shape[-1])


def _write(rows: Array, values: Array, layer: Conv) -> None:
    """Write the patches by rows of pixels, which are contiguous in both arrays."""
    step, channels = layer.stride, values.shape[-1]
    if layer.padding:
        edge = (layer.padding, layer.padding)
        values = np.pad(values, ((0, 0), edge, edge, (0, 0)))
    values = np.ascontiguousarray(values)
    sample, down, right, _ = values.strides
    length = layer.kernel * channels
    for row in range(layer.kernel):
        part = np.lib.stride_tricks.as_strided(
            values[:, row:],
            (*rows.shape[:3], length),
            (sample, down * step, right * step, values.itemsize),
            writeable=False,
        )
        rows[..., row * length : (row + 1) * length] = part


class PatchSums:
    """Running sums over patches: the Gram matrix, and the sum of the maps of each class.

    The Gram matrix is that of all patches with their constant. The sum of a class's patches is the
    patch of the sum of its maps. So the moment with targets that depend on class and position needs
    only the sum of the maps of each class.

    Examples
    --------
    >>> maps = MapShape(height=2, width=2, channels=1)
    >>> sums = PatchSums(Conv(channels=1, kernel=1), maps, Space(width=5, bound=127), classes=2)
    >>> sums.add(np.array([[1, 2, 3, 4]], np.int8), np.array([1]))
    >>> sums.gram()
    array([30, 10,  4])
    >>> sums.moment(np.ones((2, 4, 1), np.int8))
    array([[10],
           [ 4]])
    """

    def __init__(self, layer: Layer, maps: MapShape, space: Space, classes: int) -> None:
        self._layer, self._maps, self._bound = layer, maps, space.bound
        self._constant = bias(space.unit, space.bound)
        self._dtype = stored_dtype(space.bound)
        self._total = Accumulator(layer.fan_in(maps) + 1, 0, space.bound)
        self._sums = np.zeros((classes, maps.size), np.int64 if space.bound else np.float64)
        self._counts = np.zeros(classes, np.int64)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the sums: int64 on the grid."""
        return self._sums.dtype

    @property
    def counts(self) -> Integers:
        """Number of samples of each class."""
        return self._counts.copy()

    def add(self, values: Array, codes: Integers) -> None:
        """Add the maps of some samples, with their class codes."""
        onehot = np.zeros((len(values), len(self._sums)), FLOAT64)
        onehot[np.arange(len(values)), codes] = 1
        sums = block_matmul(onehot.T, values.astype(FLOAT64))  # far below 2^53 in a batch
        self._sums += sums.astype(self._sums.dtype)
        self._counts += np.bincount(codes, minlength=len(self._counts))
        room = batch_size(self._layer, self._maps)
        for start in range(0, len(values), room):
            part = values[start : start + room]
            rows = patches(part, self._layer, self._maps, self._constant, self._dtype)
            self._total.add_rows(rows)

    def gram(self) -> Array:
        """Return the upper triangle of the Gram matrix, row by row; reset it to zero."""
        return self._total.take()[0]

    def moment(self, table: Array) -> Array:
        """Return the sum of patches times targets; `table` is classes by positions by channels."""
        rows = patches(self._sums, self._layer, self._maps, self._constant * self._counts, FLOAT64)
        targets = table.reshape(len(rows), table.shape[2]).astype(FLOAT64)
        reach = np.abs(rows).max(initial=0.0) * np.abs(targets).sum(axis=0).max(initial=0.0)
        if self._bound and reach > EXACT_UP_TO[FLOAT64]:
            raise ExactnessError(
                "a sum over so large a number of samples may not be exact; use fewer grid.bits"
            )
        return block_matmul(rows.T, targets).astype(self._sums.dtype)
