"""Filters of a layer in closed form: principal axes or ridge regression of its input patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.linalg

from fedgram.core.exact import EXACT_UP_TO, FLOAT32
from fedgram.core.samples import Floats, Space
from fedgram.core.solve import unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import SolveError
from fedgram.features.grid import bias
from fedgram.features.lift import signs_of
from fedgram.layerwise.stack import GRID, SolvedLayer
from fedgram.models.architecture import Layer
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

FilterKind = Literal["principal", "position", "shared", "backward", "random", "none"]
Scaling = Literal["length", "rms", "whitened"]
LABELED: tuple[FilterKind, ...] = ("position", "shared", "backward")
LARGEST = 2**11 - 1  # largest integer of a filter: 12 bits with the sign
FLOOR = 0.01  # variance below this fraction of the mean variance of a patch counts as noise
_WIDEST_SHIFT = 100


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchMoments:
    """Mean and covariance of patches without the constant, in stored units."""

    gram: Floats
    count: int
    constant: int
    space: Space

    @classmethod
    def of(cls, total: Statistics) -> PatchMoments:
        """Return the moments from a total whose last feature is the constant."""
        if total.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {total.count} samples")
        return cls(
            gram=unpack_symmetric(total.gram, total.space.width),
            count=total.count,
            constant=bias(total.space.unit, total.space.bound),
            space=total.space,
        )

    @property
    def mean(self) -> Floats:
        """Mean patch."""
        sums = self.gram[self.space.without_constant, self.space.constant]
        mean: Floats = sums / (self.constant * self.count)
        return mean

    @property
    def covariance(self) -> Floats:
        """Covariance of patches."""
        mean, others = self.mean, self.space.without_constant
        covariance: Floats = self.gram[others, others] / self.count - np.outer(mean, mean)
        return covariance

    def rms(self, filters: Floats) -> Floats:
        """Return the root mean square of the outputs of each filter over all patches."""
        with single_threaded_blas():
            squares = np.einsum("ij,ij->j", filters, self.gram @ filters) / self.count
        rms: Floats = np.sqrt(np.maximum(squares, 0))
        return rms

    def centered(self, filters: Floats) -> Floats:
        """Return the filters with the bias for which the mean output is zero."""
        offset = -(self.mean @ filters) / self.constant
        return np.vstack([filters, offset])


def solve(
    total: Statistics, layer: Layer, kind: FilterKind, *, ridge: float, scaling: Scaling, seed: int
) -> SolvedLayer:
    """Return the layer with its solved filters, rounded to the public grid.

    Parameters
    ----------
    total
        Statistics of the input patches.
    layer
        The layer's description.
    kind
        Kind of filters.
    ridge
        Ridge of filters that are regressions, per patch.
    scaling
        Normalization of the filters.
    seed
        Seed of random filters.
    """
    moments, inputs = PatchMoments.of(total), total.space.constant
    if kind in LABELED:
        filters = total.solve(ridge * total.count) * total.space.unit
    else:
        random = signs_of(inputs, layer.channels, seed) / np.sqrt(np.float64(inputs))
        if kind == "principal":
            random = _both_signs(_axes(moments.covariance), random)
        filters = moments.centered(random)
    sizes = _sizes(filters, moments, scaling) * (GRID.step if total.space.exact else 1.0)
    return rounded(filters, layer, sizes, total.space.bound)


def rounded(filters: Floats, layer: Layer, sizes: Floats, bound: int) -> SolvedLayer:
    """Return a layer with filters divided by `sizes` and rounded to the public grid.

    Each filter is multiplied by the largest power of two with which its integers have at most 12
    bits and all sums of products with integers up to `bound` are exact in float32.

    Parameters
    ----------
    filters
        Inputs of a patch (with the constant) by channels.
    layer
        The layer's description.
    sizes
        Divisor of each filter.
    bound
        Largest magnitude of an input.
    """
    scaled = filters / sizes
    largest, length = np.abs(scaled).max(axis=0), np.abs(scaled).sum(axis=0)
    # Rounding adds at most a half to each entry.
    room = EXACT_UP_TO[FLOAT32] / max(1, bound) - len(scaled) / 2
    with np.errstate(divide="ignore"):  # a filter of zeros allows every power
        fits = np.log2(np.minimum(LARGEST / largest, room / length))
    shifts = np.clip(np.floor(fits), -_WIDEST_SHIFT, _WIDEST_SHIFT).astype(np.int8)
    whole = np.rint(np.ldexp(scaled, shifts.astype(np.int32)))
    return SolvedLayer(text=str(layer), filters=whole.astype(np.int16), shifts=shifts, sizes=sizes)


def pulled(
    own: Statistics, shared: SolvedLayer, layer: Layer, *, ridge: float, strength: float
) -> SolvedLayer:
    """Return a client's own layer: its ridge regression, pulled towards the shared filters.

    Sizes are those of the shared layer, so that a very strong pull gives the shared layer.

    Parameters
    ----------
    own
        Statistics of the client's input patches.
    shared
        The shared layer.
    layer
        The layer's description.
    ridge
        Weight of the squared norm, per patch.
    strength
        Weight of the squared distance to the shared filters.
    """
    unit, weight = own.space.unit, ridge * own.count + strength
    towards = shared.real() * shared.sizes / unit * (strength / weight)
    filters = own.solve(weight, towards=towards) * unit
    return rounded(filters, layer, shared.sizes, own.space.bound)


def _sizes(filters: Floats, moments: PatchMoments, scaling: Scaling) -> Floats:
    """Return divisors of the filters with which the outputs are of about unit size."""
    if scaling == "rms":
        sizes = moments.rms(filters)
    else:
        others = filters[moments.space.without_constant]
        length = np.sqrt(np.einsum("ij,ij->j", others, others))
        squares = moments.rms(filters / np.where(length > 0, length, 1.0)) ** 2
        variance = np.ones_like(squares)
        if scaling == "whitened":
            variance = squares + FLOOR * np.trace(moments.covariance) / (len(filters) - 1)
            variance = np.where(variance > 0, variance, 1.0)  # if all patches are equal
        sizes = length * np.sqrt(variance * np.mean(squares / variance))
    return np.where(sizes > 0, sizes, 1.0)


def _axes(covariance: Floats) -> Floats:
    """Return the principal axes by decreasing variance, with deterministic signs."""
    width = len(covariance)
    flops.add(9 * width**3)
    with single_threaded_blas():
        _, ascending = scipy.linalg.eigh(covariance, check_finite=False)
    axes: Floats = ascending[:, ::-1]
    largest = axes[np.abs(axes).argmax(axis=0), np.arange(width)]
    return axes * np.where(largest < 0, -1.0, 1.0)


def _both_signs(axes: Floats, random: Floats) -> Floats:
    """Return the leading axes with both signs, then random filters if there are too few axes."""
    pairs = np.stack([axes, -axes], axis=2).reshape(len(axes), -1)
    return np.hstack([pairs, random])[:, : random.shape[1]]
