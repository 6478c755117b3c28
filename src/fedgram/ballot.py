"""How settings are chosen together: every client counts what each would have got right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedgram import codec
from fedgram.errors import SolveError
from fedgram.group import Additive
from fedgram.samples import Array, Floats, Integers


@codec.register
@dataclass(frozen=True, eq=False, kw_only=True)
class Ballot(Additive):
    """For each of several settings, how many samples it gets right when they are left out.

    Integers that add up, so that settings can be chosen under secure sums.

    Parameters
    ----------
    samples
        Number of samples that were left out, one at a time.
    right
        One count for each setting.

    Examples
    --------
    >>> north = Ballot.of(np.array([[True, False], [True, True]]))
    >>> south = Ballot.of(np.array([[False, True]]))
    >>> (north + south).right, (north + south).samples, (north + south).winner
    (array([2, 2]), 3, 0)
    """

    samples: int = 0
    right: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, right: Array) -> Self:
        """Count one client's samples, (samples, settings)."""
        return cls(samples=len(right), right=np.sum(right, axis=0, dtype=np.int64))

    def adopts(self) -> bool:
        return not self.right.size

    @property
    def winner(self) -> int:
        """The place of the best setting; of equal ones the first."""
        if not self.right.size:
            raise SolveError("nobody has tried any setting; ask at least one client")
        return int(self.right.argmax())

    @property
    def accuracy(self) -> Floats:
        """The share of samples that each setting gets right."""
        shares: Floats = self.right / max(1, self.samples)
        return shares
