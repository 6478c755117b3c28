"""A site's state on its own disk. Each file is complete or absent."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.errors import DataError
from fedgram.runtime import files

_KEPT = 2  # exchanges whose answers are stored: the server may repeat the last request
_DIGEST = 64  # characters
_PARTY, _ENDED = "party-", "ended-"  # secrets of a secure sum, and what is left at its end
# Files of a run that depend on the samples.
_COMPUTED = ("answer", "state", "model", "pending", "made")


class SiteStore:
    """States, answers and models of one run, by number; and statistics, which outlive runs.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = SiteStore(Path(folder), "0a1b2c3d")
    ...     store.keep_state(3, {"seen": 1})
    ...     store.state(before=3), store.state(before=4)
    ({}, {'seen': 1})
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch("[0-9a-f]{8,64}", run):  # it becomes the name of a folder
            raise DataError(f"{run!r} is not the name of a run")
        self._folder = folder
        self._statistics = folder / "statistics"
        self._samples = folder / "samples"
        self._run = folder / "runs" / run

    def has_samples(self, fingerprint: str) -> bool:
        """Whether what is stored here was computed from these samples."""
        return self._samples.is_file() and self._samples.read_text() == fingerprint

    def use_samples(self, fingerprint: str) -> None:
        """Erase what was computed from other samples: the difference would show the changed ones.

        What guards secure sums stays: no session may start twice.
        """
        if self.has_samples(fingerprint):
            return
        old = [*self._statistics.glob("*")]
        for run in self._run.parent.glob("*"):
            if run != self._run:
                old += [path for kind in _COMPUTED for path in run.glob(f"{kind}-*")]
        for path in old:
            files.erase(path)
        files.write(self._samples, fingerprint, private=True)

    def exclusive(self) -> AbstractContextManager[None]:
        """Return the lock of this site: its processes answer one request after the other."""
        return files.exclusive(self._folder / "site.lock")

    def answer(self, serial: int, kind: str, request_digest: str) -> bytes | None:
        """Return the stored answer to this request; None if there is none."""
        path = self._run / f"answer-{serial}-{kind}"
        if not path.is_file():
            return None
        content = path.read_bytes()
        return content[_DIGEST:] if content[:_DIGEST] == request_digest.encode() else None

    def keep_answer(self, serial: int, kind: str, request_digest: str, answer: bytes) -> None:
        """Store an answer, and delete those of early exchanges, which are not requested again."""
        self._write(f"answer-{serial}-{kind}", request_digest.encode() + answer)
        self._tidy("answer-*", serial - _KEPT)

    def state(self, *, before: int) -> MutableMapping[str, Any]:
        """Return the state at the start of the exchange with this number."""
        number = max((n for n in self._numbers("state-*") if n < before), default=0)
        state: dict[str, Any] = codec.load(self._run / f"state-{number}") if number else {}
        return state

    def keep_state(self, serial: int, state: Mapping[str, Any]) -> None:
        """Store the state at the end of an exchange."""
        self._write(f"state-{serial}", codec.encode(dict(state)))
        earlier = sorted(n for n in self._numbers("state-*") if n < serial)
        for number in earlier[:-1]:
            self._remove(f"state-{number}")

    def keep_session_state(self, session: str, state: Mapping[str, Any]) -> None:
        """Store the state that a secure sum makes; it is used once this site has revealed."""
        self._write(f"pending-{_session(session)}", codec.encode(dict(state)))

    def use_session_state(self, session: str) -> None:
        """Use the state of a secure sum from now on, if the sum made one."""
        pending = self._run / f"pending-{_session(session)}"
        if pending.is_file():
            for path in self._run.glob("made-*"):
                self._remove(path.name)
            pending.replace(self._run / f"made-{session}")

    def session_state(self, session: str | None = None) -> dict[str, Any] | None:
        """Return the state that a secure sum made, or the last one; None if it is not here."""
        name = "made-*" if session is None else f"made-{_session(session)}"
        found = [path for path in self._run.glob(name) if "." not in path.name]
        state: dict[str, Any] | None = codec.load(found[0]) if found else None
        return state

    def model(self, round_: int) -> Any:
        """Return the model of a scored round; None if it is not stored."""
        path = self._run / f"model-{int(round_)}"
        return codec.load(path) if path.is_file() else None

    def keep_model(self, round_: int, model: Any, *, best: int) -> None:
        """Store the model of a round; of the others only that of the best round stays."""
        self._write(f"model-{int(round_)}", codec.encode(model))
        for number in self._numbers("model-*"):
            if number not in (round_, best):
                self._remove(f"model-{number}")

    def party(self, session: str) -> dict[str, Any] | None:
        """Return the stored state of this site in a secure sum; empty once the sum has ended."""
        path = self._party(session)
        if _ended(path).is_file():
            return {}
        kept: dict[str, Any] | None = codec.load(path) if path.is_file() else None
        return kept

    def keep_party(self, session: str, party: dict[str, Any]) -> None:
        """Store the state of this site in a secure sum; an empty one ends it.

        It is on the disk when this returns: after a power failure no round is answered again.
        """
        if party:
            files.write_secret(self._party(session), codec.encode(party))
        else:
            _end(self._party(session))

    def end_sums(self, *, older_than: float | None = None) -> None:
        """Erase the secrets of secure sums that were not finished, in all runs.

        Parameters
        ----------
        older_than
            Only of sums in which nothing was asked for this number of seconds.
        """
        for path in self._run.parent.glob(f"*/{_PARTY}*"):
            if older_than is None or time.time() - path.stat().st_mtime > older_than:
                _end(path)

    def statistics(self, known: str) -> tuple[Any, dict[str, Any]] | None:
        """Return the stored reply of a step without broadcast, and the state after it."""
        path = self._statistics / known
        if not path.is_file():
            return None
        kept = codec.load(path)
        return kept["value"], kept["state"]

    def keep_statistics(self, known: str, value: Any, state: Mapping[str, Any]) -> None:
        """Store the reply of a step without broadcast, and the state after it."""
        codec.save(self._statistics / known, {"value": value, "state": dict(state)}, private=True)

    def clear(self, round_: int) -> None:
        """Delete the files of the run, except its last answers and the final model."""
        for path in self._run.glob("*"):
            if path.name.startswith(_PARTY):
                _end(path)
            elif not path.name.startswith(("answer-", _ENDED)) and path.name != f"model-{round_}":
                self._remove(path.name)

    def _party(self, session: str) -> Path:
        return self._run / f"{_PARTY}{_session(session)}"

    def _write(self, name: str, content: bytes) -> None:
        files.write(self._run / name, content, private=True)

    def _numbers(self, pattern: str) -> list[int]:
        return [int(p.name.split("-")[1]) for p in self._run.glob(pattern) if "." not in p.name]

    def _tidy(self, pattern: str, oldest: int) -> None:
        for path in self._run.glob(pattern):
            if "." not in path.name and int(path.name.split("-")[1]) < oldest:
                self._remove(path.name)

    def _remove(self, name: str) -> None:
        (self._run / name).unlink(missing_ok=True)


def _ended(party: Path) -> Path:
    """Return the file that says that a session has ended: no session starts twice."""
    name = party.name.removeprefix(_PARTY)[:_DIGEST]  # without the end of an unfinished file
    return party.with_name(f"{_ENDED}{name}")


def _end(party: Path) -> None:
    """End a session: its secrets are erased."""
    files.write(_ended(party), b"", private=True, durable=True)
    files.erase(party)


def _session(name: object) -> str:
    """Return the name of a secure session, which becomes a part of a file's name."""
    if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{64}", name):
        raise DataError("not the name of a secure session")
    return name
