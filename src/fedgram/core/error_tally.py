"""Errors of a regression as sums over clients: the coefficient of determination, RMSE and MAE."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan, nan
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, require_shape, schema_field
from fedgram.core.samples import Floats, Integers
from fedgram.core.targets import LEVELS, Output, Targets, require_output_sums
from fedgram.errors import DataError

ONE = 10**6  # an R2 of 1.0 in fixed point
_FURTHEST = 2.0**22  # of an error in fixed-point steps: larger ones count as this
_LEAST = -1e6  # of the R2 of a client


def _empty() -> Integers:
    return np.zeros(0, np.int64)


@codec.register("ErrorTally/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ErrorTally(Additive):
    """Integer sums of errors on test samples, so that secure aggregation can add them.

    Parameters
    ----------
    samples
        Number of test samples.
    r2_clients, r2s
        Number of clients with a defined R2 (at least two samples, outputs that vary), and the sum
        of these in fixed point.
    squares, absolutes
        Sum of squared and of absolute errors of each output, in fixed-point steps.
    totals, energies
        Sum of each output and of its square, in fixed-point steps.
    outputs
        The outputs.

    Examples
    --------
    >>> dose = Output(name="dose", low=0.0, high=100.0)
    >>> truth = Targets.of(np.array([[20.0], [40.0]]), (dose,))
    >>> tally = ErrorTally.of(truth.onehot() + 1 / 50, truth)
    >>> round(tally.rmse, 3), round(tally.mae, 3), round(tally.r2, 3)
    (1.0, 1.0, 0.99)
    """

    samples: int = 0
    r2_clients: int = 0
    r2s: int = 0
    squares: Integers = field(default_factory=_empty)
    absolutes: Integers = field(default_factory=_empty)
    totals: Integers = field(default_factory=_empty)
    energies: Integers = field(default_factory=_empty)
    outputs: tuple[Output, ...] = schema_field(default=())

    @classmethod
    def of(cls, predicted: Floats, truth: Targets) -> Self:
        """Return the errors of one client, from predictions in the units of `Targets.onehot`."""
        error = np.nan_to_num(predicted * LEVELS - truth.values, nan=_FURTHEST)
        error = np.clip(error, -_FURTHEST, _FURTHEST)
        found = cls(
            samples=len(truth),
            squares=np.rint(np.sum(error**2, axis=0)).astype(np.int64),
            absolutes=np.rint(np.sum(np.abs(error), axis=0)).astype(np.int64),
            totals=truth.values.sum(axis=0),
            energies=(truth.values**2).sum(axis=0),
            outputs=truth.outputs,
        )
        own = found.r2
        if isnan(own):
            return found
        return cls(**{**vars(found), "r2_clients": 1, "r2s": round(max(own, _LEAST) * ONE)})

    def lacks_schema(self) -> bool:
        return not self.outputs

    def claimed_samples(self) -> int:
        return 0  # test samples are not among those that a site contributes

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        for name in ("squares", "absolutes", "totals", "energies"):
            require_shape(f"ErrorTally.{name}", getattr(self, name), len(self.outputs))
        sums = (self.squares, self.absolutes, self.energies)
        if self.samples < 0 or any((each < 0).any() for each in sums):
            raise DataError("an ErrorTally with a negative count or sum of squares")
        if self.r2_clients not in (0, 1) or not _LEAST * ONE <= self.r2s <= ONE:
            raise DataError("an ErrorTally that no single client can have")
        if self.r2s and not self.r2_clients:
            raise DataError("an ErrorTally with an R2 of no client")
        squares, absolutes = self.samples * _FURTHEST**2, self.samples * _FURTHEST
        if (self.squares > squares).any() or (self.absolutes > absolutes).any():
            raise DataError("an ErrorTally with errors larger than its samples allow")
        require_output_sums(self.samples, self.totals, self.energies)

    @property
    def r2(self) -> float:
        """R2 over all samples, as the mean over outputs; NaN if an output does not vary."""
        if self.samples < 2:
            return nan
        scatter = [
            float(energy) - float(total) ** 2 / self.samples
            for energy, total in zip(self.energies, self.totals, strict=True)
        ]
        if min(scatter) <= 0:
            return nan
        return float(np.mean(1 - self.squares / np.array(scatter)))

    @property
    def client_mean(self) -> float:
        """Mean R2 of the clients with a defined one."""
        return self.r2s / (self.r2_clients * ONE) if self.r2_clients else nan

    @property
    def rmse(self) -> float:
        """Root mean squared error in real units, as the mean over outputs."""
        if not self.samples:
            return nan
        return float(np.mean(np.sqrt(self.squares / self.samples) * self._steps))

    @property
    def mae(self) -> float:
        """Mean absolute error in real units, as the mean over outputs."""
        if not self.samples:
            return nan
        return float(np.mean(self.absolutes / self.samples * self._steps))

    @property
    def _steps(self) -> Floats:
        return np.array([output.step for output in self.outputs])
