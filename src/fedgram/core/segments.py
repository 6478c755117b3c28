"""Samples of many clients in one block: the rows of each client are one segment of the block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgram.core.samples import Array, Integers, Samples


@dataclass(frozen=True, eq=False, kw_only=True)
class Segments:
    """A block of samples, with the place and the length of each client's segment.

    Parameters
    ----------
    samples
        The block.
    starts, counts
        First row and number of rows of each client.

    Examples
    --------
    >>> from fedgram.core.samples import Features, Labels, Space
    >>> rows = Features(np.array([[1], [2], [3]], dtype=np.int8), Space(width=1, bound=127))
    >>> block = Samples(rows, Labels(np.array([0, 1, 1]), ("no", "yes")))
    >>> segments = Segments.of(block, np.array([1, 0, 2]))
    >>> len(segments), [len(segments[client]) for client in range(3)]
    (3, [1, 0, 2])
    >>> union, owners = segments.rows(np.array([0, 2]))
    >>> len(union), owners
    (3, array([0, 1, 1]))
    """

    samples: Samples
    starts: Integers
    counts: Integers

    @classmethod
    def of(cls, samples: Samples, counts: Integers) -> Segments:
        """Return the segments of a block in which client follows client."""
        return cls(samples=samples, starts=np.cumsum(counts) - counts, counts=counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, client: int) -> Samples:
        start = int(self.starts[client])
        return self.samples.take(slice(start, start + int(self.counts[client])))

    def select(self, clients: Array) -> Segments:
        """Return the segments of some clients, in this order, in the same block."""
        return replace(self, starts=self.starts[clients], counts=self.counts[clients])

    def rows(self, clients: Integers) -> tuple[Samples, Integers]:
        """Return the rows of some clients, and for each row the place of its client in `clients`.

        The rows are a view of the block if the segments follow each other.
        """
        starts, counts = self.starts[clients], self.counts[clients]
        owners = np.repeat(np.arange(len(clients)), counts)
        filled = counts > 0
        starts, counts = starts[filled], counts[filled]
        if not len(starts):
            return self.samples.take(slice(0)), owners
        if np.array_equal(starts[1:], (starts + counts)[:-1]):
            return self.samples.take(slice(int(starts[0]), int(starts[-1] + counts[-1]))), owners
        before = np.cumsum(counts) - counts
        places = np.arange(len(owners)) + np.repeat(starts - before, counts)
        return self.samples.take(places), owners
