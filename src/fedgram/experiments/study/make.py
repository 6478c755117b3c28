"""Make a study: find the finished runs, run the missing ones, write the tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedgram.engines.ray.cluster import Cluster
from fedgram.experiments import config
from fedgram.experiments.study import published, writers
from fedgram.experiments.study.cells import Cell, CellRun, Source, cells, needed, source_key
from fedgram.experiments.study.folder import Folder
from fedgram.experiments.study.published import PublishedNumbers
from fedgram.experiments.study.ray_pool import RayPool
from fedgram.experiments.study.settings import Study
from fedgram.experiments.study.summary import Summary, summarize
from fedgram.experiments.study.time_estimate import (
    LONG,
    Estimate,
    extrapolated,
    rounds_in_all,
    side_by_side,
    trial,
)
from fedgram.experiments.study.worker_pool import Pool, WorkerAnswer, cores
from fedgram.runtime.text import duration

StartPool = Callable[[int], Pool | RayPool]

_SHORT = 30.0  # seconds; a shorter estimate is not shown


@dataclass(frozen=True, eq=False, kw_only=True)
class State:
    """How far a table is.

    Parameters
    ----------
    summary
        The table as it stands in the files now.
    done, total
        Number of finished runs, and of all runs.
    left
        Estimated seconds to go, if there is an estimate.
    running
        What is under way.
    message
        Message for the user: an estimate, or an error.
    code
        Exit code of the first run that failed; 0 where none did.
    """

    summary: Summary
    done: int
    total: int
    left: float | None = None
    running: tuple[str, ...] = ()
    message: str | None = None
    code: int = 0


def make(
    table: Study,
    path: Path,
    *,
    jobs: int | None = None,
    only_estimate: bool = False,
    ray: str | None = None,
) -> Iterator[State]:
    """Make a table in a folder and yield how far it is, at every step.

    Finished runs are taken as they are. Whatever ends this process, a run in progress is the most
    that is lost. With the address of a Ray cluster as `ray`, runs are carried out there.

    Examples
    --------
    >>> import tempfile
    >>> from fedgram.experiments.study.settings import read
    >>> table = read({"table": {"methods": ["local"], "seeds": 1}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [(state.done, state.total) for state in make(table, Path(folder))][-1]
    (1, 1)
    """
    papers = [published.load(name) for name in table.published]
    shared = table.shared.get("data", {})
    read = [
        config.read({"data": {**shared, **choice.settings["data"]}}).data
        for choice in table.datasets
    ]
    known = {source_key(data): data for data in read}
    sources = {key: Source.of(known[key].load()) for key in sorted(known)}
    every = cells(table, sources)
    with ExitStack() as stack:
        folder = stack.enter_context(Folder(path))
        if ray is None:
            side = partial(side_by_side, requested=jobs or cores())
            start: StartPool = partial(Pool, keep_open=folder.keep_open)
        else:
            cluster = stack.enter_context(Cluster(ray, cpus=jobs or cores()))
            side = partial(_at_most, jobs or cluster.cores)
            start = partial(RayPool, cluster)
        maker = _Maker(table, every, papers, folder, side, start)
        yield from maker.make(only_estimate=only_estimate)


class _Maker:
    def __init__(
        self,
        table: Study,
        every: Sequence[Cell],
        papers: Sequence[PublishedNumbers],
        folder: Folder,
        side: Callable[[Sequence[CellRun]], int],
        start: StartPool,
    ) -> None:
        self._table, self._cells, self._papers, self._folder = table, every, papers, folder
        self._runs = needed(every)
        self._records = folder.finished(self._runs)
        self._times = folder.times()
        self._failed: dict[str, str] = {}
        self._code = 0
        self._processes = side(self._unfinished())
        self._start = start
        self._left: tuple[float, float] | None = None  # seconds, and when that was so
        self._tried = 0
        self._estimate_shown = False
        self._summary = self._written()

    def make(self, *, only_estimate: bool) -> Iterator[State]:
        with self._start(self._processes) as pool:
            yield from self._try_out(pool, always=only_estimate)
            self._estimate()
            yield self._state(message=self._words(always=only_estimate))
            if not only_estimate:
                yield from self._run(pool)

    def _try_out(self, pool: Pool | RayPool, *, always: bool) -> Iterator[State]:
        """Time short runs of methods without a measured run, if some runs are long."""
        tried = Estimate(runs=self._runs, measured=self._times).unknown(self._unfinished())
        if not tried or not (always or any(run.rounds >= LONG for run in tried)):
            return
        what = ", ".join(run.label for run in tried)
        yield self._state(message=f"timing {what}: a run each, the long ones cut short")
        rounds: list[list[float]] = [[] for _ in tried]
        for answer in pool.map([self._job(run, trial(run), None) for run in tried]):
            run = tried[answer.job]
            if answer.round is not None:
                rounds[answer.job].append(answer.seconds)
            elif answer.done:  # one that fails will fail again, and is reported then
                self._times[run.digest] = extrapolated(
                    rounds_in_all(run) if run.rounds >= LONG else run.rounds,
                    rounds[answer.job],
                    answer.seconds,
                    every=run.settings.scoring.every,
                )
                self._tried += 1
                self._estimate()
            yield self._state(running=(f"{run.label}: timing",))

    def _run(self, pool: Pool | RayPool) -> Iterator[State]:
        todo = self._unfinished()
        jobs = [self._job(run, run.settings.to_dict(), str(self._folder.room(run))) for run in todo]
        running: dict[int, str] = {}
        for answer in pool.map(jobs):
            run = todo[answer.job]
            running[answer.job] = f"{run.label}: round {answer.round} of {run.rounds}"
            message = None
            if answer.last:
                del running[answer.job]
                message = self._ended(run, answer) or self._words()
            yield self._state(running=tuple(running.values()), message=message)

    def _ended(self, run: CellRun, answer: WorkerAnswer) -> str | None:
        """Record the end of a run; return its error message, if any."""
        error = answer.failed
        if error is None:
            self._folder.took(run, answer.seconds)
            self._times[run.digest] = answer.seconds
            self._records.update(self._folder.finished([run]))
            if run.digest not in self._records:
                error = "its record is not complete"
        if error is not None:
            error = " ".join(error.split())
            self._failed[run.digest] = error
            self._code = self._code or answer.code or 1
        self._summary = self._written()
        self._estimate()
        return error and f"failed: {run.name}: {error}"

    def _unfinished(self) -> list[CellRun]:
        over = {*self._records, *self._failed}
        return [run for run in self._runs if run.digest not in over]

    def _job(self, run: CellRun, config: dict[str, Any], folder: str | None) -> dict[str, Any]:
        return {
            "config": config,
            "folder": folder,
            "data": run.source.digest,
            "keep_models": self._table.keep_models,
        }

    def _written(self) -> Summary:
        summary = summarize(self._table, self._cells, self._records, self._papers, self._failed)
        writers.write(summary, self._folder.path)
        return summary

    def _estimate(self) -> None:
        estimate = Estimate(runs=self._runs, measured=self._times)
        left = estimate.left(self._unfinished(), self._processes)
        self._left = None if left is None else (left, time.monotonic())

    def _words(self, *, always: bool = False) -> str | None:
        """Return the estimated time and its basis, once, as soon as there is an estimate."""
        if self._estimate_shown or self._left is None:
            return None
        todo = self._unfinished()
        unknown = Estimate(runs=self._runs, measured=self._times).unknown(todo)
        if unknown and not self._tried:
            return None
        self._estimate_shown = True
        seconds, _ = self._left
        if seconds < _SHORT and not always:
            return None
        ground = [_counted(len(self._records), "finished run")] if self._records else []
        ground += [f"short runs of {_counted(self._tried, 'method')}"] if self._tried else []
        return (
            f"{len(todo)} of {len(self._runs)} runs to go: about {duration(seconds)} with "
            f"{self._processes} at a time, estimated from {' and '.join(ground)}"
        )

    def _state(self, *, running: Sequence[str] = (), message: str | None = None) -> State:
        left = None
        if self._left is not None:
            seconds, then = self._left
            left = max(0.0, seconds - (time.monotonic() - then))
        return State(
            summary=self._summary,
            done=len(self._runs) - len(self._summary.missing),
            total=len(self._runs),
            left=left,
            running=tuple(running),
            message=message,
            code=self._code,
        )


def _at_most(most: int, runs: Sequence[CellRun]) -> int:
    """Return the number of runs at the same time, on machines whose memory is not known here."""
    return max(1, min(most, len(runs)))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
