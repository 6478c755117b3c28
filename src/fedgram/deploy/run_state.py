"""Where a server stands: which runs were begun, and which are done."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from fedgram.experiments.record import NOTES, read_object
from fedgram.runtime import files


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One pass through the methods of a federation; a killed server takes it up again.

    Parameters
    ----------
    folder
        Of this pass, ``runs/NNNN``.
    plan
        Digest of all settings: others begin another pass.
    runs
        The name of each method's run, as sites know it.
    parties
        Digest of who takes part in each and on which terms, once that is known.
    """

    folder: Path
    plan: str
    runs: dict[str, str]
    parties: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, folder: Path, plan: str, methods: Sequence[str]) -> Self:
        """Return the pass that is under way with these settings, else a new one."""
        passes = sorted(path for path in (folder / "runs").glob("[0-9]*") if path.is_dir())
        if passes and (passes[-1] / "course.json").is_file():
            state = read_object(passes[-1] / "course.json")
            if state["plan"] == plan and not state["finished"]:
                kept = {key: state[key] for key in ("runs", "parties")}
                return cls(folder=passes[-1], plan=plan, **kept)
        number = int(passes[-1].name) + 1 if passes else 1
        runs = {name: secrets.token_hex(16) for name in methods}
        course = cls(folder=folder / "runs" / f"{number:04d}", plan=plan, runs=runs)
        course._write(finished=False)
        return course

    def run(self, method: str, party: str) -> str:
        """Return the name of a method's run with this party.

        With another than before a restart it begins anew, under another name: what sites remember
        of a run belongs to it alone.
        """
        if self.parties.setdefault(method, party) != party:
            shutil.rmtree(self.journal(method), ignore_errors=True)
            self.runs[method], self.parties[method] = secrets.token_hex(16), party
        self._write(finished=False)
        return self.runs[method]

    def record(self, method: str) -> Path:
        """Return the folder of a method's record, empty: it is written again from the journal.

        Only its notes stay, for nobody would tell them again.
        """
        folder = self.folder / method
        for path in folder.glob("*"):
            if path.name == NOTES:
                whole = path.read_bytes()
                files.write(path, whole[: whole.rfind(b"\n") + 1])  # a kill may cut a line short
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return folder

    def journal(self, method: str) -> Path:
        """Return the folder of what sites have answered."""
        return self.folder / f"{method}.journal"

    def done(self, method: str) -> bool:
        """Whether this method's run is finished."""
        return (self.folder / f"{method}.done").is_file()

    def end(self, method: str, summary: dict[str, Any]) -> None:
        """Finish a method's run; what sites answered is in its record now."""
        files.write(self.folder / f"{method}.done", json.dumps(summary) + "\n")
        shutil.rmtree(self.journal(method), ignore_errors=True)

    def finish(self) -> None:
        """End the pass: the next one begins anew."""
        for method in self.runs:  # a kill after the end of a run may have left one
            shutil.rmtree(self.journal(method), ignore_errors=True)
        self._write(finished=True)

    def _write(self, *, finished: bool) -> None:
        state = {**asdict(self), "folder": self.folder.name, "finished": finished}
        files.write(self.folder / "course.json", json.dumps(state, indent=2) + "\n")
