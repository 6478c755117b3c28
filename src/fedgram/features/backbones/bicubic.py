"""Bicubic resizing as in PyTorch: the cubic kernel with a = -0.75, without antialiasing.

Computed as two products with sparse matrices of four entries per row. This is several times faster
than the operator of onnxruntime, and thread-safe.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array

from fedgram.core.samples import Array

SHARPNESS = -0.75


def resized(image: Array, side: int) -> Array:
    """Return a resized image as float32, channels by side by side, clipped to 0 to 255.

    Parameters
    ----------
    image
        Height by width by channels, uint8.
    side
        Height and width of the result.

    Examples
    --------
    >>> resized(np.full((5, 7, 3), 9, np.uint8), 2)[0]
    array([[9., 9.],
           [9., 9.]], dtype=float32)
    """
    height, width, channels = image.shape
    rows = _weights(height, side) @ image.reshape(height, -1).astype(np.float32)
    turned = rows.reshape(side, width, channels).transpose(1, 2, 0).reshape(width, -1)
    columns = (_weights(width, side) @ turned).reshape(side, channels, side)
    return np.ascontiguousarray(columns.transpose(1, 2, 0)).clip(0, 255)


@lru_cache(maxsize=256)
def _weights(length: int, side: int) -> csr_array:
    """Return the matrix, side by length, that resizes a line of pixels; edge pixels repeat."""
    centre = (np.arange(side) + 0.5) * (length / side) - 0.5
    first = np.floor(centre).astype(np.int64) - 1
    places = first[:, None] + np.arange(4)
    a, distance = SHARPNESS, np.abs(centre[:, None] - places)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1  # Keys (1981), up to distance 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a  # and up to 2
    weights = np.where(distance <= 1, near, far).astype(np.float32)
    inside = places.clip(0, length - 1)
    starts = np.arange(0, 4 * side + 1, 4)
    return csr_array((weights.ravel(), inside.ravel(), starts), shape=(side, length))
