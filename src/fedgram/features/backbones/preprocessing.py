"""How an image becomes a network's input, with Pillow and numpy alone.

Packages change the way they resize from one version to the next, and with the libraries they find.
Here a model's settings mean the same pixels everywhere, and belong to its digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgram.core.samples import Array
from fedgram.errors import DataError

Fit = Literal["squash", "shorter", "outside", "inside"]
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Scale an image, cut out or pad to the middle, normalize.

    Parameters
    ----------
    size
        Height and width of the result.
    resize
        Height and width that the image is scaled to, before the middle is cut out.
    fit
        How it is scaled: "squash" takes both sides as given; "shorter" makes the shorter side that
        long and keeps the shape; "outside" covers the given rectangle, and "inside" fits into it,
        with the mean color around it.
    interpolation
        One of Pillow's filters.
    middle
        Where the middle lies when an odd number of pixels is to be cut off: "floor" rounds the
        half pixel down, as transformers does, "even" to an even number, as timm does.
    mean, std
        Taken off and divided by, for pixels from 0 to 1.
    """

    size: tuple[int, int]
    resize: tuple[int, int]
    fit: Fit = "squash"
    interpolation: str = "bicubic"
    middle: Literal["floor", "even"] = "floor"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            raise DataError(f"interpolation {self.interpolation!r} is none of {known}")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise DataError(f"mean {self.mean}, std {self.std}: three numbers each, std not 0")

    def __call__(self, image: Array) -> Array:
        """Return three planes of float32 for a uint8 image of height by width by three."""
        from PIL import Image

        height, width = self._scaled(*image.shape[:2])
        filters = Image.Resampling
        scaled = Image.fromarray(image).resize((width, height), filters[self.interpolation.upper()])
        around = tuple(round(255 * v) for v in self.mean) if self.fit == "inside" else 0
        middle = Image.new("RGB", self.size[::-1], around)
        middle.paste(scaled, (-self._cut(width, self.size[1]), -self._cut(height, self.size[0])))
        # In float32 throughout: what other tools do, to the bit.
        pixels: Array = np.asarray(middle, np.float32) / np.float32(255)
        pixels = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _scaled(self, height: int, width: int) -> tuple[int, int]:
        if self.fit == "squash":
            return self.resize
        if self.fit == "shorter":
            side, shorter = self.resize[0], min(height, width)
            return int(side * height / shorter), int(side * width / shorter)
        ratios = height / self.resize[0], width / self.resize[1]
        ratio = max(ratios) if self.fit == "inside" else min(ratios)
        return max(1, round(height / ratio)), max(1, round(width / ratio))

    def _cut(self, side: int, wanted: int) -> int:
        """Return how much to cut off before the middle, negative where there is too little."""
        if self.middle == "floor":
            return (side - wanted) // 2
        return round((side - wanted) / 2) if side >= wanted else -((wanted - side) // 2)
