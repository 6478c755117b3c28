"""Normal equations ``(G + ridge I) W = B`` of the summed statistics, with their factorization."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Floats, Samples, Space
from fedgram.core.shared import Shared
from fedgram.core.solve import Factor, ridge_solve, unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import MismatchError
from fedgram.features.lift import Lift
from fedgram.models.linear import Linear, lifted
from fedgram.runtime.threads import single_threaded_blas


@codec.register("Whole/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class NormalEquations(Shared):
    """Summed statistics with a ridge, as clients receive them; derived values are cached.

    In a regression the constant has no ridge; leave-one-out is exact with that too.

    Parameters
    ----------
    total
        The summed statistics.
    ridge
        Weight of the squared norm, in real units.

    Examples
    --------
    >>> from fedgram.core.samples import Space
    >>> space = Space(width=1, unit=0.5, bound=127)
    >>> total = Statistics(
    ...     count=2, gram=np.array([8]), moment=np.array([[4, 0]]), space=space, classes=("a", "b")
    ... )
    >>> NormalEquations(total=total, ridge=2.0).head
    array([[0.25, 0.  ]])
    """

    total: Statistics
    ridge: float

    @cached_property
    def gram(self) -> Floats:
        """The summed Gram matrix in stored units, without the ridge."""
        return unpack_symmetric(self.total.gram, self.total.space.width)

    @property
    def stored_ridge(self) -> float:
        """The ridge in the units of the stored integers."""
        return self.ridge / self.total.space.unit**2

    @cached_property
    def factor(self) -> Factor:
        """The Cholesky factor of the Gram matrix plus the ridge."""
        total = self.total
        return Factor.of(self.gram, self.stored_ridge, samples=total.count, free=total.free)

    @cached_property
    def head(self) -> Floats:
        """The shared head, in stored units."""
        return self.factor.solve(self.total.products)

    @cached_property
    def derived(self) -> dict[Any, Any]:
        """A cache of other values derived from the total, shared by the clients of a process."""
        return {}

    def with_ridge(self, ridge: float) -> NormalEquations:
        """Return the equations of the same total with another ridge; cached."""
        if ridge == self.ridge:
            return self
        if ("ridge", ridge) not in self.derived:
            other = replace(self, ridge=ridge)
            other.__dict__["gram"] = self.gram  # the cached property: one matrix for all ridges
            self.derived["ridge", ridge] = other
        found: NormalEquations = self.derived["ridge", ridge]
        return found

    def rows(self, samples: Samples, lift: Lift) -> Floats:
        """Return lifted samples in stored units; raise MismatchError if their space differs."""
        features = lift(samples.features)
        if features.space != self.total.space:
            detail = self.total.space.difference(features.space)
            raise MismatchError(
                f"the total was made with other settings: {detail}; use the same settings"
            )
        return features.values.astype(np.float64)

    def with_extra_weight(self, samples: Samples, lift: Lift, alpha: float) -> Linear:
        """Return the head with extra weight `alpha` on these samples (FedHiP).

        ``W + (S + alpha F'F)^-1 alpha F'(Y - F W)`` with S the regularized Gram matrix.

        Parameters
        ----------
        samples
            The samples.
        lift
            The lift of the total.
        alpha
            The extra weight.
        """
        rows = self.rows(samples, lift)
        if len(rows) >= rows.shape[1]:  # the Woodbury identity would need the larger matrix
            return self.with_extra_statistics(Statistics.of(*lifted(samples, lift)), lift, alpha)
        with single_threaded_blas():
            residual = samples.labels.onehot() - rows @ self.head
        return self.linear(lift, self.head + self.factor.update(rows, residual, alpha))

    def with_extra_statistics(self, own: Statistics, lift: Lift, alpha: float) -> Linear:
        """Return the head with extra weight `alpha` on the samples of these statistics.

        Parameters
        ----------
        own
            The statistics of the samples.
        lift
            The lift of the total.
        alpha
            The extra weight.
        """
        stored = ridge_solve(
            self.gram + alpha * unpack_symmetric(own.gram, own.space.width),
            self.total.products + alpha * own.products,
            self.stored_ridge,
            samples=self.total.count,
            free=self.total.free,
        )
        return self.linear(lift, stored)

    def linear(self, lift: Lift, stored: Floats | None = None) -> Linear:
        """Return weights in stored units as a model; by default the shared head."""
        return Linear(
            weights=(self.head if stored is None else stored) / self.total.space.unit,
            space=self.total.space,
            classes=self.total.classes,
            lift=lift,
            origin="" if stored is not None else self.provenance(),
        )

    @property
    def space(self) -> Space:
        """The space of the total."""
        return self.total.space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list of the total."""
        return self.total.classes

    def provenance(self) -> str:
        """Digest of the total and of the ridge."""
        return codec.digest({"total": self.total.digest(), "ridge": float(self.ridge)})
