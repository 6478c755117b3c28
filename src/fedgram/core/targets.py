"""Numeric outputs of a regression, as integers in a declared fixed-point range.

They take the place of class labels in `Samples`. The range of each output is public, as the grid of
the features is, so that sums of outputs are sums of integers too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedgram.core.codec import register
from fedgram.core.samples import Array, Floats, Integers, Labels
from fedgram.errors import DataError, MismatchError

LEVELS = 2**15  # fixed-point steps from the middle of a range to each end
_MOST = 0.8  # an output is lost if this fraction of its values are within one step
_FEW = 20  # so few values say nothing about the values of others


@register("Output/1")
@dataclass(frozen=True, kw_only=True)
class Output:
    """A numeric output with its range.

    Parameters
    ----------
    name
        Its name.
    low, high
        Lowest and highest possible value, known without the data.

    Examples
    --------
    >>> dose = Output(name="dose", low=0.0, high=100.0)
    >>> dose.fixed(np.array([0.0, 25.0, 100.0])), dose.real(np.array([-16384]))
    (array([-32768, -16384,  32768]), array([25.]))
    >>> dose.text
    'dose in [0.0, 100.0]'
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (self.low < self.high and np.isfinite([self.low, self.high]).all()):
            raise DataError(
                f"output_range: expected finite numbers with low < high, got {self.low:g} and "
                f"{self.high:g}"
            )

    @property
    def text(self) -> str:
        """Name and range: outputs of other ranges do not add."""
        return f"{self.name} in [{float(self.low)!r}, {float(self.high)!r}]"

    @property
    def step(self) -> float:
        """The real value of one fixed-point step."""
        return (self.high - self.low) / (2 * LEVELS)

    @property
    def middle(self) -> float:
        """The real value of the fixed-point zero."""
        return self.low + (self.high - self.low) / 2

    def fixed(self, values: Array) -> Integers:
        """Return values in fixed point; a value out of range raises DataError."""
        wrong = np.flatnonzero(~((values >= self.low) & (values <= self.high)))
        if len(wrong):
            raise DataError(
                f"{self.name}: expected values in [{self.low:g}, {self.high:g}], got "
                f"{values[wrong[0]]:g} in row {wrong[0]}; declare a wider output_range, or correct "
                "the value"
            )
        whole: Integers = np.rint((values - self.middle) / self.step).astype(np.int64)
        return np.clip(whole, -LEVELS, LEVELS)

    def real(self, values: Array) -> Floats:
        """Return real values of fixed-point ones."""
        found: Floats = self.middle + values * self.step
        return found


@register("Targets/1")
@dataclass(frozen=True, eq=False)
class Targets(Labels):
    """The outputs of samples, in place of class labels.

    `classes` are the names of the outputs with their ranges, and all codes are zero.

    Parameters
    ----------
    values
        Fixed-point outputs, (samples, outputs).
    outputs
        The outputs.

    Examples
    --------
    >>> dose = Output(name="dose", low=0.0, high=100.0)
    >>> targets = Targets.of(np.array([[25.0], [50.0]]), (dose,))
    >>> targets.onehot(), targets.real(), len(targets)
    (array([[-0.5],
           [ 0. ]]), array([[25.],
           [50.]]), 2)
    """

    values: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    outputs: tuple[Output, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = (len(self.codes), len(self.outputs))
        if self.values.shape != shape or not np.issubdtype(self.values.dtype, np.integer):
            raise DataError(
                f"expected integer outputs of shape {shape}, got {self.values.dtype} of shape "
                f"{self.values.shape}"
            )
        if np.abs(self.values).max(initial=0) > LEVELS:
            raise DataError(f"expected outputs from -{LEVELS} to {LEVELS} in fixed point")

    @classmethod
    def of(cls, values: Array, outputs: Sequence[Output]) -> Targets:
        """Return real values, (samples, outputs), in fixed point."""
        fixed = [output.fixed(values[:, k]) for k, output in enumerate(outputs)]
        return cls.fixed_point(np.stack(fixed, axis=1), outputs)

    @classmethod
    def fixed_point(cls, values: Integers, outputs: Sequence[Output]) -> Targets:
        """Return fixed-point values, (samples, outputs), as targets."""
        return cls(
            np.zeros(len(values), np.int64),
            tuple(output.text for output in outputs),
            values,
            tuple(outputs),
        )

    @classmethod
    def joined(cls, parts: Sequence[Any]) -> Self:
        """Return the targets of all parts, one after the other."""
        first = parts[0]
        return cls(
            np.concatenate([part.codes for part in parts]),
            first.classes,
            np.concatenate([part.values for part in parts]),
            first.outputs,
        )

    def onehot(self, dtype: type[np.floating[Any]] = np.float64) -> Array:
        """Return the outputs as floats from -1 to 1, the ends of their ranges: exact in float64."""
        return (self.values / LEVELS).astype(dtype)

    def real(self) -> Floats:
        """Return the outputs as real values, (samples, outputs)."""
        return real(self.outputs, self.onehot())

    def relabel(self, classes: tuple[str, ...]) -> Targets:
        """Return the same targets; other outputs or ranges raise MismatchError."""
        if classes != self.classes:
            raise MismatchError(
                f"outputs differ: {', '.join(self.classes)} and {', '.join(classes)}; use the same "
                "outputs and ranges"
            )
        return self

    def take(self, indices: Array | slice) -> Targets:
        """Return some of the targets."""
        return Targets(self.codes[indices], self.classes, self.values[indices], self.outputs)


def require_distinguished(values: Array, outputs: Sequence[Output]) -> None:
    """Raise DataError if a range is so wide that most values are rounded to the same step.

    Parameters
    ----------
    values
        Real values, (samples, outputs).
    outputs
        The outputs.
    """
    if len(values) < _FEW:
        return
    low, high = np.quantile(values, [(1 - _MOST) / 2, (1 + _MOST) / 2], axis=0)
    # Most values of a sparse output are equal: it is lost if the others are too.
    spread = np.where(high > low, high - low, np.ptp(values, axis=0))
    for output, each in zip(outputs, spread.tolist(), strict=True):
        if 0 < each < output.step:
            raise DataError(
                f"{output.name}: the range {output.low:g} to {output.high:g} has steps of "
                f"{output.step:.3g}, but most values are within {each:.3g} of each other and would "
                "be rounded to the same step; declare a narrower output_range, and correct or "
                "remove values that are far from the others"
            )


def require_output_sums(samples: int, totals: Integers, energies: Integers) -> None:
    """Raise DataError if no outputs of this number of samples have these sums.

    Parameters
    ----------
    samples
        Number of samples.
    totals, energies
        Sum of each output and of its square, in fixed-point steps.
    """
    for total, energy in zip(totals.tolist(), energies.tolist(), strict=True):
        if energy > samples * LEVELS**2 or total**2 > samples * energy:  # exact: Python integers
            raise DataError("sums of outputs larger than their samples allow")


_TEXT = re.compile(r"(.*) in \[(\S+), (\S+)\]", re.DOTALL)


def outputs_named(classes: Sequence[str]) -> tuple[Output, ...]:
    """Return the outputs whose texts stand in the place of class names; none for classes.

    Examples
    --------
    >>> outputs_named(["dose in [0.0, 100.0]"]), outputs_named(["cat", "dog"])
    ((Output(name='dose', low=0.0, high=100.0),), ())
    """
    found = []
    for text in classes:
        parts = _TEXT.fullmatch(text)
        try:
            output = Output(name=parts[1], low=float(parts[2]), high=float(parts[3]))  # type: ignore[index]
        except (DataError, TypeError, ValueError):
            return ()
        if output.text != text:
            return ()
        found.append(output)
    return tuple(found)


def labels_of(codes: Integers, classes: tuple[str, ...]) -> Labels:
    """Return labels with these codes; for the texts of outputs, outputs in the middle of ranges.

    Examples
    --------
    >>> type(labels_of(np.zeros(2, np.int64), ("dose in [0.0, 100.0]",))).__name__
    'Targets'
    """
    outputs = outputs_named(classes)
    if not outputs:
        return Labels(codes, classes)
    return Targets.fixed_point(np.zeros((len(codes), len(outputs)), np.int64), outputs)


def real(outputs: Sequence[Output], values: Array) -> Floats:
    """Return outputs in the units of `Targets.onehot`, (samples, outputs), as real values."""
    columns = [output.real(values[:, k] * LEVELS) for k, output in enumerate(outputs)]
    return np.stack(columns, axis=1)
