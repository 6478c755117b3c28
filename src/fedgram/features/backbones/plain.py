"""Backbones without weights: identity for vectors, and downsampled pixels for images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.layouts import downsampled
from fedgram.core.samples import Array
from fedgram.data.items import ItemKind
from fedgram.errors import ConfigError
from fedgram.features.backbones.registry import Backbone

DEFAULT_SIDE = 8


def load(source: str, rest: str) -> Backbone:
    """Return ``identity``, ``pixels`` or ``pixels:SIDE``."""
    if source == "identity":
        return Identity()
    if rest and not (rest.isdigit() and int(rest) > 0):
        raise ConfigError(f"backbone 'pixels:{rest}': write pixels:SIDE, such as pixels:16")
    return Pixels(side=int(rest or DEFAULT_SIDE))


@dataclass(frozen=True)
class Identity:
    """The identity on vectors."""

    name: str = "identity"
    takes: ItemKind = "vectors"
    digest: str = "identity"

    def __call__(self, items: Sequence[Any]) -> Array:
        return np.asarray(items, np.float64)


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """A downsampled image: the mean color of each of side by side cells.

    Examples
    --------
    >>> Pixels(side=1)([np.full((5, 7, 3), 9, np.uint8)])
    array([[9., 9., 9.]])
    """

    side: int = DEFAULT_SIDE
    takes: ItemKind = "images"

    @property
    def name(self) -> str:
        return downsampled(self.side)

    @property
    def digest(self) -> str:
        return self.name

    def __call__(self, items: Sequence[Any]) -> Array:
        return self.embed([self.prepare(image) for image in items])

    def embed(self, ready: Sequence[Any]) -> Array:
        """Return the vectors from `prepare` as one array."""
        return np.stack(ready)

    def prepare(self, image: Any) -> Array:
        """Return the vector of an image; all work is here, so that threads share it."""
        height, width, _ = image.shape
        rows, columns = _starts(height, self.side), _starts(width, self.side)
        if min(height, width) < self.side:  # fewer pixels than cells: nearest neighbor
            nearest: Array = image[np.ix_(rows, columns)]
            return nearest.reshape(-1).astype(np.float64)
        sums = np.add.reduceat(image.astype(np.int64), rows, axis=0)
        sums = np.add.reduceat(sums, columns, axis=1)
        areas = np.outer(np.diff([*rows, height]), np.diff([*columns, width]))
        cells: Array = sums / areas[:, :, None]
        return cells.reshape(-1)


def _starts(length: int, cells: int) -> Array:
    starts: Array = np.arange(cells) * length // cells
    return starts
