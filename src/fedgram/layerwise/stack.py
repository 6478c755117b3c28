"""Solved layers and their forward pass in exact integers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgram.core import codec
from fedgram.core.exact import FLOAT32, FLOAT64, block_matmul, exact_matmul
from fedgram.core.samples import Array, Features, Floats, Labels, Samples, Space
from fedgram.errors import MismatchError
from fedgram.features.grid import Grid, bias
from fedgram.features.lift import ACTIVATIONS
from fedgram.layerwise.adaptive_batches import adaptive_batches
from fedgram.layerwise.patches import batch_size, patches
from fedgram.models.architecture import Conv, Layer, MapShape, read

GRID = Grid(bits=8)  # of the outputs of a layer


@codec.register("Solved/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SolvedLayer:
    """A layer with its filters on a public grid: integers of 12 bits times powers of two.

    Parameters
    ----------
    text
        Description of the layer.
    filters
        Inputs of a patch (with the constant) by channels; integers.
    shifts
        The output of a channel is its integer sum divided by ``2^shift``, rounded.
    sizes
        Divisors of the solved filters, for outputs of about unit size.
    """

    text: str
    filters: Array
    shifts: Array
    sizes: Floats

    @functools.cached_property
    def layer(self) -> Layer:
        """The layer's description."""
        (layer,) = read(self.text)
        return layer

    @functools.cached_property
    def longest(self) -> int:
        """The largest sum of magnitudes of a filter."""
        return int(np.abs(self.filters.astype(np.int64)).sum(axis=0).max(initial=0))

    @functools.cached_property
    def factors(self) -> Array:
        """The factors ``2^-shift`` of the sums."""
        return np.ldexp(np.float32(1), -self.shifts.astype(np.int32))

    def real(self) -> Floats:
        """Return the filters as float64."""
        real: Floats = self.filters * self.factors.astype(FLOAT64)
        return real

    def __call__(self, values: Array, maps: MapShape, space: Space) -> Array:
        """Return the outputs of the layer, samples by entries.

        Parameters
        ----------
        values
            Inputs, samples by entries.
        maps
            The input shape.
        space
            The feature space of the inputs.
        """
        layer, constant = self.layer, bias(space.unit, space.bound)
        dtype = FLOAT32 if space.bound else FLOAT64
        rows = patches(values, layer, maps, constant, dtype)
        if not space.bound:
            real: Floats = block_matmul(rows, self.real())
            return _activated(real, layer, layer.filtered(maps), len(values))
        sums = exact_matmul(rows, self.filters, space.bound, longest=self.longest)
        out = layer.filtered(maps)
        pool, pooling = (layer.pool, layer.pooling) if isinstance(layer, Conv) else (1, "")
        if pooling == "max":
            sums = _pooled(sums, pool, out, len(values), np.maximum)
        sums *= self.factors  # exact: by powers of two
        levels = _leveled(np.rint(sums, out=sums), layer.activation)
        if pooling == "mean":
            levels = _pooled(levels, pool, out, len(values), np.add)
            levels /= pool**2
            np.rint(levels, out=levels)
        return levels.astype(np.int8).reshape(len(values), -1)


def _leveled(sums: Array, activation: str) -> Array:
    """Return the activation of integers, on the grid; may overwrite `sums`."""
    if activation == "relu":  # needs no table
        return np.clip(sums, 0, GRID.bound, out=sums)
    np.clip(sums, -GRID.bound, GRID.bound, out=sums)
    levels = _table(activation).take(sums.astype(np.int16) + GRID.bound)
    return levels.astype(sums.dtype)


@functools.cache
def _table(activation: str) -> Array:
    """Return the activation of every level of the grid, rounded to the grid."""
    levels: Floats = np.arange(-GRID.bound, GRID.bound + 1) * np.float64(GRID.step)
    table: Array = GRID.levels(ACTIVATIONS[activation](levels))
    return table


def _activated(sums: Floats, layer: Layer, out: MapShape, count: int) -> Floats:
    """Return pooled and activated floats: maximum before, mean after the activation."""
    function = ACTIVATIONS[layer.activation]
    if not isinstance(layer, Conv):
        return function(sums)
    if layer.pooling == "max":
        pooled = function(_pooled(sums, layer.pool, out, count, np.maximum))
    else:
        pooled = _pooled(function(sums), layer.pool, out, count, np.add) / layer.pool**2
    return pooled.reshape(count, -1)


def _pooled(rows: Array, pool: int, out: MapShape, count: int, join: np.ufunc) -> Array:
    """Return the maximum or sum over pooled squares; separable, which is fastest in NumPy."""
    down, right = out.height // pool, out.width // pool
    maps = rows.reshape(count, out.height, out.width, -1)[:, : down * pool, : right * pool]
    cells = maps.reshape(count, down, pool, right, pool, -1)
    lines = functools.reduce(join, (cells[:, :, i] for i in range(pool)))
    pooled: Array = functools.reduce(join, (lines[:, :, :, i] for i in range(pool)))
    return pooled


def head_input_shape(shapes: Sequence[MapShape], cells: int) -> MapShape:
    """Return the input shape of the head: the last layer's outputs, or the cells of all layers.

    Examples
    --------
    >>> maps = [MapShape(height=n, width=n, channels=c) for n, c in ((32, 3), (16, 8), (2, 10))]
    >>> str(head_input_shape(maps, cells=0)), str(head_input_shape(maps, cells=4))
    ('2x2x10', '1x1x168')
    """
    if not cells or len(shapes) == 1:
        return shapes[-1]
    sides = [(min(cells, maps.height), min(cells, maps.width)) for maps in shapes]
    pairs = zip(sides[1:], shapes[1:], strict=True)
    return MapShape(channels=sum(down * right * maps.channels for (down, right), maps in pairs))


def _averaged(values: Array, maps: MapShape, cells: int) -> Array:
    """Return means over cells, samples by entries, in the units of the values.

    The mean of n values varies less than the values, and would be rounded away on their grid. So
    the mean is multiplied by max(1, sqrt(n) / 2).
    """
    exact = values.dtype == np.int8
    sums = values.reshape(-1, maps.height, maps.width, maps.channels)
    count = np.ones(())
    for axis, side in ((1, maps.height), (2, maps.width)):
        starts = np.unique(np.arange(cells) * side // cells)
        sums = np.add.reduceat(sums, starts, axis=axis, dtype=np.int32 if exact else FLOAT64)
        count = np.multiply.outer(count, np.diff(starts, append=side))
    factors = np.maximum(np.sqrt(count) / 2, 1) / count
    means = sums * factors[..., None]
    if exact:
        means = np.clip(np.rint(means), -GRID.bound, GRID.bound).astype(values.dtype)
    return means.reshape(len(values), -1)


@codec.register("Stack/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class LayerStack:
    """A sequence of solved layers.

    Parameters
    ----------
    inputs
        The feature space of the inputs.
    image
        Height, width and channels of the inputs.
    solved
        The layers.
    cells
        If not 0, the output is the input of the head: the mean outputs of every layer over
        `cells` by `cells` cells, concatenated. Otherwise the output of the last layer.
    """

    inputs: Space
    image: tuple[int, int, int]
    solved: tuple[SolvedLayer, ...] = ()
    cells: int = 0

    @functools.cached_property
    def shapes(self) -> list[MapShape]:
        """The input shape of each layer, and the output shape of the last."""
        height, width, channels = self.image
        found = [MapShape(height=height, width=width, channels=channels)]
        for solved in self.solved:
            found.append(solved.layer.after(found[-1]))
        return found

    @functools.cached_property
    def digest(self) -> str:
        """Digest of inputs, layers and cells: integers only, so equal on all machines."""
        layers = [[solved.text, solved.filters, solved.shifts] for solved in self.solved]
        return codec.digest([self.inputs, self.image, layers, self.cells])

    @property
    def maps(self) -> MapShape:
        """The output shape."""
        return head_input_shape(self.shapes, self.cells)

    @functools.cached_property
    def space(self) -> Space:
        """The feature space of the outputs, with the constant."""
        if not self.solved:
            return self.inputs
        exact = self.inputs.exact
        texts = ", ".join(solved.text for solved in self.solved)
        texts += f"; cells {self.cells}" if self.cells else ""
        return replace(
            self.inputs,
            width=self.maps.size + 1,
            unit=GRID.step if exact else 1.0,
            bound=GRID.bound if exact else 0,
            clip=GRID.reach if exact else 0.0,
            steps=(*self.inputs.steps, f"layers({texts}; {self.digest[:16]})"),
        )

    def plus(self, layer: SolvedLayer) -> LayerStack:
        """Return the stack with one more layer."""
        return replace(self, solved=(*self.solved, layer))

    def batches(
        self, samples: Samples, at_a_time: int, seconds: float = 0.0
    ) -> Iterator[tuple[Features, Labels]]:
        """Yield the outputs and labels of at most `at_a_time` samples at a time.

        Parameters
        ----------
        samples
            The samples.
        at_a_time
            Largest batch.
        seconds
            Time budget of a batch; 0 for none.
        """
        for part in adaptive_batches(len(samples), at_a_time, seconds):
            yield self(samples.features.take(part)), samples.labels.take(part)

    def batch_size(self) -> int:
        """Return the number of samples whose patches fit in memory in every layer."""
        pairs = zip(self.solved, self.shapes, strict=False)
        return min(batch_size(solved.layer, maps) for solved, maps in pairs)

    def __call__(self, features: Features) -> Features:
        """Return the outputs of the layers, from the cache of `features` if there is one."""
        if not self.solved:
            return self._applied(features)
        return features.derived(self.space, lambda: self._by_batches(features))

    def _by_batches(self, features: Features) -> Features:
        rows = np.empty((len(features), self.space.width), np.int8 if self.space.bound else FLOAT64)
        size = self.batch_size()
        for start in range(0, len(features), size):
            part = slice(start, start + size)
            rows[part] = self._applied(features.take(part)).values
        return Features(rows, self.space)

    def _applied(self, features: Features) -> Features:
        if features.space != self.inputs:
            raise MismatchError(
                f"these layers were made for other features: "
                f"{self.inputs.difference(features.space)}; use the same backbone and grid"
            )
        if not self.solved:
            return features
        values, space = features.values[:, self.inputs.without_constant], self.inputs
        parts = []
        for solved, maps, after in zip(self.solved, self.shapes, self.shapes[1:], strict=False):
            values, space = solved(values, maps, space), self.space
            if self.cells:
                parts.append(_averaged(values, after, self.cells))
        rows = np.empty((len(values), self.space.width), values.dtype)
        rows[:, self.space.without_constant] = np.hstack(parts) if self.cells else values
        rows[:, self.space.constant] = bias(self.space.unit, self.space.bound)
        return Features(rows, self.space)
