"""Lift: random features (random projection and activation) in exact integers.

A lift multiplies by a matrix of +1 and -1 from a counter-based generator with a public seed. Then
it looks up each integer in a table of the activation, rounded to the grid. So all sites with the
same settings compute the same features, to the bit.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erf

from fedgram.core.array_cache import ArrayCache
from fedgram.core.codec import register
from fedgram.core.exact import activated_matmul
from fedgram.core.samples import Array, Features, Floats, Integers, Space
from fedgram.errors import ConfigError
from fedgram.features.grid import bias
from fedgram.runtime import memory

ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "identity": lambda t: t,
    "relu": lambda t: np.maximum(t, 0),
    "leaky-relu": lambda t: np.where(t > 0, t, 0.01 * t),
    "gelu": lambda t: t * 0.5 * (1 + erf(t / np.sqrt(2))),
    "tanh": np.tanh,
    "sigmoid": lambda t: 1 / (1 + np.exp(-t)),
    "hardswish": lambda t: t * np.clip(t + 3, 0, 6) / 6,
    "softshrink": lambda t: np.sign(t) * np.maximum(np.abs(t) - 0.5, 0),
}
_ENTRIES_AT_A_TIME = 2**22  # bounds the wide intermediate arrays
MOST_KEPT = 2**28  # bytes of lifted rows
_rows = ArrayCache(most=MOST_KEPT)  # a run lifts the same samples several times


@register("Lift/1")
@dataclass(frozen=True, kw_only=True)
class Lift:
    """A public random projection followed by an activation; the identity with width 0.

    The projected value is divided by the square root of the number of inputs, to be of about unit
    size. Then it is clipped at the grid's clip, activated and rounded to the same grid. A constant
    feature is appended, unless the features are raw.

    Parameters
    ----------
    width
        Number of lifted features, without the constant; 0 means no lift.
    activation
        identity, relu, leaky-relu, gelu, tanh, sigmoid, hardswish or softshrink.
    seed
        Public seed of the projection.

    Examples
    --------
    >>> from fedgram.features.grid import Grid
    >>> rows = Grid(bits=8)(np.array([[3.0, 4.0, -1.0]]))
    >>> Lift(width=4, activation="relu", seed=7)(rows).values
    array([[ 3,  0,  3,  0, 21]], dtype=int8)
    >>> Lift()(rows) is rows
    True
    """

    width: int = 0
    activation: str = "relu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ConfigError(f"a lift of width {self.width}: use a width > 0, or 0 for no lift")
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ConfigError(f"activation {self.activation!r} is unknown; use one of {known}")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"lift seed {self.seed}: use a number from 0 to 2^64 - 1")

    def __call__(self, features: Features) -> Features:
        """Return the lifted features."""
        if not self.width:
            return features
        space = self.space(features.space)
        if features.cache is not None:
            return features.derived(space, lambda: self._lifted(features))
        if not space.exact:
            return self._lifted(features)
        return Features(_rows(features, space, lambda: self._lifted(features).values), space)

    def space(self, inputs: Space) -> Space:
        """Return the feature space of lifted features, for features in the space `inputs`."""
        if not self.width:
            return inputs
        detail = f"width {self.width}, {self.activation}, seed {self.seed}"
        if inputs.exact:
            table = self._table(inputs)
            detail += f", table {hashlib.sha256(table.tobytes()).hexdigest()[:16]}"
        steps = (*inputs.steps, f"lift({detail})")
        return replace(inputs, width=self.width + inputs.has_constant, steps=steps)

    def _lifted(self, features: Features) -> Features:
        inputs, space = features.space, self.space(features.space)
        memory.require(
            len(features) * space.width * features.values.itemsize
            + 10 * inputs.width * self.width  # the signs, with a packed or a float64 copy
            + 28 * min(_ENTRIES_AT_A_TIME, len(features) * self.width),
            f"a lift of {len(features)} samples to {self.width} features",
            "use a smaller width",
        )
        signs = signs_of(inputs.width, self.width, self.seed)
        rows = np.empty((len(features), space.width), features.values.dtype)
        if space.has_constant:
            rows[:, space.constant] = bias(inputs.unit, inputs.bound)
        activate = self._integers(inputs) if inputs.exact else self._floats(inputs)
        rows_at_a_time = max(1, _ENTRIES_AT_A_TIME // self.width)
        for start in range(0, len(features), rows_at_a_time):
            part = slice(start, start + rows_at_a_time)
            activate(features.values[part], signs, rows[part, space.without_constant])
        return Features(rows, space)

    def _integers(self, inputs: Space) -> Callable[[Array, Array, Array], None]:
        table = self._table(inputs)  # which ends at the clip

        def activate(values: Array, signs: Array, out: Array) -> None:
            activated_matmul(values, signs, inputs.bound, table, out)

        return activate

    def _floats(self, inputs: Space) -> Callable[[Array, Array, Array], None]:
        function, factor = ACTIVATIONS[self.activation], np.sqrt(inputs.width)

        def activate(values: Array, signs: Array, out: Array) -> None:
            out[...] = function(values @ signs / factor)

        return activate

    def _table(self, inputs: Space) -> Array:
        function = ACTIVATIONS[self.activation]
        return _table(function, inputs.unit, inputs.bound, inputs.width)


@functools.lru_cache(maxsize=16)
def _table(activation: Callable[[Floats], Floats], unit: float, bound: int, width: int) -> Array:
    """Return the activation of every projected integer up to the clip, rounded to the grid."""
    factor = unit / np.sqrt(width)
    reach = int(bound * np.sqrt(width))
    projected: Integers = np.arange(-reach, reach + 1)
    steps = np.rint(activation(projected * factor) / unit)
    dtype = np.int8 if bound < 2**7 else np.int16
    table: Array = np.clip(steps, -bound, bound).astype(dtype)
    table.flags.writeable = False
    return table


@functools.lru_cache(maxsize=4)
def signs_of(inputs: int, width: int, seed: int) -> Array:
    """Return the public matrix of +1 and -1 as int8, (inputs, width), from the raw Philox stream.

    Parameters
    ----------
    inputs
        Number of features.
    width
        Number of lifted features.
    seed
        Public seed.
    """
    generator = np.random.Philox(key=seed)
    words: Array = generator.random_raw(-(-inputs * width // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=inputs * width)
    signs = np.empty((inputs, width), np.int8)
    np.subtract(2 * bits.reshape(inputs, width).view(np.int8), 1, out=signs)
    signs.flags.writeable = False
    return signs
