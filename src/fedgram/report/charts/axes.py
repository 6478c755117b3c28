"""Axes: from values to positions on the page, with round tick values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

ZERO, BREAK, FIRST = 0.03, 0.065, 0.1  # shares of a logarithmic axis up to zero and beyond it


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis: the position of each value.

    Parameters
    ----------
    low, high
        The range of values; positive where the axis is logarithmic.
    start, end
        Where they lie.
    logarithmic
        Equal ratios are equal distances.
    zero
        A logarithmic axis with a place for zero, apart from the others.

    Examples
    --------
    >>> Scale(low=0, high=10, start=100, end=200)(5)
    150.0
    >>> Scale(low=1, high=100, start=100, end=200, logarithmic=True)(10)
    150.0
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False
    zero: bool = False

    def __call__(self, value: float) -> float:
        if not self.logarithmic:
            share = (value - self.low) / (self.high - self.low)
        elif value <= 0:
            share = ZERO
        else:
            # Of ratios, not of differences: logarithms of near numbers may be equal.
            width = math.log1p((self.high - self.low) / self.low)
            share = math.log1p((value - self.low) / self.low) / width
            share = FIRST + (1 - FIRST) * share if self.zero else share
        return self.start + share * (self.end - self.start)

    @property
    def gap(self) -> float | None:
        """Where the axis is broken between zero and the other values, if it is."""
        return self.start + BREAK * (self.end - self.start) if self.zero else None

    def ticks(self, count: int = 7) -> list[float]:
        """Return round values along the axis, about as many as asked for."""
        if not self.logarithmic:
            return linear_ticks(self.low, self.high, count)
        return ([0.0] if self.zero else []) + log_ticks(self.low, self.high, count)


def axis_for(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    logarithmic: bool = False,
    margin: float = 0.04,
) -> Scale:
    """Return an axis that holds these values, with a little room at both ends.

    Examples
    --------
    >>> axis = axis_for([0.0, 1.0, 100.0], 0, 100, logarithmic=True)
    >>> axis.zero, axis.ticks()
    (True, [0.0, 1.0, 10.0, 100.0])
    """
    found = list(values)
    kept = [value for value in found if value > 0] if logarithmic else found
    low, high = min(kept, default=1.0), max(kept, default=1.0)
    if logarithmic:
        room = (high / low) ** margin if high > low else 2.0
        zero = len(kept) < len(found)
        edges = max(low / room, math.ulp(0.0)), high * room
        return Scale(low=edges[0], high=edges[1], start=start, end=end, logarithmic=True, zero=zero)
    room = (high - low) * margin or abs(high) * margin or 1.0
    return Scale(low=low - room, high=high + room, start=start, end=end)


def wide(values: Iterable[float], ratio: float = 30.0) -> bool:
    """Return whether positive values span so wide a range that a logarithmic axis is needed."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) / min(positive) > ratio


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten within a range.

    Examples
    --------
    >>> linear_ticks(0.13, 0.98, 5)
    [0.2, 0.4, 0.6, 0.8]
    """
    rough = (high - low) / max(count, 1)
    power = math.floor(math.log10(rough))
    factor = next(f for f in (1, 2, 5, 10) if f * 10.0**power >= rough * 0.999)
    step = factor * 10.0**power
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Rounded, since 3 * 0.1 is no round number.
    return [round(index * step, max(0, -power) + 1) + 0.0 for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Return powers of ten within a range, few enough; 2 and 5 times them where there is room.

    Examples
    --------
    >>> log_ticks(0.5, 2000, 6)
    [1.0, 10.0, 100.0, 1000.0]
    >>> log_ticks(8, 60, 6)
    [10.0, 20.0, 50.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    within = [p for p in powers if low * 0.999 <= 10.0**p <= high * 1.001]
    if len(within) >= 3:
        every = math.ceil(len(within) / count)
        return [10.0**p for p in within if p % every == 0]
    finer = (f * 10.0**p for p in powers for f in (1, 2, 5))
    found = [value for value in finer if low * 0.999 <= value <= high * 1.001]
    return found if len(found) >= 2 else linear_ticks(low, high, count)


Written = Callable[[float], str]
