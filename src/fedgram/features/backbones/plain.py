"""Backbones without weights: vectors as they are, and the pixels themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.data.items import Kind
from fedgram.errors import ConfigError
from fedgram.features.backbones.registry import Backbone
from fedgram.samples import Array

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
    """Vectors as they are."""

    name: str = "identity"
    takes: Kind = "vectors"
    digest: str = "identity"

    def __call__(self, items: Sequence[Any]) -> Array:
        return np.asarray(items, np.float64)


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """The mean color of each cell of a grid laid over the image, in whole numbers.

    Examples
    --------
    >>> Pixels(side=1)([np.full((5, 7, 3), 9, np.uint8)])
    array([[9., 9., 9.]])
    """

    side: int = DEFAULT_SIDE
    takes: Kind = "images"

    @property
    def name(self) -> str:
        return f"pixels:{self.side}"

    @property
    def digest(self) -> str:
        return self.name

    def __call__(self, items: Sequence[Any]) -> Array:
        return np.stack([self._cells(image) for image in items])

    def _cells(self, image: Array) -> Array:
        height, width, _ = image.shape
        rows = np.linspace(0, height, self.side + 1).astype(int)
        columns = np.linspace(0, width, self.side + 1).astype(int)
        cells = [
            # A cell of a small image may be empty: then its nearest pixel stands for it.
            image[top : max(bottom, top + 1), left : max(right, left + 1)].mean(axis=(0, 1))
            for top, bottom in zip(np.minimum(rows[:-1], height - 1), rows[1:], strict=True)
            for left, right in zip(np.minimum(columns[:-1], width - 1), columns[1:], strict=True)
        ]
        return np.concatenate(cells)
