"""Deep networks trained by torch, as one flat vector of parameters, for gradient methods.

The layers are described as in `fedgram.models.architecture`: the same networks that closed-form
methods solve. This is the only module of training that needs torch.
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
    """Convolutional and dense layers with a linear head.

    Each layer has weights and a bias. The entries of a filter are stored position by position, as
    feature maps are. The input of the head is the output of the last layer and a constant.

    Parameters
    ----------
    text
        Description of the layers below the head.
    image
        Height, width and channels of the inputs.
    classes
        Number of classes.

    Examples
    --------
    >>> lenet = TorchNetwork(text="lenet", image=(28, 28, 1), classes=10)
    >>> lenet.size, lenet.base, [layer.shape for layer in lenet.layers(np.zeros(lenet.size))]
    (61706, 60856, [(26, 6), (151, 16), (401, 120), (121, 84), (85, 10)])
    """

    text: str
    image: tuple[int, int, int]
    classes: int

    @classmethod
    def of(cls, text: str, space: Space, classes: int, image: tuple[int, ...] = ()) -> TorchNetwork:
        """Return the network for features of a space; raise ConfigError if layers do not fit.

        Parameters
        ----------
        text
            Description of the layers below the head.
        space
            The feature space of the inputs.
        classes
            Number of classes.
        image
            Height, width and channels of the inputs; by default those of the space.
        """
        maps = maps_of(space, image)
        shapes(read(text), maps)
        require_torch()
        return cls(text=text, image=(maps.height, maps.width, maps.channels), classes=classes)

    @property
    def hidden(self) -> int:
        """Width of the input of the head, without the constant."""
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
        """Return views of the layers (inputs and a constant by channels), the head last."""
        pairs = zip(self._sides, self._ends, strict=True)
        return [
            theta[end - inputs * outputs : end].reshape(inputs, outputs)
            for (inputs, outputs), end in pairs
        ]

    def start(self, dtype: Any, seed: int = 0) -> Array:
        """Return the initial parameters: random layers (He), biases and a head of zeros."""
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
        """Set ``into`` to ``keep * into + scale * gradient`` of the mean cross-entropy at `theta`.

        Parameters
        ----------
        theta
            All parameters.
        rows
            The samples.
        into
            The vector to change; may be `theta` itself.
        scale
            Factor of the gradient.
        keep
            Factor of the previous content of `into`.
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
            if keep:  # otherwise `into` may contain NaN
                step += keep * layer
            layer[...] = step

    def _leaves(self, torch: Any, theta: Array) -> list[Any]:
        """Return the layers as tensors that share memory with `theta` if it is writeable."""
        if not theta.flags.writeable:  # torch has no read-only tensors
            theta = theta.copy()
        return [torch.from_numpy(layer) for layer in self.layers(theta)]

    def _scores(self, torch: Any, leaves: list[Any], rows: TrainingRows) -> Any:
        height, width, channels = self.image
        maps = torch.from_numpy(rows.values[:, :-1] * rows.unit)
        # In memory the channels are the last axis; in torch they are the second.
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
        """Number of inputs (with the constant) and outputs of every layer, the head last."""
        pairs = zip(self._read, self._maps, strict=False)
        sides = [(layer.fan_in(maps) + 1, layer.channels) for layer, maps in pairs]
        return [*sides, (self._maps[-1].size + 1, self.classes)]

    @cached_property
    def _ends(self) -> list[int]:
        """End of the parameters of each layer in the flat vector."""
        return list(itertools.accumulate(inputs * outputs for inputs, outputs in self._sides))

    @cached_property
    def _flops(self) -> int:
        """FLOPs for the scores of one sample; a gradient takes three times as many."""
        pairs = zip(self._read, self._maps, strict=False)
        places = [layer.filtered(maps).places for layer, maps in pairs]
        return sum(2 * a * b * n for (a, b), n in zip(self._sides, [*places, 1], strict=True))


def require_torch() -> Any:
    """Return the module torch; raise ConfigError if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError("training `layers` needs torch: pip install 'fedgram[torch]'") from error
    return torch


def _applied(torch: Any, layer: Layer, leaf: Any, maps: Any) -> Any:
    """Return the output of a layer: samples by channels by height by width."""
    functional = torch.nn.functional
    if isinstance(layer, Conv):
        kernel = leaf[:-1].reshape(layer.kernel, layer.kernel, -1, layer.channels)
        maps = functional.conv2d(
            maps, kernel.permute(3, 2, 0, 1), leaf[-1], stride=layer.stride, padding=layer.padding
        )
        activate = _activation(torch, layer.activation)
        # As in solved layers: maximum before the activation, mean after the activation.
        if layer.pooling == "max":
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
