"""Quantization of features: a public integer grid.

Each sample is scaled to a root mean square (RMS) of one, which needs no other sample and no other
client, and rounded to a grid with a fixed step. So all later sums are sums of integers.
Raw features are left as they are, to compare with programs that do neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram.core.samples import RAW, Array, Features, Floats, Space
from fedgram.errors import ConfigError, DataError, RowError

# With fewer levels a smaller clip (in units of the sample's RMS) is better, at the cost of tails.
DEFAULT_CLIP = {2: 1.0, 3: 1.75, 4: 3.0, 5: 3.5, 6: 5.0, 7: 5.5, 8: 6.0}
WIDEST_DEFAULT_CLIP = 8.0  # 9 bits and more
_ENTRIES_AT_A_TIME = 2**18  # of the float64 copy of the input: 2 MB fit in the cache
_RMS_BITS = 15  # entries are rounded to this number of bits and a sign before they are squared


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Scale every sample to unit RMS and round it to integers of a public step.

    Parameters
    ----------
    bits
        Bits of a stored feature, 2 to 16. ``"off"`` keeps the scaled features as float64: then
        sums have rounding errors. ``"raw"`` keeps the features as they are, as float64, without
        scaling and without the constant, to reproduce the numbers of other programs.
    clip
        Clipping threshold in units of the sample's RMS; None selects the default for `bits`.

    Examples
    --------
    >>> rows = Grid(bits=8)(np.array([[3.0, 4.0], [0.0, 0.0]]))
    >>> rows.values  # the last column is the constant feature
    array([[18, 24, 21],
           [ 0,  0, 21]], dtype=int8)
    >>> Grid(bits=8)(np.array([[300.0, 400.0]])).values
    array([[18, 24, 21]], dtype=int8)
    >>> Grid(bits="raw")(np.array([[300.0, 400.0]])).values
    array([[300., 400.]])
    """

    bits: int | Literal["off", "raw"] = 8
    clip: float | None = None

    def __post_init__(self) -> None:
        known = self.bits in ("off", "raw") or (isinstance(self.bits, int) and 2 <= self.bits <= 16)
        if not known:
            raise ConfigError(f"grid.bits = {self.bits!r}: use 2 to 16, 'off' or 'raw'")
        if self.clip is not None and not (self.clip > 0 and math.isfinite(self.clip)):
            raise ConfigError(f"grid.clip = {self.clip}: use a number > 0, or remove the setting")

    @property
    def bound(self) -> int:
        """The largest integer on the grid; 0 without a grid."""
        return 0 if isinstance(self.bits, str) else 2 ** (self.bits - 1) - 1

    @property
    def raw(self) -> bool:
        """Whether features are left as they are, without a constant."""
        return self.bits == "raw"

    @property
    def reach(self) -> float:
        """The clipping threshold, in units of the sample's RMS."""
        if self.clip is not None:
            return float(self.clip)
        return DEFAULT_CLIP.get(self.bits, WIDEST_DEFAULT_CLIP)  # type: ignore[arg-type]

    @property
    def step(self) -> float:
        """The real value of one step of the grid; 1 without a grid."""
        return self.reach / self.bound if self.bound else 1.0

    def space(self, width: int, backbone: str = "") -> Space:
        """Return the feature space of quantized vectors of `width` inputs, plus the constant.

        Raw vectors have no constant.
        """
        source = f"{width} features" + (f" of {backbone}" if backbone else "")
        if self.raw:
            made = (f"input({source})", RAW)
            return Space(width=width, inputs=width, backbone=backbone, steps=made)
        constant = bias(self.step, self.bound)
        detail = f"{self.bits} bits, clip {self.reach:g}" if self.bound else "off"
        return Space(
            width=width + 1,
            unit=self.step,
            bound=self.bound,
            inputs=width,
            clip=self.reach if self.bound else 0.0,
            backbone=backbone,
            steps=(f"input({source})", f"grid({detail}, constant {constant})"),
        )

    @classmethod
    def of(cls, space: Space) -> Grid:
        """Return the grid of a feature space, to quantize more vectors of the same backbone."""
        if not space.exact:
            return cls(bits="raw" if RAW in space.steps else "off")
        return cls(bits=space.bound.bit_length() + 1, clip=space.clip)

    def __call__(
        self,
        x: Array,
        *,
        scale: Array | float | None = None,
        offset: Array | float | None = None,
        backbone: str = "",
    ) -> Features:
        """Return quantized rows, with the constant appended unless the rows are raw.

        Parameters
        ----------
        x
            Samples by features.
        scale, offset
            If given, the real features are ``x * scale + offset``.
        backbone
            Name of the backbone, for the feature space.
        """
        if x.ndim != 2:
            raise DataError(f"features: expected samples by features, got shape {x.shape}")
        space = self.space(x.shape[1], backbone)
        rows = np.empty((len(x), space.width), self._dtype)
        if space.has_constant:
            rows[:, space.constant] = bias(self.step, self.bound)
        rows_at_a_time = max(1, _ENTRIES_AT_A_TIME // space.width)
        for start in range(0, len(x), rows_at_a_time):
            part = slice(start, start + rows_at_a_time)
            real = _real(x[part], scale, offset, start)
            rows[part, space.without_constant] = self._rounded(real)
        return Features(rows, space)

    def stored(self, x: Array, *, backbone: str = "") -> Features:
        """Return rows that are already integers of this grid, with the constant appended."""
        space = self.space(x.shape[1], backbone)
        constant = np.full((len(x), 1), bias(self.step, self.bound), x.dtype)
        return Features(np.hstack([x, constant]), space)

    def levels(self, x: Floats) -> Array:
        """Return the clipped integers nearest to values on a public scale.

        No constant is appended. The caller must put the scale into the backbone name, so that the
        features do not add to features of unit RMS.
        """
        if not self.bound:
            raise ConfigError("features are stored on a grid: use grid.bits from 2 to 16")
        return self._clipped(x / self.step).astype(self._dtype)

    @property
    def _dtype(self) -> type[np.number[Any]]:
        if not self.bound:
            return np.float64
        return np.int8 if self.bound < 2**7 else np.int16

    def _clipped(self, steps: Floats) -> Floats:
        return np.clip(np.rint(steps), -self.bound, self.bound)

    def _rounded(self, real: Floats) -> Floats:
        if self.raw:
            return real
        scaled, rms = _scaled_with_rms(real)
        steps: Floats = scaled / np.where(rms > 0, rms * self.step, 1.0)[:, None]
        return self._clipped(steps) if self.bound else steps


def bias(step: float, bound: int) -> int:
    """Return the constant feature: the integer nearest to a real value of 1, at least 1."""
    return max(1, round(1 / step)) if bound else 1


def _scaled_with_rms(real: Floats) -> tuple[Floats, Floats]:
    """Return each row times a power of two, with its RMS: equal bits on every IEEE machine.

    The power of two makes the largest entry just smaller than 2^15 (exact). The squares are summed
    as integers (exact). Then one division and one square root, which IEEE 754 defines to the bit.
    """
    _, exponent = np.frexp(np.abs(real).max(axis=1, initial=0.0))
    shift = _RMS_BITS - exponent
    if np.abs(shift, dtype=np.int64).max(initial=0) < 1000:  # the power itself is representable
        scaled: Floats = real * np.ldexp(1.0, shift)[:, None]
    else:
        scaled = np.ldexp(real, shift[:, None])
    whole = np.rint(scaled).astype(np.int64)
    mean_square = np.einsum("ij,ij->i", whole, whole) / max(1, real.shape[1])
    return scaled, np.sqrt(mean_square)


def _real(
    x: Array, scale: Array | float | None, offset: Array | float | None, start: int
) -> Floats:
    real: Floats = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinity raise an error below
        if scale is not None:
            real *= np.asarray(scale, np.float64)
        if offset is not None:
            real += np.asarray(offset, np.float64)
    bad = ~np.isfinite(real).all(axis=1)
    if bad.any():
        row = start + int(np.flatnonzero(bad)[0])
        problem = "the features are NaN or infinite; remove or correct them"
        raise RowError(f"row {row}: {problem}", row=row)
    return real
