"""Selection of settings by counts of correct held-out predictions, summed over clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Array, Floats, Integers, Labels
from fedgram.errors import DataError, SolveError


@codec.register("Ballot/1", fields={"correct": "right"})
@dataclass(frozen=True, eq=False, kw_only=True)
class CorrectCounts(Additive):
    """Number of correct leave-one-out predictions of each setting.

    The counts are integers, so that secure aggregation can add them.

    Parameters
    ----------
    samples
        Number of held-out samples: one number, or one for each class.
    correct
        Number of correct predictions of each setting, (1 or classes, settings).

    Examples
    --------
    >>> north = CorrectCounts.of(np.array([[True, False], [True, True]]))
    >>> south = CorrectCounts.of(np.array([[False, True]]))
    >>> (north + south).correct, (north + south).samples, (north + south).winner
    (array([[2, 2]]), array([3]), 0)
    """

    samples: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    correct: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @classmethod
    def of(cls, correct: Array, labels: Labels | None = None) -> Self:
        """Return one client's counts from (samples, settings); by class if labels are given."""
        if labels is None:
            return cls(
                samples=np.array([len(correct)]), correct=np.sum(correct, axis=0, keepdims=True)
            )
        counts = np.zeros((len(labels.classes), correct.shape[1]), np.int64)
        np.add.at(counts, labels.codes, correct)
        return cls(samples=np.bincount(labels.codes, minlength=len(counts)), correct=counts)

    def lacks_schema(self) -> bool:
        return not self.correct.size

    def claimed_samples(self) -> int:
        return int(self.samples.sum())

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        if len(self.samples) != len(self.correct):
            raise DataError("correct predictions: expected one number of samples for each row")
        if (self.correct < 0).any() or (self.correct > self.samples[:, None]).any():
            raise DataError("correct predictions: expected from 0 to the number of samples")

    @property
    def winner(self) -> int:
        """The index of the best setting; of equal ones the first."""
        if not self.correct.size:
            raise SolveError("no setting was evaluated; at least one client is needed")
        return int(self.accuracy.argmax())

    @property
    def accuracy(self) -> Floats:
        """Accuracy of each setting on held-out samples; balanced accuracy if counted by class."""
        used = self.samples > 0
        if not used.any():
            return np.zeros(self.correct.shape[1])
        shares: Floats = (self.correct[used] / self.samples[used, None]).mean(axis=0)
        return shares
