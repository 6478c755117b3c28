"""Resizing against the definition, pixel by pixel, and against PyTorch."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.features.backbones.bicubic import resized

A = Fraction(-3, 4)


def kernel(distance):
    """The cubic of Keys (1981, eq. 4), for any distance."""
    d = abs(distance)
    if d <= 1:
        return (A + 2) * d**3 - (A + 3) * d**2 + 1
    return A * d**3 - 5 * A * d**2 + 8 * A * d - 4 * A if d < 2 else Fraction(0)


def by_definition(image, side):
    """Weigh the pixels around every point, in exact fractions; beyond the edge, the edge."""
    height, width, channels = image.shape
    result = np.zeros((channels, side, side))
    for i in range(side):
        for j in range(side):
            y = Fraction(2 * i + 1, 2) * Fraction(height, side) - Fraction(1, 2)
            x = Fraction(2 * j + 1, 2) * Fraction(width, side) - Fraction(1, 2)
            total = [Fraction(0)] * channels
            for row in range(math.floor(y) - 3, math.floor(y) + 5):
                for column in range(math.floor(x) - 3, math.floor(x) + 5):
                    weight = kernel(y - row) * kernel(x - column)
                    pixel = image[min(max(row, 0), height - 1), min(max(column, 0), width - 1)]
                    total = [t + weight * int(p) for t, p in zip(total, pixel, strict=True)]
            result[:, i, j] = [min(max(float(t), 0.0), 255.0) for t in total]
    return result


shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))


@given(shape=shapes, side=st.integers(1, 7), seed=st.integers(0, 99))
def test_every_pixel_is_what_the_cubic_says(shape, side, seed):
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    ours = resized(image, side)
    assert (ours.dtype, ours.shape) == (np.float32, (3, side, side))
    assert np.allclose(ours, by_definition(image, side), rtol=0, atol=1e-3)


def test_an_image_of_the_right_size_is_left_as_it_is():
    image = np.random.default_rng(0).integers(0, 256, (17, 17, 3), dtype=np.uint8)
    assert np.array_equal(resized(image, 17), image.transpose(2, 0, 1))


@pytest.mark.vision
@pytest.mark.parametrize("shape", [(32, 32), (375, 500), (500, 375), (1, 1), (227, 227)])
def test_it_is_what_torch_does(shape):
    torch = pytest.importorskip("torch")
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    theirs = torch.nn.functional.interpolate(
        pixels, size=(224, 224), mode="bicubic", align_corners=False
    )
    # Torch rounds the places it samples to float32.
    assert np.allclose(resized(image, 224), theirs.clamp(0, 255)[0].numpy(), rtol=0, atol=0.05)
