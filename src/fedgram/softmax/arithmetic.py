"""Softmax in integer arithmetic: exact logits, a table of exponentials, one division and rounding.

The results do not depend on the order of a sum, the number of threads or the C library: equal
integers give equal bytes on every IEEE machine.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import isqrt

import numpy as np

from fedgram.core import codec
from fedgram.core.exact import EXACT_UP_TO, FLOAT64, block_matmul, self_test
from fedgram.core.samples import Floats, Integers, Space
from fedgram.errors import ConfigError, ExactnessError
from fedgram.runtime import flops

LN2 = 0.6931471805599453
LOSS_BITS = 20  # a loss is summed in steps of 2^-20 bits
_ONE = 30  # the table's exponential of 0 is 2^30
_OCTAVES = 24  # logits (to base 2) are clipped at this distance below the largest
_LOG_BITS = 12  # the table of logarithms has 2^12 entries
_LOG_PLACES = 40  # binary places of its entries


@codec.register("SoftmaxGrid/1")
@dataclass(frozen=True, kw_only=True)
class SoftmaxGrid:
    """The public precision of weights, exponentials and residuals.

    Parameters
    ----------
    weights
        Binary places of a logit (to base 2): an integer weight of 1 times an integer feature of 1
        is a logit of ``2^-weights``.
    table
        The table of exponentials has 2^table entries for each factor of two.
    residuals
        Binary places of a probability.

    Examples
    --------
    >>> SoftmaxGrid(residuals=31)
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: residuals: expected 4 to 30 bits, got 31
    """

    weights: int = 16
    table: int = 12
    residuals: int = 14

    def __post_init__(self) -> None:
        for name, least, most in (("weights", 8, 40), ("table", 4, 14), ("residuals", 4, _ONE)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(
                    f"{name}: expected {least} to {most} bits, got {getattr(self, name)}"
                )

    def step(self, space: Space) -> float:
        """Return the real value of the integer weight 1, for features of this space."""
        return LN2 / (2.0**self.weights * space.unit)


def exact_logits(rows: Floats, values: Integers, space: Space) -> Floats:
    """Return the product ``rows values`` as integers in float64.

    Parameters
    ----------
    rows
        Integer features as float64, samples by features.
    values
        Integer weights, features by classes.
    space
        The feature space.

    Raises
    ------
    ExactnessError
        If the product might not be exact.
    """
    if not values.any():
        return np.zeros((len(rows), values.shape[1]))
    longest = int(np.abs(values).sum(axis=0).max())
    if space.bound * longest > EXACT_UP_TO[FLOAT64]:
        raise ExactnessError(
            f"softmax logits may not be exact: the sum of weights is {longest}; use fewer bits for "
            "the weights, or a larger ridge"
        )
    self_test(FLOAT64)
    return block_matmul(rows, values.astype(np.float64))


def softmax_residuals(
    logits: Floats, codes: Integers, grid: SoftmaxGrid
) -> tuple[Floats, Integers]:
    """Return integer residuals, (samples, classes), and losses in steps of 2^-20 bits.

    A rounded probability is the difference of two rounded cumulative probabilities: its error is
    less than one step, it is not negative, and the residuals of a sample sum to exactly zero.

    Parameters
    ----------
    logits
        Integer logits as float64, samples by classes.
    codes
        Class codes.
    grid
        Precision of the logits and residuals.
    """
    flops.add(8 * logits.size)
    each, one = np.arange(len(logits)), 2.0**grid.residuals
    top = logits.argmax(axis=1)
    gap = logits[each, top][:, None] - logits
    own_gap = gap[each, codes]
    gap *= 2.0 ** (grid.table - grid.weights)
    np.rint(gap, out=gap)
    np.minimum(gap, _OCTAVES << grid.table, out=gap)
    found = _exponentials(grid.table).take(gap.astype(np.int32))
    np.cumsum(found, axis=1, out=found)  # integers below 2^53: exact
    total = found[:, -1].copy()
    np.multiply(found, one, out=found)
    np.divide(found, total[:, None], out=found)
    np.rint(found, out=found)
    # Minus the probabilities, as differences of rounded cumulative sums.
    found[:, 1:] = found[:, :-1] - found[:, 1:]
    found[:, 0] *= -1
    found[each, codes] += one
    losses = _log2(total.astype(np.int64)) - (_ONE << LOSS_BITS)
    losses += np.rint(own_gap * 2.0 ** (LOSS_BITS - grid.weights)).astype(np.int64)
    return found, losses


@functools.cache
def _exponentials(bits: int) -> Floats:
    """Return the integers nearest to 2^30 2^(-i / 2^bits), as float64.

    Computed by integer square roots only, so independent of libraries: 2^(-1 / 2^bits) is the
    repeated square root of 1/2, to 256 binary places.
    """
    places = 256
    root = 1 << (places - 1)
    for _ in range(bits):
        root = isqrt(root << places)
    octave, power = [], 1 << places
    for _ in range(1 << bits):
        octave.append(power)
        power = power * root >> places
    table = np.empty((_OCTAVES << bits) + 1)
    for shift in range(_OCTAVES):
        down = places - _ONE + shift
        half = 1 << (down - 1)
        begin = shift << bits
        table[begin : begin + len(octave)] = [(power + half) >> down for power in octave]
    table[-1] = 1 << (_ONE - _OCTAVES)
    table.flags.writeable = False
    return table


@functools.cache
def _logarithms() -> Integers:
    """Return the integers nearest to 2^40 log2(1 + i / 2^12), for i up to 2^12.

    By repeated squaring of integers, which gives the binary digits of a logarithm one by one.
    """
    size, places = 1 << _LOG_BITS, 128
    table = []
    for i in range(size + 1):
        value, digits = ((size + i) << places) // size, 0
        if i == size:
            table.append(1 << _LOG_PLACES)
            continue
        for _ in range(_LOG_PLACES + 1):
            value = value * value >> places
            high = value >> (places + 1)
            digits = digits << 1 | high
            value >>= high
        table.append((digits + 1) >> 1)
    return np.array(table, np.int64)


def _log2(values: Integers) -> Integers:
    """Return log2 of positive integers below 2^53, in steps of 2^-20, by integer arithmetic."""
    _, exponent = np.frexp(values.astype(np.float64))  # exact: the integers have 53 bits at most
    power = exponent.astype(np.int64) - 1
    mantissa = values << (52 - power)  # with the leading one at 2^52
    place = (mantissa >> (52 - _LOG_BITS)) - (1 << _LOG_BITS)
    within = mantissa & ((1 << (52 - _LOG_BITS)) - 1)
    table = _logarithms()
    low, high = table[place], table[place + 1]
    inner = low + ((high - low) * (within >> 10) >> (42 - _LOG_BITS))
    half = 1 << (_LOG_PLACES - LOSS_BITS - 1)
    logarithm: Integers = (power << LOSS_BITS) + (inner + half >> (_LOG_PLACES - LOSS_BITS))
    return logarithm
