"""The ridge chosen by the server from what it has anyway: summed statistics.

Generalized cross-validation estimates the error on new samples of every ridge. With one-hot targets
it needs nothing but the Gram matrix and the class sums, so it costs no message and works under
secure sums. Where single clients' statistics are visible, each client can be left out in turn
instead, which asks how the head does at a client it has never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np

from fedgram.core.samples import Floats
from fedgram.core.solve import Factor, require_ridge, unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import SolveError

Ridge = float | Literal["auto"]
# 0.01, 0.018, 0.032, 0.056, 0.1, ..., 180,000: two digits, so that they are the same everywhere.
RIDGES = tuple(float(f"{10 ** (k / 4 - 2):.2g}") for k in range(30))
_TRIALS = 5  # factorizations that a search may take,
_SMALL = 128  # unless there are so few features that all ridges can be tried
_GAP = 4  # between the first ridges that are tried
_SAMPLES_PER_RIDGE = 30  # a guess of how samples and ridge go together, where a search begins
_ALIKE = 1e-9  # errors that differ by less than this share are rounding; the larger ridge is taken
# Of a shared head the smallest ridge is taken whose error is at most so much above the least, as a
# share: squared error likes more ridge than accuracy does.
SLACK = 0.01
_FURTHEST = 4  # places below the least error to go down to with slack: a tenth of its ridge


def resolved(ridge: Ridge, total: Statistics, slack: float = SLACK) -> float:
    """Return the ridge to solve a total with: the given one, or the best where it is "auto".

    Examples
    --------
    >>> resolved(3.0, Statistics.zero())
    3.0
    """
    return best_ridge(total, slack=slack) if ridge == "auto" else float(ridge)


def generalized_error(total: Statistics, ridge: float) -> float:
    """Return the generalized cross-validation error of a ridge, per sample.

    ``count * RSS / (count - dof)^2`` with ``dof = tr G (G + ridge I)^-1``, both from the sums.
    """
    return _error_of(total)(ridge)


def best_ridge(total: Statistics, ridges: Sequence[float] = RIDGES, *, slack: float = 0.0) -> float:
    """Return the ridge with the smallest generalized cross-validation error.

    Of many features a few of the ridges are tried, each with one factorization: three to begin
    with, then further out or where the parabola through the best and its neighbors is lowest.
    With `slack` it is the smallest ridge whose error is at most that share above, but no smaller
    than a tenth; between ridges that were tried the error is taken to lie on a straight line.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> from fedgram.features.grid import Grid
    >>> from fedgram.core.samples import Labels
    >>> digits = load_dataset("digits")
    >>> best_ridge(Statistics.of(Grid()(digits.x), Labels(digits.y, digits.classes)))
    0.56
    """
    tried = _tried(_error_of(total), ridges, *_effort(total, ridges))
    return ridges[_slackened(tried, slack)]


def error_at_new_clients(total: Statistics, clients: Iterable[Statistics], ridge: float) -> float:
    """Return the squared error per sample at each client of a head that was solved without it."""
    gram, unit = unpack_symmetric(total.gram, total.space.width), total.space.unit
    wrong, count = 0.0, 0
    for own in clients:
        rest = total.count - own.count
        if own.count > 0 and rest > 0:
            others = gram - unpack_symmetric(own.gram, own.space.width)
            factor = Factor.of(others, ridge / unit**2, samples=rest)
            head = factor.solve((total.moment - own.moment).astype(np.float64)) / unit
            wrong += own.error(head)
            count += own.count
    return wrong / count if count else float("nan")


def best_ridge_for_new_clients(
    total: Statistics,
    clients: Callable[[], Iterable[Statistics]],
    ridges: Sequence[float] = RIDGES,
) -> float:
    """Return the ridge whose head has the smallest error at clients it was solved without.

    Takes as many factorizations as there are clients for every ridge that is tried, and calls
    `clients` for their statistics once for each. A lone client cannot be left out; then it is
    that of `best_ridge`.
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
    """Return where to begin, and how many ridges to try."""
    few = total.space.width > _SMALL
    return total.count / _SAMPLES_PER_RIDGE, _TRIALS if few else len(ridges)


def _error_of(total: Statistics) -> Callable[[float], float]:
    if total.count <= 0:
        raise SolveError(f"nothing to solve: the total holds {total.count} samples")
    width, unit = total.space.width, total.space.unit
    gram, moment = unpack_symmetric(total.gram, width), total.moment.astype(np.float64)

    def error(ridge: float) -> float:
        require_ridge(ridge)
        stored = ridge / unit**2
        factor = Factor.of(gram, stored, samples=total.count)
        head = factor.solve(moment)
        # (G + ridge I) W = T, so that tr W'GW = tr W'T - ridge |W|^2.
        left_over = total.energy - float(np.sum(head * moment) + stored * np.sum(head**2))
        freedom = total.count - (width - stored * factor.inverse_trace())
        return total.count * max(left_over, 0.0) / freedom**2

    return error


def _tried(
    error: Callable[[float], float], ridges: Sequence[float], guess: float, trials: int
) -> dict[int, float]:
    """Return the errors of at most so many ridges, by place, tried from a guess on."""
    last = len(ridges) - 1
    tried: dict[int, float] = {}

    def look(place: int) -> None:
        try:
            tried[place] = error(ridges[place])
        except SolveError:  # singular with so small a ridge
            tried[place] = np.inf

    if trials > last:
        first = list(range(last + 1))
    else:
        nearest = int(np.abs(_logs(np.array(ridges)) - np.log(guess)).argmin())
        middle = int(np.clip(nearest, _GAP, max(_GAP, last - _GAP)))
        first = [min(place, last) for place in (middle - _GAP, middle, middle + _GAP)]
    for place in sorted(set(first)):
        look(place)
    while len(tried) < trials and (place := _next(tried, last)) not in tried:
        look(place)
    if not np.isfinite(min(tried.values())):
        raise SolveError("no ridge makes the Gram matrix regular; check the features")
    return tried


def _slackened(tried: dict[int, float], slack: float) -> int:
    """Return the first place from which on the error is at most that share above the least."""
    best = _lowest(tried)
    if not slack:
        return best
    finite = sorted(place for place in tried if np.isfinite(tried[place]) and place <= best)
    below = np.arange(max(finite[0], best - _FURTHEST), best + 1)
    errors = np.interp(below, finite, [tried[place] for place in finite])
    above = np.flatnonzero(errors > tried[best] * (1 + slack))
    return int(below[above[-1] + 1 if len(above) else 0])


def _lowest(tried: dict[int, float]) -> int:
    """Return the place of the smallest error; of equal ones the last, which has the most ridge."""
    least = min(tried.values())
    return max(place for place, error in tried.items() if error <= least * (1 + _ALIKE))


def _next(tried: dict[int, float], last: int) -> int:
    """Return where to look next; the best place itself where it is closed in from both sides."""
    best = _lowest(tried)
    below = max((place for place in tried if place < best), default=-1)
    above = min((place for place in tried if place > best), default=last + 1)
    if below < 0 or above > last:  # at the edge of what was tried: go further out
        gap = best - below if above > last else above - best
        return min(last, best + 2 * gap) if above > last else max(0, best - 2 * gap)
    errors = np.array([tried[place] for place in (below, best, above)])
    lowest = best
    if np.isfinite(errors).all():
        bend, slope, _ = np.polyfit(np.array([below, best, above]) - best, _logs(errors), 2)
        lowest = round(best - slope / (2 * bend)) if bend > 0 else best
    if lowest in tried:  # on the side with more room
        lowest = (best + above) // 2 if above - best > best - below else (below + best + 1) // 2
    return int(np.clip(lowest, below + 1, above - 1))


def _logs(values: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(values, np.finfo(float).tiny))
    return logs
