"""What the FedAvg family sums: weighted parameters in fixed point, so that sums are exact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.samples import Array, Floats, Integers
from fedgram.errors import ExactnessError, SolveError

REACH = 2**10  # parameters beyond this have diverged
SINGLE, DOUBLE = 24, 54  # binary places kept: those of a number of about one in either precision
MOST_WEIGHT = 2**63 // (REACH * 2**SINGLE) - 1  # of all clients together, so that nothing overflows
_SINGLE = {"counted_as": np.float32}  # of which double precision has two


@codec.register("Weighted/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Weighted(Additive):
    """A weighted sum of parameter vectors, to be divided by the sum of the weights.

    Entries are integers of a fixed, public step. So the total does not depend on the order of the
    clients, can be masked and summed securely, and a client can be taken out of it again. A
    simulation counts four bytes for a parameter, or eight in double precision: that is all the
    method needs.

    Parameters
    ----------
    weight
        Sum of the weights: one number, or one for each entry.
    total
        Sum of weight times parameter, in steps of 2^-24.
    fine
        Sum of what rounding to these steps leaves over, in steps of 2^-54; empty if `places` is 24.
    diverged
        Number of clients whose parameters grew beyond all bounds; they add nothing else.
    places
        Binary places that are kept, 24 or 54.

    Examples
    --------
    >>> total = Weighted.of(np.array([1.0, 4.0]), 3) + Weighted.of(np.array([5.0, 0.0]), 1)
    >>> total.mean()
    array([2., 3.])
    """

    weight: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    total: Integers = field(default_factory=lambda: np.zeros(0, np.int64), metadata=_SINGLE)
    fine: Integers = field(default_factory=lambda: np.zeros(0, np.int64), metadata=_SINGLE)
    diverged: int = 0
    places: int = schema_field(default=0)

    @classmethod
    def of(
        cls,
        values: Array,
        weight: int | Integers,
        *,
        places: int = SINGLE,
        beside: tuple[Array, ...] = (),
    ) -> Self:
        """Return one client's part: a whole weight for all entries, or one for each.

        It counts as diverged if `values` have, or what the client keeps `beside` them.
        """
        weights = np.atleast_1d(np.asarray(weight, np.int64))
        _require_room(weights)
        diverged = not all(map(_within_reach, (values, *beside)))
        if diverged:
            weights, values = np.zeros_like(weights), np.zeros_like(values)
        steps = np.multiply(values, weights * np.float64(2**SINGLE), dtype=np.float64)
        total, fine = np.rint(steps), np.zeros(0)
        if places > SINGLE:
            fine = np.rint((steps - total) * 2.0 ** (places - SINGLE))
        return cls(
            weight=weights,
            total=total.astype(np.int64),
            fine=fine.astype(np.int64),
            diverged=int(diverged),
            places=places,
        )

    def lacks_schema(self) -> bool:
        return not self.places

    def mean(self, otherwise: Array | None = None) -> Floats:
        """Return the weighted mean; `otherwise` stands where all weights are zero."""
        if self.diverged:
            raise SolveError(
                f"training diverged at {self.diverged} clients; use a smaller rate, or rate='auto'"
            )
        _require_room(self.weight)
        held = self.weight > 0
        if otherwise is None and not held.all():
            raise SolveError("nobody has a say in the mean: all weights are zero")
        shares = np.where(held, self.weight, 1)
        mean = self.total / shares * 2.0**-SINGLE
        if self.fine.size:
            mean += self.fine / shares * 2.0**-self.places
        result: Floats = mean if otherwise is None else np.where(held, mean, otherwise)
        return result


def _within_reach(values: Array) -> bool:
    """Whether nothing has diverged; what is not a number has."""
    return not values.size or bool(-REACH <= values.min() <= values.max() <= REACH)


def _require_room(weights: Integers) -> None:
    """Refuse weights with which a sum might overflow."""
    most = int(weights.max(initial=0))
    if most > MOST_WEIGHT:
        raise ExactnessError(
            f"weights that add up to {most} might overflow, {MOST_WEIGHT} do not; use fewer "
            "samples, or weigh clients less"
        )
