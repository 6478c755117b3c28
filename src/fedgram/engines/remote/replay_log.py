"""The answers that a server has received in a run; after a crash they are replayed."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.errors import DataError
from fedgram.federation.protocol import Exchange


class ReplayLog:
    """One folder per exchange, under its number.

    An entry is valid only for the request that it answers. If a method makes another request this
    time, the entry and all later entries are deleted.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     numbers = {"clients": 1, "bytes_up": 1, "bytes_down": 1, "seconds": 0.0}
    ...     ask = Exchange(step="s", phase="train", **numbers)
    ...     log = ReplayLog(Path(folder))
    ...     log.put(1, "", 7)
    ...     log.close(1, "question", ask, [""])
    ...     dict(log.values(1)), log.ask(1, "question") == ask, log.ask(1, "other")
    ({'': 7}, True, None)
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(self, serial: int, key: str) -> Exchange | None:
        """Return the record of a finished exchange; None if the exchange must be done."""
        try:
            kept = self._closed(serial)
        except DataError:
            kept = None
        if kept is not None and kept["key"] == key:
            return Exchange(**kept["ask"])
        self._drop(serial)
        return None

    def put(self, serial: int, name: str, value: Any) -> None:
        """Record one value of an exchange that is not finished."""
        codec.save(self._value(serial, name), {"name": name, "value": value})

    def close(self, serial: int, key: str, ask: Exchange, names: list[str]) -> None:
        """Finish an exchange with the values of these names: from now on it is replayed."""
        closed = {"key": key, "ask": asdict(ask), "names": sorted(names)}
        codec.save(self._entry(serial) / "ask", closed)

    def values(self, serial: int) -> Iterator[tuple[str, Any]]:
        """Yield the values of a finished exchange by name, one at a time."""
        kept = self._closed(serial)
        for name in kept["names"] if kept else ():
            yield name, codec.load(self._value(serial, name))["value"]

    def begun(self, serial: int) -> dict[str, Any]:
        """Return the recorded values of an exchange, finished or not."""
        found = map(codec.load, sorted(self._entry(serial).glob("value-*[0-9a-f]")))
        return {kept["name"]: kept["value"] for kept in found}

    def _closed(self, serial: int) -> dict[str, Any] | None:
        path = self._entry(serial) / "ask"
        kept: dict[str, Any] | None = codec.load(path) if path.is_file() else None
        return kept

    def _value(self, serial: int, name: str) -> Path:
        # The name of a site may be longer than a file name, and have any characters.
        return self._entry(serial) / f"value-{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def _entry(self, serial: int) -> Path:
        return self._folder / f"{serial:06d}"

    def _drop(self, serial: int) -> None:
        for path in self._folder.glob("*"):
            if re.fullmatch("[0-9]{6}", path.name) and int(path.name) >= serial:
                shutil.rmtree(path)
