"""Counts of floating-point operations, one count for each thread."""

from __future__ import annotations

import threading

_local = threading.local()


def add(operations: int) -> None:
    """Count floating-point operations; a multiply-add is two.

    Examples
    --------
    >>> before = total()
    >>> add(6)
    >>> total() - before
    6
    """
    _local.flops = total() + operations


def total() -> int:
    """Return the number of operations of this thread so far."""
    flops: int = getattr(_local, "flops", 0)
    return flops
