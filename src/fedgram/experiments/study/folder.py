"""A study's folder: the recorded runs, their times, and the lock of the running process."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Self

from fedgram.errors import ConfigError, DataError
from fedgram.experiments.reader import read_runs
from fedgram.experiments.run_record import RunRecord
from fedgram.experiments.study.cells import CellRun
from fedgram.runtime.files import cannot_write, locked
from fedgram.runtime.parse import json_object

PATIENCE = 3.0  # seconds; the processes of a killed table may take a moment to end


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
                    f"{self.path}: another study is running in this folder (process {who}); "
                    "wait until it is done, or choose another folder"
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
        """File descriptors that hold the lock while any process has them open."""
        return [] if self._lock is None else [self._lock.fileno()]

    def finished(self, runs: Iterable[CellRun]) -> dict[str, RunRecord]:
        """Return the records of those of these runs that are finished, by digest."""
        found = {path.name.rsplit("-", 1)[-1]: path for path in (self.path / "runs").glob("*-*")}
        records = {r.digest: self._finished(found[r.digest]) for r in runs if r.digest in found}
        return {digest: record for digest, record in records.items() if record is not None}

    def room(self, run: CellRun) -> Path:
        """Return where to record a run; the files of an earlier attempt are moved away."""
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
        """Record the total seconds of a run, including scoring and recording."""
        path = self.path / "times.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": run.digest, "seconds": seconds}) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from error

    def times(self) -> dict[str, float]:
        """Return the seconds that runs took, by digest."""
        times: dict[str, float] = {}
        with suppress(OSError, UnicodeDecodeError):  # nothing was run yet
            for line in (self.path / "times.jsonl").read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # cut short by a kill
                    entry = json_object(line)
                    times[entry["run"]] = float(entry["seconds"])
        return times

    def _finished(self, path: Path) -> RunRecord | None:
        """Return the record of a finished run; anything else counts as not run."""
        try:
            (record,) = read_runs([path], clients=False)
            record.versions["fedgram"]  # which the table names
        except (DataError, KeyError):
            return None
        folder = path.relative_to(self.path).as_posix()
        return replace(record, folder=folder) if record.finished else None
