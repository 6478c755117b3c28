"""How much arithmetic was done: counted where it is done, by the thread that does it."""

from __future__ import annotations

import threading

_local = threading.local()


def count(flops: int) -> None:
    """Count floating-point operations; a multiply-add is two.

    Examples
    --------
    >>> before = done()
    >>> count(6)
    >>> done() - before
    6
    """
    _local.flops = done() + flops


def done() -> int:
    """Return how many operations this thread has counted so far."""
    flops: int = getattr(_local, "flops", 0)
    return flops
