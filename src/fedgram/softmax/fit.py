"""Federated softmax (multinomial logistic) regression, where every message is a sum over samples.

One exchange at zero weights, then one for each step; a step that increases the summed loss is
rejected and shortened. The ridge can be selected on held-out samples. These are drawn by a hash of
their content, so the selection does not depend on the partition over clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Floats, Integers
from fedgram.core.statistics import Statistics
from fedgram.errors import SolveError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.selection.class_prior import class_counts
from fedgram.selection.holdout import PARTS, folds_for
from fedgram.softmax.arithmetic import LN2, LOSS_BITS, SoftmaxGrid
from fedgram.softmax.descent import SoftmaxDescent
from fedgram.softmax.objective import Anchor, Metric, Objective, Point, between_classes
from fedgram.softmax.quasi_newton import CurvaturePair, QuasiNewton
from fedgram.softmax.sums import IntegerHead, ResidualSums, SoftmaxQuery

# Ridges of the path, as multiples of the ridge for the squared loss, by the maximum number of
# exchanges. With fewer exchanges the path starts closer to that ridge.
_LEVELS = ((1, (3.0,)), (2, (5.0, 3.0)), (3, (5.0, 3.0, 2.0)), (7, (10.0, 3.0, 1.0)),
           (15, (30.0, 10.0, 3.0, 1.0)))  # fmt: skip
_PER_SQUARED = 0.05  # the path's unit, relative to the ridge for the squared loss
_MOST_LEVELS = (30.0, 10.0, 3.0, 1.0, 0.3)

_MOST_NAMES = 100  # a record of more clients contains their number, not their names

SoftmaxStep = Callable[[Client, SoftmaxQuery], ResidualSums]


@dataclass(frozen=True, eq=False, kw_only=True)
class LeftOut:
    """Cross-validation results: the head of each fold, with its loss on held-out samples.

    Parameters
    ----------
    values
        Integer weights, (folds, features, classes).
    ridge
        Ridge of the path at these weights.
    loss
        Mean loss of the held-out samples, in nats.
    accuracy
        Accuracy on the held-out samples.
    products
        Residual sums of the fitted samples, scaled to the number of all samples: the mean over
        folds, (features, classes).
    fingerprint
        Fingerprint of all samples in the sums.
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
    """The state of a federated softmax regression.

    Parameters
    ----------
    federation
        The clients.
    step
        The method's step that returns the sums for a `SoftmaxQuery`.
    total
        The summed statistics; their Gram matrix is the metric of the steps.
    query
        The query template: grid, space, classes and lift.
    exchanges
        Number of residual sums of one fit, without the one at zero weights.
    constant
        Whether the constant is penalized.
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
    _metrics: dict[tuple[float, float, bool], Metric] = field(default_factory=dict)

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
        """Return a fit, before the first exchange.

        Parameters
        ----------
        federation
            The clients.
        step
            The method's step that returns the sums for a `SoftmaxQuery`.
        total
            The summed statistics.
        grid
            Precision of the weights and residuals.
        exchanges
            Number of residual sums of one fit.
        constant
            Whether the constant is penalized.
        lift
            The lift that the statistics were made with.
        """
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
        """Digest of the statistics and of all sums so far: equal on every machine."""
        return codec.digest([self.total.digest(), *self._digests])

    def notes(self) -> dict[str, Any]:
        """Return the record of the fit: clients, samples, exchanges, restarts, near ties, path."""
        return {
            "clients": _named(self.federation.clients),
            "samples": self.samples or self.total.count,
            "residual_sums": self.used,
            "restarts": self.restarts,
            "near_ties": self.near_ties,
            "path": self.path,
        }

    def choose(self, ridge: float) -> LeftOut:
        """Return the weights with the smallest held-out loss on a path of decreasing ridges.

        `ridge` is the ridge for the squared loss. Every ridge of the path takes one exchange.
        """
        number = folds_for(self.total.count, self.total.moment.size)
        suited = _PER_SQUARED * ridge
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
        """Return the head of all samples near the selected one, with one more residual sum.

        If the set of samples has changed since the selection, the selected head is returned.
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
        """Return the sums over all clients: one exchange.

        Parameters
        ----------
        values
            Integer weights, (folds, features, classes).
        folds
            Number of folds that are held out in turn.
        base
            Further weights at which only the loss is computed.
        residuals
            Whether residual sums are needed, or the loss only.
        """
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
        """Count a restart: the set of samples in the sums has changed."""
        self.restarts += 1

    def metric(self, objective: Objective, share: float, ridge: float, *, first: bool) -> Metric:
        """Return the metric for a ridge; the last one is cached.

        Parameters
        ----------
        objective
            The objective.
        share
            Fraction of the samples in the objective.
        ridge
            The ridge.
        first
            Whether no curvature pair is known yet.
        """
        key = share, ridge, first or objective.between is None
        if key not in self._metrics:
            self._metrics = {key: objective.metric(ridge, first=first)}  # one factor in memory
        return self._metrics[key]

    def _between(self, folds: int, sums: ResidualSums) -> Floats:
        """Return the between-class part of the Gram matrix, of the fitted samples.

        With a tenth held out, class sums of the other samples follow from the residual sums at
        zero weights: the classes of held-out samples are not used.
        """
        counts, constant = class_counts(self.total)
        unit = self.total.space.unit
        class_sums: Floats = self.total.moment * np.float64(unit)
        if folds:
            fitted = int(sums.count[0])
            slope = unit / 2.0**self.query.grid.residuals
            mean = class_sums.sum(axis=1, keepdims=True) / self.total.count
            class_sums = slope * sums.products[0] + (fitted / len(counts)) * mean
            counts = class_sums[self.total.space.constant] / constant
        return between_classes(class_sums, counts)

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
        share *= self.samples / self.total.count  # the total may contain clients that are absent
        # On a path of ridges. Several folds would need a metric each.
        path = folds == 1 or self._last is not None
        between = self._between(folds, sums) if path else None
        objective = Objective.of(
            self.total,
            self.query.grid,
            share=share,
            constant=self.constant,
            between=between,
            anchor=anchor,
        )
        pairs: tuple[CurvaturePair, ...] = ()
        if chosen is not None and self._last is not None:  # curvature pairs of the selection
            known = self._last.point.fingerprint == int(sums.fingerprint[0])
            pairs = self._last.pairs if known else ()
        searches = [
            QuasiNewton(objective=objective, point=Point.of(values[k], sums.fold(k)), pairs=pairs)
            for k in range(len(values))
        ]
        return SoftmaxDescent(self, folds, share, searches)


def _named(clients: Sequence[str]) -> list[str] | int:
    """Return the names of clients, or their number if there are many."""
    return list(clients) if len(clients) <= _MOST_NAMES else len(clients)


def _left_out(descent: SoftmaxDescent, ridge: float, sums: ResidualSums) -> LeftOut:
    count = int(sums.out_count.sum())
    if not count:
        raise SolveError("no held-out samples to select a ridge with; set ridge to a number")
    return LeftOut(
        values=descent.tried,
        ridge=ridge,
        loss=int(sums.out_loss.sum()) * LN2 / 2.0**LOSS_BITS / count,
        accuracy=int(sums.out_correct.sum()) / count,
        products=_scaled_up(sums),
        fingerprint=int(sums.fingerprint[0]),
    )


def _preferred(found: LeftOut, best: LeftOut, descent: SoftmaxDescent) -> bool:
    """Whether the held-out loss of these weights is smaller than the smallest so far.

    Losses of different samples cannot be compared: then the later weights are preferred, unless
    their step was rejected.
    """
    if found.fingerprint == best.fingerprint:
        return found.loss < best.loss
    return bool(np.array_equal(descent.values, descent.tried))


def _scaled_up(sums: ResidualSums) -> Array:
    """Return the mean over folds of the residual sums, scaled to the number of all samples."""
    share = (sums.count + sums.out_count) / np.maximum(sums.count, 1)
    mean: Array = (sums.products * share[:, None, None]).mean(axis=0)
    return np.rint(mean).astype(np.int64) if sums.space.exact else mean


def path_of(exchanges: int) -> list[float]:
    """Return the ridge of each exchange, as a multiple of the ridge for the squared loss.

    Examples
    --------
    >>> path_of(2), path_of(4), path_of(8)
    ([5.0, 3.0], [10.0, 3.0, 1.0, 1.0], [30.0, 30.0, 10.0, 10.0, 3.0, 3.0, 1.0, 1.0])
    """
    levels = next((found for most, found in _LEVELS if exchanges <= most), _MOST_LEVELS)
    each, more = divmod(exchanges, len(levels))
    few = len(levels) - more  # further exchanges are for the smallest ridges
    return [level for k, level in enumerate(levels) for _ in range(each + (k >= few))]
