"""How settings are chosen together: every client counts what each would have got right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Array, Floats, Integers, Labels
from fedgram.errors import SolveError


@codec.register("Ballot/1", fields={"correct": "right"})
@dataclass(frozen=True, eq=False, kw_only=True)
class CorrectCounts(Additive):
    """For each of several settings, how many samples it gets right when they are left out.

    Integers that add up, so that settings can be chosen under secure sums.

    Parameters
    ----------
    samples
        Number of samples that were left out, one at a time: of all, or of each class.
    correct
        One count for each setting, of all samples or of each class, (1 or classes, settings).

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
        """Count one client's samples, (samples, settings); by class where labels are given."""
        if labels is None:
            return cls(
                samples=np.array([len(correct)]), correct=np.sum(correct, axis=0, keepdims=True)
            )
        counts = np.zeros((len(labels.classes), correct.shape[1]), np.int64)
        np.add.at(counts, labels.codes, correct)
        return cls(samples=np.bincount(labels.codes, minlength=len(counts)), correct=counts)

    def lacks_schema(self) -> bool:
        return not self.correct.size

    @property
    def winner(self) -> int:
        """The place of the best setting; of equal ones the first."""
        if not self.correct.size:
            raise SolveError("nobody has tried any setting; ask at least one client")
        return int(self.accuracy.argmax())

    @property
    def accuracy(self) -> Floats:
        """The share of samples that each setting gets right; the mean over classes, if by class."""
        seen = self.samples > 0
        if not seen.any():
            return np.zeros(self.correct.shape[1])
        shares: Floats = (self.correct[seen] / self.samples[seen, None]).mean(axis=0)
        return shares
