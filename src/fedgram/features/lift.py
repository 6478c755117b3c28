"""Lift: random features (random projection and activation) in exact integers.

A lift multiplies by a matrix of +1 and -1 from a counter-based generator with a public seed. Then
it looks up each integer in a table of the activation, rounded to the grid. So all sites with the
same settings compute the same features, to the bit.

The activation "fourier" gives random Fourier features (Rahimi and Recht, NeurIPS 2007), in their
form with pairs of cosine and sine (Sutherland and Schneider, UAI 2015). With signs s from the
generator and d inputs, a feature pair is ``sqrt(2) (cos t, sin t)`` of ``t = scale s'x /
sqrt(d)``. The mean product of the pairs of two samples is then ``prod_i cos(scale (x_i - z_i) /
sqrt(d))``, which is nearly the Gaussian kernel ``exp(-scale^2 |x - z|^2 / 2 d)``, since each
difference is small beside sqrt(d). A ridge head on them is kernel ridge regression, nearly.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erf

from fedgram.core.array_cache import ArrayCache
from fedgram.core.codec import added_field, register
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
FOURIER = "fourier"
LIFT_ACTIVATIONS = (*ACTIVATIONS, FOURIER)
_TERMS = 28  # last power of the series of the cosine: the next term is below 1e-17
_ENTRIES_AT_A_TIME = 2**22  # bounds the wide intermediate arrays
MOST_COPIES = 127  # sums of signs are 8-bit integers
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
        identity, relu, leaky-relu, gelu, tanh, sigmoid, hardswish or softshrink; or fourier, for
        random Fourier features: cosines of half of the features, then sines of the same ones.
    seed
        Public seed of the projection.
    scale
        Factor of the projected values, > 0. With fourier the reciprocal of the kernel's bandwidth:
        larger values distinguish closer samples.
    copies
        Number of signs that are added for each weight, from 1 to 127. With one, d inputs have only
        2^d different projections: use more where there are fewer than sixteen inputs.

    Examples
    --------
    >>> from fedgram.features.grid import Grid
    >>> rows = Grid(bits=8)(np.array([[3.0, 4.0, -1.0]]))
    >>> Lift(width=4, activation="relu", seed=7)(rows).values
    array([[ 3,  0,  3,  0, 21]], dtype=int8)
    >>> Lift()(rows) is rows
    True
    >>> Lift(width=4, activation="fourier", seed=7)(rows).values
    array([[ 19,  -9,  23, -29,  21]], dtype=int8)
    """

    width: int = 0
    activation: str = "relu"
    seed: int = 0
    scale: float = added_field(1.0)
    copies: int = added_field(1)

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ConfigError(f"a lift of width {self.width}: use a width > 0, or 0 for no lift")
        if self.activation not in LIFT_ACTIVATIONS:
            known = ", ".join(LIFT_ACTIVATIONS)
            raise ConfigError(f"activation {self.activation!r} is unknown; use one of {known}")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"lift seed {self.seed}: use a number from 0 to 2^64 - 1")
        if not 0 < self.scale < float("inf"):
            raise ConfigError(f"lift scale {self.scale}: use a finite number > 0")
        if not 1 <= self.copies <= MOST_COPIES:
            raise ConfigError(f"lift copies {self.copies}: use a number from 1 to {MOST_COPIES}")

    def __call__(self, features: Features) -> Features:
        """Return the lifted features."""
        if not self.width:
            return features
        space = self.space(features.space)
        if features.cache is not None:
            return features.derived(space, lambda: self._lifted(features))
        if not space.exact:
            return self._lifted(features)
        return Features(_rows.rows(features, space, lambda: self._lifted(features).values), space)

    def space(self, inputs: Space) -> Space:
        """Return the feature space of lifted features, for features in the space `inputs`."""
        if not self.width:
            return inputs
        detail = f"width {self.width}, {self.activation}, seed {self.seed}"
        if self.scale != 1:
            detail += f", scale {self.scale!r}"
        if self.copies != 1:
            detail += f", copies {self.copies}"
        if inputs.exact:
            entries = b"".join(table.tobytes() for table in self.tables(inputs))
            detail += f", table {hashlib.sha256(entries).hexdigest()[:16]}"
        steps = (*inputs.steps, f"lift({detail})")
        return replace(inputs, width=self.width + inputs.has_constant, steps=steps)

    def _lifted(self, features: Features) -> Features:
        inputs, space = features.space, self.space(features.space)
        memory.require(
            len(features) * space.width * features.values.itemsize
            + 10 * inputs.width * self.width  # the weights, with a packed or a float64 copy
            + 28 * min(_ENTRIES_AT_A_TIME, len(features) * self.width),
            f"a lift of {len(features)} samples to {self.width} features",
            "use a smaller width",
        )
        parts = self.parts(inputs.width)
        rows = np.empty((len(features), space.width), features.values.dtype)
        if space.has_constant:
            rows[:, space.constant] = bias(inputs.unit, inputs.bound)
        rows_at_a_time = max(1, _ENTRIES_AT_A_TIME // self.width)
        for start in range(0, len(features), rows_at_a_time):
            some = slice(start, start + rows_at_a_time)
            for (columns, weights), activate in zip(parts, self._activated(inputs), strict=True):
                activate(features.values[some], weights, rows[some, columns])
        return Features(rows, space)

    def parts(self, inputs: int) -> list[tuple[slice, Array]]:
        """Return the columns and the weights of each activation: cosine and sine share weights."""
        if self.activation != FOURIER:
            return [(slice(0, self.width), self._weights(inputs, self.width))]
        cosines = -(-self.width // 2)
        weights = self._weights(inputs, cosines)
        parts = [(slice(0, cosines), weights)]
        if self.width > 1:
            # Views are packed anew.
            paired = weights if self.width == 2 * cosines else weights[:, :-1]
            parts.append((slice(cosines, self.width), paired))
        return parts

    def _weights(self, inputs: int, width: int) -> Array:
        return weights_of(inputs, width, self.seed, copies=self.copies)

    def _functions(self) -> tuple[Callable[[Floats], Floats], ...]:
        if self.activation == FOURIER:
            return (_cosine, _sine)[: min(2, self.width)]
        return (ACTIVATIONS[self.activation],)

    def _activated(self, inputs: Space) -> list[Callable[[Array, Array, Array], None]]:
        if inputs.exact:
            return [self._integers(inputs, table) for table in self.tables(inputs)]
        root = np.sqrt(inputs.width * self.copies)
        return [self._floats(function, root) for function in self._functions()]

    def _integers(self, inputs: Space, table: Array) -> Callable[[Array, Array, Array], None]:
        longest = inputs.width * self.copies

        # The table ends at the clip.
        def activate(values: Array, weights: Array, out: Array) -> None:
            activated_matmul(values, weights, inputs.bound, table, out, longest=longest)

        return activate

    def _floats(
        self, function: Callable[[Floats], Floats], root: float
    ) -> Callable[[Array, Array, Array], None]:
        def activate(values: Array, weights: Array, out: Array) -> None:
            out[...] = function(values @ weights / root * self.scale)

        return activate

    def tables(self, inputs: Space) -> list[Array]:
        """Return the table of each part: the activation of every projected integer, rounded."""
        return [
            _table(function, inputs.unit, inputs.bound, inputs.width * self.copies, self.scale)
            for function in self._functions()
        ]


def _cosine(t: Floats) -> Floats:
    """Return ``sqrt(2) cos t``, of mean square 1, with equal bits on every IEEE machine.

    Libraries round the cosine differently. Sums, products, quotients and rounding to integers are
    defined to the bit, and the series needs only these.
    """
    turns = t / (2 * np.pi)
    square = ((turns - np.rint(turns)) * (2 * np.pi)) ** 2
    series = np.ones_like(square)
    for power in range(_TERMS, 0, -2):
        series = 1 - square / (power * (power - 1)) * series
    wave: Floats = np.sqrt(2) * series
    return wave


def _sine(t: Floats) -> Floats:
    """Return ``sqrt(2) sin t``."""
    return _cosine(t - np.pi / 2)


@functools.lru_cache(maxsize=16)
def _table(
    activation: Callable[[Floats], Floats], unit: float, bound: int, signs: int, scale: float
) -> Array:
    """Return the activation of every projected integer up to the clip, rounded to the grid."""
    factor = unit / np.sqrt(signs)
    reach = int(bound * np.sqrt(signs))
    projected: Integers = np.arange(-reach, reach + 1)
    steps = np.rint(activation(projected * factor * scale) / unit)
    dtype = np.int8 if bound < 2**7 else np.int16
    table: Array = np.clip(steps, -bound, bound).astype(dtype)
    table.flags.writeable = False
    return table


@functools.lru_cache(maxsize=4)
def weights_of(inputs: int, width: int, seed: int, *, copies: int = 1) -> Array:
    """Return the public weights of a projection as int8, (inputs, width): sums of signs.

    Parameters
    ----------
    inputs
        Number of features.
    width
        Number of lifted features.
    seed
        Public seed.
    copies
        Number of signs in each sum.
    """
    signs = signs_of(inputs * copies, width, seed)
    if copies == 1:
        return signs
    weights: Array = signs.reshape(copies, inputs, width).sum(axis=0, dtype=np.int8)
    weights.flags.writeable = False
    return weights


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
