"""Checks of free memory before large allocations."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from fedgram.errors import MemoryLimitError
from fedgram.runtime.text import size


def require(needed: int, what: str, remedy: str) -> None:
    """Raise `MemoryLimitError` if `needed` bytes are more than this machine has free.

    Examples
    --------
    >>> require(10**18, "a Gram matrix of 10 features", "use fewer features")
    Traceback (most recent call last):
    ...
    fedgram.errors.MemoryLimitError: ... needs 1 EB of memory, ... free; use fewer features
    """
    free = available()
    needed = min(needed, sys.maxsize)  # a file may declare any number
    if free is not None and needed > free:
        raise MemoryLimitError(
            f"{what} needs {size(needed)} of memory, {size(free)} are free; {remedy}"
        )


def available() -> int | None:
    """Return the bytes of memory that are free to use, None if it is unknown."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found = re.search(r"MemAvailable:\s+(\d+) kB", text)
        if found:
            return int(found.group(1)) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
