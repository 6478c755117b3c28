"""The search for a learning rate: short trainings, judged by their validation loss.

Large steps can look harmless in a short training. Accuracy hardly shows them: parameters jump from
step to step, and long after that they still jump. The loss does show them. It is large, and goes up
and down from round to round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Array, Labels

MOST_PILOTS = 8
AVERAGED = 3  # last rounds of a pilot whose mean loss is compared
MOST_LOSS = 16  # nats, of one sample: no single one decides
FIXED_POINT_ONE = 2**20  # losses are summed as integer numbers of these parts


@codec.register("Loss/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Loss(Additive):
    """Negative log-likelihood that adds up, so that it survives a secure sum: integers only.

    Every sample counts the same, whichever client has it. A mean over clients would give most
    weight to the few left-out samples of small clients, and so more noise.

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
        """Return the loss of one client's model; the softmax of scores is its probabilities."""
        if not len(truth):
            return cls()
        exact = scores.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = exact - exact.max(axis=1, keepdims=True)
            losses = np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(len(truth)), truth.codes]
        # What is not a number comes from a model that has diverged.
        losses = np.where(losses <= MOST_LOSS, losses, MOST_LOSS)
        return cls(
            samples=len(truth),
            total=int(np.rint(losses * FIXED_POINT_ONE).sum()),
            squares=int(np.rint(losses**2 * FIXED_POINT_ONE).sum()),
        )

    @property
    def mean(self) -> float:
        """Mean loss of a sample; not a number where there are none."""
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
        Validation loss after each judged round; empty if training diverged.
    error
        Standard error of the last of them.

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

    @property
    def loss(self) -> float:
        """Mean over the last rounds; infinite if training diverged."""
        return float(np.mean(self.losses[-AVERAGED:])) if self.losses else float("inf")

    @property
    def rise(self) -> float:
        """The most that the loss rises from a judged round to a later one."""
        lowest = np.minimum.accumulate(self.losses)
        return float(np.max(self.losses - lowest)) if self.losses else float("inf")

    @property
    def stable(self) -> bool:
        """Whether the loss does not rise by more than its standard error."""
        return self.rise <= self.error

    @property
    def judged(self) -> bool:
        """Whether there were samples to judge by, or training diverged."""
        return not np.isnan(self.loss)

    @property
    def outcome(self) -> str:
        """The loss in words."""
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
    """Pilots so far, by their place on the grid of rates.

    The search starts at place 0. It goes down until a rate is stable. Then it tries rates on both
    sides of the best one, and smaller ones as long as they are as good within noise.
    """

    pilots: Mapping[int, Pilot]

    @property
    def best(self) -> int:
        """The place with the smallest loss, of the stable ones if there are any."""
        stable = [place for place, pilot in self.pilots.items() if pilot.stable]
        return min(stable or self.pilots, key=lambda place: (self.pilots[place].loss, place))

    @property
    def chosen(self) -> int:
        """The smallest place whose loss is within a standard error of the best.

        A pilot is shorter than the training. So it favors large rates, and a small rate that is as
        good already has more to gain from the rounds to come.
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

    def wanted(self) -> int | None:
        """Return the place to try next; None at the end."""
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
            return "no samples were left out to judge by"
        if not best.stable:
            return "lowest validation loss; no rate was stable"
        if chosen is best:
            return "lowest validation loss of the stable rates"
        return f"smallest rate within a standard error of rate {best.rate:g}"


def judged_rounds(rounds: int) -> Sequence[int]:
    """Return the rounds of a pilot that are judged: those of its second half, five at most.

    Examples
    --------
    >>> [list(judged_rounds(rounds)) for rounds in (1, 2, 5, 10)]
    [[1], [1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]
    """
    return range(max(rounds - 4, (rounds + 1) // 2), rounds + 1)


def rate_at(place: int) -> float:
    """Return the rate at a place of the public grid.

    Examples
    --------
    >>> [rate_at(place) for place in (-2, -1, 0, 1, 2)]
    [0.01, 0.03, 0.1, 0.3, 1.0]
    """
    decade, half = divmod(place, 2)
    return float(f"{3 if half else 1}e{decade - 1}")
