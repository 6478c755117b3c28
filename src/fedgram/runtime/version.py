"""The version of the installed package."""

from __future__ import annotations

import functools
from importlib import metadata


@functools.cache
def own_version() -> str:
    """Return the version of fedgram, which a site compares with each request's.

    The installed package's description is read once: to parse it takes a millisecond.

    Examples
    --------
    >>> own_version().count(".")
    2
    """
    return metadata.version("fedgram")
