"""Deep networks as one flat vector of parameters, trained by torch.

The same layers that closed forms solve, in the words of `fedgram.models.architecture`, for the
methods that they are compared with. Only here does training need torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Space
from fedgram.errors import ConfigError
from fedgram.models.architecture import Conv, Layer, MapShape, maps_of, read, shapes
from fedgram.models.mlp import TrainingRows, cross_entropy_grad
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_torch


@codec.register("Tower/1")
@dataclass(frozen=True, kw_only=True)
class TorchNetwork:
    """Convolutions and dense layers under a linear head.

    Each layer has weights and a bias, where a filter's entries are stored place by place as the
    maps are. The head sees what comes out, and a constant.

    Parameters
    ----------
    text
        The layers below the head, in words.
    image
        Height, width and channels of what goes in.
    classes
        Number of scores.

    Examples
    --------
    >>> tower = TorchNetwork(text="lenet", image=(28, 28, 1), classes=10)
    >>> tower.size, tower.base, [layer.shape for layer in tower.layers(np.zeros(tower.size))]
    (61706, 60856, [(26, 6), (151, 16), (401, 120), (121, 84), (85, 10)])
    """

    text: str
    image: tuple[int, int, int]
    classes: int

    @classmethod
    def of(cls, text: str, space: Space, classes: int, image: tuple[int, ...] = ()) -> TorchNetwork:
        """Return the network for features of a space; layers that do not fit are refused."""
        maps = maps_of(space, image)
        shapes(read(text), maps)
        require_torch()
        return cls(text=text, image=(maps.height, maps.width, maps.channels), classes=classes)

    @property
    def hidden(self) -> int:
        """Width of what the head sees, without the constant."""
        return self._maps[-1].size

    @property
    def base(self) -> int:
        """Number of parameters below the head."""
        return self.size - (self.hidden + 1) * self.classes

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self._ends[-1]

    def layers(self, theta: Array) -> list[Array]:
        """Return views of the layers: inputs and a constant by channels, the head last."""
        pairs = zip(self._sides, self._ends, strict=True)
        return [
            theta[end - inputs * outputs : end].reshape(inputs, outputs)
            for (inputs, outputs), end in pairs
        ]

    def start(self, dtype: Any, seed: int = 0) -> Array:
        """Return the public start: random layers (He), biases and a head of zeros."""
        theta = np.zeros(self.size, dtype)
        rng = np.random.Generator(np.random.Philox(seed))
        for layer in self.layers(theta)[:-1]:
            drawn = rng.standard_normal((len(layer) - 1, layer.shape[1]))
            layer[:-1] = drawn * np.sqrt(2 / (len(layer) - 1))
        return theta

    def logits(self, theta: Array, rows: TrainingRows) -> Array:
        """Return one row of scores per sample."""
        torch = require_torch()
        flops.add(self._flops * len(rows))
        with single_threaded_torch(torch), torch.no_grad():
            scores: Array = self._scores(torch, self._leaves(torch, theta), rows).numpy()
        return scores

    def backward(
        self, theta: Array, rows: TrainingRows, *, into: Array, scale: float, keep: float = 0.0
    ) -> None:
        """Set ``into`` to ``keep * into + scale * gradient``; it may be `theta` itself.

        The gradient is that of the mean cross-entropy of the rows at `theta`.
        """
        torch = require_torch()
        flops.add(3 * self._flops * len(rows))
        with single_threaded_torch(torch):
            leaves = [leaf.requires_grad_() for leaf in self._leaves(torch, theta)]
            scores = self._scores(torch, leaves, rows)
            residual = cross_entropy_grad(scores.detach().numpy(), rows.codes)
            slopes = torch.autograd.grad(scores, leaves, torch.from_numpy(residual))
        for layer, slope in zip(self.layers(into), slopes, strict=True):
            step = scale * slope.numpy()
            if keep:  # else there may be anything
                step += keep * layer
            layer[...] = step

    def _leaves(self, torch: Any, theta: Array) -> list[Any]:
        """Return the layers as tensors that share their memory with `theta` where they can."""
        if not theta.flags.writeable:  # torch knows no constants
            theta = theta.copy()
        return [torch.from_numpy(layer) for layer in self.layers(theta)]

    def _scores(self, torch: Any, leaves: list[Any], rows: TrainingRows) -> Any:
        height, width, channels = self.image
        maps = torch.from_numpy(rows.values[:, :-1] * rows.unit)
        # Channels come last in memory; torch counts them second.
        maps = maps.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        for layer, leaf in zip(self._read, leaves, strict=False):
            maps = _applied(torch, layer, leaf, maps)
        flat = maps.permute(0, 2, 3, 1).reshape(len(rows), -1)
        return torch.addmm(leaves[-1][-1], flat, leaves[-1][:-1])

    @cached_property
    def _read(self) -> tuple[Layer, ...]:
        return read(self.text)

    @cached_property
    def _maps(self) -> list[MapShape]:
        height, width, channels = self.image
        return shapes(self._read, MapShape(height=height, width=width, channels=channels))

    @cached_property
    def _sides(self) -> list[tuple[int, int]]:
        """Inputs, the constant included, and outputs of every layer, the head's last."""
        pairs = zip(self._read, self._maps, strict=False)
        sides = [(layer.fan_in(maps) + 1, layer.channels) for layer, maps in pairs]
        return [*sides, (self._maps[-1].size + 1, self.classes)]

    @cached_property
    def _ends(self) -> list[int]:
        """Where the parameters of each layer end."""
        return list(itertools.accumulate(inputs * outputs for inputs, outputs in self._sides))

    @cached_property
    def _flops(self) -> int:
        """Operations that the scores of one sample take; a gradient takes three times as many."""
        pairs = zip(self._read, self._maps, strict=False)
        places = [layer.filtered(maps).places for layer, maps in pairs]
        return sum(2 * a * b * n for (a, b), n in zip(self._sides, [*places, 1], strict=True))


def require_torch() -> Any:
    """Return torch, or say how to get it."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError("training `layers` needs torch: pip install 'fedgram[torch]'") from error
    return torch


def _applied(torch: Any, layer: Layer, leaf: Any, maps: Any) -> Any:
    """Return what a layer makes of maps: samples by channels by height by width."""
    functional = torch.nn.functional
    if isinstance(layer, Conv):
        kernel = leaf[:-1].reshape(layer.kernel, layer.kernel, -1, layer.channels)
        maps = functional.conv2d(
            maps, kernel.permute(3, 2, 0, 1), leaf[-1], stride=layer.stride, padding=layer.padding
        )
        activate = _activation(torch, layer.activation)
        if layer.pooling == "max":  # before the activation, means after it: as solved layers do
            return activate(functional.max_pool2d(maps, layer.pool) if layer.pool > 1 else maps)
        return functional.avg_pool2d(activate(maps), layer.pool)
    flat = maps.permute(0, 2, 3, 1).reshape(len(maps), -1)
    outputs = _activation(torch, layer.activation)(torch.addmm(leaf[-1], flat, leaf[:-1]))
    return outputs[:, :, None, None]


def _activation(torch: Any, name: str) -> Callable[[Any], Any]:
    functional = torch.nn.functional
    functions: dict[str, Callable[[Any], Any]] = {
        "identity": lambda t: t,
        "relu": functional.relu,
        "leaky-relu": functional.leaky_relu,
        "gelu": functional.gelu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "hardswish": functional.hardswish,
        "softshrink": functional.softshrink,
    }
    return functions[name]
