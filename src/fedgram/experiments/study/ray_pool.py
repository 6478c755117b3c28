"""Ray workers that carry out runs side by side, on one machine or many."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedgram.core import codec
from fedgram.data.dataset import Dataset
from fedgram.engines.ray.cluster import Cluster, WorkerLost
from fedgram.errors import FederationError
from fedgram.experiments import config
from fedgram.experiments.record import EXCHANGES
from fedgram.experiments.study.worker import Bench, carry_out
from fedgram.experiments.study.worker_pool import WorkerAnswer
from fedgram.runtime import files

MOST_LOSSES = 3  # workers that one run may lose
Answers = list[dict[str, Any]]
Files = list[tuple[str, bytes]]  # path within the folder of a run, and content


class RayPool:
    """A number of Ray workers.

    Data sets travel to the workers, and the files of a run travel back: other machines need neither
    the data nor the folder of the study. A run whose worker is lost is run again in a new worker.

    Parameters
    ----------
    cluster
        The connection to Ray.
    count
        Number of workers.
    """

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster = cluster
        self._count = count
        self._data: dict[str, Any] = {}  # references, by the digest of the data set
        self._idle: list[Any] = []
        self._busy: dict[Any, _Running] = {}  # by the reference to the result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._idle, *(running.worker for running in self._busy.values())):
            self._cluster.end(worker)
        self._idle.clear()
        self._busy.clear()

    def map(self, jobs: Iterable[Mapping[str, Any]]) -> Iterator[WorkerAnswer]:
        """Yield the answers of the workers as runs end; jobs are numbered from 0."""
        waiting = deque(_Running(number, job) for number, job in enumerate(jobs))
        while waiting or self._busy:
            while waiting and len(self._busy) < self._count:
                self._send(waiting.popleft())
            reference = self._cluster.first_of([*self._busy])
            running = self._busy.pop(reference)
            try:
                answers, written = self._cluster.get(reference)
            except WorkerLost as lost:
                self._cluster.end(running.worker)
                running.losses += 1
                if running.losses < MOST_LOSSES:
                    waiting.appendleft(running)
                    continue
                answers, written = [_failed(str(lost))], []
            else:
                self._idle.append(running.worker)
            _write(running.job, written)
            for answer in answers:
                yield WorkerAnswer(job=running.number, **answer)

    def _send(self, running: _Running) -> None:
        running.worker = (
            self._idle.pop() if self._idle else self._cluster.start(RemoteBench, os.getcwd())
        )
        data = self._placed(running.job)
        self._busy[self._cluster.call(running.worker, "run", running.job, data)] = running

    def _placed(self, job: Mapping[str, Any]) -> Any:
        """Return the reference to the encoded data set of a run."""
        digest = job["data"]
        if digest not in self._data:
            data = config.read(job["config"]).data.load()
            plain = {f.name: getattr(data, f.name) for f in fields(data)}
            if data.labels.dtype.kind not in "iub":  # messages have arrays of numbers only
                plain["labels"] = data.labels.tolist()
            self._data[digest] = self._cluster.put(codec.encode(plain))
        return self._data[digest]


class _Running:
    """A run, and the worker that carries it out."""

    def __init__(self, number: int, job: Mapping[str, Any]) -> None:
        self.number = number
        self.job = job
        self.worker: Any = None
        self.losses = 0


class RemoteBench:
    """Carries out runs inside a Ray worker.

    Parameters
    ----------
    folder
        The working folder of the study, for files of methods; used if it exists on this machine.
    """

    def __init__(self, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        self._encoded = b""
        self._bench = Bench(load=self._load)

    def run(self, job: Mapping[str, Any], data: bytes) -> tuple[Answers, Files]:
        """Carry out a run; return the answers about it, and its files."""
        self._encoded = data
        answers: Answers = []

        def answer(**what: Any) -> None:
            answers.append(what)

        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder) / "run"
            carry_out(self._bench, {**job, "folder": str(room) if job["folder"] else None}, answer)
            for each in answers:
                if each.get("failed"):
                    each["failed"] = each["failed"].replace(str(room), str(job["folder"]))
            return answers, _read(room)

    def _load(self, source: str, **_: Any) -> Dataset:  # noqa: ARG002  # the data were sent
        plain = codec.decode(self._encoded)
        return Dataset(**{**plain, "labels": np.array(plain["labels"])})


def _read(folder: Path) -> Files:
    """Return the files of a run; last the one whose last line says that the record is complete."""
    paths = sorted(
        (path for path in folder.rglob("*") if path.is_file()),
        key=lambda path: (path.name == EXCHANGES, path),
    )
    return [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths]


def _write(job: Mapping[str, Any], written: Files) -> None:
    for name, content in written:
        files.write(Path(job["folder"]) / name, content)


def _failed(reason: str) -> dict[str, Any]:
    text = f"its Ray worker was lost {MOST_LOSSES} times ({reason})"
    return {"failed": text, "code": FederationError.exit_code}
