"""Targets of hidden layers: a public code for each class and each output position of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg

from fedgram.core.samples import Array, Floats
from fedgram.features.lift import signs_of
from fedgram.layerwise.filters import FilterKind
from fedgram.models.architecture import Conv, Layer, MapShape
from fedgram.runtime.threads import single_threaded_blas

_LARGEST, _RMS = 127, 42  # of the integers of a code


def table(
    kind: FilterKind,
    classes: Sequence[str],
    layers: Sequence[Layer],
    shapes: Sequence[MapShape],
    index: int,
    seed: int,
) -> Array:
    """Return the codes for one layer, classes by positions by channels, as small integers.

    Codes are assigned to the sorted class names, so that the order of a site's class list does not
    matter.

    - position: a random code of +1 and -1 for each class and position;
    - shared: one random code per class for all positions, so the filters have at most the rank of
      the number of classes;
    - backward: the inputs for which the layers above, with random filters, output the class
      (Toh 2018; ZORB 2020).

    Parameters
    ----------
    kind
        Kind of filters: position, shared or backward.
    classes
        The class list.
    layers
        All hidden layers.
    shapes
        Input shapes of all layers and the head.
    index
        Index of the layer.
    seed
        Public seed.
    """
    out, count = layers[index].filtered(shapes[index]), len(classes)
    if kind == "backward":
        codes = _backward(count, layers, shapes, index, seed)
    else:
        width = out.size if kind == "position" else out.channels
        codes = signs_of(count, width, codes_seed(seed, index)).astype(np.int8)
        codes = np.broadcast_to(
            codes.reshape(count, -1, out.channels), (count, out.places, out.channels)
        )
    return codes[np.argsort(np.argsort(np.asarray(classes)))]


def codes_seed(seed: int, index: int) -> int:
    """Return the seed of a layer's codes; the seed of its random filters is larger by one."""
    return (seed << 16) + 2 * index


def _backward(
    count: int, layers: Sequence[Layer], shapes: Sequence[MapShape], index: int, seed: int
) -> Array:
    """Return the classes pulled back through random layers by pseudo-inverses of the filters.

    The target of a pooled value is the target of every position in the pooled square. The
    activation is replaced by the identity, which equals relu for positive inputs.
    """
    last = shapes[-1]
    random = signs_of(last.size, count, codes_seed(seed, len(layers)) + 1)
    with single_threaded_blas():
        wanted: Floats = scipy.linalg.pinv(random.astype(np.float64)).reshape(count, *_axes(last))
        for place in range(len(layers) - 1, index - 1, -1):
            layer, maps = layers[place], shapes[place]
            wanted = _unpooled(wanted, layer, layer.filtered(maps))
            if place > index:
                random = signs_of(layer.fan_in(maps), layer.channels, codes_seed(seed, place) + 1)
                rows = wanted @ scipy.linalg.pinv(random.astype(np.float64))
                wanted = _overlapped(rows, layer, maps)
    flat = wanted.reshape(count, -1, wanted.shape[-1])
    rms = np.sqrt(np.mean(flat**2)) or 1.0
    return np.clip(np.rint(flat * (_RMS / rms)), -_LARGEST, _LARGEST).astype(np.int8)


def _axes(maps: MapShape) -> tuple[int, int, int]:
    return maps.height, maps.width, maps.channels


def _unpooled(wanted: Floats, layer: Layer, out: MapShape) -> Floats:
    if not isinstance(layer, Conv):
        return wanted
    whole = np.zeros((len(wanted), *_axes(out)))
    spread = wanted.repeat(layer.pool, axis=1).repeat(layer.pool, axis=2)
    whole[:, : spread.shape[1], : spread.shape[2]] = spread
    return whole


def _overlapped(rows: Floats, layer: Layer, maps: MapShape) -> Floats:
    """Return maps from patches; overlapping entries are averaged."""
    if not isinstance(layer, Conv):
        return rows.reshape(len(rows), *_axes(maps))
    edge, step, size = layer.padding, layer.stride, layer.kernel
    count, down, right, _ = rows.shape
    total = np.zeros((count, maps.height + 2 * edge, maps.width + 2 * edge, maps.channels))
    times = np.zeros((total.shape[1], total.shape[2], 1))
    patches = rows.reshape(count, down, right, size, size, maps.channels)
    for i in range(size):
        for j in range(size):
            there = slice(i, i + step * down, step), slice(j, j + step * right, step)
            total[:, *there] += patches[:, :, :, i, j]
            times[there] += 1
    mean = total / np.maximum(times, 1)
    return mean[:, edge : edge + maps.height, edge : edge + maps.width]
