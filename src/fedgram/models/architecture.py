"""Network architectures as text: convolutional and dense layers, presets and output shapes.

A network is one line of text, such as ``conv 32 5x5 pad 2 max 2, dense 64``: the hidden layers in
order. The linear head, one score for each class, is not part of the text. Closed-form and gradient
methods use the same description.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedgram.core.samples import Space
from fedgram.errors import ConfigError
from fedgram.features.lift import ACTIVATIONS
from fedgram.runtime.settings import propose

Pooling = Literal["max", "mean"]
PRESETS = {
    "lenet": "conv 6 5x5 pad 2 max 2, conv 16 5x5 max 2, dense 120, dense 84",
    "acnnl5": (
        "conv 32 3x3 pad 1, conv 32 3x3 pad 1 max 2, conv 64 3x3 pad 1, conv 64 3x3 pad 1 max 2"
    ),
    "mlp": "dense 128, dense 128",
}


@dataclass(frozen=True, kw_only=True)
class MapShape:
    """The shape of the input or output of a layer: feature maps, or a vector.

    Entries are stored row by row, all channels of a position together. A vector has one position
    whose channels are its entries.

    Examples
    --------
    >>> MapShape(height=28, width=28, channels=3).size
    2352
    """

    height: int = 1
    width: int = 1
    channels: int

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.height * self.width * self.channels

    @property
    def places(self) -> int:
        """Number of positions: height times width."""
        return self.height * self.width

    def __str__(self) -> str:
        return f"{self.height}x{self.width}x{self.channels}"


@dataclass(frozen=True, kw_only=True)
class Conv:
    """A convolution with a square kernel, pooling and activation.

    Parameters
    ----------
    channels
        Number of filters.
    kernel
        Side of a filter, in pixels.
    stride
        Distance between neighboring patches, in pixels.
    padding
        Zeros around the maps, in pixels.
    pool
        Side of the pooled squares; 1 without pooling. Incomplete squares at the lower and right
        edges are dropped.
    pooling
        max or mean.
    activation
        As in a lift.

    Examples
    --------
    >>> str(Conv(channels=32, kernel=5, padding=2, pool=2))
    'conv 32 5x5 pad 2 max 2'
    >>> image = MapShape(height=28, width=28, channels=1)
    >>> Conv(channels=32, kernel=5, padding=2, pool=2).after(image)
    MapShape(height=14, width=14, channels=32)
    """

    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 0
    pool: int = 1
    pooling: Pooling = "max"
    activation: str = "relu"

    def fan_in(self, maps: MapShape) -> int:
        """Return the number of inputs of one filter."""
        return maps.channels * self.kernel**2

    def filtered(self, maps: MapShape) -> MapShape:
        """Return the output shape of the filters for inputs `maps`, before pooling."""
        height, width = (
            (side + 2 * self.padding - self.kernel) // self.stride + 1
            for side in (maps.height, maps.width)
        )
        if min(height, width) < 1:
            raise ConfigError(f"layer '{self}' does not fit maps of {maps}: use a smaller kernel")
        return MapShape(height=height, width=width, channels=self.channels)

    def after(self, maps: MapShape) -> MapShape:
        """Return the output shape of the layer for inputs `maps`."""
        out = self.filtered(maps)
        height, width = out.height // self.pool, out.width // self.pool
        if min(height, width) < 1:
            raise ConfigError(f"layer '{self}' pools maps of {out} to nothing: use a smaller pool")
        return MapShape(height=height, width=width, channels=self.channels)

    def __str__(self) -> str:
        return " ".join(
            [
                f"conv {self.channels} {self.kernel}x{self.kernel}",
                *([f"stride {self.stride}"] if self.stride != 1 else []),
                *([f"pad {self.padding}"] if self.padding else []),
                *([f"{self.pooling} {self.pool}"] if self.pool != 1 else []),
                *([self.activation] if self.activation != "relu" else []),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A fully connected layer with an activation.

    Examples
    --------
    >>> Dense(channels=64).after(MapShape(height=7, width=7, channels=16))
    MapShape(height=1, width=1, channels=64)
    """

    channels: int
    activation: str = "relu"

    def fan_in(self, maps: MapShape) -> int:
        """Return the number of inputs of one filter."""
        return maps.size

    def filtered(self, maps: MapShape) -> MapShape:  # noqa: ARG002 - same signature as Conv
        """Return the output shape of the filters for inputs `maps`."""
        return MapShape(channels=self.channels)

    def after(self, maps: MapShape) -> MapShape:
        """Return the output shape of the layer for inputs `maps`."""
        return self.filtered(maps)

    def __str__(self) -> str:
        activation = f" {self.activation}" if self.activation != "relu" else ""
        return f"dense {self.channels}{activation}"


Layer = Conv | Dense


def read(text: str) -> tuple[Layer, ...]:
    """Return the layers of a network, from the name of a preset or a description.

    Layers are separated by commas. A layer is ``conv CHANNELS KxK`` followed by any of
    ``stride N``, ``pad N``, ``max N`` or ``mean N`` and an activation; or ``dense CHANNELS`` and an
    activation. The default activation is relu. An empty text is a network without hidden layers.

    Examples
    --------
    >>> read("conv 8 3x3 pad 1 max 2, dense 16 tanh")[1]
    Dense(channels=16, activation='tanh')
    >>> [str(layer) for layer in read("lenet")]
    ['conv 6 5x5 pad 2 max 2', 'conv 16 5x5 max 2', 'dense 120', 'dense 84']
    >>> read("convolution 8 3x3")
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: layers: expected 'conv 32 5x5 pad 2 max 2', 'dense 64' or one of
    lenet, acnnl5, mlp, got 'convolution 8 3x3'
    """
    words = PRESETS.get(text.strip(), text)
    layers = tuple(_layer(part.split(), part.strip()) for part in words.split(",") if part.strip())
    kinds = [type(layer) for layer in layers]
    if kinds != sorted(kinds, key=[Conv, Dense].index):
        raise ConfigError(f"layers: '{text}' has a convolution above a dense layer; swap them")
    return layers


def shapes(layers: Sequence[Layer], maps: MapShape) -> list[MapShape]:
    """Return the input shape of each layer, and of the head as the last entry.

    Examples
    --------
    >>> for maps in shapes(read("lenet"), MapShape(height=28, width=28, channels=1)):
    ...     print(maps)
    28x28x1
    14x14x6
    5x5x16
    1x1x120
    1x1x84
    """
    found = [maps]
    for layer in layers:
        if isinstance(layer, Conv) and found[-1].places == 1 and layer.kernel > 1:
            raise ConfigError(
                f"layer '{layer}': expected images, got vectors; use dense layers, or set the "
                "shape of the images (image)"
            )
        found.append(layer.after(found[-1]))
    return found


def maps_of(space: Space, image: Sequence[int] = ()) -> MapShape:
    """Return the input shape of a network for features of a space, without the constant.

    The shape is `image` (height, width, channels) if given, or that of the space if its features
    are pixels, or that of a vector.

    Examples
    --------
    >>> maps_of(Space(width=785, inputs=784, backbone="image 28x28x1"))
    MapShape(height=28, width=28, channels=1)
    >>> maps_of(Space(width=65), image=(8, 8, 1))
    MapShape(height=8, width=8, channels=1)
    >>> maps_of(Space(width=65))
    MapShape(height=1, width=1, channels=64)
    """
    width = space.constant  # the number of features before it
    known = tuple(image) or space.image
    if not known:
        return MapShape(channels=width)
    if len(known) != 3 or min(known) < 1 or math.prod(known) != width:
        raise ConfigError(
            f"image = {list(known)}: expected height, width and channels with the product {width}, "
            "the number of features"
        )
    return MapShape(height=known[0], width=known[1], channels=known[2])


def _layer(words: list[str], text: str) -> Layer:
    kind, rest = words[0], words[1:]
    try:
        if kind == "conv":
            return _conv(rest, text)
        if kind == "dense":
            return Dense(channels=_positive(rest.pop(0)), activation=_activation(rest))
    except (IndexError, ValueError):
        pass
    raise ConfigError(
        "layers: expected 'conv 32 5x5 pad 2 max 2', 'dense 64' or one of "
        f"{', '.join(PRESETS)}, got '{text}'"
    )


def _conv(words: list[str], text: str) -> Conv:
    channels = _positive(words.pop(0))
    sides = {_positive(side) for side in words.pop(0).split("x")}
    if len(sides) != 1:
        raise ConfigError(f"layers: '{text}': expected a square kernel, such as 5x5")
    given: dict[str, int] = {}
    while words and words[0] in ("stride", "pad", *get_args(Pooling)):
        name = words.pop(0)
        given[name] = int(words[0]) if name == "pad" else _positive(words[0])
        words.pop(0)
    if given.get("pad", 0) < 0 or len(given.keys() & set(get_args(Pooling))) == 2:
        raise ValueError(text)
    pooling: Pooling = "mean" if "mean" in given else "max"
    return Conv(
        channels=channels,
        kernel=sides.pop(),
        stride=given.get("stride", 1),
        padding=given.get("pad", 0),
        pool=given.get(pooling, 1),
        pooling=pooling,
        activation=_activation(words),
    )


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise ValueError(word)
    return number


def _activation(words: list[str]) -> str:
    if not words:
        return "relu"
    (name,) = words
    if name not in ACTIVATIONS:
        raise ConfigError(f"layers: unknown activation {name!r}; {propose(name, ACTIVATIONS)}")
    return name
