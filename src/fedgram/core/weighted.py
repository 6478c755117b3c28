"""Weighted averages of model parameters in fixed point, for FedAvg and its relatives.

Fixed point makes the sums exact: they do not depend on the order of the clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.samples import Array, Floats, Integers
from fedgram.errors import DataError, ExactnessError, SolveError

REACH = 2**10  # parameters of larger magnitude count as diverged
SINGLE, DOUBLE = 24, 54  # binary places: the precision of float32 and float64 for values near 1
MOST_WEIGHT = 2**63 // (REACH * 2**SINGLE) - 1  # largest sum of weights that cannot overflow


@codec.register("Weighted/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Weighted(Additive):
    """A weighted sum of parameter vectors and the sum of the weights.

    Entries are integers in steps of a fixed, public size. So the total does not depend on the order
    of the clients, secure aggregation can add them, and a client can be subtracted again. A
    simulation counts four bytes per parameter, or eight in double precision: the method needs no
    more.

    Parameters
    ----------
    weight
        Sum of the weights: one number, or one for each entry.
    total
        Sum of weight times parameter, in steps of 2^-24.
    fine
        Sum of the rounding errors of `total`, in steps of 2^-54; empty if `places` is 24.
    diverged
        Number of clients whose parameters diverged; these clients add nothing else.
    places
        Number of binary places, 24 or 54.

    Examples
    --------
    >>> total = Weighted.of(np.array([1.0, 4.0]), 3) + Weighted.of(np.array([5.0, 0.0]), 1)
    >>> total.mean()
    array([2., 3.])
    """

    weight: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    total: Integers = codec.counted_field(np.float32, default_factory=lambda: np.zeros(0, np.int64))
    fine: Integers = codec.counted_field(np.float32, default_factory=lambda: np.zeros(0, np.int64))
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
        """Return one client's term of the sum.

        Parameters
        ----------
        values
            The client's parameters.
        weight
            Integer weight of all entries, or one for each.
        places
            Number of binary places, 24 or 54.
        beside
            Other parameters of the client: the client counts as diverged if these have diverged.
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

    def claimed_weight(self) -> int:
        return int(self.weight.max(initial=0))

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        fine = self.total.shape if self.places > SINGLE else (0,)
        if self.places not in (0, SINGLE, DOUBLE) or self.fine.shape != fine:
            raise DataError(
                f"a weighted sum of {self.places} places; expected {SINGLE} or {DOUBLE}"
            )
        if self.weight.shape not in ((1,), self.total.shape):
            raise DataError("weights: expected one number, or one for each entry")
        if (self.weight < 0).any() or (self.weight > MOST_WEIGHT // sites).any():
            raise DataError("weights below zero, or that leave no room for those of other sites")
        if self.diverged not in (0, 1):
            raise DataError("a client that diverged more than once")
        reach = self.weight.astype(np.float64) * REACH * 2**SINGLE
        if (np.abs(self.total.astype(np.float64)) > reach).any():
            raise DataError("a weighted sum beyond the reach of its weights")
        if (np.abs(self.fine.astype(np.float64)) > 2.0 ** (self.places - SINGLE - 1)).any():
            raise DataError("a rest of rounding that is more than half a step")

    def mean(self, otherwise: Array | None = None) -> Floats:
        """Return the weighted mean; entries whose weights are all zero are those of `otherwise`."""
        if self.diverged:
            raise SolveError(
                f"training diverged at {self.diverged} clients; use a smaller rate, rate='auto', "
                "or a larger pilot for it"
            )
        _require_room(self.weight)
        held = self.weight > 0
        if otherwise is None and not held.all():
            raise SolveError("the mean is undefined: all weights are zero")
        shares = np.where(held, self.weight, 1)
        mean = self.total / shares * 2.0**-SINGLE
        if self.fine.size:
            mean += self.fine / shares * 2.0**-self.places
        result: Floats = mean if otherwise is None else np.where(held, mean, otherwise)
        return result


def _within_reach(values: Array) -> bool:
    """Whether all values are within `REACH`; NaN is not."""
    return not values.size or bool(-REACH <= values.min() <= values.max() <= REACH)


def _require_room(weights: Integers) -> None:
    """Raise `ExactnessError` if a sum with these weights could overflow."""
    most = int(weights.max(initial=0))
    if most > MOST_WEIGHT:
        raise ExactnessError(
            f"the sum of weights is {most}, but above {MOST_WEIGHT} a sum may overflow; use fewer "
            "samples or smaller weights"
        )
