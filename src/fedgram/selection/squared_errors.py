"""Selection of settings for a regression, by squared leave-one-out errors summed over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Floats, Integers, Labels
from fedgram.core.targets import LEVELS, Targets, require_output_sums
from fedgram.errors import DataError, SolveError
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import correct

_FURTHEST = 8.0 * LEVELS  # larger errors count as this, also of a sample that nothing predicts
_SCORES_AT_ONCE = 2**16  # of several settings


@codec.register("SquaredErrors/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SquaredErrors(Additive):
    """Summed squares of leave-one-out errors for each setting, in fixed-point steps.

    Parameters
    ----------
    samples
        Number of held-out samples.
    errors
        Sum of squared errors, (outputs, settings).
    totals, energies
        Sum of each output and of its square.

    Examples
    --------
    >>> from fedgram.core.targets import Output
    >>> truth = Targets.of(np.array([[0.0], [1.0]]), (Output(name="y", low=0.0, high=1.0),))
    >>> both = SquaredErrors.of([truth.onehot(), 0 * truth.onehot()], truth)
    >>> both.accuracy, both.winner
    (array([1., 0.]), 0)
    """

    samples: int = 0
    errors: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    totals: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    energies: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, scores: Sequence[Floats], truth: Targets) -> Self:
        """Return the sums of one client, from the leave-one-out predictions of each setting."""
        errors = []
        for each in scores:
            error = np.nan_to_num(each * LEVELS - truth.values, nan=_FURTHEST)
            squares = np.clip(error, -_FURTHEST, _FURTHEST) ** 2
            errors.append(np.rint(squares.sum(axis=0)).astype(np.int64))
        return cls(
            samples=len(truth),
            errors=np.stack(errors, axis=1),
            totals=truth.values.sum(axis=0),
            energies=(truth.values**2).sum(axis=0),
        )

    def lacks_schema(self) -> bool:
        return not self.errors.size

    def claimed_samples(self) -> int:
        return self.samples

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        if self.samples < 0 or (self.errors < 0).any() or (self.energies < 0).any():
            raise DataError("squared errors: expected counts and squares of at least 0")
        if not len(self.errors) == len(self.totals) == len(self.energies):
            raise DataError("squared errors: expected a row for each output")
        if (self.errors > self.samples * _FURTHEST**2).any():
            raise DataError("squared errors: larger than their samples allow")
        require_output_sums(self.samples, self.totals, self.energies)

    @property
    def accuracy(self) -> Floats:
        """R2 of each setting on held-out samples, as the mean over outputs."""
        if not self.errors.size:
            raise SolveError("no setting was evaluated; at least one client is needed")
        scatter = self.energies - self.totals.astype(np.float64) ** 2 / max(1, self.samples)
        shares: Floats = (1 - self.errors / np.maximum(scatter, 1.0)[:, None]).mean(axis=0)
        return shares

    @property
    def winner(self) -> int:
        """The index of the best setting; of equal ones the first."""
        return int(self.accuracy.argmax())


def left_out_sums(
    scores: Sequence[Floats], labels: Sequence[Labels]
) -> list[CorrectCounts | SquaredErrors]:
    """Return what is summed over clients to select a setting.

    Parameters
    ----------
    scores
        Leave-one-out scores of each setting, (clients, samples, classes): of clients that have
        equally many samples.
    labels
        The truth of each client: of classes, correct predictions are counted; of numbers, errors
        are squared.
    """
    numbers = [each for each in labels if isinstance(each, Targets)]
    if numbers:
        return [
            SquaredErrors.of([each[place] for each in scores], truth)
            for place, truth in enumerate(numbers)
        ]
    return [*correct_sums(scores, np.stack([each.codes for each in labels]))]


def correct_sums(scores: Sequence[Floats], codes: Integers) -> list[CorrectCounts]:
    """Return the counts of correct predictions of clients with equally many samples.

    Parameters
    ----------
    scores
        Leave-one-out scores of each setting, (clients, samples, classes).
    codes
        Class codes, (clients, samples).
    """
    stacks = max(1, _SCORES_AT_ONCE // max(1, scores[0].size))
    parts = [np.stack(scores[k : k + stacks]) for k in range(0, len(scores), stacks)]
    counts = np.concatenate([correct(part, codes).sum(axis=-1) for part in parts])
    return [
        CorrectCounts(samples=np.array([codes.shape[1]]), correct=counts[None, :, place].copy())
        for place in range(len(codes))
    ]
