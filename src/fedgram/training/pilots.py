"""Learning-rate search: short pilot trainings, compared by validation loss.

Too large a rate is hard to see in the accuracy of a short training, although the parameters
oscillate. The validation loss shows it: the loss is large, and rises and falls from round to round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Array, Labels
from fedgram.errors import DataError

MOST_PILOTS = 8
AVERAGED = 3  # the mean loss of this number of last rounds is compared
MOST_LOSS = 16  # nats; larger losses of a sample are clipped, so that no single sample decides
FIXED_POINT_ONE = 2**20  # a loss of 1.0 in the fixed-point sums


@codec.register("Loss/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Loss(Additive):
    """Sums of negative log-likelihoods, as integers, so that secure aggregation can add them.

    All samples have equal weight. A mean over clients would give the most weight to the few
    held-out samples of small clients, and so be noisier.

    Parameters
    ----------
    samples
        Number of samples.
    total
        Sum of their losses, in steps of 2^-20.
    squares
        Sum of their squared losses, in the same steps.

    Examples
    --------
    >>> truth = Labels(np.array([0, 1]), ("no", "yes"))
    >>> loss = Loss.of(np.zeros((2, 2)), truth) + Loss.of(np.array([[9.0, 0.0]] * 2), truth)
    >>> round(loss.mean, 3), round(loss.error, 3)
    (2.597, 1.854)
    """

    samples: int = 0
    total: int = 0
    squares: int = 0

    @classmethod
    def of(cls, scores: Array, truth: Labels) -> Self:
        """Return the loss of one client's model, with the softmax of scores as probabilities."""
        if not len(truth):
            return cls()
        exact = scores.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = exact - exact.max(axis=1, keepdims=True)
            losses = np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(len(truth)), truth.codes]
        # NaN is the loss of a diverged model; it is clipped too.
        losses = np.where(losses <= MOST_LOSS, losses, MOST_LOSS)
        return cls(
            samples=len(truth),
            total=int(np.rint(losses * FIXED_POINT_ONE).sum()),
            squares=int(np.rint(losses**2 * FIXED_POINT_ONE).sum()),
        )

    def claimed_samples(self) -> int:
        return self.samples

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        most = self.samples * MOST_LOSS * FIXED_POINT_ONE
        if not (0 <= self.total <= most and 0 <= self.squares <= most * MOST_LOSS):
            raise DataError("a validation loss that its samples cannot have")

    @property
    def mean(self) -> float:
        """Mean loss per sample; NaN without samples."""
        return self.total / self.samples / FIXED_POINT_ONE if self.samples else float("nan")

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        if not self.samples:
            return float("nan")
        variance = self.squares / self.samples / FIXED_POINT_ONE - self.mean**2
        return float(np.sqrt(max(0.0, variance) / self.samples))


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """A short training at one rate.

    Parameters
    ----------
    rate
        Learning rate.
    losses
        Validation loss after each evaluated round; empty if training diverged.
    error
        Standard error of the last loss.

    Examples
    --------
    >>> Pilot(rate=0.1, losses=(0.9, 0.7, 0.6, 0.5), error=0.02).loss
    0.6
    >>> [Pilot(rate=0.1, losses=c, error=0.02).stable for c in ((0.6, 0.5), (0.5, 0.6), ())]
    [True, False, False]
    """

    rate: float
    losses: tuple[float, ...] = ()
    error: float = 0.0

    @cached_property
    def loss(self) -> float:
        """Mean over the last rounds; infinite if training diverged."""
        return float(np.mean(self.losses[-AVERAGED:])) if self.losses else float("inf")

    @cached_property
    def rise(self) -> float:
        """The largest increase of the loss from an evaluated round to a later one."""
        lowest = np.minimum.accumulate(self.losses)
        return float(np.max(self.losses - lowest)) if self.losses else float("inf")

    @property
    def stable(self) -> bool:
        """Whether the loss never increases by more than its standard error."""
        return self.rise <= self.error

    @property
    def judged(self) -> bool:
        """Whether there were held-out samples, or training diverged."""
        return not np.isnan(self.loss)

    @property
    def outcome(self) -> str:
        """The loss as text."""
        if not self.losses:
            return "diverged"
        if not self.judged:
            return "not judged"
        return f"{self.loss:.3f}" if self.stable else f"{self.loss:.3f} (unstable)"

    def to_dict(self) -> dict[str, Any]:
        """Return the pilot as plain numbers and texts, for JSON."""
        return {
            "rate": self.rate,
            "outcome": self.outcome,
            "losses": [round(loss, 6) for loss in self.losses] if self.judged else [],
            "error": round(self.error, 6) if self.judged else None,
        }


@dataclass(frozen=True)
class RateSearch:
    """The pilots so far, by the index of their rate on the public grid.

    The search starts at index 0 and goes down until a rate is stable. Then it evaluates the
    neighbors of the best rate, and smaller rates as long as they are equal within noise.
    """

    pilots: Mapping[int, Pilot]

    @property
    def best(self) -> int:
        """The index with the smallest loss, among stable rates if there are any."""
        stable = [place for place, pilot in self.pilots.items() if pilot.stable]
        return min(stable or self.pilots, key=lambda place: (self.pilots[place].loss, place))

    @property
    def chosen(self) -> int:
        """The smallest index whose loss is within a standard error of the best.

        A pilot is shorter than the final training, which favors large rates. A small rate that is
        equally good will improve more in further rounds.
        """
        best = self.pilots[self.best]
        if not best.losses or not best.judged:
            return min(self.pilots)
        bound = best.loss + best.error
        return min(
            place
            for place, pilot in self.pilots.items()
            if pilot.loss <= bound and pilot.stable >= best.stable
        )

    def next_index(self) -> int | None:
        """Return the index of the next rate to evaluate; None at the end."""
        if not self.pilots:
            return 0
        full = len(self.pilots) >= MOST_PILOTS
        if full or not all(pilot.judged for pilot in self.pilots.values()):
            return None
        if not any(pilot.stable for pilot in self.pilots.values()):
            return min(self.pilots) - 1
        around = (self.best + 1, self.best - 1, self.chosen - 1)
        return next((place for place in around if place not in self.pilots), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the choice, the reason and all pilots as plain numbers and texts, for JSON."""
        return {
            "rate": self.pilots[self.chosen].rate,
            "reason": self._reason(),
            "pilots": [pilot.to_dict() for _, pilot in sorted(self.pilots.items())],
        }

    def _reason(self) -> str:
        chosen, best = self.pilots[self.chosen], self.pilots[self.best]
        if not chosen.losses:
            return "every pilot diverged; this is the smallest rate tried"
        if not chosen.judged:
            return "no held-out samples"
        if not best.stable:
            return "lowest validation loss; no rate was stable"
        if chosen is best:
            return "lowest validation loss of the stable rates"
        return f"smallest rate within a standard error of rate {best.rate:g}"


def judged_rounds(rounds: int) -> Sequence[int]:
    """Return the rounds of a pilot that are evaluated: its second half, at most five.

    Examples
    --------
    >>> [list(judged_rounds(rounds)) for rounds in (1, 2, 5, 10)]
    [[1], [1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]
    """
    return range(max(rounds - 4, (rounds + 1) // 2), rounds + 1)


def rate_at(place: int) -> float:
    """Return the rate at an index of the public grid.

    Examples
    --------
    >>> [rate_at(place) for place in (-2, -1, 0, 1, 2)]
    [0.01, 0.03, 0.1, 0.3, 1.0]
    """
    decade, half = divmod(place, 2)
    return float(f"{3 if half else 1}e{decade - 1}")
