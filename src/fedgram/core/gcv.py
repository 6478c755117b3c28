"""Selection of the ridge by generalized cross-validation (GCV), from summed statistics.

GCV estimates the error of each ridge on new samples. With one-hot targets it needs only the Gram
matrix and the class sums, so it needs no further message and works with secure aggregation. If the
server has the statistics of each client, leave-one-client-out cross-validation is possible too: it
estimates the error at a new client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgram.core.quadratic_forms import QuadraticForms
from fedgram.core.samples import Floats
from fedgram.core.solve import SIGNS, Factor, random_signs, require_ridge, unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import SolveError

Ridge = float | Literal["auto"]
# 0.01, 0.018, 0.032, 0.056, 0.1, ..., 180,000: two digits, so that they are equal on all machines.
RIDGES = tuple(float(f"{10 ** (k / 4 - 2):.2g}") for k in range(30))
_TRIALS = 5  # maximum number of factorizations in a search
_SMALL = 128  # up to this number of features all ridges are evaluated
_GAP = 4  # positions between the first ridges of a search
_SAMPLES_PER_RIDGE = 30  # a search begins at the ridge nearest to samples / this number
_ALIKE = 1e-9  # errors with a smaller relative difference count as equal; the larger ridge wins
# For a shared head the selected ridge is the smallest one whose error is at most this much above
# the minimum, relatively: accuracy needs less ridge than squared error.
SLACK = 0.01
# From this number of features on, and this number of samples for each, errors are those of
# `_NearbyErrors`: an exact trace takes as long as a factorization.
_ESTIMATED, _MANY = 2048, 4
_CLOSE = 1e-4  # relative change of an error by the last step
_MOST_STEPS = 12  # with one factorization
_SAFE = 1e10  # a Gram matrix with a trace of more ridges than this may be singular in float64
_FURTHEST = 4  # maximum number of positions below the minimum with slack: a tenth of its ridge


def resolved(ridge: Ridge, total: Statistics, slack: float = SLACK) -> float:
    """Return the given ridge, or the one that `best_ridge` selects if it is "auto".

    Parameters
    ----------
    ridge
        A ridge, or "auto".
    total
        The statistics to select with.
    slack
        Relative error above the minimum that "auto" accepts.

    Examples
    --------
    >>> resolved(3.0, Statistics.zero())
    3.0
    """
    return best_ridge(total, slack=slack) if ridge == "auto" else float(ridge)


def generalized_error(total: Statistics, ridge: float) -> float:
    """Return the generalized cross-validation error of a ridge, per sample.

    ``count * RSS / (count - dof)^2`` with ``dof = tr G (G + ridge I)^-1``, the effective degrees
    of freedom: the trace of the hat matrix.
    """
    return _error_of(total)(ridge)


def best_ridge(total: Statistics, ridges: Sequence[float] = RIDGES, *, slack: float = 0.0) -> float:
    """Return the ridge with the smallest generalized cross-validation error.

    With many features only a few ridges are evaluated, each with one factorization: three at
    first, then ridges further out, or at the minimum of the parabola through the best ridge and
    its neighbors.

    Parameters
    ----------
    total
        The statistics to select with.
    ridges
        The candidates, in increasing order.
    slack
        Return the smallest ridge whose error is at most this fraction above the minimum, but not
        less than a tenth of the minimizer. Between evaluated ridges the error is interpolated
        linearly.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> from fedgram.features.grid import Grid
    >>> from fedgram.core.samples import Labels
    >>> digits = load_dataset("digits")
    >>> best_ridge(Statistics.of(Grid()(digits.x), Labels(digits.y, digits.classes)))
    0.56
    """
    return best_ridges(total, [slack], ridges)[0]


def best_ridges(
    total: Statistics, slacks: Sequence[float], ridges: Sequence[float] = RIDGES
) -> list[float]:
    """Return `best_ridge` for each slack, from the same factorizations.

    Parameters
    ----------
    total
        The statistics to select with.
    slacks
        Relative errors above the minimum.
    ridges
        The candidates, in increasing order.
    """
    guess, trials = _effort(total, ridges)
    error = _NearbyErrors(total, guess) if _is_large(total) else _error_of(total)
    tried = _tried(error, ridges, guess, trials)
    return [ridges[_slackened(tried, slack)] for slack in slacks]


def error_at_new_clients(total: Statistics, clients: Iterable[Statistics], ridge: float) -> float:
    """Return the leave-one-client-out error: squared error per sample at held-out clients.

    Parameters
    ----------
    total
        The statistics of all clients.
    clients
        The statistics of each client; the head for a client is solved without the client's own.
    ridge
        The ridge to evaluate.
    """
    gram, unit = unpack_symmetric(total.gram, total.space.width), total.space.unit
    wrong, count = 0.0, 0
    for own in clients:
        rest = total.count - own.count
        if own.count > 0 and rest > 0:
            others = gram - unpack_symmetric(own.gram, own.space.width)
            factor = Factor.of(others, ridge / unit**2, samples=rest, free=total.free)
            head = factor.solve(total.products - own.products) / unit
            wrong += own.error(head)
            count += own.count
    return wrong / count if count else float("nan")


def best_ridge_for_new_clients(
    total: Statistics,
    clients: Callable[[], Iterable[Statistics]],
    ridges: Sequence[float] = RIDGES,
) -> float:
    """Return the ridge with the smallest leave-one-client-out error.

    Every evaluated ridge takes one factorization per client. With a single client the result is
    that of `best_ridge`.

    Parameters
    ----------
    total
        The statistics of all clients.
    clients
        Returns the statistics of each client; called once per evaluated ridge.
    ridges
        The candidates, in increasing order.
    """
    if all(own.count in (0, total.count) for own in clients()):
        return best_ridge(total, ridges)
    tried = _tried(
        lambda ridge: error_at_new_clients(total, clients(), ridge),
        ridges,
        *_effort(total, ridges),
    )
    return ridges[_lowest(tried)]


def _effort(total: Statistics, ridges: Sequence[float]) -> tuple[float, int]:
    """Return the ridge to start from, and the number of ridges to evaluate."""
    few = total.space.width > _SMALL
    return total.count / _SAMPLES_PER_RIDGE, _TRIALS if few else len(ridges)


def _is_large(total: Statistics) -> bool:
    width = total.space.width
    return width >= _ESTIMATED and total.count >= _MANY * width


def _error_of(total: Statistics) -> Callable[[float], float]:
    """Return the error of a ridge, by one factorization for each."""
    sums = _CenteredSums.of(total)
    gram, moment = sums.gram(), sums.moment

    def error(ridge: float) -> float:
        require_ridge(ridge)
        stored = ridge / total.space.unit**2
        factor = Factor.of(gram, stored, samples=total.count)
        head = factor.solve(moment)
        products, squares = float(np.sum(head * moment)), float(np.sum(head**2))
        return sums.error(stored, products, squares, factor.inverse_trace())

    return error


class _NearbyErrors:
    """The errors of many ridges by one factorization, with an estimated trace.

    Ridges far from the factorized one need a factorization of their own. The trace is Hutchinson's
    estimate: the mean of ``z' (G + ridge I)^-1 z`` over 64 vectors z of random signs. They are the
    same for all ridges, whose estimates thus err alike. The standard error is at most
    ``sqrt(2 width / 64)`` degrees of freedom. With at least four samples for each feature this is a
    small part of the degrees that are left.

    Parameters
    ----------
    total
        The statistics.
    guess
        The ridge to factorize first.
    """

    def __init__(self, total: Statistics, guess: float) -> None:
        self._total, self._sums, self._guess = total, _CenteredSums.of(total), guess
        moment = self._sums.moment
        self._vectors = np.hstack([moment, random_signs(len(moment))])
        self._forms: QuadraticForms | None = None  # made at the first ridge
        self._scale = float(total.diagonal().sum())

    def __call__(self, ridge: float) -> float:
        require_ridge(ridge)
        stored = ridge / self._total.space.unit**2
        if self._scale <= _SAFE * stored:
            error = self._from(self._forms or self._factorized(self._guess), stored)
            if error is not None:
                return error
        error = self._from(self._factorized(ridge), stored)
        if error is None:
            raise SolveError(f"the error of ridge = {ridge:g} does not converge; use another ridge")
        return error

    def _factorized(self, ridge: float) -> QuadraticForms:
        total, stored = self._total, ridge / self._total.space.unit**2
        self._forms = None  # one factor in memory
        factor = Factor.of(self._sums.gram(), stored, samples=total.count)
        self._forms = QuadraticForms.of(factor, stored, self._vectors)
        return self._forms

    def _from(self, forms: QuadraticForms, ridge: float) -> float | None:
        """Return the error of a ridge in stored units, or None if it does not converge."""
        forms.extend(max(0, 2 - forms.steps))
        last = self._after(forms, ridge, forms.steps - 1)
        while True:
            error = self._after(forms, ridge, forms.steps)
            if abs(error - last) <= _CLOSE * error:
                return error
            if forms.steps >= _MOST_STEPS:
                return None
            forms.extend(1)
            last = error

    def _after(self, forms: QuadraticForms, ridge: float, steps: int) -> float:
        first, second = forms.at(ridge, steps=steps)
        classes = len(self._vectors[0]) - SIGNS
        products, squares = float(first[:classes].sum()), float(second[:classes].sum())
        return self._sums.error(ridge, products, squares, float(first[classes:].mean()))


@dataclass(frozen=True, eq=False, kw_only=True)
class _CenteredSums:
    """Gram matrix G, moment T and energy of a total, without the constant if it has no ridge.

    A constant without a ridge takes the mean out of every other feature and of the targets. What
    is left is an ordinary ridge regression, and the constant is one more degree of freedom.
    """

    total: Statistics
    moment: Floats
    energy: float
    free: int = 0  # number of weights without a ridge

    @classmethod
    def of(cls, total: Statistics) -> _CenteredSums:
        if total.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {total.count} samples")
        moment, place = total.products, total.free
        if place is None:
            return cls(total=total, moment=moment, energy=total.target_squares)
        gram = unpack_symmetric(total.gram, len(moment))
        others, across = np.delete(np.arange(len(moment)), place), moment[place]
        return cls(
            total=total,
            moment=moment[others] - np.outer(gram[others, place] / gram[place, place], across),
            energy=total.target_squares - float(across @ across) / float(gram[place, place]),
            free=1,
        )

    def gram(self) -> Floats:
        """Return the Gram matrix, which is not kept."""
        gram, place = unpack_symmetric(self.total.gram, self.total.space.width), self.total.free
        if place is None:
            return gram
        others = np.delete(np.arange(len(gram)), place)
        products = np.outer(gram[others, place] / gram[place, place], gram[place, others])
        found: Floats = gram[np.ix_(others, others)] - products
        return found

    def error(self, ridge: float, products: float, squares: float, trace: float) -> float:
        """Return the error of a ridge in stored units.

        Parameters
        ----------
        ridge
            The ridge.
        products, squares
            ``tr W'T`` and ``tr W'W`` of the head ``W = (G + ridge I)^-1 T``.
        trace
            ``tr (G + ridge I)^-1``.
        """
        # (G + ridge I) W = T, so tr W'GW = tr W'T - ridge |W|^2 and
        # RSS = energy - 2 tr W'T + tr W'GW = energy - tr W'T - ridge |W|^2.
        residual_squares = self.energy - (products + ridge * squares)
        count = self.total.count
        if count <= self.free:  # nothing but the constant is determined, by any ridge
            return 0.0
        freedom = count - (len(self.moment) - ridge * trace) - self.free
        return count * max(residual_squares, 0.0) / freedom**2


def _tried(
    error: Callable[[float], float], ridges: Sequence[float], guess: float, trials: int
) -> dict[int, float]:
    """Return the errors of at most `trials` ridges by index, searched from `guess`."""
    last = len(ridges) - 1
    tried: dict[int, float] = {}

    def evaluate(place: int) -> None:
        try:
            tried[place] = error(ridges[place])
        except SolveError:  # singular: the ridge is too small
            tried[place] = np.inf

    if trials > last:
        first = list(range(last + 1))
    else:
        nearest = int(np.abs(_logs(np.array(ridges)) - np.log(guess)).argmin())
        middle = int(np.clip(nearest, _GAP, max(_GAP, last - _GAP)))
        first = [min(place, last) for place in (middle - _GAP, middle, middle + _GAP)]
    for place in sorted(set(first)):
        evaluate(place)
    while len(tried) < trials and (place := _next(tried, last)) not in tried:
        evaluate(place)
    if not np.isfinite(min(tried.values())):
        raise SolveError("the Gram matrix is singular with every ridge; check the features")
    return tried


def _slackened(tried: dict[int, float], slack: float) -> int:
    """Return the first index from which the error stays within `slack` above the minimum."""
    best = _lowest(tried)
    if not slack:
        return best
    finite = sorted(place for place in tried if np.isfinite(tried[place]) and place <= best)
    below = np.arange(max(finite[0], best - _FURTHEST), best + 1)
    errors = np.interp(below, finite, [tried[place] for place in finite])
    above = np.flatnonzero(errors > tried[best] * (1 + slack))
    return int(below[above[-1] + 1 if len(above) else 0])


def _lowest(tried: dict[int, float]) -> int:
    """Return the index of the smallest error; of equal errors the last: the largest ridge."""
    least = min(tried.values())
    return max(place for place, error in tried.items() if error <= least * (1 + _ALIKE))


def _next(tried: dict[int, float], last: int) -> int:
    """Return the index to evaluate next; the best index if both its neighbors are evaluated."""
    best = _lowest(tried)
    below = max((place for place in tried if place < best), default=-1)
    above = min((place for place in tried if place > best), default=last + 1)
    if below < 0 or above > last:  # the best ridge is the smallest or largest so far: go further
        gap = best - below if above > last else above - best
        return min(last, best + 2 * gap) if above > last else max(0, best - 2 * gap)
    errors = np.array([tried[place] for place in (below, best, above)])
    lowest = best
    if np.isfinite(errors).all():
        bend, slope, _ = np.polyfit(np.array([below, best, above]) - best, _logs(errors), 2)
        lowest = round(best - slope / (2 * bend)) if bend > 0 else best
    if lowest in tried:  # halve the wider of the two intervals
        lowest = (best + above) // 2 if above - best > best - below else (below + best + 1) // 2
    return int(np.clip(lowest, below + 1, above - 1))


def _logs(values: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(values, np.finfo(float).tiny))
    return logs
