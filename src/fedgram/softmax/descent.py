"""Minimization of the softmax regressions of several folds: one exchange is one step of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from fedgram.core.exact import EXACT_UP_TO, FLOAT64
from fedgram.core.samples import Floats, Integers
from fedgram.softmax.objective import Metric, Objective, Point
from fedgram.softmax.quasi_newton import QuasiNewton
from fedgram.softmax.sums import ResidualSums

SHORTER = 0.4  # factor of the step length after an increase of the loss
SHORTEST = 1e-3  # with a smaller step length the search restarts
_RETRIES = 2  # attempts of the last step


class FederatedSums(Protocol):
    """The source of sums over all clients."""

    def ask(
        self, values: Integers, folds: int, *, base: Integers | None = None, residuals: bool = True
    ) -> ResidualSums:
        """Return the sums over all clients.

        Parameters
        ----------
        values
            Integer weights, (folds, features, classes).
        folds
            Number of folds.
        base
            Further weights at which only the loss is computed.
        residuals
            Whether residual sums are needed, or the loss only.
        """

    def metric(self, objective: Objective, share: float, ridge: float, *, first: bool) -> Metric:
        """Return the metric of quasi-Newton steps.

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

    def restarted(self) -> None:
        """Count a restart: the set of samples in the sums has changed."""


class SoftmaxDescent:
    """The quasi-Newton searches of all folds.

    Parameters
    ----------
    asking
        The source of sums over all clients.
    folds
        Number of folds that are held out in turn; 0 for one search on all samples.
    share
        Fraction of the samples that each search uses.
    searches
        One search for each fold.
    """

    def __init__(
        self, asking: FederatedSums, folds: int, share: float, searches: Sequence[QuasiNewton]
    ) -> None:
        self._asking = asking
        self._folds = folds
        self._share = share
        self.searches = list(searches)
        self._directions: list[Floats | None] = [None] * len(self.searches)
        self._lengths = [1.0] * len(self.searches)
        self.tried: Integers = self.values  # the weights of the last exchange

    @property
    def values(self) -> Integers:
        """The last accepted weights, (folds, features, classes)."""
        return np.stack([search.point.values for search in self.searches])

    def step(self, ridge: float) -> ResidualSums:
        """Try one step in every fold, accept it unless its loss is larger, and return the sums."""
        values, ties = self._candidates(ridge)
        sums, losses = self._compared(values, residuals=True)
        for k, search in enumerate(self.searches):
            point = Point.of(values[k], sums.fold(k))
            # Near the minimum losses differ by less than their rounding; residuals are finer.
            base = self._base(k, losses, ridge) + search.objective.loss_rounding
            if search.objective.value(point, ridge) > base:
                self._shorten(k)
                continue
            same = point.fingerprint == search.point.fingerprint
            self.searches[k] = (
                search.accepted(point, ridge, ties[k]) if same else search.restarted(point, ties[k])
            )
            self._directions[k], self._lengths[k] = None, 1.0
        self.tried = values
        return sums

    def last_step(self, ridge: float) -> None:
        """Try one more step that needs the loss only; accept it if the loss does not increase."""
        for _ in range(_RETRIES):
            values, ties = self._candidates(ridge)
            sums, losses = self._compared(values, residuals=False)
            (search,) = self.searches
            after = search.objective.penalized_loss(values[0], int(sums.loss[0]), ridge)
            if after <= self._base(0, losses, ridge):
                moved = replace(search.point, values=values[0], loss=int(sums.loss[0]))
                self.searches = [search.restarted(moved, ties[0])]
                return
            self._shorten(0)

    def _compared(self, values: Integers, *, residuals: bool) -> tuple[ResidualSums, Sequence[int]]:
        """Return the sums at new weights, and the losses at the old weights on the same samples."""
        sums = self._asking.ask(values, self._folds, residuals=residuals)
        if int(sums.fingerprint[0]) == self.searches[0].point.fingerprint:
            return sums, [search.point.loss for search in self.searches]
        # The set of clients has changed: compute both losses in one exchange.
        self._asking.restarted()
        sums = self._asking.ask(values, self._folds, base=self.values, residuals=residuals)
        return sums, sums.base_loss.tolist()

    def _base(self, k: int, losses: Sequence[int], ridge: float) -> float:
        search = self.searches[k]
        return search.objective.penalized_loss(search.point.values, losses[k], ridge)

    def _candidates(self, ridge: float) -> tuple[Integers, list[int]]:
        found, ties = [], []
        for k, search in enumerate(self.searches):
            direction = self._directions[k]
            if direction is None:
                first = not search.pairs
                metric = self._asking.metric(search.objective, self._share, ridge, first=first)
                direction = self._directions[k] = search.direction(ridge, metric)
            values, near = search.candidate(direction, self._lengths[k])
            while not _exact(values, search.objective):
                self._lengths[k] *= SHORTER
                values, near = search.candidate(direction, self._lengths[k])
            found.append(values)
            ties.append(near)
        return np.stack(found), ties

    def _shorten(self, k: int) -> None:
        self._lengths[k] *= SHORTER
        if self._lengths[k] < SHORTEST:  # the curvature pairs do not help: restart without them
            self._directions[k], self._lengths[k] = None, 1.0
            self.searches[k] = self.searches[k].restarted(self.searches[k].point)


def _exact(values: Integers, objective: Objective) -> bool:
    """Whether the logits of these weights are exact integers."""
    return objective.bound * int(np.abs(values).sum(axis=0).max()) <= EXACT_UP_TO[FLOAT64]
