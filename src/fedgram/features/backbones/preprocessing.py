"""Image preprocessing for networks (resize, crop, normalize), with Pillow and NumPy only.

The resizing of other packages depends on their version and on the installed libraries. Here equal
settings give equal pixels on every machine, and the settings are part of the backbone's digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram.core.samples import Array
from fedgram.errors import DataError

Fit = Literal["squash", "shorter", "outside", "inside"]
MOST_PIXELS = 1 << 14  # of one side
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Resize an image, crop or pad it to its center, and normalize it.

    Parameters
    ----------
    size
        Height and width of the result.
    resize
        Height and width after resizing, before the center crop.
    fit
        "squash" resizes to exactly `resize`. The others keep the aspect ratio: "shorter" resizes
        the shorter side, "outside" covers the rectangle, "inside" fits into the rectangle and pads
        with the mean color.
    interpolation
        One of Pillow's filters.
    middle
        Rounding of the crop's offset if an odd number of pixels is removed: "floor" rounds down,
        as transformers does, "even" rounds to an even number, as timm does.
    mean, std
        Normalization of pixels from 0 to 1.
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
            raise DataError(f"interpolation: expected one of {known}, got {self.interpolation!r}")
        lengths = (*self.size, *self.resize)
        if len(lengths) != 4 or not all(type(n) is int and 0 < n < MOST_PIXELS for n in lengths):
            raise DataError(f"size {self.size}, resize {self.resize}: expected heights and widths")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise DataError(
                f"mean {self.mean}, std {self.std}: expected three numbers each, std not 0"
            )

    def __call__(self, image: Array) -> Array:
        """Return a float32 array (3, height, width) for a uint8 image (height, width, 3)."""
        from PIL import Image

        height, width = self._scaled(*image.shape[:2])
        scaled = rows_first(Image.fromarray(image), (width, height), self.interpolation)
        around = tuple(round(255 * v) for v in self.mean) if self.fit == "inside" else 0
        middle = Image.new("RGB", self.size[::-1], around)
        middle.paste(scaled, (-self._cut(width, self.size[1]), -self._cut(height, self.size[0])))
        # All in float32: equal to other tools, to the bit.
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
        """Return the offset of the center crop; negative for padding."""
        if self.middle == "floor":
            return (side - wanted) // 2
        return round((side - wanted) / 2) if side >= wanted else -((wanted - side) // 2)


def rows_first(image: Any, size: tuple[int, int], interpolation: str) -> Any:
    """Return a resized image of Pillow: the width changes first, then the height.

    Pillow rounds in between, and newer versions begin with the height where that is faster.

    Parameters
    ----------
    image
        The image of Pillow.
    size
        Width and height.
    interpolation
        One of Pillow's filters.
    """
    from PIL import Image

    kind = Image.Resampling[interpolation.upper()]
    return image.resize((size[0], image.height), kind).resize(size, kind)
