"""The state of a server on disk: which runs have started, and which are finished."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from fedgram.errors import DataError
from fedgram.experiments.record import NOTES, read_object
from fedgram.runtime import files

_LOG = ".journal"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One pass through the methods of a federation; a restarted server continues it.

    Parameters
    ----------
    folder
        Folder of this pass, ``runs/NNNN``.
    plan
        Digest of all settings; with other settings a new pass starts.
    runs
        Name of each method's run, in requests to sites.
    parties
        Digest of the sites and terms of each unfinished run, once they are known. It depends on the
        samples of the sites, so it is not kept longer.
    """

    folder: Path
    plan: str
    runs: dict[str, str]
    parties: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, folder: Path, plan: str, methods: Sequence[str]) -> Self:
        """Return the unfinished pass with these settings, or a new one.

        Parameters
        ----------
        folder
            Folder of the server.
        plan
            Digest of all settings.
        methods
            Names of the methods.
        """
        passes = sorted(path for path in (folder / "runs").glob("[0-9]*") if path.is_dir())
        if passes and (passes[-1] / "course.json").is_file():
            state = read_object(passes[-1] / "course.json")
            if state.get("plan") == plan and not state.get("finished"):
                kept = {key: _names(passes[-1], state, key) for key in ("runs", "parties")}
                if not kept["runs"].keys() >= set(methods):
                    raise _damaged(passes[-1], "a run is missing")
                return cls(folder=passes[-1], plan=plan, **kept)
        number = int(passes[-1].name) + 1 if passes else 1
        runs = {name: secrets.token_hex(16) for name in methods}
        started = cls(folder=folder / "runs" / f"{number:04d}", plan=plan, runs=runs)
        started._write(finished=False)
        return started

    def run(self, method: str, party: str) -> str:
        """Return the name of a method's run with these sites and terms.

        If they differ from those before a restart, the run starts again with a new name: what sites
        store under the name of a run is valid for that run only.
        """
        if self.parties.setdefault(method, party) != party:
            _erase(self.replay_log(method))
            self.runs[method], self.parties[method] = secrets.token_hex(16), party
        self._write(finished=False)
        return self.runs[method]

    def record(self, method: str) -> Path:
        """Return the folder of a method's record, emptied: a restarted run writes it again.

        Only its notes stay, because nothing repeats them.
        """
        folder = self.folder / method
        for path in folder.glob("*"):
            if path.name == NOTES:
                whole = path.read_bytes()
                files.write(
                    path, whole[: whole.rfind(b"\n") + 1]
                )  # a kill may leave a partial line
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return folder

    def replay_log(self, method: str) -> Path:
        """Return the folder of the sites' answers, the replay log."""
        return self.folder / f"{method}{_LOG}"

    def done(self, method: str) -> bool:
        """Whether this method's run is finished."""
        return (self.folder / f"{method}.done").is_file()

    def end(self, method: str, summary: dict[str, Any]) -> None:
        """Finish a method's run; its record now holds the results of the sites' answers."""
        files.write(self.folder / f"{method}.done", json.dumps(summary) + "\n")
        _erase(self.replay_log(method))
        self.parties.pop(method, None)
        self._write(finished=False)

    def finish(self) -> None:
        """Finish the pass; the next run starts a new one."""
        for method in self.runs:  # a kill at the end of a run may have left one
            _erase(self.replay_log(method))
        self.parties.clear()
        self._write(finished=True)

    def _write(self, *, finished: bool) -> None:
        state = {**asdict(self), "folder": self.folder.name, "finished": finished}
        files.write(self.folder / "course.json", json.dumps(state, indent=2) + "\n")


def erase_replay_logs(folder: Path) -> None:
    """Erase the sites' answers to unfinished runs in the folder of a server.

    These runs start again, with new names, and without what depends on the samples.
    """
    for log in (folder / "runs").glob(f"*/*{_LOG}"):
        _erase(log)
    for path in (folder / "runs").glob("[0-9]*/course.json"):
        state = read_object(path)
        if state.get("parties"):
            kept = RunState(
                folder=path.parent,
                plan=str(state.get("plan")),
                runs={name: secrets.token_hex(16) for name in _names(path.parent, state, "runs")},
            )
            kept._write(finished=bool(state.get("finished")))


def _erase(log: Path) -> None:
    """Overwrite and delete a replay log: it may hold single contributions."""
    for path in log.rglob("*"):
        if path.is_file():
            files.erase(path)
    shutil.rmtree(log, ignore_errors=True)


def _names(folder: Path, state: dict[str, Any], key: str) -> dict[str, str]:
    found = state.get(key)
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise _damaged(folder, f"{key}: expected texts by method")
    return found


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(
        f"{folder / 'course.json'}: damaged ({reason}); remove {folder}, and the methods run again"
    )
