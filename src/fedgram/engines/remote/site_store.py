"""What a site remembers of a run, on its own disk: each file is whole or not there."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.errors import DataError
from fedgram.runtime import files

_KEPT = 2  # answers and states of so many exchanges: the server may ask for the last one again
_DIGEST = 64  # letters


class SiteStore:
    """A run's drawer: states, answers and models by number; and statistics, which outlive runs.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cabinet = SiteStore(Path(folder), "0a1b2c3d")
    ...     cabinet.keep_state(3, {"seen": 1})
    ...     cabinet.state(before=3), cabinet.state(before=4)
    ({}, {'seen': 1})
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch("[0-9a-f]{8,64}", run):  # it becomes the name of a folder
            raise DataError(f"{run!r} is no name of a run")
        self._statistics = folder / "statistics"
        self._run = folder / "runs" / run

    def answer(self, serial: int, kind: str, about: str) -> bytes | None:
        """Return the answer that was given to this very request."""
        path = self._run / f"answer-{serial}-{kind}"
        if not path.is_file():
            return None
        content = path.read_bytes()
        return content[_DIGEST:] if content[:_DIGEST] == about.encode() else None

    def keep_answer(self, serial: int, kind: str, about: str, answer: bytes) -> None:
        """Keep an answer; what came long before it is not asked for again."""
        self._write(f"answer-{serial}-{kind}", about.encode() + answer)
        self._tidy("answer-*", serial - _KEPT)

    def last_state(self, *, before: int) -> int:
        """Return the number of the exchange that left the state, 0 where none has."""
        return max((n for n in self._numbers("state-*") if n < before), default=0)

    def state(self, *, before: int) -> MutableMapping[str, Any]:
        """Return the state that the exchange of this number begins with."""
        number = self.last_state(before=before)
        state: dict[str, Any] = codec.load(self._run / f"state-{number}") if number else {}
        return state

    def keep_state(self, serial: int, state: MutableMapping[str, Any]) -> None:
        """Keep the state that an exchange has ended with."""
        self._write(f"state-{serial}", codec.encode(dict(state)))
        earlier = sorted(n for n in self._numbers("state-*") if n < serial)
        for number in earlier[:-1]:
            self._remove(f"state-{number}")

    def model(self, round_: int) -> Any:
        """Return the model of a scored round, None where it is not here."""
        path = self._run / f"model-{round_}"
        return codec.load(path) if path.is_file() else None

    def keep_model(self, round_: int, model: Any, *, best: int) -> None:
        """Keep the model of a round, and of the others only that of the best one."""
        self._write(f"model-{round_}", codec.encode(model))
        for number in self._numbers("model-*"):
            if number not in (round_, best):
                self._remove(f"model-{number}")

    def party(self, session: str) -> dict[str, Any] | None:
        """Return this side of a secure sum, as it was kept."""
        path = self._party(session)
        if not path.is_file():
            return None
        kept: dict[str, Any] = codec.load(path)
        return kept

    def keep_party(self, session: str, party: dict[str, Any]) -> None:
        """Keep this side of a secure sum; an empty one when its secrets are spent."""
        self._write(self._party(session).name, codec.encode(party))

    def statistics(self, known: str) -> tuple[Any, dict[str, Any]] | None:
        """Return what a step without broadcast gave for the same samples and settings, and left."""
        path = self._statistics / known
        if not path.is_file():
            return None
        kept = codec.load(path)
        return kept["value"], kept["state"]

    def keep_statistics(self, known: str, value: Any, state: Mapping[str, Any]) -> None:
        """Keep what a step without broadcast gave and left; other settings have other names."""
        codec.save(self._statistics / known, {"value": value, "state": dict(state)})

    def clear(self, round_: int) -> None:
        """Keep nothing of the run but its last answers and the final model: both may be wanted."""
        for path in self._run.glob("*"):
            if path.name.startswith("party-"):  # no session is ever begun twice
                self._write(path.name, codec.encode({}))
            elif not path.name.startswith("answer-") and path.name != f"model-{round_}":
                self._remove(path.name)

    def _party(self, session: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", session):
            raise DataError("that is no name of a secure session")
        return self._run / f"party-{session}"

    def _write(self, name: str, content: bytes) -> None:
        if not self._run.is_dir():  # models and secrets are nobody else's business
            self._run.mkdir(parents=True, mode=0o700, exist_ok=True)
        files.write(self._run / name, content)

    def _numbers(self, pattern: str) -> list[int]:
        return [int(p.name.split("-")[1]) for p in self._run.glob(pattern) if "." not in p.name]

    def _tidy(self, pattern: str, oldest: int) -> None:
        for path in self._run.glob(pattern):
            if "." not in path.name and int(path.name.split("-")[1]) < oldest:
                self._remove(path.name)

    def _remove(self, name: str) -> None:
        (self._run / name).unlink(missing_ok=True)
