"""Softmax regression of all samples of a federation: every message is a sum over samples.

One exchange at zero weights, then one for each step; a step that raised the summed loss is taken
back and made shorter. The ridge can be chosen on samples that are left out by a hash of their
content, so that the choice does not depend on how samples are spread over clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Integers
from fedgram.core.statistics import Statistics
from fedgram.errors import SolveError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.selection.holdout import PARTS, folds_for
from fedgram.softmax.arithmetic import LN2, LOSS_BITS, SoftmaxGrid
from fedgram.softmax.descent import SoftmaxDescent
from fedgram.softmax.objective import CURVATURE, Anchor, Metric, Objective, Point
from fedgram.softmax.quasi_newton import CurvaturePair, QuasiNewton
from fedgram.softmax.sums import IntegerHead, ResidualSums, SoftmaxQuery

# Ridges of the path, as multiples of what suits the squared loss, by the number of exchanges: the
# fewer there are, the nearer to it the path begins.
_LEVELS = ((1, (3.0,)), (2, (5.0, 3.0)), (3, (5.0, 3.0, 2.0)), (7, (10.0, 3.0, 1.0)),
           (15, (30.0, 10.0, 3.0, 1.0)))  # fmt: skip
_MOST_LEVELS = (30.0, 10.0, 3.0, 1.0, 0.3)

_MOST_NAMES = 100  # clients that a record names

SoftmaxStep = Callable[[Client, SoftmaxQuery], ResidualSums]


@dataclass(frozen=True, eq=False, kw_only=True)
class LeftOut:
    """The heads that were fitted without the samples they are tried on, one for each fold.

    Parameters
    ----------
    values
        Integer weights, (folds, features, classes).
    ridge
        Of the path, at these weights.
    loss
        Mean loss of the left-out samples, in nats.
    accuracy
        Share of the left-out samples that are classified right.
    products
        Residual sums of the samples that were used, scaled to the number of all samples: their
        mean over folds, (features, classes).
    fingerprint
        Of all samples that answered.
    """

    values: Integers
    ridge: float
    loss: float
    accuracy: float
    products: Array
    fingerprint: int

    @property
    def mean(self) -> Integers:
        """The mean of the folds' weights."""
        mean: Integers = np.rint(self.values.mean(axis=0)).astype(np.int64)
        return mean


@dataclass(eq=False, kw_only=True)
class SoftmaxFit:
    """A softmax regression of a federation's samples, on its way.

    Parameters
    ----------
    federation, step
        Whom to ask, and the method's step that answers a `SoftmaxQuery`.
    total
        The summed statistics, whose Gram matrix measures steps.
    exchanges
        Residual sums of one fit, beside the one at zero weights.
    """

    federation: Federation
    step: SoftmaxStep
    total: Statistics
    query: SoftmaxQuery
    exchanges: int
    constant: bool = False
    used: int = 0
    restarts: int = 0
    near_ties: int = 0
    samples: int = 0
    path: list[dict[str, float]] = field(default_factory=list)
    _last: QuasiNewton | None = None
    _digests: list[str] = field(default_factory=list)
    _metrics: dict[tuple[float, float], Metric] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        federation: Federation,
        step: SoftmaxStep,
        total: Statistics,
        *,
        grid: SoftmaxGrid,
        exchanges: int,
        constant: bool = False,
        lift: Lift,
    ) -> SoftmaxFit:
        """Prepare a fit; nothing is asked yet."""
        shape = (1, total.space.width, len(total.classes))
        query = SoftmaxQuery(
            values=np.zeros(shape, np.int64),
            grid=grid,
            space=total.space,
            classes=total.classes,
            lift=lift,
        )
        return cls(
            federation=federation,
            step=step,
            total=total,
            query=query,
            exchanges=exchanges,
            constant=constant,
        )

    def provenance(self) -> str:
        """Digest of all totals so far and of the statistics: the same on every machine."""
        return codec.digest([self.total.digest(), *self._digests])

    def notes(self) -> dict[str, Any]:
        """Return what is recorded of the fit: who answered, how far it went, how sure bits are."""
        return {
            "clients": _named(self.federation.clients),
            "samples": self.samples or self.total.count,
            "residual_sums": self.used,
            "restarts": self.restarts,
            "near_ties": self.near_ties,
            "path": self.path,
        }

    def choose(self, ridge: float) -> LeftOut:
        """Follow a path of ridges on a part of the samples and return what the rest likes best.

        `ridge` is what suits the squared loss. The path takes one exchange for each of its ridges.
        """
        number = folds_for(self.total.count, self.total.moment.size)
        suited = CURVATURE * ridge
        share = 1 - 1 / (PARTS if number == 1 else number)
        descent = self._start(number, share)
        best: LeftOut | None = None
        for factor in path_of(self.exchanges):
            sums = descent.step(suited * factor)
            found = _left_out(descent, suited * factor, sums)
            self.path.append({"ridge": found.ridge, "loss": found.loss, "accuracy": found.accuracy})
            if best is None or _preferred(found, best, descent):
                best = found
        assert best is not None  # noqa: S101  # there is one step at least
        self._last = descent.searches[0] if number == 1 else None
        self.near_ties += sum(search.near_ties for search in descent.searches)
        return best

    def solve(self, ridge: float) -> IntegerHead:
        """Return the head of all samples for a ridge."""
        descent = self._start(0, 1.0)
        for _ in range(self.exchanges):
            descent.step(ridge)
        return self._finished(descent, ridge)

    def refit(self, chosen: LeftOut) -> IntegerHead:
        """Return the head of all samples near the chosen one: one more residual sum.

        Where other samples answer than those it was chosen with, the chosen head stays.
        """
        descent = self._start(0, 1.0, chosen)
        (search,) = descent.searches
        if search.point.fingerprint != chosen.fingerprint:
            self.restarted()
            return replace(self._head(chosen.mean), origin=self.provenance())
        return self._finished(descent, chosen.ridge)

    def _finished(self, descent: SoftmaxDescent, ridge: float) -> IntegerHead:
        descent.last_step(ridge)
        (search,) = descent.searches
        self.near_ties += search.near_ties
        return replace(self._head(search.point.values), origin=self.provenance())

    def ask(
        self,
        values: Integers,
        folds: int,
        *,
        base: Integers | None = None,
        residuals: bool = True,
    ) -> ResidualSums:
        """Ask for sums at these weights, (folds, features, classes)."""
        query = replace(
            self.query,
            values=values,
            folds=folds,
            residuals=residuals,
            base=np.zeros((0, 0, 0), np.int64) if base is None else base,
        )
        sums = self.federation.sum(self.step, query)
        self.used += int(residuals and bool(values.any()))
        self.samples = int(sums.count[0] + sums.out_count[0])
        self._digests.append(codec.digest([values, sums.totals()]))
        return sums

    def restarted(self) -> None:
        """Note that other samples answered than before."""
        self.restarts += 1

    def metric(self, objective: Objective, share: float, ridge: float) -> Metric:
        """Return the metric for a ridge; factorized once."""
        if (share, ridge) not in self._metrics:
            self._metrics = {(share, ridge): objective.metric(ridge)}  # one is in memory
        return self._metrics[share, ridge]

    def _head(self, values: Integers) -> IntegerHead:
        query = self.query
        return IntegerHead(
            values=values,
            grid=query.grid,
            space=query.space,
            classes=query.classes,
            lift=query.lift,
        )

    def _start(self, folds: int, share: float, chosen: LeftOut | None = None) -> SoftmaxDescent:
        shape = (max(1, folds), *self.query.values.shape[1:])
        values = np.zeros(shape, np.int64) if chosen is None else chosen.mean[None]
        anchor = None
        if chosen is not None:
            anchor = Anchor(values=chosen.mean, products=chosen.products)
        sums = self.ask(values, folds)
        share *= self.samples / self.total.count  # a total may be of more than those who are here
        objective = Objective.of(
            self.total,
            self.query.grid,
            share=share,
            constant=self.constant,
            anchor=anchor,
        )
        pairs: tuple[CurvaturePair, ...] = ()
        if chosen is not None and self._last is not None:  # what is remembered of nine tenths
            known = self._last.point.fingerprint == int(sums.fingerprint[0])
            pairs = self._last.pairs if known else ()
        searches = [
            QuasiNewton(objective=objective, point=Point.of(values[k], sums.fold(k)), pairs=pairs)
            for k in range(len(values))
        ]
        return SoftmaxDescent(self, folds, share, searches)


def _named(clients: Sequence[str]) -> list[str] | int:
    """Return the names of clients, or their number where there are many."""
    return list(clients) if len(clients) <= _MOST_NAMES else len(clients)


def _left_out(descent: SoftmaxDescent, ridge: float, sums: ResidualSums) -> LeftOut:
    count = int(sums.out_count.sum())
    if not count:
        raise SolveError("no sample is left out, so no ridge can be chosen; set ridge to a number")
    return LeftOut(
        values=descent.tried,
        ridge=ridge,
        loss=int(sums.out_loss.sum()) * LN2 / 2.0**LOSS_BITS / count,
        accuracy=int(sums.out_correct.sum()) / count,
        products=_scaled_up(sums),
        fingerprint=int(sums.fingerprint[0]),
    )


def _preferred(found: LeftOut, best: LeftOut, descent: SoftmaxDescent) -> bool:
    """Whether left-out samples prefer these weights to the best so far.

    Losses of different samples do not compare: then the later weights count, unless the step to
    them was taken back.
    """
    if found.fingerprint == best.fingerprint:
        return found.loss < best.loss
    return bool(np.array_equal(descent.values, descent.tried))


def _scaled_up(sums: ResidualSums) -> Array:
    """Return the mean over folds of the residual sums, as if all samples were in them."""
    share = (sums.count + sums.out_count) / np.maximum(sums.count, 1)
    mean: Array = (sums.products * share[:, None, None]).mean(axis=0)
    return np.rint(mean).astype(np.int64) if sums.space.exact else mean


def path_of(exchanges: int) -> list[float]:
    """Return the ridge of each exchange, as a multiple of what suits the squared loss.

    Examples
    --------
    >>> path_of(2), path_of(4), path_of(8)
    ([5.0, 3.0], [10.0, 10.0, 3.0, 1.0], [30.0, 30.0, 10.0, 10.0, 3.0, 3.0, 1.0, 1.0])
    """
    levels = next((found for most, found in _LEVELS if exchanges <= most), _MOST_LEVELS)
    each, more = divmod(exchanges, len(levels))
    return [level for k, level in enumerate(levels) for _ in range(each + (k < more))]
