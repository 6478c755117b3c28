"""Values in memory, and beyond a limit in a temporary file: for a server with many clients."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, Self

from fedgram.core.codec import array_bytes, decode, encode

_MOST_HELD = 2**26  # bytes of the arrays of values in memory


class DiskStore:
    """A mapping from names to values; the temporary file is removed on exit.

    Values must not change after they are stored.

    Examples
    --------
    >>> with DiskStore() as store:
    ...     store["a"] = {"n": 3}
    ...     store["a"], list(store)
    ({'n': 3}, ['a'])
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="fedgram-")  # noqa: SIM115 - closed on exit
        self._places: dict[str, tuple[int, int] | None] = {}  # start and length in the file
        self._held: dict[str, Any] = {}
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __setitem__(self, name: str, value: Any) -> None:
        size = array_bytes(value)
        self._bytes += size - array_bytes(self._held.pop(name, None))
        self._places[name] = None
        if self._bytes <= _MOST_HELD:
            self._held[name] = value
            return
        self._bytes -= size
        data, start = encode(value), self._file.seek(0, 2)
        self._file.write(data)
        self._places[name] = start, len(data)

    def __getitem__(self, name: str) -> Any:
        place = self._places[name]
        if place is None:
            return self._held[name]
        self._file.seek(place[0])
        return decode(self._file.read(place[1]), origin=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)
