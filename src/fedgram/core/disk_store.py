"""Encoded values in a temporary folder, for a server whose memory does not hold all of them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from fedgram.core.codec import load, save


class DiskStore:
    """A mapping from names to values in a temporary folder, which is removed on exit.

    Examples
    --------
    >>> with DiskStore() as store:
    ...     store["a"] = {"n": 3}
    ...     store["a"], list(store)
    ({'n': 3}, ['a'])
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedgram-")
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def __setitem__(self, name: str, value: Any) -> None:
        save(self._path(name), value)
        if name not in self._names:
            self._names.append(name)

    def __getitem__(self, name: str) -> Any:
        return load(self._path(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / hashlib.sha256(name.encode()).hexdigest()
