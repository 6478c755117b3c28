"""Batches whose size adapts to the speed of a client, so that each takes about a given time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

_FIRST = 16  # samples of the first batch, whose time is not known yet
CLOCK = time.perf_counter
_MOST_GROWTH = 2.0  # of a batch over the one before: a single fast batch may be chance


def adaptive_batches(
    samples: int, most: int, seconds: float = 0.0, clock: Callable[[], float] | None = None
) -> Iterator[slice]:
    """Yield consecutive batches of samples; the time until the next request is a batch's time.

    A batch that took t seconds for n samples is followed by one of ``n * seconds / t`` samples, at
    least one, at most twice n and at most `most`.

    Parameters
    ----------
    samples
        Number of samples.
    most
        Largest batch, as memory allows.
    seconds
        Time budget of a batch; 0 for none, then all batches have the largest size.
    clock
        Returns the time in seconds; by default that of the machine.

    Examples
    --------
    >>> now = 0.0
    >>> for batch in adaptive_batches(100, 64, seconds=1.0, clock=lambda: now):
    ...     size = batch.stop - batch.start
    ...     print(size, end=" ")
    ...     now += size / 20  # 20 samples a second
    16 20 20 20 20 4
    """
    if not seconds:
        yield from (slice(at, min(samples, at + most)) for at in range(0, samples, most))
        return
    read, size, start = clock or CLOCK, min(most, _FIRST), 0
    while start < samples:
        begun, batch = read(), slice(start, min(samples, start + size))
        yield batch
        took = read() - begun
        growth = min(_MOST_GROWTH, seconds / took) if took > 0 else _MOST_GROWTH
        size, start = max(1, min(most, int(size * growth))), batch.stop
