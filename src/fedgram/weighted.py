"""What the FedAvg family sums: weighted parameters in fixed point, so that sums are exact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram import codec
from fedgram.errors import ExactnessError, SolveError
from fedgram.group import Additive, agreed
from fedgram.samples import Array, Floats, Integers

REACH = 2**10  # parameters beyond this have diverged
SINGLE, DOUBLE = 24, 30  # binary places kept: finer than the rounding of either precision


@codec.register
@dataclass(frozen=True, eq=False, kw_only=True)
class Weighted(Additive):
    """A weighted sum of parameter vectors, to be divided by the sum of the weights.

    Entries are integers of a fixed, public step. So the total does not depend on the order of the
    clients, can be masked and summed securely, and a client can be taken out of it again.

    Parameters
    ----------
    weight
        Sum of the weights: one number, or one for each entry.
    total
        Sum of weight times parameter, in steps.
    diverged
        Number of clients whose parameters grew beyond all bounds; they add nothing else.
    places
        Binary places of a step.

    Examples
    --------
    >>> total = Weighted.of(np.array([1.0, 4.0]), 3) + Weighted.of(np.array([5.0, 0.0]), 1)
    >>> total.mean()
    array([2., 3.])
    """

    weight: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    total: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    diverged: int = 0
    places: int = agreed(default=0)

    @classmethod
    def of(cls, values: Array, weight: int | Integers, *, places: int = SINGLE) -> Self:
        """Return one client's part: a whole weight for all entries, or one for each."""
        weights = np.atleast_1d(np.asarray(weight, np.int64))
        if not np.all(np.abs(values) <= REACH):  # also where they are not numbers
            nothing = np.zeros(values.shape, np.int64)
            return cls(weight=np.zeros_like(weights), total=nothing, diverged=1, places=places)
        steps = np.multiply(values, np.float64(2**places), dtype=np.float64)
        total = np.rint(np.multiply(steps, weights, out=steps), out=steps).astype(np.int64)
        return cls(weight=weights, total=total, places=places)

    def adopts(self) -> bool:
        return not self.places

    def mean(self, otherwise: Array | None = None) -> Floats:
        """Return the weighted mean; `otherwise` stands where all weights are zero."""
        if self.diverged:
            raise SolveError(
                f"training diverged at {self.diverged} clients; use a smaller rate, or rate='auto'"
            )
        if int(self.weight.max(initial=0)) * REACH * 2**self.places >= 2**63:
            raise ExactnessError(
                f"weights that add up to {self.weight.max()} might overflow; weigh clients less"
            )
        held = self.weight > 0
        if otherwise is None and not held.all():
            raise SolveError("nobody has a say in the mean: all weights are zero")
        mean = self.total / np.where(held, self.weight, 1) * 2.0**-self.places
        result: Floats = mean if otherwise is None else np.where(held, mean, otherwise)
        return result
