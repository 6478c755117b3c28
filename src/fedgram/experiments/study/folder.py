"""A table's folder: the recorded runs, what they took, and who is at work on it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

from fedgram.errors import ConfigError, DataError
from fedgram.experiments import reader
from fedgram.experiments.study.cells import CellRun
from fedgram.runtime.files import cannot_write, locked

PATIENCE = 3.0  # seconds; the processes of a killed table may take a moment to end


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """What is known of a finished run.

    ``chosen`` and ``last`` are the summaries of the round that was chosen on validation samples
    and of the last one; for methods of one round they are the same.
    """

    folder: str
    chosen: dict[str, Any]
    chosen_round: int
    last: dict[str, Any]
    rounds: int
    version: str


class Folder:
    """A table's folder, used by one process at a time.

    ``runs`` has a folder per run, as ``fedgram run --out`` writes them; ``interrupted`` has what
    an earlier process left unfinished; ``times.jsonl`` the seconds that each run took in all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise cannot_write(self.path, error) from error
        limit = time.monotonic() + PATIENCE
        while not locked(self._lock):
            if time.monotonic() > limit:
                self._lock.seek(0)
                who = self._lock.read().strip()
                self._lock.close()
                raise ConfigError(
                    f"{self.path}: another table is being made here (process {who}); wait until "
                    "it is done, or choose another folder"
                )
            time.sleep(0.1)
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()  # and with it the lock is gone, also if the process is killed

    @property
    def keep_open(self) -> list[int]:
        """File descriptors that hold the lock as long as anybody has them."""
        return [] if self._lock is None else [self._lock.fileno()]

    def outcomes(self, runs: Iterable[CellRun]) -> dict[str, Outcome]:
        """Return what is finished of these runs, by digest."""
        found = {path.name.rsplit("-", 1)[-1]: path for path in (self.path / "runs").glob("*-*")}
        some = {run.digest: self._outcome(found[run.digest]) for run in runs if run.digest in found}
        return {digest: outcome for digest, outcome in some.items() if outcome is not None}

    def room(self, run: CellRun) -> Path:
        """Return where to record a run; what is left of an earlier try is moved away."""
        for old in (self.path / "runs").glob(f"*-{run.digest}"):
            away = self.path / "interrupted" / old.name
            try:
                if away.exists():
                    shutil.rmtree(away)
                away.parent.mkdir(exist_ok=True)
                old.replace(away)
            except OSError as error:
                raise cannot_write(away, error) from error
        return self.path / "runs" / run.name

    def took(self, run: CellRun, seconds: float) -> None:
        """Remember how long a run took in all, scoring and recording included."""
        path = self.path / "times.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": run.digest, "seconds": seconds}) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from error

    def times(self) -> dict[str, float]:
        """Return the seconds that runs took, by digest."""
        times: dict[str, float] = {}
        with suppress(OSError):  # nothing was run yet
            for line in (self.path / "times.jsonl").read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # cut short by a kill
                    entry = json.loads(line)
                    times[entry["run"]] = float(entry["seconds"])
        return times

    def _outcome(self, path: Path) -> Outcome | None:
        """Return a finished run's outcome; anything else counts as not run."""
        try:
            (result,) = reader.read_runs([path])
            about = json.loads((path / "run.json").read_text(encoding="utf-8"))
            found = _outcome(result, about) if result["finished"] else None
        except (DataError, KeyError, TypeError, ValueError):
            return None
        return found and replace(found, folder=path.relative_to(self.path).as_posix())


def _outcome(result: dict[str, Any], about: dict[str, Any]) -> Outcome:
    rounds = int(result["rounds"])
    last = result.get("last") or result
    return Outcome(
        folder=result["run"],
        chosen=result,
        chosen_round=int(result.get("chosen") or rounds),
        last={**last, "bytes": last.get("bytes", result["bytes"])},
        rounds=rounds,
        version=str(about["versions"]["fedgram"]),
    )
