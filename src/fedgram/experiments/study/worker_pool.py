"""Processes that carry out runs side by side, and end with the one that started them."""

from __future__ import annotations

import json
import os
import queue
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from fedgram.errors import FedgramError
from fedgram.runtime.processes import VARIABLE, end_processes
from fedgram.runtime.threads import THREAD_VARIABLES

MODULE = "fedgram.experiments.study.worker"
_GRACE = 5.0  # seconds to end by itself before it is killed


@dataclass(frozen=True, kw_only=True)
class WorkerAnswer:
    """The answer of a process about a job: a scored round, the end, or an error.

    ``seconds`` are counted from the start of the job.
    """

    job: int
    round: int | None = None
    seconds: float = 0.0
    done: bool = False
    failed: str | None = None
    code: int = 0

    @property
    def last(self) -> bool:
        """Whether this is the last answer about the job."""
        return self.done or self.failed is not None


def cores() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """A number of worker processes.

    Parameters
    ----------
    count
        Number of processes; the processors are divided among them.
    keep_open
        File descriptors that live as long as any of the processes: the table's lock.
    """

    def __init__(self, count: int, *, keep_open: Sequence[int] = ()) -> None:
        self._count = count
        self._token = secrets.token_hex(16)
        self._keep_open = keep_open
        self._answers: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]
        self._answers = queue.SimpleQueue()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for worker in self._workers:
            worker.end(at_once=kind is not None)
        self._workers.clear()
        end_processes(self._token)  # what methods have started and left behind

    def map(self, jobs: Iterable[Mapping[str, Any]]) -> Iterator[WorkerAnswer]:
        """Yield the answers of the processes as they arrive; jobs are numbered from 0."""
        waiting = deque(enumerate(jobs))
        idle = list(self._workers)
        busy: dict[_Worker, int] = {}
        while waiting or busy:
            while waiting and len(busy) < self._count:
                number, job = waiting.popleft()
                worker = idle.pop() if idle else self._started()
                busy[worker] = number
                worker.send(job)
            worker, received = self._answers.get()
            if received is None:
                self._workers.remove(worker)
                if worker in idle:
                    idle.remove(worker)
                    continue
                received = {"failed": worker.describe_end(), "code": FedgramError.exit_code}
            answer = WorkerAnswer(job=busy[worker], **received)
            if answer.last:
                del busy[worker]
                if worker in self._workers:
                    idle.append(worker)
            yield answer

    def _started(self) -> _Worker:
        threads = max(1, cores() // self._count)
        worker = _Worker(threads, self._token, self._keep_open, self._answers)
        self._workers.append(worker)
        return worker


class _Worker:
    """One process, and the thread that listens to it."""

    def __init__(
        self,
        threads: int,
        token: str,
        keep_open: Sequence[int],
        answers: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]],
    ) -> None:
        # The very packages that this process sees, however it was started.
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        limits = {name: _fewer(os.environ.get(name), threads) for name in THREAD_VARIABLES}
        self._process = subprocess.Popen(  # noqa: S603  (our own module)
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, VARIABLE: token, **limits},
            pass_fds=() if sys.platform == "win32" else keep_open,
            text=True,
            encoding="utf-8",
        )
        self._listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self._listener.start()

    def send(self, job: Mapping[str, Any]) -> None:
        """Send a job; a process that has ended is noticed by the listener."""
        stdin = self._process.stdin
        with suppress(BrokenPipeError):
            if stdin is not None:
                print(json.dumps(job), file=stdin, flush=True)

    def end(self, *, at_once: bool) -> None:
        """End the process: after its job, or at once by a signal."""
        if at_once:
            self._process.kill()
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def describe_end(self) -> str:
        """Wait for the end of the process and return how it ended."""
        code = self._process.wait()
        self.end(at_once=False)
        if code < 0:
            return f"its process was killed by signal {-code}; perhaps there was not enough memory"
        return f"its process ended with status {code}"

    def _listen(self, answers: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        stdout: Iterable[str] = self._process.stdout or ()
        for line in stdout:
            answers.put((self, json.loads(line)))
        answers.put((self, None))


def _fewer(asked: str | None, threads: int) -> str:
    """Return the smaller of the environment's limit and the number of threads."""
    allowed = int(asked) if asked and asked.isdigit() and int(asked) > 0 else threads
    return str(min(allowed, threads))
